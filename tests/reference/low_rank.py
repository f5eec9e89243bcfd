"""Arrays of low rank, and weights that are adapted by them."""

from jaxrewrite.values import Dora, Lora, LowRank, Rescaled

from . import COMPLEX, case, uniform


@case("low_rank", dtypes=COMPLEX)
def _(rng, dtype, n, m):
    return LowRank(uniform(rng, (n, 2), dtype), uniform(rng, (2, m), dtype))


@case("lora", dtypes=COMPLEX)
def _(rng, dtype, n, m):
    w = uniform(rng, (n, m), dtype)
    a, b = uniform(rng, (n, 2), dtype), uniform(rng, (2, m), dtype)
    return Lora(w, a, b, scale=0.5, frozen=False)


@case("dora")
def _(rng, dtype, n, m):
    w = uniform(rng, (n, m), dtype)
    a, b = uniform(rng, (n, 2), dtype), uniform(rng, (2, m), dtype)
    return Dora(w, a, b, uniform(rng, (1, m), dtype), scale=0.5, frozen=False)


@case("rescaled", dtypes=COMPLEX)
def _(rng, dtype, n, m):
    return Rescaled(uniform(rng, (n, m), dtype), uniform(rng, (1, m), dtype))


@case("rescaled rows", variant=True)
def _(rng, dtype, n, m):
    return Rescaled(uniform(rng, (n, m), dtype), uniform(rng, (n, 1), dtype))

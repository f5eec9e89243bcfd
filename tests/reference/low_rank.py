"""Arrays of low rank, and weights that are adapted by them."""

from jaxrewrite.values import Lora, LowRank

from . import COMPLEX, case, uniform


@case("low_rank", dtypes=COMPLEX)
def _(rng, dtype, n, m):
    return LowRank(uniform(rng, (n, 2), dtype), uniform(rng, (2, m), dtype))


@case("lora", dtypes=COMPLEX)
def _(rng, dtype, n, m):
    w = uniform(rng, (n, m), dtype)
    a, b = uniform(rng, (n, 2), dtype), uniform(rng, (2, m), dtype)
    return Lora(w, a, b, scale=0.5, frozen=False)

"""Annotated arrays that have a dense form."""

from jaxrewrite.values import Named, Tagged

from . import case, uniform


@case("Tagged", dtypes=("float32", "bfloat16", "float64", "complex64"))
def _(rng, dtype, n, m):
    return Tagged(uniform(rng, (n, m), dtype), "weight")


@case("Named", dtypes=("float32", "bfloat16", "float64", "complex64"))
def _(rng, dtype, n, m):
    return Named(uniform(rng, (n, m), dtype), ("rows", None))


@case("Named of Tagged", variant=True)
def _(rng, dtype, n, m):
    return Named(Tagged(uniform(rng, (n, m), dtype), "weight"), (None, "columns"))

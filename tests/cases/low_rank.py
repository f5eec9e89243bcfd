"""Arrays of low rank, and what is adapted by them."""

from cases import COMPLEX, case, uniform
from jaxrewrite.values import LowRank


@case("LowRank", dtypes=COMPLEX)
def _(rng, dtype, n, m):
    return LowRank(uniform(rng, (n, 2), dtype), uniform(rng, (2, m), dtype))

"""Matrices with few diagonals, or in one triangle of an array."""

import jax.numpy as jnp

from jaxrewrite.values import Banded, Symmetric, Triangular, Tridiagonal

from . import COMPLEX, case, uniform


@case("banded", square=True, dtypes=COMPLEX)
def _(rng, dtype, n, m):
    """With zeros on the diagonal, so that it is not solved without exchanges of rows."""
    bands = uniform(rng, (4, n), dtype)
    return Banded(bands.at[2].set((2 * (jnp.arange(n) % 2 == 1)).astype(dtype)), 1, 2)


@case("tridiagonal", square=True, empty=False)
def _(rng, dtype, n, m):
    off = uniform(rng, (2, n - 1), dtype)
    return Tridiagonal(off[0], uniform(rng, (n,), dtype, 2, 3), off[1])


@case("triangular", square=True, dtypes=COMPLEX)
def _(rng, dtype, n, m):
    return Triangular(uniform(rng, (n, n), dtype))


@case("symmetric", square=True, dtypes=COMPLEX)
def _(rng, dtype, n, m):
    return Symmetric(uniform(rng, (n, n), dtype))

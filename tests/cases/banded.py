"""Matrices with few diagonals, or of which one triangle counts."""

import jax.numpy as jnp

from jaxrewrite.values import Banded, Symmetric, Triangular, Tridiagonal

from . import COMPLEX, case, uniform


def bands(rng, dtype, n, lower, upper):
    """Numbers in every place, those that don't count as well; solvable."""
    x = uniform(rng, (lower + upper + 1, n), dtype)
    return Banded(x.at[upper].add(0.5 * (lower + upper)), lower, upper)


@case("banded", square=True, dtypes=COMPLEX)
def _(rng, dtype, n, m):
    return bands(rng, dtype, n, 1, 2)


@case("banded_upper", square=True)
def _(rng, dtype, n, m):
    return bands(rng, dtype, n, 0, 1)


@case("banded_lower", square=True)
def _(rng, dtype, n, m):
    return bands(rng, dtype, n, 2, 0)


@case("banded_pivoting", square=True)
def _(rng, dtype, n, m):
    """Its diagonal is zero in places, and it would not be solved without exchanges."""
    v = bands(rng, dtype, n, 1, 1)
    return Banded(v.bands.at[1].set(jnp.where(jnp.arange(n) % 2 == 1, 2, 0)), 1, 1)


@case("tridiagonal", square=True)
def _(rng, dtype, n, m):
    off = uniform(rng, (2, n - 1), dtype)
    return Tridiagonal(off[0], uniform(rng, (n,), dtype, 2, 3), off[1])


@case("triangular", square=True, dtypes=COMPLEX)
def _(rng, dtype, n, m):
    return Triangular(uniform(rng, (n, n), dtype))


@case("triangular_upper", square=True)
def _(rng, dtype, n, m):
    return Triangular(uniform(rng, (n, n), dtype), lower=False)


@case("symmetric", square=True, dtypes=COMPLEX)
def _(rng, dtype, n, m):
    return Symmetric(uniform(rng, (n, n), dtype))


@case("symmetric_positive", square=True)
def _(rng, dtype, n, m):
    return Symmetric(
        uniform(rng, (n, n), dtype) + n * jnp.eye(n, dtype=dtype), positive=True
    )

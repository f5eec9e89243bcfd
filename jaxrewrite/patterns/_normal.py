"""Densities of normal distributions whose covariance is a sum with structure.

A library takes the Cholesky factor of a covariance, and computes from it a quadratic form, or a
solution, and the logarithm of a determinant. A sum such as ``low_rank + diagonal`` has no
triangular factor with structure. But it can be solved with, and its determinant is known. So
these replace the results that are computed from the factor, where nothing else is. Nothing here
matches arrays alone.

Where the matrix is not positive definite, the factor is NaN, and so are the results. The
eigenvalues tell that if they are known, and else a small matrix does (`is_positive_definite`).
"""

import functools
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.scipy.linalg import cho_solve, solve_triangular
from jaxtyping import Array, Float

from jaxrewrite import ArrayValue, Rules, Value, transform
from jaxrewrite.values import Diagonal, Identity, LowRank, ScalarMatrix, Sum

from ..values._matrices.woodbury import is_positive_definite


rules = Rules()

Covariance = Float[ArrayValue, "n n"]
Vector = Float[Array, "n"]

_DIAGONALS = (Diagonal, Identity, ScalarMatrix)


def _log_diagonal(low: Any, rows_first: bool) -> Any:
    rows, columns = (-2, -1) if rows_first else (-1, -2)
    return jnp.log(jnp.diagonal(low, axis1=rows, axis2=columns)).sum(-1)


def _as_numpyro(a: Any, y: Any, *, rows_first: bool) -> Any:
    low = jnp.linalg.cholesky(a)
    white = solve_triangular(low, y[..., None], lower=True).squeeze(-1)
    return jnp.sum(jnp.square(white), -1), _log_diagonal(low, rows_first)


def _as_scipy(a: Any, y: Any, *, rows_first: bool) -> Any:
    low = lax.linalg.cholesky(a)
    solve = functools.partial(lax.linalg.triangular_solve, lower=True, transpose_a=True)
    white = jnp.vectorize(solve, signature="(n,n),(n)->(n)")(low, y)
    return jnp.einsum("...i,...i->...", white, white), _log_diagonal(low, rows_first)


def _solution(a: Any, y: Any, *, rows_first: bool) -> Any:
    low = jnp.linalg.cholesky(a)
    return cho_solve((low, True), y), _log_diagonal(low, rows_first)


@rules.rewrite(_as_numpyro)
@rules.rewrite(_as_scipy)
def quadratic_form(a: Covariance, y: Vector, *, rows_first: bool):
    """The density of NumPyro's ``MultivariateNormal`` and of `jax.scipy.stats`."""
    solved = _solve_and_log_root(a, y)
    return solved if solved is NotImplemented else (y @ solved[0], solved[1])


@rules.rewrite(_solution)
def solution(a: Covariance, y: Vector, *, rows_first: bool):
    """The marginal likelihood of a Gaussian process, as textbooks write it."""
    return _solve_and_log_root(a, y)


def _solve_and_log_root(a: Any, y: Any) -> Any:
    """A solution, and half the logarithm of the determinant; NaN for what is not definite."""
    symmetric, is_definite = _symmetric(a)
    if symmetric is None or not symmetric.solvable:
        return NotImplemented

    def parts(a: Any, y: Any) -> Any:
        return jnp.linalg.solve(a, y), jnp.linalg.slogdet(a)[1] / 2

    results = transform(parts, materialise="forbid")(symmetric, y)
    return tuple(jnp.where(is_definite(), x, jnp.nan) for x in results)


def _symmetric(a: Any) -> Any:
    """The matrix that the factorisation reads, and what tells if it is positive definite."""
    if not isinstance(a, Sum):
        return None, None
    if a.is_hermitian:
        if not a.solvable or a.known_eigh(True) is NotImplemented:
            return None, None
        values = transform(jnp.linalg.eigvalsh, materialise="forbid")
        return a, lambda: values(a)[0] > 0
    low = [term for term in a.terms if isinstance(term, LowRank)]
    base = [term for term in a.terms if isinstance(term, _DIAGONALS)]
    if len(low) != 1 or len(base) != 1 or len(a.terms) != 2 or _has_values(low[0]):
        return None, None
    return _diagonal_plus(low[0], transform(jnp.diagonal)(base[0]))


def _has_values(low: LowRank) -> bool:
    return any(isinstance(x, Value) for x in (low.a, low.b))


def _diagonal_plus(low: LowRank, d: Any) -> Any:
    u, v = low.a, low.b.T
    # The factorisation reads the symmetric part of u @ v.T, or of its transpose, which has the same:
    # p @ p.T - q @ q.T.
    p, q = (u + v) / 2, (u - v) / 2
    both, signed = jnp.concatenate([p, q], 1), jnp.concatenate([p, -q], 1)
    is_definite = functools.partial(is_positive_definite, d, p, q)
    return LowRank(both, signed.T) + Diagonal(d), is_definite

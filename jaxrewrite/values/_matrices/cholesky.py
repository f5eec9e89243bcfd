"""Cholesky factors that are not computed unless something looks at them.

Many matrices have dense factors but can be solved without them. A solve with such a factor,
``cho_solve``, solves with the matrix if somebody has said that it is positive definite, as
Lineax's tags do. Nothing in a program says so otherwise: a factorisation reads one triangle
and takes it for the other one, and it gives NaN for a matrix that is not definite. Without
that promise, and for anything but a solve, the factor becomes dense.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
from jax import lax
from jaxtyping import Array

import jaxrewrite
from jaxrewrite import bind, register

from .._base.recognised import find, fingerprints
from .lu import Factor, mapped, mapped_solve


class CholeskyFactor(Factor):
    """A Cholesky factor of a matrix.

    Attributes
    ----------
    lower
        Whether it is the lower or the upper factor.
    is_definite
        Whether the matrix is known to be Hermitian and positive definite.
    """

    lower: bool = jaxrewrite.field(static=True)
    is_definite: bool = jaxrewrite.field(static=True, default=False)

    def aval(self) -> Any:
        return self.matrix.aval()

    def materialise(self) -> Any:
        dense = jaxrewrite.materialise(self.matrix)
        return jax.scipy.linalg.cholesky(dense, lower=self.lower)

    def of_definite(self) -> Any:
        """The same factor, for a matrix that is positive definite."""
        return dataclasses.replace(self, is_definite=True)


@register("conj")
def _(factor: CholeskyFactor, **params: Any) -> Any:
    conjugate = bind(lax.conj_p, factor.matrix, input_dtype=factor.dtype)
    return dataclasses.replace(factor, matrix=conjugate)


@register("jit")
def _(factor: CholeskyFactor, b: Array, *, jaxpr: Any, **params: Any) -> Any:
    """``jax.scipy.linalg.cho_solve``."""
    if not factor.is_definite:
        return NotImplemented
    found = find(_solves, jaxpr, factor.aval(), jax.typeof(b), factor.lower)
    if found is None:
        return NotImplemented
    solve = mapped_solve(lambda v, b: v.solve(b, v.ndim - 2), *found)
    return [solve(factor.matrix, b)]


@functools.lru_cache(256)
def _solves(factor: Any, b: Any, lower: bool, trace_context: Any) -> dict[Any, Any]:
    """The axes along which `jax.vmap` acted, and how often, by the jaxprs of a solve."""
    found: dict[Any, Any] = {}
    for axes, depth in mapped(factor, b):
        fn = lambda c, b: jax.scipy.linalg.cho_solve((c, lower), b)
        for _ in range(depth):
            fn = jax.vmap(fn, in_axes=axes)
        found |= dict.fromkeys(fingerprints(fn, factor, b), (axes, depth))
    return found

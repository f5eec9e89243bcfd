"""Cholesky factors that are not computed unless something looks at them.

Many matrices have dense factors but can be solved without them. A solve with such a factor,
``cho_solve``, solves with the matrix if somebody has said that it is positive definite, as
Lineax's tags do. Nothing in a program says so otherwise: a factorisation reads one triangle
and takes it for the other one, and it gives NaN for a matrix that is not definite. Without
that promise, and for anything but a solve, the factor becomes dense.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
from jax import lax
from jaxtyping import Array

import jaxrewrite
from jaxrewrite import bind, register

from .lu import Factor


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


def cho_solve(c: Any, b: Any, *, lower: bool = False) -> Any:
    """JAX's function, which takes the factor and which one it is as a pair."""
    return jax.scipy.linalg.cho_solve((c, lower), b)


@register(cho_solve)
def _(factor: CholeskyFactor, b: Array, *, lower: bool) -> Any:
    v = factor.matrix
    if not factor.is_definite or lower != factor.lower or v.ndim > 2:
        return NotImplemented  # It is asked again for each matrix of a stack.
    return v.solve(b, 0)

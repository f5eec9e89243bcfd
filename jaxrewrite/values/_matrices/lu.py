"""LU factorisations that are not computed unless something looks at the factors.

``jnp.linalg.solve`` is an LU factorisation and a `jax.lax.custom_linear_solve` that uses the
factors. Many matrices have dense factors but can be solved without them. So if a type does
not know its factors, the factorisation returns values that are not computed yet
(`LUFactor`). A linear solve that gets these values solves with the original matrix, and so
does ``lu_solve``. Anything else makes the factors dense.
"""

from __future__ import annotations

from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

import jaxrewrite
from jaxrewrite import register, same_structure

from .._base.structured import Structured
from .matrix import Matrix, nan_where
from .scaled import Scaled
from .sum import Sum


class _InAll(dict[str, str]):
    """One text for all primitives."""

    def __init__(self, text: str):
        super().__init__()
        self.text = text

    def get(self, key: Any, default: Any = None) -> str:
        return self.text


class Factor(Structured):
    """A factor of a matrix that is computed only when it is needed.

    Attributes
    ----------
    matrix
        The matrix to factorise, a value.
    """

    matrix: Any

    rules_see_values = True

    # No user makes one, so none registers a rule for it.
    _remedies = _InAll(
        "It stands for a factor of a matrix that can be solved without its factors, and stays as it "
        "is in solves alone. Solve with the matrix itself, as in jnp.linalg.solve(matrix, b). If it "
        "is positive definite, jaxrewrite.values.stochastic_logdet estimates the logarithm of its "
        "determinant"
    )

    def sliceable(self) -> Any:
        return self


class LUFactor(Factor):
    """One result of an LU factorisation.

    Attributes
    ----------
    part
        Which result of `jax.lax.linalg.lu` this is: the packed factors, the pivots, or the
        permutation.
    """

    part: int = jaxrewrite.field(static=True)

    def aval(self) -> Any:
        shape = self.matrix.shape
        if self.part == 0:
            return jax.core.ShapedArray(shape, self.matrix.dtype)
        return jax.core.ShapedArray(shape[:-1], jnp.int32)

    def materialise(self) -> Any:
        return lax.linalg.lu(jaxrewrite.materialise(self.matrix))[self.part]


@register("lu")
def _(v: Matrix | Scaled | Sum) -> Any:
    factors = v.known_lu()
    if factors is not NotImplemented:
        return factors
    return [LUFactor(v, part) for part in range(3)] if v.solvable else NotImplemented


@register(jax.scipy.linalg.lu_solve)
def _(factors: LUFactor, pivots: LUFactor, b: Array, *, trans: Literal[0, 1, 2]) -> Any:
    v, other = factors.matrix, pivots.matrix
    if (factors.part, pivots.part) != (0, 1) or not same_structure(v, other):
        return NotImplemented
    if v.ndim > 2:
        return NotImplemented  # It is asked again for each matrix of a stack.
    return _nan_unless_same(v, other, _solved(v, b, trans))


def _solved(v: Any, b: Any, trans: int) -> Any:
    axis = v.ndim - 2
    dtype = jnp.result_type(v.dtype, b.dtype)
    v, b = v if v.dtype == dtype else v.astype(dtype), b.astype(dtype)
    if trans == 0:
        return v.solve(b, axis)
    if trans == 1:
        return v.transposed().solve(b, axis)
    return jnp.conj(v.transposed().solve(jnp.conj(b), axis))


def _nan_unless_same(v: Any, other: Any, x: Any) -> Any:
    """NaN where the factors are of one matrix and the pivots are of another.

    A value that leaves a jitted function has new leaves, so only the numbers tell.
    """
    pairs = list(zip(jax.tree.leaves(v), jax.tree.leaves(other), strict=True))
    if all(first is second for first, second in pairs):
        return x
    same = jnp.stack([(first == second).all() for first, second in pairs]).all()
    return nan_where(~same, x)

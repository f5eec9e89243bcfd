"""Linear algebra on matrices with structure.

``jnp.linalg.solve`` is an LU factorisation and two triangular solves, and so is what comes
from it: inverses and determinants. A matrix that knows its packed factors gives them. One
that only knows how to solve gives `Factored`, in whose place nobody looks for factors but
in triangular solves and, for the determinant, on the diagonal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

import jaxrewrite
from jaxrewrite import register

from ._diagonal import Diagonal, Identity
from ._matrix import Matrix, unpivoted


class Factored(Matrix):
    r"""The packed LU factors of a matrix :math:`A` of which only solves are known.

    It stands for :math:`L = I, U = A`, whose triangular solves, one after the other, solve
    with :math:`A`. To anything else it is a diagonal matrix of numbers whose product is the
    determinant of :math:`A`, which is what is looked for on the diagonal of a factorisation.

    Attributes
    ----------
    matrix
        A square matrix that can `solve`, and has `pivots`.
    """

    matrix: Any
    entries = "pattern"

    _is_whole: ClassVar[bool] = True

    def aval(self) -> Any:
        return self.matrix.aval()

    def materialise(self) -> Any:
        raise jaxrewrite.MaterialisationError(
            f"The LU factors of a {type(self.matrix).__name__} are known to triangular "
            "solves and determinants only; materialise the matrix before it is factorised."
        )

    def as_diagonal(self) -> Diagonal:
        pivots = self.matrix.pivots()
        return self.materialise() if pivots is NotImplemented else Diagonal(pivots)

    def transposed(self) -> Any:
        return self.as_diagonal()

    def map_entries(self, fn: Callable[..., Any], *others: Any) -> Any:
        return self.as_diagonal().map_entries(fn, *others)

    def pick(self, dense: Any) -> Any:
        return self.as_diagonal().pick(dense)

    def at(self, i: Any, j: Any) -> Any:
        return self.as_diagonal().at(i, j)

    def triangle(self, lower: bool, unit_diagonal: bool) -> Any:
        if lower:
            return Identity(self.shape[-1], self.dtype, self.batch)
        return self.matrix


@register("lu")
def _(v: Matrix) -> Any:
    factors = v.packed_lu()
    if factors is not NotImplemented:
        return factors
    if not v.solvable:
        return NotImplemented
    return Factored(v), *unpivoted(v)


@register("triangular_solve")
def _(
    v: Matrix,
    b: Array,
    *,
    left_side: bool,
    lower: bool,
    transpose_a: bool,
    conjugate_a: bool,
    unit_diagonal: bool,
) -> Any:
    triangle = v.triangle(lower, unit_diagonal)
    if triangle is NotImplemented:
        return NotImplemented
    if conjugate_a:
        triangle = jaxrewrite.bind(lax.conj_p, triangle, input_dtype=v.dtype)
    if transpose_a != (not left_side):  # x A = b is the transpose of A^T x^T = b^T
        triangle = triangle.transposed()
    return triangle.solve(b, b.ndim - 2 if left_side else b.ndim - 1)


@register("cholesky")
def _(v: Matrix, **params: Any) -> Any:
    return v.cholesky()


@register("eigh")
def _(v: Matrix, *, subset_by_index: Any = None, **params: Any) -> Any:
    found = NotImplemented if subset_by_index else v.eigh()
    if found is NotImplemented:
        return NotImplemented
    values, vectors = found
    return vectors, values


@register("eig")
def _(
    v: Matrix,
    *,
    compute_left_eigenvectors: bool,
    compute_right_eigenvectors: bool,
    **params: Any,
) -> Any:
    if compute_left_eigenvectors or compute_right_eigenvectors:
        return NotImplemented
    values = v.eigenvalues()
    if values is NotImplemented:
        return NotImplemented
    return [lax.convert_element_type(values, jnp.result_type(values.dtype, jnp.complex64))]

"""`Triangular`: a triangular matrix in one triangle of a dense array."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Self

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Inexact

import jaxrewrite

from .._base.sizes import check_flag
from .._base.structured import differs, zero_unless
from .determinant import Determinant
from .matrix import Matrix, apply_dense, check_square, solve_columns, unpivoted
from .monomial import Diagonal, Identity, OnDiagonal
from .triangle import Triangle, multiply, on_columns


class Triangular(Matrix):
    r"""A triangular matrix, held in one triangle of a dense array.

    With ``lower``, :math:`L_{ij} = x_{ij}` for :math:`i \ge j`, and zero elsewhere. A solve
    is a substitution, which takes :math:`n^2` operations a column. A dense matrix takes
    :math:`\tfrac23 n^3` operations before. The determinant and the eigenvalues follow from
    the diagonal [1]_. Sums and products of two with the same triangle, and inverses, are
    triangular. The matrix takes as much room as a dense one. On a CPU a product with few
    columns reads a large matrix in blocks; else the other triangle is set to zero first.

    In products its zeros stay zeros, even times infinity or NaN, unless the rules
    `strict_zeros` are in force.

    Attributes
    ----------
    x
        The array, of shape (\*batch, n, n). Its other triangle is not used.
    lower
        Whether the matrix is lower triangular, or upper triangular.
    flipped
        Whether ``x`` holds the transpose of the matrix, as in the transpose of a value.
        Products are fast if no array has to be transposed.

    Raises
    ------
    ValueError
        If ``x`` is not square.
    TypeError
        If ``lower`` is not a boolean.

    References
    ----------
    .. [1] G. H. Golub and C. F. Van Loan, *Matrix Computations*, 4th ed., section 3.1.

    Examples
    --------
    >>> import jax.numpy as jnp, jaxrewrite
    >>> from jaxrewrite.values import Triangular
    >>> v = Triangular(jnp.array([[2.0, 9.0], [1.0, 4.0]]))
    >>> v @ v
    Triangular([[ 4.   ·]
                [ 6. 16.]], dtype=float32)
    >>> jaxrewrite.transform(jnp.linalg.solve)(v, jnp.array([2.0, 5.0]))
    Array([1., 1.], dtype=float32)
    """

    x: Inexact[Array, "*batch n n"]
    lower: bool = jaxrewrite.field(static=True, default=True)
    flipped: bool = jaxrewrite.field(static=True, default=False, kw_only=True, repr=False)
    entries = "pattern"

    def __post_init__(self) -> None:
        check_square("Triangular", "x", self.x)
        check_flag("Triangular", "lower", self.lower)

    @classmethod
    def from_dense(cls, x: Any, lower: bool = True) -> Self:
        """The `Triangular` of a dense array.

        Parameters
        ----------
        x
            An array of shape (\\*batch, n, n).
        lower
            Whether the array is lower triangular, or upper triangular.

        Raises
        ------
        ValueError
            If ``x`` is not square, or if its numbers are known and its other triangle is
            not zero.

        Examples
        --------
        >>> import jax.numpy as jnp
        >>> from jaxrewrite.values import Triangular
        >>> Triangular.from_dense(jnp.eye(2), lower=False)
        Triangular([[1. 0.]
                    [ · 1.]], lower=False, dtype=float32)
        """
        v = cls(x, lower)
        if differs(x, lambda x: Triangular(x, lower)):
            other = "upper" if lower else "lower"
            raise ValueError(f"Triangular: the {other} triangle of x is not zero.")
        return v

    def aval(self) -> Any:
        return jax.core.ShapedArray(self.x.shape, self.x.dtype)

    def materialise(self) -> Any:
        return self._kept()

    @property
    def _triangle(self) -> Triangle:
        return Triangle(self.lower != self.flipped, flipped=self.flipped)

    def _with(self, x: Any) -> Triangular:
        """The matrix with another array that holds it, in the same way."""
        return Triangular(x, self.lower, flipped=self.flipped)

    def _turned(self, x: Any) -> Any:
        """An array like the matrix as one like ``x``, or the other way round."""
        return jnp.swapaxes(x, -1, -2) if self.flipped else x

    def _upright(self) -> Triangular:
        return Triangular(self._turned(self.x), self.lower)

    def _kept(self) -> Any:
        return self._turned(self._triangle.of(self.x))

    def apply(self, x: Any, axis: int, precision: Any = None) -> Any:
        product = functools.partial(multiply, triangle=self._triangle)
        y = on_columns(product, self.x, x, axis, precision)
        if y is NotImplemented:
            return apply_dense(self._kept(), x, axis, precision)
        return y

    def transposed(self) -> Any:
        return Triangular(self.x, not self.lower, flipped=not self.flipped)

    def reversed(self) -> Any:
        return Triangular(self.x[..., ::-1, ::-1], not self.lower, flipped=self.flipped)

    def map_entries(self, fn: Callable[..., Any], *others: Any) -> Any:
        held = (self, *others)
        if any(v.flipped != self.flipped for v in others):
            return Triangular(fn(*(v._kept() for v in held)), self.lower)
        return self._with(fn(*(v._triangle.of(v.x) for v in held)))

    def pick(self, dense: Any) -> Any:
        return self._with(self._turned(dense))

    def scaled_rows(self, factors: Any) -> Any:
        along = factors[..., None, :] if self.flipped else factors[..., None]
        return self._with(self.x * along)

    def join(self, other: Any) -> Any:
        if not self._is_like(other):
            return super().join(other)
        return self._upright(), other._upright()

    def _is_like(self, other: Any) -> bool:
        return isinstance(other, Triangular) and other.lower == self.lower

    def times(self, other: Any) -> Any:
        if not self._is_like(other):
            return NotImplemented
        return Triangular(self._kept() @ other._kept(), self.lower)

    def plus(self, other: Any) -> Any:
        if self._is_like(other):
            return self._with(self.x + self._turned(other._upright().x))
        if isinstance(other, (Diagonal, Identity)):
            return self._with(self.x + other.materialise())
        return NotImplemented

    def hadamard(self, other: Any) -> Any:
        if not isinstance(other, Triangular):
            return NotImplemented
        if not self._is_like(other):
            return Diagonal(self.diagonal() * other.diagonal())
        return self._with(self.x * self._turned(other._upright().x))

    def entries_at(self, i: Any, j: Any) -> Any:
        inside = i >= j if self.lower else i <= j
        return zero_unless(inside, self.x[j, i] if self.flipped else self.x[i, j])

    def known_diagonal(self) -> Any:
        return jnp.diagonal(self.x, axis1=-2, axis2=-1)

    def is_triangular(self, lower: bool) -> bool:
        return lower == self.lower

    def _solve(self, b: Any) -> Any:
        return lax.linalg.triangular_solve(
            self.x, b, left_side=True, lower=self._triangle.lower, transpose_a=self.flipped
        )

    def solve(self, x: Any, axis: int) -> Any:
        return solve_columns(self._solve, x, axis, len(self.batch))

    def known_inverse(self) -> Any:
        eye = jnp.broadcast_to(jnp.eye(self.shape[-1], dtype=self.dtype), self.shape)
        return Triangular(self._solve(eye), self.lower)

    def known_solution(self, b: Any) -> Any:
        if isinstance(b, OnDiagonal):
            return Triangular(self._solve(b.materialise()), self.lower)
        if not self._is_like(b):
            return NotImplemented
        return Triangular(self._solve(b._kept()), self.lower)

    def known_determinant(self) -> Any:
        return Determinant.of(self.diagonal())

    def known_eigenvalues(self) -> Any:
        return self.diagonal()

    def known_triangle(self, lower: bool, unit_diagonal: bool) -> Any:
        if lower != self.lower:
            d = Diagonal(self.diagonal())
            return d.known_triangle(lower, unit_diagonal)
        if not unit_diagonal:
            return self
        eye = jnp.eye(self.shape[-1], dtype=bool)
        return self._with(jnp.where(eye, 1, self.x))

    def known_lu(self) -> Any:
        """An upper triangular matrix is its own factor, and no rows are exchanged."""
        return NotImplemented if self.lower else (self, *unpivoted(self))

"""`Symmetric`: a symmetric matrix in the lower triangle of a dense array."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Literal
from jaxtyping import Array, Inexact

import jaxrewrite
from jaxrewrite import bind, register
from jaxrewrite.extend import Zeros

from .._base.sizes import check_flag
from .._base.structured import disproved, number_of
from .determinant import Determinant
from .matrix import Matrix, apply_dense, check_square, solve_columns
from .monomial import Diagonal, Identity, or_zero
from .triangle import mirrored, multiply_symmetric, on_columns
from .triangular import Triangular


class Symmetric(Matrix):
    r"""A symmetric matrix, held in the lower triangle of a dense array.

    :math:`A_{ij} = A_{ji} = x_{ij}` for :math:`i \ge j`; complex numbers are not conjugated.

    Linear algebra gains from it. The transpose is the matrix itself. The eigenvalues of a
    real matrix come from the symmetric solver, even in `jax.numpy.linalg.eigvals`. A
    ``positive`` matrix is solved by its Cholesky factor, in half the operations of LU [1]_.
    Functions that act entry by entry, inverses and sums of two keep the matrix symmetric,
    so that a later factorisation gains, too. The matrix takes as much room as a dense one.
    Products with arrays take longer, because they copy the triangle, or mirror it first. If
    the matrix is large and the array has infinite numbers, they may be NaN where those of
    the dense matrix are infinite.

    Attributes
    ----------
    x
        The array, of shape (\*batch, n, n). Its entries above the diagonal are not used.
    positive
        Whether the matrix is real and known to be positive definite. If it is not positive
        definite, solves give NaN.

    Raises
    ------
    ValueError
        If ``x`` is not square, or is complex and ``positive``.
    TypeError
        If ``positive`` is not a boolean.

    References
    ----------
    .. [1] G. H. Golub and C. F. Van Loan, *Matrix Computations*, 4th ed., section 4.2.

    Examples
    --------
    >>> import jax.numpy as jnp, jaxrewrite
    >>> from jaxrewrite.values import Symmetric
    >>> v = Symmetric(jnp.array([[2.0, 9.0], [1.0, 2.0]]), positive=True)
    >>> v @ jnp.ones(2), jnp.exp(1) * v.T
    (Array([3., 3.], dtype=float32), Symmetric([[5.436564 2.718282]
               [2.718282 5.436564]], dtype=float32))
    >>> v.cholesky()
    Triangular([[1.4142135           ·]
                [0.70710677 1.2247449 ]], dtype=float32)
    """

    x: Inexact[Array, "*batch n n"]
    positive: bool = jaxrewrite.field(static=True, default=False)
    entries = "all"

    def __post_init__(self) -> None:
        check_square("Symmetric", "x", self.x)
        check_flag("Symmetric", "positive", self.positive)
        if self.positive and jnp.iscomplexobj(self.x):
            raise ValueError("Symmetric: x is complex; only a real x can be positive.")

    @classmethod
    def from_dense(cls, x: Any, positive: bool = False) -> Self:
        """The `Symmetric` of an array that is symmetric up to rounding.

        Parameters
        ----------
        x
            An array of shape (\\*batch, n, n).
        positive
            Whether ``x`` is positive definite.

        Raises
        ------
        ValueError
            If the numbers are known and not symmetric, or if ``positive`` is true and a
            number on the diagonal is not positive.

        Examples
        --------
        >>> import jax.numpy as jnp
        >>> from jaxrewrite.values import Symmetric
        >>> Symmetric.from_dense(jnp.eye(2), positive=True)
        Symmetric([[1. 0.]
                   [0. 1.]], positive=True, dtype=float32)
        """
        v = cls(x, positive)
        if v.x.size and disproved(_is_symmetric, x):
            raise ValueError("Symmetric: x is not symmetric.")
        if positive and disproved(_has_positive_diagonal, x):
            raise ValueError("Symmetric: x is not positive definite.")
        return v

    def aval(self) -> Any:
        return jax.core.ShapedArray(self.x.shape, self.x.dtype)

    def materialise(self) -> Any:
        return mirrored(self.x)

    def apply(self, x: Any, axis: int, precision: Any = None) -> Any:
        y = on_columns(multiply_symmetric, self.x, x, axis, precision)
        if y is NotImplemented:
            return apply_dense(self.materialise(), x, axis, precision)
        return y

    def transposed(self) -> Any:
        return self

    def reversed(self) -> Any:
        # What was the lower triangle is above the diagonal.
        return Symmetric(jnp.swapaxes(self.x[..., ::-1, ::-1], -1, -2))

    def map_entries(self, fn: Callable[..., Any], *others: Any) -> Any:
        # Without the mirror, the unused upper triangle might give NaN.
        return Symmetric(fn(*(v.materialise() for v in (self, *others))))

    def same_pattern(self, other: Any) -> bool:
        # What is known of their signs is no matter.
        return isinstance(other, Symmetric) and self.shape == other.shape

    @property
    def _may_be_zero(self) -> bool:  # type: ignore[override]
        return not self.positive

    def cast(self, dtype: Any) -> Any:
        return Symmetric(self.x.astype(dtype))

    def pick(self, dense: Any) -> Any:
        return NotImplemented

    def tangent(self, leaf_tangents: Any) -> Any:
        return Symmetric(leaf_tangents.x)

    def join(self, other: Any) -> Any:
        # What is known of their signs differs.
        if isinstance(other, Zeros):
            return or_zero(Symmetric(self.x))
        if isinstance(other, Symmetric):
            return Symmetric(self.x), Symmetric(other.x)
        return Matrix.join(Symmetric(self.x), other)

    def lift_tangent(self, tangent: Any) -> Any:
        # If the array is symmetric for all leaves, so is its tangent.
        return Symmetric(tangent, self.positive)

    def plus(self, other: Any) -> Any:
        if isinstance(other, Symmetric):
            return Symmetric(self.x + other.x, self.positive and other.positive)
        if isinstance(other, Identity):
            return Symmetric(self.x + other.materialise(), self.positive)
        if isinstance(other, Diagonal):
            return Symmetric(self.x + other.materialise())
        return NotImplemented

    def hadamard(self, other: Any) -> Any:
        if not isinstance(other, Symmetric):
            return NotImplemented
        # The entry-by-entry product of positive definite matrices is one, too (Schur).
        return Symmetric(self.x * other.x, self.positive and other.positive)

    def entries_at(self, i: Any, j: Any) -> Any:
        return self.x[jnp.maximum(i, j), jnp.minimum(i, j)]

    def known_diagonal(self) -> Any:
        return jnp.diagonal(self.x, axis1=-2, axis2=-1)

    @property
    def is_hermitian(self) -> bool:
        return not jnp.iscomplexobj(self.x)

    def _solve(self, b: Any) -> Any:
        if not self.positive:
            return jnp.linalg.solve(self.materialise(), b)
        factor = self.cholesky()
        return factor.transposed()._solve(factor._solve(b))

    def solve(self, x: Any, axis: int) -> Any:
        return solve_columns(self._solve, x, axis, len(self.batch))

    def known_inverse(self) -> Any:
        eye = jnp.broadcast_to(jnp.eye(self.shape[-1], dtype=self.dtype), self.shape)
        return Symmetric(self._solve(eye), self.positive)

    def known_determinant(self) -> Any:
        if self.positive:
            return Determinant.of(self.cholesky().diagonal()) ** 2
        return Determinant.of_arrays(self.materialise())

    def known_eigenvalues(self) -> Any:
        decomposition = self.known_eigh(lower=True)
        return decomposition if decomposition is NotImplemented else decomposition[0]

    def known_eigh(self, lower: bool) -> Any:
        if jnp.iscomplexobj(self.x):
            return NotImplemented
        return tuple(jnp.linalg.eigh(self.materialise(), symmetrize_input=False))

    def known_svd(self) -> Any:
        return tuple(jnp.linalg.svd(self.materialise()))

    def known_singular_values(self) -> Any:
        return jnp.linalg.svd(self.materialise(), compute_uv=False)

    def known_cholesky(self) -> Any:
        if jnp.iscomplexobj(self.x):
            return NotImplemented
        return Triangular(lax.linalg.cholesky(self.materialise(), symmetrize_input=False))

    def known_triangle(self, lower: bool, unit_diagonal: bool) -> Any:
        return Triangular(self.materialise(), lower).known_triangle(lower, unit_diagonal)

    def known_lu(self) -> Any:
        """The dense factorisation, unless the matrix can be solved better."""
        return NotImplemented if self.positive else lax.linalg.lu(self.materialise())


@register("mul", exchange="operands")
@register("div")
def _(v: Symmetric, y: Literal, *, primitive: Any, **params: Any) -> Any:
    """A positive number that the program knows keeps a positive definite matrix one."""
    if not v.positive or not 0 < number_of(y) < jnp.inf:
        return NotImplemented
    return Symmetric(bind(primitive, v.x, number_of(y)), True)


@register("concatenate")
def _(*vs: Symmetric, dimension: int) -> Any:
    """A stack of matrices of which some are positive definite."""
    if len({v.positive for v in vs}) == 1:
        return NotImplemented
    return bind("concatenate", *(Symmetric(v.x) for v in vs), dimension=dimension)


def _is_symmetric(xp: Any, x: Any) -> Any:
    """Whether an array that has entries is symmetric up to rounding."""
    rounding = 100 * float(jnp.finfo(x.dtype).eps) * abs(x).max()
    return (abs(x - xp.swapaxes(x, -1, -2)) <= rounding).all()


def _has_positive_diagonal(xp: Any, x: Any) -> Any:
    return (xp.diagonal(x, axis1=-2, axis2=-1) > 0).all()

"""`Diagonal` and `Identity`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Inexact

import jaxrewrite

from ._array import batch_of, nothing, nothing_field, one_where, zero_unless
from ._determinant import Determinant
from ._matrix import Matrix, along, known_diagonal, nan_if_any_is, unpivoted
from ._permutation import Permutation


class Diagonal(Matrix):
    r"""A diagonal matrix, :math:`D_{ij} = d_i \delta_{ij}`, or a stack of them.

    Products, sums with its own kind, powers, solves, determinants, Cholesky factors and
    eigenvalues of it take O(n). What acts entry by entry and is zero at zero keeps it,
    as does a product, entry by entry, with any array. Products take what its zeros are
    multiplied by to be finite, unless they are `strict_zeros`.

    Attributes
    ----------
    d
        The diagonal, of shape (\*batch, n). The array has shape (\*batch, n, n).

    Raises
    ------
    ValueError
        If ``d`` has no axis.

    Examples
    --------
    >>> import jax.numpy as jnp, jaxrewrite
    >>> from jaxrewrite.values import Diagonal
    >>> v = Diagonal(jnp.array([1.0, 2.0]))
    >>> v
    Diagonal<f32[2,2], 8 B>(d=f32[2])
    >>> v @ jnp.ones(2)
    Array([1., 2.], dtype=float32)
    >>> v @ v + 3 * v
    Diagonal<f32[2,2], 8 B>(d=f32[2])
    """

    d: Inexact[Array, "*batch n"]
    entries = "pattern"

    def __post_init__(self) -> None:
        if jnp.ndim(self.d) == 0:
            raise ValueError("Diagonal: d must have at least one axis.")

    def aval(self) -> Any:
        return jax.core.ShapedArray((*self.d.shape, self.d.shape[-1]), self.d.dtype)

    def materialise(self) -> Any:
        return zero_unless(jnp.eye(self.d.shape[-1], dtype=bool), self.d[..., None, :])

    def apply(self, x: Any, axis: int, precision: Any = None) -> Any:
        return along(self.d, self.d.ndim - 1, x.ndim, axis) * x

    def transposed(self) -> Any:
        return self

    def scaled_rows(self, factors: Any) -> Any:
        return Diagonal(self.d * factors)

    def times(self, other: Any) -> Any:
        """``D @ other`` scales the rows of the other."""
        return other.scaled_rows(self.d) if isinstance(other, Matrix) else NotImplemented

    def rtimes(self, other: Any) -> Any:
        if not isinstance(other, Matrix):
            return NotImplemented
        scaled = other.transposed().scaled_rows(self.d)
        return NotImplemented if scaled is NotImplemented else scaled.transposed()

    def plus(self, other: Any) -> Any:
        return Diagonal(self.d + other.d) if isinstance(other, Diagonal) else NotImplemented

    def hadamard(self, other: Any) -> Any:
        found = known_diagonal(other)
        return found if found is NotImplemented else Diagonal(self.d * found)

    def pick(self, dense: Any) -> Any:
        return Diagonal(jnp.diagonal(dense, axis1=-2, axis2=-1))

    def at(self, i: Any, j: Any) -> Any:
        return zero_unless(i == j, self.d[i])

    def as_diagonal(self) -> Diagonal:
        return self

    def diagonal(self) -> Any:
        return self.d

    def solve(self, x: Any, axis: int) -> Any:
        return x / along(self.d, self.d.ndim - 1, x.ndim, axis)

    def known_inverse(self) -> Any:
        return Diagonal(1 / self.d)

    def known_determinant(self) -> Any:
        return Determinant.of(self.d)

    def known_eigenvalues(self) -> Any:
        return self.d

    def known_eigh(self, lower: bool) -> Any:
        order = jnp.argsort(self.d.real, axis=-1)
        vectors = Permutation(order, self.d.dtype).transposed()
        return jnp.take_along_axis(self.d.real, order, -1), vectors

    def known_cholesky(self) -> Any:
        # Complex numbers are taken to be real, as LAPACK does.
        root = jnp.sqrt(jnp.where(self.d.real > 0, self.d.real, jnp.nan))
        return Diagonal(nan_if_any_is(root, len(self.batch)).astype(self.dtype))

    def known_triangle(self, lower: bool, unit_diagonal: bool) -> Any:
        if unit_diagonal:
            return Identity(self.d.shape[-1], self.d.dtype, self.batch)
        return self

    def known_lu(self) -> Any:
        return self, *unpivoted(self)


class Identity(Matrix):
    r"""The identity matrix, :math:`I_{ij} = \delta_{ij}`, which holds nothing.

    Products take what its zeros are multiplied by to be finite, unless they are
    `strict_zeros`.

    Attributes
    ----------
    rows
        The number n of rows, and of columns.
    of_dtype
        The dtype of the array.
    of_batch
        The shape of the stack, where it is one of identities: that of an empty array that
        the value holds.

    Examples
    --------
    >>> import jax.numpy as jnp, jaxrewrite
    >>> from jaxrewrite.values import Identity
    >>> v = Identity(3)
    >>> v @ jnp.arange(3.0), 2 * v
    (Array([0., 1., 2.], dtype=float32), Diagonal<f32[3,3], 12 B>(d=f32[3]))
    """

    rows: int = jaxrewrite.field(static=True)
    of_dtype: Any = jaxrewrite.field(static=True, default=jnp.dtype("float32"))
    _nothing: Any = nothing_field()
    entries = "pattern"

    def __init__(
        self, rows: int, of_dtype: Any = jnp.float32, of_batch: Sequence[int] = ()
    ):
        if rows < 0:
            raise ValueError(f"Identity: rows is {rows}, which is negative.")
        vars(self).update(
            rows=rows, of_dtype=jnp.dtype(of_dtype), _nothing=nothing(of_batch)
        )

    @property
    def of_batch(self) -> tuple[int, ...]:
        return batch_of("Identity", self._nothing)

    def aval(self) -> Any:
        return jax.core.ShapedArray((*self.of_batch, self.rows, self.rows), self.of_dtype)

    def materialise(self) -> Any:
        eye = one_where(jnp.eye(self.rows, dtype=bool), self.of_dtype)
        return jnp.broadcast_to(eye, self.shape)

    def apply(self, x: Any, axis: int, precision: Any = None) -> Any:
        return x

    def transposed(self) -> Any:
        return self

    def at(self, i: Any, j: Any) -> Any:
        return (i == j).astype(self.of_dtype)

    def as_diagonal(self) -> Diagonal:
        return Diagonal(self.diagonal())

    def map_entries(self, fn: Callable[..., Any], *others: Any) -> Any:
        return self.as_diagonal().map_entries(fn, *(x.as_diagonal() for x in others))

    def pick(self, dense: Any) -> Any:
        return self.as_diagonal().pick(dense)

    def scaled_rows(self, factors: Any) -> Any:
        return Diagonal(factors)

    def times(self, other: Any) -> Any:
        return other

    def rtimes(self, other: Any) -> Any:
        return other

    def plus(self, other: Any) -> Any:
        if isinstance(other, Identity):
            return self.scaled(2)
        return (
            other.plus(self.as_diagonal()) if isinstance(other, Matrix) else NotImplemented
        )

    def hadamard(self, other: Any) -> Any:
        found = known_diagonal(other)
        return found if found is NotImplemented else Diagonal(found)

    def tangent(self, leaf_tangents: Any) -> Any:
        return jnp.zeros(self.shape, self.of_dtype)  # it never changes

    def lift_tangent(self, tangent: Any) -> Any:
        return self

    def cast(self, dtype: Any) -> Any:
        return Identity(self.rows, jnp.dtype(dtype), self.of_batch)

    def diagonal(self) -> Any:
        return jnp.ones((*self.of_batch, self.rows), self.of_dtype)

    def solve(self, x: Any, axis: int) -> Any:
        return x

    def known_inverse(self) -> Any:
        return self

    def known_determinant(self) -> Any:
        return Determinant.of(self.diagonal())

    def known_eigenvalues(self) -> Any:
        return self.diagonal()

    def known_eigh(self, lower: bool) -> Any:
        return self.diagonal().real, self

    def known_cholesky(self) -> Any:
        return self

    def known_triangle(self, lower: bool, unit_diagonal: bool) -> Any:
        return self

    def known_lu(self) -> Any:
        return self, *unpivoted(self)

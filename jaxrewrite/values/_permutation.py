"""`Permutation`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

import jaxrewrite
from jaxrewrite import register

from ._array import concrete, one_where
from ._determinant import Determinant
from ._matrix import Matrix, along


class Permutation(Matrix):
    r"""A permutation matrix, :math:`P_{ij} = \delta_{\pi(i) j}`, or a stack of them.

    ``P @ x`` is ``x[order]``: products with arrays move rows or columns, and nothing is
    multiplied. Products of two, transposes (which are inverses), solves, determinants and
    LU factors are permutations again, or come from one.

    Products take what its zeros are multiplied by to be finite, unless they are
    `strict_zeros`.

    Attributes
    ----------
    order
        :math:`\pi`, integers of shape (\*batch, n), a permutation of 0 to n - 1. The array
        has shape (\*batch, n, n).
    of_dtype
        The dtype of the array.

    Raises
    ------
    ValueError
        If ``order`` has no axis, or is no permutation of integers.

    Examples
    --------
    >>> import jax.numpy as jnp, jaxrewrite
    >>> from jaxrewrite.values import Permutation
    >>> v = Permutation(jnp.array([2, 0, 1]))
    >>> v @ jnp.array([1.0, 2.0, 3.0])
    Array([3., 1., 2.], dtype=float32)
    >>> v @ v.T
    Permutation<f32[3,3], 12 B>(order=i32[3], of_dtype=dtype('float32'))
    >>> v.determinant()
    Array(1., dtype=float32)
    """

    order: Int[Array, "*batch n"]
    of_dtype: Any = jaxrewrite.field(static=True, default=jnp.dtype("float32"))

    def __post_init__(self) -> None:
        object.__setattr__(self, "of_dtype", jnp.dtype(self.of_dtype))
        if jnp.ndim(self.order) == 0:
            raise ValueError("Permutation: order must have at least one axis.")
        if not jnp.issubdtype(self.order.dtype, jnp.integer):
            raise ValueError(
                f"Permutation: order has dtype {self.order.dtype}, no integers."
            )
        order = concrete(self.order)
        if order is not None and (np.sort(order) != np.arange(order.shape[-1])).any():
            raise ValueError(
                f"Permutation: order is no permutation of 0 to {order.shape[-1] - 1}."
            )

    @classmethod
    def from_dense(cls, matrix: Any) -> Permutation:
        r"""The permutation that an array of shape (\*batch, n, n) is.

        Raises
        ------
        ValueError
            If it is none, where its numbers are known.

        Examples
        --------
        >>> import jax.numpy as jnp
        >>> from jaxrewrite.values import Permutation
        >>> Permutation.from_dense(jnp.eye(3)[::-1]).order
        Array([2, 1, 0], dtype=int32)
        """
        if jnp.ndim(matrix) < 2 or matrix.shape[-2] != matrix.shape[-1]:
            raise ValueError(f"Permutation: matrix has shape {jnp.shape(matrix)}.")
        dense = concrete(matrix)
        if dense is not None and not (
            np.isin(dense, (0, 1)).all()
            and (dense.sum(-1) == 1).all()
            and (dense.sum(-2) == 1).all()
        ):
            raise ValueError("Permutation: matrix is no permutation matrix.")
        return cls(jnp.argmax(matrix, -1), matrix.dtype)

    @property
    def has_zeros(self) -> bool:
        return True

    def aval(self) -> Any:
        return jax.core.ShapedArray(
            (*self.order.shape, self.order.shape[-1]), self.of_dtype
        )

    def materialise(self) -> Any:
        columns = jnp.arange(self.order.shape[-1], dtype=self.order.dtype)
        return one_where(self.order[..., None] == columns, self.of_dtype)

    def apply(self, x: Any, axis: int, precision: Any = None) -> Any:
        return _at(x, along(self.order, self.order.ndim - 1, x.ndim, axis), axis)

    def transposed(self) -> Any:
        return Permutation(_inverse(self.order), self.of_dtype)

    def cast(self, dtype: Any) -> Any:
        return Permutation(self.order, dtype)

    def scaled(self, factor: Any) -> Any:
        return self.scaled_by(jnp.broadcast_to(factor, self.order.shape))

    def times(self, other: Any) -> Any:
        """Of two permutations, one; of a diagonal, what scales the rows comes first."""
        from ._diagonal import Diagonal
        from ._product import Product

        if isinstance(other, Permutation):
            return Permutation(_at(other.order, self.order), self.of_dtype)
        if isinstance(other, Diagonal):
            return Product((Diagonal(_at(other.d, self.order)), self))
        return NotImplemented

    def hadamard(self, other: Any) -> Any:
        if isinstance(other, Permutation):
            return self.scaled_by((self.order == other.order).astype(self.of_dtype))
        if self.batch or not isinstance(other, Matrix):
            return NotImplemented
        found = other.at(jnp.arange(self.shape[-1]), self.order)
        return NotImplemented if found is NotImplemented else self.scaled_by(found)

    def scaled_by(self, factors: Any) -> Any:
        """``diag(factors) @ self``."""
        from ._diagonal import Diagonal
        from ._product import Product

        return Product((Diagonal(factors), self))

    def at(self, i: Any, j: Any) -> Any:
        return (self.order[i] == j).astype(self.of_dtype)

    def diagonal(self) -> Any:
        return (self.order == jnp.arange(self.order.shape[-1])).astype(self.of_dtype)

    def solve(self, x: Any, axis: int) -> Any:
        return self.transposed().apply(x, axis)

    def known_inverse(self) -> Any:
        return self.transposed()

    def known_determinant(self) -> Any:
        """1 or -1, as n less the number of cycles is even or odd."""
        n = self.order.shape[-1]
        first = _first_of_cycle(self.order)
        cycles = (first == jnp.arange(n)).sum(-1)
        sign = (1 - 2 * ((n - cycles) % 2)).astype(self.of_dtype)
        return Determinant(sign, jnp.zeros_like(sign.real))

    def known_lu(self) -> Any:
        from ._diagonal import Identity

        rows = _inverse(self.order).astype(jnp.int32)
        identity = Identity(self.order.shape[-1], self.of_dtype, self.batch)
        return identity, _exchanges(rows), rows


def _at(x: Any, indices: Any, axis: int = -1) -> Any:
    return jnp.take_along_axis(x, indices, axis, mode="promise_in_bounds")


def _inverse(order: Any) -> Any:
    rows = jnp.broadcast_to(jnp.arange(order.shape[-1], dtype=order.dtype), order.shape)
    return jnp.put_along_axis(jnp.zeros_like(order), order, rows, -1, inplace=False)


def _first_of_cycle(order: Any) -> Any:
    """The least index in the cycle of each, by jumps of twice the length at each turn."""
    n = order.shape[-1]
    first = jnp.broadcast_to(jnp.arange(n, dtype=order.dtype), order.shape)
    for _ in range(n.bit_length()):
        first = jnp.minimum(first, _at(first, order))
        order = _at(order, order)
    return first


def _exchanges(rows: Any) -> Any:
    """The exchanges, one row after the other, that bring ``rows`` to the front in order.

    At its turn row i is exchanged with the first of ``rows[i], rows[rows[i]], ...`` that is
    not less than i: where the ones before it sent what was to come. It is found by jumps
    whose lengths are powers of two, each with the greatest index that it passes.
    """
    own = jnp.broadcast_to(jnp.arange(rows.shape[-1], dtype=rows.dtype), rows.shape)
    jump = greatest = rows
    jumps = []
    for _ in range(rows.shape[-1].bit_length()):
        jumps.append((jump, greatest))
        greatest = jnp.maximum(greatest, _at(greatest, jump))
        jump = _at(jump, jump)
    here = own
    for jump, greatest in reversed(jumps):
        here = jnp.where(_at(greatest, here) < own, _at(jump, here), here)
    return _at(rows, here)


@register("convert_element_type")
def _(v: Permutation, *, new_dtype: Any, **params: Any) -> Any:
    """Ones and zeros are that in each dtype."""
    return v.cast(jnp.dtype(new_dtype))


@register("mul", commutative=True)
def _(v: Permutation, x: Array, **params: Any) -> Any:
    """Only the entries where the ones are stay."""
    if jnp.shape(x) != v.shape or 1 in v.shape[-2:]:
        return NotImplemented
    return v.scaled_by(_at(x, v.order[..., None])[..., 0])

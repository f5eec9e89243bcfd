"""Matrices with one entry a row and a column: `Diagonal`, `Identity` and its multiples, `Permutation`.

They share a module because the results of each are often of another of these types. The
eigenvectors of a diagonal matrix are a permutation. The entry-by-entry product of two
permutations is a permutation with rows that a diagonal matrix scales.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Inexact, Int, Shaped

import jaxrewrite
from jaxrewrite import register
from jaxrewrite.extend import Zeros

from .._base.sizes import checked_size, known
from .._base.structured import (
    are_rows_of_identity,
    batch_of,
    disproved,
    inexact,
    is_class,
    is_value,
    nothing,
    nothing_field,
    one_where,
    with_ndim,
    zero_unless,
)
from .determinant import Determinant
from .matrix import (
    Matrix,
    adjoint,
    check_square,
    nan_if_any_is,
    nan_where,
    on_axis,
    unpivoted,
)
from .product import Product, matrix_product


class OnDiagonal(Matrix):
    """Base class of matrices that are zero outside of the diagonal."""

    _is_base = True
    entries = "pattern"

    def as_diagonal(self) -> Diagonal:
        return Diagonal(self.diagonal())

    def transposed(self) -> Any:
        return self

    def reversed(self) -> Any:
        return self

    def pick(self, dense: Any) -> Any:
        return Diagonal(jnp.diagonal(dense, axis1=-2, axis2=-1))

    def is_triangular(self, lower: bool) -> bool:
        return True

    def known_lower_part(self, k: int) -> Any:
        return self if k >= 0 else self.map_entries(jnp.zeros_like)

    def hadamard(self, other: Any) -> Any:
        diagonal = other.known_diagonal()
        return diagonal if diagonal is NotImplemented else self.scaled_rows(diagonal)

    @property
    def is_hermitian(self) -> bool:
        return not jnp.iscomplexobj(self)

    def known_determinant(self) -> Any:
        return Determinant.of(self.diagonal())

    def known_inverse(self) -> Any:
        return self.map_entries(lambda d: 1 / d)

    def known_solution(self, b: Any) -> Any:
        if isinstance(b, OnDiagonal):
            return Diagonal(self.solve(b.diagonal(), b.ndim - 2))
        return matrix_product(self.known_inverse(), b)

    def known_exponential(self) -> Any:
        return self.map_entries(jnp.exp)

    def known_eigenvalues(self) -> Any:
        return self.diagonal()

    def known_cholesky(self) -> Any:
        def root(d: Any) -> Any:
            # The imaginary part of the diagonal is ignored, as in LAPACK.
            root = jnp.sqrt(nan_where(~(d.real > 0), d.real))
            return nan_if_any_is(root, len(self.batch)).astype(self.dtype)

        return self.map_entries(root)

    def known_triangle(self, lower: bool, unit_diagonal: bool) -> Any:
        return self._one() if unit_diagonal else self

    def known_lu(self) -> Any:
        return self, *unpivoted(self)

    def _one(self) -> Identity:
        return Identity(self.shape[-1], self.dtype, self.batch)


class Diagonal(OnDiagonal):
    r"""A diagonal matrix, :math:`D_{ij} = d_i \delta_{ij}`, or a stack of them.

    Products, sums of two, powers, solves, determinants, Cholesky factors and eigenvalues
    take O(n). A function that acts entry by entry and maps zero to zero keeps the matrix
    diagonal, and so does an entry-by-entry product with any array. In products its zeros
    stay zeros, even times infinity or NaN, unless the rules `strict_zeros` are in force.

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
    Diagonal([[1.  ·]
              [ · 2.]], dtype=float32)
    >>> v @ jnp.ones(2)
    Array([1., 2.], dtype=float32)
    >>> v @ v + 3 * v
    Diagonal([[ 4.   ·]
              [  · 10.]], dtype=float32)
    """

    d: Inexact[Array, "*batch n"]

    def __post_init__(self) -> None:
        if jnp.ndim(self.d) == 0:
            raise ValueError("Diagonal: d must have at least one axis.")

    def aval(self) -> Any:
        return jax.core.ShapedArray((*self.d.shape, self.d.shape[-1]), self.d.dtype)

    def materialise(self) -> Any:
        return zero_unless(jnp.eye(self.d.shape[-1], dtype=bool), self.d[..., None, :])

    def reversed(self) -> Any:
        return Diagonal(self.d[..., ::-1])

    def apply(self, x: Any, axis: int, precision: Any = None) -> Any:
        return on_axis(self.d, self.d.ndim - 1, x.ndim, axis) * x

    def map_entries(self, fn: Callable[..., Any], *others: Any) -> Any:
        return Diagonal(fn(self.d, *(x.d for x in others)))

    def scaled_rows(self, factors: Any) -> Any:
        return Diagonal(self.d * factors)

    def times(self, other: Any) -> Any:
        """``D @ other`` scales the rows of ``other``."""
        return other.scaled_rows(self.d) if isinstance(other, Matrix) else NotImplemented

    def rtimes(self, other: Any) -> Any:
        if not isinstance(other, Matrix):
            return NotImplemented
        scaled = other.transposed().scaled_rows(self.d)
        return NotImplemented if scaled is NotImplemented else scaled.transposed()

    def plus(self, other: Any) -> Any:
        return Diagonal(self.d + other.d) if isinstance(other, Diagonal) else NotImplemented

    def entries_at(self, i: Any, j: Any) -> Any:
        return zero_unless(i == j, self.d[i])

    def join(self, other: Any) -> Any:
        """The join with a multiple of the identity, which is diagonal, too."""
        if not isinstance(other, MultipleOfIdentity):
            return NotImplemented
        return self, other.as_diagonal()

    def known_diagonal(self) -> Any:
        return self.d

    def solve(self, x: Any, axis: int) -> Any:
        return x / on_axis(self.d, self.d.ndim - 1, x.ndim, axis)

    def known_eigh(self, lower: bool) -> Any:
        order = jnp.argsort(self.d.real, axis=-1)
        vectors = Permutation(order, self.d.dtype).transposed()
        return jnp.take_along_axis(self.d.real, order, -1), vectors

    def known_svd(self) -> Any:
        return sorted_svd(Diagonal(_phase(self.d)), abs(self.d), self._one())


def sorted_svd(u: Any, size: Any, vh: Any) -> tuple[Any, Any, Any]:
    """Sort singular values so that they fall; products with permutations move the vectors."""
    order = jnp.argsort(-size, axis=-1)
    falling = Permutation(order, u.dtype)
    size = jnp.take_along_axis(size, order, -1)
    return matrix_product(u, falling.transposed()), size, matrix_product(falling, vh)


def svd_of_spectrum(values: Any, vectors: Any) -> tuple[Any, Any, Any]:
    """The decomposition of a normal matrix; the vectors on the left have the phases."""
    left = matrix_product(vectors, Diagonal(_phase(values).astype(vectors.dtype)))
    return left, abs(values), adjoint(vectors)


def _phase(x: Any) -> Any:
    """The number of magnitude 1 that x has as a factor; 1 for zero."""
    size = abs(x)
    if not jnp.iscomplexobj(x):
        return jnp.where(size > 0, jnp.sign(x), 1)
    divisor = jnp.where(size > 0, size, 1).astype(x.dtype)  # The sign has no derivative.
    return jnp.where(size > 0, x / divisor, 1)


def or_zero(v: Any) -> tuple[Any, Any]:
    """A matrix, and the matrix of its structure whose leaves are zeros."""
    return v, jax.tree.map(jnp.zeros_like, v)


class MultipleOfIdentity(OnDiagonal):
    """Base class of the matrices whose numbers on the diagonal are one number, ``c``."""

    _is_base = True

    if TYPE_CHECKING:  # Each subclass has the number c, and the number of rows.

        def __getattr__(self, name: str) -> Any: ...

    def as_multiple(self) -> ScalarMatrix:
        return ScalarMatrix(self.c, self.rows)

    def entries_at(self, i: Any, j: Any) -> Any:
        return zero_unless(i == j, self.c)

    def known_diagonal(self) -> Any:
        return jnp.broadcast_to(self.c[..., None], (*self.c.shape, self.rows))

    def map_entries(self, fn: Callable[..., Any], *others: Any) -> Any:
        if all(isinstance(x, MultipleOfIdentity) for x in others):
            return ScalarMatrix(fn(self.c, *(x.c for x in others)), self.rows)
        return self.as_diagonal().map_entries(fn, *(x.as_diagonal() for x in others))

    def times(self, other: Any) -> Any:
        if isinstance(other, MultipleOfIdentity):
            return self.map_entries(jnp.multiply, other)
        if isinstance(other, Matrix) and self.batch:
            # On either side of the other matrix, which may have more rows than columns.
            return other.scaled_rows(jnp.broadcast_to(self.c[..., None], other.shape[:-1]))
        # Zeros of the other matrix stay zeros, as in all products.
        return other.times_number(self.c) if isinstance(other, Matrix) else NotImplemented

    def rtimes(self, other: Any) -> Any:
        return self.times(other)

    def plus(self, other: Any) -> Any:
        if isinstance(other, MultipleOfIdentity):
            return self.map_entries(jnp.add, other)
        if not isinstance(other, Matrix):
            return NotImplemented
        return other.plus(self.as_diagonal())

    def hadamard(self, other: Any) -> Any:
        if isinstance(other, MultipleOfIdentity):
            return self.times(other)
        return super().hadamard(other)

    def known_solution(self, b: Any) -> Any:
        if isinstance(b, MultipleOfIdentity):
            return self.map_entries(lambda c, of_b: of_b / c, b)
        return super().known_solution(b)

    def known_determinant(self) -> Any:
        return Determinant.of(self.c[..., None]) ** self.rows

    def known_spectrum(self) -> Any:
        return self.diagonal(), self._one()

    def known_eigh(self, lower: bool) -> Any:
        return self.diagonal().real, self._one()


class Identity(MultipleOfIdentity):
    r"""The identity matrix, :math:`I_{ij} = \delta_{ij}`, which holds no numbers.

    In products its zeros stay zeros, even times infinity or NaN, unless the rules
    `strict_zeros` are in force.

    Attributes
    ----------
    rows
        The number n of rows, and of columns.
    of_dtype
        The dtype of the array.
    of_batch
        The batch axes of a stack of identities. The value holds them as the shape of an
        empty array.

    Raises
    ------
    ValueError
        If ``rows`` is negative.
    TypeError
        If ``rows`` is not an integer.

    Examples
    --------
    >>> import jax.numpy as jnp, jaxrewrite
    >>> from jaxrewrite.values import Identity
    >>> v = Identity(3)
    >>> v @ jnp.arange(3.0), 2 * v
    (Array([0., 1., 2.], dtype=float32), ScalarMatrix([[2.  ·  ·]
                  [ · 2.  ·]
                  [ ·  · 2.]], rows=3, dtype=float32))
    """

    rows: int = jaxrewrite.field(static=True)
    of_dtype: Any = jaxrewrite.field(static=True, default=jnp.dtype("float32"))
    _nothing: Any = nothing_field()

    def __init__(
        self, rows: int, of_dtype: Any = jnp.float32, of_batch: Sequence[int] = ()
    ):
        rows = checked_size("Identity", "rows", rows)
        vars(self).update(
            rows=rows,
            of_dtype=jax.dtypes.canonicalize_dtype(of_dtype),
            _nothing=nothing(of_batch),
        )

    @property
    def of_batch(self) -> tuple[int, ...]:
        return batch_of("Identity", self._nothing)

    def aval(self) -> Any:
        return jax.core.ShapedArray((*self.of_batch, self.rows, self.rows), self.of_dtype)

    def materialise(self) -> Any:
        eye = one_where(jnp.eye(self.rows, dtype=bool), self.of_dtype)
        return jnp.broadcast_to(eye, self.shape)

    @property
    def c(self) -> Any:
        """The number one, for each matrix of the stack."""
        return jnp.ones(self.of_batch, self.of_dtype)

    def apply(self, x: Any, axis: int, precision: Any = None) -> Any:
        return x

    def join(self, other: Any) -> Any:
        if isinstance(other, Identity):
            return NotImplemented
        multiple = self.as_multiple()
        return or_zero(multiple) if isinstance(other, Zeros) else multiple.join(other)

    def times(self, other: Any) -> Any:
        return other

    def scaled_rows(self, factors: Any) -> Any:
        return Diagonal(factors)

    def tangent(self, leaf_tangents: Any) -> Any:
        return jnp.zeros(self.shape, self.of_dtype)  # The identity never changes.

    def lift_tangent(self, tangent: Any) -> Any:
        return self

    def cast(self, dtype: Any) -> Any:
        return Identity(self.rows, jnp.dtype(dtype), self.of_batch)

    @property
    def is_hermitian(self) -> bool:
        return True

    @property
    def is_unitary(self) -> bool:
        return True

    def solve(self, x: Any, axis: int) -> Any:
        return x

    def known_svd(self) -> Any:
        return self, self.diagonal().real, self

    def known_inverse(self) -> Any:
        return self

    def known_solution(self, b: Any) -> Any:
        return b

    def known_cholesky(self) -> Any:
        return self


class ScalarMatrix(MultipleOfIdentity):
    r"""A multiple of the identity, :math:`c I`, which holds one number.

    It is the result of a number times an `Identity`. A function that acts entry by entry
    and maps zero to zero keeps it. A sum with a matrix whose eigenvectors are known can be
    solved by the eigenvalues, which a sum with a `Diagonal` cannot. In products its zeros
    stay zeros, even times infinity or NaN, unless the rules `strict_zeros` are in force.

    Attributes
    ----------
    c
        The number, an array of shape (\*batch).
    rows
        The number n of rows, and of columns. The array has shape (\*batch, n, n).

    Raises
    ------
    ValueError
        If ``rows`` is negative.
    TypeError
        If ``rows`` is not an integer.

    Examples
    --------
    >>> import jax.numpy as jnp, jaxrewrite
    >>> from jaxrewrite.values import Identity, ScalarMatrix
    >>> v = ScalarMatrix(jnp.float32(2), 3)
    >>> v @ jnp.arange(3.0), v @ v + Identity(3)
    (Array([0., 2., 4.], dtype=float32), ScalarMatrix([[5.  ·  ·]
                  [ · 5.  ·]
                  [ ·  · 5.]], rows=3, dtype=float32))
    """

    c: Shaped[Array, "*batch"]
    rows: int = jaxrewrite.field(static=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", checked_size("ScalarMatrix", "rows", self.rows))

    def aval(self) -> Any:
        return jax.core.ShapedArray((*self.c.shape, self.rows, self.rows), self.c.dtype)

    def materialise(self) -> Any:
        return self.as_diagonal().materialise()

    def apply(self, x: Any, axis: int, precision: Any = None) -> Any:
        return with_ndim(self.c, x.ndim) * x

    def lift_tangent(self, tangent: Any) -> Any:
        return NotImplemented  # The entries on the diagonal repeat.

    def join(self, other: Any) -> Any:
        if isinstance(other, Identity):
            return self, other.as_multiple()
        return (
            (self.as_diagonal(), other) if isinstance(other, Diagonal) else NotImplemented
        )

    def scaled_rows(self, factors: Any) -> Any:
        return Diagonal(self.c[..., None] * factors)

    def solve(self, x: Any, axis: int) -> Any:
        return x / with_ndim(self.c, x.ndim)

    def known_svd(self) -> Any:
        unitary = ScalarMatrix(_phase(self.c), self.rows)
        return unitary, abs(self.diagonal()), self._one()


class Permutation(Matrix):
    r"""A permutation matrix, :math:`P_{ij} = \delta_{\pi(i) j}`, or a stack of them.

    ``P @ x`` is ``x[order]``: products with arrays move rows or columns and multiply
    nothing. Products of two, transposes (which are inverses), solves, determinants and LU
    factors are permutations or follow from one.

    In products its zeros stay zeros, even times infinity or NaN, unless the rules
    `strict_zeros` are in force.

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
        If ``order`` has no axis, is not of integers, or is not a permutation.

    Examples
    --------
    >>> import jax.numpy as jnp, jaxrewrite
    >>> from jaxrewrite.values import Permutation
    >>> v = Permutation(jnp.array([2, 0, 1]))
    >>> v @ jnp.array([1.0, 2.0, 3.0])
    Array([3., 1., 2.], dtype=float32)
    >>> v @ v.T
    Permutation([[1.  ·  ·]
                 [ · 1.  ·]
                 [ ·  · 1.]], dtype=float32)
    >>> v.determinant()
    Array(1., dtype=float32)
    """

    order: Int[Array, "*batch n"]
    of_dtype: Any = jaxrewrite.field(static=True, default=jnp.dtype("float32"))

    def __post_init__(self) -> None:
        object.__setattr__(self, "of_dtype", jax.dtypes.canonicalize_dtype(self.of_dtype))
        if jnp.ndim(self.order) == 0:
            raise ValueError("Permutation: order must have at least one axis.")
        if not jnp.issubdtype(self.order.dtype, jnp.integer):
            raise ValueError(
                f"Permutation: order must be integers; got {self.order.dtype}."
            )
        if disproved(_are_orders, self.order):
            raise ValueError(
                f"Permutation: order is not a permutation of 0 to {self.order.shape[-1] - 1}."
            )

    @classmethod
    def from_dense(cls, matrix: Any) -> Permutation:
        r"""The `Permutation` of a dense array of shape (\*batch, n, n).

        Raises
        ------
        ValueError
            If ``matrix`` is not square, or if its numbers are known and it is not a
            permutation matrix.

        Examples
        --------
        >>> import jax.numpy as jnp
        >>> from jaxrewrite.values import Permutation
        >>> Permutation.from_dense(jnp.eye(3)[::-1]).order
        Array([2, 1, 0], dtype=int32)
        """
        check_square("Permutation", "matrix", matrix)
        if disproved(_is_permutation, matrix):
            raise ValueError("Permutation: matrix is not a permutation matrix.")
        return cls(jnp.argmax(matrix, -1), jnp.result_type(matrix))

    @property
    def has_zeros(self) -> bool:
        return True

    def aval(self) -> Any:
        return jax.core.ShapedArray(
            (*self.order.shape, self.order.shape[-1]), self.of_dtype
        )

    def materialise(self) -> Any:
        return one_where(is_class(self.order, self.order.shape[-1]), self.of_dtype)

    def apply(self, x: Any, axis: int, precision: Any = None) -> Any:
        return _at(x, on_axis(self.order, self.order.ndim - 1, x.ndim, axis), axis)

    def _in_order(self, order: Any) -> Permutation:
        """The permutation of another order. It is not read: zeros times it may have any."""
        return jax.tree.unflatten(jax.tree.structure(self), [order])

    def transposed(self) -> Any:
        return self._in_order(_inverse(self.order))

    def reversed(self) -> Any:
        last = self.order.shape[-1] - 1
        return self._in_order(last - self.order[..., ::-1])

    def cast(self, dtype: Any) -> Any:
        return Permutation(self.order, dtype)

    def join(self, other: Any) -> Any:
        scaled = self.scaled_by(jnp.ones(self.order.shape, self.of_dtype))
        if isinstance(other, Zeros):
            return or_zero(scaled)
        return (scaled, other) if isinstance(other, type(scaled)) else NotImplemented

    def times_number(self, factor: Any) -> Any:
        return self.scaled_by(jnp.broadcast_to(factor, self.order.shape))

    def times(self, other: Any) -> Any:
        """Two permutations make one. A diagonal matrix moves to the left, to scale rows."""

        if isinstance(other, Permutation):
            return self._in_order(_at(other.order, self.order))
        if isinstance(other, Diagonal):
            return Product((Diagonal(_at(other.d, self.order)), self))
        return NotImplemented

    def hadamard(self, other: Any) -> Any:
        if isinstance(other, Permutation):
            return self.scaled_by((self.order == other.order).astype(self.of_dtype))
        if not is_value(other):
            return self.scaled_by(_at(other, self.order[..., None])[..., 0])
        if self.batch or not isinstance(other, Matrix):
            return NotImplemented
        entries = other.entries_at(jnp.arange(self.shape[-1]), self.order)
        return NotImplemented if entries is NotImplemented else self.scaled_by(entries)

    def scaled_by(self, factors: Any) -> Any:
        """``diag(factors) @ self``."""

        return Product((Diagonal(factors), self))

    def entries_at(self, i: Any, j: Any) -> Any:
        return (self.order[i] == j).astype(self.of_dtype)

    def known_diagonal(self) -> Any:
        return (self.order == jnp.arange(self.order.shape[-1])).astype(self.of_dtype)

    @property
    def is_unitary(self) -> bool:
        return True

    def solve(self, x: Any, axis: int) -> Any:
        return self.transposed().apply(x, axis)

    def known_inverse(self) -> Any:
        return self.transposed()

    def known_solution(self, b: Any) -> Any:
        return matrix_product(self.transposed(), b)

    def known_svd(self) -> Any:
        n = self.order.shape[-1]
        ones = jnp.ones(self.order.shape, jnp.finfo(self.of_dtype).dtype)
        return self, ones, Identity(n, self.of_dtype, self.batch)

    def known_determinant(self) -> Any:
        """1 if n minus the number of cycles is even, else -1."""
        n = self.order.shape[-1]
        first = _first_of_cycle(self.order)
        cycles = (first == jnp.arange(n)).sum(-1)
        sign = (1 - 2 * ((n - cycles) % 2)).astype(
            self.of_dtype if inexact(self.of_dtype) else float
        )
        return Determinant.of(sign[..., None])

    def known_lu(self) -> Any:

        rows = _inverse(self.order).astype(jnp.int32)
        identity = Identity(self.order.shape[-1], self.of_dtype, self.batch)
        return identity, _exchanges(rows), rows


def _at(x: Any, indices: Any, axis: int = -1) -> Any:
    return jnp.take_along_axis(x, indices, axis, mode="promise_in_bounds")


def _are_orders(xp: Any, order: Any) -> Any:
    return (xp.sort(order, axis=-1) == xp.arange(order.shape[-1])).all()


def _is_permutation(xp: Any, matrix: Any) -> Any:
    return are_rows_of_identity(xp, matrix) & ((matrix == 1).sum(-2) == 1).all()


def _inverse(order: Any) -> Any:
    rows = jnp.arange(order.shape[-1], dtype=order.dtype)

    def inverse(order: Any) -> Any:
        # To wrap negative ones, JAX adds the length, which the dtype of the order may not hold.
        return jnp.zeros_like(order).at[order].set(rows, wrap_negative_indices=False)

    return jnp.vectorize(inverse, signature="(n)->(n)")(order)


def _first_of_cycle(order: Any) -> Any:
    """The least index in the cycle of each index; the length of the jumps doubles."""
    n = order.shape[-1]
    first = jnp.broadcast_to(jnp.arange(n, dtype=order.dtype), order.shape)
    for _ in range(known(n).bit_length()):
        first = jnp.minimum(first, _at(first, order))
        order = _at(order, order)
    return first


def _exchanges(rows: Any) -> Any:
    """The exchanges of row i with another row, one after the other, that order ``rows``.

    At its turn row i is exchanged with the first of ``rows[i], rows[rows[i]], ...`` that is
    not less than i, because earlier exchanges sent the wanted row there. Jumps of lengths
    that are powers of two find it. Each jump knows the greatest index that it passes.
    """
    positions = jnp.broadcast_to(jnp.arange(rows.shape[-1], dtype=rows.dtype), rows.shape)
    jump = greatest = rows
    jumps = []
    for _ in range(known(rows.shape[-1]).bit_length()):
        jumps.append((jump, greatest))
        greatest = jnp.maximum(greatest, _at(greatest, jump))
        jump = _at(jump, jump)
    here = positions
    for jump, greatest in reversed(jumps):
        here = jnp.where(_at(greatest, here) < positions, _at(jump, here), here)
    return _at(rows, here)


@register("convert_element_type")
def _(v: Permutation, *, new_dtype: Any, **params: Any) -> Any:
    """Ones and zeros are exact in every dtype."""
    return v.cast(jnp.dtype(new_dtype))

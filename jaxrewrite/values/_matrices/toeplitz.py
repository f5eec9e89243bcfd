"""`Toeplitz` and `Circulant`: matrices that multiply by the fast Fourier transform."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Shaped

import jaxrewrite
from jaxrewrite import register

from .._base.sizes import known
from .._base.structured import (
    as_inexact,
    batch_of,
    differs,
    inexact,
    nothing,
    nothing_field,
    padded,
    promoted,
)
from .determinant import Determinant
from .iterative import BY_PRODUCTS
from .matrix import Matrix, apply_dense, check_has_matrices, check_square, on_axis
from .monomial import MultipleOfIdentity, sorted_svd, svd_of_spectrum


class Toeplitz(Matrix):
    r"""A matrix that is constant along diagonals, or a stack of them.

    .. math:: T_{ij} = c_{i - j} \text{ for } i \ge j, \quad r_{j - i} \text{ for } i < j

    A product is part of a circular convolution of length n + m - 1 or more, which the
    Fourier transform computes in O((n + m) log (n + m)) [1]_. Any function that acts entry
    by entry keeps the matrix. 16-bit floating numbers are transformed in 32 bits. The error
    is relative to the largest entries, and one entry that is not finite makes all results
    not finite. Sums of rows and columns add the entries themselves, in O(n + m). Products of
    integers are dense products.

    Attributes
    ----------
    column
        The first column, of shape (\*batch, n).
    row
        The first row, of shape (\*batch, m). Its first entry is not used. The array has
        shape (\*batch, n, m).

    Raises
    ------
    ValueError
        If ``column`` or ``row`` is empty, or their batch axes or dtypes differ.

    References
    ----------
    .. [1] G. H. Golub and C. F. Van Loan, Matrix Computations, 4th edition, 2013, 4.7.7.

    Examples
    --------
    >>> import jax.numpy as jnp, jaxrewrite
    >>> from jaxrewrite.values import Toeplitz
    >>> v = Toeplitz(jnp.array([1.0, 2.0, 3.0]), jnp.array([1.0, 0.0, 0.0]))
    >>> jaxrewrite.materialise(v)
    Array([[1., 0., 0.],
           [2., 1., 0.],
           [3., 2., 1.]], dtype=float32)
    >>> v @ jnp.ones(3)
    Array([1., 3., 6.], dtype=float32)
    >>> jaxrewrite.transform(jnp.exp)(v)[1:]
    Toeplitz([[ 7.3890557  2.718282   1.       ]
              [20.085537   7.3890557  2.718282 ]], dtype=float32)
    """

    column: Shaped[Array, "*batch n"]
    row: Shaped[Array, "*batch m"]
    entries = "all"
    _remedies = dict.fromkeys(("lu", "cholesky"), BY_PRODUCTS)

    def __post_init__(self) -> None:
        for name in ("column", "row"):
            if jnp.ndim(getattr(self, name)) == 0 or getattr(self, name).shape[-1] == 0:
                raise ValueError(f"Toeplitz: {name} has no entries.")
        if self.column.shape[:-1] != self.row.shape[:-1]:
            raise ValueError(
                f"Toeplitz: column has shape {self.column.shape}, but row {self.row.shape}."
            )
        if self.column.dtype != self.row.dtype:
            raise ValueError(
                f"Toeplitz: column has dtype {self.column.dtype}, but row {self.row.dtype}."
            )

    @classmethod
    def from_dense(cls, matrix: Any) -> Toeplitz:
        r"""The `Toeplitz` of a dense array of shape (\*batch, n, m).

        Raises
        ------
        ValueError
            If ``matrix`` has fewer than two axes, or if its numbers are known and not
            constant along diagonals.

        Examples
        --------
        >>> import jax.numpy as jnp
        >>> from jaxrewrite.values import Toeplitz
        >>> Toeplitz.from_dense(jnp.eye(3, 5))
        Toeplitz([[1. 0. 0. 0. 0.]
                  [0. 1. 0. 0. 0.]
                  [0. 0. 1. 0. 0.]], dtype=float32)
        """
        check_has_matrices("Toeplitz", "matrix", matrix)
        if differs(matrix, lambda matrix: Toeplitz(matrix[..., 0], matrix[..., 0, :])):
            raise ValueError("Toeplitz: matrix is not constant along its diagonals.")
        return cls(matrix[..., 0], matrix[..., 0, :])

    @classmethod
    def of_diagonals(cls, diagonals: Any, rows: int) -> Toeplitz:
        """The matrix of ``rows`` rows with these diagonals, the one at the top right first."""
        columns = diagonals.shape[-1] - rows + 1
        return cls(diagonals[..., columns - 1 :], diagonals[..., :columns][..., ::-1])

    def diagonals(self) -> Any:
        """The entry of each diagonal, from the one at the top right to the bottom left."""
        return jnp.concatenate([self.row[..., :0:-1], self.column], -1)

    def first_row(self) -> Any:
        """The first row of the array: ``row`` with the first entry of ``column``."""
        return jnp.concatenate([self.column[..., :1], self.row[..., 1:]], -1)

    def aval(self) -> Any:
        return jax.core.ShapedArray(
            (*self.column.shape, self.row.shape[-1]), self.column.dtype
        )

    def materialise(self) -> Any:
        i, j = (jnp.arange(n) for n in self.shape[-2:])
        return self.diagonals()[..., i[:, None] - j[None] + self.row.shape[-1] - 1]

    def apply(self, x: Any, axis: int, precision: Any = None) -> Any:
        if not inexact(self.column):
            return apply_dense(self.materialise(), x, axis, precision)
        n, m = self.shape[-2:]
        size = _fast_size(n + m - 1)
        y = _circular(jnp.multiply, self.diagonals(), x, axis, size)
        return lax.slice_in_dim(y, m - 1, m - 1 + n, axis=axis)

    def row_sums(self) -> Any:
        """The sums of windows of m diagonals, of which each is the end of a block and a start.

        Cumulative sums within the blocks have the sums of all ends and starts. So a number that
        is not finite reaches the rows that it is in, and no others.
        """
        n, m = self.shape[-2:]
        if m == 1:
            return self.column
        wide = _wide(self.dtype) if inexact(self.column) else self.dtype
        blocks = -(-n // m) + 1
        diagonals = self.diagonals().astype(wide)
        diagonals = padded(diagonals, -1, 0, blocks * m - diagonals.shape[-1])
        diagonals = diagonals.reshape(*self.batch, blocks, m)
        ends = lax.cumsum(diagonals[..., :-1, :], diagonals.ndim - 1, reverse=True)
        starts = lax.cumsum(diagonals[..., 1:, :-1], diagonals.ndim - 1)
        sums = ends + padded(starts, -1, 1, 0)
        return sums.reshape(*self.batch, (blocks - 1) * m)[..., :n].astype(self.dtype)

    def transposed(self) -> Any:
        return Toeplitz(self.first_row(), self.column)

    def reversed(self) -> Any:
        n, m = self.shape[-2:]
        return self.transposed() if n == m else NotImplemented

    def map_entries(self, fn: Callable[..., Any], *others: Any) -> Any:
        # The first entry of ``row`` is not in the array. The function must not see it,
        # because the result or derivative there may be NaN.
        columns = [v.column for v in (self, *others)]
        return Toeplitz(fn(*columns), fn(*(v.first_row() for v in (self, *others))))

    def pick(self, dense: Any) -> Any:
        return Toeplitz(dense[..., 0], dense[..., 0, :])

    def plus(self, other: Any) -> Any:
        if not isinstance(other, (Toeplitz, Circulant)):
            return NotImplemented
        return self.map_entries(jnp.add, other.as_toeplitz())

    def join(self, other: Any) -> Any:
        if not isinstance(other, MultipleOfIdentity):
            return super().join(other)
        column = _first_column(other)
        return self, Toeplitz(column, column)

    def hadamard(self, other: Any) -> Any:
        if not isinstance(other, Circulant):
            return NotImplemented
        return self.map_entries(jnp.multiply, other.as_toeplitz())

    def as_toeplitz(self) -> Toeplitz:
        return self

    def known_lower_part(self, k: int) -> Any:
        diagonals = self.diagonals()
        offsets = self.row.shape[-1] - 1 - jnp.arange(diagonals.shape[-1])
        return self.of_diagonals(jnp.where(offsets <= k, diagonals, 0), self.shape[-2])

    def entries_at(self, i: Any, j: Any) -> Any:
        return self.diagonals()[..., i - j + self.row.shape[-1] - 1]

    def known_diagonal(self) -> Any:
        return _repeated(self.column[..., :1], min(self.shape[-2:]))


class Circulant(Matrix):
    r"""A square matrix with shifts of its first column as columns, or a stack of them.

    .. math:: C_{ij} = c_{(i - j) \bmod n} \quad C = F^{-1} \operatorname{diag}(F c) F

    The Fourier transform :math:`F` makes it diagonal. So products, solves, inverses,
    determinants and eigenvalues, which are :math:`F c` [1]_, take O(n log n). Sums and
    products of two are circulant. Any function that acts entry by entry keeps the matrix.
    Dtypes and errors are treated as in `Toeplitz`.

    Attributes
    ----------
    column
        The first column, of shape (\*batch, n). The array has shape (\*batch, n, n).

    Raises
    ------
    ValueError
        If ``column`` is empty.

    References
    ----------
    .. [1] G. H. Golub and C. F. Van Loan, Matrix Computations, 4th edition, 2013, 4.8.2.

    Examples
    --------
    >>> import jax.numpy as jnp, jaxrewrite
    >>> from jaxrewrite.values import Circulant
    >>> v = Circulant(jnp.array([0.0, 1.0, 0.0, 0.0]))
    >>> v @ jnp.arange(4.0)
    Array([3., 0., 1., 2.], dtype=float32)
    >>> jaxrewrite.transform(jnp.linalg.solve)(v, jnp.arange(4.0))
    Array([1., 2., 3., 0.], dtype=float32)
    >>> (v @ v + 2 * v.T).column
    Array([0., 0., 1., 2.], dtype=float32)
    """

    column: Shaped[Array, "*batch n"]
    entries = "all"

    def __post_init__(self) -> None:
        if jnp.ndim(self.column) == 0 or self.column.shape[-1] == 0:
            raise ValueError("Circulant: column has no entries.")

    @classmethod
    def from_dense(cls, matrix: Any) -> Circulant:
        r"""The `Circulant` of a dense array of shape (\*batch, n, n).

        Raises
        ------
        ValueError
            If ``matrix`` is not square, or if its numbers are known and its columns are not
            shifts of the first.

        Examples
        --------
        >>> import jax.numpy as jnp
        >>> from jaxrewrite.values import Circulant
        >>> Circulant.from_dense(jnp.eye(3))
        Circulant([[1. 0. 0.]
                   [0. 1. 0.]
                   [0. 0. 1.]], dtype=float32)
        """
        check_square("Circulant", "matrix", matrix)
        value = cls(matrix[..., 0])
        if differs(matrix, lambda matrix: Circulant(matrix[..., 0])):
            raise ValueError(
                "Circulant: matrix has columns that are not shifts of the first."
            )
        return value

    def aval(self) -> Any:
        return jax.core.ShapedArray(
            (*self.column.shape, self.column.shape[-1]), self.column.dtype
        )

    def materialise(self) -> Any:
        n = self.column.shape[-1]
        i = jnp.arange(n)
        return jnp.asarray(self.column)[..., (i[:, None] - i[None]) % n]

    def apply(self, x: Any, axis: int, precision: Any = None) -> Any:
        if not inexact(self.column):
            return apply_dense(self.materialise(), x, axis, precision)
        return _circular(jnp.multiply, self.column, x, axis, self.column.shape[-1])

    def row_sums(self) -> Any:
        sums = jnp.sum(self.column, -1, keepdims=True, dtype=self.dtype)
        return _repeated(sums, self.column.shape[-1])

    def first_row(self) -> Any:
        return jnp.roll(self.column[..., ::-1], 1, -1)

    def transposed(self) -> Any:
        return Circulant(self.first_row())

    def reversed(self) -> Any:
        return self.transposed()

    def as_toeplitz(self) -> Toeplitz:
        return Toeplitz(self.column, self.first_row())

    def pick(self, dense: Any) -> Any:
        return Circulant(dense[..., 0])

    def times(self, other: Any) -> Any:
        if not isinstance(other, Circulant):
            return NotImplemented
        return Circulant(self.apply(other.column, other.column.ndim - 1))

    def join(self, other: Any) -> Any:
        if not isinstance(other, MultipleOfIdentity):
            return super().join(other)
        return self, Circulant(_first_column(other))

    def plus(self, other: Any) -> Any:
        if not isinstance(other, Circulant):
            return NotImplemented
        return Circulant(self.column + other.column)

    def entries_at(self, i: Any, j: Any) -> Any:
        return self.column[..., (i - j) % self.column.shape[-1]]

    def known_diagonal(self) -> Any:
        return _repeated(self.column[..., :1], self.column.shape[-1])

    def solve(self, x: Any, axis: int) -> Any:
        column = as_inexact(self.column)
        return _circular(jnp.divide, column, as_inexact(x), axis, column.shape[-1])

    def known_inverse(self) -> Any:
        first = jnp.zeros_like(as_inexact(self.column)).at[..., 0].set(1)
        return Circulant(self.solve(first, self.column.ndim - 1))

    def known_solution(self, b: Any) -> Any:
        if not isinstance(b, Circulant):
            return NotImplemented
        return Circulant(self.solve(b.column, b.column.ndim - 1))

    def known_exponential(self) -> Any:
        column = _fourier(jnp.fft.ifft, jnp.exp(self.known_eigenvalues()))
        column = column if jnp.iscomplexobj(self.column) else column.real
        return Circulant(column.astype(self.column.dtype))

    def known_lower_part(self, k: int) -> Any:
        return self.as_toeplitz().known_lower_part(k)

    def known_determinant(self) -> Any:
        determinant = Determinant.of(self.eigenvalues())
        return determinant if jnp.iscomplexobj(self.column) else determinant.real()

    def known_spectrum(self) -> Any:
        return self.known_eigenvalues(), _Fourier(self.shape[-1], self.dtype, self.batch)

    def known_singular_values(self) -> Any:
        return -jnp.sort(-abs(self.known_eigenvalues()), axis=-1)

    def known_reduced_svd(self) -> Any:
        return svd_of_spectrum(*self.known_spectrum())

    def known_svd(self) -> Any:
        """The eigenvectors are complex, and those of a real matrix are not wanted."""
        if not jnp.iscomplexobj(self.column):
            return NotImplemented
        return sorted_svd(*self.known_reduced_svd())

    def known_eigenvalues(self) -> Any:
        column = as_inexact(self.column)
        return _fourier(jnp.fft.fft, column.astype(_wide(column.dtype)))


def _first_column(v: MultipleOfIdentity) -> Any:
    diagonal = v.diagonal()
    return jnp.where(jnp.arange(v.rows) == 0, diagonal, jnp.zeros_like(diagonal))


class _Fourier(Matrix):
    r"""The unitary matrix of the inverse Fourier transform, or its conjugate; both are symmetric."""

    rows: int = jaxrewrite.field(static=True)
    of_dtype: Any = jaxrewrite.field(static=True)
    conjugated: bool = jaxrewrite.field(static=True)
    _nothing: Any = nothing_field()

    def __init__(
        self, rows: int, of_dtype: Any, of_batch: Sequence[int], conjugated: bool = False
    ):
        of_dtype = promoted(of_dtype, jnp.complex64)
        vars(self).update(
            rows=rows, of_dtype=of_dtype, conjugated=conjugated, _nothing=nothing(of_batch)
        )

    def aval(self) -> Any:
        batch = batch_of("_Fourier", self._nothing)
        return jax.core.ShapedArray((*batch, self.rows, self.rows), self.of_dtype)

    def materialise(self) -> Any:
        eye = jnp.eye(self.rows, dtype=self.of_dtype)
        return self.apply(jnp.broadcast_to(eye, self.shape), self.ndim - 2)

    def apply(self, x: Any, axis: int, precision: Any = None) -> Any:
        transform = jnp.fft.fft if self.conjugated else jnp.fft.ifft
        return _fourier(transform, x, axis, norm="ortho").astype(self.of_dtype)

    def transposed(self) -> Any:
        return self

    @property
    def is_unitary(self) -> bool:
        return True


@register("conj")
def _(v: _Fourier, **params: Any) -> Any:
    batch = batch_of("_Fourier", v._nothing)
    return _Fourier(v.rows, v.of_dtype, batch, not v.conjugated)


def _repeated(x: Any, n: int) -> Any:
    return jnp.broadcast_to(x, (*x.shape[:-1], n))


def _wide(dtype: Any) -> Any:
    return promoted(dtype, jnp.float32)


def _fast_size(n: int) -> int:
    """The least number from n on, or from 1, with no prime factors but 2, 3 and 5."""
    n = max(known(n), 1)
    while True:
        rest = n
        for prime in (2, 3, 5):
            while rest % prime == 0:
                rest //= prime
        if rest == 1:
            return n
        n += 1


def _fourier(transform: Any, x: Any, axis: int = -1, norm: str | None = None) -> Any:
    known(x.shape[axis])  # JAX has no program of a transform for all sizes.
    return _along(axis, lambda x: transform(x, norm=norm), x)


def _circular(combine: Any, kernel: Any, x: Any, axis: int, size: int) -> Any:
    """Multiply, or divide, the spectra of an array and of a kernel along an axis."""
    size, dtype = known(size), jnp.result_type(kernel, x)
    forward, back = jnp.fft.rfft, jnp.fft.irfft
    if jnp.issubdtype(dtype, jnp.complexfloating):
        forward, back = jnp.fft.fft, jnp.fft.ifft
    kernel, x = (a.astype(_wide(dtype)) for a in (_row_after_row(kernel), x))

    def combined(x: Any) -> Any:
        spectrum = on_axis(forward(kernel, size), kernel.ndim - 1, x.ndim, x.ndim - 1)
        return back(combine(forward(x, size), spectrum), size)

    return _along(axis, combined, x).astype(dtype)


def _along(axis: int, change: Any, x: Any) -> Any:
    """Change an array along an axis by a function with Fourier transforms of the last one.

    XLA on a CPU fails to transform arrays that are not laid out row after row, which a
    factorisation or a solve may ask of all that leads to it.
    """
    changed = change(_row_after_row(jnp.moveaxis(x, axis, -1)))
    return jnp.moveaxis(_row_after_row(changed), -1, axis)


def _row_after_row(x: Any) -> Any:
    """The array by way of one axis, for which there is but one layout."""
    # Axes of which the type says that they are split can't be made one.
    is_split = any(names is not None for names in jax.typeof(x).sharding.spec)
    if x.ndim < 2 or is_split:
        return x
    return lax.optimization_barrier(x.reshape(-1)).reshape(x.shape)


@register("slice")
def _(
    v: Toeplitz | Circulant, *, start_indices: Any, limit_indices: Any, strides: Any
) -> Any:
    """A block of neighbouring rows and columns is a Toeplitz matrix."""
    whole = all(start == 0 for start in start_indices[:-2])
    whole = whole and tuple(limit_indices[:-2]) == v.batch
    n, m = (limit_indices[i] - start_indices[i] for i in (-2, -1))
    if not whole or set(strides or ()) - {1} or min(n, m) < 2:
        return NotImplemented
    if (n, m) == v.shape[-2:]:
        return v
    first = start_indices[-2] - start_indices[-1] + v.shape[-1] - m
    diagonals = v.as_toeplitz().diagonals()[..., first : first + n + m - 1]
    return Toeplitz.of_diagonals(diagonals, n)

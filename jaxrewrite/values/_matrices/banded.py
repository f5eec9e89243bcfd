"""`Banded` and `Tridiagonal`: matrices with few diagonals."""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable
from typing import Any, Self

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Inexact

import jaxrewrite

from .._base.loops import scan
from .._base.sizes import are_known, checked_size
from .._base.structured import (
    alike,
    as_inexact,
    differs,
    dtype_of_sums,
    over_batch,
    padded,
    zero_unless,
)
from .determinant import Determinant
from .matrix import Matrix, check_square, nan_if_any_is, on_axis, solve_columns, unpivoted
from .monomial import OnDiagonal


class _Bands(Matrix):
    """Base class of matrices with few diagonals."""

    _is_base = True
    _required = (*Matrix._required, "diagonals", "as_banded")
    entries = "pattern"

    @abc.abstractmethod
    def diagonals(self) -> list[tuple[int, Any]]:
        r"""The pairs of an offset d and the diagonal there, (\*batch, n - abs(d))."""

    @abc.abstractmethod
    def as_banded(self) -> Banded:
        """The matrix as one with any number of diagonals."""

    def apply(self, x: Any, axis: int, precision: Any = None) -> Any:
        dtype = jnp.result_type(self.dtype, x.dtype)
        of_sums = dtype_of_sums(dtype)
        terms = []
        for offset, d in self.diagonals():
            start = max(offset, 0)
            part = lax.slice_in_dim(x, start, start + d.shape[-1], axis=axis)
            d = on_axis(d, d.ndim - 1, x.ndim, axis).astype(of_sums)
            terms.append(padded(d * part.astype(of_sums), axis, max(-offset, 0), start))
        return functools.reduce(jnp.add, terms).astype(dtype) if terms else x

    def times(self, other: Any) -> Any:
        if not isinstance(other, _Bands):
            return NotImplemented
        return _banded_product(self.as_banded(), other.as_banded())

    def plus(self, other: Any) -> Any:
        both = self.join(other)
        if both is NotImplemented:
            return NotImplemented
        v, w = both
        return Banded(v.bands + w.bands, v.lower, v.upper)

    def known_lower_part(self, k: int) -> Any:
        if k < 0:
            return NotImplemented
        banded = self.as_banded()
        return banded.resized(banded.lower, min(banded.upper, k))

    def hadamard(self, other: Any) -> Any:
        if isinstance(other, OnDiagonal):
            return other.hadamard(self)
        v, w = self.as_banded(), _as_banded(other)
        if w is not None:
            lower, upper = min(v.lower, w.lower), min(v.upper, w.upper)
            v, w = v.resized(lower, upper), w.resized(lower, upper)
            return Banded(v.bands * w.bands, lower, upper)
        i, j = v.indices()
        return v._times_entries(other, jnp.clip(i, 0, v.shape[-1] - 1), j)

    def join(self, other: Any) -> Any:
        v, w = self.as_banded(), _as_banded(other)
        if w is None:
            return NotImplemented
        lower, upper = max(v.lower, w.lower), max(v.upper, w.upper)
        return v.resized(lower, upper), w.resized(lower, upper)


def _as_banded(x: Any) -> Banded | None:
    if isinstance(x, _Bands):
        return x.as_banded()
    if isinstance(x, OnDiagonal):
        return Banded(x.diagonal()[..., None, :], 0, 0)
    return None


class Banded(_Bands):
    r"""A square matrix with few diagonals, :math:`A_{ij} = 0` unless :math:`-l \le j - i \le u`.

    The diagonals are held as in `scipy.linalg.solve_banded`: :math:`b_{u + i - j, j} = A_{ij}`,

    .. math::
        \begin{pmatrix} * & a_{01} & a_{12} & a_{23} \\
        a_{00} & a_{11} & a_{22} & a_{33} \\
        a_{10} & a_{21} & a_{32} & * \end{pmatrix}
        \qquad l = u = 1,\ n = 4,

    where ``*`` is never used. With :math:`k = l + u + 1`, a product with a vector takes
    :math:`O(nk)`. The bandwidths of a product of two are the sums of theirs. Such a product
    is `Banded` as long as it takes no more room than a dense matrix, and lazy otherwise.

    A solve is Gaussian elimination with partial pivoting inside the band, in
    :math:`O(n l k)` [1]_. It exchanges the same rows as a dense LU factorisation, so it is
    as stable. Its price is a loop of n steps, one after the other: on accelerators it is
    slower than a dense solve until n is large. A symmetric positive definite matrix can
    also be solved by its Cholesky factor, which is banded. The derivative of a solve
    takes two more solves.

    In products its zeros stay zeros, even times infinity or NaN, unless the rules
    `strict_zeros` are in force.

    Attributes
    ----------
    bands
        The diagonals, from the uppermost to the lowest, of shape (\*batch, k, n).
    lower
        The number l of diagonals below the main one.
    upper
        The number u of diagonals above the main one.

    Raises
    ------
    ValueError
        If ``lower`` or ``upper`` is negative, or ``bands`` has a different number of diagonals.
    TypeError
        If ``lower`` or ``upper`` is not an integer.

    References
    ----------
    .. [1] G. H. Golub and C. F. Van Loan, *Matrix Computations*, 4th ed., section 4.3.

    Examples
    --------
    >>> import jax.numpy as jnp, jaxrewrite
    >>> from jaxrewrite.values import Banded
    >>> v = Banded(jnp.array([[2.0, 2.0, 2.0], [1.0, 1.0, 0.0]]), lower=1, upper=0)
    >>> v @ jnp.ones(3)
    Array([2., 3., 3.], dtype=float32)
    >>> v + v.T
    Banded([[4. 1.  ·]
            [1. 4. 1.]
            [ · 1. 4.]], lower=1, upper=1, dtype=float32)
    >>> jaxrewrite.transform(jnp.linalg.solve)(v, jnp.array([2.0, 3.0, 3.0]))
    Array([1., 1., 1.], dtype=float32)
    """

    bands: Inexact[Array, "*batch k n"]
    lower: int = jaxrewrite.field(static=True)
    upper: int = jaxrewrite.field(static=True)

    def __post_init__(self) -> None:
        for name in ("lower", "upper"):
            count = checked_size("Banded", name, getattr(self, name))
            object.__setattr__(self, name, count)
        shape, k = jnp.shape(self.bands), self.lower + self.upper + 1
        if len(shape) < 2 or shape[-2] != k:
            raise ValueError(
                f"Banded: bands has shape {shape}, but with lower={self.lower} and "
                f"upper={self.upper} its second last axis must have length {k}."
            )

    @classmethod
    def from_dense(cls, x: Any, lower: int, upper: int) -> Self:
        """The banded form of a dense array.

        Parameters
        ----------
        x
            An array of shape (\\*batch, n, n).
        lower, upper
            The numbers of diagonals below and above the main one.

        Raises
        ------
        ValueError
            If ``x`` is not square, or if its numbers are known and not zero elsewhere.

        Examples
        --------
        >>> import jax.numpy as jnp
        >>> from jaxrewrite.values import Banded
        >>> Banded.from_dense(jnp.tri(3) - jnp.tri(3, k=-2), 1, 0).bands
        Array([[1., 1., 1.],
               [1., 1., 0.]], dtype=float32)
        """
        bands = lambda x: _bands_at_once(x, lower, upper, "Banded")
        v = cls(bands(x), lower, upper)
        _check_zero_elsewhere(x, lambda x: Banded(bands(x), lower, upper))
        return v

    def aval(self) -> Any:
        *batch, _, n = self.bands.shape
        return jax.core.ShapedArray((*batch, n, n), self.bands.dtype)

    def materialise(self) -> Any:
        columns = _sheared(jnp.swapaxes(self.bands, -1, -2))
        n = columns.shape[-2]
        return jnp.swapaxes(columns[..., self.upper : self.upper + n], -1, -2)

    def indices(self) -> tuple[Any, Any]:
        """The row and the column of each number in ``bands``; a row may be out of range."""
        shape = self.bands.shape[-2:]
        j = lax.broadcasted_iota(jnp.int32, shape, 1)
        return lax.broadcasted_iota(jnp.int32, shape, 0) + j - self.upper, j

    def _inside(self) -> Any:
        """``bands``, with zeros at the places that are not entries of the matrix."""
        i, _ = self.indices()
        return zero_unless((i >= 0) & (i < self.shape[-1]), self.bands)

    def diagonals(self) -> list[tuple[int, Any]]:
        n = self.shape[-1]
        bands_by_offset = []
        for offset in range(max(-self.lower, 1 - n), min(self.upper, n - 1) + 1):
            d = self.bands[..., self.upper - offset, :]
            bands_by_offset.append((offset, d[..., max(offset, 0) : n + min(offset, 0)]))
        return bands_by_offset

    def as_banded(self) -> Banded:
        return self

    def resized(self, lower: int, upper: int) -> Banded:
        """The matrix with more diagonals of zeros, or without some outer diagonals."""
        above, below = upper - self.upper, lower - self.lower
        return Banded(padded(self.bands, -2, above, below), lower, upper)

    def transposed(self) -> Any:
        n, u = self.shape[-1], self.upper
        rows = _sheared(self.bands)[..., u : u + n]
        return Banded(rows[..., ::-1, :], lower=u, upper=self.lower)

    def reversed(self) -> Any:
        return Banded(self.bands[..., ::-1, ::-1], lower=self.upper, upper=self.lower)

    def map_entries(self, fn: Callable[..., Any], *others: Any) -> Any:
        bands = fn(self._inside(), *(v._inside() for v in others))
        return Banded(bands, self.lower, self.upper)

    def pick(self, dense: Any) -> Any:
        bands = _bands_of(dense, self.lower, self.upper, "Banded")
        return Banded(bands, self.lower, self.upper)

    def scaled_rows(self, factors: Any) -> Any:
        k = self.bands.shape[-2]
        wide = padded(factors, -1, self.upper, self.lower)[..., None, :]
        wide = jnp.broadcast_to(wide, (*wide.shape[:-2], k, wide.shape[-1]))
        return Banded(self.bands * _unsheared(wide), self.lower, self.upper)

    def entries_at(self, i: Any, j: Any) -> Any:
        row = self.upper + i - j
        k = self.bands.shape[-2]
        entries = self.bands[jnp.clip(row, 0, k - 1), j]
        return zero_unless((row >= 0) & (row < k), entries)

    def known_diagonal(self) -> Any:
        return self.bands[..., self.upper, :]

    def is_triangular(self, lower: bool) -> bool:
        return not (self.upper if lower else self.lower)

    def _rows(self) -> Any:
        r"""The rows from column i - l to column i + u, of shape (\*batch, n, k)."""
        return jnp.swapaxes(self.transposed().bands, -1, -2)

    def _solve(self, b: Any) -> Any:
        if self.lower and not self.upper:
            return self.reversed()._solve(b[..., ::-1, :])[..., ::-1, :]
        solve = functools.partial(_solve_rows, lower=self.lower)
        return over_batch(solve, len(self.batch))(self._rows(), b)

    def solve(self, x: Any, axis: int) -> Any:
        def solve(v: Banded) -> Callable[..., Any]:
            return lambda _, b: solve_columns(v._solve, b, axis, len(v.batch))

        v, x = alike(self, x)
        return lax.custom_linear_solve(
            lambda y: v.apply(y, axis), x, solve(v), solve(v.transposed())
        )

    def known_determinant(self) -> Any:
        if not self.lower or not self.upper:
            return Determinant.of(self.diagonal())
        pivots = functools.partial(_signed_pivots, lower=self.lower)
        rows = as_inexact(self._rows())
        return Determinant.of(over_batch(pivots, len(self.batch))(rows))

    def known_cholesky(self) -> Any:
        rows = self.resized(self.lower, 0)._rows()
        columns = over_batch(_cholesky_rows, len(self.batch))(rows)
        factor = Banded(jnp.swapaxes(columns, -1, -2), self.lower, 0)
        return Banded(nan_if_any_is(factor._inside(), len(self.batch)), self.lower, 0)

    def known_triangle(self, lower: bool, unit_diagonal: bool) -> Any:
        v = self.resized(self.lower, 0) if lower else self.resized(0, self.upper)
        if unit_diagonal:
            v = Banded(v.bands.at[..., v.upper, :].set(1), v.lower, v.upper)
        return v

    def known_lu(self) -> Any:
        """An upper triangular matrix is its own factor."""
        return NotImplemented if self.lower else (self, *unpivoted(self))


class Tridiagonal(_Bands):
    r"""A matrix with three diagonals.

    .. math::
        A = \begin{pmatrix} d_0 & u_0 & & \\ l_0 & d_1 & u_1 & \\
        & l_1 & d_2 & \ddots \\ & & \ddots & \ddots \end{pmatrix}

    A solve is `jax.lax.linalg.tridiagonal_solve`, in O(n). The determinant is the last of
    :math:`f_i = d_i f_{i-1} - l_{i-1} u_{i-1} f_{i-2}`, the recurrence of the leading
    principal minors [1]_. The product of two is `Banded`, and so is any other result that
    is not tridiagonal.

    In products its zeros stay zeros, even times infinity or NaN, unless the rules
    `strict_zeros` are in force.

    Attributes
    ----------
    lower
        The diagonal below the main one, of shape (\*batch, n - 1).
    main
        The main diagonal, of shape (\*batch, n).
    upper
        The diagonal above the main one, of shape (\*batch, n - 1).

    Raises
    ------
    ValueError
        If the shapes don't fit, or the dtypes differ.

    References
    ----------
    .. [1] G. H. Golub and C. F. Van Loan, *Matrix Computations*, 4th ed., section 8.4.

    Examples
    --------
    >>> import jax.numpy as jnp, jaxrewrite
    >>> from jaxrewrite.values import Tridiagonal
    >>> v = Tridiagonal(-jnp.ones(4), 2 * jnp.ones(5), -jnp.ones(4))
    >>> v @ jnp.ones(5), v.determinant()
    (Array([1., 0., 0., 0., 1.], dtype=float32), Array(6., dtype=float32))
    >>> v @ v
    Banded([[ 5. -4.  1.   ·   ·]
            [-4.  6. -4.  1.   ·]
            [ 1. -4.  6. -4.  1.]
            [  ·  1. -4.  6. -4.]
            [  ·   ·  1. -4.  5.]], lower=2, upper=2, dtype=float32)
    """

    lower: Inexact[Array, "*batch n-1"]
    main: Inexact[Array, "*batch n"]
    upper: Inexact[Array, "*batch n-1"]

    def __post_init__(self) -> None:
        shape = jnp.shape(self.main)
        if not shape or not shape[-1]:
            raise ValueError(f"Tridiagonal: main has shape {shape}.")
        for name, x in (("lower", self.lower), ("upper", self.upper)):
            if jnp.shape(x) != (*shape[:-1], shape[-1] - 1):
                raise ValueError(
                    f"Tridiagonal: {name} has shape {jnp.shape(x)}, and main has {shape}."
                )
            if x.dtype != self.main.dtype:
                raise ValueError(
                    f"Tridiagonal: {name} has dtype {x.dtype}, and main {self.main.dtype}."
                )

    @classmethod
    def from_dense(cls, x: Any) -> Self:
        """The tridiagonal form of a dense array.

        Parameters
        ----------
        x
            An array of shape (\\*batch, n, n).

        Raises
        ------
        ValueError
            If ``x`` is not square, or if its numbers are known and not zero elsewhere.

        Examples
        --------
        >>> import jax.numpy as jnp
        >>> from jaxrewrite.values import Tridiagonal
        >>> Tridiagonal.from_dense(jnp.eye(3)).lower
        Array([0., 0.], dtype=float32)
        """
        bands = lambda x: _three(_bands_at_once(x, 1, 1, "Tridiagonal"))
        v = cls(*bands(x))
        _check_zero_elsewhere(x, lambda x: Tridiagonal(*bands(x)))
        return v

    def aval(self) -> Any:
        shape = self.main.shape
        return jax.core.ShapedArray((*shape, shape[-1]), self.main.dtype)

    def materialise(self) -> Any:
        return self.as_banded().materialise()

    def diagonals(self) -> list[tuple[int, Any]]:
        return [(-1, self.lower), (0, self.main), (1, self.upper)]

    def as_banded(self) -> Banded:
        upper = padded(self.upper, -1, 1, 0)
        lower = padded(self.lower, -1, 0, 1)
        return Banded(jnp.stack([upper, self.main, lower], -2), 1, 1)

    def transposed(self) -> Any:
        return Tridiagonal(self.upper, self.main, self.lower)

    def reversed(self) -> Any:
        upper, main, lower = (x[..., ::-1] for x in (self.upper, self.main, self.lower))
        return Tridiagonal(upper, main, lower)

    def pick(self, dense: Any) -> Any:
        return Tridiagonal(*_three(_bands_of(dense, 1, 1, "Tridiagonal")))

    def scaled_rows(self, factors: Any) -> Any:
        return Tridiagonal(
            self.lower * factors[..., 1:],
            self.main * factors,
            self.upper * factors[..., :-1],
        )

    def join(self, other: Any) -> Any:
        if isinstance(other, OnDiagonal):
            return Matrix.join(self, other)
        return super().join(other)

    def plus(self, other: Any) -> Any:
        if isinstance(other, Tridiagonal):
            return jax.tree.map(jnp.add, self, other)
        if isinstance(other, OnDiagonal):
            return Tridiagonal(self.lower, self.main + other.diagonal(), self.upper)
        return super().plus(other)

    def entries_at(self, i: Any, j: Any) -> Any:
        return self.as_banded().entries_at(i, j)

    def known_diagonal(self) -> Any:
        return self.main

    def solve(self, x: Any, axis: int) -> Any:
        lower = padded(self.lower, -1, 1, 0)
        upper = padded(self.upper, -1, 0, 1)
        solve = lambda b: lax.linalg.tridiagonal_solve(*alike(lower, self.main, upper, b))
        return solve_columns(solve, x, axis, len(self.batch))

    def known_determinant(self) -> Any:
        """The recurrence of the leading minors, which scales rows and minors to about one."""
        lower, upper = padded(self.lower, -1, 1, 0), padded(self.upper, -1, 0, 1)
        rows = as_inexact(jnp.stack([lower, self.main, upper], -1))
        sizes = _scale(rows)
        lower, main, upper = jnp.moveaxis(rows / sizes[..., None], -1, 0)

        def step(minors: Any, row: Any) -> Any:
            last, before = minors
            d, squared = row
            both = jnp.stack([d * last - squared * before, last], -1)
            size = _scale(both)
            both = both / size[..., None]
            return (both[..., 0], both[..., 1]), size

        squared = lower * padded(upper[..., :-1], -1, 1, 0)
        one = jnp.ones(self.batch, rows.dtype)
        (last, _), more = scan(
            step,
            (one, jnp.zeros_like(one)),
            (jnp.moveaxis(main, -1, 0), jnp.moveaxis(squared, -1, 0)),
            unroll=4 if are_known(self.shape[-1]) else 1,
        )
        sizes = Determinant.of(sizes).times(Determinant.of(jnp.moveaxis(more, 0, -1)))
        return Determinant.of(last[..., None]).times(sizes)

    def known_cholesky(self) -> Any:
        return self.as_banded().known_cholesky()

    def known_triangle(self, lower: bool, unit_diagonal: bool) -> Any:
        return self.as_banded().known_triangle(lower, unit_diagonal)


# --- diagonals, and where they go -----------------------------------------------------


def _sheared(x: Any) -> Any:
    """Move row r by r to the right: from (n, m) to (n, n + m - 1), filled with zeros.

    No index is needed. An array with one more column than the result, read row by row,
    begins each row one place further right than the result does.
    """
    *batch, n, m = x.shape
    flat = padded(x, -1, 0, n).reshape(*batch, n * (n + m))
    width = max(n + m - 1, 0)
    return flat[..., : n * width].reshape(*batch, n, width)


def _unsheared(x: Any) -> Any:
    """Move row r by r to the left: from (n, n + m - 1) to (n, m)."""
    *batch, n, width = x.shape
    flat = padded(x.reshape(*batch, n * width), -1, 0, n)
    return flat.reshape(*batch, n, width + 1)[..., : width + 1 - n]


def _bands_of(dense: Any, lower: int, upper: int, name: str) -> Any:
    """The inverse of `Banded.materialise`."""
    check_square(name, "x", dense)
    columns = padded(jnp.swapaxes(dense, -1, -2), -1, upper, lower)
    return jnp.swapaxes(_unsheared(columns), -1, -2)


# One operation after the other would take several times as long, and more memory.
_bands_at_once = jax.jit(_bands_of, static_argnums=(1, 2, 3))


def _check_zero_elsewhere(x: Any, of_dense: Callable[[Any], Any]) -> None:
    if differs(x, of_dense):
        name = type(of_dense(x)).__name__
        raise ValueError(f"{name}: x is not zero outside of its diagonals.")


def _three(bands: Any) -> tuple[Any, Any, Any]:
    """The fields of a `Tridiagonal`."""
    return bands[..., 2, :-1], bands[..., 1, :], bands[..., 0, 1:]


def _banded_product(v: Banded, w: Banded) -> Any:
    r""":math:`C_{ij} = \sum_m A_{im} B_{mj}`, one diagonal of B after the other."""
    n = v.shape[-1]
    lower, upper = min(v.lower + w.lower, n - 1), min(v.upper + w.upper, n - 1)
    if n == 0 or lower + upper + 1 > n:
        return NotImplemented
    a, b = (x._inside().astype(dtype_of_sums(x.dtype)) for x in (v, w))
    terms = []
    for row in range(b.shape[-2]):
        # The column of A that meets column j of B is j + shift.
        shift = row - w.upper
        if abs(shift) < n:
            term = padded(a, -1, -shift, shift) * b[..., row : row + 1, :]
            terms.append(padded(term, -2, row, b.shape[-2] - 1 - row))
    bands = functools.reduce(jnp.add, terms).astype(v.dtype)
    return Banded(bands, v.lower + w.lower, v.upper + w.upper).resized(lower, upper)


def _scale(x: Any) -> Any:
    """A power of two below the largest magnitude along the last axis, a constant divisor.

    Rounding to a number without a mantissa is one cheap operation, which a long loop needs.
    Half of the magnitude cannot be rounded to infinity. Neither the divisor nor its inverse
    leaves the range of the dtype; it is one for zero, infinity and NaN.
    """
    half = lax.stop_gradient(abs(x).max(-1)) / 2
    kind = jnp.finfo(half.dtype)
    size = lax.reduce_precision(half, exponent_bits=kind.nexp, mantissa_bits=0)
    least = 2.0**kind.minexp
    return jnp.where(jnp.isfinite(size) & (size > 0), jnp.clip(size, least, 1 / least), 1)


# --- elimination ------------------------------------------------------------------------


def _windows(rows: Any, lower: int) -> tuple[Any, Any]:
    """The first window of a loop over columns, and the row that enters at each step.

    At step j the window has rows j to j + lower, and as many columns from j on as a row has
    numbers. The row that enters is the last row of the window. Its first number is in
    column j.
    """
    k = rows.shape[1]
    rows = jnp.pad(rows, ((0, lower), (0, lower)))
    first = jnp.arange(lower)[:, None]
    begin = jnp.take_along_axis(rows[:lower], jnp.arange(k)[None] + lower - first, axis=1)
    return begin, rows[lower:, :k]


def _eliminated(rows: Any, b: Any, lower: int) -> tuple[Any, Any, Any]:
    """The rows of U from the diagonal on, the right side, and the signs of exchanges."""

    def step(above: Any, entering: Any) -> Any:
        a, b = (
            jnp.concatenate([x, new[None]]) for x, new in zip(above, entering, strict=True)
        )
        pivot = jnp.argmax(abs(a[:, 0]))
        order = jnp.arange(lower + 1).at[0].set(pivot).at[pivot].set(0)
        a, b = a[order], b[order]
        # If all of the column is zero there is nothing to eliminate.
        factors = a[1:, :1] / jnp.where(a[0, 0] == 0, 1, a[0, 0])
        below = jnp.pad((a[1:] - factors * a[:1])[:, 1:], ((0, 0), (0, 1)))
        sign = jnp.where(pivot == 0, 1, -1)
        return (below, b[1:] - factors * b[:1]), (a[0], b[0], sign)

    begin, entering = _windows(rows, lower)
    b = jnp.pad(b, ((0, lower), (0, 0)))
    _, eliminated = scan(step, (begin, b[:lower]), (entering, b[lower:]))
    return eliminated


def _solve_rows(rows: Any, b: Any, lower: int) -> Any:
    upper, b = (rows, b) if lower == 0 else _eliminated(rows, b, lower)[:2]

    def step(later: Any, row: Any) -> Any:
        u, y = row
        x = (y - (u[1:, None] * later).sum(0)) / u[0]
        return jnp.concatenate([x[None], later])[:-1], x

    none = jnp.zeros((rows.shape[1] - 1, b.shape[1]), b.dtype)
    return scan(step, none, (upper, b), reverse=True)[1]


def _signed_pivots(rows: Any, lower: int) -> Any:
    upper, _, signs = _eliminated(rows, rows[:, :0], lower)
    return upper[:, 0] * signs


def _cholesky_rows(rows: Any) -> Any:
    """The columns of the factor, from the diagonal on."""

    def step(above: Any, entering: Any) -> Any:
        a = jnp.concatenate([above, entering[None]])
        # The imaginary part of the diagonal is ignored, as in LAPACK.
        column = a[:, 0].at[0].set(a[0, 0].real) / jnp.sqrt(a[0, 0].real)
        below = a[1:, 1:] - column[1:, None] * column[None, 1:].conj()
        return jnp.pad(below, ((0, 0), (0, 1))), column

    return scan(step, *_windows(rows, rows.shape[1] - 1))[1]

"""Products with one triangle of an array, without a copy of the array.

The entries outside the triangle may be anything, even NaN. To set them to zero means, for a
compiler for a CPU, to write a second array of the whole size and to read that. With few
columns this takes several times as long as the product. So a large array is read in groups of
rows, each no wider than the triangle, and with few columns in blocks that fit the
processor's cache.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Inexact

import jaxrewrite

from .._base.loops import scan
from .._base.placement import is_manual, may_be_split
from .._base.structured import placed_as


class Triangle(NamedTuple):
    """Which entries of an array count, and whether they are those of the transpose.

    ``offset`` is that of `jax.numpy.tril` and `jax.numpy.triu`: 0, or one that leaves out
    the diagonal.
    """

    lower: bool
    offset: int = 0
    flipped: bool = False

    def of(self, a: Any) -> Any:
        """The array with zeros outside the triangle."""
        return (jnp.tril if self.lower else jnp.triu)(a, self.offset)


def multiply(
    a: Inexact[Array, "n n"], x: Inexact[Array, "n m"], precision: Any, triangle: Triangle
) -> Inexact[Array, "n m"] | Any:
    """The product of one triangle of ``a``, or of its transpose, with columns.

    NotImplemented if that of an array with zeros outside the triangle is as fast.
    """
    is_looped = _is_looped(a, x, _SOME if triangle.flipped else 1, _ROWS)
    if is_looped is None:
        return NotImplemented

    def dense(a: Any, x: Any) -> Any:
        return _dense(a, x, triangle=triangle, precision=precision)

    def in_groups(a: Any, x: Any) -> Any:
        return _in_groups(a, x, (triangle, precision, is_looped))

    return lax.platform_dependent(a, x, cpu=in_groups, default=dense)


def multiply_symmetric(
    a: Inexact[Array, "n n"], x: Inexact[Array, "n m"], precision: Any
) -> Inexact[Array, "n m"] | Any:
    """The product of the symmetric matrix in the lower triangle of ``a`` with columns.

    NotImplemented if that of the mirrored array is as fast.
    """
    is_looped = _is_looped(a, x, _FEW, _ROWS_OF_BOTH)
    if is_looped is None or x.shape[1] > _SOME:
        return NotImplemented

    def dense(a: Any, x: Any) -> Any:
        return _product(mirrored(a), x, precision)

    def in_groups(a: Any, x: Any) -> Any:
        return _both_in_groups(a, x, (precision, is_looped))

    return lax.platform_dependent(a, x, cpu=in_groups, default=dense)


def mirrored(a: Inexact[Array, "*batch n n"]) -> Any:
    """The symmetric matrix in the lower triangle of an array."""
    lower = jnp.broadcast_to(jnp.tri(a.shape[-1], dtype=bool), a.shape)
    # JAX does not choose among several ways to split the result over explicit axes.
    place = lambda x: placed_as(x, jax.typeof(a))
    return jnp.where(place(lower), a, place(jnp.swapaxes(a, -1, -2)))


def on_columns(
    multiply: Callable[..., Any], a: Any, x: Any, axis: int, precision: Any
) -> Any:
    """Multiply along an axis of an array of any rank, or say NotImplemented.

    That is also for stacks of matrices, for values, and for arrays of two dtypes.
    """
    is_plain = not isinstance(a, jaxrewrite.Value) and not isinstance(x, jaxrewrite.Value)
    if not is_plain or a.ndim > 2 or a.dtype != x.dtype:
        return NotImplemented
    moved = jnp.moveaxis(x, axis, 0)
    columns = moved.reshape(x.shape[axis], math.prod(moved.shape[1:]))
    y = multiply(a, columns, precision)
    if y is NotImplemented:
        return NotImplemented
    return jnp.moveaxis(y.reshape(moved.shape), 0, axis)


# From so many rows on, a copy of the whole array is slow: of one triangle with one column or with
# more, and of both triangles with more than one.
_ROWS_WITH_ONE, _ROWS, _ROWS_OF_BOTH = 512, 768, 1024
# Fewer rows make fewer groups, so that a group has several blocks.
_GROUPS, _ROWS_OF_GROUP = 8, 256
# A loop over blocks of so many rows is faster than a product with the whole group, if the group
# does not fit the cache, for some columns; else for few of them, or for one.
_BLOCK, _ROWS_OF_LARGE, _SOME, _FEW = 128, 4096, 64, 16


def _is_looped(a: Any, x: Any, few: int, least: int) -> bool | None:
    """Whether to loop over the blocks of a group, with up to ``few`` columns for any array.

    ``None`` if it is as fast to make zeros of the other entries, for fewer rows than ``least``.
    """
    n, columns = x.shape
    is_known = isinstance(n, int) and isinstance(columns, int)
    if not is_known or not columns or may_be_split() or is_manual():
        return None
    if a.dtype.itemsize < 4:
        return None  # Sums of 16-bit numbers would be rounded once more.
    if n < (_ROWS_WITH_ONE if columns == 1 else least):
        return None
    return columns <= (few if n < _ROWS_OF_LARGE else _SOME)


def _product(a: Any, x: Any, precision: Any) -> Any:
    return jnp.matmul(a, x, precision=precision)


def _dense(a: Any, x: Any, *, triangle: Triangle, precision: Any) -> Any:
    if triangle.flipped:
        return jnp.swapaxes(_across(triangle.of(a), x, precision), 0, 1)
    return _product(triangle.of(a), x, precision)


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def _in_groups(a: Any, x: Any, how: Any) -> Any:
    triangle, precision, is_looped = how
    n, m = x.shape
    parts = []
    for start, end in _groups(n):
        columns = slice(0, end) if triangle.lower else slice(start, n)
        size = _block(end - start) if is_looped else end - start
        multiply = functools.partial(_block_product, a, x, columns, size, how)
        starts = jnp.arange(start, end, size)
        if not triangle.flipped:
            y = lax.map(multiply, starts) if size < end - start else multiply(start)
            parts.append(y.reshape(end - start, m))
        elif size == end - start:
            parts.append(_padded(multiply(start), columns, n))
        else:
            zeros = jnp.zeros((m, columns.stop - columns.start), x.dtype)
            add = lambda y, at, multiply=multiply: (y + multiply(at), None)
            parts.append(_padded(scan(add, zeros, starts)[0], columns, n))
    return functools.reduce(jnp.add, parts) if triangle.flipped else jnp.concatenate(parts)


@functools.partial(_in_groups.defjvp, symbolic_zeros=True)
def _(how: Any, primals: Any, tangents: Any) -> Any:
    """The derivative by the array is a product of dense arrays, which no loop has to gather."""
    tangent_product = functools.partial(_dense, triangle=how[0], precision=how[1])
    return with_tangent(
        functools.partial(_in_groups, how=how), tangent_product, primals, tangents
    )


def with_tangent(
    product: Callable[..., Any],
    tangent_product: Callable[..., Any],
    primals: Any,
    tangents: Any,
) -> tuple[Any, Any]:
    """A product of two arrays, and its tangent, where tangents may be symbolic zeros.

    ``tangent_product`` is the same product, in the form for a tangent of the first array.
    """
    (a, x), (da, dx) = primals, tangents
    y = product(a, x)
    terms = []
    if not isinstance(dx, jax.custom_derivatives.SymbolicZero):
        terms.append(product(a, dx))
    if not isinstance(da, jax.custom_derivatives.SymbolicZero):
        terms.append(tangent_product(da, x))
    return y, functools.reduce(jnp.add, terms) if terms else jnp.zeros_like(y)


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def _both_in_groups(a: Any, x: Any, how: Any) -> Any:
    """The product of the symmetric matrix in the lower triangle of ``a`` with columns.

    Each block below the diagonal is read once, for its rows and for its columns.
    """
    precision, is_looped = how
    n, m = x.shape
    triangle = Triangle(lower=True, offset=-1)
    rows, total = [], jnp.diagonal(a)[:, None] * x
    for start, end in _groups(n):
        columns = slice(0, end)
        size = _block(end - start) if is_looped else end - start

        def step(across: Any, at: Any, columns: slice = columns, size: int = size) -> Any:
            kept = _kept(a, columns, size, triangle, at)
            x_of_rows = lax.dynamic_slice_in_dim(x, at, size)
            across += _across(kept, x_of_rows, precision)
            return across, _product(kept, x[columns], precision)

        across = jnp.zeros((m, end), x.dtype)
        if size < end - start:
            across, along = scan(step, across, jnp.arange(start, end, size))
        else:
            across, along = step(across, start)
        rows.append(along.reshape(end - start, m))
        total += _padded(across, columns, n)
    return total + jnp.concatenate(rows)


@functools.partial(_both_in_groups.defjvp, symbolic_zeros=True)
def _(how: Any, primals: Any, tangents: Any) -> Any:
    tangent_product = lambda da, x: _product(mirrored(da), x, how[0])
    return with_tangent(
        functools.partial(_both_in_groups, how=how), tangent_product, primals, tangents
    )


def _groups(n: int) -> Any:
    """The first and the last row of each group; all but the last are of whole blocks."""
    groups = min(_GROUPS, max(n // _ROWS_OF_GROUP, 1))
    ends = [*(n * i // groups // _BLOCK * _BLOCK for i in range(groups)), n]
    return zip(ends, ends[1:], strict=False)


def _block(rows: int) -> int:
    """The number of rows of a block, or all if no number near the best divides them."""
    sizes = range(min(_BLOCK, rows), _BLOCK // 4, -1)
    return next((size for size in sizes if rows % size == 0), rows)


def _block_product(a: Any, x: Any, columns: slice, size: int, how: Any, start: Any) -> Any:
    """The product with some rows of the array, or what they add to that of the transpose."""
    triangle, precision, _ = how
    kept = _kept(a, columns, size, triangle, start)
    if triangle.flipped:
        return _across(kept, lax.dynamic_slice_in_dim(x, start, size), precision)
    return _product(kept, x[columns], precision)


def _across(kept: Any, x_of_rows: Any, precision: Any) -> Any:
    """The transpose of what some rows add to a product of the transpose.

    With few columns it takes a fraction of the time of what it is the transpose of.
    """
    return _product(jnp.swapaxes(x_of_rows, 0, 1), kept, precision)


def _kept(a: Any, columns: slice, size: int, triangle: Triangle, start: Any) -> Any:
    """Some rows of the array, with zeros outside the triangle."""
    width = columns.stop - columns.start
    block = lax.dynamic_slice(a, (start, columns.start), (size, width))
    i, j = start + jnp.arange(size)[:, None], columns.start + jnp.arange(width)
    difference = j - i - triangle.offset
    return jnp.where(difference <= 0 if triangle.lower else difference >= 0, block, 0)


def _padded(y: Any, rows: slice, n: int) -> Any:
    """Columns for all rows, of the transpose of those for some rows."""
    return jnp.pad(jnp.swapaxes(y, 0, 1), [(rows.start, n - rows.stop), (0, 0)])

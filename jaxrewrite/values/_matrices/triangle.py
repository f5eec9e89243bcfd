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

from .._base.placement import is_manual, may_be_split


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
) -> Inexact[Array, "n m"]:
    """The product of one triangle of ``a``, or of its transpose, with columns."""
    how: dict[str, Any] = {"triangle": triangle, "precision": precision}
    whole: Callable[..., Any] = functools.partial(_whole, **how)
    way = _way(a, x)
    if way is None:
        return whole(a, x)
    return lax.platform_dependent(a, x, cpu=functools.partial(way, **how), default=whole)


def multiply_symmetric(
    a: Inexact[Array, "n n"], x: Inexact[Array, "n m"], precision: Any
) -> Inexact[Array, "n m"]:
    """The product of the symmetric matrix in the lower triangle of ``a`` with columns."""
    triangles = Triangle(lower=True), Triangle(lower=True, offset=-1, flipped=True)
    way = _way(a, x)

    def whole(a: Any, x: Any) -> Any:
        return _product(mirrored(a), x, precision)

    def by_triangles(a: Any, x: Any) -> Any:
        terms = [way(a, x, triangle=t, precision=precision) for t in triangles]
        return functools.reduce(jnp.add, terms)

    # Sums of 16-bit numbers would be rounded once more.
    if way is None or x.shape[1] > _SOME or a.dtype.itemsize < 4:
        return whole(a, x)
    return lax.platform_dependent(a, x, cpu=by_triangles, default=whole)


def mirrored(a: Inexact[Array, "*batch n n"]) -> Any:
    """The symmetric matrix in the lower triangle of an array."""
    lower = jnp.tri(a.shape[-1], dtype=bool)
    return jnp.where(lower, a, jnp.swapaxes(a, -1, -2))


def on_columns(
    multiply: Callable[..., Any], a: Any, x: Any, axis: int, precision: Any
) -> Any:
    """Multiply along an axis of an array of any rank, or say NotImplemented.

    That is for stacks of matrices, for values, and for arrays of two dtypes.
    """
    is_plain = not isinstance(a, jaxrewrite.Value) and not isinstance(x, jaxrewrite.Value)
    if not is_plain or a.ndim > 2 or a.dtype != x.dtype:
        return NotImplemented
    moved = jnp.moveaxis(x, axis, 0)
    columns = moved.reshape(x.shape[axis], math.prod(moved.shape[1:]))
    return jnp.moveaxis(multiply(a, columns, precision).reshape(moved.shape), 0, axis)


# From so many rows on, copies of an array are slow, because it does not fit the cache. With one
# column they take longer than the product, and are slow from fewer rows on.
_ROWS, _ROWS_WITH_ONE = 2048, 512
# Fewer rows make fewer groups, so that a group has several blocks.
_GROUPS, _ROWS_OF_GROUP = 8, 256
# With up to so many columns, a loop over blocks of so many rows is faster.
_SOME, _BLOCK = 64, 128


def _way(a: Any, x: Any) -> Any:
    """The fastest way on a CPU, or ``None`` if that is to make zeros of the other entries."""
    n, columns = x.shape
    is_known = isinstance(n, int) and isinstance(columns, int)
    least = _ROWS_WITH_ONE if columns == 1 else _ROWS
    if not is_known or n < least or not columns or may_be_split() or is_manual():
        return None
    return functools.partial(_in_groups, is_looped=columns <= _SOME)


def _product(a: Any, x: Any, precision: Any, flipped: bool = False) -> Any:
    """The products of a stack of arrays, or of their transposes, with a stack of columns."""
    stack = tuple(range(a.ndim - 2))
    summed = a.ndim - 2 if flipped else a.ndim - 1
    numbers = ((summed,), (a.ndim - 2,)), (stack, stack)
    return lax.dot_general(a, x, numbers, precision=precision)


def _whole(a: Any, x: Any, *, triangle: Triangle, precision: Any) -> Any:
    return _product(triangle.of(a), x, precision, triangle.flipped)


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def _in_groups_with(a: Any, x: Any, how: Any) -> Any:
    triangle, precision, is_looped = how
    n, m = x.shape
    groups = min(_GROUPS, max(n // _ROWS_OF_GROUP, 1))
    # All groups but the last one have a whole number of blocks.
    ends = [*(n * i // groups // _BLOCK * _BLOCK for i in range(groups)), n]
    parts = []
    for start, end in zip(ends, ends[1:], strict=False):
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
            zeros = jnp.zeros((columns.stop - columns.start, m), x.dtype)
            add = lambda y, at, multiply=multiply: (y + multiply(at), None)
            parts.append(_padded(lax.scan(add, zeros, starts)[0], columns, n))
    return functools.reduce(jnp.add, parts) if triangle.flipped else jnp.concatenate(parts)


@functools.partial(_in_groups_with.defjvp, symbolic_zeros=True)
def _(how: Any, primals: Any, tangents: Any) -> Any:
    """The derivative by the array is a product of the whole, which no loop has to gather."""
    (a, x), (da, dx) = primals, tangents
    y = _in_groups_with(a, x, how)
    terms = []
    if not isinstance(dx, jax.custom_derivatives.SymbolicZero):
        terms.append(_in_groups_with(a, dx, how))
    if not isinstance(da, jax.custom_derivatives.SymbolicZero):
        terms.append(_whole(da, x, triangle=how[0], precision=how[1]))
    return y, functools.reduce(jnp.add, terms) if terms else jnp.zeros_like(y)


def _in_groups(
    a: Any, x: Any, *, triangle: Triangle, precision: Any, is_looped: bool
) -> Any:
    return _in_groups_with(a, x, (triangle, precision, is_looped))


def _block(rows: int) -> int:
    """The number of rows of a block, or all if no number near the best divides them."""
    sizes = range(min(_BLOCK, rows), _BLOCK // 4, -1)
    return next((size for size in sizes if rows % size == 0), rows)


def _block_product(a: Any, x: Any, columns: slice, size: int, how: Any, start: Any) -> Any:
    """The product with some rows of the array, or what they add to that of the transpose."""
    triangle, precision, _ = how
    width = columns.stop - columns.start
    block = lax.dynamic_slice(a, (start, columns.start), (size, width))
    i, j = start + jnp.arange(size)[:, None], columns.start + jnp.arange(width)
    difference = j - i - triangle.offset
    kept = jnp.where(difference <= 0 if triangle.lower else difference >= 0, block, 0)
    if triangle.flipped:
        return _product(kept, lax.dynamic_slice_in_dim(x, start, size), precision, True)
    return _product(kept, x[columns], precision)


def _padded(y: Any, rows: slice, n: int) -> Any:
    return jnp.pad(y, [(rows.start, n - rows.stop), (0, 0)])

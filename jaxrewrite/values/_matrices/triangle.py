"""Products with one triangle of an array, without a copy of the array.

The entries outside the triangle may be anything, even NaN. To set them to zero means, for a
compiler for a CPU, to write a second array of the whole size and to read that. With few
columns this takes several times as long as the product. Two other ways read the array where
it is:

* A product with the array as it is held splits its rows into blocks. Each block is
  multiplied with its own copy of the other operand, with zeros for the rows that meet
  entries outside the triangle. A result without NaN is right, since each of these entries
  then was finite, and gave zero. A result with NaN is computed again in the other way.
* A product with the transpose splits the summed rows into blocks, and drops what entries
  outside the triangle contribute to each sum before the blocks are added.

Each is the derivative of the other.

With many columns it is best to copy strips of the array, each no wider than the triangle.
``bench/structured.py`` measures all of them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Inexact

import jaxrewrite

from .._base.placement import may_be_split


class Triangle(NamedTuple):
    """Which entries of an array count, and whether they are those of the transpose.

    ``offset`` is that of `jax.numpy.tril` and `jax.numpy.triu`: 0, or one that leaves out
    the diagonal.
    """

    lower: bool
    offset: int = 0
    flipped: bool = False

    def of(self, a: Any, offset: int = 0) -> Any:
        """The array with zeros outside the triangle; ``offset`` is that of the part ``a``."""
        cut = jnp.tril if self.lower else jnp.triu
        return cut(a, self.offset + offset)


def multiply(
    a: Inexact[Array, "n n"], x: Inexact[Array, "n m"], precision: Any, triangle: Triangle
) -> Inexact[Array, "n m"]:
    """The product of one triangle of ``a``, or of its transpose, with columns."""
    how = {"triangle": triangle, "precision": precision}
    whole = functools.partial(_whole, **how)
    way = _way(a, x, triangle)
    if way is None:
        return whole(a, x)
    return lax.platform_dependent(a, x, cpu=functools.partial(way, **how), default=whole)


def multiply_symmetric(
    a: Inexact[Array, "n n"], x: Inexact[Array, "n m"], precision: Any
) -> Inexact[Array, "n m"]:
    """The product of the symmetric matrix in the lower triangle of ``a`` with columns."""
    triangles = Triangle(lower=True), Triangle(lower=True, offset=-1, flipped=True)
    ways = [_way(a, x, triangle) for triangle in triangles]

    def whole(a: Any, x: Any) -> Any:
        return _product(mirrored(a), x, precision)

    def by_triangles(a: Any, x: Any) -> Any:
        pairs = zip(ways, triangles, strict=True)
        terms = [way(a, x, triangle=t, precision=precision) for way, t in pairs]
        return functools.reduce(jnp.add, terms)

    if None in ways or x.shape[1] > _FEW:
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


# From so many rows on, copies of an array are slow, because it does not fit the cache.
_ROWS_OF_FEW_COLUMNS, _ROWS = 1024, 2048
_FEW, _SOME = 8, 64


def _way(a: Any, x: Any, triangle: Triangle) -> Any:
    """The fastest way on a CPU, or ``None`` if that is to make zeros of the other entries."""
    n, columns = x.shape
    # Sums of 16-bit numbers would be rounded once more.
    is_wide = a.dtype.name in ("float32", "float64", "complex64", "complex128")
    if not is_wide or not isinstance(columns, int) or columns == 0 or may_be_split():
        return None
    few, some = (1, 1) if triangle.flipped else (_FEW, _SOME)
    if n < (_ROWS_OF_FEW_COLUMNS if columns <= few else _ROWS):
        return None
    if columns <= some:
        blocks = _blocks(n, 32 if columns <= _FEW and n > _ROWS else 8)
        if blocks is not None:
            return functools.partial(_in_blocks, blocks=blocks)
    return _in_strips


def _blocks(n: int, wanted: int) -> int | None:
    """A number of equal blocks, not far from the wanted one."""
    return next((k for k in range(wanted, 3 * wanted) if n % k == 0), None)


def _product(a: Any, x: Any, precision: Any, flipped: bool = False) -> Any:
    """The products of a stack of arrays, or of their transposes, with a stack of columns."""
    stack = tuple(range(a.ndim - 2))
    summed = a.ndim - 2 if flipped else a.ndim - 1
    numbers = ((summed,), (a.ndim - 2,)), (stack, stack)
    return lax.dot_general(a, x, numbers, precision=precision)


def _whole(a: Any, x: Any, *, triangle: Triangle, precision: Any) -> Any:
    return _product(triangle.of(a), x, precision, triangle.flipped)


# --- in strips --------------------------------------------------------------------------

_STRIPS = 8


def _in_strips(a: Any, x: Any, *, triangle: Triangle, precision: Any) -> Any:
    """One block of rows of the result after the other, each from the entries that count."""
    n = len(a)
    ends = [n * i // _STRIPS for i in range(_STRIPS + 1)]
    parts = []
    for start, end in zip(ends, ends[1:], strict=False):
        own = slice(start, end)
        # The matrix is upper triangular if its transpose is lower triangular.
        is_lower = triangle.lower != triangle.flipped
        met = slice(0, end) if is_lower else slice(start, n)
        rows, columns = (met, own) if triangle.flipped else (own, met)
        part = triangle.of(a[rows, columns], rows.start - columns.start)
        parts.append(_product(part, x[met], precision, triangle.flipped))
    return jnp.concatenate(parts)


# --- in blocks --------------------------------------------------------------------------


def _on_diagonal(a: Any, x: Any, triangle: Triangle, precision: Any, blocks: int) -> Any:
    """The product of the blocks on the diagonal, which the triangle cuts."""
    n, m = x.shape
    size = n // blocks
    starts = range(0, n, size)
    cut = [triangle.of(a[i : i + size, i : i + size]) for i in starts]
    columns = x.reshape(blocks, size, m)
    return _product(jnp.stack(cut), columns, precision, triangle.flipped).reshape(n, m)


def _counts(n: int, blocks: int, lower: bool) -> Bool[Array, "blocks n 1"]:
    """Which columns of each block of rows are in the triangle and not in a block on the diagonal."""
    block, of_column = jnp.arange(blocks)[:, None], jnp.arange(n) // (n // blocks)
    return (of_column < block if lower else of_column > block)[..., None]


def _split(
    a: Any, x: Any, *, triangle: Triangle, precision: Any, blocks: int
) -> tuple[Any, Any]:
    """The product, and whether an entry outside the triangle may not be finite.

    If one may not be, then the product with the array as it is held may be wrong, and so
    may the derivative of the other one, which is such a product.
    """
    n, m = x.shape
    counts = _counts(n, blocks, triangle.lower)
    rows = a.reshape(blocks, n // blocks, n)
    on_diagonal = _on_diagonal(a, x, triangle, precision, blocks)
    if triangle.flipped:
        parts = _product(rows, x.reshape(blocks, -1, m), precision, flipped=True)
        y = jnp.where(counts, parts, 0).sum(0) + on_diagonal
        return y, _any(~jnp.isfinite(parts))
    y = _product(rows, jnp.where(counts, x, 0), precision).reshape(n, m) + on_diagonal
    return y, _any(jnp.isnan(y))


def _in_blocks(a: Any, x: Any, **how: Any) -> Any:
    return _guarded(a, x, tuple(how.items()))[0]


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def _guarded(a: Any, x: Any, how: Any) -> tuple[Any, Any]:
    """The product, computed again if it may be wrong, and whether it was in doubt."""
    y, in_doubt = _split(a, x, **dict(how))
    if not dict(how)["triangle"].flipped:
        whole = functools.partial(_whole, **_without_blocks(how))
        y = lax.cond(in_doubt, whole, lambda *_: y, a, x)
    return y, in_doubt


@functools.partial(_guarded.defjvp, symbolic_zeros=True)
def _(how: Any, primals: Any, tangents: Any) -> Any:
    """What is known of the array holds for the derivative by ``x``, too.

    The array's own tangent may have anything outside the triangle.
    """
    (a, x), (da, dx) = primals, tangents
    y, in_doubt = _guarded(a, x, how)
    whole = functools.partial(_whole, **_without_blocks(how))
    terms = []
    if not isinstance(dx, jax.custom_derivatives.SymbolicZero):
        split = lambda a, dx: _split(a, dx, **dict(how))[0]
        terms.append(lax.cond(in_doubt, whole, split, a, dx))
    if not isinstance(da, jax.custom_derivatives.SymbolicZero):
        terms.append(whole(da, x))
    tangent = functools.reduce(jnp.add, terms) if terms else jnp.zeros_like(y)
    return (y, in_doubt), (tangent, np.zeros((), jax.dtypes.float0))


def _without_blocks(how: Any) -> dict[str, Any]:
    return {name: option for name, option in how if name != "blocks"}


@jax.custom_batching.custom_vmap
def _any(x: Any) -> Any:
    """Whether any is true. A batch has one answer, so that a `jax.lax.cond` stays one."""
    return x.any()


@_any.def_vmap
def _(size: int, is_batched: Any, x: Any) -> Any:
    return _any(x), False

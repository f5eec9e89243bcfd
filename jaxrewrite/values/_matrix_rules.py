"""The rules that hold of all matrices with structure.

Beside `_matrix`, which says what a matrix is, because what two of them make is often one
of the types that build on that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from jaxrewrite import ArrayValue, bind, primitives, register, same_structure

from ._array import inexact, is_number
from ._contract import Labels, labels, transpose
from ._diagonal import Diagonal
from ._matrix import Matrix, closed_sum, negated, swapped
from ._order import order
from ._product import product
from ._scaled import Scaled
from ._sum import Sum


# --- products ---------------------------------------------------------------------------


def _product(v: Matrix, vs: Labels, x: Any, xs: Labels, out: Labels, params: Any) -> Any:
    """``dot_general`` of a matrix and an array, in whichever order."""
    batch, (row, column) = vs[:-2], vs[-2:]
    shared = [label for label in (row, column) if label in xs]
    if len(shared) != 1:
        return NotImplemented
    (summed,) = shared
    if summed in out:
        return NotImplemented  # of which the rows, say, are a batch
    free = row if summed == column else column
    operator = v if summed == column else v.transposed()
    rest = tuple(label for label in xs if label not in batch)
    x = transpose(x, xs, (*(label for label in batch if label in xs), *rest))
    sizes = x.shape[x.ndim - len(rest) :]
    ones = [n if label in xs else 1 for label, n in zip(batch, v.batch, strict=True)]
    x = jnp.broadcast_to(x.reshape(*ones, *sizes), (*v.batch, *sizes))
    y = operator.apply(x, len(batch) + rest.index(summed), params["precision"])
    own = (*batch, *(free if label == summed else label for label in rest))
    dtype = params["preferred_element_type"] or jnp.result_type(x.dtype, v.dtype)
    y = y.sum(tuple(i for i, label in enumerate(own) if label not in out))
    return transpose(y, tuple(label for label in own if label in out), out).astype(dtype)


@register("dot_general")
def _(v: Matrix, x: Array, *, dimension_numbers: Any, **params: Any) -> Any:
    vs, xs, out = labels(dimension_numbers, v.ndim, jnp.ndim(x))
    return _product(v, vs, x, xs, out, params)


@register("dot_general")
def _(x: Array, v: Matrix, *, dimension_numbers: Any, **params: Any) -> Any:
    xs, vs, out = labels(dimension_numbers, jnp.ndim(x), v.ndim)
    return _product(v, vs, x, xs, out, params)


def _standard(x: Any, y: Any, dimension_numbers: Any) -> Any:
    """Both operands as those of ``x @ y``, or ``None`` if it is no such product."""
    (xc, yc), (xb, yb) = dimension_numbers
    batch = tuple(range(x.ndim - 2))
    if x.ndim != y.ndim or (tuple(xb), tuple(yb)) != (batch, batch):
        return None
    if len(xc) != 1 or min(*xc, *yc) < len(batch):
        return None
    x = x if xc[0] == x.ndim - 1 else swapped(x)
    y = y if yc[0] == y.ndim - 2 else swapped(y)
    return x, y


def _product_of_values(x: Any, y: Any, *, dimension_numbers: Any, **params: Any) -> Any:
    standard = _standard(x, y, dimension_numbers)
    dtype = jnp.result_type(x.dtype, y.dtype)
    if standard is None or params["preferred_element_type"] not in (None, dtype):
        return NotImplemented
    if x.dtype != y.dtype:
        return NotImplemented
    return product(*standard)


@register("dot_general")
def _(x: Matrix, y: Matrix, **params: Any) -> Any:
    return _product_of_values(x, y, **params)


@register("dot_general", precedence=order("Matrix"))
def _(x: Matrix, y: ArrayValue, **params: Any) -> Any:
    return _product_of_values(x, y, **params)


@register("dot_general", precedence=order("Matrix"))
def _(x: ArrayValue, y: Matrix, **params: Any) -> Any:
    return _product_of_values(x, y, **params)


# --- sums -------------------------------------------------------------------------------


@register(*primitives.ADDITIVE)
def _(x: Matrix, y: Matrix, *, primitive: Any, **params: Any) -> Any:
    return _sum_of_values(x, y, primitive)


@register(*primitives.ADDITIVE, precedence=order("Matrix"))
def _(x: Matrix, y: ArrayValue, *, primitive: Any, **params: Any) -> Any:
    return _sum_of_values(x, y, primitive)


@register(*primitives.ADDITIVE, precedence=order("Matrix"))
def _(x: ArrayValue, y: Matrix, *, primitive: Any, **params: Any) -> Any:
    return _sum_of_values(x, y, primitive)


def _sum_of_values(x: Any, y: Any, primitive: Any) -> Any:
    if x.shape != y.shape or x.dtype != y.dtype:
        return NotImplemented
    if primitive.name == "sub":
        y = negated(y)
    closed = closed_sum(x, y)
    return Sum((x, y)) if closed is NotImplemented else closed


@register(*primitives.ADDITIVE)
def _(v: Matrix, x: Array, *, primitive: Any, **params: Any) -> Any:
    return _sum_with_array(v, x, primitive.name, False)


@register(*primitives.ADDITIVE)
def _(x: Array, v: Matrix, *, primitive: Any, **params: Any) -> Any:
    return _sum_with_array(v, x, primitive.name, True)


def _sum_with_array(v: Matrix, x: Any, name: str, reflected: bool) -> Any:
    """Where an array of this size is there already, its sum with entries is one as well."""
    shape = jnp.broadcast_shapes(v.shape, jnp.shape(x))
    if shape != v.shape:
        return NotImplemented
    if is_number(x):
        return _with_number(v, x, name, reflected)
    if v.entries is not None:
        if jnp.shape(x) != v.shape:
            return NotImplemented
        dense = v.materialise()
        if name != "sub":
            return dense + x
        return x - dense if reflected else dense - x
    x = jnp.broadcast_to(x, shape)
    if name == "sub":
        return Sum((negated(v), x)) if reflected else Sum((v, -x))
    return Sum((v, x))


def _with_number(v: Matrix, x: Any, name: str, reflected: bool) -> Any:
    if v.entries != "all":
        return NotImplemented
    x = jnp.reshape(x, ())
    if name != "sub":
        return v.map_entries(lambda a: a + x)
    return v.map_entries(lambda a: x - a if reflected else a - x)


# --- entry by entry ---------------------------------------------------------------------


@register(*primitives.UNARY)
def _(v: Matrix, *, primitive: Any, **params: Any) -> Any:
    at_zero = primitive.name in primitives.ZERO_PRESERVING or (
        primitive.name == "integer_pow" and params["y"] > 0
    )
    if v.entries == "all" or (v.entries == "pattern" and at_zero):
        return v.map_entries(lambda x: bind(primitive, x, **params))
    if primitive.name == "neg":
        return _times_number(v, jnp.asarray(-1, v.dtype))
    if primitive.name == "conj" and jnp.issubdtype(v.dtype, jnp.complexfloating):
        return jax.tree.map(lambda x: lax.conj(x) if jnp.iscomplexobj(x) else x, v)
    return NotImplemented


# What of two zeros is zero.
_ZERO_OF_ZEROS = ("add", "add_any", "sub", "mul", "max", "min")


def zip_entries(primitive: Any, x: Any, y: Any, **params: Any) -> Any:
    """Two matrices of one structure, entry by entry."""
    if x.entries is None or not x.same_pattern(y):
        return NotImplemented
    if x.entries != "all" and primitive.name not in _ZERO_OF_ZEROS:
        return NotImplemented
    return x.map_entries(lambda a, b: bind(primitive, a, b, **params), y)


@register(*[name for name in primitives.BINARY if name not in primitives.ADDITIVE])
def _(x: Matrix, y: Matrix, *, primitive: Any, **params: Any) -> Any:
    if primitive.name == "mul":
        for one, other in ((x, y), (y, x)):
            closed = one.hadamard(other)
            if closed is not NotImplemented:
                return closed
    return zip_entries(primitive, x, y, **params)


@register(
    *[name for name in primitives.BINARY if name not in (*primitives.ADDITIVE, "mul")]
)
def _(v: Matrix, x: Array, *, primitive: Any, **params: Any) -> Any:
    if primitive.name == "div" and is_number(x) and inexact(v):
        if v.entries is None:
            return _times_number(v, 1 / jnp.reshape(x, ()))
        return v.map_entries(lambda a: a / jnp.reshape(x, ()))
    if primitive.name == "div" and inexact(v) and v.entries and jnp.shape(x) == v.shape:
        return _beside(v, x, lambda a, b: a / b)
    if v.entries == "all" and is_number(x):
        return v.map_entries(lambda a: bind(primitive, *_full(a, x), **params))
    return NotImplemented


@register(
    *[name for name in primitives.BINARY if name not in (*primitives.ADDITIVE, "mul")]
)
def _(x: Array, v: Matrix, *, primitive: Any, **params: Any) -> Any:
    if v.entries == "all" and is_number(x):
        return v.map_entries(lambda a: bind(primitive, *_full(a, x)[::-1], **params))
    return NotImplemented


def _full(a: Any, x: Any) -> tuple[Any, Any]:
    return a, jnp.broadcast_to(jnp.reshape(x, ()), a.shape)


@register("mul", commutative=True)
def _(v: Matrix, x: Array, **params: Any) -> Any:
    shape = jnp.broadcast_shapes(v.shape, jnp.shape(x))
    if shape != v.shape:
        return NotImplemented
    if is_number(x):
        return _times_number(v, jnp.reshape(x, ()))
    x = x.reshape((1,) * (v.ndim - x.ndim) + x.shape)
    if x.shape[-1] == 1:
        return _scaled_rows(v, jnp.broadcast_to(x[..., 0], shape[:-1]))
    if x.shape[-2] == 1:
        columns = jnp.broadcast_to(x[..., 0, :], (*shape[:-2], shape[-1]))
        return swapped(_scaled_rows(v.transposed(), columns))
    if v.entries is None:
        return NotImplemented
    return _beside(v, jnp.broadcast_to(x, shape), lambda a, b: a * b)


def _beside(v: Matrix, x: Any, fn: Callable[[Any, Any], Any]) -> Any:
    """A function of entries and of those of an array, dense where they repeat."""
    picked = NotImplemented if v.entries == "all" else v.pick(x)
    if picked is NotImplemented:
        return fn(v.materialise(), x)
    return v.map_entries(fn, picked)


def _times_number(v: Matrix, factor: Any) -> Any:
    closed = v.scaled(factor)
    return Scaled(v, factor) if closed is NotImplemented else closed


def _scaled_rows(v: Matrix, factors: Any) -> Any:
    closed = v.scaled_rows(factors)
    return product(Diagonal(factors), v) if closed is NotImplemented else closed


@register("select_n")
def _(which: Array, *cases: Matrix) -> Any:
    first = cases[0]
    if jnp.shape(which) or not all(same_structure(first, case) for case in cases):
        return NotImplemented
    return jax.tree.map(lambda *xs: lax.select_n(which, *xs), *cases)


@register("select_n")
def _(which: Array, *cases: Array | Matrix) -> Any:
    """Beside an array of this size that is there already, entries are one as well."""
    dense = []
    for case in cases:
        if isinstance(case, Matrix):
            if case.entries is None:
                return NotImplemented
            case = case.materialise()
        dense.append(case)
    return lax.select_n(which, *dense)


@register("gather")
def _(v: Matrix, indices: Array, *, dimension_numbers: Any, **params: Any) -> Any:
    """Single entries, by pairs of a row and a column."""
    if v.batch or tuple(dimension_numbers.collapsed_slice_dims) != (0, 1):
        return NotImplemented
    if tuple(dimension_numbers.start_index_map) != (0, 1):
        return NotImplemented
    mode = lax.GatherScatterMode.from_any(params["mode"])
    i, j = indices[..., 0], indices[..., 1]
    n, m = v.shape
    inside = (i >= 0) & (i < n) & (j >= 0) & (j < m)
    i, j = jnp.clip(i, 0, n - 1), jnp.clip(j, 0, m - 1)
    found = v.at(i, j)
    if found is NotImplemented or mode != lax.GatherScatterMode.FILL_OR_DROP:
        return found
    fill = params["fill_value"]
    if fill is None:
        fill = jnp.nan if inexact(found) else None
    return NotImplemented if fill is None else jnp.where(inside, found, fill)


@register("convert_element_type")
def _(v: Matrix, *, new_dtype: Any, **params: Any) -> Any:
    narrowed = jnp.iscomplexobj(v) and not jnp.issubdtype(new_dtype, jnp.complexfloating)
    if jnp.issubdtype(new_dtype, jnp.inexact) and not narrowed:
        return v.cast(new_dtype)
    if v.entries is None:
        return NotImplemented
    return v.map_entries(lambda x: x.astype(new_dtype))


# --- batch axes -------------------------------------------------------------------------


@register("transpose")
def _(v: Matrix, *, permutation: Sequence[int]) -> Any:
    *batch, n, m = permutation
    if {n, m} != {v.ndim - 2, v.ndim - 1}:
        return NotImplemented
    if n > m:
        v = v.transposed()
    if batch == sorted(batch) or not isinstance(v, Matrix):
        rest = (v.ndim - 2, v.ndim - 1)
        return (
            v
            if batch == sorted(batch)
            else bind(lax.transpose_p, v, permutation=(*batch, *rest))
        )
    moved = lambda x: jnp.transpose(x, (*batch, *range(len(batch), x.ndim)))
    return v.map_batch(moved, tuple(v.shape[i] for i in batch))


@register("broadcast_in_dim")
def _(v: Matrix, *, shape: Any, broadcast_dimensions: Any, **params: Any) -> Any:
    *dims, n, m = broadcast_dimensions
    if (n, m) != (len(shape) - 2, len(shape) - 1) or tuple(shape[-2:]) != v.shape[-2:]:
        return NotImplemented
    batch, ndim = tuple(shape[:-2]), len(v.batch)

    def broadcast(x: Any) -> Any:
        rest = x.shape[ndim:]
        kept = (*dims, *range(len(batch), len(batch) + len(rest)))
        return lax.broadcast_in_dim(x, (*batch, *rest), kept)

    return v.map_batch(broadcast, batch)


@register("reshape")
def _(v: Matrix, *, new_sizes: Any, **params: Any) -> Any:
    *batch, n, m = (*new_sizes,) if len(new_sizes) > 1 else (0, 0)
    if len(new_sizes) < 2 or (n, m) != v.shape[-2:]:
        return NotImplemented
    ndim = len(v.batch)
    return v.map_batch(lambda x: x.reshape(*batch, *x.shape[ndim:]), tuple(batch))


@register("squeeze")
def _(v: Matrix, *, dimensions: Any) -> Any:
    """Of batch axes; a matrix of one row or column is a vector."""
    n, m = v.ndim - 2, v.ndim - 1
    if n in dimensions or m in dimensions:
        v = v if m in dimensions else v.transposed()
        vector = v.apply(jnp.ones((*v.batch, 1), v.dtype), n)
        left = [axis for axis in dimensions if axis < n]
        return lax.squeeze(vector, [*left, n] if {n, m} <= {*dimensions} else left)
    batch = tuple(size for i, size in enumerate(v.batch) if i not in dimensions)
    return v.map_batch(lambda x: lax.squeeze(x, dimensions), batch)


@register("rev")
def _(v: Matrix, *, dimensions: Any) -> Any:
    if max(dimensions, default=0) >= len(v.batch):
        return NotImplemented
    return v.map_batch(lambda x: lax.rev(x, dimensions), v.batch)


@register("slice")
def _(v: Matrix, *, start_indices: Any, limit_indices: Any, strides: Any) -> Any:
    k = len(v.batch)
    strides = strides or (1,) * v.ndim
    whole = tuple(limit_indices[k:]) == v.shape[k:] and not any(start_indices[k:])
    if not whole or set(strides[k:]) != {1}:
        ranges = zip(start_indices, limit_indices, strides, strict=True)
        return (
            _block(v, *(jnp.arange(*those) for those in ranges))
            if not k
            else NotImplemented
        )
    cut = tuple(
        slice(*those)
        for those in zip(start_indices[:k], limit_indices[:k], strides[:k], strict=True)
    )
    batch = tuple(len(range(n)[c]) for n, c in zip(v.batch, cut, strict=True))
    return v.map_batch(lambda x: x[cut], batch)


@register("dynamic_slice")
def _(v: Matrix, *starts: Array, slice_sizes: Any) -> Any:
    if v.batch:
        return NotImplemented
    sizes = zip(starts, slice_sizes, v.shape, strict=True)
    return _block(
        v, *(jnp.clip(start, 0, n - size) + jnp.arange(size) for start, size, n in sizes)
    )


def _block(v: Matrix, i: Any, j: Any) -> Any:
    """The array of some rows and columns, if it is no larger than a row or a column is."""
    if i.size * j.size > max(v.shape):
        return NotImplemented
    return v.at(*jnp.meshgrid(i, j, indexing="ij"))


@register("concatenate")
def _(*vs: Matrix, dimension: int) -> Any:
    first = vs[0]
    if dimension >= len(first.batch):
        return NotImplemented
    if len({jax.tree.structure(v) for v in vs}) > 1:
        return NotImplemented
    batch = list(first.batch)
    batch[dimension] = sum(v.batch[dimension] for v in vs)
    joined = jax.tree.map(lambda *xs: jnp.concatenate(xs, dimension), *vs)
    return joined.map_batch(lambda x: x, tuple(batch))


@register("reduce_sum")
def _(v: Matrix, *, axes: Sequence[int], **params: Any) -> Any:
    """Over columns, rows or both by a product with ones; over a batch of entries."""
    n, m = v.ndim - 2, v.ndim - 1
    batch = tuple(axis for axis in axes if axis < n)
    if n not in axes and m not in axes:
        if v.entries is None or v.movable:
            return NotImplemented
        kept = tuple(size for i, size in enumerate(v.batch) if i not in batch)
        return v.map_batch(lambda x: x.sum(batch), kept)
    if m in axes:
        total = v.apply(jnp.ones((*v.batch, v.shape[-1]), v.dtype), n)
        return total.sum((*batch, n) if n in axes else batch)
    rows = v.transposed()
    return rows.apply(jnp.ones((*v.batch, v.shape[-2]), v.dtype), n).sum(batch)

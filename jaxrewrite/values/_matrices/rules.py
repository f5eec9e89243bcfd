"""The rules that all matrices with structure share.

They are not in `matrix`, because their results are often of types that are built on
`Matrix`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Literal
from jaxtyping import Array

import jaxrewrite
from jaxrewrite import ArrayValue, bind, primitives, register, transform
from jaxrewrite.extend import Zeros

from .._base.contract import is_or_none, sides, transpose
from .._base.gathers import fills
from .._base.sizes import is_at_most
from .._base.structured import (
    inexact,
    inverse_of,
    is_linear_cast,
    is_number,
    is_zero_at,
    number_of,
    promoted,
    total,
    zero_unless,
)
from .algebra import LinearAlgebra
from .conjugates import conjugated
from .entry_products import sum_of_entries, times_array, times_matrix
from .matrix import Matrix, closed_sum, lazily, negated, swapped
from .monomial import Diagonal
from .product import matrix_product
from .scaled import Scaled, by_number
from .sum import Sum, sum_of


# --- products ---------------------------------------------------------------------------


@register("dot_general", exchange="types")
def _(left: Matrix, right: Array, *, dimension_numbers: Any, **params: Any) -> Any:
    _, v, x, vs, xs, out = sides(Matrix, left, right, dimension_numbers)
    batch, (row, column) = vs[:-2], vs[-2:]
    shared = [label for label in (row, column) if label in xs]
    if params.get("out_sharding") is not None:
        return NotImplemented
    if {*out} == {*vs}:
        return _scaled_entries(v, x, vs, xs, out, params["preferred_element_type"])
    if len(shared) == 2:
        return sum_of_entries(left, right, dimension_numbers=dimension_numbers, **params)
    if not shared:
        return NotImplemented
    (summed,) = shared
    if summed in out:
        return NotImplemented  # The rows, for example, are a batch axis of the product.
    free = row if summed == column else column
    dtype = params["preferred_element_type"] or jnp.result_type(x.dtype, v.dtype)
    wide = promoted(promoted(x.dtype, v.dtype), dtype)
    if v.dtype != wide:  # For example, a sum of small integers may need a wider dtype.
        if v.entries is None and not is_linear_cast(v, wide):
            return NotImplemented
        v = v.cast(wide)
        if v is NotImplemented:
            return NotImplemented
    x = x.astype(wide)
    operator = v if summed == column else v.transposed()
    rest = tuple(label for label in xs if label not in batch)
    x = transpose(x, xs, (*(label for label in batch if label in xs), *rest))
    sizes = x.shape[x.ndim - len(rest) :]
    ones = [n if label in xs else 1 for label, n in zip(batch, v.batch, strict=True)]
    x = jnp.broadcast_to(x.reshape(*ones, *sizes), (*v.batch, *sizes))
    axis = len(batch) + rest.index(summed)
    y = jaxrewrite.materialise(operator.apply(x, axis, params["precision"]))
    labels_of_y = (*batch, *(free if label == summed else label for label in rest))
    y = total(y, [i for i, label in enumerate(labels_of_y) if label not in out])
    return transpose(y, tuple(label for label in labels_of_y if label in out), out).astype(
        dtype
    )


def _scaled_entries(v: Matrix, x: Any, vs: Any, xs: Any, out: Any, dtype: Any) -> Any:
    """A product that sums nothing: a matrix times a number, or one for each row, for example."""
    if x.dtype != v.dtype or not is_or_none(dtype, v.dtype):
        return NotImplemented
    x = transpose(x, xs, tuple(label for label in vs if label in xs))
    x = lax.expand_dims(x, [i for i, label in enumerate(vs) if label not in xs])
    return transpose(bind("mul", v, x), vs, out)


def standard(x: Any, y: Any, dimension_numbers: Any) -> Any:
    """The operands in the order of ``x @ y``, or ``None`` for any other product."""
    (xc, yc), (xb, yb) = dimension_numbers
    batch = tuple(range(x.ndim - 2))
    is_stack = x.ndim > y.ndim == 2 and not xb
    if is_stack and isinstance(y, LinearAlgebra):  # Each times the same matrix.
        y = transform(lambda y: jnp.broadcast_to(y, (*x.shape[:-2], *y.shape)))(y)
        yc, xb, yb = tuple(axis + len(batch) for axis in yc), batch, batch
    if x.ndim < 2 or x.ndim != y.ndim or (tuple(xb), tuple(yb)) != (batch, batch):
        return None
    if len(xc) != 1 or min(*xc, *yc) < len(batch):
        return None
    x = x if xc[0] == x.ndim - 1 else swapped(x)
    y = y if yc[0] == y.ndim - 2 else swapped(y)
    return x, y


@register("dot_general", types=(Matrix, Matrix))
@register("dot_general", exchange="types")
def _(x: Matrix, y: ArrayValue, *, dimension_numbers: Any, **params: Any) -> Any:
    pair = standard(x, y, dimension_numbers)
    dtype = jnp.result_type(x.dtype, y.dtype)
    if params.get("out_sharding") is not None:
        return NotImplemented
    if pair is None and isinstance(x, Matrix) and isinstance(y, Matrix):
        return sum_of_entries(x, y, dimension_numbers=dimension_numbers, **params)
    if pair is None or not is_or_none(params["preferred_element_type"], dtype):
        return NotImplemented
    if x.dtype != y.dtype:
        return NotImplemented
    with _in_precision(params.get("precision")):
        return lazily(matrix_product(*pair))


def _in_precision(precision: Any) -> AbstractContextManager[Any]:
    """Products of parts of matrices in the precision that a product of two has for both."""
    if isinstance(precision, tuple):  # One for each operand.
        precision = max(precision, key=lambda x: x.value)
    if isinstance(precision, lax.Precision):
        return jax.default_matmul_precision(precision.name.lower())
    is_named = isinstance(precision, lax.DotAlgorithmPreset)
    if not is_named or precision == lax.DotAlgorithmPreset.DEFAULT:
        return nullcontext()
    return jax.default_matmul_precision(precision.name)


# --- sums -------------------------------------------------------------------------------


@register(*primitives.ADDITIVE, types=(Matrix, Matrix))
@register(*primitives.ADDITIVE, exchange="types")
def _(x: Matrix, y: ArrayValue, *, primitive: Any, **params: Any) -> Any:
    if x.shape != y.shape or x.dtype != y.dtype:
        return NotImplemented
    if primitive.name == "sub":
        y = negated(y)
    closed = closed_sum(x, y)
    return lazily(Sum((x, y)) if closed is NotImplemented else closed)


@register(*primitives.ADDITIVE, exchange="types")
def _(x: Matrix, y: Array, *, primitive: Any, **params: Any) -> Any:
    """A sum with a dense array of the whole size is dense: it takes no more room."""
    v: Any = x if isinstance(x, Matrix) else y
    other = y if v is x else x
    if is_number(other):
        return _with_number(primitive, x, y) if v.entries == "all" else NotImplemented
    if v.entries is not None:
        if jnp.shape(other) != v.shape:
            return NotImplemented
        return primitive.bind(*(z.materialise() if z is v else z for z in (x, y)))
    first, last = (
        z if isinstance(z, Matrix) else jnp.broadcast_to(z, v.shape) for z in (x, y)
    )
    return sum_of([first, negated(last) if primitive.name == "sub" else last])


def _with_number(primitive: Any, x: Any, y: Any, **params: Any) -> Any:
    """A function of the entries of a matrix, one of the operands, and of a number."""

    def apply(entries: Any) -> Any:
        one = [1] * entries.ndim
        operands = (
            entries if isinstance(z, Matrix) else jnp.reshape(z, one) for z in (x, y)
        )
        return bind(primitive, *operands, **params)

    return (x if isinstance(x, Matrix) else y).map_entries(apply)


# --- entry by entry ---------------------------------------------------------------------


@register(*primitives.UNARY)
def _(v: Matrix, *, primitive: Any, **params: Any) -> Any:
    if _keeps_entries(v, primitive, params, _zero(v)):
        return v.map_entries(lambda x: bind(primitive, x, **params))
    if primitive.name == "neg":
        return _times_number(v, np.asarray(-1).astype(v.dtype))
    if primitive.name == "conj" and jnp.issubdtype(v.dtype, jnp.complexfloating):
        return conjugated(v)
    return NotImplemented


def _zero(v: Matrix) -> Any:
    return np.zeros((), v.dtype)


def _keeps_entries(v: Matrix, primitive: Any, params: Any, *zeros: Any) -> bool:
    """Whether a function that acts entry by entry keeps the zeros of the matrix.

    ``zeros`` are its operands where the matrix has a zero.
    """
    if v.entries == "pattern":
        return is_zero_at(primitive, params, *zeros)
    return v.entries == "all"


@register(*[name for name in primitives.BINARY if name not in primitives.ADDITIVE])
def _(x: Matrix, y: Matrix, *, primitive: Any, **params: Any) -> Any:
    """A product, or another function of two matrices of one structure."""
    if primitive.name == "mul":
        return times_matrix(x, y)
    zeros = _zero(x), _zero(y)
    if not x.same_pattern(y) or not _keeps_entries(x, primitive, params, *zeros):
        return NotImplemented
    return x.map_entries(lambda a, b: bind(primitive, a, b, **params), y)


_NONLINEAR = [
    name for name in primitives.BINARY if name not in (*primitives.ADDITIVE, "mul")
]


@register(*_NONLINEAR, exchange="types")
def _(x: Matrix, y: Array, *, primitive: Any, **params: Any) -> Any:
    v, other = (x, y) if isinstance(x, Matrix) else (y, x)
    if v.entries == "all" and is_number(other):
        return _with_number(primitive, x, y, **params)
    if primitive.name != "div" or v is y or not inexact(v):
        return NotImplemented
    if is_number(y):
        return by_number(jnp.divide, v, y)
    if v.entries is not None and jnp.shape(y) == v.shape:
        return v.materialise() / y
    return NotImplemented


@register(*primitives.BINARY, exchange="types")
def _(x: Matrix, y: Literal, *, primitive: Any, **params: Any) -> Any:
    """The other operand is a number in the program, so zeros may be known to stay zeros."""
    v, literal = (x, y) if isinstance(x, Matrix) else (y, x)
    number = number_of(literal)
    zeros = (_zero(v) if z is v else number for z in (x, y))
    if _keeps_entries(v, primitive, params, *zeros):
        operands = (v if z is v else number for z in (x, y))
        return _with_number(primitive, *operands, **params)
    is_multiple = primitive.name == "mul" or (primitive.name == "div" and v is x)
    if v.entries is None and is_multiple and inexact(v):
        return _by_number(v, number if primitive.name == "mul" else inverse_of(number))
    return NotImplemented


def _by_number(v: Matrix, number: Any) -> Any:
    """A known number times a matrix, in closed form if the number is finite."""
    factor = jnp.asarray(number, v.dtype)
    return _times_number(v, factor) if np.isfinite(number) else Scaled(v, factor)


@register("mul", exchange="operands")
def _(v: Matrix, x: Array, **params: Any) -> Any:
    if is_number(x):
        return _times_number(v, jnp.reshape(x, ()))
    if x.shape[-1] == 1:
        return _scale_rows(v, jnp.broadcast_to(x[..., 0], v.shape[:-1]))
    if x.shape[-2] == 1:
        columns = jnp.broadcast_to(x[..., 0, :], (*v.batch, v.shape[-1]))
        return swapped(_scale_rows(v.transposed(), columns))
    return times_array(v, jnp.broadcast_to(x, v.shape))


def _times_number(v: Matrix, factor: Any) -> Any:
    closed = v.times_number(factor)
    return Scaled(v, factor) if closed is NotImplemented else closed


def _scale_rows(v: Matrix, factors: Any) -> Any:
    closed = v.scaled_rows(factors)
    return matrix_product(Diagonal(factors), v) if closed is NotImplemented else closed


@register("select_n")
def _(which: Array, *cases: Array | Matrix) -> Any:
    """The result is dense, if one of the cases is an array of this size."""
    if jnp.ndim(which) == 0 and all(isinstance(case, Matrix) for case in cases):
        return NotImplemented
    return _dense_choice(which, cases)


def _dense_choice(which: Any, cases: Sequence[Any]) -> Any:
    if any(isinstance(case, Matrix) and case.entries is None for case in cases):
        return NotImplemented
    return lax.select_n(which, *jaxrewrite.materialise(cases))


@register("select_n", types=(Array, Matrix, Zeros))
@register("select_n", types=(Array, Zeros, Matrix))
def masked(which: Any, x: Any, y: Any) -> Any:
    """A mask over a matrix chooses among its entries. The zeros around them stay."""
    if jnp.ndim(which) == 0:
        return NotImplemented
    place = 0 if isinstance(x, Matrix) else 1
    v = y if place else x
    if v.entries != "pattern":
        return _dense_choice(which, (x, y))
    chosen = v.pick(which == place)
    return v.map_entries(lambda entry, is_kept: zero_unless(is_kept, entry), chosen)


@register("select_n")
def _(*xs: Matrix, primitive: Any, **params: Any) -> Any:
    """A matrix, such as ``x > 0``, chooses between others of its structure."""
    which, *cases = xs
    alike = all(which.same_pattern(_of_bools(case)) for case in cases)
    if not alike or not _keeps_entries(which, primitive, params, *map(_zero, xs)):
        return NotImplemented
    return which.map_entries(lambda *each: bind(primitive, *each, **params), *cases)


def _of_bools(v: Matrix) -> Any:
    """The structure of a matrix of truth values with the entries of this one."""
    return v if v.entries is None else jax.eval_shape(lambda v: v.cast(bool), v)


@register("clamp")
def _(least: Array, v: Matrix, most: Array) -> Any:
    if v.entries != "all" or not (is_number(least) and is_number(most)):
        return NotImplemented
    return _clamped(least, v, most)


@register("clamp")
def _(least: Literal, v: Matrix, most: Literal, *, primitive: Any, **params: Any) -> Any:
    bounds = number_of(least), number_of(most)
    if not _keeps_entries(v, primitive, params, bounds[0], _zero(v), bounds[1]):
        return NotImplemented
    return _clamped(bounds[0], v, bounds[1])


def _clamped(least: Any, v: Matrix, most: Any) -> Any:
    bounds = [jnp.reshape(x, ()) for x in (least, most)]
    return v.map_entries(lambda x: lax.clamp(bounds[0], x, bounds[1]))


@register("gather")
def _(v: Matrix, indices: Array, *, dimension_numbers: Any, **params: Any) -> Any:
    """Gather rows, columns, or entries by pairs of a row and a column."""
    numbers, sizes = dimension_numbers, params["slice_sizes"]
    mode = lax.GatherScatterMode.from_any(params["mode"])
    cut = [a for a in (0, 1) if a in numbers.collapsed_slice_dims or sizes[a] < v.shape[a]]
    each = dict(zip(numbers.start_index_map, jnp.moveaxis(indices, -1, 0), strict=True))
    if (
        v.batch
        or not v.size
        or not cut
        or numbers.operand_batching_dims
        or any(sizes[a] != 1 or a not in each for a in cut)
        or mode == lax.GatherScatterMode.ONE_HOT
        or fills(mode)
    ):
        return NotImplemented
    of = v.transposed() if cut == [1] else v
    read = of.entries_at if len(cut) == 2 else of.rows_at
    # An index of a whole axis has no place but the first.
    places = [in_range(each[a], v.shape[a]) for a in cut]
    found = jaxrewrite.materialise(read(*places))
    if found is NotImplemented:
        return NotImplemented
    window = [a for a in (0, 1) if a not in numbers.collapsed_slice_dims]
    found = found.reshape(*indices.shape[:-1], *(sizes[a] for a in window))
    return jnp.moveaxis(found, range(-len(window), 0), numbers.offset_dims)


@register("convert_element_type")
def _(v: Matrix, *, new_dtype: Any, **params: Any) -> Any:
    """Entries can be cast to any dtype. Other matrices need a cast that is linear."""
    if v.entries is None and not is_linear_cast(v, new_dtype):
        return NotImplemented
    return v.cast(jnp.dtype(new_dtype))


# --- batch axes -------------------------------------------------------------------------


# `Matrix.axes` has the rules that move batch axes alone.


@register("transpose")
def _(v: Matrix, *, permutation: Sequence[int]) -> Any:
    """Exchange rows and columns."""
    *batch, n, m = permutation
    if (m, n) != (v.ndim - 2, v.ndim - 1):
        return NotImplemented
    v = v.transposed()
    return v if batch == sorted(batch) else bind("transpose", v, permutation=(*batch, m, n))


@register("rev")
def _(v: Matrix, *, dimensions: Any) -> Any:
    batch = len(v.batch)
    return v.reversed() if {*dimensions} == {batch, batch + 1} else NotImplemented


@register("squeeze")
def _(v: Matrix, *, dimensions: Any) -> Any:
    """A matrix of one row or column becomes a vector."""
    n, m = v.ndim - 2, v.ndim - 1
    if not {n, m} & {*dimensions}:
        return NotImplemented
    v = v if m in dimensions else v.transposed()
    vector = v.row_sums()
    left = [axis for axis in dimensions if axis < n]
    gone = [*left, n] if {n, m} <= {*dimensions} else left
    return transform(lambda vector: lax.squeeze(vector, gone))(vector)


@register("slice")
def _(v: Matrix, *, start_indices: Any, limit_indices: Any, strides: Any) -> Any:
    windows = [*zip(start_indices, limit_indices, strides or [1] * v.ndim, strict=True)]
    if v.batch or windows == [(0, n, 1) for n in v.shape]:
        return NotImplemented
    return _block(v, *(jnp.arange(*window) for window in windows))


@register("dynamic_slice")
def _(v: Matrix, *starts: Array, slice_sizes: Any) -> Any:
    if v.batch:
        return NotImplemented
    sizes = zip(starts, slice_sizes, v.shape, strict=True)
    return _block(
        v, *(in_range(start, n - size + 1) + jnp.arange(size) for start, size, n in sizes)
    )


def in_range(i: Any, n: int) -> Any:
    """The nearest of the indices below n, in a dtype with differences of two indices."""
    return jnp.clip(i, 0, n - 1).astype(int)


# A slice of a matrix is read from its leaves, as an array, if it has few of the entries. A
# larger one is nearly the dense matrix, so that the policy decides about it.
_FEW = 8


def _block(v: Matrix, i: Any, j: Any) -> Any:
    """The dense array of some rows and columns, if it is a row or column, or has few entries."""
    if not any(is_at_most(i.size * j.size, n) for n in (*v.shape, v.size // _FEW)):
        return NotImplemented
    return v.block(i, j)


@register("reduce_sum")
def _(v: Matrix, *, axes: Sequence[int], **params: Any) -> Any:
    """Sums of rows or columns are dense. Sums of the entries sum a batch axis."""
    n, m = v.ndim - 2, v.ndim - 1
    batch = tuple(axis for axis in axes if axis < n)
    if n not in axes and m not in axes:
        if v.entries is None or v.movable:
            return NotImplemented
        return v.map_entries(lambda x: total(x, batch))
    if m in axes:
        return total(v.row_sums(), (*batch, n) if n in axes else batch)
    return total(v.transposed().row_sums(), batch)

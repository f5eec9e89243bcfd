"""Products of sparse matrices with arrays, in the order that is fastest on a CPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.sparse import BCOO, BCSR, bcoo_dot_general, bcsr_dot_general

from .._base.sizes import is_at_most
from .._base.structured import over_batch, vary_as, varying_axes
from .triangle import with_tangent


# XLA's sparse product on a CPU takes these dtypes. For others JAX warns or uses a gather.
_COMPRESSED_DTYPES = ("int32", "int64", "float32", "float64", "complex64", "complex128")

# From so many columns on, a product row by row is faster on a CPU than one entry by entry.
_MANY_COLUMNS = 16

# With more entries in a row than this, a program for one entry of all rows after the other
# takes long to compile.
_MOST_IN_A_ROW = 32


def index_dtype(sizes: Sequence[int], *dtypes: Any) -> Any:
    """A dtype for indices that are in others so far, and for sizes, which mark padding.

    It is the widest of the others, or the first of JAX's own integers that holds the sizes.
    """
    most = lambda dtype: jnp.iinfo(dtype).max
    widest = max(dtypes, key=most)
    own = (d for d in (jnp.dtype("int32"), jnp.result_type(int)) if most(d) > most(widest))
    *some, last = widest, *own
    holds = lambda dtype: all(is_at_most(n, most(dtype)) for n in sizes)
    return next(filter(holds, some), last)


def with_indices(matrix: Any, dtype: Any) -> Any:
    """A ``BCOO`` or ``BCSR`` with its indices and row pointers in a dtype."""
    held = matrix.data, *(i.astype(dtype) for i in jax.tree.leaves(matrix)[1:])
    flags = {name: getattr(matrix, name) for name in ("indices_sorted", "unique_indices")}
    return type(matrix)(held, shape=matrix.shape, **flags)


def product(matrix: BCOO | BCSR, x: Any) -> Any:
    """The product of a matrix along the first axis of an array after those of the batch."""
    batch = matrix.n_batch
    columns = math.prod(x.shape[batch + 1 :])
    if not batch and columns == 1:
        y = _times_vector(matrix, x.reshape(matrix.shape[1]))
        return y.reshape(matrix.shape[0], *x.shape[1:])
    is_fast = matrix.dtype.name in _COMPRESSED_DTYPES and not batch
    is_fast = is_fast and isinstance(columns, int)
    if is_fast and isinstance(matrix, BCSR) and not _vary(*jax.tree.leaves(matrix), x):
        return _compressed_product(matrix, x)
    entries = matrix.to_bcoo() if isinstance(matrix, BCSR) else matrix
    if _vary(entries.data, entries.indices, x):
        return _column_by_column(entries, x)
    if not is_fast or columns < _MANY_COLUMNS:
        return _product_of_entries(matrix.shape, entries.data, entries.indices, x)
    return lax.platform_dependent(
        *(entries.data, entries.indices, x),
        cpu=partial(_as_compressed, matrix.shape),
        default=partial(_product_of_entries, matrix.shape),
    )


def _product_of_entries(shape: Sequence[int], data: Any, indices: Any, x: Any) -> Any:
    batch = len(shape) - 2
    contracted, batched = ((batch + 1,), (batch,)), (tuple(range(batch)),) * 2
    return bcoo_dot_general(
        BCOO((data, indices), shape=tuple(shape)),
        x,
        dimension_numbers=(contracted, batched),
    )


def _vary(*arrays: Any) -> bool:
    """Whether some arrays vary over a mesh, inside of `jax.shard_map`."""
    return any(map(varying_axes, map(jax.typeof, arrays)))


def _column_by_column(matrix: BCOO, x: Any) -> Any:
    """The product where arrays vary over a mesh: JAX's own does not say that its result does."""
    batch, n = matrix.n_batch, matrix.shape[-2]

    def of_one(data: Any, indices: Any, x: Any) -> Any:
        rows, columns = indices.T
        return _by_entries(n, data, rows, columns, x)

    multiply = over_batch(jax.vmap(of_one, (None, None, 1), 1), batch)
    rows, columns = x.shape[: batch + 1], x.shape[batch + 1 :]
    y = multiply(matrix.data, matrix.indices, x.reshape(*rows, math.prod(columns)))
    return y.reshape(*y.shape[:-1], *columns)


# --- many columns -------------------------------------------------------------------------


def _compressed_product(matrix: BCSR, x: Any) -> Any:
    """``matrix @ x`` along the first axis of an array of any rank."""
    flat = x if x.ndim == 1 else x.reshape(x.shape[0], math.prod(x.shape[1:]))
    y = bcsr_dot_general(matrix, flat, dimension_numbers=(((1,), (0,)), ((), ())))
    return y.reshape(matrix.shape[0], *x.shape[1:])


def _as_compressed(shape: Sequence[int], data: Any, indices: Any, x: Any) -> Any:
    """Multiply row by row, if the entries are in this order, as JAX makes them."""
    n, m = shape
    rows, columns = indices.T
    # An entry beyond the last column would be read from beyond the other operand.
    fits = ((columns < m) | (rows >= n)).all() & (rows[1:] >= rows[:-1]).all()

    def by_rows(data: Any, indices: Any, x: Any) -> Any:
        rows, columns = indices.T
        begins = jnp.searchsorted(rows, jnp.arange(n + 1, dtype=rows.dtype))
        held = (data, columns, begins.astype(columns.dtype))
        return _compressed_product(BCSR(held, shape=(n, m), unique_indices=True), x)

    by_entries = partial(_product_of_entries, shape)
    return lax.cond(fits, by_rows, by_entries, data, indices, x)


# --- one vector ---------------------------------------------------------------------------


def is_vector(x: Any) -> bool:
    """Whether an array has one column along its first axis."""
    return math.prod(x.shape[1:]) == 1


def transposed_product(matrix: BCSR, x: Any) -> Any:
    """The product of the transpose of a matrix with one vector, along its first axis."""
    n, m = matrix.shape
    if n and m and matrix.nse:
        held = matrix.data, matrix.indices, matrix.indptr
        y = _by_columns(m, *held, x.reshape(n))
    else:
        y = jnp.zeros(m, jnp.result_type(matrix.data, x))
    return y.reshape(m, *x.shape[1:])


def _times_vector(matrix: BCOO | BCSR, x: Any) -> Any:
    n, m = matrix.shape
    if not (n and m and matrix.nse):
        return jnp.zeros(n, jnp.result_type(matrix.data, x))
    if isinstance(matrix, BCSR):
        return _by_rows(matrix.data, matrix.indices, matrix.indptr, x)
    rows, columns = matrix.indices.T
    return _by_entries(n, matrix.data, rows, columns, x)


def _read(x: Any, i: Any) -> Any:
    """Numbers at indices that count from the front; those out of range give some number."""
    return x.at[i].get(mode="clip", wrap_negative_indices=False)


def _by_entries(n: int, data: Any, rows: Any, columns: Any, x: Any) -> Any:
    """The product of entries at any places; places out of range are padding."""
    is_entry = (rows < n) & (columns < len(x))
    products = jnp.where(is_entry, data, 0) * _read(x, columns)
    y = jnp.zeros(n, products.dtype).at[jnp.where(is_entry, rows, n)]
    return y.add(products, mode="drop", wrap_negative_indices=False)


@jax.custom_jvp
def _by_rows(data: Any, columns: Any, pointers: Any, x: Any) -> Any:
    """The product of entries row by row.

    If no row has many more entries than the others, the first entries of all rows are
    multiplied, then the second ones, and so on, which adds nothing to numbers in memory. This is
    known only when the program runs.
    """
    shortest = -(-len(data) // (len(pointers) - 1))
    lengths = [k for k in (shortest, 2 * shortest) if k <= _MOST_IN_A_ROW]
    by_place: list[Callable[..., Any]] = [partial(_place_by_place, k) for k in lengths]

    def on_cpu(*operands: Any) -> Any:
        longest = (pointers[1:] - pointers[:-1]).max()
        which = sum((longest > k).astype(jnp.int32) for k in lengths)
        return lax.switch(which, [*by_place, _one_by_one], *operands)

    operands = data, columns, pointers, x
    if not lengths:
        return _one_by_one(*operands)
    return lax.platform_dependent(*operands, cpu=on_cpu, default=_one_by_one)


@partial(_by_rows.defjvp, symbolic_zeros=True)
def _(primals: Sequence[Any], tangents: Sequence[Any]) -> Any:
    """JAX would transpose the place of each entry in all rows by an array of all entries."""
    data, columns, pointers, x = primals
    product = lambda data, x: _by_rows(data, columns, pointers, x)
    tangent_product = lambda data, x: _one_by_one(data, columns, pointers, x)
    return with_tangent(product, tangent_product, (data, x), (tangents[0], tangents[-1]))


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _by_columns(m: int, data: Any, columns: Any, pointers: Any, x: Any) -> Any:
    """The product of the transpose of entries row by row, which is the transpose of a product."""
    # What varies less over a mesh than its product does has a transpose that adds up devices.
    arrays = x, data, columns, pointers
    like = vary_as(jnp.zeros(m, x.dtype), arrays)
    product = partial(_by_rows, data, columns, pointers)
    (y,) = jax.linear_transpose(product, like)(vary_as(x, arrays))
    return y


@partial(_by_columns.defjvp, symbolic_zeros=True)
def _(m: int, primals: Sequence[Any], tangents: Sequence[Any]) -> Any:
    data, columns, pointers, x = primals
    product = lambda data, x: _by_columns(m, data, columns, pointers, x)

    def tangent_product(data: Any, x: Any) -> Any:
        return _by_entries(m, data, columns, _rows(columns, pointers, m), x)

    return with_tangent(product, tangent_product, (data, x), (tangents[0], tangents[-1]))


def _place_by_place(length: int, data: Any, columns: Any, pointers: Any, x: Any) -> Any:
    """The sum of the first entries of all rows, the second ones, and so on."""
    y = jnp.zeros(len(pointers) - 1, jnp.result_type(data, x))
    for place in range(length):
        e = pointers[:-1] + place
        is_entry = e < pointers[1:]
        # A number that is masked alone would be NaN in a derivative, or from infinity.
        factors = jnp.where(is_entry, _read(data, e), 0)
        y += jnp.where(is_entry, factors * _read(x, _read(columns, e)), 0)
    return y


def _one_by_one(data: Any, columns: Any, pointers: Any, x: Any) -> Any:
    rows = _rows(columns, pointers, len(x))
    return _by_entries(len(pointers) - 1, data, rows, columns, x)


def _rows(columns: Any, pointers: Any, m: int) -> Any:
    """The row of each entry; that of padding is out of range."""
    n = len(pointers) - 1
    matrix = BCSR((columns, columns, pointers), shape=(n, m))
    is_entry = jnp.arange(len(columns), dtype=pointers.dtype) < pointers[-1]
    return jnp.where(is_entry, matrix.to_bcoo().indices[:, 0], n)

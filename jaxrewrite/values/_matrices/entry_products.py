"""Products of the entries of two matrices one by one, and the sums of these.

A ``dot_general`` that sums an axis of a matrix and has the other one in both operands is such a
sum: ``ij,ij->`` is an inner product, and ``ij,ji->i`` the diagonal of a product of matrices.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

import jaxrewrite

from .._base.contract import Labels, in_dtype, labels, transpose
from .._base.sizes import is_at_most, is_less
from .._base.structured import dtype_of_sums, is_linear_cast, over_batch, promoted, total
from .matrix import Matrix, closed_hadamard


def times_array(v: Matrix, x: Any) -> Any:
    """``v * x``, entry by entry, for an array of the same shape, or NotImplemented."""
    if v.entries is None:
        return v.hadamard(x)
    picked = NotImplemented if v.entries == "all" else v.pick(x)
    if picked is NotImplemented:  # The entries of this type repeat.
        return v.materialise() * x
    return v.map_entries(jnp.multiply, picked)


def times_matrix(x: Any, y: Any) -> Any:
    """``x * y``, entry by entry, for matrices of one shape, in closed form, or NotImplemented."""
    closed = closed_hadamard(x, y)
    if closed is NotImplemented and x.entries is not None and x.same_pattern(y):
        return x.map_entries(jnp.multiply, y)
    return closed


def sum_of_entries(x: Any, y: Any, *, dimension_numbers: Any, **params: Any) -> Any:
    """A ``dot_general`` of arrays and matrices that sums the products of entries.

    NotImplemented for any other one, and where entries of a matrix are not known.
    """
    named = labels(dimension_numbers, x.ndim, y.ndim)
    row, column = (named.x if isinstance(x, Matrix) else named.y)[-2:]
    if column in named.out:
        row, column = column, row
    is_shared = {row, column} <= {*named.x} & {*named.y}
    if not is_shared or column in named.out:
        return NotImplemented
    sizes = dict(zip((*named.x, *named.y), (*x.shape, *y.shape), strict=True))
    axes = (*(label for label in sizes if label not in (row, column)), row, column)
    shape = [sizes[label] for label in axes]
    dtype = params["preferred_element_type"] or jnp.result_type(x.dtype, y.dtype)
    of_sums = dtype_of_sums(promoted(promoted(x.dtype, y.dtype), dtype))
    operands = [
        _aligned(_cast(z, of_sums), of_z, axes, shape)
        for z, of_z in ((x, named.x), (y, named.y))
    ]
    if any(z is NotImplemented for z in operands):
        return NotImplemented
    sums = _sums_of_rows(*operands)
    if sums is NotImplemented:
        return NotImplemented
    sums = total(sums, [i for i, label in enumerate(axes[:-1]) if label not in named.out])
    kept = tuple(label for label in axes if label in named.out)
    return transpose(sums, kept, named.out).astype(dtype)


def _cast(z: Any, dtype: Any) -> Any:
    if not isinstance(z, Matrix) or z.dtype == dtype:
        return in_dtype(z, dtype)
    is_known = z.entries is not None or is_linear_cast(z, dtype)
    return z.cast(dtype) if is_known else NotImplemented


def _aligned(z: Any, of_z: Labels, axes: Labels, shape: Any) -> Any:
    """An operand with all of these axes. A matrix has to have its own in the end."""
    if z is NotImplemented or (isinstance(z, Matrix) and {*of_z[-2:]} != {*axes[-2:]}):
        return NotImplemented
    own = tuple(label for label in axes if label in of_z)
    places = [axes.index(label) for label in own]
    spread = lambda z: lax.broadcast_in_dim(z, shape, places)
    z = transpose(z, of_z, own)
    return z if own == axes else jaxrewrite.transform(spread)(z)


def _sums_of_rows(x: Any, y: Any) -> Any:
    """The sums of the rows of ``x * y``, of a matrix and another one, or an array, of its shape."""
    if isinstance(x, Matrix) and isinstance(y, Matrix):
        product = times_matrix(x, y)
    else:
        product = times_array(*((x, y) if isinstance(x, Matrix) else (y, x)))
    if product is not NotImplemented:
        return jaxrewrite.materialise(total(product, [x.ndim - 1]))
    if not (_knows_rows(x) and _knows_rows(y)):
        return NotImplemented
    return over_batch(_sums_by_rows, x.ndim - 2)(x, y)


def _knows_rows(z: Any) -> bool:
    """Whether rows of each matrix of a stack are known, from slices of the leaves."""
    batch, size = tuple(z.shape[:-2]), tuple(z.shape[-2:])
    # Of a value within this one a leaf may be one number for the whole stack.
    if any(jnp.shape(leaf)[: len(batch)] != batch for leaf in jax.tree.leaves(z)):
        return False

    # One row is asked for, because a user's method may fail for none, as reshape(0, -1) does.
    asked = jnp.zeros(int(size[0] != 0), int)

    def probe(z: Any) -> Any:
        is_one = z.shape == size and _rows_at(z, asked) is not NotImplemented
        return () if is_one else None

    return jax.eval_shape(over_batch(probe, len(batch)), z) == ()


def _rows_at(z: Any, i: Any) -> Any:
    return z.rows_at(i) if isinstance(z, Matrix) else z[i]


# So many entries of a matrix are read at a time.
_BLOCK = 2**20


def _sums_by_rows(x: Any, y: Any) -> Any:
    """From some rows at a time of two large matrices, unless an array takes as much room anyway."""
    n, m = x.shape
    is_large = any(is_at_most(n * m, leaf.size) for leaf in jax.tree.leaves((x, y)))
    if is_large or not is_less(_BLOCK, n * m):
        return total(jaxrewrite.materialise(x) * jaxrewrite.materialise(y), [1])
    count = max(1, _BLOCK // m)

    @jax.checkpoint
    def sums_from(start: Any) -> Any:
        i = jnp.minimum(start + jnp.arange(count), n - 1)
        return total(_rows_at(x, i) * _rows_at(y, i), [1])

    return lax.map(sums_from, jnp.arange(0, n, count)).reshape(-1)[:n]

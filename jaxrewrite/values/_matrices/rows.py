"""Rows and columns of a matrix by their indices, as an embedding is looked up."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from .._base.structured import inexact


def gather_rows(
    v: Any,
    indices: Any,
    *,
    dimension_numbers: Any,
    slice_sizes: Any,
    mode: Any,
    fill_value: Any,
    **params: Any,
) -> Any:
    """What ``gather`` gives of whole rows, or columns, of a matrix that knows its `rows`.

    Takes the operands and parameters of the primitive, and declines what else it may mean.
    ``v.rows(i)`` has to give the rows at indices in range: the shape of the indices, and an
    axis of columns.
    """
    numbers = dimension_numbers
    along = tuple(numbers.collapsed_slice_dims)
    if v.batch or len(along) != 1 or tuple(numbers.start_index_map) != along:
        return NotImplemented
    (axis,) = along
    whole = 1 - axis
    if slice_sizes[whole] != v.shape[whole]:
        return NotImplemented
    count, i = v.shape[axis], indices[..., 0]
    inside = (i >= 0) & (i < count)
    rows = (v.transposed() if axis else v).rows(jnp.clip(i, 0, count - 1))
    if lax.GatherScatterMode.from_any(mode) == lax.GatherScatterMode.FILL_OR_DROP:
        fill = jnp.nan if fill_value is None and inexact(rows) else fill_value
        if fill is None:
            return NotImplemented
        rows = jnp.where(inside[..., None], rows, jnp.asarray(fill, rows.dtype))
    return jnp.moveaxis(rows, -1, numbers.offset_dims[0])

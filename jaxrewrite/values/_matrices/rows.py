"""Rows and columns of a matrix at indices, like the rows of an embedding."""

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
    """Gather whole rows or columns of a matrix that has a method ``rows``.

    Takes the operands and parameters of the primitive, and declines any other gather.
    ``v.rows(i)`` must give the rows at indices in range. Its shape is that of the indices,
    with an axis of columns at the end.
    """
    numbers = dimension_numbers
    axes = tuple(numbers.collapsed_slice_dims)
    if v.batch or len(axes) != 1 or tuple(numbers.start_index_map) != axes:
        return NotImplemented
    (axis,) = axes
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

"""Groups of rows that follow each other, as those of ``ragged_dot_general``."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax


def members(
    sizes: jax.Array, shape: Sequence[int], ragged: int, outer: Sequence[int]
) -> jax.Array:
    """Whether the rows of an array are in a group, along an axis of the groups and its own axes.

    ``ragged`` is the axis of the rows. If the groups are not the same throughout, their sizes have
    the axes ``outer`` of the array before their own.
    """
    sizes = sizes.astype(jnp.promote_types(sizes.dtype, jnp.int32))
    outer = outer if sizes.ndim > 1 else ()
    ends = jnp.cumsum(sizes, -1)
    order = sorted(range(len(outer)), key=lambda i: outer[i])
    rest = [i + 1 for i in range(len(shape)) if i not in outer]
    starts, ends = (
        lax.expand_dims(lax.transpose(x, (len(outer), *order)), rest)
        for x in (ends - sizes, ends)
    )
    along = [n if i == ragged else 1 for i, n in enumerate(shape)]
    row = lax.broadcasted_iota(sizes.dtype, (1, *along), 1 + ragged)
    return (starts <= row) & (row < ends)

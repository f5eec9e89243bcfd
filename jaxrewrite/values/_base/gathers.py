"""Gathers whose indices may be out of range, for all ready types.

The gather of a value is often a product of what is gathered from its leaves. A number that is
filled into a leaf would meet the derivatives of the other leaves: a product of zero and NaN is
NaN. So the rules of the types gather at indices in range, and the result is filled here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import ArrayLike

from jaxrewrite import bind, materialise, register

from .structured import Structured


def fills(mode: Any) -> bool:
    """Whether a gather in this mode fills in a number where an index is out of range."""
    return lax.GatherScatterMode.from_any(mode) == lax.GatherScatterMode.FILL_OR_DROP


def in_range(
    shape: Sequence[int],
    indices: Any,
    dimension_numbers: lax.GatherDimensionNumbers,
    slice_sizes: Sequence[int],
) -> Any:
    """Where the slices of a gather are within an array, with axes of size 1 for the slices."""
    numbers = dimension_numbers
    last = [shape[a] - slice_sizes[a] for a in numbers.start_index_map]
    is_start = (indices >= 0) & (indices <= jnp.asarray(last, indices.dtype))
    return lax.expand_dims(jnp.all(is_start, axis=-1), numbers.offset_dims)


# The rule of a type comes first, since it may know a filled value of its own structure.
@register("gather", precedence=-1)
def _(
    v: Structured,
    indices: ArrayLike,
    *,
    dimension_numbers: Any,
    slice_sizes: Any,
    mode: Any,
    fill_value: Any,
    **params: Any,
) -> Any:
    """Gather at indices in range, and fill the result, which is dense."""
    if not fills(mode):
        return NotImplemented
    params |= {"dimension_numbers": dimension_numbers, "slice_sizes": slice_sizes}
    clip = lax.GatherScatterMode.CLIP
    gathered = materialise(bind("gather", v, indices, mode=clip, fill_value=None, **params))
    inside = in_range(v.shape, indices, dimension_numbers, slice_sizes)
    return jnp.where(inside, gathered, lax.full((), fill_value, gathered.dtype))

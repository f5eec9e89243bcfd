"""Entries, rows and columns of a matrix at indices, like the rows of an embedding."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax


def gathered(
    lengths: Sequence[int],
    read: Callable[..., Any],
    indices: Sequence[Any],
    mode: Any,
    fill_value: Any,
) -> Any:
    """What a gather gives of that which ``read`` gives at indices in range.

    ``indices`` has an array for each of some axes of these ``lengths``. The result of ``read``
    has the axes of these arrays, and may have more at the end.
    """
    each = [*zip(indices, lengths, strict=True)]
    found = read(*(in_range(i, n) for i, n in each))
    if found is NotImplemented or mode != lax.GatherScatterMode.FILL_OR_DROP:
        return found
    inside = functools.reduce(operator.and_, [(i >= 0) & (i < n) for i, n in each])
    inside = jnp.expand_dims(inside, range(inside.ndim, found.ndim))
    # `jax.lax.gather` writes a fill for each dtype if the program does not say.
    return jnp.where(inside, found, jnp.asarray(fill_value, found.dtype))


def in_range(i: Any, n: int) -> Any:
    """The nearest of the indices below n, in a dtype with differences of two indices."""
    return jnp.clip(i, 0, n - 1).astype(int)

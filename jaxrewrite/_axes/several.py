"""Primitives for several slices or arrays, by the primitives for one slice or array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax import lax

from .._core.rules import register
from .._staging.transform import bind
from .declaration import Declared
from .moves import LAST


def slice_along(v: Any, axis: int, start: int, limit: int) -> Any:
    starts, limits = [0] * v.ndim, list(v.shape)
    starts[axis], limits[axis] = start, limit
    return bind(
        lax.slice_p,
        v,
        start_indices=tuple(starts),
        limit_indices=tuple(limits),
        strides=None,
    )


@register("split", precedence=LAST, types=(Declared,))
def split(v: Any, *, sizes: Sequence[int], axis: int) -> Any:
    stops = [int(n) for n in np.cumsum(sizes)]
    starts = [0, *stops[:-1]]
    return [slice_along(v, axis, i, j) for i, j in zip(starts, stops, strict=True)]


@register("unstack", precedence=LAST, types=(Declared,))
def unstack(v: Any, *, axis: int) -> Any:
    rows = [slice_along(v, axis, i, i + 1) for i in range(v.shape[axis])]
    return [bind(lax.squeeze_p, row, dimensions=(axis,)) for row in rows]


@register("tile", precedence=LAST, types=(Declared,))
def tile(v: Any, *, reps: Sequence[int]) -> Any:
    """Each axis that is repeated has one of the repetitions before it."""
    shape: list[int] = []
    places = []
    for repetitions, n in zip(reps, v.shape, strict=True):
        shape += [repetitions] if repetitions != 1 else []
        places.append(len(shape))
        shape.append(n)
    repeated = bind(
        lax.broadcast_in_dim_p,
        v,
        shape=tuple(shape),
        broadcast_dimensions=tuple(places),
        sharding=None,
    )
    return bind(
        lax.reshape_p,
        repeated,
        new_sizes=tuple(r * n for r, n in zip(reps, v.shape, strict=True)),
        dimensions=None,
        sharding=None,
    )


@register("stack", precedence=LAST, types=(Declared,))
def stack(*vs: Any, axis: int) -> Any:
    shape = vs[0].shape
    with_axis = lambda v: bind(
        lax.broadcast_in_dim_p,
        v,
        shape=(*shape[:axis], 1, *shape[axis:]),
        broadcast_dimensions=tuple(i + (i >= axis) for i in range(len(shape))),
        sharding=None,
    )
    return bind(lax.concatenate_p, *map(with_axis, vs), dimension=axis)

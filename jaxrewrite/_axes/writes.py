"""Writing an array into another one of the same type, leaf by leaf.

So a layer's weights are written into a stack of layers, and rows into a table. An entry of a leaf
that several entries of the array share must belong to what is written as a whole, or not at all.
Where it does not, the rules decline.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import ArrayLike

from .._core.avals import aval_of, same_treedef
from .._core.rules import register
from .._core.value import is_value
from .._staging.materialise import materialise
from .blocks import spread
from .declaration import Declared
from .layout import LeafAxis, Leaves, from_grid, leaves_of, locate_leaf, to_grid
from .methods import located, on_leaf
from .moves import LAST, Shape


@register("dynamic_update_slice", precedence=LAST)
def _(v: Declared, part: Declared, *starts: ArrayLike, **params: Any) -> Any:
    ndim = len(aval_of(v).shape)

    def write(x: Any, part: Any, *starts: Any) -> Any:
        rest = [jnp.zeros_like(starts[0])] * (len(x.shape) - ndim)
        return lax.dynamic_update_slice_p.bind(x, part, *starts, *rest)

    return written(v, part, range(ndim), write, starts)


@register("scatter", precedence=LAST)
def _(
    v: Declared, indices: ArrayLike, part: Declared, *, update_jaxpr: Any, **params: Any
) -> Any:
    if update_jaxpr is not None:
        return NotImplemented  # It is a function of the entries that are there.
    numbers, shape, sizes = (
        params["dimension_numbers"],
        aval_of(v).shape,
        aval_of(part).shape,
    )
    along = axes_written(len(shape), len(sizes), numbers)
    options = {k: params[k] for k in ("indices_are_sorted", "unique_indices", "mode")}
    count = math.prod(jnp.shape(indices)[:-1])
    if not options["unique_indices"] and count > 1 and len(leaves_of(v).leaves) > 1:
        once = _each_once(shape, jnp.asarray(indices), sizes, numbers, options["mode"])
        if once is None:
            return NotImplemented
        indices, options["mode"] = once, lax.GatherScatterMode.FILL_OR_DROP

    def write(x: Any, part: Any, indices: Any) -> Any:
        more = range(len(along), len(part.shape))
        windows = (*numbers.update_window_dims, *more)
        own = numbers._replace(update_window_dims=windows)
        return lax.scatter(x, indices, part, own, **options)

    return written(v, part, along, write, [indices])


def axes_written(
    ndim: int, ndim_of_part: int, numbers: lax.ScatterDimensionNumbers
) -> list[int | None]:
    """The axis of the array along which each axis of what is scattered lies, or ``None``."""
    gone = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    along: list[int | None] = [None] * ndim_of_part
    kept = (axis for axis in range(ndim) if axis not in gone)
    for axis, own in zip(kept, numbers.update_window_dims, strict=True):
        along[own] = axis
    return along


def written(
    v: Any,
    part: Any,
    along: Sequence[int | None],
    write: Callable[..., Any],
    indices: Sequence[Any],
) -> Any:
    """A value with each leaf of a part written into its own, or ``NotImplemented``.

    ``along`` has for each axis of the part the axis of the array that it lies along, ``None``
    for one of indices.
    """
    to, of = leaves_of(v), leaves_of(part)
    is_alike = type(v) is type(part) and same_treedef(to.structure(), of.structure())
    if not is_alike or to.axes.leafless or not _has_ranks(of, len(part.shape)):
        return NotImplemented
    shape, sizes = tuple(v.shape), tuple(part.shape)
    pairs = zip(located(to, shape), located(of, sizes), strict=True)
    leaves = []
    for (_, leaf, where), (_, new, places) in pairs:
        grid = _in_grid(leaf, where, len(shape))
        new_grid = _in_grid(new, places, len(sizes))
        wanted = _grid_of_part(grid.shape, shape, sizes, along)
        if (
            wanted is None
            or not _is_finer(wanted, new_grid.shape)
            or leaf.dtype != new.dtype
        ):
            return NotImplemented
        new_grid = on_leaf(functools.partial(spread, grid=wanted), new_grid)
        # Only a leaf that is a value has rules for others.
        new_grid = new_grid if is_value(grid) else materialise(new_grid)
        result = on_leaf(write, grid, new_grid, *indices)
        back = {"where": where, "shape": shape, "wanted": grid.shape[: len(shape)]}
        leaves.append(on_leaf(functools.partial(from_grid, **back), result))
    return to.rebuilt(leaves)


def _in_grid(leaf: Any, where: Sequence[LeafAxis], ndim: int) -> Any:
    return on_leaf(functools.partial(to_grid, where=where, ndim=ndim), leaf)


def _is_finer(grid: Sequence[int], other: Sequence[int]) -> bool:
    """Whether each axis of a grid has whole blocks of another one's."""
    return all(n % (k or 1) == 0 for n, k in zip(grid, other, strict=False))


def _has_ranks(children: Leaves, ndim: int) -> bool:
    return all(
        locate_leaf(children.axes, field, leaf, ndim) is not None
        for field, leaf in zip(children.fields, children.leaves, strict=True)
    )


def _grid_of_part(
    grid: Sequence[int], shape: Shape, sizes: Shape, along: Sequence[int | None]
) -> tuple[int, ...] | None:
    """The grid that a part's leaf needs, to be written into a leaf in a grid.

    ``None`` if entries that are written share an entry of the leaf with others.
    """
    whole = {
        axis
        for own, axis in enumerate(along)
        if axis is not None and sizes[own] == shape[axis]
    }
    if any(grid[a] != n and n > 1 and a not in whole for a, n in enumerate(shape)):
        return None
    return tuple(
        grid[axis] if axis in whole else size
        for axis, size in zip(along, sizes, strict=True)
    )


def _each_once(
    shape: Shape,
    indices: Any,
    sizes: Shape,
    numbers: lax.ScatterDimensionNumbers,
    mode: Any,
) -> Any:
    """Indices of which each place has one, the last that was given; the others are out of range.

    The order in which a scatter writes to one place is that of the device, and may differ from leaf
    to leaf. ``None`` if windows may overlap in part.
    """
    along = axes_written(len(shape), len(sizes), numbers)
    windows = {
        axis: size for axis, size in zip(along, sizes, strict=True) if axis is not None
    }
    if not indices.shape[-1] or any(shape[axis] != size for axis, size in windows.items()):
        return None
    if lax.GatherScatterMode.from_any(mode) == lax.GatherScatterMode.CLIP:
        last = [
            0 if a in windows else shape[a] - 1
            for a in numbers.scatter_dims_to_operand_dims
        ]
        indices = jnp.clip(indices, 0, jnp.asarray(last, indices.dtype))
    places = [1 if axis in windows else n for axis, n in enumerate(shape)]
    batch = indices.shape[:-1]
    count = jnp.arange(math.prod(batch)).reshape(batch)
    number = lax.expand_dims(count, numbers.update_window_dims)
    fill = lax.GatherScatterMode.FILL_OR_DROP
    of_place = lax.scatter_max(
        jnp.full(places, -1, number.dtype), indices, number, numbers, mode=fill
    )
    back = lax.GatherDimensionNumbers(
        offset_dims=tuple(numbers.update_window_dims),
        collapsed_slice_dims=tuple(numbers.inserted_window_dims),
        start_index_map=tuple(numbers.scatter_dims_to_operand_dims),
        operand_batching_dims=tuple(numbers.operand_batching_dims),
        start_indices_batching_dims=tuple(numbers.scatter_indices_batching_dims),
    )
    last_given = lax.gather(of_place, indices, back, [1] * len(shape), mode="clip")
    is_last = jnp.squeeze(last_given, numbers.update_window_dims) == count
    return jnp.where(is_last[..., None], indices, -1)

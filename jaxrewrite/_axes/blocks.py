"""Leaves in blocks: arrays of which neighbouring entries of another array share an entry.

A leaf in blocks has an axis for each axis of the other array. For an axis of length ``n`` the leaf
has a length ``k`` that divides ``n``: each of the ``k`` blocks of ``n // k`` entries has one entry of
the leaf. The leaf may have more axes behind, which all functions here leave alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from .sizes import common_divisor, common_multiple, is_at_most


def finest(*grids: Sequence[int]) -> tuple[int, ...]:
    """The coarsest grid that refines all the given grids."""
    return tuple(common_multiple(*sizes) for sizes in zip(*grids, strict=True))


def spread(shared: Any, grid: Sequence[int]) -> Any:
    """Repeat the entries so that they fill a finer grid of blocks."""
    rest = shared.shape[len(grid) :]
    if shared.shape == (*grid, *rest):
        return shared
    pairs = list(zip(shared.shape, grid, strict=False))
    apart = shared.reshape([size for k, _ in pairs for size in (k, 1)] + [*rest])
    repeated = [size for k, n in pairs for size in (k, n // (k or 1))] + [*rest]
    return jnp.broadcast_to(apart, repeated).reshape(*grid, *rest)


def spread_axis(shared: Any, axis: int, blocks: int) -> Any:
    """Repeat the entries along one axis so that the axis has ``blocks`` entries."""
    return spread(shared, (*shared.shape[:axis], blocks, *shared.shape[axis + 1 :]))


# --- reshapes ---------------------------------------------------------------------------


def reshape_blocks(shared: Any, old: Sequence[int], new: Sequence[int]) -> Any:
    """The entries that blocks share, for an array of shape ``old`` that is reshaped to ``new``.

    Each group of neighbouring axes has the same size before and after the reshape. A group
    is merged into one axis, where a block is a run of entries. That axis is then split.
    """
    rest = shared.shape[len(old) :]
    merged: list[int] = []
    runs: list[int] = []
    shorter: list[int] = []
    grid: list[int] = []
    for before, after in groups(old, new):
        blocks = shared.shape[len(merged) : len(merged) + len(before)]
        merged += merge(before, blocks)
        runs.append(math.prod(merged[len(merged) - len(before) :]))
        parts = split(math.prod(before) // runs[-1], after)
        shorter.append(math.prod(parts))
        grid += parts
    in_runs = spread(shared, merged).reshape(*runs, *rest)
    return spread(in_runs, shorter).reshape(*grid, *rest)


def groups(old: Sequence[int], new: Sequence[int]) -> Iterator[tuple[list[int], list[int]]]:
    """Group neighbouring axes so that a reshape keeps the size of each group."""
    olds, news = list(old), list(new)
    while olds or news:
        before, after = olds[:1], news[:1]
        del olds[:1], news[:1]
        while math.prod(before) != math.prod(after):
            # Of symbolic sizes it may not be known which is less, so that a group is longer.
            if olds and (not news or is_at_most(math.prod(before), math.prod(after))):
                before.append(olds.pop(0))
            else:
                after.append(news.pop(0))
        yield before, after


def merge(shape: Sequence[int], grid: Sequence[int]) -> list[int]:
    """Refine a grid until its blocks are runs of entries of the merged axes."""
    merged = list(grid)
    for axis in reversed(range(len(shape))):
        if not is_at_most(grid[axis], 1):
            merged[:axis] = shape[:axis]
            break
    return merged


def split(run: int, shape: Sequence[int]) -> list[int]:
    """The number of blocks along each axis, if runs of ``run`` entries share an entry."""
    grid = []
    for n in reversed(shape):
        common = common_divisor(run, n)
        grid.append(n // common)
        run = run // common if common == n else 1
    return grid[::-1]


# --- slices -----------------------------------------------------------------------------


def slice_blocks(shared: Any, axis: int, n: int, start: int, limit: int, step: int) -> Any:
    """The entries that belong to ``start:limit:step`` along an axis of length ``n``."""
    if is_at_most(shared.shape[axis], 1) or (start, limit, step) == (0, n, 1):
        return shared
    if start == limit:  # One block belongs to no entry as well as none does.
        return lax.slice_in_dim(shared, 0, 1, axis=axis)
    size = n // shared.shape[axis]
    if start // size == (limit - 1) // size:
        return lax.slice_in_dim(shared, start // size, start // size + 1, axis=axis)
    if step > 1:
        size = 1
    # A slice may begin or end inside a block. Then the blocks must become smaller.
    size = common_divisor(size, start, limit)
    shared = spread_axis(shared, axis, n // size)
    return lax.slice_in_dim(shared, start // size, limit // size, step, axis)


def window_of_blocks(
    shared: Any, axis: int, n: int, size: int
) -> tuple[Any, int, Callable[[Any], Any]]:
    """The window of entries that belongs to a window of ``size`` of ``n`` entries.

    Returns the array to slice, the number of its entries to take, and a function from
    the index of the window's first entry in the other array to the index of its first entry
    in this array. The index is known only when the program runs.
    """
    blocks = shared.shape[axis]
    if is_at_most(blocks, 1):
        return shared, 1, jnp.zeros_like
    if size == n or blocks == n:
        return shared, blocks if size == n else size, lambda index: index
    if size == 1:
        return shared, 1, lambda index: index // jnp.asarray(n // blocks, index.dtype)
    return spread_axis(shared, axis, n), size, lambda index: index


def dynamic_slice_blocks(
    shared: Any, shape: Sequence[int], starts: Sequence[Any], sizes: Sequence[int]
) -> Any:
    """The entries that belong to a window whose first index is in range."""
    indices, window = [], []
    for axis, (n, size) in enumerate(zip(shape, sizes, strict=True)):
        shared, count, index = window_of_blocks(shared, axis, n, size)
        window.append(count)
        indices.append(index(starts[axis]))
    rest = shared.shape[len(shape) :]
    indices += [jnp.zeros_like(starts[0])] * len(rest)
    return lax.dynamic_slice(shared, indices, (*window, *rest))


def gather_blocks(
    shared: Any,
    shape: Sequence[int],
    indices: Any,
    numbers: lax.GatherDimensionNumbers,
    slice_sizes: Sequence[int],
    mode: Any,
) -> Any:
    """The entries that belong to the result of a gather from an array of shape ``shape``."""
    rest = shared.shape[len(shape) :]
    leaf_numbers = with_more_axes(numbers, jnp.ndim(indices), len(rest))
    if shared.shape == (*shape, *rest):
        return lax.gather(shared, indices, leaf_numbers, (*slice_sizes, *rest), mode=mode)
    columns = {axis: indices[..., i] for i, axis in enumerate(numbers.start_index_map)}
    same_for_all = all(shared.shape[axis] == 1 for axis in columns)
    sizes = []
    for axis, n in enumerate(shape):
        if axis in numbers.operand_batching_dims:
            shared = spread_axis(shared, axis, n)
            sizes.append(1)
            continue
        shared, count, index = window_of_blocks(shared, axis, n, slice_sizes[axis])
        sizes.append(count)
        if axis in columns:
            columns[axis] = index(columns[axis])
    sizes += rest
    if same_for_all and not numbers.operand_batching_dims:
        # The window has the same entries wherever it is, so one copy is enough.
        window = lax.slice(shared, (0,) * len(sizes), sizes)
        window = lax.squeeze(window, numbers.collapsed_slice_dims)
        ndim = indices.ndim - 1 + window.ndim
        offset = leaf_numbers.offset_dims
        return lax.expand_dims(window, sorted(set(range(ndim)) - set(offset)))
    starts = jnp.stack(list(columns.values()), axis=-1) if columns else indices
    return lax.gather(shared, starts, leaf_numbers, tuple(sizes), mode=mode)


def with_more_axes(
    numbers: lax.GatherDimensionNumbers, ndim_of_indices: int, more: int
) -> lax.GatherDimensionNumbers:
    """The numbers of a gather of an operand with ``more`` axes behind, which it keeps whole."""
    ndim = len(numbers.offset_dims) + ndim_of_indices - 1
    return numbers._replace(offset_dims=(*numbers.offset_dims, *range(ndim, ndim + more)))

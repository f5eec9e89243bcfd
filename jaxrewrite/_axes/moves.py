"""The rules of types with a declaration, for primitives that only move entries.

The entries of a leaf move with the entries of the array that they belong to. These rules come
after all others. A move declines where the type can't say the result: where an axis that a leaf has
not would have to become an axis of the leaf, where the type makes an axis that is cut or moved, or
where a leaf would become no smaller than the dense array.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.tree_util import tree_structure
from jaxtyping import ArrayLike

from .._core.avals import aval_of, is_annotation, same_treedef
from .._core.rules import register
from .._staging.materialise import materialise
from .._staging.transform import transform
from .blocks import (
    dynamic_slice_blocks,
    finest,
    gather_blocks,
    reshape_blocks,
    slice_blocks,
    spread,
)
from .declaration import Declared
from .layout import (
    LeafAxis,
    Leaves,
    from_grid,
    has_rank,
    leaves_of,
    locate,
    tells_lengths,
    to_grid,
    wanted_grid,
)
from .methods import located, on_leaf
from .sizes import common_divisor, count_of, is_at_most


Shape = tuple[int, ...]
Shapes = Sequence[Shape]
Params = Mapping[str, Any]

# The rules of users and of the ready types come before.
LAST = -1000


class Move(NamedTuple):
    """A primitive that moves entries.

    Attributes
    ----------
    of_batch
        The parameters of the move of the first axes alone, for a shape, the number of the last
        axes, which have to stay as they are, the shapes of the indices, and parameters; ``None``
        if they do not stay.
    shape
        The shape of the result, for a shape, the shapes of the indices, and parameters.
    of_leaf
        Moves a leaf in the grid: for the leaf, the shape of the array, whether each entry of the
        array has an entry of its own in this leaf, indices, and parameters.
    """

    of_batch: Callable[[Shape, int, Shapes, Params], Params | None]
    shape: Callable[[Shape, Shapes, Params], Sequence[int]]
    of_leaf: Callable[..., Any]


def _rest(x: Any, shape: Shape) -> range:
    """The axes of a leaf in the grid that the array has not."""
    return range(len(shape), len(x.shape))


def _is_fine(x: Any, shape: Shape) -> bool:
    """Whether each entry of the array has an entry of its own in a leaf in the grid."""
    return tuple(x.shape[: len(shape)]) == shape


# --- each primitive ---------------------------------------------------------------------


def _transpose_batch(
    shape: Shape, last: int, indices: Shapes, params: Params
) -> Params | None:
    permutation, first = tuple(params["permutation"]), len(shape) - last
    if permutation[first:] != tuple(range(first, len(shape))):
        return None
    return {"permutation": permutation[:first]}


def _transpose(x: Any, shape: Shape, is_entrywise: bool, *, permutation: Any) -> Any:
    return lax.transpose(x, (*permutation, *_rest(x, shape)))


def _dimensions_of_batch(
    shape: Shape, last: int, indices: Shapes, params: Params
) -> Params | None:
    return params if max(params["dimensions"], default=-1) < len(shape) - last else None


def _broadcast_batch(
    shape: Shape, last: int, indices: Shapes, params: Params
) -> Params | None:
    new, dimensions = tuple(params["shape"]), tuple(params["broadcast_dimensions"])
    before, after = len(shape) - last, len(new) - last
    stay = dimensions[before:] == tuple(range(after, len(new)))
    if not stay or new[after:] != shape[before:]:
        return None
    return {"shape": new[:after], "broadcast_dimensions": dimensions[:before]}


def _broadcast(
    x: Any, old: Shape, is_entrywise: bool, *, shape: Any, broadcast_dimensions: Any
) -> Any:
    rest = [x.shape[i] for i in _rest(x, old)]
    if is_entrywise:
        dimensions = (*broadcast_dimensions, *range(len(shape), len(shape) + len(rest)))
        return lax.broadcast_in_dim(x, (*shape, *rest), dimensions)
    kept = dict(zip(broadcast_dimensions, x.shape, strict=False))
    return x.reshape([kept.get(axis, 1) for axis in range(len(shape))] + rest)


def _reshape_batch(
    shape: Shape, last: int, indices: Shapes, params: Params
) -> Params | None:
    new, kept = tuple(params["new_sizes"]), len(shape) - last
    if len(new) < last or new[len(new) - last :] != shape[kept:]:
        return None
    batch = new[: len(new) - last]
    return {"new_sizes": batch} if math.prod(batch) == math.prod(shape[:kept]) else None


def _reshape(x: Any, shape: Shape, is_entrywise: bool, *, new_sizes: Any) -> Any:
    if _is_fine(x, shape):
        return x.reshape([*new_sizes, *(x.shape[i] for i in _rest(x, shape))])
    return reshape_blocks(x, shape, new_sizes)


def _strides(shape: Shape, params: Params) -> Shape:
    return tuple(params["strides"] or (1,) * len(shape))


def _slice_batch(shape: Shape, last: int, indices: Shapes, params: Params) -> Params | None:
    k = len(shape) - last
    starts, limits = params["start_indices"], params["limit_indices"]
    strides = _strides(shape, params)
    if any(starts[k:]) or tuple(limits[k:]) != shape[k:] or {*strides[k:]} - {1}:
        return None
    return {
        "start_indices": starts[:k],
        "limit_indices": limits[:k],
        "strides": strides[:k],
    }


def _sliced_shape(shape: Shape, indices: Any, params: Params) -> list[int]:
    starts, limits = params["start_indices"], params["limit_indices"]
    windows = zip(starts, limits, _strides(shape, params), strict=True)
    return [count_of(*window) for window in windows]


def _slice(x: Any, shape: Shape, is_entrywise: bool, **params: Any) -> Any:
    starts, limits = params["start_indices"], params["limit_indices"]
    steps = _strides(shape, params)
    if _is_fine(x, shape):
        rest = [x.shape[i] for i in _rest(x, shape)]
        more = [0] * len(rest), [1] * len(rest)
        return lax.slice(x, (*starts, *more[0]), (*limits, *rest), (*steps, *more[1]))
    for axis, window in enumerate(zip(shape, starts, limits, steps, strict=True)):
        x = slice_blocks(x, axis, *window)
    return x


def _dynamic_slice_batch(
    shape: Shape, last: int, indices: Shapes, params: Params
) -> Params | None:
    k, sizes = len(shape) - last, tuple(params["slice_sizes"])
    return {"slice_sizes": sizes[:k]} if sizes[k:] == shape[k:] else None


def _dynamic_slice(
    x: Any, shape: Shape, is_entrywise: bool, *starts: Any, slice_sizes: Any
) -> Any:
    bounds = zip(starts, shape, slice_sizes, strict=False)
    in_range = [jnp.clip(start, 0, n - size) for start, n, size in bounds]
    return dynamic_slice_blocks(x, shape, in_range, slice_sizes) if in_range else x


def _gather_batch(
    shape: Shape, last: int, indices: Shapes, params: Params
) -> Params | None:
    """A gather of whole last axes that come last in the result, too."""
    numbers, sizes = params["dimension_numbers"], tuple(params["slice_sizes"])
    k, ndim = len(shape) - last, len(numbers.offset_dims) + len(indices[0]) - 1
    gone = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    named = (*gone, *numbers.start_index_map)
    if sizes[k:] != shape[k:] or max(named, default=-1) >= k:
        return None
    offset = tuple(numbers.offset_dims)
    stay = len(offset) - last
    if offset[stay:] != tuple(range(ndim - last, ndim)):
        return None
    batch_numbers = numbers._replace(offset_dims=offset[:stay])
    return {**params, "dimension_numbers": batch_numbers, "slice_sizes": sizes[:k]}


def _gathered_shape(shape: Shape, indices: Shapes, params: Params) -> list[int]:
    numbers, sizes = params["dimension_numbers"], params["slice_sizes"]
    gone = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    window = [n for axis, n in enumerate(sizes) if axis not in gone]
    windows = dict(zip(numbers.offset_dims, window, strict=True))
    others = iter(indices[0][:-1])
    ndim = len(window) + len(indices[0]) - 1
    return [windows[i] if i in windows else next(others) for i in range(ndim)]


def _gather(x: Any, shape: Shape, is_entrywise: bool, indices: Any, **params: Any) -> Any:
    numbers, sizes = params["dimension_numbers"], params["slice_sizes"]
    return gather_blocks(x, shape, indices, numbers, sizes, params["mode"])


MOVES: dict[str, Move] = {
    "transpose": Move(
        _transpose_batch,
        lambda shape, _, p: [shape[i] for i in p["permutation"]],
        _transpose,
    ),
    "rev": Move(
        _dimensions_of_batch,
        lambda shape, *_: shape,
        lambda x, shape, is_entrywise, *, dimensions: lax.rev(x, dimensions),
    ),
    "squeeze": Move(
        _dimensions_of_batch,
        lambda shape, _, p: [n for i, n in enumerate(shape) if i not in p["dimensions"]],
        lambda x, shape, is_entrywise, *, dimensions: lax.squeeze(x, dimensions),
    ),
    "broadcast_in_dim": Move(_broadcast_batch, lambda *x: x[-1]["shape"], _broadcast),
    "reshape": Move(_reshape_batch, lambda *x: x[-1]["new_sizes"], _reshape),
    "slice": Move(_slice_batch, _sliced_shape, _slice),
    "dynamic_slice": Move(
        _dynamic_slice_batch, lambda *x: x[-1]["slice_sizes"], _dynamic_slice
    ),
    "gather": Move(_gather_batch, _gathered_shape, _gather),
}


def _wanted(name: str, params: dict[str, Any], is_any: bool) -> Params | None:
    """The parameters that say where entries go; ``None`` if leaves can't move so.

    ``is_any`` allows the reshape of an array without entries.
    """
    wanted = {key: x for key, x in params.items() if key != "sharding"}
    if name == "reshape":
        return wanted if wanted.pop("dimensions") is None and is_any else None
    if name not in ("dynamic_slice", "gather"):
        return wanted
    if not all(wanted["slice_sizes"]):
        return None
    if name == "dynamic_slice":
        return wanted
    mode = lax.GatherScatterMode.from_any(wanted["mode"])
    if mode == lax.GatherScatterMode.ONE_HOT or fills(mode):
        return None
    return {key: wanted[key] for key in ("dimension_numbers", "slice_sizes", "mode")}


# --- gathers that fill in numbers ---------------------------------------------------------


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


def filled(gather: Callable[..., Any], v: Any, indices: Any, **params: Any) -> Any:
    """A gather that fills in a number, by a gather at indices in range. The result is dense.

    A number filled into a leaf would meet the derivatives of the other leaves: a product of zero
    and NaN is NaN. ``gather`` takes the value, the indices and parameters.
    """
    if is_annotation(v):
        return NotImplemented  # What it carries would be lost, and what is inside not be asked.
    clipped = {"mode": lax.GatherScatterMode.CLIP, "fill_value": None}
    gathered = gather(v, indices, **(params | clipped))
    if gathered is NotImplemented:
        return NotImplemented
    gathered = materialise(gathered)
    inside = in_range(v.shape, indices, params["dimension_numbers"], params["slice_sizes"])
    return jnp.where(inside, gathered, lax.full((), params["fill_value"], gathered.dtype))


# --- rules ------------------------------------------------------------------------------


@register(*MOVES, precedence=LAST)
def by_axes(v: Declared, *indices: ArrayLike, primitive: Any, **params: Any) -> Any:
    """Move the entries of each leaf as the entries of the array move."""
    move = functools.partial(moved, primitive.name)
    if primitive.name == "gather" and fills(params["mode"]):
        return filled(move, v, *indices, **params)
    return move(v, *indices, **params)


def moved(name: str, v: Any, *indices: Any, may_grow: bool = False, **params: Any) -> Any:
    """A value whose leaves have moved as the array; ``NotImplemented`` if there is none.

    ``may_grow`` allows leaves that become no smaller than the dense array.
    """
    children, shape = leaves_of(v), tuple(v.shape)
    axes, last = children.axes, len(children.axes.leafless)
    indices = tuple(map(_in_wide_integers, indices))
    shapes = [jnp.shape(index) for index in indices]
    is_any = 0 not in shape or all(map(axes.is_entrywise, axes.leaves))
    wanted = _wanted(name, params, is_any)
    if wanted is not None and last:
        wanted = MOVES[name].of_batch(shape, last, shapes, wanted)
    if wanted is None:
        return NotImplemented
    batch_params, move, batch = dict(wanted), MOVES[name], shape[: len(shape) - last]
    new = tuple(move.shape(batch, shapes, batch_params))
    if not has_rank(axes, len(new)):
        return NotImplemented

    def in_new_grid(field: str, leaf: Any, where: Sequence[LeafAxis]) -> Any:
        def fn(leaf: Any, *indices: Any) -> Any:
            in_grid = to_grid(leaf, where, len(batch))
            return move.of_leaf(
                in_grid, batch, axes.is_entrywise(field), *indices, **batch_params
            )

        return on_leaf(fn, leaf, *indices)

    grids = [in_new_grid(*each) for each in located(children, batch)]
    return from_grids(children, grids, new, shape[len(batch) :], may_grow)


# Indices are compared with lengths, and divided by the lengths of blocks.
def _in_wide_integers(index: Any) -> Any:
    if jnp.iinfo(jnp.result_type(index)).bits >= 32:
        return index
    return jnp.asarray(index).astype(jnp.int32)


def from_grids(
    children: Leaves,
    grids: Sequence[Any],
    batch: Shape,
    leafless: Shape,
    may_grow: bool = False,
) -> Any:
    """The value of leaves in the grid of an array, or ``NotImplemented``.

    The array has the axes ``batch``, and behind them the axes that the type makes, ``leafless``.
    """
    axes = children.axes
    if not tells_lengths(axes, batch):
        return NotImplemented
    leaves: list[Any] = []
    blocks: dict[str, set[int]] = {name: set() for name in axes.blocks}
    for field, grid in zip(children.fields, grids, strict=True):
        where = locate(axes, field, len(grid.shape) - len(batch), len(batch))
        wanted = None if where is None else wanted_grid(grid.shape, where, batch)
        if where is None or wanted is None:
            return NotImplemented
        to = lambda x, where=where, wanted=wanted: from_grid(x, where, batch, wanted)
        leaves.append(on_leaf(to, grid))
        for i, block in where:
            if i is not None and block in blocks:
                blocks[block].add(batch[i] // (wanted[i] or 1))
    if any(len(sizes) > 1 for sizes in blocks.values()):
        return NotImplemented
    value = children.rebuilt(leaves, batch)
    for name, sizes in blocks.items():
        for size in sizes:
            object.__setattr__(value, name, size)
    is_too_large = not may_grow and has_grown(children.value, value, (*batch, *leafless))
    return NotImplemented if is_too_large else value


def has_grown(old: Any, new: Any, shape: Shape | None = None) -> bool:
    """Whether a leaf has become no smaller than the dense array, and was smaller before.

    A leaf with an entry for each entry of the array is always as large. ``shape`` is the shape
    of the new array.
    """
    before, after = leaves_of(old), leaves_of(new)
    size = math.prod(old.shape)
    most = math.prod(new.shape if shape is None else shape)
    for field, x, y in zip(before.fields, before.leaves, after.leaves, strict=True):
        may_grow = before.axes.is_entrywise(field) or field in old._may_grow
        was_large = is_at_most(size, x.size) or is_at_most(y.size, x.size)
        if not may_grow and not was_large and is_at_most(most, y.size):
            return True
    return False


# --- several values ---------------------------------------------------------------------


@register("select_n", precedence=LAST)
def select_by_axes(which: ArrayLike, *cases: Declared, **params: Any) -> Any:
    """Choose each leaf, by one truth value or number."""
    in_one_structure = aligned(cases) if jnp.ndim(which) == 0 else None
    if in_one_structure is None:
        return NotImplemented
    choose = lambda *leaves: lax.select_n(which, *leaves)
    return jax.tree.map(choose, *in_one_structure)


@register("concatenate", precedence=LAST)
def concatenate_by_axes(*vs: Declared, dimension: int, **params: Any) -> Any:
    """Join each leaf. What has no entries says nothing of them."""
    vs = tuple(v for v in vs if aval_of(v).shape[dimension]) or vs[:1]
    if len(vs) == 1:
        return vs[0]
    in_one_grid = in_grids(vs, dimension)
    if in_one_grid is None:
        return NotImplemented
    first, columns = in_one_grid
    shapes = [aval_of(v).shape for v in vs]
    shape = list(shapes[0])
    count = len(shape) - len(first.axes.leafless)
    shape[dimension] = sum(of[dimension] for of in shapes)
    join = transform(lambda *parts: lax.concatenate(parts, dimension))
    joined = [join(*column) for column in columns]
    return from_grids(first, joined, tuple(shape[:count]), tuple(shape[count:]))


def aligned(values: Sequence[Any]) -> list[Any] | None:
    """The same arrays in one structure; ``None`` if they have none in common."""
    in_one_grid = in_grids(values)
    if in_one_grid is None:
        return None
    first, columns = in_one_grid
    shape, count = tuple(values[0].shape), len(values[0].shape) - len(first.axes.leafless)
    rows = zip(*columns, strict=True)
    results = [
        from_grids(first, row, shape[:count], shape[count:], may_grow=True) for row in rows
    ]
    return None if any(v is NotImplemented for v in results) else results


def in_grids(
    values: Sequence[Any], axis: int | None = None
) -> tuple[Leaves, list[list[Any]]] | None:
    """The leaves of several values, each in one grid for all; ``None`` if they differ.

    The values may differ in length along ``axis``. Their blocks get one size there.
    """
    if len({type(v) for v in values}) > 1:
        return None
    children = [leaves_of(v) for v in values]
    first = children[0]
    ndim = len(values[0].shape) - len(first.axes.leafless)
    if axis is not None and (axis >= ndim or any(0 in v.shape for v in values)):
        return None
    if not all(same_treedef(of.structure(), first.structure()) for of in children):
        return None
    grids = [
        [on_leaf(lambda x, w=where: to_grid(x, w, ndim), leaf) for _, leaf, where in of]
        for of in map(located, children, [v.shape[:ndim] for v in values])
    ]
    columns = []
    for column in zip(*grids, strict=True):
        if len({(tree_structure(x), x.dtype, x.shape[ndim:]) for x in column}) > 1:
            return None
        columns.append(_alike(values, column, ndim, axis))
    return first, columns


def _alike(values: Any, column: Sequence[Any], ndim: int, axis: int | None) -> list[Any]:
    """Leaves in the grid, in the coarsest blocks that divide those of all.

    Along the axis itself, the sizes of blocks count and not their number.
    """
    ones = range(ndim) if axis is None else (*range(axis), None, *range(axis + 1, ndim))
    grid = finest(*([1 if i is None else x.shape[i] for i in ones] for x in column))
    lengths = [0 if axis is None else v.shape[axis] for v in values]
    size = 0
    if axis is not None:
        size = common_divisor(
            *(n // x.shape[axis] for n, x in zip(lengths, column, strict=True))
        )
    spreads = []
    for n, x in zip(lengths, column, strict=True):
        blocks = grid if axis is None else (*grid[:axis], n // size, *grid[axis + 1 :])
        spreads.append(on_leaf(lambda x, blocks=blocks: spread(x, blocks), x))
    return spreads

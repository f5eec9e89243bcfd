"""Arrays held as small integers, with multipliers that neighbouring entries share.

In all such types every leaf has as many axes as the array. The first leaf holds the
codes and has the array's shape. The other leaves hold the multipliers. Where an axis of
the array has length ``n``, that axis of a multiplier has a length ``k`` that divides
``n``. The axis then has ``k`` blocks of ``n // k`` consecutive entries, and all entries
of a block share one multiplier. So a primitive that moves entries can move the entries of
each leaf separately.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import ArrayLike

import jaxrewrite
from jaxrewrite import _compat, primitives

from .._base.contract import is_or_none
from .._base.gathers import fills
from .._base.structured import Structured


class Coded(Structured):
    r"""Base class of quantisation formats: ``levels()`` times ``scale_of_blocks()``.

    The first field of a subclass holds the codes, in the shape of the array. The other
    fields hold what the entries of a block share. They have as many axes as the codes, and
    the length of each axis divides the length of that axis of the codes. A subclass defines
    the three methods below. Then transposes, reshapes, slices, stacks, lookups, scaling,
    casts, products and convolutions keep the array quantised, or they dequantise only what
    they need. No float copy outlives a product.

    Examples
    --------
    One bit an entry and one scale a block, as in XNOR-Net:

    >>> import dataclasses, jax, jax.numpy as jnp, jaxrewrite
    >>> from jaxrewrite import values
    >>> class Signs(values.Coded):
    ...     is_negative: jax.Array  # bool[n, m]
    ...     scale: jax.Array  # float[k, l]
    ...     def levels(self):
    ...         return jnp.where(self.is_negative, -1, 1).astype(self.scale.dtype)
    ...     def scale_of_blocks(self):
    ...         return self.scale
    ...     def map_scales(self, change):
    ...         return dataclasses.replace(self, scale=change(self.scale))
    >>> v = Signs(jnp.array([[True, False], [False, False]]), jnp.array([[2.0, 3.0]]))
    >>> jnp.ones(2) @ (v / 2)
    Array([0., 3.], dtype=float32)
    >>> v.T
    Signs([[-2.  2.]
           [ 3.  3.]], dtype=float32)
    """

    _is_base: ClassVar[bool] = True
    axes = staticmethod(
        lambda codes, *shared: {codes: "...", **dict.fromkeys(shared, ".../block")}
    )

    def picture(self) -> Any:
        """The array: a zero among the codes is a number, no gap in a structure."""
        return jaxrewrite.materialise(self)

    @abc.abstractmethod
    def levels(self) -> jax.Array:
        """The numbers that the codes stand for, in the shape and dtype of the array.

        They must be exact for every code, because the scales multiply them afterwards.
        Codes of four bits may come as the same integers in eight bits.
        """

    def integers(self) -> jax.Array | None:
        """The levels as an array of int8, if they are stored as such.

        A large array whose product is scaled after it is summed is then multiplied as it is,
        on a CPU. By default it is None: the levels become floating.
        """
        return None

    @abc.abstractmethod
    def scale_of_blocks(self) -> jax.Array:
        """The number that multiplies the levels of each block, in this array's dtype."""

    @abc.abstractmethod
    def map_scales(self, change: Callable[[Any], Any]) -> Self:
        """This array with `scale_of_blocks` changed by a function.

        The function is linear and acts on each entry separately. It may return a finer grid
        of blocks and another floating dtype. Apply it to all fields in which the scales are
        linear.
        """

    def has_scales_in(self, dtype: Any) -> bool:
        """Whether the scales of usual weights are normal numbers of a floating dtype.

        If they are not, a cast to that dtype makes the array dense, because the scales would
        lose their digits. No dtype of 8 bits or less has them.
        """
        return bool(jnp.finfo(dtype).bits > 8)

    def aval(self) -> Any:
        codes = jax.tree.leaves(self)[0]
        dtype = jax.eval_shape(type(self).scale_of_blocks, self).dtype
        return jax.core.ShapedArray(jnp.shape(codes), dtype)

    def materialise(self) -> jax.Array:
        return _dense_at_once(self) if self._compiles_materialise() else _dense(self)

    def shared(self) -> list[Any]:
        """The leaves of which an entry is shared by a block."""
        return jax.tree.leaves(self)[1:]

    def among(self, values: Sequence[Any]) -> Self:
        """This array in a form that others, with which one array is made, have too."""
        return self

    def join(self, other: Any) -> Any:
        met = aligned([self, other]) if isinstance(other, Coded) else None
        return NotImplemented if met is None else tuple(met)


def _dense(v: Coded) -> jax.Array:
    return blockwise(jnp.multiply, v.levels(), v.scale_of_blocks())


# One operation after the other takes longer, and more memory.
_dense_at_once = jax.jit(_dense)


def check_blocks(cls: str, **leaves: Any) -> None:
    """Raise `ValueError` unless the other leaves divide the first into whole blocks."""
    (first, codes), *others = leaves.items()
    shape = jnp.shape(codes)
    for name, leaf in others:
        blocks = jnp.shape(leaf)
        fits = len(blocks) == len(shape) and all(
            n == k or (k > 0 and n % k == 0) for k, n in zip(blocks, shape, strict=True)
        )
        if not fits:
            raise ValueError(
                f"{cls}: `{name}` must have as many axes as `{first}`, and the length of "
                f"each must divide the length of that axis of `{first}`; got shapes "
                f"{blocks} and {shape}."
            )


def checked_weight(cls: str, w: Any) -> Any:
    """The array to quantise, dense if it is a value.

    Raises
    ------
    TypeError
        If it is a list or a tuple.
    ValueError
        If its dtype is not real floating, or it has infinite or NaN entries.
    """
    if isinstance(w, (list, tuple)):
        raise TypeError(f"{cls}: w is a {type(w).__name__}, but must be one array.")
    w = jaxrewrite.materialise(w)
    if not jnp.issubdtype(jnp.result_type(w), jnp.floating):
        raise ValueError(f"{cls}: `w` must be real floating; got {jnp.result_type(w)}.")
    if not isinstance(w, jax.core.Tracer):
        # JAX would trace this, too, while it traces something else.
        with jax.ensure_compile_time_eval():
            is_finite = bool(_is_finite(w))
        if not is_finite:
            raise ValueError(f"{cls}: `w` has entries that are infinite or NaN.")
    return jnp.asarray(w)


@jax.jit
def _is_finite(x: Any) -> Any:
    return jnp.isfinite(x).all()


def block_sizes(cls: str, shape: Sequence[int], block: Any) -> tuple[int, ...]:
    """The size of a block along each axis.

    An integer ``block`` is the size along the first axis. In a tuple, None stands for the
    whole axis.
    """
    if isinstance(block, int):
        block = (block, *(1 for _ in shape[1:]))
    if len(block) != len(shape):
        raise ValueError(f"{cls}: `block` is {block} for an array of shape {tuple(shape)}.")
    sizes = tuple(n if b is None else b for b, n in zip(block, shape, strict=True))
    if any(b != n and (b < 1 or n % b) for b, n in zip(sizes, shape, strict=True)):
        raise ValueError(
            f"{cls}: `block` {sizes} does not divide the shape {tuple(shape)} into "
            "whole blocks. Give `block` a number for each axis, or None for a whole axis."
        )
    return sizes


def sizes_of(cls: str, shape: Sequence[int], axis: Any, block: Any) -> tuple[int, ...]:
    """The size of a block along each axis, from ``axis`` or ``block`` of `quantise`."""
    if block is not None:
        if axis is not None:
            raise ValueError(f"{cls}: give `axis` or `block`, not both.")
        return block_sizes(cls, shape, block)
    axes = () if axis is None else (axis,) if isinstance(axis, int) else tuple(axis)
    if any(not -len(shape) <= a < len(shape) for a in axes):
        raise ValueError(
            f"{cls}: `axis` {axis} is not an axis of an array of shape {tuple(shape)}."
        )
    single = {a % len(shape) for a in axes}
    return tuple(1 if a in single else n for a, n in enumerate(shape))


def of_blocks(reduce: Callable[..., Any], x: Any, sizes: Sequence[int]) -> Any:
    """Reduce each block of these sizes to a number."""
    pairs = list(zip(x.shape, sizes, strict=True))
    split = x.reshape([size for n, b in pairs for size in (n // max(b, 1), b)])
    return reduce(split, axis=tuple(range(1, 2 * x.ndim, 2)), initial=0)


def with_nan(shared: Any, x: Any, sizes: Sequence[int]) -> Any:
    """The numbers of blocks of these sizes, or NaN if a block has a NaN, which no integer shows.

    XLA on a CPU may lose a NaN in a maximum.
    """
    return jnp.where(of_blocks(jnp.max, jnp.isnan(x), sizes), jnp.nan, shared)


def scale_in(dtype: Any, scale: Any, level: Any) -> Any:
    """The least scales of a dtype that are no smaller than these, and one for zero.

    A scale that is rounded down would cut off the largest entries. In a block of zeros any
    scale gives zero. But where ``level``, the largest magnitude of a level, would stand for
    more than the largest number of the dtype, the scale is the largest that does not.
    """
    rounded = scale.astype(dtype)
    larger = jnp.nextafter(rounded, jnp.asarray(jnp.inf, dtype))
    rounded = jnp.where(rounded.astype(scale.dtype) < scale, larger, rounded)
    # Scales that are infinite stay so, as they are those of infinite entries.
    most = jnp.asarray(jnp.finfo(dtype).max, scale.dtype)
    limit = jnp.broadcast_to(most / level, scale.shape).astype(dtype)
    smaller = jnp.nextafter(limit, jnp.zeros((), dtype))
    limit = jnp.where(limit.astype(scale.dtype) * level > most, smaller, limit)
    rounded = jnp.where(jnp.isfinite(scale), jnp.minimum(rounded, limit), rounded)
    return jnp.where(rounded == 0, 1, rounded)


# --- what the entries of a block share ------------------------------------------------


def blockwise(op: Callable[..., Any], x: Any, shared: Any) -> Any:
    """``op(x, shared)``, where each entry of ``shared`` belongs to a block of ``x``.

    The axes of ``x`` are split, which costs nothing. The alternative, repeating the entries
    of ``shared``, would cost memory.
    """
    pairs = list(zip(x.shape, shared.shape, strict=True))
    factors = [[(n, k)] if k in (1, n) else [(k, k), (n // k, 1)] for n, k in pairs]
    split = [axis for axes in factors for axis in axes]
    x_split = x.reshape([n for n, _ in split])
    return op(x_split, shared.reshape([k for _, k in split])).reshape(x.shape)


def relative(x: Any, shared: Any) -> Any:
    """The entries divided by what their blocks share, which is positive, or zero for zeros.

    XLA on a CPU multiplies with the inverse, which it takes for zero if it is subnormal. So both
    are a quarter of what they were, which rounds nothing that a large divisor leaves.
    """
    part = jnp.where(shared > 1, 0.25, 1).astype(shared.dtype)
    divisor = jnp.where(shared == 0, 1, shared * part)
    return blockwise(jnp.divide, blockwise(jnp.multiply, x, part), divisor)


def spread(shared: Any, grid: Sequence[int]) -> Any:
    """Repeat the entries so that they fill a finer grid of blocks."""
    if shared.shape == tuple(grid):
        return shared
    pairs = list(zip(shared.shape, grid, strict=True))
    apart = shared.reshape([size for k, _ in pairs for size in (k, 1)])
    repeated = [size for k, n in pairs for size in (k, n // max(k, 1))]
    return jnp.broadcast_to(apart, repeated).reshape(tuple(grid))


def finest(*grids: Sequence[int]) -> tuple[int, ...]:
    """The coarsest grid that refines all the given grids."""
    return tuple(math.lcm(*sizes) for sizes in zip(*grids, strict=True))


def aligned(values: Sequence[Coded], axis: int | None = None) -> list[Any] | None:
    """The values with their multipliers on one grid; ``None`` if their structures differ.

    The values may differ in length along ``axis``. Their blocks get one size there.
    """
    flat: list[tuple[list[Any], Any]] = [jax.tree.flatten(v.among(values)) for v in values]
    if len({(treedef, *(x.dtype for x in leaves)) for leaves, treedef in flat}) > 1:
        return None

    def spread_alike(*column: Any) -> list[Any]:
        grid = finest(*(x.shape for x in column))
        if axis is None:
            return [spread(x, grid) for x in column]
        lengths = [v.shape[axis] for v in values]
        size = math.gcd(*(n // x.shape[axis] for n, x in zip(lengths, column, strict=True)))
        return [
            spread(x, (*grid[:axis], n // size, *grid[axis + 1 :]))
            for n, x in zip(lengths, column, strict=True)
        ]

    columns = zip(*(leaves for leaves, _ in flat), strict=True)
    rows = zip(*(spread_alike(*column) for column in columns), strict=True)
    return [treedef.unflatten(row) for row, (_, treedef) in zip(rows, flat, strict=True)]


def each_leaf(
    v: Coded, of_codes: Callable[..., Any], of_shared: Callable[..., Any]
) -> Coded:
    """Change each leaf by a function: ``of_codes(codes)`` and ``of_shared(leaf, shape)``.

    ``shape`` is the shape of the array.
    """
    (codes, *shared), treedef = jax.tree.flatten(v)
    new = [of_codes(codes), *(of_shared(x, codes.shape) for x in shared)]
    return jax.tree.unflatten(treedef, new)


def unless_grown(old: Coded, new: Coded) -> Any:
    """The new array, or NotImplemented if each of its entries has its own multiplier.

    Such a result would be no smaller than the dense array.
    """
    size = jax.tree.leaves(new)[0].size
    if any(
        y.size > x.size and y.size >= size
        for x, y in zip(old.shared(), new.shared(), strict=True)
    ):
        return NotImplemented
    return new


def leafwise(v: Coded, of_codes: Callable[..., Any], of_shared: Callable[..., Any]) -> Any:
    """`each_leaf`, or NotImplemented if the result would be as large as the dense array."""
    return unless_grown(v, each_leaf(v, of_codes, of_shared))


# --- where entries go -----------------------------------------------------------------


@jaxrewrite.register("transpose")
def _(v: Coded, *, permutation, **params) -> Any:
    move = lambda x, *_: lax.transpose(x, permutation)
    return leafwise(v, move, move)


@jaxrewrite.register("rev")
def _(v: Coded, *, dimensions, **params) -> Any:
    turn = lambda x, *_: lax.rev(x, dimensions)
    return leafwise(v, turn, turn)


@jaxrewrite.register("squeeze")
def _(v: Coded, *, dimensions, **params) -> Any:
    drop = lambda x, *_: lax.squeeze(x, dimensions)
    rest = leafwise(v, drop, drop)
    # A row or an entry that was taken from a table is an activation.
    is_taken = rest is not NotImplemented and rest.ndim < 2
    return rest.materialise() if is_taken else rest


@jaxrewrite.register("broadcast_in_dim")
def _(v: Coded, *, shape, broadcast_dimensions, **params) -> Any:
    def once(shared: Any, _: Any) -> Any:
        kept = dict(zip(broadcast_dimensions, shared.shape, strict=True))
        return shared.reshape([kept.get(axis, 1) for axis in range(len(shape))])

    repeat = lambda x: lax.broadcast_in_dim(x, shape, broadcast_dimensions)
    return leafwise(v, repeat, once)


@jaxrewrite.register("reshape")
def _(v: Coded, *, new_sizes, dimensions, **params) -> Any:
    if dimensions is not None or v.size == 0:
        return NotImplemented
    return leafwise(
        v,
        lambda codes: codes.reshape(new_sizes),
        lambda shared, shape: reshape_blocks(shared, shape, new_sizes),
    )


def reshape_blocks(shared: Any, old: Sequence[int], new: Sequence[int]) -> Any:
    """The multipliers of an array of shape ``old`` after a reshape to ``new``.

    Each group of neighbouring axes has the same size before and after the reshape. A group
    is merged into one axis, where a block is a run of entries. That axis is then split.
    """
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
    return spread(spread(shared, merged).reshape(runs), shorter).reshape(grid)


def groups(old: Sequence[int], new: Sequence[int]) -> Iterator[tuple[list[int], list[int]]]:
    """Group neighbouring axes so that a reshape keeps the size of each group."""
    olds, news = list(old), list(new)
    while olds or news:
        before, after = olds[:1], news[:1]
        del olds[:1], news[:1]
        while math.prod(before) != math.prod(after):
            if math.prod(before) < math.prod(after):
                before.append(olds.pop(0))
            else:
                after.append(news.pop(0))
        yield before, after


def merge(shape: Sequence[int], grid: Sequence[int]) -> list[int]:
    """Refine a grid until its blocks are runs of entries of the merged axes."""
    merged = list(grid)
    for axis in reversed(range(len(shape))):
        if grid[axis] > 1:
            merged[:axis] = shape[:axis]
            break
    return merged


def split(run: int, shape: Sequence[int]) -> list[int]:
    """The number of blocks along each axis, if runs of ``run`` entries share a multiplier."""
    grid = []
    for n in reversed(shape):
        common = math.gcd(run, n)
        grid.append(n // common)
        run = run // common if common == n else 1
    return grid[::-1]


@jaxrewrite.register("slice")
def _(v: Coded, *, start_indices, limit_indices, strides, **params) -> Any:
    return sliced(v, start_indices, limit_indices, strides or (1,) * v.ndim)


@jaxrewrite.register("split")
def _(v: Coded, *, sizes, axis, **params) -> Any:
    starts, limits = [0] * v.ndim, list(v.shape)
    parts = []
    for size in sizes:
        limits[axis] = starts[axis] + size
        parts.append(sliced(v, tuple(starts), tuple(limits), (1,) * v.ndim))
        starts[axis] += size
    return NotImplemented if any(part is NotImplemented for part in parts) else parts


def sliced(v: Coded, starts: Any, limits: Any, steps: Any) -> Any:
    """Slice the codes, and the multipliers of the blocks that the slice meets."""

    def cut(shared: Any, shape: Sequence[int]) -> Any:
        windows = zip(shape, starts, limits, steps, strict=True)
        for axis, (n, *window) in enumerate(windows):
            shared = slice_blocks(shared, axis, n, *window)
        return shared

    return leafwise(v, lambda codes: lax.slice(codes, starts, limits, steps), cut)


def slice_blocks(shared: Any, axis: int, n: int, start: int, limit: int, step: int) -> Any:
    """The multipliers of ``start:limit:step`` along an axis of length ``n``."""
    if shared.shape[axis] <= 1 or (start, limit, step) == (0, n, 1):
        return shared
    size = n // shared.shape[axis]
    if start // size == (limit - 1) // size:
        return lax.slice_in_dim(shared, start // size, start // size + 1, axis=axis)
    if step > 1:
        size = 1
    # A slice may begin or end inside a block. Then the blocks must become smaller.
    size = math.gcd(size, start, limit)
    shared = spread_axis(shared, axis, n // size)
    return lax.slice_in_dim(shared, start // size, limit // size, step, axis)


def spread_axis(shared: Any, axis: int, blocks: int) -> Any:
    """Repeat the entries along one axis so that there are ``blocks`` of them."""
    return spread(shared, (*shared.shape[:axis], blocks, *shared.shape[axis + 1 :]))


def window_of_blocks(
    shared: Any, axis: int, n: int, size: int
) -> tuple[Any, int, Callable[[Any], Any]]:
    """The window of multipliers that belongs to a window of ``size`` of ``n`` entries.

    Returns the multipliers to slice, the number of multipliers to take, and a function from
    the index of the first entry to the index of the first multiplier. The index of the
    first entry is known only when the program runs.
    """
    blocks = shared.shape[axis]
    if blocks <= 1:
        return shared, 1, jnp.zeros_like
    if size == n or blocks == n:
        return shared, min(size, blocks), lambda index: index
    if size == 1:
        return shared, 1, lambda index: index // jnp.asarray(n // blocks, index.dtype)
    return spread_axis(shared, axis, n), size, lambda index: index


def is_weight(shape: Sequence[int], sizes: Sequence[int], gone: Iterable[int] = ()) -> bool:
    """Whether a window of these sizes, without some axes, is a matrix, as weights are.

    Rows that are looked up in a table are activations. An axis of length one counts if the
    array has no more there.
    """
    pairs = enumerate(zip(shape, sizes, strict=True))
    there = [a for a, (n, size) in pairs if a not in gone and (size > 1 or n == 1)]
    return len(there) > 1


@jaxrewrite.register("dynamic_slice")
def _(v: Coded, *starts: ArrayLike, slice_sizes, **params) -> Any:
    if not all(slice_sizes):
        return NotImplemented
    starts = tuple(
        jnp.clip(start, 0, n - size)
        for start, n, size in zip(starts, v.shape, slice_sizes, strict=True)
    )

    def cut(shared: Any, shape: Sequence[int]) -> Any:
        indices, sizes = [], []
        for axis, (n, size) in enumerate(zip(shape, slice_sizes, strict=True)):
            shared, taken, index = window_of_blocks(shared, axis, n, size)
            sizes.append(taken)
            indices.append(index(starts[axis]))
        return lax.dynamic_slice(shared, indices, sizes)

    window = each_leaf(v, lambda codes: lax.dynamic_slice(codes, starts, slice_sizes), cut)
    if not is_weight(v.shape, slice_sizes):
        return window.materialise()
    return unless_grown(v, window)


@jaxrewrite.register("gather")
def _(
    v: Coded,
    indices: jax.Array,
    *,
    dimension_numbers,
    slice_sizes,
    mode,
    **params,
) -> Any:
    """Gather codes and multipliers.

    Rows of a table are activations, so they become dense. Matrices that are gathered from a
    stack are still weights, so they stay quantised.
    """
    if mode == lax.GatherScatterMode.ONE_HOT or fills(mode) or 0 in slice_sizes:
        return NotImplemented
    numbers = dimension_numbers
    gathered = each_leaf(
        v,
        lambda codes: lax.gather(codes, indices, numbers, slice_sizes, mode=mode),
        lambda shared, shape: gather_blocks(
            shared, shape, indices, numbers, slice_sizes, mode
        ),
    )
    if (
        takes_matrices(v.shape, numbers, slice_sizes)
        and unless_grown(v, gathered) is not NotImplemented
    ):
        return gathered
    return gathered.materialise()


def takes_matrices(
    shape: Sequence[int],
    dimension_numbers: lax.GatherDimensionNumbers,
    slice_sizes: Sequence[int],
    **params: Any,
) -> bool:
    """Whether a gather takes weights from a stack."""
    numbers = dimension_numbers
    # Under `jax.vmap`, the axis along which one row is taken is still there.
    gone = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    return is_weight(shape, slice_sizes, gone)


# An array of one axis, such as a bias, is no larger than the activations that it is added to.


@jaxrewrite.register(*primitives.ADDITIVE, exchange="types")
def _(x: Coded, y: ArrayLike, *, primitive, **params) -> Any:
    if any(isinstance(z, Coded) and z.ndim > 1 for z in (x, y)):
        return NotImplemented
    return primitive.bind(*jaxrewrite.materialise((x, y)), **params)


def gather_blocks(
    shared: Any,
    shape: Sequence[int],
    indices: Any,
    numbers: lax.GatherDimensionNumbers,
    slice_sizes: Sequence[int],
    mode: Any,
) -> Any:
    """The multipliers of the result of a gather from an array of shape ``shape``."""
    columns = {axis: indices[..., i] for i, axis in enumerate(numbers.start_index_map)}
    same_for_all = all(shared.shape[axis] == 1 for axis in columns)
    sizes = []
    for axis, n in enumerate(shape):
        if axis in numbers.operand_batching_dims:
            shared = spread_axis(shared, axis, n)
            sizes.append(1)
            continue
        shared, taken, index = window_of_blocks(shared, axis, n, slice_sizes[axis])
        sizes.append(taken)
        if axis in columns:
            columns[axis] = index(columns[axis])
    if same_for_all and not numbers.operand_batching_dims:
        # The window has the same multipliers wherever it is, so one copy is enough.
        window = lax.slice(shared, (0,) * len(sizes), sizes)
        window = lax.squeeze(window, numbers.collapsed_slice_dims)
        ndim = indices.ndim - 1 + window.ndim
        return lax.expand_dims(window, sorted(set(range(ndim)) - set(numbers.offset_dims)))
    starts = jnp.stack(list(columns.values()), axis=-1)
    return lax.gather(shared, starts, numbers, tuple(sizes), mode=mode)


@jaxrewrite.register("concatenate")
def _(*vs: Coded, dimension, **params) -> Any:
    met = aligned(vs, dimension) if all(v.size for v in vs) else None
    if met is None:
        return NotImplemented
    joined = jax.tree.map(lambda *parts: lax.concatenate(parts, dimension), *met)
    return unless_grown(vs[0], joined)


@jaxrewrite.register("stack")
def _(*vs: Coded, axis, **params) -> Any:
    met = aligned(vs)
    if met is None:
        return NotImplemented
    return jax.tree.map(lambda *parts: jnp.stack(parts, axis), *met)


@jaxrewrite.register("unstack")
def _(v: Coded, *, axis, **params) -> Any:
    def element(x: Any, i: int) -> Any:
        return lax.index_in_dim(x, i * x.shape[axis] // v.shape[axis], axis, keepdims=False)

    return [jax.tree.map(lambda x, i=i: element(x, i), v) for i in range(v.shape[axis])]


@jaxrewrite.register("tile")
def _(v: Coded, *, reps, **params) -> Any:
    def repeat(shared: Any, _: Any) -> Any:
        pairs = zip(shared.shape, reps, strict=True)
        return jnp.tile(shared, [1 if k == 1 else times for k, times in pairs])

    return leafwise(v, lambda codes: jnp.tile(codes, reps), repeat)


@jaxrewrite.register("select_n")
def _(which: ArrayLike, *cases: Coded, **params) -> Any:
    met = aligned(cases) if jnp.ndim(which) == 0 else None
    if met is None:
        return NotImplemented
    return jax.tree.map(lambda *leaves: lax.select_n(which, *leaves), *met)


# --- scaling --------------------------------------------------------------------------


@jaxrewrite.register("neg")
def _(v: Coded, **params) -> Any:
    return v.map_scales(jnp.negative)


@jaxrewrite.register("mul", exchange="operands")
def _(v: Coded, c: ArrayLike, **params) -> Any:
    return rescaled(v, jnp.multiply, c, **params)


@jaxrewrite.register("div")
def _(v: Coded, c: ArrayLike, **params) -> Any:
    return rescaled(v, jnp.divide, c, **params)


def rescaled(
    v: Coded, op: Callable[..., Any], c: Any, out_dtype: Any = None, **params: Any
) -> Any:
    """``op(v, c)``, where ``c`` is a number or has one number per index of some axes."""
    shape = jnp.shape(c) or (1,) * v.ndim
    if len(shape) != v.ndim:
        return NotImplemented  # ``v`` is a number and ``c`` is an array.
    wider = any(k not in (1, n) for k, n in zip(shape, v.shape, strict=True))
    if wider or not is_or_none(out_dtype, v.dtype):
        return NotImplemented
    factor = jnp.reshape(c, shape)
    new = v.map_scales(
        lambda shared: op(spread(shared, finest(shared.shape, shape)), factor)
    )
    return unless_grown(v, new)


@jaxrewrite.register("convert_element_type")
def _(v: Coded, *, new_dtype, **params) -> Any:
    if not jnp.issubdtype(new_dtype, jnp.floating) or not v.has_scales_in(new_dtype):
        return NotImplemented
    return v.map_scales(lambda scale: scale.astype(new_dtype))


@jaxrewrite.register("conv_general_dilated")
def convolved(x: ArrayLike, v: Coded, **params) -> Any:
    def convolve(x: Any, v: Coded) -> Any:
        return lax.conv_general_dilated_p.bind(x, v.materialise(), **params)

    return _compat.call_after(convolve, x, v)

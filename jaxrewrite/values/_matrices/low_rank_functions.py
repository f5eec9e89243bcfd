"""Linear functions of one array of low rank: of its entries, and moves of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import ArrayLike

import jaxrewrite

from .._base.contract import along_result, transpose
from .._base.gathers import fills, in_range
from .._base.structured import is_linear_cast
from .low_rank import LowRank, build, factors, of_one_dtype, plus
from .low_rank_factors import (
    RANK,
    Factor,
    broadcast,
    by_axis,
    matching_blocks,
    sizes_of,
    smaller,
    with_axes_together,
    without,
)


LINEAR: dict[str, Callable[..., Any]] = {}
"""Functions of a `LowRank` and dense operands, by the name of their primitive."""


def linear(name: str) -> Callable[[Any], Any]:
    def add(fn: Any) -> Any:
        LINEAR[name] = fn
        return fn

    return add


def _of_images(v: LowRank, fn: Callable[[Factor], Any]) -> Any:
    """The array of a function's results for each factor, arrays with the same axes."""
    a, b = (f._replace(x=fn(f)) for f in factors(v))
    return build(a, b, range(v.ndim))


@linear("neg")
def _(v: LowRank) -> Any:
    pair = list(factors(of_one_dtype(v)))
    i = smaller(*pair)
    pair[i] = pair[i]._replace(x=-pair[i].x)
    return build(pair[0], pair[1], range(v.ndim))


@linear("conj")
def _(v: LowRank, **params: Any) -> Any:
    return _of_images(of_one_dtype(v), lambda f: lax.conj(f.x))


@linear("convert_element_type")
def converted(v: LowRank, *, new_dtype: Any, **params: Any) -> Any:
    if not is_linear_cast(v, new_dtype):
        return NotImplemented
    return LowRank(v.a.astype(new_dtype), v.b.astype(new_dtype), v.rows, v.cols)


@linear("transpose")
def _(v: LowRank, *, permutation: Any) -> Any:
    return build(*factors(v), permutation)


@linear("squeeze")
def _(v: LowRank, *, dimensions: Any) -> Any:
    a, b = (without(f, dimensions) for f in factors(v))
    return build(a, b, [i for i in range(v.ndim) if i not in dimensions])


@linear("reduce_sum")
def _(v: LowRank, *, axes: Any, **params: Any) -> Any:
    a, b = factors(of_one_dtype(v))

    def summed(f: Factor, other: Factor) -> Factor:
        # Both factors change along a batch axis, so the product must sum over it.
        free = [i for i in axes if i in f.labels and i not in other.labels]
        if not free:
            return f
        rest = tuple(label for label in f.labels if label not in free)
        return Factor(f.x.sum(tuple(map(f.labels.index, free)), dtype=f.x.dtype), rest)

    return build(summed(a, b), summed(b, a), [i for i in range(v.ndim) if i not in axes])


@linear("cumsum")
def _(v: LowRank, *, axis: int, reverse: bool) -> Any:
    a, b = factors(v)
    if axis in a.labels and axis in b.labels:
        return NotImplemented

    def summed(f: Factor) -> Any:
        if axis not in f.labels:
            return f.x
        return lax.cumsum(f.x, f.labels.index(axis), reverse=reverse)

    return _of_images(of_one_dtype(v), summed)


@linear("rev")
def _(v: LowRank, *, dimensions: Any) -> Any:
    axes = lambda f: [f.labels.index(i) for i in dimensions if i in f.labels]
    return _of_images(v, lambda f: lax.rev(f.x, axes(f)))


@linear("slice")
def _(v: LowRank, *, start_indices: Any, limit_indices: Any, strides: Any) -> Any:
    steps = strides or (1,) * v.ndim

    def cut(f: Factor) -> Any:
        limits = by_axis(f, limit_indices, v.rank)
        return lax.slice(f.x, by_axis(f, start_indices, 0), limits, by_axis(f, steps, 1))

    return _of_images(v, cut)


@linear("dynamic_slice")
def _(v: LowRank, *starts: Any, slice_sizes: Any) -> Any:
    def cut(f: Factor) -> Any:
        sizes = by_axis(f, slice_sizes, v.rank)
        if tuple(sizes) == f.x.shape:
            return f.x
        begin = by_axis(f, starts, jnp.zeros_like(starts[0]))
        return lax.dynamic_slice(f.x, begin, sizes, allow_negative_indices=False)

    return _of_images(v, cut)


@linear("pad")
def _(v: LowRank, value: Any, *, padding_config: Any) -> Any:
    # The number that padding adds may not be zero, so padding that adds entries declines.
    if any(low > 0 or high > 0 or inner for low, high, inner in padding_config):
        return NotImplemented
    config = lambda f: by_axis(f, padding_config, (0, 0, 0))
    return _of_images(v, lambda f: lax.pad(f.x, jnp.zeros((), f.x.dtype), config(f)))


@linear("broadcast_in_dim")
def _(v: LowRank, *, shape: Any, broadcast_dimensions: Any, **params: Any) -> Any:
    a, b = (Factor(f.x, tuple(by_axis(f, broadcast_dimensions, RANK))) for f in factors(v))
    sizes = sizes_of(a, b)
    units = [i for i, n in enumerate(shape) if i not in sizes and n == 1]
    # Repeated axes go into one factor, axes of size 1 go into both.
    repeated = [i for i, n in enumerate(shape) if i not in sizes and n != 1]
    grown = [i for i in a.labels if i in b.labels and i != RANK and sizes[i] != shape[i]]
    pair = [without(f, grown) for f in (a, b)]
    more: list[list[Any]] = [[], []]
    more[smaller(*pair)] = grown + repeated
    a, b = (broadcast(f, new + units, shape) for f, new in zip(pair, more, strict=True))
    return build(a, b, range(len(shape)))


@linear("reshape")
def _(v: LowRank, *, new_sizes: Any, dimensions: Any, **params: Any) -> Any:
    if dimensions is not None or 0 in v.shape:
        return NotImplemented
    shape = v.shape
    blocks = matching_blocks(shape, new_sizes)
    # Old labels are positions in the old shape, new labels are positions in the new shape.
    a, b = (without(f, [i for i, n in enumerate(shape) if n == 1]) for f in factors(v))
    for old, _ in blocks:
        pair = with_axes_together(a, b, old, v.size)
        if pair is None:
            return NotImplemented
        a, b = pair
    both = {*a.labels} & {*b.labels}
    becomes = {old[0]: new for old, new in blocks}
    units = [i for i, n in enumerate(new_sizes) if n == 1]

    def reshaped(f: Factor) -> Factor:
        # A reshape needs the axes of a block in their order and next to each other.
        shared = sorted(label for label in f.labels if label in both and label != RANK)
        own = sorted(label for label in f.labels if label not in both)
        ordered = (*shared, *own, RANK) if f.labels[-1] == RANK else (*shared, RANK, *own)
        wanted: list[Any] = []
        for label in ordered:
            wanted += [RANK] if label == RANK else becomes.get(label, [])
        x = transpose(f.x, f.labels, ordered)
        rank = sizes_of(f)[RANK]
        sizes = [rank if label == RANK else new_sizes[label] for label in wanted]
        return broadcast(Factor(x.reshape(sizes), tuple(wanted)), units, new_sizes)

    return build(reshaped(a), reshaped(b), range(len(new_sizes)))


# --- rows looked up ---------------------------------------------------------------------


@linear("gather")
def _(
    v: LowRank, indices: Any, *, dimension_numbers: Any, slice_sizes: Any, **params: Any
) -> Any:
    """Gather from each factor by the indices along its axes.

    Only matrices of a stack can be filled in, where both factors are: derivatives of a factor
    that is not would meet what is filled into the other one.
    """
    numbers = dimension_numbers
    is_filled, fill = fills(params["mode"]), params["fill_value"]
    # A slice of a whole axis has only one place, unless entries are filled in: it needs no index,
    # if another axis has one.
    every = [(i, k) for k, i in enumerate(numbers.start_index_map)]
    starts = [x for x in every if is_filled or slice_sizes[x[0]] != v.shape[x[0]]] or every
    a, b = factors(v)
    in_both = {*a.labels} & {*b.labels}
    if not starts or (is_filled and not {i for i, _ in starts} <= in_both):
        return NotImplemented
    dropped = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    moved = {i for i in range(v.ndim) if slice_sizes[i] != v.shape[i]}
    moved |= dropped | {i for i, _ in starts}
    own_params = params | {"fill_value": 0} if is_filled else params
    is_indexed = [not moved.isdisjoint(f.labels) for f in (a, b)]

    # The axes of the result; the axes of the slices keep their old labels.
    kept = [i for i in range(v.ndim) if i not in dropped]
    ndim = len(kept) + indices.ndim - 1
    offset = dict(zip(numbers.offset_dims, kept, strict=True))
    out: list[Any] = [offset.get(i, ("index", i)) for i in range(ndim)]

    def gathered(f: Factor) -> Factor:
        own = [label for label in out if label in f.labels or isinstance(label, tuple)]
        own.append(RANK)
        place = f.labels.index
        pairs = zip(
            numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True
        )
        batching = sorted((place(i), j) for i, j in pairs if i in f.labels)
        collapsed = [i for i in numbers.collapsed_slice_dims if i in f.labels]
        along = [(place(i), k) for i, k in starts if i in f.labels]
        offset_labels = [label for label in f.labels if label not in dropped]
        # The axes of the slices keep the order of the operand's axes.
        wanted = iter(offset_labels)
        own = [label if isinstance(label, tuple) else next(wanted) for label in own]
        renumbered = lax.GatherDimensionNumbers(
            offset_dims=tuple(i for i, x in enumerate(own) if not isinstance(x, tuple)),
            collapsed_slice_dims=tuple(sorted(map(place, collapsed))),
            start_index_map=tuple(i for i, _ in along),
            operand_batching_dims=tuple(i for i, _ in batching),
            start_indices_batching_dims=tuple(j for _, j in batching),
        )
        sizes = tuple(by_axis(f, slice_sizes, sizes_of(f)[RANK]))
        own_indices = _columns(indices, [k for _, k in along])
        x = lax.gather(f.x, own_indices, renumbered, sizes, **own_params)
        return Factor(x, tuple(own))

    a, b = (gathered(f) if n else f for f, n in zip((a, b), is_indexed, strict=True))
    result = build(a, b, out)
    if not is_filled or fill == 0:
        return result
    if not isinstance(result, LowRank) or a.x.dtype != b.x.dtype:
        return NotImplemented
    inside = in_range(v.shape, indices, numbers, slice_sizes)
    return plus(result, _outside(inside, fill, result))


def _outside(inside: Any, number: Any, like: LowRank) -> LowRank:
    """A number where a condition on batch axes does not hold, and zeros elsewhere."""
    a, b = factors(like)
    left, right = (jnp.ones(by_axis(f, like.shape, 1), f.x.dtype) for f in (a, b))
    inside = along_result(inside, tuple(range(like.ndim)), b.labels)
    x = jnp.where(inside, 0, jnp.asarray(number, right.dtype) * right)
    return LowRank(left, x, like.rows, like.cols)


def _columns(indices: Any, which: Sequence[int]) -> Any:
    if len(which) == indices.shape[-1]:
        return indices
    return jnp.concatenate(
        [indices[..., :0], *(indices[..., k : k + 1] for k in which)], -1
    )


@jaxrewrite.register(*LINEAR)
def _(v: LowRank, *operands: ArrayLike, primitive, **params) -> Any:
    return LINEAR[primitive.name](v, *operands, **params)

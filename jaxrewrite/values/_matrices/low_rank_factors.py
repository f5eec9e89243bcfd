"""The two factors of an array of low rank, as arrays with labelled axes.

The label of an axis of the array is its position. The axis along which the factors are multiplied
has the label `RANK`. A function of some axes acts on the factors that have their labels.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from .._base.contract import contract, transpose
from .._base.sizes import is_at_most, is_less
from .._base.structured import padded


RANK = "rank"


class Factor(NamedTuple):
    """An array, and the labels of its axes."""

    x: Any
    labels: tuple[Any, ...]


Pair = tuple[Factor, Factor]


def sizes_of(*fs: Factor) -> dict[Any, int]:
    return {label: n for f in fs for label, n in zip(f.labels, f.x.shape, strict=True)}


def multiplied_out(a: Factor, b: Factor) -> Any:
    """The dense product of two factors with positions as labels."""
    out = range(len({*a.labels, *b.labels}) - 1)
    return contract(a.x, a.labels, b.x, b.labels, out)


def smaller(a: Factor, b: Factor) -> int:
    """The index of the factor with fewer entries, as far as it is known: 0 or 1."""
    return 0 if is_at_most(a.x.size, b.x.size) else 1


def in_order(pair: Pair) -> Pair:
    """Sort the axes of both factors; the factor with the lowest axis comes first."""
    both = {*pair[0].labels} & {*pair[1].labels}
    free = [sorted(x for x in f.labels if x not in both) for f in pair]
    batch = sorted(both - {RANK})
    if free[1] < free[0]:
        pair, free = pair[::-1], free[::-1]
    orders = (*batch, *free[0], RANK), (*batch, RANK, *free[1])
    a, b = (
        Factor(transpose(f.x, f.labels, order), order)
        for f, order in zip(pair, orders, strict=True)
    )
    return a, b


def align(pair: Pair, like: Pair) -> Pair | None:
    """Give factors the axis order of ``like``, swapped if needed; ``None`` if impossible."""
    for f, g in (pair, pair[::-1]):
        if set(f.labels) == set(like[0].labels) and set(g.labels) == set(like[1].labels):
            f, g = (
                Factor(transpose(factor.x, factor.labels, wanted.labels), wanted.labels)
                for factor, wanted in zip((f, g), like, strict=True)
            )
            return f, g
    return None


def without(f: Factor, dropped: Iterable[Any]) -> Factor:
    """A factor without the axes ``dropped``, which have size 1."""
    axes = [f.labels.index(label) for label in dropped if label in f.labels]
    if not axes:
        return f
    rest = tuple(label for i, label in enumerate(f.labels) if i not in axes)
    return Factor(lax.squeeze(f.x, axes), rest)


def broadcast(f: Factor, new: Iterable[Any], shape: Sequence[int]) -> Factor:
    """A factor with new axes, and with the sizes in ``shape`` for all axes but the rank."""
    wanted = (*new, *f.labels)
    sizes: dict[Any, int] = {**dict(enumerate(shape)), RANK: sizes_of(f)[RANK]}
    target = tuple(sizes[label] for label in wanted)
    if target == f.x.shape:
        return f
    positions = range(len(wanted) - len(f.labels), len(wanted))
    return Factor(lax.broadcast_in_dim(f.x, target, positions), wanted)


def resized(f: Factor, label: Any, low: int, high: int) -> Factor:
    """A factor with zeros added before and after its entries along an axis."""
    if not (low or high):
        return f
    return Factor(padded(f.x, f.labels.index(label), low, high), f.labels)


def alike(label: Any, *fs: Factor) -> list[Factor]:
    """Pad factors of the same labels to one length along an axis, and to one dtype."""
    n = max(sizes_of(f)[label] for f in fs)
    dtype = jnp.result_type(*(f.x.dtype for f in fs))
    return [
        Factor(resized(f, label, 0, n - sizes_of(f)[label]).x.astype(dtype), f.labels)
        for f in fs
    ]


def joined(label: Any, *fs: Factor) -> Factor:
    """Concatenate factors of the same labels along an axis."""
    axis = fs[0].labels.index(label)
    return Factor(jnp.concatenate([f.x for f in fs], axis), fs[0].labels)


def by_axis(f: Factor, of_axes: Sequence[Any], of_rank: Any) -> list[Any]:
    """Items for each axis of a factor, from the items for each axis of the array."""
    return [of_rank if label == RANK else of_axes[label] for label in f.labels]


# --- factors of reshaped arrays -----------------------------------------------------------


def with_axes_together(a: Factor, b: Factor, axes: Sequence[Any], most: int) -> Pair | None:
    """Factors of the same array, one of which has all of these axes, and no other has some.

    Axes that change factors multiply the rank by their sizes. In the gradient of a
    convolution with groups, the axis of the groups, of the output features before, belongs
    to the input features. ``None`` stands for factors that would have ``most`` entries or
    more, or that would be a dense array in two parts.
    """
    both = {*a.labels} & {*b.labels}
    if any(
        kind.issuperset(axes) for kind in (both, {*a.labels} - both, {*b.labels} - both)
    ):
        return a, b
    if not both.isdisjoint(axes):
        return None
    by_size: dict[int, tuple[Factor, Factor, list[Any], bool]] = {}
    for f, g, is_turned in ((a, b, False), (b, a, True)):
        moved = [label for label in axes if label in g.labels]
        times = math.prod(sizes_of(g)[label] for label in moved)
        size = f.x.size * times**2 + g.x.size
        if is_less(size, most) and not {*g.labels} - both <= {*moved}:
            by_size[size] = f, g, moved, is_turned
    if not by_size:
        return None
    f, g, moved, is_turned = by_size[min(by_size)]
    pair = with_more_axes(f, g, moved)
    return pair[::-1] if is_turned else pair


def with_more_axes(a: Factor, b: Factor, moved: Sequence[Any]) -> Pair:
    r"""Factors of the same array, where the first has some axes of the second.

    With :math:`I` for the identity, :math:`\sum_r a_{ir} b_{rgj} = \sum_{rh} (a_{ir} I_{gh})
    b_{rhj}`.
    """
    rank = sizes_of(a)[RANK]
    for axis in moved:
        size = sizes_of(b)[axis]
        rank *= size
        labels = tuple(label for label in a.labels if label != RANK)
        identity = jnp.eye(size, dtype=a.x.dtype)
        wide = contract(*a, identity, (axis, "new"), (*labels, axis, RANK, "new"))
        a = Factor(wide.reshape(*wide.shape[:-2], rank), (*labels, axis, RANK))
        rest = [label for label in b.labels if label not in (axis, RANK)]
        shared = [label for label in rest if label in labels]
        last = [label for label in rest if label not in labels]
        x = transpose(b.x, b.labels, (*shared, RANK, axis, *last))
        sizes = [sizes_of(b)[label] for label in last]
        x = x.reshape(*x.shape[: len(shared)], rank, *sizes)
        b = Factor(x, (*shared, RANK, *last))
    return a, b


def matching_blocks(
    old: Sequence[int], new: Sequence[int]
) -> list[tuple[list[int], list[int]]]:
    """The runs of axes that a reshape turns into each other, without axes of size 1."""
    left = [i for i, n in enumerate(old) if n != 1]
    right = [i for i, n in enumerate(new) if n != 1]
    blocks = []
    while left:
        olds, news = [left.pop(0)], [right.pop(0)]
        m, n = old[olds[0]], new[news[0]]
        while m != n:
            if left and (not right or is_at_most(m, n)):
                olds.append(left.pop(0))
                m *= old[olds[-1]]
            else:
                news.append(right.pop(0))
                n *= new[news[-1]]
        blocks.append((olds, news))
    return blocks

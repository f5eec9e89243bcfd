"""The methods of a type that follow from its declaration.

A type may also define these methods by hand: see `Value`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from .._core.value import Value, is_value
from .._staging.transform import transform
from .blocks import spread_axis
from .declaration import BATCH, Axes, axes_of
from .layout import (
    Leaves,
    leaves_of,
    locate_leaf,
    may_have_length,
    misfit,
    mismeasured,
    positions,
    shape_of,
)


def sliceable(self: Any) -> Any:
    """The same array, with an entry of its own in each leaf for each of the first axis."""
    axes = axes_of(type(self))
    if axes is None or not takes_batch(axes) or not has_batch_axis(self, axes):
        return NotImplemented
    length = self.shape[0]
    children = leaves_of(self)

    def spread(leaf: Any, block: str | None) -> Any:
        has_fixed_blocks = block is not None and (block.isdigit() or block in axes.blocks)
        if has_fixed_blocks or leaf.shape[0] == length:
            return leaf
        return on_leaf(lambda leaf: spread_axis(leaf, 0, length), leaf)

    leaves = located(children, self.shape[: len(self.shape) - len(axes.leafless)])
    return children.rebuilt(
        [spread(leaf, axes.leaves[f][0].block) for f, leaf, _ in leaves]
    )


def leaf_specs(self: Any, spec: Any) -> Any:
    """Split the leaves as the array is split; do not split what an axis shares."""
    if axes_of(type(self)) is None:
        return NotImplemented
    children = leaves_of(self)
    axes, shape = children.axes, self.shape
    names = (*spec, *[None] * (len(shape) - len(spec)))
    ndim = len(shape) - len(axes.leafless)
    if any(name is not None for name in (*names[ndim:], *_of_sizes(axes, names, ndim))):
        return NotImplemented  # A shard has metadata of its own.
    specs = []
    # The lengths may be those of more parts than one.
    for _, leaf, where in placed(children, ndim):
        sizes = zip(where, shape_of(leaf), strict=True)
        is_split = lambda i, block, k: i is not None and (block is None or k > 1)
        split = (names[i] if is_split(i, block, k) else None for (i, block), k in sizes)
        specs.append(type(spec)(*split))
    return children.rebuilt(specs)


METHODS = {f.__name__: f for f in (sliceable, leaf_specs)}


def stack_of(value: Any, size: int) -> Any:
    """The stack that a value with the metadata of one, and with stacked leaves, stands for."""
    return _with_batch(value, lambda sizes: (size, *sizes))


def element_of(value: Any) -> Any:
    """The element that a value with the metadata of a stack, and sliced leaves, stands for."""
    return _with_batch(value, lambda sizes: sizes[1:])


def on_leaf(fn: Any, leaf: Any, *others: Any) -> Any:
    """A function of a leaf, which may be a value."""
    return (transform(fn) if is_value(leaf) else fn)(leaf, *others)


def located(children: Leaves, shape: Sequence[int]) -> Iterator[tuple[str, Any, Any]]:
    """Each field with its leaf, and the positions of the leaf's axes in the array.

    ``shape`` is that of the array without the axes that the type makes. Raises `TypeError` if a
    leaf does not have the axes that its type says, or has another length than the array along one.
    """
    for field, leaf, where in placed(children, len(shape)):
        for k, (i, block) in zip(shape_of(leaf), where, strict=True):
            if i is not None and not may_have_length(k, shape[i], block):
                raise TypeError(mismeasured(children.value, field, leaf, i))
        yield field, leaf, where


def placed(children: Leaves, ndim: int) -> Iterator[tuple[str, Any, Any]]:
    """What `located` gives for an array of so many axes, of any lengths."""
    for field, leaf in zip(children.fields, children.leaves, strict=True):
        where = locate_leaf(children.axes, field, leaf, ndim)
        if where is None:
            raise TypeError(misfit(children.value, field, leaf))
        yield field, leaf, where


def check_rank(value: Any) -> None:
    """Raise `TypeError` if a leaf has more axes than its type says, or fewer."""
    axes = axes_of(type(value))
    if axes is not None and not axes.has_batch:
        list(placed(leaves_of(value), len(axes.array)))


def has_batch_axis(value: Value, axes: Axes) -> bool:
    """Whether the array's first axis is one of those that may be any number."""
    ndim = len(value.shape) - len(axes.leafless)  # type: ignore[attr-defined]
    return bool(positions(axes, ndim)[BATCH])


def takes_batch(axes: Axes) -> bool:
    """Whether one more axis in front of each leaf is one more of the array."""
    return axes.array[:1] == (BATCH,) and all(
        terms[:1] and terms[0].name == BATCH for terms in axes.leaves.values()
    )


def _with_batch(value: Any, change: Any) -> Any:
    """The value with other batch axes in the static fields that hold their sizes.

    ``change`` gets the sizes from the first batch axis on.
    """
    axes = axes_of(type(value))
    if axes is None:
        return value
    holding = {field: names for field, names in axes.sizes.items() if BATCH in names}
    if not holding:
        return value
    children = leaves_of(value)
    new = children.rebuilt(children.leaves)
    for field, names in holding.items():
        sizes, at = getattr(value, field), names.index(BATCH)
        object.__setattr__(new, field, (*sizes[:at], *change(sizes[at:])))
    return new


def _of_sizes(axes: Axes, names: Any, ndim: int) -> list[Any]:
    """What an axis is split over, for the axes whose sizes are in static fields."""
    at = positions(axes, ndim)
    sized_axes = {name for of in axes.sizes.values() for name in of}
    return [names[i] for name in sized_axes for i in at[name]]

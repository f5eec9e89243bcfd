"""The leaves of one value, by the axes of its array.

A leaf *in the grid* has an axis for each of the array's axes that leaves have, in the order of
the array. The length is 1 for an axis that the leaf has not, and the number of blocks for an axis
that the leaf has in blocks. The leaf's axes that the array has not come last. So one function
moves the entries of all leaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from jax import lax
from jax.tree_util import (
    GetAttrKey,
    PyTreeDef,
    tree_flatten,
    tree_flatten_with_path,
    tree_unflatten,
)

from .._core.value import Value, is_value
from .blocks import spread
from .declaration import BATCH, Axes, Term, axes_of
from .sizes import are_known, is_divisor


class Leaves(NamedTuple):
    """The children of a value with a declaration, and the field of each."""

    value: Value
    axes: Axes
    fields: list[str]
    leaves: list[Any]
    treedef: PyTreeDef

    def structure(self) -> PyTreeDef:
        """The structure of the value, without the sizes of axes and blocks."""
        size_fields = (*self.axes.sizes, *self.axes.blocks)
        if not size_fields:
            return self.treedef
        value = tree_unflatten(self.treedef, self.leaves)
        for field in size_fields:
            object.__setattr__(value, field, None)
        return tree_flatten(value, is_leaf=lambda x: x is not value and is_value(x))[1]

    def rebuilt(self, leaves: Sequence[Any], shape: Sequence[int] | None = None) -> Any:
        """A value of these leaves; ``shape`` is the array's shape, if the shape has changed."""
        value = tree_unflatten(self.treedef, leaves)
        if shape is not None:
            for field, names in self.axes.sizes.items():
                sizes = sizes_of(self.axes, names, shape)
                is_one = names not in ((BATCH,), ()) and len(names) == 1
                object.__setattr__(value, field, sizes[0] if is_one else sizes)
        return value


def leaves_of(value: Value) -> Leaves:
    """The children of a value whose type has a declaration."""
    axes = _axes(value)
    pairs, treedef = tree_flatten_with_path(
        value, is_leaf=lambda x: x is not value and is_value(x)
    )
    fields = [_field(value, path[0]) for path, _ in pairs]
    return Leaves(value, axes, fields, [leaf for _, leaf in pairs], treedef)


def _axes(value: Value) -> Axes:
    axes = axes_of(type(value))
    assert axes is not None, "the type has no declaration"
    return axes


def _field(value: Value, key: Any) -> str:
    if not isinstance(key, GetAttrKey):
        raise TypeError(
            f"{type(value).__name__}.axes: its own registration as a pytree does not tell the "
            "fields. Use jax.tree_util.register_dataclass or register_pytree_with_keys."
        )
    return key.name


# --- the axes of the array --------------------------------------------------------------


def positions(axes: Axes, ndim: int) -> dict[str, list[int]]:
    """For each name the positions of its axes in an array of ``ndim`` axes.

    ``ndim`` does not count the axes that the type makes. It may be too small for the names, and
    then the last names have no position.
    """
    batch = max(ndim - len(axes.array) + 1, 0) if axes.has_batch else 1
    by_name, next_ = {}, 0
    for name in axes.array:
        count = batch if name == BATCH else 1
        by_name[name] = [*range(next_, next_ + count)]
        next_ += count
    return by_name


def has_rank(axes: Axes, ndim: int) -> bool:
    """Whether arrays of the type may have ``ndim`` axes and the axes that the type makes."""
    if axes.has_batch:
        return ndim >= len(axes.array) - 1
    return ndim == len(axes.array)


def tells_lengths(axes: Axes, shape: Sequence[int]) -> bool:
    """Whether the leaves of an array of this shape can tell its lengths.

    ``shape`` has not the axes that the type makes. An axis that all leaves have in blocks of a
    number of entries is as long as its blocks, so none of these may be shorter.
    """
    at = positions(axes, len(shape))
    terms = [term for terms in axes.leaves.values() for term in terms if not term.is_rest]
    told = {term.name for term in terms if term.block is None}.union(*axes.sizes.values())
    return all(
        shape[i] % int(term.block) == 0
        for term in terms
        if term.name not in told and term.block is not None and term.block.isdigit()
        for i in at[term.name]
    )


def sizes_of(axes: Axes, names: Sequence[str], shape: Sequence[int]) -> tuple[int, ...]:
    at = positions(axes, len(shape))
    return tuple(shape[i] for name in names for i in at[name])


# --- the axes of a leaf -----------------------------------------------------------------

# The position among the array's axes, and the block; ``None`` twice if the array has not the axis.
LeafAxis: TypeAlias = tuple[int | None, str | None]


def locate(axes: Axes, field: str, rest: int, ndim: int) -> list[LeafAxis] | None:
    """The position of each axis of a leaf in the array; ``None`` if no leaf has ``rest``.

    ``rest`` is the number of the leaf's axes that the array has not. ``ndim`` is the number of
    the array's axes, without the axes that the type makes.
    """
    at = positions(axes, ndim)
    leaf_axes: list[LeafAxis] = []
    for term in axes.leaves[field]:
        if term.name.startswith("*"):
            count = rest - sum(x.is_rest for x in axes.leaves[field]) + 1
            if count < 0:
                return None
            leaf_axes += [(None, None)] * count
        elif term.is_rest:
            leaf_axes.append((None, None))
        else:
            leaf_axes += [(i, term.block) for i in at[term.name]]
    return leaf_axes if sum(i is None for i, _ in leaf_axes) == rest else None


def locate_leaf(axes: Axes, field: str, leaf: Any, ndim: int) -> list[LeafAxis] | None:
    """`locate` for a leaf; ``None`` if the leaf has other axes than its type declares."""
    if not has_rank(axes, ndim):
        return None
    at = positions(axes, ndim)
    count = sum(len(at[term.name]) for term in axes.leaves[field] if not term.is_rest)
    return locate(axes, field, len(shape_of(leaf)) - count, ndim)


def shape_of(leaf: Any) -> tuple[int, ...]:
    """The shape of an array, a number, a value, or a struct in place of a leaf."""
    return np.shape(leaf)


def misfit(value: Value, field: str, leaf: Any) -> str:
    """The message of the error for a leaf that has other axes than its type declares."""
    hint = (
        ""
        if _axes(value).has_batch
        else " What leaves jax.vmap has one more axis in front: begin the axes with '...' if "
        "the type means by that a batch, or make it dense before."
    )
    return f"{_said(value, field, leaf)}.{hint}"


def may_have_length(k: int, n: int, block: str | None) -> bool:
    """Whether a leaf may have length ``k`` where the array has ``n``, as far as these are known.

    Of blocks of any size, the array has a whole number. Of blocks of a size that the declaration
    says, a part of the array may hold a part of one, so any number may be right.
    """
    is_fine = (
        k == n or block is not None and (is_divisor(k, n) or block.isdigit() and k > 0)
    )
    return is_fine or not are_known(k, n)


def mismeasured(value: Any, field: str, leaf: Any, axis: int) -> str:
    """The message of the error for a leaf that has another length than the array along an axis."""
    return (
        f"{_said(value, field, leaf)}, which does not fit axis {axis} of the array, of shape "
        f"{tuple(value.shape)}."
    )


def _said(value: Value, field: str, leaf: Any) -> str:
    declared = " ".join(map(_shown, _axes(value).leaves[field]))
    name = type(value).__name__
    return f"{name}.axes says that {field!r} has the axes {declared!r}; it has shape {shape_of(leaf)}"


def _shown(term: Term) -> str:
    return term.name + (f"/{term.block}" if term.block else "")


# --- leaves in the grid -----------------------------------------------------------------


def to_grid(leaf: Any, where: Sequence[LeafAxis], ndim: int) -> Any:
    """A leaf in the grid of an array of ``ndim`` axes."""
    array_axes = [i for i, _ in where if i is not None]
    order = [k for i in sorted(array_axes) for k, (j, _) in enumerate(where) if j == i]
    order += [k for k, (i, _) in enumerate(where) if i is None]
    if order != [*range(len(order))]:
        leaf = lax.transpose(leaf, order)
    missing = [i for i in range(ndim) if i not in array_axes]
    return lax.expand_dims(leaf, missing) if missing else leaf


def wanted_grid(
    grid: Sequence[int], where: Sequence[LeafAxis], shape: Sequence[int]
) -> tuple[int, ...] | None:
    """The grid that a leaf of an array of this shape needs, from the grid that it has now.

    ``None`` if the leaf would have to depend on an axis that it has not.
    """
    blocks = {i: block for i, block in where if i is not None}
    wanted = []
    for i, (n, k) in enumerate(zip(shape, grid, strict=False)):
        count = _blocks(n, k, blocks[i]) if i in blocks else 1 if k == 1 else None
        if count is None:
            return None
        wanted.append(count)
    return tuple(wanted)


def from_grid(
    leaf: Any, where: Sequence[LeafAxis], shape: Sequence[int], wanted: Sequence[int]
) -> Any:
    """A leaf of an array of this shape from its grid, in the `wanted_grid`."""
    leaf = spread(leaf, wanted)
    array_axes = sorted(i for i, _ in where if i is not None)
    missing = [i for i in range(len(shape)) if i not in array_axes]
    if missing:
        leaf = lax.squeeze(leaf, missing)
    rest = iter(range(len(array_axes), len(where)))
    order = [next(rest) if i is None else array_axes.index(i) for i, _ in where]
    return leaf if order == [*range(len(order))] else lax.transpose(leaf, order)


def _blocks(n: int, k: int, block: str | None) -> int | None:
    """The number of blocks that a leaf needs along an axis of length ``n``, where it has ``k``.

    ``None`` if blocks of the declared size do not divide the axis, or can't be had from ``k``.
    """
    if block is None:  # Each entry of the array has an entry of its own.
        return n
    if not block.isdigit():
        return k
    count = -(-n // int(block))
    return count if count % (k or 1) == 0 and n % (count or 1) == 0 else None

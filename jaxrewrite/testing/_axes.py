"""The check of a declaration, `ArrayValue.axes`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
from jax import lax

import jaxrewrite
from jaxrewrite import Value

from .._axes.declaration import Axes, axes_of
from .._axes.layout import leaves_of, sizes_of
from .._axes.methods import placed, takes_batch
from .._axes.moves import moved
from .._core.settings import current_settings, use_settings
from ._oracle import difference, neighbour, stacked_leaves


def check_axes(value: Any) -> str | None:
    """The leaves have the axes that the type says, and move as the array does."""
    cls = type(value)
    axes = axes_of(cls)
    if axes is None:
        return "its type does not declare axes"
    _check_sizes(value, axes)
    if cls.materialise is Value.materialise:
        return "it is never dense"
    dense = jaxrewrite.materialise(value)
    # A leaf that is a value may have no rule for the move.
    allowing = current_settings().refined((), "allow")
    for description, name, params in _moves(value, axes):
        with use_settings(allowing):
            got = moved(name, value, **params)
        if got is NotImplemented:
            continue
        want = getattr(lax, f"{name}_p").bind(dense, **params)
        message = difference(jaxrewrite.materialise(got), want, None, least=0)
        if message is not None:
            raise AssertionError(
                f"{cls.__name__}.axes says where the entries of leaves belong, but {description} of "
                f"all leaves makes another array: {message}"
            )
    if takes_batch(axes):
        _check_batch(value)
    return None


def _check_sizes(value: Any, axes: Axes) -> None:
    name, shape = type(value).__name__, value.shape
    batch = shape[: len(shape) - len(axes.leafless)]
    for field, leaf, where in placed(leaves_of(value), len(batch)):
        for k, (i, block) in zip(leaf.shape, where, strict=True):
            if i is None:
                continue
            n, size = shape[i], _size_of_block(value, axes, block)
            fits = k * size == n if size else k > 0 and n % k == 0 or n == k
            if not fits:
                in_blocks = "" if block is None else f" in blocks of {size or block}"
                raise AssertionError(
                    f"{name}.axes says that {field!r}, of shape {leaf.shape}, has axis {i} of "
                    f"the array, of shape {shape},{in_blocks} where it has length {k}"
                )
    for field, names in axes.sizes.items():
        stored, want = getattr(value, field), sizes_of(axes, names, batch)
        if (stored if isinstance(stored, tuple) else (stored,)) != want:
            raise AssertionError(
                f"{name}.axes says that {field!r} holds the sizes of {' '.join(names)}, which "
                f"are {want}; it is {stored!r}"
            )


def _size_of_block(value: Any, axes: Axes, block: str | None) -> int | None:
    """The number of entries in a block, ``None`` if any number that divides the axis is one."""
    if block is None:
        return 1
    if block.isdigit():
        return int(block)
    return getattr(value, block) if block in axes.blocks else None


def _moves(value: Any, axes: Axes) -> Iterator[tuple[str, str, dict[str, Any]]]:
    shape = value.shape
    for axis in range(len(shape) - len(axes.leafless)):
        yield f"the reverse along axis {axis}", "rev", {"dimensions": (axis,)}
        if shape[axis] > 1:
            starts, limits = [0] * len(shape), list(shape)
            starts[axis], limits[axis] = 1, shape[axis]
            window = {"start_indices": tuple(starts), "limit_indices": tuple(limits)}
            yield f"a slice along axis {axis}", "slice", {**window, "strides": None}
    moving = len(shape) - len(axes.leafless)
    order = (*reversed(range(moving)), *range(moving, len(shape)))
    yield "the transpose", "transpose", {"permutation": order}


def _check_batch(value: Any) -> None:
    want = jnp.stack(jaxrewrite.materialise([value, neighbour(value)]))
    got = jaxrewrite.materialise(stacked_leaves(value))
    message = difference(got, want, None, least=0)
    if message is not None:
        raise AssertionError(
            f"{type(value).__name__}.axes begins with '...', but with one more axis in front of "
            f"each leaf it is no batch: {message}"
        )

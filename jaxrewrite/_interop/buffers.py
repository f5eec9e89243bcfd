"""Buffers of Equinox's loops: an item of a stack is set.

The primitive (`maybe_set`) is known by its name, as those in `equinox` are. It sets one item
of an array in the carry of a loop, and knows that no item is set twice. If the item is a
value, the buffer is a stack of such values, and the primitive sets an item of each leaf.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.tree_util import tree_leaves, tree_structure, tree_unflatten

from .. import _compat
from .._compat import Primitive, Var
from .._core.avals import aval_of
from .._core.rewrite import handlers
from .._core.site import Site
from .._core.value import is_value
from .._handlers.stacking import element_like, stack_like
from .._joins.join import Structure, coerce, fits, join, structure_of
from .._joins.zeros import Zeros


class _Structures(NamedTuple):
    """The structures of a buffer, of an item of it, and of the buffer with the item set.

    They differ in batch axes, besides.
    """

    buffer: Structure
    item: Structure
    result: Structure


def set_handler(site: Site, operands: list[Any]) -> Any:
    which, buffer, item, *indices = operands
    if any(map(is_value, (which, *indices))) or not (is_value(buffer) or is_value(item)):
        return NotImplemented
    if isinstance(buffer, Zeros) and isinstance(item, Zeros):
        return [Zeros(site.eqn.outvars[0].aval)]
    operands, params = _batched_in_front(site, operands)
    likes = [structure_of(x).like() if is_value(x) else x.aval for x in operands]
    structures = _structures(site, site.primitive, params, likes)
    if structures is None:
        return NotImplemented
    which, buffer, item, *indices = operands
    buffers = tree_leaves(coerce(site, buffer, structures.buffer))
    items = tree_leaves(coerce(site, item, structures.item))
    results = [Var(aval) for aval in structures.result.avals]
    for of_buffer, of_item, result in zip(buffers, items, results, strict=True):
        site.emit([which, of_buffer, of_item, *indices], [result], dict(params))
    return [tree_unflatten(structures.result.treedef, results)]


handlers["maybe_set"] = set_handler


def sets_an_item(primitive: Primitive, params: Mapping[str, Any]) -> bool:
    """Whether a primitive, batched or not, sets an item of a buffer."""
    while primitive.name == "vprim":
        primitive, params = params["prim"], dict(params["params"])
    return primitive.name == "maybe_set"


def _batched_in_front(
    site: Site, operands: Sequence[Any]
) -> tuple[list[Any], Mapping[str, Any]]:
    """The operands and parameters, with the batch axes of values before all others."""
    if site.primitive.name != "vprim":
        return list(operands), site.params
    moved, axes = [], []
    for x, axis in zip(operands, site.params["__batch_axes"], strict=True):
        if is_value(x) and axis:
            (x,) = site.call_on_arrays(lambda x, n=axis: [jnp.moveaxis(x, n, 0)], [x])
            axis = 0
        moved.append(x)
        axes.append(axis)
    return moved, {**site.params, "__batch_axes": type(site.params["__batch_axes"])(axes)}


def _structures(
    site: Site,
    primitive: Primitive,
    params: Mapping[str, Any],
    likes: Sequence[Any],
) -> _Structures | None:
    """The structures for operands like these, on avals; ``None`` if they become dense."""
    if primitive.name == "vprim":
        return _batched(site, params, likes)
    _, buffer, item, *indices = likes
    if params["i_treedef"] == tree_structure(0):
        is_leading = indices[0].shape == ()
    else:
        is_leading = isinstance(params["i_static"], int)
    if not is_leading:  # The item is not at one index along the first axis.
        return None
    both = structure_of(buffer)
    length = (aval_of(buffer) if is_value(buffer) else buffer).shape[0]
    if is_value(item) and not isinstance(item, Zeros):
        both = join(site, both, structure_of(stack_like(site, item, length)))
    if not is_value(both.like()):
        return None
    element = element_like(site, both.like(), length)
    if not is_value(element):
        return None
    one = structure_of(element)
    if structure_of(stack_like(site, element, length)) != both:
        return None
    if not fits(site, structure_of(item), one):
        return None
    return _Structures(both, one, both)


def _batched(
    site: Site, params: Mapping[str, Any], likes: Sequence[Any]
) -> _Structures | None:
    axes, size = params["__batch_axes"], params["__axis_size"]
    ones = [
        x if axis is None else _one(site, x, size, axis)
        for x, axis in zip(likes, axes, strict=True)
    ]
    if any(x is NotImplemented for x in ones):
        return None
    inner = _structures(site, params["prim"], dict(params["params"]), ones)
    if inner is None:
        return None

    def stack(structure: Structure) -> Structure:
        return structure_of(stack_like(site, structure.like(), size))

    _, of_buffer, of_item, *_ = axes
    return _Structures(
        inner.buffer if of_buffer is None else stack(inner.buffer),
        inner.item if of_item is None else stack(inner.item),
        stack(inner.result),
    )


def _one(site: Site, like: Any, size: int, axis: int) -> Any:
    """An element of a batch, on avals; ``NotImplemented`` if a value can't tell."""
    if not is_value(like):
        return _compat.without_axis(like, size, axis)
    return element_like(site, like, size)

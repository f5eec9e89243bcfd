"""Collectives that move whole arrays from device to device, applied to each leaf."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jax.tree_util import tree_flatten, tree_leaves, tree_map, tree_unflatten

from .. import _compat
from .._core.avals import aval_of
from .._core.rewrite import leafwise_handlers
from .._core.site import Site
from .._core.value import Operand, Results, Value
from .._placement.leafwise import specs_of_leaves
from .stacking import stacked


def all_gather(site: Site, operands: Sequence[Any]) -> Results:
    """Gather the values of all devices: as parts of one, or stacked along a new axis."""
    (value,) = operands
    if site.params["tiled"]:
        return _gathered_parts(site, value)
    if site.params["all_gather_dimension"] == 0:
        return _gathered_stack(site, value)
    return NotImplemented


def _gathered_parts(site: Site, value: Value) -> Results:
    """Gather each leaf along the axis along which `Value.leaf_specs` splits it."""
    axes = _gathered_axes(value, site)
    if axes is None:
        return NotImplemented
    leaves, treedef = tree_flatten(value)
    results = []
    for leaf, axis in zip(leaves, axes, strict=True):
        gathering = site.with_params(all_gather_dimension=axis)
        results += [leaf] if axis is None else gathering.map_leaves([leaf])
    gathered = tree_unflatten(treedef, results)
    # The metadata may contain the shape of a part.
    fits = _compat.same_array_type(aval_of(gathered), site.outvars[0].aval)
    return [gathered] if fits else NotImplemented


def _gathered_stack(site: Site, value: Value) -> list[Any]:
    """Stack each leaf; repeat a leaf that is the same on all devices."""
    size = site.params["axis_size"]
    leaves, treedef = tree_flatten(value)
    varies = _varies(leaves, _names(site))

    def repeat(leaf: jax.Array) -> list[Any]:
        return [jnp.broadcast_to(leaf, (size, *leaf.shape))]

    stack = []
    for leaf, does_vary in zip(leaves, varies, strict=True):
        is_same = any(varies) and not does_vary
        stack += site.call_on_arrays(repeat, [leaf]) if is_same else site.map_leaves([leaf])
    gathered = tree_unflatten(treedef, stack)
    return [stacked(site, gathered, size, site.outvars[0].aval)]


def _names(site: Site) -> tuple[Any, ...]:
    """The names of the mesh axes over which a collective communicates."""
    names = site.params["axis_name"]
    return names if isinstance(names, tuple) else (names,)


def _gathered_axes(value: Value, site: Site) -> list[int | None] | None:
    """The axis of each leaf, or ``None`` for a leaf that is the same on all devices."""
    leaves, treedef = tree_flatten(tree_map(_compat.leaf_aval, value))
    varies = _varies(tree_leaves(value), _names(site))
    axes = _split_axes(tree_unflatten(treedef, leaves), site)
    if axes is None:
        return None
    missing = [a is None and v for a, v in zip(axes, varies, strict=True)]
    if any(missing):
        # An axis of a leaf with one item for all of a part, as one scale, has as many as there
        # are parts in the whole.
        longer = [
            _of_parts(x, site) if m else x for x, m in zip(leaves, missing, strict=True)
        ]
        found = _split_axes(tree_unflatten(treedef, longer), site) or axes
        axes = [f if m else a for a, f, m in zip(axes, found, missing, strict=True)]
    # If JAX does not know over which axes arrays vary, no leaf is known to be the same.
    for axis, does_vary in zip(axes, varies, strict=True):
        if axis is None and (does_vary or not any(varies)):
            return None
    return axes


def _split_axes(like: Value, site: Site) -> list[int | None] | None:
    """The axis along which the type splits each leaf; ``None`` if it splits none."""
    names = _names(site)
    name = names[0] if len(names) == 1 else names
    spec = PartitionSpec(*[None] * site.params["all_gather_dimension"], name)
    specs = specs_of_leaves(like, spec)
    if isinstance(specs, type):
        return None
    return [tuple(names).index(name) if name in names else None for names in specs]


def _of_parts(aval: Any, site: Site) -> Any:
    sizes = (site.params["axis_size"] if n == 1 else n for n in aval.shape)
    return aval.update(shape=tuple(sizes))


def ppermute(site: Site, operands: Sequence[Operand]) -> Results:
    """Send each leaf where the array goes, if every device receives one.

    A device that receives nothing has zeros. A value with zeros as leaves may not be zero.
    """
    names = _names(site)
    with site.context.manager:
        sizes = jax.sharding.get_abstract_mesh().shape
    if not all(name in sizes for name in names):
        return NotImplemented
    receivers = {receiver for _, receiver in site.params["perm"]}
    if len(receivers) < math.prod(sizes[name] for name in names):
        return NotImplemented
    leaves, treedef = tree_flatten(operands[0])
    varies = _varies(leaves, names)
    results = []
    for leaf, does_vary in zip(leaves, varies, strict=True):
        is_same = any(varies) and not does_vary
        results += [leaf] if is_same else site.map_leaves([leaf])
    return [tree_unflatten(treedef, results)]


def _varies(leaves: Sequence[Any], names: Sequence[Any]) -> list[bool]:
    """Whether each leaf is known to vary over some of these mesh axes."""
    return [not _compat.varying_axes(x.aval).isdisjoint(names) for x in leaves]


leafwise_handlers.update(all_gather=all_gather, ppermute=ppermute)

"""How the leaves of a value are split over a mesh, and where they are placed.

A program places the array that a value stands for. The type of the value decides what that
means for the leaves: `Value.leaf_specs`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding
from jax.tree_util import (
    tree_flatten,
    tree_leaves,
    tree_map,
    tree_structure,
    tree_unflatten,
)

from .. import _compat
from .._compat import UNSPECIFIED
from .._core.avals import aval_of, children
from .._core.dense import missing_method
from .._core.site import Site
from .._core.value import Value, is_value


def specs_of_leaves(value: Value, spec: PartitionSpec) -> list[Any] | type[Value]:
    """A spec for each leaf; or the type that defines none: the value's, or that of one inside."""
    if all(axes is None for axes in spec):
        return [PartitionSpec()] * len(tree_leaves(value))
    cls = type(value)
    returned = value.leaf_specs(spec)
    if returned is NotImplemented:
        return cls
    if type(returned) is not cls:
        raise TypeError(
            f"{cls.__name__}.leaf_specs must return a {cls.__name__} with a PartitionSpec "
            f"for each leaf; it returned a {type(returned).__name__}."
        )
    specs: list[Any] = []
    fields, given = children(value)[0], children(returned)[0]
    if len(fields) != len(given):  # None is no leaf.
        raise TypeError(
            f"{cls.__name__}.leaf_specs has {len(given)} specs for {len(fields)} leaves: {returned!r}."
        )
    for field, spec in zip(fields, given, strict=True):
        if not isinstance(spec, PartitionSpec):
            raise TypeError(
                f"{cls.__name__}.leaf_specs has {spec!r} in place of a PartitionSpec."
            )
        of_field = specs_of_leaves(field, spec) if is_value(field) else [spec]
        if isinstance(of_field, type):
            return of_field
        specs.extend(of_field)
    return specs


def place_leaves(site: Site, value: Value, place: Any, default: Any) -> list[Any]:
    """The place of each leaf, as `places_of_leaves` says.

    If no leaf can be split the user is warned: the numbers are then elsewhere than the
    program asks for, which is not an error.
    """
    placed = places_of_leaves(value, place, default)
    is_whole = placed and all(one is default for one in placed)
    if is_whole and not _is_of_any_array(place):
        what = f"Primitive {site.primitive.name!r} places a {type(value).__name__}"
        site.notice(UserWarning, f"{what}, {not_split(value, place)}")
    return placed


def not_split(value: Value, place: Any) -> str:
    if not isinstance(place, NamedSharding):
        return "whose leaves are not split. Use a NamedSharding."
    specs = specs_of_leaves(tree_map(_compat.leaf_aval, value), place.spec)
    why = remedy(specs) if isinstance(specs, type) else "They have no equal parts"
    return f"whose leaves are not split. {why}."


def remedy(cls: type[Value]) -> str:
    """What the author, or the user, of a type can do whose leaves are not split."""
    if cls.leaf_specs is Value.leaf_specs:
        return missing_method(cls, "leaf_specs")
    return f"Split it along other axes: {cls.__name__}.leaf_specs declines these"


def places_of_leaves(value: Value, place: Any, default: Any) -> list[Any]:
    """The place of each leaf, for the place of the array.

    Each leaf is split as the type defines. If the type defines nothing, a leaf with the
    array's own shape is split as the array. Where a leaf cannot be split, it gets
    ``default``.
    """
    value = tree_map(_compat.leaf_aval, value)
    leaves = tree_leaves(value)
    if _is_of_any_array(place):
        return [place] * len(leaves)
    named = isinstance(place, NamedSharding)
    specs = specs_of_leaves(value, place.spec) if named else type(value)
    if isinstance(specs, type):
        shape = aval_of(value).shape
        return [place if leaf.shape == shape else default for leaf in leaves]
    shardings = [place.update(spec=spec) for spec in specs]
    return [
        sharding if _fits(sharding, leaf) else default
        for sharding, leaf in zip(shardings, leaves, strict=True)
    ]


def _is_of_any_array(place: Any) -> bool:
    """Whether a place does not depend on the axes of the array."""
    if isinstance(place, NamedSharding):
        return False  # Even if replicated, its spec may be longer than a leaf's rank.
    if isinstance(place, Sharding):
        return isinstance(place, SingleDeviceSharding) or place.is_fully_replicated
    return place in (None, UNSPECIFIED) or isinstance(place, (jax.Device, jax.memory.Space))


def unsplit(place: Any) -> Any:
    """The same devices with a copy on each; ``None`` if no place expresses that."""
    if isinstance(place, NamedSharding):
        return place.update(spec=PartitionSpec())
    return None


def _fits(sharding: NamedSharding, aval: Any) -> bool:
    """Whether an array can be split in this way."""
    if len(sharding.spec) > len(aval.shape):
        return False
    try:
        sharding.shard_shape(aval.shape)
    except ValueError:
        return False
    return True


# --- primitives that place arrays ---------------------------------------------------


def device_put(site: Site, operands: Sequence[Any]) -> list[Any]:
    """Put each leaf in the place of the array."""
    said: dict[str, list[Any]] = {name: [] for name in site.params}  # For each leaf.
    for i, operand in enumerate(operands):
        count = len(tree_leaves(operand))
        for name, leaves in said.items():
            one = site.params[name][i]
            if name == "devices" and is_value(operand):
                leaves += place_leaves(site, operand, one, unsplit(one))
            else:
                leaves += [one] * count
    params = {name: tuple(leaves) for name, leaves in said.items()}
    return site.with_params(**params).map_leaves(operands)


def constrain(site: Site, operands: Sequence[Any]) -> list[Any]:
    """Constrain each leaf; a leaf without a sharding stays as it is."""
    (value,) = operands
    sharding = site.params["sharding"]
    shardings = place_leaves(site, value, sharding, None)
    constrained = [
        leaf
        if place is None
        else site.call_on_arrays(
            lambda x, place=place: [lax.with_sharding_constraint(x, place)], [leaf]
        )[0]
        for leaf, place in zip(tree_leaves(value), shardings, strict=True)
    ]
    return [tree_unflatten(tree_structure(value), constrained)]


def reshard(site: Site, operands: Sequence[Any]) -> list[Any]:
    """Reshard each leaf. Unlike in a constraint, the sharding is part of the array's type."""
    (value,) = operands
    sharding = site.params["dst_sharding"]
    shardings = place_leaves(site, value, sharding, unsplit(sharding))
    results = []
    for leaf, place in zip(tree_leaves(value), shardings, strict=True):
        results += site.with_params(dst_sharding=place).map_leaves([leaf])
    return [tree_unflatten(tree_structure(value), results)]


def vary(site: Site, operands: Sequence[Any]) -> list[Any]:
    """Let each leaf vary over axes of a mesh, but for those over which it varies already.

    An array varies over fewer axes than a leaf if its numbers do not depend on that leaf.
    """
    leaves, treedef = tree_flatten(list(operands))
    results = []
    for leaf in leaves:
        varying = _compat.varying_axes(_compat.leaf_aval(leaf))
        axes = tuple(axis for axis in site.params["axes"] if axis not in varying)
        results += site.with_params(axes=axes).map_leaves([leaf]) if axes else [leaf]
    return tree_unflatten(treedef, results)

"""The check of tangents: `Value.tangent`, `Value.lift_tangent` and `Value.tangent_space`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import (
    tree_flatten,
    tree_leaves,
    tree_map,
    tree_structure,
    tree_unflatten,
)

import jaxrewrite

from .._core.avals import aval_of
from .._core.settings import Settings, current_settings, use_settings
from .._handlers.derivatives import (
    can_be_dense,
    can_be_lifted,
    confinement,
    derivative,
    lift,
    on_avals,
    zero_tangent,
)
from ._oracle import difference, is_floating, numbers


# Of so many numbers each is tried alone.
_MOST = 16


def check_tangents(value: Any) -> str | None:
    """Tangents of leaves make that of the array, and come back as the type says."""
    cls, like = type(value).__name__, on_avals(value)
    if not any(is_floating(x) and x.size for x in tree_leaves(value)):
        return "its leaves have no tangents"
    if not is_floating(aval_of(value)):
        return "its array has no tangents"
    if not can_be_dense(like):
        return "it is never dense"
    settings = current_settings().refined((), "allow")
    some = tree_map(lambda x: numbers(x.shape, x.dtype), value)
    want = _of_array(value, some)
    problem = difference(_of_value(value, some, settings), want, None, least=0)
    if problem:
        raise AssertionError(f"{cls}.tangent is not the derivative of the array: {problem}")
    if not can_be_lifted(like):
        return "it has no lift_tangent"
    space = confinement(like)
    if space == "entries":
        _check_entries(value)
    tangent = numbers(want.shape, want.dtype) if space is None else want
    problem = difference(_back(value, tangent, settings), tangent, None, least=0)
    if problem:
        which = "a tangent" if space is None else "a tangent that the leaves can make"
        raise AssertionError(
            f"{cls}.lift_tangent of {which} gives tangents of the leaves that make another one "
            f"({cls}.tangent_space is {space or 'all'!r}): {problem}"
        )
    return None


def _of_array(value: Any, leaf_tangents: Any) -> jax.Array:
    """The tangent of the array by JAX."""
    tangents = tree_map(
        lambda x, t: t if is_floating(x) else np.zeros(x.shape, jax.dtypes.float0),
        value,
        leaf_tangents,
    )
    with use_settings(current_settings().refined((), "allow")):
        return jax.jvp(jaxrewrite.materialise, (value,), (tangents,))[1]


def _of_value(value: Any, leaf_tangents: Any, settings: Settings) -> jax.Array:
    """The tangent of the array as the types say."""
    tangents = tree_map(
        lambda x, t: t if is_floating(x) else zero_tangent(x, False), value, leaf_tangents
    )
    with use_settings(settings):
        return jaxrewrite.materialise(derivative(value, tangents))


def _back(value: Any, tangent: jax.Array, settings: Settings) -> jax.Array:
    """The tangent that the leaves make to which the types lift one."""
    lifted = lift(value, tangent, settings)
    return _of_array(value, tree_unflatten(tree_structure(value), lifted))


def _check_entries(value: Any) -> None:
    """Each number of a leaf is in one entry."""
    leaves, treedef = tree_flatten(value)
    places = [(i, k) for i, x in enumerate(leaves) if is_floating(x) for k in range(x.size)]
    for i, k in places[:: -(-len(places) // _MOST) or 1]:
        units = [jnp.zeros(x.size, x.dtype) for x in leaves]
        units[i] = units[i].at[k].set(1)
        units = [u.reshape(x.shape) for u, x in zip(units, leaves, strict=True)]
        count = int((_of_array(value, tree_unflatten(treedef, units)) != 0).sum())
        if count > 1:
            raise AssertionError(
                f"{type(value).__name__}.tangent_space is 'entries', but number {k} of leaf {i} is "
                f"in {count} entries: return 'repeated'"
            )

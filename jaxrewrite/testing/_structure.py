"""Checks of a value as it is: a pytree with an aval, whose metadata can be a cache's key."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
from jax.tree_util import (
    PyTreeDef,
    tree_flatten,
    tree_leaves,
    tree_map,
    tree_structure,
    tree_unflatten,
)

import jaxrewrite
from jaxrewrite import Value

from .._analyses.known_zeros import can_be_zero
from .._compat import same_array_type, short
from .._core.avals import aval_of, avals_of, dense_aval, layer, same_treedef
from ._oracle import difference, neighbour, stacked_leaves


def _same(got: Any, value: Any, what: str) -> None:
    if not jaxrewrite.same_structure(got, value):
        raise AssertionError(f"{what} has another structure: {got!r}")
    told = difference(tree_leaves(got), tree_leaves(value), 0.0)
    if told is not None:
        raise AssertionError(f"{what} has other leaves: {told}")


def _pytree(value: Any) -> str | None:
    leaves, treedef = tree_flatten(value)
    _same(tree_unflatten(treedef, leaves), value, "the value from its own leaves")
    bare = tree_unflatten(treedef, [object() for _ in leaves])
    if not same_treedef(tree_structure(bare), treedef):
        raise AssertionError("the value with other objects as leaves has another structure")
    return None


def _pickle(value: Any) -> str | None:
    try:
        text = pickle.dumps(value)
    except Exception as error:  # noqa: BLE001 - a user's fields decide what pickle raises
        return f"it can't be pickled: {error}"
    _same(pickle.loads(text), value, "the value from a pickle")
    return None


def _metadata(value: Any) -> str | None:
    try:
        copied = copy.deepcopy(value)
    except Exception as error:  # noqa: BLE001 - a user's fields decide what copy raises
        return f"it can't be copied: {error}"
    own, other = (tuple(_metadata_of(tree_structure(x))) for x in (value, copied))
    if own != other:
        raise AssertionError(
            "the metadata of a copy is not equal to that of the value, so that each value "
            "would be compiled anew: define __eq__ and __hash__ for static fields"
        )
    if hash(own) != hash(other):
        raise AssertionError("the metadata of a copy is equal and has another hash")
    return None


def _metadata_of(treedef: PyTreeDef) -> Iterator[Any]:
    """The metadata of each value. The hash of a treedef may not depend on it."""
    node = treedef.node_data()
    if node is not None and issubclass(node[0], Value):
        yield node[1]
    for child in treedef.children():
        yield from _metadata_of(child)


def _static_fields(value: Any) -> str | None:
    changed = list(_with_another_static_field(value))
    if not changed:
        return "it has no static field of a plain Python type"
    for name, other in changed:
        if jaxrewrite.same_structure(other, value):
            raise AssertionError(
                f"a value whose {name!r} is {getattr(other, name)!r} has the same structure as "
                f"one whose {name!r} is {getattr(value, name)!r}, so that the program of one "
                "runs for the other"
            )
    return None


# What is another content of a static field, by its type. No program runs on it.
_ANOTHER: dict[type, Callable[[Any], Any]] = {
    bool: lambda x: not x,
    int: lambda x: x + 1,
    float: lambda x: x + 1.0,
    str: lambda x: x + "x",
    tuple: lambda x: (*x, None),
}


def _with_another_static_field(value: Any) -> Iterator[tuple[str, Any]]:
    for name, field in getattr(value, "__dataclass_fields__", {}).items():
        content = getattr(value, name)
        is_metadata = field.init and field.metadata.get("static", False)
        if is_metadata and type(content) in _ANOTHER:
            # A copy without a call of __init__, which might refuse what nobody would pass.
            other = copy.copy(value)
            object.__setattr__(other, name, _ANOTHER[type(content)](content))
            yield name, other


def _aval(value: Any) -> str | None:
    if type(value).materialise is Value.materialise:
        return "it is never dense"
    leaves, treedef = layer(value)
    made = dense_aval(type(value), treedef, avals_of(leaves))
    declared, returned = map(short, (aval_of(value), made))
    if not same_array_type(aval_of(value), made):
        raise AssertionError(f"aval() is {declared} where materialise() returns {returned}")
    return None


def _stack(value: Any) -> str | None:
    both = [value, neighbour(value)]
    stack = jaxrewrite.stack(both)
    if type(value).materialise is Value.materialise:
        return "it is never dense"
    want = jnp.stack(jaxrewrite.materialise(both))
    told = difference(jaxrewrite.materialise(stack), want, None)
    if told is not None:
        raise AssertionError(f"the stack of two values is another array: {told}")
    return None


def _batch(value: Any) -> str | None:
    if type(value).materialise is Value.materialise:
        return "it is never dense"
    try:
        want = jnp.stack(jaxrewrite.materialise([value, neighbour(value)]))
        got = jaxrewrite.materialise(stacked_leaves(value))
        told = difference(got, want, None)
    except Exception as error:  # noqa: BLE001 - the user's type raises anything
        told = type(error).__name__
    if told is not None:
        return (
            "with one more axis in front of each leaf it is not a batch, so make it dense "
            f"before it leaves jax.vmap: {told}"
        )
    return None


def _zero(value: Any) -> str | None:
    if not can_be_zero(value):
        return "its type does not say zero_if_leaves_are"
    zeros = jaxrewrite.materialise(tree_map(jnp.zeros_like, value))
    told = difference(zeros, jnp.zeros_like(zeros), 0.0)
    if told is not None:
        raise AssertionError(
            f"its type says zero_if_leaves_are, and with zeros as leaves it is not zero: {told}"
        )
    return None


# A check returns the reason why it can't be made, if there is one.
CHECKS: dict[str, Callable[[Any], str | None]] = {
    "pytree": _pytree,
    "pickle": _pickle,
    "metadata": _metadata,
    "static fields": _static_fields,
    "aval": _aval,
    "stack": _stack,
    "batch": _batch,
    "zero": _zero,
}

# Without these, each program would fail for the same reason.
FIRST = ("pytree", "metadata", "aval")

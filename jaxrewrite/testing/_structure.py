"""Checks of a value as it is: a pytree with an aval, whose metadata can be a cache's key."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jax.tree_util import (
    PyTreeDef,
    tree_flatten,
    tree_leaves,
    tree_structure,
    tree_unflatten,
)

import jaxrewrite
from jaxrewrite import Value

from .._compat import same_array_type, short
from .._core.avals import aval_of, same_treedef
from .._placement.leafwise import specs_of_leaves
from ._axes import check_axes
from ._matrix import check_matrix
from ._oracle import difference, neighbour, stacked_leaves
from ._tangents import check_tangents
from ._variants import aval_of_array, in_dtype, static_fields


def _same(copied: Any, value: Any, subject: str) -> None:
    if not jaxrewrite.same_structure(copied, value):
        raise AssertionError(f"{subject} has another structure: {copied!r}")
    message = difference(tree_leaves(copied), tree_leaves(value), 0.0)
    if message is not None:
        raise AssertionError(f"{subject} has other leaves: {message}")


def _pytree(value: Any) -> str | None:
    leaves, treedef = tree_flatten(value)
    _same(tree_unflatten(treedef, leaves), value, "the value from its own leaves")
    bare = tree_unflatten(treedef, [object() for _ in leaves])
    if not same_treedef(tree_structure(bare), treedef):
        raise AssertionError("the value with other objects as leaves has another structure")
    _keeps_its_array(tree_unflatten(treedef, leaves), value)
    return None


def _keeps_its_array(copied: Any, value: Any) -> None:
    """Compare what ``materialise`` returns, which may read what is not part of the pytree."""
    try:
        array = jaxrewrite.materialise(value.materialise())
    except Exception:  # noqa: BLE001 - never dense, or a field is a value, which JAX refuses
        return
    try:
        message = difference(jaxrewrite.materialise(copied.materialise()), array, 0.0)
    except Exception as error:  # noqa: BLE001 - where an attribute is missing, anything happens
        message = f"{type(error).__name__}: {error}"
    if message is not None:
        raise AssertionError(
            f"the value from its own leaves is another array: {message}. What a value holds "
            "has to be in its leaves and its metadata: annotate it as a field of the class"
        )


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
    metadata, metadata_of_copy = (
        tuple(_metadata_of(tree_structure(x))) for x in (value, copied)
    )
    if metadata != metadata_of_copy:
        raise AssertionError(
            "the metadata of a copy is not equal to that of the value, so that each value "
            "would be compiled anew: define __eq__ and __hash__ for static fields"
        )
    if hash(metadata) != hash(metadata_of_copy):
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
    for what, other in changed:
        if jaxrewrite.same_structure(other, value):
            raise AssertionError(
                f"a value {what} has the same structure as this one, so that the program "
                "of one runs for the other"
            )
    return None


# Another content of a static field, by its type. No program runs on it.
_ANOTHER: dict[type, Callable[[Any], Any]] = {
    bool: lambda x: not x,
    int: lambda x: x + 1,
    float: lambda x: x + 1.0,
    str: lambda x: x + "x",
    tuple: lambda x: (*x, None),
}


def _with_another_static_field(value: Any) -> Iterator[tuple[str, Any]]:
    """Values with another static field, or with another attribute of an object in one."""
    for field in static_fields(value):
        for what, content in _changed(getattr(value, field.name), field.name):
            # A copy without a call of __init__, which might refuse contents that nobody would pass.
            yield what, _with_attribute(value, field.name, content)


def _changed(content: Any, name: str) -> Iterator[tuple[str, Any]]:
    if type(content) in _ANOTHER:
        other = _ANOTHER[type(content)](content)
        yield f"whose {name!r} is {other!r}", other
    elif hasattr(content, "__dict__") and _is_compared_in_python(content):
        for attribute, inner in vars(content).items():
            if type(inner) in _ANOTHER and not attribute.startswith("_"):
                other = _with_attribute(content, attribute, _ANOTHER[type(inner)](inner))
                yield f"whose {name!r} has another {attribute!r}", other


def _is_compared_in_python(content: Any) -> bool:
    """Whether a class defines equality; a dataclass says which fields are compared."""
    parts = getattr(content, "__dataclass_fields__", {}).values()
    return inspect.isfunction(type(content).__eq__) and all(f.compare for f in parts)


def _with_attribute(of: Any, name: str, content: Any) -> Any:
    other = copy.copy(of)
    object.__setattr__(other, name, content)
    return other


def _aval(value: Any) -> str | None:
    if type(value).materialise is Value.materialise:
        return "it is never dense"
    _check_aval(value, "")
    if not any(_static_dtypes(value)):
        for dtype in ("bfloat16", "complex64"):
            other = in_dtype(value, dtype)
            if other is not None and _becomes(other, value.shape, dtype):
                _check_aval(other, f"with leaves in {dtype}, ")
    return None


def _check_aval(value: Any, which: str) -> None:
    aval = aval_of_array(value)
    if not same_array_type(aval_of(value), aval):
        raise AssertionError(
            f"{which}{type(value).__name__}.aval() is {short(aval_of(value))} where "
            f"materialise() returns {short(aval)}"
        )
    for name in ("shape", "dtype", "ndim", "size"):  # A field may have the name.
        said, is_so = getattr(value, name), getattr(aval, name)
        if said != is_so:
            raise AssertionError(
                f"{which}{type(value).__name__}.{name} is {said!r} where that of materialise() is {is_so!r}"
            )


def _static_dtypes(value: Any) -> Iterator[bool]:
    """Whether each static field may be the dtype of the array."""
    for field in static_fields(value):
        try:
            yield jnp.dtype(getattr(value, field.name)) == value.dtype
        except (TypeError, ValueError):  # NumPy takes a pair for a dtype with a shape.
            yield False


def _becomes(value: Any, shape: tuple[int, ...], dtype: str) -> bool:
    """Whether the array has this shape and dtype, whatever the value says."""
    try:
        aval = aval_of_array(value)
    except Exception:  # noqa: BLE001 - a type may refuse these leaves
        return False
    return (aval.shape, aval.dtype) == (shape, dtype)


def _shards(value: Any) -> str | None:
    """Each shard of the leaves has to be a value that is the shard of the array."""
    if type(value).leaf_specs is Value.leaf_specs:
        return "its type does not define leaf_specs"
    dense, tried = jaxrewrite.materialise(value), 0
    for axis, length in enumerate(value.shape):
        spec = PartitionSpec(*(None,) * axis, "mesh axis")
        specs = specs_of_leaves(value, spec)
        for i in range(0 if isinstance(specs, type) else length):
            shard = _shard(value, specs, i, length)
            if shard is None or aval_of(shard).shape[axis : axis + 1] != (1,):
                break  # Then a program on a mesh makes it dense.
            tried += 1
            dense_shard = jax.lax.index_in_dim(dense, i, axis)
            message = difference(jaxrewrite.materialise(shard), dense_shard, None, least=0)
            if message is not None:
                raise AssertionError(
                    f"{type(value).__name__}.leaf_specs splits axis {axis} of the array so "
                    f"that shard {i} is another array: {message}"
                )
    if not tried:
        return "its leaves are not split into rows or columns"
    return None


def _shard(value: Any, specs: Any, i: int, parts: int) -> Any:
    """Part ``i`` of the leaves that a spec splits, ``None`` if a leaf cannot be split so."""
    leaves, treedef = tree_flatten(value)
    local = []
    for leaf, spec in zip(leaves, specs, strict=True):
        for axis, names in enumerate(spec):
            if names is not None:
                size, rest = divmod(jnp.shape(leaf)[axis], parts)
                if rest:
                    return None
                leaf = jax.lax.slice_in_dim(leaf, i * size, (i + 1) * size, axis=axis)
        local.append(leaf)
    return tree_unflatten(treedef, local)


def _stack(value: Any) -> str | None:
    both = [value, neighbour(value)]
    stack = jaxrewrite.stack(both)
    if type(value).materialise is Value.materialise:
        return "it is never dense"
    dense_stack = jnp.stack(jaxrewrite.materialise(both))
    message = difference(jaxrewrite.materialise(stack), dense_stack, None, least=0)
    if message is not None:
        raise AssertionError(f"the stack of two values is another array: {message}")
    return None


def _batch(value: Any) -> str | None:
    if type(value).materialise is Value.materialise:
        return "it is never dense"
    try:
        dense_stack = jnp.stack(jaxrewrite.materialise([value, neighbour(value)]))
        batch = jaxrewrite.materialise(stacked_leaves(value))
        message = difference(batch, dense_stack, None, least=0)
    except Exception as error:  # noqa: BLE001 - the user's type raises anything
        message = type(error).__name__
    if message is not None:
        return (
            "with one more axis in front of each leaf it is not a batch, so make it dense "
            f"before it leaves jax.vmap: {message}"
        )
    return None


# A check returns the reason why it can't be made, if there is one.
CHECKS: dict[str, Callable[[Any], str | None]] = {
    "pytree": _pytree,
    "pickle": _pickle,
    "metadata": _metadata,
    "static fields": _static_fields,
    "aval": _aval,
    "axes": check_axes,
    "shards": _shards,
    "stack": _stack,
    "batch": _batch,
    "tangents": check_tangents,
    "matrix": check_matrix,
}

# Without these, each program would fail for the same reason.
FIRST = ("pytree", "metadata", "aval")

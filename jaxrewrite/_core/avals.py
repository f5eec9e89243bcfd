"""The children of a value, and its aval in a jaxpr.

The rewriting looks into a value only by this module: by its children (`children`), by what a
rule sees of it (`rule_children`), and by its aval (`aval_of`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jax.tree_util import (
    PyTreeDef,
    keystr,
    tree_flatten,
    tree_flatten_with_path,
    tree_unflatten,
)

from .. import _compat
from .._compat import Aval, ShapedArray
from .caches import BoundedCache
from .pytree import check_static_fields, dataclass_fields, is_static
from .value import Value, is_value


def same_treedef(a: PyTreeDef, b: PyTreeDef) -> bool:
    """Whether two pytrees have the same structure and the same classes.

    JAX's ``==`` does not compare the classes of dataclasses that other packages register.
    The hashes of these treedefs, of 64 bits, do differ.
    """
    return a == b and hash(a) == hash(b)


def is_annotation(x: Any) -> bool:
    """Whether it is what an array carries, such as units, with the array inside; not zeros."""
    return is_value(x) and 0 < type(x).outer < math.inf


def _is_annotated(x: Any) -> bool:
    """Whether it is an annotation, or a stack of what has some inside."""
    inside = values_inside(x) if is_value(x) and x._holds_stacked_leaves else ()
    return any(map(is_annotation, (x, *inside)))


def rule_children(value: Value) -> tuple[list[Any], PyTreeDef]:
    """The children that rules see: leaves, and children that are themselves values.

    With ``rules_see_values``, those are annotations alone: they are no structure to a rule.
    """
    if value.rules_see_values:
        sees_all = value._holds_stacked_leaves or is_annotation(value)
        leaves, treedef = tree_flatten(value, is_leaf=None if sees_all else _is_annotated)
    else:
        leaves, treedef = children(value)
    if len(leaves) == 1 and leaves[0] is value:
        raise no_pytree(value)
    return leaves, treedef


def children(value: Value) -> tuple[list[Any], PyTreeDef]:
    """All children of a value: its leaves, and children that are themselves values.

    Of some types rules see leaves instead: see `rule_children`.
    """
    flat: tuple[list[Any], Any] = tree_flatten(value)
    if flat[1].num_nodes == len(flat[0]) + 1:
        return flat  # No node is inside. A predicate in Python takes longer.
    return tree_flatten(value, is_leaf=lambda x: x is not value and is_value(x))


def values_inside(value: object) -> Iterator[Value]:
    """The values inside of a value, at any depth; inside of an array, there are none."""
    for child in children(value)[0] if is_value(value) else ():
        if is_value(child):
            yield child
            yield from values_inside(child)


def no_pytree(value: Value) -> TypeError:
    """Return the error for a value that is not a pytree."""
    return TypeError(
        f"{type(value).__name__} is not a pytree, so it has no leaves to work on. A subclass "
        "of jaxrewrite.Value becomes a pytree when it is constructed. Register any other "
        "class with jax.tree_util."
    )


def avals_of(operands: Sequence[Any]) -> list[Any]:
    """The avals of values and of arrays (or atoms of a jaxpr)."""
    return [aval_of(x) if is_value(x) else _compat.leaf_aval(x) for x in operands]


_avals = BoundedCache(4096)


def aval_of(value: Value) -> ShapedArray:
    """The aval of a value, with arrays, tracers, avals or atoms as leaves.

    The type's method is called once for each structure. Leaves may carry more than a
    user's ``aval`` tells: axes of a mesh, or a memory space. These come from
    ``materialise``.
    """
    leaves, treedef = rule_children(value)
    try:
        avals = tuple(avals_of(leaves))
    except TypeError as error:
        _check_is_whole(value, error)
        raise TypeError(
            f"{type(value).__name__} holds something that is not an array: {error} "
            "Declare such a field with jaxrewrite.field(static=True)."
        ) from error
    key = (treedef, avals, _compat.trace_context())
    try:
        cached = _avals.get(key)
    except TypeError:  # The metadata is not hashable.
        check_static_fields(value)
        return _infer_aval(type(value), treedef, avals)
    if cached is None:
        try:
            cached = _infer_aval(type(value), treedef, avals)
        except Exception as error:
            _check_is_whole(value, error)
            raise
        _avals.put(key, cached)
    return cached


def is_adopted(value: Value) -> bool:
    """Whether a value is an array that another value adopted, and nothing has told what it is.

    It is of the class that its own `Value.adopt` returns, and inherits from the class that adopts.
    """
    cls = type(value)
    may_be = cls.adopt is not Value.adopt and "adopt" not in vars(cls)
    return may_be and type(value.adopt(aval_of(value), None)) is cls


def _check_is_whole(value: Value, error: Exception) -> None:
    """Raise `TypeError` if the cause of an error is that the value lacks some leaves."""
    name = type(value).__name__
    if empty := list(_contents_with(value, lambda x: x is None)):
        raise TypeError(
            f"This {name} lacks some of its arrays: there is None in {', '.join(empty)}. Such "
            "values come from jaxrewrite.values.partition, or from a filter of another "
            "library. Put the parts together first (combine)."
        ) from error
    if bare := list(_contents_with(value, lambda x: type(x) is object)):
        raise TypeError(
            f"This {name} has no shape and dtype: there are bare objects instead of arrays in "
            f"{', '.join(bare)}. JAX makes such values when it needs their structure alone, "
            "for example for in_axes. Code that JAX calls with them, such as tree_unflatten, "
            "must not ask for shapes."
        ) from error


def _contents_with(value: Value, is_empty: Callable[[Any], bool]) -> Iterator[str]:
    """The paths of contents of some kind, except for ``None`` where it is the default."""
    is_whole = lambda x: x is None or is_value(x)
    for f in dataclass_fields(type(value)):
        if is_static(f):
            continue
        contents, _ = tree_flatten_with_path(getattr(value, f.name, None), is_leaf=is_whole)
        for path, content in contents:
            field_path = f.name + keystr(path)
            if is_value(content):
                yield from (
                    f"{field_path}.{inner}" for inner in _contents_with(content, is_empty)
                )
            elif is_empty(content) and not (content is f.default is None):
                yield field_path


def _infer_aval(cls: type[Value], treedef: PyTreeDef, avals: Sequence[Any]) -> ShapedArray:
    declared: list[Any] = []

    def declare(*leaves: Any) -> list[Any]:
        declared.append(_as_aval(cls, tree_unflatten(treedef, leaves).aval()))
        return []

    debug_info = _compat.new_debug_info(f"{cls.__name__}.aval", cls.aval)
    with _compat.mesh_of(avals):
        _compat.trace_to_jaxpr(declare, avals, debug_info)
    (aval,) = declared
    # The type of numbers is weak if that of all leaves with numbers of the dtype is.
    alike = [x for x in avals if isinstance(x, ShapedArray) and x.dtype == aval.dtype]
    if alike and all(map(_compat.is_weak, alike)):
        aval = aval.update(weak_type=True)
    if all(map(_compat.is_plain, avals)) or not isinstance(aval, ShapedArray):
        return aval
    try:
        dense = dense_aval(cls, treedef, avals)
    except Exception:  # noqa: BLE001 - a type that is never dense raises anything
        return _compat.varying_as(aval, avals)
    return dense.update(weak_type=aval.weak_type)


def dense_aval(cls: type[Value], treedef: PyTreeDef, avals: Sequence[Any]) -> ShapedArray:
    """The aval of the array that ``materialise`` returns for leaves of these avals."""
    dense_avals: list[Any] = []

    def dense(*leaves: Any) -> list[Any]:
        value = tree_unflatten(treedef, leaves)
        result = _compat.call_on_mesh(type(value).materialise, value)
        if isinstance(result, cls):
            inside, of_result = rule_children(result)
            if same_treedef(of_result, treedef) and avals_of(inside) == [*avals]:
                raise TypeError(f"{cls.__name__}.materialise returned such a value again.")
        try:
            dense_avals.extend(avals_of([result]))
        except TypeError as error:
            if is_value(result):
                raise
            what = f"{cls.__name__}.materialise returned a {type(result).__name__}"
            raise TypeError(f"{what}: neither an array nor a value.") from error
        return []

    debug_info = _compat.new_debug_info(f"{cls.__name__}.materialise", cls.materialise)
    with _compat.mesh_of(avals):
        _compat.trace_to_jaxpr(dense, avals, debug_info)
    return dense_avals[0]


def mismatch(result: object, expected: Aval, subject: str, wanted: str) -> str | None:
    """A message if a result does not have the expected aval, else ``None``.

    ``subject`` returned the result, and ``wanted`` tells who expects another aval.
    """
    if is_value(result):
        aval, form = aval_of(result), f" (as a {type(result).__name__})"
    else:
        form = ""
        try:
            # A class has a method where its values have an aval.
            aval = _compat.leaf_aval(None if isinstance(result, type) else result)
        except TypeError:
            return (
                f"{subject} returned a {type(result).__name__} where {wanted} "
                f"{_compat.short(expected)}: neither an array nor a value."
            )
    if _compat.same_array_type(aval, expected):
        return None
    actual, wanted_aval = _compat.short(aval), _compat.short(expected)
    return f"{subject} returned {actual} where {wanted} {wanted_aval}{form}."


def _as_aval(cls: type[Value], declared: object) -> Aval:
    if isinstance(declared, jax.core.AbstractValue):
        return declared
    if isinstance(declared, jax.ShapeDtypeStruct) or _compat.is_array(declared):
        return _compat.leaf_aval(declared)
    raise TypeError(
        f"{cls.__name__}.aval() must return a jax.core.ShapedArray or a "
        f"jax.ShapeDtypeStruct; it returned a {type(declared).__name__}."
    )

"""What a value is made of, and as what array it stands in a jaxpr.

The rewriting looks into a value through the two questions answered here alone: what
are its fields one layer down (`layer`), and what aval does it have (`aval_of`)?
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax
from jax.tree_util import PyTreeDef, tree_flatten, tree_leaves, tree_unflatten

from . import _compat
from ._caches import bounded_cache
from ._compat import ShapedArray
from ._pytree import check_static_fields
from ._value import Value, is_value


def same_treedef(a: PyTreeDef, b: PyTreeDef) -> bool:
    """Whether two pytrees are of one structure, their classes included.

    JAX's ``==`` does not compare the classes of dataclasses that are registered by
    others than this package. Their hashes, of 64 bits, do differ.
    """
    return a == b and hash(a) == hash(b)


def same_structure(x: Any, y: Any) -> bool:
    """Say whether two pytrees of arrays and values are alike but for their numbers.

    Parameters
    ----------
    x, y
        Values, arrays or pytrees of them.

    Returns
    -------
    bool
        Whether they have the same classes and metadata, nested ones included, and
        leaves of the same shapes and dtypes.

    Examples
    --------
    >>> import jax.numpy as jnp, jaxrewrite
    >>> from jaxrewrite.values import Circulant, Diagonal
    >>> x = jnp.ones(3)
    >>> jaxrewrite.same_structure(Diagonal(x), Diagonal(2 * x))
    True
    >>> jaxrewrite.same_structure(Diagonal(x), Circulant(x))
    False
    """
    xs, treedef = tree_flatten(x)
    ys, other = tree_flatten(y)
    return same_treedef(treedef, other) and all(
        _compat.same_array_type(_compat.leaf_aval(a), _compat.leaf_aval(b))
        for a, b in zip(xs, ys, strict=True)
    )


def layer(value: Value) -> tuple[list[Any], PyTreeDef]:
    """Flatten one layer: leaves that are values themselves stay whole."""
    is_leaf = None if value.rules_see_values else lambda x: x is not value and is_value(x)
    leaves, treedef = tree_flatten(value, is_leaf=is_leaf)
    if len(leaves) == 1 and leaves[0] is value:
        raise no_pytree(value)
    return leaves, treedef


def fields(value: Value) -> tuple[list[Any], PyTreeDef]:
    """The fields that are values, and all other leaves: a layer of any type.

    `layer` is what a rule sees, which for some types is all leaves.
    """
    return tree_flatten(value, is_leaf=lambda x: x is not value and is_value(x))


def no_pytree(value: Value) -> TypeError:
    """The error for a value that has no leaves to work on."""
    return TypeError(
        f"{type(value).__name__} is no pytree, so that it has no leaves to work on. A "
        "subclass of jaxrewrite.Value is made one by itself when it is constructed; a "
        "class that goes another way has to be registered with jax.tree_util."
    )


def is_hollow(x: Any) -> bool:
    """Whether a value has no leaves, so that `jax.vmap` has nothing to give batch axes."""
    return is_value(x) and not tree_leaves(x)


def avals_of(operands: Sequence[Any]) -> list[Any]:
    """The avals that values and arrays (or atoms of a jaxpr) stand for."""
    return [aval_of(x) if is_value(x) else _compat.leaf_aval(x) for x in operands]


_avals = bounded_cache(4096)


def aval_of(value: Value) -> Any:
    """The aval of a value, whose leaves may be arrays, tracers, avals or atoms.

    Asked of each structure once. Leaves carry more than a user's ``aval`` says
    (axes of a mesh, memory space); that is taken from ``materialise``.
    """
    leaves, treedef = layer(value)
    try:
        avals = tuple(avals_of(leaves))
    except TypeError as error:
        _check_is_whole(value, error)
        raise TypeError(
            f"{type(value).__name__} holds something that is no array: {error} "
            "Declare such a field with jaxrewrite.field(static=True)."
        ) from error
    key = (treedef, avals, _compat.trace_context())
    try:
        known = _avals.get(key)
    except TypeError:  # unhashable metadata
        check_static_fields(value)
        return _infer_aval(type(value), treedef, avals)
    if known is None:
        try:
            known = _infer_aval(type(value), treedef, avals)
        except Exception as error:
            _check_is_whole(value, error)
            raise
        _avals.put(key, known)
    return known


def _check_is_whole(value: Value, error: Exception) -> None:
    """Raise `TypeError` if an error is one of a value that has lost some leaves."""
    empty = list(_empty_fields(value))
    if empty:
        raise TypeError(
            f"This {type(value).__name__} is half empty, so that it stands for no array: "
            f"there is None in {', '.join(empty)}, as in what jaxrewrite.values.partition, or "
            "a filter of another library, makes of a pytree. Put the parts together first "
            "(combine)."
        ) from error


def _empty_fields(value: Value) -> Iterator[str]:
    for f in getattr(value, "__dataclass_fields__", {}).values():
        content = getattr(value, f.name, None)
        if isinstance(content, Value):
            yield from (f"{f.name}.{name}" for name in _empty_fields(content))
        elif content is None and f.default is not None and not f.metadata.get("static"):
            yield f.name


def _infer_aval(cls: type[Value], treedef: PyTreeDef, avals: tuple[Any, ...]) -> Any:
    declared: list[Any] = []

    def ask(*leaves: Any) -> list[Any]:
        declared.append(_as_aval(cls, tree_unflatten(treedef, leaves).aval()))
        return []

    debug_info = _compat.new_debug_info(f"{cls.__name__}.aval", cls.aval)
    with _compat.mesh_of(avals):
        _compat.trace_to_jaxpr(ask, avals, debug_info)
    (aval,) = declared
    if all(map(_compat.is_plain, avals)) or not isinstance(aval, ShapedArray):
        return aval
    try:
        whole = dense_aval(cls, treedef, avals)
    except Exception:  # noqa: BLE001 - a type that is never dense raises anything
        return aval
    return whole.update(weak_type=aval.weak_type)


def dense_aval(cls: type[Value], treedef: PyTreeDef, avals: Sequence[Any]) -> Any:
    """The aval of what ``materialise`` returns for leaves of these avals."""
    found: list[Any] = []

    def dense(*leaves: Any) -> list[Any]:
        found.extend(avals_of([tree_unflatten(treedef, leaves).materialise()]))
        return []

    debug_info = _compat.new_debug_info(f"{cls.__name__}.materialise", cls.materialise)
    with _compat.mesh_of(avals):
        _compat.trace_to_jaxpr(dense, avals, debug_info)
    return found[0]


def mismatch(result: Any, expected: Any, what: str, wanted: str) -> str | None:
    """Say that a result is not of the expected aval; ``None`` if it is.

    ``what`` gave the result, and ``wanted`` is what says otherwise.
    """
    if is_value(result):
        aval, form = aval_of(result), f" (as a {type(result).__name__})"
    else:
        form = ""
        try:
            aval = _compat.leaf_aval(result)
        except TypeError:
            return (
                f"{what} returned a {type(result).__name__} where {wanted} "
                f"{_compat.short(expected)}: neither an array nor a value."
            )
    if _compat.same_array_type(aval, expected):
        return None
    given, due = _compat.short(aval), _compat.short(expected)
    return f"{what} returned {given} where {wanted} {due}{form}."


def _as_aval(cls: type[Value], declared: Any) -> Any:
    if isinstance(declared, jax.core.AbstractValue):
        return declared
    if isinstance(declared, jax.ShapeDtypeStruct) or _compat.is_array(declared):
        return _compat.leaf_aval(declared)
    raise TypeError(
        f"{cls.__name__}.aval() must return a jax.core.ShapedArray or a "
        f"jax.ShapeDtypeStruct; it returned a {type(declared).__name__}."
    )

"""Values along the leading axis of a loop: how they are sliced and stacked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from jax.tree_util import tree_leaves, tree_map, tree_structure, tree_unflatten

from .. import _compat
from .._batched import Batched, sliced
from .._compat import Var
from .._core.avals import aval_of, fields, same_treedef
from .._core.dense import Reason
from .._core.rewrite import Scope
from .._core.site import Site
from .._core.value import Value, is_value


_NOT_SLICED = Reason(
    "Primitive {primitive!r} takes slices of a {cls}", "Define {cls}.unstacked"
)


def sliceable(scope: Scope, x: Any, length: int, site: Site) -> Any:
    """An operand in a form that can be sliced leaf by leaf: a value, or dense."""
    while is_value(x):
        scratch = scope.scratch()
        if _can_be_sliced(scope, in_slices(scratch, on_vars(x), site), length, site):
            return in_slices(scope, x, site)
        x = scope.make_denser(x, site, _NOT_SLICED)
    return x


def on_vars(x: Any) -> Any:
    return tree_map(lambda leaf: Var(_compat.leaf_aval(leaf)), x)


def in_slices(scope: Scope, x: Any, site: Site) -> Any:
    """A value in the form that `Value.sliceable` of its type and of its fields gives."""
    if not is_value(x) or isinstance(x, Batched):
        return x
    cls = type(x)
    own, treedef = fields(x)
    value = tree_unflatten(treedef, [in_slices(scope, f, site) for f in own])
    if cls.sliceable is Value.sliceable:
        return value
    return _call_hook(scope, cls.sliceable, cls, value, site)


def _can_be_sliced(scope: Scope, x: Value, length: int, site: Site) -> bool:
    if isinstance(x, Batched):
        return True
    avals = map(_compat.leaf_aval, tree_leaves(x))
    if any(aval.shape[:1] != (length,) for aval in avals):
        return False
    one = _element(scope.scratch(), tree_map(Var, sliced(x, length)), site)
    if one is NotImplemented:
        return False
    expected = _compat.without_leading_axis(aval_of(x), length)
    return _compat.same_array_type(aval_of(one) if is_value(one) else one.aval, expected)


def elements_like(scope: Scope, x: Value, depth: int, site: Site) -> bool:
    """Whether slices of the leaves, along so many leading axes, make a value like this one."""
    scratch = scope.scratch()
    like = on_vars(x)
    for length in aval_of(x).shape[:depth]:
        if not _can_be_sliced(scope, like, length, site):
            return False
        one = _element(scratch, tree_map(Var, sliced(like, length)), site)
        if not same_treedef(tree_structure(one), tree_structure(like)):
            return False
        like = one
    return True


def _element(scope: Scope, x: Any, site: Site) -> Any:
    """The element that a value with sliced leaves stands for, or ``NotImplemented``."""
    if not is_value(x):
        return x
    if isinstance(x, Batched):
        return x.unstacked()
    cls = type(x)
    if cls.unstacked is Value.unstacked:
        return NotImplemented
    own, treedef = fields(x)
    elements = [_element(scope, field, site) for field in own]
    if any(element is NotImplemented for element in elements):
        return NotImplemented
    value = tree_unflatten(treedef, elements)
    return _call_hook(scope, cls.unstacked, cls, value, site)


def element_like(scope: Scope, x: Any, length: int, site: Site) -> Any:
    """An element of a stack, on avals; ``NotImplemented`` if it is none."""
    if not _can_be_sliced(scope, on_vars(x), length, site):
        return NotImplemented
    scratch = scope.scratch()
    one = _element(scratch, tree_map(Var, sliced(x, length)), site)
    return tree_map(_compat.leaf_aval, one)


def stack_like(scope: Scope, x: Any, length: int, site: Site) -> Any:
    """A stack of so many values like this one, on avals."""
    leaves = tree_map(lambda aval: Var(_compat.with_leading_axis(aval, length)), x)
    return tree_map(_compat.leaf_aval, _whole(scope.scratch(), leaves, length, site))


class Elements(NamedTuple):
    """Makes elements of the operands of a body, from operand number ``start`` on.

    An adapter of `restage`.
    """

    start: int

    def __call__(self, scope: Scope, operands: Sequence[Any], site: Site) -> list[Any]:
        xs = [_element(scope, x, site) for x in operands[self.start :]]
        return [*operands[: self.start], *xs]


def stacked(scope: Scope, x: Any, length: int, expected: Any, site: Site) -> Any:
    """A result with stacked leaves, as one value or array.

    Raises `TypeError` if it does not have the expected aval.
    """
    whole = _whole(scope, x, length, site)
    if is_value(whole) and not _compat.same_array_type(aval_of(whole), expected):
        raise TypeError(
            f"{type(x).__name__}.stacked returned {_compat.short(aval_of(whole))} where "
            f"{site.primitive.name!r} gives {_compat.short(expected)}."
        )
    return whole


def _whole(scope: Scope, x: Any, length: int, site: Site) -> Any:
    if not is_value(x):
        return x
    cls = type(x)
    if cls.stacked is not Value.stacked:
        own, treedef = fields(x)
        wholes = [_whole(scope, field, length, site) for field in own]
        value = tree_unflatten(treedef, wholes)
        whole = _call_hook(scope, cls.stacked, cls, value, site, length)
        if whole is not NotImplemented:
            return whole
    return Batched(x, length)


def _call_hook(
    scope: Scope,
    hook: Callable[..., Any],
    cls: type,
    value: Value,
    site: Site,
    *args: Any,
) -> Any:
    what = f"{cls.__name__}.{hook.__name__}"

    def call(value: Any) -> Any:
        return hook(value, *args)

    def check(result: Any) -> list[Any]:
        if not is_value(result) and not _compat.is_array(result):
            raise TypeError(f"{what} returned a {type(result).__name__}, not a value.")
        return [result]

    outvars: list[Any] = [_compat.DropVar(_compat.leaf_aval(0.0))]
    results = scope.splice(call, (hook, *args), [value], site.giving(outvars), check)
    return results if results is NotImplemented else results[0]

"""Values along the leading axis of a loop: how they are sliced and stacked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import NotImplementedType
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.tree_util import tree_leaves, tree_map, tree_structure, tree_unflatten

from .. import _compat
from .._batched import Batched, sliced
from .._compat import Aval, Var
from .._core.avals import aval_of, avals_of, children, rule_children, same_treedef
from .._core.dense import Reason
from .._core.site import Site
from .._core.value import Like, Operand, Result, Value, is_value
from .adapters import make_denser


_NOT_SLICED = Reason(
    "Primitive {primitive!r} takes slices of a {cls}", "Define {cls}.unstacked"
)


def sliceable(site: Site, x: Operand, length: int) -> Operand:
    """An operand in a form that can be sliced leaf by leaf: a value, or dense."""
    while is_value(x):
        scratch = site.scratch()
        if _can_be_sliced(site, in_slices(scratch, on_vars(x)), length):
            return in_slices(site, x)
        x = make_denser(site, x, _NOT_SLICED)
    return x


def on_vars(x: Operand | Like) -> Any:
    return tree_map(lambda leaf: Var(_compat.leaf_aval(leaf)), x)


def in_slices(site: Site, x: Any) -> Any:
    """A value in the form that `Value.sliceable` of its type and of its children gives."""
    if not is_value(x) or isinstance(x, Batched):
        return x
    cls = type(x)
    parts, treedef = children(x)
    value = tree_unflatten(treedef, [in_slices(site, f) for f in parts])
    if cls.sliceable is Value.sliceable:
        return value
    return _call_hook(site, cls.sliceable, cls, value)


def _can_be_sliced(site: Site, x: Any, length: int) -> bool:
    if isinstance(x, Batched):
        return True
    avals = map(_compat.leaf_aval, tree_leaves(x))
    if any(aval.shape[:1] != (length,) for aval in avals):
        return False
    one = _element(site.scratch(), tree_map(Var, sliced(x, length)))
    if one is NotImplemented:
        return False
    expected = _compat.without_leading_axis(aval_of(x), length)
    return _compat.same_array_type(aval_of(one) if is_value(one) else one.aval, expected)


def elements_like(site: Site, x: Value, depth: int) -> bool:
    """Whether slices of the leaves, along so many leading axes, make a value like this one."""
    scratch = site.scratch()
    like = on_vars(x)
    for length in aval_of(x).shape[:depth]:
        if not _can_be_sliced(site, like, length):
            return False
        one = _element(scratch, tree_map(Var, sliced(like, length)))
        if not same_treedef(tree_structure(one), tree_structure(like)):
            return False
        like = one
    return True


def _element(site: Site, x: Operand) -> Operand | NotImplementedType:
    """The element that a value with sliced leaves stands for, or ``NotImplemented``."""
    if not is_value(x):
        return x
    if isinstance(x, Batched):
        return x.unstacked()
    cls = type(x)
    if cls.unstacked is Value.unstacked:
        return NotImplemented
    parts, treedef = children(x)
    elements = [_element(site, field) for field in parts]
    if any(element is NotImplemented for element in elements):
        return NotImplemented
    value = tree_unflatten(treedef, elements)
    return _call_hook(site, cls.unstacked, cls, value)


def element_like(site: Site, x: Like, length: int) -> Like | NotImplementedType:
    """An element of a stack, on avals; ``NotImplemented`` if it is none."""
    if not _can_be_sliced(site, on_vars(x), length):
        return NotImplemented
    scratch = site.scratch()
    one = _element(scratch, tree_map(Var, sliced(x, length)))
    return tree_map(_compat.leaf_aval, one)


def stack_like(site: Site, x: Like, length: int) -> Like:
    """A stack of so many values like this one, on avals."""
    leaves = tree_map(lambda aval: Var(_compat.with_leading_axis(aval, length)), x)
    return tree_map(_compat.leaf_aval, _stack(site.scratch(), leaves, length))


class Elements(NamedTuple):
    """Makes elements of the operands of a body, from operand number ``start`` on.

    An adapter of `rewrite_jaxpr`.
    """

    start: int

    def __call__(self, site: Site, operands: Sequence[Operand]) -> list[Any]:
        xs = [_element(site, x) for x in operands[self.start :]]
        return [*operands[: self.start], *xs]


def stacked(site: Site, x: Operand, length: int, expected: Aval) -> Operand:
    """A result with stacked leaves, as one value or array.

    Raises `TypeError` if it does not have the expected aval.
    """
    stack = _stack(site, x, length)
    if is_value(stack) and not _compat.same_array_type(aval_of(stack), expected):
        raise TypeError(
            f"{type(x).__name__}.stacked returned {_compat.short(aval_of(stack))} where "
            f"{site.primitive.name!r} gives {_compat.short(expected)}."
        )
    return stack


def _stack(site: Site, x: Operand, length: int) -> Operand:
    if not is_value(x):
        return x
    cls = type(x)
    if cls.stacked is not Value.stacked:
        parts, treedef = children(x)
        stacks = [_stack(site, field, length) for field in parts]
        value = tree_unflatten(treedef, stacks)
        stack = _call_hook(site, cls.stacked, cls, value, length)
        if stack is not NotImplemented:
            return stack
    return Batched(x, length)


def _call_hook(
    site: Site,
    hook: Callable[..., Any],
    cls: type,
    value: Value,
    *args: Any,
) -> Any:
    what = f"{cls.__name__}.{hook.__name__}"

    def call(value: Value) -> Result:
        return hook(value, *args)

    def check(result: object) -> list[Any]:
        if not is_value(result) and not _compat.is_array(result):
            raise TypeError(f"{what} returned a {type(result).__name__}, not a value.")
        return [result]

    outvars: list[Any] = [_compat.DropVar(_compat.leaf_aval(0.0))]
    results = site.giving(outvars).call(call, (hook, *args), [value], check)
    return results if results is NotImplemented else results[0]


def stacked_where(value: Any, is_batched: Any, length: int) -> Any:
    """A value with some batched leaves, as a value with a batch axis on all leaves."""

    def with_axis(leaf: Any, batched: bool) -> Any:
        return leaf if batched else jnp.broadcast_to(leaf, (length, *jnp.shape(leaf)))

    stack = tree_map(with_axis, value, is_batched)
    batched = Batched(stack, length)
    if any(map(is_value, rule_children(value)[0])):
        return batched  # The type's hook would see fields that are already stacked.
    by_type = stack.stacked(length)
    is_stack = by_type is not NotImplemented and _compat.same_array_type(
        *avals_of([by_type, batched])
    )
    return by_type if is_stack else batched

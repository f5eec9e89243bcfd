"""Values along the leading axis of a loop: how they are sliced and stacked."""

from __future__ import annotations

from collections.abc import Sequence
from types import NotImplementedType
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.tree_util import (
    tree_leaves,
    tree_map,
    tree_structure,
    tree_unflatten,
)

from .. import _compat
from .._axes.methods import element_of, stack_of
from .._axes.sizes import is_at_most
from .._batched import Batched, of_stacked_leaves, sliced
from .._compat import Aval, Var
from .._core.avals import aval_of, children, same_treedef
from .._core.dense import Reason
from .._core.site import Site
from .._core.traces import checked_result
from .._core.value import Like, Operand, Value, is_value
from .._joins.zeros import Zeros
from .._staging.structure import same_structure
from .adapters import make_denser


_NOT_SLICED = Reason("Primitive {primitive!r} takes slices of a {cls}", method="sliceable")


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
    parts, treedef = children(x)
    value = tree_unflatten(treedef, [in_slices(site, f) for f in parts])
    form = _call_sliceable(site, value)
    return value if form is NotImplemented else form


def _call_sliceable(site: Site, value: Value) -> Any:
    cls = type(value)
    if cls.sliceable is Value.sliceable:
        return NotImplemented

    def check(result: object) -> list[Any]:
        if not is_value(result):
            raise TypeError(
                f"{cls.__name__}.sliceable returned a {type(result).__name__}, not a value."
            )
        if not same_structure(result, value):
            what = f"{cls.__name__}.sliceable"
            checked_result(result, aval_of(value), what, "the value is")
        return [result]

    outvars: list[Any] = [_compat.DropVar(_compat.leaf_aval(0.0))]
    hook = cls.sliceable
    results = site.giving(outvars).call(hook, (hook, "sliceable"), [value], check)
    return results if results is NotImplemented else results[0]


def _is_in_slices(site: Site, x: Any) -> bool:
    """Whether a value, and each value in it, is in the form that its `Value.sliceable` gives."""
    if not is_value(x) or isinstance(x, (Batched, Zeros)):
        return True
    form = _call_sliceable(site.scratch(), x)
    parts, _ = children(x)
    return same_structure(form, x) and all(_is_in_slices(site, part) for part in parts)


def _can_be_sliced(site: Site, x: Any, length: int) -> bool:
    if isinstance(x, Batched):
        return bool(x.lengths())  # Inside of `jax.vmap` over a stack, it is one element.
    avals = map(_compat.leaf_aval, tree_leaves(x))
    if any(aval.shape[:1] != (length,) for aval in avals) or not _is_in_slices(site, x):
        return False
    one = element(tree_map(Var, sliced(x, length)))
    expected = _compat.without_leading_axis(aval_of(x), length)
    return _compat.same_array_type(aval_of(one) if is_value(one) else one.aval, expected)


def elements_like(site: Site, x: Value, depth: int) -> bool:
    """Whether slices of the leaves, along so many leading axes, make a value like this one."""
    like = on_vars(x)
    for length in aval_of(x).shape[:depth]:
        if not _can_be_sliced(site, like, length):
            return False
        one = element(tree_map(Var, sliced(like, length)))
        if not same_treedef(tree_structure(one), tree_structure(like)):
            return False
        like = one
    return True


def is_batch(site: Site, x: Value, depth: int) -> bool:
    """Whether a value has a form with leaves for each element along so many leading axes."""
    return elements_like(site, in_slices(site.scratch(), on_vars(x)), depth)


def batch(site: Site, x: Operand, depth: int, reason: Reason) -> Operand:
    """An operand with leaves for each element along so many leading axes: a value, or dense."""
    while is_value(x):
        if is_batch(site, x, depth):
            return in_slices(site, x)
        x = make_denser(site, x, reason)
    return x


def element(x: Any) -> Any:
    """The element that an operand with sliced leaves stands for."""
    if not is_value(x):
        return x
    if isinstance(x, Batched):
        return x.of_sliced_leaves()
    if isinstance(x, Zeros):
        return Zeros(_compat.without_leading_axis(x.of_aval, x.shape[0]))
    parts, treedef = children(x)
    return element_of(tree_unflatten(treedef, map(element, parts)))


def element_within(site: Site, x: Value, depth: int) -> Any:
    """The element along so many leading axes, of leaves that are not sliced; or ``None``.

    There is none if a leaf would have to become as large as the dense array.
    """
    form = in_slices(site, x)
    if _has_spread(x, form):
        return None
    like = on_vars(form)
    for length in aval_of(x).shape[:depth]:
        if not _can_be_sliced(site, like, length):
            return None
        like = element(tree_map(Var, sliced(like, length)))
    return tree_unflatten(tree_structure(like), tree_leaves(form))


def _has_spread(x: Value, form: Value) -> bool:
    """Whether a form of a value has a leaf as large as the dense array that `x` has not."""
    size = aval_of(x).size
    before, after = (
        [_compat.leaf_aval(leaf).size for leaf in tree_leaves(of)] for of in (x, form)
    )
    return any(n != m and is_at_most(size, n) for m, n in zip(before, after, strict=False))


def element_like(site: Site, x: Like, length: int) -> Like | NotImplementedType:
    """An element of a stack, on avals; ``NotImplemented`` if it is none."""
    if not _can_be_sliced(site, on_vars(x), length):
        return NotImplemented
    one = element(tree_map(Var, sliced(x, length)))
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
        xs = map(element, operands[self.start :])
        return [*operands[: self.start], *xs]


def stacked(site: Site, x: Operand, length: int, expected: Aval) -> Operand:
    """A result with stacked leaves, as one value or array.

    Raises `TypeError` if it does not have the expected aval.
    """
    stack = _stack(site, x, length)
    if is_value(stack) and not _compat.same_array_type(aval_of(stack), expected):
        raise TypeError(
            f"{type(x).__name__}.sliceable says that a {type(x).__name__} with stacked leaves is a "
            f"stack, but it is {_compat.short(aval_of(stack))} where {site.primitive.name!r} gives "
            f"{_compat.short(expected)}."
        )
    return stack


def restacked(site: Site, x: Operand, lengths: Sequence[int]) -> Operand:
    """An `element_within` as one value again, along leading axes of these lengths."""
    leaves = tree_leaves(x)
    for depth in reversed(range(len(lengths))):
        # A stack looks at the leading axes of its leaves, which have those further out in front.
        inner = on_vars(x)
        for length in lengths[:depth]:
            inner = tree_map(Var, sliced(inner, length))
        stack = _stack(site.scratch(), inner, lengths[depth])
        x = tree_unflatten(tree_structure(stack), leaves)
    return x


def _stack(site: Site, x: Operand, length: int) -> Operand:
    if not is_value(x):
        return x
    if type(x).sliceable is not Value.sliceable:
        parts, treedef = children(x)
        stacks = [_stack(site, field, length) for field in parts]
        stack = stack_of(tree_unflatten(treedef, stacks), length)
        if _has_leaves_of_a_stack(site, stack):
            return stack
    return Batched(x, length)


def _has_leaves_of_a_stack(site: Site, x: Value) -> bool:
    """Whether the stacked leaves of a value are in the form that its `Value.sliceable` gives."""
    try:
        return _is_in_slices(site, on_vars(x))
    except Exception:  # noqa: BLE001 - methods of a type raise anything on leaves of no value
        return False


def stacked_where(value: Any, is_batched: Any, length: int) -> Any:
    """A value with some batched leaves, as a value with a batch axis on all leaves."""

    def with_axis(leaf: Any, batched: bool) -> Any:
        return leaf if batched else jnp.broadcast_to(leaf, (length, *jnp.shape(leaf)))

    return of_stacked_leaves(tree_map(with_axis, value, is_batched), length)

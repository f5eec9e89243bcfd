"""Annotations within annotations: the outer type outside, and one of each type.

Between two annotations the rule of the outer type decides, and it looks for its own at the outside
of an operand. So a mask around units becomes units around a mask, which says the same.
"""

from __future__ import annotations

from typing import Any

from jax.tree_util import tree_flatten, tree_unflatten

from .._core.avals import children, values_inside
from .._core.site import CallOnLeaves, forms
from .._core.value import Value, is_value


def in_order(x: Value, call: CallOnLeaves) -> Any:
    """A value whose annotations are in order, at any depth."""
    if not any(map(_is_in_disorder, (x, *values_inside(x)))):
        return x
    leaves, treedef = tree_flatten(x)
    out: list[Any] = []

    def fn(*leaves: Any) -> list[Any]:
        ordered_leaves, out_tree = tree_flatten(_ordered(tree_unflatten(treedef, leaves)))
        out.append(out_tree)
        return ordered_leaves

    results = call(fn, leaves)
    return tree_unflatten(out[0], results)


def _is_in_disorder(x: Value) -> bool:
    return _is_to_merge(x) or bool(_inner(x))


def _ordered(x: Any) -> Any:
    if not is_value(x) or x._holds_stacked_leaves:
        return x  # What holds elements knows how many axes each leaf of one has.
    parts, treedef = children(x)
    x = tree_unflatten(treedef, map(_ordered, parts))
    if inner := _inner(x):
        (within, outer_treedef), *_ = layers = list(map(children, inner))
        beside, count = children(x)[0][x._array_fields :], inner[0]._array_fields
        arrays = zip(*(parts[:count] for parts, _ in layers), strict=True)
        filled = [_ordered(tree_unflatten(treedef, [*of, *beside])) for of in arrays]
        x = tree_unflatten(outer_treedef, [*filled, *within[count:]])
    return x._merged() if _is_to_merge(x) else x


def _is_to_merge(x: Value) -> bool:
    cls = type(x)
    return cls._merged is not Value._merged and any(
        isinstance(y, cls) or isinstance(x, type(y)) for y in children(x)[0]
    )


def _inner(x: Value) -> list[Any]:
    """The arrays inside that have to be around it; two bounds in metres are bounds in metres.

    What is said of one bound alone stays where it is.
    """
    arrays = children(x)[0][: x._array_fields] if x._array_fields else []
    if not all(_is_outside(y, x) for y in arrays):
        return []
    said = {
        (treedef, *map(id, parts[y._array_fields :]))
        for y, (parts, treedef) in zip(arrays, map(children, arrays), strict=True)
    }
    return arrays if len(said) == 1 else []


def _is_outside(y: Any, x: Value) -> bool:
    """Whether a part is an annotation that has to be around another one, of another type."""
    if not is_value(y) or not y._array_fields or y.outer <= x.outer:
        return False
    return not isinstance(y, type(x)) and not isinstance(x, type(y))


def is_around_one_array(x: Value) -> bool:
    """Whether it is one array, and what that carries as metadata."""
    return x._array_fields == 1 == len(children(x)[0])


forms.append(in_order)

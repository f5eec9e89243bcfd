"""Annotations within annotations: the outer type outside, and one of each type.

Between two annotations the rule of the outer type decides, and it looks for its own at the outside
of an operand. So a mask around units becomes units around a mask, which says the same.
"""

from __future__ import annotations

from typing import Any

from jax.tree_util import tree_flatten, tree_unflatten

from .._core.avals import aval_of, avals_of, children, is_annotation, values_inside
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
        parts, treedef = children(x)
        within = []
        for across in zip(*(children(y)[0] for y in inner), strict=True):
            arrays = dict(zip(map(id, inner), across, strict=True))
            filled = tree_unflatten(treedef, [arrays.get(id(p), p) for p in parts])
            within.append(_ordered(filled) if _is_alike(across[0], x) else across[0])
        x = tree_unflatten(children(inner[0])[1], within)
    return x._merged() if _is_to_merge(x) else x


def _is_to_merge(x: Value) -> bool:
    cls = type(x)
    return cls._merged is not Value._merged and any(
        isinstance(y, cls) or isinstance(x, type(y)) for y in children(x)[0]
    )


def _inner(x: Value) -> list[Any]:
    """The parts that have to be around an annotation; two bounds in metres are bounds in metres.

    What is said of one bound alone stays where it is.
    """
    parts = children(x)[0] if is_annotation(x) else []
    if not any(map(is_annotation, parts)):
        return []
    arrays = [y for y in parts if _is_alike(y, x)]
    layers = [children(y) for y in arrays if is_annotation(y) and y.outer > x.outer]
    beside = lambda within: (id(y) for y in within if not _is_alike(y, x))
    said = {(treedef, *beside(within)) for within, treedef in layers}
    return arrays if len(layers) == len(arrays) and len(said) == 1 else []


def _is_alike(y: Any, x: Value) -> bool:
    own, (other,) = aval_of(x), avals_of([y])
    return (own.shape, own.dtype) == (other.shape, other.dtype)


forms.append(in_order)

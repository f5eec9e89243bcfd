"""What is said of a field of a value is said of the value.

A matrix of lengths on its diagonal is a diagonal matrix of lengths. So an operand with units, names
or tags inside meets an equation with these outside, where their rules see to them, and with its
structure inside. What they say of the whole is what its ``materialise`` makes of them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import jax
from jax.tree_util import tree_flatten, tree_structure, tree_unflatten

import jaxrewrite
from jaxrewrite.extend import register_turn

from .._base.structured import fields_of, is_annotation, is_value
from .declaration import Annotated


def outward(x: Any) -> Any:
    """A value, with what its fields carry around the whole."""
    leaves, treedef = tree_flatten(x)
    if is_annotation(x) or not _is_to_turn(treedef):
        return x
    outside = _outside(treedef, tuple(leaf.aval for leaf in leaves))
    return tree_unflatten(outside, [_without(x)])


register_turn(outward)


@functools.lru_cache(1024)
def _is_to_turn(treedef: Any) -> bool:
    return _holds_metadata(tree_unflatten(treedef, [None] * treedef.num_leaves))


@functools.lru_cache(1024)
def _outside(treedef: Any, avals: tuple[Any, ...]) -> Any:
    """The structure of what is around the whole, with a leaf in place of the array."""
    like = jax.eval_shape(_up_to_annotation, tree_unflatten(treedef, avals))
    return tree_structure(_hollow(like))


def _holds_metadata(x: Any) -> bool:
    """Whether a structure is around metadata, and around nothing else that arrays carry."""
    inside = list(_inside(x))
    return any(map(is_annotation, inside)) and all(map(_may_turn, (x, *inside)))


def _may_turn(x: Any) -> bool:
    if not is_annotation(x):
        is_never_dense = type(x).materialise is jaxrewrite.Value.materialise
        return not (is_never_dense or x._holds_stacked_leaves)
    return isinstance(x, Annotated) and x._is_said_of_the_whole


def _inside(x: Any) -> Iterator[Any]:
    """The values inside, at any depth."""
    for part in fields_of(x)[0]:
        if is_value(part):
            yield part
            yield from _inside(part)


def _up_to_annotation(x: Any) -> Any:
    """The value made dense up to an annotation, which is what is said of the whole."""
    while is_value(x) and not is_annotation(x):
        parts, treedef = fields_of(x)
        make = lambda *parts, treedef=treedef: treedef.unflatten(parts).materialise()
        x = jaxrewrite.transform(make, materialise="allow")(*parts)
    return x


def _hollow(x: Any) -> Any:
    """What is around an array, with a number in its place."""
    if not is_annotation(x):
        return 0
    (array,), treedef = fields_of(x)
    return treedef.unflatten([_hollow(array)])


def _without(x: Any) -> Any:
    """The value without what is said of arrays inside."""
    if not is_value(x):
        return x
    parts, treedef = fields_of(x)
    parts = [_without(part) for part in parts]
    return parts[0] if is_annotation(x) else treedef.unflatten(parts)

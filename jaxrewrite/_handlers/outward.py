"""What is said of a field of a value, said of the value, for rules that compute with numbers alone.

A matrix of lengths on its diagonal is a diagonal matrix of lengths. A rule for its determinant takes
logarithms, which a length has not. One for solutions gives JAX functions of arrays, which have no
units. So where these are called, units are around the structure, and those of the result are
known of them alone. What they are around the whole is what its ``materialise`` makes of them.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax.tree_util import tree_map, tree_structure, tree_unflatten

from .. import _compat
from .._batched import Batched
from .._core.avals import children, is_annotation, values_inside
from .._core.rewrite import before_rules
from .._core.site import Site
from .._core.value import Results, is_value
from .derivatives import loses_its_layer


BY_LOGARITHMS = (jnp.linalg.det,)
"""Functions of quantities, computed by logarithms of numbers."""


def by_solution_outside(site: Site, operands: list[Any]) -> Results:
    """Solve with what fields of the matrix carry around it."""
    if site.primitive.name != "custom_linear_solve":
        return NotImplemented
    return by_turned_operands(site, operands)


before_rules.append(by_solution_outside)


def by_turned_operands(site: Site, operands: Sequence[Any]) -> Results:
    """Rewrite an equation for operands with what their fields carry around them, if any is."""
    turned = [_outward(site, x) for x in operands]
    if all(map(operator.is_, turned, operands)):
        return NotImplemented
    return site.builder.apply(site, turned)


def _outward(site: Site, x: Any) -> Any:
    """A value with what its fields carry around the whole, where that says the same."""
    if not is_value(x) or is_annotation(x):
        return x
    inside = list(values_inside(x))
    if not any(map(_is_turned, inside)):
        return x
    if not all(loses_its_layer(y) for y in (x, *inside) if not is_annotation(y)):
        return x  # Nothing tells what is said of the whole.
    like = tree_map(_compat.Var, tree_map(_compat.leaf_aval, x))
    dense = site.scratch().make_denser_until(like, is_enough=is_annotation)
    return tree_unflatten(tree_structure(_hollow(dense)), [_without(x)])


def _is_turned(x: Any) -> bool:
    return is_value(x) and is_annotation(x) and x._is_said_of_the_whole


def _hollow(x: Any) -> Any:
    """What is said of the whole around an array, with a leaf in its place."""
    if not is_value(x):
        return 0
    (array, *_), treedef = children(x)
    return treedef.unflatten([_hollow(array)]) if _is_turned(x) else _hollow(array)


def _without(x: Any) -> Any:
    """The value without what is said of arrays inside."""
    if not is_value(x):
        return x
    parts, treedef = children(x)
    parts = [_without(part) for part in parts]
    is_stack_of_arrays = isinstance(x, Batched) and not is_value(parts[0])
    return parts[0] if _is_turned(x) or is_stack_of_arrays else treedef.unflatten(parts)

"""``pad`` with zeros, along axes for whose elements a value has leaves of its own.

A stack with zeros between its elements, or around them, is a stack, too, if an element is zero
where its leaves are. `jax.lax.associative_scan` puts its results together so: it pads those at
even positions and those at odd ones, and adds the two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.tree_util import tree_flatten, tree_unflatten

from .._analyses.written import Written
from .._compat import JaxprEqn
from .._core.avals import avals_of, values_inside
from .._core.hooks import OperandsHook, register_operands_hook
from .._core.rewrite import leafwise_handlers
from .._core.site import Site
from .._core.value import Operand, Results, is_value
from .._joins.zeros import Zeros, is_zero_where_leaves_are, with_zeros_of_literals
from .stacking import element_within, on_vars, restacked


def pad(site: Site, operands: Sequence[Operand]) -> Results:
    value, number = operands
    if isinstance(number, Zeros):
        padded = _with_zeros(site, value)
        if padded is NotImplemented:
            return site.builder.apply(site, [value, site.materialise(number)])
        return padded
    if is_value(number) or not site.builder.analysis(Written)(number).is_positive_zero:
        return NotImplemented
    return _with_zeros(site, value)


leafwise_handlers["pad"] = pad


def _with_zeros(site: Site, value: Operand) -> Results:
    if not is_value(value):
        return NotImplemented
    config = site.params["padding_config"]
    depth = max((axis + 1 for axis, of in enumerate(config) if any(of)), default=0)
    element = element_within(site.scratch(), on_vars(value), depth)
    if element is None or not is_zero_where_leaves_are(element):
        return NotImplemented
    leaves, treedef = tree_flatten(element_within(site, value, depth))

    def pad_each(*leaves: jax.Array) -> list[jax.Array]:
        return [_padded(leaf, config[:depth]) for leaf in leaves]

    padded = tree_unflatten(treedef, site.call_on_arrays(pad_each, leaves))
    (result,) = avals_of(site.outvars)
    return [restacked(site, padded, result.shape[:depth])]


def _padded(leaf: jax.Array, config: Sequence[tuple[int, int, int]]) -> jax.Array:
    rest = [(0, 0, 0)] * (leaf.ndim - len(config))
    return lax.pad(leaf, jnp.zeros((), leaf.dtype), [*config, *rest])


class PaddingInside(OperandsHook):
    """Shows zeros with the units of a value as `Zeros` with units, if a value is inside.

    The equation inside is that of the rule for units, in which numbers are arrays.
    """

    primitives = frozenset({"pad"})

    def __init__(self, analysis: Callable[[type], Any]) -> None:
        self._analysis = analysis

    def operands(
        self, eqn: JaxprEqn, operands: Sequence[Any]
    ) -> tuple[JaxprEqn, Sequence[Any]]:
        value, number = operands
        if not is_value(number) or not [*values_inside(value)]:
            return eqn, operands
        return eqn, [value, with_zeros_of_literals(self._analysis(Written), number)]


register_operands_hook(PaddingInside)

"""``pad`` and ``concatenate`` with zeros, along axes for whose elements a value has leaves of its own.

A stack with zeros between its elements, or around them, is a stack, too, if an element is zero
where its leaves are. `jax.lax.associative_scan` puts its results together so: it pads those at
even positions and those at odd ones, and adds the two. A program that shifts a stack puts zeros
before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.tree_util import tree_flatten, tree_leaves, tree_structure, tree_unflatten

from .._analyses.written import Written
from .._compat import JaxprEqn
from .._core.avals import avals_of, values_inside
from .._core.hooks import OperandsHook, operands_hooks
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


def concatenate(site: Site, operands: Sequence[Operand]) -> Results:
    joined = _with_zeros_between(site, operands)
    if joined is NotImplemented and any(isinstance(x, Zeros) for x in operands):
        dense = [site.materialise(x) if isinstance(x, Zeros) else x for x in operands]
        return site.builder.apply(site, dense)
    return joined


leafwise_handlers["concatenate"] = concatenate


def _with_zeros_between(site: Site, operands: Sequence[Operand]) -> Results:
    """Join the leaves of values, and zeros in the place of zeros. Without any there are rules."""
    are_zeros = [_are_zeros(site, x) for x in operands]
    values: list[Any] = [
        x for x, zeros in zip(operands, are_zeros, strict=True) if not zeros
    ]
    if not values or len(values) == len(operands) or not all(map(is_value, values)):
        return NotImplemented
    axis = site.params["dimension"]
    if not _join(site, values, axis):
        return NotImplemented
    elements = [element_within(site, value, axis + 1) for value in values]
    treedef = tree_structure(elements[0])
    rows = list(map(tree_leaves, elements))
    paddings = _paddings(are_zeros, [aval.shape[axis] for aval in avals_of(operands)])

    def join_each(*leaves: jax.Array) -> list[jax.Array]:
        columns = [leaves[i :: len(rows[0])] for i in range(len(rows[0]))]
        return [
            lax.concatenate(
                [
                    _padded(leaf, [*[(0, 0, 0)] * axis, around])
                    for leaf, around in zip(column, paddings, strict=True)
                ],
                axis,
            )
            for column in columns
        ]

    joined = site.call_on_arrays(join_each, [leaf for row in rows for leaf in row])
    (result,) = avals_of(site.outvars)
    return [restacked(site, tree_unflatten(treedef, joined), result.shape[: axis + 1])]


def _paddings(
    are_zeros: Sequence[bool], lengths: Sequence[int]
) -> list[tuple[int, int, int]]:
    """How each operand that is not zero is padded, by zeros before the first and after each."""
    before = 0
    paddings: list[tuple[int, int, int]] = []
    for is_zero, length in zip(are_zeros, lengths, strict=True):
        if not is_zero:
            paddings.append((before, 0, 0))
            before = 0
        elif paddings:
            low, high, _ = paddings[-1]
            paddings[-1] = (low, high + length, 0)
        else:
            before += length
    return paddings


def _are_zeros(site: Site, x: Operand) -> bool:
    if is_value(x):
        return isinstance(x, Zeros)
    return site.builder.analysis(Written)(x).is_positive_zero


def _join(site: Site, values: Sequence[Any], axis: int) -> bool:
    """Whether values are stacks of elements that are alike, and zero where their leaves are."""
    elements = [element_within(site.scratch(), on_vars(x), axis + 1) for x in values]
    if any(x is None or not is_zero_where_leaves_are(x) for x in elements):
        return False
    return len({(tree_structure(x), *_beside(axis, tree_leaves(x))) for x in elements}) == 1


def _beside(axis: int, leaves: Sequence[Any]) -> Iterator[Any]:
    """What leaves have in common that can be joined along an axis."""
    for leaf in leaves:
        yield leaf.aval.dtype, leaf.aval.shape[:axis], leaf.aval.shape[axis + 1 :]


class ZerosInside(OperandsHook):
    """Shows zeros with the units of a value as `Zeros` with units, if a value is inside.

    The equation inside is that of the rule for units, in which numbers are arrays.
    """

    primitives = frozenset({"concatenate", "pad"})

    def __init__(self, analysis: Callable[[type], Any]) -> None:
        self._analysis = analysis

    def operands(
        self, eqn: JaxprEqn, operands: Sequence[Any]
    ) -> tuple[JaxprEqn, Sequence[Any]]:
        has_values = [is_value(x) and bool([*values_inside(x)]) for x in operands]
        if True not in has_values:
            return eqn, operands
        written = self._analysis(Written)
        shown = [
            x if has or not is_value(x) else with_zeros_of_literals(written, x)
            for x, has in zip(operands, has_values, strict=True)
        ]
        return eqn, shown


operands_hooks.append(ZerosInside)

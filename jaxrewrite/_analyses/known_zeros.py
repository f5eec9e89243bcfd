"""Arrays that a program fills with zeros, where it has a value otherwise.

What a loop carries often starts as zeros of the right shape, and the first turn replaces
them by a value. So that the carry can be of the value's type from the start, the search for
its structure begins with `KnownZeros`, which joins with any value that is zero where its
leaves are. So do zeros that one branch of a conditional returns, a turn of a loop, or a case of a
choice. No program runs with them: where they would remain they are the array that they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from jax.tree_util import tree_leaves, tree_map, tree_unflatten

import jaxrewrite

from .. import _compat
from .._compat import Literal, Primitive
from .._core.avals import fields, full
from .._core.builder import Restaged
from .._core.rewrite import keepers
from .._core.site import Site
from .._core.value import Value, field, is_value
from . import fills
from .fills import Producer


_ADDITIONS = {"add", "add_any"}


class KnownZeros(Value):
    """An array of zeros. A value plus it is the value; all else that computes gets it dense."""

    materialise_policy = "allow"

    # They are dense before the default of any other type is asked.
    outer = math.inf

    of_aval: Any = field(static=True)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.of_aval.shape

    @property
    def dtype(self) -> Any:
        return self.of_aval.dtype

    def aval(self) -> Any:
        return self.of_aval

    def materialise(self) -> Any:
        return full(self.of_aval, 0)

    @staticmethod
    def default(primitive: Primitive, values: Sequence[Any], params: dict[str, Any]) -> Any:
        if keepers.get(primitive.name) is Site.map_leaves:
            return NotImplemented
        others = [x for x in values if not isinstance(x, KnownZeros)]
        if primitive.name in _ADDITIONS and len(others) == 1 and is_value(others[0]):
            return others[0]
        dense = [x.materialise() if isinstance(x, KnownZeros) else x for x in values]
        return jaxrewrite.bind(primitive, *dense, **params)

    def lift_tangent(self, tangent: Any) -> Any:
        return self


def with_zeros(producer: Producer, operand: Any) -> Any:
    """The operand, with `KnownZeros` for an array that equations have filled with zeros.

    It may be inside of a value that has adopted the array.
    """
    if is_value(operand):
        if operand.settled() is operand:
            return operand
        parts, treedef = fields(operand)
        found = [with_zeros(producer, part) for part in parts]
        is_same = all(x is part for x, part in zip(found, parts, strict=True))
        return operand if is_same else tree_unflatten(treedef, found)
    if type(operand) is Literal or not fills.is_zero(producer, operand):
        return operand
    return KnownZeros(_compat.strong(operand.aval))


def results_with_zeros(body: Restaged) -> list[Any]:
    """The results of a body, `with_zeros`."""
    producers = {var: eqn for eqn in body.jaxpr.eqns for var in eqn.outvars}
    return [with_zeros(producers.get, result) for result in body.results()]


def is_zeros(x: Any) -> bool:
    """Whether an operand is `KnownZeros`, or a value that has adopted them."""
    if not is_value(x) or isinstance(x, KnownZeros):
        return is_value(x)
    return x.settled() is not x and all(map(is_zeros, fields(x)[0]))


def has_zeros(like: Any) -> bool:
    """Whether an operand is `KnownZeros`, or holds some."""
    return any(map(_is_bare, tree_leaves(like, is_leaf=_is_bare)))


def as_zeros(operand: Any, like: Any) -> Any:
    """The operand, with `KnownZeros` where ``like``, which is `with_zeros` of it, has some."""
    return tree_map(
        lambda wanted, own: wanted if _is_bare(wanted) else own,
        like,
        operand,
        is_leaf=_is_bare,
    )


def as_arrays(like: Any) -> Any:
    """An operand on avals, with the aval of an array in place of `KnownZeros`."""
    return tree_map(lambda x: x.aval() if _is_bare(x) else x, like, is_leaf=_is_bare)


def _is_bare(x: Any) -> bool:
    return isinstance(x, KnownZeros)


def can_be_zero(like: Any) -> bool:
    """Whether a value of this structure with zeros as leaves is zero everywhere."""
    if not is_value(like):
        return True
    parts, _ = fields(like)
    return type(like).zero_if_leaves_are and all(map(can_be_zero, parts))

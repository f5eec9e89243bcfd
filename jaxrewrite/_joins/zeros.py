"""`Zeros`: an operand that is known to be zero everywhere, the least of all structures.

What a loop carries often starts as zeros of the right shape, and the first turn replaces them
by a value. So that the carry can be of the value's type from the start, the search for its
structure begins with `Zeros`, which join with any value that is zero where its leaves are. So
do zeros that one branch of a conditional returns, a turn of a loop, or a case of a choice. No
program runs with them: where they would remain they are the array that they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from jax.tree_util import tree_leaves, tree_map, tree_unflatten

from .. import _compat
from .._analyses.written import Fact, Written
from .._compat import Literal, Primitive, ShapedArray, Tree
from .._core.avals import children
from .._core.builder import Rewritten
from .._core.rewrite import leafwise_handlers
from .._core.site import Site
from .._core.value import ArrayOrValue, Like, Operand, Value, field, is_value
from .._staging.transform import bind


_ADDITIONS = {"add", "add_any"}


class Zeros(Value):
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

    def aval(self) -> ShapedArray:
        return self.of_aval

    def materialise(self) -> ArrayOrValue:
        return _compat.full(self.of_aval, 0)

    @staticmethod
    def default(primitive: Primitive, values: Sequence[Any], params: dict[str, Any]) -> Any:
        if leafwise_handlers.get(primitive.name) is Site.map_leaves:
            return NotImplemented
        others = [x for x in values if not isinstance(x, Zeros)]
        if primitive.name in _ADDITIONS and len(others) == 1 and is_value(others[0]):
            return others[0]
        dense = [x.materialise() if isinstance(x, Zeros) else x for x in values]
        return bind(primitive, *dense, **params)

    def lift_tangent(self, tangent: object) -> Zeros:
        return self


def with_zeros(written: Callable[[Any], Fact], operand: Any) -> Any:
    """The operand, with `Zeros` for an array that equations have filled with zeros.

    It may be inside of a value that has adopted the array.
    """
    if is_value(operand):
        if operand.settled() is operand:
            return operand
        parts, treedef = children(operand)
        found = [with_zeros(written, part) for part in parts]
        is_same = all(x is part for x, part in zip(found, parts, strict=True))
        return operand if is_same else tree_unflatten(treedef, found)
    if type(operand) is Literal or not written(operand).is_zero:
        return operand
    return Zeros(_compat.strong(operand.aval))


def results_with_zeros(body: Rewritten) -> list[Any]:
    """The results of a body, `with_zeros`."""
    written = Written(body.jaxpr.eqns)
    return [with_zeros(written, result) for result in body.results()]


def is_zeros(x: object) -> bool:
    """Whether an operand is `Zeros`, or a value that has adopted them."""
    if not is_value(x) or isinstance(x, Zeros):
        return is_value(x)
    return x.settled() is not x and all(map(is_zeros, children(x)[0]))


def has_zeros(like: Tree) -> bool:
    """Whether an operand is `Zeros`, or holds some."""
    return any(map(_is_bare, tree_leaves(like, is_leaf=_is_bare)))


def as_arrays(like: Operand | Like) -> Operand | Like:
    """An operand on avals, with the aval of an array in place of `Zeros`."""
    return tree_map(lambda x: x.aval() if _is_bare(x) else x, like, is_leaf=_is_bare)


def _is_bare(x: object) -> bool:
    return isinstance(x, Zeros)


def can_be_zero(like: Like) -> bool:
    """Whether a value of this structure with zeros as leaves is zero everywhere."""
    if not is_value(like):
        return True
    parts, _ = children(like)
    return type(like).zero_if_leaves_are and all(map(can_be_zero, parts))

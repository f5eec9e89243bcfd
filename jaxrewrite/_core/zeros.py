"""`Zeros`: an operand that is known to be zero everywhere, the least of all structures.

What a loop carries often starts as zeros of the right shape, and the first turn replaces them
by a value. So that the carry can be of the value's type from the start, the search for its
structure begins with `Zeros`, which join with any value that is zero where its leaves are. So
do zeros that one branch of a conditional returns, a turn of a loop, or a case of a choice. No
program runs with them: where they would remain they are the array that they are.

Who knows which arrays a program fills with zeros makes them, of a class of its own.
"""

from __future__ import annotations

import math
from typing import Any

from jax.tree_util import tree_leaves, tree_map

from .. import _compat
from .._compat import ShapedArray, Tree
from .avals import children
from .value import ArrayOrValue, Like, Operand, Value, field, is_value


class Zeros(Value):
    """An array of zeros."""

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

    def lift_tangent(self, tangent: object) -> Zeros:
        return self


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

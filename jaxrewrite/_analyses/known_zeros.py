"""Arrays that a program fills with zeros, where it has a value otherwise.

What a loop carries often starts as zeros of the right shape, and the first turn replaces
them by a value. So that the carry can be of the value's type from the start, the search for
its structure begins with `KnownZeros`, which joins with any value that is zero where its
leaves are. So do the zeros that one branch of a conditional returns. No program runs with them:
where they would remain, or a dense array would, they are the array that they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

import jaxrewrite

from .. import _compat
from .._compat import Literal, Primitive
from .._core.avals import fields
from .._core.rewrite import Scope, keepers
from .._core.value import Value, field, is_value
from . import fills
from .fills import Producer


_ADDITIONS = {"add", "add_any"}


class KnownZeros(Value):
    """An array of zeros. A value plus it is the value; all else that computes gets it dense."""

    materialise_policy = "allow"

    # They are dense before the default of any other type is asked.
    outer = math.inf

    shape: tuple[int, ...] = field(static=True)
    dtype: Any = field(static=True)

    def aval(self) -> Any:
        return _compat.ShapedArray(self.shape, self.dtype)

    def materialise(self) -> Any:
        return jnp.zeros(self.shape, self.dtype)

    @staticmethod
    def default(primitive: Primitive, values: Sequence[Any], params: dict[str, Any]) -> Any:
        if keepers.get(primitive.name) is Scope.map_leaves:
            return NotImplemented
        others = [x for x in values if not isinstance(x, KnownZeros)]
        if primitive.name in _ADDITIONS and len(others) == 1 and is_value(others[0]):
            return others[0]
        dense = [x.materialise() if isinstance(x, KnownZeros) else x for x in values]
        return jaxrewrite.bind(primitive, *dense, **params)

    def lift_tangent(self, tangent: Any) -> Any:
        return self


def known_zeros(producer: Producer, operand: Any) -> KnownZeros | None:
    """What stands for an operand that an equation has filled with zeros.

    Vectors are left alone: values with structure have two axes or more.
    """
    if is_value(operand) or type(operand) is Literal:
        return None
    if operand.aval.ndim < 2 or operand.aval.weak_type:
        return None
    if not fills.is_zero(producer, operand):
        return None
    return KnownZeros(operand.aval.shape, operand.aval.dtype)


def can_be_zero(like: Any) -> bool:
    """Whether a value of this structure with zeros as leaves is zero everywhere."""
    if not is_value(like):
        return True
    parts, _ = fields(like)
    return type(like).zero_if_leaves_are and all(map(can_be_zero, parts))

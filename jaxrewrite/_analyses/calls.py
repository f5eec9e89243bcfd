"""Calls, through which analyses and patterns look, and equations that are never part of a match."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from .. import _compat
from .._compat import Jaxpr, JaxprEqn, Literal


# The primitives that call one jaxpr, once, on their operands: those that do nothing else, those
# whose results are that jaxpr's own, and those that have a derivative rule of a user beside it.
CALLS = frozenset({"jit", "closed_call", "core_call", "eval_jaxpr"})
PLAIN_CALLS = CALLS | {"remat2"}
CALLS_WITH_A_RULE = frozenset({"custom_jvp_call", "custom_vjp_call"})
ALL_CALLS = PLAIN_CALLS | CALLS_WITH_A_RULE


def called(eqn: JaxprEqn) -> Any:
    """The jaxpr of a call, which may be closed."""
    return eqn.params[_compat.body_name(eqn.primitive)]


def body_of(eqn: JaxprEqn) -> Jaxpr | None:
    """The jaxpr of a call that a match may cross, or ``None`` for any other equation."""
    if eqn.primitive.name not in CALLS or eqn.effects:
        return None
    if eqn.primitive.name == "jit" and (
        any(eqn.params["donated_invars"]) or not _compat.is_unplaced(eqn.params)
    ):
        return None
    return _compat.without_constants(called(eqn))


# Primitives that must stay where they are, and primitives that say something about one array,
# which a match would take away.
_NEVER = {
    "name",
    "optimization_barrier",
    "sharding_constraint",
    "layout_constraint",
    "mesh_cast",
    "reshard",
    "random_bits",
    "random_clone",
    "random_fold_in",
    "random_gamma",
    "random_seed",
    "random_split",
    "random_unwrap",
    "random_wrap",
    "rng_bit_generator",
    "rng_uniform",
    "threefry2x32",
}


def can_match(eqn: JaxprEqn) -> bool:
    """Whether an equation may be part of a match."""
    return not eqn.effects and eqn.primitive.name not in _NEVER


# Primitives that move or convert one array. Whether a function has them depends on the ranks,
# sizes and dtypes of its operands more than on the function.
MOVES = {
    "broadcast_in_dim",
    "convert_element_type",
    "copy",
    "reshape",
    "squeeze",
    "transpose",
}


def is_move(eqn: JaxprEqn) -> bool:
    """Whether an equation only moves or converts its only operand."""
    return eqn.primitive.name in MOVES and len(eqn.invars) == 1


class Number:
    """A literal of a program: a scalar with its dtype."""

    __slots__ = ("atom", "value")

    def __init__(self, value: Any, atom: Literal | None = None):
        self.value = value
        self.atom = atom

    @classmethod
    def of(cls, literal: Literal) -> Number | None:
        """The number of a literal, if it is one of NumPy's or of ml_dtypes'."""
        aval: Any = literal.aval
        try:
            return cls(np.asarray(literal.val, aval.dtype), literal)
        except TypeError:  # A literal of an extended dtype.
            return None

    @property
    def aval(self) -> Any:
        return _compat.ShapedArray((), self.value.dtype)

    def converted(self, dtype: Any) -> Number | None:
        if not isinstance(dtype, np.dtype):
            return None
        value = self.value.astype(dtype)
        return Number(value, Literal(value[()], _compat.ShapedArray((), dtype)))

    def same(self, other: Number) -> bool:
        """Whether dtype and value are the same; 0.0 and -0.0 differ."""
        mine, theirs = self.value, other.value
        return mine.dtype == theirs.dtype and mine.tobytes() == theirs.tobytes()

    def is_kind_of(self, other: Number) -> bool:
        """Whether a Python scalar of this kind can become a number of the other's dtype.

        An integer becomes any number, a float an inexact one, and neither becomes a bool.
        """
        mine, theirs = self.value.dtype, other.value.dtype
        kinds = (jnp.complexfloating, jnp.inexact, jnp.number)
        kind = next(kind for kind in kinds if jnp.issubdtype(mine, kind))
        return jnp.issubdtype(theirs, kind)

    def as_kind(self, kind: type) -> Any:
        """The number as a Python scalar of this kind, or ``None`` if it is none."""
        scalar = self.plain()
        if isinstance(scalar, bool) or kind is complex:
            return scalar if type(scalar) is kind else None
        if isinstance(scalar, complex) and scalar.imag == 0:
            scalar = scalar.real
        if kind is int and isinstance(scalar, float) and scalar.is_integer():
            scalar = int(scalar)
        return scalar if type(scalar) is kind else None

    def plain(self) -> Any:
        """The number as a Python scalar, with as few digits as its dtype needs."""
        scalar = self.value.item()
        if not isinstance(scalar, float):
            return scalar
        short = float(str(self.value[()]))
        is_same = np.asarray(short, self.value.dtype).tobytes() == self.value.tobytes()
        return short if is_same else scalar


def folded(eqn: JaxprEqn, number: Number) -> Number | None:
    """The result of an equation that converts a number, which is another number."""
    if eqn.primitive.name != "convert_element_type" or eqn.params["sharding"] is not None:
        return None
    return number.converted(eqn.params["new_dtype"])

"""The numbers that a program writes: they fill its arrays, as far as its equations tell.

The analysis goes forward, once through each jaxpr: through calls, branches and loops, too. Each
variable has a `Fact`. Most facts are that nothing is known, and are not kept.

What a known number fills has no tangent: whoever takes it for that number loses none.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from .. import _compat
from .._compat import Jaxpr, JaxprEqn, Literal, Var
from .._core.caches import WeakCaches
from .calls import CALLS_WITH_A_RULE, PLAIN_CALLS, called
from .growing import Growing


class Kind(IntEnum):
    """How much is known of an array, most first."""

    UNINITIALISED = 0
    """Nothing has written its numbers."""

    NOT_READ = 1
    """Nothing may read its numbers."""

    NUMBER = 2
    """One known number fills it."""

    NO_SCALE = 3
    """Each entry is zero, infinite or NaN."""

    LARGEST = 4
    """Or it is the largest number of its dtype, or the least."""

    WRITTEN = 5
    """The program writes each entry as a number."""

    UNKNOWN = 6


class Fact(NamedTuple):
    """A fact about an array. The number is kept by its bytes, which tell NaN and -0 apart."""

    kind: Kind
    dtype: Any = None
    number_bytes: bytes = b""

    @property
    def number(self) -> Any:
        """The number that fills the array, a scalar of NumPy."""
        return np.frombuffer(self.number_bytes, self.dtype)[0]

    @property
    def is_number(self) -> bool:
        return self.kind == Kind.NUMBER

    @property
    def is_uninitialised(self) -> bool:
        return self.kind == Kind.UNINITIALISED

    @property
    def is_zero(self) -> bool:
        """Whether it may be taken for an array of zeros."""
        return self._class() < Kind.NUMBER or (self.is_number and bool(self.number == 0))

    @property
    def is_positive_zero(self) -> bool:
        """Whether it may be taken for an array of zeros, none of which is negative."""
        return self.is_zero and not any(self.number_bytes)

    @property
    def has_no_scale(self) -> bool:
        """Whether all numbers are zero, infinite or NaN, and so the same in all units.

        See ``can_have_arbitrary_unit`` of Astropy. The largest number of a dtype is one of them,
        too: programs write it where they can't write infinity.
        """
        return self._class() <= Kind.LARGEST

    @property
    def has_no_scale_if_cast(self) -> bool:
        """The same in a wider dtype, which has greater numbers than the largest one of this."""
        return self._class() < Kind.LARGEST

    @property
    def is_written(self) -> bool:
        """Whether the program itself writes the numbers."""
        return self.kind <= Kind.WRITTEN

    def _class(self) -> Kind:
        """The kind of an array with this number among others."""
        if not self.is_number:
            return self.kind
        number = self.number
        if all(part == 0 or not np.isfinite(part) for part in (number.real, number.imag)):
            return Kind.NO_SCALE
        is_inexact = jnp.issubdtype(self.dtype, jnp.inexact)
        is_largest = is_inexact and abs(number) == jnp.finfo(self.dtype).max
        return Kind.LARGEST if is_largest else Kind.WRITTEN


UNKNOWN = Fact(Kind.UNKNOWN)
NO_SCALE = Fact(Kind.NO_SCALE)


def filled(number: Any, dtype: Any) -> Fact:
    """The fact that a number fills an array of a dtype."""
    number = np.asarray(number, dtype)
    return Fact(Kind.NUMBER, number.dtype, number.tobytes())


def either(a: Fact, b: Fact) -> Fact:
    """The fact about an array that has, at each index, the entry of one of two arrays."""
    if a == b:
        return a
    least, most = sorted((a, b), key=operator.attrgetter("kind"))
    if least.kind < Kind.NUMBER:
        return most  # All entries that are read are entries of the other array.
    return Fact(max(a._class(), b._class()))


def any_of(facts: Sequence[Fact]) -> Fact:
    return functools.reduce(either, facts) if facts else UNKNOWN


def branch_of(index: Fact, count: int) -> int | None:
    """The branch of so many that an index chooses; ``None`` if it is not known."""
    if not index.is_number:
        return None
    number = int(index.number)
    # XLA takes the last branch where the index is none of a branch.
    return number if 0 <= number < count else count - 1


class Written:
    """The facts about the variables of a jaxpr under construction, of which ``eqns`` is the list.

    ``facts`` are those about its operands.
    """

    def __init__(self, eqns: Sequence[JaxprEqn], facts: Mapping[Var, Fact]):
        self._growing = Growing(eqns)
        self._facts: dict[Var, Fact] = dict(facts)

    def __call__(self, atom: Any) -> Fact:
        """The fact about an atom; about a literal, too."""
        if type(atom) is Literal:
            return _of_literal(atom)
        _go_forward(self._growing.new(), self._facts)
        return self._facts.get(atom, UNKNOWN)

    def among(self, operands: Sequence[Any]) -> dict[int, Fact]:
        """The facts about the atoms among operands, by position, where something is known."""
        atoms = ((i, x) for i, x in enumerate(operands) if type(x) in (Var, Literal))
        facts = ((i, self(x)) for i, x in atoms)
        return {i: fact for i, fact in facts if fact != UNKNOWN}


_of_bodies = WeakCaches(64)


def results_of(body: Any, operands: Sequence[Fact]) -> list[Fact]:
    """The facts about the results of a jaxpr in an equation, on operands of these facts."""
    cache = _of_bodies.of(body)
    key = tuple(operands)
    facts: list[Fact] | None = cache.get(key)
    if facts is None:
        jaxpr, consts = _compat.open_jaxpr(body)
        facts = facts_of(jaxpr, [*[UNKNOWN] * len(consts), *operands])
        cache.put(key, facts)
    return facts


def facts_of(jaxpr: Jaxpr, operands: Sequence[Fact]) -> list[Fact]:
    """The facts about the results of a jaxpr without constants, on operands of these facts."""
    pairs = zip(jaxpr.invars, operands, strict=True)
    facts = {var: fact for var, fact in pairs if fact != UNKNOWN}
    _go_forward(jaxpr.eqns, facts)
    return [_fact(facts, atom) for atom in jaxpr.outvars]


def _go_forward(eqns: Sequence[JaxprEqn], facts: dict[Var, Fact]) -> None:
    for eqn in eqns:
        transfer = _TRANSFERS.get(eqn.primitive.name)
        if transfer is None:
            continue
        results = transfer(eqn, [_fact(facts, atom) for atom in eqn.invars])
        for var, fact in zip(eqn.outvars, results, strict=True):
            if fact != UNKNOWN:
                facts[var] = fact


def _fact(facts: dict[Var, Fact], atom: Any) -> Fact:
    return _of_literal(atom) if type(atom) is Literal else facts.get(atom, UNKNOWN)


def _of_literal(literal: Literal) -> Fact:
    dtype = _dtype_of(literal)
    is_number = jnp.issubdtype(dtype, np.number) or dtype == jnp.bool_
    return filled(literal.val, dtype) if is_number and not np.ndim(literal.val) else UNKNOWN


# --- the facts about results -----------------------------------------------------------

# The facts about the results of an equation, by the facts about its operands.
Transfer = Callable[[JaxprEqn, Sequence[Fact]], Sequence[Fact]]

_TRANSFERS: dict[str, Transfer] = {}


def transfer(*names: str) -> Callable[[Transfer], Transfer]:
    """Declare the facts about the results of primitives, by the primitives' names."""

    def declare(fn: Transfer) -> Transfer:
        _TRANSFERS.update(dict.fromkeys(names, fn))
        return fn

    return declare


def _dtype_of(atom: Any) -> Any:
    return atom.aval.dtype


def _is_inexact(var: Any) -> bool:
    return jnp.issubdtype(_dtype_of(var), jnp.inexact)


@transfer(
    *("broadcast_in_dim", "copy", "copy_p", "dynamic_slice", "pvary", "reshape", "rev"),
    *("slice", "squeeze", "stop_gradient", "transpose"),
)
def _of_the_first(eqn: JaxprEqn, facts: Sequence[Fact]) -> Sequence[Fact]:
    return [facts[0]]


@transfer("gather")
def _gather(eqn: JaxprEqn, facts: Sequence[Fact]) -> Sequence[Fact]:
    if eqn.params["mode"] != lax.GatherScatterMode.FILL_OR_DROP:
        return [facts[0]]
    # Keys of random numbers have no fact, and no number of their dtype.
    if facts[0] == UNKNOWN:
        return [UNKNOWN]
    beyond = filled(eqn.params["fill_value"], _dtype_of(eqn.outvars[0]))
    return [either(facts[0], beyond)]


@transfer("concatenate", "stack")
def _of_all(eqn: JaxprEqn, facts: Sequence[Fact]) -> Sequence[Fact]:
    return [any_of(facts)]


@transfer("select_n")
def _chosen(eqn: JaxprEqn, facts: Sequence[Fact]) -> Sequence[Fact]:
    which, *cases = facts
    return [cases[int(which.number)] if which.is_number else any_of(cases)]


@transfer("bitcast_convert_type")
def _same_bits(eqn: JaxprEqn, facts: Sequence[Fact]) -> Sequence[Fact]:
    (fact,) = facts
    operand: Any = eqn.invars[0]
    result: Any = eqn.outvars[0]
    # An operand of narrower or wider numbers has an axis less or more.
    if fact.is_number and operand.aval.ndim == result.aval.ndim:
        return [fact._replace(dtype=_dtype_of(result))]
    return _zero_of_zeros(eqn, facts)


@transfer("device_put", "optimization_barrier")
def _one_for_one(eqn: JaxprEqn, facts: Sequence[Fact]) -> Sequence[Fact]:
    return facts


@transfer("empty", "empty2")
def _uninitialised(eqn: JaxprEqn, facts: Sequence[Fact]) -> Sequence[Fact]:
    return [Fact(Kind.UNINITIALISED)] * len(eqn.outvars)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{"abs": np.abs, "neg": np.negative, "sqrt": np.sqrt, "square": np.square},
    **{"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide},
    **{"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor},
    **{"eq": np.equal, "ne": np.not_equal, "lt": np.less, "gt": np.greater},
    "clamp": lambda least, x, most: np.minimum(np.maximum(x, least), most),
}


def _computed(eqn: JaxprEqn, facts: Sequence[Fact]) -> Fact:
    """The number that a function of NumPy gives for known numbers."""
    if not all(fact.is_number for fact in facts):
        return UNKNOWN
    with np.errstate(all="ignore"):
        number = _FUNCTIONS[eqn.primitive.name](*(fact.number for fact in facts))
    return filled(number, _dtype_of(eqn.outvars[0]))


@transfer("abs", "neg", "sqrt", "square")
def _of_each_entry(eqn: JaxprEqn, facts: Sequence[Fact]) -> Sequence[Fact]:
    (fact,) = facts
    if fact.is_number:
        return [_computed(eqn, facts)]
    if fact.kind != Kind.LARGEST or eqn.primitive.name in ("abs", "neg"):
        return [fact]
    # The square of the largest number is infinite, and its root another number.
    return [NO_SCALE if eqn.primitive.name == "square" else Fact(Kind.WRITTEN)]


@transfer("reduce_precision")
def _rounded(eqn: JaxprEqn, facts: Sequence[Fact]) -> Sequence[Fact]:
    (fact,) = facts
    is_exact = fact.kind < Kind.NUMBER or fact._class() == Kind.NO_SCALE
    return [fact if is_exact else either(fact, Fact(Kind.WRITTEN))]


@transfer("convert_element_type")
def _converted(eqn: JaxprEqn, facts: Sequence[Fact]) -> Sequence[Fact]:
    (fact,) = facts
    dtype = _dtype_of(eqn.outvars[0])
    if fact.is_number:
        is_kept = fact.is_zero or np.can_cast(fact.dtype, dtype, "same_kind")
        return [filled(fact.number, dtype) if is_kept else UNKNOWN]
    # Of the numbers without a scale only zero is an integer or a truth value.
    is_known = fact.kind < Kind.NUMBER or _is_inexact(eqn.outvars[0])
    if is_known and fact.kind == Kind.LARGEST:
        source = _dtype_of(eqn.invars[0])
        return [Fact(Kind.WRITTEN) if _is_wider(dtype, source) else fact]
    return [fact if is_known else UNKNOWN]


def _is_wider(dtype: Any, other: Any) -> bool:
    """Whether an inexact dtype has numbers that are greater than all of another one."""
    return bool(jnp.finfo(dtype).max > jnp.finfo(other).max)


@transfer("add", "and", "clamp", "eq", "gt", "lt", "ne", "or", "sub", "xor")
def _of_numbers(eqn: JaxprEqn, facts: Sequence[Fact]) -> Sequence[Fact]:
    return [_computed(eqn, facts)]


@transfer("mul", "div")
def _scaled(eqn: JaxprEqn, facts: Sequence[Fact]) -> Sequence[Fact]:
    """A product or quotient of anything and of a number without a scale has none.

    (A quotient of an integer and zero is -1.)
    """
    is_inexact = _is_inexact(eqn.outvars[0])
    fact = UNKNOWN
    if is_inexact or eqn.primitive.name == "mul":
        fact = _computed(eqn, facts)
    if fact == UNKNOWN and is_inexact:
        is_scaled = any(operand_fact._class() == Kind.NO_SCALE for operand_fact in facts)
        fact = NO_SCALE if is_scaled else UNKNOWN
    return [fact]


# Which operands have entries, if the others are indices, or say how far to shift.
_ENTRIES = {
    "bcoo_todense": slice(1),
    "dynamic_update_slice": slice(2),
    **dict.fromkeys(("scatter", "scatter-add"), slice(0, None, 2)),
    **dict.fromkeys(
        ("shift_left", "shift_right_arithmetic", "shift_right_logical"), slice(1)
    ),
}


@transfer(
    *("bcoo_todense", "complex", "cumsum", "dot_general", "dynamic_update_slice"),
    *("imag", "integer_pow", "pad", "real", "reduce_sum", "scatter", "scatter-add"),
    *("shift_left", "shift_right_arithmetic", "shift_right_logical"),
)
def _zero_of_zeros(eqn: JaxprEqn, facts: Sequence[Fact]) -> Sequence[Fact]:
    """Zero if all operands with entries are zero. A negative zero tells nothing."""
    entries = facts[_ENTRIES.get(eqn.primitive.name, slice(None))]
    is_zero = all(fact.is_positive_zero for fact in entries)
    if eqn.primitive.name == "integer_pow":
        is_zero &= eqn.params["y"] > 0
    elif eqn.primitive.name == "scatter":
        is_zero &= eqn.params["update_jaxpr"] is None  # It may be ``x.at[i].apply(fn)``.
    return [filled(0, _dtype_of(eqn.outvars[0])) if is_zero else UNKNOWN]


@transfer("pow")
def _power(eqn: JaxprEqn, facts: Sequence[Fact]) -> Sequence[Fact]:
    """A positive power of zero is zero. NumPy may round other powers otherwise."""
    base, exponent = facts
    is_zero = base.is_positive_zero and exponent.is_number and bool(exponent.number > 0)
    return [filled(0, _dtype_of(eqn.outvars[0])) if is_zero else UNKNOWN]


# --- calls, branches and loops ------------------------------------------------------


@transfer(*PLAIN_CALLS)
def _called(eqn: JaxprEqn, facts: Sequence[Fact]) -> Sequence[Fact]:
    return results_of(called(eqn), facts)


@transfer(*CALLS_WITH_A_RULE)
def _with_a_rule(eqn: JaxprEqn, facts: Sequence[Fact]) -> Sequence[Fact]:
    """The rule may give a tangent to what the function fills, if an operand has one."""
    results = _called(eqn, facts)
    pairs = zip(facts, eqn.invars, strict=True)
    if all(fact.kind <= Kind.NUMBER or not _is_inexact(x) for fact, x in pairs):
        return results
    return [Fact(fact._class()) if fact.is_number else fact for fact in results]


@transfer("cond")
def _branches(eqn: JaxprEqn, facts: Sequence[Fact]) -> Sequence[Fact]:
    branches = eqn.params["branches"]
    chosen = branch_of(facts[0], len(branches))
    if chosen is not None:
        return results_of(branches[chosen], facts[1:])
    results = [results_of(branch, facts[1:]) for branch in branches]
    return list(map(any_of, zip(*results, strict=True)))


@transfer("scan")
def _scan(eqn: JaxprEqn, facts: Sequence[Fact]) -> Sequence[Fact]:
    consts, carries = _compat.scan_counts(eqn.params)
    carry, others = facts[consts : consts + carries], facts[consts + carries :]
    turn = lambda carry: results_of(eqn.params["jaxpr"], [*facts[:consts], *carry, *others])
    carry, results = _after_all_turns(carry, turn)
    return [*carry, *results[carries:]]


@transfer("while")
def _while_loop(eqn: JaxprEqn, facts: Sequence[Fact]) -> Sequence[Fact]:
    first = eqn.params["cond_nconsts"]
    consts, carry = facts[first:][: eqn.params["body_nconsts"]], facts[first:]
    carry = carry[len(consts) :]
    turn = lambda carry: results_of(eqn.params["body_jaxpr"], [*consts, *carry])
    return _after_all_turns(carry, turn)[0]


def _after_all_turns(
    carry: Sequence[Fact], turn: Callable[[Sequence[Fact]], list[Fact]]
) -> tuple[list[Fact], list[Fact]]:
    """The facts that hold about a carry after each turn, and about a turn's results.

    A turn that changes a fact leaves less known, so that there are few.
    """
    carry = list(carry)
    while True:
        results = turn(carry)
        after = list(map(either, carry, results))
        if after == carry:
            return carry, results
        carry = after

"""Numbers that a program writes, beside values for which these numbers matter.

Zero is the same in all units, and so are infinity and NaN. A value that `adopts` arrays takes
these for values like itself (`Value.adopt`). Other numbers reach it as literals, wherever the
program computes them of literals: an exponent tells units. What is known of the operands of a body
is known in it.

For rules of any type a number is a literal inside of `jax.shard_map`, too, where JAX casts it to an
array that varies from device to device.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jax.extend.core import jaxprs_in_params

from .. import _compat
from .._compat import Jaxpr, JaxprEqn, Literal, Primitive, Var
from .._core.annotations import named_in_errors
from .._core.avals import avals_of, mismatch, values_inside
from .._core.hooks import (
    ALL_PRIMITIVES,
    Analysis,
    OperandsHook,
    numbers,
    operands_hooks,
)
from .._core.rewrite import handlers
from .._core.value import Value, is_value
from .written import NO_SCALE, Fact, Written


def _file_of_function(fn: Callable[..., Any]) -> Callable[[], str]:
    return lambda: inspect.unwrap(fn).__code__.co_filename


# The functions inside of others, by name, that write numbers about floats and not about the
# quantities: where a square overflows, or a divisor where a step is zero. Their results have the
# units of their operands whatever the units are. Each has the file that it is in. Other rooms add
# functions of other libraries.
FOR_ANY_UNITS: dict[str, Callable[[], str | None]] = {
    "_interp": _file_of_function(jnp.interp),
    **dict.fromkeys(("hypot", "_hypot"), _file_of_function(jnp.hypot)),
}


class Adopting(OperandsHook):
    """Gives equations beside a value that adopts arrays the numbers that the program writes."""

    primitives = ALL_PRIMITIVES

    def __init__(self, analysis: Callable[[type], Any]) -> None:
        self._analysis = analysis
        # Whether the numbers that the equations write have any units.
        self._is_for_any_units = False

    def known(
        self, jaxpr: Any, operands: Sequence[Any]
    ) -> Mapping[type[Analysis], Mapping[int, Fact]]:
        """The numbers that matter: beside any value, zeros, of which arrays take its structure.

        Beside truth values it is all numbers, which they may choose.
        """
        values = list(filter(is_value, operands))
        if not values or is_for_any_units(jaxpr):
            return {}  # What its caller writes has units.
        facts = self._analysis(Written).among(operands)
        if not facts:
            return {}
        if adopters_of(values):
            if self._is_for_any_units:
                facts = {i: _of_any_units(fact) for i, fact in facts.items()}
            return {Written: _numbers_of_body(jaxpr, facts)}
        all_matter = any(aval.dtype == jnp.bool_ for aval in avals_of(values))
        matters = lambda fact: fact.is_zero or (all_matter and fact.is_number)
        return {Written: {i: fact for i, fact in facts.items() if matters(fact)}}

    def begin(self, jaxpr: Any) -> None:
        self._is_for_any_units = is_for_any_units(jaxpr)

    def operands(
        self, eqn: JaxprEqn, operands: Sequence[Any]
    ) -> tuple[JaxprEqn, Sequence[Any]]:
        adopters = adopters_of(operands)
        if not adopters:
            return eqn, operands
        written = self._analysis(Written)
        primitive = None if eqn.primitive.name in handlers else eqn.primitive
        # A call may cast the largest number of a dtype to a wider one, and knows it inside.
        is_cast = eqn.primitive.name == "jit" and not is_for_any_units(eqn.params["jaxpr"])
        operands = [
            adopted(adopters, x, primitive)
            if not is_value(x)
            and is_inexact(x)
            and self._has_any_units(written(x), is_cast)
            else x
            for x in operands
        ]
        return eqn, operands

    def _has_any_units(self, fact: Fact, is_cast: bool) -> bool:
        has_no_scale = fact.has_no_scale_if_cast if is_cast else fact.has_no_scale
        return has_no_scale or (self._is_for_any_units and fact.is_written)

    def end(self, operands: Sequence[Any], results: Sequence[Any]) -> Sequence[Any]:
        adopters = adopters_of(operands)
        if not adopters:
            return results
        written = self._analysis(Written)
        return [
            adopted(adopters, x)
            if not is_value(x) and is_inexact(x) and written(x).has_no_scale
            else x
            for x in results
        ]


operands_hooks.append(Adopting)


def _literals(
    analysis: Callable[[type], Any], eqn: JaxprEqn, operands: Sequence[Any]
) -> Sequence[Any]:
    """The operands, with literals for numbers that the program computes of literals."""
    is_power = eqn.primitive.name == "pow"
    if not is_power and not any(map(_is_scalar_variable, operands)):
        return operands
    if adopters_of(operands):
        return _with_numbers(analysis(Written), eqn, operands)
    return [_with_number(analysis(Written), x) if _varies(x) else x for x in operands]


numbers.append(_literals)


def _is_scalar_variable(x: Any) -> bool:
    is_variable: bool = type(x) is Var
    return is_variable and not x.aval.shape


def _varies(x: Any) -> bool:
    return _is_scalar_variable(x) and bool(_compat.varying_axes(x.aval))


def adopters_of(operands: Iterable[Any]) -> Sequence[Value]:
    """The values that adopt arrays, in the first operand that is or holds some, innermost first.

    There is one of each type.
    """
    for x in filter(is_value, operands):
        inside_out = reversed([x, *values_inside(x)])
        adopters = {type(y): y for y in inside_out if adopts(y)}
        if adopters:
            return [*adopters.values()]
    return ()


def adopts(value: Value) -> bool:
    """Whether the type of a value says which arrays it takes for values like it."""
    return type(value).adopt is not Value.adopt


def is_for_any_units(jaxpr: Any) -> bool:
    """Whether a jaxpr is of a function whose written numbers have any units."""
    file = FOR_ANY_UNITS.get(_compat.name_of(jaxpr))
    return file is not None and _compat.file_of(jaxpr) == file()


def is_inexact(atom: Any) -> bool:
    return jnp.issubdtype(atom.aval.dtype, jnp.inexact)


def _of_any_units(fact: Fact) -> Fact:
    """What a body may know of a number, which is the same in all units there."""
    return NO_SCALE if fact.is_written and not fact.has_no_scale else fact


def _numbers_of_body(jaxpr: Any, facts: Mapping[int, Fact]) -> dict[int, Fact]:
    """The numbers among the operands of a body. Integers are indices and sizes, but in powers."""
    numbers = {i: fact for i, fact in facts.items() if fact.has_no_scale or fact.is_number}
    whole = {i for i, fact in numbers.items() if _is_whole(fact)}
    if whole and _has_power(_compat.open_jaxpr(jaxpr)[0]):
        return numbers
    return {i: fact for i, fact in numbers.items() if i not in whole}


def _is_whole(fact: Fact) -> bool:
    """Whether it is an integer other than zero."""
    return not (fact.has_no_scale or jnp.issubdtype(fact.dtype, jnp.inexact))


def _has_power(jaxpr: Jaxpr) -> bool:
    """Whether a jaxpr, or a jaxpr inside of it, has a power whose exponent is an operand."""
    return any(
        eqn.primitive.name == "pow" or any(map(_has_power, jaxprs_in_params(eqn.params)))
        for eqn in jaxpr.eqns
    )


def _with_numbers(
    written: Written, eqn: JaxprEqn, operands: Sequence[Any]
) -> Sequence[Any]:
    with_numbers = [_with_number(written, x) for x in operands]
    if eqn.primitive.name == "pow" and not is_value(operands[1]):
        x, exponent = operands
        # One number may be the exponent of a whole array.
        if avals_of([x])[0].shape == exponent.aval.shape:
            with_numbers[1] = _with_number(written, exponent, is_whole=True)
    return with_numbers


def _with_number(written: Written, operand: Any, is_whole: bool = False) -> Any:
    """The number that fills an operand; the operand itself if no known number does."""
    if is_value(operand) or type(operand) is Literal:
        return operand
    if operand.aval.shape and not is_whole:
        return operand
    fact = written(operand)
    if not fact.is_number:
        return operand
    aval = _compat.ShapedArray((), fact.dtype, weak_type=operand.aval.weak_type)
    return Literal(fact.number, aval)


def adopted(
    adopters: Iterable[Value], atom: Any, primitive: Primitive | None = None
) -> Any:
    """An array as a value like others: one after the other takes what the one before has made."""
    taken, (aval,) = atom, avals_of([atom])
    for adopter in adopters:
        value = named_in_errors(adopter.adopt, taken, primitive)
        if value is NotImplemented:
            continue
        hook = f"{type(adopter).__name__}.adopt"
        problem = mismatch(value, aval, hook, "the array is")
        if problem is not None:
            raise TypeError(problem)
        taken = value
    return taken

"""The steps of a program, and all equations of one line as one step.

A transformation like `jax.grad` takes as long for a small jitted function as for one
equation. So the equations of a user's line are one function, as those of a function of
`jax.numpy` are. Lines of the same equations share it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import jax

from .. import _compat
from .._compat import Atom, JaxprEqn, Literal, Var
from .._core.caches import BoundedCache


class Step(NamedTuple):
    """A call, its operands and results as atoms, and the equation that it is for.

    ``is_list`` tells whether it returns a list of results. ``is_jitted`` tells whether it
    is a jitted function, which does not know the equation's place in the program.
    """

    call: Callable[..., Any]
    operands: Sequence[Any]
    results: Sequence[Any]
    is_list: bool
    is_jitted: bool
    eqn: JaxprEqn


# A loop in one line may have any number of equations, which would be one long function.
_MOST = 16


def in_lines(steps: Sequence[Step], outvars: Sequence[Any]) -> list[Step]:
    """The steps, with one in place of neighbours that are equations of the same line."""
    runs: list[list[Step]] = []
    for _, neighbours in itertools.groupby(steps, _line):
        run = list(neighbours)
        runs += [run[i : i + _MOST] for i in range(0, len(run), _MOST)]
    needed = {atom for atom in outvars if type(atom) is not Literal}
    lines = []
    for run in reversed(runs):
        lines.append(run[0] if len(run) == 1 else _as_one(run, needed))
        for step in run:
            needed.update(atom for atom in step.operands if type(atom) is not Literal)
    lines.reverse()
    return lines


def _line(step: Step) -> object:
    """A key that steps of the same line have in common; an object of its own for others."""
    eqn = step.eqn
    is_equation = step.is_jitted and step.results is eqn.outvars and not eqn.effects
    where = _compat.source_location(eqn.source_info) if is_equation else None
    return object() if where is None else (where, eqn.source_info.name_stack)


_functions = BoundedCache(512)


def _as_one(run: Sequence[Step], needed: set[Var]) -> Step:
    eqns = [step.eqn for step in run]
    numbers: dict[Var, int] = {}
    inputs: list[Var] = []
    described: list[Hashable] = []

    def number(atom: Atom) -> Hashable:
        if isinstance(atom, Literal):
            return _compat.literal_key(atom)
        if atom not in numbers:
            numbers[atom] = len(numbers)
            inputs.append(atom)
        return numbers[atom]

    for eqn in eqns:
        operands = tuple(map(number, eqn.invars))
        described.append((eqn.primitive, *_compat.key_of(eqn.params), operands))
        for var in eqn.outvars:
            numbers[var] = len(numbers)
    produced = [var for eqn in eqns for var in eqn.outvars if var in needed]
    key = (
        tuple(described),
        tuple(var.aval for var in inputs),
        tuple(numbers[var] for var in produced),
    )
    call = _functions.get(key)
    if call is None:
        call = jax.jit(_function(eqns, inputs, produced))
        _functions.put(key, call)
    return Step(call, inputs, produced, True, True, eqns[0])


def _function(
    eqns: Sequence[JaxprEqn], inputs: Sequence[Var], produced: Sequence[Var]
) -> Callable[..., list[Any]]:
    def line(*operands: jax.Array) -> list[Any]:
        env: dict[Any, Any] = dict(zip(inputs, operands, strict=True))
        for eqn in eqns:
            ins = [x.val if type(x) is Literal else env[x] for x in eqn.invars]
            env.update(zip(eqn.outvars, _compat.bind_eqn(eqn, ins), strict=True))
        return [env[var] for var in produced]

    line.__name__ = eqns[-1].primitive.name
    return line

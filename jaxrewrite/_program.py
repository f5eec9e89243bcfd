"""Running a rewritten program, in whatever JAX is doing at the moment.

Where a jaxpr is being made (`jax.jit`, a scan, `jax.make_jaxpr`), the program's
equations are appended to it, or one that calls it as it would a jitted function.
Where nothing is traced, they are carried out one by one through eager JAX's own
compiled primitives. Under any other transformation (`jax.grad`, `jax.vmap`
outside of jit) each is bound.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.tree_util import tree_leaves, tree_unflatten

from . import _collector, _compat
from ._compat import Jaxpr, JaxprEqn, Literal
from ._errors import add_note
from ._rewrite import Adapter, Restaged, Rewriting, warn
from ._settings import Settings


# Programs of more equations than this are called by one equation where a jaxpr is
# being made. To append a few is as quick, and leaves more to be read in the result.
_MANY = 32


class Program:
    """A jaxpr on leaves and the constants that belong to its first ``invars``."""

    __slots__ = ("_closed", "_steps", "consts", "jaxpr")

    def __init__(self, jaxpr: Jaxpr, consts: Sequence[Any]):
        self.jaxpr = jaxpr
        self.consts = list(consts)
        self._steps: _Steps | None = None
        self._closed: Any = None

    def is_cacheable(self) -> bool:
        """Whether the program is the same whenever it is called."""
        return not any(isinstance(const, _compat.Tracer) for const in self.consts)

    def __call__(self, leaves: Sequence[Any]) -> list[Any]:
        operands = [*self.consts, *leaves]
        if _compat.nothing_is_traced() and not _compat.jit_is_disabled():
            if self._steps is None:
                self._steps = _Steps(self.jaxpr)
            return self._steps(operands)
        if not _compat.makes_jaxpr():
            return evaluate(self.jaxpr, operands)
        if self._is_called():
            if self._closed is None:
                self._closed = _compat.close_jaxpr(self.jaxpr)
            return _compat.call_in_current_trace(self._closed, operands)
        with _collector.paused():
            return _compat.inline_into_current_trace(self.jaxpr, operands)

    def _is_called(self) -> bool:
        jaxpr = self.jaxpr
        is_plain = not (jaxpr.effects or jaxpr.is_high or _compat.jit_is_disabled())
        return is_plain and len(jaxpr.eqns) > _MANY


def function_of(restaged: Restaged, original: Any) -> Callable[..., list[Any]]:
    """A rewritten body as a function of its constants and leaves, under its own name."""
    program = Program(restaged.jaxpr, ())

    def call(*leaves: Any) -> list[Any]:
        return program(leaves)

    call.__name__ = _compat.name_of(original)
    return call


def run_on_values(
    settings: Settings,
    jaxpr: Jaxpr,
    operands: Sequence[Any],
    eqn: JaxprEqn,
    leaving: Adapter | None = None,
) -> list[Any]:
    """Rewrite a jaxpr without constants for values, on behalf of ``eqn``, and run it."""
    restaged = Rewriting(settings).restage(jaxpr, operands, eqn, leaving=leaving)
    warn(restaged.warnings)
    results = Program(restaged.jaxpr, restaged.consts)(tree_leaves(list(operands)))
    return tree_unflatten(restaged.out_tree, results)


def evaluate(jaxpr: Jaxpr, operands: Sequence[Any]) -> list[Any]:
    """Bind each equation, under its own source line, name stack and context."""
    env = dict(zip(jaxpr.invars, operands, strict=True))
    last_use = _last_uses(jaxpr)

    def read(atom: Any) -> Any:
        return atom.val if type(atom) is Literal else env[atom]

    for eqn, dead in zip(jaxpr.eqns, last_use, strict=True):
        source, context = _compat.eqn_context(eqn)
        with source, context:
            results = _compat.bind_eqn(eqn, [read(atom) for atom in eqn.invars])
        env.update(zip(eqn.outvars, results, strict=True))
        for var in dead:
            del env[var]
    return [read(atom) for atom in jaxpr.outvars]


def _last_uses(jaxpr: Jaxpr) -> list[list[Any]]:
    """For each equation the variables that nothing needs after it."""
    needed = {atom for atom in jaxpr.outvars if type(atom) is not Literal}
    last_uses = []
    for eqn in reversed(jaxpr.eqns):
        atoms = [a for a in (*eqn.invars, *eqn.outvars) if type(a) is not Literal]
        dead = [atom for atom in dict.fromkeys(atoms) if atom not in needed]
        needed.update(dead)
        last_uses.append(dead)
    last_uses.reverse()
    return last_uses


class _Steps:
    """A jaxpr as a list of calls on numbered registers, for running it eagerly."""

    __slots__ = ("_literals", "_outs", "_steps")

    def __init__(self, jaxpr: Jaxpr):
        numbers = {var: i for i, var in enumerate(jaxpr.invars)}
        self._literals: list[Any] = []

        def number(atom: Any) -> int:
            if type(atom) is Literal:
                # Numbered from the end, where the registers of literals are.
                self._literals.append(_as_array(atom))
                return -len(self._literals)
            return numbers.setdefault(atom, len(numbers))

        self._steps = [
            (
                _step(eqn),
                [number(atom) for atom in eqn.invars],
                [number(var) for var in eqn.outvars],
                eqn.primitive.multiple_results,
                [number(var) for var in dead],
                eqn,
            )
            for eqn, dead in zip(jaxpr.eqns, _last_uses(jaxpr), strict=True)
        ]
        self._outs = [number(atom) for atom in jaxpr.outvars]
        self._literals.reverse()
        self._literals[:0] = [None] * (len(numbers) - len(jaxpr.invars))

    def __call__(self, operands: list[Any]) -> list[Any]:
        registers = operands + self._literals
        for call, ins, outs, multiple, dead, eqn in self._steps:
            try:
                result = call(*[registers[i] for i in ins])
            except Exception as error:
                where = _compat.source_location(eqn.source_info)
                if where:
                    note = f"jaxrewrite: in primitive {eqn.primitive.name!r}"
                    add_note(error, f"{note} at {where[0]}:{where[1]} ({where[2]})")
                raise
            if multiple:
                for i, x in zip(outs, result, strict=True):
                    registers[i] = x
            else:
                registers[outs[0]] = result
            for i in dead:
                registers[i] = None
        return [registers[i] for i in self._outs]


def _step(eqn: JaxprEqn) -> Callable[..., Any]:
    compiled = _compat.compiled_primitive(eqn)
    if compiled is not None:
        return compiled

    def bind(*operands: Any) -> Any:
        source, context = _compat.eqn_context(eqn)
        with source, context:
            results = _compat.bind_eqn(eqn, operands)
        return results if eqn.primitive.multiple_results else results[0]

    return bind


def _as_array(literal: Literal) -> Any:
    """A literal as a device array, if that is the same to JAX: faster to pass."""
    array = jax.device_put(literal.val)
    return array if jax.typeof(array) == literal.aval else literal.val

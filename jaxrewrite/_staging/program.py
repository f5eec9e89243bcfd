"""Running a rewritten program, inside or outside of JAX's transformations.

While a jaxpr is being made (`jax.jit`, a scan, `jax.make_jaxpr`), the program's equations
are appended to it. A long program is appended as one equation that calls it, like a jitted
function. While nothing is traced, and under any other transformation (`jax.grad` or
`jax.vmap` around it), the equations run one by one, as calls of jitted functions, or under
a transformation line by line. A rule is one call, like a function of `jax.numpy`. JAX then
compiles and differentiates each of these functions only once, however often it is used. They do
so, too, under `jax.ensure_compile_time_eval`, where JAX asks the operands of each whether it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import tree_leaves, tree_unflatten

from .. import _compat
from .._compat import AnyJaxpr, Atom, Jaxpr, JaxprEqn, Literal, Var
from .._core.bodies import Adapter, rewrite_jaxpr
from .._core.builder import Applied, Rewritten
from .._core.caches import WeakCaches
from .._core.errors import add_note
from .._core.notices import warn
from .._core.settings import Settings
from .._core.site import Site
from . import collector
from .donation import donates, told_apart, without_donation
from .lines import Step, in_lines


# While a jaxpr is being made, one equation calls a program of more equations than this.
# Appending the equations of a shorter program is as quick, and shows more in the result.
_MANY = 32


class Program:
    """A jaxpr on leaves and the constants that belong to its first ``invars``."""

    __slots__ = (
        "_applied",
        "_closed",
        "_constants",
        "_differentiated",
        "_donates",
        "_eager",
        "_needs_64_bits",
        "_steps",
        "_traced",
        "consts",
        "jaxpr",
    )

    def __init__(
        self,
        jaxpr: Jaxpr,
        consts: Sequence[Any],
        applied: Sequence[Applied] = (),
        differentiated: Callable[[JaxprEqn], JaxprEqn] | None = None,
    ):
        self.jaxpr = jaxpr
        self.consts = list(consts)
        constants = {*jaxpr.invars[: len(self.consts)]}
        # Which results are constants.
        self._constants = [
            i for i, x in enumerate(jaxpr.outvars) if type(x) is Literal or x in constants
        ]
        self._applied = applied
        # How an equation with a derivative rule of its own runs where JAX differentiates it.
        self._differentiated = differentiated
        self._donates = donates(jaxpr)
        self._steps: list[Step] | None = None
        self._eager: _Steps | None = None
        self._traced: _Steps | None = None
        self._closed: Any = None
        variables = (var for eqn in jaxpr.eqns for var in eqn.outvars)
        self._needs_64_bits = _compat.needs_64_bits(var.aval for var in variables)

    def is_cacheable(self) -> bool:
        """Whether its constants are the same at each call."""
        return not _compat.has_tracers(self.consts)

    def __call__(self, leaves: Sequence[Any]) -> list[Any]:
        if self._needs_64_bits:
            with jax.enable_x64(True):
                return self._run(leaves)
        return self._run(leaves)

    def _run(self, leaves: Sequence[Any]) -> list[Any]:
        operands = [*self.consts, *leaves]
        if not _is_appended():
            # It is read first: another thread drops it when the steps are there.
            applied = self._applied
            if self._steps is None:
                self._steps = list(_steps_of(self.jaxpr, applied))
                self._applied = ()  # The steps hold the parts that they need.
            if _compat.nothing_is_traced() and not _compat.jit_is_disabled():
                if self._eager is None:
                    self._eager = _Steps(self.jaxpr, self._steps)
                return self._eager.run(told_apart(operands) if self._donates else operands)
            if self._traced is None:
                steps = map(self._under_trace, self._steps)
                by_line = in_lines([*steps], self.jaxpr.outvars)
                self._traced = _Steps(self.jaxpr, by_line)
            return self._traced.run_under_trace(operands)
        if self._is_called():
            return self._call(operands)
        with collector.paused():
            return _compat.inline_into_current_trace(self.jaxpr, operands)

    def _under_trace(self, step: Step) -> Step:
        """A step as it is where JAX differentiates it. A rule's step is for more than its equation."""
        if step.results is not step.eqn.outvars:
            return step
        eqn = without_donation(step.eqn)
        if self._differentiated is not None:
            eqn = self._differentiated(eqn)
        if eqn is step.eqn:
            return step
        return step._replace(call=_binding(eqn), is_jitted=False, eqn=eqn)

    def for_user(self, results: list[Any]) -> list[Any]:
        """Results, with a new array of JAX for each constant among them, as `jax.jit` returns it.

        The caller may donate it. The constant may be a number of Python, or of a subclass of
        NumPy's, which can't be pickled nor copied. Where a jaxpr is made, results are of the trace.
        """
        if not self._constants or _is_appended():
            return results
        avals = [self.jaxpr.outvars[i].aval for i in self._constants]
        new = _new([results[i] for i in self._constants], avals)
        for i, x in zip(self._constants, new, strict=True):
            results[i] = x
        return results

    def _is_called(self) -> bool:
        jaxpr = self.jaxpr
        is_plain = not (jaxpr.effects or jaxpr.is_high or _compat.jit_is_disabled())
        return is_plain and len(jaxpr.eqns) > _MANY

    def _call(self, operands: Sequence[Any]) -> list[Any]:
        """Run as one equation. Operands and literals among the results stay outside of it."""
        jaxpr = self.jaxpr
        if self._closed is None:
            invars = {*jaxpr.invars}
            outvars = dict.fromkeys(
                var for var in jaxpr.outvars if type(var) is Var and var not in invars
            )
            body = _compat.new_jaxpr(
                jaxpr.invars, list(outvars), jaxpr.eqns, jaxpr.debug_info, jaxpr.is_high
            )
            self._closed = _compat.close_jaxpr(body)
        results = _compat.call_in_current_trace(self._closed, operands)
        env: dict[Any, Any] = dict(zip(jaxpr.invars, operands, strict=True))
        env.update(zip(self._closed.jaxpr.outvars, results, strict=True))
        return [
            _compat.known_to_current_trace(atom) if type(atom) is Literal else env[atom]
            for atom in jaxpr.outvars
        ]


def _is_appended() -> bool:
    """Whether equations are appended to the jaxpr that is being made, and do not run."""
    return _compat.makes_jaxpr() and not _compat.folds_constants()


def function_of(rewritten: Rewritten, original: AnyJaxpr) -> Callable[..., list[Any]]:
    """A rewritten body as a function of its constants and leaves, with the body's name."""
    program = Program(rewritten.jaxpr, ())

    def call(*leaves: jax.Array) -> list[Any]:
        return program(leaves)

    call.__name__ = _compat.name_of(original)
    return call


def run_on_values(
    settings: Settings,
    jaxpr: Jaxpr,
    operands: Sequence[Any],
    site: Site,
    leaving: Adapter | None = None,
    differentiated: Callable[[JaxprEqn], JaxprEqn] | None = None,
) -> list[Any]:
    """Rewrite a jaxpr without constants for values, on behalf of ``site``, and run it."""
    rewritten = rewrite_jaxpr(site, jaxpr, operands, leaving=leaving, settings=settings)
    warn(site.passed_on(rewritten.warnings))
    program = Program(rewritten.jaxpr, rewritten.consts, differentiated=differentiated)
    results = program(tree_leaves(list(operands)))
    return tree_unflatten(rewritten.out_tree, results)


def _last_uses(
    uses: Sequence[tuple[Sequence[Any], Sequence[Any]]], outvars: Sequence[Any]
) -> list[list[Any]]:
    """For each step, given its operands and results, the atoms that no later step needs."""
    needed = {atom for atom in outvars if type(atom) is not Literal}
    last_uses = []
    for operands, results in reversed(uses):
        atoms = [a for a in (*operands, *results) if type(a) is not Literal]
        dead = [atom for atom in dict.fromkeys(atoms) if atom not in needed]
        needed.update(dead)
        last_uses.append(dead)
    last_uses.reverse()
    return last_uses


class _Steps:
    """Calls on numbered registers."""

    __slots__ = ("_arrays", "_literals", "_outs", "_steps", "_variables")

    def __init__(self, jaxpr: Jaxpr, steps: Sequence[Step]):
        numbers = {var: i for i, var in enumerate(jaxpr.invars)}
        self._literals: list[Literal] = []

        def number(atom: Atom) -> int:
            if isinstance(atom, Literal):
                # Counted from the end, where the registers of literals are.
                self._literals.append(atom)
                return -len(self._literals)
            return numbers.setdefault(atom, len(numbers))

        uses = [(step.operands, step.results) for step in steps]
        self._steps = [
            (
                step.call,
                [number(atom) for atom in step.operands],
                [number(var) for var in step.results],
                step.is_list,
                [number(var) for var in dead],
                step.is_jitted,
                step.eqn,
            )
            for step, dead in zip(steps, _last_uses(uses, jaxpr.outvars), strict=True)
        ]
        self._outs = [number(atom) for atom in jaxpr.outvars]
        self._literals.reverse()
        self._variables = [None] * (len(numbers) - len(jaxpr.invars))
        self._arrays: list[Any] | None = None

    def run(self, operands: list[Any]) -> list[Any]:
        """Run while nothing is traced. JAX then needs no source lines or contexts."""
        if self._arrays is None:
            self._arrays = [_as_array(literal) for literal in self._literals]
        registers = operands + self._variables + self._arrays
        for call, ins, outs, is_list, dead, _, eqn in self._steps:
            try:
                result = call(*[registers[i] for i in ins])
            except Exception as error:
                info = eqn.source_info
                where = _compat.source_location(info) or _compat.current_location()
                if where:
                    note = f"jaxrewrite: in primitive {eqn.primitive.name!r}"
                    add_note(error, f"{note} at {where[0]}:{where[1]} ({where[2]})")
                raise
            _write(registers, result, outs, is_list, dead)
        return [registers[i] for i in self._outs]

    def run_under_trace(self, operands: list[Any]) -> list[Any]:
        """Run each call under its own source line, name stack and context.

        Literals are passed unchanged, because rules may depend on them.
        """
        registers = operands + self._variables
        registers += [literal.val for literal in self._literals]
        for call, ins, outs, is_list, dead, is_jitted, eqn in self._steps:
            inputs = [registers[i] for i in ins]
            if is_jitted:
                source, context = _compat.eqn_context(eqn)
                with source, context:
                    result = call(*inputs)
            else:
                result = call(*inputs)
            _write(registers, result, outs, is_list, dead)
        return [registers[i] for i in self._outs]


def _write(
    registers: list[Any], result: Any, outs: list[int], is_list: bool, dead: list[int]
) -> None:
    if is_list:
        for i, x in zip(outs, result, strict=True):
            registers[i] = x
    else:
        registers[outs[0]] = result
    for i in dead:
        registers[i] = None


def _steps_of(jaxpr: Jaxpr, applied: Sequence[Applied]) -> Iterator[Step]:
    live = {id(eqn) for eqn in jaxpr.eqns}
    of_rule = {
        id(eqn): one for one in applied if _is_one_call(one, live) for eqn in one.eqns
    }
    done = set()
    for eqn in jaxpr.eqns:
        one = of_rule.get(id(eqn))
        if one is None:
            compiled = _compat.compiled_primitive(eqn)
            call = _binding(eqn) if compiled is None else compiled
            is_list, is_jitted = eqn.primitive.multiple_results, compiled is not None
            yield Step(call, eqn.invars, eqn.outvars, is_list, is_jitted, eqn)
        elif id(one) not in done:
            done.add(id(one))
            fused = _fused(one.traced)
            results = [one.results[i] for i in fused.produced]
            operands = [one.operands[i] for i in fused.inputs]
            yield Step(fused.call, operands, results, True, True, eqn)


def _is_one_call(one: Applied, live: Container[int]) -> bool:
    """Whether all equations of a rule are still there and may be compiled as one."""
    return not one.traced.effects and all(
        id(eqn) in live and _compat.is_in_current_context(eqn) for eqn in one.eqns
    )


class _Fused(NamedTuple):
    """A rule's jaxpr, compiled.

    It takes the ``taken`` operands and returns the ``produced`` results: those that its
    equations read and write.
    """

    call: Callable[..., list[Any]]
    inputs: list[int]
    produced: list[int]


_fused_rules = WeakCaches(1)


def _fused(traced: Jaxpr) -> _Fused:
    cache = _fused_rules.of(traced)
    fused = cache.get("fused")
    if fused is None:
        read = {atom for eqn in traced.eqns for atom in eqn.invars if type(atom) is Var}
        written = {var for eqn in traced.eqns for var in eqn.outvars}
        inputs = {var: i for i, var in enumerate(traced.invars) if var in read}
        produced = {
            var: i
            for i, var in enumerate(traced.outvars)
            if type(var) is Var and var in written
        }
        program = Program(
            _compat.new_jaxpr(
                list(inputs),
                list(produced),
                traced.eqns,
                traced.debug_info,
                traced.is_high,
            ),
            (),
        )

        def rule(*operands: jax.Array) -> list[Any]:
            return program(operands)

        rule.__name__ = _compat.name_of(traced)
        fused = _Fused(jax.jit(rule), list(inputs.values()), list(produced.values()))
        cache.put("fused", fused)
    return fused


def _binding(eqn: JaxprEqn) -> Callable[..., Any]:
    def bind(*operands: jax.Array) -> jax.Array | Sequence[jax.Array]:
        source, context = _compat.eqn_context(eqn)
        with source, context:
            results = _compat.bind_eqn(eqn, operands)
        return results if eqn.primitive.multiple_results else results[0]

    return bind


def _new(constants: list[Any], avals: Sequence[Any]) -> list[Any]:
    """New arrays for constants; those of JAX stay where they are, and tracers as they are."""
    new, arrays = list(constants), []
    # The function may branch on one, also where JAX traces.
    with jax.ensure_compile_time_eval(), _compat.bits_of(avals):
        for i, (x, aval) in enumerate(zip(constants, avals, strict=True)):
            if isinstance(x, jax.Array):
                arrays += [] if _compat.has_tracers([x]) else [i]
            elif aval.dtype != jax.dtypes.float0:
                new[i] = _compat.as_weak_as(jnp.asarray(x, aval.dtype), aval)
        places = [constants[i].sharding for i in arrays]
        copies = jax.device_put([constants[i] for i in arrays], places, may_alias=False)
    for i, copied in zip(arrays, copies, strict=True):
        new[i] = copied
    return new


def _as_array(literal: Literal) -> Any:
    """A literal as a device array, which is faster to pass, if JAX sees no difference."""
    array = jax.device_put(literal.val)
    return array if jax.typeof(array) == literal.aval else literal.val

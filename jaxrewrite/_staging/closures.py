"""Custom derivative rules that close over arrays of the function they are in.

JAX traces such a rule when it differentiates, long after `transform` has staged the
function. The rule then closes over tracers of a trace that has ended. But such a tracer
still names a variable of the staged jaxpr, and the leaves of the arguments are known while
the rewritten program runs. So the few equations that the variable depends on run once more.

JAX remembers the arrays found in this way as part of the rule, but they are right for this
call only. So a program that needed them is staged again at its next call.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import threading
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
from jax.tree_util import PyTreeDef, tree_unflatten

from .. import _compat
from .._compat import AnyJaxpr, Jaxpr, JaxprEqn, Var
from .._core.bodies import Adapter
from .._core.caches import WeakCaches
from .._core.rewrite import Rewriter
from .._core.settings import Settings
from .._core.site import Site
from .._core.value import ArrayOrValue, is_value
from .program import run_on_values


class Staging:
    """The jaxpr that `transform` staged, before any equation was dropped or rewritten.

    The jaxpr takes its ``consts`` first, then operands of the structure ``in_tree``.
    """

    def __init__(self, jaxpr: Jaxpr, consts: Sequence[Any], in_tree: PyTreeDef):
        self.jaxpr = jaxpr
        self.consts = list(consts)
        self.in_tree = in_tree
        # Whether a rule got arrays of one call.
        self.is_spent = False

    @functools.cached_property
    def _made_by(self) -> dict[Var, int]:
        """The index of the equation that makes each variable; few programs need it."""
        return {var: i for i, eqn in enumerate(self.jaxpr.eqns) for var in eqn.outvars}

    def is_of_a_trace(self) -> bool:
        """Whether a rule closes over arrays of the trace that runs now, which may be other ones then."""
        rules = map(_compat.derivative_of, _rules_of(self.jaxpr))
        return any(map(_compat.is_of_running_trace, _compat.tracers_in(*rules)))

    def has(self, var: Hashable) -> bool:
        return var in self._made_by or var in self.jaxpr.invars

    def value_of(
        self, var: Var, leaves: Sequence[Any], settings: Settings, site: Site
    ) -> ArrayOrValue:
        """The array or value of a variable when the program runs on ``leaves``."""
        self.is_spent = True
        eqns = self.jaxpr.eqns
        needed, steps = [var], set()
        while needed:
            step = self._made_by.get(needed.pop())
            if step is not None and step not in steps:
                steps.add(step)
                needed += [atom for atom in eqns[step].invars if isinstance(atom, Var)]
        kept = [eqns[step] for step in sorted(steps)]
        for eqn in kept:
            if eqn.effects:
                raise jax.errors.UnexpectedTracerError(
                    f"A derivative rule closes over a result of {eqn.primitive.name!r}, which has "
                    "an effect and can't run again for the rule. Pass the result to the "
                    "function with the rule as an argument."
                )
        staged = self.jaxpr
        jaxpr = _compat.new_jaxpr(
            staged.invars, [var], kept, staged.debug_info, staged.is_high
        )
        operands = [*self.consts, *tree_unflatten(self.in_tree, leaves)]
        return run_on_values(settings, jaxpr, operands, site)[0]


class _Frame(NamedTuple):
    """A program that runs now, its leaves, its trace, and the arrays that rules asked for."""

    staging: Staging
    leaves: Sequence[Any]
    trace: _compat.Trace
    found: dict[Var, Any]


class _Running(threading.local):
    """The programs that run now; the innermost is last."""

    def __init__(self) -> None:
        self.frames: list[_Frame] = []


_running = _Running()


@contextlib.contextmanager
def run_of(staging: Staging, leaves: Sequence[Any]) -> Iterator[None]:
    """Let rules that JAX calls ask for the arrays of a program while it runs."""
    _running.frames.append(_Frame(staging, leaves, _compat.current_trace(), {}))
    try:
        yield
    finally:
        _running.frames.pop()


# The primitives that run jaxprs of a user as they are.
WITH_BODIES = frozenset({"cond", "jit", "remat2", "scan", "while"})

_answers = WeakCaches(1)


def bodies_close_over(eqn: JaxprEqn) -> bool:
    """Whether a derivative rule of an equation in a body holds arrays of a trace."""
    return eqn.primitive.name in WITH_BODIES and any(
        map(_closes_over, _compat.bodies_in_params(eqn.params))
    )


def _closes_over(body: AnyJaxpr) -> bool:
    cache = _answers.of(body)
    answer = cache.get("closes over")
    if answer is None:
        answer = any(_has_such_a_rule(eqn) or bodies_close_over(eqn) for eqn in body.eqns)
        cache.put("closes over", answer)
    return answer


def _has_such_a_rule(eqn: JaxprEqn) -> bool:
    return any(map(_compat.closes_over_tracers, _own_rules(eqn)))


def _own_rules(eqn: JaxprEqn) -> list[Any]:
    if eqn.primitive.name not in _compat.OWN_RULES:
        return []
    names = (_compat.OWN_RULES[eqn.primitive.name], "bwd")
    return [eqn.params[name] for name in names if name in eqn.params]


def _rules_of(jaxpr: AnyJaxpr) -> Iterator[Any]:
    """The derivative rules of equations, also of those in bodies with rules that close over arrays."""
    for eqn in jaxpr.eqns:
        yield from _own_rules(eqn)
        if bodies_close_over(eqn):
            for body in _compat.bodies_in_params(eqn.params):
                yield from _rules_of(body)


def run_rule(
    settings: Settings,
    site: Site,
    jaxpr: Jaxpr,
    consts: Sequence[Any],
    operands: Sequence[Any],
    leaving: Adapter,
) -> list[Any]:
    """Run a rule on values, with those of this call in place of the tracers that it closes over."""
    inputs = [*arrays_of_call(consts, settings, site), *operands]
    jaxpr = _compat.constants_first(jaxpr)
    differentiated = functools.partial(with_arrays_of_call, settings, site.builder)
    return run_on_values(settings, jaxpr, inputs, site, leaving, differentiated)


def with_arrays_of_call(settings: Settings, builder: Rewriter, eqn: JaxprEqn) -> JaxprEqn:
    """The equation. If it has a derivative rule, the rule gets the arrays of this call.

    This is for an equation on arrays, which stays as it is. Others run their rules on values. The
    rules may be those of equations in a body.
    """
    if eqn.primitive.name not in _compat.OWN_RULES:
        if not bodies_close_over(eqn):
            return eqn
        change = functools.partial(with_arrays_of_call, settings, builder)
        return _compat.with_equations(eqn, change)
    site = Site(builder, eqn, eqn.outvars)

    def of_call(jaxpr: Jaxpr, consts: Sequence[Any]) -> tuple[Jaxpr, Sequence[Any]]:
        resolved = arrays_of_call(consts, settings, site)
        if not any(map(operator.is_not, resolved, consts)):
            return jaxpr, consts

        def rule(*operands: jax.Array) -> list[Any]:
            return run_rule(settings, site, jaxpr, resolved, operands, _dense)

        traced, arrays = _compat.trace_rule(rule, jaxpr, len(consts))
        # The rule may call the function itself, which second derivatives differentiate.
        eqns = [with_arrays_of_call(settings, builder, eqn) for eqn in traced.eqns]
        return traced.replace(eqns=eqns), arrays

    return _compat.with_own_rule(eqn, of_call)


def _dense(site: Site, results: Sequence[Any]) -> list[Any]:
    """What a rule returns for arrays is dense, whatever the policy."""
    return [site.make_denser_until(x) if is_value(x) else x for x in results]


def arrays_of_call(consts: Sequence[Any], settings: Settings, site: Site) -> list[Any]:
    """The constants of a rule, with arrays and values of this call for tracers of ended stagings."""
    return [_of_call(const, settings, site) for const in consts]


def _of_call(const: object, settings: Settings, site: Site) -> object:
    var = _compat.variable_of(const)
    if var is not None:
        for frame in reversed(_running.frames):
            if frame.staging.has(var):
                return _found(frame, var, settings, site)
    return const


def _found(frame: _Frame, var: Var, settings: Settings, site: Site) -> ArrayOrValue:
    """The array or value of a variable of a program that runs now."""
    if var not in frame.found:
        # As where the function makes the array: a mask has no tangent there.
        with _compat.in_trace(frame.trace):
            found = frame.staging.value_of(var, frame.leaves, settings, site)
        frame.found[var] = found
    return frame.found[var]

"""`Cheapest`: the policy that makes values dense where that takes less time.

While a program is rewritten, each jaxpr that values reach is rewritten twice: for a trial, which is
dropped, with every equation left implicit that can be; and then as `plan` decides from the costs in
the trial. The second time finds the traces of rules and the bodies of equations in the caches. The
program that comes out holds no trace of the choice, and is kept as any other is.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, NamedTuple

import jax.extend.core as jex_core
from jax.tree_util import tree_flatten, tree_leaves

from .. import _compat
from .._compat import Jaxpr, JaxprEqn, Literal, Primitive, Var
from .._core.avals import aval_of, avals_of, is_adopted, is_annotation, values_inside
from .._core.bodies import facts_of
from .._core.builder import Rewritten
from .._core.caches import WeakCaches
from .._core.dead_code import live_equations
from .._core.dense import Reason, policy_on
from .._core.errors import MaterialisationError
from .._core.rewrite import Rewriter, Ways, handlers
from .._core.site import Site, is_never
from .._core.traces import Rewriting
from .._core.value import Operand, Results, Value, is_value
from .._insight import costs
from .._insight.report import Choice
from . import model
from .derivative import emit_dense
from .plan import Making, Plan, Use, plan


CHEAPER = Reason(
    "By the model of costs it is cheaper if {primitive!r} on {cls} is dense",
    "Nothing is to be repaired: another policy than 'cheapest' leaves it implicit",
)


@dataclasses.dataclass(frozen=True)
class Cheapest:
    """A policy for ``materialise``: values become dense where that takes less time.

    For each equation that a value meets, the costs of its rewritten form and of the dense one
    are estimated from shapes alone, when the program is rewritten. Values become dense, once each,
    where that makes the whole program cheaper. The rest stays implicit, and so do values of types
    that are never dense, or that carry something besides numbers, such as units or names.
    Results are the same up to rounding, but for one thing: a result may be an array where
    another policy gives a value. `explain` shows the costs and the choices.

    ``materialise="cheapest"`` is this policy without a limit. Nothing warns where no rule applies,
    unless the type has a policy of its own.

    Attributes
    ----------
    limit
        Bytes that the arrays may take which are dense by this choice, where most of them are
        needed at once. Arrays that other policies make dense, too, do not count, nor what a
        derivative keeps that JAX takes of the program.

    Examples
    --------
    Many rows are worth a merged weight, one row is not:

    >>> import jax.numpy as jnp, jaxrewrite
    >>> from jaxrewrite.values import Lora
    >>> w = Lora(jnp.ones((64, 64)), jnp.ones((64, 32)), jnp.ones((32, 64)))
    >>> def decisions(x, policy):
    ...     report = jaxrewrite.explain(jnp.matmul, materialise=policy)(x, w)
    ...     return [step.decision for step in report.tree]
    >>> decisions(jnp.ones((1, 64)), "cheapest"), decisions(jnp.ones((4096, 64)), "cheapest")
    (['rule'], ['dense'])
    >>> decisions(jnp.ones((4096, 64)), jaxrewrite.Cheapest(limit=1000))
    ['rule']
    """

    limit: float = math.inf

    def __post_init__(self) -> None:
        if not isinstance(self.limit, numbers.Real) or not self.limit >= 0:
            raise ValueError(f"limit is a number of bytes; got {self.limit!r}.")

    def rewriter(self, rewriting: Rewriting) -> Rewriter:
        """An empty builder whose `Rewriter.run` plans first."""
        return ChoosingRewriter(rewriting, self.limit)


# The plans of a jaxpr, for each structure of operands.
_plans = WeakCaches(64)


class ChoosingRewriter(Rewriter):
    """A builder that plans each jaxpr before it adds its equations."""

    def __init__(self, rewriting: Rewriting, limit: float):
        super().__init__(rewriting)
        self.limit = limit
        # The choices for the jaxpr at hand.
        self.choices: Mapping[int, Choice] = {}
        # What the choices so far, and those in bodies, keep dense at once.
        self.peak = 0.0

    def run(
        self,
        jaxpr: Jaxpr,
        operands: Iterable[Any],
        site: Site | None = None,
        targets: Mapping[Var, Var] | None = None,
    ) -> list[Any]:
        operands = list(operands)
        before = self.choices
        planned = self._plan(jaxpr, operands, site)
        self.choices = planned.choices
        self.peak = max(self.peak, planned.peak)
        try:
            return super().run(jaxpr, operands, site, targets)
        finally:
            self.choices = before

    def apply(
        self, site: Site, operands: Sequence[Operand], ways: Ways | None = None
    ) -> Sequence[Any]:
        choice = self.choices.get(id(site.eqn))
        if choice is None:
            return super().apply(site, operands, ways)
        results = super().apply(site, operands, _DENSE if choice.is_dense else ways)
        if self.recorder is not None:
            self.recorder.lists[-1][-1].choice = choice
        return results

    def note(self, body: Rewritten) -> None:
        # Also one that a loop drops: what it made dense may be carried as an array after that.
        self.peak = max(self.peak, body.noted)

    def finish(
        self,
        invars: Sequence[Var],
        outvars: Sequence[Any],
        out_tree: Any,
        debug_info: _compat.DebugInfo,
    ) -> Rewritten:
        peak = self.peak
        return super().finish(invars, outvars, out_tree, debug_info)._replace(noted=peak)

    def _plan(self, jaxpr: Jaxpr, operands: Sequence[Any], site: Site | None) -> Plan:
        if not any(is_value(x) and self.may_choose(x) for x in operands):
            return _NO_PLAN
        trial = Trial(self)
        # What is dense already costs nothing here, and only here.
        is_shared = any(trial.is_dense(x) for x in operands if is_value(x))
        leaves, in_tree = tree_flatten(operands)
        rewriting = trial.rewriting
        state = rewriting.settings.key(), bool(rewriting.passes), _compat.trace_context()
        known = facts_of(self, jaxpr, operands)
        key = (in_tree, *avals_of(leaves), *known, site is None, *state)
        cache = None if is_shared else _plans.of(jaxpr)
        try:
            kept: Plan | None = None if cache is None else cache.get(key)
        except TypeError:  # The metadata is not hashable.
            cache = kept = None
        if kept is not None:
            return kept
        planned = trial.plan(jaxpr, operands, site)
        if cache is not None:
            cache.put(key, planned)
        return planned

    def may_choose(self, value: Value) -> bool:
        """Whether a value is the same array when it is dense, as far as its type tells."""
        policy = self.rewriting.settings.policy
        layers = (value, *values_inside(value))
        is_silent = all(policy_on(type(x), policy) == "allow" for x in layers)
        return is_silent and not any(map(is_annotation, layers)) and not is_adopted(value)

    def is_dense(self, value: Value) -> bool:
        """Whether a value has become dense already."""
        return (id(value), is_never) in self.dense


_NO_PLAN = Plan({}, 0.0)


class _Met(NamedTuple):
    """An equation that met values in a trial, and the place of the equations that it added."""

    site: Site
    operands: Sequence[Operand]
    results: Sequence[Any]
    added: slice
    made_dense: Sequence[Value]
    peak: float


class Trial(ChoosingRewriter):
    """A builder for the trial of one jaxpr, which notes what becomes of its equations."""

    def __init__(self, builder: ChoosingRewriter):
        super().__init__(builder.rewriting.unrecorded(), builder.limit)
        # Analyses look at what was added before, and what is known of the operands.
        self.eqns, self.facts = list(builder.eqns), builder.facts
        self.dense = dict(builder.dense)
        self._met: list[_Met] = []
        self._is_inside = False

    def plan(self, jaxpr: Jaxpr, operands: Sequence[Any], site: Site | None) -> Plan:
        """Rewrite the jaxpr, and choose by what that costs."""
        before = {key for key, _ in self.dense}
        start = len(self.eqns)
        if site is None:
            for hook in self.hooks:
                hook.begin(jaxpr)
        results = Rewriter.run(self, jaxpr, operands, site)
        uses = list(self._uses(start, results))
        making: dict[int, Making] = {}
        for use, met in zip(uses, self._met, strict=True):
            for value in (*use.values, *use.made):
                if id(value) not in making:
                    making[id(value)] = self._making(value, met.site, id(value) in before)
            use.implicit -= sum(making[id(v)].seconds for v in met.made_dense)
            use.implicit = max(use.implicit, 0.0)
        return plan(uses, making, self.limit)

    def apply(
        self, site: Site, operands: Sequence[Operand], ways: Ways | None = None
    ) -> Sequence[Any]:
        if self._is_inside:
            return super().apply(site, operands, ways)
        start, self.peak, self._is_inside = len(self.eqns), 0.0, True
        values = [x for x in operands if is_value(x) and not self.is_dense(x)]
        try:
            results = Rewriter.apply(self, site, operands, ways)
        finally:
            self._is_inside = False
        added = slice(start, len(self.eqns))
        made_dense = list(filter(self.is_dense, values))
        self._met.append(_Met(site, operands, results, added, made_dense, self.peak))
        return results

    def _uses(self, start: int, results: Sequence[Any]) -> Iterator[Use]:
        outvars = {x for x in tree_leaves(results) if type(x) is Var}
        live = {id(eqn) for eqn in live_equations(self.eqns[start:], [*outvars])}
        adders = [-1] * len(self.eqns)
        for i, met in enumerate(self._met):
            adders[met.added] = [i] * len(adders[met.added])
        makers: dict[Any, int] = {
            var: i for eqn, i in zip(self.eqns, adders, strict=True) for var in eqn.outvars
        }
        # What an equation of the jaxpr hands on to others.
        needed = outvars | {
            atom
            for eqn, i in zip(self.eqns, adders, strict=True)
            if id(eqn) in live
            for atom in eqn.invars
            if type(atom) is not Literal and makers.get(atom) != i
        }
        for met in self._met:
            eqn, values = met.site.eqn, [x for x in met.operands if is_value(x)]
            known = {*map(id, values)}
            made = [x for x in met.results if is_value(x) and id(x) not in known]
            added = [x for x in self.eqns[met.added] if id(x) in live]
            may_be_dense = bool(values) and all(map(self.may_choose, (*values, *made)))
            dense = model.seconds([eqn], {*eqn.outvars}) if may_be_dense else math.inf
            yield Use(eqn, values, made, model.seconds(added, needed), dense, met.peak)

    def _making(self, value: Value, site: Site, is_dense: bool) -> Making:
        size = costs.bytes_of(aval_of(value))
        if is_dense:
            return Making(0.0, 0.0, is_sunk=True)
        if not self.may_choose(value):
            return Making(math.inf, size)
        builder = ChoosingRewriter(self.rewriting, self.limit)
        try:
            dense = site._replace(builder=builder).materialise(value, CHEAPER)
        except MaterialisationError:  # It is never dense.
            return Making(math.inf, size)
        seconds = model.seconds(builder.eqns, {dense} if type(dense) is Var else ())
        return Making(seconds, size, self.is_dense(value))


def _bodies(eqn: JaxprEqn) -> Iterable[Any]:
    return jex_core.jaxprs_in_params(eqn.params)


def _by_cheaper_dense_operands(site: Site, operands: Sequence[Operand]) -> Results:
    """Apply the primitive to dense operands, as rules and passes for arrays have it."""
    dense = [
        site.vary(site.materialise(x, CHEAPER), atom.aval)
        for x, atom in zip(operands, site.eqn.invars, strict=True)
    ]
    if _is_open(site):
        return Rewriter.apply(site.builder, site, dense)
    return emit_dense(site, operands, dense)


def _is_open(site: Site) -> bool:
    """Whether rules for dense operands, or passes, may see inside of an equation."""
    rewriting = site.builder.rewriting
    for_arrays = rewriting.dense_primitives
    if site.is_in_rule or not (for_arrays or rewriting.passes):
        return False
    if site.primitive.name not in handlers:
        return site.primitive in for_arrays
    return bool(rewriting.passes) or _may_have(site.eqn, for_arrays)


# Their rules, or what they expand to, are functions: no jaxpr tells what these will do.
_WITH_FUNCTIONS = frozenset(
    {"call_hi_primitive", "custom_jvp_call", "custom_vjp_call", "custom_vmap_call"}
)


def _may_have(eqn: JaxprEqn, primitives: Set[Primitive]) -> bool:
    """Whether an equation, one in its bodies, or one of its rules may be of some primitives."""
    return (
        eqn.primitive in primitives
        or eqn.primitive.name in _WITH_FUNCTIONS
        or any(_may_have(inner, primitives) for body in _bodies(eqn) for inner in body.eqns)
    )


_DENSE: Ways = (("dense", _by_cheaper_dense_operands),)

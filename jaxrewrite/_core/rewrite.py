"""The rewriting: a jaxpr on arrays becomes a jaxpr on the leaves of values.

`Rewriter.run` walks the equations of a jaxpr and adds their rewritten forms to another jaxpr.
An *operand* is an atom of the new jaxpr (a variable or a literal), or a value with such
atoms as leaves. Values exist while a program is rewritten; the new jaxpr does not contain
them.

An equation without a value among its operands is added unchanged, as the same object. So
code that values do not reach costs next to nothing. For any other equation `Rewriter.apply`
tries in order: the rules; for a higher-order primitive its handler, which
rewrites the jaxprs inside; the ``default`` of the operands' type; for primitives that only
move arrays, a move of their leaves; at last dense operands.

The trace of a rule (`traces`) is a jaxpr, too, and the same walk adds it. So if a field of
a value is itself a value, an equation of the rule on that field has a value as its operand,
and is dispatched like any other.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any, TypeAlias

from jax.ref import AbstractRef

from .. import _compat
from .._compat import DropVar, Jaxpr, JaxprEqn, Literal, Primitive, SourceInfo, Var
from .avals import avals_of, is_annotation, values_inside
from .builder import Builder, Rewritten
from .dense import HIDING
from .errors import MaterialisationError, add_note
from .hooks import Analysis, OperandsHook, operands_hooks, passes
from .record import Record
from .rules import is_of_a_library, refuse_namesakes
from .settings import Settings
from .site import Site, describe, is_hiding
from .traces import Flat, Rewriting, checked_results
from .value import Operand, Results, Value, is_value


# Adds the rewritten form of an equation on its operands. Returns its results, or NotImplemented.
Handler = Callable[[Site, list[Operand]], Results]

# The handlers of the higher-order primitives, by name: JAX exports only some as objects.
handlers: dict[str, Handler] = {}
# By the same names, whether a handler has to see an equation on arrays alone.
sees_arrays: dict[str, Callable[[JaxprEqn], bool]] = {}

# The handlers that are asked before the rules for a higher-order primitive, as for functions.
before_rules: list[Handler] = []

# Handlers of the primitives that return their operands or move them as a whole, so that
# values need not be dense. `_handlers.leafwise` has the list.
leafwise_handlers: dict[str, Handler] = {}

# The primitives that return their operands.
IDENTITIES = ("copy", "copy_p", "name", "optimization_barrier", "pvary", "stop_gradient")


# Names of ways to rewrite an equation, and their functions.
Ways: TypeAlias = Sequence[tuple[str, Handler | None]]


def new_rewriter(rewriting: Rewriting) -> Rewriter:
    """An empty builder, as the policy of the rewriting makes it."""
    policy = rewriting.settings.policy
    return Rewriter(rewriting) if isinstance(policy, str) else policy.rewriter(rewriting)


class Rewriter(Builder):
    """A jaxpr under construction, to which the equations of others are added."""

    def __init__(self, rewriting: Rewriting):
        super().__init__()
        self.rewriting = rewriting
        self.recorder = rewriting.settings.recorder
        # Values that have become dense, by their identity.
        self.dense: dict[Any, tuple[Value, Any]] = {}
        self._analyses: dict[type, Any] = {Settings: rewriting.settings}  # for hooks
        # What is known of the operands, for each kind of analysis.
        self.facts: dict[type[Analysis], dict[Var, Any]] = {}
        self.hooks = [hook(self.analysis) for hook in operands_hooks]
        self._hooks_of: dict[str, Sequence[OperandsHook]] = {}

    def analysis(self, kind: type[Analysis]) -> Any:
        """An analysis of the equations so far; made when it is first asked for."""
        analysis = self._analyses.get(kind)
        if analysis is None:
            analysis = self._analyses[kind] = kind(self.eqns, self.facts.get(kind, {}))
        return analysis

    def hooks_of(self, primitive: Primitive) -> Sequence[OperandsHook]:
        """The hooks that are shown the equations of a primitive."""
        hooks = self._hooks_of.get(primitive.name)
        if hooks is None:
            hooks = [hook for hook in self.hooks if primitive.name in hook.primitives]
            self._hooks_of[primitive.name] = hooks
        return hooks

    def scratch(self) -> Rewriter:
        """A builder for equations that only answer a question, and are in no report."""
        return new_rewriter(self.rewriting.unrecorded())

    @property
    def record(self) -> Record | None:
        """The record of the equation at hand, if the rewriting is explained."""
        return None if self.recorder is None else self.recorder.record

    def note(self, body: Rewritten) -> None:
        """Take note of the rewritten body of an equation."""

    # --- the walk ---------------------------------------------------------------

    def after_passes(self, jaxpr: Jaxpr, operands: Sequence[Operand]) -> Jaxpr:
        """A program, or the body of an equation, as the passes change it."""
        for pass_ in self.rewriting.passes:
            after = self.rewriting.after(pass_, jaxpr, operands)
            if after is not jaxpr and self.recorder is not None:
                self.recorder.passes.append((pass_, jaxpr, after))
            # Where a pass has primitives of its own, their handlers tell of a change.
            self.changed |= after is not jaxpr and not pass_.primitives
            jaxpr = after
        return jaxpr

    def run(
        self,
        jaxpr: Jaxpr,
        operands: Iterable[Any],
        site: Site | None = None,
        targets: Mapping[Var, Var] | None = None,
    ) -> list[Any]:
        """Add the equations of ``jaxpr``, applied to ``operands``.

        Parameters
        ----------
        jaxpr
            A jaxpr without constants.
        operands
            An atom or a value for each of its ``invars``.
        site
            For the jaxpr of a rule, the equation that the rule is applied to. The new
            equations get its source info, and new variables, because the same jaxpr may
            be added again.
        targets
            The variables to use then, for some of the jaxpr's own.

        Returns
        -------
        list
            An atom or a value for each of the ``outvars``.
        """
        env = {
            var: operand
            for var, operand in zip(jaxpr.invars, operands, strict=True)
            if operand is not var
        }
        targets = targets or {}
        self.is_high |= jaxpr.is_high
        # The equations of a rule are final, so that a rule for dense tanh may use tanh.
        open_primitives = self._open_primitives(jaxpr) if site is None else frozenset()
        origin = None if site is None else site.source_info
        if origin is not None and not any(map(is_value, env.values())):
            self._emit_on_arrays(jaxpr, env, origin, targets)
            return [_read(env, atom) for atom in jaxpr.outvars]
        for eqn in jaxpr.eqns:
            is_open = eqn.primitive in open_primitives
            if not (env or is_open) and site is None:
                self.eqns.append(eqn)
                continue
            has_value = renamed = False
            for atom in eqn.invars:
                if type(atom) is not Literal and atom in env:
                    renamed = True
                    has_value |= is_value(env[atom])
            if not (renamed or is_open) and site is None:
                self.eqns.append(eqn)
                continue
            invals = [_read(env, atom) for atom in eqn.invars] if renamed else eqn.invars
            if is_open and not has_value and self._is_known_unchanged(eqn, invals):
                is_open = False
            outvars = eqn.outvars
            if site is not None:
                outvars = [targets.get(var) or _fresh(var) for var in outvars]
            if has_value or is_open:
                with _compat.bits_of_equation(eqn):
                    results = self.apply(Site(self, eqn, outvars, origin), invals)
            elif not renamed and site is None:
                self.eqns.append(eqn)
                continue
            else:
                info = _compat.source_within(origin, eqn.source_info)
                self.emit(eqn, invals, outvars, info)
                results = outvars
            for var, result in zip(eqn.outvars, results, strict=True):
                if result is not var:
                    env[var] = result
        return [_read(env, atom) for atom in jaxpr.outvars]

    def _emit_on_arrays(
        self,
        jaxpr: Jaxpr,
        env: dict[Any, Any],
        origin: SourceInfo,
        targets: Mapping[Var, Var],
    ) -> None:
        """Add the equations of a rule whose operands are arrays: only names change."""
        infos: dict[Any, SourceInfo] = {}
        for eqn in jaxpr.eqns:
            stack = eqn.source_info.name_stack
            info = infos.get(stack)
            if info is None:
                info = infos[stack] = _compat.source_within(origin, eqn.source_info)
            operands = [x if type(x) is Literal else env.get(x, x) for x in eqn.invars]
            outvars = []
            for var in eqn.outvars:
                env[var] = targets.get(var) or _fresh(var)
                outvars.append(env[var])
            if eqn.effects:
                self.emit(eqn, operands, outvars, info)
                continue
            new = eqn.replace(invars=operands, outvars=outvars, source_info=info)
            self.eqns.append(new)

    def _open_primitives(self, jaxpr: Jaxpr) -> Set[Primitive]:
        """The primitives of a jaxpr that are rewritten also if no operand is a value."""
        primitives = {eqn.primitive for eqn in jaxpr.eqns}
        refuse_namesakes(primitives)
        dense = self.rewriting.dense_primitives
        if not dense and not self.rewriting.passes:
            seen = (eqn for eqn in jaxpr.eqns if eqn.primitive.name in sees_arrays)
            return {eqn.primitive for eqn in seen if sees_arrays[eqn.primitive.name](eqn)}
        return {p for p in primitives if p in dense or p.name in handlers}

    def _is_known_unchanged(self, eqn: JaxprEqn, operands: Sequence[Operand]) -> bool:
        """Whether a call on arrays is known to stay as it is."""
        rewriting, body = self.rewriting, eqn.params.get("jaxpr")
        return (
            body is not None
            and bool(rewriting.known_unchanged)
            and self.recorder is None
            and eqn.primitive not in rewriting.dense_primitives
            and not any(type(x) is Literal for x in operands)
            and (eqn.primitive, body, *avals_of(operands)) in rewriting.known_unchanged
        )

    def apply(
        self, site: Site, operands: Sequence[Operand], ways: Ways | None = None
    ) -> Sequence[Any]:
        """Add the rewritten form of an equation on these operands, the first that exists.

        ``ways`` are the ways that are tried, by default all.
        """
        record: Record | None = None
        results: Results = NotImplemented
        try:
            hooks = self.hooks_of(site.primitive)
            changed_by: list[type] = []
            for hook in hooks:
                eqn, better = hook.operands(site.eqn, operands)
                if eqn is site.eqn and better is operands:
                    continue
                if self.recorder is not None and any(
                    map(operator.is_not, better, operands)
                ):
                    changed_by.append(type(hook))
                site, operands = site._replace(eqn=eqn), better
            if self.recorder is not None:
                record, start = self.recorder.begin(site, operands), len(self.eqns)
                record.changed_by = changed_by
            operands, flat = _seen(site, operands)
            for way, by in ways or (
                ("rule", functools.partial(_by_rule, flat)),
                ("handler", handlers.get(site.primitive.name)),
                ("default", _by_default),
                ("identity", _leafwise),
                ("dense", _by_dense_operands),
            ):
                results = NotImplemented if by is None else by(site, list(operands))
                if results is not NotImplemented:
                    if record is not None:
                        record.way = way
                    break
            for hook in hooks:
                if type(hook).results is not OperandsHook.results:
                    leafwise = lambda value: site.map_leaves([value])[0]
                    hook.results(site.eqn, operands, results, leafwise)
            if record is not None:
                record.operands, record.results = operands, results
                record.added = self.eqns[start:]
        except Exception as error:
            _note_declined(error, site, operands)
            add_note(error, describe(site, operands))
            raise
        finally:
            if record is not None and self.recorder is not None:
                self.recorder.end()
        return results


# --- the ways to rewrite an equation -------------------------------------------------


def _note_declined(error: Exception, site: Site, operands: Sequence[Operand]) -> None:
    """Tell of the user's rules that declined where the innermost equation has no rule."""
    if not isinstance(error, MaterialisationError) or hasattr(error, "__notes__"):
        return
    choice = site.settings.rules.choice(site.primitive, operands)
    for rule in choice:
        choice.results[rule] = NotImplemented
    for rule, why in choice.declined:
        if not is_of_a_library(rule):
            add_note(error, f"jaxrewrite: the rule {rule} declined: {why}")


def _seen(site: Site, operands: Sequence[Operand]) -> tuple[Sequence[Operand], Flat]:
    """The operands as rules see them: dense up to an annotation that they hide."""
    flat = Flat.of(operands, site.context)
    inside = [y for x in flat.leaves if is_value(x) for y in (x, *values_inside(x))]
    if not any(map(is_annotation, (*operands, *inside))):
        return operands, flat
    name = site.primitive.name
    moves_each = site.primitive.multiple_results or len(operands) == 1
    if (name in handlers and name != "jit") or (moves_each and name in leafwise_handlers):
        return operands, flat
    annotations = [x for x in operands if is_value(x) and is_annotation(x)]
    kinds = () if name == "jit" else tuple(map(type, annotations))
    dense = lambda x: site.materialise(x, HIDING, is_annotation)
    seen = [dense(x) if is_hiding(x, kinds) else x for x in operands]
    return seen, Flat.of(seen, site.context)


def _by_rule(flat: Flat, site: Site, operands: Sequence[Operand]) -> Results:
    """Apply the first rule that does not decline."""
    if site.primitive.name in handlers:
        if any(site.primitive in pass_.primitives for pass_ in passes):
            return NotImplemented  # Their handlers ask the rules that are to be asked.
        for handler in before_rules:
            if (results := handler(site, list(operands))) is not NotImplemented:
                return results
    result = site.builder.rewriting.by_rule(site, operands, flat)
    if site.builder.record is not None:
        site.builder.record.rule = result.rule
        site.builder.record.declined += result.declined
    return site.inline_trace(result, flat, operands)


def _by_default(site: Site, operands: Sequence[Operand]) -> Results:
    """Apply the ``default`` of the outermost type.

    A new reference holds an array in any case, and a trace of a default can't return one.
    """
    if any(isinstance(var.aval, AbstractRef) for var in site.outvars):
        return NotImplemented
    owner = owner_of_default(site.primitive, [type(x) for x in operands if is_value(x)])
    if owner is None or any(_is_around(x, owner) for x in operands):
        return NotImplemented
    if site.builder.record is not None:
        site.builder.record.owner = owner
    default, primitive, params = owner.default, site.primitive, site.params

    def apply_default(*args: Any) -> Any:
        return _compat.call_rule(default, primitive, args, dict(params))

    check = functools.partial(checked_results, site, f"{owner.__name__}.default")
    key = (default, primitive, *_compat.key_of(params))
    return site.call(apply_default, key, operands, check)


def _is_around(x: Any, owner: type[Value]) -> bool:
    """Whether an annotation without a default, such as names, is around one and leaves first."""
    is_outer = is_annotation(x) and type(x).outer > owner.outer
    return is_outer and any(map(is_annotation, values_inside(x)))


def _leafwise(site: Site, operands: Sequence[Operand]) -> Results:
    """Apply a primitive that only moves arrays to each leaf."""
    handler = leafwise_handlers.get(site.primitive.name)
    if handler is None or not any(map(is_value, operands)):
        return NotImplemented
    site.builder.changed = True
    return handler(site, list(operands))


def _by_dense_operands(site: Site, operands: Sequence[Operand]) -> Results:
    """Apply the same primitive to dense operands; a rule for these may exist.

    Annotations stay until nothing else can become dense, and then the outermost ones leave
    what is inside of them, so that its rules answer.
    """
    if any(map(is_value, operands)):
        denser = [site.materialise(x, is_enough=is_annotation) for x in operands]
        if all(x is y for x, y in zip(denser, operands, strict=True)):
            denser = _without_outermost(site, operands)
        if any(map(is_value, denser)):
            return site.builder.apply(site, denser)
        pairs = zip(denser, site.eqn.invars, strict=True)
        operands = [site.vary(x, atom.aval) for x, atom in pairs]
        rules = site.builder.rewriting.dense_primitives
        if site.primitive in rules and not site.is_in_rule:
            by_rule = functools.partial(_by_rule, Flat.of(operands, site.context))
            for by in (by_rule, handlers.get(site.primitive.name)):
                results = NotImplemented if by is None else by(site, operands)
                if results is not NotImplemented:
                    return results
    site.emit(operands, site.outvars)
    return site.outvars


def _without_outermost(site: Site, operands: Sequence[Operand]) -> list[Any]:
    """The operands without a layer of the outermost annotations."""
    most = max(type(x).outer for x in operands if is_value(x))
    inside = lambda x: site.materialise(x, is_enough=functools.partial(operator.is_not, x))
    return [inside(x) if is_value(x) and type(x).outer == most else x for x in operands]


def _read(env: Mapping[Any, Any], atom: Operand) -> Any:
    return atom if type(atom) is Literal else env.get(atom, atom)


def _fresh(var: Var) -> Var:
    return DropVar(var.aval) if type(var) is DropVar else Var(var.aval)


def owner_of_default(
    primitive: Primitive, types: Sequence[type[Value]]
) -> type[Value] | None:
    """The outermost of some types that has a default, or ``None``."""
    types = [cls for cls in types if cls.default is not Value.default]
    outermost = max((cls.outer for cls in types), default=0)
    owners = {cls.default: cls for cls in types if cls.outer == outermost}
    if len(owners) > 1:
        names = " and ".join(owner.__name__ for owner in owners.values())
        raise TypeError(
            f"Primitive {primitive.name!r} has no rule for these operands, and {names} each have a default "
            "of their own. Register a rule for the pair, or give one of the classes a higher outer = ..."
        )
    return next(iter(owners.values()), None)

"""The rewriting: a jaxpr on arrays becomes a jaxpr on the leaves of values.

`Scope.run` walks the equations of a jaxpr and adds their rewritten forms to another jaxpr.
An *operand* is an atom of the new jaxpr (a variable or a literal), or a value with such
atoms as leaves. Values exist while a program is rewritten; the new jaxpr does not contain
them.

An equation without a value among its operands is added unchanged, as the same object. So
code that values do not reach costs next to nothing. For any other equation `Scope.apply`
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
from collections.abc import Callable, Container, Iterable, Mapping, Sequence, Set
from typing import Any

from jax.tree_util import tree_unflatten

from .. import _compat
from .._analyses import fills
from .._compat import DropVar, Jaxpr, JaxprEqn, Literal, Primitive, SourceInfo, Var
from .avals import avals_of, fields, mismatch
from .builder import Applied, Draft
from .dense import NO_RULE, Reason, make_dense, materialised, policy_on
from .errors import MaterialisationWarning, add_note
from .hooks import operands_hooks, primitives_of_passes
from .record import Record
from .site import Site, describe, source_within
from .traces import Answer, Flat, Rewriting, checked_results
from .value import Value, is_value


# Adds the rewritten form of an equation on its operands. Returns the results, or
# `NotImplemented`.
Handler = Callable[["Scope", Site, list[Any]], Any]

# The handlers of the higher-order primitives, by name, because JAX exports only some of
# the primitives as objects.
handlers: dict[str, Handler] = {}

# Handlers of the primitives that return their operands or move them as a whole, so that
# values need not be dense. `_handlers.leafwise` has the list.
keepers: dict[str, Handler] = {}

# The primitives that return their operands.
IDENTITIES = ("copy", "copy_p", "name", "optimization_barrier", "pvary", "stop_gradient")


class Scope(Draft):
    """A jaxpr under construction, to which the equations of others are added."""

    def __init__(self, rewriting: Rewriting):
        super().__init__()
        self.rewriting = rewriting
        self.recorder = rewriting.settings.recorder
        self._dense: dict[int, tuple[Value, Any]] = {}
        self._hooks = [hook() for hook in operands_hooks]
        # Whether the numbers that its equations write have any units.
        self.is_for_any_units = False
        # The equation of each variable, of the first so many equations.
        self._producers: dict[Var, JaxprEqn] = {}
        self._indexed = 0

    def producer(self, atom: Any) -> JaxprEqn | None:
        """The equation of this scope whose result an atom is, or ``None``."""
        for eqn in self.eqns[self._indexed :]:
            self._producers.update(dict.fromkeys(eqn.outvars, eqn))
        self._indexed = len(self.eqns)
        return None if type(atom) is Literal else self._producers.get(atom)

    def scratch(self) -> Scope:
        """A scope for equations that only answer a question, and are in no report."""
        scope = Scope(self.rewriting)
        scope.recorder = None
        return scope

    @property
    def record(self) -> Record | None:
        """The record of the equation at hand, if the rewriting is explained."""
        return None if self.recorder is None else self.recorder.record

    # --- the walk ---------------------------------------------------------------

    def after_passes(self, jaxpr: Jaxpr, operands: Sequence[Any]) -> Jaxpr:
        """A program, or the body of an equation, as the passes change it."""
        for pass_ in self.rewriting.passes:
            made = self.rewriting.after(pass_, jaxpr, operands)
            # Where a pass has primitives of its own, their handlers tell of a change.
            self.changed |= made is not jaxpr and not pass_.primitives
            jaxpr = made
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
        watched = self._watched(jaxpr) if site is None else frozenset()
        origin = None if site is None else site.source_info
        if origin is not None and not any(map(is_value, env.values())):
            self._add_on_arrays(jaxpr, env, origin, targets)
            return [_read(env, atom) for atom in jaxpr.outvars]
        for eqn in jaxpr.eqns:
            is_watched = eqn.primitive in watched
            if not (env or is_watched) and site is None:
                self.eqns.append(eqn)
                continue
            has_value = False
            renamed = False
            for atom in eqn.invars:
                if type(atom) is not Literal and atom in env:
                    renamed = True
                    has_value |= is_value(env[atom])
            if not (renamed or is_watched) and site is None:
                self.eqns.append(eqn)
                continue
            invals = eqn.invars
            if renamed:
                invals = [_read(env, atom) for atom in invals]
            if is_watched and not has_value and self._stays(eqn, invals):
                is_watched = False
            outvars = eqn.outvars
            if site is not None:
                outvars = [targets.get(var) or _fresh(var) for var in outvars]
            if has_value or is_watched:
                results = self.apply(Site(eqn, outvars, origin), invals)
            elif not renamed and site is None:
                self.eqns.append(eqn)
                continue
            else:
                self.rename(eqn, invals, outvars, source_within(origin, eqn.source_info))
                results = outvars
            for var, result in zip(eqn.outvars, results, strict=True):
                if result is not var:
                    env[var] = result
        return [_read(env, atom) for atom in jaxpr.outvars]

    def _add_on_arrays(
        self,
        jaxpr: Jaxpr,
        env: dict[Var, Any],
        origin: SourceInfo,
        targets: Mapping[Var, Var],
    ) -> None:
        """Add the equations of a rule whose operands are arrays: only names change."""
        infos: dict[Any, SourceInfo] = {}
        for eqn in jaxpr.eqns:
            stack = eqn.source_info.name_stack
            info = infos.get(stack)
            if info is None:
                info = infos[stack] = source_within(origin, eqn.source_info)
            operands = [_read(env, atom) for atom in eqn.invars]
            outvars = []
            for var in eqn.outvars:
                env[var] = targets.get(var) or _fresh(var)
                outvars.append(env[var])
            if eqn.effects:
                self.rename(eqn, operands, outvars, info)
                continue
            new = eqn.replace(invars=operands, outvars=outvars, source_info=info)
            self.eqns.append(new)

    def _watched(self, jaxpr: Jaxpr) -> Set[Primitive]:
        """The primitives of a jaxpr that rules for dense operands, or passes, may see inside of."""
        dense = self.rewriting.dense_primitives
        if not dense and not self.rewriting.passes:
            return dense
        primitives = set(map(operator.attrgetter("primitive"), jaxpr.eqns))
        return {p for p in primitives if p in dense or p.name in handlers}

    def _stays(self, eqn: JaxprEqn, operands: Sequence[Any]) -> bool:
        """Whether a call on arrays is known to stay as it is."""
        rewriting, body = self.rewriting, eqn.params.get("jaxpr")
        return (
            body is not None
            and bool(rewriting.unchanged)
            and self.recorder is None
            and eqn.primitive not in rewriting.dense_primitives
            and (eqn.primitive, body, *avals_of(operands)) in rewriting.unchanged
        )

    def apply(self, site: Site, operands: Sequence[Any]) -> Sequence[Any]:
        """Add the rewritten form of an equation on these operands, the first that exists."""
        record: Record | None = None
        results: Any = NotImplemented
        try:
            adopter = adopter_of(operands)
            if adopter is not None:
                operands = self._with_numbers(site.primitive, operands)
                if site.primitive.name in adopter.adopts or site.primitive.name in handlers:
                    operands = self.adopted(adopter, operands, site.eqn)
            if self.recorder is not None:
                record, start = self.recorder.begin(site, operands), len(self.eqns)
            hooks = [hook for hook in self._hooks if site.primitive.name in hook.primitives]
            for hook in hooks:
                eqn, operands = hook.operands(site.eqn, operands)
                site = site._replace(eqn=eqn)
            for answer, by in (
                ("rule", Scope._by_rule),
                ("handler", handlers.get(site.primitive.name)),
                ("default", Scope._by_default),
                ("identity", Scope._by_leaf),
                ("dense", Scope._by_dense_operands),
            ):
                results = NotImplemented if by is None else by(self, site, list(operands))
                if results is not NotImplemented:
                    if record is not None:
                        record.answer, record.results = answer, results
                        record.added = self.eqns[start:]
                    break
            for hook in hooks:
                leafwise = functools.partial(self._leafwise, site)
                hook.results(site.eqn, operands, results, leafwise)
        except Exception as error:
            add_note(error, describe(site, operands))
            raise
        finally:
            if record is not None and self.recorder is not None:
                self.recorder.end()
        return results

    def _by_rule(self, site: Site, operands: Sequence[Any]) -> Any:
        """Apply the first rule that does not decline."""
        if site.primitive in primitives_of_passes:
            return NotImplemented  # Their handlers ask what is to be asked.
        flat = Flat.of(operands, site.context)
        answer = self.rewriting.by_rule(site, operands, flat)
        if self.record is not None:
            self.record.rule = answer.rule
            self.record.declined += answer.declined
        return self.add(answer, flat, site)

    def _by_default(self, site: Site, operands: Sequence[Any]) -> Any:
        """Apply the ``default`` of the outermost type."""
        types = [type(x) for x in operands if is_value(x)]
        owner = owner_of_default(site.primitive, types)
        if owner is None:
            return NotImplemented
        if self.record is not None:
            self.record.owner = owner
        default, primitive, params = owner.default, site.primitive, site.params

        def apply_default(*args: Any) -> Any:
            return default(primitive, args, dict(params))

        check = functools.partial(checked_results, site, f"{owner.__name__}.default")
        key = (default, primitive, *params.items())
        return self.splice(apply_default, key, operands, site, check)

    def _by_leaf(self, site: Site, operands: Sequence[Any]) -> Any:
        """Apply a primitive that only moves arrays to each leaf."""
        keeper = keepers.get(site.primitive.name)
        if keeper is None or not any(map(is_value, operands)):
            return NotImplemented
        self.changed = True
        return keeper(self, site, list(operands))

    def _leafwise(self, site: Site, value: Any) -> Any:
        return self.map_leaves(site, [value])[0]

    def _by_dense_operands(self, site: Site, operands: Sequence[Any]) -> Any:
        """Apply the same primitive to dense operands; a rule for these may exist."""
        if any(map(is_value, operands)):
            dense = self.materialise_operands(site, operands)
            pairs = zip(dense, site.eqn.invars, strict=True)
            operands = [self.vary(x, atom.aval, site) for x, atom in pairs]
            if site.primitive in self.rewriting.dense_primitives and not site.is_in_rule:
                for by in (Scope._by_rule, handlers.get(site.primitive.name)):
                    results = NotImplemented if by is None else by(self, site, operands)
                    if results is not NotImplemented:
                        return results
        self.copy(site, operands, site.outvars)
        return site.outvars

    # --- equations of rules and other functions ---------------------------------

    def splice(
        self,
        fn: Callable[..., Any],
        key: tuple[Any, ...],
        operands: Sequence[Any],
        site: Site,
        check: Callable[[Any], list[Any]],
        whole: Container[int] = (),
    ) -> Any:
        """Add the equations of a function of the operands, one layer deep.

        If a field of an operand is a value, the function sees a tracer of its aval. The
        equations on that tracer are dispatched like any others. ``key`` identifies the
        function. An operand at one of the positions ``whole`` is such a tracer, too, if it
        is a value.
        """
        flat = Flat.of(operands, site.context, whole)
        return self.add(self.rewriting.by_function(fn, key, flat, check), flat, site)

    def add(self, answer: Answer, flat: Flat, site: Site) -> Any:
        """Add the equations of an answer, whose results it returns."""
        traced = answer.traced
        if traced is NotImplemented:
            return NotImplemented
        self.changed = True
        if self.recorder is not None:
            self.recorder.include(answer.inner)
        for notice in traced.notices:
            self.notice(site, notice.category, *notice.args)
        targets = {
            var: site.outvars[i]
            for var, i in traced.dense_results
            if type(site.outvars[i]) is not DropVar
        }
        inputs = [*self.constants(traced.jaxpr, traced.consts), *flat.leaves]
        start = len(self.eqns)
        results = self.run(traced.jaxpr, inputs, site, targets)
        # If a leaf is a value, these equations are not those of the rule's trace.
        added = () if site.is_in_rule else self.eqns[start:]
        if len(added) > 1 and not any(map(is_value, flat.leaves)):
            self.applied.append(Applied(traced.jaxpr, inputs, results, added))
        return tree_unflatten(traced.out_tree, results)

    def add_call(
        self, fn: Callable[..., Any], leaves: Sequence[Any], site: Site
    ) -> list[Any]:
        """Add the equations of a JAX function, from arrays to a list of arrays.

        This serves for primitives with parameters that a public function makes best.
        """
        debug_info = _compat.new_debug_info(site.primitive.name, fn)
        with site.context.manager:
            jaxpr, consts = _compat.trace_to_jaxpr(fn, avals_of(leaves), debug_info)
        return self.run(jaxpr, [*self.constants(jaxpr, consts), *leaves], site)

    def vary(self, atom: Any, like: Any, site: Site) -> Any:
        """Make an array vary over the mesh axes over which ``like`` varies.

        Inside of `jax.shard_map` these axes are part of an array's type. Leaves of two values
        may differ in them although the arrays that the values stand for do not, and a value
        without leaves varies over none.
        """
        axes = _compat.varying_axes(like) - _compat.varying_axes(atom.aval)
        if not axes:
            return atom

        return self.add_call(lambda x: [_compat.vary_over(x, axes)], [atom], site)[0]

    # --- numbers that are the same for any metadata ------------------------------

    def adopted(
        self, adopter: Value, operands: Sequence[Any], eqn: JaxprEqn | None = None
    ) -> list[Any]:
        """The operands, with values for the arrays among them that a value adopts.

        They are the operands of an equation, or else the results of a jaxpr.
        """
        return [
            self._adopt(adopter, x)
            if not is_value(x)
            and (fills.becomes_inexact(eqn, i) if eqn else fills.is_inexact(x))
            and (
                fills.has_no_scale(self.producer, x)
                or (eqn and self.is_for_any_units and fills.is_written(self.producer, x))
            )
            else x
            for i, x in enumerate(operands)
        ]

    def _with_numbers(self, primitive: Primitive, operands: Sequence[Any]) -> list[Any]:
        """The operands, with literals for numbers that the program computes of literals."""
        literals = [
            None if is_value(x) else fills.written(self.producer, x) for x in operands
        ]
        if primitive.name == "pow" and not is_value(operands[1]):
            x, exponent = operands
            # One number may be the exponent of a whole array.
            if avals_of([x])[0].shape == exponent.aval.shape:
                literals[1] = fills.exponent(self.producer, exponent)
        return [
            x if literal is None else literal
            for x, literal in zip(operands, literals, strict=True)
        ]

    def _adopt(self, adopter: Value, atom: Any) -> Any:
        value = adopter.adopt(atom)
        if value is NotImplemented:
            return atom
        what = f"{type(adopter).__name__}.adopt"
        problem = mismatch(value, atom.aval, what, "the array is")
        if problem is not None:
            raise TypeError(problem)
        return value

    # --- becoming dense ---------------------------------------------------------

    def materialise_operands(self, site: Site, operands: Sequence[Any]) -> list[Any]:
        """Make the operands of an equation dense, as the policy allows."""
        return [self.materialise(x, site) if is_value(x) else x for x in operands]

    def materialise(self, value: Value, site: Site, reason: Reason = NO_RULE) -> Any:
        """Add the equations that make a value dense, and return the dense operand.

        Raises `MaterialisationError` if the policy or the type forbids it.
        """
        cls = type(value)
        policy = policy_on(cls, self.rewriting.settings.policy)
        if value.settled() is not value:
            policy = "allow"  # It is an array that another value adopted.
        if policy == "forbid":
            raise reason.refusal(site.primitive, cls)
        if self.recorder is not None and not cls._is_seen_dense:
            self.recorder.became_dense(value, reason)
        entry = self._dense.get(id(value))
        if entry is None:
            entry = self._dense[id(value)] = value, self._made_dense(value, site, reason)
        if policy == "warn":
            about = reason.warning(site.primitive, cls)
            self.notice(site, MaterialisationWarning, *about)
        return entry[1]

    def make_denser(self, value: Value, site: Site, reason: Reason) -> Any:
        """Make a value dense, or the values inside of an annotation, such as units.

        So the annotation stays where only what is inside stands in the way. If it does so
        itself, this is called again.
        """
        parts, treedef = fields(value)
        if type(value).outer <= 0 or not any(map(is_value, parts)):
            return self.materialise(value, site, reason)
        return tree_unflatten(
            treedef,
            [self.make_denser(x, site, reason) if is_value(x) else x for x in parts],
        )

    def _made_dense(
        self,
        value: Value,
        site: Site,
        reason: Reason,
        is_enough: Callable[[Any], bool] = lambda x: False,
    ) -> Any:
        subject = f"{reason.on(site.primitive, type(value))}, which"

        def materialise(value: Value) -> Any:
            return materialised(value, subject)

        def add_layer(value: Value, checked: Callable[[Any], Any]) -> Any:
            key = ("materialise", type(value))
            result = site.giving([Var(aval) for aval in avals_of([value])])
            return self.splice(materialise, key, [value], result, lambda x: [checked(x)])[0]

        return make_dense(value, add_layer, is_enough)

    def make_denser_until(
        self, value: Value, site: Site, is_enough: Callable[[Any], bool]
    ) -> Any:
        """Make layer after layer of a value dense, up to one that may stay."""
        return self._made_dense(value, site, NO_RULE, is_enough)


def _read(env: Mapping[Any, Any], atom: Any) -> Any:
    return atom if type(atom) is Literal else env.get(atom, atom)


def _fresh(var: Var) -> Var:
    return DropVar(var.aval) if type(var) is DropVar else Var(var.aval)


def adopter_of(operands: Iterable[Any]) -> Value | None:
    """The first value that adopts arrays, among the operands and their fields, or ``None``."""
    for x in operands:
        if is_value(x):
            found = x if x.adopts else adopter_of(vars(x).values())
            if found is not None:
                return found
    return None


def owner_of_default(
    primitive: Primitive, types: Sequence[type[Value]]
) -> type[Value] | None:
    """The outermost of some types that has a default, or ``None``."""
    types = [cls for cls in types if cls.default is not Value.default]
    if not types:
        return None
    outermost = max(cls.outer for cls in types)
    owners = {cls.default: cls for cls in types if cls.outer == outermost}
    if len(owners) > 1:
        names = " and ".join(owner.__name__ for owner in owners.values())
        raise TypeError(
            f"Primitive {primitive.name!r} has no rule for these operands, and "
            f"{names} each have a default of their own. Register a rule for the pair, or "
            "make one of the classes the outer one by a higher outer = ..."
        )
    return next(iter(owners.values()))

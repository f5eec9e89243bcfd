"""The rewriting: a jaxpr on arrays becomes a jaxpr on the leaves of values.

A `Scope` is a jaxpr under construction. `Scope.run` walks the equations of
another jaxpr and adds what becomes of them. An *operand* is an atom of the new
jaxpr (a variable or a literal), or a value whose leaves are such atoms: values
exist while a program is rewritten, and the result knows nothing of them.

An equation without a value among its operands is taken over as it is, the very
same object, so that code which values don't reach costs next to nothing. For
any other the answer is sought in this order: the rules; for a higher-order
primitive its handler, which rewrites the jaxprs inside; the ``default`` of the
operands' type; materialising them.

Rules are Python functions on arrays. Each is traced once for each structure of
operands, and the equations that it made are added again for every further
equation of that structure, in this rewriting or another. The same walk adds them, so when a
field of a value is a value itself, what the rule did to that field is an
equation with a value operand, and is dispatched in its turn.
"""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from jax.tree_util import (
    PyTreeDef,
    tree_flatten,
    tree_leaves,
    tree_map,
    tree_unflatten,
)

from . import _compat
from ._caches import WeakCaches
from ._compat import DropVar, Jaxpr, JaxprEqn, Literal, SourceInfo, Var
from ._dead_code import live_equations
from ._errors import MaterialisationError, MaterialisationWarning, add_note, place
from ._rules import Rule
from ._settings import Settings, use_settings
from ._value import Value, aval_of, avals_of, is_value, layer


# A handler rewrites one higher-order primitive: given the scope to add to, the
# equation, its operands and the origin (see `Scope.run`) it returns the
# results, or NotImplemented.
Handler = Callable[["Scope", JaxprEqn, list[Any], SourceInfo | None], Any]

# By name, since JAX exports the objects of only some primitives.
handlers: dict[str, Handler] = {}


class Adapter(Protocol):
    """What `Rewriting.restage` puts before or after a body.

    It adds equations to the scope, on behalf of the equation, and returns other
    operands or results.
    """

    def __call__(
        self, scope: Scope, operands: Sequence[Any], eqn: JaxprEqn, /
    ) -> list[Any]: ...


# Primitives that return their operands unchanged, as mathematics goes, or move them
# as a whole: values need not be dense for them. Asked after a type's ``default``.
keepers: dict[str, Handler] = {}


class Notice(NamedTuple):
    """What the user is told, by default that a value became dense, and of which line."""

    message: str
    file: str
    line: int
    category: type[Warning] = MaterialisationWarning


class _Collected(threading.local):
    """What is to be said of the rule that is being traced, and of those around it."""

    def __init__(self) -> None:
        self.stack: list[list[Notice]] = []


_collected = _Collected()


def warn(those: Iterable[Notice]) -> None:
    """Warn the user, or, while a rule is traced, whoever applies it."""
    if _collected.stack:
        _collected.stack[-1].extend(those)
        return
    for message, file, line, category in those:
        warnings.warn_explicit(message, category, file, line)


class Applied(NamedTuple):
    """One use of a rule: the several equations that were added, and what of.

    ``traced`` is the jaxpr of the rule, of which ``operands`` and ``results`` are
    the atoms that its ``invars`` and ``outvars`` stand for.
    """

    traced: Jaxpr
    operands: list[Any]
    results: list[Any]
    eqns: Sequence[JaxprEqn]


class Restaged(NamedTuple):
    """A jaxpr rewritten for operands of one structure.

    The ``jaxpr`` takes ``consts`` first and then the leaves of the operands,
    and returns the leaves of the results, whose pytree ``out_tree`` is.
    ``closed`` is the jaxpr as the parameter of an equation, one object however
    many equations share it, since JAX lowers each object once. ``changed`` is
    whether a rule or a value left any trace in it, ``warnings`` what is to be
    said of values that became dense in it, and ``applied`` the rules used.
    """

    jaxpr: Jaxpr
    closed: Any
    consts: list[Any]
    out_tree: PyTreeDef
    changed: bool
    warnings: tuple[Notice, ...]
    applied: tuple[Applied, ...]

    def results(self) -> list[Any]:
        """The results, on the variables of the jaxpr."""
        return tree_unflatten(self.out_tree, self.jaxpr.outvars)


class _Flat(NamedTuple):
    """The operands of an equation, values flattened a layer deep.

    ``treedefs`` has ``None`` for what is no value; ``ctx`` is the equation's.
    """

    leaves: list[Any]
    treedefs: list[PyTreeDef | None]
    avals: list[Any]
    ctx: Any


class _Traced(NamedTuple):
    """What a function on values does, as equations on their leaves.

    ``dense_results`` has variables that are results, and which; ``notices`` is what a
    transform in the function would have said, to be said of the equation instead.
    """

    jaxpr: Jaxpr
    consts: list[Any]
    out_tree: PyTreeDef
    dense_results: list[tuple[Any, int]]
    notices: list[Notice]


class Reason(NamedTuple):
    """Why a value has to become dense, and what its author can do about that."""

    what: str
    remedy: str

    def on(self, eqn: JaxprEqn, cls: type) -> str:
        return self.what.format(primitive=eqn.primitive.name, cls=cls.__name__)


NO_RULE = Reason("No rule for primitive {primitive!r} on {cls}", "Register a rule")


class Rewriting:
    """What all scopes of one rewriting share."""

    def __init__(self, settings: Settings):
        self.settings = settings
        self.dense_primitives = settings.rules.dense_primitives()
        self.primitives_with_literals = settings.rules.primitives_with_literals()
        self._traced: dict[Any, Any] = {}

    def restage(
        self,
        jaxpr: Any,
        operands: Sequence[Any],
        eqn: JaxprEqn,
        entering: Adapter | None = None,
        leaving: Adapter | None = None,
    ) -> Restaged:
        """Rewrite a jaxpr in ``eqn`` for operands of this structure, once.

        Remembered as long as the jaxpr lives, so that a body which is called
        a hundred times, or by a hundred programs, is rewritten and compiled
        once. The adapters, compared like the rest of the key, change operands
        before the first of the jaxpr's equations and results after the last.
        """
        leaves, in_tree = tree_flatten(list(operands))
        avals = avals_of(leaves)
        cache = _restaged.of(jaxpr)
        state = self.settings.key(), _compat.trace_context()
        key = (in_tree, tuple(avals), entering, leaving, *state)
        try:
            restaged = cache.get(key)
        except TypeError:  # metadata that can't be hashed
            return self._restage_anew(jaxpr, in_tree, avals, eqn, entering, leaving)
        if restaged is None:
            restaged = self._restage_anew(jaxpr, in_tree, avals, eqn, entering, leaving)
            if not _has_tracers(restaged.consts):
                cache.put(key, restaged)
        return restaged

    def _restage_anew(
        self,
        jaxpr: Any,
        in_tree: PyTreeDef,
        avals: Sequence[Any],
        eqn: JaxprEqn,
        entering: Adapter | None,
        leaving: Adapter | None,
    ) -> Restaged:
        inner, consts = _compat.open_jaxpr(jaxpr)
        scope = Scope(self)
        operands = []
        for var, like in zip(
            inner.invars[len(consts) :], tree_unflatten(in_tree, avals), strict=True
        ):
            operands.append(scope.operand(var, like))
        invars = tree_leaves(operands)
        if entering is not None:
            operands = entering(scope, operands, eqn)
        results = scope.run(inner, [*scope.constants(inner, consts), *operands])
        if leaving is not None:
            results = leaving(scope, results, eqn)
        outvars, out_tree = tree_flatten(results)
        return scope.finish(invars, outvars, out_tree, inner.debug_info)

    def recall(
        self, key: tuple[Any, ...], flat: _Flat, find: Callable[[_Flat], Any]
    ) -> Any:
        """What ``find`` finds for operands of this structure, sought once.

        Remembered for this rewriting; what was traced also beyond it, unless it
        holds tracers.
        """
        structure = (*key, *flat.treedefs, *flat.avals, flat.ctx)
        try:
            known = self._traced.get(structure)
        except TypeError:  # parameters or metadata that can't be hashed
            return find(flat)
        if known is None:
            nearest, *others = self.settings.rules.state()
            state = (self.settings.policy, nearest[1], *others, _compat.trace_context())
            # Kept with the table, and so not naming it, or it would never be dropped.
            cache = _traces.of(nearest[0])
            known = cache.get((structure, state))
            if known is None:
                known = find(flat)
                if known is not NotImplemented and not _has_tracers(known.consts):
                    cache.put((structure, state), known)
            self._traced[structure] = known
        return known

    def trace(
        self,
        fn: Callable[..., Any],
        flat: _Flat,
        check: Callable[[Any], list[Any]],
        name: str,
    ) -> Any:
        """Trace a function on values; ``NotImplemented`` if that is what it returned."""
        out: list[Any] = []

        def on_leaves(*leaves: Any) -> list[Any]:
            results = fn(*_unflatten_each(flat.treedefs, leaves))
            if results is NotImplemented:
                out.append(NotImplemented)
                return []
            result_leaves, out_tree = tree_flatten(check(results))
            out.append(out_tree)
            return result_leaves

        debug_info = _compat.new_debug_info(name)
        notices: list[Notice] = []
        _collected.stack.append(notices)
        try:
            with use_settings(self.settings), flat.ctx.manager:
                jaxpr, consts = _compat.trace_to_jaxpr(on_leaves, flat.avals, debug_info)
        finally:
            _collected.stack.pop()
        (out_tree,) = out
        if out_tree is NotImplemented:
            return NotImplemented
        produced = {var for eqn in jaxpr.eqns for var in eqn.outvars}
        dense_results = []
        for i, result in enumerate(tree_unflatten(out_tree, jaxpr.outvars)):
            if type(result) is Var and result in produced:
                produced.remove(result)
                dense_results.append((result, i))
        return _Traced(jaxpr, consts, out_tree, dense_results, notices)


# What bodies became, kept with the body; what rules did, with the nearest table.
_restaged = WeakCaches(256)
_traces = WeakCaches(4096)


def _has_tracers(consts: Iterable[Any]) -> bool:
    return any(isinstance(const, _compat.Tracer) for const in consts)


class Scope:
    """A jaxpr under construction."""

    def __init__(self, rewriting: Rewriting):
        self.rewriting = rewriting
        self.eqns: list[JaxprEqn] = []
        self.changed = False
        # Whether JAX has to expand some of the primitives before it can compile.
        self.is_high = False
        # Said of the whole program, once it is known: a dictionary for its order.
        self._warnings: dict[Notice, None] = {}
        self._applied: list[Applied] = []
        self._consts: dict[int, tuple[Var, Any]] = {}
        self._dense: dict[int, tuple[Value, Any]] = {}

    def const(self, value: Any, var: Var | None = None) -> Var:
        """The variable of a constant, which becomes an operand of the jaxpr."""
        known = self._consts.get(id(value))
        if known is None:
            var = var or Var(_compat.leaf_aval(value))
            known = self._consts[id(value)] = var, value
        return known[0]

    def constants(self, jaxpr: Jaxpr, consts: Sequence[Any]) -> list[Any]:
        """The operands of a jaxpr's constants, its first ``invars``."""
        return [self.const(c, var) for c, var in zip(consts, jaxpr.invars, strict=False)]

    @staticmethod
    def operand(var: Any, like: Any) -> Any:
        """An operand for the variable of a jaxpr that will be run in this scope.

        The variable itself where ``like`` is its aval, so that equations on it
        stay the same; a value on new variables where ``like`` is one on avals.
        """
        if is_value(like):
            return tree_map(Var, like)
        return var if var.aval == like else Var(like)

    def include(self, restaged: Restaged) -> list[Var]:
        """Take over what the body of a new equation brings; returns its constants."""
        self.changed = True
        self._warnings.update(dict.fromkeys(restaged.warnings))
        return [self.const(value) for value in restaged.consts]

    def finish(
        self,
        invars: Sequence[Var],
        outvars: Sequence[Any],
        out_tree: PyTreeDef,
        debug_info: Any,
    ) -> Restaged:
        eqns = live_equations(self.eqns, outvars)
        consts = list(self._consts.values())
        jaxpr = _compat.new_jaxpr(
            [*(var for var, _ in consts), *invars],
            outvars,
            eqns,
            debug_info,
            self.is_high,
        )
        values = [value for _, value in consts]
        closed = _compat.close_jaxpr(jaxpr)
        return Restaged(
            jaxpr,
            closed,
            values,
            out_tree,
            self.changed,
            tuple(self._warnings),
            tuple(self._applied),
        )

    def run(
        self,
        jaxpr: Jaxpr,
        operands: Iterable[Any],
        origin: SourceInfo | None = None,
        targets: Mapping[Var, Var] | None = None,
    ) -> list[Any]:
        """Add the equations of ``jaxpr``, applied to ``operands``.

        Parameters
        ----------
        jaxpr
            A jaxpr without constants.
        operands
            An atom or a value for each of its ``invars``.
        origin
            For the jaxpr of a rule, where the equation comes from that the rule
            is applied to: the new equations are said to come from there, and get
            variables of their own, because the same jaxpr may be added again.
        targets
            Which variables to use then, for some of the jaxpr's own.

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
        # The equations of a rule are final: a rule for dense tanh may use tanh.
        watched = self.rewriting.dense_primitives if origin is None else frozenset()
        for eqn in jaxpr.eqns:
            known = watched and (eqn.primitive in watched or eqn.primitive.name in handlers)
            has_value = False
            renamed = False
            for atom in eqn.invars:
                if type(atom) is not Literal and atom in env:
                    renamed = True
                    has_value |= is_value(env[atom])
            if not (renamed or known) and origin is None:
                self.eqns.append(eqn)
                continue
            invals = eqn.invars
            if renamed:
                invals = [_read(env, atom) for atom in invals]
            outvars = eqn.outvars
            if origin is not None:
                outvars = [targets.get(var) or fresh(var) for var in outvars]
            if has_value or known:
                results = self.apply(eqn, invals, outvars, origin)
            else:
                self.copy(eqn, invals, outvars, origin)
                results = outvars
            for var, result in zip(eqn.outvars, results, strict=True):
                if result is not var:
                    env[var] = result
        return [_read(env, atom) for atom in jaxpr.outvars]

    def copy(
        self,
        eqn: JaxprEqn,
        operands: Sequence[Any],
        outvars: Sequence[Var],
        origin: SourceInfo | None = None,
        params: dict[str, Any] | None = None,
        effects: Any = None,
    ) -> None:
        """Add an equation like ``eqn`` with other atoms or parameters."""
        if effects is None:
            effects = eqn.effects
            if effects:
                names = dict(_pairs(eqn.invars, operands))
                effects = _compat.rename_effects(effects, names)
        if params is not None:
            self.is_high |= _compat.has_high_parameters(eqn.primitive, operands, params)
        self.eqns.append(
            eqn.replace(
                invars=list(operands),
                outvars=list(outvars),
                params=params,
                effects=effects,
                source_info=source_within(origin, eqn.source_info),
            )
        )

    def apply(
        self,
        eqn: JaxprEqn,
        operands: Sequence[Any],
        outvars: Sequence[Var],
        origin: SourceInfo | None = None,
    ) -> Sequence[Any]:
        """Add what becomes of an equation on these operands.

        Results that are dense are written to ``outvars`` where that is possible.
        """
        try:
            results = self._apply(eqn, operands, outvars, origin)
        except Exception as error:
            add_note(error, describe(eqn, operands))
            raise
        return results

    def _apply(
        self,
        eqn: JaxprEqn,
        operands: Sequence[Any],
        outvars: Sequence[Var],
        origin: SourceInfo | None,
    ) -> Sequence[Any]:
        results = self.call_rule(eqn, operands, outvars, origin)
        if results is not NotImplemented:
            return results
        primitive = eqn.primitive
        handler = handlers.get(primitive.name)
        if handler is not None:
            results = handler(self, eqn, list(operands), origin)
            if results is not NotImplemented:
                return results
        values = [x for x in operands if is_value(x)]
        if values:
            results = self.call_default(values, eqn, operands, outvars, origin)
            if results is not NotImplemented:
                return results
            self.changed = True
            keeper = keepers.get(primitive.name)
            if keeper is not None:
                results = keeper(self, eqn, list(operands), origin)
                if results is not NotImplemented:
                    return results
            operands = self.materialise_operands(eqn, operands, origin)
            if primitive in self.rewriting.dense_primitives and origin is None:
                return self._apply(eqn, operands, outvars, origin)
        self.copy(eqn, operands, outvars, origin)
        return outvars

    # --- rules and defaults ---------------------------------------------------

    def call_rule(
        self,
        eqn: JaxprEqn,
        operands: Sequence[Any],
        outvars: Sequence[Var],
        origin: SourceInfo | None,
    ) -> Any:
        """Add what the first rule that applies makes of an equation."""

        primitive, rewriting = eqn.primitive, self.rewriting

        def find(flat: _Flat) -> Any:
            def ask(rule: Rule) -> Any:
                return rewriting.trace(
                    functools.partial(_call_rule, rule, eqn, operands),
                    flat,
                    functools.partial(_checked_results, eqn, f"The rule {rule}"),
                    rule.name_for(primitive),
                )

            avals = functools.partial(avals_of, operands)
            rules = rewriting.settings.rules
            return rules.first_answer(primitive, operands, avals, ask)

        key = ("rule", primitive, *eqn.params.items())
        if primitive in rewriting.primitives_with_literals:
            key = (*key, *map(_literal_key, operands))
        results = self._splice(find, key, operands, eqn, outvars, origin)
        self.changed |= results is not NotImplemented
        return results

    def call_default(
        self,
        values: Sequence[Value],
        eqn: JaxprEqn,
        operands: Sequence[Any],
        outvars: Sequence[Var],
        origin: SourceInfo | None,
    ) -> Any:
        """Add what the one default among the values' types makes of an equation.

        Of several it is that of the outermost type.
        """
        types = [type(v) for v in values if type(v).default is not Value.default]
        if not types:
            return NotImplemented
        outermost = max(cls.outer for cls in types)
        owners = {cls.default: cls for cls in types if cls.outer == outermost}
        if len(owners) > 1:
            names = " and ".join(owner.__name__ for owner in owners.values())
            raise TypeError(
                f"Primitive {eqn.primitive.name!r} has no rule for these operands, and "
                f"{names} each have a default of their own. Register a rule for the pair, or "
                "say which class is the outer one, by a higher outer = ..."
            )
        ((default, owner),) = owners.items()

        def apply_default(*args: Any) -> Any:
            return default(eqn.primitive, args, dict(eqn.params))

        check = functools.partial(_checked_results, eqn, f"{owner.__name__}.default")
        key = (default, eqn.primitive, *eqn.params.items())
        results = self.splice(apply_default, key, operands, eqn, outvars, origin, check)
        self.changed |= results is not NotImplemented
        return results

    def splice(
        self,
        fn: Callable[..., Any],
        key: tuple[Any, ...],
        operands: Sequence[Any],
        eqn: JaxprEqn,
        outvars: Sequence[Var],
        origin: SourceInfo | None,
        check: Callable[[Any], list[Any]],
    ) -> Any:
        """Add the equations of a function of the operands, a layer deep.

        What the function sees of a value that is a field of an operand is a
        tracer of its aval; the equations on that are dispatched as any others.
        ``key`` says which function it is.
        """

        def find(flat: _Flat) -> Any:
            name = getattr(fn, "__name__", "rule")
            return self.rewriting.trace(fn, flat, check, name)

        return self._splice(find, key, operands, eqn, outvars, origin)

    def _splice(
        self,
        find: Callable[[_Flat], Any],
        key: tuple[Any, ...],
        operands: Sequence[Any],
        eqn: JaxprEqn,
        outvars: Sequence[Var],
        origin: SourceInfo | None,
    ) -> Any:
        flat = _flatten_each(operands, eqn.ctx)
        traced = self.rewriting.recall(key, flat, find)
        if traced is NotImplemented:
            return NotImplemented
        for notice in traced.notices:
            self.notice(notice.message, eqn, origin, notice.category)
        targets = {
            var: outvars[i]
            for var, i in traced.dense_results
            if type(outvars[i]) is not DropVar
        }
        inputs = [*self.constants(traced.jaxpr, traced.consts), *flat.leaves]
        start = len(self.eqns)
        results = self.run(
            traced.jaxpr, inputs, source_within(origin, eqn.source_info), targets
        )
        # Where a leaf is a value, the equations are no longer those of the rule.
        added = self.eqns[start:] if origin is None else ()
        if len(added) > 1 and not any(map(is_value, flat.leaves)):
            self._applied.append(Applied(traced.jaxpr, inputs, results, added))
        return tree_unflatten(traced.out_tree, results)

    def add_call(
        self,
        fn: Callable[..., Any],
        leaves: Sequence[Any],
        eqn: JaxprEqn,
        origin: SourceInfo | None,
    ) -> list[Any]:
        """Add the equations of a JAX function, from arrays to a list of arrays.

        For primitives that are best made by the public function they come from.
        """
        debug_info = _compat.new_debug_info(eqn.primitive.name, fn)
        with eqn.ctx.manager:
            jaxpr, consts = _compat.trace_to_jaxpr(fn, avals_of(leaves), debug_info)
        inputs = [*self.constants(jaxpr, consts), *leaves]
        return self.run(jaxpr, inputs, source_within(origin, eqn.source_info))

    def map_leaves(
        self, eqn: JaxprEqn, operands: Sequence[Any], origin: SourceInfo | None
    ) -> list[Any]:
        """Apply an identity to each leaf of its operands."""
        leaves, treedef = tree_flatten(list(operands))
        whole = eqn.primitive.multiple_results
        results = []
        for group in [leaves] if whole else [[leaf] for leaf in leaves]:
            outvars = [Var(aval) for aval in _compat.result_avals(eqn, avals_of(group))]
            self.copy(eqn, group, outvars, origin)
            results += outvars
        return tree_unflatten(treedef, results)

    def sink_leaves(
        self, eqn: JaxprEqn, operands: Sequence[Any], origin: SourceInfo | None
    ) -> list[Any]:
        """Apply a primitive that takes one operand and has no result to each leaf."""
        for leaf in tree_leaves(list(operands)):
            self.copy(eqn, [leaf], [], origin)
        return []

    # --- materialising --------------------------------------------------------

    def materialise_operands(
        self, eqn: JaxprEqn, operands: Sequence[Any], origin: SourceInfo | None
    ) -> list[Any]:
        """Make the operands of an equation dense, as the policy says."""
        return [self.materialise(x, eqn, origin) if is_value(x) else x for x in operands]

    def materialise(
        self,
        value: Value,
        eqn: JaxprEqn,
        origin: SourceInfo | None = None,
        reason: Reason = NO_RULE,
    ) -> Any:
        """Add the equations that make a value dense, and return the result.

        Raises `MaterialisationError` if the policy or the type forbids it.
        """
        cls = type(value)
        policy = self.rewriting.settings.policy
        if policy == "warn":
            policy = cls.materialise_policy or policy
        if policy == "forbid":
            raise MaterialisationError(
                f"{reason.on(eqn, cls)}, which may not be made dense here "
                "(materialise='forbid')."
            )
        dense = self._materialised(value, eqn, origin, reason)
        if policy == "warn":
            remedy = reason.remedy.format(cls=cls.__name__)
            message = (
                f"{reason.on(eqn, cls)}, which is made dense. {remedy}, or pass "
                "materialise='allow' if this is meant."
            )
            self.notice(message, eqn, origin)
        return dense

    def notice(
        self,
        message: str,
        eqn: JaxprEqn,
        origin: SourceInfo | None = None,
        category: type[Warning] = MaterialisationWarning,
    ) -> None:
        """Warn, once the program is known, with the user's line of an equation."""
        where = _compat.source_location(origin or eqn.source_info)
        file, line, _ = where or ("<unknown>", 0, "")
        self._warnings[Notice(message, file, line, category)] = None

    def _materialised(
        self, value: Value, eqn: JaxprEqn, origin: SourceInfo | None, reason: Reason
    ) -> Any:
        known = self._dense.get(id(value))
        if known is not None:
            return known[1]
        cls = type(value)
        aval = aval_of(value)

        def materialise(value: Value) -> Any:
            try:
                return value.materialise()
            except Exception as error:
                raise MaterialisationError(
                    f"{reason.on(eqn, cls)}, which can't be made dense: {error}"
                ) from error

        def check(dense: Any) -> list[Any]:
            dense = _checked(dense, aval, f"{cls.__name__}.materialise", "its aval says")
            return [dense if is_value(dense) else _compat.as_strong_as(dense, aval)]

        dense = value
        outvars = [Var(aval)]
        while is_value(dense):
            key = ("materialise", type(dense))
            (dense,) = self.splice(materialise, key, [dense], eqn, outvars, origin, check)
            outvars = [Var(aval)]
        self._dense[id(value)] = value, dense
        return dense


keepers.update(
    dict.fromkeys(
        (
            "copy",
            "copy_p",
            "name",
            "optimization_barrier",
            "pvary",
            "stop_gradient",
            "xla_metadata_value",
        ),
        Scope.map_leaves,
    )
)
keepers["dce_sink"] = Scope.sink_leaves


def _read(env: Mapping[Any, Any], atom: Any) -> Any:
    return atom if type(atom) is Literal else env.get(atom, atom)


def fresh(var: Var) -> Var:
    return DropVar(var.aval) if type(var) is DropVar else Var(var.aval)


def source_within(origin: SourceInfo | None, inner: SourceInfo) -> SourceInfo:
    """Where an equation of a rule comes from: where the rule was applied."""
    if origin is None:
        return inner
    if not inner.name_stack.stack:
        return origin
    return origin.replace(name_stack=origin.name_stack + inner.name_stack)


def describe(eqn: JaxprEqn, operands: Sequence[Any]) -> str:
    """A note that names an equation, its operands and the user's line."""
    shown = ", ".join(map(describe_operand, operands))
    line = place(_compat.source_location(eqn.source_info))
    return f"jaxrewrite: in primitive {eqn.primitive.name!r} on ({shown}){line}"


def describe_operand(operand: Any) -> str:
    if not is_value(operand):
        return _compat.short(_compat.leaf_aval(operand))
    return f"{type(operand).__name__}:{_compat.short(aval_of(operand))}"


def _pairs(invars: Sequence[Any], operands: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    for var, operand in zip(invars, operands, strict=True):
        if type(var) is not Literal:
            yield var, operand


def _flatten_each(operands: Sequence[Any], ctx: Any) -> _Flat:
    leaves: list[Any] = []
    treedefs: list[PyTreeDef | None] = []
    for operand in operands:
        if is_value(operand):
            own, treedef = layer(operand)
            leaves.extend(own)
            treedefs.append(treedef)
        else:
            leaves.append(operand)
            treedefs.append(None)
    return _Flat(leaves, treedefs, avals_of(leaves), ctx)


def _unflatten_each(
    treedefs: Sequence[PyTreeDef | None], leaves: Iterable[Any]
) -> list[Any]:
    rest = iter(leaves)
    return [
        next(rest)
        if treedef is None
        else tree_unflatten(treedef, [next(rest) for _ in range(treedef.num_leaves)])
        for treedef in treedefs
    ]


# --- rules and what they may return -----------------------------------------------


def _literal_key(operand: Any) -> Any:
    """What a rule that sees literals depends on; 0.0 and -0.0 are two numbers."""
    return repr(operand.val) if type(operand) is Literal else None


def _call_rule(rule: Rule, eqn: JaxprEqn, operands: Sequence[Any], *args: Any) -> Any:
    try:
        return rule(eqn.primitive, args, eqn.params, operands)
    except Exception as error:
        add_note(error, f"jaxrewrite: raised by the rule {rule}.")
        if "unexpected keyword argument" in str(error):
            add_note(error, "Rules take a primitive's parameters as **params.")
        raise


def _checked_results(eqn: JaxprEqn, what: str, results: Any) -> list[Any]:
    """The results of a rule, one for each of the equation's, or `TypeError`."""
    name, expected = eqn.primitive.name, eqn.outvars
    if not eqn.primitive.multiple_results:
        if isinstance(results, (list, tuple)):
            raise TypeError(
                f"{what} returned a {type(results).__name__} for {name!r}, which has one "
                "result. Return the array or value itself."
            )
        results = [results]
    elif not isinstance(results, (list, tuple)):
        raise TypeError(
            f"{what} returned a {type(results).__name__} for {name!r}, which has "
            f"{len(expected)} results. Return a list or tuple of them."
        )
    if len(results) != len(expected):
        raise TypeError(
            f"{what} returned {len(results)} results for {name!r}, which has {len(expected)}."
        )
    wanted = f"{name!r} gives"
    return [
        _checked(result, var.aval, what, wanted)
        for result, var in zip(results, expected, strict=True)
    ]


def _checked(result: Any, expected: Any, what: str, wanted: str) -> Any:
    if not is_value(result):
        try:
            aval = _compat.leaf_aval(result)
        except TypeError:
            raise TypeError(
                f"{what} returned a {type(result).__name__} where {wanted} "
                f"{_compat.short(expected)}: neither an array nor a value."
            ) from None
    else:
        aval = aval_of(result)
    if _compat.same_array_type(aval, expected):
        return result
    raise TypeError(
        f"{what} returned {_compat.short(aval)} where {wanted} {_compat.short(expected)}"
        + (f" (as a {type(result).__name__})." if is_value(result) else ".")
    )

"""The traces of rules, which are made and kept for each structure of operands.

A rule is a Python function of arrays and values. It is traced on the children of its
operands (`avals.rule_children`), to a jaxpr. The jaxpr serves for all further equations with
operands of that structure, in this rewriting and in others.
"""

from __future__ import annotations

import copy
import functools
import operator
from collections.abc import Callable, Container, Iterable, Sequence
from types import NotImplementedType
from typing import TYPE_CHECKING, Any, NamedTuple

from jax.tree_util import PyTreeDef, tree_flatten, tree_unflatten

from .. import _compat
from .._compat import Aval, EqnContext, Jaxpr, Literal, Primitive, Var
from .avals import avals_of, is_annotation, mismatch, rule_children
from .caches import BoundedCache, WeakCaches
from .dead_code import DataFlow
from .hooks import Pass, numbers
from .notices import Notice, collected
from .record import Record, aside
from .rules import Declined, Failure, Ranked
from .settings import Settings, use_settings
from .value import Operand, is_value


if TYPE_CHECKING:
    from .site import Site


class Flat(NamedTuple):
    """The operands of an equation, with the values among them flattened to rule children.

    ``treedefs`` has ``None`` for an operand that is not a value, and the position of another
    operand for one that is the same, if the type is told. ``ctx`` is that of the equation, and
    ``structure`` stands for the operands in the key of a function's trace.
    """

    leaves: list[Any]
    treedefs: list[PyTreeDef | int | None]
    avals: list[Any]
    ctx: EqnContext
    structure: tuple[Any, ...]

    @classmethod
    def of(
        cls, operands: Sequence[Any], ctx: EqnContext, opaque: Container[int] = ()
    ) -> Flat:
        """The operands, flattened but for the positions ``opaque``."""
        leaves: list[Any] = []
        treedefs: list[PyTreeDef | int | None] = []
        firsts: dict[int, int] = {}
        for i, operand in enumerate(operands):
            if not is_value(operand) or i in opaque:
                leaves.append(operand)
                treedefs.append(None)
            elif operand._meets_itself and firsts.setdefault(id(operand), i) < i:
                treedefs.append(firsts[id(operand)])
            else:
                children, treedef = rule_children(operand)
                leaves.extend(children)
                treedefs.append(treedef)
        avals = avals_of(leaves)
        return cls(leaves, treedefs, avals, ctx, (*treedefs, *avals, ctx))

    def rebuilt(self, leaves: Iterable[Any]) -> list[Any]:
        """The operands with other leaves."""
        rest = iter(leaves)
        operands: list[Any] = []
        for treedef in self.treedefs:
            if treedef is None:
                operands.append(next(rest))
            elif isinstance(treedef, int):
                operands.append(operands[treedef])
            else:
                own = [next(rest) for _ in range(treedef.num_leaves)]
                operands.append(tree_unflatten(treedef, own))
        return operands


class RuleResult(NamedTuple):
    """The result of a rule or another function for operands of one structure.

    ``traced`` is a `Traced`, or ``NotImplemented``. ``rule`` is the rule that was applied, and
    ``declined`` are the rules that were not. ``inner`` are the records of transforms inside of
    the function, if the rewriting is explained.
    """

    traced: Traced | NotImplementedType
    rule: Ranked | None = None
    declined: Sequence[Declined] = ()
    inner: Sequence[Record] = ()


class Traced(NamedTuple):
    """A function of values, traced to equations on their leaves.

    ``dense_results`` has the variables that are results, each with its position.
    ``notices`` are the warnings of transforms inside the function. They are given for the
    equation to which the trace is added.
    """

    jaxpr: Jaxpr
    consts: list[Any]
    out_tree: PyTreeDef
    dense_results: list[tuple[Any, int]]
    notices: list[Notice]


# A trace is kept with the nearest table of rules.
_kept_traces = WeakCaches(4096)


class Rewriting:
    """The settings and the traces that all builders of one rewriting share."""

    def __init__(self, settings: Settings):
        self.settings = settings
        self.dense_primitives = settings.rules.dense_primitives()
        self.primitives_with_literals = settings.rules.primitives_with_literals()
        self.passes = settings.rules.passes()
        # The calls that stay unchanged, each with its body and the avals of its operands.
        self.known_unchanged: set[Any] = set()
        self._kept: dict[Any, Any] = {}

    def of_rules(self) -> Rewriting:
        """The rewriting of the traces of rules, on which no pass runs."""
        if not self.passes:
            return self
        rewriting = copy.copy(self)
        rewriting.passes = {}
        rewriting.known_unchanged = set()
        return rewriting

    def unrecorded(self) -> Rewriting:
        """The rewriting of what is in no report."""
        if self.settings.recorder is None:
            return self
        rewriting = copy.copy(self)
        rewriting.settings, rewriting._kept = self.settings._replace(recorder=None), {}
        return rewriting

    def data_flow(self, jaxpr: Jaxpr) -> DataFlow | None:
        """The data flow of a program, if a pass has to know it anyway."""
        flows = (pass_.data_flow(jaxpr) for pass_ in self.passes)
        return next((flow for flow in flows if flow is not None), None)

    def after(self, pass_: Pass, jaxpr: Jaxpr, operands: Sequence[Operand]) -> Jaxpr:
        """The jaxpr after a pass, on these operands."""
        pairs = zip(jaxpr.invars, operands, strict=True)
        values = {var for var, x in pairs if is_value(x)}
        recorder = self.settings.recorder
        misses = None if recorder is None else recorder.misses.get(pass_)
        after = pass_.run(jaxpr, self.passes[pass_], values, misses)
        if not isinstance(after, Jaxpr) or after.constvars:
            raise TypeError(
                f"The pass {type(pass_).__name__} returned something else than a jaxpr "
                "without constants, which a pass takes and returns."
            )
        if not _are_alike(after, jaxpr):
            raise TypeError(
                f"The pass {type(pass_).__name__} returned a program of other operands or "
                f"results: {_shown(after)}, in place of {_shown(jaxpr)}."
            )
        return after

    def by_rule(self, site: Site, operands: Sequence[Operand], flat: Flat) -> RuleResult:
        """The result of the first rule that applies to an equation."""
        primitive, params = site.primitive, site.params
        key = ("rule", primitive, *_compat.key_of(params), *flat.structure)
        if primitive in self.primitives_with_literals:
            for find in numbers:
                operands = find(site.builder.analysis, site.eqn, operands)
            key += tuple(
                _compat.literal_key(x) if type(x) is Literal else None for x in operands
            )
        result = self.kept(key)
        if result is not None:
            return result
        choice = self.settings.rules.choice(primitive, operands)
        with aside(self.settings.recorder) as inner:
            for rule in choice:
                fn = functools.partial(rule, primitive, params, operands)
                check = functools.partial(checked_results, site, f"The rule {rule}")
                name = rule.name_for(primitive)
                try:
                    choice.results[rule] = self._trace(fn, flat, check, name)
                except Exception as error:  # noqa: BLE001 - raised again if no other applies
                    if not choice.is_tied:
                        raise
                    choice.results[rule] = Failure(error)
        result = RuleResult(choice.result, choice.rule, choice.declined, inner)
        return self.keep(key, result)

    def by_function(
        self,
        fn: Callable[..., Any],
        key: tuple[Any, ...],
        flat: Flat,
        check: Callable[[Any], list[Any]],
    ) -> RuleResult:
        """The result of a function of its operands; ``key`` identifies the function."""
        key = (*key, *flat.structure)
        result = self.kept(key)
        if result is not None:
            return result
        with aside(self.settings.recorder) as inner:
            traced = self._trace(fn, flat, check, getattr(fn, "__name__", "rule"))
        return self.keep(key, RuleResult(traced, inner=inner))

    def kept(self, key: tuple[Any, ...]) -> Any:
        """The result that is kept for a function and operands, if any, also by another rewriting.

        It is a `RuleResult`, or another tuple with a trace.
        """
        try:
            result = self._kept.get(key)
        except TypeError:  # Parameters or metadata are not hashable.
            return None
        if result is None and not self.settings.keeps_nothing:
            cache, state = self._shared()
            result = self._kept[key] = cache.get((key, state))
        return result

    def keep(self, key: tuple[Any, ...], result: Any) -> Any:
        """Keep a result for this rewriting, and for others unless it holds tracers."""
        try:
            self._kept[key] = result
        except TypeError:
            return result
        if result.traced is not NotImplemented and not self.settings.keeps_nothing:
            cache, state = self._shared()
            if not _compat.has_tracers(result.traced.consts):
                cache.put((key, state), result)
        return result

    def _shared(self) -> tuple[BoundedCache, Any]:
        """The traces of all rewritings with the nearest table, and the key of the other state."""
        state = self.settings.key(), _compat.trace_context()
        return _kept_traces.of(self.settings.rules.tables[0]), state

    def _settings(self, flat: Flat) -> Settings:
        """The settings for a rule while it is traced.

        A rule says itself what is implicit, also where the policy chooses. That of an annotation
        hands on what is inside.
        """
        if isinstance(self.settings.policy, str):
            return self.settings
        hands_on = any(map(is_annotation, flat.rebuilt(flat.avals)))
        return self.settings if hands_on else self.settings._replace(policy="allow")

    def _trace(
        self,
        fn: Callable[..., Any],
        flat: Flat,
        check: Callable[[Any], list[Any]],
        name: str,
    ) -> Traced | NotImplementedType:
        """Trace a function of values; ``NotImplemented`` if the function returns that."""
        out: list[Any] = []

        def on_leaves(placing: _compat.Placing, *leaves: Any) -> list[Any]:
            results = placing(fn)(*flat.rebuilt(leaves))
            if results is NotImplemented:
                out.append(NotImplemented)
                return []
            result_leaves, out_tree = tree_flatten(check(results))
            out.append(out_tree)
            return result_leaves

        debug_info = _compat.new_debug_info(name)
        with collected() as notices, use_settings(self._settings(flat)), flat.ctx.manager:
            jaxpr, consts = _compat.trace_on_mesh(on_leaves, flat.avals, debug_info)
        (out_tree,) = out
        if out_tree is NotImplemented:
            return NotImplemented
        produced = {var for eqn in jaxpr.eqns for var in eqn.outvars}
        dense_results = []
        for i, result in enumerate(tree_unflatten(out_tree, jaxpr.outvars)):
            if type(result) is Var and result in produced:
                produced.remove(result)
                dense_results.append((result, i))
        return Traced(jaxpr, consts, out_tree, dense_results, notices)


def _are_alike(a: Jaxpr, b: Jaxpr) -> bool:
    """Whether two programs have operands and results of the same types."""
    atoms, others = ([*jaxpr.invars, *jaxpr.outvars] for jaxpr in (a, b))
    are_same = len(atoms) == len(others) and all(map(operator.is_, atoms, others))
    return are_same or _types(a) == _types(b)


def _types(jaxpr: Jaxpr) -> list[list[Aval]]:
    """The types of a program's operands and results; whether they are weak does not matter."""
    return [[_compat.strong(v.aval) for v in of] for of in (jaxpr.invars, jaxpr.outvars)]


def _shown(jaxpr: Jaxpr) -> str:
    operands, results = ([*map(_compat.short, avals)] for avals in _types(jaxpr))
    return f"({', '.join(operands)}) -> ({', '.join(results)})"


# --- the results of rules ---------------------------------------------------------


def checked_results(site: Site, what: str, results: object) -> list[Any]:
    """The results of a rule as a list; `TypeError` if they do not fit the equation."""
    results = _as_list(site.primitive, len(site.outvars), what, results)
    wanted = f"{site.primitive.name!r} gives"
    pairs = zip(results, site.outvars, strict=True)
    return [checked_result(x, var.aval, what, wanted) for x, var in pairs]


def checked_result(
    result: Any, aval: Aval, what: str, wanted: str, hint: Callable[[], str] = str
) -> Any:
    """A result, split over explicit axes as its aval is; `TypeError` if it does not fit the aval.

    ``what`` returned it, ``wanted`` tells who expects the aval, and ``hint`` what to look at.
    """
    problem = mismatch(result, aval, what, wanted)
    if problem is not None:
        raise TypeError(problem + hint())
    return result if is_value(result) else _compat.placed_as(result, aval)


def _as_list(primitive: Primitive, count: int, what: str, results: object) -> list[Any]:
    name = primitive.name
    if not primitive.multiple_results:
        if isinstance(results, (list, tuple)):
            raise TypeError(
                f"{what} returned a {type(results).__name__} for {name!r}, which has one "
                "result. Return the array or value itself."
            )
        results = [results]
    elif not isinstance(results, (list, tuple)):
        raise TypeError(
            f"{what} returned a {type(results).__name__} for {name!r}, which has "
            f"{count} results. Return a list or tuple of them."
        )
    if len(results) != count:
        raise TypeError(
            f"{what} returned {len(results)} results for {name!r}, which has {count}."
        )
    return list(results)

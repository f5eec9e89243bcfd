"""What rules did: traced once for each structure of operands, and remembered.

A rule is a Python function on arrays and values. It is traced on the leaves of its
operands, a layer deep, to a jaxpr that is added again for every further equation of
that structure, in this rewriting or another.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from jax.tree_util import PyTreeDef, tree_flatten, tree_unflatten

from . import _compat
from ._avals import avals_of, layer, mismatch
from ._caches import WeakCaches
from ._compat import Jaxpr, Literal, Primitive, Var
from ._errors import add_note
from ._notices import Notice, collected
from ._rules import Rule
from ._settings import Settings, use_settings
from ._site import Site
from ._value import is_value


class Flat(NamedTuple):
    """The operands of an equation, values flattened a layer deep.

    ``treedefs`` has ``None`` for what is no value; ``ctx`` is the equation's.
    """

    leaves: list[Any]
    treedefs: list[PyTreeDef | None]
    avals: list[Any]
    ctx: Any

    @classmethod
    def of(cls, operands: Sequence[Any], ctx: Any) -> Flat:
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
        return cls(leaves, treedefs, avals_of(leaves), ctx)

    def rebuilt(self, leaves: Iterable[Any]) -> list[Any]:
        """The operands on other leaves."""
        rest = iter(leaves)
        return [
            next(rest)
            if treedef is None
            else tree_unflatten(treedef, [next(rest) for _ in range(treedef.num_leaves)])
            for treedef in self.treedefs
        ]


class Traced(NamedTuple):
    """What a function on values does, as equations on their leaves.

    ``dense_results`` has variables that are results, and which; ``notices`` is what a
    transform in the function would have said, to be said of the equation instead.
    """

    jaxpr: Jaxpr
    consts: list[Any]
    out_tree: PyTreeDef
    dense_results: list[tuple[Any, int]]
    notices: list[Notice]


# Kept with the nearest table of rules.
_known = WeakCaches(4096)


class Rewriting:
    """What all scopes of one rewriting share: the settings, and what rules did."""

    def __init__(self, settings: Settings):
        self.settings = settings
        self.dense_primitives = settings.rules.dense_primitives()
        self.primitives_with_literals = settings.rules.primitives_with_literals()
        self._traced: dict[Any, Any] = {}

    def by_rule(self, site: Site, operands: Sequence[Any], flat: Flat) -> Any:
        """What the first rule that applies makes of an equation, or ``NotImplemented``."""
        eqn = site.eqn
        primitive = eqn.primitive

        def find() -> Any:
            def ask(rule: Rule) -> Any:
                return self._trace(
                    functools.partial(_call_rule, rule, site, operands),
                    flat,
                    functools.partial(checked_results, site, f"The rule {rule}"),
                    rule.name_for(primitive),
                )

            avals = functools.partial(avals_of, operands)
            return self.settings.rules.first_answer(primitive, operands, avals, ask)

        key = ("rule", primitive, *eqn.params.items())
        if primitive in self.primitives_with_literals:
            key = (*key, *map(_literal_key, operands))
        return self._recall(key, flat, find)

    def by_function(
        self,
        fn: Callable[..., Any],
        key: tuple[Any, ...],
        flat: Flat,
        check: Callable[[Any], list[Any]],
    ) -> Any:
        """What a function makes of its operands; ``key`` says which function it is."""

        def find() -> Any:
            return self._trace(fn, flat, check, getattr(fn, "__name__", "rule"))

        return self._recall(key, flat, find)

    def _recall(self, key: tuple[Any, ...], flat: Flat, find: Callable[[], Any]) -> Any:
        """What ``find`` finds for operands of this structure, sought once.

        Remembered for this rewriting; what was traced also beyond it, unless it
        holds tracers.
        """
        structure = (*key, *flat.treedefs, *flat.avals, flat.ctx)
        try:
            known = self._traced.get(structure)
        except TypeError:  # parameters or metadata that can't be hashed
            return find()
        if known is None:
            nearest, *others = self.settings.rules.state()
            state = (self.settings.policy, nearest[1], *others, _compat.trace_context())
            # Kept with the table, and so not naming it, or it would never be dropped.
            cache = _known.of(nearest[0])
            known = cache.get((structure, state))
            if known is None:
                known = find()
                if known is not NotImplemented and not has_tracers(known.consts):
                    cache.put((structure, state), known)
            self._traced[structure] = known
        return known

    def _trace(
        self,
        fn: Callable[..., Any],
        flat: Flat,
        check: Callable[[Any], list[Any]],
        name: str,
    ) -> Any:
        """Trace a function on values; ``NotImplemented`` if that is what it returned."""
        out: list[Any] = []

        def on_leaves(*leaves: Any) -> list[Any]:
            results = fn(*flat.rebuilt(leaves))
            if results is NotImplemented:
                out.append(NotImplemented)
                return []
            result_leaves, out_tree = tree_flatten(check(results))
            out.append(out_tree)
            return result_leaves

        debug_info = _compat.new_debug_info(name)
        with collected() as notices, use_settings(self.settings), flat.ctx.manager:
            jaxpr, consts = _compat.trace_to_jaxpr(on_leaves, flat.avals, debug_info)
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


def has_tracers(consts: Iterable[Any]) -> bool:
    """Whether what holds these constants is of the trace that runs now, and no other."""
    return any(isinstance(const, _compat.Tracer) for const in consts)


# --- rules and what they may return -----------------------------------------------


def _literal_key(operand: Any) -> Any:
    """What a rule that sees literals depends on; 0.0 and -0.0 are two numbers."""
    return repr(operand.val) if type(operand) is Literal else None


def _call_rule(rule: Rule, site: Site, operands: Sequence[Any], *args: Any) -> Any:
    try:
        return rule(site.primitive, args, site.params, operands)
    except Exception as error:
        add_note(error, f"jaxrewrite: raised by the rule {rule}.")
        if "unexpected keyword argument" in str(error):
            add_note(error, "Rules take a primitive's parameters as **params.")
        raise


def checked_results(site: Site, what: str, results: Any) -> list[Any]:
    """The results of a rule, one for each of the equation's, or `TypeError`."""
    results = _as_list(site.primitive, len(site.outvars), what, results)
    wanted = f"{site.primitive.name!r} gives"
    for result, var in zip(results, site.outvars, strict=True):
        problem = mismatch(result, var.aval, what, wanted)
        if problem is not None:
            raise TypeError(problem)
    return results


def _as_list(primitive: Primitive, count: int, what: str, results: Any) -> list[Any]:
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

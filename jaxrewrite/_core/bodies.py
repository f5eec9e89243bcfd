"""Rewriting the jaxprs inside of equations, once for each structure of operands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from jax.tree_util import tree_flatten, tree_leaves, tree_unflatten

from .. import _compat
from .._compat import AnyJaxpr
from .avals import avals_of
from .builder import Rewritten
from .caches import WeakCaches
from .dead_code import pruned_body
from .hooks import Analysis
from .record import Body, aside
from .rewrite import Rewriter, new_rewriter
from .settings import Settings
from .site import Site
from .traces import Rewriting
from .value import Operand


class Adapter(Protocol):
    """A function that `rewrite_jaxpr` calls before or after a body.

    It adds equations to the body, on behalf of the site, and returns new operands or new
    results.
    """

    def __call__(self, site: Site, operands: Sequence[Operand], /) -> list[Any]: ...


# A fact about the operand of a body at a position, for an analysis.
_Known = tuple[type[Analysis], int, Any]

# A body keeps its own rewritten forms.
_rewritten = WeakCaches(256)


def rewrite_jaxpr(
    site: Site,
    jaxpr: AnyJaxpr,
    operands: Sequence[Any],
    entering: Adapter | None = None,
    leaving: Adapter | None = None,
    settings: Settings | None = None,
) -> Rewritten:
    """Rewrite a jaxpr in an equation for operands of this structure, once.

    The result is kept as long as the jaxpr lives. So a body that is called a hundred times,
    or by a hundred programs, is rewritten and compiled once. The adapters change the
    operands before the first equation of the jaxpr, and the results after the last one.
    They are part of the cache's key. ``settings`` are given where JAX calls a rule, after the
    program of the site is finished.

    So are the facts about the operands that a hook of the site's program says matter to the body.
    """
    rewriting = Rewriting(settings) if settings is not None else site.builder.rewriting
    if site.is_in_rule:
        rewriting = rewriting.of_rules()
    leaves, in_tree = tree_flatten(list(operands))
    avals = tuple(avals_of(leaves))
    # Where JAX calls a rule, no program is around it.
    known = () if settings is not None else tuple(facts_of(site.builder, jaxpr, operands))
    state = rewriting.settings.key(), bool(rewriting.passes), _compat.trace_context()
    key = (in_tree, avals, known, entering, leaving, *state)
    cache = None if rewriting.settings.keeps_nothing else _rewritten.of(jaxpr)
    try:
        rewritten: Rewritten | None = None if cache is None else cache.get(key)
    except TypeError:  # The metadata is not hashable.
        cache = rewritten = None
    if rewritten is None:
        recorder = rewriting.settings.recorder
        with aside(recorder) as records:
            likes = tree_unflatten(in_tree, avals)
            rewritten = _rewrite(rewriting, jaxpr, likes, known, site, entering, leaving)
        if recorder is not None:
            recorder.add_body(Body(jaxpr, rewritten.jaxpr, records))
        if cache is not None and not _compat.has_tracers(rewritten.consts):
            cache.put(key, rewritten)
    if settings is None:  # Else the builder of the site is finished.
        site.builder.note(rewritten)
    return rewritten


def inlined(site: Site, jaxpr: AnyJaxpr, operands: Sequence[Operand]) -> Sequence[Operand]:
    """Rewrite a jaxpr in an equation, and add its equations in place of this one."""
    rewritten = rewrite_jaxpr(site, jaxpr, operands)
    leaves = [*site.take_over(rewritten), *tree_leaves(operands)]
    results: list[Operand] = tree_unflatten(
        rewritten.out_tree, site.inline(rewritten.jaxpr, leaves)
    )
    return results


def facts_of(
    builder: Rewriter, jaxpr: AnyJaxpr, operands: Sequence[Any]
) -> Iterator[_Known]:
    """The facts about operands in a builder that its hooks say matter to a jaxpr."""
    for hook in builder.hooks:
        for kind, facts in hook.known(jaxpr, operands).items():
            yield from ((kind, i, fact) for i, fact in facts.items())


def _rewrite(
    rewriting: Rewriting,
    jaxpr: AnyJaxpr,
    likes: Sequence[Any],
    known: Sequence[_Known],
    site: Site,
    entering: Adapter | None,
    leaving: Adapter | None,
) -> Rewritten:
    inner, consts = _compat.open_jaxpr(jaxpr)
    inner = pruned_body(inner, site.eqn)
    builder = new_rewriter(rewriting)
    for hook in builder.hooks:
        hook.begin(inner)
    # The body is a program of its own, whichever rule the equation comes from.
    inside = Site(builder, site.eqn, site.eqn.outvars)
    pairs = zip(inner.invars[len(consts) :], likes, strict=True)
    operands: list[Any] = [builder.operand(var, like) for var, like in pairs]
    invars = tree_leaves(operands)
    for kind, i, fact in known:
        builder.facts.setdefault(kind, {})[operands[i]] = fact
    if entering is not None:
        operands = entering(inside, operands)
    operands = [*builder.constants(inner, consts), *operands]
    results = builder.run(builder.after_passes(inner, operands), operands)
    for hook in builder.hooks:
        results = list(hook.end(operands, results))
    if leaving is not None:
        results = leaving(inside, results)
    outvars, out_tree = tree_flatten(results)
    return builder.finish(invars, outvars, out_tree, inner.debug_info)

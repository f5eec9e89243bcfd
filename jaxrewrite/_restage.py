"""Jaxprs inside of equations, rewritten: each once for each structure of operands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from jax.tree_util import PyTreeDef, tree_flatten, tree_leaves, tree_unflatten

from . import _compat
from ._avals import avals_of
from ._caches import WeakCaches
from ._draft import Restaged
from ._rewrite import Scope
from ._site import Site
from ._traces import Rewriting, has_tracers


class Adapter(Protocol):
    """What `restage` puts before or after a body.

    It adds equations to the scope, on behalf of the site, and returns other
    operands or results.
    """

    def __call__(
        self, scope: Scope, operands: Sequence[Any], site: Site, /
    ) -> list[Any]: ...


# Kept with the body.
_known = WeakCaches(256)


def restage(
    rewriting: Rewriting,
    jaxpr: Any,
    operands: Sequence[Any],
    site: Site,
    entering: Adapter | None = None,
    leaving: Adapter | None = None,
) -> Restaged:
    """Rewrite a jaxpr in an equation for operands of this structure, once.

    Remembered as long as the jaxpr lives, so that a body which is called
    a hundred times, or by a hundred programs, is rewritten and compiled
    once. The adapters, compared like the rest of the key, change operands
    before the first of the jaxpr's equations and results after the last.
    """
    leaves, in_tree = tree_flatten(list(operands))
    avals = avals_of(leaves)

    def anew() -> Restaged:
        return _restage(rewriting, jaxpr, in_tree, avals, site, entering, leaving)

    cache = _known.of(jaxpr)
    state = rewriting.settings.key(), _compat.trace_context()
    key = (in_tree, tuple(avals), entering, leaving, *state)
    try:
        restaged = cache.get(key)
    except TypeError:  # metadata that can't be hashed
        return anew()
    if restaged is None:
        restaged = anew()
        if not has_tracers(restaged.consts):
            cache.put(key, restaged)
    return restaged


def _restage(
    rewriting: Rewriting,
    jaxpr: Any,
    in_tree: PyTreeDef,
    avals: Sequence[Any],
    site: Site,
    entering: Adapter | None,
    leaving: Adapter | None,
) -> Restaged:
    inner, consts = _compat.open_jaxpr(jaxpr)
    scope = Scope(rewriting)
    inside = Site.of(site.eqn)
    operands = [
        scope.operand(var, like)
        for var, like in zip(
            inner.invars[len(consts) :], tree_unflatten(in_tree, avals), strict=True
        )
    ]
    invars = tree_leaves(operands)
    if entering is not None:
        operands = entering(scope, operands, inside)
    results = scope.run(inner, [*scope.constants(inner, consts), *operands])
    if leaving is not None:
        results = leaving(scope, results, inside)
    outvars, out_tree = tree_flatten(results)
    return scope.finish(invars, outvars, out_tree, inner.debug_info)

"""Equations that nothing needs.

No value is to be made dense, and no rule to be asked, for the sake of a result
that nobody looks at.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.extend.core as jex_core

from . import _compat
from ._caches import WeakCaches
from ._compat import Jaxpr, JaxprEqn, Literal, dce_rules


def live_equations(eqns: Sequence[JaxprEqn], outvars: Sequence[Any]) -> list[JaxprEqn]:
    """The equations that results or effects need."""
    needed = {var for var in outvars if type(var) is not Literal}
    kept = []
    for eqn in reversed(eqns):
        if eqn.effects or not needed.isdisjoint(eqn.outvars):
            for atom in eqn.invars:
                if type(atom) is not Literal:
                    needed.add(atom)
            kept.append(eqn)
    kept.reverse()
    return kept


def drop_dead_code(jaxpr: Jaxpr) -> Jaxpr:
    """Drop equations, also in nested jaxprs, that nothing needs; effects stay.

    JAX's own pass does it, which costs as much as the rest of a rewriting; most
    programs have nothing to drop, which is seen in a fraction of that.
    """
    return _compat.drop_dead_code(jaxpr) if _may_have_dead_code(jaxpr) else jaxpr


def _may_have_dead_code(jaxpr: Jaxpr) -> bool:
    """Whether some equation's effects, result, or nested operand may be dropped."""
    needed = {var for var in jaxpr.outvars if type(var) is not Literal}
    for eqn in reversed(jaxpr.eqns):
        if eqn.effects or needed.isdisjoint(eqn.outvars):
            return True
        if eqn.primitive in dce_rules:
            if not needed.issuperset(eqn.outvars):
                return True
            if any(map(_body_may_have_dead_code, jex_core.jaxprs_in_params(eqn.params))):
                return True
        for atom in eqn.invars:
            if type(atom) is not Literal:
                needed.add(atom)
    return False


# The same few bodies (of `jnp.where`, say) are met in every program.
_known = WeakCaches(1)


def _body_may_have_dead_code(jaxpr: Jaxpr) -> bool:
    cache = _known.of(jaxpr)
    known = cache.get("may have dead code")
    if known is None:
        used = {a for eqn in jaxpr.eqns for a in eqn.invars if type(a) is not Literal}
        used.update(a for a in jaxpr.outvars if type(a) is not Literal)
        known = not used.issuperset(jaxpr.invars) or _may_have_dead_code(jaxpr)
        cache.put("may have dead code", known)
    return known

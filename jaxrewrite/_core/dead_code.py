"""Equations with results that nothing needs.

A result that nothing needs must not make a value dense or cause a call of a rule.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence, Set
from typing import Any, NamedTuple

import jax.extend.core as jex_core

from .. import _compat
from .._compat import Jaxpr, JaxprEqn, Literal, Var, dce_rules
from .caches import WeakCaches


def live_equations(eqns: Sequence[JaxprEqn], outvars: Sequence[Any]) -> list[JaxprEqn]:
    """The equations that the results or the effects need."""
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


class DataFlow(NamedTuple):
    """The variables that equations define, and the variables that they use."""

    defined: Set[Var]
    used: Set[Var]


def _data_flow(eqns: Sequence[JaxprEqn]) -> DataFlow:
    defined, used = (
        itertools.chain.from_iterable(map(operator.attrgetter(name), eqns))
        for name in ("outvars", "invars")
    )
    return DataFlow({*defined}, {atom for atom in used if type(atom) is not Literal})


def drop_dead_code(jaxpr: Jaxpr, flow: DataFlow | None = None) -> Jaxpr:
    """Drop equations, also in nested jaxprs, that nothing needs; effects stay.

    JAX's own pass does it, but costs as much as the rest of a rewriting. Most programs have
    nothing to drop, and a check that costs a fraction of the pass finds that out. ``flow`` is
    that of the jaxpr, if it is known.
    """
    flow = flow or _data_flow(jaxpr.eqns)
    return _compat.drop_dead_code(jaxpr) if _may_have_dead_code(jaxpr, flow) else jaxpr


_pruned_bodies = WeakCaches(1)


def pruned_body(jaxpr: Jaxpr, eqn: JaxprEqn) -> Jaxpr:
    """A jaxpr of an equation without dead code.

    JAX's pass has left it there if it does not know the primitive. A release of JAX before
    0.11 does not know ``while``, for example.
    """
    if eqn.primitive in dce_rules:
        return jaxpr
    cache = _pruned_bodies.of(jaxpr)
    pruned: Jaxpr | None = cache.get("pruned")
    if pruned is None:
        if not _may_have_dead_code(jaxpr, _data_flow(jaxpr.eqns)):
            return jaxpr
        pruned = _compat.drop_dead_code(jaxpr)
        cache.put("pruned", pruned)
    return pruned


def _may_have_dead_code(jaxpr: Jaxpr, flow: DataFlow) -> bool:
    """Whether an equation, a result or an operand of a nested jaxpr may be dropped."""
    eqns = jaxpr.eqns
    if any(map(operator.attrgetter("effects"), eqns)):
        return True
    # Equations that nothing needs may use each other's results, but not the last one's.
    results = {var for var in jaxpr.outvars if type(var) is not Literal}
    unneeded = {*(flow.defined - flow.used - results)}
    if unneeded and any(unneeded.issuperset(eqn.outvars) for eqn in eqns):
        return True
    primitives = set(map(operator.attrgetter("primitive"), eqns))
    if primitives.isdisjoint(dce_rules):
        return False
    bodies: set[Any] = set()
    for eqn in eqns:
        if eqn.primitive in dce_rules:
            if not unneeded.isdisjoint(eqn.outvars):
                return True
            bodies.update(jex_core.jaxprs_in_params(eqn.params))
    return any(map(_body_may_have_dead_code, bodies))


# Every program contains the same few bodies, for example of `jnp.where`.
_body_answers = WeakCaches(1)


def _body_may_have_dead_code(jaxpr: Jaxpr) -> bool:
    cache = _body_answers.of(jaxpr)
    may_have = cache.get("may have dead code")
    if may_have is None:
        flow = _data_flow(jaxpr.eqns)
        results = {a for a in jaxpr.outvars if type(a) is not Literal}
        needs_all = flow.used | results >= {*jaxpr.invars}
        may_have = not needs_all or _may_have_dead_code(jaxpr, flow)
        cache.put("may have dead code", may_have)
    return may_have

"""Donated operands: an array that a program needs for something else is not donated.

Several values may share a leaf: a LoRA weight and its double share a factor. The dense program has
an array for each, so it may donate one of them.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from .. import _compat
from .._compat import Jaxpr, JaxprEqn, Literal


def without_shared_donations(jaxpr: Jaxpr) -> Jaxpr:
    """The program, whose calls donate no operand twice, and none that is used again."""
    if not any(map(_donates, jaxpr.eqns)):
        return jaxpr
    needed, eqns = {atom for atom in jaxpr.outvars if type(atom) is not Literal}, []
    for eqn in reversed(jaxpr.eqns):
        eqns.append(_without_donation_of(needed, eqn) if _donates(eqn) else eqn)
        needed.update(atom for atom in eqn.invars if type(atom) is not Literal)
    return _compat.new_jaxpr(
        jaxpr.invars, jaxpr.outvars, eqns[::-1], jaxpr.debug_info, jaxpr.is_high
    )


def _donates(eqn: JaxprEqn) -> bool:
    return any(eqn.params.get("donated_invars", ()))


def _without_donation_of(needed: set[Any], eqn: JaxprEqn) -> JaxprEqn:
    counts = Counter(map(id, eqn.invars))
    donated = tuple(
        is_donated and not (type(atom) is Literal or atom in needed or counts[id(atom)] > 1)
        for is_donated, atom in zip(eqn.params["donated_invars"], eqn.invars, strict=True)
    )
    return eqn.replace(params={**eqn.params, "donated_invars": donated})

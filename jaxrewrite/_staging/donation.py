"""Donated operands: an array that a program needs for something else is not donated.

Several values may share a leaf: a LoRA weight and its double share a factor. The dense program has
an array for each, so it may donate one of them. Leaves of the arguments may be one array, too, which
is known where the program runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from .. import _compat
from .._compat import Jaxpr, JaxprEqn, Literal, Var
from .aliases import sources


def without_shared_donations(jaxpr: Jaxpr) -> Jaxpr:
    """The program, whose calls donate no operand twice, and none that is used again."""
    if not donates(jaxpr):
        return jaxpr
    first = sources(jaxpr.eqns)
    of = lambda atoms: (first.get(x, x) for x in atoms if type(x) is not Literal)
    needed, eqns = {*of(jaxpr.outvars)}, []
    for eqn in reversed(jaxpr.eqns):
        eqns.append(_without_donation_of(needed, first, eqn) if _is_donating(eqn) else eqn)
        needed.update(of(eqn.invars))
    return _compat.new_jaxpr(
        jaxpr.invars, jaxpr.outvars, eqns[::-1], jaxpr.debug_info, jaxpr.is_high
    )


def donates(jaxpr: Jaxpr) -> bool:
    """Whether a program donates an array to a call."""
    return any(map(_is_donating, jaxpr.eqns))


def told_apart(operands: Sequence[Any]) -> list[Any]:
    """The operands of a program that donates, with a copy of each array that is there already."""
    seen: set[int] = set()
    apart = []
    for x in operands:
        is_again = id(x) in seen and isinstance(x, jax.Array)
        seen.add(id(x))
        apart.append(jax.device_put(x, x.sharding, may_alias=False) if is_again else x)
    return apart


def without_donation(eqn: JaxprEqn) -> JaxprEqn:
    """The equation, which donates nothing: nobody knows which tracers stand for one array."""
    if not _is_donating(eqn):
        return eqn
    none = (False,) * len(eqn.invars)
    return eqn.replace(params={**eqn.params, "donated_invars": none})


def _is_donating(eqn: JaxprEqn) -> bool:
    return any(eqn.params.get("donated_invars", ()))


def _without_donation_of(
    needed: set[Any], first: Mapping[Var, Var], eqn: JaxprEqn
) -> JaxprEqn:
    arrays = [x if isinstance(x, Literal) else first.get(x, x) for x in eqn.invars]
    counts = Counter(map(id, arrays))
    donated = tuple(
        is_donated and not (type(x) is Literal or x in needed or counts[id(x)] > 1)
        for is_donated, x in zip(eqn.params["donated_invars"], arrays, strict=True)
    )
    return eqn.replace(params={**eqn.params, "donated_invars": donated})

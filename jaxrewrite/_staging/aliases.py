"""Variables that have the numbers of another one, because what makes them returns what it got.

A call may return an operand as it is, and a loop may read an array in slices and stack the same
slices again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .. import _compat
from .._compat import AnyJaxpr, Atom, Jaxpr, JaxprEqn, Literal, Var
from .._core.caches import WeakCaches
from .._core.rewrite import IDENTITIES


# Each result of these is an operand. A copy is an array of its own.
_PASSING = {*IDENTITIES, "device_put"} - {"copy", "copy_p"}

_CALLING = frozenset({"closed_call", "custom_jvp_call", "custom_vjp_call", "jit", "remat2"})


def sources(eqns: Sequence[JaxprEqn]) -> dict[Var, Var]:
    """For each variable with the numbers of earlier ones, the first of these."""
    found: dict[Var, Var] = {}
    for eqn in eqns:
        for result, operand in _passed_on(eqn):
            if not isinstance(operand, Literal):
                found[result] = found.get(operand, operand)
    return found


def with_results_of_sources(jaxpr: Jaxpr) -> Jaxpr:
    """The jaxpr, which returns an array of which it has several variables by the first of them."""
    found = sources(jaxpr.eqns)

    def source(var: Atom) -> Atom:
        first = var if isinstance(var, Literal) else found.get(var, var)
        return first if first.aval == var.aval else var

    outvars = list(map(source, jaxpr.outvars))
    return _compat.new_jaxpr(
        jaxpr.invars, outvars, jaxpr.eqns, jaxpr.debug_info, jaxpr.is_high
    )


def _passed_on(eqn: JaxprEqn) -> Iterator[tuple[Var, Atom]]:
    """The results of an equation that are operands, with these."""
    name = eqn.primitive.name
    if name in _PASSING:
        yield from zip(eqn.outvars, eqn.invars, strict=True)
    elif name in _CALLING or name == "scan":
        donated = eqn.params.get("donated_invars", [False] * len(eqn.invars))
        for i, place in _passed_by(eqn.params[_compat.body_name(eqn.primitive)]):
            # What a call gets to keep is not that of the caller any more.
            if not donated[place] and (name != "scan" or _is_kept(eqn, i, place)):
                yield eqn.outvars[i], eqn.invars[place]


_kept = WeakCaches(1)


def _passed_by(body: AnyJaxpr) -> list[tuple[int, int]]:
    """The results of a body that are operands, with these, by their positions."""
    cache = _kept.of(body)
    pairs = cache.get("passed")
    if pairs is None:
        jaxpr, consts = _compat.open_jaxpr(body)
        places = {var: i for i, var in enumerate(jaxpr.invars[len(consts) :])}
        found = sources(jaxpr.eqns)
        known = (
            (i, places.get(found.get(var, var)))
            for i, var in enumerate(jaxpr.outvars)
            if not isinstance(var, Literal)
        )
        pairs = [(i, place) for i, place in known if place is not None]
        cache.put("passed", pairs)
    return pairs


def _is_kept(eqn: JaxprEqn, result: int, operand: int) -> bool:
    """Whether a carry of a scan is never changed, or the results of all turns are one operand."""
    num_consts, num_carry = _compat.scan_counts(eqn.params)
    if result < num_carry:
        return operand == num_consts + result
    return operand >= num_consts + num_carry

"""Variables that have the numbers of another one, because what makes them returns what it got.

A call may return an operand as it is, and a loop may read an array in slices and stack the same
slices again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set

from .. import _compat
from .._compat import AnyJaxpr, Atom, Jaxpr, JaxprEqn, Literal, Var
from .._core.caches import WeakCaches
from .._core.rewrite import IDENTITIES


# What returns an array that it read is the same in derivatives, too. A function with a derivative
# rule of its own is so where nothing is differentiated.
READING = frozenset({"closed_call", "jit", "remat2", "scan"})
WITH_RULES = frozenset({"custom_jvp_call", "custom_vjp_call"})

# Each result of these is an operand, maybe at another place. A copy is an array of its own.
_PASSING = {*IDENTITIES, "device_put"} - {"copy", "copy_p"}

_SHARING = READING | WITH_RULES | _PASSING


def sources(eqns: Sequence[JaxprEqn], through: Set[str] = _SHARING) -> dict[Var, Var]:
    """For each variable that may share the array of earlier ones, the first of these.

    ``through`` are the primitives that are looked through.
    """
    found: dict[Var, Var] = {}
    for eqn in eqns:
        if eqn.primitive.name in through:
            for result, operand in _passed_on(eqn, through):
                if not isinstance(operand, Literal):
                    found[result] = found.get(operand, operand)
    return found


def with_results_of_sources(jaxpr: Jaxpr, through: Set[str]) -> Jaxpr:
    """The jaxpr, which returns an array of which it has several variables by the first of them."""
    found = sources(jaxpr.eqns, through)

    def source(var: Atom) -> Atom:
        first = var if isinstance(var, Literal) else found.get(var, var)
        return first if first.aval == var.aval else var

    outvars = list(map(source, jaxpr.outvars))
    return _compat.new_jaxpr(
        jaxpr.invars, outvars, jaxpr.eqns, jaxpr.debug_info, jaxpr.is_high
    )


def _passed_on(eqn: JaxprEqn, through: Set[str]) -> Iterator[tuple[Var, Atom]]:
    """The results of an equation that are operands, with these."""
    name = eqn.primitive.name
    if name in _PASSING:
        yield from zip(eqn.outvars, eqn.invars, strict=True)
    # A call may place its arrays, as `jax.device_put` does.
    elif "device_put" in through or name != "jit" or _compat.is_unplaced(eqn.params):
        donated = eqn.params.get("donated_invars", [False] * len(eqn.invars))
        body = eqn.params[_compat.body_name(eqn.primitive)]
        for i, place in _passed_by(body, through):
            # What a call gets to keep is not that of the caller any more.
            if not donated[place] and (name != "scan" or _is_kept(eqn, i, place)):
                yield eqn.outvars[i], eqn.invars[place]


_known = WeakCaches(4)


def _passed_by(body: AnyJaxpr, through: Set[str]) -> list[tuple[int, int]]:
    """The results of a body that are operands, with these, by their positions."""
    cache = _known.of(body)
    pairs = cache.get(through)
    if pairs is None:
        jaxpr, consts = _compat.open_jaxpr(body)
        places = {var: i for i, var in enumerate(jaxpr.invars[len(consts) :])}
        found = sources(jaxpr.eqns, through)
        known = (
            (i, places.get(found.get(var, var)))
            for i, var in enumerate(jaxpr.outvars)
            if not isinstance(var, Literal)
        )
        pairs = [(i, place) for i, place in known if place is not None]
        cache.put(through, pairs)
    return pairs


def _is_kept(eqn: JaxprEqn, result: int, operand: int) -> bool:
    """Whether a carry of a scan is never changed, or the results of all turns are one operand."""
    num_consts, num_carry = _compat.scan_counts(eqn.params)
    if result < num_carry:
        return operand == num_consts + result
    return operand >= num_consts + num_carry

"""Work of a scan that is the same in each step, and that is done once before it.

XLA does so for what it compiles, but it cannot for a gradient: the derivative of a product in
the body is a product in each step, whose results are added up. Before the scan, the
derivatives of its result are added up, and there is one product.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax
from jax.extend.core import jaxprs_in_params

from .. import _compat
from .._analyses.calls import body_of, can_match
from .._compat import Jaxpr, JaxprEqn, Literal
from .._insight.costs import of_equation
from .._patterns.rules import Rules
from .._staging.transform import transform


def work_before_the_loop(
    rules: Rules, operands: Sequence[Any], params: dict[str, Any]
) -> Any:
    """The results of a scan, of which no step repeats the work of another.

    The body is rewritten by the rules first, so that work that was moved out of a scan in the
    body moves out of this scan as well.

    Work are the equations that take more operations than their results have numbers:
    products, reductions, factorisations. The rest may be computed again, since to keep it
    takes memory.
    """
    if params["length"] < 2:
        return NotImplemented
    body, consts = _compat.open_jaxpr(params["jaxpr"])
    avals = [_compat.leaf_aval(var) for var in body.invars]
    rewritten = transform(functools.partial(_inlined, body), rules=rules)
    flat, others = _compat.open_jaxpr(jax.make_jaxpr(rewritten)(*avals))
    num_consts, num_carry = _compat.scan_counts(params)
    fixed = [*others, *consts, *operands[:num_consts]]
    once, results = _work(flat, len(fixed))
    if not results:
        return NotImplemented
    kept = _function(flat, flat.invars[: len(fixed)], results, once)(*fixed)
    rest = [eqn for eqn in flat.eqns if not any(eqn is other for other in once)]
    step = _function(flat, [*results, *flat.invars], flat.outvars, rest)

    def turn(carry: Any, xs: Any) -> Any:
        outs = step(*kept, *fixed, *carry, *xs)
        return outs[:num_carry], outs[num_carry:]

    start = num_consts + num_carry
    carry, ys = lax.scan(
        turn,
        list(operands[num_consts:start]),
        list(operands[start:]),
        length=params["length"],
        reverse=params["reverse"],
        unroll=params["unroll"],
    )
    return [*carry, *ys]


def _inlined(jaxpr: Jaxpr, *args: Any) -> list[Any]:
    """The results of a jaxpr, without its calls: repeated work may be inside of a call."""
    known = dict(zip(jaxpr.invars, args, strict=True))

    def read(atom: Any) -> Any:
        return atom.val if type(atom) is Literal else known[atom]

    for eqn in jaxpr.eqns:
        operands = list(map(read, eqn.invars))
        body = body_of(eqn)
        with eqn.ctx.manager:
            outs = (
                _compat.bind_eqn(eqn, operands)
                if body is None
                else _inlined(body, *operands)
            )
        known.update(zip(eqn.outvars, outs, strict=True))
    return list(map(read, jaxpr.outvars))


def _work(jaxpr: Jaxpr, fixed: int) -> tuple[list[JaxprEqn], list[Any]]:
    """The equations of work on the first operands alone, and the results that others use."""
    known, same = {*jaxpr.invars[:fixed]}, []
    for eqn in jaxpr.eqns:
        if _may_move(eqn) and _variables(eqn.invars) <= known:
            known.update(eqn.outvars)
            same.append(eqn)
    needed: set[Any] = set()
    once: list[JaxprEqn] = []
    for eqn in reversed(same):
        if _is_work(eqn) or not needed.isdisjoint(eqn.outvars):
            needed |= _variables(eqn.invars)
            once.insert(0, eqn)
    results = [var for eqn in once for var in eqn.outvars]
    used = _variables(jaxpr.outvars)
    for eqn in jaxpr.eqns:
        if not any(eqn is other for other in once):
            used |= _variables(eqn.invars)
    return once, [var for var in results if var in used]


def _may_move(eqn: JaxprEqn) -> bool:
    """Whether nothing in an equation, also in its jaxprs, has to stay where it is."""
    bodies = jaxprs_in_params(eqn.params)
    return can_match(eqn) and all(
        _may_move(inner) for body in bodies for inner in body.eqns
    )


def _variables(atoms: Sequence[Any]) -> set[Any]:
    return {atom for atom in atoms if type(atom) is not Literal}


def _is_work(eqn: JaxprEqn) -> bool:
    results = sum(_compat.leaf_aval(var).size for var in eqn.outvars)
    return of_equation(eqn).flops > 2 * results


def _function(
    jaxpr: Jaxpr, invars: Sequence[Any], outvars: Sequence[Any], eqns: Sequence[JaxprEqn]
) -> Callable[..., list[Any]]:
    """The function of some equations of a jaxpr."""
    part = _compat.new_jaxpr(invars, outvars, eqns, jaxpr.debug_info, jaxpr.is_high)
    return _compat.function_of(_compat.close_jaxpr(part))

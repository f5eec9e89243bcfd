"""`jax.jit`: the equation keeps its name, its body is rewritten.

What the parameters say of each operand or result (donation, sharding, layout)
is said of each leaf instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax.tree_util import tree_leaves, tree_unflatten

from .. import _compat
from .._compat import UNSPECIFIED, JaxprEqn, SourceInfo, Var
from .._rewrite import Restaged, Scope, handles
from .._value import avals_of, is_value


@handles("jit")
def jit_handler(
    scope: Scope, eqn: JaxprEqn, operands: list[Any], origin: SourceInfo | None
) -> list[Any]:
    restaged = scope.rewriting.restage(eqn.params["jaxpr"], operands)
    if not restaged.changed and not any(map(is_value, operands)):
        results = [Var(var.aval) for var in eqn.outvars]
        scope.copy(eqn, operands, results, origin)
        return results
    scope.changed = True
    consts = [scope.const(value) for value in restaged.consts]
    leaves = [*consts, *tree_leaves(operands)]
    results = [Var(aval) for aval in restaged.jaxpr.out_avals]
    effects = _compat.rename_effects(
        restaged.jaxpr.effects, dict(zip(restaged.jaxpr.invars, leaves, strict=True))
    )
    params = _jit_params(eqn.params, len(consts), operands, restaged)
    scope.copy(eqn, leaves, results, origin, params, effects)
    return tree_unflatten(restaged.out_tree, results)


def _jit_params(
    params: dict[str, Any], num_consts: int, operands: list[Any], restaged: Restaged
) -> dict[str, Any]:
    outs = tree_unflatten(restaged.out_tree, restaged.jaxpr.outvars)
    donated = [
        flag
        for flag, operand in zip(params["donated_invars"], operands, strict=True)
        for _ in tree_leaves(operand)
    ]
    return dict(
        params,
        jaxpr=restaged.closed,
        donated_invars=(*[False] * num_consts, *donated),
        in_shardings=(
            *[UNSPECIFIED] * num_consts,
            *_per_leaf(params["in_shardings"], operands, UNSPECIFIED),
        ),
        in_layouts=(
            *[None] * num_consts,
            *_per_leaf(params["in_layouts"], operands, None),
        ),
        out_shardings=_per_leaf(params["out_shardings"], outs, UNSPECIFIED),
        out_layouts=_per_leaf(params["out_layouts"], outs, None),
    )


def _per_leaf(per_operand: Sequence[Any], operands: Sequence[Any], default: Any) -> Any:
    """What is said of an operand, for those of its leaves that it can be true of."""
    expanded = []
    for said, operand in zip(per_operand, operands, strict=True):
        (aval,) = avals_of([operand])
        for leaf in tree_leaves(operand):
            fits = _compat.same_array_type(_compat.leaf_aval(leaf), aval)
            expanded.append(said if fits else default)
    return tuple(expanded)

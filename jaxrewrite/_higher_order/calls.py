"""Primitives that call one jaxpr once: `jax.jit`, `jax.checkpoint` and their kin.

The equation stays one equation of the same primitive, under the same name and
policy, and its body is rewritten. What the parameters say of each operand or
result (donation, sharding, whether it may be shared) is said of each leaf.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from jax.tree_util import tree_leaves, tree_unflatten

from .. import _compat
from .._compat import UNSPECIFIED, JaxprEqn, SourceInfo, Var
from .._rewrite import Restaged, Scope, handlers
from .._value import avals_of, is_value


class _Call(NamedTuple):
    """The parameters of a calling primitive.

    ``of_operands`` and ``of_results`` are those that say something of each, and
    what is to be said of the others: constants that the body is given besides,
    and, for those in ``of_arrays``, leaves of another shape or dtype than the
    array that the value stands for.
    """

    body_is_closed: bool = True
    of_operands: dict[str, Any] = {}
    of_results: dict[str, Any] = {}
    of_arrays: frozenset[str] = frozenset()


_CALLS = {
    "jit": _Call(
        of_operands={
            "donated_invars": False,
            "in_shardings": UNSPECIFIED,
            "in_layouts": None,
        },
        of_results={"out_shardings": UNSPECIFIED, "out_layouts": None},
        of_arrays=frozenset({"in_shardings", "in_layouts", "out_shardings", "out_layouts"}),
    ),
    "remat2": _Call(body_is_closed=False, of_operands={"prevent_cse": False}),
    "closed_call": _Call(),
    "eval_jaxpr": _Call(),
    "compute_on": _Call(of_results={"out_memory_spaces": None}),
    "xla_metadata_call": _Call(),
    "fused_call": _Call(of_results={"out_spaces": None}),
    "program_order": _Call(of_operands={"exclude_mask": False}),
}


def call_handler(
    scope: Scope, eqn: JaxprEqn, operands: list[Any], origin: SourceInfo | None
) -> Any:
    call = _CALLS[eqn.primitive.name]
    restaged = scope.rewriting.restage(
        eqn.params[_compat.body_name(eqn.params)], operands, eqn
    )
    if not restaged.changed and not any(map(is_value, operands)):
        return NotImplemented  # the equation stays as it is
    consts = scope.include(restaged)
    leaves = [*consts, *tree_leaves(operands)]
    results = [Var(aval) for aval in restaged.jaxpr.out_avals]
    effects = _compat.effects_on(restaged.jaxpr, leaves)
    params = _leaf_params(call, eqn.params, len(consts), operands, restaged)
    scope.copy(eqn, leaves, results, origin, params, effects)
    return tree_unflatten(restaged.out_tree, results)


handlers.update(dict.fromkeys(_CALLS, call_handler))


def _leaf_params(
    call: _Call,
    params: dict[str, Any],
    num_consts: int,
    operands: Sequence[Any],
    restaged: Restaged,
) -> dict[str, Any]:
    results = restaged.results()
    body = _compat.body_name(params)
    expanded = {body: restaged.closed if call.body_is_closed else restaged.jaxpr}
    for names, arrays, prefix in (
        (call.of_operands, operands, num_consts),
        (call.of_results, results, 0),
    ):
        for name, default in names.items():
            # A parameter that is said once for all is no tuple.
            if isinstance(params[name], tuple):
                leaves = _per_leaf(params[name], arrays, default, name in call.of_arrays)
                expanded[name] = (*[default] * prefix, *leaves)
    return {**params, **expanded}


def _per_leaf(
    said: Sequence[Any], arrays: Sequence[Any], default: Any, of_arrays: bool
) -> list[Any]:
    expanded = []
    for what, array in zip(said, arrays, strict=True):
        (aval,) = avals_of([array])
        for leaf in tree_leaves(array):
            fits = not of_arrays or _compat.same_array_type(_compat.leaf_aval(leaf), aval)
            expanded.append(what if fits else default)
    return expanded

"""`jax.custom_jvp`: the function on values, with its derivative rule.

The equation becomes one of the same primitive on the leaves. Its rule runs the user's rule
on values. JAX calls it whenever it would call the original rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax.custom_derivatives import SymbolicZero
from jax.tree_util import tree_leaves, tree_structure, tree_unflatten

from .. import _compat
from .._core.join import MakeDense
from .._core.rewrite import Scope, handlers
from .._core.settings import Settings, use_settings
from .._core.site import Site
from .._core.value import is_value
from .._staging.closures import resolve
from .._staging.materialise import materialise
from .._staging.program import function_of, run_on_values
from .derivatives import (
    add_call,
    bring_primals,
    chunks,
    has_array_tangents,
    ignores_custom_rules,
    is_array,
    lift,
    noting,
    restage_call,
    tangent_of,
    targets,
    zero_tangent,
)


def custom_jvp_handler(scope: Scope, site: Site, operands: list[Any]) -> Any:
    restaged = restage_call(scope, site, operands)
    if not restaged.changed and not any(map(is_value, operands)):
        return NotImplemented  # The equation stays as it is.
    num_consts = len(restaged.consts)
    symbolic = site.params["symbolic_zeros"]
    settings = scope.rewriting.settings
    in_tree = tree_structure(operands)
    call = function_of(restaged, site.params["call_jaxpr"])
    if ignores_custom_rules(operands):
        return add_call(scope, site, call, restaged, operands)
    structures = targets(restaged)

    def rule(primals: Sequence[Any], tangents: Sequence[Any]) -> Any:
        operands = tree_unflatten(in_tree, primals[num_consts:])

        def recompute() -> list[Any]:
            return tree_unflatten(restaged.out_tree, call(*primals))

        with noting(site, operands):
            results, result_tangents = _apply_rule(
                site, operands, tangents[num_consts:], settings, structures, recompute
            )
            return tree_leaves(results), [
                t
                for result, tangent in zip(results, result_tangents, strict=True)
                for t in _leaf_tangents(result, tangent, symbolic, settings)
            ]

    fn = jax.custom_jvp(call)
    # Symbolic zeros show which values need no tangent.
    fn.defjvp(rule, symbolic_zeros=True)
    return add_call(scope, site, fn, restaged, operands)


handlers["custom_jvp_call"] = custom_jvp_handler


def _apply_rule(
    site: Site,
    operands: Sequence[Any],
    leaf_tangents: Sequence[Any],
    settings: Settings,
    structures: Sequence[Any],
    recompute: Any,
) -> tuple[list[Any], list[Any]]:
    """Run the user's rule on values; returns results, and tangents of their arrays."""
    params = site.params
    symbolic = params["symbolic_zeros"]
    tangents = [
        tangent_of(operand, own, symbolic, settings)
        for operand, own in zip(operands, chunks(leaf_tangents, operands), strict=True)
    ][params["num_consts"] :]
    is_zero = [type(t) is SymbolicZero for t in tangents]
    with use_settings(settings.of_traced()):
        jaxpr, consts, zero_results = params["jvp_jaxpr_fun"].call_wrapped(*is_zero)
    inputs = [
        *resolve(consts, settings, site),
        *operands[params["num_consts"] :],
        *(t for t, zero in zip(tangents, is_zero, strict=True) if not zero),
    ]
    # Tangents become dense in the form in which they are lifted, whatever the policy.
    dense = [*map(is_array, structures), *(False for zero in zero_results if not zero)]
    out = run_on_values(
        settings, _compat.constants_first(jaxpr), inputs, site, MakeDense(tuple(dense))
    )
    results = bring_primals(out[: len(structures)], structures, recompute)
    # Where no operand has a tangent no result has one, whatever the rule computes.
    if all(type(t) is SymbolicZero or t.size == 0 for t in leaf_tangents):
        return results, [None] * len(results)
    nonzero = iter(out[len(structures) :])
    result_tangents = [None if zero else next(nonzero) for zero in zero_results]
    return results, [
        materialise(tangent) if has_array_tangents(structure) else tangent
        for structure, tangent in zip(structures, result_tangents, strict=True)
    ]


def _leaf_tangents(
    result: Any, tangent: Any, symbolic: bool, settings: Settings
) -> list[Any]:
    if tangent is None:
        return [zero_tangent(leaf, symbolic) for leaf in tree_leaves(result)]
    return lift(result, tangent, settings) if is_value(result) else [tangent]

"""`jax.custom_vjp`: the function on values, with both of its rules.

Residuals may be values. The backward rule returns cotangents of arrays, which are pulled
back to the leaves.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
from jax.tree_util import tree_leaves, tree_structure, tree_unflatten

from .. import _compat
from .._core.avals import avals_of
from .._core.join import MakeDense
from .._core.rewrite import Scope, handlers
from .._core.settings import Settings, use_settings
from .._core.site import Site
from .._core.value import is_value
from .._staging.closures import resolve
from .._staging.program import function_of, run_on_values
from .derivatives import (
    add_call,
    adopted_zero,
    bring_primals,
    chunks,
    cotangent_of,
    ignores_custom_rules,
    is_array,
    is_inexact,
    noting,
    pull_back,
    restage_call,
    targets,
)


def custom_vjp_handler(scope: Scope, site: Site, operands: list[Any]) -> Any:
    restaged = restage_call(scope, site, operands)
    if not restaged.changed and not any(map(is_value, operands)):
        return NotImplemented  # The equation stays as it is.
    num_hoisted, num_consts = len(restaged.consts), site.params["num_consts"]
    symbolic = site.params["symbolic_zeros"]
    settings = scope.rewriting.settings
    in_tree = tree_structure(operands)
    call = function_of(restaged, site.params["call_jaxpr"])
    if ignores_custom_rules(operands):
        return add_call(scope, site, call, restaged, operands)
    structures = targets(restaged)

    def forward(*args: Any) -> Any:
        leaves = [arg.value for arg in args]
        operands = tree_unflatten(in_tree, leaves[num_hoisted:])
        of_operands = chunks([arg.perturbed for arg in args[num_hoisted:]], operands)
        perturbed = [any(own) for own in of_operands]
        # A rule without symbolic zeros assumes that all operands are perturbed.
        nonzero = [not symbolic or is_perturbed for is_perturbed in perturbed]
        with noting(site, operands):
            residuals, primals = _apply_forward(
                site, operands[num_consts:], nonzero[num_consts:], settings, structures
            )

        def recompute() -> list[Any]:
            return tree_unflatten(restaged.out_tree, call(*leaves))

        results = bring_primals(primals, structures, recompute)
        saved = residuals, _values(operands), _values(results), _Flags(tuple(perturbed))
        return tree_leaves(results), saved

    def backward(saved: Any, leaf_cotangents: Sequence[Any]) -> Any:
        residuals, ins, outs, perturbed = saved
        ins, outs = _with_arrays(ins, site.eqn.invars), _with_arrays(outs, site.outvars)
        with noting(site, ins):
            cotangents = [
                cotangent_of(out, own, settings)
                for out, own in zip(outs, chunks(leaf_cotangents, outs), strict=True)
            ]
            if not symbolic:
                cotangents = list(map(adopted_zero, cotangents, outs))
            pulled = [None] * num_consts + _apply_backward(
                site, residuals, cotangents, settings
            )
            of_leaves = [
                pull_back(operand, cotangent if is_perturbed else None, settings)
                for operand, cotangent, is_perturbed in zip(
                    ins, pulled, perturbed.flags, strict=True
                )
            ]
        return (*[None] * num_hoisted, *(ct for own in of_leaves for ct in own))

    fn = jax.custom_vjp(call)
    # Symbolic zeros show which values need no cotangent.
    fn.defvjp(forward, backward, symbolic_zeros=True)

    def without_tangents_of_integers(*leaves: Any) -> list[Any]:
        # JAX gives integer results of such a function tangents. Not all primitives take these.
        return [x if is_inexact(x) else jax.lax.stop_gradient(x) for x in fn(*leaves)]

    return add_call(scope, site, without_tangents_of_integers, restaged, operands)


handlers["custom_vjp_call"] = custom_vjp_handler


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class _Flags:
    """Whether each operand is perturbed; static, to be kept among the residuals."""

    flags: tuple[bool, ...]


def _values(operands: Sequence[Any]) -> list[Any]:
    """The operands that the backward pass needs: those that are values."""
    return [x if is_value(x) else None for x in operands]


def _with_arrays(values: Sequence[Any], atoms: Sequence[Any]) -> list[Any]:
    """The values, and an atom of the equation for each array."""
    return [
        atom if value is None else value for value, atom in zip(values, atoms, strict=True)
    ]


def _apply_forward(
    site: Site,
    operands: Sequence[Any],
    nonzero: Sequence[bool],
    settings: Settings,
    structures: Sequence[Any],
) -> tuple[list[Any], list[Any]]:
    """Run the user's forward rule on values; returns residuals and results."""
    with use_settings(settings.of_traced()):
        jaxpr, consts = site.params["fwd_jaxpr_thunk"].call_wrapped(*nonzero)
    # After the rule has run, JAX knows which residuals are operands passed on.
    _, residual_tree, forwarded = site.params["out_trees"]()
    num_made = residual_tree.num_leaves - sum(i is not None for i in forwarded)
    dense = [*[False] * num_made, *map(is_array, structures)]
    out = run_on_values(
        settings,
        _compat.constants_first(jaxpr),
        [*resolve(consts, settings, site), *operands],
        site,
        MakeDense(tuple(dense)),
    )
    made = iter(out[:num_made])
    offset = site.params["num_consts"]
    residuals = [next(made) if i is None else operands[i - offset] for i in forwarded]
    return residuals, out[num_made:]


def _apply_backward(
    site: Site,
    residuals: Sequence[Any],
    cotangents: Sequence[Any],
    settings: Settings,
) -> list[Any]:
    """Run the user's backward rule on values; ``None`` stands for no cotangent.

    The rule is a Python function. It is called if all its operands are arrays, and traced
    and rewritten if some are values.
    """
    bwd = site.params["bwd"]
    operands = [*residuals, *cotangents]
    if not any(map(is_value, operands)) and not settings.rules.matter_to_arrays():
        with use_settings(settings):
            return _compat.call_backward(bwd, operands)
    # Flags among the residuals and symbolic zeros must stay known.
    is_traced = [is_value(x) or isinstance(x, _compat.Tracer) for x in operands]
    traced = [x for x, t in zip(operands, is_traced, strict=True) if t]
    there: list[bool] = []

    def flat(*tracers: Any) -> list[Any]:
        rest = iter(tracers)
        filled = [next(rest) if t else x for x, t in zip(operands, is_traced, strict=True)]
        returned = _compat.call_backward(bwd, filled)
        there.extend(ct is not None for ct in returned)
        return [ct for ct in returned if ct is not None]

    debug_info = _compat.new_debug_info("backward", flat)
    with site.context.manager, use_settings(settings.of_traced()):
        jaxpr, consts = _compat.trace_to_jaxpr(flat, avals_of(traced), debug_info)
    results = iter(run_on_values(settings, jaxpr, [*consts, *traced], site))
    return [next(results) if is_there else None for is_there in there]

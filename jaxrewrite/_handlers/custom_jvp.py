"""`jax.custom_jvp`: the function on values, with its derivative rule.

The equation becomes one of the same primitive on the leaves. Its rule runs the user's rule
on values. JAX calls it whenever it would call the original rule.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jax.custom_derivatives import SymbolicZero
from jax.tree_util import tree_leaves, tree_structure, tree_unflatten

from .. import _compat
from .._core.builder import Rewritten
from .._core.rewrite import handlers
from .._core.settings import Settings, use_settings
from .._core.site import Site
from .._core.value import ArrayOrValue, Operand, Results, is_value
from .._staging.closures import run_rule
from .._staging.materialise import materialise
from .._staging.program import function_of
from .adapters import MakeDense
from .derivatives import (
    bring_primals,
    call_function,
    chunks,
    has_array_tangents,
    ignores_custom_rules,
    is_array,
    lift,
    noting,
    rewrite_call,
    tangent_of,
    targets,
    zero_tangent,
)
from .entrywise import FIXED, ZERO, beside, dependences, source
from .tangent_spaces import (
    Space,
    Tangents,
    fixed,
    of_moving_leaves,
    of_operands,
    of_primals,
    of_results,
    run_on_tangents,
)


def custom_jvp_handler(site: Site, operands: list[Operand]) -> Results:
    within = functools.partial(_within, site, operands)
    function = rewrite_call(site, operands, within)
    rewritten, refused = function
    if not rewritten.changed and not any(map(is_value, operands)):
        return NotImplemented  # The equation stays as it is.
    num_consts = len(rewritten.consts)
    symbolic = site.params["symbolic_zeros"]
    settings = site.settings
    in_tree = tree_structure(operands)
    call = function_of(rewritten, site.params["call_jaxpr"])
    if ignores_custom_rules(operands):
        return call_function(site, call, rewritten, operands)
    structures = targets(rewritten)

    def rule(
        primals: Sequence[Any], tangents: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:
        operands = tree_unflatten(in_tree, primals[num_consts:])

        def recompute() -> list[Any]:
            return tree_unflatten(rewritten.out_tree, call(*primals))

        with noting(site, operands):
            if refused and not _are_zero(tangents):
                raise function.refusal(site, min(refused))
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
    known = of_moving_leaves(fn, operands, settings) if symbolic else fn
    return call_function(site, known, rewritten, operands)


handlers["custom_jvp_call"] = custom_jvp_handler


def _apply_rule(
    site: Site,
    operands: Sequence[Any],
    leaf_tangents: Sequence[Any],
    settings: Settings,
    structures: Sequence[Any],
    recompute: Callable[[], list[Any]],
) -> tuple[list[Any], list[Any]]:
    """Run the user's rule on values; returns results, and tangents of their arrays."""
    params = site.params
    symbolic = params["symbolic_zeros"]
    tangents = [
        tangent_of(operand, chunk, symbolic, settings)
        for operand, chunk in zip(operands, chunks(leaf_tangents, operands), strict=True)
    ][params["num_consts"] :]
    is_zero = [type(t) is SymbolicZero for t in tangents]
    with use_settings(settings.of_traced()):
        jaxpr, consts, zero_results = params["jvp_jaxpr_fun"].call_wrapped(*is_zero)
    inputs = [
        *operands[params["num_consts"] :],
        *(t for t, zero in zip(tangents, is_zero, strict=True) if not zero),
    ]
    # Tangents become dense in the form in which they are lifted, whatever the policy.
    dense = [*map(is_array, structures), *(False for zero in zero_results if not zero)]
    out = run_rule(settings, site, jaxpr, consts, inputs, MakeDense(tuple(dense)))
    results = bring_primals(out[: len(structures)], structures, recompute)
    # Where no operand has a tangent no result has one, whatever the rule computes.
    if _are_zero(leaf_tangents):
        return results, [None] * len(results)
    nonzero = iter(out[len(structures) :])
    result_tangents = [None if zero else next(nonzero) for zero in zero_results]
    return results, [
        materialise(tangent) if has_array_tangents(structure) else tangent
        for structure, tangent in zip(structures, result_tangents, strict=True)
    ]


def _are_zero(leaf_tangents: Sequence[Any]) -> bool:
    return all(type(t) is SymbolicZero or t.size == 0 for t in leaf_tangents)


def _leaf_tangents(
    result: ArrayOrValue, tangent: ArrayOrValue | None, symbolic: bool, settings: Settings
) -> list[Any]:
    if tangent is None:
        return [zero_tangent(leaf, symbolic) for leaf in tree_leaves(result)]
    return lift(result, tangent, settings) if is_value(result) else [tangent]


# --- which results can hold their tangents ----------------------------------------------


# A rule for symbolic zeros is tried for each choice among so many operands.
_MANY = 4


def _within(
    site: Site,
    operands: Sequence[Operand],
    rewritten: Rewritten,
    confined: Sequence[int],
    settings: Settings,
    trial: Settings,
) -> set[int]:
    """The results whose tangents the rule keeps within their tangent spaces."""
    ins = of_operands(operands, settings)
    outs = of_results(rewritten, confined, settings)
    kept = {*confined}
    for is_zero in _zero_tangents(site, ins):
        kept &= _kept(site, operands, is_zero, ins, outs, settings, trial)
    return kept


def _zero_tangents(site: Site, ins: Sequence[Tangents]) -> Iterator[tuple[bool, ...]]:
    """Which tangents are symbolic zeros, for each way in which JAX may call the rule."""
    moving = [any(x.moving) for x in ins[site.params["num_consts"] :]]
    if not site.params["symbolic_zeros"]:
        yield (False,) * len(moving)
        return
    if sum(moving) > _MANY:
        raise NotImplementedError("too many operands to try each choice of them")
    for choice in itertools.product(*((False, True) if x else (True,) for x in moving)):
        if not all(choice):
            yield choice


def _kept(
    site: Site,
    operands: Sequence[Operand],
    is_zero: Sequence[bool],
    ins: Sequence[Tangents],
    outs: dict[int, Space],
    settings: Settings,
    trial: Settings,
) -> set[int]:
    with use_settings(settings.of_traced()):
        jaxpr, consts, zero_results = site.params["jvp_jaxpr_fun"].call_wrapped(*is_zero)
    jaxpr = _compat.constants_first(jaxpr)
    first = site.params["num_consts"]
    with_tangents = [i for i, zero in enumerate(is_zero, first) if not zero]
    primals = [*map(fixed, consts), *of_primals(operands)[first:]]
    facts = dependences(
        jaxpr,
        [
            *[FIXED] * len(consts),
            *map(beside, range(first, len(operands))),
            *(source(i) if any(ins[i].moving) else ZERO for i in with_tangents),
        ],
    )
    nonzero = [i for i, zero in enumerate(zero_results) if not zero]
    tried = [
        (position, i)
        for position, i in enumerate(nonzero, len(zero_results))
        if i in outs and not outs[i].holds_multiples(facts[position], ins)
    ]
    if not tried:
        return {*outs}
    results = run_on_tangents(
        _compat.with_results(jaxpr, [position for position, _ in tried]),
        [*primals, *(ins[i].space for i in with_tangents)],
        [outs[i] for _, i in tried],
        trial,
        site,
    )
    mixed = {i for (_, i), x in zip(tried, results, strict=True) if not outs[i].holds(x)}
    return {*outs} - mixed

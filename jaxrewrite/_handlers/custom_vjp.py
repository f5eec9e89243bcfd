"""`jax.custom_vjp`: the function on values, with both of its rules.

Residuals may be values. The backward rule returns cotangents of arrays, which are pulled
back to the leaves.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jax.tree_util import tree_leaves, tree_structure, tree_unflatten

from .. import _compat
from .._compat import Jaxpr, JaxprEqn, Literal, Tree
from .._core.avals import avals_of
from .._core.builder import Rewritten
from .._core.rewrite import handlers, sees_arrays
from .._core.settings import Settings, use_settings
from .._core.site import Site
from .._core.value import Operand, Results, is_value
from .._staging.closures import WITH_BODIES, arrays_of_call, bodies_close_over, run_rule
from .._staging.program import function_of, run_on_values
from .adapters import MakeDense
from .derivatives import (
    adopted_zero,
    bring_primals,
    call_function,
    chunks,
    cotangent_of,
    ignores_custom_rules,
    instantiated,
    is_array,
    is_inexact,
    noting,
    pull_back,
    rewrite_call,
    targets,
)
from .entrywise import FIXED, Kind, beside, dependences, source
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
from .traced_anew import traced_anew


def custom_vjp_handler(site: Site, operands: list[Operand]) -> Results:
    within = functools.partial(_within, site, operands)
    function = rewrite_call(site, operands, within)
    rewritten, refused = function
    symbolic = site.params["symbolic_zeros"]
    closes_over = _closes_over(site.eqn)
    if not (rewritten.changed or closes_over or any(map(is_value, operands))):
        return NotImplemented  # The equation stays as it is.
    num_hoisted, num_consts = len(rewritten.consts), site.params["num_consts"]
    settings = site.settings
    in_tree = tree_structure(operands)
    call = function_of(rewritten, site.params["call_jaxpr"])
    if ignores_custom_rules(operands):
        return call_function(site, call, rewritten, operands)
    structures = targets(rewritten)
    rule = _compat.ForwardRule(site.params)

    def nonzero(perturbed: Sequence[bool]) -> list[bool]:
        # A rule without symbolic zeros assumes that all operands are perturbed.
        return [not symbolic or is_perturbed for is_perturbed in perturbed[num_consts:]]

    def forward(*args: Tree) -> Any:
        leaves = [arg.value for arg in args]
        operands = tree_unflatten(in_tree, leaves[num_hoisted:])
        of_operands = chunks([arg.perturbed for arg in args[num_hoisted:]], operands)
        perturbed = [any(flags) for flags in of_operands]
        with noting(site, operands):
            residuals, primals = _apply_forward(
                site, rule, operands[num_consts:], nonzero(perturbed), settings, structures
            )
            of_call = _backward_of_call(site, residuals, settings) if closes_over else None

        def recompute() -> list[Any]:
            return tree_unflatten(rewritten.out_tree, call(*leaves))

        results = bring_primals(primals, structures, recompute)
        saved = residuals, _values(operands), _values(results), _in_shapes(perturbed)
        return tree_leaves(results), (*saved, of_call)

    def backward(saved: Any, leaf_cotangents: Sequence[Any]) -> Any:
        residuals, ins, outs, shapes, of_call = saved
        ins, outs = _with_arrays(ins, site.eqn.invars), _with_arrays(outs, site.outvars)
        cotangents_of_leaves = chunks(leaf_cotangents, outs)
        with noting(site, ins):
            for i in refused:
                if not all(type(ct) is SymbolicZero for ct in cotangents_of_leaves[i]):
                    raise function.refusal(site, i)
            cotangents = [
                cotangent_of(out, chunk, settings)
                for out, chunk in zip(outs, cotangents_of_leaves, strict=True)
            ]
            if not symbolic:
                cotangents = list(map(adopted_zero, cotangents, outs))
            perturbed = _from_shapes(shapes)
            with use_settings(settings.of_traced()):
                rule.restore(nonzero(perturbed))
            pulled = [None] * num_consts + _apply_backward(
                site, residuals, cotangents, settings, of_call
            )
            of_leaves = [
                pull_back(operand, cotangent if is_perturbed else None, settings, site)
                for operand, cotangent, is_perturbed in zip(
                    ins, pulled, perturbed, strict=True
                )
            ]
        return (*[None] * num_hoisted, *itertools.chain(*of_leaves))

    fn = jax.custom_vjp(call)
    # Symbolic zeros show which values need no cotangent.
    fn.defvjp(forward, backward, symbolic_zeros=True)

    on_moving = of_moving_leaves(fn, operands, settings)

    def without_tangents_of_integers(*leaves: jax.Array) -> list[Any]:
        # JAX gives integer results of such a function tangents. Not all primitives take these.
        return [
            x if is_inexact(x) else jax.lax.stop_gradient(x) for x in on_moving(*leaves)
        ]

    run: Callable[..., list[Any]] = without_tangents_of_integers
    if symbolic:
        # The residuals may differ by which operands are perturbed, as the jaxprs of jit do.
        run = jax.jit(traced_anew(run))
    return call_function(site, run, rewritten, operands)


handlers["custom_vjp_call"] = custom_vjp_handler


def _closes_over(eqn: JaxprEqn) -> bool:
    """Whether the backward rule needs arrays of the function around it."""
    return _compat.closes_over_tracers(eqn.params["bwd"])


sees_arrays["custom_vjp_call"] = _closes_over
sees_arrays.update(dict.fromkeys(WITH_BODIES, bodies_close_over))


def _in_shapes(flags: Sequence[bool]) -> list[Any]:
    """Flags that are known while JAX traces, as the shapes of residuals without entries.

    JAX keeps a forward rule's jaxpr for each choice of the operands that are perturbed, but one
    tree of residuals for all choices, which so must not hold these flags as metadata.
    """
    return [np.zeros((int(flag), 0), bool) for flag in flags]


def _from_shapes(residuals: Sequence[Any]) -> list[bool]:
    return [x.shape[0] == 1 for x in residuals]


def _values(operands: Sequence[Operand]) -> list[Any]:
    """The operands that the backward pass needs: the values among them."""
    return [x if is_value(x) else None for x in operands]


def _with_arrays(values: Sequence[Any], atoms: Sequence[Any]) -> list[Any]:
    """The values, and an atom of the equation for each array."""
    return [
        atom if value is None else value for value, atom in zip(values, atoms, strict=True)
    ]


def _apply_forward(
    site: Site,
    rule: _compat.ForwardRule,
    operands: Sequence[Operand],
    nonzero: Sequence[bool],
    settings: Settings,
    structures: Sequence[Any],
) -> tuple[list[Any], list[Any]]:
    """Run the user's forward rule on values; returns residuals and results."""
    with use_settings(settings.of_traced()):
        jaxpr, consts, num_computed, forwarded = rule.trace(nonzero)
    dense = [*[False] * num_computed, *map(is_array, structures)]
    leaving = MakeDense(tuple(dense))
    out = run_rule(settings, site, jaxpr, consts, operands, leaving)
    computed = iter(out[:num_computed])
    offset = site.params["num_consts"]
    residuals = [next(computed) if i is None else operands[i - offset] for i in forwarded]
    return residuals, out[num_computed:]


@jax.tree_util.register_static
class _Traced:
    """A backward rule as a jaxpr, which takes its constants first.

    The rule returned a cotangent for each operand for which ``is_there`` is true.
    """

    def __init__(self, jaxpr: Jaxpr, is_operand: Sequence[bool], is_there: Sequence[bool]):
        self.jaxpr = jaxpr
        self.is_operand = is_operand
        self.is_there = is_there

    def run(
        self, site: Site, consts: Sequence[Any], operands: Sequence[Any], settings: Settings
    ) -> list[Any]:
        taken = [x for x, t in zip(operands, self.is_operand, strict=True) if t]
        results = iter(run_on_values(settings, self.jaxpr, [*consts, *taken], site))
        return [next(results) if is_there else None for is_there in self.is_there]


def _trace_backward(
    site: Site, operands: Sequence[Any], settings: Settings
) -> tuple[_Traced, Sequence[Any]]:
    """The user's backward rule as a jaxpr, with its constants; flags and zeros stay known."""
    is_operand = [
        is_value(x) or isinstance(x, (_compat.Tracer, jax.core.ShapedArray))
        for x in operands
    ]
    is_there: list[bool] = []

    def flat(*tracers: jax.Array) -> list[Any]:
        rest = iter(tracers)
        filled = [next(rest) if t else x for x, t in zip(operands, is_operand, strict=True)]
        returned = _compat.call_backward(site.params["bwd"], filled)
        is_there.extend(ct is not None for ct in returned)
        return [ct for ct in returned if ct is not None]

    avals = avals_of([x for x, t in zip(operands, is_operand, strict=True) if t])
    debug_info = _compat.new_debug_info("backward", flat)
    with site.context.manager, use_settings(settings.of_traced()):
        jaxpr, consts = _compat.trace_program(flat, avals, debug_info)
    return _Traced(jaxpr, is_operand, is_there), consts


def _backward_of_call(
    site: Site, residuals: Sequence[Any], settings: Settings
) -> tuple[_Traced, list[Any]]:
    """The backward rule, with the arrays of this call that it closes over."""
    symbolic = site.params["symbolic_zeros"]
    avals = avals_of(site.outvars)
    if symbolic and sum(map(is_inexact, avals)) > 1:
        raise jax.errors.UnexpectedTracerError(
            "A backward rule with symbolic_zeros, of a function with several results, closes over an "
            "array of the function around it."
        )
    cotangents = (
        aval.to_tangent_aval() if is_inexact(aval) else _no_cotangent(aval, symbolic)
        for aval in avals
    )
    traced, consts = _trace_backward(site, [*residuals, *cotangents], settings)
    return traced, arrays_of_call(consts, settings, site)


def _no_cotangent(aval: Any, symbolic: bool) -> Any:
    """The cotangent of a result that has none, as a rule with or without symbolic zeros has it."""
    zero = SymbolicZero(aval.to_tangent_aval())
    return zero if symbolic else instantiated(zero)


def _apply_backward(
    site: Site,
    residuals: Sequence[Any],
    cotangents: Sequence[Any],
    settings: Settings,
    of_call: tuple[_Traced, Sequence[Any]] | None,
) -> list[Any]:
    """Run the user's backward rule on values; ``None`` stands for no cotangent.

    The rule is a Python function. It is called if all its operands are arrays, and traced
    and rewritten if some are values, or where it was, with arrays of the call.
    """
    operands = [*residuals, *cotangents]
    if of_call is None:
        if not any(map(is_value, operands)) and not (
            settings.rules.dense_primitives() or settings.rules.passes()
        ):
            with use_settings(settings):
                return _compat.call_backward(site.params["bwd"], operands)
        of_call = _trace_backward(site, operands, settings)
    traced, consts = of_call
    return traced.run(site, consts, operands, settings)


# --- which results can hold the transposes of the rules -----------------------------------


def _within(
    site: Site,
    operands: Sequence[Operand],
    rewritten: Rewritten,
    confined: Sequence[int],
    settings: Settings,
    trial: Settings,
) -> set[int]:
    """The results for which the rule needs no more of a cotangent than their leaves have.

    A rule that acts entry by entry needs the entries that its operands have. If an operand
    has others, too, or if entries repeat, so that their cotangents are added, the rule has to be
    linear, and its transpose, which is itself, to give a value of the result's structure.
    """
    ins = of_operands(operands, settings)
    outs = of_results(rewritten, confined, settings)
    rule = _joint_rule(site, ins, settings)
    kept = {*confined}
    while True:
        lost = _lost(rule, site, operands, ins, {i: outs[i] for i in kept}, trial)
        if not lost:
            return kept
        kept -= lost


class _JointRule(NamedTuple):
    """The forward and the backward rule as one jaxpr.

    It takes its ``consts``, the operands, and a cotangent for each of the ``results`` that is
    inexact. It returns cotangents of the ``operands``. Both are given by position.
    """

    jaxpr: Jaxpr
    consts: Sequence[Any]
    results: Sequence[int]
    operands: Sequence[int]


def _joint_rule(site: Site, ins: Sequence[Tangents], settings: Settings) -> _JointRule:
    params, num_consts = site.params, site.params["num_consts"]
    symbolic = params["symbolic_zeros"]
    moving = [any(x.moving) for x in ins[num_consts:]]
    avals = [var.aval for var in site.outvars]
    results = [i for i, aval in enumerate(avals) if is_inexact(aval)]
    if symbolic and (sum(moving) > 1 or len(results) > 1):
        raise NotImplementedError("the rule may depend on which cotangents are zero")
    nonzero = moving if symbolic else [True] * len(moving)
    primals = [atom.aval for atom in site.eqn.invars[num_consts:]]
    returned: list[Any] = []

    def joint(*args: jax.Array) -> list[Any]:
        operands, rest = args[: len(primals)], iter(args[len(primals) :])
        cotangents = [
            next(rest) if i in results else _no_cotangent(aval, symbolic)
            for i, aval in enumerate(avals)
        ]
        residuals = _residuals(site, operands, nonzero, settings)
        returned.extend(_compat.call_backward(params["bwd"], [*residuals, *cotangents]))
        return [ct for ct in returned if ct is not None]

    debug_info = _compat.new_debug_info("backward", joint)
    with site.context.manager, use_settings(settings.of_traced()):
        jaxpr, consts = _compat.trace_program(
            joint, [*primals, *(avals[i] for i in results)], debug_info
        )
    there = [i for i, ct in enumerate(returned, num_consts) if ct is not None]
    return _JointRule(jaxpr, consts, results, there)


def _residuals(
    site: Site, operands: Sequence[Any], nonzero: Sequence[bool], settings: Settings
) -> list[Any]:
    """The residuals of the forward rule while a jaxpr is made; known numbers stay known."""
    rule = _compat.ForwardRule(site.params)
    with use_settings(settings.of_traced()):
        jaxpr, consts, num_computed, forwarded = rule.trace(nonzero)
    jaxpr = _compat.constants_first(jaxpr)
    results = _compat.inline_into_current_trace(jaxpr, [*consts, *operands])
    known: dict[Any, Any] = dict(zip(jaxpr.invars, consts, strict=False))
    computed = iter(
        [
            atom.val if type(atom) is Literal else known.get(atom, result)
            for atom, result in zip(jaxpr.outvars[:num_computed], results, strict=False)
        ]
    )
    offset = site.params["num_consts"]
    return [next(computed) if i is None else operands[i - offset] for i in forwarded]


def _lost(
    rule: _JointRule,
    site: Site,
    operands: Sequence[Operand],
    ins: Sequence[Tangents],
    outs: dict[int, Space],
    trial: Settings,
) -> set[int]:
    """Some of the results that cannot remain values; none if all can."""
    first = site.params["num_consts"]
    primals = [*map(fixed, rule.consts), *of_primals(operands)[first:]]
    facts = dependences(
        rule.jaxpr,
        [
            *[FIXED] * len(rule.consts),
            *map(beside, range(first, len(operands))),
            *(source(i) if i in outs else FIXED for i in rule.results),
        ],
    )
    result_avals = avals_of([site.outvars[i] for i in rule.results])
    operand_avals = avals_of(site.eqn.invars)
    lost: set[int] = set()
    for position, (i, ct) in enumerate(zip(rule.operands, facts, strict=True)):
        if not any(ins[i].moving):
            continue
        space = ins[i].space
        missed = {x for x in ct.sources if not outs[x].gives_all_to(ct, space, ins)}
        if missed and ct.kind <= Kind.LINEAR:
            cotangents = [
                space.cast(aval.dtype) if x in ct.sources else fixed(aval)
                for x, aval in zip(rule.results, result_avals, strict=True)
            ]
            (result,) = run_on_tangents(
                _compat.with_results(rule.jaxpr, [position]),
                [*primals, *cotangents],
                [outs[min(missed)].cast(operand_avals[i].dtype)],
                trial,
                site,
            )
            missed = {x for x in ct.sources if not outs[x].holds(result)}
        lost |= missed
    return lost

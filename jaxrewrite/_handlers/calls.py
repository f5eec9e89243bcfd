"""Primitives that call one jaxpr once: `jax.jit`, `jax.checkpoint` and their kin.

The equation stays one equation of the same primitive, with its name and policy, and its
body is rewritten. A parameter of an operand or result (donation, sharding, whether it may
be shared) becomes a parameter of each leaf.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from jax.tree_util import tree_leaves, tree_unflatten

from .. import _compat
from .._compat import UNSPECIFIED, Literal, Var
from .._core.avals import avals_of
from .._core.bodies import rewrite_jaxpr
from .._core.builder import Rewritten
from .._core.rewrite import handlers
from .._core.site import Site
from .._core.value import Operand, Results, is_value
from .._placement.leafwise import place_leaves, unsplit
from .._staging.aliases import sources


class _Call(NamedTuple):
    """The parameters of a calling primitive.

    ``of_operands`` and ``of_results`` are the parameters with an item for each operand or
    result. Their values here are the items for all others: hoisted constants of the body,
    and leaves that have none. ``of_places`` are the parameters that place arrays. For
    them the type of a value gives the items of its leaves.
    """

    body_is_closed: bool = True
    of_operands: dict[str, Any] = {}
    of_results: dict[str, Any] = {}
    of_places: frozenset[str] = frozenset()


_CALLS = {
    "jit": _Call(
        of_operands={
            "donated_invars": False,
            "in_shardings": UNSPECIFIED,
            "in_layouts": None,
        },
        of_results={"out_shardings": UNSPECIFIED, "out_layouts": None},
        of_places=frozenset({"in_shardings", "in_layouts", "out_shardings", "out_layouts"}),
    ),
    "remat2": _Call(body_is_closed=False, of_operands={"prevent_cse": False}),
    "closed_call": _Call(),
    "eval_jaxpr": _Call(),
    "compute_on": _Call(of_results={"out_memory_spaces": None}),
    "xla_metadata_call": _Call(),
    "fused_call": _Call(of_results={"out_spaces": None}),
    "program_order": _Call(of_operands={"exclude_mask": False}),
}


def call_handler(site: Site, operands: list[Operand]) -> Results:
    call = _CALLS[site.primitive.name]
    body = site.params[_compat.body_name(site.primitive)]
    rewritten = rewrite_jaxpr(site, body, operands)
    if not rewritten.changed and not any(map(is_value, operands)):
        if not site.is_in_rule:
            known = site.primitive, body, *avals_of(operands)
            site.builder.rewriting.known_unchanged.add(known)
        return NotImplemented  # The equation stays as it is.
    consts = site.take_over(rewritten)
    leaves = [*consts, *tree_leaves(operands)]
    results = [Var(aval) for aval in rewritten.jaxpr.out_avals]
    effects = _compat.effects_on(rewritten.jaxpr, leaves)
    params = _leaf_params(site, call, len(consts), operands, rewritten)
    site.emit(leaves, results, params, effects)
    return tree_unflatten(rewritten.out_tree, results)


handlers.update(dict.fromkeys(_CALLS, call_handler))


def _leaf_params(
    site: Site,
    call: _Call,
    num_consts: int,
    operands: Sequence[Operand],
    rewritten: Rewritten,
) -> dict[str, Any]:
    params = site.params
    body = _compat.body_name(site.primitive)
    expanded: dict[str, Any] = {
        body: rewritten.closed if call.body_is_closed else rewritten.jaxpr
    }
    for names, arrays, prefix in (
        (call.of_operands, operands, num_consts),
        (call.of_results, rewritten.results(), 0),
    ):
        for name, default in names.items():
            # A parameter that is not a tuple is for all operands or results at once.
            if not isinstance(params[name], tuple):
                continue
            leaves = [default] * prefix
            for said, array in zip(params[name], arrays, strict=True):
                if name in call.of_places and is_value(array):
                    other = unsplit(said) if name == "out_shardings" else None
                    leaves += place_leaves(site, array, said, other or default)
                else:
                    leaves += [said] * len(tree_leaves(array))
            expanded[name] = tuple(leaves)
    if any(expanded.get("donated_invars", ())):
        expanded["donated_invars"] = (
            *[False] * num_consts,
            *_donated(site, operands, expanded["donated_invars"][num_consts:]),
        )
    return {**params, **expanded}


def _donated(
    site: Site, operands: Sequence[Operand], donated: Sequence[bool]
) -> Iterator[bool]:
    """Which leaves are donated: an argument of the program is only where the program donates it.

    What the program makes of an argument may have some of its leaves.
    """
    rest = iter(donated)
    arguments, inputs = site.builder.arguments, site.builder.inputs
    first = sources(site.builder.eqns)
    for atom, operand in zip(site.eqn.invars, operands, strict=True):
        is_argument = type(atom) is not Literal and atom in arguments
        for leaf in tree_leaves(operand):
            is_input = type(leaf) is not Literal and first.get(leaf, leaf) in inputs
            yield next(rest) and (is_argument or not is_input)

"""`lax.cond`, `lax.switch` and `lax.platform_dependent`: each branch is rewritten.

A result has the join of its structures in all branches. A branch may leave a result
uninitialised that another branch keeps for the backward pass. Or it raises an error, as
`equinox.error_if` does. Nothing reads the result then, so it takes the structure that the
others have. Zeros that a branch makes take it, too, if it has zeros. If a number of the program
chooses, the branch that it chooses takes the place of the equation.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from jax.tree_util import tree_leaves, tree_unflatten

from .. import _compat
from .._analyses.written import UNKNOWN, Kind, Written, branch_of, results_of
from .._compat import AnyJaxpr, Var
from .._core.bodies import inlined, rewrite_jaxpr
from .._core.builder import Rewritten
from .._core.dense import Reason
from .._core.rewrite import handlers
from .._core.site import Site
from .._core.value import Operand, Results, is_value
from .._joins.join import Structure, join_all, structure_of
from .._joins.zeros import has_zeros, results_with_zeros
from .adapters import Coerce, Unread


_CHOOSES = Reason(
    "What chooses a branch of primitive {primitive!r}, its first operand, is of type {cls}",
    "Choose by an array",
)


def cond_handler(site: Site, operands: list[Operand]) -> Results:
    has_values = any(map(is_value, operands))
    # The index of the branch must be an array.
    index = site.materialise(operands[0], _CHOOSES)
    operands = operands[1:]

    closed = site.params["branches"]
    if has_values:
        chosen = branch_of(site.builder.analysis(Written)(index), len(closed))
        if chosen is not None:
            return inlined(site, closed[chosen], operands)
    branches = [rewrite_jaxpr(site, branch, operands) for branch in closed]
    unread = [_unread(branch) for branch in closed]
    sources, joined = _joined(site, branches, unread, operands)
    if any(source != joined for source in sources):
        _record_joins(site, sources, joined)
        branches = [
            rewrite_jaxpr(
                site,
                branch,
                operands,
                leaving=Coerce(tuple(source), tuple(joined), tuple(why)),
            )
            for branch, source, why in zip(closed, sources, unread, strict=True)
        ]
    if not has_values and not any(branch.changed for branch in branches):
        return NotImplemented  # The equation stays as it is.
    consts = [site.take_over(branch) for branch in branches]
    leaves = [*itertools.chain(*consts), *tree_leaves(operands)]
    params = {**site.params, "branches": _with_all_constants(branches, consts)}
    outvars = [Var(aval) for aval in branches[0].jaxpr.out_avals]
    effects: set[Any] = set()
    for branch in params["branches"]:
        inner, _ = _compat.open_jaxpr(branch)
        effects |= set(_compat.effects_on(inner, leaves))
    site.emit([index, *leaves], outvars, params, effects)
    return tree_unflatten(branches[0].out_tree, outvars)


handlers["cond"] = cond_handler


def _joined(
    site: Site,
    branches: Sequence[Rewritten],
    unread: Sequence[Sequence[Unread | None]],
    operands: Sequence[Operand],
) -> tuple[list[list[Structure]], list[Structure]]:
    """The structures of the results in each branch, and the structures that all can have."""
    sources = [list(map(structure_of, branch.results())) for branch in branches]
    differing = [k for k, slot in enumerate(zip(*sources, strict=True)) if _differ(slot)]
    with_zeros = [
        results_with_zeros(site, branch, operands) for branch in branches if differing
    ]

    def joined_at(k: int) -> Structure:
        slot = [(x[k], why[k]) for x, why in zip(sources, unread, strict=True)]
        read = [structure for structure, why in slot if why is None]
        return join_all(site, read or [structure for structure, _ in slot])

    for k in differing:
        plain = [source[k] for source in sources]
        for source, results in zip(sources, with_zeros, strict=True):
            source[k] = structure_of(results[k])
        if has_zeros(joined_at(k).like()):
            for source, before in zip(sources, plain, strict=True):
                source[k] = before
    return sources, list(map(joined_at, range(len(site.outvars))))


def _differ(structures: Sequence[Structure]) -> bool:
    """Whether results differ, and one is a value."""
    is_one = any(is_value(structure.like()) for structure in structures)
    return is_one and any(structure != structures[0] for structure in structures)


def _unread(branch: AnyJaxpr) -> list[Unread | None]:
    """For each result of a branch, why nothing reads it; ``None`` if something does."""
    jaxpr, consts = _compat.open_jaxpr(branch)
    operands = len(jaxpr.invars) - len(consts)
    why: dict[Kind, Unread] = {
        Kind.UNINITIALISED: "uninitialised",
        Kind.NOT_READ: "computed",
    }
    return [why.get(fact.kind) for fact in results_of(branch, [UNKNOWN] * operands)]


def _record_joins(
    site: Site, structures: Sequence[Sequence[Structure]], joined: Sequence[Structure]
) -> None:
    if site.builder.recorder is None:
        return
    for branch, results in enumerate(structures):
        for i, (before, after) in enumerate(zip(results, joined, strict=True)):
            if before != after:
                slot = f"result {i} of branch {branch}"
                site.builder.recorder.joined(slot, before.like(), after.like())


def _with_all_constants(
    branches: Sequence[Rewritten], consts: Sequence[Sequence[Any]]
) -> tuple[Any, ...]:
    """The branches, all with the constants of all branches as operands, in one order."""
    if not any(consts):
        return tuple(branch.closed for branch in branches)
    padded = []
    for i, branch in enumerate(branches):
        old = branch.jaxpr.invars
        invars = [
            var
            for j, others in enumerate(consts)
            for var in (old[: len(others)] if i == j else [Var(o.aval) for o in others])
        ]
        jaxpr = _compat.new_jaxpr(
            [*invars, *old[len(consts[i]) :]],
            branch.jaxpr.outvars,
            branch.jaxpr.eqns,
            branch.jaxpr.debug_info,
            branch.jaxpr.is_high,
        )
        padded.append(_compat.close_jaxpr(jaxpr))
    return tuple(padded)

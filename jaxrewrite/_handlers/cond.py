"""`lax.cond`, `lax.switch` and `lax.platform_dependent`: each branch is rewritten.

A result has the join of its structures in all branches. A branch may leave a result
uninitialised: what another branch keeps for the backward pass. Or it raises an error, as
`equinox.error_if` does. Nothing reads the result then, so it takes the structure that the
others have. Zeros that a branch makes take it, too, if it has zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax.tree_util import tree_leaves, tree_unflatten

from .. import _compat
from .._analyses.fills import is_not_read
from .._analyses.known_zeros import can_be_zero, known_zeros
from .._compat import Var
from .._core.bodies import restage
from .._core.builder import Restaged
from .._core.dense import Reason
from .._core.join import Coerce, Structure, join_all, structure_of
from .._core.rewrite import Scope, handlers
from .._core.site import Site
from .._core.value import is_value


_CHOOSES = Reason(
    "What chooses a branch of primitive {primitive!r}, its first operand, is of type {cls}",
    "Choose by an array",
)


def cond_handler(scope: Scope, site: Site, operands: list[Any]) -> Any:
    has_values = any(map(is_value, operands))
    # The index of the branch must be an array.
    index = operands[0]
    if is_value(index):
        index = scope.materialise(index, site, _CHOOSES)
    operands = operands[1:]
    rewriting = scope.rewriting

    closed = site.params["branches"]
    branches = [restage(rewriting, branch, operands, site) for branch in closed]
    structures = _structures(closed, [branch.results() for branch in branches])
    is_empty = [_not_read(branch) for branch in closed]
    joined = [
        join_all(scope, _without_empty(own, empty), site)
        for own, empty in zip(
            zip(*structures, strict=True), zip(*is_empty, strict=True), strict=True
        )
    ]
    if any(own != joined for own in structures):
        _record_joins(scope, structures, joined)
        branches = [
            restage(
                rewriting,
                branch,
                operands,
                site,
                leaving=Coerce(tuple(joined), tuple(empty)),
            )
            for branch, empty in zip(closed, is_empty, strict=True)
        ]
    if not has_values and not any(branch.changed for branch in branches):
        return NotImplemented  # The equation stays as it is.
    consts = [scope.include(branch, site) for branch in branches]
    leaves = [*(var for own in consts for var in own), *tree_leaves(operands)]
    params = {**site.params, "branches": _with_all_constants(branches, consts)}
    outvars = [Var(aval) for aval in branches[0].jaxpr.out_avals]
    effects: set[Any] = set()
    for branch in params["branches"]:
        inner, _ = _compat.open_jaxpr(branch)
        effects |= set(_compat.effects_on(inner, leaves))
    scope.copy(site, [index, *leaves], outvars, params, effects)
    return tree_unflatten(branches[0].out_tree, outvars)


handlers["cond"] = cond_handler


def _without_empty(structures: Sequence[Structure], is_empty: Sequence[bool]) -> Any:
    """The structures of a result in the branches that do not leave it uninitialised."""
    own = [x for x, empty in zip(structures, is_empty, strict=True) if not empty]
    return own or structures


def _structures(
    branches: Sequence[Any], results: Sequence[Sequence[Any]]
) -> list[list[Structure]]:
    """The structures of the results of each branch; `KnownZeros` where others have a value."""
    of_values = [
        any(is_value(result) and can_be_zero(result) for result in own)
        for own in zip(*results, strict=True)
    ]
    structures = [list(map(structure_of, own)) for own in results]
    for branch, own in zip(branches, structures, strict=True) if any(of_values) else ():
        jaxpr, _ = _compat.open_jaxpr(branch)
        producers = {var: eqn for eqn in jaxpr.eqns for var in eqn.outvars}
        for k, atom in enumerate(jaxpr.outvars):
            zeros = known_zeros(producers.get, atom) if of_values[k] else None
            own[k] = own[k] if zeros is None else structure_of(zeros)
    return structures


def _not_read(branch: Any) -> list[bool]:
    """For each result of a branch, whether nothing reads it."""
    jaxpr, _ = _compat.open_jaxpr(branch)
    empty: set[int] = set()
    for eqn in jaxpr.eqns:
        repeats = eqn.primitive.name == "broadcast_in_dim" and id(eqn.invars[0]) in empty
        if repeats or is_not_read(eqn):
            empty.update(map(id, eqn.outvars))
    return [id(var) in empty for var in jaxpr.outvars]


def _record_joins(
    scope: Scope, structures: Sequence[Sequence[Structure]], joined: Sequence[Structure]
) -> None:
    if scope.recorder is None:
        return
    for branch, results in enumerate(structures):
        for i, (own, after) in enumerate(zip(results, joined, strict=True)):
            if own != after:
                slot = f"result {i} of branch {branch}"
                scope.recorder.joined(slot, own.like(), after.like())


def _with_all_constants(
    branches: Sequence[Restaged], consts: Sequence[Sequence[Any]]
) -> tuple[Any, ...]:
    """The branches, all with the constants of all branches as operands, in one order."""
    if not any(consts):
        return tuple(branch.closed for branch in branches)
    padded = []
    for i, branch in enumerate(branches):
        own = branch.jaxpr.invars
        invars = [
            var
            for j, others in enumerate(consts)
            for var in (own[: len(others)] if i == j else [Var(o.aval) for o in others])
        ]
        jaxpr = _compat.new_jaxpr(
            [*invars, *own[len(consts[i]) :]],
            branch.jaxpr.outvars,
            branch.jaxpr.eqns,
            branch.jaxpr.debug_info,
            branch.jaxpr.is_high,
        )
        padded.append(_compat.close_jaxpr(jaxpr))
    return tuple(padded)

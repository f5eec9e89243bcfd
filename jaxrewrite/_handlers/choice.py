"""`lax.select_n` where one truth value chooses for a whole array, or for each of a batch.

`jax.numpy.where` of one truth value does so, and `jax.vmap` of a conditional whose condition is
mapped: all branches run then. The condition has the shape of the results, so only the equation
before it tells that it is the same for all entries, or for all entries of an element of the batch.
A result that one branch leaves uninitialised, because only the backward pass of another needs it,
is not read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax import lax
from jax.tree_util import tree_leaves, tree_structure, tree_unflatten

from .._analyses.growing import Producers
from .._analyses.written import Written
from .._core.rewrite import leafwise_handlers
from .._core.site import Site
from .._core.value import Operand, Results, is_value
from .._joins.join import coerce, together
from .stacking import in_slices, is_batch


def choose(site: Site, operands: Sequence[Operand]) -> Results:
    condition, *cases = operands
    if is_value(condition):
        return NotImplemented
    if len(cases) == 2:
        written = site.builder.analysis(Written)
        read = [x for x in cases if is_value(x) or not written(x).is_uninitialised]
        if len(read) == 1 and is_value(read[0]):
            return read
    row = _repeated(site, condition)
    if row is None:
        return NotImplemented
    depth = row.aval.ndim
    alike = _alike(site, cases, depth)
    if alike is None:
        return NotImplemented
    cases = alike
    leaves, *others = map(tree_leaves, cases)
    # Leaves that all have in common, such as integers without a derivative, need no choice.
    differing = [i for i, x in enumerate(leaves) if any(of[i] is not x for of in others)]
    count = len(differing)

    def leaf_by_leaf(row: jax.Array, *leaves: jax.Array) -> list[Any]:
        results = []
        for k in range(count):
            cases_of_leaf = leaves[k::count]
            along = lax.broadcast_in_dim(row, cases_of_leaf[0].shape, range(depth))
            results.append(lax.select_n(along, *cases_of_leaf))
        return results

    choices = [of[i] for of in (leaves, *others) for i in differing]
    results = site.call_on_arrays(leaf_by_leaf, [row, *choices])
    for i, leaf in zip(differing, results, strict=True):
        leaves[i] = leaf
    return [tree_unflatten(tree_structure(cases[0]), leaves)]


leafwise_handlers["select_n"] = choose


def _alike(site: Site, cases: Sequence[Any], depth: int) -> list[Any] | None:
    """The cases in the structure that all can have, as the results of branches.

    ``None`` if it is dense, or if its leaves can't be chosen for an element of a batch.
    """
    joined = together(site, cases)
    if joined is None:
        return None
    cases, structure = joined
    if depth and not is_batch(site, structure.like(), depth):
        return None
    alike = [coerce(site, case, structure) for case in cases]
    return [in_slices(site, case) for case in alike] if depth else alike


def _repeated(site: Site, condition: Any) -> Any:
    """The condition for each element of a batch, if it is repeated along all other axes.

    It has no axes if one truth value chooses for all.
    """
    if not condition.aval.shape:
        return condition
    eqn = site.builder.analysis(Producers)(condition)
    if eqn is None or eqn.primitive.name != "broadcast_in_dim":
        return None
    row: Any = eqn.invars[0]
    depth, axes = row.aval.ndim, tuple(eqn.params["broadcast_dimensions"])
    is_in_front = (
        axes == tuple(range(depth)) and condition.aval.shape[:depth] == row.aval.shape
    )
    return row if is_in_front and depth < condition.aval.ndim else None

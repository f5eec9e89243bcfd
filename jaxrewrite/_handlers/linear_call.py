"""`jax.custom_derivatives.linear_call`: its residuals may be values, both ways.

The operands in which the function is linear, and its results, are arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax.custom_derivatives import linear_call
from jax.tree_util import tree_leaves, tree_structure, tree_unflatten

from .._core.bodies import rewrite_jaxpr
from .._core.rewrite import handlers
from .._core.site import Site
from .._core.value import Operand, Results, is_value
from .._staging.program import function_of, run_on_values
from .adapters import MakeDense
from .derivatives import noting


def linear_call_handler(site: Site, operands: list[Operand]) -> Results:
    params = site.params
    num_consts, num_residuals = params["num_callee_consts"], params["num_res"]
    start = num_consts + num_residuals
    residuals = operands[:start]
    arrays = [site.materialise(x) for x in operands[start:]]
    dense = MakeDense((True,) * len(site.outvars))
    rewritten = rewrite_jaxpr(site, params["callee"], [*residuals, *arrays], leaving=dense)
    if not rewritten.changed and not any(map(is_value, operands)):
        return NotImplemented  # The equation stays as it is.
    settings = site.settings
    num_hoisted = len(rewritten.consts)
    in_tree = tree_structure(residuals)
    body = function_of(rewritten, params["callee"])

    def call(leaves: Sequence[Any], arrays: Sequence[Any]) -> list[Any]:
        return body(*leaves, *arrays)

    def transposed(leaves: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
        saved = tree_unflatten(in_tree, leaves[num_hoisted:])
        with noting(site, [*saved, *cotangents]):
            jaxpr, consts = params["transpose_thunk"]()
            inputs = [*consts, *saved[num_consts:], *cotangents]
            dense = MakeDense((True,) * len(arrays))
            return run_on_values(settings, jaxpr, inputs, site, dense)

    leaves = [*site.take_over(rewritten), *tree_leaves(residuals)]

    def on_leaves(*flat: jax.Array) -> list[Any]:
        residuals, rest = list(flat[: len(leaves)]), list(flat[len(leaves) :])
        return linear_call(call, transposed, residuals, rest)

    return site.call_on_arrays(on_leaves, [*leaves, *arrays])


handlers["linear_call"] = linear_call_handler

"""`jax.custom_batching.custom_vmap`: the function on values, with its batching rule.

Results are arrays, because the rule tells only how arrays are batched.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax.custom_batching import custom_vmap
from jax.tree_util import tree_leaves, tree_structure, tree_unflatten

from .. import _compat
from .._core.bodies import rewrite_jaxpr
from .._core.rewrite import handlers
from .._core.settings import use_settings
from .._core.site import Site
from .._core.value import Operand, Results, is_value
from .._staging.materialise import materialise
from .._staging.program import function_of
from .._staging.transform import transform
from .adapters import MakeDense
from .stacking import stacked_where


def custom_vmap_handler(site: Site, operands: list[Operand]) -> Results:
    params = site.params
    dense = MakeDense((True,) * len(site.outvars))
    rewritten = rewrite_jaxpr(site, params["call"], operands, leaving=dense)
    if not rewritten.changed and not any(map(is_value, operands)):
        return NotImplemented  # The equation stays as it is.
    num_hoisted = len(rewritten.consts)
    settings = site.settings
    in_tree = tree_structure(operands)
    call = function_of(rewritten, params["call"])

    def rule(axis_size: int, in_batched: Sequence[bool], *leaves: jax.Array) -> Any:
        arrays = tree_unflatten(in_tree, leaves[num_hoisted:])
        flags = tree_unflatten(in_tree, in_batched[num_hoisted:])
        batched = [any(tree_leaves(flag)) for flag in flags]
        inputs = [
            stacked_where(array, flag, axis_size)
            if is_value(array) and is_batched
            else array
            for array, flag, is_batched in zip(arrays, flags, batched, strict=True)
        ]
        all_batched = tree_unflatten(params["in_tree"], batched)

        def user_rule(*flat: jax.Array) -> Any:
            args = tree_unflatten(params["in_tree"], flat)
            return params["rule"](axis_size, list(all_batched), *args)

        with use_settings(settings):
            results, out_batched = transform(user_rule)(*inputs)
        results = materialise(results)
        _compat.check_vmap_rule_trees(
            params["rule"],
            params["out_tree"],
            tree_structure(results),
            tree_structure(out_batched),
        )
        return tree_leaves(results), tree_leaves(out_batched)

    fn = custom_vmap(call)
    fn.def_vmap(rule)
    leaves = [*site.take_over(rewritten), *tree_leaves(operands)]
    return site.call_on_arrays(fn, leaves)


handlers["custom_vmap_call"] = custom_vmap_handler

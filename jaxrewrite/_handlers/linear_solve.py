"""`lax.custom_linear_solve`: the operator may contain values, the solution is an array.

The functions that apply the operator, its transpose and their inverses are rewritten for
the values that they close over. The right side is an array.
"""

from __future__ import annotations

import itertools
from typing import Any

from jax.tree_util import tree_leaves

from .._compat import AnyJaxpr, Var
from .._core.avals import is_annotation, values_inside
from .._core.bodies import rewrite_jaxpr
from .._core.rewrite import handlers
from .._core.site import Site
from .._core.value import Operand, Results, is_value
from .adapters import MakeDense


def linear_solve_handler(site: Site, operands: list[Operand]) -> Results:
    has_values = any(map(is_value, operands))
    annotations = filter(is_annotation, operands)
    if any(is_annotation(y) for x in annotations for y in values_inside(x)):
        return NotImplemented  # The rules of the inner one answer.
    lengths, jaxprs = site.params["const_lengths"], site.params["jaxprs"]
    rest = iter(operands)
    consts = [list(itertools.islice(rest, length)) for length in lengths]
    right_sides = [site.materialise(x) for x in rest]
    rewritten = [
        None if jaxpr is None else _rewrite_jaxpr(site, jaxpr, closed_over)
        for jaxpr, closed_over in zip(jaxprs, consts, strict=True)
    ]
    if not has_values and not any(r is not None and r.changed for r in rewritten):
        return NotImplemented  # The equation stays as it is.
    leaves = [
        [] if r is None else [*site.take_over(r), *tree_leaves(closed_over)]
        for r, closed_over in zip(rewritten, consts, strict=True)
    ]
    params = {
        **site.params,
        "const_lengths": type(lengths)(*map(len, leaves)),
        "jaxprs": type(jaxprs)(*(None if r is None else r.closed for r in rewritten)),
    }
    inputs = [*itertools.chain(*leaves), *right_sides]
    results = [Var(var.aval) for var in site.outvars]
    site.emit(inputs, results, params)
    return results


handlers["custom_linear_solve"] = linear_solve_handler


def _rewrite_jaxpr(site: Site, jaxpr: AnyJaxpr, consts: list[Any]) -> Any:
    arrays = jaxpr.in_avals[len(consts) :]
    dense = MakeDense((True,) * len(jaxpr.out_avals))
    return rewrite_jaxpr(site, jaxpr, [*consts, *arrays], leaving=dense)

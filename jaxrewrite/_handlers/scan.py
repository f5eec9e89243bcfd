"""`lax.scan`, and what JAX makes of it: `lax.map`, `lax.fori_loop` of known length.

One scan stays one scan. Its constants, its carry, its xs and its ys may each be values.
"""

from __future__ import annotations

from collections.abc import Sequence

from jax.tree_util import tree_leaves, tree_unflatten

from .. import _compat
from .._batched import sliced
from .._compat import Var
from .._core.bodies import rewrite_jaxpr
from .._core.builder import Rewritten
from .._core.rewrite import handlers
from .._core.site import Site
from .._core.value import Operand, Results, is_value
from .._joins.join import Structure
from .adapters import Coerce
from .carry import body_inputs, fixed_point
from .stacking import Elements, sliceable, stacked


def scan_handler(site: Site, operands: list[Operand]) -> Results:
    has_values = any(map(is_value, operands))
    body, length = site.params["jaxpr"], site.params["length"]
    num_consts, num_carry = _compat.scan_counts(site.params)
    start = num_consts + num_carry
    consts, carry = operands[:num_consts], operands[num_consts:start]
    xs = [sliceable(site, x, length) for x in operands[start:]]
    slices = [sliced(x, length) for x in xs]
    entering = Elements(start) if any(map(is_value, xs)) else None

    def rewrite(structures: Sequence[Structure], leaving: Coerce | None) -> Rewritten:
        likes = [structure.like() for structure in structures]
        inputs = body_inputs(body, [*consts, *likes, *slices])
        return rewrite_jaxpr(site, body, inputs, entering, leaving)

    solved = fixed_point(site, consts, carry, rewrite, has_values)
    rewritten = solved.body
    if not has_values and not rewritten.changed:
        return NotImplemented  # The equation stays as it is.
    carry = solved.start(site)
    hoisted = site.take_over(rewritten)
    groups = [[*hoisted, *tree_leaves(consts)], tree_leaves(carry), tree_leaves(xs)]
    num_carry_leaves = len(groups[1])
    avals = rewritten.jaxpr.out_avals
    stacks = [_compat.with_leading_axis(aval, length) for aval in avals[num_carry_leaves:]]
    results = [Var(aval) for aval in [*avals[:num_carry_leaves], *stacks]]
    leaves = [leaf for group in groups for leaf in group]
    counts = [*map(len, groups), len(stacks)]
    params = _compat.scan_params(site.params, rewritten.closed, counts)
    effects = _compat.effects_on(rewritten.jaxpr, leaves)
    site.emit(leaves, results, params, effects)
    out = tree_unflatten(rewritten.out_tree, results)
    ys = [
        stacked(site, y, length, var.aval)
        for y, var in zip(out[num_carry:], site.outvars[num_carry:], strict=True)
    ]
    return [*out[:num_carry], *ys]


handlers["scan"] = scan_handler

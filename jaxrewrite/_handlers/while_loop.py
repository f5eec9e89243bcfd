"""`lax.while_loop`, and `lax.fori_loop` of unknown length.

`jax.vmap` of a loop whose condition is mapped gives a condition for each element of the batch.
After a turn each leaf of the carry is taken or left for each of them. So a value stays one only
with leaves for each element.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from jax.tree_util import tree_leaves, tree_unflatten

from .. import _compat
from .._compat import AnyJaxpr, Var
from .._core.avals import children
from .._core.bodies import rewrite_jaxpr
from .._core.builder import Rewritten
from .._core.dense import Reason
from .._core.rewrite import handlers
from .._core.site import Site
from .._core.value import Operand, Results, Value, is_value
from .._joins.join import Structure
from .adapters import Coerce
from .carry import body_inputs, fixed_point
from .nesting import is_around_one_array
from .stacking import batch, elements_like, on_vars


_DECIDES = Reason(
    "What the condition of primitive {primitive!r} returns is of type {cls}",
    "Let it return an array",
)

_CHOSEN = Reason(
    "Primitive {primitive!r} takes turns for each element of a batch, of which a {cls} has no "
    "leaves of its own",
    method="sliceable",
)


class Decision(NamedTuple):
    """Makes the result of a condition an array. An adapter of `rewrite_jaxpr`.

    No result of the loop has what it carries. So nothing is lost with an annotation whose type
    allows to lose it, such as tags, whatever the policy of the call is.
    """

    def __call__(self, site: Site, results: Sequence[Any]) -> list[Any]:
        (decides,) = results
        while is_value(decides) and _may_be_lost(decides):
            (decides,), _ = children(decides)
        return [site.materialise(decides, _DECIDES)]


def _may_be_lost(x: Value) -> bool:
    return x.materialise_policy == "allow" and is_around_one_array(x)


def while_handler(site: Site, operands: list[Operand]) -> Results:
    has_values = any(map(is_value, operands))
    params = site.params
    condition, body = params["cond_jaxpr"], params["body_jaxpr"]
    num_condition, num_body = params["cond_nconsts"], params["body_nconsts"]
    condition_consts = operands[:num_condition]
    body_consts = operands[num_condition : num_condition + num_body]
    (whether,) = condition.out_avals
    depth = whether.ndim
    carry = operands[num_condition + num_body :]
    if depth:
        carry = [batch(site, x, depth, _CHOSEN) for x in carry]

    def rewrite(
        jaxpr: AnyJaxpr,
        consts: Sequence[Any],
        structures: Sequence[Structure],
        leaving: Coerce | Decision | None,
    ) -> Rewritten:
        likes = [structure.like() for structure in structures]
        inputs = body_inputs(jaxpr, [*consts, *likes])
        return rewrite_jaxpr(site, jaxpr, inputs, leaving=leaving)

    def rewrite_body(structures: Sequence[Structure], leaving: Coerce | None) -> Rewritten:
        return rewrite(body, body_consts, structures, leaving)

    def may_be_carried(structure: Structure) -> bool:
        like = structure.like()
        return not is_value(like) or elements_like(site, on_vars(like), depth)

    solved = fixed_point(site, body_consts, carry, rewrite_body, has_values, may_be_carried)
    turn = solved.body
    test = rewrite(condition, condition_consts, solved.structures, Decision())
    if not has_values and not (turn.changed or test.changed):
        return NotImplemented  # The equation stays as it is.
    carry = solved.start(site)
    test_leaves = [*site.take_over(test), *tree_leaves(condition_consts)]
    turn_leaves = [*site.take_over(turn), *tree_leaves(body_consts)]
    carry_leaves = tree_leaves(carry)
    results = [Var(aval) for aval in turn.jaxpr.out_avals]
    params = {
        **params,
        "cond_jaxpr": test.closed,
        "body_jaxpr": turn.closed,
        "cond_nconsts": len(test_leaves),
        "body_nconsts": len(turn_leaves),
    }
    effects = {
        *_compat.effects_on(test.jaxpr, [*test_leaves, *carry_leaves]),
        *_compat.effects_on(turn.jaxpr, [*turn_leaves, *carry_leaves]),
    }
    leaves = [*test_leaves, *turn_leaves, *carry_leaves]
    site.emit(leaves, results, params, effects)
    return tree_unflatten(turn.out_tree, results)


handlers["while"] = while_handler

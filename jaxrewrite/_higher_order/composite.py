"""`lax.composite`: its decomposition, in its place.

A backend that knows the composite by its name expects the operands that belong
to that name. Leaves are others, so what runs on values is the decomposition, as
on any backend that doesn't know the name. A rule for ``composite`` comes first.
"""

from __future__ import annotations

from typing import Any

from jax.tree_util import tree_leaves, tree_unflatten

from .. import _compat
from .._compat import JaxprEqn, SourceInfo
from .._rewrite import Scope, handlers, source_within
from .._value import is_value


def composite_handler(
    scope: Scope, eqn: JaxprEqn, operands: list[Any], origin: SourceInfo | None
) -> Any:
    if not any(map(is_value, operands)):
        return NotImplemented  # the equation stays as it is
    body = eqn.params[_compat.body_name(eqn.primitive)]
    restaged = scope.rewriting.restage(body, operands, eqn)
    leaves = [*scope.include(restaged), *tree_leaves(operands)]
    inner = source_within(origin, eqn.source_info)
    return tree_unflatten(restaged.out_tree, scope.run(restaged.jaxpr, leaves, inner))


handlers["composite"] = composite_handler

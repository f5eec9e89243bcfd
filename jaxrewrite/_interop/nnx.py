"""Variables of `flax.nnx` among the arguments, which a function changes in place.

A function is staged on copies of its arguments. A module of nnx keeps its state in variables,
such as the statistics of a batch normalisation, or the count of a dropout. What a function
stores in the copies is a result of the program, and is stored in the caller's variables when
the program has run.
"""

from __future__ import annotations

import sys
from typing import Any

from jax.tree_util import tree_leaves

from .._core import hooks


class _State:
    """The hook for staging, which looks at the variables among the arguments."""

    def before(self, tree: Any) -> list[tuple[Any, Any]]:
        """The variables in a pytree, and their contents."""
        return [(variable, variable.get_raw_value()) for variable in _variables(tree)]

    def after(self, state: list[tuple[Any, Any]]) -> dict[int, Any]:
        """The new contents of the variables that have changed."""
        now = [variable.get_raw_value() for variable, _ in state]
        return {
            i: x
            for i, (x, (_, old)) in enumerate(zip(now, state, strict=True))
            if x is not old
        }

    def store(self, tree: Any, changed: dict[int, Any]) -> None:
        """Store new contents in the variables of a pytree."""
        variables = _variables(tree)
        if len({id(variables[i]) for i in changed}) < len(changed):
            raise ValueError(
                "The transformed function changes a variable of flax.nnx that its arguments have "
                "in two places, such as the state of a layer that is used twice. Call nnx.split "
                "before it, nnx.merge in it, and return the state."
            )
        for i, content in changed.items():
            variables[i].set_raw_value(content)


def _variables(tree: Any) -> list[Any]:
    cls = getattr(sys.modules.get("flax.nnx"), "Variable", None)
    if cls is None:
        return []
    # Variables that are tracers, or arrays of JAX's own kind, change by themselves.
    is_variable = lambda x: issubclass(type(x), cls)
    return [x for x in tree_leaves(tree, is_leaf=is_variable) if is_variable(x)]


hooks.staging_hooks.append(_State())

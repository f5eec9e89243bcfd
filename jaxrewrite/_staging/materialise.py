"""`materialise`: the function by which users make values dense."""

from __future__ import annotations

from typing import Any, overload

import jax
from jax.tree_util import tree_map

from .._core.value import Value, is_value
from .transform import dense


@overload
def materialise(tree: Value | jax.Array) -> jax.Array: ...


@overload
def materialise(tree: Any) -> Any: ...


def materialise(tree: Any) -> Any:
    """Make every value in a pytree dense, nested ones included.

    A value of a ready type is computed by one compiled program. `jax.jit` of this function does
    that for other types.

    Parameters
    ----------
    tree
        A pytree with arrays and values as leaves.

    Returns
    -------
    Any
        The pytree with an array for each value. The array has the value's shape and dtype.

    Raises
    ------
    MaterialisationError
        If a value cannot be dense, or its array does not have the value's aval.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, jaxrewrite
    >>> class Shifted(jaxrewrite.ArrayValue):
    ...     x: jax.Array
    ...     def materialise(self):
    ...         return self.x + 1
    >>> jaxrewrite.materialise({"nested": Shifted(Shifted(jnp.zeros(2)))})
    {'nested': Array([2., 2.], dtype=float32)}
    """
    return tree_map(lambda x: dense(x) if is_value(x) else x, tree, is_leaf=is_value)

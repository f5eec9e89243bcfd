"""`materialise`: values made dense, when a user asks for it."""

from __future__ import annotations

from typing import Any

from jax.tree_util import tree_map

from ._transform import dense
from ._value import is_value


def materialise(tree: Any) -> Any:
    """Make every value in a pytree dense, nested ones included.

    Parameters
    ----------
    tree
        A pytree, of whose leaves some may be values.

    Returns
    -------
    Any
        The pytree with an array in the place of each value, of the value's
        shape and dtype.

    Raises
    ------
    MaterialisationError
        If a value refuses to be dense, or is not what its ``aval`` says.

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

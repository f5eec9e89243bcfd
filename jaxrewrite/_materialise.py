"""`materialise`: values made dense, when a user asks for it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from jax.tree_util import PyTreeDef, tree_map, tree_unflatten

from . import _compat
from ._errors import MaterialisationError
from ._transform import transform
from ._value import Value, aval_of, is_value, layer


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
    return tree_map(lambda x: _dense(x) if is_value(x) else x, tree, is_leaf=is_value)


def _dense(value: Value) -> Any:
    expected = aval_of(value)
    dense: Any = value
    while is_value(dense):
        leaves, treedef = layer(dense)
        name = type(dense).__name__
        try:
            if any(map(is_value, leaves)):
                dense = transform(_materialiser(treedef), materialise="allow")(*leaves)
            else:
                dense = dense.materialise()
        except MaterialisationError:
            raise
        except Exception as error:
            raise MaterialisationError(f"{name} can't be made dense: {error}") from error
    aval = _compat.leaf_aval(dense)
    if not _compat.same_array_type(aval, expected):
        raise MaterialisationError(
            f"{type(value).__name__}.materialise returned {_compat.short(aval)} where its "
            f"aval says {_compat.short(expected)}."
        )
    if isinstance(dense, (np.ndarray, np.generic)):  # of 64 bits, perhaps, unlike JAX's
        dense = np.asarray(dense, aval.dtype)
    return dense


@functools.lru_cache(256)
def _materialiser(treedef: PyTreeDef) -> Callable[..., Any]:
    def materialise(*leaves: Any) -> Any:
        return tree_unflatten(treedef, leaves).materialise()

    return materialise

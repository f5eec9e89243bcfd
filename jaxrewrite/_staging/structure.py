"""`same_structure`: whether one program serves for two arguments."""

from __future__ import annotations

from jax.tree_util import tree_flatten

from .. import _compat
from .._compat import Tree
from .._core.avals import same_treedef


def same_structure(x: Tree, y: Tree) -> bool:
    """Return whether two pytrees of arrays and values differ at most in their numbers.

    Parameters
    ----------
    x, y
        Values, arrays or pytrees of them.

    Returns
    -------
    bool
        Whether they have the same classes and metadata, also in nested values, and leaves
        of the same shapes and dtypes.

    Examples
    --------
    >>> import jax.numpy as jnp, jaxrewrite
    >>> from jaxrewrite.values import Circulant, Diagonal
    >>> x = jnp.ones(3)
    >>> jaxrewrite.same_structure(Diagonal(x), Diagonal(2 * x))
    True
    >>> jaxrewrite.same_structure(Diagonal(x), Circulant(x))
    False
    """
    xs, treedef = tree_flatten(x)
    ys, other = tree_flatten(y)
    return same_treedef(treedef, other) and all(
        _compat.same_array_type(_compat.leaf_aval(a), _compat.leaf_aval(b))
        for a, b in zip(xs, ys, strict=True)
    )

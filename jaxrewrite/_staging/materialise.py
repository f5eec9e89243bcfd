"""`materialise` and `no_materialise`: how users make values dense, and forbid it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, overload

import jax
from jax.tree_util import tree_map

from .._compat import Tree
from .._core.settings import current_settings, in_force
from .._core.value import Value, is_value
from .transform import dense


@overload
def materialise(tree: Value | jax.Array) -> jax.Array: ...


@overload
def materialise(tree: Tree) -> Any: ...


def materialise(tree: Tree) -> Any:
    """Make every value in a pytree dense, nested ones included.

    A value is computed by one compiled program, unless its ``materialise`` looks at the numbers in
    its leaves, has an effect, is a single operation, or returns what it holds. As under `jax.jit`,
    what the method does in Python then happens once for each structure.

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


@contextlib.contextmanager
def no_materialise() -> Iterator[None]:
    """Forbid that values become dense, in all that is transformed meanwhile.

    A transform in this region, or in a function that it calls, has the policy
    ``materialise="forbid"`` unless it is given another one. Calls of
    `jaxrewrite.materialise` do what they say, and programs that `jax.jit` compiled before
    run as they are. The region is one of this thread, or of this task of ``asyncio``.

    Raises
    ------
    MaterialisationError
        Inside of the region, when a value has to become dense.

    Examples
    --------
    >>> import jax.numpy as jnp, jaxrewrite
    >>> from jaxrewrite.values import Diagonal
    >>> sort = jaxrewrite.transform(jnp.sort)
    >>> with jaxrewrite.no_materialise():
    ...     sort(Diagonal(jnp.ones(2)))
    Traceback (most recent call last):
    ...
    jaxrewrite.MaterialisationError: No rule for primitive 'sort' on Diagonal, which may
    not be made dense here (materialise='forbid').
    ...
    """
    with in_force(current_settings()._replace(policy="forbid")):
        yield

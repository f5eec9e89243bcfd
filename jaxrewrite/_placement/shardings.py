"""Where the leaves of a pytree of values are on a mesh, by rules for the arrays.

A rule is about the array that a value stands for, so that rules written for dense parameters
serve adapted and quantised ones. The type of the value decides what that means for its
leaves: `Value.leaf_specs`.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec
from jax.tree_util import (
    keystr,
    tree_flatten_with_path,
    tree_map,
    tree_structure,
    tree_unflatten,
)

from .._core.avals import aval_of
from .._core.value import Value, is_value
from .leafwise import not_split, places_of_leaves


_T = TypeVar("_T")

Rules = Sequence[tuple[str, Any]] | Callable[[str, Any], Any]


def shardings(tree: Any, mesh: Mesh, rules: Rules) -> Any:
    """The sharding of each leaf of a pytree, for the shardings of the arrays.

    Parameters
    ----------
    tree
        A pytree of arrays and values: parameters, or the state of an optimiser. Its leaves
        may also be `jax.ShapeDtypeStruct`.
    mesh
        The devices, with names for their axes.
    rules
        Pairs of a regular expression and a `jax.sharding.PartitionSpec`, or a function of a
        path and a leaf that returns a spec. The first expression that is found in the path
        decides. A path is that of `jax.tree_util.keystr` with ``simple=True,
        separator="/"``, such as ``"blocks/0/up/kernel"``, and ends at a value. The spec is
        for the array that a value stands for. Arrays with at most one entry need no rule.

    Returns
    -------
    Any
        A pytree like ``tree``, with a `jax.sharding.NamedSharding` for each leaf, or ``None``
        for a leaf that is no array. `jax.jit` takes it as ``in_shardings``, and checkpoint
        libraries take it to restore.

        The leaves of a value are split as `Value.leaf_specs` says: both factors of a
        `jaxrewrite.values.Lora`, the codes and the scales of a quantised weight. An axis that
        all of an array shares, such as one of length 1, is not split. A leaf that cannot be
        split evenly is on all devices.

    Raises
    ------
    ValueError
        If no rule is for an array, or an array can't be split as its rule says. The error has
        the path.
    TypeError
        If a rule has something other than a spec, a value lacks some of its arrays, or
        ``mesh`` is not a mesh.

    Warns
    -----
    UserWarning
        If a rule splits a value and its type does not define what that means for its leaves.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, jaxrewrite
    >>> from jax.sharding import PartitionSpec as P
    >>> from jaxrewrite.values import Lora
    >>> mesh = jax.make_mesh((1,), ("model",))
    >>> params = {"up": Lora(jnp.ones((4, 8)), jnp.ones((4, 2)), jnp.ones((2, 8)))}
    >>> found = jaxrewrite.shardings(params, mesh, [("up", P(None, "model"))])
    >>> [sharding.spec for sharding in jax.tree.leaves(found)]
    [P(None, 'model'), P(None, None), P(None, 'model')]
    """
    if not isinstance(mesh, (Mesh, AbstractMesh)):
        raise TypeError(
            f"The second argument must be a jax.sharding.Mesh, not a {type(mesh).__name__}."
        )
    leaves, treedef = tree_flatten_with_path(tree, is_leaf=is_value)
    placed = []
    for key, leaf in leaves:
        path = keystr(key, simple=True, separator="/")
        placed.append(_of_leaf(path, leaf, mesh, rules))
    return tree_unflatten(treedef, placed)


def place(tree: _T, mesh: Mesh, rules: Rules) -> _T:
    """Put each leaf of a pytree where `shardings` says.

    Parameters
    ----------
    tree, mesh, rules
        As for `shardings`.

    Returns
    -------
    Any
        The pytree with its arrays on the devices of the mesh. What is no array stays.

    Raises
    ------
    ValueError, TypeError
        As `shardings`.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, jaxrewrite
    >>> from jax.sharding import PartitionSpec as P
    >>> from jaxrewrite.values import Quantised
    >>> mesh = jax.make_mesh((1,), ("model",))
    >>> params = {"up": Quantised.quantise(jnp.ones((4, 8)), axis=-1), "bias": jnp.zeros(8)}
    >>> rules = [("up", P(None, "model")), ("bias", P())]
    >>> params = jaxrewrite.place(params, mesh, rules)
    >>> params["up"].q.sharding.spec, params["up"].scale.sharding.spec
    (P(None, 'model'), P(None, 'model'))
    """
    to = shardings(tree, mesh, rules)
    return tree_map(
        lambda sharding, leaf: leaf if sharding is None else jax.device_put(leaf, sharding),
        to,
        tree,
        is_leaf=lambda x: x is None,
    )


def _of_leaf(path: str, leaf: Any, mesh: Mesh, rules: Rules) -> Any:
    """The sharding of an array, or a value with the shardings of its leaves."""
    aval = _aval_of_whole(path, leaf) if is_value(leaf) else _array_type(leaf)
    if aval is None:
        return None
    sharding = NamedSharding(mesh, PartitionSpec())
    spec = _spec(path, leaf, rules)
    if spec is None and aval.size > 1:
        raise ValueError(
            f"No rule is for {path!r}, of shape {aval.shape}. A last rule "
            "('.*', PartitionSpec()) keeps all other arrays whole."
        )
    if spec:
        try:
            sharding = NamedSharding(mesh, spec)
            if len(spec) > len(aval.shape):
                raise ValueError(f"it has {len(aval.shape)} axes.")
            sharding.shard_shape(aval.shape)
        except ValueError as error:
            raise ValueError(
                f"{path!r}, of shape {aval.shape}, can't be split as {spec} over the mesh "
                f"{dict(mesh.shape)}: {error}"
            ) from error
    if not is_value(leaf):
        return sharding
    replicated = NamedSharding(mesh, PartitionSpec())
    placed = places_of_leaves(leaf, sharding, replicated)
    if placed and spec and all(one is replicated for one in placed):
        warnings.warn(
            f"A rule splits {path!r}, a {type(leaf).__name__}, {not_split(leaf, sharding)}",
            stacklevel=4,
        )
    return tree_unflatten(tree_structure(leaf), placed)


def _aval_of_whole(path: str, value: Value) -> Any:
    try:
        return aval_of(value)
    except TypeError as error:
        raise TypeError(
            f"{path!r} has no shape, so that no rule can split it. Place a tree before it is "
            "partitioned; an optimiser makes its moments where the arrays are."
        ) from error


def _array_type(leaf: Any) -> Any:
    """The shape and dtype of an array; ``None`` for other objects."""
    return leaf if hasattr(leaf, "shape") and hasattr(leaf, "dtype") else None


def _spec(path: str, leaf: Any, rules: Rules) -> PartitionSpec | None:
    if callable(rules):
        spec = rules(path, leaf)
    else:
        spec = next((spec for rule, spec in rules if re.search(rule, path)), None)
    if spec is not None and not isinstance(spec, PartitionSpec):
        raise TypeError(f"The rule for {path!r} has {spec!r} in place of a PartitionSpec.")
    return spec

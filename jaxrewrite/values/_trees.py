"""Helpers for pytrees of values: what is trained, and what it takes to hold them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax

import jaxrewrite

from ._base.structured import bytes_text, nbytes_of


def freeze(tree: Any, fields: Mapping[type, Sequence[str]], *, rest: str = "train") -> Any:
    """Label the leaves of a pytree with ``"freeze"`` or ``"train"``.

    For `optax.multi_transform`, with an optimiser for ``"train"`` and
    ``optax.set_to_zero()`` for ``"freeze"``: what is frozen does not change, and has no
    moments. A pytree that can be called, such as an Equinox module, has labels that can be
    called too, so that Optax has to be given ``lambda _: labels``. Frozen integers, as those
    of a quantised weight, have derivatives that no optimiser takes: see `partition`.

    Parameters
    ----------
    tree
        A pytree with values in it, at any depth.
    fields
        For types of values, the names of the fields that are frozen, with all that
        is in them. Those of a base class hold for its subclasses.
    rest
        The label of what is in no value of these types: ``"train"``, or ``"freeze"``,
        for adapters alone to be trained.

    Returns
    -------
    Any
        A pytree of the same structure, with labels as leaves.

    Raises
    ------
    ValueError
        If a type has no field of such a name, or ``rest`` is neither label.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> from jaxrewrite.values import Lora, freeze
    >>> v = Lora(jnp.ones((3, 4)), jnp.ones((3, 1)), jnp.ones((1, 4)))
    >>> labels = freeze({"kernel": v, "bias": jnp.zeros(4)}, {Lora: ["w"]})
    >>> jax.tree.leaves(labels)
    ['train', 'freeze', 'train', 'train']
    """
    if rest not in ("train", "freeze"):
        raise ValueError(f'freeze: rest is {rest!r}; it must be "train" or "freeze".')
    for cls, names in fields.items():
        for name in names:
            if name not in getattr(cls, "__dataclass_fields__", {}):
                raise ValueError(f"freeze: {cls.__name__} has no field {name!r}.")

    def label(x: Any, outer: str) -> Any:
        frozen = [names for cls, names in fields.items() if isinstance(x, cls)]
        if frozen:
            outer = "train"

        def of_field(path: Any, field: Any) -> Any:
            name = getattr(path[0], "name", None) if path else None
            if any(name in names for names in frozen):
                return jax.tree.map(lambda _: "freeze", field)
            return label(field, outer) if _is_value(field) else outer

        is_field = lambda y: y is not x and _is_value(y)
        return jax.tree_util.tree_map_with_path(of_field, x, is_leaf=is_field)

    return label(tree, rest)


def _is_value(x: Any) -> bool:
    return isinstance(x, jaxrewrite.Value)


def partition(tree: Any, labels: Any) -> tuple[Any, Any]:
    """Split a pytree into what is trained and what is not, by the labels of `freeze`.

    Both parts have its structure, with ``None`` where a leaf is in the other one, so that a
    gradient, or an optimiser, of the first part knows nothing of the second. `combine`
    puts them together.

    Examples
    --------
    The weight stays as it is, 4-bit integers and all:

    >>> import jax, jax.numpy as jnp, jaxrewrite
    >>> from jaxrewrite.values import Lora, NF4, combine, freeze, partition
    >>> base = NF4.quantise(jax.random.normal(jax.random.key(0), (64, 4)))
    >>> v = Lora(base, jnp.ones((64, 1)), jnp.zeros((1, 4)))
    >>> trained, rest = partition(v, freeze(v, {Lora: ["w"]}))
    >>> len(jax.tree.leaves(trained)), len(jax.tree.leaves(rest))
    (2, 4)
    >>> loss = jaxrewrite.transform(lambda v, x: ((x @ v) ** 2).sum(), materialise="forbid")
    >>> gradient = jax.grad(lambda part, x: loss(combine(part, rest), x))
    >>> gradient(trained, jnp.ones(64)).b.shape
    (1, 4)
    """
    chosen = lambda wanted: jax.tree.map(
        lambda x, label: x if label == wanted else None, tree, labels
    )
    return chosen("train"), chosen("freeze")


def combine(*parts: Any) -> Any:
    """Put together the parts of a pytree that `partition` gave."""
    is_none = lambda x: x is None
    return jax.tree.map(
        lambda *xs: next((x for x in xs if x is not None), None), *parts, is_leaf=is_none
    )


class Bytes(NamedTuple):
    """The bytes of a pytree with its values made dense, and of the pytree as it is."""

    dense: int
    implicit: int

    def __str__(self) -> str:
        return f"{bytes_text(self.dense)} dense, {bytes_text(self.implicit)} implicit"


def nbytes(tree: Any) -> Bytes:
    """Count the bytes of all arrays of a pytree: if its values were dense, and as it is.

    Four-bit integers take half a byte. What is no array takes nothing.

    Raises
    ------
    TypeError
        If a value is half empty, as those of a part that `partition` gave.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from jaxrewrite.values import LowRank, nbytes
    >>> v = LowRank(jnp.ones((300, 2)), jnp.ones((2, 400)))
    >>> nbytes({"kernel": v, "bias": jnp.zeros(400)})
    Bytes(dense=481600, implicit=7200)
    >>> print(nbytes(v))
    480 kB dense, 5.6 kB implicit
    """
    arrays = jax.tree.leaves(tree, is_leaf=_is_value)
    return Bytes(_total([_stand_in(x) for x in arrays]), _total(jax.tree.leaves(tree)))


def _stand_in(x: Any) -> Any:
    """An object with the shape and dtype of a value, or of an array."""
    if isinstance(x, jaxrewrite.ArrayValue):
        return jax.ShapeDtypeStruct(x.shape, x.dtype)
    return x.aval() if _is_value(x) else x


def _total(leaves: Sequence[Any]) -> int:
    return sum(nbytes_of(x) for x in leaves if hasattr(x, "shape") and hasattr(x, "dtype"))

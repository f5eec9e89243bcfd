"""Helpers for pytrees of values: adapters, what is trained, what it takes to hold them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

import jaxrewrite

from ._base.structured import bytes_text, nbytes_of
from ._weights.lora import Lora


Axes = tuple[Sequence[int], Sequence[int]]


def adapt(
    tree: Any,
    where: Callable[[str, Any], bool],
    rank: int,
    key: Array,
    *,
    scale: float = 1.0,
    axes: Axes | Callable[[str, Any], Axes | None] | None = None,
) -> Any:
    r"""Put a `Lora` in the place of chosen weights of a pytree.

    The factor ``a`` is random, of standard deviation :math:`1/\sqrt{n}` for ``n`` row
    entries, and ``b`` is zero (section 4.1 of arXiv:2106.09685), so that the model
    is the same as before. Both have the dtype of the weight.

    Parameters
    ----------
    tree
        Any pytree: an Equinox module, the params of Flax, nested dicts. Its leaves may be
        values, such as quantised weights.
    where
        Called with the path and the leaf for each floating-point array or value;
        says which are to be adapted. A path is as of `jax.tree_util.keystr` with
        ``simple=True, separator="/"``: ``"params/attention/query/kernel"``,
        ``"layers/0/weight"``.
    rank
        The rank of each change.
    key
        For `jax.random`.
    scale
        What each change is multiplied by.
    axes
        The row and the column axes of a weight, ``(rows, cols)``, or a function of the
        path and the leaf that gives them; the axes in neither are batch axes,
        as of stacked layers. Needed for weights of more than two axes, such as
        the attention kernels of Flax: ``((0,), (1, 2))`` for the shape (features,
        heads, head size), and ``((0, 1), (2,))`` for the projection of the output.
        ``None`` is for the two axes of a matrix.

    Returns
    -------
    Any
        The same pytree, with a `Lora` for each chosen leaf.

    Raises
    ------
    ValueError
        If no leaf is chosen, or one that is no matrix and has no ``axes``; if ``rank`` is
        not positive.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, jaxrewrite
    >>> from jaxrewrite import values
    >>> params = {"dense": {"kernel": jnp.ones((3, 4)), "bias": jnp.zeros(4)}}
    >>> is_kernel = lambda path, leaf: path.endswith("kernel")
    >>> adapted = values.adapt(params, is_kernel, rank=2, key=jax.random.key(0))
    >>> adapted["dense"]["kernel"].b.shape
    (2, 4)
    >>> model = lambda p, x: x @ p["dense"]["kernel"] + p["dense"]["bias"]
    >>> jaxrewrite.transform(model)(adapted, jnp.ones(3))
    Array([3., 3., 3., 3.], dtype=float32)
    """
    if rank < 1:
        raise ValueError(f"adapt: rank is {rank}; it must be at least 1.")
    leaves, treedef = jax.tree_util.tree_flatten_with_path(tree, is_leaf=_is_value)
    paths = [jax.tree_util.keystr(p, simple=True, separator="/") for p, _ in leaves]
    swapped = [leaf for _, leaf in leaves]
    chosen = [
        i
        for i, (path, leaf) in enumerate(zip(paths, swapped, strict=True))
        if _is_floating(leaf) and where(path, leaf)
    ]
    if not chosen:
        raise ValueError(f"adapt: where chose none of the leaves: {', '.join(paths)}.")
    for i, own in zip(chosen, jax.random.split(key, len(chosen)), strict=True):
        of_leaf = axes(paths[i], swapped[i]) if callable(axes) else axes
        swapped[i] = _adapted(paths[i], swapped[i], rank, own, scale, of_leaf)
    return jax.tree_util.tree_unflatten(treedef, swapped)


def _is_floating(leaf: Any) -> bool:
    dtype = getattr(leaf, "dtype", None)
    return dtype is not None and jnp.issubdtype(dtype, jnp.inexact)


def _adapted(
    path: str, w: Any, rank: int, key: Array, scale: float, axes: Axes | None
) -> Lora:
    if axes is None:
        if w.ndim != 2:
            raise ValueError(
                f"adapt: {path} has shape {w.shape}, which is no matrix's. Say by axes "
                "which axes are its rows and columns."
            )
        axes = (0,), (1,)
    rows, cols = ([axis % w.ndim for axis in own] for own in axes)
    batch = [i for i in range(w.ndim) if i not in rows and i not in cols]
    sizes = [[w.shape[i] for i in own] for own in (batch, rows, cols)]
    a = jax.random.normal(key, (*sizes[0], *sizes[1], rank), w.dtype)
    b = jnp.zeros((*sizes[0], rank, *sizes[2]), w.dtype)
    return Lora(w, a / math.sqrt(max(math.prod(sizes[1]), 1)), b, scale, rows, cols)


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

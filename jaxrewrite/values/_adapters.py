"""Helpers for pytrees with adapters: merged into the weights, or several of them at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from operator import is_not
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

import jaxrewrite

from ._base.random_keys import check_key
from ._base.structured import is_value, padded
from ._weights.dora import Dora
from ._weights.dropped import Dropped, Dropping
from ._weights.lora import Lora
from ._weights.rescaled import Rescaled


def merge(tree: Any) -> Any:
    """Make each `Lora`, `Dora` and `Rescaled` of a pytree dense, with its change in it.

    Everything else stays as it is. A quantised base becomes dense, too; quantise it again
    with `quantise`.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from jaxrewrite.values import Lora, merge
    >>> v = Lora(jnp.ones((2, 2)), jnp.ones((2, 1)), jnp.ones((1, 2)))
    >>> merge({"kernel": v, "bias": jnp.zeros(2)})["kernel"]
    Array([[2., 2.], [2., 2.]], dtype=float32)
    """
    is_adapted = lambda x: isinstance(x, (Lora, Dora, Rescaled))
    dense = lambda x: jaxrewrite.materialise(x) if is_adapted(x) else x
    return jax.tree.map(dense, tree, is_leaf=is_adapted)


def dropout(tree: Any, rate: float, key: Array) -> Any:
    r"""Drop entries of what each adapter of a pytree is multiplied with, for one step of training.

    The change of a weight sees each entry of an array with probability :math:`1 - p`, divided by it,
    and zero otherwise. The weight itself sees all. Each token, and each example of a batch, has
    entries of its own, as with ``lora_dropout`` of peft. Only products and convolutions drop
    entries: as an array, and in lookups, an adapter is what it was, which is the mean. Where a
    model uses a weight several times, such as at each step of a loop, arrays of one shape lose the
    same entries. Under `jax.vmap` of the transformed function, so do all examples, unless each has
    a key of its own. Differentiate the transformed function: a cotangent within it, as of
    ``transform(jax.grad(f))``, meets the factor itself. So does an array whose product sums none of the
    ``rows`` of an adapter, which `adapt` lets be the inputs by ``axes``. In evaluation, leave it out.

    Parameters
    ----------
    tree
        Any pytree.
    rate
        The probability :math:`p` to drop an entry, less than one.
    key
        A key for `jax.random`. It may be traced.

    Returns
    -------
    Any
        The same pytree with factors ``a`` that drop entries. A `Dora` becomes the `Rescaled` that it
        is in products, since the lengths of its columns are those without dropout. Derivatives
        reach the parts of ``tree``.

    Raises
    ------
    ValueError
        If ``rate`` is not in [0, 1), or there is no adapter.
    TypeError
        If ``key`` is no key, as where it is exchanged with ``rate``.

    Warns
    -----
    UserWarning
        By the transformed function, if a product sums none of the ``rows`` of an adapter, so that
        nothing is dropped.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, jaxrewrite
    >>> from jaxrewrite.values import Lora, dropout
    >>> params = {"kernel": Lora(jnp.zeros((4, 4)), jnp.eye(4), jnp.eye(4))}
    >>> model = jaxrewrite.transform(lambda params, x: x @ params["kernel"])
    >>> model(dropout(params, 0.5, jax.random.key(0)), jnp.ones((2, 4)))
    Array([[0., 2., 0., 2.],
           [0., 2., 2., 2.]], dtype=float32)
    >>> def loss(params, key, x):
    ...     return (model(dropout(params, 0.5, key), x) ** 2).sum()
    >>> gradient = jax.grad(loss)(params, jax.random.key(0), jnp.ones((3, 4)))
    >>> gradient["kernel"].a.shape
    (4, 4)
    """
    check_key("dropout", key)
    if not 0 <= rate < 1:
        raise ValueError(f"dropout: rate is {rate}; it must be at least 0 and less than 1.")
    leaves, treedef = jax.tree.flatten(tree, is_leaf=_is_adapted)
    positions = [i for i, leaf in enumerate(leaves) if _is_adapted(leaf)]
    if not positions:
        raise ValueError("dropout: there is no Lora or Dora in this pytree.")
    for i, own in zip(positions, jax.random.split(key, len(positions)), strict=True):
        leaves[i] = _dropping(leaves[i], rate, own)
    return jax.tree.unflatten(treedef, leaves)


def _dropping(v: Lora | Dora, rate: float, key: Array) -> Any:
    if isinstance(v, Dora):
        rescaled: Any = v.rescaled()
        return dataclasses.replace(rescaled, w=_dropping(v.lora, rate, key))
    batch = v.a.shape[: v.a.ndim - 1 - len(v.rows)]
    seeds = jax.random.bits(key, (*batch, *(1,) * (v.a.ndim - len(batch))), "uint32")
    factor: Any = Dropped(v.a, seeds, float(rate))
    if type(v) is not Lora:  # The rules of a subclass of a user's go on to hold.
        return dataclasses.replace(v, a=factor)
    return Dropping(v.w, factor, v.b, v.scale, v.rows, v.cols, v.frozen)


def stack_adapters(trees: Sequence[Any]) -> Any:
    """Put pytrees that differ in their adapters together, for batches that use several.

    Parameters
    ----------
    trees
        Pytrees with the same weights, as the same objects, such as `load_adapter` makes of
        one pytree. Each weight may be a `Lora` in some and the bare weight in others, which
        then have no change; or a `Dora` in some and bare in others.

    Returns
    -------
    Any
        The same pytree. Where a weight has an adapter in any of them, its ``a`` and ``b``, and the
        ``magnitude`` of a `Dora`, have one more axis in front, along which the adapters lie. Lower ranks are padded with
        zeros. If scales differ, they are multiplied into ``a``.

    Raises
    ------
    ValueError
        If ``trees`` is no list, or an empty one, the pytrees do not share their other leaves, or the adapters of a weight have
        different axes or values, such as those of `dropout`, as their factors.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, jaxrewrite
    >>> from jaxrewrite.values import Lora, choose_adapters, stack_adapters
    >>> w = jnp.ones((3, 4))
    >>> one = {"kernel": Lora(w, jnp.ones((3, 1)), jnp.ones((1, 4)))}
    >>> two = {"kernel": Lora(w, jnp.ones((3, 1)), jnp.full((1, 4), 2.0))}
    >>> stacked = stack_adapters([{"kernel": w}, one, two])
    >>> stacked["kernel"].a.shape, stacked["kernel"].w.shape
    ((3, 3, 1), (3, 4))

    Each element of a batch says by a number which adapter it uses:

    >>> model = jaxrewrite.transform(lambda p, x: (x @ p["kernel"]).sum())
    >>> @jax.jit
    ... def run(stacked, index, x):
    ...     chosen, axes = choose_adapters(stacked, index)
    ...     return jax.vmap(model, in_axes=(axes, 0))(chosen, x)
    >>> run(stacked, jnp.array([0, 1, 2, 1]), jnp.ones((4, 3)))
    Array([12., 24., 36., 24.], dtype=float32)
    """
    if not isinstance(trees, (list, tuple)) or not trees:
        empty = "an empty " if isinstance(trees, (list, tuple)) else "a "
        got = empty + type(trees).__name__
        raise ValueError(f"stack_adapters: trees is a list of pytrees; got {got}.")
    flat = [jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_value) for tree in trees]
    paths = [[path for path, _ in leaves] for leaves, _ in flat]
    if any(tree_paths != paths[0] for tree_paths in paths):
        raise ValueError("stack_adapters: the pytrees have different paths.")
    columns = zip(*([leaf for _, leaf in leaves] for leaves, _ in flat), strict=True)
    stacked = [_stacked(path, xs) for path, xs in zip(paths[0], columns, strict=True)]
    return jax.tree_util.tree_unflatten(flat[0][1], stacked)


def choose_adapters(stacked: Any, index: ArrayLike) -> tuple[Any, Any]:
    """Choose one of several adapters for each element of a batch.

    Only the chosen factors are copied; the weights are shared by the batch.

    Parameters
    ----------
    stacked
        The result of `stack_adapters`.
    index
        Which adapter each element uses: integers of shape (batch,). They may be traced.

    Returns
    -------
    tuple
        The pytree, with the chosen factors, and lengths of a `Dora`, along their first axis; and the
        ``in_axes`` for it in `jax.vmap`. See `stack_adapters` for an example.
    """
    index = jnp.asarray(index)

    def with_chosen(x: Any) -> Any:
        own = {name: getattr(x, name)[index] for name in _own(x)}
        return dataclasses.replace(x, **own) if own else x

    def axes(x: Any) -> Any:
        own: Any = dict.fromkeys(_own(x), 0)
        return dataclasses.replace(x, w=None, **own) if own else None

    in_axes = jax.tree.map(axes, stacked, is_leaf=_is_adapted)
    return jax.tree.map(with_chosen, stacked, is_leaf=_is_adapted), in_axes


def _own(x: Any) -> tuple[str, ...]:
    """The fields in which adapters of one weight differ."""
    if isinstance(x, Dora):
        return "a", "b", "magnitude"
    return ("a", "b") if isinstance(x, Lora) else ()


def _is_adapted(x: Any) -> bool:
    return isinstance(x, (Lora, Dora))


def _stacked(path: Any, xs: Sequence[Any]) -> Any:
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    bases = [jax.tree.leaves(x.w if _is_adapted(x) else x) for x in xs]
    if any(len(b) != len(bases[0]) or any(map(is_not, b, bases[0])) for b in bases):
        raise ValueError(
            f"stack_adapters: the pytrees have different arrays at {name}. They must share "
            "all but their adapters: load these on one pytree."
        )
    adapted = [x for x in xs if _is_adapted(x)]
    if not adapted:
        return xs[0]
    if len({isinstance(v, Dora) for v in adapted}) > 1:
        raise ValueError(
            f"stack_adapters: {name} is a Lora in some pytrees, a Dora in others."
        )
    if len({(v.rows, v.cols, v.a.ndim, v.b.ndim) for v in adapted}) > 1:
        raise ValueError(f"stack_adapters: the adapters of {name} have different axes.")
    if len({v.frozen for v in adapted}) > 1:
        raise ValueError(
            f"stack_adapters: {name} has frozen=True in some pytrees, frozen=False in others."
        )
    factors = [getattr(v, field) for v in adapted for field in _own(v)]
    for cls in map(type, filter(is_value, factors)):
        raise ValueError(
            f"stack_adapters: an adapter of {name} has a {cls.__name__} in it, where an array is "
            "expected. Stack first, and call dropout or quantise on the result."
        )
    scale = adapted[0].scale if len({v.scale for v in adapted}) == 1 else 1.0
    rank = max(v.a.shape[-1] for v in adapted)
    alike = [_like(x, adapted[0], scale, rank) for x in xs]
    own = {field: jnp.stack([getattr(x, field) for x in alike]) for field in _own(alike[0])}
    return dataclasses.replace(adapted[0], **own, scale=scale)


def _like(x: Any, like: Any, scale: float, rank: int) -> Any:
    """An adapter, or a bare weight as one that changes nothing, of a common scale and rank."""
    if not _is_adapted(x):
        a, b = (jnp.zeros_like(factor) for factor in (like.a, like.b))
        bare = Lora(x, a, b, scale, like.rows, like.cols, like.frozen)
        x = Dora.of(bare) if isinstance(like, Dora) else bare
    a, b = x.a if x.scale == scale else x.a * x.scale, x.b
    more = rank - a.shape[-1]
    if more:
        a, b = padded(a, -1, 0, more), padded(b, -1 - len(x.cols), 0, more)
    return dataclasses.replace(x, a=a, b=b, scale=scale)

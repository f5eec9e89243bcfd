"""`Lora`: a weight and a trained change of low rank.

The method is that of Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models"
(arXiv:2106.09685). `jaxrewrite.values.adapt` puts such weights into any pytree.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, ArrayLike

import jaxrewrite
from jaxrewrite import ArrayValue
from jaxrewrite.primitives import ADDITIVE

from .._base.structured import Structured
from .._matrices.convolution import convolved as convolved_with_factors
from .._matrices.low_rank import LowRank, checked_axes
from .._matrices.low_rank_functions import LINEAR
from .._matrices.low_rank_products import dot, ragged_dot, times_array
from .._matrices.low_rank_sums import added, concatenated
from .coded import takes_matrices


class Adapted(Structured):
    """Base class of a weight with a change of low rank: the fields that these types share."""

    w: Array
    a: Array
    b: Array
    scale: float = jaxrewrite.field(static=True)
    rows: tuple[int, ...] = jaxrewrite.field(static=True)
    cols: tuple[int, ...] = jaxrewrite.field(static=True)
    frozen: bool = jaxrewrite.field(static=True)


class Lora(Adapted):
    r"""A weight with a change of low rank: :math:`w + s \, a b`.

    A product with an array is ``x @ w + ((x @ a) @ b) * scale``, computed from the fields
    as they are stored. Other linear functions act on ``w`` and on the factors: transposes,
    reshapes that split or join heads, slices (for example of a fused query-key-value
    kernel), casts and scaling. A sum with an array adds it to ``w``. Rows looked up, as
    from an embedding, are dense. Functions that are not linear need the dense array.

    ``w`` may be a value, such as a quantised weight (Dettmers et al., "QLoRA",
    arXiv:2305.14314). The rules of its own type then apply to it.

    If ``a`` and ``b`` have batch axes, ``w`` has them too, or it lacks the leading ones. In
    the second case the whole batch shares one ``w``. Apply such a weight with
    ``jax.vmap(transform(fn), in_axes=(Lora(None, 0, 0), 0))``, where the `Lora` in
    ``in_axes`` has the ``scale``, ``rows``, ``cols`` and ``frozen`` of the weight. Each
    element of the batch then has its own adapter, and `jax.vmap` does not repeat ``w``.

    Parameters
    ----------
    w
        The weight to adapt: an array or a value of floating-point numbers. It gives the
        `Lora` its dtype.
    a, b
        The factors of the change, as in a `LowRank`. For a matrix of shape ``(n, m)`` their
        shapes are ``(n, rank)`` and ``(rank, m)``. They may have another floating-point
        dtype.
    scale
        The Python number that multiplies the change; often ``alpha / rank``.
    rows, cols
        The axes that ``a`` and ``b`` have, as in a `LowRank`. By default the last two.
    frozen
        Whether ``w`` is a constant to derivatives. Its gradient is then zero and is not
        computed.

    Raises
    ------
    ValueError
        If the shapes don't fit, or a dtype is not floating-point.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, jaxrewrite
    >>> from jaxrewrite.values import Lora
    >>> v = Lora(jnp.ones((3, 4)), jnp.ones((3, 1)), jnp.ones((1, 4)), scale=0.5)
    >>> jnp.ones(3) @ v
    Array([4.5, 4.5, 4.5, 4.5], dtype=float32)
    >>> gradient = jax.grad(lambda v: (jnp.ones(3) @ v).sum())(v)
    >>> gradient.w.sum(), gradient.a.sum()
    (Array(0., dtype=float32), Array(6., dtype=float32))

    One weight, with its own adapter for each row of a batch:

    >>> apply = jaxrewrite.transform(lambda v, x: x @ v)
    >>> own = Lora(v.w, jnp.arange(6.0).reshape(2, 3, 1), jnp.ones((2, 1, 4)))
    >>> jax.vmap(apply, in_axes=(Lora(None, 0, 0), 0))(own, jnp.ones((2, 3)))
    Array([[ 6.,  6.,  6.,  6.], [15., 15., 15., 15.]], dtype=float32)
    """

    outer = -50

    def __init__(
        self,
        w: Any,
        a: Any,
        b: Any,
        scale: float = 1.0,
        rows: Iterable[int] | None = None,
        cols: Iterable[int] | None = None,
        frozen: bool = True,
    ):
        rows, cols = checked_axes("Lora", a, b, rows, cols)
        if all(hasattr(x, "shape") for x in (w, a, b)):
            _check_fields(w, a, b, rows, cols)
        self.__dict__.update(
            w=w, a=a, b=b, scale=float(scale), rows=rows, cols=cols, frozen=bool(frozen)
        )

    @property
    def change(self) -> LowRank:
        """``a @ b``, without the scale."""
        return LowRank(self.a, self.b, self.rows, self.cols)

    @property
    def rank(self) -> int:
        """The rank of the change."""
        return self.a.shape[-1]

    def aval(self) -> Any:
        return jax.ShapeDtypeStruct(self.change.aval().shape, self.w.dtype)

    def materialise(self) -> Any:
        dense = dataclasses.replace(self, w=jaxrewrite.materialise(self.w))
        return _total(dense, _base(dense), self.change.materialise())

    def merge(self) -> Array:
        """The dense array, for a model that is no longer trained.

        Examples
        --------
        >>> import jax.numpy as jnp
        >>> from jaxrewrite.values import Lora
        >>> Lora(jnp.ones((2, 2)), jnp.ones((2, 1)), jnp.ones((1, 2))).merge()
        Array([[2., 2.], [2., 2.]], dtype=float32)
        """
        return jaxrewrite.materialise(self)

    def join(self, other: Any) -> Any:
        if not isinstance(other, Lora):
            return NotImplemented
        fold = self.scale != other.scale
        changes = [_folded(v) if fold else v.change for v in (self, other)]
        joined = changes[0].join(changes[1])
        if joined is NotImplemented:
            return NotImplemented
        scale = 1.0 if fold else self.scale
        frozen = self.frozen and other.frozen
        return tuple(
            Lora(_base(v), change.a, change.b, scale, change.rows, change.cols, frozen)
            for v, change in zip((self, other), joined, strict=True)
        )

    def sliceable(self) -> Any:
        change = self.change.sliceable()
        if change is NotImplemented:
            return NotImplemented
        own: Any = {name: getattr(change, name) for name in ("a", "b", "rows", "cols")}
        whole = self.w if self.w.ndim == self.ndim else _base(self)
        return dataclasses.replace(self, w=whole, **own)

    def _image(self, w: Any, change: LowRank, frozen: bool) -> Lora:
        """What a linear map makes of it, given the images of its parts."""
        return Lora(w, change.a, change.b, self.scale, change.rows, change.cols, frozen)

    def leaf_specs(self, spec: Any) -> Lora:
        change = self.change.leaf_specs(spec)
        whole = (*spec, *[None] * (self.change.ndim - len(spec)))
        own: Any = jax.sharding.PartitionSpec(*whole[self.change.ndim - self.w.ndim :])
        return dataclasses.replace(self, w=own, a=change.a, b=change.b)


def _check_fields(
    w: Any, a: Any, b: Any, rows: tuple[int, ...], cols: tuple[int, ...]
) -> None:
    for field, x in (("w", w), ("a", a), ("b", b)):
        if not jnp.issubdtype(x.dtype, jnp.inexact):
            raise ValueError(f"Lora: `{field}` must be floating; got {x.dtype}.")
    shape = LowRank(a, b, rows, cols).shape
    missing = len(shape) - len(w.shape)
    is_shared = not any(axis + len(shape) < missing for axis in (*rows, *cols))
    if missing < 0 or w.shape != shape[missing:] or not is_shared:
        raise ValueError(
            f"Lora: `w` has shape {w.shape}, but `a` and `b`, of shapes {a.shape} and "
            f"{b.shape} with rows={rows} and cols={cols}, need a weight of shape {shape}."
        )


def _base(v: Lora) -> Any:
    w = lax.stop_gradient(v.w) if v.frozen else v.w
    return w if w.shape == v.shape else jnp.broadcast_to(w, v.shape)


def _scaled(change: LowRank, scale: float) -> LowRank:
    return change if scale == 1.0 else dataclasses.replace(change, a=change.a * scale)


def _folded(v: Lora | LowRank) -> LowRank:
    """The change with its scale in it."""
    return v if isinstance(v, LowRank) else _scaled(v.change, v.scale)


def _total(v: Lora, w: Any, change: Any) -> Any:
    if v.scale != 1.0:
        change = change * v.scale
    return w + change.astype(w.dtype)


def _with(v: Lora, w: Any, change: Any, frozen: bool) -> Any:
    """The image of a `Lora` under a linear map, given the images of its parts."""
    if isinstance(change, LowRank):
        return v._image(w, change, frozen)
    return _total(v, w, change)


# A rule keeps ``frozen`` unless another operand went into ``w``: derivatives must reach
# that operand.


@jaxrewrite.register(*LINEAR)
def _(v: Lora, *operands: ArrayLike, primitive, **params) -> Any:
    # The fill of a gather beyond the array is in ``w``, and nothing is added to it.
    of_change = {**params, "fill_value": 0} if primitive.name == "gather" else params
    change = LINEAR[primitive.name](v.change, *operands, **of_change)
    if change is NotImplemented:
        return NotImplemented
    is_lookup = primitive.name == "gather" and not takes_matrices(v.shape, **params)
    if is_lookup and isinstance(change, LowRank):
        # Rows that are looked up are activations, so factors would not save anything.
        change = change.materialise()
    return _with(v, primitive.bind(_base(v), *operands, **params), change, v.frozen)


@jaxrewrite.register("mul", exchange="operands")
@jaxrewrite.register("div")
def _(v: Lora, y: ArrayLike, *, primitive, **params) -> Any:
    change = times_array(v.change, y, primitive)
    if change is NotImplemented:
        return NotImplemented
    return _with(v, primitive.bind(_base(v), y, **params), change, frozen=False)


# --- sums ---------------------------------------------------------------------------


@jaxrewrite.register(*ADDITIVE, exchange="types")
def _(x: Lora, y: ArrayLike | ArrayValue, *, primitive) -> Any:
    """Add an operand that is not a `Lora` to ``w``."""
    v = x if isinstance(x, Lora) else y
    is_subtracted = v is y and primitive.name == "sub"
    change = LINEAR["neg"](v.change) if is_subtracted else v.change
    operands = (_base(z) if z is v else z for z in (x, y))
    return _with(v, jaxrewrite.bind(primitive, *operands), change, frozen=False)


@jaxrewrite.register(*ADDITIVE)
def _(v: Lora, u: Lora, *, primitive) -> Any:
    change = added(_folded(v), _folded(u), primitive=primitive)
    if change is NotImplemented:  # The sum of the ranks is no less than the array's rank.
        return primitive.bind(v.materialise(), u.materialise())
    w = primitive.bind(_base(v), _base(u))
    return Lora(w, change.a, change.b, 1.0, change.rows, change.cols, v.frozen and u.frozen)


@jaxrewrite.register(*ADDITIVE, exchange="types")
def _(x: Lora, y: LowRank, *, primitive) -> Any:
    change = added(_folded(x), _folded(y), primitive=primitive)
    if change is NotImplemented:
        return NotImplemented
    v = x if isinstance(x, Lora) else y
    w = -_base(v) if v is y and primitive.name == "sub" else _base(v)
    return Lora(w, change.a, change.b, 1.0, change.rows, change.cols, v.frozen)


@jaxrewrite.register("concatenate")
def _(*vs: Lora, dimension, **params) -> Any:
    change = concatenated([_folded(v) for v in vs], dimension)
    if change is NotImplemented:
        return NotImplemented
    w = lax.concatenate([_base(v) for v in vs], dimension)
    frozen = all(v.frozen for v in vs)
    return Lora(w, change.a, change.b, 1.0, change.rows, change.cols, frozen)


# --- products -----------------------------------------------------------------------


@jaxrewrite.register("dot_general", types=(Lora, Lora))
@jaxrewrite.register("dot_general", exchange="types")
def multiplied(x: Lora, y: ArrayLike | ArrayValue, **params) -> Any:
    if params.get("out_sharding") is not None:
        return NotImplemented
    v = x if isinstance(x, Lora) else y
    bases = (_base(z) if z is v else z for z in (x, y))
    w = jaxrewrite.bind("dot_general", *bases, **params)
    changes = (z.change if z is v else z for z in (x, y))
    return _with(v, w, dot(*changes, **params), frozen=False)


@jaxrewrite.register("ragged_dot_general")
def _(x: ArrayLike, v: Lora, sizes: ArrayLike, *, primitive, **params) -> Any:
    change = ragged_dot(x, v.change, sizes, **params)
    if change is NotImplemented:
        return NotImplemented
    return _total(v, primitive.bind(x, _base(v), sizes, **params), change)


# The product of a weight and an array of low rank has low rank.


@jaxrewrite.register("dot_general", exchange="types")
def _(x: Lora, y: LowRank, **params) -> Any:
    return dot(x, y, **params)


@jaxrewrite.register("conv_general_dilated")
def convolved(x: ArrayLike, v: Lora, **params) -> Any:
    change = convolved_with_factors(x, v.change, **params)
    if change is NotImplemented:
        return NotImplemented
    return _total(v, jaxrewrite.bind("conv_general_dilated", x, _base(v), **params), change)

"""The value types that the benchmarks run a model with."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

import jaxrewrite


class Lora(jaxrewrite.ArrayValue):
    r"""A weight with a low-rank adapter, :math:`W + A B`.

    ``w`` has shape (n, m), ``a`` (n, rank), ``b`` (rank, m). See Hu et al.,
    "LoRA: Low-Rank Adaptation of Large Language Models", arXiv:2106.09685.
    """

    w: Float[Array, "n m"]
    a: Float[Array, "n rank"]
    b: Float[Array, "rank m"]

    def materialise(self) -> Array:
        return self.w + self.a @ self.b


@jaxrewrite.register("dot_general")
def _(x: ArrayLike, y: Lora, *, dimension_numbers: Any, **params: Any) -> Any:
    """``x @ (W + A B) = x @ W + (x @ A) @ B``, where nothing is a batch."""
    if dimension_numbers != (((x.ndim - 1,), (0,)), ((), ())):
        return NotImplemented
    return x @ y.w + (x @ y.a) @ y.b


class Zero(jaxrewrite.ArrayValue):
    """An array of zeros that holds nothing."""

    zero_shape: tuple[int, ...] = jaxrewrite.field(static=True)
    zero_dtype: Any = jaxrewrite.field(static=True)

    def aval(self) -> jax.core.ShapedArray:
        return jax.core.ShapedArray(self.zero_shape, self.zero_dtype)

    def materialise(self) -> Array:
        return jnp.zeros(self.zero_shape, self.zero_dtype)


@jaxrewrite.register("add", commutative=True)
def _(x: ArrayLike, y: Zero, **params: Any) -> Any:
    return jnp.broadcast_to(x, jnp.broadcast_shapes(x.shape, y.shape))


@jaxrewrite.register("broadcast_in_dim")
def _(x: Zero, *, shape: tuple[int, ...], **params: Any) -> Zero:
    return Zero(shape, x.dtype)


@jaxrewrite.register("reshape")
def _(x: Zero, *, new_sizes: tuple[int, ...], **params: Any) -> Zero:
    return Zero(new_sizes, x.dtype)


@jaxrewrite.register("convert_element_type")
def _(x: Zero, *, new_dtype: Any, **params: Any) -> Zero:
    return Zero(x.shape, new_dtype)


def lora(w: Array, rank: int, key: Array) -> Lora:
    """Adapt a matrix of shape (n, m) by a random adapter of the same scale."""
    n, m = w.shape
    key_a, key_b = jax.random.split(key)
    a = jax.random.normal(key_a, (n, rank), w.dtype) / n**0.5
    b = jax.random.normal(key_b, (rank, m), w.dtype) * 0.02
    return Lora(w, a, b)


def zero_like(x: Array) -> Zero:
    return Zero(x.shape, x.dtype)

"""The value types with which the benchmarks run models."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import sparse
from jaxtyping import Array, ArrayLike, Float, Int, Int8

import jaxrewrite


class Lora(jaxrewrite.ArrayValue):
    r"""A weight with a low-rank adapter, :math:`W + A B`.

    ``w`` has shape (n, m), ``a`` (n, rank), ``b`` (rank, m). See Hu et al.,
    "LoRA: Low-Rank Adaptation of Large Language Models", arXiv:2106.09685.
    """

    w: Float[Array, "n m"]
    a: Float[Array, "n rank"]
    b: Float[Array, "rank m"]

    def aval(self) -> jax.core.ShapedArray:
        return jax.core.ShapedArray(self.w.shape, self.w.dtype)

    def materialise(self) -> Array:
        return self.w + self.a @ self.b


@jaxrewrite.register("dot_general")
def _(x: ArrayLike, y: Lora, *, dimension_numbers: Any, **params: Any) -> Any:
    """``x @ (W + A B) = x @ W + (x @ A) @ B``, without batch axes."""
    if dimension_numbers != (((x.ndim - 1,), (0,)), ((), ())):
        return NotImplemented
    return x @ y.w + (x @ y.a) @ y.b


class Quantised(jaxrewrite.ArrayValue):
    r"""A matrix as 8-bit integers with a scale for each column, :math:`Q \cdot s`.

    ``q`` has shape (n, m), ``scale`` (m,).
    """

    q: Int8[Array, "n m"]
    scale: Float[Array, " m"]

    def aval(self) -> jax.core.ShapedArray:
        return jax.core.ShapedArray(self.q.shape, self.scale.dtype)

    def materialise(self) -> Array:
        return self.q.astype(self.scale.dtype) * self.scale


@jaxrewrite.register("dot_general")
def _(x: ArrayLike, y: Quantised, *, dimension_numbers: Any, **params: Any) -> Any:
    """``x @ (Q s) = (x @ Q) s``, without batch axes."""
    if dimension_numbers != (((x.ndim - 1,), (0,)), ((), ())):
        return NotImplemented
    return (x @ y.q.astype(x.dtype)) * y.scale


class Sparse(jaxrewrite.ArrayValue):
    """A matrix as a sparse matrix of JAX, with JAX's own product."""

    data: Float[Array, " nonzeros"]
    indices: Int[Array, "nonzeros 2"]
    sparse_shape: tuple[int, ...] = jaxrewrite.field(static=True)

    def aval(self) -> jax.core.ShapedArray:
        return jax.core.ShapedArray(self.sparse_shape, self.data.dtype)

    def materialise(self) -> Array:
        return self.matrix().todense()

    def matrix(self) -> sparse.BCOO:
        return sparse.BCOO((self.data, self.indices), shape=self.sparse_shape)


@jaxrewrite.register("dot_general")
def _(x: Sparse, y: ArrayLike, *, dimension_numbers: Any, **params: Any) -> Any:
    return sparse.bcoo_dot_general(x.matrix(), y, dimension_numbers=dimension_numbers)


class Scaled(jaxrewrite.ArrayValue):
    """An array times a number."""

    x: Float[Array, ...]
    scale: Float[Array, ""]

    def aval(self) -> jax.core.ShapedArray:
        return jax.core.ShapedArray(self.x.shape, self.x.dtype)

    def materialise(self) -> Array:
        return self.x * self.scale


@jaxrewrite.register("neg")
def _(v: Scaled) -> Scaled:
    return Scaled(lax.neg(v.x), v.scale)


@jaxrewrite.register("mul", exchange="operands")
def _(v: Scaled, y: ArrayLike, **params: Any) -> Scaled:
    return Scaled(v.x * y, v.scale)


class Zero(jaxrewrite.ArrayValue):
    """An array of zeros that holds nothing."""

    zero_shape: tuple[int, ...] = jaxrewrite.field(static=True)
    zero_dtype: Any = jaxrewrite.field(static=True)

    def aval(self) -> jax.core.ShapedArray:
        return jax.core.ShapedArray(self.zero_shape, self.zero_dtype)

    def materialise(self) -> Array:
        return jnp.zeros(self.zero_shape, self.zero_dtype)


@jaxrewrite.register("add", exchange="operands")
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


def quantise(w: Array) -> Quantised:
    """Round a matrix of shape (n, m) to 8 bits a column."""
    scale = abs(w).max(0) / 127
    return Quantised(jnp.round(w / scale).astype(jnp.int8), scale)


def zero_like(x: Array) -> Zero:
    return Zero(x.shape, x.dtype)

"""The values of the comparison with the peers, as types of Quax. Imports Quax."""

from __future__ import annotations

from typing import Any

import equinox
import jax
import jax.numpy as jnp
import quax
from jaxtyping import Array, ArrayLike


class Lora(quax.ArrayValue):
    w: Array
    a: Array
    b: Array

    def aval(self) -> jax.core.ShapedArray:
        return jax.core.ShapedArray(self.w.shape, self.w.dtype)

    def materialise(self) -> Array:
        return self.w + self.a @ self.b


@quax.register(jax.lax.dot_general_p)
def _(x: ArrayLike, y: Lora, *, dimension_numbers: Any, **params: Any) -> Any:
    if dimension_numbers != (((x.ndim - 1,), (0,)), ((), ())):
        raise NotImplementedError
    return x @ y.w + (x @ y.a) @ y.b


class Zero(quax.ArrayValue):
    zero_shape: tuple[int, ...] = equinox.field(static=True)
    zero_dtype: Any = equinox.field(static=True)

    def aval(self) -> jax.core.ShapedArray:
        return jax.core.ShapedArray(self.zero_shape, self.zero_dtype)

    def materialise(self) -> Array:
        return jnp.zeros(self.zero_shape, self.zero_dtype)


@quax.register(jax.lax.add_p)
def _(x: ArrayLike, y: Zero, **params: Any) -> Any:
    return jnp.broadcast_to(x, jnp.broadcast_shapes(x.shape, y.zero_shape))


@quax.register(jax.lax.broadcast_in_dim_p)
def _(x: Zero, *, shape: tuple[int, ...], **params: Any) -> Zero:
    return Zero(shape, x.zero_dtype)


@quax.register(jax.lax.reshape_p)
def _(x: Zero, *, new_sizes: tuple[int, ...], **params: Any) -> Zero:
    return Zero(new_sizes, x.zero_dtype)


quaxify = quax.quaxify

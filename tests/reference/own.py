"""Types as a user writes them, one of each kind that the library has to get right.

Each has few rules, so that tests meet the defaults and values that become dense.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

import jaxrewrite

from . import OWN, case, uniform


class Lora(jaxrewrite.ArrayValue):
    """``w + a @ b``: several leaves, bilinear in two of them."""

    w: Array
    a: Array
    b: Array

    def materialise(self):
        return self.w + self.a @ self.b


@jaxrewrite.register("dot_general")
def _(x: ArrayLike, y: Lora, *, dimension_numbers, **params):
    if dimension_numbers != (((x.ndim - 1,), (0,)), ((), ())):
        return NotImplemented
    return x @ y.w + (x @ y.a) @ y.b


@jaxrewrite.register("transpose")
def _(v: Lora, *, permutation):
    return Lora(v.w.T, v.b.T, v.a.T) if permutation == (1, 0) else NotImplemented


@jaxrewrite.register("convert_element_type")
def _(v: Lora, *, new_dtype, **params):
    if not jnp.issubdtype(new_dtype, jnp.floating):
        return NotImplemented
    return Lora(*(jnp.asarray(x, new_dtype) for x in (v.w, v.a, v.b)))


class Scaled(jaxrewrite.ArrayValue):
    """``x * scale`` with a scalar ``scale``: leaves of different ranks."""

    x: Array
    scale: Array

    def materialise(self):
        return self.x * self.scale


@jaxrewrite.register("neg")
def _(v: Scaled):
    return Scaled(v.x, -v.scale)


@jaxrewrite.register("mul", exchange="operands")
def _(v: Scaled, y: ArrayLike, **params):
    return Scaled(v.x, v.scale * y) if jnp.ndim(y) == 0 else NotImplemented


@jaxrewrite.register("dot_general")
def _(v: Scaled, y: ArrayLike, **params):
    return Scaled(jaxrewrite.bind("dot_general", v.x, y, **params), v.scale)


@jaxrewrite.register("reduce_sum")
def _(v: Scaled, **params):
    return Scaled(jaxrewrite.bind("reduce_sum", v.x, **params), v.scale)


@jaxrewrite.register("transpose", "reshape", "broadcast_in_dim")
def _(v: Scaled, *, primitive, **params):
    return Scaled(jaxrewrite.bind(primitive, v.x, **params), v.scale)


class Zero(jaxrewrite.ArrayValue):
    """Zeros: no leaves, everything static."""

    shape_: tuple[int, ...] = jaxrewrite.field(static=True)
    dtype_: object = jaxrewrite.field(static=True)

    def aval(self):
        return jax.core.ShapedArray(self.shape_, self.dtype_)

    def materialise(self):
        return jnp.zeros(self.shape_, self.dtype_)


@jaxrewrite.register("add", exchange="operands")
def _(v: Zero, y: ArrayLike, **params):
    return jnp.broadcast_to(y, jnp.broadcast_shapes(v.shape, jnp.shape(y)))


@jaxrewrite.register("mul", exchange="operands")
def _(v: Zero, y: ArrayLike | jaxrewrite.ArrayValue, **params):
    return Zero(jnp.broadcast_shapes(v.shape, jnp.shape(y)), v.dtype)


@jaxrewrite.register("neg", "sin", "tanh", "sqrt", "floor", "sign")
def _(v: Zero, **params):
    return v


@jaxrewrite.register("transpose")
def _(v: Zero, *, permutation):
    return Zero(tuple(v.shape[i] for i in permutation), v.dtype)


@jaxrewrite.register("reshape")
def _(v: Zero, *, new_sizes, **params):
    return Zero(new_sizes, v.dtype)


class Quantised(jaxrewrite.ArrayValue):
    """int8 and a scale: a leaf that has no derivative."""

    q: Array
    scale: Array

    def materialise(self):
        return self.q.astype(self.scale.dtype) * self.scale


class Shifted(jaxrewrite.ArrayValue):
    """``x + 1``, with no rule at all."""

    x: Array

    def materialise(self):
        return self.x + 1


class Shared(jaxrewrite.ArrayValue):
    """Its elements would share the scale, but no method repeats it for each of them."""

    x: Array
    scale: Array

    def materialise(self):
        ones = [1] * (self.x.ndim - self.scale.ndim)
        return self.x * self.scale.reshape(*self.scale.shape, *ones)

    def sliceable(self):
        return self


def own(make):
    """Add a factory under its name."""
    return case(make.__name__, among=OWN)(make)


@own
def lora(rng, dtype, n, m):
    w = uniform(rng, (n, m), dtype)
    return Lora(w, uniform(rng, (n, 2), dtype), uniform(rng, (2, m), dtype))


@own
def scaled(rng, dtype, n, m):
    return Scaled(uniform(rng, (n, m), dtype), uniform(rng, (), dtype))


@own
def zero(rng, dtype, n, m):
    return Zero((n, m), dtype)


@own
def quantised(rng, dtype, n, m):
    q = jnp.asarray(rng.integers(1, 100, (n, m)), jnp.int8)
    return Quantised(q, uniform(rng, (), dtype) / 64)


@own
def shifted(rng, dtype, n, m):
    return Shifted(uniform(rng, (n, m), dtype))


@own
def lora_of_quantised(rng, dtype, n, m):
    w = quantised(rng, dtype, n, m)
    return Lora(w, uniform(rng, (n, 2), dtype), uniform(rng, (2, m), dtype))


@own
def lora_of_zeros(rng, dtype, n, m):
    return Lora(uniform(rng, (n, m), dtype), zero(rng, dtype, n, 2), zero(rng, dtype, 2, m))


@own
def scaled_lora_of_scaled(rng, dtype, n, m):
    inner = lora(rng, dtype, n, m)
    w = scaled(rng, dtype, n, m)
    return Scaled(Lora(w, inner.a, inner.b), uniform(rng, (), dtype))


# A value of three numbers, and an array to go with it.
V = Scaled(jnp.array([0.3, -0.2, 0.5]), jnp.float32(2.0))
Y = jnp.array([1.0, 2.0, 3.0])

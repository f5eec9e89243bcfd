"""Reference value types, one of each kind that the library has to get right.

A new type joins every test of the oracle by a decorated factory: it takes a
shape of two dimensions, a dtype and a NumPy generator.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

import jaxrewrite


factories = {}


def factory(fn):
    factories[fn.__name__] = fn
    return fn


def array(rng, shape, dtype):
    return jnp.asarray(rng.uniform(0.25, 1.0, shape), dtype)


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
    """``x * s`` with a scalar ``s``: leaves of different ranks."""

    x: Array
    s: Array

    def materialise(self):
        return self.x * self.s


@jaxrewrite.register("neg")
def _(v: Scaled):
    return Scaled(v.x, -v.s)


@jaxrewrite.register("mul", commutative=True)
def _(v: Scaled, y: ArrayLike, **params):
    return Scaled(v.x, v.s * y) if jnp.ndim(y) == 0 else NotImplemented


@jaxrewrite.register("dot_general")
def _(v: Scaled, y: ArrayLike, **params):
    return Scaled(jaxrewrite.bind("dot_general", v.x, y, **params), v.s)


@jaxrewrite.register("reduce_sum")
def _(v: Scaled, **params):
    return Scaled(jaxrewrite.bind("reduce_sum", v.x, **params), v.s)


@jaxrewrite.register("transpose", "reshape", "broadcast_in_dim")
def _(v: Scaled, *, primitive, **params):
    return Scaled(jaxrewrite.bind(primitive, v.x, **params), v.s)


class Zero(jaxrewrite.ArrayValue):
    """Zeros: no leaves, everything static."""

    shape_: tuple[int, ...] = jaxrewrite.field(static=True)
    dtype_: object = jaxrewrite.field(static=True)

    def aval(self):
        return jax.core.ShapedArray(self.shape_, self.dtype_)

    def materialise(self):
        return jnp.zeros(self.shape_, self.dtype_)


@jaxrewrite.register("add", commutative=True)
def _(v: Zero, y: ArrayLike, **params):
    return jnp.broadcast_to(y, jnp.broadcast_shapes(v.shape, jnp.shape(y)))


@jaxrewrite.register("mul", commutative=True)
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


@factory
def lora(shape, dtype, rng):
    n, m = shape
    return Lora(
        array(rng, shape, dtype), array(rng, (n, 2), dtype), array(rng, (2, m), dtype)
    )


@factory
def scaled(shape, dtype, rng):
    return Scaled(array(rng, shape, dtype), array(rng, (), dtype))


@factory
def zero(shape, dtype, rng):
    return Zero(shape, jnp.dtype(dtype))


@factory
def quantised(shape, dtype, rng):
    q = jnp.asarray(rng.integers(1, 100, shape), jnp.int8)
    return Quantised(q, array(rng, (), dtype) / 64)


@factory
def shifted(shape, dtype, rng):
    return Shifted(array(rng, shape, dtype))


@factory
def lora_of_quantised(shape, dtype, rng):
    n, m = shape
    return Lora(
        quantised(shape, dtype, rng), array(rng, (n, 2), dtype), array(rng, (2, m), dtype)
    )


@factory
def lora_of_zeros(shape, dtype, rng):
    n, m = shape
    return Lora(
        array(rng, shape, dtype), zero((n, 2), dtype, rng), zero((2, m), dtype, rng)
    )


@factory
def scaled_lora_of_scaled(shape, dtype, rng):
    inner = lora(shape, dtype, rng)
    return Scaled(Lora(scaled(shape, dtype, rng), inner.a, inner.b), array(rng, (), dtype))

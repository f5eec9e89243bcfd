"""A scaled array with one rule, for the tests of single primitives."""

import jax
import jax.numpy as jnp

import jaxrewrite


class Scaled(jaxrewrite.ArrayValue):
    x: jax.Array
    scale: jax.Array

    def materialise(self):
        return self.x * self.scale


@jaxrewrite.register("neg")
def _(v: Scaled):
    return Scaled(v.x, -v.scale)


V = Scaled(jnp.array([0.3, -0.2, 0.5]), jnp.float32(2.0))
Y = jnp.array([1.0, 2.0, 3.0])

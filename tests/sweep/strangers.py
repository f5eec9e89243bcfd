"""Types as users write them, each on another base class. `SOURCE` is pasted before a program of one."""

import pathlib

import jax
import jax.numpy as jnp

import jaxrewrite
from jaxrewrite import values


class OwnReflection(values.Matrix):
    """``I - 2 x x^T``, without a form of its own but ``apply``."""

    x: jax.Array

    def aval(self):
        return jax.core.ShapedArray((*self.x.shape, self.x.shape[-1]), self.x.dtype)

    def materialise(self):
        outer = self.x[..., :, None] * self.x[..., None, :]
        return jnp.eye(self.x.shape[-1], dtype=self.x.dtype) - 2 * outer

    def apply(self, x, axis, precision=None):
        x = jnp.moveaxis(x, axis, -1)
        own = self.x.reshape(*self.batch, *(1,) * (x.ndim - self.x.ndim), self.x.shape[-1])
        return jnp.moveaxis(x - 2 * (x * own).sum(-1, keepdims=True) * own, -1, axis)


class OwnAntidiagonal(values.Matrix):
    """The entries are leaves, and the others are zeros."""

    d: jax.Array
    entries = "pattern"

    def aval(self):
        return jax.core.ShapedArray((*self.d.shape, self.d.shape[-1]), self.d.dtype)

    def materialise(self):
        n = self.d.shape[-1]
        i = jnp.arange(n)
        zeros = jnp.zeros(self.shape, self.dtype)
        return zeros.at[..., i, n - 1 - i].set(self.d, unique_indices=True)

    def apply(self, x, axis, precision=None):
        shape = (*self.batch, *(1,) * (x.ndim - self.d.ndim), self.d.shape[-1])
        x = jnp.moveaxis(jnp.flip(x, axis), axis, -1)
        return jnp.moveaxis(x * self.d.reshape(shape), -1, axis)

    def pick(self, dense):
        return OwnAntidiagonal(jnp.diagonal(dense[..., ::-1], axis1=-2, axis2=-1))


class OwnTernary(values.Coded):
    """A format of weights."""

    codes: jax.Array
    scale: jax.Array

    def levels(self):
        return self.codes.astype(self.scale.dtype)


class OwnAffine(jaxrewrite.ArrayValue):
    """It only says how its leaves lie in the array."""

    codes: jax.Array
    scale: jax.Array
    least: jax.Array
    axes = {"codes": "... i j", "scale": "... i/b j", "least": "... i/b j"}

    def materialise(self):
        blocks = self.codes.shape[-2] // max(self.scale.shape[-2], 1)
        scale, least = (jnp.repeat(x, blocks, -2) for x in (self.scale, self.least))
        return self.codes * scale + least


class OwnTwo(values.Linear):
    """The sum of two arrays or values."""

    a: jax.Array
    b: jax.Array

    def materialise(self):
        return jaxrewrite.materialise(self.a) + jaxrewrite.materialise(self.b)

    def map_parts(self, fn):
        return OwnTwo(fn(self.a), fn(self.b))


class OwnSource(values.Annotated):
    """An array and where it is from."""

    array: jax.Array
    source: str = jaxrewrite.field(static=True)


class OwnAround(values.Annotated):
    """It has no rules, and leaves where it meets anything."""

    array: jax.Array
    outer = 60


class OwnDefault(values.Annotated):
    """It stays around all results."""

    array: jax.Array
    outer = 60

    @staticmethod
    def default(primitive, xs, params):
        inside = [x.array if isinstance(x, OwnDefault) else x for x in xs]
        results = jaxrewrite.bind(primitive, *inside, **params)
        if primitive.multiple_results:
            return [OwnDefault(result) for result in results]
        return OwnDefault(results)


class OwnWithin(values.Annotated):
    """It is inside of all other annotations, and has rules for some primitives."""

    array: jax.Array
    outer = 5


@values.annotation_rule(OwnWithin, "add", "mul", "neg", "select_n", "dot_general", "sin")
def _(*operands, primitive, **params):
    inside = [x.array if isinstance(x, OwnWithin) else x for x in operands]
    return OwnWithin(jaxrewrite.bind(primitive, *inside, **params))


class OwnSquare(jaxrewrite.ArrayValue):
    """It says nothing but its dense form, which is not linear in its leaves."""

    x: jax.Array
    by: float = jaxrewrite.field(static=True)

    def materialise(self):
        return self.x * self.x + self.by


TYPES = {name: each for name, each in vars().items() if name.startswith("Own")}

_TEXT = pathlib.Path(__file__).read_text()
SOURCE = _TEXT[_TEXT.index("import jax\n") : _TEXT.index("TYPES = {")]

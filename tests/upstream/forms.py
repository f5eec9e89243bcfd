"""Values that stand for an arbitrary array, as functions of the array.

Each takes a `jax.Array`, which may be traced, and gives a value that is this array exactly,
for the shapes and dtypes that `Form.of` is true of.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

import jaxrewrite
from jaxrewrite import primitives, values


class Bare(jaxrewrite.ArrayValue):
    """An array, and no rules: everything makes it dense."""

    x: Array

    def materialise(self):
        return self.x


class Mapped(jaxrewrite.ArrayValue):
    """An array with rules for what acts entry by entry or moves entries."""

    x: Array

    def materialise(self):
        return jaxrewrite.materialise(self.x)


@jaxrewrite.register(
    *primitives.UNARY,
    *primitives.SHAPE,
    *primitives.BINARY,
    "convert_element_type",
    "select_n",
)
def _(*operands: Mapped | ArrayLike, primitive, **params):
    arrays = [x.x if isinstance(x, Mapped) else x for x in operands]
    return Mapped(jaxrewrite.bind(primitive, *arrays, **params))


class Form(NamedTuple):
    """How to make a value from an array, and which arrays can become one."""

    make: Callable[[jax.Array], Any]
    of: Callable[[Any], bool]
    # Whether the value equals the array also where there are infinities and NaN.
    any_number: bool
    # Whether the value equals the array also if the dtype is weak.
    weak: bool


FORMS: dict[str, Form] = {}


def form(name, of, *, any_number=True, weak=False):
    def register(make):
        FORMS[name] = Form(make, of, any_number, weak)
        return make

    return register


def any_array(x):
    return True


def number(x):
    return jnp.issubdtype(x.dtype, jnp.number)


def inexact(x):
    # Not the types of 8 bits and less, which are for storage: JAX adds none of them.
    return jnp.issubdtype(x.dtype, jnp.inexact) and x.dtype.itemsize > 1


def matrix(x):
    return inexact(x) and x.ndim == 2 and min(x.shape) > 0


def square(x):
    return matrix(x) and x.shape[0] == x.shape[1]


form("Bare", any_array, weak=True)(Bare)
form("Mapped", any_array, weak=True)(Mapped)


@form("Mapped(Bare)", any_array, weak=True)
def _(x):
    return Mapped(Bare(x))


@form("Tagged", any_array, weak=True)
def _(x):
    return values.Tagged(x, "tag")


@form("Tagged(Bare)", any_array, weak=True)
def _(x):
    return values.Tagged(Bare(x), "tag")


@form("Named", any_array, weak=True)
def _(x):
    return values.Named(x, (None,) * x.ndim)


@form("Unitful", number, weak=True)
def _(x):
    return values.Unitful(x, "")


@form("Batched", lambda x: x.ndim > 0 and x.shape[0] > 0, weak=True)
def _(x):
    return jaxrewrite.Batched(Bare(x), x.shape[0])


@form("Constant", lambda x: x.ndim == 0)
def _(x):
    return values.Constant(x, ())


@form("Scaled", inexact)
def _(x):
    return values.Scaled(x / 2, jnp.asarray(2, x.dtype))


@form("Sum", inexact)
def _(x):
    return values.Sum((x / 2, x / 2))


@form("Sum(Zero)", inexact)
def _(x):
    return values.Sum((x, values.Zero(x.shape, x.dtype)))


@form("Scaled(Bare)", inexact)
def _(x):
    return values.Scaled(Bare(x / 2), jnp.asarray(2, x.dtype))


@form("LowRank", matrix, any_number=False)
def _(x):
    return values.LowRank(x, jnp.eye(x.shape[1], dtype=x.dtype))


@form("Lora", matrix, any_number=False)
def _(x):
    n, m = x.shape
    return values.Lora(
        x, jnp.zeros((n, 1), x.dtype), jnp.zeros((1, m), x.dtype), frozen=False
    )


@form("Kronecker", matrix, any_number=False)
def _(x):
    return values.Kronecker((jnp.ones((1, 1), x.dtype), x))


@form("BlockDiagonal", matrix, any_number=False)
def _(x):
    return values.BlockDiagonal(x[None])


@form("Product", matrix, any_number=False)
def _(x):
    return values.Product((x, values.Identity(x.shape[1], x.dtype)))


@form("Sparse", matrix, any_number=False)
def _(x):
    from jax.experimental.sparse import BCOO

    places = jnp.stack(jnp.indices(x.shape), axis=-1).reshape(-1, 2)
    return values.Sparse(BCOO((x.reshape(-1), places), shape=x.shape))


@form("Banded", square, any_number=False)
def _(x):
    n = x.shape[0]
    return values.Banded.from_dense(x, n - 1, n - 1)


@form("Sum(Triangular)", square, any_number=False)
def _(x):
    lower, upper = values.Triangular(jnp.tril(x)), values.Triangular(jnp.triu(x, 1), False)
    return values.Sum((lower, upper))


@form("Diagonal", lambda x: matrix(x) and x.shape == (1, 1), any_number=False)
def _(x):
    return values.Diagonal(x[0])

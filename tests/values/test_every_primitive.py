"""Every primitive that acts entry by entry, on the types that have rules for all of them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from choose import every
from jax import lax
from oracle import materialised
from reference import CASES

import jaxrewrite
from jaxrewrite.primitives import BINARY, UNARY
from jaxrewrite.testing import assert_same
from jaxrewrite.values import Triangular


# Of each primitive the first of these dtypes that it takes.
DTYPES = ("float32", "int32", "complex64")
FUNCTIONS = {
    "and": lax.bitwise_and,
    "or": lax.bitwise_or,
    "xor": lax.bitwise_xor,
    "not": lax.bitwise_not,
    "integer_pow": lambda x: lax.integer_pow(x, 3),
    "reduce_precision": lambda x: lax.reduce_precision(x, 5, 5),
}


def function(name):
    bound = functools.partial(jaxrewrite.bind, name)
    return FUNCTIONS.get(name) or getattr(lax, name, bound)


def takes(name, dtype, operands):
    x = jax.ShapeDtypeStruct((4, 4), dtype)
    try:
        jax.eval_shape(function(name), *[x] * operands)
    except TypeError:
        return False
    return True


def forms(name, dtype):
    """The primitive on a value beside an array, a number, and values of two types."""
    fn, number = function(name), np.dtype(dtype).type(2)
    if name in UNARY:
        return {name: lambda v, x, w, u: fn(v)}
    return {
        f"{name} array": lambda v, x, w, u: fn(v, x),
        f"array {name}": lambda v, x, w, u: fn(x, v),
        f"{name} number": lambda v, x, w, u: fn(v, jnp.full((4, 4), number)),
        f"number {name}": lambda v, x, w, u: fn(jnp.full((4, 4), number), v),
        f"{name} value": lambda v, x, w, u: fn(v, w),
        f"{name} other": lambda v, x, w, u: fn(v, u),
        f"other {name}": lambda v, x, w, u: fn(u, v),
    }


@functools.cache
def everything(dtype):
    """One program of all primitives that this dtype is the first for."""
    programs = {}
    for name in (*UNARY, *BINARY):
        first = next((d for d in DTYPES if takes(name, d, 1 + (name in BINARY))), None)
        if first == dtype:
            programs |= forms(name, dtype)
    return lambda v, x, w, u: {name: fn(v, x, w, u) for name, fn in programs.items()}


@functools.cache
def on_arrays(dtype):
    return jax.jit(everything(dtype))


def operands(name, dtype):
    v, w = (CASES[name].value(np.random.default_rng(i), dtype, (4, 4)) for i in (0, 1))
    x = jnp.linspace(1, 3, 16).reshape(4, 4).astype(dtype)
    return v, x, w, Triangular(x / 2 if x.dtype != "int32" else x)


TYPES = (
    *("zero", "constant", "constant_known", "scaled", "diagonal", "Tagged", "Named"),
    *("sparse", "n_of_m", "product"),
)
types = pytest.mark.parametrize("name", TYPES)
dtypes = pytest.mark.parametrize("dtype", DTYPES)


@pytest.mark.parametrize("name", every(2, TYPES))
@dtypes
def test_each_has_an_answer(name, dtype, bulk):
    """Of the right shape and dtype, which the library checks."""
    fn = everything(dtype)
    jaxrewrite.make_jaxpr(fn, materialise="allow")(*operands(name, dtype))


@pytest.mark.slow
@types
@dtypes
def test_each_answer_is_right(name, dtype, bulk):
    values = operands(name, dtype)
    want = on_arrays(dtype)(*jaxrewrite.materialise(values))
    assert_same(jax.jit(materialised(everything(dtype)))(*values), want, 1e-4)

"""Rules that few programs meet have an answer. The programs are traced and not compiled.

The library checks the shape and dtype of each answer.
"""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import jaxrewrite
from jaxrewrite.primitives import BINARY
from jaxrewrite.values import (
    Constant,
    Diagonal,
    Interval,
    Masked,
    Named,
    Scaled,
    Sum,
    Unitful,
    UnitsError,
    Zero,
)


X = jnp.linspace(0.3, 0.9, 16).reshape(4, 4)
IMAGE = (1, 1, 4, 4)
ANNOTATED = {
    "Masked": Masked(X, X > 0.5),
    "Named": Named(X, ("a", None)),
    "Unitful": Unitful(X, "m"),
    "a number": Unitful(X, ""),
    "Interval": Interval(X, X + 0.1),
}
# What has no meaning for a type, and the errors by which it says so.
WITHOUT = {
    "Masked": {"scatter-max", "scatter-min"},
    "Unitful": {"pow", "logic"},
    "Interval": {"sort along"},
}
REFUSALS = (UnitsError, jaxrewrite.MaterialisationError, TypeError)

# Programs of two arrays of one shape.
PROGRAMS = {
    "clamp": lambda v, w: lax.clamp(w, v, w),
    "concatenate": lambda v, w: jnp.concatenate([v, w]),
    "select": lambda v, w: lax.select(X > 0.5, v, w),
    "sort": lambda v, w: jnp.sort(v),
    "sort along": lambda v, w: lax.sort((v, w), num_keys=1),
    "stack": lambda v, w: jnp.stack([v, w]),
    "slice": lambda v, w: lax.dynamic_slice(v, (1, 1), (2, 2)),
    "update": lambda v, w: lax.dynamic_update_slice(v, w[:2], (1, 0)),
    "scatter": lambda v, w: v.at[jnp.array([1])].set(w[:1]),
    "scatter-add": lambda v, w: v.at[jnp.array([1])].add(w[:1]),
    "scatter-max": lambda v, w: v.at[jnp.array([1])].max(w[:1]),
    "scatter-min": lambda v, w: v.at[jnp.array([1])].min(w[:1]),
    "convolution": lambda v, w: lax.conv(
        v.reshape(IMAGE), w.reshape(IMAGE), (1, 1), "SAME"
    ),
    "pad": lambda v, w: lax.pad(v, w[0, 0], [(1, 1, 0)] * 2),
    "pow": lambda v, w: v**w,
    "atan2": jnp.arctan2,
    "sub": lambda v, w: v - w,
    "compare": lambda v, w: [v == w, v != w, v < w, v <= w, v > w, v >= w],
    "logic": lambda v, w: [(v > 0.5) & (w > 0.5), (v > 0.5) | (X > 0.5)],
    "finite": lambda v, w: jnp.isfinite(v),
}


def trace(fn, *operands):
    return jaxrewrite.make_jaxpr(fn, materialise="allow")(*operands)


@pytest.mark.parametrize("name", ANNOTATED)
def test_of_annotations(name, bulk):
    v, lazy = ANNOTATED[name], Scaled(X, jnp.float32(2.0))
    others = (v,) if name == "Unitful" else (X, lazy, v)
    for program, fn in PROGRAMS.items():
        for other in others:
            for operands in ((v, other), (other, v)):
                if program in WITHOUT.get(name, ()):
                    with pytest.raises(REFUSALS):
                        trace(fn, *operands)
                else:
                    trace(fn, *operands)


def test_of_zeros(bulk):
    zero, ones = Zero((4, 4)), Constant(jnp.float32(1), (4, 4))
    for name in BINARY:
        fn = functools.partial(jaxrewrite.bind, name)
        try:
            jax.eval_shape(fn, X, X)
        except TypeError:
            continue  # It is for integers.
        trace(fn, zero, ones)
        trace(fn, ones, zero)
    solve = lambda a, b: jax.scipy.linalg.solve_triangular(a, b)
    trace(solve, X, zero)
    trace(lambda x, v: x.at[jnp.array([1])].add(v[:1]), X, zero)
    trace(lambda v: lax.dynamic_update_slice(v, v[:2], (1, 0)), zero)
    trace(lambda v, w: lax.pad(v, w, [(1, 1, 0)] * 2), zero, Zero(()))


def test_of_multiples(bulk):
    batch = jax.vmap(lambda s: Scaled(s * X, s))(jnp.array([1.0, 2.0]))
    trace(lambda v, x: (v @ x, x @ v), batch, jnp.stack([X, X]))
    trace(lambda v: v / 2, Sum((Diagonal(X[0]), Diagonal(X[1]))))

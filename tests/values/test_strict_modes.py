"""Programs that are fine where their user forbids promotions, on values of all types.

What rules and methods promote is their own affair, except that of the user's own functions.
"""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from oracle import materialised
from reference import CASES

import jaxrewrite
from jaxrewrite import transform
from jaxrewrite.testing import assert_same
from jaxrewrite.values import (
    NF4,
    BlockDiagonal,
    Circulant,
    Diagonal,
    Kronecker,
    LowRank,
    NMSparse,
    Picked,
    Quantised,
    ScalarMatrix,
    Scaled,
    Sparse,
    Toeplitz,
)


@contextlib.contextmanager
def strict():
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield


@jax.custom_vjp
def clipped(x):
    return x


clipped.defvjp(lambda x: (x, None), lambda _, ct: (jnp.clip(ct, -1, 1),))


def programs(a, x, i):
    on_diagonal = jnp.eye(4, dtype=bool)
    return (
        a.at[i].get(mode="fill", fill_value=0),
        jnp.take(a, i, axis=1),
        jnp.where(on_diagonal, a, 0),
        a @ x,
        (a.sum(), a.mean(0)),
        (a[1:3], a[0]),
        jnp.cumsum(a, 0),
        jnp.sort(a, 1),
        (a + x, 2 * a),
        jax.grad(lambda x: jnp.square(a @ x).sum())(x),
    )


def test_programs_on_all_types():
    avals = jnp.ones((4, 4)), jnp.arange(3)
    for case in CASES.values():
        if case.variant or "float32" not in case.dtypes:
            continue
        v = jax.eval_shape(lambda: case.value(np.random.default_rng(0), shape=(4, 4)))  # noqa: B023
        with strict():
            jax.eval_shape(transform(programs, materialise="allow"), v, *avals)
            jax.eval_shape(jaxrewrite.materialise, v)


METHODS = {
    "determinant": lambda x: BlockDiagonal(jnp.stack([x, x])).slogdet(),
    "complex determinant": lambda x: Circulant(x[0]).determinant(),
    "eigenvalues": lambda x: Kronecker(Circulant(x[0]), Diagonal(x[0])).eigenvalues(),
    "quantise": lambda x: Quantised.quantise(x, 3).materialise(),
}


@pytest.mark.parametrize("name", METHODS)
def test_methods_that_a_user_calls(name):
    with strict():
        jax.eval_shape(METHODS[name], jnp.ones((4, 4)))


def test_tangents_by_a_custom_rule():
    """JAX calls for them after the program is rewritten."""
    v = Quantised.quantise(jnp.ones((4, 4)), 3)
    fn = transform(lambda v, s: clipped(v * s).sum(), materialise="allow")
    with strict():
        jax.eval_shape(jax.grad(fn, 1), v, jnp.float32(2))


def test_rows_are_filled_in_under_strict_promotion():
    w = jax.random.normal(jax.random.key(0), (600, 2))
    v = Quantised.quantise(w, bits=4, block=300)
    run = lambda v: jnp.take(v, jnp.array([1, 900], jnp.uint32), axis=0, mode="fill")
    with strict():
        assert_same(materialised(run)(v), run(jaxrewrite.materialise(v)), 1e-4)


MATRICES = {
    "codes": lambda w: Quantised.quantise(w, 4, block=2),
    "levels": lambda w: NF4.quantise(w, 2),
    "low rank": lambda w: LowRank(w[:, :1], w[:1]),
    "few of many": lambda w: NMSparse.prune(w, 2, 4),
    "picked": lambda w: Picked(w[0], jnp.array([0, 3, 3, 1]), 4),
    "sparse": Sparse.from_dense,
    "Toeplitz": lambda w: Toeplitz(w[0], w[0]),
}


@pytest.mark.parametrize("name", MATRICES)
def test_double_precision_under_strict_promotion(name):
    """A rule has dtypes and ranks of its own, which the program does not allow itself to mix."""

    def asked(v, x, i):
        return v @ x, v.T @ x, v + v.T, v.sum(0), v[i], jnp.linalg.norm(v)

    with jax.enable_x64(True), strict():
        x, i = jnp.linspace(0.5, 2, 16).reshape(4, 4), jnp.array([0, 2])
        v = MATRICES[name](x)
        jax.eval_shape(materialised(asked), v, x, i)


def test_complex_singular_values_under_strict_promotion():
    d = jnp.array([1j, 2, 0])
    with strict():
        for v in Diagonal(d), ScalarMatrix(d[0], 3), Circulant(d):
            u, s, vh = jax.eval_shape(transform(jnp.linalg.svd, materialise="forbid"), v)
            assert (u.dtype, s.dtype, vh.dtype) == (d.dtype, jnp.float32, d.dtype)


# --- what stays the user's ----------------------------------------------------------------


def mixed(x):
    return x * jnp.arange(3) + x[None]


@jax.custom_jvp
def mixing(x):
    return 2 * x


@mixing.defjvp
def _(primals, tangents):
    return 2 * primals[0], mixed(tangents[0])[0]


@jax.custom_vjp
def mixing_back(x):
    return 2 * x


mixing_back.defvjp(lambda x: (2 * x, x), lambda x, ct: (x * mixed(ct)[0],))


USERS = {
    "program": mixed,
    "nested": lambda v: transform(mixed)(v),
    "branch": lambda v: lax.cond(v.sum() > 0, mixed, lambda x: x[None], v),
    "custom_jvp": jax.grad(lambda v: mixing(v).sum()),
    "custom_vjp": jax.grad(lambda v: mixing_back(v).sum()),
}


@pytest.mark.parametrize("name", USERS)
def test_functions_of_the_user_are_as_strict_as_the_user(name):
    v = Scaled(jnp.ones(3), jnp.float32(2))
    for mode in jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        with mode, pytest.raises((TypeError, ValueError), match="promotion"):
            jax.eval_shape(transform(USERS[name], materialise="allow"), v)


@pytest.mark.parametrize("fn", [mixing, mixing_back])
def test_custom_rules_are_as_strict_as_the_user(fn):
    """JAX calls them where the transformed program is differentiated."""
    v = Scaled(jnp.ones(3), jnp.float32(2))
    total = transform(lambda v: fn(v).sum(), materialise="allow")
    jax.eval_shape(jax.grad(total), v)
    with jax.numpy_rank_promotion("raise"), pytest.raises(ValueError, match="promotion"):
        jax.eval_shape(jax.grad(total), v)


def test_a_rule_may_be_strict_itself():
    """Else it is no stricter than JAX is by default, whoever wrote it."""
    rules = jaxrewrite.Rules()

    @rules.register("tanh")
    def _(v: Scaled, **params):
        mixed(v.x)
        return jnp.tanh(v.materialise())

    @rules.register("sinh")
    @strict()
    def _(v: Scaled, **params):
        return mixed(v.x)

    v = Scaled(jnp.ones(3), jnp.float32(2))
    with strict():
        jax.eval_shape(transform(jnp.tanh, rules=rules), v)
    with pytest.raises((TypeError, ValueError), match="promotion"):
        jax.eval_shape(transform(jnp.sinh, rules=rules), v)

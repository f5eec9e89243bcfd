"""Equations that nothing needs are dropped, as by JAX's own pass."""

import jax
import jax.extend.core as jex_core
import jax.numpy as jnp
import numpy as np
import pytest
from families import FAMILIES
from jax import lax

import jaxrewrite
from jaxrewrite import _compat
from jaxrewrite._core import dead_code
from jaxrewrite.values import Diagonal


X = jnp.arange(9.0).reshape(3, 3) / 9


def count(jaxpr):
    """The number of equations, those of nested jaxprs included."""
    inner = [b for eqn in jaxpr.eqns for b in jex_core.jaxprs_in_params(eqn.params)]
    return len(jaxpr.eqns) + sum(map(count, inner))


def staged(fn, *args):
    return _compat.open_jaxpr(jax.make_jaxpr(fn)(*args))[0]


@pytest.mark.parametrize("name", FAMILIES)
def test_as_much_as_jax(name, bulk):
    jaxpr = staged(FAMILIES[name].fn, X, X)
    assert count(dead_code.drop_dead_code(jaxpr)) == count(_compat.drop_dead_code(jaxpr))


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: (jnp.sin(x), x)[1],
        lambda x: jax.jit(lambda x: (jnp.sin(x), x + 1))(x)[1],
        lambda x: jax.jit(lambda x: (jnp.sin(x), x + 1)[1])(x),
        lambda x: jax.jit(lambda x, y: x + 1)(x, jnp.sin(x)),
        lambda x: lax.scan(lambda c, x: (c + x, jnp.sin(x)), x[0], x)[0],
        lambda x: lax.scan(lambda c, x: ((c[0] + x, jnp.sin(c[1])), None), (x[0], x[1]), x)[
            0
        ][0],
        lambda x: lax.cond(
            x[0, 0] > 0,
            lambda x: (x + 1, jnp.sin(x)),
            lambda x: (x + 2, jnp.cos(x)),
            x,
        )[0],
        lambda x: jax.checkpoint(lambda x: (jnp.sin(x), x + 1))(x)[1],
    ],
    ids=["top", "result", "body", "operand", "ys", "carry", "branches", "remat"],
)
def test_dead_code_is_found(fn):
    """By itself, and beside a body that has none."""
    for program in (fn, lambda x: (fn(x), jax.jit(jnp.tanh)(x))):
        jaxpr = staged(program, X)
        kept = dead_code.drop_dead_code(jaxpr)
        assert "sin" not in str(kept)
        assert count(kept) == count(_compat.drop_dead_code(jaxpr)) < count(jaxpr)


def test_a_program_without_dead_code_stays_the_same_object():
    jaxpr = staged(lambda x: jax.jit(lambda x: jnp.where(x > 0, x, 0) + 1)(jnp.sin(x)), X)
    assert dead_code.drop_dead_code(jaxpr) is jaxpr


def _in_a_loop(v, x):
    def turn(state):
        i, x = state
        jnp.sort(v)  # Nothing needs it.
        return i + 1, v @ x

    return lax.while_loop(lambda state: state[0] < 3, turn, (0, x))[1]


def _in_a_condition(v, x):
    def test(state):
        jnp.sort(v)
        return (v @ state).sum() < 10

    return lax.while_loop(test, lambda x: 2 * x, x)


def _in_a_solve(v, x):
    def product(y):
        jnp.sort(v)
        return v @ y

    return lax.custom_linear_solve(product, x, lambda product, y: product(y) / 4)


@pytest.mark.parametrize("program", [_in_a_loop, _in_a_condition, _in_a_solve])
def test_bodies_that_the_pass_of_jax_does_not_know(program):
    v, x = Diagonal(jnp.full(3, 2.0)), jnp.arange(1.0, 4.0)
    run = jaxrewrite.transform(program, materialise="forbid")
    want = program(v.materialise(), x)
    for fn in (
        run,
        jax.jit(run),
        jaxrewrite.transform(jax.jit(program), materialise="forbid"),
    ):
        np.testing.assert_allclose(fn(v, x), want, rtol=1e-6)
    many = jax.vmap(run, in_axes=(None, 0))(v, jnp.stack([x, 2 * x]))
    np.testing.assert_allclose(many[0], want, rtol=1e-6)

"""Equations that nothing needs are dropped, as by JAX's own pass."""

import jax
import jax.extend.core as jex_core
import jax.numpy as jnp
import pytest
from families import FAMILIES
from jax import lax

from jaxrewrite import _compat, _dead_code


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
    assert count(_dead_code.drop_dead_code(jaxpr)) == count(_compat.drop_dead_code(jaxpr))


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
    jaxpr = staged(fn, X)
    kept = _dead_code.drop_dead_code(jaxpr)
    assert "sin" not in str(kept)
    assert count(kept) == count(_compat.drop_dead_code(jaxpr)) < count(jaxpr)


def test_a_program_without_dead_code_stays_the_same_object():
    jaxpr = staged(lambda x: jax.jit(lambda x: jnp.where(x > 0, x, 0) + 1)(jnp.sin(x)), X)
    assert _dead_code.drop_dead_code(jaxpr) is jaxpr

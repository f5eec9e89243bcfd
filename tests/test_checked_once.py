"""Checks of jaxprs that are asked once find what is wrong each time."""

import jax
import jax.numpy as jnp
import pytest
from jax._src import core


def wrong(shape):
    """A program whose result has another type than its last equation gives."""
    closed = jax.make_jaxpr(lambda x: jnp.sin(-x))(jnp.ones(shape))
    jaxpr = getattr(closed, "jaxpr", closed)
    sin = jaxpr.eqns[1]
    with jax.enable_checks(False):
        other = jax.make_jaxpr(jnp.sin)(jnp.ones((*shape, 2)))
        result = getattr(other, "jaxpr", other).eqns[0].outvars
        eqns = [jaxpr.eqns[0], sin.replace(outvars=result)]
        return jaxpr.replace(eqns=eqns, outvars=result)


def test_a_wrong_program_is_refused_each_time():
    jaxpr = wrong((3,))
    core.check_jaxpr(wrong((2,)).replace(eqns=[], outvars=[]))
    for _ in range(2):
        with pytest.raises(core.JaxprTypeError, match="inconsistently typed"):
            core.check_jaxpr(jaxpr)


def test_a_right_program_is_read_once(monkeypatch):
    """Neither a second check, nor one of a program that holds it, reads it again."""
    read = []
    check = core._check_jaxpr
    monkeypatch.setattr(core, "_check_jaxpr", lambda f, j: (read.append(j), check(f, j))[1])
    held = jax.jit(lambda x: jnp.sin(-x) @ x)
    closed = jax.make_jaxpr(lambda x: held(held(x) + x))(jnp.ones(3))
    jaxpr = getattr(closed, "jaxpr", closed)
    core.check_jaxpr(jaxpr)
    assert any(x is jaxpr for x in read)
    # In other settings of JAX, a program may have another type.
    assert sum(x is next(core.subjaxprs(jaxpr)) for x in read) <= 2
    read.clear()
    core.check_jaxpr(jaxpr)
    assert not read

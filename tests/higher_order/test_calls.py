"""Primitives that call one jaxpr: they stay, and values stay implicit in them."""

import jax
import jax.extend.core as jex_core
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name
from oracle import assert_same_leaves
from reference.own import Scaled, V, Y

import jaxrewrite
from jaxrewrite import transform
from jaxrewrite.testing import assert_same


def only_equation(fn, *args, name):
    jaxpr = jaxrewrite.make_jaxpr(fn, materialise="allow")(*args).jaxpr
    (eqn,) = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == name]
    return eqn


def check(fn, *args):
    """The dense oracle, forward and for the gradient."""
    transformed = transform(fn, materialise="allow")
    dense = lambda *args: fn(*jaxrewrite.materialise(args))
    for wrap in (lambda f: f, jax.jit):
        got = jaxrewrite.materialise(wrap(transformed)(*args))
        assert_same(got, dense(*args), 1e-6)
        total = lambda f: lambda *args: jaxrewrite.materialise(f(*args)).sum()
        want = jax.grad(total(dense))(*args)
        assert_same_leaves(wrap(jax.grad(total(transformed)))(*args), want, 1e-5)


def test_checkpoint_keeps_policy_and_structure():
    policy = jax.checkpoint_policies.dots_saveable
    fn = jax.checkpoint(lambda a: jnp.sin(-a), policy=policy, prevent_cse=False)
    eqn = only_equation(fn, V, name="remat2")
    assert eqn.params["policy"] is policy
    assert eqn.params["prevent_cse"] is False
    assert len(eqn.invars) == 2
    check(fn, V)


def test_checkpoint_says_prevent_cse_of_each_leaf():
    fn = jax.checkpoint(lambda a, b: jnp.sin(-a) * b, prevent_cse=(True, False))
    eqn = only_equation(fn, V, Y, name="remat2")
    assert eqn.params["prevent_cse"] == (True, True, False)
    check(fn, V, Y)


def test_checkpoint_returns_values():
    fn = jax.checkpoint(lambda a: -a)
    out = transform(fn, materialise="forbid")(V)
    assert isinstance(out, Scaled)
    check(fn, V)


@pytest.mark.parametrize("call", [jax.jit, jax.checkpoint])
def test_a_value_passes_through_a_call_that_does_nothing_with_it(call):
    fn = call(lambda a, y: (a, y + 1.0))
    out, _ = transform(fn, materialise="forbid")(V, Y)
    assert isinstance(out, Scaled)


def test_checkpoint_by_names():
    policy = jax.checkpoint_policies.save_only_these_names("kept")
    fn = jax.checkpoint(lambda a: jnp.sin(checkpoint_name(-a, "kept")), policy=policy)
    check(fn, V)


def test_checkpoint_of_a_gradient_stays_differentiated():
    def fn(a, y):
        inner = jax.checkpoint(lambda y: jnp.sin(jnp.sin(y)))
        return jax.grad(lambda y: inner(y).sum())(y) * a

    jaxpr = jaxrewrite.make_jaxpr(fn, materialise="allow")(V, Y).jaxpr
    flags = [e.params["differentiated"] for e in jaxpr.eqns if e.primitive.name == "remat2"]
    assert True in flags
    check(fn, V, Y)


def test_jit_inside_checkpoint_keeps_its_name():
    @jax.jit
    def my_name(a):
        return -a

    eqn = only_equation(jax.checkpoint(lambda a: my_name(a)), V, name="remat2")
    body = eqn.params["jaxpr"]
    assert [e.params["name"] for e in body.eqns] == ["my_name"]


def test_closed_over_arrays_become_operands():
    big = jnp.arange(3.0)
    check(jax.checkpoint(lambda a: jnp.sin(-a) * big), V)


def test_rules_on_dense_operands_reach_into_bodies():
    rules = jaxrewrite.Rules()

    @rules.register("tanh")
    def _(x: jax.Array, **params):
        return x * 10

    fn = jax.checkpoint(lambda x: jax.jit(jnp.tanh)(x) + 1)
    np.testing.assert_allclose(transform(fn, rules=rules)(Y), Y * 10 + 1)
    np.testing.assert_allclose(fn(Y), jnp.tanh(Y) + 1, rtol=1e-6)


@pytest.mark.parametrize("name", ["closed_call", "eval_jaxpr"])
def test_closed_calls(name):
    primitive = getattr(jex_core.primitives, "closed_call_p", None)
    if primitive is None or primitive.name != name:
        pytest.skip(f"this JAX has no primitive called {name}")
    body = jax.make_jaxpr(lambda a: -a)(Y)
    fn = lambda a: primitive.bind(a, **primitive.get_bind_params({"call_jaxpr": body}))[0]
    eqn = only_equation(fn, V, name=name)
    assert len(eqn.invars) == 2
    assert isinstance(transform(fn)(V), Scaled)
    check(fn, V)

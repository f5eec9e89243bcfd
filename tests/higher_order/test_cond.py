"""`lax.cond`, `switch` and `platform_dependent` on values."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from choose import often, slow
from jax import lax
from reference.own import Scaled, V, Y

import jaxrewrite
from jaxrewrite import transform, values


PROGRAMS = {
    "both stay": lambda p, a: lax.cond(p, lambda a: -a, lambda a: jnp.negative(-a), a),
    "they differ": lambda p, a: lax.cond(p, lambda a: -a, lambda a: a + 1.0, a),
    "one of two": lambda p, a: lax.cond(p, lambda a: (-a, a), lambda a: (a + 1.0, -a), a)[
        1
    ],
    "closed over": lambda p, a: lax.cond(p, lambda: -a, lambda: a),
    "nested": lambda p, a: lax.cond(
        p, lambda a: lax.cond(a[0] > 0, lambda a: -a, lambda a: a, a), lambda a: -a, a
    ),
    "switch": lambda p, a: lax.switch(p.astype(int) + 1, [jnp.cos, jnp.sin, jnp.tan], -a),
    "arrays in one branch": lambda p, a: lax.cond(
        p, lambda a: -a + jnp.arange(3.0), lambda a: a * np.arange(3.0, dtype="f"), a
    ),
    "platform": lambda p, a: lax.platform_dependent(
        a, cpu=lambda a: -a, default=lambda a: a + 1.0
    ),
    "in jit": lambda p, a: jax.jit(lambda a: lax.cond(p, jnp.sin, jnp.cos, -a))(a),
}


@pytest.mark.parametrize("taken", [slow(True), False])
@pytest.mark.parametrize("name", PROGRAMS)
def test_oracle(name, taken):
    fn, taken = PROGRAMS[name], jnp.array(taken)
    transformed = transform(fn, materialise="allow")
    want = fn(taken, V.materialise())
    for wrap in (lambda f: f, jax.jit):
        got = jaxrewrite.materialise(wrap(transformed)(taken, V))
        np.testing.assert_allclose(got, want, rtol=1e-6)
    total = lambda v: jaxrewrite.materialise(transformed(taken, v)).sum()
    dense = lambda v: fn(taken, jaxrewrite.materialise(v)).sum()
    jax.tree.map(
        lambda g, w: np.testing.assert_allclose(g, w, rtol=1e-5),
        jax.grad(total)(V),
        jax.grad(dense)(V),
    )
    batch = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf + 1]), V)
    flags = jnp.array([taken, ~taken])
    got = jax.vmap(lambda p, v: jaxrewrite.materialise(transformed(p, v)))(flags, batch)
    want = jax.vmap(lambda p, v: fn(p, v.materialise()))(flags, batch)
    np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize("name", ["both stay", "one of two", "closed over", "nested"])
def test_values_of_one_structure_stay(name):
    out = transform(PROGRAMS[name], materialise="allow")(jnp.array(True), V)
    assert isinstance(out, Scaled)


def test_one_equation_stays_one():
    jaxpr = jaxrewrite.make_jaxpr(PROGRAMS["both stay"])(jnp.array(True), V).jaxpr
    (eqn,) = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "cond"]
    assert len(eqn.outvars) == 2
    jaxpr = jaxrewrite.make_jaxpr(PROGRAMS["platform"], materialise="allow")(
        jnp.array(True), V
    ).jaxpr
    (eqn,) = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "cond"]
    assert "branches_platforms" in eqn.params


def test_differing_branches_warn_once():
    with pytest.warns(jaxrewrite.MaterialisationWarning) as caught:
        transform(PROGRAMS["they differ"])(jnp.array(True), V)
    assert {str(w.message).split(",")[0] for w in caught} == {
        "No rule for primitive 'add' on Scaled",
        "Scaled can't keep one structure through primitive 'cond'",
    }


def test_rules_on_dense_operands_reach_into_branches():
    rules = jaxrewrite.Rules()

    @rules.register("tanh")
    def _(x: jax.Array, **params):
        return x * 10

    fn = lambda p, x: lax.cond(p, jnp.tanh, jnp.sin, x)
    np.testing.assert_allclose(transform(fn, rules=rules)(jnp.array(True), Y), Y * 10)
    got = transform(fn, rules=rules)(jnp.array(False), Y)
    np.testing.assert_allclose(got, jnp.sin(Y), rtol=1e-6)


def test_effects_inside_branches():
    log = []

    def fn(p, a, ref):
        def write(a):
            ref[...] = a + 1.0
            jax.debug.callback(lambda x: log.append(float(x)), a[1])
            return -a

        return lax.cond(p, write, lambda a: a, a)

    ref = jax.new_ref(jnp.zeros(3))
    transform(fn, materialise="allow")(jnp.array(True), V, ref)
    jax.effects_barrier()
    np.testing.assert_allclose(ref[...], V.materialise() + 1)
    np.testing.assert_allclose(log, [-0.4])


class Held(jaxrewrite.ArrayValue):
    """An array of any kind, values included; joins with arrays by holding them."""

    x: jax.Array

    def materialise(self):
        return self.x

    def join(self, other):
        return self, Held(other)


def test_branches_join_as_deep_as_needed():
    """A value in a value in a value: only the innermost becomes dense."""
    fn = lambda p, v, w: lax.cond(p, lambda: v, lambda: w)
    v = Held(Held(V))
    w = Held(Held(Y))
    out = transform(fn, materialise="allow")(jnp.array(True), v, w)
    assert isinstance(out.x, Held)
    assert isinstance(out.x.x, jax.Array)
    np.testing.assert_allclose(out.x.x, V.materialise())


def test_several_branches_join():
    fn = lambda i, a, b, c: lax.switch(i, [lambda: a, lambda: b, lambda: c])
    for i, want in enumerate([Y, V.materialise(), 2 * Y]):
        out = transform(fn, materialise="allow")(jnp.int32(i), Y, Held(V), Held(2 * Y))
        assert isinstance(out, Held)
        assert isinstance(out.x, jax.Array)
        np.testing.assert_allclose(out.x, want)
    with pytest.warns(jaxrewrite.MaterialisationWarning, match=r"Define Scaled\.join"):
        out = transform(fn)(jnp.int32(1), Y, V, V)
    assert isinstance(out, jax.Array)


W = np.random.default_rng(0).normal(size=(8, 8)).astype("float32")


WEIGHTS = {
    "int8": lambda: values.Quantised.quantise(W, axis=-1),
    "nf4": lambda: values.NF4.quantise(W, 4),
    "low rank": lambda: values.LowRank(W[:, :2], W[:2]),
    "lora": lambda: values.Lora(values.Quantised.quantise(W, 4), W[:, :2], W[:2]),
}


@pytest.mark.parametrize("kind", often(WEIGHTS, ("int8", "low rank", "lora")))
def test_a_weight_in_a_branch_that_each_element_chooses_stays(kind, bulk):
    """All elements share some of its leaves, and JAX chooses for each between two copies."""
    v = WEIGHTS[kind]()

    def fn(x, v):
        return jax.vmap(
            lambda r: lax.cond(r[0] > 0, lambda r: jnp.sqrt(r @ v), lambda r: r, r)
        )(x)

    w = jaxrewrite.materialise(v)
    x = jnp.stack([jnp.ones(8), -jnp.ones(8), W[0] @ jnp.linalg.inv(w)])
    slope = lambda fn: jax.grad(lambda x, v: jnp.nansum(fn(x, v)))
    implicit = transform(fn, materialise="forbid")
    for got, want in ((implicit(x, v), fn(x, w)), (slope(implicit)(x, v), slope(fn)(x, w))):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)


def test_values_without_entries_in_branches_that_each_element_chooses():
    v = values.Permutation(jnp.zeros(0, int), jnp.float32)
    flags = jnp.array([True, False])
    fn = lambda v: jax.vmap(lambda p: lax.cond(p, lambda: v, lambda: v.T))(flags)
    assert transform(fn, materialise="forbid")(v).shape == (2, 0, 0)

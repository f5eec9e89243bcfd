"""Every higher-order primitive, on every kind of value, in every mode, by the oracle."""

import collections
import functools

import jax
import jax.extend.core as jex_core
import jax.numpy as jnp
import numpy as np
import pytest
from choose import every, often, slow
from families import FAMILIES
from oracle import allow, assert_same_leaves
from reference import OWN

import jaxrewrite
from jaxrewrite.testing import assert_same


X = jnp.asarray(np.random.default_rng(1).uniform(0.2, 0.9, (3, 3)), jnp.float32)


def make(kind, seed=0):
    return OWN[kind].value(np.random.default_rng(seed), shape=(3, 3))


def dense_of(fn):
    return lambda v, x: fn(jaxrewrite.materialise(v), x)


def implicit_of(fn):
    return lambda v, x: jaxrewrite.materialise(allow(fn)(v, x))


def summed(fn):
    def total(v, x):
        leaves = jax.tree.leaves(jaxrewrite.materialise(fn(v, x)))
        return sum(jnp.sin(leaf).sum() for leaf in leaves)

    return total


same = functools.partial(assert_same, tolerance=2e-4)


def tangents_like(tree):
    def tangent(x):
        if jnp.issubdtype(x.dtype, jnp.inexact):
            return jnp.cos(jnp.arange(x.size, dtype=x.dtype)).reshape(x.shape)
        return np.zeros(x.shape, jax.dtypes.float0)

    return jax.tree.map(tangent, tree)


def check_forward(fn, v):
    want = jax.jit(fn)(jaxrewrite.materialise(v), X)
    assert_same(jax.jit(allow(fn))(v, X), want, 2e-5)


def check_forward_without_jit(fn, v):
    assert_same(allow(fn)(v, X), jax.jit(fn)(jaxrewrite.materialise(v), X), 2e-5)


def check_gradient(fn, v):
    want = jax.jit(jax.grad(summed(dense_of(fn)), (0, 1), allow_int=True))(v, X)
    got = jax.jit(jax.grad(summed(allow(fn)), (0, 1), allow_int=True))(v, X)
    assert_same_leaves(got, want, 2e-4)


def check_gradient_without_jit(fn, v):
    want = jax.grad(summed(dense_of(fn)), (0, 1), allow_int=True)(v, X)
    got = jax.grad(summed(allow(fn)), (0, 1), allow_int=True)(v, X)
    assert_same_leaves(got, want, 2e-4)


def check_gradient_inside(fn, v):
    gradient = jax.grad(summed(fn), (0, 1))
    want = jax.jit(gradient)(jaxrewrite.materialise(v), X)
    same(allow(gradient)(v, X), want)


def check_tangents(fn, v):
    tangents = tangents_like((v, X))
    want = jax.jvp(dense_of(fn), (v, X), tangents)
    same(jax.jvp(implicit_of(fn), (v, X), tangents), want)


def check_tangents_inside(fn, v):
    along = tangents_like(X)

    def derivative(v, x):
        return jax.jvp(lambda v, x: fn(v, x), (v, x), (0.5 * v, along))

    same(allow(derivative)(v, X), derivative(jaxrewrite.materialise(v), X))


def check_batched(fn, v):
    batch = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), v)
    xs = jnp.stack([X, 0.5 * X])

    def ways(of, inside):
        shared, each = jax.vmap(of(fn), (None, 0)), jax.vmap(of(fn), (0, 0))
        return jax.jit(lambda: (shared(v, xs), each(batch, xs), inside(v, xs)))()

    got = ways(implicit_of, implicit_of(jax.vmap(fn, (None, 0))))
    same(got, ways(dense_of, jax.vmap(dense_of(fn), (None, 0))))


def check_second_derivative(fn, v):
    def directional(fn):
        along = tangents_like(X)
        return jax.grad(lambda v, x: jnp.vdot(jax.grad(summed(fn), 1)(v, x), along), 1)

    same(jax.jit(directional(allow(fn)))(v, X), jax.jit(directional(dense_of(fn)))(v, X))


def without(*modes):
    return [name for name, own in FAMILIES.items() if own.without.isdisjoint(modes)]


def kinds(*chosen):
    """All kinds of values; in the long run of the suite those that are not named."""
    return pytest.mark.parametrize(
        "kind",
        often(OWN, chosen),
    )


one = kinds("lora")


# About one family for each primitive, for the tests that take long.
WATCHED = {
    *("scan const", "scan carry grows dense", "scan ys", "while carry", "switch", "jit"),
    *(
        "cond results differ",
        "checkpoint",
        "custom_jvp",
        "custom_jvp in scan",
        "custom_vjp",
    ),
    *("custom_vjp in cond", "linear solve", "custom_vmap", "reference"),
}


def watched(*modes):
    """The families that go through these modes; the others are for the long run."""
    return pytest.mark.parametrize(
        "name",
        often(without(*modes), WATCHED),
    )


def forwards():
    """A third of the families on one kind of value, and those that are watched on two."""
    for i, name in enumerate(FAMILIES):
        for kind in OWN:
            is_watched = name in WATCHED and kind in ("lora", "lora_of_quantised")
            case = pytest.param(name, kind)
            yield case if is_watched or i % 3 == 1 and kind == "lora" else slow(case)


@pytest.mark.parametrize(("name", "kind"), list(forwards()))
def test_forward(name, kind, bulk):
    check_forward(FAMILIES[name].fn, make(kind))


@one
@pytest.mark.parametrize("name", every(4, FAMILIES))
def test_forward_without_jit(name, kind, bulk):
    check_forward_without_jit(FAMILIES[name].fn, make(kind))


@one
@watched("reverse")
def test_gradient(name, kind, bulk):
    check_gradient(FAMILIES[name].fn, make(kind))


@one
@watched("reverse")
def test_gradient_inside(name, kind, bulk):
    check_gradient_inside(FAMILIES[name].fn, make(kind))


@one
@pytest.mark.parametrize("name", every(4, without("forward")))
def test_tangents(name, kind, bulk):
    check_tangents(FAMILIES[name].fn, make(kind))


@one
@watched("forward")
def test_tangents_inside(name, kind, bulk):
    check_tangents_inside(FAMILIES[name].fn, make(kind))


@one
@watched("vmap")
def test_batched(name, kind, bulk):
    check_batched(FAMILIES[name].fn, make(kind))


@pytest.mark.parametrize("name", every(10, without("reverse", "second")))
def test_second_derivative(name, bulk):
    check_second_derivative(FAMILIES[name].fn, make("lora"))


# With leak checks nothing is cached, so that only the families that contain others are run.
LEAKY = {
    "scan carry grows dense",
}


@pytest.mark.parametrize(
    "name",
    often(without("leak checks"), LEAKY),
)
def test_no_tracer_leaks(name, leak_checks):
    """With JAX's leak checks on: forward and, outside of jit, the gradient."""
    family, v = FAMILIES[name], make("lora")
    check_forward_without_jit(family.fn, v)
    if "reverse" not in family.without:
        check_gradient_without_jit(family.fn, v)


# --- structure ------------------------------------------------------------------

KEPT = {
    "scan",
    "while",
    "cond",
    "remat2",
    "custom_jvp_call",
    "custom_vjp_call",
    "custom_linear_solve",
    "linear_call",
    "custom_vmap_call",
    "pure_callback",
    "pallas_call",
}


def structured_equations(jaxpr):
    """How many equations there are of each primitive that has to stay one."""
    found = collections.Counter()
    for eqn in jaxpr.eqns:
        found[eqn.primitive.name] += eqn.primitive.name in KEPT
        if eqn.primitive.name == "jit":
            found[f"jit {eqn.params['name']}"] += 1
        if eqn.primitive.name != "pallas_call":
            for inner in jex_core.jaxprs_in_params(eqn.params):
                found += structured_equations(inner)
    return +found


def is_opaque(jaxpr):
    """Whether an equation is one of the primitives that newer JAX expands late."""
    return any(
        eqn.primitive.name == "call_hi_primitive"
        or any(map(is_opaque, jex_core.jaxprs_in_params(eqn.params)))
        for eqn in jaxpr.eqns
    )


# JAX keeps one tree of residuals for a call, where those of such a rule may differ. So the call is in
# a function that is traced for each derivative.
ADDED = {"custom_vjp with symbolic zeros": {"custom_vjp_call", "jit call"}}


@pytest.mark.parametrize("kind", ["lora", "zero"])
@pytest.mark.parametrize("name", FAMILIES)
def test_structure_is_kept(name, kind, bulk):
    fn, v = FAMILIES[name].fn, make(kind)
    dense = jax.make_jaxpr(fn)(jnp.ones((3, 3)), X).jaxpr
    implicit = jaxrewrite.make_jaxpr(fn, materialise="allow")(v, X).jaxpr
    if is_opaque(dense):
        pytest.skip(
            "where a value meets it, its expansion is there, which JAX doesn't show"
        )
    before, after = map(structured_equations, (dense, implicit))
    for primitive in (before | after).keys() - ADDED.get(name, set()):
        if kind == "zero":  # an equation that only gives zeros is dead code
            assert after[primitive] <= before[primitive], primitive
        else:
            assert after[primitive] == before[primitive], primitive

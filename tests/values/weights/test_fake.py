"""Quantisation-aware training of models that know nothing of it."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from choose import slow
from jax import lax
from jax.sharding import PartitionSpec
from oracle import forbid, normal

import jaxrewrite
from jaxrewrite.testing import assert_same
from jaxrewrite.values import FakeQuantised, Lora, Quantised


def by_hand(w, bits, axes, symmetric=True):
    """Rounded entries, with the derivative of the identity."""
    low, high = w.min(axes, keepdims=True), w.max(axes, keepdims=True)
    top = 2 ** (bits - 1) - 1
    if symmetric:
        s, z, least = jnp.maximum(high, -low) / top, 0, -top
    else:
        s, least = (high - low) / (2 * top + 1), -top - 1
        z = jnp.round(least - low / s)
    rounded = (jnp.clip(jnp.round(w / s + z), least, top) - z) * s
    return w + lax.stop_gradient(rounded - w)


OPTIONS = {
    "tensor": ({"bits": 8}, (0, 1)),
    "columns": ({"bits": 4, "axis": -1}, (0,)),
    "rows": ({"bits": 3, "axis": 0, "symmetric": False}, (1,)),
}


@pytest.mark.parametrize("dtype", ["float32", slow("bfloat16")])
@pytest.mark.parametrize("kind", OPTIONS)
def test_it_is_the_quantised_array(kind, dtype, bulk):
    options, axes = OPTIONS[kind]
    v = FakeQuantised(normal(8, 16, dtype=dtype), **options)
    dense = np.asarray(jax.jit(jaxrewrite.materialise)(v), np.float64)
    quantised = v.quantised()
    assert isinstance(quantised, Quantised) and quantised.nbytes < v.nbytes
    assert quantised.dtype == v.dtype == dtype
    for same in (v, quantised):
        np.testing.assert_array_equal(np.asarray(same, np.float64), dense)
    if dtype == "float32":
        hand = by_hand(v.w, options["bits"], axes, options.get("symmetric", True))
        np.testing.assert_allclose(dense, hand, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "affine"])
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_what_is_not_finite_shows(axis, symmetric, number, optimised):
    """XLA on a CPU loses a NaN in the maximum of many floats, which left zeros."""
    w = normal(512, 16).at[300, 5].set(float(number))
    v = FakeQuantised(w, 4, axis=axis, symmetric=symmetric)
    dense = np.asarray(jax.jit(jaxrewrite.materialise)(v))
    with_it = np.zeros(w.shape, bool)
    with_it[
        slice(300, 301) if axis == 0 else slice(None), 5 if axis == 1 else slice(None)
    ] = 1
    np.testing.assert_array_equal(~np.isfinite(dense), with_it)


CONV = {"dimension_numbers": ("NHC", "HIO", "NHC")}
PROGRAMS = {
    "product": lambda v, x: jnp.tanh(x @ v),
    "transposed": lambda v, x: x[:, :3] @ v.T[:3, :8] + v.reshape(-1)[:8],
    "einsum": lambda v, x: jnp.einsum("ij,ki->kj", v * 2, x),
    "convolution": lambda v, x: lax.conv_general_dilated(
        x[:, :, None], v[:4, None], (1,), "SAME", **CONV
    ),
    "vmap": lambda v, x: jax.vmap(lambda row: row @ v)(x),
    "scan": lambda v, x: lax.scan(lambda c, _: (jnp.sin(c @ v @ v.T / 32), c), x, None, 2),
    "remat": lambda v, x: jax.checkpoint(lambda v: x @ v)(v),
    "branch": lambda v, x: lax.cond(x[0, 0] > 0, lambda: v, lambda: v).T @ x.T,
    "gradient inside": lambda v, x: jax.grad(lambda v: (x @ v).sum() ** 2)(v),
}


def fake(w):
    return FakeQuantised(w, 4, axis=-1)


def total(results):
    return sum((y**2).sum() for y in jax.tree.leaves(jaxrewrite.materialise(results)))


@pytest.mark.slow
@pytest.mark.parametrize("base", ["alone", "in a Lora"])
def test_programs_and_gradients_are_those_by_hand(base, bulk):
    w, x = normal(8, 16), normal(3, 8, seed=1)
    a, b = normal(8, 2, seed=2), normal(2, 16, seed=3)
    weight = lambda w: fake(w) if base == "alone" else Lora(fake(w), a, b, frozen=False)
    change = 0 if base == "alone" else a @ b
    policy = "forbid" if base == "alone" else "allow"

    def programs(v, x):
        return {name: fn(v, x) for name, fn in PROGRAMS.items()}

    implicit = jaxrewrite.transform(programs, materialise=policy)
    got = jax.jit(lambda w, x: implicit(weight(w), x))
    want = lambda w, x: programs(by_hand(w, 4, (0,)) + change, x)
    assert_same(got(w, x), jax.jit(want)(w, x), 1e-4)
    slopes = [jax.grad(lambda w, x, fn=fn: total(fn(w, x)), (0, 1)) for fn in (got, want)]
    assert_same(*(jax.jit(slope)(w, x) for slope in slopes), tolerance=1e-4)
    along = [jax.jvp(lambda w, fn=fn: total(fn(w, x)), (w,), (w,)) for fn in (got, want)]
    assert_same(*along, tolerance=1e-4)


@pytest.mark.parametrize("how", ["vmap", "axis"])
def test_a_loop_over_layers_has_one_at_a_time(how, bulk):
    """Each layer has its own ranges."""
    w, x = normal(3, 8, 8), normal(2, 8, seed=1)
    w = w * jnp.arange(1, 4)[:, None, None]
    stack = jax.vmap(fake)(w) if how == "vmap" else FakeQuantised(w, 4, axis=(0, 2))
    model = lambda v, x: lax.scan(lambda x, v: (jnp.tanh(x @ v), None), x, v)[0]
    jaxpr = jaxrewrite.make_jaxpr(model, materialise="forbid")(stack, x)
    assert "i8[3,8,8]" not in str(jaxpr) and "i4[3,8,8]" not in str(jaxpr)
    layers = jax.vmap(lambda w: by_hand(w, 4, (0,)))(w)
    assert_same(jax.jit(forbid(model))(stack, x), model(layers, x), 1e-4)
    assert_same(stack.quantised(), layers, 1e-4)
    together = FakeQuantised(w, 4)
    assert_same(
        jax.jit(forbid(model))(together, x), model(by_hand(w, 4, (0, 1, 2)), x), 1e-4
    )


@jax.custom_jvp
def unchanged(w):
    return w


unchanged.defjvp(lambda primals, tangents: (primals[0], tangents[0]))
CHANGING = {
    "carry": lambda v: lax.scan(lambda v, _: (v * 1.5, v.sum(0)), v, None, 3),
    "branches": lambda v: lax.cond(v[0, 0] < 9, lambda v: v, jnp.sin, v),
    "custom rule": unchanged,
}


@pytest.mark.parametrize("program", [*map(slow, list(CHANGING)[1:]), "carry"])
@pytest.mark.filterwarnings("error")
def test_no_policy_is_in_the_way_where_it_cannot_stay(program):
    fn, w = CHANGING[program], normal(4, 4)
    want = fn(by_hand(w, 4, (0,))), jax.grad(lambda w: total(fn(by_hand(w, 4, (0,)))))(w)
    for policy in ("warn", "forbid"):
        run = jaxrewrite.transform(fn, materialise=policy)
        assert_same((run(fake(w)), jax.grad(lambda w: total(run(fake(w))))(w)), want, 1e-4)  # noqa: B023
    assert jaxrewrite.explain(fn, materialise="forbid")(fake(w)).dense == ()


@pytest.mark.slow
def test_an_unmodified_model_is_trained_and_converted(no_leak_checks):
    is_fake = lambda x: isinstance(x, FakeQuantised)
    model = eqx.nn.MLP(4, 2, 16, 2, key=jax.random.key(0))
    x, y = normal(32, 4), normal(32, 2, seed=1)
    y = jnp.stack([x[:, 0] * x[:, 1], jnp.sin(x[:, 2])], 1) + 0.01 * y

    def weights(model):
        return [layer.weight for layer in model.layers]

    trained = eqx.tree_at(
        weights, model, [FakeQuantised(w, 4, axis=0) for w in weights(model)]
    )
    apply = forbid(lambda model, x: jax.vmap(model)(x))
    optimiser = optax.adam(1e-2)

    def train(model, rounded):
        """A few steps, of a model whose weights are rounded by a function."""
        params, static = eqx.partition(model, eqx.is_array)

        def loss(params):
            return jnp.mean((rounded(eqx.combine(params, static)) - y) ** 2)

        @jax.jit
        def step(params, state):
            value, gradient = jax.value_and_grad(loss)(params)
            updates, state = optimiser.update(gradient, state, params)
            return optax.apply_updates(params, updates), state, value

        state, losses = optimiser.init(params), []
        for _ in range(8):
            params, state, value = step(params, state)
            losses.append(float(value))
        return eqx.combine(params, static), losses

    def hand(model):
        rounded = [by_hand(w, 4, (1,)) for w in weights(model)]
        return jax.vmap(eqx.tree_at(weights, model, rounded))(x)

    trained, losses = train(trained, lambda model: apply(model, x))
    _, want = train(model, hand)
    np.testing.assert_allclose(losses, want, rtol=1e-3)
    assert losses[-1] < 0.9 * losses[0]

    converted = jax.tree.map(
        lambda v: v.quantised() if is_fake(v) else v, trained, is_leaf=is_fake
    )
    assert all(isinstance(w, Quantised) for w in weights(converted))
    np.testing.assert_allclose(apply(converted, x), apply(trained, x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: FakeQuantised(jnp.ones(4, int)), "must be real floating; got int32"),
        (lambda: FakeQuantised(jnp.ones(4), 12), "FakeQuantised: `bits` must be 2 to 8"),
        (lambda: FakeQuantised(jnp.ones(4), block=3), "whole blocks"),
        (lambda: FakeQuantised(jnp.ones(4), axis=1), "FakeQuantised: `axis` 1 is not"),
    ],
)
def test_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_weights_that_are_not_finite_show():
    """As they would without rounding."""
    w = normal(4, 4).at[1, 2].set(jnp.inf)
    assert not np.isfinite(np.asarray(fake(w)))[:, 2].any()
    assert np.isfinite(np.asarray(fake(w)))[:, 3].all()


def test_each_weight_of_a_stack_that_leaves_vmap_has_its_own_range():
    w = normal(2, 3, 4) * jnp.array([1.0, 3.0])[:, None, None]
    stack = jax.vmap(lambda w: FakeQuantised(w, 4))(w)
    assert_same(stack.materialise(), by_hand(w, 4, (1, 2)))


def test_devices_share_axes_that_no_block_lies_along():
    v = FakeQuantised(normal(4, 6), 8, block=(1, 3))
    assert v.leaf_specs(PartitionSpec("x")).w == PartitionSpec("x")
    assert v.leaf_specs(PartitionSpec(None, "x")) is NotImplemented

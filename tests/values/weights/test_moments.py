"""Moments of optimisers in 8 bits: rounding at random, and the state of any optimiser."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from jaxrewrite.checkpoints import from_storable, to_storable
from jaxrewrite.testing import assert_same
from jaxrewrite.values import Float8, Lora, freeze, quantised_moments, train_only
from jaxrewrite.values._weights.moments import _moment, _sizes


optax = pytest.importorskip("optax")

DTYPES = {"float8_e4m3fn": ml_dtypes.float8_e4m3fn, "float8_e5m2": ml_dtypes.float8_e5m2}


def spread_out(seed, *shape):
    """Numbers of many magnitudes, some of them subnormal in the format, or zero."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=shape) * 10.0 ** rng.uniform(-7, 0, shape)
    x[0, :2] = 0
    return jnp.asarray(x, jnp.float32)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_number_becomes_one_of_its_neighbours_and_their_mean_is_the_number(dtype):
    x, keys = spread_out(0, 4, 16), jax.random.split(jax.random.key(1), 4000)
    moments = jax.jit(jax.vmap(lambda key: _moment(x, dtype, 16, key)))(keys)
    levels = np.asarray(moments.levels(), np.float64)
    ratio = np.asarray(x, np.float64) / np.asarray(moments.scale[0], np.float64)
    numbers = np.arange(256, dtype=np.uint8).view(DTYPES[dtype]).astype(np.float64)
    numbers = np.unique(numbers[np.isfinite(numbers)])
    at = np.clip(np.searchsorted(numbers, ratio, side="right") - 1, 0, len(numbers) - 2)
    low, high = numbers[at], numbers[at + 1]
    # The scale is rounded to float32, so a quotient may be rounded to the number beside it.
    is_neighbour = (
        (levels == low) | (levels == high) | (abs(levels - ratio) < 1e-6 * abs(ratio))
    )
    assert is_neighbour.all()
    error = (levels.mean(0) - ratio) / (high - low)
    assert abs(error).max() < 5 * 0.5 / np.sqrt(len(keys))
    assert (levels[:, 0, :2] == 0).all()


def test_a_block_without_negative_numbers_keeps_positive_ones(bulk):
    x = abs(spread_out(1, 4, 16))
    assert (
        (_moment(x, "float8_e4m3fn", 16, jax.random.key(0)).materialise() > 0) == (x > 0)
    ).all()


def test_what_is_not_finite_is_shown(bulk):
    x = jnp.ones((2, 8)).at[0, 1].set(jnp.nan).at[1, 1].set(jnp.inf)
    assert not jnp.isfinite(
        _moment(x, "float8_e4m3fn", 8, jax.random.key(0)).materialise()[:, 1]
    ).any()


@pytest.mark.parametrize(
    ("shape", "block", "sizes"),
    [
        ((256, 64), 128, (2, 64)),
        ((3, 300), 128, (1, 100)),
        ((509, 8), 128, (1, 8)),
        ((12, 8), 32, (4, 8)),
        ((257,), 128, (1,)),
    ],
)
def test_blocks_are_runs_of_the_last_axes(shape, block, sizes):
    assert _sizes(shape, block) == sizes


def adam_by_hand(gradients, rate=1e-2, b1=0.9, b2=0.999, eps=1e-8):
    m = v = np.zeros_like(gradients[0], np.float64)
    for t, g in enumerate(np.asarray(gradients, np.float64), 1):
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
        yield -rate * (m / (1 - b1**t)) / (np.sqrt(v / (1 - b2**t)) + eps)


def test_steps_of_adam_are_those_of_the_formula_on_average():
    params = {"kernel": jnp.zeros((32, 16)), "bias": jnp.zeros(16)}
    gradients = [1 + 0.5 * spread_out(t, 32, 16) for t in range(20)]
    optimiser = quantised_moments(optax.adam(1e-2), jax.random.key(0), least=512)
    state, update, steps = optimiser.init(params), jax.jit(optimiser.update), []
    for g in gradients:
        updates, state = update({"kernel": g, "bias": g[0]}, state)
        steps.append(updates["kernel"])
    wanted = np.array(list(adam_by_hand(gradients)))
    # A moment is off by up to 1/8 at a step. The mean of all entries is not.
    np.testing.assert_allclose(steps[-1], wanted[-1], rtol=0.3)
    np.testing.assert_allclose(np.mean(steps), wanted.mean(), rtol=0.01)
    adam = state.inner[0]
    assert isinstance(adam.mu["kernel"], Float8) and adam.mu["bias"].dtype == jnp.float32
    assert adam.mu["kernel"].nbytes + adam.nu["kernel"].nbytes < 0.3 * 2 * 4 * 32 * 16


def test_the_state_is_stored_and_restored_exactly(bulk):
    optimiser = quantised_moments(optax.adam(1e-2), jax.random.key(3), least=1)
    params, g = jnp.zeros((4, 8)), spread_out(0, 4, 8)
    _, state = optimiser.update(g, optimiser.init(params))
    like = jax.eval_shape(optimiser.init, params)
    restored = from_storable(to_storable(state), like=like)
    assert_same(optimiser.update(g, restored), optimiser.update(g, state))


def test_each_entry_may_have_a_scale_of_its_own():
    optimiser = quantised_moments(optax.adam(1e-2), jax.random.key(0), block=1, least=1)
    state = jax.eval_shape(optimiser.init, jnp.zeros((4, 8)))
    assert state.inner[0].mu.scale.shape == (4, 8)


def test_of_adapters_on_a_base_of_the_same_format(bulk):
    """The base's own `Float8` is no moment, also where an optimiser sees its parts."""
    v = Lora(Float8.quantise(jnp.ones((4, 8))), jnp.ones((4, 2)), jnp.ones((2, 8)))
    labels = lambda v: freeze(v, {Lora: ["w"]})
    optimiser = quantised_moments(
        train_only(optax.adam(0.1), labels), jax.random.key(0), least=1
    )
    updates, state = optimiser.update(jax.tree.map(jnp.ones_like, v), optimiser.init(v), v)
    np.testing.assert_allclose(updates.a, jnp.full((4, 2), -0.1), rtol=0.1)
    assert not jax.tree.leaves(state.inner[0].mu.w)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"key": 0}, TypeError, "must be a key of jax.random"),
        ({"dtype": "int8"}, ValueError, "float8_e4m3fn or float8_e5m2; got int8"),
        ({"block": 0}, ValueError, "block is 0"),
    ],
)
def test_what_is_refused(options, error, message):
    with pytest.raises(error, match=message):
        quantised_moments(optax.adam(0.1), **({"key": jax.random.key(0)} | options))

"""Moments of optimisers in 8 bits: rounding at random, and the state of any optimiser."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrewrite.checkpoints import from_storable, to_storable
from jaxrewrite.testing import assert_same
from jaxrewrite.values import Float8, Lora, freeze, quantised_moments, train_only
from jaxrewrite.values._weights.moments import Moment, _moment, _sizes


optax = pytest.importorskip("optax")


def spread_out(seed, *shape):
    """Numbers of many magnitudes, some of them below the least code, or zero."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=shape) * 10.0 ** rng.uniform(-7, 0, shape)
    x[0, :2] = 0
    return jnp.asarray(x, jnp.float32)


def levels_of(x):
    """What codes stand for, of a block with signs, or of one without."""
    if (x < 0).any():
        codes = np.arange(-127, 128)
        return np.sign(codes) * (codes / 127) ** 2
    return (np.arange(256) / 255) ** 4


def roundings(x, before, count=4000):
    """Each row of an array, a block, rounded with many keys, and the levels around the numbers."""
    block = x.shape[1]
    keys = jax.random.split(jax.random.key(1), count)
    of_key = lambda key: _moment(x, block, before, key).materialise()
    rounded = np.asarray(jax.jit(jax.vmap(of_key))(keys), np.float64)
    low, high = np.zeros(x.shape), np.zeros(x.shape)
    for row, numbers in enumerate(np.asarray(x, np.float64)):
        levels = levels_of(numbers) * abs(numbers).max()
        at = np.clip(np.searchsorted(levels, numbers, side="right") - 1, 0, len(levels) - 2)
        low[row], high[row] = levels[at], levels[at + 1]
    return rounded, low, high


def test_a_number_that_stays_is_rounded_at_random_so_that_the_mean_is_the_number():
    """In blocks with signs and, in the last row, without."""
    x = spread_out(0, 4, 16)
    x = x.at[3].set(abs(x[3]) + 1e-7)  # No less than the least code.
    rounded, low, high = roundings(x, x)
    at_low, at_high = (np.isclose(rounded, y, 1e-5, 1e-12) for y in (low, high))
    assert (at_low | at_high).all()
    error = (rounded.mean(0) - np.asarray(x)) / (high - low)
    assert abs(error).max() < 5 * 0.5 / np.sqrt(len(rounded))
    assert (rounded[:, 0, :2] == 0).all()


def test_a_number_that_moves_is_rounded_to_the_nearest_where_there_are_signs():
    x = spread_out(0, 4, 16)
    x = x.at[3].set(abs(x[3]) + 1e-7)
    far = x + 10
    rounded, low, high = roundings(x, far, 400)
    nearest = np.where(np.asarray(x) - low < high - np.asarray(x), low, high)
    assert np.allclose(rounded[:, :3], nearest[:3], 1e-5, 1e-12)
    assert not np.allclose(rounded[:, 3], nearest[3], 1e-5, 1e-12)


def test_a_block_without_negative_numbers_keeps_positive_ones(bulk):
    x = abs(spread_out(1, 4, 16)) ** 2
    v = _moment(x, 16, x, jax.random.key(0))
    np.testing.assert_array_equal(v.materialise() > 0, x > 0)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_a_moment_has_the_dtype_of_the_array_and_is_near_it(dtype, bulk):
    x = spread_out(2, 4, 16).astype(dtype)
    v = _moment(x, 16)
    assert v.dtype == v.materialise().dtype == dtype and v.shape == x.shape
    most = abs(x).max(1, keepdims=True).astype("float32")
    # Half of the largest step, and the rounding of the dtype.
    error = abs(v.materialise().astype("float32") - x.astype("float32"))
    assert (error <= (1 / 127 + 2.0**-7) * most).all()
    assert v.nbytes == x.size + 4 * 4


def test_what_is_not_finite_is_shown(bulk):
    x = jnp.ones((2, 8)).at[0, 1].set(jnp.nan).at[1, 1].set(jnp.inf)
    v = _moment(x, 8, x, jax.random.key(0))
    assert not jnp.isfinite(v.materialise()[:, 1]).any()


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
    np.testing.assert_allclose(steps[-1], wanted[-1], rtol=0.1)
    np.testing.assert_allclose(np.mean(steps), wanted.mean(), rtol=0.002)
    adam = state.inner[0]
    assert isinstance(adam.mu["kernel"], Moment) and adam.mu["bias"].dtype == jnp.float32
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


def test_of_adapters_on_a_quantised_base(bulk):
    """The base has no moments, also where an optimiser sees its parts."""
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
        ({"block": 0}, ValueError, "block is 0"),
    ],
)
def test_what_is_refused(options, error, message):
    with pytest.raises(error, match=message):
        quantised_moments(optax.adam(0.1), **({"key": jax.random.key(0)} | options))

"""Derivatives of programs on values that annotate an array."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from oracle import forbid

from jaxrewrite.values import Masked, Tagged, Unitful, UnitsError


pytestmark = pytest.mark.usefixtures("no_leak_checks")


# --- masks ------------------------------------------------------------------------------


NUMBERS = jnp.asarray(np.random.default_rng(3).uniform(0.5, 2.0, (3, 4)), jnp.float32)
# All of a row, all of a column, and the first of another row.
MASK = jnp.zeros((3, 4), bool).at[1].set(True).at[:, 3].set(True).at[0, 0].set(True)

WITH_NOTHING = {
    "max": lambda x: x * x.max(0),
    "min": lambda x: jnp.sqrt(x.min(1, keepdims=True)) * x,
    "sum": lambda x: x / x.sum(1, keepdims=True),
    "softmax": jax.nn.softmax,
    "log_softmax": jax.nn.log_softmax,
    "cummax": lambda x: x * lax.cummax(x, axis=1),
    "dot": lambda x: jnp.log(x @ jnp.ones((4, 4))),
    "gram": lambda x: x / (x @ x.T).sum(1, keepdims=True) + jnp.log(x @ x.T).sum(),
    "window": lambda x: jnp.log(
        lax.conv(x[None, None], jnp.ones((1, 1, 1, 2)), (1, 1), "VALID")
    ),
    "take": lambda x: x[:1] * jnp.take(x, jnp.array([0, 9]), 0, mode="fill"),
    "sort": lambda x: 1 / jnp.sort(x, 1),
}


@pytest.mark.parametrize("name", WITH_NOTHING)
def test_results_of_nothing_leave_gradients_finite(name):
    """Where all entries are missing, no zero and no infinity is put under the mask."""
    fn = WITH_NOTHING[name]

    def loss(array):
        return forbid(fn)(Masked(array, MASK)).filled(0).sum()

    gradient = jax.jit(jax.grad(loss))(NUMBERS)
    assert (jnp.where(MASK, gradient == 0, jnp.isfinite(gradient))).all()
    step = 1e-3 * jnp.where(MASK, 0, jnp.cos(jnp.arange(12.0)).reshape(3, 4))
    change = (loss(NUMBERS + step) - loss(NUMBERS - step)) / 2
    np.testing.assert_allclose((gradient * step).sum(), change, rtol=2e-2, atol=1e-5)


def test_the_mean_of_nothing_leaves_gradients_finite():
    loss = lambda x: forbid(jnp.log)(Masked(x, MASK).mean(axis=1)).filled(0).sum()
    assert jnp.isfinite(jax.grad(loss)(NUMBERS)).all()


@jax.custom_vjp
def _doubled_and_summed(x):
    return 2 * x, x.sum(0)


_doubled_and_summed.defvjp(
    lambda x: (_doubled_and_summed(x), None), lambda _, g: (2 * g[0] + g[1],)
)


@pytest.mark.parametrize("reverse", [False, True])
def test_sums_of_exponentials_have_tangents_beside_missing_neighbours(reverse):
    mask = jnp.array([True, True, False, False, True, True, False, True])
    array = jnp.array([1.0, 2.0, -jnp.inf, 0.5, 1.0, 2.0, 3.0, 4.0])
    fn = lambda x: lax.cumlogsumexp(x, axis=0, reverse=reverse)
    get = lambda x: forbid(fn)(Masked(x, mask)).array[~mask]
    found, tangent = jax.jvp(get, (array,), (jnp.ones(8).at[2].set(0),))
    np.testing.assert_allclose(found, fn(array[~mask]), rtol=1e-6)
    finite = np.isfinite(found)
    np.testing.assert_allclose(tangent[finite], 1, rtol=1e-6)


def test_sums_of_exponentials_of_complex_numbers_leave_out_what_is_missing():
    array = jnp.array([1.0, 2.0j, 3.0, 1 + 1j], "complex64")
    mask = jnp.array([False, True, False, False])
    fn = lambda x: lax.cumlogsumexp(x, axis=0)
    found = forbid(fn)(Masked(array, mask)).array[~mask]
    np.testing.assert_allclose(found, fn(array[~mask]), rtol=1e-5)


@jax.custom_jvp
def _times(x, count):
    return x * count


_times.defjvp(lambda primals, tangents: (_times(*primals), tangents[0] * primals[1]))


@pytest.mark.parametrize("kind", ["masked", "quantity", "quantity inside"])
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["", "jit"])
def test_integers_beside_what_is_differentiated_by_a_rule(kind, wrap):
    """They have no tangents, of whatever units or with whatever mask."""
    counts = jnp.array([3, 4, 5])
    mask = jnp.array([False, True, False])
    annotated = {
        "masked": Masked(counts, mask),
        "quantity": Unitful(counts, "m"),
        "quantity inside": Tagged(Unitful(counts, "m"), "counted"),
    }[kind]

    def total(x):
        product = forbid(_times)(x, annotated)
        while not isinstance(product, jax.Array):
            product = product.filled(0) if kind == "masked" else product.array
        return product.sum()

    x = jnp.array([1.0, 2.0, 3.0])
    want = jnp.where(mask, 0, counts) if kind == "masked" else counts
    np.testing.assert_array_equal(wrap(jax.grad(total))(x), want)
    _, tangent = wrap(lambda x: jax.jvp(total, (x,), (x,)))(x)
    np.testing.assert_array_equal(tangent, (x * want).sum())


def test_a_backward_rule_gives_missing_entries_no_gradient():
    """The rule spreads the cotangent of a sum over all rows, and knows of no mask."""

    def loss(array):
        doubled, total = forbid(_doubled_and_summed)(Masked(array, MASK))
        return doubled.filled(0).sum() + total.filled(0).sum()

    np.testing.assert_array_equal(jax.grad(loss)(NUMBERS), jnp.where(MASK, 0, 3))


@jax.custom_vjp
def _inner(x, y):
    return jnp.sum(x * y)


_inner.defvjp(lambda x, y: (_inner(x, y), (x, y)), lambda xy, g: (g * xy[1], g * xy[0]))


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["", "jit"])
@pytest.mark.parametrize("is_quantity", [False, True])
@pytest.mark.parametrize("is_masked", [False, True], ids=["beside an array", "masked"])
def test_what_is_missing_beside_an_operand_gives_it_no_gradient(
    is_masked, is_quantity, wrap
):
    """The rule multiplies the cotangent of a sum with another operand, which has a mask."""
    own = jnp.arange(12).reshape(3, 4) % 5 == 0

    def loss(fn, array):
        x = Masked(array, own) if is_masked else array
        y = Masked(NUMBERS[::-1], MASK)
        if is_quantity:
            product = forbid(fn)(Unitful(x, "m"), Unitful(y, "s")).array
        else:
            product = forbid(fn)(x, y)
        return product.filled(0)

    missing = MASK | own if is_masked else MASK
    for fn in (_inner, lambda x, y: jnp.sum(x * y)):
        slope = wrap(jax.grad(functools.partial(loss, fn)))(NUMBERS)
        np.testing.assert_array_equal(slope, jnp.where(missing, 0, NUMBERS[::-1]))


def test_the_cotangent_of_an_array_has_its_units():
    @jax.custom_vjp
    def times(x, y):
        return x * y

    times.defvjp(lambda x, y: (x * y, x), lambda x, g: (g, g * x * x))
    loss = lambda y: forbid(times)(Unitful(2.0, "m"), y).array
    with pytest.raises(UnitsError, match=r"a custom derivative rule .* got m and 1\."):
        jax.grad(loss)(3.0)


@jax.custom_vjp
def _squared(x):
    return x * x


_squared.defvjp(lambda x: (x * x, x), lambda x, g: (2 * x * g,))


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: _squared(x).sum(1),
        lambda x: _squared(x) @ jnp.ones(4),
        lambda x: jax.vmap(lambda x: _squared(x).sum())(x),
    ],
)
def test_a_mask_that_a_custom_vjp_returns_is_reduced(fn):
    """JAX gives the mask a tangent, which the reduction of booleans does not take."""
    loss = lambda array: forbid(fn)(Masked(array, MASK)).filled(0).sum()
    want = jnp.where(MASK, 0, 2 * NUMBERS)
    for slope in (jax.grad(loss), jax.jit(jax.grad(loss))):
        np.testing.assert_allclose(slope(NUMBERS), want, rtol=1e-6)


@pytest.mark.parametrize(
    "fn", [lambda x: _doubled(x.sum(0)), lambda x: _doubled(x * 3).sum()]
)
def test_a_custom_vjp_of_a_sum_takes_tangents_that_are_no_sums(fn):
    loss = lambda array: forbid(fn)(Masked(array, MASK)).filled(0).sum()
    np.testing.assert_allclose(
        jax.grad(loss)(NUMBERS),
        jax.grad(lambda x: fn(jnp.where(MASK, 0, x)).sum())(NUMBERS),
    )


@jax.custom_vjp
def _doubled(x):
    return 2 * x


_doubled.defvjp(lambda x: (2 * x, None), lambda _, cotangent: (2 * cotangent,))


def test_gradients_inside_count_what_is_missing():
    """The page says so: a cotangent knows of no mask there."""
    shifted = lambda shift, x: jnp.sum(x - shift)
    x = Masked(NUMBERS, MASK)
    outside = jax.grad(lambda shift: forbid(shifted)(shift, x).filled(0))(0.0)
    assert outside == -(~MASK).sum()
    assert forbid(jax.grad(shifted))(0.0, x) == -MASK.size

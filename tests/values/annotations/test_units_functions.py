"""Functions and programs on quantities: the numbers are NumPy's, and each has its units."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxrewrite
from jaxrewrite.values import Interval, Masked, Named, Unitful, Units, UnitsError


pytestmark = pytest.mark.usefixtures("double")


TIMES, KNOTS = Unitful(np.array([0.5, 1.25, 9.0]), "s"), Unitful(np.arange(3.0), "s")
METRE = Units("m")
X = Unitful(np.array([3.0, 0.5, 2.0]), "m")
ODD = Unitful(np.array([1e200, -np.inf, np.nan]), "m")
LARGEST = np.finfo(float).max


def array_of(x):
    return x.array if isinstance(x, Unitful) else x


def units_of(x):
    return str(getattr(x, "units", Units()))


def power_in_a_loop(x):
    """The exponent of the derivative is computed before the loop."""
    return lax.scan(lambda c, _: (c + c**1.5 / jnp.sqrt(x[0]), None), x, length=2)[0].sum()


def power_in_a_call_in_a_loop(x):
    step = jax.jit(lambda c: c + c**1.5 / jnp.sqrt(x[0]))
    return lax.fori_loop(0, 2, lambda i, c: step(c), x).sum()


PLACES = np.array([0, 0, 1])


def power_of_an_integer(x):
    return lax.pow(x, 2).sum()


def power_by_a_call(x, exponent=2.0):
    return jax.jit(lambda x, n: x**n)(x, exponent).sum()


def highest_of_segments(x):
    return (jax.ops.segment_max(x, PLACES, 2) ** 2).sum()


def highest_of_windows(x):
    return (lax.reduce_window(x, -jnp.inf, lax.max, (2,), (1,), "VALID") ** 2).sum()


ACCEPTED = {
    "interp": (jnp.interp, np.interp, (TIMES, KNOTS, X), "m"),
    "interp of numbers": (jnp.interp, np.interp, (TIMES, KNOTS, X.array), "1"),
    "interp, zero outside": (
        lambda t, knots, x: jnp.interp(t, knots, x, right=0.0),
        lambda t, knots, x: np.interp(t, knots, x, right=0.0),
        (TIMES, KNOTS, X),
        "m",
    ),
    "interp, mapped": (
        jax.vmap(jnp.interp, (0, None, None)),
        np.interp,
        (TIMES, KNOTS, X),
        "m",
    ),
    "slope of interp": (
        jax.grad(lambda t, knots, x: jnp.interp(t, knots, x).sum()),
        lambda t, knots, x: np.array([-2.5, 1.5, 0.0]),
        (TIMES, KNOTS, X),
        "m s^-1",
    ),
    "hypot": (jnp.hypot, np.hypot, (X, ODD), "m"),
    "hypot in a loop": (
        lambda x: lax.scan(lambda c, a: (jnp.hypot(c, a), None), 0.0, x)[0],
        np.linalg.norm,
        (X,),
        "m",
    ),
    "derivative of hypot": (
        jax.grad(lambda x: jnp.hypot(x[0], x[2])),
        lambda x: np.array([x[0], 0, x[2]]) / np.hypot(x[0], x[2]),
        (X,),
        "1",
    ),
    "nan_to_num": (jnp.nan_to_num, np.nan_to_num, (ODD,), "m"),
    "masked minimum": (
        lambda x: jnp.where(x > x[1], x, LARGEST).min(),
        lambda x: np.float64(2.0),
        (X,),
        "m",
    ),
    "isclose": (
        lambda x, y: jnp.isclose(x, y, atol=0),
        lambda x, y: np.isclose(x, y, atol=0),
        (X, ODD),
        "1",
    ),
    "allclose": (
        lambda x, atol: jnp.allclose(x, x[::-1], atol=atol),
        lambda x, atol: np.allclose(x, x[::-1], atol=atol),
        (X, Unitful(1.0, "m")),
        "1",
    ),
    "allclose without atol": (
        lambda x: jnp.allclose(x, x, atol=0),
        lambda x: np.allclose(x, x, atol=0),
        (X,),
        "1",
    ),
    "histogram": (
        lambda x, edges: jnp.histogram(x, edges)[0],
        lambda x, edges: np.histogram(x, edges)[0],
        (X, Unitful(np.array([0.0, 1, 4]), "m")),
        "1",
    ),
    "subtract": (
        lambda x: x.at[np.array([0, 0])].subtract(x[1:]),
        lambda x: x - [2.5, 0, 0],
        (X,),
        "m",
    ),
    "multiply": (
        lambda x: x.at[np.array([0, 0])].multiply(2.0),
        lambda x: x * [4, 1, 1],
        (X,),
        "m",
    ),
    "derivative in a loop": (
        jax.grad(power_in_a_loop),
        lambda x: np.asarray(jax.grad(power_in_a_loop)(x)),
        (X,),
        "1",
    ),
    "second derivative in a call": (
        jax.hessian(power_in_a_call_in_a_loop),
        lambda x: np.asarray(jax.hessian(power_in_a_call_in_a_loop)(x)),
        (X,),
        "m^-1",
    ),
}

REFUSED = {
    "power of a number that is not written": (
        jax.grad(lambda x, n: (x**n).sum()),
        (X, np.array(2.0)),
        "pow needs operands without",
    ),
    "interp with other units": (jnp.interp, (X, KNOTS, X), "got m and s"),
    "interp, a number outside": (
        lambda t, knots, x: jnp.interp(t, knots, x, left=1.0),
        (TIMES, KNOTS, X),
        "got m and 1",
    ),
    "hypot": (jnp.hypot, (X, TIMES), "got m and s"),
    "hypot with a number": (lambda x: jnp.hypot(x, 1.0), (X,), "got m and 1"),
    "nan_to_num": (lambda x: jnp.nan_to_num(x, nan=1.0), (ODD,), "got m and 1"),
    "product with the largest number": (
        lambda x: x + jnp.full(3, LARGEST) / 2,
        (X,),
        "got m and 1",
    ),
    "root of the largest number": (
        lambda x: x + jnp.sqrt(jnp.full(3, LARGEST)),
        (X,),
        "got m and 1",
    ),
    "isclose": (jnp.isclose, (X, X), r"add .* got 1 and m\. Give units to the numbers"),
    "histogram": (lambda x: jnp.histogram(x)[0], (X,), "got m and 1"),
    "polyfit": (
        lambda t, x: jnp.polyfit(t, x, 1),
        (TIMES, X),
        "pow needs operands without",
    ),
    "round": (jnp.round, (X,), "round needs operands without units; got m"),
    "floor division": (lambda x, t: x // t, (X, TIMES), "rem needs operands of equal"),
    "log-density": (
        lambda x: jax.scipy.stats.norm.logpdf(x, x[0], x[2]),
        (X,),
        r"log needs operands without units; got m\^2",
    ),
    "product without what is missing": (jnp.nanprod, (X,), "got m and 1"),
    "safe divisor": (lambda x: 1 / jnp.where(x == 0, 1.0, x), (X,), "got m and 1"),
    "multiply": (
        lambda x: x.at[0].multiply(x[0]),
        (X,),
        "scatter-mul multiplies some entries, so the factor",
    ),
    "subtract": (lambda x: x.at[0].subtract(1.0), (X,), "scatter-sub .* got m and 1"),
    "derivatives in two units": (
        lambda x, t: jax.jacfwd(lambda x, t: x * t, argnums=(0, 1))(x, t),
        (X, TIMES),
        "add_any needs operands of equal units; got s and m",
    ),
}


@pytest.mark.parametrize("name", ACCEPTED)
@pytest.mark.filterwarnings("ignore:invalid value")
def test_numbers_and_units(name):
    fn, of_numpy, operands, units = ACCEPTED[name]
    result = jaxrewrite.transform(fn, materialise="forbid")(*operands)
    assert units_of(result) == units
    want = of_numpy(*map(array_of, operands))
    np.testing.assert_allclose(array_of(result), want, rtol=1e-12)


DIFFERENTIATED = {
    "power of an integer": (power_of_an_integer, 2),
    "power by a call": (power_by_a_call, 2),
    "integer power by a call": (lambda x: power_by_a_call(x, 3), 3),
    "segments": (highest_of_segments, 2),
    "windows": (highest_of_windows, 2),
}


@pytest.mark.parametrize("name", DIFFERENTIATED)
def test_derivatives_inside_have_units(name):
    fn, power = DIFFERENTIATED[name]
    along = lambda x: jax.jvp(fn, (x,), (x,))[1]
    for derivative, units in (
        (fn, METRE**power),
        (jax.grad(fn), METRE ** (power - 1)),
        (along, METRE**power),
        (jax.jacrev(jax.grad(fn)), METRE ** (power - 2)),
    ):
        result = jaxrewrite.transform(derivative, materialise="forbid")(X)
        assert units_of(result) == str(units)
        np.testing.assert_allclose(array_of(result), derivative(X.array), rtol=1e-12)


@pytest.mark.parametrize("name", REFUSED)
def test_what_depends_on_units_is_refused(name):
    fn, operands, message = REFUSED[name]
    with pytest.raises(UnitsError, match=message):
        jaxrewrite.transform(fn)(*operands)


def test_numbers_of_a_call_keep_their_signs():
    divide = jax.jit(lambda x, y: x / y)
    both = jaxrewrite.transform(lambda x: (divide(x, -0.0), divide(x, 0.0), divide(x, 2.0)))
    signs = [float(x.array[0]) for x in both(X)]
    assert signs == [-np.inf, np.inf, 1.5]


def test_the_error_names_the_units_and_what_to_do():
    with pytest.raises(UnitsError) as caught:
        jaxrewrite.transform(lambda x: x + 1e-6)(X)
    assert str(caught.value).startswith(
        "add needs operands of equal units; got m and 1. Give units to the numbers without "
        "any, as in Unitful(1.0, 'm'), and pass them as arguments; or divide the others by a unit."
    )


def test_what_is_subtracted_at_an_index_is_annotated():
    subtract = jaxrewrite.transform(lambda x, y: x.at[1].subtract(y), materialise="forbid")
    lower, upper = jnp.array([0.0, 1, 2]), jnp.array([1.0, 3, 2])
    bounds = subtract(Interval(lower, upper), Interval(jnp.array(1.0), jnp.array(4.0)))
    np.testing.assert_array_equal(bounds.lower, [0, -3, 2])
    np.testing.assert_array_equal(bounds.upper, [1, 2, 2])
    missing = subtract(Masked(lower, lower > 1), Masked(jnp.array(5.0), jnp.array(True)))
    np.testing.assert_array_equal(missing.mask, [False, True, True])
    kept = subtract(Masked(lower, lower > 1), jnp.array(5.0))
    np.testing.assert_array_equal(kept.array[:2], [0, -4])
    named = subtract(Named(lower, ("place",)), jnp.array(5.0))
    assert named.names == ("place",)
    multiply = jaxrewrite.transform(lambda x: x.at[1].multiply(3.0), materialise="forbid")
    np.testing.assert_array_equal(multiply(Named(lower, ("place",))).array, [0, 3, 2])


def thermostat(power):
    """The momentum of a thermostat, as a loop writes it from zeros."""

    def run(energy, mass, dt, *exponents):
        (exponent,) = exponents or (power,)
        turn = lambda p, _: (p.at[1].add(dt * (p[0] ** exponent / mass - energy)), None)
        return lax.scan(turn, jnp.zeros(2), length=2)[0]

    return run


@pytest.mark.parametrize("dtype", [None, "float32", "int32"])
def test_a_power_of_zeros_of_a_program_has_any_units(dtype):
    energy, mass, dt = (
        Unitful(jnp.float32(2), units) for units in ("J", "J s^2", "s")
    )  # fmt: skip
    power = lambda: 2 if dtype is None else jnp.asarray(2, dtype)
    run = lambda *operands: thermostat(power())(*operands)
    momentum = jaxrewrite.transform(run)(energy, mass, dt)
    assert momentum.units == Units("J s")
    np.testing.assert_array_equal(momentum.array, [0, -8])
    with pytest.raises(UnitsError, match="sub needs operands of equal units"):
        # Nothing tells the power, and so the units.
        jaxrewrite.transform(thermostat(None))(energy, mass, dt, jnp.float32(2))


def test_a_power_of_zeros_beside_a_quantity():
    fn = lambda x: jnp.zeros(2) ** jnp.float32(0.5) + x
    assert jaxrewrite.transform(fn)(Unitful(jnp.ones(2), "m")).units == Units("m")

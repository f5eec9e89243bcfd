"""Quantities from text, constants of nature, sums that convert units, and plots."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from scipy import constants

import jaxrewrite
from jaxrewrite import values
from jaxrewrite.testing import assert_same
from jaxrewrite.values import Diagonal, Named, Unitful, Units, UnitsError


# --- text ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "numbers", "units"),
    [
        ("3 km/h", 3.0, "km/h"),
        (" -1.5e-3kg m^2 ", -1.5e-3, "kg m^2"),
        ("+.5 m^(1/2)", 0.5, "m^(1/2)"),
        ("3e m", 3.0, "e m"),
        ("[[1, 2], [3, -4e1]] 1/s", [[1, 2], [3, -40]], "1/s"),
        ("20 degC", 293.15, "K"),
        ("[32, 212] degF", [273.15, 373.15], "K"),
        ("5 delta_degC", 5.0, "delta_degC"),
    ],
)
def test_texts_are_read(text, numbers, units):
    got = values.parse(text)
    assert got.units == Units(units)
    assert_same(got.array, np.float32(numbers), 1e-6)


def test_numbers_without_units_are_an_array_of_the_dtype():
    got = values.parse("[1, 2]", dtype="int32")
    assert isinstance(got, jax.Array)
    assert got.dtype == "int32"
    assert values.parse("2 m", dtype="bfloat16").dtype == "bfloat16"


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32"])
@pytest.mark.parametrize("text", ["1.5 m", "[1, 300.5] m", "-1.25 km", "20 degC"])
def test_integers_hold_no_other_numbers(text, dtype):
    with pytest.raises(ValueError, match=f"{dtype} does not hold the numbers"):
        values.parse(text, dtype=dtype)


def test_numbers_of_narrow_and_of_complex_dtypes():
    with pytest.raises(ValueError, match="int8 does not hold"):
        values.parse("[1, 300] m", dtype="int8")
    assert values.parse("[1, 300] m", dtype="int16").array.tolist() == [1, 300]
    assert_same(values.parse("2 m", dtype="complex64").array, np.complex64(2))


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("km", ValueError, "not a number with units"),
        ("", ValueError, "not a number with units"),
        ("[1, a] m", ValueError, "can't read the numbers"),
        ("[1, [2]] m", ValueError, "can't read the numbers"),
        ("[1] + [2] m", ValueError, "can't read the numbers"),
        ("[1] kg [2] m", ValueError, "can't read the numbers"),
        ("1e39 m", ValueError, "float32 does not hold the numbers of '1e39 m'"),
        ("1e-60 m", ValueError, "float32 does not hold"),
        ("3 m2", ValueError, "Units: can't read 'm2'"),
        ("3 J/degC", UnitsError, "degC has an offset.*parse.*delta_degC"),
        ("3 dB", UnitsError, "dB is the logarithm of a ratio.*10 \\*\\* \\(x / 10\\)"),
    ],
)
def test_what_is_no_quantity_is_refused(text, error, message):
    with pytest.raises(error, match=message):
        values.parse(text)


@pytest.mark.parametrize("name", ["dB", "pH", "Np", "degF"])
def test_what_is_no_multiple_of_a_unit_does_not_convert(name):
    for old, new in ((name, "1"), ("K", name), (f"m/{name}", "m/K")):
        with pytest.raises(UnitsError, match=f"{name} (has an offset|is the logarithm)"):
            Unitful(jnp.float32(1), old).to(new)


@pytest.mark.parametrize("name", ["dB", "degC"])
@pytest.mark.parametrize(
    "fn",
    [
        *(jnp.add, jnp.subtract, lambda x, y: jnp.cumsum(x)),
        *(lambda x, y: x.at[0].add(y[1]), lambda x, y: x.at[0].subtract(y[1])),
    ],
)
def test_points_on_a_scale_have_no_sum(fn, name):
    x = Unitful(jnp.ones(2), name)
    with pytest.raises(UnitsError, match=f"{name} (has an offset|is the logarithm)"):
        jaxrewrite.transform(fn)(x, x)
    # They have a largest one, and the program's own zeros are none.
    kept = jaxrewrite.transform(lambda x: jnp.pad(jnp.maximum(x, x[::-1]), 1))(x)
    assert kept.units == Units(name)
    assert jaxrewrite.transform(jnp.mean)(x).units == Units(name)
    for with_zeros in (lambda x: x + jnp.zeros(2), lambda x: 0.0 + x):
        assert jaxrewrite.transform(with_zeros)(x).units == Units(name)


def test_differences_of_temperatures_convert():
    warmer = values.parse("9 delta_degF").to("delta_degC")
    assert_same(warmer.array, np.float32(5), 1e-6)
    assert_same((values.parse("20 degC") + warmer.to("K")).array, np.float32(298.15), 1e-6)


# --- constants ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "units"),
    [
        ("c", "m/s"),
        ("hbar", "J s"),
        ("N_A", "1/mol"),
        ("epsilon_0", "F/m"),
        ("mu_0", "N/A^2"),
    ],
)
def test_constants_are_those_of_codata(name, units):
    got = values.constant(name)
    assert got.to(units).units == Units(units)
    assert_same(got.to(units).array, np.float32(getattr(constants, name)), 1e-6)


def test_every_constant_has_units_that_are_read():
    with jax.enable_x64(True):
        for name, (number, _, _) in constants.physical_constants.items():
            got = values.constant(name)
            assert "T" not in dict(getattr(got, "units", Units()).exponents)
            assert float(getattr(got, "array", got)) == number


def test_a_constant_beyond_the_dtype_is_refused():
    with pytest.raises(
        ValueError, match="float32 does not hold the numbers of 'kilogram-hertz"
    ):
        values.constant("kilogram-hertz relationship")


def test_a_constant_that_is_not_there_is_refused_with_those_alike():
    with pytest.raises(ValueError, match=r"no 'muon mass ratio'|Are you looking for"):
        values.constant("muon mass ratio")
    with pytest.raises(ValueError, match="no 'tau mas'.*'tau mass'"):
        values.constant("tau mas")


# --- systems of units -----------------------------------------------------------------------


def test_quantities_in_base_units():
    field = Unitful(jnp.float32(2), "kV/USD")
    assert field.to_base().units == Units("kg m^2 s^-3 A^-1 USD^-1")
    got = field.to_base("cm", "g", "mA", "min")
    assert got.units == Units("g cm^2 min^-3 mA^-1 USD^-1")
    assert_same(got.to("kV/USD").array, np.float32(2), 1e-5)


@pytest.mark.parametrize("basis", ["N", "m^2", "1"])
def test_a_unit_of_no_base_unit_is_refused(basis):
    with pytest.raises(UnitsError, match="stands for none of them"):
        Unitful(jnp.float32(2), "J").to_base(basis)


# --- sums that convert units ----------------------------------------------------------------

KM, M = Unitful(jnp.array([2.0, 0.25]), "km"), Unitful(jnp.array([500.0, 300.0]), "m")
IN_METRES = jnp.array([2000.0, 250.0]), jnp.array([500.0, 300.0])

PROGRAMS = {
    "sum": lambda x, y: x + y,
    "difference": lambda x, y: y - x,
    "maximum": jnp.maximum,
    "clip": lambda x, y: jnp.clip(x, 0, y),
    "choice": lambda x, y: jnp.where(x > y, x, y),
    "concatenation": lambda x, y: jnp.concatenate([x, y]),
    "stack": lambda x, y: jnp.stack([y, x]),
    "update": lambda x, y: x.at[0].set(y[1]),
    "sum of entries": lambda x, y: x.at[jnp.array([0, 0])].add(y),
    "slice": lambda x, y: lax.dynamic_update_slice(x, y[:1], (1,)),
    "loop": lambda x, y: lax.scan(lambda c, z: (c + z, c), x[0], y),
    "mapped": lambda x, y: jax.vmap(lambda a, b: a + 2 * b)(x, y),
    "angle": lambda x, y: jnp.arctan2(x, y),
    "slope": lambda x, y: jax.grad(lambda a: jnp.sum((a + y) ** 2))(x),
}


def in_metres(tree):
    """The numbers of quantities in powers of metres, and other numbers."""
    return jax.tree.map(
        lambda x: x.to_base().array if isinstance(x, Unitful) else x,
        tree,
        is_leaf=lambda x: isinstance(x, Unitful),
    )


def test_programs_on_units_of_one_kind_give_what_they_give_in_metres():
    everything = lambda x, y: {name: fn(x, y) for name, fn in PROGRAMS.items()}
    converting = jaxrewrite.transform(everything, rules=values.converting_units)
    assert converting(KM, M)["sum"].units == Units("km")
    assert converting(M, KM)["sum"].units == Units("m")
    assert_same(in_metres(jax.jit(converting)(KM, M)), everything(*IN_METRES), 1e-5)
    assert_same(in_metres(jax.jit(converting)(M, KM)), everything(*IN_METRES[::-1]), 1e-5)


def test_derivatives_from_outside_are_of_the_numbers_in_their_own_units():
    total = lambda x, y: jnp.sum((x + y) ** 2)
    converting = jaxrewrite.transform(total, rules=values.converting_units)
    slope = jax.grad(lambda x, y: converting(x, y).array, argnums=1)(KM, M)
    assert_same(slope.array, 2 * (KM.array + M.array / 1000) / 1000, 1e-5)


def test_what_is_around_and_inside_of_units_stays():
    total = jaxrewrite.transform(
        jnp.add, rules=values.converting_units, materialise="forbid"
    )
    got = total(Unitful(Diagonal(jnp.ones(2)), "km"), Unitful(Diagonal(jnp.ones(2)), "m"))
    assert isinstance(got.array, Diagonal)
    assert_same(got.array.diagonal(), np.full(2, 1.001, np.float32), 1e-6)
    names = ("row",)
    named = total(Named(KM, names), Named(M, names))
    assert named.names == names
    assert_same(named.array.to("m").array, IN_METRES[0] + IN_METRES[1], 1e-5)


def test_units_of_other_kinds_and_none_are_refused_as_before():
    second = Unitful(jnp.ones(2), "s")
    for fn in (jnp.add, lambda x, y: jnp.stack([x, y])):
        for y in (second, jnp.ones(2)):
            with pytest.raises(UnitsError, match="equal units"):
                jaxrewrite.transform(fn, rules=values.converting_units)(KM, y)
    with pytest.raises(UnitsError, match=r"Convert one of them, by Unitful\.to"):
        jaxrewrite.transform(jnp.add)(KM, M)


@pytest.mark.parametrize(
    "fn",
    [
        *(lambda x, y: 1 + x / y, lambda x, y: x / y < 600, lambda x, y: x / y == 500),
        *(
            lambda x, y: jnp.concatenate([jnp.ones(2), x / y]),
            lambda x, y: jnp.hypot(x / y, 3),
        ),
        lambda x, y: jnp.interp(x, y, jnp.array([1.0, 2.0])),
    ],
)
def test_a_ratio_beside_a_number_is_a_number(fn):
    converting = jaxrewrite.transform(fn, rules=values.converting_units)
    assert_same(converting(KM, M), fn(*IN_METRES), 1e-6)
    with pytest.raises(UnitsError, match=r'numbers, which .*: x\.to\("1"\)\.'):
        jaxrewrite.transform(lambda x, y: 1 + x / y)(KM, M)


def test_integers_are_not_converted():
    whole, parts = Unitful(jnp.array([2, 3]), "km"), Unitful(jnp.array([500, 700]), "m")
    for fn in (jnp.add, lambda x, y: jnp.concatenate([x, y])):
        converting = jaxrewrite.transform(fn, rules=values.converting_units)
        with pytest.raises(
            UnitsError, match=r"km and m.*Convert one of them, by Unitful\.to"
        ):
            converting(whole, parts)
    work = jaxrewrite.transform(jnp.add, rules=values.converting_units)(
        Unitful(jnp.array([1, 2]), "N m"), Unitful(jnp.array([3, 4]), "J")
    )
    assert work.units == Units("N m") and work.array.tolist() == [4, 6]


def test_what_is_empty_or_no_number_and_a_branch_of_zeros_convert():
    converting = lambda fn: jaxrewrite.transform(fn, rules=values.converting_units)
    of = lambda x, units: Unitful(jnp.array(x, "float32"), units)
    assert converting(jnp.add)(of([], "km"), of([], "m")).shape == (0,)
    largest = converting(jnp.maximum)(of([jnp.nan, 1], "km"), of([1, jnp.inf], "m"))
    assert_same(largest.array, np.float32([np.nan, np.inf]))
    branch = lambda x, y: lax.cond(x[0] > y[0], lambda: x + y, lambda: jnp.zeros(2))
    assert_same(converting(branch)(KM, M).to("m").array, IN_METRES[0] + IN_METRES[1], 1e-5)
    mapped = jax.vmap(converting(jnp.add))(KM, M)
    assert_same(mapped.to("m").array, IN_METRES[0] + IN_METRES[1], 1e-5)


# --- NumPy and Matplotlib -------------------------------------------------------------------


def test_numpy_says_where_the_numbers_are():
    with pytest.raises(jaxrewrite.MaterialisationError, match=r"it has units, km.*\.array"):
        np.asarray(KM)


def test_numpy_gets_quantities_where_it_asks_for_objects():
    objects = np.asarray(values.Unitful(jnp.arange(4.0).reshape(2, 2), "m"), object)
    assert objects.shape == (2, 2) and objects.dtype == object
    assert (objects[1, 0].array, objects[1, 0].units) == (2.0, values.Units("m"))
    assert np.asarray(KM[0], object)[()].units == KM.units


@pytest.fixture
def axes():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    from matplotlib import pyplot, units

    registry = dict(units.registry)
    values.plot_units()
    figure, axes = pyplot.subplots()
    yield axes
    pyplot.close(figure)
    units.registry.clear()
    units.registry.update(registry)


def test_plots_have_units_at_their_axes_and_convert_what_comes_later(axes):
    hours = values.parse("[0, 1, 2] h")
    axes.plot(hours, values.parse("[0, 30, 50] km"))
    (line,) = axes.plot(hours.to("min"), values.parse("[0, 10000, 20000] m"))
    bars = axes.bar([hours[0], hours[1]], [KM[0], M[0]], width=hours[1])
    axes.figure.canvas.draw()
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("h", "km")
    assert_same(line.get_xydata(), np.array([[0, 0], [1, 10], [2, 20.0]]), 1e-6)
    assert_same([bar.get_height() for bar in bars], [2.0, 0.5], 1e-6)


def test_plain_numbers_among_quantities_have_the_units_of_the_axis(axes):
    points = axes.scatter([0, 1, 2], [KM[0], 3, M[0]])
    assert_same(points.get_offsets().data, np.array([[0, 2], [1, 3], [2, 0.5]]), 1e-6)


def test_bars_of_errors_are_converted_with_the_data(axes):
    axes.plot(values.parse("[0, 1] h"), values.parse("[0, 1] km"))
    data = values.parse("[0, 60] min"), values.parse("[1000, 2000] m")
    bars = axes.errorbar(*data, yerr=values.parse("500 m"), capsize=2)[2][0]
    assert_same(np.array(bars.get_segments()[1]), np.array([[1, 1.5], [1, 2.5]]), 1e-6)
    with pytest.raises(UnitsError, match="got m and km"):
        axes.errorbar(*data, yerr=values.parse("[1, 1] km"))


def test_plots_refuse_other_units(axes):
    axes.plot(values.parse("[0, 1] h"), values.parse("[0, 1] km"))
    with pytest.raises(Exception, match="Failed to convert") as error:
        axes.plot(values.parse("[0, 1] h"), values.parse("[0, 1] kg"))
    assert isinstance(error.value.__cause__, UnitsError)
    assert "kg can't be converted to km" in str(error.value.__cause__)


@pytest.mark.parametrize("fn", [jnp.minimum, jnp.maximum])
def test_derivatives_of_the_greater_of_converted_quantities(fn):
    """They ask which of the two the result is, in whatever units it was rounded."""
    x = Unitful(jnp.array([1.0, 2.0, 7.0]), "km")
    y = Unitful(jnp.array([1500.0, 1700.0, 3100.0]), "m")
    slopes = jax.grad(lambda x, y: fn(x, y).sum(), (0, 1))
    found = jaxrewrite.transform(slopes, rules=values.converting_units)(x, y)
    is_first = fn(x.array, y.array / 1000) == x.array
    np.testing.assert_array_equal(found[0], is_first)
    np.testing.assert_array_equal(found[1], ~is_first)

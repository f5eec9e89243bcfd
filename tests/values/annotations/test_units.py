"""Units convert by a table, or by the packages that know them."""

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxrewrite
from jaxrewrite.values import Diagonal, Unitful, Units, UnitsError, register_unit
from jaxrewrite.values._annotations import units as table


pytestmark = pytest.mark.usefixtures("own_table")


# From the definitions of the units.
FACTORS = [
    ("km", "m", 1000.0),
    ("mm", "km", 1e-6),
    ("km/h", "m/s", 1 / 3.6),
    ("kWh", "MJ", 3.6),
    ("g cm^-3", "kg/m^3", 1000.0),
    ("N m", "J", 1.0),
    ("hPa", "bar", 1e-3),
    ("m^(1/2)", "cm^(1/2)", 10.0),
    ("deg/s", "rad/min", np.pi / 3),
    ("USD/kg", "USD/g", 1e-3),
    ("L", "m^3", 1e-3),
    ("eV", "J", 1.602176634e-19),
    ("mi", "ft", 5280.0),
]


def test_conversions():
    for old, new, factor in FACTORS:
        there = Unitful(jnp.float32(3), old).to(new)
        assert there.units == Units(new)
        np.testing.assert_allclose(there.array, 3 * factor, rtol=3e-7)
        np.testing.assert_allclose(there.to(old).array, 3, rtol=3e-7)
    assert Unitful(jnp.float32(90), "km/h").to("m/s").array == 25
    assert Unitful(jnp.float32(20), "degC").to("degC").array == 20


def test_what_may_be_converted():
    ints = Unitful(jnp.arange(3), "km")
    assert ints.to("km").array.dtype == jnp.arange(3).dtype
    np.testing.assert_array_equal(
        ints.to("m").array, np.float32([0, 1000, 2000]), strict=True
    )
    np.testing.assert_allclose(Unitful(jnp.arange(3), "m").to("km").array, [0, 1e-3, 2e-3])
    half = Unitful(jnp.ones(2, jnp.float16), "mi").to("km")
    assert half.array.dtype == jnp.float16
    np.testing.assert_allclose(Unitful(jnp.float16(0.001), "km").to("mm").array, 1000, 1e-3)
    np.testing.assert_allclose(Unitful(jnp.float16(6e4), "um").to("km").array, 6e-5, 1e-2)
    diagonal = Unitful(Diagonal(jnp.ones(2)), "km").to("m").array
    assert type(diagonal) is Diagonal
    square = jaxrewrite.transform(lambda x: (x * x).sum())
    area = lambda x: square(Unitful(x, "km").to("m")).array
    np.testing.assert_allclose(jax.jit(jax.grad(area))(jnp.ones(2)), [2e6, 2e6])
    mapped = jax.vmap(lambda v: v.to("m"))(Unitful(jnp.ones(2), "km"))
    assert mapped.units == Units("m") and mapped.array.shape == (2,)


def test_rules_do_not_convert():
    with pytest.raises(
        UnitsError, match=r"got km and m\. Convert one of them, by Unitful.to"
    ):
        Unitful(jnp.ones(2), "km") + Unitful(jnp.ones(2), "m")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("m", "s", "m can't be converted to s: they are m and s in base units"),
        ("USD", "EUR", "USD and EUR are no known units.*register_unit defines units"),
        ("degC", "K", "degC has an offset"),
        ("K", "degF", "degF has an offset"),
    ],
)
def test_what_does_not_convert(old, new, words):
    with pytest.raises(UnitsError, match=words):
        Unitful(jnp.ones(2), old).to(new)


def test_units_of_ones_own():
    register_unit("EUR", "USD", "1.08")
    register_unit("smoot", "m", 1.7018)
    register_unit("square", "smoot^2")
    np.testing.assert_allclose(Unitful(2.0, "EUR/day").to("USD/day").array, 2.16)
    np.testing.assert_allclose(Unitful(1.0, "square").to("cm^2").array, 170.18**2)
    register_unit("EUR", "USD", 2)
    assert Unitful(2.0, "EUR").to("USD").array == 4.0


@pytest.mark.parametrize(
    ("name", "units", "factor", "words"),
    [
        ("two words", "m", 1, "is not the name of a unit"),
        ("m2^2", "m", 1, "is not the name of a unit"),
        ("none", "m", 0, "not positive"),
        ("less", "m", -1.0, "not positive"),
        ("nan", "m", float("nan"), "not positive"),
        ("m", "km", 1, "defined by itself, as km"),
        ("same", "same", 1, "defined by itself"),
    ],
)
def test_units_that_can_not_be_defined(name, units, factor, words):
    with pytest.raises(ValueError, match=words):
        register_unit(name, units, factor)


@pytest.mark.parametrize("units", [None, 1, Unitful(1.0, "km")])
def test_what_is_no_units(units):
    message = f"mapping of names.*; got a {type(units).__name__}"
    for call in (Units, Unitful(jnp.ones(2), "m").to, lambda u: register_unit("n", u)):
        with pytest.raises(TypeError, match=message):
            call(units)


def made(package):
    """The units of a package: kilometres, hours, metres and seconds."""
    if package == "pint":
        registry = pytest.importorskip("pint").UnitRegistry()
        return registry, registry.km, registry.hour, registry.m, registry.s
    pytest.importorskip("astropy")
    units = importlib.import_module("astropy.units")
    return units, units.km, units.h, units.m, units.s


@pytest.mark.parametrize("package", ["pint", "astropy"])
def test_units_of_other_packages(package):
    units, km, hour, m, s = made(package)
    assert Units(km / hour**2) == Units("km/h^2")
    assert Units(m**0.5) == Units("m^(1/2)")
    speed = Unitful(jnp.array([36.0, 90.0]), km / hour).to(m / s)
    np.testing.assert_allclose(speed.array, [10, 25], rtol=1e-6)
    assert speed.units == Units("m/s")
    np.testing.assert_allclose(  # Our table does not know it.
        Unitful(1.0, "parsec" if package == "pint" else "pc").to(km).array,
        3.0857e13,
        rtol=1e-4,
    )
    for old in ("kg", "nothing_like_it"):
        with pytest.raises(UnitsError, match=f"{old} can't be converted"):
            Unitful(1.0, old).to(m)


# Each unit of the SI with a name of its own, in the base units.
SI = {
    **{"m": "m", "g": "g", "s": "s", "A": "A", "K": "K", "mol": "mol", "cd": "cd"},
    **{"Hz": "1/s", "N": "kg m s^-2", "Pa": "kg m^-1 s^-2", "J": "kg m^2 s^-2"},
    **{"W": "kg m^2 s^-3", "C": "A s", "V": "kg m^2 s^-3 A^-1", "F": "A^2 s^4 kg^-1 m^-2"},
    **{"ohm": "kg m^2 s^-3 A^-2", "S": "kg^-1 m^-2 s^3 A^2", "Wb": "kg m^2 s^-2 A^-1"},
    **{"tesla": "kg s^-2 A^-1", "H": "kg m^2 s^-2 A^-2", "rad": "1", "sr": "1", "lm": "cd"},
    **{"lx": "cd m^-2", "Bq": "1/s", "Gy": "m^2 s^-2", "Sv": "m^2 s^-2", "kat": "mol/s"},
}
PREFIXES = {
    **{"n": 1e-9, "u": 1e-6, "m": 1e-3, "c": 1e-2, "d": 0.1, "": 1, "da": 10, "h": 100},
    **{"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18},
    **{"p": 1e-12, "f": 1e-15, "a": 1e-18},
}


@pytest.mark.parametrize("unit", SI)
def test_all_units_of_the_si_are_known_with_prefixes(unit):
    for prefix, factor in PREFIXES.items():
        if prefix + unit == "pH":  # It is the acidity.
            continue
        got = Unitful(np.float64(1), prefix + unit).to(SI[unit])
        np.testing.assert_allclose(got.array, factor, 1e-6, err_msg=prefix + unit)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "complex64"])
@pytest.mark.parametrize("of", ["float16", "bfloat16", "float32"])
def test_the_largest_number_of_a_dtype_has_no_units_in_that_alone(dtype, of):
    """In a wider dtype it is a number like any other."""
    x = Unitful(jnp.array([-1.0, 2.0], dtype), "m")
    largest = jnp.finfo(of).max
    fill = jaxrewrite.transform(lambda x: jnp.where(x.real > 0 * x.real, x, largest))
    if jnp.finfo(jnp.result_type(x.dtype, of)).max == largest:
        assert fill(x).units == x.units
    else:
        with pytest.raises(UnitsError, match="select_n needs operands of equal units"):
            fill(x)


RUNNING = {
    "scan": lambda first, cast, x: lax.scan(
        lambda m, t: (jnp.maximum(m, cast(t)), None), first, x
    )[0],
    "call of a scan": lambda first, cast, x: jax.jit(
        lambda first, x: lax.scan(lambda m, t: (jnp.maximum(m, cast(t)), None), first, x)[0]
    )(first, x),
    "call": lambda first, cast, x: jax.jit(
        lambda first, x: jnp.maximum(first, cast(x).max())
    )(first, x),
    "branch": lambda first, cast, x: lax.cond(
        x[0] > x[1], lambda: first, lambda: cast(x[3])
    ),
}


@pytest.mark.parametrize(("of", "to"), [("bfloat16", "float32"), ("float32", "bfloat16")])
@pytest.mark.parametrize("run", RUNNING.values(), ids=RUNNING)
def test_a_running_maximum_begins_at_the_least_number_of_its_dtype(run, of, to):
    """Which may be wider than the quantities, or narrower."""
    x = Unitful(jnp.arange(4.0).astype(of), "m")

    @jaxrewrite.transform
    def program(x):
        return run(jnp.array(jnp.finfo(to).min, to), lambda t: t.astype(to), x)

    found = program(x)
    assert found.units == x.units and found.dtype == to and found.array == 3


def test_a_lookup_of_keys_beside_quantities():
    """The number that a lookup fills in is none of the dtype of keys."""
    keys = jax.random.split(jax.random.key(0), 3)
    draw = lambda x, keys, i: x * jax.random.normal(jnp.take(keys, i, axis=0))
    x, i = Unitful(jnp.ones(2), "m"), jnp.array(1)
    found = jaxrewrite.transform(draw)(x, keys, i)
    assert found.units == x.units
    np.testing.assert_array_equal(found.array, draw(x.array, keys, i))


def test_units_of_chemistry_are_known():
    energy = Unitful(jnp.float32(1), "Da") * Unitful(jnp.float32(1), "nm/ps") ** 2
    np.testing.assert_allclose(energy.to("meV").array, 10.364269, rtol=1e-6)
    for old, new, factor in (
        *(("Torr", "mmHg", 0.999999857), ("kcal", "erg", 4.184e10), ("dyn", "uN", 10)),
        *(("bohr", "angstrom", 0.529177211), ("hartree", "eV", 27.2113862), ("kDa", "amu", 1e3)),
        *(("Myr", "day", 365.25e6), ("u", "kg", 1.66053906892e-27), ("pF", "F", 1e-12)),
    ):  # fmt: skip
        got = Unitful(np.float64(1), old).to(new).array
        np.testing.assert_allclose(got, factor, rtol=1e-6, err_msg=old)


def test_no_prefix_makes_a_name_that_is_another():
    """Each name with a prefix is one that no other prefix or unit makes."""
    prefixed = [
        p + u for p in table._PREFIXES for u in {*table._WITH_PREFIXES, *table._OF_THE_SI}
    ]
    others = {*table._OTHERS, *table._OF_THE_SI, *table._BASE_OF_THE_SI}
    others |= {*table._WITH_OFFSET, *table._LOGARITHMIC}
    left = [name for name in prefixed if name not in table._NOT_PREFIXED]
    assert len({*left}) == len(left) and others.isdisjoint(left)


def test_errors_name_the_units_that_no_table_has():
    x = Unitful(jnp.ones(2), "banana m")
    with pytest.raises(
        UnitsError, match=r"can't be converted to apple\. apple is no known unit"
    ):
        x.to_base("apple")
    assert x.to_base("cm", "banana").units == Units("banana cm")
    for other in ("apple m", "kg"):
        with pytest.raises(
            UnitsError, match="banana( and apple are no known units| is no known unit)"
        ):
            x + Unitful(jnp.ones(2), other)
    with pytest.raises(UnitsError) as error:
        Unitful(jnp.ones(2), "m") + Unitful(jnp.ones(2), "s")
    assert "known" not in str(error.value)


@pytest.mark.parametrize("package", ["pint", "astropy"])
def test_units_of_other_packages_have_the_names_of_these_tables(package):
    if package == "pint":
        registry = pytest.importorskip("pint", reason="it has units of Pint").UnitRegistry()
        names = ["day", "year", "inch", "liter", "ohm", "tesla", "micrometer", "millitesla"]
        theirs = [registry(name).units for name in names]
    else:
        pytest.importorskip("astropy", reason="it has units of Astropy")
        import astropy.units as u

        theirs = [u.day, u.yr, u.m, u.L, u.Ohm, u.T, u.um, u.mT]
    ours = ["day", "yr", "inch", "L", "ohm", "tesla", "um", "mtesla"]
    for their, our in zip(theirs, ours, strict=True):
        if our != "inch" or package == "pint":
            assert Units(their) == Units(our)

"""Units of measurement: their names, and how they convert."""

from __future__ import annotations

import functools
import math
import operator
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any


class UnitsError(ValueError):
    """Operands have units that do not agree, or units where none are allowed."""

    __module__ = "jaxrewrite.values"


_BEGIN = re.compile(r"\s*(?P<times>[*·/]?)\s*(?P<name>\w+|\()")
_POWER = re.compile(
    r"(?:\s*(?:\*\*|\^)\s*"
    r"(?P<open>\()?(?P<exponent>[-+]?[0-9]+(?:/0*[1-9][0-9]*|\.[0-9]+)?)(?(open)\)))?"
    r"(?=[\s*·/)]|$)"
)


class Units:
    """A product of powers of base units: immutable, hashable, without a scale.

    Parameters
    ----------
    units
        A string such as ``"m s^-2"``, ``"kg*m/s^2"``, ``"W/(m K)"``, ``"m^(1/2)"`` or
        ``"1/s"``, where ``/`` divides by the next factor only; or a mapping from names of base units to
        exponents; or other units, also of Pint or Astropy. A name is any word that does not
        end in digits after a letter: ``m2`` and ``m²`` are refused, because ``m^2`` is meant.
        Rules compare names alone, so ``m`` and ``km`` are different units to them: see
        `Unitful.to`.

    Raises
    ------
    ValueError
        If a string cannot be read, or a name is not a word.
    TypeError
        If ``units`` is none of these.

    Examples
    --------
    >>> from jaxrewrite.values import Units
    >>> newton = Units("kg*m/s^2")
    >>> newton, newton / Units("kg"), newton ** 0.5, newton / newton
    (Units('kg m s^-2'), Units('m s^-2'), Units('kg^(1/2) m^(1/2) s^-1'), Units('1'))
    >>> Units("km/h")
    Units('km h^-1')
    """

    __slots__ = ("exponents",)

    exponents: tuple[tuple[str, Fraction], ...]

    def __init__(self, units: Any = "") -> None:
        package = type(units).__module__.partition(".")[0]
        if package in _FOREIGN:
            units = _FOREIGN[package](units)
        if isinstance(units, Units):
            exponents = dict(units.exponents)
        elif isinstance(units, str):
            exponents = _parse(units)
        elif isinstance(units, Mapping):
            exponents = {_word(name): Fraction(e) for name, e in units.items()}
        else:
            raise TypeError(
                "Units are a string such as 'm s^-2', a mapping of names to exponents, Units, or "
                f"those of Pint or Astropy; got a {type(units).__name__}."
            )
        sorted_ = tuple(sorted((n, e) for n, e in exponents.items() if e))
        object.__setattr__(self, "exponents", sorted_)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("Units can't be changed.")

    def __reduce__(self) -> Any:
        return type(self), (dict(self.exponents),)

    def __mul__(self, other: Units) -> Units:
        exponents = dict(self.exponents)
        for name, exponent in other.exponents:
            exponents[name] = exponents.get(name, Fraction(0)) + exponent
        return type(self)(exponents)

    def __truediv__(self, other: Units) -> Units:
        return self * other**-1

    def __pow__(self, power: Any) -> Units:
        power = Fraction(power)
        return type(self)({name: exponent * power for name, exponent in self.exponents})

    @property
    def fixed(self) -> Units:
        """The same units; in a rule, those that numbers of any units get at the end."""
        return self

    def __bool__(self) -> bool:
        """Whether there are any units."""
        return bool(self.exponents)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.exponents == other.exponents

    def __hash__(self) -> int:
        return hash((type(self), self.exponents))

    def __str__(self) -> str:
        ordered = sorted(self.exponents, key=lambda factor: factor[1] < 0)
        return " ".join(_power(*factor) for factor in ordered) or "1"

    def __repr__(self) -> str:
        return f"Units({str(self)!r})"


class FreeUnits(Units):
    """Units that numbers may change: those of numbers that are zero, infinite or NaN.

    Products, powers and sums of such numbers are such numbers again. So free units stay free
    in a product, and give way to other units in a sum. They exist only inside of programs.
    ``exponents`` are those of the units that the numbers get if nothing tells them.
    """

    __slots__ = ()

    @property
    def fixed(self) -> Units:
        return Units(dict(self.exponents))

    # Units times free units are free.
    __rmul__ = Units.__mul__

    def __pow__(self, power: Any) -> Units:
        # All numbers to the power of zero are one, which has no units.
        return super().__pow__(power) if power else Units()

    def __str__(self) -> str:
        return f"any ({super().__str__()})"


def _parse(text: str) -> dict[str, Fraction]:
    text = text.rstrip()
    exponents, end = _product(text, 0)
    if end < len(text):
        raise _unreadable(text, end)
    return exponents


def _product(text: str, start: int) -> tuple[dict[str, Fraction], int]:
    """The exponents in a product, and where it ends: with the text, or before a bracket."""
    exponents: dict[str, Fraction] = {}
    end = start
    while rest := text[end:].lstrip():
        if rest[0] == ")":
            break
        begin = _BEGIN.match(text, end)
        if begin is None or (begin["times"] in ("*", "·") and not text[start:end].strip()):
            raise _unreadable(text, end)
        factor, after = _factor(text, begin)
        power = _POWER.match(text, after)
        if factor is None or power is None:
            raise _unreadable(text, end)
        exponent = Fraction(power["exponent"] or 1)
        for name, inner in factor.items():
            all_of_it = -inner * exponent if begin["times"] == "/" else inner * exponent
            exponents[name] = exponents.get(name, Fraction(0)) + all_of_it
        end = power.end()
    return exponents, end


def _factor(text: str, begin: re.Match[str]) -> tuple[dict[str, Fraction] | None, int]:
    """The exponents in a unit, in 1 or in brackets, and where it ends."""
    name, end = begin["name"], begin.end()
    if name == "(":
        exponents, inner = _product(text, end)
        is_closed = text[inner:].lstrip().startswith(")") and text[end:inner].strip()
        return exponents if is_closed else None, text.find(")", inner) + 1
    if name == "1":
        return {}, end
    return {name: Fraction(1)} if _is_name(name) else None, end


def _unreadable(text: str, end: int) -> ValueError:
    at = len(text) - len(text[end:].lstrip())
    return ValueError(
        f"Units: can't read {text[at:]!r} in {text!r}, at position {at}. Write units like "
        "'kg m^2 s^-1', 'm/s', 'W/(m K)' or 'm^(1/2)'."
    )


def _is_name(name: Any) -> bool:
    """Whether it is a word, and does not end in a number: some write m2 for m^2."""
    is_word = isinstance(name, str) and name.isidentifier()
    return is_word and not re.search(r"[^\W\d_]\d+$", name)


def _word(name: Any) -> str:
    if not _is_name(name):
        raise ValueError(
            f"Units: {name!r} is not the name of a unit, a word like 'm' or 'degree_Celsius'."
        )
    return str(name)


def _power(name: str, exponent: Fraction) -> str:
    if exponent == 1:
        return name
    if exponent.denominator == 1:
        return f"{name}^{exponent}"
    return f"{name}^({exponent})"


# --- conversion ---------------------------------------------------------------------------

# A unit as a number of other units. Names that are not here are base units of their own kind.
_TABLE: dict[str, tuple[Fraction | float, Units]] = {}

# Temperatures in them are no multiples of a kelvin: a kelvin is so many degrees, and they begin there.
_CELSIUS, _FAHRENHEIT = (
    (Fraction(1), Fraction("273.15")),
    (Fraction(5, 9), Fraction("459.67")),
)
_WITH_OFFSET = {
    **dict.fromkeys(("degC", "celsius", "degree_Celsius"), _CELSIUS),
    **dict.fromkeys(("degF", "fahrenheit", "degree_Fahrenheit"), _FAHRENHEIT),
}

# How to write the numbers on the scale of what is in kelvins.
_BACK = {
    _CELSIUS: "x.to('K').array - 273.15",
    _FAHRENHEIT: "x.to('K').array * 1.8 - 459.67",
}

# Logarithms of ratios, and how to write the numbers that they are of.
_LOGARITHMIC = {
    **{"dB": "10 ** (x / 10)", "dBm": "10 ** (x / 10)", "dBW": "10 ** (x / 10)"},
    **{"Np": "jnp.exp(x)", "dex": "10 ** x", "pH": "10 ** -x", "mag": "10 ** (-x / 2.5)"},
}


def register_unit(name: str, units: Any, factor: Any = 1) -> None:
    """Define a unit as a number of other units, for `Unitful.to`.

    Parameters
    ----------
    name
        The name of the unit, one word.
    units
        The units that define it: anything that `Units` takes.
    factor
        How many of these units it is: a positive number, or a string such as ``"1/3"``.

    Raises
    ------
    ValueError
        If the name is not one word, the factor is not a positive number, or the unit would
        be defined by itself.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from jaxrewrite.values import Unitful, register_unit
    >>> register_unit("furlong", "yd", 220)
    >>> Unitful(jnp.float32(2), "furlong").to("m").array
    Array(402.336, dtype=float32)
    """
    _define_known()
    _define(name, units, factor)


def _define(name: str, units: Any, factor: Any) -> None:
    if not _is_name(name):
        raise ValueError(f"register_unit: {name!r} is not the name of a unit, one word.")
    exact = factor if isinstance(factor, float) else Fraction(factor)
    if isinstance(exact, float) and exact.is_integer():
        exact = Fraction(exact)
    if not 0 < exact < float("inf"):
        raise ValueError(f"register_unit: the factor of {name} is {factor}, not positive.")
    definition = Units(units)
    if name in _names_within(definition):
        raise ValueError(
            f"register_unit: {name} would be defined by itself, as {definition}."
        )
    _TABLE[name] = exact, definition


def _names_within(units: Units) -> set[str]:
    """The names that define units, at any depth."""
    names: set[str] = set()
    for name, _ in units.exponents:
        names |= {name, *(_names_within(_TABLE[name][1]) if name in _TABLE else ())}
    return names


def _base_units(units: Units) -> tuple[Fraction | float, Units]:
    """Units as a number of base units."""
    _define_known()
    factor: Any = Fraction(1)
    base = Units()
    for name, exponent in units.exponents:
        _check_is_linear(name)
        number, definition = _TABLE.get(name, (Fraction(1), None))
        inner: Any = Fraction(1)
        if definition is None:
            definition = Units({name: 1})
        else:
            inner, definition = _base_units(definition)
        factor = factor * _raised(number * inner, exponent)
        base = base * definition**exponent
    return factor, base


def unknown_names(*units: Units) -> list[str]:
    """The names in units that are base units of their own kind, because no table has them."""
    _define_known()
    known = {*_TABLE, *_BASE_OF_THE_SI, *_WITH_OFFSET, *_LOGARITHMIC}
    names = dict.fromkeys(name for of in units for name, _ in of.exponents)
    return [name for name in names if name not in known]


def about_unknown(names: Iterable[str]) -> str:
    """What to say in an error of names that no table has; nothing where there are none."""
    unknown = list(names)
    if not unknown:
        return ""
    are = "is no known unit" if len(unknown) == 1 else "are no known units"
    return (
        f" {' and '.join(unknown)} {are}, and of a kind of {'its' if len(unknown) == 1 else 'their'} "
        "own. jaxrewrite.values.register_unit defines units."
    )


def check_sum(units: Units) -> None:
    """Raise `UnitsError` for units in which two numbers have no sum and no difference.

    The sum of two points on a scale is none, and their difference is no point.
    """
    if len(units.exponents) == 1 and units.exponents[0][1] == 1:
        _check_is_linear(units.exponents[0][0])


def _check_is_linear(name: str) -> None:
    """Raise `UnitsError` for units of which two are not twice as much as one."""
    if name in _TABLE:
        return
    if name in _WITH_OFFSET:
        raise UnitsError(
            f"{name} has an offset, so a temperature in {name} is no multiple of a kelvin. "
            f"Write a point on the scale in K, as jaxrewrite.values.parse('20 {name}') does, and a "
            f"difference in delta_degC or delta_degF. The numbers in {name} are "
            f"{_BACK[_WITH_OFFSET[name]]}."
        )
    if name in _LOGARITHMIC:
        raise UnitsError(
            f"{name} is the logarithm of a ratio, and not a unit that numbers are multiples of. "
            f"Convert the numbers first, by {_LOGARITHMIC[name]}."
        )


def in_kelvin(numbers: Any, units: Units) -> tuple[Any, Units]:
    """Numbers and units, in kelvins if they are points on the scale of a thermometer."""
    _define_known()
    if str(units) in _WITH_OFFSET and str(units) not in _TABLE:
        degree, offset = _WITH_OFFSET[str(units)]
        return (numbers + float(offset)) * float(degree), Units("K")
    for name, _ in units.exponents:
        _check_is_linear(name)
    return numbers, units


def in_terms_of(units: Units, basis: Sequence[Any]) -> Units:
    """Units of the same kind, as powers of some units, each of a base unit of its own."""
    powers: dict[str, Units] = {}
    _, kind = _base_units(units)
    wanted = list(map(Units, basis))
    for unit in wanted:
        exponents = _base_units(unit)[1].exponents
        if len(exponents) != 1 or exponents[0][1] != 1:
            raise UnitsError(
                f"{unit} is {_base_units(unit)[1]} in base units, and stands for none of them."
            )
        powers[exponents[0][0]] = unit
    own = {name for name, _ in kind.exponents}
    unknown = [name for name in unknown_names(*wanted) if name not in own]
    if unknown and not own <= powers.keys():  # One may be meant for what is left.
        shown = ", ".join(map(str, wanted))
        raise UnitsError(f"{units} can't be converted to {shown}.{about_unknown(unknown)}")
    factors = (powers.get(name, Units({name: 1})) ** e for name, e in kind.exponents)
    return functools.reduce(operator.mul, factors, Units())


def _raised(number: Any, exponent: Fraction) -> Any:
    """A power, as a fraction where it is exact."""
    if exponent.denominator == 1:
        return number ** int(exponent)
    return float(number) ** float(exponent)


def conversion(old: Units, new: Units, asked: Any) -> tuple[Any, Any]:
    """By what numbers in ``old`` units are to be multiplied, and then divided.

    ``asked`` is what the user wrote for the new units: a unit of another package knows more.
    """
    if old == new:
        return 1, 1
    package = type(asked).__module__.partition(".")[0]
    if package in _FACTORS:
        return _FACTORS[package](old, asked), 1
    factor, kind = _base_units(old)
    other, other_kind = _base_units(new)
    if kind != other_kind:
        raise UnitsError(
            f"{old} can't be converted to {new}: they are {kind} and {other_kind} in base "
            f"units.{about_unknown(unknown_names(old, new))}"
        )
    ratio = factor / other
    # Two small numbers, as in 5 / 18 for km/h, are exact in every dtype.
    if isinstance(ratio, Fraction):
        times, over = ratio.as_integer_ratio()
        if min(times, over) == 1 or max(times, over) < 1000:
            return times, over
    return float(ratio), 1


def is_convertible(units: Any) -> bool:
    """Whether several units are of one kind."""
    try:
        return len({_base_units(x)[1] for x in units}) == 1
    except UnitsError:
        return False


# --- units of other packages --------------------------------------------------------------


def _name_here(name: str) -> str:
    """The name of a unit in these tables, for one of another package."""
    _define_known()
    name = name.replace("\u00b5", "u").replace("\u03bc", "u")  # Two signs for micro.
    for theirs, ours in _ALIASES.items():
        new = name.removesuffix(theirs) + ours
        if name not in _TABLE and name.endswith(theirs) and new in _TABLE:
            return new
    return _WHOLE_ALIASES.get(name, name)


# Symbols and names that other packages have for units that have other ones here.
_ALIASES = {
    **{"l": "L", "T": "tesla", "\u00c5": "angstrom", "Angstrom": "angstrom"},
    **{"\u03a9": "ohm", "\u2126": "ohm", "Ohm": "ohm"},
}
# Those that take no prefix: a hectare is no year.
_WHOLE_ALIASES = {"d": "day", "a": "yr", "in": "inch"}


def _from_pint(unit: Any) -> str:
    text = f"{unit:~C}".replace("°", "deg")
    return re.sub(r"[^\W\d_]\w*", lambda match: _name_here(match[0]), text)


def _from_astropy(unit: Any) -> dict[str, Any]:
    if unit.scale != 1:
        raise ValueError(
            f"Units: {unit} has a scale, {unit.scale}. Multiply the array by it."
        )
    pairs = zip(unit.bases, unit.powers, strict=True)
    return {_name_here(base.name): power for base, power in pairs}


def _factor_by_pint(old: Units, unit: Any) -> float:
    registry = unit._REGISTRY  # Units of two registries of Pint do not mix.
    try:
        quantity = registry.Quantity(1.0, str(old).replace(" ", "*").replace("^", "**"))
        zero = registry.Quantity(0.0, quantity.units).to(unit).magnitude
        factor = quantity.to(unit).magnitude
    except (AttributeError, TypeError, ValueError) as error:
        raise UnitsError(f"{old} can't be converted to {unit}: {error}") from error
    if zero:
        raise UnitsError(f"{old} and {unit} differ by an offset, {zero}.")
    return float(factor)


def _factor_by_astropy(old: Units, unit: Any) -> float:
    parse = sys.modules["astropy.units"].Unit
    try:
        factors = (parse(name) ** exponent for name, exponent in old.exponents)
        return float(functools.reduce(operator.mul, factors, parse("")).to(unit))
    except ValueError as error:  # Its UnitConversionError is one, too.
        raise UnitsError(f"{old} can't be converted to {unit}: {error}") from error


_FOREIGN = {"pint": _from_pint, "astropy": _from_astropy}
_FACTORS = {"pint": _factor_by_pint, "astropy": _factor_by_astropy}


# --- the units that are known -------------------------------------------------------------


_PREFIXES = {
    "a": -18,
    "f": -15,
    "p": -12,
    "n": -9,
    "u": -6,
    "m": -3,
    "c": -2,
    "d": -1,
    "da": 1,
    "h": 2,
    "k": 3,
    "M": 6,
    "G": 9,
    "T": 12,
    "P": 15,
    "E": 18,
}

_OF_THE_SI = {
    **{"Hz": "1/s", "N": "kg m/s^2", "Pa": "N/m^2", "J": "N m", "W": "J/s", "C": "A s"},
    **{"V": "W/A", "ohm": "V/A", "S": "A/V", "F": "C/V", "Wb": "V s", "H": "Wb/A"},
    **{"tesla": "Wb/m^2", "rad": "1", "sr": "1", "lm": "cd sr", "lx": "lm/m^2"},
    **{"Bq": "1/s", "Gy": "J/kg", "Sv": "J/kg", "kat": "mol/s"},
}

# Units of the SI that are no products of others.
_BASE_OF_THE_SI = ("kg", "m", "s", "A", "K", "mol", "cd")

# Some of these, the gram, and other units with prefixes.
_WITH_PREFIXES = (
    *("m", "g", "s", "A", "K", "mol", "cd", "L", "eV", "cal", "Wh", "bar"),
    *("Da", "yr"),
)

# The gram is defined by the kilogram, and pH is the acidity, not a picohenry.
_NOT_PREFIXED = ("kg", "pH")

# CODATA 2022, https://physics.nist.gov/cuu/Constants: the unified atomic mass unit, the Hartree
# energy and the Bohr radius are measured.
_DALTON, _HARTREE, _BOHR = "1.66053906892e-27", "4.3597447222060e-18", "5.29177210544e-11"

_OTHERS: dict[str, tuple[Any, str]] = {
    **{"g": ("1/1000", "kg"), "t": (1000, "kg"), "lb": ("0.45359237", "kg")},
    **{"min": (60, "s"), "h": (3600, "s"), "day": (86400, "s")},
    **{"inch": ("0.0254", "m"), "ft": ("0.3048", "m"), "yd": ("0.9144", "m")},
    **{"mi": ("1609.344", "m"), "L": ("1/1000", "m^3"), "bar": (100000, "Pa")},
    **{"eV": ("1.602176634e-19", "J"), "cal": ("4.184", "J"), "Wh": (3600, "J")},
    **{"atm": (101325, "Pa"), "deg": (math.pi / 180, "rad")},
    # A column of mercury by convention: 13.5951 g/cm^3 at standard gravity. The year is Julian.
    **{"mmHg": ("133.322387415", "Pa"), "Torr": ("101325/760", "Pa")},
    **{"yr": ("31557600", "s"), "angstrom": ("1e-10", "m")},
    **{"dyn": ("1e-5", "N"), "erg": ("1e-7", "J")},
    **{"Da": (_DALTON, "kg"), "u": (_DALTON, "kg"), "amu": (_DALTON, "kg")},
    **{"hartree": (_HARTREE, "J"), "bohr": (_BOHR, "m")},
    **{"delta_degC": (1, "K"), "delta_degF": ("5/9", "K")},
}


@functools.cache
def _define_known() -> None:
    """Fill the table, when it is first needed."""
    for name, units in _OF_THE_SI.items():
        _define(name, units, 1)
    for name, (factor, units) in _OTHERS.items():
        _define(name, units, factor)
    for prefix, power in _PREFIXES.items():
        for name in (*_WITH_PREFIXES, *_OF_THE_SI):
            if prefix + name not in (*_TABLE, *_NOT_PREFIXED):
                _define(prefix + name, name, Fraction(10) ** power)

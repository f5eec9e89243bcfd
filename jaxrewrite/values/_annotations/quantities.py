"""Quantities in daily use: from text, constants of nature, and sums that convert units."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

import jaxrewrite

from .._base.structured import inexact
from .declaration import SEVERAL
from .unitful import (
    EQUAL,
    NO_UNITS,
    Unitful,
    entries_of,
    needs_units,
    units_of,
    with_units,
)
from .units import FreeUnits, Units, in_kelvin, is_convertible


_QUANTITY = re.compile(
    r"\s*(?P<numbers>\[.*\]|[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)(?P<units>.*)",
    re.DOTALL,
)


def parse(text: str, dtype: Any = None) -> Any:
    """The quantity that a text tells, such as ``"3 km/h"``.

    Parameters
    ----------
    text
        A number, or numbers in brackets as Python has them, and units as `Units` takes them. A
        temperature such as ``"20 degC"`` is a point on its scale, and becomes kelvins; a
        difference of temperatures is in ``delta_degC`` or ``delta_degF``.
    dtype
        The dtype of the array; by default JAX's for floating-point numbers.

    Returns
    -------
    Unitful
        The numbers with their units; an array if there are no units.

    Raises
    ------
    ValueError
        If the text can't be read, or the dtype does not hold the numbers.
    UnitsError
        If a temperature with an offset is not alone, as in ``"3 J/degC"``, or the units are of a
        logarithm, such as dB.

    Examples
    --------
    >>> from jaxrewrite import values
    >>> values.parse("3 m/s"), values.parse("[1, 2.5] km"), values.parse("1e-3")
    (Unitful(3. m s^-1, dtype=float32), Unitful([1.  2.5] km, dtype=float32), Array(0.001, dtype=float32))
    >>> values.parse("20 degC").to("K").array
    Array(293.15, dtype=float32)
    """
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(f"parse: {text!r} is not a number with units, like '3 km/h'.")
    try:
        numbers = np.asarray(ast.literal_eval(match["numbers"].lstrip("+")), float)
    except (SyntaxError, TypeError, ValueError) as error:
        raise ValueError(f"parse: can't read the numbers of {text!r}: {error}") from error
    numbers, units = in_kelvin(numbers, Units(match["units"]))
    return with_units(units, _array("parse", text, numbers, dtype))


def _array(subject: str, name: str, numbers: Any, dtype: Any) -> Any:
    """The numbers as an array, which holds them: none becomes zero, infinite or another integer."""
    dtype = jax.dtypes.canonicalize_dtype(dtype or float)
    with np.errstate(all="ignore"):
        narrow = np.asarray(numbers).astype(dtype)
    held = (narrow == 0) == (np.asarray(numbers) == 0)
    held &= np.isfinite(narrow) if inexact(narrow) else narrow == numbers
    if not np.all(held):
        raise ValueError(
            f"{subject}: {dtype} does not hold the numbers of {name!r}. Give dtype=, with JAX's "
            "jax_enable_x64 for float64, or other units."
        )
    return jnp.asarray(narrow)


# Symbols of constants that have one meaning, and their names in CODATA.
_SYMBOLS = {
    "c": "speed of light in vacuum",
    "h": "Planck constant",
    "hbar": "reduced Planck constant",
    "G": "Newtonian constant of gravitation",
    "g": "standard acceleration of gravity",
    "e": "elementary charge",
    "k": "Boltzmann constant",
    "N_A": "Avogadro constant",
    "R": "molar gas constant",
    "sigma": "Stefan-Boltzmann constant",
    "epsilon_0": "vacuum electric permittivity",
    "mu_0": "vacuum mag. permeability",
    "alpha": "fine-structure constant",
    "m_e": "electron mass",
    "m_p": "proton mass",
    "m_n": "neutron mass",
}

# CODATA writes the tesla like the prefix for ten to the twelfth.
_TESLA = re.compile(r"\bT\b")


def constant(name: str, dtype: Any = None) -> Any:
    """A constant of nature with its units, by the values of CODATA that SciPy has.

    Parameters
    ----------
    name
        A name of `scipy.constants.physical_constants`, or one of the symbols ``c``, ``h``,
        ``hbar``, ``G``, ``g``, ``e``, ``k``, ``N_A``, ``R``, ``sigma``, ``epsilon_0``,
        ``mu_0``, ``alpha``, ``m_e``, ``m_p`` and ``m_n``.
    dtype
        The dtype; by default JAX's for floating-point numbers. Products of small constants, such
        as ``h**2``, are zero in float32.

    Returns
    -------
    Unitful
        The number with its units; an array if it has no units.

    Raises
    ------
    ValueError
        If there is no such constant, and the message has names that are alike; or the dtype
        does not hold the number.

    Examples
    --------
    >>> from jaxrewrite import values
    >>> values.constant("c")
    Unitful(2.9979246e+08 m s^-1, dtype=float32)
    >>> values.constant("electron mass energy equivalent in MeV").units
    Units('MeV')
    """
    from scipy import constants

    full = _SYMBOLS.get(name, name)
    if full not in constants.physical_constants:
        alike = constants.find(name) or sorted(_SYMBOLS)
        raise ValueError(
            f"constant: there is no {name!r}. Are you looking for {', '.join(map(repr, alike[:8]))}?"
        )
    number, units, _ = constants.physical_constants[full]
    return with_units(
        Units(_TESLA.sub("tesla", units)), _array("constant", name, number, dtype)
    )


# --- sums that convert units --------------------------------------------------------------

converting_units: jaxrewrite.Rules = jaxrewrite.Rules()
"""Rules by which quantities of one kind meet in other units: a sum of km and m is in km.

Without these rules such a sum is an error. With ``transform(fn, rules=converting_units)`` the
operands of sums, comparisons, maxima, choices and concatenations, and what updates entries of
an array, are converted to the units of the first operand that has some, and a ratio such as m/km
beside a number to a number. Integers are not, because
what they convert to may be none. Branches and turns of loops are not either: they return equal units.

Examples
--------
>>> import jax.numpy as jnp, jaxrewrite
>>> from jaxrewrite.values import Unitful, converting_units
>>> far, near = Unitful(jnp.array(2.0), "km"), Unitful(jnp.array(500.0), "m")
>>> jaxrewrite.transform(jnp.add, rules=converting_units)(far, near)
Unitful(2.5 km, dtype=float32)
>>> jaxrewrite.transform(lambda x, y: x < y, rules=converting_units)(far, near)
Array(False, dtype=bool)
"""


@converting_units.register(*sorted(EQUAL - {*SEVERAL}))
def _of_two(x: Unitful, y: Unitful, *, primitive: Any, **params: Any) -> Any:
    return _in_equal_units((x, y), primitive, params)


@converting_units.register(*sorted(EQUAL - {*SEVERAL}), exchange="types")
def _with_numbers(x: Unitful, y: ArrayLike, *, primitive: Any, **params: Any) -> Any:
    return _in_equal_units((x, y), primitive, params)


@converting_units.register(*sorted(EQUAL & {*SEVERAL}))
def _of_several(*operands: Unitful | ArrayLike, primitive: Any, **params: Any) -> Any:
    return _in_equal_units(operands, primitive, params)


def _in_equal_units(operands: Sequence[Any], primitive: Any, params: Any) -> Any:
    """The same of operands in the units of the first one, or as numbers beside numbers."""
    entries = entries_of(primitive, operands)
    units = [units_of(x) for x in entries if not isinstance(units_of(x), FreeUnits)]
    if len(set(units)) < 2 or not is_convertible(units):
        return NotImplemented  # The rules of the type tell what is wrong.
    has_numbers = NO_UNITS in units
    target = NO_UNITS if has_numbers else units[0]
    alike = [x.to(target) if needs_units(x) else x for x in operands]
    if any(
        needs_units(x) and x.dtype != y.dtype for x, y in zip(operands, alike, strict=True)
    ):
        return NotImplemented  # Integers do not convert to integers.
    result = jaxrewrite.bind(primitive, *alike, **params)
    if primitive.name not in _EITHER_WAY or has_numbers:
        return result
    # Which of two is the larger one, say, is asked in derivatives: the answer is in the units of
    # the first, and converted back it may differ by rounding.
    back = [x.to(units[1]) if needs_units(x) else x for x in operands]
    other = jaxrewrite.bind(primitive, *back, **params)
    return jaxrewrite.bind(_EITHER_WAY[primitive.name], result, other)


# Whether two quantities are equal, by their numbers in the units of either.
_EITHER_WAY = {"eq": "or", "ne": "and"}


# --- plots --------------------------------------------------------------------------------


def plot_units() -> None:
    """Let Matplotlib draw `Unitful` arrays, with their units at the axes.

    An axis has the units of what is drawn first, and what comes later is converted to them. The
    errors of ``errorbar`` have the units of the data. Call it once, before the first plot.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import matplotlib.pyplot as plt
    >>> from jaxrewrite import values
    >>> values.plot_units()
    >>> figure, axes = plt.subplots()
    >>> time, distance = values.parse("[0, 1, 2] h"), values.parse("[0, 30, 50] km")
    >>> lines = axes.plot(time, distance)
    >>> axes.axhline(values.parse("20000 m")).get_ydata(orig=False)
    array([20., 20.])
    >>> axes.get_xlabel(), axes.get_ylabel()
    ('h', 'km')
    >>> plt.close(figure)
    """
    from matplotlib import units

    class Converter(units.ConversionInterface):
        @staticmethod
        def default_units(x: Any, axis: Any) -> Units:
            return _first(x).units

        @staticmethod
        def axisinfo(unit: Units, axis: Any) -> units.AxisInfo:
            return units.AxisInfo(label=str(unit))

        @staticmethod
        def convert(value: Any, unit: Units, axis: Any) -> Any:
            if isinstance(value, Unitful):
                return np.asarray(value.to(unit).array)
            is_array = isinstance(value, np.ndarray)
            if isinstance(value, (list, tuple)) or (is_array and value.dtype.kind == "O"):
                return [Converter.convert(x, unit, axis) for x in value]
            return np.asarray(value, float)

    units.registry[Unitful] = Converter()


def _first(x: Any) -> Any:
    return x if isinstance(x, Unitful) else _first(next(iter(x)))

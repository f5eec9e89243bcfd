"""`Unitful`: arrays with units of measurement."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import jax.numpy as jnp

import jaxrewrite

from .._base.structured import Structured, inexact
from .declaration import MOVING, REDUCING, SCATTER, annotation_rule, like, mapped


class UnitsError(ValueError):
    """Operands have units that do not agree, or units where none are allowed."""


_FACTOR = re.compile(
    r"\s*(?P<times>[*·/]?)\s*(?P<name>[^\W\d]\w*|1)"
    r"(?:\s*(?:\*\*|\^)\s*(?P<open>\()?(?P<exponent>[-+]?\d+(?:/\d+)?)(?(open)\)))?"
)


class Units:
    """A product of powers of base units: immutable, hashable, without a scale.

    Parameters
    ----------
    units
        A string such as ``"m s^-2"``, ``"kg*m/s^2"``, ``"m^(1/2)"`` or ``"1/s"``, where
        ``/`` divides by the next factor only; or a mapping from names of base units to
        exponents; or other units. A name is any word: ``m`` is only a name, and has no
        relation to ``km``.

    Raises
    ------
    ValueError
        If a string cannot be read.

    Examples
    --------
    >>> from jaxrewrite.values import Units
    >>> newton = Units("kg*m/s^2")
    >>> newton, newton / Units("kg"), newton ** 0.5, newton / newton
    (Units('kg m s^-2'), Units('m s^-2'), Units('kg^(1/2) m^(1/2) s^-1'), Units('1'))
    """

    __slots__ = ("exponents",)

    exponents: tuple[tuple[str, Fraction], ...]

    def __init__(self, units: Units | str | Mapping[str, Any] = "") -> None:
        if isinstance(units, Units):
            exponents = dict(units.exponents)
        elif isinstance(units, str):
            exponents = _parse(units)
        else:
            exponents = {name: Fraction(exponent) for name, exponent in units.items()}
        sorted_ = tuple(sorted((n, e) for n, e in exponents.items() if e))
        object.__setattr__(self, "exponents", sorted_)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("Units can't be changed.")

    def __reduce__(self) -> Any:
        return Units, (dict(self.exponents),)

    def __mul__(self, other: Units) -> Units:
        exponents = dict(self.exponents)
        for name, exponent in other.exponents:
            exponents[name] = exponents.get(name, Fraction(0)) + exponent
        return Units(exponents)

    def __truediv__(self, other: Units) -> Units:
        return self * other**-1

    def __pow__(self, power: Any) -> Units:
        power = Fraction(power)
        return Units({name: exponent * power for name, exponent in self.exponents})

    def __bool__(self) -> bool:
        """Whether there are any units."""
        return bool(self.exponents)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Units) and self.exponents == other.exponents

    def __hash__(self) -> int:
        return hash(self.exponents)

    def __str__(self) -> str:
        return " ".join(_power(*factor) for factor in self.exponents) or "1"

    def __repr__(self) -> str:
        return f"Units({str(self)!r})"


def _parse(text: str) -> dict[str, Fraction]:
    exponents: dict[str, Fraction] = {}
    end, text = 0, text.rstrip()
    while end < len(text):
        factor = _FACTOR.match(text, end)
        if factor is None:
            raise ValueError(f"Units: can't read {text[end:]!r} in {text!r}.")
        end = factor.end()
        if factor["name"] != "1":
            exponent = Fraction(factor["exponent"] or 1)
            if factor["times"] == "/":
                exponent = -exponent
            exponents[factor["name"]] = (
                exponents.get(factor["name"], Fraction(0)) + exponent
            )
    return exponents


def _power(name: str, exponent: Fraction) -> str:
    if exponent == 1:
        return name
    if exponent.denominator == 1:
        return f"{name}^{exponent}"
    return f"{name}^({exponent})"


_NONE = Units()


class Unitful(Structured):
    r"""An array with units.

    Units are metadata. They are checked and computed while a program is staged, and cost
    nothing when it runs. With :math:`[x]` for the units of :math:`x`,

    .. math:: [xy] = [x][y], \quad [x / y] = [x] / [y], \quad [x^n] = [x]^n,
        \quad [\sqrt x] = [x]^{1/2}, \quad [\prod_{i=1}^n x_i] = [x]^n.

    Sums, comparisons, maxima, concatenations and choices need equal units. All other
    functions (``sin``, ``exp``, ``floor`` ...) need operands without units. A result without
    units is a plain array, and a plain array has no units. So the sum of a plain array and a
    value with units is an error, **even if the array is zero**: while a program is staged, a
    literal looks like any other number. That refuses

    * ``jnp.maximum(x, 0)`` and `jax.nn.relu`;
    * ``jnp.pad(x, 1)``, unless its ``constant_values`` have the units;
    * ``jnp.var`` and ``jnp.tril``, which choose between numbers and a plain NaN or zero;
    * ``x**0.5``; use ``jnp.sqrt``;
    * a scan with a carry that starts at ``jnp.zeros``; use ``0 * x``.

    The result of ``transform(jax.grad(f))(x)`` has the units of ``f(x)`` divided by those of
    ``x``. In ``jax.grad(transform(f))(x)`` JAX gives the derivative the metadata of the
    argument. Its numbers are right, but its true units are those of ``f(x) / x``.

    Parameters
    ----------
    array
        An array, or another value, of any shape and dtype.
    units
        Anything that `Units` takes.

    Attributes
    ----------
    array : Array
        The numbers, an array or another value.
    units : Units
        The units, as metadata.

    Raises
    ------
    UnitsError
        If a program mixes units, or makes a value with units dense; a `ValueError`.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, jaxrewrite
    >>> from jaxrewrite.values import Unitful
    >>> mass, velocity = Unitful(jnp.ones(3), "kg"), Unitful(jnp.ones((3, 2)), "m/s")
    >>> def energy(m, v):
    ...     return 0.5 * m @ (v**2).sum(axis=1)
    >>> jaxrewrite.transform(energy)(mass, velocity)
    Unitful<f32[], 4 B>(array=f32[], units=Units('kg m^2 s^-2'))
    >>> jaxrewrite.transform(jax.grad(energy, argnums=1))(mass, velocity).units
    Units('kg m s^-1')
    >>> mass + velocity[:, 0]
    Traceback (most recent call last):
    ...
    jaxrewrite.values._annotations.unitful.UnitsError: add needs operands of equal units; got kg and m s^-1.
    ...
    """

    outer = 30

    # An array that is itself a value meets other values as that value.
    rules_see_values = True

    array: Any
    units: Units = jaxrewrite.field(static=True)

    def __init__(self, array: Any, units: Units | str | Mapping[str, Any]):
        vars(self).update(array=array, units=Units(units))

    def aval(self) -> Any:
        """The aval of the array."""
        return like(self.array)

    def materialise(self) -> Any:
        """Return the array if it has no units; else raise `UnitsError`."""
        if self.units:
            raise UnitsError(f"it has units, {self.units}.")
        return self.array

    @staticmethod
    def default(primitive: Any, values: Sequence[Any], params: dict[str, Any]) -> Any:
        """Apply a function that needs operands without units."""
        if primitive.name in jaxrewrite.primitives.IDENTITY:
            return NotImplemented
        for value in values:
            if _units(value):
                raise UnitsError(
                    f"{primitive.name} needs operands without units; got {_units(value)}."
                )
        return jaxrewrite.bind(primitive, *map(_array, values), **params)

    def join(self, other: Any) -> Any:
        """Join with a value of the same units, or, without units, with an array."""
        _same_units("a conditional or a loop", (self, other))
        return self, Unitful(_array(other), self.units)

    def stacked(self, size: int) -> Any:
        return self

    def unstacked(self) -> Any:
        return self

    def tangent(self, leaf_tangents: Any) -> Any:
        """A tangent with the same units."""
        if not inexact(self.array):
            return NotImplemented
        return Unitful(leaf_tangents.array, self.units)

    def lift_tangent(self, tangent: Any) -> Any:
        _same_units("a custom derivative rule", (self, tangent))
        return Unitful(_array(tangent), self.units)


def _units(x: Any) -> Units:
    return x.units if isinstance(x, Unitful) else _NONE


def _array(x: Any) -> Any:
    return x.array if isinstance(x, Unitful) else x


def _with(units: Units, array: Any) -> Any:
    return Unitful(array, units) if units else array


def _same_units(what: str, operands: Sequence[Any]) -> Units:
    units = list(dict.fromkeys(map(_units, operands)))
    if len(units) > 1:
        raise UnitsError(
            f"{what} needs operands of equal units; got {' and '.join(map(str, units))}."
        )
    return units[0]


def _bind(primitive: Any, operands: Sequence[Any], units: Units, params: Any) -> Any:
    """Apply a primitive to the numbers, and give the results these units."""
    results = jaxrewrite.bind(primitive, *map(_array, operands), **params)
    return mapped(functools.partial(_with, units), primitive, results)


@annotation_rule(
    Unitful,
    *jaxrewrite.primitives.LINEAR_UNARY,
    *MOVING,
    *REDUCING,
    *("abs", "reduce_precision", "cumsum", "cummax", "cummin", "fft"),
    *("reduce_window_sum", "reduce_window_max", "reduce_window_min"),
)
def _keep(x: Unitful, *, primitive: Any, **params: Any) -> Any:
    return _bind(primitive, [x], x.units, params)


@annotation_rule(Unitful, "dynamic_slice", "gather")
def _index(x: Unitful, *indices: Any, primitive: Any, **params: Any) -> Any:
    return _bind(primitive, [x, *indices], x.units, params)


@annotation_rule(
    Unitful,
    *("add", "add_any", "sub", "max", "min", "rem", "nextafter", "complex"),
    *("clamp", "concatenate", "pad", "stack"),
)
def _same(*operands: Any, primitive: Any, **params: Any) -> Any:
    units = _same_units(primitive.name, operands)
    return _bind(primitive, operands, units, params)


@annotation_rule(Unitful, *jaxrewrite.primitives.COMPARISON, "atan2")
def _compare(x: Any, y: Any, *, primitive: Any, **params: Any) -> Any:
    _same_units(primitive.name, (x, y))
    return _bind(primitive, (x, y), _NONE, params)


@annotation_rule(Unitful, "argmax", "argmin", "is_finite", "sign")
def _drop(x: Unitful, *, primitive: Any, **params: Any) -> Any:
    return _bind(primitive, [x], _NONE, params)


@annotation_rule(Unitful, "convert_element_type")
def _convert(x: Unitful, *, primitive: Any, new_dtype: Any, **params: Any) -> Any:
    units = _NONE if jnp.issubdtype(new_dtype, jnp.bool_) else x.units
    return _bind(primitive, [x], units, {"new_dtype": new_dtype, **params})


@annotation_rule(Unitful, "mul", "dot_general", "conv_general_dilated")
def _multiply(x: Any, y: Any, *, primitive: Any, **params: Any) -> Any:
    return _bind(primitive, (x, y), _units(x) * _units(y), params)


@annotation_rule(Unitful, "div")
def _divide(x: Any, y: Any, *, primitive: Any, **params: Any) -> Any:
    return _bind(primitive, (x, y), _units(x) / _units(y), params)


_POWERS = {
    "square": Fraction(2),
    "sqrt": Fraction(1, 2),
    "cbrt": Fraction(1, 3),
    "rsqrt": Fraction(-1, 2),
}


@annotation_rule(Unitful, *_POWERS)
def _raise(x: Unitful, *, primitive: Any, **params: Any) -> Any:
    return _bind(primitive, [x], x.units ** _POWERS[primitive.name], params)


@annotation_rule(Unitful, "integer_pow")
def _integer_pow(x: Unitful, *, primitive: Any, y: int, **params: Any) -> Any:
    return _bind(primitive, [x], x.units**y, {"y": y, **params})


@annotation_rule(Unitful, "reduce_prod")
def _reduce_prod(x: Unitful, *, primitive: Any, axes: Any, **params: Any) -> Any:
    count = math.prod(x.shape[axis] for axis in axes)
    return _bind(primitive, [x], x.units**count, {"axes": axes, **params})


@annotation_rule(Unitful, "select_n")
def _select(which: Any, *cases: Any, primitive: Any, **params: Any) -> Any:
    units = _same_units(primitive.name, cases)
    return _bind(primitive, [which, *cases], units, params)


@annotation_rule(Unitful, "dynamic_update_slice")
def _update(x: Any, update: Any, *starts: Any, primitive: Any, **params: Any) -> Any:
    units = _same_units(primitive.name, (x, update))
    return _bind(primitive, [x, update, *starts], units, params)


@annotation_rule(Unitful, *SCATTER)
def _scatter(x: Any, indices: Any, updates: Any, *, primitive: Any, **params: Any) -> Any:
    units = _same_units(primitive.name, (x, updates))
    return _bind(primitive, [x, indices, updates], units, params)


@annotation_rule(Unitful, "sort")
def _sort(*operands: Any, primitive: Any, **params: Any) -> Any:
    results = jaxrewrite.bind(primitive, *map(_array, operands), **params)
    return list(map(_with, map(_units, operands), results))


@jaxrewrite.register("top_k")
def _top_k(x: Unitful, **params: Any) -> Any:
    entries, indices = jaxrewrite.bind("top_k", x.array, **params)
    return [_with(x.units, entries), indices]

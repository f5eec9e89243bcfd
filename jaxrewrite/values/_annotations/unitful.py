"""`Unitful`: arrays with units of measurement."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal
from jaxtyping import Array, ArrayLike

import jaxrewrite

from .._base.scatters import SCATTER, applies_function
from .._base.structured import inexact
from .declaration import MOVING, REDUCING, Annotated, annotation_rule, mapped
from .units import (
    FreeUnits,
    Units,
    UnitsError,
    about_unknown,
    check_sum,
    conversion,
    in_terms_of,
    is_convertible,
    unknown_names,
)


NO_UNITS = Units()
_FREE = FreeUnits()

# Primitives whose operands must have equal units.
EQUAL = frozenset(
    {
        *("add", "add_any", "sub", "max", "min", "rem", "nextafter", "complex", "atan2"),
        *("clamp", "concatenate", "pad", "stack", "select_n", "dynamic_update_slice"),
        *jaxrewrite.primitives.COMPARISON,
        *SCATTER,
    }
)


class Unitful(Annotated):
    r"""An array with units.

    Units are metadata. They are checked and computed while a program is staged, and cost
    nothing when it runs. With :math:`[x]` for the units of :math:`x`,

    .. math:: [xy] = [x][y], \quad [x / y] = [x] / [y], \quad [x^n] = [x]^n,
        \quad [\sqrt x] = [x]^{1/2}, \quad [\prod_{i=1}^n x_i] = [x]^n.

    Sums, comparisons, maxima, concatenations and choices need equal units. The solution of
    :math:`Ax = b` has :math:`[b] / [A]`, also by conjugate gradients, a Cholesky factor
    :math:`[A]^{1/2}`, singular values and eigenvalues :math:`[A]`, and a determinant of n rows
    :math:`[A]^n`. All other functions (``sin``, ``exp``, ``floor``, ``slogdet`` ...) need
    operands without units. A result without
    units is a plain array, and a plain array has no units. So the sum of a plain array and a
    value with units is an error.

    Zero, infinity and NaN are the same numbers in all units, and **where a program itself writes
    them, they have any units**: in ``jnp.maximum(x, 0)``, ``jnp.pad(x, 1)``, ``jnp.tril(x)``, and
    in a loop that starts at ``jnp.zeros``, whose turns tell which units it gets. (Astropy does
    so, too: see its ``can_have_arbitrary_unit``.) The largest number of a dtype stands for
    infinity there, but not in products. They are floating-point or complex numbers, or
    become such, and stand beside a value of this type, or beside one that holds it, as `Named`
    does. An argument of the program is no such number, even if the array is zero, for its
    numbers are not known when units are checked.

    The result of ``transform(jax.grad(f))(x)`` has the units of ``f(x)`` divided by those of
    ``x``. In ``jax.grad(transform(f))(x)`` JAX gives the derivative the metadata of the
    argument. Its numbers are right, but its true units are those of ``f(x) / x``.

    Parameters
    ----------
    array
        An array, or another value, of any shape and dtype. One with units is multiplied by the
        new ones, so that a value carries units once.
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
    Unitful(3. kg m^2 s^-2, dtype=float32)
    >>> jaxrewrite.transform(jax.grad(energy, argnums=1))(mass, velocity).units
    Units('kg m s^-1')
    >>> mass + velocity[:, 0]
    Traceback (most recent call last):
    ...
    jaxrewrite.values.UnitsError: add needs operands of equal units; got kg and m s^-1.
    ...
    """

    outer = 30
    _is_said_of_the_whole = True
    _holds_its_own = False

    array: Array
    units: Units = jaxrewrite.field(static=True)

    def __init__(self, array: Any, units: Any):
        units = units if isinstance(units, Units) else Units(units)
        if isinstance(array, Unitful):  # Units of a quantity multiply it.
            array, units = array.array, units * array.units.fixed
        vars(self).update(array=array, units=units)

    def _merged(self) -> Any:
        return _quantity(self.array, self.units)

    def to(self, units: Any) -> Unitful:
        """Convert to other units of the same kind.

        Nothing is converted unless you ask for it. The names are those of a table, which
        `register_unit` extends: the units of the SI with prefixes, and some others.

        Parameters
        ----------
        units
            Anything that `Units` takes. For a unit of Pint or Astropy, that package knows
            the factor.

        Returns
        -------
        Unitful
            The same quantity. Integers become floating-point numbers, as in Astropy, because
            a conversion of integers may overflow. They stay as they are if the factor is one.

        Raises
        ------
        UnitsError
            If the units are of another kind, or temperatures with an offset, such as degC.

        Examples
        --------
        >>> import jax.numpy as jnp
        >>> from jaxrewrite.values import Unitful
        >>> speed = Unitful(jnp.array([36.0, 90.0]), "km/h").to("m/s")
        >>> speed.array, speed.units
        (Array([10., 25.], dtype=float32), Units('m s^-1'))
        """
        target = Units(units)
        times, over = conversion(self.units, target, units)
        # A factor may be beyond what a narrow dtype holds, even if the result is not.
        is_narrow = inexact(self.array) and self.dtype.itemsize < 4
        array = self.array.astype(jnp.float32) if is_narrow else self.array
        if times != 1:
            array = array * float(times)
        if over != 1:
            array = array / float(over)
        return Unitful(array.astype(self.dtype) if is_narrow else array, target)

    def to_base(self, *basis: Any) -> Unitful:
        """Convert to powers of base units, such as those of the SI or of cgs.

        Parameters
        ----------
        *basis
            Units such as ``"cm", "g"``, each for one base unit. The other base units are those
            of the SI, and names that the table does not know.

        Returns
        -------
        Unitful
            The same quantity; see `to`.

        Raises
        ------
        UnitsError
            If a unit of the basis is not of one base unit, or is known neither to the table nor
            in this quantity, or an offset or a logarithm is met.

        Examples
        --------
        >>> from jaxrewrite import values
        >>> force = values.parse("3 kN")
        >>> force.to_base(), force.to_base("cm", "g")
        (Unitful(3000. kg m s^-2, dtype=float32), Unitful(3.e+08 cm g s^-2, dtype=float32))
        """
        return self.to(in_terms_of(self.units, basis))

    def materialise(self) -> Any:
        """Return the array if it has no units; else raise `UnitsError`."""
        if needs_units(self):
            raise UnitsError(
                f"it has units, {self.units}. Its numbers are in its field array; "
                "those in units of yours are x.to(units).array."
            )
        return self.array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """The numbers, if there are no units. Objects, if asked for, are quantities with them."""
        if dtype is None or np.dtype(dtype) != object:
            return super().__array__(dtype, copy)
        objects = np.empty(self.size, object)
        for i, number in enumerate(np.asarray(self.array).ravel()):
            objects[i] = Unitful(number, self.units)
        return objects.reshape(self.shape)

    def picture(self) -> Any:
        return self.array, f" {self.units}" if needs_units(self) else ""

    def adopt(self, array: Any, primitive: Any) -> Any:
        """Numbers that are the same in all units get those that the others have."""
        if primitive is not None and primitive.name not in EQUAL:
            return NotImplemented
        return with_units(_FREE, array)

    @staticmethod
    def default(primitive: Any, values: Sequence[Any], params: dict[str, Any]) -> Any:
        """Apply a function that needs operands without units."""
        if primitive.name in (*jaxrewrite.primitives.IDENTITY, "device_put"):
            return NotImplemented
        for value in values:
            if needs_units(value):
                raise UnitsError(
                    f"{primitive.name} needs operands without units; got {units_of(value)}. "
                    + _without(units_of(value))
                )
        return jaxrewrite.bind(primitive, *map(array_of, values), **params)

    def join(self, other: Any) -> Any:
        """Join with a value of the same units, or, without units, with an array."""
        units = same_units(
            "a conditional, a loop or a custom derivative rule", (self, other)
        )
        if isinstance(self.units, FreeUnits) and not isinstance(other, Unitful):
            return self.array, other
        return _quantity(self.array, units), _quantity(array_of(other), units)

    def tangent(self, leaf_tangents: Any) -> Any:
        """A tangent with the same units."""
        return leaf_tangents

    def lift_tangent(self, tangent: Any) -> Any:
        same_units("a custom derivative rule", (self, tangent))
        return super().lift_tangent(tangent)


class AnyUnits(Unitful):
    """Numbers that a program writes and that have any units, until something tells their units."""

    def materialise(self) -> Any:
        """Without units, numbers of any units are a plain array."""
        return with_units(self.units.fixed, self.array)


# To a user it is a quantity like others: errors, warnings and reports name no other type.
AnyUnits.__name__ = Unitful.__name__


def units_of(x: Any) -> Units:
    return x.units if isinstance(x, Unitful) else NO_UNITS


def _without(units: Units) -> str:
    """How to make numbers without units of those with some."""
    if is_convertible((units, NO_UNITS)):
        return 'Convert it to numbers, which are radians for angles: x.to("1").'
    return f'Divide by a unit, as in x / Unitful(1.0, "{units}").'


def needs_units(x: Any) -> bool:
    """Whether an operand is another one without its units."""
    return bool(units_of(x)) and not isinstance(units_of(x), FreeUnits)


def array_of(x: Any) -> Any:
    return x.array if isinstance(x, Unitful) else x


def with_units(units: Units, array: Any) -> Any:
    return _quantity(array, units) if units or isinstance(units, FreeUnits) else array


def _quantity(array: Any, units: Units) -> Unitful:
    return (AnyUnits if isinstance(units, FreeUnits) else Unitful)(array, units)


def same_units(subject: str, operands: Sequence[Any]) -> Units:
    all_units = dict.fromkeys(map(units_of, operands))
    units = [x for x in all_units if not isinstance(x, FreeUnits)]
    if len(units) > 1:
        hint = about_unknown(unknown_names(*units))
        if is_convertible(units) and NO_UNITS in units:
            hint = " " + _without(next(filter(None, units)))
        elif is_convertible(units):
            hint = (
                " Convert one of them, by Unitful.to; rules=values.converting_units does so for "
                "floating numbers."
            )
        elif NO_UNITS in units:
            hint += (
                " Give units to the numbers without any, as in Unitful(1.0, "
                f"{str(next(filter(None, units)))!r}), and pass them as arguments; or divide the "
                "others by a unit."
            )
        raise UnitsError(
            f"{subject} needs operands of equal units; got {' and '.join(map(str, units))}.{hint}"
        )
    if units:
        return units[0]
    return _FREE if len(all_units) > 1 else next(iter(all_units))


def bind_numbers(primitive: Any, operands: Sequence[Any], units: Units, params: Any) -> Any:
    """Apply a primitive to the numbers, and give the results these units."""
    results = jaxrewrite.bind(primitive, *map(array_of, operands), **params)
    return mapped(functools.partial(with_units, units), primitive, results)


@annotation_rule(
    Unitful,
    *jaxrewrite.primitives.LINEAR_UNARY,
    *MOVING,
    *REDUCING,
    *("abs", "reduce_precision", "cumsum", "cummax", "cummin", "fft"),
    *("reduce_window_sum", "reduce_window_max", "reduce_window_min"),
    # The derivatives of ``reduce_window_max``: entries at the places of other maxima.
    *("select_and_gather_add", "select_and_scatter_add"),
)
def _keep(x: Any, *others: Any, primitive: Any, **params: Any) -> Any:
    if primitive.name == "cumsum":
        check_sum(units_of(x))
    return bind_numbers(primitive, [x, *others], units_of(x), params)


@jaxrewrite.register(jnp.ldexp)
def _times_power_of_two(x: Unitful, power: ArrayLike) -> Any:
    return with_units(x.units, jaxrewrite.transform(jnp.ldexp)(x.array, power))


# As wholes: JAX writes signs in bits, and a step with a choice of numbers of no units.
@jaxrewrite.register(jnp.signbit)
def _is_negative(x: Unitful) -> Any:
    return jaxrewrite.transform(jnp.signbit)(x.array)


@jaxrewrite.register(jnp.copysign)
def _with_sign(x: Unitful | ArrayLike, sign: Unitful | ArrayLike) -> Any:
    result = jaxrewrite.transform(jnp.copysign)(array_of(x), array_of(sign))
    return with_units(units_of(x), result)


@jaxrewrite.register(jnp.heaviside)
def _step(x: Unitful | ArrayLike, at_zero: Unitful | ArrayLike) -> Any:
    result = jaxrewrite.transform(jnp.heaviside)(array_of(x), array_of(at_zero))
    return with_units(units_of(at_zero), result)


@annotation_rule(Unitful, "dynamic_slice", "gather")
def _index(x: Unitful, *indices: Any, primitive: Any, **params: Any) -> Any:
    fill = params.get("fill_value")
    if fill and np.isfinite(fill):  # It is a number without units beyond the array.
        same_units(primitive.name, (x, fill))
    return bind_numbers(primitive, [x, *indices], x.units, params)


# The operands that need equal units, where others are places, sizes or choices.
_ALIKE = {
    "select_n": slice(1, None),
    "dynamic_update_slice": slice(2),
    **dict.fromkeys(SCATTER, slice(0, None, 2)),
    # A second operand is the array that the entries are written into.
    **dict.fromkeys(jaxrewrite.primitives.COLLECTIVE, slice(2)),
}


def entries_of(primitive: Any, operands: Sequence[Any]) -> Sequence[Any]:
    """The operands that need equal units."""
    return operands[_ALIKE.get(primitive.name, slice(None))]


# A sum of two, and no part of a mean or of a derivative, which points on a scale have.
_ADDING = {"add", "sub", "scatter-add", "scatter-sub"}


@annotation_rule(
    Unitful,
    *("add", "add_any", "sub", "max", "min", "rem", "nextafter", "complex"),
    *("clamp", "concatenate", "pad", "stack", "cholesky_update"),
    *_ALIKE,
)
def _same(*operands: Any, primitive: Any, **params: Any) -> Any:
    if applies_function(primitive, params):
        return NotImplemented
    alike = entries_of(primitive, operands)
    units = same_units(primitive.name, alike)
    if primitive.name in _ADDING and all(map(needs_units, alike)):
        check_sum(units)
    if primitive.name == "nextafter":
        units = units.fixed  # The next number after zero is not zero.
    return bind_numbers(primitive, operands, units, params)


@annotation_rule(Unitful, *jaxrewrite.primitives.COMPARISON, "atan2")
def _compare(x: Any, y: Any, *, primitive: Any, **params: Any) -> Any:
    same_units(primitive.name, (x, y))
    return bind_numbers(primitive, (x, y), NO_UNITS, params)


@annotation_rule(Unitful, "argmax", "argmin", "is_finite", "sign")
def _drop(x: Unitful, *, primitive: Any, **params: Any) -> Any:
    return bind_numbers(primitive, [x], NO_UNITS, params)


@annotation_rule(Unitful, "convert_element_type")
def _convert(x: Unitful, *, primitive: Any, new_dtype: Any, **params: Any) -> Any:
    units = NO_UNITS if jnp.issubdtype(new_dtype, jnp.bool_) else x.units
    if not jnp.issubdtype(new_dtype, jnp.inexact):
        units = units.fixed  # No integer is infinite.
    return bind_numbers(primitive, [x], units, {"new_dtype": new_dtype, **params})


@annotation_rule(
    Unitful, "mul", "dot_general", "conv_general_dilated", "ragged_dot_general"
)
def _multiply(x: Any, y: Any, *sizes: Any, primitive: Any, **params: Any) -> Any:
    return bind_numbers(primitive, (x, y, *sizes), units_of(x) * units_of(y), params)


@annotation_rule(Unitful, "div")
def _divide(x: Any, y: Any, *, primitive: Any, **params: Any) -> Any:
    return bind_numbers(primitive, (x, y), units_of(x) / units_of(y), params)


_POWERS = {
    "square": Fraction(2),
    "sqrt": Fraction(1, 2),
    "cbrt": Fraction(1, 3),
    "rsqrt": Fraction(-1, 2),
}


@annotation_rule(Unitful, *_POWERS)
def _raise(x: Unitful, *, primitive: Any, **params: Any) -> Any:
    return bind_numbers(primitive, [x], x.units ** _POWERS[primitive.name], params)


@annotation_rule(Unitful, "integer_pow")
def _integer_pow(x: Unitful, *, primitive: Any, y: int, **params: Any) -> Any:
    return bind_numbers(primitive, [x], x.units**y, {"y": y, **params})


@jaxrewrite.register("pow")
def _pow(x: Unitful, y: Literal, *, primitive: Any, **params: Any) -> Any:
    """A power that the program writes as a number, such as 0.5 or 1 / 3."""
    has_units = bool(x.units) or isinstance(x.units, FreeUnits)
    if not has_units or not np.isfinite(y.val) or np.imag(y.val):
        return NotImplemented  # There are no such powers of units.
    exponent = float(np.real(y.val))
    power = Fraction(exponent).limit_denominator(64)
    if not math.isclose(power, exponent, rel_tol=1e-6):
        return NotImplemented
    # A whole number of Python is one in the program inside, too, as a matrix needs it.
    number = y.val.item() if isinstance(y.val, np.integer) else y.val
    return bind_numbers(primitive, [x, number], x.units**power, params)


@annotation_rule(Unitful, "reduce_prod")
def _reduce_prod(x: Unitful, *, primitive: Any, axes: Any, **params: Any) -> Any:
    count = math.prod(x.shape[axis] for axis in axes)
    return bind_numbers(primitive, [x], x.units**count, {"axes": axes, **params})


@annotation_rule(Unitful, "scatter-mul")
def _scale(x: Any, indices: Any, factor: Any, *, primitive: Any, **params: Any) -> Any:
    if needs_units(factor):
        raise UnitsError(
            f"{primitive.name} multiplies some entries, so the factor needs to be without "
            f"units; got {units_of(factor)}."
        )
    return bind_numbers(primitive, [x, indices, factor], units_of(x), params)


@annotation_rule(Unitful, "sort")
def _sort(*operands: Any, primitive: Any, **params: Any) -> Any:
    results = jaxrewrite.bind(primitive, *map(array_of, operands), **params)
    return list(map(with_units, map(units_of, operands), results))


@jaxrewrite.register("top_k")
def _top_k(x: Unitful, **params: Any) -> Any:
    entries, indices = jaxrewrite.bind("top_k", x.array, **params)
    return [with_units(x.units, entries), indices]

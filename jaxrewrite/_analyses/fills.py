"""Numbers that a program writes, and arrays filled with one: what its equations tell of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxprs_in_params

from .. import _compat
from .._compat import Jaxpr, JaxprEqn, Literal, Var


# The equation whose result a variable is, or ``None``.
Producer = Callable[[Var], JaxprEqn | None]

# Each entry of a result is an entry of an operand, here of the first one, or made from one so
# that zero stays zero, and infinity and NaN are one of these two,
_MOVING_FIRST = frozenset(
    {
        *("abs", "sqrt", "square"),
        *("broadcast_in_dim", "copy", "copy_p", "convert_element_type", "neg", "reshape"),
        *(
            "pvary",
            "rev",
            "reduce_precision",
            "slice",
            "squeeze",
            "stop_gradient",
            "transpose",
        ),
        *("dynamic_slice", "gather"),
    }
)
# and here of any, apart from the first operand of a choice, which chooses.
_MOVING_ALL = frozenset({"concatenate", "select_n", "stack"})

# A product or quotient of anything and of a number without a scale has none. (A quotient of an
# integer and zero is -1.)
_SCALING = frozenset({"div", "mul"})

# The largest number of a dtype is another number after these.
_CHANGING_THE_LARGEST = frozenset({"sqrt", *_SCALING})

# Each result is the operand at its position.
_ONE_FOR_ONE = frozenset({"device_put", "optimization_barrier"})

# Primitives that call one jaxpr once, on their operands, and the parameter that holds it.
_CALLS = {
    "jit": "jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "remat2": "jaxpr",
}

# The primitives whose results are uninitialised.
_UNINITIALISED = frozenset({"empty", "empty2"})

# The functions inside of JAX's own, by name, that write numbers about floats and not about what
# the floats measure: where a square overflows, or what to divide by where a step is zero. What
# they return has the units of their operands whatever the units are.
_FOR_ANY_UNITS = {"_interp": jnp.interp, "hypot": jnp.hypot, "_hypot": jnp.hypot}

_ARITHMETIC: dict[str, Callable[..., Any]] = {
    **{"add": np.add, "mul": np.multiply, "neg": np.negative, "sub": np.subtract},
    **dict.fromkeys(("broadcast_in_dim", "convert_element_type"), np.asarray),
}

# A longer chain of equations is not followed.
_DEPTH = 16


def is_uninitialised(producer: Producer, atom: Any) -> bool:
    """Whether nothing has written the numbers of an atom."""
    eqn = None if type(atom) is Literal else producer(atom)
    if eqn is None or eqn.primitive.name in _UNINITIALISED:
        return eqn is not None
    return eqn.primitive.name == "broadcast_in_dim" and is_uninitialised(
        producer, eqn.invars[0]
    )


def is_not_read(eqn: JaxprEqn) -> bool:
    """Whether nothing may read the results of an equation.

    They are uninitialised, or a callback raises the error of `equinox.error_if`; on a device
    that can't raise errors it returns NaN.
    """
    if eqn.primitive.name in _UNINITIALISED:
        return True
    callback = eqn.params.get("callback") if eqn.primitive.name == "pure_callback" else None
    fn = getattr(callback, "callback_func", None)
    return getattr(fn, "__module__", None) == "equinox._errors"


def is_zero(producer: Producer, atom: Any) -> bool:
    """Whether an atom is an array of zeros."""
    return _holds(_in_scope(producer), atom, _is_zero)


def has_no_scale(producer: Producer, atom: Any) -> bool:
    """Whether all numbers of an atom are zero, infinite or NaN.

    These are the same in all units. See ``can_have_arbitrary_unit`` of Astropy. The largest
    number of a dtype is one of them, too: programs write it where they can't write infinity.
    """
    return _holds(_in_scope(producer), atom, _has_no_scale_or_is_largest)


def is_written(producer: Producer, atom: Any) -> bool:
    """Whether the program itself writes the number that an atom is filled with."""
    return _holds(_in_scope(producer), atom, lambda _: True)


def is_for_any_units(jaxpr: Any) -> bool:
    """Whether a jaxpr is of a function whose written numbers have any units."""
    public: Any = _FOR_ANY_UNITS.get(_compat.name_of(jaxpr))
    if public is None:
        return False
    return _compat.file_of(jaxpr) == inspect.unwrap(public).__code__.co_filename


def written(producer: Producer, atom: Any) -> Literal | None:
    """The number that equations make of numbers alone, as a literal; ``None`` for others.

    Such is the exponent of a power's derivative: one less than that of the power.
    """
    return _written(_in_scope(producer), atom, _DEPTH)


def exponent(producer: Producer, atom: Any) -> Literal | None:
    """The same for an array of any shape that is filled with one number.

    The derivative of ``lax.pow(x, 2)`` has such an exponent, of the shape of ``x``.
    """
    return _written(_in_scope(producer), atom, _DEPTH, fills=True)


def _written(lookup: _Lookup, atom: Any, depth: int, fills: bool = False) -> Literal | None:
    if type(atom) is Literal:
        return atom
    source = lookup(atom) if depth and (fills or not atom.aval.shape) else None
    if not isinstance(source, _Source):
        return source
    eqn, result = source
    if eqn.primitive.name in _CALLS:
        jaxpr, consts = _compat.open_jaxpr(eqn.params[_CALLS[eqn.primitive.name]])
        inside = _in_call(lookup, eqn.invars, jaxpr, len(consts))
        return _written(inside, jaxpr.outvars[_position(eqn, result)], depth - 1, fills)
    compute = _ARITHMETIC.get(eqn.primitive.name)
    if compute is None:
        return None
    numbers: list[Any] = [_written(lookup, x, depth - 1, fills) for x in eqn.invars]
    if any(x is None or np.ndim(x.val) for x in numbers):
        return None
    dtype = atom.aval.dtype
    if not all(np.can_cast(x.aval.dtype, dtype, "same_kind") for x in numbers):
        return None
    number = compute(*(np.asarray(x.val, dtype) for x in numbers))
    aval = _compat.varying_as(_compat.ShapedArray((), dtype), [atom.aval])
    return Literal(number, aval if atom.aval.shape else atom.aval)


def _is_zero(number: Any) -> bool:
    return bool(number == 0)


def _has_no_scale(number: Any) -> bool:
    return all(part == 0 or not np.isfinite(part) for part in (number.real, number.imag))


def _has_no_scale_or_is_largest(number: Any) -> bool:
    if _has_no_scale(number):
        return True
    return is_inexact_dtype(number.dtype) and abs(number) == jnp.finfo(number.dtype).max


def is_inexact(atom: Any) -> bool:
    return is_inexact_dtype(atom.aval.dtype)


def is_inexact_dtype(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jnp.inexact)


def has_power(jaxpr: Jaxpr) -> bool:
    """Whether a jaxpr, or one inside of it, has a power whose exponent is an operand."""
    return any(
        eqn.primitive.name == "pow" or any(map(has_power, jaxprs_in_params(eqn.params)))
        for eqn in jaxpr.eqns
    )


def becomes_inexact(eqn: JaxprEqn, position: int) -> bool:
    """Whether an operand of an equation is inexact, or a call converts it to be.

    Other integers are places and sizes. ``jnp.pad(x, 1)`` passes an integer zero to a call
    that converts it.
    """
    atom = eqn.invars[position]
    if eqn.primitive.name != "jit" or is_inexact(atom):
        return is_inexact(atom)
    jaxpr, consts = _compat.open_jaxpr(eqn.params["jaxpr"])
    var = jaxpr.invars[len(consts) + position]
    return not any(x is var for x in jaxpr.outvars) and all(
        is_inexact(inner.outvars[0])
        if inner.primitive.name == "convert_element_type"
        else becomes_inexact(inner, i)
        for inner in jaxpr.eqns
        for i, x in enumerate(inner.invars)
        if x is var
    )


class _Source(NamedTuple):
    """An equation, and which of its results is meant."""

    eqn: JaxprEqn
    result: Var


# Where the variable of a jaxpr comes from: an equation, a literal of a call, or unknown.
_Lookup = Callable[[Var], _Source | Literal | None]


def _position(eqn: JaxprEqn, result: Var) -> int:
    return next(i for i, var in enumerate(eqn.outvars) if var is result)


def _in_scope(producer: Producer) -> _Lookup:
    def lookup(var: Var) -> _Source | None:
        eqn = producer(var)
        return None if eqn is None else _Source(eqn, var)

    return lookup


def _in_call(lookup: _Lookup, atoms: Sequence[Any], jaxpr: Jaxpr, consts: int) -> _Lookup:
    """The look-up in a jaxpr that is called on atoms, which lead to where it is called."""
    operands = dict(zip(jaxpr.invars[consts:], atoms, strict=True))
    producers = {var: inner for inner in jaxpr.eqns for var in inner.outvars}

    def inside(var: Var) -> _Source | Literal | None:
        if var in producers:
            return _Source(producers[var], var)
        atom = operands.get(var, var)  # Or it is a variable from outside already.
        return atom if type(atom) is Literal else lookup(atom)

    return inside


def _holds(
    lookup: _Lookup, atom: Any, test: Callable[[Any], bool], depth: int = _DEPTH
) -> bool:
    """Whether a test holds for each number that an atom is filled with."""
    source = atom if type(atom) is Literal or not depth else lookup(atom)
    if type(source) is Literal:
        return np.ndim(source.val) == 0 and test(np.asarray(source.val)[()])
    if not isinstance(source, _Source):
        return False
    eqn, result = source
    if is_not_read(eqn):
        return True
    name = eqn.primitive.name
    if name == "convert_element_type" and not is_inexact(eqn.outvars[0]):
        test = _is_zero  # No other number without a scale is an integer or a truth value.
    if test is _has_no_scale_or_is_largest and name in _CHANGING_THE_LARGEST:
        test = _has_no_scale
    fill = eqn.params.get("fill_value")  # What ``gather`` reads beyond the array.
    if fill is not None and not test(np.asarray(fill)[()]):
        return False
    if name in _MOVING_FIRST:
        return _holds(lookup, eqn.invars[0], test, depth - 1)
    if name in _SCALING and test is _has_no_scale and is_inexact(result):
        return any(_holds(lookup, x, test, depth - 1) for x in eqn.invars)
    if name in _MOVING_ALL:
        entries = eqn.invars[1:] if name == "select_n" else eqn.invars
        return all(_holds(lookup, x, test, depth - 1) for x in entries)
    position = _position(eqn, result)
    if name in _ONE_FOR_ONE:
        return _holds(lookup, eqn.invars[position], test, depth - 1)
    if name in _CALLS:
        bodies, atoms = [eqn.params[_CALLS[name]]], eqn.invars
    elif name == "cond":
        bodies, atoms = eqn.params["branches"], eqn.invars[1:]
    else:
        return False
    for body in bodies:
        jaxpr, consts = _compat.open_jaxpr(body)
        inside = _in_call(lookup, atoms, jaxpr, len(consts))
        if not _holds(inside, jaxpr.outvars[position], test, depth - 1):
            return False
    return True

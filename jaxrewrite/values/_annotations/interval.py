"""`Interval`: bounds on arrays, and on whatever is computed from them."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from jaxrewrite import Rules, Value
from jaxrewrite.primitives import COMPARISON, DECREASING, INCREASING, UNARY

from .._base import in_blocks
from .._base.scatters import SCATTER, applies_function
from .._base.sizes import is_at_most
from .._base.structured import disproved, inexact, on_numbers, promoted
from .declaration import MOVING, annotation_rule, highest, like, lowest
from .operators import Carrying


TOGETHER = Rules()
"""Rules for several equations on intervals, in force in programs that take one."""


class Interval(Carrying):
    r"""All arrays between two bounds, entry by entry.

    A program on an interval gives bounds on its results for all arrays inside. With
    :math:`x \in [\underline x, \overline x]`,

    .. math:: f(x) \in [f(\underline x), f(\overline x)] \text{ for increasing } f, \qquad
        A x \in A c \pm |A| r, \quad c = \tfrac12 (\underline x + \overline x), \;
        r = \tfrac12 (\overline x - \underline x),

    The bounds of a product of two intervals come from all four products of their ends, or
    are :math:`c_x c_y \pm ((|c_x| + r_x) r_y + r_x |c_y|)` if the product is summed. An
    interval that is much larger than the array it meets is multiplied with its positive and
    negative entries apart. Each
    operand of an equation varies independently of the others, so the bounds are sound but
    not tight: :math:`x - x` is not zero. Intervals serve to bound the
    results of a network by bounds on its inputs, also in training (interval bound
    propagation).

    `jax.nn.softmax`, ``log_softmax`` and ``logsumexp`` are bounded as a whole, and so tightly: the
    softmax function increases with its own number and decreases with the others. That holds for
    the equations of these functions in a program that takes an interval, with ``axis`` and
    ``where``, also in `jax.nn.dot_product_attention`, if nothing annotates the interval. The product of such weights with an interval
    is again one of independent numbers: that they sum to one is not known there.

    **No bounds**: from minus infinity to infinity an interval holds all numbers, *and NaN*
    (where a dtype has no infinities, from its lowest number to its highest). So a quotient by
    an interval that contains zero is unbounded, as are a result that may be outside the domain
    of a function, the tangent around a pole, and what follows from such. A bound that is
    infinite is a number that the array may have: zero times it may be NaN. A bound is never NaN,
    and a lower bound never above the upper one.

    **Integers wrap.** A sum, product, power or conversion of integers that may leave the range of
    the dtype for some of them may be anything in that range. If all of them leave it
    alike, as in ``Interval(250, 255) + 10`` of ``uint8``, the bounds are those of what is left.

    A comparison gives an interval of booleans: the lower bound holds surely, the upper
    bound may hold. A choice by such an interval (``jnp.where``, ``jax.lax.select``) gives
    bounds of both branches where it is undecided. ``jax.lax.cond`` and ``while_loop`` need
    to know the answer and raise. Functions without known bounds, such as ``argmax``,
    ``lgamma``, or products of matrices of integers, raise too, because an interval is never
    dense.

    **Rounding**: the bounds hold for the numbers that JAX computes, one operation at a time.
    They are those of the same operation, moved apart where it is not monotone to the last
    bit: by eight units in the last place for functions such as ``tanh``, and for products of
    matrices by what rounding is known to do to sums (Higham and Mary, "A new approach to
    probabilistic rounding error analysis", 2019). Programs that XLA fuses round
    differently, and may be beyond the bounds by their own rounding errors. Subnormal numbers
    are zero.

    **Derivatives** are those of the bounds. A function with a derivative rule of its own
    (`jax.custom_jvp`) is bounded by its own equations. `jax.lax.stop_gradient` holds the centre
    of an interval constant, as it does the number of an array, but not its width, which is no number
    of the program: so the derivatives of `jax.nn.logsumexp`, which subtracts a maximum and adds it
    again, are those of its bounds.

    The arithmetic is that of Moore, "Interval Analysis" (1966), and the product of matrices
    that of Rump, "Fast and parallel interval arithmetic" (1999). The bounds of neural
    networks are those of Gowal et al., "On the effectiveness of interval bound propagation"
    (2018).

    Parameters
    ----------
    lower, upper
        Arrays or other values, of one shape and one real dtype. ``lower`` must not be above
        ``upper``. Where one is an interval itself, its own outer bound is taken.

    Raises
    ------
    ValueError
        If ``lower`` and ``upper`` differ in shape or dtype, are complex, or ``lower`` is
        somewhere above ``upper`` or NaN.
    TypeError
        If a program on the interval has an equation without known bounds.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, jaxrewrite
    >>> from jaxrewrite.values import Interval
    >>> x = Interval(jnp.array([-1.0, 2.0]), jnp.array([1.0, 3.0]))
    >>> w = jnp.array([[1.0, -1.0], [2.0, 1.0]])
    >>> bounds = jaxrewrite.transform(lambda w, x: jax.nn.relu(w @ x) ** 2)(w, x)
    >>> bounds.lower, bounds.upper
    (Array([0., 0.], dtype=float32), Array([ 0. , 25.00], dtype=float32))
    >>> positive = x > 0
    >>> positive.lower, positive.upper
    (Array([False,  True], dtype=bool), Array([ True,  True], dtype=bool))
    """

    outer = 10
    _array_fields = 2
    _meets_itself = True  # A number is equal to itself, and its square is not negative.
    axes = {"lower": "...", "upper": "..."}
    _ignores_custom_rules = True
    _tables = (TOGETHER,)

    lower: Array
    upper: Array

    def __post_init__(self) -> None:
        # Bounds that are known within bounds: the outermost hold.
        vars(self).update(lower=_lower(self.lower), upper=_upper(self.upper))
        lower, upper = like(self.lower), like(self.upper)
        if (lower.shape, lower.dtype) != (upper.shape, upper.dtype):
            raise ValueError(
                "Interval: lower and upper must have one shape and dtype; got "
                f"{lower.str_short()} and {upper.str_short()}."
            )
        if jnp.issubdtype(lower.dtype, jnp.complexfloating):
            raise ValueError(f"Interval: lower must be real; got {lower.dtype}.")
        if disproved(_are_in_order, self.lower, self.upper):
            raise ValueError("Interval: lower must not be above upper, nor NaN.")

    def _merged(self) -> Any:
        return Interval(self.lower, self.upper)

    @classmethod
    def around(cls, centre: Any, radius: Any) -> Interval:
        """Return all arrays that differ from ``centre`` by at most ``radius``."""
        lower, upper = jnp.broadcast_arrays(centre - radius, centre + radius)
        if _is_integer(lower):
            lower = jnp.where(lower > centre, lowest(lower.dtype), lower)
            upper = jnp.where(upper < centre, highest(upper.dtype), upper)
        return cls(lower, upper)

    def contains(self, x: Any) -> Any:
        """Return whether each entry of an array is within the bounds."""
        return ((self.lower <= x) & (x <= self.upper)) | _may_be_nan(self)

    def aval(self) -> Any:
        """The aval of the bounds."""
        return like(self.lower)

    def materialise(self) -> Any:
        """Raise: one array is not known."""
        raise TypeError("it is known within bounds only, and there is no rule for these.")

    def picture(self) -> Any:
        return self.lower, " to ", self.upper

    def join(self, other: Any) -> Any:
        """An array is an interval with equal bounds."""
        if isinstance(other, Interval):
            return self, other
        is_value = isinstance(other, Value)
        return self, Interval(other, other) if is_value else _bounded(other, other)


def _are_in_order(xp: Any, lower: Any, upper: Any) -> Any:
    return (lower <= upper).all()


def _lower(x: Any) -> Any:
    return x.lower if isinstance(x, Interval) else x


def _upper(x: Any) -> Any:
    return x.upper if isinstance(x, Interval) else x


def _ends(x: Any) -> tuple[Any, Any]:
    return _lower(x), _upper(x)


def _is_integer(x: Any) -> bool:
    return bool(jnp.issubdtype(x.dtype, jnp.integer))


def _may_be_nan(x: Interval) -> Any:
    """Where an interval holds all numbers, and NaN."""
    if not inexact(x.lower):
        return jnp.zeros(x.shape, bool)
    return (x.lower == lowest(x.dtype)) & (x.upper == highest(x.dtype))


def _numbers(x: Any) -> tuple[Any, Any]:
    """The bounds, with NaN for both where it is possible: so it spreads as in the program."""
    if not isinstance(x, Interval) or not inexact(x.lower):
        return _ends(x)
    is_nan = _may_be_nan(x)
    return jnp.where(is_nan, jnp.nan, x.lower), jnp.where(is_nan, jnp.nan, x.upper)


def _bounded(lower: Any, upper: Any) -> Interval:
    """An interval that is unbounded where a bound is NaN."""
    if not inexact(lower):
        return Interval(lower, upper)
    return _unbounded(jnp.isnan(lower) | jnp.isnan(upper), Interval(lower, upper))


def _unbounded(where: Any, x: Interval) -> Interval:
    low, high = (jnp.asarray(end(x.dtype), x.dtype) for end in (lowest, highest))
    return Interval(jnp.where(where, low, x.lower), jnp.where(where, high, x.upper))


def _hull(*corners: Any) -> Interval:
    """The interval from the least to the greatest of some arrays, entry by entry."""
    return _bounded(
        functools.reduce(jnp.minimum, corners), functools.reduce(jnp.maximum, corners)
    )


def _refuse(primitive: Any, why: str) -> TypeError:
    return TypeError(f"Interval has no bounds of {primitive.name} {why}.")


# --- integers that wrap -----------------------------------------------------------------


def _width(x: Any) -> Any:
    """How many numbers an interval of integers has besides one, without a sign."""
    lower, upper = _ends(x)
    unsigned = f"uint{jnp.iinfo(lower.dtype).bits}"
    return lax.convert_element_type(lax.sub(upper, lower), unsigned)


def _wrapped(lower: Any, upper: Any, is_short: Any) -> Interval:
    """Bounds that may have wrapped around, of all integers between them.

    If there are fewer than the dtype has, they are still in a row if the bounds are in order.
    """
    return _unbounded(~(is_short & (lower <= upper)), Interval(lower, upper))


def _is_short(terms: Sequence[tuple[Any, int | None]]) -> Any:
    """Whether a sum of as many integers of some widths is certain to be short.

    The terms are arrays, each with the number of its entries that are summed; ``None`` stands
    for a sum entry by entry.
    """
    most = jnp.iinfo(_width(terms[0][0]).dtype).max
    room, is_short = _unsigned(terms[0][0], most), jnp.array(True)
    for x, count in terms:
        width = _width(x)
        widest = width if count is None else width.max(initial=0)
        summed = 1 if count is None else count
        is_few = isinstance(summed, int) and summed <= most
        times = _unsigned(x, max(summed, 1) if is_few else most)
        is_short = is_short & (widest <= room // times)
        room = room - widest * times
    return is_short


def _unsigned(x: Any, number: int) -> Any:
    return jnp.asarray(number, _width(x).dtype)


# --- monotone -------------------------------------------------------------------------


def _between(
    primitive: Any, lower: Sequence[Any], upper: Sequence[Any], params: Any
) -> Any:
    below, above = primitive.bind(*lower, **params), primitive.bind(*upper, **params)
    if primitive.multiple_results:
        return list(map(_bounded, below, above))
    return _bounded(below, above)


@annotation_rule(Interval, *MOVING, "dynamic_slice", "gather", "dynamic_update_slice")
@annotation_rule(Interval, "concatenate", "pad", "stack", "all_to_all")
def _move(*operands: Any, primitive: Any, **params: Any) -> Any:
    return _between(primitive, [*map(_lower, operands)], [*map(_upper, operands)], params)


@annotation_rule(Interval, "max", "min", "clamp", "reduce_precision")
@annotation_rule(Interval, "reduce_max", "reduce_min", "cummax", "cummin")
@annotation_rule(Interval, "reduce_window_max", "reduce_window_min", "pmax", "pmin")
def _increasing(*operands: Any, primitive: Any, **params: Any) -> Any:
    lower, upper = zip(*map(_numbers, operands), strict=True)
    return _between(primitive, lower, upper, params)


# In the last place, a function that is computed by polynomials is not monotone.
_EXACT = ("ceil", "floor", "round", "sign", "sqrt")
_WOBBLE = 8.0, 1.0  # In units in the last place, and those of 16 bits.


@annotation_rule(Interval, *INCREASING, "acosh")
def _function(x: Interval, *, primitive: Any, **params: Any) -> Any:
    bounds = _increasing(x, primitive=primitive, **params)
    return _around(x, bounds, primitive, (-jnp.inf, jnp.inf), params)


@annotation_rule(Interval, *(name for name in DECREASING if name not in ("neg", "rsqrt")))
def _decreasing(x: Interval, *, primitive: Any, **params: Any) -> Any:
    lower, upper = _numbers(x)
    bounds = _between(primitive, [upper], [lower], params)
    return _around(x, bounds, primitive, (jnp.inf, -jnp.inf), params)


@annotation_rule(Interval, "cumlogsumexp")
def _accumulate(x: Interval, *, primitive: Any, axis: int, **params: Any) -> Any:
    """Each of about log2(n) steps adds a logarithm to the greater of two numbers."""
    bounds = _increasing(x, primitive=primitive, axis=axis, **params)
    count = x.shape[axis]
    steps = 2 * count.bit_length() + 4 if isinstance(count, int) else 64
    sizes = (_size(end).max(axis, keepdims=True, initial=1) for end in _numbers(x))
    error = steps * float(jnp.finfo(x.dtype).eps) * jnp.maximum(*sizes)
    return _apart(_bounded(bounds.lower - error, bounds.upper + error), False)


def _around(
    x: Interval, bounds: Interval, primitive: Any, ends: Sequence[float], params: Any
) -> Interval:
    """Bounds of a function of one number, whose least and greatest values are at the ends."""
    if primitive.name in _EXACT:
        return bounds
    if primitive.name == "erf":  # It is above one at some numbers.
        return _apart(bounds, x.lower == x.upper)
    limits = [on_numbers(primitive, params, np.asarray(end, x.dtype)) for end in ends]
    return _apart(bounds, x.lower == x.upper, *limits)


def _apart(
    bounds: Interval, is_point: Any, least: Any = -jnp.inf, most: Any = jnp.inf
) -> Interval:
    """Bounds moved apart by the errors of a function, unless its operands are one number."""
    lower, upper = bounds.lower, bounds.upper
    is_left = is_point | _may_be_nan(bounds)
    wobble = _WOBBLE[bounds.dtype.itemsize < 4] * float(jnp.finfo(bounds.dtype).eps)
    below, above = lower - wobble * _size(lower), upper + wobble * _size(upper)
    return _bounded(
        jnp.where(is_left, lower, jnp.where(below < least, least, below)),
        jnp.where(is_left, upper, jnp.where(above > most, most, above)),
    )


def _size(x: Any) -> Any:
    """The absolute value of what is finite."""
    return jnp.where(jnp.isfinite(x), abs(x), jnp.zeros_like(x))


@annotation_rule(Interval, "neg")
def _negative(x: Interval, *, primitive: Any, **params: Any) -> Any:
    if _is_integer(x):
        return _wrapped(-x.upper, -x.lower, True)
    return Interval(-x.upper, -x.lower)


@annotation_rule(Interval, "rsqrt")
def _inverse_root(x: Interval, *, primitive: Any, **params: Any) -> Any:
    """A negative zero has minus infinity."""
    return _unbounded(_has_zero(x), _decreasing(x, primitive=primitive, **params))


def _has_zero(x: Any) -> Any:
    return (_lower(x) <= 0) & (_upper(x) >= 0)


@annotation_rule(Interval, "add", "add_any")
def _add(x: Any, y: Any, *, primitive: Any, **params: Any) -> Any:
    if not _is_integer(_lower(x)):
        return _increasing(x, y, primitive=primitive, **params)
    lower, upper = _lower(x) + _lower(y), _upper(x) + _upper(y)
    return _wrapped(lower, upper, _is_short([(x, None), (y, None)]))


@annotation_rule(Interval, "sub")
def _subtract(x: Any, y: Any, *, primitive: Any, **params: Any) -> Any:
    (x_low, x_high), (y_low, y_high) = map(_numbers, (x, y))
    lower, upper = x_low - y_high, x_high - y_low
    if not _is_integer(lower):
        return _bounded(lower, upper)
    return _wrapped(lower, upper, _is_short([(x, None), (y, None)]))


@annotation_rule(Interval, "reduce_sum", "cumsum", "reduce_window_sum")
def _sum(x: Interval, *, primitive: Any, **params: Any) -> Any:
    if not _is_integer(x):
        return _increasing(x, primitive=primitive, **params)
    lower, upper = (primitive.bind(end, **params) for end in _ends(x))
    return _wrapped(lower, upper, _is_short([(x, _count(x.shape, **params))]))


@annotation_rule(Interval, "psum", "psum_invariant", "reduce_scatter")
def _sum_over_devices(x: Interval, *, primitive: Any, **params: Any) -> Any:
    if _is_integer(x):
        raise _refuse(primitive, "on integers")
    return _increasing(x, primitive=primitive, **params)


def _count(
    shape: Sequence[int], *, axes: Any = None, axis: Any = None, **params: Any
) -> int:
    """Of how many entries at most each result is the sum."""
    if "window_dimensions" in params:
        return math.prod(params["window_dimensions"])
    axes = (axis,) if axes is None else axes
    return math.prod(shape[axis] for axis in axes)


@annotation_rule(Interval, *SCATTER)
def _scatter(x: Any, indices: Any, updates: Any, *, primitive: Any, **params: Any) -> Any:
    if applies_function(primitive, params):
        raise _refuse(primitive, "that applies a function; write x.at[i].set(f(x[i]))")
    (x_low, x_high), (low, high) = map(_numbers, (x, updates))
    if primitive.name == "scatter-sub":
        low, high = high, low
    lower = primitive.bind(x_low, indices, low, **params)
    upper = primitive.bind(x_high, indices, high, **params)
    is_sum = primitive.name in ("scatter-add", "scatter-sub")
    if not is_sum or not _is_integer(lower):
        return _bounded(lower, upper)
    return _wrapped(
        lower, upper, _is_short([(x, None), (updates, math.prod(updates.shape))])
    )


@annotation_rule(Interval, "and", "or", "not", "reduce_and", "reduce_or")
def _logical(*operands: Any, primitive: Any, **params: Any) -> Any:
    if operands[0].dtype != jnp.bool_:
        raise _refuse(primitive, "on integers")
    if primitive.name == "not":
        (x,) = operands
        return Interval(~x.upper, ~x.lower)
    return _move(*operands, primitive=primitive, **params)


@annotation_rule(Interval, "convert_element_type")
def _convert(x: Interval, *, primitive: Any, new_dtype: Any, **params: Any) -> Any:
    if jnp.issubdtype(new_dtype, jnp.bool_):
        return _compare(x, jnp.zeros((), x.dtype), primitive=lax.ne_p)
    if jnp.issubdtype(new_dtype, jnp.complexfloating):
        raise _refuse(primitive, "to complex numbers")
    params["new_dtype"] = new_dtype
    if not jnp.issubdtype(new_dtype, jnp.integer) or x.dtype == jnp.bool_:
        return _increasing(x, primitive=primitive, **params)
    bounds = _move(x, primitive=primitive, **params)
    if _is_integer(x):
        most = min(jnp.iinfo(new_dtype).bits, jnp.iinfo(x.dtype).bits)
        return _wrapped(bounds.lower, bounds.upper, _width(x) <= _unsigned(x, 2**most - 1))
    # The result for a number that is no such integer depends on the machine.
    low, high = (x.astype(promoted(x.dtype, "float32")) for x in _numbers(x))
    least, most = jnp.iinfo(new_dtype).min, jnp.iinfo(new_dtype).max
    return _unbounded(~((low > least - 1.0) & (low >= least) & (high < most + 1.0)), bounds)


@annotation_rule(Interval, "sort")
def _sort(*operands: Any, primitive: Any, **params: Any) -> Any:
    """Each entry of a sorted array is an increasing function of all entries.

    As many of the last entries may be NaN as there are entries that may be NaN.
    """
    if len(operands) > 1:
        raise _refuse(primitive, "that takes other arrays along")
    (bounds,) = _move(*operands, primitive=primitive, **params)
    if not inexact(bounds.lower):
        return [bounds]
    (last,) = primitive.bind(_numbers(*operands)[0], **params)
    return [_unbounded(jnp.isnan(last), bounds)]


# --- not monotone ---------------------------------------------------------------------


def _magnitudes(x: Interval) -> tuple[Any, Any]:
    """The least and the greatest absolute value."""
    ends = tuple(map(abs, _numbers(x)))
    zero = jnp.where(ends[0] == ends[0], jnp.zeros_like(ends[0]), ends[0])  # Or NaN.
    least = jnp.where(_has_zero(x), zero, jnp.minimum(*ends))
    return least, jnp.maximum(*ends)


_EVEN = ("abs", "square", "cosh", "one_minus_square")


@annotation_rule(Interval, *(name for name in UNARY if name in _EVEN))
def _even(x: Interval, *, primitive: Any, **params: Any) -> Any:
    power = {"abs": 1, "square": 2}.get(primitive.name, params.get("y", 1))
    bounds = _hull(*(primitive.bind(m, **params) for m in _magnitudes(x)))
    if _is_integer(x):
        return _unbounded(~_fits(x, power), bounds)
    if primitive.name in ("abs", "square", "integer_pow"):
        return bounds
    ends = (0.0, jnp.inf) if primitive.name == "cosh" else (jnp.inf, 0.0)
    return _around(x, bounds, primitive, ends, params)


def _fits(x: Interval, power: int) -> Any:
    """Whether powers of integers do not wrap."""
    limits = jnp.iinfo(x.dtype)
    root = int(limits.max ** (1 / power)) + 1
    while root**power > limits.max:
        root -= 1
    least = max(-root, int(limits.min))
    return (x.upper <= jnp.asarray(root, x.dtype)) & (
        x.lower >= jnp.asarray(least, x.dtype)
    )


@annotation_rule(Interval, "integer_pow")
def _integer_pow(x: Interval, *, primitive: Any, y: int) -> Any:
    if y == 0:
        return Interval(*map(jnp.ones_like, _numbers(x)))
    if y % 2 == 0 and y >= 0:
        return _even(x, primitive=primitive, y=y)
    if y > 0:
        bounds = _increasing(x, primitive=primitive, y=y)
        return _unbounded(~_fits(x, y), bounds) if _is_integer(x) else bounds
    if _is_integer(x):
        raise _refuse(primitive, "on integers")
    return _unbounded(_has_zero(x), _hull(*(primitive.bind(e, y=y) for e in _numbers(x))))


def _corners(fn: Callable[[Any, Any], Any], x: Any, y: Any) -> Interval:
    """Bounds of a function that is monotone in each operand, for any value of the other."""
    return _hull(*(fn(a, b) for a, b in _pairs(x, y)))


def _pairs(x: Any, y: Any) -> list[tuple[Any, Any]]:
    ends = (
        _numbers(operand) if isinstance(operand, Interval) else (operand,)
        for operand in (x, y)
    )
    return list(itertools.product(*ends))


@annotation_rule(Interval, "mul")
def _times(x: Any, y: Any, *, primitive: Any, **params: Any) -> Any:
    if x is y:
        return _even(x, primitive=lax.integer_pow_p, y=2)
    bounds = _corners(lax.mul, x, y)
    if not _is_integer(bounds):
        return bounds
    return _unbounded(
        ~functools.reduce(jnp.logical_and, map(_is_exact, _pairs(x, y))), bounds
    )


def _is_exact(pair: tuple[Any, Any]) -> Any:
    """Whether the product of two integers is in the range of their dtype."""
    a, b = jnp.broadcast_arrays(*pair)
    limits = jnp.iinfo(a.dtype)
    undone = (a * b) // jnp.where(a == 0, 1, a) == b
    if limits.min:
        undone &= ~((a == -1) & (b == limits.min))
    return (a == 0) | undone


@annotation_rule(Interval, "div")
def _quotient(x: Any, y: Any, *, primitive: Any, **params: Any) -> Any:
    if not inexact(_lower(x)):
        raise _refuse(primitive, "on integers")
    quotient = _corners(lax.div, x, y)
    return _unbounded(_has_zero(y), quotient) if isinstance(y, Interval) else quotient


@annotation_rule(Interval, "pow")
def _power(x: Any, y: Any, *, primitive: Any, **params: Any) -> Any:
    """Bounds for a base that is not negative, or an exponent that is an integer; others give NaN."""
    if not inexact(_lower(x)):
        raise _refuse(primitive, "on integers")
    has_pole = _has_zero(x) & (_lower(y) < 0)
    is_point = (_lower(x) == _upper(x)) & (_lower(y) == _upper(y))
    if isinstance(y, Interval) or inexact(y):
        bounds, has_pole = _corners(lax.pow, x, y), has_pole | (_lower(x) < 0)
    else:
        pairs = zip(_magnitudes(x), _numbers(x), strict=True)
        ends = [jnp.where(y % 2 == 0, size, end) for size, end in pairs]
        bounds = _hull(*(lax.pow(end, y) for end in ends))
    return _unbounded(has_pole, _apart(bounds, is_point))


@annotation_rule(Interval, "sin", "cos")
def _wave(x: Interval, *, primitive: Any, **params: Any) -> Any:
    r"""A peak is where the slope changes its sign, in a half that is shorter than :math:`\pi`."""
    slope = jnp.cos if primitive.name == "sin" else lambda x: -jnp.sin(x)
    lower, upper = _numbers(x)
    points = [lower, lower / 2 + upper / 2, upper]
    bounds = _apart(
        _hull(*(primitive.bind(end, **params) for end in (lower, upper))),
        x.lower == x.upper,
        least=-1,
        most=1,
    )
    is_long, rises, falls = (jnp.zeros(x.shape, bool) for _ in range(3))
    for (start, a), (end, b) in itertools.pairwise([(p, slope(p)) for p in points]):
        is_long |= end - start >= 3.13
        rises |= (a <= 0) & (b >= 0)
        falls |= (a >= 0) & (b <= 0)
    is_wide = (x.lower < x.upper) & ~_may_be_nan(bounds)
    return Interval(
        jnp.where(is_wide & (is_long | rises), -1, bounds.lower),
        jnp.where(is_wide & (is_long | falls), 1, bounds.upper),
    )


@annotation_rule(Interval, "tan")
def _tangent(x: Interval, *, primitive: Any, **params: Any) -> Any:
    """The tangent increases from pole to pole: where it is less at the upper end, there is one."""
    bounds = _increasing(x, primitive=primitive, **params)
    width = x.upper - x.lower
    falls = jnp.where(
        width < 1.5, (bounds.lower > 0) & (bounds.upper < 0), bounds.lower > bounds.upper
    )
    bounds = _apart(bounds, x.lower == x.upper)
    return _unbounded(falls | ~(width < math.pi - 0.01), bounds)


@annotation_rule(Interval, "atan2")
def _angle(x: Any, y: Any, *, primitive: Any, **params: Any) -> Any:
    half_turn = jnp.full_like(primitive.bind(_numbers(x)[0], _numbers(y)[0]), math.pi)
    is_nan = functools.reduce(
        jnp.logical_or, (jnp.isnan(end) for operand in (x, y) for end in _numbers(operand))
    )
    return _unbounded(is_nan, Interval(-half_turn, half_turn))


@annotation_rule(Interval, "dot_general", "conv_general_dilated")
def _bilinear(
    x: Any, y: Any, *, primitive: Any, preferred_element_type: Any, **params: Any
) -> Any:
    if not inexact(_lower(x)):
        raise _refuse(primitive, "on integers")
    dtype = preferred_element_type or jnp.result_type(x.dtype, y.dtype)
    # JAX adds up numbers of 16 bits in 32.
    wide = functools.reduce(promoted, (x.dtype, y.dtype, dtype, "float32"))
    params["preferred_element_type"] = jnp.dtype(wide)
    x, y = (_widened(operand, wide) for operand in (x, y))
    multiply = functools.partial(primitive.bind, **params)
    size, error = _rounding(x, y, primitive, params)
    if primitive.name == "dot_general" and _is_one_large(x, y):
        # The sum of two products is rounded otherwise than the one product, also of a point.
        lower, upper = _by_sign(x, y, multiply)
    else:
        (x_centre, x_radius), (y_centre, y_radius) = map(_centred, (x, y))
        centre = multiply(x_centre, y_centre)
        radius = jnp.zeros_like(centre)
        if y_radius is None:
            radius += _sizes(y_centre, x_radius, False, primitive, params)
        elif x_radius is None:
            radius += _sizes(x_centre, y_radius, True, primitive, params)
        else:
            radius += multiply(x_radius, abs(y_centre))
            radius += multiply(abs(x_centre) + x_radius, y_radius)
        error = jnp.where(radius > 0, error, 0)
        lower, upper = centre - radius, centre + radius
    bounds = Interval((lower - error).astype(dtype), (upper + error).astype(dtype))
    # Sums of such sizes may be infinite on the way, and NaN at the end.
    return _bounded(*_ends(_unbounded(~jnp.isfinite(size), bounds)))


def _widened(x: Any, dtype: Any) -> Any:
    if isinstance(x, Interval):
        return Interval(*(end.astype(dtype) for end in _numbers(x)))
    return x.astype(dtype)


def _rounding(x: Any, y: Any, primitive: Any, params: Any) -> tuple[Any, Any]:
    """Bounds of the sums of products, and of their change by rounding."""
    x_size, y_size = (functools.reduce(jnp.maximum, map(abs, _ends(z))) for z in (x, y))
    if primitive.name == "dot_general":
        x_axes, y_axes = params["dimension_numbers"][0]
        count = math.prod(x.shape[axis] for axis in x_axes)
        greatest = x_size.max(x_axes, keepdims=True, initial=0)
        size = primitive.bind(greatest, y_size.sum(y_axes, keepdims=True), **params)
        # Without summed axes these were not reduced.
    else:
        out = params["dimension_numbers"].rhs_spec[0]
        summed = tuple(axis for axis in range(y.ndim) if axis != out)
        count = math.prod(y.shape[axis] for axis in summed)
        size = x_size.max(initial=0) * y_size.sum(summed).max(initial=0)
    return size, _units(count) / 2 * float(jnp.finfo(size.dtype).eps) * size


def _units(count: Any) -> Any:
    """How many units in the last place a sum of so many products may be off."""
    if isinstance(count, int):
        return min(2 * count + 2, 6 * math.sqrt(count) + 2)
    number = jnp.asarray(count).astype("float32")  # Of a symbolic size.
    return jnp.minimum(2 * number + 2, 6 * jnp.sqrt(number) + 2)


def _sizes(a: Any, radius: Any, is_first: bool, primitive: Any, params: Any) -> Any:
    """The product of the absolute values of an array with a radius."""
    if primitive.name == "dot_general":
        y = in_blocks.dot(jnp.abs, (a,), radius, is_first, **params)
        if y is not NotImplemented:
            return y
    operands = (abs(a), radius) if is_first else (radius, abs(a))
    return primitive.bind(*operands, **params)


# An interval of so many times the entries of the other operand is large.
_LARGE = 32


def _is_one_large(x: Any, y: Any) -> bool:
    """Whether an array is multiplied with an interval that is much larger."""
    if isinstance(x, Interval) == isinstance(y, Interval):
        return False
    interval, array = (x, y) if isinstance(x, Interval) else (y, x)
    return is_at_most(_LARGE * math.prod(jnp.shape(array)), math.prod(interval.shape))


def _by_sign(x: Any, y: Any, multiply: Callable[[Any, Any], Any]) -> tuple[Any, Any]:
    r"""The product, with the positive and negative entries of the array apart.

    :math:`A x \ge \underline A x^+ + \overline A x^-` takes twice as many operations as with
    a centre and a radius, but makes no array of the size of the interval. That takes longer
    if the array is small.
    """
    if isinstance(y, Interval):
        return _by_sign(y, x, lambda a, b: multiply(b, a))
    positive, negative = jnp.maximum(y, 0), jnp.minimum(y, 0)
    return (
        multiply(x.lower, positive) + multiply(x.upper, negative),
        multiply(x.upper, positive) + multiply(x.lower, negative),
    )


def _centred(x: Any) -> tuple[Any, Any]:
    if not isinstance(x, Interval):
        return x, None
    return x.lower / 2 + x.upper / 2, x.upper / 2 - x.lower / 2


# --- derivatives ------------------------------------------------------------------------


@annotation_rule(Interval, "stop_gradient")
def _stop_gradient(x: Interval, *, primitive: Any, **params: Any) -> Any:
    """Stop the derivative of the centre. That of the width is one of the bounds alone."""
    if not inexact(x.lower):
        return x
    return Interval(*_with_still_centre(x.lower, x.upper))


@jax.custom_jvp
def _with_still_centre(lower: Any, upper: Any) -> tuple[Any, Any]:
    return lower, upper


@_with_still_centre.defjvp
def _(primals: Any, tangents: Any) -> Any:
    radius = (tangents[1] - tangents[0]) / 2
    return primals, (-radius, radius)


# --- comparisons and choices ------------------------------------------------------------


@annotation_rule(Interval, *COMPARISON)
def _compare(x: Any, y: Any, *, primitive: Any, **params: Any) -> Any:
    """The lower bound is what holds surely, the upper bound what may hold."""
    is_total = primitive.name.endswith("_to")
    if x is y:
        return _compare_with_itself(x, primitive.name.removesuffix("_to"), is_total)
    ends = _in_total_order if is_total else _ordered
    (x_low, x_high), (y_low, y_high) = map(ends, (x, y))
    name = primitive.name.removesuffix("_to")
    if name in ("gt", "ge"):
        surely, possibly = (x_low, y_high), (x_high, y_low)
    else:
        surely, possibly = (x_high, y_low), (x_low, y_high)
    if name in ("lt", "le", "gt", "ge"):
        may_hold = primitive.bind(*possibly)
        if is_total:  # NaN is the least or the greatest there.
            may_hold |= _nan_in(x, y)
        return Interval(primitive.bind(*surely) & ~_nan_in(x, y), may_hold)
    overlap = (x_low <= y_high) & (y_low <= x_high)
    equal = primitive.bind if is_total else jnp.equal
    same = equal(x_low, y_high) & equal(x_high, y_low)
    return Interval(same, overlap) if name == "eq" else Interval(~overlap, ~same)


def _compare_with_itself(x: Interval, name: str, is_total: bool) -> Interval:
    """Each number is equal to itself; NaN is not, except in the total order."""
    never = jnp.zeros(x.shape, bool)
    may_be_nan = never if is_total else _may_be_nan(x)
    if name in ("eq", "le", "ge"):
        return Interval(~may_be_nan, ~never)
    return Interval(never, may_be_nan if name == "ne" else never)


def _nan_in(*operands: Any) -> Any:
    """Where an operand may be NaN, so that nothing holds surely."""
    may_be_nan = [_may_be_nan(x) for x in operands if isinstance(x, Interval)]
    return functools.reduce(jnp.logical_or, may_be_nan)


def _ordered(x: Any) -> tuple[Any, Any]:
    """The bounds, which rounding may have exchanged if they are close to each other."""
    lower, upper = _lower(x), _upper(x)
    if lower is upper:
        return lower, upper
    return jnp.minimum(lower, upper), jnp.maximum(lower, upper)


def _in_total_order(x: Any) -> tuple[Any, Any]:
    """The same where -0 is below 0. A bound that is zero does not tell the sign."""
    lower, upper = _ordered(x)
    if lower is upper or not jnp.issubdtype(lower.dtype, jnp.floating):
        return lower, upper
    return jnp.where(lower == 0, -0.0, lower), jnp.where(upper == 0, 0.0, upper)


@annotation_rule(Interval, "is_finite")
def _is_finite(x: Interval, *, primitive: Any, **params: Any) -> Any:
    lower, upper = map(jnp.isfinite, _numbers(x))
    return Interval(lower & upper, lower | upper | (x.lower < x.upper))


@annotation_rule(Interval, "select_n")
def _select(condition: Any, *cases: Any, primitive: Any, **params: Any) -> Any:
    if not isinstance(condition, Interval):
        return _move(condition, *cases, primitive=primitive)
    if condition.dtype != jnp.bool_:
        raise _refuse(primitive, "among several by a number")
    no, yes = (Interval(*_numbers(case)) for case in cases)
    surely, never = condition.lower, ~condition.upper

    def bound(end: Callable[[Any], Any], either: Callable[[Any, Any], Any]) -> Any:
        undecided = either(end(no), end(yes))
        return jnp.where(surely, end(yes), jnp.where(never, end(no), undecided))

    return _bounded(bound(_lower, jnp.minimum), bound(_upper, jnp.maximum))

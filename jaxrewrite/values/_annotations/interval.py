"""`Interval`: bounds on arrays, and on whatever is computed from them."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from jaxrewrite.primitives import COMPARISON, CUMULATIVE, DECREASING, INCREASING, UNARY

from .._base import in_blocks
from .._base.structured import Structured, disproved, inexact, split_alike
from .declaration import MOVING, REDUCING, SCATTER, annotation_rule, applies_function, like


class Interval(Structured):
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
    not tight: :math:`x - x` is not zero. A quotient by an interval around zero, and a
    result outside the domain of a function, are unbounded. If the interval ends in zero, its
    quotient is that of the other numbers in it: :math:`1 / [0, 1]` is :math:`[1, \infty]`,
    which leaves out the :math:`-\infty` of a negative zero. Intervals serve to bound the
    results of a network by bounds on its inputs, also in training (interval bound
    propagation).

    A comparison gives an interval of booleans: the lower bound holds surely, the upper
    bound may hold. A choice by such an interval (``jnp.where``, ``jax.lax.select``) gives
    bounds of both branches where it is undecided. ``jax.lax.cond`` and ``while_loop`` need
    to know the answer and raise. Functions without known bounds, such as ``argmax`` or
    ``lgamma``, raise too, because an interval is never dense.

    **Rounding is not directed**: bounds are computed in the dtype of the array, so they
    hold up to its rounding errors, and subnormal numbers are zero. A function with a
    derivative rule of its own (`jax.custom_jvp`) is bounded by its own equations, and
    derivatives of the bounds are derivatives of these equations.

    The arithmetic is that of Moore, "Interval Analysis" (1966), and the product of matrices
    that of Rump, "Fast and parallel interval arithmetic" (1999). The bounds of neural
    networks are those of Gowal et al., "On the effectiveness of interval bound propagation"
    (2018).

    Parameters
    ----------
    lower, upper
        Arrays or other values, of one shape and one real dtype. ``lower`` must not be above
        ``upper``.

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
    (Array([0., 0.], dtype=float32), Array([ 0., 25.], dtype=float32))
    >>> positive = x > 0
    >>> positive.lower, positive.upper
    (Array([False,  True], dtype=bool), Array([ True,  True], dtype=bool))
    """

    outer = 10
    _is_compiled_densely = False
    _ignores_custom_rules = True

    lower: Array
    upper: Array

    def __post_init__(self) -> None:
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

    @classmethod
    def around(cls, centre: Any, radius: Any) -> Interval:
        """Return all arrays that differ from ``centre`` by at most ``radius``."""
        lower, upper = centre - radius, centre + radius
        return cls(*jnp.broadcast_arrays(lower, upper))

    def contains(self, x: Any) -> Any:
        """Return whether each entry of an array is within the bounds."""
        return (self.lower <= x) & (x <= self.upper)

    def aval(self) -> Any:
        """The aval of the bounds."""
        return like(self.lower)

    def materialise(self) -> Any:
        """Raise: one array is not known."""
        raise TypeError("it is known within bounds only, and there is no rule for these.")

    def join(self, other: Any) -> Any:
        """An array is an interval with equal bounds."""
        return self, other if isinstance(other, Interval) else Interval(other, other)

    def stacked(self, size: int) -> Any:
        return self

    def unstacked(self) -> Any:
        return self

    def leaf_specs(self, spec: Any) -> Any:
        return split_alike(self, spec)


def _are_in_order(xp: Any, lower: Any, upper: Any) -> Any:
    return (lower <= upper).all()


def _lower(x: Any) -> Any:
    return x.lower if isinstance(x, Interval) else x


def _upper(x: Any) -> Any:
    return x.upper if isinstance(x, Interval) else x


def _ends(x: Any) -> tuple[Any, ...]:
    return (x.lower, x.upper) if isinstance(x, Interval) else (x,)


def _bounded(lower: Any, upper: Any) -> Interval:
    """An interval that is unbounded where a bound is NaN."""
    if not inexact(lower):
        return Interval(lower, upper)
    return Interval(
        jnp.where(jnp.isnan(lower), -jnp.inf, lower),
        jnp.where(jnp.isnan(upper), jnp.inf, upper),
    )


def _hull(*corners: Any) -> Interval:
    """The interval from the least to the greatest of some arrays, entry by entry."""
    return _bounded(
        functools.reduce(jnp.minimum, corners), functools.reduce(jnp.maximum, corners)
    )


def _refuse(primitive: Any, why: str) -> TypeError:
    return TypeError(f"Interval has no bounds of {primitive.name} {why}.")


# --- monotone -------------------------------------------------------------------------


def _between(
    primitive: Any, lower: Sequence[Any], upper: Sequence[Any], params: Any
) -> Any:
    below, above = primitive.bind(*lower, **params), primitive.bind(*upper, **params)
    if primitive.multiple_results:
        return list(map(_bounded, below, above))
    return _bounded(below, above)


@annotation_rule(
    Interval,
    *INCREASING,
    *MOVING,
    *REDUCING,
    *(name for name in CUMULATIVE if name != "cumprod"),
    *("acosh", "real", "reduce_precision", "reduce_and", "reduce_or"),
    *("reduce_window_sum", "reduce_window_max", "reduce_window_min"),
    *("dynamic_slice", "dynamic_update_slice", "gather"),
    *("add", "add_any", "max", "min", "clamp"),
    *("concatenate", "pad", "stack"),
)
def _increasing(*operands: Any, primitive: Any, **params: Any) -> Any:
    return _between(primitive, [*map(_lower, operands)], [*map(_upper, operands)], params)


@annotation_rule(Interval, *SCATTER)
def _scatter(*operands: Any, primitive: Any, **params: Any) -> Any:
    if applies_function(primitive, params):
        raise _refuse(primitive, "that applies a function; write x.at[i].set(f(x[i]))")
    if primitive.name == "scatter-sub":
        x, indices, updates = operands
        lower = [_lower(x), indices, _upper(updates)]
        return _between(primitive, lower, [_upper(x), indices, _lower(updates)], params)
    return _increasing(*operands, primitive=primitive, **params)


@annotation_rule(Interval, *(name for name in DECREASING if name != "rsqrt"))
def _decreasing(x: Interval, *, primitive: Any, **params: Any) -> Any:
    return _between(primitive, [x.upper], [x.lower], params)


@annotation_rule(Interval, "rsqrt")
def _inverse_root(x: Interval, *, primitive: Any, **params: Any) -> Any:
    x = Interval(_positive_zero(x.lower), _positive_zero(x.upper))
    return _decreasing(x, primitive=primitive, **params)


def _positive_zero(x: Any) -> Any:
    """The same numbers without a negative zero, whose inverse is below all others."""
    return jnp.where(x == 0, jnp.zeros_like(x), x)


@annotation_rule(Interval, "sub")
def _subtract(x: Any, y: Any, *, primitive: Any, **params: Any) -> Any:
    return _bounded(_lower(x) - _upper(y), _upper(x) - _lower(y))


@annotation_rule(Interval, "and", "or", "not")
def _logical(*operands: Any, primitive: Any, **params: Any) -> Any:
    if operands[0].dtype != jnp.bool_:
        raise _refuse(primitive, "on integers")
    if primitive.name == "not":
        return _decreasing(*operands, primitive=primitive)
    return _increasing(*operands, primitive=primitive)


@annotation_rule(Interval, "convert_element_type")
def _convert(x: Interval, *, primitive: Any, new_dtype: Any, **params: Any) -> Any:
    if jnp.issubdtype(new_dtype, jnp.bool_):
        return _compare(x, jnp.zeros((), x.dtype), primitive=lax.ne_p)
    return _increasing(x, primitive=primitive, new_dtype=new_dtype, **params)


@annotation_rule(Interval, "sort")
def _sort(*operands: Any, primitive: Any, **params: Any) -> Any:
    """Each entry of a sorted array is an increasing function of all entries."""
    if len(operands) > 1:
        raise _refuse(primitive, "that takes other arrays along")
    return _increasing(*operands, primitive=primitive, **params)


# --- not monotone ---------------------------------------------------------------------


def _magnitudes(x: Interval) -> tuple[Any, Any]:
    """The least and the greatest absolute value."""
    ends = abs(x.lower), abs(x.upper)
    around_zero = (x.lower <= 0) & (x.upper >= 0)
    least = jnp.where(around_zero, jnp.zeros_like(ends[0]), jnp.minimum(*ends))
    return least, jnp.maximum(*ends)


_EVEN = ("abs", "square", "cosh", "one_minus_square")


@annotation_rule(Interval, *(name for name in UNARY if name in _EVEN))
def _even(x: Interval, *, primitive: Any, **params: Any) -> Any:
    least, greatest = (primitive.bind(m, **params) for m in _magnitudes(x))
    return _hull(least, greatest)


@annotation_rule(Interval, "integer_pow")
def _integer_pow(x: Interval, *, primitive: Any, y: int) -> Any:
    if y % 2 == 0:
        return _even(x, primitive=primitive, y=y)
    if y > 0:
        return _increasing(x, primitive=primitive, y=y)
    return _divide(jnp.ones((), x.dtype), _integer_pow(x, primitive=primitive, y=-y))


def _corners(fn: Callable[[Any, Any], Any], x: Any, y: Any) -> Interval:
    """Bounds of a function that is monotone in each operand, for any value of the other.

    The bound of numbers may be infinite, but the numbers are not: so 0 times infinity is 0.
    An array that an interval meets may be NaN, and so is the result then.
    """
    pairs = list(itertools.product(_ends(x), _ends(y)))
    corners = [fn(a, b) for a, b in pairs]
    if inexact(corners[0]):
        corners = [
            jnp.where(jnp.isnan(corner) & ~jnp.isnan(a) & ~jnp.isnan(b), 0, corner)
            for corner, (a, b) in zip(corners, pairs, strict=True)
        ]
    return _hull(*corners)


@annotation_rule(Interval, "mul")
def _times(x: Any, y: Any, *, primitive: Any, **params: Any) -> Any:
    return _corners(lax.mul, x, y)


@annotation_rule(Interval, "div")
def _quotient(x: Any, y: Any, *, primitive: Any, **params: Any) -> Any:
    if not inexact(_lower(x)):
        raise _refuse(primitive, "on integers")
    return _divide(x, y)


def _divide(x: Any, y: Any) -> Interval:
    if not isinstance(y, Interval):
        return _corners(lax.div, x, y)
    # A zero at an end stands for the limit from inside the interval.
    zero = jnp.zeros_like(y.lower)
    y = Interval(
        jnp.where(y.lower == 0, zero, y.lower), jnp.where(y.upper == 0, -zero, y.upper)
    )
    quotient = _corners(lax.div, x, y)
    around_zero = ((y.lower < 0) & (y.upper > 0)) | ((y.lower == 0) & (y.upper == 0))
    return _unbounded(around_zero, quotient)


def _unbounded(where: Any, x: Interval) -> Interval:
    return Interval(jnp.where(where, -jnp.inf, x.lower), jnp.where(where, jnp.inf, x.upper))


@annotation_rule(Interval, "pow")
def _power(x: Any, y: Any, *, primitive: Any, **params: Any) -> Any:
    """Bounds for a base that is not negative. A negative base is unbounded: it may give NaN."""
    ends = [_positive_zero(end) for end in _ends(x)]
    base = Interval(*ends) if len(ends) == 2 else ends[0]
    return _unbounded(_lower(x) < 0, _corners(lax.pow, base, y))


@annotation_rule(Interval, "sin", "cos")
def _wave(x: Interval, *, primitive: Any, **params: Any) -> Any:
    peak = math.pi / 2 if primitive.name == "sin" else 0.0
    ends = [primitive.bind(end, **params) for end in (x.lower, x.upper)]
    # The phase of a large number is lost to rounding.
    whole = ~(x.upper - x.lower < 2 * math.pi) | _is_large(x)
    return Interval(
        jnp.where(whole | _meets(x, peak + math.pi, 2 * math.pi), -1, jnp.minimum(*ends)),
        jnp.where(whole | _meets(x, peak, 2 * math.pi), 1, jnp.maximum(*ends)),
    )


@annotation_rule(Interval, "tan")
def _tangent(x: Interval, *, primitive: Any, **params: Any) -> Any:
    pole = ~(x.upper - x.lower < math.pi) | _meets(x, math.pi / 2, math.pi) | _is_large(x)
    return _unbounded(pole, _increasing(x, primitive=primitive, **params))


def _meets(x: Interval, point: float, period: float) -> Any:
    """Whether one of the points ``point + k * period`` is inside."""
    first = jnp.ceil((x.lower - point) / period)
    return first <= jnp.floor((x.upper - point) / period)


def _is_large(x: Interval) -> Any:
    return _magnitudes(x)[1] * jnp.finfo(x.dtype).eps > 1e-3


@annotation_rule(Interval, "atan2")
def _angle(x: Any, y: Any, *, primitive: Any, **params: Any) -> Any:
    whole = jnp.full_like(primitive.bind(_lower(x), _lower(y)), math.pi)
    return Interval(-whole, whole)


@annotation_rule(Interval, "dot_general", "conv_general_dilated")
def _bilinear(x: Any, y: Any, *, primitive: Any, **params: Any) -> Any:
    if not inexact(_lower(x)):
        raise _refuse(primitive, "on integers")
    if primitive.name == "dot_general" and _is_one_large(x, y):
        return _by_sign(x, y, functools.partial(primitive.bind, **params))
    multiply = functools.partial(primitive.bind, **params)
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
    return _bounded(centre - radius, centre + radius)


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
    sizes = math.prod(interval.shape), math.prod(jnp.shape(array))
    return all(isinstance(n, int) for n in sizes) and sizes[0] >= _LARGE * sizes[1]


def _by_sign(x: Any, y: Any, multiply: Callable[[Any, Any], Any]) -> Interval:
    r"""The product, with the positive and negative entries of the array apart.

    :math:`A x \ge \underline A x^+ + \overline A x^-` takes twice as many operations as with
    a centre and a radius, but makes no array of the size of the interval. That takes longer
    if the array is small.
    """
    if isinstance(y, Interval):
        return _by_sign(y, x, lambda a, b: multiply(b, a))
    positive, negative = jnp.maximum(y, 0), jnp.minimum(y, 0)
    return _bounded(
        multiply(x.lower, positive) + multiply(x.upper, negative),
        multiply(x.upper, positive) + multiply(x.lower, negative),
    )


def _centred(x: Any) -> tuple[Any, Any]:
    if not isinstance(x, Interval):
        return x, None
    return x.lower / 2 + x.upper / 2, x.upper / 2 - x.lower / 2


# --- comparisons and choices ------------------------------------------------------------


@annotation_rule(Interval, *COMPARISON)
def _compare(x: Any, y: Any, *, primitive: Any, **params: Any) -> Any:
    """The lower bound is what holds surely, the upper bound what may hold."""
    is_total = primitive.name.endswith("_to")
    ends = _in_total_order if is_total else _ordered
    (x_low, x_high), (y_low, y_high) = map(ends, (x, y))
    name = primitive.name.removesuffix("_to")
    if name in ("lt", "le"):
        return _between(primitive, [x_high, y_low], [x_low, y_high], {})
    if name in ("gt", "ge"):
        return _between(primitive, [x_low, y_high], [x_high, y_low], {})
    overlap = (x_low <= y_high) & (y_low <= x_high)
    equal = primitive.bind if is_total else jnp.equal
    same = equal(x_low, y_high) & equal(x_high, y_low)
    return Interval(same, overlap) if name == "eq" else Interval(~overlap, ~same)


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
    lower, upper = map(jnp.isfinite, (x.lower, x.upper))
    return Interval(lower & upper, lower | upper | (x.lower < x.upper))


@annotation_rule(Interval, "select_n")
def _select(which: Any, *cases: Any, primitive: Any, **params: Any) -> Any:
    if not isinstance(which, Interval):
        return _increasing(which, *cases, primitive=primitive)
    if which.dtype != jnp.bool_:
        raise _refuse(primitive, "among several by a number")
    no, yes = cases
    surely, never = which.lower, ~which.upper

    def chosen(end: Callable[[Any], Any], either: Callable[[Any, Any], Any]) -> Any:
        undecided = either(end(no), end(yes))
        return jnp.where(surely, end(yes), jnp.where(never, end(no), undecided))

    return _bounded(chosen(_lower, jnp.minimum), chosen(_upper, jnp.maximum))

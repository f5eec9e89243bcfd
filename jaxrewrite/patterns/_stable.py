r"""Formulas that lose digits or overflow, and formulas that do not.

Each pattern is an identity of real numbers. What is put in its place has no value, and no
derivative, that is worse in floating-point arithmetic, and none that is not a number where
what was written is one. Numbers of 16 bits are computed in float32. The sources:

.. [H] R. W. Hamming, *Numerical Methods for Scientists and Engineers*, 2nd ed., chapter 3;
   these are the benchmarks of Herbie, https://herbie.uwplse.org.
.. [M] M. Maechler, *Accurately computing log(1 - exp(-|a|))*, vignette of the R package
   Rmpfr, 2012.
.. [BH] P. Blanchard, D. J. Higham and N. J. Higham, *Accurately computing the log-sum-exp and
   softmax functions*, IMA J. Numer. Anal. 41(4), 2021.
.. [NH] N. J. Higham, *Accuracy and Stability of Numerical Algorithms*, 2nd ed., 2002.
.. [G] D. Goldberg, *What every computer scientist should know about floating-point
   arithmetic*, ACM Computing Surveys 23(1), 1991.
.. [K] W. Kahan, *Branch cuts for complex elementary functions*, 1987.

All patterns are for dense arrays of real floating-point numbers. A comment tells where a
derivative has a rule of its own: where the automatic derivative of the better formula is worse
than the derivative of the formula that was written.
"""

import functools
import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from jaxrewrite import Axis, Rules


rules = Rules()

# The operands that the patterns are for.
Real = Float[Array, "..."]
Same = Float[Array, "*shape"]  # of operands of one shape

# JAX has three primitives for a square; a program may write any of them.
Square = Literal["x * x", "x ** 2", "square(x)"]


def squared(x: Any, how: Square) -> Any:
    if how == "x * x":
        return x * x
    return x**2 if how == "x ** 2" else jnp.square(x)


# --- numbers of 16 bits ---------------------------------------------------------------


def is_floating(x: Any) -> bool:
    """Whether an operand is an array of floats, and no static number or mask."""
    return isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jnp.floating)


def is_short(x: Any) -> bool:
    return is_floating(x) and jnp.finfo(x.dtype).bits < 32


@functools.cache
def rounded_once(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function that computes in float32 where operands have fewer bits.

    XLA computes what was written in float32 and rounds after each operation, or only at the
    end. So no other formula is as precise whose operations are rounded one by one.
    """

    @functools.wraps(fn)
    def rounded(*operands, **statics):
        if not any(map(is_short, operands)):
            return fn(*operands, **statics)
        dtype = jnp.result_type(*filter(is_floating, operands))
        # A number in the program is one of the dtype, and not the decimal that it is shown as.
        numbers = (np.asarray(x, dtype).item() if type(x) is float else x for x in operands)
        out = fn(*map(widened, numbers), **statics)
        return out if out is NotImplemented else out.astype(dtype)

    return rounded


def widened(x: Any) -> Any:
    return x.astype(jnp.float32) if is_short(x) else x


def rewrite(before: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Register a better formula; a decorator, as `jaxrewrite.Rules.rewrite`."""

    def decorate(fn):
        rules.rewrite(before, **options)(rounded_once(fn))
        return fn

    return decorate


# --- functions with derivatives of their own ------------------------------------------


@jax.custom_jvp
def expm1(x):
    """``exp(x) - 1``; JAX's derivative, ``expm1(x) + 1``, has no digits for large -x."""
    return jnp.expm1(x)


@expm1.defjvp
def _(primals, tangents):
    (x,), (t,) = primals, tangents
    return expm1(x), t * jnp.exp(x)


@jax.custom_jvp
def sigmoid(x):
    """The logistic function; JAX's derivative of it has no digits for large x."""
    return jax.nn.sigmoid(x)


@sigmoid.defjvp
def _(primals, tangents):
    (x,), (t,) = primals, tangents
    return sigmoid(x), t * (sigmoid(x) * sigmoid(-x))


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def over_one_plus_exp(x, c):
    """``c / (1 + exp(x))``, with a derivative also where the exponential overflows."""
    return c / (1 + jnp.exp(x))


@over_one_plus_exp.defjvp
def _(c, primals, tangents):
    (x,), (t,) = primals, tangents
    out = over_one_plus_exp(x, c)
    return out, -t * (out * sigmoid(x))


@jax.custom_jvp
def logaddexp(x, y):
    """``log(exp(x) + exp(y))``; JAX's derivative of it has no digits for large x and y."""
    return jnp.logaddexp(x, y)


@logaddexp.defjvp
def _(primals, tangents):
    (x, y), (tx, ty) = primals, tangents
    return logaddexp(x, y), tx * sigmoid(x - y) + ty * sigmoid(y - x)


def log1mexp(x):
    """``log(1 - exp(x))`` for ``x <= 0`` [M]_."""
    small = x > -math.log(2)
    return jnp.where(
        small,
        jnp.log(-jnp.expm1(jnp.where(small, x, -1))),
        jnp.log1p(-jnp.exp(x)),
    )


@jax.custom_jvp
def logsubexp(x, y, is_zero):
    """``log(exp(x) - exp(y))``.

    Where y is greater than x by so little that the difference of the exponentials rounds
    to 0, it is taken for 0, as in what was written: ``is_zero``.
    """
    is_zero = (x == y) | ((x < y) & is_zero)
    return x + log1mexp(jnp.where(is_zero, 0, y - x))


@logsubexp.defjvp
def _(primals, tangents):
    (x, y, is_zero), (tx, ty, _) = primals, tangents
    slope_x, slope_y = slopes_of_logsubexp(jnp.where(x == y, 0, y - x))
    return logsubexp(x, y, is_zero), tx * slope_x - ty * slope_y


def slopes_of_logsubexp(d, exactly=False):
    """The derivatives of `logsubexp` to x and to -y, by ``d = y - x``.

    Where d > 0 the result is not a number, but the derivatives are: a program may select
    something else there. At 0 they are positive, as ``1 - 1`` is, and, if ``exactly``, have
    the sign of ``-d``, as ``expm1(-d)`` has.
    """
    below = jnp.where(d > 0, -d, d)
    n, m = jnp.exp(below), expm1(below)
    m = -m if exactly else 0 - m
    return jnp.where(d > 0, -n, 1) / m, jnp.where(d > 0, -1, n) / m


@partial(jax.custom_jvp, nondiff_argnums=(2,))
def log_one_less_exp(x, is_zero, exactly):
    """``log(1 - exp(x))``; with a tangent 0 for the 1 there would be 0 * inf.

    If ``exactly``, it is ``log(-expm1(x))``.
    """
    is_zero = (x == 0) | ((x > 0) & is_zero)
    return log1mexp(jnp.where(is_zero, 0, x))


@log_one_less_exp.defjvp
def _(exactly, primals, tangents):
    (x, is_zero), (t, _) = primals, tangents
    slope = -slopes_of_logsubexp(x, exactly)[1]
    return log_one_less_exp(x, is_zero, exactly), t * slope


@partial(jax.custom_jvp, nondiff_argnums=(2,))
def log_exp_less_one(x, is_zero, exactly):
    """``log(exp(x) - 1)``, or ``log(expm1(x))``."""
    return logsubexp(x, jnp.zeros_like(x), is_zero)


@log_exp_less_one.defjvp
def _(exactly, primals, tangents):
    (x, is_zero), (t, _) = primals, tangents
    slope = slopes_of_logsubexp(-x, exactly)[0]
    return log_exp_less_one(x, is_zero, exactly), t * slope


@jax.custom_jvp
def versine(x):
    """``1 - cos(x)``; the half of a small x may be no normal number."""
    return 2 * jnp.square(jnp.sin(x / 2))


@versine.defjvp
def _(primals, tangents):
    (x,), (t,) = primals, tangents
    return versine(x), t * jnp.sin(x)


@jax.custom_jvp
def sech_squared(x):
    """``1 - tanh(x)**2``, to full precision also for large x."""
    return 4 * jax.nn.sigmoid(2 * x) * jax.nn.sigmoid(-2 * x)


@sech_squared.defjvp
def _(primals, tangents):
    (x,), (t,) = primals, tangents
    out = sech_squared(x)
    return out, t * (-2 * tanh(x) * out)


@jax.custom_jvp
def tanh(x):
    """The hyperbolic tangent; JAX's derivative of it has no digits for large x."""
    return jnp.tanh(x)


@tanh.defjvp
def _(primals, tangents):
    (x,), (t,) = primals, tangents
    return tanh(x), t * sech_squared(x)


@jax.custom_jvp
def log_sech_squared(x):
    """``log(1 - tanh(x)**2)``."""
    far = 2 * (math.log(2) - jnp.abs(x) - jax.nn.softplus(-2 * jnp.abs(x)))
    near = jnp.tanh(jnp.clip(x, -1, 1))
    return jnp.where(jnp.abs(x) < 0.5, jnp.log1p(-near * near), far)


@log_sech_squared.defjvp
def _(primals, tangents):
    (x,), (t,) = primals, tangents
    return log_sech_squared(x), t * (-2 * tanh(x))


@jax.custom_jvp
def difference_of_squares(x, y):
    """``x*x - y*y``; automatic derivatives of the product would cancel.

    Of absolute values, so that it is +0, as what was written, where the squares are equal.
    """
    x, y = jnp.abs(x), jnp.abs(y)
    # The sum of equal numbers may be infinite, and their difference is 0.
    return (x - y) * jnp.minimum(x + y, jnp.finfo(jnp.result_type(x, y)).max)


@difference_of_squares.defjvp
def _(primals, tangents):
    (x, y), (tx, ty) = primals, tangents
    return difference_of_squares(x, y), 2 * (tx * x) - 2 * (ty * y)


def is_usable(c, x):
    """Whether ``x + c`` overflows for no x, and c is a number that XLA takes for no zero."""
    info = jnp.finfo(x.dtype)
    return info.smallest_normal <= abs(c) < 2.0 ** (info.maxexp - info.nmant - 2)


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def difference_of_square_roots(x, c):
    """``sqrt(x + c) - sqrt(x)``."""
    return c / (jnp.sqrt(x + c) + jnp.sqrt(x))


@difference_of_square_roots.defjvp
def _(c, primals, tangents):
    (x,), (t,) = primals, tangents
    out = difference_of_square_roots(x, c)
    return out, -t * (out / jnp.sqrt(x + c) * (0.5 / jnp.sqrt(x)))


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def difference_of_logarithms(x, c):
    """``log(x + c) - log(x)``."""
    # Otherwise the logarithms differ, and c / x may be next to -1.
    is_far = x > (c if c > 0 else -2 * c)
    near = jnp.log(x + c) - jnp.log(x)
    far = jnp.log1p(c / jnp.where(is_far, x, jnp.nan))
    return jnp.where(is_far, far, near)


@difference_of_logarithms.defjvp
def _(c, primals, tangents):
    (x,), (t,) = primals, tangents
    # XLA makes c / (x * (x + c)) of c / x / (x + c), which overflows earlier.
    return difference_of_logarithms(x, c), -t * (1 / x * (c / (x + c)))


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def difference_of_reciprocals(x, c):
    """``1 / x - 1 / (x + c)``."""
    return 1 / x * (c / (x + c))


@difference_of_reciprocals.defjvp
def _(c, primals, tangents):
    (x,), (t,) = primals, tangents
    out = difference_of_reciprocals(x, c)
    largest = jnp.finfo(x.dtype).max
    z = jnp.clip(x, -largest, largest)  # The quotient of infinite ones is 1.
    # Half the sum of the reciprocals, which may cancel.
    mean = 1 / x * ((z + c / 2) / (z + c))
    return out, -t * (2 * (out * mean))


@partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def two_pass_variance(x, axis, keepdims):
    """The mean of squared deviations from the mean."""
    deviation = x - jnp.mean(x, axis=axis, keepdims=True)
    return jnp.mean(jnp.square(deviation), axis=axis, keepdims=keepdims)


@two_pass_variance.defjvp
def _(axis, keepdims, primals, tangents):
    (x,), (t,) = primals, tangents
    # The automatic derivative multiplies infinite deviations by each other.
    deviation = x - jnp.mean(x, axis=axis, keepdims=True)
    return (
        two_pass_variance(x, axis, keepdims),
        2 * jnp.mean(deviation * t, axis=axis, keepdims=keepdims),
    )


@partial(jax.custom_jvp, nondiff_argnums=(2,))
def log_prod(x, is_zero, axis):
    """``log(prod(x))``, by the sum of logarithms where the product leaves the range.

    There the two differ by more than what is rounded. A negative product has no logarithm,
    or -inf if it is zero in what was written: ``is_zero``.
    """
    logs = jnp.log(jnp.abs(x))
    is_negative = jnp.prod(jnp.sign(x), axis=axis) < 0
    otherwise = jnp.where(is_zero, -jnp.inf, jnp.nan)
    far = jnp.where(is_negative, otherwise, jnp.sum(logs, axis=axis))
    near = jnp.log(jnp.prod(x, axis=axis))
    rounding = 8 * jnp.finfo(x.dtype).eps * jnp.sum(jnp.abs(logs), axis=axis)
    return jnp.where(jnp.abs(near - far) <= rounding, near, far)


@log_prod.defjvp
def _(axis, primals, tangents):
    (x, is_zero), (t, _) = primals, tangents
    return log_prod(x, is_zero, axis), jnp.sum(t / x, axis=axis)


def root_of_scale(x, y):
    """The square root of a power of two by which x and y have squares; 1 if they have.

    A larger one would take small numbers so far up that second derivatives leave the range.
    """
    info = jnp.finfo(jnp.result_type(x, y))
    high, low = info.maxexp // 2 - 1, (info.minexp + info.nmant) // 2
    big = lax.stop_gradient(jnp.maximum(jnp.abs(x), jnp.abs(y)))
    down, up = 2.0 ** -(high // 2 + 3), 2.0 ** (-info.minexp // 3)
    is_large, is_small = big >= 2.0**high, (big <= 2.0**low) & (big > 0)
    return jnp.where(is_large, down, jnp.where(is_small, up, 1.0)).astype(big.dtype)


def length(x, y):
    return jnp.sqrt(x * x + y * y)


@jax.custom_jvp
def hypot(x, y):
    """``sqrt(x*x + y*y)``, scaled by a power of two where the squares leave the range.

    Where nothing leaves the range, not a bit of the result is another.
    """
    scale = jnp.square(root_of_scale(x, y))
    return length(x * scale, y * scale) / scale


@hypot.defjvp
def _(primals, tangents):
    (x, y), (tx, ty) = primals, tangents
    # The smaller of two numbers has a derivative also where it vanishes when scaled.
    root = root_of_scale(x, y)
    scaled = length(x * root * root, y * root * root)
    slope_x, slope_y = (z * root / scaled * root for z in (x, y))
    return hypot(x, y), tx * slope_x + ty * slope_y


def half_exp(x):
    """``exp(x) / 2``, which overflows later than ``exp(x)``."""
    root = jnp.exp(x / 2)
    return 0.5 * root * root


@jax.custom_jvp
def sinh(x):
    near = jnp.expm1(jnp.clip(x, -1, 1))
    small = (near + near / (near + 1)) / 2
    return jnp.where(jnp.abs(x) < 1, small, half_exp(x) - half_exp(-x))


@sinh.defjvp
def _(primals, tangents):
    (x,), (t,) = primals, tangents
    return sinh(x), t * cosh(x)


@jax.custom_jvp
def cosh(x):
    return half_exp(x) + half_exp(-x)


@cosh.defjvp
def _(primals, tangents):
    (x,), (t,) = primals, tangents
    return cosh(x), t * sinh(x)


@jax.custom_jvp
def log_ndtr(x):
    """The logarithm of the normal distribution function; also its derivative far out.

    It is the quotient of density and probability. For large -x both underflow, and there are
    the first terms of its asymptotic series (M. Abramowitz and I. A. Stegun, *Handbook of
    Mathematical Functions*, 26.2.12).
    """
    return jax.scipy.special.log_ndtr(x)


@log_ndtr.defjvp
def _(primals, tangents):
    (x,), (t,) = primals, tangents
    far = -7 if x.dtype == jnp.float32 else -30
    z = -jnp.where(x < far, x, far)
    w = 1 / (z * z)
    series = z * (1 + w * (1 - w * (2 - w * (10 - w * (74 - 706 * w)))))
    near = density_by_probability(jnp.where(x < far, far, x))
    return log_ndtr(x), t * jnp.where(x < far, series, near)


@jax.custom_jvp
def density_by_probability(x):
    """The density of the normal distribution divided by its distribution function.

    The square of the probability, by which a derivative of the quotient would divide,
    underflows long before the probability.
    """
    probability, density = jax.jvp(jax.scipy.special.ndtr, (x,), (jnp.ones_like(x),))
    return density / probability


@density_by_probability.defjvp
def _(primals, tangents):
    (x,), (t,) = primals, tangents
    out = density_by_probability(x)
    return out, -t * out * (x + out)


def finite_shift(x, axis):
    """The maximum, for which no derivative is needed; 0 where it is infinite, or of nothing."""
    largest = jnp.max(lax.stop_gradient(x), axis=axis, keepdims=True, initial=-jnp.inf)
    return jnp.where(jnp.isfinite(largest), largest, 0)


@jax.custom_jvp
def arcsinh(x):
    """The inverse hyperbolic sine; JAX 0.10 loses its derivative for large x."""
    return jnp.arcsinh(x)


@arcsinh.defjvp
def _(primals, tangents):
    (x,), (t,) = primals, tangents
    return arcsinh(x), t / hypot(x, jnp.ones_like(x))


def log_of_sum(terms, is_one, axis, keepdims):
    """``log(sum(terms))``, of which some are 1, beside which no other is lost [BH]_."""
    rest = jnp.sum(jnp.where(is_one, terms - 1, terms), axis=axis, keepdims=keepdims)
    rest += jnp.sum(is_one, axis=axis, keepdims=keepdims).astype(rest.dtype) - 1
    total = jnp.sum(terms, axis=axis, keepdims=keepdims)
    return jnp.where(rest > -0.5, jnp.log1p(rest), jnp.log(total))


def log_scaled_sum(x, axis, keepdims):
    """``log(sum(exp(x)))``, scaled by the largest of the terms."""
    shift = finite_shift(x, axis)
    out = log_of_sum(jnp.exp(x - shift), x == shift, axis, keepdims)
    return out + shift.reshape(out.shape)


def scaled_terms(x, weights, axis):
    """``weights * exp(x)``, scaled by the largest, the square root of the second factor, and
    the logarithm of the scale.

    A weight may be zero: its derivative is the scaled exponential, which must not overflow.
    One may be so large that the scaled exponential would underflow.
    """
    limit = math.log(float(jnp.finfo(x.dtype).max)) - 4
    logs = jnp.log(jnp.abs(weights))
    axes = {"axis": axis, "keepdims": True, "initial": -jnp.inf}  # There may be none.
    excess = jnp.maximum(jnp.max(logs, **axes) - limit, 0)
    shift = jnp.maximum(jnp.max(x + logs, **axes) - excess, jnp.max(x, **axes) - limit)
    # A larger one has lost the digits of the weights.
    known = jnp.abs(shift) < 1 / jnp.finfo(x.dtype).eps
    # Scaled terms are divided by each other, so that no derivative of the scale is needed.
    shift = lax.stop_gradient(jnp.where(known, shift, finite_shift(x, axis)))
    root = jnp.exp((x - shift) / 2)
    return weights * root * root, root, shift


@partial(jax.custom_jvp, nondiff_argnums=(2, 3))
def log_weighted_sum(x, weights, axis, keepdims):
    """``log(sum(weights * exp(x)))``."""
    terms, _, shift = scaled_terms(x, weights, axis)
    is_one = x + jnp.log(jnp.abs(weights)) == shift
    out = log_of_sum(terms, is_one, axis, keepdims)
    return out + shift.reshape(out.shape)


@log_weighted_sum.defjvp
def _(axis, keepdims, primals, tangents):
    (x, weights), (tx, tw) = primals, tangents
    terms, root, _ = scaled_terms(x, weights, axis)
    total = jnp.sum(terms, axis=axis, keepdims=True)
    slopes = terms / total * tx + root / total * root * tw
    out = log_weighted_sum(x, weights, axis, keepdims)
    return out, jnp.sum(slopes, axis=axis, keepdims=keepdims)


# --- logarithms of sums of exponentials -----------------------------------------------


def _log_sum_exp(x, *, axis: Axis, keepdims: bool):
    return jnp.log(jnp.sum(jnp.exp(x), axis=axis, keepdims=keepdims))


@rewrite(_log_sum_exp)
def log_sum_exp(x: Real, *, axis, keepdims):
    """Shifted by the maximum [BH]_: no overflow, and no sum that underflows to 0."""
    return log_scaled_sum(x, axis, keepdims)


def _log_mean_exp(x, *, axis: Axis, keepdims: bool):
    return jnp.log(jnp.mean(jnp.exp(x), axis=axis, keepdims=keepdims))


@rewrite(_log_mean_exp)
def log_mean_exp(x: Real, *, axis, keepdims):
    """As `log_sum_exp`."""
    shift = finite_shift(x, axis)
    shift = jnp.where(jnp.abs(shift) < 1, 0, shift)  # Small numbers may have a mean of 0.
    mean = jnp.mean(jnp.exp(x - shift), axis=axis, keepdims=keepdims)
    less_one = jnp.mean(expm1(x - shift), axis=axis, keepdims=keepdims)
    is_near = less_one > -0.5
    # Where it is -1 after rounding, the logarithm that is not taken has no derivative.
    near = jnp.log1p(jnp.where(is_near, less_one, 0))
    out = jnp.where(is_near, near, jnp.log(mean))
    return out + shift.reshape(out.shape)


def _log_weighted_sum_exp(x, weights, *, axis: Axis, keepdims: bool):
    return jnp.log(jnp.sum(weights * jnp.exp(x), axis=axis, keepdims=keepdims))


@rewrite(_log_weighted_sum_exp)
def log_weighted_sum_exp(x: Same, weights: Same, *, axis, keepdims):
    """Shifted by the largest term, as in mixtures of densities."""
    return log_weighted_sum(x, weights, axis, keepdims)


@rewrite(lambda x, y: jnp.log(jnp.exp(x) + jnp.exp(y)))
def log_add_exp(x: Real, y: Real):
    """The case of two terms [BH]_."""
    return logaddexp(x, y)


@rules.rewrite(lambda x, y: jnp.log(jnp.exp(x) - jnp.exp(y)))
def log_subtract_exp(x: Real, y: Real):
    """``x + log(1 - exp(y - x))`` [M]_."""
    return rounded_once(logsubexp)(x, y, jnp.exp(x) - jnp.exp(y) == 0)


def _softplus(x, *, how: Literal["log", "log1p"]):
    return jnp.log(1 + jnp.exp(x)) if how == "log" else jnp.log1p(jnp.exp(x))


@rewrite(_softplus)
def softplus(x: Real, *, how):
    """``max(x, 0) + log1p(exp(-abs(x)))`` [M]_: no overflow."""
    return logaddexp(x, jnp.zeros_like(x))


def _log1mexp(x, *, how: Literal["log", "log1p", "expm1"]):
    if how == "log":
        return jnp.log(1 - jnp.exp(x))
    return jnp.log1p(-jnp.exp(x)) if how == "log1p" else jnp.log(-jnp.expm1(x))


def is_zero_less_one(x, how):
    """Whether ``exp(x) - 1`` is 0 in what was written."""
    return x == 0 if how == "expm1" else jnp.exp(x) == 1


@rules.rewrite(_log1mexp)
def log_one_minus_exp(x: Real, *, how):
    """``log(-expm1(x))`` or ``log1p(-exp(x))``, on the two sides of -log(2) [M]_."""
    return rounded_once(log_one_less_exp)(x, is_zero_less_one(x, how), how == "expm1")


def _inverse_softplus(x, *, how: Literal["exp", "expm1"]):
    return jnp.log(jnp.exp(x) - 1 if how == "exp" else jnp.expm1(x))


@rules.rewrite(_inverse_softplus)
def inverse_softplus(x: Real, *, how):
    """``x + log(1 - exp(-x))`` [M]_: no overflow."""
    return rounded_once(log_exp_less_one)(x, is_zero_less_one(x, how), how == "expm1")


@rewrite(lambda x: jnp.log(jnp.exp(x)))
def log_exp(x: Real):
    """The operand itself."""
    return x


def _log_prod(x, *, axis: Axis):
    return jnp.log(jnp.prod(x, axis=axis))


@rules.rewrite(_log_prod)
def log_product(x: Real, *, axis):
    """The sum of logarithms, as of a likelihood, where the product leaves the range."""
    is_zero = jnp.prod(lax.stop_gradient(x), axis=axis) == 0
    return rounded_once(log_prod)(x, is_zero, axis)


# --- softmax and the logistic function ------------------------------------------------


def _softmax(x, *, axis: Axis):
    return jnp.exp(x) / jnp.sum(jnp.exp(x), axis=axis, keepdims=True)


def _softmax_once(x, *, axis: Axis):
    e = jnp.exp(x)
    return e / jnp.sum(e, axis=axis, keepdims=True)


@rewrite(_softmax)
@rewrite(_softmax_once)
def softmax(x: Real, *, axis):
    """Shifted by the maximum [BH]_: no overflow, and no division of 0 by 0."""
    e = jnp.exp(x - finite_shift(x, axis))
    return e / jnp.sum(e, axis=axis, keepdims=True)


def _softmax_of_all(x):
    e = jnp.exp(x)
    return e / jnp.sum(e)


# Batched, it is the softmax over one axis, and that has the word.
@rewrite(lambda x: jnp.exp(x) / jnp.sum(jnp.exp(x)), precedence=-1)
@rewrite(_softmax_of_all, precedence=-1)
def softmax_of_all(x: Real):
    """The same over all axes, which need not be kept then."""
    e = jnp.exp(x - finite_shift(x, None))
    return e / jnp.sum(e)


def _log_softmax(x, *, axis: Axis):
    return jnp.log(jax.nn.softmax(x, axis=axis))


def _log_softmax_of_exp(x, *, axis: Axis):
    return jnp.log(_softmax_once(x, axis=axis))


@rewrite(_log_softmax, keep=True)
@rewrite(_log_softmax_of_exp, keep=True)
def log_softmax(x: Real, *, axis):
    """``x - logsumexp(x)`` [BH]_: finite where the probability underflows.

    Entropies and cross entropies use the probabilities as well, which then stay.
    """
    shifted = x - finite_shift(x, axis)
    return shifted - log_of_sum(jnp.exp(shifted), shifted == 0, axis, True)


@rewrite(lambda x, c: c / (1 + jnp.exp(x)))
def sigmoid_of_negative(x: Real, c: float):
    """The logistic function: the derivative of what was written is NaN for large x."""
    return over_one_plus_exp(x, c)


def _sigmoid(x):
    e = jnp.exp(x)
    return e / (1 + e)


@rewrite(_sigmoid)
@rewrite(lambda x: jnp.exp(x) / (1 + jnp.exp(x)))
def logistic(x: Real):
    """The logistic function: what was written is inf / inf for large x."""
    return sigmoid(x)


@rewrite(lambda x: 1 - jax.nn.sigmoid(x))
def one_minus_sigmoid(x: Real):
    """The logistic function of -x: no cancellation for large x."""
    return sigmoid(-x)


@rewrite(lambda x: jnp.log(jax.nn.sigmoid(x)), keep=True)
@rewrite(lambda x: jnp.log(1 / (1 + jnp.exp(-x))), keep=True)
def log_sigmoid(x: Real):
    """``-softplus(-x)`` [M]_: finite where the logistic function underflows.

    A cross entropy takes the logarithm of the probability and of its complement.
    """
    return -logaddexp(-x, jnp.zeros_like(x))


def _log_one_minus_sigmoid(x, *, how: Literal["log", "log1p"]):
    p = jax.nn.sigmoid(x)
    return jnp.log(1 - p) if how == "log" else jnp.log1p(-p)


@rewrite(_log_one_minus_sigmoid, keep=True)
def log_one_minus_sigmoid(x: Real, *, how):
    """``-softplus(x)`` [M]_."""
    return -logaddexp(x, jnp.zeros_like(x))


# --- differences that cancel ----------------------------------------------------------


@rewrite(lambda x: jnp.exp(x) - 1)
def exp_minus_one(x: Real):
    """``expm1`` ([H]_, [NH]_ 1.14.1): no cancellation for small x."""
    return expm1(x)


@rewrite(lambda x: 1 - jnp.exp(x))
def one_minus_exp(x: Real):
    """``-expm1(x)`` ([H]_, [NH]_ 1.14.1): no cancellation for small x."""
    return -expm1(x)


@rewrite(lambda x: jnp.log(1 + x))
def log_one_plus(x: Real):
    """``log1p`` ([G]_, theorem 4): the digits that ``1 + x`` drops."""
    return jnp.log1p(x)


@rewrite(lambda x: jnp.log(1 - x))
def log_one_minus(x: Real):
    """``log1p`` of -x ([G]_, theorem 4)."""
    return jnp.log1p(-x)


@rewrite(lambda x: 1 - jnp.cos(x))
def one_minus_cos(x: Real):
    """``2 sin(x/2)**2`` ([H]_, 3.3; [NH]_, 1.7): no cancellation for small x."""
    return versine(x)


@rewrite(lambda x: jnp.cos(x) - 1)
def cos_minus_one(x: Real):
    """``-2 sin(x/2)**2`` ([H]_, 3.3)."""
    return -versine(x)


@rewrite(lambda x: 1 - lax.erf(x))
def one_minus_erf(x: Real):
    """``erfc``: no cancellation for large x."""
    return lax.erfc(x)


@rewrite(lambda x: 1 + lax.erf(x))
def one_plus_erf(x: Real):
    """``erfc`` of -x: no cancellation for large -x."""
    return lax.erfc(-x)


def _one_minus_tanh_squared(x, *, how: Square):
    return 1 - squared(jnp.tanh(x), how)


@rewrite(_one_minus_tanh_squared)
def one_minus_tanh_squared(x: Real, *, how):
    """``4 sigmoid(2x) sigmoid(-2x)``: no cancellation for large x."""
    return sech_squared(x)


def _log_one_minus_tanh_squared(x, *, how: Square):
    return jnp.log(1 - squared(jnp.tanh(x), how))


@rewrite(_log_one_minus_tanh_squared)
def log_one_minus_tanh_squared(x: Real, *, how):
    """``2 (log(2) - abs(x) - softplus(-2 abs(x)))``, as of a squashed Gaussian."""
    return log_sech_squared(x)


def _difference_of_squares(x, y, *, how: Square):
    return squared(x, how) - squared(y, how)


@rewrite(_difference_of_squares)
def squares_subtracted(x: Same, y: Same, *, how):
    """``(x - y) (x + y)`` ([G]_, 1.4): three roundings, and no cancellation of squares."""
    return difference_of_squares(x, y)


@rewrite(lambda x, c: jnp.sqrt(x + c) - jnp.sqrt(x))
def square_roots_subtracted(x: Real, c: float):
    """``c / (sqrt(x + c) + sqrt(x))`` ([H]_, 3.1): no cancellation for large x."""
    return difference_of_square_roots(x, c) if is_usable(c, x) else NotImplemented


@rewrite(lambda x, c: 1 / x - 1 / (x + c))
def reciprocals_subtracted(x: Real, c: float):
    """``c / (x (x + c))`` ([H]_, 3.1): no cancellation for large x."""
    return difference_of_reciprocals(x, c) if is_usable(c, x) else NotImplemented


@rewrite(lambda x, c: 1 / (x + c) - 1 / x)
def reciprocals_subtracted_from(x: Real, c: float):
    """The same in the other order."""
    return -difference_of_reciprocals(x, c) if is_usable(c, x) else NotImplemented


@rewrite(lambda x, c: jnp.log(x + c) - jnp.log(x))
def logarithms_subtracted(x: Real, c: float):
    """``log1p(c / x)`` for x above c ([H]_, 3.1): no cancellation for large x."""
    return difference_of_logarithms(x, c) if is_usable(c, x) else NotImplemented


def _variance(x, *, axis: Axis, keepdims: bool, how: Square):
    mean = jnp.mean(x, axis=axis, keepdims=keepdims)
    return jnp.mean(squared(x, how), axis=axis, keepdims=keepdims) - squared(mean, how)


@rewrite(_variance, keep=True)
def variance(x: Real, *, axis, keepdims, how):
    r"""The mean of squared deviations from the mean, in a second pass.

    With ``k = sqrt(1 + mean**2 / variance)``, the error is about ``n u`` rather than
    ``n u k**2`` (T. F. Chan, G. H. Golub and R. J. LeVeque, *Algorithms for computing the
    sample variance*, The American Statistician 37(3), 1983; [NH]_, 1.9). It is never
    negative. The mean, which normalisation uses as well, stays. It reads x twice.
    """
    return two_pass_variance(x, axis, keepdims)


# --- elementary functions in terms of others ------------------------------------------


def _hypot(x, y, *, how: Square):
    return jnp.sqrt(squared(x, how) + squared(y, how))


@rewrite(_hypot)
def square_root_of_squares(x: Same, y: Same, *, how):
    """The same, scaled where squares overflow or underflow ([NH]_, 27.5)."""
    return hypot(x, y)


def _sinh(x, *, how: Literal["/ 2", "* 0.5"]):
    twice = jnp.exp(x) - jnp.exp(-x)
    return twice / 2 if how == "/ 2" else 0.5 * twice


@rewrite(_sinh)
def hyperbolic_sine(x: Real, *, how):
    """The hyperbolic sine: no cancellation for small x, overflow only of the result."""
    return sinh(x)


def _cosh(x, *, how: Literal["/ 2", "* 0.5"]):
    twice = jnp.exp(x) + jnp.exp(-x)
    return twice / 2 if how == "/ 2" else 0.5 * twice


@rewrite(_cosh)
def hyperbolic_cosine(x: Real, *, how):
    """The hyperbolic cosine: overflow only of the result."""
    return cosh(x)


def _tanh_of_exps(x):
    up, down = jnp.exp(x), jnp.exp(-x)
    return (up - down) / (up + down)


def _tanh_of_doubled(x):
    e = jnp.exp(2 * x)
    return (e - 1) / (e + 1)


@rewrite(lambda x: (jnp.exp(x) - jnp.exp(-x)) / (jnp.exp(x) + jnp.exp(-x)))
@rewrite(_tanh_of_exps)
@rewrite(_tanh_of_doubled)
def hyperbolic_tangent(x: Real):
    """The hyperbolic tangent: no inf / inf for large x, no cancellation for small."""
    return tanh(x)


@rewrite(lambda x: jnp.log((1 + x) / (1 - x)))
def twice_atanh(x: Real):
    """``2 atanh(x)`` ([H]_, 3.3; [K]_): no cancellation for small x."""
    return 2 * jnp.arctanh(x)


def _asinh(x, *, how: Square):
    return jnp.log(x + jnp.sqrt(squared(x, how) + 1))


@rewrite(_asinh)
def asinh(x: Real, *, how):
    """The inverse hyperbolic sine ([K]_): no cancellation for negative x, no overflow."""
    return arcsinh(x)


# --- probabilities of the normal distribution -----------------------------------------


@rewrite(lambda x: jnp.log(jax.scipy.special.ndtr(x)), keep=True)
def log_normal_probability(x: Real):
    """``log_ndtr``: finite where the probability underflows."""
    return log_ndtr(x)


@rewrite(lambda x: jnp.log(1 - jax.scipy.special.ndtr(x)), keep=True)
def log_normal_survival(x: Real):
    """``log_ndtr`` of -x: finite where the probability rounds to 1."""
    return log_ndtr(-x)


# --- what is stable as it is ----------------------------------------------------------

# These contain formulas of above, at operands for which they are right. What a pattern rule
# returns is final, so that these stay as they are.


def _shifted_softmax(x, shift, *, axis: Axis):
    e = jnp.exp(x - lax.stop_gradient(shift))
    return e / jnp.sum(e, axis=axis, keepdims=True)


@rules.rewrite(_shifted_softmax, keep=True)
def shifted_softmax(x: Real, shift: Real, *, axis):
    """The softmax function that somebody has shifted, as the function of JAX."""
    return _shifted_softmax(x, shift, axis=axis)


def _softmax_below_maximum(x, *, axis: Axis):
    e = jnp.exp(x - jnp.max(x, axis=axis, keepdims=True))
    return e / jnp.sum(e, axis=axis, keepdims=True)


@rules.rewrite(_softmax_below_maximum, keep=True)
def softmax_below_maximum(x: Real, *, axis):
    """The same without `lax.stop_gradient`."""
    return _softmax_below_maximum(x, axis=axis)


def _shifted_log_sum_exp(x, shift, *, axis: Axis, keepdims: bool):
    e = jnp.exp(x - lax.stop_gradient(shift))
    return jnp.log(jnp.sum(e, axis=axis, keepdims=keepdims))


@rules.rewrite(_shifted_log_sum_exp, keep=True)
def shifted_log_sum_exp(x: Real, shift: Real, *, axis, keepdims):
    """Its logarithm, as in the function of JAX."""
    return _shifted_log_sum_exp(x, shift, axis=axis, keepdims=keepdims)


@rules.rewrite(lambda x, y: jnp.hypot(x, y))
def library_hypot(x: Same, y: Same):
    """Scaled as it is."""
    return jnp.hypot(x, y)


@rules.rewrite(lambda x: jax.scipy.special.ndtr(x), keep=True)
def library_ndtr(x: Real):
    """The normal distribution function, of several formulas."""
    return jax.scipy.special.ndtr(x)


@rules.rewrite(lambda x: jax.scipy.special.log_ndtr(x), keep=True)
def library_log_ndtr(x: Real):
    """Its logarithm, of several formulas."""
    return jax.scipy.special.log_ndtr(x)

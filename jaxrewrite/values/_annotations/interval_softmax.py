r"""Bounds of the softmax function and its kin, each as a whole.

Equation by equation an exponential and the sum that it is part of would vary independently of
each other, and so would the numbers and their maximum. The softmax function increases with its
own number and decreases with the others, so that

.. math:: \frac{1}{1 + \sum_{j \ne i} e^{\overline x_j - \underline x_i}} \le
    \operatorname{softmax}(x)_i \le \frac{1}{1 + \sum_{j \ne i} e^{\underline x_j - \overline x_i}},

and both bounds are reached. JAX makes no call of the function that a rule could be for, so the
rules are for its equations.
"""

# An unknown axis in a function that is looked for is none to mypy.
# mypy: disable-error-code="arg-type, call-overload"

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import ArrayLike

from jaxrewrite import Axis, transform

from .._base.structured import inexact, promoted
from .interval import TOGETHER, Interval, _apart, _bounded, _numbers, _size, _units


# --- what is looked for -----------------------------------------------------------------


def _softmax(x: Any, *, axis: Axis) -> Any:
    return jax.nn.softmax(x, axis=axis)


def _softmax_of_some(x: Any, where: Any, *, axis: Axis) -> Any:
    return jax.nn.softmax(x, axis=axis, where=where)


def _softmax_below_maximum(x: Any, *, axis: Axis) -> Any:
    e = jnp.exp(x - jnp.max(x, axis=axis, keepdims=True))
    return e / jnp.sum(e, axis=axis, keepdims=True)


# The groups of heads that `jax.nn.dot_product_attention` maps over: axes of its logits.
_Mapped = Literal[1, 2, 3]


def _mapped_softmax(x: Any, *, mapped: _Mapped) -> Any:
    return jax.vmap(jax.nn.softmax, in_axes=mapped)(x)


def _log_softmax(x: Any, *, axis: Axis) -> Any:
    return jax.nn.log_softmax(x, axis=axis)


def _log_softmax_of_some(x: Any, where: Any, *, axis: Axis) -> Any:
    return jax.nn.log_softmax(x, axis=axis, where=where)


def _logsumexp(x: Any, *, axis: Axis, keepdims: bool) -> Any:
    return jax.nn.logsumexp(x, axis=axis, keepdims=keepdims)


def _logsumexp_of_some(x: Any, where: Any, *, axis: Axis, keepdims: bool) -> Any:
    return jax.nn.logsumexp(x, axis=axis, where=where, keepdims=keepdims)


# --- rules ------------------------------------------------------------------------------

# A derivative needs numbers on the way, too.
_rewrite = functools.partial(TOGETHER.rewrite, keep=True)


@_rewrite(_softmax)
@_rewrite(_softmax_below_maximum)
def softmax(x: Interval, *, axis: Any) -> Any:
    return _of_ends(functools.partial(_softmax_between, axis=axis), x)


@_rewrite(_softmax_of_some)
def softmax_of_some(x: Interval, where: ArrayLike, *, axis: Any) -> Any:
    return _chosen(where, softmax(_chosen(where, x, -jnp.inf), axis=axis), 0)


@_rewrite(_mapped_softmax)
def mapped_softmax(x: Interval, *, mapped: int) -> Any:
    return _of_ends(functools.partial(_mapped_softmax_between, mapped=mapped), x)


@_rewrite(_log_softmax)
def log_softmax(x: Interval, *, axis: Any) -> Any:
    return _of_ends(functools.partial(_log_softmax_between, axis=axis), x)


@_rewrite(_log_softmax_of_some)
def log_softmax_of_some(x: Interval, where: ArrayLike, *, axis: Any) -> Any:
    return _chosen(where, log_softmax(_chosen(where, x, -jnp.inf), axis=axis), -jnp.inf)


@_rewrite(_logsumexp)
def logsumexp(x: Interval, *, axis: Any, keepdims: bool) -> Any:
    return _of_ends(functools.partial(_logsumexp_between, axis=axis, keepdims=keepdims), x)


@_rewrite(_logsumexp_of_some)
def logsumexp_of_some(x: Interval, where: ArrayLike, *, axis: Any, keepdims: bool) -> Any:
    return logsumexp(_chosen(where, x, -jnp.inf), axis=axis, keepdims=keepdims)


def _of_ends(bounds: Callable[[Any, Any], Interval], x: Interval) -> Any:
    """The bounds as a function of both ends, which may be values."""
    if not inexact(x.lower):
        return NotImplemented
    return transform(bounds)(*_numbers(x))


def _chosen(where: Any, x: Interval, number: float) -> Interval:
    choose = transform(lambda end: jnp.where(where, end, number))
    return Interval(choose(x.lower), choose(x.upper))


# --- bounds -----------------------------------------------------------------------------


def _softmax_between(lower: Any, upper: Any, axis: Any) -> Interval:
    dtype = lower.dtype
    (low, high), error = _log_odds(lower, upper, axis)
    below, above = jax.nn.sigmoid(low - error), jax.nn.sigmoid(high + error)
    # The program rounds twice what is next to zero, or takes it for zero.
    above = jnp.where(
        above > 0, above + 2 * float(jnp.finfo(dtype).smallest_subnormal), above
    )
    bounds = _bounded(below.astype(dtype), above.astype(dtype))
    bounds = _apart(bounds, False, least=0, most=1)
    is_tiny = abs(bounds.lower) <= 2 * jnp.finfo(dtype).tiny
    return Interval(jnp.where(is_tiny, 0, bounds.lower), bounds.upper)


def _mapped_softmax_between(lower: Any, upper: Any, mapped: int) -> Interval:
    lower, upper = (jnp.moveaxis(end, mapped, 0) for end in (lower, upper))
    return _softmax_between(lower, upper, axis=-1)


def _log_softmax_between(lower: Any, upper: Any, axis: Any) -> Interval:
    (low, high), error = _log_odds(lower, upper, axis)
    below, above = jax.nn.log_sigmoid(low) - error, jax.nn.log_sigmoid(high) + error
    bounds = _bounded(below.astype(lower.dtype), above.astype(lower.dtype))
    return _apart(bounds, False, most=0)


def _log_odds(lower: Any, upper: Any, axis: Any) -> tuple[tuple[Any, Any], Any]:
    """Bounds of the logarithms of p / (1 - p), and their errors by rounding; also the program's.

    The program has numbers relative to their maximum, so its errors are in proportion to those.
    """
    axis = tuple(range(lower.ndim)) if axis is None else axis
    eps = float(jnp.finfo(lower.dtype).eps)
    wide = promoted(lower.dtype, "float32")
    terms = _terms(lower, axis)
    lower, upper = lower.astype(wide), upper.astype(wide)
    most = lax.stop_gradient(upper.max(axis, keepdims=True, initial=-jnp.inf))
    # All numbers may be minus infinity, and so the results may be NaN.
    may_be_nan = jnp.isneginf(lower.max(axis, keepdims=True, initial=-jnp.inf))
    most = jnp.where(may_be_nan, jnp.nan, most)
    lower, upper = lower - most, upper - most
    others = _of_others(upper, axis), _of_others(lower, axis)
    sizes = functools.reduce(jnp.maximum, map(_size, (lower, upper, *others)))
    error = eps * (terms + 2 * sizes)
    return (lower - others[0], upper - others[1]), error


def _of_others(x: Any, axis: Any) -> Any:
    """The logarithm of the sum of all other exponentials.

    The greatest one is not subtracted from the sum of all, which might leave nothing of it.
    """
    most = lax.stop_gradient(x.max(axis, keepdims=True, initial=-jnp.inf))
    is_most = _is_first(x == most, axis)
    e = jnp.exp(x - _finite(most))
    rest = jnp.where(is_most, 1, e.sum(axis, keepdims=True) - e)
    beside_most = _log_of_sum(jnp.where(is_most, -jnp.inf, x), axis)
    return jnp.where(is_most, beside_most, jnp.log(rest) + _finite(most))


def _is_first(holds: Any, axis: Any) -> Any:
    """The first of the entries along some axes for which something holds."""
    axes = [a % holds.ndim for a in ((axis,) if isinstance(axis, int) else axis)]
    places = jnp.zeros(holds.shape, "int32")
    for a in axes:
        places = places * holds.shape[a] + lax.broadcasted_iota("int32", holds.shape, a)
    beyond = jnp.iinfo("int32").max
    first = jnp.where(holds, places, beyond).min(axis, keepdims=True, initial=beyond)
    return holds & (places == first)


def _log_of_sum(x: Any, axis: Any) -> Any:
    """``logsumexp``, with a derivative also where there is nothing to sum."""
    most = _finite(lax.stop_gradient(x.max(axis, keepdims=True, initial=-jnp.inf)))
    total = jnp.exp(x - most).sum(axis, keepdims=True)
    is_none = total == 0
    return jnp.where(is_none, -jnp.inf, jnp.log(jnp.where(is_none, 1, total)) + most)


def _finite(shift: Any) -> Any:
    return jnp.where(jnp.isinf(shift), jnp.zeros_like(shift), shift)


def _logsumexp_between(lower: Any, upper: Any, axis: Any, keepdims: bool) -> Interval:
    """It increases with each number."""
    axis = tuple(range(lower.ndim)) if axis is None else axis
    dtype = lower.dtype
    apply = functools.partial(jax.nn.logsumexp, axis=axis, keepdims=keepdims)
    below, above = (apply(x.astype(promoted(dtype, "float32"))) for x in (lower, upper))
    sizes = jnp.maximum(_size(below), _size(above))
    error = float(jnp.finfo(dtype).eps) * (_terms(lower, axis) + 2 * sizes)
    return _apart(
        _bounded((below - error).astype(dtype), (above + error).astype(dtype)), False
    )


def _terms(x: Any, axis: Any) -> Any:
    """How many units in the last place exponentials, their sum and its logarithm may be off.

    Numbers of 16 bits are added up in 32, so that only what comes before and after is rounded.
    """
    if x.dtype.itemsize < 4:
        return 4
    count: Any = 1
    for a in (axis,) if isinstance(axis, int) else axis:
        count = count * x.shape[a]
    return 2 * _units(count) + 16

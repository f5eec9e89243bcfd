"""Loops that keep every step of a result of which they need only a sum, or the last.

A scan stacks what its body returns for each step, and so does its derivative. Where a program
only reduces the stack over the steps, the reduction is done in the carry, and the stack, as
long as the loop, is never made.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, ArrayLike, Bool, Integer

from .. import _compat
from .._rules import Rules
from .._transform import transform
from ._invariant import work_before_the_loop


rules = Rules()


def _results(y: Any) -> tuple[Any, ...]:
    """What a body returns for one step, of which the first is reduced."""
    return y if isinstance(y, tuple) else (y,)


def _of_one_step(f: Callable[..., Any], init: Any, xs: Any) -> tuple[Any, ...]:
    """The shapes and dtypes of what a body returns for one step."""

    def one(init: Any, xs: Any) -> tuple[Any, ...]:
        return _results(f(init, jax.tree.map(lambda x: x[0], xs))[1])

    return jax.eval_shape(one, init, xs)


def _length(xs: Any) -> int:
    return int(jax.tree.leaves(xs)[0].shape[0])


def _fold(
    f: Callable[..., Any],
    init: Any,
    xs: Any,
    reverse: bool,
    start: Any,
    step: Callable[..., Any],
) -> Any:
    """A scan with a reduction of its first result: carry, reduction and other results."""

    def body(carry: Any, x: Any) -> Any:
        inner, accumulated = carry
        inner, y = f(inner, x)
        y, *others = _results(y)
        return (inner, step(accumulated, y)), tuple(others)

    scan = transform(functools.partial(lax.scan, body, reverse=reverse), rules=rules)
    (carry, accumulated), others = scan((init, start), xs)
    return carry, accumulated, others


# --- what is the same in each step ------------------------------------------------------


@rules.register("scan")
def work_before_the_scan(*operands: ArrayLike, **params: Any) -> Any:
    return work_before_the_loop(rules, operands, params)


# --- sums -------------------------------------------------------------------------------


def _reduced(reduce: Callable[..., Any], y: Any) -> tuple[Any, Any]:
    """The dtype of a sum or mean of steps, and the one that JAX adds in."""
    steps = jax.ShapeDtypeStruct((1,), y.dtype)
    result = jax.eval_shape(functools.partial(reduce, axis=0), steps).dtype
    is_short = jnp.issubdtype(result, jnp.floating) and jnp.finfo(result).bits < 32
    return result, jnp.float32 if is_short else result


def _sum(f: Any, init: Any, xs: Any, reverse: bool, whole: bool, reduce: Any) -> Any:
    """The carry, the sum or mean of the first result, and the other results."""
    y, *_ = _of_one_step(f, init, xs)
    dtype, wide = _reduced(reduce, y)

    def step(total: Any, y: Any) -> Any:
        y = y.astype(wide)
        return total + (jnp.sum(y) if whole else y)

    start = jnp.zeros(() if whole else y.shape, wide)
    carry, total, others = _fold(f, init, xs, reverse, start, step)
    if reduce is jnp.mean:
        total = total / (_length(xs) * (y.size if whole else 1))
    return carry, total.astype(dtype), *others


# --- maxima -----------------------------------------------------------------------------


@jax.custom_jvp
def _tangent_of(y: Any) -> Any:
    """Zeros, with the tangent of an array."""
    return jnp.zeros_like(y)


@_tangent_of.defjvp
def _(primals: Any, tangents: Any) -> Any:
    return jnp.zeros_like(primals[0]), tangents[0]


def _lowest(dtype: Any) -> Any:
    if jnp.issubdtype(dtype, jnp.floating):
        return -jnp.inf
    return False if dtype == jnp.bool_ else jnp.iinfo(dtype).min


def _max(f: Any, init: Any, xs: Any, reverse: bool) -> Any:
    """As `_sum`, of the greatest. The steps that share it share its derivative."""
    y, *_ = _of_one_step(f, init, xs)
    lowest = jnp.full(y.shape, _lowest(y.dtype), y.dtype)
    if not jnp.issubdtype(y.dtype, jnp.floating):
        carry, greatest, others = _fold(f, init, xs, reverse, lowest, jnp.maximum)
        return carry, greatest, *others

    def step(accumulated: Any, y: Any) -> Any:
        old, tangent, count = accumulated
        new = lax.stop_gradient(jnp.maximum(old, y))
        stays, joins = old == new, y == new
        # Products, as JAX has them: where the greatest is NaN, all derivatives are.
        tangent = tangent * stays.astype(y.dtype) + _tangent_of(y) * joins.astype(y.dtype)
        return new, tangent, count * stays + joins

    zeros = jnp.zeros(y.shape, y.dtype), jnp.zeros(y.shape, int)
    carry, (greatest, tangent, count), others = _fold(
        f, init, xs, reverse, (lowest, *zeros), step
    )
    return carry, greatest + tangent / count.astype(tangent.dtype), *others


# --- the last step ----------------------------------------------------------------------


def _last(f: Any, init: Any, xs: Any, reverse: bool) -> Any:
    """As `_sum`, of the step that is done last."""
    y, *_ = _of_one_step(f, init, xs)
    start = jnp.zeros(y.shape, y.dtype)
    carry, last, others = _fold(f, init, xs, reverse, start, lambda _, y: y)
    return carry, last, *others


# --- what is looked for -----------------------------------------------------------------


def _reduced_scan(
    reduce: Callable[..., Any], f: Any, init: Any, xs: Any, reverse: bool
) -> Any:
    carry, ys = lax.scan(f, init, xs, reverse=reverse)
    first, *others = _results(ys)
    return carry, reduce(first), *others


def _whole(reduce: Callable[..., Any], whole: bool) -> Callable[..., Any]:
    def reduced(ys: Any) -> Any:
        if whole and ys.ndim < 2:
            raise TypeError("Steps of scalars have one axis.")
        return reduce(ys, axis=None if whole else 0)

    return reduced


def _max_of(ys: Any) -> Any:
    return jnp.max(ys, axis=0)


def _without_carry(f: Callable[..., Any]) -> Callable[..., Any]:
    """A body of `lax.map`, or of a scan whose carry stays what it was, as one with a carry."""
    return lambda carry, x: (carry, f(x))


def sum_of_steps(f, init, xs, *, reverse: bool, whole: bool):
    return _reduced_scan(_whole(jnp.sum, whole), f, init, xs, reverse)


@rules.rewrite(sum_of_steps)
def accumulated_sum(f: Callable, init, xs, *, reverse, whole):
    return _sum(f, init, xs, reverse, whole, jnp.sum)


def sum_of_map(f, xs, *, reverse: bool, whole: bool):
    f = _without_carry(f)
    return _reduced_scan(_whole(jnp.sum, whole), f, (), xs, reverse)[1:]


@rules.rewrite(sum_of_map)
def accumulated_sum_of_map(f: Callable, xs, *, reverse, whole):
    return _sum(_without_carry(f), (), xs, reverse, whole, jnp.sum)[1:]


def mean_of_steps(f, init, xs, *, reverse: bool, whole: bool):
    return _reduced_scan(_whole(jnp.mean, whole), f, init, xs, reverse)


@rules.rewrite(mean_of_steps)
def accumulated_mean(f: Callable, init, xs, *, reverse, whole):
    return _sum(f, init, xs, reverse, whole, jnp.mean)


def mean_of_map(f, xs, *, reverse: bool, whole: bool):
    f = _without_carry(f)
    return _reduced_scan(_whole(jnp.mean, whole), f, (), xs, reverse)[1:]


@rules.rewrite(mean_of_map)
def accumulated_mean_of_map(f: Callable, xs, *, reverse, whole):
    return _sum(_without_carry(f), (), xs, reverse, whole, jnp.mean)[1:]


def max_of_steps(f, init, xs, *, reverse: bool):
    return _reduced_scan(_max_of, f, init, xs, reverse)


@rules.rewrite(max_of_steps)
def accumulated_max(f: Callable, init, xs, *, reverse):
    return _max(f, init, xs, reverse)


def max_of_map(f, xs, *, reverse: bool):
    return _reduced_scan(_max_of, _without_carry(f), (), xs, reverse)[1:]


@rules.rewrite(max_of_map)
def accumulated_max_of_map(f: Callable, xs, *, reverse):
    return _max(_without_carry(f), (), xs, reverse)[1:]


def last_step(f, init, xs, *, reverse: bool):
    return _reduced_scan(lambda ys: ys[0 if reverse else -1], f, init, xs, reverse)


@rules.rewrite(last_step)
def kept_last(f: Callable, init, xs, *, reverse):
    return _last(f, init, xs, reverse)


# --- updates in place -------------------------------------------------------------------


def _refuse(x: Any, v: Any) -> None:
    if x.dtype != v.dtype:
        raise TypeError("What is updated and the update have one dtype.")


def selected_update(p, x, i, v):
    _refuse(x, v)
    return jnp.where(p, x.at[i].set(v), x)


@rules.rewrite(selected_update)
def update_of_selected(p: Bool[Array, ""], x, i: Integer[Array, ""], v):
    # What is out of bounds is dropped by the update, whatever is read for it.
    return x.at[i].set(jnp.where(p, v, x[i]))


def selected_slice(p, x, i, v):
    _refuse(x, v)
    return jnp.where(p, lax.dynamic_update_index_in_dim(x, v, i, 0), x)


@rules.rewrite(selected_slice)
def slice_of_selected(p: Bool[Array, ""], x, i: Integer[Array, ""], v):
    old = lax.dynamic_index_in_dim(x, i, 0, keepdims=v.ndim == x.ndim)
    return lax.dynamic_update_index_in_dim(x, jnp.where(p, v, old), i, 0)


@rules.register("while")
def while_with_updates(
    *operands: ArrayLike,
    cond_jaxpr: Any,
    body_jaxpr: Any,
    cond_nconsts: int,
    body_nconsts: int,
    **_: Any,
) -> Any:
    """A loop under `jax.vmap` whose turns end at different times.

    JAX selects between the old and the new carry when it compiles such a loop, so that no
    pattern can see it. Here the same select is in the body, where the patterns above make
    selected updates of it.
    """
    (decides,) = cond_jaxpr.out_avals
    if not decides.shape:
        return NotImplemented
    test = functools.partial(_compat.function_of(cond_jaxpr), *operands[:cond_nconsts])
    of_body = cond_nconsts + body_nconsts
    body = functools.partial(
        _compat.function_of(body_jaxpr), *operands[cond_nconsts:of_body]
    )

    select: Callable[..., Any] = jnp.where
    for _ in decides.shape:
        select = jax.vmap(select)

    def turn(state: Any) -> Any:
        goes_on, carry = state
        selected = list(map(select, [goes_on] * len(carry), body(*carry), carry))
        return test(*selected)[0], selected

    carry = list(map(jnp.asarray, operands[of_body:]))
    return lax.while_loop(
        lambda state: jnp.any(state[0]),
        transform(turn, rules=rules),
        (test(*carry)[0], carry),
    )[1]

"""Loops that keep every step of a result of which they need only a sum, or the last.

A scan stacks what its body returns for each step, and so does its derivative. Where a program
only reduces the stack over the steps, the reduction is done in the carry, and the stack, as
long as the loop, is never made.
"""

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, ArrayLike, Bool, Integer

from .. import _compat
from .._analyses.calls import Number
from .._compat import DropVar
from .._patterns.nested import locations_of
from .._patterns.rules import Rules
from .._patterns.view import Frame, Location, resolve, users
from .._staging.transform import transform
from ._invariant import work_before_the_loop


rules = Rules()


def _results(y: Any) -> tuple[Any, ...]:
    """The results of a body for one step, of which the first is reduced."""
    return y if isinstance(y, tuple) else (y,)


def _of_one_step(f: Callable[..., Any], init: Any, xs: Any) -> tuple[Any, ...]:
    """The shapes and dtypes of what a body returns for one step."""

    def one(init: Any, x: Any) -> tuple[Any, ...]:
        return _results(f(init, x)[1])

    # There may be no step.
    x = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), xs)
    return jax.eval_shape(one, init, x)


def _length(xs: Any) -> int:
    return int(jax.tree.leaves(xs)[0].shape[0])


class _Reduction(NamedTuple):
    """A reduction of steps that is done in the carry.

    ``step`` is a function of what was accumulated and of one step.
    """

    start: Any
    step: Callable[[Any, Any], Any]
    result: Callable[[Any], Any] = lambda accumulated: accumulated


def _fold(
    f: Callable[..., Any],
    init: Any,
    xs: Any,
    reverse: bool,
    reductions: Sequence[Callable[[Any, int], _Reduction] | None],
) -> tuple[Any, ...]:
    """A scan with reductions of its first results: the carry, and all results in order.

    A reduction is made of the aval of one step and of the number of steps. A result without
    a reduction stays a stack.
    """
    avals = _of_one_step(f, init, xs)
    done = {
        k: make(avals[k], _length(xs))
        for k, make in enumerate(reductions)
        if make is not None
    }

    def body(carry: Any, x: Any) -> Any:
        inner, accumulated = carry
        inner, y = f(inner, x)
        ys = _results(y)
        accumulated = [
            one.step(old, ys[k])
            for (k, one), old in zip(done.items(), accumulated, strict=True)
        ]
        return (inner, accumulated), tuple(y for k, y in enumerate(ys) if k not in done)

    scan = transform(functools.partial(lax.scan, body, reverse=reverse), rules=rules)
    starts = [one.start for one in done.values()]
    (carry, accumulated), others = scan((init, starts), xs)
    rest, results = iter(others), dict(zip(done, accumulated, strict=True))
    return carry, *(
        done[k].result(results[k]) if k in done else next(rest) for k in range(len(avals))
    )


# --- what is the same in each step ------------------------------------------------------


@rules.register("scan")
def work_before_the_scan(*operands: ArrayLike, **params: Any) -> Any:
    return work_before_the_loop(rules, operands, params)


# --- sums -------------------------------------------------------------------------------


def _reduced(reduce: Callable[..., Any], y: Any) -> tuple[Any, Any]:
    """The dtype of a sum or mean of steps, and the dtype in which JAX adds."""
    steps = jax.ShapeDtypeStruct((1,), y.dtype)
    result = jax.eval_shape(functools.partial(reduce, axis=0), steps).dtype
    is_short = jnp.issubdtype(result, jnp.floating) and jnp.finfo(result).bits < 32
    return result, jnp.float32 if is_short else result


def _sum(reduce: Any, all_axes: bool, y: Any, length: int) -> _Reduction:
    """The sum or mean of steps, of each element or over all axes."""
    dtype, wide = _reduced(reduce, y)

    def step(total: Any, y: Any) -> Any:
        y = y.astype(wide)
        return total + (jnp.sum(y) if all_axes else y)

    def result(total: Any) -> Any:
        if reduce is jnp.mean:
            total = total / (length * (y.size if all_axes else 1))
        return total.astype(dtype)

    return _Reduction(jnp.zeros(() if all_axes else y.shape, wide), step, result)


# --- maxima -----------------------------------------------------------------------------


@jax.custom_jvp
def _tangent_of(y: Any) -> Any:
    """Zeros, with the tangent of an array.

    The automatic derivative is the same for finite numbers. JAX 0.10 uses that for second
    derivatives of a loop.
    """
    return jnp.where(jnp.isfinite(y), y - lax.stop_gradient(y), 0)


@_tangent_of.defjvp
def _(primals: Any, tangents: Any) -> Any:
    return _tangent_of(*primals), tangents[0]


def _lowest(dtype: Any) -> Any:
    if jnp.issubdtype(dtype, jnp.floating):
        # Some formats of float8 have no infinity, and make NaN of it.
        has_infinity = not np.isnan(np.asarray(-np.inf, dtype))
        return -jnp.inf if has_infinity else jnp.finfo(dtype).min
    return False if dtype == jnp.bool_ else jnp.iinfo(dtype).min


def _max(y: Any, _: int) -> _Reduction:
    """The greatest of steps. The steps that share it share its derivative."""
    lowest = jnp.full(y.shape, _lowest(y.dtype), y.dtype)
    if not jnp.issubdtype(y.dtype, jnp.floating):
        return _Reduction(lowest, jnp.maximum)

    def step(accumulated: Any, y: Any) -> Any:
        old, tangent, count = accumulated
        new = lax.stop_gradient(jnp.maximum(old, y))
        stays, joins = old == new, y == new
        # Products, as JAX has them: where the greatest is NaN, all derivatives are.
        slope = _tangent_of(-y)
        tangent = tangent * stays.astype(y.dtype) + slope * joins.astype(y.dtype)
        return new, tangent, count * stays + joins

    def result(accumulated: Any) -> Any:
        greatest, tangent, count = accumulated
        # A difference, because -0 - 0 is -0, and -0 + 0 is not.
        return greatest - tangent / count.astype(tangent.dtype)

    zeros = jnp.zeros(y.shape, y.dtype), jnp.zeros(y.shape, int)
    return _Reduction((lowest, *zeros), step, result)


# --- the last step ----------------------------------------------------------------------


def _last(y: Any, _: int) -> _Reduction:
    """The step that is done last."""
    return _Reduction(jnp.zeros(y.shape, y.dtype), lambda _, y: y)


# --- what is looked for -----------------------------------------------------------------


def _reduced_scan(
    reduce: Callable[..., Any], f: Any, init: Any, xs: Any, reverse: bool
) -> Any:
    carry, ys = lax.scan(f, init, xs, reverse=reverse)
    first, *others = _results(ys)
    return carry, reduce(first), *others


def _over(reduce: Callable[..., Any], all_axes: bool) -> Callable[..., Any]:
    def reduced(ys: Any) -> Any:
        if all_axes and ys.ndim < 2:
            raise TypeError("Steps of scalars have one axis.")
        return reduce(ys, axis=None if all_axes else 0)

    return reduced


def _max_of(ys: Any) -> Any:
    if jnp.iscomplexobj(ys):
        raise TypeError("No number is below all complex ones.")
    return jnp.max(ys, axis=0)


def _without_carry(f: Callable[..., Any]) -> Callable[..., Any]:
    """A body of `lax.map`, or of a scan whose carry stays what it was, as one with a carry."""
    return lambda carry, x: (carry, f(x))


def sum_of_steps(f, init, xs, *, reverse: bool, all_axes: bool):
    return _reduced_scan(_over(jnp.sum, all_axes), f, init, xs, reverse)


@rules.rewrite(sum_of_steps)
def accumulated_sum(f: Callable, init, xs, *, reverse, all_axes):
    return _fold(f, init, xs, reverse, [functools.partial(_sum, jnp.sum, all_axes)])


def sum_of_map(f, xs, *, reverse: bool, all_axes: bool):
    f = _without_carry(f)
    return _reduced_scan(_over(jnp.sum, all_axes), f, (), xs, reverse)[1:]


@rules.rewrite(sum_of_map)
def accumulated_sum_of_map(f: Callable, xs, *, reverse, all_axes):
    return accumulated_sum(_without_carry(f), (), xs, reverse=reverse, all_axes=all_axes)[
        1:
    ]


def mean_of_steps(f, init, xs, *, reverse: bool, all_axes: bool):
    return _reduced_scan(_over(jnp.mean, all_axes), f, init, xs, reverse)


@rules.rewrite(mean_of_steps)
def accumulated_mean(f: Callable, init, xs, *, reverse, all_axes):
    return _fold(f, init, xs, reverse, [functools.partial(_sum, jnp.mean, all_axes)])


def mean_of_map(f, xs, *, reverse: bool, all_axes: bool):
    f = _without_carry(f)
    return _reduced_scan(_over(jnp.mean, all_axes), f, (), xs, reverse)[1:]


@rules.rewrite(mean_of_map)
def accumulated_mean_of_map(f: Callable, xs, *, reverse, all_axes):
    return accumulated_mean(_without_carry(f), (), xs, reverse=reverse, all_axes=all_axes)[
        1:
    ]


def max_of_steps(f, init, xs, *, reverse: bool):
    return _reduced_scan(_max_of, f, init, xs, reverse)


@rules.rewrite(max_of_steps)
def accumulated_max(f: Callable, init, xs, *, reverse):
    return _fold(f, init, xs, reverse, [_max])


def max_of_map(f, xs, *, reverse: bool):
    return _reduced_scan(_max_of, _without_carry(f), (), xs, reverse)[1:]


@rules.rewrite(max_of_map)
def accumulated_max_of_map(f: Callable, xs, *, reverse):
    return accumulated_max(_without_carry(f), (), xs, reverse=reverse)[1:]


def last_step(f, init, xs, *, reverse: bool):
    return _reduced_scan(lambda ys: ys[0 if reverse else -1], f, init, xs, reverse)


@rules.rewrite(last_step)
def kept_last(f: Callable, init, xs, *, reverse):
    return _fold(f, init, xs, reverse, [_last])


# --- several results ------------------------------------------------------------------------


# The reduction of a stack of steps, and the same in the carry, by kind.
_KINDS: dict[str, tuple[Callable[[Any], Any], Callable[[Any, int], _Reduction]]] = {
    "sum": (_over(jnp.sum, False), functools.partial(_sum, jnp.sum, False)),
    "mean": (_over(jnp.mean, False), functools.partial(_sum, jnp.mean, False)),
    "sum of all": (_over(jnp.sum, True), functools.partial(_sum, jnp.sum, True)),
    "mean of all": (_over(jnp.mean, True), functools.partial(_sum, jnp.mean, True)),
    "max": (_max_of, _max),
    "first": (lambda ys: ys[0], _last),
    "last": (lambda ys: ys[-1], _last),
}


class _Several(NamedTuple):
    """Scans of which several results are reduced, each in its own way.

    A member is whether the scan has a carry, whether it runs backwards, and the kind of
    reduction of each result, or ``None``.
    """

    def members(self, top: Frame) -> Iterator[Any]:
        for frame, i in locations_of(lax.scan_p, top):
            eqn = frame.eqn(i)
            _, num_carry = _compat.scan_counts(eqn.params)
            reverse, length = eqn.params["reverse"], eqn.params["length"]
            kinds = [_kind_of(frame, v, length) for v in eqn.outvars[num_carry:]]
            # The first step is the last one of a scan that runs backwards, and of no other.
            excluded = ("last",) if reverse else ("first",)
            kinds = [None if kind in excluded else kind for kind in kinds]
            if sum(kind is not None for kind in kinds) > 1:
                yield num_carry > 0, reverse, tuple(kinds)

    def functions(self, member: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
        has_carry, reverse, kinds = member

        def several_of_steps(f, init, xs):
            carry, ys = lax.scan(f, init, xs, reverse=reverse)
            reduced = (
                _KINDS[kind][0](y) if kind else y for kind, y in zip(kinds, ys, strict=True)
            )
            return carry, *reduced

        def accumulated_results(f: Callable, init, xs):
            reductions = [_KINDS[kind][1] if kind else None for kind in kinds]
            return _fold(f, init, xs, reverse, reductions)

        def several_of_map(f, xs):
            return several_of_steps(_without_carry(f), (), xs)[1:]

        def accumulated_results_of_map(f: Callable, xs):
            return accumulated_results(_without_carry(f), (), xs)[1:]

        if has_carry:
            both: tuple[Any, Any] = several_of_steps, accumulated_results
        else:
            both = several_of_map, accumulated_results_of_map
        vars(both[1])["num_ys"] = len(kinds)
        for fn in both:
            fn.__qualname__ = fn.__name__
        return both


def _kind_of(frame: Frame, stack: Any, length: int) -> str | None:
    """How a stack of steps seems to be reduced, if that is all that it is used for."""
    user = _only_user(frame, stack)
    if user is None:
        return None
    eqn = user[0].eqn(user[1])
    aval: Any = eqn.invars[0].aval
    if eqn.primitive is lax.reduce_max_p:
        return "max" if eqn.params["axes"] == (0,) else None
    if eqn.primitive is not lax.reduce_sum_p:
        return _step_of(eqn, length)
    all_axes = len(eqn.params["axes"]) == len(aval.shape) > 1
    if not all_axes and eqn.params["axes"] != (0,):
        return None
    count = math.prod(aval.shape) if all_axes else length
    divided = _only_user(user[0], eqn.outvars[0])
    is_mean = divided is not None and _divides_by(divided, count)
    return ("mean" if is_mean else "sum") + (" of all" if all_axes else "")


def _only_user(frame: Frame, var: Any) -> Location | None:
    """The one equation that uses an array, but for conversions."""
    uses = [] if type(var) is DropVar else list(users(frame, var))
    if len(uses) != 1 or uses[0] is None:
        return None
    inner, i = uses[0]
    eqn = inner.eqn(i)
    if eqn.primitive is lax.convert_element_type_p:
        return _only_user(inner, eqn.outvars[0])
    return inner, i


def _divides_by(location: Location, count: int) -> bool:
    frame, i = location
    eqn = frame.eqn(i)
    if eqn.primitive is not lax.div_p:
        return False
    by = resolve(frame, eqn.invars[1])
    return type(by) is Number and by.value == count


def _step_of(eqn: Any, length: int) -> str | None:
    """Whether an equation takes the first or the last step."""
    if eqn.primitive is not lax.slice_p:
        return None
    start = eqn.params["start_indices"][0]
    return {0: "first", length - 1: "last"}.get(start)


vars(accumulated_sum)["family"] = _Several()


# --- updates in place -------------------------------------------------------------------


def _refuse(x: Any, v: Any) -> None:
    if x.dtype != v.dtype:
        raise TypeError("What is updated and the update have one dtype.")


def selected_update(p, x, i, v):
    _refuse(x, v)
    return jnp.where(p, x.at[i].set(v), x)


@rules.rewrite(selected_update)
def update_of_selected(p: Bool[Array, ""], x, i: Integer[Array, ""], v):
    # The update drops entries out of bounds, whatever is read for them.
    return x.at[i].set(jnp.where(p, v, x[i]))


def selected_slice(p, x, i, v):
    _refuse(x, v)
    if v.shape not in (x.shape[1:], (1, *x.shape[1:])):
        raise TypeError("The update is one row: JAX's function takes others, too.")
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

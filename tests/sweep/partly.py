"""Arrays that are not wholly known: missing entries, and bounds.

A program runs on a `Masked` with some missing entries, and the numbers under the mask must
not matter. It also runs on a wide `Interval`, and its results for arrays inside must be
within the resulting bounds.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxrewrite
from jaxrewrite.values import Annotated, Interval, Masked

from . import numpy_run, oracle
from .oracle import Verdict, dense, is_value


def judge(program: Any) -> Verdict:
    """The verdict of NumPy, or that of JAX where this one is bad."""
    judge_one = {"bounds": judge_bounds, "slope": judge_slopes}.get(
        program.mode, judge_masked
    )
    try:
        verdict = judge_one(program, _by_numpy)
        if not verdict.failed and verdict.kind != "invalid":
            return verdict
    except numpy_run.NotStaged:
        pass
    return judge_one(program, lambda f, *xs: f(*xs))


def _by_numpy(f: Any, *xs: Any) -> Any:
    return numpy_run.run(lambda: f(*xs))


def judge_masked(program: Any, call: Any) -> Verdict:
    """In the mode "masked", each entry of a result is one of an operand, or a function of some."""
    spare = program.mode == "masked"
    vs = oracle.operands_of(program)
    f = oracle.function_of(program)
    run = oracle.transformed(program)
    results, denses = [], []
    for garbage in (0, 1, 2):
        filled = [_with_garbage(v, garbage) if isinstance(v, Masked) else v for v in vs]
        try:
            denses.append(call(f, *dense(filled)))
        except Exception as error:  # noqa: BLE001 - JAX does not do it
            return Verdict("invalid", str(error))
        try:
            results.append(call(run, *filled))
        except Exception as error:  # noqa: BLE001 - any is what is looked for
            if isinstance(error, numpy_run.NotStaged):
                raise
            return oracle.meant(program, error) or oracle.crash(program, error)
    leaves = [jax.tree.leaves(x, is_leaf=is_value) for x in results]
    wanted = [jax.tree.leaves(x) for x in denses]
    for parts, wants in zip(
        zip(*leaves, strict=True), zip(*wanted, strict=True), strict=True
    ):
        there = [_there(x) for x in parts]
        if not all((t == there[0]).all() for t in there):
            return Verdict("wrong", "what is under a mask decides what is missing")
        arrays = [oracle.wide(dense(x)) for x in parts]
        for array in arrays[1:]:
            if not oracle.same(_only(array, there[0]), _only(arrays[0], there[0]), 1e-4):
                return Verdict("wrong", f"what is under a mask matters: {arrays}")
        if spare:
            for array, want in zip(arrays, wants, strict=True):
                want = oracle.wide(want)
                if not oracle.same(_only(array, there[0]), _only(want, there[0]), 1e-4):
                    return Verdict("wrong", f"{array} against {want}, there: {there[0]}")
    return Verdict("ok")


def judge_slopes(program: Any, call: Any) -> Verdict:
    """What is under a mask has no gradient, and does not matter for that of the rest."""
    vs = oracle.operands_of(program)
    found = []
    for garbage in (0, 1, 2):
        of_arrays = functools.partial(slopes, oracle.function_of(program), garbage=garbage)
        try:
            call(lambda *xs, of=of_arrays: of(xs), *dense(vs))
        except Exception as error:  # noqa: BLE001 - JAX does not do it
            return Verdict("invalid", str(error))
        try:
            found.append(slopes(oracle.transformed(program), vs, garbage=garbage))
        except Exception as error:  # noqa: BLE001 - any is what is looked for
            return oracle.meant(program, error) or oracle.crash(program, error)
    for v, *parts in zip(vs, *found, strict=True):
        if not isinstance(v, Masked):
            continue
        there = np.asarray(~v.mask)
        parts = [oracle.wide(part) for part in parts]
        for part in parts:
            if not oracle.same(_only(part, there), _only(parts[0], there), 1e-4):
                return Verdict("wrong", f"what is under a mask matters: {parts}")
            hidden = part[~there]
            if not ((hidden == 0) | np.isnan(hidden)).all():
                return Verdict("wrong", f"what is under a mask has a gradient: {part}")
    return Verdict("ok")


def slopes(run: Any, vs: Any, *, garbage: int) -> list[Any]:
    """The gradient of what is there of the results, for the array of each operand."""
    filled = [_with_garbage(v, garbage) if isinstance(v, Masked) else v for v in vs]
    leaves, with_leaves = oracle.floating(dense(filled))

    def loss(leaves: Any) -> Any:
        both = zip(filled, with_leaves(leaves), strict=True)
        results = run(*(Masked(x, v.mask) if isinstance(v, Masked) else x for v, x in both))
        return oracle.total(jax.tree.map(_there_alone, results, is_leaf=is_value))

    return with_leaves(jax.grad(loss)(leaves))


def _there_alone(x: Any) -> Any:
    while isinstance(x, Annotated):
        x = x.filled(0) if isinstance(x, Masked) else x.array
    return x.filled(0) if isinstance(x, Masked) else x


def _tolerance(x: Any) -> float:
    return max(1e-4, 2 * oracle.TOLERANCE.get(str(x.dtype), 0.0))


def _there(x: Any) -> np.ndarray:
    if isinstance(x, Masked):
        return ~np.asarray(dense(x.mask))
    return np.ones(jnp.shape(x), bool)


def _only(array: np.ndarray, there: np.ndarray) -> np.ndarray:
    return np.where(there, array, 0)


def _with_garbage(v: Any, which: int) -> Any:
    array = dense(v.array)
    garbage = (array, array * 0 + 3, jnp.flip(array) * 5 - 1)[which].astype(array.dtype)
    return Masked(jnp.where(v.mask, garbage, array), v.mask)


def judge_bounds(program: Any, call: Any) -> Verdict:
    vs = oracle.operands_of(program)
    f = oracle.function_of(program)
    try:
        call(f, *dense(vs))
    except Exception as error:  # noqa: BLE001 - JAX does not do it
        return Verdict("invalid", str(error))
    try:
        bounds = call(oracle.transformed(program), *vs)
    except Exception as error:  # noqa: BLE001 - any is what is looked for
        if isinstance(error, numpy_run.NotStaged):
            raise
        return oracle.meant(program, error) or oracle.crash(program, error)
    bounds = jax.tree.leaves(bounds, is_leaf=is_value)
    rng = np.random.default_rng(0)
    coarsest = max(map(_tolerance, vs))
    for draw in range(5):
        inside = [
            _inside(v, rng, draw) if isinstance(v, Interval) else _numbers(v) for v in vs
        ]
        for bound, x in zip(bounds, jax.tree.leaves(call(f, *inside)), strict=True):
            kinds = (bound.shape, bound.dtype), (x.shape, x.dtype)
            if kinds[0] != kinds[1]:
                return Verdict("kind", f"{kinds[0]} against {kinds[1]}")
            x = oracle.wide(x)
            tolerance = max(coarsest, _tolerance(bound))
            there = np.ones(x.shape, bool)
            while isinstance(bound, Annotated | Masked):
                there = there & _there(bound)
                bound = bound.array
            if isinstance(bound, Interval):
                ends = bound.lower, bound.upper
                there = there & _there(ends[0]) & _there(ends[1])
                low, high, x = (_only(oracle.wide(dense(a)), there) for a in (*ends, x))
                if (low > high).any():
                    return Verdict("wrong", f"{low} is above {high}")
                known = np.isfinite(low) & np.isfinite(high)
                if low.dtype.kind == "f":
                    ends = np.concatenate([a[np.isfinite(a)] for a in (low, high, x)])
                    slack = tolerance * np.abs(ends).max(initial=0.0)
                    low, high = low - slack, high + slack
                # Where bounds are known, all that is inside is a number.
                if not ((low <= x) & (x <= high) | ~np.isfinite(x) & ~known).all():
                    return Verdict("wrong", f"{x} is not from {low} to {high}")
            elif not _is_same(bound, x, there, tolerance):
                return Verdict("wrong", f"{bound} is no bound, of {x}")
    return Verdict("ok")


def _is_same(got: Any, want: np.ndarray, there: np.ndarray, tolerance: float) -> bool:
    """Whether a result without bounds is the dense one, where a masked array has entries."""
    return oracle.same(_only(oracle.wide(dense(got)), there), _only(want, there), tolerance)


def _numbers(v: Any) -> Any:
    """The array of an operand.

    Which factors of a product meet first decides what is NaN and what infinite, and the type says
    which do.
    """
    return jaxrewrite.materialise(v) if oracle.is_spoilt_product(v) else dense(v)


def _inside(v: Any, rng: Any, draw: int) -> Any:
    low, high = (oracle.wide(_numbers(end)) for end in (v.lower, v.upper))
    t = (
        (0.0, 1.0)[draw]
        if draw < 2
        else rng.choice([0.0, 0.5, 1.0, rng.random()], low.shape)
    )
    x = low + t * (high.astype(float) - low)
    x = np.where(np.isnan(x), low, x)  # between two infinities
    if not jnp.issubdtype(v.dtype, jnp.inexact):
        x = np.round(x)
    return jnp.asarray(x, v.dtype)

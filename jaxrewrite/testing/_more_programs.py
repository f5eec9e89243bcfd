"""Programs with the parameters and operands that a rule may forget, and on two values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

import jaxrewrite

from .. import primitives
from ._compare import Program
from ._oracle import numbers
from ._programs import SLOW, Named, in_lax, of, with_params


def more_programs(value: Any) -> dict[str, Program]:
    """Programs with the parameters and operands that a rule may forget, by name."""
    x = numbers((value.size + 1,), value.dtype)[1:].reshape(value.shape)
    named: list[Named] = [*_rare_elementwise(value, x)]
    if value.shape:
        named += [*_rare_moves(value, x), *_rare_products(value, x)]
        named += _linear_algebra(value, x)
    return dict(named)


def programs_on_two(v: Any, w: Any) -> dict[str, Program]:
    """Programs on two values of one type that differ in more than floating leaves."""
    named: list[Named] = []
    for name in primitives.BINARY:
        fn = in_lax(name)
        if fn is not None and name not in SLOW:
            named.append(of(name, fn, v, w, how="of two"))
    first = jnp.arange(v.size).reshape(v.shape) % 2 == 0
    named.append(of("select_n", lax.select_n, first, v, w, how="of two"))
    of_three = jnp.arange(v.size, dtype="int32").reshape(v.shape) % 3
    # The third is the first, and then the second, so that it has to be met.
    three = lambda p, v, w: (lax.select_n(p, v, w, v), lax.select_n(p, v, w, w))
    named.append(of("select_n", three, of_three, v, w, how="of two in three cases"))
    for p in (True, False):
        cond = lambda p, v, w: lax.cond(p, lambda: v, lambda: w)
        which = "first" if p else "second"
        named.append(of("cond", cond, jnp.asarray(p), v, w, how=f"of two, {which}"))
    follow = lambda v, w: lax.scan(lambda c, _: (w, None), v, None, 2)[0]
    named.append(of("scan", follow, v, w, how="of two"))
    if v.shape:
        join = lambda *xs: lax.concatenate(xs, 0)
        named.append(of("concatenate", join, v, w, how="of two"))
        by_first = lambda v, w: lax.sort((v, w), dimension=0, num_keys=1)
        named.append(of("sort", by_first, v, w, how="of two"))
        last = len(v.shape) - 1
        named.append(of("dot_general", _contracting(last, last), v, w, how="of two"))
        if v.shape[-1] == v.shape[-2:][0]:
            named.append(of("dot_general", jnp.matmul, v, w, how="of two, in a row"))
    return dict(named)


def _rare_elementwise(v: Any, x: Any) -> Iterator[Named]:
    for y in (0, 1, 2, -1, -2):
        yield of("integer_pow", with_params(lax.integer_pow, y=y), v, how=f"to {y}")
    if jnp.issubdtype(x.dtype, jnp.floating):
        to_even = with_params(lax.round, rounding_method=lax.RoundingMethod.TO_NEAREST_EVEN)
        yield of("round", to_even, v, how="to even")
        yield of("pow", lax.pow, v, numbers(x.shape, "int32"), how="with integers")
        cast = with_params(lax.convert_element_type, new_dtype="bfloat16")
        yield _rounded(of("convert_element_type", cast, v, how="to bfloat16"))
    every_second = jnp.arange(x.size).reshape(x.shape) % 2 == 0
    equal_here = jnp.where(every_second, jaxrewrite.materialise(v), x)
    for name in primitives.COMPARISON:
        fn = in_lax(name)
        if fn is not None:
            yield of(name, fn, v, equal_here, how="with an array, equal in part")
            yield of(name, fn, equal_here, v, how="of an array, equal in part")
    of_three = jnp.arange(x.size, dtype="int32").reshape(x.shape) % 3
    yield of("select_n", lax.select_n, of_three, x, v, 2 * x, how="of three")
    if x.dtype == bool:
        yield of("select_n", lax.select_n, v, x, ~x, how="by itself")
    yield of("clamp", lax.clamp, v, x, x, how="from below")
    yield of("clamp", lax.clamp, x, x, v, how="from above")


def _rounded(named: Named) -> Named:
    """A program that is compared in no derivative, where rounding adds up."""
    name, program = named
    return name, program._replace(is_smooth=False)


def _rare_moves(v: Any, x: Any) -> Iterator[Named]:
    rank, last = x.ndim, x.ndim - 1
    turn = (*range(1, rank), 0)
    if rank > 2:
        yield of(
            "transpose", with_params(lax.transpose, permutation=turn), v, how="in turn"
        )
    if rank > 1:
        both = (0, last)
        yield of("rev", with_params(lax.rev, dimensions=both), v, how="along two axes")
    if rank > 2:
        for fn in (lax.reduce_sum, lax.reduce_max, lax.reduce_min, lax.reduce_prod):
            both_ends = with_params(fn, axes=(0, last))
            yield of(fn.__name__, both_ends, v, how="along two axes")
    # The gradient of a padding has a negative one.
    zero = x.dtype.type(0)
    cut = lambda v, low, high: lax.pad(v, zero, [(low, high, 0), *[(0, 0, 0)] * last])
    both_ends = lambda v: (cut(v, -1, 2), cut(v, 2, -1))
    yield of("pad", both_ends, v, how="with fewer rows at an end")
    yield of("slice", lambda v: v[::2], v, how="of every second row")
    yield of("slice", lambda v: v[..., 1::2], v, how="of every second from the end")
    outside = jnp.array([0, len(x) + 2, -1, -len(x) - 3])
    filled = lambda v, i: v.at[i].get(mode="fill")
    yield of("gather", filled, v, outside, how="out of range, fill")
    clipped = lambda v, i: v.at[i].get(mode="clip")
    yield of("gather", clipped, v, outside, how="out of range, clip")
    # This is taken for the last row, and would be the first one by modulus.
    start = jnp.asarray(2 * len(x))
    row = lambda v, i: lax.dynamic_slice_in_dim(v, i, 1)
    yield of("dynamic_slice", row, v, start, how="out of range")
    for axis, length in enumerate(x.shape):
        if length > 1:
            rest = with_params(lax.dynamic_slice_in_dim, slice_size=length - 1, axis=axis)
            yield of("dynamic_slice", rest, v, 1, how=f"from the second along axis {axis}")
    upon = lambda x, v, i: lax.dynamic_update_slice_in_dim(x, v, i, 0)
    yield of("dynamic_update_slice", upon, x, v, 0, how="of an array")
    twice = jnp.concatenate([x, x])
    yield of(
        "dynamic_update_slice", upon, twice, v, 2 * start, how="of an array, beyond it"
    )
    yield of("dynamic_update_slice", upon, v, x[:1], start, how="of a row beyond it")
    # One row twice, and one that is outside, which JAX drops.
    places = jnp.array([0, 0, len(x)])
    rows = x[:1].repeat(3, 0)
    yield of("scatter-add", lambda v, i, rows: v.at[i].add(rows), v, places, rows)
    yield of("scatter-mul", lambda v, i, rows: v.at[i].mul(rows), v, places, rows)
    yield of("scatter", lambda v, i, rows: v.at[i].set(rows), v, places, rows)
    yield of("split", lambda v: lax.split(v, (1, len(x) - 1)), v)
    if len(x) % 2 == 0:
        yield of("split", lambda v: lax.split(v, (len(x) // 2,) * 2), v, how="in halves")
    yield of("top_k", lambda v: lax.top_k(v, 1), v)
    both_sorted = lambda v, x: lax.sort((v, x), dimension=0, num_keys=1)
    yield of("sort", both_sorted, v, x, how="with an array")
    if jnp.issubdtype(x.dtype, jnp.inexact) and x.dtype.itemsize >= 4:
        yield of("fft", jnp.fft.fft, v)
    back = lambda v: lax.scan(lambda c, row: (c, -row), 0, v, reverse=True)[1]
    yield of("scan", back, v, how="with xs, reversed")


def _rare_products(v: Any, x: Any) -> Iterator[Named]:
    last, rank = x.ndim - 1, x.ndim
    every = tuple(range(rank))
    wide = numbers((3, x.shape[-1], 2), x.dtype)
    tall = numbers((2, 3, x.shape[-2:][0]), x.dtype)
    narrow = with_params(
        _contracting(last, 0), preferred_element_type=_other_precision(x.dtype)
    )
    right = numbers((x.shape[-1], 2), x.dtype)
    yield _rounded(of("dot_general", narrow, v, right, how="in another precision"))
    yield of(
        "dot_general", _contracting(last, 1), v, wide, how="with the middle of an array"
    )
    yield of(
        "dot_general",
        _contracting(2, rank - 2 if rank > 1 else 0),
        tall,
        v,
        how="of a larger array",
    )
    yield of("dot_general", _contracting(0, 0), v, x, how="of both first axes")
    yield of("dot_general", _contracting(last, last), x, v, how="of both last axes")
    yield of("dot_general", _contracting(every, every), v, x, how="over all axes")
    yield of("dot_general", _contracting((), ()), v, x, how="over no axis")
    if rank > 1:
        vector = numbers(x.shape[:1], x.dtype)
        first = _contracting(0, 0)
        yield of("dot_general", first, v, vector, how="over the first axis with a vector")
        vector = numbers(x.shape[-1:], x.dtype)
        yield of("dot_general", _contracting(0, last), vector, v, how="of a vector")
        several = _contracting(last, last, 0, 0)
        yield of("dot_general", several, v, x, how="for each row")
        yield of("dot_general", several, x, v, how="for each row of an array")
    if rank > 2:
        stack = numbers((*x.shape[:-2], x.shape[-1], 2), x.dtype)
        yield of("dot_general", jnp.matmul, v, stack, how="with a stack")
        stack = numbers((*x.shape[:-2], 2, x.shape[-2]), x.dtype)
        yield of("dot_general", jnp.matmul, stack, v, how="of a stack")


def _contracting(left: Any, right: Any, *batch: int) -> Callable[..., Any]:
    """A product over these axes, with a batch axis of each operand if there are two more."""
    ours, theirs = ((x,) if isinstance(x, int) else x for x in (left, right))
    batches = (batch[:1], batch[1:])
    return lambda x, y, **params: lax.dot_general(x, y, ((ours, theirs), batches), **params)


def _other_precision(dtype: Any) -> Any:
    """A dtype for sums, of fewer bits than the operands, whose own bits are rounded away."""
    if jnp.issubdtype(dtype, jnp.floating):
        return "bfloat16"
    return dtype if jnp.issubdtype(dtype, jnp.inexact) else "int32"


# Above this condition number, equal solutions may differ by rounding.
_CONDITION = 100


def _linear_algebra(v: Any, x: Any) -> Iterator[Named]:
    """Solutions and factors of a square matrix that is far from a singular one."""
    is_matrix = x.ndim > 1 and x.shape[-1] == x.shape[-2] > 0
    if not is_matrix or x.dtype not in (jnp.float32, jnp.float64, jnp.complex64):
        return
    dense = np.asarray(jaxrewrite.materialise(v))
    if not np.isfinite(dense).all() or np.linalg.cond(dense).max() > _CONDITION:
        return
    solve = lambda v, x: jnp.linalg.solve(v, x)
    yield of("custom_linear_solve", solve, v, x, how="with an array")
    vectors = lambda v, x: jnp.linalg.solve(v, x[..., :1])
    yield of("custom_linear_solve", vectors, v, x, how="with a column")
    left = lambda v, x: jnp.linalg.solve(v.mT, x)
    yield of("custom_linear_solve", left, v, x, how="of the transpose")
    yield of("lu", lambda v: jnp.linalg.det(v), v, how="for a determinant")
    yield of("lu", lambda v: jnp.linalg.inv(v), v, how="for an inverse")
    diagonal = lambda v: jnp.diagonal(v, axis1=-2, axis2=-1)
    yield of("gather", diagonal, v, how="of the diagonal")
    is_hermitian = np.array_equal(dense, dense.conj().swapaxes(-2, -1))
    if is_hermitian and (np.linalg.eigvalsh(dense) > 0).all():
        yield of("cholesky", lambda v: jnp.linalg.cholesky(v), v)

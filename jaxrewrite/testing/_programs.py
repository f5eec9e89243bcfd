"""Programs on one value, with the operands that they need."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from .. import primitives
from ._compare import Program
from ._oracle import numbers


# At ties and at corners, each derivative within a range is right.
_KINKS = frozenset(
    {"abs", "max", "min", "clamp", "reduce_max", "reduce_min", "cummax", "cummin", "sort"}
)

# Special functions whose derivatives take long to compile.
_SLOW = frozenset({"igamma", "igammac"})

# What all primitives without a rule have in common shows in these.
BY_DEFAULT = frozenset(
    {
        "neg",
        "exp",
        "add",
        "mul",
        "max",
        "reduce_sum",
        "reduce_max",
        "argmax",
        "cumsum",
        "dot_general",
        "reshape",
        "transpose",
        "slice",
        "dynamic_slice",
        "gather",
        "concatenate",
        "select_n",
        "convert_element_type",
        "cond",
        "scan",
        "while",
        "jit",
        "custom_jvp_call",
        "custom_vjp_call",
    }
)

_OTHER_NAMES = {"not": "bitwise_not", "and": "bitwise_and", "or": "bitwise_or"}
_OTHER_NAMES |= {"xor": "bitwise_xor"}

# These differ from what a rule that does not read them would take.
_PARAMETERS: dict[str, dict[str, Any]] = {
    "integer_pow": {"y": 3},
    "reduce_precision": {"exponent_bits": 8, "mantissa_bits": 7},
}

Named = tuple[str, Program]


def programs(value: Any) -> dict[str, Program]:
    """All programs for a value of this shape and dtype, by name."""
    shape, dtype = value.shape, value.dtype
    # Other numbers than `numbers` gives for this shape, which the value may hold itself.
    x = numbers((value.size + 1,), dtype)[1:].reshape(shape)
    found: list[Named] = [*_elementwise(value, x), *_moves(value, x), *_control(value, x)]
    if shape:
        found += [*_along_axes(value), *_products(value, x)]
    if jnp.issubdtype(dtype, jnp.inexact):
        found += _custom_derivatives(value)
    return dict(found)


def _of(primitive: str, fn: Callable[..., Any], *operands: Any, how: str = "") -> Named:
    name = f"{primitive} {how}".strip()
    return name, Program(primitive, fn, operands, primitive not in _KINKS)


def _in_lax(primitive: str) -> Callable[..., Any] | None:
    return getattr(lax, _OTHER_NAMES.get(primitive, primitive), None)


def _elementwise(v: Any, x: Any) -> Iterator[Named]:
    for name in primitives.UNARY:
        fn = _in_lax(name)
        if fn is not None:
            yield _of(name, _with(fn, **_PARAMETERS.get(name, {})), v)
    for name in primitives.BINARY:
        fn = _in_lax(name)
        if fn is not None and name not in _SLOW:
            yield _of(name, fn, v, x, how="with an array")
            yield _of(name, fn, x, v, how="of an array")
            yield _of(name, _twice(fn), v, how="with itself")
    yield _of("mul", lambda v: v * 2, v, how="with a number")
    # A cast of complex numbers to integers warns.
    for dtype in ("complex64",) if jnp.iscomplexobj(x) else ("complex64", "int32"):
        cast = _with(lax.convert_element_type, new_dtype=dtype)
        yield _of("convert_element_type", cast, v, how=f"to {dtype}")
    every_second = jnp.arange(x.size).reshape(x.shape) % 2 == 0
    yield _of("select_n", lax.select_n, every_second, v, x, how="with an array")
    yield _of("select_n", lax.select_n, every_second, x, v, how="of an array")
    both = lambda p, v: lax.select_n(p, v, v)
    yield _of("select_n", both, every_second, v, how="with itself")
    yield _of("clamp", lambda v, x: lax.clamp(x, v, x), v, x)


def _with(fn: Callable[..., Any], **params: Any) -> Callable[..., Any]:
    return lambda *operands: fn(*operands, **params)


def _twice(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda v: fn(v, v)


def _moves(v: Any, x: Any) -> Iterator[Named]:
    yield _of("broadcast_in_dim", lambda v: lax.broadcast(v, (2,)), v)
    yield _of("reshape", lambda v: lax.reshape(v, (v.size,)), v)
    yield _of("broadcast_in_dim", _with_last_axis, v, how="with a last axis")
    yield _of("squeeze", lambda v: lax.squeeze(lax.expand_dims(v, (0,)), (0,)), v)
    yield _of("transpose", lambda v: v.T, v)
    if not x.ndim:
        return
    zero, one = map(x.dtype.type, (0, 1))
    yield _of("slice", lambda v: v[1:], v, how="of rows")
    yield _of("slice", lambda v: v[0], v, how="of one row")
    for axis in range(x.ndim):
        how = f"along axis {axis}"
        yield _of("rev", _with(lax.rev, dimensions=(axis,)), v, how=how)
        if x.shape[axis] == 1:
            yield _of("squeeze", _with(lax.squeeze, dimensions=(axis,)), v, how=how)
    row = len(x) - 1
    yield _of("dynamic_slice", lambda v, i: lax.dynamic_index_in_dim(v, i), v, row)
    yield _of("gather", lambda v, i: v[i], v, jnp.array([row, 0]))
    yield _of("pad", lambda v: jnp.pad(v, 1, constant_values=zero), v)
    config = [(1, 2, 1), *[(0, 0, 0)] * (x.ndim - 1)]
    yield _of("pad", lambda v: lax.pad(v, one, config), v, how="with ones")
    update = lambda v, x: lax.dynamic_update_slice_in_dim(v, x, 0, 0)
    yield _of("dynamic_update_slice", update, v, x)
    join = lambda *xs: lax.concatenate(xs, 0)
    yield _of("concatenate", join, v, x, how="with an array")
    yield _of("concatenate", join, x, v, how="of an array")
    yield _of("concatenate", _twice(join), v, how="with itself")


def _with_last_axis(v: Any) -> Any:
    return lax.broadcast_in_dim(v, (*v.shape, 2), range(v.ndim))


def _along_axes(v: Any) -> Iterator[Named]:
    axes = range(len(v.shape))
    for name in primitives.REDUCTION:
        fn = _in_lax(name)
        if fn is None:
            continue
        for axis in axes:
            how = f"along axis {axis}"
            if name in ("argmax", "argmin"):
                yield _of(name, _with(fn, axis=axis, index_dtype="int8"), v, how=how)
            else:
                yield _of(name, _with(fn, axes=(axis,)), v, how=how)
        if name not in ("argmax", "argmin"):
            yield _of(name, _with(fn, axes=tuple(axes)), v)
    for axis in axes:
        yield _of("sort", _with(lax.sort, dimension=axis), v, how=f"along axis {axis}")
    for name in primitives.CUMULATIVE:
        fn = _in_lax(name)
        if fn is not None:
            for axis in axes:
                how = f"along axis {axis}"
                yield _of(name, _with(fn, axis=axis), v, how=how)
                backwards = _with(fn, axis=axis, reverse=True)
                yield _of(name, backwards, v, how=f"{how}, reversed")


def _products(v: Any, x: Any) -> Iterator[Named]:
    last, rows = v.shape[-1], v.shape[-2:][0]
    right, left = numbers((last, 2), x.dtype), numbers((2, rows), x.dtype)
    yield _of("dot_general", jnp.matmul, v, right, how="with an array")
    yield _of("dot_general", jnp.matmul, left, v, how="of an array")
    yield _of("dot_general", jnp.matmul, v, numbers((last,), x.dtype), how="with a vector")
    yield _of("dot_general", lambda v: v @ v.T, v, how="with its transpose")
    rows_by_rows = (((v.ndim - 1,), (v.ndim - 1,)), ((), ()))
    itself = lambda v: lax.dot_general(v, v, rows_by_rows)
    yield _of("dot_general", itself, v, how="with itself")
    entries = lambda v, x: jnp.sum(jnp.einsum("i...,i...->...", v, x))
    yield _of("dot_general", entries, v, x, how="over the first axis")


# --- values in jax.lax's control flow ---------------------------------------------------


def _control(v: Any, x: Any) -> Iterator[Named]:
    cond = lambda p, v, w: lax.cond(p, lambda: v, lambda: w)
    for is_first in (True, False):
        p = jnp.asarray(is_first)
        which = "first" if is_first else "second"
        yield _of("cond", lambda p, v: cond(p, v, v), p, v, how=f"with itself, {which}")
        yield _of("cond", cond, p, v, x, how=f"with an array, {which}")
        negative = lambda p, v: lax.cond(p, lambda: v, lambda: -v)
        yield _of("cond", negative, p, v, how=f"with its negative, {which}")
    keep = lambda v: lax.scan(lambda c, _: (c, None), v, None, 2)[0]
    yield _of("scan", keep, v, how="with a carry")
    replace = lambda v, x: lax.scan(lambda c, _: (x, None), v, None, 2)[0]
    yield _of("scan", replace, v, x, how="with a carry that an array follows")
    added = lambda v: lax.scan(lambda c, _: (c + v, None), v, None, 2)[0]
    yield _of("scan", added, v, how="with a sum as carry")
    ys = lambda v: lax.scan(lambda c, _: (c, v), 0, None, 2)[1]
    yield _of("scan", ys, v, how="with ys")
    if x.ndim:
        xs = lambda v: lax.scan(lambda c, row: (c + jnp.sum(row), -row), 0 * x.sum(), v)
        yield _of("scan", xs, v, how="with xs")
    # JAX takes a slice that a turn returns as it is out of the loop.
    stacked = lambda v: lax.scan(
        lambda c, row: (c, -row), 0, lax.scan(lambda c, _: (c, v), 0, None, 2)[1]
    )[1]
    yield _of("scan", stacked, v, how="with a stack as xs")
    yield _of("while", lambda v: lax.fori_loop(0, 2, lambda i, c: c, v), v)
    yield _of("jit", lambda v: jax.jit(lambda v: v)(v), v)


# --- functions with a rule of derivatives, which is not that of the function -------------


def _custom_derivatives(v: Any) -> Iterator[Named]:
    @jax.custom_jvp
    def forward(v: Any) -> Any:
        return v

    @forward.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        return primals[0], 3 * tangents[0]

    @jax.custom_vjp
    def backward(v: Any) -> Any:
        return v

    backward.defvjp(lambda v: (v, v), lambda v, g: (3 * v * g,))

    @jax.custom_vjp
    def mixing(v: Any) -> Any:
        return v

    mixing.defvjp(lambda v: (v, None), lambda _, g: (g + 2 * g.sum(),))
    yield _of("custom_jvp_call", lambda v: forward(v), v)
    yield _of("custom_vjp_call", lambda v: backward(v), v)
    yield _of("custom_vjp_call", lambda v: mixing(v), v, how="that mixes entries")

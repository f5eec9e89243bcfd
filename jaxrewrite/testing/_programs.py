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
    {"abs", "max", "min", "clamp", "reduce_max", "reduce_min", "cummax", "cummin"}
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
    }
)

_OTHER_NAMES = {"not": "bitwise_not", "and": "bitwise_and", "or": "bitwise_or"}
_OTHER_NAMES |= {"xor": "bitwise_xor"}

_PARAMETERS: dict[str, dict[str, Any]] = {
    "integer_pow": {"y": 2},
    "reduce_precision": {"exponent_bits": 8, "mantissa_bits": 7},
}

Named = tuple[str, Program]


def programs(value: Any) -> dict[str, Program]:
    """All programs for a value of this shape and dtype, by name."""
    shape, dtype = value.shape, value.dtype
    x = numbers(shape, dtype)
    found: list[Named] = [*_elementwise(value, x), *_moves(value, x), *_control(value, x)]
    if shape:
        found += [*_along_axes(value), *_products(value, x)]
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
    yield _of("convert_element_type", lambda v: v.astype("complex64"), v)
    yield _of("select_n", lambda v, x: lax.select(x == x, v, x), v, x)
    yield _of("clamp", lambda v, x: lax.clamp(x, v, x), v, x)


def _with(fn: Callable[..., Any], **params: Any) -> Callable[..., Any]:
    return lambda *operands: fn(*operands, **params)


def _twice(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda v: fn(v, v)


def _moves(v: Any, x: Any) -> Iterator[Named]:
    yield _of("broadcast_in_dim", lambda v: lax.broadcast(v, (2,)), v)
    yield _of("reshape", lambda v: lax.reshape(v, (v.size,)), v)
    yield _of("squeeze", lambda v: lax.squeeze(lax.expand_dims(v, (0,)), (0,)), v)
    yield _of("transpose", lambda v: v.T, v)
    if not x.ndim:
        return
    zero = x.dtype.type(0)
    yield _of("slice", lambda v: v[1:], v, how="of rows")
    yield _of("slice", lambda v: v[0], v, how="of one row")
    yield _of("rev", lambda v: v[::-1], v)
    yield _of("dynamic_slice", lambda v, i: lax.dynamic_index_in_dim(v, i), v, 0)
    yield _of("gather", lambda v, i: v[i], v, jnp.zeros(2, int))
    yield _of("pad", lambda v: jnp.pad(v, 1, constant_values=zero), v)
    update = lambda v, x: lax.dynamic_update_slice_in_dim(v, x, 0, 0)
    yield _of("dynamic_update_slice", update, v, x)
    join = lambda *xs: lax.concatenate(xs, 0)
    yield _of("concatenate", join, v, x, how="with an array")
    yield _of("concatenate", join, x, v, how="of an array")
    yield _of("concatenate", _twice(join), v, how="with itself")


def _along_axes(v: Any) -> Iterator[Named]:
    axes = range(len(v.shape))
    for name in primitives.REDUCTION:
        fn = _in_lax(name)
        if fn is None:
            continue
        for axis in axes:
            how = f"along axis {axis}"
            if name in ("argmax", "argmin"):
                yield _of(name, _with(fn, axis=axis, index_dtype="int32"), v, how=how)
            else:
                yield _of(name, _with(fn, axes=(axis,)), v, how=how)
        if name not in ("argmax", "argmin"):
            yield _of(name, _with(fn, axes=tuple(axes)), v)
    for name in primitives.CUMULATIVE:
        fn = _in_lax(name)
        if fn is not None:
            for axis in axes:
                yield _of(name, _with(fn, axis=axis), v, how=f"along axis {axis}")


def _products(v: Any, x: Any) -> Iterator[Named]:
    last, rows = v.shape[-1], v.shape[-2:][0]
    right, left = numbers((last, 2), x.dtype), numbers((2, rows), x.dtype)
    yield _of("dot_general", jnp.matmul, v, right, how="with an array")
    yield _of("dot_general", jnp.matmul, left, v, how="of an array")
    yield _of("dot_general", jnp.matmul, v, numbers((last,), x.dtype), how="with a vector")
    yield _of("dot_general", lambda v: v @ v.T, v, how="with its transpose")
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
    keep = lambda v: lax.scan(lambda c, _: (c, None), v, None, 2)[0]
    yield _of("scan", keep, v, how="with a carry")
    replace = lambda v, x: lax.scan(lambda c, _: (x, None), v, None, 2)[0]
    yield _of("scan", replace, v, x, how="with a carry that an array follows")
    ys = lambda v: lax.scan(lambda c, _: (c, v), 0, None, 2)[1]
    yield _of("scan", ys, v, how="with ys")
    if x.ndim:
        xs = lambda v: lax.scan(lambda c, row: (c + jnp.sum(row), row), 0 * x.sum(), v)
        yield _of("scan", xs, v, how="with xs")
    stacked = lambda v: lax.scan(
        lambda c, row: (c, row), 0, lax.scan(lambda c, _: (c, v), 0, None, 2)[1]
    )[1]
    yield _of("scan", stacked, v, how="with a stack as xs")
    yield _of("while", lambda v: lax.fori_loop(0, 2, lambda i, c: c, v), v)
    yield _of("jit", lambda v: jax.jit(lambda v: v)(v), v)

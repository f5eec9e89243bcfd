"""Programs on one value, with the operands that they need."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .. import primitives
from ._compare import Program
from ._oracle import numbers


# At ties and at corners, each derivative within a range is right.
_KINKS = frozenset(
    {"abs", "max", "min", "clamp", "reduce_max", "reduce_min", "cummax", "cummin", "sort"}
)

# Special functions whose derivatives take long to compile.
SLOW = frozenset({"igamma", "igammac"})

# Primitives that show the common behaviour of all primitives without a rule.
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

# Primitives whose rules in the library's bases call most of a type's methods.
OF_VARIANTS = frozenset(
    {
        "neg",
        "add",
        "mul",
        "reduce_sum",
        "dot_general",
        "transpose",
        "slice",
        "gather",
        "custom_linear_solve",
        "lu",
        "cholesky",
    }
)
OF_PAIRS = frozenset({"add", "sub", "mul", "dot_general", "concatenate", "select_n"})

# Primitives that ask a type's other methods where it has no rule.
_CONTROL = {"cond", "scan", "while", "jit", "custom_jvp_call", "custom_vjp_call"}
OF_DENSE = frozenset({"mul", "reduce_sum", *_CONTROL})

_OTHER_NAMES = {"not": "bitwise_not", "and": "bitwise_and", "or": "bitwise_or"}
_OTHER_NAMES |= {"xor": "bitwise_xor"}

# They are not the numbers that a rule would take that does not read them.
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
    named: list[Named] = [*_elementwise(value, x), *_moves(value, x), *_control(value, x)]
    if shape:
        named += [*_along_axes(value), *_products(value, x)]
    if jnp.issubdtype(dtype, jnp.inexact):
        named += _custom_derivatives(value)
    return dict(named)


def of(primitive: str, fn: Callable[..., Any], *operands: Any, how: str = "") -> Named:
    name = f"{primitive} {how}".strip()
    return name, Program(primitive, fn, operands, primitive not in _KINKS)


def in_lax(primitive: str) -> Callable[..., Any] | None:
    return getattr(lax, _OTHER_NAMES.get(primitive, primitive), None)


def _elementwise(v: Any, x: Any) -> Iterator[Named]:
    for name in primitives.UNARY:
        fn = in_lax(name)
        if fn is not None:
            yield of(name, with_params(fn, **_PARAMETERS.get(name, {})), v)
    for name in primitives.BINARY:
        fn = in_lax(name)
        if fn is not None and name not in SLOW:
            yield of(name, fn, v, x, how="with an array")
            yield of(name, fn, x, v, how="of an array")
            yield of(name, _twice(fn), v, how="with itself")
    yield of("rem", lambda v, x: lax.rem(v, -x), v, x, how="with a negative array")
    yield of("mul", lambda v: v * 2, v, how="with a number")
    # A cast of complex numbers to integers warns.
    for dtype in ("complex64",) if jnp.iscomplexobj(x) else ("complex64", "int32"):
        cast = with_params(lax.convert_element_type, new_dtype=dtype)
        yield of("convert_element_type", cast, v, how=f"to {dtype}")
    every_second = jnp.arange(x.size).reshape(x.shape) % 2 == 0
    yield of("select_n", lax.select_n, every_second, v, x, how="with an array")
    yield of("select_n", lax.select_n, every_second, x, v, how="of an array")
    both = lambda p, v: lax.select_n(p, v, v)
    yield of("select_n", both, every_second, v, how="with itself")
    yield of("clamp", lambda v, x: lax.clamp(x, v, x), v, x)
    if x.size:
        in_order = x.ravel()[np.argsort(x, axis=None)]
        least, most = in_order[0], in_order[x.size // 2]
        yield of("clamp", lax.clamp, least, v, most, how="between numbers")


def with_params(fn: Callable[..., Any], **params: Any) -> Callable[..., Any]:
    return lambda *operands: fn(*operands, **params)


def _twice(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda v: fn(v, v)


def _moves(v: Any, x: Any) -> Iterator[Named]:
    yield of("broadcast_in_dim", lambda v: lax.broadcast(v, (2,)), v)
    yield of("reshape", lambda v: lax.reshape(v, (v.size,)), v)
    yield of("broadcast_in_dim", _with_last_axis, v, how="with a last axis")
    yield of("squeeze", lambda v: lax.squeeze(lax.expand_dims(v, (0,)), (0,)), v)
    ends = (0, x.ndim + 1)
    both = lambda v: lax.squeeze(lax.expand_dims(v, ends), ends)
    yield of("squeeze", both, v, how="of both ends")
    yield of("transpose", lambda v: v.T, v)
    if not x.ndim:
        return
    zero, one = map(x.dtype.type, (0, 1))
    yield of("slice", lambda v: v[1:], v, how="of rows")
    yield of("slice", lambda v: v[0], v, how="of one row")
    for axis in range(x.ndim):
        how = f"along axis {axis}"
        yield of("rev", with_params(lax.rev, dimensions=(axis,)), v, how=how)
        if x.shape[axis] == 1:
            yield of("squeeze", with_params(lax.squeeze, dimensions=(axis,)), v, how=how)
    row = len(x) - 1
    yield of("dynamic_slice", lambda v, i: lax.dynamic_index_in_dim(v, i), v, row)
    yield of("gather", lambda v, i: v[i], v, jnp.array([row, 0]))
    yield of("pad", lambda v: jnp.pad(v, 1, constant_values=zero), v)
    config = [(1, 2, 1), *[(0, 0, 0)] * (x.ndim - 1)]
    yield of("pad", lambda v: lax.pad(v, one, config), v, how="with ones")
    update = lambda v, x: lax.dynamic_update_slice_in_dim(v, x, 0, 0)
    yield of("dynamic_update_slice", update, v, x)
    entry, starts = x[(slice(1),) * x.ndim], (row, *[0] * (x.ndim - 1))
    write = lambda v, x: lax.dynamic_update_slice(v, x, starts)
    yield of("dynamic_update_slice", write, v, entry, how="of one entry")
    join = lambda *xs: lax.concatenate(xs, 0)
    yield of("concatenate", join, v, x, how="with an array")
    yield of("concatenate", join, x, v, how="of an array")
    yield of("concatenate", _twice(join), v, how="with itself")
    if x.ndim > 1:
        beside = lambda *xs: lax.concatenate(xs, x.ndim - 1)
        yield of("concatenate", beside, v, x, how="with an array, along the last axis")
        yield of("concatenate", beside, x, v, how="of an array, along the last axis")


def _with_last_axis(v: Any) -> Any:
    return lax.broadcast_in_dim(v, (*v.shape, 2), range(v.ndim))


def _along_axes(v: Any) -> Iterator[Named]:
    axes = range(len(v.shape))
    for name in primitives.REDUCTION:
        fn = in_lax(name)
        if fn is None:
            continue
        for axis in axes:
            how = f"along axis {axis}"
            if name in ("argmax", "argmin"):
                for dtype in ("int8", "int32") if axis == 0 else ("int8",):
                    as_dtype = how if dtype == "int8" else f"{how} as {dtype}"
                    yield of(
                        name, with_params(fn, axis=axis, index_dtype=dtype), v, how=as_dtype
                    )
            else:
                yield of(name, with_params(fn, axes=(axis,)), v, how=how)
        if name not in ("argmax", "argmin"):
            yield of(name, with_params(fn, axes=tuple(axes)), v)
    for axis in axes:
        yield of("sort", with_params(lax.sort, dimension=axis), v, how=f"along axis {axis}")
    for name in primitives.CUMULATIVE:
        fn = in_lax(name)
        if fn is not None:
            for axis in axes:
                how = f"along axis {axis}"
                yield of(name, with_params(fn, axis=axis), v, how=how)
                backwards = with_params(fn, axis=axis, reverse=True)
                yield of(name, backwards, v, how=f"{how}, reversed")


def _products(v: Any, x: Any) -> Iterator[Named]:
    last, rows = v.shape[-1], v.shape[-2:][0]
    right, left = numbers((last, 2), x.dtype), numbers((2, rows), x.dtype)
    yield of("dot_general", jnp.matmul, v, right, how="with an array")
    yield of("dot_general", jnp.matmul, left, v, how="of an array")
    yield of("dot_general", jnp.matmul, v, numbers((last,), x.dtype), how="with a vector")
    transposed = lambda v: v.T if v.ndim < 3 else v.mT
    with_it = lambda v: jnp.matmul(v, transposed(v))
    yield of("dot_general", with_it, v, how="with its transpose")
    rows_by_rows = (((v.ndim - 1,), (v.ndim - 1,)), ((), ()))
    itself = lambda v: lax.dot_general(v, v, rows_by_rows)
    yield of("dot_general", itself, v, how="with itself")
    entries = lambda v, x: jnp.sum(jnp.einsum("i...,i...->...", v, x))
    yield of("dot_general", entries, v, x, how="over the first axis")


# --- values in jax.lax's control flow ---------------------------------------------------


def _control(v: Any, x: Any) -> Iterator[Named]:
    cond = lambda p, v, w: lax.cond(p, lambda: v, lambda: w)
    for is_first in (True, False):
        p = jnp.asarray(is_first)
        which = "first" if is_first else "second"
        yield of("cond", lambda p, v: cond(p, v, v), p, v, how=f"with itself, {which}")
        yield of("cond", cond, p, v, x, how=f"with an array, {which}")
        negative = lambda p, v: lax.cond(p, lambda: v, lambda: -v)
        yield of("cond", negative, p, v, how=f"with its negative, {which}")
    keep = lambda v: lax.scan(lambda c, _: (c, None), v, None, 2)[0]
    yield of("scan", keep, v, how="with a carry")
    replace = lambda v, x: lax.scan(lambda c, _: (x, None), v, None, 2)[0]
    yield of("scan", replace, v, x, how="with a carry that an array follows")
    added = lambda v: lax.scan(lambda c, _: (c + v, None), v, None, 2)[0]
    yield of("scan", added, v, how="with a sum as carry")
    ys = lambda v: lax.scan(lambda c, _: (c, v), 0, None, 2)[1]
    yield of("scan", ys, v, how="with ys")
    if x.ndim:
        xs = lambda v: lax.scan(lambda c, row: (c + jnp.sum(row), -row), 0 * x.sum(), v)
        yield of("scan", xs, v, how="with xs")
    # JAX takes a slice that a turn returns as it is out of the loop.
    stacked = lambda v: lax.scan(
        lambda c, row: (c, -row), 0, lax.scan(lambda c, _: (c, v), 0, None, 2)[1]
    )[1]
    yield of("scan", stacked, v, how="with a stack as xs")
    yield of("while", lambda v: lax.fori_loop(0, 2, lambda i, c: c, v), v)
    yield of("jit", lambda v: jax.jit(lambda v: v)(v), v)


# --- functions with a derivative rule that is not the derivative of the function ----------


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
    yield of("custom_jvp_call", lambda v: forward(v), v)
    yield of("custom_vjp_call", lambda v: backward(v), v)
    yield of("custom_vjp_call", lambda v: mixing(v), v, how="that mixes entries")

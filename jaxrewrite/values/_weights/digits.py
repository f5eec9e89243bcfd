"""Products of integers of 8 bits with floating arrays, as products of integers.

Each row of the floating array is written in four digits of base 256. The digits are
multiplied with the integers as they are stored, so that no entry of a weight becomes a float.
This is the scheme of H. Ootomo, K. Ozaki, R. Yokota (2024), DGEMM on Integer Matrix
Multiplication Unit, International Journal of High Performance Computing Applications 38(4),
arXiv:2306.11975, with one factor that is made of integers from the start.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jaxtyping import Array, Float32, Int8

from .._base.contract import Labels, along_result, contract, transpose
from .._base.placement import may_be_split
from .._base.structured import padded


_BASE = 256
_DIGITS = 4

# The first digit counts so many parts of the power of two of a row.
_UNIT = 1 / 32

# The dtype of sums of digits.
_SUM = jnp.dtype(jnp.int32)

# The sum of so many products of integers of 8 bits fits 32 bits.
MOST_SUMMED = 2**31 // 128**2 - 1

# With fewer rows XLA on a CPU takes longer, and ten times as long with one. Rows of zeros help.
LEAST_ROWS = 8

# From so many entries of a result on, the products of a batch, and then the digits of each,
# are multiplied one after the other: all at once they take no less time, and more memory.
_LARGE = 2**20


integer_dot_p = Primitive("integer_dot")


def integer_dot(
    q: Int8[Array, "*q"], x: Float32[Array, "*x"], own: Labels, xs: Labels, out: Labels
) -> Float32[Array, "*out"]:
    """The product of integers and floats whose axes have these labels; linear in ``x``.

    A row is what is summed together. Its entries are rounded to a 2^-30th of the largest one,
    and the sums of digits to float32. So the error is that of a product in float32 or smaller,
    except where a row's few large entries meet zeros. A row with an infinite or NaN entry gives
    NaN.
    """
    return integer_dot_p.bind(q, x, own=own, xs=xs, out=out)


def is_summable(qs: Labels, xs: Labels, out: Labels, shape: Sequence[int]) -> bool:
    """Whether the sums fit 32 bits; ``shape`` is that of the integers."""
    of_axes = zip(qs, shape, strict=True)
    count = math.prod(n for label, n in of_axes if label in xs and label not in out)
    return count <= MOST_SUMMED


def _multiplied(q: Any, x: Any, *, own: Labels, xs: Labels, out: Labels) -> Any:
    shape = _aval(q, x, own=own, xs=xs, out=out).shape
    is_large = math.prod(shape) >= _LARGE
    batch = [label for label in out if label in own and label in xs]
    if is_large and batch:
        return _in_turn(q, x, batch[0], own=own, xs=xs, out=out)
    if not is_summable(own, xs, out, q.shape):
        return contract(q.astype(x.dtype), own, x, xs, out)
    summed = [i for i, label in enumerate(xs) if label not in out]
    # Without the barrier XLA writes what makes the entries into each of the kernels that read them.
    x = lax.optimization_barrier(x)
    power, inverse = _powers(x, summed)
    digits = _digits(x * lax.expand_dims(inverse, summed))
    multiply = lambda some: integer_products(q, some, own, xs, out).astype(x.dtype)
    total = _one_by_one(multiply, digits, shape) if is_large else _at_once(multiply, digits)
    # The difference is NaN if the power is not finite, and zero otherwise.
    unit = power * _UNIT + (power - power)
    return total * along_result(unit, tuple(x for x in xs if x in out), out)


def _in_turn(q: Any, x: Any, label: Any, **labels: Labels) -> Any:
    """The products for each index of a batch."""
    front = [jnp.moveaxis(q, labels["own"].index(label), 0)]
    front += [jnp.moveaxis(x, labels["xs"].index(label), 0)]
    rest = {key: tuple(x for x in axes if x != label) for key, axes in labels.items()}
    each = lax.map(lambda pair: _multiplied(*pair, **rest), tuple(front))
    return jnp.moveaxis(each, 0, labels["out"].index(label))


def _powers(x: Any, axes: Sequence[int]) -> tuple[Any, Any]:
    """For each row, a power of two of which no entry is twice as large, and its inverse.

    So the division by it is exact. It is infinite if an entry is not finite. It is no smaller
    than 2^-121, since a 32nd of it would be denormal, which a CPU takes for zero.
    """
    most = lax.max(_largest_bits(x, axes), np.float32(2.0**-121).view(np.int32))
    # The bits of a power of two are those of its exponent. A compiler makes a loop of its own
    # for a division, and none for a difference of integers.
    bits = most & np.int32(0x7F80_0000)
    of_inverse = np.int32(0x7F00_0000) - bits
    power, inverse = (lax.bitcast_convert_type(y, x.dtype) for y in (bits, of_inverse))
    return power, inverse


def largest(x: Any, axes: Sequence[int]) -> Any:
    """The largest magnitude along some axes; NaN if there is a NaN, zero if there is nothing."""
    return lax.bitcast_convert_type(_largest_bits(x, axes), x.dtype)


def _largest_bits(x: Any, axes: Sequence[int]) -> Any:
    """The bits of the largest magnitude.

    Bits are ordered as magnitudes are, and those of NaN come last. A maximum of floats may lose
    a NaN, as XLA vectorises it on a CPU.
    """
    dtype = jnp.dtype(f"int{8 * x.dtype.itemsize}")
    without_sign = np.array(jnp.iinfo(dtype).max, dtype)
    magnitudes = lax.bitcast_convert_type(x, dtype) & without_sign
    if axes and not may_be_split():
        magnitudes = _halved(magnitudes, axes[-1])
    return lax.reduce(magnitudes, np.zeros((), dtype), lax.max, tuple(axes))


def _halved(x: Any, axis: int) -> Any:
    """The maxima of the two halves along an axis, up to seven times.

    XLA on a CPU reduces a long axis in three kernels, which take up to five times as long as
    this one. A kernel with more maxima takes longer to compile.
    """
    for _ in range(7):
        size = x.shape[axis]
        if not isinstance(size, int) or size <= 32 or size % 2:
            break
        x = lax.max(*jnp.split(x, 2, axis))
    return x


def _digits(x: Any) -> Any:
    """The digits of numbers between -2 and 2, along a new first axis, the last digit first.

    They are the bytes of a fixed-point number. A byte stands for -128 to 127, like a digit, if
    128 is added below each of the digits before it, and taken away from each byte after that.
    """
    rounded = lax.round(
        x * (_BASE ** (_DIGITS - 1) / _UNIT), lax.RoundingMethod.TO_NEAREST_EVEN
    )
    number = rounded.astype(jnp.int32)
    halves = np.int32(0x80_8080)
    number = (number + halves) ^ halves
    # Bytes of a bitcast are along the last axis. To move them to the front takes up to twice as
    # long as to shift each number four times.
    shifts: Any = np.arange(0, 8 * _DIGITS, 8).astype(np.int32)
    shifts = lax.expand_dims(shifts, range(1, x.ndim + 1))
    number, shifts = jnp.broadcast_arrays(number, shifts)
    bytes_ = lax.shift_right_logical(number, shifts).astype(jnp.uint8)
    return lax.bitcast_convert_type(bytes_, jnp.int8)


def integer_products(q: Any, x: Any, qs: Labels, xs: Labels, out: Labels) -> Any:
    """The products of integers with others that are stacked along a first axis, in int32.

    The labels are those of one product. Rows of zeros are added where there are few rows.
    """
    of_axes = zip(xs, x.shape[1:], strict=True)
    rows, count = math.prod(n for label, n in of_axes if label not in qs), len(x)
    if isinstance(rows, int) and 0 < rows * count < LEAST_ROWS:
        more = math.ceil(LEAST_ROWS / rows) - count
        x = padded(x, 0, 0, more)
    # XLA on a CPU multiplies entry by entry if the first operand is summed over another axis
    # than its last ones.
    xs, out = ("stacked", *xs), ("stacked", *out)
    batch = tuple(label for label in out if label in qs and label in xs)
    summed = tuple(label for label in qs if label not in out)
    rows = tuple(label for label in xs if label not in qs)
    columns = tuple(label for label in qs if label not in xs)
    in_front = (*batch, *rows, *columns)
    x = transpose(x, xs, (*batch, *rows, *summed))
    sums = contract(
        x, (*batch, *rows, *summed), q, qs, in_front, preferred_element_type=_SUM
    )
    return transpose(sums, in_front, out)[:count]


def _at_once(multiply: Callable[[Any], Any], digits: Any) -> Any:
    return functools.reduce(_with_digit, multiply(digits))


def _one_by_one(multiply: Callable[[Any], Any], digits: Any, shape: Sequence[int]) -> Any:
    def add(total: Any, digit: Any) -> Any:
        return _with_digit(total, multiply(digit[None])[0]), None

    total, _ = lax.scan(add, jnp.zeros(shape, jnp.float32), digits)
    return total


def _with_digit(less_significant: Any, digit: Any) -> Any:
    """The sum with a digit, from the sum with those after it."""
    return less_significant * (1 / _BASE) + digit


# --- the primitive ----------------------------------------------------------------------


def _aval(q: Any, x: Any, *, own: Labels, xs: Labels, out: Labels) -> jax.core.ShapedArray:
    sizes = dict(zip((*own, *xs), (*q.shape, *x.shape), strict=True))
    return jax.core.ShapedArray(tuple(sizes[label] for label in out), x.dtype)


def _tangent(tangent: Any, q: Any, x: Any, **labels: Labels) -> Any:
    return integer_dot_p.bind(q, tangent, **labels)


def _transposed(ct: Any, q: Any, x: Any, *, own: Labels, xs: Labels, out: Labels) -> Any:
    if type(ct) is ad.Zero:
        return None, ad.Zero(x.aval)
    return None, integer_dot_p.bind(q, ct, own=own, xs=out, out=xs)


def _batched(
    operands: Sequence[Any], axes: Sequence[int | None], **labels: Labels
) -> tuple[Any, int]:
    """The product with one more label, which is the first one of the result."""
    # A transpose only exchanges labels, so that their number tells this one from all others.
    label = ("batch", sum(map(len, labels.values())))
    new = {"out": (label, *labels["out"])}
    for name, axis in zip(("own", "xs"), axes, strict=True):
        new[name] = labels[name]
        if axis is not None:
            new[name] = (*labels[name][:axis], label, *labels[name][axis:])
    return integer_dot_p.bind(*operands, **new), 0


integer_dot_p.def_impl(jax.jit(_multiplied, static_argnames=("own", "xs", "out")))
integer_dot_p.def_abstract_eval(_aval)
ad.defjvp(integer_dot_p, None, _tangent)
ad.primitive_transposes[integer_dot_p] = _transposed
batching.primitive_batchers[integer_dot_p] = _batched
mlir.register_lowering(integer_dot_p, mlir.lower_fun(_multiplied, multiple_results=False))

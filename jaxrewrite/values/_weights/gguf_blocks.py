"""The formats of blocks in GGUF files, by the tables in ggml's ``ggml-common.h``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxrewrite import _compat

from .packed import doubled_magnitudes


class Layout(NamedTuple):
    """What is in a block: so many bytes for so many entries, whose codes have so many bits.

    ``decode`` gives the entries of blocks, in float32, along one or more last axes. A compiler for a
    CPU does not vectorise what merges axes on the way. Only the last operation rounds, so that it
    matters to no bit how a compiler contracts them.
    """

    entries: int
    bytes: int
    bits: int
    decode: Callable[[Any], Any]


def _parts(blocks: Any, *sizes: int) -> list[Any]:
    """The parts of blocks that have so many bytes, one after the other."""
    ends = np.cumsum(sizes)
    return [blocks[..., end - size : end] for end, size in zip(ends, sizes, strict=True)]


def _split(x: Any, *sizes: int, axis: int = -1) -> Any:
    """An axis, the last one by default, as several axes.

    One at a time: on a mesh with explicit axes, JAX refuses reshapes that do more.
    """
    axis += x.ndim
    return x.reshape(*x.shape[:axis], *sizes, *x.shape[axis + 1 :])


def _fields(x: Any, bits: int) -> Any:
    """The fields of so many bits in each byte of a run, along a new axis before the last one."""
    mask = np.uint8(2**bits - 1)
    return jnp.stack([(x >> np.uint8(shift)) & mask for shift in range(0, 8, bits)], -2)


def _nibbles(x: Any, lasts: int = 1) -> Any:
    """The lower and the upper four bits of each byte, along a new axis before so many last ones.

    Where nothing else is taken from bytes of the same run, later releases vectorise shifts by
    numbers that are broadcast, and earlier ones fields that are stacked.
    """
    mask, shifts = np.uint8(0x0F), np.array([0, 4], np.uint8)
    if not _compat.JAX_GE_0_11_1:
        return jnp.stack([(x >> shift) & mask for shift in shifts], -1 - lasts)
    along = shifts.reshape(2, *[1] * lasts)
    return (jnp.expand_dims(x, -1 - lasts) >> along) & mask


def _bits(x: Any) -> Any:
    """The bits of each byte, along a new last axis."""
    return (x[..., None] >> np.arange(8, dtype=np.uint8)) & np.uint8(1)


def _above(low: Any, high: Any, bits: int) -> Any:
    """Codes of which these are the lower bits, so many, and the higher ones."""
    return low | (high << np.uint8(bits))


def _signed(codes: Any, less: int = 0) -> Any:
    """Codes of a byte as signed integers, in float32."""
    # XLA on a CPU reads int8 from a byte without its sign if it becomes a float in a sum.
    return (codes.astype(jnp.int8).astype(jnp.int32) - less).astype(jnp.float32)


def _half(pair: Any) -> Any:
    """A number of dtype float16 from its two bytes, along an axis of length one."""
    return lax.bitcast_convert_type(pair, jnp.float16).astype(jnp.float32)[..., None]


def _over(shared: Any, codes: Any) -> Any:
    """What runs of codes share, one or several along the last axis, in as many axes as the codes.

    The codes of a run are those along the last axis, or else all codes of a block share it.
    """
    *batch, count = shared.shape
    grid = codes.shape[len(batch) : -1]
    return shared.reshape(*batch, *(grid if count > 1 else [1] * len(grid)), 1)


def _affine(q: Any, factor: Any, offset: Any) -> Any:
    return _over(factor, q) * _signed(q) + _over(offset, q)


def _linear(q: Any, less: int, factor: Any) -> Any:
    return _over(factor, q) * _signed(q, less)


def _five_bits(q: Any, high: Any) -> Any:
    """The codes of a block of 32, of which the last bits come first."""
    low = _fields(_split(q, 2, 8), 4).swapaxes(-2, -3)
    return _above(low, _split(_bits(high), 2, 2, axis=-2), 4)


def _q8_0(blocks: Any) -> Any:
    a, q = _parts(blocks, 2, 32)
    return _linear(q, 0, _half(a))


def _q4_0(blocks: Any) -> Any:
    a, q = _parts(blocks, 2, 16)
    return _linear(_fields(q, 4), 8, _half(a))


def _q4_1(blocks: Any) -> Any:
    a, b, q = _parts(blocks, 2, 2, 16)
    return _affine(_fields(q, 4), _half(a), _half(b))


def _q5_0(blocks: Any) -> Any:
    a, high, q = _parts(blocks, 2, 4, 16)
    return _linear(_five_bits(q, high), 16, _half(a))


def _q5_1(blocks: Any) -> Any:
    a, b, high, q = _parts(blocks, 2, 2, 4, 16)
    return _affine(_five_bits(q, high), _half(a), _half(b))


def _mxfp4(blocks: Any) -> Any:
    exponent, q = _parts(blocks, 1, 16)
    codes, exponent = _fields(q, 4), exponent.astype(jnp.int32)
    # The numbers are doubled, and the power of two is halved. The least two have no exponent of
    # their own in float32.
    bits = jnp.where(exponent < 2, 0x0020_0000 << exponent, (exponent - 1) << 23)
    double = doubled_magnitudes(codes)
    signed = jnp.where(codes & 8 != 0, -double, double).astype(jnp.float32)
    return _over(lax.bitcast_convert_type(bits, jnp.float32), codes) * signed


def _scales_of_six_bits(scales: Any) -> tuple[Any, Any]:
    """The eight factors and the eight offsets in twelve bytes, of six bits each."""
    t, u, rest = _parts(scales, 4, 4, 4)
    low, two, four = np.uint8(0x3F), np.uint8(2), np.uint8(4)
    high = lambda x: (x >> two) & np.uint8(0x30)
    factors = [t & low, (rest & np.uint8(0x0F)) | high(t)]
    offsets = [u & low, (rest >> four) | high(u)]
    return _signed(jnp.concatenate(factors, -1)), _signed(jnp.concatenate(offsets, -1))


def _q4_k(blocks: Any) -> Any:
    a, b, scales, q = _parts(blocks, 2, 2, 12, 128)
    t, u = _scales_of_six_bits(scales)
    return _affine(_nibbles(_split(q, 4, 32)), _half(a) * t, -_half(b) * u)


def _q5_k(blocks: Any) -> Any:
    a, b, scales, high, q = _parts(blocks, 2, 2, 12, 32, 128)
    t, u = _scales_of_six_bits(scales)
    bit = _split(_fields(high, 1), 4, 2, axis=-2)
    codes = _above(_fields(_split(q, 4, 32), 4), bit, 4)
    return _affine(codes, _half(a) * t, -_half(b) * u)


def _q6_k(blocks: Any) -> Any:
    q, high, t, a = _parts(blocks, 128, 64, 16, 2)
    low = _nibbles(_split(q, 2, 2, 2, 16), lasts=3)
    two = _split(_split(_fields(_split(high, 2, 32), 2), 2, 16), 2, 2, axis=-3)
    return _linear(_above(low, two, 4), 32, _half(a) * _signed(t))


def _q2_k(blocks: Any) -> Any:
    scales, q, a, b = _parts(blocks, 16, 64, 2, 2)
    t, u = _signed(scales & np.uint8(0x0F)), _signed(scales >> np.uint8(4))
    codes = _split(_fields(_split(q, 2, 32), 2), 2, 16)
    return _affine(codes, _half(a) * t, -_half(b) * u)


def _q3_k(blocks: Any) -> Any:
    high, q, scales, a = _parts(blocks, 32, 64, 12, 2)
    low_of_t, high_of_t = _parts(scales, 8, 4)
    four = _fields(_split(low_of_t, 2, 4), 4).swapaxes(-2, -3)
    t = _above(four, _split(_fields(high_of_t, 2), 2, 2, axis=-2), 4)
    low = _split(_fields(_split(q, 2, 32), 2), 2, 16)
    # A bit that is not set takes four away.
    bit = _split(_split(_fields(high, 1), 2, 16), 2, 4, axis=-3)
    return _linear(
        _above(low, bit, 2), 4, _half(a) * _signed(lax.collapse(t, t.ndim - 3), 32)
    )


LAYOUTS: Mapping[str, Layout] = MappingProxyType(
    {
        "Q8_0": Layout(32, 34, 8, _q8_0),
        "Q5_0": Layout(32, 22, 5, _q5_0),
        "Q5_1": Layout(32, 24, 5, _q5_1),
        "Q4_0": Layout(32, 18, 4, _q4_0),
        "Q4_1": Layout(32, 20, 4, _q4_1),
        "Q6_K": Layout(256, 210, 6, _q6_k),
        "Q5_K": Layout(256, 176, 5, _q5_k),
        "Q4_K": Layout(256, 144, 4, _q4_k),
        "Q3_K": Layout(256, 110, 3, _q3_k),
        "Q2_K": Layout(256, 84, 2, _q2_k),
        "MXFP4": Layout(32, 17, 4, _mxfp4),
    }
)

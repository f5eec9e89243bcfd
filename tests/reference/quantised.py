"""Arrays of small integers with scales, in each granularity."""

import numpy as np

import jaxrewrite
from jaxrewrite.values import (
    GGUF,
    NF4,
    Concatenated,
    FakeQuantised,
    Float8,
    Microscaled,
    Quantised,
)

from . import case, uniform


def weight(rng, dtype, n, m):
    return uniform(rng, (n, m), dtype)


def half(n):
    """A block of half an axis, if there is one."""
    return n // 2 if n % 2 == 0 else n


@case("quantised", variant=True)
def per_tensor(rng, dtype, n, m):
    return Quantised.quantise(weight(rng, dtype, n, m))


@case("quantised channels", variant=True)
def per_channel(rng, dtype, n, m):
    return Quantised.quantise(weight(rng, dtype, n, m), axis=-1)


@case("quantised int4 blocks", variant=True)
def int4_blocks(rng, dtype, n, m):
    return Quantised.quantise(weight(rng, dtype, n, m), 4, block=half(n))


@case("quantised affine blocks")
def affine_blocks(rng, dtype, n, m):
    return Quantised.quantise(weight(rng, dtype, n, m), block=(1, half(m)), symmetric=False)


@case("nf4")
def nf4(rng, dtype, n, m):
    return NF4.quantise(weight(rng, dtype, n, m), half(n), scale_block=max(half(m), 1))


@case("quantised 2 bits", variant=True)
def two_bits(rng, dtype, n, m):
    return Quantised.quantise(weight(rng, dtype, n, m), 2, block=half(n))


@case("quantised 3 bits")
def three_bits(rng, dtype, n, m):
    return Quantised.quantise(weight(rng, dtype, n, m), 3, axis=-1, symmetric=False)


@case("quantised 6 bits", variant=True)
def six_bits(rng, dtype, n, m):
    return Quantised.quantise(weight(rng, dtype, n, m), 6, block=(1, half(m)))


@case("float8")
def float8(rng, dtype, n, m):
    return Float8.quantise(weight(rng, dtype, n, m), block=half(n))


@case("float8 e5m2", variant=True)
def float8_e5m2(rng, dtype, n, m):
    return Float8.quantise(weight(rng, dtype, n, m), "float8_e5m2")


@case("microscaled")
def microscaled(rng, dtype, n, m):
    return Microscaled.quantise(weight(rng, dtype, n, m), "mxfp4", half(n))


@case("microscaled float6", variant=True)
def microscaled_float6(rng, dtype, n, m):
    return Microscaled.quantise(weight(rng, dtype, n, m), "mxfp6_e3m2", half(n))


@case("microscaled float8", variant=True)
def microscaled_float8(rng, dtype, n, m):
    return Microscaled.quantise(weight(rng, dtype, n, m), "mxfp8_e4m3", half(n))


@case("microscaled twice", variant=True)
def microscaled_twice(rng, dtype, n, m):
    return Microscaled.quantise(weight(rng, dtype, n, m), "nvfp4", (1, half(m)))


@case("concatenated")
def short_last_block(rng, dtype, n, m):
    """Blocks of three rows, and the last one shorter."""
    cut = n - n % 3 if n > 3 else n
    w = weight(rng, dtype, n, m)
    parts = [part for part in (w[:cut], w[cut:]) if len(part) or n == 0]
    rounded = [Quantised.quantise(part, 4, axis=-1) for part in parts]
    return Concatenated(tuple(rounded), -2)


@case("fake quantised", variant=True)
def fake(rng, dtype, n, m):
    return FakeQuantised(weight(rng, dtype, n, m), 4, axis=-1)


def of_blocks(blocks, dtype, n, m, format):
    """The first rows and columns of an array of blocks, of which the last one may be cut."""
    data = np.ascontiguousarray(blocks).reshape(len(blocks), -1)
    v = GGUF.from_bytes(data, format, dtype)
    return jaxrewrite.transform(lambda v: v[:n, :m])(v)


@case("gguf")
def gguf(rng, dtype, n, m):
    scale = np.full((max(n, 1), -(-m // 32) or 1, 1), 1 / 127, np.float16).view(np.uint8)
    codes = rng.integers(32, 127, (*scale.shape[:2], 32), np.uint8)
    return of_blocks(np.concatenate([scale, codes], -1), dtype, n, m, "Q8_0")


@case("gguf superblocks", variant=True)
def gguf_superblocks(rng, dtype, n, m):
    scales = np.array([1 / 1000, -1 / 250], np.float16).view(np.uint8)
    blocks = rng.integers(0, 256, (max(n, 1), -(-m // 256) or 1, 144), np.uint8)
    blocks[..., :4], blocks[..., 4:16] = scales, 0xFF
    return of_blocks(blocks, dtype, n, m, "Q4_K")

"""`Microscaled` against the number formats of ``ml_dtypes``, and ``gguf`` for MXFP4."""

import choose
import gguf
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from oracle import forbid

import jaxrewrite
from jaxrewrite.testing import assert_same
from jaxrewrite.values import Microscaled, quantise
from jaxrewrite.values._weights.packed import Nibbles


FORMATS = list(Microscaled.formats)
IS_FOUR = {
    name: form.element == "float4_e2m1fn" for name, form in Microscaled.formats.items()
}
IS_SIX = {name: form.element[:6] == "float6" for name, form in Microscaled.formats.items()}


def stored(format, n=16, m=128):
    """Any codes and scales whose products are normal numbers, and what they stand for."""
    form, rng = Microscaled.formats[format], np.random.default_rng(0)
    codes = rng.integers(0, 256, (n, m // 2 if IS_FOUR[format] else m), np.uint8)
    scales = rng.integers(24, 255, (n, m // form.block), np.uint8)
    scales[0, 0] = 255
    bits = (
        np.stack([codes & 15, codes >> 4], -1).reshape(n, m) if IS_FOUR[format] else codes
    )
    bits = bits & 63 if IS_SIX[format] else bits
    numbers = bits.astype(np.uint8).view(getattr(ml_dtypes, form.element)).astype("float32")
    factors = scales.view(getattr(ml_dtypes, form.scale)).astype("float32")
    with np.errstate(all="ignore"):
        dense = numbers.reshape(n, -1, form.block) * factors[..., None]
    return codes, scales, dense.reshape(n, m)


@pytest.mark.parametrize("format", FORMATS)
def test_numbers_are_those_of_the_published_formats(format):
    codes, scales, want = stored(format)
    v = Microscaled.from_bytes(codes, scales, format)
    np.testing.assert_array_equal(v, want)
    assert np.isfinite(want).any() and np.isnan(want).any()
    of_codes = codes.nbytes * 6 // 8 if IS_SIX[format] else codes.nbytes
    assert v.nbytes == of_codes + scales.nbytes + 4
    form = Microscaled.formats[format]
    if form.element[:6] == "float8":
        typed = codes.view(getattr(ml_dtypes, form.element))
        as_numbers = scales.view(getattr(ml_dtypes, form.scale))
        np.testing.assert_array_equal(
            Microscaled.from_bytes(typed, as_numbers, format), want
        )


def test_numbers_between_two_codes_of_four_bits_become_the_even_one():
    between = np.float32([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 6])
    w = np.concatenate([between, -between, 16 * [0]]).astype("float32")[:, None]
    want = w.astype(ml_dtypes.float4_e2m1fn).astype("float32")
    np.testing.assert_array_equal(Microscaled.quantise(w, "mxfp4"), want)


def test_a_second_scale_multiplies_all_blocks():
    codes, scales, one = stored("nvfp4")
    v = Microscaled.from_bytes(codes, scales, "nvfp4", scale=0.25, dtype="bfloat16")
    assert v.dtype == "bfloat16"
    want = (one / 4).astype("bfloat16").astype("float32")
    np.testing.assert_array_equal(np.asarray(v).astype("float32"), want)


@pytest.mark.parametrize("format", FORMATS)
def test_rounding_is_that_of_the_dtypes(format):
    form = Microscaled.formats[format]
    w = np.random.default_rng(1).normal(size=(64, 6)).astype("float32") * 1e-2
    w[:32, 0], w[:32, 1] = 0, np.linspace(-7, 7, 32)
    w[:8, 2] = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 6]  # In the middle between two codes.
    v = Microscaled.quantise(w, format)
    blocks = w.reshape(-1, form.block, 6)
    most = abs(blocks).max(1, keepdims=True)
    element, largest = (
        getattr(ml_dtypes, form.element),
        float(ml_dtypes.finfo(getattr(ml_dtypes, form.element)).max),
    )
    if format == "nvfp4":
        whole = np.float32(abs(w).max() / (largest * 448))
        scale = (most / whole / largest).astype("float8_e4m3fn").astype("float32") * whole
    else:
        emax = np.floor(np.log2(largest))
        scale = 2 ** (np.floor(np.log2(np.where(most == 0, 2**emax, most))) - emax)
    unit = np.divide(blocks, scale, out=np.zeros_like(blocks), where=scale > 0)
    codes = np.clip(unit, -largest, largest).astype(element).astype("float32")
    want = (codes * scale).reshape(w.shape)
    # NVFP4's scales are rounded before they are multiplied, here and there.
    np.testing.assert_allclose(v, want, rtol=1e-6 if format == "nvfp4" else 0)
    in_jit = jax.jit(lambda w: Microscaled.quantise(w, format))(w)
    assert_same(in_jit, v)
    assert quantise({"w": w}, lambda *_: True, format)["w"].format == format


@pytest.mark.parametrize("format", FORMATS)
def test_a_block_with_an_entry_that_is_no_number_is_none(format, optimised):
    """Under `jax.jit`, where it is no error; a maximum of many entries loses it on a CPU."""
    w = np.ones((4096, 2), np.float32)
    w[1365, 0] = np.nan
    v = jax.jit(lambda w: Microscaled.quantise(w, format, 4096))(w)
    assert np.isnan(np.asarray(v))[:, 0].all()


@pytest.mark.parametrize("format", FORMATS)
def test_arrays_of_64_bits_are_not_beyond_those_of_32(format):
    """The scales of OCP end at a number of float32, and what is larger is cut off."""
    with jax.enable_x64(True):
        w = np.random.default_rng(1).normal(size=(64, 2)) * 1e60
        v = Microscaled.quantise(w, format)
        got = np.asarray(v)
    assert got.dtype == "float64" and np.isfinite(got).all()
    if format == "nvfp4":
        np.testing.assert_allclose(got, w, atol=0.2 * abs(w).max())
    else:
        assert (abs(got) > 1e38).all() and (np.sign(got) == np.sign(w)).all()


def test_two_scales_of_a_block_reach_its_largest_entry():
    w = np.random.default_rng(1).normal(size=(32, 4)).astype("float32")
    v = np.asarray(Microscaled.quantise(w, "nvfp4"))
    most = lambda x: abs(x).reshape(2, 16, 4).max(1)
    np.testing.assert_allclose(most(v), most(w), rtol=2**-4)  # A scale has three bits.


def test_mxfp4_is_that_of_gguf():
    kind = gguf.GGMLQuantizationType.MXFP4
    data = np.random.default_rng(0).integers(0, 256, (4, 2, 17), np.uint8)
    data[..., 0] = 100 + data[..., 0] % 50
    halves = [data[..., 1:] & 15, data[..., 1:] >> 4]
    codes = np.concatenate(halves, -1).reshape(4, 64)
    v = Microscaled(
        Nibbles.pack(jnp.asarray(codes, "uint4"), 4),
        jnp.asarray(data[..., 0]),
        jnp.ones((1, 1)),
        "mxfp4",
    )
    want = gguf.quants.dequantize(data.reshape(4, -1), kind)
    np.testing.assert_array_equal(v, want)


@pytest.mark.parametrize("format", choose.often(FORMATS, ["mxfp4"]))
def test_large_products(format, on_one_device, optimised):
    """In blocks and in rows, of codes that are read as bytes."""
    w = jax.random.normal(jax.random.key(0), (2048, 2048))
    v = Microscaled.quantise(w, format)
    x = jax.random.normal(jax.random.key(1), (2, 2048))
    products = lambda x, v: [x[:1] @ v, x @ v, x[:1] @ v.T, x @ v.T]
    got = jax.jit(forbid(products))(x, v)
    want = jax.jit(products)(x, v.materialise())
    for result, wanted in zip(got, want, strict=True):
        np.testing.assert_allclose(result, wanted, rtol=1e-3, atol=1e-2)


def test_casts():
    v = Microscaled.quantise(np.linspace(-1, 1, 128, dtype="float32").reshape(32, 4))
    kept = forbid(lambda v: v.astype("bfloat16") * 2)(v)
    assert isinstance(kept, Microscaled) and kept.dtype == "bfloat16"
    with pytest.raises(jaxrewrite.MaterialisationError, match="convert_element_type"):
        forbid(lambda v: v.astype("float16"))(v)


U4, U8, ONE = jnp.zeros((4, 4), "uint4"), jnp.zeros((4, 4), "uint8"), jnp.ones((1, 1))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: Microscaled(U4, U8, ONE, "mxfp5"),
            "'mxfp5' is not known. Known are mxfp4,",
        ),
        (
            lambda: Microscaled(U8, U8, ONE, "mxfp4"),
            "`codes` of mxfp4 must be .* uint4; got",
        ),
        (lambda: Microscaled(U4, U8, ONE, "mxfp8_e4m3"), "uint8; got uint4"),
        (lambda: Microscaled(U4, ONE, ONE, "mxfp4"), "`block_scale` of mxfp4 must be"),
        (lambda: Microscaled(U4, U8, ONE.astype("float16"), "mxfp4"), "but not float16"),
        (lambda: Microscaled(U4, U8[:3], ONE, "mxfp4"), "must divide the length"),
        (lambda: Microscaled.quantise(U8 * 0.5, "mxfp4", 3), "whole blocks"),
        (
            lambda: Microscaled.from_bytes(ONE, U8, "mxfp4"),
            "`codes` must be the bits of float4",
        ),
    ],
)
def test_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call()

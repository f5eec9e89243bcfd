"""`load_hf` of folders written by the published layouts, and of those that are not whole."""

import json
import struct

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from oracle import forbid
from safetensors.numpy import save_file

import jaxrewrite
from jaxrewrite.checkpoints import load_hf
from jaxrewrite.testing import assert_same
from jaxrewrite.values import NF4, Float8, Microscaled, Product, Quantised


RNG = np.random.default_rng(0)


def written(folder, config, *shards):
    """A folder of a model, by the package safetensors."""
    folder.mkdir(exist_ok=True)
    about = {"model_type": "llama", "quantization_config": config}
    (folder / "config.json").write_text(json.dumps(about))
    where = {}
    for i, tensors in enumerate(shards):
        name = f"model-{i}.safetensors"
        where |= dict.fromkeys(tensors, name)
        save_file(tensors, folder / name)
    if len(shards) > 1:
        index = {"weight_map": where}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def in_words(codes, bits, axis):
    """Integers in words of 32 bits along an axis, bit after bit, the lowest ones first."""
    codes = np.moveaxis(codes.astype(np.uint8), axis, -1)
    each = np.unpackbits(codes[..., None], axis=-1, count=bits, bitorder="little")
    stream = each.reshape(*codes.shape[:-1], -1)
    stream = np.pad(stream, [(0, 0)] * (stream.ndim - 1) + [(0, -stream.shape[-1] % 32)])
    words = np.packbits(stream, -1, bitorder="little").view(np.int32)
    return np.ascontiguousarray(np.moveaxis(words, -1, axis))


def gptq(bits=4, length=64, width=8, group=16, desc_act=False, more=1):
    """The tensors of a layer, and its weight of shape (out, in)."""
    groups = length // group
    q = RNG.integers(0, 2**bits, (length, width))
    z = RNG.integers(0, 2**bits, (groups, width))
    z[0, :2] = 0, 2**bits - 1
    scales = RNG.uniform(0.01, 0.1, (groups, width)).astype("float16")
    index = np.arange(length) // group
    if desc_act:
        index = RNG.permutation(index)
    tensors = {
        "up.qweight": in_words(q, bits, 0),
        # A zero less one that has no integer is the largest, as integers without a sign wrap.
        "up.qzeros": in_words((z - more) % 2**bits, bits, 1),
        "up.scales": scales,
        "up.g_idx": index.astype("int32"),
        "up.bias": np.ones(width, "float16"),
    }
    return tensors, (scales.astype("float32")[index] * (q - z[index])).T


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 16}


def check(value, want):
    """The numbers, and a product as in a layer of PyTorch."""
    got = jaxrewrite.materialise(value)
    assert got.dtype == "float32" and got.shape == want.shape
    # Two units in the last place: scales of scales are rounded, too.
    np.testing.assert_allclose(got, want, rtol=2.0**-22)
    layer = lambda w, x: x @ w.T
    x = jnp.linspace(-1, 1, want.shape[-1])[None]
    assert_same(forbid(layer)(value, x), layer(jnp.asarray(want, "float32"), x), 1e-5)


@pytest.mark.parametrize("desc_act", [False, True])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_gptq(bits, desc_act, tmp_path):
    tensors, want = gptq(bits, width=32, desc_act=desc_act)
    found = load_hf(written(tmp_path, GPTQ | {"bits": bits}, tensors))
    assert set(found) == {"up.weight", "up.bias"} and len(found) == 2
    assert isinstance(found["up.weight"], Product if desc_act else Quantised)
    assert "2 tensors" in repr(found) and found.config["model_type"] == "llama"
    check(found["up.weight"], want)
    assert_same(found["up.bias"], np.ones(32, "float16"))


def test_zeros_of_gptq(tmp_path):
    """Those of the second version are as they are; none is stored that is the middle."""
    second = GPTQ | {"checkpoint_format": "gptq_v2"}
    tensors, want = gptq(more=0)
    check(load_hf(written(tmp_path / "2", second, tensors))["up.weight"], want)
    tensors, _ = gptq()
    middle = tensors | {"up.qzeros": np.full_like(tensors["up.qzeros"], 0x77777777)}
    v = load_hf(written(tmp_path / "1", GPTQ, middle), dtype="bfloat16")["up.weight"]
    assert v.zero is None and v.dtype == "bfloat16"
    assert v.nbytes == 64 * 8 // 2 + 4 * 8 * 2


def test_a_file_of_autogptq(tmp_path):
    tensors, want = gptq()
    folder = written(tmp_path, {}, tensors)
    (folder / "quantize_config.json").write_text(json.dumps({"bits": 4, "group_size": 16}))
    check(load_hf(folder)["up.weight"], want)


def test_awq(tmp_path):
    q, z = (RNG.integers(0, 16, (n, 16)) for n in (64, 4))
    scales = RNG.uniform(0.01, 0.1, (4, 16)).astype("float16")
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    in_order = lambda x: x.reshape(len(x), -1, 8)[..., order].reshape(len(x), -1)
    tensors = {
        "up.qweight": in_words(in_order(q), 4, 1),
        "up.qzeros": in_words(in_order(z), 4, 1),
        "up.scales": scales,
    }
    config = {"quant_method": "awq", "bits": 4, "group_size": 16, "version": "gemm"}
    found = load_hf(written(tmp_path, config, tensors))
    of_rows = np.arange(64) // 16
    check(found["up.weight"], (scales.astype("float32")[of_rows] * (q - z[of_rows])).T)


LEVELS = np.array(
    [-1.0, -0.6961928, -0.5250731, -0.3949175, -0.28444138, -0.18477343, -0.09105004, 0]
    + [0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1],
    "float32",
)


# The values of the magnitudes by their codes, as bitsandbytes has them.
LEVELS_OF_FP4 = np.array([0, 0.0625, 8, 12, 4, 6, 2, 3], "float32") / np.float32(12)
LEVELS_OF_FP4 = np.concatenate([LEVELS_OF_FP4, -LEVELS_OF_FP4])


def nf4(nested, kind="nf4", levels=LEVELS):
    codes = RNG.integers(0, 16, (4, 128), np.uint8)
    pairs = codes.reshape(-1, 2)
    about = {"quant_type": kind, "blocksize": 64, "shape": [4, 128], "dtype": "bfloat16"}
    magnitude = RNG.uniform(0.1, 1, 8).astype("float32")
    tensors = {"up.weight.absmax": magnitude}
    if nested:
        table = np.sort(RNG.uniform(-1, 1, 256)).astype("float32")
        index = RNG.integers(0, 256, 8, np.uint8)
        scale = np.linspace(0.25, 0.5, 8 // nested, dtype="float32")
        tensors = {
            "up.weight.absmax": index,
            "up.weight.nested_absmax": scale,
            "up.weight.nested_quant_map": table,
        }
        about |= {"nested_blocksize": nested, "nested_offset": 0.5}
        magnitude = table[index] * scale[np.arange(8) // nested] + np.float32(0.5)
    state = np.frombuffer(json.dumps(about).encode(), np.uint8)
    tensors |= {
        "up.weight": (pairs[:, :1] << 4) | pairs[:, 1:],
        "up.weight.quant_map": levels,
        f"up.weight.quant_state.bitsandbytes__{kind}": state,
        "norm.weight": np.ones(4, "float32"),
    }
    return tensors, (levels[codes].reshape(-1, 64) * magnitude[:, None]).reshape(4, 128)


BITSANDBYTES = {"quant_method": "bitsandbytes", "load_in_4bit": True}


# The numbers of a block whose scales have a scale.
@pytest.mark.parametrize("nested", [0, 4])
def test_nf4(nested, tmp_path):
    tensors, want = nf4(nested)
    found = load_hf(written(tmp_path, BITSANDBYTES, tensors))
    assert set(found) == {"up.weight", "norm.weight"}
    assert isinstance(found["up.weight"], NF4)
    check(found["up.weight"], want)
    assert_same(found["norm.weight"], np.ones(4, "float32"))


def test_a_block_of_scales_may_be_larger_than_what_there_is(tmp_path):
    """It takes no memory for what there is not."""
    tensors, want = nf4(8)
    key = "up.weight.quant_state.bitsandbytes__nf4"
    about = json.loads(bytes(tensors[key])) | {"nested_blocksize": 2**45}
    tensors[key] = np.frombuffer(json.dumps(about).encode(), np.uint8)
    check(load_hf(written(tmp_path, BITSANDBYTES, tensors))["up.weight"], want)


@pytest.mark.parametrize("nested", [0, 1])
def test_fp4(nested, tmp_path):
    tensors, want = nf4(nested, "fp4", LEVELS_OF_FP4)
    found = load_hf(written(tmp_path, BITSANDBYTES, tensors))
    assert isinstance(found["up.weight"], Float8)
    check(found["up.weight"], want)


def test_int8_of_bitsandbytes(tmp_path):
    q = RNG.integers(-127, 128, (4, 16), np.int8)
    most = RNG.uniform(0.1, 1, 4).astype("float32")
    tensors = {
        "up.weight": q,
        "up.SCB": most,
        "up.weight_format": np.uint8(0)[None],
        "norm.weight": np.ones(4, "float32"),
    }
    config = {"quant_method": "bitsandbytes", "load_in_8bit": True}
    found = load_hf(written(tmp_path, config, tensors))
    assert set(found) == {"up.weight", "norm.weight"}
    assert isinstance(found["up.weight"], Quantised) and found["up.weight"].bits == 8
    check(found["up.weight"], q * (most / np.float32(127))[:, None])


def check_blocks_of_float8(shape, tmp_path):
    w = RNG.normal(size=shape).astype(ml_dtypes.float8_e4m3fn)
    scale = RNG.uniform(1, 2, (-(-shape[0] // 2), -(-shape[1] // 4))).astype("float32")
    tensors = {
        "up.weight": w,
        "up.weight_scale_inv": scale,
        "embed.weight": np.ones((4, 2), ml_dtypes.bfloat16),
    }
    config = {"quant_method": "fp8", "weight_block_size": [2, 4]}
    found = load_hf(written(tmp_path, config, tensors))
    assert set(found) == {"up.weight", "embed.weight"}
    assert (
        isinstance(found["up.weight"], Float8) and found["embed.weight"].dtype == "bfloat16"
    )
    of_entries = scale[np.arange(shape[0]) // 2][:, np.arange(shape[1]) // 4]
    check(found["up.weight"], w.astype("float32") * of_entries)


def test_blocks_of_float8(tmp_path):
    check_blocks_of_float8((8, 12), tmp_path)


@pytest.mark.parametrize("shape", [(3, 4, 8), (2, 3, 12)])
def test_blocks_of_float8_of_experts(shape, tmp_path):
    """Weights of all experts in one tensor have a name of their own."""
    w = RNG.normal(size=shape).astype(ml_dtypes.float8_e4m3fn)
    grid = (shape[0], -(-shape[1] // 2), shape[2] // 4)
    scale = RNG.uniform(1, 2, grid).astype("float32")
    tensors = {"experts.gate_up_proj": w, "experts.gate_up_proj_scale_inv": scale}
    config = {"quant_method": "fp8", "weight_block_size": [2, 4]}
    found = load_hf(written(tmp_path, config, tensors))
    assert set(found) == {"experts.gate_up_proj"}
    v = found["experts.gate_up_proj"]
    assert isinstance(v, Float8)
    of_entries = scale[:, np.arange(shape[1]) // 2][:, :, np.arange(shape[2]) // 4]
    np.testing.assert_allclose(v, w.astype("float32") * of_entries, rtol=2.0**-22)


def test_blocks_of_float8_whose_last_rows_are_not_whole(tmp_path):
    check_blocks_of_float8((3, 12), tmp_path)


def test_blocks_of_float8_whose_last_columns_are_not_whole(tmp_path):
    check_blocks_of_float8((6, 10), tmp_path)


def test_mxfp4(tmp_path):
    blocks = RNG.integers(0, 256, (2, 4, 2, 16), np.uint8)
    scales = RNG.integers(120, 130, (2, 4, 2), np.uint8)
    tensors = {"experts.up_blocks": blocks, "experts.up_scales": scales}
    found = load_hf(written(tmp_path, {"quant_method": "mxfp4"}, tensors))
    v = found["experts.up"]
    codes = np.stack([blocks & 15, blocks >> 4], -1).reshape(2, 4, 2, 32)
    numbers = codes.view(ml_dtypes.float4_e2m1fn).astype("float32")
    want = numbers * 2.0 ** (scales[..., None].astype("float32") - 127)
    assert isinstance(v, Microscaled)
    np.testing.assert_array_equal(v, want.reshape(2, 4, 64))


def compressed(tensors, format="pack-quantized", **weights):
    """The configuration of compressed-tensors, and the tensors of a layer with others."""
    config = {
        "quant_method": "compressed-tensors",
        "format": format,
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        "ignore": ["lm_head"],
    }
    more = {"lm_head.weight": np.ones((2, 4), "float16")}
    return config, {f"up.{key}": x for key, x in tensors.items()} | more


@pytest.mark.parametrize("strategy", ["group", "asymmetric", "ordered", "channel"])
@pytest.mark.parametrize("bits", [3, 4, 8])
def test_packed_integers_of_compressed_tensors(bits, strategy, tmp_path):
    n, m, half = 6, 40, 2 ** (bits - 1)
    groups = 1 if strategy == "channel" else 5
    q = RNG.integers(0, 2**bits, (n, m))
    z = np.full((n, groups), half)
    scale = RNG.uniform(0.01, 0.1, (n, groups)).astype("float16")
    index = np.arange(m) // (m // groups)
    tensors = {"weight_shape": np.array([n, m]), "weight_scale": scale}
    if strategy == "asymmetric":
        z = RNG.integers(0, 2**bits, (n, groups))
        tensors["weight_zero_point"] = in_words(z, bits, 0)
    if strategy == "ordered":
        index = RNG.permutation(index)
        tensors["weight_g_idx"] = index.astype("int32")
    tensors["weight_packed"] = in_words(q, bits, 1)
    config, tensors = compressed(tensors, num_bits=bits, type="int", strategy="group")
    found = load_hf(written(tmp_path, config, tensors))
    assert set(found) == {"up.weight", "lm_head.weight"}
    kind = Product if strategy == "ordered" else Quantised
    assert isinstance(found["up.weight"], kind)
    check(found["up.weight"], scale.astype("float32")[:, index] * (q - z[:, index]))


@pytest.mark.parametrize("shape", [(1,), (), (4, 1), (4, 2)])
def test_integers_of_compressed_tensors(shape, tmp_path):
    q = RNG.integers(-128, 128, (4, 8), np.int8)
    scale = RNG.uniform(0.01, 0.1, shape).astype("float32")
    zero = RNG.integers(-9, 9, shape, np.int8) if len(shape) == 2 else None
    of_entries = lambda x: np.repeat(x.reshape(len(x), -1), 8 // x.shape[-1], 1)
    tensors = {"weight": q, "weight_scale": scale, "input_scale": np.ones(1, "float32")}
    want = q * scale if zero is None else 0
    if zero is not None:
        tensors["weight_zero_point"] = zero
        want = (q - of_entries(zero.astype(int))) * of_entries(scale)
    config, tensors = compressed(tensors, "int-quantized", num_bits=8)
    found = load_hf(written(tmp_path, config, tensors))
    assert set(found) == {"up.weight", "up.input_scale", "lm_head.weight"}
    check(found["up.weight"], want.astype("float32"))


@pytest.mark.parametrize("grid", [(1,), (6, 1), (2, 3)])
def test_floats_of_compressed_tensors(grid, tmp_path):
    """For a weight, for each row, and for blocks, of which the last ones are not whole."""
    w = RNG.normal(size=(6, 10)).astype(ml_dtypes.float8_e4m3fn)
    scale = RNG.uniform(1, 2, grid).astype("float32")
    strategy = {"strategy": "block", "block_structure": [4, 4]} if grid == (2, 3) else {}
    tensors = {"weight": w, "weight_scale": scale}
    config, tensors = compressed(tensors, "float-quantized", num_bits=8, **strategy)
    found = load_hf(written(tmp_path, config, tensors))["up.weight"]
    assert isinstance(found, Float8)
    of_entries = scale
    if grid == (2, 3):
        of_entries = scale[np.arange(6) // 4][:, np.arange(10) // 4]
    check(found, w.astype("float32") * of_entries)


@pytest.mark.parametrize("format", ["nvfp4", "mxfp4", "mxfp8_e4m3"])
def test_small_blocks_of_compressed_tensors(format, tmp_path):
    form = Microscaled.formats[format]
    n, m, is_four = 4, 64, format != "mxfp8_e4m3"
    codes = RNG.integers(0, 256, (n, m // 2 if is_four else m), np.uint8)
    codes = codes if is_four else codes & 0xF7  # Without NaN.
    bits = np.stack([codes & 15, codes >> 4], -1).reshape(n, m) if is_four else codes
    numbers = bits.astype(np.uint8).view(getattr(ml_dtypes, form.element)).astype("float32")
    scales = RNG.integers(40, 60, (n, m // form.block), np.uint8)
    factors = scales.view(getattr(ml_dtypes, form.scale)).astype("float32")
    if format == "nvfp4":
        of_whole = np.float32([500])
        tensors = {
            "weight_packed": codes,
            "weight_scale": scales.view(ml_dtypes.float8_e4m3fn),
            "weight_global_scale": of_whole,
        }
        factors = factors / of_whole
    elif is_four:
        tensors = {"weight_packed": codes, "weight_scale": scales}
    else:
        stored = codes.view(ml_dtypes.float8_e4m3fn)
        tensors = {"weight": stored, "weight_scale": scales}
    config, tensors = compressed(tensors, f"{format[:5]}-pack-quantized", num_bits=4)
    config["format"] = "mxfp8-quantized" if not is_four else config["format"]
    found = load_hf(written(tmp_path, config, tensors))["up.weight"]
    assert isinstance(found, Microscaled) and found.format == format
    want = (numbers.reshape(n, -1, form.block) * factors[..., None]).reshape(n, m)
    np.testing.assert_allclose(found, want, rtol=2e-7)


def test_shards_and_models_without_codes(tmp_path):
    tensors, want = gptq()
    first = {key: tensors.pop(key) for key in list(tensors)[:2]}
    check(load_hf(written(tmp_path / "two", GPTQ, first, tensors))["up.weight"], want)
    plain = load_hf(written(tmp_path / "plain", {}, {"w": np.ones((2, 3), "int16")}))
    assert_same(plain["w"], np.ones((2, 3), "int16"))


def test_what_is_not_looked_up_is_not_read(tmp_path):
    found = load_hf(written(tmp_path, {}, {"large": np.array([2**40])}))
    assert "large" in found and "other" not in found
    with pytest.raises(ValueError, match="'large' has numbers of int64 that do not fit"):
        found["large"]


# --- errors -------------------------------------------------------------------------------


def without(key):
    return lambda tensors: {k: x for k, x in tensors.items() if k != key}


def other(key, change):
    return lambda tensors: tensors | {key: change(tensors[key])}


FLOATS_IN_BLOCKS = {
    "w.weight": np.ones((2, 2), ml_dtypes.float8_e4m3fn),
    "w.weight_scale_inv": np.ones((1, 1), "float32"),
}

WRONG = {
    "a part is missing": (
        GPTQ,
        without("up.scales"),
        "up.qweight and there is no tensor up.scales",
    ),
    "bits": (GPTQ | {"bits": 5}, dict, "up.qweight of 5 bits by the quantization_config"),
    "dtype": (
        GPTQ,
        other("up.scales", lambda x: x.view("int16")),
        r"up.scales of dtype int16 and shape \(4, 8\), where float16 or .* \(any, 8\)",
    ),
    "shape": (
        GPTQ,
        other("up.qzeros", lambda x: x[:3]),
        r"up.qzeros .* of shape \(4, 1\) is",
    ),
    "groups": (
        GPTQ,
        lambda x: other("up.qzeros", lambda x: x[:3])(
            other("up.scales", lambda x: x[:3])(x)
        ),
        "up.scales of shape .3, 8., which has no groups of 64 inputs",
    ),
    "indices": (
        GPTQ,
        other("up.g_idx", lambda x: x + 1),
        "up.g_idx which does not give each",
    ),
    "index out of range": (
        GPTQ,
        # Counting these would take a gigabyte.
        other("up.g_idx", lambda x: np.where(x == 3, 2**27, x).astype("int32")),
        "up.g_idx which does not give each",
    ),
    "no index": (
        GPTQ,
        other("up.g_idx", lambda x: x - 1),
        "up.g_idx which does not give each",
    ),
    "layout": (
        GPTQ | {"checkpoint_format": "marlin"},
        dict,
        "config.json has the checkpoint_format 'marlin' of GPTQ, which is not known here",
    ),
    "layout by its older name": (
        GPTQ | {"is_marlin_format": True},
        dict,
        "config.json has the checkpoint_format 'marlin' of GPTQ, which is not known here",
    ),
    "name of a weight": (
        GPTQ,
        lambda x: x | {"up.weight": np.ones((8, 64), "float16")},
        "up.weight and others that are up.weight, too",
    ),
    "name of two weights": (
        compressed({}, num_bits=8)[0],
        lambda _: {
            "up.weight": np.ones((4, 8), "int8"),
            "up.weight_scale": np.ones((4, 1), "float32"),
            "up.weight_packed": np.ones((4, 2), "int32"),
            "up.weight_shape": np.array([4, 8]),
        },
        "up.weight and others that are up.weight, too",
    ),
    "experts in other blocks": (
        {"quant_method": "fp8", "weight_block_size": [2, 2]},
        lambda _: {
            "up": np.ones((3, 2, 4), ml_dtypes.float8_e4m3fn),
            "up_scale_inv": np.ones((3, 2, 1), "float32"),
        },
        r"up_scale_inv of dtype float32 and shape .3, 2, 1., where .* of shape .3, 1, 2.",
    ),
    "method": ({"quant_method": "aqlm"}, dict, "config.json has the quant_method 'aqlm'"),
    "bitsandbytes": (
        BITSANDBYTES,
        lambda _: {"up.weight": np.ones((2, 2), "int8")},
        "none of .weight.quant_state.bitsandbytes__nf4, .*: only NF4, FP4 and int8 are",
    ),
    "order of bytes": (
        {"quant_method": "bitsandbytes"},
        lambda _: {
            "up.weight": np.ones((2, 2), "int8"),
            "up.SCB": np.ones(2, "float32"),
            "up.weight_format": np.ones(1, "uint8"),
        },
        "up.weight_format that says of the weight that it is not in rows",
    ),
    "format": (
        {"quant_method": "compressed-tensors", "format": "marlin-24"},
        dict,
        "config.json has the format 'marlin-24' of compressed-tensors, which is not known",
    ),
    "packed bits": (
        compressed({}, num_bits=5)[0],
        lambda _: {
            "up.weight_packed": np.ones((2, 2), "int32"),
            "up.weight_scale": np.ones((2, 1), "float32"),
            "up.weight_shape": np.array([2, 16]),
        },
        "which does not hold .2, 16. integers of .5. bits",
    ),
    "no groups": (
        {"quant_method": "compressed-tensors"},
        lambda _: {
            "up.weight_packed": np.ones((2, 2), "int32"),
            "up.weight_scale": np.ones((2, 1), "float32"),
            "up.weight_shape": np.array([2, 16]),
        },
        "up.weight_packed and no config_groups of the quantization_config say",
    ),
    "scales of integers": (
        compressed({}, num_bits=8)[0],
        lambda _: {
            "up.weight": np.ones((4, 4), "int8"),
            "up.weight_scale": np.ones((4, 3), "float32"),
        },
        "up.weight_scale of shape .4, 3., which has no whole blocks of .4, 4.",
    ),
    "blocks of nothing": (
        compressed({}, num_bits=8)[0],
        lambda _: {
            "up.weight": np.ones((4, 16), ml_dtypes.float8_e4m3fn),
            "up.weight_scale": np.ones((4, 0), "uint8"),
        },
        "up.weight_scale of shape .4, 0., which has no whole blocks of .4, 16.",
    ),
    "bits that are no integer": (
        compressed({}, num_bits=8.0)[0],
        lambda _: {
            "up.weight_packed": np.ones((4, 2), "int32"),
            "up.weight_scale": np.ones((4, 1), "float32"),
            "up.weight_shape": np.array([4, 8], "int64"),
        },
        r"up.weight_packed of shape .4, 2., which does not hold .4, 8. integers of \[8.0\] bits",
    ),
    "blocks without axes": (
        {"quant_method": "mxfp4"},
        lambda _: {"w_blocks": np.ones(16, "uint8"), "w_scales": np.ones((), "uint8")},
        "w_blocks of dtype uint8 and shape .16,., where uint8 of shape .any, 16. is expected",
    ),
    "scale of all": (
        compressed({}, num_bits=4)[0],
        lambda _: {
            "up.weight_packed": np.ones((2, 8), "uint8"),
            "up.weight_scale": np.ones((2, 1), ml_dtypes.float8_e4m3fn),
        },
        "up.weight_scale and there is no .weight_global_scale beside it",
    ),
    "words of three bits": (
        GPTQ | {"bits": 3},
        other("up.qweight", lambda x: x[:5]),
        "up.qweight of shape .5, 8., which ends within an integer of 3 bits",
    ),
    "levels": (
        BITSANDBYTES,
        lambda _: other("up.weight.quant_map", lambda x: x / 2)(nf4(0)[0]),
        "up.weight.quant_map whose numbers are not the levels of NF4",
    ),
    "state": (
        BITSANDBYTES,
        lambda _: other("up.weight.quant_state.bitsandbytes__nf4", lambda x: x[:9])(
            nf4(0)[0]
        ),
        "does not say what the weight is",
    ),
    "block size": (
        {"quant_method": "fp8"},
        lambda _: FLOATS_IN_BLOCKS,
        r"w.weight with weight_block_size=\(\)",
    ),
    "block size of one axis": (
        {"quant_method": "fp8", "weight_block_size": 128},
        lambda _: FLOATS_IN_BLOCKS,
        "w.weight with weight_block_size=128",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_tensors_that_do_not_fit(name, tmp_path):
    config, change, message = WRONG[name]
    folder = written(tmp_path, config, change(gptq()[0]))
    with pytest.raises(ValueError, match=message) as error:
        load_hf(folder)
    assert str(error.value).startswith(f"load_hf: {folder}")


@pytest.mark.parametrize(
    "size, told",
    [
        (0, "up.weight .*rows do not consist of blocks of 0"),
        (float("inf"), "does not say what the weight is"),
    ],
)
def test_a_weight_in_blocks_of_no_entries_does_not_fit(size, told, tmp_path):
    tensors, _ = nf4(0)
    key = "up.weight.quant_state.bitsandbytes__nf4"
    about = json.loads(bytes(tensors[key])) | {"blocksize": size}
    tensors[key] = np.frombuffer(json.dumps(about).encode(), np.uint8)
    with pytest.raises(ValueError, match=told):
        load_hf(written(tmp_path, BITSANDBYTES, tensors))


def header(change):
    """A file with another header."""

    def spoil(data):
        end = 8 + struct.unpack_from("<Q", data)[0]
        table = json.loads(data[8:end])
        change(table["w"])
        new = json.dumps(table).encode()
        return struct.pack("<Q", len(new)) + new + data[end:]

    return spoil


SPOILT = {
    "empty": (lambda data: b"", "it has 0 bytes"),
    "no header": (lambda data: bytes(8), "its header is not JSON"),
    "header": (lambda data: data[:20], "its header ends at byte"),
    "long header": (lambda data: b"\xff" * 8 + data[8:], "its header ends at byte"),
    "no JSON": (lambda data: data[:8] + b"?" + data[9:], "its header is not JSON"),
    "no table": (lambda data: struct.pack("<Q", 2) + b"[]", "its header holds no table"),
    "cut": (
        lambda data: data[:-1],
        "a tensor w of dtype float32 and shape .2, 3., which takes 24",
    ),
    "dtype": (
        header(lambda w: w.update(dtype="F3")),
        "a tensor w of dtype F3, which is not",
    ),
    "shape": (
        header(lambda w: w.update(shape=[2, 4])),
        "a tensor w .* which takes 32 bytes",
    ),
    "numbers": (
        header(lambda w: w.update(shape=[-2, -3])),
        "does not say what the tensor w is",
    ),
    "no places": (
        header(lambda w: w.pop("data_offsets")),
        "does not say what the tensor w is",
    ),
}


@pytest.mark.parametrize("name", SPOILT)
def test_files_that_are_not_whole(name, tmp_path):
    change, message = SPOILT[name]
    folder = written(tmp_path, {}, {"w": np.ones((2, 3), "float32")})
    file = folder / "model-0.safetensors"
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises(ValueError, match=message) as error:
        load_hf(folder)
    assert str(error.value).startswith(f"load_hf: {file} ")


def test_folders_that_are_not_whole(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        load_hf(tmp_path / "missing")
    with pytest.raises(FileNotFoundError, match="no file .*safetensors in"):
        load_hf(tmp_path)
    one = {"w": np.ones(2, "float32")}
    folder = written(tmp_path / "model", {}, one, one)
    (folder / "model-1.safetensors").rename(folder / "other")
    index = folder / "model.safetensors.index.json"
    with pytest.raises(FileNotFoundError) as missing:
        load_hf(folder)
    assert str(missing.value) == (
        f"load_hf: {index} names files that are not there: {folder / 'model-1.safetensors'}."
    )
    (folder / "other").rename(folder / "model-1.safetensors")
    index.unlink()
    with pytest.raises(ValueError, match="a tensor w that is also in"):
        load_hf(folder)
    for table in ("{}", '{"weight_map": {"w": "model-1.safetensors", "x": 2}}'):
        index.write_text(table)
        with pytest.raises(ValueError, match="has no table `weight_map`"):
            load_hf(folder)
    (folder / "config.json").write_text('{"quantization_config": 4}')
    index.unlink()
    (folder / "model-1.safetensors").unlink()
    with pytest.raises(ValueError, match="has quantization_config=4"):
        load_hf(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(ValueError, match="is not whole JSON"):
        load_hf(folder)
    with pytest.raises(ValueError, match="must be real floating; got int8"):
        load_hf(folder, dtype="int8")

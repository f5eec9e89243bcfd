"""`GGUF` against the package ``gguf``, which is written by the authors of the format."""

import choose
import gguf
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize, quantize
from oracle import forbid

import jaxrewrite
from jaxrewrite.testing import assert_same
from jaxrewrite.values import GGUF, Lora
from jaxrewrite.values._weights.gguf import GGUFBlocks


FORMATS = sorted(GGUF.formats)


def random_bytes(format, *shape):
    """Any bytes: also scales that are subnormal, infinite or NaN."""
    layout = GGUF.formats[format]
    sizes = (*shape[:-1], shape[-1] // layout.entries * layout.bytes)
    return np.random.default_rng(0).integers(0, 256, sizes, np.uint8)


def dense(data, format):
    with np.errstate(all="ignore"):
        return dequantize(data, GGMLQuantizationType[format])


def small(format, *shape):
    """Bytes whose scales are between 2^-8 and 2^-7."""
    layout, data = GGUF.formats[format], random_bytes(format, *shape)
    blocks = data.reshape(-1, layout.bytes)
    if format == "MXFP4":
        blocks[:, 0] = 118 + blocks[:, 0] % 4
        return data
    last = {"Q6_K": [208], "Q3_K": [108], "Q2_K": [80, 82]}
    starts = last.get(format, [0, 2] if format[-1] in "1K" else [0])
    for start in starts:
        blocks[:, start + 1] = 0x1C + (blocks[:, start + 1] & 3)
    return data


@pytest.mark.parametrize("format", FORMATS)
def test_numbers_are_those_of_gguf_to_the_bit(format):
    layout = GGUF.formats[format]
    assert GGML_QUANT_SIZES[GGMLQuantizationType[format]] == layout[:2]
    data = random_bytes(format, 64, 2 * layout.entries)
    if format == "MXFP4":  # No numbers that are not normal in float32.
        data.reshape(-1, 17)[:, 0] |= 4
    v, want = GGUF.from_bytes(data, format), dense(data, format)
    got = np.asarray(v)
    is_nan = np.isnan(want)
    assert layout.bits == int(format.lstrip("QMXFP")[0])
    assert got.dtype == "float32" and got.shape == v.shape == want.shape
    np.testing.assert_array_equal(np.isnan(got), is_nan)
    np.testing.assert_array_equal(got[~is_nan].view("i4"), want[~is_nan].view("i4"))
    assert 0 < np.isfinite(want).sum() < want.size
    assert v.nbytes == data.nbytes + 4 and v.codes.bits == layout.bits


@pytest.mark.parametrize("format", choose.often(FORMATS, ["Q4_0", "Q6_K"]))
def test_programs(format, bulk):
    """Products, moves and scalings that cut no block, in a batch too."""
    n = GGUF.formats[format].entries
    data = small(format, 4, 2 * n)
    v, w = GGUF.from_bytes(data, format), jnp.asarray(dense(data, format))
    x = jnp.asarray(np.random.default_rng(1).normal(size=(3, 2 * n)), "float32")

    def moves(w):
        heads = w.reshape(2, 2, 2 * n)
        rows = jnp.concatenate([w[:, n:], w[::-1, :n]])
        return heads[:, 0] * 2, rows.T / 3, jnp.stack([w, w]), w.astype("bfloat16")

    def products(w, x):
        return x @ w.T, w @ x[0], jnp.einsum("hon,bn->bho", w.reshape(2, 2, -1), x), w[1]

    kept = jax.jit(forbid(moves))(v)
    assert all(isinstance(u.codes, GGUFBlocks) for u in kept)
    assert_same(kept, moves(w), 1e-2)
    assert_same(jax.jit(forbid(products))(v, x), products(w, x), 1e-4)
    each = jax.vmap(lambda w, x: x @ w)
    stacked = forbid(jnp.stack)([v, v])
    assert_same(forbid(each)(stacked, x[:2, :4]), each(jnp.stack([w, w]), x[:2, :4]), 1e-4)


def test_an_adapter_is_trained_on_it():
    data = small("Q4_K", 4, 256)
    v, w = GGUF.from_bytes(data, "Q4_K"), jnp.asarray(dense(data, "Q4_K"))
    a, b = jnp.ones((4, 2)) / 8, jnp.linspace(-1, 1, 512).reshape(2, 256)
    loss = lambda w, x: jnp.tanh(w @ x).sum()
    got = jax.grad(lambda ab: forbid(loss)(Lora(v, *ab), jnp.linspace(0, 1, 256)))((a, b))
    want = jax.grad(lambda ab: loss(w + ab[0] @ ab[1], jnp.linspace(0, 1, 256)))((a, b))
    assert_same(got, want, 1e-5)


def test_a_large_product_decodes_a_block_at_a_time(on_one_device, optimised):
    """Also along the blocks, of which a step may cut some."""
    n = 1024
    v = jax.eval_shape(lambda: GGUF.from_bytes(jnp.zeros((n, n // 32 * 18), "u1"), "Q4_0"))
    x = jax.ShapeDtypeStruct((1, n), "float32")
    for product in (lambda x, v: x @ v.T, lambda x, v: x @ v):
        compiled = jax.jit(forbid(product)).lower(x, v).compile()
        assert compiled.memory_analysis().temp_size_in_bytes < 2 * n * n


def test_what_cuts_blocks_is_dense_by_the_policy():
    data = quantize(
        np.linspace(-1, 1, 128, dtype="float32").reshape(2, 64),
        gguf.GGMLQuantizationType.Q8_0,
    )
    v = GGUF.from_bytes(data, "Q8_0")
    each = {"rev": lambda w: w[:, ::-1], "reshape": lambda w: w.reshape(-1, 8)}
    each["slice"] = lambda w: w[:, 5:40]
    cuts = lambda w: [cut(w) for cut in each.values()]
    got = jaxrewrite.transform(cuts, materialise="allow")(v)
    assert_same(got, cuts(jnp.asarray(dense(data, "Q8_0"))))
    for name, cut in each.items():
        with pytest.raises(
            jaxrewrite.MaterialisationError, match=f"'{name}' on GGUFBlocks"
        ):
            forbid(cut)(v)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: GGUF.from_bytes(np.zeros(34, "u1"), "Q9"), "'Q9' is not known. Known are"),
        (lambda: GGUF.from_bytes(np.zeros(34), "Q8_0"), r"uint8.* got float..\[34\]"),
        (lambda: GGUF.from_bytes(np.zeros(35, "u1"), "Q8_0"), "blocks of 34 along"),
        (lambda: GGUF(np.ones((2, 2)), np.ones((1, 1), int)), "must be real floating"),
        (lambda: GGUF(np.ones((2, 3)), np.ones((2, 2))), "must divide the length"),
        (lambda: GGUF(np.ones((2, 3)), np.ones((2, 0))), "must divide the length"),
    ],
)
def test_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("format", FORMATS)
def test_rows_on_a_mesh_with_explicit_axes(format):
    """Each reshape is one of those that JAX knows the sharding of."""
    mesh = jax.make_mesh((2,), ("rows",), axis_types=(jax.sharding.AxisType.Explicit,))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("rows"))
    sizes = 4, 2, GGUF.formats[format].bytes
    with jax.set_mesh(mesh):
        blocks = jax.ShapeDtypeStruct(sizes, "uint8", sharding=rows)
        decode = lambda blocks: GGUFBlocks(blocks, format=format).materialise()
        assert jax.eval_shape(decode, blocks).sharding.spec[0] == "rows"

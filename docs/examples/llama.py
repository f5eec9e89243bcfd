"""A Llama from a GGUF file: its weights stay as they are in the file.

A model of random weights is written by the package ``gguf``, in the formats that llama.cpp has.
`load_gguf` maps the file into memory, and a small function gives its tensors the names of a
model in plain JAX, which is written for floats, with one scan over its layers. Nothing becomes
dense: the program runs with ``materialise="forbid"``. Its logits are those of the weights that
``gguf`` dequantises.

Run it with ``python docs/examples/llama.py [--plot FILE]``. It needs gguf and, for the figure,
matplotlib.
"""

import argparse
import pathlib
import tempfile
from collections.abc import Mapping
from typing import Any, TypeAlias, TypedDict

import gguf
import jax
import jax.numpy as jnp
import numpy as np

import jaxrewrite
from jaxrewrite.checkpoints import load_gguf
from jaxrewrite.values import nbytes


WIDTH, HIDDEN, VOCABULARY, LAYERS, HEADS, KV_HEADS = 256, 768, 512, 3, 8, 4
SIZE = WIDTH // HEADS

Weights: TypeAlias = dict[str, jax.Array]  # of one layer, or of all, stacked

# The tensors of a layer: their shapes (out, in), and formats.
TENSORS = {
    "attn_q": ((WIDTH, WIDTH), "Q4_0"),
    "attn_k": ((KV_HEADS * SIZE, WIDTH), "Q4_0"),
    "attn_v": ((KV_HEADS * SIZE, WIDTH), "Q5_0"),
    "attn_output": ((WIDTH, WIDTH), "Q4_0"),
    "ffn_gate": ((HIDDEN, WIDTH), "Q4_0"),
    "ffn_up": ((HIDDEN, WIDTH), "Q4_0"),
    "ffn_down": ((WIDTH, HIDDEN), "Q8_0"),
}
NORMS = ("attn_norm", "ffn_norm")


class Params(TypedDict):
    embedding: jax.Array
    layers: Weights
    norm: jax.Array
    output: jax.Array


# --- the model, which knows nothing of quantised weights ------------------------------------


def norm(x: jax.Array, weight: jax.Array) -> jax.Array:
    return weight * x * jax.lax.rsqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-5)


def rotated(x: jax.Array, base: float) -> jax.Array:
    """Rotary positions, of pairs of neighbours, for x of shape (length, heads, size)."""
    angles = jnp.arange(len(x))[:, None] * base ** (-jnp.arange(0, SIZE, 2) / SIZE)
    cos, sin = (f(angles)[:, None] for f in (jnp.cos, jnp.sin))
    even, odd = x[..., ::2], x[..., 1::2]
    pairs = even * cos - odd * sin, even * sin + odd * cos
    return jnp.stack(pairs, -1).reshape(x.shape)


def layer(x: jax.Array, w: Weights, base: float) -> jax.Array:
    h = norm(x, w["attn_norm"])
    query = (h @ w["attn_q"].T).reshape(len(x), HEADS, SIZE)
    key = (h @ w["attn_k"].T).reshape(len(x), KV_HEADS, SIZE)
    value = (h @ w["attn_v"].T).reshape(len(x), KV_HEADS, SIZE)
    mixed = jax.nn.dot_product_attention(
        rotated(query, base), rotated(key, base), value, is_causal=True
    )
    x = x + mixed.reshape(x.shape) @ w["attn_output"].T
    h = norm(x, w["ffn_norm"])
    return x + (jax.nn.silu(h @ w["ffn_gate"].T) * (h @ w["ffn_up"].T)) @ w["ffn_down"].T


def llama(params: Params, tokens: jax.Array, base: float) -> jax.Array:
    """The logits of each next token, for tokens of shape (length,)."""

    def one(x: jax.Array, w: Weights) -> tuple[jax.Array, None]:
        return layer(x, w, base), None

    x, _ = jax.lax.scan(one, params["embedding"][tokens], params["layers"])
    return norm(x, params["norm"]) @ params["output"].T


# --- its weights -------------------------------------------------------------------------------


def write(file: pathlib.Path) -> None:
    """A model of random weights, in a file as llama.cpp has it."""
    random = np.random.default_rng(0)
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_block_count(LAYERS)
    writer.add_rope_freq_base(10000.0)

    def add(name: str, shape: tuple[int, ...], kind: str) -> None:
        weight = random.normal(size=shape).astype("float32") / shape[-1] ** 0.5
        of_kind = gguf.GGMLQuantizationType[kind]
        data = gguf.quants.quantize(weight, of_kind)
        writer.add_tensor(f"{name}.weight", data, raw_dtype=of_kind)

    add("token_embd", (VOCABULARY, WIDTH), "Q8_0")
    add("output", (VOCABULARY, WIDTH), "Q8_0")
    writer.add_tensor("output_norm.weight", np.ones(WIDTH, "float32"))
    for i in range(LAYERS):
        for name, (shape, kind) in TENSORS.items():
            add(f"blk.{i}.{name}", shape, kind)
        for name in NORMS:
            writer.add_tensor(f"blk.{i}.{name}.weight", np.ones(WIDTH, "float32"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def params_of(tensors: Mapping[str, Any], layers: int) -> Params:
    """The tensors of a file by the names of the model, those of all layers stacked."""
    names = (*TENSORS, *NORMS)
    each = [
        {name: tensors[f"blk.{i}.{name}.weight"] for name in names} for i in range(layers)
    ]
    return Params(
        embedding=tensors["token_embd.weight"],
        layers=jaxrewrite.stack(each),
        norm=tensors["output_norm.weight"],
        output=tensors["output.weight"],
    )


def dequantised(file: pathlib.Path) -> dict[str, jax.Array]:
    """The tensors as the package ``gguf`` reads them."""
    return {
        tensor.name: jnp.asarray(gguf.quants.dequantize(tensor.data, tensor.tensor_type))
        for tensor in gguf.GGUFReader(file).tensors
    }


def main(plot: str | None = None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "llama.gguf"
        write(file)
        tensors = load_gguf(file)
        layers = tensors.metadata["llama.block_count"]
        base = tensors.metadata["llama.rope.freq_base"]
        print(f"A query: {tensors['blk.0.attn_q.weight']}")
        params = params_of(tensors, layers)
        dense = params_of(dequantised(file), layers)
        sizes = {"the file": file.stat().st_size / 1e6}
    tokens = jax.random.randint(jax.random.key(1), (16,), 0, VOCABULARY)
    implicit = jax.jit(jaxrewrite.transform(llama, materialise="forbid"))
    logits, want = implicit(params, tokens, base), jax.jit(llama)(dense, tokens, base)
    np.testing.assert_allclose(logits, want, atol=1e-3)
    print("The logits are those of the weights that gguf dequantises.")
    sizes["the parameters"] = nbytes(params).implicit / 1e6
    sizes["float32"] = nbytes(params).dense / 1e6
    print(", ".join(f"{name}: {size:.2f} MB" for name, size in sizes.items()))
    assert sizes["the parameters"] < 1.02 * sizes["the file"] < sizes["float32"] / 4
    if plot:
        import matplotlib.pyplot as plt

        figure, axes = plt.subplots(figsize=(4, 3), layout="constrained")
        axes.bar(list(sizes), list(sizes.values()))
        axes.set(ylabel="MB", title="A Llama of random weights")
        figure.savefig(plot, dpi=60)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--plot", metavar="FILE", help="draw the figure to this file")
    main(parser.parse_args().plot)

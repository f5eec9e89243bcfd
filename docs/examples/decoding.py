"""Greedy decoding with a KV cache: one scan over tokens, and in it one over 8-bit layers.

The weights of a transformer are quantised, its layers are stacked, and `jax.lax.scan` runs over
the stack with the keys and values of all tokens so far. The program is written for floats. It
gives the tokens of the dequantised model, and takes a quarter of the memory for its weights.
XLA's analysis says that with all its temporaries it takes less than the floats alone.

Run it with ``python docs/examples/decoding.py [--plot FILE]``. It needs matplotlib for the
figure, and nothing else.
"""

import argparse
import math
from typing import TypeAlias, TypedDict

import jax
import jax.numpy as jnp
import numpy as np

import jaxrewrite
from jaxrewrite.values import nbytes, quantise


LAYERS, WIDTH, HEADS, VOCABULARY, LENGTH = 4, 256, 8, 512, 32

Weights: TypeAlias = dict[str, jax.Array]  # of one layer, or of all, stacked
Caches: TypeAlias = tuple[jax.Array, jax.Array]  # the keys and the values


class Params(TypedDict):
    embedding: jax.Array
    layers: Weights
    head: jax.Array


def norm(x: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-6)


def layer(
    x: jax.Array, weights: Weights, caches: Caches, position: jax.Array
) -> tuple[jax.Array, Caches]:
    """One token through one layer. The caches have shape (batch, LENGTH, HEADS, size)."""
    qkv = norm(x) @ weights["qkv"]
    query, key, value = qkv.reshape(len(x), 3, HEADS, -1).swapaxes(0, 1)
    keys = caches[0].at[:, position].set(key)
    values = caches[1].at[:, position].set(value)
    scores = jnp.einsum("bhd,blhd->bhl", query, keys) / query.shape[-1] ** 0.5
    scores = jnp.where(jnp.arange(LENGTH) <= position, scores, -jnp.inf)
    mixed = jnp.einsum("bhl,blhd->bhd", jax.nn.softmax(scores), values)
    x = x + mixed.reshape(x.shape) @ weights["out"]
    x = x + jax.nn.gelu(norm(x) @ weights["up"]) @ weights["down"]
    return x, (keys, values)


def generate(params: Params, prompt: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Append the likeliest tokens to a prompt, up to LENGTH. The logits are for a comparison."""

    def step(
        state: tuple[jax.Array, Caches], position: jax.Array
    ) -> tuple[tuple[jax.Array, Caches], jax.Array]:
        tokens, caches = state

        def one(x: jax.Array, of_layer: tuple[Weights, Caches]) -> tuple[jax.Array, Caches]:
            weights, caches = of_layer
            return layer(x, weights, caches, position)

        x = params["embedding"][tokens[:, position]]
        x, caches = jax.lax.scan(one, x, (params["layers"], caches))
        logits = norm(x) @ params["head"]
        likeliest = jnp.argmax(logits, -1)
        following = jnp.where(
            position + 1 < prompt.shape[1], tokens[:, position + 1], likeliest
        )
        return (tokens.at[:, position + 1].set(following), caches), logits

    batch = len(prompt)
    tokens = (
        jnp.zeros((batch, LENGTH + 1), prompt.dtype).at[:, : prompt.shape[1]].set(prompt)
    )
    cache = jnp.zeros((LAYERS, batch, LENGTH, HEADS, WIDTH // HEADS))
    (tokens, _), logits = jax.lax.scan(step, (tokens, (cache, cache)), jnp.arange(LENGTH))
    return tokens, logits


def normal(key: jax.Array, *shape: int) -> jax.Array:
    return jax.random.normal(key, shape) / math.sqrt(shape[0])


def initial(key: jax.Array) -> Params:
    shapes = {"qkv": (1, 3), "out": (1, 1), "up": (1, 4), "down": (4, 1)}
    layers: list[Weights] = []
    for own in jax.random.split(key, LAYERS):
        sizes = zip(shapes.items(), jax.random.split(own, 4), strict=True)
        weights = {name: normal(k, n * WIDTH, m * WIDTH) for (name, (n, m)), k in sizes}
        layers.append(quantise(weights, lambda path, leaf: True, axis=-1))
    embedding, head = normal(key, VOCABULARY, WIDTH), normal(key, WIDTH, VOCABULARY)
    embedding, head = quantise((embedding, head), lambda path, leaf: True, axis=-1)
    return Params(embedding=embedding, layers=jaxrewrite.stack(layers), head=head)


def main(plot: str | None = None) -> None:
    params = initial(jax.random.key(0))
    prompt = jax.random.randint(jax.random.key(1), (2, 4), 0, VOCABULARY)
    dense = jaxrewrite.materialise(params)
    implicit = jaxrewrite.transform(generate, materialise="forbid")
    programs = {
        "float32": jax.jit(generate).lower(dense, prompt).compile(),
        "8 bits": jax.jit(implicit).lower(params, prompt).compile(),
    }
    tokens, logits = programs["8 bits"](params, prompt)
    wanted, dense_logits = programs["float32"](dense, prompt)
    np.testing.assert_allclose(logits, dense_logits, atol=1e-3)
    np.testing.assert_array_equal(tokens, wanted)
    print(f"The {LENGTH} tokens are those of the dequantised model: {tokens[0, :12]} ...")
    print(f"Parameters: {nbytes(params)}.")
    sizes: dict[str, tuple[float, float]] = {}
    for name, program in programs.items():
        memory = program.memory_analysis()
        assert memory is not None
        sizes[name] = memory.argument_size_in_bytes / 1e6, memory.temp_size_in_bytes / 1e6
        print(
            "{}: {:.1f} MB of arguments, {:.1f} MB of temporaries".format(
                name, *sizes[name]
            )
        )
    assert sizes["8 bits"][0] < 0.3 * sizes["float32"][0]
    assert sum(sizes["8 bits"]) < 0.7 * sizes["float32"][0]  # No floats of all weights.
    if plot:
        import matplotlib.pyplot as plt

        figure, axes = plt.subplots(figsize=(4, 3), layout="constrained")
        arguments, temporaries = zip(*sizes.values(), strict=True)
        axes.bar(list(sizes), arguments, label="arguments")
        axes.bar(list(sizes), temporaries, bottom=arguments, label="temporaries")
        axes.set(ylabel="MB", title="Decoding, as XLA compiled it")
        axes.legend()
        figure.savefig(plot, dpi=60)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--plot", metavar="FILE", help="draw the figure to this file")
    main(parser.parse_args().plot)

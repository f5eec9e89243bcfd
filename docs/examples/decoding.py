"""Greedy decoding with a KV cache: one scan over tokens, and in it one over 8-bit layers.

The weights of a transformer are quantised, its layers are stacked, and `jax.lax.scan` runs over
the stack with the keys and values of all tokens so far. The program is written for floats. It
gives the tokens of the dequantised model, and takes a quarter of the memory for its weights.
XLA's analysis says that with all its temporaries it takes less than the floats alone.

With an 8-bit cache as well, each token's keys and values are quantised as they are written. The
cache then takes a quarter of the memory, too, and the tokens are the same as long as the likeliest
two differ by more than the cache changes them.

Run it with ``python docs/examples/decoding.py [--plot FILE]``. It needs matplotlib for the
figure, and nothing else.
"""

import argparse
import math
from typing import Any, TypeAlias, TypedDict

import jax
import jax.numpy as jnp
import numpy as np

import jaxrewrite
from jaxrewrite.values import Quantised, nbytes, quantise, quantised_updates


LAYERS, WIDTH, HEADS, VOCABULARY, LENGTH, BATCH = 4, 256, 8, 512, 32, 2

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


def generate(
    params: Params, prompt: jax.Array, caches: Caches
) -> tuple[jax.Array, jax.Array, Caches]:
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
    (tokens, caches), logits = jax.lax.scan(step, (tokens, caches), jnp.arange(LENGTH))
    return tokens, logits, caches


def dense_caches(batch: int) -> Caches:
    shape = (LAYERS, batch, LENGTH, HEADS, WIDTH // HEADS)
    return jnp.zeros(shape), jnp.zeros(shape)


def small_caches(batch: int) -> tuple[Quantised, Quantised]:
    """The same in 8 bits, with a scale for each token of each layer."""
    keys, values = dense_caches(batch)
    return (
        Quantised.quantise(keys, axis=(0, 1, 2)),
        Quantised.quantise(values, axis=(0, 1, 2)),
    )


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


def check_small_cache(
    tokens: jax.Array, logits: jax.Array, wanted: jax.Array, dense_logits: jax.Array
) -> None:
    """Each sequence is the same up to a token whose margin the cache's error exceeds."""
    top = np.sort(dense_logits, -1)
    margin = top[..., -1] - top[..., -2]
    for i in range(BATCH):
        differ = np.flatnonzero(np.asarray(tokens[i] != wanted[i]))
        end = differ[0] - 1 if differ.size else LENGTH
        error = np.abs(logits[:end, i] - dense_logits[:end, i]).max()
        assert error < 0.05, error
        assert not differ.size or margin[end, i] < 0.1
        print(
            f"Sequence {i}, 8-bit cache: {end} tokens are the same, logits to {error:.3f}."
        )


def main(plot: str | None = None) -> None:
    params = initial(jax.random.key(0))
    prompt = jax.random.randint(jax.random.key(1), (BATCH, 4), 0, VOCABULARY)
    dense = jaxrewrite.materialise(params)
    implicit = jaxrewrite.transform(generate, rules=quantised_updates, materialise="forbid")
    models: dict[str, tuple[Any, Any]] = {
        "float32": (dense, dense_caches(BATCH)),
        "8 bits": (params, dense_caches(BATCH)),
        "and cache": (params, small_caches(BATCH)),
    }
    programs = {
        name: jax.jit(generate if name == "float32" else implicit, donate_argnums=2)
        .lower(weights, prompt, caches)
        .compile()
        for name, (weights, caches) in models.items()
    }
    results = {
        name: program(models[name][0], prompt, models[name][1])
        for name, program in programs.items()
    }
    wanted, dense_logits, dense_cache = results["float32"]
    tokens, logits, _ = results["8 bits"]
    np.testing.assert_allclose(logits, dense_logits, atol=1e-3)
    np.testing.assert_array_equal(tokens, wanted)
    print(f"The {LENGTH} tokens are those of the dequantised model: {tokens[0, :12]} ...")
    tokens, logits, cache = results["and cache"]
    check_small_cache(tokens, logits, wanted, dense_logits)
    print(f"The cache in floats and in 8 bits: {nbytes(cache)}.")
    assert nbytes(cache).implicit < 0.26 * nbytes(dense_cache).implicit
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
    assert sizes["and cache"][0] < 0.3 * sizes["float32"][0]
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

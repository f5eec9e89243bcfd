"""A GPT-2-shaped transformer in plain JAX, which knows nothing of values.

It has pre-norm blocks with a fused qkv projection, causal attention, a GELU MLP, and a head
tied to the token embedding, as in Radford et al. (2019), "Language Models are Unsupervised
Multitask Learners". The weights are random.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array


Linear = Callable[[Any, Array], Array]


class Config(NamedTuple):
    """The sizes of the model and of its input."""

    layers: int = 12
    width: int = 768
    heads: int = 12
    vocabulary: int = 8192
    length: int = 64
    batch: int = 2


TINY = Config(layers=2, width=64, heads=2, vocabulary=50, length=8, batch=1)


def init(config: Config, key: Array) -> dict[str, Any]:
    """Random parameters: kernels of shape (in, out) and biases of shape (out,)."""
    width = config.width
    keys = iter(jax.random.split(key, 4 * config.layers + 2))

    def linear(n: int, m: int) -> dict[str, Array]:
        kernel = jax.random.normal(next(keys), (n, m)) / n**0.5
        return {"kernel": kernel, "bias": jnp.zeros(m)}

    def norm() -> dict[str, Array]:
        return {"scale": jnp.ones(width), "shift": jnp.zeros(width)}

    def block() -> dict[str, Any]:
        return {
            "norm_1": norm(),
            "qkv": linear(width, 3 * width),
            "out": linear(width, width),
            "norm_2": norm(),
            "up": linear(width, 4 * width),
            "down": linear(4 * width, width),
        }

    return {
        "tokens": jax.random.normal(next(keys), (config.vocabulary, width)) * 0.02,
        "positions": jax.random.normal(next(keys), (config.length, width)) * 0.01,
        "blocks": [block() for _ in range(config.layers)],
        "norm": norm(),
    }


def dense(p: Any, x: Array) -> Array:
    return x @ p["kernel"] + p["bias"]


def _norm(p: Any, x: Array) -> Array:
    mean = x.mean(-1, keepdims=True)
    variance = jnp.square(x - mean).mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * p["scale"] + p["shift"]


def _attention(p: Any, x: Array, heads: int, linear: Linear) -> Array:
    batch, length, width = x.shape
    qkv = linear(p["qkv"], x).reshape(batch, length, 3, heads, width // heads)
    q, k, v = jnp.moveaxis(qkv, 2, 0)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / (width // heads) ** 0.5
    causal = jnp.tril(jnp.ones((length, length), bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -1e9), axis=-1)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, v)
    return linear(p["out"], mixed.reshape(batch, length, width))


def apply(params: Any, ids: Array, heads: int, linear: Linear = dense) -> Array:
    """Logits of shape (batch, length, vocabulary) for ids of shape (batch, length).

    ``linear`` applies a layer to its input. Another function serves for kernels of another
    kind that are written by hand.
    """
    x = params["tokens"][ids] + params["positions"][: ids.shape[1]]
    for p in params["blocks"]:
        x = x + _attention(p, _norm(p["norm_1"], x), heads, linear)
        x = x + linear(p["down"], jax.nn.gelu(linear(p["up"], _norm(p["norm_2"], x))))
    return _norm(params["norm"], x) @ params["tokens"].T

"""Transformers of the shapes of Llama, in plain JAX, on a mesh of devices.

The layers are stacked and run in a scan, under `jax.checkpoint`. The axis ``data`` of the mesh splits
the batch and, as in FSDP, the rows or columns of each weight, which a layer gathers before it is
used. The axis ``model`` splits heads and hidden units (tensor parallelism).
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec as P


class Config(NamedTuple):
    layers: int
    width: int
    heads: int
    key_heads: int
    hidden: int
    vocabulary: int = 128_256
    length: int = 1536  # Of no weight's axis, by which a dense weight is known.

    @property
    def head(self) -> int:
        return self.width // self.heads

    def kernels(self) -> dict[str, tuple[int, int]]:
        """The shapes of a layer's kernels."""
        keys = self.key_heads * self.head
        into = {
            "q": self.width,
            "k": keys,
            "v": keys,
            "gate": self.hidden,
            "up": self.hidden,
        }
        return {
            **{name: (self.width, size) for name, size in into.items()},
            **{"o": (self.width, self.width), "down": (self.hidden, self.width)},
        }


SIZES = {
    "1B": Config(16, 2048, 32, 8, 8192),
    "8B": Config(32, 4096, 32, 8, 14_336),
    "70B": Config(80, 8192, 64, 8, 28_672),
    "tiny": Config(2, 64, 8, 8, 128, 512, 32),
}


# --- where arrays are on the mesh ---------------------------------------------------------

# Kernels whose rows are the heads or hidden units.
_BACK = ("o", "down")


def _split(name: str) -> tuple[str, str]:
    return ("model", "data") if name in _BACK else ("data", "model")


RULES = [
    *((f"layers/{name}$", P(None, *_split(name))) for name in SIZES["tiny"].kernels()),
    ("embed|head", P("data", "model")),
    ("", P()),
]
"""Where weights are, by their paths, for `jaxrewrite.shardings`."""


class Layout(NamedTuple):
    """Where the arrays of a program are."""

    mesh: jax.sharding.Mesh

    def put(self, x: Any, *spec: str | None) -> Any:
        return lax.with_sharding_constraint(x, NamedSharding(self.mesh, P(*spec)))

    def gathered(self, w: Any, name: str = "") -> Any:
        """A weight, of which each device has all that its heads or hidden units need."""
        return self.put(w, *(None if axis == "data" else axis for axis in _split(name)))

    def rows(self, x: Any) -> Any:
        """Activations, split along the batch."""
        return self.put(x, "data")


# --- the model ----------------------------------------------------------------------------


def init(config: Config, key: Any) -> Any:
    """Parameters in bfloat16. `jax.eval_shape` tells their shapes."""

    def layer(key: Any) -> Any:
        shapes = config.kernels()
        keys = jax.random.split(key, len(shapes))
        kernels = {
            name: jax.random.normal(k, shape, "bfloat16") / shape[0] ** 0.5
            for k, (name, shape) in zip(keys, shapes.items(), strict=True)
        }
        ones = jnp.ones(config.width, "bfloat16")
        return {**kernels, "norm_attention": ones, "norm_hidden": ones}

    first, second, third = jax.random.split(key, 3)
    table = config.vocabulary, config.width
    return {
        "layers": jax.vmap(layer)(jax.random.split(first, config.layers)),
        "embed": jax.random.normal(second, table, "bfloat16"),
        "head": jax.random.normal(third, table[::-1], "bfloat16") / config.width**0.5,
        "norm": jnp.ones(config.width, "bfloat16"),
    }


def _norm(x: Any, scale: Any) -> Any:
    wide = x.astype("float32")
    size = jnp.mean(wide**2, axis=-1, keepdims=True)
    return (wide * lax.rsqrt(size + 1e-5)).astype(x.dtype) * scale


def _turned(x: Any, positions: Any) -> Any:
    """Rotary positions (Su and others 2021), for heads of shape (batch, length, heads, head)."""
    half = x.shape[-1] // 2
    angles = positions[:, None, None] * 5e5 ** (-jnp.arange(half) / half)
    first, second = jnp.split(x.astype("float32"), 2, axis=-1)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    turned = jnp.concatenate([first * cos - second * sin, first * sin + second * cos], -1)
    return turned.astype(x.dtype)


def _heads(config: Config, p: Any, x: Any, positions: Any) -> tuple[Any, Any, Any]:
    """Queries, keys and values of a layer."""

    def split(y: Any) -> Any:
        return y.reshape(*y.shape[:-1], -1, config.head)

    q, k, v = (split(x @ p[name]) for name in "qkv")
    return _turned(q, positions), _turned(k, positions), v


def _hidden(layout: Layout, p: Any, x: Any) -> Any:
    y = _norm(x, p["norm_hidden"])
    return layout.rows(x + (jax.nn.silu(y @ p["gate"]) * (y @ p["up"])) @ p["down"])


def _whole(config: Config, layout: Layout, p: Any) -> Any:
    return {**p, **{name: layout.gathered(p[name], name) for name in config.kernels()}}


def apply(config: Config, layout: Layout, params: Any, tokens: Any) -> Any:
    """Logits for tokens of shape (batch, length)."""
    positions = jnp.arange(tokens.shape[1])

    @jax.checkpoint
    def block(x: Any, p: Any) -> Any:
        p = _whole(config, layout, p)
        q, k, v = _heads(config, p, _norm(x, p["norm_attention"]), positions)
        mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        x = layout.rows(x + mixed.reshape(x.shape) @ p["o"])
        return _hidden(layout, p, x), None

    x = layout.rows(layout.gathered(params["embed"])[tokens])
    x, _ = lax.scan(block, x, params["layers"])
    return _norm(x, params["norm"]) @ layout.gathered(params["head"])


def cache(config: Config, batch: int) -> Any:
    """Keys and values of no token yet."""
    shape = config.layers, batch, config.length, config.key_heads, config.head
    return {name: jnp.zeros(shape, "bfloat16") for name in "kv"}


CACHE = P(None, "data", None, "model")


def decode(
    config: Config, layout: Layout, params: Any, cache: Any, token: Any, position: Any
) -> tuple[Any, Any]:
    """Logits of the next token for tokens of shape (batch, 1), and the cache with these."""

    def block(x: Any, turn: Any) -> Any:
        p, kept = turn
        p = _whole(config, layout, p)
        q, k, v = _heads(config, p, _norm(x, p["norm_attention"]), position[None])
        update = functools.partial(lax.dynamic_update_slice_in_dim, axis=1)
        kept = {
            name: update(kept[name], new, position) for name, new in (("k", k), ("v", v))
        }
        lengths = jnp.full(x.shape[0], position + 1)
        mixed = jax.nn.dot_product_attention(
            q, kept["k"], kept["v"], key_value_seq_lengths=lengths
        )
        x = layout.rows(x + mixed.reshape(x.shape) @ p["o"])
        return _hidden(layout, p, x), kept

    x = layout.rows(layout.gathered(params["embed"])[token])
    x, cache = lax.scan(block, x, (params["layers"], cache))
    return _norm(x, params["norm"]) @ layout.gathered(params["head"]), cache

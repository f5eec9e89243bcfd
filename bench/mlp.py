"""A LoRA-adapted MLP, and the same program written by hand.

At width 16 the arithmetic takes almost no time, so nearly all of the time is overhead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


WIDTH, RANK, BATCH = 16, 4, 8


def programs() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The model, and the adapted model written by hand; new functions each time."""

    def model(weights: Any, x: Any) -> Any:
        for w in weights:
            x = jnp.tanh(x @ w)
        return x

    def by_hand(weights: Any, x: Any) -> Any:
        for w, a, b in weights:
            x = jnp.tanh(x @ w + (x @ a) @ b)
        return x

    return model, by_hand


def weights(layers: int) -> list[tuple[jax.Array, jax.Array, jax.Array]]:
    """The arrays W, A and B of each layer."""
    keys = jax.random.split(jax.random.key(layers), 3)
    w = jax.random.normal(keys[0], (layers, WIDTH, WIDTH)) / WIDTH**0.5
    a = jax.random.normal(keys[1], (layers, WIDTH, RANK)) / WIDTH**0.5
    b = jax.random.normal(keys[2], (layers, RANK, WIDTH)) * 0.1
    return list(zip(w, a, b, strict=True))


def inputs() -> jax.Array:
    return jnp.ones((BATCH, WIDTH))

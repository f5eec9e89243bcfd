"""A loop over parts of arrays that runs in `jax.shard_map`, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from .structured import vary_as


def scan(
    step: Callable[[Any, Any], tuple[Any, Any]],
    carry: Any,
    xs: Any,
    length: int | None = None,
    **params: Any,
) -> tuple[Any, Any]:
    """``lax.scan``, where the first carry may vary over fewer axes of a mesh than the others.

    Zeros that sums begin from vary over none, and arrays may vary over different ones.
    """
    while jax.sharding.get_abstract_mesh().manual_axes:
        leaves: list[Any] = jax.tree.leaves(carry)
        x = jax.tree.map(lambda x: vary_as(jnp.zeros(x.shape[1:], x.dtype), [x]), xs)
        of_step = jax.make_jaxpr(lambda carry, x: step(carry, x)[0])(carry, x)
        varied = [vary_as(x, [y]) for x, y in zip(leaves, of_step.out_avals, strict=True)]
        if all(x is y for x, y in zip(leaves, varied, strict=True)):
            break
        carry = jax.tree.unflatten(jax.tree.structure(carry), varied)
    return lax.scan(step, carry, xs, length, **params)

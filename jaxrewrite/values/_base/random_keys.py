"""The check of keys that helpers take."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def check_key(caller: str, key: Any) -> None:
    """Raise `TypeError` unless it is a key of `jax.random`, of the new or the old kind."""
    dtype = getattr(key, "dtype", None)
    is_key = dtype is not None and (
        dtype == "uint32" or jnp.issubdtype(dtype, jax.dtypes.prng_key)
    )
    if not is_key:
        raise TypeError(
            f"{caller}: key is {key!r}; it must be a key of jax.random, such as jax.random.key(0)."
        )

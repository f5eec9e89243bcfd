"""Products of Qwix with the formats that it has, too. It needs ``qwix``."""

from __future__ import annotations

from typing import Any

import jax
import qwix


# What Qwix calls a format, and how many rows of a weight share a scale; None for all of them.
FORMATS = {
    "int8": ("int8", None),
    "int4": ("int4", 64),
    "NF4": ("nf4", 64),
    "mxfp4": ("mxfp4", 32),
}


def quantised(name: str, w: jax.Array) -> Any:
    qtype, rows = FORMATS[name]
    tiles = {} if rows is None else {0: rows}
    return qwix.quantize(w, qtype, channelwise_axes=(1,), tiled_axes=tiles)


def product(x: jax.Array, w: Any) -> jax.Array:
    return qwix.dot(x, w)


def dequantised(x: jax.Array, w: Any) -> jax.Array:
    return x @ qwix.dequantize(w)

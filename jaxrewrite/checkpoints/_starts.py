"""The base weights of adapters that peft began by changing them, from the weights before that."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxrewrite
from jaxrewrite.values import NF4, adapt

from ._leaves import is_value


# Ways to begin that change the base weights, with what such an adapter belongs to.
_STARTS = {
    "pissa": ("PiSSA", "what is left of the dense weight"),
    "loftq": ("LoftQ", "what peft rounded of the dense weight"),
}

# The options of LoftQ by which a base weight alone decides what it is rounded to.
_OPTIONS = {"loftq_bits": 4, "loftq_iter": 1}

# How many neighbours share a magnitude in the NF4 of bitsandbytes, as LoftQ of peft has it.
_BLOCK = 64


def start_of(path: pathlib.Path, config: Mapping[str, Any]) -> str | None:
    """How the adapter of a configuration began, if it changed the base weights.

    Raises
    ------
    ValueError
        If it began by LoftQ, and the weights before that do not say what became of them.
    """
    method = config.get("init_lora_weights")
    if method == "loftq":
        options = config.get("loftq_config")
        if options != _OPTIONS:
            raise ValueError(
                f"load_adapter: {path} has LoftQ with loftq_config={options!r}. Only loftq_bits=4 and "
                "loftq_iter=1 are read. Further turns take singular values, and 8 bits halves, which are "
                "rounded otherwise on other machines, so that the weights that peft made are not known. "
                "Load these weights, of model.get_base_model(), and set init_lora_weights to true there."
            )
        if config.get("fan_in_fan_out", False):
            raise ValueError(
                f"load_adapter: {path} has LoftQ with fan_in_fan_out, where peft takes the factors of a "
                "weight for those of its transpose."
            )
    return method if method in _STARTS else None


def started(
    path: str,
    weight: Any,
    rank: int,
    inputs: Sequence[int],
    outputs: Sequence[int],
    start: str,
) -> Any:
    """The base of an adapter that peft began on this weight, whose axes are these and a stack's."""
    if is_value(weight):
        name, base = _STARTS[start]
        raise ValueError(
            f"load_adapter: {path} is a {type(weight).__name__}. An adapter that {name} began belongs "
            f"to {base}: load it on that."
        )
    if start == "pissa":
        return _without_largest(weight, rank, (tuple(inputs), tuple(outputs)))
    last = [axis % weight.ndim for axis in (*outputs, *inputs)]
    order = [*(i for i in range(weight.ndim) if i not in last), *last]
    moved = jnp.transpose(weight, order)
    batch = moved.shape[: weight.ndim - len(last)]
    back = lambda v: jnp.transpose(v.reshape(moved.shape), tuple(np.argsort(order)))
    return _as_bitsandbytes(moved.reshape(*batch, -1), back)


def _without_largest(weight: Any, rank: int, axes: Any) -> Any:
    """A weight without its largest singular values."""
    is_it = lambda path, leaf: True
    return adapt(weight, is_it, rank, jax.random.key(0), axes=axes, init="pissa").w


def _as_bitsandbytes(w: Any, back: Callable[[Any], Any]) -> Any:
    """Rows of numbers in NF4 with a magnitude for each 64 neighbours, moved to their places.

    The blocks are smaller where those of 64 would have entries of two rows there. If they are too
    small to be worth it, the result is an array.
    """
    *batch, count = w.shape
    wide = w.astype(jnp.float32)
    padded = jnp.pad(wide, [*((0, 0) for _ in batch), (0, -count % _BLOCK)])
    blocks = padded.reshape(*batch, -1, _BLOCK)
    codes = NF4.quantise(blocks, (*(1 for _ in batch), 1, _BLOCK)).codes
    # The magnitudes of `NF4.quantise` are rounded, and those of LoftQ are not.
    v = NF4.from_levels(jaxrewrite.materialise(codes), abs(blocks).max(-1, keepdims=True))
    in_place = lambda v: back(v.reshape(*batch, -1)[..., :count]).astype(w.dtype)
    return jaxrewrite.transform(in_place, materialise="allow")(v)

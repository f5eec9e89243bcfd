"""`Rescaled` weights of a pytree as the adapters of IA3 that peft has.

peft multiplies what a layer returns, which is its bias as well. So the bias beside a weight is
multiplied with the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrewrite.values import Dora, Lora, Rescaled

from ._peft_vectors import Scaling


# The types of weights with an adapter that has factors, and with one of any kind.
FACTORED = (Lora, Dora)
ADAPTED = (*FACTORED, Rescaled)

# The last part of the path of a bias.
BIAS = "bias"


def bias_beside(path: str) -> str:
    """The path of the bias of a weight."""
    return "/".join([*path.split("/")[:-1], BIAS])


def scalings_of(
    path: str,
    weights: Mapping[str, Any],
    modules: str | Sequence[str],
    in_first: bool,
    is_convolution: bool,
) -> Iterator[tuple[str, Scaling]]:
    """The numbers of each module of a weight; ``weights`` are all, by their paths."""
    v, names = weights[path], [modules] if isinstance(modules, str) else list(modules)
    batch = 0 if isinstance(modules, str) else 1
    sizes = v.shape[batch:]
    along = {i - batch for i in v.scaled_axes() if i >= batch}
    is_stack = v.shape[:batch] == (len(names),) * batch
    if not is_stack or len(sizes) < 2 or len(along) == len(sizes):
        raise ValueError(
            f"save_adapter: {path} has shape {v.shape} and numbers of shape {v.scale.shape} for "
            f"{modules!r}. A module has numbers along its outputs, or along its inputs."
        )
    last = len(sizes) - 1 if in_first else 0
    bias = weights.get(bias_beside(path))
    # A number for all is one of the outputs if the bias has it, too.
    is_of_inputs = last not in along and (bool(along) or not isinstance(bias, Rescaled))
    inputs = {-2 % len(sizes) if in_first else 1}
    along = along or (inputs if is_of_inputs else {last})
    wanted = [n if i in along else 1 for i, n in enumerate(sizes)]
    whole = np.broadcast_to(_numbers(v), (*v.shape[:batch], *wanted))
    numbers = whole.reshape(len(names), -1)
    fits = bias is None or _has_numbers(bias, numbers)
    if isinstance(bias, Rescaled) if is_of_inputs else not fits:
        raise ValueError(
            f"save_adapter: {path} has numbers for its {'inputs' if is_of_inputs else 'outputs'}, and "
            f"{bias_beside(path)} does not go with that. With the outputs IA3 multiplies the bias: "
            "then it is a Rescaled with the same numbers, and otherwise it is none."
        )
    window = len(sizes) - 2 if is_convolution else 0
    for name, own in zip(names, numbers, strict=True):
        yield name, Scaling(own, is_of_inputs, window)


def _numbers(v: Rescaled) -> Any:
    return np.asarray(jax.device_get(v.numbers()))


def _has_numbers(bias: Any, numbers: Any) -> bool:
    """Whether a bias, or a stack of them, is multiplied with these numbers."""
    if not isinstance(bias, Rescaled):
        return False
    own = np.broadcast_to(_numbers(bias), bias.shape)
    return own.size == numbers.size and np.array_equal(
        own.reshape(numbers.shape), numbers.astype(own.dtype)
    )


def check_biases(weights: Mapping[str, Any]) -> None:
    """Raise `ValueError` if a bias is multiplied without the weight beside it."""
    of_weights = {
        bias_beside(path)
        for path, weight in weights.items()
        if isinstance(weight, Rescaled) and not is_bias(path)
    }
    for path, weight in weights.items():
        if isinstance(weight, Rescaled) and is_bias(path) and path not in of_weights:
            raise ValueError(
                f"save_adapter: {path} is a Rescaled, and no weight beside it is. IA3 multiplies what "
                "a layer returns."
            )


def is_bias(path: str) -> bool:
    return path.split("/")[-1] == BIAS


def rescaled(
    path: str,
    weight: Any,
    modules: str | Sequence[str],
    scalings: Sequence[Scaling],
    in_first: bool,
) -> Rescaled:
    """A weight, or a stack of weights, with the numbers of its modules."""
    batch, like = 0 if isinstance(modules, str) else 1, scalings[0]
    numbers = np.stack([scaling.numbers for scaling in scalings])
    ndim = batch + 2 + like.window
    if isinstance(weight, Rescaled) and weight.ndim > ndim:
        shape = list(weight.scale.shape)  # Its numbers say which axes are those of heads.
    else:
        place = -1 if in_first else batch
        if like.is_of_inputs:
            place = -2 if in_first else batch + 1
        shape = [1] * max(ndim, weight.ndim)
        shape[:batch] = weight.shape[:batch]
        shape[place] = numbers.shape[1]
    is_alike = len({scaling[1:] for scaling in scalings}) == 1
    fits = all(k in (1, n) for k, n in zip(shape, weight.shape, strict=False))
    if (
        len(shape) != weight.ndim
        or not is_alike
        or not fits
        or math.prod(shape) != numbers.size
    ):
        of = "inputs" if like.is_of_inputs else "outputs"
        raise ValueError(
            f"load_adapter: {modules!r} has {numbers.shape[1]} numbers for {of}, which do not fit "
            f"{path}, of shape {tuple(weight.shape)}. Let a weight with heads be a Rescaled."
        )
    return Rescaled(bare(weight), jnp.asarray(numbers.reshape(shape)))


def rescaled_bias(bias: Any, scalings: Sequence[Scaling]) -> Rescaled:
    """A bias of any axes, or a stack of biases, with the numbers of the outputs."""
    numbers = np.stack([scaling.numbers for scaling in scalings])
    return Rescaled(bare(bias), jnp.asarray(numbers.reshape(bias.shape)))


def bare(weight: Any) -> Any:
    """A weight without the adapter that it has, of any kind."""
    return weight.w if isinstance(weight, ADAPTED) else weight


def without_factors(weight: Any) -> Any:
    """A weight without the factors that it has, and with its multipliers."""
    return weight.w if isinstance(weight, FACTORED) else weight

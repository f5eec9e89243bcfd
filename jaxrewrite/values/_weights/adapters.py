"""How the adapter of a weight begins: its factors, and what of the weight stays beside them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

import jaxrewrite

from .._base.structured import padded, promoted
from .dora import Dora
from .lora import Lora
from .rescaled import Rescaled
from .weight_axes import WeightAxes


METHODS = ("lora", "dora", "vera")
INITS = ("random", "pissa", "loftq")

# How often LoftQ rounds what the change leaves, and takes the best change of what that loses.
_TURNS = 5

# What multiplies each rank of VeRA at the start: table 6 of the paper.
_START_OF_VERA = 0.1


class Adapter(NamedTuple):
    """What the adapters of all chosen weights have in common.

    ``rounded`` quantises what stays beside the change, given the axes of the weight and it.
    ``most`` are the largest numbers of rows and columns that a weight has, for the random factors
    that VeRA has in common.
    """

    rank: int
    scale: float
    method: str
    init: str
    rounded: Callable[[WeightAxes, Any], Any] | None
    most: tuple[int, int] = (1, 1)


def adapted(w: Any, axes: WeightAxes, key: Array, adapter: Adapter) -> Any:
    """A weight with a new adapter."""
    rounded = adapter.rounded
    if rounded is None:
        keep = lambda w: w
    else:
        keep = lambda w: rounded(axes, jaxrewrite.materialise(w))
    if adapter.init == "random":
        base, (a, b) = keep(w), _random(w, axes, key, adapter.rank)
    else:
        base, a, b = _from_svd(jaxrewrite.materialise(w), axes, adapter, keep)
    if adapter.method == "vera":
        return _vera(base, axes, key, adapter)
    lora = Lora(base, a, b, adapter.scale, *axes)
    return Dora.of(lora) if adapter.method == "dora" else lora


def lengths_of(w: Any, axes: WeightAxes) -> tuple[list[int], list[int], list[int]]:
    """The lengths of the batch axes, the rows and the columns."""
    batch = [i for i in range(w.ndim) if i not in (*axes.rows, *axes.cols)]
    sizes = [[w.shape[i] for i in group] for group in (batch, *axes)]
    return sizes[0], sizes[1], sizes[2]


def _random(w: Any, axes: WeightAxes, key: Array, rank: int) -> tuple[Array, Array]:
    batch, rows, cols = lengths_of(w, axes)
    a = jax.random.normal(key, (*batch, *rows, rank), w.dtype)
    b = jnp.zeros((*batch, rank, *cols), w.dtype)
    return a / math.sqrt(max(math.prod(rows), 1)), b


def _from_svd(
    w: Any, axes: WeightAxes, adapter: Adapter, keep: Callable[[Any], Any]
) -> tuple[Any, Array, Array]:
    """The base and the factors of PiSSA, or of LoftQ."""
    nearest = lambda x: _nearest(x, axes, adapter)
    change = lambda a, b: Lora(jnp.zeros_like(w), a, b, adapter.scale, *axes).materialise()
    if adapter.init == "pissa":
        a, b = nearest(w)
        return keep(w - change(a, b)), a, b
    base = keep(w)
    a, b = nearest(w - jaxrewrite.materialise(base))
    for _ in range(_TURNS - 1):
        base = keep(w - change(a, b))
        a, b = nearest(w - jaxrewrite.materialise(base))
    return base, a, b


def _nearest(x: Any, axes: WeightAxes, adapter: Adapter) -> tuple[Array, Array]:
    """The factors of the change that is the nearest to an array: its largest singular values."""
    batch, rows, cols = lengths_of(x, axes)
    rank, dtype = adapter.rank, promoted(x.dtype, jnp.float32)
    order = [i for i in range(x.ndim) if i not in (*axes.rows, *axes.cols)]
    moved = jnp.transpose(x.astype(dtype), (*order, *axes.rows, *axes.cols))
    matrix = moved.reshape(*batch, math.prod(rows), math.prod(cols))
    u, s, vh = jnp.linalg.svd(matrix, full_matrices=False)
    more = max(rank - s.shape[-1], 0)  # A change of a higher rank than the weight has.
    root = jnp.sqrt(s / adapter.scale)
    a = padded(u * root[..., None, :], -1, 0, more)[..., :rank]
    b = padded(root[..., None] * vh, -2, 0, more)[..., :rank, :]
    a, b = a.reshape(*batch, *rows, rank), b.reshape(*batch, rank, *cols)
    return a.astype(x.dtype), b.astype(x.dtype)


def _vera(base: Any, axes: WeightAxes, key: Array, adapter: Adapter) -> Lora:
    """Random factors that stay as they are, with a trained number for each rank and column.

    All weights with this key have the first rows and columns of the same ones.
    """
    batch, rows, cols = lengths_of(base, axes)
    (most_rows, most_cols), rank, dtype = adapter.most, adapter.rank, base.dtype
    kaiming = jax.nn.initializers.he_uniform()
    keys = jax.random.split(key)
    a = kaiming(keys[0], (most_rows, rank), dtype)[: math.prod(rows)]
    b = kaiming(keys[1], (rank, most_cols), dtype)[:, : math.prod(cols)]
    a = jnp.broadcast_to(a.reshape(*rows, rank), (*batch, *rows, rank))
    b = jnp.broadcast_to(b.reshape(rank, *cols), (*batch, rank, *cols))
    ones = [1] * len(rows)
    of_ranks = jnp.full((*batch, *ones, rank), _START_OF_VERA, dtype)
    of_cols = jnp.zeros((*batch, 1, *cols), dtype)
    factors = Rescaled(a, of_ranks), Rescaled(b, of_cols)
    return Lora(base, *factors, adapter.scale, *axes)

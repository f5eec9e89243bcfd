"""Sums of arrays of low rank, whose rank is the sum of the ranks, and concatenations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

import jaxrewrite
from jaxrewrite.primitives import ADDITIVE

from .._base.sizes import is_at_most
from .low_rank import LowRank, factors, plus
from .low_rank_factors import RANK, Factor, align, alike, joined, resized, sizes_of
from .low_rank_functions import LINEAR
from .sum import sum_of


def is_low(v: Any) -> bool:
    """Whether the rank is not higher than the full rank of an array of this shape."""
    a, b = factors(v)
    ranks = (
        math.prod(n for label, n in sizes_of(f).items() if label not in other.labels)
        for f, other in ((a, b), (b, a))
    )
    return all(is_at_most(v.rank, full) for full in ranks)


@jaxrewrite.register(*ADDITIVE)
def added(v: LowRank, w: LowRank, *, primitive, **params) -> Any:
    total = plus(v, LINEAR["neg"](w) if primitive.name == "sub" else w)
    return total if total is not NotImplemented and is_low(total) else NotImplemented


def concatenated(vs: Sequence[LowRank], dimension: int) -> Any:
    """Concatenate factors along a batch axis; along other axes add arrays padded by zeros."""
    like = factors(vs[0])
    pairs = [align(factors(v), like) for v in vs]
    if None in pairs:
        return NotImplemented
    a, b = zip(*pairs, strict=True)
    rows, cols = vs[0].rows, vs[0].cols
    if dimension in like[0].labels and dimension in like[1].labels:
        a, b = (alike(RANK, *column) for column in (a, b))
        return LowRank(joined(dimension, *a).x, joined(dimension, *b).x, rows, cols)
    sizes = [v.shape[dimension] for v in vs]

    def in_place(column: Sequence[Factor]) -> Any:
        if dimension not in column[0].labels:
            return column
        before = [sum(sizes[:i]) for i in range(len(sizes))]
        return [
            resized(f, dimension, low, sum(sizes) - low - n)
            for f, low, n in zip(column, before, sizes, strict=True)
        ]

    a, b = (joined(RANK, *in_place(column)) for column in (a, b))
    joint = LowRank(a.x, b.x, rows, cols)
    return joint if is_low(joint) else NotImplemented


@jaxrewrite.register(*ADDITIVE, exchange="types")
def _(x: LowRank, y: Array, *, primitive, **params) -> Any:
    """A lazy sum with an array of any rank."""
    shape = x.shape if isinstance(x, LowRank) else y.shape
    if jnp.broadcast_shapes(x.shape, y.shape) != shape:
        return NotImplemented
    if primitive.name == "sub":
        y = LINEAR["neg"](y) if isinstance(y, LowRank) else -y
    return sum_of(
        [z if isinstance(z, LowRank) else jnp.broadcast_to(z, shape) for z in (x, y)]
    )


@jaxrewrite.register("concatenate")
def _(*vs: LowRank, dimension, **params) -> Any:
    return concatenated(vs, dimension)

"""Products of arrays of low rank: entry by entry with arrays, and products of matrices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import ArrayLike

import jaxrewrite
from jaxrewrite import ArrayValue

from .._base.contract import Labels, contract, intermediate, labels, transpose
from .._base.linear import multiply_by_parts
from .._base.ragged import contract_groups, groups_of
from .._base.structured import inexact
from .low_rank import LowRank, build, factors, of_one_dtype
from .low_rank_factors import RANK, Factor, by_axis, sizes_of, smaller, without
from .low_rank_functions import converted


def times_array(v: LowRank, y: Any, primitive: Any, **params: Any) -> Any:
    """``v * y`` or ``v / y``, if ``y`` changes only along axes of one factor."""
    if primitive.name == "div" and not (inexact(v) and v.rank):
        return NotImplemented  # With rank zero no factor holds the zeros to divide.
    op = jnp.divide if primitive.name == "div" else jnp.multiply
    pair = list(factors(v))
    shape = jnp.shape(y)
    changing = [i for i, n in enumerate(shape) if n != 1]
    fitting = [i for i, f in enumerate(pair) if all(k in f.labels for k in changing)]
    if not fitting:
        return NotImplemented
    i = smaller(*pair)
    i = i if i in fitting else fitting[0]
    # If y changes along a batch axis of size 1, that axis becomes one of this factor alone.
    sizes = sizes_of(*pair)
    pair[1 - i] = without(pair[1 - i], [k for k in changing if sizes[k] == 1])
    if shape:
        aligned = without(
            Factor(y, tuple(range(len(shape)))),
            [k for k in range(len(shape)) if k not in pair[i].labels],
        )
        wanted = tuple(label for label in pair[i].labels if label != RANK)
        y = transpose(aligned.x, aligned.labels, wanted)
        y = lax.expand_dims(y, [pair[i].labels.index(RANK)])
    pair[i] = pair[i]._replace(x=op(pair[i].x, y))
    return build(pair[0], pair[1], range(v.ndim))


@jaxrewrite.register("mul", exchange="operands")
@jaxrewrite.register("div")
def _(v: LowRank, y: ArrayLike, *, primitive, **params) -> Any:
    return times_array(v, y, primitive)


@jaxrewrite.register("dot_general", types=(LowRank, LowRank))
@jaxrewrite.register(
    "dot_general", types=(LowRank, ArrayLike | ArrayValue), exchange="types"
)
def dot(x: Any, y: Any, *, dimension_numbers: Any, **params: Any) -> Any:
    """`jax.lax.dot_general` of two operands, at least one of them a `LowRank`."""
    if params.get("out_sharding") is not None:
        return NotImplemented  # It does not say how to shard the intermediate product.
    if not multiply_by_parts(x, y, params, LowRank):
        return NotImplemented
    names = labels(dimension_numbers, x.ndim, y.ndim)
    # The factors of the operand with the lower rank give the result that rank.
    is_second = not isinstance(x, LowRank) or (isinstance(y, LowRank) and y.rank < x.rank)
    v, labels_of_v, other, labels_of_other = (
        (y, names.y, x, names.x) if is_second else (x, names.x, y, names.y)
    )
    first, second, middle = _in_order(
        v, labels_of_v, other.shape, labels_of_other, names.out, is_second
    )
    x = contract(
        first.x, first.labels, other, labels_of_other, middle, **intermediate(params)
    )
    if not isinstance(other, ArrayValue):
        return contract(x, middle, second.x, second.labels, names.out, **params)
    result = build(Factor(x, middle), second, names.out)
    dtype = params["preferred_element_type"] or jnp.result_type(v.dtype, other.dtype)
    if isinstance(result, LowRank) and result.dtype != dtype:
        return converted(result, new_dtype=dtype)
    return result.astype(dtype)


@jaxrewrite.register("ragged_dot_general")
def ragged_dot(
    x: ArrayLike,
    v: LowRank,
    sizes: ArrayLike,
    *,
    precision: Any,
    preferred_element_type: Any,
    **numbers: Any,
) -> Any:
    """`jax.lax.ragged_dot` of rows and a stack of matrices of low rank."""
    groups = groups_of(x, v, sizes, **numbers)
    params = {"precision": precision, "preferred_element_type": preferred_element_type}
    if groups is None or not inexact(v):
        return NotImplemented
    first, second, middle = _in_order(
        v, groups.y, jnp.shape(x), groups.x, groups.out, is_second=True
    )
    middle = tuple(label for label in middle if label != groups.group)
    y = contract_groups(
        x, groups.x, first.x, first.labels, middle, groups, **intermediate(params)
    )
    return contract_groups(y, middle, second.x, second.labels, groups.out, groups, **params)


def _in_order(
    v: LowRank,
    labels_of_v: Labels,
    shape: Sequence[int],
    others: Labels,
    out: Labels,
    is_second: bool,
) -> tuple[Factor, Factor, Labels]:
    """The factors in the order that takes fewer multiplications, and the axes in between."""
    pair = [
        Factor(f.x, tuple(by_axis(f, labels_of_v, RANK))) for f in factors(of_one_dtype(v))
    ]
    sizes = sizes_of(*pair) | dict(zip(others, shape, strict=True))

    def between(first: Factor, second: Factor) -> Labels:
        kept = {*out, *second.labels}
        operands = (others, first.labels) if is_second else (first.labels, others)
        batch = [label for label in first.labels if label in others and label in kept]
        free = [label for labels in operands for label in labels if label in kept]
        return tuple(dict.fromkeys(batch + free))

    def cost(first: Factor, second: Factor, middle: Labels) -> int:
        steps = (first.labels, others), (middle, second.labels)
        return sum(math.prod(sizes[label] for label in {*xs, *ys}) for xs, ys in steps)

    orders = [(f, g, between(f, g)) for f, g in (pair, pair[::-1])]
    return min(orders, key=lambda order: cost(*order))

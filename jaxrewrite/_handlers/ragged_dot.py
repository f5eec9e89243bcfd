"""``ragged_dot_general``, the product of groups: what a type knows of products, it knows of these.

`lax.ragged_dot` multiplies each group of rows with a matrix of its own, as a mixture of experts does.
That is a batch of products, one for each group, in which the rows of all other groups are zeros, and
their sum. JAX compiles it so for a CPU. Elsewhere a product of groups may take less time, so a type
that multiplies arrays inside of it has a rule of its own, which leaves the groups to JAX; and so does
a type that would become dense for the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import ArrayLike

from .._axes.groups import members
from .._core.avals import is_annotation
from .._core.errors import MaterialisationError
from .._core.rules import register
from .._core.value import Value, is_value
from .._staging.transform import transform


# All rules of a type come first.
_LAST = -1


@register("ragged_dot_general", precedence=_LAST)
def _(
    x: ArrayLike | Value,
    y: ArrayLike | Value,
    sizes: ArrayLike,
    *,
    ragged_dot_dimension_numbers: lax.RaggedDotDimensionNumbers,
    group_offset: jax.Array | None,
    out_sharding: jax.sharding.Sharding | None,
    **params: Any,
) -> Any:
    numbers = ragged_dot_dimension_numbers
    (ragged,), (x_batch, _) = (
        numbers.lhs_ragged_dimensions,
        numbers.dot_dimension_numbers[1],
    )
    if group_offset is not None or out_sharding is not None:
        return NotImplemented
    if ragged in x_batch:
        # Each element of a batch has a product of its own, in whichever group it is.
        multiply = lambda x, y: lax.dot_general(
            x, y, numbers.dot_dimension_numbers, **params
        )
        return transform(multiply)(x, y)
    if is_value(x) and not (is_annotation(x) or is_annotation(y)):
        # Its structure would be lost among the zeros of other groups.
        return NotImplemented

    def multiply_groups(x: jax.Array, y: jax.Array, sizes: jax.Array) -> jax.Array:
        is_in_group = members(sizes, x.shape, ragged, _outer(x.ndim, numbers))
        rows = jnp.where(is_in_group, x[None], jnp.zeros((), x.dtype))
        if not numbers.rhs_group_dimensions:
            return _of_sums(rows, y, numbers, params)
        return _of_rows(rows, y, numbers, params)

    if is_annotation(x) or is_annotation(y):
        return transform(multiply_groups)(x, y, sizes)
    try:
        return transform(multiply_groups, materialise="forbid")(x, y, sizes)
    except MaterialisationError:
        return NotImplemented  # Of a dense array JAX knows a better product.


def _outer(ndim: int, numbers: lax.RaggedDotDimensionNumbers) -> tuple[int, ...]:
    """The axes of the rows along which the sizes of groups may differ."""
    (ragged,) = numbers.lhs_ragged_dimensions
    (summed, _), (batch, _) = numbers.dot_dimension_numbers
    if ragged in summed:
        before = list(summed)
    else:
        before = [i for i in range(ndim) if i not in (*summed, *batch)]
    return (*batch, *before[: before.index(ragged)])


def _of_rows(
    rows: jax.Array,
    y: jax.Array,
    numbers: lax.RaggedDotDimensionNumbers,
    params: dict[str, Any],
) -> jax.Array:
    """The products of each row, one of which is not zero: that with the matrix of its group."""
    (x_summed, y_summed), (x_batch, y_batch) = numbers.dot_dimension_numbers
    batch = (0, *_after(x_batch)), (*numbers.rhs_group_dimensions, *y_batch)
    products = lax.dot_general(rows, y, ((_after(x_summed), y_summed), batch), **params)
    return jnp.sum(products, 0, dtype=products.dtype)


def _of_sums(
    rows: jax.Array,
    y: jax.Array,
    numbers: lax.RaggedDotDimensionNumbers,
    params: dict[str, Any],
) -> jax.Array:
    """The products that sum the rows of a group: one for each group, along a first axis."""
    (x_summed, y_summed), (x_batch, y_batch) = numbers.dot_dimension_numbers
    pairs = (_after(x_summed), y_summed), (_after(x_batch), y_batch)
    return jnp.moveaxis(lax.dot_general(rows, y, pairs, **params), len(x_batch), 0)


def _after(axes: Sequence[int]) -> tuple[int, ...]:
    """Axes of the rows, behind that of the groups."""
    return tuple(axis + 1 for axis in axes)

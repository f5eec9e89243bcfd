"""Products of groups of rows with labelled axes, each group with a matrix of its own.

They are those of `jax.lax.ragged_dot`: the rows of an array lie one group after the other, and the
second array has an axis of the groups. The result has the axis of the rows, which tells the group,
but none of the groups. Rows after the last group give zeros.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

import jaxrewrite
from jaxrewrite._axes.groups import members

from .contract import Labels, contract, labels, transpose


class Groups(NamedTuple):
    """The labels of a product of groups, and of those sizes.

    ``rows`` is the label of the rows, and ``group`` that of the groups. ``outer`` are the labels
    along which the sizes differ.
    """

    x: Labels
    y: Labels
    out: Labels
    rows: Hashable
    group: Hashable
    outer: Labels
    sizes: Any


def groups_of(
    x: Any,
    y: Any,
    sizes: Any,
    *,
    ragged_dot_dimension_numbers: lax.RaggedDotDimensionNumbers,
    group_offset: Any,
    out_sharding: Any,
    **params: Any,
) -> Groups | None:
    """The labels of a product, or ``None`` if it is another one, such as that of a derivative."""
    numbers = ragged_dot_dimension_numbers
    is_placed = group_offset is not None or out_sharding is not None
    if is_placed or not numbers.rhs_group_dimensions:
        return None
    named = labels(numbers.dot_dimension_numbers, jnp.ndim(x), jnp.ndim(y))
    (rows,), (group,) = (
        [named.x[i] for i in numbers.lhs_ragged_dimensions],
        [named.y[i] for i in numbers.rhs_group_dimensions],
    )
    out = tuple(label for label in named.out if label != group)
    outer = out[: out.index(rows)] if jnp.ndim(sizes) > 1 else ()
    return Groups(named.x, named.y, out, rows, group, outer, sizes)


def contract_groups(
    x: Any,
    xs: Labels,
    y: Any,
    ys: Labels,
    out: Labels,
    groups: Groups,
    *,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Any:
    """Multiply each group of rows, and sum over the labels that both have and ``out`` lacks.

    A second array that has no axis of the groups is the same for all rows.
    """
    params = {"precision": precision, "preferred_element_type": preferred_element_type}
    if groups.group not in ys:
        params = {name: param for name, param in params.items() if param is not None}
        return contract(x, xs, y, ys, out, **params)
    batch = [label for label in xs if label in ys and label in out]
    summed = [label for label in xs if label in ys and label not in batch]
    outer: Labels = ()
    if groups.outer:
        # JAX takes all axes before that of the rows for axes of the sizes.
        outer = tuple(dict.fromkeys((*batch, *groups.outer)))
        ordered = tuple(dict.fromkeys((*outer, groups.rows, *xs)))
        x, xs = transpose(x, xs, ordered), ordered
    free = [label for label in xs if label not in ys]
    numbers = lax.RaggedDotDimensionNumbers(
        (
            (_positions(summed, xs), _positions(summed, ys)),
            (_positions(batch, xs), _positions(batch, ys)),
        ),
        _positions([groups.rows], xs),
        _positions([groups.group], ys),
    )
    dtype = jnp.result_type(x.dtype, y.dtype)
    product = jaxrewrite.bind(
        "ragged_dot_general",
        x.astype(dtype),
        y.astype(dtype),
        _along(outer, groups, dict(zip(xs, x.shape, strict=True))),
        ragged_dot_dimension_numbers=numbers,
        group_offset=None,
        out_sharding=None,
        **params,
    )
    rest = [label for label in ys if label not in (*xs, groups.group)]
    return transpose(product, (*batch, *free, *rest), out)


def _along(outer: Labels, groups: Groups, lengths: Mapping[Hashable, int]) -> Any:
    """The sizes along these axes, along some of which they are the same."""
    if outer == groups.outer:
        return groups.sizes
    count = groups.sizes.shape[-1]
    kept = tuple(label for label in outer if label in groups.outer)
    sizes = transpose(groups.sizes, (*groups.outer, groups.group), (*kept, groups.group))
    where = [*_positions(kept, outer), len(outer)]
    return lax.broadcast_in_dim(sizes, [*map(lengths.get, outer), count], where)


def _positions(some: Sequence[Hashable], labels: Labels) -> tuple[int, ...]:
    return tuple(labels.index(label) for label in some)


def of_rows(shared: Any, of_shared: Labels, x: Any, groups: Groups) -> tuple[Any, Labels]:
    """What the rows of a group share as numbers of each row, and their labels.

    Rows after the last group have zeros.
    """
    if groups.group not in of_shared:
        return shared, of_shared
    lengths = dict(zip(groups.x, x.shape, strict=True))
    rows = (*groups.outer, groups.rows)
    rest = tuple(label for label in of_shared if label not in (*rows, groups.group))
    places = range(len(groups.outer))
    shape = [lengths[label] for label in rows]
    is_in_group = members(groups.sizes, shape, len(places), places).astype(shared.dtype)
    numbers = contract(
        *(is_in_group, (groups.group, *rows)),
        *(shared, of_shared),
        (*rows, *rest),
        precision=lax.Precision.HIGHEST,
    )
    return numbers, (*rows, *rest)

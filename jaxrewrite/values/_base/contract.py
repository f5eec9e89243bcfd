"""Products of arrays and values with labelled axes.

A label is anything hashable. Two axes with the same label have the same index, as in
``einsum``. This module covers the part of ``einsum`` that one ``dot_general`` computes.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Shaped

import jaxrewrite
from jaxrewrite import ArrayValue


Labels = tuple[Hashable, ...]


class ProductLabels(NamedTuple):
    """The labels of the operands and of the result of a ``dot_general``."""

    x: Labels
    y: Labels
    out: Labels


def labels(
    dimension_numbers: lax.DotDimensionNumbers, x_ndim: int, y_ndim: int
) -> ProductLabels:
    """Label the axes of a ``dot_general`` with these ``dimension_numbers``."""
    (x_contracted, y_contracted), (x_batch, y_batch) = dimension_numbers
    x = list(range(x_ndim))
    y = list(range(x_ndim, x_ndim + y_ndim))
    for i, j in zip((*x_contracted, *x_batch), (*y_contracted, *y_batch), strict=True):
        y[j] = i
    out = [x[i] for i in x_batch]
    out += [label for label in x if label not in y]
    out += [label for label in y if label not in x]
    return ProductLabels(tuple(x), tuple(y), tuple(out))


class Sides(NamedTuple):
    """The operands of a ``dot_general``, of which one is of a type, and the labels as it sees them.

    ``position`` is that of the value ``v``, and ``other`` is the other operand.
    """

    position: int
    v: Any
    other: Any
    of_v: Labels
    of_other: Labels
    out: Labels

    def operands(self, v: Any, other: Any) -> tuple[Any, Any]:
        """Operands in their order, for those in the place of the value and of the other one."""
        return (other, v) if self.position else (v, other)


def sides(cls: type, x: Any, y: Any, dimension_numbers: lax.DotDimensionNumbers) -> Sides:
    """The operands as seen by the first one that is a ``cls``."""
    named = labels(dimension_numbers, jnp.ndim(x), jnp.ndim(y))
    if isinstance(x, cls):
        return Sides(0, x, y, named.x, named.y, named.out)
    return Sides(1, y, x, named.y, named.x, named.out)


def transpose(
    x: Shaped[Array, "*axes"] | ArrayValue, labels: Labels, wanted: Labels
) -> Any:
    """``x`` with its axes in the wanted order."""
    if labels == wanted:
        return x
    permutation = tuple(labels.index(label) for label in wanted)
    if isinstance(x, jaxrewrite.Value):
        return jaxrewrite.bind(lax.transpose_p, x, permutation=permutation)
    return lax.transpose(x, permutation)


def along_result(shared: Shaped[Array, "*axes"], labels: Labels, out: Labels) -> Any:
    """The numbers that entries of an operand share, along the axes of the result."""
    kept = tuple(label for label in out if label in labels)
    shared = shared.squeeze(tuple(i for i, label in enumerate(labels) if label not in out))
    shared = transpose(shared, tuple(label for label in labels if label in kept), kept)
    return lax.expand_dims(shared, [i for i, label in enumerate(out) if label not in kept])


def contract(
    x: Shaped[Array, "*xs"] | ArrayValue,
    xs: Sequence[Hashable],
    y: Shaped[Array, "*ys"] | ArrayValue,
    ys: Sequence[Hashable],
    out: Sequence[Hashable],
    **params: Any,
) -> Any:
    """Multiply, and sum over the labels that both operands have and ``out`` lacks.

    A label that only one operand has must be in ``out``. If one order of the operands gives
    the axes of ``out`` in the wanted order, no axis moves. ``params`` are parameters of
    ``dot_general``; ``preferred_element_type`` is the dtype of the result.
    """
    xs, ys, out = tuple(xs), tuple(ys), tuple(out)
    in_both = [label for label in xs if label in ys]
    batch = [label for label in out if label in in_both]
    summed = [label for label in in_both if label not in batch]
    x_free = [label for label in xs if label not in ys]
    y_free = [label for label in ys if label not in xs]
    if (*batch, *x_free, *y_free) != out and (*batch, *y_free, *x_free) == out:
        return contract(y, ys, x, xs, out, **params)
    positions = lambda some, labels: tuple(labels.index(label) for label in some)
    numbers = (
        (positions(summed, xs), positions(summed, ys)),
        (positions(batch, xs), positions(batch, ys)),
    )
    product = dot_general(x, y, numbers, **params)
    return transpose(product, (*batch, *x_free, *y_free), out)


def dot_general(
    x: Shaped[Array, ...] | ArrayValue,
    y: Shaped[Array, ...] | ArrayValue,
    dimension_numbers: lax.DotDimensionNumbers,
    **params: Any,
) -> Any:
    """`jax.lax.dot_general` of arrays or values, of any dtypes."""
    dtype = jnp.result_type(x.dtype, y.dtype)
    x, y = (in_dtype(operand, dtype) for operand in (x, y))
    params = {
        "precision": None,
        "preferred_element_type": jnp.dtype(dtype),
        "out_sharding": None,
    } | params
    if isinstance(x, jaxrewrite.Value) or isinstance(y, jaxrewrite.Value):
        return jaxrewrite.bind(
            lax.dot_general_p, x, y, dimension_numbers=dimension_numbers, **params
        )
    return lax.dot_general(x, y, dimension_numbers, **params)


def is_or_none(preferred: Any, dtype: Any) -> bool:
    """Whether a dtype that a result should have is this dtype, or ``None``.

    ``preferred in (None, dtype)`` does not tell that, because float64 equals ``None`` in NumPy.
    """
    return preferred is None or preferred == dtype


def in_dtype(x: Any, dtype: Any) -> Any:
    """An array or value in a dtype; itself if it has that."""
    return x if x.dtype == dtype else x.astype(dtype)


def intermediate(params: dict[str, Any]) -> dict[str, Any]:
    """The parameters of an intermediate product of a ``dot_general`` with ``params``."""
    return {"precision": params.get("precision")}

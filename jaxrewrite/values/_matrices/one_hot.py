"""`OneHot` and `Picked`: matrices with one entry a row."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Inexact, Int

import jaxrewrite
from jaxrewrite import bind, register
from jaxrewrite.extend import Zeros

from .._base.gathers import fills
from .._base.sizes import checked_size
from .._base.structured import (
    are_below,
    are_rows_of_identity,
    disproved,
    inexact,
    is_class,
    over_batch,
    promoted,
    total,
    zero_unless,
)
from .matrix import Matrix, check_has_matrices, on_axis
from .monomial import Permutation, or_zero


class Rows(Matrix):
    """Base class of matrices with at most one entry a row, and of their transposes."""

    _is_base = True
    _required = (*Matrix._required, "weights")
    entries: ClassVar[str | None] = "pattern"
    movable: ClassVar[bool] = True

    if TYPE_CHECKING:  # Each subclass has the fields indices, classes and axis.

        def __getattr__(self, name: str) -> Any: ...

    @abc.abstractmethod
    def weights(self) -> Any:
        r"""The entries, of shape (\*batch, n)."""

    def materialise(self) -> Any:
        there = is_class(self.columns(), self.classes)
        dense = zero_unless(there, self.weights()[..., None])
        return dense if self.axis == -1 else jnp.swapaxes(dense, -2, -1)

    def transposed(self) -> Any:
        held: Any = self
        return dataclasses.replace(held, axis=-3 - self.axis)

    def weighted(self, x: Any, axis: int) -> Any:
        """An array with its rows, along an axis, multiplied by the entries."""
        return on_axis(self.weights(), len(self.batch), x.ndim, axis) * x

    def columns(self) -> Any:
        """The indices in a wide signed dtype; ``classes`` for one out of range, a row of zeros."""
        indices = self.indices
        if indices.dtype.itemsize < 4:
            indices = indices.astype(jnp.int32)
        inside = (indices >= 0) & (indices < self.classes)
        signed = f"int{8 * indices.dtype.itemsize}"
        return jnp.where(inside, indices, self.classes).astype(signed)

    def inside(self) -> Any:
        return self.columns() < self.classes

    def shape_of(self, dtype: Any) -> Any:
        *batch, n = self.indices.shape
        shape = (n, self.classes) if self.axis == -1 else (self.classes, n)
        return jax.core.ShapedArray((*batch, *shape), dtype)

    def apply(self, x: Any, axis: int, precision: Any = None) -> Any:
        columns = self.columns()
        if self.axis == -1:
            return self.weighted(_rows_at(x, columns, axis), axis)
        return _scattered(self.weighted(x, axis), columns, self.classes, axis)

    def map_entries(self, fn: Callable[..., Any], *others: Any) -> Any:
        weights = fn(*(v.weights() for v in (self, *others)))
        return Picked(weights, self.indices, self.classes, self.axis)

    def as_picked(self) -> Picked:
        return Picked(self.weights(), self.indices, self.classes, self.axis)

    def join(self, other: Any) -> Any:
        if isinstance(other, Zeros):
            return or_zero(self.as_picked())
        if not isinstance(other, Rows) or self.axis != other.axis:
            return NotImplemented
        return self.as_picked(), other.as_picked()

    def scaled_rows(self, factors: Any) -> Any:
        if self.axis == -2:
            factors = _rows_at(factors, self.columns(), factors.ndim - 1)
        return self.map_entries(lambda weights: weights * factors)

    def times(self, other: Any) -> Any:
        other = _as_rows(other)
        if not isinstance(other, Rows) or self.axis != other.axis:
            return NotImplemented
        if self.axis == -2:  # (A B)^T = B^T A^T
            return other.transposed().times(self.transposed()).transposed()
        columns, last = self.columns(), other.indices.ndim - 1
        missing = jnp.take_along_axis(
            other.columns(), columns, last, mode="fill", fill_value=other.classes
        )
        if other.classes <= jnp.iinfo(other.indices.dtype).max:
            missing = missing.astype(other.indices.dtype)
        if isinstance(self, OneHot) and isinstance(other, OneHot):
            return OneHot(missing, other.classes, -1, self.of_dtype)
        weights = self.weights() * _rows_at(other.weights(), columns, last)
        return Picked(weights, missing, other.classes, -1)

    def rtimes(self, other: Any) -> Any:
        other = _as_rows(other, self.axis)
        return other.times(self) if isinstance(other, Rows) else NotImplemented

    def hadamard(self, other: Any) -> Any:
        if not isinstance(other, Rows) or self.axis != other.axis:
            i = jnp.arange(self.indices.shape[-1])
            j = jnp.clip(self.columns(), 0, self.classes - 1)
            return self._times_entries(other, *((i, j) if self.axis == -1 else (j, i)))
        both = self.columns() == other.columns()
        return self.map_entries(lambda v, w: zero_unless(both, v * w), other)

    def pick(self, dense: Any) -> Any:
        rows = dense if self.axis == -1 else jnp.swapaxes(dense, -2, -1)
        at = self.columns()[..., None]
        picked = jnp.take_along_axis(rows, at, -1, mode="fill", fill_value=0)[..., 0]
        return Picked(picked, self.indices, self.classes, self.axis)

    def entries_at(self, i: Any, j: Any) -> Any:
        if self.axis == -2:
            i, j = j, i
        return zero_unless(self.indices[..., i] == j, self.weights()[..., i])

    def known_diagonal(self) -> Any:
        i = jnp.arange(min(self.shape[-2:]))
        return self.entries_at(i, i)


class OneHot(Rows):
    r"""Rows of the identity, :math:`H_{ic} = \delta_{k_i c}`, like `jax.nn.one_hot`.

    ``v @ table`` looks up rows of a table, and ``v.T @ x`` adds the rows of an array by
    their class. Neither multiplies. An entry-by-entry product with an array is a `Picked`,
    so that a cross-entropy takes one number a row.

    In products its zeros stay zeros, even times infinity or NaN, unless the rules
    `strict_zeros` are in force.

    Attributes
    ----------
    indices
        The class of each row, integers of shape (\*batch, n).
    classes
        The number of classes. The array has shape (\*batch, n, classes).
    axis
        -1, or -2 for the transpose.
    of_dtype
        The dtype of the array.

    Raises
    ------
    ValueError
        If ``indices`` has no axis, is not of integers, or is not from 0 to classes - 1; or
        if ``axis`` is neither -1 nor -2. If the numbers are not known, they are not
        checked, and a row with an index out of range is zero.
    TypeError
        If ``classes`` is not an integer.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, jaxrewrite
    >>> from jaxrewrite.values import OneHot
    >>> labels = OneHot(jnp.array([2, 0]), 3)
    >>> labels @ jnp.array([10.0, 20.0, 30.0])
    Array([30., 10.], dtype=float32)
    >>> loss = lambda labels, logits: -(labels * jax.nn.log_softmax(logits)).sum(-1)
    >>> jaxrewrite.transform(loss, materialise="forbid")(labels, jnp.zeros((2, 3)))
    Array([1.0986, 1.0986], dtype=float32)
    """

    indices: Int[Array, "*batch n"]
    classes: int = jaxrewrite.field(static=True)
    axis: int = jaxrewrite.field(static=True, default=-1)
    of_dtype: Any = jaxrewrite.field(static=True, default=jnp.dtype("float32"))

    def __post_init__(self) -> None:
        object.__setattr__(self, "of_dtype", jax.dtypes.canonicalize_dtype(self.of_dtype))
        _check(self)

    @classmethod
    def from_dense(cls, matrix: Any) -> OneHot:
        r"""The `OneHot` of a dense array of shape (\*batch, n, classes).

        Raises
        ------
        ValueError
            If ``matrix`` has fewer than two axes, or if its numbers are known and a row is
            not a row of the identity.

        Examples
        --------
        >>> import jax.numpy as jnp
        >>> from jaxrewrite.values import OneHot
        >>> OneHot.from_dense(jnp.eye(4)[1:3]).indices
        Array([1, 2], dtype=int32)
        """
        check_has_matrices("OneHot", "matrix", matrix)
        if disproved(are_rows_of_identity, matrix):
            raise ValueError("OneHot: matrix has rows that are not rows of the identity.")
        return cls(jnp.argmax(matrix, -1), matrix.shape[-1], -1, jnp.result_type(matrix))

    def aval(self) -> Any:
        return self.shape_of(self.of_dtype)

    def weights(self) -> Any:
        return jnp.ones(self.indices.shape, self.of_dtype)

    def weighted(self, x: Any, axis: int) -> Any:
        return x

    def tangent(self, leaf_tangents: Any) -> Any:
        return NotImplemented  # The tangent of integers is float0, not a one-hot matrix.

    def lift_tangent(self, tangent: Any) -> Any:
        return NotImplemented

    def cast(self, dtype: Any) -> Any:
        return OneHot(self.indices, self.classes, self.axis, dtype)


class Picked(Rows):
    r"""One entry a row, :math:`V_{ic} = v_i \delta_{k_i c}`, and zeros.

    It is the entry-by-entry product of a `OneHot` and an array. A sum over the classes
    gives the entries themselves. Products with arrays look up or add rows, as for a
    `OneHot`.

    In products its zeros stay zeros, even times infinity or NaN, unless the rules
    `strict_zeros` are in force.

    Attributes
    ----------
    values
        The entries, of shape (\*batch, n).
    indices, classes, axis
        The places of the entries, as in `OneHot`.

    Raises
    ------
    ValueError
        As for `OneHot`, or if ``values`` and ``indices`` have different shapes.

    Examples
    --------
    >>> import jax.numpy as jnp, jaxrewrite
    >>> from jaxrewrite.values import OneHot
    >>> v = OneHot(jnp.array([2, 0]), 3) * jnp.arange(6.0).reshape(2, 3)
    >>> v
    Picked([[ ·  · 2.]
            [3.  ·  ·]], classes=3, dtype=float32)
    >>> jaxrewrite.materialise(v)
    Array([[0., 0., 2.],
           [3., 0., 0.]], dtype=float32)
    >>> jaxrewrite.transform(lambda v: v.sum(-1))(v)
    Array([2., 3.], dtype=float32)
    """

    values: Inexact[Array, "*batch n"]
    indices: Int[Array, "*batch n"]
    classes: int = jaxrewrite.field(static=True)
    axis: int = jaxrewrite.field(static=True, default=-1)

    def __post_init__(self) -> None:
        _check(self)
        if jnp.shape(self.values) != jnp.shape(self.indices):
            raise ValueError(
                f"Picked: values has shape {jnp.shape(self.values)}, but indices has "
                f"{jnp.shape(self.indices)}."
            )

    def aval(self) -> Any:
        return self.shape_of(self.values.dtype)

    def weights(self) -> Any:
        return self.values


def _check(v: Any) -> None:
    name = type(v).__name__
    if jnp.ndim(v.indices) == 0:
        raise ValueError(f"{name}: indices must have at least one axis.")
    if not jnp.issubdtype(v.indices.dtype, jnp.integer):
        raise ValueError(f"{name}: indices must be integers; got {v.indices.dtype}.")
    object.__setattr__(v, "classes", checked_size(name, "classes", v.classes))
    if v.axis not in (-1, -2):
        raise ValueError(f"{name}: axis is {v.axis}, not -1 or -2.")
    if disproved(are_below, v.indices, static=(v.classes,)):
        raise ValueError(f"{name}: indices are not all from 0 to {v.classes - 1}.")


def _as_rows(x: Any, axis: int = -1) -> Any:
    """A permutation as a `OneHot`; anything else as it is."""
    if not isinstance(x, Permutation):
        return x
    if axis == -2:
        return _as_rows(x.transposed()).transposed()
    return OneHot(x.order, x.shape[-1], -1, x.of_dtype)


def _rows_at(x: Any, columns: Any, axis: int) -> Any:
    """The rows of an array, along an axis, at indices; zeros if out of range."""
    at = on_axis(columns, columns.ndim - 1, x.ndim, axis)
    return jnp.take_along_axis(x, at, axis, mode="fill", fill_value=0)


def _scattered(x: Any, columns: Any, classes: int, axis: int) -> Any:
    """The sums of those rows of an array, along an axis, that have the same index."""
    batch = columns.ndim - 1

    def add_up(columns: Any, rows: Any) -> Any:
        sums = jnp.zeros((classes, *rows.shape[1:]), rows.dtype)
        return sums.at[columns].add(rows, mode="drop")

    wide = promoted(x.dtype, jnp.float32 if inexact(x) else jnp.int32)
    rows = jnp.moveaxis(x, axis, batch).astype(wide)
    sums = over_batch(add_up, batch)(columns, rows)
    return jnp.moveaxis(sums, batch, axis).astype(x.dtype)


@register("reduce_sum")
def _(v: Rows, *, axes: Any, **params: Any) -> Any:
    """The sum over the classes is the entry of each row."""
    class_axis = v.ndim + v.axis
    if class_axis not in axes:
        return NotImplemented
    entries = zero_unless(v.inside(), v.weights())
    # Without the axis of the classes, the axis of the rows is the last one.
    return total(entries, [min(axis, v.ndim - 2) for axis in axes if axis != class_axis])


@register("argmax")
def _(v: OneHot, *, axes: Any, index_dtype: Any) -> Any:
    if tuple(axes) != (v.ndim + v.axis,):
        return NotImplemented
    return jnp.where(v.inside(), v.columns(), 0).astype(index_dtype)


@register("slice")
def _(v: Rows, *, start_indices: Any, limit_indices: Any, strides: Any) -> Any:
    strides = strides or (1,) * v.ndim
    whole = (start_indices[-1], limit_indices[-1], strides[-1]) == (0, v.classes, 1)
    if v.axis == -2 or not whole or limit_indices[-2] - start_indices[-2] == 1:
        return NotImplemented
    rows = [tuple(those[:-1]) for those in (start_indices, limit_indices, strides)]
    return jax.tree.map(lambda x: lax.slice(x, *rows), v)


@register("dynamic_slice")
def _(v: Rows, *starts: Array, slice_sizes: Any) -> Any:
    if v.axis == -2 or slice_sizes[-1] != v.classes or slice_sizes[-2] == 1:
        return NotImplemented
    rows = starts[:-1], slice_sizes[:-1]
    cut = lambda x: lax.dynamic_slice(x, *rows, allow_negative_indices=False)
    return jax.tree.map(cut, v)


@register("gather")
def _(
    v: Rows, at: Array, *, dimension_numbers: Any, slice_sizes: Any, **params: Any
) -> Any:
    """Gather whole rows, by indices along one axis of rows."""
    rows = tuple(dimension_numbers.collapsed_slice_dims) == (0,)
    rows = rows and tuple(dimension_numbers.offset_dims) == (at.ndim - 1,)
    if v.ndim != 2 or v.axis == -2 or not rows or tuple(slice_sizes) != (1, v.classes):
        return NotImplemented
    # One row is not one-hot rows, and what is filled in is whole rows.
    if at.ndim < 2 or fills(params["mode"]):
        return NotImplemented
    numbers = dimension_numbers._replace(offset_dims=())
    params = params | {"dimension_numbers": numbers, "slice_sizes": (1,)}
    return jax.tree.map(lambda x: bind("gather", x, at, **params), v)


@register("concatenate")
def _(*vs: Rows, dimension: int) -> Any:
    first = vs[0]
    class_axis = first.ndim + first.axis
    if dimension == class_axis or len({(v.axis, v.classes) for v in vs}) > 1:
        return NotImplemented
    if len({type(v) for v in vs}) > 1:
        vs = tuple(v.as_picked() for v in vs)
    axis = min(dimension, first.ndim - 2)
    return jax.tree.map(lambda *xs: jnp.concatenate(xs, axis), *vs)

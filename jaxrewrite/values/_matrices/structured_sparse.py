"""`NMSparse`: of each few entries in a row, a fixed number is kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Integer, Shaped

import jaxrewrite
from jaxrewrite import register

from .._base.structured import concrete, total, zero_unless
from .matrix import Matrix, apply_dense
from .rows import gather_rows


class NMSparse(Matrix):
    r"""A matrix with N:M structured sparsity, or a stack of them.

    The rows are in groups of :math:`M`, and of each group every column has at most
    :math:`N` entries that are not zero, 2 of 4 for instance:

    .. math:: W_{gM + p,\, j} = \sum_{s < N} v_{gsj} \, [\, i_{gsj} = p \,]

    It takes :math:`N / M` of the bytes of the entries, and a small integer for each. In a
    product the matrix is made dense, by N comparisons that XLA fuses, and the product is a
    dense one; gathering what each column needs of the other operand, which does fewer
    operations, took four times as long at 2048 x 2048 for one vector on a CPU, and twenty
    times for eight. The dense matrix is not kept for the backward pass, but made again.
    Scaling, slices of whole groups, rows by their indices, and functions that act entry by entry and
    are zero at zero keep the structure.

    The form is that of Mishra et al., `Accelerating Sparse Deep Neural Networks
    <https://arxiv.org/abs/2104.08378>`_.

    In products its zeros stay zeros, also times infinity and NaN, unless the rules
    `strict_zeros` are in force.

    Attributes
    ----------
    values
        The entries, of shape (\*batch, groups, N, k).
    indices
        Where in its group each is, from 0 to M - 1: integers of the same shape.
    m
        The length M of a group. The array has shape (\*batch, groups M, k).
    in_rows
        Whether the groups are along rows: the matrix is the transpose of the above.

    Raises
    ------
    ValueError
        If shapes don't fit, ``indices`` aren't integers, or if one is out of range or
        twice in a group.

    Examples
    --------
    >>> import jax.numpy as jnp, jaxrewrite
    >>> from jaxrewrite.values import NMSparse
    >>> w = jnp.array([[3.0], [-1.0], [2.0], [-4.0]])
    >>> v = NMSparse.prune(w, n=2, m=4)
    >>> jaxrewrite.materialise(v)[:, 0]
    Array([ 3.,  0.,  0., -4.], dtype=float32)
    >>> jnp.ones(4) @ v
    Array([-1.], dtype=float32)
    """

    values: Shaped[Array, "*batch groups n k"]
    indices: Integer[Array, "*batch groups n k"]
    m: int = jaxrewrite.field(static=True, default=4)
    in_rows: bool = jaxrewrite.field(static=True, default=False)

    entries: ClassVar[str | None] = "pattern"
    movable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        shape = jnp.shape(self.values)
        if len(shape) < 3:
            raise ValueError(f"NMSparse: values has shape {shape}; three axes are needed.")
        if jnp.shape(self.indices) != shape:
            raise ValueError(
                f"NMSparse: indices has shape {jnp.shape(self.indices)}, values {shape}."
            )
        if not jnp.issubdtype(self.indices.dtype, jnp.integer):
            raise ValueError(f"NMSparse: indices has dtype {self.indices.dtype}.")
        if not shape[-2] <= self.m:
            raise ValueError(f"NMSparse: m is {self.m}, less than {shape[-2]} in a group.")
        indices = concrete(self.indices)
        if indices is None or not indices.size:
            return
        ordered = np.sort(indices.astype(np.int32), axis=-2)
        if ordered.min() < 0 or ordered.max() >= self.m:
            raise ValueError(f"NMSparse: indices out of range for groups of {self.m}.")
        if not np.diff(ordered, axis=-2).all():
            raise ValueError("NMSparse: indices has a place twice in a group.")

    @classmethod
    def prune(cls, w: Any, n: int = 2, m: int = 4) -> Self:
        r"""Keep the largest of each group, by magnitude.

        Parameters
        ----------
        w
            An array of shape (\*batch, rows, k).
        n, m
            How many to keep of how many rows.

        Returns
        -------
        NMSparse
            The array with the others zero. Of equal ones the first are kept.

        Raises
        ------
        ValueError
            If m doesn't divide the number of rows, n is not between 1 and m, or w has
            entries that are not numbers.
        """
        shape = jnp.shape(w)
        if len(shape) < 2:
            raise ValueError(f"NMSparse: w has shape {shape}; two axes are needed.")
        if not 1 <= n <= m:
            raise ValueError(f"NMSparse: n is {n}, not between 1 and m, {m}.")
        if shape[-2] % m:
            raise ValueError(f"NMSparse: m is {m}, which doesn't divide {shape[-2]} rows.")
        numbers = concrete(w)
        if numbers is not None and np.isnan(numbers).any():
            raise ValueError("NMSparse: w has entries that are not numbers.")
        groups = w.reshape(*shape[:-2], shape[-2] // m, m, shape[-1])
        largest = jnp.argsort(-jnp.abs(groups), axis=-2)[..., :n, :]
        kept = jnp.sort(largest, axis=-2)
        values = jnp.take_along_axis(groups, kept, -2)
        return cls(values, kept.astype(_index_dtype(m)), m)

    @classmethod
    def from_dense(cls, w: Any, n: int = 2, m: int = 4) -> Self:
        r"""The structure of an array that has it: as `prune`, but nothing may be lost.

        Parameters
        ----------
        w
            An array of shape (\*batch, rows, k).
        n, m
            How many entries are not zero, at most, of how many rows.

        Returns
        -------
        NMSparse
            The same array.

        Raises
        ------
        ValueError
            If the structure isn't there, or as for `prune`.
        """
        v = cls.prune(w, n, m)
        numbers = concrete(w)
        if numbers is not None:
            groups = numbers.reshape(*v.values.shape[:-2], m, numbers.shape[-1])
            if (np.count_nonzero(groups, axis=-2) > n).any():
                raise ValueError(f"NMSparse: w has more than {n} of {m} that are not zero.")
        return v

    @property
    def offsets(self) -> Any:
        """The indices as integers that can be reckoned with; those of 4 bits can't."""
        return self.indices.astype(jnp.int32)

    # --- as a matrix ------------------------------------------------------------------

    def with_values(self, values: Any) -> Self:
        """The matrix with other entries in the same places."""
        return jax.tree.unflatten(jax.tree.structure(self), [values, self.indices])

    def map_both(self, fn: Callable[[Any], Any]) -> Self:
        """The matrix with a function applied to both leaves."""
        return jax.tree.map(fn, self)

    def aval(self) -> Any:
        *batch, groups, _, k = self.values.shape
        sizes = (k, groups * self.m) if self.in_rows else (groups * self.m, k)
        return jax.core.ShapedArray((*batch, *sizes), self.values.dtype)

    def materialise(self) -> Any:
        *batch, groups, kept, k = self.values.shape
        place = jnp.arange(self.m, dtype=jnp.int32)
        place = place.reshape(*[1] * (len(batch) + 1), self.m, 1)
        dense = jnp.zeros((*batch, groups, self.m, k), self.values.dtype)
        # One by one: as one array they would have N times the bytes.
        for s in range(kept):
            value, index = self.values[..., s, :], self.offsets[..., s, :]
            here = index[..., None, :] == place
            dense = jnp.where(here, value[..., None, :], dense)
        dense = dense.reshape(*batch, groups * self.m, k)
        return jnp.swapaxes(dense, -1, -2) if self.in_rows else dense

    def apply(self, x: Any, axis: int, precision: Any = None) -> Any:
        @jax.checkpoint
        def multiply(v: Self, x: Any) -> Any:
            return apply_dense(v.materialise(), x, axis, precision)

        return multiply(self, x)

    def transposed(self) -> Any:
        return NMSparse(self.values, self.indices, self.m, not self.in_rows)

    def tangent(self, leaf_tangents: Any) -> Any:
        return self.with_values(leaf_tangents.values)

    def map_entries(self, fn: Callable[..., Any], *others: Self) -> Self:
        return self.with_values(fn(self.values, *(other.values for other in others)))

    def cast(self, dtype: Any) -> Self:
        return self.with_values(self.values.astype(dtype))

    def pick(self, dense: Any) -> Self:
        dense = jnp.swapaxes(dense, -1, -2) if self.in_rows else dense
        *batch, rows, k = dense.shape
        groups = dense.reshape(*batch, rows // self.m, self.m, k)
        return self.with_values(self._at_places(groups))

    def _at_places(self, groups: Any) -> Any:
        r"""The numbers of an array of shape (\*batch, groups, M, k) at the entries' places."""
        return jnp.take_along_axis(groups, self.offsets, -2)

    def scaled_rows(self, factors: Any) -> Any:
        if self.in_rows:
            return self.with_values(self.values * factors[..., None, None, :])
        groups = factors.reshape(*factors.shape[:-1], -1, self.m, 1)
        *batch, count, _, k = self.values.shape
        groups = jnp.broadcast_to(groups, (*batch, count, self.m, k))
        return self.with_values(self.values * self._at_places(groups))

    def hadamard(self, other: Any) -> Any:
        if not isinstance(other, NMSparse) or (self.m, self.in_rows) != (
            other.m,
            other.in_rows,
        ):
            return NotImplemented
        found = jnp.zeros_like(self.values)
        for s in range(other.values.shape[-2]):
            here = other.offsets[..., s : s + 1, :] == self.offsets
            found = jnp.where(here, other.values[..., s : s + 1, :], found)
        return self.with_values(self.values * found)

    def at(self, i: Any, j: Any) -> Any:
        if self.in_rows:
            i, j = j, i
        group = i // self.m
        values, offsets = self.values[group, :, j], self.offsets[group, :, j]
        return total(zero_unless(offsets == (i % self.m)[..., None], values), (-1,))

    def rows(self, i: Any) -> Any:
        """The rows at indices, as an array."""
        if self.in_rows:
            columns = self.map_both(lambda x: x[..., i.reshape(-1)])
            return columns.materialise().reshape(*i.shape, -1)
        group = i // self.m
        here = self.offsets[group] == (i % self.m)[..., None, None]
        return total(zero_unless(here, self.values[group]), (-2,))


def _index_dtype(m: int) -> Any:
    """The smallest integers that count to m."""
    dtypes = (jnp.uint4, jnp.uint8, jnp.uint16, jnp.uint32)
    return next(dtype for dtype in dtypes if m - 1 <= jnp.iinfo(dtype).max)


# --- rules --------------------------------------------------------------------------------


def _axes(v: NMSparse) -> tuple[int, int]:
    """The axis along which the groups are, and the other one."""
    n, m = v.ndim - 2, v.ndim - 1
    return (m, n) if v.in_rows else (n, m)


@register("slice")
def _(v: NMSparse, *, start_indices: Any, limit_indices: Any, strides: Any) -> Any:
    grouped, other = _axes(v)
    cut = [
        slice(*those)
        for those in zip(
            start_indices, limit_indices, strides or (1,) * v.ndim, strict=True
        )
    ]
    rows = cut[grouped]
    if rows.step != 1 or rows.start % v.m or rows.stop % v.m:
        return NotImplemented
    groups = slice(rows.start // v.m, rows.stop // v.m)
    return v.map_both(lambda x: x[(*cut[:-2], groups, slice(None), cut[other])])


@register("dynamic_slice")
def _(v: NMSparse, *starts: Array, slice_sizes: Any) -> Any:
    grouped, other = _axes(v)
    if slice_sizes[grouped] != v.shape[grouped]:
        return NotImplemented
    groups, kept = v.values.shape[-3:-1]
    sizes = (*slice_sizes[:-2], groups, kept, slice_sizes[other])
    zero = jnp.zeros_like(starts[other])
    begin = (*starts[:-2], zero, zero, starts[other])
    return v.map_both(lambda x: lax.dynamic_slice(x, begin, sizes))


@register("concatenate")
def _(*vs: NMSparse, dimension: int) -> Any:
    first = vs[0]
    alike = {(v.m, v.in_rows, v.values.shape[-2], v.indices.dtype) for v in vs}
    if len(alike) > 1:
        return NotImplemented
    grouped, other = _axes(first)
    axis = {grouped: -3, other: -1}.get(dimension, dimension)
    axis %= first.values.ndim
    return jax.tree.map(lambda *xs: jnp.concatenate(xs, axis), *vs)


@register("gather")
def _(v: NMSparse, indices: Array, **params: Any) -> Any:
    return gather_rows(v, indices, **params)

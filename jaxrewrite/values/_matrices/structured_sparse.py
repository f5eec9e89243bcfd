"""`NMSparse`: a matrix that keeps a fixed number of entries in each small group."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Integer, Shaped

import jaxrewrite
from jaxrewrite import register

from .._base import in_blocks
from .._base.sizes import check_flag
from .._base.structured import are_below, disproved, total, zero_unless
from .matrix import Matrix, apply_dense, check_has_matrices


class NMSparse(Matrix):
    r"""A matrix with N:M structured sparsity, or a stack of them.

    The rows form groups of :math:`M`. Each column has at most :math:`N` nonzero entries in
    each group, for example 2 of 4:

    .. math:: W_{gM + p,\, j} = \sum_{s < N} v_{gsj} \, [\, i_{gsj} = p \,]

    It takes :math:`N / M` of the bytes of the entries, and a small integer for each. A
    product makes the matrix dense by N comparisons, which XLA fuses, and is then a dense
    product. For one vector, and on a CPU, a large matrix becomes dense in blocks that fit
    the cache. The alternative, to gather what each column needs of the other operand, does
    fewer operations. But at 2048 x 2048 on a CPU it took four times as long for one vector,
    and twenty times as long for eight. The backward pass makes the dense matrix again and
    does not keep it. Scaling, slices of whole groups, rows at indices, and functions that
    act entry by entry and map zero to zero keep the structure.

    The form is that of Mishra et al., `Accelerating Sparse Deep Neural Networks
    <https://arxiv.org/abs/2104.08378>`_.

    In products its zeros stay zeros, even times infinity or NaN, unless the rules
    `strict_zeros` are in force.

    Attributes
    ----------
    values
        The entries, of shape (\*batch, groups, N, k).
    indices
        The place of each in its group, from 0 to M - 1: integers of the same shape.
    m
        The length M of a group. The array has shape (\*batch, groups M, k).
    in_rows
        Whether the groups are along rows. The matrix is then the transpose of the above.

    Raises
    ------
    ValueError
        If the shapes do not fit, or if ``indices`` are not integers, are out of range, or
        repeat within a group.
    TypeError
        If ``in_rows`` is not a boolean.

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
        check_flag("NMSparse", "in_rows", self.in_rows)
        shape = jnp.shape(self.values)
        if len(shape) < 3:
            raise ValueError(f"NMSparse: values has shape {shape}, but needs three axes.")
        if jnp.shape(self.indices) != shape:
            raise ValueError(
                f"NMSparse: indices has shape {jnp.shape(self.indices)}, but values has "
                f"{shape}."
            )
        if not jnp.issubdtype(self.indices.dtype, jnp.integer):
            raise ValueError(
                f"NMSparse: indices must be integers; got {self.indices.dtype}."
            )
        if not shape[-2] <= self.m:
            raise ValueError(
                f"NMSparse: m is {self.m}, but a group has {shape[-2]} entries."
            )
        if not self.indices.size:
            return
        if disproved(are_below, self.offsets, static=(self.m,)):
            raise ValueError(f"NMSparse: indices are out of range for groups of {self.m}.")
        if disproved(_are_distinct, self.offsets):
            raise ValueError("NMSparse: indices repeat a place in a group.")

    @classmethod
    def prune(cls, w: Any, n: int = 2, m: int = 4) -> Self:
        r"""Keep the entries of the largest magnitude in each group.

        Parameters
        ----------
        w
            An array of shape (\*batch, rows, k).
        n, m
            The number of entries to keep, and the number of rows in a group.

        Returns
        -------
        NMSparse
            The array with all other entries zero. Among equal magnitudes the first are kept.

        Raises
        ------
        ValueError
            If m does not divide the number of rows, n is not between 1 and m, or w has NaN
            entries.
        """
        check_has_matrices("NMSparse", "w", w)
        if not 1 <= n <= m:
            raise ValueError(f"NMSparse: n is {n}, which is not between 1 and m, {m}.")
        rows = jnp.shape(w)[-2]
        if rows % m:
            raise ValueError(f"NMSparse: m is {m}, which does not divide {rows} rows.")
        if disproved(_are_numbers, w):
            raise ValueError("NMSparse: w has NaN entries.")
        v = _pruned(w, n, m)
        return v if cls is NMSparse else cls(v.values, v.indices, m)

    @classmethod
    def from_dense(cls, w: Any, n: int = 2, m: int = 4) -> Self:
        r"""The `NMSparse` of an array that has this structure: as `prune`, but lossless.

        Parameters
        ----------
        w
            An array of shape (\*batch, rows, k).
        n, m
            The greatest number of nonzero entries in a group, and its number of rows.

        Returns
        -------
        NMSparse
            The same array.

        Raises
        ------
        ValueError
            If ``w`` does not have this structure, or as for `prune`.
        """
        v = cls.prune(w, n, m)
        if disproved(_has_few, w, static=(n, m)):
            raise ValueError(f"NMSparse: w has more than {n} nonzero entries of {m}.")
        return v

    @property
    def offsets(self) -> Any:
        """The indices as int32, because JAX does not compute with 4-bit integers."""
        return self.indices.astype(jnp.int32)

    # --- as a matrix ------------------------------------------------------------------

    def with_values(self, values: Any) -> Self:
        """The matrix with other entries at the same places."""
        return jax.tree.unflatten(jax.tree.structure(self), [values, self.indices])

    def aval(self) -> Any:
        *batch, groups, _, k = self.values.shape
        sizes = (k, groups * self.m) if self.in_rows else (groups * self.m, k)
        return jax.core.ShapedArray((*batch, *sizes), self.values.dtype)

    def materialise(self) -> Any:
        *batch, groups, kept, k = self.values.shape
        positions = jnp.arange(self.m, dtype=jnp.int32)
        positions = positions.reshape(*[1] * (len(batch) + 1), self.m, 1)
        dense = jnp.zeros((*batch, groups, self.m, k), self.values.dtype)
        # A loop, because all comparisons as one array would take N times the bytes.
        for s in range(kept):
            value, index = self.values[..., s, :], self.offsets[..., s, :]
            here = index[..., None, :] == positions
            dense = jnp.where(here, value[..., None, :], dense)
        dense = dense.reshape(*batch, groups * self.m, k)
        return jnp.swapaxes(dense, -1, -2) if self.in_rows else dense

    def apply(self, x: Any, axis: int, precision: Any = None) -> Any:
        @jax.checkpoint
        def multiply(v: Self, x: Any) -> Any:
            return apply_dense(v.materialise(), x, axis, precision)

        leaves = self.values, self.indices
        is_plain = all(isinstance(leaf, jax.Array) for leaf in (*leaves, x))
        is_column = all(n == 1 for i, n in enumerate(x.shape) if i != axis)
        if not is_plain or not is_column or x.dtype != self.dtype or self.batch:
            return multiply(self, x)
        make = lambda values, indices: NMSparse(values, indices, self.m).materialise()
        column = jnp.moveaxis(x, axis, 0).reshape(-1, 1)
        y = in_blocks.multiply(
            make, leaves, column, is_summed=self.in_rows, precision=precision
        )
        return jnp.moveaxis(y.reshape(-1, *[1] * (x.ndim - 1)), 0, axis)

    def transposed(self) -> Any:
        return NMSparse(self.values, self.indices, self.m, not self.in_rows)

    def map_entries(self, fn: Callable[..., Any], *others: Self) -> Self:
        return self.with_values(fn(self.values, *(other.values for other in others)))

    def pick(self, dense: Any) -> Self:
        dense = jnp.swapaxes(dense, -1, -2) if self.in_rows else dense
        return self.with_values(self._at_places(_groups_of(dense, self.m)))

    def _at_places(self, groups: Any) -> Any:
        r"""The numbers at the entries' places, of an array of shape (\*batch, groups, M, k)."""
        return jnp.take_along_axis(groups, self.offsets, -2)

    def scaled_rows(self, factors: Any) -> Any:
        if self.in_rows:
            return self.with_values(self.values * factors[..., None, None, :])
        *batch, count, _, k = self.values.shape
        groups = factors.reshape(*factors.shape[:-1], count, self.m, 1)
        groups = jnp.broadcast_to(groups, (*batch, count, self.m, k))
        return self.with_values(self.values * self._at_places(groups))

    def hadamard(self, other: Any) -> Any:
        if not isinstance(other, NMSparse) or (self.m, self.in_rows) != (
            other.m,
            other.in_rows,
        ):
            return NotImplemented
        entries = jnp.zeros_like(self.values)
        for s in range(other.values.shape[-2]):
            here = other.offsets[..., s : s + 1, :] == self.offsets
            entries = jnp.where(here, other.values[..., s : s + 1, :], entries)
        return self.with_values(self.values * entries)

    def entries_at(self, i: Any, j: Any) -> Any:
        if self.in_rows:
            i, j = j, i
        group = i // self.m
        values, offsets = self.values[group, :, j], self.offsets[group, :, j]
        return total(zero_unless(offsets == (i % self.m)[..., None], values), (-1,))

    def rows_at(self, i: Any) -> Any:
        """The rows at indices, as an array."""
        if self.in_rows:
            columns = jax.tree.map(lambda x: x[..., i.reshape(-1)], self)
            return columns.materialise().reshape(*i.shape, self.shape[-1])
        group = i // self.m
        here = self.offsets[group] == (i % self.m)[..., None, None]
        return total(zero_unless(here, self.values[group]), (-2,))


def _index_dtype(m: int) -> Any:
    """The smallest unsigned integer dtype that holds m - 1."""
    dtypes = (jnp.uint4, jnp.uint8, jnp.uint16, jnp.uint32)
    return next(dtype for dtype in dtypes if m - 1 <= jnp.iinfo(dtype).max)


# One operation after the other would take longer, and more memory.
# A user's subclass is made outside, where its checks may look at the numbers.
@functools.partial(jax.jit, static_argnums=(1, 2))
def _pruned(w: Any, n: int, m: int) -> NMSparse:
    groups = _groups_of(w, m)
    sizes = jnp.abs(groups)
    if jnp.issubdtype(w.dtype, jnp.signedinteger):  # The least number has no opposite.
        sizes = sizes.astype(w.dtype.name.replace("int", "uint"))
    largest = jnp.argsort(sizes, axis=-2, descending=True)[..., :n, :]
    kept = jnp.sort(largest, axis=-2)
    values = jnp.take_along_axis(groups, kept, -2)
    return NMSparse(values, kept.astype(_index_dtype(m)), m)


def _groups_of(w: Any, m: int) -> Any:
    return w.reshape(*w.shape[:-2], w.shape[-2] // m, m, w.shape[-1])


def _has_few(xp: Any, w: Any, n: int, m: int) -> Any:
    """Whether no group has more than ``n`` entries that are not zero."""
    return ((_groups_of(w, m) != 0).sum(-2) <= n).all()


def _are_numbers(xp: Any, x: Any) -> Any:
    return ~xp.isnan(x).any()


def _are_distinct(xp: Any, indices: Any) -> Any:
    """Whether no group has a place twice."""
    return (xp.diff(xp.sort(indices, axis=-2), axis=-2) != 0).all()


# --- rules --------------------------------------------------------------------------------


def _axes(v: NMSparse) -> tuple[int, int]:
    """The axis of the groups, and the other axis."""
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
    return jax.tree.map(lambda x: x[(*cut[:-2], groups, slice(None), cut[other])], v)


@register("dynamic_slice")
def _(v: NMSparse, *starts: Array, slice_sizes: Any) -> Any:
    grouped, other = _axes(v)
    if slice_sizes[grouped] != v.shape[grouped]:
        return NotImplemented
    groups, kept = v.values.shape[-3:-1]
    sizes = (*slice_sizes[:-2], groups, kept, slice_sizes[other])
    zero = jnp.zeros_like(starts[other])
    begin = (*starts[:-2], zero, zero, starts[other])
    cut = lambda x: lax.dynamic_slice(x, begin, sizes, allow_negative_indices=False)
    return jax.tree.map(cut, v)


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

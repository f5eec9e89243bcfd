"""Integers of few bits in bytes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, ArrayLike

import jaxrewrite

from .._base.structured import Structured, on_dense


class Packed(Structured):
    r"""Signed integers of ``bits`` bits, eight neighbours of which are in ``bits`` bytes.

    It stands for an array of dtype int8. `Quantised` holds integers of 2, 3, 5, 6 and 7
    bits so, because there are no dtypes for them that all programs compile with.

    Transposes, reshapes, slices, lookups and concatenations that do not take eight
    neighbours apart keep it packed. Everything else unpacks it, to int8.

    Parameters
    ----------
    planes
        The bytes, of dtype uint8. Bit ``i`` of ``planes[..., k, ..., j]`` is bit ``j`` of
        entry ``8 * k + i`` along the packed axis, plus ``2 ** (bits - 1)``.
    axis
        The packed axis, counted from the last one, which is -1.
    padding
        The number of entries, less than eight, that the last bytes have in excess.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from jaxrewrite.values._weights.packed import Packed
    >>> v = Packed.pack(jnp.arange(-4, 4), bits=3)
    >>> v
    Packed<i8[8], 3 B>(planes=u8[1,3], axis=-1, padding=0)
    >>> v.materialise()
    Array([-4, -3, -2, -1,  0,  1,  2,  3], dtype=int8)
    """

    planes: Array
    axis: int = jaxrewrite.field(static=True, default=-1)
    padding: int = jaxrewrite.field(static=True, default=0)

    @classmethod
    def pack(cls, x: Any, bits: int, axis: int = -1) -> Packed:
        """Pack the integers from ``-2 ** (bits - 1)`` to ``2 ** (bits - 1) - 1``."""
        padding = -x.shape[axis] % 8
        codes = (x.astype(jnp.int8) + 2 ** (bits - 1)).astype(jnp.uint8)
        codes = jnp.moveaxis(codes, axis, -1)
        codes = jnp.pad(codes, [(0, 0)] * (x.ndim - 1) + [(0, padding)])
        codes = codes.reshape(*codes.shape[:-1], codes.shape[-1] // 8, 1, 8)
        bit = (codes >> _along(bits, -2)) & 1
        planes = (bit << _along(8, -1)).sum(-1, dtype=jnp.uint8)
        return cls(jnp.moveaxis(planes, -2, axis - 1), axis, padding)

    @property
    def bits(self) -> int:
        return self.planes.shape[-1]

    def aval(self) -> Any:
        shape = list(self.planes.shape[:-1])
        shape[self.axis] = 8 * shape[self.axis] - self.padding
        return jax.core.ShapedArray(tuple(shape), jnp.int8)

    def materialise(self) -> Any:
        axis = self.axis - 1
        planes = jnp.expand_dims(self.planes, axis)  # One entry per bit goes there.
        bit = (planes >> _along(8, axis)) & 1
        codes = (bit << _along(self.bits, -1)).sum(-1, dtype=jnp.uint8)
        shape = self.aval().shape
        codes = lax.collapse(codes, codes.ndim + axis, codes.ndim + axis + 2)
        whole = lax.slice_in_dim(codes, 0, shape[self.axis], axis=len(shape) + self.axis)
        return whole.astype(jnp.int8) - jnp.int8(2 ** (self.bits - 1))

    # Unpacked integers are no larger than those of eight bits would be.
    default = staticmethod(on_dense)

    def stacked(self, size: int) -> Any:
        return self

    def unstacked(self) -> Any:
        return self if -self.axis < self.planes.ndim else NotImplemented

    def leaf_specs(self, spec: Any) -> Any:
        whole = (*spec, *[None] * (self.planes.ndim - len(spec)))
        if self.padding and whole[self.axis - 1] is not None:
            return NotImplemented
        return dataclasses.replace(self, planes=type(spec)(*whole))


def _along(n: int, axis: int) -> Any:
    """The numbers up to ``n``, along an axis counted from the last one."""
    return jnp.arange(n, dtype=jnp.uint8).reshape(n, *[1] * (-axis - 1))


def _is_whole(v: Packed, sizes: Sequence[int]) -> bool:
    return sizes[v.axis] == v.shape[v.axis]


def _bytes_of(v: Packed, sizes: Sequence[int]) -> tuple[int, ...]:
    """The shape of the bytes of a part that has these sizes, and all of the packed axis."""
    whole = [*sizes, v.bits]
    whole[v.axis - 1] = v.planes.shape[v.axis - 1]
    return tuple(whole)


@jaxrewrite.register("transpose")
def _(v: Packed, *, permutation, **params) -> Any:
    planes = lax.transpose(v.planes, (*permutation, v.ndim))
    axis = permutation.index(v.ndim + v.axis) - v.ndim
    return dataclasses.replace(v, planes=planes, axis=axis)


@jaxrewrite.register("rev")
def _(v: Packed, *, dimensions, **params) -> Any:
    if v.ndim + v.axis in dimensions:
        return NotImplemented
    return dataclasses.replace(v, planes=lax.rev(v.planes, dimensions))


@jaxrewrite.register("squeeze")
def _(v: Packed, *, dimensions, **params) -> Any:
    place = v.ndim + v.axis
    if place in dimensions:
        return NotImplemented
    axis = v.axis + sum(d > place for d in dimensions)
    return dataclasses.replace(v, planes=lax.squeeze(v.planes, dimensions), axis=axis)


@jaxrewrite.register("broadcast_in_dim")
def _(v: Packed, *, shape, broadcast_dimensions, **params) -> Any:
    axis = broadcast_dimensions[v.axis] - len(shape)
    if shape[axis] != v.shape[v.axis]:
        return NotImplemented
    wanted = [*shape, v.bits]
    wanted[axis - 1] = v.planes.shape[v.axis - 1]
    places = (*broadcast_dimensions, len(shape))
    planes = lax.broadcast_in_dim(v.planes, wanted, places)
    return dataclasses.replace(v, planes=planes, axis=axis)


@jaxrewrite.register("reshape")
def _(v: Packed, *, new_sizes, dimensions, **params) -> Any:
    """Reshape so that the packed axis keeps its place, or whole bytes of it do."""
    after = math.prod(v.shape[v.ndim + v.axis + 1 :])
    for i, n in enumerate(new_sizes):
        stays = n == v.shape[v.axis] or n % 8 == 0 and not v.padding
        if v.size and stays and math.prod(new_sizes[i + 1 :]) == after:
            sizes = (*new_sizes[:i], -(-n // 8), *new_sizes[i + 1 :], v.bits)
            planes = v.planes.reshape(sizes)
            return dataclasses.replace(v, planes=planes, axis=i - len(new_sizes))
    return NotImplemented


@jaxrewrite.register("slice")
def _(v: Packed, *, start_indices, limit_indices, strides, **params) -> Any:
    start, limit = start_indices[v.axis], limit_indices[v.axis]
    steps = (*(strides or [1] * v.ndim), 1)
    if start % 8 or steps[v.axis - 1] != 1:
        return NotImplemented
    starts, limits = [*start_indices, 0], [*limit_indices, v.bits]
    starts[v.axis - 1], limits[v.axis - 1] = start // 8, -(-limit // 8)
    planes = lax.slice(v.planes, starts, limits, steps)
    return dataclasses.replace(v, planes=planes, padding=-limit % 8)


@jaxrewrite.register("dynamic_slice")
def _(v: Packed, *starts: ArrayLike, slice_sizes, **params) -> Any:
    if not _is_whole(v, slice_sizes):
        return NotImplemented
    first = (*starts, jnp.zeros((), jnp.result_type(starts[0])))
    planes = lax.dynamic_slice(v.planes, first, _bytes_of(v, slice_sizes))
    return dataclasses.replace(v, planes=planes)


@jaxrewrite.register("gather")
def _(
    v: Packed, indices: ArrayLike, *, dimension_numbers, slice_sizes, mode, **params
) -> Any:
    numbers, place = dimension_numbers, v.ndim + v.axis
    gone = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    filled = mode == lax.GatherScatterMode.FILL_OR_DROP
    if place in gone or not _is_whole(v, slice_sizes) or filled:
        return NotImplemented
    ndim = len(numbers.offset_dims) + jnp.ndim(indices) - 1
    kept = sum(i not in gone for i in range(place))
    axis = numbers.offset_dims[kept] - ndim
    own = numbers._replace(offset_dims=(*numbers.offset_dims, ndim))
    planes = lax.gather(v.planes, indices, own, _bytes_of(v, slice_sizes), mode=mode)
    return dataclasses.replace(v, planes=planes, axis=axis)


@jaxrewrite.register("concatenate")
def _(*vs: Packed, dimension, **params) -> Any:
    along = dimension == vs[0].ndim + vs[0].axis
    kinds = {(v.axis, v.bits, 0 if along else v.padding) for v in vs}
    if len(kinds) > 1 or along and any(v.padding for v in vs[:-1]):
        return NotImplemented
    planes = lax.concatenate([v.planes for v in vs], dimension)
    return dataclasses.replace(vs[-1], planes=planes)

"""`Concatenated`: arrays side by side, such as weights whose last block is shorter."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import ArrayLike

import jaxrewrite
from jaxrewrite._axes.blocks import groups

from .._base.contract import sides
from .._base.gathers import fills
from .._base.structured import Structured, fields_of, is_value, promoted
from .coded import convolved


class Concatenated(Structured):
    """Arrays or values that lie one after the other along an axis.

    `quantise` makes it where a block does not divide an axis: the entries of whole blocks are
    one part, and those of the last block, which is shorter, are another. So no entry is
    padded, and each part is of the format that was asked for.

    A product multiplies each part, and adds the results or puts them side by side. Transposes,
    reshapes that keep the axis apart, slices, casts, and products with numbers along axes act
    on each part. Rows that are looked up along the axis are dense, and so is all that needs
    entries of several parts at once.

    Parameters
    ----------
    parts
        Arrays or values of one dtype, and of one shape but for the length of the axis.
    axis
        The axis, counted from the last one: -1 or less.

    Raises
    ------
    ValueError
        If there are no parts, their dtypes or shapes differ, or the axis is none of theirs.

    Examples
    --------
    >>> import jax.numpy as jnp, jaxrewrite
    >>> from jaxrewrite.values import quantise
    >>> params = {"kernel": jnp.ones((100, 33))}
    >>> v = quantise(params, lambda path, _: True, block=64)["kernel"]
    >>> v.lengths, [part.scale.shape for part in v.parts]
    ((64, 36), [(1, 33), (1, 33)])
    >>> jaxrewrite.transform(lambda v, x: x @ v, materialise="forbid")(v, jnp.ones(100)).shape
    (33,)
    """

    # Whether results are values decides whether they stay apart.
    rules_see_values = True

    parts: tuple[Any, ...]
    axis: int = jaxrewrite.field(static=True)

    def __post_init__(self) -> None:
        if not self.parts:
            raise ValueError("Concatenated: parts is empty.")
        ndim = self.parts[0].ndim
        if not -ndim <= self.axis < 0:
            raise ValueError(
                f"Concatenated: axis is {self.axis}, for parts of {ndim} axes; it must be "
                f"{-ndim} to -1."
            )
        kinds = {(part.dtype, self._other_axes(part)) for part in self.parts}
        if len(kinds) > 1:
            shown = ", ".join(f"{part.dtype}{list(part.shape)}" for part in self.parts)
            raise ValueError(
                f"Concatenated: parts may differ in the length of axis {self.axis} alone; got "
                f"{shown}."
            )

    def _other_axes(self, part: Any) -> tuple[int, ...]:
        axis = part.ndim + self.axis
        return (*part.shape[:axis], *part.shape[axis + 1 :])

    @property
    def where(self) -> int:
        """The axis, counted from the first one."""
        return self.parts[0].ndim + self.axis

    @property
    def lengths(self) -> tuple[int, ...]:
        """The lengths of the parts."""
        return tuple(part.shape[self.axis] for part in self.parts)

    def aval(self) -> Any:
        shape = list(self.parts[0].shape)
        shape[self.axis] = sum(self.lengths)
        return jax.core.ShapedArray(tuple(shape), self.parts[0].dtype)

    def materialise(self) -> Any:
        dense = [jaxrewrite.materialise(part) for part in self.parts]
        return lax.concatenate(dense, self.where)

    def sliceable(self) -> Any:
        return self if self.where else NotImplemented

    def leaf_specs(self, spec: Any) -> Any:
        is_split = len(spec) > self.where and spec[self.where] is not None
        if is_split:
            return NotImplemented  # A device would have entries of several parts.
        _, treedef = fields_of(self)
        return treedef.unflatten([spec] * len(self.parts))

    def spans(self) -> Iterator[tuple[Any, int, int]]:
        """Each part, with the index of its first entry and its length.

        A part without entries is left out, since no index is in it, unless all are such.
        """
        starts = itertools.accumulate(self.lengths, initial=0)
        spans = list(zip(self.parts, starts, self.lengths, strict=False))
        return iter([span for span in spans if span[2]] or spans[:1])


def in_whole_blocks(
    shape: Sequence[int], sizes: Sequence[int], make: Callable[[tuple[slice, ...]], Any]
) -> Any:
    """An array in blocks of these sizes, of which the last along an axis may be shorter.

    ``make`` gives a part in which all blocks have the same size, by its indices along each axis.
    Where there are several, they make a `Concatenated`.
    """

    def after(where: tuple[slice, ...]) -> Any:
        axis = len(where)
        if axis == len(shape):
            return make(where)
        n, size = shape[axis], sizes[axis]
        cut = n - n % size if 0 < size < n else n
        spans = [slice(0, cut)] if cut == n else [slice(0, cut), slice(cut, n)]
        return side_by_side([after((*where, span)) for span in spans], axis)

    return after(())


def side_by_side(parts: Sequence[Any], where: int) -> Any:
    """Arrays and values as one, which is dense unless all are values."""
    if len(parts) == 1:
        return parts[0]
    if all(map(is_value, parts)):
        return Concatenated(tuple(parts), where - parts[0].ndim)
    return lax.concatenate([jaxrewrite.materialise(part) for part in parts], where)


def parts_of_several(parts: Sequence[Any], where: int, weights: Sequence[Hashable]) -> Any:
    """Parts of different weights side by side, so that products meet each of these.

    Those of one weight are not, since what an axis of it means holds for all of them.
    """
    return NotImplemented if len({*weights}) == 1 else side_by_side(parts, where)


def _cut(x: Any, axis: int, start: int, length: int) -> Any:
    """Some of the entries along an axis."""
    starts, limits = [0] * x.ndim, list(x.shape)
    starts[axis], limits[axis] = start, start + length
    return jaxrewrite.transform(lambda x: lax.slice(x, starts, limits))(x)


def _on_parts(v: Concatenated, primitive: Any, where: int, **params: Any) -> Any:
    """The parts after a primitive of one operand, after which they lie along another axis."""
    images = [jaxrewrite.bind(primitive, part, **params) for part in v.parts]
    return side_by_side(images, where)


# --- where entries go -------------------------------------------------------------------


@jaxrewrite.register("transpose")
def _(v: Concatenated, *, primitive, permutation) -> Any:
    where = permutation.index(v.where)
    return _on_parts(v, primitive, where, permutation=permutation)


@jaxrewrite.register("squeeze")
def _(v: Concatenated, *, primitive, dimensions) -> Any:
    if v.where in dimensions:
        return NotImplemented
    where = v.where - sum(axis < v.where for axis in dimensions)
    return _on_parts(v, primitive, where, dimensions=dimensions)


@jaxrewrite.register("rev")
def _(v: Concatenated, *, primitive, dimensions) -> Any:
    parts = v.parts[::-1] if v.where in dimensions else v.parts
    turned = [jaxrewrite.bind(primitive, part, dimensions=dimensions) for part in parts]
    return side_by_side(turned, v.where)


@jaxrewrite.register("broadcast_in_dim")
def _(v: Concatenated, *, primitive, shape, broadcast_dimensions, sharding) -> Any:
    where = broadcast_dimensions[v.where]
    if sharding is not None or shape[where] != v.shape[v.where]:
        return NotImplemented
    params = {"broadcast_dimensions": broadcast_dimensions, "sharding": None}
    wider = [
        jaxrewrite.bind(primitive, part, shape=_with(shape, where, n), **params)
        for part, n in zip(v.parts, v.lengths, strict=True)
    ]
    return side_by_side(wider, where)


def _with(numbers: Sequence[Any], axis: int, number: Any) -> tuple[Any, ...]:
    """The numbers of axes, with another one for an axis."""
    return (*numbers[:axis], number, *numbers[axis + 1 :])


@jaxrewrite.register("reshape")
def _(v: Concatenated, *, primitive, new_sizes, **params) -> Any:
    """A reshape after which each part has whole indices of one axis."""
    place = _place_after(v, new_sizes)
    if place is None:
        return NotImplemented
    shaped = [
        jaxrewrite.bind(
            primitive,
            part,
            new_sizes=_with(new_sizes, place.axis, n * place.inner // place.rest),
            **params,
        )
        for part, n in zip(v.parts, v.lengths, strict=True)
    ]
    return side_by_side(shaped, place.axis)


class _Place(NamedTuple):
    """An axis of a reshaped array, the entries of an index of it, and of the old axis."""

    axis: int
    rest: int
    inner: int


def _place_after(v: Concatenated, new_sizes: Sequence[int]) -> _Place | None:
    """The axis of a reshaped array along which the parts lie, if there is one."""
    if v.size < 2:
        return None
    old = new = 0
    for before, after in groups(v.shape, new_sizes):
        if old <= v.where < old + len(before):
            outer = math.prod(before[: v.where - old])
            inner = math.prod(before[v.where - old + 1 :])
            axis = next((i for i, n in enumerate(after) if n > 1), 0)
            rest = math.prod(after[axis + 1 :])
            fits = all(n * inner % rest == 0 for n in v.lengths)
            is_kept = bool(after) and outer == 1 and fits
            return _Place(new + axis, rest, inner) if is_kept else None
        old, new = old + len(before), new + len(after)
    return None


@jaxrewrite.register("slice")
def _(v: Concatenated, *, primitive, start_indices, limit_indices, strides) -> Any:
    axis, steps = v.where, strides or (1,) * v.ndim
    start, limit, step = start_indices[axis], limit_indices[axis], steps[axis]
    taken = []
    for part, offset, length in v.spans():
        first = start + max(-(-(offset - start) // step), 0) * step
        last = min(limit, offset + length)
        # Of an empty slice, the first part has all that there is.
        if first < last or (start >= limit and offset == 0):
            low = min(max(first - offset, 0), length)
            params = {
                "start_indices": _with(start_indices, axis, low),
                "limit_indices": _with(limit_indices, axis, max(last - offset, low)),
            }
            taken.append(jaxrewrite.bind(primitive, part, **params, strides=strides))
    return side_by_side(taken, axis)


@jaxrewrite.register("concatenate")
def _(*vs: Concatenated, primitive, dimension) -> Any:
    first = vs[0]
    if all(v.where == dimension for v in vs):
        return side_by_side([part for v in vs for part in v.parts], dimension)
    if len({(v.axis, v.lengths) for v in vs}) > 1:
        return NotImplemented
    columns = zip(*(v.parts for v in vs), strict=True)
    joined = [jaxrewrite.bind(primitive, *c, dimension=dimension) for c in columns]
    return side_by_side(joined, first.where)


@jaxrewrite.register("dynamic_slice")
def _(v: Concatenated, *starts: ArrayLike, primitive, slice_sizes, **params) -> Any:
    axis, size = v.where, slice_sizes[v.where]
    window = lambda part, n, starts: jaxrewrite.bind(
        primitive, part, *starts, slice_sizes=_with(slice_sizes, axis, n), **params
    )
    if size == v.shape[axis]:
        zero = _with(starts, axis, jnp.zeros_like(starts[axis]))
        cuts = [window(part, n, zero) for part, _, n in v.spans()]
        return side_by_side(cuts, axis)
    if size != 1:
        return NotImplemented
    index = jnp.clip(starts[axis], 0, v.shape[axis] - 1)
    rows = None
    for part, offset, length in v.spans():
        own = _with(starts, axis, jnp.clip(index - offset, 0, length - 1))
        row = jaxrewrite.materialise(window(part, 1, own))
        rows = row if rows is None else jnp.where(index >= offset, row, rows)
    return rows


@jaxrewrite.register("gather")
def _(
    v: Concatenated, indices: ArrayLike, *, primitive, dimension_numbers, **params
) -> Any:
    axis, numbers, sizes = v.where, dimension_numbers, params["slice_sizes"]
    gone = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    # Of a whole axis each part is whole, wherever an index says that it begins.
    if axis in gone or sizes[axis] != v.shape[axis]:
        if axis not in numbers.start_index_map:
            return NotImplemented
        return _looked_up(v, jnp.asarray(indices), primitive, numbers, **params)
    kept = [i for i in range(v.ndim) if i not in gone]
    windows = [
        jaxrewrite.bind(
            primitive,
            part,
            indices,
            dimension_numbers=numbers,
            **params | {"slice_sizes": _with(sizes, axis, n)},
        )
        for part, _, n in v.spans()
    ]
    return side_by_side(windows, numbers.offset_dims[kept.index(axis)])


def _looked_up(
    v: Concatenated,
    indices: Any,
    primitive: Any,
    numbers: lax.GatherDimensionNumbers,
    **params: Any,
) -> Any:
    """Rows of all parts, which are dense, and of those the ones that the indices mean."""
    axis = v.where
    if params["slice_sizes"][axis] != 1 or fills(params["mode"]):
        return NotImplemented
    column = numbers.start_index_map.index(axis)
    index = jnp.clip(indices[..., column], 0, v.shape[axis] - 1)
    rows: Any = None
    for part, offset, length in v.spans():
        own = indices.at[..., column].set(jnp.clip(index - offset, 0, length - 1))
        row = jaxrewrite.materialise(
            jaxrewrite.bind(primitive, part, own, dimension_numbers=numbers, **params)
        )
        is_here = lax.expand_dims(index >= offset, numbers.offset_dims)
        rows = row if rows is None else jnp.where(is_here, row, rows)
    return rows


# --- entry by entry -----------------------------------------------------------------------


@jaxrewrite.register("neg", "convert_element_type")
def _(v: Concatenated, *, primitive, **params) -> Any:
    return _on_parts(v, primitive, v.where, **params)


@jaxrewrite.register("mul", exchange="operands")
@jaxrewrite.register("div")
def _(v: Concatenated, c: ArrayLike, *, primitive, **params) -> Any:
    axis, shape = v.where, jnp.shape(c)
    if shape and (len(shape) != v.ndim or jnp.broadcast_shapes(shape, v.shape) != v.shape):
        return NotImplemented
    is_along = bool(shape) and shape[axis] > 1
    own = lambda start, n: _cut(jnp.asarray(c), axis, start, n) if is_along else c
    images = [
        jaxrewrite.bind(primitive, part, own(start, n), **params)
        for part, start, n in v.spans()
    ]
    return side_by_side(images, axis)


# --- products -----------------------------------------------------------------------------


@jaxrewrite.register("dot_general", types=(Concatenated, Concatenated))
@jaxrewrite.register("dot_general", exchange="types")
def _(x: Concatenated, y: ArrayLike, *, primitive, dimension_numbers, **params) -> Any:
    """Multiply each part with what it meets, and add the products, or put them side by side."""
    seen = sides(Concatenated, x, y, dimension_numbers)
    v, other = seen.v, seen.other
    label = seen.of_v[v.where]
    along = seen.of_other.index(label) if label in seen.of_other else None
    is_summed = label not in seen.out
    dtype = params.pop("preferred_element_type")
    dtype = jnp.result_type(x, y) if dtype is None else dtype
    is_rounded = is_summed and jnp.issubdtype(dtype, jnp.inexact)
    wide = promoted(dtype, jnp.float32) if is_rounded else dtype

    def product(part: Any, start: int, length: int) -> Any:
        own = other if along is None else _cut(other, along, start, length)
        return jaxrewrite.bind(
            primitive,
            *seen.operands(part, own),
            dimension_numbers=dimension_numbers,
            preferred_element_type=wide,
            **params,
        )

    products = [jaxrewrite.materialise(product(*span)) for span in v.spans()]
    if is_summed:
        return sum(products[1:], products[0]).astype(dtype)
    return lax.concatenate(products, seen.out.index(label))


jaxrewrite.register("conv_general_dilated", types=(ArrayLike, Concatenated))(convolved)

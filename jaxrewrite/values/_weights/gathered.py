"""What the weights of any program are multiplied with, gathered as the program runs.

A weight is put in place of an array, with coordinates that go wherever its entries go. A product
sends its other operand's statistics to a record, with the coordinates of what it multiplied. So it
is known, for transposed, reshaped and sliced weights and for one layer of a stack, which entries
of the weight these statistics are for.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, ArrayLike

import jaxrewrite

from .._base.contract import sides
from .._base.structured import Structured, on_dense
from .concatenated import parts_of_several


class Axes(NamedTuple):
    """Which axes of a weight are a stack's, which its products keep, and which they sum."""

    stack: tuple[int, ...]
    kept: tuple[int, ...]
    summed: tuple[int, ...]


class Use(NamedTuple):
    """A product of a weight, moved to this shape, with the axes that it has then."""

    shape: tuple[int, ...]
    axes: Axes


class Inputs:
    """Statistics of what one weight of a stack was multiplied with, for the entries that are summed.

    Attributes
    ----------
    gram
        The sum of the products of each two entries, float32, of shape (k, k).
    most, total
        The largest magnitude and the sum of magnitudes of each entry, of shape (k,).
    """

    def __init__(self, count: int) -> None:
        self.gram = np.zeros((count, count), np.float32)
        self.most = np.zeros(count, np.float32)
        self.total = np.zeros(count, np.float32)


class Met(NamedTuple):
    """What a product met: a weight, indices along all of its axes, and numbers of its operand."""

    record: Gatherer
    indices: list[tuple[int, ...]]
    numbers: tuple[float, ...]


class Gatherer:
    """The record of one weight.

    ``order``, which several weights share, has what products met, in the order of the program.
    ``inputs`` has the statistics of those parts whose turn it was.
    """

    def __init__(self, path: str, shape: Sequence[int], order: list[Met]) -> None:
        self.path, self.shape, self._order = path, tuple(shape), order
        self.inputs: dict[tuple[int, ...], Inputs] = {}
        self._summed: set[tuple[int, ...]] = set()
        self._kept: set[int] = set()

    @property
    def axes(self) -> Axes:
        """How products use the weight, once they have met it."""
        name = f"calibrate: the weight {self.path}, of shape {self.shape},"
        if not self._summed:
            raise ValueError(
                f"{name} met no floating array in a product. A weight that the program joins with "
                "arrays that are not chosen, or stacks with others for a scan, is not seen."
            )
        if len(self._summed) > 1:
            raise ValueError(
                f"{name} is summed along different axes by different products: "
                f"{sorted(self._summed)}. It can be fitted to one of them only."
            )
        (summed,) = self._summed
        if self._kept & set(summed) or not summed:
            raise ValueError(
                f"{name} has an axis of which a product sums one part and keeps another one."
            )
        kept = tuple(sorted(self._kept))
        stack = (i for i in range(len(self.shape)) if i not in summed and i not in kept)
        return Axes(tuple(stack), kept, summed)

    def meet(self, use: Use, fingerprint: Any, *coordinates: Any) -> None:
        """Note that a product met these entries, without statistics."""
        places = [_places(x, use) for x in coordinates]
        self._summed.add(tuple(i for i, x in enumerate(places) if _varies(x, -1)))
        # What one product keeps, and another one takes an index of, is kept.
        self._kept.update(i for i, x in enumerate(places) if _varies(x, 1))
        numbers = tuple(float(x) for x in np.ravel(fingerprint))
        self._order.append(Met(self, _parts(places, range(len(places))), numbers))

    def add(self, use: Use, gram: Any, most: Any, total: Any, *coordinates: Any) -> None:
        """Add statistics of what a product met."""
        places = [_places(x, use) for x in coordinates]
        stack, _, summed = self.axes
        sizes = [self.shape[i] for i in summed]
        for b, part in enumerate(_parts(places, stack)):
            index = [places[i][b if len(places[i]) > 1 else 0, 0] for i in summed]
            rows = np.ravel_multi_index(np.broadcast_arrays(*index), sizes)
            of = self.inputs.setdefault(part, Inputs(math.prod(sizes)))
            of.gram[np.ix_(rows, rows)] += gram[b]
            of.most[rows] = np.maximum(of.most[rows], most[b])
            of.total[rows] += total[b]


def _places(coordinate: Any, use: Use) -> np.ndarray:
    """Coordinates along one axis of the weight, as (stack, kept, summed) of a product.

    Each of these has length one if the coordinates are the same for all.
    """
    array = np.asarray(coordinate)
    groups = use.axes
    for group in groups:
        if any(array.shape[i] > 1 for i in group):
            for i in group:
                array = np.repeat(array, use.shape[i] // array.shape[i], i)
    moved = array.transpose([i for group in groups for i in group])
    return moved.reshape([math.prod(array.shape[i] for i in group) for group in groups])


def _varies(places: np.ndarray, axis: int) -> bool:
    return bool(np.ptp(places, axis).any())


def _parts(places: Sequence[np.ndarray], axes: Sequence[int]) -> list[tuple[int, ...]]:
    """The indices along some axes, for each of the products along batch axes."""
    count = max(len(x) for x in places)
    firsts = [np.broadcast_to(places[i][:, 0, 0], count) for i in axes]
    return [tuple(int(x[b]) for x in firsts) for b in range(count)]


class Watched(Structured):
    """An array whose products are noted in a record.

    ``where`` has the coordinates of the entries along each of its axes, and ``turn`` whether to
    gather statistics of these entries.
    """

    w: Array
    where: tuple[Array, ...]
    turn: Array
    record: Gatherer = jaxrewrite.field(static=True)
    is_looking: bool = jaxrewrite.field(static=True)

    axes = {"w": "...", "where": ".../block", "turn": ".../block"}
    _may_grow = frozenset({"where", "turn"})
    _is_seen_dense = True
    default = staticmethod(on_dense)

    @classmethod
    def of(cls, w: Any, record: Gatherer, turn: Any = None) -> Watched:
        """An array; without ``turn`` only which products it meets is noted."""
        where = [
            jnp.arange(n).reshape([n if i == a else 1 for i in range(w.ndim)])
            for a, n in enumerate(w.shape)
        ]
        is_looking = turn is None
        turn = jnp.zeros((1,) * w.ndim, bool) if is_looking else jnp.asarray(turn)
        return cls(jnp.asarray(w), tuple(where), turn, record, is_looking)

    def aval(self) -> Any:
        return jax.core.ShapedArray(self.w.shape, self.w.dtype)

    def materialise(self) -> Any:
        return self.w


@jaxrewrite.register("convert_element_type")
def _(v: Watched, *, new_dtype, primitive, **params) -> Any:
    """A weight that the program casts, such as to the dtype of its products, is still one."""
    if not jnp.issubdtype(new_dtype, jnp.floating):
        return NotImplemented
    cast = primitive.bind(v.w, new_dtype=new_dtype, **params)
    return dataclasses.replace(v, w=cast)


@jaxrewrite.register("concatenate")
def _(*vs: Watched, dimension, **params) -> Any:
    return parts_of_several(vs, dimension, [v.record for v in vs])


@jaxrewrite.register("dot_general", exchange="types")
def _(x: Watched, y: ArrayLike, *, primitive, **params) -> Any:
    seen = sides(Watched, x, y, params["dimension_numbers"])
    side, v, other = seen.position, seen.v, jnp.asarray(seen.other)
    product = primitive.bind(*jaxrewrite.materialise((x, y)), **params)
    summed, batch = (axes[side] for axes in params["dimension_numbers"])
    of_other = [axes[1 - side] for axes in params["dimension_numbers"]]
    if not jnp.issubdtype(other.dtype, jnp.floating) or not summed:
        return product
    kept = tuple(i for i in range(v.ndim) if i not in (*summed, *batch))
    _note(v, Use(v.shape, Axes(tuple(batch), kept, tuple(summed))), other, *of_other)
    return product


def _note(
    v: Watched, use: Use, other: Any, summed: Sequence[int], batch: Sequence[int]
) -> None:
    free = [i for i in range(other.ndim) if i not in (*summed, *batch)]
    moved = lax.transpose(other, (*batch, *free, *summed)).astype(jnp.float32)
    sizes = [math.prod(other.shape[i] for i in group) for group in (batch, free, summed)]
    rows = moved.reshape(sizes)
    if v.is_looking:
        # The numbers also make the call wait for the operand, so that calls come in order.
        fingerprint = jnp.stack([abs(rows).sum(), abs(rows).max(initial=0)])
        jax.debug.callback(functools.partial(v.record.meet, use), fingerprint, *v.where)
        return

    def gather() -> None:
        gram = jnp.einsum("bri,brj->bij", rows, rows, precision=lax.Precision.HIGHEST)
        magnitudes = abs(rows)
        sums = magnitudes.max(1, initial=0), magnitudes.sum(1)
        jax.debug.callback(functools.partial(v.record.add, use), gram, *sums, *v.where)

    lax.cond(v.turn.any(), gather, lambda: None)

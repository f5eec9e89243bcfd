"""Ranges of activations, from data."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike

import jaxrewrite

from .quantised import Quantised


def calibrate(
    fn: Callable[..., Any], **options: Any
) -> Callable[[Any, Iterable[Any]], Any]:
    """Find the ranges of the arrays that quantised weights are multiplied with.

    The result is a function of values, any pytree with `Quantised` weights in it, also
    within other values, and of batches of data. It calls ``transform(fn)(values, batch)``
    for each batch, and returns the values with ``activations="static"`` and the largest
    magnitude that each weight met in products and convolutions. In these calls the
    activations are not rounded. A weight that met no array stays as it was. Each weight of
    a stack, for a loop over layers, has its own range. The range is repeated along the axes
    of the weight that the products summed. It holds for these axes: a product along others,
    such as that of a cotangent with the same weight, does not round. If the products of a
    weight summed different axes, no range tells its activations from such cotangents, and it
    has ``activations="dynamic"``.

    The batches may be any iterable, such as ``tqdm.tqdm(batches)``, which shows the progress.

    The ranges leave the program by `jax.debug.callback`, so ``fn`` may be compiled and may
    have loops and branches.

    Parameters
    ----------
    fn
        A function of the values and of a batch. Its result is not used.
    **options
        The options of `jaxrewrite.transform`.

    Raises
    ------
    ValueError
        By the returned function: if there is no `Quantised` in the values, there are no
        batches, no weight met an array, or one met an array that is not finite.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from jaxrewrite.values import Quantised, calibrate
    >>> weights = {"kernel": Quantised.quantise(jnp.ones((2, 3)), axis=-1)}
    >>> model = lambda weights, x: x @ weights["kernel"]
    >>> weights = calibrate(model)(weights, [jnp.array([[1.0, -4.0]]), jnp.ones((5, 2))])
    >>> weights["kernel"].activation_range
    Array([[4.],
           [4.]], dtype=float32)
    >>> jnp.array([4.0, 100.0]) @ weights["kernel"]  # 100 is out of the range
    Array([8., 8., 8.], dtype=float32)
    """
    run = jaxrewrite.transform(fn, **options)

    def calibrated(values: Any, batches: Iterable[Any]) -> Any:
        flat: tuple[list[Any], Any] = jax.tree.flatten(values, is_leaf=_is_quantised)
        leaves, treedef = flat
        record = _Record()
        observed = [record.observe(x) if _is_quantised(x) else x for x in leaves]
        if not any(map(_is_quantised, leaves)):
            raise ValueError("calibrate: there is no Quantised weight among the values.")
        count = 0
        for batch in batches:
            run(treedef.unflatten(observed), batch)
            count += 1
        jax.effects_barrier()
        if not count:
            raise ValueError(
                "calibrate: there are no batches, so the ranges are not known."
            )
        if not _is_seen(record.ranges):
            raise ValueError("calibrate: no Quantised weight met an array in a product.")
        return treedef.unflatten(map(_with_range, leaves, observed))

    return calibrated


def _is_quantised(x: Any) -> bool:
    return isinstance(x, Quantised)


def _is_seen(ranges: np.ndarray) -> bool:
    return not (ranges < 0).all()


class _Record:
    """What weights met: ``ranges`` has the largest magnitude for each number of an index.

    ``summed`` has the sets of axes that products summed, for each weight by its first number.
    """

    def __init__(self) -> None:
        self.ranges = np.zeros(0)
        self.summed: dict[int, set[frozenset[int]]] = {}
        self._shapes: dict[int, tuple[int, ...]] = {}

    def observe(self, v: Quantised) -> _Observed:
        """The weight, which notes in this record what it is multiplied with."""
        shape = (*v.shape[:-1], 1)
        start, count = len(self.ranges), math.prod(shape)
        self._shapes[start], self.summed[start] = shape, set()
        self.ranges = np.append(self.ranges, np.full(count, -1.0))
        own: Any = {"index": (start + jnp.arange(count)).reshape(shape)}
        return _Observed(v.q, v.scale, v.zero, record=self, **own)

    def note(
        self, index: Any, most: Any, *, summed: Sequence[int], sums_last: bool
    ) -> None:
        """Note a product that sums some axes of what ``index`` is of.

        ``sums_last`` tells whether the last axis of a weight is among them.
        """
        with np.errstate(invalid="ignore"):  # NaN is an error later on.
            np.maximum.at(self.ranges, np.ravel(index), np.asarray(most, np.float64))
        last = range(-len(summed), 0)
        lines = np.moveaxis(np.asarray(index), summed, last)
        kept = lines.shape[: lines.ndim - len(summed)]
        lines = lines.reshape(math.prod(kept), -1) if lines.size else np.zeros((0, 1), int)
        for start, shape in self._shapes.items():
            own = (lines >= start) & (lines < start + math.prod(shape))
            if own.any():
                places = np.unravel_index(np.where(own, lines - start, 0), shape)
                along = {k for k, place in enumerate(places) if _differ(place, own)}
                along |= {len(shape) - 1} if sums_last else set()
                self.summed[start].add(frozenset(along))


def _differ(places: np.ndarray, own: np.ndarray) -> bool:
    """Whether some of the numbers that are meant differ within a line."""
    low = np.where(own, places, places.max()).min(1)
    return bool((np.where(own, places, -1).max(1) > low).any())


class _Observed(Quantised):
    """A weight whose ``index`` says, wherever its entries go, where they came from.

    The index has a number for each entry, but one for all along the last axis. It is a leaf,
    and not metadata, so that a program may join several weights.
    """

    index: Array = jaxrewrite.field(kw_only=True)
    record: _Record = jaxrewrite.field(static=True, kw_only=True)


@jaxrewrite.register("dot_general", either=True)
def _(x: _Observed, y: ArrayLike, *, primitive, **params) -> Any:
    summed = params["dimension_numbers"][0][0 if isinstance(x, _Observed) else 1]
    return _noted(x, y, primitive, params, summed)


@jaxrewrite.register("conv_general_dilated")
def _(x: ArrayLike, v: _Observed, *, primitive, **params) -> Any:
    _, *summed = params["dimension_numbers"].rhs_spec
    return _noted(x, v, primitive, params, summed)


def _noted(
    x: Any, y: Any, primitive: Any, params: dict[str, Any], summed: Sequence[int]
) -> Any:
    v, other = (x, y) if isinstance(x, _Observed) else (y, x)
    sums_last = any(v.index.shape[i] < v.shape[i] for i in summed)
    note = functools.partial(v.record.note, summed=tuple(summed), sums_last=sums_last)
    jax.debug.callback(note, v.index, abs(jnp.asarray(other)).max(initial=0))
    plain = Quantised(v.q, v.scale, v.zero)
    operands = (plain if z is v else z for z in (x, y))
    return jaxrewrite.bind(primitive, *operands, **params)


def _with_range(v: Any, observed: Any) -> Any:
    if not _is_quantised(v):
        return v
    record = observed.record
    ranges = record.ranges[np.asarray(observed.index)]
    if not _is_seen(ranges):
        return v
    if not np.isfinite(ranges).all():
        raise ValueError(
            f"calibrate: a Quantised weight of shape {v.shape} met an array that is not finite."
        )
    along, *others = record.summed[int(np.ravel(observed.index)[0])]
    if others:
        return dataclasses.replace(v, activations="dynamic", activation_range=None)
    is_stack = v.ndim > 2 and 0 not in along
    most = ranges.max(tuple(range(int(is_stack), v.ndim)), keepdims=True)
    # An element of a stack that met nothing, such as an expert, has the largest range.
    most = np.where(most < 0, most.max(), most)
    sizes = zip(v.shape, most.shape, strict=True)
    shape = [n if i in along else k for i, (n, k) in enumerate(sizes)]
    found = jnp.asarray(np.broadcast_to(most, shape), jnp.float32)
    return dataclasses.replace(v, activations="static", activation_range=found)

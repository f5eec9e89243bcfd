"""Ranges of activations, from data."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
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
    a stack, for a loop over layers, has its own range.

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
    Array([[4.]], dtype=float32)
    >>> jnp.array([4.0, 100.0]) @ weights["kernel"]  # 100 is out of the range
    Array([8., 8., 8.], dtype=float32)
    """
    run = jaxrewrite.transform(fn, **options)

    def calibrated(values: Any, batches: Iterable[Any]) -> Any:
        flat: tuple[list[Any], Any] = jax.tree.flatten(values, is_leaf=_is_quantised)
        leaves, treedef = flat
        record = _Record(np.zeros(0))
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


@dataclasses.dataclass(eq=False)
class _Record:
    """The largest magnitude that each weight met, and each element of a stack of weights."""

    ranges: np.ndarray

    def observe(self, v: Quantised) -> _Observed:
        """The weight, which notes in this record what it is multiplied with."""
        count = v.shape[0] if v.ndim > 2 else 1
        index = jnp.arange(count) + len(self.ranges)
        self.ranges = np.append(self.ranges, np.full(count, -1.0))
        own: Any = {"index": index.reshape((count, *[1] * v.ndim)[: v.ndim])}
        return _Observed(v.q, v.scale, v.zero, record=self, **own)

    def note(self, index: Any, most: Any) -> None:
        with np.errstate(invalid="ignore"):  # NaN is an error later on.
            np.maximum.at(self.ranges, np.ravel(index), np.asarray(most, np.float64))


class _Observed(Quantised):
    """A weight whose ``index`` says, wherever its entries go, where they came from.

    The index is a leaf, and not metadata, so that a program may join several weights.
    """

    index: Array = jaxrewrite.field(kw_only=True)
    record: _Record = jaxrewrite.field(static=True, kw_only=True)


@jaxrewrite.register("dot_general", either=True)
def _(x: _Observed, y: ArrayLike, *, primitive, **params) -> Any:
    return _noted(x, y, primitive, params)


@jaxrewrite.register("conv_general_dilated")
def _(x: ArrayLike, v: _Observed, *, primitive, **params) -> Any:
    return _noted(x, v, primitive, params)


def _noted(x: Any, y: Any, primitive: Any, params: dict[str, Any]) -> Any:
    v, other = (x, y) if isinstance(x, _Observed) else (y, x)
    jax.debug.callback(v.record.note, v.index, abs(jnp.asarray(other)).max(initial=0))
    plain = Quantised(v.q, v.scale, v.zero)
    operands = (plain if z is v else z for z in (x, y))
    return jaxrewrite.bind(primitive, *operands, **params)


def _with_range(v: Any, observed: Any) -> Any:
    if not _is_quantised(v):
        return v
    ranges = observed.record.ranges[np.ravel(observed.index)]
    if not _is_seen(ranges):
        return v
    if not np.isfinite(ranges).all():
        raise ValueError(
            f"calibrate: a Quantised weight of shape {v.shape} met an array that is not finite."
        )
    # An element of a stack that met nothing, such as an expert, has the largest range.
    ranges = np.where(ranges < 0, ranges.max(), ranges)
    shape = (len(ranges), *[1] * v.ndim)[: v.ndim]
    found = jnp.asarray(ranges.reshape(shape), jnp.float32)
    return dataclasses.replace(v, activations="static", activation_range=found)

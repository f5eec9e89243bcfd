"""Ranges of activations, from data."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike

import jaxrewrite

from .._base.progress import Progress
from .._base.structured import dtype_of_sums
from .digits import largest
from .fit import fitted_to
from .fitted import METHODS, range_from
from .quantised import Quantised


def calibrate(
    fn: Callable[..., Any],
    *,
    method: str = "ranges",
    where: Callable[[str, Any], bool] | None = None,
    bits: int | None = None,
    block: int | None = None,
    ranges: str | tuple[str, float] = "max",
    progress: Progress | None = None,
    **options: Any,
) -> Callable[[Any, Iterable[Any]], Any]:
    r"""Fit quantised weights to data, or the ranges of what they are multiplied with.

    The result is a function of values and of batches of data, which returns other values. It
    calls ``transform(fn)(values, batch)`` for each batch. What each weight is multiplied with is
    seen by the rewriting, in any function, compiled or not, with loops and branches. It leaves
    the program by `jax.debug.callback`.

    ``method="ranges"``, the default, takes any pytree with `Quantised` weights in it, also
    within other values. It returns them with ``activations="static"`` and the largest
    magnitude that each weight met in products and convolutions with floating arrays. In these
    calls the activations are not rounded. A weight that met no array stays as it was. Each
    weight of a stack, for a loop over layers, has its own range. The range is repeated along
    the axes of the weight that the products summed. It holds for these axes: a product along
    others, such as that of a cotangent with the same weight, does not round. Where no range
    could tell activations from such cotangents, a weight has ``activations="dynamic"``: if its
    products summed different axes, only axes of length one, or a part of an axis that was
    reshaped, and for the kernel of a convolution with one feature in each group, as in a
    depthwise one.

    The other methods quantise floating weights, those that ``where`` chooses, so that products
    with the data change less than by rounding to the nearest. They go from one weight to the
    next in the order of the program, also from layer to layer of a scan, and each sees what the
    weights quantised before make of the data. Weights that meet the same array are taken together.

    ``"gptq"``
        Each row that is summed makes up for the error of those before it [1]_. The result is a
        `Quantised`. It needs the sum of :math:`x x^T`, in float32, of one such group of weights at
        a time.
    ``"awq"``
        Rows that meet large numbers are multiplied by more than one before they are rounded [2]_.
        The result is a `Product` of a `Diagonal` and a `Quantised`, for matrices and stacks of such.
        Parts of it, and heads, are `Rescaled`.
    ``"smoothquant"``
        The same for weights of 8 bits that round what they are multiplied with, too
        (``activations="dynamic"``) [3]_.

    These run the program once, and once more for each group of weights. The work on the weights
    themselves is done in NumPy.

    Parameters
    ----------
    fn
        A function of the values and of a batch. Its result is not used.
    method
        ``"ranges"``, ``"gptq"``, ``"awq"`` or ``"smoothquant"``.
    where
        Which floating arrays to quantise: a predicate of the path and the leaf, as in `quantise`.
        Not for ``"ranges"``.
    bits
        2 to 8. By default 4, or 8 for ``"smoothquant"``. Not for ``"ranges"``.
    block
        How many of the entries that are summed share a scale, for each of the others. It need not
        divide their number: the last block is then shorter, as with `quantise`, and the result has
        a `Concatenated` in place of the `Quantised`. By default all do. Not for ``"ranges"``.
    ranges
        The largest magnitude that the integers stand for, of a block or of activations:
        ``"max"``, the largest one; ``("max", part)``, a part of it; ``("rms", number)``, the root
        of the mean square times a number, but no more than the largest one; and for weights
        ``"search"``, the part that rounds the block with the least squared error. What
        is larger is cut off.
    progress
        A function to show the progress, such as ``tqdm.tqdm``, called with the paths of what is
        quantised together. For ``"ranges"``, the batches may be any iterable, such as
        ``tqdm.tqdm(batches)``.
    **options
        The options of `jaxrewrite.transform`.

    Raises
    ------
    ValueError
        If an option is none of these. By the returned function: if there is no `Quantised` in the
        values or ``where`` chose nothing, there are no batches, no weight met an array, or one met
        an array that is not finite; if it is called in a function that is compiled; and for the
        other methods if a chosen weight is not finite, met no array or one whose squares are too
        large for float32, products sum different axes of it, or its axes do not fit the method.

    References
    ----------
    .. [1] E. Frantar et al. (2023), GPTQ, arXiv:2210.17323, algorithm 1.
    .. [2] J. Lin et al. (2024), AWQ, arXiv:2306.00978, section 3.2.
    .. [3] G. Xiao et al. (2023), SmoothQuant, arXiv:2211.10438, equation 4.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> from jaxrewrite.values import Quantised, calibrate
    >>> weights = {"kernel": Quantised.quantise(jnp.ones((2, 3)), axis=-1)}
    >>> model = lambda weights, x: x @ weights["kernel"]
    >>> weights = calibrate(model)(weights, [jnp.array([[1.0, -4.0]]), jnp.ones((5, 2))])
    >>> weights["kernel"].activation_range
    Array([[4.],
           [4.]], dtype=float32)
    >>> jnp.array([4.0, 100.0]) @ weights["kernel"]  # 100 is out of the range
    Array([8., 8., 8.], dtype=float32)

    A floating weight, fitted to data in 3 bits:

    >>> x = jax.random.normal(jax.random.key(0), (64, 16)).cumsum(1)
    >>> params = {"kernel": jax.random.normal(jax.random.key(1), (16, 32))}
    >>> is_kernel = lambda path, leaf: path == "kernel"
    >>> fitted = calibrate(model, method="gptq", where=is_kernel, bits=3)(params, [x])
    >>> fitted["kernel"]
    Quantised<f32[16,32], 320 B>(q=Planes<i8[16,32], 192 B>, scale=f32[1,32], zero=None)
    """
    check_method(method, where, bits, block, progress)
    check_ranges(method, ranges)
    run = jaxrewrite.transform(fn, **options)

    if where is not None:
        default = 8 if method == "smoothquant" else 4
        return functools.partial(
            fitted_to,
            run,
            method=method,
            where=where,
            bits=default if bits is None else bits,
            block=block,
            ranges=ranges,
            progress=progress,
        )

    def calibrated(values: Any, batches: Iterable[Any]) -> Any:
        flat: tuple[list[Any], Any] = jax.tree.flatten(values, is_leaf=_is_quantised)
        leaves, treedef = flat
        record = _Record(ranges)
        observed = [record.observe(x) if _is_quantised(x) else x for x in leaves]
        weights = [x for x in observed if isinstance(x, _Observed)]
        if not weights:
            raise ValueError("calibrate: there is no Quantised weight among the values.")
        if any(isinstance(v.index, jax.core.Tracer) for v in weights):
            raise ValueError(
                "calibrate: the ranges leave a program as it runs, so calibrate may not be "
                "called in a function that is compiled. Its own function may be compiled."
            )
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


def check_method(method: str, where: Any, bits: Any, block: Any, progress: Any) -> None:
    """Raise `ValueError` unless the options are those of the method."""
    if method not in ("ranges", *METHODS):
        raise ValueError(
            f'calibrate: method is {method!r}; it must be "ranges", "gptq", "awq" or "smoothquant".'
        )
    if block is not None and not (isinstance(block, (int, np.integer)) and block > 0):
        raise ValueError(f"calibrate: block is {block!r}; it must be a positive integer.")
    given = {"where": where, "bits": bits, "block": block, "progress": progress}
    needless = [name for name, x in given.items() if x is not None]
    if method == "ranges" and needless:
        raise ValueError(
            f'calibrate: {needless[0]} is for method="gptq", "awq" and "smoothquant", which '
            "quantise floating weights."
        )
    if method != "ranges" and where is None:
        raise ValueError(
            f"calibrate: {method} needs where, which chooses the floating weights to quantise, such "
            'as lambda path, leaf: path.endswith("kernel").'
        )


def check_ranges(method: str, ranges: Any) -> None:
    """Raise `ValueError` unless this is how to take a range."""
    if ranges == "max" or ranges == "search" and method != "ranges":
        return
    is_pair = isinstance(ranges, tuple) and len(ranges) == 2
    if not is_pair or ranges[0] not in ("max", "rms") or not ranges[1] > 0:
        raise ValueError(
            f'calibrate: ranges is {ranges!r}; it must be "max", ("max", part), ("rms", number), or '
            'for weights "search".'
        )


def _is_quantised(x: Any) -> bool:
    return isinstance(x, Quantised)


def _is_seen(ranges: np.ndarray) -> bool:
    return not (ranges < 0).all()


class _Product(NamedTuple):
    """How a product uses a weight: by which of its axes, which are there once it is moved.

    ``kept`` are the axes longer than one that are neither batches nor summed. ``last`` are those
    that have a part of the last axis that the weight had. If not ``is_directed``, the product of
    a cotangent with the weight may sum the same axes.
    """

    batch: tuple[int, ...]
    summed: tuple[int, ...]
    kept: tuple[int, ...]
    last: frozenset[int]
    is_directed: bool = True


class _Met:
    """The products that a weight met.

    ``summed`` has the sets of axes that they summed. ``is_stack`` is true as long as none had
    several entries along the first axis, other than as batches.
    """

    def __init__(self, start: int, shape: tuple[int, ...]) -> None:
        self._start, self._shape = start, shape
        self.summed: set[frozenset[int]] = set()
        self.is_directed = True
        self.is_stack = len(shape) > 2

    def note(self, numbers: np.ndarray, is_met: np.ndarray, product: _Product) -> None:
        """Note a product by numbers along its batches, the axes it keeps, and those it sums."""
        indices = np.unravel_index(np.where(is_met, numbers - self._start, 0), self._shape)

        def of_weight(axis: int, parts: Sequence[int]) -> frozenset[int]:
            """The axes of the weight that lie along one of the numbers."""
            along = {k for k, index in enumerate(indices) if _differ(index, is_met, axis)}
            is_last = not product.last.isdisjoint(parts)
            return frozenset(along | {len(self._shape) - 1} if is_last else along)

        summed = of_weight(-1, product.summed)
        self.summed.add(summed)
        # A cotangent's product sums what is kept.
        kept = [of_weight(i, [part]) for i, part in enumerate(product.kept, 1)]
        is_apart = not kept or any(map(summed.isdisjoint, kept))
        self.is_directed &= product.is_directed and is_apart
        self.is_stack &= not _differ(indices[0], is_met, tuple(range(1, is_met.ndim)))


def _differ(indices: np.ndarray, is_met: np.ndarray, axes: Any) -> bool:
    """Whether some of the indices that were met differ along some axes."""
    most = np.where(is_met, indices, -1).max(axes)
    return bool((most > np.where(is_met, indices, indices.max()).min(axes)).any())


class _Record:
    """The products of all weights. ``ranges`` has the largest magnitude for each number of an index."""

    def __init__(self, of: str | tuple[str, float] = "max") -> None:
        self.ranges = np.zeros(0)
        self._of = of
        self._met: dict[int, _Met] = {}

    def observe(self, v: Quantised) -> _Observed:
        """The weight, which notes in this record the arrays that it is multiplied with."""
        shape = (*v.shape[:-1], 1)
        start, count = len(self.ranges), math.prod(shape)
        if count:
            self._met[start] = _Met(start, shape)
        self.ranges = np.append(self.ranges, np.full(count, -1.0))
        metadata: Any = {"index": (start + jnp.arange(count)).reshape(shape)}
        return _Observed(v.q, v.scale, v.zero, record=self, **metadata)

    def met(self, observed: _Observed) -> _Met:
        """The products that a weight with entries met."""
        return self._met[int(np.ravel(observed.index)[0])]

    def range_of(self, x: Any) -> Any:
        """The range of an array, which its largest magnitude bounds."""

        def mean_square() -> Any:
            squares = jnp.square(x.astype(dtype_of_sums(x.dtype)))
            return jnp.sum(squares) / max(x.size, 1)

        return range_from(jnp, self._of, largest(x, range(x.ndim)), mean_square)

    def note(self, product: _Product, index: Any, most: Any) -> None:
        """Note a product with what ``index`` is of, which may be several weights."""
        with np.errstate(invalid="ignore"):  # NaN is an error later on.
            np.maximum.at(self.ranges, np.ravel(index), np.asarray(most, np.float64))
        if not np.size(index):
            return
        array = np.asarray(index)
        batch, summed, kept = product[:3]
        short = [i for i in range(array.ndim) if i not in (*batch, *kept, *summed)]
        moved = array.transpose(*batch, *short, *kept, *summed)
        sizes = [array.shape[i] for i in kept]
        numbers = moved.reshape(math.prod(array.shape[i] for i in batch), *sizes, -1)
        starts = list(self._met)
        owners = np.searchsorted(starts, numbers, side="right") - 1
        for owner in np.unique(owners):
            self._met[starts[owner]].note(numbers, owners == owner, product)


class _Observed(Quantised):
    """A weight whose ``index`` says, wherever its entries go, where they came from.

    The index has a number for each entry, but one for all along the last axis. It is a leaf,
    and not metadata, so that a program may join several weights.
    """

    index: Array = jaxrewrite.field(kw_only=True)
    record: _Record = jaxrewrite.field(static=True, kw_only=True)

    # The index may have a number for each entry, where the weight itself stays small.
    _may_grow = frozenset({"index"})

    @property
    def sees_operands(self) -> bool:
        return True

    def encoded(self, x: jax.Array, sizes: Sequence[int]) -> Any:
        """What a program writes has no index."""
        return NotImplemented


@jaxrewrite.register("dot_general", exchange="types")
def _(x: _Observed, y: ArrayLike, *, primitive, **params) -> Any:
    side = 0 if isinstance(x, _Observed) else 1
    summed, batch = (axes[side] for axes in params["dimension_numbers"])
    return _noted(x, y, primitive, params, batch, summed)


@jaxrewrite.register("conv_general_dilated")
def _(x: ArrayLike, v: _Observed, *, primitive, **params) -> Any:
    features, *summed = params["dimension_numbers"].rhs_spec
    # The kernel of a cotangent's convolution has the features of a group as its input.
    of_group = v.shape[features] // (
        params["feature_group_count"] * params["batch_group_count"]
    )
    return _noted(x, v, primitive, params, (), summed, is_directed=of_group > 1)


def _noted(
    x: Any,
    y: Any,
    primitive: Any,
    params: dict[str, Any],
    batch: Sequence[int],
    summed: Sequence[int],
    is_directed: bool = True,
) -> Any:
    v, other = (x, jnp.asarray(y)) if isinstance(x, _Observed) else (y, jnp.asarray(x))
    plain = Quantised(v.q, v.scale, v.zero)
    operands = (plain if z is v else z for z in (x, y))
    product = jaxrewrite.bind(primitive, *operands, **params)
    if not jnp.issubdtype(other.dtype, jnp.floating):
        return product  # Integers are not rounded.
    used = {*batch, *summed}
    kept = [i for i, n in enumerate(v.shape) if n > 1 and i not in used]
    last = frozenset(i for i, n in enumerate(v.shape) if v.index.shape[i] < n)
    use = _Product(tuple(batch), tuple(summed), tuple(kept), last, is_directed)
    note = functools.partial(v.record.note, use)
    jax.debug.callback(note, v.index, v.record.range_of(other))
    return product


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
    met = record.met(observed)
    along, *others = met.summed
    if others or not (along and met.is_directed):
        return dataclasses.replace(v, activations="dynamic", activation_range=None)
    most = ranges.max(tuple(range(int(met.is_stack), v.ndim)), keepdims=True)
    # An element of a stack that met nothing, such as an expert, has the largest range.
    most = np.where(most < 0, most.max(), most)
    sizes = zip(v.shape, most.shape, strict=True)
    shape = [n if i in along else k for i, (n, k) in enumerate(sizes)]
    activation_range = jnp.asarray(np.broadcast_to(most, shape), jnp.float32)
    return dataclasses.replace(v, activations="static", activation_range=activation_range)

"""`LowRank`: an array as the product of two factors.

The axes of the factors have labels. The label of an axis of the array is its position. The
axis along which the factors are multiplied has the label `RANK`. A function of some axes
acts on the factors that have their labels, and `build` makes an array of the new factors.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, ArrayLike

import jaxrewrite
from jaxrewrite import ArrayValue
from jaxrewrite.primitives import ADDITIVE

from .._base.contract import (
    along_result,
    contract,
    intermediate,
    is_or_none,
    labels,
    transpose,
)
from .._base.gathers import fills, in_range
from .._base.structured import Structured, inexact, is_linear_cast
from .algebra import LinearAlgebra
from .sum import sum_of


RANK = "rank"


class LowRank(LinearAlgebra, Structured):
    r"""An array of low rank, the product of two factors.

    For matrices

    .. math:: v_{ij} = \sum_{k=1}^r a_{ik} b_{kj},

    which takes :math:`r (n + m)` numbers, and as many multiplications for a product with
    a vector. Both indices may stand for several axes, anywhere in the shape of the
    array. There may be batch axes, which both factors have.

    A transpose changes only metadata. Slices, rows looked up, reshapes that split or join
    row axes (or column axes), and scaling by rows or by columns act on one of the factors.
    The rank of a sum is the sum of the ranks. A product with an array multiplies it by one
    factor after the other, in the cheaper order, and is dense. A product with another value
    has low rank.

    Parameters
    ----------
    a
        The first factor, of shape ``(*batch, *rows, rank)``.
    b
        The second factor, of shape ``(*batch, rank, *columns)``. The dtype of the array is
        the promoted dtype of the two factors.
    rows, cols
        The positions of the row axes and of the column axes in the shape of the array, in
        the order of the factors. The other axes are the batch axes. By default these are
        the last two axes, as in a matrix. The positions are kept as negative numbers,
        counted from the end, so that a new leading axis of both factors is a batch axis.

    Raises
    ------
    ValueError
        If the shapes of ``a`` and ``b`` do not fit each other or ``rows`` and ``cols``, or
        if ``rows`` and ``cols`` overlap or are out of range.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, jaxrewrite
    >>> from jaxrewrite.values import LowRank
    >>> v = LowRank(jnp.ones((300, 2)), jnp.ones((2, 400)))
    >>> v
    LowRank<f32[300,400], 5.6 kB>(a=f32[300,2], b=f32[2,400], rows=(-2,), cols=(-1,))
    >>> heads = jaxrewrite.transform(lambda v: v.T.reshape(8, 50, 300))(v)
    >>> heads
    LowRank<f32[8,50,300], 5.6 kB>(a=f32[300,2], b=f32[2,8,50], rows=(-1,), cols=(-3, -2))
    >>> jnp.ones(300) @ v
    Array([600., 600., ...], dtype=float32)
    """

    compiles_materialise = True

    outer = -60

    a: Array
    b: Array
    rows: tuple[int, ...] = jaxrewrite.field(static=True)
    cols: tuple[int, ...] = jaxrewrite.field(static=True)

    def __init__(
        self,
        a: Any,
        b: Any,
        rows: Iterable[int] | None = None,
        cols: Iterable[int] | None = None,
    ):
        rows, cols = checked_axes("LowRank", a, b, rows, cols)
        self.__dict__.update(a=a, b=b, rows=rows, cols=cols)

    @classmethod
    def from_svd(cls, w: ArrayLike, rank: int) -> LowRank:
        r"""The array of a given rank that is nearest to ``w``, in the last two axes.

        With :math:`w = u \, \mathrm{diag}(s) \, v^*` cut off after the ``rank`` largest
        singular values, ``a`` is :math:`u \sqrt{s}` and ``b`` is
        :math:`\sqrt{s} \, v^*` (Eckart and Young, Psychometrika 1, 1936).

        Raises
        ------
        ValueError
            If ``w`` has fewer than two axes, or ``rank`` is out of range.

        Examples
        --------
        >>> import jax.numpy as jnp
        >>> from jaxrewrite.values import LowRank
        >>> low_rank = LowRank.from_svd(jnp.outer(jnp.arange(1., 4.), jnp.ones(2)), 1)
        >>> jnp.round(low_rank.materialise()).astype(int)
        Array([[1, 1], [2, 2], [3, 3]], dtype=int32)
        """
        w = jnp.asarray(w)
        if w.ndim < 2:
            raise ValueError(f"LowRank.from_svd: w has shape {w.shape}, not two axes.")
        if not 0 <= rank <= min(w.shape[-2:]):
            raise ValueError(
                f"LowRank.from_svd: rank is {rank}, but w, of shape {w.shape}, has rank "
                f"{min(w.shape[-2:])} at most."
            )
        u, s, vh = jnp.linalg.svd(w, full_matrices=False)
        root = jnp.sqrt(s[..., :rank])
        return cls(u[..., :rank] * root[..., None, :], root[..., None] * vh[..., :rank, :])

    @property
    def rank(self) -> int:
        """The number of columns of ``a``."""
        return self.a.shape[-1]

    def aval(self) -> Any:
        a, b = factors(self)
        sizes = {**sizes_of(a), **sizes_of(b)}
        shape = tuple(sizes[i] for i in range(len(sizes) - 1))
        return jax.ShapeDtypeStruct(shape, jnp.result_type(self.a.dtype, self.b.dtype))

    def materialise(self) -> Any:
        return multiplied_out(*factors(self))

    def known_diagonal(self) -> Any:
        if self.as_matrices() is None:
            return NotImplemented
        a, b = self.as_matrices()
        n = min(self.shape[-2:])
        return jnp.einsum("...ik,...ki->...i", a[..., :n, :], b[..., :n])

    def known_eigenvalues(self) -> Any:
        """The eigenvalues of ``b @ a``, which is smaller, and zeros."""
        n = self.shape[-1]
        if self.as_matrices() is None or self.shape[-2] != n or self.rank > n:
            return NotImplemented
        a, b = self.as_matrices()
        eigenvalues = jnp.linalg.eigvals(b @ a)
        return jnp.pad(
            eigenvalues, [(0, 0)] * (eigenvalues.ndim - 1) + [(0, n - self.rank)]
        )

    def known_reduced_svd(self) -> Any:
        """The decomposition of the small matrix between orthonormal columns and rows."""
        pair = self.as_matrices()
        if pair is None or self.rank > min(self.shape[-2:]):
            return NotImplemented
        a, b = pair
        left, of_left = jnp.linalg.qr(a)
        right, of_right = jnp.linalg.qr(jnp.swapaxes(b, -1, -2))
        inside = jnp.matmul(of_left, jnp.swapaxes(of_right, -1, -2), precision=_HIGHEST)
        u, size, vh = jnp.linalg.svd(inside)
        dot = functools.partial(jnp.matmul, precision=_HIGHEST)
        return dot(left, u), size, dot(vh, jnp.swapaxes(right, -1, -2))

    def known_singular_values(self) -> Any:
        """The singular values, and zeros.

        The derivative is that of the singular values of the dense array, which exists where
        the derivative of a QR factorisation does not.
        """
        if self.as_matrices() is None or self.rank > min(self.shape[-2:]):
            return NotImplemented
        size = _singular_values(*self.as_matrices())
        missing = min(self.shape[-2:]) - self.rank
        return jnp.pad(size, [(0, 0)] * (size.ndim - 1) + [(0, missing)])

    def as_matrices(self) -> Any:
        r"""The factors of shapes (\*batch, n, r) and (\*batch, r, m), if they are matrices."""
        dtype = self.dtype
        a, b = self.a.astype(dtype), self.b.astype(dtype)
        if (self.rows, self.cols) == ((-2,), (-1,)):
            return a, b
        if (self.rows, self.cols) == ((-1,), (-2,)):
            return jnp.swapaxes(b, -1, -2), jnp.swapaxes(a, -1, -2)
        return None

    def join(self, other: Any) -> Any:
        if not isinstance(other, LowRank):
            return NotImplemented
        pair, other_pair = factors(self), factors(other)
        if [f.labels for f in pair] != [f.labels for f in other_pair]:
            # The order makes one layout for both, in whichever order they join.
            pair = in_order(pair)
            other_pair = in_order(other_pair)
            if [f.labels for f in pair] != [f.labels for f in other_pair]:
                return NotImplemented
        a, b = (alike(RANK, f, g) for f, g in zip(pair, other_pair, strict=True))
        out = range(self.ndim)
        return build(a[0], b[0], out), build(a[1], b[1], out)

    def stacked(self, size: int) -> LowRank:
        return self

    def sliceable(self) -> Any:
        """The same array, with its first axis in both factors if they stay the smaller ones."""
        shape = self.shape
        a, b = (f if 0 in f.labels else broadcast(f, [0], shape) for f in factors(self))
        if not shape or a.x.size + b.x.size >= math.prod(shape):
            return self
        led = build(a, b, range(len(shape)))
        return led if isinstance(led, LowRank) else self

    def unstacked(self) -> Any:
        return self if leads_with_batch(self) else NotImplemented

    def leaf_specs(self, spec: Any) -> LowRank:
        a, b = factors(self)
        ndim = len({*a.labels, *b.labels}) - 1
        parts: dict[Any, Any] = dict(enumerate((*spec, *[None] * (ndim - len(spec)))))
        parts[RANK] = None
        own, other = (jax.sharding.PartitionSpec(*map(parts.get, f.labels)) for f in (a, b))
        specs: dict[str, Any] = {"a": own, "b": other}
        return dataclasses.replace(self, **specs)


_HIGHEST = lax.Precision.HIGHEST


@jax.custom_jvp
def _singular_values(a: Any, b: Any) -> Any:
    return LowRank(a, b).known_reduced_svd()[1]


@_singular_values.defjvp
def _(primals: Any, tangents: Any) -> Any:
    """The diagonal of u* (da b + a db) v."""
    (a, b), (a_dot, b_dot) = primals, tangents
    u, size, vh = LowRank(a, b).known_reduced_svd()
    dot = functools.partial(jnp.matmul, precision=_HIGHEST)
    v = jnp.conj(jnp.swapaxes(vh, -1, -2))
    inside = dot(a_dot, dot(b, v)) + dot(a, dot(b_dot, v))
    return size, (jnp.conj(u) * inside).sum(-2).real.astype(size.dtype)


def checked_axes(
    name: str, a: Any, b: Any, rows: Iterable[int] | None, cols: Iterable[int] | None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Check ``rows`` and ``cols`` against the factors, and count them from the end.

    A field without a shape is not an array. JAX may put something else in its place, such
    as the axis of `jax.vmap`. Such fields are not checked.
    """
    rows = (-2,) if rows is None else tuple(rows)
    cols = (-1,) if cols is None else tuple(cols)
    if not (hasattr(a, "shape") and hasattr(b, "shape")):
        return rows, cols
    batch = a.ndim - 1 - len(rows)
    ndim = batch + len(rows) + len(cols)
    for field, factor, axes in (("a", a, rows), ("b", b, cols)):
        if batch < 0 or factor.ndim != batch + 1 + len(axes):
            raise ValueError(
                f"{name}: {field} has shape {factor.shape}, but with rows={rows} and "
                f"cols={cols}, a has shape (*batch, *rows, rank) and b has shape "
                "(*batch, rank, *cols)."
            )
    if (a.shape[:batch], a.shape[-1]) != (b.shape[:batch], b.shape[batch]):
        raise ValueError(
            f"{name}: a has shape {a.shape} and b has shape {b.shape}. They must agree "
            f"in the first {batch} axes, the batch axes, and in the rank. The rank is "
            "the last axis of a and the first axis of b after the batch axes."
        )
    for field, axes in (("rows", rows), ("cols", cols)):
        if not all(-ndim <= axis < ndim for axis in axes):
            raise ValueError(f"{name}: {field}={axes} is out of range for {ndim} axes.")
    rows, cols = (tuple(axis % ndim - ndim for axis in axes) for axes in (rows, cols))
    if len({*rows, *cols}) != len(rows) + len(cols):
        raise ValueError(f"{name}: rows={rows} and cols={cols} name an axis twice.")
    return rows, cols


# --- factors with their axes labelled -----------------------------------------------


class Factor(NamedTuple):
    """An array, and the labels of its axes."""

    x: Any
    labels: tuple[Any, ...]


Pair = tuple[Factor, Factor]


def factors(v: LowRank) -> Pair:
    """Both factors, labelled by the positions in the shape of the array and `RANK`."""
    ndim = v.a.ndim - 1 + len(v.cols)
    rows, cols = ([axis % ndim for axis in axes] for axes in (v.rows, v.cols))
    batch = [i for i in range(ndim) if i not in rows and i not in cols]
    return Factor(v.a, (*batch, *rows, RANK)), Factor(v.b, (*batch, RANK, *cols))


def leads_with_batch(element: Any) -> bool:
    """Whether a new leading axis of the factors would be a batch axis of the array."""
    ndim = element.a.ndim - 1 + len(element.cols)
    return -ndim - 1 not in (*element.rows, *element.cols)


def sizes_of(*fs: Factor) -> dict[Any, int]:
    return {label: n for f in fs for label, n in zip(f.labels, f.x.shape, strict=True)}


def build(a: Factor, b: Factor, out: Sequence[Any]) -> Any:
    """The array with the axes ``out`` that is the product of two factors.

    An array without row axes or without column axes is dense, since that takes less room
    than the factors. A sum over an axis of both factors is dense, too.
    """
    rows = tuple(label for label in a.labels if label not in b.labels)
    cols = tuple(label for label in b.labels if label not in a.labels)
    batch = tuple(label for label in out if label not in rows and label not in cols)
    is_sum = len(batch) + len(rows) + 1 < len(a.labels)
    if is_sum or not rows or not cols:
        return contract(a.x, a.labels, b.x, b.labels, out)
    positions = {label: i - len(out) for i, label in enumerate(out)}
    return LowRank(
        transpose(a.x, a.labels, (*batch, *rows, RANK)),
        transpose(b.x, b.labels, (*batch, RANK, *cols)),
        [positions[label] for label in rows],
        [positions[label] for label in cols],
    )


def multiplied_out(a: Factor, b: Factor) -> Any:
    """The dense product of two factors with positions as labels."""
    out = range(len({*a.labels, *b.labels}) - 1)
    return contract(a.x, a.labels, b.x, b.labels, out)


def smaller(a: Factor, b: Factor) -> int:
    """The index of the factor with fewer entries: 0 or 1."""
    return 0 if math.prod(a.x.shape) <= math.prod(b.x.shape) else 1


def in_order(pair: Pair) -> Pair:
    """Sort the axes of both factors; the factor with the lowest axis comes first."""
    both = {*pair[0].labels} & {*pair[1].labels}
    free = [sorted(x for x in f.labels if x not in both) for f in pair]
    batch = sorted(both - {RANK})
    if free[1] < free[0]:
        pair, free = pair[::-1], free[::-1]
    orders = (*batch, *free[0], RANK), (*batch, RANK, *free[1])
    a, b = (
        Factor(transpose(f.x, f.labels, order), order)
        for f, order in zip(pair, orders, strict=True)
    )
    return a, b


def align(pair: Pair, like: Pair) -> Pair | None:
    """Give factors the axis order of ``like``, swapped if needed; ``None`` if impossible."""
    for f, g in (pair, pair[::-1]):
        if set(f.labels) == set(like[0].labels) and set(g.labels) == set(like[1].labels):
            f, g = (
                Factor(transpose(factor.x, factor.labels, wanted.labels), wanted.labels)
                for factor, wanted in zip((f, g), like, strict=True)
            )
            return f, g
    return None


def without(f: Factor, dropped: Iterable[Any]) -> Factor:
    """A factor without the axes ``dropped``, which have size 1."""
    axes = [f.labels.index(label) for label in dropped if label in f.labels]
    if not axes:
        return f
    rest = tuple(label for i, label in enumerate(f.labels) if i not in axes)
    return Factor(lax.squeeze(f.x, axes), rest)


def broadcast(f: Factor, new: Iterable[Any], shape: Sequence[int]) -> Factor:
    """A factor with new axes, and with the sizes in ``shape`` for all axes but the rank."""
    wanted = (*new, *f.labels)
    sizes: dict[Any, int] = {**dict(enumerate(shape)), RANK: sizes_of(f)[RANK]}
    target = tuple(sizes[label] for label in wanted)
    if target == f.x.shape:
        return f
    positions = range(len(wanted) - len(f.labels), len(wanted))
    return Factor(lax.broadcast_in_dim(f.x, target, positions), wanted)


def resized(f: Factor, label: Any, low: int, high: int) -> Factor:
    """A factor with zeros added before and after its entries along an axis."""
    if not (low or high):
        return f
    widths = [(low, high) if axis == label else (0, 0) for axis in f.labels]
    return Factor(jnp.pad(f.x, widths), f.labels)


def alike(label: Any, *fs: Factor) -> list[Factor]:
    """Pad factors of the same labels to one length along an axis, and to one dtype."""
    n = max(sizes_of(f)[label] for f in fs)
    dtype = jnp.result_type(*(f.x.dtype for f in fs))
    return [
        Factor(resized(f, label, 0, n - sizes_of(f)[label]).x.astype(dtype), f.labels)
        for f in fs
    ]


def by_axis(f: Factor, of_axes: Sequence[Any], of_rank: Any) -> list[Any]:
    """Items for each axis of a factor, from the items for each axis of the array."""
    return [of_rank if label == RANK else of_axes[label] for label in f.labels]


# --- linear functions of one array ------------------------------------------------------


LINEAR: dict[str, Callable[..., Any]] = {}
"""Functions of a `LowRank` and dense operands, by the name of their primitive."""


def linear(name: str) -> Callable[[Any], Any]:
    def add(fn: Any) -> Any:
        LINEAR[name] = fn
        return fn

    return add


@linear("neg")
def _(v: LowRank) -> Any:
    pair = list(factors(v))
    i = smaller(*pair)
    pair[i] = pair[i]._replace(x=-pair[i].x)
    return build(pair[0], pair[1], range(v.ndim))


@linear("conj")
def _(v: LowRank, **params: Any) -> Any:
    a, b = (f._replace(x=lax.conj(f.x)) for f in factors(v))
    return build(a, b, range(v.ndim))


@linear("convert_element_type")
def converted(v: LowRank, *, new_dtype: Any, **params: Any) -> Any:
    if not is_linear_cast(v, new_dtype):
        return NotImplemented
    return LowRank(v.a.astype(new_dtype), v.b.astype(new_dtype), v.rows, v.cols)


@linear("transpose")
def _(v: LowRank, *, permutation: Any) -> Any:
    return build(*factors(v), permutation)


@linear("squeeze")
def _(v: LowRank, *, dimensions: Any) -> Any:
    a, b = (without(f, dimensions) for f in factors(v))
    return build(a, b, [i for i in range(v.ndim) if i not in dimensions])


@linear("reduce_sum")
def _(v: LowRank, *, axes: Any, **params: Any) -> Any:
    a, b = factors(v)

    def summed(f: Factor, other: Factor) -> Factor:
        # Both factors change along a batch axis, so the product must sum over it.
        free = [i for i in axes if i in f.labels and i not in other.labels]
        if not free:
            return f
        rest = tuple(label for label in f.labels if label not in free)
        return Factor(f.x.sum(tuple(map(f.labels.index, free)), dtype=f.x.dtype), rest)

    return build(summed(a, b), summed(b, a), [i for i in range(v.ndim) if i not in axes])


@linear("cumsum")
def _(v: LowRank, *, axis: int, reverse: bool) -> Any:
    a, b = factors(v)
    if axis in a.labels and axis in b.labels:
        return NotImplemented

    def summed(f: Factor) -> Factor:
        if axis not in f.labels:
            return f
        return f._replace(x=lax.cumsum(f.x, f.labels.index(axis), reverse=reverse))

    return build(summed(a), summed(b), range(v.ndim))


@linear("rev")
def _(v: LowRank, *, dimensions: Any) -> Any:
    a, b = (
        f._replace(x=lax.rev(f.x, [f.labels.index(i) for i in dimensions if i in f.labels]))
        for f in factors(v)
    )
    return build(a, b, range(v.ndim))


@linear("slice")
def _(v: LowRank, *, start_indices: Any, limit_indices: Any, strides: Any) -> Any:
    steps = strides or (1,) * v.ndim

    def cut(f: Factor) -> Factor:
        limits = by_axis(f, limit_indices, v.rank)
        return f._replace(
            x=lax.slice(f.x, by_axis(f, start_indices, 0), limits, by_axis(f, steps, 1))
        )

    a, b = map(cut, factors(v))
    return build(a, b, range(v.ndim))


@linear("dynamic_slice")
def _(v: LowRank, *starts: Any, slice_sizes: Any) -> Any:
    def cut(f: Factor) -> Factor:
        sizes = by_axis(f, slice_sizes, v.rank)
        if tuple(sizes) == f.x.shape:
            return f
        zero = jnp.zeros_like(starts[0])
        return f._replace(
            x=lax.dynamic_slice(
                f.x, by_axis(f, starts, zero), sizes, allow_negative_indices=False
            )
        )

    a, b = map(cut, factors(v))
    return build(a, b, range(v.ndim))


@linear("pad")
def _(v: LowRank, value: Any, *, padding_config: Any) -> Any:
    # The number that padding adds may not be zero, so padding that adds entries declines.
    if any(low > 0 or high > 0 or inner for low, high, inner in padding_config):
        return NotImplemented
    a, b = (
        f._replace(
            x=lax.pad(f.x, jnp.zeros((), f.x.dtype), by_axis(f, padding_config, (0, 0, 0)))
        )
        for f in factors(v)
    )
    return build(a, b, range(v.ndim))


@linear("broadcast_in_dim")
def _(v: LowRank, *, shape: Any, broadcast_dimensions: Any, **params: Any) -> Any:
    a, b = (Factor(f.x, tuple(by_axis(f, broadcast_dimensions, RANK))) for f in factors(v))
    sizes = sizes_of(a, b)
    units = [i for i, n in enumerate(shape) if i not in sizes and n == 1]
    # Repeated axes go into one factor, axes of size 1 go into both.
    repeated = [i for i, n in enumerate(shape) if i not in sizes and n != 1]
    grown = [i for i in a.labels if i in b.labels and i != RANK and sizes[i] != shape[i]]
    pair = [without(f, grown) for f in (a, b)]
    more: list[list[Any]] = [[], []]
    more[smaller(*pair)] = grown + repeated
    a, b = (broadcast(f, new + units, shape) for f, new in zip(pair, more, strict=True))
    return build(a, b, range(len(shape)))


@linear("reshape")
def _(v: LowRank, *, new_sizes: Any, dimensions: Any, **params: Any) -> Any:
    if dimensions is not None or 0 in v.shape:
        return NotImplemented
    shape = v.shape
    blocks = matching_blocks(shape, new_sizes)
    # Old labels are positions in the old shape, new labels are positions in the new shape.
    a, b = (without(f, [i for i, n in enumerate(shape) if n == 1]) for f in factors(v))
    for old, _ in blocks:
        pair = with_axes_together(a, b, old, v.size)
        if pair is None:
            return NotImplemented
        a, b = pair
    both = {*a.labels} & {*b.labels}
    becomes = {old[0]: new for old, new in blocks}
    units = [i for i, n in enumerate(new_sizes) if n == 1]

    def reshaped(f: Factor) -> Factor:
        # A reshape needs the axes of a block in their order and next to each other.
        shared = sorted(label for label in f.labels if label in both and label != RANK)
        own = sorted(label for label in f.labels if label not in both)
        ordered = (*shared, *own, RANK) if f.labels[-1] == RANK else (*shared, RANK, *own)
        wanted: list[Any] = []
        for label in ordered:
            wanted += [RANK] if label == RANK else becomes.get(label, [])
        x = transpose(f.x, f.labels, ordered)
        rank = sizes_of(f)[RANK]
        sizes = [rank if label == RANK else new_sizes[label] for label in wanted]
        return broadcast(Factor(x.reshape(sizes), tuple(wanted)), units, new_sizes)

    return build(reshaped(a), reshaped(b), range(len(new_sizes)))


def with_axes_together(a: Factor, b: Factor, axes: Sequence[Any], most: int) -> Pair | None:
    """Factors of the same array, one of which has all of these axes, and no other has some.

    Axes that change factors multiply the rank by their sizes. In the gradient of a
    convolution with groups, the axis of the groups, of the output features before, belongs
    to the input features. ``None`` stands for factors that would have ``most`` entries or
    more, or that would be a dense array in two parts.
    """
    both = {*a.labels} & {*b.labels}
    if any(
        kind.issuperset(axes) for kind in (both, {*a.labels} - both, {*b.labels} - both)
    ):
        return a, b
    if not both.isdisjoint(axes):
        return None
    by_size: dict[int, tuple[Factor, Factor, list[Any], bool]] = {}
    for f, g, is_turned in ((a, b, False), (b, a, True)):
        moved = [label for label in axes if label in g.labels]
        times = math.prod(sizes_of(g)[label] for label in moved)
        size = f.x.size * times**2 + g.x.size
        if size < most and not {*g.labels} - both <= {*moved}:
            by_size[size] = f, g, moved, is_turned
    if not by_size:
        return None
    f, g, moved, is_turned = by_size[min(by_size)]
    pair = with_more_axes(f, g, moved)
    return pair[::-1] if is_turned else pair


def with_more_axes(a: Factor, b: Factor, moved: Sequence[Any]) -> Pair:
    r"""Factors of the same array, where the first has some axes of the second.

    With :math:`I` for the identity, :math:`\sum_r a_{ir} b_{rgj} = \sum_{rh} (a_{ir} I_{gh})
    b_{rhj}`.
    """
    rank = sizes_of(a)[RANK]
    for axis in moved:
        size = sizes_of(b)[axis]
        rank *= size
        labels = tuple(label for label in a.labels if label != RANK)
        identity = jnp.eye(size, dtype=a.x.dtype)
        wide = contract(*a, identity, (axis, "new"), (*labels, axis, RANK, "new"))
        a = Factor(wide.reshape(*wide.shape[:-2], rank), (*labels, axis, RANK))
        rest = [label for label in b.labels if label not in (axis, RANK)]
        shared = [label for label in rest if label in labels]
        last = [label for label in rest if label not in labels]
        x = transpose(b.x, b.labels, (*shared, RANK, axis, *last))
        sizes = [sizes_of(b)[label] for label in last]
        x = x.reshape(*x.shape[: len(shared)], rank, *sizes)
        b = Factor(x, (*shared, RANK, *last))
    return a, b


def matching_blocks(
    old: Sequence[int], new: Sequence[int]
) -> list[tuple[list[int], list[int]]]:
    """The runs of axes that a reshape turns into each other, without axes of size 1."""
    left = [i for i, n in enumerate(old) if n != 1]
    right = [i for i, n in enumerate(new) if n != 1]
    blocks = []
    while left:
        olds, news = [left.pop(0)], [right.pop(0)]
        m, n = old[olds[0]], new[news[0]]
        while m != n:
            if m < n:
                olds.append(left.pop(0))
                m *= old[olds[-1]]
            else:
                news.append(right.pop(0))
                n *= new[news[-1]]
        blocks.append((olds, news))
    return blocks


@linear("gather")
def _(
    v: LowRank, indices: Any, *, dimension_numbers: Any, slice_sizes: Any, **params: Any
) -> Any:
    """Gather from each factor by the indices along its axes.

    Only matrices of a stack can be filled in, where both factors are: derivatives of a factor
    that is not would meet what is filled into the other one.
    """
    numbers = dimension_numbers
    is_filled, fill = fills(params["mode"]), params["fill_value"]
    # A slice of a whole axis has only one place, unless entries are filled in.
    starts = [
        (i, k)
        for k, i in enumerate(numbers.start_index_map)
        if is_filled or slice_sizes[i] != v.shape[i]
    ]
    a, b = factors(v)
    in_both = {*a.labels} & {*b.labels}
    if not starts or (is_filled and not {i for i, _ in starts} <= in_both):
        return NotImplemented
    dropped = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    moved = {i for i in range(v.ndim) if slice_sizes[i] != v.shape[i]}
    moved |= dropped | {i for i, _ in starts}
    own_params = params | {"fill_value": 0} if is_filled else params
    is_indexed = [not moved.isdisjoint(f.labels) for f in (a, b)]

    # The axes of the result; the axes of the slices keep their old labels.
    kept = [i for i in range(v.ndim) if i not in dropped]
    ndim = len(kept) + indices.ndim - 1
    offset = dict(zip(numbers.offset_dims, kept, strict=True))
    out: list[Any] = [offset.get(i, ("index", i)) for i in range(ndim)]

    def gathered(f: Factor) -> Factor:
        own = [label for label in out if label in f.labels or isinstance(label, tuple)]
        own.append(RANK)
        place = f.labels.index
        pairs = zip(
            numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True
        )
        batching = sorted((place(i), j) for i, j in pairs if i in f.labels)
        collapsed = [i for i in numbers.collapsed_slice_dims if i in f.labels]
        along = [(place(i), k) for i, k in starts if i in f.labels]
        offset_labels = [label for label in f.labels if label not in dropped]
        # The axes of the slices keep the order of the operand's axes.
        wanted = iter(offset_labels)
        own = [label if isinstance(label, tuple) else next(wanted) for label in own]
        renumbered = lax.GatherDimensionNumbers(
            offset_dims=tuple(i for i, x in enumerate(own) if not isinstance(x, tuple)),
            collapsed_slice_dims=tuple(sorted(map(place, collapsed))),
            start_index_map=tuple(i for i, _ in along),
            operand_batching_dims=tuple(i for i, _ in batching),
            start_indices_batching_dims=tuple(j for _, j in batching),
        )
        sizes = tuple(by_axis(f, slice_sizes, sizes_of(f)[RANK]))
        own_indices = _columns(indices, [k for _, k in along])
        x = lax.gather(f.x, own_indices, renumbered, sizes, **own_params)
        return Factor(x, tuple(own))

    a, b = (gathered(f) if n else f for f, n in zip((a, b), is_indexed, strict=True))
    result = build(a, b, out)
    if not is_filled or fill == 0:
        return result
    if not isinstance(result, LowRank) or a.x.dtype != b.x.dtype:
        return NotImplemented
    inside = in_range(v.shape, indices, numbers, slice_sizes)
    return plus(result, _outside(inside, fill, result))


def _outside(inside: Any, number: Any, like: LowRank) -> LowRank:
    """A number where a condition on batch axes does not hold, and zeros elsewhere."""
    a, b = factors(like)
    left, right = (jnp.ones(by_axis(f, like.shape, 1), f.x.dtype) for f in (a, b))
    inside = along_result(inside, tuple(range(like.ndim)), b.labels)
    x = jnp.where(inside, 0, jnp.asarray(number, right.dtype) * right)
    return LowRank(left, x, like.rows, like.cols)


def _columns(indices: Any, which: Sequence[int]) -> Any:
    if len(which) == indices.shape[-1]:
        return indices
    return jnp.concatenate(
        [indices[..., :0], *(indices[..., k : k + 1] for k in which)], -1
    )


@jaxrewrite.register(*LINEAR)
def _(v: LowRank, *operands: ArrayLike, primitive, **params) -> Any:
    return LINEAR[primitive.name](v, *operands, **params)


# --- sums ---------------------------------------------------------------------------


def plus(v: LowRank, w: LowRank) -> Any:
    """The sum, with the sum of the ranks."""
    like = factors(v)
    other = align(factors(w), like)
    if v.shape != w.shape or other is None:
        return NotImplemented
    a, b = (joined(RANK, f, g).x for f, g in zip(like, other, strict=True))
    return LowRank(a, b, v.rows, v.cols)


def joined(label: Any, *fs: Factor) -> Factor:
    """Concatenate factors of the same labels along an axis."""
    axis = fs[0].labels.index(label)
    return Factor(jnp.concatenate([f.x for f in fs], axis), fs[0].labels)


def is_low(v: Any) -> bool:
    """Whether the rank is not higher than the full rank of an array of this shape."""
    a, b = factors(v)
    return v.rank <= min(
        math.prod(n for label, n in sizes_of(f).items() if label not in other.labels)
        for f, other in ((a, b), (b, a))
    )


@jaxrewrite.register(*ADDITIVE)
def added(v: LowRank, w: LowRank, *, primitive, **params) -> Any:
    total = plus(v, LINEAR["neg"](w) if primitive.name == "sub" else w)
    return total if total is not NotImplemented and is_low(total) else NotImplemented


def concatenated(vs: Sequence[LowRank], dimension: int) -> Any:
    """Concatenate factors along a batch axis; along other axes add arrays padded by zeros."""
    like = factors(vs[0])
    pairs = [align(factors(v), like) for v in vs]
    if None in pairs:
        return NotImplemented
    a, b = zip(*pairs, strict=True)
    rows, cols = vs[0].rows, vs[0].cols
    if dimension in like[0].labels and dimension in like[1].labels:
        a, b = (alike(RANK, *column) for column in (a, b))
        return LowRank(joined(dimension, *a).x, joined(dimension, *b).x, rows, cols)
    sizes = [v.shape[dimension] for v in vs]

    def in_place(column: Sequence[Factor]) -> Any:
        if dimension not in column[0].labels:
            return column
        before = [sum(sizes[:i]) for i in range(len(sizes))]
        return [
            resized(f, dimension, low, sum(sizes) - low - n)
            for f, low, n in zip(column, before, sizes, strict=True)
        ]

    a, b = (joined(RANK, *in_place(column)) for column in (a, b))
    joint = LowRank(a.x, b.x, rows, cols)
    return joint if is_low(joint) else NotImplemented


@jaxrewrite.register(*ADDITIVE, exchange="types")
def _(x: LowRank, y: Array, *, primitive, **params) -> Any:
    """A lazy sum with an array of any rank."""
    shape = x.shape if isinstance(x, LowRank) else y.shape
    if jnp.broadcast_shapes(x.shape, y.shape) != shape:
        return NotImplemented
    if primitive.name == "sub":
        y = LINEAR["neg"](y) if isinstance(y, LowRank) else -y
    return sum_of(
        [z if isinstance(z, LowRank) else jnp.broadcast_to(z, shape) for z in (x, y)]
    )


@jaxrewrite.register("concatenate")
def _(*vs: LowRank, dimension, **params) -> Any:
    return concatenated(vs, dimension)


# --- products -----------------------------------------------------------------------


def times_array(v: LowRank, y: Any, primitive: Any, **params: Any) -> Any:
    """``v * y`` or ``v / y``, if ``y`` changes only along axes of one factor."""
    if primitive.name == "div" and not (inexact(v) and v.rank):
        return NotImplemented  # With rank zero no factor holds the zeros to divide.
    op = jnp.divide if primitive.name == "div" else jnp.multiply
    pair = list(factors(v))
    shape = jnp.shape(y)
    changing = [i for i, n in enumerate(shape) if n != 1]
    fitting = [i for i, f in enumerate(pair) if all(k in f.labels for k in changing)]
    if not fitting:
        return NotImplemented
    i = smaller(*pair)
    i = i if i in fitting else fitting[0]
    # If y changes along a batch axis of size 1, that axis becomes one of this factor alone.
    sizes = sizes_of(*pair)
    pair[1 - i] = without(pair[1 - i], [k for k in changing if sizes[k] == 1])
    if shape:
        aligned = without(
            Factor(y, tuple(range(len(shape)))),
            [k for k in range(len(shape)) if k not in pair[i].labels],
        )
        wanted = tuple(label for label in pair[i].labels if label != RANK)
        y = transpose(aligned.x, aligned.labels, wanted)
        y = lax.expand_dims(y, [pair[i].labels.index(RANK)])
    pair[i] = pair[i]._replace(x=op(pair[i].x, y))
    return build(pair[0], pair[1], range(v.ndim))


@jaxrewrite.register("mul", exchange="operands")
@jaxrewrite.register("div")
def _(v: LowRank, y: ArrayLike, *, primitive, **params) -> Any:
    return times_array(v, y, primitive)


@jaxrewrite.register("dot_general", types=(LowRank, LowRank))
@jaxrewrite.register(
    "dot_general", types=(LowRank, ArrayLike | ArrayValue), exchange="types"
)
def dot(x: Any, y: Any, *, dimension_numbers: Any, **params: Any) -> Any:
    """`jax.lax.dot_general` of two operands, at least one of them a `LowRank`."""
    if params.get("out_sharding") is not None:
        return NotImplemented  # It does not say how to shard the intermediate product.
    dtype = jnp.result_type(x.dtype, y.dtype)
    is_plain = is_or_none(params.get("preferred_element_type"), dtype)
    if not is_plain and not inexact(jnp.zeros((), dtype)):
        return NotImplemented  # Integers may overflow in the intermediate product.
    names = labels(dimension_numbers, x.ndim, y.ndim)
    # The factors of the operand with the lower rank give the result that rank.
    is_second = not isinstance(x, LowRank) or (isinstance(y, LowRank) and y.rank < x.rank)
    v, labels_of_v, other, labels_of_other = (
        (y, names.y, x, names.x) if is_second else (x, names.x, y, names.y)
    )
    pair = tuple(Factor(f.x, tuple(by_axis(f, labels_of_v, RANK))) for f in factors(v))
    # The order of the factors that takes fewer multiplications.
    _, i, middle = min(
        step(f, g, other.shape, labels_of_other, names.out, i, is_second)
        for i, (f, g) in enumerate((pair, pair[::-1]))
    )
    first, second = pair[i], pair[1 - i]
    x = contract(
        first.x, first.labels, other, labels_of_other, middle, **intermediate(params)
    )
    if not isinstance(other, ArrayValue):
        return contract(x, middle, second.x, second.labels, names.out, **params)
    result = build(Factor(x, middle), second, names.out)
    dtype = params["preferred_element_type"] or jnp.result_type(v.dtype, other.dtype)
    if isinstance(result, LowRank) and result.dtype != dtype:
        return converted(result, new_dtype=dtype)
    return result.astype(dtype)


def step(
    first: Factor,
    second: Factor,
    shape: Sequence[int],
    others: Sequence[Any],
    out: Sequence[Any],
    which: int,
    is_second: bool,
) -> tuple[int, int, tuple[Any, ...]]:
    """The cost of a product with ``first`` and then ``second``, and the axes in between."""
    sizes = sizes_of(first, second) | dict(zip(others, shape, strict=True))
    kept = {*out, *second.labels}
    operands = (others, first.labels) if is_second else (first.labels, others)
    batch = [label for label in first.labels if label in others and label in kept]
    free = [label for labels in operands for label in labels if label in kept]
    middle = tuple(dict.fromkeys(batch + free))
    cost = sum(
        math.prod(sizes[label] for label in {*xs, *ys})
        for xs, ys in ((first.labels, others), (middle, second.labels))
    )
    return cost, which, middle

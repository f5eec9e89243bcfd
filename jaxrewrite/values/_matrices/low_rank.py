"""`LowRank`: an array as the product of two factors.

`build` makes an array of factors whose axes have labels. What the primitives do is in
`low_rank_functions`, `low_rank_sums` and `low_rank_products`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

import jaxrewrite

from .._base.contract import contract, in_dtype, transpose
from .._base.structured import Structured, padded
from .algebra import LinearAlgebra, dot
from .low_rank_factors import (
    RANK,
    Factor,
    Pair,
    align,
    alike,
    broadcast,
    in_order,
    joined,
    multiplied_out,
    sizes_of,
)


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
        return padded(jnp.linalg.eigvals(b @ a), -1, 0, n - self.rank)

    def known_reduced_svd(self) -> Any:
        """The decomposition of the small matrix between orthonormal columns and rows."""
        pair = self.as_matrices()
        if pair is None or self.rank > min(self.shape[-2:]):
            return NotImplemented
        a, b = pair
        left, of_left = jnp.linalg.qr(a)
        right, of_right = jnp.linalg.qr(jnp.swapaxes(b, -1, -2))
        u, size, vh = jnp.linalg.svd(dot(of_left, jnp.swapaxes(of_right, -1, -2)))
        return dot(left, u), size, dot(vh, jnp.swapaxes(right, -1, -2))

    def known_singular_values(self) -> Any:
        """The singular values, and zeros.

        The derivative is that of the singular values of the dense array, which exists where
        the derivative of a QR factorisation does not.
        """
        if self.as_matrices() is None or self.rank > min(self.shape[-2:]):
            return NotImplemented
        size = _singular_values(*self.as_matrices())
        return padded(size, -1, 0, min(self.shape[-2:]) - self.rank)

    def as_matrices(self) -> Any:
        r"""The factors of shapes (\*batch, n, r) and (\*batch, r, m), if they are matrices."""
        v = of_one_dtype(self)
        a, b = v.a, v.b
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

    def sliceable(self) -> Any:
        """The same array, with its first axis in both factors if they stay the smaller ones."""
        shape = self.shape
        if leads_with_batch(self):
            return self
        a, b = (f if 0 in f.labels else broadcast(f, [0], shape) for f in factors(self))
        if not shape or a.x.size + b.x.size >= math.prod(shape):
            return NotImplemented
        led = build(a, b, range(len(shape)))
        is_led = isinstance(led, LowRank) and leads_with_batch(led)
        return led if is_led else NotImplemented

    def leaf_specs(self, spec: Any) -> LowRank:
        a, b = factors(self)
        ndim = len({*a.labels, *b.labels}) - 1
        parts: dict[Any, Any] = dict(enumerate((*spec, *[None] * (ndim - len(spec)))))
        parts[RANK] = None
        own, other = (jax.sharding.PartitionSpec(*map(parts.get, f.labels)) for f in (a, b))
        specs: dict[str, Any] = {"a": own, "b": other}
        return dataclasses.replace(self, **specs)


@jax.custom_jvp
def _singular_values(a: Any, b: Any) -> Any:
    return LowRank(a, b).known_reduced_svd()[1]


@_singular_values.defjvp
def _(primals: Any, tangents: Any) -> Any:
    """The diagonal of u* (da b + a db) v."""
    (a, b), (a_dot, b_dot) = primals, tangents
    u, size, vh = LowRank(a, b).known_reduced_svd()
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
        of_batch = f"in the first {batch} axes, the batch axes, and " if batch else ""
        after = " after the batch axes" if batch else ""
        raise ValueError(
            f"{name}: a has shape {a.shape} and b has shape {b.shape}. They must agree "
            f"{of_batch}in the rank. The rank is the last axis of a and the first axis of b{after}."
        )
    for field, axes in (("rows", rows), ("cols", cols)):
        if not all(-ndim <= axis < ndim for axis in axes):
            raise ValueError(f"{name}: {field}={axes} is out of range for {ndim} axes.")
    rows, cols = (tuple(axis % ndim - ndim for axis in axes) for axes in (rows, cols))
    if len({*rows, *cols}) != len(rows) + len(cols):
        raise ValueError(f"{name}: rows={rows} and cols={cols} name an axis twice.")
    return rows, cols


# --- arrays of labelled factors -------------------------------------------------------------


def factors(v: LowRank) -> Pair:
    """Both factors, labelled by the positions in the shape of the array and `RANK`."""
    ndim = v.a.ndim - 1 + len(v.cols)
    rows, cols = ([axis % ndim for axis in axes] for axes in (v.rows, v.cols))
    batch = [i for i in range(ndim) if i not in rows and i not in cols]
    return Factor(v.a, (*batch, *rows, RANK)), Factor(v.b, (*batch, RANK, *cols))


def of_one_dtype(v: LowRank) -> LowRank:
    """With both factors in the dtype of the array, where a sum may not fit in theirs."""
    return LowRank(in_dtype(v.a, v.dtype), in_dtype(v.b, v.dtype), v.rows, v.cols)


def leads_with_batch(v: LowRank) -> bool:
    """Whether the array's first axis is an axis of both factors."""
    ndim = v.a.ndim - 1 + len(v.cols)
    return ndim > 0 and -ndim not in (*v.rows, *v.cols)


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


def plus(v: LowRank, w: LowRank) -> Any:
    """The sum, with the sum of the ranks."""
    like = factors(v)
    other = align(factors(w), like)
    if v.shape != w.shape or other is None:
        return NotImplemented
    a, b = (joined(RANK, f, g).x for f, g in zip(like, other, strict=True))
    return LowRank(a, b, v.rows, v.cols)

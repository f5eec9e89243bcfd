"""`Sparse`: the arrays of `jax.experimental.sparse` as matrices."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.sparse import (
    BCOO,
    BCSR,
    bcoo_concatenate,
    bcoo_dynamic_slice,
    bcoo_reduce_sum,
    bcoo_rev,
    bcoo_slice,
    bcoo_sum_duplicates,
)
from jaxtyping import Array, Integer, Shaped

import jaxrewrite
from jaxrewrite import register
from jaxrewrite._display import brief

from .._base.sizes import are_known, least_bound
from .._base.structured import alike, concrete, is_known, on_known, over_batch, zero_unless
from .iterative import BY_PRODUCTS
from .matrix import Matrix, apply_dense, check_has_matrices, nan_where
from .monomial import Diagonal, Identity
from .sparse_products import (
    index_dtype,
    is_vector,
    product,
    transposed_product,
    with_indices,
)
from .sparse_solves import solve_rows


class Sparse(Matrix):
    r"""A sparse matrix, or a stack of them, in one of JAX's own formats.

    .. math:: A_{ij} = \sum_{e :\, (i_e, j_e) = (i, j)} d_e

    ``BCOO`` holds the place :math:`(i_e, j_e)` of each entry. ``BCSR`` holds the entries row
    by row. The format stays in products with arrays, scaling of rows and columns, sums and
    entry-by-entry products with another sparse matrix, slices, concatenation, and functions
    that act entry by entry and map zero to zero. They take time in proportion to the number
    of entries. A product of two is lazy (a `Product`), because the number of its entries is
    not known before it is computed: `multiplied` computes it, up to a given number.

    On a CPU, a product with many columns is fastest if the entries are row by row, in either
    format. ``BCOO`` is in this order if JAX made it, and a program looks whether it is.
    A product with one vector is fastest in ``BCSR`` if all rows have about as many entries,
    and in ``BCOO`` if a few rows have most of them.

    The value is a matrix and not an array of any rank, so that its sums and products with
    other matrices are lazy and solvers know it. A sparse vector rarely saves anything.

    Parameters
    ----------
    matrix
        A `jax.experimental.sparse.BCOO` or ``BCSR`` of shape (\*batch, n, m), with two
        sparse axes. Entries at the same place are added once, unless the flag
        ``unique_indices`` is set. An index that equals the length of its axis marks
        padding, not an entry, as in JAX.
    by_columns
        Whether a ``BCSR`` is the transpose of the matrix, with its entries column by
        column. That suits ``x @ v``, as entries row by row suit ``v @ x``.

    In products its zeros stay zeros, even times infinity or NaN, unless the rules
    `strict_zeros` are in force.

    Attributes
    ----------
    data
        The entries, of shape (\*batch, e).
    indices
        Their places. Rows and columns, of shape (\*batch, e, 2), in ``BCOO``. Columns, or
        rows if by columns, of shape (\*batch, e), in ``BCSR``.
    indptr
        The begin of each row of a ``BCSR``, of shape (\*batch, n + 1); else ``None``.
    sizes
        The two sizes (n, m) as they are held, which are exchanged if by columns.

    Raises
    ------
    ValueError
        If ``matrix`` is not a ``BCOO`` or ``BCSR``, if its sparse axes are not the last
        two, or if indices or row pointers are out of range.

    Examples
    --------
    >>> import jax.numpy as jnp, jaxrewrite
    >>> from jax.experimental.sparse import BCOO
    >>> from jaxrewrite.values import Sparse
    >>> w = BCOO((jnp.array([1.0, 2.0]), jnp.array([[0, 1], [2, 0]])), shape=(3, 2))
    >>> v = Sparse(w)
    >>> v @ jnp.array([1.0, 10.0])
    Array([10.,  0.,  2.], dtype=float32)
    >>> type(jnp.float32(3) * v.T).__name__
    'Sparse'
    """

    data: Shaped[Array, "*batch e"]
    indices: Integer[Array, "*batch e ..."]
    indptr: Any
    sizes: tuple[int, int] = jaxrewrite.field(static=True)
    by_columns: bool = jaxrewrite.field(static=True)

    entries: ClassVar[str | None] = "pattern"
    movable: ClassVar[bool] = True
    _remedies = {"cholesky": BY_PRODUCTS}

    def __init__(self, matrix: BCOO | BCSR, *, by_columns: bool = False) -> None:
        if not isinstance(matrix, (BCOO, BCSR)):
            raise ValueError(
                f"Sparse: matrix is {_described(matrix)}, not a BCOO or BCSR. Write "
                f"{_written(matrix, 'matrix')}."
            )
        if by_columns and not isinstance(matrix, BCSR):
            raise ValueError("Sparse: by_columns needs a BCSR matrix.")
        if matrix.n_sparse != 2 or matrix.n_dense:
            raise ValueError(
                f"Sparse: matrix has {matrix.n_batch} batch axes, {matrix.n_sparse} sparse "
                f"axes and {matrix.n_dense} dense axes; its last two axes must be sparse."
            )
        _check_indices(matrix)
        matrix = _held(matrix)
        if not matrix.unique_indices:
            matrix = _summed(matrix)
        batch = matrix.shape[:-2]
        indices = matrix.indices
        entries_shape = indices.shape[len(batch) :]
        held = {
            "data": jnp.broadcast_to(matrix.data, (*batch, matrix.nse)),
            "indices": jnp.broadcast_to(indices, (*batch, *entries_shape)),
            "indptr": None,
            "sizes": tuple(matrix.shape[-2:]),
            "by_columns": by_columns,
        }
        if isinstance(matrix, BCSR):
            pointers = matrix.indptr
            held["indptr"] = jnp.broadcast_to(pointers, (*batch, pointers.shape[-1]))
        for name, content in held.items():
            object.__setattr__(self, name, content)

    @classmethod
    def from_dense(cls, w: Any, nse: int | None = None, format: str = "bcoo") -> Self:
        r"""The entries of an array that are not zero, as a sparse matrix.

        Parameters
        ----------
        w
            An array of shape (\*batch, n, m).
        nse
            The number of entries to hold for each matrix. By default it is the number of
            entries of ``w``, which must then be known, so not under `jax.jit`.
        format
            ``"bcoo"``; ``"bcsr"``, row by row; or ``"bcsc"``, column by column.

        Returns
        -------
        Sparse
            The sparse matrix.

        Raises
        ------
        ValueError
            If ``w`` is sparse already, has fewer than two axes or more than ``nse`` entries, or if
            there is no such format.

        Examples
        --------
        >>> import jax.numpy as jnp, jaxrewrite
        >>> from jaxrewrite.values import Sparse
        >>> Sparse.from_dense(jnp.eye(100), format="bcsr")
        Sparse<f32[100,100], 1.2 kB>(data=f32[100], indices=i32[100], indptr=i32[101], sizes=(100, 100), by_columns=False)
        """
        if isinstance(w, (BCOO, BCSR)) or _is_scipys(w):
            raise ValueError(
                f"Sparse: w is {_described(w)}, which is no dense array. Write {_written(w, 'w')}."
            )
        check_has_matrices("Sparse", "w", w)
        if format not in ("bcoo", "bcsr", "bcsc"):
            raise ValueError(f"Sparse: format is {format!r}, not 'bcoo', 'bcsr' or 'bcsc'.")
        if is_known(w):
            count = int(on_known(_most_entries, w))
            nse = count if nse is None else nse
            if count > nse:
                raise ValueError(f"Sparse: nse is {nse}, but w has {count} entries.")
        # JAX makes integers of boolean entries, and fails to compile that.
        w = jnp.asarray(w, jnp.int32) if jnp.result_type(w) == jnp.bool_ else w
        # JAX raises its own error for a traced array without ``nse``.
        entries = _entries if nse is None else _entries_at_once
        return cls(entries(w, nse, format), by_columns=format == "bcsc")

    # --- formats --------------------------------------------------------------------

    @property
    def matrix(self) -> BCOO | BCSR:
        """JAX's own form. For a matrix by columns it is the ``BCSR`` of the transpose."""
        shape = (*self.data.shape[:-1], *self.sizes)
        if self.indptr is None:
            return BCOO((self.data, self.indices), shape=shape, unique_indices=True)
        held = (self.data, self.indices, self.indptr)
        return BCSR(held, shape=shape, unique_indices=True)

    def bcoo(self) -> BCOO:
        """The matrix as a ``BCOO``, whatever its format."""
        if isinstance(self.matrix, BCOO):
            return self.matrix
        held = self.matrix.to_bcoo()
        indices = held.indices[..., ::-1] if self.by_columns else held.indices
        return BCOO((self.data, indices), shape=self.shape, unique_indices=True)

    def with_data(self, data: Any) -> Self:
        """The matrix with other entries at the same places."""
        _, *indices = jax.tree.leaves(self)
        return jax.tree.unflatten(jax.tree.structure(self), [data, *indices])

    def stored(self) -> Any:
        r"""Whether each entry is in the matrix and not padding, of shape (\*batch, e)."""
        i, j = jnp.moveaxis(self.bcoo().indices, -1, 0)
        return (i < self.shape[-2]) & (j < self.shape[-1])

    def places(self) -> tuple[Any, Any]:
        r"""Rows and columns that are in range, of shape (\*batch, e) each.

        The place of padding is arbitrary.
        """
        indices = self.bcoo().indices
        n, m = self.shape[-2:]
        return jnp.minimum(indices[..., 0], n - 1), jnp.minimum(indices[..., 1], m - 1)

    # --- as a matrix ------------------------------------------------------------------

    def aval(self) -> Any:
        sizes = self.sizes[::-1] if self.by_columns else self.sizes
        return jax.core.ShapedArray((*self.data.shape[:-1], *sizes), self.data.dtype)

    def materialise(self) -> Any:
        """The entries at their places.

        JAX's ``BCOO.todense`` takes no symbolic number of matrices, and its derivative no batches of
        cotangents along axes but the first.
        """

        def write(data: Any, indices: Any) -> Any:
            zeros = jnp.zeros(self.shape[-2:], data.dtype)
            return zeros.at[tuple(indices.T)].add(data, mode="drop")

        write_each = jnp.vectorize(write, signature="(e),(e,k)->(n,m)")
        dense = write_each(_summable(self.data), self.bcoo().indices)
        return dense.astype(self.dtype)

    def apply(self, x: Any, axis: int, precision: Any = None) -> Any:
        if not are_known(*self.batch):
            return apply_dense(self.materialise(), x, axis, precision)
        batch = len(self.batch)
        dtype = jnp.result_type(self.data, x)
        # Sums of 16-bit numbers are computed in 32 bits, as in a dense product.
        wide = jnp.float32 if dtype in (jnp.bfloat16, jnp.float16) else dtype
        v = self.with_data(_summable(self.data.astype(wide)))
        x = _summable(jnp.moveaxis(x, axis, batch).astype(wide))
        is_transposed = self.by_columns and not batch and is_vector(x)
        matrix = v.bcoo() if self.by_columns and not is_transposed else v.matrix
        # Places of entries are added up, and XLA's own product takes no narrower indices.
        matrix = with_indices(matrix, index_dtype((), self.indices.dtype, jnp.int32))
        y = (transposed_product if is_transposed else product)(matrix, x)
        return jnp.moveaxis(y.astype(dtype), batch, axis)

    def transposed(self) -> Any:
        if isinstance(self.matrix, BCSR):
            return Sparse(self.matrix, by_columns=not self.by_columns)
        *batch, n, m = self.shape
        return _unique(BCOO((self.data, self.indices[..., ::-1]), shape=(*batch, m, n)))

    def map_entries(self, fn: Callable[..., Any], *others: Self) -> Self:
        # Padding becomes one, because the function may have no derivative at zero.
        data = jnp.where(self.stored(), self.data, jnp.ones_like(self.data))
        return self.with_data(fn(data, *(other.data for other in others)))

    def pick(self, dense: Any) -> Self:
        pick = jnp.vectorize(lambda x, i, j: x[i, j], signature="(n,m),(e),(e)->(e)")
        return self.with_data(pick(dense, *self.places()))

    def scaled_rows(self, factors: Any) -> Any:
        rows, _ = self.places()
        return self.with_data(self.data * jnp.take_along_axis(factors, rows, -1))

    def entries_at(self, i: Any, j: Any) -> Any:
        """Sort the wanted places together with those of the entries, and compare."""
        asked = jnp.stack([i.reshape(-1), j.reshape(-1)], -1)
        indices = self.bcoo().indices
        where = _positions(indices, asked.astype(indices.dtype))
        return self.data.at[where].get(mode="fill", fill_value=0).reshape(i.shape)

    def known_diagonal(self) -> Any:
        rows, columns = self.places()
        data = _summable(zero_unless(self.stored() & (rows == columns), self.data))
        short = min(self.shape[-2:])
        add = lambda d, i: jnp.zeros(short, d.dtype).at[i].add(d, mode="drop")
        diagonal = jnp.vectorize(add, signature="(e),(e)->(k)")(data, rows)
        return diagonal.astype(self.dtype)

    def plus(self, other: Any) -> Any:
        if isinstance(other, (Diagonal, Identity)):
            other = _of_diagonal(other.diagonal())
        if not isinstance(other, Sparse):
            return NotImplemented
        x, y = self.bcoo(), other.bcoo()
        data = _summable(jnp.concatenate([x.data, y.data], -1))
        return Sparse(_union(data, x, y)).cast(self.dtype)

    def rows_at(self, i: Any) -> Any:
        """The rows at indices in range, as an array.

        A product with zeros and ones would give NaN where an entry of another row is not finite.
        """
        rows, columns = self.places()
        asked = i.reshape(-1)
        n, m = self.shape
        (count,) = asked.shape
        # The place among the results of each row that is asked for; one of several.
        position_of_row = jnp.full(n, count).at[asked].set(jnp.arange(count))
        data = _summable(self.data)
        to = jnp.where(self.stored(), position_of_row[rows], count)
        added = jnp.zeros((count, m), data.dtype).at[to, columns].add(data, mode="drop")
        return added[position_of_row[asked]].reshape(*i.shape, m).astype(self.dtype)

    def multiplied(
        self, other: Sparse, *, pairs: int | None = None, nse: int | None = None
    ) -> Sparse:
        r"""``self @ other`` as a sparse matrix.

        Each entry :math:`(i, k)` meets all entries :math:`(k, j)` of row :math:`k`. It takes
        time and memory in proportion to the number of such pairs, which are sorted and
        added.

        Parameters
        ----------
        other
            A sparse matrix of shape (m, k).
        pairs
            An upper bound of the number of pairs. By default it is counted, for which the
            places of the entries must be known, so not under `jax.jit`.
        nse
            The number of entries of the result; by default that of the pairs, or of all
            places if that is smaller. Entries beyond the last one are padding.

        Returns
        -------
        Sparse
            The product, in ``BCOO``. All its entries are NaN if a bound was too small.

        Raises
        ------
        ValueError
            If a matrix is a stack, if the product is not of a floating or complex dtype, if
            the shapes do not fit, or if ``pairs`` is neither given nor known.

        Examples
        --------
        >>> import jax.numpy as jnp, jaxrewrite
        >>> from jaxrewrite.values import Sparse
        >>> v = Sparse.from_dense(jnp.array([[0.0, 2.0], [3.0, 0.0]]))
        >>> v.multiplied(v)
        Sparse([[6.  ·]
                [ · 6.]], by_columns=False, dtype=float32)
        """
        return _sparse_product(self, other, pairs, nse)

    def hadamard(self, other: Any) -> Any:
        if not isinstance(other, Matrix) or isinstance(other, (Diagonal, Identity)):
            return NotImplemented  # These types know that only the diagonal counts.
        if self.batch:
            if not isinstance(other, Sparse):
                return NotImplemented
            return jax.vmap(lambda v, w: v.hadamard(w))(self, other)
        return self._times_entries(other, *self.places())

    def solve(self, x: Any, axis: int) -> Any:
        if self.batch:
            solve = lambda v, x: v.solve(x, axis - 1)
            return jax.vmap(solve)(self, x)
        dtype = jnp.result_type(self.data, x)
        if not x.size:
            return x.astype(dtype)
        wide = jnp.float32 if dtype in (jnp.bfloat16, jnp.float16) else dtype
        v, x = self.with_data(self.data.astype(wide)), jnp.moveaxis(x, axis, -1)
        columns = x.astype(wide).reshape(-1, x.shape[-1])
        solved = jax.vmap(partial(_solve, v))(columns).reshape(x.shape)
        return jnp.moveaxis(solved.astype(dtype), -1, axis)

    def join(self, other: Any) -> Any:
        """Fill up the matrix with fewer entries, so that both have the same number."""
        if not isinstance(other, Sparse):
            return NotImplemented
        x, y = self, other
        if (x.indptr is None, x.by_columns) != (y.indptr is None, y.by_columns):
            x, y = Sparse(x.bcoo()), Sparse(y.bcoo())
        nse = max(x.data.shape[-1], y.data.shape[-1])
        return x.filled_up(nse), y.filled_up(nse)

    def filled_up(self, nse: int) -> Self:
        """The matrix with padding up to this number of entries."""
        batch = len(self.batch)
        more = nse - self.data.shape[-1]

        def padded(x: Any, number: Any) -> Any:
            shape = (*x.shape[:batch], more, *x.shape[batch + 1 :])
            padding = jnp.broadcast_to(jnp.asarray(number, x.dtype), shape)
            return jnp.concatenate([x, padding], batch)

        # An index as large as the size is that of padding.
        ends = self.sizes if self.indptr is None else max(self.sizes)
        padded_indices = [padded(self.indices, ends)]
        if self.indptr is not None:
            padded_indices.append(self.indptr)
        treedef = jax.tree.structure(self)
        return jax.tree.unflatten(treedef, [padded(self.data, 0), *padded_indices])


def _entries(w: Any, nse: int | None, format: str) -> BCOO | BCSR:
    batch = jnp.ndim(w) - 2
    if format == "bcsc":
        w = jnp.swapaxes(w, -1, -2)
    entries = BCOO.fromdense(w, nse=nse, n_batch=batch)
    return entries if format == "bcoo" else _compressed(entries)


# One operation after the other would take twice as long. The value is made outside, where a
# check of a user's subclass may look at the numbers.
_entries_at_once = jax.jit(_entries, static_argnums=(1, 2))


@jax.jit
def _most_entries(w: Any) -> Any:
    """The number of entries that are not zero, of the matrix that has most of them."""
    return jnp.count_nonzero(w, axis=(-2, -1)).max(initial=0)


def _is_scipys(x: Any) -> bool:
    """Whether it is a sparse matrix or array of SciPy, which is not imported for that."""
    return any(cls.__module__.startswith("scipy.sparse") for cls in type(x).__mro__)


def _described(x: Any) -> str:
    if isinstance(x, (jax.Array, np.ndarray)):
        return "an array"
    name = type(x).__name__
    if isinstance(x, (BCOO, BCSR)):
        return f"a {name}"
    return f"a {name} of SciPy" if _is_scipys(x) else f"of type {name}"


def _written(x: Any, name: str) -> str:
    """How to make a `Sparse` of an object, whatever holds its entries."""
    if isinstance(x, (BCOO, BCSR)):
        return f"Sparse({name})"
    if _is_scipys(x):
        return (
            f"Sparse(BCOO.from_scipy_sparse({name})), with BCOO of jax.experimental.sparse"
        )
    return f"Sparse.from_dense({name})"


def _check_indices(matrix: BCOO | BCSR) -> None:
    """Raise a `ValueError` if the indices are known and out of range."""
    indices, (n, m) = concrete(matrix.indices), matrix.shape[-2:]
    if indices is None:
        return
    if isinstance(matrix, BCOO):
        if (indices < 0).any() or (indices > np.array([n, m])).any():
            raise ValueError(f"Sparse: indices are out of range for a matrix of {n} x {m}.")
        return
    pointers = concrete(matrix.indptr)
    if pointers is None:
        return
    ends = pointers[..., -1:]
    if (
        pointers[..., 0].any()
        or (np.diff(pointers) < 0).any()
        or (ends > indices.shape[-1]).any()
    ):
        raise ValueError(
            "Sparse: indptr must begin with 0, never decrease, and end with the number of entries."
        )
    inside = np.arange(indices.shape[-1]) < ends
    if (inside & ((indices < 0) | (indices >= m))).any():
        raise ValueError(f"Sparse: indices are out of range for {m} columns.")


def _summed(matrix: BCOO | BCSR) -> BCOO | BCSR:
    """The matrix with the entries at the same place added."""
    n, m = matrix.shape[-2:]
    entries = matrix.to_bcoo() if isinstance(matrix, BCSR) else matrix
    summed = bcoo_sum_duplicates(entries, nse=least_bound(matrix.nse, n * m))
    return _compressed(summed) if isinstance(matrix, BCSR) else summed


def _held(matrix: Any) -> Any:
    """The matrix with indices of a dtype that holds its sizes, and row pointers if it has any."""
    pointers = [matrix.nse] if isinstance(matrix, BCSR) else []
    dtype = index_dtype([*matrix.shape[-2:], *pointers], matrix.indices.dtype)
    return with_indices(matrix, dtype)


def _compressed(matrix: BCOO) -> BCSR:
    """The matrix with its entries row by row."""
    dtype = index_dtype([matrix.nse], matrix.indices.dtype)
    rows = BCSR.from_bcoo(with_indices(matrix, dtype))
    held = (rows.data, rows.indices, rows.indptr)
    return BCSR(held, shape=matrix.shape, unique_indices=True)


def _of_diagonal(d: Any) -> Sparse:
    n = d.shape[-1]
    rows = jnp.broadcast_to(jnp.arange(n, dtype=jnp.int32)[:, None], (*d.shape, 2))
    return _unique(BCOO((d, rows), shape=(*d.shape, n)))


def _union(data: Any, x: BCOO, y: BCOO) -> BCOO:
    """The entries of both at the places of both, added where they meet; ``x`` comes first.

    ``data`` may have one more axis, so that a place has several numbers.
    """
    dtype = index_dtype(x.shape[-2:], x.indices.dtype, y.indices.dtype)
    indices = jnp.concatenate([x.indices.astype(dtype), y.indices.astype(dtype)], -2)
    *_, n, m = x.shape
    held = over_batch(partial(_added, shape=(n, m)), x.n_batch)(data, indices)
    return BCOO(held, shape=(*x.shape, *data.shape[x.n_batch + 1 :]), unique_indices=True)


def _added(data: Any, indices: Any, shape: tuple[int, int]) -> Any:
    """The entries with those at the same place added, and their places, in order.

    JAX's own function is one primitive for both. JAX can't transpose it, as it has to
    where a derivative rule adds tangents.
    """
    size = least_bound(data.shape[0], math.prod(shape))
    outside = jnp.array([shape], indices.dtype)
    is_inside = (indices < outside).all(-1, keepdims=True)
    indices = jnp.where(is_inside, indices, outside)
    order = jnp.lexsort((indices[:, 1], indices[:, 0]))
    indices = indices[order]
    is_new = (indices[1:] != indices[:-1]).any(-1)
    positions = jnp.cumulative_sum(is_new, include_initial=True)[: data.shape[0]]
    positions = jnp.where(is_inside[order, 0], positions, size)  # Nothing is written there.
    kept = jnp.broadcast_to(outside, (size, 2)).at[positions].set(indices, mode="drop")
    added = jnp.zeros((size, *data.shape[1:]), data.dtype).at[positions]
    return added.add(data[order], mode="drop"), kept


def _summable(data: Any) -> Any:
    """Booleans as integers, since JAX does not add up booleans."""
    return data.astype(jnp.int32) if data.dtype == jnp.bool_ else data


def _positions(indices: Any, asked: Any) -> Any:
    """The positions of ``asked`` in the indices, or the number of indices if not found."""
    count = indices.shape[0]
    both = jnp.concatenate([indices, asked])
    # The sort is stable, so an index comes before those in ``asked`` that are equal to it.
    order = jnp.lexsort((both[:, 1], both[:, 0]))
    position = jnp.arange(order.shape[0], dtype=order.dtype)
    nearest = order[lax.cummax(jnp.where(order < count, position, 0))]
    is_stored = (nearest < count) & (both[nearest] == both[order]).all(-1)
    positions = jnp.zeros_like(order).at[order].set(jnp.where(is_stored, nearest, count))
    return positions[count:]


# --- products of two ----------------------------------------------------------------------


def _sparse_product(v: Sparse, w: Any, pairs: int | None, nse: int | None) -> Sparse:
    if not isinstance(w, Sparse) or v.batch or w.batch or v.shape[1] != w.shape[0]:
        raise ValueError(
            f"Sparse: multiplied needs two sparse matrices that fit, not stacks; got "
            f"{brief(v)} and {brief(w)}."
        )
    dtype = jnp.result_type(v.dtype, w.dtype)
    if not jnp.issubdtype(dtype, jnp.inexact):
        raise ValueError(f"Sparse: multiplied needs a floating dtype; got {dtype}.")
    n, m = v.shape[0], w.shape[1]
    dtypes = v.indices.dtype, w.indices.dtype
    wide = index_dtype((), *dtypes, jnp.int32)
    x, y = with_indices(v.bcoo(), wide), with_indices(w.bcoo(), wide)
    order = jnp.argsort(y.indices[:, 0])
    rows, columns = y.indices[order, 0], y.indices[order, 1]
    begins = jnp.searchsorted(rows, jnp.arange(w.shape[0] + 1, dtype=rows.dtype))
    middle = jnp.minimum(x.indices[:, 1], w.shape[0] - 1)
    counts = jnp.where(v.stored(), begins[middle + 1] - begins[middle], 0)
    if pairs is None:
        known = concrete(counts)
        if known is None:
            raise ValueError(
                "Sparse: multiplied needs pairs=, because the places of the entries are not "
                "known here."
            )
        pairs = int(known.sum())
    nse = min(pairs, n * m) if nse is None else nse
    if not len(counts) or not len(rows):
        return Sparse.from_dense(jnp.zeros((n, m), dtype), nse=nse)
    # Pair number p belongs to the entry of v in whose range it is.
    ends = jnp.cumsum(counts)
    p = jnp.arange(max(pairs, 1), dtype=ends.dtype)
    first = jnp.minimum(jnp.searchsorted(ends, p, side="right"), len(counts) - 1)
    second = jnp.minimum(begins[middle[first]] + p - (ends - counts)[first], len(rows) - 1)
    is_pair = (p < ends[-1]) & (columns[second] < m)
    positions = x.indices[first, 0], columns[second]
    outside = jnp.array([n, m], wide)
    indices = jnp.where(is_pair[:, None], jnp.stack(positions, -1), outside)
    indices = indices.astype(index_dtype((n, m), *dtypes))
    products = x.data.astype(dtype)[first] * y.data.astype(dtype)[order][second]
    data = zero_unless(is_pair, products)
    # The sorted entries come before the padding.
    every = _unique(bcoo_sum_duplicates(BCOO((data, indices), shape=(n, m)), nse=len(p)))
    total = counts.astype(jnp.float32).sum()  # An integer might overflow.
    fits = (every.stored().sum() <= nse) & (ends[-1] <= pairs) & (total < 2.0**31)
    cut = jax.tree.map(lambda leaf: leaf[:nse], every).filled_up(max(nse, 0))
    return cut.with_data(nan_where(~fits, cut.data))


# --- products and solves ------------------------------------------------------------------


def _solve(v: Sparse, b: Any) -> Any:
    """Solve for one vector by a sparse factorisation, one matrix of a batch at a time."""

    def direct(v: Sparse, b: Any) -> Any:
        rows = _compressed(v.bcoo())
        return solve_rows(rows.data, rows.indices, rows.indptr, b)

    v, b = alike(v, b)
    return lax.custom_linear_solve(
        lambda x: v.apply(x, 0),
        b,
        lambda _, b: direct(v, b),
        lambda _, b: direct(v.transposed(), b),
    )


# --- rules --------------------------------------------------------------------------------


@register("max", "min")
def _(x: Sparse, y: Sparse, *, primitive: Any, **params: Any) -> Any:
    p, q = x.bcoo(), y.bcoo()
    pairs = [
        jnp.stack([p.data, jnp.zeros_like(p.data)], -1),
        jnp.stack([jnp.zeros_like(q.data), q.data], -1),
    ]
    both = _union(_summable(jnp.concatenate(pairs, -2)), p, q)
    data = both.data.astype(x.dtype)
    data = jaxrewrite.bind(primitive, data[..., 0], data[..., 1], **params)
    return _unique(BCOO((data, both.indices), shape=x.shape))


def _unique(matrix: BCOO) -> Sparse:
    """A matrix with entries at different places, because they moved one to one."""
    held = (matrix.data, matrix.indices)
    return Sparse(BCOO(held, shape=matrix.shape, unique_indices=True))


def _rearranged(move: Callable[[list[BCOO]], BCOO], *vs: Sparse, reach: int = 0) -> Any:
    """The matrix that a function that moves entries makes of matrices.

    It computes with sizes of the matrices, and with indices up to ``reach``.

    A position may hold no entry. Then its indices are beyond the last row or column, and a
    move could make them those of an entry.

    What is moved are the numbers of the entries, because JAX can't transpose some of its
    functions for sparse arrays, as it has to where a derivative rule moves tangents.
    """
    if not are_known(*(n for v in vs for n in v.batch)):
        return NotImplemented
    dtypes = [v.indices.dtype for v in vs]
    wide = index_dtype([reach], *dtypes, jnp.int32)
    if reach > jnp.iinfo(wide).max:
        return NotImplemented
    held = [with_indices(v.bcoo(), wide) for v in vs]
    data = jnp.concatenate([matrix.data.reshape(-1) for matrix in held])
    # The numbers of the entries from one; zero is none.
    numbers, first = [], 1
    for v, matrix in zip(vs, held, strict=True):
        entry_numbers = jnp.arange(first, first + matrix.data.size).reshape(
            matrix.data.shape
        )
        entry_numbers = jnp.where(v.stored(), entry_numbers, 0)
        numbers.append(BCOO((entry_numbers, matrix.indices), shape=matrix.shape))
        first += matrix.data.size
    moved = move(numbers)
    is_entry = moved.data != 0
    pairs = zip(jnp.moveaxis(moved.indices, -1, 0), moved.shape[-2:], strict=True)
    indices = jnp.stack([jnp.where(is_entry, i, n) for i, n in pairs], -1)
    indices = indices.astype(index_dtype(moved.shape[-2:], *dtypes))
    entries = data.at[moved.data - 1].get(mode="clip") if data.size else moved.data
    held_data = zero_unless(is_entry, entries.astype(data.dtype))
    return _unique(BCOO((held_data, indices), shape=moved.shape))


@register("slice")
def _(v: Sparse, *, start_indices: Any, limit_indices: Any, strides: Any) -> Any:
    if strides is None or set(strides[-2:]) == {1}:
        cut = [b - a for a, b in zip(start_indices, limit_indices, strict=True)]
        if tuple(cut[len(v.batch) :]) == v.shape[-2:]:
            return NotImplemented
    bounds = {"start_indices": start_indices, "limit_indices": limit_indices}
    return _rearranged(lambda held: bcoo_slice(held[0], strides=strides, **bounds), v)


@register("dynamic_slice")
def _(v: Sparse, *starts: Array, slice_sizes: Any) -> Any:
    # JAX counts negative starts from the end of the axis, the primitive does not.
    starts = tuple(jnp.maximum(start, 0) for start in starts)
    return _rearranged(lambda held: bcoo_dynamic_slice(held[0], starts, slice_sizes), v)


@register("rev")
def _(v: Sparse, *, dimensions: Any) -> Any:
    return _rearranged(lambda matrices: bcoo_rev(matrices[0], dimensions), v)


@register("reshape")
def _(v: Sparse, *, new_sizes: Any, dimensions: Any, **params: Any) -> Any:
    batch = len(v.batch)
    if dimensions is not None or tuple(new_sizes[-2:]) == v.shape[-2:]:
        return NotImplemented
    if len(new_sizes) == v.ndim and tuple(new_sizes[:-2]) == v.batch:
        return _reshaped(v, new_sizes)
    if 1 in v.shape[batch:]:
        return v.materialise().reshape(new_sizes)  # A vector has few zeros to save.
    return NotImplemented


def _reshaped(v: Sparse, sizes: Sequence[int]) -> Any:
    rows, columns = v.shape[-2:]

    def move(matrices: list[BCOO]) -> BCOO:
        (matrix,) = matrices
        position = matrix.indices[..., 0] * columns + matrix.indices[..., 1]
        indices = jnp.stack(jnp.divmod(position, max(sizes[-1], 1)), -1)
        return BCOO((matrix.data, indices), shape=tuple(sizes))

    return _rearranged(move, v, reach=max(rows * columns, *sizes[-2:]))


@register("squeeze")
def _(v: Sparse, *, dimensions: Any) -> Any:
    if max(dimensions, default=0) < len(v.batch):
        return NotImplemented
    return lax.squeeze(v.materialise(), dimensions)  # A vector has few zeros to save.


@register("concatenate")
def _(*vs: Sparse, dimension: int) -> Any:
    reach = sum(v.shape[dimension] for v in vs)
    return _rearranged(partial(bcoo_concatenate, dimension=dimension), *vs, reach=reach)


@register("reduce_sum")
def _(v: Sparse, *, axes: Any, **params: Any) -> Any:
    if max(axes, default=0) >= len(v.batch) or not are_known(*v.batch):
        return NotImplemented
    return Sparse(bcoo_reduce_sum(v.bcoo(), axes=axes))

"""Matrices with structure: what one has to define, and the rules that hold of all.

A `Matrix` is a linear map that is applied along an axis of an array. All products with
arrays come from that. Two matrices make a lazy `Product` or `Sum` where they have no closed
form. A type whose entries are those of its leaves says so in ``entries``, and then functions
that act entry by entry act on the leaves.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
from jax import lax

import jaxrewrite
from jaxrewrite import bind, same_structure
from jaxrewrite._avals import layer

from .._base.contract import contract
from .._base.structured import Structured, inexact
from .determinant import Determinant


class Matrix(Structured):
    r"""Base class of matrices with structure, or of stacks of them.

    A value of it has the shape (\*batch, n, m), and each of its leaves the same batch axes
    in front. A subclass defines `aval`, `materialise`, `apply` and `transposed`, and
    any other method for which it has something better than the dense form.

    Attributes
    ----------
    entries
        ``"all"`` if each entry of the matrix is one of the leaves, ``"pattern"`` if the
        others are zeros, ``None`` if the entries are anything else.
    movable
        Whether leaves say where the entries are, so that those of two values of one
        structure need not be in the same places.
    """

    _is_base = True
    entries: ClassVar[str | None] = None
    movable: ClassVar[bool] = False

    # --- what a type defines ------------------------------------------------------

    def apply(self, x: Any, axis: int, precision: Any = None) -> Any:
        """Multiply along an axis of an array.

        Parameters
        ----------
        x
            An array with the matrix's batch axes in front, of length m along ``axis``.
        axis
            Which axis is summed over.
        precision
            What `jax.lax.dot_general` takes, for types that multiply so.

        Returns
        -------
        Array
            An array like ``x``, of length n along ``axis``.
        """
        raise NotImplementedError(f"{type(self).__name__}.apply")

    def transposed(self) -> Any:
        """The matrix with its last two axes exchanged."""
        raise NotImplementedError(f"{type(self).__name__}.transposed")

    # --- what a type may know better ----------------------------------------------

    def scaled(self, factor: Any) -> Any:
        """The matrix times a number, an array of shape ()."""
        if self.entries is None:
            return NotImplemented
        return self.map_entries(lambda x: x * factor)

    def scaled_rows(self, factors: Any) -> Any:
        r"""``diag(factors) @ self``, for factors of shape (\*batch, n)."""
        return NotImplemented

    def times(self, other: Any) -> Any:
        """``self @ other`` in closed form; other is a matrix of the same batch axes."""
        return NotImplemented

    def rtimes(self, other: Any) -> Any:
        """``other @ self`` in closed form."""
        return NotImplemented

    def plus(self, other: Any) -> Any:
        """``self + other`` in closed form; other is a matrix of the same shape."""
        return NotImplemented

    def hadamard(self, other: Any) -> Any:
        """``self * other``, entry by entry, in closed form."""
        return NotImplemented

    def pick(self, dense: Any) -> Self:
        """A value of this structure with the entries that ``dense`` has in its place.

        Only for types that have ``entries``. ``dense`` is an array of this shape. The answer is
        NotImplemented where no value of this structure has these entries.
        """
        raise NotImplementedError(f"{type(self).__name__}.pick")

    def map_entries(self, fn: Callable[..., Any], *others: Self) -> Self:
        """The matrix with a function applied to the leaves that are entries."""
        return jax.tree.map(fn, self, *others)

    def map_batch(self, fn: Callable[..., Any], *others: Self) -> Self:
        """The matrix with a function applied that acts on the batch axes of each leaf.

        Takes this matrix alone, or several of one structure. Every entry of what the
        function gives has to be one of the entries of its arguments.
        """
        return jax.tree.map(fn, self, *others)

    def cast(self, dtype: Any) -> Self:
        """The matrix in another dtype: any, of types with ``entries``; else a floating one."""
        if self.entries is None:
            return jax.tree.map(lambda x: x.astype(dtype) if inexact(x) else x, self)
        return self.map_entries(lambda x: x.astype(dtype))

    def at(self, i: Any, j: Any) -> Any:
        """The entries at rows and columns, arrays of one shape, of a matrix, not a stack."""
        return NotImplemented

    def same_pattern(self, other: Any) -> bool:
        """Whether the leaves of another value are entries at the same places."""
        return not self.movable and same_structure(self, other)

    # --- what a type may know of linear algebra, where it is square ----------------
    #
    # What a rule asks for, and what users get from the methods below, if there is
    # something. NotImplemented otherwise, which leaves the dense answer to the policy.

    @property
    def solvable(self) -> bool:
        """Whether the type knows how to `solve`."""
        n, m = self.shape[-2:]
        return n == m and type(self).solve is not Matrix.solve

    def known_inverse(self) -> Any:
        """The inverse, a matrix."""
        return NotImplemented

    def known_determinant(self) -> Determinant | Any:
        r"""The determinants, of shape (\*batch)."""
        return NotImplemented

    def known_eigenvalues(self) -> Any:
        r"""The eigenvalues in no order, of shape (\*batch, n)."""
        return NotImplemented

    def known_eigh(self, lower: bool) -> Any:
        r"""The eigenvalues of a Hermitian matrix in rising order, and its eigenvectors.

        A pair of arrays or values, of shapes (\*batch, n) and (\*batch, n, n). The matrix
        is the one that the lower triangle says, or the upper one.
        """
        return NotImplemented

    def known_cholesky(self) -> Any:
        """The lower triangular factor of the matrix that the lower triangle says.

        A matrix. Numbers are NaN if that is not positive definite.
        """
        return NotImplemented

    def known_triangle(self, lower: bool, unit_diagonal: bool) -> Any:
        """The lower or upper triangle, a matrix that can `solve`."""
        return NotImplemented

    def known_lu(self) -> Any:
        """What `jax.lax.linalg.lu` gives: the packed factors, pivots, and permutation."""
        return NotImplemented

    # --- what follows ---------------------------------------------------------------

    @property
    def has_zeros(self) -> bool:
        return self.entries == "pattern" or super().has_zeros

    @property
    def batch(self) -> tuple[int, ...]:
        return self.shape[:-2]

    def diagonal(self) -> Any:
        r"""The entries on the diagonal, of shape (\*batch, min(n, m))."""
        return jaxrewrite.transform(_dense_diagonal)(self)

    def trace(self) -> Any:
        r"""The sum of the diagonal, of shape (\*batch)."""
        return self.diagonal().sum(-1)

    def solve(self, x: Any, axis: int) -> Any:
        """``self`` to the power -1, applied along an axis of an array as by `apply`.

        A type that knows how to solve overrides this. Otherwise it is the dense answer.
        """
        solve = jaxrewrite.transform(jnp.linalg.solve)
        return solve_columns(lambda b: solve(self, b), x, axis, len(self.batch))

    def inverse(self) -> Any:
        """The inverse: a matrix where the type knows it in closed form, else an array."""
        known = self.known_inverse()
        if known is not NotImplemented:
            return known
        return jaxrewrite.transform(jnp.linalg.inv)(self)

    def slogdet(self) -> Any:
        r"""The signs of the determinants and the logarithms of their absolute values.

        A pair of arrays of shape (\*batch), as `jax.numpy.linalg.slogdet` gives them.
        """
        known = self.known_determinant()
        if known is not NotImplemented:
            return known.slogdet()
        return tuple(jaxrewrite.transform(jnp.linalg.slogdet)(self))

    def determinant(self) -> Any:
        r"""The determinants, of shape (\*batch)."""
        known = self.known_determinant()
        if known is not NotImplemented:
            return known.number()
        return jaxrewrite.transform(jnp.linalg.det)(self)

    def eigenvalues(self) -> Any:
        r"""The eigenvalues in no order, of shape (\*batch, n)."""
        known = self.known_eigenvalues()
        if known is not NotImplemented:
            return known
        return jaxrewrite.transform(jnp.linalg.eigvals)(self)

    def eigh(self) -> Any:
        r"""The eigenvalues of a Hermitian matrix in rising order, and its eigenvectors.

        A pair of arrays or values, of shapes (\*batch, n) and (\*batch, n, n). What is
        above the diagonal need not be looked at.
        """
        known = self.known_eigh(lower=True)
        if known is not NotImplemented:
            return known
        return tuple(jaxrewrite.transform(_dense_eigh)(self))

    def cholesky(self) -> Any:
        """The lower triangular factor of a positive definite matrix.

        A matrix where the type knows it in closed form, else an array. What is above the
        diagonal need not be looked at; numbers are NaN if it is not positive definite.
        """
        known = self.known_cholesky()
        if known is not NotImplemented:
            return known
        return jaxrewrite.transform(_dense_cholesky)(self)

    def stacked(self, size: int) -> Any:
        # Leaves have their batch axes in front, so that one more is no other type.
        return self

    def tangent(self, leaf_tangents: Any) -> Any:
        # Entries are linear in the leaves.
        return NotImplemented if self.entries is None else leaf_tangents

    def lift_tangent(self, tangent: Any) -> Any:
        return NotImplemented if self.entries is None else self.pick(tangent)

    def unstacked(self) -> Any:
        # The leaves are sliced: of a stack they make up a matrix, of a matrix less than one.
        try:
            is_matrix = len(self.aval().shape) >= 2
        except (IndexError, ValueError):
            is_matrix = False
        return self if is_matrix else NotImplemented


_dense_diagonal = functools.partial(jnp.diagonal, axis1=-2, axis2=-1)
_dense_eigh = functools.partial(jnp.linalg.eigh, symmetrize_input=False)
_dense_cholesky = functools.partial(jnp.linalg.cholesky, symmetrize_input=False)


def nan_if_any_is(x: Any, batch: int) -> Any:
    """NaN in all of a matrix's numbers where it is in some: what LAPACK fails on."""
    axes = tuple(range(batch, x.ndim))
    return jnp.where(jnp.isnan(x).any(axes, keepdims=True), jnp.nan, x)


# --- arrays along an axis ---------------------------------------------------------------


def along(d: Any, batch: int, ndim: int, axis: int) -> Any:
    r"""``d``, of shape (\*batch, n), to multiply an array of ``ndim`` axes along one."""
    ones = [1] * (ndim - batch)
    ones[axis - batch] = d.shape[-1]
    return d.reshape(*d.shape[:-1], *ones)


def apply_dense(a: Any, x: Any, axis: int, precision: Any = None) -> Any:
    r"""Multiply an array along an axis with dense matrices, of shape (\*batch, n, m)."""
    xs = tuple(range(x.ndim))
    batch = xs[: a.ndim - 2]
    out = tuple("row" if label == axis else label for label in xs)
    return contract(x, xs, a, (*batch, "row", axis), out, precision=precision)


def solve_columns(solve: Callable[[Any], Any], x: Any, axis: int, batch: int) -> Any:
    r"""Solve along an axis, by a function of arrays of shape (\*batch, n, columns)."""
    moved = jnp.moveaxis(x, axis, batch)
    rows, columns = moved.shape[: batch + 1], moved.shape[batch + 1 :]
    y = solve(moved.reshape(*rows, math.prod(columns)))
    return jnp.moveaxis(y.reshape(moved.shape), batch, axis)


def solve_dense(a: Any, x: Any, axis: int) -> Any:
    r"""Solve along an axis with dense matrices, of shape (\*batch, n, n)."""
    solve = functools.partial(jaxrewrite.transform(jnp.linalg.solve), a)
    return solve_columns(solve, x, axis, a.ndim - 2)


def known_diagonal(v: Matrix) -> Any:
    """The diagonal, of a type that knows it without making the matrix dense."""
    if type(v).diagonal is not Matrix.diagonal:
        return v.diagonal()
    rows = jnp.arange(min(v.shape[-2:]))
    return NotImplemented if v.batch else v.at(rows, rows)


def unpivoted(v: Matrix) -> tuple[Any, Any]:
    """The pivots and the permutation of a factorisation that exchanges no rows."""
    rows = jnp.arange(min(v.shape[-2:]), dtype=jnp.int32)
    everywhere = jnp.broadcast_to(rows, (*v.batch, len(rows)))
    return everywhere, everywhere


# --- parts of a value, and two values ---------------------------------------------------


def on_fields(fn: Callable[..., Any], *operands: Any) -> Any:
    """What a function makes of values, whose fields it sees as arrays, as a rule does.

    For methods of what another value is made of: a field of that may be a value.
    """
    split = [layer(x) if isinstance(x, jaxrewrite.Value) else ([x], None) for x in operands]
    fields = [field for leaves, _ in split for field in leaves]
    values = [x for x in operands if isinstance(x, jaxrewrite.Value)]
    if not any(isinstance(x, jaxrewrite.Value) for v in values for x in layer(v)[0]):
        return fn(*operands)
    found: list[Any] = []

    def on_arrays(*arrays: Any) -> Any:
        rest = iter(arrays)
        wholes = []
        for leaves, treedef in split:
            own = [next(rest) for _ in leaves]
            wholes.append(own[0] if treedef is None else jax.tree.unflatten(treedef, own))
        found.append(fn(*wholes))
        return () if found[-1] is NotImplemented else found[-1]

    results = jaxrewrite.transform(on_arrays)(*fields)
    return NotImplemented if found[-1] is NotImplemented else results


def swapped(x: Any) -> Any:
    """A value with its last two axes exchanged."""
    if isinstance(x, Matrix):
        return on_fields(lambda x: x.transposed(), x)
    batch = range(x.ndim - 2)
    return bind(lax.transpose_p, x, permutation=(*batch, x.ndim - 1, x.ndim - 2))


def closed_product(x: Any, y: Any) -> Any:
    return on_fields(_closed_product, x, y)


def _closed_product(x: Any, y: Any) -> Any:
    closed = x.times(y) if isinstance(x, Matrix) else NotImplemented
    if closed is NotImplemented and isinstance(y, Matrix):
        closed = y.rtimes(x)
    return closed


def negated(x: Any) -> Any:
    return bind(lax.neg_p, x) if isinstance(x, jaxrewrite.Value) else -x


def closed_sum(x: Any, y: Any) -> Any:
    return on_fields(_closed_sum, x, y)


def _closed_sum(x: Any, y: Any) -> Any:
    closed = x.plus(y) if isinstance(x, Matrix) else NotImplemented
    if closed is NotImplemented and isinstance(y, Matrix):
        closed = y.plus(x)
    return closed

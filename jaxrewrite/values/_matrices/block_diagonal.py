"""`BlockDiagonal`: a matrix of blocks along the diagonal."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Inexact

import jaxrewrite

from .._base.contract import contract
from .._base.structured import differs, zero_unless
from .algebra import solve_columns
from .determinant import Determinant
from .matrix import Matrix, check_has_matrices, nan_if_any_is, solve_dense
from .monomial import Diagonal, Identity, OnDiagonal, Permutation, sorted_svd
from .product import Product


class BlockDiagonal(Matrix):
    r"""A matrix, or a stack, of blocks of one shape along the diagonal, and zeros.

    .. math:: B = B_1 \oplus B_2 \oplus \cdots \oplus B_k

    Products with arrays and with other `BlockDiagonal`, and linear algebra, act on each
    block. That takes at most a k-th of the operations on the dense array. A function that
    acts entry by entry and maps zero to zero keeps the blocks.

    In products its zeros stay zeros, even times infinity or NaN, unless the rules
    `strict_zeros` are in force.

    Attributes
    ----------
    blocks
        The blocks, of shape (\*batch, k, p, q). The array has shape (\*batch, k p, k q).

    Raises
    ------
    TypeError
        If ``blocks`` is a list or tuple of arrays.
    ValueError
        If ``blocks`` has fewer than three axes.

    Examples
    --------
    >>> import jax.numpy as jnp, jaxrewrite
    >>> from jaxrewrite.values import BlockDiagonal
    >>> v = BlockDiagonal(jnp.ones((2, 2, 2)))
    >>> v
    BlockDiagonal([[1. 1.  ·  ·]
                   [1. 1.  ·  ·]
                   [ ·  · 1. 1.]
                   [ ·  · 1. 1.]], dtype=float32)
    >>> v @ jnp.arange(4.0)
    Array([1., 1., 5., 5.], dtype=float32)
    >>> v @ v + 3 * v
    BlockDiagonal([[5. 5.  ·  ·]
                   [5. 5.  ·  ·]
                   [ ·  · 5. 5.]
                   [ ·  · 5. 5.]], dtype=float32)
    """

    blocks: Inexact[Array, "*batch k p q"]
    entries = "pattern"

    def __post_init__(self) -> None:
        if jnp.ndim(self.blocks) < 3:
            raise ValueError(
                f"BlockDiagonal: blocks has shape {jnp.shape(self.blocks)}, but needs "
                "three axes or more: blocks, rows and columns."
            )

    @classmethod
    def from_dense(cls, matrix: Any, k: int) -> BlockDiagonal:
        r"""The ``k`` blocks on the diagonal of an array of shape (\*batch, n, m).

        Raises
        ------
        ValueError
            If ``matrix`` has fewer than two axes, if ``k`` does not divide n and m, or if
            the numbers are known and not zero beside the blocks.

        Examples
        --------
        >>> import jax.numpy as jnp
        >>> from jaxrewrite.values import BlockDiagonal
        >>> BlockDiagonal.from_dense(jnp.eye(4), 2)
        BlockDiagonal([[1. 0.  ·  ·]
                       [0. 1.  ·  ·]
                       [ ·  · 1. 0.]
                       [ ·  · 0. 1.]], dtype=float32)
        """
        check_has_matrices("BlockDiagonal", "matrix", matrix)
        n, m = matrix.shape[-2:]
        if k < 1 or n % k or m % k:
            raise ValueError(f"BlockDiagonal: k is {k}, which does not divide {n} and {m}.")
        value = cls(_blocks_of(matrix, k))
        if differs(matrix, lambda matrix: BlockDiagonal(_blocks_of(matrix, k))):
            raise ValueError(f"BlockDiagonal: matrix is not zero beside its {k} blocks.")
        return value

    def aval(self) -> Any:
        *batch, k, p, q = self.blocks.shape
        return jax.core.ShapedArray((*batch, k * p, k * q), self.blocks.dtype)

    def materialise(self) -> Any:
        *batch, k, p, q = self.blocks.shape
        on_diagonal = jnp.eye(k, dtype=bool)[:, None, :, None]
        dense = zero_unless(on_diagonal, self.blocks[..., None, :])
        return dense.reshape(*batch, k * p, k * q)

    def apply(self, x: Any, axis: int, precision: Any = None) -> Any:
        *batch, k, p, q = self.blocks.shape
        before, after = tuple(range(axis)), tuple(range(axis + 1, x.ndim))
        y = contract(
            x.reshape(*x.shape[:axis], k, q, *x.shape[axis + 1 :]),
            (*before, "block", "column", *after),
            self.blocks,
            (*range(len(batch)), "block", "row", "column"),
            (*before, "block", "row", *after),
            precision=precision,
        )
        return y.reshape(*x.shape[:axis], k * p, *x.shape[axis + 1 :])

    def transposed(self) -> Any:
        return BlockDiagonal(jnp.swapaxes(self.blocks, -2, -1))

    def reversed(self) -> Any:
        return BlockDiagonal(self.blocks[..., ::-1, ::-1, ::-1])

    def scaled_rows(self, factors: Any) -> Any:
        return BlockDiagonal(self.blocks * factors.reshape(*self.blocks.shape[:-1], 1))

    def times(self, other: Any) -> Any:
        if not isinstance(other, BlockDiagonal):
            return NotImplemented
        k, _, q = self.blocks.shape[-3:]
        if (k, q) != other.blocks.shape[-3:-1]:  # Of no blocks any widths fit.
            return NotImplemented
        return BlockDiagonal(self.blocks @ other.blocks)

    def plus(self, other: Any) -> Any:
        p, q = self.blocks.shape[-2:]
        if isinstance(other, (Diagonal, Identity)) and p == q:
            d = other.diagonal().reshape(self.blocks.shape[:-1])
            return BlockDiagonal(self.blocks + Diagonal(d).materialise())
        if isinstance(other, BlockDiagonal) and other.blocks.shape == self.blocks.shape:
            return BlockDiagonal(self.blocks + other.blocks)
        return NotImplemented

    def hadamard(self, other: Any) -> Any:
        """The product with a matrix that knows its entries within the blocks."""
        k, p, q = self.blocks.shape[-3:]
        block, i, j = jnp.meshgrid(*map(jnp.arange, (k, p, q)), indexing="ij")
        return self._times_entries(other, p * block + i, q * block + j)

    def pick(self, dense: Any) -> Any:
        blocks = _blocks_of(dense, self.blocks.shape[-3])
        return BlockDiagonal(blocks.reshape(self.blocks.shape))

    def entries_at(self, i: Any, j: Any) -> Any:
        p, q = self.blocks.shape[-2:]
        return zero_unless(i // p == j // q, self.blocks[..., i // p, i % p, j % q])

    def known_diagonal(self) -> Any:
        i = jnp.arange(min(self.shape[-2:]))
        return self.entries_at(i, i)

    @property
    def solvable(self) -> bool:
        return self.blocks.shape[-2] == self.blocks.shape[-1]

    def solve(self, x: Any, axis: int) -> Any:
        if not self.solvable:
            return super().solve(x, axis)
        return _by_blocks(solve_dense, self.blocks, x, axis)

    def known_inverse(self) -> Any:
        return (
            BlockDiagonal(jnp.linalg.inv(self.blocks)) if self.solvable else NotImplemented
        )

    def known_solution(self, b: Any) -> Any:
        blocks = _blocks_beside(self.blocks, b)
        if not self.solvable or blocks is None:
            return NotImplemented
        return BlockDiagonal(jnp.linalg.solve(self.blocks, blocks))

    def known_determinant(self) -> Any:
        if not self.solvable:
            return NotImplemented
        return Determinant.of_arrays(self.blocks).product()

    def known_eigenvalues(self) -> Any:
        if not self.solvable:
            return NotImplemented
        return _joined(jnp.linalg.eigvals(self.blocks))

    def known_eigh(self, lower: bool) -> Any:
        if not self.solvable:
            return NotImplemented
        uplo = "L" if lower else "U"
        values, vectors = jnp.linalg.eigh(self.blocks, uplo, symmetrize_input=False)
        return sorted_eigh(_joined(values), BlockDiagonal(vectors))

    def known_exponential(self) -> Any:
        if not self.solvable:
            return NotImplemented
        return BlockDiagonal(jax.scipy.linalg.expm(self.blocks))

    def known_lower_part(self, k: int) -> Any:
        return BlockDiagonal(jnp.tril(self.blocks, k)) if self.solvable else NotImplemented

    def known_svd(self) -> Any:
        u, size, vh = jnp.linalg.svd(self.blocks, full_matrices=False)
        return sorted_svd(BlockDiagonal(u), _joined(size), BlockDiagonal(vh))

    def known_singular_values(self) -> Any:
        return -jnp.sort(-_joined(jnp.linalg.svd(self.blocks, compute_uv=False)), axis=-1)

    def known_cholesky(self) -> Any:
        if not self.solvable:
            return NotImplemented
        factors = jnp.linalg.cholesky(self.blocks, symmetrize_input=False)
        return BlockDiagonal(jnp.tril(nan_if_any_is(factors, len(self.batch))))

    def known_triangle(self, lower: bool, unit_diagonal: bool) -> Any:
        if not self.solvable:
            return NotImplemented
        return _Triangles(self.blocks, lower, unit_diagonal)

    def known_lu(self) -> Any:
        """Pivoting stays within a block, because a column is zero outside of its block."""
        if not self.solvable:
            return NotImplemented
        k, p = self.blocks.shape[-3:-1]
        packed, *rows = lax.linalg.lu(self.blocks)
        first = p * jnp.arange(k, dtype=jnp.int32)
        first = first.reshape(*[1] * len(self.batch), k, 1)
        return BlockDiagonal(packed), *(_joined(row + first) for row in rows)


class _Triangles(Matrix):
    """The triangles of square blocks along the diagonal."""

    blocks: Inexact[Array, "*batch k p p"]
    lower: bool = jaxrewrite.field(static=True)
    unit_diagonal: bool = jaxrewrite.field(static=True)

    def aval(self) -> Any:
        return BlockDiagonal(self.blocks).aval()

    def materialise(self) -> Any:
        return self._whole().materialise()

    def _whole(self) -> BlockDiagonal:
        triangles = jnp.tril(self.blocks) if self.lower else jnp.triu(self.blocks)
        if self.unit_diagonal:
            one = jnp.eye(self.blocks.shape[-1], dtype=bool)
            triangles = jnp.where(one, 1, triangles)
        return BlockDiagonal(triangles)

    def apply(self, x: Any, axis: int, precision: Any = None) -> Any:
        return self._whole().apply(x, axis, precision)

    def transposed(self) -> Any:
        blocks = jnp.swapaxes(self.blocks, -2, -1)
        return _Triangles(blocks, not self.lower, self.unit_diagonal)

    def solve(self, x: Any, axis: int) -> Any:
        return _by_blocks(self._solve, self.blocks, x, axis)

    def known_solution(self, b: Any) -> Any:
        blocks = _blocks_beside(self.blocks, b)
        if blocks is None:
            return NotImplemented
        return BlockDiagonal(self._solve(self.blocks, blocks, blocks.ndim - 2))

    def _solve(self, blocks: Any, x: Any, axis: int) -> Any:
        solve = functools.partial(
            lax.linalg.triangular_solve,
            blocks,
            left_side=True,
            lower=self.lower,
            unit_diagonal=self.unit_diagonal,
        )
        return solve_columns(solve, x, axis, blocks.ndim - 2)


def _blocks_of(dense: Any, k: int) -> Any:
    *batch, n, m = dense.shape
    p, q = (n // k, m // k) if k else (0, 0)
    parts = dense.reshape(*batch, k, p, k, q)
    return jnp.moveaxis(jnp.diagonal(parts, axis1=-4, axis2=-2), -1, -3)


def _blocks_beside(blocks: Any, b: Any) -> Any:
    """The blocks of another matrix with rows at the same places, or ``None``."""
    k, p = blocks.shape[-3:-1]
    if isinstance(b, OnDiagonal):
        return Diagonal(b.diagonal().reshape(*b.batch, k, p)).materialise()
    if isinstance(b, BlockDiagonal) and b.blocks.shape[-3:-1] == (k, p):
        return b.blocks
    return None


def _joined(x: Any) -> Any:
    """Join the last axes of all blocks into one axis."""
    return x.reshape(*x.shape[:-2], x.shape[-2] * x.shape[-1])


def _by_blocks(solve: Any, blocks: Any, x: Any, axis: int) -> Any:
    """Solve along an axis of an array, with a batch axis for the blocks."""
    k, p = blocks.shape[-3:-1]
    batch = blocks.ndim - 3
    parts = x.reshape(*x.shape[:axis], k, p, *x.shape[axis + 1 :])
    solved = solve(blocks, jnp.moveaxis(parts, axis, batch), axis + 1)
    return jnp.moveaxis(solved, batch, axis).reshape(x.shape)


def sorted_eigh(values: Any, vectors: Any) -> Any:
    """Sort eigenvalues; the eigenvectors become a product with a permutation."""
    order = jnp.argsort(values, axis=-1)
    rising = Permutation(order, vectors.dtype).transposed()
    return jnp.take_along_axis(values, order, -1), Product((vectors, rising))


@jaxrewrite.register(jax.scipy.linalg.block_diag)
def _(*vs: OnDiagonal) -> Any:
    return Diagonal(jnp.concatenate([v.diagonal() for v in vs]))


@jaxrewrite.register(jax.scipy.linalg.block_diag)
def _(*vs: BlockDiagonal) -> Any:
    if len({v.blocks.shape[1:] for v in vs}) > 1:
        return NotImplemented
    return BlockDiagonal(jnp.concatenate([v.blocks for v in vs]))

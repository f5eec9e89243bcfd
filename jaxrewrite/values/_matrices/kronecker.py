"""`Kronecker`: a Kronecker product of matrices, which is not multiplied out."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import jaxrewrite
from jaxrewrite import bind, register, same_structure, transform

from .._base.structured import inexact, is_value, padded, with_ndim
from .algebra import (
    dense_cholesky,
    dense_eigh,
    dense_singular_values,
    dense_svd,
    diagonal_of,
    is_known_hermitian,
    is_known_unitary,
    is_square,
    known_or,
)
from .block_diagonal import sorted_eigh
from .determinant import Determinant
from .matrix import (
    Matrix,
    apply_dense,
    at,
    nan_where,
    negated,
    solve_factor,
    swapped,
    turned,
)
from .monomial import Diagonal, Identity, sorted_svd
from .solutions import solution
from .triangular import Triangular


class Kronecker(Matrix):
    r"""A Kronecker product of matrices, :math:`A_1 \otimes A_2 \otimes \cdots \otimes A_k`.

    .. math:: (A \otimes B)_{(i p) (j q)} = A_{ij} B_{pq}

    A product with an array multiplies it by each factor along an axis of its own. The
    product of two is the Kronecker product of the factors' products,
    :math:`(A \otimes B)(C \otimes D) = AC \otimes BD`. Linear algebra, too, acts on each
    factor [1]_. The Cholesky factor exists if each factor is positive definite.

    Parameters
    ----------
    *factors
        Arrays or values, of shapes (\*batch, n, m), with the same batch axes and one dtype.

    Attributes
    ----------
    factors
        The factors, a tuple.

    Raises
    ------
    ValueError
        If there are no factors, or their shapes or dtypes do not fit.
    TypeError
        If a factor is a list.

    References
    ----------
    .. [1] C. F. Van Loan, "The ubiquitous Kronecker product", Journal of Computational and
       Applied Mathematics 123 (2000) 85-100.

    Examples
    --------
    >>> import jax.numpy as jnp, jaxrewrite
    >>> from jaxrewrite.values import Identity, Kronecker
    >>> v = Kronecker(jnp.ones((2, 2)), Identity(3))
    >>> v @ jnp.arange(6.0)
    Array([3., 5., 7., 3., 5., 7.], dtype=float32)
    >>> (v @ v).shape, (v @ v).nbytes
    ((6, 6), 16)
    """

    factors: tuple[Any, ...]

    # The type of a factor decides how it is multiplied with another value.
    rules_see_values = True

    def __init__(self, *factors: Any) -> None:
        if len(factors) == 1 and isinstance(factors[0], tuple):
            (factors,) = factors
        object.__setattr__(self, "factors", factors)
        if not factors:
            raise ValueError("Kronecker: factors is empty.")
        if any(isinstance(x, (list, tuple)) for x in factors):
            raise TypeError(
                "Kronecker: a factor is a list. Factors are arrays or values, one by one: "
                "Kronecker(a, b), or Kronecker(*factors)."
            )
        if any(jnp.ndim(x) < 2 or x.shape[:-2] != factors[0].shape[:-2] for x in factors):
            shapes = ", ".join(str(jnp.shape(x)) for x in factors)
            raise ValueError(f"Kronecker: factors of shapes {shapes} do not fit.")
        if any(x.dtype != factors[0].dtype for x in factors):
            dtypes = ", ".join(str(x.dtype) for x in factors)
            raise ValueError(f"Kronecker: factors have different dtypes: {dtypes}.")

    def aval(self) -> Any:
        first = self.factors[0]
        n, m = (math.prod(x.shape[i] for x in self.factors) for i in (-2, -1))
        return jax.core.ShapedArray((*first.shape[:-2], n, m), first.dtype)

    def materialise(self) -> Any:
        return functools.reduce(_outer, jaxrewrite.materialise(self.factors))

    def apply(self, x: Any, axis: int, precision: Any = None) -> Any:
        return self._one_by_one(
            lambda factor, x, axis: apply_dense(factor, x, axis, precision), x, axis
        )

    def _one_by_one(self, fn: Callable[..., Any], x: Any, axis: int) -> Any:
        """Apply each factor along its own axis. Together these axes replace ``axis``."""
        sizes = [factor.shape[-1] for factor in self.factors]
        y = x.reshape(*x.shape[:axis], *sizes, *x.shape[axis + 1 :])
        for i, factor in enumerate(self.factors):
            y = fn(factor, y, axis + i)
        size = math.prod(y.shape[axis : axis + len(sizes)])
        return y.reshape(*x.shape[:axis], size, *x.shape[axis + 1 :])

    def map_factors(self, fn: Callable[..., Any], *others: Kronecker) -> Any:
        """The Kronecker product of a function's results for each factor."""
        columns = zip(self.factors, *(other.factors for other in others), strict=True)
        mapped = [fn(*column) for column in columns]
        if any(factor is NotImplemented for factor in mapped):
            return NotImplemented
        return Kronecker(*mapped)

    def transposed(self) -> Any:
        return self.map_factors(swapped)

    def reversed(self) -> Any:
        return self.map_factors(turned)

    def times_number(self, factor: Any) -> Any:
        first, *rest = self.factors
        return Kronecker(first * factor, *rest)

    def times(self, other: Any) -> Any:
        """The mixed-product property, if the inner axes agree for each factor."""
        if not isinstance(other, Kronecker):
            return NotImplemented
        inner = [x.shape[-1] for x in self.factors]
        if inner != [x.shape[-2] for x in other.factors]:
            return NotImplemented
        return self.map_factors(transform(jnp.matmul), other)

    def hadamard(self, other: Any) -> Any:
        if not is_value(other):  # The result is as large as this array, so it may be dense.
            return self.materialise() * other
        if not isinstance(other, Kronecker):
            return NotImplemented
        if [x.shape for x in self.factors] != [x.shape for x in other.factors]:
            return NotImplemented
        return self.map_factors(transform(jnp.multiply), other)

    def join(self, other: Any) -> Any:
        """The identity is a product of identities.

        A multiple of it is not: a number that is infinite would meet zeros of other factors.
        """
        if not self.solvable or not isinstance(other, Identity):
            return super().join(other)
        ones = [Identity(x.shape[-1], other.dtype, self.batch) for x in self.factors]
        pairs = zip(self.factors, ones, strict=True)
        alike = [one if isinstance(x, Matrix) else one.materialise() for x, one in pairs]
        return self, Kronecker(*alike)

    def cast(self, dtype: Any) -> Any:
        return self.map_factors(lambda factor: factor.astype(dtype))

    def entries_at(self, i: Any, j: Any) -> Any:
        entries = []
        for factor in reversed(self.factors):
            n, m = factor.shape
            entry = at(factor, i % n, j % m)
            if entry is NotImplemented:
                return NotImplemented
            entries.append(entry)
            i, j = i // n, j // m
        return functools.reduce(operator.mul, entries)

    def rows_at(self, i: Any) -> Any:
        """Products of rows of the factors."""
        rows = jnp.ones((*i.shape, 1), self.dtype)
        for factor in reversed(self.factors):
            of_factor = at(factor, i % factor.shape[-2])
            if of_factor is NotImplemented:
                return NotImplemented
            rows = _outer_of_vectors(of_factor, rows)
            i = i // factor.shape[-2]
        return rows

    def known_diagonal(self) -> Any:
        if not self.solvable:
            return super().known_diagonal()
        return functools.reduce(_outer_of_vectors, map(diagonal_of, self.factors))

    @property
    def solvable(self) -> bool:
        return all(map(is_square, self.factors))

    @property
    def is_hermitian(self) -> bool:
        return all(map(is_known_hermitian, self.factors))

    @property
    def is_unitary(self) -> bool:
        return all(map(is_known_unitary, self.factors))

    def solve(self, x: Any, axis: int) -> Any:
        if not self.solvable:
            return super().solve(x, axis)
        return self._one_by_one(solve_factor, x, axis)

    def known_inverse(self) -> Any:
        if not self.solvable:
            return NotImplemented
        return self.map_factors(lambda x: known_or(x, "known_inverse", jnp.linalg.inv))

    def known_solution(self, b: Any) -> Any:
        """The solutions for each factor, if the rows of the factors agree."""
        if not self.solvable or not isinstance(b, Kronecker):
            return NotImplemented
        if [x.shape[-2] for x in self.factors] != [x.shape[-2] for x in b.factors]:
            return NotImplemented
        return self.map_factors(_solution_or_array, b)

    def known_cholesky(self) -> Any:
        return self._cholesky() if self._triangle_decides else NotImplemented

    def cholesky(self) -> Any:
        return self._cholesky() if self.solvable else super().cholesky()

    def _cholesky(self) -> Any:
        """The factor, also if an even number of factors is negative definite."""
        cholesky_factors, is_positive = [], jnp.ones(self.batch, bool)
        for x in self.factors:
            is_negative = (diagonal_of(x).real[..., :1] < 0).any(-1)
            is_positive ^= is_negative
            cholesky_factors.append(_lower(_negated_where(is_negative, x)))
        first, *rest = cholesky_factors
        if isinstance(first, Identity):
            first = first.as_multiple()  # It has a number, which may be NaN.
        marked = lambda x: nan_where(with_ndim(~is_positive, x.ndim), x)
        return Kronecker(jax.tree.map(marked, first), *rest)

    def is_triangular(self, lower: bool) -> bool:
        parts = self.factors
        return all(isinstance(x, Matrix) and x.is_triangular(lower) for x in parts)

    def known_triangle(self, lower: bool, unit_diagonal: bool) -> Any:
        """The product of triangular factors, or its diagonal."""
        if unit_diagonal or not self.solvable:
            return NotImplemented
        if self.is_triangular(lower):
            return self
        if self.is_triangular(not lower):
            return Diagonal(self.diagonal())
        return NotImplemented

    @property
    def _triangle_decides(self) -> bool:
        """Whether one triangle of this Hermitian matrix determines the result.

        The function of a factor reads only one triangle of it, but a block beside the
        diagonal shows that factor whole. So all factors but the first must be Hermitian.
        The type of a factor must say so, because a dense factor may be anything.
        """
        return self.solvable and all(map(is_known_hermitian, self.factors[1:]))

    def known_determinant(self) -> Any:
        r""":math:`\prod_i \det(A_i)^{N / n_i}`, for factors of n_i rows and N rows in all."""
        if not self.solvable:
            return NotImplemented
        powers = []
        for factor in self.factors:
            determinant = known_or(factor, "known_determinant", Determinant.of_arrays)
            determinant = jaxrewrite.materialise(determinant)
            powers.append(determinant ** (self.shape[-1] // max(factor.shape[-1], 1)))
        parts = (jnp.stack(part, -1) for part in zip(*powers, strict=True))
        return Determinant(*parts).product()

    def known_eigenvalues(self) -> Any:
        if not self.solvable:
            return NotImplemented
        fn = jnp.linalg.eigvals
        values = [known_or(x, "known_eigenvalues", fn) for x in self.factors]
        return functools.reduce(_outer_of_vectors, jaxrewrite.materialise(values))

    def known_svd(self) -> Any:
        """None if one factor has more rows, and another one more columns.

        The product of the thin decompositions then lacks vectors for zeros.
        """
        svd = self._decomposed("known_svd")
        is_complete = svd[1].shape[-1] == min(self.shape[-2:])
        return sorted_svd(*svd) if is_complete else NotImplemented

    def known_reduced_svd(self) -> Any:
        return self._decomposed("known_reduced_svd")

    def _decomposed(self, hook: str) -> Any:
        decompositions = [known_or(x, hook, dense_svd) for x in self.factors]
        us, sizes, vhs = zip(*decompositions, strict=True)
        size = functools.reduce(_outer_of_vectors, jaxrewrite.materialise(list(sizes)))
        us, vhs = (_of_one_dtype(factors) for factors in (us, vhs))
        return Kronecker(*us), size, Kronecker(*vhs)

    def known_singular_values(self) -> Any:
        fn = dense_singular_values
        sizes = [known_or(x, "known_singular_values", fn) for x in self.factors]
        size = functools.reduce(_outer_of_vectors, jaxrewrite.materialise(sizes))
        size = padded(size, -1, 0, min(self.shape[-2:]) - size.shape[-1])
        return -jnp.sort(-size, axis=-1)

    def known_spectrum(self) -> Any:
        if not self.solvable or not self.is_hermitian:
            return NotImplemented
        return self._eigen(lambda x: known_or(x, "known_eigh", dense_eigh, True))

    def known_eigh(self, lower: bool) -> Any:
        return self._eigh(lower) if self._triangle_decides else NotImplemented

    def eigh(self) -> Any:
        return self._eigh(True) if self.solvable else super().eigh()

    def _eigh(self, lower: bool) -> Any:
        fn = functools.partial(dense_eigh, UPLO="L" if lower else "U")
        return sorted_eigh(*self._eigen(lambda x: known_or(x, "known_eigh", fn, lower)))

    def _eigen(self, eigh: Callable[[Any], Any]) -> tuple[Any, Any]:
        """The eigenvalues, not sorted, and the eigenvectors."""
        decompositions = [eigh(x) for x in self.factors]
        values = jaxrewrite.materialise([values for values, _ in decompositions])
        vectors = Kronecker(*(vectors for _, vectors in decompositions))
        return functools.reduce(_outer_of_vectors, values), vectors


def _solution_or_array(factor: Any, b: Any) -> Any:
    known = solution(factor, b) if isinstance(b, jaxrewrite.Value) else NotImplemented
    if known is not NotImplemented:
        return known
    # The solution is an array of the size of this factor, too.
    return solve_factor(factor, jaxrewrite.materialise(b), b.ndim - 2)


def _of_one_dtype(factors: Any) -> Any:
    """Some of the unitary factors of real matrices may be complex."""
    dtype = jnp.result_type(*(x.dtype for x in factors))
    return [x.astype(dtype) for x in factors]


def _lower(factor: Any) -> Any:
    """The Cholesky factor, a value, so that its type says that it is triangular."""
    return known_or(factor, "known_cholesky", lambda a: Triangular(dense_cholesky(a)))


def _negated_where(which: Any, x: Any) -> Any:
    """A matrix, or for some elements of a batch its negative."""
    if isinstance(x, Identity):
        return x  # It is positive.
    negative = negated(x)
    # An identity inside of it has no number. That of its negative has one.
    positive = x if same_structure(x, negative) else negated(negative)
    if not same_structure(positive, negative):
        positive, negative = jaxrewrite.materialise((positive, negative))
    chosen = lambda x, y: jnp.where(with_ndim(which, x.ndim), x, y)
    return jax.tree.map(chosen, negative, positive)


def _outer(a: Any, b: Any) -> Any:
    """The dense Kronecker product of matrices."""
    *batch, n, m = a.shape
    p, q = b.shape[-2:]
    product = a[..., :, None, :, None] * b[..., None, :, None, :]
    return product.reshape(*batch, n * p, m * q)


def of_pairs(combine: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    """A function of all pairs of the entries of vectors, in the order of a Kronecker product."""
    pairs = combine(a[..., :, None], b[..., None, :])
    return pairs.reshape(*a.shape[:-1], a.shape[-1] * b.shape[-1])


_outer_of_vectors = functools.partial(of_pairs, operator.mul)


@register("abs", "square", "integer_pow", "conj")
def _(v: Kronecker, *, primitive: Any, **params: Any) -> Any:
    """Each of these functions maps a product of two numbers to the product of its results."""
    if primitive.name == "abs" and not inexact(v):
        return NotImplemented  # A product of integers may wrap, and has another sign then.
    return v.map_factors(lambda factor: bind(primitive, factor, **params))

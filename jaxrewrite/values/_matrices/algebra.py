"""Linear algebra as methods: the methods that types define, and those that users call.

Each method of the second kind asks the type first. If the type has no answer, the method
calls the corresponding function of JAX. That function makes the matrix dense, as the policy
allows.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Inexact, Shaped

import jaxrewrite
from jaxrewrite._core.avals import rule_children

from .._base.structured import is_annotation, is_value, with_standard_promotion
from .determinant import Determinant


def on_arrays(method: Callable[..., Any]) -> Any:
    """A method that sees arrays in the fields of its matrix, whoever calls it.

    So it does in the fields of other values that it is given.
    """

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        def of_values(*values: Any) -> Any:
            rest = iter(values)
            own, *given = (next(rest) if is_value(x) else x for x in (self, *args))
            return method(own, *given, **kwargs)

        return on_fields(of_values, self, *filter(is_value, args))

    return call


# The methods of a matrix that return arrays, values, or several of these.
METHODS = {
    *("apply", "block", "cast", "diagonal", "entries_at", "hadamard", "known_cholesky"),
    *("known_determinant", "known_diagonal", "known_eigenvalues", "known_eigh"),
    *("known_exponential", "known_inverse", "known_lower_part", "known_lu"),
    *("known_reduced_svd", "known_singular_values", "known_solution", "known_spectrum"),
    *("known_svd", "known_triangle", "map_entries", "pick", "plus", "reversed", "row_sums"),
    *("rows_at", "rtimes", "scaled_rows", "solve", "times", "times_number", "trace"),
    *("transposed",),
}


class LinearAlgebra:
    r"""The linear algebra of matrices, and of lazy sums and products of two axes or more.

    For a stack of matrices every method applies to each matrix, with the batch axes in
    front.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in METHODS & vars(cls).keys():
            setattr(cls, name, on_arrays(vars(cls)[name]))

    @property
    def batch(self) -> tuple[int, ...]:
        return _shape(self)[:-2]

    # Functions that a square matrix may know in closed form. Rules and the methods below ask them.
    # NotImplemented means that JAX's function has to give the answer.

    def known_inverse(self) -> Any:
        """The inverse, a matrix."""
        return NotImplemented

    def known_solution(self, b: Any) -> Any:
        """The inverse times a matrix, a matrix, no less accurate than `solve`.

        `solution` asks, which knows multiples, sums, products and low ranks in the place of ``b``.
        """
        return NotImplemented

    def known_determinant(self) -> Determinant | Any:
        r"""The determinants, of shape (\*batch)."""
        return NotImplemented

    def known_diagonal(self) -> Any:
        r"""The entries on the diagonal, of shape (\*batch, min(n, m)), of any matrix."""
        return NotImplemented

    def known_eigenvalues(self) -> Any:
        r"""The eigenvalues in any order, of shape (\*batch, n)."""
        return NotImplemented

    def known_spectrum(self) -> Any:
        r"""The eigenvalues of a normal matrix in any order, and a unitary matrix of vectors.

        A pair of an array of shape (\*batch, n) and a `Matrix`. Derivatives of the
        eigenvalues do not go through the eigenvectors.
        """
        return NotImplemented

    def known_eigh(self, lower: bool) -> Any:
        r"""The eigenvalues of a Hermitian matrix in rising order, and its eigenvectors.

        A pair of arrays or values, of shapes (\*batch, n) and (\*batch, n, n). The lower
        triangle defines the Hermitian matrix, or the upper one if ``lower`` is false.
        """
        return NotImplemented

    def known_svd(self) -> Any:
        r"""The thin singular value decomposition of a matrix: u, s and the adjoint of v.

        Arrays or values of shapes (\*batch, n, k), (\*batch, k) and (\*batch, k, m), where
        k is the lesser of n and m. The singular values, an array, fall.
        """
        return NotImplemented

    def known_reduced_svd(self) -> Any:
        """A decomposition as `known_svd` gives it, in any order, or without some zeros.

        The unitary factors of a real matrix may be complex.
        """
        return self.known_svd()

    def known_singular_values(self) -> Any:
        r"""The singular values of a matrix, falling, of shape (\*batch, k)."""
        svd = self.known_svd()
        return svd if svd is NotImplemented else svd[1]

    def known_cholesky(self) -> Any:
        """The lower triangular Cholesky factor, a matrix.

        The lower triangle defines the Hermitian matrix. The numbers are NaN if it is not
        positive definite.
        """
        return NotImplemented

    def known_triangle(self, lower: bool, unit_diagonal: bool) -> Any:
        """The lower or upper triangle, a matrix that can `solve`."""
        return NotImplemented

    def known_lu(self) -> Any:
        """The results of `jax.lax.linalg.lu`: packed factors, pivots, and permutation."""
        return NotImplemented

    def known_exponential(self) -> Any:
        """The matrix exponential of a square matrix, a matrix."""
        return NotImplemented

    def known_lower_part(self, k: int) -> Any:
        """The entries on and below the diagonal ``k``, as in `jax.numpy.tril`; a matrix."""
        return self if k >= 0 and self.is_triangular(lower=True) else NotImplemented

    def transposed(self) -> Any:
        """The matrix with its last two axes exchanged."""
        *batch, n, m = range(len(_shape(self)))
        return jaxrewrite.bind("transpose", self, permutation=(*batch, m, n))

    @property
    def is_hermitian(self) -> bool:
        """Whether the type guarantees that the matrix is its own conjugate transpose."""
        return False

    def hermitian_part(self) -> Any:
        """The mean of the matrix and its adjoint, a matrix, of which JAX takes factors."""
        return self if self.is_hermitian else NotImplemented

    @property
    def is_unitary(self) -> bool:
        """Whether the type guarantees that the inverse is the conjugate transpose."""
        return False

    def is_triangular(self, lower: bool) -> bool:
        """Whether the type guarantees that the matrix is lower, or upper, triangular."""
        return False

    @property
    def solvable(self) -> bool:
        """Whether `solve` has an answer that does not make the matrix dense."""
        return False

    # The methods that users call.

    @with_standard_promotion
    def diagonal(self) -> Any:
        r"""The entries on the diagonal, of shape (\*batch, min(n, m))."""
        return _or_dense(self, self.known_diagonal(), dense_diagonal)

    @with_standard_promotion
    def trace(self) -> Any:
        r"""The sum of the diagonal, of shape (\*batch)."""
        return self.diagonal().sum(-1)

    def solve(self, x: Shaped[Array, "*batch *axes"], axis: int) -> Any:
        """The inverse matrix, applied along an axis of an array.

        The array has the matrix's batch axes in front. A type that knows how to solve
        overrides this method, which makes the matrix dense.
        """
        batch = _shape(self)[:-2]
        solve = jaxrewrite.transform(jnp.linalg.solve)
        return solve_columns(lambda b: solve(self, b), x, axis, len(batch))

    @with_standard_promotion
    def inverse(self) -> Any:
        """The inverse: a matrix if the type knows it in closed form, else an array."""
        return _or_dense(self, self.known_inverse(), jnp.linalg.inv)

    @with_standard_promotion
    def slogdet(self) -> tuple[Inexact[Array, "*batch"], Inexact[Array, "*batch"]]:
        r"""The signs of the determinants and the logarithms of their absolute values.

        A pair of arrays of shape (\*batch), as `jax.numpy.linalg.slogdet` gives them.
        """
        known = determinant_of(self)
        if known is not NotImplemented:
            return known.slogdet()
        return tuple(jaxrewrite.transform(jnp.linalg.slogdet)(self))

    @with_standard_promotion
    def determinant(self) -> Any:
        r"""The determinants, of shape (\*batch)."""
        known = determinant_of(self)
        if known is not NotImplemented:
            return known.number()
        return jaxrewrite.transform(jnp.linalg.det)(self)

    @with_standard_promotion
    def eigenvalues(self) -> Any:
        r"""The eigenvalues in any order, of shape (\*batch, n)."""
        return _or_dense(self, self.known_eigenvalues(), jnp.linalg.eigvals)

    @with_standard_promotion
    def eigh(self) -> tuple[Any, Any]:
        r"""The eigenvalues of a Hermitian matrix in rising order, and its eigenvectors.

        A pair of arrays or values, of shapes (\*batch, n) and (\*batch, n, n). The entries
        above the diagonal may be ignored.
        """
        return tuple(_or_dense(self, self.known_eigh(lower=True), dense_eigh))

    @with_standard_promotion
    def cholesky(self) -> Any:
        """The lower triangular factor of a positive definite matrix.

        A matrix if the type knows it in closed form, else an array. The entries above the
        diagonal may be ignored. The numbers are NaN if the matrix is not positive definite.
        """
        return _or_dense(self, self.known_cholesky(), dense_cholesky)


dense_diagonal = functools.partial(jnp.diagonal, axis1=-2, axis2=-1)
dense_eigh = functools.partial(jnp.linalg.eigh, symmetrize_input=False)
dense_cholesky = functools.partial(jnp.linalg.cholesky, symmetrize_input=False)
dense_svd = functools.partial(jnp.linalg.svd, full_matrices=False)
dense_singular_values = functools.partial(jnp.linalg.svd, compute_uv=False)
# Products of arrays in full precision.
dot = functools.partial(jnp.matmul, precision=lax.Precision.HIGHEST)


def _shape(x: Any) -> tuple[int, ...]:
    return x.shape


def _or_dense(x: Any, known: Any, fn: Callable[[Any], Any]) -> Any:
    """What a type knows, else the result of a function of the dense matrix."""
    return jaxrewrite.transform(fn)(x) if known is NotImplemented else known


# --- what sums and products ask of their parts ------------------------------------------


def on_fields(fn: Callable[..., Any], *operands: Any) -> Any:
    """Call a function of values so that it sees their fields as arrays, as a rule does.

    The methods of a matrix are called this way (`on_arrays`), and functions of parts of a sum or a
    product. An array with an annotation is seen as an array, too.
    """
    split = [
        rule_children(x) if is_value(x) and not is_annotation(x) else ([x], None)
        for x in operands
    ]
    fields = [field for leaves, _ in split for field in leaves]
    if not any(map(is_value, fields)):
        return fn(*operands)
    last_results: list[Any] = []

    def on_arrays(*arrays: Any) -> Any:
        rest = iter(arrays)
        rebuilt = []
        for leaves, treedef in split:
            parts = [next(rest) for _ in leaves]
            rebuilt.append(
                parts[0] if treedef is None else jax.tree.unflatten(treedef, parts)
            )
        last_results.append(fn(*rebuilt))
        return () if last_results[-1] is NotImplemented else last_results[-1]

    results = jaxrewrite.transform(on_arrays)(*fields)
    return NotImplemented if last_results[-1] is NotImplemented else results


def known_of(x: Any, hook: str, *args: Any) -> Any:
    """The answer of the method ``hook`` of a part, or NotImplemented."""
    return getattr(x, hook)(*args) if isinstance(x, LinearAlgebra) else NotImplemented


def known_or(x: Any, hook: str, fn: Callable[[Any], Any], *args: Any) -> Any:
    """The answer of the method ``hook`` of a part, else that of ``fn`` on the dense array."""
    return _or_dense(x, known_of(x, hook, *args), fn)


def determinant_of(x: LinearAlgebra) -> Determinant | Any:
    """What a type knows of determinants, or NotImplemented."""
    known = x.known_determinant()
    if known is NotImplemented or isinstance(known, Determinant):
        return known
    raise TypeError(
        f"{type(x).__name__}.known_determinant must return a Determinant, as Determinant.of makes "
        f"it; it returned a {type(known).__name__}."
    )


def diagonal_of(x: Any) -> Any:
    """The diagonal of a part, an array."""
    return jaxrewrite.materialise(known_or(x, "diagonal", dense_diagonal))


def trace_of(x: Any) -> Any:
    """The trace of a part, an array."""
    if isinstance(x, LinearAlgebra):
        return jaxrewrite.materialise(x.trace())
    return diagonal_of(x).sum(-1)


def dot_of(a: Any, x: Any) -> Any:
    """The product of a part and an array in full precision, an array."""
    return jaxrewrite.materialise(jaxrewrite.transform(dot)(a, x))


def is_known_hermitian(x: Any) -> bool:
    """Whether the type of a part says so. A dense array may be anything."""
    return isinstance(x, LinearAlgebra) and x.is_hermitian


def is_known_unitary(x: Any) -> bool:
    """Whether the type of a part says so."""
    return isinstance(x, LinearAlgebra) and x.is_unitary


def is_square(x: Any) -> bool:
    return len(x.shape) >= 2 and x.shape[-2] == x.shape[-1]


def solve_columns(
    solve: Callable[[Any], Any], x: Shaped[Array, "*batch *axes"], axis: int, batch: int
) -> Any:
    r"""Solve or multiply along an axis, by a function of arrays of shape (\*batch, n, columns)."""
    moved = jnp.moveaxis(x, axis, batch)
    rows, columns = moved.shape[: batch + 1], moved.shape[batch + 1 :]
    y = solve(moved.reshape(*rows, math.prod(columns)))
    return jnp.moveaxis(y.reshape(*y.shape[:-1], *columns), batch, axis)

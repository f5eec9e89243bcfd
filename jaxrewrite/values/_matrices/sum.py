"""`Sum`: a lazy sum of arrays and values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Literal
from jaxtyping import Array

import jaxrewrite
from jaxrewrite import ArrayValue, primitives, register, transform

from .._base.linear import Linear
from .._base.structured import alike, fields_of, inexact, number_of, promoted
from .algebra import (
    LinearAlgebra,
    diagonal_of,
    is_known_hermitian,
    is_square,
    solve_columns,
    trace_of,
)
from .matrix import closed_sum, lazily, negated
from .monomial import sorted_svd


class SumSolver(Protocol):
    """A way to solve with a sum."""

    def solve(self, b: Any) -> Any:
        r"""The inverse times an array of shape (\*batch, n, k); it needs no derivative."""

    def determinant(self) -> Any:
        """The `Determinant`."""

    def eigh(self) -> Any:
        """As `LinearAlgebra.known_eigh`, of a Hermitian matrix."""
        return NotImplemented

    def reduced_svd(self) -> Any:
        """As `LinearAlgebra.known_reduced_svd`."""
        return NotImplemented


_solvers: list[Callable[[Sum], SumSolver | None]] = []


def solves_sums(find: Callable[[Sum], SumSolver | None]) -> Callable[..., Any]:
    """Register a function that finds a way to solve with a square sum, or ``None``."""
    _solvers.append(find)
    return find


_exponentials: list[Callable[[Sum], Any]] = []


def exponentials_of_sums(find: Callable[[Sum], Any]) -> Callable[..., Any]:
    """Register a function that knows the exponential of some sums, as a matrix does."""
    _exponentials.append(find)
    return find


class Sum(LinearAlgebra, Linear):
    r"""A lazy sum of arrays of one shape, :math:`T_1 + T_2 + \cdots + T_k`.

    It is the sum of values with structure that has no closed form, such as the sum of a
    diagonal and a low-rank matrix. Linear maps and products act on each term.

    Attributes
    ----------
    terms
        Arrays or values of one shape, of any rank, and one dtype.

    Raises
    ------
    ValueError
        If there are no terms, or their shapes or dtypes differ.

    Examples
    --------
    >>> import jax.numpy as jnp, jaxrewrite
    >>> from jaxrewrite.values import Circulant, Diagonal
    >>> v = Diagonal(jnp.arange(3.0)) + Circulant(jnp.arange(3.0))
    >>> type(v).__name__, v.nbytes
    ('Sum', 24)
    >>> v @ jnp.ones(3)
    Array([3., 4., 5.], dtype=float32)
    """

    outer = -40

    terms: tuple[Any, ...]

    # The type of a term decides how it is added to another value.
    rules_see_values = True
    _remedies = {
        "cholesky": "A sum has no triangular factor with structure, but it can be solved with, and "
        "has a determinant. For the density of a normal distribution pass "
        "rules=jaxrewrite.patterns.normal, and take gradients of the transformed function. The "
        "rules are for one vector at a time, ranks up to a sixteenth of the rows, and some "
        "formulas: see 'normal: densities without factors' in the docs (pattern_tables.rst)",
        "lu": "Some sums are solved without factors, such as a Kronecker product of two Symmetric "
        "matrices and a multiple of the identity, which jnp.eye(n) is with "
        "rules=jaxrewrite.patterns.structured: see 'Linear algebra' in the docs (values.rst)",
    }

    def __post_init__(self) -> None:
        if not self.terms:
            raise ValueError("Sum: terms is empty.")
        kinds = {(jnp.shape(term), jnp.dtype(term.dtype)) for term in self.terms}
        if len(kinds) > 1:
            shown = ", ".join(f"{dtype}{list(shape)}" for shape, dtype in kinds)
            raise ValueError(f"Sum: terms have different shapes or dtypes: {shown}.")

    def aval(self) -> Any:
        first = self.terms[0]
        return jax.core.ShapedArray(jnp.shape(first), first.dtype)

    def materialise(self) -> Any:
        return sum_of_arrays(jaxrewrite.materialise(self.terms))

    def sliceable(self) -> Any:
        return self

    def leaf_specs(self, spec: Any) -> Any:
        terms, treedef = fields_of(self)
        return treedef.unflatten([spec] * len(terms))

    def map_parts(self, fn: Callable[[Any], Any]) -> Any:
        return sum_of([fn(term) for term in self.terms])

    def known_diagonal(self) -> Any:
        return sum_of_arrays([diagonal_of(term) for term in self.terms])

    def trace(self) -> Any:
        return sum_of_arrays([trace_of(term) for term in self.terms])

    # --- linear algebra, as in a `Matrix` -----------------------------------------------

    def _solver(self) -> SumSolver | None:
        solvers = (find(self) for find in _solvers) if is_square(self) else ()
        return next((solver for solver in solvers if solver is not None), None)

    @property
    def is_hermitian(self) -> bool:
        return all(map(is_known_hermitian, self.terms))

    @property
    def solvable(self) -> bool:
        # An abstract trace answers without computing eigenvectors.
        answers: list[bool] = []
        jax.eval_shape(lambda v: answers.append(v._solver() is not None), self)
        return answers[0]

    def solve(self, x: Any, axis: int) -> Any:
        if not self.solvable:
            return super().solve(x, axis)
        matrix, x = alike(self, x)
        fixed = lax.stop_gradient(matrix)
        solve = lambda v: lambda _, b: v._solver().solve(b)
        multiply = jaxrewrite.transform(jnp.matmul)

        def solved(b: Any) -> Any:
            matvec = lambda x: jaxrewrite.materialise(multiply(matrix, x))
            transposed = fixed.transposed()
            # The solution has this dtype, and JAX's solve takes a right side of the same.
            b = b.astype(promoted(b.dtype, self.dtype))
            return lax.custom_linear_solve(matvec, b, solve(fixed), solve(transposed))

        return solve_columns(solved, x, axis, len(self.batch))

    def known_determinant(self) -> Any:
        solver = self._solver()
        return NotImplemented if solver is None else solver.determinant()

    def known_eigh(self, lower: bool) -> Any:
        solver = self._solver() if self.is_hermitian else None
        return NotImplemented if solver is None else solver.eigh()

    def known_svd(self) -> Any:
        svd = self.known_reduced_svd()
        if svd is NotImplemented or svd[0].dtype != self.dtype:
            return NotImplemented
        return sorted_svd(*svd)

    def known_reduced_svd(self) -> Any:
        solver = self._solver()
        return NotImplemented if solver is None else solver.reduced_svd()

    def known_singular_values(self) -> Any:
        svd = self.known_reduced_svd()
        return svd if svd is NotImplemented else -jnp.sort(-svd[1], axis=-1)

    def known_exponential(self) -> Any:
        exponentials = (find(self) for find in _exponentials)
        return next((x for x in exponentials if x is not NotImplemented), NotImplemented)


def sum_of_arrays(arrays: Sequence[Any]) -> Any:
    total, *rest = arrays
    for array in rest:
        total = total + array
    return total


def sum_of(terms: Sequence[Any]) -> Any:
    """The sum of arrays and values, which is an array if there are no values.

    Arrays are added, and so are values with a sum in closed form.
    """
    values: list[Any] = []
    arrays: list[Any] = []
    for term in terms:
        if isinstance(term, Sum):
            values += [t for t in term.terms if isinstance(t, jaxrewrite.Value)]
            arrays += [t for t in term.terms if not isinstance(t, jaxrewrite.Value)]
        elif isinstance(term, jaxrewrite.Value):
            values.append(term)
        else:
            arrays.append(term)
    merged: list[Any] = []
    for value in values:
        for i, other in enumerate(merged):
            closed = closed_sum(other, value)
            if closed is not NotImplemented:
                merged[i] = closed
                break
        else:
            merged.append(value)
    if arrays:
        merged.append(sum_of_arrays(arrays))
    return merged[0] if len(merged) == 1 else Sum(tuple(merged))


@register(*[name for name in primitives.LINEAR_UNARY if name != "neg"])
def _(v: Sum, *, primitive: Any, **params: Any) -> Any:
    return v.map_parts(lambda term: jaxrewrite.bind(primitive, term, **params))


@register("div")
def _(v: Sum, divisor: Literal, **params: Any) -> Any:
    number = number_of(divisor)
    if not inexact(v) or number == 0 or not np.isfinite(number):
        return NotImplemented
    return v.map_parts(transform(lambda term: term / number))


@register("concatenate")
def _(*vs: Sum, dimension: int) -> Any:
    # Terms with structure keep it along a batch axis alone.
    if dimension >= vs[0].ndim - 2 or len({jax.tree.structure(v) for v in vs}) > 1:
        return NotImplemented
    groups = zip(*(v.terms for v in vs), strict=True)
    join = lambda terms: jaxrewrite.bind("concatenate", *terms, dimension=dimension)
    return sum_of(list(map(join, groups)))


@register(*primitives.ADDITIVE, types=(Sum, Sum))
@register(*primitives.ADDITIVE, exchange="types")
def _(x: Sum, y: Array | ArrayValue, *, primitive: Any, **params: Any) -> Any:
    shape = jnp.broadcast_shapes(jnp.shape(x), jnp.shape(y))
    if any(isinstance(z, ArrayValue) and z.shape != shape for z in (x, y)):
        return NotImplemented
    if primitive.name == "sub":
        y = negated(y)
    terms = [z if isinstance(z, ArrayValue) else jnp.broadcast_to(z, shape) for z in (x, y)]
    return lazily(sum_of(terms))

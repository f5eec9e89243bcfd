"""Linear algebra on matrices with structure.

A linear solve that gets factors of a matrix solves with the matrix itself (see `lu`). The
rules for factorisations ask the type for its factors.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import jaxpr_as_fun
from jaxtyping import Array

import jaxrewrite
from jaxrewrite import register

from .._base.contract import labels
from .._base.structured import alike, inexact
from .algebra import is_known_hermitian, is_square
from .low_rank import LowRank
from .lu import LUFactor
from .matrix import Matrix, nan_where, swapped
from .pseudo_inverse import nan_unless_finite
from .scaled import Scaled
from .solutions import solution_along
from .sum import Sum


# --- solves -----------------------------------------------------------------------------


class _Inverse(Matrix):
    """The inverse of a matrix that can `solve`, or the transpose of the inverse."""

    matrix: Any
    flipped: bool = jaxrewrite.field(static=True, default=False)

    rules_see_values = True

    def aval(self) -> Any:
        return self.matrix.aval()

    def materialise(self) -> Any:
        inverse = jnp.linalg.inv(jaxrewrite.materialise(self.matrix))
        return jnp.swapaxes(inverse, -1, -2) if self.flipped else inverse

    def apply(self, x: Any, axis: int, precision: Any = None) -> Any:
        matrix = self.matrix.transposed() if self.flipped else self.matrix
        return matrix.solve(x, axis)

    def transposed(self) -> Any:
        return _Inverse(self.matrix, not self.flipped)


@register("custom_linear_solve")
def _(
    *operands: Matrix | Scaled | Sum | LowRank | LUFactor | Array,
    const_lengths: Any,
    jaxprs: Any,
) -> Any:
    """Solve with the matrix itself, in place of factors that are not computed.

    ``matvec`` multiplies with the matrix and moves axes, and ``vecmat`` is its transpose.
    With the transposed inverse in place of the matrix, ``vecmat`` becomes the solve, and
    ``matvec`` becomes the transpose of the solve.
    """
    operands = alike(*operands)
    consts, start = [], 0
    for count in const_lengths:
        consts.append(operands[start : start + count])
        start += count
    matvec, vecmat, *solves = consts
    factors = [x for solve in solves for x in solve if isinstance(x, LUFactor)]
    right = operands[start:]
    if len(right) == 1 and isinstance(right[0], jaxrewrite.Value):
        known = _solution(matvec, solves, jaxprs, right[0])
        if known is not NotImplemented:
            return [known]
    if not factors:
        return _solve_by_parts(matvec, solves, jaxprs, right)
    if len(matvec) != 1 or len(vecmat) != 1 or len(right) != 1:
        return NotImplemented
    (a,), (b,) = matvec, right
    if not all(isinstance(x, (Matrix, Scaled, Sum)) for x in (a, vecmat[0])):
        return NotImplemented
    if not (_only_multiplies(jaxprs.matvec) and _only_multiplies(jaxprs.vecmat)):
        return NotImplemented
    forward, backward = map(_multiplication, (jaxprs.matvec, jaxprs.vecmat))
    inverse = _Inverse(lax.stop_gradient(a), flipped=True)
    b = jaxrewrite.materialise(b)  # The solution is an array of this size, too.
    x = lax.custom_linear_solve(
        functools.partial(forward, a),
        b,
        lambda _, b: backward(inverse, b),
        lambda _, b: forward(inverse, b),
    )
    return [x]


def _solution(matvec: Any, solves: Any, jaxprs: Any, b: Any) -> Any:
    """The solution as a value, if JAX's own function solves: that of a user may do anything."""
    multiplied = _multiplied_axis(jaxprs.matvec) if len(matvec) == 1 else None
    if multiplied is None or matvec[0].ndim != b.ndim:
        return NotImplemented
    calls = [eqn for eqn in jaxprs.solve.eqns if eqn.primitive.name not in _MOVES]
    name = calls[0].params.get("name") if len(calls) == 1 else None
    if name == "_lu_solve":
        matrix = matvec[0]
    elif name == "_cho_solve":
        matrix = _nan_unless_definite(matvec[0], solves[0])
    else:
        matrix = None
    if matrix is None:
        return NotImplemented
    axis, is_transposed = multiplied
    known = solution_along(swapped(matrix) if is_transposed else matrix, b, axis)
    # The derivative of a determinant takes the trace of a solution by a mask, under which a
    # matrix without entries would become dense by the policy.
    has_entries = isinstance(known, Matrix) and known.entries is not None
    return known if has_entries else NotImplemented


def _nan_unless_definite(v: Any, factor: Any) -> Any:
    """A Hermitian matrix whose numbers are NaN where those of its Cholesky factor are.

    The factor is one of a matrix without derivatives, so it does not solve in the place of this.
    """
    batch = len(v.shape) - 2
    leaves = [x for x in jax.tree.leaves((v, factor)) if inexact(x)]
    if not is_known_hermitian(v) or any(x.ndim < batch for x in leaves):
        return None
    bad = [
        jnp.isnan(x).any(tuple(range(batch, x.ndim)))
        for x in jax.tree.leaves(factor)
        if inexact(x)
    ]
    is_bad = functools.reduce(jnp.logical_or, bad, jnp.zeros(v.shape[:-2], bool))
    mark = lambda x: nan_where(lax.expand_dims(is_bad, range(batch, x.ndim)), x)
    return jax.tree.map(lambda x: mark(x) if inexact(x) else x, v)


def _multiplied_axis(jaxpr: Any) -> tuple[int, bool] | None:
    """The axis of its second operand along which a jaxpr multiplies with a matrix, its first.

    And whether it multiplies with the transpose. ``None`` if it does anything else.
    """
    first, *moves = jaxpr.eqns or [None]
    if first is None or first.primitive.name != "dot_general":
        return None
    numbers = first.params["dimension_numbers"]
    xs, ys, out = labels(numbers, *(var.aval.ndim for var in first.invars))
    operands = jaxpr.jaxpr.invars
    if first.invars not in (operands, operands[::-1]):
        return None
    (*_, row, column), of_array = (xs, ys) if first.invars == operands else (ys, xs)
    for eqn in moves:
        if eqn.primitive.name == "transpose":
            out = tuple(out[i] for i in eqn.params["permutation"])
        elif eqn.primitive.name != "reduce_sum" or eqn.params["axes"]:
            return None
    summed, free = (column, row) if column in of_array else (row, column)
    if tuple(free if label == summed else label for label in of_array) != out:
        return None
    return of_array.index(summed), summed == row


def _solve_by_parts(matvec: Any, solves: Any, jaxprs: Any, right: Any) -> Any:
    """The same solve with lazy sums and multiples, whose products with an array are values.

    The solution is an array, and so are the results of these functions.
    """
    if not any(isinstance(x, (Scaled, Sum)) for group in (matvec, *solves) for x in group):
        return NotImplemented
    if jaxprs.transpose_solve is None or len(jaxprs.solve.out_avals) != len(right):
        return NotImplemented

    def on_arrays(jaxpr: Any, consts: Any) -> Callable[..., Any]:
        fn = jaxrewrite.transform(jaxpr_as_fun(jaxpr))
        return lambda xs: jaxrewrite.materialise(fn(*consts, *xs))

    inverse, transposed = map(on_arrays, (jaxprs.solve, jaxprs.transpose_solve), solves)
    return lax.custom_linear_solve(
        on_arrays(jaxprs.matvec, matvec),
        list(jaxrewrite.materialise(right)),
        lambda _, b: inverse(b),
        lambda _, b: transposed(b),
    )


def _multiplication(jaxpr: Any) -> Callable[[Any, Any], Any]:
    """The function of a matrix and an array that a jaxpr computes; it returns an array."""
    multiply = jaxrewrite.transform(lambda *xs: jaxpr_as_fun(jaxpr)(*xs)[0])
    return lambda matrix, x: jaxrewrite.materialise(multiply(matrix, x))


# Primitives that move numbers to other places, if the number of entries stays the same.
# With one row, the transpose of a product has a sum over an axis of one entry.
_MOVES = frozenset(
    {"broadcast_in_dim", "copy", "reduce_sum", "reshape", "squeeze", "transpose"}
)


def _only_multiplies(jaxpr: Any) -> bool:
    """Whether a jaxpr multiplies its two operands once, and otherwise only moves axes."""
    products = 0
    for eqn in jaxpr.eqns:
        name = eqn.primitive.name
        sizes = {var.aval.size for var in (*eqn.invars, *eqn.outvars)}
        if name == "dot_general":
            products += 1
        elif name not in _MOVES or len(sizes) > 1:
            return False
    return products == 1


@register("triangular_solve")
def _(
    v: Matrix | Scaled,
    b: Array | Matrix | Scaled | Sum | LowRank,
    *,
    left_side: bool,
    lower: bool,
    transpose_a: bool,
    conjugate_a: bool,
    unit_diagonal: bool,
) -> Any:
    triangle = v.known_triangle(lower, unit_diagonal)
    if triangle is NotImplemented:
        return NotImplemented
    if conjugate_a:
        triangle = jaxrewrite.bind(lax.conj_p, triangle, input_dtype=v.dtype)
    # x A = b is the transpose of A^T x^T = b^T.
    if transpose_a != (not left_side):
        triangle = triangle.transposed()
    axis = b.ndim - 2 if left_side else b.ndim - 1
    if isinstance(b, jaxrewrite.Value):
        return solution_along(triangle, b, axis)
    return triangle.solve(b, axis)


@register("triangular_solve")
def _(a: Array, b: LowRank, *, left_side: bool, **params: Any) -> Any:
    """A solve for the columns of the first factor, or for the rows of the second one."""
    pair = b.as_matrices()
    if pair is None:
        return NotImplemented
    solve = functools.partial(
        jaxrewrite.bind, "triangular_solve", a, left_side=left_side, **params
    )
    columns, rows = pair
    return LowRank(solve(columns), rows) if left_side else LowRank(columns, solve(rows))


# --- factors and eigenvalues ------------------------------------------------------------


@register("cholesky")
def _(v: Matrix | Scaled | Sum, **params: Any) -> Any:
    return v.known_cholesky()


@register("svd")
def _(
    v: Matrix | Scaled | Sum | LowRank,
    *,
    full_matrices: bool,
    compute_uv: bool,
    subset_by_index: Any = None,
    **params: Any,
) -> Any:
    if subset_by_index or v.ndim < 2:
        return NotImplemented
    if compute_uv:
        if full_matrices and not is_square(v):
            return NotImplemented
        svd = v.known_svd()
        if svd is NotImplemented:
            return NotImplemented
        return [nan_unless_finite(svd[1]), svd[0], svd[2]]
    values = v.known_singular_values()
    return values if values is NotImplemented else [nan_unless_finite(values)]


@register("eigh")
def _(
    v: Matrix | Scaled | Sum, *, lower: bool, subset_by_index: Any = None, **params: Any
) -> Any:
    decomposition = NotImplemented if subset_by_index else v.known_eigh(lower)
    if decomposition is NotImplemented:
        return NotImplemented
    values, vectors = decomposition
    return vectors, values


@register("eig")
def _(
    v: Matrix | Scaled | Sum,
    *,
    compute_left_eigenvectors: bool,
    compute_right_eigenvectors: bool,
    **params: Any,
) -> Any:
    if compute_left_eigenvectors or compute_right_eigenvectors:
        return NotImplemented
    values = v.known_eigenvalues()
    if values is NotImplemented:
        return NotImplemented
    return [lax.convert_element_type(values, jnp.result_type(values.dtype, jnp.complex64))]

r"""Sums of a matrix that can be solved and of arrays of low rank.

With :math:`A = B + U V`, of n rows and rank r, and the capacitance :math:`C = I + V B^{-1} U`,

.. math:: A^{-1} b = y - B^{-1} U C^{-1} V y, \quad y = B^{-1} b, \qquad \det A = \det B \det C

(Woodbury's formula and the matrix determinant lemma). A solve takes the formula as it stands, and
a step of iterative refinement (Higham, Accuracy and Stability of Numerical Algorithms, 2nd
edition, 2002, chapter 12). If the backward error is more than the unit of rounding, it starts
again, in a way that is stable, with these things:

- The columns of U become orthonormal. The part of b in their span needs no Woodbury formula,
  because :math:`A^{-1} U = B^{-1} U C^{-1}`.
- If B is diagonal, perhaps in the basis of its eigenvectors, a few of its entries that are nearly
  zero beside what the low-rank term adds to them become part of that term. So B may be singular.
  Then the whole equation is scaled, so that the entries of B have the magnitude one.
- A step of iterative refinement makes the backward error small, or several if B is nearly singular.

Backward errors are those of the equation whose diagonal entries have the magnitude one. So the
units of a variable do not matter, nor do those of its equation.

If the backward error is not small after that, because a B that is not diagonal is nearly
singular, the solution is NaN.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Inexact

import jaxrewrite

from .._base.sizes import are_known
from .._base.structured import inexact
from .algebra import LinearAlgebra, diagonal_of, dot, dot_of, known_or
from .determinant import Determinant, power_of_two
from .low_rank import LowRank
from .matrix import adjoint, nan_where, solve_factor
from .monomial import Diagonal
from .spectral import Spectrum, as_diagonal, spectrum_of
from .sum import Sum, SumSolver, solves_sums, sum_of


# A dense LU factorisation takes 2/3 n^3 multiplications and additions. Here they are 4 n r^2
# for the orthonormal columns and 2 n r^2 for the capacitance, with twice the rank if the
# matrix is diagonal. An eighth of the rows takes 0.3 of the dense operations.
_LARGEST_RANK = 1 / 8


@dataclasses.dataclass(frozen=True)
class _Update(SumSolver):
    """A matrix ``base + u @ v``, whose base is a value that can be solved."""

    base: Any
    u: Any
    v: Any
    is_flipped: bool = False
    """Whether u and v are transposes of arrays that are there."""

    def solve(self, b: Any) -> Any:
        x, is_accurate = self._by_formula(b)
        u, v = self.u, self.v
        if self.is_flipped:
            # An operand of a conditional is written to memory. These are in memory already.
            u, v = _flipped(u), _flipped(v)

        def stably() -> Any:
            factors = (_flipped(u), _flipped(v)) if self.is_flipped else (u, v)
            return _Update(self.base, *factors)._stably(b)

        return lax.cond(is_accurate, lambda: x, stably)

    def _by_formula(self, b: Any) -> tuple[Any, Any]:
        """The solution by the formula and one step of refinement, and whether it is accurate.

        It is if its backward error is at most the unit of rounding. Where a few entries of the
        base are nearly zero and the update adds nothing to them, the scale is that of the others:
        residuals of all other rows would not be seen beside these.
        """
        base, u, v = self.base, self.u, self.v
        axis = b.ndim - 2
        solved_u = solve_factor(base, u, axis)
        inverse = jnp.linalg.inv(_capacitance(solved_u, v))
        scale = self._scale() + self._added()
        weights = 1 / scale

        def once(b: Any) -> Any:
            y = solve_factor(base, b, axis)
            return y - dot(solved_u, dot(inverse, dot(v, y)))

        def residual(x: Any) -> tuple[Any, Any, Any]:
            of_base, of_update = dot_of(base, x), dot(u, dot(v, x))
            return b - of_base - of_update, of_base, of_update

        x = once(b)
        x = x + once(residual(x)[0])
        left, of_base, of_update = residual(x)
        # The update has at least the norm that it has on one vector. This is one that it makes
        # of x, as in an iteration for the largest singular value.
        scaled = jnp.swapaxes(of_update.conj() * weights[..., None], -1, -2)
        back = jnp.swapaxes(dot(dot(scaled, u), v), -1, -2)
        of_x = x * scale[..., None]
        norms = _weighted_norms(weights, [left, b, of_base, of_update, back, of_x])
        left, right, of_base, of_update, back, of_x = norms
        of_norm = jnp.where(of_update > 0, back / of_update, 0).max(
            -1, initial=0, keepdims=True
        )
        size = right + of_base + of_norm * of_x
        eps, tiny = float(jnp.finfo(x.dtype).eps), float(jnp.finfo(x.dtype).tiny)
        # Squares of smaller numbers underflow, and those of larger ones are infinite.
        is_seen = (size > math.sqrt(tiny) / eps) & (size < jnp.inf)
        return x, (is_seen & (left <= eps * size)).all()

    def _stably(self, b: Any) -> Any:
        update, base, units = self, self.base, _no_units(self.base)
        if isinstance(base, Diagonal):
            d, units = _raised(base.d, self._added(), self.u.shape[-1])
            scale = jnp.sqrt(abs(d))
            base = Diagonal((d / scale) / scale)
        else:
            update = self._graded()
            scale = power_of_two(jnp.log2(self._scale()) / 2)
            inverse = Diagonal((1 / scale).astype(base.dtype))
            base = inverse @ base @ inverse
        rows = scale[..., None]
        scaled = _Update(base, update.u, update.v)
        return scaled._by_orthonormal_columns(b / rows, units.over(scale), rows) / rows

    def _by_orthonormal_columns(self, b: Any, units: _Units, scale: Any) -> Any:
        """The solution for ``base + (u / scale) @ (v / scale) + units``."""
        base, u, v = self.base, self.u / scale, self.v / _flipped(scale)
        # Products with the arrays that are there need no memory for those that are scaled.
        times_u = lambda x: dot(self.u, x) / scale
        times_v = lambda x: dot(self.v, x / scale)
        axis = b.ndim - 2
        # The columns of u become orthonormal to each other and to the unit vectors.
        q, triangle = _orthonormal(units.without(u))
        left = jnp.concatenate([triangle, units.rows(u)], -2)
        right = jnp.concatenate(
            [
                times_v(solve_factor(base, q, axis)),
                units.columns(v) * units.inverse[..., None, :],
            ],
            -1,
        )
        of_q = jnp.ones(q.shape[:-2] + q.shape[-1:], q.dtype)
        main = jnp.concatenate([of_q, 1 + units.change * units.inverse], -1)
        lu, pivots, _ = lax.linalg.lu(_diagonal(main) + dot(left, right))

        def in_span(b: Any) -> Any:
            x = jax.scipy.linalg.lu_solve((lu, pivots), b)
            of_q, of_units = jnp.split(x, [q.shape[-1]], -2)
            in_q = solve_factor(base, dot(q, of_q), axis)
            return units.added(in_q, of_units * units.inverse[..., None])

        def once(b: Any) -> Any:
            inside, of_units = dot(adjoint(q), b), units.rows(b)
            b = units.without(b) - dot(q, inside)
            # The second projection removes the rounding errors of the first.
            more = dot(adjoint(q), b)
            y = solve_factor(base, b - dot(q, more), axis)
            inside = jnp.concatenate([inside + more, of_units], -2)
            return y + in_span(inside - dot(left, times_v(y)))

        # Residuals are those of the equation whose diagonal would have the magnitude one.
        scaled = _Update(base, u, v)
        weights = 1 / jnp.sqrt(scaled._scale() + scaled._added())
        in_front = weights[..., None]
        of_update = _norm(in_front * u, (-2, -1)) * _norm(
            weights[..., None, :] * v, (-2, -1)
        )
        of_update = of_update + _norm(units.change[..., None], (-2, -1))

        def residual(x: Any) -> tuple[Any, Any]:
            of_base = dot_of(base, x)
            norm = lambda x: _norm(in_front * x, -2)
            size = norm(b) + norm(of_base) + of_update * _norm(x / in_front, -2)
            of_units = units.change[..., None] * units.rows(x)
            return b - units.added(of_base + times_u(times_v(x)), of_units), size

        def is_left(state: Any) -> Any:
            count, x, left_over, size = state
            is_inaccurate = _norm(in_front * left_over, -2) > jnp.finfo(x.dtype).eps * size
            return (count == 0) | ((count < _MOST_STEPS) & is_inaccurate.any())

        def refined(state: Any) -> Any:
            count, x, left_over, _ = state
            x = x + once(left_over)
            return count + 1, x, *residual(x)

        x = once(b)
        # Each step is as good as the base is regular: nearly always one is enough.
        _, x, left_over, size = lax.while_loop(is_left, refined, (0, x, *residual(x)))
        is_exact = _norm(in_front * left_over, -2) <= _tolerance(x) * size
        return nan_where(~is_exact, x)

    def _added(self) -> Any:
        """The largest terms that ``u @ v`` has on its diagonal, if they meet; a constant.

        A norm of rows would have squares, which overflow where these products do not.
        """
        u, v = (abs(x) for x in lax.stop_gradient((self.u, self.v)))
        return u.max(-1, initial=0) * v.max(-2, initial=0)

    def _scale(self) -> Any:
        """The magnitudes of the diagonal of the base, a constant; see `_without_zeros`.

        If the base is not diagonal, and some are zero, all are one.
        """
        if isinstance(self.base, Diagonal):
            return _without_zeros(self.base.d, self.u.shape[-1])
        scale = abs(lax.stop_gradient(diagonal_of(self.base)))
        return jnp.where((scale > 0).all(-1, keepdims=True), scale, 1)

    def _condition(self, solved_u: Any, scale: Any) -> Any:
        """How much the base, with units in which ``scale`` is one, changes the columns of u."""
        root = jnp.sqrt(jnp.asarray(scale, self.u.real.dtype))[..., None]
        of_base = dot_of(self.base, self.u / root**2)
        scaled = (self.u / root, solved_u * root, of_base / root)
        size, *others = (_norm(lax.stop_gradient(x), (-2, -1)) for x in scaled)
        growths = (other / jnp.where(size == 0, 1, size) for other in others)
        return math.prod(growths)[..., 0, 0]

    def determinant(self) -> Any:
        update = self._balanced()
        base, units = self.base, _no_units(self.base)
        if isinstance(base, Diagonal):
            d, units = _raised(base.d, update._added(), self.u.shape[-1])
            base = Diagonal(d)
        else:
            update = update._graded()
        u, v = update.u, update.v
        of_base = known_or(base, "known_determinant", Determinant.of_arrays)
        of_base = jaxrewrite.materialise(of_base)
        if isinstance(base, Diagonal):
            # If zeros are left, the determinant is zero.
            base = Diagonal(jnp.where(base.d == 0, 1, base.d))
        solved_u = solve_factor(base, u, u.ndim - 2)
        change = units.change * units.inverse
        of_units = units.columns(v) * units.inverse[..., None, :]
        capacitance = jnp.concatenate(
            [
                jnp.concatenate([_capacitance(solved_u, v), of_units], -1),
                jnp.concatenate(
                    [change[..., None] * units.rows(u), _diagonal(1 + change)], -1
                ),
            ],
            -2,
        )
        determinant = of_base.times(Determinant.of_arrays(capacitance))
        if isinstance(base, Diagonal):
            return determinant
        # Beside a base that is singular to rounding, the errors of the two have nothing in common.
        conditions = (update._condition(solved_u, scale) for scale in (1, update._scale()))
        condition = functools.reduce(jnp.minimum, conditions)
        is_known = (condition < 1 / jnp.finfo(u.dtype).eps) & (of_base.unit != 0)
        return determinant._replace(unit=nan_where(~is_known, determinant.unit))

    def _balanced(self) -> _Update:
        """The same matrix, with columns of u as long as the rows of v that they meet."""
        of_u, of_v = (
            lax.stop_gradient(jnp.linalg.norm(x, axis=axis))
            for x, axis in ((self.u, -2), (self.v, -1))
        )
        scale = power_of_two(jnp.log2(of_u / of_v) / 2)
        return _Update(self.base, self.u / scale[..., None, :], self.v * scale[..., None])

    def _graded(self) -> _Update:
        """The same matrix, where a column of u has zeros in the largest rows of those after it.

        Then the term of a row that is much larger than others does not hide theirs in the
        capacitance, if the update is symmetric. Otherwise it hides half of the digits.
        """
        rank = self.u.shape[-1]
        _, rows = lax.top_k(self._added() / self._scale(), rank)
        largest = jnp.take_along_axis(lax.stop_gradient(self.u), rows[..., None], -2)
        turned, _ = jnp.linalg.qr(adjoint(largest))
        return _Update(self.base, dot(self.u, turned), dot(adjoint(turned), self.v))


@dataclasses.dataclass(frozen=True)
class _InEigenvectors(SumSolver):
    """A matrix whose base is diagonal in the basis of its eigenvectors."""

    spectrum: Spectrum
    update: _Update

    def solve(self, b: Any) -> Any:
        x = self._diagonal().solve(self.spectrum.to(b))
        return _like(self.update.u, self.spectrum.back(x))

    def determinant(self) -> Any:
        if not self.spectrum.is_constant:
            # Eigenvectors have no derivatives where two eigenvalues are the same.
            return self.update.determinant()
        graded = dataclasses.replace(self, update=self.update._balanced()._graded())
        determinant = graded._diagonal().determinant()
        return Determinant(_like(self.update.u, determinant.unit), determinant.log)

    def _diagonal(self) -> _Update:
        spectrum, update = self.spectrum, self.update
        u, v = spectrum.to(update.u), spectrum.of_rows(update.v)
        return _Update(Diagonal(spectrum.values), u, v)


def _like(x: Any, y: Any) -> Any:
    """A complex array without its imaginary part, which is rounding if ``x`` is real."""
    return y if jnp.iscomplexobj(x) else y.real


class _Units(NamedTuple):
    """A matrix that is zero but for a few entries of its diagonal, as many as the last axis."""

    indices: Any
    is_used: Any
    """Whether an index has an entry at all."""

    change: Any
    """The entries, each added to one of a diagonal matrix."""

    inverse: Any
    """One over what the entries are added to."""

    def over(self, scale: Any) -> _Units:
        """The same matrices with rows and columns divided by a scale."""
        scale = jnp.take_along_axis(scale, self.indices, -1)
        return self._replace(
            change=(self.change / scale) / scale, inverse=(self.inverse * scale) * scale
        )

    def rows(self, x: Any) -> Any:
        """The rows of an array at the indices."""
        rows = jnp.take_along_axis(x, self.indices[..., None], -2)
        return jnp.where(self.is_used[..., None], rows, 0)

    def columns(self, x: Any) -> Any:
        columns = jnp.take_along_axis(x, self.indices[..., None, :], -1)
        return jnp.where(self.is_used[..., None, :], columns, 0)

    def without(self, x: Any) -> Any:
        """The array with zeros in the rows at the indices."""
        return self.added(x, -self.rows(x))

    def added(self, x: Any, rows: Any) -> Any:
        """The array with something added to the rows at the indices."""
        at = self.indices[..., None]
        existing = jnp.take_along_axis(x, at, -2)
        rows = jnp.where(self.is_used[..., None], existing + rows, existing)
        at = jnp.broadcast_to(at, rows.shape)
        return jnp.put_along_axis(x, at, rows, -2, inplace=False)


def _no_units(base: Any) -> _Units:
    indices, is_used, none = (
        jnp.zeros((*base.shape[:-2], 0), dtype) for dtype in (int, bool, base.dtype)
    )
    return _Units(indices, is_used, none, none)


# Steps of refinement in the stable way.
_MOST_STEPS = 32

# An entry of the diagonal is nearly zero below this part of the entry that others would have in its
# place: the terms of its inverse in the capacitance leave few digits to those of all others.
_SMALL = 0.03


def _raised(d: Any, added: Any, rank: int) -> tuple[Any, _Units]:
    """A diagonal with its few entries that are nearly zero raised, and what that changed.

    An entry is nearly zero beside what is ``added`` to it, of which it is a much smaller part than
    others of theirs are: it is raised to the same part. Then the term of no row hides those of the
    others in the capacitance. If the matrix is regular, at most as many entries as the rank are
    zero. A change of the units of a row and its column changes nothing of this.
    """
    k = rank + 1
    size, added = (abs(lax.stop_gradient(x)) for x in (d, added))
    most, indices = lax.top_k(jnp.where(added == 0, 0, added / size), k + 1)
    level = added / jnp.maximum(most[..., k:], 1)
    is_small = size < _SMALL * level
    level = level.astype(d.dtype)
    indices = indices[..., :k]
    at = lambda x: jnp.take_along_axis(x, indices, -1)
    is_used = at(is_small)
    change = jnp.where(is_used, at(d) - at(level), 0)
    raised = jnp.where(is_used, at(level), at(d))
    d = jnp.put_along_axis(d, indices, raised, -1, inplace=False)
    inverse = jnp.where(is_used, 1 / jnp.where(is_used, raised, 1), 0)
    return d, _Units(indices, is_used, change, inverse)


def is_positive_definite(
    d: Inexact[Array, " n"], p: Inexact[Array, "n r"], q: Inexact[Array, "n s"]
) -> Bool[Array, ""]:
    """Whether a real matrix ``diag(d) + p @ p.T - q @ q.T`` is positive definite.

    A matrix :math:`D + U S U^T` is where the negative entries of D and the positive eigenvalues
    of :math:`S^{-1} + U^T D^{-1} U` are as many as the positive ones of S (E. V. Haynsworth,
    Determination of the inertia of a partitioned Hermitian matrix, Linear Algebra and its
    Applications 1, 1968). It is ``False`` if more entries of D are zero than the rank.
    """
    both = jnp.concatenate([p, q], 1)
    d, units = _raised(d, (both**2).sum(1), both.shape[1])
    # A unit that is not used is a column of zeros with a negative number.
    signs = jnp.array([1] * p.shape[1] + [-1] * q.shape[1], d.dtype)
    change = jnp.where(units.is_used, units.change, -1)
    count = len(change)
    of_units = units.added(
        jnp.zeros((len(d), count), d.dtype), jnp.eye(count, dtype=d.dtype)
    )
    both = jnp.concatenate([both, of_units], 1)
    small = jnp.diag(jnp.concatenate([signs, 1 / change])) + both.T @ (both / d[:, None])
    # Signs of eigenvalues stay if rows and columns are scaled alike, and have more digits then.
    scale = jnp.sqrt(abs(jnp.diagonal(small)))
    scale = jnp.where(scale > 0, scale, 1)
    small = small / scale / scale[:, None]
    signs = (d < 0).sum() + (jnp.linalg.eigvalsh(small) > 0).sum()
    return (signs == p.shape[1] + (change > 0).sum()) & (d != 0).all()


def _without_zeros(d: Any, rank: int) -> Any:
    """The magnitudes of a diagonal. A few that are nearly zero count as the least of the others.

    They are as many as the rank and one more. If more are small, the matrix is nearly singular.
    """
    size = abs(lax.stop_gradient(d))
    least = -lax.top_k(-size, rank + 2)[0][..., -1:]
    return jnp.where(size < least / 100, least, size)


def _orthonormal(u: Any) -> tuple[Any, Any]:
    """The factors of a QR decomposition, accurate in each row.

    Householder's reflections are so if the largest rows come first (A. J. Cox and N. J. Higham,
    Stability of Householder QR factorization for weighted least squares problems, 1998).
    """
    order = jnp.argsort(-abs(u).max(-1, initial=0), -1)
    q, triangle = jnp.linalg.qr(jnp.take_along_axis(u, order[..., None], -2))
    back = jnp.argsort(order, -1)
    return jnp.take_along_axis(q, back[..., None], -2), triangle


def _flipped(x: Any) -> Any:
    return jnp.swapaxes(x, -1, -2)


def _diagonal(d: Any) -> Any:
    return d[..., None] * jnp.eye(d.shape[-1], dtype=d.dtype)


def _tolerance(x: Any) -> Any:
    return math.sqrt(float(jnp.finfo(x.dtype).eps))


def _capacitance(solved_u: Any, v: Any) -> Any:
    return jnp.eye(v.shape[-2], dtype=v.dtype) + dot(v, solved_u)


def _norm(x: Any, axes: Any) -> Any:
    """The norm, of squares that neither overflow nor underflow; NaN for infinite numbers."""
    scale = _largest(x, axes)
    return scale * jnp.linalg.norm(x / scale, axis=axes, keepdims=True)


def _largest(x: Any, axes: Any) -> Any:
    """The largest magnitude, to divide by: one if all numbers are zero."""
    largest = abs(x).max(axes, initial=0, keepdims=True)
    return jnp.where(largest == 0, 1, largest)


def _weighted_norms(weights: Any, arrays: Sequence[Any]) -> Sequence[Any]:
    """The norm of each column, by one product, which is quicker than sums of fused operations."""
    squares = jnp.concatenate([abs(x) ** 2 for x in arrays], -1)
    sums = dot(weights[..., None, :], squares)[..., 0, :]
    return jnp.split(jnp.sqrt(sums), len(arrays), -1)


@solves_sums
def _(total: Sum) -> SumSolver | None:
    low = [x for x in total.terms if isinstance(x, LowRank)]
    rest = [x for x in total.terms if not isinstance(x, LowRank)]
    pairs = [x.as_matrices() for x in low]
    if not low or not rest or None in pairs or not inexact(total):
        return None
    if not are_known(total.shape[-1]) or (
        max(1, sum(x.rank for x in low)) > _LARGEST_RANK * total.shape[-1]
    ):
        return None
    base = as_diagonal(sum_of(rest))
    if not isinstance(base, LinearAlgebra) or not base.solvable or not _is_light(base):
        return None
    us, vs = zip(*jaxrewrite.materialise(pairs), strict=True)
    is_flipped = len(low) == 1 and low[0].rows == (-1,)
    update = _Update(base, jnp.concatenate(us, -1), jnp.concatenate(vs, -2), is_flipped)
    spectrum = None if isinstance(base, Diagonal) else spectrum_of(base)
    return update if spectrum is None else _InEigenvectors(spectrum, update)


def _is_light(x: Any) -> bool:
    """Whether a matrix holds at most half as many numbers as a dense one.

    A solve with any other may take as long as a dense one.
    """
    return sum(leaf.size for leaf in jax.tree.leaves(x)) <= math.prod(x.shape) / 2

r"""Sums of a matrix that can be solved and of arrays of low rank.

With :math:`A = B + U V`, of n rows and rank r, and the capacitance :math:`C = I + V B^{-1} U`,

.. math:: A^{-1} b = y - B^{-1} U C^{-1} V y, \quad y = B^{-1} b, \qquad \det A = \det B \det C

(Woodbury's formula and the matrix determinant lemma). These things keep a solve stable:

- The columns of U become orthonormal. The part of b in their span needs no Woodbury formula,
  because :math:`A^{-1} U = B^{-1} U C^{-1}`.
- If B is diagonal, perhaps in the basis of its eigenvectors, its few smallest entries become
  part of the low-rank term where they are nearly zero. So B may be singular. Then the whole
  equation is scaled, so that the entries of B have the magnitude one.
- A step of iterative refinement makes the backward error small (Higham, Accuracy and Stability
  of Numerical Algorithms, 2nd edition, 2002, chapter 12).

If the backward error is not small after that, because a B that is not diagonal is nearly
singular, the solution is NaN.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

import jaxrewrite

from .._base.structured import inexact
from .algebra import LinearAlgebra, known_or
from .determinant import Determinant, power_of_two
from .low_rank import LowRank
from .matrix import solve_factor
from .monomial import Diagonal
from .spectral import Spectrum, as_diagonal, spectrum_of
from .sum import Sum, SumSolver, solves_sums, sum_of


# A dense LU factorisation takes 2/3 n^3 multiplications and additions. Here they are 4 n r^2
# for the orthonormal columns and 2 n r^2 for the capacitance, with twice the rank if the
# matrix is diagonal. An eighth of the rows takes 0.3 of the dense operations.
_LARGEST_RANK = 1 / 8


class _Update(NamedTuple):
    """A matrix ``base + u @ v``, whose base is a value that can be solved."""

    base: Any
    u: Any
    v: Any

    def solve(self, b: Any) -> Any:
        if not isinstance(self.base, Diagonal):
            return self._solve(b)
        base, u, v = _raised(self.base.d, self.u, self.v)
        scale = jnp.sqrt(abs(base.d))
        base = Diagonal((base.d / scale) / scale)
        rows, columns = scale[..., None], scale[..., None, :]
        return _Update(base, u / rows, v / columns)._solve(b / rows) / rows

    def _solve(self, b: Any) -> Any:
        base, axis = self.base, b.ndim - 2
        u, triangle = jnp.linalg.qr(self.u)
        v = _dot(triangle, self.v)
        solved_u = solve_factor(base, u, axis)
        lu, pivots, _ = lax.linalg.lu(_capacitance(solved_u, v))

        def in_span(b: Any) -> Any:
            return _dot(solved_u, jax.scipy.linalg.lu_solve((lu, pivots), b))

        def once(b: Any) -> Any:
            inside = _dot(_adjoint(u), b)
            b = b - _dot(u, inside)
            # The second projection removes the rounding errors of the first.
            more = _dot(_adjoint(u), b)
            y = solve_factor(base, b - _dot(u, more), axis)
            return y + in_span(inside + more - _dot(v, y))

        def residual(x: Any) -> tuple[Any, Any]:
            of_base = _times(base, x)
            size = _norm(b, -2) + _norm(of_base, -2) + _norm(v, (-2, -1)) * _norm(x, -2)
            return b - of_base - _dot(u, _dot(v, x)), size

        x = once(b)
        x = x + once(residual(x)[0])
        left, size = residual(x)
        return jnp.where(_norm(left, -2) <= _tolerance(x) * size, x, jnp.nan)

    def determinant(self) -> Any:
        base, u, v = self._balanced()
        if isinstance(base, Diagonal):
            base, u, v = _raised(base.d, u, v)
        of_base = known_or(base, "known_determinant", Determinant.of_arrays)
        of_base = jaxrewrite.materialise(of_base)
        if isinstance(base, Diagonal):
            # If zeros are left, the determinant is zero.
            base = Diagonal(jnp.where(base.d == 0, 1, base.d))
        solved_u = solve_factor(base, u, u.ndim - 2)
        return of_base.times(Determinant.of_arrays(_capacitance(solved_u, v)))

    def eigh(self) -> Any:
        return NotImplemented

    def reduced_svd(self) -> Any:
        return NotImplemented

    def _balanced(self) -> _Update:
        """The same matrix, with columns of u as long as the rows of v that they meet."""
        of_u, of_v = (
            lax.stop_gradient(jnp.linalg.norm(x, axis=axis))
            for x, axis in ((self.u, -2), (self.v, -1))
        )
        scale = power_of_two(jnp.log2(of_u / of_v) / 2)
        return _Update(self.base, self.u / scale[..., None, :], self.v * scale[..., None])


class _InEigenvectors(NamedTuple):
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
        found = self._diagonal().determinant()
        return Determinant(_like(self.update.u, found.unit), found.log)

    def eigh(self) -> Any:
        return NotImplemented

    def reduced_svd(self) -> Any:
        return NotImplemented

    def _diagonal(self) -> _Update:
        _, u, v = self.update
        spectrum = self.spectrum
        return _Update(Diagonal(spectrum.values), spectrum.to(u), spectrum.of_rows(v))


def _like(x: Any, y: Any) -> Any:
    """A complex array without its imaginary part, which is rounding if ``x`` is real."""
    return y if jnp.iscomplexobj(x) else y.real


def _raised(d: Any, u: Any, v: Any) -> _Update:
    """The same matrix after a few entries of a diagonal that are nearly zero were raised.

    If the matrix is regular, at most as many entries as the rank are zero. An entry is
    raised if it is small beside the rest of its row and column, and beside all others.
    """
    n, k = d.shape[-1], u.shape[-1] + 1
    of_rows, of_columns = (jnp.linalg.norm(x, axis=axis) for x, axis in ((u, -1), (v, -2)))
    most = lambda x: x.max(-1, initial=0, keepdims=True)
    level = of_rows * most(of_columns) + most(of_rows) * of_columns
    least, places = lax.top_k(-abs(lax.stop_gradient(d)), k + 1)
    level = jnp.minimum(level, -least[..., k:])
    is_small = abs(d) < _tolerance(d) * level
    selected = is_small[..., None, :] & jax.nn.one_hot(places[..., :k], n, dtype=bool)
    unit = selected.astype(d.dtype)
    level = lax.stop_gradient(level).astype(d.dtype)
    return _Update(
        Diagonal(jnp.where(selected.any(-2), level, d)),
        jnp.concatenate([u, jnp.swapaxes(unit, -1, -2)], -1),
        jnp.concatenate([v, unit * (d - level)[..., None, :]], -2),
    )


def _tolerance(x: Any) -> Any:
    return math.sqrt(float(jnp.finfo(x.dtype).eps))


def _capacitance(solved_u: Any, v: Any) -> Any:
    return jnp.eye(v.shape[-2], dtype=v.dtype) + _dot(v, solved_u)


def _dot(x: Any, y: Any) -> Any:
    return jnp.matmul(x, y, precision=lax.Precision.HIGHEST)


def _adjoint(x: Any) -> Any:
    return jnp.conj(jnp.swapaxes(x, -1, -2))


def _norm(x: Any, axes: Any) -> Any:
    """The norm, of squares that neither overflow nor underflow; NaN for infinite numbers."""
    largest = abs(x).max(axes, initial=0, keepdims=True)
    scale = jnp.where(largest == 0, 1, largest)
    return scale * jnp.linalg.norm(x / scale, axis=axes, keepdims=True)


def _times(a: Any, x: Any) -> Any:
    return jaxrewrite.materialise(jaxrewrite.transform(_dot)(a, x))


@solves_sums
def _(total: Sum) -> SumSolver | None:
    low = [x for x in total.terms if isinstance(x, LowRank)]
    rest = [x for x in total.terms if not isinstance(x, LowRank)]
    pairs = [x.as_matrices() for x in low]
    if not low or not rest or None in pairs or not inexact(total):
        return None
    if max(1, sum(x.rank for x in low)) > _LARGEST_RANK * total.shape[-1]:
        return None
    base = as_diagonal(sum_of(rest))
    if not isinstance(base, LinearAlgebra) or not base.solvable or not _is_light(base):
        return None
    us, vs = zip(*jaxrewrite.materialise(pairs), strict=True)
    update = _Update(base, jnp.concatenate(us, -1), jnp.concatenate(vs, -2))
    spectrum = None if isinstance(base, Diagonal) else spectrum_of(base)
    return update if spectrum is None else _InEigenvectors(spectrum, update)


def _is_light(x: Any) -> bool:
    """Whether a matrix holds at most half as many numbers as a dense one.

    A solve with any other may take as long as a dense one.
    """
    return sum(leaf.size for leaf in jax.tree.leaves(x)) <= math.prod(x.shape) / 2

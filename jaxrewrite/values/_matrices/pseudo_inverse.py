"""Pseudo-inverses that are not multiplied out.

``jnp.linalg.pinv`` of a matrix whose singular value decomposition is known is a value that
multiplies by one of its factors after the other. Singular vectors have no derivatives where
two singular values are the same, but the pseudo-inverse has, as long as the rank stays. So
products with it have the derivative that JAX gives to its own function [1]_. Where a tolerance
cuts numbers that are far from zero, the vectors of those turn, too: `_by_turns` adds that.

References
----------
.. [1] G. H. Golub and V. Pereyra, "The differentiation of pseudo-inverses and nonlinear least
   squares problems whose variables separate", SIAM Journal on Numerical Analysis 10 (1973).
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

import jaxrewrite

from .._base.sizes import is_less
from .algebra import dense_svd, dot_of, known_or, solve_columns
from .matrix import Matrix, adjoint, nan_where, swapped


class PseudoInverse(Matrix):
    r"""The pseudo-inverse of a matrix or a lazy multiple that knows its `known_reduced_svd`.

    Singular values of at most ``tolerance``, of shape (\*batch), times the largest count as
    zeros. The matrix keeps its own dtype, whatever ``entry_dtype`` the pseudo-inverse has: the
    tolerance belongs to it, and rounding would make small numbers out of the zeros.
    """

    matrix: Any
    tolerance: Any
    entry_dtype: Any = jaxrewrite.field(static=True)

    rules_see_values = True

    def aval(self) -> Any:
        *batch, n, m = self.matrix.shape
        return jax.core.ShapedArray((*batch, m, n), self.entry_dtype)

    def materialise(self) -> Any:
        # With JAX 0.10, JAX's own function has no second derivative if ``rtol`` is traced.
        dense = jaxrewrite.materialise(self.matrix)
        eye = jnp.eye(dense.shape[-2], dtype=dense.dtype)
        columns = jnp.broadcast_to(eye, (*self.batch, *eye.shape))
        return pseudo_inverse_times(dense, self.tolerance, columns).astype(self.dtype)

    def apply(self, x: Any, axis: int, precision: Any = None) -> Any:
        multiply = functools.partial(pseudo_inverse_times, self.matrix, self.tolerance)
        return solve_columns(multiply, x, axis, len(self.batch)).astype(self.dtype)

    def transposed(self) -> Any:
        return PseudoInverse(swapped(self.matrix), self.tolerance, self.dtype)

    def cast(self, dtype: Any) -> Any:
        return dataclasses.replace(self, entry_dtype=jnp.dtype(dtype))


def default_tolerance(a: Any) -> Any:
    """The ``rtol`` of JAX's function."""
    return 10 * max(a.shape[-2:]) * jnp.finfo(a.dtype).eps


def ask_for_dense(v: Any) -> None:
    """Tell the way out if a matrix without known singular values may not become dense.

    A plain solve would not do: small singular values count as zeros.
    """
    try:
        jax.eval_shape(jaxrewrite.transform(jnp.linalg.svd), v)
    except jaxrewrite.MaterialisationError as error:
        error.add_note(
            f"The structure of {type(v).__name__} gives no singular values, and so no rank. If "
            "the rank is known to be full, use jnp.linalg.solve for a square matrix, and "
            "conjugate_gradients(a.T @ a, a.T @ b) for one with more rows: see 'Least "
            "squares' in docs/structure.rst."
        )
        raise


def nan_unless_finite(size: Any) -> Any:
    """The singular values, all of which are NaN if one is not finite, as in LAPACK."""
    return nan_where(~jnp.isfinite(size).all(-1, keepdims=True), size)


def is_kept(size: Any, tolerance: Any, keeps_equal: bool) -> Any:
    """Which singular values count as more than zero.

    ``keeps_equal`` tells whether those do that are as large as the tolerance says: one of
    JAX's functions keeps them, and another one does not.
    """
    least = tolerance[..., None] * size.max(-1, initial=0, keepdims=True)
    return (size > 0) & (size >= least) if keeps_equal else size > least


def _by_turns(size: Any, kept: Any, moved: Any, u_b: Any, v_x: Any) -> Any:
    r"""What the solution gains as vectors of kept and of cut singular values turn to each other.

    Golub and Pereyra's derivative is that of a matrix whose cut singular values :math:`s_j` are zero.
    With :math:`M = U^* dA V`, the derivative of the kept part has, for a kept :math:`s_i`,
    :math:`s_i (s_i M_{ij} + s_j \bar M_{ji}) / (s_i^2 - s_j^2)` in the place of :math:`M_{ij}`,
    and likewise for :math:`M_{ji}`. All are in the basis of the singular vectors.
    """
    is_pair = kept[:, None] & ~kept[None, :]  # i is kept, and j is cut.
    kept_size = jnp.where(kept, size, 1)[:, None]
    # Ratios of sizes do not overflow.
    ratio = jnp.where(is_pair, size[None, :] / kept_size, 0)
    weight = ratio / ((1 - ratio) * (1 + ratio))
    back = jnp.conj(moved.T)
    of_right = weight * (ratio * moved + back) / kept_size
    of_left = weight * (ratio * back + moved) / kept_size
    turned = (of_left @ u_b) / kept_size
    return jnp.where(kept[:, None], turned, 0) + jnp.conj(of_right.T) @ v_x


def pseudo_inverse_times(
    a: Any, tolerance: Any, b: Any, *, keeps_equal: bool = False, cuts: bool = False
) -> Any:
    r"""The pseudo-inverse of a matrix times an array of shape (\*batch, n, k).

    The matrix is an array, or a value that knows its `known_reduced_svd`. Such a value may become one
    of another form, such as a stack. ``cuts`` tells that singular values which do not count may
    be far from zero. The derivative then has the turns of their vectors, too, of one matrix.
    """
    leaves, treedef = jax.tree.flatten(a)
    matrix_of = lambda leaves: jax.tree.unflatten(treedef, leaves)

    @jax.custom_jvp
    def product(leaves: Any, tolerance: Any, b: Any) -> Any:
        u, size, vh = known_or(matrix_of(leaves), "known_reduced_svd", dense_svd)
        size = nan_unless_finite(jaxrewrite.materialise(size))
        kept = is_kept(size, tolerance, keeps_equal)
        inverse = jnp.where(kept, 1 / jnp.where(kept, size, 1), 0 * size)
        inside = dot_of(adjoint(u), b)
        solution = dot_of(adjoint(vh), inside * inverse[..., None].astype(inside.dtype))
        is_real = not (jnp.iscomplexobj(matrix_of(leaves)) or jnp.iscomplexobj(b))
        return solution.real if is_real else solution

    @product.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        """:math:`dA^+ = -A^+ dA A^+ + A^+ A^{+*} dA^* (I - A A^+) + (I - A^+ A) dA^* A^{+*} A^+`"""
        (leaves, tolerance, b), (leaf_tangents, _, b_dot) = primals, tangents
        a = matrix_of(leaves)

        def change(fn: Any, x: Any) -> Any:
            along = lambda leaves: dot_of(fn(matrix_of(leaves)), x)
            return jax.jvp(along, (leaves,), (leaf_tangents,))[1]

        x = product(leaves, tolerance, b)
        left = change(adjoint, b - dot_of(a, x))
        options = {"keeps_equal": keeps_equal, "cuts": cuts}
        if is_less(sum(map(jnp.size, leaves)), a.size):
            times = lambda x: pseudo_inverse_times(a, tolerance, x, **options)
            times_adjoint = lambda x: pseudo_inverse_times(
                adjoint(a), tolerance, x, **options
            )
        else:
            # The inverse as an array takes no more than the matrix. Where JAX linearises this, it
            # drops the rules of functions of tangents, so that second derivatives would be those
            # of singular vectors. An array that depends on the point alone keeps its rule.
            eye = jnp.eye(a.shape[-2], dtype=a.dtype)
            p = product(
                leaves, tolerance, jnp.broadcast_to(eye, (*a.shape[:-2], *eye.shape))
            )
            times, times_adjoint = (functools.partial(dot_of, x) for x in (p, adjoint(p)))
        tangent = times(b_dot - change(lambda a: a, x) + times_adjoint(left))
        beside = change(adjoint, times_adjoint(x))
        tangent = tangent + beside - times(dot_of(a, beside))
        if cuts:
            u, size, vh = known_or(a, "known_reduced_svd", dense_svd)
            size = jaxrewrite.materialise(size)
            kept = is_kept(size, tolerance, keeps_equal)
            v = jaxrewrite.materialise(adjoint(vh))
            moved = dot_of(adjoint(u), change(lambda a: a, v))
            turned = _by_turns(size, kept, moved, dot_of(adjoint(u), b), dot_of(vh, x))
            turned = dot_of(v, turned)
            tangent = tangent + (turned if jnp.iscomplexobj(tangent) else turned.real)
        return x, tangent

    return product(leaves, tolerance, b)

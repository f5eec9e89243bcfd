"""Pseudo-inverses that are not multiplied out.

``jnp.linalg.pinv`` of a matrix whose singular value decomposition is known is a value that
multiplies by one of its factors after the other. Singular vectors have no derivatives where
two singular values are the same, but the pseudo-inverse has, as long as the rank stays. So
products with it have the derivative that JAX gives to its own function [1]_.

References
----------
.. [1] G. H. Golub and V. Pereyra, "The differentiation of pseudo-inverses and nonlinear least
   squares problems whose variables separate", SIAM Journal on Numerical Analysis 10 (1973).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

import jaxrewrite

from .algebra import solve_columns
from .matrix import Matrix, adjoint


class PseudoInverse(Matrix):
    """The pseudo-inverse of a square matrix or a lazy multiple that knows its `known_svd`."""

    matrix: Any

    rules_see_values = True

    def aval(self) -> Any:
        return self.matrix.aval()

    def materialise(self) -> Any:
        return jnp.linalg.pinv(jaxrewrite.materialise(self.matrix))

    def apply(self, x: Any, axis: int, precision: Any = None) -> Any:
        return solve_columns(lambda b: _product(self.matrix, b), x, axis, len(self.batch))

    def transposed(self) -> Any:
        return PseudoInverse(self.matrix.transposed())


def _product(a: Any, b: Any) -> Any:
    r"""The pseudo-inverse of a matrix times an array of shape (\*batch, n, k)."""
    leaves, treedef = jax.tree.flatten(a)
    whole = lambda leaves: jax.tree.unflatten(treedef, leaves)

    @jax.custom_jvp
    def product(leaves: Any, b: Any) -> Any:
        u, size, vh = whole(leaves).known_svd()
        size = jaxrewrite.materialise(size)
        # As in JAX's function, smaller singular values count as zeros.
        least = 10 * size.shape[-1] * jnp.finfo(size.dtype).eps * size[..., :1]
        inverse = jnp.where(size > least, 1 / jnp.where(size > least, size, 1), 0)
        inside = _dot(adjoint(u), b) * inverse[..., None].astype(b.dtype)
        return _dot(adjoint(vh), inside)

    @product.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        """:math:`dA^+ = -A^+ dA A^+ + A^+ A^{+*} dA^* (I - A A^+) + (I - A^+ A) dA^* A^{+*} A^+`"""
        (leaves, b), (leaf_tangents, b_dot) = primals, tangents
        a = whole(leaves)

        def change(fn: Any, x: Any) -> Any:
            along = lambda leaves: _dot(fn(whole(leaves)), x)
            return jax.jvp(along, (leaves,), (leaf_tangents,))[1]

        x = product(leaves, b)
        left = change(adjoint, b - _dot(a, x))
        found = _product(a, b_dot - change(lambda a: a, x) + _product(adjoint(a), left))
        beside = change(adjoint, _product(adjoint(a), x))
        return x, found + beside - _product(a, _dot(a, beside))

    return product(leaves, b)


def _dot(a: Any, x: Any) -> Any:
    multiply = jaxrewrite.transform(lambda a, x: jnp.matmul(a, x, precision=_HIGHEST))
    return jaxrewrite.materialise(multiply(a, x))


_HIGHEST = lax.Precision.HIGHEST

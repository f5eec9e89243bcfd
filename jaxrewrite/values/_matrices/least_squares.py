"""Least-squares solutions by singular value decompositions with structure.

``jnp.linalg.lstsq`` is recognised as a whole. It asks for the thin decomposition of a dense
matrix, and that of a type may be complex, or lack vectors of zeros. The derivative of the
solution is that of the pseudo-inverse, which exists where two singular values are the same.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from jaxrewrite import register

from .._base.structured import inexact
from .algebra import LinearAlgebra, dot_of, on_fields
from .low_rank import LowRank
from .matrix import Matrix
from .pseudo_inverse import ask_for_dense, is_kept, nan_unless_finite, pseudo_inverse_times
from .scaled import Scaled
from .sum import Sum


@register(jnp.linalg.lstsq)
def _(v: Matrix | Scaled | Sum | LowRank, b: Array, *more: Array) -> Any:
    if v.ndim != 2:
        return NotImplemented
    # JAX casts the matrix first, of which there is no decomposition with 16 bits.
    wide = v.astype(jnp.result_type(v, b))
    if not isinstance(wide, LinearAlgebra):
        return NotImplemented
    if not _is_known(wide):
        ask_for_dense(wide)
        return NotImplemented
    return list(on_fields(_least_squares, v, b, *more))


def _is_known(v: Any) -> bool:
    hooks = "known_reduced_svd", "known_singular_values"
    is_regular = inexact(v) and min(v.shape[-2:]) > 0
    return is_regular and all(getattr(v, hook)() is not NotImplemented for hook in hooks)


def _least_squares(v: Any, b: Any, rcond: Any = None) -> tuple[Any, Any, Any, Any]:
    """The results of JAX's function for one matrix and one or more columns."""
    dtype = jnp.result_type(v.dtype, b.dtype)
    v, columns = v.astype(dtype), b.astype(dtype).reshape(b.shape[0], -1)
    eps = jnp.finfo(dtype).eps
    cuts = rcond is not None
    if rcond is None:
        rcond = max(v.shape) * eps
    sizes = nan_unless_finite(v.known_singular_values())
    tolerance = jnp.where(jnp.asarray(rcond) < 0, eps, rcond).astype(sizes.dtype)
    x = pseudo_inverse_times(v, tolerance, columns, keeps_equal=True, cuts=cuts)
    left = columns - dot_of(v, x)
    squares = jnp.sum(jnp.real(left * jnp.conj(left)), 0)
    rank = is_kept(sizes, tolerance, keeps_equal=True).sum()
    return (x[:, 0] if b.ndim == 1 else x), squares, rank, sizes

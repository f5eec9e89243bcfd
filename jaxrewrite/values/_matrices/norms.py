"""Frobenius norms, and those of rows and columns, of lazy sums and Kronecker products.

The squares of a sum are a sum with as many terms as there are pairs, which cancel where the terms
do. The root of what is left of them has half the digits, and may be no number. So these norms do
not come from squares of terms. Those of a Kronecker product are the products of those of its factors.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

import jaxrewrite

from .._base.structured import inexact, is_value, promoted
from .algebra import dot
from .kronecker import Kronecker, of_pairs
from .low_rank import LowRank
from .matrix import adjoint
from .scaled import Scaled
from .sum import Sum


# The axes that a norm sums over.
ROWS, COLUMNS, BOTH = (-1,), (-2,), (-2, -1)


def norm(v: Any, axes: tuple[int, ...]) -> Any:
    """The norms along ``axes``, or NotImplemented for what has no terms that cancel."""
    if not inexact(v) or not v.size:
        return NotImplemented
    if isinstance(v, LowRank):
        pair = v.as_matrices()
        if pair is None or not v.rank:
            return NotImplemented
        wide = promoted(v.dtype, jnp.float32)  # QR is not for 16 bits.
        return _of_factors(*(x.astype(wide) for x in pair), axes)
    if isinstance(v, Kronecker):
        multiply = (
            jnp.multiply if axes == BOTH else functools.partial(of_pairs, jnp.multiply)
        )
        sizes = [_of_factor(x, axes) for x in v.factors]
        return functools.reduce(jaxrewrite.transform(multiply), sizes)
    if isinstance(v, Scaled):
        if v.number.ndim > v.ndim + min(axes):
            return NotImplemented  # The numbers differ along an axis that is summed.
        size = jaxrewrite.transform(lambda x: jnp.linalg.norm(x, axis=axes))(v.x)
        return jnp.abs(v.factor()).squeeze(axes) * jaxrewrite.materialise(size)
    return _of_sum(v, axes) if isinstance(v, Sum) and v.ndim == 2 else NotImplemented


def _of_factor(x: Any, axes: tuple[int, ...]) -> Any:
    """Of a factor whose squares may overflow where those of the product do not."""
    if is_value(x):
        return jaxrewrite.transform(lambda x: jnp.linalg.norm(x, axis=axes))(x)
    most = lax.stop_gradient(abs(x).max(axes, keepdims=True))
    size = most.squeeze(axes)
    is_number = (size > 0) & (size < jnp.inf)
    return jnp.where(is_number, size * jnp.linalg.norm(x / most, axis=axes), size)


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def _of_factors(a: Any, b: Any, axes: tuple[int, ...]) -> Any:
    """Of a product, by the triangular factors of its factors, whose columns do not cancel."""
    if -1 in axes:
        b = adjoint(jnp.linalg.qr(adjoint(b), mode="r"))
    if -2 in axes:
        a = jnp.linalg.qr(a, mode="r")
    return jnp.linalg.norm(dot(a, b), axis=axes)


@_of_factors.defjvp
def _(axes: tuple[int, ...], primals: Any, tangents: Any) -> Any:
    (a, b), (da, db) = primals, tangents
    size = _of_factors(a, b, axes)
    if axes == COLUMNS:
        inner = dot(dot(adjoint(a), da), b) + dot(dot(adjoint(a), a), db)
        along = jnp.sum((jnp.conj(b) * inner).real, -2)
    else:
        inner = dot(da, dot(b, adjoint(b))) + dot(a, dot(db, adjoint(b)))
        along = jnp.sum((jnp.conj(a) * inner).real, (-2, -1) if axes == BOTH else -1)
    return size, along / size


def _of_sum(v: Any, axes: tuple[int, ...]) -> Any:
    """From some columns of the matrix at a time."""
    count = v.shape[-1]
    multiply = jaxrewrite.transform(jnp.matmul)

    @jax.checkpoint
    def squares(start: Any) -> Any:
        columns = jax.nn.one_hot(start + jnp.arange(_BLOCK), count, dtype=v.dtype, axis=0)
        squared = jnp.square(jnp.abs(jaxrewrite.materialise(multiply(v, columns))))
        return squared.sum(-1), squared.sum(-2)

    rows, columns = lax.map(squares, jnp.arange(0, count, _BLOCK))
    total = columns.reshape(-1)[:count] if axes == COLUMNS else rows.sum(0)
    return jnp.sqrt(total.sum() if axes == BOTH else total)


_BLOCK = 64

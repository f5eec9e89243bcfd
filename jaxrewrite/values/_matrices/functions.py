"""JAX's functions of one matrix that are recognised as a whole.

A determinant is not computed from the diagonal of a factor, and a Cholesky factorisation of a
matrix that is known to be Hermitian needs no sum with its transpose first. JAX's functions for
determinants, Cholesky factors and eigenvalues are whole equations, and the rule for these
equations asks the type.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

import jaxrewrite
from jaxrewrite import register

from .._base.recognised import find, fingerprint_within, only_call
from .._base.structured import inexact, number_of
from . import norms
from .algebra import LinearAlgebra, determinant_of, known_of
from .cholesky import CholeskyFactor
from .low_rank import LowRank
from .matrix import Matrix, adjoint, swapped
from .pseudo_inverse import PseudoInverse, ask_for_dense, default_tolerance
from .scaled import Scaled
from .sum import Sum


_Known = Matrix | Scaled | Sum | LowRank


def _knows(fn: Callable[..., Any]) -> Callable[[Any], Any]:
    """Register what a type answers for a function of a matrix, or of a stack: a decorator.

    The answer is the function's result, or a sequence of several, or NotImplemented.
    """

    def decorate(answer: Callable[..., Any]) -> Callable[..., Any]:
        @register(fn)
        @functools.wraps(answer)
        def rule(v: Any, **statics: Any) -> Any:
            if v.ndim < 2:
                return NotImplemented
            results = answer(v, **statics)
            if results is NotImplemented:
                return results
            results = results if isinstance(results, (list, tuple)) else [results]
            # JAX computes integers and 16 bits in other dtypes, and may cast the result.
            expected = jax.eval_shape(functools.partial(fn, **statics), v.aval())
            return [
                x if isinstance(x, jaxrewrite.Value) else x.astype(aval.dtype)
                for x, aval in zip(results, jax.tree.leaves(expected), strict=True)
            ]

        return answer

    return decorate


@register("custom_jvp_call")
def _(v: _Known, *more: Array, call_jaxpr: Any, **params: Any) -> Any:
    """``jnp.linalg.pinv`` with a tolerance: an operand, or a number in the jaxpr."""
    call = only_call(call_jaxpr, "_pinv")
    if v.ndim < 2 or call is None or len(call.invars) != 2 or len(more) > 1:
        return NotImplemented
    tolerance = call.invars[1]
    known = find(_with_tolerance, call.params["jaxpr"], v.aval(), tolerance.aval)
    if known is None:
        return NotImplemented
    inverse = _pseudo_inverse(v, number_of(tolerance) if not more else more[0])
    return inverse if inverse is NotImplemented else [inverse]


@functools.lru_cache(512)
def _with_tolerance(aval: Any, tolerance: Any, trace_context: Any) -> dict[Any, bool]:
    number: Any = np.zeros(tolerance.shape, tolerance.dtype)
    if tolerance.weak_type and not tolerance.shape:
        number = 0.5
    fingerprints: dict[Any, bool] = {}
    of_array = lambda a: jnp.linalg.pinv(a, rtol=number)
    for _ in range(len(aval.shape) - 1):
        fingerprints[fingerprint_within(of_array, "_pinv", aval)] = True
        of_array = jax.vmap(of_array)
    return fingerprints


# --- the functions ------------------------------------------------------------------------


@_knows(jnp.linalg.det)
def _(v: _Known) -> Any:
    known = determinant_of(v)
    return known if known is NotImplemented else known.number()


@_knows(jnp.linalg.slogdet)
def _(v: _Known) -> Any:
    known = determinant_of(v)
    return known if known is NotImplemented else known.slogdet()


@_knows(jnp.linalg.cholesky)
def _(v: _Known, *, upper: bool, symmetrize_input: bool) -> Any:
    if upper and not symmetrize_input:
        return NotImplemented
    return _cholesky(v, symmetrised=symmetrize_input, lower=not upper)


@_knows(jax.scipy.linalg.cholesky)
def _(v: _Known, *, lower: bool) -> Any:
    return _cholesky(v, symmetrised=False, lower=lower)


def _cholesky(v: Any, *, symmetrised: bool, lower: bool) -> Any:
    if not inexact(v):
        return NotImplemented
    matrix = v if lower else adjoint(v)
    if symmetrised:
        matrix = v.hermitian_part()
    # The adjoint of a sum of arrays is an array.
    factor = known_of(matrix, "known_cholesky")
    if factor is not NotImplemented:
        return factor if lower else adjoint(factor)
    is_lazy = not symmetrised and v.solvable
    return CholeskyFactor(v, lower) if is_lazy else NotImplemented


@_knows(jnp.linalg.eigvalsh)
def _(v: _Known, *, UPLO: Literal["L", "U"]) -> Any:
    eigh = _eigh(v)
    return eigh if eigh is NotImplemented else eigh[0]


@_knows(jnp.linalg.eigh)
def _(v: _Known, *, UPLO: Literal["L", "U"] | None) -> Any:
    return _eigh(v)


@_knows(jax.scipy.linalg.eigh)
def _(v: _Known, *, lower: bool) -> Any:
    return _eigh(v)


def _eigh(v: Any) -> Any:
    part = v.hermitian_part() if inexact(v) else NotImplemented
    return part if part is NotImplemented else part.known_eigh(True)


@_knows(jnp.linalg.cond)
def _(v: _Known) -> Any:
    singular_values = v.known_singular_values() if inexact(v) else NotImplemented
    if singular_values is NotImplemented or not v.size:
        return NotImplemented
    # JAX's releases differ in what is no number, so JAX computes it from the two numbers.
    ends = jnp.stack([singular_values[..., 0], singular_values[..., -1]], -1)
    return jnp.linalg.cond(jnp.where(jnp.eye(2, dtype=bool), ends[..., None], 0))


@_knows(jnp.linalg.pinv)
def _(v: _Known) -> Any:
    return _pseudo_inverse(v)


def _pseudo_inverse(v: Any, tolerance: Any = None) -> Any:
    if not inexact(v) or not v.size:
        return NotImplemented
    if v.known_reduced_svd() is NotImplemented:
        ask_for_dense(v)
        return NotImplemented
    if tolerance is None:
        tolerance = default_tolerance(v)
    tolerance = jnp.asarray(tolerance, jnp.finfo(v.dtype).dtype)
    return PseudoInverse(v, jnp.broadcast_to(tolerance, v.shape[:-2]), v.dtype)


def _of(v: Any, hook: str, *args: Any) -> Any:
    """The result is a matrix that the type knows, of an inexact dtype."""
    return getattr(v, hook)(*args) if inexact(v) else NotImplemented


@_knows(jnp.linalg.inv)
def _(v: _Known) -> Any:
    return _of(v, "known_inverse")


@_knows(jax.scipy.linalg.expm)
def _(v: _Known) -> Any:
    """The exponential that the type knows, else that of the dense array.

    JAX's function would square a lazy product, again and again, before it is dense anyway.
    """
    known = _of(v, "known_exponential")
    if known is not NotImplemented or not inexact(v):
        return known
    dense = jaxrewrite.transform(lambda v: v.reshape(-1).reshape(v.shape))(v)
    if isinstance(dense, jaxrewrite.Value):
        return NotImplemented
    return jax.scipy.linalg.expm(dense)


@_knows(jnp.linalg.norm)
def _(v: _Known, *, axis: int | tuple[int, ...] | None) -> Any:
    if axis is None and v.ndim > 2:
        return NotImplemented
    axes = norms.BOTH if axis is None else axis if isinstance(axis, tuple) else (axis,)
    axes = tuple(sorted(x % v.ndim - v.ndim for x in axes))
    if axes not in (norms.ROWS, norms.COLUMNS, norms.BOTH):
        return NotImplemented
    return norms.norm(v, axes)


@_knows(jnp.diagonal)
def _(v: _Known, *, axis1: Literal[0, -2], axis2: Literal[1, -1]) -> Any:
    return _diagonal(v, axis1, axis2)


@_knows(jnp.trace)
def _(v: _Known, *, axis1: Literal[0, -2], axis2: Literal[1, -1]) -> Any:
    diagonal = _diagonal(v, axis1, axis2)
    return diagonal if diagonal is NotImplemented else diagonal.sum(-1)


def _diagonal(v: Any, axis1: int, axis2: int) -> Any:
    if (axis1 % v.ndim, axis2 % v.ndim) != (v.ndim - 2, v.ndim - 1):
        return NotImplemented
    return v.known_diagonal()


# There are closed forms for triangles of these first diagonals.
@_knows(jnp.tril)
def _(v: _Known, *, k: Literal[-1, 0, 1]) -> Any:
    return _of(v, "known_lower_part", k)


@_knows(jnp.triu)
def _(v: _Known, *, k: Literal[-1, 0, 1]) -> Any:
    flipped = v.transposed()
    if not isinstance(flipped, LinearAlgebra):
        return NotImplemented  # The transpose of a sum of arrays is an array.
    lower_part = _of(flipped, "known_lower_part", -k)
    return lower_part if lower_part is NotImplemented else swapped(lower_part)

"""JAX's functions of one matrix that are recognised as a whole.

A determinant is not computed from the diagonal of a factor, and a Cholesky factorisation of a
matrix that is known to be Hermitian needs no sum with its transpose first. JAX's functions for
determinants, Cholesky factors and eigenvalues are whole equations, and the rule for these
equations asks the type.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

import jaxrewrite
from jaxrewrite import register

from .._base.recognised import find, fingerprint_within, fingerprints, only_call
from .._base.structured import inexact, number_of
from . import norms
from .algebra import LinearAlgebra
from .cholesky import CholeskyFactor
from .low_rank import LowRank
from .matrix import Matrix, adjoint, swapped
from .pseudo_inverse import PseudoInverse, ask_for_dense, default_tolerance
from .scaled import Scaled
from .sum import Sum


# Functions of matrices that need not be square.
_OF_ANY_SHAPE = frozenset({"_pinv", "cond", "diagonal", "norm", "trace"})


class _Function(NamedTuple):
    """A function of JAX and what a type answers: a list of results, or NotImplemented."""

    of_array: Callable[[Any], Any]
    of_value: Callable[[Any], Any]


@register("jit", "custom_jvp_call")
def _(v: Matrix | Scaled | Sum | LowRank, *, primitive: Any, **params: Any) -> Any:
    jaxpr = params["jaxpr" if primitive.name == "jit" else "call_jaxpr"]
    name = params["name"] if primitive.name == "jit" else _name_of(jaxpr, v)
    if name not in _FUNCTIONS or v.ndim < 2:
        return NotImplemented
    if v.shape[-1] != v.shape[-2] and name not in _OF_ANY_SHAPE:
        return NotImplemented
    of_value = find(known_functions, jaxpr, name, v.aval())
    found = NotImplemented if of_value is None else of_value(v)
    if found is NotImplemented:
        return NotImplemented
    # For integers JAX computes in a floating dtype and casts the result.
    return [
        x if isinstance(x, jaxrewrite.Value) else x.astype(aval.dtype)
        for x, aval in zip(found, _out_avals(jaxpr), strict=True)
    ]


def _name_of(jaxpr: Any, v: Any) -> Any:
    """The name of what may be the body of a function with a derivative of its own."""
    if all(aval.shape == v.shape[:-2] for aval in _out_avals(jaxpr)):
        return _DETERMINANT
    names = [eqn.params.get("name") for eqn in jaxpr.eqns]
    return names[0] if len(names) == 1 else None


def _out_avals(jaxpr: Any) -> list[Any]:
    return [var.aval for var in getattr(jaxpr, "jaxpr", jaxpr).outvars]


@functools.lru_cache(512)
def known_functions(
    name: str, aval: Any, trace_context: Any
) -> dict[Any, Callable[[Any], Any]]:
    """What a type answers, by the fingerprints of the jaxprs in which JAX computes it.

    They include those for which some leading axes come from `jax.vmap`.
    """
    found: dict[Any, Callable[[Any], Any]] = {}
    for of_array, of_value in _FUNCTIONS[name]:
        for _ in range(len(aval.shape) - 1):
            found |= dict.fromkeys(fingerprints(of_array, aval), of_value)
            of_array = jax.vmap(of_array)
    return found


@register("custom_jvp_call")
def _(
    v: Matrix | Scaled | Sum | LowRank, *more: Array, call_jaxpr: Any, **params: Any
) -> Any:
    """``jnp.linalg.pinv`` with a tolerance: an operand, or a number in the jaxpr."""
    call = only_call(call_jaxpr, "_pinv")
    if v.ndim < 2 or call is None or len(call.invars) != 2 or len(more) > 1:
        return NotImplemented
    tolerance = call.invars[1]
    known = find(_with_tolerance, call.params["jaxpr"], v.aval(), tolerance.aval)
    if known is None:
        return NotImplemented
    return _pseudo_inverse(v, number_of(tolerance) if not more else more[0])


@functools.lru_cache(512)
def _with_tolerance(aval: Any, tolerance: Any, trace_context: Any) -> dict[Any, bool]:
    number: Any = np.zeros(tolerance.shape, tolerance.dtype)
    if tolerance.weak_type and not tolerance.shape:
        number = 0.5
    found: dict[Any, bool] = {}
    of_array = lambda a: jnp.linalg.pinv(a, rtol=number)
    for _ in range(len(aval.shape) - 1):
        found[fingerprint_within(of_array, "_pinv", aval)] = True
        of_array = jax.vmap(of_array)
    return found


# --- the functions ------------------------------------------------------------------------


def _determinant(*wanted: str) -> Callable[[Any], Any]:
    def answer(v: Any) -> Any:
        known = v.known_determinant()
        if known is NotImplemented:
            return NotImplemented
        sign, log = known.slogdet()
        results = {"det": known.number(), "sign": sign, "log": log}
        return [results[name] for name in wanted]

    return answer


def _cholesky(*, symmetrised: bool, lower: bool) -> Callable[[Any], Any]:
    def answer(v: Any) -> Any:
        if not inexact(v):
            return NotImplemented
        own = v if lower else adjoint(v)
        if symmetrised:
            own = v.hermitian_part()
        # The adjoint of a sum of arrays is an array.
        factor = own.known_cholesky() if isinstance(own, LinearAlgebra) else NotImplemented
        if factor is not NotImplemented:
            return [factor if lower else adjoint(factor)]
        is_lazy = not symmetrised and v.solvable
        return [CholeskyFactor(v, lower)] if is_lazy else NotImplemented

    return answer


def _eigh(*wanted: int) -> Callable[[Any], Any]:
    def answer(v: Any) -> Any:
        part = v.hermitian_part() if inexact(v) else NotImplemented
        found = part if part is NotImplemented else part.known_eigh(True)
        return found if found is NotImplemented else [found[i] for i in wanted]

    return answer


def _eigh_of(of_array: Callable[[Any], Any]) -> tuple[_Function, ...]:
    return (
        _Function(of_array, _eigh(0, 1)),
        _Function(lambda a: of_array(a)[0], _eigh(0)),
        _Function(lambda a: of_array(a)[1], _eigh(1)),
    )


def _condition(v: Any) -> Any:
    found = v.known_singular_values() if inexact(v) else NotImplemented
    if found is NotImplemented or not v.size:
        return NotImplemented
    # JAX's releases differ in what is no number, so JAX computes it from the two numbers.
    ends = jnp.stack([found[..., 0], found[..., -1]], -1)
    return [jnp.linalg.cond(jnp.where(jnp.eye(2, dtype=bool), ends[..., None], 0))]


def _pseudo_inverse(v: Any, tolerance: Any = None) -> Any:
    if not inexact(v) or not v.size:
        return NotImplemented
    if v.known_reduced_svd() is NotImplemented:
        ask_for_dense(v)
        return NotImplemented
    if tolerance is None:
        tolerance = default_tolerance(v)
    tolerance = jnp.asarray(tolerance, jnp.finfo(v.dtype).dtype)
    return [PseudoInverse(v, jnp.broadcast_to(tolerance, v.shape[:-2]))]


def _method(hook: str, *args: Any) -> Callable[[Any], Any]:
    """The answer is a matrix that the type knows, of an inexact dtype."""

    def answer(v: Any) -> Any:
        found = getattr(v, hook)(*args) if inexact(v) else NotImplemented
        return found if found is NotImplemented else [found]

    return answer


def _exponential(v: Any) -> Any:
    """The exponential that the type knows, else that of the dense array.

    JAX's function would square a lazy product, again and again, before it is dense anyway.
    """
    known = _method("known_exponential")(v)
    if known is not NotImplemented or not inexact(v):
        return known
    dense = jaxrewrite.transform(lambda v: v.reshape(-1).reshape(v.shape))(v)
    if isinstance(dense, jaxrewrite.Value):
        return NotImplemented
    return [jax.scipy.linalg.expm(dense)]


def _norm(axes: tuple[int, ...]) -> _Function:
    def of_array(a: Any) -> Any:
        return jnp.linalg.norm(a, axis=axes if len(axes) > 1 else axes[0])

    def answer(v: Any) -> Any:
        found = norms.norm(v, axes)
        return found if found is NotImplemented else [found]

    return _Function(of_array, answer)


def _diagonal(v: Any) -> Any:
    found = v.known_diagonal()
    return found if found is NotImplemented else [found]


def _trace(v: Any) -> Any:
    found = _diagonal(v)
    return found if found is NotImplemented else [found[0].sum(-1)]


def _upper_part(v: Any, k: int) -> Any:
    flipped = v.transposed()
    if not isinstance(flipped, LinearAlgebra):
        return NotImplemented  # The transpose of a sum of arrays is an array.
    found = _method("known_lower_part", -k)(flipped)
    return found if found is NotImplemented else [swapped(found[0])]


# One of several results may be dead code.
_DETERMINANTS = (
    _Function(lambda a: jnp.linalg.det(a), _determinant("det")),
    _Function(lambda a: jnp.linalg.slogdet(a), _determinant("sign", "log")),
    _Function(lambda a: jnp.linalg.slogdet(a)[0], _determinant("sign")),
    _Function(lambda a: jnp.linalg.slogdet(a)[1], _determinant("log")),
)

_DETERMINANT = "det or slogdet"

# The first diagonals of triangles for which there are closed forms.
_OFFSETS = (-1, 0, 1)

_FUNCTIONS: dict[str, tuple[_Function, ...]] = {
    _DETERMINANT: _DETERMINANTS,
    "det": _DETERMINANTS[:1],
    "slogdet": _DETERMINANTS[1:],
    "cholesky": tuple(
        _Function(
            functools.partial(
                jnp.linalg.cholesky, upper=not lower, symmetrize_input=symmetrised
            ),
            _cholesky(symmetrised=symmetrised, lower=lower),
        )
        for lower in (True, False)
        for symmetrised in (True, False)
        if lower or symmetrised
    ),
    "_cholesky": tuple(
        _Function(
            functools.partial(jax.scipy.linalg.cholesky, lower=lower),
            _cholesky(symmetrised=False, lower=lower),
        )
        for lower in (True, False)
    ),
    "eigvalsh": tuple(
        _Function(functools.partial(jnp.linalg.eigvalsh, UPLO=triangle), _eigh(0))
        for triangle in ("L", "U")
    ),
    "eigh": tuple(
        function
        for triangle in ("L", "U")
        for function in _eigh_of(functools.partial(jnp.linalg.eigh, UPLO=triangle))
    ),
    "_eigh": tuple(
        function
        for lower in (True, False)
        for function in _eigh_of(functools.partial(jax.scipy.linalg.eigh, lower=lower))
    ),
    "_pinv": (_Function(lambda a: jnp.linalg.pinv(a), _pseudo_inverse),),
    "inv": (_Function(lambda a: jnp.linalg.inv(a), _method("known_inverse")),),
    "diagonal": (_Function(lambda a: jnp.diagonal(a, axis1=-2, axis2=-1), _diagonal),),
    "trace": (_Function(lambda a: jnp.trace(a, axis1=-2, axis2=-1), _trace),),
    "expm": (_Function(lambda a: jax.scipy.linalg.expm(a), _exponential),),
    "tril": tuple(
        _Function(functools.partial(jnp.tril, k=k), _method("known_lower_part", k))
        for k in _OFFSETS
    ),
    "triu": tuple(
        _Function(functools.partial(jnp.triu, k=k), functools.partial(_upper_part, k=k))
        for k in _OFFSETS
    ),
    "cond": (_Function(lambda a: jnp.linalg.cond(a), _condition),),
    "norm": (
        *map(_norm, (norms.ROWS, norms.COLUMNS, norms.BOTH)),
        # Of one matrix, where no axes are named.
        _norm(norms.BOTH)._replace(
            of_array=lambda a: jnp.linalg.norm(a, axis=None if a.ndim == 2 else (-2, -1))
        ),
    ),
}

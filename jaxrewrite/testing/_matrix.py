"""The check of a matrix: what its methods say of it is so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import expm

import jaxrewrite

from .._core.avals import rule_children
from .._core.value import is_value
from ._culprits import is_users
from ._oracle import difference, numbers, own_stack, tolerance_of


# Above this condition number, what is right up to rounding is no measure.
_CONDITION = 100


class Said(NamedTuple):
    """An answer of a method, or what follows from it, and what that has to be."""

    call: str
    got: Any
    wanted: Any


def check_matrix(value: Any) -> str | None:
    """The methods that a user defines for a `values.Matrix` tell what is so, also of a stack."""
    cls = type(value)
    checks = {name: check for name, check in _CHECKS.items() if _is_users(cls, name)}
    if not checks:
        return "its type defines no method for linear algebra"
    if any(map(is_value, rule_children(value)[0])):
        return "a field is a value"
    stack = own_stack(value)
    for v in (value,) if stack is None else (value, stack):
        dense = _dense(v)
        if dense.ndim < 2 or not np.isfinite(dense).all():
            return "it is no matrix of finite numbers"
        for check in checks.values():
            for said in check(v, dense):
                problem = difference(said.got, said.wanted, _tolerance(value))
                if problem:
                    of_stack = "" if v is value else " of a stack"
                    raise AssertionError(f"{cls.__name__}.{said.call}{of_stack}: {problem}")
    return None


def _tolerance(value: Any) -> float:
    return tolerance_of(value) or max(1e4 * float(jnp.finfo(value.dtype).eps), 1e-9) / 10


def _is_users(cls: type, name: str) -> bool:
    """Whether a class of a user has the method, and not one of the library."""
    owner = next((base for base in cls.__mro__ if name in vars(base)), None)
    return owner is not None and is_users(owner)


def _dense(x: Any) -> np.ndarray:
    """The array in double precision."""
    array = np.asarray(jaxrewrite.materialise(x))
    return array.astype(np.complex128 if np.iscomplexobj(array) else np.float64)


def _adjoint(a: np.ndarray) -> np.ndarray:
    return a.conj().swapaxes(-2, -1)


def _identity(a: np.ndarray) -> np.ndarray:
    return np.broadcast_to(np.eye(a.shape[-1], dtype=a.dtype), a.shape)


def _is_square(a: np.ndarray) -> bool:
    return a.shape[-2] == a.shape[-1]


def _is_regular(a: np.ndarray) -> bool:
    return _is_square(a) and bool((np.linalg.cond(a) < _CONDITION).all())


def _hermitian(a: np.ndarray, lower: bool = True) -> np.ndarray:
    """The Hermitian matrix that a triangle defines, with the real parts of its diagonal."""
    beside = np.tril(a, -1) if lower else np.triu(a, 1)
    return beside + _adjoint(beside) + np.where(_identity(a) != 0, a.real, 0)


def _shown(argument: Any) -> str:
    return str(argument) if isinstance(argument, (bool, int)) else "..."


def _real_if(a: np.ndarray, product: np.ndarray) -> np.ndarray:
    """A product of complex factors that is a real matrix, as such."""
    return product if np.iscomplexobj(a) else product.real


# Arguments that depend on the matrix.


def _factors(v: Any) -> Any:
    return numbers(v.shape[:-1], v.dtype)


def _itself(v: Any) -> Any:
    return v


# --- what each method says ----------------------------------------------------------------


Check = Callable[[Any, np.ndarray], Iterator[Said]]
_CHECKS: dict[str, Check] = {}


def _asks(name: str, *all_args: tuple[Any, ...]) -> Callable[[Any], Check]:
    """Make a check of a function that tells what is so, if an answer is, given the arguments."""

    def decorate(tell: Callable[..., Any]) -> Check:
        def check(v: Any, a: np.ndarray) -> Iterator[Said]:
            for given in all_args or ((),):
                args = [x(v) if callable(x) else x for x in given]
                member = getattr(v, name)
                answer = member(*args) if callable(member) else member
                shown = (
                    f"{name}({', '.join(map(_shown, args))})" if callable(member) else name
                )
                if answer is not NotImplemented:
                    for got, wanted in tell(a, answer, *args):
                        yield Said(shown, got, wanted)

        _CHECKS[name] = check
        return check

    return decorate


Told = Iterator[tuple[Any, Any]]
_BOTH = ((True,), (False,))


@_asks("scaled_rows", (_factors,))
def _rows_are_scaled(a: np.ndarray, answer: Any, factors: Any) -> Told:
    yield _dense(answer), _dense(factors)[..., None] * a


@_asks("known_inverse")
def _is_inverse(a: np.ndarray, answer: Any) -> Told:
    if _is_regular(a):
        yield a @ _dense(answer), _identity(a)


@_asks("known_diagonal")
def _is_diagonal(a: np.ndarray, answer: Any) -> Told:
    yield _dense(answer), np.diagonal(a, axis1=-2, axis2=-1)


@_asks("row_sums")
def _are_sums(a: np.ndarray, answer: Any) -> Told:
    yield _dense(answer), a.sum(-1)


@_asks("known_determinant")
def _is_determinant(a: np.ndarray, answer: Any) -> Told:
    if not all(hasattr(answer, name) for name in ("unit", "log")):
        raise AssertionError(f"it returned a {type(answer).__name__} and no Determinant")
    yield _dense(answer.unit) * np.exp(_dense(answer.log)), np.linalg.det(a)


@_asks("known_eigenvalues")
def _are_eigenvalues(a: np.ndarray, answer: Any) -> Told:
    # Rounding may order them otherwise, and sums of all powers have no order.
    powers = range(1, a.shape[-1] + 1)
    sums = lambda x: np.stack([(x**k).sum(-1) for k in powers]).astype(complex)
    yield sums(_dense(answer)), sums(np.linalg.eigvals(a))


@_asks("known_spectrum")
def _is_spectrum(a: np.ndarray, answer: Any) -> Told:
    values, vectors = map(_dense, answer)
    yield _real_if(a, vectors * values[..., None, :] @ _adjoint(vectors)), a
    yield vectors @ _adjoint(vectors), _identity(vectors)


@_asks("known_eigh", *_BOTH)
def _is_eigh(a: np.ndarray, answer: Any, lower: bool) -> Told:
    values, vectors = map(_dense, answer)
    yield values, np.linalg.eigvalsh(_hermitian(a, lower))
    yield (
        _real_if(a, vectors * values[..., None, :] @ _adjoint(vectors)),
        _hermitian(a, lower),
    )
    yield _adjoint(vectors) @ vectors, _identity(vectors)


@_asks("known_svd")
def _is_svd(a: np.ndarray, answer: Any) -> Told:
    yield from _is_reduced_svd(a, answer)
    yield _dense(answer[1]), np.linalg.svd(a, compute_uv=False)


def _is_reduced_svd(a: np.ndarray, answer: Any) -> Told:
    u, singular_values, vh = map(_dense, answer)
    yield _real_if(a, u * singular_values[..., None, :] @ vh), a
    # The columns for singular values of zero may be any.
    is_there = singular_values > 1e-6 * singular_values.max(-1, keepdims=True, initial=0)
    both = is_there[..., :, None] & is_there[..., None, :]
    for columns in (u, _adjoint(vh)):
        inner = _adjoint(columns) @ columns
        yield inner, np.where(both, _identity(inner), inner)


_asks("known_reduced_svd")(_is_reduced_svd)


@_asks("known_singular_values")
def _are_singular_values(a: np.ndarray, answer: Any) -> Told:
    yield _dense(answer), np.linalg.svd(a, compute_uv=False)


@_asks("known_cholesky")
def _is_cholesky(a: np.ndarray, answer: Any) -> Told:
    hermitian = _hermitian(a)
    if (np.linalg.eigvalsh(hermitian) > 0).all():
        yield _dense(answer), np.linalg.cholesky(hermitian)


@_asks(
    "known_triangle", *((lower, unit) for lower in (True, False) for unit in (True, False))
)
def _is_triangle(a: np.ndarray, answer: Any, lower: bool, unit: bool) -> Told:
    triangle = np.tril(a) if lower else np.triu(a)
    diagonal = np.diagonal(a, axis1=-2, axis2=-1)[..., None] * _identity(a)
    yield _dense(answer), triangle - diagonal + _identity(a) if unit else triangle


@_asks("known_lower_part", (-1,), (0,), (1,))
def _is_lower_part(a: np.ndarray, answer: Any, k: int) -> Told:
    yield _dense(answer), np.tril(a, k)


@_asks("known_lu")
def _is_lu(a: np.ndarray, answer: Any) -> Told:
    packed, _, permutation = answer
    lower = np.tril(_dense(packed), -1) + _identity(a)
    permuted = np.take_along_axis(a, np.asarray(permutation)[..., None], -2)
    yield lower @ np.triu(_dense(packed)), permuted


@_asks("known_exponential")
def _is_exponential(a: np.ndarray, answer: Any) -> Told:
    yield _dense(answer), _dense(expm(jnp.asarray(a)))


@_asks("known_solution", (_itself,))
def _is_solution(a: np.ndarray, answer: Any, b: Any) -> Told:
    if _is_regular(a):
        yield a @ _dense(answer), _dense(b)


@_asks("is_hermitian")
def _is_as_its_adjoint(a: np.ndarray, answer: Any) -> Told:
    if answer:
        yield a, _adjoint(a)


@_asks("is_unitary")
def _is_inverse_of_its_adjoint(a: np.ndarray, answer: Any) -> Told:
    if answer:
        yield a @ _adjoint(a), _identity(a)


@_asks("is_triangular", *_BOTH)
def _has_one_triangle(a: np.ndarray, answer: Any, lower: bool) -> Told:
    if answer:
        yield a, np.tril(a) if lower else np.triu(a)

"""`jax.numpy.linalg`, with every function transformed.

The signatures are those of JAX (Copyright 2018 The JAX Authors, Apache License 2.0).
"""

import builtins
from collections.abc import Sequence
from typing import Any, TypeAlias

import jax
import jax.typing
from jax.sharding import NamedSharding, PartitionSpec as P

from .._core.value import Value as _Value

_Array: TypeAlias = jax.Array | _Value
ArrayLike: TypeAlias = jax.typing.ArrayLike | _Value
DTypeLike: TypeAlias = jax.typing.DTypeLike
_Axis: TypeAlias = int | Sequence[int] | None
_Device: TypeAlias = Any  # JAX does not say which type it is.

def cholesky(
    a: ArrayLike, *, upper: builtins.bool = ..., symmetrize_input: builtins.bool = ...
) -> Any: ...
def cond(x: ArrayLike, p: Any = ...) -> Any: ...
def cross(x1: ArrayLike, x2: ArrayLike, /, *, axis: Any = ...) -> Any: ...
def det(a: ArrayLike) -> Any: ...
def diagonal(x: ArrayLike, /, *, offset: int = ...) -> Any: ...
def eig(a: ArrayLike) -> Any: ...
def eigh(
    a: ArrayLike, UPLO: str | None = ..., symmetrize_input: builtins.bool = ...
) -> Any: ...
def eigvals(a: ArrayLike) -> Any: ...
def eigvalsh(
    a: ArrayLike, UPLO: str | None = ..., *, symmetrize_input: builtins.bool = ...
) -> Any: ...
def inv(a: ArrayLike) -> Any: ...
def lstsq(
    a: ArrayLike,
    b: ArrayLike,
    rcond: float | None = ...,
    *,
    numpy_resid: builtins.bool = ...,
) -> tuple[Any, Any, Any, Any]: ...
def matmul(
    x1: ArrayLike,
    x2: ArrayLike,
    /,
    *,
    precision: Any = ...,
    preferred_element_type: DTypeLike | None = ...,
) -> Any: ...
def matrix_norm(
    x: ArrayLike, /, *, keepdims: builtins.bool = ..., ord: str | int = ...
) -> Any: ...
def matrix_power(a: ArrayLike, n: int) -> Any: ...
def matrix_rank(
    M: ArrayLike,
    rtol: ArrayLike | None = ...,
    *,
    hermitian: builtins.bool = ...,
    tol: ArrayLike | None = ...,
) -> Any: ...
def matrix_transpose(x: ArrayLike, /) -> Any: ...
def multi_dot(arrays: Sequence[ArrayLike], *, precision: Any = ...) -> Any: ...
def norm(
    x: ArrayLike,
    ord: int | str | None = ...,
    axis: None | tuple[int, ...] | int = ...,
    keepdims: builtins.bool = ...,
) -> Any: ...
def outer(x1: ArrayLike, x2: ArrayLike, /) -> Any: ...
def pinv(
    a: ArrayLike,
    rtol: ArrayLike | None = ...,
    hermitian: builtins.bool = ...,
    *,
    rcond: ArrayLike | None = ...,
) -> Any: ...
def qr(a: ArrayLike, mode: str = ...) -> Any: ...
def slogdet(a: ArrayLike, *, method: str | None = ...) -> Any: ...
def solve(a: ArrayLike, b: ArrayLike) -> Any: ...
def svd(
    a: ArrayLike,
    full_matrices: builtins.bool = ...,
    compute_uv: builtins.bool = ...,
    hermitian: builtins.bool = ...,
    subset_by_index: tuple[int, int] | None = ...,
) -> Any: ...
def svdvals(x: ArrayLike, /) -> Any: ...
def tensordot(
    x1: ArrayLike,
    x2: ArrayLike,
    /,
    *,
    axes: int | tuple[Sequence[int], Sequence[int]] = ...,
    precision: Any = ...,
    preferred_element_type: DTypeLike | None = ...,
    out_sharding: NamedSharding | P | None = ...,
) -> Any: ...
def tensorinv(a: ArrayLike, ind: int = ...) -> Any: ...
def tensorsolve(a: ArrayLike, b: ArrayLike, axes: tuple[int, ...] | None = ...) -> Any: ...
def trace(x: ArrayLike, /, *, offset: int = ..., dtype: DTypeLike | None = ...) -> Any: ...
def vecdot(
    x1: ArrayLike,
    x2: ArrayLike,
    /,
    *,
    axis: int = ...,
    precision: Any = ...,
    preferred_element_type: DTypeLike | None = ...,
) -> Any: ...
def vector_norm(
    x: ArrayLike,
    /,
    *,
    axis: int | tuple[int, ...] | None = ...,
    keepdims: builtins.bool = ...,
    ord: int | str = ...,
) -> Any: ...
def __getattr__(name: str) -> Any: ...

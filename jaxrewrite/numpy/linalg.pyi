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
_Result: TypeAlias = jax.Array | Any  # An array, or a value, as the rules say.
ArrayLike: TypeAlias = jax.typing.ArrayLike | _Value
DTypeLike: TypeAlias = jax.typing.DTypeLike
_Axis: TypeAlias = int | str | Sequence[int | str] | None
_Device: TypeAlias = Any  # JAX does not say which type it is.

def cholesky(
    a: ArrayLike, *, upper: builtins.bool = ..., symmetrize_input: builtins.bool = ...
) -> _Result:
    """Compute the Cholesky decomposition of a matrix.

    `transform` of `jax.numpy.linalg.cholesky`.
    """

def cond(x: ArrayLike, p: Any = ...) -> Any:
    """Compute the condition number of a matrix.

    `transform` of `jax.numpy.linalg.cond`.
    """

def cross(x1: ArrayLike, x2: ArrayLike, /, *, axis: Any = ...) -> Any:
    """Compute the cross-product of two 3D vectors

    `transform` of `jax.numpy.linalg.cross`.
    """

def det(a: ArrayLike) -> _Result:
    """Compute the determinant of an array.

    `transform` of `jax.numpy.linalg.det`.
    """

def diagonal(x: ArrayLike, /, *, offset: int = ...) -> _Result:
    """Extract the diagonal of an matrix or stack of matrices.

    `transform` of `jax.numpy.linalg.diagonal`.
    """

def eig(a: ArrayLike) -> Any:
    """Compute the eigenvalues and eigenvectors of a square array.

    `transform` of `jax.numpy.linalg.eig`.
    """

def eigh(
    a: ArrayLike, UPLO: str | None = ..., symmetrize_input: builtins.bool = ...
) -> Any:
    """Compute the eigenvalues and eigenvectors of a Hermitian matrix.

    `transform` of `jax.numpy.linalg.eigh`.
    """

def eigvals(a: ArrayLike) -> _Result:
    """Compute the eigenvalues of a general matrix.

    `transform` of `jax.numpy.linalg.eigvals`.
    """

def eigvalsh(
    a: ArrayLike, UPLO: str | None = ..., *, symmetrize_input: builtins.bool = ...
) -> _Result:
    """Compute the eigenvalues of a Hermitian matrix.

    `transform` of `jax.numpy.linalg.eigvalsh`.
    """

def inv(a: ArrayLike) -> _Result:
    """Return the inverse of a square matrix

    `transform` of `jax.numpy.linalg.inv`.
    """

def lstsq(
    a: ArrayLike,
    b: ArrayLike,
    rcond: float | None = ...,
    *,
    numpy_resid: builtins.bool = ...,
) -> tuple[_Result, _Result, _Result, _Result]:
    """Return the least-squares solution to a linear equation.

    `transform` of `jax.numpy.linalg.lstsq`.
    """

def matmul(
    x1: ArrayLike,
    x2: ArrayLike,
    /,
    *,
    precision: Any = ...,
    preferred_element_type: DTypeLike | None = ...,
) -> _Result:
    """Perform a matrix multiplication.

    `transform` of `jax.numpy.linalg.matmul`.
    """

def matrix_norm(
    x: ArrayLike, /, *, keepdims: builtins.bool = ..., ord: str | int = ...
) -> _Result:
    """Compute the norm of a matrix or stack of matrices.

    `transform` of `jax.numpy.linalg.matrix_norm`.
    """

def matrix_power(a: ArrayLike, n: int) -> _Result:
    """Raise a square matrix to an integer power.

    `transform` of `jax.numpy.linalg.matrix_power`.
    """

def matrix_rank(
    M: ArrayLike,
    rtol: ArrayLike | None = ...,
    *,
    hermitian: builtins.bool = ...,
    tol: ArrayLike | None = ...,
) -> _Result:
    """Compute the rank of a matrix.

    `transform` of `jax.numpy.linalg.matrix_rank`.
    """

def matrix_transpose(x: ArrayLike, /) -> _Result:
    """Transpose a matrix or stack of matrices.

    `transform` of `jax.numpy.linalg.matrix_transpose`.
    """

def multi_dot(arrays: Sequence[ArrayLike], *, precision: Any = ...) -> _Result:
    """Efficiently compute matrix products between a sequence of arrays.

    `transform` of `jax.numpy.linalg.multi_dot`.
    """

def norm(
    x: ArrayLike,
    ord: int | str | None = ...,
    axis: None | tuple[int | str, ...] | int | str = ...,
    keepdims: builtins.bool = ...,
) -> _Result:
    """Compute the norm of a matrix or vector.

    `transform` of `jax.numpy.linalg.norm`.
    """

def outer(x1: ArrayLike, x2: ArrayLike, /) -> _Result:
    """Compute the outer product of two 1-dimensional arrays.

    `transform` of `jax.numpy.linalg.outer`.
    """

def pinv(
    a: ArrayLike,
    rtol: ArrayLike | None = ...,
    hermitian: builtins.bool = ...,
    *,
    rcond: ArrayLike | None = ...,
) -> _Result:
    """Compute the (Moore-Penrose) pseudo-inverse of a matrix.

    `transform` of `jax.numpy.linalg.pinv`.
    """

def qr(a: ArrayLike, mode: str = ...) -> _Result | Any:
    """Compute the QR decomposition of an array

    `transform` of `jax.numpy.linalg.qr`.
    """

def slogdet(a: ArrayLike, *, method: str | None = ...) -> Any:
    """Compute the sign and (natural) logarithm of the determinant of an array.

    `transform` of `jax.numpy.linalg.slogdet`.
    """

def solve(a: ArrayLike, b: ArrayLike) -> _Result:
    """Solve a linear system of equations.

    `transform` of `jax.numpy.linalg.solve`.
    """

def svd(
    a: ArrayLike,
    full_matrices: builtins.bool = ...,
    compute_uv: builtins.bool = ...,
    hermitian: builtins.bool = ...,
    subset_by_index: tuple[int, int] | None = ...,
) -> _Result | Any:
    """Compute the singular value decomposition.

    `transform` of `jax.numpy.linalg.svd`.
    """

def svdvals(x: ArrayLike, /) -> _Result:
    """Compute the singular values of a matrix.

    `transform` of `jax.numpy.linalg.svdvals`.
    """

def tensordot(
    x1: ArrayLike,
    x2: ArrayLike,
    /,
    *,
    axes: int | tuple[Sequence[int], Sequence[int]] = ...,
    precision: Any = ...,
    preferred_element_type: DTypeLike | None = ...,
    out_sharding: NamedSharding | P | None = ...,
) -> _Result:
    """Compute the tensor dot product of two N-dimensional arrays.

    `transform` of `jax.numpy.linalg.tensordot`.
    """

def tensorinv(a: ArrayLike, ind: int = ...) -> _Result:
    """Compute the tensor inverse of an array.

    `transform` of `jax.numpy.linalg.tensorinv`.
    """

def tensorsolve(
    a: ArrayLike, b: ArrayLike, axes: tuple[int | str, ...] | None = ...
) -> _Result:
    """Solve the tensor equation a x = b for x.

    `transform` of `jax.numpy.linalg.tensorsolve`.
    """

def trace(x: ArrayLike, /, *, offset: int = ..., dtype: DTypeLike | None = ...) -> _Result:
    """Compute the trace of a matrix.

    `transform` of `jax.numpy.linalg.trace`.
    """

def vecdot(
    x1: ArrayLike,
    x2: ArrayLike,
    /,
    *,
    axis: int | str = ...,
    precision: Any = ...,
    preferred_element_type: DTypeLike | None = ...,
) -> _Result:
    """Compute the (batched) vector conjugate dot product of two arrays.

    `transform` of `jax.numpy.linalg.vecdot`.
    """

def vector_norm(
    x: ArrayLike,
    /,
    *,
    axis: int | str | tuple[int | str, ...] | None = ...,
    keepdims: builtins.bool = ...,
    ord: int | str = ...,
) -> _Result:
    """Compute the vector norm of a vector or batch of vectors.

    `transform` of `jax.numpy.linalg.vector_norm`.
    """

def __getattr__(name: str) -> Any: ...

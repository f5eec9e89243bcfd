"""`jax.numpy.fft`, with every function transformed.

The signatures are those of JAX (Copyright 2018 The JAX Authors, Apache License 2.0).
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import jax
import jax.typing

from .._core.value import Value as _Value

_Array: TypeAlias = jax.Array | _Value
ArrayLike: TypeAlias = jax.typing.ArrayLike | _Value
DTypeLike: TypeAlias = jax.typing.DTypeLike
_Axis: TypeAlias = int | str | Sequence[int | str] | None
_Device: TypeAlias = Any  # JAX does not say which type it is.

def fft(
    a: ArrayLike, n: int | None = ..., axis: int | str = ..., norm: str | None = ...
) -> Any: ...
def fft2(
    a: ArrayLike,
    s: Any | None = ...,
    axes: Sequence[int | str] = ...,
    norm: str | None = ...,
) -> Any: ...
def fftfreq(
    n: int, d: ArrayLike = ..., *, dtype: DTypeLike | None = ..., device: Any | None = ...
) -> Any: ...
def fftn(
    a: ArrayLike,
    s: Any | None = ...,
    axes: Sequence[int | str] | None = ...,
    norm: str | None = ...,
) -> Any: ...
def fftshift(x: ArrayLike, axes: None | int | str | Sequence[int | str] = ...) -> Any: ...
def hfft(
    a: ArrayLike, n: int | None = ..., axis: int | str = ..., norm: str | None = ...
) -> Any: ...
def ifft(
    a: ArrayLike, n: int | None = ..., axis: int | str = ..., norm: str | None = ...
) -> Any: ...
def ifft2(
    a: ArrayLike,
    s: Any | None = ...,
    axes: Sequence[int | str] = ...,
    norm: str | None = ...,
) -> Any: ...
def ifftn(
    a: ArrayLike,
    s: Any | None = ...,
    axes: Sequence[int | str] | None = ...,
    norm: str | None = ...,
) -> Any: ...
def ifftshift(x: ArrayLike, axes: None | int | str | Sequence[int | str] = ...) -> Any: ...
def ihfft(
    a: ArrayLike, n: int | None = ..., axis: int | str = ..., norm: str | None = ...
) -> Any: ...
def irfft(
    a: ArrayLike, n: int | None = ..., axis: int | str = ..., norm: str | None = ...
) -> Any: ...
def irfft2(
    a: ArrayLike,
    s: Any | None = ...,
    axes: Sequence[int | str] = ...,
    norm: str | None = ...,
) -> Any: ...
def irfftn(
    a: ArrayLike,
    s: Any | None = ...,
    axes: Sequence[int | str] | None = ...,
    norm: str | None = ...,
) -> Any: ...
def rfft(
    a: ArrayLike, n: int | None = ..., axis: int | str = ..., norm: str | None = ...
) -> Any: ...
def rfft2(
    a: ArrayLike,
    s: Any | None = ...,
    axes: Sequence[int | str] = ...,
    norm: str | None = ...,
) -> Any: ...
def rfftfreq(
    n: int, d: ArrayLike = ..., *, dtype: DTypeLike | None = ..., device: Any | None = ...
) -> Any: ...
def rfftn(
    a: ArrayLike,
    s: Any | None = ...,
    axes: Sequence[int | str] | None = ...,
    norm: str | None = ...,
) -> Any: ...
def __getattr__(name: str) -> Any: ...

"""`jax.numpy.fft`, with every function transformed.

The signatures are those of JAX (Copyright 2018 The JAX Authors, Apache License 2.0).
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import jax
import jax.typing

from .._core.value import Value as _Value

_Array: TypeAlias = jax.Array | _Value
_Result: TypeAlias = jax.Array | Any  # An array, or a value, as the rules say.
ArrayLike: TypeAlias = jax.typing.ArrayLike | _Value
DTypeLike: TypeAlias = jax.typing.DTypeLike
_Axis: TypeAlias = int | str | Sequence[int | str] | None
_Device: TypeAlias = Any  # JAX does not say which type it is.

def fft(
    a: ArrayLike, n: int | None = ..., axis: int | str = ..., norm: str | None = ...
) -> _Result:
    """Compute a one-dimensional discrete Fourier transform along a given axis.

    `transform` of `jax.numpy.fft.fft`.
    """

def fft2(
    a: ArrayLike,
    s: Any | None = ...,
    axes: Sequence[int | str] = ...,
    norm: str | None = ...,
) -> _Result:
    """Compute a two-dimensional discrete Fourier transform along given axes.

    `transform` of `jax.numpy.fft.fft2`.
    """

def fftfreq(
    n: int, d: ArrayLike = ..., *, dtype: DTypeLike | None = ..., device: Any | None = ...
) -> _Result:
    """Return sample frequencies for the discrete Fourier transform.

    `transform` of `jax.numpy.fft.fftfreq`.
    """

def fftn(
    a: ArrayLike,
    s: Any | None = ...,
    axes: Sequence[int | str] | None = ...,
    norm: str | None = ...,
) -> _Result:
    """Compute a multidimensional discrete Fourier transform along given axes.

    `transform` of `jax.numpy.fft.fftn`.
    """

def fftshift(x: ArrayLike, axes: None | int | str | Sequence[int | str] = ...) -> _Result:
    """Shift zero-frequency fft component to the center of the spectrum.

    `transform` of `jax.numpy.fft.fftshift`.
    """

def hfft(
    a: ArrayLike, n: int | None = ..., axis: int | str = ..., norm: str | None = ...
) -> _Result:
    """Compute a 1-D FFT of an array whose spectrum has Hermitian symmetry.

    `transform` of `jax.numpy.fft.hfft`.
    """

def ifft(
    a: ArrayLike, n: int | None = ..., axis: int | str = ..., norm: str | None = ...
) -> _Result:
    """Compute a one-dimensional inverse discrete Fourier transform.

    `transform` of `jax.numpy.fft.ifft`.
    """

def ifft2(
    a: ArrayLike,
    s: Any | None = ...,
    axes: Sequence[int | str] = ...,
    norm: str | None = ...,
) -> _Result:
    """Compute a two-dimensional inverse discrete Fourier transform.

    `transform` of `jax.numpy.fft.ifft2`.
    """

def ifftn(
    a: ArrayLike,
    s: Any | None = ...,
    axes: Sequence[int | str] | None = ...,
    norm: str | None = ...,
) -> _Result:
    """Compute a multidimensional inverse discrete Fourier transform.

    `transform` of `jax.numpy.fft.ifftn`.
    """

def ifftshift(x: ArrayLike, axes: None | int | str | Sequence[int | str] = ...) -> _Result:
    """The inverse of :func:`jax.numpy.fft.fftshift`.

    `transform` of `jax.numpy.fft.ifftshift`.
    """

def ihfft(
    a: ArrayLike, n: int | None = ..., axis: int | str = ..., norm: str | None = ...
) -> _Result:
    """Compute a 1-D inverse FFT of an array whose spectrum has Hermitian-symmetry.

    `transform` of `jax.numpy.fft.ihfft`.
    """

def irfft(
    a: ArrayLike, n: int | None = ..., axis: int | str = ..., norm: str | None = ...
) -> _Result:
    """Compute a real-valued one-dimensional inverse discrete Fourier transform.

    `transform` of `jax.numpy.fft.irfft`.
    """

def irfft2(
    a: ArrayLike,
    s: Any | None = ...,
    axes: Sequence[int | str] = ...,
    norm: str | None = ...,
) -> _Result:
    """Compute a real-valued two-dimensional inverse discrete Fourier transform.

    `transform` of `jax.numpy.fft.irfft2`.
    """

def irfftn(
    a: ArrayLike,
    s: Any | None = ...,
    axes: Sequence[int | str] | None = ...,
    norm: str | None = ...,
) -> _Result:
    """Compute a real-valued multidimensional inverse discrete Fourier transform.

    `transform` of `jax.numpy.fft.irfftn`.
    """

def rfft(
    a: ArrayLike, n: int | None = ..., axis: int | str = ..., norm: str | None = ...
) -> _Result:
    """Compute a one-dimensional discrete Fourier transform of a real-valued array.

    `transform` of `jax.numpy.fft.rfft`.
    """

def rfft2(
    a: ArrayLike,
    s: Any | None = ...,
    axes: Sequence[int | str] = ...,
    norm: str | None = ...,
) -> _Result:
    """Compute a two-dimensional discrete Fourier transform of a real-valued array.

    `transform` of `jax.numpy.fft.rfft2`.
    """

def rfftfreq(
    n: int, d: ArrayLike = ..., *, dtype: DTypeLike | None = ..., device: Any | None = ...
) -> _Result:
    """Return sample frequencies for the discrete Fourier transform.

    `transform` of `jax.numpy.fft.rfftfreq`.
    """

def rfftn(
    a: ArrayLike,
    s: Any | None = ...,
    axes: Sequence[int | str] | None = ...,
    norm: str | None = ...,
) -> _Result:
    """Compute a multidimensional discrete Fourier transform of a real-valued array.

    `transform` of `jax.numpy.fft.rfftn`.
    """

def __getattr__(name: str) -> Any: ...

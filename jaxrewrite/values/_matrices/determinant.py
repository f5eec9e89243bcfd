"""Determinants that neither overflow nor underflow."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Self

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Inexact

from .._base.structured import as_inexact, promoted


def power_of_two(exponent: Any) -> Any:
    """The next lower power of two, a constant; 1 for NaN and infinity.

    A division by it does not round. Neither it nor its inverse, which a compiler may multiply
    with, leaves the range of the dtype.
    """
    exponent = lax.stop_gradient(exponent)
    exponent = jnp.where(jnp.isfinite(exponent), jnp.floor(exponent), 0)
    info = jnp.finfo(exponent.dtype)
    most = -info.minexp
    exponent = jnp.clip(exponent, -most, most)
    # `jnp.ldexp` is compiled in the mode of the session, also where the program has 64 bits.
    biased = exponent.astype(f"int{info.bits}") + (most + 1)
    return lax.bitcast_convert_type(biased << info.nmant, exponent.dtype)


class Determinant(NamedTuple):
    r"""Numbers :math:`u e^l`, where the magnitude of u is about one, or u is zero.

    Derivatives go through u alone, like the derivatives of a product. So they are right
    where the number is zero; the derivative of a logarithm is not.

    Attributes
    ----------
    unit
        An array of any inexact dtype.
    log
        A real array of the same shape, a constant to derivatives. It has at least 32 bits: an
        exponential multiplies the error of a logarithm by the logarithm.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from jaxrewrite.values import Determinant
    >>> Determinant.of(jnp.full(100, -10.0)).slogdet()
    (Array(1., dtype=float32), Array(230.2585, dtype=float32))
    """

    unit: Inexact[Array, "*batch"]
    log: Float[Array, "*batch"]

    @classmethod
    def of(cls, numbers: Inexact[Array, "*batch n"]) -> Determinant:
        """The products of numbers along the last axis."""
        real = abs(numbers).dtype
        log = jnp.zeros(numbers.shape, promoted(real, jnp.float32))
        return cls(numbers, log).product()

    @classmethod
    def of_arrays(cls, a: Inexact[Array, "*batch n n"]) -> Determinant:
        r"""The determinants of dense matrices, of shape (\*batch, n, n)."""
        a = as_inexact(a)
        dtype = a.dtype
        a = a.astype(promoted(dtype, jnp.float32))  # LAPACK is not for 16 bits.
        # Rows are scaled first, because JAX multiplies the entries of small matrices.
        rows = power_of_two(jnp.log2(abs(a).max(-1, initial=0)))
        a = a / rows[..., None]
        # So is the whole: the powers of two of all rows add up to that of the determinant.
        power = jnp.floor(jnp.linalg.slogdet(a)[1] / math.log(2))[..., None]
        count = a.shape[-1]
        more = power_of_two((power + jnp.arange(count, dtype=power.dtype)) / max(count, 1))
        a = a / more[..., None]
        unit = jnp.linalg.det(a).astype(dtype)
        return cls(unit, (jnp.log(rows) + jnp.log(more)).sum(-1))

    def product(self) -> Self:
        """The products along the last axis."""
        exact = self._exactly()
        return type(self)(exact.unit.prod(-1), exact.log.sum(-1))

    def times(self, other: Determinant) -> Self:
        """The products of these numbers with others of the same shape."""
        exact = self._exactly()
        return type(self)(exact.unit * other.unit, exact.log + other.log)

    def __pow__(self, power: int) -> Self:
        exact = self._exactly()
        return type(self)(exact.unit**power, exact.log * power)

    def _exactly(self) -> Self:
        """The same numbers, with magnitudes of one, because those of products add up."""
        size = lax.stop_gradient(abs(self.unit))
        size = jnp.where((size > 0) & jnp.isfinite(size), size, 1)
        return type(self)(self.unit / size, self._plus_log(size))

    def _plus_log(self, size: Any) -> Any:
        return self.log + jnp.log(size.astype(self.log.dtype))

    def real(self) -> Self:
        """The determinants without their imaginary parts, which are rounding errors."""
        return type(self)(self.unit.real, self.log)

    def slogdet(self) -> tuple[Inexact[Array, "*batch"], Float[Array, "*batch"]]:
        """The signs and the logarithms of the absolute values."""
        size = abs(self.unit)
        log = self._plus_log(size).astype(size.dtype)
        if not jnp.iscomplexobj(self.unit):
            return jnp.sign(self.unit), log
        # JAX's own sign has a derivative of zero in some releases.
        is_zero = self.unit == 0
        sign = jnp.where(is_zero, 0, self.unit / jnp.where(is_zero, 1, size))
        return sign, log

    def number(self) -> Inexact[Array, "*batch"]:
        """The determinants themselves, which may overflow."""
        size = jnp.exp(self.log)
        nothing = (self.unit == 0) & jnp.isinf(size)
        return (self.unit * jnp.where(nothing, 1, size)).astype(self.unit.dtype)

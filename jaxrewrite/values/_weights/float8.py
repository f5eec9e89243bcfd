"""Arrays of 8-bit floating-point numbers with a scale for each block."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

import jaxrewrite

from .._base.structured import promoted
from .coded import (
    Coded,
    blockwise,
    check_blocks,
    check_floating,
    checked_weight,
    of_blocks,
    scale_in,
    sizes_of,
)


DTYPES = (jnp.dtype("float8_e4m3fn"), jnp.dtype("float8_e5m2"))


class Float8(Coded):
    r"""An array of 8-bit floating-point numbers [1]_, with scales that blocks share.

    .. math:: w_{ij} = c_{ij} \, s_{b(i,j)}

    where :math:`b(i,j)` is the block of the entry. It takes a quarter of the bytes in
    float32. Its error is relative to each entry, and not to the largest entry of the block
    as that of `Quantised`. It stays a ``Float8`` where a `Quantised` stays quantised, and
    its products are computed in the same ways. But a cast of ``float8_e5m2`` to float16 makes
    it dense: its numbers are up to 57344, so that weights below 3.5 have scales that are no
    normal numbers of float16. A cast of ``float8_e4m3fn`` changes entries by up to 1.4e-5,
    beside rounding.

    Parameters
    ----------
    codes
        The numbers, of dtype float8_e4m3fn or float8_e5m2, in the shape of the array; or
        their bits, of dtype uint8, which is what the field holds. XLA on a CPU makes wider
        floats of whole arrays of these dtypes wherever entries move.
    scale
        The scales, floating, in a shape as for `Quantised`. Their dtype is the dtype of the
        array.
    format
        The name of the dtype, if ``codes`` are bits.

    Raises
    ------
    ValueError
        If a dtype is not one of these, or an axis does not consist of whole blocks.

    References
    ----------
    .. [1] P. Micikevicius et al. (2022), FP8 Formats for Deep Learning, arXiv:2209.05433,
       table 1.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from jaxrewrite.values import Float8
    >>> v = Float8(jnp.array([[448, 0.5]], "float8_e4m3fn"), jnp.array([[0.5]]))
    >>> v
    Float8([[224.     0.25]], format='float8_e4m3fn', dtype=float32)
    >>> v @ jnp.ones(2)
    Array([224.25], dtype=float32)
    """

    codes: Array
    scale: Array
    format: str = jaxrewrite.field(static=True)

    def __init__(self, codes: Any, scale: Any, format: str | None = None):
        dtype = format if codes.dtype == jnp.uint8 else codes.dtype
        if dtype not in DTYPES:
            raise ValueError(
                "Float8: `codes` must be float8_e4m3fn or float8_e5m2, or uint8 with one of "
                f"these as `format`; got {codes.dtype} and {format}."
            )
        check_floating("Float8", "scale", scale)
        check_blocks("Float8", codes=codes, scale=scale)
        if codes.dtype != jnp.uint8:
            codes = lax.bitcast_convert_type(codes, jnp.uint8)
        self.__dict__.update(codes=codes, scale=scale, format=str(jnp.dtype(dtype)))

    @classmethod
    def quantise(
        cls,
        w: Any,
        dtype: Any = "float8_e4m3fn",
        *,
        axis: int | Sequence[int] | None = None,
        block: int | Sequence[int | None] | None = None,
    ) -> Float8:
        r"""Round a dense array.

        The scale of a block is :math:`s = \max |w| / c_{max}`, rounded up to a number of the
        dtype of ``w``, where :math:`c_{max}` is the largest finite number of the format.
        Rounding to nearest with :math:`p` bits behind the point, and a least positive
        number :math:`c_{min}`, has an error of

        .. math:: |\hat w - w| \le \max(2^{-p-1} |w|, \; c_{min} s / 2)

        and of the roundings of the dtype of ``w``, in the quotient and in the product.

        ================= ========= =============== =================
        dtype             ``p``     :math:`c_{max}` :math:`c_{min}`
        ================= ========= =============== =================
        float8_e4m3fn     3         448             :math:`2^{-9}`
        float8_e5m2       2         57344           :math:`2^{-16}`
        ================= ========= =============== =================

        Parameters
        ----------
        w
            A floating array.
        dtype
            The dtype of the codes.
        axis, block
            Which entries share a scale, as in `Quantised.quantise`. By default all do.

        Raises
        ------
        ValueError
            If ``w`` is not real floating or has infinite or NaN entries, ``dtype`` is not
            one of the two, or ``axis`` and ``block`` do not fit as in `Quantised.quantise`.

        Examples
        --------
        >>> import jax.numpy as jnp
        >>> from jaxrewrite.values import Float8
        >>> Float8.quantise(jnp.ones((256, 32)), "float8_e5m2", block=64)
        Float8<f32[256,32], 8.7 kB>(codes=u8[256,32], scale=f32[4,32], format='float8_e5m2')
        """
        w = checked_weight("Float8", w)
        if dtype not in DTYPES:
            raise ValueError(
                f"Float8: `dtype` must be float8_e4m3fn or float8_e5m2; got {dtype}."
            )
        sizes = sizes_of("Float8", w.shape, axis, block)
        v = _quantised(w, jnp.dtype(dtype), sizes)
        return cls(v.codes, v.scale, v.format)

    def levels(self) -> jax.Array:
        return numbers_of_bits(self.codes, self.format, self.scale.dtype)

    def encoded(self, x: jax.Array, sizes: Sequence[int]) -> Any:
        v = _quantised(x, jnp.dtype(self.format), tuple(sizes))
        return dataclasses.replace(self, codes=v.codes, scale=v.scale)

    def has_scales_in(self, dtype: Any) -> bool:
        """Whether weights below one have scales that are normal numbers."""
        least = jnp.finfo(dtype).smallest_normal
        return super().has_scales_in(dtype) and bool(jnp.finfo(self.format).max * least < 1)


def numbers_of_bits(codes: Any, format: str, dtype: Any) -> Any:
    """The numbers of a floating dtype of 8 bits that have these bits, in another dtype.

    By shifts: XLA on a CPU takes ten times as long to convert the dtype itself. Nor is the sign
    had by a bitcast: XLA folds that of transposed constants in wrong order.
    """
    bits = codes.astype(jnp.int8).astype(jnp.int16)
    as_half = lambda bits: lax.bitcast_convert_type(bits, jnp.float16)
    if format == "float8_e5m2":  # The upper half of a float16.
        return as_half(bits << 8).astype(dtype)
    # The exponent of a float16 has one bit more, and a bias that is greater by eight.
    exponent_and_fraction = bits & 0x7F
    number = as_half((bits << 7) & ~0x4000).astype(dtype) * 2**8
    return jnp.where(exponent_and_fraction == 0x7F, jnp.nan, number)


# Compiled as a whole: one operation after the other takes longer, and more memory.
# A user's subclass is made outside, where its checks may look at the numbers.
@functools.partial(jax.jit, static_argnums=(1, 2))
def _quantised(w: Any, dtype: Any, sizes: tuple[int, ...]) -> Float8:
    wide = w.astype(promoted(w.dtype, jnp.float32))
    most = float(jnp.finfo(dtype).max)
    scale = scale_in(w.dtype, of_blocks(jnp.max, abs(wide), sizes) * (1 / most), most)
    codes = blockwise(jnp.divide, wide, scale.astype(wide.dtype))
    return Float8(jnp.clip(codes, -most, most).astype(dtype), scale)

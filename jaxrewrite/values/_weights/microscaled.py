"""Arrays of floats of four, six or eight bits, with scales of eight bits for small blocks."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

import jaxrewrite

from .._base.structured import promoted
from .coded import (
    Coded,
    axes_asked,
    block_sizes,
    check_blocks,
    check_floating,
    checked_weight,
    finest,
    of_blocks,
    relative,
    spread,
    with_nan,
)
from .float8 import numbers_of_bits
from .packed import Nibbles, doubled_magnitudes, packed


class _Format(NamedTuple):
    """The dtypes of codes and of scales, and how many neighbours share a scale."""

    element: str
    scale: str
    block: int


_E2M1, _E2M3, _E3M2 = "float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn"
_E4M3, _E5M2, _E8M0 = "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"

FORMATS: Mapping[str, _Format] = MappingProxyType(
    {
        "mxfp4": _Format(_E2M1, _E8M0, 32),
        "mxfp6_e2m3": _Format(_E2M3, _E8M0, 32),
        "mxfp6_e3m2": _Format(_E3M2, _E8M0, 32),
        "mxfp8_e4m3": _Format(_E4M3, _E8M0, 32),
        "mxfp8_e5m2": _Format(_E5M2, _E8M0, 32),
        "nvfp4": _Format(_E2M1, _E4M3, 16),
    }
)

# The largest numbers of the dtypes of codes.
_LARGEST = {_E2M1: 6.0, _E2M3: 7.5, _E3M2: 28.0, _E4M3: 448.0, _E5M2: 57344.0}

# The bits of the fraction of the dtypes of six bits, and the exponent of their least normal
# number.
_OF_SIX_BITS = {_E2M3: (3, 0), _E3M2: (2, -2)}

# The magnitudes of float4_e2m1fn.
_MAGNITUDES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])


class Microscaled(Coded):
    r"""An array of small floats, with scales of eight bits for blocks of neighbours.

    .. math:: w_{ij} = c_{ij} \, a_{b(i,j)} \, s

    The formats are the OCP Microscaling Formats of floats [1]_, and NVFP4 [2]_:

    ============ ============= ============== ======= ============== ==========
    ``format``   codes         scales         block   bits per entry :math:`s`
    ============ ============= ============== ======= ============== ==========
    mxfp4        float4_e2m1fn float8_e8m0fnu 32      4.25           one
    mxfp6_e2m3   float6_e2m3fn float8_e8m0fnu 32      6.25           one
    mxfp6_e3m2   float6_e3m2fn float8_e8m0fnu 32      6.25           one
    mxfp8_e4m3   float8_e4m3fn float8_e8m0fnu 32      8.25           one
    mxfp8_e5m2   float8_e5m2   float8_e8m0fnu 32      8.25           one
    nvfp4        float4_e2m1fn float8_e4m3fn  16      4.5            any number
    ============ ============= ============== ======= ============== ==========

    It stays a ``Microscaled`` where a `Quantised` stays quantised, and its products are
    computed in the same ways. A cast to float16 makes it dense, because the scales of
    float8_e8m0fnu are from :math:`2^{-127}` to :math:`2^{127}`. The least of them is no normal
    number of float32, which a CPU takes for zero.

    Parameters
    ----------
    codes
        The bits of the codes, in the shape of the array: of dtype uint4 for float4_e2m1fn, of
        uint8 for codes of eight bits, and for those of six bits the same less 32, of dtype int8.
        Or a value that holds some neighbours in whole bytes, as ``quantise`` makes it.
    block_scale
        The bits of the scales, of dtype uint8. The length of each axis divides the length of
        that axis of ``codes``, as for the scales of `Quantised`.
    scale
        What multiplies all blocks, floating but not float16, in a shape as for ``block_scale``.
        Its dtype is the dtype of the array.
    format
        The name of the format.

    Raises
    ------
    ValueError
        If the format is not known, a dtype is not one of these, or an axis does not consist of
        whole blocks.

    References
    ----------
    .. [1] B. Darvish Rouhani et al. (2023), OCP Microscaling Formats (MX) Specification,
       version 1.0, Open Compute Project, sections 5 and 6.
    .. [2] E. Alvarez et al. (2025), Introducing NVFP4 for Efficient and Accurate
       Low-Precision Inference, NVIDIA.

    Examples
    --------
    >>> import jax.numpy as jnp, jaxrewrite
    >>> from jaxrewrite.values import Microscaled
    >>> codes = jnp.array([[1, 7], [15, 2]], "uint4")  # 0.5, 6, -6 and 1
    >>> v = Microscaled(codes, jnp.array([[128, 126]], "uint8"), jnp.ones((1, 1)), "mxfp4")
    >>> jaxrewrite.materialise(v)
    Array([[  1. ,   3. ],
           [-12. ,   0.5]], dtype=float32)
    >>> jaxrewrite.transform(lambda v, x: x @ v)(v, jnp.ones(2))
    Array([-11. ,   3.5], dtype=float32)
    """

    formats: ClassVar[Mapping[str, _Format]] = FORMATS

    codes: Array
    block_scale: Array
    scale: Array
    format: str = jaxrewrite.field(static=True)

    def __post_init__(self) -> None:
        bits = _dtype_of_codes(_form(self.format).element)
        leaves = {"codes": self.codes, "block_scale": self.block_scale, "scale": self.scale}
        for name, wanted in (("codes", bits), ("block_scale", jnp.uint8)):
            got = jnp.result_type(leaves[name])
            if got != wanted:
                raise ValueError(
                    f"Microscaled: `{name}` of {self.format} must be of dtype "
                    f"{jnp.dtype(wanted).name}; got {got}."
                )
        check_floating("Microscaled", "scale", self.scale)
        if jnp.result_type(self.scale) == jnp.float16:
            raise ValueError("Microscaled: `scale` must be real floating, but not float16.")
        check_blocks("Microscaled", **leaves)

    @classmethod
    def from_bytes(
        cls,
        codes: Any,
        block_scale: Any,
        format: str,
        *,
        scale: Any = 1.0,
        dtype: Any = "float32",
    ) -> Microscaled:
        """The array of tensors as files have them.

        Parameters
        ----------
        codes
            Bytes of dtype uint8, or numbers of the dtype of the codes of 8 bits. Codes of four
            bits are two neighbours along the last axis in a byte, the first one in its lower
            bits. A code of six bits is in a byte of its own, in its lower bits.
        block_scale
            The scales of blocks, as bits of dtype uint8 or as numbers. There are as many axes as
            ``codes`` has.
        format
            The name of the format.
        scale
            A number that multiplies all blocks, as NVFP4 has it. Where a file holds its inverse,
            take that.
        dtype
            The dtype of the array, floating but not float16.

        Raises
        ------
        ValueError
            As for `Microscaled`.

        Examples
        --------
        >>> import numpy as np
        >>> from jaxrewrite.values import Microscaled
        >>> codes, scales = np.zeros((4096, 2048), "uint8"), np.zeros((4096, 256), "uint8")
        >>> Microscaled.from_bytes(codes, scales, "nvfp4", scale=0.01, dtype="bfloat16")
        Microscaled<bf16[4096,4096], 9.44 MB>(codes=Nibbles<u4[4096,4096], 8.39 MB>,
                                              block_scale=u8[4096,256], scale=bf16[1,1],
                                              format='nvfp4')
        """
        form = _form(format)
        codes, block_scale = (
            _bits("codes", codes, form.element),
            _bits("block_scale", block_scale, form.scale),
        )
        stored: Any = codes
        if form.element == _E2M1:
            stored = Nibbles(codes[..., None])
        elif form.element in _OF_SIX_BITS:
            stored = packed((codes & 63).astype(jnp.int8) - jnp.int8(32), bits=6)
        ones = (1,) * codes.ndim
        return cls(stored, block_scale, jnp.full(ones, scale, dtype), format)

    @classmethod
    def quantise(
        cls,
        w: Any,
        format: str = "mxfp4",
        block: int | Sequence[int | None] | None = None,
        *,
        stack: int | Sequence[int] = (),
    ) -> Microscaled:
        r"""Round a dense array.

        In the formats of OCP, the scale of a block is the power of two
        :math:`2^{\lfloor \log_2 \max |w| \rfloor - e}`, where :math:`2^e` is the largest power
        of two among the codes. In NVFP4, :math:`s = \max |w| / 2688`, and the scale of a block
        is its :math:`\max |w| / (6 s)`, rounded. Codes are rounded to nearest, and cut off at the
        largest one.

        Parameters
        ----------
        w
            A floating array.
        format
            The name of the format.
        block
            How many consecutive entries share a scale, as in `NF4.quantise`. By default as many
            along the first axis as the format says.
        stack
            The axes of a stack, as in `NF4.quantise`.

        Raises
        ------
        ValueError
            If ``w`` is not real floating, is float16, or has infinite or NaN entries, the format
            is not known, ``block`` does not divide the shape, or ``stack`` is not of axes of
            ``w``. Under `jax.jit` the entries are
            not known; a block with NaN entries is NaN then.

        Examples
        --------
        >>> import jax.numpy as jnp
        >>> from jaxrewrite.values import Microscaled
        >>> Microscaled.quantise(jnp.ones((1024, 1024)))
        Microscaled<f32[1024,1024], 557 kB>(codes=Nibbles<u4[1024,1024], 524 kB>,
                                            block_scale=u8[32,1024], scale=f32[1,1],
                                            format='mxfp4')
        """
        w, form = checked_weight("Microscaled", w), _form(format)
        sizes = block_sizes("Microscaled", w.shape, form.block if block is None else block)
        axes = axes_asked("Microscaled", "stack", w.shape, stack)
        codes, bits, scale = _quantised(w, format, sizes, axes)
        return cls(codes, bits, scale, format)

    def aval(self) -> Any:
        return jax.ShapeDtypeStruct(self.codes.shape, self.scale.dtype)

    def levels(self) -> jax.Array:
        element = FORMATS[self.format].element
        if element in _OF_SIX_BITS:
            return _numbers_of_six_bits(self.codes, element, self.scale.dtype)
        if element == _E2M1:
            return _numbers_of_four_bits(self.codes.astype(jnp.uint8), self.scale.dtype)
        return numbers_of_bits(self.codes, element, self.scale.dtype)

    def scale_of_blocks(self) -> jax.Array:
        parts = self.block_scale, self.scale
        grid = finest(*(part.shape for part in parts))
        bits, scale = (spread(part, grid) for part in parts)
        return _scales(bits, self.format, scale.dtype) * scale

    def has_scales_in(self, dtype: Any) -> bool:
        """Whether the dtype has the exponents of the scales."""
        return super().has_scales_in(dtype) and bool(jnp.finfo(dtype).nexp >= 8)


def _form(format: str) -> _Format:
    if format not in FORMATS:
        raise ValueError(
            f"Microscaled: the format {format!r} is not known. Known are {', '.join(FORMATS)}."
        )
    return FORMATS[format]


def _dtype_of_codes(element: str) -> Any:
    if element in _OF_SIX_BITS:
        return jnp.int8
    return jnp.uint4 if element == _E2M1 else jnp.uint8


def _bits(name: str, x: Any, dtype: str) -> Any:
    """The bits of numbers of this dtype, which may be given as bits."""
    x = jnp.asarray(x)
    if x.dtype.name == dtype in (_E4M3, _E5M2, _E8M0):
        return lax.bitcast_convert_type(x, jnp.uint8)
    if x.dtype != jnp.uint8:
        raise ValueError(
            f"Microscaled: `{name}` must be the bits of {dtype}, of dtype uint8; got {x.dtype}."
        )
    return x


def _numbers_of_four_bits(codes: Any, dtype: Any) -> Any:
    """The numbers of float4_e2m1fn. There is a zero of each sign."""
    magnitude = doubled_magnitudes(codes).astype(dtype) * 0.5
    return jnp.where(codes & 8 != 0, -magnitude, magnitude)


def _numbers_of_six_bits(codes: Any, element: str, dtype: Any) -> Any:
    """The numbers of these codes, which are their bits less 32. There is a zero of each sign."""
    bits, (fraction, least) = codes ^ jnp.int8(-32), _OF_SIX_BITS[element]
    exponent = (bits & 31) >> fraction
    normal = (exponent > 0).astype(jnp.int32)
    whole = (bits & (2**fraction - 1)).astype(jnp.int32) + (normal << fraction)
    size = (whole << (exponent.astype(jnp.int32) - normal)).astype(dtype)
    magnitude = size * jnp.asarray(2.0 ** (least - fraction), dtype)
    return jnp.where(bits < 0, -magnitude, magnitude)


def _scales(bits: Any, format: str, dtype: Any) -> Any:
    if FORMATS[format].scale == _E4M3:
        return numbers_of_bits(bits, _E4M3, dtype)
    return _powers_of_two(bits).astype(dtype)


def _powers_of_two(bits: Any) -> Any:
    """The numbers of float8_e8m0fnu: powers of two by their exponents, in float32."""
    exponent = bits.astype(jnp.int32)
    # The least one has no exponent of its own in float32.
    as_float = jnp.where(exponent == 0, 0x0040_0000, exponent << 23)
    is_nan = exponent == 0xFF
    return lax.bitcast_convert_type(jnp.where(is_nan, 0x7FC0_0000, as_float), jnp.float32)


# --- rounding -----------------------------------------------------------------------------


# Compiled as a whole: one operation after the other takes longer, and more memory.
# A user's subclass is made outside, where its checks may look at the numbers.
@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def _quantised(
    w: Any, format: str, sizes: tuple[int, ...], stack: tuple[int, ...]
) -> tuple[Any, Any, Any]:
    form = FORMATS[format]
    wide = w.astype(promoted(w.dtype, jnp.float32))
    most = with_nan(of_blocks(jnp.max, abs(wide), sizes), wide, sizes)
    of_weight = tuple(i for i in range(w.ndim) if i not in stack)
    scale = jnp.ones([n if i in stack else 1 for i, n in enumerate(w.shape)], wide.dtype)
    if form.scale == _E8M0:
        # What is larger than any float32 has the largest scale, and is cut off.
        limit = jnp.asarray(jnp.finfo(jnp.float32).max, wide.dtype)
        within = jnp.where(jnp.isfinite(most), jnp.minimum(most, limit), most)
        bits = _bits_of_powers(within.astype(jnp.float32), _LARGEST[form.element])
    else:
        largest = _LARGEST[form.element] * _LARGEST[form.scale]
        whole = most.max(of_weight, initial=0, keepdims=True) / largest
        scale = jnp.where(whole == 0, 1, whole).astype(w.dtype).astype(wide.dtype)
        part = relative(most, scale) / _LARGEST[form.element]
        bits = lax.bitcast_convert_type(
            jnp.clip(part, 0, _LARGEST[_E4M3]).astype(_E4M3), jnp.uint8
        )
    unit = relative(relative(wide, scale), _scales(bits, format, wide.dtype))
    codes = _rounded(unit.astype(jnp.float32), form.element)
    return codes, bits, scale.astype(w.dtype)


def _bits_of_powers(most: Any, largest: float) -> Any:
    """The bits of the scales of blocks of which these are the largest magnitudes."""
    exponent = lax.bitcast_convert_type(most, jnp.int32) >> 23
    above = int(np.floor(np.log2(largest)))
    bits = jnp.where(exponent == 0xFF, 0xFF, jnp.maximum(exponent - above, 1))
    return bits.astype(jnp.uint8)


def _rounded(unit: Any, element: str) -> Any:
    """The codes of numbers, rounded to nearest, and to even ones from between two."""
    largest = _LARGEST[element]
    clipped = jnp.clip(unit, -largest, largest)
    if element in _OF_SIX_BITS:
        return packed(_rounded_to_six_bits(clipped, *_OF_SIX_BITS[element]), bits=6)
    if element != _E2M1:
        return lax.bitcast_convert_type(clipped.astype(element), jnp.uint8)
    between = ((_MAGNITUDES[1:] + _MAGNITUDES[:-1]) / 2).astype(np.float32)
    size = abs(clipped)
    above = [size >= x if i % 2 else size > x for i, x in enumerate(between)]
    code = functools.reduce(jnp.add, [is_above.astype(jnp.uint8) for is_above in above])
    signed = jnp.where(jnp.signbit(clipped), code | 8, code)
    return packed(signed.astype(jnp.uint4), bits=4)


def _rounded_to_six_bits(x: Any, fraction: int, least: int) -> Any:
    """The codes of numbers, less 32: those of magnitudes are in the order of the magnitudes."""
    exponent = (lax.bitcast_convert_type(abs(x), jnp.int32) >> 23) - 127
    above = jnp.maximum(exponent - least, 0)
    # A power of two multiplies without an error.
    unit = lax.bitcast_convert_type((127 - least - above + fraction) << 23, jnp.float32)
    code = jnp.round(abs(x) * unit).astype(jnp.int32) + (above << fraction)
    return jnp.where(jnp.signbit(x), code, code - 32).astype(jnp.int8)

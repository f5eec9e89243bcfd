"""Weights in the blocks of GGUF files, as their bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

import jaxrewrite

from .._base.structured import on_dense
from .coded import Coded, check_blocks, check_floating
from .gguf_blocks import LAYOUTS, Layout
from .packed import Packed


class GGUF(Coded):
    r"""An array as a GGUF file [1]_ holds it: blocks of bytes, each with codes and their scales.

    .. math:: w_{ij} = d_{ij} \, s

    where :math:`d` is what the blocks stand for, and :math:`s` a scale that is one for an
    array from a file. The bytes are those of the file. They become floats where they are
    used, as those of a `Quantised` do, and it stays a ``GGUF`` where a `Quantised` stays
    quantised, unless a block is cut: a product on a CPU makes one block of a large weight
    dense at a time, and leaves no dense copy behind. The numbers are those of the package
    ``gguf``, to the last bit.

    ========= ======= ======== ====================================================
    format    entries bits per entry of a block of so many entries
              a block entry
    ========= ======= ======== ====================================================
    Q8_0      32      8.5      :math:`a q`
    Q5_0      32      5.5      :math:`a (q - 16)`
    Q5_1      32      6        :math:`a q + b`
    Q4_0      32      4.5      :math:`a (q - 8)`
    Q4_1      32      5        :math:`a q + b`
    Q6_K      256     6.5625   :math:`a t_k (q - 32)`, 16 entries share :math:`t_k`
    Q5_K      256     5.5      :math:`a t_k q - b u_k`, 32 entries share :math:`t_k, u_k`
    Q4_K      256     4.5      :math:`a t_k q - b u_k`, 32 entries share :math:`t_k, u_k`
    Q3_K      256     3.4375   :math:`a t_k (q - 4)`, 16 entries share :math:`t_k`
    Q2_K      256     2.625    :math:`a t_k q - b u_k`, 16 entries share :math:`t_k, u_k`
    MXFP4     32      4.25     :math:`2^e c`, :math:`c` of float4_e2m1fn
    ========= ======= ======== ====================================================

    :math:`a` and :math:`b` are of dtype float16. Blocks of MXFP4 with the least exponents have
    numbers that are not normal in float32, which a CPU takes for zero. In an array of dtype
    float16, what is beyond its largest number is infinite, also where :math:`s` is small. The
    gradient with respect to ``scale`` is exact, and that with respect to the bytes is float0, as
    for all integers in JAX.

    Parameters
    ----------
    codes
        The blocks, as `from_bytes` makes them: a value that stands for an array of dtype float32.
    scale
        The scales, floating, in a shape as for `Quantised`. Their dtype is the dtype of the
        array.

    Raises
    ------
    ValueError
        If ``scale`` is not floating, or its axes do not divide those of ``codes``.

    References
    ----------
    .. [1] ggml, ``docs/gguf.md`` for the files, and ``src/ggml-common.h`` and
       ``src/ggml-quants.c`` for the blocks, https://github.com/ggml-org/ggml.

    Examples
    --------
    >>> import jax.numpy as jnp, jaxrewrite, numpy as np
    >>> from jaxrewrite.values import GGUF
    >>> block = np.concatenate([np.array([0.5], "float16").view("uint8"), np.arange(32)])
    >>> v = GGUF.from_bytes(np.tile(block.astype("uint8"), (2, 40)), "Q8_0")
    >>> v
    GGUF<f32[2,1280], 2.72 kB>(codes=GGUFBlocks<f32[2,1280], 2.72 kB>, scale=f32[1,1])
    >>> jaxrewrite.transform(lambda v, x: x @ v.T)(v, jnp.ones(1280))
    Array([9920., 9920.], dtype=float32)
    >>> GGUF.formats["Q8_0"].entries, GGUF.formats["Q8_0"].bytes
    (32, 34)
    """

    formats: ClassVar[Mapping[str, Layout]] = LAYOUTS

    codes: Array
    scale: Array

    def __post_init__(self) -> None:
        check_floating("GGUF", "scale", self.scale)
        check_blocks("GGUF", codes=self.codes, scale=self.scale)

    @classmethod
    def from_bytes(cls, data: Any, format: str, dtype: Any = "float32") -> GGUF:
        """The array that the bytes of a tensor in a file stand for.

        Parameters
        ----------
        data
            An array of dtype uint8. Along the last axis are the bytes of the blocks of one row,
            as in ``gguf.GGUFReader(file).tensors[i].data``.
        format
            The name of the format, such as ``"Q4_K"``.
        dtype
            The dtype of the array, floating.

        Raises
        ------
        ValueError
            If the format is not known, the dtypes are not these, or the bytes of a row are not
            those of whole blocks.

        Examples
        --------
        >>> import numpy as np
        >>> from jaxrewrite.values import GGUF
        >>> GGUF.from_bytes(np.zeros((4096, 4096 // 256 * 144), "uint8"), "Q4_K", "bfloat16")
        GGUF<bf16[4096,4096], 9.44 MB>(codes=GGUFBlocks<f32[4096,4096], 9.44 MB>,
                                       scale=bf16[1,1])
        """
        if format not in LAYOUTS:
            raise ValueError(
                f"GGUF: the format {format!r} is not known. Known are {', '.join(LAYOUTS)}."
            )
        size = LAYOUTS[format].bytes
        shape = jnp.shape(data)
        if jnp.result_type(data) != jnp.uint8 or not shape or shape[-1] % size:
            raise ValueError(
                f"GGUF: `data` must be of dtype uint8, with the bytes of blocks of {size} along "
                f"its last axis for {format}; got {jnp.result_type(data)}{list(shape)}."
            )
        blocks = jnp.asarray(data).reshape(*shape[:-1], shape[-1] // size, size)
        codes: Any = GGUFBlocks(blocks, format=format)
        return cls(codes, jnp.ones((1,) * len(shape), dtype))

    def levels(self) -> jax.Array:
        # The product decodes them. A cast to their own dtype would be none.
        return (1 * self.codes).astype(self.scale.dtype)


# A compiler for a CPU decodes in a loop over the axes of what it writes, and does not vectorise
# the loop if these are merged. Entries that fit the processor's cache are written as they are
# decoded. Others are written once only.
_MOST_AT_ONCE = 2**21


class GGUFBlocks(Packed):
    """Numbers of dtype float32, in blocks of bytes, of a format of GGUF.

    Examples
    --------
    >>> import jax.numpy as jnp, numpy as np
    >>> from jaxrewrite.values._weights.gguf import GGUFBlocks
    >>> block = np.concatenate([np.array([0.5], "float16").view("uint8"), np.arange(32)])
    >>> GGUFBlocks(jnp.asarray(block, "uint8")[None], padding=28, format="Q8_0")
    GGUFBlocks([0.  0.5 1.  1.5], padding=28, format='Q8_0', dtype=float32)
    """

    format: str = jaxrewrite.field(static=True, kw_only=True)

    @staticmethod
    def default(primitive: Any, values: Sequence[Any], params: dict[str, Any]) -> Any:
        """Products with a number decode blocks.

        Where anything takes neighbours apart, such as a slice that cuts a block, floats would stay in
        the place of the bytes, so that the policy decides.
        """
        if primitive.name == "mul":
            return on_dense(primitive, values, params)
        return NotImplemented

    @property
    def neighbours(self) -> int:
        return LAYOUTS[self.format].entries

    @property
    def bits(self) -> int:
        return LAYOUTS[self.format].bits

    @property
    def dtype_of_entries(self) -> Any:
        return jnp.float32

    def unpacked(self) -> Any:
        entries = LAYOUTS[self.format].decode(self.bytes)
        if isinstance(entries.size, int) and entries.size <= _MOST_AT_ONCE:
            entries = lax.optimization_barrier(entries)
        groups = entries.reshape(*self.bytes.shape[:-1], self.neighbours)
        return jnp.moveaxis(groups, -1, self.axis)

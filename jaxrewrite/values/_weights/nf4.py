"""4-bit NormalFloat with double quantisation."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .coded import (
    Coded,
    block_sizes,
    blockwise,
    check_blocks,
    checked_weight,
    finest,
    of_blocks,
    spread,
)


# Quantiles of a normal distribution, zero among them: appendix E of the paper.
LEVELS = np.array(
    [
        *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
        *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
        *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634),
        *(0.33791524171829224, 0.44070982933044434, 0.5626170039176941),
        *(0.7229568362236023, 1.0),
    ]
)


class NF4(Coded):
    r"""An array of 4-bit normal floats, the weights of QLoRA [1]_.

    .. math:: w_{ij} = L_{c_{ij}} \, a_{b(i,j)}, \qquad a_b = q_b \, s_{B(b)} + \mu

    with 16 fixed levels :math:`L` between -1 and 1, the quantiles of a normal
    distribution, and the greatest magnitude :math:`a_b` of each block of 64 entries,
    which is itself quantised to 8 bits in blocks of 256 about its mean (double
    quantisation). It takes 4.13 bits an entry.

    It stays what it is where `Quantised` does, and never leaves a dense copy behind.
    In particular the base of an adapter may be an ``NF4``: gradients reach what is
    beside it, and its own dense form is made for each product again.

    Parameters
    ----------
    codes
        Indices of levels, of dtype uint4 (two in a byte, inside of compiled programs), in
        the shape of the array.
    scale_q
        int8: the quantised magnitudes. Each axis of these three is as long as that of
        ``codes`` or divides it, as the scales of `Quantised`.
    scale_scale
        Floating: the scales of ``scale_q``; their dtype is that of the array.
    scale_mean
        Floating: what is added to the scaled ``scale_q``.

    Raises
    ------
    ValueError
        If a dtype is another, or blocks do not make up the whole of an axis.

    References
    ----------
    .. [1] T. Dettmers, A. Pagnoni, A. Holtzman, L. Zettlemoyer (2023), QLoRA: Efficient
       Finetuning of Quantized LLMs, arXiv:2305.14314, section 3 and appendix E.

    Examples
    --------
    >>> import jax.numpy as jnp, jaxrewrite
    >>> from jaxrewrite.values import NF4
    >>> v = NF4.quantise(jnp.linspace(-1, 1, 64 * 4).reshape(64, 4))
    >>> v
    NF4<f32[64,4], 140 B>(codes=u4[64,4], scale_q=i8[1,4], scale_scale=f32[1,1],
                          scale_mean=f32[1,1])
    >>> jaxrewrite.transform(lambda v, x: x @ v)(v, jnp.ones(64))
    Array([...], dtype=float32)
    """

    codes: Array
    scale_q: Array
    scale_scale: Array
    scale_mean: Array

    def __post_init__(self) -> None:
        wanted = {
            "codes": (self.codes, jnp.uint4),
            "scale_q": (self.scale_q, jnp.int8),
            "scale_scale": (self.scale_scale, jnp.floating),
            "scale_mean": (self.scale_mean, jnp.floating),
        }
        for name, (leaf, dtype) in wanted.items():
            if not jnp.issubdtype(jnp.result_type(leaf), dtype):
                raise ValueError(
                    f"NF4: `{name}` must be {dtype.__name__}; got {jnp.result_type(leaf)}."
                )
        check_blocks("NF4", **{name: leaf for name, (leaf, _) in wanted.items()})

    @classmethod
    def quantise(
        cls, w: Any, block: int | Sequence[int | None] = 64, *, scale_block: int = 256
    ) -> NF4:
        """Round a dense array.

        ``jax.vmap(NF4.quantise)`` of the stacked weights of several layers gives each
        layer scales of its own, so that a program may scan over it.

        Parameters
        ----------
        w
            A floating array.
        block
            How many consecutive entries share a magnitude: along the first axis, or a
            tuple with a number per axis, None for all of it.
        scale_block
            How many magnitudes, at most, share a scale.

        Raises
        ------
        ValueError
            If ``w`` has entries that are infinite or not a number, ``block`` doesn't
            divide the shape, or ``scale_block`` is not positive.

        Examples
        --------
        >>> import jax.numpy as jnp
        >>> from jaxrewrite.values import NF4
        >>> NF4.quantise(jnp.ones((1024, 1024)))
        NF4<f32[1024,1024], 541 kB>(codes=u4[1024,1024], scale_q=i8[16,1024],
                                    scale_scale=f32[16,4], scale_mean=f32[1,1])
        """
        w = checked_weight("NF4", w)
        sizes = block_sizes("NF4", w.shape, block)
        if scale_block < 1:
            raise ValueError(f"NF4: `scale_block` must be positive; got {scale_block}.")
        wide = w.astype(jnp.promote_types(w.dtype, jnp.float32))
        magnitude = of_blocks(jnp.max, abs(wide), sizes)
        mean = magnitude.mean(keepdims=True) if magnitude.size else jnp.zeros((1,) * w.ndim)
        scale = of_blocks(
            jnp.max, abs(magnitude - mean), _runs(scale_block, magnitude.shape)
        )
        scale = scale / 127
        scale_q = blockwise(jnp.divide, magnitude - mean, jnp.where(scale == 0, 1, scale))
        unit = blockwise(jnp.divide, wide, jnp.where(magnitude == 0, 1, magnitude))
        between = jnp.asarray((LEVELS[1:] + LEVELS[:-1]) / 2, wide.dtype)
        return cls(
            jnp.searchsorted(between, unit).astype(jnp.uint4),
            jnp.round(scale_q).astype(jnp.int8),
            scale.astype(w.dtype),
            mean.astype(w.dtype),
        )

    def aval(self) -> Any:
        return jax.ShapeDtypeStruct(self.codes.shape, self.scale_scale.dtype)

    def levels(self) -> jax.Array:
        table = jnp.asarray(LEVELS, self.scale_scale.dtype)
        codes = self.codes.astype(jnp.uint8)
        # On a mesh of explicit axes JAX asks how what is gathered is split.
        sharding = jax.typeof(codes).sharding
        is_explicit = jax.sharding.AxisType.Explicit in sharding.mesh.axis_types
        return table.at[codes].get(
            mode="promise_in_bounds", out_sharding=sharding if is_explicit else None
        )

    def scale_of_blocks(self) -> jax.Array:
        parts = (self.scale_q, self.scale_scale, self.scale_mean)
        grid = finest(*(part.shape for part in parts))
        q, scale, mean = (spread(part, grid) for part in parts)
        return q.astype(scale.dtype) * scale + mean

    def map_scales(self, change: Callable[[Any], Any]) -> Self:
        return dataclasses.replace(
            self, scale_scale=change(self.scale_scale), scale_mean=change(self.scale_mean)
        )


def _runs(count: int, shape: Sequence[int]) -> list[int]:
    """Sizes of blocks of at most so many neighbours, the last axis first."""
    sizes = []
    for n in reversed(shape):
        divisors = (d for d in range(min(n, count), 0, -1) if n % d == 0)
        sizes.append(next(divisors, 1))
        count //= sizes[-1]
    return sizes[::-1]

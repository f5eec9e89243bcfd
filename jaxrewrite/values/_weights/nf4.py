"""4-bit NormalFloat with double quantisation."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir
from jaxtyping import Array, ArrayLike

import jaxrewrite
from jaxrewrite.extend import Zeros

from .._base.structured import promoted
from .coded import (
    Coded,
    axes_asked,
    block_sizes,
    check_blocks,
    checked_weight,
    finest,
    of_blocks,
    relative,
    rescaled,
    scale_in,
    spread,
    with_nan,
)
from .packed import packed, packed_as
from .processor import gathers_faster


# The quantiles of a normal distribution, including zero: appendix E of the paper.
LEVELS = np.array(
    [
        *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
        *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
        *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634),
        *(0.33791524171829224, 0.44070982933044434, 0.5626170039176941),
        *(0.7229568362236023, 1.0),
    ]
)
_CODE_OF_ZERO = 7


class NF4(Coded):
    r"""An array of 4-bit normal floats, the weights of QLoRA [1]_.

    .. math:: w_{ij} = L_{c_{ij}} \, a_{b(i,j)}, \qquad a_b = q_b \, s_{B(b)} + \mu

    The 16 fixed levels :math:`L` between -1 and 1 are the quantiles of a normal
    distribution. :math:`a_b` is the greatest magnitude in each block of 64 entries. The
    magnitudes are themselves quantised to 8 bits, in blocks of 256 about their mean (double
    quantisation). Such an array takes 4.13 bits an entry.

    It stays an ``NF4`` where a `Quantised` stays quantised, and leaves no dense copy
    behind. So the weight of a `Lora` may be an ``NF4``: gradients reach the factors, and
    each product makes the dense weight again. A cast to float16 rounds what is kept of the
    magnitudes: it changes entries by up to 4e-6, beside rounding.

    Parameters
    ----------
    codes
        The indices of the levels, of dtype uint4, in the shape of the array. Those that
        `quantise` makes are a value that holds two neighbours in a byte.
    scale_q
        The quantised magnitudes, of dtype int8. The length of each axis divides the length
        of that axis of ``codes``, as for the scales of `Quantised`. The same holds for the
        next two.
    scale_scale
        The scales of ``scale_q``, floating. Their dtype is the dtype of the array.
    scale_mean
        The mean that is added to the scaled ``scale_q``, floating.

    Raises
    ------
    ValueError
        If a dtype is not one of these, or an axis does not consist of whole blocks.

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
    NF4<f32[64,4], 140 B>(codes=Nibbles<u4[64,4], 128 B>, scale_q=i8[1,4],
                          scale_scale=f32[1,1], scale_mean=f32[1,1])
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
        cls,
        w: Any,
        block: int | Sequence[int | None] = 64,
        *,
        scale_block: int = 256,
        stack: int | Sequence[int] = (),
    ) -> NF4:
        """Round a dense array.

        Parameters
        ----------
        w
            A floating array.
        block
            How many consecutive entries share a magnitude. An integer counts along the
            first axis. A tuple has a number per axis, or None for the whole axis.
        scale_block
            How many magnitudes share a scale, at most.
        stack
            The axes of a stack, such as that of layers. Each of its weights has a mean and
            scales of its own, so that `jax.vmap` and `jax.lax.scan` can go over the result.
            ``block`` should be 1 along them.

        Raises
        ------
        ValueError
            If ``w`` is not real floating or has infinite or NaN entries, ``block`` does not
            divide the shape, ``scale_block`` is not positive, or ``stack`` is not of axes of
            ``w``. Under `jax.jit` the entries are not known; with an infinite or NaN one, the
            whole array is NaN, or the whole weight of a stack.

        Examples
        --------
        >>> import jax.numpy as jnp
        >>> from jaxrewrite.values import NF4
        >>> NF4.quantise(jnp.ones((1024, 1024)))
        NF4<f32[1024,1024], 541 kB>(codes=Nibbles<u4[1024,1024], 524 kB>,
                                    scale_q=i8[16,1024], scale_scale=f32[16,4],
                                    scale_mean=f32[1,1])
        """
        w = checked_weight("NF4", w)
        sizes = block_sizes("NF4", w.shape, block)
        if scale_block < 1:
            raise ValueError(f"NF4: `scale_block` must be positive; got {scale_block}.")
        axes = axes_asked("NF4", "stack", w.shape, stack)
        v = _quantised(w, sizes, scale_block, axes)
        return cls(v.codes, v.scale_q, v.scale_scale, v.scale_mean)

    @classmethod
    def from_levels(cls, codes: Any, magnitude: Any) -> NF4:
        """The array of indices and magnitudes that something else has rounded.

        Parameters
        ----------
        codes
            The indices of the levels, integers of any dtype, in the shape of the array.
        magnitude
            The greatest magnitude of each block, floating, in a shape as for the scales of
            `Quantised`. Its dtype is the dtype of the array. The magnitudes are not quantised.

        Raises
        ------
        ValueError
            As for `NF4`; or if ``codes`` are not integers.

        Examples
        --------
        >>> import jax.numpy as jnp
        >>> from jaxrewrite.values import NF4
        >>> NF4.from_levels(jnp.zeros((64, 128), "uint8"), jnp.ones((64, 2)))
        NF4<f32[64,128], 4.61 kB>(codes=Nibbles<u4[64,128], 4.1 kB>, scale_q=i8[1,1],
                                  scale_scale=f32[64,2], scale_mean=f32[1,1])
        """
        if not jnp.issubdtype(codes.dtype, jnp.integer):
            raise ValueError(f"NF4: `codes` must be of integers; got {codes.dtype}.")
        ones = (1,) * jnp.ndim(codes)
        whole, mean = jnp.ones(ones, jnp.int8), jnp.zeros(ones, magnitude.dtype)
        return cls(packed_as(codes, jnp.uint4, 4), whole, magnitude, mean)

    def aval(self) -> Any:
        return jax.ShapeDtypeStruct(self.codes.shape, self.scale_scale.dtype)

    def levels(self) -> jax.Array:
        dtype = self.scale_scale.dtype
        if self.codes.dtype == jnp.uint8:
            # They are of a part of an array, which a loop decodes.
            return chosen_level_p.bind(self.codes, dtype=dtype)
        codes = self.codes.astype(jnp.uint8)
        # On a mesh with explicit axes JAX requires the sharding of a gather's result.
        sharding = jax.typeof(codes).sharding
        is_explicit = jax.sharding.AxisType.Explicit in sharding.mesh.axis_types
        return (
            jnp.asarray(LEVELS, dtype)
            .at[codes]
            .get(mode="promise_in_bounds", out_sharding=sharding if is_explicit else None)
        )

    def scale_of_blocks(self) -> jax.Array:
        parts = (self.scale_q, self.scale_scale, self.scale_mean)
        grid = finest(*(part.shape for part in parts))
        q, scale, mean = (spread(part, grid) for part in parts)
        return q.astype(scale.dtype) * scale + mean

    def join(self, other: Any) -> Any:
        """Zeros have the level zero. The least level times zero would be a negative zero."""
        if not isinstance(other, Zeros):
            return super().join(other)
        zeros = jax.tree.map(jnp.zeros_like, self)
        codes = jnp.full_like(self.codes, _CODE_OF_ZERO)
        return self, dataclasses.replace(zeros, codes=codes)

    def map_scales(self, change: Callable[[Any], Any]) -> Self:
        return dataclasses.replace(
            self, scale_scale=change(self.scale_scale), scale_mean=change(self.scale_mean)
        )


# Compiled as a whole: one operation after the other takes eight times as long, and more memory.
# A user's subclass is made outside, where its checks may look at the numbers.
@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def _quantised(
    w: Any, sizes: tuple[int, ...], scale_block: int, stack: tuple[int, ...]
) -> NF4:
    wide = w.astype(promoted(w.dtype, jnp.float32))
    magnitude = with_nan(of_blocks(jnp.max, abs(wide), sizes), wide, sizes)
    # The sum of the magnitudes may be larger than the largest number.
    of_weight = tuple(i for i in range(w.ndim) if i not in stack)
    greatest = magnitude.max(of_weight, initial=0, keepdims=True)
    parts = relative(magnitude, greatest)
    mean = parts.mean(of_weight, keepdims=True) if parts.size else jnp.zeros_like(greatest)
    # The integers make up for the rounding of what multiplies them and is added to them.
    mean = (greatest * jnp.minimum(mean, 1)).astype(w.dtype)
    deviation = magnitude - mean.astype(wide.dtype)
    runs = _runs(scale_block, magnitude.shape, stack)
    most = of_blocks(jnp.max, abs(deviation), runs)
    scale = scale_in(w.dtype, most * (1 / 127), 127)
    scale_q = jnp.round(relative(deviation, scale.astype(wide.dtype)))
    unit = relative(wide, magnitude)
    # A search would be a gather, which fails on a mesh with explicit axes.
    between = ((LEVELS[1:] + LEVELS[:-1]) / 2).astype(wide.dtype)
    level = functools.reduce(jnp.add, [(unit > x).astype(jnp.uint8) for x in between])
    codes = packed(level.astype(jnp.uint4), bits=4)
    v = NF4(codes, scale_q.astype(jnp.int8), scale, mean)
    # The next smaller integers, where these stand for more than the largest number, in one
    # program or in another one that rounds otherwise.
    limits = jnp.finfo(w.dtype)
    beyond = v.scale_of_blocks() > float(limits.max) * (1 - float(limits.eps))
    return dataclasses.replace(v, scale_q=v.scale_q - beyond.astype(jnp.int8))


@jaxrewrite.register("div")
def _(v: NF4, c: ArrayLike, **params) -> Any:
    """Divide both parts of the magnitudes.

    Divided by zero, they would be infinite with both signs. So the first part stays as it
    is there, and the mean decides. What ``c`` is decides, and not the quotient, because the
    scales may be tangents, which only linear functions may take.
    """
    quotient = rescaled(v, jnp.divide, c, **params)
    if quotient is NotImplemented:
        return NotImplemented
    divisor = jnp.where(jnp.abs(c) < jnp.finfo(v.dtype).tiny, 1, c)
    finite = rescaled(v, jnp.divide, divisor, **params)
    return dataclasses.replace(quotient, scale_scale=finite.scale_scale)


# A level of a part of an array, which a loop decodes. JAX would split the choices of a loop in two for
# its derivative, and keep their constants in full size.
chosen_level_p = Primitive("chosen_level")


def _chosen(codes: jax.Array, *, dtype: Any) -> jax.Array:
    """The levels: looked up, or by a choice for each bit of their codes."""
    if gathers_faster():
        return jnp.asarray(LEVELS, dtype).at[codes].get(mode="promise_in_bounds")
    some: list[Any] = list(LEVELS.astype(dtype))
    for bit in range(4):
        is_set = codes & jnp.uint8(2**bit) != 0
        pairs = zip(some[::2], some[1::2], strict=True)
        some = [jnp.where(is_set, high, low) for low, high in pairs]
    return some[0]


chosen_level_p.def_impl(jax.jit(_chosen, static_argnames="dtype"))
chosen_level_p.def_abstract_eval(lambda codes, *, dtype: codes.update(dtype=dtype))
batching.defvectorized(chosen_level_p)
mlir.register_lowering(chosen_level_p, mlir.lower_fun(_chosen, multiple_results=False))


def _runs(count: int, shape: Sequence[int], stack: Sequence[int]) -> list[int]:
    """Sizes of blocks of at most ``count`` neighbours, which fill the last axis first.

    No block goes along an axis of a stack.
    """
    sizes = []
    for i, n in reversed([*enumerate(shape)]):
        longest = 1 if i in stack else min(n, count)
        divisors = (d for d in range(longest, 0, -1) if n % d == 0)
        sizes.append(next(divisors, 1))
        count //= sizes[-1]
    return sizes[::-1]

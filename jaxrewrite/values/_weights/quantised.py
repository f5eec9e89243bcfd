"""Arrays of integers of two to eight bits with a scale for each block."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
from jaxtyping import Array

import jaxrewrite

from .._base.structured import promoted
from .coded import (
    Coded,
    blockwise,
    check_blocks,
    check_floating,
    checked_weight,
    finest,
    of_blocks,
    relative,
    scale_in,
    sizes_of,
    spread,
    with_nan,
)
from .packed import Packed, most_of, packed, packed_as


# The dtypes of the integers, by their bits. Those of other widths are int8: XLA ends the process
# where it concatenates int2 on a CPU.
DTYPES = {4: jnp.int4, 8: jnp.int8}


class Quantised(Coded):
    r"""An array of small integers, with scales that blocks of entries share.

    .. math:: w_{ij} = (q_{ij} - z_{b(i,j)}) \, s_{b(i,j)}

    where :math:`b(i,j)` is the block of the entry. Such an array takes about a quarter (8
    bits) to a sixteenth (2 bits) of the bytes in float32. A product with it leaves no
    floating-point copy behind, because the backward pass makes the copy again. On a CPU, a
    product with a large weight makes one block of it dense at a time, or none if it is a
    product of integers, which needs 8 bits, no ``zero``, and scales along the summed axes
    alone or along the others alone. It stays quantised when it is transposed, reshaped, broadcast, reversed, sliced, concatenated
    with its kind, negated, or cast to another floating dtype of 16 bits or more. It also stays quantised when
    it is multiplied or divided by a number, or by one number per index of an axis, unless each
    entry would then have a scale of its own. Matrices gathered from a stack are quantised, along
    whatever axes in front of theirs. Rows gathered from a table are dense, and so are those that
    each table of a stack gives for indices of its own. Everything else makes it dense.

    Parameters
    ----------
    q
        The integers, of dtype int8 or int4, in the shape of the array. Those that `quantise`
        makes of less than 8 bits are a value that holds them in bytes: two neighbours of 4
        bits in one, and eight neighbours of 2, 3, 5, 6 or 7 bits in as many bytes. A move that
        takes these neighbours apart unpacks them, to int4 or int8.
    scale
        The scales, floating. Their dtype is the dtype of the array. They have as many axes
        as ``q``, and the length of each axis divides the length of that axis of ``q``. If
        ``q`` has n entries along an axis and ``scale`` has k, a block has n/k entries
        there. So ``(1, 1)`` is one scale per tensor, ``(1, m)`` is one per column, and
        ``(n // 64, m)`` is one per column and 64 rows.
    zero
        The integers that stand for zero, integer or floating, in a shape as for ``scale``.
        None means a quantisation that is symmetric about zero.
    activations
        None, ``"dynamic"`` or ``"static"``. If not None, products and convolutions with
        floating arrays round these as well, to 8 bits; see the notes. Where a program joins
        weights that differ in this, the whole does not round if one of them does not, and
        else is dynamic.
    activation_range
        The largest magnitude of these arrays if ``activations="static"``, in a shape as for
        ``scale``. `calibrate` finds it. Larger entries are cut off. If it has a length of
        more than one along some axis, it is for products that sum no other axes than such
        and those of length one, and do not only keep such; others do not round. If dynamic,
        it is the largest magnitude of all that is summed: of each row of ``x`` in ``x @ v``,
        and of each image in a convolution.

    Raises
    ------
    ValueError
        If a dtype is not one of these, an axis does not consist of whole blocks, or
        ``activations`` is not one of these or lacks its range.

    Notes
    -----
    Gradients with respect to ``scale``, and to a floating ``zero``, are exact. The gradient
    with respect to ``q`` is float0, as for all integers in JAX. If all entries that a
    product sums share their scale, the product multiplies the integers and scales the
    result. Otherwise it multiplies the scaled integers. A weight is large from ``2**22``
    entries on; for products with at most four rows, as when a model generates text one token
    at a time, from ``2**19`` on; and for up to 32 rows, with four bits, from ``2**21`` on. With
    a JAX older than 0.11.1, which makes the dense weights of all layers first, it is large from
    ``2**19`` on. If it may be split over several devices, it becomes dense as a whole, since a
    loop would gather it at each step. The formula and the choice of scales are those of [1]_.

    A cast rounds the scales, not the entries. Scales below 6e-5 are subnormal in float16, and
    lose up to 3e-8 each, which an integer multiplies: up to 4e-6 an entry of 8 bits, or 8e-6
    with ``zero``. That is more than the error of the quantisation where the largest entries
    are below 0.001, or 0.004 with ``zero``. `quantise` of an array that is float16 already
    fits the integers to the rounded scales, so that its bound holds.

    With ``activations``, an entry :math:`x` becomes :math:`s_x \, \mathrm{round}(x / s_x)`
    with :math:`s_x = \max |x| / 127`, so that a product has an error of at most

    .. math:: |\hat y_{ij} - y_{ij}| \le \tfrac{1}{2} s_{x,i} \sum_k |w_{kj}|

    beside that of the weight. It is computed in 8-bit integers if all that is summed shares
    a scale, there is no ``zero``, the sum of less than 131,000 products fits 32 bits, and the
    weight has not four bits for less than 16 rows; else in floating point, with the rounded
    array. If what is summed has several scales, a warning says so, since other scales would
    give a product of integers. Gradients with respect to the array pass straight through the rounding, and are zero
    for entries that were cut off. Those with respect to the scales are exact. This holds for
    ``jax.grad(transform(f))``. In ``transform(jax.grad(f))`` cotangents are multiplied with
    the weight, and are rounded as any array is if dynamic, and not with a range that
    `calibrate` found. In ``transform`` of a forward derivative, tangents are rounded as what
    they are tangents of: with a static range, those that are much smaller are lost. Products
    with other values are not rounded.

    .. [1] B. Jacob et al. (2018), Quantization and Training of Neural Networks for
       Efficient Integer-Arithmetic-Only Inference, arXiv:1712.05877, equation 1.

    Examples
    --------
    >>> import jax.numpy as jnp, jaxrewrite
    >>> from jaxrewrite.values import Quantised
    >>> v = Quantised(jnp.array([[1, -2], [3, 4]], jnp.int8), jnp.array([[0.5, 0.25]]))
    >>> jaxrewrite.materialise(v)
    Array([[ 0.5, -0.5],
           [ 1.5,  1. ]], dtype=float32)
    >>> jaxrewrite.transform(lambda v, x: x @ (2 * v.T))(v, jnp.ones(2))
    Array([0., 5.], dtype=float32)
    """

    few_rows = 3

    q: Array
    scale: Array
    zero: Array | None = None
    activations: str | None = jaxrewrite.field(static=True, default=None, repr=False)
    activation_range: Array | None = jaxrewrite.field(default=None, repr=False)

    def __post_init__(self) -> None:
        leaves = {"q": self.q, "scale": self.scale, "zero": self.zero}
        leaves["activation_range"] = self.activation_range
        present = {name: leaf for name, leaf in leaves.items() if leaf is not None}
        if self.q.dtype not in DTYPES.values():
            raise ValueError(f"Quantised: `q` must be int8 or int4; got {self.q.dtype}.")
        check_floating("Quantised", "scale", self.scale)
        check_blocks("Quantised", **present)
        if self.activations not in (None, "dynamic", "static"):
            raise ValueError(
                'Quantised: `activations` must be None, "dynamic" or "static"; got '
                f"{self.activations!r}."
            )
        if self.activations == "static" and self.activation_range is None:
            raise ValueError(
                "Quantised: static activations need their range. jaxrewrite.values.calibrate "
                "finds it from data."
            )

    @classmethod
    def quantise(
        cls,
        w: Any,
        bits: int = 8,
        *,
        axis: int | Sequence[int] | None = None,
        block: int | Sequence[int | None] | None = None,
        symmetric: bool = True,
        activations: str | None = None,
    ) -> Quantised:
        r"""Round a dense array.

        With :math:`b` bits, the scale of a block is :math:`s = \max |w| / (2^{b-1} - 1)`.
        If not symmetric, it is :math:`s = (\max w - \min w) / (2^b - 1)`, where the range
        is extended to include zero, and zero is represented exactly.
        Rounding to the nearest has an error of

        .. math:: |\hat w - w| \le s / 2

        and of the roundings of the dtype of ``w``, in the quotient and in the product. The
        scale is rounded up to a number of that dtype. In two bits, the symmetric integers
        are -1, 0 and 1. Where an integer would stand for more than the largest number of the
        dtype, the scale is smaller, and the error of an array that is not symmetric is up to
        :math:`s`.

        ``jax.vmap(Quantised.quantise)`` of the stacked weights of several layers gives
        each layer its own scales, so that a program can scan over the result.

        Parameters
        ----------
        w
            A floating array.
        bits
            2 to 8.
        axis
            An axis or several axes. Each index along them has its own scale: ``axis=-1``
            of a matrix gives one scale per column. By default there is one scale.
        block
            How many consecutive entries share a scale. An integer (``block=64``) counts
            along the first axis, and each index of the other axes has its own scales. A
            tuple (``block=(1, 64)``) has a number per axis, or None for the whole axis.
            Give ``axis`` or ``block``, not both.
        symmetric
            Whether zero is in the middle of the range.
        activations
            None or ``"dynamic"``; see `Quantised`.

        Raises
        ------
        ValueError
            If ``w`` is not real floating or has infinite or NaN entries, ``bits`` is not 2
            to 8, ``axis`` is not an axis of ``w``, ``block`` does not divide the shape, or
            both ``axis`` and ``block`` are given. Under `jax.jit` the entries are not known;
            a block with infinite or NaN entries is then not finite either.

        Examples
        --------
        >>> import jax.numpy as jnp
        >>> from jaxrewrite.values import Quantised
        >>> Quantised.quantise(jnp.ones((256, 32)), bits=4, block=64)
        Quantised<f32[256,32], 4.61 kB>(q=Nibbles<i4[256,32], 4.1 kB>, scale=f32[4,32],
                                        zero=None)
        """
        w = checked_weight("Quantised", w)
        check_bits("Quantised", bits)
        sizes = sizes_of("Quantised", w.shape, axis, block)
        q, scale, zero = _quantised(w, bits, sizes, bool(symmetric))
        return cls(q, scale, zero, activations)

    @classmethod
    def from_integers(cls, q: Any, scale: Any, zero: Any = None, *, bits: int) -> Quantised:
        """The array of integers that something else has rounded, in as few bytes as they need.

        Parameters
        ----------
        q
            Integers of any dtype, of which each fits so many bits with its sign.
        scale, zero
            As in `Quantised`.
        bits
            2 to 8.

        Raises
        ------
        ValueError
            If ``bits`` is not 2 to 8, ``q`` is not of integers, or as for `Quantised`.

        Examples
        --------
        >>> import jax.numpy as jnp
        >>> from jaxrewrite.values import Quantised
        >>> q = jnp.arange(-4, 4).repeat(256).reshape(64, 32)
        >>> Quantised.from_integers(q, jnp.ones((1, 32)), bits=3)
        Quantised<f32[64,32], 896 B>(q=Planes<i8[64,32], 768 B>, scale=f32[1,32], zero=None)
        """
        check_bits("Quantised", bits)
        if not jnp.issubdtype(q.dtype, jnp.integer):
            raise ValueError(f"Quantised: `q` must be of integers; got {q.dtype}.")
        return cls(packed_as(q, DTYPES.get(bits, jnp.int8), bits), scale, zero)

    @property
    def bits(self) -> int:
        """How many bits an entry takes."""
        return self.q.bits if isinstance(self.q, Packed) else jnp.iinfo(self.q.dtype).bits

    @property
    def sees_operands(self) -> bool:
        return self.activations is not None

    def _summary(self) -> str:
        text = super()._summary()
        if self.activations is None:
            return text
        return f"{text[:-1]}, activations={self.activations!r})"

    def picture(self) -> Any:
        activations = (
            "" if self.activations is None else f", {self.activations} activations"
        )
        return super().picture(), activations

    def levels(self) -> jax.Array:
        q = self.q.astype(self.scale.dtype)
        if self.zero is None:
            return q
        return blockwise(jnp.subtract, q, self.zero.astype(q.dtype))

    def integers(self) -> jax.Array | None:
        is_stored = self.zero is None and self.q.dtype == jnp.int8
        return self.q if is_stored else None

    def encoded(self, x: jax.Array, sizes: Sequence[int]) -> Any:
        if self.activation_range is not None:
            return NotImplemented  # It is of a weight.
        wide = promoted(x.dtype, jnp.float32)
        top = jaxrewrite.transform(most_of)(self.q).astype(wide)
        q, scale, zero = _rounded(x, top, self.q.dtype, sizes, self.zero is None)
        if self.zero is not None:
            zero = zero.astype(self.zero.dtype)
        return dataclasses.replace(self, q=q, scale=scale, zero=zero)

    def among(self, values: Sequence[Any]) -> Self:
        """This array, rounding arrays as the others do.

        If they do so in different ways, each rounds them by their own largest magnitude, or none
        does if one does not.
        """
        kinds = {getattr(v, "activations", None) for v in values}
        if len(kinds) == 1:
            return self
        kind = None if None in kinds else "dynamic"
        return dataclasses.replace(self, activations=kind, activation_range=None)


@jaxrewrite.register("concatenate")
def _(*vs: Quantised, dimension, **params) -> Any:
    """One range for all parts, if each has one along this axis.

    A range that differs along an axis is for products that sum it. Weights of length one may be
    those of a stack, where each has its own.
    """
    ranges: list[Any] = [v.activation_range for v in vs]
    if any(most is None or most.shape[dimension] > 1 for most in ranges):
        return NotImplemented
    grid = finest(*(most.shape for most in ranges))
    is_stack = all(v.shape[dimension] == 1 for v in vs)
    if is_stack and math.prod(grid) < vs[0].size:
        return NotImplemented
    rest = [dataclasses.replace(v, activations=None, activation_range=None) for v in vs]
    joined = jaxrewrite.bind("concatenate", *rest, dimension=dimension)
    if not isinstance(joined, Quantised):
        return joined
    most = functools.reduce(jnp.maximum, (spread(most, grid) for most in ranges))
    return dataclasses.replace(joined, activations="static", activation_range=most)


def check_bits(cls: str, bits: int) -> None:
    """Raise `ValueError` unless integers may have so many bits."""
    if bits not in range(2, 9):
        raise ValueError(f"{cls}: `bits` must be 2 to 8; got {bits}.")


# Compiled as a whole: one operation after the other takes 6 to 11 times as long, and more memory.
# A user's subclass is made outside, where its checks may look at the numbers.
@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def _quantised(
    w: Any, bits: int, sizes: tuple[int, ...], symmetric: bool
) -> tuple[Any, Any, Any]:
    q, scale, zero = rounded(w, bits, sizes, symmetric)
    return packed(q, bits), scale, zero


def rounded(
    w: Any, bits: int, sizes: Sequence[int], symmetric: bool
) -> tuple[Any, Any, Any]:
    """The integers, scales and zeros of an array, for blocks of these sizes."""
    dtype = DTYPES.get(bits, jnp.int8)
    return _rounded(w, 2 ** (bits - 1) - 1, dtype, sizes, symmetric)


def _rounded(
    w: Any, top: Any, dtype: Any, sizes: Sequence[int], symmetric: bool
) -> tuple[Any, Any, Any]:
    """The same, with the largest integer, which may be an array, and the dtype of the integers."""
    # In a wide dtype the quotient is rounded only once, to the integer. A division by a constant
    # would be a product with its inverse in some programs, and another number in others.
    wide = w.astype(promoted(w.dtype, jnp.float32))
    low, high = (of_blocks(extreme, wide, sizes) for extreme in (jnp.min, jnp.max))
    if symmetric:
        scale = scale_in(w.dtype, jnp.maximum(high, -low) * (1 / top), top)
        least, zero = -top, None
    else:
        # The range may be larger than the largest number, so that half of it is taken, which
        # rounds nothing.
        step = (high / 2 - low / 2) * (2 / (2 * top + 1))
        scale, least = scale_in(w.dtype, step, 1), -top - 1
        zero = jnp.clip(
            jnp.round(least - relative(low, scale.astype(wide.dtype))), least, top
        )
        # The outermost levels may be half a step beyond the entries.
        scale = scale_in(
            w.dtype, scale.astype(wide.dtype), jnp.maximum(zero - least, top - zero)
        )
    scale = with_nan(scale, wide, sizes)
    q = relative(wide, scale.astype(wide.dtype))
    if zero is not None:
        q = blockwise(jnp.add, q, zero)
        zero = zero.astype(dtype)
    return jnp.clip(jnp.round(q), least, top).astype(dtype), scale, zero

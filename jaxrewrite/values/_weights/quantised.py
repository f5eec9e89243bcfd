"""Arrays of 8-bit or 4-bit integers with a scale for each block."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
from jaxtyping import Array

from .coded import Coded, block_sizes, blockwise, check_blocks, checked_weight, of_blocks


class Quantised(Coded):
    r"""An array of small integers, with scales that blocks of entries share.

    .. math:: w_{ij} = (q_{ij} - z_{b(i,j)}) \, s_{b(i,j)}

    where :math:`b(i,j)` is the block that an entry is in. Such an array takes about an
    eighth (4 bits) or a quarter (8 bits) of the bytes in float32. Products with it
    never leave a floating-point copy of it behind: the backward pass makes it
    again. It stays quantised when it is transposed, reshaped, broadcast,
    reversed, sliced, concatenated with its kind, negated, cast to another floating
    dtype, or multiplied or divided by a number or by one number per index of an axis; so
    does what is gathered from a stack of matrices. Rows gathered from a table are dense.
    Everything else makes it dense.

    Parameters
    ----------
    q
        The integers, of dtype int8 or int4 (two in a byte, inside of compiled
        programs), in the shape of the array.
    scale
        The scales, floating; their dtype is that of the array. As many axes as ``q``;
        each is as long as that of ``q``, or divides it: along an axis of length n, k
        scales are of blocks of n/k entries each. So ``(1, 1)`` is one scale per tensor,
        ``(1, m)`` one per column, ``(n // 64, m)`` one per 64 rows and column.
    zero
        The integers that stand for zero, likewise; integer or floating. None for a
        quantisation that is symmetric about zero.

    Raises
    ------
    ValueError
        If a dtype is another, or blocks do not make up the whole of an axis.

    Notes
    -----
    Gradients with respect to ``scale``, and a floating ``zero``, are exact; that of ``q``
    is float0, as of all integers in JAX. Where all entries that are summed in a product
    share their scale, the integers are multiplied and the result is scaled; else the
    scaled integers are. The formula and the choice of scales are those of [1]_.

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

    q: Array
    scale: Array
    zero: Array | None = None

    def __post_init__(self) -> None:
        leaves = {"q": self.q, "scale": self.scale, "zero": self.zero}
        present = {name: leaf for name, leaf in leaves.items() if leaf is not None}
        if jnp.result_type(self.q) not in (jnp.int8, jnp.int4):
            raise ValueError(
                f"Quantised: `q` must be int8 or int4; got {jnp.result_type(self.q)}."
            )
        if not jnp.issubdtype(jnp.result_type(self.scale), jnp.floating):
            raise ValueError(
                "Quantised: `scale` must be real floating; got "
                f"{jnp.result_type(self.scale)}."
            )
        check_blocks("Quantised", **present)

    @classmethod
    def quantise(
        cls,
        w: Any,
        bits: int = 8,
        *,
        axis: int | Sequence[int] | None = None,
        block: int | Sequence[int | None] | None = None,
        symmetric: bool = True,
    ) -> Quantised:
        r"""Round a dense array.

        With :math:`b` bits, :math:`s = \max |w| / (2^{b-1} - 1)` over each block, or,
        if not symmetric, :math:`s = (\max w - \min w) / (2^b - 1)` where the range from
        the least to the greatest is made to include zero, which is represented exactly.
        ``jax.vmap(Quantised.quantise)`` of the stacked weights of several layers gives
        each layer scales of its own, so that a program may scan over it.

        Parameters
        ----------
        w
            A floating array.
        bits
            8 or 4.
        axis
            An axis, or several, along which each index has a scale of its own
            (``axis=-1`` of a matrix: one per column). By default there is one scale.
        block
            How many consecutive entries share a scale: along the first axis, with one
            for each index of the others (``block=64``); or a tuple with a number per
            axis, None for all of it (``block=(1, 64)``). Not together with ``axis``.
        symmetric
            Whether zero is in the middle of the range.

        Raises
        ------
        ValueError
            If ``w`` has entries that are infinite or not a number, ``bits`` is not 4 or
            8, or ``block`` doesn't divide the shape.

        Examples
        --------
        >>> import jax.numpy as jnp
        >>> from jaxrewrite.values import Quantised
        >>> Quantised.quantise(jnp.ones((256, 32)), bits=4, block=64)
        Quantised<f32[256,32], 4.61 kB>(q=i4[256,32], scale=f32[4,32], zero=None)
        """
        w = checked_weight("Quantised", w)
        if bits not in (4, 8):
            raise ValueError(f"Quantised: `bits` must be 4 or 8; got {bits}.")
        sizes = _sizes(w.shape, axis, block)
        # Wide enough to round once only.
        wide = w.astype(jnp.promote_types(w.dtype, jnp.float32))
        low, high = (of_blocks(extreme, wide, sizes) for extreme in (jnp.min, jnp.max))
        top = 2 ** (bits - 1) - 1
        dtype = jnp.int8 if bits == 8 else jnp.int4
        if symmetric:
            scale = _nonzero(jnp.maximum(high, -low) / top).astype(w.dtype)
            least, zero = -top, None
        else:
            scale = _nonzero((high - low) / (2 * top + 1)).astype(w.dtype)
            least = -top - 1
            zero = jnp.clip(jnp.round(least - low / scale), least, top)
        q = blockwise(jnp.divide, wide, scale.astype(wide.dtype))
        if zero is not None:
            q = blockwise(jnp.add, q, zero)
            zero = zero.astype(dtype)
        return cls(jnp.clip(jnp.round(q), least, top).astype(dtype), scale, zero)

    @property
    def bits(self) -> int:
        """How many bits an entry takes."""
        return jnp.iinfo(self.q.dtype).bits

    def aval(self) -> Any:
        return jax.ShapeDtypeStruct(self.q.shape, self.scale.dtype)

    def levels(self) -> jax.Array:
        q = self.q.astype(self.scale.dtype)
        if self.zero is None:
            return q
        return blockwise(jnp.subtract, q, self.zero.astype(q.dtype))

    def scale_of_blocks(self) -> jax.Array:
        return self.scale

    def map_scales(self, change: Callable[[Any], Any]) -> Self:
        return dataclasses.replace(self, scale=change(self.scale))


def _sizes(shape: Sequence[int], axis: Any, block: Any) -> tuple[int, ...]:
    """The size of a block along each axis."""
    if block is not None:
        if axis is not None:
            raise ValueError("Quantised: one of `axis` and `block` can be given, not both.")
        return block_sizes("Quantised", shape, block)
    axes = () if axis is None else (axis,) if isinstance(axis, int) else tuple(axis)
    if any(not -len(shape) <= a < len(shape) for a in axes):
        raise ValueError(f"Quantised: `axis` {axis} is none of an array of shape {shape}.")
    own = {a % len(shape) for a in axes}
    return tuple(1 if a in own else n for a, n in enumerate(shape))


def _nonzero(scale: Any) -> Any:
    """Scales to divide by: blocks of zeros have any."""
    return jnp.where(scale == 0, 1, scale)

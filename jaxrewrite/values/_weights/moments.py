"""Moments of an optimiser in 8 bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

import jaxrewrite

from .._base.random_keys import check_key
from .._base.structured import Structured, promoted
from .coded import blockwise, is_floating, of_blocks, relative, sizes_along, with_nan


# The largest code and the power of it that a number is, in blocks with signs and in those without.
_SIGNED, _UNSIGNED = (127, 2), (255, 4)


class Moment(Structured):
    r"""A moment in codes of 8 bits, with the largest magnitude of each block.

    With a magnitude :math:`s` a code :math:`c` from -127 to 127 stands for
    :math:`\pm s (c / 127)^2`. A block without negative numbers needs no signs, and its numbers are of
    more magnitudes: codes from 0 to 255 stand for :math:`s (c / 255)^4`, and ``scale`` is :math:`-s`.
    """

    codes: Array  # uint8, with the bits of int8 where there are signs
    scale: Array
    of_dtype: str = jaxrewrite.field(static=True)

    axes = {"codes": "...", "scale": ".../block"}

    def aval(self) -> Any:
        return jax.core.ShapedArray(jnp.shape(self.codes), jnp.dtype(self.of_dtype))

    def materialise(self) -> Any:
        wide = self.scale.dtype
        scale = _of_entries(self.scale, self.codes)
        signed = lax.bitcast_convert_type(self.codes, jnp.int8).astype(wide)
        with_signs = jnp.sign(signed) * _part(signed, *_SIGNED) * scale
        without = _part(self.codes.astype(wide), *_UNSIGNED) * -scale
        return jnp.where(scale < 0, without, with_signs).astype(self.of_dtype)


def _of_entries(shared: Any, x: Any) -> Any:
    """What the blocks of an array share, for each of its entries."""
    return blockwise(lambda x, shared: jnp.broadcast_to(shared, x.shape), x, shared)


def _part(code: Any, top: int, power: int) -> Any:
    """What part of the largest magnitude a code stands for."""
    return (code / top) ** power


class QuantisedState(NamedTuple):
    """The state of an optimiser, with moments in 8 bits, and the key of the next roundings."""

    inner: Any
    key: Any


def quantised_moments(
    optimiser: Any, key: Any, *, block: int = 64, least: int = 4096
) -> Any:
    r"""Keep the moments of an optimiser of Optax in 8 bits.

    The state of ``optimiser`` is that of its own ``init``, in which the floating arrays of at
    least ``least`` entries are codes of a byte, with a scale for each block. Its own ``update`` sees
    them dense, and what it returns is rounded. Everything else in the state, such as counts and
    small arrays, stays as it is. So it works for ``optax.adamw``, ``optax.lion``,
    ``optax.chain`` of such, and with `train_only`.

    The numbers are closer to each other near zero: they are squares of integers, times the scale.
    A block without negative numbers, such as one of a second moment, has more of them, fourth
    powers, and keeps positive ones positive, since an optimiser divides by their root.

    A number that changes by less than half a step would never move if it were rounded to the
    nearest code. It is rounded at random, up with the probability with which the mean is the number
    itself [1]_. So are all in a block without negative numbers, since second moments remember
    errors for long. Others are rounded to the nearest, which errs less.

    The key is part of the state. So a run that is stopped, stored by `jaxrewrite.checkpoints.save`
    and resumed gives the same bits.

    Parameters
    ----------
    optimiser
        An `optax.GradientTransformation`, such as ``optax.adamw(1e-3)``, or anything with
        ``init``, ``update`` and ``_replace``.
    key
        A key of `jax.random`, for the roundings.
    block
        How many entries share a scale, at most. Blocks are runs of the last axes.
    least
        Arrays with fewer entries stay as they are.

    Returns
    -------
    Any
        An optimiser of the same type.

    Raises
    ------
    TypeError
        If ``key`` is no key of `jax.random`.
    ValueError
        If ``block`` is not positive.

    References
    ----------
    .. [1] S. Gupta et al. (2015), Deep Learning with Limited Numerical Precision,
       arXiv:1502.02551, section 3.1. For optimisers with moments in 8 bits, in blocks, see T.
       Dettmers et al. (2022), 8-bit Optimizers via Block-wise Quantization, arXiv:2110.02861.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, optax
    >>> from jaxrewrite.values import nbytes, quantised_moments
    >>> params = {"kernel": jnp.ones((256, 64)), "bias": jnp.zeros(64)}
    >>> optimiser = quantised_moments(optax.adam(1e-3), jax.random.key(0))
    >>> state = optimiser.init(params)
    >>> state.inner[0].mu["kernel"]
    Moment<f32[256,64], 17.4 kB>(codes=u8[256,64], scale=f32[256,1], of_dtype='float32')
    >>> updates, state = optimiser.update(params, state, params)
    >>> updates["kernel"][0, :2]
    Array([-0.001, -0.001], dtype=float32)
    """
    check_key("quantised_moments", key)
    if block < 1:
        raise ValueError(f"quantised_moments: block is {block}; it must be at least 1.")

    def init(params: Any) -> QuantisedState:
        def moment(x: Any) -> Any:
            is_quantised = is_floating(x) and x.size >= max(least, 1)
            return _moment(x, block) if is_quantised else x

        return QuantisedState(jax.tree.map(moment, optimiser.init(params)), key)

    def update(
        updates: Any, state: QuantisedState, params: Any = None, **extra: Any
    ) -> Any:
        dense = jax.tree.map(_dense, state.inner, is_leaf=_is_moment)
        updates, new = optimiser.update(updates, dense, params, **extra)
        following, own = jax.random.split(state.key)
        flat: tuple[list[Any], Any] = jax.tree.flatten(state.inner, is_leaf=_is_moment)
        old, treedef = flat
        pairs = enumerate(zip(old, treedef.flatten_up_to(new), strict=True))
        leaves = [
            _moment(x, block, v.materialise(), jax.random.fold_in(own, i))
            if _is_moment(v)
            else x
            for i, (v, x) in pairs
        ]
        return updates, QuantisedState(treedef.unflatten(leaves), following)

    return optimiser._replace(init=init, update=update)


def _is_moment(x: Any) -> bool:
    return isinstance(x, Moment)


def _dense(x: Any) -> Any:
    return x.materialise() if _is_moment(x) else x


def _sizes(shape: Sequence[int], block: int) -> tuple[int, ...]:
    """The sizes of blocks that divide the last axes and have so many entries at most."""
    divisor = lambda block, n: max(k for k in range(1, min(n, block) + 1) if n % k == 0)
    return sizes_along(shape, block, divisor)


def _moment(x: Any, block: int, before: Any = None, key: Any = None) -> Moment:
    """An array in 8 bits, to the nearest, or by a key as `quantised_moments` says."""
    sizes = _sizes(x.shape, block)
    wide = x.astype(promoted(x.dtype, jnp.float32))
    most = of_blocks(jnp.max, abs(wide), sizes)
    scale = with_nan(most, wide, sizes)
    has_signs = of_blocks(jnp.max, -wide, sizes) > 0
    with_signs, magnitude = (_of_entries(y, x) for y in (has_signs, scale))
    part = relative(abs(wide), scale)

    def neighbours(top: int, power: int) -> tuple[Any, Any, Any]:
        """The code below, and what it and the next one stand for."""
        code = jnp.clip(jnp.floor(part ** (1 / power) * top), 0, top - 1)
        return code, _part(code, top, power), _part(code + 1, top, power)

    pairs = zip(neighbours(*_SIGNED), neighbours(*_UNSIGNED), strict=True)
    code, low, high = (jnp.where(with_signs, *pair) for pair in pairs)
    noise: Any = 0.5
    if key is not None:
        has_moved = abs(wide - before.astype(wide.dtype)) > 0.5 * (high - low) * magnitude
        noise = jnp.where(
            has_moved & with_signs, 0.5, jax.random.uniform(key, x.shape, wide.dtype)
        )
    code += jnp.floor((part - low) / (high - low) + noise)
    # An optimiser divides by the root of a second moment.
    code = jnp.where(~with_signs & (wide > 0), jnp.maximum(code, 1), code)
    signed = (jnp.sign(wide) * code).astype(jnp.int8)
    bits = lax.bitcast_convert_type(signed, jnp.uint8)
    codes = jnp.where(with_signs, bits, code.astype(jnp.uint8))
    signed_scale = jnp.where(has_signs, scale, -scale)
    return Moment(codes, signed_scale, str(x.dtype))

"""Moments of an optimiser in 8 bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .._base.random_keys import check_key
from .coded import blockwise, of_blocks, relative, scale_in, sizes_along, with_nan
from .float8 import DTYPES, Float8


class Moment(Float8):
    """A moment, which the numbers of no parameter are mistaken for."""


class QuantisedState(NamedTuple):
    """The state of an optimiser, with moments in 8 bits, and the key of the next roundings."""

    inner: Any
    key: Any


def quantised_moments(
    optimiser: Any,
    key: Any,
    *,
    dtype: Any = "float8_e4m3fn",
    block: int = 128,
    least: int = 4096,
) -> Any:
    r"""Keep the moments of an optimiser of Optax in 8 bits.

    The state of ``optimiser`` is that of its own ``init``, in which the floating arrays of at
    least ``least`` entries are `Float8`, with a scale for each block. Its own ``update`` sees
    them dense, and what it returns is rounded. Everything else in the state, such as counts and
    small arrays, stays as it is. So it works for ``optax.adamw``, ``optax.lion``,
    ``optax.chain`` of such, and with `train_only`.

    Moments change by less than half a step of 8 bits at a time, and would never move if they
    were rounded to the nearest number. So they are rounded at random, up with the probability
    with which the mean is the number itself [1]_. A block without negative numbers, such as one of a second
    moment, keeps positive ones positive, since an optimiser divides by their root.

    The key is part of the state. So a run that is stopped, stored by `jaxrewrite.checkpoints.save`
    and resumed gives the same bits.

    Parameters
    ----------
    optimiser
        An `optax.GradientTransformation`, such as ``optax.adamw(1e-3)``, or anything with
        ``init``, ``update`` and ``_replace``.
    key
        A key of `jax.random`, for the roundings.
    dtype
        The format of the codes, as in `Float8.quantise`.
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
        If ``dtype`` is no format of `Float8`, or ``block`` is not positive.

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
    Moment<f32[256,64], 16.9 kB>(codes=u8[256,64], scale=f32[128,1], format='float8_e4m3fn')
    >>> updates, state = optimiser.update(params, state, params)
    >>> updates["kernel"][0, :2]
    Array([-0.001, -0.001], dtype=float32)
    """
    check_key("quantised_moments", key)
    if dtype not in DTYPES:
        raise ValueError(
            f"quantised_moments: dtype must be float8_e4m3fn or float8_e5m2; got {dtype}."
        )
    if block < 1:
        raise ValueError(f"quantised_moments: block is {block}; it must be at least 1.")

    def init(params: Any) -> QuantisedState:
        def moment(x: Any) -> Any:
            is_quantised = _is_floating(x) and x.size >= max(least, 1)
            return _rounded(x, 0.5, str(jnp.dtype(dtype)), block) if is_quantised else x

        return QuantisedState(jax.tree.map(moment, optimiser.init(params)), key)

    def update(
        updates: Any, state: QuantisedState, params: Any = None, **extra: Any
    ) -> Any:
        dense = jax.tree.map(_dense, state.inner, is_leaf=_is_moment)
        updates, new = optimiser.update(updates, dense, params, **extra)
        following, own = jax.random.split(state.key)
        flat: tuple[list[Any], Any] = jax.tree.flatten(state.inner, is_leaf=_is_moment)
        old, treedef = flat
        leaves = [
            _moment(x, v.format, block, jax.random.fold_in(own, i)) if _is_moment(v) else x
            for i, (v, x) in enumerate(zip(old, treedef.flatten_up_to(new), strict=True))
        ]
        return updates, QuantisedState(treedef.unflatten(leaves), following)

    return optimiser._replace(init=init, update=update)


def _is_moment(x: Any) -> bool:
    return isinstance(x, Moment)


def _dense(x: Any) -> Any:
    return x.materialise() if _is_moment(x) else x


def _is_floating(x: Any) -> bool:
    return hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.floating)


def _sizes(shape: Sequence[int], block: int) -> tuple[int, ...]:
    """The sizes of blocks that divide the last axes and have so many entries at most."""
    divisor = lambda block, n: max(k for k in range(1, min(n, block) + 1) if n % k == 0)
    return sizes_along(shape, block, divisor)


def _moment(x: Any, dtype: str, block: int, key: Any) -> Moment:
    return _rounded(x, jax.random.uniform(key, x.shape), dtype, block)


def _rounded(x: Any, noise: Any, dtype: str, block: int) -> Moment:
    """An array in 8 bits. ``noise``, from 0 to 1, is what part of a step to add before rounding down."""
    sizes, info = _sizes(x.shape, block), jnp.finfo(dtype)
    most, smallest = float(info.max), float(info.smallest_subnormal)
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    scale = scale_in(x.dtype, of_blocks(jnp.max, abs(wide), sizes) * (1 / most), most)
    scale = with_nan(scale, wide, sizes)
    ratio = relative(wide, scale.astype(wide.dtype))
    # The steps between numbers of the format double with each power of two.
    power = jnp.maximum(jnp.frexp(ratio)[1] - 1, info.minexp) - info.nmant
    step = jnp.ldexp(jnp.ones((), wide.dtype), power)
    rounded = jnp.clip(jnp.floor(ratio / step + noise) * step, -most, most)
    has_no_negative = of_blocks(jnp.max, -wide, sizes) <= 0
    stays_positive = blockwise(jnp.logical_and, wide > 0, has_no_negative)
    rounded = jnp.where(stays_positive, jnp.maximum(rounded, smallest), rounded)
    v = Float8(rounded.astype(dtype), scale)
    return Moment(v.codes, v.scale, v.format)

"""Products with an array that follows from other arrays, row by row, one block after the other.

A compiler for a CPU writes such an array to memory before it multiplies, which takes longer
than the product if the other operand has few columns. Blocks of it fit the processor's cache.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Shaped

from .contract import is_or_none
from .loops import scan
from .placement import is_manual, may_be_split
from .sizes import are_known


# An array with fewer entries fits the cache. With few columns, blocks are best smaller.
_LEAST = 2**22
_ENTRIES = {4: 2**18, math.inf: 2**20}


def multiply(
    make: Callable[..., Any],
    parts: tuple[Shaped[Array, "groups ..."], ...],
    x: Shaped[Array, ...],
    *,
    is_summed: bool = False,
    precision: Any = None,
    max_columns: int = 128,
) -> Any:
    """``make(*parts) @ x``, or ``make(*parts).T @ x`` if rows are summed.

    Parameters
    ----------
    make
        A function of parts of equal length that gives some rows for each entry along their
        first axis.
    parts
        The arrays.
    x
        An array with two axes.
    is_summed
        Whether the sum is over the rows.
    precision
        The precision of `jax.lax.dot_general`.
    max_columns
        For how many columns a loop is faster. For more, the whole array is made at once.
    """
    contracted = ((0,), (0,)) if is_summed else ((1,), (0,))

    def product(parts: Any, x: Any) -> Any:
        return lax.dot_general(make(*parts), x, (contracted, ((), ())), precision=precision)

    blocks = _blocks(jax.eval_shape(make, *parts), parts[0].shape[0], x.shape[1])
    if blocks is None or x.shape[1] > max_columns:
        return product(parts, x)
    looped = functools.partial(_looped, product, is_summed, blocks)
    return lax.platform_dependent(parts, x, cpu=looped, default=product)


def dot(
    make: Callable[..., Any],
    parts: tuple[Shaped[Array, "n m"], ...],
    other: Any,
    is_first: bool,
    *,
    dimension_numbers: Any,
    precision: Any,
    preferred_element_type: Any,
    **params: Any,
) -> Any:
    """``dot_general`` of ``make(*parts)`` and an array, or NotImplemented.

    It is for one product of two matrices, or of a matrix and a vector, of one dtype.
    ``is_first`` tells whether ``make(*parts)`` is the first operand. ``make`` acts entry by
    entry.
    """
    contracted, batch = dimension_numbers
    contracted_axes, other_axes = contracted if is_first else contracted[::-1]
    dtype = jax.eval_shape(make, *parts).dtype
    is_plain = all(isinstance(x, jax.Array) for x in (*parts, other))
    if not is_plain or parts[0].ndim != 2 or not 1 <= other.ndim <= 2:
        return NotImplemented
    if (
        batch != ((), ())
        or len(contracted_axes) != 1
        or params.get("out_sharding") is not None
    ):
        return NotImplemented
    if other.dtype != dtype or not is_or_none(preferred_element_type, dtype):
        return NotImplemented
    x = jnp.moveaxis(other, other_axes[0], 0)
    y = multiply(
        make,
        parts,
        x.reshape(x.shape[0], math.prod(x.shape[1:])),
        is_summed=contracted_axes[0] == 0,
        precision=precision,
    )
    y = y.reshape(y.shape[0], *x.shape[1:])
    return y if is_first else jnp.moveaxis(y, 0, -1)


def _blocks(make: Any, groups: int, columns: int) -> int | None:
    """In how many blocks to multiply; ``None`` stands for the whole array at once."""
    sizes = (*make.shape, columns)
    if not are_known(*sizes) or may_be_split() or is_manual():
        return None
    if make.size < _LEAST or not columns:
        return None
    entries = next(size for most, size in _ENTRIES.items() if columns <= most)
    count = make.size // entries
    return next((k for k in range(count, 4 * count) if groups % k == 0), None)


def _looped(
    product: Callable[..., Any], is_summed: bool, blocks: int, parts: Any, x: Any
) -> Any:
    def block(array: Any, i: Any) -> Any:
        size = len(array) // blocks
        return lax.dynamic_slice_in_dim(array, i * size, size)

    # The backward pass makes the block again.
    @functools.partial(jax.checkpoint, prevent_cse=False)
    def step(total: Any, i: Any) -> Any:
        rows = tuple(block(part, i) for part in parts)
        if is_summed:
            return total + product(rows, block(x, i)), None
        return total, product(rows, x)

    if not is_summed:
        _, y = lax.scan(step, None, jnp.arange(blocks))
        return y.reshape(-1, x.shape[1])
    shape = jax.eval_shape(product, parts, x)
    y, _ = scan(step, jnp.zeros(shape.shape, shape.dtype), jnp.arange(blocks))
    return y

"""Products of quantised arrays: the choice between formulations, and two of them.

A compiler for a CPU writes the whole dense weight to memory before it multiplies. That takes
longer than to read a weight that is dense from the start. So a large weight becomes dense in
blocks that fit the processor's cache, in a loop (see blocks.py). A weight of integers is
multiplied with the digits of the rows, as it is (see digits.py), where integers are fast
enough: that depends on its size, the number of rows, the processor and the release of JAX. With
one row or a few, entries are decoded where they are used (see rows.py). ``python -m bench quantised``
measures all of them. docs/measurements/quantised.rst has the results, from which the constants
of these modules follow.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import ArrayLike

import jaxrewrite
from jaxrewrite import _compat

from .._base.contract import along_result
from .._base.placement import may_be_split as _may_be_split
from . import digits, rows
from .blocks import Block, block_for, grids, in_blocks, is_nibbles
from .coded import Coded, blockwise
from .processor import has_integer_tiles
from .terms import Terms, is_scaled_after, is_scaled_before, rows_of, scaled, terms_of


@jaxrewrite.register("dot_general", types=(Coded, Coded))
@jaxrewrite.register("dot_general", exchange="types")
def _(x: Coded, y: ArrayLike, **params) -> Any:
    return multiplied(*terms_of(x, y, **params))


def multiplied(v: Any, x: Any, terms: Terms) -> Any:
    """Multiply in the way that is fastest for these shapes."""
    x = jaxrewrite.materialise(x)
    if _may_be_split():
        return _dense(v, x, terms)
    count = rows_of(x, terms)
    summed = [i for i, label in enumerate(terms.v) if label not in terms.out]
    block = block_for(v.shape, grids(v), count, 4 if is_nibbles(v) else 8, summed)
    if _is_for_digits(v, x, terms) and _is_faster_in_digits(v, count, block):
        return _on_this_platform(v, x, terms, None)
    return _dense(v, x, terms) if block is None else _on_this_platform(v, x, terms, block)


@functools.partial(jax.jit, static_argnames=("terms", "block"))
def _on_this_platform(v: Coded, x: Any, terms: Terms, block: Block | None) -> Any:
    """The product as a CPU forms it best: in such blocks, or else in digits."""
    cpu: Any = functools.partial(_Formed(block), terms=terms)
    if rows.is_for_rows(v, x, terms, block is None and are_integers_fast()):
        cpu = functools.partial(rows.rows_dot, terms=terms, otherwise=_Formed(block))
    dense_product = functools.partial(_dense, terms=terms)
    return lax.platform_dependent(v, x, cpu=cpu, default=dense_product)


@dataclasses.dataclass(frozen=True)
class _Formed:
    """A formulation for several rows: in such blocks, or else in digits."""

    block: Block | None

    def __call__(self, v: Coded, x: Any, terms: Terms) -> Any:
        if self.block is None:
            return _in_digits(v, x, terms)
        return in_blocks(v, x, terms, self.block)


# --- with the dense weight --------------------------------------------------------------


def _dense(v: Coded, x: Any, terms: Terms) -> Any:
    """Multiply, with only the leaves and ``x`` as residuals.

    The backward pass makes the dense ``v`` again, because a residual would hold it from the
    forward pass until then. The dense ``v`` waits until ``x`` exists. Otherwise a compiler
    that looks for parallel work may make the dense weights of all layers first.
    """

    def multiply(v: Coded, x: Any) -> Any:
        if is_scaled_after(v, terms):
            return scaled(terms.multiply(v.levels(), x, terms.wide), v, terms)
        return terms.multiply(v.materialise(), x, terms.dtype)

    return _compat.call_after(multiply, v, x)


# --- in digits --------------------------------------------------------------------------


# The least weight of integers for which digits are faster than the whole dense weight.
_SMALLEST_IN_DIGITS = 2**19

# From so many entries on, blocks are compared with digits, and not the whole dense weight.
_SMALLEST_IN_BLOCKS = 2**22


class _Rows(NamedTuple):
    """For how many rows digits are faster.

    They are faster than the whole dense weight up to ``most``, and ``in_blocks`` tells whether
    they are faster than blocks with several rows, as they are with one.
    """

    most: float
    in_blocks: bool


def _rows_for_digits() -> _Rows:
    """Four products of integers should take less time than one of floats."""
    if not _compat.JAX_GE_0_11_1:  # Its integers take as long as floats.
        return _Rows(4, False)
    return _Rows(math.inf, True) if has_integer_tiles() else _Rows(32, False)


def are_integers_fast() -> bool:
    """Whether products of integers take less time than blocks, whatever the number of rows."""
    return _rows_for_digits().in_blocks


def _is_for_digits(v: Coded, x: Any, terms: Terms) -> bool:
    q = v.integers()
    return (
        q is not None
        and _size_of_each(v, terms) >= _SMALLEST_IN_DIGITS
        and jnp.issubdtype(x.dtype, jnp.floating)
        and terms.wide == jnp.float32
        and (is_scaled_after(v, terms) or is_scaled_before(v, terms))
        and 0 < rows_of(x, terms) < math.inf
        and digits.is_summable(terms.v, terms.x, terms.out, v.shape)
        # On a mesh, JAX asks each primitive for the axes over which its result varies.
        and jax.sharding.get_abstract_mesh().empty
    )


def _is_faster_in_digits(v: Coded, count: int | float, block: Block | None) -> bool:
    rows = _rows_for_digits()
    if block is None or v.size < _SMALLEST_IN_BLOCKS:
        return count <= rows.most
    return count == 1 or rows.in_blocks


def _size_of_each(v: Coded, terms: Terms) -> int:
    """The number of entries that a product without batch axes has."""
    axes = zip(v.shape, terms.v, strict=True)
    return math.prod(
        n for n, label in axes if not (label in terms.x and label in terms.out)
    )


def _in_digits(v: Coded, x: Any, terms: Terms) -> Any:
    q: Any = v.integers()
    x, is_after = x.astype(jnp.float32), is_scaled_after(v, terms)
    if not is_after:
        scale = along_result(v.scale_of_blocks(), terms.v, terms.x)
        x = blockwise(jnp.multiply, x, scale.astype(x.dtype))
    raw = digits.integer_dot(q, x, terms.v, terms.x, terms.out)
    return scaled(raw, v, terms) if is_after else raw.astype(terms.dtype)

"""Products of quantised arrays in blocks that fit the processor's cache."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Container, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxrewrite import _compat
from jaxrewrite._axes.blocks import spread_axis

from .._base.loops import scan
from .._base.sizes import common_divisor, is_at_most
from .._base.structured import fields_of
from .coded import Coded
from .packed import bytes_of, nibble
from .terms import Terms, is_scaled_after, scaled


class Block(NamedTuple):
    """The axis of the quantised array that a loop runs over, and its entries per step."""

    axis: int
    size: int


# For products with up to so many rows: the least weight for which a loop is faster, or takes
# so much less memory that the time to compile it is well spent, for codes of a byte and for
# those of four bits. Older releases make the whole dense weights of many layers at once.
_SMALLEST: dict[float, tuple[int, int]] = (
    {4: (2**19, 2**19), 32: (2**22, 2**21), math.inf: (2**22, 2**22)}
    if _compat.JAX_GE_0_11_1
    else {math.inf: (2**19, 2**19)}
)

# For products with up to so many rows, how many entries of a weight are dense at a time.
_ENTRIES = {1: 2**18, 64: 2**20, math.inf: 2**21}

# A loop along an axis that is summed reads and writes all results in each step. So its blocks have
# twice as many entries, up to a limit: with 32,000 columns and 64 rows that takes 0.6 to 0.75 of the time.
_ENTRIES_PER_RESULT = 2
_MOST_ENTRIES = 2**22

# For several rows, how many entries of a weight of less than so many are dense at a time.
_LARGE = 2**21
_ENTRIES_OF_SMALL = 2**19, 2**17


def _for_rows(table: dict[float, Any], rows: float) -> Any:
    return next(sizes for most, sizes in table.items() if rows <= most)


def block_for(
    shape: Sequence[int],
    grids: Sequence[Sequence[int]],
    rows: float,
    bits: int = 8,
    summed: Container[int] = (),
) -> Block | None:
    """The blocks in which a weight is multiplied with so many rows.

    ``None`` stands for the whole weight. ``grids`` are the shapes of the leaves that
    blocks of entries share, and ``summed`` the axes that the product sums.
    """
    size, kind = math.prod(shape), int(bits == 4)
    if rows == 0 or not is_at_most(_for_rows(_SMALLEST, rows)[kind], size):
        return None
    entries = _for_rows(_ENTRIES, rows)
    if rows > 1 and size < _LARGE:
        entries = _ENTRIES_OF_SMALL[kind]
    elif rows > 1 and 0 in summed:
        results = rows * math.prod(n for i, n in enumerate(shape) if i not in summed)
        entries = max(entries, int(min(_ENTRIES_PER_RESULT * results, _MOST_ENTRIES)))
    for axis, length in enumerate(shape):
        most = min(entries * length // size, length)
        if most >= 1:
            runs = [length // grid[axis] for grid in grids if grid[axis] > 1]
            return Block(axis, _rounded(most, length, max(runs, default=1)))
    return None


def _rounded(most: int, length: int, run: int) -> int:
    """A number of entries up to ``most`` that fits the length, and the runs of one scale."""
    for n in range(most, max(most // 4, 1) - 1, -1):
        if length % n == 0 and (n % run == 0 or run % n == 0):
            return n
    return most - most % run or most


def grids(v: Coded) -> list[tuple[int, ...]]:
    return [leaf.shape for leaf in jax.tree.leaves(v)[1:]]


def in_blocks(v: Coded, x: Any, terms: Terms, block: Block) -> Any:
    if is_scaled_after(v, terms):
        levels = lambda v, x: terms.multiply(v.levels(), x, terms.wide)
        return scaled(_looped(levels, v, x, terms, block), v, terms)
    product = lambda v, x: terms.multiply(v.materialise(), x, terms.wide)
    return _looped(product, v, x, terms, block).astype(terms.dtype)


def _looped(
    multiply: Callable[[Coded, Any], Any], v: Coded, x: Any, terms: Terms, block: Block
) -> Any:
    """``multiply(v, x)``, block by block."""
    axis, size = block
    label, length = terms.v[axis], v.shape[axis]
    end = length - length % size
    treedef: Any = jax.tree.structure(v)
    stored, views = views_of(v, x, terms, axis)
    varying = [_along(view, length, size) for view in views]

    def product(start: Any, count: int) -> list[Any]:
        """The products with so many entries along the axis."""
        codes = lax.dynamic_slice_in_dim(stored, start, count, axis)
        parts = []
        for view, leaves in zip(views, varying, strict=True):
            *shared, x = [leaf.of(start, count) for leaf in leaves]
            value = treedef.unflatten([view.codes(codes), *shared])
            parts.append(multiply(value, x))
        return parts if terms.v[-1] in terms.out else [functools.reduce(jnp.add, parts)]

    is_summed = label not in terms.out

    # The backward pass makes the block dense again.
    @functools.partial(jax.checkpoint, prevent_cse=False)
    def step(state: Any, _: None) -> Any:
        start, totals = state
        parts = product(start, size)
        if is_summed:
            return (start + size, list(map(jnp.add, totals, parts))), None
        return (start + size, totals), parts

    if end < length or not is_summed:
        last = product(np.int32(end), length - end)
    else:
        shapes = jax.eval_shape(lambda: product(np.int32(0), size))
        last = [jnp.zeros(x.shape, x.dtype) for x in shapes]
    first = (np.int32(0), last if is_summed else [])
    (_, sums), parts = scan(step, first, None, end // size)
    if not is_summed:
        where = terms.out.index(label)
        parts = [_merged(jnp.moveaxis(part, 0, where), where) for part in parts]
        pairs = zip(parts, last, strict=True)
        sums = [lax.concatenate(pair, where) for pair in pairs]
    return joined(sums, terms)


def joined(parts: Sequence[Any], terms: Terms) -> Any:
    """The product of which these are the parts: one, or the even and the odd columns."""
    if len(parts) == 1:
        return parts[0]
    where = terms.out.index(terms.v[-1])
    return _merged(jnp.stack(parts, where + 1), where)


class View(NamedTuple):
    """A part of a product: codes, the other leaves with ``x``, and their axes in the loop."""

    codes: Callable[[Any], Any]
    leaves: list[Any]
    axes: list[int | None]


def views_of(v: Coded, x: Any, terms: Terms, axis: int) -> tuple[Any, list[View]]:
    """The codes as the loop reads them, and the parts of its products.

    That is the product itself, or, for codes of four bits, one for the even columns and one
    for the odd ones. So two codes are read as the byte in which they are stored, since a
    compiler for a CPU takes them apart one by one.
    """
    (codes, *shared), _ = fields_of(v)
    label = terms.v[axis]
    axes = [axis if leaf.shape[axis] > 1 else None for leaf in shared]
    axes.append(terms.x.index(label) if label in terms.x else None)
    if not is_in_bytes(v, axis):
        return codes, [View(lambda codes: codes, [*shared, x], axes)]
    halves = halves_of(shared, x, v, terms, v.ndim - 1)
    return bytes_of(codes), [half._replace(axes=axes) for half in halves]


def halves_of(
    shared: Sequence[Any], x: Any, v: Coded, terms: Terms, axis: int
) -> list[View]:
    """The products with even and with odd indices along an axis, two of which are in a byte."""
    label, leaves = terms.v[axis], [*shared, x]
    along = [axis if leaf.shape[axis] == v.shape[axis] else None for leaf in shared]
    along.append(terms.x.index(label) if label in terms.x else None)
    half = lambda x, axis, i: x if axis is None else lax.slice_in_dim(x, i, None, 2, axis)
    halves = [[half(*pair, i) for pair in zip(leaves, along, strict=True)] for i in (0, 1)]
    return [View(functools.partial(nibble, i), own, []) for i, own in enumerate(halves)]


def is_in_bytes(v: Coded, axis: int) -> bool:
    """Whether a loop along an axis reads two codes of four bits as a byte.

    If two such columns may belong to two blocks, what blocks share would be repeated for all
    entries.
    """
    last = v.ndim - 1
    is_whole = v.shape[last] % 2 == 0 and are_pairs_in_blocks(v, last)
    return is_nibbles(v) and axis != last and is_whole


def are_pairs_in_blocks(v: Coded, axis: int) -> bool:
    """Whether the two entries of each pair along an axis are in one block, or in one each."""
    runs = [v.shape[axis] // grid[axis] for grid in grids(v)]
    return not any(run > 1 and run % 2 for run in runs)


def is_nibbles(v: Coded) -> bool:
    return fields_of(v)[0][0].dtype in (jnp.int4, jnp.uint4)


class _Leaf(NamedTuple):
    """A leaf of which each block has a part, or ``x``.

    It has one entry for each ``run`` of the weight along its axis. Without an axis it is the same for
    all blocks.
    """

    x: Any
    axis: int | None
    run: int

    def of(self, start: Any, count: int) -> Any:
        """What belongs to so many entries of the weight."""
        if self.axis is None:
            return self.x
        first = lax.div(start, np.int32(self.run)) if self.run > 1 else start
        each = -(-count // self.run)
        return lax.dynamic_slice_in_dim(self.x, first, each, self.axis)


def _along(view: View, length: int, size: int) -> list[_Leaf]:
    """The leaves of a view, as a loop with blocks of this size reads them."""
    leaves = []
    for leaf, axis in zip(view.leaves, view.axes, strict=True):
        run = 1 if axis is None else common_divisor(size, length // leaf.shape[axis])
        if axis is not None:
            leaf = spread_axis(leaf, axis, length // run)
        leaves.append(_Leaf(leaf, axis, run))
    return leaves


def _merged(x: Any, axis: int) -> Any:
    """The axis and the next one as one axis."""
    return x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])

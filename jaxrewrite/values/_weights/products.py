"""Products of quantised arrays: dense as a whole, one block after the other, or in integers.

A compiler for a CPU writes the whole dense weight to memory before it multiplies. That takes
longer than to read a weight that is dense from the start. So a large weight of integers is
multiplied with the other operand's digits, as it is (see digits.py), and any other one becomes
dense in blocks that fit the processor's cache, in a loop. ``python -m bench quantised`` measures
them. docs/measurements/quantised.rst has the results, from which the constants below follow.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import ArrayLike

import jaxrewrite
from jaxrewrite import _compat

from .._base.contract import Labels, along_result, contract, labels, transpose
from .._base.placement import is_manual as _is_manual, may_be_split as _may_be_split
from . import digits
from .coded import Coded, blockwise, spread_axis


class Terms(NamedTuple):
    """What a product is, apart from its operands: a quantised array and another one."""

    v: Labels
    x: Labels
    out: Labels
    dtype: Any
    precision: Any

    @property
    def wide(self) -> Any:
        """The dtype of sums. Levels may be as large as 255, which overflow 16 bits."""
        return jnp.promote_types(self.dtype, jnp.float32)

    def of(self, v: Any, x: Any) -> Terms:
        """The same, with the dtype of the result."""
        dtype = self.dtype or jnp.result_type(v.dtype, x.dtype)
        return self._replace(dtype=jnp.dtype(dtype))

    def multiply(self, v: Any, x: Any, dtype: Any) -> Any:
        params = {"precision": self.precision, "preferred_element_type": jnp.dtype(dtype)}
        return contract(v, self.v, x, self.x, self.out, **params)


@jaxrewrite.register("dot_general", types=(Coded, Coded))
@jaxrewrite.register("dot_general", either=True)
def _(
    x: Coded,
    y: ArrayLike,
    *,
    dimension_numbers,
    precision,
    preferred_element_type,
    out_sharding,
    **params,
) -> Any:
    if out_sharding is not None:
        return NotImplemented
    return multiplied(*terms_of(x, y, dimension_numbers, preferred_element_type, precision))


def terms_of(x: Any, y: Any, dimension_numbers: Any, *kind: Any) -> tuple[Any, Any, Terms]:
    """The quantised operand, the other one, and their product."""
    xs, ys, out = labels(dimension_numbers, jnp.ndim(x), jnp.ndim(y))
    if isinstance(x, Coded):
        return x, y, Terms(xs, ys, out, *kind)
    return y, x, Terms(ys, xs, out, *kind)


def multiplied(v: Any, x: Any, terms: Terms) -> Any:
    """Multiply in the way that is fastest for these shapes."""
    x = jaxrewrite.materialise(x)
    terms = terms.of(v, x)
    if _may_be_split():
        return _whole(v, x, terms)
    if _is_for_digits(v, x, terms):
        return _on_this_platform(v, x, terms, None)
    block = block_for(v.shape, _grids(v), rows_of(x, terms), 4 if _is_nibbles(v) else 8)
    return _whole(v, x, terms) if block is None else _on_this_platform(v, x, terms, block)


@functools.partial(jax.jit, static_argnames=("terms", "block"))
def _on_this_platform(v: Coded, x: Any, terms: Terms, block: Block | None) -> Any:
    """The product as a CPU forms it best: in such blocks, or else in digits."""
    if block is None:
        cpu = functools.partial(_in_digits, terms=terms)
    else:
        cpu = functools.partial(_in_blocks, terms=terms, block=block)
    whole = functools.partial(_whole, terms=terms)
    return lax.platform_dependent(v, x, cpu=cpu, default=whole)


# --- as a whole -------------------------------------------------------------------------


def _whole(v: Coded, x: Any, terms: Terms) -> Any:
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


def is_scaled_after(v: Coded, terms: Terms) -> bool:
    """Whether the entries that are summed share a scale, so that the sum is scaled."""
    return _has_scales_along(v, terms.v, terms.out)


def is_scaled_before(v: Coded, terms: Terms) -> bool:
    """Whether the other operand can be scaled, and not the quantised one."""
    return _has_scales_along(v, terms.v, terms.x)


def _has_scales_along(v: Coded, own: Labels, labels: Labels) -> bool:
    """Whether the scales are the same along all axes but those with some labels."""
    scale = jax.eval_shape(type(v).scale_of_blocks, v)
    return all(
        k == 1 for k, label in zip(scale.shape, own, strict=True) if label not in labels
    )


def scaled(raw: Any, v: Coded, terms: Terms) -> Any:
    """Multiply the product with the levels by the scales."""
    scale = along_result(v.scale_of_blocks(), terms.v, terms.out)
    return blockwise(jnp.multiply, raw, scale.astype(raw.dtype)).astype(terms.dtype)


# --- in digits --------------------------------------------------------------------------


# The least weight of integers for which digits are faster than the whole dense weight.
_SMALLEST_IN_DIGITS = 2**19


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


# --- in blocks --------------------------------------------------------------------------


class Block(NamedTuple):
    """The axis of the quantised array that a loop runs over, and its entries per step."""

    axis: int
    size: int


class _Sizes(NamedTuple):
    """A number of entries, for codes of a byte and for those of four bits."""

    byte: int
    nibble: int

    def of(self, bits: int) -> int:
        return self.nibble if bits == 4 else self.byte


# For products with up to so many rows: the least weight for which a loop is faster, or takes
# so much less memory that the time to compile it is well spent, and how many entries of it
# are dense at a time.
_SMALLEST = {
    4: _Sizes(2**19, 2**19),
    32: _Sizes(2**22, 2**21),
    math.inf: _Sizes(2**22, 2**22),
}
_ENTRIES = {
    1: _Sizes(2**18, 2**18),
    3: _Sizes(2**18, 2**17),
    16: _Sizes(2**19, 2**17),
    math.inf: _Sizes(2**20, 2**20),
}
# For 4 to 64 rows, larger blocks of four bits are faster if a weight has eight of them.
_LARGE_BLOCK = 2**21

# XLA on a CPU copies a matrix before it multiplies it with several rows, but not with one. So
# up to so many rows are multiplied one by one with codes of a byte.
_BY_ROW = 3


def _for_rows(table: dict[float, _Sizes], rows: float, bits: int) -> int:
    return next(sizes for most, sizes in table.items() if rows <= most).of(bits)


def block_for(
    shape: Sequence[int], grids: Sequence[Sequence[int]], rows: float, bits: int = 8
) -> Block | None:
    """The blocks in which a weight is multiplied with so many rows.

    ``None`` stands for the whole weight. ``grids`` are the shapes of the leaves that
    blocks of entries share.
    """
    size = math.prod(shape)
    if rows == 0 or size < _for_rows(_SMALLEST, rows, bits):
        return None
    entries = _for_rows(_ENTRIES, rows, bits)
    if bits == 4 and 4 <= rows <= 64 and size >= 8 * _LARGE_BLOCK:
        entries = _LARGE_BLOCK
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
    return max(most - most % run, 1)


def _grids(v: Coded) -> list[tuple[int, ...]]:
    return [leaf.shape for leaf in jax.tree.leaves(v)[1:]]


def rows_of(x: Any, terms: Terms) -> int | float:
    """How often each entry of the quantised array is used.

    A number that is symbolic, as in `jax.export`, counts as many.
    """
    own = [n for n, label in zip(x.shape, terms.x, strict=True) if label not in terms.v]
    rows = math.prod(own)
    return rows if isinstance(rows, int) else math.inf


def _in_blocks(v: Coded, x: Any, terms: Terms, block: Block) -> Any:
    if is_scaled_after(v, terms):
        return scaled(_looped(lambda v: v.levels(), v, x, terms, block), v, terms)
    return _looped(lambda v: v.materialise(), v, x, terms, block).astype(terms.dtype)


def _looped(
    dense: Callable[[Coded], Any], v: Coded, x: Any, terms: Terms, block: Block
) -> Any:
    """Multiply ``dense(v)``, one block after the other."""
    axis, size = block
    label, length = terms.v[axis], v.shape[axis]
    end = length - length % size
    treedef: Any = jax.tree.structure(v)
    stored, views = _views(v, x, terms, axis)
    is_by_row = len(views) == 1 and 1 < rows_of(x, terms) <= _BY_ROW
    multiply = _multiplied_by_row if is_by_row else _multiplied
    split = [_split(view.leaves, view.axes, length, size) for view in views]

    def product(stored: Any, varying: Sequence[Any]) -> list[Any]:
        parts = []
        for view, own in zip(views, varying, strict=True):
            pairs = zip(view.leaves, own, strict=True)
            *shared, x = [leaf if part is None else part for leaf, part in pairs]
            value = treedef.unflatten([view.codes(stored), *shared])
            parts.append(multiply(terms, dense(value), x))
        return parts if terms.v[-1] in terms.out else [functools.reduce(jnp.add, parts)]

    is_summed = label not in terms.out

    # The backward pass makes the block dense again.
    @functools.partial(jax.checkpoint, prevent_cse=False)
    def step(totals: Any, now: Any) -> Any:
        start, varying = now
        parts = product(lax.dynamic_slice_in_dim(stored, start, size, axis), varying)
        return (list(map(jnp.add, totals, parts)), None) if is_summed else (None, parts)

    tail = lax.slice_in_dim(stored, end, length, axis=axis), [rest for _, rest in split]
    if end < length or not is_summed or _is_manual():
        # In `jax.shard_map`, sums of no entries vary over the mesh as the others do.
        last = product(*tail)
    else:
        shapes = jax.eval_shape(product, *tail)
        last = [jnp.zeros(x.shape, x.dtype) for x in shapes]
    blocks = jnp.arange(0, end, size), [main for main, _ in split]
    if is_summed:
        whole, _ = lax.scan(step, last, blocks)
    else:
        where = terms.out.index(label)
        _, parts = lax.scan(step, None, blocks)
        parts = [_merged(jnp.moveaxis(part, 0, where), where) for part in parts]
        pairs = zip(parts, last, strict=True)
        whole = [lax.concatenate(pair, where) for pair in pairs]
    if len(whole) == 1:
        return whole[0]
    where = terms.out.index(terms.v[-1])
    return _merged(jnp.stack(whole, where + 1), where)


def _multiplied(terms: Terms, v: Any, x: Any) -> Any:
    return terms.multiply(v, x, terms.wide)


def _multiplied_by_row(terms: Terms, v: Any, x: Any) -> Any:
    """The same, by a product of each row."""
    rows = tuple(label for label in terms.x if label not in terms.v)
    rest = tuple(label for label in terms.x if label in terms.v)
    x = transpose(x, terms.x, (*rows, *rest))
    sizes = x.shape[: len(rows)]
    x = x.reshape(math.prod(sizes), *x.shape[len(rows) :])
    out = tuple(label for label in terms.out if label not in rows)
    one = terms._replace(x=rest, out=out)
    whole = jnp.stack([_multiplied(one, v, x[i]) for i in range(len(x))])
    whole = whole.reshape(*sizes, *whole.shape[1:])
    return transpose(whole, (*rows, *out), terms.out)


class _View(NamedTuple):
    """A part of a product: codes, the other leaves with ``x``, and their axes in the loop."""

    codes: Callable[[Any], Any]
    leaves: list[Any]
    axes: list[int | None]


def _views(v: Coded, x: Any, terms: Terms, axis: int) -> tuple[Any, list[_View]]:
    """The codes as the loop reads them, and the parts of its products.

    That is the product itself, or, for codes of four bits, one for the even columns and one
    for the odd ones. So two codes are read as the byte in which they are stored, since a
    compiler for a CPU takes them apart one by one.
    """
    codes, *shared = jax.tree.leaves(v)
    label = terms.v[axis]
    axes = [axis if leaf.shape[axis] > 1 else None for leaf in shared]
    axes.append(terms.x.index(label) if label in terms.x else None)
    last = v.ndim - 1
    if not _is_nibbles(v) or axis == last or v.shape[last] % 2:
        return codes, [_View(lambda codes: codes, [*shared, x], axes)]
    dtype = jnp.int8 if codes.dtype == jnp.int4 else jnp.uint8
    pairs = codes.reshape(*codes.shape[:-1], -1, 2)
    views = []
    for i in range(2):
        halves = [_every_second(leaf, v.shape[last], i) for leaf in shared]
        if terms.v[-1] in terms.x:
            halves.append(lax.slice_in_dim(x, i, None, 2, terms.x.index(terms.v[-1])))
        else:
            halves.append(x)
        views.append(_View(functools.partial(nibble, i), halves, axes))
    return lax.bitcast_convert_type(pairs, dtype), views


def _is_nibbles(v: Coded) -> bool:
    return jax.tree.leaves(v)[0].dtype in (jnp.int4, jnp.uint4)


def nibble(i: int, stored: Any) -> Any:
    """The lower four bits of each byte, or the upper ones, with their sign."""
    four = jnp.asarray(4, stored.dtype)
    if i == 0:
        stored = lax.shift_left(stored, four)
    if jnp.issubdtype(stored.dtype, jnp.signedinteger):
        return lax.shift_right_arithmetic(stored, four)
    return lax.shift_right_logical(stored, four)


def _every_second(leaf: Any, length: int, i: int) -> Any:
    """What blocks share in the even, or the odd, columns of an array."""
    blocks = leaf.shape[-1]
    if blocks == 1 or length // blocks % 2 == 0:
        return leaf
    return spread_axis(leaf, leaf.ndim - 1, length)[..., i::2]


def _split(
    leaves: Sequence[Any], axes: Sequence[int | None], length: int, size: int
) -> tuple[list[Any], list[Any]]:
    """The parts of leaves that belong to the blocks, stacked in front, and what is left.

    ``None`` stands for a leaf that is the same for all blocks.
    """
    main: list[Any] = []
    rest: list[Any] = []
    for leaf, axis in zip(leaves, axes, strict=True):
        if axis is None:
            main.append(None)
            rest.append(None)
            continue
        run = math.gcd(size, length // leaf.shape[axis])
        leaf = spread_axis(leaf, axis, length // run)
        each = size // run
        end = length // size * each
        parts = lax.slice_in_dim(leaf, 0, end, axis=axis)
        parts = parts.reshape(*leaf.shape[:axis], -1, each, *leaf.shape[axis + 1 :])
        main.append(jnp.moveaxis(parts, axis, 0))
        rest.append(lax.slice_in_dim(leaf, end, leaf.shape[axis], axis=axis))
    return main, rest


def _merged(x: Any, axis: int) -> Any:
    """The axis and the next one as one axis."""
    return x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])

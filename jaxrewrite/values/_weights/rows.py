"""Products with one row or a few, in which each entry of a weight is decoded where it is used.

A product of a matrix and one row uses each entry of the matrix once. So a dense block, or the
digits of the row, only cost time: here a loop takes some rows of the weight, and a kernel
decodes them, multiplies each by its entry of the other operand, and adds them up. The sums of the
loop keep what rounding takes from them, so that the result is right to about its last digit.

With several rows an entry is decoded for each of them. What is decoded in an operation or two is
quicker so than in blocks up to three rows (`Coded.few_rows`): 4 bits with 2 and 3 rows took 0.45 and 0.6 of
the time of blocks, and ``NF4``, which looks numbers up, 1.1 and 1.6.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

import jaxrewrite

from .._base.contract import along_result
from .._base.structured import fields_of, is_value
from .blocks import View, are_pairs_in_blocks, halves_of, is_in_bytes, joined, views_of
from .coded import Coded
from .packed import Nibbles, Packed
from .terms import Terms, is_scaled_after, rows_of, scaled


# The least weight for which the time that is won outweighs that of compiling a loop.
_SMALLEST = 2**22

# So many rows are decoded in one step. With fewer, the sums are read and written more often: of 11,008
# columns, 16 took three times as long. With more, XLA on a CPU writes what it decodes.
_MOST_ROWS = 128

# So many rows of sums are written before they are added up. XLA on a CPU makes one kernel of it
# all if there are fewer, which older releases do not vectorise.
_ROWS_OF_SUMS = 16

# The sums of more results are in no cache of a core, and are read and written in each step: with 11,008
# columns and 4 bits, two and three rows took 1.7 and 2.3 of the time of blocks.
_MOST_RESULTS = 2**14

rows_dot_p = Primitive("rows_dot")

# A formulation for any number of rows, as a function of a quantised array, another one, and
# their product.
Formulation = Callable[[Coded, Any, Terms], Any]


def is_for_rows(v: Coded, x: Any, terms: Terms, is_of_integers: bool) -> bool:
    """Whether a product has few rows, and sums over the first axis of the weight alone.

    ``is_of_integers`` tells whether it would be one of integers otherwise, which is faster than blocks.
    """
    first, *others = terms.v
    return (
        v.size >= _SMALLEST
        and first not in terms.out
        and bool(others)
        and not any(label in terms.x for label in others)
        and jnp.issubdtype(x.dtype, jnp.floating)
        and terms.wide == jnp.float32
        and _are_few(rows_of(x, terms), v, is_of_integers)
        and _rows_of_a_step(v, len(v)) % _ROWS_OF_SUMS == 0
        # On a mesh, JAX asks each primitive for the axes over which its result varies.
        and jax.sharding.get_abstract_mesh().empty
    )


def _are_few(count: float, v: Coded, is_of_integers: bool) -> bool:
    fit_a_cache = count * (v.size // len(v)) <= _MOST_RESULTS
    if count == 1:
        return fit_a_cache or not is_of_integers
    return 1 < count <= v.few_rows and fit_a_cache and not is_of_integers


def _rows_of_a_step(v: Coded, length: int) -> int:
    """How many rows of a weight to decode at a time: they share what their blocks share.

    It is read as ``length`` rows, each of which may hold two.
    """
    _, *shared = jax.tree.leaves(v)
    most = 2 ** (min(_MOST_ROWS, length).bit_length() - 1)
    # One number for each row is as quick as one for all.
    is_quick = lambda leaf: len(leaf) == 1 or len(leaf) == leaf.size == len(v)
    return math.gcd(most, *(length // len(leaf) for leaf in shared if not is_quick(leaf)))


def _views(v: Coded, x: Any, terms: Terms) -> tuple[Any, list[View]]:
    """The codes as they are read, and the parts of the product: see `views_of`.

    Where a byte holds the codes of two rows, as it does if the number of columns is odd, the parts
    are the products of the even and of the odd rows.
    """
    (codes, *shared), _ = fields_of(v)
    if not (isinstance(codes, Nibbles) and codes.axis == -v.ndim):
        return views_of(v, x, terms, 0)
    views = halves_of(shared, x, v, terms, 0)
    return codes.bytes.squeeze(-1), views


def _are_read_in_bytes(v: Coded, codes: Nibbles) -> bool:
    """Whether neighbours share what their block shares, so that their bytes can be read."""
    if codes.axis == -1:
        return is_in_bytes(v, 0)
    return (
        codes.axis == -v.ndim
        and not codes.padding
        and are_pairs_in_blocks(v, 0)
        and _rows_of_a_step(v, len(v) // 2) % _ROWS_OF_SUMS == 0
    )


def rows_dot(v: Coded, x: Any, terms: Terms, otherwise: Formulation) -> Any:
    """The product of a quantised array with few rows.

    ``otherwise`` multiplies with any number of rows. It is used for derivatives and batches.
    """
    leaves, treedef = jax.tree.flatten(v)
    return rows_dot_p.bind(*leaves, x, treedef=treedef, terms=terms, otherwise=otherwise)


def _in_rows(*operands: Any, treedef: Any, terms: Terms, otherwise: Formulation) -> Any:
    v, x = treedef.unflatten(operands[:-1]), operands[-1].astype(terms.wide)
    wide, axis = terms._replace(dtype=terms.wide), terms.x.index(terms.v[0])
    stored, views = _views(v, x, terms)
    length, size = len(stored), _rows_of_a_step(v, len(stored))
    _, treedef = fields_of(v)
    is_scaled_at_last = is_scaled_after(v, terms)

    def rows(view: View, start: Any, count: int) -> tuple[Coded, Any]:
        """Some rows of the weight, and the entries of ``x`` that belong to them."""
        *shared, x = view.leaves
        codes = view.codes(_rows(stored, start, count, length))
        rows_of_leaves = (_rows(leaf, start, count, length) for leaf in shared)
        x = lax.dynamic_slice_in_dim(x, start, count, axis, allow_negative_indices=False)
        return treedef.unflatten([codes, *rows_of_leaves]), x

    def product(view: View, start: Any) -> Any:
        starts = range(0, size, _ROWS_OF_SUMS)
        values, xs = zip(
            *(rows(view, start + i, _ROWS_OF_SUMS) for i in starts), strict=True
        )
        is_scaled_here = is_scaled_after(values[0], terms)
        parts = [v.levels() if is_scaled_here else v.materialise() for v in values]
        total = _by_entry(parts, xs, wide)
        is_left = is_scaled_here and not is_scaled_at_last
        return scaled(total, values[0], wide) if is_left else total

    def left_over(view: View) -> Any:
        value, x = rows(view, length - left, left)
        dense = value.levels() if is_scaled_at_last else value.materialise()
        return wide.multiply(dense.astype(x.dtype), x, x.dtype)

    def step(sums: Any, start: Any) -> tuple[Any, None]:
        pairs = zip(sums, views, strict=True)
        return [_with_error(total, product(view, start)) for total, view in pairs], None

    left = length % size
    first = [left_over(view) for view in views]
    sums = [(part, jnp.zeros_like(part)) for part in first]
    sums, _ = lax.scan(step, sums, jnp.arange(0, length - left, size))
    totals = [_with_what_is_lost(*sum_and_error) for sum_and_error in sums]
    total = sum(totals[1:], totals[0]) if length < len(v) else joined(totals, terms)
    return scaled(total, v, terms) if is_scaled_at_last else total.astype(terms.dtype)


def _rows(leaf: Any, start: Any, count: int, length: int) -> Any:
    """The part of a leaf that belongs to some of so many rows."""
    run = length // leaf.shape[0]
    if run > 1:
        start, count = lax.div(start, run), 1
    return lax.dynamic_slice_in_dim(leaf, start, count, allow_negative_indices=False)


def _by_entry(vs: Sequence[Any], xs: Sequence[Any], terms: Terms) -> Any:
    """The product of dense rows, without an operation that a compiler would call a product."""
    out = (terms.v[0], *terms.out)
    pairs = zip(vs, xs, strict=True)
    parts = [
        along_result(v.astype(x.dtype), terms.v, out) * along_result(x, terms.x, out)
        for v, x in pairs
    ]
    return _sum_of_halves(functools.reduce(jnp.add, parts)).squeeze(0)


def _sum_of_halves(x: Any) -> Any:
    """The sum along the first axis, whose length is a power of two, without a loop."""
    half = len(x) // 2
    return _sum_of_halves(x[:half] + x[half:]) if half else x


def _with_error(sums: tuple[Any, Any], part: Any) -> tuple[Any, Any]:
    """The sum with a part, and what rounding took from all of them so far (Knuth)."""
    total, error = sums
    new = total + part
    of_part = new - total
    return new, error + ((total - (new - of_part)) + (part - of_part))


def _with_what_is_lost(total: Any, error: Any) -> Any:
    """The result. Infinite sums have no error that is a number."""
    return jnp.where(jnp.isfinite(error), total + error, total)


# --- the primitive ----------------------------------------------------------------------


def _formed(*operands: Any, treedef: Any, terms: Terms, otherwise: Formulation) -> Any:
    """The product in the other formulation, by the rules of the codes if they are packed."""
    leaves, treedef = fields_of(treedef.unflatten(operands[:-1]))
    form = lambda x, *leaves: otherwise(treedef.unflatten(leaves), x, terms)
    apply = jaxrewrite.transform(form) if any(map(is_value, leaves)) else form
    return apply(operands[-1], *leaves)


def _aval(*operands: Any, treedef: Any, terms: Terms, **_: Any) -> jax.core.ShapedArray:
    v, x = treedef.unflatten(operands[:-1]), operands[-1]
    sizes = dict(zip((*terms.v, *terms.x), (*v.shape, *x.shape), strict=True))
    return jax.core.ShapedArray([sizes[label] for label in terms.out], terms.dtype)


def _of_some(operands: Sequence[Any], where: Sequence[int], params: Any) -> Any:
    """The product as a function of some operands."""

    def form(*some: Any) -> Any:
        filled = dict(enumerate(operands)) | dict(zip(where, some, strict=True))
        return _formed(*filled.values(), **params)

    return form


def _tangent(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
    where = [i for i, t in enumerate(tangents) if type(t) is not ad.Zero]
    some, along = ([operands[i] for i in where] for operands in (primals, tangents))
    return jax.jvp(_of_some(primals, where, params), some, along)


def _transposed(ct: Any, *operands: Any, **params: Any) -> list[Any]:
    where = [i for i, x in enumerate(operands) if ad.is_undefined_primal(x)]
    cts: list[Any] = [None] * len(operands)
    if type(ct) is ad.Zero:
        cotangents = [ad.Zero(operands[i].aval) for i in where]
    else:
        some = (operands[i].aval for i in where)
        cotangents = jax.linear_transpose(_of_some(operands, where, params), *some)(ct)
    for i, cotangent in zip(where, cotangents, strict=True):
        cts[i] = cotangent
    return cts


def _batched(
    operands: Sequence[Any], axes: Sequence[Any], **params: Any
) -> tuple[Any, int]:
    return jax.vmap(functools.partial(_formed, **params), tuple(axes))(*operands), 0


@jaxrewrite.register(rows_dot_p)
def _(codes: Packed, *others: Any, **params) -> Any:
    """Unpack a block at a time, since rows would be unpacked for each of their entries."""
    return _formed(codes, *others, **params)


@jaxrewrite.register(rows_dot_p)
def _(codes: Nibbles, *others: Any, treedef, **params) -> Any:
    """Read the bytes, unless that takes neighbours apart."""
    *shared, x = others
    v = treedef.unflatten([codes, *shared])
    if not _are_read_in_bytes(v, codes):
        v = treedef.unflatten([codes.materialise(), *shared])
    leaves, treedef = jax.tree.flatten(v)
    return rows_dot_p.bind(*leaves, x, treedef=treedef, **params)


rows_dot_p.def_impl(jax.jit(_in_rows, static_argnames=("treedef", "terms", "otherwise")))
rows_dot_p.def_abstract_eval(_aval)
ad.primitive_jvps[rows_dot_p] = _tangent
ad.primitive_transposes[rows_dot_p] = _transposed
batching.primitive_batchers[rows_dot_p] = _batched
mlir.register_lowering(rows_dot_p, mlir.lower_fun(_in_rows, multiple_results=False))

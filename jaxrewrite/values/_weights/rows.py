"""Products with one row, in which each entry of a weight is decoded where it is used.

A product of a matrix and one row reads each entry of the matrix once. So there is nothing to
gain from a dense block: a loop takes a few rows of the weight at a time, and one kernel decodes
them, multiplies each by an entry of the other operand, and adds them up. The sums of the loop
keep what rounding takes from them, so that the result is as exact as one of digits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

import jaxrewrite

from .._base.contract import along_result
from .blocks import View, joined, views_of
from .coded import Coded
from .packed import Packed
from .terms import Terms, is_scaled_after, rows_of, scaled


# With a smaller weight another formulation is as fast.
_SMALLEST = 2**19

# So many rows of a weight are in one kernel. With fewer of them the sums are read and written
# more often; with more of them the program is longer.
_AT_A_TIME = 16

rows_dot_p = Primitive("rows_dot")

# A formulation for any number of rows, as a function of a quantised array, another one, and
# their product.
Formulation = Callable[[Coded, Any, Terms], Any]


def is_for_rows(v: Coded, x: Any, terms: Terms) -> bool:
    """Whether a product has one row, and sums over the first axis of the weight alone."""
    _, *shared = jax.tree.leaves(v)
    first, *others = terms.v
    return (
        v.size >= _SMALLEST
        and first not in terms.out
        and bool(others)
        and not any(label in terms.x for label in others)
        and all(_is_quick(leaf, len(v)) for leaf in shared)
        and jnp.issubdtype(x.dtype, jnp.floating)
        and terms.wide == jnp.float32
        and rows_of(x, terms) == 1
        # On a mesh, JAX asks each primitive for the axes over which its result varies.
        and jax.sharding.get_abstract_mesh().empty
    )


def _is_quick(leaf: Any, length: int) -> bool:
    """Whether the rows of a step share what blocks share, or each has one number of it."""
    return leaf.size == leaf.shape[0] or _is_same(leaf, length, _AT_A_TIME)


def _is_same(leaf: Any, length: int, size: int) -> bool:
    """Whether blocks of so many rows have the same part of a leaf for all their rows."""
    return leaf.shape[0] == 1 or length // leaf.shape[0] % size == 0


def rows_dot(v: Coded, x: Any, terms: Terms, otherwise: Formulation) -> Any:
    """The product of a quantised array with few rows.

    ``otherwise`` multiplies with any number of rows. It is used for derivatives and batches.
    """
    leaves, treedef = jax.tree.flatten(v)
    return rows_dot_p.bind(*leaves, x, treedef=treedef, terms=terms, otherwise=otherwise)


def _in_rows(*operands: Any, treedef: Any, terms: Terms, otherwise: Formulation) -> Any:
    v, x = treedef.unflatten(operands[:-1]), operands[-1].astype(terms.wide)
    wide, length = terms._replace(dtype=terms.wide), len(v)
    size = min(_AT_A_TIME, length)
    stored, views = views_of(v, x, terms, 0)
    is_scaled_at_last = is_scaled_after(v, terms)
    # The rows of one step have the same scales.
    is_scaled_as_one = all(_is_same(leaf, length, size) for leaf in operands[1:-1])

    def row(view: View, i: Any) -> tuple[Coded, Any]:
        """A row of the weight, and its product with the entries of ``x`` that belong to it."""
        *shared, x = view.leaves
        codes = view.codes(_row(stored, i, 0, length))
        value = treedef.unflatten([codes, *(_row(leaf, i, 0, length) for leaf in shared)])
        levels = along_result(value.levels().astype(x.dtype), terms.v, terms.out)
        axis = terms.x.index(terms.v[0])
        return value, levels * along_result(_row(x, i, axis, length), terms.x, terms.out)

    def rows(start: Any, count: int) -> list[Any]:
        parts = []
        for view in views:
            values, products = zip(
                *(row(view, start + i) for i in range(count)), strict=True
            )
            if not is_scaled_at_last and not is_scaled_as_one:
                pairs = zip(products, values, strict=True)
                products = [scaled(product, value, wide) for product, value in pairs]
            total = _sum_of_pairs(products)
            is_left = is_scaled_as_one and not is_scaled_at_last
            parts.append(scaled(total, values[0], wide) if is_left else total)
        return parts

    def step(sums: Any, start: Any) -> tuple[Any, None]:
        return list(map(_with_error, sums, rows(start, size))), None

    left = length % size
    shapes = jax.eval_shape(lambda: rows(0, 1))
    none = [jnp.zeros(part.shape, part.dtype) for part in shapes]
    first = rows(0, left) if left else none
    sums, _ = lax.scan(
        step, list(zip(first, none, strict=True)), jnp.arange(left, length, size)
    )
    whole = joined([total + error for total, error in sums], terms)
    return scaled(whole, v, terms) if is_scaled_at_last else whole.astype(terms.dtype)


def _row(leaf: Any, i: Any, axis: int, length: int) -> Any:
    """What belongs to one of so many rows."""
    i = lax.div(i, length // leaf.shape[axis])
    return lax.dynamic_slice_in_dim(leaf, i, 1, axis, allow_negative_indices=False)


def _sum_of_pairs(parts: Sequence[Any]) -> Any:
    """The sum, each part of which is rounded a few times."""
    if len(parts) == 1:
        return parts[0]
    half = len(parts) // 2
    return _sum_of_pairs(parts[:half]) + _sum_of_pairs(parts[half:])


def _with_error(sums: tuple[Any, Any], part: Any) -> tuple[Any, Any]:
    """The sum with a part, and what rounding took from all of them so far (Knuth)."""
    total, error = sums
    new = total + part
    of_part = new - total
    return new, error + ((total - (new - of_part)) + (part - of_part))


# --- the primitive ----------------------------------------------------------------------


def _formed(*operands: Any, treedef: Any, terms: Terms, otherwise: Formulation) -> Any:
    return otherwise(treedef.unflatten(operands[:-1]), operands[-1], terms)


def _aval(*operands: Any, **params: Any) -> jax.core.ShapedArray:
    result = jax.eval_shape(functools.partial(_formed, **params), *operands)
    return jax.core.ShapedArray(result.shape, result.dtype)


def _of_some(operands: Sequence[Any], where: Sequence[int], params: Any) -> Any:
    """The product as a function of some operands."""

    def form(*some: Any) -> Any:
        filled = dict(enumerate(operands)) | dict(zip(where, some, strict=True))
        return _formed(*filled.values(), **params)

    return form


def _tangent(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
    where = [i for i, t in enumerate(tangents) if type(t) is not ad.Zero]
    some = [[own[i] for i in where] for own in (primals, tangents)]
    return jax.jvp(_of_some(primals, where, params), *some)


def _transposed(ct: Any, *operands: Any, **params: Any) -> list[Any]:
    where = [i for i, x in enumerate(operands) if ad.is_undefined_primal(x)]
    cts: list[Any] = [None] * len(operands)
    if type(ct) is ad.Zero:
        found = [ad.Zero(operands[i].aval) for i in where]
    else:
        some = (operands[i].aval for i in where)
        found = jax.linear_transpose(_of_some(operands, where, params), *some)(ct)
    for i, own in zip(where, found, strict=True):
        cts[i] = own
    return cts


def _batched(
    operands: Sequence[Any], axes: Sequence[Any], **params: Any
) -> tuple[Any, int]:
    return jax.vmap(functools.partial(_formed, **params), tuple(axes))(*operands), 0


@jaxrewrite.register(rows_dot_p)
def _(codes: Packed, *others: Any, **params) -> Any:
    """Unpack a block at a time, since rows would be unpacked for each of their entries."""
    return jaxrewrite.transform(functools.partial(_formed, **params))(codes, *others)


rows_dot_p.def_impl(jax.jit(_in_rows, static_argnames=("treedef", "terms", "otherwise")))
rows_dot_p.def_abstract_eval(_aval)
ad.primitive_jvps[rows_dot_p] = _tangent
ad.primitive_transposes[rows_dot_p] = _transposed
batching.primitive_batchers[rows_dot_p] = _batched
mlir.register_lowering(rows_dot_p, mlir.lower_fun(_in_rows, multiple_results=False))

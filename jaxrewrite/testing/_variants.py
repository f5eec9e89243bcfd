"""Other values of the type of a value, made from it alone."""

from __future__ import annotations

import dataclasses
import enum
import operator
import typing
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import jaxtyping
from jax.tree_util import tree_flatten, tree_leaves, tree_map, tree_unflatten

import jaxrewrite

from .._axes.declaration import axes_of
from .._axes.layout import leaves_of, shape_of
from .._axes.methods import placed
from .._compat import same_array_type
from .._core.avals import aval_of, avals_of, dense_aval, rule_children
from .._core.pytree import dataclass_fields, is_static
from ._oracle import difference, is_floating, neighbour, own_stack


class Variant(NamedTuple):
    """A value, and a label for the way in which it differs from the original.

    ``may_be_none``: nothing tells whether the type has such values, because its leaves may
    depend on each other. ``alone``, ``pairs``: whether programs are run on it alone, or on it
    and the original. ``is_finite``: whether all of its numbers are.
    """

    label: str
    value: Any
    may_be_none: bool = False
    alone: bool = True
    pairs: bool = False
    is_finite: bool = True


def variants(value: Any) -> Iterator[Variant]:
    """Values of the same type that can be made, have the right aval, and can be dense."""
    is_constructed = _constructed(value)
    for variant in _candidates(value):
        if is_constructed and not _constructed(variant.value):
            continue
        if _dense(variant.value) is not None:
            yield variant


def _constructed(value: Any) -> bool:
    """Whether the constructor takes the fields as they are. A pytree is made without it."""
    try:
        return dataclasses.replace(value) is not None
    except Exception:  # noqa: BLE001 - a constructor refuses by any error
        return False


def _candidates(value: Any) -> Iterator[Variant]:
    yield Variant("other numbers", neighbour(value), alone=False, pairs=True)
    yield from _of_one_leaf(value)
    yield from _of_other_signs(value)
    yield from _of_another_order(value)
    yield from _of_other_integers(value)
    yield from _of_other_metadata(value)
    stack = own_stack(value)
    if stack is not None:
        yield Variant("a stack", stack)
    for dtype in ("bfloat16", "complex64"):
        yield from _of_dtype(value, dtype)
    yield from _of_sizes(value)
    yield from _of_other_leaves(value)
    yield from _not_finite(value)


def _dense(value: Any) -> Any:
    """The array, or ``None`` if the type refuses these numbers."""
    try:
        return jaxrewrite.materialise(value)
    except Exception:  # noqa: BLE001 - a type refuses numbers by any error
        return None


def aval_of_array(value: Any) -> Any:
    """The aval of the result of ``materialise``."""
    leaves, treedef = rule_children(value)
    return dense_aval(type(value), treedef, avals_of(leaves))


def is_value(value: Any) -> bool:
    """Whether a value has the aval of its array."""
    try:
        return same_array_type(aval_of(value), aval_of_array(value))
    except Exception:  # noqa: BLE001 - a type raises anything for leaves that it refuses
        return False


def _differs(other: Any, value: Any) -> bool:
    leaves = zip(tree_leaves(other), tree_leaves(value), strict=True)
    return any(not _equal(x, y) for x, y in leaves)


def _is_like(other: Any, value: Any) -> bool:
    return is_value(other) and (other.shape, other.dtype) == (value.shape, value.dtype)


# --- other numbers, integers and metadata --------------------------------------------------


def _of_other_signs(value: Any) -> Iterator[Variant]:
    """Its negative, if a rule makes it a value of the type, which the other rules meet, too."""
    try:
        negative = jaxrewrite.transform(operator.neg, materialise="forbid")(value)
    except Exception:  # noqa: BLE001 - rules of a wrong type raise anything
        return
    if type(negative) is type(value) and _is_like(negative, value):
        yield Variant("its negative", negative)


def _of_one_leaf(value: Any) -> Iterator[Variant]:
    """Other numbers in one of several floating leaves: no rule may compare by the others alone."""
    leaves, treedef = tree_flatten(value)
    places = [i for i, x in enumerate(leaves) if is_floating(x)]
    for i in places if len(places) > 1 else []:
        changed = [1.5 * x if i == j else x for j, x in enumerate(leaves)]
        other = tree_unflatten(treedef, changed)
        if _is_like(other, value) and not _same_array(other, value):
            label = f"other numbers in leaf {i}"
            yield Variant(label, other, may_be_none=True, pairs=True)


def _of_another_order(value: Any) -> Iterator[Variant]:
    """Its numbers at other places: products of the two depend on their order."""
    other = tree_map(_turned, value)
    if _differs(other, value) and _is_like(other, value):
        yield Variant("numbers in another order", other, may_be_none=True, pairs=True)


def _turned(leaf: Any) -> Any:
    """A leaf whose last two axes are rolled, so that a symmetric matrix stays symmetric."""
    axes = range(jnp.ndim(leaf))[-2:]
    return jnp.roll(leaf, [1] * len(axes), axes) if is_floating(leaf) else leaf


def _of_other_integers(value: Any) -> Iterator[Variant]:
    other = tree_map(_in_another_order, value)
    if _differs(other, value) and _is_like(other, value):
        yield Variant("other integers", other, may_be_none=True, pairs=True)


def _in_another_order(leaf: Any) -> Any:
    if jnp.issubdtype(jnp.result_type(leaf), jnp.integer):
        return jnp.roll(leaf, 1) if jnp.ndim(leaf) else leaf + 1
    return ~leaf if jnp.issubdtype(jnp.result_type(leaf), jnp.bool_) else leaf


def _equal(x: Any, y: Any) -> bool:
    return x is y or bool(jnp.array_equal(x, y))


def _of_other_metadata(value: Any) -> Iterator[Variant]:
    hints = _hints(type(value))
    for field in static_fields(value):
        for content in _contents(getattr(value, field.name), hints.get(field.name)):
            try:
                other = dataclasses.replace(value, **{field.name: content})
            except Exception:  # noqa: BLE001 - a constructor refuses by any error
                continue
            # Where the array is the same, the field may promise something of the numbers.
            if _is_like(other, value) and not _same_array(other, value):
                yield Variant(f"another {field.name!r}", other, pairs=True)
                break


def _same_array(x: Any, y: Any) -> bool:
    return difference(_dense(x), _dense(y), 0.0) is None


def static_fields(value: Any) -> list[Any]:
    """The fields of a value that are metadata."""
    return [field for field in dataclass_fields(type(value)) if is_static(field)]


def _hints(cls: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(cls)
    except Exception:  # noqa: BLE001 - names of annotations may be known to checkers alone
        return {}


def _contents(content: Any, hint: Any) -> list[Any]:
    """Other contents that a static field may have."""
    if typing.get_origin(hint) is typing.Literal:
        return [x for x in typing.get_args(hint) if x != content]
    if content is None:
        choices = map(_examples, typing.get_args(hint))
        return [x for examples in choices for x in examples]
    if type(None) in typing.get_args(hint):
        (kind,) = typing.get_args(hint)[:1]
        return [*_contents(content, kind), None]
    if isinstance(content, enum.Enum):
        return [x for x in type(content) if x is not content]
    if isinstance(content, bool):
        return [not content]
    if isinstance(content, int):
        return [content + 1, -content]
    if isinstance(content, float):
        return [content + 1.0, content / 2]
    if type(content) is tuple:
        return [content[::-1]] if content != content[::-1] else []
    return []


def _examples(hint: Any) -> Sequence[Any]:
    """Some contents of a field that may have none."""
    if typing.get_origin(hint) is typing.Literal:
        return typing.get_args(hint)
    kinds: dict[Any, Sequence[Any]] = {
        bool: (True, False),
        int: (0, 1, 2),
        float: (0.5, 2.0),
    }
    return kinds.get(hint, ())


# --- other dtypes, shapes and numbers --------------------------------------------------------


def in_dtype(value: Any, dtype: str) -> Any:
    """The value with its floating leaves in another dtype, or ``None``."""
    if value.dtype == dtype or not jnp.issubdtype(value.dtype, jnp.floating):
        return None
    if not _may_have(type(value), dtype):
        return None
    turn = 1 + 0.5j if dtype == "complex64" else 1
    cast = lambda x: jnp.asarray(x * turn, dtype) if is_floating(x) else x
    return tree_map(cast, value)


def _of_dtype(value: Any, dtype: str) -> Iterator[Variant]:
    other = in_dtype(value, dtype)
    is_made = other is not None and is_value(other)
    if is_made and (other.shape, other.dtype) == (value.shape, dtype):
        yield Variant(f"in {dtype}", other)


def _may_have(cls: type, dtype: str) -> bool:
    """Whether the annotations of fields allow a dtype in place of a floating one."""
    for hint in _hints(cls).values():
        if isinstance(hint, type) and issubclass(hint, jaxtyping.AbstractArray):
            dtypes = hint.dtypes
            is_closed = isinstance(dtypes, (list, tuple))
            if is_closed and "float32" in dtypes and dtype not in dtypes:
                return False
    return True


def _of_sizes(value: Any) -> Iterator[Variant]:
    """With one or no row or column, where that is a slice of each leaf."""
    rank = len(value.shape)
    for axis, name in ((rank - 2, "row"), (rank - 1, "column")):
        if axis < 0 or (axis == rank - 2 and value.shape[-1] == value.shape[-2]):
            continue  # The last axis is cut together with it.
        for size, label in ((1, f"one {name}"), (0, f"no {name}s")):
            yield from _cut(value, value.shape[axis], size, label)


def _of_other_leaves(value: Any) -> Iterator[Variant]:
    """The same array type, of leaves with one entry less along an axis that the array has not."""
    lengths = {n for x in tree_leaves(value) for n in jnp.shape(x)}.difference(value.shape)
    for length in sorted(lengths):
        for variant in _cut(value, length, max(length - 1, 1), "shorter leaves"):
            yield variant._replace(may_be_none=True, pairs=True)


def _cut(value: Any, length: int, size: int, label: str) -> Iterator[Variant]:
    if length <= size:
        return
    cut = lambda n: size if n == length else n
    other = tree_map(
        lambda x: x[tuple(slice(cut(n)) for n in jnp.shape(x))] if jnp.ndim(x) else x, value
    )
    leaves = zip(tree_leaves(value), tree_leaves(other), strict=True)
    if any(_are_indices(x) and x.shape != y.shape for x, y in leaves):
        return
    shape = tuple(map(cut, value.shape))
    is_like = is_value(other) and (other.shape, other.dtype) == (shape, value.dtype)
    if is_like and _has_own_blocks(other):
        yield Variant(label, other)


def _has_own_blocks(value: Any) -> bool:
    """Whether leaves in blocks of a fixed size have no block more than the array needs."""
    axes = axes_of(type(value))
    if axes is None:
        return True
    of_leaves = placed(leaves_of(value), len(value.shape) - len(axes.leafless))
    return all(
        length == -(-value.shape[i] // int(block))
        for _, leaf, where in of_leaves
        for (i, block), length in zip(where, shape_of(leaf), strict=True)
        if i is not None and block is not None and block.isdigit()
    )


def _are_indices(leaf: Any) -> bool:
    """Whether integers may be places in an array of the same length."""
    return jnp.result_type(leaf) in ("int32", "int64", "uint32", "uint64")


def _not_finite(value: Any) -> Iterator[Variant]:
    """With NaN and infinity among the numbers, if they are the entries of the array."""

    def put(leaf: Any) -> Any:
        if not is_floating(leaf) or jnp.shape(leaf) != value.shape or leaf.size < 3:
            return leaf
        flat = jnp.ravel(leaf)
        return flat.at[0].set(jnp.nan).at[-1].set(jnp.inf).reshape(leaf.shape)

    other = tree_map(put, value)
    if not jnp.issubdtype(value.dtype, jnp.inexact) or not is_value(other):
        return
    dense = _dense(other)
    if dense is not None and int(jnp.isfinite(dense).sum()) == dense.size - 2:
        yield Variant("NaN and infinity", other, is_finite=False)

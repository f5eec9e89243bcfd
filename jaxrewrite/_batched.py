"""`stack`: values of one structure as one value, and `Batched`, where the type has no stacks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, overload

import jax
import jax.numpy as jnp
from jax import lax
from jax.tree_util import tree_flatten, tree_leaves, tree_map, tree_unflatten
from jaxtyping import ArrayLike

from . import _compat
from ._array_value import ArrayValue
from ._axes.methods import stack_of
from ._axes.sizes import count_of
from ._core.avals import aval_of, avals_of, children, same_treedef
from ._core.rules import register
from ._core.value import Value, field, is_value
from ._display import brief
from ._staging.materialise import materialise
from ._staging.structure import same_structure


def sliced(x: Any, length: int) -> Any:
    """A value with the avals of one slice of each leaf, and the same metadata."""
    return tree_map(
        lambda leaf: _compat.without_leading_axis(_compat.leaf_aval(leaf), length), x
    )


class Batched(ArrayValue):
    """``length`` values of one structure as one array with a leading axis.

    `stack` builds it of values whose type has no stacks, and so does a scan with such values as
    ys. A scan over it has one value a turn. Indexing and slicing along the leading axis give
    values again.

    A value with stacked leaves is in general not the stack of the values. For example, the
    scales of ``n`` scaled vectors do not broadcast against ``(n, m)``. So the elements stay
    separate: ``materialise`` is the `jax.vmap` of the ``materialise`` of an element.

    Attributes
    ----------
    element
        A value with the metadata of one element and stacked leaves: each has a leading
        axis of ``length``. Do not use it on its own.
    length
        The number of elements.
    ndims
        The number of axes of each leaf of one element. It shows what `jax.vmap` has done: a
        stack that has left `jax.vmap` has more axes in front, and a stack inside of
        `jax.vmap` is an element.

    Raises
    ------
    ValueError
        If a leaf of ``element`` does not have such an axis.
    TypeError
        If ``element`` is not a value.
    """

    element: Value
    length: int = field(static=True)
    ndims: tuple[int, ...] = field(static=True, default=(), kw_only=True, repr=False)

    # The element's shape and dtype mean nothing while its leaves are stacked.
    rules_see_values = True
    _holds_stacked_leaves = True

    def __post_init__(self) -> None:
        if not is_value(self.element):
            name = type(self.element).__name__
            raise TypeError(f"Batched takes a value with stacked leaves, not a {name}.")
        for leaf in tree_leaves(self.element):
            shape = _compat.leaf_aval(leaf).shape
            if shape[:1] != (self.length,):
                raise ValueError(
                    f"Batched: a leaf of its {type(self.element).__name__} has shape "
                    f"{shape}, without a leading axis of {self.length}."
                )

        ndims = [_compat.leaf_aval(leaf).ndim - 1 for leaf in tree_leaves(self.element)]
        object.__setattr__(self, "ndims", tuple(ndims))

    def lengths(self) -> tuple[int, ...]:
        """The lengths of the leading axes: the axes of `jax.vmap`, then the axis of the stack."""
        shapes = [_compat.leaf_aval(leaf).shape for leaf in tree_leaves(self.element)]
        lengths = {
            shape[: len(shape) - ndim]
            for shape, ndim in zip(shapes, self.ndims, strict=True)
        }
        if len(lengths) > 1:
            raise ValueError(
                f"Batched: leaves of its {type(self.element).__name__} have leading axes "
                f"{' and '.join(map(str, sorted(lengths)))}. All leaves need the same: see "
                "in_axes."
            )
        return lengths.pop() if lengths else (self.length,)

    def aval(self) -> Any:
        lengths = self.lengths()
        one = self.element
        for length in lengths:
            one = sliced(one, length)
        aval = aval_of(one)
        for length in reversed(lengths):
            aval = _compat.with_leading_axis(aval, length)
        return aval

    def materialise(self) -> Any:
        leaves, treedef = tree_flatten(self.element)

        def dense(leaves: list[Any]) -> Any:
            return materialise(tree_unflatten(treedef, leaves))

        for length in reversed(self.lengths()):
            dense = jax.vmap(dense, axis_size=length)
        return dense(leaves)

    def of_sliced_leaves(self) -> Any:
        """The element, if all leaves have been sliced: a stack has one axis less."""
        # An element without leaves has not been sliced.
        return self if self.ndims and self.lengths() else self.element


def of_stacked_leaves(value: Value, length: int) -> Value:
    """The stack that a value with the metadata of one, and with stacked leaves, stands for.

    It is of the type of the value, if that says that such leaves are those of a stack, or a
    `Batched`.
    """
    batched = Batched(value, length)
    parts, treedef = children(value)
    inside = [of_stacked_leaves(x, length) if is_value(x) else x for x in parts]
    if any(isinstance(x, Batched) for x in inside):
        return batched
    own = stack_of(tree_unflatten(treedef, inside), length)
    return own if _is_stack(own, batched) else batched


def _is_stack(own: Any, batched: Batched) -> bool:
    """Whether a value has the leaves of a stack of its type, which is that array."""
    try:
        is_own = _are_leaves_of_a_stack(own)
        avals = avals_of([own, batched])
    except Exception:  # noqa: BLE001 - methods of a type raise anything on leaves of no value
        return False
    return is_own and _compat.same_array_type(*avals)


def _are_leaves_of_a_stack(x: Value) -> bool:
    """Whether `Value.sliceable` leaves a value as it is, with arrays for values in its fields."""
    parts, treedef = children(x)
    if x.rules_see_values or not any(map(is_value, parts)):
        return same_structure(x.sliceable(), x)
    trees = []

    def form_of(*arrays: Any) -> list[Any]:
        leaves, tree = tree_flatten(tree_unflatten(treedef, arrays).sliceable())
        trees.append(tree)
        return leaves

    avals = avals_of(parts)
    jaxpr, _ = _compat.trace_to_jaxpr(form_of, avals, _compat.new_debug_info("sliceable"))
    return same_treedef(trees[0], treedef) and all(
        map(_compat.same_array_type, avals_of(jaxpr.outvars), avals)
    )


# These rules act on the leading axis alone and keep every element, so the stack stays.


def _is_one_stack(v: Batched) -> bool:
    return len(v.lengths()) == 1


def _map_leaves(fn: Callable[[Any], Any], v: Batched, length: int) -> Batched:
    return Batched(tree_map(fn, v.element), length)


@register(lax.slice_p)
def _(v: Batched, *, start_indices: Any, limit_indices: Any, strides: Any) -> Any:
    start, limit = start_indices[0], limit_indices[0]
    stride = 1 if strides is None else strides[0]
    parts = any(start_indices[1:]) or tuple(limit_indices[1:]) != v.shape[1:]
    if not _is_one_stack(v) or parts or (strides is not None and set(strides[1:]) - {1}):
        return NotImplemented
    cut = functools.partial(
        lax.slice_in_dim, start_index=start, limit_index=limit, stride=stride
    )
    return _map_leaves(cut, v, count_of(start, limit, stride))


@register(lax.dynamic_slice_p)
def _(v: Batched, start: ArrayLike, *starts: ArrayLike, slice_sizes: Any) -> Any:
    if not _is_one_stack(v) or tuple(slice_sizes[1:]) != v.shape[1:]:
        return NotImplemented
    cut = functools.partial(
        lax.dynamic_slice_in_dim,
        start_index=start,
        slice_size=slice_sizes[0],
        allow_negative_indices=False,
    )
    return _map_leaves(cut, v, slice_sizes[0])


@register(lax.rev_p)
def _(v: Batched, *, dimensions: Any) -> Any:
    if not _is_one_stack(v) or tuple(dimensions) != (0,):
        return NotImplemented
    return _map_leaves(lambda leaf: lax.rev(leaf, (0,)), v, v.length)


@register(lax.squeeze_p)
def _(v: Batched, *, dimensions: Any) -> Any:
    if not _is_one_stack(v) or tuple(dimensions) != (0,):
        return NotImplemented
    return tree_map(lambda leaf: lax.squeeze(leaf, (0,)), v.element)


_V = TypeVar("_V", bound=Value)


@overload
def stack(trees: Iterable[_V]) -> _V | Batched: ...


@overload
def stack(trees: Iterable[Any]) -> Any: ...


def stack(trees: Iterable[Any]) -> Any:
    """Stack values, or pytrees of arrays and values, along a new leading axis.

    For example, stack the layers of a model for a scan over layers.

    Parameters
    ----------
    trees
        Values of one structure: the same types and metadata, and the same shapes and
        dtypes of leaves. Or pytrees of one structure, with such values and arrays as
        leaves.

    Returns
    -------
    Any
        A pytree like each of them, with a stack for each value and a stacked array for each
        array. The stack is of the type of the values, if that has stacks, as most ready types
        have, and a type with ``axes = ...``; or else a `Batched`.

    Raises
    ------
    ValueError
        If there are no trees, or their structures differ.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, jaxrewrite
    >>> class Scaled(jaxrewrite.ArrayValue):
    ...     x: jax.Array
    ...     scale: jax.Array
    ...     def materialise(self):
    ...         return self.x * self.scale
    >>> layers = [Scaled(jnp.ones((2, 2)), jnp.array(float(i))) for i in range(3)]
    >>> jaxrewrite.stack(layers)
    Batched[Scaled]([[[0. 0.]
                      [0. 0.]]
    <BLANKLINE>
                     [[1. 1.]
                      [1. 1.]]
    <BLANKLINE>
                     [[2. 2.]
                      [2. 2.]]], length=3, dtype=float32)
    >>> forward = lambda x, ws: jax.lax.scan(lambda x, w: (x @ w, None), x, ws)[0]
    >>> jaxrewrite.transform(forward, materialise="allow")(
    ...     jnp.ones(2), jaxrewrite.stack(layers))
    Array([0., 0.], dtype=float32)
    """
    trees = list(trees)
    if not trees:
        raise ValueError("stack needs at least one value.")
    flat: list[Any] = [tree_flatten(tree, is_leaf=is_value) for tree in trees]
    first, treedef = flat[0]
    for i, (_, other) in enumerate(flat):
        if not same_treedef(other, treedef):
            raise ValueError(f"stack: number {i} is not a pytree like the first: {other}.")
    stacked = []
    for column in zip(*(leaves for leaves, _ in flat), strict=True):
        is_stackable = is_value(column[0])
        _check_alike(column)
        arrays = tree_map(lambda *leaves: jnp.stack(leaves), *column)
        stacked.append(of_stacked_leaves(arrays, len(trees)) if is_stackable else arrays)
    return tree_unflatten(treedef, stacked)


def _check_alike(column: tuple[Any, ...]) -> None:
    first = column[0]
    for i, other in enumerate(column):
        if not same_structure(other, first):
            raise ValueError(
                f"stack: number {i} is {brief(other)}. Its structure differs from that of the "
                f"first, {brief(first)}. Values can be stacked if their types and metadata, and "
                f"the shapes and dtypes of their leaves, are the same.{_defined_again(first, other)}"
            )


def _defined_again(first: Any, other: Any) -> str:
    """A hint where two types differ that are shown alike, as after a cell has run again."""
    one, two = type(first), type(other)
    if one is two or (one.__module__, one.__qualname__) != (
        two.__module__,
        two.__qualname__,
    ):
        return ""
    return f" The class {one.__name__} was defined again in between: make all values anew."

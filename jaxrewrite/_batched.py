"""Values of one structure, stacked along a leading axis."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.tree_util import tree_flatten, tree_leaves, tree_map, tree_unflatten
from jaxtyping import ArrayLike

from . import _compat
from ._array_value import ArrayValue
from ._avals import aval_of, same_structure, same_treedef
from ._materialise import materialise
from ._rules import register
from ._value import Value, field, is_value


def sliced(x: Any, length: int) -> Any:
    """The avals of one slice of each leaf. A value keeps its metadata."""
    return tree_map(
        lambda leaf: _compat.without_leading_axis(_compat.leaf_aval(leaf), length), x
    )


class Batched(ArrayValue):
    """``length`` values of one structure as one array with a leading axis.

    What a scan gives for values that it stacks, and what `stack` builds. A scan
    over it sees one value a turn.

    Indexing and slicing along the leading axis gives values again.

    A type with stacked leaves is in general not the stack of its values: the
    scale of each of ``n`` scaled vectors does not broadcast against ``(n, m)``.
    So the elements are kept apart: ``materialise`` is the `jax.vmap` of theirs.

    Attributes
    ----------
    element
        A value with the metadata of one element, and leaves that are stacked:
        each has a leading axis of ``length``. It is not to be used by itself.
    length
        The number of elements.
    ndims
        How many axes each leaf of one element has, which says what `jax.vmap` has done: a
        stack that has left it has more axes in front, one inside of it is an element.

    Raises
    ------
    ValueError
        If a leaf of ``element`` has no such axis.
    """

    element: Value
    length: int = field(static=True)
    ndims: tuple[int, ...] = field(static=True, default=(), kw_only=True, repr=False)

    # The element's shape and dtype mean nothing while its leaves are stacked.
    rules_see_values = True

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

    def axes(self) -> tuple[int, ...]:
        """The lengths of the leading axes: the own one, after those of `jax.vmap`."""
        shapes = [_compat.leaf_aval(leaf).shape for leaf in tree_leaves(self.element)]
        axes = {
            shape[: len(shape) - ndim]
            for shape, ndim in zip(shapes, self.ndims, strict=True)
        }
        if len(axes) > 1:
            raise ValueError(
                f"Batched: leaves of its {type(self.element).__name__} have leading axes "
                f"{' and '.join(map(str, sorted(axes)))}. Each leaf needs them: see in_axes."
            )
        return axes.pop() if axes else (self.length,)

    def aval(self) -> Any:
        axes = self.axes()
        one = self.element
        for length in axes:
            one = sliced(one, length)
        aval = aval_of(one)
        for length in reversed(axes):
            aval = _compat.with_leading_axis(aval, length)
        return aval

    def materialise(self) -> Any:
        leaves, treedef = tree_flatten(self.element)

        def dense(leaves: list[Any]) -> Any:
            return materialise(tree_unflatten(treedef, leaves))

        for length in reversed(self.axes()):
            dense = jax.vmap(dense, axis_size=length)
        return dense(leaves)

    def unstacked(self) -> Any:
        # An element without leaves has not been sliced.
        return self if self.ndims and self.axes() else self.element


# These act on the leading axis alone and leave every element whole, so the stack stays.


def _is_one_stack(v: Batched) -> bool:
    return len(v.axes()) == 1


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
    return _map_leaves(cut, v, len(range(start, limit, stride)))


@register(lax.dynamic_slice_p)
def _(v: Batched, start: ArrayLike, *starts: ArrayLike, slice_sizes: Any) -> Any:
    if not _is_one_stack(v) or tuple(slice_sizes[1:]) != v.shape[1:]:
        return NotImplemented
    cut = functools.partial(
        lax.dynamic_slice_in_dim, start_index=start, slice_size=slice_sizes[0]
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


def stack(trees: Iterable[Any]) -> Any:
    """Stack values, or pytrees of arrays and values, along a new leading axis.

    The layers of a model, say, for a scan over layers.

    Parameters
    ----------
    trees
        Values of one structure: the same types, metadata, and shapes and dtypes
        of leaves. Or pytrees of one structure with such values, and arrays, as
        leaves.

    Returns
    -------
    Any
        A pytree like each of them, with a `Batched` in the place of values, and
        with stacked arrays.

    Raises
    ------
    ValueError
        If there are none, or their structures differ.

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
    Batched(element=Scaled(x=f32[3,2,2], scale=f32[3]), length=3)
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
            raise ValueError(f"stack: number {i} is no pytree like the first: {other}.")
    stacked = []
    for column in zip(*(leaves for leaves, _ in flat), strict=True):
        is_stackable = is_value(column[0])
        _check_alike(column)
        arrays = tree_map(lambda *leaves: jnp.stack(leaves), *column)
        stacked.append(Batched(arrays, len(trees)) if is_stackable else arrays)
    return tree_unflatten(treedef, stacked)


def _check_alike(column: tuple[Any, ...]) -> None:
    first = column[0]
    for i, other in enumerate(column):
        if not same_structure(other, first):
            raise ValueError(
                f"stack: number {i} is {other!r}, of another structure than the first, "
                f"{first!r}. Values are stacked if their types, metadata, and the "
                "shapes and dtypes of their leaves are the same."
            )

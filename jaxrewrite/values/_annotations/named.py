"""`Named`: arrays with named axes."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, ArrayLike

import jaxrewrite
from jaxrewrite.primitives import BINARY, CUMULATIVE, REDUCTION, UNARY

from .._base.contract import labels
from .._base.scatters import SCATTER
from .declaration import Annotated, annotation_rule, mapped


Names = tuple[str | None, ...]


class Named(Annotated):
    """An array with names for its axes.

    Names are metadata. They are checked and passed on while a program is staged, and cost
    nothing when it runs. ``None`` is no name and agrees with any name. If operands meet
    entry by entry, their names must agree axis by axis, also on axes of size 1. Reductions
    drop the names of their axes, and a product contracts only axes that agree. An axis that
    stays in its place keeps its name in slices, padding and ``reshape``. A ``reshape`` drops
    the name of an axis that is split, merged or of size 1. If a result has two axes of one
    name, as those of ``x @ x.T`` and ``jnp.kron(x, x)``, both lose it. Results without axes are plain arrays. Where there
    is no rule, as for ``jnp.linalg.solve``, ``inv`` and ``svd``, names are dropped, and none are
    compared. ``jnp.linalg.cholesky`` and ``eigh`` add the matrix to its transpose, whose names
    differ: ``symmetrize_input=False`` says not to.

    Inside of a transformed function axes have numbers. Functions of ``jaxrewrite.numpy`` take
    names in place of them, as in ``jaxrewrite.numpy.sum(x, axis="batch")``, and ``x[{"batch": 0}]``
    indexes by name.

    The idea is that of "Tensor considered harmful" (Rush, 2019) and "Named tensor notation"
    (Chiang, Rush and Barak, 2021), here for programs that number their axes.

    Parameters
    ----------
    array
        An array, or another value, of any shape and dtype. One with names keeps them for axes
        whose new name is ``None``; two names of one axis must be equal.
    names
        A name for each axis, a string or ``None``.

    Attributes
    ----------
    array : Array
        The array itself, which ``materialise`` returns.
    names : tuple
        The names of the last axes, as metadata. A value that has left `jax.vmap`, or a loop that
        stacks it, has axes without names before them; a value inside `jax.vmap` has lost its
        first axes.

    Raises
    ------
    ValueError
        If there are not as many names as axes, or a name occurs twice; or if a program
        aligns axes of different names.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, jaxrewrite
    >>> from jaxrewrite.values import Named
    >>> x = Named(jnp.ones((8, 3)), ("batch", "feature"))
    >>> w = Named(jnp.ones((3, 4)), ("feature", "hidden"))
    >>> jaxrewrite.transform(lambda x, w: jax.nn.softmax(x @ w))(x, w).names
    ('batch', 'hidden')
    >>> jaxrewrite.transform(jnp.sum, materialise="forbid")(x, axis=x.axis("batch")).names
    ('feature',)
    >>> x @ w.T
    Traceback (most recent call last):
    ...
    TypeError: dot_general requires contracting dimensions to have the same shape, ...
    >>> Named(x.array[:3], x.names) + w[:, :3]
    Traceback (most recent call last):
    ...
    ValueError: add aligns an axis named 'batch' with one named 'feature'.
    ...
    """

    outer = 40
    _holds_its_own = False

    # Only the names are lost. Derivative rules get arrays without names.
    materialise_policy = "allow"

    array: Array
    names: Names = jaxrewrite.field(static=True)

    def __init__(self, array: Any, names: Iterable[str | None]):
        axis_names = tuple(names)
        if not all(name is None or isinstance(name, str) for name in axis_names):
            raise ValueError(f"Named: names must be strings or None; got {axis_names!r}.")
        if len(axis_names) != jnp.ndim(array):
            raise ValueError(
                f"Named: names must be as many as axes, {jnp.ndim(array)}; got {axis_names!r}."
            )
        if axis_names != _unique(axis_names):
            raise ValueError(
                f"Named: names must differ from each other; got {axis_names!r}."
            )
        if isinstance(array, Named):
            pairs = zip(_names(array), axis_names, strict=True)
            axis_names = _unique([_agreed("Named", a, b) for a, b in pairs])
            array = array.array
        vars(self).update(array=array, names=axis_names)

    def _merged(self) -> Any:
        return Named(self.array, _names(self))

    def axis(self, name: str) -> int:
        """Return the index of the axis with this name; `ValueError` if there is none."""
        names = _names(self)
        if name not in names:
            raise ValueError(f"No axis is named {name!r}; there are {names!r}.")
        return names.index(name)

    def __getitem__(self, index: Any) -> Any:
        """Index as in an array, or by a dictionary of names: ``x[{"time": 0}]``."""
        if isinstance(index, Mapping):
            by_axis = {self.axis(name): indices for name, indices in index.items()}
            index = tuple(by_axis.get(i, slice(None)) for i in range(self.ndim))
        return super().__getitem__(index)

    def picture(self) -> Any:
        names = f" ({', '.join(map(str, self.names))})" if self.names else ""
        return self.array, names

    def join(self, other: Any) -> Any:
        """Keep the names that both have; an array takes the names of the value."""
        names = _names(self)
        if isinstance(other, Named):
            pairs = zip(names, _names(other), strict=True)
            names = tuple(a if a == b else None for a, b in pairs)
        return Named(self.array, names), Named(_array(other), names)

    def sliceable(self) -> Any:
        """The same array, whose first axis has no name, as those of `jax.vmap`."""
        if len(self.names) < self.ndim:
            return self
        of_elements: Any = object.__new__(Named)
        vars(of_elements).update(array=self.array, names=_names(self)[1:])
        return of_elements


def _names(x: Any) -> Names:
    """A name or ``None`` for each axis."""
    names = x.names if isinstance(x, Named) else ()
    ndim = jnp.ndim(_array(x))
    return (*(None,) * (ndim - len(names)), *names[max(len(names) - ndim, 0) :])


def _array(x: Any) -> Any:
    return x.array if isinstance(x, Named) else x


def _unique(names: Sequence[str | None]) -> Names:
    """Replace names that occur twice by ``None``."""
    names = tuple(names)
    return tuple(name if names.count(name) == 1 else None for name in names)


def _agreed(subject: str, a: str | None, b: str | None) -> str | None:
    if a is not None and b is not None and a != b:
        raise ValueError(
            f"{subject} aligns an axis named {a!r} with one named {b!r}. "
            "Transpose one of the operands, as in x.transpose(1, 0), or rename its axes: Named(x.array, names)."
        )
    return a if b is None else b


def _aligned(primitive: Any, operands: Sequence[Any]) -> Names:
    """The names of arrays that meet entry by entry; a scalar agrees with all names."""
    all_names = [_names(x) for x in operands if jnp.ndim(x)]
    agreed = functools.partial(_agreed, primitive.name)
    return _unique(
        [functools.reduce(agreed, axis) for axis in zip(*all_names, strict=True)]
    )


def _bind(
    primitive: Any, operands: Sequence[Any], names: Sequence[Any], params: Any
) -> Any:
    """Apply a primitive to the arrays; results without axes stay plain."""
    results = jaxrewrite.bind(primitive, *map(_array, operands), **params)
    return mapped(lambda x: Named(x, names) if names else x, primitive, results)


_ENTRY_BY_ENTRY = (*BINARY, "complex", "clamp", "select_n", "concatenate", "pad", "sort")


@annotation_rule(
    Named,
    *(name for name in UNARY if name not in BINARY),
    *CUMULATIVE,
    *("convert_element_type", "reduce_precision", "rev", "slice", "split", "tile", "fft"),
    *("top_k", "device_put", "sharding_constraint"),
    *("dynamic_slice", "dynamic_update_slice"),  # The places have no axes, and no names.
    *_ENTRY_BY_ENTRY,
)
def _keep(*operands: Any, primitive: Any, **params: Any) -> Any:
    return _bind(primitive, operands, _aligned(primitive, operands), params)


@annotation_rule(Named, "bitcast_convert_type")
def _bits(x: Named, *, primitive: Any, **params: Any) -> Any:
    """The bits of each entry, if they are one number."""
    result = jaxrewrite.bind(primitive, x.array, **params)
    return Named(result, _names(x)) if result.shape == x.shape else NotImplemented


@jaxrewrite.register(jnp.ldexp)
def _times_power_of_two(x: Named | ArrayLike, power: Named | ArrayLike) -> Any:
    """As a whole, which has a transpose, where JAX writes it in bits, which have none."""
    product = jaxrewrite.transform(jnp.multiply)(x, power)
    result = jaxrewrite.transform(jnp.ldexp)(_array(x), _array(power))
    return Named(result, product.names) if isinstance(product, Named) else result


@annotation_rule(Named, "psum", "psum_invariant", "pmax", "pmin")
@annotation_rule(Named, "all_to_all", "reduce_scatter")
def _exchange(x: Named, *, primitive: Any, **params: Any) -> Any:
    """Arrays of other devices have the same axes, unless one more comes of the devices."""
    if not params.get("tiled", True):
        return NotImplemented
    return _keep(x, primitive=primitive, **params)


@annotation_rule(Named, *REDUCTION)
def _reduce(x: Named, *, primitive: Any, axes: Any, **params: Any) -> Any:
    names = [name for axis, name in enumerate(_names(x)) if axis not in axes]
    return _bind(primitive, [x], names, {"axes": axes, **params})


@annotation_rule(Named, "dot_general")
def _multiply(
    x: Any, y: Any, *, primitive: Any, dimension_numbers: Any, **params: Any
) -> Any:
    names = _of_product(primitive.name, x, y, dimension_numbers)
    out = _unique(list(names.values()))
    return _bind(primitive, [x, y], out, {"dimension_numbers": dimension_numbers, **params})


@annotation_rule(Named, "ragged_dot_general")
def _multiply_groups(
    x: Any,
    y: Any,
    sizes: Any,
    *,
    primitive: Any,
    ragged_dot_dimension_numbers: Any,
    **params: Any,
) -> Any:
    numbers = ragged_dot_dimension_numbers
    names = _of_product(primitive.name, x, y, numbers.dot_dimension_numbers)
    of_groups = [jnp.ndim(x) + axis for axis in numbers.rhs_group_dimensions]
    out: Sequence[str | None] = [
        name for label, name in names.items() if label not in of_groups
    ]
    is_of_sums = {*numbers.lhs_ragged_dimensions} <= {*numbers.dot_dimension_numbers[0][0]}
    out = (None, *out) if is_of_sums else out  # The groups are along a new axis.
    params["ragged_dot_dimension_numbers"] = numbers
    return _bind(primitive, [x, y, sizes], _unique(out), params)


def _of_product(subject: str, x: Any, y: Any, numbers: Any) -> dict[Any, str | None]:
    """The name of each axis of a product, by its label."""
    axes = labels(numbers, jnp.ndim(x), jnp.ndim(y))
    names: dict[Any, str | None] = {}
    for label, name in zip((*axes.x, *axes.y), (*_names(x), *_names(y)), strict=True):
        names[label] = _agreed(subject, names.get(label), name)
    return {label: names[label] for label in axes.out}


@annotation_rule(Named, "transpose")
def _transpose(x: Named, *, primitive: Any, permutation: Any) -> Any:
    names = [_names(x)[axis] for axis in permutation]
    return _bind(primitive, [x], names, {"permutation": permutation})


@annotation_rule(Named, "broadcast_in_dim")
def _broadcast(x: Named, *, primitive: Any, shape: Any, **params: Any) -> Any:
    names: list[str | None] = [None] * len(shape)
    for axis, name in zip(params["broadcast_dimensions"], _names(x), strict=True):
        names[axis] = name
    return _bind(primitive, [x], names, {"shape": shape, **params})


@annotation_rule(Named, "squeeze", "unstack")
def _squeeze(x: Named, *, primitive: Any, **params: Any) -> Any:
    gone = params["dimensions"] if "dimensions" in params else (params["axis"],)
    names = [name for axis, name in enumerate(_names(x)) if axis not in gone]
    return _bind(primitive, [x], names, params)


@annotation_rule(Named, "stack")
def _stack(*operands: Any, primitive: Any, axis: int) -> Any:
    names = list(_aligned(primitive, operands))
    names.insert(axis, None)
    return _bind(primitive, operands, names, {"axis": axis})


@annotation_rule(Named, "reshape")
def _reshape(x: Named, *, primitive: Any, new_sizes: Any, **params: Any) -> Any:
    names = _unchanged(x.shape, _names(x), tuple(new_sizes))
    return _bind(primitive, [x], names, {"new_sizes": new_sizes, **params})


def _unchanged(old: Sequence[int], names: Names, new: Sequence[int]) -> Any:
    """The names of the axes that a reshape leaves alone.

    It leaves an axis alone if it keeps the size of the axis, which is above one, and the
    number of entries before the axis.
    """
    if tuple(old) == tuple(new):
        return names
    before = dict(zip(zip(old, _entries_before(old), strict=True), names, strict=True))
    return [
        before.get((size, entries)) if size != 1 and 0 not in old else None
        for size, entries in zip(new, _entries_before(new), strict=True)
    ]


def _entries_before(shape: Sequence[int]) -> list[int]:
    return list(itertools.accumulate(shape, operator.mul, initial=1))[:-1]


@annotation_rule(Named, "scatter-mul", *SCATTER)
def _scatter(x: Any, indices: Any, updates: Any, *, primitive: Any, **params: Any) -> Any:
    """Each axis of the updates lies along one of the array, or along one of the indices."""
    names = list(_names(x))
    for own, axis in _pairs(jnp.ndim(x), jnp.ndim(updates), params["dimension_numbers"]):
        names[own] = _agreed(primitive.name, names[own], _names(updates)[axis])
    return _bind(primitive, [x, indices, updates], _unique(names), params)


@annotation_rule(Named, "gather")
def _gather(x: Named, indices: Any, *, primitive: Any, **params: Any) -> Any:
    numbers = params["dimension_numbers"]
    ndim = len(numbers.offset_dims) + jnp.ndim(indices) - 1
    names: list[str | None] = [None] * ndim
    for own, axis in _pairs(jnp.ndim(x), ndim, numbers):
        names[axis] = _names(x)[own]
    return _bind(primitive, [x, indices], names, params)


def _pairs(
    ndim: int,
    ndim_of_part: int,
    numbers: lax.GatherDimensionNumbers | lax.ScatterDimensionNumbers,
) -> list[tuple[int, int]]:
    """The axes of an array with those of what is gathered from it, or scattered into it.

    Both kinds of numbers say the same in the same order. Axes that indices alone give have no pair.
    """
    windows, gone, _, batches, batches_of_indices = numbers
    left = (axis for axis in range(ndim) if axis not in (*gone, *batches))
    others = [axis for axis in range(ndim_of_part) if axis not in windows]
    batched = (others[axis] for axis in batches_of_indices)
    return [*zip(left, windows, strict=True), *zip(batches, batched, strict=True)]


@jaxrewrite.register(jnp.linalg.det)
def _determinant(x: Named, *, primitive: Any, **params: Any) -> Any:
    """What is inside may know it as a whole, as an array with units does."""
    return _bind(primitive, [x], _names(x)[:-2], params)

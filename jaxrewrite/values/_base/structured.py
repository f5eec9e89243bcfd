"""The base class of the ready value types, and small functions that they share."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from numbers import Number
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, ArrayLike, Bool, Integer, Shaped

import jaxrewrite
from jaxrewrite._axes import several
from jaxrewrite._compat import (
    placed_as as placed_as,
    vary_as as vary_as,
    varying_axes as varying_axes,
    with_standard_promotion,
)
from jaxrewrite._core.avals import children as fields_of, is_annotation as is_annotation
from jaxrewrite._display import bytes_text, nbytes_of

from .sizes import are_known


def is_value(x: Any) -> bool:
    return isinstance(x, jaxrewrite.Value)


def short(aval: Any) -> str:
    """The dtype and shape of an aval, like ``f32[3,4]``."""
    return jax.core.ShapedArray(aval.shape, aval.dtype).str_short(short_dtypes=True)


class Structured(jaxrewrite.ArrayValue):
    """Base class of the ready value types. The ``repr`` of a large value tells its bytes.

    If a type has rules for ``slice``, ``squeeze``, ``broadcast_in_dim``, ``reshape`` and
    ``concatenate``, then ``split``, ``unstack``, ``stack`` and ``tile`` follow from them.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> from jaxrewrite import values
    >>> class Outer(values.Structured):
    ...     x: jax.Array
    ...     y: jax.Array
    ...     def materialise(self):
    ...         return jnp.outer(self.x, self.y)
    >>> Outer(jnp.ones(1000), jnp.ones(2000))
    Outer<f32[1000,2000], 12 kB>(x=f32[1000], y=f32[2000])
    """

    _is_base = True

    @property
    def nbytes(self) -> int:
        """The bytes of all leaves."""
        return sum(map(nbytes_of, jax.tree.leaves(self)))

    @property
    def has_zeros(self) -> bool:
        """Whether the array, or a value in a field, has zeros that no leaf holds."""
        parts, _ = fields_of(self)
        return any(isinstance(part, Structured) and part.has_zeros for part in parts)

    def _summary(self) -> str:
        name, fields = super()._summary().split("(", 1)
        try:
            about = f"{short(self.aval())}, {bytes_text(self.nbytes)}"
        except (AttributeError, TypeError, ValueError):
            # JAX put something else in the place of a leaf.
            return f"{name}({fields}"
        return f"{name}<{about}>({fields}"


def alike(*operands: Any) -> tuple[Any, ...]:
    """The same arrays and values, whose leaves vary over the same axes of a mesh.

    JAX makes operands of a primitive alike, but not arrays that a function closes over.
    """
    varying = [x for x in jax.tree.leaves(operands) if varying_axes(jax.typeof(x))]
    return jax.tree.map(lambda x: vary_as(x, varying), operands) if varying else operands


# A value that needs no numbers holds this empty array. Its leading axes are the batch axes.
_NOTHING = np.zeros((0,), np.float32)


def nothing(batch: Sequence[int] = ()) -> np.ndarray:
    """An empty leaf, for types that consist of metadata alone.

    A value that leaves `jax.vmap` has one more axis in front of each leaf. A value without
    any leaf would not get that axis, and would stand for one element of the batch.
    """
    if not batch:
        return _NOTHING
    by = np if are_known(*batch) else jnp
    return by.broadcast_to(_NOTHING, (*batch, 0))


def nothing_field() -> Any:
    """The field of a dataclass that holds `nothing`."""
    return jaxrewrite.field(default_factory=nothing, kw_only=True, repr=False)


def batch_of(cls: str, leaf: Any) -> tuple[int, ...]:
    """The batch axes that an empty leaf records.

    Raises
    ------
    ValueError
        If a transformation of JAX put a batch axis anywhere but in front.
    """
    shape = jnp.shape(leaf)
    if shape[-1:] != (0,):
        raise ValueError(
            f"{cls}: the empty array that it holds has shape {shape}, which does not end "
            "in 0. Batch axes of a value come first: use out_axes=0 with jax.vmap, and "
            "make the value dense before it leaves jax.jacfwd or jax.jacrev. A value "
            "without batch axes is the same for a whole batch: use in_axes=None."
        )
    return shape[:-1]


def is_known(x: Any) -> bool:
    """Whether an array has numbers, so that it is not traced."""
    return isinstance(x, (jax.Array, np.ndarray)) and not isinstance(x, jax.core.Tracer)


def concrete(x: Any) -> np.ndarray | None:
    """The numbers of an array, or ``None`` if it is traced or not an array."""
    return np.asarray(x) if is_known(x) else None


def _unsharded(x: Any) -> Any:
    """An array, by NumPy if it is on a mesh with explicit axes, where JAX refuses to sort, say."""
    axes = () if isinstance(x, np.ndarray) else jax.typeof(x).sharding.mesh.axis_types
    return np.asarray(x) if jax.sharding.AxisType.Explicit in axes else x


def _read(x: Any) -> Any:
    """An array, by NumPy if it lies in memory, where that copies and compiles nothing."""
    if isinstance(x, np.ndarray):
        return x
    is_in_memory = x.is_fully_addressable and is_on_cpu(x)
    return np.asarray(x) if is_in_memory else _unsharded(x)


def is_on_cpu(x: jax.Array) -> bool:
    return all(device.platform == "cpu" for device in x.devices())


def disproved(
    check: Callable[..., Any], *arrays: Any, static: tuple[Hashable, ...] = ()
) -> bool:
    """Whether arrays have known numbers for which a check is false.

    ``check(xp, *arrays, *static)`` computes one truth value, by NumPy if the arrays are
    NumPy's or on a CPU. Others stay on their devices, where ``xp`` is `jax.numpy`.
    """
    arrays = tuple(np.asarray(x) if isinstance(x, Number) else x for x in arrays)
    if not all(map(is_known, arrays)):
        return False
    arrays = tuple(map(_read, arrays))
    if all(isinstance(x, np.ndarray) for x in arrays):
        return not check(np, *arrays, *static)
    return not on_known(functools.partial(_passes, check, static), *arrays)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _passes(check: Callable[..., Any], static: tuple[Hashable, ...], *arrays: Any) -> Any:
    return check(jnp, *arrays, *static)


def are_below(xp: Any, indices: Any, limit: int) -> Any:
    """Whether indices are from zero to below a limit, which their dtype may not hold."""
    most = min(limit - 1, jnp.iinfo(indices.dtype).max)
    return indices.size == 0 if limit < 1 else ((indices >= 0) & (indices <= most)).all()


def are_rows_of_identity(xp: Any, x: Any) -> Any:
    return ((x == 0) | (x == 1)).all() & ((x == 1).sum(-1) == 1).all()


def differs(dense: Any, structured: Callable[[Any], Any]) -> bool:
    """Whether an array has known numbers that differ from those of the value made of it.

    Arrays of NumPy are compared as the array of JAX that is made of them. The value becomes
    dense in a program, so it is of a ready type, not of a user's subclass.
    """
    if not is_known(dense):
        return False

    def is_same(dense: Any) -> Any:
        dense = jnp.asarray(dense)
        return _is_dense_of(structured(dense), dense)

    return not on_known(is_same, dense)


@jax.jit
def _is_dense_of(value: Any, dense: Any) -> Any:
    return _is_same(jaxrewrite.materialise(value), dense).all()


def _is_same(x: Any, y: Any) -> Any:
    """Whether entries are equal, or both NaN. XLA on a CPU takes subnormal numbers for zeros."""
    if jnp.iscomplexobj(x):
        return _is_same(x.real, y.real) & _is_same(x.imag, y.imag)
    if not inexact(x):
        return x == y
    bits = f"uint{jnp.finfo(x.dtype).bits}"
    p, q = (lax.bitcast_convert_type(z, bits) for z in (x, y))
    return (p == q) | ((p | q) << 1 == 0) | (jnp.isnan(x) & jnp.isnan(y))


def is_number(x: Any) -> bool:
    """Whether all axes of an array have size 1, or it has no axes."""
    return all(n == 1 for n in jnp.shape(x))


def zero_unless(where: Bool[Array, ...], x: Shaped[Array, ...]) -> Any:
    """``x`` where a condition holds, and zeros of its dtype elsewhere."""
    shape = jnp.broadcast_shapes(jnp.shape(where), x.shape)
    where, x = (jnp.broadcast_to(operand, shape) for operand in (where, x))
    return jnp.where(where, x, jnp.zeros((), x.dtype))


def with_ndim(x: Any, ndim: int) -> Any:
    """The array with axes of size 1 behind its own, so that it has this many."""
    return x.reshape(*x.shape, *[1] * (ndim - x.ndim))


def padded(x: Any, axis: int, low: int, high: int) -> Any:
    """The array with zeros added at both ends of an axis; a negative number cuts off."""
    config = [(0, 0, 0)] * x.ndim
    config[axis] = (low, high, 0)
    return lax.pad(x, jnp.zeros((), x.dtype), config)


def one_where(where: Bool[Array, "*shape"], dtype: Any) -> Shaped[Array, "*shape"]:
    """Ones where a condition holds, and zeros elsewhere.

    A choice keeps zeros zero. XLA turns the product with a cast condition into a choice,
    which would make zero of zero times infinity.
    """
    return jnp.where(where, jnp.ones((), dtype), jnp.zeros((), dtype))


def is_class(
    index: Integer[Array, "*shape"], classes: int
) -> Bool[Array, "*shape classes"]:
    """Compare an index with each of the classes, along a new last axis."""
    every = jnp.arange(classes, dtype=index.dtype)
    return index[..., None] == every.reshape(*[1] * index.ndim, classes)


def on_dense(primitive: Any, values: Sequence[Any], params: dict[str, Any]) -> Any:
    """A type's ``default`` that computes with dense arrays, under every policy.

    Where the program places an array, the leaves are placed.
    """
    if primitive.name in ("device_put", "reshard", "sharding_constraint"):
        return NotImplemented
    return primitive.bind(*map(jaxrewrite.materialise, values), **params)


def total(x: Shaped[Array, ...] | jaxrewrite.ArrayValue, axes: Sequence[int]) -> Any:
    """The sums of an array or a value over axes, in its own dtype, unlike ``jnp.sum``."""
    if not axes:
        return x
    return jaxrewrite.transform(lambda x: jnp.sum(x, tuple(axes), dtype=x.dtype))(x)


def is_linear_cast(x: Any, dtype: Any) -> bool:
    """Whether the cast of a sum or product is the sum or product of the casts, up to rounding.

    A cast to an integer wraps around or cuts off, and a cast to a real dtype drops the
    imaginary part.
    """
    narrowed = jnp.iscomplexobj(x) and not jnp.issubdtype(dtype, jnp.complexfloating)
    return inexact(x) and jnp.issubdtype(dtype, jnp.inexact) and not narrowed


def on_known(fn: Callable[..., Any], *known: Any) -> Any:
    """A function of arrays whose numbers are known, even while JAX traces, on any mesh."""
    no_mesh = jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ()))
    with jax.ensure_compile_time_eval(), no_mesh:
        return fn(*map(_unsharded, known))


def on_numbers(primitive: Any, params: Any, *numbers: Any) -> np.ndarray:
    """Evaluate a primitive on known numbers."""
    fn = lambda *numbers: primitive.bind(*map(jnp.asarray, numbers), **params)
    return np.asarray(on_known(fn, *numbers))


def is_zero_at(primitive: Any, params: Any, *numbers: Any) -> bool:
    """Whether a primitive maps these known numbers to zero."""
    return bool(on_numbers(primitive, params, *numbers) == 0)


def number_of(literal: Any) -> Any:
    """The number of a literal, in its dtype."""
    return np.asarray(literal.val, literal.aval.dtype)


def inverse_of(number: Any) -> Any:
    """One over a known number."""
    with np.errstate(all="ignore"):
        return 1 / number


def inexact(x: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(x), jnp.inexact)


@with_standard_promotion
def promoted(a: Any, b: Any) -> Any:
    """The dtype that holds both, also where the program allows itself no such promotions."""
    a, b = jnp.dtype(a), jnp.dtype(b)
    return a if a == b else jnp.promote_types(_promotable(a), _promotable(b))


def dtype_of_sums(dtype: Any) -> Any:
    """The dtype to add up in: sums of floats of 16 bits are rounded at the end alone."""
    is_short = jnp.issubdtype(dtype, jnp.floating) and jnp.dtype(dtype).itemsize <= 2
    return promoted(dtype, jnp.float32) if is_short else dtype


def _promotable(dtype: Any) -> Any:
    """A dtype that holds another one, which may be of those of 8 bits that JAX never promotes."""
    is_narrow = jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits <= 8
    return jnp.dtype(jnp.bfloat16) if is_narrow else dtype


def as_inexact(x: Any) -> Any:
    """An array, whose integers and truth values become floats as in `jax.numpy.linalg`."""
    return x if inexact(x) else x.astype(float)


def over_batch(fn: Callable[..., Any], axes: int) -> Callable[..., Any]:
    """A function of one matrix, for a stack of so many batch axes."""
    return functools.reduce(lambda of_one, _: jax.vmap(of_one), range(axes), fn)


# --- several slices or arrays at once, by the primitives for one ------------------------

# A type may have a better rule for all slices or arrays at once, so these come last.
_LAST = -1


for _rule in (several.split, several.unstack, several.stack, several.tile):
    jaxrewrite.register(_rule.__name__, precedence=_LAST, types=(Structured,))(_rule)


@jaxrewrite.register("reshape", precedence=1)
def _(v: Structured, *, new_sizes: Any, dimensions: Any, sharding: Any) -> Any:
    """A reshape that permutes axes first, as of the gradients of grouped convolutions.

    One that the program places on a mesh with explicit axes leaves them to the compiler.
    """
    if sharding is not None:
        params = {"new_sizes": new_sizes, "dimensions": dimensions, "sharding": None}
        reshape = jax.sharding.auto_axes(
            lambda v: jaxrewrite.bind("reshape", v, **params),
            out_sharding=jax.sharding.PartitionSpec(),
        )
        return jaxrewrite.transform(lambda v: jax.sharding.reshard(reshape(v), sharding))(v)
    if dimensions is None:
        return NotImplemented
    v = jaxrewrite.bind("transpose", v, permutation=tuple(dimensions))
    whole = {"new_sizes": new_sizes, "dimensions": None, "sharding": None}
    return jaxrewrite.bind("reshape", v, **whole)


# Rules compare indices with the lengths of axes, and divide them by the lengths of blocks.
@jaxrewrite.register("dynamic_slice", "gather", precedence=1)
def _(v: Structured, *indices: ArrayLike, primitive: Any, **params: Any) -> Any:
    """Indices in integers that a length may not fit are cast to wider ones first."""
    if all(jnp.iinfo(jnp.result_type(index)).bits >= 32 for index in indices):
        return NotImplemented
    wide = (jnp.asarray(index).astype(jnp.int32) for index in indices)
    return jaxrewrite.bind(primitive, v, *wide, **params)

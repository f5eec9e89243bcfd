"""What the ready value types have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import jaxrewrite


def is_value(x: Any) -> bool:
    return isinstance(x, jaxrewrite.Value)


def nbytes_of(leaf: Any) -> int:
    """Bytes of an array, or of what stands for one; 4-bit integers take half a byte."""
    dtype = jnp.result_type(leaf)
    if jax.dtypes.issubdtype(dtype, jax.dtypes.extended):
        return int(jax.random.key_data(leaf).nbytes)
    if jnp.issubdtype(dtype, jnp.integer):
        bits = jnp.iinfo(dtype).bits
    else:
        bits = dtype.itemsize * 8
    return -(-int(np.prod(jnp.shape(leaf), dtype=np.int64)) * bits // 8)


def bytes_text(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            break
        count /= 1000
    return f"{count:.3g} {unit}"


def short(aval: Any) -> str:
    """``f32[3,4]``."""
    return jax.core.ShapedArray(aval.shape, aval.dtype).str_short(short_dtypes=True)


class Structured(jaxrewrite.ArrayValue):
    """Base class of the ready value types: its ``repr`` tells what it takes to hold it.

    Of one that has rules for ``slice``, ``squeeze``, ``broadcast_in_dim``, ``reshape`` and
    ``concatenate``, splits, stacks and tiles are made by these.

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
        """Whether it, or a value that it is made of, is zero where no leaf says so."""
        return any(
            isinstance(part, Structured) and part.has_zeros
            for part in jax.tree.leaves(
                self, is_leaf=lambda x: x is not self and is_value(x)
            )
        )

    def __repr__(self) -> str:
        name, fields = super().__repr__().split("(", 1)
        try:
            about = f"{short(self.aval())}, {bytes_text(self.nbytes)}"
        except (AttributeError, TypeError, ValueError):
            return f"{name}({fields}"  # JAX put something else in the place of a leaf
        return f"{name}<{about}>({fields}"


# A value that needs no numbers holds this empty array, whose shape has the batch axes.
_NOTHING = np.zeros((0,), np.float32)


def nothing(batch: Sequence[int] = ()) -> np.ndarray:
    """An empty leaf, for types that are metadata alone.

    A value that leaves `jax.vmap` has one more axis in front of each leaf. Without any
    leaf it would not be told, and stand for one element of the batch.
    """
    return np.broadcast_to(_NOTHING, (*batch, 0)) if batch else _NOTHING


def nothing_field() -> Any:
    """The field of a dataclass that holds `nothing`."""
    return jaxrewrite.field(default_factory=nothing, kw_only=True, repr=False)


def batch_of(cls: str, leaf: Any) -> tuple[int, ...]:
    """The batch axes that an empty leaf says there are.

    Raises
    ------
    ValueError
        If a transformation of JAX has put them elsewhere than in front.
    """
    shape = jnp.shape(leaf)
    if shape[-1:] != (0,):
        raise ValueError(
            f"{cls}: the empty array that it holds has shape {shape}, which does not end "
            "in 0. Batch axes of a value come first: use out_axes=0 with jax.vmap, and "
            "make the value dense before it leaves jax.jacfwd or jax.jacrev. One without "
            "batch axes is the same for a whole batch: use in_axes=None."
        )
    return shape[:-1]


def concrete(x: Any) -> np.ndarray | None:
    """The numbers of an array, where there are any to be checked; else ``None``."""
    if isinstance(x, jax.core.Tracer) or not isinstance(x, (jax.Array, np.ndarray)):
        return None
    return np.asarray(x)


def differs(dense: Any, value: Any) -> bool:
    """Whether an array is known to be another one than a value stands for."""
    numbers = concrete(dense)
    return numbers is not None and bool((numbers != concrete(value.materialise())).any())


def is_number(x: Any) -> bool:
    """Whether an array has no axes, or none but of size 1."""
    return all(n == 1 for n in jnp.shape(x))


def zero_unless(where: Any, x: Any) -> Any:
    """``x`` where a condition holds, and zeros of its dtype elsewhere."""
    shape = jnp.broadcast_shapes(jnp.shape(where), x.shape)
    where, x = (jnp.broadcast_to(operand, shape) for operand in (where, x))
    return jnp.where(where, x, jnp.zeros((), x.dtype))


def one_where(where: Any, dtype: Any) -> Any:
    """Ones where a condition holds, and zeros elsewhere.

    Chosen and not cast: XLA makes a choice, too, of what a cast condition is multiplied by,
    and so zero of zero times infinity.
    """
    return jnp.where(where, jnp.ones((), dtype), jnp.zeros((), dtype))


def is_class(index: Any, classes: int) -> Any:
    """Whether an index is each of the classes, along a new last axis."""
    every = jnp.arange(classes, dtype=index.dtype)
    return index[..., None] == every.reshape(*[1] * index.ndim, classes)


def total(x: Any, axes: Sequence[int]) -> Any:
    """The sums over axes of an array or a value, in its dtype: not that of ``jnp.sum``."""
    if not axes:
        return x
    return jaxrewrite.transform(lambda x: jnp.sum(x, tuple(axes), dtype=x.dtype))(x)


def is_linear_cast(x: Any, dtype: Any) -> bool:
    """Whether a cast of sums and products is that of their parts, up to rounding.

    Integers wrap around, what is cast to one is cut off, and an imaginary part is left out.
    """
    narrowed = jnp.iscomplexobj(x) and not jnp.issubdtype(dtype, jnp.complexfloating)
    return inexact(x) and jnp.issubdtype(dtype, jnp.inexact) and not narrowed


def on_numbers(primitive: Any, params: Any, *numbers: Any) -> np.ndarray:
    """Evaluate a primitive on known numbers, whatever is being traced, on any mesh."""
    no_mesh = jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ()))
    with jax.ensure_compile_time_eval(), no_mesh:
        return np.asarray(primitive.bind(*map(jnp.asarray, numbers), **params))


def is_zero_at(primitive: Any, params: Any, *numbers: Any) -> bool:
    """Whether what a primitive makes of known numbers is zero."""
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


# --- several slices or arrays at once, by the primitives for one -----------------------------

# Asked after all others: what a type makes of these at once is better than of one by one.
_LAST = -1


def _slice(v: Structured, axis: int, start: int, limit: int) -> Any:
    starts, limits = [0] * v.ndim, list(v.shape)
    starts[axis], limits[axis] = start, limit
    return jaxrewrite.bind(
        lax.slice_p,
        v,
        start_indices=tuple(starts),
        limit_indices=tuple(limits),
        strides=None,
    )


@jaxrewrite.register("split", precedence=_LAST)
def _(v: Structured, *, sizes: Sequence[int], axis: int) -> Any:
    stops = [int(n) for n in np.cumsum(sizes)]
    starts = [0, *stops[:-1]]
    return [_slice(v, axis, i, j) for i, j in zip(starts, stops, strict=True)]


@jaxrewrite.register("unstack", precedence=_LAST)
def _(v: Structured, *, axis: int) -> Any:
    rows = [_slice(v, axis, i, i + 1) for i in range(v.shape[axis])]
    return [jaxrewrite.bind(lax.squeeze_p, row, dimensions=(axis,)) for row in rows]


@jaxrewrite.register("stack", precedence=_LAST)
def _(*vs: Structured, axis: int) -> Any:
    shape = vs[0].shape
    one = lambda v: jaxrewrite.bind(
        lax.broadcast_in_dim_p,
        v,
        shape=(*shape[:axis], 1, *shape[axis:]),
        broadcast_dimensions=tuple(i + (i >= axis) for i in range(len(shape))),
        sharding=None,
    )
    return jaxrewrite.bind(lax.concatenate_p, *map(one, vs), dimension=axis)


@jaxrewrite.register("tile", precedence=_LAST)
def _(v: Structured, *, reps: Sequence[int]) -> Any:
    each = tuple(n for pair in zip(reps, v.shape, strict=True) for n in pair)
    repeated = jaxrewrite.bind(
        lax.broadcast_in_dim_p,
        v,
        shape=each,
        broadcast_dimensions=tuple(range(1, len(each), 2)),
        sharding=None,
    )
    return jaxrewrite.bind(
        lax.reshape_p,
        repeated,
        new_sizes=tuple(r * n for r, n in zip(reps, v.shape, strict=True)),
        dimensions=None,
        sharding=None,
    )

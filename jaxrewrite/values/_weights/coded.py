"""Arrays held as small integers, with multipliers that neighbouring entries share.

In all such types every leaf has as many axes as the array. The first leaf holds the
codes and has the array's shape. The other leaves hold the multipliers. Where an axis of
the array has length ``n``, that axis of a multiplier has a length ``k`` that divides
``n``. The axis then has ``k`` blocks of ``n // k`` consecutive entries, and all entries
of a block share one multiplier. So a primitive that moves entries can move the entries of
each leaf separately.
"""

from __future__ import annotations

import abc
import dataclasses
import operator
from collections.abc import Callable, Container, Sequence
from typing import Any, ClassVar, Self, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Literal
from jaxtyping import ArrayLike

import jaxrewrite
from jaxrewrite import _compat, primitives
from jaxrewrite._axes.blocks import finest, spread
from jaxrewrite._axes.moves import aligned, has_grown, moved
from jaxrewrite._staging.at_once import at_once

from .._base.shapes import check_shapes, same_shape
from .._base.sizes import is_at_most
from .._base.structured import Structured, disproved, number_of


class Multiplied(Structured):
    """Base class of arrays with multipliers, each of which the entries of a block share."""

    _is_base: ClassVar[bool] = True

    def map_scales(self, change: Callable[[Any], Any]) -> Self:
        """This array with its multipliers changed by a function.

        The function is linear and acts on each entry separately. It may return a finer grid
        of blocks and another floating dtype. Apply it to all fields in which the multipliers
        are linear: by default that is the field ``scale``.
        """
        own: Any = self
        return cast(Self, dataclasses.replace(own, scale=change(_scale_of(self))))

    def among(self, values: Sequence[Any]) -> Self:
        """This array in a form that others, with which one array is made, have too."""
        return self

    def join(self, other: Any) -> Any:
        if not isinstance(other, Multiplied):
            return NotImplemented
        both = self, other
        met = aligned([v.among(both) for v in both])
        return NotImplemented if met is None else tuple(met)


def _scale_of(v: Any) -> jax.Array:
    if not hasattr(v, "scale"):
        raise TypeError(
            f"{type(v).__name__} has no field scale, so it has to define map_scales, and "
            "scale_of_blocks if it has codes."
        )
    return cast(jax.Array, v.scale)


class Coded(Multiplied):
    r"""Base class of quantisation formats: ``levels()`` times ``scale_of_blocks()``.

    The first field of a subclass holds the codes, in the shape of the array. The other
    fields hold what the entries of a block share. They have as many axes as the codes, and
    the length of each axis divides the length of that axis of the codes. A subclass defines
    ``levels``, and if it has no field ``scale`` with what multiplies them, ``scale_of_blocks``
    and ``map_scales``. Then transposes, reshapes, slices, stacks, lookups, scaling, casts,
    products and convolutions keep the array quantised, or they dequantise only what they
    need. No float copy outlives a product.

    Attributes
    ----------
    few_rows
        Products of a large array with up to so many rows decode each entry where it is used, once
        for each row, on a CPU. It is 1; a format that is decoded in an operation or two may say 3.

    Examples
    --------
    One bit an entry and one scale a block, as in XNOR-Net:

    >>> import jax, jax.numpy as jnp, jaxrewrite
    >>> from jaxrewrite import values
    >>> class Signs(values.Coded):
    ...     is_negative: jax.Array  # bool[n, m]
    ...     scale: jax.Array  # float[k, l]
    ...     def levels(self):
    ...         return jnp.where(self.is_negative, -1, 1).astype(self.scale.dtype)
    >>> v = Signs(jnp.array([[True, False], [False, False]]), jnp.array([[2.0, 3.0]]))
    >>> jnp.ones(2) @ (v / 2)
    Array([0., 3.], dtype=float32)
    >>> v.T
    Signs([[-2.  2.]
           [ 3.  3.]], dtype=float32)
    """

    _is_base: ClassVar[bool] = True
    _required = (*Multiplied._required, "levels")
    axes = staticmethod(
        lambda codes, *shared: {codes: "...", **dict.fromkeys(shared, ".../block")}
    )

    few_rows: ClassVar[int] = 1

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        check_shapes(cls, {"levels": same_shape, "integers": same_shape, "encoded": _like})

    @property
    def sees_operands(self) -> bool:
        """Whether a product looks at its other operand, so that it is not that of the dense array."""
        return False

    def picture(self) -> Any:
        """The array: a zero among the codes is a number, no gap in a structure."""
        return jaxrewrite.materialise(self)

    @abc.abstractmethod
    def levels(self) -> jax.Array:
        """The numbers that the codes stand for, in the shape and dtype of the array.

        They must be exact for every code, because the scales multiply them afterwards.
        Codes of four bits may come as the same integers in eight bits.
        """

    def integers(self) -> jax.Array | None:
        """The levels as an array of int8, if they are stored as such.

        A large array whose product is scaled after it is summed is then multiplied as it is,
        on a CPU. By default it is None: the levels become floating.
        """
        return None

    def scale_of_blocks(self) -> jax.Array:
        """The number that multiplies the levels of each block, in this array's dtype.

        By default it is the field ``scale``.
        """
        return _scale_of(self)

    def encoded(self, x: jax.Array, sizes: Sequence[int]) -> Any:
        """Another array in this format, rounded in blocks of these sizes along its axes.

        It has this array's dtype. By default it is ``NotImplemented``, and an array of this
        format becomes dense where a program writes into it, whatever the rules.
        """
        return NotImplemented

    def has_scales_in(self, dtype: Any) -> bool:
        """Whether the scales of usual weights are normal numbers of a floating dtype.

        If they are not, a cast to that dtype makes the array dense, and so does a product with a
        number in it, because the scales would lose their digits. No dtype of 8 bits or less has them.
        """
        return bool(jnp.finfo(dtype).bits > 8)

    def aval(self) -> Any:
        # The first field has the codes, also where it is empty and the value only a part of one.
        fields = dataclasses.fields(cast(Any, self))
        codes = getattr(self, next(f.name for f in fields if not f.metadata.get("static")))
        scale_of = type(self).scale_of_blocks
        # A field is there without tracing anything.
        is_field = scale_of is Coded.scale_of_blocks
        scale = _scale_of(self) if is_field else jax.eval_shape(scale_of, self)
        return jax.core.ShapedArray(codes.shape, jnp.result_type(scale))

    def materialise(self) -> jax.Array:
        return at_once(_dense, self) if _compat.nothing_is_traced() else _dense_call(self)


def _like(v: Coded, x: jax.Array, sizes: Sequence[int]) -> tuple[int, ...]:
    return x.shape


def _dense(v: Coded) -> jax.Array:
    return blockwise(jnp.multiply, v.levels(), v.scale_of_blocks())


# A program without `jax.jit` around it runs one operation after the other, but a call at once.
_dense_call = jax.jit(_dense)


def check_blocks(cls: str, **leaves: Any) -> None:
    """Raise `ValueError` unless the other leaves divide the first into whole blocks."""
    (first, codes), *others = leaves.items()
    shape = jnp.shape(codes)
    for name, leaf in others:
        blocks = jnp.shape(leaf)
        fits = len(blocks) == len(shape) and all(
            n == k or (k > 0 and n % k == 0) for k, n in zip(blocks, shape, strict=True)
        )
        if not fits:
            raise ValueError(
                f"{cls}: `{name}` must have as many axes as `{first}`, and the length of "
                f"each must divide the length of that axis of `{first}`; got shapes "
                f"{blocks} and {shape}."
            )


def check_floating(cls: str, name: str, x: Any) -> None:
    """Raise `ValueError` unless an array, or what becomes one, is of real floating numbers."""
    dtype = jnp.result_type(x)
    if not jnp.issubdtype(dtype, jnp.floating):
        raise ValueError(f"{cls}: `{name}` must be real floating; got {dtype}.")


def checked_weight(cls: str, w: Any) -> Any:
    """The array to quantise, dense if it is a value.

    Raises
    ------
    TypeError
        If it is a list or a tuple.
    ValueError
        If its dtype is not real floating, or it has infinite or NaN entries.
    """
    if isinstance(w, (list, tuple)):
        raise TypeError(f"{cls}: w is a {type(w).__name__}, but must be one array.")
    w = jaxrewrite.materialise(w)
    check_floating(cls, "w", w)
    if disproved(_are_finite, w if isinstance(w, jax.Array) else np.asarray(w)):
        raise ValueError(f"{cls}: `w` has entries that are infinite or NaN.")
    return jnp.asarray(w)


def is_floating(leaf: Any) -> bool:
    """Whether a leaf of a pytree is an array, or a value, of real floating numbers."""
    return hasattr(leaf, "dtype") and bool(jnp.issubdtype(leaf.dtype, jnp.floating))


def _are_finite(xp: Any, x: Any) -> Any:
    return xp.isfinite(x).all()


def block_sizes(cls: str, shape: Sequence[int], block: Any) -> tuple[int, ...]:
    """The size of a block along each axis, which it divides."""
    sizes = sizes_asked(cls, shape, block)
    if any(b != n and (b < 1 or n % b) for b, n in zip(sizes, shape, strict=True)):
        raise ValueError(
            f"{cls}: `block` {sizes} does not divide the shape {tuple(shape)} into "
            "whole blocks. Call jaxrewrite.values.quantise with axes=weight_axes(fn, params, x), which "
            "finds the axes that products sum; or give `block` a number for each axis, or None for a "
            "whole axis, with which quantise makes the last block of an axis shorter."
        )
    return sizes


def sizes_asked(cls: str, shape: Sequence[int], block: Any) -> tuple[int, ...]:
    """The size of a block along each axis.

    An integer ``block`` is the size along the first axis. In a tuple, None stands for the
    whole axis.
    """
    sizes = _integers(cls, "block", block)
    if isinstance(block, (int, np.integer)):
        sizes = (*sizes, *(1 for _ in shape[1:]))
    if len(sizes) != len(shape):
        raise ValueError(f"{cls}: `block` is {block} for an array of shape {tuple(shape)}.")
    return tuple(n if b is None else b for b, n in zip(sizes, shape, strict=True))


def _integers(cls: str, name: str, given: Any) -> tuple[Any, ...]:
    """The integers of an option that is one, or a sequence of them and None, as those of Python."""
    some = (given,) if isinstance(given, (int, np.integer)) else given
    try:
        return tuple(None if x is None else operator.index(x) for x in some)
    except TypeError:
        raise ValueError(
            f"{cls}: `{name}` is {given!r}; it must be an integer, or a sequence of integers."
        ) from None


def sizes_along(
    lengths: Sequence[int], block: int, size: Callable[[int, int], int] = min
) -> tuple[int, ...]:
    """The sizes of blocks of so many neighbours at most, which are along the last axes.

    ``size`` gives that along one axis, from what is asked for and the length of the axis. A block
    goes on along the axis before only if it has all of this one.
    """
    sizes = []
    for n in reversed(lengths):
        sizes.append(size(block, n))
        block = block // n if sizes[-1] == n > 0 else 1
    return tuple(sizes[::-1])


def sizes_of(cls: str, shape: Sequence[int], axis: Any, block: Any) -> tuple[int, ...]:
    """The size of a block along each axis, from ``axis`` or ``block`` of `quantise`."""
    if block is not None:
        if axis is not None:
            raise ValueError(f"{cls}: give `axis` or `block`, not both.")
        return block_sizes(cls, shape, block)
    single = axes_asked(cls, "axis", shape, axis)
    return tuple(1 if a in single else n for a, n in enumerate(shape))


def axes_asked(cls: str, name: str, shape: Sequence[int], axis: Any) -> tuple[int, ...]:
    """The axes of an array that an option names: one, or a sequence of them, or None."""
    axes = () if axis is None else _integers(cls, name, axis)
    if any(a is None or not -len(shape) <= a < len(shape) for a in axes):
        raise ValueError(
            f"{cls}: `{name}` {axis} is not an axis of an array of shape {tuple(shape)}."
        )
    return tuple(a % len(shape) for a in axes)


def of_blocks(reduce: Callable[..., Any], x: Any, sizes: Sequence[int]) -> Any:
    """Reduce each block of these sizes to a number."""
    pairs = list(zip(x.shape, sizes, strict=True))
    split = x.reshape([size for n, b in pairs for size in (n // (b or 1), b)])
    return reduce(split, axis=tuple(range(1, 2 * x.ndim, 2)), initial=0)


def with_nan(shared: Any, x: Any, sizes: Sequence[int]) -> Any:
    """The numbers of blocks of these sizes, or NaN if a block has a NaN, which no integer shows.

    XLA on a CPU may lose a NaN in a maximum.
    """
    return jnp.where(of_blocks(jnp.max, jnp.isnan(x), sizes), jnp.nan, shared)


def scale_in(dtype: Any, scale: Any, level: Any) -> Any:
    """The least scales of a dtype that are no smaller than these, and one for zero.

    A scale that is rounded down would cut off the largest entries. In a block of zeros any
    scale gives zero. But where ``level``, the largest magnitude of a level, would stand for
    more than the largest number of the dtype, the scale is the largest that does not.
    """
    rounded = scale.astype(dtype)
    larger = jnp.nextafter(rounded, jnp.asarray(jnp.inf, dtype))
    rounded = jnp.where(rounded.astype(scale.dtype) < scale, larger, rounded)
    # Scales that are infinite stay so, as they are those of infinite entries.
    most = jnp.asarray(jnp.finfo(dtype).max, scale.dtype)
    limit = jnp.broadcast_to(most / level, scale.shape).astype(dtype)
    smaller = jnp.nextafter(limit, jnp.zeros((), dtype))
    limit = jnp.where(limit.astype(scale.dtype) * level > most, smaller, limit)
    rounded = jnp.where(jnp.isfinite(scale), jnp.minimum(rounded, limit), rounded)
    return jnp.where(rounded == 0, 1, rounded)


# --- what the entries of a block share ------------------------------------------------


def blockwise(op: Callable[..., Any], x: Any, shared: Any) -> Any:
    """``op(x, shared)``, where each entry of ``shared`` belongs to a block of ``x``.

    The axes of ``x`` are split, which costs nothing. The alternative, repeating the entries
    of ``shared``, would cost memory.
    """
    pairs = list(zip(x.shape, shared.shape, strict=True))
    factors = [[(n, k)] if k in (1, n) else [(k, k), (n // k, 1)] for n, k in pairs]
    split = [axis for axes in factors for axis in axes]
    x_split = x.reshape([n for n, _ in split])
    return op(x_split, shared.reshape([k for _, k in split])).reshape(x.shape)


def relative(x: Any, shared: Any) -> Any:
    """The entries divided by what their blocks share, which is positive, or zero for zeros.

    XLA on a CPU multiplies with the inverse, which it takes for zero if it is subnormal. So both
    are a quarter of what they were, which rounds nothing that a large divisor leaves.
    """
    part = jnp.where(shared > 1, 0.25, 1).astype(shared.dtype)
    divisor = jnp.where(shared == 0, 1, shared * part)
    return blockwise(jnp.divide, blockwise(jnp.multiply, x, part), divisor)


# --- where entries go: what `axes` does not say -----------------------------------------


@jaxrewrite.register("squeeze", "dynamic_slice", "gather")
def _(v: Multiplied, *indices: ArrayLike, primitive: Any, **params: Any) -> Any:
    """Rows that are looked up in a table are activations, so they become dense.

    Matrices that are taken from a stack are still weights, so they keep their form.
    """
    part = moved(primitive.name, v, *indices, may_grow=True, **params)
    if part is NotImplemented:
        return NotImplemented
    are_weights = TAKES_WEIGHTS[primitive.name](v.shape, **params)
    return part if are_weights and not has_grown(v, part) else part.materialise()


def takes_matrices(
    shape: Sequence[int],
    dimension_numbers: lax.GatherDimensionNumbers,
    slice_sizes: Sequence[int],
    **params: Any,
) -> bool:
    """Whether a gather takes weights from a stack."""
    numbers = dimension_numbers
    # Under `jax.vmap`, the axis along which one row is taken is still there.
    gone = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    return len(_axes_left(shape, slice_sizes, gone)) > 1


def _axes_left(
    shape: Sequence[int], slice_sizes: Sequence[int], gone: Container[int] = ()
) -> list[int]:
    """The axes that a window of these sizes has without some: two are of a matrix, as weights are.

    Rows that are looked up in a table are activations. An axis of length one counts if the
    array has no more there.
    """
    pairs = enumerate(zip(shape, slice_sizes, strict=True))
    return [
        a for a, (n, size) in pairs if a not in gone and (n == 1 or not is_at_most(size, 1))
    ]


TAKES_WEIGHTS: dict[str, Callable[..., bool]] = {
    "squeeze": lambda shape, dimensions: len(shape) - len(dimensions) > 1,
    "dynamic_slice": lambda shape, slice_sizes: len(_axes_left(shape, slice_sizes)) > 1,
    "gather": takes_matrices,
}


# An array of one axis, such as a bias, is no larger than the activations that it is added to.


@jaxrewrite.register(*primitives.ADDITIVE, exchange="types")
def _(x: Coded, y: ArrayLike, *, primitive, **params) -> Any:
    if any(isinstance(z, Coded) and z.ndim > 1 for z in (x, y)):
        return NotImplemented
    return primitive.bind(*jaxrewrite.materialise((x, y)), **params)


def _in_one_form(vs: Sequence[Coded]) -> Sequence[Coded] | None:
    """Arrays in the form that all of them have, ``None`` if they have it already."""
    met = [v.among(vs) for v in vs]
    return None if all(v is w for v, w in zip(vs, met, strict=True)) else met


@jaxrewrite.register("concatenate")
def _(*vs: Coded, primitive, **params) -> Any:
    met = _in_one_form(vs)
    return NotImplemented if met is None else jaxrewrite.bind(primitive, *met, **params)


@jaxrewrite.register("select_n")
def _(which: ArrayLike, *cases: Coded, primitive, **params) -> Any:
    met = _in_one_form(cases)
    if met is None:
        return NotImplemented
    return jaxrewrite.bind(primitive, which, *met, **params)


@jaxrewrite.register("unstack")
def _(v: Coded, *, axis, **params) -> Any:
    def element(x: Any, i: int) -> Any:
        return lax.index_in_dim(x, i * x.shape[axis] // v.shape[axis], axis, keepdims=False)

    return [jax.tree.map(lambda x, i=i: element(x, i), v) for i in range(v.shape[axis])]


# --- scaling --------------------------------------------------------------------------


@jaxrewrite.register("neg")
def _(v: Multiplied, **params) -> Any:
    return v.map_scales(jnp.negative)


@jaxrewrite.register("mul", exchange="operands")
@jaxrewrite.register("div")
def _(v: Multiplied, c: ArrayLike, *, primitive, **params) -> Any:
    return rescaled(v, _OPERATIONS[primitive.name], c, **params)


_OPERATIONS: dict[str, Callable[..., Any]] = {"mul": jnp.multiply, "div": jnp.divide}


def rescaled(v: Any, op: Callable[..., Any], c: Any, **params: Any) -> Any:
    """``op(v, c)``, where ``c`` is a number or has one number per index of some axes."""
    # Scales of float16 are barely normal numbers, so that a small factor would take their digits.
    if isinstance(v, Coded) and jnp.finfo(v.dtype).nexp < 8:
        return NotImplemented
    return _with_scales(v, op, c, **params)


def _with_scales(v: Any, op: Callable[..., Any], c: Any, **params: Any) -> Any:
    shape = jnp.shape(c) or (1,) * v.ndim
    # An array with more axes, or longer ones, repeats ``v``.
    if len(shape) != v.ndim or jnp.broadcast_shapes(shape, v.shape) != v.shape:
        return NotImplemented
    factor = jnp.reshape(c, shape)
    new = v.map_scales(
        lambda shared: op(spread(shared, finest(shared.shape, shape)), factor)
    )
    return NotImplemented if has_grown(v, new) else new


@jaxrewrite.register("mul", exchange="operands", precedence=-1)
@jaxrewrite.register("div", precedence=-1)
def _(v: Coded, c: Literal, *, primitive, **params) -> Any:
    """The number of a program shows whether it makes a scale smaller, also in float16."""
    size = abs(number_of(c))
    makes_smaller = size < 1 if primitive.name == "mul" else not 0 < size <= 1
    if makes_smaller or not v.has_scales_in(v.dtype):
        return NotImplemented
    number = jnp.asarray(c.val, v.dtype)
    return _with_scales(v, _OPERATIONS[primitive.name], number, **params)


@jaxrewrite.register("convert_element_type")
def _(v: Coded, *, new_dtype, **params) -> Any:
    if not jnp.issubdtype(new_dtype, jnp.floating) or not v.has_scales_in(new_dtype):
        return NotImplemented
    return v.map_scales(lambda scale: scale.astype(new_dtype))


@jaxrewrite.register("conv_general_dilated")
def convolved(x: ArrayLike, v: Coded, **params) -> Any:
    """With the dense kernel, which the backward pass makes again."""

    def convolve(x: Any, v: Any) -> Any:
        return lax.conv_general_dilated_p.bind(x, v.materialise(), **params)

    return _compat.call_after(convolve, x, v)

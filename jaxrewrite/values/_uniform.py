"""`Zero` and `Constant`: arrays that repeat one number."""

from __future__ import annotations

import abc
import functools
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Literal
from jaxtyping import Array

import jaxrewrite
from jaxrewrite import ArrayValue, bind, primitives, transform
from jaxrewrite.extend import Zeros

from ._base.contract import in_dtype, labels, sides, transpose
from ._base.gathers import fills
from ._base.scatters import SCATTER, applies_function
from ._base.sizes import checked_shape
from ._base.structured import (
    Structured,
    batch_of,
    dtype_of_sums,
    is_number,
    is_zero_at,
    nothing,
    nothing_field,
    number_of,
    on_numbers,
    total,
)
from ._matrices.matrix import Matrix
from ._matrices.rules import masked


class Uniform(Structured):
    """Base class of arrays that repeat one number, of any shape and dtype."""

    _is_base = True
    _required = (*Structured._required, "number", "of")

    @abc.abstractmethod
    def number(self) -> Any:
        """The number, an array of shape ()."""

    @abc.abstractmethod
    def of(self, shape: Sequence[int]) -> Any:
        """The same number in another shape."""

    def materialise(self) -> Any:
        return jnp.broadcast_to(self.number(), self.shape)


class Zero(Uniform):
    r"""An array of zeros that holds no numbers.

    A sum with it is the other array. A product with it is a `Zero`, in all forms: entry by
    entry, ``dot_general`` and convolution. The other factor is taken to be finite, as for
    all symbolic zeros, unless the rules `strict_zeros` are in force. A division by it gives
    the same as a division by dense zeros.

    Attributes
    ----------
    of_shape, of_dtype
        The shape, or one size, and the dtype of the array. The value also holds an empty
        array; its shape has the batch axes that `jax.vmap` put in front.

    Raises
    ------
    ValueError
        If a size is negative.
    TypeError
        If a size is not an integer.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from jaxrewrite.values import Zero
    >>> Zero((2, 3)) @ jnp.ones((3, 4))
    Zero([[· · · ·]
          [· · · ·]], dtype=float32)
    >>> jnp.arange(3.0) + Zero((3,))
    Array([0., 1., 2.], dtype=float32)
    """

    outer = -10

    of_shape: tuple[int, ...] = jaxrewrite.field(static=True)
    of_dtype: Any = jaxrewrite.field(static=True, default=jnp.dtype("float32"))
    _nothing: Any = nothing_field()

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "of_shape", checked_shape("Zero", "of_shape", self.of_shape)
        )
        of_dtype = jax.dtypes.canonicalize_dtype(self.of_dtype)
        object.__setattr__(self, "of_dtype", of_dtype)
        # A value is weakly typed if its leaves of its own dtype are.
        object.__setattr__(self, "_nothing", self._nothing.astype(self.of_dtype))

    @property
    def has_zeros(self) -> bool:
        return True

    def aval(self) -> Any:
        shape = (*batch_of("Zero", self._nothing), *self.of_shape)
        return jax.core.ShapedArray(shape, self.of_dtype)

    def number(self) -> Any:
        return jnp.zeros((), self.of_dtype)

    def of(self, shape: Sequence[int]) -> Any:
        return Zero(tuple(shape), self.of_dtype)

    def sliceable(self) -> Any:
        """The same array, with an empty leaf that has its first axis."""
        if batch_of("Zero", self._nothing) or not self.shape:
            return self
        length, *rest = self.shape
        return Zero(tuple(rest), self.of_dtype, _nothing=nothing((length,)))

    def join(self, other: Any) -> Any:
        if isinstance(other, Zero):
            return self.of(self.shape), other.of(other.shape)
        if not isinstance(other, Constant):
            return NotImplemented
        return Constant(self.number(), self.shape), other

    def tangent(self, leaf_tangents: Any) -> Any:
        return self


class Constant(Uniform):
    r"""An array that repeats one number, :math:`C_{ij\ldots} = c`.

    Functions that act entry by entry act on the number. A sum is a product with a count.

    Attributes
    ----------
    fill
        The number: an array of shape (), or a `Known` number, which is metadata.
    of_shape
        The shape of the array. The dtype is that of the number. A constant that has left
        `jax.vmap` has the batch axes in ``fill``, and the array has them before this shape.

    Raises
    ------
    ValueError
        If ``fill`` has axes, or a size is negative.
    TypeError
        If a size is not an integer.

    Examples
    --------
    >>> import jax.numpy as jnp, jaxrewrite
    >>> from jaxrewrite.values import Constant, Known
    >>> v = Constant(jnp.float32(2), (1000, 1000))
    >>> jaxrewrite.numpy.sum(v + 2, axis=0)
    Constant<f32[1000], 4 B>(fill=f32[], of_shape=(1000,))
    >>> jaxrewrite.numpy.sqrt(Constant(Known(4.0), (3,))).fill
    Known(2., is_known=2.0, dtype=float32)
    """

    outer = -30

    fill: Any
    of_shape: tuple[int, ...] = jaxrewrite.field(static=True)

    def __post_init__(self) -> None:
        if jnp.ndim(self.fill):
            raise ValueError(f"Constant: fill has shape {jnp.shape(self.fill)}, not ().")
        object.__setattr__(
            self, "of_shape", checked_shape("Constant", "of_shape", self.of_shape)
        )

    def aval(self) -> Any:
        shape = (*jnp.shape(self.fill), *self.of_shape)
        return jax.core.ShapedArray(shape, jnp.result_type(self.fill))

    def materialise(self) -> Any:
        ones = [1] * len(self.of_shape)
        number = jnp.reshape(self.fill, (*jnp.shape(self.fill), *ones))
        return jnp.broadcast_to(number, self.shape)

    def sliceable(self) -> Any:
        """The same array, with a number for each element of the first axis."""
        if jnp.ndim(self.fill) or not self.of_shape:
            return self
        length, *rest = self.of_shape
        batch = object.__new__(Constant)  # The constructor refuses batch axes.
        fill = jnp.broadcast_to(self.fill, (length,))
        vars(batch).update(fill=fill, of_shape=tuple(rest))
        return batch

    def number(self) -> Any:
        return self.fill

    def of(self, shape: Sequence[int]) -> Any:
        return repeated(self.fill, shape)

    def join(self, other: Any) -> Any:
        if not isinstance(other, Zero):
            return NotImplemented
        return self, Constant(other.number(), other.shape)


def repeated(number: Any, shape: Sequence[int]) -> Any:
    """A number in a shape: a `Constant`, or the number itself if there are no axes."""
    return Constant(number, tuple(shape)) if len(shape) else number


def register(*names: Any, **options: Any) -> Callable[[Any], Any]:
    """`jaxrewrite.register` for rules that take a constant as one number.

    A constant with batch axes is made dense before it meets other operands.
    """

    def decorate(rule: Any) -> Any:
        signature = inspect.signature(rule)
        takes_primitive = "primitive" in signature.parameters

        @functools.wraps(rule)
        def on_single(*operands: Any, primitive: Any, **params: Any) -> Any:
            if any(isinstance(x, Constant) and jnp.ndim(x.fill) for x in operands):
                arrays = [
                    x.materialise() if isinstance(x, Constant) else x for x in operands
                ]
                return bind(primitive, *arrays, **params)
            if takes_primitive:
                params["primitive"] = primitive
            return rule(*operands, **params)

        if not takes_primitive:
            parameter = inspect.Parameter("primitive", inspect.Parameter.KEYWORD_ONLY)
            by_kind = sorted(
                [*signature.parameters.values(), parameter], key=lambda p: p.kind
            )
            signature = signature.replace(parameters=by_kind)
        vars(on_single)["__signature__"] = signature
        jaxrewrite.register(*names, **options)(on_single)
        return rule

    return decorate


# --- numbers that are metadata ------------------------------------------------------------


class Known(Structured):
    """A number that is part of the program's structure and not an argument.

    A program is compiled for each such number. A function of known numbers alone is known.
    A number that a program itself contains is an array to a rule, so it is not known.

    Attributes
    ----------
    is_known
        A Python number.
    of_dtype
        The dtype of the array, of shape (). By default JAX's dtype for the number.
    """

    is_known: Any = jaxrewrite.field(static=True)
    of_dtype: Any = jaxrewrite.field(static=True, default=None)
    _nothing: Any = nothing_field()
    # Numbers that are equal to Python may differ as arrays: 0.0 and -0.0.
    _bytes: bytes = jaxrewrite.field(init=False, repr=False, static=True)

    axes = {"self": "...", "_nothing": "... 0"}

    materialise_policy = "allow"  # It is only one number.

    def __post_init__(self) -> None:
        if not isinstance(self.is_known, (bool, int, float, complex)):
            kind = type(self.is_known).__name__
            raise ValueError(f"Known: is_known is a {kind}, not a Python number.")
        dtype = jnp.result_type(self.is_known if self.of_dtype is None else self.of_dtype)
        object.__setattr__(self, "of_dtype", dtype)
        with np.errstate(all="ignore"):
            number = np.asarray(self.is_known, dtype)
        object.__setattr__(self, "_bytes", number.tobytes())

    def aval(self) -> Any:
        return jax.core.ShapedArray(batch_of("Known", self._nothing), self.of_dtype)

    def number(self) -> Any:
        """The number as an array of shape ()."""
        return jnp.asarray(self.is_known, self.of_dtype)

    def materialise(self) -> Any:
        return jnp.broadcast_to(self.number(), self.shape)


@register(*primitives.UNARY, *primitives.BINARY, "convert_element_type")
def _(*operands: Known, primitive: Any, **params: Any) -> Any:
    numbers = (np.asarray(v.is_known, v.of_dtype) for v in operands)
    result = on_numbers(primitive, params, *numbers)
    shape = jnp.broadcast_shapes(*(v.shape for v in operands))
    return Known(result.item(), result.dtype, _nothing=nothing(shape))


# --- rules for any number -----------------------------------------------------------------


def _result(primitive: Any, params: Any, *operands: Any) -> Any:
    """The aval of the result of a primitive."""
    avals = [jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x.dtype)) for x in operands]
    return jax.eval_shape(lambda *xs: primitive.bind(*xs, **params), *avals)


@register(*primitives.UNARY, "convert_element_type")
def _(v: Uniform, *, primitive: Any, **params: Any) -> Any:
    return repeated(bind(primitive, v.number(), **params), v.shape)


@register(*primitives.SHAPE)
def _(v: Uniform, *, primitive: Any, **params: Any) -> Any:
    return v.of(_result(primitive, params, v).shape)


@register(*primitives.INDEXING)
def _(v: Uniform, *indices: Array, primitive: Any, **params: Any) -> Any:
    if "mode" in params and fills(params["mode"]):
        return NotImplemented  # The result may have other numbers.
    return v.of(_result(primitive, params, v, *indices).shape)


# Two zeros have their own rules for linear primitives and for products.
_NO_PRODUCT = [name for name in primitives.BINARY if name != "mul"]
_OTHERS = [name for name in _NO_PRODUCT if name not in primitives.ADDITIVE]


@register(*_OTHERS, types=(Zero, Zero))
@register(*_NO_PRODUCT, types=(Zero, Constant), exchange="types")
@register(*primitives.BINARY, types=(Constant, Constant))
def _(v: Uniform, w: Uniform, *, primitive: Any, **params: Any) -> Any:
    shape = jnp.broadcast_shapes(v.shape, w.shape)
    return repeated(bind(primitive, v.number(), w.number(), **params), shape)


@register(*primitives.BINARY, types=(Uniform, Array), exchange="types")
def _(x: Any, y: Any, *, primitive: Any, **params: Any) -> Any:
    """Entry by entry, for a uniform array and a dense one."""
    shape = jnp.broadcast_shapes(x.shape, y.shape)
    for uniform, other in ((x, y), (y, x)):
        if isinstance(uniform, Uniform) and uniform.shape == shape and is_number(other):
            numbers = [z.number() if z is uniform else jnp.reshape(z, ()) for z in (x, y)]
            return repeated(bind(primitive, *numbers, **params), shape)
    full = [
        jnp.broadcast_to(z.number() if isinstance(z, Uniform) else z, shape) for z in (x, y)
    ]
    return bind(primitive, *full, **params)


@register(*primitives.REDUCTION)
def _(v: Uniform, *, primitive: Any, **params: Any) -> Any:
    result = _result(primitive, params, v)
    count = int(np.prod([v.shape[axis] for axis in params["axes"]], dtype=np.int64))
    name = primitive.name
    if name == "reduce_sum":
        return repeated(_times(v.number(), count), result.shape)
    if count == 0:
        return NotImplemented
    if name in ("argmax", "argmin"):
        return Zero(result.shape, result.dtype)
    if name in ("reduce_prod", "reduce_xor"):
        counted = lambda x: jnp.broadcast_to(x, (count,))
        many = transform(counted)(v.number())
        return repeated(bind(primitive, many, **(params | {"axes": (0,)})), result.shape)
    return v.of(result.shape)


def _times(number: Any, count: int) -> Any:
    """The sum of ``count`` equal numbers; the sum of none is zero, even of infinities."""
    if count == 0:
        return jnp.zeros((), number.dtype)
    wide = dtype_of_sums(number.dtype)  # The count may be above all numbers of 16 bits.
    times = lambda number: number.astype(wide) * np.asarray(count).astype(wide)
    return transform(lambda x: times(x).astype(x.dtype))(number)


@register("cummax", "cummin", "rev", "sort")
def _(v: Uniform, **params: Any) -> Any:
    return [v] if "num_keys" in params else v


@register("select_n")
def _(which: Array, *cases: Uniform) -> Any:
    if all(isinstance(case, Zero) for case in cases):
        return cases[0]
    if jnp.ndim(which) == 0:
        return repeated(lax.select_n(which, *(v.number() for v in cases)), cases[0].shape)
    return lax.select_n(which, *(v.materialise() for v in cases))


@register("select_n")
def _(which: Uniform, *cases: ArrayValue, primitive: Any) -> Any:
    return bind(primitive, which.number(), *cases)


@register("select_n", types=(Array, Uniform, Zeros))
@register("select_n", types=(Array, Zeros, Uniform))
def _(which: Any, x: Any, y: Any) -> Any:
    v = y if isinstance(x, Zeros) else x
    if isinstance(v, Zero):
        return v
    if jnp.ndim(which):
        return lax.select_n(which, x.materialise(), y.materialise())
    numbers = (v.number() if case is v else jnp.zeros((), v.dtype) for case in (x, y))
    return repeated(lax.select_n(which, *numbers), v.shape)


@register("select_n")
def _(which: Array, *cases: Array | Uniform) -> Any:
    return lax.select_n(which, *map(_dense, cases))


jaxrewrite.register("select_n", types=(Array, Matrix, Zero))(masked)
jaxrewrite.register("select_n", types=(Array, Zero, Matrix))(masked)


_SCATTER = ("scatter-mul", *SCATTER)


@register("concatenate", "dynamic_update_slice", *_SCATTER)
def _(*xs: Array | Uniform, primitive: Any, **params: Any) -> Any:
    """A result with the numbers of several arrays is dense."""
    return bind(primitive, *map(_dense, xs), **params)


@register("concatenate")
def _(*xs: Zero, dimension: int) -> Any:
    shape = list(xs[0].shape)
    shape[dimension] = sum(x.shape[dimension] for x in xs)
    return xs[0].of(shape)


def _dense(x: Any) -> Any:
    return x.materialise() if isinstance(x, Uniform) else x


@register("clamp")
def _(low: Array, v: Uniform, high: Array) -> Any:
    if jnp.ndim(low) or jnp.ndim(high):
        return lax.clamp(low, v.materialise(), high)
    return repeated(bind("clamp", low, v.number(), high), v.shape)


# --- products with a constant -------------------------------------------------------------


@register("dot_general")
def _(v: Constant, w: Constant, *, dimension_numbers: Any, **params: Any) -> Any:
    vs, ws, out = labels(dimension_numbers, v.ndim, w.ndim)
    dtype = params["preferred_element_type"] or jnp.result_type(v.dtype, w.dtype)
    sizes = dict(zip((*vs, *ws), (*v.shape, *w.shape), strict=True))
    count = np.prod([n for label, n in sizes.items() if label not in out], dtype=np.int64)
    wide = dtype_of_sums(dtype)
    both = transform(lambda a, b: a.astype(wide) * b.astype(wide))
    number = _times(both(v.number(), w.number()), int(count))
    return repeated(in_dtype(number, dtype), tuple(sizes[label] for label in out))


@register("dot_general", exchange="types")
def _(
    left: Constant, right: Array | ArrayValue, *, dimension_numbers: Any, **params: Any
) -> Any:
    """The number times sums of the other operand, repeated along the free axes of the constant."""
    _, v, x, vs, xs, out = sides(Constant, left, right, dimension_numbers)
    dtype = params["preferred_element_type"] or jnp.result_type(v.dtype, x.dtype)
    axes = tuple(i for i, label in enumerate(xs) if label not in out)
    kept = tuple(label for label in out if label in xs)
    sizes = dict(zip((*vs, *xs), (*v.shape, *x.shape), strict=True))
    shape = tuple(sizes[label] for label in out)

    if not math.prod(x.shape[axis] for axis in axes):
        return jnp.zeros(shape, dtype)

    def spread(x: Any, number: Any) -> Any:
        wide = dtype_of_sums(dtype)
        summed = (total(x.astype(wide), axes) * number.astype(wide)).astype(dtype)
        moved = transpose(summed, tuple(label for label in xs if label in out), kept)
        return lax.broadcast_in_dim(moved, shape, [out.index(label) for label in kept])

    return transform(spread)(x, v.number())


@register(*primitives.BINARY, exchange="types")
def _(x: Constant, y: ArrayValue, *, primitive: Any, **params: Any) -> Any:
    """Replace the array by its number, where the type of the other operand takes numbers."""
    shape = jnp.broadcast_shapes(x.shape, y.shape)
    other = y if isinstance(x, Constant) else x
    if other.shape != shape:
        return NotImplemented
    if primitive.name in primitives.ADDITIVE and isinstance(other, Matrix):
        return NotImplemented  # The sum is lazy.
    # Some types have different rules for sums with arrays and with numbers.
    is_sum = primitive.name in primitives.ADDITIVE
    numbers = lambda c: c.materialise() if is_sum else c.number()
    operands = (numbers(z) if isinstance(z, Constant) else z for z in (x, y))
    return bind(primitive, *operands, **params)


# --- rules for zeros ------------------------------------------------------------------------


def _zeros(primitive: Any, params: Any, *operands: Any) -> Zero:
    result = _result(primitive, params, *operands)
    return Zero(result.shape, result.dtype)


@register(*primitives.ZERO_PRESERVING, "cumsum", "cumprod", "fft", "reduce_precision")
@register("convert_element_type", "reduce_sum")
def _(v: Zero, *, primitive: Any, **params: Any) -> Any:
    return _zeros(primitive, params, v)


_BILINEAR = ("mul", "dot_general", "conv_general_dilated")


@register(*primitives.ADDITIVE, *_BILINEAR, "pad", types=(Zero, Zero))
@register(*_BILINEAR, types=(Zero, Array | Uniform), exchange="types")
@register(*_BILINEAR, exchange="types")
def _(x: Zero, y: Array | ArrayValue, *, primitive: Any, **params: Any) -> Any:
    return _zeros(primitive, params, x, y)


@register("ragged_dot_general", types=(Zero, Array | ArrayValue, Array))
@register("ragged_dot_general", types=(Array | ArrayValue, Zero, Array))
@register("ragged_dot_general", types=(Zero, Zero, Array))
def _(x: Any, y: Any, sizes: Array, *, primitive: Any, **params: Any) -> Any:
    return _zeros(primitive, params, x, y, sizes)


@register("integer_pow")
def _(v: Zero, *, y: int) -> Any:
    return v if y > 0 else NotImplemented


@register(*primitives.BINARY, exchange="types")
def _(x: Zero, y: Literal, *, primitive: Any, **params: Any) -> Any:
    """Zeros, if the primitive maps zero and a number in the program to zero."""
    v = x if isinstance(x, Zero) else y
    numbers = [np.zeros((), v.dtype) if z is v else number_of(z) for z in (x, y)]
    if is_zero_at(primitive, params, *numbers):
        result = _result(primitive, params, *numbers)
        return Zero(v.shape, result.dtype)
    return repeated(bind(primitive, *map(jnp.asarray, numbers), **params), v.shape)


def _added(x: Any, shape: tuple[int, ...]) -> Any:
    return x if x.shape == shape else transform(lambda x: jnp.broadcast_to(x, shape))(x)


@register(*primitives.ADDITIVE, exchange="types")
def _(x: Zero, y: ArrayValue, *, primitive: Any, **params: Any) -> Any:
    shape = jnp.broadcast_shapes(x.shape, y.shape)
    if isinstance(y, Zero):
        return _added(x, shape)
    return bind("neg", _added(y, shape)) if primitive.name == "sub" else _added(y, shape)


@register("triangular_solve")
def _(a: Array | ArrayValue, v: Zero, **params: Any) -> Any:
    return v


@register("scatter-add")
def _(x: Array, indices: Array, v: Zero, **params: Any) -> Any:
    return x


@register("dynamic_update_slice")
def _(v: Zero, update: Zero, *indices: Array) -> Any:
    return v


@register(*_SCATTER)
def _(v: Zero, indices: Array, update: Zero, *, primitive: Any, **params: Any) -> Any:
    return NotImplemented if applies_function(primitive, params) else v


@register(*_OTHERS, exchange="types")
def _(x: Zero, y: ArrayValue, *, primitive: Any, **params: Any) -> Any:
    return bind(primitive, *map(_dense, (x, y)), **params)

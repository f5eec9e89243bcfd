"""Values that are linear in their parts, so that linear maps act on the parts."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from jaxrewrite import ArrayValue, bind, primitives, register

from .contract import in_dtype
from .gathers import fills
from .structured import Structured, inexact, is_linear_cast


class Linear(Structured):
    """Base class of arrays that are linear in parts of the same shape.

    A part is an array or a value. A linear map acts on each part, and a product multiplies
    each part. A subclass defines ``materialise`` and ``map_parts``. One with a leaf that is no part,
    such as a coefficient, also defines ``cast``, or it becomes dense where a program asks for a
    dtype that the leaf does not let it have.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, jaxrewrite
    >>> from jaxrewrite import values
    >>> class Complex(values.Linear):
    ...     re: jax.Array
    ...     im: jax.Array
    ...     def materialise(self):
    ...         return self.re + 1j * self.im
    ...     def map_parts(self, fn):
    ...         return Complex(fn(self.re), fn(self.im))
    >>> -Complex(jnp.ones((2, 3)), jnp.zeros((2, 3))).T
    Complex([[-1.+0.j -1.+0.j]
             [-1.+0.j -1.+0.j]
             [-1.+0.j -1.+0.j]], dtype=complex64)
    """

    _is_base = True
    _required = (*Structured._required, "map_parts")

    @abc.abstractmethod
    def map_parts(self, fn: Callable[[Any], Any]) -> Any:
        """The array of the images of these parts under a linear map."""

    def cast(self, dtype: Any) -> Any:
        """The array in another floating dtype."""
        return self.map_parts(lambda part: part.astype(dtype))


_LINEAR = (*primitives.SHAPE, "neg", "reduce_sum", "cumsum")


@register(*_LINEAR)
def _(v: Linear, *, primitive: Any, **params: Any) -> Any:
    return v.map_parts(lambda part: bind(primitive, part, **params))


@register("dynamic_slice")
def _(v: Linear, *starts: Array, primitive: Any, **params: Any) -> Any:
    return v.map_parts(lambda part: bind(primitive, part, *starts, **params))


@register("gather")
def _(v: Linear, indices: Array, *, primitive: Any, mode: Any, **params: Any) -> Any:
    """A gather is linear, except for the number that it may fill in."""
    if fills(mode):
        return NotImplemented
    return v.map_parts(lambda part: bind(primitive, part, indices, mode=mode, **params))


@register("convert_element_type")
def _(v: Linear, *, new_dtype: Any, **params: Any) -> Any:
    if not is_linear_cast(v, new_dtype):
        return NotImplemented
    return _if_in(new_dtype, v.cast(jnp.dtype(new_dtype)))


def _if_in(dtype: Any, v: Any) -> Any:
    """An array, if a leaf that is no part lets it have the dtype that the primitive gives."""
    return NotImplemented if v is NotImplemented or v.dtype != dtype else v


def multiply_by_parts(x: Any, y: Any, params: dict[str, Any], of: Any = Linear) -> bool:
    """Whether a product is the product of the parts, not in a wider dtype than that of a sum.

    A sum of small integers wraps around, and one of booleans is a disjunction, before either is
    multiplied in a wider dtype. The sums are those operands that are instances of ``of``.
    """
    wide = params.get("preferred_element_type")
    wide = jnp.result_type(x.dtype, y.dtype) if wide is None else wide
    sums = (z for z in (x, y) if isinstance(z, of))
    return all(inexact(z) or z.dtype == wide for z in sums)


_BILINEAR = ("dot_general", "mul", "conv_general_dilated")


def _multiplied(primitive: Any, x: Any, y: Any, *sizes: Array, **params: Any) -> Any:
    if not multiply_by_parts(x, y, params):
        return NotImplemented
    whole, is_first = (x, True) if isinstance(x, Linear) else (y, False)
    takes_two_dtypes = primitive.name in ("dot_general", "ragged_dot_general")

    def product(part: Any) -> Any:
        part = part if takes_two_dtypes else in_dtype(part, whole.dtype)
        return bind(primitive, *((part, y) if is_first else (x, part)), *sizes, **params)

    result, wide = whole.map_parts(product), params.get("preferred_element_type")
    return result if wide is None else _if_in(wide, result)


@register(*_BILINEAR, types=(Linear, Linear))
@register(*_BILINEAR, exchange="types")
def _(x: Linear, y: Array | ArrayValue, *, primitive: Any, **params: Any) -> Any:
    return _multiplied(primitive, x, y, **params)


@register("ragged_dot_general", types=(Linear, Array | ArrayValue, Array))
@register("ragged_dot_general", types=(Array | ArrayValue, Linear, Array))
@register("ragged_dot_general", types=(Linear, Linear, Array))
def _(x: Any, y: Any, sizes: Array, *, primitive: Any, **params: Any) -> Any:
    """The parts have the same groups."""
    return _multiplied(primitive, x, y, sizes, **params)

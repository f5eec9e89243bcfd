"""Values that are linear in their parts: what is done to them is done to the parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from jaxrewrite import ArrayValue, bind, primitives, register

from ._array import Structured
from ._order import order


class Linear(Structured):
    """Base class of arrays that are linear in parts of the same shape.

    A part is an array, or a value. Linear maps go to the parts, and so does one side of a
    product.
    """

    _is_base = True

    def map_parts(self, fn: Callable[[Any], Any]) -> Any:
        """The array of the parts that a linear map makes of each."""
        raise NotImplementedError(f"{type(self).__name__}.map_parts")

    def cast(self, dtype: Any) -> Any:
        """The array in another floating dtype."""
        return self.map_parts(lambda part: part.astype(dtype))


_LINEAR = (*primitives.SHAPE, "neg", "reduce_sum", "cumsum")


@register(*_LINEAR)
def _(v: Linear, *, primitive: Any, **params: Any) -> Any:
    return v.map_parts(lambda part: bind(primitive, part, **params))


@register(*primitives.INDEXING)
def _(v: Linear, *indices: Array, primitive: Any, **params: Any) -> Any:
    return v.map_parts(lambda part: bind(primitive, part, *indices, **params))


@register("convert_element_type")
def _(v: Linear, *, new_dtype: Any, **params: Any) -> Any:
    narrowed = jnp.iscomplexobj(v) and not jnp.issubdtype(new_dtype, jnp.complexfloating)
    if narrowed or not jnp.issubdtype(new_dtype, jnp.inexact):
        return NotImplemented
    return v.cast(jnp.dtype(new_dtype))


_BILINEAR = ("dot_general", "mul", "conv_general_dilated")


@register(*_BILINEAR, "div", precedence=order("Linear"))
def _(v: Linear, y: Array | ArrayValue, *, primitive: Any, **params: Any) -> Any:
    return v.map_parts(lambda part: bind(primitive, part, y, **params))


@register(*_BILINEAR, precedence=order("Linear"))
def _(x: Array | ArrayValue, v: Linear, *, primitive: Any, **params: Any) -> Any:
    return v.map_parts(lambda part: bind(primitive, x, part, **params))


@register(*_BILINEAR)
def _(v: Linear, w: Linear, *, primitive: Any, **params: Any) -> Any:
    return v.map_parts(lambda part: bind(primitive, part, w, **params))

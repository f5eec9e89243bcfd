"""Rules for types that annotate an array: with tags, names, units, a mask, bounds.

A rule of such a type is written once, for operands of which each may be annotated or not.
This module registers it for all the signatures that that means: for one operand, two, or any
number of them, and with other values, which become fields of the result.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import ArrayLike

import jaxrewrite
from jaxrewrite import ArrayValue
from jaxrewrite.primitives import BINARY

from .._base.order import order


TWO = (*BINARY, "complex", "conv_general_dilated", "dot_general", "pad")
"""Primitives of two operands, each of which may be annotated."""

SCATTER = ("scatter", "scatter-add", "scatter-max", "scatter-min")

SEVERAL = (
    *("clamp", "concatenate", "dynamic_update_slice", "select_n", "sort", "stack"),
    *SCATTER,
)
"""Primitives of more operands, each of which may be annotated."""

REDUCING = ("reduce_sum", "reduce_max", "reduce_min")

MOVING = (
    *jaxrewrite.primitives.SHAPE,
    *("split", "tile", "unstack", "device_put", "sharding_constraint"),
)
"""Each entry of each result is one of the one operand's."""


def like(x: Any) -> Any:
    """The aval of an array or a value."""
    return jax.core.ShapedArray(jnp.shape(x), _dtype(x))


def _dtype(x: Any) -> Any:
    return x.dtype if hasattr(x, "dtype") else jnp.result_type(x)


def rule(cls: type[ArrayValue], *names: str) -> Callable[[Any], Any]:
    """Register a rule for operands of which at least one is a ``cls``.

    It is called as ``rule(*operands, primitive=primitive, **params)``. Each operand is
    a ``cls`` or an array: any other value looks like an array of its aval, and what
    the rule does to it is dispatched to that value's own rules. A ``cls`` that is
    seen as a whole differs: its rules act on arrays only by `bind`, which takes values.
    """

    def decorate(fn: Callable[..., Any]) -> Callable[..., Any]:
        def apply(primitive: Any, operands: Sequence[Any], params: dict[str, Any]) -> Any:
            on_arrays = functools.partial(fn, primitive=primitive, **params)
            if cls._is_whole or not any(_is_other(x, cls) for x in operands):
                return on_arrays(*operands)
            return jaxrewrite.transform(on_arrays, lambda x: _is_other(x, cls))(*operands)

        # What errors and profiles call it.
        apply.__name__, apply.__qualname__ = fn.__name__, fn.__qualname__
        for name in names:
            arity = _pair if name in TWO else _several if name in SEVERAL else _first
            arity(cls, name, apply)
        return fn

    return decorate


def _is_other(x: Any, cls: type[ArrayValue]) -> bool:
    return isinstance(x, jaxrewrite.Value) and not isinstance(x, cls)


def _first(cls: Any, name: str, apply: Callable[..., Any]) -> None:
    def first(x: Any, *rest: Any, primitive: Any, **params: Any) -> Any:
        return apply(primitive, (x, *rest), params)

    _register(name, first, apply, x=cls, rest=ArrayLike)


def _pair(cls: Any, name: str, apply: Callable[..., Any]) -> None:
    def own(x: Any, y: Any, *, primitive: Any, **params: Any) -> Any:
        return apply(primitive, (x, y), params)

    def left(x: Any, y: Any, *, primitive: Any, **params: Any) -> Any:
        return apply(primitive, (x, y), params)

    def right(x: Any, y: Any, *, primitive: Any, **params: Any) -> Any:
        return apply(primitive, (x, y), params)

    precedence = order(cls.__name__)
    _register(name, own, apply, x=cls | ArrayLike, y=cls | ArrayLike)
    _register(name, left, apply, precedence, x=cls, y=ArrayValue)
    _register(name, right, apply, precedence, x=ArrayValue, y=cls)


def _several(cls: Any, name: str, apply: Callable[..., Any]) -> None:
    def own(*xs: Any, primitive: Any, **params: Any) -> Any:
        return apply(primitive, xs, params)

    def mixed(*xs: Any, primitive: Any, **params: Any) -> Any:
        if not any(isinstance(x, cls) for x in xs):
            return NotImplemented
        return apply(primitive, xs, params)

    _register(name, own, apply, xs=cls | ArrayLike)
    _register(name, mixed, apply, order(cls.__name__), xs=cls | ArrayLike | ArrayValue)


def _register(
    name: str, signature: Any, rule: Any, precedence: int = 0, **types: Any
) -> None:
    signature.__annotations__ = types
    signature.__name__, signature.__qualname__ = rule.__name__, rule.__qualname__
    jaxrewrite.register(name, precedence=precedence)(signature)


def mapped(fn: Callable[[Any], Any], primitive: Any, results: Any) -> Any:
    """``fn`` of the result, or of each where the primitive has several."""
    if primitive.multiple_results:
        return [fn(result) for result in results]
    return fn(results)

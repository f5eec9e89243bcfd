"""Products of all ready types that are wanted in another dtype, or in a place on a mesh.

JAX multiplies and adds in the operands' dtype, and casts the sums. It takes operands of two dtypes,
also such as no operator promotes: eight bits beside sixteen. A cast of the parts of a
value to the dtype that is wanted comes to the same only if it keeps all numbers: not from complex
numbers to real ones, say, or from floats to integers. So such a product is formed in a wider
dtype, and the result is cast.

On a mesh with explicit axes, a program says how a result is split where that does not follow from
the operands, as in a product that sums over an axis that is split. What a rule computes in
between has no place in the program. So the rule runs with the axes left to the compiler, and its
result is placed as the program says. Where no axis is explicit, there is nothing to place: inside of
`jax.shard_map` JAX's transpose of a product says so for the axes that are split by hand.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from jaxrewrite import ArrayValue, bind, materialise, register

from .contract import in_dtype
from .structured import Structured, is_annotation, promoted


_PRODUCTS = ("dot_general", "conv_general_dilated")


@register(*_PRODUCTS, types=(Structured, Structured), precedence=1)
@register(*_PRODUCTS, exchange="types", precedence=1)
def _(x: Structured, y: Array | ArrayValue, *, primitive: Any, **params: Any) -> Any:
    return _placed_and_cast(primitive, x, y, **params)


@register("ragged_dot_general", types=(Structured, Array | ArrayValue, Array), precedence=1)
@register("ragged_dot_general", types=(Array | ArrayValue, Structured, Array), precedence=1)
@register("ragged_dot_general", types=(Structured, Structured, Array), precedence=1)
def _(x: Any, y: Any, sizes: Array, *, primitive: Any, **params: Any) -> Any:
    return _placed_and_cast(primitive, x, y, sizes, **params)


def _placed_and_cast(primitive: Any, x: Any, y: Any, *sizes: Array, **params: Any) -> Any:
    out_sharding = params.get("out_sharding")
    if out_sharding is not None:
        if is_annotation(x) or is_annotation(y):
            return NotImplemented  # The array inside of an annotation is placed.
        params["out_sharding"] = None
        product = functools.partial(bind, primitive, **params)
        explicit = _explicit_axes(out_sharding.mesh)
        if not explicit:
            return product(x, y, *sizes)
        on_axes = functools.partial(
            jax.sharding.auto_axes, axes=explicit, out_sharding=out_sharding
        )
        # Only an array can be placed so.
        return on_axes(lambda *xs: materialise(product(*xs)))(x, y, *sizes)
    wanted, is_one_dtype = params["preferred_element_type"], x.dtype == y.dtype
    if wanted is None:
        wanted = _without_preference(x.dtype, y.dtype)
    wide = _wide(x.dtype, y.dtype, wanted)
    operands = (
        (x, y) if is_one_dtype else tuple(in_dtype(v, _of_bytes(v.dtype)) for v in (x, y))
    )
    if wide == wanted and operands[0] is x and operands[1] is y:
        return NotImplemented
    params["preferred_element_type"] = wide
    product = bind(primitive, *operands, *sizes, **params)
    if jnp.iscomplexobj(product) and not jnp.issubdtype(wanted, jnp.complexfloating):
        product = bind("real", product)  # JAX refuses fewer bits.
    return in_dtype(product, wanted)


def _explicit_axes(mesh: Any) -> tuple[Any, ...]:
    kinds = zip(mesh.axis_names, mesh.axis_types, strict=True)
    return tuple(name for name, kind in kinds if kind is jax.sharding.AxisType.Explicit)


@functools.lru_cache(256)
def _without_preference(*dtypes: Any) -> Any:
    """The dtype of a product of two dtypes, which may be another than that of their sum."""
    return jax.eval_shape(lax.dot, *(jax.ShapeDtypeStruct((1,), x) for x in dtypes)).dtype


def _wide(*dtypes: Any) -> Any:
    """The least dtype for products that keeps all numbers of these; the last is that of sums."""
    wide = functools.reduce(promoted, map(_of_bytes, dtypes))
    # Integers need not fit into 16 bits.
    are_integers = not any(jnp.issubdtype(dtype, jnp.inexact) for dtype in dtypes[:-1])
    is_short = jnp.issubdtype(wide, jnp.floating) and wide.itemsize == 2
    return promoted(wide, jnp.float32) if are_integers and is_short else wide


def _of_bytes(dtype: Any) -> Any:
    """A dtype that JAX promotes, for those of a few bits, which it does not."""
    if jnp.issubdtype(dtype, jnp.floating):
        return jnp.bfloat16 if jnp.finfo(dtype).bits < 16 else dtype
    if jnp.issubdtype(dtype, jnp.integer) and jnp.iinfo(dtype).bits < 8:
        return jnp.int8 if jnp.issubdtype(dtype, jnp.signedinteger) else jnp.uint8
    return dtype

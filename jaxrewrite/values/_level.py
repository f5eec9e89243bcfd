"""Values with axes of size 1 that meet operands with longer axes.

JAX's primitives that act entry by entry repeat such axes, as NumPy does. This rule relieves
the other rules of that. A value with repeated rows or columns is made dense first,
since it is smaller than the result. A value with repeated batch axes becomes a stack.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

import jaxrewrite
from jaxrewrite import bind, primitives, register

from ._base.linear import Linear
from ._base.structured import Structured
from ._matrices.low_rank import LowRank
from ._matrices.matrix import Matrix
from ._weights.coded import Coded
from ._weights.lora import Lora


# Other types repeat their fields themselves.
_REPEATED = (Matrix, LowRank, Lora, Coded, Linear)


@register(*primitives.BINARY, precedence=1)
def _(
    x: Structured | Array, y: Structured | Array, *, primitive: Any, **params: Any
) -> Any:
    shape = jnp.broadcast_shapes(x.shape, y.shape)
    if all(_fits(z, shape) for z in (x, y)):
        return NotImplemented
    has_factors = any(isinstance(z, (LowRank, Lora)) for z in (x, y))
    are_values = all(isinstance(z, Structured) for z in (x, y))
    if has_factors and primitive.name in ("mul", "div") and not are_values:
        return NotImplemented  # Their own rules repeat the entries of one factor.
    return bind(primitive, *(_levelled(z, shape) for z in (x, y)), **params)


def _fits(x: Any, shape: tuple[int, ...]) -> bool:
    return not isinstance(x, _REPEATED) or x.shape == shape


def _levelled(x: Any, shape: tuple[int, ...]) -> Any:
    if _fits(x, shape):
        return x
    if x.ndim < len(shape) or x.shape[-2:] != shape[-2:]:
        return jaxrewrite.materialise(x)
    return bind(
        lax.broadcast_in_dim_p,
        x,
        shape=shape,
        broadcast_dimensions=tuple(range(x.ndim)),
        sharding=None,
    )

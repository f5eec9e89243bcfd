"""Primitives that stand for several others, which older releases of JAX write instead.

`lax.polynomial`, as in `jnp.polyval`, stands for a loop of products and sums. ``unstack``, as in
``list(x)`` and `jnp.unique`, stands for slices without their axis. A collective over what `jax.vmap`
has mapped, as `lax.psum` with its ``axis_name``, is a reduction. What a type knows of these it then
knows of the one primitive, too. A rule for the primitive itself comes first.

A product with an ``out_dtype``, as of `lax.mul`, is one of operands in that dtype. Rules are for products
in the dtype of their operands.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
from jax import lax

from .. import _compat
from .._compat import EqnContext, Jaxpr, JaxprEqn
from .._core.caches import cached
from .._core.hooks import OperandsHook, operands_hooks
from .._core.rewrite import Handler, handlers
from .._core.site import Site
from .._core.value import Operand, Results, is_value


def expanding(expand: Callable[..., Any]) -> Handler:
    """A handler that applies a function of a primitive's operands and parameters to values."""

    def handler(site: Site, operands: list[Operand]) -> Results:
        if not any(map(is_value, operands)):
            return NotImplemented  # The equation stays as it is.
        avals = tuple(atom.aval for atom in site.eqn.invars)
        params = tuple(site.params.items())
        context = _compat.trace_context()
        body = _expansion(expand, avals, params, site.eqn.ctx, context)
        return site.inline(body, operands)

    return handler


@cached(64)
def _expansion(
    expand: Callable[..., Any],
    avals: Sequence[Any],
    params: Sequence[tuple[str, Hashable]],
    ctx: EqnContext,
    trace_context: Hashable,
) -> Jaxpr:
    """The equations, in the context of an equation, which JAX keeps with each of them."""
    debug_info = _compat.new_debug_info(expand.__name__)
    with ctx.manager:
        body, _ = _compat.trace_to_jaxpr(
            functools.partial(expand, **dict(params)), avals, debug_info
        )
    return body


def polynomial(
    x: jax.Array, *coefficients: jax.Array, unroll: int | None = None
) -> list[Any]:
    """The products and sums, one after the other, whatever ``unroll`` says of a loop of them."""
    *rest, result = coefficients
    for coefficient in reversed(rest):
        result = result * x + coefficient
    return [result]


def unstack(x: jax.Array, *, axis: int) -> list[Any]:
    return [lax.index_in_dim(x, i, axis, keepdims=False) for i in range(x.shape[axis])]


def reducing(reduce: Callable[..., Any], collective: Callable[..., Any]) -> Handler:
    """A handler for a collective, which is a reduction along those axes that are the array's."""

    def reduction(
        x: jax.Array, *, axes: Sequence[Any], axis_index_groups: None
    ) -> list[Any]:
        own = [axis for axis in axes if isinstance(axis, int)]
        names = tuple(axis for axis in axes if not isinstance(axis, int))
        reduced = reduce(x, own)
        return [collective(reduced, names) if names else reduced]

    expand = expanding(reduction)

    def handler(site: Site, operands: list[Operand]) -> Results:
        has_own = any(isinstance(axis, int) for axis in site.params["axes"])
        return expand(site, operands) if has_own else NotImplemented

    return handler


class InOtherDtypes(OperandsHook):
    """Shows a product in a dtype as a call of a function that converts the operands first."""

    primitives = frozenset({"mul"})

    def __init__(self, analysis: Callable[[type], Any]) -> None:
        return

    def operands(
        self, eqn: JaxprEqn, operands: Sequence[Any]
    ) -> tuple[JaxprEqn, Sequence[Any]]:
        # Programs that bind the primitive may leave it out.
        dtype = eqn.params.get("out_dtype")
        if dtype is None:
            return eqn, operands
        avals = tuple(atom.aval for atom in eqn.invars)
        body = _expansion(
            _call, avals, (("dtype", dtype),), eqn.ctx, _compat.trace_context()
        )
        (call,) = body.eqns
        return eqn.replace(primitive=call.primitive, params=call.params), operands


operands_hooks.append(InOtherDtypes)


def _call(x: jax.Array, y: jax.Array, *, dtype: Any) -> list[Any]:
    def mul(*operands: jax.Array) -> jax.Array:
        x, y = (lax.convert_element_type(x, dtype) for x in operands)
        return lax.mul(x, y)

    return [jax.jit(mul)(x, y)]


handlers.update(
    polynomial=expanding(polynomial),
    unstack=expanding(unstack),
    psum=reducing(lax.reduce_sum, lax.psum),
    pmax=reducing(lax.reduce_max, lax.pmax),
    pmin=reducing(lax.reduce_min, lax.pmin),
)

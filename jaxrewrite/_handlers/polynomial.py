"""`lax.polynomial`, as in `jnp.polyval` and `jnp.sinc`: its products and sums take its place.

It stands for a loop of products and sums, which older releases of JAX write themselves. What a
type knows of these it then knows of polynomials, too. A rule for ``polynomial`` comes first.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from .. import _compat
from .._compat import Jaxpr
from .._core.rewrite import Scope, handlers
from .._core.site import Site
from .._core.value import is_value


def polynomial_handler(scope: Scope, site: Site, operands: list[Any]) -> Any:
    if not any(map(is_value, operands)):
        return NotImplemented  # The equation stays as it is.
    avals = tuple(atom.aval for atom in site.eqn.invars)
    body = _expansion(avals, site.eqn.ctx, _compat.trace_context())
    return scope.run(body, operands, site)


handlers["polynomial"] = polynomial_handler


@functools.lru_cache(64)
def _expansion(avals: Sequence[Any], ctx: Any, trace_context: Any) -> Jaxpr:
    """The products and sums, in the context of an equation, which JAX keeps with each of them."""
    debug_info = _compat.new_debug_info("polynomial")
    with ctx.manager:
        body, _ = _compat.trace_to_jaxpr(_horner, avals, debug_info)
    return body


def _horner(x: Any, *coefficients: Any) -> list[Any]:
    *rest, result = coefficients
    for coefficient in reversed(rest):
        result = result * x + coefficient
    return [result]

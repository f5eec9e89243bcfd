"""JAX's newer primitives, which are objects: `jnp.nonzero`, `lax.custom_root` ...

Such an object says what it is in terms of other primitives, which JAX asks of it when
it compiles. Here that is asked at once, and what it gives is rewritten. The object's own
derivative, of which its expansion may know nothing, becomes that of a `jax.custom_jvp`.

One that reads the bits of its operands (`jnp.frexp`) stays as it is, and so it does
where its rules of derivatives are not all one: values are made dense there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.extend.core as jex_core
from jax.tree_util import tree_leaves, tree_unflatten

from .. import _compat
from .._caches import WeakCaches
from .._compat import Jaxpr, JaxprEqn
from .._restage import restage
from .._rewrite import Scope, handlers
from .._site import Site
from .._traces import has_tracers
from .._value import is_value
from .derivatives import instantiated, is_inexact


def hi_primitive_handler(scope: Scope, site: Site, operands: list[Any]) -> Any:
    if not _compat.can_be_expanded(site.eqn):
        return NotImplemented
    body, consts = _expansion(site.eqn)
    if _reads_bits(body):
        return NotImplemented
    restaged = restage(
        scope.rewriting, body, [*map(_compat.leaf_aval, consts), *operands], site
    )
    if not restaged.changed and not any(map(is_value, operands)):
        return NotImplemented  # the equation stays as it is
    leaves = [
        *scope.include(restaged),
        *map(scope.const, consts),
        *tree_leaves(operands),
    ]
    return tree_unflatten(restaged.out_tree, scope.run(restaged.jaxpr, leaves, site))


handlers["call_hi_primitive"] = hi_primitive_handler


# Kept with the object, since a jaxpr is rewritten once for each structure of operands.
_expansions = WeakCaches(64)


def _expansion(eqn: JaxprEqn) -> tuple[Jaxpr, list[Any]]:
    """The jaxpr that JAX would make of an equation, and its constants."""
    primitive = eqn.params["_prim"]
    cache = _expansions.of(primitive)
    avals = [atom.aval for atom in eqn.invars]
    # Two objects may be equal and differ in what they take and give.
    key = (*avals, *(var.aval for var in eqn.outvars), eqn.ctx, _compat.trace_context())
    known = cache.get(key)
    if known is None:
        debug_info = _compat.new_debug_info(type(primitive).__name__)
        with eqn.ctx.manager:
            known = _compat.trace_to_jaxpr(_function(eqn), avals, debug_info)
        _, consts = known
        if not has_tracers(consts):
            cache.put(key, known)
    return known


def _reads_bits(jaxpr: Jaxpr) -> bool:
    """Whether an expansion needs the numbers of its operands as the device holds them."""
    return any(
        eqn.primitive.name == "bitcast_convert_type"
        or any(map(_reads_bits, jex_core.jaxprs_in_params(eqn.params)))
        for eqn in jaxpr.eqns
    )


def _function(eqn: JaxprEqn) -> Any:
    """The expansion as a function, with the derivative that the object says it has."""

    def expand(*operands: Any) -> list[Any]:
        return _compat.expand(eqn, operands)

    if not any(is_inexact(var.aval) for var in eqn.outvars):
        return expand

    def derivative(primals: Sequence[Any], tangents: Sequence[Any]) -> Any:
        results, result_tangents = _compat.differentiate(eqn, primals, tangents)
        return results, list(map(instantiated, result_tangents))

    fn = jax.custom_jvp(expand)
    fn.defjvp(derivative, symbolic_zeros=True)
    return fn

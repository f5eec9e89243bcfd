"""JAX's newer primitives, which are objects: `jnp.nonzero`, `lax.custom_root` ...

Such an object knows its expansion into other primitives. JAX asks for it when it compiles.
The handler asks for it at once and rewrites it. The object's own derivative may not follow
from the expansion, so it becomes the derivative of a `jax.custom_jvp`.

An object with several independent rules of derivatives stays as it is. Values are made dense
there. So does a linear function with a transpose that is written in bits, such as `jnp.ldexp`,
unless a value is never dense: only the object itself has the transpose.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import jaxprs_in_params
from jax.tree_util import tree_leaves, tree_unflatten

from .. import _compat
from .._compat import Jaxpr, JaxprEqn
from .._core.avals import is_annotation
from .._core.bodies import rewrite_jaxpr
from .._core.caches import BoundedCache
from .._core.errors import MaterialisationError
from .._core.rewrite import handlers
from .._core.site import Site
from .._core.value import Operand, Results, Value, is_value
from .derivatives import instantiated, is_inexact


def hi_primitive_handler(site: Site, operands: list[Operand]) -> Results:
    if not _compat.can_be_expanded(site.eqn):
        return NotImplemented
    body, consts = _expansion(site.eqn)
    is_of_bits = _compat.is_transposed_by_itself(site.eqn) and _is_of_bits(body)
    if is_of_bits and not any(_is_never_dense(site, x) for x in operands):
        return NotImplemented
    rewritten = rewrite_jaxpr(site, body, [*map(_compat.leaf_aval, consts), *operands])
    if not rewritten.changed and not any(map(is_value, operands)):
        return NotImplemented  # The equation stays as it is.
    leaves = [
        *site.take_over(rewritten),
        *map(site.builder.const, consts),
        *tree_leaves(operands),
    ]
    return tree_unflatten(rewritten.out_tree, site.inline(rewritten.jaxpr, leaves))


handlers["call_hi_primitive"] = hi_primitive_handler


def _is_never_dense(site: Site, x: Operand) -> bool:
    """Whether only rules for other primitives can help, as for an array with bounds or a mask.

    The default of an annotation takes the object for what is inside.
    """
    if not is_value(x) or (is_annotation(x) and type(x).default is not Value.default):
        return False
    try:
        site.scratch().make_denser_until(x)
    except MaterialisationError:
        return True
    return False


def _is_of_bits(body: Jaxpr) -> bool:
    """Whether a jaxpr, or a body in it, reads numbers as bits, so that no transpose follows."""
    return any(
        eqn.primitive.name == "bitcast_convert_type"
        or any(_is_of_bits(inner) for inner in jaxprs_in_params(eqn.params))
        for eqn in body.eqns
    )


# A jaxpr is rewritten once for each structure. An expansion refers to its object, by its derivative,
# so that a cache that is kept with the object would never be freed.
_expansions = BoundedCache(256)


def _expansion(eqn: JaxprEqn) -> tuple[Jaxpr, list[Any]]:
    """The jaxpr of an equation's expansion, and its constants."""
    primitive = eqn.params["_prim"]
    avals = [atom.aval for atom in eqn.invars]
    # Two objects may be equal and yet differ in the avals of operands and results.
    results = (var.aval for var in eqn.outvars)
    key = (primitive, *avals, *results, eqn.ctx, _compat.trace_context())
    expansion = _expansions.get(key)
    if expansion is None:
        debug_info = _compat.new_debug_info(type(primitive).__name__)
        with eqn.ctx.manager:
            expansion = _compat.trace_program(_function(eqn), avals, debug_info)
        _, consts = expansion
        if not _compat.has_tracers(consts):
            _expansions.put(key, expansion)
    return expansion


def _function(eqn: JaxprEqn) -> Callable[..., Any]:
    """The expansion as a function, with the derivative of the object."""

    def expand(*operands: jax.Array) -> list[Any]:
        return _compat.expand(eqn, operands)

    if not any(is_inexact(var.aval) for var in eqn.outvars):
        return expand

    def derivative(primals: Sequence[Any], tangents: Sequence[Any]) -> Any:
        results, result_tangents = _compat.differentiate(eqn, primals, tangents)
        return results, list(map(instantiated, result_tangents))

    fn = jax.custom_jvp(expand)
    fn.defjvp(derivative, symbolic_zeros=True)
    return fn

"""A primitive of another library on operands with units or tags.

It is applied to the numbers, so that its derivatives and its batches stay its own. What a result
carries is that of the equations which the primitive consists of: they are rewritten aside.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

from jax.tree_util import tree_unflatten

from .. import _compat
from .._compat import Var
from .._core.avals import avals_of, children, is_annotation
from .._core.rewrite import new_rewriter
from .._core.site import Site
from .._core.traces import Rewriting
from .._core.value import Value, is_value
from .._handlers.nesting import is_around_one_array


def with_defaults(site: Site, x: Any) -> Any:
    """An operand without annotations that do not say what any equation makes of them, such as names."""
    if not is_value(x):
        return x
    parts, treedef = children(x)
    within = [with_defaults(site, part) for part in parts]
    if any(map(operator.is_not, within, parts)):
        x = tree_unflatten(treedef, within)
    if not is_annotation(x) or type(x).default is not Value.default:
        return x
    if x.materialise_policy == "allow" and is_around_one_array(x):
        return children(x)[0][0]
    return site.materialise(x, is_enough=functools.partial(operator.is_not, x))


def _aside(site: Site) -> Site:
    """The site of equations that only tell what a result carries, so that no policy is asked."""
    settings = site.settings._replace(policy="allow", recorder=None)
    return site._replace(builder=new_rewriter(Rewriting(settings)))


def without(x: Any) -> Any:
    """An operand without units, names and tags: the array has the same numbers without them."""
    if not is_value(x):
        return x
    parts, treedef = children(x)
    within = list(map(without, parts))
    if is_around_one_array(x):
        return within[0]
    is_changed = any(map(operator.is_not, within, parts))
    return tree_unflatten(treedef, within) if is_changed else x


def carrying(like: Any, number: Any) -> Any:
    """Numbers with what another operand carries."""
    if not is_value(like) or not is_around_one_array(like):
        return number
    (inside,), treedef = children(like)
    return tree_unflatten(treedef, [carrying(inside, number)])


def by_equations(site: Site, operands: Sequence[Any]) -> Any:
    """The results of the equations that a solver consists of, whose rules know what these carry.

    The derivatives of these equations are not those of the solution.
    """
    site = _aside(site)
    dense = [_dense_inside(site, x) if is_value(x) else x for x in operands]
    fn = functools.partial(site.primitive.impl, **site.params)
    debug_info = _compat.new_debug_info(site.primitive.name, fn)
    jaxpr, consts = _compat.trace_program(fn, avals_of(dense), debug_info)
    return site.inline(jaxpr, [*site.builder.constants(jaxpr, consts), *dense])


def _dense_inside(site: Site, x: Value) -> Any:
    """A value as an array with what the value carries."""
    outside = site.make_denser_until(x, is_enough=is_annotation)
    (aval,) = avals_of([outside])
    return carrying(outside, Var(aval))

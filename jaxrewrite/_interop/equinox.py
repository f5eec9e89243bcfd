"""Primitives of Equinox and Lineax, known by their names: neither library is imported here.

A linear solve of Lineax (`linear_solve`) has as operands the arrays in pytrees that may hold
anything else: an operator, a solver ... The parameters ``treedef`` and ``static`` put them
together. Equinox batches it by another primitive (`vprim`), which has the first one, its
parameters and its batch axes as parameters, and may be batched itself. The choice of the next
or the last carry of a loop (`select_if_vmap`) is made leaf by leaf.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax.tree_util import tree_flatten, tree_leaves, tree_unflatten

from .._analyses.adopting import FOR_ANY_UNITS
from .._analyses.written import UNKNOWN, Fact, Kind, any_of, transfer
from .._compat import JaxprEqn, Primitive, Var
from .._core.avals import avals_of
from .._core.rewrite import handlers
from .._core.settings import Settings
from .._core.site import Site
from .._core.value import is_value
from .._handlers.stacking import elements_like
from .._joins.join import coerce, together
from .annotated import by_equations, carrying, with_defaults, without
from .buffers import set_handler, sets_an_item


def solve_handler(site: Site, operands: list[Any]) -> Any:
    """A solve of an operator that has values in it is the same primitive on their leaves."""
    if not any(map(is_value, operands)) or not _is_solve(site.primitive, site.params):
        return NotImplemented
    operands = [with_defaults(site, x) for x in operands]
    bare = list(map(without, operands))
    if any(map(operator.is_not, bare, operands)):
        carried = by_equations(site, operands)
        return list(map(carrying, carried, site.builder.apply(site, bare)))
    if not any(map(is_value, operands)):
        return site.builder.apply(site, operands)
    settings = site.settings._replace(recorder=None)

    def is_stack(x: Any, depth: int) -> bool:
        return elements_like(site, x, depth)

    solve = _solve(
        site.primitive, site.params, settings, operands, is_stack, [0] * len(operands)
    )
    if solve is None:
        return NotImplemented
    leaves, treedef = tree_flatten(operands)

    def on_leaves(*leaves: Any) -> list[Any]:
        return solve(*tree_unflatten(treedef, leaves))

    return site.call_on_arrays(on_leaves, leaves)


def _is_solve(primitive: Primitive, params: Mapping[str, Any]) -> bool:
    if primitive.name == "vprim":
        return _is_solve(params["prim"], dict(params["params"]))
    return primitive.name == "linear_solve" and params.get("treedef") is not None


def batched_handler(site: Site, operands: list[Any]) -> Any:
    """A batch of solves, or of items to set in buffers."""
    if sets_an_item(site.primitive, site.params):
        return set_handler(site, operands)
    return solve_handler(site, operands)


handlers.update(linear_solve=solve_handler, vprim=batched_handler)


def _file_of_next_numbers() -> str | None:
    module = sys.modules.get("equinox.internal._nextafter")
    return None if module is None else module.__file__


# The number after or before a time is the smallest one after zero, in its units.
FOR_ANY_UNITS.update(dict.fromkeys(("nextafter", "prevbefore"), _file_of_next_numbers))


@transfer("pure_callback")
def _error(eqn: JaxprEqn, facts: Sequence[Fact]) -> Sequence[Fact]:
    """Nothing may read the result of the callback of `equinox.error_if`.

    It raises the error. On a device that can't raise errors it returns NaN.
    """
    fn = getattr(eqn.params.get("callback"), "callback_func", None)
    is_error = getattr(fn, "__module__", None) == "equinox._errors"
    return [Fact(Kind.NOT_READ) if is_error else UNKNOWN] * len(eqn.outvars)


def _solve(
    primitive: Primitive,
    params: Mapping[str, Any],
    settings: Settings,
    operands: Any,
    is_stack: Callable[[Any, int], bool],
    depths: Sequence[int],
) -> Callable[..., list[Any]] | None:
    """A solve of operands like these, or ``None`` if a value among them has no such batch.

    ``is_stack`` tells whether the leaves of a value have so many batch axes in front, and
    ``depths`` how many each operand has had so far.
    """
    if primitive.name == "linear_solve":
        return lambda *operands: _on_values(primitive, params, settings, operands)
    axes, size = params["__batch_axes"], params["__axis_size"]
    depths = [n + (axis is not None) for n, axis in zip(depths, axes, strict=True)]
    for x, axis, depth in zip(operands, axes, depths, strict=True):
        if is_value(x) and axis is not None and (axis != 0 or not is_stack(x, depth)):
            return None
    inner = _solve(
        params["prim"], dict(params["params"]), settings, operands, is_stack, depths
    )
    if inner is None:
        return None
    return jax.vmap(inner, axes, axis_size=size, axis_name=params["__axis_name"])


def _on_values(
    primitive: Primitive, params: Mapping[str, Any], settings: Settings, operands: Any
) -> list[Any]:
    from . import lineax  # It imports Lineax, as this program has.

    treedef, static = params["treedef"], params["static"]

    def arguments(operands: Sequence[Any]) -> Any:
        rest = iter(operands)
        # A bare object marks the place of an array.
        leaves = [next(rest) if type(x) is object else x for x in static]
        return tree_unflatten(treedef, leaves)

    facts = []

    def on_arrays(*arrays: Any) -> None:
        facts.append(lineax.facts_of(arguments(arrays)))

    jax.eval_shape(on_arrays, *avals_of(operands))
    results = lineax.solve(primitive, settings, arguments(operands), facts[0])
    return [x for x in tree_leaves(results) if isinstance(x, jax.Array)]


def select_handler(site: Site, operands: list[Any]) -> Any:
    """The operand, or under `jax.vmap` one of two, leaf by leaf."""
    which, x, y = operands
    if is_value(which) or not (is_value(x) or is_value(y)):
        return NotImplemented
    joined = together(site, (x, y))
    if joined is None:
        return NotImplemented
    cases, both = joined
    leaves = [tree_leaves(coerce(site, case, both)) for case in cases]
    results = [Var(aval) for aval in both.avals]
    for of_x, of_y, result in zip(*leaves, results, strict=True):
        site.emit([which, of_x, of_y], [result])
    return [tree_unflatten(both.treedef, results)]


handlers["select_if_vmap"] = select_handler


@transfer("select_if_vmap", "maybe_set", "vprim")
def _one_of_two(eqn: JaxprEqn, facts: Sequence[Fact]) -> Sequence[Fact]:
    """A choice, or a buffer with an item set: what fills both operands fills the result."""
    if eqn.primitive.name == "vprim" and not sets_an_item(eqn.primitive, eqn.params):
        return [UNKNOWN] * len(eqn.outvars)
    return [any_of(facts[1:3])]


def identity_handler(site: Site, operands: list[Any]) -> Any:
    """A primitive that returns its operand; it has no derivative, or no batch.

    No ``default`` of a type is asked, because none knows of it.
    """
    if not any(map(is_value, operands)):
        return NotImplemented
    site.builder.changed = True
    return site.map_leaves(operands)


_IDENTITIES = ("nonbatchable", "nondifferentiable_backward", "nontraceable")

handlers.update(dict.fromkeys(_IDENTITIES, identity_handler))


@transfer(*_IDENTITIES)
def _as_the_operand(eqn: JaxprEqn, facts: Sequence[Fact]) -> Sequence[Fact]:
    return facts

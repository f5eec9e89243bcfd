"""Arrays that a program fills with zeros, where it has a value otherwise: see `Zeros`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jax.tree_util import tree_unflatten

from .. import _compat
from .._compat import Literal, Primitive
from .._core.avals import children
from .._core.builder import Rewritten
from .._core.join import join_all, structure_of
from .._core.rewrite import leafwise_handlers
from .._core.site import Site
from .._core.value import is_value
from .._core.zeros import Zeros, has_zeros
from .._staging.transform import bind
from .written import Fact, Written


_ADDITIONS = {"add", "add_any"}


class KnownZeros(Zeros):
    """An array of zeros. A value plus it is the value; all else that computes gets it dense."""

    @staticmethod
    def default(primitive: Primitive, values: Sequence[Any], params: dict[str, Any]) -> Any:
        if leafwise_handlers.get(primitive.name) is Site.map_leaves:
            return NotImplemented
        others = [x for x in values if not isinstance(x, KnownZeros)]
        if primitive.name in _ADDITIONS and len(others) == 1 and is_value(others[0]):
            return others[0]
        dense = [x.materialise() if isinstance(x, KnownZeros) else x for x in values]
        return bind(primitive, *dense, **params)


def with_zeros(written: Callable[[Any], Fact], operand: Any) -> Any:
    """The operand, with `KnownZeros` for an array that equations have filled with zeros.

    It may be inside of a value that has adopted the array.
    """
    if is_value(operand):
        if operand.settled() is operand:
            return operand
        parts, treedef = children(operand)
        found = [with_zeros(written, part) for part in parts]
        is_same = all(x is part for x, part in zip(found, parts, strict=True))
        return operand if is_same else tree_unflatten(treedef, found)
    if type(operand) is Literal or not written(operand).is_zero:
        return operand
    return KnownZeros(_compat.strong(operand.aval))


def together(site: Site, operands: Sequence[Any]) -> Any:
    """Operands for one array, `with_zeros`, and a structure for all; ``None`` if it is dense."""
    written = site.builder.analysis(Written)
    operands = [with_zeros(written, x) for x in operands]
    structure = join_all(site, list(map(structure_of, operands)))
    like = structure.like()
    return (operands, structure) if is_value(like) and not has_zeros(like) else None


def results_with_zeros(body: Rewritten) -> list[Any]:
    """The results of a body, `with_zeros`."""
    written = Written(body.jaxpr.eqns)
    return [with_zeros(written, result) for result in body.results()]

"""Changes of the results of a body by handlers: adapters of `rewrite_jaxpr`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
from jax import lax
from jax.tree_util import tree_leaves, tree_map, tree_unflatten

from .. import _compat
from .._core.avals import children, is_annotation
from .._core.dense import NO_RULE, Reason
from .._core.site import Site
from .._core.value import Like, Operand, Value, is_value
from .._joins.join import Structure, coerce, filled, of_structure, structure_of
from .._joins.zeros import Zeros


# Why nothing reads a result: nothing has written it, or its computation raises an error.
Unread: TypeAlias = Literal["uninitialised", "computed"]


class Coerce(NamedTuple):
    """Brings the results of a body to given structures; ``None`` leaves a result alone.

    ``sources`` are the structures of the results for which these were found, with `Zeros`.
    ``unread`` tells of results that hold nothing that anything reads, whether they have to be
    computed. An adapter of `rewrite_jaxpr`.
    """

    sources: tuple[Structure, ...]
    structures: tuple[Structure | None, ...]
    unread: tuple[Unread | None, ...] | None = None

    def __call__(self, site: Site, results: Sequence[Any]) -> list[Any]:
        unread = self.unread or (None,) * len(results)
        coerced = []
        for result, source, wanted, how in zip(
            results, self.sources, self.structures, unread, strict=True
        ):
            if wanted is None:
                coerced.append(result)
            elif how is not None:
                coerced.append(_fill(site, result, wanted, how))
            else:
                coerced.append(coerce(site, _as_zeros(result, source.like()), wanted))
        return coerced


def _as_zeros(operand: Operand, like: Like) -> Operand:
    """The operand, with `Zeros` where ``like``, which differs from it in these alone, has some."""
    return tree_map(
        lambda wanted, source: wanted if isinstance(wanted, Zeros) else source,
        like,
        operand,
        is_leaf=lambda x: isinstance(x, Zeros),
    )


def _fill(site: Site, operand: Any, structure: Structure, unread: Unread) -> Operand | None:
    """An operand of a structure, in place of an operand that nothing reads.

    If the latter is computed, the leaves depend on its computation, so that an error is still
    raised there.
    """
    like = structure.like()
    if is_value(operand) and structure_of(operand) != structure:
        # Nothing reads what it stands for, so that one of its leaves is enough.
        sized = (leaf for leaf in tree_leaves(operand) if leaf.aval.size)
        operand = next(sized, operand)
    if not is_value(like) or is_value(operand) or not operand.aval.size:
        return coerce(site, operand, structure)
    if unread == "uninitialised":
        empty = lambda a: lax.empty(a.shape, a.dtype, out_sharding=_compat.split_as(a))
        return filled(site, structure, empty)

    def leaves(array: jax.Array) -> list[Any]:
        entry = array[(0,) * array.ndim]
        return [_compat.full(aval, entry) for aval in structure.avals]

    return of_structure(site, structure, site.call_on_arrays(leaves, [operand]))


class MakeDense(NamedTuple):
    """Makes the results of a body dense where ``where`` is true.

    An adapter of `rewrite_jaxpr`.
    """

    where: tuple[bool, ...]
    reason: Reason = NO_RULE

    def __call__(self, site: Site, results: Sequence[Any]) -> list[Any]:
        return [
            site.materialise(x, self.reason) if dense else x
            for x, dense in zip(results, self.where, strict=True)
        ]


class MakeDenser(NamedTuple):
    """Makes results denser, each as often as there are steps for it. An adapter of `rewrite_jaxpr`."""

    steps: tuple[tuple[int, Reason], ...]

    def __call__(self, site: Site, results: Sequence[Any]) -> list[Any]:
        results = list(results)
        for i, reason in self.steps:
            results[i] = make_denser(site, results[i], reason)
        return results


def make_denser(site: Site, value: Value, reason: Reason) -> Operand:
    """Make a value dense, or what is around or inside of an annotation, such as units.

    So the annotation stays where only other layers stand in the way. If it does so itself,
    this is called again.
    """
    parts, treedef = children(value)
    if not is_annotation(value):
        return site.materialise(value, reason, is_annotation)
    if not any(map(is_value, parts)):
        return site.materialise(value, reason)
    return tree_unflatten(
        treedef, [make_denser(site, x, reason) if is_value(x) else x for x in parts]
    )

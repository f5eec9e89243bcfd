"""Whether the leaves of a result can hold all tangents of a derivative rule.

The leaves of a LoRA weight can make any tangent. The leaves of a diagonal matrix make diagonal
tangents alone, so that the way back from a tangent to leaves, `Value.lift_tangent`, is a projection.
It is right where all tangents of a result are in the image, its *tangent space*. Two things
show that: the rule acts entry by entry on the tangents of operands with the same space, or it
gives values of that structure if it is run on tangents that are values.

Of a backward rule it is the transpose that has to stay within the space. The transpose of
a linear rule that acts entry by entry is the rule itself.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
from jax import lax
from jax.tree_util import tree_flatten, tree_leaves, tree_map, tree_unflatten

from .. import _compat
from .._compat import AnyJaxpr, Tree
from .._core.avals import avals_of, is_annotation, same_treedef
from .._core.bodies import rewrite_jaxpr
from .._core.builder import Rewritten
from .._core.settings import Settings, use_settings
from .._core.site import Site
from .._core.value import Like, Operand, Value, is_value
from .._joins.join import Structure, structure_of
from .derivatives import (
    confinement,
    derivative,
    is_inexact,
    on_avals,
    parts,
    tangent_space,
    zero_tangent,
)
from .entrywise import FIXED, Dependence, Kind, dependences, source


class Space(NamedTuple):
    """The tangents that an operand or a result can have.

    ``like`` is an aval, or a value on avals whose floating leaves may be any numbers. Its
    other leaves, which may be the places of entries, have labels: the number of the leaf of
    the operands that each is, or ``None``. ``confined`` tells how `Value.tangent_space`
    confines them, if it does, and ``is_own`` whether the operand itself is in the space.
    """

    like: Like
    labels: tuple[Any, ...]
    confined: str | None = None
    is_own: bool = False

    def holds(self, other: Space) -> bool:
        """Whether all arrays of another space are in this one, up to their dtype."""
        if not (is_value(self.like) and is_value(other.like)):
            return False
        leaves, treedef = tree_flatten(self.like)
        others, other_treedef = tree_flatten(other.like)
        return same_treedef(treedef, other_treedef) and all(
            x.shape == y.shape
            and ((is_inexact(x) and is_inexact(y)) or (a is not None and a == b))
            for x, y, a, b in zip(leaves, others, self.labels, other.labels, strict=True)
        )

    def holds_multiples(self, fact: Dependence, operands: Sequence[Tangents]) -> bool:
        """Whether arrays of some spaces, as a rule combines them, are in this one.

        Each entry may be multiplied by another number. Where entries repeat, the numbers
        have to repeat as well. The entries of an operand with the same structure repeat, and
        a function of them, entry by entry, repeats, too.
        """
        if fact.kind == Kind.ZERO:
            return True
        return (
            fact.kind in (Kind.SAME, Kind.LINEAR)
            and (self.confined == "entries" or self._repeats(fact, operands))
            and all(self.holds(operands[i].space) for i in fact.sources)
        )

    def gives_all_to(
        self, fact: Dependence, other: Space, operands: Sequence[Tangents]
    ) -> bool:
        """Whether a cotangent of another space needs no more of one of this than this has."""
        is_function = self.confined == "entries" and fact.kind <= Kind.ENTRYWISE
        is_multiple = self._repeats(fact, operands) and fact.kind <= Kind.LINEAR
        return (is_function or is_multiple) and self.holds(other)

    def _repeats(self, fact: Dependence, operands: Sequence[Tangents]) -> bool:
        """Whether what sources are multiplied by has the same number where entries repeat."""
        return fact.beside is not None and all(
            operands[i].space.is_own and self.holds(operands[i].space) for i in fact.beside
        )

    def cast(self, dtype: Any) -> Space:
        """This space, with other numbers."""
        like = tree_map(lambda x: x.update(dtype=dtype) if is_inexact(x) else x, self.like)
        return self._replace(like=like)


class Tangents(NamedTuple):
    """The tangents of an operand that tangents of its leaves make.

    ``moving`` tells for each leaf whether the array depends on it.
    """

    space: Space
    moving: tuple[bool, ...]


def tangents_of(operand: Operand, settings: Settings, first: int = 0) -> Tangents:
    """The tangents of an operand whose first leaf has the number ``first``."""
    operand = on_avals(operand)
    leaves = tree_leaves(operand)
    free = tuple(bool(is_inexact(x) and x.size) for x in leaves)
    if is_value(operand) and any(free):
        try:
            return _tangents_of_value(operand, settings, first)
        except Exception:  # noqa: BLE001 - a type that is never dense raises anything
            pass
    (aval,) = avals_of([operand])
    return Tangents(Space(aval.to_tangent_aval(), (None,)), free)


def _tangents_of_value(value: Value, settings: Settings, first: int) -> Tangents:
    leaves, treedef = tree_flatten(value)
    floats = [x for x in leaves if is_inexact(x)]
    out: list[Any] = []

    def tangent(*args: jax.Array) -> list[Any]:
        primals, rest = args[: len(leaves)], iter(args[len(leaves) :])
        tangents = [next(rest) if is_inexact(x) else zero_tangent(x, False) for x in leaves]
        along = tree_unflatten(treedef, tangents)
        array_tangent = derivative(tree_unflatten(treedef, primals), along)
        results, tree = tree_flatten(array_tangent)
        out.append(tree)
        return results

    debug_info = _compat.new_debug_info(f"{type(value).__name__}.tangent")
    with use_settings(settings._replace(recorder=None)):
        jaxpr, consts = _compat.trace_to_jaxpr(tangent, [*leaves, *floats], debug_info)
    numbers = range(first, first + len(leaves))
    operand_facts = [*[FIXED] * len(consts), *map(source, numbers), *[FIXED] * len(floats)]
    like = tree_unflatten(out[0], list(map(_compat.leaf_aval, jaxpr.outvars)))
    labels = _labels(dependences(jaxpr, operand_facts))
    space = Space(like, labels, confinement(value), _is_in_own_space(value))
    needed = iter(_compat.needed_operands(jaxpr)[len(consts) + len(leaves) :])
    return Tangents(
        space, tuple(is_inexact(x) and next(needed) and x.size > 0 for x in leaves)
    )


def _is_in_own_space(value: Value) -> bool:
    """Whether a value is one of the arrays that its type confines its tangents to."""
    inside = [field for field in parts(value)[0] if is_value(field)]
    if tangent_space(value) == "all":
        is_around_one = is_annotation(value) and len(inside) == 1
        return is_around_one and _is_in_own_space(inside[0])
    return all(map(_is_in_own_space, inside))


def _labels(facts: Iterable[Dependence]) -> tuple[Any, ...]:
    return tuple(next(iter(x.sources)) if x.kind == Kind.SAME else None for x in facts)


def of_operands(operands: Sequence[Operand], settings: Settings) -> list[Tangents]:
    """The tangents of each operand."""
    all_tangents, first = [], 0
    for operand in operands:
        all_tangents.append(tangents_of(operand, settings, first))
        first += len(tree_leaves(operand))
    return all_tangents


def of_moving_leaves(
    fn: Callable[..., Any], operands: Sequence[Operand], settings: Settings
) -> Callable[..., Any]:
    """A function of constants and leaves, for which leaves that no array depends on are constant.

    JAX differentiates by leaves. If an array is constant, the rule must not see a tangent:
    a `jax.custom_vjp` has no forward mode.
    """
    moving = [is_moving for x in of_operands(operands, settings) for is_moving in x.moving]

    def call(*leaves: jax.Array) -> Any:
        first = len(leaves) - len(moving)
        differentiated = (
            x if is_moving else lax.stop_gradient(x)
            for x, is_moving in zip(leaves[first:], moving, strict=True)
        )
        return fn(*leaves[:first], *differentiated)

    return call


def of_results(
    rewritten: Rewritten, results: Iterable[int], settings: Settings
) -> dict[int, Space]:
    """The tangent spaces of some results of a function, by position."""
    consts, num_operands = len(rewritten.consts), len(rewritten.jaxpr.invars)
    operand_facts = [*[FIXED] * consts, *map(source, range(num_operands - consts))]
    numbers = iter(_labels(dependences(rewritten.jaxpr, operand_facts)))
    spaces = {}
    for i, result in enumerate(rewritten.results()):
        indices = [next(numbers) for _ in tree_leaves(result)]
        if i in results:
            space = tangents_of(result, settings).space
            labels = tuple(None if x is None else indices[x] for x in space.labels)
            spaces[i] = space._replace(labels=labels)
    return spaces


def run_on_tangents(
    jaxpr: AnyJaxpr,
    operands: Sequence[Space],
    wanted: Sequence[Space],
    settings: Settings,
    site: Site,
) -> list[Space]:
    """The spaces of the results of a rule, run on operands of these spaces.

    A result that is a value of another structure than the wanted one becomes denser, up to
    that: a tag is no part of a tangent.
    """
    leaving = _Denser(tuple(structure_of(space.like) for space in wanted))
    likes = [space.like for space in operands]
    rewritten = rewrite_jaxpr(site, jaxpr, likes, leaving=leaving, settings=settings)
    labels = [x for space in operands for x in space.labels]
    operand_facts = [
        *[FIXED] * len(rewritten.consts),
        *(FIXED if x is None else source(x) for x in labels),
    ]
    result_labels = iter(_labels(dependences(rewritten.jaxpr, operand_facts)))
    return [
        Space(on_avals(x), tuple(next(result_labels) for _ in tree_leaves(x)))
        for x in rewritten.results()
    ]


def of_primals(operands: Sequence[Operand]) -> list[Space]:
    """The operands themselves, not their tangents, for `run_on_tangents`."""
    numbers = itertools.count()
    return [
        Space(on_avals(x), tuple(next(numbers) for _ in tree_leaves(x))) for x in operands
    ]


def fixed(array: object) -> Space:
    """An array that a rule closes over, for `run_on_tangents`."""
    return Space(_compat.leaf_aval(array), (None,))


class _Denser(NamedTuple):
    """Makes results denser, layer by layer, up to a structure. An adapter of `rewrite_jaxpr`."""

    structures: tuple[Structure, ...]

    def __call__(self, site: Site, results: Sequence[Any]) -> list[Any]:
        return [
            site.make_denser_until(x, is_enough=functools.partial(_is_of, wanted))
            if is_value(x)
            else x
            for x, wanted in zip(results, self.structures, strict=True)
        ]


def _is_of(structure: Structure, operand: Tree) -> bool:
    return structure_of(operand) == structure

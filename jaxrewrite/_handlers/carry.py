"""The structure of a loop's carry: the least fixed point of joining.

A body is rewritten for a carry of given structures, and returns a carry that may have other
structures. Each slot that differs takes the join of the two, and the body is rewritten
again. If no structure differs, which is the common case, the body is rewritten once.

What a program fills with zeros before the loop may be a value from the first turn on, if a
turn returns a value that can be zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from .._analyses.written import Written
from .._compat import AnyJaxpr, Literal, Var
from .._core.avals import avals_of
from .._core.builder import Rewritten
from .._core.errors import MaterialisationError
from .._core.site import Site
from .._core.value import Like, Operand, is_value
from .._joins.join import (
    Structure,
    coerce,
    common_parts,
    dense_structure,
    fits,
    join,
    structure_of,
    with_parts_joined,
)
from .._joins.zeros import has_zeros, results_with_zeros, with_zeros
from .adapters import Coerce


# How often a slot may change. If the joins of a type never end, for example because a rank
# grows with each turn, children that change become dense, and at last the slot.
_MAX_CHANGES = 4

Rewrite = Callable[[Sequence[Structure], Coerce | None], Rewritten]


def body_inputs(jaxpr: AnyJaxpr, operands: Sequence[Operand | Like]) -> list[Any]:
    """The operands of a body: values and atoms, and the avals of the body for others."""
    return [
        operand if is_value(operand) or type(operand) in (Var, Literal) else aval
        for operand, aval in zip(operands, jaxpr.in_avals, strict=True)
    ]


class Solved(NamedTuple):
    """A loop's carry whose structures stay the same.

    ``carry`` has the operands of the first turn, not yet in these structures.
    """

    carry: list[Any]
    structures: list[Structure]
    body: Rewritten

    def start(self, site: Site) -> list[Any]:
        """The operands of the first turn, in their structures."""
        return [
            coerce(site, x, structure)
            for x, structure in zip(self.carry, self.structures, strict=True)
        ]


def fixed_point(
    site: Site,
    consts: Sequence[Operand],
    carry: Sequence[Any],
    rewrite: Rewrite,
    has_values: bool,
    may_be_carried: Callable[[Structure], bool] = lambda structure: True,
) -> Solved:
    """Find structures that a loop's carry keeps, and the body for them.

    Parameters
    ----------
    consts
        The operands that are the same in each turn, and come before the carry.
    carry
        The operands of the first turn.
    rewrite
        Rewrites the body for a carry of given structures. The carry comes first among the
        results of the body.
    has_values
        Whether any operand of the loop is a value.
    may_be_carried
        Whether the loop can have a carry of a structure, which joins lead to.
    """
    carry = list(carry)
    starts = [_start(site, x) if has_values else x for x in carry]
    # An operand may be `Zeros` itself, where a loop around this loop looks for its structure.
    while any(start is not x for x, start in zip(carry, starts, strict=True)):
        try:
            structures, body = _solve(site, consts, starts, rewrite, may_be_carried)
        except MaterialisationError:
            break  # Something has to become dense that need not if the carry starts dense.
        likes = [structure.like() for structure in structures]
        is_kept = [
            start is x or (is_value(like) and not has_zeros(like))
            for x, start, like in zip(carry, starts, likes, strict=True)
        ]
        if all(is_kept):
            return Solved(starts, structures, body)
        starts = [
            start if kept else x
            for x, start, kept in zip(carry, starts, is_kept, strict=True)
        ]
    return Solved(carry, *_solve(site, consts, carry, rewrite, may_be_carried))


def _solve(
    site: Site,
    consts: Sequence[Operand],
    operands: Sequence[Operand],
    rewrite: Rewrite,
    may_be_carried: Callable[[Structure], bool],
) -> tuple[list[Structure], Rewritten]:
    initial = list(map(structure_of, operands))
    carry = list(initial)
    changes = [0] * len(carry)
    while True:
        body = rewrite(carry, None)
        results = _results(site, consts, body, carry)
        joined = [
            before
            # A carry that has become dense stays dense.
            if before == result or (changes[i] and not is_value(before.like()))
            # The join must be possible for the initial operands, too.
            else _rise(site, initial[i], before, result, changes[i], may_be_carried)
            for i, (before, result) in enumerate(zip(carry, results, strict=False))
        ]
        if joined == carry:
            break
        for i, (before, after) in enumerate(zip(carry, joined, strict=True)):
            if before != after:
                changes[i] += 1
                if site.builder.recorder is not None:
                    site.builder.recorder.joined(f"carry {i}", before.like(), after.like())
        carry = joined
    if results[: len(carry)] != carry:
        rest = [None] * (len(results) - len(carry))
        body = rewrite(carry, Coerce(tuple(results), (*carry, *rest)))
    return carry, body


def _start(site: Site, operand: Operand) -> Operand:
    """The operand of the first turn, with `Zeros`.

    Vectors are left alone: values with structure have two axes or more.
    """
    (aval,) = avals_of([operand])
    return operand if aval.ndim < 2 else with_zeros(site.builder.analysis(Written), operand)


def _results(
    site: Site, consts: Sequence[Operand], body: Rewritten, carry: Sequence[Structure]
) -> list[Structure]:
    """The structures of the results, with `Zeros` where the carry has a value otherwise."""
    results = list(map(structure_of, body.results()))
    pairs = list(zip(carry, results, strict=False))
    differ = [before != result and is_value(before.like()) for before, result in pairs]
    if any(differ):
        zeros = results_with_zeros(site, body, consts)
        for i, differs in enumerate(differ):
            results[i] = structure_of(zeros[i]) if differs else results[i]
    return results


def _rise(
    site: Site,
    initial: Structure,
    before: Structure,
    result: Structure,
    changes: int,
    may_be_carried: Callable[[Structure], bool],
) -> Structure:
    joining = join if changes < _MAX_CHANGES else _join_of_dense_children
    joined = joining(site, before, result)
    is_one = may_be_carried(joined) and fits(site, initial, joined)
    return joined if is_one else dense_structure(before)


def _join_of_dense_children(site: Site, a: Structure, b: Structure) -> Structure:
    """A structure for operands of either, in which no type's `Value.join` has a part.

    Children that differ are dense, or hold dense children, so that units or tags around them stay.
    """
    x, y = a.like(), b.like()
    if a == b or not (is_value(x) or is_value(y)):
        return join(site, a, b)
    parts_of = common_parts(x, y)
    if parts_of is None:
        return dense_structure(a)
    each = lambda x, y: _join_of_dense_children(site, x, y)
    return structure_of(with_parts_joined(x, y, parts_of, each))

"""Patterns that are made for a program, because there are too many to look for each.

What a program may have of them is read off, and a pattern is made for each that it has, which is
then found like any other. Functions of two operands that are nested in themselves, such as chains
of products, are such: a chain of ten has thousands of orders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeGuard

from .._compat import JaxprEqn, Literal, Primitive
from .pattern import Pattern
from .view import Frame, Made, Place, facts_of, resolve, users


# The order of a chain: the number of an operand, or the pair of what comes together last.
Order = Any

# A longer chain is left to patterns of fewer operands.
_MOST_OPERANDS = 24


class Family(Protocol):
    """What a pattern rule, whose attribute ``family`` this is, says of further patterns."""

    def members(self, top: Frame) -> Iterable[Any]:
        """What tells apart the patterns that a program may have; hashable."""

    def functions(self, member: Any, /) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """The function that is looked for and the rule."""


class Nesting:
    """The longer chains of a function of two operands.

    ``is_one`` tells whether an equation is the function. ``functions`` are the function that
    is looked for and the rule, for an order of at least ``fewest``.
    """

    def __init__(
        self,
        primitive: Primitive,
        is_one: Callable[[JaxprEqn], bool],
        fewest: int,
        functions: Callable[[Order], tuple[Callable[..., Any], Callable[..., Any]]],
    ):
        self.primitive = primitive
        self.is_one = is_one
        self.fewest = fewest
        self.functions = functions

    def members(self, top: Frame) -> Iterable[Order]:
        return _orders(top, self) if self.primitive in top.facts.primitives else ()


def made_for(
    patterns: Sequence[tuple[int, Pattern]], top: Frame
) -> Iterator[tuple[int, Pattern]]:
    """The patterns that are made for a program, each with the depth of its table."""
    for depth, pattern in patterns:
        family: Family | None = getattr(pattern.fn, "family", None)
        if family is None:
            continue
        for member in dict.fromkeys(family.members(top)):
            known = pattern.longer.get(member)
            if known is None:
                before, fn = family.functions(member)
                known = Pattern(
                    before,
                    fn,
                    {},
                    when=None,
                    precedence=pattern.precedence,
                    probes=(),
                    keep=pattern.keep,
                )
                pattern.longer.put(member, known)
            yield depth, known


def _orders(top: Frame, nesting: Nesting) -> Iterator[Order]:
    """The orders of the longest chains in a program."""
    found = [*places_of(nesting.primitive, top)]
    if sum(_most_parts(place, nesting) for place in found) < nesting.fewest - 2:
        return  # All but the last equation of a chain are parts of another one.
    places = [(frame, i) for frame, i in found if nesting.is_one(frame.eqn(i))]
    parts = {place: _parts(place, nesting) for place in places}
    inside = {part for both in parts.values() for part in both}
    for place in places:
        if place in inside:
            continue
        sizes = _size(place, parts)
        if nesting.fewest <= sizes <= _MOST_OPERANDS:
            yield _order(place, parts, iter(range(sizes)))


def places_of(primitive: Primitive, frame: Frame) -> Iterator[Place]:
    """All equations of a primitive, also in calls."""
    if primitive not in frame.facts.primitives:
        return
    facts = frame.facts
    inside = (
        i for i, body in facts.calls.items() if primitive in facts_of(body).primitives
    )
    for i in sorted((*facts.places.get(primitive, ()), *inside)):
        if i in facts.calls:
            yield from places_of(primitive, frame.inner(i))
        else:
            yield frame, i


def _parts(place: Place, nesting: Nesting) -> list[Place | None]:
    """For each operand the equation of the chain that makes it for this one alone."""
    frame, i = place
    sources = [
        resolve(frame, atom) if _may_be_part(frame, atom, nesting) else None
        for atom in frame.eqn(i).invars
    ]
    return [
        (source.frame, source.index) if _is_part(source, place, nesting) else None
        for source in sources
    ]


def _most_parts(place: Place, nesting: Nesting) -> int:
    frame, i = place
    return sum(_may_be_part(frame, atom, nesting) for atom in frame.eqn(i).invars)


def _may_be_part(frame: Frame, atom: Any, nesting: Nesting) -> bool:
    """Whether an operand may be made by the function, as far as its own frame tells."""
    if type(atom) is Literal:
        return False
    i, _ = frame.facts.made.get(atom, (-1, 0))
    if i < 0:
        return frame.parent is not None
    return i in frame.facts.calls or frame.eqn(i).primitive is nesting.primitive


def _is_part(source: Any, place: Place, nesting: Nesting) -> TypeGuard[Made]:
    if type(source) is not Made or source.index < 0:
        return False
    eqn = source.frame.eqn(source.index)
    return (
        eqn.primitive is nesting.primitive
        and nesting.is_one(eqn)
        and list(users(source.frame, source.var)) == [place]
    )


def _size(place: Place, parts: dict[Place, list[Place | None]]) -> int:
    """How many operands a chain has."""
    count, pending = 0, [place]
    while pending:
        for part in parts[pending.pop()]:
            if part is None:
                count += 1
            else:
                pending.append(part)
    return count


def _order(
    place: Place, parts: dict[Place, list[Place | None]], numbers: Iterator[int]
) -> Order:
    return tuple(
        next(numbers) if part is None else _order(part, parts, numbers)
        for part in parts[place]
    )

"""Patterns that are made for a program, because there are too many to look for each.

The members of a family that a program may have are read off it. Each gets a pattern, which is then
found like any other. Functions of two operands that are nested in themselves, such as chains of
products, have families: a chain of ten products has thousands of orders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from typing import Any, Protocol, TypeGuard

from .._compat import JaxprEqn, Literal, Primitive, Var
from .pattern import Pattern
from .view import Frame, Location, Variable, facts_of, resolve, users


# The order of a chain: the number of an operand, or the pair of orders that come together last.
Order = Any

# A longer chain is left to patterns of fewer operands.
_MOST_OPERANDS = 24


class Family(Protocol):
    """The further patterns of a pattern rule, whose attribute ``family`` this is."""

    def members(self, top: Frame) -> Iterable[Any]:
        """A hashable key for each pattern that a program may have."""

    def functions(self, member: Any, /) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """The function that is looked for and the rule."""


class Nesting:
    """The longer chains of a function of two operands.

    ``is_link`` tells whether an equation is the function. ``functions`` are the function that
    is looked for and the rule, for an order of at least ``fewest``.
    """

    def __init__(
        self,
        primitive: Primitive,
        is_link: Callable[[JaxprEqn], bool],
        fewest: int,
        functions: Callable[[Order], tuple[Callable[..., Any], Callable[..., Any]]],
    ):
        self.primitive = primitive
        self.is_link = is_link
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
    candidates = [*locations_of(nesting.primitive, top)]
    frames = dict.fromkeys(frame for frame, _ in candidates)
    possible = {frame: _possible_parts(frame, nesting) for frame in frames}
    if sum(_most_parts(location, possible) for location in candidates) < nesting.fewest - 2:
        return  # All but the last equation of a chain are parts of another one.
    locations = [(frame, i) for frame, i in candidates if nesting.is_link(frame.eqn(i))]
    parts = {location: _parts(location, nesting, possible) for location in locations}
    inside = {part for both in parts.values() for part in both}
    for location in locations:
        if location in inside:
            continue
        sizes = _size(location, parts)
        if nesting.fewest <= sizes <= _MOST_OPERANDS:
            yield _order(location, parts, iter(range(sizes)))


def locations_of(primitive: Primitive, frame: Frame) -> Iterator[Location]:
    """All equations of a primitive, also in calls."""
    if primitive not in frame.facts.primitives:
        return
    facts = frame.facts
    inside = (
        i for i, body in facts.calls.items() if primitive in facts_of(body).primitives
    )
    for i in sorted((*facts.by_primitive.get(primitive, ()), *inside)):
        if i in facts.calls:
            yield from locations_of(primitive, frame.inner(i))
        else:
            yield frame, i


# By frame, the variables that a function may make, as far as the frame itself tells.
_Possible = dict[Frame, Set[Var]]


def _possible_parts(frame: Frame, nesting: Nesting) -> Set[Var]:
    facts = frame.facts
    results = (facts.eqns[i].outvars for i in facts.by_primitive.get(nesting.primitive, ()))
    invars = facts.position if frame.parent is not None else ()
    return facts.returned.union(invars, *results)


def _most_parts(location: Location, possible: _Possible) -> int:
    """How many operands of an equation may be made by the function."""
    (frame, i), count = location, 0
    parts = possible[frame]
    for atom in frame.eqns[i].invars:
        count += type(atom) is not Literal and atom in parts
    return count


def _parts(
    location: Location, nesting: Nesting, possible: _Possible
) -> list[Location | None]:
    """For each operand the equation of the chain that makes it for this one alone."""
    frame, i = location
    possible_parts = possible[frame]
    sources = [
        resolve(frame, atom)
        if type(atom) is not Literal and atom in possible_parts
        else None
        for atom in frame.eqns[i].invars
    ]
    return [
        (source.frame, source.index) if _is_part(source, location, nesting) else None
        for source in sources
    ]


def _is_part(source: Any, location: Location, nesting: Nesting) -> TypeGuard[Variable]:
    if type(source) is not Variable or source.index < 0:
        return False
    eqn = source.frame.eqn(source.index)
    return (
        eqn.primitive is nesting.primitive
        and nesting.is_link(eqn)
        and list(users(source.frame, source.var)) == [location]
    )


def _size(location: Location, parts: dict[Location, list[Location | None]]) -> int:
    """How many operands a chain has."""
    count, pending = 0, [location]
    while pending:
        for part in parts[pending.pop()]:
            if part is None:
                count += 1
            else:
                pending.append(part)
    return count


def _order(
    location: Location, parts: dict[Location, list[Location | None]], numbers: Iterator[int]
) -> Order:
    return tuple(
        next(numbers) if part is None else _order(part, parts, numbers)
        for part in parts[location]
    )

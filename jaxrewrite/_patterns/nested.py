"""Functions of two operands that are nested in themselves, such as chains of products.

A chain of ten has thousands of orders, too many to look for each. So the orders that a program
has are read off, and a pattern is made for each of them, which is then found like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from .._compat import JaxprEqn, Primitive
from .pattern import Pattern
from .view import Frame, Made, Place, resolve, users


# The order of a chain: the number of an operand, or the pair of what comes together last.
Order = Any

# A longer chain is left to patterns of fewer operands.
_MOST_OPERANDS = 24


class Nesting(NamedTuple):
    """What a pattern rule, whose attribute ``nesting`` this is, says of longer chains.

    ``is_one`` tells whether an equation is the function of two operands. ``functions`` are
    the function that is looked for and the rule, for an order of at least ``fewest``.
    """

    primitive: Primitive
    is_one: Callable[[JaxprEqn], bool]
    fewest: int
    functions: Callable[[Order], tuple[Callable[..., Any], Callable[..., Any]]]


def nested_patterns(
    patterns: Sequence[tuple[int, Pattern]], top: Frame
) -> Iterator[tuple[int, Pattern]]:
    """The patterns of the chains in a program, each with the depth of its table."""
    for depth, pattern in patterns:
        nesting = getattr(pattern.fn, "nesting", None)
        if nesting is None or nesting.primitive not in top.facts.primitives:
            continue
        for order in dict.fromkeys(_orders(top, nesting)):
            known = pattern.longer.get(order)
            if known is None:
                before, fn = nesting.functions(order)
                known = Pattern(
                    before,
                    fn,
                    {},
                    when=None,
                    precedence=pattern.precedence,
                    probes=(),
                    keep=pattern.keep,
                )
                pattern.longer.put(order, known)
            yield depth, known


def _orders(top: Frame, nesting: Nesting) -> Iterator[Order]:
    """The orders of the longest chains in a program."""
    places = list(_places(top, nesting))
    parts = {place: _parts(place, nesting) for place in places}
    inside = {part for both in parts.values() for part in both}
    for place in places:
        if place in inside:
            continue
        sizes = _size(place, parts)
        if nesting.fewest <= sizes <= _MOST_OPERANDS:
            yield _order(place, parts, iter(range(sizes)))


def _places(frame: Frame, nesting: Nesting) -> Iterator[Place]:
    if nesting.primitive not in frame.facts.primitives:
        return
    for i, eqn in enumerate(frame.eqns):
        if i in frame.facts.calls:
            yield from _places(frame.inner(i), nesting)
        elif eqn.primitive is nesting.primitive and nesting.is_one(eqn):
            yield frame, i


def _parts(place: Place, nesting: Nesting) -> list[Place | None]:
    """For each operand the equation of the chain that makes it for this one alone."""
    frame, i = place
    sources = [resolve(frame, atom) for atom in frame.eqn(i).invars]
    return [
        (source.frame, source.index) if _is_part(source, place, nesting) else None
        for source in sources
    ]


def _is_part(source: Any, place: Place, nesting: Nesting) -> bool:
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

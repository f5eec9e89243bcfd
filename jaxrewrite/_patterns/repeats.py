"""Parts of a program that are repeated, such as the layers of a model.

What a search asks about a program it asks about some of its equations, and about the uses of
some variables (`Watch`). Where the same equations come again, with the same data flow among
them, the answers are the same, and so are the matches. They are moved there instead of searched
for. These equations are kept, without the rest of the program, for the programs that follow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, NamedTuple

import numpy as np

from .. import _compat
from .._compat import JaxprEqn, Literal, Var
from .._core.caches import BoundedCache
from .view import Frame, Location, PartOfFacts, Variable, Watch


class Way:
    """The way from a part of a program to a repetition of it, there or in another program.

    ``numbers`` has for each equation of the part the one in the repetition, and ``variables``
    the same for variables that other equations make, or none.
    """

    def __init__(
        self, here: Frame, there: Frame, numbers: dict[int, int], variables: dict[Var, Var]
    ):
        self.here = here
        self.there = there
        self.numbers = numbers
        self.variables = variables

    def frame(self, frame: Frame) -> Frame:
        if frame.parent is None:
            return self.there
        outer = self.frame(frame.parent)
        return outer.inner(self.number(frame.parent, frame.call))

    def number(self, frame: Frame, i: int) -> int:
        return self.numbers[i] if frame.parent is None else i

    def location(self, location: Location) -> Location:
        frame, i = location
        return self.frame(frame), self.number(frame, i)

    def variable_there(self, variable: Variable) -> Variable:
        frame = self.frame(variable.frame)
        if variable.frame.parent is not None:
            return Variable(frame, variable.var, variable.index, variable.k)
        var = self.counterpart(variable.var)
        assert var is not None, "a variable is known before the arrays made of it"
        return Variable(frame, var, *frame.facts.makers.get(var, (-1, 0)))

    def counterpart(self, var: Var) -> Var | None:
        """The variable that corresponds to another; ``None`` if it is not known yet."""
        i, k = self.here.facts.makers.get(var, (-1, 0))
        if i in self.numbers:
            return self.there.eqns[self.numbers[i]].outvars[k]
        return self.variables.get(var)


class _Part(NamedTuple):
    """The result of a search at equation ``i``, and the questions that it asked.

    ``touched``, ``asked`` and ``frame`` are as in a `Watch` and for a program, but the frame
    has no other equations than the touched ones. ``reached`` are the variables that may be
    values.
    """

    frame: Frame
    i: int
    touched: Set[int]
    asked: Sequence[Var]
    reached: Set[Var]
    result: Any


# So many different parts, where the same is looked for, are remembered.
_MOST_KNOWN = 4

# Equations with functions in their parameters, which may hold arrays or tracers.
_WITH_FUNCTIONS = {"custom_jvp_call", "custom_vjp_call"}


class Repeats:
    """The results of searches in parts of programs, for the repetitions of these parts.

    ``reached`` are the variables that may be values. ``shared`` has the parts of all programs.
    """

    def __init__(self, top: Frame, reached: Set[Var], shared: BoundedCache):
        self._top = top
        self._reached = reached
        self._shared = shared
        # The parts of this program that are not kept for others.
        self._local: dict[Any, tuple[_Part, ...]] = {}
        self._watches: dict[Any, Watch] = {}

    def search(
        self,
        target: Any,
        location: Location,
        find: Callable[[], Any],
        move: Callable[[Any, Way], Any],
    ) -> Any:
        """The result of ``find`` at an equation, or at another that this one repeats.

        ``target`` identifies what is searched for; nothing is reused if it is ``None``.
        """
        i, key = location[0].number_in_top(location[1]), (target, _within(location))
        local, shared = self._local.get(key, ()), self._shared.get(key) or ()
        for part in (*local, *shared) if target is not None else ():
            way = self._way(part, i)
            if way is not None:
                return move(part.result, way)
        # All forms at an equation have one watch, because one search may serve several forms.
        watch = self._watches.setdefault((i, key[1]), Watch(i))
        self._top.watch = watch
        try:
            result = find()
        finally:
            self._top.watch = None
        if target is None or watch.is_of_all:
            return result
        part = self._part(i, watch, result, move)
        if part.frame.facts.primitives.isdisjoint(_WITH_FUNCTIONS):
            self._shared.put(key, (part, *shared)[:_MOST_KNOWN])
        else:
            self._local[key] = (part, *local)[:_MOST_KNOWN]
        return result

    def _part(
        self, i: int, watch: Watch, result: Any, move: Callable[[Any, Way], Any]
    ) -> _Part:
        """A result, moved to a frame of the equations that the search asked about."""
        top, touched, asked = self._top, {*watch.touched}, [*watch.asked]
        facts = PartOfFacts(top.facts, touched, asked)
        nothing = _compat.new_jaxpr([], [], [], top.jaxpr.debug_info, False)
        frame = Frame(nothing, facts)
        variables = {*facts.position, *facts.makers}
        way = Way(top, frame, {n: n for n in facts.numbers}, {v: v for v in variables})
        reached = self._reached & variables
        return _Part(frame, i, touched, asked, reached, move(result, way))

    def _way(self, part: _Part, i: int) -> Way | None:
        """The way to equation ``i``, if all that was asked has the same answers there."""
        way = Way(part.frame, self._top, {part.i: i}, {})
        pending, asked = [part.i], part.asked
        while pending:
            if not self._is_same(way, part, pending):
                return None
            unknown = self._after_uses(way, asked, pending)
            if unknown is None:
                return None
            asked = unknown
        is_whole = part.touched <= way.numbers.keys() and not asked
        return way if is_whole and self._keeps_apart(way) else None

    def _is_same(self, way: Way, part: _Part, pending: list[int]) -> bool:
        """Whether equations, and the touched equations before them, are the same there."""
        facts, facts_there = way.here.facts, way.there.facts
        numbers, variables = way.numbers, way.variables
        eqns, eqns_there = facts.eqns, facts_there.eqns
        makers: Mapping[Any, tuple[int, int]] = facts.makers
        makers_there: Mapping[Any, tuple[int, int]] = facts_there.makers
        calls, calls_there = facts.calls, facts_there.calls
        behind_there = facts_there.behind
        reached, reached_there = part.reached, self._reached
        while pending:
            i = pending.pop()
            j = numbers[i]
            here, there = eqns[i], eqns_there[j]
            if here is not there and not (
                _is_same(here, there) and calls.get(i) is calls_there.get(j)
            ):
                return False
            others: Any = there.invars
            a: Any
            for p, a in enumerate(here.invars):
                b: Any = others[p]
                if type(a) is Literal:
                    if not _is_same_number(a, b):
                        return False
                    continue
                if type(b) is Literal:
                    return False
                maker, maker_there = makers.get(a), makers_there.get(b)
                if maker is not None and maker[0] in eqns:
                    if maker_there is None or maker_there[1] != maker[1]:
                        return False
                    if maker[0] not in numbers:
                        numbers[maker[0]] = maker_there[0]
                        pending.append(maker[0])
                    elif numbers[maker[0]] != maker_there[0]:
                        return False
                    continue
                if variables.setdefault(a, b) is not b:
                    return False
                if not (a.aval is b.aval or a.aval == b.aval):
                    return False
                if maker is None or maker_there is None:
                    if maker is not maker_there:
                        return False
                # Neither a call nor a move makes them.
                elif (
                    maker[1] != maker_there[1]
                    or maker_there[0] in calls_there
                    or b in behind_there
                ):
                    return False
                # Whether others are values follows from these.
                if (a in reached) is not (b in reached_there):
                    return False
        return True

    def _after_uses(
        self, way: Way, asked: Sequence[Var], pending: list[int]
    ) -> list[Var] | None:
        """The variables that are not known there yet; ``None`` if the uses of others differ.

        The uses are added to the ``pending`` equations.
        """
        facts, facts_there, numbers = way.here.facts, way.there.facts, way.numbers
        uses, results = facts.uses, facts.results
        uses_there, results_there = facts_there.uses, facts_there.results
        unknown: list[Var] = []
        for var in asked:
            other = way.counterpart(var)
            if other is None:
                unknown.append(var)
                continue
            here, there = uses.get(var, ()), uses_there.get(other, ())
            if len(here) != len(there) or (
                len(results.get(var, ())) != len(results_there.get(other, ()))
            ):
                return None
            for k, i in enumerate(here):
                if i not in numbers:
                    numbers[i] = there[k]
                    pending.append(i)
                elif numbers[i] != there[k]:
                    return None
        return unknown

    def _keeps_apart(self, way: Way) -> bool:
        """Whether equations and variables that differ in a part differ there."""
        there, makers = {*way.numbers.values()}, way.there.facts.makers
        others = {*way.variables.values()}
        return (
            len(there) == len(way.numbers)
            and len(others) == len(way.variables)
            and all(makers.get(var, (-1, 0))[0] not in there for var in others)
        )


def _within(location: Location) -> Any:
    """Where an equation is in the call that it is in."""
    frame, i = location
    return None if frame.parent is None else (*frame.path()[1:], i)


def _is_same(a: JaxprEqn, b: JaxprEqn) -> bool:
    """Whether equations differ by nothing that a search can ask about, but operands."""
    results = b.outvars
    if (
        a.primitive is not b.primitive
        or len(a.outvars) != len(results)
        or len(a.invars) != len(b.invars)
        or not (a.params is b.params or _are_same(a.params, b.params))
        or not (a.ctx is b.ctx or a.ctx == b.ctx)
        or not (a.effects is b.effects or len(a.effects) == len(b.effects))
    ):
        return False
    for k, x in enumerate(a.outvars):
        y = results[k]
        if type(x) is not type(y) or not (x.aval is y.aval or x.aval == y.aval):
            return False
    return True


def _is_same_number(a: Literal, b: Any) -> bool:
    """Whether an atom is a literal of the same aval and value; 0.0 and -0.0 differ."""
    if a is b:
        return True
    return type(b) is Literal and _compat.literal_key(a) == _compat.literal_key(b)


def _are_same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Whether parameters are the same; parameters that cannot be compared are not."""
    try:
        if a != b:
            return False
    except (TypeError, ValueError):  # There are arrays among them.
        return False
    for key, value in a.items():
        other = b[key]
        if value is other or not (_has_floats(value) or _has_floats(other)):
            continue
        if repr(value) != repr(other):
            return False
    return True


def _has_floats(value: Any) -> bool:
    """Whether there are numbers in a parameter that may be equal and yet differ: 0.0 and -0.0."""
    if isinstance(value, (tuple, frozenset)):
        return any(map(_has_floats, value))
    return isinstance(value, (float, complex, np.inexact))

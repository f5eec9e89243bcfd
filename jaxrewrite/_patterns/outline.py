"""Outlining: which matches are taken, and the program in which each of them is one equation."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, NamedTuple

import numpy as np

from .. import _compat
from .._analyses.calls import Number
from .._compat import DropVar, Jaxpr, JaxprEqn, Literal, Primitive, Var
from .._core.dead_code import DataFlow, live_equations
from .._core.hooks import Pass
from .bodies import Body, Group, atoms_of
from .index import Entry, Index, Shapes, index_for, inner_roots, open_roots
from .match import Match, Miss, matches_at
from .nested import made_for
from .pattern import Pattern
from .repeats import Repeats, Way
from .view import Frame, Location, Variable, facts_of, outermost, passing, resolve, users


# The equation that replaces a match. Its parameters are a `Plan`, and the equations that it
# stands for, as a jaxpr.
pattern_p = Primitive("pattern")
pattern_p.multiple_results = True


class Packed(NamedTuple):
    """Operands of the equation that are one operand of a pattern: a pytree or a function.

    ``length`` is the length of a scan without xs, and ``body`` the function.
    """

    positions: tuple[int, ...]
    length: int | None = None
    body: Body | None = None


class Option(NamedTuple):
    """A pattern that may answer for a match.

    ``operands`` has, for each operand of the pattern, which operand of the equation it is,
    a `Packed`, or a Python scalar in a `Number`. ``results`` tells which result of the equation each
    result of the pattern is.
    """

    match: Match
    operands: tuple[Any, ...]
    results: tuple[int, ...]

    @property
    def pattern(self) -> Pattern:
        return self.match.pattern


@dataclasses.dataclass(eq=False)
class Plan:
    """The options that may replace some equations, in the order they are asked.

    ``without`` are patterns that declined for more equations, of which these are a part.
    """

    options: list[Option]
    without: Set[Pattern]


# The order of equations: their numbers on the path from the program. An equation that is
# inserted right behind another one has one number more.
Key = tuple[int, ...]


def outline(
    jaxpr: Jaxpr,
    patterns: Sequence[tuple[int, Pattern]],
    values: Set[Var],
    without: Set[Pattern] = frozenset(),
    misses: list[Miss] | None = None,
) -> Jaxpr:
    """A jaxpr with one equation for each match, or the same one if there is no match.

    Parameters
    ----------
    jaxpr
        A jaxpr without constants.
    patterns
        The patterns in force, each with the depth of its table.
    values
        The ``invars`` that are values.
    without
        Patterns that have declined and are not asked again.
    misses
        Gets the patterns that almost match.
    """
    top = Frame(jaxpr, facts_of(jaxpr))
    possible = (*made_for(patterns, top), *patterns)
    if not values and misses is None:
        possible = tuple((depth, p) for depth, p in possible if not p.needs_value)
    wanted = [(depth, p) for depth, p in possible if p not in without]
    index = index_for(wanted, top.facts, misses is not None) if wanted else None
    if index is None:
        return jaxpr
    reached = _reached(top, values) if values else {}

    def may_be_value(operand: Any) -> bool:
        return type(operand) is Variable and operand.var in reached.get(operand.frame, ())

    of_top = reached.get(top, set())
    program = _Program(index, top, may_be_value if reached else None, misses, of_top)
    replacements, inlined = _select(program.matches())
    if replacements:
        jaxpr = _OutlinedProgram(top, replacements, inlined, without).jaxpr()
    top.forget()
    return jaxpr


class _Patterns(Pass):
    """The pass, whose entries are patterns. Each match becomes one equation."""

    primitives = frozenset({pattern_p})

    def run(
        self,
        jaxpr: Jaxpr,
        entries: Sequence[tuple[int, Pattern]],
        values: Set[Var],
        misses: list[Miss] | None,
    ) -> Jaxpr:
        return outline(jaxpr, entries, values, misses=misses)

    def data_flow(self, jaxpr: Jaxpr) -> DataFlow:
        facts = facts_of(jaxpr)
        return DataFlow(facts.makers.keys(), facts.uses.keys())


PATTERNS = _Patterns()


def _reached(top: Frame, values: Set[Var]) -> dict[Frame, set[Any]]:
    """The variables of each frame that may be values, because a value leads to them."""
    reached: dict[Frame, set[Any]] = {}

    def walk(frame: Frame, variables: set[Any]) -> None:
        reached[frame] = variables
        calls = frame.facts.calls
        for i, eqn in enumerate(frame.eqns):
            inside = [type(x) is not Literal and x in variables for x in eqn.invars]
            if True not in inside:
                continue
            if i in calls:
                inner = frame.inner(i)
                walk(inner, {*itertools.compress(inner.jaxpr.invars, inside)})
            variables.update(eqn.outvars)

    walk(top, set(values))
    return reached


# --- which matches are taken -------------------------------------------------------------


class _Program:
    """A program in which matches are looked for."""

    def __init__(
        self,
        index: Index,
        top: Frame,
        may_be_value: Any,
        misses: list[Miss] | None,
        reached: Set[Var],
    ):
        self._index = index
        self._top = top
        self._shapes = Shapes(index)
        self._may_be_value = may_be_value
        self._misses = misses
        # A miss is reported with its reasons, which differ from equation to equation.
        self._repeats = Repeats(top, reached, index.parts) if misses is None else None

    def matches(self) -> list[Match]:
        """All matches in a program, and in bodies that a match reaches out of."""
        top = self._top
        candidates: list[_Candidate] = []
        calls, by_primitive = top.facts.calls, top.facts.by_primitive
        ends = {i for p in self._index.by_primitive for i in by_primitive.get(p, ())}
        for i in sorted(ends.union(calls)):
            if i in ends:
                entries = self._forms(i)
                if entries:
                    candidates.append(((top, i), entries, False))
            if i in calls:
                roots = open_roots(self._index, calls[i])
                inner = [(root.location(top.inner(i)), root.entry) for root in roots]
                candidates += _by_location(inner, True)
        matches = list(self._one_per_pattern(candidates))
        self._misses = None
        seen: set[Frame] = {top}
        pending = {frame for match in matches for frame in match.frames()} - seen
        while pending:
            frame = pending.pop()
            if frame in seen:
                continue
            seen.add(frame)
            roots_inside = [
                ((frame, i), entry) for i, entry in inner_roots(self._index, frame.jaxpr)
            ]
            inside = self._one_per_pattern([*_by_location(roots_inside, False)])
            matches += (match for match in inside if match.is_within_call())
            if frame.parent is not None:
                pending.add(frame.parent)
        return matches

    def _forms(self, i: int) -> Sequence[Entry]:
        """The forms whose last equation may be an equation of the program."""
        if self._repeats is None:
            # The nearest misses lack the equations before the last one.
            return self._index.all(self._top, i)
        return self._index.candidates(self._shapes, self._top, i)

    def _one_per_pattern(self, candidates: Sequence[_Candidate]) -> Iterator[Match]:
        """One match of each pattern at each equation, the last equations first.

        Equations that a preferred match covers are left out: no match that ends there would
        be taken.
        """
        covered: dict[tuple[int, int], Any] = {}
        for location, entries, is_inside in reversed(candidates):
            preferred = covered.get((id(location[0]), location[1]))
            if preferred is not None and self._misses is None:
                entries = [entry for entry in entries if entry.order <= preferred]
            if not entries:
                continue
            for match in self._at(location, entries, is_inside):
                if len(match.results) == 1 and not match.stays:
                    for p in match.covered:
                        covered[p] = min(covered.get(p, match.order), match.order)
                yield match

    def _at(
        self, location: Location, entries: Sequence[Entry], is_inside: bool
    ) -> Sequence[Match]:
        """The matches at an equation, or at another that it repeats, moved here."""
        find = functools.partial(self._search, location, entries, is_inside)
        if self._repeats is None:
            return find()
        # The body of a scan is known by its equation, which is nowhere else.
        has_bodies = any(entry.pattern.bodies for entry in entries)
        target = None if has_bodies else (is_inside, *entries)
        return self._repeats.search(target, location, find, _moved_matches)

    def _search(
        self, location: Location, entries: Sequence[Entry], is_inside: bool
    ) -> Sequence[Match]:
        matches: dict[Any, Match] = {}
        for entry in entries:
            key = entry.depth, entry.pattern
            if key in matches or (
                self._misses is None and not self._index.fits(entry, self._shapes, location)
            ):
                continue
            match = matches_at(entry, location, self._may_be_value, self._misses)
            if match is not None and not (is_inside and match.is_within_call()):
                matches[key] = match
        return list(matches.values())


# An equation, the forms that may end there, and whether it is in the body of a call, of which
# a match has to reach out.
_Candidate = tuple[Location, Sequence[Entry], bool]


def _by_location(
    roots: Iterable[tuple[Location, Entry]], is_inside: bool
) -> Iterator[_Candidate]:
    by_location: dict[Location, list[Entry]] = {}
    for location, entry in roots:
        by_location.setdefault(location, []).append(entry)
    return ((location, entries, is_inside) for location, entries in by_location.items())


def _moved_matches(matches: Sequence[Match], way: Way) -> Sequence[Match]:
    return [match.moved(way) for match in matches]


def _select(matches: Iterable[Match]) -> tuple[list[_Replacement], set[Frame]]:
    """The matches that are taken: by precedence, then size, then order of equations.

    And the bodies of calls that they reach out of or through.
    """
    ordered = sorted(
        matches,
        key=lambda m: (
            m.order,
            -len(m.locations),
            min((*frame.path(), i) for frame, i in m.locations),
        ),
    )
    layout = _Layout()
    for match in ordered:
        layout.add(match)
    return layout.replacements()


class _Replacement:
    """A match that is taken, with others of the same equations, and where its equation goes."""

    def __init__(self, match: Match, key: Key):
        self.match = match
        self.others: list[Match] = []
        self.key = key


class _Layout:
    """The matches taken so far, and the order of what is left of the program."""

    def __init__(self) -> None:
        # By the equations that are covered, and by the variables that are their results.
        self._by_equation: dict[tuple[int, int], _Replacement] = {}
        self._by_result: dict[Any, _Replacement] = {}
        # The variables that are passed to matches of which some equations stay, by the
        # equation that makes them. Another match may cover all their uses.
        self._needed: dict[tuple[int, int], set[Var]] = {}
        self._all: list[_Replacement] = []

    def add(self, match: Match) -> None:
        covered = match.covered
        covering = {self._by_equation.get(location) for location in covered}
        if covering != {None}:
            (first, *more) = covering
            if first is not None and not more and first.match.is_same_as(match):
                first.others.append(match)
            return
        gone, results = covered - match.stays, match.result_key()
        for location in gone & self._needed.keys():
            if any((location[0], var) not in results for var in self._needed[location]):
                return
        key = self._key(match)
        if key is None:
            return
        replacement = _Replacement(match, key)
        self._all.append(replacement)
        self._by_equation.update(dict.fromkeys(gone, replacement))
        self._by_result.update(dict.fromkeys(results, replacement))
        for x in atoms_of(match.operands) if match.stays else ():
            if type(x) is Variable:
                self._needed.setdefault((id(x.frame), x.index), set()).add(x.var)

    def _key(self, match: Match) -> Key | None:
        """A number after all operands and before every use; ``None`` if there is none."""
        results = [(*variable.frame.path(), variable.index) for variable in match.results]
        if len(results) == 1 and not match.stays:
            return results[0]
        after: list[Key] = [
            (*self._position(operand), 1)
            for operand in atoms_of(match.operands)
            if type(operand) is Variable and operand.index >= 0
        ]
        stays = ((f, i) for f, i in match.locations if (id(f), i) in match.stays)
        after += ((*f.path(), i, 1) for f, i in stays)
        key = max([min(results), *after])
        covered = match.covered - match.stays
        for variable in match.results:
            for user in users(variable.frame, variable.var):
                if user is None or (id(user[0]), user[1]) in covered:
                    continue
                other = self._by_equation.get((id(user[0]), user[1]))
                used = other.key if other is not None else (*user[0].path(), user[1])
                if used <= key:
                    return None
        return key

    def _position(self, variable: Variable) -> Key:
        maker = self._by_result.get((id(variable.frame), variable.var))
        return maker.key if maker is not None else (*variable.frame.path(), variable.index)

    def replacements(self) -> tuple[list[_Replacement], set[Frame]]:
        """The matches, except in bodies that stay calls, which find them by themselves."""
        inlined = inlined_frames(self._all)
        return [r for r in self._all if r.match.frames() <= inlined], inlined


def inlined_frames(replacements: Iterable[_Replacement]) -> set[Frame]:
    """The bodies that matches reach out of or through, with all bodies around them."""
    inlined: set[Frame] = set()
    pending = list(replacements)
    while True:
        # A match within a body that is inlined may reach through calls in it.
        reaching: list[_Replacement] = []
        rest: list[_Replacement] = []
        for replacement in pending:
            match = replacement.match
            stays = match.is_within_call() and match.frames().isdisjoint(inlined)
            (rest if stays else reaching).append(replacement)
        if not reaching:
            return inlined
        pending = rest
        for replacement in reaching:
            frames = replacement.match.frames() | {*_passing(replacement.match)}
            for match in (replacement.match, *replacement.others):
                frames |= {
                    outermost(x).frame
                    for x in atoms_of(match.operands)
                    if type(x) is Variable
                }
            for frame in frames:
                outer: Frame | None = frame
                while outer is not None:
                    inlined.add(outer)
                    outer = outer.parent


def _passing(match: Match) -> Iterator[Frame]:
    """The bodies of calls that return an operand of an equation as they get it."""
    for frame, i in match.locations:
        returned = frame.facts.returned
        invars = frame.facts.position if frame.parent is not None else ()
        for atom in frame.eqns[i].invars:
            if type(atom) is not Literal and (atom in returned or atom in invars):
                yield from passing(frame, atom)


# --- the new program -----------------------------------------------------------------------


class _OutlinedProgram:
    """A program with matches taken out, and calls that they cross replaced by their bodies."""

    def __init__(
        self,
        top: Frame,
        replacements: Sequence[_Replacement],
        inlined: Set[Frame],
        without: Set[Pattern],
    ):
        self._without = without
        self._top = top
        self._replacements = replacements
        self._inlined = inlined
        # By frame, the equations that matches cover.
        self._gone: dict[int, set[int]] = {}
        for replacement in replacements:
            for frame, i in replacement.match.covered - replacement.match.stays:
                self._gone.setdefault(frame, set()).add(i)
        self._names: dict[Frame, dict[Var, Any]] = {top: {}}
        # The new equations, by the number of the program's equation that each stands for.
        self._new: list[tuple[Key, JaxprEqn]] = []
        # The equations of matches, renamed.
        self._covered: dict[tuple[int, int], JaxprEqn] = {}
        # Whether an operand is computed twice, so that one equation may be dead now.
        self._has_copies = False

    def jaxpr(self) -> Jaxpr:
        top = self._top
        kept: list[JaxprEqn | None] = list(top.eqns)
        for i in self._calls(top):
            self._emit_body(top, i)
            kept[i] = None
        # Calls have changed the names of some of their results.
        for var in self._names[top]:
            for i in top.facts.uses.get(var, ()):
                if kept[i] is not None:
                    kept[i] = self._renamed(top, top.eqns[i])
        for i in self._gone.get(id(top), ()):
            self._covered[id(top), i] = kept[i] or top.eqns[i]
            kept[i] = None
        self._new += [(r.key, self._equation(r)) for r in self._replacements]
        eqns = _merged(kept, self._new)
        outvars = [self._name(top, atom) for atom in top.jaxpr.outvars]
        if self._has_copies:
            eqns = live_equations(eqns, outvars)
        return top.jaxpr.replace(eqns=eqns, outvars=outvars)

    def _calls(self, frame: Frame) -> list[int]:
        """The calls in a frame that their bodies replace."""
        return sorted(inner.call for inner in self._inlined if inner.parent is frame)

    def _emit(self, frame: Frame) -> None:
        """Add the equations that are left of an inlined body."""
        path = frame.path()
        inlined = {*self._calls(frame)}
        gone = self._gone.get(id(frame), ())
        for i, eqn in enumerate(frame.eqns):
            if i in inlined:
                self._emit_body(frame, i)
            elif i in gone:
                self._covered[id(frame), i] = self._renamed(frame, eqn)
            else:
                self._new.append(((*path, i), self._renamed(frame, eqn)))

    def _emit_body(self, frame: Frame, call: int) -> None:
        inner, call_eqn = frame.inner(call), frame.eqn(call)
        body = inner.jaxpr
        names = {
            var: self._name(frame, atom)
            for var, atom in zip(body.invars, call_eqn.invars, strict=True)
        }
        # A result keeps the name that the caller gives it.
        for atom, var in zip(body.outvars, call_eqn.outvars, strict=True):
            if type(atom) is Var and atom not in names and type(var) is not DropVar:
                names[atom] = self._name(frame, var)
        for eqn in body.eqns:
            for var in eqn.outvars:
                if type(var) is not DropVar and var not in names:
                    names[var] = Var(var.aval)
        self._names[inner] = names
        self._emit(inner)
        outer = self._names[frame]
        for atom, var in zip(body.outvars, call_eqn.outvars, strict=True):
            name = self._name(inner, atom)
            if name is not var and type(var) is not DropVar:
                outer[var] = name

    def _name(self, frame: Frame, atom: Any) -> Any:
        if type(atom) is Literal:
            return atom
        return self._names[frame].get(atom, atom)

    def _name_of(self, variable: Variable) -> Any:
        """The name of a variable; the name of the call's result if the call stays."""
        if variable.frame not in self._inlined:
            variable = outermost(variable, self._inlined)
        return self._name(variable.frame, variable.var)

    def _renamed(self, frame: Frame, eqn: JaxprEqn) -> JaxprEqn:
        names = self._names[frame]
        return eqn.replace(
            invars=[self._name(frame, atom) for atom in eqn.invars],
            outvars=[
                var if type(var) is DropVar else self._name(frame, var)
                for var in eqn.outvars
            ],
            effects=_compat.rename_effects(eqn.effects, names),
        )

    def _equation(self, replacement: _Replacement) -> JaxprEqn:
        """The equation for a match."""
        match = replacement.match
        covered = [
            self._covered[id(frame), i]
            for frame, i in match.locations
            if (id(frame), i) not in match.stays
        ]
        copies = {} if match.is_alone else self._copies(match)
        if copies:
            covered = [_with_names(eqn, copies) for eqn in covered]
        outvars = list(
            dict.fromkeys(
                self._name(variable.frame, variable.var) for variable in match.results
            )
        )
        atoms: list[Any] = []
        options = [self._option(m, atoms, outvars) for m in (match, *replacement.others)]
        produced = {var for eqn in covered for var in eqn.outvars}
        for eqn in covered:
            for atom in eqn.invars:
                if type(atom) is not Literal and atom not in produced:
                    _position_in(atoms, atom)
        last = covered[-1]
        jaxpr = _compat.new_jaxpr(
            [atom for atom in atoms if type(atom) is not Literal],
            outvars,
            covered,
            self._top.jaxpr.debug_info,
            self._top.jaxpr.is_high,
        )
        params = {"plan": Plan(options, self._without), "jaxpr": jaxpr}
        return last.replace(
            primitive=pattern_p, invars=atoms, outvars=outvars, params=params
        )

    def _copies(self, match: Match) -> dict[Any, Any]:
        """The names of arrays that are made again, with the names of the first ones."""
        operands = [x for x in atoms_of(match.operands) if type(x) is Variable]
        covered = match.covered
        by_number = {}
        if match.has_copies:
            by_number = {frame.number(i): (frame, i) for frame, i in match.locations}
        names: dict[Any, Any] = {}
        for frame, i in match.locations:
            for atom in frame.eqn(i).invars:
                source = None if type(atom) is Literal else resolve(frame, atom)
                if (
                    type(source) is not Variable
                    or (id(source.frame), source.index) in covered
                    or any(x.is_it(source) for x in operands)
                ):
                    continue
                first = next((x for x in operands if x.same(source)), None)
                if first is not None:
                    names[self._name(frame, atom)] = self._name_of(first)
                elif source.index >= 0 and source.frame.number(source.index) in by_number:
                    first_frame, j = by_number[source.frame.number(source.index)]
                    var = first_frame.eqn(j).outvars[source.k]
                    names[self._name(frame, atom)] = self._name(first_frame, var)
        self._has_copies |= bool(names)
        return names

    def _option(self, match: Match, atoms: list[Any], outvars: Sequence[Var]) -> Option:
        operands: list[Any] = []
        for i, operand in enumerate(match.operands):
            if i in match.pattern.scalars:
                number = operand.as_kind(match.pattern.scalars[i])
                operands.append(Number(np.asarray(number), operand.atom))
                continue
            if type(operand) is Variable:
                operands.append(_position_in(atoms, self._name_of(operand)))
                continue
            positions = tuple(
                _position_in(atoms, x.atom if type(x) is Number else self._name_of(x))
                for x in atoms_of([operand])
            )
            if isinstance(operand, Body):
                operands.append(Packed(positions, body=operand))
            elif isinstance(operand, Group):
                operands.append(Packed(positions, operand.length))
            else:
                operands += positions
        results = tuple(
            outvars.index(self._name(variable.frame, variable.var))
            for variable in match.results
        )
        return Option(match, tuple(operands), results)


def _merged(
    kept: Sequence[JaxprEqn | None], new: Iterable[tuple[Key, JaxprEqn]]
) -> list[JaxprEqn]:
    """Equations that are kept, in the order of their numbers, with new ones among them."""
    merged: list[JaxprEqn | None] = []
    start = 0
    for key, eqn in sorted(new, key=operator.itemgetter(0)):
        merged += kept[start : key[0] + 1]
        start = max(start, key[0] + 1)
        merged.append(eqn)
    merged += kept[start:]
    return [eqn for eqn in merged if eqn is not None]


def _with_names(eqn: JaxprEqn, names: Mapping[Any, Any]) -> JaxprEqn:
    """An equation with other names for some of its operands."""
    return eqn.replace(
        invars=[x if type(x) is Literal else names.get(x, x) for x in eqn.invars]
    )


def _position_in(atoms: list[Any], atom: Any) -> int:
    """Where an atom is in a list, to which it is added if need be."""
    for i, other in enumerate(atoms):
        if other is atom:
            return i
    atoms.append(atom)
    return len(atoms) - 1

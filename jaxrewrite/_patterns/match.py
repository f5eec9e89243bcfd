"""Matches: equations of a program that are a pattern's function, exactly."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from jax.tree_util import PyTreeDef, tree_leaves

from .. import _compat
from .._analyses.calls import Number, can_match, is_move
from .._analyses.graph import Graph, Node
from .._analyses.same import same, same_equation
from .._compat import DropVar, JaxprEqn, ShapedArray
from .._core.annotations import guards_hold
from .bodies import Body, Group, atoms_of, is_hole_scan
from .index import Entry
from .pattern import (
    Pattern,
    Traced,
    Variant,
    allows_arrays,
    count_of_batches,
    without_batch,
)
from .repeats import Way
from .search import Embedding, Search
from .view import Frame, Location, Variable, make_the_same, resolve, users


# A form that can be read in more ways than this at one equation is given up.
_MAX_READINGS = 64

# How many moves and conversions an operand is followed through.
_MAX_MOVES = 4


@dataclasses.dataclass(eq=False)
class Match:
    """A pattern's function in a program, with its operands and results there.

    ``locations`` has the equations in the order of the function's. ``has_copies`` tells
    whether the program makes some of them again, and ``stays`` are the equations that are
    needed outside of the match, too. ``is_alone`` tells whether no array in it is known to be
    made again.
    """

    entry: Entry
    variant: Variant
    statics: dict[str, Any]
    locations: list[Location]
    operands: list[Any]
    results: list[Variable]
    out_tree: PyTreeDef
    has_copies: bool
    stays: frozenset[tuple[int, int]]
    is_alone: bool = False

    @property
    def pattern(self) -> Pattern:
        return self.entry.pattern

    @property
    def depth(self) -> int:
        return self.entry.depth

    @property
    def order(self) -> Any:
        return self.entry.order

    @functools.cached_property
    def covered(self) -> frozenset[tuple[int, int]]:
        return frozenset((id(frame), i) for frame, i in self.locations)

    def moved(self, way: Way) -> Match:
        """The same match in a repetition of the part of the program that it is in."""
        locations = list(map(way.location, self.locations))
        stays = frozenset(
            (id(new[0]), new[1])
            for (frame, i), new in zip(self.locations, locations, strict=True)
            if (id(frame), i) in self.stays
        )
        return Match(
            self.entry,
            self.variant,
            self.statics,
            locations,
            [way.variable_there(x) if type(x) is Variable else x for x in self.operands],
            list(map(way.variable_there, self.results)),
            self.out_tree,
            self.has_copies,
            stays,
            is_alone=True,  # Else all of the program would have been asked about.
        )

    def is_same_as(self, other: Match) -> bool:
        """Whether another match has the same equations, results, and equations that stay."""
        return (
            self.covered == other.covered
            and self.stays == other.stays
            and self.result_key() == other.result_key()
        )

    def frames(self) -> set[Frame]:
        return {frame for frame, _ in self.locations}

    @functools.cached_property
    def _is_within_call(self) -> bool:
        (frame, *others) = self.frames()
        if others or frame.parent is None:
            return False
        alone = Frame(frame.jaxpr, frame.facts)
        inside: dict[int, Any] = {}
        for _, i in self.locations:
            for atom in frame.eqn(i).invars:
                outer, inner = resolve(frame, atom), resolve(alone, atom)
                if outer is None or inner is None or type(outer) is not type(inner):
                    return False  # A number that the caller passes.
                if self._is_copy(outer) and not self._is_copy_in(alone, inner):
                    return False  # Arrays that are the same only for this caller.
                for p, operand in enumerate(self.operands):
                    is_here = type(operand) is type(outer) and operand.same(outer)
                    if is_here and not inside.setdefault(p, inner).same(inner):
                        return False  # One array that the caller passes twice.
        return True

    def _is_copy(self, source: Any) -> bool:
        """Whether an operand is made again by an equation outside of the match."""
        return (
            self.has_copies
            and type(source) is Variable
            and (id(source.frame), source.index) not in self.covered
            and not any(type(x) is Variable and x.same(source) for x in self.operands)
        )

    def _is_copy_in(self, frame: Frame, source: Variable) -> bool:
        """Whether it is made again for all arguments of the body of a call."""
        return source.index >= 0 and any(
            make_the_same((frame, i), (source.frame, source.index))
            for _, i in self.locations
        )

    def is_within_call(self) -> bool:
        """Whether the match is in the body of a call, and can be found in it alone."""
        return self._is_within_call

    def result_key(self) -> frozenset[Any]:
        return frozenset((id(result.frame), result.var) for result in self.results)


class Reason(NamedTuple):
    """Why a form is not at an equation.

    ``num_found`` is how many of its equations are there, and ``num_exact`` how many of these
    are the same with their parameters.
    """

    num_found: int
    num_exact: int
    why: str


class Miss(NamedTuple):
    """A pattern that is almost at an equation, and why it is not.

    ``num_found`` is the number of its equations that are there.
    """

    pattern: Pattern
    eqn: JaxprEqn
    num_found: int
    why: str


def matches_at(
    entry: Entry, location: Location, may_be_value: Any, misses: list[Miss] | None = None
) -> Match | None:
    """The first match of a form whose last equation is this one.

    ``may_be_value`` tells whether an operand may be a value. If there is no match, the reason
    is added to ``misses``.
    """
    reasons: list[Reason] | None = None if misses is None else []
    match = _first_match(entry, location, may_be_value, reasons)
    if match is None and misses is not None and reasons:
        nearest = max(reasons, key=lambda reason: reason[:2])
        frame, i = location
        misses.append(Miss(entry.pattern, frame.eqn(i), nearest.num_found, nearest.why))
    return match


def _first_match(
    entry: Entry, location: Location, may_be_value: Any, reasons: list[Reason] | None
) -> Match | None:
    tries = itertools.count()
    for embedding in _of_form(entry, location, reasons):
        for reading, operands in _readings(
            entry, embedding, location, may_be_value, reasons
        ):
            if next(tries) == _MAX_READINGS:
                return None
            match = _exactly(
                entry, reading, operands, location, embedding.locations, reasons
            )
            if match is not None:
                return match
    return None


def _of_form(
    entry: Entry, location: Location, reasons: list[Reason] | None
) -> Iterable[Embedding]:
    """All embeddings of a form that end at an equation; several patterns may share them."""
    if reasons is not None or not entry.shares_form:
        return _search_form(entry, location, reasons)
    frame, i = location
    key = entry.form_key, i
    known = frame.embeddings.get(key)
    if known is None:
        search = functools.partial(_search_form, entry, location, None)
        known = frame.embeddings[key] = _Remembered(search)
    return known


def _search_form(
    entry: Entry, location: Location, reasons: list[Reason] | None
) -> Iterator[Embedding]:
    (body,) = entry.pattern.bodies or (None,)
    search = Search(entry.graph, by_form=True, body=body)
    for embedding in search.run(entry.root, location):
        escaping = None if entry.pattern.keep else _escape(entry, embedding)
        if escaping is None:
            yield embedding
        elif reasons is not None:
            size = len(entry.graph.nodes)
            reasons.append(Reason(size, size, _why_escape(escaping)))
    if reasons is not None:
        reasons.append(Reason(search.nearest[0], 0, _in_the_way(search)))


def _escape(entry: Entry, embedding: Embedding) -> JaxprEqn | None:
    """The equation whose result is used outside of a form, though it is no result of it."""
    used = _Uses(embedding.locations.values(), embedding.has_copies)
    results = {ref[1] for ref in entry.graph.results}
    for n, (frame, i) in embedding.locations.items():
        if n in results or is_hole_scan(entry.graph.nodes[n].eqn):
            continue  # A form does not tell how many ys a scan has.
        for var in frame.eqn(i).outvars:
            if type(var) is DropVar:
                continue
            for user in users(frame, var):
                if user is None or not (used.inside(user) or is_move(user[0].eqn(user[1]))):
                    return frame.eqn(i)
    return None


class _Uses:
    """Which equations may use the intermediate results of a match."""

    def __init__(self, locations: Iterable[Location], has_copies: bool):
        locations = list(locations)
        self._covered = {(id(frame), i) for frame, i in locations}
        self._numbers = {frame.number(i) for frame, i in locations} if has_copies else set()

    def inside(self, user: Location | None) -> bool:
        """Whether an equation is part of the match, or a copy needed only by the match."""
        if user is None:
            return False
        frame, i = user
        if (id(frame), i) in self._covered:
            return True
        if not self._numbers or frame.number(i) not in self._numbers:
            return False
        results = (var for var in frame.eqn(i).outvars if type(var) is not DropVar)
        return all(self.inside(next_) for var in results for next_ in users(frame, var))


def _in_the_way(search: Search) -> str:
    _, node, location = search.nearest
    if node is None or location is None:
        return "what it computes on the way, or its operands, differ"
    frame, i = location
    eqn = frame.eqn(i)
    where = _at(eqn)
    if eqn.primitive is not node.primitive:
        there = f"primitive {eqn.primitive.name!r}"
        return f"there is {there}{where}, where it has {node.primitive.name!r}"
    if not can_match(eqn):
        return f"primitive {eqn.primitive.name!r}{where} has effects"
    differing = [
        f"{key}={node.eqn.params.get(key)!r} where there is {key}={value!r}"
        for key, value in eqn.params.items()
        if not same(value, node.eqn.params.get(key))
    ]
    shapes = [
        f"{_compat.short(a.aval)} where there is {_compat.short(b.aval)}"
        for a, b in zip(node.eqn.outvars, eqn.outvars, strict=False)
        if not _compat.same_array_type(a.aval, b.aval)
    ]
    difference = "; ".join([*differing, *shapes])[:200] or "another form"
    return f"primitive {eqn.primitive.name!r}{where} differs: it has {difference}"


def _at(eqn: JaxprEqn) -> str:
    where = _compat.source_location(eqn.source_info)
    return f" at {where[0]}:{where[1]}" if where else ""


class Reading:
    """Operands that a form may have, and the function traced at these.

    ``moves`` is, for each operand, how many moves and conversions it is followed through.
    """

    def __init__(
        self,
        moves: tuple[int, ...],
        variant: Variant,
        statics: dict[str, Any],
        traced: Traced,
        form: Graph,
    ):
        self.moves = moves
        self.variant = variant
        self.statics = statics
        self.traced = traced
        core, _ = traced.graph.core()
        self._core = core.nodes if core.form() == form.form() else ()
        # The node whose equation was another one the last time.
        self._differs: int | None = None

    def differs_as_before(self, locations: dict[int, Location]) -> bool:
        """Whether a form is surely not this function, by an equation that was not before."""
        return self._differs is not None and self._is_another(self._differs, locations)

    def look_for_difference(self, locations: dict[int, Location]) -> None:
        """Remember which node of a form, that is not this function, is another equation."""
        if self._differs is None:
            nodes = (n for n in range(len(self._core)) if self._is_another(n, locations))
            self._differs = next(nodes, None)

    def _is_another(self, n: int, locations: dict[int, Location]) -> bool:
        """Whether the equation of a node is none of the function's.

        Which node of a primitive it is may depend on the order of operands.
        """
        frame, i = locations[n]
        eqn = frame.eqn(i)
        return not any(
            node.primitive is eqn.primitive
            and same_equation(node.eqn, eqn)
            and _has_numbers(node, frame, eqn)
            for node in self._core
        )


def _has_numbers(node: Node, frame: Frame, eqn: JaxprEqn) -> bool:
    """Whether an equation has the numbers that are operands of a node."""
    for ref in node.operands:
        if ref[0] == "number":
            there = (resolve(frame, atom) for atom in eqn.invars)
            if not any(type(x) is Number and ref[1].same(x) for x in there):
                return False
    return True


def _readings(
    entry: Entry,
    embedding: Embedding,
    location: Location,
    may_be_value: Any,
    reasons: list[Reason] | None,
) -> Iterator[tuple[Reading, list[Any]]]:
    """The operands that a form may have, and how they may be batched.

    An operand may be any array of a chain of moves and conversions. The nearest arrays come
    first.
    """
    pattern = entry.pattern
    chains: list[Any] = [embedding.operands.get(i) for i in range(len(pattern.names))]
    if None in chains:
        return
    frame, i = location
    context = frame.eqn(i).ctx
    seen = [[_seen(x, may_be_value) for x in chain[:_MAX_MOVES]] for chain in chains]
    if pattern.bodies or reasons is not None:
        known: Any = _read(entry, seen, context, reasons)
    else:
        key = context, *map(_chain_key, seen)
        known = entry.readings.get(key)
        if known is None:
            known = _Remembered(functools.partial(_read, entry, seen, context, None))
            entry.readings.put(key, known)
    for reading in known:
        yield reading, [c[d] for c, d in zip(chains, reading.moves, strict=True) if c]


class _Seen(NamedTuple):
    """The facts about an array that annotations ask for, without its program."""

    aval: Any
    may_be_value: bool


def _seen(operand: Any, may_be_value: Any) -> Any:
    if isinstance(operand, Group):
        group = Group(_seen(atom, may_be_value) for atom in operand)
        group.length = operand.length
        return group
    if isinstance(operand, Body):
        consts = tuple(_seen(atom, may_be_value) for atom in operand.consts)
        return operand._replace(consts=consts)
    if type(operand) is Number:
        return operand
    return _Seen(operand.aval, may_be_value is not None and may_be_value(operand))


class _Remembered:
    """The items of an iterator, which are kept for the next time."""

    def __init__(self, make: Callable[[], Iterator[Any]]):
        self._make = make
        self._known: list[Any] = []
        self._rest = make()
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[Any]:
        for i in itertools.count():
            if i == len(self._known):
                with self._lock:
                    if i == len(self._known):
                        self._add_one()
                if i == len(self._known):
                    return
            yield self._known[i]

    def _add_one(self) -> None:
        try:
            self._known += itertools.islice(self._rest, 1)
        except BaseException:
            # A generator that raised, as where the user interrupts it, ends there.
            self._rest = itertools.islice(self._make(), len(self._known), None)
            raise


def _chain_key(chain: Sequence[Any]) -> Any:
    """The facts that matter about an operand and the arrays it is moved from; hashable."""
    return tuple(
        (x.value.dtype, x.value.tobytes())
        if type(x) is Number
        else (x.aval, x.aval.weak_type, x.may_be_value)
        for x in chain
    )


def _read(
    entry: Entry,
    chains: Sequence[Any],
    context: Any,
    reasons: list[Reason] | None,
) -> Iterator[Reading]:
    pattern = entry.pattern
    depths = itertools.product(*(range(len(chain)) for chain in chains))
    nearest_first = sorted(itertools.islice(depths, _MAX_READINGS), key=sum)
    for moves in nearest_first:
        operands = [chain[depth] for chain, depth in zip(chains, moves, strict=True)]
        args = [_argument(pattern, i, operand) for i, operand in enumerate(operands)]
        if any(arg is None for arg in args):
            continue
        for variant in entry.variants:
            if not _is_batched_so(variant, operands):
                continue
            if not _may_answer(pattern, operands, variant):
                if reasons is not None:
                    why = f"its annotations do not allow {_shown(operands)}"
                    reasons.append(Reason(len(entry.graph.nodes), 0, why))
                continue
            for statics, traced in _traces(entry, args, variant, context):
                if traced.start is not None:
                    yield Reading(moves, variant, statics, traced, entry.graph)


def _argument(pattern: Pattern, i: int, operand: Any) -> Any:
    """The argument of the function's trace for an operand: an aval or a Python scalar."""
    if isinstance(operand, Body):
        return operand.hole()
    if isinstance(operand, Group):
        return operand.argument()
    if type(operand) is not Number:
        return operand.aval
    kind = pattern.scalars.get(i)
    return operand.plain() if kind is None else operand.as_kind(kind)


def _named(operands: Sequence[Any]) -> dict[Any, Any]:
    """The operands by their names in a graph."""
    named: dict[Any, Any] = {}
    for i, operand in enumerate(operands):
        if isinstance(operand, Group):
            named.update({(i, leaf): atom for leaf, atom in enumerate(operand)})
        else:
            named[i] = operand
    return named


# The aval of an operand that is a function.
_NO_ARRAY = ShapedArray((), np.dtype("float32"))


def _aval(operand: Any) -> Any:
    """The aval that the annotation of an operand is about: for several arrays, the first."""
    if isinstance(operand, (Group, Body)):
        atoms = tuple(atoms_of([operand])) if isinstance(operand, Group) else ()
        return _aval(atoms[0]) if atoms else _NO_ARRAY
    return operand.aval


def _may_answer(pattern: Pattern, operands: Sequence[Any], variant: Variant) -> bool:
    """Whether the annotations allow the operands, as far as that is known by now."""
    if pattern.is_free:
        return True
    avals = without_batch(list(map(_aval, operands)), variant)
    is_dense = [
        not any(type(atom) is _Seen and atom.may_be_value for atom in atoms_of([x]))
        for x in operands
    ]
    for types, guards in pattern.signature.combinations():
        is_allowed = all(
            not dense or allows_arrays(cls)
            for cls, dense in zip(types, is_dense, strict=True)
        )
        if is_allowed and guards_hold(guards, avals):
            return True
    return False


def _is_batched_so(variant: Variant, operands: Sequence[Any]) -> bool:
    """Whether operands can be batched so: numbers are not, and arrays have the axes."""
    counts = [0] * len(operands)
    for mapped in variant or ():
        sizes = set()
        for i, operand in enumerate(operands):
            if mapped[i]:
                if type(operand) is not _Seen or len(operand.aval.shape) <= counts[i]:
                    return False
                sizes.add(operand.aval.shape[counts[i]])
                counts[i] += 1
        if len(sizes) != 1:
            return False
    return True


def _traces(
    entry: Entry, args: Sequence[Any], variant: Variant, context: Any
) -> Iterator[tuple[dict[str, Any], Traced]]:
    """The function at the operands' own avals, for each choice of its static parameters.

    Choices that are known to give other forms are left out.
    """
    pattern = entry.pattern
    ranks = [
        len(aval.shape) - count_of_batches(variant, i)
        for i, arg in enumerate(args)
        for aval in tree_leaves(arg)
        if isinstance(aval, ShapedArray)
    ]
    for statics in pattern.statics.combinations(max(ranks, default=0)):
        if pattern.statics.choice(statics) in entry.excluded:
            continue
        with context.manager:
            traced = pattern.trace(args, statics, variant)
        if isinstance(traced, Traced):
            yield statics, traced


def _exactly(
    entry: Entry,
    reading: Reading,
    operands: list[Any],
    location: Location,
    locations: dict[int, Location],
    reasons: list[Reason] | None,
) -> Match | None:
    """The match at an equation, if the equations there are exactly the function."""
    traced = reading.traced
    graph, start = traced.graph, cast(int, traced.start)
    if reasons is None and reading.differs_as_before(locations):
        return None
    (body,) = entry.pattern.bodies or (None,)
    search = Search(graph, by_form=False, body=body)
    for embedding in search.run(start, location, _named(operands)):
        match = Match(
            entry,
            reading.variant,
            reading.statics,
            [embedding.locations[n] for n in sorted(embedding.locations)],
            operands,
            search.result_atoms(embedding),
            traced.out_tree,
            embedding.has_copies,
            frozenset(),
        )
        if _may_be_taken(match):
            return match
        if reasons is not None:
            frame, i = next(
                p for p in match.locations if (id(p[0]), p[1]) in {*_escaping(match)}
            )
            size = len(graph.nodes)
            reasons.append(Reason(size, size, _why_escape(frame.eqn(i))))
    if reasons is None:
        reading.look_for_difference(locations)
    elif search.nearest[1] is not None:
        size = len(entry.graph.nodes)
        reasons.append(Reason(size, search.nearest[0], _in_the_way(search)))
    return None


def _why_escape(eqn: JaxprEqn) -> str:
    return (
        f"the result of {eqn.primitive.name!r}{_at(eqn)} is used elsewhere, too "
        "(keep=True would leave it there)"
    )


def _shown(operands: Sequence[Any]) -> str:
    return ", ".join(_compat.short(_aval(x)) for x in operands)


def _may_be_taken(match: Match) -> bool:
    """Whether all arrays that are needed outside of the match are results, or may stay."""
    escaping = set(_escaping(match))
    if not escaping:
        return True
    if not match.pattern.keep:
        return False
    match.stays = _needed_by(match, escaping)
    return not any(
        (id(result.frame), result.index) in match.stays for result in match.results
    )


def _escaping(match: Match) -> Iterator[tuple[int, int]]:
    """The equations of a match with results that are used outside of it, or as its operands."""
    used, results = _Uses(match.locations, match.has_copies), match.result_key()
    operands = {
        (id(x.frame), x.var) for x in atoms_of(match.operands) if type(x) is Variable
    }
    for frame, i in match.locations:
        for var in frame.eqn(i).outvars:
            # A match cannot be passed an array that it makes itself.
            if (id(frame), var) not in operands and (
                type(var) is DropVar
                or (id(frame), var) in results
                or all(map(used.inside, users(frame, var)))
            ):
                continue
            yield id(frame), i


def _needed_by(match: Match, escaping: set[tuple[int, int]]) -> frozenset[tuple[int, int]]:
    """These equations and all of the match that they depend on, up to its results."""
    by_key = {(id(frame), i): (frame, i) for frame, i in match.locations}
    results = match.result_key()
    needed: set[tuple[int, int]] = set()
    pending = list(escaping)
    while pending:
        key = pending.pop()
        if key in needed:
            continue
        needed.add(key)
        frame, i = by_key[key]
        for atom in frame.eqn(i).invars:
            source = _variable(frame, atom)
            if source is None or (id(source.frame), source.var) in results:
                continue
            if (id(source.frame), source.index) in by_key:
                pending.append((id(source.frame), source.index))
    return frozenset(needed)


def _variable(frame: Frame, atom: Any) -> Variable | None:
    source = resolve(frame, atom)
    return source if type(source) is Variable else None

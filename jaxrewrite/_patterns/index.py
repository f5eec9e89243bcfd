"""Which forms of which patterns an equation may be the last of."""

from __future__ import annotations

import functools
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from .. import _compat
from .._analyses.calls import Number, is_move
from .._analyses.graph import Graph
from .._compat import Jaxpr, Literal, Primitive
from .._core.caches import BoundedCache, WeakCaches
from ..primitives import COMMUTATIVE
from .bodies import is_hole_scan
from .pattern import Pattern
from .probe import Form, Forms
from .search import is_open_at, root
from .view import Facts, Frame, Location, Watch, chain, facts_of, look_at, resolve


class Entry:
    """A form of a pattern, and the node that a search starts from.

    ``depth`` is the number of the pattern's table, counted from the nearest. ``excluded`` are
    the choices of static parameters that give other forms.
    """

    def __init__(self, pattern: Pattern, depth: int, form: Form):
        self.pattern = pattern
        self.depth = depth
        self.graph = form.graph
        self.variants = tuple(form.variants)
        self.root = root(form.graph)
        # The same for patterns with the same form, for which one search is enough.
        self.shares_form = False
        self.form_key = _key_of(form.graph.form()), tuple(pattern.bodies), pattern.keep
        # Which of two matches that overlap is taken: the lesser one.
        self.order = depth, -pattern.precedence, -len(form.graph.nodes)
        others = (other.choices for other in forms_of(pattern).forms())
        self.excluded = set().union(*others) - form.choices
        self.need = _need(form.graph, self.root, _MOST_LEVELS, {})
        self.levels = _levels_of(self.need)
        # The readings of operands, by their avals. `match` fills this.
        self.readings = BoundedCache(256)


@functools.lru_cache(4096)
def _key_of(form: Any) -> object:
    """One object for each form, which is a long tuple."""
    return object()


# To this level the operands of an equation are looked at, to tell which forms may end
# there. Equations that are alike to this level are looked up once; further levels are compared
# for each of the forms that are left.
_LEVELS = 3
_MOST_LEVELS = 8

# The shape of an equation: `_NUMBER`, `_GIVEN`, or a primitive and, above the last level, the
# shapes of its operands. Equations that only move arrays are left out. In the shape that a form
# needs, an operand that may be anything is ``None``; the operands of a commutative primitive
# are in no order.
_Shape = Any
_NUMBER = "number"
_GIVEN = "given"  # An operand of the program, or of the body of a call.


def _need(graph: Graph, n: int, levels: int, known: dict[Any, _Shape]) -> _Shape:
    """The shape that an equation needs, to be a node of a graph."""
    need = known.get((n, levels))
    if need is not None:
        return need
    node = graph.nodes[n]
    is_plain = not (is_hole_scan(node.eqn) or any(is_move(m.eqn) for m in graph.nodes))
    needs = []
    for ref in node.operands if levels and is_plain else ():
        if ref[0] == "node":
            needs.append(_need(graph, ref[1], levels - 1, known))
        else:
            needs.append(_NUMBER if ref[0] in ("number", "scalar") else None)
    if not any(needs):
        needs = []
    known[n, levels] = need = node.primitive, tuple(needs)
    return need


def _levels_of(need: _Shape) -> int:
    """The number of levels of a shape that an equation needs."""
    return 1 + max(map(_levels_of, need[1]), default=0) if type(need) is tuple else 0


class Shapes:
    """The shapes of a program's equations, as far as they were asked for.

    ``index`` has a number for each shape.
    """

    def __init__(self, index: Index):
        self._index = index
        self._sources: dict[Any, list[Any]] = {}
        # The same, with the program's equations that were looked at.
        self._open_primitives: dict[Any, tuple[list[Any], set[int]]] = {}
        self._numbers: dict[Any, int] = {}

    def of(self, frame: Frame, i: int, level: int) -> int:
        """The number of the shape of an equation, up to a level of its operands."""
        primitive = frame.eqns[i].primitive
        if not level:
            return self._index.number((primitive,))
        key = frame, i, level
        number = self._numbers.get(key)
        if number is None:
            below = [
                self.of(source[0], source[1], level - 1)
                if type(source) is tuple
                else source
                for source in self.sources_of(frame, i)
            ]
            if primitive.name in COMMUTATIVE:
                below.sort()
            number = self._numbers[key] = self._index.number((primitive, *below))
        return number

    def sources_of(self, frame: Frame, i: int) -> list[Any]:
        """For each operand the equation that makes it, up to moves, or its kind."""
        key, top = (frame, i), frame.top
        watch = top.watch
        if watch is not None:
            if key not in self._open_primitives:
                top.watch = Watch(frame.number_in_top(i))  # It is looked at itself.
                sources = [_watched_source(frame, atom) for atom in frame.eqns[i].invars]
                self._open_primitives[key] = sources, top.watch.touched
                top.watch = watch
            sources, touched = self._open_primitives[key]
            watch.touched |= touched
            return sources
        known = self._sources.get(key)
        if known is None:
            known = [_source(frame, atom) for atom in frame.eqns[i].invars]
            self._sources[key] = known
        return known


# The kinds of sources that are no equation.
_OF_NUMBER, _OF_GIVEN = 0, 1


def _source(frame: Frame, atom: Any) -> Any:
    while type(atom) is not Literal:
        facts = frame.facts
        var = facts.behind.get(atom, atom)
        if var is None:
            break
        i, k = facts.makers.get(var, (-1, 0))
        position = facts.position.get(var)
        if i in facts.calls:
            frame = frame.inner(i)
            atom = frame.jaxpr.outvars[k]
        elif i >= 0:
            return frame, i
        elif frame.parent is None or position is None:
            return _OF_GIVEN
        else:
            atom = frame.parent.eqn(frame.call).invars[position]
            frame = frame.parent
    return _OF_NUMBER


def _watched_source(frame: Frame, atom: Any) -> Any:
    """The same, with a note of the equations that are looked at."""
    source = chain(resolve(frame, atom))[-1]
    if source is None or type(source) is Number:
        return _OF_NUMBER
    return _OF_GIVEN if source.index < 0 else (source.frame, source.index)


def _makers(frame: Frame, i: int) -> list[Any]:
    """The primitive that makes each operand of an equation, up to moves, or its kind."""
    facts, eqns = frame.facts, frame.eqns
    makers, behind, calls = facts.makers, facts.behind, facts.calls
    kinds: list[Any] = []
    is_top = frame.parent is None
    atom: Any
    for atom in eqns[i].invars:
        if type(atom) is Literal:
            kinds.append(_OF_NUMBER)
            continue
        var = behind.get(atom, atom)
        maker = makers.get(var)
        if maker is None and is_top:
            kinds.append(_OF_NUMBER if var is None else _OF_GIVEN)
        elif maker is not None and maker[0] not in calls:
            kinds.append(eqns[maker[0]].primitive)
        else:
            source = _source(frame, atom)
            is_known = type(source) is int
            kinds.append(source if is_known else source[0].eqns[source[1]].primitive)
    return kinds


class Fitting(NamedTuple):
    """Forms that may end at an equation, and the highest number of their levels."""

    entries: Sequence[Entry]
    levels: int

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> Fitting:
        entries = tuple(entries)
        return cls(entries, max((entry.levels for entry in entries), default=0))


_NONE = Fitting((), 0)


class Index:
    """The forms of some patterns, by the primitive of their last equation."""

    def __init__(self, entries: Sequence[Entry]):
        keys = Counter(entry.form_key for entry in entries)
        self.by_primitive: dict[Primitive, list[Entry]] = {}
        for entry in sorted(entries, key=lambda entry: entry.order):
            entry.shares_form |= keys[entry.form_key] > 1
            primitive = entry.graph.nodes[entry.root].primitive
            self.by_primitive.setdefault(primitive, []).append(entry)
        self._shapes: list[Any] = [_NUMBER, _GIVEN]
        self._numbers: dict[Any, int] = {}
        self._all = {p: Fitting.of(fitting) for p, fitting in self.by_primitive.items()}
        self._fitting: dict[Any, Fitting] = {}
        self._fits_known: dict[Any, bool] = {}
        self._lock = threading.Lock()
        # Parts of programs, with the results of searches there; see `Repeats`.
        self.parts = BoundedCache(64)

    def number(self, shape: Any) -> int:
        """The number of a shape: a primitive, and the numbers of its operands' shapes."""
        number = self._numbers.get(shape)
        if number is None:
            with self._lock:
                number = self._numbers.setdefault(shape, len(self._shapes))
                if number == len(self._shapes):
                    self._shapes.append(shape)
        return number

    def candidates(
        self, shapes: Shapes, frame: Frame, i: int, is_open: bool = False
    ) -> Sequence[Entry]:
        """The forms whose last equation may be equation ``i``, by its shape.

        In the body of a call (``is_open``), the arguments may be anything.
        """
        first = is_open, frame.eqns[i].primitive, *_makers(frame, i)
        fitting = self._fitting.get(first)
        if fitting is None:
            fitting = self._fitting[first] = self._fitting_to(
                1, self._all.get(first[1], _NONE), shapes.of(frame, i, 1), is_open
            )
        for level in range(2, _LEVELS + 1):
            if fitting.levels <= level:
                break
            key = is_open, level, shapes.of(frame, i, level)
            known = self._fitting.get(key)
            if known is None:
                known = self._fitting_to(level, fitting, key[2], is_open)
                self._fitting[key] = known
            fitting = known
        return fitting.entries

    def fits(
        self, entry: Entry, shapes: Shapes, location: Location, is_open: bool = False
    ) -> bool:
        """Whether a candidate has the operands that a form needs, to all levels."""
        return entry.levels <= _LEVELS + 1 or (
            _is_there(entry.need, location, shapes, is_open)
        )

    def _fitting_to(
        self, level: int, fitting: Fitting, number: int, is_open: bool
    ) -> Fitting:
        """The forms among these that a shape of some level fits."""
        return Fitting.of(
            entry
            for entry in fitting.entries
            if self._fits(entry.need, number, level, is_open)
        )

    def all(self, frame: Frame, i: int) -> Sequence[Entry]:
        """The forms whose last equation has the primitive of equation ``i``."""
        return self.by_primitive.get(frame.eqn(i).primitive, ())

    def _fits(self, need: _Shape, number: int, level: int, is_open: bool) -> bool:
        shape = self._shapes[number]
        if shape is _GIVEN or shape is _NUMBER or need is _NUMBER:
            return need is shape or (is_open and shape is _GIVEN)
        primitive, needs = need
        if primitive is not shape[0]:
            return False
        if not level or not needs:
            return True
        key = id(need), number, level, is_open  # The need lives as long as the index.
        fits = self._fits_known.get(key)
        if fits is None:
            fits = self._all_fit(needs, shape[1:], level - 1, is_open)
            if not fits and primitive.name in COMMUTATIVE:
                fits = self._all_fit(needs, shape[:0:-1], level - 1, is_open)
            self._fits_known[key] = fits
        return fits

    def _all_fit(
        self, needs: Sequence[_Shape], numbers: Sequence[int], level: int, is_open: bool
    ) -> bool:
        """Whether operands have the shapes that are needed."""
        return len(needs) == len(numbers) and all(
            need is None or self._fits(need, number, level, is_open)
            for need, number in zip(needs, numbers, strict=True)
        )


def _is_there(need: _Shape, source: Any, shapes: Shapes, is_open: bool) -> bool:
    """Whether an operand has the shape that is needed, to all levels of it."""
    if type(source) is not tuple:
        if source == _OF_GIVEN:
            return is_open
        return need is _NUMBER
    if need is _NUMBER:
        return False
    primitive, needs = need
    frame, i = source
    look_at(frame, i)
    if frame.eqns[i].primitive is not primitive:
        return False
    sources = shapes.sources_of(frame, i)
    if not needs or _are_there(needs, sources, shapes, is_open):
        return True
    return primitive.name in COMMUTATIVE and (
        _are_there(needs, sources[::-1], shapes, is_open)
    )


def _are_there(
    needs: Sequence[_Shape], sources: Sequence[Any], shapes: Shapes, is_open: bool
) -> bool:
    return len(needs) == len(sources) and all(
        need is None or _is_there(need, source, shapes, is_open)
        for need, source in zip(needs, sources, strict=True)
    )


# --- the index for a program -------------------------------------------------------------


def forms_of(pattern: Pattern) -> Forms:
    """The known forms of a pattern, in the trace context of now; kept with the pattern."""
    context = _compat.trace_context()
    forms = pattern.known.get(context)
    if forms is None:
        forms = Forms(pattern)
        pattern.known.put(context, forms)
    return forms


def index_for(
    patterns: Sequence[tuple[int, Pattern]], facts: Facts, all_of_them: bool = False
) -> Index | None:
    """The index of the patterns that may be in a program; ``None`` if none may be.

    Probing waits until a program has the primitives that a pattern always has, unless all
    patterns are asked for.
    """
    cache = patterns[0][1].indices
    key = (
        tuple(patterns),
        facts.primitives,
        facts.kinds,
        _compat.trace_context(),
        all_of_them,
    )
    known = cache.get(key)
    if known is None:
        known = (_index_for(patterns, facts, all_of_them),)
        cache.put(key, known)
    return known[0]


def _index_for(
    patterns: Sequence[tuple[int, Pattern]], facts: Facts, all_of_them: bool
) -> Index | None:
    fitting: list[tuple[int, Pattern, Form, int]] = []
    names = {primitive.name for primitive in facts.primitives}
    for depth, pattern in patterns:
        forms = forms_of(pattern)
        if all_of_them or forms.may_be_among(names):
            forms.extend(*facts.kinds, None if all_of_them else facts.primitives)
            fitting += (
                (depth, pattern, form, forms.count())
                for form in forms.forms()
                if all_of_them or form.primitives <= facts.primitives
            )
    if not fitting:
        return None
    kept = fitting[0][1].indices
    index = kept.get(tuple(fitting))
    if index is None:
        index = Index(
            [
                form.entry(depth, count, functools.partial(Entry, pattern, depth, form))
                for depth, pattern, form, count in fitting
            ]
        )
        kept.put(tuple(fitting), index)
    return index


# --- bodies of calls --------------------------------------------------------------------


class OpenRoot(NamedTuple):
    """An equation in a body, where a form may be that reaches out of the body."""

    path: tuple[int, ...]
    number: int
    entry: Entry

    def location(self, frame: Frame) -> Location:
        """The equation, seen from a frame of the body."""
        for call in self.path:
            frame = frame.inner(call)
        return frame, self.number


_open_roots = WeakCaches(8)
_inner_roots = WeakCaches(8)


def open_roots(index: Index, body: Jaxpr) -> Sequence[OpenRoot]:
    """The equations of a body with forms that may reach out of it; kept with the body."""
    cache = _open_roots.of(body)
    roots = cache.get(index)
    if roots is None:
        roots = list(_find_open_roots(index, body))
        cache.put(index, roots or ())
    return roots


def _find_open_roots(index: Index, body: Jaxpr) -> Iterator[OpenRoot]:
    frame = Frame(body, facts_of(body))
    shapes = Shapes(index)
    for i in range(len(body.eqns)):
        if i in frame.facts.calls:
            for inner in open_roots(index, frame.facts.calls[i]):
                lifted = inner._replace(path=(i, *inner.path))
                if is_open_at(inner.entry.graph, inner.entry.root, lifted.location(frame)):
                    yield lifted
            continue
        for entry in index.candidates(shapes, frame, i, is_open=True):
            if index.fits(entry, shapes, (frame, i), is_open=True) and (
                is_open_at(entry.graph, entry.root, (frame, i))
            ):
                yield OpenRoot((), i, entry)


def inner_roots(index: Index, body: Jaxpr) -> Sequence[tuple[int, Entry]]:
    """The equations of a body where a form inside of it may end; kept with the body."""
    cache = _inner_roots.of(body)
    roots = cache.get(index)
    if roots is None:
        frame = Frame(body, facts_of(body))
        shapes = Shapes(index)
        roots = [
            (i, entry)
            for i in range(len(body.eqns))
            if i not in frame.facts.calls
            for entry in index.candidates(shapes, frame, i)
            if index.fits(entry, shapes, (frame, i))
        ]
        cache.put(index, roots)
    return roots

"""Which forms of which patterns an equation may be the last of."""

from __future__ import annotations

import functools
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from .. import _compat
from .._caches import BoundedCache, WeakCaches
from .._compat import Jaxpr, Primitive
from .bodies import is_hole_scan
from .calls import Number, is_move
from .graph import Graph
from .pattern import Pattern
from .probe import Form, Forms
from .search import is_open_at, root
from .view import Facts, Frame, Place, chain, facts_of, resolve


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
        self.need = _need(form.graph, self.root, _LEVELS[-1], {})
        # What the operands may be, by their avals. `match` fills this.
        self.readings = BoundedCache(256)


@functools.lru_cache(4096)
def _key_of(form: Any) -> object:
    """One object for each form, which is a long tuple."""
    return object()


# To so many levels the operands of an equation are looked at, to tell which forms may end there.
_LEVELS = (1, 4)

# What an equation and its operands are: `_NUMBER`, `_GIVEN`, or a primitive and, above the last
# level, what its operands are. Equations that only move arrays are left out.
_Shape = Any
_NUMBER = "number"
_GIVEN = "given"  # An operand of the program, or of the body of a call.


def _need(graph: Graph, n: int, levels: int, known: dict[Any, _Shape]) -> _Shape:
    """What an equation must be, to be a node of a graph."""
    need = known.get((n, levels))
    if need is not None:
        return need
    node = graph.nodes[n]
    is_plain = not (is_hole_scan(node.eqn) or any(is_move(m.eqn) for m in graph.nodes))
    needs = []
    for ref in node.operands if levels and is_plain else ():
        if ref[0] == "node":
            needs.append(_need(graph, ref[1], levels - 1, known))
        elif ref[0] in ("number", "scalar"):
            needs.append(_NUMBER)
    known[n, levels] = need = node.primitive, tuple(needs)
    return need


class Shapes:
    """What the equations of a program and their operands are, as far as that was asked.

    ``index`` has a number for each such shape.
    """

    def __init__(self, index: Index):
        self._index = index
        self._sources: dict[Any, list[Any]] = {}
        self._numbers: dict[Any, int] = {}

    def of(self, frame: Frame, i: int, level: int) -> int:
        """The number of the shape of an equation, up to a level of its operands."""
        if not level:
            return self._index.number((frame.eqns[i].primitive,))
        key = frame, i, level
        number = self._numbers.get(key)
        if number is None:
            below = [
                self.of(source[0], source[1], level - 1)
                if type(source) is tuple
                else source
                for source in self._sources_of(frame, i)
            ]
            if len(below) > 1:
                below.sort()
            number = self._index.number((frame.eqns[i].primitive, *below))
            self._numbers[key] = number
        return number

    def _sources_of(self, frame: Frame, i: int) -> list[Any]:
        """For each operand the equation that makes it, up to moves, or what it is else."""
        key = frame, i
        sources = self._sources.get(key)
        if sources is None:
            sources = self._sources[key] = [_source(frame, a) for a in frame.eqns[i].invars]
        return sources


# The numbers of what is no equation.
_OF_NUMBER, _OF_GIVEN = 0, 1


def _source(frame: Frame, atom: Any) -> Any:
    source = chain(resolve(frame, atom))[-1]
    if source is None or type(source) is Number:
        return _OF_NUMBER
    return _OF_GIVEN if source.index < 0 else (source.frame, source.index)


class Index:
    """The forms of some patterns, by the primitive of their last equation."""

    def __init__(self, entries: Sequence[Entry]):
        keys = Counter(entry.form_key for entry in entries)
        self.by_primitive: dict[Primitive, list[Entry]] = {}
        for entry in entries:
            entry.shares_form |= keys[entry.form_key] > 1
            primitive = entry.graph.nodes[entry.root].primitive
            self.by_primitive.setdefault(primitive, []).append(entry)
        self._shapes: list[Any] = [_NUMBER, _GIVEN]
        self._numbers: dict[Any, int] = {}
        self._fitting: dict[Any, Sequence[Entry]] = {}
        self._fits_known: dict[Any, bool] = {}
        self._lock = threading.Lock()

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
        """The forms whose last equation may be equation ``i``, by what its operands are.

        In the body of a call (``is_open``), what the caller passes may be anything.
        """
        fitting: Sequence[Entry] = self.by_primitive.get(frame.eqn(i).primitive, ())
        for level in _LEVELS:
            if not fitting:
                break
            key = shapes.of(frame, i, level), level, is_open
            known = self._fitting.get(key)
            if known is None:
                known = self._fitting[key] = [
                    entry
                    for entry in fitting
                    if self._fits(entry.need, key[0], level, is_open)
                ]
            fitting = known
        return fitting

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
        # Of many operands, which may be which is left to the search.
        if not level or len(shape) > _MANY or not needs:
            return True
        key = id(need), number, level, is_open  # The need lives as long as the index.
        fits = self._fits_known.get(key)
        if fits is None:
            fits = self._all_fit(needs, shape[1:], level - 1, is_open)
            self._fits_known[key] = fits
        return fits

    def _all_fit(
        self, needs: Sequence[_Shape], numbers: Sequence[int], level: int, is_open: bool
    ) -> bool:
        """Whether each of some needs has an operand of its own."""
        if not needs:
            return True
        return any(
            self._fits(needs[0], number, level, is_open)
            and self._all_fit(needs[1:], (*numbers[:i], *numbers[i + 1 :]), level, is_open)
            for i, number in enumerate(numbers)
        )


_MANY = 6


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
    fitting: list[tuple[int, Pattern, Form, int]] = []
    for depth, pattern in patterns:
        forms = forms_of(pattern)
        if all_of_them or forms.may_be_among(facts.primitives):
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

    def place(self, frame: Frame) -> Place:
        """The equation, seen from a frame of the body."""
        for call in self.path:
            frame = frame.inner(call)
        return frame, self.number


_open_roots = WeakCaches(8)


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
                if is_open_at(inner.entry.graph, inner.entry.root, lifted.place(frame)):
                    yield lifted
            continue
        for entry in index.candidates(shapes, frame, i, is_open=True):
            if is_open_at(entry.graph, entry.root, (frame, i)):
                yield OpenRoot((), i, entry)

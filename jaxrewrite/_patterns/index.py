"""Which forms of which patterns an equation may be the last of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from .. import _compat
from .._caches import WeakCaches
from .._compat import Jaxpr, Primitive
from .calls import Number
from .graph import Graph
from .pattern import Pattern, Variant
from .probe import Forms
from .search import is_open_at, root
from .view import Facts, Frame, Place, chain, facts_of, resolve


class Entry(NamedTuple):
    """A form of a pattern, and the node that a search starts from.

    ``depth`` is the number of the pattern's table, counted from the nearest.
    """

    pattern: Pattern
    depth: int
    graph: Graph
    variants: Sequence[Variant]
    root: int
    # What the operands of the root must be: primitives, and `_NUMBER`.
    needs: Counter[Any]


_NUMBER = "number"
_GIVEN = "given"  # An operand of the program, or of the body of a call.


class Index:
    """The forms of some patterns, by the primitive of their last equation."""

    def __init__(self, entries: Iterable[Entry]):
        self.by_primitive: dict[Primitive, list[Entry]] = {}
        for entry in entries:
            primitive = entry.graph.nodes[entry.root].primitive
            self.by_primitive.setdefault(primitive, []).append(entry)
        self._fitting: dict[Any, list[Entry]] = {}

    def candidates(self, frame: Frame, i: int, is_open: bool = False) -> Sequence[Entry]:
        """The forms whose last equation may be equation ``i``, by what its operands are.

        In the body of a call (``is_open``), what the caller passes may be anything.
        """
        eqn = frame.eqn(i)
        primitive = eqn.primitive
        if primitive not in self.by_primitive:
            return ()
        kinds = sorted((_kind(frame, atom) for atom in eqn.invars), key=id)
        key = primitive, is_open, *kinds
        fitting = self._fitting.get(key)
        if fitting is None:
            given = kinds.count(_GIVEN) if is_open else 0
            have = Counter(kinds)
            fitting = self._fitting[key] = [
                entry
                for entry in self.by_primitive[primitive]
                if (entry.needs - have).total() <= given
            ]
        return fitting

    def all(self, frame: Frame, i: int) -> Sequence[Entry]:
        """The forms whose last equation has the primitive of equation ``i``."""
        return self.by_primitive.get(frame.eqn(i).primitive, ())


def _kind(frame: Frame, atom: Any) -> Any:
    source = chain(resolve(frame, atom))[-1]
    if source is None or type(source) is Number:
        return _NUMBER
    return _GIVEN if source.index < 0 else source.frame.eqn(source.index).primitive


def _entries(pattern: Pattern, depth: int, forms: Forms) -> Iterator[Entry]:
    for form in forms.forms():
        start = root(form.graph)
        needs: Counter[Any] = Counter()
        known = () if pattern.bodies else form.graph.nodes[start].operands
        for ref in known:
            if ref[0] == "node":
                needs[form.graph.nodes[ref[1]].primitive] += 1
            elif ref[0] in ("number", "scalar"):
                needs[_NUMBER] += 1
        yield Entry(pattern, depth, form.graph, form.variants, start, needs)


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

    Probing waits until a program has the primitives that each form of a pattern has, unless
    all patterns are asked for.
    """
    fitting = []
    for depth, pattern in patterns:
        forms = forms_of(pattern)
        if forms.core() <= facts.primitives or all_of_them:
            forms.extend(*facts.kinds)
            fitting.append((depth, pattern, forms))
    if not fitting:
        return None
    key = tuple((depth, pattern, forms, forms.count()) for depth, pattern, forms in fitting)
    kept = fitting[0][1].indices
    index = kept.get(key)
    if index is None:
        index = Index(
            entry
            for depth, pattern, forms in fitting
            for entry in _entries(pattern, depth, forms)
        )
        kept.put(key, index)
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
    for i in range(len(body.eqns)):
        if i in frame.facts.calls:
            for inner in open_roots(index, frame.facts.calls[i]):
                lifted = inner._replace(path=(i, *inner.path))
                if is_open_at(inner.entry.graph, inner.entry.root, lifted.place(frame)):
                    yield lifted
            continue
        for entry in index.candidates(frame, i, is_open=True):
            if is_open_at(entry.graph, entry.root, (frame, i)):
                yield OpenRoot((), i, entry)

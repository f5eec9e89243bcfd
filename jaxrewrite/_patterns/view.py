"""A program as a match sees it: across the borders of calls, which are entered lazily.

A `Frame` is the program, or the body of one call in it. The same body has a frame for each
of its calls. The facts about a body are computed once (`Facts`).
"""

from __future__ import annotations

import collections
import functools
import itertools
import operator
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from .. import _compat
from .._analyses.calls import CALLS, MOVES, Number, body_of, folded, is_move
from .._compat import DropVar, Jaxpr, JaxprEqn, Literal, Primitive, ShapedArray, Var
from .._core.caches import WeakCaches
from .numbering import Numbering


class Facts:
    """The facts about a jaxpr that matching needs."""

    def __init__(self, jaxpr: Jaxpr):
        self.position = {var: i for i, var in enumerate(jaxpr.invars)}
        # The equation that makes a variable, and which of its results the variable is.
        self.makers: dict[Var, tuple[int, int]] = {}
        # The bodies of the calls that are looked through, by the number of the equation.
        self.calls: dict[int, Jaxpr] = {}
        self.eqns: Sequence[JaxprEqn] = jaxpr.eqns
        # The equations of each primitive.
        by_primitive: dict[Primitive, list[int]] = collections.defaultdict(list)
        makers = self.makers
        for i, eqn in enumerate(self.eqns):
            by_primitive[eqn.primitive].append(i)
            outvars = eqn.outvars
            if len(outvars) == 1:
                makers[outvars[0]] = i, 0
            else:
                makers.update((var, (i, k)) for k, var in enumerate(outvars))
        self.by_primitive = dict(by_primitive)
        for primitive in self.by_primitive:
            for i in by_primitive[primitive] if primitive.name in CALLS else ():
                body = body_of(self.eqns[i])
                if body is not None:
                    self.calls[i] = body
        self._outvars = jaxpr.outvars

    @functools.cached_property
    def returned(self) -> frozenset[Any]:
        """The variables that calls make."""
        return frozenset(var for i in self.calls for var in self.eqns[i].outvars)

    @functools.cached_property
    def behind(self) -> dict[Var, Any]:
        """The sources of moved variables: a variable, or ``None`` for a number."""
        behind: dict[Any, Any] = {}
        moves = (numbers for p, numbers in self.by_primitive.items() if p.name in MOVES)
        for i in sorted(itertools.chain(*moves)):
            eqn = self.eqns[i]
            if is_move(eqn):
                (atom,) = eqn.invars
                source = None if type(atom) is Literal else behind.get(atom, atom)
                behind[eqn.outvars[0]] = source
        return behind

    @functools.cached_property
    def uses(self) -> Mapping[Var, Sequence[int]]:
        """The equations that use each variable."""
        # Most variables have one use, and a list for each of them takes longer.
        uses: dict[Any, Any] = {}
        for i, eqn in enumerate(self.eqns):
            only = (i,)
            for atom in eqn.invars:
                if type(atom) is Literal:
                    continue
                users = uses.get(atom)
                if users is None:
                    uses[atom] = only
                elif users[-1] != i:
                    if type(users) is list:
                        users.append(i)
                    else:
                        uses[atom] = [*users, i]
        return uses

    @functools.cached_property
    def results(self) -> dict[Var, list[int]]:
        """Which results of the jaxpr each variable is."""
        results: dict[Any, list[int]] = {}
        for p, atom in enumerate(self._outvars):
            if type(atom) is not Literal:
                results.setdefault(atom, []).append(p)
        return results

    @functools.cached_property
    def primitives(self) -> frozenset[Primitive]:
        """The primitives of the jaxpr and of the calls in it."""
        return frozenset(self.by_primitive).union(
            *(facts_of(b).primitives for b in self._bodies())
        )

    @functools.cached_property
    def kinds(self) -> tuple[frozenset[Any], int]:
        """The dtypes of the arrays, and the highest rank, here and in the calls."""
        dtypes, rank = set(), 0
        variables = itertools.chain(self.position, self.makers)
        for aval in set(map(operator.attrgetter("aval"), variables)):
            if isinstance(aval, ShapedArray):
                dtypes.add(aval.dtype)
                rank = max(rank, len(aval.shape))
        for body in self._bodies():
            inner, inner_rank = facts_of(body).kinds
            dtypes |= inner
            rank = max(rank, inner_rank)
        return frozenset(dtypes), rank

    def _bodies(self) -> list[Jaxpr]:
        return list({id(body): body for body in self.calls.values()}.values())


class PartOfFacts(Facts):
    """The same about some equations of a jaxpr, which keep their numbers.

    Moves and calls that lead to them are there, too. Of other equations it is known which
    operands they make. Uses are known of the variables that were ``asked`` about.
    """

    def __init__(self, facts: Facts, numbers: Iterable[int], asked: Iterable[Var]):
        eqns: dict[int, JaxprEqn] = {}
        variables = {*asked}
        pending = [*numbers]
        while pending:
            i = pending.pop()
            if i in eqns:
                continue
            eqn = eqns[i] = facts.eqns[i]
            variables.update(eqn.outvars)
            atom: Any
            for atom in eqn.invars:
                if type(atom) is Literal:
                    continue
                variables.add(atom)
                j, _ = facts.makers.get(atom, (-1, 0))
                if j in facts.calls or atom in facts.behind:
                    pending.append(j)
        invars = variables - facts.makers.keys()
        some = lambda of, keys: {key: of[key] for key in keys if key in of}
        self.numbers = {*eqns}
        self.eqns = cast(Any, eqns)
        self.position = some(facts.position, invars)
        self.makers = some(facts.makers, variables)
        self.calls = some(facts.calls, eqns)
        self.by_primitive = {}
        for i, eqn in eqns.items():
            self.by_primitive.setdefault(eqn.primitive, []).append(i)
        self.behind = some(facts.behind, variables)
        self.uses = some(facts.uses, asked)
        self.results = some(facts.results, asked)


_facts = WeakCaches(1)


def facts_of(jaxpr: Jaxpr) -> Facts:
    cache = _facts.of(jaxpr)
    facts = cache.get("facts")
    if facts is None:
        facts = Facts(jaxpr)
        cache.put("facts", facts)
    return facts


class Watch:
    """The questions about a program while a search runs.

    ``touched`` has the numbers of the program's equations that were looked at; an equation in
    a call has the number of the call. An equation that makes an operand, of which a search
    asked only whether it is there and neither a call nor a move, is not among them. ``asked``
    are the variables whose uses were asked for. ``is_of_all`` tells whether an answer depends
    on the whole program.
    """

    __slots__ = ("asked", "is_of_all", "touched")

    def __init__(self, i: int):
        self.touched = {i}
        self.asked: set[Var] = set()
        self.is_of_all = False


def look_at(frame: Frame, i: int) -> None:
    """Note that an equation is looked at."""
    watch = frame.top.watch
    if watch is not None:
        watch.touched.add(frame.number_in_top(i))


class Frame:
    """The program, or the body of one call in it."""

    __slots__ = (
        "_inner",
        "_numbering",
        "call",
        "embeddings",
        "eqns",
        "facts",
        "jaxpr",
        "origin",
        "parent",
        "resolved",
        "top",
        "watch",
    )

    def __init__(
        self, jaxpr: Jaxpr, facts: Facts, parent: Frame | None = None, call: int = -1
    ):
        self.jaxpr = jaxpr
        self.facts = facts
        self.eqns = facts.eqns
        self.parent = parent
        self.top: Frame = self if parent is None else parent.top
        # The sources of atoms, by their identity, with the numbers of the program's equations
        # that decide them.
        self.resolved: dict[int, tuple[Any, Sequence[int]]] = {}
        # The embeddings of forms, by the form and the equation that they end at.
        self.embeddings: dict[Any, Any] = {}
        # The number of the equation in the parent that calls the body.
        self.call = call
        # The number of the call in the program that this is in.
        self.origin: int = (
            call if parent is None or parent.parent is None else parent.origin
        )
        self.watch: Watch | None = None
        self._inner: dict[int, Frame] = {}
        self._numbering: Numbering | None = None

    def inner(self, call: int) -> Frame:
        frame = self._inner.get(call)
        if frame is None:
            body = self.facts.calls[call]
            frame = self._inner[call] = Frame(body, facts_of(body), self, call)
        return frame

    def number(self, i: int) -> int:
        """The number of an equation, the same for all equations that make the same arrays."""
        top = self.top
        if top.watch is not None:
            top.watch.is_of_all = True
        if top._numbering is None:
            top._numbering = Numbering(resolve)
        return top._numbering.of((self, i))

    def forget(self) -> None:
        """Drop the sources, embeddings and numbers, when no more is asked."""
        self.resolved, self.embeddings = {}, {}
        self._numbering = None
        for inner in self._inner.values():
            inner.forget()

    def number_in_top(self, i: int) -> int:
        """The number of an equation in the program, or of the call that it is in."""
        return i if self.parent is None else self.origin

    def eqn(self, i: int) -> JaxprEqn:
        return self.eqns[i]

    def path(self) -> tuple[int, ...]:
        """The numbers of the calls from the program to here."""
        return () if self.parent is None else (*self.parent.path(), self.call)


# An equation in the view: its frame, and its number there.
Location = tuple[Frame, int]


class Variable:
    """A variable that an equation makes, or that the program is given (``index`` -1)."""

    __slots__ = ("chain", "frame", "index", "k", "var")

    def __init__(self, frame: Frame, var: Var, index: int = -1, k: int = 0):
        self.frame = frame
        self.var = var
        self.index = index
        self.k = k
        self.chain: tuple[Sequence[Any], Sequence[int]] | None = None  # By `_chain`.

    def is_it(self, other: Any) -> bool:
        """Whether it is the same variable."""
        return (
            type(other) is Variable and self.var is other.var and self.frame is other.frame
        )

    def same(self, other: Any) -> bool:
        """Whether it is the same array: the same variable, or the same equation made it again."""
        return self.is_it(other) or (
            type(other) is Variable
            and self.index >= 0 <= other.index
            and self.k == other.k
            and make_the_same((self.frame, self.index), (other.frame, other.index))
        )

    @property
    def aval(self) -> Any:
        return self.var.aval


def make_the_same(first: Location, second: Location) -> bool:
    """Whether two equations make the same results of the same arrays."""
    (frame, i), (other_frame, j) = first, second
    look_at(frame, i)
    look_at(other_frame, j)
    a, b = frame.eqn(i), other_frame.eqn(j)
    return (
        a.primitive is b.primitive
        and len(a.invars) == len(b.invars)
        and _compat.same_array_type(a.outvars[0].aval, b.outvars[0].aval)
        and frame.top is other_frame.top
        # The numbers of equations depend on all equations before them.
        and not any(
            _surely_differ(resolve(frame, x), resolve(other_frame, y))
            for x, y in zip(a.invars, b.invars, strict=True)
        )
        and frame.number(i) == other_frame.number(j)
    )


def _surely_differ(a: Any, b: Any) -> bool:
    """Whether operands are different arrays, by the equations that make them."""
    if type(a) is not Variable or type(b) is not Variable:
        return type(a) is not type(b) or (type(a) is Number and not a.same(b))
    if a.index < 0 or b.index < 0:
        return not a.is_it(b)
    look_at(a.frame, a.index)
    look_at(b.frame, b.index)
    return a.frame.eqn(a.index).primitive is not b.frame.eqn(b.index).primitive


def resolve(frame: Frame, atom: Any) -> Any:
    """The source of an atom, across borders: a `Number`, a `Variable`, or ``None`` for odd literals."""
    source, by = _resolved(frame, atom)
    watch = frame.top.watch
    if watch is not None:
        watch.touched.update(by)
    return source


def _resolved(frame: Frame, atom: Any) -> tuple[Any, Sequence[int]]:
    """The source of an atom, and the numbers of the program's equations that decide it."""
    found = frame.resolved.get(id(atom))
    if found is None:
        by: list[int] = []
        found = frame.resolved[id(atom)] = _resolve(frame, atom, by), by
    return found


def _resolve(frame: Frame, atom: Any, by: list[int]) -> Any:
    while True:
        if type(atom) is Literal:
            return Number.of(atom)
        maker = frame.facts.makers.get(atom)
        if maker is None:
            position = frame.facts.position.get(atom)
            if frame.parent is None or position is None:
                return Variable(frame, atom)
            atom = frame.parent.eqn(frame.call).invars[position]
            frame = frame.parent
            continue
        index, k = maker
        if index in frame.facts.calls:
            by.append(frame.number_in_top(index))
            frame = frame.inner(index)
            atom = frame.jaxpr.outvars[k]
            continue
        eqn = frame.eqn(index)
        if eqn.primitive.name == "convert_element_type":
            source, more = _resolved(frame, eqn.invars[0])
            by += (frame.number_in_top(index), *more)
            number = folded(eqn, source) if type(source) is Number else None
            if number is not None:
                return number
        return Variable(frame, atom, index, k)


def passing(frame: Frame, atom: Any) -> Iterator[Frame]:
    """The bodies of calls that only pass on an array on its way to an atom."""
    entered: list[Frame] = []
    while type(atom) is not Literal:
        index, k = frame.facts.makers.get(atom, (-1, 0))
        if index in frame.facts.calls:
            frame = frame.inner(index)
            entered.append(frame)
            atom = frame.jaxpr.outvars[k]
            continue
        position = frame.facts.position.get(atom)
        if frame.parent is None or position is None:
            return
        if entered:
            yield entered.pop()
        atom = frame.parent.eqn(frame.call).invars[position]
        frame = frame.parent


def outermost(variable: Variable, inlined: Container[Frame] = ()) -> Variable:
    """The same array in the outermost frame where it has a name, or in an inlined one."""
    while variable.frame.parent is not None and variable.frame not in inlined:
        positions = variable.frame.facts.results.get(variable.var, ())
        outvars = variable.frame.parent.eqn(variable.frame.call).outvars
        names = [outvars[p] for p in positions if type(outvars[p]) is not DropVar]
        if not names:
            break
        variable = Variable(variable.frame.parent, names[0], variable.frame.call)
    return variable


def chain(atom: Any) -> Sequence[Any]:
    """An atom, and the atoms that it is a moved or converted form of, up to the last."""
    if type(atom) is not Variable:
        return [atom]
    atoms, by = _chain(atom)
    watch = atom.frame.top.watch
    if watch is not None:
        watch.touched.update(by)
    return atoms


def _chain(variable: Variable) -> tuple[Sequence[Any], Sequence[int]]:
    """The chain of an array, and the program's equations that decide it."""
    if variable.chain is None:
        variable.chain = [variable], ()
        if variable.index >= 0:
            eqn = variable.frame.eqn(variable.index)
            if is_move(eqn):
                source, by = _resolved(variable.frame, eqn.invars[0])
                rest, more = _chain(source) if type(source) is Variable else ([source], ())
                number = variable.frame.number_in_top(variable.index)
                variable.chain = [variable, *rest], (number, *by, *more)
    return variable.chain


def users_behind_moves(frame: Frame, var: Var) -> Iterator[Location]:
    """The equations that use a variable, or a moved or converted form of it."""
    for user in users(frame, var):
        if user is None:
            continue
        yield user
        eqn = user[0].eqn(user[1])
        if is_move(eqn):
            yield from users_behind_moves(user[0], eqn.outvars[0])


def users(frame: Frame, var: Var) -> Iterator[Location | None]:
    """The equations that use a variable; ``None`` for the result of the program."""
    facts = frame.facts
    watch = frame.top.watch if frame.parent is None else None
    if watch is not None:
        watch.asked.add(var)
        watch.touched.update(facts.uses.get(var, ()))
    for i in facts.uses.get(var, ()):
        if i not in facts.calls:
            yield frame, i
            continue
        inner = frame.inner(i)
        for p, atom in enumerate(frame.eqn(i).invars):
            if atom is var:
                yield from users(inner, inner.jaxpr.invars[p])
    for p in facts.results.get(var, ()):
        if frame.parent is None:
            yield None
            continue
        result = frame.parent.eqn(frame.call).outvars[p]
        if type(result) is not DropVar:
            yield from users(frame.parent, result)

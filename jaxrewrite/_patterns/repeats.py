"""Parts of a program that are repeated, such as the layers of a model.

What a search asks about a program it asks about some of its equations, and about the uses of
some variables (`Watch`). Where the equations that were asked about come again, each with its
operands from the same distance, the answers are the same, and so is what is found. It is
moved there instead of searched for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence, Set
from typing import Any, NamedTuple

import numpy as np

from .._compat import DropVar, JaxprEqn, Literal, Var
from .view import Frame, Made, Place, Watch


# What an equation is: equal for equations that differ by nothing that a search can ask about,
# with the operands' origins relative to the equation.
_Code = int

# Where an array was met last: the equation, times `_EQUATION`, and which of its results it is.
# If it is an operand of the equation, its position and `_OPERAND` are added, and `_GIVEN` if no
# equation makes it.
_EQUATION = 1 << 24
_OPERAND = 1 << 16
_GIVEN = 1 << 20


def _codes(top: Frame, reached: Set[Var]) -> list[_Code]:
    """A number for each equation of a program.

    The origin of an operand is the distance to its last use, or to the equation that makes
    it. So equal numbers in a row mean equal data flow among them, also of what all share.
    """
    numbers: dict[Any, _Code] = {}
    params = _Params()
    codes = []
    met: dict[Any, int] = {}
    for i, eqn in enumerate(top.eqns):
        here = i * _EQUATION
        parts: list[Any] = [eqn.primitive, eqn.ctx, len(eqn.effects)]
        for p, atom in enumerate(eqn.invars, _OPERAND):
            if type(atom) is Literal:
                parts.append(_of_literal(atom))
                continue
            parts.append(atom.aval)
            if reached:
                parts.append(atom in reached)
            last = met.get(atom)
            if last is None:
                parts.append(None)
                met[atom] = here + p + _GIVEN
            else:
                parts.append(here - last)
                met[atom] = here + p + (last & _GIVEN)
        for k, var in enumerate(eqn.outvars, here):
            met[var] = k
            parts.append(var.aval)
            if type(var) is DropVar:
                parts.append(None)
        if eqn.params:
            parts.append(params.key(eqn))
        codes.append(numbers.setdefault(tuple(parts), len(numbers)))
    return codes


def _of_literal(literal: Any) -> Any:
    """Equal for literals of one aval and value; 0.0 and -0.0 differ."""
    try:
        return literal.aval, np.asarray(literal.val).tobytes()
    except TypeError:  # A literal of an extended dtype.
        return (object(),)


class _Params:
    """Keys of the parameters of equations."""

    def __init__(self) -> None:
        self._has_floats: dict[Any, bool] = {}

    def key(self, eqn: JaxprEqn) -> Any:
        """Equal for parameters that are the same; of those without a hash, none are."""
        values = (*eqn.params, *eqn.params.values())
        try:
            has_floats = self._has_floats.get(values)
        except TypeError:
            return object()
        if has_floats is None:
            has_floats = self._has_floats[values] = _has_floats(values)
        return (repr(values), values) if has_floats else values  # 0.0 == -0.0


def _has_floats(value: Any) -> bool:
    if isinstance(value, (tuple, frozenset)):
        return any(map(_has_floats, value))
    return isinstance(value, (float, complex, np.inexact))


# So far back the equations before a repetition are compared, too.
_BEFORE = 256


def _runs(codes: Sequence[_Code]) -> tuple[list[int], list[int], list[int]]:
    """For each equation the distance to the one that it repeats, or 0, and a first and a last.

    All from the first to the last repeat others at this distance.
    """
    period: list[int] = []
    first: list[int] = []
    runs: list[list[int]] = []  # For each equation the run that it is in, which is its end.
    before: dict[_Code, int] = {}
    for i, code in enumerate(codes):
        p = period[-1] if i else 0
        if p and codes[i - p] == code:
            first.append(first[-1])
            runs.append(runs[-1])
        else:
            p = i - before.get(code, i)
            # What repeats something nearer may repeat what is at this distance as well.
            j = i
            while i - j < _BEFORE and j > p > 0 and codes[j - 1] == codes[j - 1 - p]:
                j -= 1
            first.append(j)
            runs.append([i])
        period.append(p)
        runs[-1][0] = i
        before[code] = i
    return period, first, [run[0] for run in runs]


class _Known(NamedTuple):
    """What was found at an equation, and what was asked for it."""

    base: int
    watch: Watch
    result: Any


class _Forms(NamedTuple):
    """The forms that may end at an equation, and the first equation that was looked at."""

    first: int
    forms: Sequence[Any]


class Shift(NamedTuple):
    """The way from a part of a program to a repetition of it.

    Equations from ``start`` on are so many ``steps`` further, and those before it are the
    same ones. ``near`` are equations of the first part.
    """

    top: Frame
    start: int
    steps: int
    near: Set[int]

    def frame(self, frame: Frame) -> Frame:
        if frame.parent is None:
            return frame
        outer = self.frame(frame.parent)
        return outer.inner(self.number(frame.parent, frame.call))

    def number(self, frame: Frame, i: int) -> int:
        return i + self.steps if frame.parent is None and i >= self.start else i

    def place(self, place: Place) -> Place:
        frame, i = place
        return self.frame(frame), self.number(frame, i)

    def made(self, made: Made) -> Made:
        frame, i = self.frame(made.frame), made.index
        if made.frame.parent is not None:
            return Made(frame, made.var, i, made.k)
        if i < 0:
            return Made(frame, self._given(made.var))
        i = self.number(made.frame, i)
        return Made(frame, frame.eqn(i).outvars[made.k], i, made.k)

    def _given(self, var: Var) -> Any:
        """The operand of the program that is used where another one is."""
        eqns = self.top.eqns
        for i in self.near:
            for p, atom in enumerate(eqns[i].invars):
                if atom is var:
                    return eqns[i + self.steps].invars[p]
        return var


class Repeats:
    """The repetitions in a program, and what was found in the first of each."""

    def __init__(self, top: Frame, reached: Set[Var]):
        self._top = top
        codes = _codes(top, reached)
        self._period, self._first, self._last = _runs(codes)
        self._repeated = {i - p for i, p in enumerate(self._period) if p}
        self._forms: dict[int, _Forms] = {}
        self._known: dict[Any, _Known] = {}
        self._watches: dict[Any, Watch] = {}

    def forms(self, i: int, find: Callable[[int], Sequence[Any]]) -> Sequence[Any]:
        """What ``find`` finds of the operands of equation ``i``, or found where it was before.

        Of the uses of variables it asks nothing.
        """
        known = self._forms.get(i - self._period[i])
        if known is not None and known.first >= self._first[i] - self._period[i]:
            self._forms[i] = known
            return known.forms
        if i not in self._repeated:
            return find(i)
        watch = Watch(i)
        with self._watching(watch):
            forms = find(i)
        self._forms[i] = _Forms(min(watch.touched), forms)
        return forms

    def found(
        self,
        what: Any,
        place: Place,
        find: Callable[[], Any],
        move: Callable[[Any, Shift], Any],
    ) -> Any:
        """What ``find`` finds at a place, or what it found at the one that it repeats."""
        i, within = place[0].number_in_top(place[1]), _within(place)
        known = self._known.get((what, i - self._period[i], within))
        if known is not None and self._is_one_row(known.base, i):
            shift = self._shift(known, i)
            if shift is not None:
                self._known[what, i, within] = known
                return move(known.result, shift)
        if i not in self._repeated:
            return find()
        # All forms at a place have one watch, because one search may serve several of them.
        watch = self._watches.setdefault((i, within), Watch(i))
        with self._watching(watch):
            result = find()
        self._known[what, i, within] = _Known(i, watch, result)
        return result

    @contextlib.contextmanager
    def _watching(self, watch: Watch) -> Iterator[None]:
        self._top.watch = watch
        try:
            yield
        finally:
            self._top.watch = None

    def _is_one_row(self, base: int, i: int) -> bool:
        """Whether all repetitions up to a place are at one distance.

        Else what is before the first of some may be in the midst of others.
        """
        before, period = i - self._period[i], self._period[i]
        return base == before or self._period[before] == period

    def _shift(self, known: _Known, i: int) -> Shift | None:
        """The way to equation ``i``, if all that was asked has the same answers there."""
        watch = known.watch
        version = len(watch.touched), len(watch.asked), watch.is_of_all
        checked = watch.checked.get(i)
        if checked is None or checked[0] != version:
            checked = watch.checked[i] = version, self._checked(known, i)
        return checked[1]

    def _checked(self, known: _Known, i: int) -> Shift | None:
        watch, steps = known.watch, i - known.base
        # Of what is before, nothing is known to be repeated.
        start = self._first[i] - self._period[i]
        near = watch.near(start)
        if watch.is_of_all or known.base < start or max(near) + steps > self._last[i]:
            return None
        shift = Shift(self._top, start, steps, near)
        far = watch.touched - near
        if far and not self._shares(far, shift):
            return None
        return shift if self._has_same_uses(watch.asked, shift) else None

    def _shares(self, far: Set[int], shift: Shift) -> bool:
        """Whether both parts have to do with equations before them in the same way."""
        eqns = self._top.eqns
        shared = {
            atom
            for i in far
            for atom in (*eqns[i].invars, *eqns[i].outvars)
            if type(atom) is not Literal
        }
        return all(
            a is b or type(a) is Literal or not (a in shared or b in shared)
            for i in shift.near
            for a, b in zip(eqns[i].invars, eqns[i + shift.steps].invars, strict=True)
        )

    def _has_same_uses(self, asked: Set[Var], shift: Shift) -> bool:
        facts, eqns = self._top.facts, self._top.eqns
        for var in asked:
            made = facts.made.get(var)
            if made is None or made[0] not in shift.near:
                return False
            other = eqns[made[0] + shift.steps].outvars[made[1]]
            if (var in facts.results) or (other in facts.results):
                return False
            uses = [i + shift.steps for i in facts.uses.get(var, ())]
            if uses != list(facts.uses.get(other, ())):
                return False
        return True


def _within(place: Place) -> Any:
    """Where a place is in the call that it is in."""
    frame, i = place
    return None if frame.parent is None else (*frame.path()[1:], i)

"""The record of a rewriting, as it happens: the raw material of `jaxrewrite.explain`.

A rewriting has a recorder only while it is explained. The recorder is part of the settings,
so that nested transforms, as in rules that call `bind`, write to the same recorder.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from .._compat import AnyJaxpr, Jaxpr, JaxprEqn
from .dense import Reason
from .hooks import Pass
from .rules import Declined, Ranked
from .value import Like, Operand, Value


if TYPE_CHECKING:
    from .site import Site


class MadeDense(NamedTuple):
    """A value that became dense for an equation, and why."""

    value: Value
    reason: Reason


@dataclasses.dataclass(eq=False)
class Record:
    """An equation that met a value, and its rewriting.

    ``way`` is how it was rewritten: by a ``"rule"``, a ``"handler"``, a ``"default"``, leaf by
    leaf (``"identity"``) or on ``"dense"`` operands. ``changed_by`` are the hooks that gave it
    other operands, and ``added`` are the equations that take its place. ``inner`` are records
    of equations of rules, and ``bodies`` those of jaxprs in the equation. ``choice`` is that of
    a policy that compares costs.
    """

    site: Site
    operands: Sequence[Operand]
    results: Sequence[Any] = ()
    way: str = "dense"
    changed_by: list[type] = dataclasses.field(default_factory=list)
    rule: Ranked | None = None
    owner: type[Value] | None = None
    declined: list[Declined] = dataclasses.field(default_factory=list)
    added: list[JaxprEqn] = dataclasses.field(default_factory=list)
    dense: list[MadeDense] = dataclasses.field(default_factory=list)
    joined: list[tuple[str, Any, Any]] = dataclasses.field(default_factory=list)
    inner: list[Record] = dataclasses.field(default_factory=list)
    bodies: list[Body] = dataclasses.field(default_factory=list)
    choice: Any = None


class Body(NamedTuple):
    """A jaxpr before and after, and the records of its own equations."""

    original: AnyJaxpr
    rewritten: Jaxpr
    records: list[Record]


class Recorder:
    """Collects the records of one rewriting, nested as the program is."""

    def __init__(self) -> None:
        # The lists to which the records of the program, body or rule at hand go.
        self.lists: list[list[Record]] = [[]]
        # The equations at hand, the innermost last.
        self._open: list[Record] = []
        # The near misses of the passes that are asked for them.
        self.misses: dict[Pass, list[Any]] = {}
        # The passes that changed a program, which was this before, and that after.
        self.passes: list[tuple[Pass, Jaxpr, Jaxpr]] = []
        # The programs that were rewritten; the program of the user's call is the last.
        self.programs: list[Body] = []

    # --- equations --------------------------------------------------------------

    def begin(self, site: Site, operands: Sequence[Operand]) -> Record:
        r"""A record of an equation, until it `end`\ s that of the equation at hand."""
        record = Record(site, operands)
        self.lists[-1].append(record)
        self.lists.append(record.inner)
        self._open.append(record)
        return record

    def end(self) -> None:
        self._open.pop()
        self.lists.pop()

    @property
    def record(self) -> Record | None:
        """The record of the equation at hand."""
        return self._open[-1] if self._open else None

    def became_dense(self, value: Value, reason: Reason) -> None:
        if self._open:
            self._open[-1].dense.append(MadeDense(value, reason))

    def joined(self, slot: str, before: Like, after: Like) -> None:
        """A carry, or a result of a branch, that took another structure."""
        if self._open:
            self._open[-1].joined.append((slot, before, after))

    # --- programs and bodies ------------------------------------------------------

    def extend(self, records: Sequence[Record]) -> None:
        """Add records that were collected aside."""
        self.lists[-1].extend(records)

    def add_body(self, body: Body) -> None:
        """Add a body to the equation at hand; a later form of a jaxpr replaces earlier ones."""
        if not self._open:
            return
        bodies = self._open[-1].bodies
        for i, other in enumerate(bodies):
            if other.original is body.original:
                bodies[i] = body
                return
        bodies.append(body)

    def add_program(self, original: Jaxpr, rewritten: Jaxpr) -> None:
        self.programs.append(Body(original, rewritten, self.lists[-1]))


@contextlib.contextmanager
def aside(recorder: Recorder | None) -> Iterator[list[Record]]:
    """Collect the records of a function that is traced once for several equations.

    Without a recorder there are none.
    """
    records: list[Record] = []
    if recorder is None:
        yield records
        return
    recorder.lists.append(records)
    try:
        yield records
    finally:
        recorder.lists.pop()

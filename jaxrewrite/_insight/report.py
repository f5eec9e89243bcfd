"""`Report`: what a rewriting did, as plain data, and its three forms for people."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Any, Self


@dataclasses.dataclass(frozen=True)
class RuleInfo:
    """A rule: its name, and the file and line of its function."""

    name: str
    file: str
    line: int


@dataclasses.dataclass(frozen=True)
class Declined:
    """A rule that was asked before the rule that answered, and why it did not answer."""

    rule: RuleInfo
    why: str


@dataclasses.dataclass(frozen=True)
class MadeDense:
    """A value that became dense.

    Attributes
    ----------
    type
        The name of its type.
    aval
        Its shape and dtype, as in ``"f32[3,4]"``.
    bytes
        The bytes of the dense array.
    why
        The reason, a sentence.
    repair
        What would keep it implicit: the first lines of the rule that is missing, ready to
        paste, or what to define in the type.
    """

    type: str
    aval: str
    bytes: float
    why: str
    repair: str


@dataclasses.dataclass(frozen=True)
class Choice:
    """What ``materialise="cheapest"`` compared for an equation, in seconds of its model.

    The choice is the cheapest one for the program as a whole. So a dense equation may cost more
    than the implicit one, or less, where its operands are dense for others, too.

    Attributes
    ----------
    implicit
        The cost of the implicit equation.
    dense
        The cost of the equation on arrays.
    making
        The cost of making its operands dense, which is paid once for all equations that need
        them.
    is_dense
        Whether it is dense.
    """

    implicit: float
    dense: float
    making: float
    is_dense: bool


@dataclasses.dataclass(frozen=True)
class Step:
    """An equation of the program that met a value, and its rewriting.

    Attributes
    ----------
    primitive
        The name of the primitive.
    file, line, function
        The user's place in the source; empty and 0 if it is not known.
    operands, results
        Types and avals: ``"f32[3,4]"`` for an array, ``"Lora:f32[3,4]"`` for a value.
    decision
        What answered: ``"rule"``, ``"pattern"`` (a rule for several equations, of which this
        step stands for all), ``"handler"`` (a higher-order primitive was rewritten with
        its bodies), ``"default"`` (of a type), ``"identity"`` (the leaves were moved as the
        array would be) or ``"dense"`` (the operands became dense).
    rule
        The rule, or the ``default`` of a type, that answered.
    declined
        The rules that were asked before, and why they did not answer.
    equations
        The primitives of the equations that take its place, without those that nothing needs.
    flops, bytes
        Dense and implicit, of one run of this equation with all that is inside of it.
    dense
        The values that became dense for it.
    joined
        Carries of a loop, or results of branches, that took another structure.
    times
        How often the equation runs in one call; ``None`` if that is not known.
    bodies
        The bodies of a higher-order primitive, each with its own steps.
    inner
        The steps of a rule's equations on fields that are values, and of transforms in it.
    covered
        For a pattern, the primitives of the equations that it took the place of. If it declined
        and they have no value among their operands, this step stands for them.
    changed_by
        The names of the passes that made or changed the equation, and of the hooks that gave
        it other operands, before rules met it.
    choice
        The costs that ``materialise="cheapest"`` compared; ``None`` where nothing was to choose.
    """

    primitive: str
    file: str
    line: int
    function: str
    operands: tuple[str, ...]
    results: tuple[str, ...]
    decision: str
    rule: RuleInfo | None
    declined: tuple[Declined, ...]
    equations: tuple[str, ...]
    flops: tuple[float, float]
    bytes: tuple[float, float]
    dense: tuple[MadeDense, ...]
    joined: tuple[str, ...]
    times: int | None
    bodies: tuple[Body, ...]
    inner: tuple[Step, ...]
    covered: tuple[str, ...] = ()
    changed_by: tuple[str, ...] = ()
    choice: Choice | None = None


@dataclasses.dataclass(frozen=True)
class Body:
    """A jaxpr inside of an equation: its name, as ``"body"``, and its steps."""

    name: str
    times: int | None
    steps: tuple[Step, ...]


# The form of the JSON text. A change that older readers can't read has a new number.
VERSION = 4


@dataclasses.dataclass(frozen=True)
class Report:
    """What `jaxrewrite.explain` found: a tree of steps, and totals.

    ``print(report)`` shows it as text, and a notebook shows it as a page that folds.

    Attributes
    ----------
    program
        The name of the function.
    arguments
        The types and avals of the arguments that are arrays or values.
    policy
        What the program does if a value has to become dense: ``"warn"``, ``"allow"`` or
        ``"forbid"``; or the text of another policy.
    tree
        The steps of the program, each with those inside of it.
    flops, bytes
        Dense and implicit, of the whole program, with the equations that met no value. A
        `transform` that it calls counts as dense once for each time that it is traced, also in a loop.
    equations
        How many equations the rewritten program has, without those of bodies.
    passes
        The names of the passes that changed the program, or a body in it, but for patterns.
    """

    program: str
    arguments: tuple[str, ...]
    policy: str
    tree: tuple[Step, ...]
    flops: tuple[float, float]
    bytes: tuple[float, float]
    equations: int
    passes: tuple[str, ...] = ()

    @property
    def steps(self) -> tuple[Step, ...]:
        """All steps, also those in bodies and rules, in program order."""
        return tuple(_walk(self.tree))

    @property
    def dense(self) -> tuple[tuple[Step, MadeDense], ...]:
        """The values that became dense, each with its step, the most bytes in one call first."""
        made_dense = [
            (step, became_dense) for step in self.steps for became_dense in step.dense
        ]
        return tuple(sorted(made_dense, key=_bytes_of_all))

    @property
    def rules(self) -> tuple[RuleInfo, ...]:
        """The rules that answered, in the order in which they first did."""
        used = [step.rule for step in self.steps if step.rule is not None]
        return tuple(dict.fromkeys(used))

    def __str__(self) -> str:
        from .text import as_text

        return as_text(self)

    def _repr_html_(self) -> str:
        from .page import as_html

        return as_html(self)

    def plot(self) -> Any:
        """Draw FLOPs, dense and implicit, by source line.

        Returns
        -------
        matplotlib.figure.Figure
            The figure.

        Raises
        ------
        ImportError
            If matplotlib, an optional package, is not installed.
        """
        from .plot import as_figure

        return as_figure(self)

    def to_json(self) -> str:
        """The report as JSON text, for `from_json`."""
        return json.dumps({"version": VERSION, **dataclasses.asdict(self)})

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The report of a JSON text.

        Raises
        ------
        ValueError
            If the text is not that of a report, or of a report of another version.
        """
        try:
            data = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"Report: this is no JSON text: {error}") from error
        version = data.get("version") if isinstance(data, dict) else None
        if version != VERSION:
            raise ValueError(
                f"Report: the text is a report of version {version}; this release of "
                f"jaxrewrite reads version {VERSION}."
            )
        del data["version"]
        try:
            return cls(**_tuples(data) | {"tree": tuple(map(_step, data["tree"]))})
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"Report: the text is not that of a report: {error}"
            ) from error


def _bytes_of_all(made: tuple[Step, MadeDense]) -> float:
    """Less than zero by the bytes of all turns, or of one turn of an unknown number."""
    step, became_dense = made
    return -became_dense.bytes * (1 if step.times is None else step.times)


def _walk(steps: tuple[Step, ...]) -> Iterator[Step]:
    for step in steps:
        yield step
        yield from _walk(step.inner)
        for body in step.bodies:
            yield from _walk(body.steps)


def _tuples(data: dict[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}


def _step(data: dict[str, Any]) -> Step:
    nested = {
        "rule": data["rule"] and RuleInfo(**data["rule"]),
        "declined": tuple(
            Declined(RuleInfo(**d["rule"]), d["why"]) for d in data["declined"]
        ),
        "dense": tuple(MadeDense(**became_dense) for became_dense in data["dense"]),
        "bodies": tuple(
            Body(b["name"], b["times"], tuple(map(_step, b["steps"])))
            for b in data["bodies"]
        ),
        "inner": tuple(map(_step, data["inner"])),
        "choice": data["choice"] and Choice(**data["choice"]),
    }
    return Step(**_tuples(data) | nested)

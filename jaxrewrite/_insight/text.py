"""A report as text for a terminal."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING


if TYPE_CHECKING:  # It loads this module where it is shown.
    from .report import Choice, Report, RuleInfo, Step


WIDTH = 100


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns as wide as their longest cell."""
    cells = [tuple(head), *map(tuple, rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    lines = [
        "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def as_text(report: Report) -> str:
    head = f"{report.program} on ({', '.join(report.arguments)})"
    parts = [*textwrap.wrap(head, WIDTH, subsequent_indent="    "), ""]
    parts += _tree(report.tree, 0)
    parts += _dense(report)
    parts += ["", *totals(report)]
    return "\n".join(parts)


def totals(report: Report) -> list[str]:
    """The lines at the end of a report."""
    matches = sum(step.decision == "pattern" for step in report.steps)
    # A match that all patterns declined is neither.
    others = sum(not step.covered for step in report.steps)
    dense = len(report.dense)
    met = f"{others} {_plural('equation', others)} met a value"
    if matches:
        count = "1 match" if matches == 1 else f"{matches} matches"
        met = f"{count} of patterns" + (f"; {met}" if others else "")
    became = f"{dense} {_plural('value', dense)} became dense"
    if report.policy == "forbid" and dense:
        became += ", which the policy forbids"
    passes = ", ".join(report.passes)
    return [
        *([f"The program was changed by {passes}."] if passes else []),
        f"{met}; {became}.",
        f"FLOPs: {_change(report.flops)}.",
        f"Bytes, each equation by itself: {_change(report.bytes)}.",
    ]


def _plural(noun: str, count: int) -> str:
    return noun if count == 1 else noun + "s"


def _change(pair: tuple[float, float]) -> str:
    dense, implicit = pair
    ratio = f" ({implicit / dense:.3g} of dense)" if dense else ""
    return f"{amount(dense)} dense, {amount(implicit)} implicit{ratio}"


def amount(number: float) -> str:
    """A number with three digits and a prefix."""
    prefixes = ["", " k", " M", " G", " T"]
    while abs(number) >= 999.5 and len(prefixes) > 1:  # Three digits of it are 1e+03.
        number /= 1000
        del prefixes[0]
    return f"{number:.3g}{prefixes[0]}"


def _tree(steps: Sequence[Step], depth: int) -> Iterator[str]:
    for step in steps:
        yield from _lines(step, depth)
        yield from _tree(step.inner, depth + 1)
        for body in step.bodies:
            count = (
                "an unknown number of times" if body.times is None else f"x {body.times}"
            )
            if body.steps:
                yield _cut(f"{'  ' * (depth + 1)}{body.name} ({count}):")
            yield from _tree(body.steps, depth + 2)


def _lines(step: Step, depth: int) -> Iterator[str]:
    indent = "  " * depth
    where = f"{os.path.basename(step.file)}:{step.line}" if step.file else "?"
    yield _cut(
        f"{indent}{where} {step.primitive}({', '.join(step.operands)}) -> "
        f"{', '.join(step.results)}"
    )
    yield _cut(f"{indent}  {decided(step)}; FLOPs {_ratio(step.flops)}")
    if step.choice is not None:
        yield _cut(f"{indent}  {chosen(step.choice)}")
    if step.changed_by:
        yield _cut(f"{indent}  changed by {', '.join(step.changed_by)}")
    for declined in step.declined:
        yield _cut(
            f"{indent}  declined: {with_short_location(declined.rule)}, {declined.why}"
        )
    for joined in step.joined:
        yield _cut(f"{indent}  {joined}")


def decided(step: Step) -> str:
    """The rule or other decision of a step, in a few words."""
    if step.rule is not None:
        of = f" of {len(step.covered)} equations" if step.covered else ""
        return f"{step.decision} {with_short_location(step.rule)}{of}"
    return {
        "handler": "rewritten with its bodies",
        "rule": "on operands with units around them",
        "identity": "each leaf is moved",
        "dense": "DENSE" if step.dense else "unchanged",
    }.get(step.decision, step.decision)


def chosen(choice: Choice) -> str:
    """What was chosen by cost, and the costs."""
    dense = f"{_time(choice.dense)} dense"
    if choice.making:
        dense += f" and {_time(choice.making)} to make the operands so"
    taken = "dense" if choice.is_dense else "implicit"
    return f"by cost {taken}: {_time(choice.implicit)} implicit, {dense}"


def _time(seconds: float) -> str:
    """A time of the model, in microseconds; infinite for what can't be."""
    return f"{amount(seconds * 1e6)} us"


def with_short_location(rule: RuleInfo) -> str:
    return located(rule, os.path.basename(rule.file))


def located(rule: RuleInfo, file: str) -> str:
    """The name of a rule, and its place in a file. Many rules are called ``_``, which tells nothing."""
    if not file:
        return rule.name
    place = f"{file}:{rule.line}"
    return place if rule.name.split(".")[-1] == "_" else f"{rule.name} ({place})"


def _ratio(pair: tuple[float, float]) -> str:
    return f"{amount(pair[0])} -> {amount(pair[1])}"


def _dense(report: Report) -> Iterator[str]:
    if not report.dense:
        return
    yield ""
    yield "Became dense, the most bytes first:"
    for step, became_dense in report.dense:
        where = f"{step.file}:{step.line}" if step.file else "an unknown place"
        size = f"{amount(became_dense.bytes)}B"
        times = "" if step.times == 1 else f" x {'?' if step.times is None else step.times}"
        yield _cut(
            f"  {became_dense.type}:{became_dense.aval} ({size}{times}) in {step.primitive} at {where}"
        )
        yield _cut(f"    {became_dense.why}.")
        for line in became_dense.repair.split("\n"):
            yield _cut(f"      {line}")


def _cut(line: str) -> str:
    return line if len(line) <= WIDTH else line[: WIDTH - 3] + "..."

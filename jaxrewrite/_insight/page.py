"""A report as HTML for notebooks: it folds by nesting, without JavaScript."""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import TYPE_CHECKING

from .text import amount, chosen, decided, totals, with_short_location


if TYPE_CHECKING:  # It loads this module where it is shown.
    from .report import MadeDense, Report, Step


_STYLE = """
.jaxrewrite {font: 13px/1.5 ui-monospace, Menlo, Consolas, monospace; max-width: 72em}
.jaxrewrite details, .jaxrewrite .leaf {margin-left: 1.2em}
.jaxrewrite .note {margin-left: 2.4em; color: #666}
.jaxrewrite .place {color: #888}
.jaxrewrite .answer {color: #1a6b3c}
.jaxrewrite .dense {color: #b3261e; font-weight: bold}
.jaxrewrite pre {margin: 0 0 0 3.6em; color: #444; background: none; white-space: pre-wrap}
.jaxrewrite .totals {margin-top: .8em; border-top: 1px solid #ccc}
"""


def as_html(report: Report) -> str:
    head = f"{report.program} on ({', '.join(report.arguments)})"
    parts = [
        f'<div class="jaxrewrite"><style>{_STYLE}</style>',
        f"<div><b>{_text(head)}</b></div>",
        *map(_step, report.tree),
        *_dense(report),
        '<div class="totals">',
        *(f"<div>{_text(line)}</div>" for line in totals(report)),
        "</div></div>",
    ]
    return "\n".join(parts)


def _text(text: object) -> str:
    return html.escape(str(text), quote=True)


def _step(step: Step) -> str:
    where = f"{step.file}:{step.line}" if step.file else ""
    kind = "dense" if step.dense else "answer"
    line = (
        f'<span class="place" title="{_text(where)}">{_text(step.function)}:{step.line}</span> '
        f"{_text(step.primitive)}({_text(', '.join(step.operands))}) &rarr; "
        f"{_text(', '.join(step.results))} "
        f'<span class="{kind}">{_text(decided(step))}</span> '
        f"FLOPs {amount(step.flops[0])} &rarr; {amount(step.flops[1])}"
    )
    makers = ", ".join(step.changed_by)
    inside = [
        *([_note(chosen(step.choice))] if step.choice is not None else []),
        *([_note(f"changed by {makers}")] if makers else []),
        *(
            _note(f"declined: {with_short_location(d.rule)}, {d.why}")
            for d in step.declined
        ),
        *map(_note, step.joined),
        *map(_step, step.inner),
    ]
    for body in step.bodies:
        times = "?" if body.times is None else body.times
        steps = "".join(map(_step, body.steps))
        inside.append(
            f"<details open><summary>{_text(body.name)} &times; {times}</summary>{steps}</details>"
        )
    if not inside:
        return f'<div class="leaf">{line}</div>'
    return f"<details open><summary>{line}</summary>{''.join(inside)}</details>"


def _note(text: str) -> str:
    return f'<div class="note">{_text(text)}</div>'


def _dense(report: Report) -> Iterable[str]:
    if not report.dense:
        return
    yield "<details open><summary>Became dense, the most bytes first</summary>"
    for step, became_dense in report.dense:
        yield _made_dense(step, became_dense)
    yield "</details>"


def _made_dense(step: Step, became_dense: MadeDense) -> str:
    where = f" at {step.file}:{step.line}" if step.file else ""
    size = f"{amount(became_dense.bytes)}B"
    line = f"{became_dense.type}:{became_dense.aval} ({size}) in {step.primitive}{where}: {became_dense.why}."
    return f'<div class="leaf">{_text(line)}</div><pre>{_text(became_dense.repair)}</pre>'

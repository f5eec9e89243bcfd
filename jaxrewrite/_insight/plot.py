"""A report as a figure: FLOPs, dense and implicit, by source line."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:  # It loads this module where it is shown.
    from .report import Report, Step


def by_line(report: Report) -> dict[str, tuple[float, float]]:
    """FLOPs of all runs of the equations of each source line, dense and implicit.

    A higher-order equation counts by the equations in its bodies that met a value.
    """
    lines: dict[str, tuple[float, float]] = {}
    for step in _leaves(report):
        where = f"{os.path.basename(step.file)}:{step.line}" if step.file else "?"
        dense, implicit = lines.get(where, (0.0, 0.0))
        times = 1 if step.times is None else step.times
        lines[where] = (
            dense + times * step.flops[0],
            implicit + times * step.flops[1],
        )
    return lines


def _leaves(report: Report) -> list[Step]:
    leaves: list[Step] = []
    rest = list(report.tree)
    while rest:
        step = rest.pop(0)
        inside = [s for body in step.bodies for s in body.steps]
        if inside:
            rest = [*inside, *rest]
        else:
            leaves.append(step)
    return leaves


def as_figure(report: Report) -> Any:
    from matplotlib.figure import Figure

    lines = by_line(report)
    figure = Figure(figsize=(8, 1.2 + 0.35 * max(len(lines), 1)), layout="constrained")
    axes = figure.subplots()
    positions = range(len(lines))
    for i, (label, colour) in enumerate((("dense", "#bbbbbb"), ("implicit", "#1a6b3c"))):
        widths = [pair[i] for pair in lines.values()]
        axes.barh([p + 0.4 * i for p in positions], widths, 0.4, label=label, color=colour)
    axes.set_yticks([p + 0.2 for p in positions], list(lines))
    axes.invert_yaxis()
    axes.set_xlabel("FLOPs of a call")
    axes.set_title(report.program)
    axes.legend()
    return figure

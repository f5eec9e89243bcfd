"""The pages of the documentation about performance, which are written from measurements."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from . import report
from .suite import Measurement, Part, described


HEAD = """\
Performance
===========

Each dot below is a figure of the library, as a share of the same figure of the *baseline*: what one would run without the library,
dense or written by hand. Dots on the left of the line are gains, those on the right are losses. Each is a median, in one process in
which the variants take turns in changing order, and the results of all variants are compared before anything is timed.

.. image:: {overview}
   :alt: Each measured figure as a share of the baseline

Each page says what it was measured with. ``python -m bench`` answers the main question on your own machine within a minute;
``python -m bench --full --plots docs/figures --page docs/performance.rst`` writes these pages.

"""

TABLE = """\
The spread is half the interquartile range divided by the median; the table shows the largest of the variants. Figures without a
spread are exact. *Target* is the goal of the project, and *missed* means that the figure does not reach it yet.
Measured with {environment}.
"""


def write(
    file: str,
    parts: Sequence[Part],
    results: Sequence[Measurement],
    environments: Mapping[str, Mapping[str, str]],
    figures: Mapping[str, Sequence[str]],
    folder: str | None,
) -> None:
    """Write the page of findings, and beside it a page with the tables of each part.

    ``environments`` are the versions and the processor of each part, by its name. ``figures`` are
    the files of each part in ``folder``, and under the name ``""`` that of all. Of
    few parts only the findings and the tables change, where the page is there already.
    """
    home = os.path.dirname(file) or "."
    tables = os.path.join(home, "measurements")
    os.makedirs(tables, exist_ok=True)
    (overview,) = _paths(figures.get("", ["overview.png"]), folder, home)
    head = HEAD.format(overview=overview)
    findings: dict[str, str] = {}
    if os.path.exists(file) and "" not in figures:
        with open(file) as stream:
            head, *items = re.split(r"^(?=\* `)", stream.read(), flags=re.MULTILINE)
        findings = {item.partition(" <")[0]: item for item in items}
    for part in parts:
        mine = [result for result in results if result.part == part.name]
        name = f"* `{part.title}"
        lines = [f"{name} <measurements/{part.name}.rst>`__.", *_sentences(part, mine)]
        findings[name] = "\n  ".join(lines) + "\n"
        drawn = _paths(figures.get(part.name, ()), folder, tables)
        with open(os.path.join(tables, f"{part.name}.rst"), "w") as stream:
            stream.write(report.rst(part, mine, drawn, _legend(environments[part.name])))
    with open(file, "w") as stream:
        stream.write(head + "".join(findings.values()))


def _legend(environment: Mapping[str, str]) -> str:
    return TABLE.format(environment=described(environment))


def _sentences(part: Part, results: Sequence[Measurement]) -> list[str]:
    return [
        line if line.endswith(".") else f"{line}." for line in report.finding(part, results)
    ]


def _paths(names: Sequence[str], folder: str | None, home: str) -> list[str]:
    there = os.path.relpath(folder or ".", home)
    return [os.path.join(there, name) for name in names]

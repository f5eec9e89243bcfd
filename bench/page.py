"""The page of the documentation about performance, which is written from measurements."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from . import report
from .suite import Measurement, Part


HEAD = """\
Performance
===========

This page is written by ``python -m bench --full --plots docs/figures --page
docs/performance.rst``. Run it to see the figures of your own machine. Each figure is a median,
in one process in which the variants take turns. The spread is half the interquartile range
divided by the median; the table shows the largest of the variants. Figures without a spread
are exact.
The results of all variants are compared before anything is timed. *Target* is the goal of the
project, and *missed* means that the figure does not reach it yet.

Measured with {environment}.
"""


def write(
    file: str,
    parts: Sequence[Part],
    results: Sequence[Measurement],
    environment: Mapping[str, str],
    figures: Mapping[str, Sequence[str]],
    folder: str | None,
) -> None:
    """Write a section for each part, with its figures, which are in ``folder``."""
    versions = ", ".join(f"{name} {version}" for name, version in environment.items())
    sections = [HEAD.format(environment=versions)]
    for part in parts:
        there = os.path.relpath(folder or ".", os.path.dirname(file) or ".")
        drawn = [os.path.join(there, name) for name in figures.get(part.name, ())]
        mine = [result for result in results if result.part == part.name]
        sections.append(report.rst(part, mine, drawn))
    with open(file, "w") as stream:
        stream.write("\n".join(sections))

"""The page of the documentation about performance, written from measurements."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from . import report
from .suite import Measurement, Part


HEAD = """\
Performance
===========

This page is written by ``python -m bench --full --plots docs/figures --page
docs/performance.rst``; run it to see what your own machine gives. Each figure is a median,
in one process, in which the variants take turns; the spread is half the interquartile range
over the median, the larger of the variants'. Figures without a spread are exact. Before
anything is timed, the results of all variants are compared. Under *target* is what the
project has set itself; *missed* says that it is not there yet.

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
    known = ", ".join(f"{name} {version}" for name, version in environment.items())
    sections = [HEAD.format(environment=known)]
    for part in parts:
        there = os.path.relpath(folder or ".", os.path.dirname(file) or ".")
        drawn = [os.path.join(there, name) for name in figures.get(part.name, ())]
        mine = [result for result in results if result.part == part.name]
        sections.append(report.rst(part, mine, drawn))
    with open(file, "w") as stream:
        stream.write("\n".join(sections))

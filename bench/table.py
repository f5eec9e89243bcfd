"""Results as a table in text."""

from __future__ import annotations

from collections.abc import Sequence


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Align the columns: the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    rule = "  ".join("-" * width for width in widths)

    def line(cells: Sequence[str]) -> str:
        first, *rest = cells
        aligned = [first.ljust(widths[0])]
        aligned += [cell.rjust(w) for cell, w in zip(rest, widths[1:], strict=True)]
        return "  ".join(aligned).rstrip()

    return "\n".join([line(header), rule, *map(line, rows)])


def with_prefix(number: float, unit: str) -> str:
    """A number with its unit, like ``1.23 GB``."""
    for factor, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= factor:
            return f"{number / factor:.2f} {prefix}{unit}".strip()
    return f"{number:.0f} {unit}".strip()


def duration(seconds: float) -> str:
    for factor, unit in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= factor:
            return f"{seconds / factor:.2f} {unit}"
    return f"{seconds / 1e-6:.1f} us"


def rst_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A simple table in reStructuredText."""
    lines = table(header, rows).splitlines()
    rule = lines[1].replace("-", "=")
    return "\n".join([rule, lines[0], rule, *lines[2:], rule])

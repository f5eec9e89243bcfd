"""Figures of the measurements, with Matplotlib."""

from __future__ import annotations

import io
import pathlib
from collections.abc import Sequence
from typing import Any

from .suite import Measurement, Part, ratio, rows_of


COLOURS = {
    "dense": "#7f7f7f",
    "by hand": "#7f7f7f",
    "plain": "#7f7f7f",
    "implicit": "#1f77b4",
    "Quax": "#d62728",
    "sparsify": "#2ca02c",
    "dequantised": "#ff7f0e",
    "bfloat16": "#2ca02c",
    "formula": "#9467bd",
}
UNITS = {"s": "seconds", "B": "bytes", "": "", "x": "ratio"}


def save(part: Part, results: Sequence[Measurement], folder: str) -> list[str]:
    """Draw a part, as PNG, and return the names of the files.

    Results at several sizes are drawn as curves, all others as ratios. A file that would
    not change stays as it is.
    """
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    path = pathlib.Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    plotted = [result for result in part.shown(results) if result.value is not None]
    panels = _panels(plotted)
    others = [r for r in plotted if (r.case, r.quantity) not in panels]
    figures = {
        f"{part.name}-sizes": _over_sizes(plt, part.baseline, panels),
        part.name: _ratios(plt, part, others),
    }
    drawn = []
    for name, figure in figures.items():
        if figure is not None:
            figure.suptitle(part.title)
            _write(path / f"{name}.png", _png(figure))
            plt.close(figure)
            drawn.append(f"{name}.png")
    return drawn


def _png(figure: Any) -> bytes:
    """The PNG of a figure, without a date or version, so that equal figures are equal."""
    stream = io.BytesIO()
    # A figure with many panels is as legible with fewer dots, and a fraction of the bytes.
    dots = 100 if figure.get_size_inches()[1] < 20 else 60
    figure.savefig(stream, format="png", dpi=dots, metadata={"Software": None})
    return stream.getvalue()


def _write(file: pathlib.Path, content: bytes) -> None:
    if not file.exists() or file.read_bytes() != content:
        file.write_bytes(content)


# The curves of each case and quantity that has results at several sizes, by variant.
_Panels = dict[tuple[str, str], dict[str, list[Measurement]]]


def _panels(results: Sequence[Measurement]) -> _Panels:
    panels: _Panels = {}
    for result in results:
        if result.size is not None:
            panel = panels.setdefault((result.case, result.quantity), {})
            panel.setdefault(result.variant, []).append(result)
    return {
        key: panel
        for key, panel in panels.items()
        if any(len(line) > 1 for line in panel.values())
    }


def _over_sizes(plt: Any, baseline: str, panels: _Panels) -> Any:
    """Draw a panel for each case and quantity."""
    if not panels:
        return None
    columns = min(4, len(panels))
    rows = -(-len(panels) // columns)
    figure, grid = plt.subplots(
        rows,
        columns,
        figsize=(3.5 * columns, 3 * rows),
        squeeze=False,
        layout="constrained",
    )
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    for axes, ((case, quantity), panel) in zip(grid.flat, panels.items(), strict=False):
        for variant, line in panel.items():
            axes.plot(
                [result.size for result in line],
                [result.value for result in line],
                marker="o",
                label=variant,
                color=COLOURS.get(variant),
                # The line is wide and pale, because it may lie under another one.
                **({"linewidth": 5, "alpha": 0.4} if variant == baseline else {}),
            )
        axes.set_title(f"{case}: {quantity}", fontsize="small")
        axes.set_xscale("log")
        sizes = sorted({result.size for line in panel.values() for result in line})
        axes.set_xticks(sizes, [f"{size:,.0f}" for size in sizes], rotation=30)
        axes.minorticks_off()
        values = [result.value for line in panel.values() for result in line]
        # The axis begins at zero, so that constant values look constant, unless they grow a lot.
        if 0 < 5 * min(values) < max(values):
            axes.set_yscale("log")
        else:
            axes.set_ylim(min(0, *values), max(0, *values) * 1.1)
        axes.set_ylabel(UNITS[next(iter(panel.values()))[0].unit], fontsize="small")
        axes.tick_params(labelsize="small")
        axes.legend(fontsize="small")
    return figure


def _ratios(plt: Any, part: Part, results: Sequence[Measurement]) -> Any:
    """Draw bars for each row of the table: each variant divided by the baseline."""
    bars = {
        f"{case}: {quantity}": ratios
        for (case, _, quantity), row in rows_of(results).items()
        if (ratios := _others(row, part.baseline))
    }
    if not bars:
        return None
    variants = list(dict.fromkeys(v for ratios in bars.values() for v in ratios))
    wide = 0.8 / len(variants)
    height = 0.8 + (0.14 + 0.14 * len(variants)) * len(bars)
    figure, axes = plt.subplots(figsize=(8, height), layout="constrained")
    for i, variant in enumerate(variants):
        rows = [j for j, ratios in enumerate(bars.values()) if variant in ratios]
        axes.barh(
            [j + wide * (i - (len(variants) - 1) / 2) for j in rows],
            [list(bars.values())[j][variant] for j in rows],
            height=wide,
            color=COLOURS.get(variant),
            label=variant,
        )
    axes.set_yticks(range(len(bars)), list(bars), fontsize="small")
    axes.set_ylim(len(bars) - 0.5, -0.5)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xlabel(f"over {part.baseline}; less is better")
    if len(variants) > 1:
        axes.legend(fontsize="small")
    return figure


def _others(row: dict[str, Measurement], baseline: str) -> dict[str, float]:
    """The ratios of the variants of a row to the baseline."""
    found = {v: ratio(result, row.get(baseline)) for v, result in row.items()}
    return {v: x for v, x in found.items() if v != baseline and x is not None}


def overview(
    parts: Sequence[Part], results: Sequence[Measurement], folder: str
) -> str | None:
    """Draw each ratio of all parts as a dot, by part, and return the name of the file."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    rows: list[tuple[str, dict[str, float]]] = []
    for part in parts:
        mine = rows_of(r for r in part.shown(results) if r.part == part.name)
        rows += [
            (f"{part.name}: over {part.baseline}", _others(row, part.baseline))
            for row in mine.values()
        ]
    names = list(dict.fromkeys(name for name, ratios in rows if ratios))
    if not names:
        return None
    figure, axes = plt.subplots(figsize=(8, 0.8 + 0.5 * len(names)), layout="constrained")
    for variant, shift, marker in (("implicit", 0.12, "o"), ("Quax", -0.22, "x")):
        dots = [
            (ratios[variant], len(names) - names.index(name) + shift)
            for name, ratios in rows
            if ratios.get(variant, 0) > 0
        ]
        x, y = zip(*dots, strict=True) if dots else ((), ())
        axes.scatter(
            x, y, s=14, alpha=0.35, color=COLOURS[variant], marker=marker, label=variant
        )
    axes.set_xscale("log")
    axes.axvline(1, color="black", linewidth=1)
    axes.set_yticks([len(names) - i for i in range(len(names))], names)
    axes.set_xlabel("each measured figure as a share of the baseline; less is better")
    axes.legend(loc="upper right")
    _write(pathlib.Path(folder) / "overview.png", _png(figure))
    plt.close(figure)
    return "overview.png"

"""Measurements as tables: in text, in reStructuredText, and against an earlier run."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from .suite import Measurement, Part, ratio, rows_of, verdict
from .table import duration, rst_table, table, with_prefix


def shown(measurement: Measurement | None) -> str:
    if measurement is None:
        return ""
    if measurement.value is None:
        return measurement.note or "-"
    show: Callable[[float], str] = {
        "s": duration,
        "x": lambda x: f"{x:.2f}",
        "B": lambda x: with_prefix(x, "B"),
        "": lambda x: with_prefix(x, ""),
    }[measurement.unit]
    return show(measurement.value)


def _limit(part: Part, quantity: str) -> str:
    target = part.targets.get(quantity)
    if target is None:
        return ""
    if target.is_ratio:
        return f"{target.limit:.2f}x"
    return duration(target.limit) if target.limit < 1 else f"{target.limit:.3g}"


def _misses(part: Part, result: Measurement, baseline: Measurement | None) -> bool:
    """Whether a result misses its target."""
    target = part.targets.get(result.quantity)
    if target is None or result.variant != "implicit" or result.value is None:
        return False
    got = ratio(result, baseline) if target.is_ratio else result.value
    return got is not None and got > target.limit


def cells(part: Part, results: Sequence[Measurement]) -> tuple[list[str], list[list[str]]]:
    """The header and the rows of a part's table."""
    variants = list(dict.fromkeys(result.variant for result in results))
    others = [v for v in variants if part.baseline and v != part.baseline]
    has_targets = bool(part.targets)
    header = ["case", "size", "what", *variants]
    header += [f"{v} / {part.baseline}" for v in others]
    header += ["spread"] + (["target"] if has_targets else [])
    rows = []
    for (case, size, quantity), row in rows_of(results).items():
        baseline = row.get(part.baseline)
        ratios = [ratio(row[v], baseline) if v in row else None for v in others]
        spread = max(result.spread for result in row.values())
        cell = [case, "" if size is None else f"{size:,.0f}", quantity]
        cell += [shown(row.get(v)) for v in variants]
        cell += ["" if r is None else f"{r:.3f}" for r in ratios]
        cell += [f"{spread:.1%}" if spread else ""]
        if has_targets:
            missed = any(_misses(part, result, baseline) for result in row.values())
            cell += [_limit(part, quantity) + (" missed" if missed else "")]
        rows.append(cell)
    if not any(row[1] for row in rows):
        return [header[0], *header[2:]], [[row[0], *row[2:]] for row in rows]
    return header, rows


def losses(part: Part, results: Sequence[Measurement]) -> list[str]:
    """Results where implicit is worse than the baseline, by 2% and more than the spread."""
    lost = []
    for (case, size, quantity), row in rows_of(results).items():
        implicit, baseline = row.get("implicit"), row.get(part.baseline)
        if implicit is None:
            continue
        times = ratio(implicit, baseline)
        if times is not None and verdict(times, implicit.spread) > 0:
            where = case if size is None else f"{case}, {size:,.0f}"
            lost.append(f"{where}: {quantity} is {times:.2f}x of {part.baseline}")
    return lost


def finding(part: Part, results: Sequence[Measurement]) -> list[str]:
    """What a part says, in a few lines: its headline, or what is better, equal and worse."""
    if part.headline is not None:
        return part.headline(results)
    ratios = {
        (case, size, quantity): (
            ratio(row["implicit"], row.get(part.baseline)),
            row["implicit"].spread,
        )
        for (case, size, quantity), row in rows_of(part.shown(results)).items()
        if "implicit" in row
    }
    known = {key: (r, spread) for key, (r, spread) in ratios.items() if r is not None}
    if not known:
        return [
            f"{r.case}, {r.quantity}: {shown(r)}" for r in results if r.value is not None
        ][:3]
    worse = {key: times[0] for key, times in known.items() if verdict(*times) > 0}
    better = sum(verdict(*times) < 0 for times in known.values())
    lines = [
        f"Of {len(known)} figures {better} are less than {part.baseline}, "
        f"{len(known) - better - len(worse)} equal within their spread, {len(worse)} more."
    ]
    if worse:
        most = sorted(worse, key=lambda key: -worse[key])[:3]
        lines.append(
            "Most: " + "; ".join(f"{_named(k)} {worse[k]:.2f}" for k in most) + "."
        )
    return lines


def _named(key: tuple[str, float | None, str]) -> str:
    case, size, quantity = key
    return f"{case}, {quantity}" if size is None else f"{case} at {size:,.0f}, {quantity}"


def text(part: Part, results: Sequence[Measurement]) -> str:
    parts = [part.title, "=" * len(part.title), "", table(*cells(part, results))]
    if part.headline is not None:
        return "\n".join([f"{part.title}:", *part.headline(results), *parts[2:]])
    if part.baseline:
        lost = losses(part, results)
        parts += ["", f"Where implicit is worse than {part.baseline}:"]
        parts += [f"  {line}" for line in lost] or ["  nowhere, by 2% and the spread"]
    return "\n".join(parts)


def about(part: Part) -> str:
    """The text of a part; single backquotes become double ones."""
    return re.sub(r"(?<!`)`([\w.]+)`(?!`)", r"``\1``", part.about.strip())


def rst(
    part: Part, results: Sequence[Measurement], figures: Sequence[str], legend: str
) -> str:
    """The page of a part, where ``legend`` explains the columns."""
    # The page of findings links to it; the side bar of the site does not list it.
    parts = [":orphan:", "", part.title, "=" * len(part.title), "", about(part), ""]
    for figure in figures:
        parts += [f".. image:: {figure}", f"   :alt: {part.title}", ""]
    parts += [legend, rst_table(*cells(part, results)), ""]
    if part.baseline:
        lost = losses(part, results)
        if lost:
            parts += [f"Worse than {part.baseline}:", ""]
            parts += [f"* {line}" for line in lost]
        else:
            parts += [f"Nowhere worse than {part.baseline} by 2% and the spread."]
        parts += [""]
    return "\n".join(parts)


def against(before: Sequence[Measurement], after: Sequence[Measurement]) -> str:
    """The changes since an earlier run, by 5% and more than both spreads."""
    earlier_results = {result.key(): result for result in before}
    rows, same = [], 0
    for result in after:
        earlier = earlier_results.get(result.key())
        times = None if earlier is None else ratio(result, earlier)
        if earlier is None or times is None:
            continue
        noise = max(0.05, result.spread + earlier.spread)
        if abs(times - 1) <= noise:
            same += 1
            continue
        size = "" if result.size is None else f"{result.size:,.0f}"
        name = f"{result.part}: {result.case}"
        rows.append(
            [name, size, result.quantity, result.variant]
            + [shown(earlier), shown(result), f"{times:.3f}"]
        )
    if not rows:
        return f"{same} figures are as they were, within 5% and their spreads."
    header = ["case", "size", "what", "variant", "before", "now", "now / before"]
    return f"{table(header, rows)}\n\n{same} other figures are as they were."

"""Run the benchmarks: ``python -m bench [PART ...] [options]``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from . import (
    cheapest,
    conversions,
    gpt2,
    growth,
    imports,
    machine,
    model,
    operations,
    overhead,
    page,
    patterns,
    peers,
    plots,
    quantised,
    report,
    scale,
    steady,
    structured,
    suite,
    types,
)
from .measure import Progress


PARTS = {
    part.name: part
    for part in (
        module.PART
        for module in (
            *(model, quantised, conversions, overhead, growth, operations),
            *(types, structured, cheapest, steady, imports, patterns, peers, scale),
        )
    )
}


# What answers the main question.
MAIN = "model"


def parser() -> argparse.ArgumentParser:
    parse = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parse.add_argument(
        "parts",
        nargs="*",
        choices=[*PARTS, []],
        metavar="PART",
        help=f"what to measure: {', '.join(PARTS)}; by default {MAIN}",
    )
    efforts = parse.add_mutually_exclusive_group()
    efforts.add_argument(
        "--full",
        action="store_true",
        help="all parts, more sizes and samples: half an hour or more",
    )
    efforts.add_argument(
        "--quick", action="store_true", help="small and few: check that everything runs"
    )
    parse.add_argument("--json", metavar="FILE", help="write the results to this file")
    parse.add_argument(
        "--against", metavar="FILE", help="compare with an earlier file of --json"
    )
    parse.add_argument(
        "--plots", metavar="DIR", help="draw figures, as PNG, to this folder"
    )
    parse.add_argument(
        "--page", metavar="FILE", help="write a page with all tables and figures"
    )
    parse.add_argument("--repeats", type=int, help="samples of each variant")
    parse.add_argument(
        "--depths", type=int, nargs="+", metavar="N", help="layers of the MLPs"
    )
    sizes = parse.add_argument_group("the model of the part 'model'")
    for name, value in gpt2.Config()._asdict().items():
        sizes.add_argument(f"--{name}", type=int, help=f"default {value}")
    sizes.add_argument("--rank", type=int, default=8, help="of the LoRA adapters")
    return parse


def main(arguments: Sequence[str] | None = None) -> int:
    given = parser().parse_args(arguments)
    sizes = {name: getattr(given, name) for name in gpt2.Config._fields}
    options = suite.Options(
        "full" if given.full else "quick" if given.quick else "default",
        given.repeats,
        given.depths,
        (gpt2.TINY if given.quick else gpt2.Config())._replace(
            **{name: size for name, size in sizes.items() if size is not None}
        ),
        given.rank,
    )
    parts = [PARTS[name] for name in given.parts or (PARTS if given.full else [MAIN])]
    # Read the file first: an error should not cost minutes of measuring.
    earlier = suite.load(given.against) if given.against else None
    progress = Progress()
    results: list[suite.Measurement] = []
    start = machine.read()
    environments: dict[str, dict[str, str]] = {}
    for part in parts:
        before = machine.read()
        try:
            measured = list(
                part.run(options, lambda what, p=part: progress(f"{p.name}: {what}"))
            )
        except model.WrongResult as error:
            print(f"\nFAILED: {error}", file=sys.stderr)
            return 1
        results += measured
        progress.clear()
        warning = machine.warning(start, before, machine.read())
        environments[part.name] = suite.environment(start.load, bool(warning))
        if warning:
            print(warning)
        print(f"{report.text(part, measured)}\n", flush=True)
    progress.done()
    versions = suite.environment(
        start.load, any("machine" in measured for measured in environments.values())
    )
    print(suite.described(versions))
    if not given.parts and not given.full:
        print(f"More: python -m bench {' '.join(name for name in PARTS if name != MAIN)}")
    if earlier is not None:
        print(f"\nAgainst {suite.described(earlier[0])}:\n")
        print(report.against(earlier[1], results))
    if given.json:
        suite.save(given.json, options, versions, results)
    figures: dict[str, list[str]] = {}
    if given.plots:
        for part in parts:
            mine = [result for result in results if result.part == part.name]
            figures[part.name] = plots.save(part, mine, given.plots)
        is_all = len(parts) == len(PARTS)
        if is_all and (drawn := plots.overview(parts, results, given.plots)):
            figures[""] = [drawn]
    if given.page:
        page.write(given.page, parts, results, environments, figures, given.plots)
    return 0


if __name__ == "__main__":
    sys.exit(main())

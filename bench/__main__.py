"""The command line: ``python -m bench [model|overhead] [options]``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

import jax

from . import gpt2, model, overhead
from .measure import Progress


def parser() -> argparse.ArgumentParser:
    default = gpt2.Config()
    parse = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parse.add_argument(
        "suite",
        nargs="?",
        default="model",
        choices=["model", "overhead"],
        help="a transformer, dense against implicit (the default); or the overhead of "
        "rewriting, against a model written by hand",
    )
    for name, value in default._asdict().items():
        parse.add_argument(f"--{name}", type=int, default=value, help="default %(default)s")
    parse.add_argument("--rank", type=int, default=8, help="of the LoRA adapters")
    parse.add_argument("--repeats", type=int, help="samples of each variant")
    parse.add_argument("--depths", type=int, nargs="+", default=[4, 24, 96])
    parse.add_argument("--json", metavar="FILE", help="write the results there too")
    return parse


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    progress = Progress()
    results: dict[Any, Any]
    if options.suite == "model":
        fields = gpt2.Config._fields
        config = gpt2.Config(**{name: getattr(options, name) for name in fields})
        repeats = options.repeats or 15
        try:
            results = model.run(config, options.rank, repeats, progress)
        except model.WrongResult as error:
            print(f"\nFAILED: {error}", file=sys.stderr)
            return 1
        progress.done()
        print(model.describe(config, options.rank, repeats))
        print(model.report(results))
    else:
        repeats = options.repeats or 60
        results = {n: overhead.run(n, repeats, progress) for n in options.depths}
        progress.done()
        print(f"LoRA-adapted MLP of width {overhead.WIDTH}, against the same by hand.")
        print(f"JAX {jax.__version__}; medians of {repeats} or more interleaved samples.\n")
        print(overhead.report(results))
    if options.json:
        written = {
            "options": vars(options),
            "jax": jax.__version__,
            "device": jax.devices()[0].device_kind,
            "results": results,
        }
        with open(options.json, "w") as file:
            json.dump(written, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())

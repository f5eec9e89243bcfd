"""``python -m sweep --seeds 0:20000``: see the package."""

import argparse
import collections
import importlib.metadata
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

from commits import hash_of


os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Compiling takes most of the time.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
os.environ.setdefault("JAX_TRACEBACK_FILTERING", "off")
if importlib.metadata.version("jaxlib").startswith("0.10."):
    # The older emitters compile in a third of the time. Later releases have no other.
    _flags = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"{_flags} --xla_cpu_use_fusion_emitters=false"


def main() -> int:
    parser = argparse.ArgumentParser(prog="sweep", description=__doc__)
    parser.add_argument("--seeds", default="0:1000", help="first:last, or one seed")
    parser.add_argument("--commit", help="a revision whose hash gives the first seed")
    parser.add_argument("--seconds", type=float, help="stop then; with --commit, only then")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--only", default="", help="types, by a part of a name")
    parser.add_argument("--quick", action="store_true", help="shrink nothing")
    parser.add_argument("--shown", type=int, default=2, help="failures shown of a kind")
    parser.add_argument("--source", action="store_true", help="whole programs, to paste")
    parser.add_argument("--show", action="store_true", help="print the programs, run none")
    parser.add_argument("--out", help="a file for the report, also before the end")
    parser.add_argument("--cache", help="a folder for what is compiled: for the next run")
    options = parser.parse_args()
    if options.cache:
        os.environ["JAX_COMPILATION_CACHE_DIR"] = options.cache
        os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
        os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
    from .run import sweep  # after what JAX reads when it is imported

    seeds = seeds_of(options)
    if options.show:
        from .programs import program

        for seed in seeds:
            made = program(seed)
            print(f"# seed {seed}\n{made[0].short() if made else '# none'}")
        return 0
    start = time.monotonic()
    if options.processes > 1:
        parts = [seeds[i :: options.processes] for i in range(options.processes)]
        context = multiprocessing.get_context("spawn")
        with context.Pool(options.processes) as pool:
            jobs = [(part, *chosen(options)) for part in parts]
            results = pool.starmap(sweep, jobs)
    else:
        told = lambda found: report([found], time.monotonic() - start, options)
        results = [sweep(seeds, *chosen(options), told)]
    report(results, time.monotonic() - start, options)
    if not any(found.counts["ok"] for found in results):
        return 1  # a sweep that compared nothing
    return 1 if any(found.failures for found in results) else 0


def chosen(options: argparse.Namespace) -> tuple[Any, ...]:
    return options.quick, options.shown, options.only, options.seconds


def seeds_of(options: argparse.Namespace) -> range:
    if not options.commit:
        first, _, last = options.seeds.partition(":")
        return range(int(first), int(last) if last else int(first) + 1)
    digest = hash_of(options.commit)
    first = int(digest[:8], 16)
    print(f"# the seeds from {first} on, of commit {digest}", file=sys.stderr)
    return range(first, first + MOST_SEEDS if options.seconds else first + 1000)


MOST_SEEDS = 1_000_000


def report(results: list[Any], seconds: float, options: argparse.Namespace) -> None:
    lines = "\n".join(reported(results, seconds, options))
    if not options.out:
        print(lines)
        return
    with open(options.out, "w") as file:
        file.write(lines + "\n")


def reported(results: list[Any], seconds: float, options: Any) -> Iterator[str]:
    counts = sum((found.counts for found in results), collections.Counter())
    groups = sum((found.groups for found in results), collections.Counter())
    failures = [failure for found in results for failure in found.failures]
    shown: collections.Counter = collections.Counter()
    for failure in sorted(failures, key=lambda x: (-groups[x.group], x.group, len(x.text))):
        shown[failure.group] += 1
        if shown[failure.group] > options.shown:
            continue
        yield (f"\n##### {groups[failure.group]} times: {failure.group}")
        yield (f"# seed {failure.seed}: {failure.verdict.kind}")
        yield ("# " + failure.verdict.detail.replace("\n", "\n# ")[:1500])
        yield (failure.source if options.source or options.commit else failure.text)
    yield (f"\n{'verdict':12} count")
    for kind, count in counts.most_common():
        yield (f"{kind:12} {count}")
    total = sum(counts.values())
    yield (f"{total} programs in {seconds:.0f} s, {seconds / max(total, 1):.3f} s each")


if __name__ == "__main__":
    sys.exit(main())

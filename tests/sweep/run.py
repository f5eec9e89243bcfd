"""One program after another."""

import collections
import dataclasses
import gc
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterable

import jax

import jaxrewrite

from .oracle import Verdict, judge
from .programs import program
from .shrink import shrunk


@dataclasses.dataclass
class Failure:
    seed: int
    verdict: Verdict
    group: str
    text: str
    source: str


@dataclasses.dataclass
class Found:
    counts: collections.Counter
    groups: collections.Counter
    failures: list[Failure]


# Compiled programs are kept for others with the same shapes, up to so many kB of memory.
_MOST_MEMORY = 6_000_000


def _memory() -> int:
    """What this process has of the machine's memory, in kB; 0 where that is not known."""
    try:
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))
    except OSError:
        return 0


def group_of(verdict: Verdict, text: str) -> str:
    """What failures have in common that likely have one root."""
    if verdict.kind == "ambiguous":
        primitive = verdict.detail.split("'")[1]
        rules = re.findall(r"/jaxrewrite/(\S+\.py:\d+)", verdict.detail)
        return f"ambiguous {primitive} {rules}"
    if verdict.kind == "crash":
        said = re.sub(r"\d+", "N", verdict.detail.split("\n")[0])[:90]
        said = re.sub(r"'[A-Z]\w+' object", "a value", said)
        return f"{verdict.kind} {said} | {verdict.where}"
    types = sorted(set(re.findall(r"\b[A-Z]\w+(?=[(.])|jaxrewrite\.stack", text)))
    steps = re.findall(r"^    t\d+ = (.*)$", text, re.M)
    names = re.findall(r"[a-z_]\w*(?=\()|[-+*/@<>=!%&|^~]+", steps[-1] if steps else "")
    names = [n for n in names if n not in ("u", "idx", "mask", "array", "arange", "=")]
    return f"{verdict.kind} {','.join(types)} | {' '.join(dict.fromkeys(names))[:60]}"


def sweep(
    seeds: Iterable[int],
    quick: bool = False,
    shown: int = 2,
    only: str = "",
    seconds: float | None = None,
    told: Callable[[Found], None] = lambda found: None,
) -> Found:
    """Run the program of each seed; shrink those that fail, a few of each kind.

    After that many ``seconds`` no other program begins. ``told`` is called with what is found so far, now and then.
    """
    found = Found(collections.Counter(), collections.Counter(), [])
    raw: collections.Counter = collections.Counter()
    until = time.monotonic() + seconds if seconds is not None else float("inf")
    for count, seed in enumerate(seeds):
        if count % 1500 == 1499 or (count % 50 == 49 and _memory() > _MOST_MEMORY):
            jax.clear_caches()
            jaxrewrite.clear_caches()
            gc.collect()
        if count % 100 == 99:
            told(found)
        start = time.monotonic()
        if start > until:
            break
        made = program(seed)
        if made is None or only not in str(made[0].operands):
            found.counts["none" if made is None else "left out"] += 1
            continue
        one, builder = made
        middle = time.monotonic()
        try:
            verdict = judge(one, builder.tainted)
        except Exception:  # noqa: BLE001 - a fault of the sweep, to be seen in its report
            verdict = Verdict("broken", traceback.format_exc()[-1500:])
        found.counts[verdict.kind] += 1
        if time.monotonic() - start > 5:
            took = (
                f"{middle - start:.1f} s to make, {time.monotonic() - middle:.1f} s to run"
            )
            print(f"# seed {seed} took {took}", file=sys.stderr)
        if not verdict.failed:
            continue
        kind = group_of(verdict, one.short())
        raw[kind] += 1
        if not quick and raw[kind] <= shown:
            small = shrunk(one, verdict, min(20.0, until - time.monotonic()))
            verdict = judge(small) if small != one else verdict
        else:
            small = one
        group = group_of(verdict, small.short())
        found.groups[group] += 1
        found.failures.append(Failure(seed, verdict, group, small.short(), small.source()))
        print(
            f"# seed {seed}: {group}\n# {verdict.detail[:300]}\n{small.short()}",
            file=sys.stderr,
            flush=True,
        )
    return found

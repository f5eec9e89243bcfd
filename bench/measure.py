"""Measuring: interleaved samples in one process, medians, and XLA's analyses."""

from __future__ import annotations

import gc
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax


class Progress:
    """A line on standard error that tells the current step and the elapsed time."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    def __call__(self, what: str) -> None:
        line = f"[{time.perf_counter() - self._start:5.1f} s] {what}"
        if sys.stderr.isatty():
            print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)
        else:
            print(line, file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Clear the line for what is printed next."""
        if sys.stderr.isatty():
            print("\r\033[K", end="", file=sys.stderr, flush=True)

    def done(self) -> None:
        self("done")
        if sys.stderr.isatty():
            print(file=sys.stderr)


def in_new_process(program: str) -> float:
    """The number that a program prints."""
    # Users have byte code, but some environments forbid Python to write it.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout)


def turns(variants: Sequence[str], repeats: int) -> Iterator[str]:
    """Each variant once a round, in an order that changes from round to round.

    What a call leaves in the caches is a cost or a gain of the next one. In as many rounds as
    there are variants each has each place once, and within twice as many rounds each other
    variant comes before it equally often (a design by Williams).
    """
    count = len(variants)
    zigzag = [(i + 1) // 2 if i % 2 else -(i // 2) for i in range(count)]
    for i in range(repeats):
        order = [variants[(place + i) % count] for place in zigzag]
        yield from order if i // count % 2 == 0 else order[::-1]


def interleaved(
    variants: Mapping[str, Callable[[], Any]],
    repeats: int,
    warm_up: int = 1,
    collecting: bool = False,
) -> dict[str, list[float]]:
    """The seconds of each call of each variant, where the variants take `turns`.

    Python's garbage collector is off. With ``collecting`` it is on, and runs before each
    call.
    """
    for call in variants.values():
        for _ in range(warm_up):
            jax.block_until_ready(call())
    samples: dict[str, list[float]] = {name: [] for name in variants}
    gc.collect()
    if not collecting:
        gc.disable()
    try:
        for name in turns([*variants], repeats):
            call = variants[name]
            if collecting:
                gc.collect()
            start = time.perf_counter()
            jax.block_until_ready(call())
            samples[name].append(time.perf_counter() - start)
    finally:
        gc.enable()
    return samples


def seconds(call: Callable[[], Any]) -> tuple[float, Any]:
    """The seconds that one call takes, and its result."""
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def median(samples: list[float]) -> float:
    return statistics.median(samples)


def spread(samples: list[float]) -> float:
    """Half the interquartile range, as a fraction of the median."""
    if len(samples) < 2:
        return 0.0
    first, _, third = statistics.quantiles(samples, n=4)
    return (third - first) / 2 / median(samples)


def said_by_xla(compiled: Any) -> dict[str, float]:
    """The FLOPs, bytes and memory of a compiled program, from XLA's analyses."""
    cost = compiled.cost_analysis()
    memory = compiled.memory_analysis()
    return {
        "FLOPs": cost.get("flops", 0.0),  # Absent if a program only moves numbers.
        "bytes": cost.get("bytes accessed", 0.0),
        "temporaries": memory.temp_size_in_bytes,
        "memory": memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        + memory.temp_size_in_bytes
        - memory.alias_size_in_bytes,
    }


def count_instructions(compiled: Any) -> int:
    """The number of instructions in the optimised HLO."""
    return sum(" = " in line for line in compiled.as_text().splitlines())

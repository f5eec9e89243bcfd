"""The time that ``import jaxrewrite`` adds to ``import jax``, in a new process each time."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

from .suite import Case, Measurement, Options, Part, Target


PROGRAM = """
import time
import jax
start = time.perf_counter()
import jaxrewrite
print(time.perf_counter() - start)
"""


def run(options: Options, progress: Callable[[str], None]) -> Iterator[Measurement]:
    # Users have byte code, but some environments forbid Python to write it.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    samples = []
    repeats = options.repeats or options.of(1, 5, 15)
    for i in range(repeats + 1):
        progress(f"process {i + 1} of {repeats + 1}")
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        samples.append(float(done.stdout))
    # The first process may have compiled the byte code.
    yield from Case("imports", "import jaxrewrite").timed("time", {"implicit": samples[1:]})


PART = Part(
    "imports",
    "Import",
    __doc__ or "",
    "",
    run,
    {"time": Target(0.05, is_ratio=False)},
)

"""The time that ``import jaxrewrite`` adds to ``import jax``, in a new process each time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from . import measure
from .suite import Case, Measurement, Options, Part, Target


PROGRAM = """
import time
import jax
start = time.perf_counter()
import jaxrewrite
print(time.perf_counter() - start)
"""


def run(options: Options, progress: Callable[[str], None]) -> Iterator[Measurement]:
    samples = []
    repeats = options.repeats or options.of(1, 5, 15)
    for i in range(repeats + 1):
        progress(f"process {i + 1} of {repeats + 1}")
        samples.append(measure.in_new_process(PROGRAM))
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

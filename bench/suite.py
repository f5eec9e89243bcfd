"""The parts of a benchmark: options, cases, measurements and targets."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jaxlib

from . import gpt2, machine, measure


class Measurement(NamedTuple):
    """One number, for a variant of a case.

    ``size`` is the size of the case if there are several: layers, equations, or a width.
    ``unit`` is ``"s"``, ``"B"``, ``""`` (a count) or ``"x"`` (a ratio). ``spread`` is half
    the interquartile range of the ``samples`` divided by their median. If there is no
    number, ``note`` gives the reason.
    """

    part: str
    case: str
    size: float | None
    quantity: str
    variant: str
    unit: str
    value: float | None
    spread: float = 0.0
    samples: Sequence[float] = ()
    note: str = ""

    def key(self) -> tuple[Any, ...]:
        return self.part, self.case, self.size, self.quantity, self.variant


class Target(NamedTuple):
    """The goal for a quantity: a limit for its value, or for its ratio to the baseline."""

    limit: float
    is_ratio: bool = True


class Options(NamedTuple):
    """How much to measure.

    ``effort`` is ``"quick"`` (check that it runs), ``"default"`` or ``"full"``.
    """

    effort: str = "default"
    repeats: int | None = None
    depths: Sequence[int] | None = None
    config: gpt2.Config = gpt2.Config()
    rank: int = 8

    def of(self, quick: Any, default: Any, full: Any) -> Any:
        return {"quick": quick, "default": default, "full": full}[self.effort]


class Part(NamedTuple):
    """A benchmark. ``run`` takes the options and a function that shows progress.

    ``drawn`` are the quantities in the figures; none means all. ``headline`` says in a few
    lines what the results say.
    """

    name: str
    title: str
    about: str
    baseline: str
    run: Callable[[Options, Callable[[str], None]], Iterator[Measurement]]
    targets: dict[str, Target] = {}
    drawn: Sequence[str] = ()
    headline: Callable[[Sequence[Measurement]], list[str]] | None = None

    def shown(self, results: Iterable[Measurement]) -> list[Measurement]:
        """The results that figures and findings are about."""
        return [r for r in results if r.quantity in (self.drawn or [r.quantity])]


class Case:
    """A case of a part, which makes its measurements."""

    def __init__(self, part: str, name: str, size: float | None = None):
        self.part = part
        self.name = name
        self.size = size

    def timed(self, quantity: str, samples: dict[str, list[float]]) -> list[Measurement]:
        """The seconds of each variant, from its samples."""
        return [
            Measurement(
                *(self.part, self.name, self.size, quantity, variant, "s"),
                measure.median(times),
                measure.spread(times),
                times,
            )
            for variant, times in samples.items()
        ]

    def exact(
        self, quantity: str, values: dict[str, float], unit: str
    ) -> list[Measurement]:
        """Numbers that are the same each time."""
        return [
            Measurement(self.part, self.name, self.size, quantity, variant, unit, value)
            for variant, value in values.items()
        ]

    def missing(self, quantity: str, variant: str, why: str) -> Measurement:
        return Measurement(
            self.part, self.name, self.size, quantity, variant, "", None, note=why
        )


def ratio(measurement: Measurement, baseline: Measurement | None) -> float | None:
    if baseline is None or not baseline.value or measurement.value is None:
        return None
    return measurement.value / baseline.value


def verdict(times: float, spread: float) -> int:
    """1 where a ratio is a loss, by 2% and more than the spread, -1 for a gain, else 0."""
    noise = 0.02 + spread
    return (times > 1 + noise) - (times < 1 - noise)


def rows_of(
    results: Iterable[Measurement],
) -> dict[tuple[str, float | None, str], dict[str, Measurement]]:
    """The variants of each case, size and quantity."""
    rows: dict[Any, dict[str, Measurement]] = {}
    for result in results:
        row = rows.setdefault((result.case, result.size, result.quantity), {})
        row[result.variant] = result
    return rows


# --- files ------------------------------------------------------------------------


def environment(load_at_start: float, is_busy: bool) -> dict[str, str]:
    """The versions and the processor that figures depend on, without a machine's name."""
    device = jax.devices()[0]
    has_quax = importlib.util.find_spec("quax") is not None
    return {
        "python": platform.python_version(),
        "jax": jax.__version__,
        "jaxlib": jaxlib.__version__,
        **({"quax": importlib.metadata.version("quax")} if has_quax else {}),
        "device": f"{device.platform} ({device.device_kind})",
        "processor": machine.processor(),
        "load": f"{load_at_start:.2f} to {machine.load():.2f}",
        **({"machine": "busy"} if is_busy else {}),
    }


def described(environment: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in environment.items())


def save(
    file: str,
    options: Options,
    environment: Mapping[str, str],
    results: Sequence[Measurement],
) -> None:
    written = {
        "environment": environment,
        "options": options._asdict() | {"config": options.config._asdict()},
        "results": [result._asdict() for result in results],
    }
    with open(file, "w") as stream:
        json.dump(written, stream, indent=1)


def load(file: str) -> tuple[dict[str, str], list[Measurement]]:
    """The environment and the measurements of a file that `save` wrote."""
    with open(file) as stream:
        written = json.load(stream)
    return written["environment"], [Measurement(**result) for result in written["results"]]

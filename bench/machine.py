"""The machine: its processor, and whether others use it while something is measured."""

from __future__ import annotations

import os
import pathlib
import platform
from typing import NamedTuple


# A machine that does nothing else stays below these: processes that wait for it, and shares
# of its time.
_MOST_LOAD = 0.5
_MOST_OF_OTHERS = 0.05
_MOST_STOLEN = 0.01


class Reading(NamedTuple):
    """What the machine has done until now, in seconds of all its cores.

    ``load`` is the load average of the last minute. ``busy`` counts all processes, ``own`` this
    one and its children, and ``stolen`` what other machines on the same hardware took.
    """

    load: float
    total: float
    busy: float
    stolen: float
    own: float


def read() -> Reading:
    """A reading; the times are zero where the system does not tell them."""
    times = os.times()
    own = times.user + times.system + times.children_user + times.children_system
    return Reading(load(), *_of_all_cores(), own)


def load() -> float:
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


def _of_all_cores() -> tuple[float, float, float]:
    """The seconds in total, of all processes, and stolen, since the machine was started."""
    try:
        line = pathlib.Path("/proc/stat").read_text().splitlines()[0]
    except OSError:
        return 0.0, 0.0, 0.0
    ticks = os.sysconf("SC_CLK_TCK")
    user, nice, system, idle, wait, irq, soft, stolen = (
        int(x) / ticks for x in line.split()[1:9]
    )
    busy = user + nice + system + irq + soft
    return busy + idle + wait + stolen, busy, stolen


def others(before: Reading, after: Reading) -> str:
    """What others did to the machine between two readings, or nothing if it was idle."""
    total = after.total - before.total
    if total <= 0:
        return ""
    busy = after.busy - before.busy - (after.own - before.own)
    stolen = after.stolen - before.stolen
    found = []
    if busy > _MOST_OF_OTHERS * total:
        found.append(f"other processes took {busy / total:.0%} of the processor")
    if stolen > _MOST_STOLEN * total:
        found.append(f"other machines took {stolen / total:.0%} of it")
    return " and ".join(found)


def warning(start: Reading, before: Reading, after: Reading) -> str:
    """A line to print first, if the machine was busy at the start or since ``before``."""
    found = [others(before, after)]
    if start.load > _MOST_LOAD:
        found.insert(0, f"the load was {start.load:.2f} at the start")
    said = "; ".join(filter(None, found))
    return f"WARNING: the machine was busy: {said}. Times are not to be relied on." * bool(
        said
    )


def processor() -> str:
    """The name of the processor and the number of its cores that this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    return f"{_model()}, {cores or os.cpu_count()} cores"


def _model() -> str:
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (
        line.partition(":")[2].strip() for line in lines if line.startswith("model name")
    )
    return next(names, platform.processor() or platform.machine())

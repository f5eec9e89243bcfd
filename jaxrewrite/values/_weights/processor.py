"""Instructions that the processor of this machine has."""

from __future__ import annotations

import functools
from pathlib import Path


_SAID_BY_LINUX = Path("/proc/cpuinfo")


@functools.cache
def has_integer_tiles() -> bool:
    """Whether the processor multiplies tiles of 8-bit integers (Intel's AMX).

    Only Linux tells. Elsewhere the answer is no.
    """
    try:
        with _SAID_BY_LINUX.open() as lines:
            flags = next((line for line in lines if line.startswith("flags")), "")
    except OSError:
        return False
    return "amx_int8" in flags.split()

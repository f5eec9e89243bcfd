"""Instructions that the processor of this machine has."""

from __future__ import annotations

import functools
from pathlib import Path


_SAID_BY_LINUX = Path("/proc/cpuinfo")


def has_integer_tiles() -> bool:
    """Whether the processor multiplies tiles of 8-bit integers (Intel's AMX)."""
    return "amx_int8" in _flags()


def gathers_faster() -> bool:
    """Whether it takes less time to look numbers up than to choose them bit by bit.

    That is so with instructions for lookups and without registers for masks (AVX2, and no AVX-512).
    """
    return "avx2" in _flags() and "avx512f" not in _flags()


@functools.cache
def _flags() -> frozenset[str]:
    """The names of the instructions. Only Linux tells; elsewhere there are none."""
    try:
        with _SAID_BY_LINUX.open() as lines:
            flags = next((line for line in lines if line.startswith("flags")), "")
    except OSError:
        return frozenset()
    return frozenset(flags.split())

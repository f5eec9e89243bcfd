"""What a compiled program sends between devices: each collective with its count and bytes."""

from __future__ import annotations

import collections
import re
from collections.abc import Iterator
from typing import NamedTuple


class Collective(NamedTuple):
    """A collective: its name in HLO, and the dtype and shape of a result on one device."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> float:
        size = 1.0
        for length in self.shape:
            size *= length
        bits = 8 if self.dtype == "pred" else int("".join(filter(str.isdigit, self.dtype)))
        return size * bits / 8


_NAMES = "all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute"
_COLLECTIVE = re.compile(rf"= (\(.*?\)|\S+) ({_NAMES})(-start)?\(")
_ARRAY = re.compile(r"(pred|[a-z]+\d+)\w*\[([\d,]*)\]")
_COMPUTATION = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*\{$")
_CALLED = re.compile(r"(body|condition|calls|to_apply)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_TURNS = re.compile(r"known_trip_count\D*(\d+)")


def collectives(hlo: str) -> dict[Collective, int]:
    """How often each collective of a program runs, by the text of its optimised HLO.

    What is in a loop runs as often as XLA knows that the loop does.
    """
    computations: dict[str, list[str]] = {}
    entry, current = "", ""
    for line in hlo.splitlines():
        if head := _COMPUTATION.match(line):
            current = head[2]
            computations[current] = []
            entry = current if head[1] else entry
        elif current:
            computations[current].append(line)
    counts: collections.Counter[Collective] = collections.Counter()
    for line, turns in _runs(computations, entry, 1):
        for collective in _of(line):
            counts[collective] += turns
    return dict(counts)


def _runs(
    computations: dict[str, list[str]], name: str, turns: int
) -> Iterator[tuple[str, int]]:
    """The instructions of a computation and of those that it calls, and how often each runs."""
    for line in computations.get(name, ()):
        yield line, turns
        known = _TURNS.search(line)
        for how, called in _CALLED.findall(line):
            is_body = how in ("body", "condition") and known is not None
            inner = turns * int(known[1]) if is_body and known else turns
            yield from _runs(computations, called, inner)
        for branches in _BRANCHES.findall(line):
            for called in re.findall(r"[\w.\-]+", branches):
                yield from _runs(computations, called, turns)


def _of(line: str) -> list[Collective]:
    match = _COLLECTIVE.search(line)
    if match is None:
        return []
    arrays = _ARRAY.findall(match[1])
    if match[3]:
        arrays = arrays[len(arrays) // 2 :]  # The operands come before the results.
    return [
        Collective(match[2], dtype, tuple(map(int, filter(None, shape.split(",")))))
        for dtype, shape in arrays
    ]

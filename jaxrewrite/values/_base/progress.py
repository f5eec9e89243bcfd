"""How helpers for large pytrees show their progress."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias


Progress: TypeAlias = Callable[[Sequence[str]], Iterable[str]]


def shown(paths: Sequence[str], progress: Progress | None) -> Iterator[str]:
    """The paths of the leaves to work on, one by one, and in step what ``progress`` shows."""
    if progress is None:
        yield from paths
        return
    steps = iter(progress(paths))
    count = f"for {len(paths)} leaves. It has to pass on each item that it is called with."
    for path in paths:
        if next(steps, None) is None:
            raise ValueError(f"progress= gave too few items {count}")
        yield path
    if next(steps, None) is not None:
        raise ValueError(f"progress= gave too many items {count}")

"""Python's garbage collector, paused while a program is rewritten.

Nearly every object that a rewriting makes stays alive until the rewriting ends, so that a
collection finds nothing to collect. But each collection visits all objects that exist. That
makes each equation of a long program cost half as much again.
"""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator


class _Pause:
    """The number of rewritings that run now, in all threads, and the state to restore."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._depth = 0
        self._was_enabled = False

    def begin(self) -> None:
        with self._lock:
            if self._depth == 0:
                self._was_enabled = gc.isenabled()
                gc.disable()
            self._depth += 1

    def end(self) -> None:
        with self._lock:
            self._depth -= 1
            if self._depth == 0 and self._was_enabled:
                gc.enable()


_pause = _Pause()


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Pause the collector; it goes on when the last block ends."""
    _pause.begin()
    try:
        yield
    finally:
        _pause.end()

"""Python's garbage collector, paused while a program is rewritten.

Nearly every object that a rewriting makes stays alive until it is done, so that
collections find nothing to collect; and as each goes over all objects that there
are, they make an equation of a long program cost half as much again.
"""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator


class _Pause:
    """How many rewritings run now, in all threads, and what to go back to."""

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
    """Collect nothing meanwhile; collections go on when the last one leaves."""
    _pause.begin()
    try:
        yield
    finally:
        _pause.end()

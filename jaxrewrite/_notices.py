"""What the user is told of a rewriting, once it is known what the program does."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ._errors import MaterialisationWarning


class Notice(NamedTuple):
    """What the user is told, by default that a value became dense, and of which line."""

    message: str
    file: str
    line: int
    category: type[Warning] = MaterialisationWarning


class _Collected(threading.local):
    """What is to be said of the rule that is being traced, and of those around it."""

    def __init__(self) -> None:
        self.stack: list[list[Notice]] = []


_collected = _Collected()


@contextlib.contextmanager
def collected() -> Iterator[list[Notice]]:
    """While a rule is traced, notices are kept for whoever applies it."""
    notices: list[Notice] = []
    _collected.stack.append(notices)
    try:
        yield notices
    finally:
        _collected.stack.pop()


def warn(those: Iterable[Notice]) -> None:
    """Warn the user, or, while a rule is traced, whoever applies it."""
    if _collected.stack:
        _collected.stack[-1].extend(those)
        return
    for message, file, line, category in those:
        warnings.warn_explicit(message, category, file, line)

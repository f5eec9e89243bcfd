"""Warnings of a rewriting, which wait until the program is finished."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from .. import _compat


class Notice(NamedTuple):
    """A warning that is to come: its class and arguments, and the user's line for it."""

    category: type[Warning]
    args: tuple[str, ...]
    file: str = ""
    line: int = 0

    def at(self, where: tuple[str, int, str] | None) -> Notice:
        """The notice with this line, unless it has one already."""
        if self.file or where is None:
            return self
        return self._replace(file=where[0], line=where[1])


class _Collected(threading.local):
    """The notices of the rules that are being traced; the innermost rule is last."""

    def __init__(self) -> None:
        self.stack: list[list[Notice]] = []


_collected = _Collected()

# Python's registry of each file's warnings, to show each once. It is emptied where filters
# change.
_shown: dict[str, dict[Any, Any]] = {}


@contextlib.contextmanager
def collected() -> Iterator[list[Notice]]:
    """Collect the notices of a rule while it is traced, for the code that applies it."""
    notices: list[Notice] = []
    _collected.stack.append(notices)
    try:
        yield notices
    finally:
        _collected.stack.pop()


def warn(notices: Iterable[Notice]) -> None:
    """Warn the user, or pass notices on to the rule that is being traced."""
    if _collected.stack:
        _collected.stack[-1].extend(notices)
        return
    for notice in notices:
        category, args, file, line = notice.at(_compat.current_location())
        file = file or "<unknown>"
        shown = _shown.setdefault(file, {})
        warnings.warn_explicit(category(*args), category, file, line, registry=shown)

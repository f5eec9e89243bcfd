"""Warnings of a rewriting, which wait until the program is finished."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from .. import _compat


class Notice(NamedTuple):
    """A warning that is to come: its class and arguments, and the user's line for it.

    ``scope`` is the scope of names that holds the equation, such as the layer of a model of Flax.
    ``is_forward`` tells that it does not hold for the equations of cotangents.
    """

    category: type[Warning]
    args: tuple[str, ...]
    file: str = ""
    line: int = 0
    scope: str = ""
    is_forward: bool = False

    def at(self, where: tuple[str, int, str] | None, scope: str = "") -> Notice:
        """The notice with this line, unless it has one already, and within a scope."""
        whole = "/".join(filter(None, (scope, self.scope)))
        if self.file or where is None:
            return self._replace(scope=whole)
        return self._replace(file=where[0], line=where[1], scope=whole)

    def nowhere(self) -> Notice:
        """The notice without a line, for that of a rule's own code."""
        return self._replace(file="", line=0)


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


def warn(notices: Iterable[Notice], is_again: bool = False) -> None:
    """Warn the user, unless of a program used again, or pass notices on to the rule being traced."""
    if _collected.stack:
        _collected.stack[-1].extend(notices)
        return
    for notice in () if is_again else _one_a_line(notices):
        here = notice.at(_compat.current_location())
        file, warning = here.file or "<unknown>", here.category(*here.args)
        shown = _shown.setdefault(file, {})
        warnings.warn_explicit(warning, here.category, file, here.line, registry=shown)


_MOST_SCOPES = 4


def _one_a_line(notices: Iterable[Notice]) -> Iterator[Notice]:
    """The notices, with one for all scopes of a line, such as those of a model's layers."""
    scopes: dict[Notice, list[str]] = {}
    for notice in notices:
        scopes.setdefault(notice._replace(scope=""), []).append(notice.scope)
    for notice, found in scopes.items():
        named = sorted({*found} - {""})
        if named:
            more = len(named) - _MOST_SCOPES
            rest = f" and {more} more" if more > 0 else ""
            text = ", ".join(named[:_MOST_SCOPES]) + rest
            message, *about = notice.args
            notice = notice._replace(args=(f"{message} In {text}.", *about))
        yield notice

"""The findings of checks: a result to read, or one error that tells of all failures."""

from __future__ import annotations

import dataclasses
import textwrap
from typing import NamedTuple


_MAX_NAMES = 4
"""How many skipped checks are named for one reason."""


class Skipped(NamedTuple):
    """A check that was not made, and why."""

    check: str
    why: str


class Failure(NamedTuple):
    """A check that failed, how to see it again in one line, and the error if there is one."""

    check: str
    why: str
    reproduce: str
    error: Exception | None = None

    def __str__(self) -> str:
        why = textwrap.indent(self.why, "    ").lstrip()
        return f"  {self.check}: {why}\n    reproduce: {self.reproduce}"


@dataclasses.dataclass(frozen=True)
class Checked:
    """What was checked. It prints as a short text.

    Attributes
    ----------
    subject
        The value, or the primitive and its operands, in short.
    checked
        The names of the checks that passed.
    skipped
        The checks that were not made, each with the reason.
    """

    subject: str
    checked: tuple[str, ...]
    skipped: tuple[Skipped, ...]

    def __str__(self) -> str:
        lines = [f"{self.subject}: {len(self.checked)} checks passed."]
        reasons: dict[str, list[str]] = {}
        for check, why in self.skipped:
            reasons.setdefault(why, []).append(check)
        lines += [f"  not {_first_of(names)}: {why}" for why, names in reasons.items()]
        return "\n".join(lines)


def _first_of(names: list[str]) -> str:
    """Names in a short text. The rest is for a program to read."""
    shown, more = names[:_MAX_NAMES], len(names) - _MAX_NAMES
    return ", ".join(shown) + (f" and {more} more, in .skipped" if more > 0 else "")


class Findings:
    """The findings so far."""

    def __init__(self, subject: str):
        self.subject = subject
        self.checked: list[str] = []
        self.skipped: list[Skipped] = []
        self.failures: list[Failure] = []

    def __len__(self) -> int:
        return len(self.checked) + len(self.skipped) + len(self.failures)

    def not_passed(self) -> set[str]:
        return {x.check for x in self.skipped} | {x.check for x in self.failures}

    def passed(self, check: str) -> None:
        self.checked.append(check)

    def skip(self, check: str, why: str) -> None:
        self.skipped.append(Skipped(check, why))

    def fail(
        self, check: str, why: str, reproduce: str, error: Exception | None = None
    ) -> None:
        self.failures.append(Failure(check, why, reproduce, error))

    def result(self) -> Checked:
        """The checks that were made, or `AssertionError` if anything failed.

        The first error of a failure is its cause, so that a traceback shows the line.
        """
        if not self.failures:
            return Checked(self.subject, tuple(self.checked), tuple(self.skipped))
        total = len(self.failures) + len(self.checked)
        text = "\n".join(map(str, self.failures))
        cause = next((f.error for f in self.failures if f.error is not None), None)
        raise AssertionError(
            f"{self.subject}: {len(self.failures)} of {total} checks failed.\n{text}"
        ) from cause


def error_summary(error: Exception) -> str:
    """The first and last lines of an error, and what this library notes about it.

    The lines in between are in its traceback.
    """
    lines = f"{type(error).__name__}: {error}".strip().splitlines()
    notes = [
        note for note in getattr(error, "__notes__", ()) if note.startswith("jaxrewrite: ")
    ]
    return "\n".join(
        [*(lines if len(lines) < 6 else [*lines[:3], "...", *lines[-2:]]), *notes]
    )

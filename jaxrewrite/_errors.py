"""The errors and warnings that users meet, and the words they are made of."""

from __future__ import annotations


class AmbiguousRuleError(TypeError):
    """Two rules apply to the same operands and neither is more specific.

    Raised when the rule is looked up, not when it is registered: the rule that
    settles the matter may be registered in between.
    """


class MaterialisationError(TypeError):
    """A value had to become dense, and may not or can not.

    Either the policy is ``"forbid"``, or the value's own ``materialise``
    raised, which means that it is never dense.
    """


class MaterialisationWarning(UserWarning):
    """A value became dense because no rule covers a primitive for its type."""


def place(where: tuple[str, int, str] | None) -> str:
    """The line of a note that says where: a file, a line and a function."""
    return f"\n  at {where[0]}:{where[1]} ({where[2]})" if where else ""


def add_note(error: BaseException, note: str) -> None:
    """Attach ``note`` to ``error`` (PEP 678), once."""
    if note not in getattr(error, "__notes__", ()):
        error.add_note(note)

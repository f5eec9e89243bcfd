"""The errors and warnings that users meet, and the parts of their messages."""

from __future__ import annotations


class AmbiguousRuleError(TypeError):
    """Two rules apply to the same operands and neither is more specific.

    It is raised when the rule is looked up, not when it is registered, because a rule that
    decides between the two may be registered in between.
    """

    __module__ = "jaxrewrite"


class MaterialisationError(TypeError):
    """A value had to become dense, but must not or cannot.

    Either the policy is ``"forbid"``, or the value's own ``materialise`` raised, which means
    that it is never dense.
    """

    __module__ = "jaxrewrite"


class MaterialisationWarning(UserWarning):
    """A value became dense because no rule covers a primitive for its type.

    Attributes
    ----------
    primitive
        The name of the primitive.
    type
        The name of the value's type.
    remedy
        What would keep the value implicit, as in the message.
    """

    __module__ = "jaxrewrite"

    def __init__(
        self,
        message: str,
        primitive: str = "",
        type: str = "",  # noqa: A002 - the attribute's name
        remedy: str = "",
    ):
        super().__init__(message, primitive, type, remedy)
        self.primitive, self.type, self.remedy = primitive, type, remedy

    def __str__(self) -> str:
        return self.args[0]


def at_line(where: tuple[str, int, str] | None) -> str:
    """The line of a note that says where: a file, a line and a function."""
    return f"\n  at {where[0]}:{where[1]} ({where[2]})" if where else ""


def add_note(error: BaseException, note: str) -> None:
    """Attach ``note`` to ``error`` (PEP 678), once."""
    if note not in getattr(error, "__notes__", ()):
        error.add_note(note)

"""The rules in force that name a type."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from jaxrewrite import ArrayValue

from .._compat import Primitive
from .._core.annotations import Dense
from .._core.rules import Rule
from .._core.settings import current_settings
from .._insight.lookup import choices, type_name
from ._culprits import is_users


class RuleOfType(NamedTuple):
    """A rule that names a type, and whether another type has to be there, too.

    ``is_own``: it names the type itself or a class of a user, and not a base of the library.
    """

    of: Primitive
    types: tuple[str, ...]
    needs_another_type: bool
    is_own: bool
    rule: Rule

    @property
    def primitive(self) -> str:
        """The name of the primitive or function."""
        return str(self.of.name)

    @property
    def fn(self) -> Callable[..., Any]:
        return self.rule.fn

    def __str__(self) -> str:
        return f"the rule for {self.primitive} on ({', '.join(self.types)})"


def rules_that_name(cls: type) -> Iterator[RuleOfType]:
    """The rules that name a type or a base of it, except for rules that take any value."""
    for table in current_settings().rules.tables:
        for primitive, entry in table.entries():
            types_of_rule = [*choices(entry)]
            fitting = [choice for choice in types_of_rule if issubclass(cls, choice)]
            if not {*fitting} <= {*ArrayValue.__mro__}:
                others = [
                    x
                    for x in types_of_rule
                    if x not in fitting and not issubclass(x, Dense)
                ]
                types = tuple(map(type_name, entry.types))
                is_own = any(choice is cls or is_users(choice) for choice in fitting)
                yield RuleOfType(primitive, types, bool(others), is_own, entry.rule)

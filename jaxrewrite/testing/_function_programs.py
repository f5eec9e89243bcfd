"""Programs that call a function for which a type has a rule."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from itertools import count, islice
from typing import Any

from jaxrewrite import Value

from .._core.rules import is_of_a_library
from .._functions.called import Called
from .._functions.recognise import function_of, statics_for
from ._compare import Program
from ._registered import RuleOfType


# So many choices of static arguments are tried, the defaults first.
_CHOICES = 3


def function_programs(
    value: Value, rules: Iterable[RuleOfType], taken: Container[str]
) -> dict[str, Program]:
    """A program for each of a user's rules for a function of the value alone.

    Each has a name that is not ``taken``.
    """
    found: dict[str, Program] = {}
    for rule in rules:
        if len(rule.types) != 1 or is_of_a_library(rule.rule):
            continue
        if isinstance(rule.of, Called):
            for name, statics in _calls(rule.of, rule):
                names = (name if n == 1 else f"{name}, number {n}" for n in count(1))
                free = next(x for x in names if x not in found and x not in taken)
                program = Program(
                    rule.primitive, function_of(rule.of, statics, 1), (value,)
                )
                found[free] = program
    return found


def _calls(called: Called, rule: RuleOfType) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for statics in islice(statics_for(called, rule.rule), _CHOICES):
        shown = ", ".join(f"{name}={x!r}" for name, x in statics.items())
        yield f"{called.name} with {shown}" if shown else called.name, statics

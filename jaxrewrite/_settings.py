"""What is in force while a program is rewritten: the rules, and the policy.

A rule that calls `bind`, a nested `transform` or an operator of a value is
itself part of a rewriting, and means the same rules and policy by it; so does
the user's function while it is staged.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

from ._rules import Rules, RulesInForce


POLICIES = ("warn", "allow", "forbid")


class Settings(NamedTuple):
    """The rules and the policy of one rewriting."""

    rules: RulesInForce
    policy: str

    def key(self) -> tuple[Any, ...]:
        """What a rewritten program depends on of these; hashable."""
        return (self.policy, *self.rules.state())

    def refined(self, rules: Rules | None, policy: str) -> Settings:
        """These settings as a transform within changes them.

        The default policy, ``"warn"``, leaves the policy to what is around.
        """
        return Settings(self.rules.over(rules), self.policy if policy == "warn" else policy)


class _Local(threading.local):
    settings = Settings(RulesInForce(), "warn")


_local = _Local()


def current_settings() -> Settings:
    return _local.settings


@contextlib.contextmanager
def use_settings(settings: Settings) -> Iterator[None]:
    before = _local.settings
    _local.settings = settings
    try:
        yield
    finally:
        _local.settings = before


def check_policy(policy: str) -> None:
    if policy not in POLICIES:
        raise ValueError(
            f"materialise= is one of {', '.join(map(repr, POLICIES))}, not {policy!r}."
        )

"""The rules and the policy in force while a program is rewritten.

A rule that calls `bind`, a nested `transform` or an operator of a value is itself part of a
rewriting, and uses the same rules and policy. So does the user's function while it is
staged.
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
        """The part of a cache's key that stands for the settings; hashable."""
        return (self.policy, *self.rules.state())

    def refined(self, rules: Rules | None, policy: str) -> Settings:
        """The settings of a nested transform.

        The default policy, ``"warn"``, keeps the policy of the surrounding transform.
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
            f"materialise= must be one of {', '.join(map(repr, POLICIES))}; got {policy!r}."
        )

"""The rules and the policy in force while a program is rewritten.

A rule that calls `bind`, a nested `transform` or an operator of a value is itself part of a
rewriting, and uses the same rules and policy. So does the user's function while it is
staged, but for the rules for arrays alone: they are applied once, to what it was staged to.
"""

from __future__ import annotations

import contextlib
import contextvars
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax

from .hooks import Policy
from .record import Recorder
from .rules import RulesInForce, Table


class Settings(NamedTuple):
    """The rules and the policy of one rewriting, and its recorder if it is explained.

    ``assumed`` is what a trial takes for granted, whose results no program uses; see
    ``_handlers.derivatives``.
    """

    rules: RulesInForce
    policy: str | Policy
    recorder: Recorder | None = None
    assumed: Any = None

    def key(self) -> tuple[Any, ...]:
        """The part of a cache's key that stands for the settings; hashable."""
        return (self.policy, *self.rules.left(), *self.rules.state())

    @property
    def keeps_nothing(self) -> bool:
        """Whether programs rewritten with these settings are used once only."""
        return self.recorder is not None or self.assumed is not None

    def refined(self, tables: Sequence[Table], policy: str | Policy) -> Settings:
        """The settings of a nested transform.

        The default policy, ``"warn"``, keeps the policy of the surrounding transform.
        """
        policy = self.policy if policy == "warn" else policy
        return self._replace(rules=self.rules.over(tables), policy=policy)

    def of_traced(self) -> Settings:
        """The settings for a function that is traced to be rewritten with these."""
        return self._replace(rules=self.rules.of_traced())

    def mark(self) -> Any:
        """A key that sets functions traced under these settings apart from others; hashable.

        It is ``None`` if it would be the same without them. It holds no table, which JAX would keep.
        """
        held = (self.recorder, self.assumed)
        recorder, assumed = (None if x is None else weakref.ref(x) for x in held)
        # These give the same program, and differ in warnings.
        policy = None if self.policy in ("warn", "allow") else self.policy
        state = policy, recorder, assumed
        if not any(state) and not self.rules.matter_inside():
            return None
        return (*state, *self.rules.left(), *self.rules.state())


_DEFAULT = Settings(RulesInForce(), "warn")
# Those of each thread, and of each task of asyncio.
_settings = contextvars.ContextVar("settings", default=_DEFAULT)


def current_settings() -> Settings:
    return _settings.get()


# JAX keeps functions under `jax.jit`, branches and bodies of loops as they were traced. What was
# traced under other settings may have transforms inside that used other rules.
_traced_under = jax.make_user_context(None)


@contextlib.contextmanager
def use_settings(settings: Settings) -> Iterator[None]:
    with in_force(settings), _traced_under(settings.mark()):
        yield


@contextlib.contextmanager
def in_force(settings: Settings) -> Iterator[None]:
    """Let the code inside rewrite with these settings; JAX's caches are not told of them."""
    before = _settings.get()
    _settings.set(settings)
    try:
        yield
    finally:
        _settings.set(before)

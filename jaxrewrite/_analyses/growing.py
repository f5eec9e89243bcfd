"""The equations of a jaxpr under construction, from one look at them to the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .._compat import JaxprEqn, Literal, Var


class Growing:
    """A list of equations to which more are added."""

    def __init__(self, eqns: Sequence[JaxprEqn]):
        self._eqns = eqns
        self._done = 0
        self._last: JaxprEqn | None = None

    def new(self) -> Sequence[JaxprEqn]:
        """The equations since the last call."""
        # Equations that nothing needs may have been removed since. Then these are all that are left.
        if self._done and self._eqns[self._done - 1 : self._done] != [self._last]:
            self._done = 0
        added = self._eqns[self._done :]
        if added:
            self._done, self._last = len(self._eqns), added[-1]
        return added


class Producers:
    """The analysis that tells the equation whose result a variable is, or ``None``."""

    def __init__(self, eqns: Sequence[JaxprEqn], facts: Mapping[Var, Any]):
        self._growing = Growing(eqns)
        self._producers: dict[Var, JaxprEqn] = {}

    def __call__(self, atom: Any) -> JaxprEqn | None:
        for eqn in self._growing.new():
            self._producers.update(dict.fromkeys(eqn.outvars, eqn))
        return None if type(atom) is Literal else self._producers.get(atom)

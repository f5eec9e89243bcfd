"""Whole functions of JAX, recognised by their jaxprs."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from jaxrewrite import _compat


def find(table: Callable[..., dict[Hashable, Any]], jaxpr: Any, *key: Any) -> Any:
    """The item of a jaxpr in a table by fingerprints, or ``None``.

    ``table`` makes it for a key and for the settings of JAX that its jaxprs depend on.
    """
    return table(*key, _compat.trace_context()).get(_compat.fingerprint(jaxpr))


def only_call(jaxpr: Any, name: str) -> Any:
    """The only equation of a jaxpr, if it calls a jitted function of this name."""
    eqns = getattr(jaxpr, "jaxpr", jaxpr).eqns
    return eqns[0] if [eqn.params.get("name") for eqn in eqns] == [name] else None


def fingerprint_within(fn: Callable[..., Any], name: str, *avals: Any) -> Hashable:
    """The fingerprint of the function of this name that a function only calls, or ``None``."""
    called = _compat.called(fn, *avals)
    call = None if called is None else only_call(called, name)
    return None if call is None else _compat.fingerprint(call.params["jaxpr"])

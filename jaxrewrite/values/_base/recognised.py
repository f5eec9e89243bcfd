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


def fingerprints(fn: Callable[..., Any], *avals: Any) -> list[Hashable]:
    """The fingerprints of the only function that a function of such arrays calls.

    That function is jitted or has a derivative of its own. If it does nothing but call a
    function with a derivative of its own, there is also the fingerprint of the latter.
    """
    called = _compat.called(fn, *avals)
    if called is None:
        return []
    names = [eqn.primitive.name for eqn in called.eqns]
    inner = [
        eqn.params["call_jaxpr"] for eqn in called.eqns if names == ["custom_jvp_call"]
    ]
    return list(map(_compat.fingerprint, (called, *inner)))

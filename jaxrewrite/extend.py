"""How another library plugs in: passes over programs, operands that were moved, state that is no
argument, tables of classes.

See `Extending the library <../extending.rst>`_.
"""

from __future__ import annotations

import contextlib as _contextlib
import typing as _typing
from collections import abc as _abc

from ._core import hooks as _hooks, settings as _settings
from ._core.dead_code import DataFlow as DataFlow, live_equations as live_equations
from ._core.hooks import (
    ALL_PRIMITIVES as ALL_PRIMITIVES,
    Analysis as Analysis,
    ClassHook as ClassHook,
    OperandsHook as OperandsHook,
    Pass as Pass,
    StagingHook as StagingHook,
)
from ._core.rules import add_entry as add_entry
from ._joins.zeros import Zeros as Zeros
from ._warn import warn_from_rule as warn_from_rule


def register_pass(pass_: Pass) -> None:
    """Let tables have entries of a pass. Of several passes, those registered earlier run first."""
    _check("register_pass", pass_, Pass)
    _hooks.passes.append(pass_)


def register_class_hook(hook: ClassHook) -> None:
    """Tell a hook of all classes of values, those that exist already among them.

    If it is not ready, it is asked again whenever a user makes a value. If it raises an error at
    one of those that exist, it is not registered.
    """
    _check("register_class_hook", hook, ClassHook)
    _hooks.add_class_hook(hook)


def register_staging_hook(hook: StagingHook) -> None:
    """Let a hook see each function that is staged from now on."""
    _check("register_staging_hook", hook, StagingHook)
    _hooks.staging_hooks.append(hook)


def register_operands_hook(hook: type[OperandsHook]) -> None:
    """Show an object of this class each program that is rewritten from now on."""
    _check("register_operands_hook", hook, OperandsHook, is_class=True)
    _hooks.operands_hooks.append(hook)


def unregister(registered: Pass | ClassHook | StagingHook | type[OperandsHook]) -> None:
    """Take back a registration, in tests and notebooks. Programs that are kept stay."""
    lists: list[_typing.Any] = [
        *(_hooks.passes, _hooks.staging_hooks, _hooks.operands_hooks),
        *(_hooks.class_hooks, _hooks.waiting),
    ]
    for known in lists:
        if registered in known:
            known.remove(registered)


@_contextlib.contextmanager
def unrecorded() -> _abc.Iterator[None]:
    """Keep what a rule only tries, and computes no result from, out of the reports of `explain`.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, jaxrewrite
    >>> from jaxrewrite.extend import unrecorded
    >>> class Scaled(jaxrewrite.ArrayValue):
    ...     x: jax.Array
    ...     def materialise(self):
    ...         return 2 * self.x
    >>> @jaxrewrite.register("cumsum")
    ... def _(v: Scaled, *, axis, **params):
    ...     with unrecorded():
    ...         total = jaxrewrite.transform(lambda v: v.sum(axis))
    ...         size = jax.eval_shape(total, v).size
    ...     return Scaled(jax.lax.cumsum(v.x, axis, **params)) if size else NotImplemented
    >>> report = jaxrewrite.explain(jnp.cumsum)(Scaled(jnp.ones(3)))
    >>> [step.primitive for step in report.steps]
    ['jit', 'cumsum']
    """
    settings = _settings.current_settings()
    with _settings.use_settings(settings._replace(recorder=None)):
        yield


def _check(caller: str, given: object, protocol: type, is_class: bool = False) -> None:
    """Raise `TypeError` unless an object, or a class, has what a protocol asks for."""
    members = {*vars(protocol), *protocol.__annotations__}
    asked = sorted(name for name in members if not name.startswith("_"))
    if isinstance(given, type) != is_class or not all(hasattr(given, x) for x in asked):
        kind = "a class" if is_class else "an object"
        raise TypeError(
            f"{caller} takes {kind} with {', '.join(asked)}, as jaxrewrite.extend.{protocol.__name__} "
            f"has; got {given!r}."
        )

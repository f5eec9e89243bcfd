"""`Called`: a function in the tables of rules, where a primitive stands for any other."""

from __future__ import annotations

import contextlib
import functools
import inspect
import types
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.tree_util import tree_leaves

from .. import _compat
from .._compat import Primitive
from .._core import rules as tables
from .._core.rules import Rule, RulesInForce, Table
from .traced import Traced, traces_of


class Called(Primitive):
    """A function that JAX stages as one call.

    Attributes
    ----------
    fn
        The function.
    origins
        The name, file and line of it, or of each function that it may stand for. The jaxpr
        of a call names one of them. It is a first filter: several functions may have the same.
        Names in the function's code tell some, and traces of it others.
    parameters
        The parameters of the function, by name.
    """

    def __init__(self, fn: Callable[..., Any], origins: frozenset[str]):
        super().__init__(getattr(fn, "__name__", type(fn).__name__))
        self.multiple_results = True
        self.said = "Function", self.name
        self.fn = fn
        self.origins = origins
        self.parameters = parameters_of(fn)

    def bind(self, /, *operands: Any, **params: Any) -> list[Any]:
        """Call the function; the results are the leaves of what it returns."""
        return tree_leaves(self.fn(*operands, **params))

    def add_origins(self, traced: Traced) -> bool:
        """Add the functions of which a trace of the function is a call; whether there are any."""
        found = frozenset(filter(None, map(_compat.origin_of, traced.calls())))
        self.origins |= found
        return bool(found)

    def get_bind_params(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        return params


def parameters_of(fn: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(fn).parameters
    except (TypeError, ValueError):
        return {}


# A table that has rules for a function keeps it alive, and so its identity.
_called: weakref.WeakValueDictionary[Any, Called] = weakref.WeakValueDictionary()


def find_called(fn: Any) -> Called | None:
    """The primitive of a function in tables of rules; `TypeError` if JAX makes no call of it."""
    if not callable(fn) or isinstance(fn, type):
        return None
    # Python makes a method anew at each access.
    identity = (id(fn.__self__), id(fn.__func__)) if inspect.ismethod(fn) else id(fn)
    called = _called.get(identity)
    if called is None:
        called = Called(fn, frozenset(_origins(fn)))
        if not called.origins:
            _find_origins(called)
        _called[identity] = called
    return called


tables.finders.append(find_called)


# --- where a function is written ------------------------------------------------------


# A function may call others, which call the function that JAX stages.
_DEPTH = 3


def _origins(fn: Any, depth: int = 0) -> Iterator[str]:
    """The origins of the functions that JAX may stage for a call of this one."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    fn = inspect.unwrap(fn, stop=_is_staged)
    if _is_staged(fn):
        yield _compat.origin_of_function(fn)
    elif depth < _DEPTH:
        code = getattr(fn, "__code__", None)
        for other in _named_in(fn, code) if code is not None else ():
            yield from _origins(other, depth + 1)


def _is_staged(fn: Any) -> bool:
    return isinstance(fn, (jax.custom_jvp, jax.custom_vjp)) or _compat.is_jitted(fn)


def _named_in(fn: Any, code: types.CodeType) -> Iterator[Any]:
    """The functions that a Python function may call, by the names in its code."""
    scope = dict(getattr(fn, "__globals__", {}))
    cells = zip(code.co_freevars, fn.__closure__ or (), strict=True)
    for name, cell in cells:
        with contextlib.suppress(ValueError):  # The name is bound later.
            scope[name] = cell.cell_contents
    objects = [scope[name] for name in (*code.co_names, *code.co_freevars) if name in scope]
    for obj in objects:  # The list grows by the attributes of modules.
        if isinstance(obj, types.ModuleType):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # The function may name something else so.
                attributes = [getattr(obj, name, None) for name in code.co_names]
            objects += [
                x for x in attributes if x is not None and all(x is not y for y in objects)
            ]
        elif callable(obj) and not isinstance(obj, type):
            yield obj


# --- functions of which JAX makes no call -----------------------------------------------


# How many operands are tried where nothing tells their number.
_COUNTS = (1, 2, 3)


def _find_origins(called: Called) -> None:
    """Find out by tracing which functions JAX stages, where no name tells of one."""
    traces = [traced for count in _COUNTS for traced in traces_of(called.fn, count)]
    for traced in traces:
        called.add_origins(traced)
    if not called.origins:
        raise TypeError(_why_never(called.fn, traces[0] if traces else None))


def check_is_staged(
    called: Called, counts: Iterable[int], statics: Sequence[Mapping[str, Any]]
) -> None:
    """Raise `TypeError` if JAX is seen to make no call of a function of so many operands.

    ``statics`` are the static arguments to try.
    """
    first = None
    for count in counts:
        for traced in traces_of(called.fn, count, statics):
            if called.add_origins(traced):
                return
            first = first or traced
    if first is not None:
        raise TypeError(_why_never(called.fn, first))


def _why_never(fn: Any, traced: Traced | None) -> str:
    """Why a rule for a function with this trace, if there is one, never applies."""
    name = getattr(fn, "__name__", repr(fn))
    eqns = [] if traced is None else traced.jaxpr.eqns
    if traced is not None and any(map(_compat.calls_a_function, eqns)):
        return _not_one_call(name, traced)
    made = [eqn.primitive.name for eqn in eqns]
    if traced is None:
        made = [name] if name in _compat.primitives_by_name() else []
    elif not made:
        made = ["no primitive"]
    names = ", ".join(map(repr, dict.fromkeys(made)))
    becomes = f" It becomes {names}: register a rule for that." if names else ""
    return (
        "A primitive or the name of one is needed, such as 'add', or a function that JAX "
        f"stages as a call; got {name}. JAX makes no call of that, so a program does not show where it is called."
        f"{becomes} Calls are those of functions under jax.jit (without inline=True), "
        "jax.custom_jvp or jax.custom_vjp."
    )


def _not_one_call(name: str, traced: Traced) -> str:
    jaxpr = traced.jaxpr
    operands = dict(zip(jaxpr.invars[traced.consts :], "xyzuvw", strict=False))
    parts = ", ".join(dict.fromkeys(_shown(eqn, operands) for eqn in jaxpr.eqns))
    return (
        "A rule for a function is for one call of it on its operands, in their order; got "
        f"{name}({', '.join(operands.values())}), of which JAX makes {parts}. If that is one "
        "call, take its operands: numbers are some, and those that no result depends on are "
        "none. Otherwise register a rule for a function that is called, or put "
        f"{name} under jax.jit and call that."
    )


def _shown(eqn: Any, names: Mapping[Any, str]) -> str:
    """An equation of a function, for a message."""
    name = eqn.primitive.name
    if not _compat.calls_a_function(eqn):
        return name
    operands = [
        str(np.asarray(x.val)) if type(x) is _compat.Literal else names.get(x, "_")
        for x in eqn.invars
    ]
    body = _compat.body_of(eqn)
    placed = ", which says where its arrays are" if body is None else ""
    origin = "" if body is None else _compat.origin_of(body) or ""
    name = origin.partition(" at ")[0] or eqn.params.get("name", name)
    return f"{name}({', '.join(operands)}){placed}"


# --- the functions that tables have rules for ---------------------------------------------


# The functions of a table with their rules, by their origins, and the version of the table.
_ByOrigin = dict[str, dict[Called, dict[Rule, None]]]

_by_origin: weakref.WeakKeyDictionary[Table, tuple[int, _ByOrigin]] = (
    weakref.WeakKeyDictionary()
)


def rules_at(rules: RulesInForce, origin: str) -> dict[Called, list[Rule]]:
    """The functions of an origin, each with its rules in force."""
    in_force: dict[Called, list[Rule]] = {}
    for table in rules.tables:
        for called, rules_of_table in _functions_of(table).get(origin, {}).items():
            in_force.setdefault(called, []).extend(rules_of_table)
    return in_force


def _functions_of(table: Table) -> _ByOrigin:
    version, by_origin = _by_origin.get(table, (-1, {}))
    if version != table.version:
        version, by_origin = table.version, {}
        for primitive, entry in table.entries():
            if not isinstance(primitive, Called):
                continue
            for origin in primitive.origins:
                of_called = by_origin.setdefault(origin, {}).setdefault(primitive, {})
                of_called[entry.rule] = None
        _by_origin[table] = version, by_origin
    return by_origin

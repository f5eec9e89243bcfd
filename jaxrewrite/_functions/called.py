"""`Called`: a function in the tables of rules, where a primitive stands for any other."""

from __future__ import annotations

import functools
import inspect
import types
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.tree_util import tree_leaves

from .. import _compat
from .._compat import Primitive
from .._core import rules as tables
from .._core.rules import Rule, RulesInForce, Table


class Called(Primitive):
    """A function that JAX stages as one call.

    Attributes
    ----------
    fn
        The function.
    origins
        The name, file and line of it, or of each function that it may stand for. The jaxpr
        of a call names one of them. It is a first filter: several functions may have the same.
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

    def bind(self, *operands: Any, **params: Any) -> list[Any]:
        """Call the function; the results are the leaves of what it returns."""
        return tree_leaves(self.fn(*operands, **params))

    def get_bind_params(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        return params


def parameters_of(fn: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(fn).parameters
    except (TypeError, ValueError):
        return {}


# A table that has rules for a function keeps it alive, and so its identity.
_called: weakref.WeakValueDictionary[int, Called] = weakref.WeakValueDictionary()


def find_called(fn: Any) -> Called | None:
    """The primitive of a function in tables of rules; `TypeError` if JAX makes no call of it."""
    if not callable(fn) or isinstance(fn, type):
        return None
    called = _called.get(id(fn))
    if called is None:
        origins = frozenset(_origins(fn))
        if not origins:
            name = getattr(fn, "__name__", "")
            raise TypeError(
                _inlined(fn, [name] if name in _compat.primitives_by_name() else [])
            )
        called = _called[id(fn)] = Called(fn, origins)
    return called


tables.finders.append(find_called)


# --- where a function is written ------------------------------------------------------


# A function may call others, which call the function that JAX stages.
_DEPTH = 3


def _origins(fn: Any, depth: int = 0) -> Iterator[str]:
    """The origins of the functions that JAX may stage for a call of this one."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    if isinstance(fn, (jax.custom_jvp, jax.custom_vjp)) or _compat.is_jitted(fn):
        yield _compat.origin_of_function(fn)
    elif depth < _DEPTH:
        fn = inspect.unwrap(fn)
        code = getattr(fn, "__code__", None)
        for other in _named_in(fn, code) if code is not None else ():
            yield from _origins(other, depth + 1)


def _named_in(fn: Any, code: types.CodeType) -> Iterator[Any]:
    """The functions that a Python function may call, by the names in its code."""
    scope = dict(getattr(fn, "__globals__", {}))
    cells = zip(code.co_freevars, fn.__closure__ or (), strict=True)
    scope |= {name: cell.cell_contents for name, cell in cells}
    objects = [scope[name] for name in (*code.co_names, *code.co_freevars) if name in scope]
    for obj in objects:  # The list grows by the attributes of modules.
        if isinstance(obj, types.ModuleType):
            attributes = (getattr(obj, name, None) for name in code.co_names)
            objects += [
                x for x in attributes if x is not None and all(x is not y for y in objects)
            ]
        elif callable(obj) and not isinstance(obj, type):
            yield obj


# --- functions of which JAX makes no call -----------------------------------------------


def check_is_staged(called: Called, count: int) -> None:
    """Raise `TypeError` if JAX is seen to inline a function of so many operands."""
    primitives = _primitives_of(called.fn, count)
    if primitives:
        raise TypeError(_inlined(called.fn, primitives))


def _primitives_of(fn: Any, count: int) -> list[str]:
    """The primitives that JAX writes for a function of small arrays; none for one call."""
    for shape, dtype in (((3, 3), "float32"), ((3,), "float32"), ((), "float32")):
        avals = [jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))] * count
        try:
            jaxpr, _ = _compat.open_jaxpr(jax.make_jaxpr(fn)(*avals))
        except Exception:  # noqa: BLE001 - not a function of these arrays
            continue
        eqns = _compat.drop_dead_code(jaxpr).eqns
        if any(map(_compat.calls_a_function, eqns)):
            return []
        return [eqn.primitive.name for eqn in eqns] or ["no primitive"]
    return []


def _inlined(fn: Any, primitives: list[str]) -> str:
    name = getattr(fn, "__name__", repr(fn))
    names = ", ".join(map(repr, dict.fromkeys(primitives)))
    becomes = f" It becomes {names}: register a rule for that." if names else ""
    return (
        "A primitive or the name of one is needed, such as 'add', or a function that JAX "
        f"stages as a call; got {name}. JAX makes no call of that, so a program does not show where it is called."
        f"{becomes} Calls are those of functions under jax.jit (without inline=True), "
        "jax.custom_jvp or jax.custom_vjp."
    )


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

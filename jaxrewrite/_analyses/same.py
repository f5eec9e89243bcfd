"""Whether the parameters of two equations are the same.

They come from two traces. So jaxprs are other objects with other variables, and the
derivative rules of `jax.custom_jvp` and `jax.custom_vjp` are in wrappers that JAX makes anew
for each trace.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from types import CodeType, FunctionType
from typing import Any

import jax
import numpy as np

from .. import _compat
from .._analyses.graph import Graph, Ref, graph_of
from .._compat import JaxprEqn


def same_equation(mine: JaxprEqn, other: JaxprEqn) -> bool:
    """Whether two equations compute the same of operands of the same avals."""
    return (
        mine.primitive is other.primitive
        and len(mine.outvars) == len(other.outvars)
        and all(
            _compat.same_array_type(a.aval, b.aval)
            for a, b in zip(mine.outvars, other.outvars, strict=True)
        )
        and same_params(mine, other)
    )


# Parameters of JAX's primitives that are names, or that others imply: the structures of results
# and residuals of a custom_vjp, and those of a scan.
_IGNORED = {
    "jit": frozenset({"name"}),
    "custom_vjp_call": frozenset({"out_trees"}),
    "scan": _compat.TREES_OF_SCAN,
}

# Axes of them come in the order in which they were written.
_REDUCTIONS = frozenset(
    {
        *("reduce_and", "reduce_max", "reduce_min", "reduce_or"),
        *("reduce_prod", "reduce_sum", "reduce_xor"),
    }
)


def same_params(mine: JaxprEqn, other: JaxprEqn) -> bool:
    a, b = mine.params, other.params
    if a is b:
        return True
    name = mine.primitive.name
    if name == "scan" and _compat.scan_counts(a) != _compat.scan_counts(b):
        return False
    ignored = _IGNORED.get(name, frozenset())
    if name in _REDUCTIONS:
        a, b = ({**p, "axes": sorted(p["axes"])} for p in (a, b))
    return a.keys() == b.keys() and all(
        same(value, b[key]) for key, value in a.items() if key not in ignored
    )


def same(a: Any, b: Any) -> bool:
    """Whether two parameters are the same."""
    if a is b:
        return True
    if isinstance(a, _compat.JAXPRS):
        return isinstance(b, _compat.JAXPRS) and same_jaxpr(a, b)
    if isinstance(a, (tuple, list)):
        is_like = isinstance(b, (tuple, list)) and len(a) == len(b)
        return is_like and all(map(same, a, b))
    if isinstance(a, Mapping):
        is_like = isinstance(b, Mapping) and a.keys() == b.keys()
        return is_like and all(same(a[key], b[key]) for key in a)
    if _compat.is_wrapped_function(a) or callable(a):
        return same_function(a, b)
    return _equal(a, b)


_FLOATS = float, complex, np.inexact


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, jax.core.Tracer) or isinstance(b, jax.core.Tracer):
        return False
    if isinstance(a, (np.ndarray, jax.Array)) or isinstance(b, (np.ndarray, jax.Array)):
        return same_array(a, b)
    if isinstance(a, _FLOATS) or isinstance(b, _FLOATS):
        return type(a) is type(b) and repr(a) == repr(b)  # 0.0 == -0.0, and nan != nan.
    try:
        return bool(a == b)
    except (TypeError, ValueError):  # Parameters of some primitives cannot be compared.
        return False


def same_array(a: Any, b: Any) -> bool:
    """Whether two arrays that programs close over are the same."""
    if a is b:
        return True
    if isinstance(a, jax.core.Tracer) or isinstance(b, jax.core.Tracer):
        return False
    if not _compat.is_array(a) or not _compat.is_array(b):
        return False
    if (
        a.shape != b.shape
        or a.dtype != b.dtype
        or jax.dtypes.issubdtype(a.dtype, jax.dtypes.extended)
    ):
        return False
    return np.asarray(a).tobytes() == np.asarray(b).tobytes()


# --- jaxprs ----------------------------------------------------------------------


def same_jaxpr(a: Any, b: Any) -> bool:
    """Whether two jaxprs, closed or not, have the same equations, up to names and calls."""
    return same_graph(_graph(a), _graph(b))


def _graph(closed: Any) -> Graph:
    jaxpr, consts = _compat.open_jaxpr(closed)
    return graph_of(closed, jaxpr, consts)


def same_graph(a: Graph, b: Graph) -> bool:
    return (
        len(a.nodes) == len(b.nodes)
        and len(a.consts) == len(b.consts)
        and all(map(same_array, a.consts, b.consts))
        and same_refs(a.results, b.results)
        and all(
            len(x.operands) == len(y.operands)
            and same_refs(x.operands, y.operands)
            and same_equation(x.eqn, y.eqn)
            for x, y in zip(a.nodes, b.nodes, strict=True)
        )
    )


def same_refs(a: Sequence[Ref], b: Sequence[Ref]) -> bool:
    return len(a) == len(b) and all(map(_same_ref, a, b))


def _same_ref(a: Ref, b: Ref) -> bool:
    if a[0] == b[0] == "number":
        return a[1].same(b[1])
    return a == b


# --- functions --------------------------------------------------------------------

# The cells of JAX's own wrappers of derivative rules that say nothing of the rule: its traces,
# stores of earlier traces, and avals of operands, which are compared anyway.
_BOOKKEEPING = frozenset(
    {"cells", "sentinel", "out_store", "in_avals", "in_tangent_avals", "eqn"}
)


def same_function(a: Any, b: Any) -> bool:
    """Whether two functions have the same code and close over the same things."""
    a, b = _compat.without_dead_code_wrapper(a), _compat.without_dead_code_wrapper(b)
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if _compat.is_wrapped_function(a):
        return len(a.transforms) == len(b.transforms) and (
            same_function(a.f, b.f)
            and all(
                x[0] is y[0] and _same_captured(x[1], y[1])
                for x, y in zip(a.transforms, b.transforms, strict=True)
            )
        )
    if isinstance(a, functools.partial):
        return same_function(a.func, b.func) and _same_captured(
            (a.args, a.keywords), (b.args, b.keywords)
        )
    if not isinstance(a, FunctionType):
        return _equal(a, b)
    # Decorators copy the name of the user's module, but not its names.
    package = a.__globals__.get("__name__", "").partition(".")[0]
    skipped = _BOOKKEEPING if package == "jax" else frozenset()
    # The names in equal code of two modules may be of different functions.
    return (
        a.__globals__ is b.__globals__
        and same_code(a.__code__, b.__code__)
        and _same_captured(a.__defaults__, b.__defaults__)
        and _same_captured(a.__kwdefaults__, b.__kwdefaults__)
        and all(
            name in skipped or _same_captured(x, y)
            for name, x, y in zip(a.__code__.co_freevars, _cells(a), _cells(b), strict=True)
        )
    )


def same_code(a: CodeType, b: CodeType) -> bool:
    """Whether two code objects are the same up to their lines."""
    return a is b or (
        a.co_code == b.co_code
        and a.co_names == b.co_names
        and a.co_freevars == b.co_freevars
        and a.co_varnames == b.co_varnames
        and len(a.co_consts) == len(b.co_consts)
        and all(
            same_code(x, y)
            if isinstance(x, CodeType) and isinstance(y, CodeType)
            else type(x) is type(y) and repr(x) == repr(y)
            for x, y in zip(a.co_consts, b.co_consts, strict=True)
        )
    )


_EMPTY = object()


def _cells(fn: FunctionType) -> list[Any]:
    def content(cell: Any) -> Any:
        try:
            return cell.cell_contents
        except ValueError:
            return _EMPTY

    return [content(cell) for cell in fn.__closure__ or ()]


def _same_captured(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if _compat.is_bookkeeping(a) or type(a) is object:  # The name of an axis without one.
        return True
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(_same_captured, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same_captured(a[k], b[k]) for k in a)
    return same(a, b)

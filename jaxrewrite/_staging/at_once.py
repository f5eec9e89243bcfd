"""`at_once`: a function of a value as one compiled program, if it does not look at its numbers.

One operation after the other takes longer, and more memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.tree_util import PyTreeDef, tree_flatten, tree_unflatten

from .. import _compat
from .._core.caches import cached
from .._core.dead_code import drop_dead_code
from .._core.errors import MaterialisationError
from .._core.settings import current_settings


ARRAYS_OF_JAX: set[type] = {_compat.ArrayImpl}
ARRAYS: set[type] = {_compat.ArrayImpl, np.ndarray}

# Errors of JAX where Python looks at the numbers in a tracer.
_LOOKS = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)

# The bytes of constants that a program may hold, such as a table of levels.
_CONSTANTS = 2**16


def runs_at_once(leaves: Iterable[Any], types: set[type]) -> bool:
    """Whether nothing is traced, `jax.jit` compiles, and all leaves are of these types."""
    if not _compat.nothing_is_traced() or _compat.jit_is_disabled():
        return False
    return {*map(type, leaves)} <= types


def looks_at_numbers(error: BaseException | None) -> bool:
    """Whether an error comes from Python looking at the numbers in a tracer."""
    while error is not None and not isinstance(error, _LOOKS):
        error = error.__cause__
    return error is not None


def at_once(fn: Callable[[Any], Any], value: Any) -> Any:
    """``fn(value)``, compiled as one program where that is possible and worth it.

    The function is traced for each structure. It is called as it is where it looks at numbers,
    where it is one operation, and where it returns what it gets, which would be copied.
    """
    leaves, treedef = tree_flatten(value)
    if not runs_at_once(leaves, ARRAYS):
        return fn(value)
    try:
        hash(treedef)
    except TypeError:  # The metadata is not hashable.
        return fn(value)
    avals = tuple([_compat.leaf_aval(x) for x in leaves])
    # The function may have transforms inside, whose rules may change.
    settings = current_settings().key()
    program = _program(fn, treedef, avals, (settings, _compat.trace_context()))
    return fn(value) if program is None else program(*leaves)


@cached(256)
def _program(
    fn: Callable[[Any], Any], treedef: PyTreeDef, avals: Sequence[Any], context: Any
) -> Callable[..., Any] | None:
    """A program from leaves to the result; ``None`` where the function is called."""
    try:
        return _traced(fn, treedef, avals)
    except (MaterialisationError, *_LOOKS):
        return None  # The call shows what the error is.


def _traced(
    fn: Callable[[Any], Any], treedef: PyTreeDef, avals: Sequence[Any]
) -> Callable[..., Any] | None:
    out: list[Any] = []

    def on_leaves(*leaves: Any) -> list[Any]:
        results, tree = tree_flatten(fn(tree_unflatten(treedef, leaves)))
        is_of_arrays = all(map(_is_array, results))
        out.append(tree if is_of_arrays else None)
        return results if is_of_arrays else []

    name = getattr(fn, "__name__", "fn")
    debug_info = _compat.new_debug_info(name, fn)
    with _compat.mesh_of(avals):
        jaxpr, consts = _compat.trace_to_jaxpr(on_leaves, avals, debug_info)
    (tree,) = out
    jaxpr = drop_dead_code(jaxpr)
    if tree is None or not _is_worth_it(jaxpr, consts):
        return None
    run = jax.jit(_compat.function_of(_compat.close_jaxpr(jaxpr, consts)))
    return lambda *leaves: tree_unflatten(tree, run(*leaves))


def _is_array(x: Any) -> bool:
    return isinstance(x, (jax.core.Tracer, jax.Array, np.ndarray))


def _is_worth_it(jaxpr: _compat.Jaxpr, consts: Sequence[Any]) -> bool:
    """Whether to compile and keep a program."""
    computed = {var for eqn in jaxpr.eqns for var in eqn.outvars}
    constants = [*consts, *_constants_within(jaxpr)]
    return (
        len(jaxpr.eqns) > 1
        and not jaxpr.effects
        and all(type(x) is not _compat.Literal and x in computed for x in jaxpr.outvars)
        and sum(map(_nbytes, constants)) <= _CONSTANTS
    )


def _constants_within(jaxpr: Any) -> Iterator[Any]:
    """The constants of the jaxprs inside of a jaxpr."""
    for eqn in jaxpr.eqns:
        for inner in _compat.bodies_in_params(eqn.params):
            opened, consts = _compat.open_jaxpr(inner)
            yield from consts
            yield from _constants_within(opened)


def _nbytes(x: Any) -> int:
    return getattr(x, "nbytes", 0)

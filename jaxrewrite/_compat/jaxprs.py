"""Jaxprs: opening, closing, tracing."""

from __future__ import annotations

import contextlib
import functools
import inspect
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.extend.core as jex_core
import numpy as np

# The name, file and line of a function, as JAX writes them into the jaxprs that it makes of it.
from jax._src.api_util import fun_sourceinfo

# The effects of references name a variable, so they have to change when variables are
# renamed.
from jax._src.effects import JaxprInputEffect

# A jaxpr that is built equation by equation must look like one of JAX's own.
from jax._src.interpreters.partial_eval import (
    convert_constvars_jaxpr,
    make_jaxpr_effects,
    separate_consts,
)

# The markers in the parameters of a jit equation for shardings that are not specified.
from jax._src.sharding_impls import UNSPECIFIED
from jax.extend.linear_util import wrap_init

# dce_jaxpr: drops dead code inside nested jaxprs and keeps effects; dce_rules has the
# primitives of which it may drop a part. trace_to_jaxpr_dynamic: `jax.make_jaxpr` without the
# cost of a jit wrapper (60 us a call instead of 180), which a rewriting pays for each rule it meets.
from jax.interpreters.partial_eval import (
    DynamicJaxprTracer,
    dce_jaxpr as jax_dce_jaxpr,
    dce_rules as dce_rules,
    trace_to_jaxpr_dynamic,
)

from .avals import leaf_aval
from .modes import mode_for
from .parameters import body_name
from .types import (
    JAX_GE_0_11_0,
    JAX_GE_0_11_1,
    AnyJaxpr,
    ClosedJaxpr,
    Jaxpr,
    JaxprEqn,
    Literal,
    Primitive,
    Tracer,
    Var,
)
from .wrappers import JAXPRS, RULES, derivative_of


def open_jaxpr(jaxpr: Any) -> tuple[Jaxpr, list[Any]]:
    """Split a jaxpr, closed or not, into one without constants and the constants.

    The variables of the constants come first among the ``invars``.
    """
    if JAX_GE_0_11_0 or isinstance(jaxpr, ClosedJaxpr):
        closed, consts = separate_consts(jaxpr)
        return closed.jaxpr, list(consts)
    return convert_constvars_jaxpr(jaxpr), []


def bodies_in_params(params: Mapping[str, Any]) -> Iterator[AnyJaxpr]:
    """The jaxprs in an equation's parameters, with their constants.

    Before 0.11, what `jax.extend.core.jaxprs_in_params` gives has lost them.
    """
    for param in params.values():
        for x in param if isinstance(param, tuple) else (param,):
            if isinstance(x, JAXPRS):
                yield x


def with_equations(eqn: JaxprEqn, change: Callable[[JaxprEqn], JaxprEqn]) -> JaxprEqn:
    """The equation with other equations in the jaxprs among its parameters."""
    params = {name: _with_equations(x, change) for name, x in eqn.params.items()}
    is_same = all(params[name] is x for name, x in eqn.params.items())
    return eqn if is_same else eqn.replace(params=params)


def _with_equations(x: Any, change: Callable[[JaxprEqn], JaxprEqn]) -> Any:
    if isinstance(x, tuple):
        parts = [_with_equations(part, change) for part in x]
        is_same = all(map(operator.is_, parts, x))
        return x if is_same else tuple(parts)
    if not isinstance(x, JAXPRS):
        return x
    whole: Any = x
    is_closed = not JAX_GE_0_11_0 and isinstance(x, ClosedJaxpr)
    jaxpr = whole.jaxpr if is_closed else whole
    eqns = list(map(change, jaxpr.eqns))
    if all(map(operator.is_, eqns, jaxpr.eqns)):
        return x
    changed = jaxpr.replace(eqns=eqns)
    return whole.replace(jaxpr=changed) if is_closed else changed


def constants_first(jaxpr: Jaxpr) -> Jaxpr:
    """A jaxpr that takes its constants as its first arguments."""
    return convert_constvars_jaxpr(jaxpr) if jaxpr.constvars else jaxpr


def close_jaxpr(jaxpr: Jaxpr, consts: Sequence[Any] = ()) -> Any:
    """Attach constants to the leading ``invars`` of a jaxpr."""
    if consts and not JAX_GE_0_11_1:
        jaxpr = jaxpr.replace(
            constvars=jaxpr.invars[: len(consts)],
            invars=jaxpr.invars[len(consts) :],
            debug_info=unnamed(jaxpr.debug_info),
        )
    if JAX_GE_0_11_0:
        return jaxpr.with_consts(list(consts))  # type: ignore[attr-defined]
    return ClosedJaxpr(jaxpr, list(consts))


def unnamed(debug_info: Any) -> Any:
    """``debug_info`` without names, for a jaxpr with other arguments and results."""
    return debug_info.with_unknown_names()


def without_constants(jaxpr: Any) -> Jaxpr | None:
    """The jaxpr inside of a closed one, or ``None`` if it has constants."""
    return None if jaxpr.consts else _without_constants(jaxpr)


def is_unplaced(params: Mapping[str, Any]) -> bool:
    """Whether a jit equation says nothing about where its arrays are, or how to compile."""
    placed = (*params["in_shardings"], *params["out_shardings"])
    layouts = (*params["in_layouts"], *params["out_layouts"])
    return (
        all(sharding is UNSPECIFIED for sharding in placed)
        and all(layout is None for layout in layouts)
        and not params["compiler_options_kvs"]
    )


def function_of(closed: Any) -> Callable[..., list[Any]]:
    """The function of a closed jaxpr; the same one each time."""
    return jex_core.jaxpr_as_fun(closed)


def new_jaxpr(
    invars: Sequence[Var],
    outvars: Sequence[Any],
    eqns: Sequence[JaxprEqn],
    debug_info: Any,
    is_high: bool,
) -> Jaxpr:
    """Build a jaxpr without constants from its equations.

    ``is_high`` tells whether JAX has to expand some of the primitives before it can compile
    the jaxpr. `has_high_parameters` and the ``is_high`` of other jaxprs give it.
    """
    effects: Any = set()
    if any(map(operator.attrgetter("effects"), eqns)):
        effects = make_jaxpr_effects((), invars, outvars, eqns)
    return Jaxpr((), invars, outvars, eqns, effects, unnamed(debug_info), is_high)


def has_high_parameters(
    primitive: Primitive, operands: Sequence[Any], params: dict[str, Any]
) -> bool:
    """Whether JAX has to expand a primitive with these parameters before it compiles."""
    return primitive.is_high(*[leaf_aval(x) for x in operands], **params)


def _without_constants(jaxpr: Any) -> Jaxpr:
    """The jaxpr inside of a closed one; any other jaxpr itself."""
    is_closed = JAX_GE_0_11_0 or isinstance(jaxpr, ClosedJaxpr)
    return jaxpr.jaxpr if is_closed else jaxpr


def name_of(jaxpr: Any) -> str:
    """The name of the function that a jaxpr, closed or not, was traced from."""
    return _without_constants(jaxpr).debug_info.func_name


def origin_of(jaxpr: Any) -> str | None:
    """The name, file and line of the function that a jaxpr, closed or not, was traced from."""
    return _without_constants(jaxpr).debug_info.func_src_info


def origin_of_function(fn: Callable[..., Any]) -> str:
    """The origin of the jaxprs that JAX makes of a function."""
    # The older release sees no `functools.partial` inside of what is jitted.
    return fun_sourceinfo(inspect.unwrap(fn))


def names_of_operands(jaxpr: Any) -> tuple[str, ...] | None:
    """JAX's names for the operands of the function that a jaxpr was traced from, if known."""
    return _without_constants(jaxpr).debug_info.arg_names


def names_of_results(jaxpr: Any) -> Any:
    """JAX's names for the results of the function that a jaxpr was traced from, if known."""
    return _without_constants(jaxpr).debug_info.result_paths


def calls_a_function(eqn: JaxprEqn) -> bool:
    """Whether an equation calls a function that is jitted or has a derivative of its own."""
    return eqn.primitive.name in ("jit", "custom_jvp_call", "custom_vjp_call")


def body_of(eqn: JaxprEqn) -> Any:
    """The jaxpr of a function that an equation calls; ``None`` if it calls none.

    A call that says where its arrays are, or how to compile it, is more than the function.
    """
    is_placed = eqn.primitive.name == "jit" and not is_unplaced(eqn.params)
    if is_placed or not calls_a_function(eqn):
        return None
    return eqn.params[body_name(eqn.primitive)]


def file_of(jaxpr: Any) -> str | None:
    """The file of the function that a jaxpr, closed or not, was traced from."""
    return _without_constants(jaxpr).debug_info.func_filename


def fingerprint(jaxpr: Any) -> Any:
    """A hashable description of a jaxpr, closed or not, and of its function.

    It is equal for two traces of one function on the same avals. It contains the file and
    line of the function, and which rules for derivatives a user gave.
    """
    closed, jaxpr = jaxpr, _without_constants(jaxpr)
    numbers: dict[Any, int] = {}

    def of_atom(atom: Any) -> Any:
        if type(atom) is Literal:
            return literal_key(atom)
        return numbers.setdefault(atom, len(numbers)), str(atom.aval)

    def of_param(param: Any) -> Any:
        if isinstance(param, (Jaxpr, ClosedJaxpr)):
            return fingerprint(param)
        if isinstance(param, (tuple, list)):
            return tuple(map(of_param, param))
        return str(param)

    def of_eqn(eqn: JaxprEqn) -> Any:
        params = [
            (name, id(derivative_of(param))) if name in RULES else (name, of_param(param))
            for name, param in eqn.params.items()
            if name not in _OF_ONE_TRACE
        ]
        ins, outs = map(of_atom, eqn.invars), map(of_atom, eqn.outvars)
        return eqn.primitive.name, tuple(params), tuple(ins), tuple(outs)

    origin = jaxpr.debug_info.func_src_info
    consts = tuple(map(_constant_key, getattr(closed, "consts", ())))
    ins = tuple(map(of_atom, jaxpr.invars))
    eqns = tuple(map(of_eqn, jaxpr.eqns))
    return origin, consts, ins, eqns, tuple(map(of_atom, jaxpr.outvars))


# The parameters of which each trace has another one.
_OF_ONE_TRACE = ("out_trees",)


def literal_key(literal: Any) -> Any:
    """Equal for two literals only if they are the same number of one aval: 0.0 is not -0.0.

    The text of a literal would not do: JAX rounds it, as NumPy's options for printing say.
    """
    return literal.aval, np.asarray(literal.val).tobytes()


def _constant_key(const: Any) -> Any:
    """Equal for two constants only if they are the same array or have the same numbers."""
    is_plain = isinstance(const, (jax.Array, np.ndarray, np.generic, int, float, complex))
    if isinstance(const, jax.core.Tracer) or not is_plain:
        return id(const)
    if jax.dtypes.issubdtype(jax.numpy.result_type(const), jax.dtypes.extended):
        return id(const)
    array = np.asarray(const)
    return str(leaf_aval(const)), array.tobytes()


def called(fn: Callable[..., Any], *avals: Any) -> Any:
    """The jaxpr of the one function that a function of such arrays calls, or ``None``.

    That function is jitted or has a derivative of its own. `jax.vmap` may repeat the result of
    one that does not depend on its operand, as if that is empty; then there is no such function.
    """
    jaxpr, _ = open_jaxpr(jax.make_jaxpr(fn)(*avals))
    eqns = drop_dead_code(jaxpr).eqns
    return eqns[0].params[body_name(eqns[0].primitive)] if len(eqns) == 1 else None


def needed_operands(jaxpr: Jaxpr) -> list[bool]:
    """Whether the results of a jaxpr depend on each of its operands."""
    return jax_dce_jaxpr(jaxpr, True)[1]


def with_results(jaxpr: Jaxpr, positions: Sequence[int]) -> Jaxpr:
    """A jaxpr without constants that returns only the results at these positions."""
    outvars = [jaxpr.outvars[i] for i in positions]
    return drop_dead_code(
        new_jaxpr(jaxpr.invars, outvars, jaxpr.eqns, jaxpr.debug_info, jaxpr.is_high)
    )


def drop_dead_code(jaxpr: Jaxpr) -> Jaxpr:
    """Drop equations, also in nested jaxprs, that nothing needs; effects stay."""
    return jax_dce_jaxpr(jaxpr, True, instantiate=True)[0]


def rename_effects(effects: Any, names: Mapping[Any, Any]) -> Any:
    """The effects of an equation after its variables are renamed by ``names``."""
    if not any(isinstance(effect, JaxprInputEffect) for effect in effects):
        return effects
    return {
        effect.replace(names.get(effect.input, effect.input))
        if isinstance(effect, JaxprInputEffect)
        else effect
        for effect in effects
    }


def effects_on(jaxpr: Jaxpr, operands: Sequence[Any]) -> Any:
    """The effects of an equation that applies a jaxpr to operands."""
    return rename_effects(jaxpr.effects, dict(zip(jaxpr.invars, operands, strict=True)))


def variable_of(leaf: Any) -> Var | None:
    """The variable that a tracer stands for in its jaxpr, even if that is finished."""
    variable = leaf.val if isinstance(leaf, DynamicJaxprTracer) else None
    return variable if isinstance(variable, Var) else None


def has_tracers(consts: Iterable[Any]) -> bool:
    """Whether constants belong to the trace that runs now, and to no other."""
    return any(isinstance(const, Tracer) for const in consts)


def trace_to_jaxpr(
    fn: Callable[..., Sequence[Any]],
    avals: Sequence[Any],
    debug_info: Any,
    mode: Callable[[Sequence[Any]], AbstractContextManager[object]] = mode_for,
) -> tuple[Jaxpr, list[Any]]:
    """Trace ``fn``, from flat arrays to flat arrays, over ``avals``.

    Returns a jaxpr without constants, and the constants, which belong to its leading
    ``invars``. They include the tracers that ``fn`` closes over.
    """
    with mode(avals):
        jaxpr, _, consts = trace_to_jaxpr_dynamic(
            wrap_init(fn, debug_info=debug_info), list(avals)
        )
    return constants_first(jaxpr), list(consts)


def trace_rule(fn: Callable[..., Sequence[Any]], jaxpr: Jaxpr, num_consts: int) -> Any:
    """Trace ``fn`` in place of a rule's jaxpr; returns a jaxpr and its constants, as JAX does."""
    avals = [var.aval for var in constants_first(jaxpr).invars[num_consts:]]
    debug_info = unnamed(jaxpr.debug_info)
    traced, _, consts = trace_to_jaxpr_dynamic(wrap_init(fn, debug_info=debug_info), avals)
    return traced, consts


# A function of the user's program is traced as the user has it.
trace_program = functools.partial(trace_to_jaxpr, mode=contextlib.nullcontext)


def new_debug_info(
    name: str,
    source: Callable[..., Any] | None = None,
    arg_names: Sequence[str] | None = None,
) -> Any:
    """The names that JAX's errors give to a traced function and its arguments."""
    code = getattr(source, "__code__", None)
    where = f" at {code.co_filename}:{code.co_firstlineno}" if code else ""
    names = None if arg_names is None else tuple(arg_names)
    return jex_core.DebugInfo("jaxrewrite.transform", name + where, names, None)

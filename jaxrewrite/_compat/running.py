"""Running equations, and the trace that runs now."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.extend.source_info_util as source_info_util

# The settings that JAX's own caches have in their keys (x64, matmul precision, mesh, axis
# names ...). They are public only through the behaviour of jit's cache. traceback_filtering:
# the setting of that name for a while, and not for all threads.
from jax._src.config import trace_context as jax_trace_context

# jit and the traces decide by the current trace what to do with an operation, and no public
# name tells which trace that is. EvalTrace: nothing is being traced. DynamicJaxprTrace: a
# jaxpr is being made (jit, scan, make_jaxpr). current_jaxpr_eqn_context: the `eqn.ctx` of
# an equation that is made now. set_current_trace: a derivative rule runs in a trace of its own,
# and what it closes over is of the trace around it.
from jax._src.core import (
    EvalTrace,
    Trace as Trace,
    current_jaxpr_eqn_context,
    set_current_trace,
    trace_ctx,
)

# Eager JAX compiles each primitive once for each set of parameters and keeps the result
# here. Eager programs share these executables and skip `Primitive.bind`.
from jax._src.dispatch import apply_primitive, xla_primitive_callable

# Arrays and scalars must have the form that JAX gives them (32 bits without x64) before
# they can be constants of a jaxpr.
from jax._src.dtypes import canonicalize_value

# The effects of references name a variable, so they have to change when variables are
# renamed.
from jax._src.effects import JaxprInputEffect

# The trace that makes a jaxpr.
from jax._src.interpreters.partial_eval import DynamicJaxprTrace

# The mesh of `jax.set_mesh` is in the equations of jitted functions. `jax.sharding.get_mesh` tells
# it outside of traces alone.
from jax._src.mesh import get_concrete_mesh

# The markers in the parameters of a jit equation for shardings that are not specified.
from jax._src.sharding_impls import UNSPECIFIED as UNSPECIFIED
from jax.errors import InconclusiveDimensionOperation
from jax.interpreters.partial_eval import DynamicJaxprTracer
from jax.tree_util import tree_flatten, tree_unflatten

from .jaxprs import name_of, open_jaxpr
from .types import JAX_GE_0_11_1, Jaxpr, JaxprEqn, Literal


def call_rule(rule: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """The result of a rule, of a default or of a pattern's function. It declines where it compares sizes and the answer is not known.

    In `jax.export` sizes may be symbolic, which few rules think of.
    """
    try:
        return rule(*args, **kwargs)
    except InconclusiveDimensionOperation:
        return NotImplemented


def trace_context() -> tuple[Any, ...]:
    """The settings of JAX that a staged program depends on; hashable.

    JAX puts the mesh of devices into equations, and has it in its keys beside these settings. Keys
    of random numbers are made while a function is staged.
    """
    config: Any = jax.config  # Its attributes are made when JAX is imported.
    return jax_trace_context(), get_concrete_mesh(), config.jax_default_prng_impl


def key_of(params: Mapping[str, Any]) -> tuple[Any, ...]:
    """The part of a key that stands for the parameters of an equation; hashable if they are.

    JAX's own keys take 0.0 for -0.0, which have other texts.
    """
    return *params.items(), *(repr(x) for x in params.values() if isinstance(x, float))


def nothing_is_traced() -> bool:
    """Whether JAX runs operations on arrays at once."""
    return isinstance(trace_ctx.trace, EvalTrace)


def jit_is_disabled() -> bool:
    """Whether `jax.disable_jit` is in force."""
    return jax.config.jax_disable_jit  # type: ignore[attr-defined]


def folds_constants() -> bool:
    """Whether `jax.ensure_compile_time_eval` is in force: operations on arrays then run at once."""
    return jax.config.eager_constant_folding  # type: ignore[attr-defined]


def is_jitted(fn: Any) -> bool:
    """Whether a function is by `jax.jit`."""
    return getattr(fn, "_jit_info", None) is not None


def static_names(fn: Any) -> set[str]:
    """The names of a function's parameters that `jax.jit` takes as static, if it is jitted."""
    info = getattr(fn, "_jit_info", None)
    if info is None:
        return set()
    names = list(info.fun_signature.parameters) if info.fun_signature else []
    return {*info.static_argnames, *(names[i] for i in info.static_argnums if names)}


def is_plain_jit(fn: Any) -> bool:
    """Whether a user's function is by `jax.jit`, without donation, shardings or a device.

    JAX's own functions are small, and a warning in one names the line that calls it.
    """
    # The function's own attribute is all that tells with which options it was made.
    info = getattr(fn, "_jit_info", None)
    module = getattr(fn, "__module__", None) or ""
    if info is None or module.partition(".")[0] == "jax":
        return False
    options = (info.donate_argnums, info.donate_argnames, info.device, info.backend)
    placed = (*info.in_shardings_leaves, *info.out_shardings_leaves)
    formats = (*info.in_layouts_leaves, *info.out_layouts_leaves)
    return (
        not any((*options, info.keep_unused, info.compiler_options_kvs))
        and all(sharding is UNSPECIFIED for sharding in placed)
        and all(layout is None for layout in formats)
    )


def bind_eqn(eqn: JaxprEqn, operands: Sequence[Any]) -> Sequence[Any]:
    """Apply an equation's primitive to operands, as JAX does."""
    primitive = eqn.primitive
    out = primitive.bind(*operands, **primitive.get_bind_params(eqn.params))
    if not JAX_GE_0_11_1 and not eqn.outvars:
        return ()  # Under vmap `dce_sink` returns its operand, which is not a result.
    return out if primitive.multiple_results else (out,)


def is_in_current_context(eqn: JaxprEqn) -> bool:
    """Whether an equation made now would have the same context."""
    return eqn.ctx is current_jaxpr_eqn_context()


def in_current_context(eqn: JaxprEqn) -> JaxprEqn:
    """The equation as it would be if it were made now."""
    return eqn.replace(ctx=current_jaxpr_eqn_context())


def compiled_primitive(eqn: JaxprEqn) -> Callable[..., Any] | None:
    """Eager JAX's own compiled form of an equation, if there is one.

    Call it in the context that is current now.
    """
    if not is_in_current_context(eqn):
        return None
    impl = eqn.primitive.impl
    if not isinstance(impl, functools.partial) or impl.func is not apply_primitive:
        return None
    try:
        return xla_primitive_callable(eqn.primitive, **eqn.params)
    except TypeError:  # Some parameters are not hashable.
        return None


def eqn_context(eqn: JaxprEqn) -> tuple[Any, Any]:
    """The two context managers under which an equation is bound."""
    name_stack = source_info_util.current_name_stack() + eqn.source_info.name_stack
    return (
        source_info_util.user_context(eqn.source_info.traceback, name_stack=name_stack),
        eqn.ctx.manager,
    )


@functools.lru_cache(16)
def _jit_equation(context: Any) -> JaxprEqn:
    """An equation of `jax.jit` as the current trace makes it."""
    return jax.make_jaxpr(jax.jit(lambda x: (x,)))(0.0).eqns[0]


def call_in_current_trace(closed: Any, operands: Sequence[Any]) -> list[Any]:
    """Append one equation of `jax.jit` that calls a jaxpr without constants.

    That costs a tenth of the time that the equations of the jaxpr would take. XLA inlines
    the call.
    """
    eqn = _jit_equation(trace_context())
    count, results = len(operands), len(closed.out_avals)
    params = {
        **eqn.params,
        "jaxpr": closed,
        "name": name_of(closed),
        "donated_invars": (False,) * count,
        "in_shardings": (UNSPECIFIED,) * count,
        "in_layouts": (None,) * count,
        "out_shardings": (UNSPECIFIED,) * results,
        "out_layouts": (None,) * results,
    }
    return eqn.primitive.bind(*operands, **params)


def call_after(fn: Callable[..., Any], *operands: Any) -> Any:
    """`jax.checkpoint` of a call, none of which is computed before all operands exist.

    JAX lowers the calls of a backward pass so. A barrier among the equations of ``fn`` would
    make all operands linear for JAX if one of them is, so that none could be transposed.
    """
    leaves, treedef = tree_flatten(operands)
    out_trees = []

    def flat(*leaves: Any) -> list[Any]:
        results, out_tree = tree_flatten(fn(*tree_unflatten(treedef, leaves)))
        out_trees.append(out_tree)
        return results

    # JAX inlines the outer one of two such calls where it differentiates.
    @jax.checkpoint
    def call(*leaves: Any) -> Any:
        jaxpr, consts = open_jaxpr(jax.make_jaxpr(jax.checkpoint(flat))(*leaves))
        (eqn,) = jaxpr.eqns
        env: dict[Any, Any] = dict(zip(jaxpr.invars, [*consts, *leaves], strict=True))
        params = {**eqn.params, "differentiated": True}
        return eqn.primitive.bind(*(env[var] for var in eqn.invars), **params)

    results = call(*leaves)
    return tree_unflatten(out_trees[0], results)


def known_to_current_trace(literal: Literal) -> Any:
    """A literal as a tracer that stays a literal in the jaxpr that is being made."""
    here = source_info_util.current()
    return DynamicJaxprTracer(trace_ctx.trace, literal.aval, literal, here)


def current_trace() -> Trace:
    return trace_ctx.trace


def in_trace(trace: Trace) -> AbstractContextManager[object]:
    """Run in a trace around the current one."""
    return set_current_trace(trace)


def is_of_current_trace(tracer: Any) -> bool:
    """Whether a tracer is of the current trace itself."""
    return tracer._trace is trace_ctx.trace


def is_of_running_trace(tracer: Any) -> bool:
    """Whether a tracer is of the current trace, or of one around it."""
    trace: Any = trace_ctx.trace
    while trace is not None:
        if tracer._trace is trace:
            return True
        trace = getattr(trace, "parent_trace", None)
    return False


def makes_jaxpr() -> bool:
    """Whether the current trace makes a jaxpr."""
    return isinstance(trace_ctx.trace, DynamicJaxprTrace)


def inline_into_current_trace(jaxpr: Jaxpr, operands: Iterable[Any]) -> list[Any]:
    """Append a jaxpr's equations, unchanged, to the jaxpr that is being made.

    That costs a third of binding each equation again. Each equation keeps its own source
    line, name stack and context.
    """
    trace = trace_ctx.trace
    trace.frame.is_high |= jaxpr.is_high
    here = source_info_util.current()
    env = {
        var: trace.to_jaxpr_tracer(canonicalize_value(operand), here)
        for var, operand in zip(jaxpr.invars, operands, strict=True)
    }

    def read(atom: Any) -> Any:
        if type(atom) is Literal:
            return DynamicJaxprTracer(trace, atom.aval, atom, here)
        return env[atom]

    for eqn in jaxpr.eqns:
        source_info = eqn.source_info
        if here.name_stack.stack:
            source_info = source_info.replace(
                name_stack=here.name_stack + source_info.name_stack
            )
        effects = eqn.effects
        if effects:
            effects = {
                effect.replace(env[effect.input].val)
                if isinstance(effect, JaxprInputEffect)
                else effect
                for effect in effects
            }
        results = trace.emit_eqn(
            [read(atom) for atom in eqn.invars],
            [var.aval for var in eqn.outvars],
            eqn.primitive,
            eqn.params,
            effects,
            source_info,
            eqn.ctx,
        )
        env.update(zip(eqn.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]

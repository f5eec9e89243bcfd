"""The only module that knows JAX's versions and its private modules.

A comment at each private import gives the reason for it. The rest of the package uses it
through one of the small functions below.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from types import FrameType, FunctionType
from typing import Any

import jax
import jax.extend.core as jex_core
import jax.extend.source_info_util as source_info_util
import numpy as np

# The classes of the zero cotangents that a backward rule returns.
from jax._src.ad_util import SymbolicZero, Zero

# The class of all concrete arrays but keys, which tells at once that none is a tracer.
from jax._src.array import ArrayImpl as ArrayImpl

# The settings that JAX's own caches have in their keys (x64, matmul precision, mesh, axis
# names ...). They are public only through the behaviour of jit's cache. traceback_filtering:
# the setting of that name for a while, and not for all threads.
from jax._src.config import trace_context as jax_trace_context, traceback_filtering

# jit and the traces decide by the current trace what to do with an operation, and no public
# name tells which trace that is. EvalTrace: nothing is being traced. DynamicJaxprTrace: a
# jaxpr is being made (jit, scan, make_jaxpr). current_jaxpr_eqn_context: the `eqn.ctx` of
# an equation that is made now.
# Trace, TraceTag: what wrappers of derivative rules hold of the trace that made them.
from jax._src.core import EvalTrace, Trace, TraceTag, current_jaxpr_eqn_context, trace_ctx

# JAX's own check of a rule for `jax.custom_batching.custom_vmap`, with its own message.
from jax._src.custom_batching import check_vmap_rule_trees as check_vmap_rule_trees

# Eager JAX compiles each primitive once for each set of parameters and keeps the result
# here. Eager programs share these executables and skip `Primitive.bind`.
from jax._src.dispatch import apply_primitive, xla_primitive_callable

# Arrays and scalars must have the form that JAX gives them (32 bits without x64) before
# they can be constants of a jaxpr.
from jax._src.dtypes import canonicalize_value

# The effects of references name a variable, so they have to change when variables are
# renamed.
from jax._src.effects import JaxprInputEffect

# dce_jaxpr: drops dead code inside nested jaxprs and keeps effects; dce_rules has the
# primitives of which it may drop a part. make_jaxpr_effects, convert_constvars_jaxpr,
# separate_consts: a jaxpr that is built equation by equation must look like one of JAX's
# own. trace_to_jaxpr_dynamic: `jax.make_jaxpr` without the cost of a jit wrapper (60 us a
# call instead of 180), which a rewriting pays for each rule it meets.
from jax._src.interpreters.partial_eval import (
    DynamicJaxprTrace,
    DynamicJaxprTracer,
    convert_constvars_jaxpr,
    dce_jaxpr as jax_dce_jaxpr,
    dce_rules as dce_rules,
    make_jaxpr_effects,
    separate_consts,
    trace_to_jaxpr_dynamic,
)

# The wrapper and the debug info that trace_to_jaxpr_dynamic takes. WrappedFun: derivative
# rules are such wrappers in the parameters of an equation.
from jax._src.linear_util import WrappedFun, wrap_init

# The function by which jax.numpy refuses operands has no hook for a hint. It asks each of
# them for __jax_array__.
from jax._src.numpy.util import check_arraylike

# The markers in the parameters of a jit equation for what is not specified.
from jax._src.sharding_impls import UNSPECIFIED as UNSPECIFIED

# The user's frame of an equation, as file and line and not as text, and whether a frame of
# a traceback belongs to the user.
from jax._src.source_info_util import is_user_filename, user_frame

# This keeps the frames of this package out of the tracebacks that JAX filters.
from jax._src.traceback_util import register_exclusion
from jax.tree_util import tree_flatten, tree_unflatten


_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
register_exclusion(_HERE)
source_info_util.register_exclusion(_HERE)

ClosedJaxpr = jex_core.ClosedJaxpr
Jaxpr = jex_core.Jaxpr
JaxprEqn = jex_core.JaxprEqn
Var = jex_core.Var
Literal = jex_core.Literal
DropVar = jex_core.DropVar
Primitive = jex_core.Primitive
ShapedArray = jax.core.ShapedArray
Tracer = jax.core.Tracer
SourceInfo = source_info_util.SourceInfo

# The releases of JAX that changed something this package depends on. All are above the
# oldest release in setup.cfg. When the oldest release reaches one, a test fails because its
# flag is dead. Then remove the flag and the code for older releases.
_RELEASE = jax.__version_info__[:3]

# One class serves for jaxprs and closed jaxprs: a jaxpr carries its constants. A scan gives
# the numbers of its constants, carry and xs as trees.
JAX_GE_0_11_0 = _RELEASE >= (0, 11, 0)

# Backward rules of custom_vjp return logs beside the cotangents. Functions of JAX make "hi"
# primitives. eval_jaxpr is kept when it is staged, and the name of its body is call_jaxpr.
# dce_sink has no result under vmap either. On a CPU, XLA multiplies integers of 8 bits faster
# than floats.
JAX_GE_0_11_1 = _RELEASE >= (0, 11, 1)

# The name of the body of lax.composite is call_jaxpr.
JAX_GE_0_11_2 = _RELEASE >= (0, 11, 2)


# --- avals ------------------------------------------------------------------


def leaf_aval(leaf: Any) -> Any:
    """The aval of an array, tracer, atom, scalar, or of an aval.

    Raises `TypeError` for any other object.
    """
    try:
        return leaf.aval
    except AttributeError:
        if isinstance(leaf, jax.core.AbstractValue):
            return leaf
        if isinstance(leaf, jax.ShapeDtypeStruct):
            return ShapedArray(leaf.shape, leaf.dtype, weak_type=leaf.weak_type)
        return jax.typeof(leaf)


def is_array(leaf: Any) -> bool:
    """Whether a leaf of a program's arguments is an array (or a reference)."""
    return isinstance(leaf, (jax.Array, np.ndarray, np.generic, jax.Ref))


def is_plain(aval: Any) -> bool:
    """Whether an aval consists of shape, dtype and weak type only."""
    return not isinstance(aval, ShapedArray) or (
        aval.sharding.mesh.empty
        and not aval.manual_axis_type.varying
        and aval.memory_space == jax.memory.Space.Device
    )


def mesh_of(avals: Iterable[Any]) -> Any:
    """A context manager that sets the mesh of the arrays of these avals, if they have one.

    It differs from the mesh of the surrounding program where that leaves some axes to the
    compiler for a while (`jax.sharding.auto_axes`).
    """
    for aval in avals:
        if isinstance(aval, ShapedArray) and not aval.sharding.mesh.empty:
            return jax.sharding.use_abstract_mesh(aval.sharding.mesh)
    return contextlib.nullcontext()


def varying_axes(aval: Any) -> frozenset[Any]:
    """The axes of a mesh over which an array varies, inside `jax.shard_map`."""
    is_array = isinstance(aval, ShapedArray)
    return frozenset(aval.manual_axis_type.varying) if is_array else frozenset()


def varying_as(aval: ShapedArray, avals: Sequence[Any]) -> ShapedArray:
    """The aval of an array that varies over the mesh axes over which some others vary."""
    varying = [x for x in avals if varying_axes(x)]
    if not varying:
        return aval
    spec = jax.sharding.PartitionSpec(*[None] * len(aval.shape))
    return aval.update(
        sharding=jax.sharding.NamedSharding(varying[0].sharding.mesh, spec),
        manual_axis_type=type(aval.manual_axis_type)(
            varying=frozenset().union(*map(varying_axes, varying))
        ),
    )


def vary_over(x: Any, axes: Set[Any]) -> Any:
    """The same array, of the type of one that varies over some more mesh axes."""
    return jax.lax.pcast(x, tuple(sorted(axes)), to="varying") if axes else x


def is_weak(aval: Any) -> bool:
    """Whether an aval is that of an array with a weak type."""
    return isinstance(aval, ShapedArray) and aval.weak_type


def strong(aval: Any) -> Any:
    """The aval without its weak type."""
    return aval.update(weak_type=False) if is_weak(aval) else aval


def as_weak(array: Any) -> Any:
    """The array with a weak type."""
    return jax.lax.convert_element_type_p.bind(
        array, new_dtype=array.dtype, weak_type=True, sharding=None
    )


def as_strong_as(array: Any, aval: Any) -> Any:
    """The array with a strong type, if the type of ``aval`` is strong."""
    if is_weak(leaf_aval(array)) and not getattr(aval, "weak_type", False):
        return jax.lax.convert_element_type(array, aval.dtype)
    return array


def without_leading_axis(aval: Any, length: int) -> Any:
    """The aval of one of ``length`` slices along the first axis."""
    return without_axis(aval, length, 0)


def without_axis(aval: Any, length: int, axis: int) -> Any:
    """The aval of one of ``length`` slices along an axis."""
    return jex_core.mapped_aval(length, axis, aval)


def with_leading_axis(aval: Any, length: int) -> Any:
    """The aval of ``length`` arrays stacked along a new first axis."""
    return jex_core.unmapped_aval(length, 0, aval)


def same_array_type(aval: Any, expected: Any) -> bool:
    """Whether two avals agree in shape and dtype."""
    if not isinstance(expected, ShapedArray) or not isinstance(aval, ShapedArray):
        return type(aval) is type(expected)
    return aval.shape == expected.shape and aval.dtype == expected.dtype


def short(aval: Any) -> str:
    """An aval as short text, like ``f32[3,4]``."""
    return aval.str_short(short_dtypes=True)


def is_refused(frame: FrameType | None) -> bool:
    """Whether the code of a frame is about to refuse an object that is no array."""
    # The frames of the check of one object, of the loop over all, and of their caller.
    for _ in range(3):
        if frame is not None and frame.f_code is check_arraylike.__code__:
            return not frame.f_locals["emit_warning"]
        frame = frame and frame.f_back
    return False


def primitives_by_name() -> dict[str, Primitive]:
    """Every primitive of JAX's own modules, including those that it exports.

    Some, such as those of `jax.shard_map` and `lax.composite`, have no public name, but
    users write rules for them, too.
    """
    modules = [m for name, m in list(sys.modules.items()) if name.startswith("jax._src.")]
    modules += [jax.lax, jex_core.primitives]  # An exported primitive beats its namesake.
    return {
        primitive.name: primitive
        for module in modules
        for primitive in list(vars(module).values())
        if isinstance(primitive, Primitive)
    }


def result_avals(eqn: JaxprEqn, avals: Sequence[Any]) -> list[Any]:
    """The avals of the results of an equation's primitive for operands of these avals."""
    with eqn.ctx.manager:
        out, _ = eqn.primitive.abstract_eval(*avals, **eqn.params)
    return list(out) if eqn.primitive.multiple_results else [out]


# --- jaxprs ------------------------------------------------------------------


def open_jaxpr(jaxpr: Any) -> tuple[Jaxpr, list[Any]]:
    """Split a jaxpr, closed or not, into one without constants and the constants.

    The variables of the constants come first among the ``invars``.
    """
    if JAX_GE_0_11_0 or isinstance(jaxpr, ClosedJaxpr):
        closed, consts = separate_consts(jaxpr)
        return closed.jaxpr, list(consts)
    return convert_constvars_jaxpr(jaxpr), []


def constants_first(jaxpr: Jaxpr) -> Jaxpr:
    """A jaxpr that takes its constants as its first arguments."""
    return convert_constvars_jaxpr(jaxpr) if jaxpr.constvars else jaxpr


def close_jaxpr(jaxpr: Jaxpr, consts: Sequence[Any] = ()) -> Any:
    """Attach constants to the leading ``invars`` of a jaxpr."""
    if JAX_GE_0_11_0:
        return jaxpr.with_consts(list(consts))  # type: ignore[attr-defined]
    if consts:
        jaxpr = jaxpr.replace(
            constvars=jaxpr.invars[: len(consts)],
            invars=jaxpr.invars[len(consts) :],
            debug_info=unnamed(jaxpr.debug_info),
        )
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
        and not params["keep_unused"]
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


def file_of(jaxpr: Any) -> str | None:
    """The file of the function that a jaxpr, closed or not, was traced from."""
    return _without_constants(jaxpr).debug_info.func_filename


def fingerprint(jaxpr: Any) -> Any:
    """A hashable description of what a jaxpr, closed or not, does, and of its function.

    It is equal for two traces of one function on the same avals. It contains the file and
    line of the function, because custom derivatives cannot be compared in another way.
    """
    closed, jaxpr = jaxpr, _without_constants(jaxpr)
    numbers: dict[Any, int] = {}

    def of_atom(atom: Any) -> Any:
        if type(atom) is Literal:
            return repr(atom.val), str(atom.aval)
        return numbers.setdefault(atom, len(numbers)), str(atom.aval)

    def of_param(param: Any) -> Any:
        if isinstance(param, (Jaxpr, ClosedJaxpr)):
            return fingerprint(param)
        if isinstance(param, (tuple, list)):
            return tuple(map(of_param, param))
        return str(param)

    def of_eqn(eqn: JaxprEqn) -> Any:
        params = [
            (name, of_param(param))
            for name, param in eqn.params.items()
            if name != "jvp_jaxpr_fun"  # Each trace has another one.
        ]
        ins, outs = map(of_atom, eqn.invars), map(of_atom, eqn.outvars)
        return eqn.primitive.name, tuple(params), tuple(ins), tuple(outs)

    origin = jaxpr.debug_info.func_src_info
    consts = tuple(map(str, getattr(closed, "consts", ())))
    ins = tuple(map(of_atom, jaxpr.invars))
    eqns = tuple(map(of_eqn, jaxpr.eqns))
    return origin, consts, ins, eqns, tuple(map(of_atom, jaxpr.outvars))


def called(fn: Callable[..., Any], *avals: Any) -> Any:
    """The jaxpr of the one function that a function of such arrays calls, or ``None``.

    That function is jitted or has a derivative of its own. `jax.vmap` may repeat the result of
    one that does not depend on its operand, as if that is empty; then there is no such function.
    """
    jaxpr, _ = open_jaxpr(jax.make_jaxpr(fn)(*avals))
    eqns = drop_dead_code(jaxpr).eqns
    return eqns[0].params[body_name(eqns[0].primitive)] if len(eqns) == 1 else None


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


def trace_to_jaxpr(
    fn: Callable[..., Sequence[Any]],
    avals: Sequence[Any],
    debug_info: Any,
) -> tuple[Jaxpr, list[Any]]:
    """Trace ``fn``, from flat arrays to flat arrays, over ``avals``.

    Returns a jaxpr without constants, and the constants, which belong to its leading
    ``invars``. They include the tracers that ``fn`` closes over.
    """
    jaxpr, _, consts = trace_to_jaxpr_dynamic(
        wrap_init(fn, debug_info=debug_info), list(avals)
    )
    return constants_first(jaxpr), list(consts)


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


# --- parameters that differ between versions -----------------------------------


def scan_counts(params: Mapping[str, Any]) -> tuple[int, int]:
    """The number of a scan's operands that are constants, and that are its carry."""
    if JAX_GE_0_11_0:
        consts, carry, _ = params["ft_in"].unpack()
        return len(consts), len(carry)
    return params["num_consts"], params["num_carry"]


def scan_params(
    params: Mapping[str, Any], jaxpr: Any, counts: Sequence[int]
) -> dict[str, Any]:
    """The parameters of a scan with another body.

    ``counts`` are the numbers of constants, carry, xs and ys.
    """
    consts, carry, xs, ys = counts
    if not JAX_GE_0_11_0:
        return {**params, "jaxpr": jaxpr, "num_consts": consts, "num_carry": carry}
    # Newer releases count operands by trees that no public function makes.
    from jax._src.flattree import nones, pack

    ft_in = pack((nones(consts), nones(carry), nones(xs)))
    ft_out = pack((nones(carry), nones(ys)))
    return {**params, "jaxpr": jaxpr, "ft_in": ft_in, "ft_out": ft_out}


# Trees of the operands and results of a scan. They also tell which results are operands,
# which its body tells, too.
TREES_OF_SCAN = frozenset({"ft_in", "ft_out"})


# The primitives that call a jaxpr and do not name the parameter ``jaxpr``.
_CALL_JAXPR = {
    "closed_call",
    "custom_jvp_call",
    "program_order",
    *(["eval_jaxpr"] if JAX_GE_0_11_1 else []),
    *(["composite"] if JAX_GE_0_11_2 else []),
}


def body_name(primitive: Primitive) -> str:
    """The name of the parameter that holds the jaxpr."""
    return "call_jaxpr" if primitive.name in _CALL_JAXPR else "jaxpr"


def can_be_expanded(eqn: JaxprEqn) -> bool:
    """Whether the expansion and `jvp` of a "hi" primitive are all that it does.

    They are not if it holds references or types of its own, or if its backward rule is not
    the transpose of its `jvp`. Before JAX 0.11.1 no function of JAX makes one.
    """
    primitive = eqn.params["_prim"]
    cls = type(primitive)
    if not JAX_GE_0_11_1:
        return False
    avals: list[Any] = [atom.aval for atom in (*eqn.invars, *eqn.outvars)]
    if not all(isinstance(aval, ShapedArray) for aval in avals):
        return False
    is_differentiable = any(
        jax.numpy.issubdtype(aval.dtype, jax.numpy.inexact)
        for aval in avals[len(eqn.invars) :]
    )
    from jax._src import hijax

    derived: list[Any] = [getattr(hijax, name) for name in ("vjp_from_jvp", "vjp_from_lin")]
    of_jvp = [rules.vjp_fwd for rules in derived]
    return not is_differentiable or cls.vjp_fwd in of_jvp


def expand(eqn: JaxprEqn, operands: Sequence[Any]) -> list[Any]:
    """Express a "hi" primitive by other primitives."""
    return list(eqn.primitive.to_lojax(*operands, **eqn.params))


def differentiate(
    eqn: JaxprEqn, primals: Sequence[Any], tangents: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """The results of a "hi" primitive and their tangents, by its own rule.

    Zero tangents among the operands are those of `jax.custom_jvp`. Zero tangents of results
    have the same class.
    """
    from jax._src.interpreters.ad import primitive_jvps

    given = [Zero(t.aval) if isinstance(t, SymbolicZero) else t for t in tangents]
    results, result_tangents = primitive_jvps[eqn.primitive](
        list(primals), given, **eqn.params
    )
    return list(results), [
        SymbolicZero(t.aval) if isinstance(t, Zero) else t for t in result_tangents
    ]


def call_backward(bwd: Any, operands: Sequence[Any]) -> list[Any]:
    """Call the backward rule of a custom_vjp equation; ``None`` for zeros."""
    returned = bwd.call_wrapped(*operands)
    if JAX_GE_0_11_1:
        returned, _ = returned  # A pair of cotangents and logs.
    return [None if isinstance(ct, (Zero, SymbolicZero)) else ct for ct in returned]


# --- wrappers of functions in parameters -------------------------------------------


JAXPRS = (Jaxpr, ClosedJaxpr)


def is_wrapped_function(x: Any) -> bool:
    """Whether a parameter is JAX's wrapper of a function and its transformations."""
    return isinstance(x, WrappedFun)


def is_bookkeeping(x: Any) -> bool:
    """Whether an object belongs to one trace and says nothing of the function traced."""
    return isinstance(x, (Trace, TraceTag, jex_core.DebugInfo, JaxprEqn, ShapedArray))


def without_dead_code_wrapper(fn: Any) -> Any:
    """A derivative rule without the wrapper that dropping dead code puts around it.

    The wrapper stays if it drops a result.
    """
    if not is_wrapped_function(fn):
        return fn
    thunk = _captured(fn.f).get("fn", fn.f)
    names = {
        "dce_jvp_jaxpr_thunk": "jvp_jaxpr_fun",
        "dce_fwd_jaxpr_thunk": "fwd_jaxpr_thunk",
        "dce_bwd": "bwd",
    }
    inner = names.get(getattr(thunk, "__name__", ""))
    if inner is None or not all(_captured(thunk)["used_outs"]):
        return fn
    return without_dead_code_wrapper(_captured(thunk)[inner])


def _captured(fn: Any) -> Mapping[str, Any]:
    """What a function closes over, by name."""
    if not isinstance(fn, FunctionType):
        return {}
    cells = zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True)
    return {name: cell.cell_contents for name, cell in cells}


# --- where an equation comes from --------------------------------------------


def source_location(source_info: SourceInfo) -> tuple[str, int, str] | None:
    """File, line and function of the user's code that made an equation.

    There is no such code in the body of a function of JAX itself, like `jax.numpy.sort`.
    """
    frame = user_frame(source_info.traceback)
    if frame is None:
        return None
    return frame.file_name, frame.start_line, frame.function_name


def current_location() -> tuple[str, int, str] | None:
    """File, line and function of the user's code that runs now."""
    return source_location(source_info_util.current())


def raised_at(error: BaseException) -> tuple[str, int, str] | None:
    """File, line and function of the user's code in which an error was raised."""
    found = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        code = frame.f_code
        if is_user_filename(code.co_filename):
            found = code.co_filename, line, code.co_name
    return found


def unfiltered_errors() -> Any:
    """A context manager for errors that are caught: to filter one takes milliseconds."""
    return traceback_filtering("off")


# --- running -----------------------------------------------------------------


def trace_context() -> tuple[Any, ...]:
    """The settings of JAX that a staged program depends on; hashable."""
    return jax_trace_context()


def nothing_is_traced() -> bool:
    """Whether JAX runs operations on arrays at once."""
    return isinstance(trace_ctx.trace, EvalTrace)


def jit_is_disabled() -> bool:
    """Whether `jax.disable_jit` is in force."""
    return jax.config.jax_disable_jit  # type: ignore[attr-defined]


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

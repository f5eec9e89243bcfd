"""The only room that knows JAX's versions and its private modules.

A comment at each private import gives the reason for it. The rest of the package uses it
through one of the small functions here.
"""

import os

import jax.extend.source_info_util as source_info_util

# JAX filters the tracebacks of what is called through a boundary, as that of ``jax.jit``: there and
# within this package, it leaves out the frames of this package.
from jax._src.traceback_util import (
    api_boundary as without_internal_frames,
    register_exclusion,
)

from .avals import (
    as_weak_as as as_weak_as,
    full as full,
    is_array as is_array,
    is_namesake as is_namesake,
    is_plain as is_plain,
    is_refused as is_refused,
    is_weak as is_weak,
    leaf_aval as leaf_aval,
    mesh_of as mesh_of,
    placed_as as placed_as,
    primitive_of_name as primitive_of_name,
    primitives_by_name as primitives_by_name,
    result_avals as result_avals,
    same_array_type as same_array_type,
    short as short,
    split_as as split_as,
    strong as strong,
    vary_as as vary_as,
    vary_over as vary_over,
    varying_as as varying_as,
    varying_axes as varying_axes,
    with_leading_axis as with_leading_axis,
    without_axis as without_axis,
    without_leading_axis as without_leading_axis,
)
from .jaxprs import (
    bodies_in_params as bodies_in_params,
    body_of as body_of,
    called as called,
    calls_a_function as calls_a_function,
    close_jaxpr as close_jaxpr,
    constants_first as constants_first,
    dce_rules as dce_rules,
    drop_dead_code as drop_dead_code,
    effects_on as effects_on,
    file_of as file_of,
    fingerprint as fingerprint,
    function_of as function_of,
    has_high_parameters as has_high_parameters,
    has_tracers as has_tracers,
    is_unplaced as is_unplaced,
    literal_key as literal_key,
    name_of as name_of,
    names_of_operands as names_of_operands,
    names_of_results as names_of_results,
    needed_operands as needed_operands,
    new_debug_info as new_debug_info,
    new_jaxpr as new_jaxpr,
    open_jaxpr as open_jaxpr,
    origin_of as origin_of,
    origin_of_function as origin_of_function,
    rename_effects as rename_effects,
    trace_program as trace_program,
    trace_rule as trace_rule,
    trace_to_jaxpr as trace_to_jaxpr,
    unnamed as unnamed,
    variable_of as variable_of,
    with_equations as with_equations,
    with_results as with_results,
    without_constants as without_constants,
)
from .meshes import (
    Placing as Placing,
    call_on_mesh as call_on_mesh,
    trace_on_mesh as trace_on_mesh,
)
from .modes import (
    bits_of as bits_of,
    bits_of_equation as bits_of_equation,
    needs_64_bits as needs_64_bits,
    standard_promotion as standard_promotion,
    with_standard_promotion as with_standard_promotion,
)
from .parameters import (
    TREES_OF_SCAN as TREES_OF_SCAN,
    body_name as body_name,
    call_backward as call_backward,
    can_be_expanded as can_be_expanded,
    check_vmap_rule_trees as check_vmap_rule_trees,
    differentiate as differentiate,
    expand as expand,
    is_transposed_by_itself as is_transposed_by_itself,
    scan_counts as scan_counts,
    scan_params as scan_params,
)
from .running import (
    UNSPECIFIED as UNSPECIFIED,
    Trace as Trace,
    bind_eqn as bind_eqn,
    call_after as call_after,
    call_in_current_trace as call_in_current_trace,
    call_rule as call_rule,
    compiled_primitive as compiled_primitive,
    current_trace as current_trace,
    eqn_context as eqn_context,
    folds_constants as folds_constants,
    in_current_context as in_current_context,
    in_trace as in_trace,
    inline_into_current_trace as inline_into_current_trace,
    is_in_current_context as is_in_current_context,
    is_jitted as is_jitted,
    is_of_current_trace as is_of_current_trace,
    is_of_running_trace as is_of_running_trace,
    is_plain_jit as is_plain_jit,
    jit_is_disabled as jit_is_disabled,
    key_of as key_of,
    known_to_current_trace as known_to_current_trace,
    makes_jaxpr as makes_jaxpr,
    nothing_is_traced as nothing_is_traced,
    static_names as static_names,
    trace_context as trace_context,
)
from .source import (
    current_location as current_location,
    is_transposed as is_transposed,
    raised_at as raised_at,
    scope_of as scope_of,
    source_location as source_location,
    source_within as source_within,
    unfiltered_errors as unfiltered_errors,
    user_frames as user_frames,
)
from .types import (
    JAX_GE_0_11_0 as JAX_GE_0_11_0,
    JAX_GE_0_11_1 as JAX_GE_0_11_1,
    JAX_GE_0_11_2 as JAX_GE_0_11_2,
    AnyJaxpr as AnyJaxpr,
    ArrayImpl as ArrayImpl,
    Atom as Atom,
    Aval as Aval,
    ClosedJaxpr as ClosedJaxpr,
    DebugInfo as DebugInfo,
    DropVar as DropVar,
    Effects as Effects,
    EqnContext as EqnContext,
    Jaxpr as Jaxpr,
    JaxprEqn as JaxprEqn,
    Literal as Literal,
    Primitive as Primitive,
    ShapedArray as ShapedArray,
    SourceInfo as SourceInfo,
    Tracer as Tracer,
    Tree as Tree,
    Var as Var,
)
from .unions import choices_of as choices_of
from .wrappers import (
    JAXPRS as JAXPRS,
    OWN_RULES as OWN_RULES,
    ForwardRule as ForwardRule,
    closes_over_tracers as closes_over_tracers,
    derivative_of as derivative_of,
    is_bookkeeping as is_bookkeeping,
    is_wrapped_function as is_wrapped_function,
    same_derivatives as same_derivatives,
    tracers_hidden_in as tracers_hidden_in,
    tracers_in as tracers_in,
    with_own_rule as with_own_rule,
    without_dead_code_wrapper as without_dead_code_wrapper,
)


_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
register_exclusion(_PACKAGE)
source_info_util.register_exclusion(_PACKAGE)

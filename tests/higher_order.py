"""What is said of each primitive that carries a jaxpr or a function, for the docs.

``python tests/higher_order.py > docs/higher_order.rst`` renders the page.
"""

from jaxrewrite._rewrite import handlers


# How values go through, by the module that does it.
FAMILIES = {
    "calls": "Stay one equation, under their name, policy and compute type; what is said of each "
    "operand or result (donation, sharding, layout) is said of each leaf.",
    "scan": "Constants, carry, xs and ys may be values. The carry takes the least structure "
    "that it keeps. Also what ``lax.map`` and ``lax.fori_loop`` of known length become.",
    "while_loop": "Constants and carry may be values; whether to go on is asked of an array.",
    "cond": "Also ``lax.switch`` and ``lax.platform_dependent``. Structures of results join.",
    "custom_jvp": "The rule stays alive, with exact tangents. Also ``lax.custom_root`` on JAX 0.10.",
    "custom_vjp": "Both rules stay alive, with exact cotangents; residuals may be values.",
    "linear_solve": "The operator may close over values; right side and solution are arrays.",
    "linear_call": "Residuals may be values; what the function is linear in is an array.",
    "custom_vmap": "The rule stays alive and may be given values; results are arrays.",
    "composite": "Its decomposition takes its place, since a backend that knows the name "
    "expects the operands that belong to it.",
    "shard_map": "Runs on the shards of the leaves, split as ``Value.leaf_specs`` says.",
}

_KERNEL = "Found in kernels alone, which work on blocks of arrays in memory."
_HOST = "Hands arrays to a function on the host, in the order of the program."
_SCALARS = "Its function combines two numbers: it is no body that arrays go through."
_FOREIGN = "Calls code outside of JAX that takes arrays in given layouts."
_OPAQUE = (
    "Hidden from jaxprs by design: it shows a body only when JAX compiles it, without its "
    "derivative rule."
)
_LINEARISED = "Stands for the rule of a function that JAX has linearised already."

# Why values become dense where they enter one.
REASONS = {
    "buffer_callback": _HOST,
    "call": "No function of JAX makes it any more.",
    "call_hi_primitive": _OPAQUE
    + " From JAX 0.11 on ``lax.custom_root`` and ``jnp.searchsorted`` are such.",
    "call_hi_primitive_linearized": _OPAQUE,
    "core_map": _KERNEL,
    "cudnn_fusion": _FOREIGN,
    "custom_fusion": _KERNEL,
    "custom_lin": _LINEARISED + " It is never evaluated.",
    "custom_partitioning": "Its rules say how given operands are partitioned, and not leaves.",
    "debug_callback": _HOST,
    "debug_print": _HOST,
    "dot_product_attention_bwd": _FOREIGN,
    "dot_product_attention_fwd": _FOREIGN,
    "dot_product_attention_fp8_bwd": _FOREIGN,
    "dot_product_attention_fp8_fwd": _FOREIGN,
    "emit_pipeline": _KERNEL,
    "ffi_call": _FOREIGN,
    "fusible": _KERNEL,
    "inspect_sharding": "Asks how one array is sharded.",
    "io_callback": _HOST,
    "jaxpr_call": _KERNEL,
    "mpmd_map": _KERNEL,
    "pallas_call": "A kernel works on blocks of arrays in memory.",
    "parallel_loop": _KERNEL,
    "pipeline_body": _KERNEL,
    "pure_callback": _HOST,
    "reduce": _SCALARS,
    "reduce_window": _SCALARS,
    "remat_opt": _LINEARISED,
    "run_scoped": _KERNEL,
    "run_state": "Made by JAX of loops over references, whose contents are arrays.",
    "scatter": _SCALARS,
    "scatter-add": _SCALARS,
    "scatter-max": _SCALARS,
    "scatter-min": _SCALARS,
    "scatter-mul": _SCALARS,
    "scatter-sub": _SCALARS,
    "select_and_gather_add": _SCALARS,
    "select_and_scatter": _SCALARS,
    "select_and_scatter_add": _SCALARS,
    "thunky.async_start": _KERNEL,
    "thunky.call_jax": _KERNEL,
    "thunky.call_thunky_nested": _KERNEL,
    "thunky.collective_group": _KERNEL,
    "thunky.cond": _KERNEL,
    "thunky.while": _KERNEL,
    "tpu_custom_call": _FOREIGN,
}

_PAGE = """\
Higher-order primitives
=======================

Some of JAX's primitives carry a jaxpr or a function: ``jax.jit`` the function that it
compiles, ``lax.scan`` the body of the loop. Values go through those of the first table, and
the equation stays one of its kind. They become dense, by the policy ``materialise=``, where they
enter one of the second table.

A rule that is registered for such a primitive is asked first. Where two structures meet, in
the branches of a conditional or before and after a turn of a loop, the result is their *join*:
the same structure if they are equal; else, where they differ only in fields that are values
themselves, the join of those fields; else what the types' ``join`` gives; else dense.

References (``jax.new_ref``) hold arrays, so values that are written to one become dense.
``lax.associative_scan`` leaves no equation of its own.

Values go through
-----------------

{handled}

Values become dense
-------------------

{dense}
This page is rendered by a test from the tables that it checks against the installed JAX.
"""


def rows(entries):
    lines = [".. list-table::", "   :widths: 30 70", ""]
    for first, second in entries:
        lines += [f"   * - {first}", f"     - {second}"]
    return "\n".join(lines) + "\n"


def render():
    modules = {}
    for name, handler in handlers.items():
        modules.setdefault(handler.__module__.split(".")[-1], []).append(name)
    reasons = {}
    for name, reason in REASONS.items():
        reasons.setdefault(reason, []).append(name)

    def names(own):
        return ", ".join(f"``{name}``" for name in sorted(own))

    handled = [(names(own), FAMILIES[module]) for module, own in sorted(modules.items())]
    dense = sorted((names(own), reason) for reason, own in reasons.items())
    return _PAGE.format(handled=rows(handled), dense=rows(dense))


if __name__ == "__main__":
    print(render(), end="")

"""Why some higher-order primitives have no handler, and the page that says so.

``python tests/higher_order/higher_order_page.py > docs/higher_order.rst`` writes the page anew.
"""

import re
import sys
from collections import defaultdict
from typing import NamedTuple

from jaxrewrite._rewrite import handlers


class Group(NamedTuple):
    """Primitives that are left as they are on much the same grounds."""

    title: str
    reasons: dict[tuple[str, ...], str]


GROUPS = [
    Group(
        "Functions that run on the host",
        {
            ("pure_callback", "io_callback"): (
                "The function runs on the host and takes and returns arrays. "
                "Calls that are ordered stay so."
            ),
            ("debug_callback", "debug_print"): (
                "What is shown to the host is an array, as the program would show it "
                "without values. Calls that are ordered stay so."
            ),
            ("buffer_callback",): (
                "The function is given the buffers of its operands on the device."
            ),
            ("inspect_sharding",): (
                "The function is told the sharding of one array; a value may have one for "
                "each leaf."
            ),
        },
    ),
    Group(
        "Kernels and compiled code",
        {
            ("pallas_call", "mpmd_map", "core_map"): (
                "The kernel reads and writes memory in blocks, and the blocks are cut from "
                "arrays of the operands' shapes."
            ),
            ("fusible", "custom_fusion"): (
                "The function is to be fused into a kernel, block by block of its operands."
            ),
            ("cudnn_fusion",): (
                "cuDNN compiles the body into one kernel if it knows the pattern, which it "
                "would no longer be."
            ),
            (
                "dot_product_attention_fwd",
                "dot_product_attention_fwd_wrapper",
                "dot_product_attention_bwd",
                "dot_product_attention_bwd_wrapper",
            ): (
                "A kernel of cuDNN. A function of the scores may be compiled into it, and "
                "the scores exist only there."
            ),
            ("ffi_call", "tpu_custom_call", "mosaic_gpu_p"): (
                "Compiled code, which takes arrays of fixed shapes and layouts."
            ),
            ("call_exported",): (
                "The program was exported for arrays of fixed shapes, and its jaxpr is gone."
            ),
        },
    ),
    Group(
        "Inside kernels only",
        {
            (
                "emit_pipeline",
                "inline_mgpu",
                "inline_mgpu_p",
                "jaxpr_call",
                "parallel_loop",
                "pipeline_body",
                "run_scoped",
            ): "Occurs in kernels only, and those are not rewritten.",
            (
                "thunky.async_start",
                "thunky.call_jax",
                "thunky.call_thunky_nested",
                "thunky.collective_group",
                "thunky.cond",
                "thunky.while",
            ): (
                "A step in a list of commands to a GPU, which read and write buffers in its "
                "memory."
            ),
        },
    ),
    Group(
        "Functions of scalars",
        {
            ("reduce", "reduce_window"): (
                "The jaxpr combines two elements into one. It is no body that a value could "
                "enter."
            ),
            (
                "scatter",
                "scatter-add",
                "scatter-max",
                "scatter-min",
                "scatter-mul",
                "scatter-sub",
            ): (
                "The jaxpr combines an element with its update. It is no body that a value "
                "could enter."
            ),
            ("select_and_scatter",): (
                "One jaxpr chooses between two elements, the other adds two up. Neither is "
                "a body that a value could enter."
            ),
            ("select_and_gather_add", "select_and_scatter_add"): (
                "The primitive among the parameters compares two elements."
            ),
            ("schur",): (
                "The function would choose among eigenvalues; JAX accepts it and doesn't "
                "use it."
            ),
            ("random_seed", "random_wrap", "prng_join"): (
                "The functions are those of a random number generator, on the bits of a key."
            ),
        },
    ),
    Group(
        "Derivatives",
        {
            ("custom_lin",): (
                "Stands for the backward rule of a ``jax.custom_vjp`` until JAX transposes "
                "it, and can't be evaluated."
            ),
            ("remat_opt",): (
                "Holds both a ``jax.custom_vjp`` function and its forward rule. JAX chooses "
                "between them later, so both must return the same arrays."
            ),
        },
    ),
    Group(
        "Opaque to a rewriting",
        {
            ("call_hi_primitive_linearized",): (
                "Stands for the backward rule of an object that differentiates itself, "
                "until JAX transposes it, and can't be evaluated."
            ),
            ("call",): "No function of JAX makes it any more.",
            ("custom_partitioning",): (
                "The functions that say how the call is partitioned expect one sharding an "
                "array."
            ),
        },
    ),
    Group(
        "References",
        {
            ("run_state",): (
                "The body changes references in place, and what they hold are arrays."
            ),
            ("new_ref", "get", "swap", "addupdate"): (
                "What a reference holds is an array, so a value that is written to one is "
                "made dense first."
            ),
        },
    ),
]

REASONS = {
    name: reason
    for group in GROUPS
    for names, reason in group.reasons.items()
    for name in names
}

# Of the JAX versions that are supported, the primitives that only some have.
ONLY_OLDER = frozenset(
    {"call", "closed_call", "core_map", "fusible", "inline_mgpu_p", "jaxpr_call"}
)
ONLY_NEWER = frozenset(
    {"inline_mgpu", "program_order"} | {name for name in REASONS if "thunky." in name}
)


_HEAD = """\
.. Written by tests/higher_order/higher_order_page.py; change that, or what it reads, and run
   python tests/higher_order/higher_order_page.py > docs/higher_order.rst

Higher-order primitives
=======================

A higher-order primitive has a program among its parameters: the body of a loop, the
branches of a ``lax.cond``, the function under a ``jax.jit``, the rule of a derivative,
a function to be called on the host. This page lists them, with what becomes of a value
that meets one. A test compares it with all primitives of the JAX that is installed, so
none is missing.

What becomes of an equation with a value among its operands is decided in the same order as
for any other primitive:

1. the **rules** that are registered for the primitive and the types of its operands;
2. the **handler** of the primitive, if it is in the table below. The program inside is
   rewritten as the one around it is: values go in, and may come out;
3. the type's own ``default``;
4. the values are made **dense**, as the ``materialise`` policy says, and the equation
   stays as it is, with the program inside it. Results, derivatives, effects and their
   order are those of the dense program.

A rule for a higher-order primitive is given the equation as it is staged, after dead code is
dropped: operands of a loop, and slots of its carry, that no result depends on are gone, and
so are the equations of its body that only they need. Such a rule takes ``*operands``, and
reads from the parameters what each of them is.

An equation that no value meets stays as it is, unless a rule on dense operands applies to
it. Such rules reach into the programs of primitives with a handler, and into no others.

Where two structures meet, in the branches of a conditional or before and after a turn of a
loop, the result is their *join*: the same structure if they are equal; else, where they
differ only in fields that are values themselves, the join of those fields; else what the
types' ``join`` gives; else dense. A loop's carry is the least fixed point of joining.

A program may say where an array is to be: by ``in_shardings`` and ``out_shardings`` of a
``jax.jit`` inside it, by ``jax.device_put``, or by a sharding constraint. Each leaf of a value is
then placed as ``Value.leaf_specs`` says; where that says nothing of any leaf, the user is
warned. Within a ``jax.shard_map``, a tiled ``all_gather``, and a ``ppermute`` that leaves out no
device, move the leaves.

*Older JAX* marks primitives that newer versions lack, *newer JAX* those that older ones lack.

With a handler
--------------

"""

_WITHOUT = """\
Without a handler
-----------------

Values are made dense here, unless a rule or a ``default`` says otherwise. A rule may be
registered for any of these primitives.

"""


def render():
    """The text of docs/higher_order.rst, the same on every version of JAX."""
    by_module = defaultdict(list)
    for name, handler in handlers.items():
        by_module[handler.__module__].append(name)
    rows = [
        (_names(names), f"``{module.removeprefix('jaxrewrite.')}``", _summary(module))
        for module, names in sorted(by_module.items())
    ]
    text = _HEAD + _table(("Primitives", "Module", "What it is for"), rows) + _WITHOUT
    for group in GROUPS:
        rows = [(_names(names), reason) for names, reason in group.reasons.items()]
        text += f"{group.title}\n{'~' * len(group.title)}\n\n"
        text += _table(("Primitives", "Why"), rows)
    return text.rstrip("\n") + "\n"


def _summary(module):
    """The first line of a module's docstring, as reStructuredText."""
    line = sys.modules[module].__doc__.splitlines()[0]
    return re.sub("`([^`]+)`", r"``\1``", line)


def _names(names):
    return ", ".join(map(_name, sorted(names)))


def _name(name):
    if name in ONLY_OLDER:
        return f"``{name}`` (older JAX)"
    if name in ONLY_NEWER:
        return f"``{name}`` (newer JAX)"
    return f"``{name}``"


def _table(head, rows):
    lines = [".. list-table::", "   :header-rows: 1", ""]
    for row in [head, *rows]:
        bullets = ["   * -"] + ["     -"] * (len(row) - 1)
        lines += [f"{bullet} {cell}" for bullet, cell in zip(bullets, row, strict=True)]
    return "\n".join(lines) + "\n\n"


if __name__ == "__main__":
    print(render(), end="")

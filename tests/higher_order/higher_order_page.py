"""The reasons why some higher-order primitives have no handler, and the page with them.

``python tests/higher_order/higher_order_page.py > docs/higher_order.rst`` writes the page anew.
"""

import re
import sys
from collections import defaultdict
from typing import NamedTuple

from jaxrewrite._core.rewrite import handlers


class Group(NamedTuple):
    """Primitives that stay as they are for similar reasons."""

    title: str
    reasons: dict[tuple[str, ...], str]


GROUPS = [
    Group(
        "Functions that run on the host",
        {
            ("pure_callback", "io_callback"): (
                "The function runs on the host and takes and returns arrays. "
                "Ordered calls stay ordered."
            ),
            ("debug_callback", "debug_print"): (
                "The host gets an array, as it would without values. Ordered calls stay "
                "ordered."
            ),
            ("buffer_callback",): (
                "The function gets the buffers of its operands on the device."
            ),
            ("inspect_sharding",): (
                "The function gets the sharding of one array; a value may have one for "
                "each leaf."
            ),
        },
    ),
    Group(
        "Kernels and compiled code",
        {
            ("pallas_call", "mpmd_map", "core_map"): (
                "The kernel reads and writes memory in blocks, which are parts of arrays "
                "of the operands' shapes."
            ),
            ("fusible", "custom_fusion"): (
                "The function is fused into a kernel that works on blocks of its operands."
            ),
            ("cudnn_fusion",): (
                "cuDNN compiles the body into one kernel if it knows the pattern. It would "
                "not know the rewritten body."
            ),
            (
                "dot_product_attention_fwd",
                "dot_product_attention_fwd_wrapper",
                "dot_product_attention_bwd",
                "dot_product_attention_bwd_wrapper",
            ): (
                "It is a kernel of cuDNN. A function of the scores may be compiled into it, "
                "and the scores exist only there."
            ),
            ("ffi_call", "tpu_custom_call", "mosaic_gpu_p"): (
                "It is compiled code for arrays of fixed shapes and layouts."
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
            ): "It occurs in kernels only, and kernels are not rewritten.",
            (
                "thunky.async_start",
                "thunky.call_jax",
                "thunky.call_thunky_nested",
                "thunky.collective_group",
                "thunky.cond",
                "thunky.while",
            ): (
                "It is one of a list of commands to a GPU, which read and write buffers in "
                "its memory."
            ),
        },
    ),
    Group(
        "Functions of scalars",
        {
            ("reduce", "reduce_window"): (
                "The jaxpr combines two elements into one. A value cannot enter it."
            ),
            (
                "scatter",
                "scatter-add",
                "scatter-max",
                "scatter-min",
                "scatter-mul",
                "scatter-sub",
            ): ("The jaxpr combines an element with its update. A value cannot enter it."),
            ("select_and_scatter",): (
                "One jaxpr chooses between two elements, the other adds two elements. A "
                "value cannot enter either."
            ),
            ("select_and_gather_add", "select_and_scatter_add"): (
                "The primitive among the parameters compares two elements."
            ),
            ("schur",): (
                "The function would choose among eigenvalues. JAX accepts it but does not "
                "use it."
            ),
            ("random_seed", "random_wrap", "prng_join"): (
                "The functions belong to a random number generator and act on a key's bits."
            ),
        },
    ),
    Group(
        "Derivatives",
        {
            ("custom_lin",): (
                "It stands for the backward rule of a ``jax.custom_vjp`` until JAX "
                "transposes it, and can't be evaluated."
            ),
            ("remat_opt",): (
                "It holds both a ``jax.custom_vjp`` function and its forward rule. JAX "
                "chooses between them later, so both must return the same arrays."
            ),
        },
    ),
    Group(
        "Opaque to a rewriting",
        {
            ("call_hi_primitive_linearized",): (
                "It stands for the backward rule of an object that differentiates itself, "
                "until JAX transposes it, and can't be evaluated."
            ),
            ("call",): "No function of JAX makes it any more.",
            ("custom_partitioning",): (
                "The functions that partition the call expect one sharding for each array."
            ),
        },
    ),
    Group(
        "References",
        {
            ("run_state",): (
                "The body changes references in place, and references hold arrays."
            ),
            ("new_ref", "get", "swap", "addupdate"): (
                "A reference holds an array, so a value becomes dense before it is written "
                "to one."
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

# The primitives that only some of the supported releases of JAX have.
ONLY_OLDER = frozenset(
    {"call", "closed_call", "core_map", "fusible", "inline_mgpu_p", "jaxpr_call"}
)
ONLY_NEWER = frozenset(
    {"inline_mgpu", "polynomial", "program_order"}
    | {name for name in REASONS if "thunky." in name}
)


_HEAD = """\
.. Written by tests/higher_order/higher_order_page.py; change that, or what it reads, and run
   python tests/higher_order/higher_order_page.py > docs/higher_order.rst

Higher-order primitives
=======================

A higher-order primitive has a program among its parameters: the body of a loop, the
branches of a ``lax.cond``, the function under a ``jax.jit``, the rule of a derivative, or
a function to call on the host. This page lists these primitives, and what happens to a value
that meets one. A test compares the page with all primitives of the installed JAX, so none is
missing.

If an equation has a value among its operands, these are tried in order, as for any other
primitive:

1. the **rules** that are registered for the primitive and the types of its operands;
2. the **handler** of the primitive, if it is in the table below. It rewrites the program inside
   in the same way as the program around it: values go in, and may come out;
3. the type's own ``default``;
4. **dense** values, as the ``materialise`` policy allows. The equation stays as it is, with the
   program inside it. Results, derivatives, effects and their order are those of the dense
   program.

A rule for a higher-order primitive gets the staged equation, after dead code is dropped. A loop
has lost the operands, and the slots of its carry, that no result depends on, and the equations
of its body that only these need. Such a rule takes ``*operands``, and reads from the parameters
what each operand is.

An equation that no value meets stays as it is, unless a rule for dense operands applies to
it. Such rules reach into the programs of primitives with a handler, and not into others.

Two structures may meet, in the branches of a conditional or before and after a turn of a loop.
The result is their *join*: the same structure, if they are equal; the join of their fields that
are values, if they differ only in these; else the result of the types' ``join``; else dense. A
loop's carry is the least fixed point of joining. If it starts as an array of two axes or more
that the program has just filled with zeros, and a turn returns a value or adds one to it, the
zeros become a value of that structure, provided that it is zero where its leaves are, as the program
of its ``materialise`` tells, or that its ``join`` takes an array or an ``extend.Zeros``. So do zeros that a turn or one branch of a conditional
returns, and a value that is zero for any leaves, such as a ``values.Zero``; and
``jnp.where`` of one truth value joins two values as a conditional does. Where the type can't be
zero, and for all other numbers that a program writes, they are the array that they are, with which
the type's ``join`` may go on, as that of an annotation does.

``jnp.pad`` and ``jax.lax.pad`` with zeros that the program writes, also between the elements of a stack, pad the leaves, where the type
has leaves for each element and an element is zero where they are. So ``jax.lax.associative_scan`` of products keeps stacks of matrices
whose products are of their own type: ``Diagonal``, ``ScalarMatrix``, ``BlockDiagonal``, ``Circulant``, ``Triangular``, and ``LowRank`` from three elements on.
A stack of products of another structure, as of ``Banded`` matrices, becomes dense beside the first matrix, and so does
one that is not zero for any leaves, such as a stack of permutations.

A program may place an array: by ``in_shardings`` and ``out_shardings`` of a ``jax.jit`` inside
it, by ``jax.device_put``, or by a sharding constraint. Each leaf of a value is then placed as
``Value.leaf_specs`` defines. If the type does not define it for any leaf, the user is
warned. Within a ``jax.shard_map``, a tiled ``all_gather``, and a ``ppermute`` that leaves out no
device, move the leaves; with ``check_vma=False``, where nothing tells which leaves are the same on
all devices, a value that has such leaves becomes dense for the ``all_gather``. A result of a
``jax.shard_map`` is dense if a leaf may differ along a mesh axis that splits the array and not the
leaf, such as a scale that each device changed. Annotations around it, such as units, stay.

``polynomial``, ``unstack``, ``psum``, ``pmax`` and ``pmin`` have no program among their parameters. The
first stands for a loop of products and sums, the second for slices, and their handlers write these.
The others are reductions where they are over axes that ``jax.vmap`` has mapped.

*Older JAX* marks primitives that newer releases lack, *newer JAX* those that older ones lack.

With a handler
--------------

"""

_WITHOUT = """\
Without a handler
-----------------

Values are made dense here, unless a rule or a ``default`` applies. You can register a rule for
any of these primitives.

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

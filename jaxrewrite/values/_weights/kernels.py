"""`gpu_kernels`: rules by which products of quantised weights with few rows are Pallas kernels.

Such a product takes as long as it takes to read the weight. Where a compiler makes the whole
weight dense first, it moves the floats as well. The kernel reads the codes and nothing else,
and makes one tile of them dense at a time, in registers.

Pallas is loaded when a kernel is used for the first time, and only where there is a GPU.
"""

from __future__ import annotations

import concurrent.futures
import functools
import math
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import ArrayLike

import jaxrewrite

from .._base.contract import transpose
from .._base.structured import fields_of
from . import products
from .nf4 import LEVELS, NF4
from .packed import bytes_of, nibble
from .quantised import Quantised
from .terms import Terms, is_scaled_after, rows_of, terms_of


gpu_kernels: jaxrewrite.Rules = jaxrewrite.Rules()
"""Rules for products of `Quantised` and `NF4` with few rows, by a kernel for NVIDIA's GPUs.

Where all entries that are summed share a scale, XLA reads the integers of a weight in the
product itself. Where they do not, and with the levels of `NF4`, it writes the weight as floats
first, and reads them again. With ``transform(fn, rules=gpu_kernels)`` a product of 1 to 16
rows with such a weight is a kernel that reads the codes and no floats, where all of this holds:

* the program runs on one NVIDIA GPU of compute capability 8.0 or more;
* the weight is a matrix of at least ``2**22`` entries, without ``zero`` and ``activations``
  (integers that are neither of 8 nor of 4 bits are unpacked to 8 first);
* its blocks consist of a multiple of 32 entries along the axis that is summed, and the
  other axis has a multiple of 64;
* the dtypes are float32, bfloat16 or float16, and the precision is the default one.

Everywhere else, and where the kernel does not compile, products are what they are without
these rules. Whether a kernel compiles, and gives the numbers of the dense product, is checked
at its first use in a process, which takes about a second. A warning says if it does not.

Derivatives are those of the product without these rules. So are products under `jax.vmap` if
the weight has a batch axis, or if all rows together are more than 16.

The kernels agree with dense products in Pallas's interpreter and on an H200. There they take 0.4
to 0.7 of the time of other products with one row, but **more time with 8 rows of** ``NF4``, **and
with weights of 4 bits that were transposed outside of the program**, which is why they are not the
default. ``python -m bench quantised`` measures them on a machine with a GPU.

Examples
--------
>>> import jax.numpy as jnp, jaxrewrite
>>> from jaxrewrite.values import NF4, gpu_kernels
>>> v = NF4.quantise(jnp.ones((64, 4)))
>>> jaxrewrite.transform(jnp.matmul, rules=gpu_kernels)(jnp.ones((1, 64)), v)
Array([[64., 64., 64., 64.]], dtype=float32)
"""

PLATFORM = "cuda"
# The least weight for which reading it takes longer than to start a kernel.
SMALLEST = 2**22
MOST_ROWS = 16
# Up to so many rows the products are sums of multiplied columns. Tensor cores take 16 rows.
FEW_ROWS = 4
# How many rows and columns of the stored codes are a tile, at most. The first one is summed.
DEPTH, COLUMNS = 64, 128
LEAST_DEPTH, LEAST_COLUMNS = 16, 32
# How many programs there are along the summed axis, at most, and altogether. A GPU runs some
# hundred at once.
SPLITS, PROGRAMS = 16, 1024
DTYPES = ("float32", "bfloat16", "float16")


class Plan(NamedTuple):
    """How a kernel computes a product: what it reads, and in tiles of which size.

    ``is_transposed`` tells whether the last axis of the codes is summed. ``parts`` is the
    number of codes in a byte.
    """

    rows: int
    is_transposed: bool
    parts: int
    depth: int
    columns: int
    splits: int

    @property
    def rows_of_tile(self) -> int:
        few = 2 ** (self.rows - 1).bit_length()
        return few if self.rows <= FEW_ROWS else MOST_ROWS

    @property
    def outputs(self) -> int:
        """How many columns of the result a stored column has."""
        return 1 if self.is_transposed else self.parts


@gpu_kernels.register("dot_general", exchange="types")
def _(x: Quantised | NF4, y: ArrayLike, **params) -> Any:
    if params["out_sharding"] is not None or not has_gpu():
        return NotImplemented
    v, other, terms = terms_of(x, y, **params)
    other = jnp.asarray(other)
    if plan_of(v, other, terms) is None:
        return NotImplemented
    return multiplied(v, other, terms)


def multiplied(v: Any, x: Any, terms: Terms) -> Any:
    """The product by a kernel on a GPU, with the derivatives of the product elsewhere."""
    elsewhere = functools.partial(products.multiplied, terms=terms)

    @jax.custom_jvp
    def multiply(v: Any, x: Any) -> Any:
        on_gpu = functools.partial(_batched, terms=terms)
        return lax.platform_dependent(v, x, default=elsewhere, **{PLATFORM: on_gpu})

    @multiply.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        return multiply(*primals), jax.jvp(elsewhere, primals, tangents)[1]

    return multiply(v, x)


def _batched(v: Any, x: Any, terms: Terms) -> Any:
    """The kernel, which `jax.vmap` calls with all rows of a batch together."""

    @jax.custom_batching.custom_vmap
    def multiply(v: Any, x: Any) -> Any:
        plan = plan_of(v, x, terms)
        if plan is None:
            return products.multiplied(v, x, terms)
        return product(v, x, terms, plan)

    @multiply.def_vmap
    def _(size: int, in_batched: Any, v: Any, x: Any) -> Any:
        if any(jax.tree.leaves(in_batched[0])):
            axes = jax.tree.map(lambda is_batched: 0 if is_batched else None, in_batched)
            each = functools.partial(products.multiplied, terms=terms)
            return jax.vmap(each, axes, axis_size=size)(v, x), True
        label = ("batch", len(terms.x))
        rows = terms._replace(x=(label, *terms.x), out=(label, *terms.out))
        return _batched(v, x, rows), True

    return multiply(v, x)


# --- which kernel -----------------------------------------------------------------------


def plan_of(v: Any, x: Any, terms: Terms) -> Plan | None:
    """The plan of the kernel, or ``None`` where the product is better off without it."""
    if v.size < SMALLEST or jax.device_count() > 1:
        return None
    plan = plan_for(v, x, terms)
    is_fused_by_xla = isinstance(v, Quantised) and is_scaled_after(v, terms)
    if plan is None or is_fused_by_xla or not works(type(v), plan, x.dtype):
        return None
    return plan


def has_gpu() -> bool:
    """Whether the default device is a GPU for which Triton compiles tensor cores."""
    if jax.default_backend() != "gpu":
        return False
    capability = getattr(jax.devices()[0], "compute_capability", "")
    return capability.replace(".", "").isdigit() and float(capability) >= 8


def plan_for(v: Any, x: Any, terms: Terms) -> Plan | None:
    """The tiles of a product, or ``None`` if the kernel does not fit it."""
    rows = rows_of(x, terms)
    if not _is_of_kind(v, x, terms) or not 1 <= rows <= MOST_ROWS:
        return None
    is_transposed = terms.v[1] not in terms.out
    (codes, *shared), _ = fields_of(v)
    parts = 1 if codes.dtype == jnp.int8 else 2
    summed = 1 if is_transposed else 0
    stored = list(codes.shape)
    stored[1] //= parts
    runs = [v.shape[summed] // leaf.shape[summed] for leaf in shared]
    run = math.gcd(*runs) // (parts if is_transposed else 1)
    depth = _power_of_two(math.gcd(run, stored[summed]), DEPTH)
    columns = _power_of_two(stored[1 - summed], COLUMNS)
    if codes.shape[1] % parts or depth < LEAST_DEPTH or columns < LEAST_COLUMNS:
        return None
    most = max(PROGRAMS * columns // stored[1 - summed], 1)
    splits = _power_of_two(stored[summed] // depth, min(SPLITS, most))
    return Plan(int(rows), is_transposed, parts, depth, columns, splits)


def _is_of_kind(v: Any, x: Any, terms: Terms) -> bool:
    """Whether a product is one of a matrix of a known format, in known dtypes."""
    if isinstance(v, Quantised) and (v.zero is not None or v.activations is not None):
        return False
    (codes, *shared), _ = fields_of(v)
    is_matrix = v.ndim == 2 and all(jnp.ndim(leaf) == 2 for leaf in shared)
    kept = [label for label in terms.v if label in terms.out]
    is_product = len(kept) == 1 and kept[0] not in terms.x
    is_default = terms.precision in (None, (lax.Precision.DEFAULT,) * 2)
    dtypes = [v.dtype, x.dtype, terms.dtype]
    return (
        isinstance(v, Quantised | NF4)
        and is_matrix
        and is_product
        and is_default
        and v.size > 0
        and codes.dtype in (jnp.int8, jnp.int4, jnp.uint4)
        and all(jnp.dtype(dtype).name in DTYPES for dtype in dtypes)
    )


def _power_of_two(n: int, most: int) -> int:
    """The largest power of two that divides a number and is not above another one."""
    return min(n & -n, 2 ** (most.bit_length() - 1))


# --- the product ------------------------------------------------------------------------


def product(
    v: Any, x: Any, terms: Terms, plan: Plan, *, interpret: bool = False
) -> jax.Array:
    """The product by the kernel. ``interpret`` runs it on any platform."""
    summed, kept = terms.v if not plan.is_transposed else terms.v[::-1]
    free = tuple(label for label in terms.x if label not in terms.v)
    x = transpose(x, terms.x, (*free, summed))
    sizes = x.shape[:-1]
    raw = _called(v, x.reshape(plan.rows, -1), plan, interpret)
    # The parts of the sum are added, and the even columns and the odd ones put together.
    entries = jnp.moveaxis(raw.sum(0)[:, : plan.rows], 0, -1).reshape(*sizes, -1)
    return transpose(entries, (*free, kept), terms.out).astype(terms.dtype)


def _called(v: Any, x: Any, plan: Plan, interpret: bool) -> Any:
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    (codes, *shared), treedef = fields_of(v)
    if plan.parts == 2:
        codes = bytes_of(codes)
    if plan.is_transposed:
        # The two codes of a byte meet an even and an odd entry of a row.
        x = jnp.moveaxis(x.reshape(plan.rows, -1, plan.parts), -1, 0)
    else:
        x = x[None]
    table = [jnp.asarray(LEVELS, jnp.float32)] if isinstance(v, NF4) else []
    columns = codes.shape[0 if plan.is_transposed else 1]
    out = (plan.splits, plan.outputs, plan.rows_of_tile, columns)
    call = pl.pallas_call(
        functools.partial(_kernel, v=treedef, shape=v.shape, plan=plan),
        out_shape=jax.ShapeDtypeStruct(out, jnp.float32),
        grid=(columns // plan.columns, plan.splits),
        compiler_params=triton.CompilerParams(num_warps=4, num_stages=3),
        interpret=interpret,
        name="quantised_product",
    )
    return call(x, codes, *table, *shared)


def _kernel(
    x: Any, codes: Any, *refs: Any, v: Any, shape: Sequence[int], plan: Plan
) -> None:
    """Multiply with some columns of the codes, and sum a part of their rows."""
    from jax.experimental import pallas as pl

    *leaves, out = refs
    table = leaves.pop(0) if len(leaves) == v.num_leaves else None
    length = codes.shape[1 if plan.is_transposed else 0] // plan.splits
    first, split = pl.program_id(0) * plan.columns, pl.program_id(1)
    columns = first + jnp.arange(plan.columns)
    # A tile has a number of rows that is a power of two. Those in excess repeat the last one.
    rows = jnp.minimum(jnp.arange(plan.rows_of_tile), plan.rows - 1)

    def step(i: Any, totals: Any) -> Any:
        start = split * length + i * plan.depth
        tile = pl.ds(start, plan.depth), pl.ds(first, plan.columns)
        stored = codes[tile[::-1] if plan.is_transposed else tile]
        new = list(totals)
        for part in range(plan.parts):
            q = stored if plan.parts == 1 else nibble(part, stored)
            levels = q if table is None else table[q.astype(jnp.int32)]
            part_of_x, part_of_result = (part, 0) if plan.is_transposed else (0, part)
            sums = _times(x, part_of_x, rows, tile[0], levels, plan)
            entry = columns if plan.is_transposed else columns * plan.parts + part
            along = start * plan.parts if plan.is_transposed else start
            scales = _scales(v, leaves, q, shape, along, entry, plan)
            new[part_of_result] = new[part_of_result] + sums * scales[None]
        return tuple(new)

    zeros = jnp.zeros((plan.rows_of_tile, plan.columns), jnp.float32)
    totals = lax.fori_loop(0, length // plan.depth, step, (zeros,) * plan.outputs)
    for where, total in enumerate(totals):
        out[split, where, :, pl.ds(first, plan.columns)] = total


def _times(x: Any, part: int, rows: Any, entries: Any, levels: Any, plan: Plan) -> Any:
    """Multiply a tile of levels with each row."""
    summed = 1 if plan.is_transposed else 0
    tile = x[part, rows, entries]
    if plan.rows <= FEW_ROWS:
        levels = levels.astype(jnp.float32)[None]
        tile = jnp.expand_dims(tile.astype(jnp.float32), 2 - summed)
        return (tile * levels).sum(1 + summed)
    dtype = tile.dtype
    numbers = (((1,), (summed,)), ((), ()))
    return lax.dot_general(
        tile, levels.astype(dtype), numbers, preferred_element_type=jnp.float32
    )


def _scales(
    v: Any,
    leaves: Sequence[Any],
    q: Any,
    shape: Sequence[int],
    start: Any,
    entries: Any,
    plan: Plan,
) -> Any:
    """The scale of each column in a tile whose entries along a column share one."""
    summed = 1 if plan.is_transposed else 0

    def each(leaf: Any) -> Any:
        block = start // (shape[summed] // leaf.shape[summed])
        blocks_across = entries // (shape[1 - summed] // leaf.shape[1 - summed])
        scales = leaf[
            (blocks_across, block) if plan.is_transposed else (block, blocks_across)
        ]
        return jnp.expand_dims(scales, summed)

    value = v.unflatten([q, *map(each, leaves)])
    return value.scale_of_blocks().astype(jnp.float32).reshape(-1)


# --- whether it works -------------------------------------------------------------------


def works(kind: Any, plan: Plan, dtype: Any) -> bool:
    """Whether a kernel of this kind compiles here, and gives the numbers of a dense product."""
    is_few = plan.rows <= FEW_ROWS
    return _works(kind, is_few, plan.is_transposed, plan.parts, jnp.dtype(dtype))


@functools.cache
def _works(kind: Any, is_few: bool, is_transposed: bool, parts: int, dtype: Any) -> bool:
    labels = ("n", "k") if is_transposed else ("k", "n")
    terms = Terms(labels, ("m", "k"), ("m", "n"), jnp.dtype("float32"), None)
    numbers = np.random.default_rng(0)

    def both() -> tuple[Any, Any]:
        w = jnp.asarray(numbers.normal(size=(256, 256)), dtype)
        x = jnp.asarray(numbers.normal(size=(2 if is_few else 7, 256)), dtype)
        block = (1, 64) if is_transposed else (64, 1)
        bits = {} if kind is NF4 else {"bits": 8 // parts}
        v = kind.quantise(w, block=block, **bits)
        plan: Any = plan_for(v, x, terms)
        got = jax.jit(lambda v, x: product(v, x, terms, plan))(v, x)
        dense = np.asarray(v.materialise(), np.float64)
        want = np.asarray(x, np.float64) @ (dense.T if is_transposed else dense)
        return np.asarray(got), want

    try:
        # Another thread traces nothing, and has none of the settings that are in force here.
        with concurrent.futures.ThreadPoolExecutor(1) as threads:
            got, want = threads.submit(both).result()
    except Exception as error:  # noqa: BLE001
        # The errors of JAX, Triton and the driver have no common class.
        return _said(f"does not compile or run here: {error}")
    # Tensor cores round to ten bits.
    if not np.allclose(got, want, rtol=0, atol=2e-2 * abs(want).max()):
        return _said("gives other numbers here than a dense product")
    return True


def _said(why: str) -> bool:
    warnings.warn(
        f"jaxrewrite.values.gpu_kernels: a kernel {why}. Products are made without it.",
        RuntimeWarning,
        stacklevel=3,
    )
    return False

"""Products with quantised weights of 4096 x 4096, over the number of rows.

Dense is the product with the float32 weight, and *bfloat16* with the same weight in bfloat16.
*Dequantised* is the same product with the weight made dense by hand, in the program. *Bytes*
is the least time, relative to dense, that reading the weight allows: its bytes over those of
the dense one. The temporaries are from XLA's memory analysis. *Rounded rows* are those of
``activations="dynamic"``: each row of the other operand is rounded to 8 bits as well, and the
product is one of integers. *Qwix* is `Qwix <https://github.com/google/qwix>`_ with the same format, in the
same process, if it is installed.

On a GPU the products are in bfloat16, and *implicit* is with ``rules=gpu_kernels``. Each figure
is the time of one of many products in a row, each with its own weight, since a call takes longer
to start than one product takes. The line below it has the limit by bytes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxrewrite
from jaxrewrite.values import GGUF, NF4, Float8, Microscaled, Quantised, gpu_kernels

from . import measure
from .peer import qwix_products
from .suite import Case, Measurement, Options, Part, Target


def superblocks(w: jax.Array) -> Any:
    """Weights of any numbers in the format Q4_K, with blocks along the columns."""
    rows, columns = w.shape
    numbers = np.random.default_rng(0)
    blocks = numbers.integers(0, 256, (rows, columns // 256, 144), np.uint8)
    blocks[..., :4] = np.array([1 / 1000, 1 / 50], np.float16).view(np.uint8)
    return GGUF.from_bytes(blocks.reshape(rows, -1), "Q4_K")


FORMATS: dict[str, Callable[[jax.Array], Any]] = {
    "int8": lambda w: Quantised.quantise(w, axis=1),
    "int4": lambda w: Quantised.quantise(w, 4, block=64),
    "NF4": NF4.quantise,
    "3 bits": lambda w: Quantised.quantise(w, 3, block=64),
    "fp8": lambda w: Float8.quantise(w, axis=1),
    "mxfp4": Microscaled.quantise,
    "Q4_K of GGUF": superblocks,
    "int8, rounded rows": lambda w: Quantised.quantise(w, axis=1, activations="dynamic"),
}
# Those with a target. The others are reported.
MAIN = ("int8", "int4", "NF4")
# Those in the figure, which would be long with all of them.
DRAWN = (*MAIN, "int8, rounded rows")
# How far a product may be from the dequantised one, relative to the largest entry: rows that
# are rounded to 8 bits differ by that.
TOLERANCE = {"int8, rounded rows": 3e-2}
ROWS = (1, 2, 4, 8, 16, 64, 512)


def _limit(name: str, rows: int) -> float:
    """The target relative to dense."""
    if name == "int8":
        return 0.75 if rows == 1 else 0.45 if rows <= 8 else 0.75 if rows <= 64 else 1.1
    return 1.0 if 2 <= rows <= 64 else 1.2


def quantity(name: str, rows: int) -> str:
    return f"{name}, {rows} row{'s' if rows > 1 else ''}"


def product(x: jax.Array, w: Any) -> jax.Array:
    return x @ w


def dequantised(x: jax.Array, v: Any) -> jax.Array:
    return x @ v.materialise()


def run(options: Options, progress: Callable[[str], None]) -> Iterator[Measurement]:
    if jax.default_backend() == "gpu":
        yield from on_gpu(options, progress)
        return
    n = options.of(1024, 4096, 4096)
    repeats = options.repeats or options.of(2, 9, 25)
    numbers = np.random.default_rng(0)
    w = jnp.asarray(numbers.normal(size=(n, n)), jnp.float32)
    half = w.astype(jnp.bfloat16)
    implicit = jaxrewrite.transform(product, materialise="forbid")
    qwix, case = qwix_products(), Case("quantised", f"{n} x {n}")
    if qwix is None:
        progress("Qwix is not installed: python -m pip install -e '.[peers]'")
    for rows in options.of((1,), ROWS, ROWS):
        x = jnp.asarray(numbers.normal(size=(rows, n)), jnp.float32)
        for name, make in FORMATS.items():
            progress(quantity(name, rows))
            v = jax.jit(make)(w)
            programs = {
                "dense": (product, x, w),
                "implicit": (implicit, x, v),
                "dequantised": (dequantised, x, v),
                "bfloat16": (product, x.astype(jnp.bfloat16), half),
            }
            if qwix is not None and name in qwix.FORMATS:
                programs["qwix"] = qwix.product, x, qwix.quantised(name, w)
            compiled = {
                variant: jax.jit(fn).lower(*operands).compile()
                for variant, (fn, *operands) in programs.items()
            }
            calls = {
                variant: lambda call=compiled[variant], operands=operands: call(*operands)
                for variant, (_, *operands) in programs.items()
            }
            got, want = calls["implicit"](), calls["dequantised"]()
            np.testing.assert_allclose(
                got, want, rtol=0, atol=TOLERANCE.get(name, 1e-4) * float(abs(want).max())
            )
            if "qwix" in programs:
                _, *operands = programs["qwix"]
                got, want = calls["qwix"](), qwix.dequantised(*operands)
                np.testing.assert_allclose(got, want, 0, 1e-4 * float(abs(want).max()))
            samples = measure.interleaved(calls, repeats)
            what = quantity(name, rows)
            yield from case.timed(what, samples)
            yield from case.exact(
                f"{what}: bytes", {"dense": 4 * n * n, "implicit": v.nbytes}, "B"
            )
            yield from case.exact(
                f"{what}: temporaries",
                {
                    variant: measure.said_by_xla(compiled[variant])["temporaries"]
                    for variant in programs
                },
                "B",
            )


# --- on a GPU ---------------------------------------------------------------------------

GPU_ROWS = (1, 4, 8, 16, 64, 4096)
# The weights of all products together are larger than a cache.
IN_A_ROW = 32


def _gpu_limit(name: str, rows: int) -> float:
    """The target relative to dense, in bfloat16."""
    if rows > 16:
        return 1.1
    return 0.7 if name == "int8" else 0.45


def on_a_gpu(name: str, rows: int) -> str:
    return f"{quantity(name, rows)}, on a GPU"


def in_a_row(x: jax.Array, weights: list[Any]) -> jax.Array:
    for w in weights:
        x = x @ w
    return x


def dequantised_in_a_row(x: jax.Array, weights: list[Any]) -> jax.Array:
    return in_a_row(x, [v.materialise() for v in weights])


def on_gpu(options: Options, progress: Callable[[str], None]) -> Iterator[Measurement]:
    """The same, for many products in one program. It runs on any platform."""
    n = options.of(256, 4096, 4096)
    count = options.of(2, IN_A_ROW, IN_A_ROW)
    repeats = options.repeats or options.of(2, 25, 101)
    keys = jax.random.split(jax.random.key(0), count)
    # The results of all products have the magnitude of the first operand.
    weights = [jax.random.normal(key, (n, n), jnp.bfloat16) / n**0.5 for key in keys]
    with_kernels = jaxrewrite.transform(in_a_row, rules=gpu_kernels, materialise="forbid")
    without = jaxrewrite.transform(in_a_row, materialise="forbid")
    for name in MAIN:
        make = jax.jit(FORMATS[name])
        values = [make(w) for w in weights]
        for rows in options.of((1,), GPU_ROWS, GPU_ROWS):
            what = on_a_gpu(name, rows)
            progress(what)
            x = jax.random.normal(keys[0], (rows, n), jnp.bfloat16)
            programs: dict[str, Any] = {
                "dense": (in_a_row, weights),
                "implicit": (with_kernels, values),
                "without kernels": (without, values),
                "dequantised": (dequantised_in_a_row, values),
            }
            compiled = {
                variant: jax.jit(fn).lower(x, operands).compile()
                for variant, (fn, operands) in programs.items()
            }
            calls = {
                variant: functools.partial(compiled[variant], x, operands)
                for variant, (_, operands) in programs.items()
            }
            want = np.asarray(calls["dequantised"](), np.float32)
            for variant in ("implicit", "without kernels"):
                got = np.asarray(calls[variant](), np.float32)
                np.testing.assert_allclose(got, want, rtol=0, atol=0.1 * abs(want).max())
            case = Case("quantised", f"{n} x {n}, bfloat16")
            samples = measure.interleaved(calls, repeats)
            each = {
                variant: [time / count for time in times]
                for variant, times in samples.items()
            }
            yield from case.timed(what, each)
            bytes_read = {"dense": 2 * n * n, "implicit": values[0].nbytes}
            yield from case.exact(f"{what}: bytes", bytes_read, "B")
            temporaries = {
                variant: measure.said_by_xla(compiled[variant])["temporaries"]
                for variant in programs
            }
            yield from case.exact(f"{what}: temporaries", temporaries, "B")


TARGETS = {
    **{quantity(name, rows): Target(_limit(name, rows)) for name in MAIN for rows in ROWS},
    **{
        on_a_gpu(name, rows): Target(_gpu_limit(name, rows))
        for name in MAIN
        for rows in GPU_ROWS
    },
}


PART = Part(
    "quantised",
    "Quantised weights",
    __doc__ or "",
    "dense",
    run,
    TARGETS,
    [quantity(name, rows) for name in DRAWN for rows in (1, 8, 64)],
)

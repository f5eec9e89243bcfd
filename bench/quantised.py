"""Products with quantised weights of 4096 x 4096, over the number of rows.

Dense is the product with the float32 weight, and *bfloat16* with the same weight in bfloat16.
*Dequantised* is the same product with the weight made dense by hand, in the program. *Bytes*
is the least time, relative to dense, that reading the weight allows: its bytes over those of
the dense one. The temporaries are from XLA's memory analysis. *Rounded rows* are those of
``activations="dynamic"``: each row of the other operand is rounded to 8 bits as well, and the
product is one of integers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxrewrite
from jaxrewrite.values import NF4, Float8, Quantised

from . import measure
from .suite import Case, Measurement, Options, Part, Target


FORMATS: dict[str, Callable[[jax.Array], Any]] = {
    "int8": lambda w: Quantised.quantise(w, axis=1),
    "int4": lambda w: Quantised.quantise(w, 4, block=64),
    "NF4": NF4.quantise,
    "3 bits": lambda w: Quantised.quantise(w, 3, block=64),
    "fp8": lambda w: Float8.quantise(w, axis=1),
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
    n = options.of(1024, 4096, 4096)
    repeats = options.repeats or options.of(2, 9, 25)
    numbers = np.random.default_rng(0)
    w = jnp.asarray(numbers.normal(size=(n, n)), jnp.float32)
    half = w.astype(jnp.bfloat16)
    implicit = jaxrewrite.transform(product, materialise="forbid")
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
            case = Case("quantised", f"{n} x {n}")
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


PART = Part(
    "quantised",
    "Quantised weights",
    __doc__ or "",
    "dense",
    run,
    {quantity(name, rows): Target(_limit(name, rows)) for name in MAIN for rows in ROWS},
    [quantity(name, rows) for name in DRAWN for rows in (1, 8, 64)],
)

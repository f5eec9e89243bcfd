"""A layer's product, dense against implicit, over its width.

``x @ w`` with 64 rows in x, jitted, for each type that the benchmarks know. Dense is
the product with the matrix as an array; for LoRA, whose matrix changes at each step of
training, it is made within the call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

import jaxrewrite

from . import measure
from .model import check_equal
from .suite import Case, Measurement, Options, Part
from .values import LowRank, Sparse, lora, quantise


ROWS, RANK, DENSITY = 64, 8, 0.01


def cases(width: int) -> dict[str, tuple[Any, bool]]:
    """The value of each type, and whether dense has to be made at each call."""
    keys = jax.random.split(jax.random.key(width), 3)
    w = jax.random.normal(keys[0], (width, width)) / width**0.5
    kept = jnp.where(jax.random.uniform(keys[1], w.shape) < DENSITY, w, 0)
    indices = jnp.argwhere(kept)
    adapted = lora(w, RANK, keys[2])
    return {
        "LoRA": (adapted, True),
        "int8": (quantise(w), False),
        "low rank": (LowRank(adapted.a, adapted.b), False),
        "sparse, 1%": (Sparse(kept[tuple(indices.T)], indices, w.shape), False),
    }


def run(options: Options, progress: Callable[[str], None]) -> Iterator[Measurement]:
    for width in options.of((16,), (256, 1024), (128, 256, 512, 1024, 2048, 4096)):
        x = jax.random.normal(jax.random.key(1), (ROWS, width))
        for name, (value, is_made) in cases(width).items():
            progress(f"{name}, width {width}")
            yield from _case(Case("sizes", name, width), value, is_made, x, options)


def _case(
    case: Case, value: Any, is_made: bool, x: Any, options: Options
) -> Iterator[Measurement]:
    # A sparse matrix stands on the left, as in a solver.
    is_left = isinstance(value, Sparse)
    product = (lambda w, x: w @ x.T) if is_left else (lambda w, x: x @ w)
    implicit = jaxrewrite.transform(product, materialise="forbid")
    if is_made:
        dense = lambda v, x: product(jaxrewrite.materialise(v), x)
        operand = value
    else:
        dense, operand = product, jaxrewrite.materialise(value)
    compiled = {
        "dense": functools.partial(jax.jit(dense).lower(operand, x).compile(), operand, x),
        "implicit": functools.partial(
            jax.jit(implicit).lower(value, x).compile(), value, x
        ),
    }
    check_equal(case.name, {v: call() for v, call in compiled.items()})
    repeats = options.repeats or options.of(2, 30, 60)
    yield from case.timed("wall time", measure.interleaved(compiled, repeats, warm_up=3))
    said = {v: measure.said_by_xla(call.func) for v, call in compiled.items()}
    for quantity, unit in (("FLOPs", ""), ("bytes", "B"), ("memory", "B")):
        yield from case.exact(quantity, {v: s[quantity] for v, s in said.items()}, unit)


PART = Part("sizes", "A product over its width", __doc__ or "", "dense", run)

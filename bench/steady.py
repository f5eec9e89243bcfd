"""What many calls leave behind.

The first programs call a function with new numbers of the same structure, which must not
stage anything and not keep anything. The last one calls a function with 1,000 different
structures. Its programs must go when the function goes. *By hand* is the same function without
values, of which JAX itself keeps a jaxpr for each structure. Bytes are those that Python
allocated and has not freed.
"""

from __future__ import annotations

import functools
import gc
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxrewrite

from .suite import Case, Measurement, Options, Part, Target
from .values import Lora


def run(options: Options, progress: Callable[[str], None]) -> Iterator[Measurement]:
    calls = options.of(20, 1_000, 100_000)
    for name, wrap in {"eager": lambda f: f, "jitted": jax.jit}.items():
        progress(f"{calls} calls, {name}")
        yield from _calls(f"{name} calls", wrap, calls)
    structures = options.of(5, 15, 1_000)
    progress(f"{structures} structures")
    yield from _structures(structures)


def held() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def _calls(name: str, wrap: Callable[[Any], Any], count: int) -> Iterator[Measurement]:
    staged = []

    def model(w: Any, x: Any) -> Any:
        staged.append(1)
        return jnp.tanh(x @ w)

    w = Lora(jnp.ones((16, 16)), jnp.ones((16, 4)), jnp.ones((4, 16)))
    fn, x = wrap(jaxrewrite.transform(model, materialise="forbid")), jnp.ones((8, 16))

    def some_calls(n: int) -> None:
        value = w
        for _ in range(n):
            out = fn(value, x)
            value = Lora(value.w + out[0, 0], value.a, value.b)

    some_calls(10)
    tracemalloc.start()
    some_calls(10)
    before = held()
    some_calls(count)
    kept = held() - before
    tracemalloc.stop()
    case = Case("steady", name, count)
    yield from case.exact("kept a call", {"implicit": kept / count}, "B")
    yield from case.exact("times staged", {"implicit": len(staged)}, "")


def _structures(count: int) -> Iterator[Measurement]:
    case = Case("steady", "structures", count)
    during, after = {}, {}
    for variant in ("by hand", "implicit"):
        _use_structures(variant, count)
        jax.clear_caches()
        jaxrewrite.clear_caches()
        tracemalloc.start()
        before = held()
        during[variant] = (_use_structures(variant, count) - before) / count
        jax.clear_caches()
        after[variant] = (held() - before) / count
        tracemalloc.stop()
    yield from case.exact("kept a structure", during, "B")
    yield from case.exact("kept a structure, the function gone", after, "B")


def _use_structures(variant: str, count: int) -> int:
    """The bytes that are held while the function exists."""
    fn: Any = by_hand
    if variant == "implicit":
        fn = jaxrewrite.transform(lambda w, x: jnp.tanh(x @ w), materialise="forbid")
    # Arrays of NumPy: JAX itself keeps a program for each shape of array that it makes.
    ones = functools.partial(np.ones, dtype=np.float32)
    for n in range(1, count + 1):
        w = Lora(ones((4, n)), ones((4, 2)), ones((2, n)))
        jax.eval_shape(fn, w, ones((8, 4)))
    return held()


def by_hand(v: Lora, x: jax.Array) -> jax.Array:
    return jnp.tanh(x @ v.w + (x @ v.a) @ v.b)


PART = Part(
    "steady",
    "The steady state",
    __doc__ or "",
    "by hand",
    run,
    {"times staged": Target(1, is_ratio=False)},
)

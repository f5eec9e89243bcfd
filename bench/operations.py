"""One operation outside of `jax.jit`, with a value among its operands.

What a user pays at a prompt. The arrays are small, so that it is the dispatch that is
measured; dense is the same function of `jax.numpy` on arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
from jax import lax

import jaxrewrite

from . import measure
from .suite import Case, Measurement, Options, Part, Target
from .values import Lora, zero_like


def operations() -> dict[str, dict[str, Callable[[], Any]]]:
    """By name, the dense and the implicit call of an operation."""
    x, w = jnp.ones((8, 16)), jnp.ones((16, 16))
    value = Lora(w, jnp.ones((16, 4)), jnp.ones((4, 16)))
    zero = zero_like(x)
    add, matmul = jaxrewrite.transform(jnp.add), jaxrewrite.transform(jnp.matmul)
    return {
        "add a zero": {"dense": lambda: jnp.add(x, x), "implicit": lambda: add(x, zero)},
        "matmul by LoRA": {
            "dense": lambda: jnp.matmul(x, w),
            "implicit": lambda: matmul(x, value),
        },
        "the operator @": {"dense": lambda: x @ w, "implicit": lambda: x @ value},
        "bind": {
            "dense": lambda: lax.add(x, x),
            "implicit": lambda: jaxrewrite.bind("add", x, zero),
        },
        "materialise": {
            "dense": lambda: w + value.a @ value.b,
            "implicit": lambda: jaxrewrite.materialise(value),
        },
    }


def run(options: Options, progress: Callable[[str], None]) -> Iterator[Measurement]:
    for name, variants in operations().items():
        progress(name)
        repeats = options.repeats or options.of(3, 1000, 5000)
        samples = measure.interleaved(variants, repeats, warm_up=5)
        yield from Case("operations", name).timed("eager operation", samples)


PART = Part(
    "operations",
    "Eager operations",
    __doc__ or "",
    "dense",
    run,
    {"eager operation": Target(60e-6, is_ratio=False)},
)

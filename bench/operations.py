"""One operation outside of `jax.jit`, with a value among its operands.

This is the cost of an operation at a prompt. The arrays are small, so that the figures show
the dispatch. Dense is the same function of `jax.numpy` on arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
from jax import lax

import jaxrewrite

from . import measure
from .suite import Case, Measurement, Options, Part, Target
from .values import Scaled, zero_like


def operations() -> dict[str, dict[str, Callable[[], Any]]]:
    """The dense and the implicit call of each operation, by name."""
    x, y = jnp.ones((8, 16)), jnp.ones((8, 16))
    zero, value = zero_like(x), Scaled(x, jnp.float32(2.0))
    add, multiply = jaxrewrite.transform(jnp.add), jaxrewrite.transform(jnp.multiply)
    return {
        "jnp.add, a zero": {
            "dense": lambda: jnp.add(x, y),
            "implicit": lambda: add(x, zero),
        },
        "jnp.multiply, a scaled array": {
            "dense": lambda: jnp.multiply(x, y),
            "implicit": lambda: multiply(value, y),
        },
        "Python's operator": {"dense": lambda: x * y, "implicit": lambda: value * y},
        "bind": {
            "dense": lambda: lax.mul(x, y),
            "implicit": lambda: jaxrewrite.bind("mul", value, y),
        },
        "materialise": {
            "dense": lambda: value.x * value.scale,
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

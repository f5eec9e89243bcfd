"""Single operations under pytest-benchmark: ``python -m pytest bench``.

pytest-benchmark has its own statistics, histograms and comparison of runs. ``python -m
bench`` measures the same operations and more, with variants that take turns.
"""

import jax
import pytest

import jaxrewrite

from . import mlp, operations
from .values import Lora


OPERATIONS = [
    pytest.param(call, id=f"{name}: {variant}")
    for name, variants in operations.operations().items()
    for variant, call in variants.items()
]


@pytest.mark.parametrize("call", OPERATIONS)
def test_eager(benchmark, call):
    benchmark(lambda: jax.block_until_ready(call()))


def test_trace(benchmark):
    values = [Lora(*triple) for triple in mlp.weights(24)]

    def trace():
        fn = jaxrewrite.transform(mlp.programs()[0], materialise="forbid")
        return jax.jit(fn).trace(values, mlp.inputs())

    traced = benchmark(trace)
    assert "dot_general" in str(traced.jaxpr)


def test_jitted_call(benchmark):
    values = [Lora(*triple) for triple in mlp.weights(24)]
    fn = jax.jit(jaxrewrite.transform(mlp.programs()[0], materialise="forbid"))
    x = mlp.inputs()
    out = benchmark(lambda: jax.block_until_ready(fn(values, x)))
    assert out.shape == x.shape


def test_flatten(benchmark):
    values = [Lora(*triple) for triple in mlp.weights(24)]
    assert len(benchmark(lambda: jax.tree.leaves(values))) == 72

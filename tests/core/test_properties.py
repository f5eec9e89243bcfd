"""Random programs on random values against the dense program, forward and gradient."""

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_programs import N, operands, program, properties, run
from reference import OWN

import jaxrewrite


def check(steps, kinds, seed):
    rng = np.random.default_rng(seed)
    values = [OWN[kind].value(rng, shape=(N, N)) for kind in kinds]
    transformed = jaxrewrite.transform(lambda *vs: run(steps, *vs), materialise="allow")

    def implicit(vs):
        return jaxrewrite.materialise(transformed(*vs))

    def dense(vs):
        return run(steps, *jaxrewrite.materialise(vs))

    def both(fn):
        def loss(vs):
            out = fn(vs)
            return jnp.sin(out).sum(), out

        return jax.jit(jax.grad(loss, has_aux=True, allow_int=True))(values)

    (got, out), (want, expected) = both(implicit), both(dense)
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5)
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        if g.dtype != jax.dtypes.float0:
            size = np.abs(w).max(initial=0.1)
            np.testing.assert_allclose(g, w, rtol=1e-3, atol=1e-3 * size)


@pytest.mark.parametrize("part", [0, 1])  # for two processes
def test_random_programs(bulk, part):
    @hypothesis.seed(part)
    @properties(12)
    @hypothesis.given(program, operands, st.integers(0, 1000))
    def run_many(steps, kinds, seed):
        check(steps, kinds, seed)

    run_many()


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_many_random_programs(bulk, part):
    @hypothesis.seed(100 + part)
    @properties(700)
    @hypothesis.given(program, operands, st.integers(0, 10_000))
    def run_many(steps, kinds, seed):
        check(steps, kinds, seed)

    run_many()

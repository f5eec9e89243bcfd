"""Random programs on random values against the dense program, forward and gradient."""

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from properties import operands, properties

import jaxrewrite
from jaxrewrite.testing.strategies import programs


def check(program, values):
    transformed = jaxrewrite.transform(program, materialise="allow")

    def implicit(vs):
        return jaxrewrite.materialise(transformed(*vs))

    def dense(vs):
        return program(*jaxrewrite.materialise(vs))

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


def check_many(seed, examples):
    @hypothesis.seed(seed)
    @properties(examples)
    @hypothesis.given(programs(), operands)
    def run_many(program, values):
        check(program, values)

    run_many()


# Without optimisations, XLA's older emitters for a CPU compile some gradients of plain JAX
# programs wrongly, so that these programs, which nobody chose, are compiled with them.
@pytest.mark.parametrize("part", [0, 1])  # for two processes
def test_random_programs(bulk, optimised, part):
    check_many(part, 8)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_many_random_programs(bulk, optimised, part):
    check_many(100 + part, 700)

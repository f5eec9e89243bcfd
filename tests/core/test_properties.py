"""Random programs on random values against the dense program, forward and gradient."""

import hypothesis
import jax
import jax.numpy as jnp
import pytest
from oracle import assert_same_leaves
from properties import operands, properties

import jaxrewrite
from jaxrewrite.testing import assert_same
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
    assert_same(out, expected, 1e-4)
    assert_same_leaves(got, want, 1e-3)


def check_many(seed, examples):
    @hypothesis.seed(seed)
    @properties(examples)
    @hypothesis.given(programs(), operands)
    def run_many(program, values):
        check(program, values)

    run_many()


@pytest.mark.parametrize("part", [0, 1])  # for two processes
def test_random_programs(bulk, part):
    check_many(part, 8)


# Without optimisations, XLA's older emitters for a CPU compile some gradients of plain JAX
# programs wrongly, so that these programs, which nobody chose, are compiled with them.
@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_many_random_programs(bulk, optimised, part):
    check_many(100 + part, 700)

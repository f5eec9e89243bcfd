"""Random programs on random values against the dense program, forward and gradient."""

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from values import factories

import jaxrewrite


N = 3  # every array is of shape (N, N), so that any operation takes any

UNARY = [
    jnp.negative,
    jnp.sin,
    jnp.tanh,
    jnp.transpose,
    lambda x: 0.5 * x,
    lambda x: x.sum(axis=0, keepdims=True) + x,
    lambda x: x[::-1],
    lambda x: jax.nn.softmax(x),
    lambda x: jnp.where(x > 0.1, x, 0.5 * x),
    lambda x: jax.lax.stop_gradient(x) * x,
]
BINARY = [jnp.add, jnp.multiply, jnp.subtract, jnp.matmul, jnp.maximum]
WRAPPERS = [
    lambda f: f,
    jax.jit,
    jax.checkpoint,
    lambda f: lambda x, y: jax.lax.cond(x[0, 0] > 0.2, f, lambda x, y: f(y, x), x, y),
    lambda f: lambda x, y: jax.lax.scan(lambda c, _: (f(c, y), c), x, None, length=2)[0],
    lambda f: lambda x, y: jax.vmap(f, (None, 0))(x, jnp.stack([y, -y]))[1],
]

step = st.tuples(
    st.sampled_from(range(len(UNARY))),
    st.sampled_from(range(len(BINARY))),
    st.sampled_from(range(len(WRAPPERS))),
    st.integers(0, 5),
    st.integers(0, 5),
)
programs = st.lists(step, min_size=1, max_size=5)
operands = st.lists(st.sampled_from(sorted(factories)), min_size=1, max_size=3)


def run(program, *arrays):
    known = [jnp.eye(N), *arrays]
    for unary, binary, wrapper, i, j in program:
        operation = WRAPPERS[wrapper](
            lambda x, y, u=unary, b=binary: 0.5 * BINARY[b](UNARY[u](x), y)
        )
        known.append(operation(known[-1 - i % len(known)], known[-1 - j % len(known)]))
    return known[-1]


def check(program, kinds, seed):
    rng = np.random.default_rng(seed)
    values = [factories[kind]((N, N), jnp.float32, rng) for kind in kinds]
    transformed = jaxrewrite.transform(lambda *vs: run(program, *vs), materialise="allow")
    implicit = lambda vs: jaxrewrite.materialise(transformed(*vs))
    dense = lambda vs: run(program, *jaxrewrite.materialise(vs))
    np.testing.assert_allclose(
        jax.jit(implicit)(values), jax.jit(dense)(values), rtol=1e-4, atol=1e-5
    )
    gradients = [
        jax.jit(jax.grad(lambda vs, f=f: jnp.sin(f(vs)).sum(), allow_int=True))(values)
        for f in (implicit, dense)
    ]
    for g, w in zip(*map(jax.tree.leaves, gradients), strict=True):
        if g.dtype != jax.dtypes.float0:
            np.testing.assert_allclose(g, w, rtol=1e-3, atol=1e-4)


def properties(examples):
    return hypothesis.settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        print_blob=True,
        suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
    )


@properties(60)
@hypothesis.given(programs, operands, st.integers(0, 100))
def test_random_programs(no_leak_checks, program, kinds, seed):
    check(program, kinds, seed)


@pytest.mark.slow
@properties(2000)
@hypothesis.given(programs, operands, st.integers(0, 10_000))
def test_many_random_programs(no_leak_checks, program, kinds, seed):
    check(program, kinds, seed)

"""Random programs: operations and blocks, nested up to three deep.

A program is a list of steps on the arrays known so far, each of shape (N, N). A
step is an operation on two of them, or a block: a higher-order function around a
program of its own, nested up to three deep.
"""

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
from jax import lax
from reference import OWN


N = 3


def rolled(x):
    return jnp.roll(x, 1, axis=0)


OPERATIONS = {
    # elementwise
    "neg": lambda x, y: -x,
    "sin": lambda x, y: jnp.sin(x),
    "tanh": lambda x, y: jnp.tanh(x),
    "halve": lambda x, y: 0.5 * x,
    "select": lambda x, y: jnp.where(x > 0.1, x, 0.5 * y),
    "stop gradient": lambda x, y: lax.stop_gradient(x) * y,
    "add": lambda x, y: x + y,
    "multiply": lambda x, y: 0.5 * (x * y),
    "subtract": lambda x, y: x - y,
    "maximum": lambda x, y: jnp.maximum(x, y),
    # linear
    "transpose": lambda x, y: x.T,
    "matmul": lambda x, y: 0.3 * (x @ y),
    "einsum": lambda x, y: 0.3 * jnp.einsum("ij,kj->ki", x, y),
    "reshape": lambda x, y: x.reshape(N * N).reshape(N, N),
    # reductions
    "add sums": lambda x, y: 0.3 * x.sum(axis=0, keepdims=True) + y,
    "softmax": lambda x, y: jax.nn.softmax(x),
    "cumulate": lambda x, y: 0.3 * jnp.cumsum(x, axis=1),
    # indexing
    "reverse": lambda x, y: x[::-1],
    "roll": lambda x, y: rolled(x),
    "take": lambda x, y: x[jnp.array([2, 0, 0])],
    "slice": lambda x, y: lax.dynamic_slice(jnp.concatenate([x, y]), (1, 0), (N, N)),
    "update": lambda x, y: x.at[1].set(y[0]),
    # custom rules of JAX
    "silu": lambda x, y: jax.nn.silu(x),
    "logaddexp": lambda x, y: jnp.logaddexp(x, y),
}


def custom_jvp(fn):
    """A rule twice the derivative."""
    wrapped = jax.custom_jvp(fn)

    @wrapped.defjvp
    def _(primals, tangents):
        out, tangent = jax.jvp(fn, primals, tangents)
        return out, 2 * tangent

    return wrapped


def custom_vjp(fn):
    """A rule three times the derivative for the one, once for the other."""
    wrapped = jax.custom_vjp(fn)

    def backward(back, ct):
        x, y = back(ct)
        return 3 * x, y

    wrapped.defvjp(lambda x, y: jax.vjp(fn, x, y), backward)
    return wrapped


def while_loop(fn):
    """Has no reverse mode, so nothing flows back through it."""

    def looped(x, y):
        turn = lambda c: (c[0] + 1, 0.5 * fn(c[1], y), c[1])
        start = (0, lax.stop_gradient(x), lax.stop_gradient(y))
        y = lax.stop_gradient(y)
        return lax.stop_gradient(lax.while_loop(lambda c: c[0] < 2, turn, start)[1]) + x

    return looped


BLOCKS = {
    "jit": jax.jit,
    "checkpoint": jax.checkpoint,
    "cond": lambda f: lambda x, y: lax.cond(x[0, 0] > 0.2, f, lambda x, y: f(y, x), x, y),
    "cond of one": lambda f: lambda x, y: lax.cond(y[0, 0] > 0.2, f, lambda x, y: x, x, y),
    "scan carry": lambda f: (
        lambda x, y: lax.scan(lambda c, _: (f(c, y), c), x, None, length=2)[0]
    ),
    "scan two carries": lambda f: (
        lambda x, y: lax.scan(
            lambda c, _: ((c[1], f(c[0], y)), None), (x, y), None, length=3
        )[0][0]
    ),
    "scan ys": lambda f: (
        lambda x, y: lax.scan(lambda c, _: (c, f(c, y)), x, None, length=2)[1][1]
    ),
    "scan rows": lambda f: (
        lambda x, y: f(x, lax.scan(lambda c, row: (c + row, 0.5 * c), x[0], y)[1])
    ),
    "fori": lambda f: lambda x, y: lax.fori_loop(0, 2, lambda i, c: f(c, y), x),
    "while": while_loop,
    "map": lambda f: lambda x, y: lax.map(lambda z: f(z, y), jnp.stack([x, -x]))[1],
    "vmap": lambda f: lambda x, y: jax.vmap(f, (None, 0))(x, jnp.stack([y, -y]))[1],
    "custom_jvp": custom_jvp,
    "custom_vjp": custom_vjp,
}

index = st.integers(0, 5)
operation = st.tuples(st.sampled_from(sorted(OPERATIONS)), index, index)
program = st.recursive(
    st.lists(operation, min_size=1, max_size=3),
    lambda inner: st.lists(
        st.one_of(
            operation,
            st.tuples(st.tuples(st.sampled_from(sorted(BLOCKS)), inner), index, index),
        ),
        min_size=1,
        max_size=3,
    ),
    max_leaves=6,
)
operands = st.lists(st.sampled_from(sorted(OWN)), min_size=1, max_size=3)


def run(steps, *arrays):
    known = list(arrays)
    for step, i, j in steps:
        if isinstance(step, str):
            fn = OPERATIONS[step]
        else:
            block, inner = step
            fn = BLOCKS[block](body(inner))
        known.append(fn(known[-1 - i % len(known)], known[-1 - j % len(known)]))
    return known[-1]


def body(steps):
    return lambda x, y: run(steps, x, y)


def properties(examples):
    return hypothesis.settings(
        max_examples=examples,
        deadline=None,
        database=None,
        print_blob=True,
        suppress_health_check=list(hypothesis.HealthCheck),
    )

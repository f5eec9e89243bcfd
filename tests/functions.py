"""The functions of one (n, m) array that the oracle compares, by name."""

import jax
import jax.numpy as jnp
from jax import lax


def other(x):
    """A dense array like ``x``, which must not depend on its values."""
    n = x.shape[0] * x.shape[1]
    return (jnp.arange(n).reshape(x.shape) % 7 / 8 + 0.25).astype(x.dtype)


def by_rows(x):
    n, m = x.shape
    return (jnp.arange(3 * n).reshape(3, n) % 5 / 4).astype(x.dtype)


FUNCTIONS = {
    # elementwise
    "neg": lambda x: -x,
    "sin": jnp.sin,
    "tanh": jnp.tanh,
    "sqrt": jnp.sqrt,
    "gelu": jax.nn.gelu,
    "floor": jnp.floor,
    "integer_pow": lambda x: x**3,
    "astype": lambda x: x.astype(jnp.complex64).real,
    # binary, both sides, scalars
    "add": lambda x: x + other(x),
    "radd": lambda x: other(x) + x,
    "mul": lambda x: x * other(x),
    "mul scalar": lambda x: 2.0 * x,
    "mul self": lambda x: x * x,
    "sub row": lambda x: x - other(x)[0],
    "div": lambda x: other(x) / (x + 1),
    "maximum": lambda x: jnp.maximum(x, other(x)),
    "compare": lambda x: x > other(x),
    "where": lambda x: jnp.where(x > 0.5, x, -x),
    "clip": lambda x: jnp.clip(x, 0.3, 0.6),
    # reductions
    "sum": lambda x: x.sum(),
    "sum rows": lambda x: x.sum(axis=0, keepdims=True),
    "mean": lambda x: x.mean(axis=1),
    "var": jnp.var,
    "cumsum": lambda x: jnp.cumsum(x, axis=1),
    "softmax": lambda x: jax.nn.softmax(x, axis=-1),
    "logsumexp": lambda x: jax.nn.logsumexp(x, axis=0),
    # products
    "matmul": lambda x: by_rows(x) @ x,
    "rmatmul": lambda x: x @ other(x).T,
    "matmul transposed": lambda x: other(x) @ x.T,
    "matmul self": lambda x: x @ x.T,
    "einsum": lambda x: jnp.einsum("ij,kj->ik", x, other(x)),
    "outer": lambda x: jnp.einsum("ij,kl->ikjl", x, by_rows(x)),
    "batched": lambda x: jnp.einsum("ij,ijk->ik", x, jnp.stack([other(x)] * 2, -1)),
    # shapes and indices
    "transpose": jnp.transpose,
    "reshape": lambda x: x.reshape(-1),
    "broadcast": lambda x: jnp.broadcast_to(x, (2, *x.shape)),
    "concatenate": lambda x: jnp.concatenate([x, other(x), x]),
    "pad": lambda x: jnp.pad(x, 1),
    "slice": lambda x: x[:, ::2],
    "roll": lambda x: jnp.roll(x, 1, axis=0),
    "flip": jnp.flip,
    "gather": lambda x: jnp.take(x, jnp.array([0, 0]), axis=0, mode="fill"),
    "scatter": lambda x: x.at[:, :1].add(1.0),
    "sort": lambda x: jnp.sort(x, axis=0),
    # structure
    "jit": lambda x: jax.jit(lambda y: jnp.sin(-y) @ other(y).T)(x),
    "scan": lambda x: lax.scan(
        lambda c, row: (c * 0.5 + row, c.sum()), x[:1] * 0, x[:, None]
    )[0],
    "cond": lambda x: lax.cond(x.shape[0] > 1, jnp.sin, jnp.cos, -x),
    "remat": lambda x: jax.checkpoint(lambda y: jnp.tanh(-y))(x),
    "relu": jax.nn.relu,
    "vmap": lambda x: jax.vmap(lambda row: -row * row.sum())(x),
    "several": lambda x: {"a": -x, "b": [x.sum(), x.T]},
}

# What has no answer, or one that is not a number, on an empty axis.
NEEDS_ROWS = {
    "gather",
    "logsumexp",
    "mean",
    "maximum",
    "scatter",
    "softmax",
    "sub row",
    "var",
}

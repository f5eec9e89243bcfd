"""Costs of equations, against XLA's analysis and closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import sparse

from jaxrewrite._insight import costs


def ones(*shape, dtype="float32"):
    return jnp.ones(shape, dtype)


def ours(fn, *args):
    return costs.of_jaxpr(jax.make_jaxpr(fn)(*args).jaxpr)


def xla(fn, *args):
    analysis = jax.jit(fn).lower(*args).cost_analysis()
    return analysis["flops"]


def attention(q, k, v):
    weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k))
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v)


HEADS = [ones(2, 32, 4, 64)] * 3
PRODUCTS = {
    "matrix": (jnp.matmul, ones(64, 32), ones(32, 48)),
    "batched": (jnp.matmul, ones(5, 64, 32), ones(5, 32, 8)),
    "einsum": (lambda x, y: jnp.einsum("ijk,kl->lij", x, y), ones(4, 8, 16), ones(16, 32)),
    "attention": (attention, *HEADS),
    "perceptron": (
        lambda x, a, b: jax.nn.relu(x @ a) @ b,
        *(ones(16, 64), ones(64, 256), ones(256, 64)),
    ),
    "convolution": (
        lambda x, k: lax.conv(x, k, (1, 1), "VALID"),
        *(ones(2, 8, 16, 16), ones(16, 8, 3, 3)),
    ),
    "transposed convolution": (
        lambda x, k: lax.conv_general_dilated(
            x, k, (1, 1), [(0, 0), (0, 0)], lhs_dilation=(2, 3)
        ),
        *(ones(2, 8, 65, 65), ones(4, 8, 4, 3)),
    ),
    "gradient": (
        jax.grad(lambda w, x: jnp.tanh(x @ w).sum()),
        *(ones(64, 64), ones(32, 64)),
    ),
    "jit": (jax.jit(jnp.matmul), ones(64, 32), ones(32, 48)),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_cost_what_xla_says(name):
    fn, *args = PRODUCTS[name]
    np.testing.assert_allclose(ours(fn, *args).flops, xla(fn, *args), rtol=0.05)


@pytest.mark.parametrize("columns", [1, 5])
def test_a_sparse_product_costs_two_operations_for_each_entry_and_column(columns):
    matrix = sparse.BCOO.fromdense(jnp.eye(4, 6), nse=4)
    found = ours(lambda x: matrix @ x, ones(6, columns))
    assert found.flops == 2 * 4 * columns


def square(n):
    return 2 * jnp.eye(n)


def scanned(x):
    return lax.scan(lambda c, _: (c @ x, None), x, None, length=7)[0]


CLOSED = {
    "scan": (scanned, (square(8),), 7 * 2 * 8**3),
    "while": (
        lambda x: lax.while_loop(lambda c: c[0, 0] < 9, lambda c: c @ x, x),
        (square(8),),
        2 * 8**3 + 1,
    ),
    "cond": (
        lambda x: lax.cond(x[0, 0] > 0, lambda x: x @ x, lambda x: x, x),
        (square(8),),
        2 * 8**3 + 2,
    ),
    "platform": (
        lambda x: lax.platform_dependent(x, cpu=lambda x: x @ x, default=scanned),
        (square(8),),
        2 * 8**3,
    ),
    # JAX makes the other triangle zero by three operations.
    "cholesky": (
        lambda x: lax.linalg.cholesky(x, symmetrize_input=False),
        (square(6),),
        72 + 3 * 36,
    ),
    "householder product": (
        lambda x: lax.linalg.householder_product(x, ones(4)),
        (ones(6, 4),),
        2 * 6 * 4**2 - 2 * 4**3 / 3,
    ),
    "qr": (
        lambda x: jax.lax.linalg.qr(x, full_matrices=False)[1],
        (ones(6, 4),),
        4 * 6 * 4**2 - 4 * 4**3 / 3,
    ),
    "svd": (
        lambda x: lax.linalg.svd(x, compute_uv=False),
        (ones(6, 4),),
        14 * 6 * 4**2 + 8 * 4**3,
    ),
    "batched lu": (lambda x: lax.linalg.lu(x)[0], (ones(3, 6, 6),), 3 * 2 / 3 * 6**3),
    "triangular solve": (
        lambda x: lax.linalg.triangular_solve(x, ones(6, 4), left_side=True),
        (square(6),),
        6 * 24,
    ),
    "fft": (jnp.fft.fft, (ones(4, 16, dtype="complex64"),), 5 * 64 * 4),
    "real fft": (jnp.fft.rfft, (ones(4, 16),), 5 * 64 * 4 / 2),
    "sort": (lambda x: lax.sort(x), (ones(4, 16),), 64 * 4),
    "sum": (lambda x: lax.reduce_sum(x, (0,)), (ones(4, 16),), 64),
    "elementwise": (lambda x: lax.sin(x) * x, (ones(4, 16),), 128),
    "padding": (lambda x: lax.pad(x, 0.0, [(1, -2, 1), (-1, 3, 0)]), (ones(4, 16),), 0),
    "moves": (lambda x: x.T.reshape(8, 8)[::-1], (ones(4, 16),), 0),
    "scatter": (lambda x: x.at[jnp.array([0, 1])].add(ones(2, 16), mode="drop"), None, 32),
}


@pytest.mark.parametrize("name", CLOSED)
def test_closed_forms(name):
    fn, args, flops = CLOSED[name]
    got = ours(fn, *(args or (ones(4, 16),))).flops
    # Indices are made ready by a few operations.
    np.testing.assert_allclose(got, flops, rtol=1e-6, atol=8 if name == "scatter" else 0)


@pytest.mark.parametrize("power", [-3, -1, 0, 1, 2, 7, 16])
def test_integer_powers_are_squared_repeatedly(power):
    fn = lambda x: lax.integer_pow(x, power)
    expected = xla(lambda x: fn(x) + x, ones(5)) - 5
    assert ours(fn, ones(5)).flops == expected


def test_bytes():
    assert ours(lambda x: lax.sin(x), ones(4, 16)).bytes == 2 * 4 * 64
    assert ours(lambda x: lax.mul(x, x), ones(4, 16)).bytes == 2 * 4 * 64
    assert ours(lambda x: lax.neg(x), ones(6, dtype="int4")).bytes == 6
    assert ours(lambda k: jax.random.split(k), jax.random.key(0)).bytes == 8 + 16


def test_trip_counts():
    (scan,) = jax.make_jaxpr(scanned)(square(2)).eqns
    assert costs.trip_count(scan) == 7
    loop = jax.make_jaxpr(lambda x: lax.while_loop(lambda c: c < 3, lambda c: c + 1, x))(1)
    assert costs.trip_count(loop.eqns[-1]) is None


def test_products_of_groups_are_counted_once():
    """Each row meets the matrix of its group alone, also in the derivative by the matrices."""
    sizes = jnp.array([1, 2, 1])
    rows, matrices = jnp.ones((4, 5)), jnp.ones((3, 5, 6))
    product = lambda x, w: jax.lax.ragged_dot(x, w, sizes)
    for argnum in (None, 0, 1):
        fn = product
        if argnum is not None:
            fn = lambda x, w, i=argnum: jax.vjp(product, x, w)[1](jnp.ones((4, 6)))[i]
        jaxpr = jax.make_jaxpr(fn)(rows, matrices)
        # JAX makes the derivatives by both.
        (eqn,) = [e for e in jaxpr.eqns if e.outvars == jaxpr.jaxpr.outvars]
        assert eqn.primitive.name == "ragged_dot_general"
        assert costs.of_equation(eqn).flops == 2 * 4 * 5 * 6

"""Solves and log-determinants from products alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrewrite
from jaxrewrite.values import (
    Diagonal,
    Kronecker,
    Toeplitz,
    conjugate_gradients,
    stochastic_logdet,
)


pytestmark = pytest.mark.usefixtures("double")


def kernel(n=24, length=0.1, noise=0.3):
    """A Toeplitz matrix with noise, which has products only."""
    column = jnp.exp(-((jnp.arange(n) / n / length) ** 2))
    return Toeplitz(column, column) + Diagonal(noise * (1 + jnp.arange(float(n))))


def test_conjugate_gradients(bulk):
    v, b = kernel(), jnp.arange(48.0).reshape(24, 2)
    solve = lambda v, b: conjugate_gradients(v, b, tol=1e-12)
    x, converged = jax.jit(solve)(v, b)
    np.testing.assert_allclose(x, np.linalg.solve(np.asarray(v), b), rtol=1e-8)
    assert converged.all()
    loss = lambda v: jnp.sin(solve(v, b[:, 1])[0]).sum()
    dense = lambda v: jnp.sin(jnp.linalg.solve(jaxrewrite.materialise(v), b[:, 1])).sum()
    got, want = (jax.jit(jax.grad(fn))(v) for fn in (loss, dense))
    jax.tree.map(
        lambda g, w: np.testing.assert_allclose(g, w, rtol=1e-6, atol=1e-9), got, want
    )


def test_a_solve_that_does_not_converge_says_so():
    v = kernel(noise=1e-9)
    assert not conjugate_gradients(v, jnp.ones(24), max_steps=3)[1]
    assert conjugate_gradients(v, jnp.zeros(24))[1]
    # No solution is nearer than rounding allows.
    assert conjugate_gradients(
        Diagonal(jnp.linspace(1, 2, 24) ** 0.5), jnp.ones(24), tol=0
    )[1]


@pytest.mark.slow
def test_stochastic_log_determinant(bulk):
    """It is exact for matrices that random signs diagonalise, and close for others."""
    key = jax.random.key(0)
    d = Diagonal(1 + jnp.arange(6.0))
    estimate = jax.jit(jax.value_and_grad(lambda v: stochastic_logdet(v, key, probes=2)))
    found, slope = estimate(d)
    np.testing.assert_allclose(found, np.log(1 + np.arange(6)).sum(), rtol=1e-9)
    np.testing.assert_allclose(slope.d, 1 / d.d, rtol=1e-9)
    multiple = Diagonal(jnp.full(6, 3.0))  # One step spans an invariant subspace.
    np.testing.assert_allclose(estimate(multiple)[0], 6 * np.log(3), rtol=1e-9)
    v = kernel()
    of_many = lambda v: stochastic_logdet(v, key, probes=400, steps=24)
    found, slope = jax.jit(jax.value_and_grad(of_many))(v)
    dense = lambda v: jnp.linalg.slogdet(jaxrewrite.materialise(v))[1]
    want, exact = jax.value_and_grad(dense)(v)
    assert abs(found - want) < 0.3
    np.testing.assert_allclose(slope.terms[1].d, exact.terms[1].d, atol=0.05)


def test_bad_arguments():
    v = kernel()
    with pytest.raises(ValueError, match=r"b has shape \(3,\)"):
        conjugate_gradients(v, jnp.ones(3))
    with pytest.raises(ValueError, match="not \\(n, n\\)"):
        stochastic_logdet(Kronecker(jnp.ones((2, 3)), jnp.ones((2, 2))), jax.random.key(0))
    with pytest.raises(ValueError, match="probes is 0"):
        stochastic_logdet(v, jax.random.key(0), probes=0)


def test_empty_matrices_and_integers():
    assert stochastic_logdet(Diagonal(jnp.zeros(0)), jax.random.key(0)) == 0
    x, converged = conjugate_gradients(Diagonal(jnp.full(3, 2.0)), jnp.array([2, 4, 6]))
    np.testing.assert_allclose(x, [1, 2, 3], rtol=1e-5)
    assert converged


def test_a_stochastic_log_determinant_of_few_steps(bulk):
    """Random signs span the eigenvectors of a diagonal matrix, in as many steps as numbers."""
    key = jax.random.key(0)
    numbers = jnp.array([2.0, 5.0, 2.0, 5.0])
    for steps in (2, 4):
        found = stochastic_logdet(Diagonal(numbers), key, probes=2, steps=steps)
        np.testing.assert_allclose(found, np.log(numbers).sum(), rtol=1e-9)
    one = stochastic_logdet(Diagonal(jnp.full(3, 3.0)), key, probes=1, steps=1)
    np.testing.assert_allclose(one, 3 * np.log(3), rtol=1e-9)


def test_the_slope_of_a_stochastic_log_determinant(bulk):
    """It is exact for a diagonal matrix, whose Lanczos matrix has three different eigenvalues."""
    numbers = jnp.array([2.0, 5.0, 7.0])
    estimate = lambda d: stochastic_logdet(Diagonal(d), jax.random.key(0), probes=1)
    np.testing.assert_allclose(jax.jit(jax.grad(estimate))(numbers), 1 / numbers, rtol=1e-9)

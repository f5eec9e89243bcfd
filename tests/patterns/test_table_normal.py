"""The table `jaxrewrite.patterns.normal`: densities without Cholesky factors."""

import jax
import jax.numpy as jnp
import jax.scipy.stats
import numpy as np
import pytest
from choose import every
from jax.scipy.linalg import cho_solve, solve_triangular

from jaxrewrite import MaterialisationError, patterns, transform
from jaxrewrite.values import Diagonal, Identity, Kronecker, LowRank, Scaled, Symmetric


N = 24


def numpyro(a, y):
    """What ``numpyro.distributions.MultivariateNormal.log_prob`` computes."""
    low = jnp.linalg.cholesky(a)
    white = solve_triangular(low, y[..., None], lower=True).squeeze(-1)
    log_root = jnp.log(jnp.diagonal(low, axis1=-2, axis2=-1)).sum(-1)
    normalise = log_root + 0.5 * low.shape[-1] * jnp.log(2 * jnp.pi)
    return -0.5 * jnp.sum(jnp.square(white), -1) - normalise


def scipy(a, y):
    return jax.scipy.stats.multivariate_normal.logpdf(y, jnp.zeros(len(y)), a)


def likelihood(a, y):
    low = jnp.linalg.cholesky(a)
    alpha = cho_solve((low, True), y)
    return -0.5 * y @ alpha - jnp.log(jnp.diag(low)).sum()


def low_rank(d, sign=1.0, tilt=0.0):
    a = jnp.sin(jnp.arange(1.0, N + 1))[:, None]
    return LowRank(a, sign * (a.T + tilt * jnp.cos(jnp.arange(N * 1.0)))) + Diagonal(d)


D = jnp.linspace(1, 2, N)
Y = jnp.cos(jnp.arange(N * 1.0))
COVARIANCES = {
    "definite": low_rank(D),
    "subtracted": low_rank(D, -0.01),
    "not symmetric": low_rank(D, 0.2, 0.3),
    "not definite": low_rank(D, -10.0),
    "negative base": low_rank(D.at[3].set(-1.0)),
    "negative base, definite": low_rank(jnp.full(N, 1.0).at[1].set(-0.05)),
    "transposed": transform(jnp.transpose)(low_rank(D, 0.2, 0.3)),
    "identity": LowRank(jnp.ones((N, 1)), jnp.ones((1, N))) + Identity(N),
    "kronecker": Kronecker(
        Symmetric(jnp.array([[2.0, 1.0], [1.0, 2.0]])), Symmetric(3 * jnp.eye(N // 2))
    )
    + 0.5 * Identity(N),
}


@pytest.mark.parametrize(
    ("name", "program"),
    [
        *every(3, [(name, numpyro) for name in COVARIANCES]),
        ("definite", scipy),
        ("kronecker", scipy),
        ("not definite", likelihood),
        ("kronecker", likelihood),
    ],
)
def test_densities_are_those_of_the_dense_matrix(name, program):
    a = COVARIANCES[name]
    implicit = jax.jit(transform(program, rules=patterns.normal, materialise="forbid"))
    expected = jax.jit(program)(a.materialise(), Y)
    np.testing.assert_allclose(implicit(a, Y), expected, 2e-4, 2e-4)
    assert bool(jnp.isnan(expected)) == ("not definite" in name or name == "negative base")


def test_a_factor_that_is_a_value_leaves_the_density_dense():
    a = jnp.sin(jnp.arange(1.0, N + 1))[:, None]
    v = LowRank(Scaled(a, jnp.float32(0.5)), a.T) + Diagonal(D)
    with pytest.raises(MaterialisationError):
        transform(numpyro, rules=patterns.normal, materialise="forbid")(v, Y)
    got = transform(numpyro, rules=patterns.normal, materialise="allow")(v, Y)
    np.testing.assert_allclose(got, numpyro(v.materialise(), Y), 2e-4)


@pytest.mark.parametrize("is_scaled", [False, True], ids=["noise", "units"])
def test_one_variable_with_hardly_any_noise_or_in_other_units(is_scaled):
    """A small matrix tells what is definite, whatever the scales of its rows are."""
    n, rng = 32, np.random.default_rng(0)
    y = jnp.sin(jnp.arange(1.0, n + 1))
    density = jax.jit(transform(scipy, rules=patterns.normal, materialise="forbid"))
    for _ in range(40):
        d, u = np.ones(n), np.float32(rng.normal(size=(n, 2)))
        if is_scaled:
            u[rng.integers(n)] *= 10.0 ** rng.uniform(-3, 5)
        else:
            d[rng.integers(n)] = 10.0 ** rng.uniform(-9, -3)
        dense = np.diag(d) + np.float64(u) @ u.T
        log = np.linalg.slogdet(dense)[1] + n * np.log(2 * np.pi)
        want = -0.5 * (y @ np.linalg.solve(dense, y) + log)
        found = density(LowRank(u, u.T) + Diagonal(np.float32(d)), y)
        np.testing.assert_allclose(found, want, 1e-3)


def test_derivatives_and_batches():
    program = transform(numpyro, rules=patterns.normal, materialise="forbid")
    dense = lambda a, y: numpyro(a.materialise(), y)
    a = COVARIANCES["definite"]
    for found, expected in zip(
        jax.tree.leaves(jax.jit(jax.grad(program, (0, 1)))(a, Y)),
        jax.tree.leaves(jax.jit(jax.grad(dense, (0, 1)))(a, Y)),
        strict=True,
    ):
        np.testing.assert_allclose(found, expected, 1e-3, 1e-3)
    several = jnp.stack([Y, 2 * Y])
    np.testing.assert_allclose(
        jax.jit(jax.vmap(program, (None, 0)))(a, several),
        jax.jit(jax.vmap(dense, (None, 0)))(a, several),
        2e-4,
    )


@pytest.mark.parametrize("program", [scipy, numpyro, likelihood])
def test_gradients_are_those_of_the_transformed_function(program):
    """Inside of a program the derivative uses the factor, too. The error says what to write."""
    a, options = (
        COVARIANCES["definite"],
        {"rules": patterns.normal, "materialise": "forbid"},
    )
    with pytest.raises(MaterialisationError, match="gradients of the transformed function"):
        transform(jax.grad(program, 1), **options)(a, Y)
    got = jax.jit(jax.grad(transform(program, **options), 1))(a, Y)
    np.testing.assert_allclose(got, jax.grad(program, 1)(a.materialise(), Y), 1e-3, 1e-3)


def test_other_programs_keep_the_factor():
    with pytest.raises(MaterialisationError, match=r"rules=jaxrewrite\.patterns\.normal"):
        transform(numpyro, materialise="forbid")(COVARIANCES["definite"], Y)
    both = lambda a, y: (numpyro(a, y), jnp.linalg.cholesky(a))
    with pytest.raises(MaterialisationError, match="cholesky"):
        transform(both, rules=patterns.normal, materialise="forbid")(
            COVARIANCES["definite"], Y
        )

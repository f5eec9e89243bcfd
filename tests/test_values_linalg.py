"""Linear algebra on matrices with structure, which stays implicit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import CASES
from test_values_oracle import floating

import jaxrewrite
from jaxrewrite.values._matrix import Matrix


def make(name, n=5):
    return CASES[name].value(np.random.default_rng(0), "float64", (n, n))


def matrices(method):
    """The names of the cases whose type defines a method of `Matrix`."""
    found = []
    for name, case in CASES.items():
        value = case.value(np.random.default_rng(0)) if case.square else None
        if isinstance(value, Matrix) and getattr(type(value), method) is not getattr(
            Matrix, method
        ):
            found.append(name)
    return pytest.mark.parametrize("name", found)


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


def implicit(fn):
    return jaxrewrite.transform(fn, materialise="forbid")


def close(got, want):
    np.testing.assert_allclose(jaxrewrite.materialise(got), want, rtol=1e-8, atol=1e-8)


@matrices("solve")
def test_solve(name, no_leak_checks):
    v = make(name)
    dense = jaxrewrite.materialise(v)
    for b in (jnp.arange(5.0), jnp.arange(10.0).reshape(5, 2)):
        close(implicit(jnp.linalg.solve)(v, b), jnp.linalg.solve(dense, b))
        transposed = lambda a, b: jnp.linalg.solve(a.T, b)
        close(implicit(transposed)(v, b), jnp.linalg.solve(dense.T, b))
    close(implicit(jnp.linalg.inv)(v), jnp.linalg.inv(dense))


@matrices("solve")
def test_gradient_of_a_solve(name, no_leak_checks):
    v, b = make(name), jnp.arange(5.0)
    xs, filled = floating(v)
    loss = lambda fn, xs, b: jnp.sin(fn(filled(xs), b)).sum()
    dense = lambda v, b: jnp.linalg.solve(jaxrewrite.materialise(v), b)
    got = jax.grad(loss, (1, 2))(implicit(jnp.linalg.solve), xs, b)
    want = jax.grad(loss, (1, 2))(dense, xs, b)
    jax.tree.map(close, got, want)


@matrices("known_determinant")
def test_determinant(name):
    v = make(name)
    close(v.determinant(), jnp.linalg.det(jaxrewrite.materialise(v)))


@matrices("known_determinant")
def test_determinant_by_jax(name, no_leak_checks):
    v = make(name)
    dense = jaxrewrite.materialise(v)
    close(implicit(jnp.linalg.det)(v), jnp.linalg.det(dense))
    sign, log = implicit(jnp.linalg.slogdet)(v)
    close(sign * jnp.exp(log), jnp.linalg.det(dense))


@matrices("known_inverse")
def test_inverse(name):
    v = make(name)
    close(v.inverse(), jnp.linalg.inv(jaxrewrite.materialise(v)))


@matrices("known_eigenvalues")
def test_eigenvalues(name, no_leak_checks):
    v = make(name)
    want = np.sort_complex(np.linalg.eigvals(np.asarray(v)))
    close(np.sort_complex(implicit(jnp.linalg.eigvals)(v)), want)


@matrices("known_cholesky")
def test_cholesky(name):
    v = make(name)
    dense = np.asarray(v)
    if not np.allclose(dense, dense.T):
        pytest.skip("not symmetric")
    try:
        want = np.linalg.cholesky(dense)
    except np.linalg.LinAlgError:
        pytest.skip("not positive definite")
    close(v.cholesky(), want)
    close(jaxrewrite.transform(jnp.linalg.cholesky)(v), want)


@matrices("known_eigh")
def test_eigh(name):
    v = make(name)
    dense = np.asarray(v)
    if not np.allclose(dense, dense.T):
        pytest.skip("not symmetric")
    values, vectors = jaxrewrite.materialise(implicit(jnp.linalg.eigh)(v))
    close(values, np.linalg.eigvalsh(dense))
    close(vectors @ jnp.diag(values) @ vectors.T, dense)

"""Errors of linear algebra on well and ill conditioned matrices, beside the dense program's."""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from choose import often, slow

import jaxrewrite
from jaxrewrite import values


sys.path.insert(0, str(Path(__file__).parents[1]))
import accuracy  # noqa: E402


@pytest.fixture(autouse=True)
def _double():
    """Double precision in all threads: SciPy's solver of sparse matrices runs in another."""
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


# SciPy warns of ill conditioned matrices.
pytestmark = pytest.mark.filterwarnings("ignore")

CASES = [(name, c) for c in (False, True) for name in accuracy.cases(c)]

# Factors are backward stable, and small singular values are cut off for pseudo-inverses.
STABLE = {"cholesky", "eigh", "svd", "lstsq", "pinv"}


@pytest.mark.parametrize("inside", [slow(False), True], ids=["outside", "inside"])
@pytest.mark.parametrize(("name", "is_complex"), often(CASES, [("LowRank", False)]))
def test_double_precision_agrees_with_scipy(name, is_complex, inside, bulk):
    """Of a batch, mapped outside or inside of the rewriting, under jit."""
    v = accuracy.batch(name, is_complex, False)
    found = accuracy.errors(name, v, accuracy.answers(accuracy.forbid, name, v, inside))
    eps = np.finfo(float).eps
    for key, own in found.items():
        for condition, error in zip(accuracy.CONDITIONS, own, strict=True):
            most = 1 / accuracy.RTOL if key in STABLE else condition
            assert error < 30 * eps * most, (key, condition, error)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "is_complex"), CASES)
def test_single_precision_is_as_good_as_that_of_the_dense_program(name, is_complex, bulk):
    """To a factor of ten, unless the dense program is better than its own bound.

    A backward stable solution is right to the rounding unit times the condition number. Where that
    is more than one, only factors and pseudo-inverses have right digits.
    """
    v = accuracy.batch(name, is_complex, True)
    got, want = (
        accuracy.errors(name, v, accuracy.answers(of, name, v))
        for of in (accuracy.forbid, accuracy.dense)
    )
    eps = np.finfo(np.float32).eps
    for key, own in got.items():
        for condition, mine, other in zip(accuracy.CONDITIONS, own, want[key], strict=True):
            bound = eps * (1 if key in STABLE else condition)
            if bound < 1 and np.isfinite(other):
                assert mine < 10 * max(other, bound), (key, condition, mine, other)


# Each has a pivot of LU that is exactly zero.
SINGULAR = {
    "Diagonal": lambda: values.Diagonal(jnp.arange(16.0)),
    "Triangular": lambda: values.Triangular(jnp.tri(16).at[3, 3].set(0)),
    "Symmetric": lambda: values.Symmetric(jnp.ones((16, 16))),
    "BlockDiagonal": lambda: values.BlockDiagonal(jnp.ones((4, 4, 4))),
    "Kronecker": lambda: values.Kronecker(jnp.ones((4, 4)), 2 * jnp.eye(4)),
    "Circulant": lambda: values.Circulant(jnp.ones(16)),
    "Tridiagonal": lambda: values.Tridiagonal(
        jnp.ones(15), jnp.ones(16).at[7].set(0), jnp.zeros(15)
    ),
    "Banded": lambda: values.Banded.from_dense(jnp.eye(16).at[5, 5].set(0), 1, 1),
    "Permuted": lambda: values.Product(
        (
            values.Permutation(jnp.arange(16)[::-1], jnp.float64),
            values.Diagonal(jnp.arange(16.0)),
        )
    ),
    "Diagonal + LowRank": lambda: values.Sum(
        (
            values.Diagonal(jnp.zeros(16).at[2].set(1)),
            values.LowRank(jnp.eye(16)[:, :1], jnp.eye(16)[:1]),
        )
    ),
    "Scaled": lambda: values.Scaled(values.Circulant(jnp.arange(16.0)), jnp.float64(0)),
}


@pytest.mark.slow
def test_singular_systems_give_what_dense_ones_give(bulk):
    b = jnp.arange(1.0, 17)

    def fn(a):
        return (
            jnp.linalg.solve(a, b),
            jnp.linalg.solve(a.T, b),
            *jnp.linalg.slogdet(a),
            jnp.linalg.det(a),
        )

    whole = lambda vs: {name: fn(v) for name, v in vs.items()}
    vs = {name: make() for name, make in SINGULAR.items()}
    got = jax.jit(accuracy.forbid(whole))(vs)
    want = jax.jit(whole)(jaxrewrite.materialise(vs))
    for name, (x, y, sign, log, det) in got.items():
        for own, other in ((x, want[name][0]), (y, want[name][1])):
            assert not np.isfinite(other).all(), name
            assert not np.isfinite(own).all(), name
        assert (sign, log, det) == (0, -np.inf, 0), (name, sign, log, det)

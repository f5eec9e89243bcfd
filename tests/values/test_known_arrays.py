"""Values made of arrays that are known, such as constants of a program, while JAX traces it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrewrite
from jaxrewrite import values
from jaxrewrite.values import Interval


def close(got, want):
    np.testing.assert_allclose(got, want, rtol=1e-6)


LOWER = np.tri(6, dtype=np.float32)
FULL = np.arange(1, 37, dtype=np.float32).reshape(6, 6) ** 2
RING = np.stack([np.roll(np.arange(6, dtype=np.float32), i) for i in range(6)], 1)
NAN = np.full((6, 6), np.nan, np.float32)

# How a value is made of an array, one that is accepted, and one that is not.
MAKERS = {
    "Quantised": (values.Quantised.quantise, FULL, NAN),
    "NF4": (lambda x: values.NF4.quantise(x, 6), FULL, NAN),
    "Float8": (values.Float8.quantise, FULL, NAN),
    "NMSparse.prune": (lambda x: values.NMSparse.prune(x, 2, 3), FULL, NAN),
    "NMSparse": (lambda x: values.NMSparse.from_dense(x, 2, 3), np.eye(6), FULL),
    "Sparse": (lambda x: values.Sparse.from_dense(x, nse=21), LOWER, FULL),
    "Sparse of all": (values.Sparse.from_dense, LOWER, None),
    "Triangular": (values.Triangular.from_dense, LOWER, FULL),
    "Banded": (lambda x: values.Banded.from_dense(x, 1, 1), np.eye(6), FULL),
    "Tridiagonal": (values.Tridiagonal.from_dense, np.eye(6), FULL),
    "Symmetric": (values.Symmetric.from_dense, FULL + FULL.T, FULL),
    "BlockDiagonal": (lambda x: values.BlockDiagonal.from_dense(x, 2), np.eye(6), FULL),
    "Toeplitz": (values.Toeplitz.from_dense, RING, FULL),
    "Circulant": (values.Circulant.from_dense, RING, FULL),
    "Permutation": (values.Permutation.from_dense, np.eye(6)[::-1], FULL),
    "OneHot": (values.OneHot.from_dense, np.eye(6)[::-1], FULL),
}


@pytest.mark.parametrize("as_array", [np.asarray, jnp.asarray], ids=["numpy", "jax"])
@pytest.mark.parametrize("name", MAKERS)
def test_arrays_that_are_known_while_jax_traces(name, as_array):
    make, good, bad = MAKERS[name]
    x = as_array(np.asarray(good, np.float32))
    want = make(x).materialise()
    close(jax.jit(lambda: make(x).materialise())(), want)
    close(jax.vmap(lambda t: t + make(x).materialise())(jnp.zeros(2))[1], want)
    jax.grad(lambda t: (t * make(x).materialise()).sum())(2.0)
    if bad is None:
        return
    x = as_array(np.asarray(bad, np.float32))
    for call in (make, lambda x: jax.jit(lambda: make(x).materialise())()):
        with pytest.raises(ValueError, match=name.split(".")[0].split()[0]):
            call(x)


@pytest.mark.parametrize(
    "name", ["Triangular", "Banded", "Tridiagonal", "BlockDiagonal", "Toeplitz"]
)
def test_a_nan_stays_where_it_is(name):
    make, good, _ = MAKERS[name]
    x = np.array(good, np.float32)
    x[0, 0] = np.nan
    if name == "Toeplitz":
        x[np.diag_indices(6)] = np.nan
    np.testing.assert_array_equal(np.asarray(make(x).materialise()), x)


def test_a_nan_elsewhere_is_not_a_zero():
    x = np.tri(6, dtype=np.float32)
    x[0, 5] = np.nan
    with pytest.raises(ValueError, match="upper triangle"):
        values.Triangular.from_dense(x)


def test_a_circulant_matrix_holds_an_array_of_numpy():
    v = values.Circulant(RING[:, 0])
    close(jax.jit(lambda: jaxrewrite.materialise(v))(), RING)


def test_an_interval_of_which_one_bound_is_known():
    between = lambda upper: Interval(np.zeros(2, np.float32), upper)
    close(jax.jit(between)(jnp.ones(2)).upper, np.ones(2))


@pytest.mark.parametrize("name", ["Quantised", "NF4", "Float8"])
def test_arrays_are_quantised_by_one_program(name):
    make, good, _ = MAKERS[name]
    quantise = jax.make_jaxpr(lambda w: jax.tree.leaves(make(w)))(jnp.asarray(good))
    decode = jax.make_jaxpr(lambda v: v.materialise())(make(jnp.asarray(good)))
    assert [len(program.eqns) for program in (quantise, decode)] == [1, 1]

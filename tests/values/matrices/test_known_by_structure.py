"""What matrices know by their structure, asked of them directly, beside NumPy on dense ones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.sparse import BCOO, BCSR

from jaxrewrite import materialise, transform
from jaxrewrite.values import (
    Banded,
    BlockDiagonal,
    Diagonal,
    Identity,
    Kronecker,
    LowRank,
    Permutation,
    Product,
    Sparse,
    Sum,
    Symmetric,
    Toeplitz,
    Triangular,
)
from jaxrewrite.values._matrices.linalg import _Inverse


RNG = np.random.default_rng(0)


def normal(*shape):
    return jnp.asarray(RNG.normal(size=shape), jnp.float32)


def definite(n):
    x = normal(n, n)
    return x @ x.T + n * jnp.eye(n)


def sparse(*places):
    entries = jnp.arange(1.0, 1 + len(places))
    return Sparse(BCOO((entries, jnp.array(places)), shape=(3, 3), unique_indices=True))


X, D = normal(3, 3), definite(3)
TOEPLITZ, FACTORS = Toeplitz(normal(4), normal(5)), (definite(2), D)
TRIANGULAR, FACTOR = Triangular(X), normal(3)
TWO = [definite(2), definite(2)]
TURN, OTHER = Permutation(jnp.array([1, 0, 2])), Permutation(jnp.array([1, 2, 0]))
PAIR = sparse((0, 1), (2, 0)), sparse((0, 1), (1, 1), (2, 2))
SUM = Sum((LowRank(normal(3, 1), normal(1, 4)), Toeplitz(normal(3), normal(4))))


def dense(v):
    return np.asarray(materialise(v))


def unit_lower(x):
    return np.tril(x, -1) + np.eye(len(x))


KNOWN = {
    "the lower part of a Toeplitz matrix": (
        *(lambda: TOEPLITZ.known_lower_part(1), lambda: np.tril(dense(TOEPLITZ), 1)),
    ),
    "the diagonal of a permutation": (
        *(TURN.known_diagonal, lambda: np.diag(dense(TURN))),
    ),
    "scaled rows of a triangle": (
        lambda: TRIANGULAR.scaled_rows(FACTOR),
        lambda: FACTOR[:, None] * dense(TRIANGULAR),
    ),
    "scaled rows of a transposed triangle": (
        lambda: TRIANGULAR.transposed().scaled_rows(FACTOR),
        lambda: FACTOR[:, None] * dense(TRIANGULAR).T,
    ),
    "triangles of blocks": (
        lambda: BlockDiagonal(jnp.stack(TWO)).known_triangle(True, True),
        lambda: unit_lower(dense(BlockDiagonal(jnp.stack(TWO)))),
    ),
    "upper triangles of blocks": (
        lambda: BlockDiagonal(jnp.stack(TWO)).known_triangle(False, False),
        lambda: np.triu(dense(BlockDiagonal(jnp.stack(TWO)))),
    ),
    "an inverse": (*(lambda: _Inverse(Diagonal(FACTOR)), lambda: np.diag(1 / FACTOR)),),
    "a transposed inverse": (
        *(lambda: _Inverse(TRIANGULAR, True), lambda: np.linalg.inv(dense(TRIANGULAR)).T),
    ),
    "the Cholesky factor of a Kronecker product": (
        Kronecker(FACTORS).cholesky,
        lambda: np.linalg.cholesky(np.kron(*FACTORS)),
    ),
    "sparse matrices with as many entries": (
        *(lambda: PAIR[0].join(PAIR[1])[0], lambda: dense(PAIR[0])),
    ),
    "sparse matrices with as many entries, the other": (
        *(lambda: PAIR[1].join(PAIR[0])[1], lambda: dense(PAIR[0])),
    ),
    "a sparse matrix and a diagonal": (
        lambda: transform(jnp.add)(PAIR[0], Diagonal(FACTOR)),
        lambda: dense(PAIR[0]) + np.diag(FACTOR),
    ),
    **{
        f"norms of a sum along {axis}": (
            lambda axis=axis: transform(lambda v: jnp.linalg.norm(v, axis=axis))(SUM),
            lambda axis=axis: np.linalg.norm(dense(SUM), axis=axis),
        )
        for axis in (0, 1, (0, 1))
    },
}


@pytest.mark.parametrize("name", KNOWN)
def test_it_is_that_of_the_dense_matrix(name):
    got, want = KNOWN[name]
    np.testing.assert_allclose(dense(got()), want(), rtol=1e-4, atol=1e-5)


def test_sparse_matrices_meet_in_one_form():
    one, other = PAIR[0].join(Sparse(BCSR.from_bcoo(PAIR[1].bcoo())))
    assert jax.tree.structure(one) == jax.tree.structure(other)
    np.testing.assert_array_equal(dense(one), dense(PAIR[0]))
    np.testing.assert_array_equal(dense(other), dense(PAIR[1]))
    assert PAIR[0].join(Diagonal(FACTOR)) is NotImplemented


def test_factors_of_a_kronecker_product():
    assert isinstance(Kronecker(FACTORS).cholesky(), Kronecker)
    values, vectors = Kronecker(FACTORS).eigh()
    product = np.kron(*FACTORS)
    np.testing.assert_allclose(np.sort(values), np.linalg.eigvalsh(product), rtol=1e-4)
    vectors = dense(vectors)
    np.testing.assert_allclose(product @ vectors, vectors * values, 1e-3, 1e-3)


def test_what_is_a_triangle_and_what_is_unitary():
    lower = Banded(normal(2, 3), lower=1, upper=0)
    assert lower.is_triangular(True) and not lower.is_triangular(False)
    for make in (Kronecker, Product):
        assert make((TURN, OTHER)).is_unitary
        assert not make((TURN, Diagonal(FACTOR))).is_unitary


def test_derivatives_that_a_structure_knows():
    identity = Identity(3)
    assert identity.tangent(None).shape == (3, 3) and not identity.tangent(None).any()
    multiply = transform(lambda v, x: v @ x)
    fn = lambda x: multiply(Symmetric(x), X)
    want = lambda x: (jnp.tril(x) + jnp.tril(x, -1).T) @ X
    got, wanted = (jax.jvp(f, (D,), (X,)) for f in (fn, want))
    np.testing.assert_allclose(got[1], wanted[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "operands, kept",
    [
        ((Diagonal(jnp.arange(3.0)), Identity(2)), Diagonal),
        ((BlockDiagonal(jnp.arange(8.0).reshape(2, 2, 2)),) * 2, BlockDiagonal),
    ],
)
def test_blocks_along_a_diagonal_stay_blocks(operands, kept):
    result = transform(jax.scipy.linalg.block_diag, materialise="forbid")(*operands)
    assert type(result) is kept
    dense = jax.scipy.linalg.block_diag(*map(materialise, operands))
    np.testing.assert_array_equal(materialise(result), dense)

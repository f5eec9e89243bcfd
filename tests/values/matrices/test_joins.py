"""Matrices of several types in the branches of a conditional, and in the turns of a loop."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxrewrite import materialise, transform
from jaxrewrite.values import (
    Banded,
    BlockDiagonal,
    Circulant,
    Diagonal,
    Identity,
    Kronecker,
    ScalarMatrix,
    Symmetric,
    Toeplitz,
    Triangular,
    Tridiagonal,
)


RNG = np.random.default_rng(0)


def normal(*shape):
    return jnp.asarray(RNG.normal(size=shape), jnp.float32)


X = normal(6, 6)
DIAGONALS = {
    "Identity": Identity(6),
    "ScalarMatrix": ScalarMatrix(jnp.float32(-3), 6),
    "an infinite ScalarMatrix": ScalarMatrix(jnp.float32(jnp.inf), 6),
    "Diagonal": Diagonal(X[0].at[1].set(jnp.nan)),
}
MATRICES = {
    "BlockDiagonal": BlockDiagonal(normal(2, 3, 3)),
    "upper Triangular": Triangular(X, lower=False),
    "Symmetric": Symmetric(X),
    "positive Symmetric": Symmetric(X @ X.T, positive=True),
    "Tridiagonal": Tridiagonal(X[0, 1:], X[1], X[2, 1:]),
    "Banded": Banded(X[:3], lower=2, upper=0),
    "Circulant": Circulant(X[0]),
    "Toeplitz": Toeplitz(X[0], X[1]),
    "Kronecker": Kronecker(normal(2, 2), normal(3, 3)),
    "Kronecker of values": Kronecker(Diagonal(X[0, :2]), Symmetric(X[:3, :3])),
    "Kronecker with an identity": Kronecker(Identity(2), X[:3, :3]),
}
PRODUCTS = [name for name in MATRICES if name.startswith("Kronecker")]
# Those with one number on the whole diagonal, and those without a number.
JOINED = dict.fromkeys(("Circulant", "Toeplitz"), [x for x in DIAGONALS if x != "Diagonal"])
JOINED |= dict.fromkeys(PRODUCTS, ("Identity",))


def choose(p, v, w):
    return lax.cond(p, lambda: v, lambda: w)


@pytest.mark.parametrize("name", MATRICES)
def test_a_matrix_on_its_diagonal_joins_one_with_more_entries(name):
    v = MATRICES[name]
    for w in (DIAGONALS[kind] for kind in JOINED.get(name, DIAGONALS)):
        for x, y in ((v, w), (w, v)):
            for p in (True, False):
                result = transform(choose, materialise="forbid")(jnp.array(p), x, y)
                assert type(result) is type(v)
                np.testing.assert_array_equal(
                    materialise(result), materialise(x if p else y)
                )


def test_numbers_that_a_structure_does_not_have_do_not_join_it():
    for name, kinds in JOINED.items():
        for kind in DIAGONALS.keys() - kinds:
            v, w = MATRICES[name], DIAGONALS[kind]
            result = transform(choose, materialise="allow")(jnp.array(False), v, w)
            assert isinstance(result, jax.Array)
            np.testing.assert_array_equal(result, materialise(w))


@pytest.mark.parametrize("dtype", ["bool", "int8", "complex64"])
def test_dtypes_stay(dtype):
    for v in (v for name, v in MATRICES.items() if name not in PRODUCTS):
        cast, one = transform(lambda v: v.astype(dtype))(v), Identity(6, dtype)
        result = transform(choose, materialise="allow")(jnp.array(False), cast, one)
        assert result.dtype == dtype
        np.testing.assert_array_equal(materialise(result), materialise(one))


@pytest.mark.parametrize("is_nested", [False, True])
def test_zeros_are_not_positive(is_nested):
    v = Symmetric(X[:2] @ X[:2].T, positive=True)
    v = Kronecker(v, v) if is_nested else v
    zeros = jnp.zeros(v.shape)
    in_a_branch = lambda v, p: lax.cond(p, lambda: v, lambda: zeros)
    in_a_carry = lambda v, p: lax.scan(lambda c, _: (v, c), zeros, length=1)[1][0]
    beside = lambda v, p: jnp.concatenate([v[None], zeros[None]])[1]
    for fn in (in_a_branch, in_a_carry, beside):
        run = transform(lambda v, p, fn=fn: jnp.linalg.det(fn(v, p)), materialise="allow")
        assert run(v, jnp.array(False)) == 0
        result = transform(fn, materialise="allow")(v, jnp.array(False))
        is_symmetric = lambda x: isinstance(x, Symmetric)
        leaves = jax.tree.leaves(result, is_leaf=is_symmetric)
        assert not any(x.positive for x in leaves if is_symmetric(x))


def test_what_is_known_of_signs_is_not_taken_from_one_branch():
    v, w = MATRICES["positive Symmetric"], Diagonal(-jnp.ones(6))
    assert not transform(choose)(jnp.array(True), v, w).positive


@pytest.mark.parametrize("name", ["BlockDiagonal", "Circulant", "Kronecker"])
def test_covariances_that_begin_with_the_identity(name):
    """As in filters: each turn has the transition on both sides."""

    def program(scale, a, start):
        turn = lambda i, p: (scale * a) @ p @ a.T
        return lax.fori_loop(0, 3, turn, start)

    a, start = MATRICES[name], Identity(6)
    result = transform(program, materialise="forbid")(0.5, a, start)
    assert type(result) is type(a)
    want = program(0.5, materialise(a), jnp.eye(6))
    np.testing.assert_allclose(materialise(result), want, rtol=1e-3, atol=1e-3)
    loss = lambda *args: jnp.sum(program(*args) @ X[0])
    by_scale = transform(jax.grad(loss), materialise="forbid")(0.5, a, start)
    np.testing.assert_allclose(
        by_scale, jax.grad(loss)(0.5, materialise(a), jnp.eye(6)), rtol=1e-2, atol=1e-2
    )
    outside = jax.grad(transform(loss, materialise="forbid"))(0.5, a, start)
    np.testing.assert_allclose(outside, by_scale, rtol=1e-3, atol=1e-3)


def test_stacks_of_them():
    stack = BlockDiagonal(normal(3, 2, 2, 2))
    ones = Identity(4, of_batch=(3,))
    result = transform(choose, materialise="forbid")(jnp.array(False), stack, ones)
    np.testing.assert_array_equal(materialise(result), materialise(ones))
    of_each = jax.vmap(choose, in_axes=(None, 0, None))
    result = transform(of_each, materialise="forbid")(jnp.array(False), stack, Identity(4))
    np.testing.assert_array_equal(materialise(result), materialise(ones))

"""Cholesky factors, eigenvectors and singular vectors that stay implicit."""

import functools

import jax
import jax.numpy as jnp
import jax.scipy.linalg as scipy_in_jax
import numpy as np
import pytest
import scipy.linalg
from choose import often, slow
from oracle import forbid

import jaxrewrite
from jaxrewrite.testing import assert_same
from jaxrewrite.values import (
    Banded,
    BlockDiagonal,
    Circulant,
    Diagonal,
    Identity,
    Kronecker,
    Matrix,
    Permutation,
    ScalarMatrix,
    Scaled,
    Sum,
    Symmetric,
    Toeplitz,
    Tridiagonal,
)


pytestmark = pytest.mark.usefixtures("double")


RNG = np.random.default_rng(0)


def positive(n):
    x = RNG.normal(size=(n, n))
    return jnp.asarray(x @ x.T + np.eye(n))


Y = np.arange(6.0)


def by_cholesky(k):
    low = jnp.linalg.cholesky(k)
    solve = functools.partial(jax.scipy.linalg.solve_triangular, low, lower=True)
    return (
        low @ Y,
        solve(Y),
        solve(Y, trans=1),
        jnp.log(jnp.diagonal(low)).sum(),
        jnp.linalg.cholesky(k, upper=True) @ Y,
        jax.scipy.linalg.cho_solve((low, True), Y),
        jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(k), Y),
        jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(k, lower=True), Y),
    )


def by_eigenvectors(k):
    values, vectors = jnp.linalg.eigh(k)
    return (
        values,
        vectors @ (jnp.sin(values) * (vectors.T @ Y)),
        jnp.linalg.eigvalsh(k),
        jax.scipy.linalg.eigh(k)[0],
        jnp.linalg.eigh(k, UPLO="U")[0],
        jnp.linalg.eigvalsh(k, UPLO="U"),
        jax.scipy.linalg.eigh(k, lower=False)[0],
    )


def by_singular_vectors(k):
    u, size, vh = jnp.linalg.svd(k)
    return (
        size,
        u @ (size * (vh @ Y)),
        jnp.linalg.norm(k, 2),
        jnp.linalg.cond(k),
        jnp.linalg.lstsq(k, Y)[0],
        jnp.linalg.matrix_rank(k),
        jnp.linalg.pinv(k) @ Y,
        Y @ jnp.linalg.pinv(k),
    )


def kronecker():
    return Kronecker(Symmetric(positive(2)), Symmetric(positive(3)))


POSITIVE = {
    "diagonal": lambda: Diagonal(1 + jnp.arange(6.0)),
    "blocks": lambda: BlockDiagonal(jnp.stack([positive(3), positive(3)])),
    "tridiagonal": lambda: Tridiagonal(jnp.ones(5), 3 + jnp.arange(6.0), jnp.ones(5)),
    "banded": lambda: Banded.from_dense(
        9 * jnp.eye(6) + jnp.tri(6, k=2) * jnp.tri(6, k=2).T, 2, 2
    ),
    "kronecker": kronecker,
    "nested": lambda: Kronecker(
        Kronecker(Diagonal(jnp.array([2.0, 1.0])), Identity(1, jnp.float64)),
        Symmetric(positive(3)),
    ),
    "scaled": lambda: Scaled(kronecker(), jnp.float64(1.5)),
    "symmetric": lambda: Symmetric(positive(6)),
    "identity": lambda: Identity(6, jnp.float64),
    "multiple of the identity": lambda: ScalarMatrix(jnp.float64(2), 6),
    "negative factors": lambda: Kronecker(
        Symmetric(-positive(2)), Diagonal(-1 - jnp.arange(3.0))
    ),
}
GENERAL = {
    "diagonal": lambda: Diagonal(jnp.array([3.0, -1.0, 2.0, 0.5, -6.0, 5.0])),
    "blocks": lambda: BlockDiagonal(jnp.asarray(RNG.normal(size=(2, 3, 3)))),
    "kronecker": lambda: Kronecker(
        jnp.asarray(RNG.normal(size=(2, 2))), Diagonal(jnp.array([3.0, -1.0, 2.0]))
    ),
    "scaled": lambda: Scaled(
        BlockDiagonal(jnp.asarray(RNG.normal(size=(2, 3, 3)))), jnp.float64(-1.5)
    ),
    "permutation": lambda: Permutation(jnp.array([1, 0, 3, 4, 5, 2]), jnp.float64),
    "identity": lambda: Identity(6, jnp.float64),
}


def check(v, fn):
    got = jax.jit(lambda v: jaxrewrite.materialise(forbid(fn)(v)))(v)
    assert_same(got, jax.jit(fn)(jaxrewrite.materialise(v)), 1e-8)


@pytest.mark.parametrize("name", often(POSITIVE, ("kronecker", "scaled")))
def test_cholesky(name, bulk):
    v = POSITIVE[name]()
    check(v, by_cholesky)
    assert_same(v.cholesky(), np.linalg.cholesky(np.asarray(v)), 1e-8)


@pytest.mark.parametrize(
    "v",
    [
        Diagonal(jnp.array([1.0, -1.0])),
        ScalarMatrix(jnp.array(-1.0), 2),
        BlockDiagonal(jnp.stack([jnp.eye(2), -jnp.eye(2)])),
    ],
    ids=lambda v: type(v).__name__,
)
@pytest.mark.parametrize(
    "fn",
    [
        jnp.linalg.cholesky,
        lambda v: scipy_in_jax.cho_solve(scipy_in_jax.cho_factor(v), jnp.ones(v.shape[0])),
    ],
    ids=["factor", "solution"],
)
def test_what_has_no_cholesky_factor_has_no_derivative(v, fn):
    """A derivative of zero would look like a minimum."""
    loss = lambda v: jaxrewrite.materialise(forbid(fn)(v)).sum()
    dense = lambda v: fn(jaxrewrite.materialise(v)).sum()
    assert jnp.isnan(loss(v))
    (got,), (want,) = (jax.tree.leaves(jax.grad(f)(v)) for f in (loss, dense))
    np.testing.assert_array_equal(jnp.isnan(got), jnp.isnan(want))
    assert jnp.isnan(got).any()


def test_a_factor_that_is_negative_holds_an_identity():
    """An even number of them makes a positive definite product."""
    negative = Symmetric(-positive(2))
    check(
        Kronecker(Kronecker(Identity(2, negative.dtype), negative), negative),
        jnp.linalg.cholesky,
    )
    v = Kronecker(Circulant(jnp.array([-5.0, 1.0])) + Identity(2), negative)
    fn = functools.partial(scipy_in_jax.cholesky, lower=True)
    got = jaxrewrite.transform(fn, materialise="allow")(v).materialise()
    assert_same(got, fn(v.materialise()), 1e-8)


_WITH_EIGENVECTORS = [x for x in POSITIVE if x not in ("tridiagonal", "banded")]


@pytest.mark.parametrize("name", often(_WITH_EIGENVECTORS, ("nested",)))
def test_eigenvectors(name, bulk):
    check(POSITIVE[name](), by_eigenvectors)


@pytest.mark.parametrize("name", often(GENERAL, ("diagonal", "kronecker")))
def test_singular_vectors(name, bulk):
    check(GENERAL[name](), by_singular_vectors)


def singular_values(v):
    return jnp.linalg.svd(v, compute_uv=False)


def test_singular_values_of_a_shifted_kronecker_product(bulk):
    check(Sum((kronecker(), ScalarMatrix(jnp.array(-3.0), 6))), singular_values)


def test_gradients_and_batches(bulk):
    def fn(k):
        low = jnp.linalg.cholesky(k)
        solved = jax.scipy.linalg.solve_triangular(low, Y, lower=True)
        return solved @ solved + 2 * jnp.log(jnp.diagonal(low)).sum()

    def each(k):
        low = jnp.linalg.cholesky(k)
        return low @ Y, jnp.linalg.eigvalsh(k), jnp.linalg.svd(k, compute_uv=False)

    v = kronecker()
    dense = lambda v: fn(jaxrewrite.materialise(v))
    symmetric = jax.jit(jax.grad(lambda v: forbid(fn)(v)))(v)
    assert_same(symmetric, jax.jit(jax.grad(dense))(v), 1e-8)
    stack = jax.tree.map(lambda x: jnp.stack([x, 2 * x]), v)
    want = jax.vmap(lambda v: each(v.materialise()))(stack)
    assert_same(jax.jit(jax.vmap(forbid(each)))(stack), want, 1e-8)
    assert_same(jax.jit(forbid(jax.vmap(each)))(stack), want, 1e-8)


def test_what_is_not_known_to_be_symmetric_is_not_taken_to_be(bulk):
    """JAX's functions make the symmetric part of such a matrix first."""
    x = jnp.asarray(RNG.normal(size=(3, 3)) / 9 + 3 * np.eye(3))
    kinds = [Kronecker(x[:2, :2], x), BlockDiagonal(jnp.stack([x, x.T]))]
    kinds.append(Tridiagonal(jnp.zeros(5), 3 + Y, jnp.ones(5)))
    fn = lambda ks: [(jnp.linalg.cholesky(k), jnp.linalg.eigvalsh(k)) for k in ks]
    allowed = jaxrewrite.transform(fn, materialise="allow")
    got = jax.jit(lambda ks: jaxrewrite.materialise(allowed(ks)))(kinds)
    assert_same(got, jax.jit(fn)(jaxrewrite.materialise(kinds)), 1e-8)
    with pytest.raises(jaxrewrite.MaterialisationError, match="'cholesky' on Sum"):
        forbid(jnp.linalg.cholesky)(kinds[0])


def test_failed_and_singular_factorisations(bulk):
    indefinite = [
        Kronecker(Symmetric(-positive(2)), Symmetric(positive(3))),
        Diagonal(Y - 1),
        Scaled(kronecker(), jnp.float64(-1.0)),
        Kronecker(Identity(2, jnp.float64), Diagonal(jnp.array([-1.0, -2.0, -3.0]))),
    ]
    factors = forbid(lambda ks: [jnp.linalg.cholesky(k) @ Y for k in ks])
    for found in jaxrewrite.materialise(factors(indefinite)):
        assert np.isnan(found).any()
    singular = [Diagonal(jnp.asarray(Y)), Kronecker(jnp.ones((2, 2)), jnp.eye(3))]
    fn = lambda ks: [(jnp.linalg.matrix_rank(k), jnp.linalg.lstsq(k, Y)[0]) for k in ks]
    dense = jax.jit(jaxrewrite.materialise)(singular)
    assert_same(jax.jit(forbid(fn))(singular), jax.jit(fn)(dense), 1e-8)
    zero = Diagonal(jnp.zeros(3))
    fn = lambda k: (jnp.linalg.cond(k), jnp.linalg.svd(k, compute_uv=False))
    assert_same(forbid(fn)(zero), fn(zero.materialise()), 1e-8)


def test_the_zeros_of_a_failed_factor_of_a_multiple_stay_zeros():
    fn = lambda v: jnp.linalg.cholesky(v, symmetrize_input=False)
    tridiagonal = Tridiagonal(*map(jnp.asarray, ([0.5] * 2, [2.0] * 3, [0.5] * 2)))
    for v in (Diagonal(1 + jnp.asarray(Y)), tridiagonal, Symmetric(positive(3))):
        found = forbid(fn)(Scaled(v, jnp.float64(-2.0)))
        kept = forbid(fn)(Scaled(v, jnp.float64(2.0)))
        np.testing.assert_allclose(
            found.materialise(), np.where(kept.materialise() == 0, 0, np.nan)
        )
        dense = jnp.linalg.cholesky(2 * v.materialise())
        np.testing.assert_allclose(kept.materialise(), dense, rtol=1e-12)
    several = jax.vmap(Scaled)(Diagonal(jnp.ones((2, 3))), jnp.array([4.0, -1.0]))
    found = forbid(fn)(several).materialise()
    np.testing.assert_array_equal(found, [2 * np.eye(3), np.where(np.eye(3), np.nan, 0)])


def test_a_negative_multiple_of_a_negative_matrix_has_a_factor(bulk):
    blocks = BlockDiagonal(jnp.stack([jnp.asarray(positive(2))] * 2))
    for v in (Diagonal(1 + jnp.asarray(Y) ** 2), Symmetric(positive(3)), blocks):
        factor = jax.jit(forbid(lambda v, s: jnp.linalg.cholesky(v / s)))
        dense = np.linalg.cholesky(v.materialise() / 1.7)
        negative = forbid(lambda v: -v)(v)
        found = factor(negative, -1.7)
        assert isinstance(found, jaxrewrite.Value)
        np.testing.assert_allclose(found.materialise(), dense, rtol=1e-12, atol=1e-12)
        for failed in (factor(v, -1.7), factor(negative, 1.7)):
            above = np.triu(failed.materialise(), 1)
            np.testing.assert_array_equal(above, np.zeros(v.shape))
            assert np.isnan(np.diagonal(failed.materialise())).all()


def test_multiples_of_matrices_that_no_type_calls_symmetric(bulk):
    """The function of JAX takes the symmetric part, which no lazy sum may hide."""
    lower, upper = jnp.array([0.5, 0.3]), jnp.array([0.1, 0.7])
    tridiagonal = Tridiagonal(lower, jnp.array([2.0, 3.0, 4.0]), upper)
    blocks = BlockDiagonal(jnp.asarray(RNG.normal(size=(2, 2, 2)) + 6 * np.eye(2)))
    factors = lambda v, s: jnp.linalg.cholesky(v / s)
    loss = lambda v, s: abs(factors(v, s)).sum()
    for v in (tridiagonal, tridiagonal.as_banded(), blocks):
        s = jnp.asarray(1.7)
        dense = v.materialise()
        fn = forbid(factors)
        assert isinstance(fn(v, s), jaxrewrite.Value)
        assert_same(jaxrewrite.materialise(fn(v, s)), factors(dense, s), 1e-8)
        got = jax.grad(forbid(loss), 1)(v, s)
        assert_same(got, jax.grad(loss, 1)(dense, s), 1e-8)
        several = jax.vmap(lambda v, s: v / s, (None, 0))(v, jnp.array([1.0, 2.0]))
        found = jaxrewrite.materialise(jax.vmap(fn, (0, None))(several, s))
        assert_same(found[1], factors(dense, 2 * s), 1e-8)
    fn = lambda v, s: jnp.linalg.eigvalsh(v / s)
    assert_same(forbid(fn)(blocks, 1.7), fn(blocks.materialise(), 1.7), 1e-8)


class Small(Matrix):
    """What a matrix has to define, and no more."""

    d: jax.Array

    def aval(self):
        return jax.core.ShapedArray((*self.d.shape, self.d.shape[-1]), self.d.dtype)

    def materialise(self):
        return self.d[..., :, None] * jnp.eye(self.d.shape[-1], dtype=self.d.dtype)

    def apply(self, x, axis, precision=None):
        return jnp.moveaxis(jnp.moveaxis(x, axis, -1) * self.d, -1, axis)

    def transposed(self):
        return self


class Added(Small):
    """The symmetric part of one is a multiple of it."""

    def plus(self, other):
        return Added(self.d + other.d)


@pytest.mark.parametrize("cls", [Small, Added])
def test_factors_of_multiples_of_a_matrix_that_knows_none_of_them(cls, bulk):
    v = cls(jnp.array([4.0, 9.0]))
    for fn in (
        lambda v: jnp.linalg.cholesky(2 * v),
        jnp.linalg.cholesky,
        lambda v: jnp.linalg.cholesky(-2 * v),
        lambda v: scipy_in_jax.solve(2 * v, jnp.ones(2), assume_a="pos"),
        lambda v: jnp.linalg.eigvalsh(v / 2),
    ):
        got = jaxrewrite.materialise(jaxrewrite.transform(fn, materialise="allow")(v))
        assert_same(got, fn(v.materialise()), 1e-8)


@pytest.mark.slow
def test_gradients_of_pseudo_inverses(bulk):
    """Of regular and singular matrices, with singular values that are the same."""
    kinds = [
        Kronecker(jnp.ones((2, 2)), Symmetric(2 * jnp.eye(3))),
        Diagonal(jnp.array([2.0, -2.0, 0.0, 1.0, 3.0, 1.0])),
        Scaled(BlockDiagonal(jnp.asarray(RNG.normal(size=(2, 3, 3)))), jnp.float64(-1.5)),
        Kronecker(jnp.asarray(RNG.normal(size=(2, 2)) + 1j), jnp.eye(3) + 0j),
    ]

    def each(ks):
        return [jnp.sin(abs(jnp.linalg.pinv(k) @ Y)).sum() for k in ks]

    mine = lambda ks: sum(forbid(each)(ks))
    dense = lambda ks: sum(each(jaxrewrite.materialise(ks)))
    got, want = (jax.jit(jax.value_and_grad(fn))(kinds) for fn in (mine, dense))
    assert_same(got, want, 1e-8)
    v = kinds[2]
    of_vector = lambda k: jax.grad(lambda y: jnp.sin(jnp.linalg.pinv(k) @ y).sum())(Y)
    assert_same(forbid(of_vector)(v), of_vector(v.materialise()), 1e-8)
    allowed = jaxrewrite.transform(jnp.linalg.pinv, materialise="allow")(v)
    assert_same(jaxrewrite.materialise(allowed), jnp.linalg.pinv(v.materialise()), 1e-8)


@pytest.mark.parametrize("n", [slow(1), slow(2), 5])
@pytest.mark.parametrize("cls", [Circulant, slow(Toeplitz)])
def test_what_a_fourier_transform_has_made_is_factorised(cls, n, bulk):
    """XLA on a CPU would have the transform in a layout that it cannot transform."""
    rng = np.random.default_rng(0)
    column, x = rng.normal(size=n), rng.normal(size=(3, n, n))
    v = cls(jnp.asarray(column), *([jnp.asarray(column)] if cls is Toeplitz else []))
    one = lambda v, x: (jnp.linalg.inv(x @ v), jnp.linalg.qr(v @ x)[1], (x @ v.T).T)
    each = lambda v, x: jax.vmap(one, (None, 0))(v, x)
    same = lambda g, w: np.testing.assert_allclose(abs(g), abs(w), rtol=1e-3, atol=1e-4)
    for fn, y in ((one, x[0]), (each, x)):
        got = jax.jit(jaxrewrite.transform(fn, materialise="allow"))(v, jnp.asarray(y))
        jax.tree.map(same, got, fn(np.asarray(v), y))


def test_gradient_of_a_stack_of_circulants_whose_columns_are_an_inverse():
    """XLA on a CPU would have the gradient of the columns in the layout of the inverse."""
    rng = np.random.default_rng(0)
    a, x = jnp.asarray(rng.normal(size=(3, 3)) + 3 * np.eye(3)), jnp.ones((3, 3, 2))
    fn = lambda v: jnp.sum((v @ x) ** 2)
    mine = lambda a: forbid(fn)(Circulant(jnp.linalg.inv(a)))
    dense = lambda a: fn(Circulant(jnp.linalg.inv(a)).materialise())
    got, want = (jax.jit(jax.grad(each))(a) for each in (mine, dense))
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3)


def test_singular_values_of_a_circulant():
    v = Circulant(jnp.array([9.0, 1.0, 0.0, -2.0]))
    for order in (2, "nuc"):
        found = forbid(functools.partial(jnp.linalg.norm, ord=order))(v)
        assert_same(found, np.linalg.norm(np.asarray(v), order), 1e-8)


@pytest.mark.slow
def test_a_sum_of_arrays_has_an_array_as_its_adjoint(bulk):
    a = 3 * np.eye(3) + np.array([[0, 1j, 0], [-1j, 0, 0], [0, 0, 0]])
    v = Sum((jnp.asarray(a / 2), jnp.asarray(a / 2)))
    fn = lambda v: (jax.scipy.linalg.cholesky(v), jnp.triu(v), jnp.linalg.solve(v.T, Y[:3]))
    allowed = jaxrewrite.transform(fn, materialise="allow")
    assert_same(jaxrewrite.materialise(allowed(v)), fn(jnp.asarray(a)), 1e-8)


# --- what few types know of themselves ------------------------------------------------------


def of_few():
    """Values, and what is asked of each."""
    rng = np.random.default_rng(1)
    x, y = jnp.asarray(rng.normal(size=(2, 3, 3))), jnp.asarray(rng.normal(size=(4, 5)))
    blocks, one, other = BlockDiagonal(x), x[0], x[1, :2, :2]
    identity = lambda n: Identity(n, jnp.float64)
    total = Sum((Kronecker(one, identity(2)), Kronecker(identity(3), other)))
    turned = BlockDiagonal(x * (1 + 0.5j))
    return {
        "banded": (Banded(y, 1, 2), "parts"),
        "blocks": (
            blocks,
            "parts",
            "eigenvalues",
            "triangles",
            "unit triangles",
            "exponential",
        ),
        "toeplitz": (Toeplitz(jnp.arange(1.0, 5), jnp.arange(1.0, 7) ** 2), "parts"),
        "identity": (identity(3), "parts"),
        "multiple": (ScalarMatrix(jnp.float64(3), 3), "parts"),
        "permutation": (Permutation(jnp.array([1, 0, 2]), jnp.float64), "vectors"),
        "scaled": (Scaled(blocks, jnp.float64(-2)), "vectors", "triangles"),
        "phase": (Scaled(turned, jnp.complex128(2 - 1j)), "vectors"),
        "circulant": (Circulant(turned.blocks[0, 0]), "vectors", "eigenvalues"),
        "kronecker": (Kronecker(one, other), "eigenvalues"),
        "kronecker sum": (total, "exponential"),
    }


def sums_of_powers(xp, x):
    """Of eigenvalues, which have no order."""
    return [xp.sum(xp.asarray(x) ** k) for k in range(1, 7)]


def restored(u, size, vh):
    return (u * size) @ vh, size


def test_what_few_types_know_of_themselves(bulk):
    """By NumPy and SciPy, in one program."""

    def of_values(xp, solve, expm, v):
        side = lambda **how: solve(v, xp.arange(1.0, 7), **how)
        return {
            "parts": lambda: [fn(v, k=k) for fn in (xp.tril, xp.triu) for k in (-1, 0, 1)],
            "eigenvalues": lambda: sums_of_powers(xp, xp.linalg.eigvals(v)),
            "vectors": lambda: restored(*xp.linalg.svd(v)),
            "exponential": lambda: expm(v),
            "triangles": lambda: [side(lower=lower) for lower in (True, False)],
            "unit triangles": lambda: [
                side(lower=lower, unit_diagonal=True) for lower in (True, False)
            ],
        }

    program = functools.partial(
        of_values, jnp, jax.scipy.linalg.solve_triangular, jax.scipy.linalg.expm
    )
    numpy = functools.partial(
        of_values, np, scipy.linalg.solve_triangular, scipy.linalg.expm
    )
    asked = {name: what for name, (_, *what) in of_few().items()}
    values = {name: v for name, (v, *_) in of_few().items()}
    results = lambda of, vs: {n: [of(v)[k]() for k in asked[n]] for n, v in vs.items()}
    got = jax.jit(forbid(functools.partial(results, program)))(values)
    want = results(numpy, jax.tree.map(np.asarray, jaxrewrite.materialise(values)))
    assert_same(got, want, 1e-9)

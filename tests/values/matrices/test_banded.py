"""Special properties of matrices with few diagonals, or in one triangle of an array."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from choose import slow
from oracle import everything, forbid, made_dense, materialised, programs

import jaxrewrite
from jaxrewrite.testing import assert_same
from jaxrewrite.values import (
    Banded,
    Diagonal,
    Identity,
    Product,
    Symmetric,
    Triangular,
    Tridiagonal,
)


pytestmark = pytest.mark.usefixtures("bulk", "double")


# Leaf by leaf, with `jax.tree.map`.
close = functools.partial(assert_same, tolerance=1e-8)


N = 6


def numbers(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).uniform(0.25, 1, shape))


def banded(lower, upper, n=N, batch=(), seed=0):
    """A solvable matrix. The places outside of the matrix hold numbers too."""
    bands = numbers(*batch, lower + upper + 1, n, seed=seed)
    return Banded(bands.at[..., upper, :].add((lower + upper) / 2), lower, upper)


def tridiagonal(n=N, seed=0):
    d = numbers(3, n, seed=seed)
    return Tridiagonal(d[0, 1:], d[1] + 1, d[2, 1:])


def symmetric(n=N, batch=(), **kwargs):
    return Symmetric(numbers(*batch, n, n) + n * jnp.eye(n), **kwargs)


def positive(n=N, batch=()):
    return symmetric(n, batch, positive=True)


VARIANTS = {
    "diagonal": lambda: banded(0, 0),
    "banded_upper": lambda: banded(0, 2),
    "banded_lower": lambda: banded(2, 0),
    "banded_wide": lambda: banded(N + 1, 1),
    "tridiagonal_small": lambda: tridiagonal(1),
    "triangular_upper": lambda: Triangular(numbers(N, N) + jnp.eye(N), lower=False),
    "positive": positive,
}
variants = pytest.mark.parametrize("name", VARIANTS)


def dense(x):
    return np.asarray(made_dense(x))


# --- what bands are -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lower", "upper", "n"),
    [(1, 2, 4)] + [slow(pytest.param(*n)) for n in ((0, 0, 3), (3, 4, 2), (0, 3, 1))],
)
def test_diagonals_are_where_scipy_has_them(lower, upper, n):
    v = banded(lower, upper, n, batch=(2,))
    want = np.zeros((2, n, n))
    for i in range(n):
        for j in range(n):
            if -lower <= j - i <= upper:
                want[:, i, j] = v.bands[:, upper + i - j, j]
    assert_same(v, want, 1e-8)
    assert_same(v.transposed(), want.swapaxes(-1, -2), 1e-8)
    assert_same(v.pick(want), want, 1e-8)
    assert_same(v.diagonal(), np.diagonal(want, axis1=1, axis2=2), 1e-8)
    x = numbers(2, 3, n)
    assert_same(v.apply(x, 2), np.einsum("bij,bkj->bki", want, x), 1e-8)
    assert_same(v.scaled_rows(x[:, 0]), x[:, 0, :, None] * want, 1e-8)


@pytest.mark.slow
def test_places_without_an_entry_are_never_used():
    v = banded(1, 2)
    i, j = v.indices()
    spoilt = Banded(jnp.where((i >= 0) & (i < N), v.bands, jnp.nan), 1, 2)
    one = lambda v: (v @ v, v.T, 2 * v, jnp.sin(v), v @ jnp.ones(N), v + v.T, v * v)
    for got, want in zip(forbid(one)(spoilt), forbid(one)(v), strict=True):
        assert_same(got, want, 1e-8)

    def loss(v):
        logs = jnp.sqrt(v * jnp.ones((N, N))) / jnp.full((N, N), 2.0)
        return jnp.sin((logs @ logs) @ jnp.ones(N)).sum()

    got = jax.grad(forbid(loss))(spoilt).bands
    assert np.isfinite(got).all() and not got[(i < 0) | (i >= N)].any()


# --- what stays of the structure --------------------------------------------------------


def test_products_and_sums_have_the_bands_of_both():
    v, w = banded(1, 0, 8), banded(0, 2, 8, seed=1)
    found = forbid(lambda v, w: (v @ w, w @ v, v + w, v - w, v * w))(v, w)
    assert all(isinstance(x, Banded) for x in found)
    assert [(x.lower, x.upper) for x in found] == [(1, 2)] * 4 + [(0, 0)]
    a, b = dense(v), dense(w)
    for got, want in zip(found, (a @ b, b @ a, a + b, a - b, a * b), strict=True):
        assert_same(got, want, 1e-8)


def test_a_product_that_takes_more_room_than_dense_is_lazy():
    v = banded(1, 1, 4)
    found = forbid(lambda v: v @ v)(v)
    assert isinstance(found, Product)
    assert_same(found, dense(v) @ dense(v), 1e-8)


@pytest.mark.parametrize("kind", [lambda: banded(1, 1), tridiagonal])
def test_products_and_sums_with_diagonals(kind):
    v, d, eye = kind(), Diagonal(numbers(N)), Identity(N, jnp.dtype("float64"))
    fn = lambda v, d, eye: (d @ v, v @ d, v + d, eye - v, eye @ v, v * numbers(N, N), -v)
    found = forbid(fn)(v, d, eye)
    assert {type(x) for x in found} == {type(v)}
    for got, want in zip(found, fn(dense(v), dense(d), dense(eye)), strict=True):
        assert_same(got, want, 1e-8)
    assert isinstance(forbid(jnp.multiply)(v, d), Diagonal)


def test_tridiagonal_and_its_kind():
    v, w = tridiagonal(), tridiagonal(seed=1)
    assert isinstance(forbid(lambda v, w: v + 2 * w.T)(v, w), Tridiagonal)
    assert isinstance(forbid(lambda v, w: v @ w)(v, w), Banded)
    assert isinstance(forbid(jnp.add)(v, banded(0, 2)), Banded)
    assert_same(forbid(jnp.multiply)(v, banded(0, 2)), dense(v) * dense(banded(0, 2)), 1e-8)


@pytest.mark.slow
def test_entry_by_entry_with_a_matrix_that_knows_its_entries():
    v, w = banded(1, 2), Symmetric(numbers(N, N))
    found = forbid(jnp.multiply)(v, w)
    assert isinstance(found, Banded)
    assert_same(found, dense(v) * dense(w), 1e-8)


def test_bandwidths_meet_in_a_conditional_and_a_loop():
    v, w = banded(1, 0), tridiagonal()
    branch = lambda p, v, w: jax.lax.cond(p, lambda: v, lambda: w)
    for p, want in ((True, v), (False, w)):
        found = forbid(branch)(jnp.array(p), v, w)
        assert (found.lower, found.upper) == (1, 1)
        assert_same(found, want, 1e-8)
    grown = lambda d, w: jax.lax.fori_loop(0, 3, lambda _, c: c + w, d)
    d = Diagonal(numbers(N))
    found = forbid(grown)(d, w)
    assert isinstance(found, Tridiagonal)
    assert_same(found, dense(d) + 3 * dense(w), 1e-8)


def test_triangular_and_its_kind():
    v, w = Triangular(numbers(N, N)), Triangular(numbers(N, N, seed=1))
    fn = lambda v, w, d: (v @ w, v + w, v * w, v - d, v.T @ w.T)
    found = forbid(fn)(v, w, Diagonal(numbers(N)))
    assert [type(x) for x in found] == [Triangular] * 5
    assert [x.lower for x in found] == [True] * 4 + [False]
    assert_same(found[0], dense(v) @ dense(w), 1e-8)
    assert_same(found[4], dense(v).T @ dense(w).T, 1e-8)
    assert isinstance(forbid(jnp.multiply)(v, w.T), Diagonal)
    assert isinstance(forbid(jnp.matmul)(v, w.T), Product)
    # One is stored as a transpose.
    upper = Triangular(numbers(N, N, seed=1), lower=False)
    both = lambda v, w: (v + w.T, w.T - v, v * w.T, v.T * w)
    found = forbid(both)(v, upper)
    assert [type(x) for x in found] == [Triangular] * 4
    assert_same(found, both(dense(v), dense(upper)), 1e-8)


def test_symmetric_stays_symmetric():
    v = positive()
    kept = lambda v: (v.T, v + v, v + jnp.eye(N) * 0, v * v, 2 * v, jnp.exp(v), 1 + v)
    found = forbid(kept)(v)
    for got, want in zip(found, kept(dense(v)), strict=True):
        assert_same(got, want, 1e-8)
    assert [isinstance(x, Symmetric) for x in found] == [True] * 2 + [False] + [True] * 4
    assert [isinstance(x, Symmetric) and x.positive for x in found] == [
        *(True, True, False, True, True, False, False)
    ]
    assert isinstance(v.inverse(), Symmetric)
    assert isinstance(forbid(jnp.add)(v, Diagonal(numbers(N))), Symmetric)
    assert_same(forbid(jnp.divide)(v, numbers(N, N)), dense(v) / numbers(N, N), 1e-8)


# --- linear algebra -------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [lambda *n: banded(2, 1, *n), lambda *n: banded(1, 0, *n), positive, symmetric],
    ids=["banded", "lower", "positive", "symmetric"],
)
def test_stacks_are_solved_along_any_axis(make):
    v = make(5, (2,))
    x = numbers(2, 3, 5, 2)
    got = v.solve(x, 2)
    assert_same(got, jnp.einsum("bij,bkjl->bkil", jnp.linalg.inv(dense(v)), x), 1e-8)
    assert_same(v.determinant(), jnp.linalg.det(dense(v)), 1e-8)


@pytest.mark.slow
def test_stacks_of_tridiagonal_ones():
    v = jax.tree.map(lambda a, b: jnp.stack([a, b]), tridiagonal(), tridiagonal(seed=1))
    x = numbers(2, N, 3)
    assert_same(forbid(jnp.linalg.solve)(v, x), jnp.linalg.solve(dense(v), x), 1e-8)
    assert_same(v.determinant(), jnp.linalg.det(dense(v)), 1e-8)


@pytest.mark.parametrize("dtype", ["int8", "bool"])
def test_determinants_of_integers(dtype):
    v = Tridiagonal(*(jnp.ones(n, dtype) for n in (2, 3, 2)))
    wanted = np.float32(np.linalg.det(np.tri(3, k=1) * np.tri(3, k=1).T))
    assert_same(forbid(jnp.linalg.det)(v), wanted, 1e-8)
    assert_same(forbid(jnp.linalg.det)(v.as_banded()), wanted, 1e-8)


def without_a_pivot():
    """Of full rank, but each second number on the diagonal is zero."""
    v = banded(1, 1)
    return Banded(v.bands.at[1].set(jnp.where(jnp.arange(N) % 2 == 1, 2, 0)), 1, 1)


@pytest.mark.slow
def test_elimination_exchanges_rows():
    v, b = without_a_pivot(), numbers(N)
    assert_same(forbid(jnp.linalg.solve)(v, b), jnp.linalg.solve(dense(v), b), 1e-8)
    assert_same(forbid(jnp.linalg.det)(v), jnp.linalg.det(dense(v)), 1e-8)
    # A pivot that is far too small: without an exchange of rows the result is wrong.
    v = Banded(v.bands.at[1].set(1e-17), 1, 1)
    assert_same(v.solve(b, 0), jnp.linalg.solve(dense(v), b), 1e-8)


def test_a_singular_matrix_has_no_determinant():
    v = banded(1, 1)
    assert_same(Banded(v.bands.at[:, 2].set(0), 1, 1).determinant(), 0.0, 1e-8)


def test_logarithm_of_a_determinant_that_overflows():
    large = banded(1, 1, 500)
    large = Banded(large.bands.at[1].add(10), 1, 1)
    for v in (large, Triangular(jnp.diag(jnp.arange(1.0, 401)))):
        sign, log = forbid(jnp.linalg.slogdet)(v)
        want = np.linalg.slogdet(dense(v))
        assert_same((sign, log), tuple(want), 1e-8)


@pytest.mark.slow
def test_solve_derivatives():
    """Forward and reverse, with respect to the bands and to the right side."""
    v, b = banded(1, 2), numbers(N, 2)
    mine = lambda v, b: jnp.sin(v.solve(b, 0)).sum()
    want = lambda v, b: jnp.sin(jnp.linalg.solve(v.materialise(), b)).sum()
    jax.tree.map(close, jax.grad(mine, (0, 1))(v, b), jax.grad(want, (0, 1))(v, b))
    along = jax.tree.map(jnp.cos, (v, b))
    assert_same(jax.jvp(mine, (v, b), along)[1], jax.jvp(want, (v, b), along)[1], 1e-8)


def test_cholesky_of_bands():
    lower = 2
    factor = dense(banded(lower, 0))
    v = Banded.from_dense(factor @ factor.T, lower, lower)
    assert_same(forbid(jnp.linalg.cholesky)(v), factor, 1e-8)
    found = v.cholesky()
    assert (found.lower, found.upper) == (lower, 0)
    assert_same(found, factor, 1e-8)
    b = numbers(N)
    solve = lambda factor, b: jax.scipy.linalg.cho_solve((factor, True), b)
    assert_same(forbid(solve)(found, b), jnp.linalg.solve(dense(v), b), 1e-8)


@pytest.mark.slow
def test_triangles_solve():
    b = numbers(N, 2)
    for v in (
        banded(1, 2),
        tridiagonal(),
        Triangular(numbers(N, N) + jnp.eye(N)),
        symmetric(),
    ):
        for lower in (False, True):
            for unit in (False, True):
                solve = lambda v, b, lower=lower, unit=unit: (
                    jax.scipy.linalg.solve_triangular(
                        v, b, lower=lower, unit_diagonal=unit, trans=1
                    )
                )
                assert_same(forbid(solve)(v, b), solve(dense(v), b), 1e-8)


def test_symmetric_eigenvalues_are_real():
    v = symmetric()
    text = str(jaxrewrite.make_jaxpr(jnp.linalg.eigvals)(v))
    assert "eigh" in text and "eig[" not in text
    assert not np.asarray(forbid(jnp.linalg.eigvals)(v)).imag.any()


def test_positive_ones_are_solved_by_cholesky():
    fn = lambda v, b: jnp.linalg.solve(v, b)
    text = str(jaxrewrite.make_jaxpr(fn)(positive(), numbers(N)))
    assert "cholesky" in text and " lu " not in text
    assert "cholesky" not in str(jaxrewrite.make_jaxpr(fn)(symmetric(), numbers(N)))


def test_positive_ones_and_their_multiples(bulk):
    """A positive number of the program keeps what is known of the sign, no other one does."""
    fn = lambda v: {
        "positive": (2 * v, v * 0.5, v / 3),
        "other": (-v, v * -2, 1 / v, jnp.stack([v, -v]), jnp.maximum(v, -v), v * (v - 1)),
        "both": jnp.stack([v, 2 * v]),
    }
    got = forbid(fn)(positive())
    assert all(v.positive for v in (*got["positive"], got["both"]))
    assert all(isinstance(v, Symmetric) and not v.positive for v in got["other"])
    assert_same(got, fn(dense(positive())), 1e-8)


# --- construction -----------------------------------------------------------------------


def test_from_dense():
    for v in (banded(1, 2), banded(0, 0)):
        assert_same(Banded.from_dense(dense(v), v.lower, v.upper), dense(v), 1e-8)
    assert_same(Tridiagonal.from_dense(dense(tridiagonal())), dense(tridiagonal()), 1e-8)
    assert_same(Tridiagonal.from_dense(jnp.ones((1, 1))), np.ones((1, 1)), 1e-8)
    assert_same(Triangular.from_dense(jnp.tril(jnp.ones((3, 3)))), np.tri(3), 1e-8)
    assert_same(
        Symmetric.from_dense(dense(positive()), positive=True), dense(positive()), 1e-8
    )
    x = numbers(9, 4)
    Symmetric.from_dense(x.T @ x)  # up to rounding
    # Tracers have no numbers to look at.
    made = jax.jit(lambda x: Banded.from_dense(x, 0, 0))(jnp.ones((2, 2)))
    assert_same(made, np.eye(2), 1e-8)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Banded(jnp.ones((2, 3)), 1, 1), "Banded: bands"),
        (lambda: Banded(jnp.ones(3), 0, 0), "Banded: bands"),
        (lambda: Banded(jnp.ones((1, 3)), -1, 1), "Banded: lower"),
        (lambda: Banded(jnp.ones((1, 3)), 1, -1), "Banded: upper"),
        (lambda: Banded.from_dense(jnp.ones((3, 3)), 1, 1), "Banded: x"),
        (lambda: Banded.from_dense(jnp.ones((3, 2)), 1, 1), "Banded: x"),
        (lambda: Tridiagonal(jnp.ones(2), jnp.ones(2), jnp.ones(1)), "Tridiagonal: lower"),
        (lambda: Tridiagonal(jnp.ones(1), jnp.ones(2), jnp.ones(2)), "Tridiagonal: upper"),
        (lambda: Tridiagonal(*[jnp.ones(0)] * 3), "Tridiagonal: main"),
        (
            lambda: Tridiagonal(jnp.ones(1, "float32"), jnp.ones(2), jnp.ones(1)),
            "Tridiagonal: lower",
        ),
        (lambda: Tridiagonal.from_dense(jnp.ones((3, 3))), "Tridiagonal: x"),
        (lambda: Triangular(jnp.ones((2, 3))), "Triangular: x"),
        (lambda: Triangular.from_dense(jnp.ones((2, 2))), "Triangular: .*upper"),
        (lambda: Triangular.from_dense(jnp.tri(2), lower=False), "Triangular: .*lower"),
        (lambda: Symmetric(jnp.ones(4)), "Symmetric: x"),
        (lambda: Symmetric(jnp.ones((2, 2), complex), positive=True), "Symmetric: x"),
        (lambda: Symmetric.from_dense(jnp.tri(2)), "Symmetric: x"),
        (lambda: Symmetric.from_dense(-jnp.eye(2), positive=True), "Symmetric: x"),
        (lambda: Symmetric.from_dense(jnp.full((2, 2), jnp.nan)), "Symmetric: x"),
    ],
)
def test_bad_input(make, said):
    with pytest.raises(ValueError, match=said):
        make()


# --- every program, on what has another layout than the cases ---------------------------


@pytest.mark.slow
@variants
def test_oracle(name):
    v = VARIANTS[name]()
    fn = everything(programs("float64", v.shape))
    assert_same(jax.jit(materialised(fn))(v), jax.jit(fn)(v.materialise()), 1e-9)


@pytest.mark.slow
@variants
def test_linear_algebra_oracle(name):
    v = VARIANTS[name]()
    b = numbers(v.shape[0])
    # A matrix of one entry is made dense.
    policy = "forbid" if len(b) > 1 else "allow"
    for fn in (
        jnp.linalg.solve,
        lambda v, b: jnp.linalg.solve(v.T, b),
        lambda v, b: jnp.linalg.det(v),
        lambda v, b: jnp.stack(jnp.linalg.slogdet(v)),
        lambda v, b: jnp.linalg.inv(v),
    ):
        assert_same(
            jaxrewrite.transform(fn, materialise=policy)(v, b), fn(dense(v), b), 1e-8
        )
        loss = lambda v, b, fn=fn: jnp.sin(fn(v, b)).sum()
        got = jax.grad(jaxrewrite.transform(loss, materialise="allow"))(v, b)
        want = jax.grad(lambda v, b, loss=loss: loss(v.materialise(), b))(v, b)
        assert_same(got, want, 1e-8)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sums_over_diagonals_of_16_bits_are_rounded_once(dtype):
    """As those of the dense product, whatever XLA does with casts in between."""
    n, count = 64, 9
    bands = jnp.ones((count, n), dtype).at[: count // 2].mul(30.0)
    v = Banded.from_dense(Banded(bands, 4, 4).materialise(), 4, 4)
    ones = jnp.ones(n, dtype)
    with jax.disable_jit():
        product, both = v @ ones, (v @ v).materialise()
    wide = np.asarray(v.materialise(), np.float64)
    eps = float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(np.asarray(product, float), wide.sum(-1), rtol=eps)
    np.testing.assert_allclose(np.asarray(both, float), wide @ wide, rtol=eps)

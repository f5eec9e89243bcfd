"""Sums that are solved without their dense form: low rank updates, and shifted products."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from choose import every, often, slow
from jax import lax
from oracle import forbid

import jaxrewrite
from jaxrewrite.testing import assert_same
from jaxrewrite.values import (
    BlockDiagonal,
    Circulant,
    Constant,
    Diagonal,
    Identity,
    Kronecker,
    Lora,
    LowRank,
    Matrix,
    Product,
    Scaled,
    Sum,
    Symmetric,
    Tridiagonal,
)
from jaxrewrite.values._matrices.woodbury import _Update


pytestmark = pytest.mark.usefixtures("double")


N = 16
RNG = np.random.default_rng(0)


def normal(*shape):
    return jnp.asarray(RNG.normal(size=shape))


def regular(n):
    x = RNG.normal(size=(n, n)) / 4
    return jnp.asarray(x + x.T + 4 * np.eye(n))


def low_rank(n=N, rank=2):
    return LowRank(normal(n, rank), normal(rank, n))


def likelihood(k, y):
    """Of a Gaussian process, up to a constant; the matrix may be unsymmetric or indefinite."""
    return -(y @ jnp.linalg.solve(k, y) + jnp.linalg.slogdet(k)[1]) / 2


SUMS = {
    "diagonal": lambda: Diagonal(jnp.arange(1.0, N + 1)) + low_rank(),
    "two of low rank": lambda: low_rank(N, 1) + Diagonal(3 + normal(N)) + low_rank(N, 1).T,
    "zeros": lambda: Diagonal(jnp.arange(float(N)).at[5].set(0)) + low_rank(),
    "identity": lambda: Identity(N, jnp.float64) + low_rank(),
    "scaled identity": lambda: (
        Scaled(Identity(N, jnp.float64), jnp.float64(0.3)) + low_rank()
    ),
    "blocks": lambda: BlockDiagonal(jnp.stack([regular(4)] * 4)) + low_rank(),
    "circulant": lambda: Circulant(jnp.arange(1.0, N + 1)) + low_rank(),
    "singular circulant": lambda: (
        Circulant(jnp.zeros(N).at[0].set(1).at[1].set(-1)) + low_rank()
    ),
    "kronecker": lambda: Kronecker(regular(4), regular(4)) + low_rank(),
    "tridiagonal": lambda: (
        Tridiagonal(normal(N - 1), 9 + normal(N), normal(N - 1)) + low_rank()
    ),
    "scaled": lambda: (
        Scaled(Circulant(jnp.arange(1.0, N + 1)), jnp.float64(0.3)) + low_rank()
    ),
    "shifted kronecker": lambda: (
        Kronecker(Symmetric(regular(4)), Symmetric(regular(4)))
        + Scaled(Identity(N, jnp.float64), jnp.float64(0.3))
    ),
    "shifted kronecker and low rank": lambda: Sum(
        (
            low_rank(),
            Kronecker(Symmetric(regular(4)), Diagonal(1 + jnp.arange(4.0))),
            Identity(N, jnp.float64),
            Scaled(Identity(N, jnp.float64), jnp.float64(0.3)),
        )
    ),
    "kronecker sum": lambda: (
        Kronecker(Symmetric(regular(4)), Identity(4, jnp.float64))
        + 2 * Kronecker(Identity(4, jnp.float64), Symmetric(regular(4)))
        + Scaled(Identity(N, jnp.float64), jnp.float64(0.3))
    ),
    "shifted circulant": lambda: (
        Circulant(jnp.arange(1.0, N + 1))
        + Scaled(Identity(N, jnp.float64), jnp.float64(0.3))
    ),
    "scaled sum": lambda: Scaled(
        Diagonal(jnp.arange(1.0, N + 1)) + low_rank(), jnp.float64(0.5)
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SUMS)
def test_value_and_gradient(name, bulk):
    v, y = SUMS[name](), normal(N)

    def both(k, y):
        solved = jnp.linalg.solve(k.T, jnp.sin(y))
        return likelihood(k, y) + y @ solved + jnp.linalg.det(k) / 1e9

    of = lambda fn: jax.jit(jax.value_and_grad(lambda v: fn(v, y), allow_int=True))(v)
    got, want = of(forbid(both)), of(lambda v, y: both(jaxrewrite.materialise(v), y))
    assert_same(got, want, 1e-9)


@pytest.mark.slow
def test_batches_inside_and_outside(bulk):
    noise = jnp.array([0.3, 0.7])
    stack = jnp.stack([regular(3), regular(3)])
    one = lambda a, c, u: Sum(
        (
            Kronecker(Symmetric(a), Symmetric(a)),
            Scaled(Identity(9, jnp.float64), c),
            LowRank(u, u.T),
        )
    )
    vs = jax.vmap(one)(stack, noise, normal(2, 9, 1))
    b = normal(2, 9, 3)
    fn = lambda k, b: (jnp.linalg.solve(k, b), *jnp.linalg.slogdet(k), jnp.linalg.det(k))
    want = fn(jax.vmap(jaxrewrite.materialise)(vs), b)
    assert_same(jax.jit(jax.vmap(forbid(fn)))(vs, b), want, 1e-9)
    assert_same(jax.jit(forbid(jax.vmap(fn)))(vs, b), want, 1e-9)
    assert_same(jax.jit(forbid(fn))(vs, b), want, 1e-9)


@pytest.mark.slow
def test_other_ways_to_solve(bulk):
    """Inverses, factors, a Jacobian, a second derivative, complex numbers."""
    v, y = SUMS["diagonal"](), normal(N)

    def fn(k, y):
        factors = jax.scipy.linalg.lu_factor(k)
        quadratic = lambda y: y @ jnp.linalg.solve(k, y)
        return (
            jnp.linalg.inv(k),
            jax.scipy.linalg.lu_solve(factors, y, trans=1),
            jax.jacobian(lambda y: jnp.linalg.solve(k, jnp.sin(y)))(y),
            jax.jvp(jax.grad(quadratic), (y,), (y,)),
        )

    assert_same(jax.jit(forbid(fn))(v, y), fn(v.materialise(), y), 1e-9)
    w = Diagonal(1 + normal(N) * 1j) + LowRank(normal(N, 2) * 1j, normal(2, N) + 0j)
    fn = lambda k: (jnp.linalg.solve(k, y + 1j), jnp.linalg.det(k), k.T @ y)
    assert_same(jax.jit(forbid(fn))(w), fn(w.materialise()), 1e-9)


def test_of_high_rank_or_unknown_symmetry_is_dense():
    y = normal(N)
    for v in (
        Diagonal(jnp.arange(1.0, N + 1)) + low_rank(N, N // 4),
        Kronecker(regular(4), regular(4)) + Identity(N, jnp.float64),
        Diagonal(jnp.arange(1.0, N + 1)) + low_rank() + normal(N, N),
    ):
        with pytest.raises(jaxrewrite.MaterialisationError, match="'lu' on Sum"):
            forbid(jnp.linalg.solve)(v, y)
        with pytest.warns(jaxrewrite.MaterialisationWarning, match="Sum"):
            assert_same(v.solve(y, 0), jnp.linalg.solve(v.materialise(), y), 1e-9)


def test_orthonormal_columns_are_computed_only_where_they_are_needed():
    """A solve has a QR factorisation in a branch, which a harmless sum does not take.

    So its numbers in the branch that is taken are those of the formula and its refinement.
    """
    base, change, y = Diagonal(1 + jnp.arange(1.0, N + 1)), low_rank(), normal(N)
    v = base + change
    assert _Update(base, change.a, change.b)._by_formula(y[:, None])[1]
    jaxpr = jax.make_jaxpr(forbid(jnp.linalg.solve))(v, y).jaxpr
    outside, inside = set(), set()
    _primitives(jaxpr, outside, inside)
    assert "cond" in outside
    assert "qr" in inside
    assert "qr" not in outside


def _primitives(jaxpr, outside, inside):
    """Collect the names of primitives, those in branches of a conditional apart."""
    for eqn in jaxpr.eqns:
        outside.add(eqn.primitive.name)
        within = inside if eqn.primitive.name == "cond" else outside
        for body in jax.extend.core.jaxprs_in_params(eqn.params):
            _primitives(body, within, inside)


def test_a_diagonal_with_a_few_entries_that_are_nearly_zero():
    """A residual in other rows is seen, although these would be nothing beside them if scaled."""
    rng, n, rank = np.random.default_rng(0), 16, 2
    count = 1500
    d = 10 ** rng.uniform(-3, -1, (count, n)) * rng.choice([-1, 1], (count, n))
    u, v, y = (rng.normal(size=(count, *shape)) for shape in ((n, rank), (rank, n), (n, 1)))
    for i in range(count):
        small = rng.choice(n, rng.integers(1, rank + 2), replace=False)
        d[i, small] *= 10 ** rng.uniform(-14, -4, len(small))
        u[i, small] *= 10 ** rng.uniform(-8, 0)
    d, u, v, y = (np.asarray(x, np.float32) for x in (d, u, v, y))
    solve = lambda d, u, v, y: forbid(jnp.linalg.solve)(Diagonal(d) + LowRank(u, v), y)
    x = np.asarray(jax.jit(jax.vmap(solve))(d, u, v, y), np.float64)
    a = d[:, :, None] * np.eye(n) + u.astype(np.float64) @ v
    norm = functools.partial(np.linalg.norm, axis=(1, 2))
    errors = norm(a @ x - y) / (norm(a, 2) * norm(x) + norm(y))
    is_regular = np.linalg.cond(a) < 1e12
    assert is_regular.sum() > count / 2
    assert np.nanquantile(errors[is_regular], 0.99) < 1e-6
    assert np.nanmax(errors[is_regular]) < 5e-6
    assert np.isnan(errors[is_regular]).mean() < 0.01


def test_determinants_where_few_entries_of_a_diagonal_are_small():
    """In rows where the low rank is small, too, and just above what counts as nearly zero."""
    n = 16
    log = lambda v: jnp.linalg.slogdet(v)[1]
    i = jnp.arange(1.0, n + 1)
    scaled = jnp.ones((n, 1)).at[0].set(1e-8), jnp.ones((1, n))
    waves = (
        jnp.stack([jnp.cos(i), jnp.sin(i)], 1),
        jnp.stack([jnp.sin(2 * i), jnp.cos(3 * i)]),
    )
    for d, (u, v) in (
        (jnp.ones(n).at[0].set(1e-9), scaled),
        (jnp.ones(n).at[0].set(6e-4).at[5].set(-7.8e-4), waves),
    ):
        of = lambda dtype, d=d, u=u, v=v: [x.astype(dtype) for x in (d, u, v)]
        dense = lambda d, u, v: log(jnp.diag(d) + u @ v)
        got = lambda d, u, v: forbid(log)(Diagonal(d) + LowRank(u, v))
        assert_same(got(*of("float32")), dense(*of("float64")).astype("float32"), 1e-6)
        slopes = jax.grad(got)(*of("float32")), jax.grad(dense)(*of("float64"))
        error = np.linalg.norm(slopes[0] - slopes[1]) / np.linalg.norm(slopes[1])
        assert error < 3e-6


def _diagonal(d, u):
    return Diagonal(d) + LowRank(u, u.T)


def _tridiagonal(d, u):
    beside = 0.3 * jnp.sqrt(d[1:] * d[:-1])
    return Tridiagonal(beside, d, beside) + LowRank(u, u.T)


UNITS = [
    pytest.param(_diagonal, False, id="diagonal, update"),
    pytest.param(_diagonal, True, id="diagonal, all"),
    pytest.param(_tridiagonal, False, id="tridiagonal, update"),
    pytest.param(_tridiagonal, True, id="tridiagonal, all"),
]


@pytest.mark.parametrize("make, is_scaled", every(3, UNITS))
def test_the_units_of_a_variable_do_not_matter(make, is_scaled):
    """A row and a column of the update, or of all, differ from others by a factor of up to 1e5."""
    rng, count, n, rank = np.random.default_rng(0), 300, 16, 2
    units = np.ones((count, n, 1))
    units[:, :3] = 10 ** rng.uniform(-3, 5, (count, 3, 1))
    d = 10 ** rng.uniform(-3, -1, (count, n)) * (units[..., 0] ** 2 if is_scaled else 1)
    u = rng.normal(size=(count, n, rank)) * units
    d, u, y = (
        np.asarray(x, np.float32) for x in (d, u, units * rng.normal(size=units.shape))
    )
    solve = lambda d, u, y: forbid(jnp.linalg.solve)(make(d, u), y)
    log = lambda d, u: forbid(jnp.linalg.slogdet)(make(d, u))[1]
    x = np.asarray(jax.jit(jax.vmap(solve))(d, u, y), np.float64)
    logs, slopes = jax.jit(jax.vmap(jax.value_and_grad(log)))(d, u)

    wide = np.float64(d), np.float64(u)
    a = np.asarray(jax.vmap(lambda d, u: make(d, u).materialise())(*wide))
    scale = np.sqrt(np.diagonal(a, axis1=1, axis2=2))[..., None]
    norm = functools.partial(np.linalg.norm, axis=(1, 2))
    scaled = a / scale / np.swapaxes(scale, 1, 2)
    errors = norm((a @ x - y) / scale) / (
        norm(scaled, 2) * norm(x * scale) + norm(y / scale)
    )
    is_regular = np.linalg.cond(scaled) < 1e5
    assert is_regular.sum() > count / 8
    assert errors[is_regular].max() < 1e-6
    assert abs(logs - np.linalg.slogdet(a)[1])[is_regular].max() < 1e-3
    dense = lambda d, u: jnp.linalg.slogdet(make(d, u).materialise())[1]
    want = np.asarray(jax.vmap(jax.grad(dense))(*wide))
    # Beside a base that is not diagonal a slope that is small beside all others has less digits.
    weights = scale[..., 0] ** 2 if make is _diagonal or is_scaled else 1
    errors = np.linalg.norm((slopes - want) * weights, axis=1)
    assert (errors / np.linalg.norm(want * weights, axis=1))[is_regular].max() < 1e-3


def test_determinants_and_solutions_beside_a_nearly_singular_tridiagonal_matrix():
    """The sum is well conditioned. A determinant without right digits is NaN."""
    n = 16
    unit = jnp.zeros((n, 1)).at[0].set(1.0)
    beside = jnp.full(n - 1, 0.1).at[0].set(0.7)
    main = jnp.full(n, 2.0).at[0].set(1.0).at[1].set(0.49 + 0.01 / 1.995)
    y = jnp.arange(1.0, n + 1)
    for shift, digits in ((1e-2, 1e-5), (1e-4, 1e-4), (1e-8, None)):
        parts = [x.astype("float32") for x in (beside, main.at[1].add(shift), unit)]
        v = Tridiagonal(parts[0], parts[1], parts[0]) + LowRank(parts[2], parts[2].T)
        a = np.asarray(v.materialise(), np.float64)
        log = forbid(jnp.linalg.slogdet)(v)[1]
        if digits is None:
            assert np.isnan(log)
        else:
            assert_same(log, jnp.float32(np.linalg.slogdet(a)[1]), digits)
            x = np.asarray(forbid(jnp.linalg.solve)(v, y.astype("float32")), np.float64)
            size = np.linalg.norm(a, 2) * np.linalg.norm(x) + np.linalg.norm(y)
            assert np.linalg.norm(a @ x - y) < 1e-6 * size


@pytest.mark.parametrize("base", ["tridiagonal", "blocks", "diagonal"])
def test_determinants_beside_a_low_rank_of_zeros(base):
    """As one that is not trained yet, in a stack beside others, or of rank zero."""
    n = 16
    matrix = {
        "tridiagonal": Tridiagonal(
            jnp.full(n - 1, 0.3), jnp.arange(2.0, n + 2), jnp.ones(n - 1)
        ),
        "blocks": BlockDiagonal(normal(4, 4, 4) + 3 * jnp.eye(4)),
        "diagonal": Diagonal(jnp.arange(1.0, n + 1)),
    }[base]
    u, v = normal(n, 2), normal(2, n)
    log = lambda u, v: forbid(jnp.linalg.slogdet)(matrix + LowRank(u, v))[1]
    dense = lambda u, v: jnp.linalg.slogdet(matrix.materialise() + u @ v)[1]
    for factors in ((0 * u, v), (u, 0 * v), (0 * u, 0 * v), (u[:, :0], v[:0])):
        assert_same(log(*factors), dense(*factors), 1e-9)
    assert_same(jax.grad(log)(0 * u, v), jax.grad(dense)(0 * u, v), 1e-9)
    us = jnp.stack([u, 0 * u])
    assert_same(
        jax.vmap(log, (0, None))(us, v), jnp.stack([dense(u, v), dense(0 * u, v)]), 1e-9
    )


def test_exponentials_of_stiff_kronecker_sums():
    """Diffusion that is faster along one axis, whose own exponential is nearly zero."""
    n = 6
    laplacian = jnp.diag(jnp.full(n, -2.0)) + jnp.eye(n, k=1) + jnp.eye(n, k=-1)
    for ratio in (1.0, 20.0, 300.0):
        one = Identity(n, jnp.float64)
        total = Kronecker(ratio * laplacian, one) + Kronecker(one, laplacian)
        got = jaxrewrite.materialise(forbid(jax.scipy.linalg.expm)(total))
        want = scipy.linalg.expm(np.asarray(jaxrewrite.materialise(total)))
        np.testing.assert_allclose(got, want, rtol=1e-8, atol=1e-14 * want.max())
    none, one = jnp.zeros((0, 0)), Identity(2, jnp.float64)
    empty = Kronecker(none, one) + Kronecker(Identity(0, jnp.float64), jnp.eye(2))
    assert forbid(jax.scipy.linalg.expm)(empty).shape == (0, 0)


def test_sums_with_harmless_and_with_singular_terms_are_solved_together():
    """One of a batch needs the stable way, and none is worse for it."""
    d = jnp.stack([1 + jnp.arange(1.0, N + 1), jnp.arange(N) % 8 * 1.0])
    v = Diagonal(d) + LowRank(normal(2, N, 2), normal(2, 2, N))
    y = normal(2, N)
    dense = np.linalg.solve(v.materialise(), y[..., None])[..., 0]
    solve = forbid(jnp.linalg.solve)
    assert_same(jax.jit(solve)(v, y[..., None])[..., 0], dense, 1e-9)
    assert_same(jax.jit(jax.vmap(solve))(v, y), dense, 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        "noise",
        *map(slow, ("spread", "unsymmetric")),
    ],
)
def test_errors_of_ill_conditioned_updates(kind):
    """In single precision the backward error is small, as that of the dense program is.

    It is 2e-7 at most, or 5e-7 if the update is not symmetric.
    """
    n, rank = 64, 4
    left, _ = np.linalg.qr(RNG.normal(size=(n, rank)))
    right, _ = np.linalg.qr(RNG.normal(size=(n, rank)))
    solve = jax.jit(forbid(lambda k, y: (jnp.linalg.solve(k, y), jnp.linalg.slogdet(k)[1])))
    for condition in (1e2, 1e4, 1e6, 1e8, 1e10):
        d = np.full(n, 1 / condition)
        if kind == "spread":
            d = np.logspace(0, -np.log10(condition), n)
        parts = d, left, (right if kind == "unsymmetric" else left).T
        d, a, b = (jnp.asarray(x, jnp.float32) for x in parts)
        dense = np.diag(np.float64(d)) + np.float64(a) @ np.float64(b)
        for y in (RNG.normal(size=n), dense @ RNG.normal(size=n)):
            y = np.float32(y)
            x, log = map(np.float64, solve(Diagonal(d) + LowRank(a, b), y))
            size = np.linalg.norm(dense, 2) * np.linalg.norm(x) + np.linalg.norm(y)
            assert np.linalg.norm(dense @ x - y) < 2e-6 * size
            assert log == pytest.approx(np.linalg.slogdet(dense)[1], rel=1e-5)


def test_what_no_sum_can_solve_is_not_finite(bulk):
    """A singular sum, and a sum with a nearly singular term of no diagonal form."""
    singular = Diagonal(jnp.zeros(N).at[0].set(1)) + low_rank()
    solve, det = (jax.jit(forbid(fn)) for fn in (jnp.linalg.solve, jnp.linalg.det))
    assert not np.isfinite(solve(singular, normal(N))).all()
    assert det(singular) == pytest.approx(0, abs=1e-9)
    blocks = BlockDiagonal(jnp.ones((4, 4, 4)) + 1e-17 * regular(4)) + low_rank()
    assert not np.isfinite(solve(blocks, normal(N))).any()


def test_a_solution_that_is_too_large_to_be_squared_is_checked(bulk, xla):
    """In single precision, where a formula has numbers too large by far, and a large solution."""
    solve = jax.jit(forbid(jnp.linalg.solve))
    main, off = jnp.ones(40, "float32"), jnp.zeros(39, "float32")
    update = LowRank(main[:, None], main.at[3].set(0)[None])
    nearly_singular = Tridiagonal(off, main.at[7].set(1e-30), off) + update
    np.testing.assert_allclose(solve(nearly_singular, main), np.eye(40)[7], atol=2e-5)
    small = 1e-30 * (Tridiagonal(off, main, off) + update)
    np.testing.assert_allclose(solve(small, main), np.full(40, 1e30 / 40), rtol=2e-5)


def _near(a, b):
    return LowRank(a, b), LowRank(2 * a, b / 2 + 1e-9)


def _near_sums():
    a, noise = normal(5, 2), Diagonal(normal(5))
    return noise + LowRank(a, a.T), LowRank(2 * a, a.T / 2 + 1e-9) + noise


ALMOST_EQUAL = {
    "low rank": lambda: _near(normal(6, 2), normal(2, 5)),
    "sum": _near_sums,
    "complex": lambda: _near(normal(6, 2) + 1j * normal(6, 2), normal(2, 5) + 0j),
    "stack": lambda: _near(normal(3, 6, 2), normal(3, 2, 5)),
    "kronecker": lambda: (
        Kronecker(a := normal(2, 2), b := normal(3, 3)),
        Kronecker(3 * a, b / 3 + 1e-9),
    ),
    "scaled": lambda: tuple(Scaled(v, jnp.float64(-2)) for v in _near_sums()),
    "not equal": lambda: (
        _near(normal(6, 2), normal(2, 5))[0],
        LowRank(normal(6, 1), normal(1, 5)),
    ),
}


@pytest.mark.parametrize("name", often(ALMOST_EQUAL, ("low rank",)))
def test_norms_of_what_almost_cancels(name, bulk):
    """The squares of the terms cancel to a number that may be negative."""
    pair = ALMOST_EQUAL[name]()

    def norms(pair):
        difference = pair[0] - pair[1]
        axes = (-1, -2, (-2, -1))
        return [jnp.linalg.norm(difference, axis=axis) for axis in axes]

    def with_slopes(norms):
        found = lambda pair: (sizes := norms(pair), sum(x.sum() for x in sizes))[::-1]
        return jax.grad(found, has_aux=True)(pair)

    of_dense = lambda pair: norms(jaxrewrite.materialise(pair))
    both = jax.jit(lambda: (with_slopes(forbid(norms)), with_slopes(of_dense)))
    (slopes, sizes), (wanted, dense) = both()
    for x, y in zip(sizes, dense, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-14)
    assert_same(slopes, wanted, 1e-4)


def test_norms_of_16_bits():
    v = LowRank(normal(6, 2), normal(2, 5)).astype("bfloat16")
    norms = lambda v: [jnp.linalg.norm(v), jnp.linalg.norm(v, axis=0)]
    for found, dense in zip(forbid(norms)(v), norms(v.materialise()), strict=True):
        assert found.dtype == dense.dtype
        np.testing.assert_allclose(found.astype("float32"), dense.astype("float32"), 0.03)


def test_norms_of_a_batch_of_multiples():
    """The number of each element multiplies its norms, or is one of what is summed."""
    for shape, axes in (((3, 3), (0, 1, None)), ((2, 2, 2), (1, 2, (1, 2)))):
        v = jax.vmap(lambda x: Scaled(x, x.sum()))(normal(*shape))
        norms = lambda v, axes=axes: [jnp.linalg.norm(v, axis=axis) for axis in axes]
        found = jaxrewrite.transform(norms, materialise="allow")(v)
        for x, y in zip(found, norms(v.materialise()), strict=True):
            assert_same(jaxrewrite.materialise(x), y, 1e-9)


@pytest.mark.parametrize("shape", [(4, 3), (3, 4), (3, 3)])
def test_the_diagonal_of_a_batch_of_multiples_of_vectors(shape):
    x = jnp.arange(1.0, 13.0)[: shape[0] * shape[1]].reshape(shape)
    v = jax.vmap(Scaled)(x, jnp.arange(1.0, shape[0] + 1))
    for fn in (jnp.diagonal, jnp.trace):
        got = jaxrewrite.materialise(jaxrewrite.transform(fn)(v))
        np.testing.assert_allclose(got, fn(jaxrewrite.materialise(v)))


def test_a_determinant_of_a_batch_of_multiples_of_vectors():
    v = jax.vmap(lambda x: Scaled(x, x.sum()))(normal(3, 3))
    both = lambda v: (jnp.linalg.slogdet(v)[1], jnp.linalg.eigvals(v).prod())
    found = jaxrewrite.transform(both, materialise="allow")(v)
    for x, y in zip(found, both(v.materialise()), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4)


def test_squares_of_a_value_less_an_array(bulk):
    """Terms of three axes, such as the residuals of a batch of systems."""
    v = LowRank(normal(4, 3, 2), normal(4, 2, 1))
    x = v.materialise() * (1 + 1e-12)

    def program(v):
        d = v - x
        return d * d, jnp.linalg.norm(d, axis=1), jnp.sqrt(jnp.sum(d * d))

    got, want = jax.jit(lambda: (forbid(program)(v), program(v.materialise())))()
    for found, dense in zip(got, want, strict=True):
        np.testing.assert_allclose(found, dense, rtol=0, atol=1e-14)


def test_entries_of_two_sums_are_multiplied_term_by_term_if_none_is_an_array():
    v, low = Diagonal(normal(4)), LowRank(normal(4, 1), normal(1, 4))
    product = jaxrewrite.transform(jnp.multiply, materialise="forbid")
    assert isinstance(product(Sum((v, low)), Sum((v, low))), Sum)
    assert isinstance(product(Sum((v, normal(4, 4))), Sum((v, low))), jax.Array)


def test_a_product_is_lazy_where_the_products_of_the_terms_hold_more():
    v = Circulant(normal(12)) + Tridiagonal(normal(11), normal(12), normal(11))
    low = Diagonal(normal(12)) + LowRank(normal(12, 1), normal(1, 12))
    narrow = jax.tree.map(lambda leaf: leaf.astype("float32"), v)
    for x, y, wanted, kind in (
        (v, v, None, Product),
        (low, Diagonal(normal(12)), None, Sum),
        (v, narrow, None, jax.ShapeDtypeStruct),
        (narrow, narrow, "float64", jax.ShapeDtypeStruct),
    ):
        product = functools.partial(lax.dot, preferred_element_type=wanted)
        got = jax.eval_shape(jaxrewrite.transform(product, materialise="allow"), x, y)
        assert (type(got), got.dtype) == (kind, "float64")


def test_a_sum_of_integers_wraps_around_before_it_is_multiplied_by_a_sum_of_floats():
    def twice(d):
        return Sum((Diagonal(d), Diagonal(d)))

    pair = twice(jnp.full(3, 100, "int8")), twice(jnp.ones(3, "float32"))
    product = functools.partial(lax.dot, preferred_element_type="float32")
    got = jaxrewrite.transform(product, materialise="allow")(*pair)
    want = product(*(v.materialise() for v in pair))
    np.testing.assert_array_equal(jaxrewrite.materialise(got), want)


def test_products_of_entries_of_a_stack_with_one_number_for_all():
    """A value within it has no leaf for each matrix, which a map over the stack needs."""
    a, b, w = normal(2, 3, 1), Constant(jnp.float64(0.5), (2, 1, 3)), normal(2, 3, 3)
    product, x = Product((Lora(w, a, b), w)), normal(2, 3, 3)
    rows = lambda v: jnp.einsum("kij,kij->ki", v, x)
    got = jaxrewrite.transform(rows, materialise="allow")(product)
    assert_same(got, rows(jaxrewrite.materialise(product)), 1e-6)


def test_the_exponential_of_a_lazy_product_is_that_of_one_array():
    """Powers of the product, which are lazy, would be made dense one by one."""
    sums = [Circulant(normal(4)) + Tridiagonal(normal(3), normal(4), normal(3))]
    sums += [Kronecker(normal(2, 2), normal(2, 2)) + Circulant(normal(4))]
    expm = jax.scipy.linalg.expm
    program = lambda v, w: expm(v @ w)
    found = jax.make_jaxpr(jaxrewrite.transform(program, materialise="allow"))(*sums)
    dense = jax.make_jaxpr(expm)(jnp.eye(4))
    assert len(str(found)) < 2 * len(str(dense)) + 20_000


@pytest.mark.slow
def test_exponentials_of_kronecker_sums(bulk):
    """Of two and three factors of any symmetry, of which one overflows alone."""
    one = lambda n: Identity(n, jnp.float64)
    sums = [
        2 * Kronecker(normal(2, 2), one(3)) - 3 * Kronecker(one(2), normal(3, 3)),
        Kronecker(normal(2, 2), one(3), one(2))
        + Kronecker(one(2), one(3), normal(2, 2)) / 2,
        Kronecker(regular(2) + 800 * jnp.eye(2), one(3))
        + Kronecker(one(2), regular(3) - 800 * jnp.eye(3))
        + 0.5 * one(6),
    ]
    fn = lambda vs: [jax.scipy.linalg.expm(v) for v in vs]
    got = forbid(fn)(sums)
    assert all(isinstance(x, Kronecker) for x in got)
    dense = jax.jit(jaxrewrite.materialise)(sums)
    assert_same(
        jax.jit(jaxrewrite.materialise)(got), list(map(scipy.linalg.expm, dense)), 1e-10
    )
    loss = lambda vs: sum((x @ jnp.ones(x.shape[-1])).sum() for x in fn(vs))
    slope = lambda loss: jax.jit(jax.grad(loss, allow_int=True))(sums)
    wanted = slope(lambda vs: loss(jaxrewrite.materialise(vs)))
    for x, y in zip(
        jax.tree.leaves(slope(forbid(loss))), jax.tree.leaves(wanted), strict=True
    ):
        if x.size:
            assert_same(x, y, 1e-7)  # The dense one squares a matrix that is far from zero.


# --- Gaussian processes -----------------------------------------------------------------


def squared_exponential(n, length):
    x = jnp.linspace(0, 1, n)
    return jnp.exp(-(((x[:, None] - x) / length) ** 2) / 2)


def on_a_grid(p):
    rows = Symmetric(p["size"] * squared_exponential(6, p["length"]))
    columns = Symmetric(squared_exponential(5, 2 * p["length"]))
    return Kronecker(rows, columns) + Scaled(Identity(30, jnp.float64), p["noise"])


def of_few_features(p):
    x = jnp.linspace(0, 1, 30)
    features = jnp.exp(-(((x[:, None] - jnp.array([0.2, 0.5, 0.9])) / p["length"]) ** 2))
    return LowRank(p["size"] * features, features.T) + Diagonal(p["noise"] * (1 + x))


@pytest.mark.parametrize("kernel", [slow(on_a_grid), of_few_features])
def test_likelihood_of_a_gaussian_process(kernel, bulk):
    """The value and the gradient with respect to the parameters, and no dense array."""
    p = {"size": jnp.float64(1.3), "length": jnp.float64(0.3), "noise": jnp.float64(0.01)}
    y = normal(30)
    mine = jax.value_and_grad(lambda p: forbid(likelihood)(kernel(p), y))
    dense = jax.value_and_grad(lambda p: likelihood(jaxrewrite.materialise(kernel(p)), y))
    assert_same(jax.jit(mine)(p), jax.jit(dense)(p), 1e-8)
    assert largest(jax.make_jaxpr(mine)(p)) < 30 * 30


def largest(jaxpr):
    """The number of entries of the largest array in a jaxpr and in those that it calls."""
    sizes = [0]
    for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        sizes += [getattr(var.aval, "size", 0) for var in eqn.outvars]
        params = jax.tree.leaves(
            list(eqn.params.values()), is_leaf=lambda x: hasattr(x, "eqns")
        )
        sizes += [largest(x) for x in params if hasattr(x, "eqns") or hasattr(x, "jaxpr")]
    return max(sizes)


@pytest.mark.slow
def test_eigenvalues_that_are_the_same_have_a_gradient():
    v = Kronecker(Symmetric(jnp.eye(3)), Symmetric(2 * jnp.eye(2)))
    y = jnp.arange(6.0)
    whole = lambda v, c: v + Scaled(Identity(6, jnp.float64), c)
    mine = jax.grad(lambda *p: forbid(likelihood)(whole(*p), y), (0, 1))
    dense = jax.grad(lambda *p: likelihood(jaxrewrite.materialise(whole(*p)), y), (0, 1))
    assert_same(mine(v, 0.5), dense(v, 0.5), 1e-9)


def test_conjugate_gradients_with_noise_carry_arrays(bulk):
    """The residual is an array, and no sum whose terms cancel when it is squared."""
    kernel = Kronecker(Symmetric(jnp.array([[12 / 11]])), Identity(2, jnp.float64))
    noise = Scaled(Identity(2, jnp.float64), jnp.asarray(0.3))
    solve = lambda k, b: jax.scipy.sparse.linalg.cg(k, b, tol=1e-12)[0]
    for k in (kernel + noise, noise + kernel):
        for fn in (forbid(solve), jax.jit(forbid(solve))):
            assert_same(fn(k, jnp.ones(2)), np.full(2, 1 / (12 / 11 + 0.3)), 1e-9)


def test_infinite_noise_is_no_answer():
    v = Kronecker(Symmetric(regular(4)), Symmetric(regular(4)))
    v = v + Scaled(Identity(N, jnp.float64), jnp.float64(jnp.inf))
    assert np.isnan(forbid(jnp.linalg.solve)(v, normal(N))).all()


@pytest.mark.slow
def test_factors_of_a_complex_sum_solve_with_a_real_right_side():
    v = Diagonal(jnp.arange(1, 17) + 1j)
    v = v + LowRank(jnp.ones((16, 1), "complex64"), jnp.ones((1, 16), "complex64"))
    fn = lambda a: jax.scipy.linalg.lu_solve(jax.scipy.linalg.lu_factor(a), jnp.ones(16))
    found = jaxrewrite.transform(fn)(v)
    np.testing.assert_allclose(found, fn(jaxrewrite.materialise(v)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("power", every(3, [20, 25, -20, -25]))
@pytest.mark.parametrize("make", [_diagonal, _tridiagonal])
def test_factors_of_opposite_scales(make, power):
    """In single precision, where their squares overflow or underflow and their product does not."""
    n = 16
    d, u = jnp.arange(2.0, n + 2), normal(n, 2)
    dense = np.asarray(make(d, u).materialise())
    base, low = make(d.astype("float32"), u.astype("float32")).terms
    scale = np.float32(10.0**power)
    v, y = base + LowRank(low.a * scale, low.b / scale), normal(n)
    x = forbid(jnp.linalg.solve)(v, y.astype("float32"))
    assert_same(x, np.linalg.solve(dense, y).astype("float32"), 1e-4)
    log = forbid(jnp.linalg.slogdet)(v)[1]
    assert_same(log, jnp.float32(np.linalg.slogdet(dense)[1]), 1e-5)


def test_right_sides_without_columns():
    for make in (_diagonal, _tridiagonal):
        v = make(jnp.arange(2.0, 18.0), normal(16, 1))
        assert forbid(jnp.linalg.solve)(v, jnp.zeros((16, 0))).shape == (16, 0)


def test_a_base_with_zeros_on_its_diagonal():
    """They tell nothing of the scale of their rows, where the update adds nothing, too."""
    n = 16
    main = jnp.zeros(n, "float32").at[3].set(1)
    base = Tridiagonal(jnp.ones(n - 1, "float32"), main, jnp.full(n - 1, 2.0, "float32"))
    u = jnp.zeros((n, 1), "float32").at[4].set(1e3)
    v, y = base + LowRank(u, u.T), normal(n).astype("float32")
    a = np.float64(v.materialise())
    got = forbid(jnp.linalg.solve)(v, y)
    assert_same(got, np.linalg.solve(a, np.float64(y)).astype("float32"), 1e-4)
    got = forbid(jnp.linalg.slogdet)(v)[1]
    assert_same(got, jnp.float32(np.linalg.slogdet(a)[1]), 1e-5)


def test_a_singular_base_whose_eigenvectors_are_known_is_solved_with():
    """The low rank adds to the one direction in which the matrix is zero."""
    n = 24
    laplacian = Circulant(
        jnp.zeros(n, "float32").at[jnp.array([0, 1, -1])].set([2, -1, -1])
    )
    v = laplacian + LowRank(jnp.ones((n, 1), "float32") / n, jnp.ones((1, n), "float32"))
    y = normal(n).astype("float32")
    want = np.linalg.solve(np.float64(v.materialise()), np.float64(y))
    assert_same(forbid(jnp.linalg.solve)(v, y), want.astype("float32"), 2e-5)


def test_the_determinant_with_a_base_whose_eigenvectors_are_known():
    v = Circulant(jnp.arange(1.0, 17)) + LowRank(
        jnp.cos(jnp.arange(32.0)).reshape(16, 2), jnp.sin(jnp.arange(32.0)).reshape(2, 16)
    )
    sign, log = forbid(jnp.linalg.slogdet)(v)
    want = np.linalg.slogdet(np.asarray(v.materialise(), np.float64))
    np.testing.assert_allclose([sign, log], want, rtol=1e-5)


def test_a_stack_of_sums_is_a_sum_of_stacks():
    v = Diagonal(jnp.arange(1.0, 4)) + Circulant(jnp.array([1.0, 2.0, 4.0]))
    stack = lambda v: jnp.stack([v, 2 * v])
    got = jaxrewrite.transform(stack, materialise="forbid")(v)
    assert isinstance(got, Sum) and got.shape == (2, 3, 3)
    np.testing.assert_allclose(got.materialise(), stack(v.materialise()), rtol=1e-6)


def test_a_loop_may_lose_that_a_symmetric_matrix_is_positive():
    v = Symmetric(2 * jnp.eye(3), positive=True)
    loop = lambda v: jax.lax.fori_loop(0, 3, lambda i, c: -c, v)
    got = jaxrewrite.transform(loop, materialise="forbid")(v)
    assert isinstance(got, Symmetric) and not got.positive
    np.testing.assert_array_equal(got.materialise(), -2 * jnp.eye(3))


def orthogonal(v, turns):
    """Newton's iteration for the polar factor: each turn has the last result four times."""
    x = v / jnp.linalg.norm(v)
    for _ in range(turns):
        x = 1.5 * x - 0.5 * x @ x.T @ x
    return x


def doubled(v, turns):
    for _ in range(turns):
        v = v + v.T
    return v


# With so many turns the result has more parts than it may have.
RECURSIONS = {"products": (orthogonal, 4), "sums": (doubled, 7)}


def kronecker(n):
    return Kronecker(regular(n), regular(n))


@pytest.mark.parametrize("recursion", RECURSIONS)
def test_what_an_unrolled_recursion_doubles_becomes_dense(recursion):
    v, x = kronecker(2), normal(4)
    turn, most = RECURSIONS[recursion]
    run = lambda v, turns: turn(v, turns) @ x
    steps = lambda turns: len(
        jaxrewrite.make_jaxpr(lambda v: run(v, turns), materialise="allow")(v).eqns
    )
    growth = [steps(turns) for turns in (most, most + 1, most + 2)]
    assert growth[2] - growth[1] == growth[1] - growth[0]  # as for arrays
    got = jaxrewrite.transform(run, materialise="allow")(v, most)
    np.testing.assert_allclose(got, run(v.materialise(), most), rtol=1e-9)


def test_a_large_matrix_has_as_many_terms_as_pay():
    v, x = kronecker(20), normal(400)
    run = lambda v: sum([v * c for c in range(1, 41)], start=v.T) @ x
    np.testing.assert_allclose(forbid(run)(v), run(v.materialise()), rtol=1e-9)


class ManyLeaves(Matrix):
    """A block diagonal matrix of a user, with a leaf for each block."""

    blocks: tuple

    def aval(self):
        n = 2 * len(self.blocks)
        return jax.core.ShapedArray((n, n), self.blocks[0].dtype)

    def materialise(self):
        return jax.scipy.linalg.block_diag(*self.blocks)

    def apply(self, x, axis, precision=None):
        x = jnp.moveaxis(x, axis, 0).reshape(len(self.blocks), 2, -1)
        y = jnp.einsum("kij,kjm->kim", jnp.stack(self.blocks), x)
        return jnp.moveaxis(y.reshape(2 * len(self.blocks), -1), 0, axis)

    def plus(self, other):
        if not isinstance(other, ManyLeaves):
            return NotImplemented
        return ManyLeaves(tuple(map(jnp.add, self.blocks, other.blocks)))


def test_a_matrix_with_many_leaves_is_one_part():
    v = ManyLeaves(tuple(normal(70, 2, 2)))
    assert type(forbid(lambda v: v + v)(v)) is ManyLeaves
    lazy = forbid(lambda v, w: v + w)(v, low_rank(140))
    assert type(lazy) is Sum
    np.testing.assert_allclose(lazy.materialise(), forbid(lambda v: v @ jnp.eye(140))(lazy))


# --- a matrix and itself ---------------------------------------------------------------------


def symmetric_kernel():
    return Kronecker(Symmetric(regular(2)), Symmetric(regular(3)))


SYMMETRIC = {
    "kronecker": symmetric_kernel,
    "multiple": lambda: Scaled(symmetric_kernel(), jnp.float64(3)),
    "with noise": lambda: symmetric_kernel() + 0.3 * Identity(6, jnp.float64),
    "of a diagonal": lambda: Kronecker(Diagonal(1 + normal(2) ** 2), Symmetric(regular(3))),
}
Y6 = RNG.normal(size=6)
SYMMETRISED = {
    "solve": lambda m: jnp.linalg.solve((m + m.T) / 2, Y6),
    "determinant": lambda m: jnp.linalg.slogdet(0.5 * (m.T + m)),
    "pseudo-inverse": lambda m: jnp.linalg.pinv(m, hermitian=True) @ Y6,
    "eigenvalues": lambda m: jax.lax.linalg.eigh(m, symmetrize_input=True)[1],
    "gradient": lambda m: jax.grad(lambda m: jnp.linalg.eigvalsh(m).sum())(m),
}


@pytest.mark.parametrize("fn", SYMMETRISED)
@pytest.mark.parametrize("name", SYMMETRIC)
def test_a_symmetric_matrix_made_symmetric_is_a_multiple_of_itself(name, fn):
    v, program = SYMMETRIC[name](), SYMMETRISED[fn]
    got, want = jax.jit(lambda v: (forbid(program)(v), program(v.materialise())))(v)
    assert_same(got, want, 1e-9)


def test_a_symmetric_sum_has_its_eigenvalues_without_its_mean_with_the_transpose():
    v = SYMMETRIC["with noise"]()
    names = set[str]()
    _primitives(jax.make_jaxpr(forbid(jnp.linalg.eigvalsh))(v).jaxpr, names, names)
    assert "eigh" in names and "div" not in names


@pytest.mark.parametrize("number", [2.0, jnp.asarray(2.0)], ids=["number", "weakly typed"])
def test_the_transpose_of_a_multiple_has_the_same_number(number):
    v = Scaled(symmetric_kernel(), number)
    assert isinstance(forbid(lambda v: (v + v.T) / 2)(v), Scaled)
    assert not jaxrewrite.make_jaxpr(lambda v: v.T)(v).eqns


def test_sums_of_a_matrix_and_itself():
    v = low_rank()
    twice = jaxrewrite.transform(lambda v: v + v)
    assert twice(v).rank == v.rank
    assert_same(twice(v).materialise(), 2 * v.materialise())
    assert_same(jax.jvp(twice, (v,), (v,))[1].materialise(), 2 * v.materialise())
    kernel, other = symmetric_kernel(), symmetric_kernel()
    total = jaxrewrite.transform(lambda v, w: v + w)(kernel, other)
    assert isinstance(total, Sum)
    assert_same(total.materialise(), kernel.materialise() + other.materialise())
    whole = Kronecker(jnp.array([[3, 1]]), jnp.array([[1], [2]]))
    allowed = jaxrewrite.transform(lambda v: v + v, materialise="allow")
    assert_same(jaxrewrite.materialise(allowed(whole)), 2 * whole.materialise())


@pytest.mark.parametrize("flip", [False, True])
def test_a_stack_of_multiples_times_an_array_multiplies_the_products(flip):
    """Each by its own number, without the product of the number and the matrix."""
    stack = jaxrewrite.stack([Scaled(Diagonal(normal(4)), x) for x in normal(3)])
    assert stack.number.shape == (3,)
    x = normal(3, 4, 2)
    fn = (lambda v, x: jnp.swapaxes(x, 1, 2) @ v) if flip else jnp.matmul
    assert_same(forbid(fn)(stack, x), fn(jaxrewrite.materialise(stack), x), 1e-9)

"""Linear algebra on matrices with structure, which stays implicit."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from choose import often, slow
from oracle import floating, forbid
from reference import CASES

import jaxrewrite
from jaxrewrite.testing import assert_same
from jaxrewrite.values import (
    BlockDiagonal,
    Circulant,
    Diagonal,
    Kronecker,
    Product,
    Scaled,
    Sum,
    Toeplitz,
    Triangular,
    Tridiagonal,
)
from jaxrewrite.values._matrices.matrix import Matrix


pytestmark = pytest.mark.usefixtures("double")


# Leaf by leaf, with `jax.tree.map`.
close = functools.partial(assert_same, tolerance=1e-8)


def make(name, n=6):
    """With blocks and factors of several rows, as no prime number of rows has them."""
    return CASES[name].value(np.random.default_rng(0), "float64", (n, n))


_TYPES = {name: case.type() for name, case in CASES.items() if case.square}
_SQUARE = {name: cls for name, cls in _TYPES.items() if issubclass(cls, Matrix)}


def matrices(method):
    """The names of the cases whose type defines a method of `Matrix`."""
    found = {
        name: cls
        for name, cls in _SQUARE.items()
        if getattr(cls, method) is not getattr(Matrix, method)
    }
    # The last of a class, of one class in five: the others are for the long run.
    last = {cls: name for name, cls in found.items()}
    return pytest.mark.parametrize(
        "name",
        often(found, list(last.values())[::5]),
    )


@matrices("solve")
def test_solve(name, no_leak_checks):
    v = make(name)

    n = v.shape[0]

    def solved(a):
        for b in (jnp.arange(float(n)), jnp.arange(2.0 * n).reshape(n, 2)):
            yield from (jnp.linalg.solve(a, b), jnp.linalg.solve(a.T, b))
        yield jnp.linalg.inv(a)

    got = jax.jit(forbid(lambda a: list(solved(a))))(v)
    want = jax.jit(lambda a: list(solved(a)))(jaxrewrite.materialise(v))
    for g, w in zip(got, want, strict=True):
        assert_same(g, w, 1e-8)


@matrices("solve")
def test_gradient_of_a_solve(name, no_leak_checks):
    v = make(name)
    b = jnp.arange(float(v.shape[0]))
    xs, filled = floating(v)
    loss = lambda fn, xs, b: jnp.sin(fn(filled(xs), b)).sum()
    dense = lambda v, b: jnp.linalg.solve(jaxrewrite.materialise(v), b)
    gradient = jax.jit(jax.grad(loss, (1, 2)), static_argnums=0)
    got, want = gradient(forbid(jnp.linalg.solve), xs, b), gradient(dense, xs, b)
    jax.tree.map(close, got, want)


@matrices("known_determinant")
def test_determinant(name):
    v = make(name)
    assert_same(v.determinant(), jnp.linalg.det(jaxrewrite.materialise(v)), 1e-8)


@matrices("known_determinant")
def test_determinant_by_jax(name, no_leak_checks):
    v = make(name)
    want = jax.jit(jnp.linalg.det)(jaxrewrite.materialise(v))
    both = lambda v: (jnp.linalg.det(v), jnp.linalg.slogdet(v))
    det, (sign, log) = jax.jit(forbid(both))(v)
    assert_same(det, want, 1e-8)
    assert_same(sign * jnp.exp(log), want, 1e-8)


@matrices("known_inverse")
def test_inverse(name):
    v = make(name)
    assert_same(v.inverse(), jnp.linalg.inv(jaxrewrite.materialise(v)), 1e-8)


@matrices("known_eigenvalues")
def test_eigenvalues(name, no_leak_checks):
    v = make(name)
    want = np.sort_complex(np.linalg.eigvals(np.asarray(v)))
    assert_same(np.sort_complex(forbid(jnp.linalg.eigvals)(v)), want, 1e-8)


@matrices("known_eigh")
def test_eigh(name):
    v = make(name)
    dense = np.asarray(v)
    if not np.allclose(dense, dense.T):
        pytest.skip("not symmetric")
    values, vectors = jaxrewrite.materialise(forbid(jnp.linalg.eigh)(v))
    assert_same(values, np.linalg.eigvalsh(dense), 1e-8)
    assert_same(vectors @ jnp.diag(values) @ vectors.T, dense, 1e-8)


# --- determinants ---------------------------------------------------------------------------


def _out_of_range():
    """In float32: products that overflow and underflow, of stacks, of complex numbers."""
    column = np.random.default_rng(0).normal(size=(2, 60)) / 1000
    blocks = 1e-30 * np.array([[[0.0, 1], [1, 0]], [[1, 2], [0, 1]]])
    return {
        # The determinant of a factor is 1.5^20 times a power of two.
        "kronecker": lambda: Kronecker(3 * jnp.eye(20), 3 * jnp.eye(12)),
        "factor": lambda: Kronecker(1.9 * jnp.eye(200), jnp.eye(1)),
        "many blocks": lambda: BlockDiagonal(jnp.stack([3 * jnp.eye(6)] * 60)),
        "circulant": lambda: Circulant(jnp.asarray(column)),
        "complex": lambda: Circulant(jnp.asarray(column[0] + 1j * column[1])),
        "blocks": lambda: BlockDiagonal(jnp.asarray(blocks)),
        "tridiagonal": lambda: Tridiagonal(
            jnp.ones(99), jnp.full(100, -30.0), jnp.ones(99)
        ),
    }


@pytest.mark.parametrize(
    "name",
    [
        "kronecker",
        *map(slow, list(_out_of_range())[1:]),
    ],
)
def test_logarithms_of_determinants_that_are_no_numbers(name, bulk):
    v = _out_of_range()[name]()
    v = v.astype(jnp.complex64 if name == "complex" else jnp.float32)
    sign, log = forbid(jnp.linalg.slogdet)(v)
    dense = np.asarray(v)
    want = np.linalg.slogdet(dense.astype(np.result_type(dense, np.float64)))
    np.testing.assert_allclose(sign, want[0], rtol=1e-4)
    np.testing.assert_allclose(log, want[1], rtol=1e-4)
    assert (sign.dtype, log.dtype) == (v.dtype, dense.real.dtype)
    jax.tree.map(np.testing.assert_array_equal, tuple(v.slogdet()), (sign, log))


def test_determinants_of_the_largest_numbers():
    """Neither a power of two above them nor the inverse of one has a float."""
    most = np.finfo(np.float32).max
    ones, main = jnp.ones(2, jnp.float32), jnp.array([2, most, 3], jnp.float32)
    block = jnp.array([[2, 1], [1, most]], jnp.float32)
    for v in (Tridiagonal(ones, main, ones), BlockDiagonal(block[None])):
        want = np.linalg.slogdet(np.asarray(v.materialise(), np.float64))
        np.testing.assert_allclose(v.slogdet(), want, rtol=1e-6)


@pytest.mark.parametrize("dtype", [slow("float16"), "bfloat16"])
def test_determinants_of_sixteen_bits(dtype):
    """Their logarithms have too few digits for an exponential, and JAX factorises none."""
    number = {"float16": 20, "bfloat16": 1e10}[dtype]
    main = jnp.array([number, 2 * number, 1.5 * number], dtype)
    for v in (
        Diagonal(main),
        Tridiagonal(jnp.ones(2, dtype), main, jnp.ones(2, dtype)),
        BlockDiagonal(jnp.diag(main)[None]),
    ):
        det = forbid(jnp.linalg.det)(v)
        want = np.linalg.det(np.asarray(v.materialise(), np.float64))
        np.testing.assert_allclose(np.float64(det), want, rtol=4 * jnp.finfo(dtype).eps)
        assert det.dtype == dtype
    # A logarithm is as close as its dtype allows.
    log = Kronecker(Diagonal(main), jnp.diag(main)).slogdet()[1]
    want = 6 * np.log(np.asarray(main, np.float64)).sum()
    np.testing.assert_allclose(np.float64(log), want, rtol=jnp.finfo(dtype).eps)


def test_determinants_of_singular_matrices(bulk):
    """The determinant is zero, its sign is zero, and its derivatives are cofactors."""
    values = [
        Diagonal(jnp.array([2.0, 0.0, 3.0, 1.0])),
        Tridiagonal(jnp.ones(3), jnp.array([0.0, 1.0, 0.0, 0.0]), jnp.array([0.0, 1, 1])),
        Kronecker(jnp.array([[1.0, 2.0], [2.0, 4.0]]), jnp.eye(2)),
        Circulant(jnp.array([1.0, -1.0, 1.0, -1.0])),
        Triangular(jnp.tri(4).at[1, 1].set(0)),
    ]
    both = lambda vs: [(jnp.linalg.det(v), *jnp.linalg.slogdet(v)) for v in vs]
    for det, sign, log in jax.jit(forbid(both))(values):
        assert det == pytest.approx(0, abs=1e-12)
        assert (sign, log) == (0, -jnp.inf)
    slope = jax.jit(lambda vs: [jax.grad(forbid(jnp.linalg.det))(v) for v in vs])
    d, t = slope(values[:2])
    assert_same(d.d, np.array([0.0, 6, 0, 0]), 1e-8)
    # By the upper number of the first row: -l_0 det of what is left of the last two rows.
    assert_same(t.upper, np.array([1.0, 0, 0]), 1e-8)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["circulant", "kronecker", "tridiagonal", "banded", "triangular", "sparse"],
)
def test_derivatives_of_what_factors_are_for(name, bulk):
    """A program that looks at the factors makes them dense."""
    v = make(name, 4)
    xs, filled = floating(v)

    def loss(a):
        return sum(
            jnp.sin(x).sum()
            for x in (
                jnp.linalg.det(a),
                jnp.linalg.slogdet(a)[1],
                jnp.linalg.inv(a),
                *jax.scipy.linalg.lu(a),
                jax.scipy.linalg.lu_solve(jax.scipy.linalg.lu_factor(a), jnp.arange(4.0)),
                jax.grad(lambda s: jnp.linalg.det(s * a))(1.5),
            )
        )

    mine = lambda xs: jaxrewrite.transform(loss, materialise="allow")(filled(xs))
    dense = lambda xs: loss(jaxrewrite.materialise(filled(xs)))
    got, want = (jax.jit(jax.value_and_grad(fn))(xs) for fn in (mine, dense))
    # Some of these matrices are ill conditioned, with derivatives of many magnitudes.
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        size = max(1, np.abs(w).max(initial=0))
        np.testing.assert_allclose(g, w, rtol=1e-8, atol=1e-8 * size)


def test_a_derivative_of_ones_own_is_kept():
    @jax.custom_jvp
    def det(a):
        sign, log = jnp.linalg.slogdet(a)
        return sign * jnp.exp(log).astype(sign.dtype)

    det.defjvp(lambda primals, tangents: (det(*primals), 7.0 * tangents[0].sum()))
    v = Circulant(jnp.array([3.0, 1.0, 0.0, 2.5]))
    fn = lambda s: forbid(lambda v, s: det(v * s))(v, s)
    assert_same(fn(1.0), np.linalg.det(np.asarray(v)), 1e-8)
    assert_same(jax.grad(fn)(1.0), 7.0 * 26, 1e-8)


def test_stacks_and_vmap(bulk):
    """Determinants and solves of stacks, and inside and outside of vmap."""
    columns = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 4)))
    b = jnp.arange(24.0).reshape(2, 3, 4)

    def both(v, b):
        log = jnp.linalg.slogdet(v)[1]  # of which the sign is dropped as dead code
        return jnp.linalg.slogdet(2 * v), log, jnp.linalg.det(v), jnp.linalg.solve(v, b)

    for one in (both, jax.vmap(jax.vmap(both))):
        tail = b[..., None] if one is both else b
        got = jax.jit(forbid(one))(Circulant(columns), tail)
        want = jax.jit(one)(Circulant(columns).materialise(), tail)
        jax.tree.map(close, tuple(got), tuple(want))
    outside = jax.jit(jax.vmap(jax.vmap(forbid(both))))(Circulant(columns), b)
    jax.tree.map(close, tuple(outside), tuple(want))


def test_determinants_of_integers():
    v = Circulant(jnp.arange(4))
    assert_same(forbid(jnp.linalg.det)(v), np.linalg.det(np.asarray(v)), 1e-8)
    assert_same(v.determinant(), np.linalg.det(np.asarray(v)), 1e-8)


# --- factors --------------------------------------------------------------------------------


def test_a_real_circulant_has_real_singular_vectors():
    """Its eigenvectors are complex, so it has a dense decomposition, and no other dtype."""
    v, fn = Circulant(jnp.array([4.0, 1.0, 2.0])), jnp.linalg.svd
    allowed = jaxrewrite.transform(fn, materialise="allow")
    of_dtypes = lambda fn, v: [x.dtype for x in jax.eval_shape(fn, v)]
    assert of_dtypes(allowed, v) == of_dtypes(fn, v.materialise())


def test_factors_are_computed_where_they_are_looked_at():
    v = Circulant(jnp.array([1.0, 5.0, 2.0, 0.5]))
    got = forbid(jax.lax.linalg.lu)(v)
    jax.tree.map(close, jaxrewrite.materialise(got), jax.lax.linalg.lu(v.materialise()))
    with pytest.warns(jaxrewrite.MaterialisationWarning, match="LUFactor"):
        assert_same(
            jaxrewrite.transform(lambda v: jax.lax.linalg.lu(v)[0] + 1)(v), got[0] + 1, 1e-8
        )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tridiagonal", "kronecker_square", "banded"])
def test_solves_by_factors(name, bulk):
    """`jax.scipy.linalg.lu_solve`, as lineax calls it, with gradients and batches."""
    v = make(name, 4)
    xs, filled = floating(v)
    b = jnp.arange(8.0).reshape(4, 2)

    def solved(a):
        factors = jax.scipy.linalg.lu_factor(a)
        solve = lambda b, trans=0: jax.scipy.linalg.lu_solve(factors, b, trans)
        yield from (solve(b[:, 0], 1), solve(b, 2), jax.vmap(solve)(b.T))

    fn = lambda a: sum(jnp.sin(x).sum() for x in solved(a))
    mine = lambda xs: forbid(fn)(filled(xs))
    dense = lambda xs: fn(jaxrewrite.materialise(filled(xs)))
    got, want = (jax.jit(jax.value_and_grad(fn))(xs) for fn in (mine, dense))
    jax.tree.map(close, got, want)
    batch = jax.tree.map(lambda x: jnp.stack([x, x / 2]), xs)
    stack = jax.vmap(filled)(batch)
    outside = jax.vmap(lambda a: list(solved(a))[1])
    for found in (
        forbid(outside)(stack),
        jax.vmap(forbid(lambda a: list(solved(a))[1]))(stack),
    ):
        assert_same(
            found, outside(jax.vmap(lambda x: filled(x).materialise())(batch)), 1e-8
        )


@pytest.mark.parametrize("trans", range(3))
def test_solves_by_complex_factors_of_a_real_right_side(trans, bulk):
    solve = lambda a, b: jax.scipy.linalg.lu_solve(jax.scipy.linalg.lu_factor(a), b, trans)
    d, e = jnp.arange(4.0, 8.0), jnp.ones(3)
    for v in (
        Tridiagonal(e, d, 2 * e),
        Triangular(jnp.diag(d) + 1, lower=True),
        Kronecker(jnp.diag(d[:2]) + 1, jnp.diag(d[2:]) - 1),
        2 * Circulant(d),
    ):
        of_complex = (1 + 2j) * v
        for a, b in ((of_complex, d), (of_complex, d[:, None]), (v, d * 1j)):
            want = solve(a.materialise(), b)
            got = jax.jit(forbid(solve))(a, b)
            assert got.dtype == want.dtype
            assert_same(got, want, 1e-8)


def test_pivots_of_another_matrix_are_noticed():
    v, w = (Circulant(jnp.array([1.0, x, 2.0, 0.5])) for x in (5.0, 0.1))

    def fn(v, w):
        factors, pivots = jax.scipy.linalg.lu_factor(v)[0], jax.scipy.linalg.lu_factor(w)[1]
        return jax.scipy.linalg.lu_solve((factors, pivots), jnp.arange(4.0))

    assert np.isnan(forbid(fn)(v, w)).all()


@pytest.mark.slow
def test_gradients_inside_and_outside_are_implicit(bulk):
    """Of a quadratic form and a determinant, also with a right side that is a value."""
    n, y = 12, jnp.arange(12.0)

    def fn(k, y):
        return y @ jnp.linalg.solve(k, y) + jnp.linalg.slogdet(k)[1]

    def programs(k):
        scaled = lambda s: jnp.linalg.slogdet(k * s)[1]
        return (
            jax.grad(fn, 1)(k, y),
            jax.grad(scaled)(2.0),
            jax.jvp(scaled, (2.0,), (1.0,))[1],
            jnp.linalg.solve(k, k.T),
        )

    kinds = [
        Circulant(1 + y),
        Kronecker(4 * jnp.eye(3), jnp.eye(4) + 1),
        Tridiagonal(jnp.ones(n - 1), 3 + y, jnp.ones(n - 1)),
    ]
    leaves = jax.grad(lambda k: forbid(fn)(k, y))
    each = lambda ks: [(programs(k), jax.grad(fn)(k, y)) for k in ks]
    got = jaxrewrite.materialise(jax.jit(forbid(each))(kinds))
    dense = jax.jit(jaxrewrite.materialise)(kinds)
    jax.tree.map(close, got, jax.jit(each)(dense))
    for k in kinds:
        assert not [
            eqn
            for eqn in jax.make_jaxpr(leaves)(k).eqns
            for var in eqn.outvars
            if getattr(var.aval, "size", 0) >= n * n
        ]


def test_a_solve_by_factors_of_something_else():
    """The factors of one matrix are not used in a solve with another one."""
    v, b = Circulant(jnp.array([3.0, 1.0, 0.0, 2.5])), jnp.arange(4.0)

    def fn(a, b):
        factors = jax.scipy.linalg.lu_factor(a)
        solve = lambda _, y: jax.scipy.linalg.lu_solve(factors, y / 2)
        return jax.lax.custom_linear_solve(lambda x: a @ x + a @ x, b, solve)

    got = jaxrewrite.transform(fn, materialise="allow")(v, b)
    assert_same(got, np.linalg.solve(2 * np.asarray(v), b), 1e-8)


def test_one_triangle_is_looked_at(bulk):
    """Of matrices that are not symmetric, where JAX looks at one triangle alone."""
    low, high = jnp.array([[4.0, 100.0], [1.0, 3.0]]), jnp.array([[2.0, 50.0], [0.5, 5.0]])
    v, w = BlockDiagonal(jnp.stack([low, high])), Kronecker(low, Diagonal(jnp.ones(2)))
    u = Kronecker(low, high)
    b = jnp.arange(4.0)

    def fn(a):
        return (
            jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(a, lower=True), b),
            jax.scipy.linalg.cholesky(a, lower=True),
            jax.lax.linalg.cholesky(a, symmetrize_input=False),
            jnp.linalg.eigh(a, symmetrize_input=False)[0],
            jnp.linalg.eigh(a, "U", symmetrize_input=False)[0],
        )

    each = lambda values: [fn(value) for value in values]
    got = jax.jit(jaxrewrite.transform(each, materialise="allow"))([v, w, u])
    dense = [value.materialise() for value in (v, w, u)]
    jax.tree.map(close, jax.jit(jaxrewrite.materialise)(got), jax.jit(each)(dense))


# --- methods --------------------------------------------------------------------------------


_METHODS = {
    "inverse": jnp.linalg.inv,
    "determinant": jnp.linalg.det,
    "slogdet": jnp.linalg.slogdet,
    "diagonal": jnp.diagonal,
    "trace": jnp.trace,
    "solve": lambda a: jnp.linalg.solve(a, jnp.arange(8.0).reshape(4, 2)),
    "cholesky": lambda a: jnp.linalg.cholesky(a, symmetrize_input=False),
    "eigh": lambda a: jnp.linalg.eigh(a, symmetrize_input=False)[0],
}


def _answers(name, methods):
    v = make(name, 4)
    dense = jaxrewrite.materialise(v)
    for method in methods:
        args = (jnp.arange(8.0).reshape(4, 2), 0) if method == "solve" else ()
        got = jaxrewrite.materialise(getattr(v, method)(*args))
        want = _METHODS[method](dense)
        if method == "eigh":
            values, vectors = got
            lower = np.tril(dense) + np.tril(dense, -1).T
            assert_same(values, want, 1e-8)
            assert_same(vectors @ jnp.diag(values) @ vectors.T, lower, 1e-8)
        elif not np.isfinite(jax.tree.leaves(want)[-1]).all():
            assert not np.isfinite(jax.tree.leaves(got)[-1]).all(), method
        else:
            for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
                assert_same(x, y, 1e-8)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::jaxrewrite.MaterialisationWarning")
@pytest.mark.parametrize("name", _SQUARE)
def test_each_method_has_an_answer(name, bulk):
    _answers(name, _METHODS)


def test_methods_that_a_type_knows_nothing_better_for(no_leak_checks):
    v = make("tridiagonal", 4)
    assert_same(v.inverse(), jnp.linalg.inv(v.materialise()), 1e-8)
    with pytest.warns(jaxrewrite.MaterialisationWarning, match="'eig' on Tridiagonal"):
        found = v.eigenvalues()
    assert_same(
        np.sort_complex(found), np.sort_complex(np.linalg.eigvals(np.asarray(v))), 1e-8
    )
    with pytest.warns(jaxrewrite.MaterialisationWarning, match="'eigh' on Tridiagonal"):
        values, _ = v.eigh()
    lower = np.tril(np.asarray(v))
    assert_same(values, np.linalg.eigvalsh(lower + np.tril(lower, -1).T), 1e-8)
    with pytest.raises(ValueError, match=r"got \(2, 3\)"):
        Toeplitz(jnp.ones(2), jnp.ones(3)).inverse()
    with pytest.warns(jaxrewrite.MaterialisationWarning, match="'lu' on Toeplitz"):
        assert_same(
            Toeplitz(jnp.arange(4.0), jnp.ones(4)).determinant(),
            0.0 + np.linalg.det(np.asarray(Toeplitz(jnp.arange(4.0), jnp.ones(4)))),
            1e-8,
        )


def test_lazy_matrices_are_solved_and_factorised(bulk):
    d, c = Diagonal(jnp.arange(1.0, 5.0)), Circulant(jnp.array([9.0, 1.0, 0.0, 2.0]))
    b = jnp.arange(4.0)

    def fn(a):
        return (
            jnp.linalg.det(a),
            tuple(jnp.linalg.slogdet(a)),
            jnp.linalg.solve(a, b),
            jnp.linalg.inv(a),
            jax.scipy.linalg.lu_factor(a),
            jnp.linalg.cholesky(a @ a.T),
            jnp.linalg.eigvalsh(a + a.T),
            jnp.linalg.svd(a, compute_uv=False),
            jnp.linalg.matrix_power(a, -2),
            jnp.linalg.cond(a),
        )

    values = Product((d, c)), Sum((d, c)), Scaled(c, jnp.asarray(2.0))
    each = lambda vs: [fn(v) for v in vs]
    allowed = jaxrewrite.transform(each, materialise="allow")
    got = jax.jit(lambda vs: jaxrewrite.materialise(allowed(vs)))(values)
    dense = jax.jit(jaxrewrite.materialise)(values)
    jax.tree.map(close, got, jax.jit(each)(dense))

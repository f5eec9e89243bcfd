"""The patterns of `jaxrewrite.patterns.structured`: sums and products that stay implicit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from choose import every, slow
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.extend import core as jex_core
from oracle import normal
from pattern_tables import look_alikes, spied

import jaxrewrite
from jaxrewrite import patterns, values


TABLE = patterns.structured
N = 12


def decaying(n=N, dtype=np.float32):
    return jnp.asarray(0.5 ** np.arange(n), dtype)


MATRICES = {
    "Toeplitz": lambda t: values.Toeplitz(
        2 * decaying(dtype=t), decaying(dtype=t).at[0].mul(2)
    ),
    "Diagonal": lambda t: values.Diagonal(2 + normal(N, dtype=t) ** 2),
    "Tridiagonal": lambda t: values.Tridiagonal(
        normal(N - 1, dtype=t), jnp.full(N, 4, t), normal(N - 1, seed=1, dtype=t)
    ),
    "Circulant": lambda t: values.Circulant(decaying(dtype=t)),
    "Kronecker": lambda t: values.Kronecker(
        normal(3, 3, dtype=t) + 3 * jnp.eye(3, dtype=t), normal(4, 4, dtype=t)
    ),
    "LowRank": lambda t: values.LowRank(normal(N, 2, dtype=t), normal(2, N, dtype=t)),
    "Permutation": lambda t: values.Permutation(jnp.arange(N)[::-1], of_dtype=t),
    "Sparse": lambda t: values.Sparse.from_dense(
        jnp.asarray(np.triu(np.tri(N, k=1), -1) * np.arange(1, N + 1), t)
    ),
    "Sum": lambda t: MATRICES["Toeplitz"](t) + values.Diagonal(decaying(dtype=t)),
    "Scaled": lambda t: MATRICES["Toeplitz"](t) / jnp.asarray(3, t),
    "Product": lambda t: MATRICES["Circulant"](t) @ MATRICES["Diagonal"](t),
}
EYE = lambda a: jnp.eye(a.shape[-1], dtype=a.dtype)

# A rule, programs for which it answers, and the operands besides the matrix.
PROGRAMS = [
    *[
        ("with_identity", fn, ())
        for fn in (
            lambda a: a + EYE(a),
            lambda a: EYE(a) + a,
            lambda a: a - EYE(a),
            lambda a: EYE(a) - a,
            lambda a: a + jnp.identity(N, a.dtype),
        )
    ],
    *[
        ("with_multiple", fn, (1.5,))
        for fn in (
            lambda a, s: a + s * EYE(a),
            lambda a, s: EYE(a) * s + a,
            lambda a, s: a - s * EYE(a),
            lambda a, s: s * EYE(a) - a,
            lambda a, s: a + 0.5 * EYE(a),
            lambda a, s: a + jnp.exp(-s) * EYE(a),
        )
    ],
    *[
        ("with_diagonal", fn, (decaying(),))
        for fn in (
            lambda a, d: a + jnp.diag(d),
            lambda a, d: jnp.diag(d) + a,
            lambda a, d: a - jnp.diag(d),
            lambda a, d: jnp.diag(jnp.sin(d)) - a,
            lambda a, d: a + jnp.diag(jnp.full(N, d[1])),
        )
    ],
    ("number_at_diagonal", lambda a, s: a.at[jnp.diag_indices(N)].add(s), (1.5,)),
    ("number_at_diagonal", lambda a, s: a.at[jnp.diag_indices_from(a)].add(s), (1.5,)),
    ("numbers_at_diagonal", lambda a, d: a.at[jnp.diag_indices(N)].add(d), (decaying(),)),
    (
        "numbers_at_diagonal",
        lambda a, d: a.at[jnp.arange(N), jnp.arange(N)].add(d * 2),
        (decaying(),),
    ),
    ("diagonal_times", lambda a, d: jnp.diag(d) @ a, (decaying(),)),
    ("times_diagonal", lambda a, d: a @ jnp.diag(d), (decaying(),)),
]


def arrays(jaxpr):
    """The avals of all that a jaxpr and the jaxprs in it compute."""
    for eqn in jaxpr.eqns:
        yield from (var.aval for var in eqn.outvars)
        for inner in jex_core.jaxprs_in_params(eqn.params):
            yield from arrays(inner)


def holds_no_matrix(fn, *args, rules=TABLE, limit=N * N):
    """Whether no array in the rewritten program has the size of a matrix."""
    jaxpr = jaxrewrite.make_jaxpr(fn, rules=rules, materialise="forbid")(*args).jaxpr
    return all(np.prod(aval.shape) < limit for aval in arrays(jaxpr))


def wide(tree):
    """The same in double precision."""
    return jax.tree.map(
        lambda x: np.asarray(x, np.float64) if jnp.issubdtype(x.dtype, jnp.inexact) else x,
        tree,
    )


@pytest.mark.parametrize("kind", every(3, MATRICES))
@pytest.mark.parametrize("name, fn, args", every(7, PROGRAMS))
def test_each_formula_is_found_and_stays_implicit(name, fn, args, kind):
    value = MATRICES[kind](np.float32)
    args = [jnp.float32(x) for x in args]
    rules, answers = spied(TABLE, [name])
    assert holds_no_matrix(fn, value, *args, rules=rules)
    assert {*answers} == {name}


@pytest.mark.parametrize("kind", every(4, MATRICES, 1))
@pytest.mark.parametrize("name, fn, args", every(9, PROGRAMS, 2))
def test_results_and_gradients_are_those_of_arrays(name, fn, args, kind):
    """In double precision, of the matrix and of derivatives by its leaves and the operands."""
    with jax.enable_x64(True):
        value = MATRICES[kind](np.float64)
        args = [jnp.asarray(x, np.float64) for x in args]
        weights = normal(N, N, seed=5, dtype=np.float64)

        def loss(fn):
            # The product is a map of the entries, and so each of them counts.
            return lambda v, *args: jnp.sum(jnp.sin(fn(v, *args) @ weights))

        def both(v, *args):
            implicit = jaxrewrite.transform(fn, rules=TABLE, materialise="forbid")
            made = jaxrewrite.materialise(implicit(v, *args))
            dense = fn(v.materialise(), *args)
            by_leaves = jax.grad(
                jaxrewrite.transform(loss(fn), rules=TABLE, materialise="allow"),
                range(1 + len(args)),
                allow_int=True,
            )
            on_arrays = jax.grad(
                lambda v, *args: loss(fn)(v.materialise(), *args),
                range(1 + len(args)),
                allow_int=True,
            )
            return (made, by_leaves(v, *args)), (dense, on_arrays(v, *args))

        got, want = jax.jit(both)(value, *args)
        for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            assert (g.shape, g.dtype) == (w.shape, w.dtype)
            if g.dtype != jax.dtypes.float0:
                np.testing.assert_allclose(g, w, 1e-9, 1e-9)


# The exact formulas, of which each equation is changed in turn.
EXACT = {
    "with_multiple": (lambda a, s: a + s * EYE(a), (jnp.float32(1.5),)),
    "with_diagonal": (lambda a, d: a + jnp.diag(d), (decaying(),)),
    "diagonal_times": (lambda a, d: jnp.diag(d) @ a, (decaying(),)),
    "times_diagonal": (lambda a, d: a @ jnp.diag(d), (decaying(),)),
}


@pytest.mark.parametrize("name", every(3, EXACT))
def test_look_alikes_stay(name):
    fn, args = EXACT[name]
    value = MATRICES["Toeplitz"](np.float32)
    alike = dict(look_alikes(fn, value.materialise(), *args, scalars=(0,), keeps=True))
    assert len(alike) >= 5
    for what, program in alike.items():
        rules, answers = spied(TABLE, [name])
        jaxrewrite.make_jaxpr(program, rules=rules, materialise="allow")(value, *args)
        assert not answers, what


# Programs that compute something else.
OTHER = [
    lambda a, d: a + jnp.eye(N, k=1),
    lambda a, d: a + jnp.eye(N)[::-1],
    lambda a, d: a + jnp.tri(N),
    lambda a, d: a + jnp.diag(d[:-1], k=1),
    lambda a, d: a + jnp.diag(d[1:], k=-1),
    lambda a, d: a * EYE(a),
    lambda a, d: a + d,
    lambda a, d: a + d * (EYE(a) + 1),
    lambda a, d: jnp.maximum(a, EYE(a)),
    lambda a, d: a + checkpoint_name(EYE(a), "eye"),
    lambda a, d: a + lax.optimization_barrier(jnp.diag(d)),
    lambda a, d: a.at[jnp.diag_indices(N)].set(d),
    lambda a, d: a.at[jnp.diag_indices(N)].multiply(d),
    lambda a, d: a.at[jnp.diag_indices(N)].max(d[0]),
    lambda a, d: a.at[jnp.arange(N), jnp.arange(N)[::-1]].add(d),
    lambda a, d: a.at[jnp.arange(N)].add(d),
    lambda a, d: a.at[jnp.diag_indices(N - 1)].add(d[0]),
    lambda a, d: a + (d[:, None] + d),
    lambda a, d: jnp.diag(d).T @ jnp.sin(a),
    lambda a, d: jnp.diag(d, k=0) * a,
    lambda a, d: jnp.kron(a, jnp.eye(2)) - jnp.kron(jnp.eye(N), a[:2, :2]),
    lambda a, d: jnp.kron(a, jnp.ones((2, 2))) + jnp.kron(jnp.eye(N), a[:2, :2]),
]


@pytest.mark.parametrize("fn", every(3, OTHER))
def test_other_programs_stay(fn):
    value, d = MATRICES["Toeplitz"](np.float32), decaying()
    rules, answers = spied(TABLE)
    got = jaxrewrite.transform(fn, rules=rules, materialise="allow")(value, d)
    assert not answers
    want = fn(value.materialise(), d)
    np.testing.assert_allclose(jaxrewrite.materialise(got), want, 1e-5, 1e-5)


def laplacian_of_a_grid(a, b):
    """LeVeque, *Finite Difference Methods*, (3.12), by Kronecker products."""
    return jnp.kron(a, jnp.eye(b.shape[0])) + jnp.kron(jnp.eye(a.shape[0]), b)


SOLVED = {
    "poisson": lambda a, b: jnp.linalg.solve(laplacian_of_a_grid(a, b), jnp.ones(12)),
    "in the other order": lambda a, b: jnp.linalg.solve(
        jnp.kron(EYE(b), a) + jnp.kron(b, EYE(a)), jnp.ones(12)
    ),
    "screened": lambda a, b: jnp.linalg.solve(
        laplacian_of_a_grid(a, b) + 0.3 * jnp.eye(12), jnp.ones(12)
    ),
    "heat": lambda a, b: jax.scipy.linalg.expm(-laplacian_of_a_grid(a, b)) @ jnp.ones(12),
    "spectrum": lambda a, b: jnp.linalg.eigvalsh(laplacian_of_a_grid(a, b)),
}


@pytest.mark.parametrize("n, m", [(3, 4), slow((4, 3)), slow((1, 12)), slow((6, 2))])
@pytest.mark.parametrize("name", every(2, SOLVED))
def test_kronecker_sums(name, n, m):
    fn = SOLVED[name]
    symmetric = lambda k: values.Symmetric(3 * jnp.eye(k) + normal(k, k) * 0.3)  # noqa: E731
    a, b = symmetric(n), symmetric(m)
    rules, answers = spied(TABLE)
    got = jax.jit(jaxrewrite.transform(fn, rules=rules, materialise="forbid"))(a, b)
    assert "kronecker_sum" in answers
    np.testing.assert_allclose(got, fn(a.materialise(), b.materialise()), 1e-4, 1e-5)


def test_kronecker_sums_of_one_matrix():
    """Both identities are one then."""
    a = values.Symmetric(3 * jnp.eye(3) + normal(3, 3) * 0.3)
    fn = lambda a: jnp.linalg.solve(laplacian_of_a_grid(a, a), jnp.ones(9))  # noqa: E731
    got = jaxrewrite.transform(fn, rules=TABLE, materialise="forbid")(a)
    np.testing.assert_allclose(got, fn(a.materialise()), 1e-4, 1e-5)


def test_kronecker_sums_with_identities_of_another_dtype():
    a, b = (values.Toeplitz(*(decaying(n, np.complex64),) * 2) for n in (3, 4))
    rules, answers = spied(TABLE, ["kronecker_sum"])
    jax.eval_shape(jaxrewrite.transform(laplacian_of_a_grid, rules=rules), a, b)
    assert answers == ["kronecker_sum"]


def test_kronecker_sums_with_identities_of_their_dtype():
    a, b = (values.Toeplitz(*(decaying(n, np.complex64),) * 2) for n in (3, 4))
    rules, answers = spied(TABLE, ["kronecker_sum"])
    fn = lambda a, b: jnp.kron(a, EYE(b)) + jnp.kron(EYE(a), b)  # noqa: E731
    jax.eval_shape(jaxrewrite.transform(fn, rules=rules), a, b)
    assert answers == ["kronecker_sum"]


def test_a_matrix_of_ones_own_and_a_stack():
    """As the page says: subclasses of `Matrix`, and stacks."""

    class Exchange(values.Matrix):
        c: jax.Array

        def aval(self):
            return jax.core.ShapedArray((4, 4), self.c.dtype)

        def materialise(self):
            return self.c * jnp.eye(4, dtype=self.c.dtype)[::-1]

        def apply(self, x, axis, precision=None):
            return self.c * jnp.flip(x, axis)

        def transposed(self):
            return self

    for value in (Exchange(jnp.float32(2)), values.Circulant(normal(3, 4))):
        for fn in (lambda a: a - 0.5 * EYE(a), lambda a: jnp.diag(jnp.arange(4.0)) + a):
            got = jaxrewrite.transform(fn, rules=TABLE, materialise="forbid")(value)
            assert isinstance(got, values.Sum)
            np.testing.assert_allclose(got.materialise(), fn(value.materialise()), 1e-6)


def test_arrays_and_types_without_lazy_sums_stay():
    """Programs of arrays alone, and weights and units, are what they are without the table."""
    program = lambda a: a + 0.5 * EYE(a)  # noqa: E731
    dense = normal(N, N)
    for operand in (dense, values.Quantised.quantise(dense), values.Unitful(dense, "1")):
        rules, answers = spied(TABLE)
        jaxrewrite.make_jaxpr(program, rules=rules, materialise="allow")(operand)
        assert not answers


def test_an_identity_may_be_used_several_times():
    def cayley(a, b):
        eye = EYE(a)
        return (eye + a) @ ((eye - a) @ b), eye @ b

    value, b = MATRICES["Tridiagonal"](np.float32), normal(N)
    rules, answers = spied(TABLE)
    got = jaxrewrite.transform(cayley, rules=rules, materialise="forbid")(value, b)
    assert sorted(answers) == ["with_identity", "with_identity"]
    for g, w in zip(got, cayley(value.materialise(), b), strict=True):
        np.testing.assert_allclose(g, w, 1e-4, 1e-4)


ADDED = {
    "multiple": lambda a, s: a + jnp.sin(s) * EYE(a),
    "difference": lambda a, s: s * EYE(a) - a,
    "diagonal": lambda a, s: a + jnp.diag(jnp.full(a.shape[0], s)),
}


@pytest.mark.parametrize("axes", [(0, None), (None, 0), (0, 0)])
@pytest.mark.parametrize("added", ["multiple", *map(slow, ["difference", "diagonal"])])
def test_under_vmap_in_the_program(added, axes):
    n = 60  # An array for each of three matrices is larger than three rows of ten numbers.
    stack = values.Tridiagonal(normal(3, n - 1), 9 + normal(3, n), normal(3, n - 1, seed=1))
    value = stack if axes[0] == 0 else stack[0]
    s = normal(3) if axes[1] == 0 else jnp.float32(2)
    program = jax.vmap(lambda a, s: jnp.linalg.solve(ADDED[added](a, s), jnp.ones(n)), axes)
    assert holds_no_matrix(program, value, s, limit=n * n)
    got = jaxrewrite.transform(program, rules=TABLE)(value, s)
    np.testing.assert_allclose(got, program(value.materialise(), s), 2e-4, 2e-4)


OF_DTYPES = {
    "own identity": lambda a: a + EYE(a),
    "identity": lambda a: jnp.eye(N) - a,
    "own multiple": lambda a: a + 0.5 * EYE(a),
    "multiple": lambda a: a + 0.5 * jnp.eye(N),
    "real multiple": lambda a: a - jnp.float32(0.5) * jnp.eye(N),
    "imaginary multiple": lambda a: a + 1j * jnp.eye(N),
    "diagonal": lambda a: a + jnp.diag(decaying()),
}


@pytest.mark.parametrize("dtype", [jnp.float16, slow(jnp.bfloat16), jnp.complex64])
def test_dtypes(dtype):
    """The dtypes of the results are those of arrays, also where the identity has another."""
    value = MATRICES["Toeplitz"](dtype)
    for name, fn in OF_DTYPES.items():
        got = jaxrewrite.transform(fn, rules=TABLE, materialise="forbid")(value)
        assert isinstance(got, values.Sum), name
        want = fn(value.materialise())
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        np.testing.assert_allclose(got.materialise(), want, 1e-6)


def test_the_largest_matrices():
    """A matrix with a row for each of a million unknowns, which no array could hold."""
    n = 1_000_000
    laplace = values.Tridiagonal(jnp.ones(n - 1), jnp.full(n, -2.0), jnp.ones(n - 1))

    def step(a, x):  # Crank and Nicolson's, of the heat equation.
        eye = jnp.eye(n)
        return jnp.linalg.solve(eye - 0.25 * a, (eye + 0.25 * a) @ x)

    x = np.sin(np.arange(n) * 0.01)
    run = jax.jit(jaxrewrite.transform(step, rules=TABLE, materialise="forbid"))
    inside = slice(1000, -1000)  # Where the ends are not felt, a sine stays a sine.
    rate = 0.5 * (1 - np.cos(0.01))
    want = x * (1 - rate) / (1 + rate)
    np.testing.assert_allclose(run(laplace, jnp.float32(x))[inside], want[inside], 0, 2e-5)


# --- programs that were written without the table in mind ---------------------------------


def posterior_mean(k, y, noise):
    """Rasmussen and Williams, *Gaussian Processes for Machine Learning*, (2.23)."""
    return k @ jnp.linalg.solve(k + noise**2 * jnp.eye(y.size), y)


def marginal_likelihood(k, y, noise):
    """The same, (2.30)."""
    covariance = k + noise**2 * jnp.eye(y.size)
    return -0.5 * (
        y @ jnp.linalg.solve(covariance, y)
        + jnp.linalg.slogdet(covariance)[1]
        + y.size * jnp.log(2 * jnp.pi)
    )


def backward_euler(a, x, h):
    """Hairer and Wanner, *Solving Ordinary Differential Equations II*, (IV.3.1)."""
    step = lambda x, _: (jnp.linalg.solve(jnp.eye(x.size) - h * a, x), x.sum())  # noqa: E731
    return lax.scan(step, x, None, length=3)[1]


def cayley(a, x, h):
    """The same, (IV.3.7), the trapezoidal rule."""
    eye = jnp.identity(x.size)
    return jnp.linalg.solve(eye - h / 2 * a, (eye + h / 2 * a) @ x)


def inverse_iteration(a, x, shift):
    """Trefethen and Bau, *Numerical Linear Algebra*, algorithm 27.2."""

    def step(x, _):
        x = jnp.linalg.solve(a - shift * jnp.eye(x.size), x)
        return x / jnp.linalg.norm(x), None

    x, _ = lax.scan(step, x, None, length=3)
    return x @ (a @ x)


def jacobi(a, b, _):
    """Golub and Van Loan, *Matrix Computations*, 11.2.2."""
    d = jnp.diag(a)
    remainder = a - jnp.diag(d)
    return lax.fori_loop(0, 5, lambda i, x: (b - remainder @ x) / d, jnp.zeros_like(b))


def jittered(a, b, jitter):
    """How libraries for Gaussian processes keep a matrix positive definite."""
    return jax.scipy.sparse.linalg.cg(a.at[jnp.diag_indices(b.size)].add(jitter), b)[0]


def laplacian(w, x, _):
    """von Luxburg, *A tutorial on spectral clustering*, section 3.1."""
    return (jnp.diag(w.sum(axis=1)) - w) @ x


def normalised(w, x, _):
    """The same, section 3.2: the symmetric Laplacian."""
    d = jnp.diag(1 / jnp.sqrt(w.sum(axis=1)))
    return (jnp.eye(x.size) - d @ w @ d) @ x


def symmetric(n):
    off = -0.3 - jnp.abs(normal(n - 1)) * 0.2
    return values.Tridiagonal(off, jnp.full(n, 2.0), off)


def graph(n):
    ring = np.roll(np.eye(n), 1, axis=1) + np.eye(n, k=3)
    return values.Sparse.from_dense(jnp.asarray(ring + ring.T, jnp.float32))


TEXTBOOKS = [
    (posterior_mean, symmetric),
    (marginal_likelihood, symmetric),
    (backward_euler, lambda n: -symmetric(n)),
    (
        backward_euler,
        lambda n: values.Circulant(jnp.zeros(n).at[:2].set(jnp.array([-2.0, 0.5]))),
    ),
    (cayley, lambda n: -symmetric(n)),
    (inverse_iteration, symmetric),
    (jacobi, symmetric),
    (jittered, symmetric),
    (
        jittered,
        lambda n: values.Kronecker(2 * jnp.eye(3), values.Diagonal(1 + decaying(n // 3))),
    ),
    (laplacian, graph),
    (normalised, graph),
]


@pytest.mark.parametrize("fn, make", [TEXTBOOKS[1], *map(slow, TEXTBOOKS)])
def test_programs_of_textbooks(fn, make):
    """No array has the size of the matrix, and results are those of arrays in float64."""
    n = 60
    value, x, s = make(n), 1 + normal(n, seed=4) ** 2, jnp.float32(0.4)
    rules, answers = spied(TABLE)
    assert holds_no_matrix(fn, value, x, s, rules=rules, limit=n * n)
    assert answers
    got = jax.jit(jaxrewrite.transform(fn, rules=TABLE, materialise="allow"))(value, x, s)
    with jax.enable_x64(True):
        want = jax.jit(fn)(*wide((value.materialise(), x, s)))
    np.testing.assert_allclose(got, want, 2e-4, 2e-4)


def test_a_density_with_noise_is_of_two_tables():
    """The sum is one of structure by one table, and its Cholesky factor left out by another."""

    def log_density(covariance, noise, y):
        factor = jnp.linalg.cholesky(covariance + noise * jnp.eye(6))
        white = jax.scipy.linalg.cho_solve((factor, True), y)
        return -(y @ white) / 2 - jnp.log(jnp.diag(factor)).sum()

    symmetric = [values.Symmetric(jnp.eye(n) + 1) for n in (3, 2)]
    args = values.Kronecker(*symmetric), jnp.float32(0.5), jnp.arange(6.0)
    for tables in ([TABLE, patterns.normal], [patterns.normal, TABLE]):
        implicit = jaxrewrite.transform(log_density, rules=tables, materialise="forbid")
        got = implicit(*args)
        np.testing.assert_allclose(
            got, log_density(*jaxrewrite.materialise(args)), rtol=1e-5
        )

"""The patterns of `jaxrewrite.patterns.linalg`: what they find, what it gives, what it costs."""

import functools

import jax
import jax.numpy as jnp
import jax.scipy as jsp
import numpy as np
import pytest
from choose import every, slow
from pattern_tables import answered, look_alikes, spied

import jaxrewrite
from jaxrewrite import patterns, values
from jaxrewrite._insight.costs import of_jaxpr
from jaxrewrite.patterns import _linalg
from jaxrewrite.testing import assert_same


pytestmark = pytest.mark.usefixtures("bulk")

TABLE = patterns.linalg


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def regular(n):
    return normal(n, n) + 4 * np.eye(n, dtype=np.float32)


A, B, X, V = regular(6), normal(6, 6, seed=1), normal(6, 3), normal(6)
TALL, WIDE = normal(6, 2), normal(2, 6)
inv, det = jnp.linalg.inv, jnp.linalg.det

# A rule, a program for all of which it answers, and the operands.
PROGRAMS = [
    ("inverse_times", lambda a, b: inv(a) @ b, (A, V)),
    ("inverse_times", lambda a, b: inv(a) @ b, (A, X)),
    ("inverse_times", lambda a, b: jnp.dot(inv(a), b), (A, X)),
    ("inverse_times", lambda a, b: jsp.linalg.inv(a) @ b, (A, X)),
    ("inverse_times", lambda a, b: inv(a) @ b, (np.stack([A, A.T]), np.stack([X, X]))),
    ("inverse_times", jax.vmap(lambda a, b: inv(a) @ b), (np.stack([A, A.T]), X.T[:2])),
    *[
        (rule, functools.reduce(lambda f, _: jax.vmap(f), shape, fn), [
            np.broadcast_to(x, (*shape, *x.shape)) for x in operands
        ])
        for shape in ((2, 1), (1, 2, 1))
        for rule, fn, operands in (
            ("inverse_times", lambda a, b: inv(a) @ b, (A, V)),
            ("log_absolute_determinant", lambda a: jnp.log(jnp.abs(det(a))), (regular(4),)),
            ("trace_of_product", lambda a, b: jnp.trace(a @ b), (A, B)),
        )
    ],
    ("negative_inverse_times", lambda a, b: -inv(a) @ b, (A, V)),
    ("times_inverse", lambda b, a: b @ inv(a), (V, A)),
    ("times_inverse", lambda b, a: b @ inv(a), (X.T, A)),
    ("times_inverse", lambda b, a: b @ inv(a), (V, np.stack([A, A.T]))),
    *[("log_determinant", lambda a: jnp.log(det(a)), (regular(n),)) for n in (1, 2, 3, 4, 5)],
    *[
        ("log_absolute_determinant", lambda a: jnp.log(jnp.abs(det(a))), (-regular(n),))
        for n in (1, 2, 3, 4, 5)
    ],
    ("trace_of_product", lambda a, b: jnp.trace(a @ b), (A, B)),
    ("trace_of_product", lambda a, b: jnp.trace(a @ b), (TALL, WIDE)),
    ("diagonal_of_product", lambda a, b: jnp.diag(a @ b), (TALL, WIDE)),
    ("diagonal_of_product", lambda a, b: jnp.diagonal(a @ b), (WIDE, B[:, :4])),
    ("sum_of_product", lambda a, b: jnp.sum(a @ b), (TALL, WIDE)),
    ("sum_of_product", lambda a, b: (a @ b).sum(1), (TALL, WIDE)),
    ("diagonal_times", lambda d, x: jnp.diag(d) @ x, (V, X)),
    ("diagonal_times", lambda d, x: jnp.diag(d) @ x, (V, V)),
    ("times_diagonal", lambda x, d: x @ jnp.diag(d), (WIDE, V)),
    ("outer_times", lambda u, v, x: jnp.outer(u, v) @ x, (V, V, V)),
    ("outer_times", lambda u, v, x: jnp.outer(u, v) @ x, (V, V, X)),
    ("times_outer", lambda x, u, v: x @ jnp.outer(u, v), (WIDE, V, V)),
    ("times_outer", lambda x, u, v: x @ jnp.outer(u, v), (V, V, V)),
    ("kron_times", lambda a, b, x: jnp.kron(a, b) @ x, (WIDE, TALL, normal(12))),
    ("kron_times", lambda a, b, x: jnp.kron(a, b) @ x, (WIDE, TALL, normal(12, 3))),
    ("times_kron", lambda x, a, b: x @ jnp.kron(a, b), (normal(12), WIDE, TALL)),
    ("times_kron", lambda x, a, b: x @ jnp.kron(a, b), (normal(3, 12), WIDE, TALL)),
    ("product_of_3", lambda a, b, v: (a @ b) @ v, (A, B, V)),
    ("product_of_3", lambda v, a, b: v @ (a @ b), (V, A, B)),
    ("product_of_3", lambda x, a, b: x @ a @ b, (normal(5, 7, 6), normal(6, 40), normal(40, 2))),
    ("product_of_4", lambda a, b, c, v: a @ b @ c @ v, (A, B, A, V)),
    ("product_of_4", lambda a, b, c, d: (a @ b) @ (c @ d), (TALL, WIDE, TALL, WIDE)),
]  # fmt: skip

# Programs that compute something else as well.
LONGER = [
    ("times_inverse", lambda b, a: b @ inv(a) @ b, (V, A)),
    ("log_determinant", lambda a: 0.5 * jnp.log(det(a)).sum(), (np.stack([A, A.T]),)),
    ("trace_of_product", lambda a, b: jnp.trace(a.T @ b), (A, B)),
    ("sum_of_product", lambda a, b: (a @ b).mean(0), (TALL, WIDE)),
    ("sum_of_products", lambda a, b: jnp.sum((a @ b) * (2 * a @ b)), (TALL, WIDE)),
]
CASES = [pytest.param(*case) for case in (PROGRAMS[0], *PROGRAMS[2:], *LONGER)]


def _is_exact(fn, args):
    wanted = jax.make_jaxpr(fn)(*args)
    return any(
        len(pattern.names) == len(args)
        and not pattern.statics.domains
        and str(_traced(pattern.before, args)) == str(wanted)
        for pattern in TABLE.patterns
    )


def _traced(fn, args):
    try:
        return jax.make_jaxpr(fn)(*args)
    except (TypeError, ValueError):
        return None  # Operands of other ranks.


@jax.numpy_dtype_promotion("standard")
def agrees(fn, args, rules):
    """The program and its gradients in double precision, as they are and rewritten."""
    with jax.enable_x64(True):
        args = [jnp.asarray(a, jnp.float64) for a in args]
        weights = jnp.cos(jnp.arange(jax.eval_shape(fn, *args).size, dtype=jnp.float64))

        def both(*args):
            results = []
            for f in (fn, jaxrewrite.transform(fn, rules=rules)):
                out, pull = jax.vjp(f, *args)
                results.append([out, *pull(weights.reshape(out.shape))])
            return results

        want, got = jax.jit(both)(*args)
        assert_same(got, want, 1e-9)


@pytest.mark.parametrize("name, fn, args", [PROGRAMS[1], *map(slow, CASES)])
def test_each_formula_is_found_and_is_right(name, fn, args):
    rules, answers = spied(TABLE, [name])
    agrees(fn, args, rules)
    assert {*answers} == {name}


def test_all_formulas_in_one_program():
    """Each rule answers where the whole table is in force, and no result differs."""
    formulas = {name: (fn, args) for name, fn, args in [*PROGRAMS, *LONGER]}
    run = lambda args: {name: fn(*args[name]) for name, (fn, _) in formulas.items()}
    operands = {name: args for name, (_, args) in formulas.items()}
    used = jaxrewrite.explain(run, rules=TABLE)(operands).rules
    assert {rule.name for rule in used} >= {*formulas}
    got = jaxrewrite.transform(run, rules=TABLE)(operands)
    for name, result in run(operands).items():
        np.testing.assert_allclose(got[name], result, 1e-4, 1e-4, err_msg=name)


@pytest.mark.slow
def test_look_alikes_stay():
    """Of programs that are a formula and nothing else, so that each change is inside of it."""
    exact = [program for program in PROGRAMS if _is_exact(*program[1:])]
    assert len(exact) >= 33
    for name, fn, args in exact:
        rules, answers = spied(TABLE, [name])
        alike = dict(look_alikes(fn, *args))
        assert len(alike) >= 5
        for what, program in alike.items():
            jaxrewrite.make_jaxpr(program, rules=rules)(*args)
            assert not answers, (name, what)


# Programs that compute something else, and rules that must not answer.
OTHER = {
    "inverse_times": [
        lambda a, x: inv(a) * x[:, :1],
        lambda a, x: inv(a).T @ x,
        lambda a, x: (b := inv(a)) @ x + b.sum(),
        lambda a, x: jnp.linalg.pinv(a) @ x,
        lambda a, x: jnp.matmul(inv(a), x, precision="highest"),
    ],
    "log_determinant": [
        lambda a, x: jnp.log(-det(a)),
        lambda a, x: jnp.log(det(a) + 1),
        lambda a, x: jnp.log1p(det(a)),
        lambda a, x: jnp.log(jnp.exp(jnp.linalg.slogdet(a)[1])),
        lambda a, x: jnp.log(jnp.prod(jnp.diag(a))),
    ],
    "trace_of_product": [
        lambda a, x: jnp.trace(a * a),
        lambda a, x: jnp.trace(a @ a, offset=1),
        lambda a, x: jnp.trace(a @ a + 1),
        lambda a, x: jnp.trace(a @ a, dtype=jnp.float16),
        lambda a, x: jnp.trace(b := a @ a) + b.sum(),
    ],
    "diagonal_of_product": [
        lambda a, x: jnp.diag(a * a),
        lambda a, x: jnp.diag(a @ a, k=1),
        lambda a, x: jnp.diag(a @ a + 1),
        lambda a, x: jnp.diagonal(a @ a, offset=-1),
        lambda a, x: jnp.diag(a @ x[:, 0]),
    ],
    "kron_times": [
        lambda a, x: jnp.kron(a, x) * 2,
        lambda a, x: jnp.kron(a, x).T @ jnp.ones(36),
        lambda a, x: jnp.kron(x[:, 0], x[:, 1]) @ jnp.ones(36),
        lambda a, x: (k := jnp.kron(a, x)) @ jnp.ones(18) + k.sum(),
        lambda a, x: jnp.tile(a, (6, 6)) @ jnp.ones(36),
    ],
    # These are in the cheapest order, or no products of three.
    "product_of_3": [
        lambda a, x: a @ (a @ x[:, 0]),
        lambda a, x: (x.T @ a) @ a,
        lambda a, x: (a @ a) @ a,
        lambda a, x: (a * a) @ x,
        lambda a, x: (a @ a + 1) @ x,
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHER)
def test_other_programs_stay(name):
    rules, answers = spied(TABLE, [name])
    for fn in OTHER[name]:
        jaxrewrite.make_jaxpr(fn, rules=rules)(A, X)
    assert not answers


@pytest.mark.slow
def test_some_programs_in_one():
    """The work that is left has no inverse, no cube of n, and no product of Kronecker."""

    def program(a, x, v):
        likelihood = v @ (inv(a) @ v) + jnp.log(det(a))
        return likelihood + jnp.trace(a @ a.T) + (jnp.kron(x.T, a) @ jnp.ones(36)).sum()

    names = ["inverse_times", "log_determinant", "trace_of_product", "kron_times"]
    rules, answers = spied(TABLE, names)
    gradient = jax.jit(jax.grad(jaxrewrite.transform(program, rules=rules), (0, 1, 2)))
    got = gradient(A, X, V)
    assert {*answers} == {*names}
    for g, want in zip(got, jax.jit(jax.grad(program, (0, 1, 2)))(A, X, V), strict=True):
        np.testing.assert_allclose(g, want, 2e-4, 2e-4)


def test_the_derivative_of_a_determinant_of_zero_is_zero():
    """JAX's own is not a number, and a batch may have one such matrix."""
    stack = jnp.stack([jnp.diag(jnp.array([1.0, 0.0])), jnp.asarray(A)[:2, :2]])
    _, (signs, slopes) = jax.jvp(_linalg.slogdet, (stack,), (jnp.ones_like(stack),))
    assert not signs.any() and slopes[0] == 0
    _, want = jax.jvp(jnp.linalg.slogdet, (stack[1],), (jnp.ones((2, 2)),))
    np.testing.assert_allclose(slopes[1], want[1], rtol=1e-5)


def test_a_determinant_of_zero_has_the_logarithm_of_zero():
    rewritten = jaxrewrite.transform(lambda a: jnp.log(det(a)), rules=TABLE)
    assert rewritten(jnp.diag(jnp.array([1.0, 0.0]))) == -jnp.inf


KINDS = {
    "Diagonal": lambda: values.Diagonal(jnp.asarray(V) + 5),
    "LowRank": lambda: values.LowRank(jnp.asarray(TALL), jnp.asarray(WIDE)),
    "Kronecker": lambda: values.Kronecker(jnp.asarray(regular(3)), jnp.asarray(regular(2))),
    "Circulant": lambda: values.Circulant(jnp.asarray(V)),
    "Permutation": lambda: values.Permutation(jnp.arange(6)[::-1]),
}

OF_VALUES = {
    "kron_times": lambda v: jnp.kron(v, jnp.asarray(B)) @ jnp.ones(36),
    "times_kron": lambda v: jnp.ones(36) @ jnp.kron(jnp.asarray(B), v),
    "inverse_times": lambda v: inv(v) @ jnp.asarray(X),
    "times_inverse": lambda v: jnp.asarray(X).T @ inv(v),
    "log_absolute_determinant": lambda v: jnp.log(jnp.abs(det(v))),
    "product_of_3": lambda v: (v @ jnp.asarray(B)) @ jnp.asarray(V),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", OF_VALUES)
def test_values_stay_implicit(kind, name):
    if kind == "LowRank" and ("inverse" in name or "determinant" in name):
        pytest.skip("a matrix of low rank has no inverse")
    value, fn = KINDS[kind](), OF_VALUES[name]
    rules, answers = spied(TABLE, [name])
    got = jaxrewrite.transform(fn, rules=rules, materialise="forbid")(value)
    want = fn(value.materialise())
    np.testing.assert_allclose(jaxrewrite.materialise(got), want, 2e-4, 2e-4)
    # A chain stays where the order of the program is the cheapest for the value.
    assert {*answers} == {name} or name == "product_of_3"


@pytest.mark.slow
def test_chains_count_what_values_cost():
    """A product with a diagonal is cheap, so that the order of the dense one is not it."""
    wide, tall = jnp.ones((40, 50)), jnp.ones((50, 3))
    program = lambda a, d, b: a @ (d @ b)  # noqa: E731
    rules, answers = spied(TABLE, ["product_of_3"])
    jaxrewrite.make_jaxpr(program, rules=rules)(wide, values.Diagonal(jnp.ones(50)), tall)
    assert not answers
    program = lambda a, d, b: (a @ d) @ b  # noqa: E731
    jaxrewrite.make_jaxpr(program, rules=rules)(wide, values.Diagonal(jnp.ones(50)), tall)
    assert answers == ["product_of_3"]


# --- programs from textbooks ----------------------------------------------------------


def gaussian_process(k, y):
    """Rasmussen and Williams, *Gaussian Processes for Machine Learning*, (2.30)."""
    return -0.5 * y @ inv(k) @ y - 0.5 * jnp.log(det(k)) - y.size / 2 * jnp.log(2 * jnp.pi)


def normal_equations(x, y):
    """Hastie, Tibshirani and Friedman, *The Elements of Statistical Learning*, (3.6)."""
    return inv(x.T @ x) @ x.T @ y


def ridge(x, y):
    """The same, (3.44)."""
    return inv(x.T @ x + 0.1 * jnp.eye(x.shape[1])) @ (x.T @ y)


def kalman_gain(p, h):
    """Welch and Bishop, *An Introduction to the Kalman Filter*, (1.11)."""
    return p @ h.T @ inv(h @ p @ h.T + jnp.eye(h.shape[0]))


def kullback_leibler(s, t):
    """Of two normal distributions: Murphy, *Machine Learning*, exercise 2.13."""
    return 0.5 * (jnp.trace(inv(t) @ s) + jnp.log(det(t)) - jnp.log(det(s)) - s.shape[0])


def newton_step(a, g):
    """Boyd and Vandenberghe, *Convex Optimization*, (9.5.1)."""
    return -inv(a @ a.T + jnp.eye(6)) @ g


def mahalanobis(s, x):
    return jnp.sqrt(jnp.diag(x.T @ inv(s) @ x))


def graph_convolution(a, x):
    """Kipf and Welling, *Semi-supervised classification with graph convolutional networks*, (8)."""
    d = 1 / jnp.sqrt(jnp.sum(a * a, axis=1))
    return jnp.diag(d) @ a @ jnp.diag(d) @ x


def alignment(k, m):
    """Kornblith and others, *Similarity of neural network representations revisited*, (3)."""
    return jnp.trace(k @ m) / jnp.sqrt(jnp.trace(k @ k) * jnp.trace(m @ m))


def kronecker_curvature(a, g, v):
    """Martens and Grosse, *Optimizing neural networks with Kronecker-factored curvature*."""
    return jnp.kron(a, g) @ v


def coupled_springs(a, g):
    """The Sylvester equation by Kronecker products: Golub and Van Loan, 7.6.3."""
    eye = jnp.eye(6)
    return jnp.kron(a, eye) @ g + g @ jnp.kron(eye, a)


def low_rank_similarity(u, v):
    return jnp.sum((u @ v) * (u @ v))


def householder(v, a):
    """Golub and Van Loan, 5.1.2."""
    return a - 2 * (jnp.outer(v, v) @ a) / (v @ v) - (a @ jnp.outer(v, v)) / (v @ v)


def markov_chain(p, q, f):
    """The expectation after three steps of one chain and one of another."""
    return p @ p @ q @ f


def attention_without_softmax(q, k, v):
    """Katharopoulos and others, *Transformers are RNNs*, (4) and (5)."""
    return (q @ k.T) @ v


def influence(x):
    """Leverages: the diagonal of the hat matrix, Belsley, Kuh and Welsch, (2.2)."""
    return jnp.diag(x @ (inv(x.T @ x) @ x.T))


SPD = A @ A.T
THIN, TALLER = normal(40, 3), normal(40, 3, seed=1)
# Where the program is from, the program, its operands, and rules that answer.
OTHERS = [
    ("Bertsekas, Dynamic Programming, 3.1: the gain of a linear regulator",
     lambda p, b, a: -inv(jnp.eye(2) + b.T @ p @ b) @ (b.T @ p @ a), (SPD, TALL, A),
     {"negative_inverse_times"}),
    ("Krantz and Parks, The Implicit Function Theorem, (1.3)",
     lambda f, b: -inv(f) @ b, (A, X), {"negative_inverse_times"}),
    ("Hastie and others, The Elements of Statistical Learning, (4.12)",
     lambda s, d: -0.5 * jnp.log(det(s)) - 0.5 * d @ inv(s) @ d, (SPD, V), {"log_determinant"}),
    ("Cover and Thomas, (8.38): the entropy of a normal distribution",
     lambda s: 0.5 * jnp.log(det(2 * jnp.pi * jnp.e * s)), (SPD,), {"log_determinant"}),
    ("MacKay, Maximum likelihood and covariant algorithms for ICA, (10)",
     lambda w, x: jnp.log(jnp.abs(det(w))) - jnp.sum(jnp.log(jnp.cosh(w @ x))), (A, X),
     {"log_absolute_determinant"}),
    ("Kingma and Dhariwal, Glow, table 1: a convolution of 1 x 1",
     lambda w: 16 * 16 * jnp.log(jnp.abs(jnp.linalg.det(w))), (-regular(5),),
     {"log_absolute_determinant"}),
    ("Dinh and others, Density estimation using Real NVP, (2)",
     lambda w, x: -0.5 * jnp.sum(x**2) + jnp.log(
         jnp.abs(det(jax.jacobian(lambda y: jnp.tanh(w @ y))(x)))), (0.1 * A, 0.1 * V),
     {"log_absolute_determinant"}),
    ("Horn and Johnson, 5.6.0.2: an inner product of matrices",
     lambda a, b: jnp.trace(a.T @ b), (X, X + 1), {"trace_of_product"}),
    ("Gretton and others, Measuring statistical dependence, (9)",
     lambda k, m: jnp.trace(k @ (jnp.eye(6) - 1 / 6) @ m @ (jnp.eye(6) - 1 / 6)) / 25,
     (SPD, A.T @ A), {"trace_of_product"}),
    ("Nielsen and Chuang, (2.111): the mean of an observable",
     lambda r, m: jnp.trace(r @ m), (SPD, A), {"trace_of_product"}),
    ("Bishop, (3.59): variances of predictions",
     lambda f, s: 0.1 + jnp.diag(f @ s @ f.T), (X.T, SPD), {"diagonal_of_product"}),
    ("Newman, Networks, 6.6: degrees of a projection",
     lambda b: jnp.sum(b @ b.T, axis=1), (X,), {"sum_of_product"}),
    ("Gretton and others, A kernel two-sample test, (3), with linear kernels",
     lambda x, y: (x @ x.T).mean() + (y @ y.T).mean() - 2 * (x @ y.T).mean(), (X, X + 1),
     {"sum_of_product"}),
    ("Wu and others, Simplifying graph convolutional networks, pooled",
     lambda x, w: jax.nn.softmax((x @ w).sum(0)), (X, X[:3]), {"sum_of_product"}),
    ("Kornblith and others, Similarity of neural network representations, (1)",
     lambda x, y: jnp.sum((x @ x.T) * (y @ y.T)) / 1521, (THIN, TALLER), {"sum_of_products"}),
    ("Lee and Seung, Algorithms for non-negative matrix factorization, its cost",
     lambda w, h, v: jnp.sum(v * v) - 2 * jnp.sum(v * (w @ h)) + jnp.sum((w @ h) * (w @ h)),
     (THIN, TALLER.T, normal(40, 40)), {"sum_of_products"}),
    ("Chung, Spectral Graph Theory: a random walk",
     lambda a, p: jnp.diag(1 / jnp.sum(a * a, axis=1)) @ (a @ p), (A, V), {"diagonal_times"}),
    ("Saad, Iterative Methods, (4.1): Jacobi's iteration",
     lambda a, x, b: x + jnp.diag(1 / jnp.diag(a)) @ (b - a @ x), (A, V, V + 1),
     {"diagonal_times"}),
    ("Golub and Van Loan, 2.4: a matrix by its singular values",
     lambda u, s, w: u @ jnp.diag(s) @ w, (TALL, V[:2], WIDE), {"times_diagonal"}),
    ("Hastie and others, (4.26): one step of reweighted least squares",
     lambda x, w, z: inv(x.T @ jnp.diag(w) @ x) @ (x.T @ jnp.diag(w) @ z), (X, V**2 + 1, V),
     {"times_diagonal", "inverse_times"}),
    ("Strang, Introduction to Linear Algebra, 4.2: a projection",
     lambda a, b: jnp.outer(a, a) @ b / (a @ a), (V, V + 1), {"outer_times"}),
    ("Hopfield, Neural networks, (2): one memory recalled",
     lambda m, s: jnp.sign(s) * jnp.tanh(jnp.outer(m, m) @ s), (V, V + 1), {"outer_times"}),
    ("Golub and Van Loan, (2.1.5): Sherman, Morrison and Woodbury of one vector",
     lambda b, u, v: b - (b @ jnp.outer(u, v)) @ b / (1 + v @ b @ u), (A, V, V + 1),
     {"times_outer"}),
    ("Nocedal and Wright, (6.17): a part of the update of BFGS",
     lambda h, s, y: h - h @ jnp.outer(y, s) / (y @ s), (SPD, V, V + 1), {"times_outer"}),
    ("Horn and Johnson, Topics in Matrix Analysis, 4.3.1",
     lambda a, b, c: jnp.kron(b.T, a) @ c.T.reshape(-1), (WIDE, normal(3, 4), X),
     {"kron_times"}),
    ("Strang, Computational Science and Engineering, 3.5: Poisson's equation on a square",
     lambda t, u: jnp.kron(jnp.eye(6), t) @ u + jnp.kron(t, jnp.eye(6)) @ u, (A, normal(36)),
     {"kron_times"}),
    ("Nielsen and Chuang, (2.46): an amplitude of two qubits",
     lambda bra, a, b, ket: bra @ jnp.kron(a, b) @ ket, (normal(36), A, B, normal(36)),
     {"times_kron"}),
    ("Jain, Fundamentals of Digital Image Processing, 5.2: separable transforms of rows",
     lambda images, c: images @ jnp.kron(c, c), (normal(5, 36), A), {"times_kron"}),
    ("Hu and others, LoRA, (3)",
     lambda w, b, a, x: x @ w + (x @ b) @ a + x @ (b @ a), (A, TALL, WIDE, normal(1, 6)),
     {"product_of_3"}),
    ("Bishop, (12.10): a reconstruction by principal components",
     lambda u, x: (u @ u.T) @ x, (TALL, V), {"product_of_3"}),
    ("Saxe and others, Exact solutions to the dynamics of learning, a deep linear network",
     lambda a, b, c, x: c @ b @ a @ x, (A, B, A, V), {"product_of_4"}),
    ("Golub and Van Loan, 5.5: the pseudoinverse by singular values",
     lambda w, s, u, b: (w @ s @ u.T) @ b, (A, B, A, V), {"product_of_4"}),
    ("Rabiner, (18) without emissions: the probability of a path's end",
     lambda p, a: p @ (a @ (a @ a)), (V, A), {"product_of_4"}),
]  # fmt: skip

TEXTBOOKS = [
    (gaussian_process, (SPD, V), {"times_inverse", "log_determinant"}),
    (normal_equations, (X, V), {"inverse_times"}),
    (ridge, (X, V), {"inverse_times"}),
    (kalman_gain, (SPD, WIDE), {"times_inverse"}),
    (kullback_leibler, (SPD, A.T @ A), {"inverse_times", "log_determinant"}),
    (newton_step, (A, V), {"negative_inverse_times"}),
    (mahalanobis, (SPD, X), {"times_inverse", "diagonal_of_product"}),
    (graph_convolution, (A, X), {"diagonal_times", "times_diagonal"}),
    (alignment, (SPD, A.T @ A), {"trace_of_product"}),
    (kronecker_curvature, (SPD[:4, :4], SPD[:3, :3], normal(12)), {"kron_times"}),
    (coupled_springs, (A, normal(36)), {"kron_times", "times_kron"}),
    (low_rank_similarity, (TALL, WIDE), {"sum_of_products"}),
    (householder, (V, A), {"outer_times", "times_outer"}),
    (markov_chain, (A, B, V), {"product_of_4"}),
    (attention_without_softmax, (normal(40, 3), normal(40, 3), normal(40, 3)), {"product_of_3"}),
    (influence, (X,), {"diagonal_of_product"}),
]  # fmt: skip


def test_each_rule_has_three_programs():
    met = [name for *_, names in (*TEXTBOOKS, *OTHERS) for name in names]
    rules = {pattern.fn.__name__ for pattern in TABLE.patterns}
    assert {name for name in met if met.count(name) >= 3} == rules


ALL = [(fn, args, names) for _, fn, args, names in OTHERS] + TEXTBOOKS


@pytest.mark.slow
@pytest.mark.parametrize(
    "fn, args, names",
    ALL,
    ids=[n for n, *_ in OTHERS] + [fn.__name__ for fn, *_ in TEXTBOOKS],
)
def test_programs_of_textbooks(fn, args, names):
    used = jaxrewrite.explain(fn, rules=TABLE)(*args).rules
    assert names <= {rule.name for rule in used}
    agrees(fn, args, TABLE)


@pytest.mark.slow
def test_half_precision_stays():
    """Sums and products in another order overflow where those of the program do not."""
    big, small = np.full((1000, 2), 100, np.float16), np.full((2, 3), 1e-4, np.float16)
    for fn, *args in [
        (lambda a, b: jnp.sum(a @ b), big, small),
        (lambda a, b: jnp.sum((a @ b) * (a @ b)), big[:, :1], small[:1]),
        (lambda v, u, x: jnp.outer(u, v) @ x, big[:, 0], small[0], big),
        (lambda b, a, x: (b.T @ a.T) @ x, small, big, big[:, 0]),
    ]:
        assert not answered(TABLE, fn, *args)


def test_factors_of_several_precisions_stay():
    """In another order, parts of a product have fewer digits than the whole."""
    with jax.enable_x64(True):
        single = B, A, V
        double = [x.astype(np.float64) for x in single]
        for rule, fn in {
            "product_of_3": lambda b, a, v: (b @ a) @ v,
            "sum_of_product": lambda b, a, v: jnp.sum(b @ a, axis=0),
            "sum_of_products": lambda b, a, v: jnp.sum(
                (b[:, :1] @ a[:1]) * (b[:, 1:2] @ a[1:2])
            ),
        }.items():
            assert answered(TABLE, fn, *single) == [rule]
            assert not answered(TABLE, fn, *single[:1], *double[1:])
            assert not answered(TABLE, fn, *double[:1], *single[1:])


@pytest.mark.slow
def test_empty_products():
    one = np.ones((4, 5), np.float32)
    for fn, *args in [
        (lambda a, b, x: jnp.kron(a, b) @ x, one, one, np.ones((25, 0), np.float32)),
        (lambda x, a, b: x @ jnp.kron(a, b), np.ones((0, 16), np.float32), one, one),
        (lambda a, b: jnp.trace(a @ b), one[:, :0], one[:0, :4]),
        (lambda a, b: jnp.sum(a @ b), one[:0], one.T),
        (lambda a: jnp.log(det(a)), one[:0, :0]),
        (lambda a, b: inv(a) @ b, one[:0, :0], one[:0]),
    ]:
        assert answered(TABLE, fn, *args)
        got = jaxrewrite.transform(fn, rules=TABLE)(*args)
        np.testing.assert_array_equal(got, fn(*args))


@pytest.mark.slow
def test_the_gradient_of_a_logarithm_that_is_no_number():
    """It is finite where it was, for a program that selects something else there."""
    fn = lambda a: jnp.log(det(a))  # noqa: E731
    rewritten = jaxrewrite.transform(fn, rules=TABLE)
    for a in (-2 * np.eye(5), np.ones((5, 5)), np.zeros((4, 4))):
        want = jax.grad(fn)(jnp.asarray(a))
        np.testing.assert_allclose(jax.grad(rewritten)(jnp.asarray(a)), want, 1e-6)


# --- chains of products ------------------------------------------------------------------


def left(*factors):
    return functools.reduce(jnp.matmul, factors)


def right(*factors):
    return functools.reduce(lambda b, a: a @ b, factors[::-1])


@jax.jit
def three(a, b, c):
    return a @ b @ c


def mixed(a, b, c, *others):
    return three(a, b, c) @ right(*others)


def least(sizes):
    """The operations that a chain needs, by the recursion of the textbooks."""

    @functools.cache
    def cost(i, j):
        if j - i == 1:
            return 0
        return min(
            cost(i, k) + cost(k, j) + 2 * sizes[i] * sizes[k] * sizes[j]
            for k in range(i + 1, j)
        )

    return cost(0, len(sizes) - 1)


CHAINS = [(fn, n) for fn in (left, right, mixed) for n in (5, 6, 10)]


@pytest.mark.parametrize("fn, count", every(4, CHAINS, 1))
def test_a_chain_of_any_length_costs_the_least(fn, count):
    rng = np.random.default_rng(count)
    sizes = [int(size) for size in rng.integers(1, 12, count + 1)]
    shapes = list(zip(sizes, sizes[1:], strict=False))
    factors = [normal(*shape, seed=i) / 3 for i, shape in enumerate(shapes)]
    program = jaxrewrite.make_jaxpr(fn, rules=TABLE)(*factors)
    assert of_jaxpr(program).flops == least(sizes)
    assert of_jaxpr(jaxrewrite.make_jaxpr(fn)(*factors)).flops > least(sizes)

    def total(a, factors, rewritten):
        fn_ = jaxrewrite.transform(fn, rules=TABLE) if rewritten else fn
        return fn_(a, *factors).sum()

    got, want = (
        jax.value_and_grad(total, (0, 1))(factors[0], factors[1:], rewritten)
        for rewritten in (True, False)
    )
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, 1e-3, 1e-3)


def test_the_shortest_chain_with_a_pattern_of_its_own_costs_the_least():
    factors = [jnp.ones((n, m)) for n, m in ((7, 8), (8, 2), (2, 9), (9, 3), (3, 1))]
    program = jaxrewrite.make_jaxpr(left, rules=TABLE)(*factors)
    assert of_jaxpr(program).flops == least([7, 8, 2, 9, 3, 1])


def test_chains_that_are_left_alone():
    """A product that is used elsewhere, another function of it, or the cheapest order."""
    a, v = normal(6, 6), V

    def shared(a, v):
        p = a @ a
        return p @ a @ a @ v + p[0]

    def apart(a, v):
        return jnp.sin(a @ a @ a) @ jnp.sin(a @ a @ a) @ v

    for fn in (shared, apart):
        names = [rule.name for rule in jaxrewrite.explain(fn, rules=TABLE)(a, v).rules]
        assert not {"product_of_5", "product_of_6", "product_of_7"} & {*names}
    assert jaxrewrite.explain(right, rules=TABLE)(a, a, a, a, a, v).rules == ()


def test_a_chain_of_values():
    """A product with a diagonal matrix costs what it costs, and stays implicit."""
    d = values.Diagonal(jnp.arange(1, 7.0))
    fn = jaxrewrite.transform(left, rules=TABLE, materialise="forbid")
    got = fn(A, B, d, A, d, V)
    np.testing.assert_allclose(
        got, left(A, B, d.materialise(), A, d.materialise(), V), 1e-4
    )


def test_an_inverse_of_which_the_factor_has_a_sharding_in_its_type_stays():
    mesh = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Explicit,))
    fn = lambda a, b: jnp.linalg.inv(a) @ b
    a, b = 2 * jnp.eye(2), jnp.ones((2, 2))
    with jax.set_mesh(mesh):
        b = jax.device_put(b, jax.P(None, "i"))
        assert (jaxrewrite.transform(fn, rules=patterns.linalg)(a, b) == 0.5).all()


FORMULAS = sorted({name for name, *_ in PROGRAMS if not name.startswith("product_of")})


@pytest.mark.parametrize("name", FORMULAS)
def test_each_formula_by_itself(name):
    """The function that takes the place of a program gives what the program does."""
    formula = getattr(_linalg, name)
    for _, fn, args in (case for case in PROGRAMS if case[0] == name):
        args = [np.asarray(x, np.float64) for x in args]
        if name == "sum_of_product":
            for axis in (0, 1, None):
                got = formula(*map(jnp.asarray, args), axis=axis)
                np.testing.assert_allclose(got, (args[0] @ args[1]).sum(axis), rtol=1e-4)
        elif not any(x.ndim > 2 for x in args):  # A batch comes with `jax.vmap`.
            got = jax.jit(formula)(*args)
            np.testing.assert_allclose(got, jax.jit(fn)(*args), rtol=1e-3, atol=1e-4)


def test_the_cost_of_a_product_with_a_value_is_that_of_its_equations():
    x = jnp.ones((8, 8))
    dense, of_rows, of_columns = (
        _linalg.pair(*pair)[0]
        for pair in ((x, x), (values.Diagonal(x[0]), x), (x, values.Diagonal(x[0])))
    )
    assert dense == (0, 2 * 8**3)
    assert of_rows == of_columns == (0, 8**2)


def test_a_logarithm_of_a_determinant_of_tagged_numbers_has_the_tags():
    run = jaxrewrite.transform(lambda a: jnp.log(det(a)), rules=TABLE, materialise="allow")
    for matrix in (SPD, -regular(5)):
        got = run(jaxrewrite.values.Tagged(jnp.asarray(matrix, jnp.float32), "a"))
        assert got.tags == frozenset("a")
        np.testing.assert_allclose(
            got.array, jnp.log(det(jnp.asarray(matrix, jnp.float32))), rtol=1e-4
        )

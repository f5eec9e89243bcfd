"""The patterns of `jaxrewrite.patterns.linalg`: what they find, what it gives, what it costs."""

import jax
import jax.numpy as jnp
import jax.scipy as jsp
import numpy as np
import pytest
from choose import slow
from pattern_tables import answered, look_alikes, spied

import jaxrewrite
from jaxrewrite import patterns, values


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
    ("negative_inverse_times", lambda a, b: -inv(a) @ b, (A, V)),
    ("times_inverse", lambda b, a: b @ inv(a), (V, A)),
    ("times_inverse", lambda b, a: b @ inv(a), (X.T, A)),
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


# Those that are a formula and nothing else, so that each change is inside of it.
EXACT = [PROGRAMS[i] for i, (_, fn, args) in enumerate(PROGRAMS) if _is_exact(fn, args)]


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

        for want, got in zip(*jax.jit(both)(*args), strict=True):
            np.testing.assert_allclose(got, want, 1e-9, 1e-9)


@pytest.mark.parametrize("name, fn, args", [PROGRAMS[1], *map(slow, CASES)])
def test_each_formula_is_found_and_is_right(name, fn, args):
    rules, answers = spied(TABLE, [name])
    agrees(fn, args, rules)
    assert {*answers} == {name}


@pytest.mark.slow
@pytest.mark.parametrize("name, fn, args", EXACT)
def test_look_alikes_stay(name, fn, args):
    rules, answers = spied(TABLE, [name])
    alike = dict(look_alikes(fn, *args))
    assert len(alike) >= 5
    for what, program in alike.items():
        jaxrewrite.make_jaxpr(program, rules=rules)(*args)
        assert not answers, what


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


@pytest.mark.slow
@pytest.mark.parametrize(
    "fn, args, names", TEXTBOOKS, ids=lambda x: getattr(x, "__name__", "")
)
def test_programs_of_textbooks(fn, args, names):
    assert names <= {*answered(TABLE, fn, *args)}
    agrees(fn, args, TABLE)

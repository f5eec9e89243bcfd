"""Multiples of the identity, thin decompositions, and solves inside of branches."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from choose import every, often
from jax import lax
from oracle import forbid

import jaxrewrite
from jaxrewrite import values
from jaxrewrite.testing import assert_same
from jaxrewrite.values import (
    BlockDiagonal,
    Circulant,
    Diagonal,
    Identity,
    Kronecker,
    LowRank,
    ScalarMatrix,
    Scaled,
    Sum,
    Symmetric,
    Tridiagonal,
)


pytestmark = pytest.mark.usefixtures("double")


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape)


def positive(seed, n):
    a = normal(seed, n, n)
    return a @ a.T + np.eye(n)


def on_both(fn, *operands):
    """The results on values, implicitly, and on the dense arrays."""
    dense = jaxrewrite.materialise(operands)
    both = jax.jit(lambda operands, dense: (forbid(fn)(*operands), fn(*dense)))
    assert_same(*both(operands, dense), tolerance=1e-9)


# --- multiples of the identity --------------------------------------------------------------

N = 6


def regularised(factors, noise):
    v = Kronecker(*(Symmetric(jnp.asarray(x)) for x in factors))
    return v + noise * Identity(N, jnp.float64)


Y = normal(3, N)


def of_sum(v):
    values, vectors = jnp.linalg.eigh(v)
    return [
        jnp.linalg.solve(v, Y),
        jnp.linalg.slogdet(v),
        jnp.linalg.eigvalsh(v),
        (vectors * values) @ vectors.T,
    ]


@pytest.mark.parametrize("size", every(2, [1.0, 1e-9]))
def test_a_number_times_the_identity_keeps_the_eigenvectors(size, bulk):
    factors, noise = (size * positive(0, 2), positive(1, 3)), jnp.float64(0.1 * size)
    v = regularised(factors, noise)
    assert isinstance(v, Sum) and isinstance(v.terms[1], ScalarMatrix)
    a = np.asarray(v.materialise())
    want = [np.linalg.solve(a, Y), np.linalg.slogdet(a), np.linalg.eigvalsh(a), a]
    got = jax.jit(forbid(of_sum))(v)
    assert_same(jax.tree.leaves(jaxrewrite.materialise(got)), jax.tree.leaves(want), 1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1.0, 1e-9])
def test_gradient_of_a_likelihood_with_noise(size, bulk):
    factors, noise = (size * positive(0, 2), positive(1, 3)), jnp.float64(0.1 * size)
    likelihood = lambda v: Y @ jnp.linalg.solve(v, Y) * size + jnp.linalg.slogdet(v)[1]
    implicit = lambda *args: forbid(likelihood)(regularised(*args))
    dense = lambda *args: likelihood(regularised(*args).materialise())
    got, want = (jax.jit(jax.grad(fn, (0, 1)))(factors, noise) for fn in (implicit, dense))
    scale = max(float(abs(x).max()) for x in jax.tree.leaves(want))
    assert_same(
        jax.tree.map(lambda x: x / scale, got),
        jax.tree.map(lambda x: x / scale, want),
        1e-9,
    )


def scalar_programs(c, x):
    v = ScalarMatrix(c, 3)
    eye, d = Identity(3, jnp.float64), Diagonal(x)
    return {
        "apply": (v @ x, x @ v),
        "closed": (v @ v, v + eye, eye - v, 2 * eye @ v, -v, v / 3, v * v),
        "diagonal": (v + d, d @ v, v * d, v @ d - d),
        "others": (v @ Circulant(x), v + LowRank(x[:, None], x[None])),
        "entries": (jnp.tanh, jnp.abs, lambda v: v * x, lambda v: v * x[:, None]),
    }


def test_scalar_matrices(bulk):
    x = jnp.array([1.0, -2.0, 3.0])

    def values(c):
        found = scalar_programs(c, x)
        entries = [forbid(fn)(ScalarMatrix(c, 3)) for fn in found.pop("entries")]
        return found, entries

    def algebra(v):
        return [
            jnp.linalg.solve(v, x),
            jnp.linalg.slogdet(v),
            jnp.linalg.inv(v),
            jnp.linalg.eigvalsh(v),
            jnp.linalg.svd(v, compute_uv=False),
            jnp.linalg.cholesky(v),
            lax.cond(x[0] > 0, lambda: v, lambda: v + jnp.diag(x) * 0)[0],
        ]

    c, eye = jnp.float64(2.5), np.eye(3)
    got = jax.jit(lambda c: jaxrewrite.materialise(values(c)))(c)
    dense, circulant = c * eye, Circulant(x).materialise()
    d = np.diag(x)
    (by_kind, entries) = got
    assert_same(by_kind["apply"], (c * x, c * x), 1e-9)
    closed = (
        c * c * eye,
        dense + eye,
        eye - dense,
        2 * dense,
        -dense,
        dense / 3,
        c * dense,
    )
    assert_same(by_kind["closed"], closed, 1e-9)
    assert_same(by_kind["diagonal"], (dense + d, d * c, d * c, d * c - d), 1e-9)
    assert_same(by_kind["others"], (c * circulant, dense + np.outer(x, x)), 1e-9)
    tanh = np.tanh(dense)
    assert_same(
        entries, [tanh, dense, dense * np.asarray(x), dense * np.asarray(x)[:, None]], 1e-9
    )
    found = jax.jit(jaxrewrite.transform(algebra, materialise="allow"))(ScalarMatrix(c, 3))
    found[1] = tuple(found[1])
    ones = np.ones(3)
    solved = (np.asarray(x) / c, (1.0, 3 * np.log(c)), eye / c, c * ones, c * ones)
    assert_same(found, [*solved, np.sqrt(c) * eye, dense[0]], 1e-9)
    kinds = [type(v) for v in jax.eval_shape(lambda: scalar_programs(c, x)["closed"])]
    assert set(kinds) == {ScalarMatrix}
    with pytest.raises(ValueError, match="ScalarMatrix: rows is -1"):
        ScalarMatrix(c, -1)


def test_branches_with_an_identity_and_a_multiple(bulk):
    def fn(i, v, d):
        return lax.switch(i, [lambda: v, lambda: 2 * v, lambda: 2 * v + d]) @ Y[:3]

    v, d = Identity(3, jnp.float64), Diagonal(jnp.arange(3.0))
    for i in range(3):
        on_both(fn, jnp.int32(i), v, d)
    two = forbid(lambda p, v: lax.cond(p, lambda: v, lambda: 2 * v))(jnp.array(True), v)
    assert isinstance(two, ScalarMatrix)


# --- solves in branches ---------------------------------------------------------------------


SOLVED = {
    "kronecker": lambda: Kronecker(*(jnp.array([[3.0, 1], [2, 4]]) for _ in range(2))),
    "circulant": lambda: Circulant(jnp.array([5.0, 1, 2, 1])),
    "diagonal": lambda: Diagonal(jnp.arange(1.0, 5)),
    "tridiagonal": lambda: Tridiagonal(jnp.ones(3), 4 * jnp.ones(4), jnp.ones(3)),
}


@pytest.mark.parametrize("name", every(4, SOLVED))
def test_gradient_of_a_solve_in_a_branch(name, bulk):
    def loss(v, y):
        return lax.cond(y[0] > 0, lambda: y @ jnp.linalg.solve(v, y), lambda: 0.0)

    slope = jax.grad(loss, 1)
    y = jnp.arange(1.0, 5)
    v, ys = SOLVED[name](), jnp.stack([y, -y])
    of_loss = jax.jit(lambda v, y: forbid(slope)(v, y))
    many = jax.jit(lambda v: forbid(jax.vmap(slope, (None, 0)))(v, ys))
    a = np.asarray(v.materialise())
    solved = np.linalg.solve(a, y) + np.linalg.solve(a.T, y)
    want = np.stack([solved, 0 * solved])
    assert_same([of_loss(v, y) for y in ys], list(want), 1e-9)
    assert_same(many(v), want, 1e-9)


@pytest.mark.parametrize("number", every(2, [2.0, -2.0]))
def test_positive_definite_solve_with_a_multiple(number, bulk):
    v = Scaled(Symmetric(jnp.asarray(positive(0, 3))), jnp.float64(number))

    def solve(v):
        b = Y.reshape(3, 2)
        return [jax.scipy.linalg.solve(v, x, assume_a="pos") for x in (b, b[:, 0])]

    of = lambda fn: lambda v: (sum(x.sum() for x in fn(v)), fn(v))
    got = jax.jit(jax.grad(of(forbid(solve)), has_aux=True))(v)
    dense = lambda v: of(solve)(v.materialise())
    assert_same(got, jax.jit(jax.grad(dense, has_aux=True))(v), 1e-9)


# --- decompositions -------------------------------------------------------------------------

MATRICES = {
    "tall": lambda: Kronecker(jnp.asarray(normal(0, 3, 2)), jnp.asarray(normal(1, 2, 2))),
    "mixed": lambda: Kronecker(jnp.asarray(normal(0, 3, 2)), jnp.asarray(normal(1, 2, 3))),
    "blocks": lambda: BlockDiagonal(jnp.asarray(normal(2, 2, 3, 2))),
    "wide blocks": lambda: BlockDiagonal(jnp.asarray(normal(2, 2, 1, 3))),
    "low rank": lambda: LowRank(jnp.asarray(normal(4, 6, 2)), jnp.asarray(normal(5, 2, 4))),
    "circulant": lambda: Circulant(jnp.asarray(normal(6, 4))),
    "singular": lambda: Circulant(jnp.array([1.0, -1.0, 1.0, -1.0])),
    "scaled": lambda: Scaled(
        BlockDiagonal(jnp.asarray(normal(2, 2, 3, 2))), jnp.float64(-2.0)
    ),
}


def decompositions(v):
    n, m = v.shape
    return [
        jnp.linalg.svd(v, compute_uv=False),
        jnp.linalg.matrix_rank(v),
        jnp.linalg.norm(v, "nuc"),
        jnp.linalg.norm(v, 2),
        jnp.linalg.pinv(v) @ Y[:n],
        Y[:m] @ jnp.linalg.pinv(v),
        jnp.linalg.pinv(v, rtol=0.3) @ Y[:n],
    ]


@pytest.mark.parametrize("name", often(MATRICES, ["low rank"]))
def test_decompositions(name, bulk):
    v = MATRICES[name]()
    on_both(decompositions, v)

    def whole(v):
        u, size, vh = jnp.linalg.svd(v, full_matrices=False)
        return (u * size) @ vh, jnp.linalg.lstsq(v, Y[: v.shape[0]])[0]

    if name in ("tall", "blocks", "wide blocks", "scaled"):
        on_both(whole, v)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in MATRICES if name != "singular"])
def test_gradients_of_decompositions(name, bulk):
    v = MATRICES[name]()
    nuclear = lambda v: jnp.linalg.norm(v, "nuc")
    fitted = lambda v: jnp.sin(jnp.linalg.pinv(v, rtol=1e-8) @ Y[: v.shape[0]]).sum()
    for fn in (fitted,) if name == "mixed" else (fitted, nuclear):
        got = jax.jit(jax.grad(forbid(fn)))(v)
        assert_same(got, jax.jit(jax.grad(lambda v, fn=fn: fn(v.materialise())))(v), 1e-7)


@pytest.mark.slow
def test_batches_of_decompositions(bulk):
    a, b = jnp.asarray(normal(0, 2, 6, 2)), jnp.asarray(normal(1, 2, 2, 4))
    tolerances = jnp.array([1e-8, 0.4])
    fn = lambda v, t: jnp.linalg.pinv(v, rtol=t) @ Y
    got = jax.vmap(lambda a, b: forbid(fn)(LowRank(a, b), 1e-8))(a, b)
    assert_same(got, jnp.linalg.pinv(a @ b, rtol=1e-8) @ Y, 1e-9)
    assert_same(forbid(jax.vmap(lambda v: fn(v, 1e-8)))(LowRank(a, b)), got, 1e-9)
    if jax.__version_info__ >= (0, 12):  # Before, the tolerance could not be an argument.
        got = forbid(fn)(LowRank(a, b), tolerances)
        assert_same(got, jnp.linalg.pinv(a @ b, rtol=tolerances) @ Y, 1e-9)


@pytest.mark.parametrize("number", [0.0, -3.0])
def test_singular_values_of_a_multiple_of_the_identity(number):
    """The factors are unitary, and have derivatives, also if the number is zero."""
    v = values.ScalarMatrix(jnp.float32(number), 2)
    u, s, w = map(jaxrewrite.materialise, jaxrewrite.transform(jnp.linalg.svd)(v))
    np.testing.assert_array_equal(u @ u.T, np.eye(2))
    np.testing.assert_array_equal(u * s @ w, number * np.eye(2))
    first = lambda c: values.ScalarMatrix(c, 2).known_svd()[0].c
    assert jax.grad(first)(number) == 0


@pytest.mark.parametrize(
    "name, make",
    [
        (
            "Toeplitz",
            lambda: values.Toeplitz(jnp.array([3.0, 1.0, 2.0]), jnp.array([3.0, 5.0, 7.0])),
        ),
        ("Symmetric", lambda: values.Symmetric(jnp.array([[1.0, 2.0], [2.0, 5.0]]))),
    ],
)
def test_sums_with_a_number(name, make):
    v = make()
    dense = np.asarray(v)
    for fn in (lambda a: a + 2, lambda a: a - 2, lambda a: 2 - a):
        got = jaxrewrite.transform(fn, materialise="forbid")(v)
        assert type(got) is type(v)
        np.testing.assert_array_equal(np.asarray(got), fn(dense))


def test_products_of_different_blocks():
    numbers = lambda *shape: jnp.arange(1.0, 1 + np.prod(shape)).reshape(shape)
    one, other = (
        values.BlockDiagonal(numbers(2, 3, 3)),
        values.BlockDiagonal(numbers(3, 2, 2)),
    )
    product = jaxrewrite.transform(jnp.matmul)(one, other)
    np.testing.assert_allclose(np.asarray(product), np.asarray(one) @ np.asarray(other))


OF_A_KNOWN_NUMBER = {
    "dense": lambda v: v,
    "negative": lambda v: -v,
    "transpose": lambda v: v.T,
    "cast": lambda v: v.astype("bfloat16").astype("float32"),
    "product": lambda v: v @ v,
    "entries": lambda v: v * v,
    "sum": lambda v: v + 2 * v,
    "stack": lambda v: jnp.stack([v, v]),
    "determinant": jnp.linalg.det,
    "solution": lambda v: jnp.linalg.solve(v, v[0]),
    "rows": lambda v: jax.lax.map(lambda row: 2 * row, v),
    "branch": lambda v: jax.lax.cond(v[0, 0] > 0, lambda v: v, lambda v: 2 * v, v),
}


def test_the_number_of_a_multiple_may_be_known_to_the_program():
    """As of a product with a constant of which the program knows the number."""
    x = jnp.array([4.0, 1.0, 0.5], "float32")
    v = Scaled(values.Toeplitz(x, x), values.Known(-0.75, "float32"))
    dense = jaxrewrite.materialise(v)
    assert_same(dense, v.x.materialise() * -0.75, 0)
    program = lambda v: {name: fn(v) for name, fn in OF_A_KNOWN_NUMBER.items()}
    found = jaxrewrite.transform(program, materialise="allow")(v)
    assert_same(jaxrewrite.materialise(found), program(dense), 1e-2)
    identity = Scaled(values.Identity(3), v.scale)
    others = lambda one, c: (
        *(jnp.linalg.eigvals(c + one).real.sum(), jnp.linalg.solve(one + c, one)),
        *(jnp.linalg.solve(one, c), jnp.linalg.norm(one, axis=0)),
    )
    circulant = values.Circulant(x)
    found = jaxrewrite.transform(others, materialise="allow")(identity, circulant)
    expected = others(*map(jaxrewrite.materialise, (identity, circulant)))
    assert_same(jaxrewrite.materialise(found), expected, 1e-4)

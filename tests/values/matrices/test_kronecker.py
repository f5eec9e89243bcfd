"""Special properties of permutations, blocks, Kronecker, Toeplitz and one-hot matrices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from choose import slow
from oracle import forbid, made_dense

import jaxrewrite
from jaxrewrite.testing import assert_same
from jaxrewrite.values import (
    Banded,
    BlockDiagonal,
    Circulant,
    Diagonal,
    Identity,
    Kronecker,
    OneHot,
    Permutation,
    Picked,
    Product,
    Symmetric,
    Tagged,
    Toeplitz,
    Triangular,
)


# Leaf by leaf, with `jax.tree.map`.
close = functools.partial(assert_same, tolerance=2e-5)


@pytest.fixture(autouse=True)
def _bulk(bulk):
    yield


dense = made_dense


def normal(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), jnp.float32)


def positive(seed, *shape):
    a = normal(seed, *shape)
    return a @ jnp.swapaxes(a, -2, -1) + jnp.eye(shape[-1])


def orders(*shape):
    rng = np.random.default_rng(0)
    return jnp.asarray(rng.permuted(np.broadcast_to(np.arange(shape[-1]), shape), axis=-1))


# --- permutations -----------------------------------------------------------------------


def test_permutations():
    v, w = (Permutation(order) for order in orders(2, 7))
    x = normal(0, 7, 3)
    assert_same(v @ x, x[v.order], 0)
    assert isinstance(v @ w, Permutation) and isinstance(v.T, Permutation)
    assert_same(v @ w, dense(v) @ dense(w), 2e-5)
    assert (dense(v @ v.T) == jnp.eye(7)).all()
    d = Diagonal(normal(1, 7))
    assert isinstance(v @ d @ v.T, Product) and (v @ d @ v.T).nbytes == 7 * (4 + 4)
    assert_same(v @ d @ v.T, dense(v) @ dense(d) @ dense(v).T, 2e-5)
    assert_same(v * normal(2, 7, 7), dense(v) * normal(2, 7, 7), 2e-5)
    assert_same(v * w, dense(v) * dense(w), 2e-5)


def test_entries_of_a_matrix_at_those_of_a_permutation_stay_implicit():
    v, w = Permutation(orders(7)), Toeplitz(normal(0, 7), normal(1, 7))
    assert_same(forbid(lambda v, w: v * w)(v, w), dense(v) * dense(w), 2e-5)


def test_permutations_have_their_factors_and_signs():
    """The exchanges of rows of a stack, as LAPACK finds them."""
    for n in (1, 8):
        v = Permutation(orders(6, n))
        want = jax.lax.linalg.lu(dense(v))
        got = forbid(jax.lax.linalg.lu)(v)
        assert isinstance(got[0], Identity)
        for g, w in zip(got, want, strict=True):
            assert_same(g, w, 0)
        assert_same(v.determinant(), jnp.linalg.det(dense(v)), 2e-5)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8"])
def test_the_sign_of_a_permutation_of_a_dtype_without_signs(dtype):
    v = Permutation(jnp.array([1, 0, 2]), dtype)
    for fn in (jnp.linalg.det, lambda v: tuple(jnp.linalg.slogdet(v))):
        assert_same(forbid(fn)(v), fn(dense(v).astype("float32")), 1e-6)


# --- blocks -----------------------------------------------------------------------------


def test_empty_products_have_entries():
    empty = Product((Symmetric(jnp.ones((0, 0))), Triangular(jnp.ones((0, 0)))))
    band = Banded(jnp.ones((3, 0)), 1, 1)
    assert jaxrewrite.transform(jnp.multiply)(band, empty).shape == (0, 0)
    for v in (band, BlockDiagonal(jnp.ones((1, 0, 0)))):
        summed = jaxrewrite.transform(lambda a, b: jnp.einsum("ij,ji->i", a, b))(v, empty)
        assert summed.shape == (0,)


def test_blocks_keep_blocks():
    v, w = BlockDiagonal(normal(0, 3, 2, 2)), BlockDiagonal(normal(1, 3, 2, 2))
    d = Diagonal(normal(2, 6))
    fns = {
        "product": lambda v, w, d: v @ w,
        "sum": lambda v, w, d: v + w,
        "sum with a diagonal": lambda v, w, d: d + v,
        "product with a diagonal": lambda v, w, d: v @ d,
        "entries": lambda v, w, d: jnp.sin(v) * w,
        "inverse": lambda v, w, d: jnp.linalg.solve(v, jnp.ones(6)),
        "array": lambda v, w, d: v * jnp.arange(36.0).reshape(6, 6),
    }
    for name, fn in fns.items():
        got = forbid(fn)(v, w, d)
        assert_same(got, fn(dense(v), dense(w), dense(d)), 1e-4)
        assert name == "inverse" or isinstance(got, BlockDiagonal), name


def test_rectangular_blocks():
    v, w = BlockDiagonal(normal(0, 3, 2, 4)), BlockDiagonal(normal(1, 3, 4, 5))
    assert (v @ w).blocks.shape == (3, 2, 5)
    assert_same(v @ w, dense(v) @ dense(w), 2e-5)
    assert_same(forbid(jnp.diagonal)(v), jnp.diagonal(dense(v)), 2e-5)
    assert v.known_lu() is NotImplemented
    none = BlockDiagonal(jnp.ones((0, 2, 3)))
    assert (none @ none).shape == (0, 0) and (none @ none.T).shape == (0, 0)


def test_factors_of_blocks():
    v = BlockDiagonal(normal(0, 2, 3, 4, 4))
    for g, w in zip(forbid(jax.lax.linalg.lu)(v), jax.lax.linalg.lu(dense(v)), strict=True):
        assert_same(g, w, 2e-5)
    p = BlockDiagonal(positive(0, 3, 4, 4))
    assert isinstance(p.cholesky(), BlockDiagonal)
    assert_same(p.cholesky(), jnp.linalg.cholesky(dense(p)), 2e-5)
    assert_same(p.inverse(), jnp.linalg.inv(dense(p)), 1e-4)


def check_eigh(v):
    values, vectors = v.eigh()
    assert_same(values, jnp.linalg.eigvalsh(dense(v)), 1e-4)
    assert isinstance(vectors, (Permutation, Product, Identity))
    assert_same((dense(vectors) * values[..., None, :]) @ dense(vectors).mT, dense(v), 1e-4)


@pytest.mark.slow
def test_eigenvectors_stay_implicit():
    check_eigh(Diagonal(normal(0, 2, 6)))
    check_eigh(Identity(3))
    check_eigh(BlockDiagonal(positive(0, 2, 3, 3)))
    check_eigh(Kronecker(positive(0, 3, 3), Diagonal(normal(1, 2)), positive(2, 2, 2)))
    values, vectors = forbid(jnp.linalg.eigh)(BlockDiagonal(positive(0, 2, 3, 3)))
    assert isinstance(vectors, Product) and (values[1:] >= values[:-1]).all()


# --- Kronecker products -------------------------------------------------------------------


def test_kronecker_is_numpys():
    a, b, c = normal(0, 2, 3), normal(1, 4, 2), normal(2, 1, 2)
    assert_same(Kronecker(a, b), jnp.kron(a, b), 0)
    assert_same(Kronecker(a, b, c), jnp.kron(jnp.kron(a, b), c), 2e-5)
    assert_same(Kronecker((a, b)) @ normal(3, 6), jnp.kron(a, b) @ normal(3, 6), 2e-5)


def test_mixed_products():
    v = Kronecker(normal(0, 2, 3), normal(1, 4, 2))
    w = Kronecker(normal(2, 3, 3), Diagonal(normal(3, 2)))
    got = forbid(lambda v, w: jnp.abs(-(v @ w) * v / 2))(v, w)
    assert isinstance(got, Kronecker) and got.nbytes == 4 * (6 + 8)
    assert_same(got, jnp.abs(-(dense(v) @ dense(w)) * dense(v) / 2), 2e-5)
    other = Kronecker(normal(2, 2, 2), normal(3, 3, 3))  # its inner axes are others
    assert isinstance(v @ other, Product)
    assert_same(v @ other, dense(v) @ dense(other), 2e-5)


@pytest.mark.slow
def test_linear_algebra_of_kronecker_products():
    v = Kronecker(positive(0, 2, 2), BlockDiagonal(positive(1, 2, 2, 2)), Identity(2))
    assert isinstance(v.cholesky(), Kronecker) and isinstance(v.inverse(), Kronecker)
    assert_same(v.cholesky(), jnp.linalg.cholesky(dense(v)), 1e-4)
    assert_same(v.inverse(), jnp.linalg.inv(dense(v)), 1e-4)
    np.testing.assert_allclose(v.determinant(), jnp.linalg.det(dense(v)), rtol=1e-3)
    np.testing.assert_allclose(v.trace(), jnp.trace(dense(v)), rtol=1e-5)
    singular = Kronecker(normal(0, 2, 3), normal(1, 3, 2))
    assert not singular.solvable
    with pytest.warns(jaxrewrite.MaterialisationWarning, match="Kronecker"):
        np.testing.assert_allclose(singular.determinant(), 0, atol=1e-5)


def test_triangles_of_kronecker_products():
    """The ones that a program puts on the diagonal are not those of the factors."""
    v = Kronecker(Triangular(positive(0, 2, 2)), Triangular(positive(1, 2, 2)))
    solve = functools.partial(jax.scipy.linalg.solve_triangular, lower=True)
    for ones in (False, True):
        fn = functools.partial(solve, unit_diagonal=ones)
        got = jaxrewrite.transform(fn, materialise="allow")(v, normal(2, 4))
        assert_same(got, fn(dense(v), normal(2, 4)), 1e-4)


def test_a_stack_of_kronecker_products_with_identities():
    """Which have their batch axes in their metadata."""
    vs = [Kronecker(normal(i, 2, 2), Identity(3)) for i in range(4)]
    x = normal(9, 6)
    fn = lambda vs, x: jax.lax.scan(lambda c, v: (v @ c, v.mT), x, vs)
    x_out, stack = forbid(fn)(jaxrewrite.stack(vs), x)
    want = jnp.stack([dense(v) for v in vs])
    assert_same(stack, want.mT, 2e-5)
    assert_same(stack[2:] @ x, want[2:].mT @ x, 2e-5)
    assert_same(forbid(fn)(stack, x)[1], want, 2e-5)
    assert_same(x_out, fn(want, x)[0], 1e-4)


# --- Toeplitz and circulant ---------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype",
    ["complex64", slow("float16"), slow("int32")],
)
def test_toeplitz_dtypes(dtype):
    v = Toeplitz(jnp.arange(1, 6).astype(dtype), jnp.arange(1, 4).astype(dtype))
    x = jnp.arange(3).astype(dtype)
    assert_same(v @ x, dense(v) @ x, 1e-2)
    c = Circulant(jnp.arange(1, 4).astype(dtype))
    assert_same(c @ x, dense(c) @ x, 1e-2)
    mixed = jaxrewrite.transform(jnp.matmul)(v, 1j * jnp.arange(3))
    assert_same(mixed, dense(v) @ (1j * jnp.arange(3)), 1e-2)


def test_parts_of_toeplitz_matrices():
    for v in (Toeplitz(normal(0, 5), normal(1, 7)), Circulant(normal(0, 6))):
        fn = lambda v: [v[1:4, 2:5], v[:, 3:], v[2:], v[:4, :2]]
        parts = forbid(fn)(v)
        assert all(isinstance(part, Toeplitz) for part in parts)
        jax.tree.map(lambda g, w: assert_same(g, w, 0), dense(parts), fn(dense(v)))
    both = Circulant(normal(0, 4)) + Toeplitz(normal(1, 4), normal(2, 4))
    assert isinstance(both, Toeplitz)
    assert isinstance(Circulant(normal(0, 4)) * both, Toeplitz)


def test_triangles_of_toeplitz_matrices_that_are_not_square():
    fn = lambda v: [jnp.tril(v, 1), jnp.triu(v)]
    for v in (Toeplitz(normal(0, 2), normal(1, 4)), Toeplitz(normal(0, 4), normal(1, 2))):
        parts = forbid(fn)(v)
        assert all(isinstance(part, Toeplitz) for part in parts)
        jax.tree.map(lambda g, w: assert_same(g, w, 0), dense(parts), fn(dense(v)))


def test_the_entry_of_the_row_that_is_not_there():
    """The first number of the row has no place: it is in no result and in no derivative."""
    v = Toeplitz(jnp.array([4.0, 1.0]), jnp.array([0.0, 9.0]))
    loss = lambda v: (jnp.sqrt(v) @ jnp.ones(2)).sum()
    gradient = jax.grad(forbid(loss))(v)
    np.testing.assert_allclose(gradient.column, [0.5, 0.5], rtol=1e-5)
    np.testing.assert_allclose(gradient.row, [0, 1 / 6], rtol=1e-5)
    assert_same(v.T @ v, dense(v).T @ dense(v), 2e-5)


def test_circulant_matrices_are_closed():
    v, w = Circulant(normal(0, 6)), Circulant(normal(1, 6))
    fns = {
        "product": lambda v, w: v @ w.T,
        "sum": lambda v, w: v - 2 * w,
        "entries": lambda v, w: jnp.exp(v) * w,
    }
    for name, fn in fns.items():
        assert isinstance(forbid(fn)(v, w), Circulant), name
        assert_same(forbid(fn)(v, w), fn(dense(v), dense(w)), 2e-5)
    assert_same(v.inverse(), jnp.linalg.inv(dense(v)), 1e-3)
    np.testing.assert_allclose(v.determinant(), jnp.linalg.det(dense(v)), rtol=1e-3)


def test_products_take_no_dense_array():
    v, x = Toeplitz(normal(0, 4096), normal(1, 4096)), normal(2, 4096)
    compiled = jax.jit(lambda v, x: forbid(jnp.matmul)(v, x)).lower(v, x).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 4096**2


# --- one-hot ------------------------------------------------------------------------------


LABELS = OneHot(jnp.array([2, 0, 2, 3]), 5)


def cross_entropy(labels, logits):
    return -(labels * jax.nn.log_softmax(logits)).sum(-1).mean()


def test_cross_entropy_and_its_gradient():
    logits = normal(0, 4, 5)
    got = jax.value_and_grad(lambda x: forbid(cross_entropy)(LABELS, x))(logits)
    want = jax.value_and_grad(cross_entropy, 1)(dense(LABELS), logits)
    jax.tree.map(close, got, want)
    mixed = lambda labels, x: (labels * 0.9 * jax.nn.log_softmax(x)).sum((0, 1))
    assert_same(forbid(mixed)(LABELS, logits), mixed(dense(LABELS), logits), 2e-5)


def test_rows_are_taken_and_added_up():
    table, x = normal(0, 5, 3), normal(1, 4, 3)
    assert_same(forbid(jnp.matmul)(LABELS, table), table[LABELS.indices], 0)
    sums = jax.ops.segment_sum(x, LABELS.indices, 5)
    assert_same(forbid(lambda v, x: v.T @ x)(LABELS, x), sums, 2e-5)
    assert_same(
        forbid(lambda v: v.sum(0))(LABELS),
        jnp.bincount(LABELS.indices, length=5) / 1.0,
        2e-5,
    )
    loss = lambda table: forbid(lambda v, t: jnp.sin(v @ t).sum())(LABELS, table)
    want = jax.grad(lambda table: jnp.sin(dense(LABELS) @ table).sum())(table)
    assert_same(jax.grad(loss)(table), want, 2e-5)


def test_one_hot_stays_one_hot():
    fns = {
        "rows": lambda v: v[1:3],
        "every other": lambda v: v[::2],
        "chosen": lambda v: v[jnp.array([3, 3, 0])],
        "dynamic": lambda v: jax.lax.dynamic_slice_in_dim(v, 1, 2),
        "both": lambda v: jnp.concatenate([v, v]),
        "transpose": lambda v: v.T,
        "cast": lambda v: v.astype(jnp.bfloat16),
    }
    for name, fn in fns.items():
        assert isinstance(forbid(fn)(LABELS), OneHot), name
        assert_same(forbid(fn)(LABELS), fn(dense(LABELS)), 0)
    for axis, v in ((1, LABELS), (0, LABELS.T)):
        assert_same(jaxrewrite.numpy.argmax(v, axis), jnp.argmax(dense(v), axis), 0)


def test_rows_of_rows():
    other = OneHot(jnp.array([1, 0, 1, 2, 2]), 3)
    picked = Picked(normal(0, 5), other.indices, 3)
    permutation = Permutation(orders(5))
    for w, kind in ((other, OneHot), (picked, Picked), (permutation, OneHot)):
        assert isinstance(LABELS @ w, kind)
        assert_same(LABELS @ w, dense(LABELS) @ dense(w), 0)
        assert_same(w.T @ LABELS.T, dense(w).T @ dense(LABELS).T, 0)
    assert isinstance(Diagonal(normal(1, 4)) @ LABELS, Picked)
    assert isinstance(LABELS @ Diagonal(normal(1, 5)), Picked)
    assert_same(
        LABELS * OneHot(LABELS.indices[::-1], 5), dense(LABELS) * dense(LABELS)[::-1], 2e-5
    )


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint32"])
def test_products_with_narrow_or_unsigned_indices_out_of_range(dtype, axis):
    """An index of a class that the dtype of the other indices can't hold is no class."""
    extremes = np.array([0, 1, np.iinfo(dtype).max, np.iinfo(dtype).min], dtype)
    table = normal(0, 2, 3)

    @jax.jit
    def products(i, j):
        found = []
        for weigh in (lambda v: v, lambda v: v * 2.0):
            v = weigh(OneHot(i, 2))
            w = OneHot(j[:2], 300)
            found.append(dense(v @ w if axis == -1 else (w.T @ v.T).T))
            found.append(dense(v @ table))
        return found

    one, other = (
        (extremes.astype(np.int64)[:n, None] == np.arange(classes)).astype(np.float32)
        for n, classes in ((4, 2), (2, 300))
    )
    want = [one @ other, one @ table, 2 * one @ other, 2 * one @ table]
    jax.tree.map(close, products(extremes, extremes), want)
    swapped = extremes[::-1].copy()
    jax.tree.map(
        close,
        products(np.array([0, 1], dtype), swapped)[0],
        (swapped[:2, None].astype(np.int64) == np.arange(300)).astype(np.float32),
    )


def test_rows_of_no_class_are_zero():
    """Out-of-range indices that are known only when the program runs give rows of zeros."""
    indices = jnp.array([-1, 2, 7], jnp.int8)
    table = normal(0, 3, 2)

    @jax.jit
    def fn(indices):
        v = OneHot(indices, 3)
        return [
            *(dense(v), dense(v @ table), dense(v.T @ jnp.ones(3))),
            *(
                dense(jaxrewrite.numpy.sum(v, 1)),
                dense(v * table[:, :1]),
                dense(v @ Identity(3)),
            ),
            dense(v @ OneHot(jnp.array([1, 1, 0]), 2)),
        ]

    one_hot = jax.nn.one_hot(indices, 3)
    want = [
        *(one_hot, one_hot @ table, one_hot.T @ jnp.ones(3), one_hot.sum(1)),
        *(one_hot * table[:, :1], one_hot, one_hot @ jnp.eye(2)[jnp.array([1, 1, 0])]),
    ]
    jax.tree.map(close, fn(indices), want)


def test_a_carry_that_becomes_picked():
    fn = lambda v: jax.lax.scan(lambda c, _: (0.5 * c, c.sum(1)), v, None, length=3)
    got = forbid(fn)(LABELS)
    assert isinstance(got[0], Picked)
    jax.tree.map(close, dense(got), fn(dense(LABELS)))


@pytest.mark.parametrize("other", [LABELS.T, LABELS, Toeplitz(normal(0, 4), normal(1, 5))])
def test_entries_of_another_matrix(other):
    v = BlockDiagonal(normal(2, 1, *other.shape))
    assert isinstance(forbid(jnp.multiply)(other, v), (Picked, BlockDiagonal))
    assert_same(other * v, dense(other) * dense(v), 2e-5)


# --- custom derivatives ---------------------------------------------------------------------


@jax.custom_jvp
def cubed(x):
    return x**3


@cubed.defjvp
def _(primals, tangents):
    (x,), (dx,) = primals, tangents
    return cubed(x), 3 * x**2 * dx


def test_a_one_hot_matrix_has_no_tangent():
    fn = lambda v, s: cubed(s * v) @ jnp.ones(5)
    got = jax.jvp(
        lambda s: jaxrewrite.transform(fn, materialise="allow")(LABELS, s), (2.0,), (1.0,)
    )
    want = jax.jvp(lambda s: fn(dense(LABELS), s), (2.0,), (1.0,))
    jax.tree.map(close, got, want)


# --- from and to arrays ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "value"),
    [
        (Permutation.from_dense, Permutation(orders(2, 5))),
        (lambda x: BlockDiagonal.from_dense(x, 3), BlockDiagonal(normal(0, 2, 3, 2, 4))),
        (Toeplitz.from_dense, Toeplitz(normal(0, 2, 3), normal(1, 2, 5))),
        (Circulant.from_dense, Circulant(normal(0, 2, 4))),
        (OneHot.from_dense, OneHot(orders(2, 5)[:, :3], 5)),
    ],
    ids=lambda x: type(x).__name__ if isinstance(x, jaxrewrite.Value) else "",
)
def test_from_dense(make, value):
    got = make(dense(value))
    assert type(got) is type(value)
    assert_same(got, dense(value), 0)
    assert_same(dense(jax.jit(make)(dense(value))), dense(value), 0)
    with pytest.raises(ValueError, match=f"{type(value).__name__}: matrix"):
        make(normal(0, *value.shape))
    with pytest.raises(ValueError, match=f"{type(value).__name__}: matrix"):
        make(jnp.ones(4))


def test_entries_of_truth_values():
    a = jnp.array([[True, False], [True, True]])
    v = Kronecker((a, a))
    for fn in (jnp.diagonal, lambda v: v[1]):
        got, wanted = jaxrewrite.transform(fn)(v), fn(jnp.array(np.kron(a, a)))
        assert got.dtype == bool
        np.testing.assert_array_equal(got, wanted)


def test_a_matrix_may_be_one_block():
    x = normal(0, 2, 4)
    np.testing.assert_array_equal(BlockDiagonal.from_dense(x, 1).blocks, x[None])


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Permutation(jnp.array(0)), "Permutation: order"),
        (lambda: Permutation(jnp.ones(3)), "Permutation: order"),
        (lambda: Permutation(jnp.array([0, 2, 2])), "Permutation: order"),
        (lambda: BlockDiagonal(jnp.ones((2, 2))), "BlockDiagonal: blocks"),
        (lambda: BlockDiagonal.from_dense(jnp.ones((4, 4)), 3), "BlockDiagonal: k"),
        (lambda: Kronecker(), "Kronecker: factors"),
        (lambda: Kronecker(jnp.ones(2), jnp.ones((2, 2))), "Kronecker: factors"),
        (lambda: Kronecker(jnp.ones((2, 2)), jnp.ones((2, 2), int)), "Kronecker: factors"),
        (lambda: Toeplitz(jnp.ones(0), jnp.ones(2)), "Toeplitz: column"),
        (lambda: Toeplitz(jnp.ones(2), jnp.ones((2, 2))), "Toeplitz: column"),
        (lambda: Toeplitz(jnp.ones(2), jnp.ones(2, int)), "Toeplitz: column"),
        (lambda: Circulant(jnp.ones((2, 0))), "Circulant: column"),
        (lambda: OneHot(jnp.array(1), 3), "OneHot: indices"),
        (lambda: OneHot(jnp.ones(2), 3), "OneHot: indices"),
        (lambda: OneHot(jnp.array([0, 3]), 3), "OneHot: indices"),
        (lambda: OneHot(jnp.array([0, 1]), 3, axis=0), "OneHot: axis"),
        (lambda: Picked(jnp.ones(3), jnp.array([0, 1]), 3), "Picked: values"),
        (lambda: Picked(jnp.ones(2), jnp.array([0, -1]), 3), "Picked: indices"),
    ],
)
def test_bad_input(make, said):
    with pytest.raises(ValueError, match=said):
        make()


def test_one_class_has_one_index():
    np.testing.assert_array_equal(dense(OneHot(jnp.zeros(2, int), 1)), np.ones((2, 1)))
    with pytest.raises(ValueError, match="OneHot: indices"):
        OneHot(jnp.zeros(2, int), 0)


@pytest.mark.parametrize("several", [tuple, list])
def test_blocks_are_one_array(several):
    with pytest.raises(TypeError, match=f"BlockDiagonal: blocks is a {several.__name__}"):
        BlockDiagonal(several([jnp.ones((2, 2)), jnp.ones((3, 3))]))


@pytest.mark.parametrize("dtype", [bool, jnp.uint8, jnp.float32])
@pytest.mark.parametrize("fn", [lambda v: jnp.maximum(v, 0), lambda v: v**2.0])
def test_weak_types_of_arrays_that_a_permutation_gives(fn, dtype):
    v = Permutation(jnp.array([1, 0]), dtype)
    want = fn(v.materialise())
    dense = jaxrewrite.transform(fn, materialise="allow")
    for got in (dense(v), jax.jit(dense)(v)):
        assert (got.dtype, got.weak_type) == (want.dtype, want.weak_type)


def test_factors_are_given_one_by_one():
    factors = [jnp.eye(2), jnp.eye(3)]
    with pytest.raises(TypeError, match=r"one by one: Kronecker\(a, b\)"):
        Kronecker(factors)
    assert Kronecker(*factors).shape == Kronecker(tuple(factors)).shape == (6, 6)


def test_products_with_an_annotated_factor():
    a, b, x = (
        jnp.arange(4.0).reshape(2, 2),
        jnp.ones((2, 2)),
        jnp.arange(16.0).reshape(4, 4),
    )
    v = Kronecker(Tagged(a, "tag"), b)
    got = jaxrewrite.transform(lambda v, x: x @ v, materialise="allow")(v, x)
    np.testing.assert_allclose(jaxrewrite.materialise(got), x @ jnp.kron(a, b))


@pytest.mark.parametrize("axis", [None, 0, -1, (-2, -1)])
def test_norms_whose_factors_have_squares_out_of_range(axis, bulk):
    norm = lambda v: jnp.linalg.norm(v, axis=axis)
    large, small = normal(0, 2, 3) * 1e25, normal(1, 3, 1) * 1e-25
    for v in (
        Kronecker(large, small),
        Kronecker(large, Identity(2), small),
        Kronecker(0 * large, small),
        Kronecker(normal(2, 4, 2, 3), normal(3, 4, 3, 1)),
    ):
        if axis in (None, 0) and v.batch:
            continue
        assert_same(forbid(norm)(v), norm(dense(v)), 2e-5)


SCALED = {
    "rows": lambda v, x: v * x[:, None],
    "columns": lambda v, x: (v * x).T,
    "both": lambda v, x: v * x[:, None] * x,
    "batch": lambda v, x: v * x[:2, None, None],
    "some rows": lambda v, x: (v * x[:, None])[jnp.array([1, 0, 3])],
    "some columns": lambda v, x: (v * x[:, None] * x)[:, 1:3],
    "entries": lambda v, x: (v * x[:, None] * x)[jnp.array([1, 3]), jnp.array([0, 2])],
}


@pytest.mark.parametrize("first", [Identity(2), Permutation(jnp.array([1, 0]))])
def test_zeros_that_scale_meet_no_infinite_entry(first):
    """The scaled matrix is a lazy product with a diagonal one, which has zeros of its own."""
    v = Kronecker(first, jnp.array([[jnp.inf, 2.0], [3.0, jnp.nan]]))
    x = jnp.arange(2.0, 6)
    for name, fn in SCALED.items():
        got = dense(jaxrewrite.transform(fn, materialise="allow")(v, x))
        np.testing.assert_array_equal(got, fn(v.materialise(), x), name)


@pytest.mark.parametrize(("dtype", "n"), [("int8", 128), ("uint8", 256)])
def test_the_longest_permutation_of_a_narrow_dtype(dtype, n):
    order = np.random.default_rng(0).permutation(n)
    v, x = Permutation(jnp.array(order, dtype)), jnp.arange(float(n))
    for fn in (lambda v: v @ x, lambda v: x @ v, lambda v: v.T @ v.T, lambda v: v[5]):
        assert_same(forbid(fn)(v), fn(jnp.eye(n)[order]), 0)


@pytest.mark.parametrize("lower", [False, True])
def test_a_solve_reads_one_triangle_of_a_product(lower):
    """The other triangle of a product of triangular factors is its diagonal."""
    factor = Triangular(jnp.array([[2.0, 1.0], [5.0, 3.0]]), lower=False)
    v, b = Kronecker(factor, factor), jnp.arange(4.0)
    fn = lambda v, b: jax.scipy.linalg.solve_triangular(v, b, lower=lower)
    np.testing.assert_allclose(forbid(fn)(v, b), fn(dense(v), b), rtol=1e-5)

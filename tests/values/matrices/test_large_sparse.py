"""Large sparse matrices against SciPy in float64: nothing dense is ever made."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
import scipy.sparse.linalg
from choose import every, often, slow
from jax.experimental.sparse import BCOO, BCSR
from oracle import forbid

import jaxrewrite
from jaxrewrite.values import Sparse
from jaxrewrite.values._matrices import sparse_products


def random(n, density, seed=0):
    numbers = np.random.default_rng(seed)
    places = np.unique(numbers.integers(0, n * n, int(n * n * density)))
    data = numbers.normal(size=len(places))
    return scipy.sparse.csr_matrix((data, (places // n, places % n)), shape=(n, n))


def value(matrix, format="bcoo", padding=0, dtype="float64"):
    data = jnp.asarray(matrix.data, dtype)
    if format == "bcsr":
        held = data, jnp.asarray(matrix.indices), jnp.asarray(matrix.indptr)
        return Sparse(BCSR(held, shape=matrix.shape, unique_indices=True))
    coo = matrix.tocoo()
    indices = jnp.asarray(np.stack([coo.row, coo.col], 1), "int32")
    v = Sparse(BCOO((data, indices), shape=matrix.shape, unique_indices=True))
    return v.filled_up(len(data) + padding)


def compiled(fn, *operands):
    """The results, with the bytes that the program takes besides its operands."""
    program = jax.jit(fn).lower(*operands).compile()
    memory = program.memory_analysis()
    return program(*operands), memory.temp_size_in_bytes + memory.output_size_in_bytes


def everything(v, x):
    """Products on both sides, with their gradients, sums and slices."""
    left, right = forbid(jnp.matmul)(v, x), forbid(lambda x, v: x.T @ v)(x, v)
    cost = lambda d, x: jnp.sum(forbid(jnp.matmul)(v.with_data(d), x) ** 2)
    gradients = jax.grad(cost, (0, 1))(v.data, x)
    moved = forbid(lambda v: (v + v.T, v[: len(x) // 2, ::2], 2 * v))(v)
    return left, right, gradients, moved


CASES = [(1000, 0.01, 1), (1000, 0.1, 20), (10_000, 0.001, 1), (10_000, 0.001, 64)]
CASES += [(100_000, 3e-5, 1), (100_000, 3e-5, 20)]


@pytest.mark.parametrize(
    ("n", "density", "columns", "format"),
    [
        (10_000, 0.001, 4, "bcoo"),
        *(slow((*case, format)) for case in CASES for format in ("bcoo", "bcsr")),
    ],
)
def test_against_scipy(n, density, columns, format, monkeypatch, bulk):
    _one_device(monkeypatch)
    a = random(n, density)
    x = np.random.default_rng(1).normal(size=(n, columns))
    with jax.enable_x64(True):
        v = value(a, format)
        (left, right, (by_data, by_x), moved), taken = compiled(
            everything, v, jnp.asarray(x)
        )
        # Each entry is gathered once for each column, a few times over.
        assert taken < 150 * a.nnz * (columns + 4)
        assert n < 10_000 or taken < 8 * n * n / 2
        y = a @ x
        np.testing.assert_allclose(left, y, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(right, x.T @ a, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(by_x, 2 * a.T @ y, rtol=1e-9, atol=1e-9)
        rows, held = a.tocoo().row, a.tocoo().col
        wanted = 2 * np.einsum("ek,ek->e", y[rows], x[held])
        np.testing.assert_allclose(by_data, wanted, rtol=1e-9, atol=1e-9)
        for got, want in zip(moved, (a + a.T, a[: n // 2, ::2], 2 * a), strict=True):
            assert isinstance(got, Sparse)
            assert abs(of(got) - want).max() < 1e-12


def of(v):
    """The matrix for SciPy, without what fills up."""
    held = v.bcoo()
    is_entry = np.asarray(v.stored())
    places = np.asarray(held.indices)[is_entry].T
    return scipy.sparse.csr_matrix((np.asarray(v.data)[is_entry], tuple(places)), v.shape)


def _one_device(monkeypatch):
    monkeypatch.setattr(sparse_products, "_MANY_COLUMNS", 4)


@pytest.mark.parametrize("order", every(3, ["odd padding", "sorted", "shuffled"]))
def test_products_row_by_row_need_the_order(order, monkeypatch, bulk):
    """Entries in any order, and padding in any place, give the same product."""
    _one_device(monkeypatch)
    a, x = random(12, 0.3), np.random.default_rng(1).normal(size=(12, 6))
    v = value(a, padding=3, dtype="float32")
    if order == "shuffled":
        turn = np.random.default_rng(2).permutation(len(v.data))
        v = jax.tree.map(lambda leaf: leaf[turn], v)
    if order == "odd padding":
        row = jnp.array([[2, 12]] * 3, v.indices.dtype)
        v = jax.tree.unflatten(
            jax.tree.structure(v),
            [v.data.at[-3:].set(7.0), jnp.concatenate([row, v.indices[:-3]])],
        ).with_data(jnp.concatenate([jnp.full(3, 7.0), v.data[:-3]]))
    x = jnp.asarray(x, "float32")
    x = x.at[11].set(jnp.inf) if order == "odd padding" else x
    product = jax.jit(forbid(jnp.matmul))(v, x)
    rows = np.asarray(a[:, :11] @ np.asarray(x)[:11])
    if order != "odd padding":
        rows = a @ np.asarray(x)
        each = jax.jit(jax.vmap(forbid(jnp.matmul), (None, 0)))(v, jnp.stack([x, 2 * x]))
        np.testing.assert_allclose(each, [rows, 2 * rows], rtol=1e-4, atol=1e-5)
    untouched = np.asarray(abs(a[:, 11]).sum(1)).ravel() == 0
    kept = untouched if order == "odd padding" else slice(None)
    np.testing.assert_allclose(product[kept], rows[kept], rtol=1e-4, atol=1e-5)


# How many entries each row has.
ROWS = {
    "as many": [3] * 8,
    "about as many": [1, 5, 3, 3, 2, 4, 3, 0],
    "one more": [1, 0, 12, 1, 0, 1, 2, 1],
    "many": [40] * 4,
}


@pytest.mark.parametrize(
    ("lengths", "format"),
    [
        *[(lengths, "bcsr") for lengths in ROWS if lengths != "as many"],
        ("one more", "bcoo"),
        slow(("as many", "bcsr")),
    ],
)
def test_a_product_with_one_vector(lengths, format, bulk):
    """How the entries lie decides in which order they are added."""
    counts = np.array(ROWS[lengths])
    n, m = len(counts), max(16, counts.max() + 1)
    draws = np.random.default_rng(0)
    # No entry is in the last column, where the vector is infinite.
    columns = np.concatenate([np.sort(draws.permutation(m - 1)[:k]) for k in counts])
    data = draws.normal(size=len(columns)).astype("float32")
    pointers = np.concatenate([[0], np.cumsum(counts)])
    a = scipy.sparse.csr_matrix((data, columns, pointers), shape=(n, m))
    v = value(a, format, dtype="float32").filled_up(len(data) + 2)
    x = jnp.asarray(draws.normal(size=m), "float32")

    @jax.jit
    @jaxrewrite.transform
    def products(v, x):
        multiply = lambda v, x: v @ x
        y, y_dot = jax.jvp(lambda x: multiply(v, x), (x,), (2 * x,))
        each = jax.vmap(multiply, (None, 0))(v, jnp.stack([x, 2 * x]))
        return y, y_dot, each, multiply(v, x.at[-1].set(jnp.inf)), y @ v

    def square(data, x):
        return (forbid(jnp.matmul)(v.with_data(data), x) ** 2).sum()

    def left_square(data, y):
        return (forbid(lambda y, v: y @ v)(y, v.with_data(data)) ** 2).sum()

    y = a @ np.asarray(x)
    got = products(v, x)
    for result, want in zip(got, [y, 2 * y, [y, 2 * y], y, a.T @ y], strict=True):
        np.testing.assert_allclose(result, want, rtol=1e-5, atol=1e-5)
    by_data, by_x = jax.jit(jax.grad(square, (0, 1)))(v.data, x)
    rows = np.repeat(np.arange(n), counts)
    by_entry = np.concatenate([2 * y[rows] * np.asarray(x)[columns], [0, 0]])
    np.testing.assert_allclose(by_data, by_entry, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(by_x, 2 * a.T @ y, rtol=1e-5, atol=1e-5)
    by_data, by_y = jax.jit(jax.grad(left_square, (0, 1)))(v.data, jnp.asarray(y))
    by_entry = np.concatenate([2 * y[rows] * (a.T @ y)[columns], [0, 0]])
    np.testing.assert_allclose(by_data, by_entry, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(by_y, 2 * a @ (a.T @ y), rtol=1e-4, atol=1e-4)
    twice = jax.linear_transpose(lambda x: forbid(jnp.matmul)(v, x), x)(jnp.asarray(y))
    np.testing.assert_allclose(twice[0], a.T @ y, rtol=1e-5, atol=1e-5)


# --- products of two ----------------------------------------------------------------------


@pytest.mark.slow
def test_products_of_two(bulk):
    a, b = random(200, 0.02), random(200, 0.03, seed=1)
    with jax.enable_x64(True):
        v, w = value(a, padding=5), value(b, "bcsr")
        want = (a @ b).tocsr()
        pairs = int(np.diff(b.indptr)[a.indices].sum())

        @jax.jit
        def program(v, w):
            def cost(d, e):
                full = v.with_data(d).multiplied(w.with_data(e), pairs=pairs, nse=want.nnz)
                return jnp.sum(full.data**2), full

            return jax.grad(cost, (0, 1), has_aux=True)(v.data, w.data)

        (by_v, by_w), full = program(v, w)
        assert abs(of(full) - want).max() < 1e-12 and len(full.data) == want.nnz
        for got, dense, like in ((by_v, want @ b.T, a), (by_w, a.T @ want, b)):
            coo = like.tocoo()
            wanted = 2 * np.asarray(dense.todense())[coo.row, coo.col]
            np.testing.assert_allclose(got[: len(wanted)], wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("fewer", "nse"), often([(1, None), (0, 3), (0, None), (-5, 40)], [(-5, 40)])
)
def test_bounds_that_are_too_small_give_nan(fewer, nse):
    a = random(6, 0.3)
    v = value(a, padding=0 if fewer < 0 else 2, dtype="float32")
    pairs = int(np.diff(a.indptr)[a.indices].sum())
    got = jax.jit(lambda v: v.multiplied(v, pairs=pairs - fewer, nse=nse))(v)
    if fewer > 0 or nse == 3:
        assert np.isnan(got.data).all()
    else:
        assert abs(of(got) - a @ a).max() < 1e-5
        assert len(v.multiplied(v).data) == min(pairs, 36)


@pytest.mark.slow
def test_products_of_two_that_cannot_be():
    v = value(random(6, 0.3), dtype="float32")
    empty = Sparse.from_dense(jnp.zeros((6, 4)))
    assert jaxrewrite.materialise(v.multiplied(empty)).shape == (6, 4)
    with pytest.raises(ValueError, match="that fit, not stacks"):
        v.multiplied(empty.T)
    with pytest.raises(ValueError, match="needs pairs="):
        jax.jit(lambda v: v.multiplied(v))(v)
    with pytest.raises(ValueError, match="floating dtype; got int32"):
        v.astype(jnp.int32).multiplied(v.astype(jnp.int32))


# --- a problem ------------------------------------------------------------------------------


def laplacian(k):
    """The 5-point Laplacian of a k x k grid."""
    line = scipy.sparse.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(k, k))
    return scipy.sparse.csr_matrix(scipy.sparse.kronsum(line, line))


@pytest.mark.parametrize("format", every(2, ["bcoo", "bcsr"]))
def test_a_laplacian_solved_by_conjugate_gradients(format, bulk):
    """The value, and the gradient by the entries, which is -u_i w_j at entry (i, j)."""
    k = 30
    a = laplacian(k)
    b = np.random.default_rng(0).normal(size=k * k)
    with jax.enable_x64(True):
        v = value(a, format)

        def solve(data):
            cg = lambda v, b: jax.scipy.sparse.linalg.cg(v, b, tol=1e-12)[0]
            return forbid(cg)(v.with_data(data), jnp.asarray(b))

        def program(data):
            cost = lambda data: jnp.sum(solve(data) ** 2)
            return solve(data), jax.grad(cost)(data)

        (x, by_data), taken = compiled(program, v.data)
        assert taken < 100 * 8 * a.nnz < 8 * k**4
        want = scipy.sparse.linalg.spsolve(a.tocsc(), b)
        np.testing.assert_allclose(x, want, rtol=1e-8, atol=1e-8)
        adjoint = scipy.sparse.linalg.spsolve(a.T.tocsc(), 2 * want)
        coo = a.tocoo()
        wanted = -adjoint[coo.row] * want[coo.col]
        np.testing.assert_allclose(by_data, wanted, rtol=1e-6, atol=1e-6)

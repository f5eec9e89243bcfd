"""Sparse matrices: what stays sparse, their formats, and bad input."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
from choose import often
from jax import lax
from jax.experimental.sparse import BCOO, BCSR
from oracle import everything, forbid, made_dense
from reference import CASES
from reference.sparse import some

import jaxrewrite
from jaxrewrite.testing import assert_same, numbers
from jaxrewrite.values import Diagonal, Identity, NMSparse, Product, Sparse, Sum


SCIPYS = [scipy.sparse.csr_matrix, scipy.sparse.coo_array, scipy.sparse.csc_array]

# Leaf by leaf, with `jax.tree.map`.
close = functools.partial(assert_same, tolerance=1e-5)


FORMATS = ("bcoo", "bcsr", "bcsc")
# The other formats are for the long run. Tests over all cases use "bcoo".
formats = pytest.mark.parametrize("format", often(("bcsr", "bcoo", "bcsc"), ("bcsr",)))


def dense(shape=(6, 8), seed=0, dtype="float32"):
    return some(np.random.default_rng(seed), shape, jnp.dtype(dtype))


def sparse(shape=(6, 8), seed=0, format="bcoo", more=3):
    w = dense(shape, seed)
    return Sparse.from_dense(w, nse=int((w != 0).sum()) + more, format=format)


KEPT = {
    "neg": lambda v: -v,
    "tanh": jnp.tanh,
    "power": lambda v: v**3,
    "scalar": lambda v: v * 2 / 3,
    "dense": lambda v: v * dense(v.shape, 1) / 3,
    "rows": lambda v: v * jnp.arange(1.0, 7)[:, None] * jnp.arange(8.0),
    "transpose": lambda v: v.T,
    "cast": lambda v: v.astype(jnp.float16).astype(jnp.float32),
    "slice": lambda v: v[1:5, ::3],
    "part": lambda v: lax.dynamic_slice(v, (jnp.int32(3), jnp.int32(-9)), (2, 5)),
    "reverse": lambda v: v[::-1, ::-1],
    "reshape": lambda v: v.reshape(4, 12),
    "concatenate": lambda v: jnp.concatenate([v, v[:, :4].reshape(3, 8)]),
    "columns": lambda v: jnp.concatenate([v, -v], axis=1),
    "stack": lambda v: jnp.stack([v, -v])[::-1].sum(0),
    "sum": lambda v: v + v,
    "maximum": lambda v: jnp.maximum(v, -v),
    "where": lambda v: jnp.where(jnp.array(True), v, -v),
}


def check_kept(fns, v):
    results = jax.jit(forbid(everything(fns)))(v)
    for name, got in results.items():
        assert type(got) is type(v), name
    got, want = made_dense(results), jax.jit(everything(fns))(made_dense(v))
    for name in fns:
        assert_same(got[name], want[name], 1e-2 if name == "cast" else 1e-5)


def test_stays_sparse(bulk):
    check_kept(KEPT, sparse())


@pytest.mark.slow
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", KEPT)
def test_stays_sparse_with_its_gradient(name, format, bulk):
    v = sparse(format=format)
    fn = lambda v: jnp.sin(jaxrewrite.materialise(forbid(KEPT[name])(v))).sum()
    got = jax.jit(jax.grad(lambda d: fn(v.with_data(d))))(v.data)
    want = jax.grad(lambda d: jnp.sin(KEPT[name](v.with_data(d).materialise())).sum())
    assert_same(got, want(v.data), 1e-3 if name == "cast" else 1e-5)


PRODUCTS = {
    "vector": lambda v: v @ jnp.arange(8.0),
    "matrix": lambda v: v @ dense((8, 3)),
    "left": lambda v: dense((3, 6)) @ v,
    "transposed": lambda v: dense((3, 8)) @ v.T,
    "more axes": lambda v: jnp.einsum("nm,amb->abn", v, dense((16, 3)).reshape(2, 8, 3)),
    "rows": lambda v: v[jnp.array([[2, 0, 2]])],
    "columns": lambda v: v[:, jnp.array([7, 3])],
    "one row": lambda v: v[2],
    "an entry": lambda v: v[jnp.array([1, 5]), jnp.array([3, 0])],
    "sums": lambda v: (v.sum(), v.sum(0), v.mean(1), jnp.trace(v)),
    "mul and sum": lambda v: (v * dense((6, 8), 4)).sum(),
}


@formats
def test_products(format, bulk):
    v = sparse(format=format)
    fn = everything(PRODUCTS)
    jax.tree.map(close, jax.jit(forbid(fn))(v), jax.jit(fn)(made_dense(v)))


@pytest.mark.slow
@pytest.mark.parametrize("format", FORMATS)
def test_gradient_of_products(format, bulk):
    v = sparse(format=format)

    def loss(v):
        return sum(
            jnp.sin(x).sum() for fn in PRODUCTS.values() for x in jax.tree.leaves(fn(v))
        )

    got = jax.jit(jax.grad(lambda d: forbid(loss)(v.with_data(d))))(v.data)
    assert_same(got, jax.grad(lambda d: loss(v.with_data(d).materialise()))(v.data), 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("format", FORMATS)
def test_stacks(format, bulk):
    w = dense((2, 3, 4))
    v = Sparse.from_dense(w, nse=8, format=format)
    assert_same(v, w, 1e-5)
    x = dense((2, 4, 5), 1)
    fn = lambda v: {
        "product": v @ x,
        "transposed": jnp.swapaxes(v, 1, 2) @ x[:, :3],
        "sum": v.sum(0),
        "with itself": v + v * v,
        "part": v[1:],
        "moved": v[:, ::-1, 1:],
        "joined": jnp.concatenate([v, v[:1]]),
        "diagonal": jnp.trace(v, axis1=1, axis2=2),
    }
    jax.tree.map(close, jaxrewrite.materialise(jax.jit(forbid(fn))(v)), fn(w))


def narrow(format="bcoo", dtype="int8", shape=(100, 90), nse=150):
    """A matrix with more entries, and after some moves longer axes, than its indices can count."""
    flat = np.random.default_rng(0).choice(shape[0] * shape[1], nse, replace=False)
    places = np.stack(np.divmod(np.sort(flat), shape[1]), -1)
    w = BCOO((jnp.arange(1.0, nse + 1), jnp.array(places)), shape=shape)
    if format == "bcsr":
        w = BCSR.from_bcoo(w)
        held = w.data, w.indices.astype(dtype), w.indptr
        return Sparse(BCSR(held, shape=shape, unique_indices=True))
    held = w.data, w.indices.astype(dtype)
    return Sparse(BCOO(held, shape=shape, unique_indices=True))


NARROW = {
    "concatenate": lambda v: jnp.concatenate([v, -v]),
    "columns": lambda v: jnp.concatenate([v, -v], 1) @ jnp.arange(180.0),
    "steps": lambda v: v[:, ::64],
    "part": lambda v: lax.dynamic_slice(v, (jnp.int32(200), jnp.int32(2)), (50, 80)),
    "reshape": lambda v: v.reshape(45, 200),
    "products": lambda v: (v @ jnp.arange(90.0), v @ jnp.ones((90, 16))),
    "of the transpose": lambda v: (jnp.arange(100.0) @ v, v.T @ jnp.ones((100, 16))),
    "sum": lambda v: v + v,
    "part of the sum": lambda v: (v + v)[3:, ::-1],
}


@pytest.mark.parametrize("format", ["bcoo", "bcsr"])
def test_indices_of_8_bits(format, bulk):
    v = narrow(format)
    fn = everything(NARROW)
    jax.tree.map(close, made_dense(jax.jit(forbid(fn))(v)), jax.jit(fn)(made_dense(v)))


def test_indices_narrower_than_their_axis(bulk):
    """A shape that the indices are too narrow for has no index for padding."""
    places, want = np.array([[99, 3], [7, 5]]), np.zeros((200, 9), np.float32)
    want[tuple(places.T)] = [1, 2]
    held = jnp.array([1.0, 2.0]), jnp.array(places, jnp.int8)
    v = Sparse(BCOO(held, shape=want.shape))
    assert v.indices.dtype == jnp.int32
    assert_same(v, want, 0)
    assert_same(forbid(lambda v: v[50:] @ jnp.ones(9))(v), want[50:].sum(1), 0)


def test_concatenation_of_indices_of_two_dtypes(bulk):
    v, w = narrow(dtype="uint8"), narrow(dtype="int16")
    both = forbid(lambda v, w: (jnp.concatenate([v, w]), jnp.stack([w, v])))(v, w)
    assert all(x.indices.dtype == jnp.int16 for x in both)
    a, b = made_dense((v, w))
    jax.tree.map(close, made_dense(both), (jnp.concatenate([a, b]), jnp.stack([b, a])))
    with jax.enable_x64(True):
        long = Sparse(BCOO.fromdense(jnp.asarray(dense())))
        wide = long.indices.astype(jnp.int64)
        long = Sparse(BCOO((long.data, wide), shape=long.shape, unique_indices=True))
        got = forbid(lambda v, w: jnp.concatenate([v, w]))(sparse(), long)
        assert got.indices.dtype == jnp.int64
        assert_same(got, jnp.concatenate([dense(), dense()]), 0)


def test_sparse_product_of_indices_of_two_dtypes(bulk):
    """Rows of one and columns of the other, each beyond the dtype of the other's indices."""
    v, w = narrow(dtype="int16", shape=(200, 90)), narrow(shape=(90, 127))
    got = v.multiplied(w), w.T.multiplied(v.T), w.T.multiplied(w, nse=3000)
    a, b = made_dense((v, w))
    jax.tree.map(close, made_dense(got), (a @ b, b.T @ a.T, b.T @ b))


def test_half_precision_is_summed_in_single(bulk):
    v = Sparse.from_dense(jnp.ones((1, 3000), jnp.bfloat16), format="bcsr")
    assert float((v @ jnp.ones(3000, jnp.bfloat16))[0]) == pytest.approx(3000, rel=0.01)


@formats
def test_cotangents_in_a_batch_along_any_axis(format):
    """Of the dense array. JAX's own `BCOO.todense` takes batches along the first axis alone."""
    v, cts = sparse(format=format), jnp.stack([dense(seed=i) for i in (1, 2, 3)], axis=1)

    def derivatives(dense, data):
        return jax.vmap(lambda ct: jax.vjp(dense, data)[1](ct)[0], in_axes=1)(cts)

    written = lambda data: jnp.zeros(v.shape).at[v.places()].add(data * v.stored())
    got = derivatives(lambda data: v.with_data(data).materialise(), v.data)
    close(got, derivatives(written, v.data))


@pytest.mark.slow
def test_two_values(bulk):
    v, w = sparse((6, 6)), sparse((6, 6), 1)
    a, b = jaxrewrite.materialise((v, w))
    kinds = {
        "sum": (v - w, Sparse, a - b),
        "entry by entry": (v * w, Sparse, a * b),
        "product": (v @ w, Product, a @ b),
        "diagonal": (v + 2 * Identity(6), Sparse, a + 2 * jnp.eye(6)),
        "by a diagonal": (Diagonal(a[0]) @ v, Sparse, a[0][:, None] * a),
        "on the diagonal": (v * Identity(6), Diagonal, a * jnp.eye(6)),
    }
    for name, (got, kind, want) in kinds.items():
        assert isinstance(got, kind), name
        assert_same(got, want, 1e-5)
    # As many entries as there may be, and no more.
    assert (v + w).data.shape == (36,)


def test_entries_of_one_place_are_added_up_once(bulk):
    places = jnp.array([[0, 1], [2, 0], [0, 1], [3, 2]])  # the last marks no entry
    w = BCOO((jnp.array([1.0, 2.0, 3.0, 9.0]), places), shape=(3, 2))
    want = np.array([[0, 4], [0, 0], [2, 0]], np.float32)
    rows = BCSR(
        (jnp.array([1.0, 3.0, 2.0]), jnp.array([1, 1, 0]), jnp.array([0, 2, 2, 3])),
        shape=(3, 2),
    )
    for matrix in (w, rows):
        v = Sparse(matrix)
        assert_same(v, want, 1e-5)
        assert_same(v**2, want**2, 1e-5)  # and not 1 + 9 where there are two


def test_what_fills_up_has_no_gradient(bulk):
    v = Sparse.from_dense(jnp.eye(2) * 4, nse=4)
    grad = jax.grad(lambda d: forbid(lambda v: jnp.sqrt(v).sum())(v.with_data(d)))(v.data)
    np.testing.assert_allclose(grad, [0.25, 0.25, 0, 0])


@pytest.mark.slow
def test_a_loop_joins_what_grows(bulk):
    v = Sparse.from_dense(jnp.eye(3), nse=3)
    step = lambda c, _: (c + jnp.roll(c, 1, axis=0), None)
    fn = lambda v: lax.scan(step, v, None, length=2)[0]
    got = jaxrewrite.transform(fn)(v)
    assert isinstance(got, Sparse)
    assert_same(got, fn(jnp.eye(3)), 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["cg", "gmres", "bicgstab"])
def test_iterative_solvers(solver, no_leak_checks):
    w = dense((8, 8))
    w = w @ w.T * (w != 0) * (w.T != 0) + 20 * jnp.eye(8)
    v = Sparse.from_dense(w, format="bcsr")
    b = jnp.arange(8.0)
    solve = lambda a, b: getattr(jax.scipy.sparse.linalg, solver)(lambda x: a @ x, b)[0]
    got = jax.jit(forbid(solve))(v, b)
    np.testing.assert_allclose(got, jnp.linalg.solve(w, b), rtol=1e-3, atol=1e-3)


def solvable(format="bcsc"):
    w = dense((5, 5)) + 3 * jnp.eye(5)
    return Sparse.from_dense(w, nse=23, format=format)


def test_solve(bulk):
    v, b = solvable(), jnp.arange(5.0)
    assert_same(forbid(jnp.linalg.solve)(v, b), jnp.linalg.solve(v.materialise(), b), 1e-4)


def test_solve_with_a_singular_matrix_in_a_batch(xla):
    """SciPy raises an error for this one, the first column of which has no entry."""
    places = jnp.array([[0, 0], [0, 1], [1, 2], [2, 1], [3, 1], [3, 2], [3, 3]])
    data = jnp.array([0, 1.3, 0.15, 1.1, -2.8, 0.57, 0])
    of = lambda data: Sparse(BCOO((data, places), shape=(4, 4), unique_indices=True))
    solve = lambda data: forbid(jnp.linalg.solve)(of(data), jnp.ones(4))
    regular = data.at[jnp.array([0, -1])].set(2.0)
    for each in (jax.vmap(solve), jax.jit(lambda ds: lax.map(solve, ds))):
        singular, solution = each(jnp.stack([data, regular]))
        assert not np.isfinite(singular).any()
        close(solution, jnp.linalg.solve(of(regular).materialise(), jnp.ones(4)))
    assert not np.isfinite(forbid(jnp.linalg.inv)(of(data))).any()
    with jax.disable_jit():
        close(solve(regular), solution)


@pytest.mark.slow
@pytest.mark.parametrize("format", FORMATS)
def test_solves_and_their_gradient(format, bulk):
    v, b = solvable(format), jnp.arange(10.0).reshape(5, 2)
    fns = {
        "columns": lambda v: jnp.linalg.solve(v, b),
        "transposed": lambda v: jnp.linalg.solve(v.T, b[:, 0]),
        "inverse": jnp.linalg.inv,
        "shifted": lambda v: jnp.linalg.solve(2 * v, b[:, 1]),
    }
    fn = lambda v: jax.tree.map(jnp.sin, everything(fns)(v))
    total = lambda v: sum(x.sum() for x in fn(v).values())
    got = jax.jit(jax.value_and_grad(lambda d: forbid(total)(v.with_data(d))))(v.data)
    want = jax.value_and_grad(lambda d: total(v.with_data(d).materialise()))(v.data)
    jax.tree.map(lambda x, y: assert_same(x, y, 1e-3), got, want)
    stack = jax.vmap(lambda d, b: jnp.linalg.solve(v.with_data(d).materialise(), b))
    solve = jax.vmap(lambda d, b: forbid(jnp.linalg.solve)(v.with_data(d), b))
    ds = jnp.stack([v.data, 2 * v.data])
    assert_same(solve(ds, b.T), stack(ds, b.T), 1e-4)


def test_bad_input():
    data, places = jnp.ones(2), jnp.array([[0, 0], [1, 1]])
    of = lambda places, **kw: Sparse(BCOO((data, jnp.array(places)), shape=(2, 2)), **kw)
    with pytest.raises(
        ValueError, match=r"is an array, .* Write Sparse.from_dense\(matrix"
    ):
        Sparse(jnp.eye(2))
    with pytest.raises(ValueError, match="matrix"):
        Sparse(BCOO.fromdense(jnp.ones(3)))
    with pytest.raises(ValueError, match="matrix"):
        Sparse(BCOO.fromdense(jnp.ones((2, 3)), n_dense=1))
    with pytest.raises(ValueError, match="by_columns"):
        of(places, by_columns=True)
    for wrong in ([[0, 0], [0, 3]], [[-1, 0], [0, 0]]):
        with pytest.raises(ValueError, match="indices"):
            of(wrong)
    rows = lambda i, p: Sparse(BCSR((data, jnp.array(i), jnp.array(p)), shape=(2, 2)))
    with pytest.raises(ValueError, match="indices"):
        rows([0, 2], [0, 1, 2])
    for pointers in ([0, 3, 2], [1, 1, 2], [0, 1, 3]):
        with pytest.raises(ValueError, match="indptr"):
            rows([0, 1], pointers)
    with pytest.raises(ValueError, match="nse"):
        Sparse.from_dense(jnp.ones((2, 2)), nse=3)
    with pytest.raises(ValueError, match="format"):
        Sparse.from_dense(jnp.ones((2, 2)), format="csr")
    with pytest.raises(ValueError, match="w has shape"):
        Sparse.from_dense(jnp.ones(2))


@pytest.mark.parametrize("make", [BCOO.fromdense, BCSR.fromdense, *SCIPYS])
def test_sparse_formats_have_a_way_of_their_own(make):
    """The text of the error says it, and it is right."""
    dense = np.diag(np.float32([1, 0, 2]))
    w = make(dense)
    with pytest.raises(ValueError, match="w is a .* no dense array. Write") as caught:
        Sparse.from_dense(w)
    written = str(caught.value).partition("Write ")[2].partition(", with")[0].rstrip(".")
    np.testing.assert_array_equal(eval(written).materialise(), dense)
    if make in SCIPYS:
        with pytest.raises(
            ValueError, match=f"{make.__name__} of SciPy, not a BCOO"
        ) as caught:
            Sparse(w)
        assert written.replace("(w)", "(matrix)") in str(caught.value)


# --- of each few in a row a fixed number ------------------------------------------------


def pruned(shape=(8, 6), seed=0, n=2):
    w = np.random.default_rng(seed).normal(size=shape)
    return NMSparse.prune(jnp.asarray(w, jnp.float32), n)


def test_the_largest_of_each_group_are_kept():
    w = np.random.default_rng(0).normal(size=(2, 8, 3)).astype(np.float32)
    got = np.asarray(NMSparse.prune(jnp.asarray(w), n=1, m=4))
    groups = w.reshape(2, 2, 4, 3)
    is_largest = np.abs(groups) == np.abs(groups).max(axis=2, keepdims=True)
    np.testing.assert_array_equal(got, np.where(is_largest, groups, 0).reshape(w.shape))


STRUCTURED = {
    "neg": lambda v: -v,
    "tanh": jnp.tanh,
    "scalar": lambda v: v * 2 / 3,
    "dense": lambda v: v * dense((8, 6), 1),
    "rows": lambda v: v * jnp.arange(1.0, 9)[:, None] * jnp.arange(6.0),
    "transpose": lambda v: v.T,
    "scaled transpose": lambda v: jnp.arange(6.0)[:, None] * v.T * jnp.arange(8.0),
    "cast": lambda v: v.astype(jnp.bfloat16).astype(jnp.float32),
    "groups": lambda v: v[4:, ::2],
    "groups of the transpose": lambda v: v.T[1:4, :4],
    "columns": lambda v: lax.dynamic_slice(v, (jnp.int32(0), jnp.int32(2)), (8, 3)),
    "split": lambda v: jnp.concatenate(jnp.split(v, 3, axis=1)[::-1], axis=1),
    "concatenate": lambda v: jnp.concatenate([v.T, -v.T], axis=1),
    "with itself": lambda v: v * jnp.sin(v),
}


def test_stays_structured(bulk):
    check_kept(STRUCTURED, pruned())


@pytest.mark.parametrize("flip", often((False, True), (True,)))
def test_lookups_and_products(flip, bulk):
    v = pruned((8, 8))
    fns = {
        name: fn
        for name, fn in PRODUCTS.items()
        if name in ("vector", "transposed", "more axes", "columns", "an entry")
    }
    fns["rows"] = lambda v: v[jnp.array([[2, 0, 7]])]
    fns["left"] = lambda v: dense((3, 8)) @ v
    fn = lambda v: everything(fns)(v.T if flip else v)
    jax.tree.map(close, jax.jit(forbid(fn))(v), jax.jit(fn)(made_dense(v)))


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_lookups_of_other_rows_than_that_of_a_nan(number):
    rows = np.array([[0.0, 2, 0], [number, 0, 1], [3, 0, 0], [0, 4, 5]])
    i = jnp.array([[3, 0], [2, 2]])
    for v in (
        Sparse.from_dense(jnp.asarray(rows)),
        Sparse(BCSR.fromdense(jnp.asarray(rows))),
    ):
        np.testing.assert_array_equal(forbid(lambda v: v[i])(v), rows[i])
        np.testing.assert_array_equal(forbid(lambda v: v.T[:, i])(v), rows.T[:, i])
        np.testing.assert_array_equal(forbid(lambda v: v[i[0] - 2])(v), rows[i[0] - 2])
        total = lambda v: forbid(lambda v: v[i])(v).sum()
        slope = jax.grad(total, allow_int=True)(v)
        np.testing.assert_array_equal(slope.data, [1, 0, 0, 2, 1, 1])


def test_two_of_other_places(bulk):
    v, w = pruned(seed=0), pruned(seed=1)
    a, b = jaxrewrite.materialise((v, w))
    assert isinstance(v * w, NMSparse) and isinstance(v + w, Sum)
    assert_same(v * w, a * b, 1e-5)
    assert_same(v + w, a + b, 1e-5)
    assert_same(
        jaxrewrite.transform(jnp.maximum, materialise="allow")(v, w),
        jnp.maximum(a, b),
        1e-5,
    )


@pytest.mark.slow
def test_a_stack_of_structured_matrices(bulk):
    v = pruned((2, 8, 3))
    w = jaxrewrite.materialise(v)
    x = dense((2, 5, 8))
    assert_same(forbid(jnp.matmul)(x, v), x @ w, 1e-5)
    assert_same(forbid(lambda v: v[1:])(v), w[1:], 1e-5)
    assert_same(
        jaxrewrite.transform(lambda v: v.sum(0), materialise="allow")(v), w.sum(0), 1e-5
    )


def test_no_dense_weight_is_kept_for_the_backward_pass(bulk):
    v = pruned((64, 32))
    x = jnp.ones((3, 64))
    model = lambda v, x: jnp.tanh(forbid(lambda v, x: x @ v)(v, x))
    _, backward = jax.vjp(
        lambda values, x: model(NMSparse(values, v.indices), x), v.values, x
    )
    kept = [leaf.shape for leaf in jax.tree.leaves(backward) if hasattr(leaf, "shape")]
    assert kept and all(np.prod(shape) < 64 * 32 for shape in kept), kept


def test_bytes():
    v = pruned((64, 32))
    assert v.nbytes == 64 * 32 * 4 // 2 + 64 * 32 // 2 // 2


def test_bad_structure():
    values = jnp.ones((2, 2, 3))
    indices = jnp.broadcast_to(jnp.array([0, 3])[:, None], (2, 2, 3))
    assert NMSparse(values, indices, m=4).shape == (8, 3)
    with pytest.raises(ValueError, match="indices"):
        NMSparse(values, indices, m=3)
    with pytest.raises(ValueError, match="indices"):
        NMSparse(values, indices * 0)
    with pytest.raises(ValueError, match="indices"):
        NMSparse(values, indices[:1])
    with pytest.raises(ValueError, match="indices"):
        NMSparse(values, values)
    with pytest.raises(ValueError, match="values"):
        NMSparse(values[0], indices[0])
    with pytest.raises(ValueError, match="m is 1"):
        NMSparse(values, indices, m=1)
    with pytest.raises(ValueError, match="m is 3"):
        NMSparse.prune(jnp.ones((4, 4)), 1, 3)
    with pytest.raises(ValueError, match="n is 5"):
        NMSparse.prune(jnp.ones((4, 4)), 5, 4)
    with pytest.raises(ValueError, match="NaN"):
        NMSparse.prune(jnp.full((4, 4), jnp.nan))
    with pytest.raises(ValueError, match="more than 2"):
        NMSparse.from_dense(jnp.ones((4, 4)))
    assert_same(NMSparse.from_dense(jnp.eye(4)), jnp.eye(4), 1e-5)


@pytest.mark.parametrize("v", [sparse(), pruned()], ids=["sparse", "n of m"])
def test_stays_implicit_across_a_custom_rule(v, no_leak_checks):
    @jax.custom_jvp
    def odd(x):
        return jnp.sin(x)

    @odd.defjvp
    def _(primals, tangents):
        (x,), (t,) = primals, tangents
        return odd(x), 3 * jnp.cos(x) * t

    leaf, *places = jax.tree.leaves(v)
    filled = lambda x: jax.tree.unflatten(jax.tree.structure(v), [x, *places])
    assert type(forbid(odd)(v)) is type(v)
    loss = lambda v: (odd(v) @ jnp.arange(v.shape[1], dtype=v.dtype)).sum()
    got = jax.grad(lambda x: jaxrewrite.transform(loss, materialise="allow")(filled(x)))(
        leaf
    )
    assert_same(got, jax.grad(lambda x: loss(filled(x).materialise()))(leaf), 1e-5)


def test_a_rule_that_calls_its_function_with_the_tangent(bulk):
    """The indices of a sparse matrix are not tangents, although they are results of that call."""

    @jax.custom_jvp
    def same(x):
        return x

    same.defjvp(lambda x, t: (same(*x), same(*t)))
    dense = jnp.array([[1.0, 0.0, 2.0], [0.0, 3.0, 0.0]])
    v, b = Sparse(BCOO.fromdense(dense)), jnp.arange(3.0)
    loss = lambda a: jnp.sin(same(a) @ b).sum()
    got = jax.grad(jaxrewrite.transform(loss), allow_int=True)(v)
    want = jax.grad(lambda data: loss(v.with_data(data).materialise()))(v.data)
    np.testing.assert_allclose(got.data, want, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("format", FORMATS)
def test_empty_axes(format):
    for shape in ((0, 3), (3, 0)):
        v = Sparse.from_dense(jnp.zeros(shape), format=format)
        assert_same(v @ jnp.ones((shape[1], 2)), jnp.zeros((shape[0], 2)), 1e-5)
        assert_same(jnp.ones((2, shape[0])) @ v, jnp.zeros((2, shape[1])), 1e-5)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("batch", [(), (2,)], ids=["one", "stack"])
def test_a_solve_without_rows(batch, format):
    v = Sparse.from_dense(jnp.zeros((*batch, 0, 0)), nse=0, format=format)
    solve = jaxrewrite.transform(jnp.linalg.solve, materialise="forbid")
    assert solve(v, jnp.zeros((*batch, 0, 2))).shape == (*batch, 0, 2)


def test_a_product_with_a_matrix_without_entries():
    empty = Sparse.from_dense(jnp.zeros((2, 3)), nse=0)
    full = Sparse.from_dense(jnp.ones((3, 4)))
    for product in (empty.multiplied(full), full.mT.multiplied(empty.mT).mT):
        assert_same(product, jnp.zeros((2, 4)))


MOVES = {
    "rev": lambda v: jnp.flip(v, (-1, -2)),
    "concatenate": lambda v: jnp.concatenate([v, v], -1),
    "block": lambda v: jnp.block([[v, v], [v, v]]),
    "reshape": lambda v: v.reshape(*v.shape[:-2], 1, 4),
    "reshape to columns": lambda v: v.reshape(*v.shape[:-2], 4, 1),
    "slice": lambda v: v[..., 1:, :],
    "roll": lambda v: jnp.roll(v, 1, -1),
}


@pytest.mark.slow
@pytest.mark.parametrize("batch", [(), (2,)], ids=["one", "stack"])
@pytest.mark.parametrize("format", ["bcoo", "bcsr"])
def test_positions_without_entries_stay_empty(batch, format, bulk):
    """Their numbers are in no result, and in no derivative."""
    w = jnp.arange(1.0, 5 if not batch else 9).reshape(*batch, 2, 2)
    v = Sparse.from_dense(w, 7, format)

    def of(move):
        def squares(v):
            return jaxrewrite.materialise(move(v) * move(v)).sum()

        def results(v):
            gradient = jax.grad(squares, allow_int=True)(v).data
            return jaxrewrite.materialise(move(v)), squares(v), gradient

        return results

    moves = {k: jaxrewrite.transform(fn, materialise="allow") for k, fn in MOVES.items()}
    got = jax.jit(lambda v: {name: of(move)(v) for name, move in moves.items()})(v)
    for name, want in jax.jit(everything(MOVES))(w).items():
        moved, squares, gradient = got[name]
        np.testing.assert_allclose(moved, want, err_msg=name)
        np.testing.assert_allclose(squares, (want**2).sum(), err_msg=name)
        times = want.size // w.size or 1
        if name not in ("slice", "reshape", "reshape to columns"):
            number = 2 * times * v.data[..., :4]
            np.testing.assert_allclose(gradient[..., :4], number, err_msg=name)
        assert not gradient[..., 4:].any(), name


def test_rows_of_an_empty_stack_are_scaled():
    v = NMSparse.prune(jnp.zeros((0, 4, 3)))
    scaled = jaxrewrite.transform(lambda v: v * jnp.arange(4.0)[:, None])(v)
    assert isinstance(scaled, NMSparse) and scaled.shape == (0, 4, 3)


def test_times_what_knows_no_entries():
    """An entry of a product is no entry of one of its factors."""
    v, w = sparse(), CASES["product"].value(np.random.default_rng(0), shape=sparse().shape)
    fn = jaxrewrite.transform(jnp.multiply, materialise="allow")
    assert_same(fn(v, w), np.asarray(v.materialise()) * np.asarray(w.materialise()), 1e-5)


def test_single_entries_of_groups():
    v = NMSparse.prune(numbers((6, 4)) - 1, 1, 3)
    i, j = (x.ravel() for x in jnp.indices((6, 4)))
    for w, places in ((v, (i, j)), (v.T, (j, i))):
        entries = lambda w, *places: w[places]
        got = jaxrewrite.transform(entries, materialise="forbid")(w, *places)
        np.testing.assert_array_equal(got, w.materialise()[places])


def test_pruned_integers_keep_their_largest_entries():
    """Whose opposites wrap around, of unsigned ones and of the least one."""
    for dtype, least in (("uint8", 3), ("int8", -128)):
        w = jnp.array([[0], [least], [0], [1]], dtype)
        np.testing.assert_array_equal(NMSparse.from_dense(w).materialise(), w)


def test_padding_of_a_wide_matrix_is_at_the_ends_of_both_axes():
    few, many = (
        Sparse.from_dense(jnp.zeros((2, 5)).at[1, :count].set(1.0)) for count in (1, 4)
    )
    choose = jax.jit(lambda p, a, b: lax.cond(p, lambda: a, lambda: b))
    chosen = jaxrewrite.transform(choose, materialise="forbid")(jnp.array(True), few, many)
    for same in (Sparse(chosen.matrix), chosen.transposed().transposed()):
        np.testing.assert_array_equal(same.materialise(), few.materialise())

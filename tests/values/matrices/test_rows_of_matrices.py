"""Rows, columns and blocks that are read from matrices, which stay what they are."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from choose import every, slow
from jax.extend import core as jex_core
from oracle import normal

import jaxrewrite
from jaxrewrite import values
from jaxrewrite.testing import assert_same


N = 12


MATRICES = {
    "Diagonal": lambda: values.Diagonal(normal(N)),
    "Identity": lambda: values.Identity(N),
    "ScalarMatrix": lambda: values.ScalarMatrix(jnp.float32(3), N),
    "Permutation": lambda: values.Permutation(jnp.roll(jnp.arange(N), 5)),
    "OneHot": lambda: values.OneHot(jnp.arange(N) * 5 % 13, 15),
    "Tridiagonal": lambda: values.Tridiagonal(normal(N - 1), normal(N), normal(N - 1)),
    "Banded": lambda: values.Banded(normal(4, N), lower=2, upper=1),
    "Triangular": lambda: values.Triangular(normal(N, N), lower=True),
    "Symmetric": lambda: values.Symmetric(normal(N, N)),
    "BlockDiagonal": lambda: values.BlockDiagonal(normal(4, 3, 2)),
    "Kronecker": lambda: values.Kronecker(normal(3, 5), values.Diagonal(normal(4))),
    "Toeplitz": lambda: values.Toeplitz(normal(N), normal(N).at[1:].mul(2)),
    "Circulant": lambda: values.Circulant(normal(N)),
    "Sparse": lambda: values.Sparse.from_dense(jnp.where(normal(N, 9) > 1, 2.0, 0.0)),
    "LowRank": lambda: values.LowRank(normal(N, 2), normal(2, 9)),
    "Sum": lambda: MATRICES["Toeplitz"]() + MATRICES["Kronecker square"](),
    "Kronecker square": lambda: values.Kronecker(normal(3, 3), normal(4, 4)),
    "Kronecker of low rank": lambda: values.Kronecker(
        values.LowRank(normal(4, 1), normal(1, 3)), normal(3, 3)
    ),
    "Scaled": lambda: MATRICES["Kronecker"]() / jnp.float32(3),
    "Product": lambda: MATRICES["Circulant"]() @ values.Diagonal(normal(N)),
    "Product of three": lambda: (
        values.Diagonal(normal(N)) @ MATRICES["Toeplitz"]() @ values.Diagonal(normal(N))
    ),
    "Product of an array": lambda: values.Product(
        (normal(N, 20, seed=1), values.Circulant(normal(20)))
    ),
}
INDICES = jnp.array([[3, 0, 3], [-1, 11, 7]])

# Reads that take few rows or columns, or as many as there are indices.
READS = {
    "rows": lambda v, i: v[i],
    "one row": lambda v, i: v[i[:1, 0]],
    "columns": lambda v, i: v[:, i // 2],
    "taken": lambda v, i: jnp.take(v, i[0], axis=1, mode="clip"),
    "filled": lambda v, i: v.at[i * 3].get(mode="fill", fill_value=7),
    "not a number": lambda v, i: v.at[:, i * 3].get(mode="fill"),
    "clipped": lambda v, i: v.at[i * 3].get(mode="clip"),
    "pairs": lambda v, i: v.at[i, i * 2].get(mode="fill", fill_value=7),
    "entries": lambda v, i: v[i, i // 2],
    "grid": lambda v, i: v[i[0][:, None], i[1] // 2],
    "each entry": lambda v, i: jax.vmap(lambda j, k: v[j, k])(i[0], i[1] // 2),
    "slice": lambda v, i: v[4:5],
    "narrow slice": lambda v, i: v[:, 3:4],
    "corner": lambda v, i: v[:3, -3:],
    "strides": lambda v, i: v[::6, 1::4],
    "dynamic": lambda v, i: jax.lax.dynamic_slice(v, (i[1, 2], i[0, 0]), (2, 4)),
    "reversed": lambda v, i: v[1:2, ::-1],
    "block": lambda v, i: v[i[0]][:, i[0]],
    "each": lambda v, i: jax.vmap(lambda k: v[k])(i[0]),
    "loop": lambda v, i: jax.lax.map(lambda k: v[k] * 2, i[0]),
}


def all_reads(v):
    return {name: fn(v, INDICES) for name, fn in READS.items()}


on_arrays = jax.jit(all_reads)


@pytest.mark.parametrize("kind", every(3, MATRICES))
def test_reads_are_those_of_arrays(kind):
    value = MATRICES[kind]()
    dense = value.materialise()
    implicit = jaxrewrite.transform(all_reads, materialise="forbid")
    results = jax.jit(lambda v: jaxrewrite.materialise(implicit(v)))(value)
    wanted = on_arrays(dense)
    for name, got in results.items():
        want = wanted[name]
        assert (got.shape, got.dtype) == (want.shape, want.dtype), name
        np.testing.assert_allclose(got, want, 1e-5, 1e-5, err_msg=name)


@pytest.mark.parametrize("kind", every(4, MATRICES, 1))
def test_gradients_of_reads_are_those_of_arrays(kind):
    value = MATRICES[kind]()

    def loss(fn, v):
        return jnp.sum(jnp.sin(jaxrewrite.materialise(fn(v, INDICES))))

    for name in ("rows", "columns", "clipped", "corner", "entries", "each entry"):
        implicit = jaxrewrite.transform(READS[name], materialise="forbid")
        dense = lambda v, fn=READS[name]: loss(fn, v.materialise())
        got, want = (
            jax.jit(jax.grad(f, allow_int=True))(value)
            for f in (lambda v, fn=implicit: loss(fn, v), dense)
        )
        for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            if g.dtype != jax.dtypes.float0:
                np.testing.assert_allclose(g, w, 1e-4, 1e-4, err_msg=name)


def sizes(jaxpr):
    for eqn in jaxpr.eqns:
        yield from (np.prod(var.aval.shape) for var in eqn.outvars)
        for inner in jex_core.jaxprs_in_params(eqn.params):
            yield from sizes(inner)


LARGE = {
    "Toeplitz": lambda n: values.Toeplitz(jnp.ones(n), jnp.ones(n)),
    "Kronecker": lambda n: values.Kronecker(jnp.ones((n // 100, n // 100)), jnp.ones((100, 100))),
    "Product": lambda n: values.Circulant(jnp.ones(n)) @ values.Diagonal(jnp.ones(n)),
    "Sum": lambda n: values.Circulant(jnp.ones(n)) + values.Diagonal(jnp.ones(n)),
}  # fmt: skip


@pytest.mark.parametrize("kind", LARGE)
def test_a_few_rows_of_a_large_matrix_cost_what_they_hold(kind):
    """Nystroem's method reads some columns, of a matrix that no memory would hold."""
    n = 100_000

    def nystroem(v, i):
        columns = v[:, i]
        return columns, columns[i]

    program = jaxrewrite.make_jaxpr(nystroem, materialise="forbid")
    jaxpr = program(LARGE[kind](n), jnp.arange(16) * 100).jaxpr
    assert max(sizes(jaxpr)) <= 2 * 16 * n


@pytest.mark.parametrize("fn", [lambda v: v[1:], lambda v: v[:, :-1], lambda v: v[::2]])
def test_a_slice_of_most_of_a_matrix_is_left_to_the_policy(fn):
    value = MATRICES["Tridiagonal"]()
    with pytest.raises(jaxrewrite.MaterialisationError):
        jaxrewrite.transform(fn, materialise="forbid")(value)


@pytest.mark.parametrize(
    "dtype", [jnp.int8, slow(jnp.uint8), slow(jnp.bool_), jnp.bfloat16]
)
def test_what_is_out_of_range_is_that_of_arrays(dtype):
    """Each dtype has its own number there."""
    value = values.Diagonal(jnp.asarray(normal(N) * 3, dtype))
    for fn in (
        lambda v: v.at[INDICES * 3].get(),
        lambda v: v.at[INDICES, INDICES * 3].get(),
    ):
        got = jaxrewrite.transform(fn, materialise="forbid")(value)
        want = fn(value.materialise())
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("kind", ["Circulant", "Kronecker of a Circulant"])
def test_indices_without_sign(kind):
    """Entries are at differences of indices, which are negative above the diagonal."""
    value = values.Circulant(normal(N))
    if kind != "Circulant":
        value = values.Kronecker(normal(2, 2), value)
    dense = value.materialise()
    pairs = jax.lax.GatherDimensionNumbers((), (0, 1), (0, 1))
    places = jnp.array([[0, 1], [3, 9], [40, 5]], jnp.uint32)
    for fn in (
        lambda v, i: jax.lax.gather(v, i, pairs, (1, 1), mode="clip"),
        lambda v, i: jax.lax.dynamic_slice(v, i[1], (2, 2)),
        lambda v, i: jax.lax.dynamic_slice(v, i[2], (1, 3)),
    ):
        got = jaxrewrite.transform(fn, materialise="forbid")(value, places)
        np.testing.assert_allclose(got, fn(dense, places), 1e-6)


@pytest.mark.parametrize("rows", [1, 5])
def test_an_index_for_each_row(rows):
    """`jax.vmap` over the rows and the indices; a matrix of one row is no other case."""
    value = values.BlockDiagonal(normal(rows, 1, 3))
    indices = jnp.arange(2 * rows).reshape(rows, 2) % 3
    program = lambda v, i: jax.vmap(lambda row, k: row[k])(v, i)  # noqa: E731
    got = jaxrewrite.transform(program, materialise="allow")(value, indices)
    np.testing.assert_array_equal(got, program(value.materialise(), indices))


def test_slices_of_no_rows_at_several_places():
    value = MATRICES["Tridiagonal"]()
    starts = jnp.array([2, 0])
    cut = lambda v: jax.vmap(lambda k: jax.lax.dynamic_slice(v, (k, 0), (0, N)))(starts)  # noqa: E731
    got = jaxrewrite.transform(cut, materialise="allow")(value)
    assert (got.shape, got.dtype) == ((2, 0, N), value.dtype)


def test_rows_of_nothing():
    value = values.Diagonal(jnp.zeros(0))
    got = jaxrewrite.transform(lambda v: v[jnp.zeros(0, int)], materialise="allow")(value)
    assert got.shape == (0, 0)
    nothing = jnp.zeros((2, 0), int)
    got = jaxrewrite.transform(lambda v: v[nothing], materialise="forbid")(
        MATRICES["Circulant"]()
    )
    assert got.shape == (2, 0, N)


class Ramp(values.Matrix):
    """``x_i`` in all of row i, whose rows are known, but not if there are none."""

    x: jax.Array

    def aval(self):
        return jax.core.ShapedArray((len(self.x), N), self.x.dtype)

    def materialise(self):
        return jnp.broadcast_to(self.x[:, None], self.shape)

    def apply(self, x, axis, precision=None):
        return jnp.tensordot(self.materialise(), x, (1, axis))

    def rows_at(self, i):
        return jnp.repeat(self.x[i.reshape(-1)], N).reshape(*i.shape, -1)


def test_inner_products_of_rows_ask_for_no_rows_of_none():
    ramp, array = Ramp(normal(N)), normal(N, N)
    halves = values.NMSparse.prune(array, 1, 2).T
    inner = lambda v: jnp.einsum("ij,ij->i", v, array)  # noqa: E731
    for v in (ramp, halves, values.Product((ramp, halves))):
        got = jaxrewrite.transform(inner, materialise="forbid")(v)
        np.testing.assert_allclose(got, inner(jaxrewrite.materialise(v)), rtol=1e-5)
    nothing = jaxrewrite.transform(lambda v: v[jnp.zeros(0, int)], materialise="forbid")
    assert nothing(halves).shape == (0, N)


def test_an_entry_of_another_row_that_is_no_number_is_not_read():
    value = values.Tridiagonal(normal(N - 1), normal(N).at[5].set(jnp.nan), normal(N - 1))
    for v in (value, value @ values.Diagonal(normal(N)), values.Kronecker(value, value)):
        rows = jaxrewrite.transform(lambda v: v[jnp.array([0, 2])], materialise="forbid")(v)
        np.testing.assert_array_equal(
            jnp.isnan(rows), jnp.isnan(v.materialise()[jnp.array([0, 2])])
        )


def test_diagonals_of_scaled_kernels():
    """The variances of a kernel between two diagonal matrices."""
    value = MATRICES["Product of three"]()
    for fn in (jnp.diagonal, jnp.trace, jnp.diag):
        got = jaxrewrite.transform(fn, materialise="forbid")(value)
        np.testing.assert_allclose(got, fn(value.materialise()), 1e-5)
    stack = values.Circulant(normal(2, N)) @ values.Diagonal(normal(2, N))
    diagonals = lambda v: jnp.diagonal(v, axis1=-2, axis2=-1)  # noqa: E731
    got = jaxrewrite.transform(diagonals, materialise="forbid")(stack)
    np.testing.assert_allclose(got, diagonals(stack.materialise()), 1e-5)


def test_ratings_are_read_from_the_factors_of_a_low_rank_matrix():
    """A model of ratings: users times items, of which few pairs are known."""
    users, items = normal(50_000, 3), normal(3, 60_000, seed=1)
    i, j = jnp.arange(100) * 499, jnp.arange(100) * 599

    def loss(v):
        return jnp.mean((v[i, j] - 1) ** 2)

    implicit = jaxrewrite.transform(loss, materialise="forbid")
    got = jax.grad(implicit)(values.LowRank(users, items))
    by_hand = lambda a, b: jnp.mean((jnp.sum(a[i] * b.T[j], -1) - 1) ** 2)
    want = jax.grad(by_hand, (0, 1))(users, items)
    np.testing.assert_allclose(got.a, want[0], atol=1e-6)
    np.testing.assert_allclose(got.b, want[1], atol=1e-6)


def test_entries_of_a_stack_of_low_rank_matrices():
    v = values.LowRank(normal(4, 6, 2), normal(4, 2, 5))
    k, i, j = jnp.array([0, 3, 3]), jnp.array([5, 0, 2]), jnp.array([1, 4, 4])
    reads = [
        lambda v: v[:, i, j],
        lambda v: v[k, i, j],
        lambda v: v[k, :, j],
        lambda v: v[k, i],
        lambda v: v[k, 1:3, j],
        lambda v: jax.vmap(lambda m, i, j: m[i, j], (0, None, 0))(v, i, jnp.arange(4)),
        lambda v: v.at[k, i * 9, j].get(mode="fill", fill_value=0),
        lambda v: v.at[k, i, j * 9].get(mode="fill"),
    ]
    for number, fn in enumerate(reads):
        got = jaxrewrite.transform(fn, materialise="forbid")(v)
        got, want = jaxrewrite.materialise(got), fn(v.materialise())
        np.testing.assert_allclose(got, want, 1e-5, 1e-5, err_msg=str(number))


def test_more_entries_of_a_product_than_it_has_are_left_to_the_policy():
    v = MATRICES["Circulant"]() @ MATRICES["Toeplitz"]()
    i = jnp.arange(2 * N) % N
    with pytest.raises(jaxrewrite.MaterialisationError, match="Product"):
        jaxrewrite.transform(lambda v: v[i, i], materialise="forbid")(v)


# Row 6 and column 5 are beyond the matrix, and what is read there is left out of the sum.
_I, _J = jnp.array([0, 3, 6, 6, 1]), jnp.array([1, 4, 0, 5, 5])
_IS_INSIDE = (_I < 6) & (_J < 5)


@pytest.mark.parametrize("fill", [None, 0, 7])
@pytest.mark.parametrize("name", ["LowRank", "Lora", "Sum"])
def test_entries_beyond_a_matrix_leave_derivatives_finite(name, fill):
    rng = np.random.default_rng(0)
    w, a, b = (jnp.asarray(rng.normal(size=s)) for s in [(6, 5), (6, 2), (2, 5)])
    v = {
        "LowRank": lambda: values.LowRank(a, b),
        "Lora": lambda: values.Lora(w, a, b, 2.0),
        "Sum": lambda: values.Sum(
            (values.LowRank(a, b), values.LowRank(2 * a[:, :1], b[:1]))
        ),
    }[name]()

    def loss(v):
        entries = v.at[_I, _J].get(mode="fill", fill_value=fill)
        return jnp.where(_IS_INSIDE, jnp.sin(entries), 0).sum()

    got = jax.value_and_grad(jaxrewrite.transform(loss, materialise="forbid"))(v)
    want = jax.value_and_grad(lambda v: loss(jaxrewrite.materialise(v)))(v)
    for x, y in zip(*map(jax.tree.leaves, (got, want)), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)


def test_rows_beyond_a_lora_weight_leave_its_derivatives_finite():
    rng = np.random.default_rng(0)
    v = values.Lora(
        *(jnp.asarray(rng.normal(size=s)) for s in [(6, 5), (6, 2), (2, 5)]), 2.0
    )

    def loss(v, fill):
        rows = jnp.take(v, _I, axis=0, mode="fill", fill_value=fill)
        return jnp.where((_I < 6)[:, None], rows, 0).sum() + rows[0].sum()

    for fill in (None, 7):
        f = functools.partial(loss, fill=fill)
        got = jax.grad(jaxrewrite.transform(f, materialise="forbid"))(v)
        want = jax.grad(lambda v, f=f: f(jaxrewrite.materialise(v)))(v)
        for x, y in zip(*map(jax.tree.leaves, (got, want)), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)


def itself_as_tangent(v):
    """The leaves of a value as its tangent; integers have none."""
    is_float = lambda x: jnp.issubdtype(x.dtype, jnp.inexact)
    none = lambda x: np.zeros(x.shape, jax.dtypes.float0)
    return jax.tree.map(lambda x: x if is_float(x) else none(x), v)


def linear(shape, seed):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


# Types whose entries are products of the entries of several leaves.
PRODUCTS = {
    "LowRank": lambda: values.LowRank(linear((6, 2), 0), linear((2, 5), 1)),
    "Lora": lambda: values.Lora(
        linear((6, 5), 0), linear((6, 2), 1), linear((2, 5), 2), 2.0
    ),
    "Scaled": lambda: values.Scaled(linear((6, 5), 0), jnp.float32(2)),
    "Scaled of low rank": lambda: values.Scaled(PRODUCTS["LowRank"](), jnp.float32(2)),
    "Sum": lambda: values.Sum((PRODUCTS["LowRank"](), linear((6, 5), 2))),
    "Product": lambda: values.Product(
        (values.Diagonal(linear(6, 0)), PRODUCTS["LowRank"]())
    ),
    "Kronecker": lambda: values.Kronecker(linear((3, 5), 0), linear((2, 1), 1)),
    "Picked": lambda: values.Picked(linear(6, 0), jnp.array([0, 1, 0, 4, 2, 3]), 5),
    "Constant": lambda: values.Constant(jnp.float32(2), (6, 5)),
}
LOOKUPS = {
    "rows": lambda v, **fill: jnp.take(v, _I, axis=0, **fill),
    "columns": lambda v, **fill: jnp.take(v, _J, axis=1, **fill),
    "entries": lambda v, **fill: v.at[_I, _J].get(mode="fill", **fill),
    "one row": lambda v, **fill: v.at[jnp.asarray(9)].get(mode="fill", **fill),
    "each row": lambda v, **fill: jax.vmap(lambda k: jnp.take(v, k, axis=0, **fill))(_I),
    "part of rows": lambda v, **fill: v.at[_I, 1:3].get(mode="fill", **fill),
}


@pytest.mark.parametrize("fill", [{}, {"fill_value": 7}], ids=["nan", "7"])
@pytest.mark.parametrize("name", every(3, PRODUCTS))
def test_derivatives_do_not_meet_what_is_filled_in(name, fill, bulk):
    """Neither forward nor backward, nor NaN that comes back to where it was filled in."""
    v = PRODUCTS[name]()
    ones = jnp.ones((6, 5))
    outside = {key: fn(ones, fill_value=0) == 0 for key, fn in LOOKUPS.items()}

    def results(of):
        found = {}
        for key, fn in LOOKUPS.items():
            entries, pull = jax.vjp(lambda v, fn=fn: of(fn)(v), v)
            weights = jnp.sin(jnp.arange(entries.size)).reshape(entries.shape)
            found[key] = (
                entries,
                jax.jvp(lambda v, fn=fn: of(fn)(v), (v,), (itself_as_tangent(v),))[1],
                *(pull(jnp.where(outside[key], x, weights)) for x in (0, jnp.nan)),
            )
        return found

    of_value = lambda fn: jaxrewrite.transform(lambda v: fn(v, **fill), materialise="allow")
    got = jax.jit(lambda: results(of_value))()
    want = jax.jit(lambda: results(lambda fn: lambda v: fn(v.materialise(), **fill)))()
    for x, y in zip(*map(jax.tree.leaves, (got, want)), strict=True):
        if x.dtype != jax.dtypes.float0:
            np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)


PROMISED = {
    "rows": lambda v, get: get(v.at[_I]),
    "columns": lambda v, get: get(v.at[:, _J]),
    "entries": lambda v, get: get(v.at[_I, _J]),
    "a slice": lambda v, get: jax.lax.dynamic_slice(v, (_I[1], _J[1]), (2, 2)),
    "each row": lambda v, get: jax.vmap(lambda k: get(v.at[k]))(_I),
}


@pytest.mark.parametrize("name", every(3, PRODUCTS, start=1))
def test_what_a_program_promises_to_be_in_range(name, bulk):
    """JAX defines results, and derivatives where what is out of range has no cotangent."""
    v = PRODUCTS[name]()
    mode = {"wrap_negative_indices": False}
    ones = jnp.ones((6, 5))
    outside = {
        key: fn(ones, lambda ref: ref.get(mode="fill", fill_value=0, **mode)) == 0
        for key, fn in PROMISED.items()
    }

    def results(of):
        found = {}
        for key, fn in PROMISED.items():
            read = of(
                lambda v, fn=fn: fn(v, lambda r: r.get(mode="promise_in_bounds", **mode))
            )
            entries, pull = jax.vjp(read, v)
            weights = jnp.sin(jnp.arange(entries.size)).reshape(entries.shape)
            along = jax.jvp(read, (v,), (itself_as_tangent(v),))[1]
            found[key] = entries, along, pull(jnp.where(outside[key], 0, weights))
        return found

    of_value = lambda fn: jaxrewrite.transform(fn, materialise="allow")
    dense = lambda fn: lambda v: jaxrewrite.materialise(of_value(fn)(v))
    got = jax.jit(lambda: results(dense))()
    want = jax.jit(lambda: results(lambda fn: lambda v: fn(v.materialise())))()
    for x, y in zip(*map(jax.tree.leaves, (got, want)), strict=True):
        if x.dtype != jax.dtypes.float0:
            np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("fill", [None, 0, 7])
@pytest.mark.parametrize("kind", ["LowRank", "Lora"])
def test_matrices_taken_from_a_stack_keep_their_factors(kind, fill):
    a, b, w = linear((3, 4, 2), 0), linear((3, 2, 5), 1), linear((3, 4, 5), 2)
    v = values.LowRank(a, b) if kind == "LowRank" else values.Lora(w, a, b, 2.0)
    index = jnp.array([2, 7, 0, 3])
    is_inside = (index < 3)[:, None, None]

    def take(v):
        return jnp.take(v, index, axis=0, fill_value=fill)

    def loss(v):
        return jnp.where(is_inside, jnp.sin(take(v)), 0).sum()

    taken = jaxrewrite.transform(take, materialise="forbid")(v)
    assert type(taken) is type(v)
    np.testing.assert_allclose(taken.materialise(), take(v.materialise()), 1e-5, 1e-5)
    got = jax.grad(jaxrewrite.transform(loss, materialise="allow"))(v)
    want = jax.grad(lambda v: loss(v.materialise()))(v)
    for x, y in zip(*map(jax.tree.leaves, (got, want)), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)


def test_one_row_of_a_matrix_of_classes():
    v = values.OneHot(jnp.array([0, 2, 1]), 4)
    got = jaxrewrite.transform(lambda v: v.at[jnp.asarray(1)].get(mode="clip"))(v)
    np.testing.assert_array_equal(jaxrewrite.materialise(got), [0, 0, 1, 0])


NOT_TURNED = ["OneHot", "Product", "Product of three", "Product of an array"]
TURNED = {
    **{name: make for name, make in MATRICES.items() if name not in NOT_TURNED},
    "Triangular held transposed": lambda: values.Triangular(normal(N, N)).transposed(),
    "stack": lambda: values.Tridiagonal(normal(2, 3), normal(2, 4), normal(2, 3, seed=1)),
    "stack of bands": lambda: values.Banded(normal(2, 3, 4), lower=0, upper=2),
    "stack of permutations": lambda: values.Permutation(jnp.array([[1, 2, 0], [0, 2, 1]])),
}


def test_rows_and_columns_in_the_opposite_order():
    """The matrix of the same kind; with one axis alone reversed it has no structure."""
    turn = lambda x: x[..., ::-1, ::-1]
    for name, make in TURNED.items():
        v = make()
        got = jaxrewrite.transform(turn, materialise="forbid")(v)
        assert type(got) is type(v), name
        dense = turn(jaxrewrite.materialise(v))
        np.testing.assert_allclose(jaxrewrite.materialise(got), dense, 1e-6, err_msg=name)
        again = jaxrewrite.transform(turn)(got)
        np.testing.assert_array_equal(
            jaxrewrite.materialise(again), jaxrewrite.materialise(v), err_msg=name
        )
    one = jaxrewrite.transform(lambda x: x[::-1], materialise="allow")
    v = MATRICES["Tridiagonal"]()
    np.testing.assert_array_equal(one(v), jaxrewrite.materialise(v)[::-1])


def test_a_rectangular_toeplitz_matrix_in_the_opposite_order_is_dense():
    v = values.Toeplitz(normal(4), normal(7))
    got = jaxrewrite.transform(lambda x: x[::-1, ::-1], materialise="allow")(v)
    np.testing.assert_array_equal(got, jaxrewrite.materialise(v)[::-1, ::-1])


def test_a_precision_matrix_keeps_its_structure_on_the_way_to_a_covariance_factor():
    """As NumPyro computes it, for a ``MultivariateNormal`` by its precision."""

    def factor(precision):
        lower = jnp.linalg.cholesky(precision[..., ::-1, ::-1])
        return jnp.swapaxes(lower[..., ::-1, ::-1], -2, -1)

    side = jnp.full(N - 1, -0.4)
    for v in (
        values.Diagonal(jnp.arange(1.0, N)),
        values.Tridiagonal(side, 1 + 0 * normal(N), side),
    ):
        got = jaxrewrite.transform(factor, materialise="forbid")(v)
        np.testing.assert_allclose(
            jaxrewrite.materialise(got), factor(jaxrewrite.materialise(v)), atol=1e-5
        )


def test_a_matrix_of_a_stack_of_one():
    v = values.LowRank(jnp.arange(3.0)[:, None], jnp.arange(4.0)[None])
    fn = lambda v, i: v[None][i]
    for indices in ([0, 0, 0], [5, -7, 0]):
        got = jaxrewrite.transform(fn, materialise="forbid")(v, jnp.array(indices))
        assert isinstance(got, values.LowRank)
        assert_same(got, fn(v.materialise(), jnp.array(indices)))


@pytest.mark.parametrize("reps", [(4, 1, 1), (2, 3, 1, 1), (1, 1)])
def test_a_matrix_that_is_repeated_along_other_axes_is_a_stack(reps):
    row = jnp.arange(3.0)
    small = jnp.arange(4.0).reshape(2, 2)
    for v in (
        values.Diagonal(row),
        values.Toeplitz(row, row),
        values.Identity(3),
        values.Kronecker(small, small),
    ):
        got = jaxrewrite.transform(lambda v: jnp.tile(v, reps), materialise="forbid")(v)
        assert isinstance(got, jaxrewrite.Value)
        assert_same(got, jnp.tile(v.materialise(), reps))

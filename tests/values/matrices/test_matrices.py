"""Programs that never make a matrix with structure dense, alone and in stacks."""

import functools
import inspect
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from choose import every
from reference import CASES

import jaxrewrite
from jaxrewrite.testing import assert_same
from jaxrewrite.values import (
    BlockDiagonal,
    Circulant,
    Diagonal,
    Identity,
    Kronecker,
    LowRank,
    Permutation,
    Product,
    ScalarMatrix,
    Scaled,
    Sum,
    Symmetric,
    Tagged,
    Toeplitz,
    Tridiagonal,
    Zero,
    strict_zeros,
)
from jaxrewrite.values._matrices import algebra, entry_products
from jaxrewrite.values._matrices.algebra import LinearAlgebra
from jaxrewrite.values._matrices.matrix import Matrix


def value(name, seed=0):
    return CASES[name].value(np.random.default_rng(seed), "float32", (4, 4))


NAMES = [name for name, case in CASES.items() if issubclass(case.type(), Matrix)]
names = pytest.mark.parametrize(
    "name",
    every(4, NAMES, 2),
)
X = jnp.arange(8.0).reshape(4, 2) / 4
SQUARE = jnp.arange(16.0).reshape(4, 4) / 16 - 0.3

# Programs that keep every one of them implicit.
KEPT = {
    "transpose": lambda v: v.T,
    "mT": lambda v: v.mT,
    "product": lambda v: v @ X,
    "product with a vector": lambda v: v @ X[:, 0],
    "product from the left": lambda v: X.T @ v,
    "product of the transpose": lambda v: v.T @ X,
    "product with more axes": lambda v: jnp.einsum("abj,ji->abi", jnp.stack([X.T] * 3), v),
    "product along a middle axis": lambda v: jnp.einsum(
        "ij,ajb->aib", v, jnp.stack([X] * 3)
    ),
    "neg": lambda v: -v,
    "times a number": lambda v: 2 * v,
    "divided by a number": lambda v: v / 2,
    "times a column": lambda v: v * X[:, :1],
    "times a row": lambda v: v * X[:, 0],
    "sum of two": lambda v: v + v.T,
    "difference of two": lambda v: v - 2 * v,
    "product of two": lambda v: v @ v.T,
    "power": lambda v: v @ v @ v,
    "sum of columns": lambda v: v.sum(1),
    "sum of rows": lambda v: v.sum(0),
    "sum": lambda v: v.sum(),
    "mean": lambda v: v.mean(axis=0),
    "inner product with an array": lambda v: jnp.einsum("ij,ij->", v, SQUARE),
    "inner product from the left": lambda v: jnp.einsum("ij,ji->", SQUARE, v),
    "squares": lambda v: jnp.einsum("ij,ij->", v, v),
    "sums of squares of columns": lambda v: jnp.einsum("ij,ij->j", v, v),
    "inner products": lambda v: jax.vmap(lambda x: jnp.einsum("ij,ij->", v, x))(
        jnp.stack([SQUARE, -SQUARE.T])
    ),
    "diagonal of a product": lambda v: jnp.einsum("ij,ji->i", SQUARE, v),
    "diagonal of a product of two": lambda v: jnp.diagonal(v @ v.T),
    "trace of a power": lambda v: jnp.trace(v @ v @ v),
    "gradient of an inner product": lambda v: jax.grad(
        lambda x: jnp.sin(jnp.einsum("ij,ij->", v, x))
    )(SQUARE),
    "gradient of a diagonal": lambda v: jax.grad(
        lambda x: jnp.sin(jnp.einsum("ij,ij->j", v, x)).sum()
    )(SQUARE),
    "cast": lambda v: v.astype(jnp.bfloat16).astype(jnp.float32),
    "stack": lambda v: jnp.stack([v, 2 * v / 2])[1] @ X,
    "stack times an array": lambda v: jnp.stack([v, v]) @ X,
    "batched product": lambda v: jnp.stack([v, v]) @ jnp.stack([X, 2 * X]),
    "vmap": lambda v: jax.vmap(lambda x: v @ x, 1, 1)(X),
    "loop": lambda v: jax.lax.fori_loop(0, 3, lambda _, x: v @ x, X),
    "iteration of it": lambda v: jax.lax.scan(lambda c, _: (c, c @ X), v, None, 2)[1],
    "gradient": lambda v: jax.grad(lambda x: jnp.sin(v @ x).sum())(X),
    "checkpoint": lambda v: jax.checkpoint(lambda v: jnp.sin(v @ X))(v),
    "conditional": lambda v: jax.lax.cond(X[0, 1] > 0, lambda: v, lambda: 2 * v / 2) @ X,
}

# What a type cannot keep implicit, with the reason.
EXCEPT = {
    ("identity", "stack"): "twice it is a diagonal matrix, which is of another type",
    ("identity", "conditional"): "twice it is a diagonal matrix",
    ("permutation", "stack"): "twice it is a product",
    ("permutation", "conditional"): "twice it is a product",
}


@jax.jit
def kept(dense):
    return {key: fn(dense) for key, fn in KEPT.items()}


def test_singular_vectors_of_a_multiple_of_one_that_is_zero():
    svd = jaxrewrite.transform(jnp.linalg.svd, materialise="forbid")
    u, sizes, vt = map(jaxrewrite.materialise, svd(ScalarMatrix(jnp.float32(0), 3)))
    for unitary in (u, vt):
        assert_same(unitary @ unitary.T, jnp.eye(3))
    assert_same(sizes, jnp.zeros(3))


def test_a_matrix_may_have_no_rows():
    v = ScalarMatrix(jnp.float32(2), 0)
    got = jaxrewrite.transform(lambda v, x: v @ x, materialise="forbid")(
        v, jnp.ones((0, 3))
    )
    assert v.shape == (0, 0) and got.shape == (0, 3)
    with pytest.raises(ValueError, match="rows is -1, which is negative"):
        ScalarMatrix(jnp.float32(2), -1)


@pytest.mark.parametrize("equation", ["ij,ij->", "ij,ji->i"])
def test_inner_products_of_nothing(equation):
    none = Permutation(jnp.zeros(0, int))
    v, w = Product((none, Diagonal(jnp.zeros(0)))), jnp.zeros((0, 0))
    product = functools.partial(jnp.einsum, equation)
    for args in ((v, w), (w, v), (v, v), (none, v)):
        got = jaxrewrite.transform(product)(*args)
        assert_same(jaxrewrite.materialise(got), product(*jaxrewrite.materialise(args)))


def test_a_sum_without_entries_is_multiplied_as_a_vector():
    """The number is larger than the sums, but they are no matrices whose product could be kept."""
    v = Sum((Tagged(jnp.ones(0), {"leaf"}), jnp.ones(0)))
    got = jaxrewrite.transform(lambda v: v @ v, materialise="allow")(v)
    assert_same(jaxrewrite.materialise(got), jnp.zeros(()))


@pytest.mark.parametrize("name", every(8, NAMES))
def test_stays_implicit(name, bulk):
    v = value(name)
    fns = {key: fn for key, fn in KEPT.items() if (name, key) not in EXCEPT}
    implicit = jaxrewrite.transform(
        lambda v: {k: fn(v) for k, fn in fns.items()}, materialise="forbid"
    )
    got = jax.jit(lambda v: jaxrewrite.materialise(implicit(v)))(v)
    dense = jaxrewrite.materialise(v)
    want = {k: x for k, x in kept(dense).items() if k in fns}
    assert_same(got.pop("cast"), want.pop("cast"), 2e-2)
    assert_same(got, want, 2e-4)


def some_entries(v, i):
    return v[1], v[:, 2], v[3, 0], v[i], v[i, i], v[1, 1:3], jnp.diagonal(v)


@names
def test_single_rows_and_entries(name, bulk):
    """Single rows and entries of the types that know their entries."""
    v = value(name)
    if type(v).entries_at is Matrix.entries_at:
        pytest.skip("it knows no single entries")
    got = jax.jit(jaxrewrite.transform(some_entries, materialise="forbid"))(v, 2)
    assert_same(got, jax.jit(some_entries)(jaxrewrite.materialise(v), 2), 1e-6)


@jax.custom_jvp
def straight_through(x):
    return jnp.round(8 * x) / 8


straight_through.defjvp(lambda xs, ts: (straight_through(*xs), 3 * ts[0]))


@names
def test_custom_rules_keep_entries(name, bulk):
    """The result of a custom rule is a value, and its derivative that of the rule.

    What the rule gives as a tangent is an array, whatever the result is.
    """
    v = value(name)
    if v.entries is None or name == "identity":
        pytest.skip("its leaves are no entries")
    loss = lambda v, x: jnp.sin(straight_through(v) @ x).sum()
    jaxrewrite.make_jaxpr(loss, materialise="forbid")(v, X)
    slope = lambda fn: jax.jit(jax.grad(fn, allow_int=True))(v, X)
    got = slope(jaxrewrite.transform(loss, materialise="allow"))
    want = slope(lambda v, x: loss(jaxrewrite.materialise(v), x))
    assert_same(jax.tree.leaves(got), jax.tree.leaves(want), 1e-5)


# --- stacks -----------------------------------------------------------------------------


def stack_of(name):
    """Three matrices as one value with a batch axis."""
    each = [value(name, seed) for seed in range(3)]
    if len({jax.tree.structure(v) for v in each}) > 1:
        pytest.skip("its structure depends on the numbers")
    leaves = jax.tree.map(lambda *xs: jnp.stack(xs), *each)
    dense = jnp.stack([jaxrewrite.materialise(v) for v in each])
    return leaves, dense


STACKS = {
    "product": lambda v, x: v @ x,
    "matched product": lambda v, x: jnp.einsum(
        "bij,bjk->bik", v, jnp.stack([x, x + 1, -x])
    ),
    "from the left": lambda v, x: jnp.einsum("bkj,bji->bki", jnp.stack([x.T] * 3), v),
    "batch last": lambda v, x: jnp.einsum("bij,jk->ikb", v, x),
    "summed over the batch": lambda v, x: jnp.einsum("bij,bjk->ik", v, jnp.stack([x] * 3)),
    "inner products": lambda v, x: jnp.einsum("bij,bij->b", v, jnp.stack([SQUARE] * 3)),
    "inner products with one": lambda v, x: jnp.einsum("bij,ji->b", v, SQUARE),
    "sum of squares": lambda v, x: jnp.einsum("bij,bij->", v, v),
    "diagonals of products": lambda v, x: jnp.einsum("bij,bji->ib", v, v),
    "diagonals of squares": lambda v, x: jnp.diagonal(v @ v, axis1=-2, axis2=-1),
    "transpose": lambda v, x: v.mT @ x,
    "one of them": lambda v, x: v[1] @ x,
    "some of them": lambda v, x: v[::2] @ x,
    "more axes": lambda v, x: v[None].reshape(3, 1, 4, 4) @ x,
    "reversed": lambda v, x: v[::-1] @ x,
    "sum of rows": lambda v, x: v.sum(1),
    "scan": lambda v, x: jax.lax.scan(lambda c, w: (w @ c, c[0]), x, v),
    "concatenate": lambda v, x: jnp.concatenate([v, v]) @ x,
}


def of_stacks(v, x):
    return {key: fn(v, x) for key, fn in STACKS.items()}


@pytest.mark.parametrize("name", every(8, NAMES, 1))
def test_stacks(name, bulk):
    v, dense = stack_of(name)
    assert v.shape == (3, 4, 4)
    assert_same(jaxrewrite.materialise(v), dense, 1e-5)
    implicit = jaxrewrite.transform(of_stacks, materialise="forbid")
    got = jax.jit(lambda v, x: jaxrewrite.materialise(implicit(v, x)))(v, X)
    assert_same(got, jax.jit(of_stacks)(dense, X), 2e-4)


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize(
    ("second", "want"),
    [
        (Identity(4), Diagonal),
        (Diagonal(jnp.arange(1.0, 5.0)), Diagonal),
        (Tridiagonal(jnp.ones(3), jnp.arange(4.0), jnp.ones(3)), Tridiagonal),
        (Circulant(jnp.arange(4.0)), None),
    ],
    ids=["identity", "alike", "bands", "no join"],
)
def test_one_truth_value_chooses_a_matrix(second, want, is_first):
    first = Diagonal(jnp.arange(4.0))
    choose = functools.partial(jaxrewrite.transform, jnp.where)
    if want is None:
        with pytest.raises(jaxrewrite.MaterialisationError, match="'select_n'"):
            choose(materialise="forbid")(is_first, first, second)
    got = choose(materialise="forbid" if want else "allow")(is_first, first, second)
    assert isinstance(got, want or jax.Array)
    chosen = first if is_first else second
    assert_same(jaxrewrite.materialise(got), jaxrewrite.materialise(chosen))


@pytest.mark.parametrize(
    "name", every(4, ["toeplitz", "kronecker", "product", "symmetric"])
)
def test_inner_products_of_large_matrices_are_summed_by_rows(name, bulk, monkeypatch):
    monkeypatch.setattr(entry_products, "_BLOCK", 8)
    make = CASES[name].value
    v, w = (make(np.random.default_rng(i), "float32", (6, 6)) for i in range(2))

    def fn(v, w):
        twisted = v @ w.T @ v
        return (
            jnp.einsum("ij,ji->i", twisted, w),
            jnp.trace(twisted),
            jnp.einsum("ij,ij->", v, w),
        )

    def loss(fn, v):
        return sum(jnp.sin(x).sum() for x in fn(v, w))

    implicit = jaxrewrite.transform(fn, materialise="forbid")
    got = jax.jit(implicit)(v, w)
    assert_same(got, jax.jit(fn)(*jaxrewrite.materialise((v, w))), 1e-4)
    dense = lambda v, w: fn(*jaxrewrite.materialise((v, w)))
    slope, want = (
        jax.jit(jax.grad(functools.partial(loss, f)))(v) for f in (implicit, dense)
    )
    assert_same(jax.tree.leaves(slope), jax.tree.leaves(want), 1e-3)


# --- closed forms -------------------------------------------------------------------------


def test_closed_forms():
    d, e = Diagonal(jnp.arange(1.0, 5)), Diagonal(jnp.ones(4))
    eye = Identity(4)
    assert isinstance(d @ e, Diagonal) and isinstance(d + e, Diagonal)
    assert isinstance(d * (jnp.ones((4, 4)) + 1), Diagonal)
    assert (eye @ d) is not None and isinstance(eye @ d, Diagonal)
    assert isinstance(eye @ eye, Identity) and isinstance(eye + eye, ScalarMatrix)
    assert isinstance(jaxrewrite.numpy.sqrt(d), Diagonal)
    assert isinstance(d + Zero((4, 4)), Diagonal)
    assert isinstance(d @ Zero((4, 4)), Zero)
    assert isinstance(Scaled(d, jnp.float32(2)) @ e, Scaled)
    assert isinstance(Scaled(d, jnp.float32(2)) @ jnp.ones(4), jax.Array)
    nested = Sum((d, jnp.ones((4, 4)))) + Sum((e, jnp.ones((4, 4))))
    assert [type(term).__name__ for term in nested.terms] == ["Diagonal", "ArrayImpl"]
    assert isinstance(Product((jnp.ones((4, 2)), jnp.ones((2, 4)))) @ d, Product)


@names
def test_a_stack_times_one_matrix(name, bulk):
    v = jaxrewrite.numpy.stack([value(name), value(name, 1)])
    for w in (Diagonal(X[:, 0]), Circulant(X[:, 1]), LowRank(X, X.T)):
        fn = lambda v, w: (v @ w, v.mT @ w.T)
        got = jaxrewrite.transform(fn, materialise="forbid")(v, w)
        assert all(isinstance(x, jaxrewrite.Value) for x in got)
        assert_same(got, fn(*jaxrewrite.materialise((v, w))), 1e-4)


QUOTIENTS = {
    "array": (lambda v, c: (v / c) @ jnp.full((4, 2), 2, v.dtype), 2e4, 1000, "float16"),
    "matrix": (lambda v, c: (v / c) @ (v / c), 3000, 1000, "float16"),
    "chain": (lambda v, c: v / c / c * c, 2e-3, 2e-3, "float16"),
    "products": (lambda v, c: v / c * c / c * c, 2000, 2000, "float16"),
    "strict": (lambda v, c: (v * c) @ (v * c), 1e-4, 1e4, "float16"),
    "norm": (lambda v, c: jnp.linalg.norm(v / c), 1e-4, 1e-4, "float16"),
    "square": (lambda v, c: jnp.square(v / c), 3e-3, 3e-3, "float16"),
    "power": (lambda v, c: (v / c) ** 3, 100, 100, "float16"),
    "slope": (jax.grad(lambda v, c: (v / c).trace(), 1), 3e-3, 3e-3, "float16"),
    "zero": (lambda v, c: v / c, 1, -0.0, "float32"),
    "NaN": (lambda v, c: (v / c, jnp.abs(v / c)), 1, np.nan, "float32"),
    "infinite": (lambda v, c: v / c, 1, np.inf, "float32"),
}


@pytest.mark.parametrize("name", QUOTIENTS)
def test_a_number_acts_on_the_entries_before_they_meet_others(name, bulk):
    fn, entry, number, dtype = QUOTIENTS[name]
    blocks = jnp.full((2, 2, 2), entry, dtype)
    rules = strict_zeros if name == "strict" else None
    for v in (
        BlockDiagonal(blocks),
        Kronecker(blocks[0], jnp.eye(2, dtype=dtype)),
        Sum((BlockDiagonal(blocks), Circulant(jnp.full(4, entry, dtype)))),
    ):
        implicit = jaxrewrite.transform(fn, rules=rules, materialise="allow")
        operands = v, jnp.asarray(number, dtype)
        got = jaxrewrite.materialise(implicit(*operands))
        assert_same(got, fn(*jaxrewrite.materialise(operands)), 1e-2)


def test_scaled_rows_and_columns_have_no_nan_of_an_infinite_entry(bulk):
    """A dense diagonal would multiply it by zeros."""
    x = np.arange(1.0, 10).reshape(3, 3) + np.arange(1.0, 10).reshape(3, 3).T
    x[0, 2] = x[2, 0] = np.inf
    scale = np.array([1, np.inf, 3])
    for v in (Symmetric(jnp.asarray(x)), Toeplitz(jnp.asarray(x[0]), jnp.asarray(x[0]))):
        fn = jaxrewrite.transform(lambda v, s: (v * s, s[:, None] * v, v * s * s[:, None]))
        found = jaxrewrite.materialise(fn(v, jnp.asarray(scale)))
        dense = np.asarray(v.materialise())
        wanted = dense * scale, dense * scale[:, None], dense * scale * scale[:, None]
        for got, want in zip(found, wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-6)


SHAPES = [(3, 5), (5, 3), (4, 4), (7, 2), (5, 1), (1, 5)]


@pytest.mark.parametrize(
    ("dtype", "shape"),
    every(5, itertools.product(["float32", "float16", "complex64", "int8"], SHAPES)),
)
def test_sums_of_a_toeplitz_matrix_see_their_own_entries_alone(shape, dtype, bulk):
    n, m = shape
    numbers = np.random.default_rng(0).integers(-5, 5, (2, n + m - 1)).astype(dtype)
    if np.issubdtype(dtype, np.inexact):
        numbers[0, 1], numbers[1, -1] = np.nan, np.inf
    v = Toeplitz.of_diagonals(jnp.asarray(numbers), n)
    fn = lambda v: (v.sum(1), v.sum(2), v.sum((1, 2)), v.sum(0))
    found = jaxrewrite.transform(fn, materialise="forbid")(v)
    for got, want in zip(found, fn(v.materialise()), strict=True):
        np.testing.assert_array_equal(jaxrewrite.materialise(got), want)
        assert got.dtype == want.dtype


def test_one_row():
    """The transpose of a product differs, and XLA transforms no layout of solutions."""

    def solve(v, x):
        return v @ (x - jnp.linalg.solve(x @ x.T @ v, x)) + jnp.linalg.solve(v, x)

    v, x = Circulant(jnp.array([2.0])), jnp.array([[1.0, 2.0]])
    y = jax.jit(jaxrewrite.transform(solve, materialise="forbid"))(v, x)
    np.testing.assert_allclose(y, 2.3 * x, rtol=1e-6)
    np.testing.assert_allclose(v.eigenvalues(), [2.0])


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Diagonal(jnp.float32(1)), "Diagonal: d"),
        (lambda: Identity(-1), "Identity: rows"),
        (lambda: Zero((2, -1)), "Zero: of_shape"),
        (lambda: Scaled(jnp.ones(2), jnp.ones(2)), "Scaled: scale"),
        (lambda: Scaled(jnp.ones(2), jnp.float16(2)), "Scaled: scale"),
        (lambda: Sum(()), "Sum: terms"),
        (lambda: Sum((jnp.ones(2), jnp.ones(3))), "Sum: terms"),
        (lambda: Product((jnp.ones((2, 3)), jnp.ones((2, 3)))), "Product: factors"),
        (lambda: Product((jnp.ones((2, 2)), jnp.ones((2, 2), int))), "Product: factors"),
    ],
)
def test_bad_input(make, said):
    with pytest.raises(ValueError, match=said):
        make()


@pytest.mark.parametrize(
    "first", ["diagonal", "permutation", "symmetric", "kronecker", "sum"]
)
def test_a_product_of_two_in_float64(first):
    """float64 equals ``None`` in NumPy, and is another dtype than that of the operands."""
    wide = lambda v, w: jnp.matmul(v, w, preferred_element_type="float64")
    chain = lambda v, w: jnp.linalg.multi_dot([v, w, jnp.ones((4, 1), "float64")])
    with jax.enable_x64(True):
        v = (
            Sum((value("permutation"), value("kronecker")))
            if first == "sum"
            else value(first)
        )
        for w in (value("diagonal", 1), value("low_rank", 1), v):
            for fn in (wide, chain):
                want = fn(v.materialise(), w.materialise())
                got = jax.jit(jaxrewrite.transform(fn, materialise="allow"))(v, w)
                got = jaxrewrite.materialise(got)
                assert got.dtype == want.dtype == "float64"
                np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


# --- a type whose transpose has no form of its own ----------------------------------------------


class Sums(Matrix):
    """``tril(ones) @ diag(d)``, of which products alone are known."""

    d: jax.Array

    def aval(self):
        return jax.core.ShapedArray((*self.d.shape, self.d.shape[-1]), self.d.dtype)

    def materialise(self):
        n = self.d.shape[-1]
        return jnp.tril(jnp.ones((n, n), self.d.dtype)) * self.d[..., None, :]

    def apply(self, x, axis, precision=None):
        ones = [1] * (x.ndim - self.d.ndim)
        d = self.d.reshape(*self.batch, *ones, self.d.shape[-1])
        return jnp.cumsum(jnp.moveaxis(jnp.moveaxis(x, axis, -1) * d, -1, axis), axis)


class SumsAsSaid(Sums):
    def transposed(self):
        return NotImplemented


_ONES = jnp.arange(1.0, 4.0)
WITH_THE_TRANSPOSE = {
    "from the left": lambda v: _ONES @ v,
    "of an array": lambda v: jnp.ones((2, 3)) @ v,
    "transposed": lambda v: v.T @ _ONES,
    "twice transposed": lambda v: v.T.T,
    "columns": lambda v: v * _ONES,
    "sums": lambda v: v.sum(0),
    "product with its transpose": lambda v: v.T @ v,
    "gradient": lambda v: jax.grad(lambda x: ((v @ x) ** 2).sum())(_ONES),
}


@pytest.mark.parametrize("cls", [Sums, SumsAsSaid])
@pytest.mark.parametrize("name", WITH_THE_TRANSPOSE)
def test_no_type_has_to_know_its_transpose(cls, name):
    fn = WITH_THE_TRANSPOSE[name]
    v = cls(jnp.array([2.0, 3.0, 5.0]))
    got = jaxrewrite.transform(fn, materialise="forbid")(v)
    np.testing.assert_allclose(jaxrewrite.materialise(got), fn(v.materialise()), rtol=1e-6)


def test_a_derived_transpose_of_integers_is_multiplied_dense():
    """JAX transposes no product of integers."""

    class Multiplied(Sums):
        def apply(self, x, axis, precision=None):
            product = jnp.tensordot(self.materialise(), x, (1, axis))
            return jnp.moveaxis(product, 0, axis)

    v = Multiplied(jnp.array([2, 3, 5]))
    got = jaxrewrite.transform(lambda v: v.T @ jnp.arange(1, 4), materialise="allow")(v)
    np.testing.assert_array_equal(got, [12, 15, 15])


class Sided(Sums):
    """Its methods use what arrays have and values have not."""

    def apply(self, x, axis, precision=None):
        return super().apply(x, axis) + 0 * self.d.sum()

    def entries_at(self, i, j):
        return jnp.where(i >= j, self.d.at[j].get(), 0)


@pytest.mark.parametrize(
    "field", [Zero((3,)), Scaled(_ONES, jnp.float32(2)), Tagged(_ONES, "a")]
)
def test_methods_of_a_derived_transpose_see_fields_as_arrays(field):
    v, dense = Sided(field), Sums(field).materialise()
    i = jnp.array([2, 0])

    def program(v):
        gradient = jax.grad(lambda x: jnp.sin(v.T @ x).sum())(_ONES)
        whole = v.T.astype("bfloat16") @ _ONES.astype("bfloat16")
        return v.T @ _ONES, _ONES @ v, v.T[i], v.T[:, i], gradient, whole.astype("int32")

    got = jaxrewrite.transform(program, materialise="allow")(v)
    want = program(jaxrewrite.materialise(dense))
    assert_same(jaxrewrite.materialise(got), want, 1e-6)


def test_all_methods_that_return_arrays_or_matrices_see_fields_as_arrays():
    names = {
        name
        for cls in (LinearAlgebra, Matrix)
        for name, member in vars(cls).items()
        if inspect.isfunction(member) and not name.startswith("_")
    }
    of_values = {name for name in names if hasattr(jaxrewrite.Value, name)}
    # These two return booleans, and the others call methods that are among them.
    others = {"is_triangular", "same_pattern", "hermitian_part", "inverse", "slogdet"}
    others |= {"determinant", "eigenvalues", "eigh", "cholesky"}
    assert names - of_values - others == algebra.METHODS


class Solvable(Sided):
    def solve(self, b, axis):
        steps = jnp.diff(jnp.moveaxis(b, axis, -1), prepend=0)
        return jnp.moveaxis(steps / self.d.at[:].get(), -1, axis)

    def known_inverse(self):
        steps = jnp.eye(3) - jnp.eye(3, k=-1)
        return Product((Diagonal(1 / self.d.at[:].get()), steps))


_SOLVED = jnp.linalg.solve
IN_RULES = {
    "solved": lambda v: _SOLVED(v.T, _ONES),
    "inverse": lambda v: jnp.linalg.inv(v.T) @ _ONES,
    "factors": lambda v: jax.scipy.linalg.lu_solve(
        jax.scipy.linalg.lu_factor(v), _ONES, trans=1
    ),
    "sums of columns": lambda v: v.T.sum(0),
    "inner product": lambda v: jnp.einsum("ij,ji->", v, v.T),
    "multiple": lambda v: _SOLVED(3 * v.T, (v.T + v) @ _ONES),
    "Kronecker product": lambda v: jnp.linalg.inv(jnp.kron(v.T, jnp.eye(2)))[:, 1],
    "triangle": lambda v: jnp.triu(v.T, 1) @ _ONES,
    "entries of a product": lambda v: (v.T @ v)[jnp.array([2, 0]), jnp.array([1, 0])],
}


@pytest.mark.parametrize("name", IN_RULES)
def test_rules_call_methods_of_values_in_fields_whose_fields_are_arrays(name):
    fn, v = IN_RULES[name], Solvable(Scaled(_ONES, jnp.float32(2)))
    got = jaxrewrite.transform(fn, materialise="allow")(v)
    assert_same(jaxrewrite.materialise(got), fn(Sums(2 * _ONES).materialise()), 1e-5)


def test_methods_that_users_call_see_fields_as_rules_do():
    v = Solvable(Scaled(_ONES, jnp.float32(2)))
    dense = Sums(2 * _ONES).materialise()
    for x, y in ((v, dense), (Scaled(v, jnp.float32(3)), 3 * dense)):
        assert_same(jaxrewrite.materialise(x.inverse()), jnp.linalg.inv(y), 1e-5)


class Handing(Sums):
    """Its methods give back matrices with values in their fields."""

    solvable = True

    def transposed(self):
        return Solvable(Scaled(self.d, jnp.float32(1))).T

    def times_number(self, factor):
        return Handing(Scaled(self.d, factor))

    def solve(self, b, axis):
        return Solvable(Scaled(self.d, jnp.float32(1))).solve(b, axis)


HANDED = {
    "solved": lambda v: _SOLVED(v, _ONES),
    "solved in a product": lambda v: _SOLVED(v @ Circulant(_ONES), _ONES),
    "product with its transpose": lambda v: (v.T @ v)[1],
    "multiple": lambda v: _SOLVED(3 * v.T, v.T.sum(0)),
}


def test_a_power_of_a_matrix_around_zeros_is_zero():
    """Each factor gives zeros that are a value, and the next one is given an array."""
    fn = lambda v: jnp.linalg.matrix_power(v.T, 3)
    got = jaxrewrite.transform(fn, materialise="allow")(Sums(Zero((3,))))
    assert_same(jaxrewrite.materialise(got), jnp.zeros((3, 3)), 0)


@pytest.mark.parametrize("name", HANDED)
def test_values_in_fields_of_what_a_method_returns_are_arrays_to_the_next(name):
    fn, v = HANDED[name], Handing(_ONES)
    got = jaxrewrite.transform(fn, materialise="allow")(v)
    assert_same(jaxrewrite.materialise(got), fn(v.materialise()), 1e-5)


_TWO = jnp.float32(2)
WITH_VALUES_INSIDE = {
    "low rank": lambda: LowRank(Scaled(jnp.ones((3, 1)), _TWO), _ONES[None]),
    "diagonal": lambda: Diagonal(Scaled(_ONES, _TWO)),
    "transpose": lambda: jaxrewrite.numpy.transpose(Sums(Scaled(_ONES, _TWO))),
}


@pytest.mark.parametrize("name", WITH_VALUES_INSIDE)
def test_products_of_factors_with_values_in_their_fields_stay_implicit(name):
    factor = WITH_VALUES_INSIDE[name]()
    dense = jaxrewrite.materialise(factor)
    circulant = Circulant(_ONES)
    for v, of in (
        (Product((circulant, factor)), jnp.matmul),
        (Kronecker(circulant, factor), jnp.kron),
    ):
        w = of(circulant.materialise(), dense)
        x = jnp.arange(1.0, 1 + w.shape[1])
        got = jaxrewrite.transform(lambda v, x: v @ x, materialise="forbid")(v, x)
        assert_same(got, w @ x, 1e-5)


def test_a_derived_transpose_of_a_stack_and_its_transpose():
    v = Sums(jnp.array([[2.0, 3.0, 5.0], [7.0, 1.0, 4.0]]))
    transpose = jaxrewrite.numpy.matrix_transpose(v)
    x = jnp.arange(12.0).reshape(2, 3, 2)
    want = v.materialise().mT
    np.testing.assert_allclose(transpose @ x, want @ x, rtol=1e-6)
    assert type(jaxrewrite.numpy.matrix_transpose(transpose)) is Sums
    whole = jax.tree.map(lambda x: x.astype(int), v)
    np.testing.assert_array_equal(
        jaxrewrite.numpy.matrix_transpose(whole) @ x.astype(int), want @ x
    )


class Uncast(Sums):
    """It may not be rounded leaf by leaf, and says so."""

    def cast(self, dtype):
        return NotImplemented


@pytest.mark.parametrize(
    "fn",
    [
        lambda v: v.astype("bfloat16"),
        lambda v: v.T.astype("bfloat16"),
        lambda v: v @ (_ONES * 1j),
        lambda v: v.T @ (_ONES * 1j),
    ],
    ids=["cast", "cast of the transpose", "complex product", "transposed complex product"],
)
def test_a_matrix_without_a_cast_becomes_dense(fn):
    v = Uncast(jnp.array([2.0, 3.0, 5.0]))
    with pytest.raises(jaxrewrite.MaterialisationError, match="Uncast|_Transposed"):
        jaxrewrite.transform(fn, materialise="forbid")(v)
    got = jaxrewrite.transform(fn, materialise="allow")(v)
    np.testing.assert_allclose(got, fn(v.materialise()), rtol=1e-6)

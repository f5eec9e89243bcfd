"""The methods of linear algebra, which every matrix has, against NumPy's functions."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from choose import every
from jax import lax
from reference import CASES

import jaxrewrite
from jaxrewrite import values
from jaxrewrite.testing import assert_same
from jaxrewrite.values import (
    BlockDiagonal,
    Circulant,
    Diagonal,
    LowRank,
    Product,
    Scaled,
    Sum,
)


RNG = np.random.default_rng(0)


def dense(*shape):
    return jnp.asarray(RNG.normal(size=shape), jnp.float32)


A, B = dense(4, 2), dense(2, 4)

# Besides the cases of the suite, each of which is well enough conditioned or singular.
MATRICES = {
    "sum of three": Sum((Diagonal(3 + dense(4) / 9), LowRank(A, B), dense(4, 4) / 9)),
    "product": Product((Diagonal(2 + dense(4) / 9), Circulant(dense(4)), dense(4, 4))),
    "product through fewer": Product((Diagonal(2 + dense(4) / 9), A, B)),
    "scaled": Scaled(Diagonal(3 + dense(4) / 9), jnp.float32(-0.5)),
    "scaled array": Scaled(dense(4, 4), jnp.float32(-0.5)),
    "scaled sum": Scaled(Sum((Diagonal(3 + dense(4) / 9), dense(4, 4))), jnp.float32(2)),
    "low rank": LowRank(A, B),
    "low rank transposed": LowRank(A, B).T,
    "low rank stack": LowRank(dense(3, 4, 2), dense(3, 2, 4)),
    "sum stack": Sum((Diagonal(3 + dense(3, 4) / 9), dense(3, 4, 4) / 9)),
    "product stack": Product((Diagonal(3 + dense(3, 4) / 9), dense(3, 4, 4))),
    "scaled stack": jax.vmap(Scaled)(Diagonal(3 + dense(3, 4) / 9), 1 + dense(3) / 9),
    "complex": Scaled(Product((dense(4, 4) + 1j * dense(4, 4), dense(4, 4) * 1j)), 1 + 1j),
}
MATRICES["complex"] = Scaled(MATRICES["complex"].x, jnp.complex64(1 + 1j))

for name in (
    "triangular",
    "toeplitz",
    "banded",
    "symmetric",
    "kronecker_square",
    "one_hot",
):
    MATRICES[name] = CASES[name].value(RNG, "float32", (4, 4))


def wide(x):
    x = np.asarray(jaxrewrite.materialise(x))
    return x.astype(np.complex128 if np.iscomplexobj(x) else np.float64)


def close(got, want):
    assert_same(wide(got), wide(want), 1e-3)


def everything(v, b):
    """What each of the methods gives, made dense."""
    along = len(v.shape) - 2
    return jaxrewrite.materialise(
        {
            "diagonal": v.diagonal(),
            "trace": v.trace(),
            "determinant": v.determinant(),
            "slogdet": v.slogdet(),
            "eigenvalues": v.eigenvalues(),
            "eigh": v.eigh(),
            "cholesky": v.cholesky(),
            "inverse": v.inverse(),
            "solve": v.solve(b, along),
            "solve along the last": v.solve(jnp.swapaxes(b, -1, -2), along + 1),
        }
    )


@pytest.mark.filterwarnings("ignore::jaxrewrite.MaterialisationWarning")
@pytest.mark.parametrize(
    "name",
    every(6, MATRICES),
)
def test_methods_are_those_of_numpy(name, bulk):
    v = MATRICES[name]
    a, b = wide(v), RNG.normal(size=(*v.shape[:-1], 2)).astype(np.float32)
    got = jax.jit(everything)(v, b)
    close(got["diagonal"], np.diagonal(a, axis1=-2, axis2=-1))
    close(got["trace"], np.trace(a, axis1=-2, axis2=-1))
    close(got["determinant"], np.linalg.det(a))
    close(got["slogdet"][0] * np.exp(got["slogdet"][1]), np.linalg.det(a))
    # Eigenvalues of a defective matrix are known to the root of the rounding only.
    of_found = [np.poly(x) for x in wide(got["eigenvalues"]).reshape(-1, 4)]
    of_matrix = [np.poly(x) for x in a.reshape(-1, 4, 4)]
    np.testing.assert_allclose(of_found, of_matrix, rtol=5e-3, atol=5e-3)
    lower = np.tril(a)
    hermitian = lower + np.conj(np.swapaxes(np.tril(a, -1), -1, -2))
    if not np.iscomplexobj(a):
        numbers, vectors = map(wide, got["eigh"])
        close(numbers, np.linalg.eigvalsh(hermitian))
        close(vectors * numbers[..., None, :], hermitian @ vectors)
        if np.linalg.eigvalsh(hermitian).min() > 0.1:
            close(got["cholesky"], np.linalg.cholesky(hermitian))
    if np.linalg.cond(a).max() < 1e4:
        close(got["inverse"], np.linalg.inv(a))
        close(got["solve"], np.linalg.solve(a, b))
        solved = np.swapaxes(np.linalg.solve(a, b), -1, -2)
        close(got["solve along the last"], solved)


@pytest.mark.parametrize(
    "name", ["sum of three", "low rank stack", "scaled", "kronecker_square"]
)
def test_diagonals_and_traces_of_programs_make_nothing_dense(name):
    v = MATRICES[name]
    fn = lambda v: (
        jnp.diagonal(v, axis1=-2, axis2=-1),
        jnp.trace(v, axis1=-2, axis2=-1),
    )
    diagonal, trace = jaxrewrite.transform(fn, materialise="forbid")(v)
    close(diagonal, np.diagonal(wide(v), axis1=-2, axis2=-1))
    close(trace, np.trace(wide(v), axis1=-2, axis2=-1))


@pytest.mark.slow
@pytest.mark.filterwarnings("error::jaxrewrite.MaterialisationWarning")
def test_closed_forms_make_nothing_dense():
    for name in ("sum of three", "product", "scaled", "scaled stack", "low rank"):
        if name != "product":
            MATRICES[name].diagonal()
            MATRICES[name].trace()
    for name in ("product", "scaled"):
        MATRICES[name].determinant()
        assert isinstance(MATRICES[name].inverse(), jaxrewrite.Value)
    assert isinstance(MATRICES["scaled"].inverse(), Scaled)
    v = MATRICES["product"]
    b = jnp.arange(4.0)
    for fn in (lambda v: jnp.linalg.solve(v, b), jnp.linalg.det, jnp.linalg.slogdet):
        got = jaxrewrite.transform(fn, materialise="forbid")(v)
        jax.tree.map(lambda g, w: close(g, w), got, fn(jaxrewrite.materialise(v)))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::jaxrewrite.MaterialisationWarning")
def test_gradients_of_the_closed_forms(bulk):
    """Also where the determinant is zero."""
    makes = (
        lambda d, a, s: Product((Diagonal(d), a)),
        lambda d, a, s: Scaled(Diagonal(d), s),
        lambda d, a, s: Scaled(Product((a, Diagonal(d))), s),
    )
    b = jnp.arange(4.0)

    def gradients(is_dense, leaves, zeros):
        as_it_is = jaxrewrite.materialise if is_dense else lambda v: v
        trace = jnp.trace if is_dense else lambda v: v.trace()
        det = jnp.linalg.det if is_dense else lambda v: v.determinant()
        inv = jnp.linalg.inv if is_dense else lambda v: v.inverse()
        applied = lambda v: jaxrewrite.materialise(inv(v) @ b).sum()
        of = lambda fn, make: jax.grad(lambda xs: fn(as_it_is(make(*xs))))
        return (
            [of(fn, make)(leaves) for make in makes for fn in (trace, det, applied)],
            [of(det, make)(zeros) for make in makes],
        )

    leaves = (2 + dense(4), dense(4, 4), jnp.float32(0.5))
    # The last pivot is zero. For other zero pivots JAX's own derivative is not that of the cofactors.
    zeros = (jnp.array([3.0, 2.0, 1.0, 0.0]), leaves[1], jnp.float32(0.25))
    got, want = (jax.jit(gradients, static_argnums=0)(d, leaves, zeros) for d in (0, 1))
    jax.tree.map(lambda g, w: close(g, w), got, want)


def test_every_matrix_of_the_page_has_the_methods():
    for name in ("Sum", "Product", "LowRank", "Scaled", "Diagonal", "NMSparse", "Sparse"):
        for method in (
            *("inverse", "determinant", "slogdet", "eigenvalues", "eigh", "cholesky"),
            *("solve", "trace", "diagonal"),
        ):
            assert callable(getattr(getattr(values, name), method))


def test_determinant_of_one_row_whose_type_knows_none():
    """A multiple of such a value must not ask for the determinant of a multiple again."""
    x = jnp.full((1, 1), 3.0)
    whole = Sum((values.Symmetric(x), values.Triangular(x)))
    for v in (whole, Scaled(whole, jnp.float32(-2)), Product((whole, values.Symmetric(x)))):
        got = jaxrewrite.transform(jnp.linalg.slogdet, materialise="allow")(v)
        want = np.linalg.slogdet(wide(v))
        jax.tree.map(lambda g, w: close(g, w), tuple(got), tuple(want))


def test_a_kronecker_product_of_other_factors_than_square_ones_knows_its_diagonal():
    v = values.Kronecker(dense(2, 3), dense(3, 2))
    d = Diagonal(dense(6))
    fn = lambda v, d: (jnp.trace(v), jnp.diagonal(v), v * d, d * v)
    got = jaxrewrite.transform(fn, materialise="forbid")(v, d)
    assert all(isinstance(x, Diagonal) for x in got[2:])
    for found, want in zip(got, fn(wide(v), wide(d)), strict=True):
        close(found, want)


def test_circulant_matrices_of_integers_have_inverses_of_floats():
    v = Circulant(jnp.array([2, 0, 0]))
    np.testing.assert_allclose(v.inverse().materialise(), np.eye(3) / 2)
    np.testing.assert_allclose(v.solve(jnp.arange(3), 0), [0, 0.5, 1], atol=1e-6)


@pytest.mark.parametrize(
    "precision",
    [
        *("highest", lax.Precision.HIGH, lax.DotAlgorithmPreset.F32_F32_F32),
    ],
)
def test_products_of_parts_have_the_precision_of_the_product(precision):
    of_two = lambda a, b: jnp.matmul(a, b, precision=precision)
    run = jaxrewrite.transform(of_two, materialise="forbid")
    entries = jnp.ones((2, 3, 3))
    told = lambda fn, *args: set(
        re.findall(r"precision=(.+)", str(jax.make_jaxpr(fn)(*args)))
    )
    parts = told(lambda a: run(BlockDiagonal(a), BlockDiagonal(a)), entries)
    assert parts == told(of_two, entries, entries) != set()


def test_products_of_two_by_the_default_algorithm():
    of_two = lambda a, b: lax.dot(a, b, precision=lax.DotAlgorithmPreset.DEFAULT)
    v = BlockDiagonal(jnp.arange(8.0).reshape(2, 2, 2))
    product = jaxrewrite.transform(of_two, materialise="forbid")(v, v)
    assert_same(product.materialise(), v.materialise() @ v.materialise(), 1e-6)

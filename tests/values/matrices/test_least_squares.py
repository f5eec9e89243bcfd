"""Least-squares solutions and pseudo-inverses that stay implicit, beside NumPy's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from choose import often
from oracle import floating, forbid

import jaxrewrite
from jaxrewrite.testing import assert_same
from jaxrewrite.values import (
    Banded,
    BlockDiagonal,
    Circulant,
    Diagonal,
    Identity,
    Kronecker,
    LowRank,
    Permutation,
    Product,
    Scaled,
    Sum,
    Symmetric,
    Toeplitz,
    Triangular,
    conjugate_gradients,
)


pytestmark = pytest.mark.usefixtures("double")


N = 6


def normal(seed, *shape, is_complex=False):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=shape)
    return jnp.asarray(x + 1j * rng.normal(size=shape) if is_complex else x)


def permutation():
    return Permutation(jnp.array([1, 0, 3, 4, 5, 2]), jnp.float64)


def kernel():
    return Kronecker(Symmetric(normal(0, 2, 2)), Symmetric(normal(1, 3, 3)))


MATRICES = {
    "circulant": lambda: Circulant(normal(0, N)),
    "singular circulant": lambda: Circulant(jnp.ones(N)),
    "complex circulant": lambda: Circulant(normal(0, N, is_complex=True)),
    "tall low rank": lambda: LowRank(normal(0, N, 2), normal(1, 2, 4)),
    "wide low rank": lambda: LowRank(normal(0, N, 2), normal(1, 2, 9)),
    "dependent columns": lambda: LowRank(normal(0, N, 1) * jnp.ones(2), normal(1, 2, 4)),
    "rank zero": lambda: LowRank(normal(0, N, 0), normal(1, 0, 4)),
    "permutation": permutation,
    "identity": lambda: Identity(N, jnp.float64),
    "diagonal": lambda: Diagonal(normal(0, N).at[2].set(0)),
    "zero": lambda: Diagonal(jnp.zeros(N)),
    "mixed": lambda: Kronecker(normal(0, 3, 2), normal(1, 2, 3)),
    "kronecker of circulant": lambda: Kronecker(Circulant(normal(0, 3)), normal(1, 2, 2)),
    "blocks": lambda: BlockDiagonal(normal(0, 2, 3, 2)),
    "scaled": lambda: Scaled(Circulant(normal(0, N)), jnp.float64(-2)),
    "permuted array": lambda: Product((permutation(), normal(0, N, 4))),
    "permuted low rank": lambda: Product(
        (permutation(), LowRank(normal(0, N, 2), normal(1, 2, 4)))
    ),
    "permuted on both sides": lambda: Product(
        (permutation(), BlockDiagonal(normal(0, 2, 3, 3)), permutation())
    ),
    "permuted circulant": lambda: Product((permutation(), Circulant(normal(0, N)))),
    "unitary": lambda: Product(
        (permutation(), Kronecker(Identity(2, jnp.float64), Identity(3, jnp.float64)))
    ),
    "kronecker and noise": lambda: Sum((kernel(), 0.3 * Identity(N, jnp.float64))),
    "circulant and noise": lambda: Sum(
        (Circulant(normal(0, N)), 0.3 * Identity(N, jnp.float64))
    ),
}

Y = np.random.default_rng(3).normal(size=(N, 2))


def squares(v):
    """Of one and of two columns, for several tolerances, and some of the results alone."""
    return [
        jnp.linalg.lstsq(v, Y),
        *[jnp.linalg.lstsq(v, Y[:, 0], rcond) for rcond in (0.3, -1.0)],
        jnp.linalg.lstsq(v, Y[:, 0])[0],
        jnp.linalg.lstsq(v, Y)[1:],
        jnp.linalg.lstsq(v, Y)[1:4:2],
    ]


def others(v):
    return [
        jnp.linalg.pinv(v) @ Y,
        jnp.arange(1.0, v.shape[1] + 1) @ jnp.linalg.pinv(v),
        jnp.linalg.matrix_rank(v),
        jnp.linalg.norm(v, 2),
    ]


def check(v, fn):
    """A solution and its rank by NumPy; the rest by JAX on the array."""
    got, want = jax.jit(lambda v: (forbid(fn)(v), fn(v.materialise())))(v)
    assert_same(got, want, 1e-9)
    solution, _, rank, sizes = np.linalg.lstsq(np.asarray(v.materialise()), Y)
    np.testing.assert_allclose(got[0][0], solution, atol=1e-9)
    np.testing.assert_allclose(got[0][3], sizes, atol=1e-9)
    assert got[0][2] == rank


@pytest.mark.parametrize("name", often(MATRICES, ("permuted circulant",)))
def test_results_are_those_of_numpy(name, bulk):
    check(MATRICES[name](), lambda v: [jnp.linalg.lstsq(v, Y)])


def of_rank_one(n):
    x = jnp.arange(1.0, n + 1) / 7
    return x[:, None] * x


# Rounded to fewer bits, these have no singular value of zero.
SINGULAR = {
    "symmetric": lambda: Symmetric(of_rank_one(3)),
    "scaled": lambda: Scaled(Symmetric(of_rank_one(3)), jnp.float64(1 / 3)),
    "kronecker": lambda: Kronecker(Symmetric(of_rank_one(2)), of_rank_one(3)),
    "blocks": lambda: BlockDiagonal(jnp.stack([of_rank_one(3), of_rank_one(3) / 3])),
    "low rank": lambda: LowRank(of_rank_one(3)[:, :2], of_rank_one(3)[:2]),
    "circulant": lambda: Circulant(jnp.array([1.0, 1 / 3, 1.0, 1 / 3]) * 0.7),
    "kronecker and noise": lambda: Sum(
        (
            Kronecker(Symmetric(of_rank_one(2)), Symmetric(of_rank_one(2))),
            -((5 / 49) ** 2) * Identity(4, jnp.float64),
        )
    ),
}


@pytest.mark.parametrize("dtype", ["float32", "float16", "complex128"])
@pytest.mark.parametrize("name", SINGULAR)
def test_the_cast_of_a_pseudo_inverse_is_not_that_of_a_cast_matrix(name, dtype):
    v = SINGULAR[name]()
    b = jnp.arange(1.0, v.shape[0] + 1).astype(dtype)
    fn = lambda v: (
        jnp.linalg.pinv(v).astype(dtype) @ b,
        jnp.linalg.pinv(v) @ b,
        b @ jnp.linalg.pinv(v).T.astype(dtype),
    )
    assert_same(forbid(fn)(v), fn(v.materialise()), 1e-2 if dtype == "float16" else 1e-5)
    cast = forbid(lambda v: jnp.linalg.pinv(v).astype(dtype))(v)
    assert_same(cast.materialise(), jnp.linalg.pinv(v.materialise()).astype(dtype), 1e-2)


def test_a_pseudo_inverse_of_a_stack_that_has_no_decomposition_becomes_dense():
    """One of the same low rank is one matrix, and broadcasts to a stack."""
    v = LowRank(normal(0, 4, 2), normal(1, 2, 4))
    scales = jnp.arange(1.0, 4)
    fn = lambda v: (scales[:, None, None] * jnp.linalg.pinv(v)) @ jnp.ones(4)
    allowed = jaxrewrite.transform(fn, materialise="allow")
    assert_same(jaxrewrite.materialise(allowed(v)), fn(v.materialise()), 1e-9)
    with pytest.raises(jaxrewrite.MaterialisationError, match="svd"):
        forbid(fn)(v)


@pytest.mark.slow
@pytest.mark.parametrize("name", MATRICES)
def test_tolerances_and_some_of_the_results(name, bulk):
    check(MATRICES[name](), lambda v: squares(v) + others(v))


_SMOOTH = [x for x in MATRICES if x not in ("permutation", "identity", "unitary", "zero")]


@pytest.mark.slow
@pytest.mark.parametrize("name", _SMOOTH)
def test_gradients(name, bulk):
    """Those of the pseudo-inverse, also where JAX's function of arrays has none."""
    v = MATRICES[name]()
    moving, whole = floating(v)

    def fitted(a):
        x, left = jnp.linalg.lstsq(a, Y)[:2]
        return jnp.sin(x).real.sum() + left.sum()

    def by_pseudo_inverse(a):
        x = jnp.linalg.pinv(a, rtol=1e-13) @ Y
        return jnp.sin(x).real.sum() + (abs(Y - a @ x) ** 2).sum()

    mine = jax.jit(jax.grad(lambda leaves: forbid(fitted)(whole(leaves))))
    dense = jax.grad(lambda leaves: by_pseudo_inverse(whole(leaves).materialise()))
    assert_same(mine(moving), dense(moving), 1e-7)


@pytest.mark.slow
def test_maps_dtypes_and_traced_tolerances(bulk):
    many, one, b = Circulant(normal(0, 3, N)), Circulant(normal(1, N)), normal(2, 3, N)
    lstsq = jnp.linalg.lstsq
    programs = [
        (jax.vmap(lambda v, b: lstsq(v, b, 1e-3)), (many, b)),
        (jax.vmap(lambda v: lstsq(v, b[0])), (many,)),
        (jax.vmap(lambda v: lstsq(v, b[0])[1:3]), (many,)),
        (lambda v: jax.vmap(lambda b: lstsq(v, b))(b), (one,)),
        (lambda v: jax.vmap(jax.vmap(lambda b: lstsq(v, b, 0.1)[0]))(b[None]), (one,)),
        (lambda v, tolerance: lstsq(v, b[0], tolerance), (one, jnp.float64(0.5))),
        *[(lambda v, c=c: lstsq(v, c), (one,)) for c in (jnp.arange(N), b[0] + 1j)],
    ]
    for fn, args in programs:
        assert_same(jax.jit(forbid(fn))(*args), fn(*jaxrewrite.materialise(args)), 1e-9)
    single = Circulant(one.column.astype("float32"))
    for c in (b[0], b[0].astype("float32")):
        assert_same(forbid(lstsq)(single, c), lstsq(single.materialise(), c), 1e-4)


def test_a_matrix_without_a_decomposition_is_refused():
    v = Product((Diagonal(normal(0, N)), Circulant(normal(1, N))))
    with pytest.raises(jaxrewrite.MaterialisationError, match="'svd' on Product"):
        forbid(jnp.linalg.lstsq)(v, Y)


@pytest.mark.parametrize("fn", [lambda v: jnp.linalg.lstsq(v, Y), jnp.linalg.pinv])
def test_the_error_names_the_way_out(fn):
    """For types that are solved by their structure, which gives no singular values."""
    noise = Diagonal(normal(0, N)) + LowRank(normal(1, N, 1), normal(2, 1, N))
    ones = jnp.ones((3, N)).at[0, -1].set(0).at[2, 0].set(0)
    toeplitz = Toeplitz(Y[:, 0], Y[:4, 0])
    for v in (toeplitz, Banded(ones, 1, 1), Triangular(normal(0, N, N)), noise):
        with pytest.raises(
            jaxrewrite.MaterialisationError, match="may not be made"
        ) as told:
            forbid(fn)(v)
        notes = "\n".join(told.value.__notes__)
        assert f"of {type(v).__name__} gives no singular values" in notes
        assert "'Least squares' in docs/structure.rst" in notes


@pytest.mark.slow
def test_normal_equations_of_full_rank(bulk):
    a = Toeplitz(normal(0, N), normal(1, 4))

    @jax.jit
    def program(a, b):
        tall, ok = conjugate_gradients(a.T @ a, a.T @ b, tol=1e-12)
        wide, fine = conjugate_gradients(a.T @ a, b[:4], tol=1e-12)
        return tall, a @ wide, ok & fine

    tall, wide, converged = program(a, Y)
    dense = np.asarray(a.materialise())
    assert converged.all()
    assert_same(tall, np.linalg.lstsq(dense, Y)[0], 1e-9)
    assert_same(wide, np.linalg.lstsq(dense.T, Y[:4])[0], 1e-9)


def test_singular_values_are_none_if_one_block_has_none(bulk):
    blocks = BlockDiagonal(normal(0, 2, 3, 3).at[0, 1, 1].set(jnp.nan))
    fn = lambda v: (jnp.linalg.svdvals(v), jnp.linalg.svd(v)[1])
    for found in jax.jit(forbid(fn))(blocks):
        assert np.isnan(found).all()


@pytest.mark.parametrize("batch", [(2,), (0,)])
def test_pseudo_inverse_of_a_stack_of_empty_matrices(batch):
    """JAX repeats the result of one, which depends on no operand."""
    v = Diagonal(jnp.ones((*batch, 0)))
    found = jaxrewrite.transform(jnp.linalg.pinv, materialise="allow")(v)
    assert jaxrewrite.materialise(found).shape == (*batch, 0, 0)


def test_a_singular_value_as_large_as_the_tolerance_counts():
    """JAX's function keeps it, unlike that for the pseudo-inverse."""
    v = Diagonal(jnp.array([1.0, 0.5, 0.25]))
    fn = lambda v: jnp.linalg.lstsq(v, jnp.ones(3), 0.5)[::2]
    assert_same(forbid(fn)(v), fn(v.materialise()), 1e-9)


@pytest.mark.parametrize(
    "v",
    [
        BlockDiagonal(normal(0, 2, 4, 2)),
        BlockDiagonal(normal(1, 2, 2, 3, is_complex=True)),
        LowRank(normal(2, 6, 4), normal(3, 4, 5)),
    ],
    ids=["tall", "complex", "low rank"],
)
def test_vectors_of_cut_singular_values_turn(v):
    """Derivatives where the tolerance cuts numbers that are far from zero."""
    y = normal(4, v.shape[0])
    sizes = jnp.linalg.svd(v.materialise(), compute_uv=False)
    assert (sizes < 0.6 * sizes[0]).any() and sizes[2] > 0.1 * sizes[0]
    moving, whole = floating(v)

    def fitted(a):
        return jnp.sin(jnp.linalg.lstsq(a, y, rcond=0.6)[0]).real.sum()

    mine = lambda leaves: forbid(fitted)(whole(leaves))
    dense = lambda leaves: fitted(whole(leaves).materialise())
    assert_same(jax.grad(mine)(moving), jax.grad(dense)(moving), 1e-9)
    along = [0.1 * x for x in moving]
    twice = lambda fn: jax.jvp(jax.grad(fn), (moving,), (along,))[1]
    assert_same(twice(mine), twice(dense), 1e-8)


@pytest.mark.parametrize("name", ["circulant", "tall low rank"])
def test_results_that_need_no_right_side(name):
    """JAX drops it from the call, which is then one of no function."""
    v = MATRICES[name]()
    ranks = lambda v: jnp.linalg.lstsq(v, Y)[2:]
    found = jaxrewrite.transform(ranks, materialise="allow")(v)
    assert_same(found, ranks(v.materialise()), 1e-9)


def test_another_function_of_the_name_is_none():
    @jax.jit
    def _pinv(a, rtol):
        return a.mT * rtol

    other = jax.custom_jvp(_pinv)
    other.defjvp(lambda xs, tangents: (_pinv(*xs), _pinv(tangents[0], xs[1])))
    v = Diagonal(jnp.array([1.0, 2.0]))
    found = jaxrewrite.transform(lambda v: other(v, 0.5), materialise="allow")(v)
    np.testing.assert_array_equal(jaxrewrite.materialise(found), v.materialise() / 2)


def test_a_matrix_of_16_bits_and_a_wide_right_side():
    """JAX casts the matrix first, and has no decomposition of 16 bits."""
    narrow = jnp.arange(1.0, 5.0).astype("bfloat16")
    toeplitz = Toeplitz(narrow, narrow)
    y = normal(0, 4, 2)
    for v, policy in ((Diagonal(narrow), "forbid"), (toeplitz, "allow")):
        found = jaxrewrite.transform(jnp.linalg.lstsq, materialise=policy)(v, y)
        for got, want in zip(found, jnp.linalg.lstsq(v.materialise(), y), strict=True):
            assert got.dtype == want.dtype
            np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)


SWAP = jnp.array([[0.0, 1.0], [1.0, 0.0]])


@pytest.mark.parametrize(
    ("make", "x"),
    [
        (Symmetric, SWAP),
        (BlockDiagonal, jnp.array([[[0.0, 1.0], [-1.0, 0.0]]])),
        (Circulant, jnp.array([5.0, 1.0, 0.5, 0.3])),
        (Diagonal, jnp.ones(3)),
    ],
    ids=["Symmetric", "BlockDiagonal", "Circulant", "Diagonal"],
)
def test_equal_singular_values_have_second_derivatives(make, x):
    """Those of an inverse."""
    n = make(x).shape[0]
    weights = normal(0, n, n)
    by = lambda inverse: lambda v: jnp.sin(inverse(v) * weights).sum()
    mine = jaxrewrite.transform(by(jnp.linalg.pinv), materialise="allow")
    got = jax.hessian(lambda x: mine(make(x)))(x)
    want = jax.hessian(lambda x: by(jnp.linalg.inv)(make(x).materialise()))(x)
    assert_same(got, want, 1e-9)


@pytest.mark.parametrize("batch", [(), (2,)], ids=["one", "stack"])
def test_a_dense_pseudo_inverse_has_second_derivatives(batch):
    """JAX's own function has none with JAX 0.10 if ``rtol`` is traced."""
    v = BlockDiagonal(normal(0, *batch, 2, 3, 2))
    tangent = BlockDiagonal(normal(1, *batch, 2, 3, 2))

    def loss(v):
        return jnp.sin(jnp.linalg.pinv(v)).sum()

    def along(fn):
        return jax.jvp(jax.grad(fn), (v,), (tangent,))[1].blocks

    found = along(jaxrewrite.transform(loss, materialise="allow"))
    np.testing.assert_allclose(found, along(lambda v: loss(v.materialise())), rtol=1e-9)


def test_what_is_no_number_has_no_pseudo_inverse(bulk):
    """A singular value that is not a number must not count as zero."""
    bad = jnp.ones(N).at[2].set(jnp.nan)
    vs = [Circulant(bad), Diagonal(bad), LowRank(bad[:, None], jnp.ones((1, 4)))]
    fn = lambda v: (jnp.linalg.pinv(v) @ Y, *jnp.linalg.lstsq(v, Y))
    for *of_arrays, rank, sizes in jax.jit(lambda vs: list(map(forbid(fn), vs)))(vs):
        assert all(np.isnan(x).all() for x in (*of_arrays, sizes)) and rank == 0


DERIVATIVES = {
    "columns": lambda v, b: jax.jacfwd(lambda b: jnp.linalg.lstsq(v, b)[0])(b),
    "tangent": lambda v, b: jax.jvp(lambda b: jnp.linalg.lstsq(v, b)[0], (b,), (b,))[1],
    "linear": lambda v, b: jax.linearize(lambda b: jnp.linalg.lstsq(v, b)[0], b)[0],
    "mapped thrice": lambda v, b: jax.vmap(
        jax.vmap(jax.vmap(lambda b: jnp.linalg.lstsq(v, b)[0]))
    )(jnp.ones((1, 2, 1, 1)) * b),
}


@pytest.mark.parametrize("name", DERIVATIVES)
def test_a_derivative_of_which_the_function_is_left_is_that_function(name, bulk):
    v, b = MATRICES["circulant"](), Y[:, 0]
    program = DERIVATIVES[name]
    assert_same(forbid(program)(v, b), program(v.materialise(), b), 1e-9)

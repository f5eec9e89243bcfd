"""`LowRank`: programs that keep the factors apart, in arrays of any rank."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from choose import slow
from jax import lax
from oracle import run_implicit as run

import jaxrewrite
from jaxrewrite import transform
from jaxrewrite.testing import assert_same
from jaxrewrite.values import Diagonal, LowRank


def random(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def low_rank(n=(6,), m=(8,), rank=2, batch=(), **axes):
    a = random(*batch, *n, rank)
    return LowRank(a, random(*batch, rank, *m, seed=1), **axes)


def matrix():
    return low_rank()


def batched():
    return low_rank(batch=(3,))


def heads():
    """Rows before and after the columns, in another order than the factor's."""
    return low_rank((4, 3), (6,), rows=(2, 0), cols=(1,))


def mixed():
    """A batch axis in the middle."""
    return low_rank((4,), (6, 5), batch=(3,), rows=(3,), cols=(0, 2))


SLOW = [*map(slow, (matrix, batched, mixed))]
values = pytest.mark.parametrize("make", [heads, *SLOW], ids=lambda f: f.__name__)


def check(v, *fns, rank=None):
    """The results are of low rank, with a leading batch axis too."""
    together = lambda v: [fn(v) for fn in fns]
    outs = run(together, v)
    for out in outs:
        assert isinstance(out, LowRank), out
        assert out.rank == (v.rank if rank is None else rank)
    stack = jax.tree.map(lambda x: jnp.stack([x, 2 * x]), v)
    dense = jnp.stack([v.materialise(), 4 * v.materialise()])
    implicit = lambda v: jaxrewrite.materialise(transform(together)(v))
    got = jax.jit(jax.vmap(implicit))(stack)
    want = jax.jit(jax.vmap(together))(dense)
    assert_same(got, want, 1e-4)
    return outs[-1]


# --- shapes ---------------------------------------------------------------------------


@values
def test_transposed_by_metadata_alone(make, bulk):
    v = make()
    permutations = list(itertools.permutations(range(v.ndim)))[:8]
    out = check(v, *(lambda v, p=p: v.transpose(p) for p in permutations))
    assert out.nbytes == v.nbytes
    assert not jaxrewrite.make_jaxpr(jnp.transpose)(v).eqns


RESHAPES = [
    (matrix, (2, 3, 8), (6, 2, 2, 2), (3, 2, 1, 4, 2)),
    (batched, (3, 2, 3, 4, 2), (3, 1, 6, 8)),
    (heads, (3, 2, 3, 2, 2), (1, 3, 6, 1, 4, 1)),
    (mixed, (2, 3, 3, 5, 2, 2)),
]


@pytest.mark.parametrize(
    ("make", "shapes"),
    [(m, s) for m, *s in RESHAPES],
    ids=lambda x: getattr(x, "__name__", str(x)),
)
def test_reshaped(make, shapes, bulk):
    v = make()
    split = check(v, *(lambda v, shape=shape: v.reshape(shape) for shape in shapes))
    assert split.nbytes == v.nbytes
    check(
        v, *(lambda v, shape=shape: v.reshape(shape).reshape(v.shape) for shape in shapes)
    )


def test_reshapes_of_one_factor(bulk):
    check(
        matrix(),
        lambda v: v.reshape(2, 3, 8).swapaxes(0, 1).reshape(6, 8),
        lambda v: v.reshape(2, 3, 8).transpose(0, 2, 1).swapaxes(1, 2).reshape(3, 2, 8),
    )


def test_padding_that_adds_entries_is_dense():
    fn = lambda v: lax.pad(v, jnp.float32(5), [(-1, 0, 0), (0, 1, 0)])
    with pytest.raises(jaxrewrite.MaterialisationError):
        transform(fn, materialise="forbid")(matrix())


def test_axes_of_two_factors_are_not_joined():
    with pytest.raises(jaxrewrite.MaterialisationError):
        transform(jnp.ravel, materialise="forbid")(matrix())


@values
def test_parts(make, bulk):
    v = make()
    check(
        v,
        lambda v: v[tuple(slice(1, None, 2) for _ in range(v.ndim))],
        jnp.flip,
        lambda v: lax.dynamic_slice(v, (1,) * v.ndim, (2,) * v.ndim),
        lambda v: lax.pad(v, jnp.float32(5), [(-1, 0, 0)] * v.ndim),
        lambda v: lax.slice_in_dim(v, 1, 3, axis=1),
    )
    run(lambda v: [lax.index_in_dim(v, 1, i, keepdims=False) for i in range(v.ndim)], v)


@values
def test_rows_looked_up(make, bulk):
    v = make()
    rows = jnp.array([[1, 0], [2, 9]])
    check(
        v,
        *(lambda v, i=i: jnp.take(v, rows, i, mode="clip") for i in range(v.ndim)),
    )
    filled = lambda v, fill: jnp.take(v, rows, 0, mode="fill", fill_value=fill)
    run(lambda v: [filled(v, fill) for fill in (jnp.nan, 0, 3)], v)


def test_windows_looked_up(bulk):
    def windows(v):
        numbers = lax.GatherDimensionNumbers((1, 2), (), (0,))
        return lax.gather(v, jnp.array([[0], [3]]), numbers, (3, v.shape[1]))

    each = jax.vmap(lambda x, i: x[:, i])
    check(matrix(), windows)
    check(
        heads(),
        lambda v: v[jnp.array([1, 0]), :, jnp.array([3, 1])],
        lambda v: each(v, jnp.array([1, 0, 2])),
        lambda v: each(v.transpose(2, 1, 0), jnp.array([1, 0, 2, 2])),
    )


@values
def test_broadcast(make, bulk):
    check(
        make(),
        lambda v: jnp.broadcast_to(v, (2, *v.shape)),
        lambda v: jnp.expand_dims(v, (0, 2)),
        lambda v: jnp.squeeze(jnp.expand_dims(v, (0, 2)), 0),
        lambda v: jnp.broadcast_to(v[:1], (5, *v.shape[1:])),
        lambda v: jnp.broadcast_to(v[:, None, :1], (v.shape[0], 2, 5, *v.shape[2:])),
    )


@values
def test_sums(make, bulk):
    v = make()
    axes = [c for n in range(v.ndim) for c in itertools.combinations(range(v.ndim), n + 1)]
    run(lambda v: [(v.sum(axis), v.mean(axis, keepdims=True)) for axis in axes], v)
    if make is heads:
        check(v, lambda v: v.sum(0), lambda v: v.sum(2))
    along = sorted({*v.rows, *v.cols})
    check(
        v,
        *(lambda v, i=i: jnp.cumsum(v, i) for i in along),
        lambda v: lax.cumsum(v, v.ndim + along[0], reverse=True),
    )


# --- arithmetic -----------------------------------------------------------------------


@values
def test_scaled(make, bulk):
    v = make()
    along = [
        jnp.expand_dims(random(n), [k for k in range(v.ndim) if k != i])
        for i, n in enumerate(v.shape)
    ]
    check(
        v,
        lambda v: -2.0 * v / 3.0,
        lambda v: v * jnp.float32(3) * jnp.full((1,) * v.ndim, 2.0),
        *(lambda v, y=y: y * v for y in along),
        lambda v: v / along[0],
        *(
            lambda v, i=i: lax.slice_in_dim(v, 0, 1, axis=i) * along[i]
            for i in range(v.ndim)
        ),
    )
    with pytest.raises(jaxrewrite.MaterialisationError):
        transform(lambda v: v * jnp.ones(v.shape), materialise="forbid")(v)


def test_scaled_along_all_axes_of_a_factor(bulk):
    check(heads(), lambda v: v * random(3, 1, 4))
    check(mixed(), lambda v: v * random(6, 3, 5, 1))


@values
def test_sum_of_two(make, bulk):
    check(make(), lambda v: v + 3 * v, lambda v: v - 2 * v, rank=4)


def test_sum_with_its_transpose():
    check(low_rank((6,), (6,)), lambda v: v + v.T, rank=4)


def test_a_sum_of_more_than_full_rank_is_dense():
    v = low_rank((6,), (6,), rank=4)
    with pytest.raises(jaxrewrite.MaterialisationError):
        transform(jnp.add, materialise="forbid")(v, v)


def test_concatenated(bulk):
    v = low_rank((16,), (16,))
    check(v, lambda v: jnp.concatenate([v, 2 * v, v[:3]]), rank=6)
    check(
        v,
        lambda v: jnp.concatenate([v, v.T], 1),
        lambda v: jnp.roll(v, 3, 0),
        rank=4,
    )
    check(v, lambda v: jnp.stack([v, -v, v]), lambda v: jnp.stack([v, v], 1)[:, 1])
    check(batched(), lambda v: jnp.concatenate([v, v, v]))
    w = low_rank((16,), (16,), rank=3)
    assert run(lambda v, w: jnp.stack([v, w]), v, w).rank == 3
    first, second = run(lambda v: jnp.unstack(v), low_rank(batch=(2,)))
    assert first.shape == second.shape == (6, 8)


def test_casts():
    v = matrix()
    out = transform(lambda v: v.astype(jnp.bfloat16), materialise="forbid")(v)
    assert (out.a.dtype, out.b.dtype) == (jnp.bfloat16, jnp.bfloat16)
    run(lambda v: jnp.conj(v.astype(jnp.complex64) * 1j), v)
    turned = LowRank(v.a * 1j, v.b + 0j)
    with jax.enable_x64(True):
        wide = transform(lambda v: v.astype(jnp.complex128), materialise="forbid")(turned)
    assert wide.a.dtype == jnp.complex128
    with pytest.raises(jaxrewrite.MaterialisationError):
        transform(lambda v: v.astype(int), materialise="forbid")(v)


# --- products -------------------------------------------------------------------------


def numberings(x_shape, y_shape):
    """Every way to pair axes of one size, contracted or batched."""
    pairs = [(i, j) for i, n in enumerate(x_shape) for j, m in enumerate(y_shape) if n == m]
    for n in range(3):
        for some in itertools.combinations(pairs, n):
            if any(len({p[k] for p in some}) < n for k in (0, 1)):
                continue
            for kinds in itertools.product((0, 1), repeat=n):
                dims = [
                    tuple(
                        tuple(
                            p[k] for p, own in zip(some, kinds, strict=True) if own == kind
                        )
                        for k in (0, 1)
                    )
                    for kind in (0, 1)
                ]
                yield tuple(dims)


def products(x, y):
    return {
        str(n): (lambda x, y, n=n: lax.dot_general(x, y, n))
        for n in numberings(x.shape, y.shape)
    }


def run_products(x, y, numbers=None):
    fns = products(x, y)
    if numbers is not None:
        fns = dict(list(fns.items())[::numbers])
    return run(lambda x, y: {name: fn(x, y) for name, fn in fns.items()}, x, y)


SIZES = {
    "matrix": lambda: low_rank((3,), (4,)),
    "batched": lambda: low_rank((3,), (4,), batch=(2,)),
    "square": lambda: low_rank((3,), (3,), batch=(3,)),
    "heads": lambda: low_rank((3, 2), (4,), rows=(2, 0), cols=(1,)),
    "mixed": lambda: low_rank((4,), (3, 4), batch=(2,), rows=(2,), cols=(3, 0)),
}


@pytest.mark.parametrize("name", ["matrix", "heads"])
def test_products_in_some_dimension_numberings(name, bulk):
    v = SIZES[name]()
    dense = random(3, 4, seed=3)
    out = {**run_products(v, dense), **run_products(dense, v)}
    assert not any(isinstance(x, jaxrewrite.Value) for x in out.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("shape", [(3,), (2, 3), (3, 4, 3), (2, 4, 3)], ids=str)
def test_products_in_every_dimension_numbering(name, shape, bulk):
    v = SIZES[name]()
    run_products(v, random(*shape, seed=3))
    run_products(random(*shape, seed=3), v)


@pytest.mark.slow
@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("other", SIZES)
def test_products_of_two_in_every_dimension_numbering(name, other, bulk):
    run_products(SIZES[name](), SIZES[other](), numbers=3)


def test_a_product_of_two_has_the_lower_rank():
    v, w = low_rank((6,), (8,), rank=3), low_rank((8,), (5,), rank=2)
    for x, y in ((v, w), (w.T, v.T)):
        out = run(jnp.matmul, x, y)
        assert isinstance(out, LowRank) and out.rank == 2
    assert isinstance(run(lambda v: v @ v.T, v), LowRank)
    stack = low_rank((6,), (8,), batch=(3,)), low_rank((8,), (5,), batch=(3,))
    assert run(jnp.matmul, *stack).rank == 2


def test_a_product_goes_through_the_factors():
    v = low_rank((64,), (48,))
    x = random(5, 64)
    for fn, args in (
        (lambda x, v: x @ v, (x, v)),
        (lambda x, v: jnp.einsum("nm,tn->mt", v, x), (x, v)),
        (lambda x, v: jnp.einsum("tn,nhk->thk", x, v.reshape(64, 6, 8)), (x, v)),
    ):
        jaxpr = jaxrewrite.make_jaxpr(fn)(*args)
        dots = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "dot_general"]
        assert len(dots) == 2
        assert all(eqn.outvars[0].aval.size <= 5 * 48 for eqn in dots)


def test_the_dtype_of_a_product():
    v = jax.tree.map(lambda x: x.astype(jnp.bfloat16), matrix())
    wide = lambda x, v: jnp.matmul(x, v, preferred_element_type=jnp.float32)
    x = jnp.ones((2, 6), jnp.bfloat16)
    assert transform(wide, materialise="forbid")(x, v).dtype == jnp.float32
    out = transform(wide, materialise="forbid")(v.T, v)
    assert isinstance(out, LowRank) and out.dtype == jnp.float32


# --- where structures meet --------------------------------------------------------------


def test_branches_and_loops():
    v, w = low_rank((6,), (6,), rank=1), low_rank((6,), (6,), rank=3)
    x = random(6)
    out = run(lambda p, v, w: lax.cond(p, lambda: v, lambda: w.T), jnp.array(True), v, w)
    assert out.rank == 3
    run(
        lambda v, x: lax.fori_loop(0, 3, lambda i, c: (0.5 * c[0], c[0] @ c[1]), (v, x)),
        v,
        x,
    )
    run(
        lambda v, x: lax.scan(lambda c, y: (c @ y, y), x, v),
        low_rank((6,), (6,), batch=(3,)),
        x,
    )
    out = run(lambda v, x: lax.scan(lambda c, y: (c, y * v), x, jnp.arange(3.0)), v, x)
    assert isinstance(out[1], LowRank) and out[1].rank == 1


def test_a_sum_that_grows_in_a_loop_settles():
    v = low_rank((4,), (4,), rank=1)
    fn = lambda v: lax.fori_loop(0, 3, lambda i, c: c + v, v)
    out = transform(fn, materialise="allow")(v)
    np.testing.assert_allclose(jaxrewrite.materialise(out), 4 * v.materialise(), rtol=1e-5)


def test_sharded():
    mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    P = jax.sharding.PartitionSpec
    v, x = low_rank((6,), (8,)), random(4, 6)

    def fn(x, v):
        local = lambda x, v: x @ v
        return jax.shard_map(
            local, mesh=mesh, in_specs=(P("x", None), P(None, "y")), out_specs=P("x", "y")
        )(x, v)

    np.testing.assert_allclose(
        transform(fn, materialise="forbid")(x, v), x @ v.materialise(), rtol=1e-4, atol=1e-5
    )


# --- construction -----------------------------------------------------------------------


def test_from_svd():
    w = matrix().materialise()
    np.testing.assert_allclose(
        LowRank.from_svd(w, 2).materialise(), w, rtol=1e-4, atol=1e-4
    )
    stack = random(3, 6, 5)
    v = LowRank.from_svd(stack, 5)
    np.testing.assert_allclose(v.materialise(), stack, rtol=1e-4, atol=1e-4)
    nearest = LowRank.from_svd(stack[0], 1).materialise()
    s = jnp.linalg.svd(stack[0], compute_uv=False)
    np.testing.assert_allclose(jnp.linalg.norm(nearest - stack[0], 2), s[1], rtol=1e-4)
    with pytest.raises(ValueError, match="rank is 7"):
        LowRank.from_svd(w, 7)
    with pytest.raises(ValueError, match=r"w has shape \(3,\)"):
        LowRank.from_svd(jnp.ones(3), 1)


@pytest.mark.parametrize(
    ("a", "b", "axes", "message"),
    [
        ((6,), (2, 8), {}, r"a has shape \(6,\)"),
        ((6, 2), (3, 2, 8), {}, r"b has shape \(3, 2, 8\)"),
        (
            (6, 2),
            (3, 8),
            {},
            r"a has shape \(6, 2\) and b .* agree in the rank.*axis of b\.$",
        ),
        (
            (2, 6, 2),
            (3, 2, 8),
            {},
            "agree in the first 1 axes, the batch axes, and in the rank",
        ),
        ((6, 2), (2, 8), {"rows": (0,), "cols": (0,)}, "name an axis twice"),
        ((6, 2), (2, 8), {"rows": (3,)}, "rows=.* out of range"),
        ((6, 2), (2, 8), {"cols": (-3,)}, "cols=.* out of range"),
        ((6, 2), (2, 8), {"rows": (0, 1)}, "a has shape"),
    ],
)
def test_bad_input(a, b, axes, message):
    with pytest.raises(ValueError, match=message):
        LowRank(jnp.ones(a), jnp.ones(b), **axes)


def test_axes_count_from_the_end():
    v = LowRank(jnp.ones((6, 2)), jnp.ones((2, 8)), rows=[1], cols=[0])
    assert (v.rows, v.cols, v.shape, v.rank) == ((-1,), (-2,), (8, 6), 2)


def test_a_factor_of_integers_that_wrap_is_cast_as_the_array():
    """The entries of the first factor are 200 - 256, in which its product has to be taken."""
    small = LowRank(jnp.full((3, 1), 100, "int8"), jnp.full((1, 3), 2, "int8"))
    v = LowRank(small, jnp.ones((3, 2)))
    got = jaxrewrite.transform(jnp.matmul, materialise="allow")(v, jnp.array([1.0, 2.0]))
    np.testing.assert_allclose(got, jnp.full(3, -56.0 * 3 * 3), rtol=1e-6)


def _filled(a, b):
    """Of rank 2, with numbers of which sums or products wrap around in the smaller dtypes."""
    number = lambda dtype: {"bool": 1, "int8": 100, "bfloat16": 257}.get(dtype, 3)
    return LowRank(jnp.full((4, 2), number(a), a), jnp.full((2, 4), number(b), b))


def _convolved(v, x):
    image, kernel = jnp.ones((1, 2, 5), v.dtype), v.reshape(4, 2, 2)
    return lax.conv_general_dilated(
        image, kernel, (1,), "SAME", preferred_element_type=x.dtype
    )


WIDER = {
    "array": (lambda v, x: v @ x, lambda x: x),
    "diagonal": (lambda v, x: v @ x, lambda x: Diagonal(x[0])),
    "low rank": (lambda v, x: x @ v, lambda x: LowRank(x[:, :3], x[:3])),
    "groups": (
        lambda v, x: lax.ragged_dot(x, jnp.stack([v, v]), jnp.array([3, 1])),
        lambda x: x,
    ),
    "convolution": (_convolved, lambda x: x),
}


def _same_as_dense(fn, v, *operands):
    got = jaxrewrite.materialise(transform(fn, materialise="allow")(v, *operands))
    want = fn(*jaxrewrite.materialise((v, *operands)))
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("name", WIDER)
@pytest.mark.parametrize("dtype", ["bool", "int8"])
def test_products_of_small_integers_in_a_wider_dtype(name, dtype, bulk):
    """The array is a disjunction, or wraps around, before it is multiplied."""
    fn, other = WIDER[name]
    for wide in ("int32", "float32"):
        _same_as_dense(fn, _filled(dtype, dtype), other(jnp.full((4, 4), 2, wide)))


OF_TWO_DTYPES = {
    "neg": lambda v: -v,
    "sum": lambda v: v.sum(0),
    "cumsum": lambda v: v.cumsum(1),
    "conj": lambda v: lax.conj(v + 0j),
    "product": lambda v: v.T @ jnp.ones(4, "int8"),
}


@pytest.mark.parametrize("name", OF_TWO_DTYPES)
@pytest.mark.parametrize("dtype", ["bool", "int8", "bfloat16"])
def test_factors_of_two_dtypes(name, dtype, bulk):
    """A sum that does not fit in the dtype of a factor, or is rounded in it."""
    for v in (_filled(dtype, "float32"), _filled("float32", dtype)):
        _same_as_dense(OF_TWO_DTYPES[name], v)
    if name == "neg":
        lowest = LowRank(jnp.full((2, 1), -128, "int8"), jnp.ones((1, 3)))
        _same_as_dense(OF_TWO_DTYPES[name], lowest)

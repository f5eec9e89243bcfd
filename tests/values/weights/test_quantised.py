"""Quantised weights: what stays quantised, the residuals, and errors."""

import math
import re

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from choose import often, slow
from flax import nnx
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from oracle import forbid, normal

import jaxrewrite
from jaxrewrite._axes.blocks import reshape_blocks, slice_blocks, spread
from jaxrewrite.testing import assert_same
from jaxrewrite.values import NF4, Float8, Quantised, quantise


KINDS = {
    "tensor": lambda w: Quantised.quantise(w),
    "rows": lambda w: Quantised.quantise(w, axis=0),
    "channels": lambda w: Quantised.quantise(w, 4, axis=-1),
    "blocks": lambda w: Quantised.quantise(w, 4, block=4),
    "affine": lambda w: Quantised.quantise(
        w, block=(*(None for _ in w.shape[1:]), 4), symmetric=False
    ),
    "nf4": lambda w: NF4.quantise(w, 4, scale_block=8),
    "2 bits": lambda w: Quantised.quantise(w, 2, block=4),
    "3 bits": lambda w: Quantised.quantise(w, 3, axis=-1),
    "6 bits": lambda w: Quantised.quantise(w, 6, block=4, symmetric=False),
    "float8": lambda w: Float8.quantise(w, block=4),
    "float8 e5m2": lambda w: Float8.quantise(w, "float8_e5m2"),
}
IN_SHORT = ("nf4",)
kinds = pytest.mark.parametrize(
    "kind",
    often(KINDS, IN_SHORT),
)


def make(kind, *shape, seed=0):
    return jax.jit(KINDS[kind])(normal(*(shape or (8, 16)), seed=seed))


# --- rounding -------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("options", [{}, {"axis": (0, -1)}, {"block": 4}])
@pytest.mark.parametrize("symmetric", [True, False])
def test_rounds_to_the_nearest(bits, options, symmetric, bulk):
    w = np.array(normal(8, 16))
    w[:, 3] = 0

    @jax.jit
    def round_trip(w):
        v = Quantised.quantise(w, bits, symmetric=symmetric, **options)
        assert v.bits == bits
        return v.materialise(), spread(v.scale, w.shape)

    got, step = map(np.asarray, round_trip(w))
    assert (abs(got - w) <= step * 0.501 + 1e-6).all()
    assert (got[:, 3] == 0).all()


def test_a_range_on_one_side_of_zero():
    w = 5 + normal(8, 16) / 10
    v = Quantised.quantise(w, symmetric=False)
    assert abs(v.materialise() - w).max() < 5.5 / 255


def test_granularity():
    def scale(w, **options):
        return jax.eval_shape(lambda w: Quantised.quantise(w, **options), w).scale

    w = normal(8, 4, 16)
    assert scale(w).shape == (1, 1, 1)
    assert scale(w, axis=-1).shape == (1, 1, 16)
    assert scale(w, block=2).shape == (4, 4, 16)
    assert scale(w, block=(None, 2, 8)).shape == (1, 2, 2)
    assert scale(w.astype("bfloat16")).dtype == "bfloat16"
    empty = Quantised.quantise(jnp.zeros((0, 3)), axis=1)
    assert empty.materialise().shape == (0, 3)


def test_int4_takes_half_a_byte():
    v = Quantised.quantise(normal(64, 64), 4, axis=1)
    assert v.nbytes == 64 * 64 // 2 + 64 * 4
    compiled = jax.jit(lambda v: v.q[0]).lower(v).compile()
    assert compiled.memory_analysis().argument_size_in_bytes <= v.nbytes


def test_nf4_levels_are_those_of_the_paper():
    """The code book is that of appendix E of the paper. Zero stays exactly zero."""
    from jaxrewrite.values._weights.nf4 import LEVELS

    assert LEVELS.shape == (16,) and (np.diff(LEVELS) > 0).all()
    w = jnp.asarray(np.tile(LEVELS, (4, 1)).T, "float32") * 3
    v = jax.jit(lambda w: NF4.quantise(w, block=16))(w)
    np.testing.assert_array_equal(np.asarray(v.codes)[:, 0].astype(int), np.arange(16))
    dense = np.asarray(v)
    np.testing.assert_allclose(dense, w, rtol=1e-6)
    assert (dense[7] == 0).all()


@pytest.mark.parametrize("gathers_faster", [True, False])
def test_choices_by_bits_are_a_lookup_of_levels(gathers_faster, monkeypatch):
    from jaxrewrite.values._weights import nf4
    from jaxrewrite.values._weights.nf4 import LEVELS

    monkeypatch.setattr(nf4, "gathers_faster", lambda: gathers_faster)
    levels = nf4._chosen(jnp.arange(16, dtype="uint8"), dtype=jnp.dtype("float32"))
    np.testing.assert_array_equal(levels, LEVELS.astype("float32"))


def test_sums_of_a_weight_and_an_array_are_dense():
    v = make("tensor", 6, 4)
    for fn in (jnp.add, jnp.subtract, lambda v, x: x - v):
        with pytest.raises(jaxrewrite.MaterialisationError):
            forbid(fn)(v, jnp.ones((6, 4)))


def test_nf4_error_is_of_half_a_gap_between_levels():
    w = normal(256, 32)
    v, u = jax.jit(lambda w: (NF4.quantise(w), Quantised.quantise(w, 4, block=64)))(w)
    w = np.asarray(w)
    error, of_integers = abs(np.asarray(v) - w), abs(np.asarray(u) - w)
    magnitude = abs(w).reshape(4, 64, 32).max(1, keepdims=True)
    assert (error.reshape(4, 64, 32) <= magnitude * 0.17).all()
    assert error.mean() < of_integers.mean()
    assert v.nbytes * 8 / w.size < 4.3


# --- what stays ------------------------------------------------------------------------

STAYS = {
    "transpose": lambda x: x.T,
    "split": lambda x: x.reshape(8, 4, 4),
    "heads": lambda x: x.reshape(8, 2, 8).transpose(1, 0, 2),
    "expand": lambda x: x[None, :, None],
    "squeeze": lambda x: x[None].squeeze(0),
    "broadcast": lambda x: jnp.broadcast_to(x, (3, 8, 16)),
    "flip": lambda x: x[::-1, ::-1],
    "columns": lambda x: x[:, 4:12],
    "fused": lambda x: jnp.split(x, [4, 8], axis=1),
    "half": lambda x: x[4:],
    "dynamic slice": lambda x: lax.dynamic_slice_in_dim(x, jnp.int32(2), 4, 1),
    "past the end": lambda x: lax.dynamic_slice_in_dim(x, jnp.int32(14), 4, 1),
    "concatenate": lambda x: jnp.concatenate([x, x], axis=1),
    "stack": lambda x: jnp.stack([x, -x], axis=1),
    "unstack": lambda x: list(jnp.unstack(x[:, 3:5], axis=1)),
    "tile": lambda x: jnp.tile(x, (2, 3)),
    "negative": lambda x: -x,
    "scaled": lambda x: 2 * x / 3,
    "bfloat16": lambda x: x.astype("bfloat16"),
    "where": lambda x: jnp.where(True, x, -x),
    "cond": lambda x: lax.cond(x.shape[0] > 1, lambda: x, lambda: -x),
    "jit": lambda x: jax.jit(jnp.transpose)(x),
    "barrier": lambda x: lax.optimization_barrier(lax.stop_gradient(x)),
    "name": lambda x: checkpoint_name(x, "weight"),
}


@kinds
def test_stays_quantised(kind, bulk):
    v = make(kind)
    fn = lambda x: {name: f(x) for name, f in STAYS.items()}
    got = jax.jit(forbid(fn))(v)
    for name, value in got.items():
        parts = value if isinstance(value, list) else [value]
        assert all(type(part) is type(v) for part in parts), name
    dense, want = jax.jit(jaxrewrite.materialise)(got), jax.jit(fn)(v.materialise())
    for name, value in dense.items():
        assert_same(value, want[name], 1e-2 if name == "bfloat16" else 1e-5)


def test_merging_heads_keeps_the_scales_of_heads():
    w = normal(8, 4, 16)
    v = Quantised.quantise(w, axis=1)
    merged = forbid(lambda x: x.reshape(8, 64))(v)
    assert merged.scale.shape == (1, 4)
    assert_same(merged, v.materialise().reshape(8, 64), 1e-5)
    assert_same(forbid(lambda x: x.reshape(8, 4, 16))(merged), v, 1e-5)


def test_what_would_be_no_smaller_than_dense_becomes_dense():
    v = Quantised.quantise(normal(8, 16), axis=-1)
    with pytest.raises(jaxrewrite.MaterialisationError):
        forbid(lambda x: x.reshape(-1))(v)
    with pytest.raises(jaxrewrite.MaterialisationError):
        forbid(lambda x: x * jnp.ones((8, 16)))(v)


def test_scaling_by_rows_goes_into_the_scales():
    v = Quantised.quantise(normal(8, 16), block=4)
    c = jnp.arange(16.0)[None]
    scaled = forbid(lambda x: lax.mul(x, jnp.broadcast_to(c, (8, 16))))
    with pytest.raises(jaxrewrite.MaterialisationError):
        scaled(v)
    got = jaxrewrite.bind(lax.mul_p, v, jnp.float32(3))
    assert type(got) is Quantised and got.scale.shape == (2, 16)


@pytest.mark.parametrize("seed", often(range(60), range(4)))
def test_blocks_under_any_reshape_and_slice(seed):
    rng = np.random.default_rng(seed)
    primes = list(rng.choice([2, 2, 2, 3, 1], 5))

    def shape():
        cuts = np.sort(rng.integers(0, 6, 2))
        return tuple(int(math.prod(p)) for p in np.split(primes, cuts))

    old, new = shape(), shape()
    divisors = lambda n: [k for k in range(1, n + 1) if n % k == 0]
    grid = tuple(int(rng.choice(divisors(n))) for n in old)
    shared = np.arange(math.prod(grid)).reshape(grid)
    got = reshape_blocks(shared, old, new)
    np.testing.assert_array_equal(spread(got, new), spread(shared, old).reshape(new))

    n = old[1]
    start = int(rng.integers(0, n))
    limit, step = int(rng.integers(start + 1, n + 1)), int(rng.integers(1, 3))
    got = slice_blocks(jnp.asarray(shared), 1, n, start, limit, step)
    want = spread(shared, old)[:, start:limit:step]
    np.testing.assert_array_equal(spread(got, want.shape), want)


# --- gathering --------------------------------------------------------------------------

TABLE = {
    "rows": lambda x, i: x[i],
    "columns": lambda x, i: x[:, i],
    "points": lambda x, i: x[i, 2 * i],
    "clip": lambda x, i: jnp.take(x, 5 * i, axis=0, mode="clip"),
    "fill": lambda x, i: jnp.take(x, 5 * i, axis=0, mode="fill", fill_value=7),
    "nan": lambda x, i: jnp.nan_to_num(jnp.take(x, 5 * i, axis=0), nan=3.0),
    "each its own": lambda x, i: jax.vmap(lambda row, j: row[j])(x[:4], i),
    "windows": lambda x, i: jax.vmap(lambda j: lax.dynamic_slice(x, (j, 1), (1, 4)))(i),
}


@kinds
def test_lookup_of_rows_gathers_before_it_dequantises(kind, bulk):
    v, i = make(kind), jnp.array([0, 3, -1, 2])
    fn = lambda x, i: {name: f(x, i) for name, f in TABLE.items()}
    got = jax.jit(forbid(fn))(v, i)
    assert_same(got, fn(v.materialise(), i), 1e-5)
    rows = jaxrewrite.make_jaxpr(TABLE["rows"])(v, i)
    assert not [
        eqn
        for eqn in rows.eqns
        if any(
            x.aval.shape == v.shape and jnp.issubdtype(x.aval.dtype, jnp.floating)
            for x in eqn.outvars
        )
    ]


@pytest.mark.parametrize("axis", [None, 0])
def test_rows_that_vmap_takes_are_dense_as_well(axis):
    """As Equinox looks up each row of an embedding."""
    v, i = Quantised.quantise(normal(4, 8), axis=axis), jnp.array([3, 0, -1])
    fn = lambda x, i: jax.vmap(lambda j: x[j])(i) + 1
    assert_same(forbid(fn)(v, i), fn(v.materialise(), i), 1e-5)


ONE_ROW = {
    "norm": lambda x, i: x[i] * lax.rsqrt(jnp.mean(x[i] ** 2) + 1e-6),
    "kept axis": lambda x, i: jnp.tanh(lax.dynamic_slice_in_dim(x, i, 1)),
    "known": lambda x, i: jnp.tanh(x[2]),
    "carry": lambda x, i: lax.scan(lambda y, _: (y + y[0], None), x[i], None, 2)[0],
    "difference": lambda x, i: x[i] - x[i + 1],
    "entry": lambda x, i: x[i, 3] ** 2,
}


@kinds
def test_one_row_that_is_looked_up_is_dense_as_several_are(kind):
    v = make(kind)
    fn = lambda x, i: {name: f(x, i) for name, f in ONE_ROW.items()}
    assert_same(forbid(fn)(v, jnp.int32(4)), fn(v.materialise(), jnp.int32(4)), 1e-5)


def normed(table, i):
    row = table[i]
    return row * lax.rsqrt(jnp.mean(row**2, -1, keepdims=True) + 1e-6)


@kinds
def test_rows_out_of_each_table_of_a_stack_are_activations(kind):
    v, i = make(kind, 4, 8, 16), jnp.array([[3, 0, -1]] * 4)
    assert_same(forbid(jax.vmap(normed))(v, i), jax.vmap(normed)(v.materialise(), i), 1e-5)


@kinds
def test_matrices_out_of_each_of_several_stacks_are_weights(kind):
    v, i = make(kind, 4, 3, 8, 16), jnp.array([2, 0])
    fn = jax.vmap(lambda x, i: x[i], (0, None))
    assert type(forbid(fn)(v, i)) is type(v)
    assert_same(forbid(fn)(v, i), fn(v.materialise(), i), 1e-5)


@kinds
def test_matrices_out_of_a_stack_are_weights_still(kind):
    v = make(kind, 4, 8, 16)
    dense = v.materialise()
    experts = lambda x, i, t: jnp.einsum("td,tdh->th", t, x[i])
    i, t = jnp.array([3, 0, 0]), normal(3, 8)
    chosen = forbid(lambda x, i: x[i])(v, i)
    assert type(chosen) is type(v)
    assert_same(chosen, dense[i], 1e-5)
    assert_same(forbid(experts)(v, i, t), experts(dense, i, t), 1e-5)
    one = lambda x, j, t: t @ x[j]
    assert_same(forbid(one)(v, 2, t), one(dense, 2, t), 1e-5)


# --- products ---------------------------------------------------------------------------

EINSUMS = [
    *("ij,jk->ik", "ij,jk->ki", "ij,ik->jk", "ij,i->j", "ij,ij->", "ij,kl->ikjl"),
    *("ij,ijk->ik", "ij,jki->kji", "ij,jk->jik", "ij,kij->jk"),
]


@kinds
def test_products_in_every_dimension_numbering(kind, bulk):
    v = make(kind)
    sizes = {"i": 8, "j": 16, "k": 3, "l": 5}

    def products(x):
        for equation in EINSUMS:
            operands, out = equation.split("->")
            own, other = operands.split(",")
            y = normal(*(sizes[axis] for axis in other))
            yield jnp.einsum(equation, x, y)
            yield jnp.einsum(f"{other},{own}->{out}", y, x)
        yield x @ x.T

    fn = lambda x: list(products(x))
    assert_same(jax.jit(forbid(fn))(v), fn(v.materialise()), 2e-5)


@kinds
@pytest.mark.parametrize("dtype", ["float16", slow("bfloat16")])
def test_products_in_16_bits(kind, dtype):
    v = KINDS[kind](1 + normal(1024, 8, dtype=dtype) / 8)
    x = jnp.ones((2, 1024), dtype)
    got = forbid(lambda x, v: x @ v)(x, v)
    assert got.dtype == dtype
    want = x.astype("float32") @ v.materialise().astype("float32")
    np.testing.assert_allclose(got.astype("float32"), want, rtol=2e-2)


@kinds
def test_convolution(kind, bulk):
    v, x = make(kind, 4, 8, 16), normal(2, 10, 8)

    def conv(x, w):
        return lax.conv_general_dilated(
            x, w, (1,), "SAME", dimension_numbers=("NHC", "HIO", "NHC")
        )

    assert_same(forbid(conv)(x, v), conv(x, v.materialise()), 1e-5)


def floats_of_size(tree, size):
    return [
        leaf
        for leaf in jax.tree.leaves(tree)
        if jnp.issubdtype(leaf.dtype, jnp.floating) and leaf.size >= size
    ]


class Adapted(jaxrewrite.ArrayValue):
    """A weight with a low-rank term, as an adapter has it."""

    w: jax.Array
    a: jax.Array
    b: jax.Array

    def materialise(self):
        return self.w + self.a @ self.b


@jaxrewrite.register("dot_general")
def _(x: jax.Array, v: Adapted, *, dimension_numbers, **params):
    assert dimension_numbers == (((x.ndim - 1,), (0,)), ((), ()))
    return x @ lax.stop_gradient(v.w) + (x @ v.a) @ v.b


def deep(x, ws):
    for w in ws:
        x = jnp.tanh(x @ w)
    return (x**2).sum()


@kinds
def test_no_dense_copy_is_kept_for_the_backward_pass(kind):
    v, x = make(kind, 32, 32), normal(4, 32)
    _, pullback = jax.vjp(forbid(deep), x, [v, v])
    assert not floats_of_size(pullback, v.size)
    _, pullback = jax.vjp(forbid(lambda x, v: deep(x, [v, v.T])), x, v)
    assert not floats_of_size(pullback, v.size)
    _, pullback = jax.vjp(jax.jit(forbid(deep)), x, [v, v])
    assert not floats_of_size(pullback, v.size)


@pytest.mark.skipif(
    jax.__version_info__ < (0, 11), reason="its compiler makes all layers dense at once"
)
def test_one_layer_at_a_time_is_dense():
    """Compiled without reordering, which holds more arrays in memory at a time."""
    v, x = make("nf4", 256, 256), normal(4, 256)
    gradient = jax.jit(jax.grad(forbid(deep))).lower(x, [v] * 6)
    options = {"xla_cpu_enable_concurrency_optimized_scheduler": False}
    memory = gradient.compile(compiler_options=options).memory_analysis()
    assert memory.temp_size_in_bytes < 1.5 * 4 * v.size


@kinds
def test_an_adapter_on_a_quantised_weight_trains(kind, bulk):
    v, x = make(kind, 32, 32), normal(4, 32)
    a, b = normal(32, 2), normal(2, 32, seed=1)
    adapters = [(a, b), (b.T, a.T)]

    def loss(adapters, v):
        return forbid(deep)(x, [Adapted(v, a, b) for a, b in adapters])

    def dense(adapters, w):
        return deep(x, [w + a @ b for a, b in adapters])

    _, pullback = jax.vjp(lambda adapters: loss(adapters, v), adapters)
    assert not floats_of_size(pullback, v.size)
    got = jax.jit(jax.grad(loss))(adapters, v)
    assert_same(got, jax.grad(dense)(adapters, v.materialise()), 1e-4)
    peak = jax.jit(jax.grad(loss)).lower(adapters, v).compile().memory_analysis()
    assert peak.argument_size_in_bytes < v.nbytes + 2 * 4 * 4 * 32 * 2 + 512


def instructions(fn, *args):
    text = jax.jit(fn).lower(*args).compile().as_text()
    return len(re.findall(r"^\s+(?:ROOT )?\S+ = ", text, re.MULTILINE))


def test_a_product_is_that_by_hand():
    x = normal(4, 256)
    v = Quantised.quantise(normal(256, 128), axis=1)

    def by_hand(x, q, s):
        x, q = lax.optimization_barrier((x, q))
        return (x @ q.astype(x.dtype)) * s

    product = forbid(lambda x, v: x @ v)
    assert instructions(product, x, v) == instructions(by_hand, x, v.q, v.scale)

    v = Quantised.quantise(normal(256, 128), 4, block=64)

    def by_hand(x, q, s):
        x, q = lax.optimization_barrier((x, q))
        blocks = q.astype(x.dtype).reshape(4, 64, 128) * s[:, None]
        return x @ blocks.reshape(256, 128)

    assert instructions(product, x, v) == instructions(by_hand, x, v.q, v.scale)


@pytest.mark.parametrize("blocks", [(1, 16), (2, 16)])
def test_gradients_of_scale_and_zero(blocks, bulk):
    q = Quantised.quantise(normal(8, 16)).q
    scale = 1 + normal(*blocks) / 4
    v = Quantised(q, scale, normal(*blocks, seed=1))
    fn = lambda x: jnp.sin(normal(3, 8) @ x / 50).sum() + (x[:, :2] @ x[:2]).sum() / 1e3
    got = jax.jit(jax.grad(forbid(fn), allow_int=True))(v)
    want = jax.jit(jax.grad(lambda v: fn(v.materialise()), allow_int=True))(v)
    assert_same([got.scale, got.zero], [want.scale, want.zero], 1e-4)
    assert got.q.dtype == jax.dtypes.float0


# --- in programs -------------------------------------------------------------------------


def test_branches_of_different_granularity_join():
    w = normal(8, 16)
    v, u = Quantised.quantise(w, axis=1), Quantised.quantise(w, block=4)
    fn = forbid(lambda p, v, u: lax.cond(p, lambda: v, lambda: u))
    assert fn(jnp.array(True), v, u).scale.shape == (2, 16)
    assert_same(fn(jnp.array(True), v, u), v, 1e-5)
    assert_same(fn(jnp.array(False), v, u), u, 1e-5)


def forward(x, ws):
    return lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, ws)[0]


@kinds
def test_a_loop_over_layers(kind, bulk):
    layers = [make(kind, 16, 16, seed=i) for i in range(3)]
    x, dense = normal(2, 16), jnp.stack([v.materialise() for v in layers])
    assert_same(forbid(forward)(x, jaxrewrite.stack(layers)), forward(x, dense), 1e-5)


@kinds
def test_a_loop_over_a_quantised_stack(kind, bulk):
    """Layers that were quantised by `jax.vmap` have scales of their own, one set for each turn."""
    v, x = jax.vmap(KINDS[kind])(normal(3, 16, 16)), normal(2, 16)
    assert v.shape == (3, 16, 16)
    assert_same(forbid(forward)(x, v), forward(x, v.materialise()), 1e-5)


def test_what_a_loop_gives_is_quantised_with_one_more_axis():
    v = make("blocks")
    fn = lambda x: lax.scan(lambda c, i: (c, x * i), 0, jnp.arange(1.0, 4.0))[1]
    got = forbid(fn)(v)
    assert type(got) is Quantised and got.shape == (3, 8, 16)
    assert_same(got, fn(v.materialise()), 1e-5)


@pytest.mark.parametrize("kind", ["channels", slow("blocks")])
def test_shards(kind):
    mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Auto,))
    v, x = make(kind), normal(3, 8)
    for spec in (PartitionSpec(None, "x"), PartitionSpec("x")):
        summed = (lambda y: lax.psum(y, "x")) if spec[0] else (lambda y: y)
        fn = jax.shard_map(
            lambda x, w, summed=summed: summed(x @ w),
            mesh=mesh,
            in_specs=(PartitionSpec(None, spec[0]), spec),
            out_specs=PartitionSpec() if spec[0] else spec,
        )
        assert_same(jax.jit(forbid(fn))(x, v), x @ v.materialise(), 1e-5)


@pytest.mark.skipif(
    not jaxrewrite._compat.JAX_GE_0_11_1, reason="JAX reshapes no such shards"
)
@pytest.mark.parametrize("kind", ["affine", "nf4"])
def test_quantising_shards_of_explicit_axes(kind):
    mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Explicit,))
    w, quantised = normal(8, 8), lambda w: KINDS[kind](w).materialise()
    with jax.set_mesh(mesh):
        got = quantised(jax.device_put(w, NamedSharding(mesh, PartitionSpec(None, "x"))))
    assert_same(got, quantised(w), 1e-5)


# --- models -----------------------------------------------------------------------------


class Decoder(nn.Module):
    """Attention, a fused projection, a tied embedding."""

    @nn.compact
    def __call__(self, tokens):
        embed = nn.Embed(32, 16)
        x = embed(tokens)
        x = x + nn.MultiHeadDotProductAttention(num_heads=2)(nn.LayerNorm()(x))
        gate, up = jnp.split(nn.Dense(64)(nn.LayerNorm()(x)), 2, -1)
        x = x + nn.Dense(16)(jax.nn.silu(gate) * up)
        return embed.attend(x)


OPTIONS = {
    "int8": ({"bits": 8, "axis": -1}, {"bits": 8, "axis": -1}),
    "int4": ({"bits": 4, "block": 8}, {"bits": 4, "block": (1, 8, 1)}),
    "nf4": ({"bits": "nf4", "block": 8}, {"bits": "nf4", "block": (2, 4, 1)}),
}


@pytest.mark.slow
@pytest.mark.parametrize(("options", "of_heads"), OPTIONS.values(), ids=OPTIONS)
def test_a_flax_model(options, of_heads, bulk):
    tokens = jnp.arange(10).reshape(2, 5) % 32
    model = Decoder()
    params = jax.jit(model.init)(jax.random.key(0), tokens)
    is_weight = lambda path, leaf: path.endswith(("kernel", "embedding"))
    quantised = quantise(params, lambda path, _: path.endswith("out/kernel"), **of_heads)
    quantised = quantise(quantised, is_weight, **options)
    dense = jaxrewrite.materialise(quantised)

    def run(apply, params):
        """The result; and how what is not quantised would be trained."""

        def loss(norm):
            out = apply({"params": params["params"] | {"LayerNorm_0": norm}}, tokens)
            return (out**2).mean(), out

        return jax.grad(loss, has_aux=True)(params["params"]["LayerNorm_0"])

    got = jax.jit(lambda params: run(forbid(model.apply), params))(quantised)
    assert_same(got, jax.jit(lambda params: run(model.apply, params))(dense), 1e-3)


@pytest.mark.slow
def test_an_equinox_model(bulk):
    model = eqx.nn.MLP(8, 4, 16, 2, key=jax.random.key(0))
    seen = []

    def where(path, leaf):
        seen.append(path)
        return path.endswith("weight")

    quantised = quantise(model, where, axis=0)
    assert "layers/0/weight" in seen and "layers/0/bias" in seen
    assert isinstance(quantised.layers[1].weight, Quantised)
    x = normal(8)
    call = lambda m, x: m(x)
    dense = jaxrewrite.materialise(quantised)
    assert_same(
        eqx.filter_jit(forbid(call))(quantised, x), eqx.filter_jit(call)(dense, x), 1e-5
    )


@pytest.mark.slow
def test_an_nnx_model(bulk):
    graph, state = nnx.split(nnx.Linear(16, 8, rngs=nnx.Rngs(0)))
    state = nnx.to_pure_dict(state)
    quantised = quantise(state, lambda path, _: path == "kernel", "nf4", block=8)
    apply = lambda state, x: nnx.merge(graph, nnx.State(state))(x)
    x = normal(2, 16)
    assert_same(forbid(apply)(quantised, x), x @ quantised["kernel"].materialise(), 1e-5)


@pytest.mark.parametrize(
    "options", [{"axis": 0}, {"block": 8}, {"bits": "nf4", "block": 8}, {"bits": "mxfp4"}]
)
def test_the_predicate_sees_arrays_alone(options):
    """Models have functions, integers and random keys among their leaves."""
    is_matrix = lambda path, leaf: leaf.ndim == 2
    mlp = quantise(eqx.nn.MLP(32, 4, 16, 1, key=jax.random.key(0)), is_matrix, **options)
    assert not isinstance(mlp.layers[0].weight, jax.Array)
    dropout = nnx.Sequential(nnx.Linear(32, 8, rngs=nnx.Rngs(0)), nnx.Dropout(0.5))
    state = quantise(nnx.state((dropout, nnx.Rngs(0))), is_matrix, **options)
    is_value = lambda leaf: isinstance(leaf, jaxrewrite.Value)
    assert any(map(is_value, jax.tree.leaves(state, is_leaf=is_value)))


# --- what is refused ----------------------------------------------------------------------

Q, S = jnp.ones((8, 6), jnp.int8), jnp.ones((4, 1))
BAD = {
    "`q` must": lambda: Quantised(Q.astype(jnp.int32), S),
    "`scale` must be real": lambda: Quantised(Q, S.astype(jnp.int32)),
    "`scale` must have as many axes": lambda: Quantised(Q, S[0]),
    "`scale` must have .*divide": lambda: Quantised(Q, jnp.ones((3, 1))),
    "`zero` must have": lambda: Quantised(Q, S, jnp.ones((4, 4))),
    "`bits`": lambda: Quantised.quantise(jnp.ones(4), 9),
    "`block` .*does not divide": lambda: Quantised.quantise(jnp.ones((8, 6)), block=3),
    "`block` is": lambda: Quantised.quantise(jnp.ones((8, 6)), block=(2,)),
    "`block` .0": lambda: Quantised.quantise(jnp.ones((8, 6)), block=0),
    "`axis` 2": lambda: Quantised.quantise(jnp.ones((8, 6)), axis=2),
    "`axis` or `block`": lambda: Quantised.quantise(jnp.ones((8, 6)), axis=1, block=2),
    "`w` has": lambda: Quantised.quantise(jnp.array([1.0, jnp.nan])),
    "NF4: `w` has": lambda: NF4.quantise(jnp.full(64, jnp.inf)),
    "`w` must": lambda: Quantised.quantise(jnp.arange(3)),
    "`block` .64, 1": lambda: NF4.quantise(jnp.ones((32, 2))),
    "`scale_block`": lambda: NF4.quantise(jnp.ones((64, 2)), scale_block=0),
    "`codes` must": lambda: NF4(Q, Q, S, S),
    "`scale_q` must": lambda: NF4(Q.astype(jnp.uint4), S, S, S),
    "`scale_mean` must": lambda: NF4(Q.astype(jnp.uint4), Q, S, Q),
    "where chose none of the leaves: a.": lambda: quantise(
        {"a": S}, lambda path, _: path == "b"
    ),
    r"chose none of the leaves: a/0(, a/\d+){19}\.?$": lambda: quantise(
        {"a": [S] * 20}, lambda *_: False
    ),
    "no leaf that where may choose. Others can't be chosen: a.": lambda: quantise(
        {"a": Quantised.quantise(jnp.ones((2, 2)))}, lambda *_: True
    ),
    "quantise: axes says .0, 1. of a. It must be": lambda: quantise(
        {"a": S}, lambda *_: True, axes=(0, 1)
    ),
    "quantise: axes says 'x' of a": lambda: quantise({"a": S}, lambda *_: True, axes="x"),
    "a has an axis that is twice": lambda: quantise(
        {"a": S}, lambda *_: True, axes=((0,), (-2,))
    ),
    "a/19, and 1 more": lambda: quantise({"a": [S] * 21}, lambda *_: False),
    "bits is 'NF4'.*'nf4'": lambda: quantise({"a": S}, lambda *_: True, "NF4"),
    "bits is 'int8'.* 2 to 8": lambda: quantise({"a": S}, lambda *_: True, "int8"),
    "`a/b` can't": lambda: quantise({"a": {"b": S * jnp.nan}}, lambda *_: True),
    "no leaf .* can't be chosen: a/b, c.": lambda: quantise(
        {"a": {"b": Q}, "c": 2.0}, lambda *_: True
    ),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_input(message):
    with pytest.raises(ValueError, match=message):
        BAD[message]()


def test_the_smallest_blocks_are_allowed():
    w = normal(8, 6)
    assert NF4.quantise(w, 1, scale_block=1).scale_scale.shape == (8, 6)
    v = Quantised.quantise(w, block=1)
    assert_same(v, w, 1e-5)


def test_under_jit_numbers_are_not_checked():
    v = jax.jit(lambda w: Quantised.quantise(w, axis=0))(normal(8, 16))
    assert_same(v, Quantised.quantise(normal(8, 16), axis=0), 1e-5)


QUANTISERS = {
    "int8": lambda w: Quantised.quantise(w, axis=1),
    "affine": lambda w: Quantised.quantise(w, 4, block=64, symmetric=False),
    "NF4": NF4.quantise,
    "float8": lambda w: Float8.quantise(w, axis=1),
}


@pytest.mark.parametrize("number", ["nan", "inf"])
@pytest.mark.parametrize("kind", QUANTISERS)
def test_under_jit_what_is_not_finite_shows(kind, number, optimised):
    """XLA on a CPU loses a NaN in the maximum of many floats, which left zeros."""
    w = normal(512, 16).at[300, 5].set(float(number))
    dense = jax.jit(lambda w: QUANTISERS[kind](w).materialise())(w)
    assert not jnp.isfinite(dense[300, 5])


def test_values_in_the_tree_are_left_alone():
    v = make("channels")
    tree = quantise({"a": v, "b": normal(8, 16)}, lambda *_: True)
    assert tree["a"] is v and isinstance(tree["b"], Quantised)

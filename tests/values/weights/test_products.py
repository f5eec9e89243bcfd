"""Products of quantised weights in blocks, against the dense ones in float64."""

import functools
import itertools
import math

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from choose import slow
from jax import lax
from jax.sharding import PartitionSpec as P
from oracle import forbid, normal
from weight_products import PRODUCTS, same

import jaxrewrite
from jaxrewrite import _compat
from jaxrewrite.values import NF4, Coded, Float8, Lora, Product, Quantised, Scaled, quantise
from jaxrewrite.values._base import in_blocks, products as of_dtypes
from jaxrewrite.values._weights import blocks as of_blocks, products
from jaxrewrite.values._weights.blocks import Block, block_for


KINDS = {
    "columns": lambda w: Quantised.quantise(w, axis=1),
    "rows": lambda w: Quantised.quantise(w, axis=0),
    "int4": lambda w: Quantised.quantise(w, 4, block=4),
    "affine": lambda w: Quantised.quantise(w, block=(3, 4), symmetric=False),
    "affine int4": lambda w: Quantised.quantise(w, 4, block=(4, 1), symmetric=False),
    "nf4": lambda w: NF4.quantise(w, 4, scale_block=8),
    "2 bits": lambda w: Quantised.quantise(w, 2, block=4),
    "3 bits": lambda w: Quantised.quantise(w, 3, axis=1, symmetric=False),
    "6 bits": lambda w: Quantised.quantise(w, 6, block=(3, 4)),
    "float8": lambda w: Float8.quantise(w, block=4),
    "float8 e5m2": lambda w: Float8.quantise(w, "float8_e5m2", axis=1),
}
# Blocks that fit the 24 x 20 weight and its scales, and blocks that do not.
BLOCKS = [Block(0, 8), Block(0, 5), Block(1, 4), Block(1, 7)]
IN_SHORT = {("affine int4", BLOCKS[0])}


def cases(pairs, in_short):
    return [
        pytest.param(*pair) if pair in in_short else slow(pytest.param(*pair))
        for pair in pairs
    ]


@pytest.fixture
def blocks(monkeypatch):
    """All weights are multiplied in these blocks, on one device."""
    monkeypatch.setattr(products, "_may_be_split", lambda: False)
    monkeypatch.setattr(products, "_SMALLEST_IN_DIGITS", math.inf)

    def use(block):
        def own(shape, grids, rows, *_):
            axis = block.axis + len(shape) - 2
            return Block(axis, min(block.size, shape[axis])) if rows else None

        monkeypatch.setattr(products, "block_for", own)
        jaxrewrite.clear_caches()

    return use


@pytest.mark.parametrize(
    ("kind", "block"), cases(itertools.product(KINDS, BLOCKS), IN_SHORT), ids=str
)
def test_products_and_gradients_are_those_of_the_dense_weight(kind, block, blocks, bulk):
    blocks(block)
    v = jax.jit(KINDS[kind])(normal(24, 20))
    xs = {name: normal(*shape, seed=1) for name, (_, shape) in PRODUCTS.items()}

    def results(v, xs, call):
        return {name: call(fn)(v, xs[name]) for name, (fn, _) in PRODUCTS.items()}

    def loss(v, xs, call=lambda fn: fn):
        return sum((y**2).sum() for y in results(v, xs, call).values())

    def scaled(s, xs):
        return loss(v.map_scales(lambda scale: scale * s), xs, forbid)

    got = jax.jit(lambda v, xs: results(v, xs, forbid))(v, xs)
    slopes = jax.jit(jax.grad(scaled, (0, 1)))(jnp.float32(1.0), xs)
    with jax.enable_x64(True):
        wide = lambda x: jnp.asarray(np.asarray(x, np.float64))
        w, ys = wide(v.materialise()), jax.tree.map(wide, xs)
        want = results(w, ys, lambda fn: fn)
        expected = jax.grad(lambda s, xs: loss(w * s, xs), (0, 1))(1.0, ys)
    same(got, want)
    same(slopes, expected)


COMPOSITIONS = {
    "vmap": lambda v, x: jax.vmap(lambda row: row @ v)(x),
    "vmap of weights": lambda v, x: jax.vmap(lambda v: x @ v)(jnp.stack([v, v * 2])),
    "scan": lambda v, x: lax.scan(
        lambda x, u: (jnp.tanh(x @ u) @ v.T, None), x, jnp.stack([v, v / 2])
    )[0],
    "remat": lambda v, x: jax.checkpoint(lambda x: jnp.tanh(x @ v) @ v.T)(x),
    "batched": lambda v, x: jnp.einsum("bi,bij->bj", x[:2], jnp.stack([v, v])),
}


@pytest.mark.slow
@pytest.mark.parametrize("base", ["alone", "in a Lora"])
@pytest.mark.parametrize("kind", ["columns", "int4", "nf4", "3 bits", "float8"])
def test_compositions(kind, base, blocks, bulk):
    blocks(Block(0, 8))
    v, x = jax.jit(KINDS[kind])(normal(24, 20)), normal(3, 24, seed=1)
    if base == "in a Lora":
        v = Lora(v, normal(24, 2), normal(2, 20), 0.5)

    def everything(v, x):
        return {name: fn(v, x) for name, fn in COMPOSITIONS.items()}

    def loss(x, v, fn=everything):
        return sum((y**2).sum() for y in jax.tree.leaves(fn(v, x)))

    implicit = jaxrewrite.transform(everything, materialise="allow")
    dense = jaxrewrite.materialise(v)
    same(jax.jit(implicit)(v, x), jax.jit(everything)(dense, x), 3e-5)
    slope = jax.jit(jax.grad(functools.partial(loss, fn=implicit)))(x, v)
    same(slope, jax.jit(jax.grad(loss))(x, dense), 3e-5)


@pytest.mark.parametrize("bits", [slow(4), 8, slow("nf4")])
def test_a_block_is_all_that_is_dense(bits, blocks, optimised):
    """Forward and backward, one layer or several in a loop, at once or one by one."""
    blocks(Block(0, 64))
    n, size = 1024, 1024 * 1024
    x = normal(2, n)
    layers = lambda x, vs: lax.scan(lambda x, v: (jnp.tanh(x @ v), None), x, vs)[0]
    dense = jax.ShapeDtypeStruct((n, n), "float32")
    v = jax.eval_shape(lambda w: quantise([w], lambda *_: True, bits, block=64)[0], dense)
    vs = jax.tree.map(lambda s: jax.ShapeDtypeStruct((2, *s.shape), s.dtype), v)
    for fn, values, slices in (
        (lambda x, v: x @ v, v, 0),
        (lambda x, v: jax.vmap(lambda x: x @ v)(x), v, 0),
        (jax.checkpoint(lambda x, v: jnp.tanh(x @ v) @ v), v, 0),
        (layers, vs, 2.5),
    ):
        slope = jax.grad(lambda x, v, fn=fn: forbid(fn)(x, v).sum())
        for program in (forbid(fn), slope):
            memory = jax.jit(program).lower(x, values).compile().memory_analysis()
            # Loops copy the codes of a layer, between two and three times. Floats of one block
            # are there.
            codes = size if bits == 8 else size // 2
            limit = slices * codes + 0.6 * size + 4 * 64 * n * 2
            assert memory.temp_size_in_bytes < limit, (fn, memory)


@hypothesis.given(
    shape=st.lists(st.integers(1, 3000), min_size=1, max_size=3),
    runs=st.lists(st.integers(1, 12), min_size=3, max_size=3),
    rows=st.integers(0, 600),
    summed=st.sets(st.integers(0, 2)),
)
@hypothesis.settings(deadline=None)
def test_blocks_are_of_the_array_and_small(shape, runs, rows, summed):
    grid = [math.gcd(n, r) for n, r in zip(shape, runs, strict=False)]
    block = block_for(shape, [grid], rows, summed=summed)
    if block is None:
        return
    axis, size = block
    assert 1 <= size <= shape[axis]
    entries = math.prod(shape) // shape[axis] * size
    assert entries <= of_blocks._MOST_ENTRIES


def test_blocks_are_larger_where_each_step_writes_many_results():
    def lengths(summed, shape=(2048, 2**15)):
        rows = (8, 64, 256)
        return [block_for(shape, [(1, 1)], count, summed=summed).size for count in rows]

    assert lengths({1}) == [32, 32, 64]
    assert lengths({0}) == [32, 128, 128]


@pytest.mark.parametrize(
    ("bits", "rows", "least"),
    [
        (8, 1, 19),
        (8, 4, 19),
        (8, 5, 22),
        (8, 512, 22),
        (4, 4, 19),
        (4, 32, 21),
        (4, 33, 22),
    ],
)
def test_a_weight_is_large_as_its_documentation_says(bits, rows, least):
    least = least if _compat.JAX_GE_0_11_1 else 19
    for shape in [(2**9, 2 ** (least - 9)), (2 ** (least - 9), 2**9)]:
        assert block_for(shape, [(1, 1)], rows, bits) is not None
        assert block_for((shape[0] - 1, shape[1]), [(1, 1)], rows, bits) is None


@pytest.mark.parametrize("rows", [4, 64])
@pytest.mark.parametrize("bits", [slow(4), 8, slow("nf4")])
def test_dense_weights_of_layers_are_not_there_at_once(
    bits, rows, on_one_device, optimised
):
    """Those of layers one after the other, without a loop."""
    n, count = 1024, 8
    make = (
        NF4.quantise if bits == "nf4" else lambda w: Quantised.quantise(w, bits, block=64)
    )
    v = jax.eval_shape(make, jax.ShapeDtypeStruct((n, n), "float32"))

    def layers(x, vs):
        for v in vs:
            x = jnp.tanh(x @ v)
        return x

    x = jax.ShapeDtypeStruct((rows, n), "float32")
    memory = jax.jit(forbid(layers)).lower(x, [v] * count).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 3 * 4 * n * n


def test_the_program_of_one_device_is_known():
    mesh = jax.make_mesh((2,), ("i",), (jax.sharding.AxisType.Auto,))
    found = []

    def body(x):
        found.append(products._may_be_split())
        return x

    jax.make_jaxpr(jax.shard_map(body, mesh=mesh, in_specs=P("i"), out_specs=P("i")))(
        jnp.ones(2)
    )
    assert products._may_be_split() and not any(found)


def test_a_weight_that_may_be_on_several_devices_is_not_looped_over(blocks):
    """A loop over a split weight would gather it at each of its steps."""
    x, v = normal(2, 1024), KINDS["columns"](normal(1024, 1024))
    assert jax.device_count() > 1 and products._may_be_split.__name__ == "<lambda>"
    count = lambda: str(jax.make_jaxpr(forbid(lambda x, v: x @ v))(x, v)).count("scan[")
    blocks(Block(0, 64))
    assert count() == 1
    products._may_be_split = lambda: True
    jaxrewrite.clear_caches()
    assert count() == 0


def test_another_platform_has_the_whole_weight(blocks):
    blocks(Block(0, 64))
    x, v = normal(2, 256), KINDS["columns"](normal(256, 256))
    traced = jax.jit(forbid(lambda x, v: x @ v)).trace(x, v)
    texts = {p: traced.lower(lowering_platforms=(p,)).as_text() for p in ("cpu", "cuda")}
    assert "while" in texts["cpu"] and "while" not in texts["cuda"]


TURNED = {
    "x @ v.T": (lambda v, x: x @ v.T, (3, 20)),
    "v.T @ x": (lambda v, x: v.T @ x, (24, 3)),
    "batched": (lambda v, x: jnp.stack([v, v]).mT @ x, (2, 24, 3)),
    "both": (lambda v, x: jnp.stack([v.T @ v, v.T.T.T @ v]), (0,)),
    "used otherwise": (
        lambda v, x: (lambda t: (x @ t)[:, ::2] @ t[:, ::2].T)(v.T),
        (3, 20),
    ),
    "of three axes": (
        lambda v, x: jnp.tensordot(v.reshape(4, 6, 20).T, x, ((1,), (0,))),
        (6, 3),
    ),
    "of three axes, in order": (
        lambda v, x: jnp.tensordot(x, v.reshape(4, 6, 20).transpose(1, 0, 2), 1),
        (3, 6),
    ),
}


@pytest.mark.parametrize("kind", cases([(k,) for k in KINDS], [("int4",)]))
@pytest.mark.parametrize("base", ["alone", slow("in a Lora")])
def test_products_with_transposes(kind, base, bulk):
    v = jax.jit(KINDS[kind])(normal(24, 20))
    if base == "in a Lora":
        v = Lora(v, normal(24, 2), normal(2, 20), 0.5)
    xs = {name: normal(*shape, seed=1) for name, (_, shape) in TURNED.items()}
    w = np.asarray(jaxrewrite.materialise(v), "f8")
    implicit = functools.partial(jaxrewrite.transform, materialise="allow")
    results = lambda v, xs: {k: implicit(fn)(v, xs[k]) for k, (fn, _) in TURNED.items()}
    with jax.enable_x64(True):
        want = {
            k: fn(jnp.asarray(w), jnp.asarray(xs[k], "f8")) for k, (fn, _) in TURNED.items()
        }
    got = jaxrewrite.materialise(jax.jit(results)(v, xs))
    same(got, want, 1e-5)
    eager = jaxrewrite.materialise(results(v, xs)) if base == "alone" else got
    same(eager, want, 1e-5)


@pytest.mark.parametrize("kind", ["int4", "nf4", "3 bits"])
def test_products_with_transposes_leave_the_codes_where_they_are(kind):
    """XLA on a CPU takes longer to move codes of four bits than to multiply with them."""
    v = jax.eval_shape(KINDS[kind], jax.ShapeDtypeStruct((24, 20), "float32"))
    programs = [(*TURNED[name], v) for name in ("x @ v.T", "v.T @ x", "batched")]
    programs += [(lambda v, x: x @ v.T.T.T, (3, 20), v)]
    programs += [(*TURNED["x @ v.T"], Lora(v, normal(24, 2), normal(2, 20), 0.5))]
    for fn, shape, value in programs:
        jaxpr = jaxrewrite.make_jaxpr(fn)(value, normal(*shape)).jaxpr
        moved = [eqn.invars[0] for eqn in jaxpr.eqns if eqn.primitive.name == "transpose"]
        assert all(x.aval.dtype == "float32" and x.aval.size < v.size for x in moved)


class Masks(Coded):
    """A user's format: integers of four bits, and two fields for each block."""

    bits: jax.Array
    scale: jax.Array
    shift: jax.Array

    def levels(self):
        return self.bits.astype(self.scale.dtype) % 3

    def scale_of_blocks(self):
        return self.scale

    def map_scales(self, change):
        return Masks(self.bits, change(self.scale), self.shift)


def test_formats_of_users_may_have_packed_codes():
    codes = Quantised.quantise(normal(24, 20), 4).q
    v = Masks(codes, normal(2, 1), normal(1, 1))
    assert repr(v).startswith("Masks<f32[24,20], 252 B>(bits=Nibbles<i4[24,20]")
    assert v.aval().shape == v.materialise().shape == (24, 20)


def test_formats_of_users_are_multiplied_in_blocks(blocks, bulk):
    v = Masks(jnp.arange(96, dtype="uint4").reshape(8, 12), normal(2, 1), normal(1, 1))
    x = normal(3, 8)
    want = np.asarray(x, np.float64) @ np.asarray(v.materialise(), np.float64)
    for block in BLOCKS:
        blocks(block)
        same(forbid(lambda x, v: x @ v)(x, v), want)


@pytest.mark.parametrize("in_blocks", [False, True])
@pytest.mark.parametrize("kind", cases([(k,) for k in KINDS], [("int4",)]))
def test_products_can_be_transposed(kind, in_blocks, blocks, bulk):
    """JAX transposes a function that is linear in the other operand, not in the weight."""
    if in_blocks:
        blocks(Block(0, 8))
    v, x = KINDS[kind](normal(24, 20)), normal(3, 24)
    for w in (v, Lora(v, normal(24, 2), normal(2, 20), 0.5)):
        multiply = lambda x, w=w: forbid(lambda x, w: x @ w)(x, w)
        y = x @ v.materialise()
        (got,) = jax.jit(jax.linear_transpose(multiply, x))(y)
        want = y @ jaxrewrite.materialise(w).T
        np.testing.assert_allclose(got, want, 1e-4, 1e-4)


@jax.custom_jvp
def doubled(x):
    return 2 * x


doubled.defjvp(lambda primals, tangents: (doubled(*primals), 2 * tangents[0]))


def test_tangents_of_values_with_quantised_parts_can_be_transposed(bulk):
    w, number = normal(4, 4), jnp.float32(2)
    for make in (KINDS["columns"], KINDS["nf4"]):
        v = make(w)
        for value in (Product((v, w)), Product((w, v)), Scaled(v, number), Lora(v, w, w)):
            leaves, treedef = jax.tree.flatten(value)
            where = [i for i, x in enumerate(leaves) if x.dtype == "float32"]

            def total(floats, fn, leaves=leaves, treedef=treedef, where=where):
                filled = dict(enumerate(leaves)) | dict(zip(where, floats, strict=True))
                return fn(treedef.unflatten(filled.values())).sum()

            floats = [leaves[i] for i in where]
            implicit = lambda v: jaxrewrite.materialise(
                jaxrewrite.transform(doubled, materialise="allow")(v)
            )
            dense = lambda v: 2 * jaxrewrite.materialise(v)
            got, want = (
                jax.jit(jax.grad(functools.partial(total, fn=fn)))(floats)
                for fn in (implicit, dense)
            )
            for g, d in zip(got, want, strict=True):
                np.testing.assert_allclose(g, d, 1e-4, 1e-4)


def test_divisions_by_zero_are_those_of_the_dense_weight(bulk):
    w = jnp.array([[1.0, -2.0, 0.5, 4.0]] * 12) * jnp.arange(1, 13)[:, None]
    for kind in ("affine", "nf4"):
        v = KINDS[kind](w)
        got = forbid(lambda v: v / 0)(v).materialise()
        np.testing.assert_array_equal(got, v.materialise() / 0, err_msg=kind)


def test_blocks_of_an_odd_number_of_columns_are_not_repeated(blocks):
    blocks(Block(0, 64))
    q = jnp.ones((512, 30), jnp.int4)
    v, x = Quantised(q, jnp.ones((512, 6))), normal(2, 512)
    text = str(jax.make_jaxpr(forbid(lambda v, x: x @ v))(v, x))
    assert "f32[512,15]" not in text
    same(forbid(lambda v, x: x @ v)(v, x), np.asarray(x) @ np.ones((512, 30)))


def test_blocks_read_the_other_operand_where_it_lies(blocks):
    """In an order of blocks it would be written twice, and each copy takes a kernel of its own."""
    blocks(Block(0, 64))
    v, x = Quantised.quantise(normal(512, 32), axis=1), normal(2, 512)
    text = str(jax.make_jaxpr(forbid(lambda v, x: x @ v))(v, x))
    assert "dynamic_slice" in text and "f32[8,2,64]" not in text


def test_blocks_and_what_is_left_over_count_with_any_integers(blocks):
    """A number of Python has 64 bits where JAX's setting allows it, and a loop counts in 32."""
    blocks(Block(0, 8))
    v, x = jax.jit(KINDS["affine int4"])(normal(20, 6)), normal(3, 20)
    with jax.enable_x64(True):
        same(forbid(lambda v, x: x @ v)(v, x), x @ v.materialise())


def test_blocks_that_fit_neither_the_length_nor_the_runs_are_large():
    """They had one row each. Of runs that are shorter they are whole ones."""
    assert block_for((3 * 1009, 4096), [(3, 4096)], 16) == Block(0, 2**20 // 4096)
    assert block_for((12 * 1009, 4096), [(1009, 1)], 16) == Block(0, 12 * 21)


def test_a_block_of_one_long_row_is_a_block():
    assert block_for((32, 2**20), [(1, 1)], 16) == Block(0, 1)


@pytest.mark.parametrize("shape", [(8, 12), (12, 8)])
def test_blocks_are_of_rows(shape, monkeypatch):
    monkeypatch.setattr(in_blocks, "_LEAST", 1)
    monkeypatch.setattr(in_blocks, "_ENTRIES", {math.inf: 8})
    monkeypatch.setattr(in_blocks, "may_be_split", lambda: False)
    w, x = normal(*shape), normal(shape[1], 3, seed=1)
    product = jax.jit(lambda w, x: in_blocks.multiply(jnp.sin, (w,), x))
    same(product(w, x), jnp.sin(w) @ x)


def test_a_number_of_columns_that_is_not_known_when_it_is_exported(monkeypatch):
    monkeypatch.setattr(in_blocks, "_LEAST", 1)
    monkeypatch.setattr(in_blocks, "may_be_split", lambda: False)
    product = lambda w, x: in_blocks.multiply(jnp.sin, (w,), x)
    columns, _ = jax.export.symbolic_shape("columns, 8")
    w, x = normal(8, 8), normal(8, 3, seed=1)
    exported = jax.export.export(jax.jit(product))(
        w, jax.ShapeDtypeStruct((8, columns), "f4")
    )
    same(exported.call(w, x), jnp.sin(w) @ x)


@pytest.mark.parametrize(
    "dtype, promoted",
    [
        *(
            ("float8_e4m3fn", "bfloat16"),
            ("float8_e5m2", "bfloat16"),
            ("float16", "float16"),
        ),
        *(("int4", "int8"), ("uint4", "uint8"), ("int8", "int8"), ("float32", "float32")),
        *(("uint16", "uint16"), ("bool", "bool"), ("complex64", "complex64")),
    ],
)
def test_dtypes_of_few_bits_are_promoted_as_wider_ones(dtype, promoted):
    assert jnp.dtype(of_dtypes._of_bytes(jnp.dtype(dtype))) == promoted


def test_integers_alone_are_not_multiplied_in_16_bits():
    wide = lambda *names: of_dtypes._wide(*map(jnp.dtype, names))
    assert wide("int16", "int8", "bfloat16") == wide("int8", "int8", "float16") == "float32"
    assert wide("bfloat16", "int8", "bfloat16") == "bfloat16"

"""Products of quantised weights with one row, against the dense ones in float64."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from choose import slow
from oracle import forbid, normal
from test_digits import ROWS, error
from test_products import KINDS
from weight_products import same as within

import jaxrewrite
from jaxrewrite._insight import costs
from jaxrewrite.values import NF4, Lora, Quantised
from jaxrewrite.values._weights import products, rows
from jaxrewrite.values._weights.blocks import Block


same = functools.partial(within, tolerance=2e-6)


@pytest.fixture
def in_rows(on_one_device, monkeypatch):
    """Small weights are multiplied with one row so, too, on one device."""
    monkeypatch.setattr(rows, "_SMALLEST", 1)
    monkeypatch.setattr(rows, "_ROWS_OF_SUMS", 2)
    monkeypatch.setattr(
        products, "_rows_for_digits", lambda: products._Rows(math.inf, True)
    )
    monkeypatch.setattr(products, "_SMALLEST_IN_DIGITS", 1)
    monkeypatch.setattr(products, "block_for", lambda shape, *_: Block(len(shape) - 2, 4))


def is_in_rows(v, x, fn=lambda x, v: x @ v):
    return "rows_dot" in str(jax.make_jaxpr(forbid(fn))(x, v))


PROGRAMS = {
    "one row": lambda v, x: x[:1] @ v,
    "vector": lambda v, x: x[0] @ v,
    "in front": lambda v, x: v.T @ x[0],
    "column": lambda v, x: v.T @ x[:1].T,
    "few rows": lambda v, x: x @ v,
    "two axes": lambda v, x: jnp.tensordot(x[0], v.reshape(24, 4, 5), 1),
    "remat": lambda v, x: jax.checkpoint(lambda x: jnp.tanh(x @ v) @ v.T)(x[0]),
    "in a Lora": lambda v, x: x[0] @ v,
}


def in_a_lora(v, x):
    """It stops gradients of what it adapts."""
    if isinstance(v, jax.Array):
        return jax.lax.stop_gradient(v) + 0.5 * x.T @ x[:, :20]
    return Lora(v, x.T, x[:, :20], 0.5)


# For each kind, so many rows at a time that blocks fit, and so many that some are left.
@pytest.mark.parametrize(
    ("kind", "size"),
    [slow(pytest.param(k, 4)) for k in KINDS] + [slow(pytest.param("columns", 7))],
)
def test_products_and_gradients(kind, size, in_rows, monkeypatch, bulk):
    monkeypatch.setattr(rows, "_MOST_ROWS", size)
    v, x = jax.jit(KINDS[kind])(normal(24, 20)), normal(3, 24, seed=1)

    def results(v, x, call=forbid):
        bases = {name: in_a_lora(v, x) if name == "in a Lora" else v for name in PROGRAMS}
        return {name: call(PROGRAMS[name])(bases[name], x) for name in PROGRAMS}

    def loss(s, x):
        ys = results(v.map_scales(lambda scale: scale * s), x)
        return sum((y**2).sum() for y in ys.values())

    program = lambda x: (results(v, x), jax.grad(loss, (0, 1))(jnp.float32(1), x))
    got, slopes = jax.jit(program)(x)
    with jax.enable_x64(True):
        w, y = (jnp.asarray(np.asarray(a, "f8")) for a in (v.materialise(), x))
        plain = functools.partial(results, call=lambda fn: fn)
        square = lambda s, y: sum((z**2).sum() for z in plain(w * s, y).values())
        want, expected = plain(w, y), jax.grad(square, (0, 1))(1.0, y)
    same(got, want)
    same(slopes, expected, tolerance=2e-5)


@pytest.mark.parametrize("axis", [0, 1])
def test_rows_that_are_left_over(axis, in_rows, monkeypatch):
    """A scale for each row is in the terms of a sum, and one for each column is not."""
    monkeypatch.setattr(rows, "_MOST_ROWS", 4)
    v, x = Quantised.quantise(normal(26, 5), axis=axis), normal(26, seed=1)
    assert is_in_rows(v, x)
    same(forbid(lambda x, v: x @ v)(x, v), np.asarray(x, "f8") @ v.materialise())


@pytest.mark.parametrize("kind", ["int4", slow("columns"), slow("nf4")])
def test_batches_tangents_and_transposes(kind, in_rows, monkeypatch, bulk):
    monkeypatch.setattr(rows, "_MOST_ROWS", 4)
    v, x = jax.jit(KINDS[kind])(normal(24, 20)), normal(3, 24)
    w = np.asarray(v.materialise(), "f8")
    assert is_in_rows(v, x[0])
    multiply = lambda row: forbid(lambda row, v: row @ v)(row, v)

    def program(x, y):
        (back,) = jax.linear_transpose(multiply, x[0])(y)
        tangent = jax.jvp(multiply, (x[0],), (x[1],))[1]
        return multiply(x[0]), jax.vmap(multiply)(x), back, tangent

    y, x64 = normal(20), np.asarray(x, "f8")
    want = x64[0] @ w, x64 @ w, w @ np.asarray(y, "f8"), x64[1] @ w
    same(jax.jit(program)(x, y), want)


@pytest.mark.parametrize("kind", ["nf4", slow("int4"), slow("affine int4")])
def test_two_rows_of_four_bits_are_read_in_a_byte(kind, in_rows, monkeypatch, bulk):
    """As they lie if the number of columns is odd."""
    monkeypatch.setattr(rows, "_MOST_ROWS", 4)
    v, x = jax.jit(KINDS[kind])(normal(24, 21)), normal(24)
    multiply = forbid(lambda x, v: x @ v)
    assert is_in_rows(v, x) and "24x21x" not in jax.jit(multiply).lower(x, v).as_text()
    weights = normal(21, seed=1)
    got, slope = jax.jit(
        lambda x: (multiply(x, v), jax.grad(lambda x: multiply(x, v) @ weights)(x))
    )(x)
    w, x64 = (np.asarray(a, "f8") for a in (v.materialise(), x))
    same(got, x64 @ w)
    same(slope, w @ np.asarray(weights, "f8"))


def test_rows_of_other_blocks_are_not_read_in_a_byte(in_rows):
    v = Quantised.quantise(normal(24, 21), 4, block=(3, 1))
    multiply = jax.jit(forbid(lambda x, v: x @ v))
    assert "24x21x" in multiply.lower(normal(24), v).as_text()


@pytest.mark.slow
def test_a_batch_of_weights(in_rows):
    v, x = KINDS["columns"](normal(24, 20)), normal(24)
    both = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), v)
    got = jax.vmap(lambda v: forbid(lambda v, x: x @ v)(v, x))(both)
    same(got, np.stack([np.asarray(x, "f8") @ np.asarray(v.materialise(), "f8")] * 2))


# A float32 cannot hold these sums of some steps, and it holds those of all.
@pytest.mark.parametrize(
    "steps", [[2.0**24, 1, 1, 1, 1], [3, 2.0**25, -(2.0**25)]], ids=["added to", "added"]
)
def test_what_rounding_takes_from_each_step_is_added_at_last(steps, in_rows, monkeypatch):
    monkeypatch.setattr(rows, "_MOST_ROWS", 2)
    # With its last row, each column has the scale 1.
    v = Quantised.quantise(jnp.ones((12, 4)).at[-1].set(127), axis=1)
    x = jnp.zeros(12).at[: 2 * len(steps) : 2].set(jnp.array(steps))
    assert is_in_rows(v, x)
    np.testing.assert_array_equal(forbid(lambda x, v: x @ v)(x, v), sum(steps))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["columns", "int4"])
def test_errors_are_smaller_than_those_of_floats(kind, in_rows, optimised):
    """As a compiler forms the sums, which could drop what rounding takes from them."""
    make = {
        "columns": KINDS["columns"],
        "int4": lambda w: Quantised.quantise(w, 4, block=64),
    }
    rng, v = np.random.default_rng(0), make[kind](normal(1024, 64))
    product = jax.jit(forbid(lambda x, v: x @ v))
    dense, w = jax.jit(lambda x, w: x @ w), v.materialise()
    for name, make_row in ROWS.items():
        x = jnp.asarray(make_row(rng, (1, 1024)), "float32")
        of_rows = error(product(x, v), x, w, 1.0)
        of_floats = error(dense(x, w), x, w, 1.0)
        assert of_rows.mean() <= of_floats.mean(), name
        assert of_rows.max() <= of_floats.max(), name


@pytest.mark.slow
def test_rows_that_are_not_finite(in_rows):
    v = KINDS["columns"](normal(24, 20))
    for entry in (jnp.inf, jnp.nan):
        x = normal(1, 24).at[0, 3].set(entry)
        got = forbid(lambda x, v: x @ v)(x, v)
        np.testing.assert_allclose(got, x @ v.materialise())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["columns", "int4", "nf4"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_floats_and_strict_promotion(kind, dtype, in_rows, bulk):
    v, x = KINDS[kind](normal(24, 20).astype(dtype)), normal(24).astype(dtype)
    with jax.numpy_dtype_promotion("strict"):
        got = forbid(lambda x, v: x @ v)(x, v)
    want = np.asarray(x, "f8") @ np.asarray(v.materialise(), "f8")
    assert got.dtype == dtype
    np.testing.assert_allclose(np.asarray(got, "f8"), want, rtol=0.02, atol=0.02)


def test_which_products_are_of_rows(on_one_device):
    n, row = 2048, jax.ShapeDtypeStruct((2048,), "float32")
    shaped = lambda make, *s: jax.eval_shape(make, jax.ShapeDtypeStruct(s, "float32"))
    columns, nf4 = shaped(KINDS["columns"], n, n), shaped(NF4.quantise, n, n)
    bits_4 = shaped(lambda w: Quantised.quantise(w, 4, axis=1), n, n)
    for make in (
        KINDS["columns"],
        KINDS["rows"],
        NF4.quantise,
        lambda w: Quantised.quantise(w, 4, block=64, symmetric=False),
    ):
        assert is_in_rows(shaped(make, n, n), row)
    assert is_in_rows(columns, jax.ShapeDtypeStruct((1, n), "bfloat16"))
    product = jax.make_jaxpr(forbid(lambda x, v: x @ v))(row, columns)
    assert 2 * n * n <= costs.of_jaxpr(product.jaxpr).flops < 2.1 * n * n
    assert is_in_rows(columns, row, lambda x, v: v.T @ x)
    rounding = dataclasses.replace(columns, activations="dynamic")
    assert is_in_rows(rounding, row)
    assert not is_in_rows(rounding, jax.ShapeDtypeStruct((2, n), "float32"))
    of_rows = {count: jax.ShapeDtypeStruct((count, n), "float32") for count in (0, 3, 4)}
    assert is_in_rows(bits_4, of_rows[3])
    for v, x in ((bits_4, of_rows[4]), (bits_4, of_rows[0]), (nf4, of_rows[3])):
        assert not is_in_rows(v, x)
    are_fast = products.are_integers_fast()
    assert is_in_rows(columns, of_rows[3]) is not are_fast
    # The sums of one row of results fit a cache, unless there are more.
    wide = 2**14 + 16
    in_bits = lambda bits: shaped(lambda w: Quantised.quantise(w, bits, axis=1), 512, wide)
    one, two = (jax.ShapeDtypeStruct((count, 512), "float32") for count in (1, 2))
    assert is_in_rows(in_bits(4), one) and not is_in_rows(in_bits(4), two)
    assert is_in_rows(in_bits(8), one) is not are_fast
    assert not is_in_rows(columns, row, lambda x, v: v @ x)
    each = lambda x, v: jnp.einsum("nb,nbo->bo", x, v.reshape(n, 8, n // 8))
    assert not is_in_rows(columns, jax.ShapeDtypeStruct((n, 8), "float32"), each)
    assert not is_in_rows(shaped(KINDS["columns"], n, 2047), row)
    for make in (
        lambda w: Quantised.quantise(w, 4, block=(1, 64)),
        lambda w: Quantised.quantise(w, 3, axis=1),
    ):
        assert not is_in_rows(shaped(make, n, n), row)


@pytest.mark.slow
def test_another_platform_has_the_whole_weight(in_rows):
    x, v = normal(256), KINDS["columns"](normal(256, 256))
    traced = jax.jit(forbid(lambda x, v: x @ v)).trace(x, v)
    for platform, is_loop in (("cpu", True), ("cuda", False)):
        text = traced.lower(lowering_platforms=(platform,)).as_text()
        assert ("stablehlo.while" in text) == is_loop


@pytest.mark.slow
def test_a_product_costs_two_operations_an_entry(in_rows):
    v, x = KINDS["columns"](normal(96, 256)), normal(96)
    step = jaxrewrite.explain(lambda x, v: x @ v)(x, v).steps[0]
    assert 2 * v.size <= step.flops[1] < 2.1 * v.size


@pytest.mark.parametrize("bits", [8, slow(4)])
def test_only_sums_are_held_and_no_entries(bits, on_one_device, optimised):
    n = 2048
    v = jax.eval_shape(
        lambda w: Quantised.quantise(w, bits, block=64),
        jax.ShapeDtypeStruct((n, n), "float32"),
    )
    memory = (
        jax.jit(forbid(lambda x, v: x @ v)).lower(normal(n), v).compile().memory_analysis()
    )
    # The scales of codes of four bits are copied into two halves.
    copies = 0 if bits == 8 else 8 * n * n // 64
    sums = 4 * n * rows._ROWS_OF_SUMS
    assert memory.temp_size_in_bytes < copies + 2 * sums

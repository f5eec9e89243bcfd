"""Products of large integer weights as products of integers, against float64."""

import functools
import math
import re

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
from weight_products import PRODUCTS, same as within

import jaxrewrite
from jaxrewrite import _compat
from jaxrewrite.values import NF4, Coded, Float8, Lora, Quantised, Unitful
from jaxrewrite.values._weights import digits, processor, products


same = functools.partial(within, tolerance=2e-6)


def wide(x):
    return jnp.asarray(np.asarray(x, np.float64))


@pytest.fixture
def good_at_integers(on_one_device, monkeypatch):
    """Products are chosen as with such a processor and release of JAX, on one device."""
    monkeypatch.setattr(
        products, "_rows_for_digits", lambda: products._Rows(math.inf, True)
    )


@pytest.fixture
def in_digits(good_at_integers, monkeypatch):
    """Small weights are multiplied in digits, too."""
    monkeypatch.setattr(products, "_SMALLEST_IN_DIGITS", 1)


KINDS = {
    "columns": lambda w: Quantised.quantise(w, axis=1),
    "rows": lambda w: Quantised.quantise(w, axis=0),
    "blocks of columns": lambda w: Quantised.quantise(w, block=(None, 4)),
    "whole": lambda w: Quantised.quantise(w),
}
PROGRAMS = {
    **PRODUCTS,
    "many rows": (lambda v, x: x @ v, (11, 24)),
    "vmap": (lambda v, x: jax.vmap(lambda row: row @ v)(x), (3, 24)),
    "vmap of weights": (
        lambda v, x: jax.vmap(lambda v: x @ v)(jnp.stack([v, v * 2])),
        (3, 24),
    ),
    "batched": (lambda v, x: jnp.einsum("bi,bij->bj", x, jnp.stack([v, v])), (2, 24)),
    "scan": (
        lambda v, x: lax.scan(
            lambda x, u: (jnp.tanh(x @ u) @ v.T, None), x, jnp.stack([v, v / 2])
        )[0],
        (3, 24),
    ),
    "remat": (lambda v, x: jax.checkpoint(lambda x: jnp.tanh(x @ v) @ v.T)(x), (3, 24)),
}


FEW = ["x @ v.T", "einsum", "batched"]


@pytest.mark.parametrize("large", [1, slow(2**20)], ids=["one by one", "at once"])
@pytest.mark.parametrize(
    ("kind", "names"),
    [("columns", FEW), *(slow(pytest.param(k, [*PROGRAMS])) for k in KINDS)],
)
def test_programs_and_gradients(kind, names, large, in_digits, monkeypatch, bulk):
    monkeypatch.setattr(digits, "_LARGE", large)
    v = jax.jit(KINDS[kind])(normal(24, 20))
    xs = {name: normal(*PROGRAMS[name][1], seed=1) for name in names}

    def results(v, xs, call=forbid):
        return {name: call(PROGRAMS[name][0])(v, xs[name]) for name in names}

    def loss(v, xs, call=forbid):
        return sum((y**2).sum() for y in results(v, xs, call).values())

    def of_scale(s, xs):
        return loss(v.map_scales(lambda scale: scale * s), xs)

    got = jax.jit(results)(v, xs)
    outside = jax.jit(jax.grad(of_scale, (0, 1)))(jnp.float32(1.0), xs)
    plain = functools.partial(loss, call=lambda fn: fn)
    inside = jax.jit(jaxrewrite.transform(jax.grad(plain, 1), materialise="allow"))(v, xs)
    with jax.enable_x64(True):
        w, ys = wide(v.materialise()), jax.tree.map(wide, xs)
        want = results(w, ys, lambda fn: fn)
        expected = jax.grad(lambda s, xs: plain(w * s, xs), (0, 1))(1.0, ys)
    same(got, want)
    same(outside, expected, tolerance=1e-5)
    same(inside, expected[1], tolerance=1e-5)
    assert is_in_digits(v, normal(3, 24))


@pytest.mark.parametrize("large", [1, 2**20], ids=["one by one", "at once"])
def test_results_are_float32_where_float64_is_the_default(large, in_digits, monkeypatch):
    monkeypatch.setattr(digits, "_LARGE", large)
    v, x = KINDS["columns"](normal(24, 20)), normal(3, 24)
    with jax.enable_x64(True), jax.numpy_dtype_promotion("strict"):
        got = forbid(lambda x, v: x @ v)(x, v)
    same(got, np.asarray(x, "f8") @ np.asarray(v.materialise(), "f8"))


def test_derivatives_forward_and_of_second_order(in_digits, bulk):
    v, x = KINDS["columns"](normal(24, 20)), normal(24)
    w = np.asarray(v.materialise(), np.float64)
    square = lambda x: (forbid(lambda x, v: x @ v)(x, v) ** 2).sum()
    same(jax.jit(jax.jacfwd(lambda x: forbid(lambda x, v: x @ v)(x, v)))(x), w.T)
    same(jax.jit(jax.hessian(square))(x), 2 * w @ w.T)
    multiply = lambda x: forbid(lambda x, v: x @ v)(x, v)
    (got,) = jax.jit(jax.linear_transpose(multiply, x))(normal(20))
    same(got, w @ np.asarray(normal(20), np.float64))


def test_gradients_of_batches_in_batches(in_digits):
    """A product that is batched, transposed and batched again has another label each time."""
    q = jnp.asarray(np.random.default_rng(0).integers(-99, 99, (3, 2, 4)), jnp.int8)
    multiply = lambda x: digits.integer_dot(q, x, ("n", "m", "p"), ("n",), ("m", "p"))
    square = lambda x: (jax.vmap(multiply)(x) ** 2).sum()
    x, w = normal(5, 6, 3), np.asarray(q, np.float64).reshape(3, 8)
    same(jax.jit(jax.vmap(jax.grad(square)))(x), 2 * np.asarray(x, np.float64) @ w @ w.T)


@pytest.mark.slow
def test_other_values_branches_and_short_axes(in_digits, bulk):
    v, x = KINDS["columns"](normal(24, 20)), normal(4, 24)
    w, y = (np.asarray(a, "f8") for a in (v.materialise(), x))
    implicit = functools.partial(jaxrewrite.transform, materialise="allow")
    same(implicit(lambda v, x: x @ v)(v, Unitful(x, "m")).array, y @ w)
    same(implicit(lambda v, x: x @ v)(Unitful(v, "m"), x).array, y @ w)
    same(jaxrewrite.materialise(implicit(lambda v: v.T @ v)(v)), w.T @ w)
    pick = lambda v, lora, x, p: lax.cond(p, lambda: v * 1.0, lambda: lora * 1.0).T @ x.T
    lora = Lora(v, normal(24, 2), normal(2, 20), 1.0)
    same(implicit(pick)(v, lora, x, True), w.T @ y.T, tolerance=1e-5)
    for n, m in ((24, 1), (1, 20), (1, 1)):
        v_, x_ = KINDS["columns"](normal(n, m)), normal(3, n)
        want = np.asarray(x_, "f8") @ np.asarray(v_.materialise(), "f8")
        same(implicit(lambda v, x: x @ v)(v_, x_), want)
    with_nan = x.at[0, 0].set(jnp.nan)
    got = implicit(lambda v, x: jax.vmap(lambda row: row @ v)(x))(v, with_nan)
    assert np.isnan(got[0]).all()
    same(got[1:], y[1:] @ w)


ORDERS = {
    "v.T @ x": (lambda v, x: v.T @ x, (24, 3)),
    "rows last": (lambda v, x: jnp.einsum("rk,kn->nr", x, v), (3, 24)),
    "columns": (lambda v, x: jnp.einsum("kr,kn->rn", x, v), (24, 3)),
    "batched": (lambda v, x: x @ jnp.stack([v, v]), (2, 3, 24)),
    "batched, turned": (lambda v, x: jnp.stack([v, v]).mT @ x, (2, 24, 3)),
}


INTEGER_DOT = re.compile(r"contracting_dims = \[([\d, ]+)\] x .*: \(tensor<([\dx]+)xi8>")


@pytest.mark.parametrize("activations", [None, slow("dynamic")])
def test_the_first_operand_is_summed_over_its_last_axis(activations, in_digits, bulk):
    """Otherwise XLA on a CPU takes up to 50 times as long."""
    v = Quantised.quantise(normal(24, 20), axis=1, activations=activations)
    xs = {name: normal(*shape, seed=1) for name, (_, shape) in ORDERS.items()}

    def results(v, xs):
        return {name: forbid(fn)(v, xs[name]) for name, (fn, _) in ORDERS.items()}

    lowered = jax.jit(results).lower(v, xs)
    found = INTEGER_DOT.findall(lowered.as_text())
    assert len(found) == len(ORDERS)
    assert all(int(axis) == shape.count("x") for axis, shape in found)
    got, w = lowered.compile()(v, xs), np.asarray(v.materialise())
    want = {name: fn(w, np.asarray(xs[name])) for name, (fn, _) in ORDERS.items()}
    same(got, want, tolerance=2e-6 if activations is None else 2e-2)


# --- precision --------------------------------------------------------------------------


def error(got, x, q, s):
    """How far a product is from the right one, and what the entries could be at most."""
    x, q, s = (np.asarray(a, np.float64) for a in (x, q, s))
    return abs(np.asarray(got, np.float64) - x @ (q * s))


ROWS = {
    "normal": lambda rng, shape: rng.normal(size=shape),
    "heavy tails": lambda rng, shape: rng.standard_cauchy(size=shape),
    "graded": lambda rng, shape: rng.normal(size=shape) * np.logspace(0, -6, shape[-1]),
    "one large": lambda rng, shape: rng.normal(size=shape) + 1e4 * np.eye(*shape),
    "of one sign": lambda rng, shape: rng.random(size=shape),
    "tiny": lambda rng, shape: 1e-34 * rng.normal(size=shape),
    "huge": lambda rng, shape: 1e30 * rng.normal(size=shape),
}


@pytest.mark.parametrize("rows", ROWS)
def test_errors_are_no_larger_than_those_of_floats(rows, in_digits, monkeypatch):
    rng = np.random.default_rng(0)
    v = KINDS["columns"](normal(1024, 64))
    x = jnp.asarray(ROWS[rows](rng, (8, 1024)), "float32")
    product = lambda: jax.jit(forbid(lambda x, v: x @ v))(x, v)
    of_digits = error(product(), x, v.q, v.scale)
    monkeypatch.setattr(products, "_SMALLEST_IN_DIGITS", 2**30)
    jaxrewrite.clear_caches()
    of_floats = error(product(), x, v.q, v.scale)
    assert of_digits.max() <= of_floats.max()
    assert of_digits.mean() <= of_floats.mean()


@hypothesis.given(st.data())
@hypothesis.settings(deadline=None, max_examples=30)
def test_the_bound_of_the_error(data):
    seed, size = data.draw(st.integers(0, 2**31)), data.draw(st.sampled_from([1, 7, 40]))
    spread = data.draw(st.integers(0, 30))
    rng = np.random.default_rng(seed)
    x = (rng.normal(size=(3, size)) * 2.0 ** -rng.integers(0, spread + 1, size)).astype("f")
    q = rng.integers(-128, 128, (size, 5)).astype("int8")
    got = digits.integer_dot(q, x, ("i", "j"), ("r", "i"), ("r", "j"))
    wrong = error(got, x, q, 1.0)
    entries = abs(x).max(1)[:, None] * abs(q.astype(float)).sum(0)
    sums = abs(x).astype(float) @ abs(q.astype(float))
    assert (wrong <= 2.0**-30 * entries + 2.0**-22 * sums + 1e-40).all()


def test_rows_that_are_not_finite_are_nan_and_zeros_are_zeros(in_digits):
    v = KINDS["columns"](normal(24, 20))
    x = normal(4, 24).at[0, 3].set(jnp.inf).at[1, 2].set(jnp.nan).at[2].set(0)
    got = forbid(lambda x, v: x @ v)(x, v)
    assert np.isnan(got[:2]).all() and (got[2] == 0).all() and np.isfinite(got[3]).all()


def test_sums_that_do_not_fit_32_bits_are_of_floats(in_digits, monkeypatch):
    monkeypatch.setattr(digits, "MOST_SUMMED", 20)
    v, x = KINDS["columns"](normal(24, 20)), normal(3, 24)
    jaxpr = jax.make_jaxpr(forbid(lambda x, v: x @ v))(x, v)
    assert "integer_dot" not in str(jaxpr)
    # The sums over the columns fit, and those over the rows, in the backward pass, do not.
    v, x = KINDS["columns"](normal(18, 24)), normal(3, 18)
    slope = jax.grad(lambda x: forbid(lambda x, v: x @ v)(x, v).sum())(x)
    same(slope, np.broadcast_to(np.asarray(v.materialise(), "f8").sum(1), (3, 18)))


def test_the_largest_sums_fit(in_digits):
    n = digits.MOST_SUMMED
    q = jnp.full((n, 1), -128, jnp.int8)
    x = jnp.full((1, n), -63.999996, jnp.float32)
    got = digits.integer_dot(q, x, ("i", "j"), ("r", "i"), ("r", "j"))
    np.testing.assert_allclose(got, [[63.999996 * 128 * n]], rtol=1e-6)


def test_a_product_costs_what_xla_says(in_digits):
    v, x = KINDS["columns"](normal(96, 256)), normal(64, 96)
    product = forbid(lambda x, v: x @ v)
    said = jaxrewrite.explain(lambda x, v: x @ v)(x, v).steps[0].flops
    analysis = jax.jit(product).lower(x, v).cost_analysis()
    np.testing.assert_allclose(said[1], analysis["flops"], rtol=0.05)


# --- which products ---------------------------------------------------------------------


def is_in_digits(v, x, fn=lambda x, v: x @ v):
    return "integer_dot" in str(jax.make_jaxpr(forbid(fn))(x, v))


def shaped(make, *shape, dtype="float32"):
    return jax.eval_shape(make, jax.ShapeDtypeStruct(shape, dtype))


def test_which_products_are_of_integers(good_at_integers):
    n, x = 1024, jax.ShapeDtypeStruct((4, 1024), "float32")
    columns = shaped(KINDS["columns"], n, n)
    assert is_in_digits(columns, x)
    assert is_in_digits(columns, x, lambda x, v: x @ v.T)
    for dtype in ("bfloat16", "float16"):
        assert is_in_digits(columns, jax.ShapeDtypeStruct((4, n), dtype))
    assert not is_in_digits(shaped(KINDS["columns"], n, 511), x)
    for make in (
        lambda w: Quantised.quantise(w, axis=1, symmetric=False),
        lambda w: Quantised.quantise(w, 4, axis=1),
        lambda w: Quantised.quantise(w, block=(64, 1)),
        NF4.quantise,
        Float8.quantise,
    ):
        assert not is_in_digits(shaped(make, n, n), x)
    with jax.enable_x64(True):
        assert not is_in_digits(columns, jax.ShapeDtypeStruct((4, n), "float64"))


@pytest.mark.parametrize(
    "flags", ["fpu sse avx2", "avx2 avx512f avx512_vnni amx_int8", None]
)
def test_the_processor_is_asked_what_it_is_good_at(
    flags, on_one_device, monkeypatch, tmp_path
):
    said = tmp_path / "cpuinfo"
    if flags is not None:
        said.write_text(f"processor\t: 0\nflags\t\t: {flags}\n\nprocessor\t: 1\n")
    monkeypatch.setattr(processor, "_SAID_BY_LINUX", said)
    processor._flags.cache_clear()
    has_tiles = "amx_int8" in (flags or "").split()
    try:
        assert processor.has_integer_tiles() is has_tiles
        assert processor.gathers_faster() is (flags == "fpu sse avx2")
        most = (math.inf if has_tiles else 32) if _compat.JAX_GE_0_11_1 else 4
        for n in (1024, 2048):
            columns = shaped(KINDS["columns"], n, n)
            for rows in (2, 4, 5, 32, 33, 512):
                x = jax.ShapeDtypeStruct((rows, n), "float32")
                # Large weights are multiplied in blocks where integers are not that fast.
                is_best = rows <= most if n == 1024 else most == math.inf
                assert is_in_digits(columns, x) is is_best, (n, rows)
    finally:
        processor._flags.cache_clear()


def test_on_several_devices_weights_are_multiplied_as_a_whole():
    v, x = shaped(KINDS["columns"], 1024, 1024), jax.ShapeDtypeStruct((4, 1024), "float32")
    assert jax.device_count() > 1 and not is_in_digits(v, x)
    # On each of them the weight is its own, but JAX asks what it varies over.
    mesh = jax.make_mesh((2,), ("i",), (jax.sharding.AxisType.Auto,))
    product = lambda x, v: forbid(lambda x, v: x @ v)(x, v)
    specs = {"in_specs": (P("i"), P()), "out_specs": P("i")}
    program = jax.shard_map(product, mesh=mesh, **specs)
    assert "integer_dot" not in str(jax.make_jaxpr(program)(x, v))


def test_a_number_of_rows_that_is_not_known_when_it_is_exported(on_one_device):
    v = KINDS["columns"](normal(1024, 512))
    rows, _ = jax.export.symbolic_shape("rows, 1024")
    shape = jax.ShapeDtypeStruct((rows, 1024), "float32")
    product = jax.export.export(jax.jit(forbid(lambda x, v: x @ v)))(shape, v)
    x = normal(3, 1024)
    same(product.call(x, v), np.asarray(x, "f8") @ np.asarray(v.materialise(), "f8"))


def test_another_platform_has_floats(in_digits):
    x, v = normal(2, 256), KINDS["columns"](normal(256, 256))
    traced = jax.jit(forbid(lambda x, v: x @ v)).trace(x, v)
    for platform, sums in (("cpu", "xi32>"), ("cuda", "xf32>")):
        lines = traced.lower(lowering_platforms=(platform,)).as_text().splitlines()
        (product,) = (line for line in lines if "dot_general" in line)
        assert product.endswith(sums)


class Halves(Coded):
    """A user's format: half of an integer of 8 bits."""

    q: jax.Array
    scale: jax.Array

    def levels(self):
        return self.q.astype(self.scale.dtype)

    def integers(self):
        return self.q

    def scale_of_blocks(self):
        return self.scale / 2

    def map_scales(self, change):
        return Halves(self.q, change(self.scale))


def test_formats_of_users_are_multiplied_in_digits(in_digits):
    rng = np.random.default_rng(0)
    v = Halves(jnp.asarray(rng.integers(-100, 100, (8, 12)), "int8"), normal(1, 12))
    x = normal(3, 8)
    assert is_in_digits(v, x)
    want = np.asarray(x, "f8") @ (np.asarray(v.q, "f8") * np.asarray(v.scale, "f8") / 2)
    same(forbid(lambda x, v: x @ v)(x, v), want)


@pytest.mark.parametrize("base", ["alone", slow("in a Lora")])
def test_no_entry_of_a_weight_becomes_a_float(base, good_at_integers, optimised):
    """Forward and backward, one layer or several in a loop, at once or one by one."""
    n = 1024
    x = normal(2, n)
    layers = lambda x, vs: lax.scan(lambda x, v: (jnp.tanh(x @ v), None), x, vs)[0]
    v = shaped(KINDS["columns"], n, n)
    if base == "in a Lora":
        v = Lora(v, *(jax.ShapeDtypeStruct(s, "float32") for s in ((n, 2), (2, n))), 1.0)
    vs = jax.tree.map(lambda s: jax.ShapeDtypeStruct((2, *s.shape), s.dtype), v)
    for fn, values, copies in (
        (lambda x, v: x @ v, v, 0),
        (lambda x, v: jax.vmap(lambda x: x @ v)(x), v, 0),
        (jax.checkpoint(lambda x, v: jnp.tanh(x @ v) @ v), v, 0),
        (layers, vs, 3),  # of the integers of a layer, and of all with JAX 0.10
    ):
        slope = jax.grad(lambda x, v, fn=fn: forbid(fn)(x, v).sum())
        for program in (forbid(fn), slope):
            memory = jax.jit(program).lower(x, values).compile().memory_analysis()
            assert memory.temp_size_in_bytes < (copies + 0.4) * n * n, (fn, memory)


def test_a_nan_is_not_lost_among_many_rows(in_digits, optimised):
    """A maximum of floats lost some, with XLA's optimisations."""
    v = Quantised(jnp.ones((1024, 8), jnp.int8), jnp.ones((1, 1)))
    x = normal(66, 1024).at[jnp.arange(66), jnp.arange(66) * 15].set(jnp.nan)
    assert jnp.isnan(jax.jit(forbid(lambda v, x: x @ v))(v, x)).all()


@pytest.mark.parametrize("axes", [(1,), (0, 1)])
def test_the_largest_entry_wherever_it_is(axes, on_one_device):
    """In each half, before and after the halves are odd or short."""
    shape = (3, 7 * 2**9)
    x = np.asarray(normal(*shape))
    largest = jax.jit(lambda x: digits.largest(x, axes))
    for i in (0, 1, 55, 56, 1791, 1792, 3527, 3583):
        with_most = np.array(x)
        with_most[:, i] = [-7, 8, -9]
        np.testing.assert_array_equal(largest(with_most), abs(with_most).max(axes))
    with_most[1, 100] = np.nan
    np.testing.assert_array_equal(largest(with_most), abs(with_most).max(axes))

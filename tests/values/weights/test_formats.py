"""Integers of all widths and 8-bit floats: bytes, error bounds, and packed integers."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from choose import slow
from hypothesis import given, settings, strategies as st
from jax import lax
from oracle import forbid, normal

import jaxrewrite
from jaxrewrite.testing import assert_same
from jaxrewrite.values import NF4, FakeQuantised, Float8, Quantised, nbytes, quantise
from jaxrewrite.values._weights.coded import scale_in
from jaxrewrite.values._weights.packed import Nibbles, Packed, Planes, bytes_of


def wide(x):
    return np.asarray(x, np.float64)


BLOCKS = [{}, {"axis": 0}, {"axis": -1}, {"block": 4}, {"block": (None, 3)}]
magnitudes = st.floats(1e-3, 1e3)
blocks = st.sampled_from(BLOCKS)
seeds = st.integers(0, 2**31)


def spoilt(seed, magnitude, dtype):
    """Entries of many magnitudes, a block of zeros, and one of one sign."""
    rng = np.random.default_rng(seed)
    w = rng.normal(size=(8, 6)) * 10.0 ** rng.uniform(-5, 0, (8, 6)) * magnitude
    w[:, 3], w[:, 5] = 0, abs(w[:, 5])
    return jnp.asarray(w, dtype)


@functools.partial(jax.jit, static_argnums=0, static_argnames=("options",))
def _rounded(cls, w, options):
    return cls.quantise(w, **dict(options))


def rounded(cls, w, **options):
    return _rounded(cls, w, options=tuple(options.items()))


def scale_of_entries(v):
    k, m = v.scale.shape
    return np.repeat(np.repeat(wide(v.scale), 8 // k, 0), 6 // m, 1)


ROUNDING = {"float32": 2.0**-22, "bfloat16": 2.0**-7, "float16": 2.0**-10}


@pytest.mark.slow
@given(seeds, magnitudes, blocks, st.integers(2, 8), st.booleans(), st.data())
@settings(deadline=None, max_examples=20)
def test_integers_have_an_error_of_half_a_step(
    seed, magnitude, options, bits, symmetric, data
):
    dtype = data.draw(st.sampled_from(sorted(ROUNDING)))
    w = spoilt(seed, magnitude, dtype)
    v = rounded(Quantised, w, bits=bits, symmetric=symmetric, **options)
    assert v.bits == bits and v.dtype == dtype
    step = scale_of_entries(v)
    allowed = step / 2 + ROUNDING[dtype] * (abs(wide(w)) + step)
    assert (abs(wide(v) - wide(w)) <= allowed).all()
    assert (wide(v)[:, 3] == 0).all()


FLOAT8 = {"float8_e4m3fn": (3, 2.0**-9), "float8_e5m2": (2, 2.0**-16)}


@given(seeds, magnitudes, blocks, st.sampled_from(sorted(FLOAT8)), st.data())
@settings(deadline=None, max_examples=20)
def test_floats_have_an_error_of_half_a_unit_in_the_last_place(
    seed, magnitude, options, kind, data
):
    dtype = data.draw(st.sampled_from(sorted(ROUNDING)))
    w = spoilt(seed, magnitude, dtype)
    v = rounded(Float8, w, dtype=kind, **options)
    assert v.format == kind and v.dtype == dtype
    bits, least = FLOAT8[kind]
    bound = np.maximum(2.0 ** (-bits - 1) * abs(wide(w)), least * scale_of_entries(v) / 2)
    smallest = float(jnp.finfo(dtype).smallest_subnormal)
    allowed = bound + ROUNDING[dtype] * abs(wide(w)) + smallest
    assert (abs(wide(v) - wide(w)) <= allowed).all()
    assert np.isfinite(wide(v)).all() and (wide(v)[:, 3] == 0).all()


@pytest.mark.parametrize("bits", [2, 3, 8, *map(slow, (4, 5, 6, 7))])
def test_bytes_are_those_of_the_bits(bits, bulk):
    """In `nbytes`, and in what a compiled program takes."""
    v = jax.jit(lambda w: Quantised.quantise(w, bits, axis=-1))(normal(64, 48))
    assert v.nbytes == nbytes(v).implicit == 64 * 48 * bits // 8 + 48 * 4
    memory = jax.jit(lambda v: v.scale).lower(v).compile().memory_analysis()
    assert memory.argument_size_in_bytes <= v.nbytes
    few = Quantised.quantise(normal(5, 3), bits)
    assert few.shape == (5, 3) and few.nbytes <= 5 * 3 + 4 + 8


def test_floats_take_a_byte():
    v = Float8.quantise(normal(64, 48), block=16)
    assert v.nbytes == 64 * 48 + 4 * 48 * 4


FORMATS = [
    {"bits": 3, "block": 4},
    {"bits": "float8_e4m3fn", "axis": -1},
    *(slow({"bits": bits, "block": 4}) for bits in (2, 6)),
    slow({"bits": "float8_e5m2", "axis": -1}),
]


@pytest.mark.parametrize("options", FORMATS)
def test_a_model_is_quantised_and_trained_around_it(options, bulk):
    """The biases train; the weights, also those of a loop over layers, stay as they are."""
    kernel = jax.vmap(lambda w: quantise([w], lambda *_: True, **options)[0])
    params = {"kernel": kernel(normal(3, 16, 16)), "bias": normal(3, 16, seed=1)}
    assert isinstance(params["kernel"], Float8 if "axis" in options else Quantised)

    def model(bias, kernel, x):
        layer = lambda x, p: (jnp.tanh(x @ p[0] + p[1]), None)
        return (lax.scan(layer, x, (kernel, bias))[0] ** 2).sum()

    x = normal(2, 16)
    fn = jax.grad(forbid(model), (0, 2))
    got = jax.jit(fn)(params["bias"], params["kernel"], x)
    want = jax.grad(model, (0, 2))(
        params["bias"], jaxrewrite.materialise(params["kernel"]), x
    )
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, 1e-4, 1e-5)


def test_codes_of_a_checkpoint():
    """In their dtype, or as bits; also those that are not finite."""
    codes = jnp.arange(256, dtype="uint8").reshape(16, 16)
    for kind in FLOAT8:
        floats = lax.bitcast_convert_type(codes, jnp.dtype(kind))
        want = np.asarray(floats).astype("float32") * 0.5
        for v in (
            Float8(floats, jnp.full((1, 1), 0.5)),
            Float8(codes, jnp.full((1, 1), 0.5), kind),
        ):
            assert v.codes.dtype == jnp.uint8 and v.nbytes == 256 + 4
            np.testing.assert_array_equal(np.asarray(v), want)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Quantised.quantise(normal(4, 4), 1), "must be 2 to 8; got 1"),
        (lambda: Quantised.quantise(normal(4, 4), 9), "must be 2 to 8; got 9"),
        (lambda: Quantised(jnp.ones((4, 4)), jnp.ones((1, 1))), "int8 or int4"),
        (lambda: Float8.quantise(normal(4, 4), "float16"), "or float8_e5m2; got float16"),
        (lambda: Float8.quantise(normal(4, 4), "float9"), "or float8_e5m2; got float9"),
        (lambda: Float8.quantise(normal(4, 4).at[0].set(jnp.inf)), "infinite or NaN"),
        (lambda: Float8.quantise(np.float32("nan")), "infinite or NaN"),
        (lambda: Float8.quantise(np.full((2, 2), np.inf, np.float32)), "infinite or NaN"),
        (lambda: Float8.quantise(normal(4, 4), block=3), "whole blocks"),
        (lambda: Float8.quantise(normal(4, 4), axis=0, block=2), "not both"),
        (lambda: Float8.quantise(normal(4, 4), axis=2), "Float8: `axis` 2 is not an axis"),
        (lambda: Float8.quantise(normal(4, 4), axis=1.0), "Float8: `axis` is 1.0; it must"),
        (lambda: NF4.quantise(normal(4, 4), 2.0), "NF4: `block` is 2.0; it must be an int"),
        (lambda: NF4.quantise(normal(4, 4), None), "NF4: `block` is None; it must be an"),
        (lambda: Quantised.quantise(normal(4, 4), block="4"), "`block` is '4'; it must be"),
        (
            lambda: Float8(jnp.ones((4, 4)), jnp.ones((1, 1))),
            "`codes` must be float8_e4m3fn",
        ),
        (lambda: Float8(jnp.ones((4, 4), "uint8"), jnp.ones((1, 1))), "and None"),
        (
            lambda: Float8(normal(4, 4, dtype="float8_e5m2"), jnp.ones((1, 1), int)),
            "`scale` must be real floating",
        ),
    ],
)
def test_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_integers_of_numpy_are_integers():
    w, two, last = normal(4, 6), np.int64(2), np.int32(-1)
    for cls in (Quantised, Float8):
        assert_same(cls.quantise(w, block=two), cls.quantise(w, block=2))
        assert_same(cls.quantise(w, axis=last), cls.quantise(w, axis=-1))
    assert_same(NF4.quantise(w, two), NF4.quantise(w, 2))
    fake = FakeQuantised(w, np.int64(4), block=two)
    # They are metadata, which files have as texts.
    assert repr((fake.bits, fake.block)) == "(4, (2, 1))"


@pytest.mark.parametrize("format", [4, "nf4", "mxfp4", "float8_e5m2"])
def test_no_block_is_that_of_the_format(format):
    w, every = normal(128, 3), lambda path, leaf: True
    for options in ({}, {"axes": ((0,), (1,))}):
        own = quantise(w, every, format, block=None, **options)
        assert_same(own, quantise(w, every, format, **options))


# --- packed integers ------------------------------------------------------------------

ROWS = jnp.array([1, 0, 2])
KEEPS = {
    "transpose": lambda x: x.T,
    "flip of rows": lambda x: x[::-1],
    "squeeze": lambda x: (x[None].squeeze(0), x[..., None].squeeze(-1)),
    "broadcast": lambda x: jnp.broadcast_to(x, (2, *x.shape)),
    "split rows": lambda x: x.reshape(2, x.shape[0] // 2, -1),
    "rows": lambda x: (x[1:3], x[::2]),
    "whole bytes": lambda x: (x[:, 8:17], x[:, 16:]),
    "some rows": lambda x: lax.dynamic_slice_in_dim(x, jnp.int32(2), 2, 0),
    "lookups": lambda x: (x[ROWS], jnp.stack([x, x])[ROWS]),
    "each its own": lambda x: jax.vmap(lambda a, i: a[i])(jnp.stack([x, x, x]), ROWS),
    "concatenate": lambda x: (jnp.concatenate([x, x]), jnp.stack([x, x], 1)),
    "tile": lambda x: jnp.tile(x, (2, 1)),
    "loop": lambda x: lax.scan(lambda c, row: (c, row), 0, x)[1],
    "branch": lambda x: lax.cond(jnp.arange(2)[1] > 0, lambda: x, lambda: x[::-1]),
    "choice": lambda x: lax.select_n(x[0, 0] > 0, x, x[::-1]),
    "placed": lambda x: jax.device_put(x, jax.devices()[0]),
}
UNPACKS = {
    "flip": lambda x: x[:, ::-1],
    "inside a byte": lambda x: (x[:, 3:5], x[:, ::2]),
    "columns": lambda x: x[:, ROWS],
    "some columns": lambda x: lax.dynamic_slice_in_dim(x, jnp.int32(3), 8, 1),
    "columns at both ends": lambda x: [
        lax.dynamic_slice(x, (jnp.int32(1), jnp.int32(i)), (2, n))
        for i, n in ((0, 1), (0, 9), (5, 2), (99, 1), (99, 10), (99, 22))
    ],
    "choice of entries": lambda x: lax.select_n(x > 0, x, x[::-1]),
    "filled": lambda x: jnp.take(x, 3 * ROWS, axis=0, fill_value=7),
    "each row its own": lambda x: jax.vmap(lambda a, i: a[i])(x[:3], ROWS),
    "along": lambda x: x.T.reshape(-1),
    "cast": lambda x: x.astype("float32"),
    "sum": lambda x: x + x[:, :1],
}


def packed(n, m, bits=3, axis=-1, is_signed=True):
    """Packed integers, and the same in an array."""
    low = -(2 ** (bits - 1)) if is_signed else 0
    numbers = np.random.default_rng(0).integers(low, low + 2**bits, (n, m))
    few = "int4" if is_signed else "uint4"
    x = jnp.asarray(numbers, few if bits == 4 else "int8")
    return (Nibbles if bits == 4 else Planes).pack(x, bits, axis), x


def is_packed(x):
    return isinstance(x, Packed)


@pytest.mark.parametrize("m", [23, slow(24)])
@pytest.mark.parametrize("bits, is_signed", [slow((3, True)), (4, True), slow((4, False))])
def test_moves_of_packed_integers(bits, is_signed, m, bulk):
    v, x = packed(6, m, bits, is_signed=is_signed)
    np.testing.assert_array_equal(np.asarray(v), x)
    fn = lambda x: ({k: f(x) for k, f in KEEPS.items()}, [f(x) for f in UNPACKS.values()])
    kept, unpacked = jax.jit(forbid(fn))(v)
    for name, value in kept.items():
        assert all(map(is_packed, jax.tree.leaves(value, is_leaf=is_packed))), name
    assert not any(map(is_packed, jax.tree.leaves(unpacked, is_leaf=is_packed)))
    assert_same((kept, unpacked), fn(x))


def test_integers_packed_side_by_side(bulk):
    """Where only the last ones do not fill their bytes."""
    (v, x), (w, y) = packed(4, 16), packed(4, 5)
    beside = lambda x, y: jnp.concatenate([x, y], axis=1)
    got = forbid(beside)(v, w)
    assert is_packed(got)
    assert_same(got, beside(x, y))
    assert_same(forbid(beside)(w, v), beside(y, x))


def test_integers_packed_along_any_axis(bulk):
    heads = lambda x: x.reshape(*x.shape[:-1], x.shape[-1] // 8, 8)
    fn = lambda x: (heads(x.T), [jnp.concatenate([x, x]), x.T.reshape(-1)])
    v, x = packed(16, 3, bits=6, axis=-2)
    got = jax.jit(forbid(fn))(v)
    assert all(map(is_packed, jax.tree.leaves(got, is_leaf=is_packed)))
    assert_same(got, fn(x))
    v, x = packed(5, 3, bits=7, axis=-2)
    fn = lambda x: (x.T, [jnp.concatenate([x, x]), x.reshape(-1)])
    assert_same(jax.jit(forbid(fn))(v), fn(x))
    # What is packed along the axis of a loop has no slices.
    with pytest.raises(jaxrewrite.MaterialisationError, match="takes slices of a Planes"):
        forbid(lambda x: lax.map(jnp.sum, x))(v)


@pytest.mark.parametrize("is_signed", [True, slow(False)])
def test_two_neighbours_of_four_bits_are_the_byte_that_holds_them(is_signed):
    """For rules, as the bits that JAX gives the same array, and without a pass over them."""
    v, x = packed(6, 24, 4, is_signed=is_signed)
    np.testing.assert_array_equal(bytes_of(v), bytes_of(x))
    assert "4[" not in str(jax.make_jaxpr(bytes_of)(v))
    for moved in (v.T, packed(6, 23, 4, is_signed=is_signed)[0].T):  # Others are copied.
        np.testing.assert_array_equal(bytes_of(moved), bytes_of(moved.materialise()))


def test_a_loop_over_blocks_unpacks_one_at_a_time(monkeypatch, optimised):
    from jaxrewrite.values._weights import products

    monkeypatch.setattr(products, "_may_be_split", lambda: False)
    jaxrewrite.clear_caches()
    n = 1024
    v = jax.eval_shape(
        lambda w: Quantised.quantise(w, 3, axis=1), jax.ShapeDtypeStruct((n, n), "float32")
    )
    x = normal(1, n)
    memory = jax.jit(forbid(lambda x, v: x @ v)).lower(x, v).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 2 * 4 * 2**18


@pytest.mark.parametrize("shape", [(0, 8), (8, 0), (0,), (0, 0)])
def test_packed_integers_of_an_empty_array(shape):
    v = Quantised.quantise(jnp.zeros(shape), 3)
    assert v.bits == 3
    assert jaxrewrite.materialise(v).shape == shape
    assert jaxrewrite.transform(lambda v: v.T)(v).shape == shape[::-1]


@pytest.mark.parametrize("kind", [{}, {"bits": 4}, {"activations": "dynamic"}])
def test_export_of_a_product_with_a_symbolic_number_of_rows(kind):
    v = Quantised.quantise(jnp.arange(32.0).reshape(8, 4) - 15, **kind)
    product = jaxrewrite.transform(lambda v, x: x @ v)
    rows = jax.ShapeDtypeStruct(jax.export.symbolic_shape("n, 8"), jnp.float32)
    exported = jax.export.export(jax.jit(lambda x: product(v, x)))(rows)
    x = jnp.linspace(-1, 1, 24).reshape(3, 8)
    np.testing.assert_allclose(exported.call(x), product(v, x), rtol=1e-5, atol=1e-5)


def test_a_range_beyond_the_largest_number(bulk):
    w = jnp.full((4, 4), 3e38).at[0].set(-3e38)
    v = Quantised.quantise(w, symmetric=False)
    np.testing.assert_allclose(v.materialise(), w, rtol=1e-2)


LARGEST = {
    "2 bits": {"bits": 2},
    "3 bits": {"bits": 3, "symmetric": False},
    "4 bits": {"bits": 4, "symmetric": False},
    "8 bits": {"bits": 8},
    "float8": {"bits": "float8_e5m2"},
    "nf4": {"bits": "nf4", "block": 4},
}


@pytest.mark.parametrize("kind", LARGEST)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_largest_numbers_stay_finite(kind, dtype, bulk):
    """Also where a division by them is a product with an inverse that is no normal number."""
    most = float(jnp.finfo(dtype).max)
    part = np.random.default_rng(0).uniform(-1, 1, (300, 8, 4))
    part[:, 2] = 1 - np.linspace(0, 0.6, 300)[:, None] ** 4
    part[::2, 3], part[::3, 3], part[::5, :, 1] = -1, -0.995, 1
    w = jnp.asarray(part * most, dtype)
    leaf = lambda w: quantise({"w": w}, lambda *_: True, **LARGEST[kind])["w"]
    dense = jax.vmap(lambda w: jaxrewrite.materialise(leaf(w)))
    error = abs(wide(dense(w)) / most - wide(w) / most)
    step = {"2 bits": 0.5, "3 bits": 2 / 7, "4 bits": 2 / 15, "nf4": 0.16}.get(kind, 0.07)
    assert error.max() <= step + 0.01


def test_the_largest_scale_is_the_last_that_stays_finite():
    """Eight times 8188 is the largest number of float16."""
    scales = scale_in(jnp.dtype("float16"), jnp.array([8184.0, 8188.0, 8189.0]), 8)
    assert [*scales] == [8184, 8188, 8188]


@pytest.mark.parametrize("format", FLOAT8)
def test_small_weights_keep_their_digits_in_float16(format):
    v = Float8.quantise(normal(8, 4) / 50, format, axis=-1)
    cast = lambda v: v.astype("float16")
    got = jaxrewrite.materialise(jaxrewrite.transform(cast, materialise="allow")(v))
    np.testing.assert_allclose(got, cast(v.materialise()), rtol=2e-3, atol=1e-6)
    assert isinstance(jaxrewrite.transform(lambda v: v.astype("bfloat16"))(v), Float8)


@pytest.mark.parametrize("cls", [Quantised, NF4, Float8])
@pytest.mark.parametrize("dtype", FLOAT8)
def test_a_cast_to_8_bits_is_that_of_the_dense_array(cls, dtype):
    v = cls.quantise(normal(64, 4) / 50)
    cast = lambda v: v.astype(dtype).astype("float32")
    got = jaxrewrite.transform(cast, materialise="allow")(v)
    np.testing.assert_array_equal(got, cast(v.materialise()))


# What a cast to float16 changes at most, beside its own rounding.
LOST_IN_FLOAT16 = {
    "8 bits": (Quantised.quantise, 4e-6),
    "zero": (lambda w: Quantised.quantise(w, symmetric=False), 8e-6),
    "nf4": (NF4.quantise, 4e-6),
    "float8": (Float8.quantise, 1.4e-5),
}


@pytest.mark.parametrize("name", LOST_IN_FLOAT16)
@pytest.mark.parametrize("size", [1e-2, 1e-3, 1e-4, 1e-5])
def test_a_cast_of_small_weights_to_float16_loses_no_more_than_is_said(name, size):
    quantise, most = LOST_IN_FLOAT16[name]
    w = normal(64, 8) * size
    v = quantise(w)
    cast = jaxrewrite.transform(lambda v: v.astype("float16"), materialise="forbid")(v)
    got, dense = (np.asarray(x.materialise(), np.float64) for x in (cast, v))
    assert (abs(got - dense) <= most + abs(dense) / 400).all()
    in_half = w.astype("float16")
    of_half, of_single = (
        quantise(x).materialise() for x in (in_half, in_half.astype("float32"))
    )
    error = lambda x: abs(np.asarray(x, np.float64) - np.asarray(in_half, np.float64)).max()
    assert error(of_half) <= 1.1 * error(of_single) + 1e-7 + float(abs(w).max()) / 1000


IN_FLOAT16 = {
    "times": lambda w: w * 0.01,
    "over": lambda w: w / 1000 * 1000,
    "columns": lambda w: w * jnp.array([0.01, 0.02, 0.03, 0.04], w.dtype),
    "larger": lambda w: w * -3,
    "over less": lambda w: w / 0.3,
    "over zero": lambda w: w / 0,
    "product": lambda w: jnp.ones(8, w.dtype) @ (w / 128**0.5),
    "gradient": jax.grad(lambda w: ((w * 0.01) ** 2).sum(dtype="float32") * 1000),
}


@pytest.mark.parametrize("program", IN_FLOAT16)
@pytest.mark.parametrize("kind", ["nf4", 8, *FLOAT8])
def test_a_weight_in_float16_times_a_number_has_its_digits(kind, program, bulk):
    fn = IN_FLOAT16[program]
    w = {"w": normal(8, 4).astype("float16") / 20}
    v = quantise(w, lambda *_: True, kind)["w"]
    got = jaxrewrite.transform(fn, materialise="allow")(v)
    want = wide(fn(v.materialise()))
    largest = abs(want[np.isfinite(want)]).max(initial=0)
    np.testing.assert_allclose(wide(jaxrewrite.materialise(got)), want, atol=largest / 500)
    is_kept = program in ("larger", "over less") and kind != "float8_e5m2"
    assert isinstance(got, jaxrewrite.Value) == is_kept
    in_single = {"w": w["w"].astype("float32")}
    v = quantise(in_single, lambda *_: True, kind)["w"]
    jaxrewrite.transform(fn, materialise="allow" if program == "gradient" else "forbid")(v)


@pytest.mark.parametrize("fn", [lambda w: w * 2, lambda w: w / 0.5])
def test_the_scale_of_a_weight_in_float16_has_a_gradient(fn):
    v = Quantised.quantise(normal(8, 4).astype("float16"))

    def total(scale, fn):
        w = dataclasses.replace(v, scale=scale)
        return jaxrewrite.materialise(jaxrewrite.transform(fn)(w)).sum(dtype="float32")

    twice, once = (jax.grad(total)(v.scale, f) for f in (fn, lambda w: w))
    np.testing.assert_allclose(wide(twice), 2 * wide(once), rtol=1e-2)


@pytest.mark.parametrize("make", [NF4.quantise, Quantised.quantise, Float8.quantise])
def test_a_factor_for_each_entry_makes_it_dense(make):
    v = make(jnp.asarray(np.random.default_rng(0).normal(size=(64, 2)), "float32"))
    c = jnp.arange(2.0, 130).reshape(64, 2)
    for fn in (jnp.multiply, jnp.divide):
        got = jaxrewrite.transform(fn, materialise="allow")(v, c)
        assert not isinstance(got, jaxrewrite.Value)
        np.testing.assert_allclose(got, fn(v.materialise(), c), rtol=1e-6)


@pytest.mark.parametrize("make", [NF4.quantise, Quantised.quantise, Float8.quantise])
def test_a_batch_of_factors_makes_a_batch(make):
    """Of factors that are numbers, columns, rows, and one for each entry."""
    v = make(normal(64, 2))
    for shape in [(2,), (2, 64, 1), (2, 1, 2), (2, 64, 2)]:
        factors = 1 + abs(normal(*shape))
        for fn in (jnp.multiply, jnp.divide):
            each = lambda v, c, fn=fn: jax.vmap(lambda c: fn(v, c))(c)
            got = jaxrewrite.transform(each, materialise="allow")(v, factors)
            want = each(v.materialise(), factors)
            np.testing.assert_allclose(jaxrewrite.materialise(got), want, rtol=1e-5)


def test_a_product_that_xla_does_not_have_on_a_cpu(xla):
    """As docs/sharp_bits.rst says: of two and three axes in bfloat16, with sums of float32."""
    x, y = jnp.ones((4, 4), "bfloat16"), jnp.ones((4, 4, 4), "bfloat16")
    contracting = (((0,), (2,)), ((), ()))
    with pytest.raises(jax.errors.JaxRuntimeError, match="Unsupported element type"):
        jax.block_until_ready(
            lax.dot_general(x, y, contracting, preferred_element_type="float32")
        )


@pytest.mark.slow
def test_a_derivative_that_meets_that_product(xla):
    def derivative(of, dtype):
        v = Float8.quantise(abs(normal(4, 4)).astype(dtype), "float8_e5m2", block=(4, 1))
        with_scale = lambda scale: dataclasses.replace(v, scale=scale)
        cube = lambda w: jnp.einsum("ij,jk,kl->il", w, w, w)
        implicit = jaxrewrite.transform(cube, materialise="allow")
        got = of(lambda scale: implicit(with_scale(scale)))(v.scale)
        want = of(lambda scale: cube(with_scale(scale).materialise()))(v.scale)
        largest = abs(wide(want)).max()
        np.testing.assert_allclose(wide(got), wide(want), rtol=0.05, atol=0.02 * largest)

    derivative(jax.jacrev, "bfloat16")
    derivative(jax.jacfwd, "float32")
    with pytest.raises(jax.errors.JaxRuntimeError, match="Unsupported element type"):
        derivative(jax.jacfwd, "bfloat16")

"""Products and convolutions that round both operands, and ranges from data."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from choose import often, slow
from jax import lax
from oracle import forbid, normal

import jaxrewrite
from jaxrewrite.values import Lora, Quantised, calibrate, quantise
from jaxrewrite.values._weights import digits


def wide(x):
    return np.asarray(x, np.float64)


def weight(w, bits=8, activations="dynamic", **options):
    return Quantised.quantise(w, bits, activations=activations, **options)


KINDS = {
    "columns": lambda w: weight(w, axis=1),
    "tensor": lambda w: weight(w),
    "int4": lambda w: weight(w, 4, axis=1),
    "3 bits": lambda w: weight(w, 3, axis=1),
    "blocks": lambda w: weight(w, block=4),
    "affine": lambda w: weight(w, axis=1, symmetric=False),
}
REST = ("tensor", "int4", "blocks", "affine")
IN_INTEGERS = {"columns", "tensor", "3 bits"}
PRODUCTS = {
    "matrix": (lambda x, v: x @ v, (20, 16), "ik,kj->ij"),
    "vector": (lambda x, v: x @ v, (16,), "k,kj->j"),
    "one row": (lambda x, v: x @ v, (1, 16), "ik,kj->ij"),
    "batches": (lambda x, v: jnp.einsum("abk,kj->ajb", x, v), (2, 9, 16), "abk,kj->ajb"),
    "vmap": (lambda x, v: jax.vmap(lambda x: x @ v)(x), (3, 2, 16), "abk,kj->abj"),
}


# Some scales are along what is summed. The numbers are right, but the warning is expected.
rounds_only = pytest.mark.filterwarnings("ignore:Quantised. this product sums:UserWarning")


def bound(x, w, equation):
    """Half a step of each row of ``x`` times the entries of ``w`` that it meets."""
    step = abs(x).max(-1, keepdims=True) / 127
    return np.einsum(equation, np.broadcast_to(step / 2, x.shape), abs(w))


@rounds_only
@pytest.mark.parametrize("kind", ["columns", "3 bits", *map(slow, REST)])
def test_products_are_within_half_a_step(kind, bulk):
    v = jax.jit(KINDS[kind])(normal(16, 12))
    xs = {k: normal(*shape, seed=1) for k, (_, shape, _) in PRODUCTS.items()}

    @jax.jit
    def results(v, xs):
        return {k: forbid(fn)(xs[k], v) for k, (fn, *_) in PRODUCTS.items()}

    got, w = results(v, xs), wide(jax.jit(jaxrewrite.materialise)(v))
    for name, (_, _, equation) in PRODUCTS.items():
        x = wide(xs[name])
        want = np.einsum(equation, x, w)
        error = abs(wide(got[name]) - want)
        allowed = bound(x, w, equation) + 1e-5 * abs(want).max()
        assert (error <= allowed).all(), name
        assert error.max() > 1e-5  # They are rounded.
    jaxpr = str(jaxrewrite.make_jaxpr(PRODUCTS["one row"][0])(xs["one row"], v))
    assert ("preferred_element_type=int32" in jaxpr) == (kind in IN_INTEGERS)


@rounds_only
def test_the_numbers_are_those_of_the_rounded_operand(bulk):
    """The product in integers is that in floating point."""
    x, w = normal(20, 16, seed=1), normal(16, 12)
    step = wide(abs(x)).max(1, keepdims=True) / 127
    rounded = np.round(wide(x) / step) * step
    for kind, make in KINDS.items():
        v = jax.jit(make)(w)
        want = rounded @ wide(v)
        got = wide(jax.jit(forbid(jnp.matmul))(x, v))
        np.testing.assert_allclose(got, want, 1e-4, 1e-4, err_msg=kind)


@rounds_only
@pytest.mark.parametrize("kind", ["columns", "blocks", slow("3 bits")])
def test_gradients_pass_straight_through(kind, bulk):
    """The gradient to ``x`` is that without rounding; those to the scales are exact."""
    v, x = jax.jit(KINDS[kind])(normal(16, 12)), normal(5, 16, seed=1)
    step = abs(x).max(1, keepdims=True) / 127
    rounded = jnp.round(x / step) * step

    def model(x, v):
        return (jnp.sin(x @ v) * jnp.arange(12.0)).sum()

    def slopes(scale, x):
        of = lambda scale: dataclasses.replace(v, scale=scale)
        return jax.grad(lambda s, x: forbid(model)(x, of(s)), (0, 1))(scale, x)

    def dense(scale, x):
        through = x + lax.stop_gradient(rounded - x)
        plain = dataclasses.replace(v, scale=scale, activations=None)
        return model(through, plain.materialise())

    got = jax.jit(slopes)(v.scale, x)
    want = jax.grad(dense, (0, 1))(v.scale, x)
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, 2e-3, 2e-3 * abs(np.asarray(w)).max())
    along = jax.jvp(lambda x: forbid(model)(x, v), (x,), (jnp.ones_like(x),))[1]
    np.testing.assert_allclose(along, got[1].sum(), rtol=1e-4)


LAYOUT = ("NHWC", "HWIO", "NHWC")
CONVOLUTIONS = {
    "same": {"padding": "SAME"},
    "strides": {"window_strides": (2, 1), "rhs_dilation": (1, 2), "padding": "VALID"},
    "groups of features": {"feature_group_count": 2, "padding": "SAME"},
    "groups of the batch": {"batch_group_count": 2, "padding": "SAME"},
}


@rounds_only
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["columns", "int4", "affine"])
def test_convolutions(kind, bulk):
    make = {
        "columns": lambda w: weight(w, axis=-1),
        "int4": lambda w: weight(w, 4, axis=-1),
        "affine": lambda w: weight(w, axis=2, symmetric=False),
    }[kind]
    v, x = jax.jit(make)(normal(3, 2, 4, 8)), normal(2, 6, 5, 8, seed=1)

    def programs(x, w):
        found = {}
        for name, options in CONVOLUTIONS.items():
            own = x if options.get("feature_group_count") else x[..., :4]
            options = {"window_strides": (1, 1), "dimension_numbers": LAYOUT, **options}
            found[name] = lax.conv_general_dilated(own, w, **options)
        return found

    got = jax.jit(forbid(programs))(x, v)
    dense = jax.jit(jaxrewrite.materialise)(v)
    want = jax.jit(programs)(x, dense)
    # Each image has its own step; groups of the batch share one.
    ones = jnp.ones_like(x) * abs(x).max((1, 2, 3), keepdims=True) / 254
    allowed = jax.jit(programs)(ones, abs(dense))
    allowed["groups of the batch"] = programs(ones * 0 + ones.max(), abs(dense))[
        "groups of the batch"
    ]
    for name in CONVOLUTIONS:
        error = abs(got[name] - want[name])
        assert (error <= allowed[name] * 1.01 + 1e-4).all() and error.max() > 1e-5, name
    total = lambda fn, w: lambda x: sum(y.sum() for y in fn(x, w).values())
    slope = jax.jit(jax.grad(total(forbid(programs), v)))(x)
    np.testing.assert_allclose(
        slope, jax.jit(jax.grad(total(programs, dense)))(x), 1e-4, 1e-4
    )


@pytest.mark.slow
def test_moves_casts_and_adapters_keep_it(bulk):
    v, x = weight(normal(16, 12), axis=1), normal(3, 16, seed=1)
    moved = forbid(lambda v: (2 * v.reshape(16, 3, 4)[:, 1]).astype("bfloat16"))(v)
    assert moved.activations == "dynamic" and "dynamic activations" in repr(moved)
    adapted = Lora(v, normal(16, 2), normal(2, 12))
    programs = {
        "lora": (lambda v: x @ v, adapted),
        "scan": (
            lambda v: lax.scan(lambda c, w: (c, x @ w), 0, jnp.stack([v, v / 2]))[1],
            v,
        ),
        "remat": (jax.checkpoint(lambda v: x @ v), v),
        "branch": (lambda v: lax.cond(x[0, 0] > 0, lambda: x @ v, lambda: x @ -v), v),
    }
    for name, (fn, value) in programs.items():
        got = wide(jax.jit(forbid(fn))(value))
        want = wide(fn(jaxrewrite.materialise(value)))
        assert 0 < abs(got - want).max() < 0.03 * abs(want).max(), name


@pytest.mark.parametrize("dtype", ["bfloat16", slow("float16"), slow("float64")])
def test_other_dtypes(dtype, bulk):
    with jax.enable_x64(dtype == "float64"):
        v = weight(normal(16, 12, dtype=dtype), axis=1)
        x = normal(3, 16, seed=1, dtype=dtype)
        got = forbid(lambda x, v: x @ v)(x, v)
        assert got.dtype == dtype
        error = abs(wide(got) - wide(x) @ wide(v))
        allowed = bound(wide(x), wide(v), "ik,kj->ij")
        assert (error <= allowed + 2 * float(jnp.finfo(dtype).eps) * 16).all()


@rounds_only
def test_what_is_not_finite_shows():
    v = weight(normal(4, 3), axis=1)
    x = jnp.array([[1, jnp.nan, 0, 0], [jnp.inf, 0, 0, 1], [0, 0, 0, 0], [1, 2, 3, 4.0]])
    for own in (v, static(v, 2.0), weight(normal(4, 3), block=2)):
        got = wide(x @ own)
        assert np.isnan(got[:2]).all() and np.isfinite(got[2:]).all()
        assert (got[2] == 0).all()
    assert (jnp.zeros((0, 4)) @ v).shape == (0, 3)
    empty = weight(jnp.zeros((0, 3)), axis=1)
    np.testing.assert_array_equal(jnp.zeros((2, 0)) @ empty, jnp.zeros((2, 3)))


def test_a_finite_product_of_large_rows_is_finite(bulk):
    """Levels of rows and weights have the sums of integers, which are far above the result."""
    largest = float(jnp.finfo("float32").max)
    x = (normal(20, 16, seed=1) / 8).clip(-1, 1) * largest
    images = x.reshape(5, 4, 16)
    v, kernel = weight(normal(16, 12) / 64, axis=1), weight(normal(3, 16, 8) / 64, axis=2)
    conv = {"window_strides": (1,), "padding": "VALID"}
    conv["dimension_numbers"] = ("NHC", "HIO", "NHC")
    convolve = lambda x, v: lax.conv_general_dilated(x, v, **conv)
    want = wide(x) @ wide(v)
    step = bound(wide(x), wide(v), "ik,kj->ij")
    for fn in (forbid(lambda x, v: x @ v), jax.jit(forbid(lambda x, v: x @ v))):
        assert (abs(wide(fn(x, v)) - want) <= step + 1e-5 * abs(want).max()).all()
        assert np.isfinite(wide(fn(x, static(v, largest)))).all()
    got, dense = (
        forbid(convolve)(images, kernel),
        convolve(images, jaxrewrite.materialise(kernel)),
    )
    assert abs(wide(got) - wide(dense)).max() <= 0.02 * abs(wide(dense)).max()


@pytest.mark.parametrize("rows", [1, 16])
@pytest.mark.parametrize("length", [512, slow(4096)])
def test_a_nan_is_not_lost_among_many_entries(length, rows, optimised):
    """A maximum of floats lost some, with XLA's optimisations."""
    v = weight(normal(length, 8), axis=1)
    kernel = weight(normal(3, length, 8), axis=2)
    conv = {"window_strides": (1,), "padding": "SAME"}
    conv["dimension_numbers"] = ("NHC", "HIO", "NHC")
    x = normal(rows, length).at[0, length // 3].set(jnp.nan)
    for own in (v, static(v, 2.0)):
        got = wide(jax.jit(forbid(lambda x, v: x @ v))(x, own))
        assert np.isnan(got[0]).all() and np.isfinite(got[1:]).all()
    images = jnp.stack([x, jnp.ones_like(x)])
    convolve = lambda x, v: lax.conv_general_dilated(x, v, **conv)
    got = wide(jax.jit(forbid(convolve))(images, kernel))
    assert np.isnan(got[0]).all() and np.isfinite(got[1]).all()


def test_sums_that_integers_of_32_bits_do_not_hold(monkeypatch):
    monkeypatch.setattr(digits, "MOST_SUMMED", 15)
    v, x = weight(normal(16, 12), axis=1), normal(3, 16)
    jaxpr = str(jaxrewrite.make_jaxpr(lambda x, v: x @ v)(x, v))
    assert "preferred_element_type=int32" not in jaxpr
    monkeypatch.undo()
    fits = lambda n: digits.is_summable(("i", "j"), ("r", "i"), ("r", "j"), (n, 12))
    assert fits(131_000) and not fits(2**17)


def test_integers_and_other_values_are_not_rounded():
    v = weight(normal(4, 3), axis=1)
    dense = v.materialise()
    got = forbid(lambda x, v: lax.dot(x, v, preferred_element_type=jnp.float32))(
        jnp.eye(4), v
    )
    np.testing.assert_allclose(got, dense, rtol=2e-2, atol=1e-6)
    np.testing.assert_allclose(forbid(lambda v: v.T @ v)(v), dense.T @ dense, rtol=1e-5)


# --- ranges from data -------------------------------------------------------------------


def static(v, most):
    most = jnp.full((1,) * v.ndim, most)
    return dataclasses.replace(v, activations="static", activation_range=most)


def test_entries_out_of_range_are_cut_off_and_have_no_gradient():
    v = static(Quantised(jnp.array([[1], [2]], jnp.int8), jnp.array([[1.0]])), 2.0)
    x = jnp.array([[0.5, 1.0], [-8.0, 2.0]])
    apply = forbid(lambda x, v: (x @ v)[:, 0])
    np.testing.assert_allclose(apply(x, v), [2.5, 2.0], rtol=0.01)
    slope = jax.grad(lambda x: apply(x, v).sum())(x)
    np.testing.assert_allclose(slope, [[1.0, 2.0], [0.0, 2.0]], rtol=1e-6)
    of_range = jax.grad(
        lambda r: apply(x, dataclasses.replace(v, activation_range=r)).sum()
    )
    assert of_range(v.activation_range) == 0


def model(params, x):
    h = lax.scan(lambda h, w: (jnp.tanh(h @ w) * 2, None), x, params["layers"])[0]
    return (h @ params["out"]).sum(-1)


def params():
    layers = jax.vmap(lambda w: Quantised.quantise(w, axis=1))(normal(3, 8, 8))
    out = Lora(Quantised.quantise(normal(8, 4), axis=1), normal(8, 2), normal(2, 4))
    return {"layers": layers, "out": out, "unused": Quantised.quantise(normal(2, 2))}


@pytest.mark.parametrize("wrap", [lambda fn: fn, jax.jit], ids=["eager", "jit"])
def test_ranges_are_those_of_the_data(wrap, no_leak_checks):
    before = params()
    batches = [normal(2, 8, seed=seed) for seed in range(3)]
    after = calibrate(wrap(model))(before, batches)
    h, want = jnp.concatenate(batches), []
    for w in jaxrewrite.materialise(before["layers"]):
        want.append(abs(h).max())
        h = jnp.tanh(h @ w) * 2
    found = after["layers"].activation_range
    assert found.shape == (3, 8, 1) and after["layers"].activations == "static"
    np.testing.assert_allclose(found[..., 0], np.tile(want, (8, 1)).T, rtol=1e-5)
    found = after["out"].w.activation_range
    np.testing.assert_allclose(found, np.full((8, 1), abs(h).max()), rtol=1e-5)
    assert after["unused"].activations is None
    got = jax.jit(forbid(model))(after, batches[0])
    np.testing.assert_allclose(
        got, model(jaxrewrite.materialise(before), batches[0]), 0.1, 0.3
    )
    again = calibrate(model)(after, [10 * batches[0]])
    more = again["layers"].activation_range[0] > after["layers"].activation_range[0]
    assert more.all()


def test_ranges_of_convolutions_and_of_what_moves(no_leak_checks):
    kernel = Quantised.quantise(normal(3, 3, 2, 4), axis=-1)
    halves = Quantised.quantise(normal(4, 6), axis=-1)

    def simple(values, x):
        y = lax.conv_general_dilated(x, values[0], (1, 1), "SAME", dimension_numbers=LAYOUT)
        left, right = jnp.split(values[1], 2, axis=1)
        return (y @ left, (3 * y) @ right, y @ jnp.concatenate([right, left], axis=1))

    x = normal(1, 5, 5, 2)
    after = calibrate(simple)([kernel, halves], [x])
    y = lax.conv_general_dilated(
        x, kernel.materialise(), (1, 1), "SAME", dimension_numbers=LAYOUT
    )
    found = [v.activation_range for v in after]
    assert [r.shape for r in found] == [(3, 3, 2, 1), (4, 1)]
    np.testing.assert_allclose(found[0], np.full((3, 3, 2, 1), abs(x).max()), rtol=1e-5)
    np.testing.assert_allclose(found[1], np.full((4, 1), 3 * abs(y).max()), rtol=1e-4)
    got = jax.jit(forbid(simple))(after, x)
    want = simple(jaxrewrite.materialise([kernel, halves]), x)
    for g, w in zip(got, want, strict=True):
        assert 0 < abs(g - w).max() < 0.05 * abs(w).max()


def test_ranges_of_weights_that_a_program_joins():
    """As of the parts of a fused kernel, and of the branches of a program."""
    pair = [weight(normal(4, 3, seed=seed), 4, None, axis=1) for seed in range(2)]
    x = jnp.array([[1.0, -3.0, 1.0, 0.0]])
    joined = calibrate(
        lambda pair, x: x @ jnp.concatenate(pair, axis=1), materialise="forbid"
    )
    ranges = lambda pair: [
        v.activation_range
        if v.activation_range is None
        else v.activation_range[:, 0].tolist()
        for v in pair
    ]
    assert ranges(joined(pair, [x])) == [[3] * 4] * 2
    chosen = calibrate(
        lambda pair, x: x @ jnp.where(x.sum() > 0, *pair), materialise="forbid"
    )
    assert ranges(chosen(pair, [x, -2 * x])) == [[6] * 4, [3] * 4]
    assert ranges(chosen(pair, [x])) == [None, [3] * 4]


def summed_first(v, x):
    return jnp.tanh(x @ v)


def summed_last(v, x):
    return jnp.tile(x, (1, 2))[:, :12] @ v.T.reshape(3, 4, 8).reshape(12, 8)


def of_heads(v, x):
    return jnp.einsum("bi,ihn->bhn", x, v.reshape(8, 3, 4))


def of_experts(v, x):
    return jnp.einsum("bi,eij->ebj", x[:, :4], v.reshape(2, 4, 12))


@pytest.mark.parametrize(
    ("fn", "shape"),
    [
        (summed_first, (8, 1)),
        (of_heads, (8, 1)),
        (of_experts, (8, 1)),
        (summed_last, (1, 12)),
    ],
    ids=["first", "heads", "experts", "last"],
)
def test_a_range_is_for_products_along_the_axes_that_it_was_found_for(fn, shape, bulk):
    """So cotangents, which may be of any size, are not rounded with that of activations."""
    v, x = Quantised.quantise(normal(8, 12), axis=None), normal(5, 8, seed=1)
    after = calibrate(fn)(v, [x])
    assert after.activation_range.shape == shape
    w = v.materialise()
    got, want = jax.jit(forbid(fn))(after, x), fn(w, x)
    assert 1e-4 < abs(got - want).max() < 0.05 * abs(want).max()
    agrees_inside(fn, after, x)


def test_zeros_are_a_range_and_nothing_is_none():
    v, zeros = Quantised.quantise(normal(8, 12)), jnp.zeros((2, 8))
    after = calibrate(lambda v, x: x @ v)(v, [zeros])
    assert after.activations == "static" and not after.activation_range.any()
    np.testing.assert_array_equal(forbid(lambda v, x: x @ v)(after, zeros), 0)
    with pytest.raises(ValueError, match="no Quantised weight met an array in a product"):
        calibrate(lambda v, x: x)(v, [zeros])


def agrees_inside(fn, v, x):
    """The gradient of a small loss is that of the dense program."""
    loss = lambda v, x: 1e-6 * jnp.sum(jnp.tanh(fn(v, x)))
    inside = jaxrewrite.transform(jax.grad(loss, 1), materialise="forbid")
    got, want = jax.jit(inside)(v, x), jax.grad(loss, 1)(jaxrewrite.materialise(v), x)
    np.testing.assert_allclose(got, want, rtol=0, atol=0.1 * abs(want).max())


def scores(v, x):
    return x @ v


def joint(v, x):
    return jnp.einsum("bi,lif->lbf", x, v)


def apart(v, x):
    return jnp.einsum("lbi,lif->lbf", x, v)


def convolved(*layout, **options):
    return lambda v, x: lax.conv_general_dilated(
        x, v, (1, 1), "SAME", dimension_numbers=layout, **options
    )


IMAGES, FIRST = convolved(*LAYOUT), convolved("NCHW", "OIHW", "NCHW")
BY_FEATURE = convolved(*LAYOUT, feature_group_count=4)
IN_PAIRS = convolved(*LAYOUT, feature_group_count=2)
DIRECTIONS = {
    "one column": (scores, (8, 1), (5, 8), (8, 1)),
    "one row": (scores, (1, 8), (5, 1), None),
    "a vector": (scores, (8,), (5, 8), (8,)),
    "joint": (joint, (3, 8, 4), (5, 8), (1, 8, 1)),
    "joint, one column": (joint, (3, 8, 1), (5, 8), (1, 8, 1)),
    "apart, one column": (apart, (3, 8, 1), (3, 5, 8), (3, 8, 1)),
    "apart, one row": (apart, (3, 1, 8), (3, 5, 1), None),
    "features last": (IMAGES, (3, 3, 4, 6), (2, 5, 5, 4), (3, 3, 4, 1)),
    "features first": (FIRST, (6, 4, 3, 3), (2, 4, 5, 5), (1, 4, 3, 3)),
    "pixels": (IMAGES, (1, 1, 4, 6), (2, 5, 5, 4), (1, 1, 4, 1)),
    "one feature": (IMAGES, (3, 3, 4, 1), (2, 5, 5, 4), None),
    "one feature, first": (FIRST, (1, 4, 3, 3), (2, 4, 5, 5), None),
    "groups": (IN_PAIRS, (3, 3, 2, 4), (2, 5, 5, 4), (3, 3, 2, 1)),
    "depthwise": (BY_FEATURE, (3, 3, 1, 4), (2, 5, 5, 4), None),
}


@pytest.mark.parametrize(
    "name", often(DIRECTIONS, ["one column", "one row", "features first", "depthwise"])
)
def test_a_range_tells_activations_from_cotangents(name, bulk):
    """Where it can't, as along axes of length one, the weight has none."""
    fn, of_weight, of_x, of_range = DIRECTIONS[name]
    v, x = Quantised.quantise(normal(*of_weight)), normal(*of_x, seed=1)
    after = calibrate(fn)(v, [x])
    assert getattr(after.activation_range, "shape", None) == of_range
    assert after.activations == ("static" if of_range else "dynamic")
    got, want = jax.jit(forbid(fn))(after, x), fn(v.materialise(), x)
    np.testing.assert_allclose(got, want, rtol=0, atol=0.05 * abs(want).max())
    agrees_inside(fn, after, x)


JOINED = {
    "side by side": lambda v, x: x @ jnp.concatenate(v, 1),
    "one above the other": lambda v, x: x @ jnp.concatenate(v, 0).T,
    "two columns": lambda v, x: x @ jnp.concatenate([w[:, :1] for w in v], 1),
}


@pytest.mark.parametrize("name", JOINED)
@pytest.mark.parametrize("more", [0, 1], ids=["even", "uneven"])
def test_a_range_of_weights_that_are_joined_is_for_the_same_products(name, more, bulk):
    fn, sizes = JOINED[name], (8, 8 + more)
    shapes = [(n, 8) if "above" in name else (8, n) for n in sizes]
    v = [Quantised.quantise(normal(*shape, seed=i)) for i, shape in enumerate(shapes)]
    x = normal(5, 8, seed=2)
    after = calibrate(fn, materialise="forbid")(v, [x])
    assert [w.activations for w in after] == ["static"] * 2
    got, want = jax.jit(forbid(fn))(after, x), fn(jaxrewrite.materialise(v), x)
    assert 1e-4 < abs(got - want).max() < 0.05 * abs(want).max()
    agrees_inside(fn, after, x)


SPLIT = {
    "flat": (lambda v, x: x @ v.reshape(8, 12), (96,), (5, 8)),
    "rows apart": (lambda v, x: joint(v.reshape(2, 4, 1), x), (8, 1), (5, 4)),
    "rows in columns": (
        lambda v, x: x @ v.reshape(2, 4, 12).transpose(1, 0, 2).reshape(4, 24),
        *((8, 12), (5, 4)),
    ),
    "a row in parts": (
        lambda v, x: jnp.einsum("bk,dhk->bdh", x, v.reshape(1, 3, 4)),
        *((1, 12), (5, 4)),
    ),
    "moved and merged": (lambda v, x: x @ v.T.reshape(24, 4), (8, 12), (5, 24)),
}


@pytest.mark.parametrize("name", SPLIT)
def test_a_weight_of_which_a_product_sums_a_part_of_an_axis_has_no_range(name, bulk):
    """Its cotangents meet the other part."""
    fn, of_weight, of_x = SPLIT[name]
    v, x = Quantised.quantise(normal(*of_weight)), normal(*of_x, seed=1)
    after = calibrate(fn, materialise="forbid")(v, [x])
    assert after.activations == "dynamic"
    agrees_inside(fn, after, x)


def test_a_range_for_two_directions_is_for_neither(bulk):
    v, x = Quantised.quantise(normal(8, 12)), normal(5, 8)
    both = dataclasses.replace(
        v, activations="static", activation_range=jnp.ones((8, 12)) / 9
    )
    np.testing.assert_allclose(x @ both, x @ v.materialise(), rtol=1e-5, atol=1e-5)


def test_a_range_for_one_axis_is_not_for_a_product_that_sums_two(bulk):
    v, x = Quantised.quantise(normal(2, 3, 4)), normal(5, 2, 3)
    one = dataclasses.replace(
        v, activations="static", activation_range=jnp.ones((2, 1, 1)) / 9
    )
    want = jnp.tensordot(x, v.materialise())
    np.testing.assert_allclose(forbid(jnp.tensordot)(x, one), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("other", [None, "dynamic"])
def test_weights_that_round_in_different_ways_are_joined(other, bulk):
    v, x = static(weight(normal(8, 4), 8, None), 1.0), normal(5, 8, seed=1)
    u = weight(normal(8, 4, seed=2), 8, other)
    for fn in (lambda v, u: jnp.stack([v, u]), lambda v, u: jnp.where(x[0, 0] > 0, v, u)):
        joined = forbid(fn)(v, u)
        assert joined.activations == other
        want = fn(v.materialise(), u.materialise())
        np.testing.assert_array_equal(joined.materialise(), want)


def test_weights_that_are_stacked_keep_a_range_each():
    v, u = (static(weight(normal(8, 4, seed=i), 8, None), 1.0 + i) for i in range(2))
    stack = jax.eval_shape(forbid(lambda v, u: jnp.stack([v, u])), v, u)
    assert stack.activation_range.shape == (2, 1, 1)


def test_integers_and_weights_without_entries_have_no_range():
    v, empty = (Quantised.quantise(normal(n, 3)) for n in (4, 0))
    x = jnp.ones((2, 4))
    program = lambda v, x: (x @ v[1], jnp.full((2, 4), 99) @ v[1], x @ v[2])
    after = calibrate(program)([empty, v, v], [x])
    assert [w.activations for w in after] == [None, "static", "static"]
    np.testing.assert_array_equal(after[1].activation_range, np.ones((4, 1)))


TOO_FINE = r"several scales, .*activations=\"dynamic\".*axes=jaxrewrite.values.weight_axes"


def chain(v, x):
    """A product in a body, of which the whole program may be differentiated."""
    step = lambda x, w: (jax.jit(lambda x: jnp.tanh(x @ w))(x), None)
    return jax.lax.scan(step, x, v)[0].sum()


def image(w, x):
    return jnp.tanh(jax.lax.conv_general_dilated(x, w, (1, 1), "SAME")).sum()


@pytest.mark.parametrize(
    ("fn", "shape", "x", "right", "wrong"),
    [
        (lambda v, x: jnp.tanh(x @ v).sum(), (8, 6), (3, 8), (0, 1), (1, 0)),
        (lambda w, x: jnp.tanh(w @ x).sum(), (8, 6), (6,), (1, 0), (0, 1)),
        (chain, (2, 6, 6), (3, 6), (1, 0, 1), (1, 1, 0)),
        (image, (4, 3, 3, 3), (1, 3, 5, 5), (1, 0, 0, 0), (0, 1, 0, 0)),
    ],
    ids=["inputs first", "outputs first", "layers", "convolution"],
)
def test_a_layout_without_products_of_integers_is_one_warning(fn, shape, x, right, wrong):
    """At the line of the product; a product of cotangents sums what it may."""
    w, x = normal(*shape), normal(*x)
    by_axes = lambda kept: weight(w, axis=[i for i, is_kept in enumerate(kept) if is_kept])
    gradient = jax.grad(fn, argnums=1)
    for program in (fn, gradient):
        jaxrewrite.make_jaxpr(program)(by_axes(right), x)
    for program in (fn, gradient):
        with pytest.warns(UserWarning, match=TOO_FINE) as caught:
            jaxrewrite.make_jaxpr(program)(by_axes(wrong), x)
        assert [c.filename for c in caught] == [__file__]


def test_the_warning_comes_once_for_a_program():
    w, x = normal(6, 6), normal(3, 6)
    twice = lambda v, x: [x @ v, x @ v]  # Two equations of one line.
    program = jaxrewrite.transform(twice)
    with pytest.warns(UserWarning, match=TOO_FINE) as caught:
        for _ in range(2):
            program(weight(w, axis=0), x)
    assert len(caught) == 1


def test_a_backward_rule_of_a_user_does_not_warn():
    v, x = weight(normal(6, 6), axis=1), normal(3, 6)
    multiply = jax.custom_vjp(lambda v, x: x @ v)
    backward = lambda kept, ct: (kept[1].T @ ct, ct @ kept[0].T)
    multiply.defvjp(lambda v, x: (x @ v, (v, x)), backward)
    loss = jaxrewrite.transform(lambda x, v: multiply(v, x).sum())
    assert "custom_vjp_call" in str(jax.make_jaxpr(loss)(x, v))
    jax.make_jaxpr(jax.grad(loss))(x, v)


def test_a_weight_that_is_used_in_two_directions_has_no_range(bulk):
    """Its activations and the cotangents of the others meet the same axes of it."""
    v, x = Quantised.quantise(normal(8, 12)), normal(5, 8, seed=1)
    fn = lambda v, x: jnp.tanh(x @ v) @ v.T
    after = calibrate(fn)(v, [x])
    assert after.activations == "dynamic" and after.activation_range is None
    agrees_inside(fn, after, x)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: calibrate(model)(params(), []), "there are no batches"),
        (lambda: calibrate(jnp.dot)(jnp.ones(2), [jnp.ones(2)]), "no Quantised weight"),
        (
            lambda: calibrate(lambda p, x: p["unused"].shape)(params(), [1]),
            "met an array in a product",
        ),
        (
            lambda: calibrate(model)(params(), [jnp.full((1, 8), jnp.nan)]),
            "not finite",
        ),
        (
            lambda: jax.jit(calibrate(model))(params(), [jnp.ones((1, 8))]),
            "in a function that is compiled",
        ),
        (
            lambda: Quantised.quantise(jnp.ones((2, 2)), activations="static"),
            "need their range. jaxrewrite.values.calibrate",
        ),
        (
            lambda: quantise([jnp.ones((2, 2))], lambda *_: True, activations="int4"),
            'None, "dynamic" or "static"; got \'int4\'',
        ),
    ],
)
def test_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call()

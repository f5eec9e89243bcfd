"""Weights fitted to data: GPTQ, AWQ, SmoothQuant, against their formulas in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxrewrite
from jaxrewrite import MaterialisationWarning
from jaxrewrite.values import (
    Concatenated,
    Diagonal,
    Product,
    Quantised,
    calibrate,
    quantise,
    weight_axes,
)
from jaxrewrite.values._weights import fitted as fitted_weights
from jaxrewrite.values._weights.fitted import (
    Options,
    awq,
    gptq,
    nearest,
    ranges_of,
    smoothquant,
)
from jaxrewrite.values._weights.gathered import Inputs


def correlated(rows, k, seed=0):
    rng = np.random.default_rng(seed)
    mix = rng.normal(size=(k, k)) / k
    return (rng.normal(size=(rows, k)) @ mix).astype(np.float32)


def inputs_of(x):
    inputs = Inputs(x.shape[1])
    inputs.gram, inputs.most = x.T @ x, abs(x).max(0)
    inputs.total = abs(x).sum(0)
    return inputs


def normal(*shape, seed=1):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def blocks_of(k, block):
    """The rows of each block, of which the last may be shorter."""
    return [min(block, k - start) for start in range(0, k, block)]


def optimal_updates(w, hessian, top, blocks):
    """Each row is rounded; those below take the best change, by the inverse of what is left.

    Equation 3 of E. Frantar, D. Alistarh (2022), Optimal Brain Compression, arXiv:2208.11580, in the
    order of the rows.
    """
    w = w.astype(np.float64)
    hessian = hessian + 0.01 * np.diag(hessian).mean() * np.eye(len(w))
    rounded, starts = np.zeros_like(w), list(np.cumsum(blocks) - blocks)
    for i in range(len(w)):
        if i in starts:
            size = blocks[starts.index(i)]
            scale = np.float32(abs(w[i : i + size]).max(0) / top)
        rounded[i] = np.clip(np.round(w[i] / scale), -top, top) * scale
        inverse = np.linalg.inv(hessian[i:, i:])
        w[i:] -= np.outer(inverse[:, 0] / inverse[0, 0], w[i] - rounded[i])
    return rounded


@pytest.mark.parametrize(("k", "block"), [(12, 4), (12, 12), (20, 10), (19, 8)])
def test_gptq_is_the_best_change_of_the_rows_below(k, block, monkeypatch):
    monkeypatch.setattr(fitted_weights, "_ROWS_AT_ONCE", 5)
    x, w = correlated(2 * k, k), normal(k, 3)
    fitted = gptq(w, inputs_of(x), Options(7, blocks_of(k, block)))
    wanted = optimal_updates(w, (x.T @ x).astype(np.float64), 7, blocks_of(k, block))
    np.testing.assert_allclose(fitted.dense(), wanted, atol=1e-5)


def test_gptq_changes_the_product_less_than_rounding_to_the_nearest():
    x, w = correlated(128, 64), normal(64, 16)
    for block in (64, 16):
        fits = [
            fit(w, inputs_of(x), Options(7, blocks_of(64, block)))
            for fit in (gptq, nearest)
        ]
        error, of_nearest = (np.linalg.norm(x @ (w - fit.dense())) for fit in fits)
        assert error < 0.8 * of_nearest


def test_columns_of_zeros_stay_zeros():
    w = normal(6, 3)
    w[:, 1] = 0
    fitted = nearest(w, inputs_of(correlated(20, 6)), Options(7, [6]))
    np.testing.assert_array_equal(fitted.dense()[:, 1], 0)


def test_gptq_rounds_rows_that_met_zeros_to_the_nearest():
    x, w = correlated(20, 6), normal(6, 3)
    x[:, 2] = 0
    fitted = gptq(w, inputs_of(x), Options(7, [1] * 6))
    plain = nearest(w, inputs_of(x), Options(7, [1] * 6))
    np.testing.assert_array_equal(fitted.dense()[2], plain.dense()[2])


def test_awq_takes_the_best_of_the_strengths():
    x, w = correlated(64, 8) * 2.0 ** np.arange(8, dtype=np.float32), normal(8, 5)
    fitted = awq(w, inputs_of(x), Options(3, [8]))
    errors = []
    for strength in np.arange(20) / 20:
        s = (abs(x).mean(0) / abs(x).mean(0).max()) ** strength
        s = s / np.sqrt(s.max() * s.min())
        scaled = s[:, None] * w
        scale = abs(scaled).max(0) / 3
        rounded = np.round(scaled / scale) * scale / s[:, None]
        errors.append(np.linalg.norm(x @ (w - rounded)))
    np.testing.assert_allclose(
        np.linalg.norm(x @ (w - fitted.dense())), min(errors), rtol=1e-3
    )
    assert min(errors) < errors[0]


def test_smoothquant_is_equation_4():
    x, w = correlated(64, 8), normal(8, 5)
    fitted = smoothquant(w, inputs_of(x), Options(127, [8]))
    s = abs(x).max(0) ** 0.5 / abs(w).max(1) ** 0.5
    np.testing.assert_allclose(fitted.rows, s, rtol=1e-5)
    step = abs(s[:, None] * w).max(0) / 127
    assert (abs(fitted.dense() - w) <= 0.5001 * step / s[:, None]).all()


def test_ranges_of_blocks():
    w = np.array([[4.0, 0.1], [0.1, 0.1], [0.1, 0.0], [0.1, 0.1]], np.float32)
    of = lambda ranges: ranges_of(w, Options(1, [4], ranges))
    rms = np.sqrt((w**2).mean(0))
    np.testing.assert_allclose(of("max"), [4, 0.1])
    np.testing.assert_allclose(of(("max", 0.5)), [2, 0.05])
    np.testing.assert_allclose(of(("rms", 1.5)), np.minimum(1.5 * rms, [4, 0.1]), rtol=1e-6)
    error = lambda most: ((w - most * np.clip(np.round(w / most), -1, 1)) ** 2).sum(0)
    assert (error(of("search")) <= error(of("max"))).all()
    # The least error of these entries is around their mean, which is one of the numbers tried.
    w = np.array([[1.0], [0.6], [0.6], [0.6]], np.float32)
    np.testing.assert_allclose(of("search"), [0.7], rtol=1e-6)


def model(params, x):
    """Heads in a fused kernel, a transposed one, one that sums two axes, and a scan of layers."""

    def layer(x, w):
        q, k = jnp.moveaxis(jnp.einsum("ti,ichd->tchd", x, w["qk"]), 1, 0)
        x = x + jnp.einsum("thd,hdo->to", jnp.tanh(q * k), w["out"])
        return x + jnp.tanh(x @ w["up"].T), None

    x, _ = lax.scan(layer, x, params["layers"])
    return x @ params["head"]


K = 8
PARAMS = {
    "layers": {
        "qk": jnp.asarray(normal(2, K, 2, 2, 4, seed=2)),
        "out": jnp.asarray(normal(2, 2, 4, K, seed=3)),
        "up": jnp.asarray(normal(2, K, K, seed=4)),
    },
    "head": jnp.asarray(normal(K, 3, seed=5)),
}
EVERY = lambda path, leaf: True


def test_each_weight_of_a_program_meets_what_those_before_it_make():
    batches = [jnp.asarray(correlated(n, K, seed)) for seed, n in enumerate([30, 20])]
    fit = calibrate(jax.jit(model), method="gptq", where=EVERY, bits=3, block=4)
    values = fit(PARAMS, batches)
    fitted = jaxrewrite.materialise(values)
    x, params = jnp.concatenate(batches), jax.tree.map(np.asarray, PARAMS)

    def checked(w, own, met):
        """What was made of a weight, which is the formula's for what the weight met."""
        met = np.asarray(met, np.float64)
        matrix = w.reshape(met.shape[1], -1)
        wanted = optimal_updates(matrix, met.T @ met, 3, blocks_of(len(matrix), 4))
        np.testing.assert_allclose(own, wanted.reshape(w.shape), atol=2e-4)
        return own

    for i in range(2):
        w, own = ({k: v[i] for k, v in p["layers"].items()} for p in (params, fitted))
        qk = checked(w["qk"], own["qk"], x)
        q, k = jnp.moveaxis(jnp.einsum("ti,ichd->tchd", x, qk), 1, 0)
        mixed = jnp.tanh(q * k).reshape(len(x), -1)
        out = checked(w["out"], own["out"], mixed)
        x = x + mixed @ out.reshape(-1, K)
        up = checked(w["up"].T, own["up"].T, x)
        x = x + jnp.tanh(x @ up)
    checked(params["head"], fitted["head"], x)
    assert values["layers"]["out"].scale.shape == (2, 2, 1, K)
    assert values["layers"]["up"].scale.shape == (2, K, 2)
    assert all(
        isinstance(v, Quantised) for v in (values["head"], *values["layers"].values())
    )
    jaxrewrite.transform(model, materialise="forbid")(values, batches[0])


@pytest.mark.parametrize(("method", "bits"), [("gptq", 4), ("smoothquant", 8)])
def test_a_method_has_bits_of_its_own(method, bits):
    params, x = {"a": jnp.asarray(normal(K, 3))}, jnp.asarray(correlated(40, K))
    program, options = lambda p, x: x @ p["a"], {"method": method, "where": EVERY}
    own = calibrate(program, **options)(params, [x])
    same = calibrate(program, **options, bits=bits)(params, [x])
    assert str(own) == str(same)
    jax.tree.map(np.testing.assert_array_equal, own, same)


@pytest.mark.parametrize("method", ["awq", "smoothquant"])
def test_scaled_rows_are_a_lazy_product(method):
    x = jnp.asarray(correlated(40, K))
    program = lambda p, x: lax.scan(lambda x, w: (x @ w["a"] + x @ w["b"].T, None), x, p)[0]
    params = {"a": jnp.asarray(normal(2, K, K)), "b": jnp.asarray(normal(2, K, K, seed=7))}
    values = calibrate(program, method=method, where=EVERY, bits=8)(params, [x])
    assert all(isinstance(v, Product) for v in values.values())
    got = jaxrewrite.transform(program, materialise="forbid")(values, x)
    wanted = program(params, x)
    np.testing.assert_allclose(got, wanted, atol=0.05 * abs(wanted).max())


def test_scaled_rows_joined_with_another_product_are_dense():
    w = jnp.asarray(normal(4, 4))
    scaled = Product((Diagonal(jnp.arange(1.0, 5)), Quantised.quantise(w)))
    other = Product((w, w))
    joined = jaxrewrite.transform(lambda *vs: jnp.concatenate(vs), materialise="allow")
    want = np.concatenate([scaled.materialise(), w @ w])
    np.testing.assert_allclose(jaxrewrite.materialise(joined(scaled, other)), want, 1e-5)


@pytest.mark.parametrize("are_inputs_last", [False, True])
@pytest.mark.parametrize(
    "program",
    [
        lambda p, x: [x[:, 1:6] @ p["a"][1:6], x @ p["a"][:, 2:]],
        lambda p, x: [x @ part for part in jnp.split(p["a"], 3, -1)],
        lambda p, x: jnp.einsum("tk,khd->thd", x, p["a"].reshape(K, 2, 3)),
        lambda p, x: jnp.einsum(
            "tab,abn->tn", x.reshape(-1, 2, 4), p["a"].reshape(2, 4, 6)
        ),
        lambda p, x: x @ jnp.concatenate([p["a"], p["b"], p["a"][:, 1:4]], -1)[:, 2:14],
        lambda p, x: jnp.concatenate([x, x], -1) @ jnp.concatenate([p["a"], p["b"]], 0),
        lambda p, x: x @ lax.dynamic_slice(p["a"], (0, jnp.int32(2)), (K, 3))[:, ::-1],
        lambda p, x: jax.vmap(lambda w, x: x @ w[2:])(
            jnp.stack([p["a"], p["b"]]), jnp.stack([x, -x])[..., 2:]
        ),
    ],
)
def test_parts_of_scaled_rows_are_weights(program, are_inputs_last):
    """So are what they make together, and heads."""
    x = jnp.asarray(correlated(40, K))
    if are_inputs_last:
        of_inputs_first = program
        program = lambda p, x: of_inputs_first({name: w.T for name, w in p.items()}, x)
    params = {name: jnp.asarray(normal(K, 6, seed=ord(name))) for name in "ab"}
    fit = calibrate(lambda p, x: x @ p["a"] + x @ p["b"], method="awq", where=EVERY)
    values = {name: v.T if are_inputs_last else v for name, v in fit(params, [x]).items()}
    assert all(isinstance(v, Product) for v in values.values())

    def total(program, values):
        products = jax.tree.leaves(program(values, x))
        return sum((y**2).sum() for y in products), products

    through = lambda program: jax.value_and_grad(
        lambda values: total(program, values), has_aux=True, allow_int=True
    )(values)
    got = through(jaxrewrite.transform(program, materialise="forbid"))
    wanted = through(lambda values, x: program(jaxrewrite.materialise(values), x))
    are_numbers = lambda tree: [y for y in jax.tree.leaves(tree) if y.dtype == jnp.float32]
    for y, z in zip(are_numbers(got), are_numbers(wanted), strict=True):
        np.testing.assert_allclose(y, z, rtol=1e-4, atol=1e-4 * abs(z).max())


@pytest.mark.parametrize(
    ("method", "block", "lengths", "blocks"),
    [
        ("gptq", 3, (6, 2), [2, 1]),
        ("awq", 3, (6, 2), [2, 1]),
        ("smoothquant", 5, (5, 3), [1, 1]),  # each a product of integers
    ],
)
def test_the_last_block_of_what_is_summed_may_be_shorter(method, block, lengths, blocks):
    """Of a matrix, of a transposed one, and of the layers of a scan."""
    x = jnp.asarray(correlated(40, K))

    def program(p, x):
        x, _ = lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, p["layers"])
        return x @ p["a"] + x @ p["b"].T

    shapes = {"a": (K, 3), "b": (3, K), "layers": (2, K, K)}
    params = {name: jnp.asarray(normal(*shape)) for name, shape in shapes.items()}
    fit = calibrate(program, method=method, where=EVERY, bits=8, block=block)
    values = fit(params, [x])
    axes = {"a": -2, "b": -1, "layers": -2}
    for name, v in values.items():
        if method != "gptq":
            assert isinstance(v, Product)
            (v,) = (f for f in v.factors if not isinstance(f, Diagonal))
        assert isinstance(v, Concatenated) and (v.axis, v.lengths) == (axes[name], lengths)
        assert [part.scale.shape[axes[name]] for part in v.parts] == blocks
        assert all(isinstance(part, Quantised) for part in v.parts)
    for name, w in params.items():
        np.testing.assert_allclose(values[name].materialise(), w, atol=0.1)
    got = jaxrewrite.transform(program, materialise="forbid")(values, x)
    of_dense = program(jaxrewrite.materialise(values), x)
    # What weights of SmoothQuant meet is rounded, too.
    np.testing.assert_allclose(got, of_dense, atol=0.1 if method == "smoothquant" else 1e-5)


def test_short_blocks_of_two_axes_that_are_summed():
    """A block goes on to the next head only if it has all of one."""
    x, w = correlated(30, 3 * 4), normal(3, 4, 5)
    hessian = (x.T @ x).astype(np.float64)
    program = lambda w, x: jnp.einsum("ths,hso->to", x.reshape(-1, 3, 4), w)
    for block, shapes, blocks in (
        (3, [(3, 1, 5), (3, 1, 5)], 3 * [3, 1]),
        (8, [(1, 1, 5), (1, 1, 5)], [8, 4]),
    ):
        fit = calibrate(program, method="gptq", where=EVERY, bits=3, block=block)
        v = fit(jnp.asarray(w), [jnp.asarray(x)])
        assert [part.scale.shape for part in v.parts] == shapes
        wanted = optimal_updates(w.reshape(12, 5), hessian, 3, blocks)
        np.testing.assert_allclose(v.materialise(), wanted.reshape(w.shape), atol=2e-4)


@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_weights_that_the_program_casts_are_fitted(method):
    """As those of a layer of Flax with a dtype of its own."""
    params = {name: jnp.asarray(normal(K, 6, seed=ord(name))) for name in "ab"}
    x = jnp.asarray(correlated(40, K), "bfloat16")
    # No weight meets what another makes, so that the rounding of a product tells nothing.
    plain = lambda p, x: [x.astype("float32") @ p["a"], x.astype("float32") @ p["b"]]
    cast = lambda p, x: x @ jnp.concatenate([p["a"], p["b"]], 1).astype("bfloat16")
    fits = [calibrate(fn, method=method, where=EVERY)(params, [x]) for fn in (cast, plain)]
    got, wanted = map(jaxrewrite.materialise, fits)
    jax.tree.map(np.testing.assert_array_equal, got, wanted)
    jaxrewrite.transform(cast, materialise="forbid")(fits[0], x)


@pytest.mark.parametrize("method", ["gptq", "awq", "smoothquant"])
@pytest.mark.parametrize("wrong", [np.nan, np.inf, 1e25])
def test_what_is_not_finite_is_refused(method, wrong):
    """Squares of the last of these are infinite in float32."""
    fit = calibrate(lambda p, x: x @ p["a"], method=method, where=EVERY)
    w, x = normal(K, 3), normal(4, K)
    of_data = np.where(np.arange(K) == 2, wrong, x).astype("float32")
    with pytest.raises(ValueError, match="the weight a met an array that is not finite"):
        fit({"a": jnp.asarray(w)}, [jnp.asarray(x), jnp.asarray(of_data)])
    if wrong == 1e25:
        return
    of_weight = np.where(w == w.max(), wrong, w).astype("float32")
    with pytest.raises(ValueError, match="the weight a has entries that are infinite"):
        fit({"a": jnp.asarray(of_weight)}, [jnp.asarray(x)])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("method", ["gptq", "awq", "smoothquant"])
def test_integers_are_fitted_to_the_scales_that_are_stored(method, dtype):
    """They are the nearest ones to the quotients by these, which the dtype has rounded."""
    w = jnp.asarray(normal(64, 16), dtype)
    x = jnp.asarray(normal(40, 64, seed=3) * np.linspace(0.5, 2, 64), dtype)
    program = lambda p, x: x @ p["a"]
    # Of an identity, which has no row that could make up for another, GPTQ rounds to the nearest.
    x = jnp.eye(64, dtype=dtype) if method == "gptq" else x
    v = calibrate(program, method=method, where=EVERY, bits=8, block=32)({"a": w}, [x])["a"]
    rows = np.ones(64)
    if method != "gptq":
        diagonal, v = v.factors
        rows = 1 / np.asarray(diagonal.d, np.float64)
    scale = np.repeat(np.asarray(v.scale, np.float64), 32, 0)
    q = np.asarray(jaxrewrite.materialise(v.q), np.float64)
    assert v.scale.dtype == dtype and v.scale.shape == (2, 16)
    step = np.asarray(w, np.float64) * rows[:, None] / scale - q
    assert abs(step).max() < 0.501


def test_weights_that_meet_the_same_array_are_taken_together():
    shown = []
    program = lambda p, x: jnp.tanh(x @ p["q"] + x @ p["k"]) @ p["v"]
    params = {name: jnp.asarray(normal(K, K)) for name in "kqv"}
    calibrate(
        program,
        method="gptq",
        where=EVERY,
        progress=lambda names: shown.extend(names) or names,
    )(params, [jnp.asarray(correlated(20, K))])
    assert [set(name.split(", ")) for name in shown] == [{"k", "q"}, {"v"}]


@pytest.mark.parametrize("method", ["gptq", "awq"])
@pytest.mark.parametrize(
    ("joined", "apart"),
    [
        (
            lambda p, x: x @ jnp.concatenate([p["a"], p["b"]], 1),
            lambda p, x: [x @ p["a"], x @ p["b"]],
        ),
        (
            lambda p, x: jnp.concatenate([x, x**2], 1) @ jnp.concatenate([p["a"], p["b"]]),
            lambda p, x: x @ p["a"] + x**2 @ p["b"],
        ),
        (
            lambda p, x: jnp.einsum("tk,lkn->ltn", x, jnp.stack([p["a"], p["b"]])),
            lambda p, x: [x @ p["a"], x @ p["b"]],
        ),
    ],
)
def test_weights_joined_before_a_product_are_fitted_as_if_they_were_apart(
    joined, apart, method
):
    params = {name: jnp.asarray(normal(K, 6, seed=ord(name))) for name in "ab"}
    x = jnp.asarray(correlated(40, K))
    fits = (calibrate(fn, method=method, where=EVERY) for fn in (joined, apart))
    got, wanted = (jaxrewrite.materialise(fit(params, [x])) for fit in fits)
    jax.tree.map(np.testing.assert_array_equal, got, wanted)
    assert weight_axes(joined, params, x) == weight_axes(apart, params, x) != {}


def test_each_part_of_a_stack_has_to_meet_something():
    stack, x = jnp.asarray(normal(4, K, 6)), jnp.asarray(correlated(40, K))
    fit = calibrate(lambda w, x: x @ w[0] + x @ w[3], method="gptq", where=EVERY)
    with pytest.raises(
        ValueError, match=r"at the index \(1,\) of its axes \(0,\)\. Give more"
    ):
        fit(stack, [x])


@pytest.mark.parametrize(
    ("program", "options", "message"),
    [
        (
            lambda w, x: x + w[0],
            {},
            "met no floating array in a product. A weight that the program joins",
        ),
        (lambda w, x: x @ w + x @ w.T, {}, "different axes by different products"),
        (
            lambda w, x: jnp.einsum("tb,abk->tak", x[:, :4], w.reshape(2, 4, K)),
            {},
            "keeps another",
        ),
        (lambda w, x: x @ w, {"bits": 9}, "`bits` must be 2 to 8"),
    ],
)
@pytest.mark.filterwarnings(f"ignore::jaxrewrite.{MaterialisationWarning.__name__}")
def test_what_can_not_be_fitted_is_an_error(program, options, message):
    with pytest.raises(ValueError, match=message):
        calibrate(program, **({"method": "awq", "where": EVERY} | options))(
            jnp.asarray(normal(K, K)), [jnp.asarray(correlated(4, K))]
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "best"}, "method is 'best'"),
        ({"bits": 4}, "bits is for method"),
        (
            {"method": "gptq", "where": EVERY, "block": 0},
            "block is 0; it must be a positive",
        ),
        ({"method": "gptq"}, "gptq needs where"),
        ({"ranges": "search"}, "ranges is 'search'"),
        ({"ranges": ("rms", -1)}, "ranges is"),
    ],
)
def test_options_that_do_not_fit(options, message):
    with pytest.raises(ValueError, match=message):
        calibrate(model, **options)


def test_a_range_of_zero_is_refused():
    with pytest.raises(ValueError, match=r"ranges is \('max', 0\)"):
        calibrate(model, ranges=("max", 0))


def test_ranges_of_activations_of_weights_with_a_short_block():
    """Each part multiplies some of what the weight meets, and has the range of that."""
    x = jnp.array([[1.0, -4.0, 1.0, 2.0, 0.5], [1.0, 0.0, 1.0, 0.5, 1.0]])
    w = quantise(jnp.ones((5, 4)), EVERY, block=3)
    fitted = calibrate(lambda v, x: x @ v)(w, [x])
    assert [part.activations for part in fitted.parts] == ["static"] * 2
    assert [float(part.activation_range.max()) for part in fitted.parts] == [4, 2]
    got = jaxrewrite.transform(lambda v, x: x @ v, materialise="forbid")(fitted, x)
    np.testing.assert_allclose(got, x @ jnp.ones((5, 4)), atol=0.05)


def test_the_range_of_an_array_with_one_entry_that_is_no_number_is_refused():
    """A maximum over so many entries loses it on a CPU."""
    x = np.ones((3, 4096), np.float32)
    x[1, 0] = np.nan
    w = Quantised.quantise(jnp.ones((4096, 2)), axis=-1)
    with pytest.raises(ValueError, match="met an array that is not finite"):
        calibrate(lambda v, x: x @ v)(w, [jnp.asarray(x)])


def test_ranges_of_activations():
    x = jnp.array([[1.0, -4.0], [1.0, 0.0]])
    v = Quantised.quantise(jnp.ones((2, 3)), axis=-1)
    of = lambda ranges: calibrate(lambda v, x: x @ v, ranges=ranges)(
        v, [x]
    ).activation_range.max()
    np.testing.assert_allclose(of(("max", 0.5)), 2)
    np.testing.assert_allclose(of(("rms", 1.5)), 1.5 * np.sqrt(18 / 4), rtol=1e-6)
    np.testing.assert_allclose(of(("rms", 9)), 4)

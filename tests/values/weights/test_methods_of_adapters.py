"""Adapters beside LoRA: DoRA, IA3, VeRA; PiSSA and LoftQ; dropout; labels of LoRA+.

The oracles are the published formulas in NumPy, in double precision.
"""

import dataclasses

import jax
import jax.numpy as jnp
import jax.test_util
import numpy as np
import optax
import pytest
from choose import often
from jax import lax
from jax.sharding import PartitionSpec

import jaxrewrite
from jaxrewrite.values import (
    NF4,
    Dora,
    Lora,
    Quantised,
    Rescaled,
    adapt,
    dropout,
    freeze,
    merge,
    partition,
    train_only,
)


KEY = jax.random.key(0)
RNG = np.random.default_rng(0)
every = lambda path, leaf: leaf.ndim > 1
multiply = jaxrewrite.transform(lambda v, x: x @ v, materialise="forbid")


def normal(*shape):
    return jnp.asarray(RNG.normal(size=shape), "float32")


W, A, B, X = normal(64, 5), normal(64, 2), normal(2, 5), normal(3, 64)
LENGTHS = abs(normal(1, 5)) + 0.1


def double(x):
    return np.asarray(jaxrewrite.materialise(x), np.float64)


def dora(w, a, b, lengths, scale):
    """Equation 5 of the paper."""
    directions = double(w) + scale * double(a) @ double(b)
    return double(lengths) * directions / np.linalg.norm(directions, axis=0)


@pytest.mark.parametrize(
    "w",
    [W, NF4.quantise(W), Quantised.quantise(W, 4, block=8)],
    ids=lambda w: "array" if w is W else repr(w),  # How arrays are printed may be set.
)
def test_dora_is_the_formula_on_any_base(w):
    v = Dora(w, A, B, LENGTHS, 0.5)
    want = double(X) @ dora(w, A, B, LENGTHS, 0.5)
    np.testing.assert_allclose(multiply(v, X), want, rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(multiply(v.rescaled(), X), want, rtol=2e-5, atol=2e-5)


def test_dora_makes_no_array_of_the_size_of_the_weight_with_its_change():
    program = jaxrewrite.make_jaxpr(multiply)(Dora(W, A, B, LENGTHS), X)
    of_size = [
        e for e in program.jaxpr.eqns if any(v.aval.shape == W.shape for v in e.outvars)
    ]
    assert {e.primitive.name for e in of_size} <= {"stop_gradient", "optimization_barrier"}


def test_dora_begins_as_the_weight_and_trains_as_in_the_paper():
    """The lengths of the columns are constants to derivatives: section 4.3 of the paper."""
    params = adapt({"kernel": W}, every, 2, KEY, method="dora", scale=0.5)
    v = params["kernel"]
    np.testing.assert_allclose(multiply(v, X), X @ W, rtol=1e-4, atol=1e-4)
    v = Dora(W, A, B, LENGTHS, 0.5)
    gradient = jax.grad(lambda v: (multiply(v, X) ** 2).sum())(v)
    x, size = double(X), np.linalg.norm(double(W) + 0.5 * double(A) @ double(B), axis=0)
    y = x @ dora(W, A, B, LENGTHS, 0.5)
    of_change = 2 * x.T @ y * double(LENGTHS) / size
    np.testing.assert_allclose(gradient.b, 0.5 * double(A).T @ of_change, rtol=1e-3)
    np.testing.assert_allclose(
        gradient.a, 0.5 * of_change @ double(B).T, rtol=1e-3, atol=0.01
    )
    of_lengths = (2 * y**2 / double(LENGTHS)).sum(0)
    np.testing.assert_allclose(gradient.magnitude[0], of_lengths, rtol=1e-3)
    assert not gradient.w.any()


def test_a_column_of_zeros_stays_zero():
    v = Dora.of(Lora(jnp.zeros((4, 2)), jnp.ones((4, 1)), jnp.zeros((1, 2))))
    assert not multiply(v, jnp.ones((1, 4))).any()
    trained = dataclasses.replace(v, frozen=False)
    gradient = jax.grad(lambda v: multiply(v, jnp.ones((1, 4))).sum())(trained)
    assert np.isfinite(jax.flatten_util.ravel_pytree(gradient)[0]).all()


def test_devices_have_whole_columns_of_a_dora():
    v = Dora.of(Lora(normal(4, 6), normal(4, 2), normal(2, 6)))
    of_columns = v.leaf_specs(PartitionSpec(None, "x"))
    assert of_columns.magnitude == PartitionSpec(None, "x") == of_columns.w
    assert v.leaf_specs(PartitionSpec()).magnitude == PartitionSpec(None, None)
    assert v.leaf_specs(PartitionSpec("x")) is NotImplemented
    factors = normal(2, 3, 4), normal(4, 6)
    kernel = Dora.of(Lora(normal(2, 3, 6), *factors, rows=(-3, -2), cols=(-1,)))
    assert kernel.leaf_specs(PartitionSpec(None, "x")) is NotImplemented


@pytest.mark.parametrize("axis", [-1, 0])
@pytest.mark.parametrize("bits", [{}, {"bits": 4}])
def test_dora_kernels_side_by_side(axis, bits):
    """As an LSTM joins the kernels of its gates. The lengths are still those of their columns."""
    params = {"a": W, "b": normal(64, 5 if axis == 0 else 7)}
    params = adapt(params, every, 1, KEY, method="dora", **bits)
    moved = lambda x: x + 0.1 if jnp.issubdtype(x.dtype, jnp.inexact) else x
    v, w = jax.tree.map(moved, (params["a"], params["b"]))
    x = jnp.concatenate([X, -X], 1) if axis == 0 else X
    joined = lambda v, w: (
        x @ jnp.concatenate([v, w], axis),
        x.T @ x @ jnp.concatenate([v, w], axis)[:, 2:],
    )
    got = jaxrewrite.transform(joined, materialise="forbid")(v, w)
    for y, z in zip(got, joined(*merge((v, w))), strict=True):
        np.testing.assert_allclose(y, z, rtol=1e-4, atol=1e-3)


def test_stacked_dora_in_a_scan():
    layers = normal(3, 5, 5)
    axes = (1,), (2,)
    v = adapt(layers, every, 2, KEY, axes=axes, method="dora", bits=4, block=5)
    assert (v.magnitude.shape, v.w.scale.shape) == ((3, 1, 5), (3, 1, 5))
    deep = lambda v, x: jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, v)[0]
    got = jaxrewrite.transform(deep, materialise="forbid")(v, jnp.ones(5))
    np.testing.assert_allclose(got, deep(merge(v), jnp.ones(5)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((W, A, B, jnp.ones(5)), r"`magnitude` has shape \(5,\).*needs \(1, 5\)"),
        ((W * 1j, A, B, LENGTHS), "must be real; got complex64"),
        ((W, A.T, B, LENGTHS), "Lora: a has shape"),
    ],
)
def test_errors_of_dora(arguments, message):
    with pytest.raises(ValueError, match=message):
        Dora(*arguments)


# --- multipliers ----------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 5), (64, 1), (1, 1), (8, 1)])
@pytest.mark.parametrize(
    "w", [W, NF4.quantise(W), Lora(W, A, B)], ids=lambda w: type(w).__name__
)
def test_multipliers_of_inputs_and_outputs(w, shape):
    scale = normal(*shape)
    spread = np.repeat(double(scale), 64 // shape[0] if shape[0] > 1 else 1, axis=0)
    want = double(X) @ (double(w) * spread)
    np.testing.assert_allclose(multiply(Rescaled(w, scale), X), want, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("shape, groups", [((8, 1, 1), 1), ((1, 4, 1), 1), ((8, 1, 1), 2)])
def test_multipliers_of_a_kernel(shape, groups):
    kernel, scale, image = normal(8, 4, 3), normal(*shape), normal(2, 4 * groups, 7)

    def convolve(kernel, image):
        return jax.lax.conv_general_dilated(
            image, kernel, (1,), "SAME", feature_group_count=groups
        )

    got = jaxrewrite.transform(convolve, materialise="forbid")(
        Rescaled(kernel, scale), image
    )
    np.testing.assert_allclose(got, convolve(kernel * scale, image), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "w, scale, message",
    [
        (jnp.ones((4, 2), int), jnp.ones((1, 2)), "`w` must be floating; got int32"),
        (jnp.ones((4, 2)), jnp.ones((3, 1)), "`scale` must have as many axes as `w`"),
    ],
)
def test_errors_of_multipliers(w, scale, message):
    with pytest.raises(ValueError, match=message):
        Rescaled(w, scale)


# --- how adapters begin ---------------------------------------------------------------------


def test_vera_trains_numbers_of_ranks_and_columns():
    v = adapt({"kernel": W}, every, 3, KEY, method="vera", scale=0.5)["kernel"]
    np.testing.assert_allclose(multiply(v, X), X @ W, rtol=1e-4, atol=1e-4)
    d, b = normal(1, 3), normal(1, 5)
    v = Lora(W, Rescaled(v.a.w, d), Rescaled(v.b.w, b), 0.5)
    change = double(v.a.w) @ np.diag(double(d)[0]) @ double(v.b.w) @ np.diag(double(b)[0])
    want = double(X) @ (double(W) + 0.5 * change)
    np.testing.assert_allclose(multiply(v, X), want, rtol=1e-4, atol=1e-4)
    labels = freeze(v, {Lora: ["w"], Rescaled: ["w"]}, rest="freeze")
    assert [x.shape for x in jax.tree.leaves(partition(v, labels)[0])] == [(1, 3), (1, 5)]


@pytest.mark.parametrize("axes", [((0,), (1,)), ((1,), (0,))])
def test_pissa_takes_the_largest_singular_values(axes):
    w = normal(12, 8)
    v = adapt(w, every, 2, KEY, axes=axes, init="pissa", scale=0.25)
    u, s, vh = np.linalg.svd(double(w))
    change = double(Lora(jnp.zeros_like(w), v.a, v.b, 0.25, *axes))
    np.testing.assert_allclose(change, u[:, :2] * s[:2] @ vh[:2], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(merge(v), w, rtol=1e-4, atol=1e-5)


def test_pissa_of_a_higher_rank_than_the_weight_has_zeros_for_the_rest():
    w = normal(3, 4)
    with pytest.warns(UserWarning, match="rank of at most 3, and rank is 5"):
        v = adapt(w, every, 5, KEY, init="pissa")
    assert (v.a.shape, v.b.shape) == ((3, 5), (5, 4))
    assert not v.a[:, 3:].any() and not v.b[3:].any()
    np.testing.assert_allclose(merge(v), w, rtol=1e-4, atol=1e-5)


def test_a_dora_weight_shares_a_base_among_a_stack_of_changes():
    """Its columns are longer than the rank, so that their lengths come from products."""
    changes = normal(2, 64, 3), normal(2, 3, 5)
    v = Dora(W, *changes, abs(normal(2, 1, 5)) + 0.1)
    dense = double(W) + double(changes[0]) @ double(changes[1])
    lengths = np.linalg.norm(dense, axis=1, keepdims=True)
    want = dense / lengths * double(v.magnitude)
    x = normal(2, 3, 64)
    np.testing.assert_allclose(double(v), want, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(multiply(v, x), double(x) @ want, rtol=1e-3, atol=1e-3)


def test_loftq_makes_up_for_what_quantising_loses():
    w = normal(64, 32)
    lost = {}
    for init in ("random", "loftq"):
        v = adapt(w, every, 8, KEY, init=init, bits=2, block=16)
        assert isinstance(v.w, Quantised)
        lost[init] = np.linalg.norm(double(v) - double(w))
    assert lost["loftq"] < 0.9 * lost["random"]


def test_heads_and_stacks_are_adapted_by_singular_values():
    w = normal(2, 6, 3, 4)
    v = adapt(w, every, 6, KEY, axes=((1,), (2, 3)), init="pissa")
    np.testing.assert_allclose(v.w, 0, atol=1e-5)  # The rank is that of the weight.
    assert (v.a.shape, v.b.shape) == ((2, 6, 6), (2, 6, 3, 4))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"method": "lokr"}, "method is 'lokr'; it must be one of"),
        ({"init": "eva"}, "init is 'eva'; it must be one of"),
        ({"init": "loftq"}, "give bits"),
        ({"init": "pissa", "method": "vera"}, "the factors of VeRA are random"),
        ({"init": "pissa", "scale": 0.0}, "needs a positive scale"),
        ({"bits": 9}, "adapt: bits is 9|bits.*2 to 8"),
        ({"bits": 4, "block": (1, 2)}, "kernel can't be adapted.*`block` is one number"),
    ],
)
def test_errors_of_adapt(options, message):
    with pytest.raises(ValueError, match=message):
        adapt({"kernel": W}, every, 2, KEY, **options)


def test_pissa_of_a_quantised_weight_says_what_to_do():
    with pytest.raises(
        ValueError, match="kernel is a NF4, of which PiSSA leaves a dense rest"
    ):
        adapt({"kernel": NF4.quantise(W)}, every, 2, KEY, init="pissa")


# --- training -------------------------------------------------------------------------------


# Of such factors the change of x is x itself, so that it shows what was dropped of it.
SEEN = {
    "lora": lambda w: Lora(w, jnp.eye(8), jnp.eye(8)),
    "lora on int8": lambda w: Lora(Quantised.quantise(w), jnp.eye(8), jnp.eye(8)),
    "scaled and cast": lambda w: Lora(w, 2 * jnp.eye(8), jnp.eye(8) / 4, 2.0),
    "dora": lambda w: Dora.of(Lora(w, jnp.eye(8), jnp.eye(8))),
}
USES = {
    "product": lambda v, x: x @ v,
    "transposed": lambda v, x: (v.T @ x.T).T,
    "in heads": lambda v, x: jnp.einsum("bi,ihs->bhs", x, v.reshape(8, 2, 4)).reshape(-1, 8),
    "cast": lambda v, x: (x.astype("bfloat16") @ v.astype("bfloat16")).astype("float32"),
    "scaled": lambda v, x: x @ (-v * 2) / -2,
}  # fmt: skip


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("name", often(SEEN, ["lora", "dora"]))
def test_dropout_drops_entries_of_what_the_change_sees(name, use):
    v, x = SEEN[name](10 * jnp.eye(8)), 1 + abs(normal(40, 8))
    dropped = dropout({"kernel": v, "bias": X}, 0.25, KEY)
    assert dropped["bias"] is X
    run = jaxrewrite.transform(USES[use], materialise="forbid")
    seen = run(dropped["kernel"], x) / x - 10
    kept = seen > 0.5
    np.testing.assert_allclose(seen, np.where(kept, 4 / 3, 0), atol=0.2)
    assert 0.65 < kept.mean() < 0.85
    assert len({tuple(row) for row in np.asarray(kept)}) > 20  # A mask for each token.


@pytest.mark.parametrize("rows, cols", [([1], [0, 2]), ([1, 2], [0])])
def test_dropout_of_a_kernel_drops_entries_of_its_inputs(rows, cols):
    """Those of the image itself, whichever factor has the window."""
    a, b = jnp.eye(8), jnp.eye(8)
    a, b = (a, b[..., None]) if len(cols) > 1 else (a[:, None], b)
    v = dropout(Lora(jnp.zeros((8, 8, 1)), a, b, 1.0, rows, cols), 0.25, KEY)
    run = jaxrewrite.transform(lambda v, x: lax.conv(x, v, (1,), "VALID"))
    seen = run(v, jnp.ones((4, 8, 20)))
    np.testing.assert_allclose(np.unique(seen), [0, 4 / 3], rtol=1e-6)
    assert 0.65 < (seen > 0).mean() < 0.85


def test_dropout_has_the_gradient_of_what_it_computes():
    params, x = Lora(W, A, B, 0.5), normal(6, 64)
    run = jaxrewrite.transform(lambda v, x: x @ v, materialise="forbid")

    def loss(a, b):
        v = dropout(dataclasses.replace(params, a=a, b=b), 0.5, KEY)
        return (run(v, x) ** 2).sum()

    jax.test_util.check_grads(loss, (A, B), 1, ["fwd", "rev"], 0.05, 0.05, 1e-2)
    shown = dropout(Lora(0 * W, jnp.eye(64), jnp.eye(64)[:, :5]), 0.5, KEY)
    np.testing.assert_allclose(jaxrewrite.materialise(shown), jnp.eye(64)[:, :5])


def test_dropout_differs_from_layer_to_layer():
    x, w = jnp.ones((5, 8)), jnp.zeros((2, 8, 8))
    eyes = jnp.broadcast_to(jnp.eye(8), (2, 8, 8))
    layers = dropout(Lora(w, eyes, eyes), 0.5, KEY)
    scan = lambda layers, x: jax.lax.scan(lambda c, w: (c, c @ w), x, layers)[1]
    first, second = jaxrewrite.transform(scan, materialise="forbid")(layers, x)
    assert {0.0, 2.0} == set(np.unique(first)) and (first != second).any()
    # There is one seed for each layer.
    assert layers.a.seed.shape == (2, 1, 1)
    assert dropout(Lora(W, A, B), 0.5, KEY).a.seed.shape == (1, 1)


MATRIX = lambda **axes: Lora(normal(5, 5), normal(5, 2), normal(2, 5), **axes)
KERNEL = Lora(normal(5, 5, 1), normal(5, 2), normal(2, 5, 1), rows=[0], cols=[1, 2])
OUTPUTS_FIRST = {
    "product": (MATRIX(), lambda v, x: x @ v.T),
    "from the left": (MATRIX(), lambda v, x: v @ x.T),
    "convolution": (KERNEL, lambda v, x: lax.conv(x[..., None], v, (1,), "VALID")),
}


@pytest.mark.parametrize("name", OUTPUTS_FIRST)
def test_dropout_says_where_the_rows_are_not_the_inputs(name):
    """As `adapt` makes them without axes of a weight (out, in)."""
    v, multiply = OUTPUTS_FIRST[name]
    run = jaxrewrite.transform(multiply, materialise="forbid")
    x = normal(4, 5)
    with pytest.warns(UserWarning, match="dropout: this product sums the axes"):
        got = run(dropout(v, 0.5, KEY), x)
    np.testing.assert_array_equal(got, run(v, x))


class Named(Lora):
    """A type of a user's, with what the library knows of a `Lora`."""


def test_dropout_keeps_a_type_of_a_user():
    w = MATRIX()
    named = Named(w.w, w.a, w.b, w.scale, w.rows, w.cols, w.frozen)
    assert type(dropout(named, 0.5, KEY)) is Named
    seen = jaxrewrite.transform(lambda v, x: x @ v)(dropout(named, 0.5, KEY), X[:, :5])
    np.testing.assert_array_equal(seen, multiply(dropout(w, 0.5, KEY), X[:, :5]))


def test_dropout_says_nothing_of_cotangents():
    """They meet the factor itself, as its rows are the outputs to them."""
    v = dropout(MATRIX(rows=[1], cols=[0]), 0.5, KEY)
    loss = lambda x, v: (x @ v.T).sum()
    got = jaxrewrite.transform(jax.grad(loss), materialise="forbid")(X[:, :5], v)
    want = jnp.ones((len(X), 5)) @ jaxrewrite.materialise(v)
    np.testing.assert_allclose(got, want, rtol=1e-5)


@pytest.mark.parametrize(
    "rate, tree, message",
    [
        (1.0, Lora(W, A, B), "rate is 1.0"),
        (0.5, {"kernel": W}, "no Lora or Dora"),
    ],
)
def test_errors_of_dropout(rate, tree, message):
    with pytest.raises(ValueError, match=message):
        dropout(tree, rate, KEY)
    for key in (0, 0.1, None, jnp.float32(0.1)):
        with pytest.raises(TypeError, match="dropout: key is .* a key of jax.random"):
            dropout(tree, KEY, key)


def test_labels_of_ones_own_are_trained():
    v = {"kernel": Lora(W, A, B), "bias": jnp.ones(5)}
    labels = freeze(v, {Lora: {"w": "freeze", "b": "fast"}}, rest="freeze")
    assert jax.tree.leaves(labels) == ["freeze", "freeze", "train", "fast"]
    trained, frozen = partition(v, labels)
    assert [x.shape for x in jax.tree.leaves(trained)] == [(64, 2), (2, 5)]
    assert [x.shape for x in jax.tree.leaves(frozen)] == [(5,), (64, 5)]
    for free in ("free", "unfrozen", "fresh", "Train", ""):
        assert partition(v, freeze(v, {Lora: {"b": free}}))[1]["kernel"].b is None


@pytest.mark.parametrize("by", ["partition", "train_only"])
@pytest.mark.parametrize(
    "label, error",
    [
        *((x, ValueError) for x in ("frozen", "Freeze", "FREEZE", "freeze ", "freez")),
        *((x, TypeError) for x in (True, False, None, 0)),
    ],
)
def test_labels_that_are_surely_mistakes_are_refused(label, error, by):
    """They would train a leaf that is meant to be frozen."""
    v = {"kernel": Lora(W, A, B), "bias": jnp.ones(5)}
    labels = {"kernel": freeze(v["kernel"], {Lora: ["w"]}), "bias": label}
    split = {"partition": partition, "train_only": of_an_optimiser}[by]
    with pytest.raises(error, match=f"{by}: the label of bias is {label!r}"):
        split(v, labels)
    with pytest.raises(error, match="label of kernel/w is"):
        split(v, freeze(v, {Lora: {"w": label}}))


def of_an_optimiser(params, labels):
    return train_only(optax.sgd(0.1), lambda _: labels).init(params)


def test_columns_whose_length_is_no_number_are_none():
    w = jnp.ones((3, 2)).at[1, 1].set(jnp.nan)
    v = Dora(w, jnp.ones((3, 1)), jnp.ones((1, 2)), jnp.ones((1, 2)), 1.0)
    np.testing.assert_array_equal(jnp.isnan(jaxrewrite.materialise(v)), [[False, True]] * 3)


def test_lengths_that_a_change_almost_takes_away_keep_their_digits():
    """A column of one row is the sum itself, and not what is left of products."""
    w, a, b = (
        np.float32([[1.0, -2.0]]),
        np.float32([[1.0, 0.0]]),
        np.float32([[1, 2], [1, 1]]),
    )
    b[0] = -w[0] * np.float32(0.99)
    v = Dora(w, a, b, jnp.ones((1, 2)))
    whole = w.astype(np.float64) + a.astype(np.float64) @ b
    np.testing.assert_allclose(v.rescaled().scale.ravel(), 1 / abs(whole[0]), rtol=1e-5)

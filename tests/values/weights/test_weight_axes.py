"""Weights as models have them: stacked, with outputs first, with heads, as kernels of convolutions."""

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from choose import often
from flax import nnx

import jaxrewrite
from jaxrewrite.values import Concatenated, Lora, Quantised, adapt, quantise, weight_axes


KEY = jax.random.key(0)
TOKENS = jnp.array([[1, 4, 2, 3], [0, 9, 9, 5]])
IMAGES = jax.random.normal(KEY, (2, 6, 6, 3))
is_weight = lambda path, leaf: leaf.ndim > 1


class Block(nn.Module):
    @nn.compact
    def __call__(self, x, _):
        attention = nn.MultiHeadDotProductAttention(num_heads=2, qkv_features=20)
        x = x + attention(nn.LayerNorm()(x))
        return x + nn.Dense(8)(nn.gelu(nn.Dense(12)(nn.LayerNorm()(x)))), None


class Scanned(nn.Module):
    """A transformer that scans over its layers and shares the weights of tokens."""

    @nn.compact
    def __call__(self, tokens):
        embed = nn.Embed(11, 8)
        scanned = nn.scan(
            Block, variable_axes={"params": 0}, split_rngs={"params": True}, length=3
        )
        x, _ = scanned()(embed(tokens), None)
        return embed.attend(x)


class ConvNet(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Conv(8, (3, 3))(x))
        x = nn.relu(nn.Conv(8, (3, 3), feature_group_count=8)(x))
        return nn.Dense(2)(x.mean((1, 2)))


class OutputsFirst(eqx.Module):
    """A model of Equinox, whose layers are stacked by filter_vmap."""

    embed: eqx.nn.Embedding
    attention: eqx.nn.MultiheadAttention
    convolve: eqx.nn.Conv1d
    layers: eqx.nn.Linear

    def __init__(self, key):
        keys = jax.random.split(key, 4)
        self.embed = eqx.nn.Embedding(11, 6, key=keys[0])
        self.attention = eqx.nn.MultiheadAttention(2, 6, key=keys[1])
        self.convolve = eqx.nn.Conv1d(6, 8, 3, padding=1, key=keys[2])
        make = lambda key: eqx.nn.Linear(8, 8, key=key)
        self.layers = eqx.filter_vmap(make)(jax.random.split(keys[3], 3))

    def __call__(self, tokens):
        x = jax.vmap(self.embed)(tokens)
        x = self.convolve(self.attention(x, x, x).T).T
        layers, static = eqx.partition(self.layers, eqx.is_inexact_array)
        turn = lambda x, own: (jnp.tanh(jax.vmap(eqx.combine(own, static))(x)), None)
        return jax.lax.scan(turn, x, layers)[0]


class Heads(nnx.Module):
    def __init__(self, rngs):
        self.attention = nnx.MultiHeadAttention(2, 8, 12, decode=False, rngs=rngs)
        self.down = nnx.Linear(8, 3, rngs=rngs)

    def __call__(self, x):
        return self.down(self.attention(x))


def of_flax(module, x):
    return module.apply, module.init(KEY, x), x


def of_equinox():
    apply = lambda model, tokens: jax.vmap(model)(tokens)
    return apply, OutputsFirst(KEY), TOKENS


def of_nnx():
    graph, state = nnx.split(Heads(nnx.Rngs(0)))
    apply = lambda state, x: nnx.merge(graph, nnx.State(state))(x)
    return apply, nnx.to_pure_dict(state), jax.random.normal(KEY, (2, 4, 8))


MODELS = {
    "scanned": lambda: of_flax(Scanned(), TOKENS),
    "convolutions": lambda: of_flax(ConvNet(), IMAGES),
    "outputs first": of_equinox,
    "heads": of_nnx,
}

ATTENTION = "params/ScanBlock_0/MultiHeadDotProductAttention_0"
AXES = {
    "scanned": {
        "params/Embed_0/embedding": ((1,), (0,)),
        "params/ScanBlock_0/Dense_0/kernel": ((1,), (2,)),
        "params/ScanBlock_0/Dense_1/kernel": ((1,), (2,)),
        f"{ATTENTION}/key/kernel": ((1,), (2, 3)),
        f"{ATTENTION}/out/kernel": ((1, 2), (3,)),
        f"{ATTENTION}/query/kernel": ((1,), (2, 3)),
        f"{ATTENTION}/value/kernel": ((1,), (2, 3)),
    },
    "convolutions": {
        "params/Conv_0/kernel": ((0, 1, 2), (3,)),
        "params/Conv_1/kernel": ((0, 1, 2), (3,)),
        "params/Dense_0/kernel": ((0,), (1,)),
    },
    "outputs first": {
        "embed/weight": ((1,), (0,)),
        "attention/query_proj/weight": ((1,), (0,)),
        "attention/key_proj/weight": ((1,), (0,)),
        "attention/value_proj/weight": ((1,), (0,)),
        "attention/output_proj/weight": ((1,), (0,)),
        "convolve/weight": ((1, 2), (0,)),
        "layers/weight": ((2,), (1,)),
    },
    "heads": {
        "attention/query/kernel": ((0,), (1, 2)),
        "attention/key/kernel": ((0,), (1, 2)),
        "attention/value/kernel": ((0,), (1, 2)),
        "attention/out/kernel": ((0, 1), (2,)),
        "down/kernel": ((0,), (1,)),
    },
}


@pytest.mark.parametrize("name", MODELS)
def test_axes_are_those_that_products_sum(name):
    apply, params, x = MODELS[name]()
    assert weight_axes(apply, params, x) == AXES[name]


def is_array(x):
    return hasattr(x, "shape")


@pytest.mark.parametrize("name", MODELS)
def test_models_run_with_quantised_and_adapted_weights(name):
    """Blocks of four along what is summed, and a change that is not zero, under "forbid"."""
    apply, params, x = MODELS[name]()
    axes = weight_axes(apply, params, x)
    in_table = lambda path, leaf: path in axes
    implicit = quantise(params, in_table, 4, block=4, axes=axes)
    implicit = adapt(implicit, in_table, 2, KEY, axes=axes)
    moved = lambda leaf: (
        leaf + 0.1 if is_array(leaf) and leaf.dtype == jnp.float32 else leaf
    )
    is_lora = lambda leaf: isinstance(leaf, Lora)
    change = lambda v: Lora(v.w, v.a, moved(v.b), 0.5, v.rows, v.cols) if is_lora(v) else v
    implicit = jax.tree.map(change, implicit, is_leaf=is_lora)
    run = jaxrewrite.transform(apply, materialise="forbid")
    got = run(implicit, x)
    dense = jax.tree.map(
        lambda v: jaxrewrite.materialise(v) if is_lora(v) else v, implicit, is_leaf=is_lora
    )
    np.testing.assert_allclose(got, apply(dense, x), rtol=2e-4, atol=2e-4)
    assert not np.allclose(got, apply(params, x), atol=1e-3)


@pytest.mark.parametrize("bits", [8, "nf4", "float8_e4m3fn", "mxfp4"])
def test_every_format_has_blocks_along_what_is_summed(bits):
    apply, params, x = of_equinox()
    axes = weight_axes(apply, params, x)
    v = quantise(params, lambda path, leaf: path == "layers/weight", bits, axes=axes)
    error = abs(jaxrewrite.materialise(v.layers.weight) - params.layers.weight).max((2,))
    most = abs(params.layers.weight).max((2,))
    levels = {8: 127, "nf4": 5, "float8_e4m3fn": 16, "mxfp4": 4}
    np.testing.assert_array_less(error, most / levels[bits])


FORMATS = [8, 4, "nf4", "float8_e4m3fn", "mxfp4", "mxfp6_e2m3", "mxfp8_e4m3", "nvfp4"]


@pytest.mark.parametrize("block", [None, 24])
@pytest.mark.parametrize("bits", often(FORMATS, [8, "nf4", "mxfp4"]))
def test_what_is_outside_may_go_over_a_stack(bits, block):
    """Each weight of the stack has all of its scales, also where the last block is shorter."""
    w = jax.random.normal(KEY, (3, 64, 16)) * jnp.array([[[1.0]], [[9.0]], [[0.1]]])
    v = quantise({"w": w}, is_weight, bits, block=block, axes=((1,), (2,)))["w"]
    one = jaxrewrite.transform(lambda w, x: x @ w, materialise="forbid")
    x = jnp.ones(64)
    want = jnp.einsum("i,lij->lj", x, v.materialise())
    np.testing.assert_allclose(jax.vmap(one, (0, None))(v, x), want, rtol=2e-5, atol=2e-5)
    _, got = jax.lax.scan(lambda carry, w: (carry, one(w, x)), 0, v)
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)
    alone = quantise({"w": w[2]}, is_weight, bits, block=block, axes=((0,), (1,)))["w"]
    np.testing.assert_allclose(v.materialise()[2], alone.materialise(), rtol=1e-6)


@pytest.mark.parametrize("bits", ["nf4", "nvfp4"])
def test_a_stack_may_be_any_axis(bits):
    w = jax.random.normal(KEY, (64, 3, 16)) * jnp.array([[1.0], [9.0], [0.1]])
    v = quantise({"w": w}, is_weight, bits, axes=((0,), (2,)))["w"]
    one = jaxrewrite.transform(lambda w, x: x @ w)
    got = jax.vmap(one, (jax.tree.map(lambda _: 1, v), None))(v, jnp.ones(64))
    np.testing.assert_allclose(got, v.materialise().sum(0), rtol=2e-5, atol=2e-5)
    with pytest.raises(ValueError, match="`stack` 3 is not an axis"):
        type(v).quantise(w, block=1, stack=3)


@pytest.mark.parametrize(
    "shape, rows, want",
    [
        ((3, 80), (1,), (1, 80)),
        ((3, 160), (1,), (1, 80)),
        ((3, 96), (1,), (1, 48)),
        ((97, 3), (0,), (97, 1)),
        ((4, 32, 5), (0, 1), (2, 32, 1)),
        ((5, 4), (0,), (5, 1)),
    ],
)
def test_a_block_of_a_format_is_the_nearest_divisor(shape, rows, want):
    w = jnp.ones(shape)
    cols = [i for i in range(w.ndim) if i not in rows][-1:]
    v = quantise({"w": w}, is_weight, "nf4", axes=(rows, cols))["w"]
    assert v.scale_q.shape == tuple(n // b for n, b in zip(shape, want, strict=True))


@pytest.mark.parametrize(
    "shape, rows, block, want",
    [
        ((3, 80), (1,), 64, [(1, 64), (1, 16)]),
        ((4, 32, 5), (0, 1), 64, [(2, 32, 1)]),
        ((4, 12, 5), (0, 1), 8, [(1, 8, 1), (1, 4, 1)]),
        ((5, 12, 5), (0, 1), 24, [(2, 12, 1), (1, 12, 1)]),
        ((2, 3, 8), (1,), None, [(1, 3, 1)]),
        ((4, 12, 5), (0, 1), None, [(4, 12, 1)]),
        ((5, 4), (0,), 1000, [(5, 1)]),
    ],
)
def test_the_last_block_may_be_shorter(shape, rows, block, want):
    w = jnp.ones(shape)
    cols = [i for i in range(w.ndim) if i not in rows][-1:]
    v = quantise({"w": w}, is_weight, block=block, axes=(rows, cols))["w"]
    parts = v.parts if isinstance(v, Concatenated) else [v]
    for part, sizes in zip(parts, want, strict=True):
        blocks = (n // b for n, b in zip(part.shape, sizes, strict=True))
        assert part.scale.shape == tuple(blocks)
    assert v.shape == shape


def test_reshaped_scaled_and_cast_weights_are_followed():
    def model(params, x):
        heads = params["w"].astype(x.dtype).reshape(3, 8, 2, 5) * 0.5
        return jnp.einsum("lx,lxhs->hs", x, heads) @ jnp.where(True, params["v"], 0).T

    params = {"w": jnp.ones((3, 8, 10)), "v": jnp.ones((4, 5)), "bias": jnp.ones(4)}
    axes = weight_axes(model, params, jnp.ones((3, 8), "bfloat16"))
    assert axes == {"w": ((0, 1), (2,)), "v": ((1,), (0,))}


def test_numbers_of_rows_and_columns_leave_the_axes_as_they_are():
    def model(params, x):
        rows, cols = jnp.linspace(1, 2, 4)[:, None], jnp.linspace(1, 2, 3)
        many = params["v"] * jnp.ones((2, 4, 3))  # No weight is repeated.
        return x @ (params["w"] / rows * cols) + x @ many[0]

    params = {"w": jnp.ones((4, 3)), "v": jnp.ones((1, 4, 3))}
    assert weight_axes(model, params, jnp.ones(4)) == {"w": ((0,), (1,))}


def test_layers_behind_a_bias_are_found_and_the_bias_is_none():
    """The bias has the shape of the whole batch where it is added, as Haiku and Keras have it."""

    def convolve(x, w):
        return jax.lax.conv_general_dilated(x, w, (1,), "SAME", dimension_numbers=NHC)

    def model(p, x):
        y = convolve(x, p["first"]) + jnp.broadcast_to(p["bias"], x.shape)
        y = convolve(jnp.maximum(y, 0), p["second"]) + p["bias"]
        return jnp.einsum("nhc,nhd->ncd", y, y) @ p["out"]

    NHC = ("NHC", "HIO", "NHC")
    params = {name: jnp.ones((3, 4, 4)) for name in ("first", "second")}
    params |= {"bias": jnp.ones(4), "out": jnp.ones((4, 2))}
    assert weight_axes(model, params, jnp.ones((2, 5, 4))) == {
        "first": ((0, 1), (2,)),
        "second": ((0, 1), (2,)),
        "out": ((0,), (1,)),
    }


@pytest.mark.parametrize("batch, tokens", [(1, 1), (2, 1), (1, 3), (2, 3)])
def test_a_bias_of_each_head_is_no_weight(batch, tokens):
    """As in Keras and Flax, where queries meet keys, also those of one token."""

    def attend(p, x):
        q, k = (jnp.einsum("bti,ihd->bthd", x, p[n]) + p[n + "_bias"] for n in "qk")
        return jnp.einsum("bthd,bshd->bhts", q, k)

    params = {n: jnp.ones((6, 2, 4)) for n in "qk"}
    params |= {n + "_bias": jnp.ones((2, 4)) for n in "qk"}
    found = weight_axes(attend, params, jnp.ones((batch, tokens, 6)))
    assert found == dict.fromkeys("qk", ((0,), (1, 2)))


def test_the_stack_of_tables_is_neither_looked_up_nor_summed():
    look = jax.vmap(lambda table, i: table[i])
    params, ids = {"table": jnp.ones((3, 9, 5))}, jnp.array([[4, 1]] * 3)
    found = weight_axes(lambda p, i: look(p["table"], i), params, ids)
    assert found == {"table": ((2,), (1,))}


def test_experts_between_rows_and_columns_are_a_stack():
    params, ids = {"w": jnp.ones((6, 5, 4))}, jnp.array([3, 0])
    model = lambda p, x: jnp.einsum("ieo,ei->eo", p["w"][:, ids], x)
    assert weight_axes(model, params, jnp.ones((2, 6))) == {"w": ((0,), (2,))}


def test_columns_that_are_looked_up_are_of_one_table():
    columns = lambda p, i: p["columns"][:, i]
    found = weight_axes(columns, {"columns": jnp.ones((5, 9))}, jnp.array([4, 1]))
    assert found == {"columns": ((0,), (1,))}


def test_a_weight_with_a_change_for_each_example_is_found():
    def model(p, deltas, xs):
        own = jnp.broadcast_to(p["w"], deltas.shape) + deltas
        return jnp.einsum("bi,bij->bj", xs, own)

    params, deltas = {"w": jnp.ones((4, 3))}, jnp.ones((2, 4, 3))
    assert weight_axes(model, params, deltas, jnp.ones((2, 4))) == {"w": ((0,), (1,))}


def test_a_convolution_of_what_a_scale_has_made_is_found():
    """One example without a batch has the shape of its scale."""

    def model(p, x):
        x = x * p["scale"]
        return jax.lax.conv_general_dilated(x[None], p["kernel"][:, :, None], (1,), "SAME")

    params = {"scale": jnp.ones((4, 5)), "kernel": jnp.ones((2, 4))}
    assert weight_axes(model, params, jnp.ones((4, 5)))["kernel"] == ((1,), (0,))


def test_values_and_shapes_are_taken_for_weights():
    params = {
        "a": Quantised.quantise(jnp.ones((4, 2))),
        "b": jax.ShapeDtypeStruct((3, 2), "f4"),
    }
    params["count"] = jax.ShapeDtypeStruct((), "i4")
    model = lambda params, x: params["b"] @ (x @ params["a"]) * params["count"]
    assert weight_axes(model, params, jnp.ones(4)) == {"a": ((0,), (1,)), "b": ((1,), (0,))}


def test_the_first_of_different_products_decides_and_products_before_lookups():
    def model(w, x):
        products = (x @ w["both"]) @ w["both"].T + w["table"][2] @ w["table"].T
        return products + w["numbers"][jnp.argmax(x)]

    w = {"both": jnp.ones((4, 2)), "table": jnp.ones((4, 3)), "unused": jnp.ones((4, 3))}
    w["numbers"] = jnp.ones(5)
    assert weight_axes(model, w, jnp.ones(4)) == {
        "both": ((0,), (1,)),
        "table": ((1,), (0,)),
    }


@pytest.mark.parametrize("of", [adapt, quantise])
def test_errors_name_the_weight_and_the_way_out(of):
    stacked = {"kernel": jnp.ones((3, 4, 5))}
    more = {"rank": 2, "key": KEY} if of is adapt else {}
    with pytest.raises(ValueError, match=rf"{of.__name__}: axes says nothing of kernel"):
        of(stacked, is_weight, **more, axes={"other": ((0,), (1,))})
    with pytest.raises(ValueError, match="kernel has shape .3, 4, 5., and no axes"):
        of(stacked, is_weight, **more, axes=((1,), (3,)))
    with pytest.raises(ValueError, match=r"give axes=weight_axes\(fn, params, x\)"):
        of(stacked, is_weight, **more, axes=lambda path, leaf: None)


def test_a_weight_that_a_mask_changes_first_is_said_to_be_one():
    w, masked = (
        {"w": jnp.ones((4, 3))},
        lambda p, x: x @ jnp.where(jnp.eye(4, 3) > 0, p["w"], 0),
    )
    axes = weight_axes(masked, w, jnp.ones(4))
    assert axes == {}
    with pytest.raises(ValueError, match="nothing of w.*as a mask does. Leave it out"):
        adapt(w, is_weight, 2, KEY, axes=axes)


def test_blocks_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"whole blocks.* Or give axes=weight_axes"):
        quantise({"kernel": jnp.ones((3, 64, 4))}, is_weight, block=64)
    prime = {"kernel": jnp.ones((4099, 2))}
    assert quantise(prime, is_weight, "nf4", axes=((0,), (1,)))["kernel"].lengths == (
        4096,
        3,
    )
    for more in ({"axis": 0}, {"block": (1, 2)}, {"stack": 0}):
        with pytest.raises(ValueError, match="there is no `axis`"):
            quantise(prime, is_weight, axes=((0,), (1,)), **more)


def test_activations_without_products_of_integers_are_a_warning():
    w, rounded = {"kernel": jnp.ones((64, 4))}, {"activations": "dynamic"}
    for more in ({"block": (32, 1)}, {"block": 32, "axes": ((0,), (1,))}):
        with pytest.warns(UserWarning, match="kernel has several scales .*weight_axes"):
            quantise(w, is_weight, **rounded, **more)
    for more in ({"axis": -1}, {"axis": 0}, {"axes": ((0,), (1,))}, {}):
        quantise(w, is_weight, **rounded, **more)

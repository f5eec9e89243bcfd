"""`Lora`: the program by hand, derivatives, and adapted models that are trained."""

import functools
import re

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax import lax
from oracle import run_implicit

import jaxrewrite
from jaxrewrite import transform
from jaxrewrite.testing import assert_same
from jaxrewrite.values import Lora, LowRank, Quantised, adapt, freeze, nbytes


def random(*shape, seed=0, dtype=jnp.float32):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


def adapted(n=6, m=8, rank=2, scale=0.5, **options):
    w, a, b = random(n, m), random(n, rank, seed=1), random(rank, m, seed=2)
    return Lora(w, a, b, scale, **options)


run = functools.partial(run_implicit, tolerance=1e-3)


class EightBits(jaxrewrite.ArrayValue):
    """A small quantised weight, for tests."""

    q: jax.Array
    scale: jax.Array

    def materialise(self):
        return self.q.astype(self.scale.dtype) * self.scale

    @staticmethod
    def of(w):
        scale = jnp.abs(w).max(0, keepdims=True) / 127
        return EightBits(jnp.round(w / scale).astype(jnp.int8), scale)


@jaxrewrite.register("dot_general")
def _(x: jaxrewrite.ArrayValue | jax.Array, y: EightBits, *, dimension_numbers, **params):
    if dimension_numbers != (((x.ndim - 1,), (0,)), ((), ())):
        return NotImplemented
    return (x @ y.q.astype(y.scale.dtype)) * y.scale[0]


# --- products ---------------------------------------------------------------------------


def instructions(fn, *args):
    text = jax.jit(fn).lower(*args).compile().as_text()
    return len(re.findall(r"^\s+(?:ROOT )?%?[\w.-]+ = ", text, re.MULTILINE))


def test_a_product_is_the_program_by_hand_at_width_512(no_leak_checks):
    v = adapted(512, 512, rank=8)
    x = random(32, 512)
    right = lambda x, w, a, b: x @ w + ((x @ a) @ b) * 0.5
    left = lambda x, w, a, b: w @ x.T + (a @ (b @ x.T)) * 0.5
    for implicit, by_hand in (
        (lambda x, v: x @ v, right),
        (lambda x, v: v @ x.T, left),
    ):
        fn = transform(implicit, materialise="forbid")
        assert instructions(fn, x, v) == instructions(by_hand, x, v.w, v.a, v.b)
        np.testing.assert_allclose(
            jax.jit(fn)(x, v), by_hand(x, v.w, v.a, v.b), rtol=1e-3, atol=1e-3
        )
    # The same product with the kernel transposed.
    fn = transform(lambda x, v: x @ v.T, materialise="forbid")
    by_hand = lambda x, w, a, b: x @ w.T + ((x @ b.T) @ a.T) * 0.5
    assert instructions(fn, x, v) <= instructions(by_hand, x, v.w, v.a, v.b)


def test_a_product_in_dots_alone():
    jaxpr = jaxrewrite.make_jaxpr(lambda x, v: x @ v)(random(3, 6), adapted(scale=1.0))
    names = [
        eqn.primitive.name for eqn in jaxpr.eqns if eqn.primitive.name != "stop_gradient"
    ]
    assert names == ["dot_general"] * 3 + ["add"]


def test_what_a_model_does_to_a_kernel(bulk):
    v, x = adapted(6, 24), random(5, 6)

    def heads(x, v):
        q, k, u = jnp.split(v, 3, axis=1)
        k = k.reshape(6, 2, 4).transpose(1, 2, 0)
        return x @ q, jnp.einsum("tn,hkn->htk", x, k), jnp.einsum("nm,tn->mt", u, x)

    run(heads, x, v)
    run(lambda x, v: (x @ (2 * v / 3), x @ -v, (x @ v.T.T)[0], v.sum(0), v.mean()), x, v)
    run(lambda x, v: x @ jnp.concatenate([v, v[:, :5]], 1), x, v)
    run(lambda v: jnp.take(v, jnp.array([1, 3]), axis=0) + 1, v)
    run(lambda v: jnp.tanh(v[2]), v)


def test_sums(bulk):
    v, u = adapted(16, 16), adapted(16, 16, scale=2.0)
    low = LowRank(random(16, 1), random(1, 16))
    y = random(16, 16)
    for fn in (
        *(lambda v, u, y: v + y, lambda v, u, y: y - v, lambda v, u, y: v - y[0]),
        *(lambda v, u, y: v + u, lambda v, u, y: v - u.T, lambda v, u, y: u - 3.0),
    ):
        assert isinstance(run(fn, v, u, y), Lora)
    assert isinstance(run(lambda v, low: v - low, v, low), Lora)
    assert isinstance(run(lambda v, low: low - v, v, low), Lora)
    full = LowRank(random(16, 16), random(16, 16))
    allowed = jaxrewrite.transform(lambda v, x: (v - x, x - v, v + x), materialise="allow")
    for got, sign in zip(allowed(v, full), ((1, -1), (-1, 1), (1, 1)), strict=True):
        want = sign[0] * v.materialise() + sign[1] * full.materialise()
        np.testing.assert_allclose(jaxrewrite.materialise(got), want, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(
        jaxrewrite.transform(jnp.multiply, materialise="allow")(v, y),
        v.materialise() * y,
        rtol=1e-4,
        atol=1e-5,
    )
    assert isinstance(run(jnp.matmul, v, low), LowRank)
    assert isinstance(run(jnp.matmul, low, v), LowRank)
    run(jnp.matmul, v, u)
    out = run(lambda v, u: (jnp.stack([v, u]), jnp.concatenate([v, u])), v, u)
    assert all(isinstance(x, Lora) for x in out)


def test_other_dtypes():
    low = adapted()
    v = Lora(low.w.astype(jnp.bfloat16), low.a, low.b)
    x = jnp.ones((2, 6), jnp.bfloat16)
    assert v.dtype == transform(jnp.matmul)(x, v).dtype == jnp.bfloat16
    cast = transform(lambda v: v.astype(jnp.bfloat16), materialise="forbid")(low)
    assert {leaf.dtype for leaf in jax.tree.leaves(cast)} == {jnp.dtype("bfloat16")}


def test_a_quantised_base(no_leak_checks):
    v, x = adapted(), random(3, 6)
    q = Lora(EightBits.of(v.w), v.a, v.b, v.scale)
    assert (q.shape, q.dtype) == ((6, 8), jnp.float32)
    run(lambda x, v: x @ v, x, q)
    loss = lambda q: jnp.sin(transform(jnp.matmul, materialise="forbid")(x, q)).sum()
    gradient = jax.grad(loss, allow_int=True)(q)
    assert np.abs(gradient.a).max() > 0 and not np.any(gradient.w.scale)


# --- derivatives ------------------------------------------------------------------------


def test_the_base_is_frozen():
    x = random(3, 6)
    for fn in (lambda v: x @ v, lambda v: x @ (2.0 * v)[:, :4], lambda v: jnp.sin(v)):
        loss = lambda v, fn=fn: jnp.sin(transform(fn, materialise="allow")(v)).sum()
        frozen = jax.grad(loss)(adapted())
        free = jax.grad(loss)(adapted(frozen=False))
        assert not frozen.w.any() and free.w.any()
        np.testing.assert_allclose(frozen.a, free.a, rtol=1e-4)
        np.testing.assert_allclose(frozen.b, free.b, rtol=1e-4)
    jaxpr = jax.make_jaxpr(jax.grad(lambda v: (x @ v).sum()))(adapted())
    dots = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "dot_general"]
    assert all(eqn.outvars[0].aval.shape != (6, 8) for eqn in dots)


# Programs on two adapted weights; the rules of one meet those of arrays above.
ON_TWO = {
    "add": jnp.add,
    "sub": lambda v, u: u - v,
    "concatenate": lambda v, u: jnp.concatenate([v, u]),
    "stack": lambda v, u: jnp.stack([v, u]),
    "update": lambda v, u: lax.dynamic_update_slice(v, u[:2], (1, 0)),
    "cond": lambda v, u: lax.cond(
        jnp.arange(2)[0] > 0, lambda v, u: v, lambda v, u: u, v, u
    ),
}


def test_of_two_each_base_is_frozen_by_itself(bulk):
    """Its gradient is zero, or that of the dense program; of the factors it is the same."""

    def total(frozen, use, pair):
        pair = [Lora(*leaves, frozen=i) for leaves, i in zip(pair, frozen, strict=True)]
        results = jaxrewrite.materialise([use(fn)(*pair) for fn in ON_TWO.values()])
        return sum(jnp.sin(x).sum() for x in results)

    implicit = functools.partial(transform, materialise="allow")
    dense = lambda fn: lambda *pair: fn(*jaxrewrite.materialise(pair))
    v, are_frozen = adapted(6, 6), (True, False)
    pair = [(v.w, v.a, v.b), (v.w.T, v.b.T, v.a.T)]
    got = jax.grad(total, 2)(are_frozen, implicit, pair)
    want = jax.grad(total, 2)((False, False), dense, pair)
    for (w, *factors), (base, *others), frozen in zip(got, want, are_frozen, strict=True):
        assert_same(w, 0 * base if frozen else base, 1e-3)
        assert_same(factors, others, 1e-3)


def test_what_goes_into_a_frozen_base_is_not():
    v, y, x = adapted(), random(6, 8, seed=5), random(3, 6)
    for fn in (lambda v, y: v + y, lambda v, y: y - v, lambda v, y: v * y[:1]):
        f = lambda y, fn=fn: jnp.sin(transform(lambda v, y: x @ fn(v, y))(v, y)).sum()
        dense = lambda y, fn=fn: jnp.sin(x @ fn(v.merge(), y)).sum()
        np.testing.assert_allclose(jax.grad(f)(y), jax.grad(dense)(y), rtol=1e-3, atol=1e-4)


def test_an_adapter_for_each_of_a_batch():
    v = adapted()
    a, b = random(4, 6, 2, seed=5), random(4, 2, 8, seed=6)
    own = Lora(v.w, a, b, 0.5)
    x = random(4, 3, 6, seed=7)
    apply = transform(lambda v, x: x @ v, materialise="forbid")
    got = jax.vmap(apply, in_axes=(Lora(None, 0, 0, 0.5), 0))(own, x)
    want = jnp.stack([x[i] @ Lora(v.w, a[i], b[i], 0.5).merge() for i in range(4)])
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)
    # Without vmap the shared weight counts as repeated.
    assert own.shape == (4, 6, 8)
    np.testing.assert_allclose(apply(own, x), want, rtol=1e-3, atol=1e-4)
    whole = Lora(jnp.stack([v.w] * 4), a, b, 0.5)
    np.testing.assert_allclose(apply(whole, x), want, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    "base", [jnp.asarray, lambda w: Quantised.quantise(w, axis=(0, 2))]
)
def test_rows_of_each_table_of_a_stack_are_activations(base):
    v = Lora(base(random(3, 9, 8)), random(3, 9, 2, seed=1), random(3, 2, 8, seed=2))
    norm = lambda rows: rows / jnp.sqrt((rows**2).sum(-1, keepdims=True))
    look = jax.vmap(lambda table, i: norm(table[i]))
    run_implicit(look, v, jnp.array([[4, 1]] * 3))


def test_structures_that_meet(bulk):
    v, u, x = adapted(6, 6), adapted(6, 6, rank=3, scale=2.0, frozen=False), random(6)
    out = run(
        lambda p, v, u: jax.lax.cond(p, lambda: v, lambda: u.T), jnp.array(True), v, u
    )
    assert isinstance(out, Lora) and out.rank == 3
    halved = lambda v, x: jax.lax.fori_loop(
        0, 3, lambda i, c: (c[0] * 0.5, c[0] @ c[1]), (v, x)
    )
    assert isinstance(run(halved, v, x)[0], Lora)
    stack = Lora(*(jnp.stack([leaf] * 3) for leaf in (v.w, v.a, v.b)), v.scale)
    run(lambda vs, x: jax.lax.scan(lambda c, v: (c @ v, None), x, vs)[0], stack, x)
    layers = jaxrewrite.stack([v, v])
    run(lambda vs, x: jax.lax.scan(lambda c, v: (c @ v, v), x, vs), layers, x)


def test_sharded():
    mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    P = jax.sharding.PartitionSpec
    local = jax.shard_map(
        lambda x, v: x @ v,
        mesh=mesh,
        in_specs=(P("x"), P(None, "y")),
        out_specs=P("x", "y"),
    )
    v, x = adapted(), random(4, 6)
    np.testing.assert_allclose(
        transform(local, materialise="forbid")(x, v), x @ v.merge(), rtol=1e-3, atol=1e-4
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (((6, 7), (6, 2), (2, 8)), r"`w` has shape \(6, 7\)"),
        (((8,), (6, 2), (2, 8)), r"`w` has shape \(8,\)"),
        (((6, 8), (6, 2), (3, 8)), "rank"),
        (((6, 8), (6,), (2, 8)), "a has shape"),
    ],
)
def test_bad_shapes(fields, message):
    with pytest.raises(ValueError, match=message):
        Lora(*map(jnp.ones, fields))


def test_bad_dtypes():
    with pytest.raises(ValueError, match="`w` must be floating; got int8"):
        Lora(jnp.ones((2, 2), jnp.int8), jnp.ones((2, 1)), jnp.ones((1, 2)))
    with pytest.raises(ValueError, match="`b` must be floating; got int32"):
        Lora(jnp.ones((2, 2)), jnp.ones((2, 1)), jnp.ones((1, 2), int))


# --- helpers ------------------------------------------------------------------------------


def test_adapt():
    tree = {"attention": {"q": random(8, 2, 4), "o": random(2, 4, 8)}, "b": [jnp.ones(3)]}
    axes = {"attention/q": ((0,), (1, 2)), "attention/o": ((0, 1), (2,))}
    new = adapt(
        tree,
        lambda path, leaf: path in axes,
        3,
        jax.random.key(0),
        scale=2.0,
        axes=lambda path, leaf: axes[path],
    )
    q, o = new["attention"]["q"], new["attention"]["o"]
    assert (q.a.shape, q.b.shape) == ((8, 3), (3, 2, 4))
    assert (o.a.shape, o.b.shape) == ((2, 4, 3), (3, 8))
    assert q.scale == 2.0 and new["b"][0] is tree["b"][0]
    assert np.array_equal(q.merge(), tree["attention"]["q"])
    assert 0.1 < float(jnp.std(q.a)) < 1.0 and not np.array_equal(q.a[:2], o.a[0, :2])
    kernels = {"stack": random(5, 6, 8), "quantised": EightBits.of(random(6, 8))}
    new = adapt(kernels, lambda *_: True, 2, jax.random.key(0), axes=((-2,), (-1,)))
    assert new["stack"].a.shape == (5, 6, 2) and isinstance(new["quantised"].w, EightBits)
    with pytest.raises(ValueError, match=r"stack has shape \(5, 6, 8\)"):
        adapt(kernels, lambda *_: True, 2, jax.random.key(0))
    with pytest.raises(ValueError, match="none of the leaves: quantised, stack"):
        adapt(kernels, lambda *_: False, 2, jax.random.key(0))
    with pytest.raises(ValueError, match=r"has shape \(5, 6, 8\), and no axes"):
        adapt(kernels["stack"], lambda *_: True, 2, jax.random.key(0), axes=((1,), (5,)))
    with pytest.raises(ValueError, match="rank is 0"):
        adapt(kernels, lambda *_: True, 0, jax.random.key(0))


def test_adapt_says_which_argument_is_wrong():
    tree, key = {"a": {"kernel": random(6, 4)}}, jax.random.key(0)
    everything = lambda *_: True
    with pytest.warns(
        UserWarning, match=r"a/kernel has shape \(6, 4\), .* at most 4, .* is 5"
    ):
        adapt(tree, everything, 5, key)
    assert adapt(tree, everything, 4, jax.random.PRNGKey(0))["a"]["kernel"].rank == 4
    with pytest.raises(ValueError, match=r"rank is 2.0; it must be an integer"):
        adapt(tree, everything, 2.0, key)
    for bad in (0, None, random(2)):
        with pytest.raises(
            TypeError, match=r"key of jax.random, such as jax.random.key\(0\)"
        ):
            adapt(tree, everything, 2, bad)
    with pytest.raises(
        TypeError, match="where, the second argument, is 'kernel'. It must be a function"
    ):
        adapt(tree, "kernel", 2, key)
    many = {f"{i:02}": random(2, 2) for i in range(30)}
    with pytest.raises(ValueError, match="00, 01, .* 19, and 10 more"):
        adapt(many, lambda *_: False, 2, key)


def test_freeze_says_which_argument_is_wrong():
    tree = {"kernel": adapted()}
    with pytest.raises(TypeError, match="'Lora' is no class. Give the class"):
        freeze(tree, {"Lora": ["w"]})
    with pytest.raises(TypeError, match=r"no list of fields. Write {Lora: \[\"ab\"\]}"):
        freeze(tree, {Lora: "ab"})  # which would be the fields a and b, letter by letter
    with pytest.raises(TypeError, match="it must be a dictionary"):
        freeze(tree, ["w"])


def test_labels():
    v = adapted()
    q = Lora(EightBits.of(v.w), v.a, v.b)
    tree = {"layers": jaxrewrite.stack([v, v]), "q": q, "bias": jnp.ones(3)}
    labels = freeze(tree, {Lora: ["w"]})
    assert jax.tree.structure(labels) == jax.tree.structure(tree)
    assert jax.tree.leaves(labels) == (
        ["train"] + ["freeze", "train", "train"] + ["freeze", "freeze", "train", "train"]
    )
    labels = freeze(tree, {Lora: ["w"]}, rest="freeze")
    assert labels["bias"] == "freeze" and labels["q"].a == "train"
    assert set(jax.tree.leaves(freeze(tree, {}))) == {"train"}
    with pytest.raises(ValueError, match="Lora has no field 'weight'"):
        freeze(tree, {Lora: ["weight"]})
    with pytest.raises(ValueError, match="rest is 'no'"):
        freeze(tree, {}, rest="no")


def test_nbytes():
    v = adapted()
    q = Lora(EightBits.of(v.w), v.a, v.b)
    assert nbytes([q, jnp.ones(3), "name"]) == (6 * 8 * 4 + 12, 48 + 32 + 28 * 4 + 12)


# --- models -------------------------------------------------------------------------------


def train(fn, params, steps=10, rest="freeze"):
    """Trains the adapters alone: the loss falls, and nothing else has changed."""
    loss = lambda params: jnp.mean(fn(params) ** 2)
    implicit = transform(loss, materialise="forbid")
    np.testing.assert_allclose(
        jax.jit(implicit)(params), loss(jaxrewrite.materialise(params)), rtol=1e-3
    )
    labels = freeze(params, {Lora: ["w"]}, rest=rest)
    optimiser = optax.multi_transform(
        {"train": optax.adamw(3e-2, weight_decay=0.1), "freeze": optax.set_to_zero()},
        lambda _: labels,
    )
    state = optimiser.init(params)
    # Two moments for each leaf that is trained, and a count.
    count = sum(label == "train" for label in jax.tree.leaves(labels))
    assert len(jax.tree.leaves(state)) == 1 + 2 * count

    @jax.jit
    def step(params, state):
        value, gradient = jax.value_and_grad(implicit)(params)
        updates, state = optimiser.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, value

    trained, losses = params, []
    for _ in range(steps):
        trained, state, value = step(trained, state)
        losses.append(float(value))
    assert losses[-1] < 0.95 * losses[0], losses
    for own, before, after in zip(
        *map(jax.tree.leaves, (labels, params, trained)), strict=True
    ):
        assert np.array_equal(before, after) == (own == "freeze")


def gpt2_block(p, x):
    """As a GPT-2 layer with Conv1D kernels, one of them stored transposed."""
    x = x.astype(jnp.bfloat16)
    qkv = p["c_attn"].astype(jnp.bfloat16)
    q, k, v = jnp.split(qkv, 3, axis=1)
    heads = lambda w: jnp.einsum("td,dhk->htk", x, w.reshape(8, 2, 4))
    scores = jnp.einsum("htk,hsk->hts", heads(q), heads(k)) / 2
    mixed = jnp.einsum("hts,hsk->thk", jax.nn.softmax(scores), heads(v)).reshape(-1, 8)
    out = mixed @ p["c_proj"].T.astype(jnp.bfloat16)
    return (x + out).astype(jnp.float32) @ p["fc"] + p["bias"]


@pytest.mark.slow
def test_a_gpt2_layer(no_leak_checks):
    params = {
        "c_attn": random(8, 24) / 3,
        "c_proj": random(8, 8, seed=1) / 3,
        "fc": random(8, 16, seed=2) / 3,
        "bias": jnp.zeros(16),
    }
    params = adapt(params, lambda path, w: path != "bias", 2, jax.random.key(0))
    x = random(5, 8, seed=3)
    implicit = transform(gpt2_block, materialise="forbid")
    dense = gpt2_block(jaxrewrite.materialise(params), x)
    np.testing.assert_allclose(jax.jit(implicit)(params, x), dense, rtol=0.1, atol=0.05)
    train(lambda p: gpt2_block(p, x), params)


@pytest.mark.slow
def test_an_equinox_mlp_and_attention(no_leak_checks):
    class Model(eqx.Module):
        attention: eqx.nn.MultiheadAttention
        mlp: eqx.nn.MLP

        def __call__(self, x):
            return jax.vmap(self.mlp)(x + self.attention(x, x, x))

    keys = jax.random.split(jax.random.key(0))
    model = Model(
        eqx.nn.MultiheadAttention(2, 8, key=keys[0]), eqx.nn.MLP(8, 8, 16, 1, key=keys[1])
    )
    model = adapt(model, lambda path, w: path.endswith("weight"), 2, jax.random.key(1))
    params, static = eqx.partition(model, eqx.is_array)
    x = random(5, 8)
    train(lambda p: eqx.combine(p, static)(x), params)


@pytest.mark.slow
def test_a_flax_linen_attention(no_leak_checks):
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            attention = nn.MultiHeadDotProductAttention(num_heads=2, name="attention")
            return nn.Dense(8, name="out")(nn.LayerNorm()(x + attention(x)))

    x = random(5, 8)
    model = Model()
    params = model.init(jax.random.key(0), x)

    def axes(path, leaf):
        if leaf.ndim == 2:
            return None
        return ((0, 1), (2,)) if path.endswith("out/kernel") else ((0,), (1, 2))

    is_kernel = lambda path, leaf: path.endswith("kernel")
    params = adapt(params, is_kernel, 2, jax.random.key(1), axes=axes)
    assert sum(isinstance(v, Lora) for v in values_of(params)) == 5
    train(lambda p: model.apply(p, x), params)


def values_of(tree):
    is_value = lambda v: isinstance(v, jaxrewrite.Value)
    return filter(is_value, jax.tree.leaves(tree, is_leaf=is_value))


@pytest.mark.slow
def test_a_flax_nnx_model(no_leak_checks):
    class Model(nnx.Module):
        def __init__(self, rngs):
            self.norm = nnx.LayerNorm(8, rngs=rngs)
            self.up = nnx.Linear(8, 16, rngs=rngs)
            self.down = nnx.Linear(16, 8, rngs=rngs)

        def __call__(self, x):
            return x + self.down(nnx.relu(self.up(self.norm(x))))

    graph, state = nnx.split(Model(nnx.Rngs(0)))
    x = random(5, 8)
    params = nnx.to_pure_dict(state)
    params = adapt(params, lambda path, w: path.endswith("kernel"), 2, jax.random.key(1))
    train(lambda p: nnx.merge(graph, nnx.State(p))(x), params)


@pytest.mark.slow
def test_adapters_in_an_nnx_state():
    graph, state = nnx.split(nnx.Linear(8, 16, rngs=nnx.Rngs(0)))
    x = random(5, 8)
    state = adapt(state, lambda path, w: "kernel" in path, 2, jax.random.key(1))
    fn = lambda state: nnx.merge(graph, state)(x)
    np.testing.assert_allclose(
        transform(fn, materialise="forbid")(state),
        fn(jaxrewrite.materialise(state)),
        rtol=1e-4,
        atol=1e-5,
    )


# --- shardings ------------------------------------------------------------------------


def test_sharding_constraints_are_those_of_the_leaves(no_leak_checks):
    mesh = jax.make_mesh(
        (2, 4), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2
    )
    place = lambda *names: jax.sharding.NamedSharding(
        mesh, jax.sharding.PartitionSpec(*names)
    )
    base = Quantised.quantise(random(16, 32), 8, axis=1)
    v = Lora(base, random(16, 4, seed=1), random(4, 32, seed=2))
    x = jax.device_put(random(8, 16, seed=3), place("data", None))

    def layer(v, x):
        return x @ jax.lax.with_sharding_constraint(v, place(None, "model"))

    fn = jaxrewrite.transform(layer, materialise="forbid")
    got = jax.jit(fn)(v, x)
    np.testing.assert_allclose(got, x @ jaxrewrite.materialise(v), rtol=1e-4, atol=1e-4)
    assert got.sharding.spec == jax.sharding.PartitionSpec("data", "model")
    constraints = [
        (eqn.invars[0].aval.shape, eqn.params["sharding"].spec)
        for eqn in jaxrewrite.make_jaxpr(layer, materialise="forbid")(v, x).eqns
        if eqn.primitive.name == "sharding_constraint"
    ]
    P = jax.sharding.PartitionSpec
    assert ((16, 4), P(None, None)) in constraints and (
        (4, 32),
        P(None, "model"),
    ) in constraints
    assert ((16, 32), P(None, "model")) in constraints


@pytest.mark.parametrize(
    "axes", [((0,), (2,)), ((2,), (0,)), ((0, -3), (1,)), ((0,), (1, 5))]
)
def test_adapt_refuses_axes_that_a_weight_has_not(axes):
    with pytest.raises(ValueError, match=r"has shape \(3, 4\), and no axes"):
        adapt({"w": jnp.ones((3, 4))}, lambda *_: True, 2, jax.random.key(0), axes=axes)

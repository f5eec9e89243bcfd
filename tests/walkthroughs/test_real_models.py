"""Models as their users wrote them, some of whose weights are values."""

import functools

import equinox as eqx
import flax.linen as nn
import jax
import jax.extend.core as jex_core
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from choose import often, slow
from flax import nnx
from jax import lax
from jaxtyping import Array, ArrayLike

import jaxrewrite
from jaxrewrite import ArrayValue, field, transform, values


# --- the types --------------------------------------------------------------------


class Lora(ArrayValue):
    w: Array
    a: Array
    b: Array

    def materialise(self):
        return self.w + self.a @ self.b


class EqxFirst(eqx.Module, ArrayValue):
    w: Array
    a: Array
    b: Array

    def materialise(self):
        return self.w + self.a @ self.b


class EqxSecond(ArrayValue, eqx.Module):
    w: Array
    a: Array
    b: Array

    def materialise(self):
        return self.w + self.a @ self.b


class Quantised(ArrayValue):
    """Eight-bit integers, and one scale for each column."""

    q: Array
    scale: Array

    def materialise(self):
        return self.q.astype(self.scale.dtype) * self.scale


class Zeros(ArrayValue):
    sizes: tuple = field(static=True)
    kind: np.dtype = field(static=True, default=np.dtype("float32"))

    def materialise(self):
        return jnp.zeros(self.sizes, self.kind)


def contraction(x, dimension_numbers):
    """Whether a matrix is contracted along one dimension, and nothing is a batch."""
    contract, batch = dimension_numbers
    return batch == ((), ()) and len(contract[0]) == 1 and x.ndim == 2


@jaxrewrite.register("dot_general")
def _(x: Lora | EqxFirst | EqxSecond, y: ArrayLike, *, dimension_numbers, **params):
    if not contraction(x, dimension_numbers):
        return NotImplemented
    ((d,), (c,)), _ = dimension_numbers
    inner, outer = (x.a, x.b) if d == 0 else (x.b, x.a)
    low = lax.dot_general(inner, y, (((d,), (c,)), ((), ())))
    main = jaxrewrite.bind(
        "dot_general", x.w, y, dimension_numbers=dimension_numbers, **params
    )
    return main + lax.dot_general(outer, low, (((d,), (0,)), ((), ())))


@jaxrewrite.register("dot_general")
def _(x: ArrayLike, y: Lora | EqxFirst | EqxSecond, *, dimension_numbers, **params):
    if not contraction(y, dimension_numbers):
        return NotImplemented
    ((c,), (d,)), _ = dimension_numbers
    inner, outer = (y.a, y.b) if d == 0 else (y.b, y.a)
    low = lax.dot_general(x, inner, (((c,), (d,)), ((), ())))
    main = jaxrewrite.bind(
        "dot_general", x, y.w, dimension_numbers=dimension_numbers, **params
    )
    return main + lax.dot_general(low, outer, (((low.ndim - 1,), (d,)), ((), ())))


@jaxrewrite.register("dot_general")
def _(x: ArrayLike, y: Quantised, *, dimension_numbers, **params):
    if dimension_numbers != (((x.ndim - 1,), (0,)), ((), ())):
        return NotImplemented
    q = y.q.astype(y.scale.dtype)
    return lax.dot_general(x, q, dimension_numbers) * y.scale[0]


@jaxrewrite.register("dot_general")
def _(x: Quantised, y: ArrayLike, *, dimension_numbers, **params):
    if dimension_numbers[1] != ((), ()) or dimension_numbers[0][0] != (1,):
        return NotImplemented
    ((_,), (c,)), _ = dimension_numbers
    scale = jnp.expand_dims(x.scale[0], [i for i in range(y.ndim) if i != c])
    return lax.dot_general(x.q.astype(x.scale.dtype), y * scale, dimension_numbers)


@jaxrewrite.register("add", exchange="operands")
def _(z: Zeros, x: ArrayLike, **params):
    return jnp.broadcast_to(x, jnp.broadcast_shapes(z.shape, jnp.shape(x)))


@jaxrewrite.register("broadcast_in_dim", "reshape", "squeeze", "transpose")
def _(z: Zeros, *, primitive, **params):
    out = jax.eval_shape(
        lambda x: primitive.bind(x, **params), jax.ShapeDtypeStruct(z.shape, z.dtype)
    )
    return Zeros(out.shape, out.dtype)


# --- weights swapped for values ---------------------------------------------------


def factors(w, rank=2):
    keys = jax.random.split(jax.random.key(w.size), 2)
    a = 0.3 * jax.random.normal(keys[0], (w.shape[0], rank))
    return a, 0.3 * jax.random.normal(keys[1], (rank, w.shape[1]))


def lora(w, cls=Lora):
    return cls(w, *factors(w))


def quantised(w):
    scale = jnp.max(jnp.abs(w), axis=0, keepdims=True) / 127
    return Quantised(jnp.round(w / scale).astype(jnp.int8), scale)


def qlora(w):
    return Lora(quantised(w), *factors(w))


def eqx_first(w):
    return lora(w, EqxFirst)


def eqx_second(w):
    return lora(w, EqxSecond)


WEIGHTS = [lora, quantised, qlora, eqx_first, eqx_second]
# The others are for the long run.
QUICK = (qlora, eqx_second)
weights = pytest.mark.parametrize(
    "swap",
    often(WEIGHTS, QUICK),
    ids=lambda f: f.__name__,
)


def zeros(b):
    return Zeros(b.shape, b.dtype)


def assert_runs(f, v, count, rtol=2e-4, atol=2e-5):
    """``f``, a function of weights, on values: never dense, and right, and so its gradient."""
    found = jax.tree.leaves(v, is_leaf=lambda x: isinstance(x, ArrayValue))
    assert sum(isinstance(x, ArrayValue) for x in found) == count
    dense = jax.jit(f)(jaxrewrite.materialise(v))
    out = jax.jit(transform(f, materialise="forbid"))(v)
    np.testing.assert_allclose(out, dense, rtol=rtol, atol=atol)

    def loss(out):
        return jnp.sum(jnp.sin(out))

    got = jax.jit(jax.grad(lambda v: loss(transform(f)(v)), allow_int=True))(v)
    expected = jax.jit(
        jax.grad(lambda v: loss(f(jaxrewrite.materialise(v))), allow_int=True)
    )(v)
    assert jax.tree.structure(got) == jax.tree.structure(expected) == jax.tree.structure(v)
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert x.dtype == y.dtype
        if x.dtype != jax.dtypes.float0:
            np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-4)
    assert any(
        np.abs(x).max() > 1e-3 for x in jax.tree.leaves(got) if x.dtype == np.float32
    )


# --- Equinox ------------------------------------------------------------------------


class EqxBlock(eqx.Module):
    """A transformer's layer over a sequence of tokens."""

    embedding: eqx.nn.Embedding
    norm: eqx.nn.LayerNorm
    attention: eqx.nn.MultiheadAttention
    mlp: eqx.nn.MLP

    def __init__(self, key):
        keys = jax.random.split(key, 3)
        self.embedding = eqx.nn.Embedding(11, 8, key=keys[0])
        self.norm = eqx.nn.LayerNorm(8)
        self.attention = eqx.nn.MultiheadAttention(2, 8, key=keys[1])
        self.mlp = eqx.nn.MLP(8, 8, 16, 1, key=keys[2])

    def __call__(self, tokens):
        x = jax.vmap(self.embedding)(tokens)
        h = jax.vmap(self.norm)(x)
        x = x + self.attention(h, h, h)
        return x + jax.vmap(self.mlp)(x)


TOKENS = jnp.array([1, 5, 0, 10, 7, 2])


def eqx_weights(m):
    a = m.attention
    projections = [a.query_proj, a.key_proj, a.value_proj, a.output_proj]
    return [layer.weight for layer in [*projections, *m.mlp.layers]]


def eqx_biases(m):
    return [layer.bias for layer in m.mlp.layers]


def eqx_block(swap):
    block = EqxBlock(jax.random.key(0))
    block = eqx.tree_at(eqx_weights, block, [swap(w) for w in eqx_weights(block)])
    return eqx.tree_at(eqx_biases, block, [zeros(b) for b in eqx_biases(block)])


def test_an_equinox_transformer():
    v, static = eqx.partition(eqx_block(qlora), eqx.is_array)
    assert_runs(lambda v: eqx.combine(v, static)(TOKENS), v, 8)


@weights
def test_an_equinox_mlp_that_is_transformed_itself(swap):
    mlp = eqx.nn.MLP(3, 2, 8, 2, key=jax.random.key(0))

    def where(m):
        return [layer.weight for layer in m.layers]

    swapped = eqx.tree_at(where, mlp, [swap(w) for w in where(mlp)])
    x = jnp.array([1.0, -2.0, 0.5])
    dense = jaxrewrite.materialise(swapped)(x)
    out = transform(swapped, materialise="forbid")(x)
    np.testing.assert_allclose(out, dense, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        eqx.filter_jit(transform(swapped))(x), dense, rtol=1e-4, atol=1e-5
    )
    # The weights are arguments, and not constants, of the program that is kept.
    scaled = jax.tree.map(lambda p: p * 2 if eqx.is_inexact_array(p) else p, swapped)
    np.testing.assert_allclose(
        transform(scaled)(x), jaxrewrite.materialise(scaled)(x), rtol=1e-4, atol=1e-5
    )


def test_an_equinox_transformer_that_is_transformed_itself():
    block = eqx_block(qlora)
    out = transform(block, materialise="forbid")(TOKENS)
    dense = jaxrewrite.materialise(block)(TOKENS)
    np.testing.assert_allclose(out, dense, rtol=2e-4, atol=2e-5)


# --- Flax linen ---------------------------------------------------------------------


class LinenBlock(nn.Module):
    @nn.compact
    def __call__(self, tokens):
        x = nn.Embed(11, 8, name="embed")(tokens)
        x = x + nn.MultiHeadDotProductAttention(num_heads=2, name="attention")(
            nn.LayerNorm(name="ln")(x)
        )
        return x + nn.Dense(8, name="down")(nn.gelu(nn.Dense(16, name="up")(x)))


@pytest.mark.parametrize(
    "swap",
    [qlora, slow(eqx_second)],
    ids=["qlora", "eqx_second"],
)
def test_a_flax_linen_transformer(swap):
    block = LinenBlock()
    params = jax.jit(block.init)(jax.random.key(0), TOKENS)

    def choose(path, leaf):
        keys = [p.key for p in path]
        if keys[-1] == "kernel" and leaf.ndim == 2:
            return swap(leaf)
        return zeros(leaf) if keys[-1] == "bias" and "ln" not in keys else leaf

    params = jax.tree_util.tree_map_with_path(choose, params)
    assert_runs(lambda p: block.apply(p, TOKENS), params, 8)


# --- Flax nnx -----------------------------------------------------------------------


class NnxModel(nnx.Module):
    def __init__(self, rngs):
        self.norm = nnx.LayerNorm(8, rngs=rngs)
        self.up = nnx.Linear(8, 16, rngs=rngs)
        self.down = nnx.Linear(16, 8, rngs=rngs)

    def __call__(self, x):
        return x + self.down(nnx.relu(self.up(self.norm(x))))


@weights
def test_a_flax_nnx_model(swap):
    graph, state = nnx.split(NnxModel(nnx.Rngs(0)))
    x = jax.random.normal(jax.random.key(1), (5, 8))

    def choose(path, leaf):
        name = jax.tree_util.keystr(path)
        if "kernel" in name:
            return swap(leaf)
        return zeros(leaf) if "bias" in name and "norm" not in name else leaf

    state = jax.tree_util.tree_map_with_path(choose, nnx.to_pure_dict(state))

    def f(state):
        model = nnx.merge(graph, nnx.State(state))
        return model(x)

    assert_runs(f, state, 4)


class Count(nnx.Variable):
    pass


def test_a_variable_that_a_function_counts_in():
    count = Count(jnp.int32(0))

    def fn(count, v, x):
        count.set_value(count.get_value() + 1)
        return x @ v

    for i in range(2):
        transform(fn)(count, values.Diagonal(jnp.ones(3)), jnp.ones(3))
        assert count.get_value() == i + 1


class NnxStates(nnx.Module):
    """A model that changes: statistics, the count of a dropout, and a cache."""

    def __init__(self, rngs):
        self.norm = nnx.BatchNorm(8, momentum=0.5, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(2, 8, decode=True, rngs=rngs)
        self.attention.init_cache((2, 5, 8))

    def __call__(self, x):
        return self.attention(self.drop(self.norm(x)))


def states(of_kernel):
    model = NnxStates(nnx.Rngs(0))
    query = model.attention.query
    weight = values.Quantised.quantise(query.kernel[...], axis=-1)
    query.kernel = nnx.Param(of_kernel(weight))
    return model


@pytest.mark.parametrize("jit", [slow(lambda fn: fn), nnx.jit], ids=["eager", "jit"])
def test_a_flax_nnx_model_changes_in_place(jit, bulk):
    dense, model = states(jaxrewrite.materialise), states(lambda v: v)
    plain = nnx.jit(NnxStates.__call__)
    implicit = jit(transform(NnxStates.__call__, materialise="forbid"))
    xs = jax.random.normal(jax.random.key(0), (3, 2, 1, 8))
    results = []
    for x in xs:
        results.append(implicit(model, x))
        np.testing.assert_allclose(results[-1], plain(dense, x), rtol=1e-4, atol=1e-5)
    assert model.attention.cache_index[...] == 3
    others = nnx.Not(nnx.Param)
    got, want = (
        nnx.to_pure_dict(jax.tree.map(jax.random.key_data, nnx.state(m, nnx.RngKey)))
        | nnx.to_pure_dict(nnx.state(m, nnx.All(others, nnx.Not(nnx.RngKey))))
        for m in (model, dense)
    )
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
    jax.tree.map(close, got, want)


def test_a_loop_over_flax_layers_leaves_weights_as_they_are():
    stack = nnx.split_rngs(splits=3)(nnx.vmap(lambda rngs: nnx.Linear(4, 4, rngs=rngs)))
    model = stack(nnx.Rngs(0))
    shared = values.Quantised.quantise(model.kernel[...], axis=-1)
    model.kernel = nnx.Param(shared)

    @nnx.scan(in_axes=(0, nnx.Carry), out_axes=nnx.Carry)
    @nnx.remat
    def deep(layer, x):
        return layer(x)

    transform(deep, materialise="forbid")(model, jnp.ones((2, 4)))
    assert model.kernel.get_raw_value().scale.shape == shared.scale.shape == (1, 1, 4)


@pytest.mark.parametrize(
    "value",
    [
        values.Lora(jnp.eye(4), jnp.ones((4, 1)), jnp.zeros((1, 4))),
        values.Quantised.quantise(jnp.eye(4)),
        values.Diagonal(jnp.ones(4)),
    ],
    ids=lambda v: type(v).__name__,
)
def test_a_variable_of_flax_takes_what_is_written_to_a_value(value):
    """Also where that has another structure, or becomes dense."""

    class Layer(nnx.Module):
        def __init__(self, kernel):
            self.kernel = nnx.Param(kernel)

    def average(layer, x):
        layer.kernel[...] = 0.5 * layer.kernel[...] + 0.5
        return x @ layer.kernel[...]

    layer, dense = Layer(value), Layer(jaxrewrite.materialise(value))
    run = transform(average, materialise="allow")
    for _ in range(2):
        got, want = (
            fn(of, jnp.ones((1, 4))) for fn, of in ((run, layer), (average, dense))
        )
        np.testing.assert_allclose(got, want, rtol=1e-5)
        kept = jaxrewrite.materialise(layer.kernel.get_raw_value())
        np.testing.assert_allclose(kept, dense.kernel[...], rtol=1e-5)


def test_a_shared_variable_of_flax_that_changes_is_refused():
    model = states(lambda v: v)
    both = transform(lambda models, x: [m.norm(x) for m in models])
    with pytest.raises(ValueError, match="in two places"):
        both([model, model], jnp.ones((2, 8)))


# --- Equinox modules that are values --------------------------------------------------


@pytest.mark.parametrize("cls", [EqxFirst, EqxSecond])
def test_a_value_may_be_an_equinox_module(cls):
    w = jax.random.normal(jax.random.key(0), (4, 3))
    v = lora(w, cls)
    assert isinstance(v, eqx.Module) and isinstance(v, ArrayValue)
    assert (v.shape, v.dtype, jnp.ndim(v)) == ((4, 3), jnp.float32, 2)
    assert len(jax.tree.leaves(v)) == 3
    x = jnp.arange(8.0).reshape(2, 4)
    dense = v.materialise()
    np.testing.assert_allclose(x @ v, x @ dense, rtol=1e-4)
    np.testing.assert_allclose(np.asarray(v), dense)
    np.testing.assert_allclose(jaxrewrite.materialise({"v": v})["v"], dense)
    twice = eqx.tree_at(lambda v: v.w, v, 2 * w)
    np.testing.assert_allclose(twice.materialise(), dense + w, rtol=1e-5, atol=1e-6)
    nested = cls(quantised(w), v.a, v.b)
    out = transform(jnp.matmul, materialise="forbid")(x, nested)
    np.testing.assert_allclose(
        out, x @ jaxrewrite.materialise(nested), rtol=1e-4, atol=1e-4
    )


# --- layers scanned over ------------------------------------------------------------


class Block(eqx.Module):
    """A residual block with remat and a custom rule (silu), as large models have."""

    norm: eqx.nn.LayerNorm
    up: eqx.nn.Linear
    down: eqx.nn.Linear
    activation: object = eqx.field(static=True)

    def __init__(self, width, key):
        first, second = jax.random.split(key)
        self.norm = eqx.nn.LayerNorm(width)
        self.up = eqx.nn.Linear(width, 2 * width, key=first)
        self.down = eqx.nn.Linear(2 * width, width, key=second)
        self.activation = jax.nn.silu

    def __call__(self, x):
        return x + self.down(self.activation(self.up(self.norm(x))))


def adapted(block, key, base=lambda w: w):
    def lora(linear, key):
        n, m = linear.weight.shape
        a, b = jax.random.split(key)
        a, b = 0.1 * jax.random.normal(a, (n, 2)), 0.1 * jax.random.normal(b, (2, m))
        return eqx.tree_at(lambda own: own.weight, linear, Lora(base(linear.weight), a, b))

    first, second = jax.random.split(key)
    return eqx.tree_at(
        lambda own: (own.up, own.down),
        block,
        (lora(block.up, first), lora(block.down, second)),
    )


def eight_bits(w):
    scale = jnp.abs(w).max(0, keepdims=True) / 127
    return Quantised(jnp.round(w / scale).astype(jnp.int8), scale)


def deep(blocks, x):
    """One scan over the layers, each rematerialised in the backward pass."""

    @jax.checkpoint
    def step(x, block):
        return jax.vmap(block)(x), None

    return lax.scan(step, x, blocks)[0]


@pytest.mark.slow
@pytest.mark.parametrize("base", [lambda w: w, eight_bits], ids=["lora", "qlora"])
def test_training_the_adapters_of_scanned_layers(base, no_leak_checks):
    """The layers of a model, stacked and scanned over, never dense, trained with optax."""
    keys = jax.random.split(jax.random.key(0), 6)
    plain = [Block(8, key) for key in keys[:3]]
    layers = [adapted(b, key, base) for b, key in zip(plain, keys[3:], strict=True)]
    stacked = jaxrewrite.stack(layers)
    x, y = jax.random.normal(keys[0], (4, 8)), jax.random.normal(keys[1], (4, 8))

    def loss(blocks, x, y):
        return jnp.mean((deep(blocks, x) - y) ** 2)

    implicit = transform(loss, materialise="forbid")
    dense = jax.tree.map(
        jaxrewrite.materialise, stacked, is_leaf=lambda v: isinstance(v, jaxrewrite.Value)
    )
    np.testing.assert_allclose(implicit(stacked, x, y), loss(dense, x, y), rtol=1e-4)

    unrolled = lambda layers: jnp.mean(
        (
            functools.reduce(lambda x, b: jax.vmap(b)(x), jaxrewrite.materialise(layers), x)
            - y
        )
        ** 2
    )
    got = jax.grad(implicit, allow_int=True)(stacked, x, y)
    want = jax.tree.map(
        lambda *leaves: np.stack(leaves), *jax.grad(unrolled, allow_int=True)(layers)
    )
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        if g.dtype != jax.dtypes.float0:
            np.testing.assert_allclose(g, w, rtol=2e-3, atol=1e-5)

    def label(path, leaf):
        return "adapter" if path[-1].name in ("a", "b") else "frozen"

    labels = jax.tree_util.tree_map_with_path(label, stacked)
    optimiser = optax.multi_transform(
        {"adapter": optax.adam(1e-2), "frozen": optax.set_to_zero()}, lambda _: labels
    )

    @jax.jit
    def step(blocks, state):
        value, gradient = jax.value_and_grad(implicit, allow_int=True)(blocks, x, y)
        gradient = jax.tree.map(
            lambda g, leaf: jnp.zeros_like(leaf) if g.dtype == jax.dtypes.float0 else g,
            gradient,
            blocks,
        )
        updates, state = optimiser.update(gradient, state, blocks)
        return optax.apply_updates(blocks, updates), state, value

    state, trained, losses = optimiser.init(stacked), stacked, []
    for _ in range(20):
        trained, state, value = step(trained, state)
        losses.append(float(value))
    assert losses[-1] < 0.7 * losses[0]
    for own, leaf, after in zip(
        jax.tree.leaves(labels),
        jax.tree.leaves(stacked),
        jax.tree.leaves(trained),
        strict=True,
    ):
        assert np.array_equal(leaf, after) == (own == "frozen")


def test_scanned_layers_are_one_scan_without_dense_weights():
    keys = jax.random.split(jax.random.key(0), 4)
    layers = [adapted(Block(8, k), k, eight_bits) for k in keys]
    jaxpr = jaxrewrite.make_jaxpr(deep)(jaxrewrite.stack(layers), jnp.ones((4, 8))).jaxpr
    (scan,) = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "scan"]
    assert scan.params["length"] == 4
    shapes = [
        (var.aval.shape, var.aval.dtype)
        for eqn in all_equations(scan.params["jaxpr"])
        for var in eqn.outvars
        if eqn.primitive.name not in ("convert_element_type", "transpose")
    ]
    assert ((16, 8), jnp.dtype("float32")) not in shapes
    assert ((8, 16), jnp.dtype("float32")) not in shapes


def all_equations(jaxpr):
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in jex_core.jaxprs_in_params(eqn.params):
            yield from all_equations(inner)


class FlaxLayer(nn.Module):
    @nn.compact
    def __call__(self, x, _):
        return nn.tanh(nn.Dense(8)(x)), None


class FlaxDeep(nn.Module):
    @nn.compact
    def __call__(self, x):
        layers = nn.scan(
            nn.remat(FlaxLayer),
            variable_axes={"params": 0},
            split_rngs={"params": True},
            length=4,
        )
        return layers()(x, None)[0]


def test_layers_scanned_over_by_flax(no_leak_checks):
    model, x = FlaxDeep(), jnp.ones((2, 8))
    params = model.init(jax.random.key(0), x)

    def adapted(kernel):
        if kernel.ndim != 3:
            return kernel
        low = 0.1 * jnp.ones((8, 2))
        return jaxrewrite.stack([Lora(w, low, low.T) for w in kernel])

    params = jax.tree.map(adapted, params)
    implicit = transform(model.apply, materialise="forbid")
    dense = lambda params: model.apply(jaxrewrite.materialise(params), x)
    np.testing.assert_allclose(implicit(params, x), dense(params), rtol=1e-5)
    got = jax.jit(jax.grad(lambda p: implicit(p, x).sum()))(params)
    want = jax.grad(lambda p: dense(p).sum())(params)
    jax.tree.map(
        lambda g, w: np.testing.assert_allclose(g, w, rtol=1e-3, atol=1e-6), got, want
    )


@pytest.mark.parametrize("kind", ["lax", slow("bounded"), "checkpointed"])
def test_loops_of_equinox(kind, no_leak_checks):
    """Its custom rules decide by flags among their residuals, and close over much."""
    v = Lora(0.5 * jnp.eye(3), 0.1 * jnp.ones((3, 1)), jnp.ones((1, 3)))

    def fn(x, v):
        return eqx.internal.while_loop(
            lambda c: c.sum() < 100, lambda c: c @ v + 1, x, kind=kind, max_steps=16
        )

    x = jnp.ones((2, 3))
    dense = lambda v: fn(x, jaxrewrite.materialise(v))
    implicit = transform(fn, materialise="allow")
    np.testing.assert_allclose(implicit(x, v), dense(v), rtol=1e-5)
    if kind != "lax":  # which has no reverse mode
        got = jax.grad(lambda v: implicit(x, v).sum())(v)
        want = jax.grad(lambda v: dense(v).sum())(v)
        jax.tree.map(lambda g, w: np.testing.assert_allclose(g, w, rtol=1e-4), got, want)


def test_pmap():
    v = Lora(0.5 * jnp.eye(3), 0.1 * jnp.ones((3, 1)), jnp.ones((1, 3)))
    xs = jnp.arange(48.0).reshape(8, 2, 3)
    fn = lambda xs, v: jax.pmap(lambda x, v: jnp.tanh(x @ v), in_axes=(0, None))(xs, v)
    np.testing.assert_allclose(
        transform(fn)(xs, v), fn(xs, jaxrewrite.materialise(v)), rtol=1e-5
    )


def test_custom_rules_of_flax_leave_weights_as_they_are():
    class Layer(nnx.Module):
        def __init__(self, kernel):
            self.kernel = nnx.Param(kernel)

    product = nnx.custom_vjp(lambda layer, x: x @ layer.kernel.get_value())

    def forward(layer, x):
        return product(layer, x), x

    product.defvjp(forward, lambda x, g: (g, g))
    layer = Layer(values.Quantised.quantise(jnp.eye(4)))
    transform(lambda layer, x: product(layer, x))(layer, jnp.ones((2, 4)))
    assert type(layer.kernel.get_raw_value()) is values.Quantised


@jax.custom_vjp
def reversed_gradient(x):
    return x


reversed_gradient.defvjp(lambda x: (x, None), lambda _, g: (-3 * g,))


@pytest.mark.parametrize(
    "pass_on",
    [
        lax.stop_gradient,
        reversed_gradient,
        jax.jit(reversed_gradient),
        jax.checkpoint(reversed_gradient),
        lambda x: lax.scan(lambda c, _: (reversed_gradient(c), c), x, None, length=1)[0],
    ],
    ids=["stop", "rule", "jit", "checkpoint", "scan"],
)
def test_results_beside_a_variable_that_changes_keep_their_derivatives(pass_on):
    """A function that returns what it got may have another derivative than the identity."""

    class Counted(nnx.Module):
        def __init__(self, kernel):
            self.kernel, self.count = nnx.Param(kernel), nnx.Param(jnp.zeros(()))

    def call(layer, x):
        layer.count[...] = layer.count[...] + 1
        layer.kernel[...] = pass_on(layer.kernel[...])
        return pass_on(x), x @ layer.kernel[...]

    def loss(leaves, kernel, wrap):
        x, diagonal = leaves
        layer = Counted(kernel(diagonal))
        first, second = wrap(call)(layer, x)
        rest = jaxrewrite.materialise(layer.kernel.get_raw_value())
        return (first + second).sum() + (x @ rest).sum()

    run = functools.partial(transform, materialise="allow")
    leaves = jnp.array([1.0, 2.0]), jnp.array([3.0, 5.0])
    run(call)(Counted(values.Diagonal(leaves[1])), leaves[0])  # The program may be kept.
    got = jax.grad(loss)(leaves, values.Diagonal, run)
    want = jax.grad(loss)(leaves, jnp.diag, lambda fn: fn)
    jax.tree.map(lambda g, w: np.testing.assert_allclose(g, w, rtol=1e-6), got, want)

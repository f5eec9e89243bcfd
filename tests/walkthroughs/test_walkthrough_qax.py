"""Qax's guide, walked through: symbolic zeros, LoRA, training it, and nesting both."""

import warnings

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from choose import slow
from jax import lax
from jaxtyping import Array, ArrayLike

import jaxrewrite
from jaxrewrite import ArrayValue, MaterialisationWarning, Rules, field, transform


class BareZeros(ArrayValue):
    """Zeros without any rule."""

    sizes: tuple = field(static=True)
    kind: np.dtype = field(static=True, default=np.dtype("float32"))

    def materialise(self):
        return jnp.zeros(self.sizes, self.kind)


class Zeros(BareZeros):
    """Zeros that the rules below keep symbolic."""


def _zeros_like(z, x):
    return Zeros(jnp.broadcast_shapes(z.shape, jnp.shape(x)), z.dtype)


@jaxrewrite.register("add", exchange="operands")
def add_zeros(z: Zeros, x: ArrayLike, **params):
    return jnp.broadcast_to(x, jnp.broadcast_shapes(z.shape, jnp.shape(x)))


@jaxrewrite.register("add")
def add_two_zeros(x: Zeros, y: Zeros, **params):
    return _zeros_like(x, y)


@jaxrewrite.register("mul", exchange="operands")
def mul_zeros(z: Zeros, x: ArrayLike | Zeros, **params):
    return _zeros_like(z, x)


@jaxrewrite.register("broadcast_in_dim", "reshape", "transpose", "squeeze")
def move_zeros(z: Zeros, *, primitive, **params):
    dense = jax.ShapeDtypeStruct(z.shape, z.dtype)
    out = jax.eval_shape(lambda x: primitive.bind(x, **params), dense)
    return Zeros(out.shape, out.dtype)


class Lora(ArrayValue):
    """``w + a @ b.T``, with a piece of metadata besides."""

    w: Array
    a: Array
    b: Array
    label: str = field(static=True, default="")

    def __post_init__(self):
        (n, m), (n_a, k_a), (m_b, k_b) = map(jnp.shape, (self.w, self.a, self.b))
        if (n, m, k_a) != (n_a, m_b, k_b):
            raise ValueError("factors do not fit the matrix")

    def materialise(self):
        return self.w + self.a @ self.b.T


@jaxrewrite.register("dot_general")
def matmul_lora(x: ArrayLike, y: Lora, *, dimension_numbers, **params):
    if dimension_numbers != (((x.ndim - 1,), (0,)), ((), ())):
        return NotImplemented

    def dot(p, q):
        return jaxrewrite.bind(
            "dot_general", p, q, dimension_numbers=dimension_numbers, **params
        )

    return dot(x, y.w) + dot(dot(x, y.a), y.b.T)


# --- symbolic zeros -------------------------------------------------------------


def first_of_sum(x, y):
    return (x + y)[0, 0]


def test_a_zero_without_rules_is_made_dense_with_a_warning():
    with pytest.warns(MaterialisationWarning, match="'add'|'broadcast_in_dim'") as caught:
        out = transform(first_of_sum)(BareZeros((2, 3)), jnp.full(3, 4.0))
    assert out == 4.0
    assert "BareZeros" in str(caught[0].message)
    assert caught[0].filename == __file__


def test_a_zero_with_a_rule_for_add_gives_no_warning():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        out = transform(first_of_sum)(Zeros((2, 3)), jnp.full(3, 4.0))
        assert out == 4.0
    assert not caught
    jaxpr = jaxrewrite.make_jaxpr(first_of_sum)(Zeros((2, 3)), jnp.full(3, 4.0))
    assert "add" not in {eqn.primitive.name for eqn in jaxpr.eqns}


def test_a_product_with_zeros_is_a_symbolic_zero_under_jit():
    @jax.jit
    @transform
    def g(x, y):
        return (1 + x) * y

    z = Zeros((2, 3))
    out = g(z, z)
    assert isinstance(out, Zeros)
    assert (out.shape, out.dtype) == ((2, 3), jnp.float32)
    np.testing.assert_array_equal(out, np.zeros((2, 3)))


class Block(nn.Module):
    """A transformer's layer, as anybody would write it with Flax."""

    @nn.compact
    def __call__(self, tokens):
        x = nn.Embed(11, 8, name="embed")(tokens)
        h = nn.LayerNorm(name="ln_1")(x)
        x = x + nn.MultiHeadDotProductAttention(num_heads=2, name="attention")(h)
        h = nn.LayerNorm(name="ln_2")(x)
        h = nn.gelu(nn.Dense(16, name="up")(h))
        x = x + nn.Dense(8, name="down")(h)
        return nn.Dense(11, name="head")(nn.LayerNorm(name="ln_f")(x))


TOKENS = jnp.arange(1, 7)[None] % 11


def block_and_params():
    block = Block()
    params = jax.jit(block.init)(jax.random.key(0), TOKENS)
    keys = iter(jax.random.split(jax.random.key(1), 100))
    # Flax starts with biases of zero, which would hide errors.
    noisy = jax.tree.map(lambda p: p + 0.1 * jax.random.normal(next(keys), p.shape), params)
    return block, noisy


def replace_biases(params, replacer):
    def replace(path, leaf):
        names = [p.key for p in path]
        if names[-1] != "bias" or any(name.startswith("ln") for name in names):
            return leaf
        return replacer(leaf.shape, leaf.dtype)

    return jax.tree_util.tree_map_with_path(replace, params)


def test_a_flax_transformer_runs_with_symbolic_biases():
    block, params = block_and_params()
    run = jax.jit(block.apply)
    dense = run(replace_biases(params, jnp.zeros), TOKENS)
    symbolic = replace_biases(params, Zeros)
    found = jax.tree.leaves(symbolic, is_leaf=lambda x: isinstance(x, Zeros))
    assert sum(isinstance(x, Zeros) for x in found) == 7
    apply = transform(block.apply, materialise="forbid")
    np.testing.assert_allclose(
        jax.jit(apply)(symbolic, TOKENS), dense, rtol=1e-5, atol=1e-6
    )
    assert np.abs(run(params, TOKENS) - dense).max() > 1e-2


def test_symbolic_biases_cost_no_additions():
    block, params = block_and_params()

    def additions(jaxpr):
        own = sum(eqn.primitive.name in ("add", "add_any") for eqn in jaxpr.eqns)
        inner = [eqn.params["jaxpr"] for eqn in jaxpr.eqns if "jaxpr" in eqn.params]
        return own + sum(additions(getattr(j, "jaxpr", j)) for j in inner)

    with_biases = additions(jax.make_jaxpr(block.apply)(params, TOKENS).jaxpr)
    symbolic = replace_biases(params, Zeros)
    rewritten = jaxrewrite.make_jaxpr(block.apply)(symbolic, TOKENS)
    assert with_biases - additions(rewritten.jaxpr) == 7


def test_an_equinox_mlp_runs_with_symbolic_biases():
    mlp = eqx.nn.MLP(3, 2, 8, 2, key=jax.random.key(0))

    def biases(m):
        return [layer.bias for layer in m.layers]

    x = jnp.array([1.0, -2.0, 0.5])
    symbolic = eqx.tree_at(biases, mlp, [Zeros(b.shape, b.dtype) for b in biases(mlp)])
    dense = eqx.tree_at(biases, mlp, [jnp.zeros_like(b) for b in biases(mlp)])(x)
    out = transform(lambda m: m(x), materialise="forbid")(symbolic)
    np.testing.assert_allclose(out, dense, rtol=1e-6)


def test_an_equinox_mlp_with_symbolic_biases_is_transformed_itself():
    mlp = eqx.nn.MLP(3, 2, 8, 0, key=jax.random.key(0))
    x = jnp.array([1.0, -2.0, 0.5])
    symbolic = eqx.tree_at(lambda m: m.layers[0].bias, mlp, Zeros((2,)))
    out = transform(symbolic, materialise="forbid")(x)
    np.testing.assert_allclose(out, mlp.layers[0].weight @ x, rtol=1e-6)


# --- LoRA -----------------------------------------------------------------------


def lora_from_tree(tree, key, rank=2, scale=0.0):
    keys = iter(jax.random.split(key, 100))

    def adapt(path, leaf):
        if leaf.ndim != 2 or path[-1].key != "kernel":
            return leaf
        a = jax.random.normal(next(keys), (leaf.shape[0], rank), leaf.dtype)
        b = scale * jax.random.normal(next(keys), (leaf.shape[1], rank), leaf.dtype)
        return Lora(leaf, a, b)

    return jax.tree_util.tree_map_with_path(adapt, tree)


def is_lora(x):
    return isinstance(x, Lora)


def test_a_flax_transformer_runs_with_lora_weights_and_never_dense():
    block, params = block_and_params()
    lora = lora_from_tree(params, jax.random.key(2), scale=0.3)
    assert sum(map(is_lora, jax.tree.leaves(lora, is_leaf=is_lora))) == 3
    run = jax.jit(block.apply)
    dense = run(jaxrewrite.materialise(lora), TOKENS)
    apply = transform(block.apply, materialise="forbid")
    np.testing.assert_allclose(jax.jit(apply)(lora, TOKENS), dense, rtol=1e-4, atol=1e-5)


def test_what_a_rule_declines_is_made_dense():
    k = jax.random.split(jax.random.key(0), 4)
    lora = Lora(
        *(jax.random.normal(key, (5, n)) for key, n in zip(k[:3], (5, 2, 2), strict=True))
    )
    x = jax.random.normal(k[3], (4, 5))
    np.testing.assert_allclose(
        transform(jnp.matmul, materialise="forbid")(x, lora),
        x @ lora.materialise(),
        rtol=1e-4,
    )

    def by_rows(x, w):
        return jnp.einsum("bm,nm->bn", x, w)

    with pytest.warns(MaterialisationWarning, match="'dot_general' on Lora"):
        out = transform(by_rows)(x, lora)
    np.testing.assert_allclose(out, by_rows(x, lora.materialise()), rtol=1e-4)
    with pytest.raises(jaxrewrite.MaterialisationError):
        transform(by_rows, materialise="forbid")(x, lora)


def test_checks_and_metadata_of_a_lora():
    with pytest.raises(ValueError, match="do not fit"):
        Lora(jnp.ones((3, 4)), jnp.ones((3, 2)), jnp.ones((5, 2)))
    lora = Lora(jnp.ones((3, 4)), jnp.ones((3, 2)), jnp.ones((4, 2)), label="query")
    # No check as JAX rebuilds it with leaves of any kind.
    halved = jax.tree.map(lambda x: x / 2, lora)
    assert halved.label == "query"
    assert jax.tree.map(lambda x: None, lora).w is None


# --- training -------------------------------------------------------------------


def loss_fn(block):
    @transform
    def loss(params):
        logits = block.apply(params, TOKENS[:, :-1])
        targets = TOKENS[:, 1:]
        return optax.softmax_cross_entropy_with_integer_labels(logits, targets).sum()

    return loss


def labels(params):
    """``train`` for the factors of a LoRA, ``freeze`` for all else."""

    def of(x):
        if is_lora(x):
            return jax.tree_util.tree_map_with_path(lambda path, _: kinds[path[-1].name], x)
        return "freeze"

    kinds = {"w": "freeze", "a": "train", "b": "train"}
    return jax.tree.map(of, params, is_leaf=is_lora)


def train(optimiser, steps=20):
    block, dense = block_and_params()
    params = lora_from_tree(dense, jax.random.key(3))
    start = params
    value_and_grad = jax.value_and_grad(loss_fn(block))

    @jax.jit
    def update(params, state):
        loss, grads = value_and_grad(params)
        updates, state = optimiser.update(grads, state, params)
        return loss, optax.apply_updates(params, updates), state

    state = optimiser.init(params)
    losses = []
    for _ in range(steps):
        loss, params, state = update(params, state)
        losses.append(float(loss))
    return start, params, losses


def _freezing_multi_transform():
    choices = {"train": optax.adam(3e-2), "freeze": optax.set_to_zero()}
    return optax.multi_transform(choices, labels)


def _freezing_masked():
    def frozen(params):
        return jax.tree.map(lambda label: label == "freeze", labels(params))

    return optax.chain(optax.adam(3e-2), optax.masked(optax.set_to_zero(), frozen))


@pytest.mark.parametrize("make", [_freezing_multi_transform, slow(_freezing_masked)])
def test_training_a_lora_with_its_dense_part_frozen(make):
    start, end, losses = train(make())
    assert losses[-1] < 0.3 * losses[0]
    before, after = (jax.tree.leaves_with_path(params) for params in (start, end))
    kinds = jax.tree.leaves(labels(start))
    assert len(kinds) == len(before) and kinds.count("train") == 6
    for kind, (path, x), (_, y) in zip(kinds, before, after, strict=True):
        if kind == "freeze":
            np.testing.assert_array_equal(x, y, err_msg=str(path))
        else:
            assert np.abs(x - y).max() > 1e-3, path


def test_the_gradient_of_a_lora_is_that_of_the_dense_program():
    block, dense = block_and_params()
    params = lora_from_tree(dense, jax.random.key(3), scale=0.3)
    loss = loss_fn(block)
    grads = jax.jit(jax.grad(loss))(params)
    expected = jax.jit(jax.grad(lambda p: loss(jaxrewrite.materialise(p))))(params)
    assert jax.tree.structure(grads) == jax.tree.structure(params)
    for x, y in zip(jax.tree.leaves(grads), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-4)


# --- nesting --------------------------------------------------------------------


def summed_matmul(w, x):
    return jnp.sum(x @ w)


def lora_of(zeros, n=3, m=5, rank=6):
    return Lora(jnp.ones((n, m)), zeros((n, rank)), zeros((m, rank)))


def test_a_lora_whose_factors_are_symbolic_zeros():
    x = jnp.arange(3.0)
    nested = lora_of(BareZeros)
    assert nested.shape == (3, 5)
    with pytest.warns(MaterialisationWarning) as caught:
        assert transform(summed_matmul)(nested, x) == 15.0
    messages = [str(w.message) for w in caught]
    assert any("'dot_general' on BareZeros" in m for m in messages)
    assert any("'transpose' on BareZeros" in m for m in messages)


def test_nested_zeros_with_a_rule_for_matmuls_cost_nothing():
    rules = Rules()

    @rules.register(lax.dot_general_p)
    def _(x: ArrayLike, z: Zeros, *, dimension_numbers, **params):
        dense = jax.ShapeDtypeStruct(z.shape, z.dtype)
        out = jax.eval_shape(
            lambda p, q: lax.dot_general(p, q, dimension_numbers), x, dense
        )
        return Zeros(out.shape, out.dtype)

    @rules.register(lax.dot_general_p)
    def _(x: Zeros, z: Zeros, *, dimension_numbers, **params):
        out = jax.eval_shape(
            lambda p, q: lax.dot_general(p, q, dimension_numbers),
            *(jax.ShapeDtypeStruct(v.shape, v.dtype) for v in (x, z)),
        )
        return Zeros(out.shape, out.dtype)

    x = jnp.arange(3.0)
    f = transform(summed_matmul, rules=rules, materialise="forbid")
    assert f(lora_of(Zeros), x) == 15.0
    jaxpr = jaxrewrite.make_jaxpr(summed_matmul, rules=rules)(lora_of(Zeros), x)
    assert [e.primitive.name for e in jaxpr.eqns].count("dot_general") == 1

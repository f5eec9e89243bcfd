"""A mixture of experts, whose tokens are sorted by expert, with adapted and quantised experts."""

import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from choose import often
from jax import lax

import jaxrewrite
from jaxrewrite.testing import assert_implicit, assert_same
from jaxrewrite.values import (
    NF4,
    Dora,
    Lora,
    Quantised,
    WeightAxes,
    adapt,
    dropout,
    quantise,
    weight_axes,
)


TOKENS, EXPERTS, WIDTH, HIDDEN = 12, 3, 8, 16
KEYS = jax.random.split(jax.random.key(0), 5)
X = jax.random.normal(KEYS[0], (TOKENS, WIDTH))
PARAMS = {
    "router": jax.random.normal(KEYS[1], (WIDTH, EXPERTS)),
    "up": jax.random.normal(KEYS[2], (EXPERTS, WIDTH, HIDDEN)) / 3,
    "down": jax.random.normal(KEYS[3], (EXPERTS, HIDDEN, WIDTH)) / 4,
}
AXES = {"router": WeightAxes((0,), (1,))} | dict.fromkeys(
    ("up", "down"), WeightAxes((1,), (2,))
)


def mixture(params, x):
    """A token goes to the expert with the highest score, times its probability."""
    scores = x @ params["router"]
    expert = jnp.argmax(scores, -1)
    order = jnp.argsort(expert)
    sizes = jnp.bincount(expert, length=EXPERTS)
    hidden = jax.nn.gelu(lax.ragged_dot(x[order], params["up"], sizes))
    out = lax.ragged_dot(hidden, params["down"], sizes)
    return jnp.zeros_like(x).at[order].set(out) * jax.nn.softmax(scores).max(-1)[:, None]


def of_experts(path, _):
    return path != "router"


def quantised(bits, **options):
    return quantise(PARAMS, of_experts, bits, axes=AXES, **options)


def adapted(params, **options):
    adapted = adapt(params, of_experts, 2, KEYS[4], axes=AXES, **options)
    # The second factor of an adapter begins at zero.
    return jax.tree.map(lambda x: x + 0.1 if x.dtype == jnp.float32 else x, adapted)


def test_what_products_of_groups_sum_is_found_out():
    assert weight_axes(mixture, PARAMS, X) == AXES


MAKERS = {
    "Quantised": lambda: quantised(8),
    "Quantised, in 4 bits": lambda: quantised(4),
    "Quantised, in blocks": lambda: quantised(8, block=4),
    "Concatenated": lambda: quantised(8, block=5),
    "NF4": lambda: quantised("nf4"),
    "Lora": lambda: adapted(PARAMS),
    "Lora of Quantised": lambda: adapted(quantised(8)),
    "Lora of NF4": lambda: adapted(quantised("nf4")),
    "Dora of NF4": lambda: adapted(quantised("nf4"), method="dora"),
}


@pytest.mark.parametrize(
    "name",
    often(MAKERS, ("Quantised, in blocks", "Concatenated", "NF4", "Lora of Quantised")),
)
def test_experts_stay_implicit(name):
    params = MAKERS[name]()
    assert_implicit(mixture, params, X)
    forbid = jaxrewrite.transform(mixture, materialise="forbid")
    assert_same(jax.jit(forbid)(params, X), mixture(jaxrewrite.materialise(params), X))


@pytest.mark.parametrize("kind", often([Lora, Dora], [Lora]))
def test_gradients_reach_the_adapters_of_quantised_experts(kind):
    params = adapted(quantised("nf4"), method=kind.__name__.lower())
    loss = lambda mix: lambda params, x: jnp.sum(mix(params, x) ** 2)
    forbid = jaxrewrite.transform(mixture, materialise="forbid")
    apply = jax.value_and_grad(loss(forbid), (0, 1), allow_int=True)
    value, (gradient, slope) = jax.jit(apply)(params, X)

    def dense(factors):
        whole = dict(params)
        for name, own in factors.items():
            w = lax.stop_gradient(params[name].w.materialise()) + jnp.matmul(*own[:2])
            if kind is Dora:
                lengths = jnp.linalg.norm(w, axis=1, keepdims=True)
                w = w / lax.stop_gradient(lengths) * own[2]
            whole[name] = w
        return whole

    names = "a", "b", *(["magnitude"] if kind is Dora else [])
    of = lambda v: [getattr(v, name) for name in names]
    factors = {name: of(params[name]) for name in ("up", "down")}
    want, (of_factors, of_x) = jax.value_and_grad(
        lambda factors, x: loss(mixture)(dense(factors), x), (0, 1)
    )(factors, X)
    assert_same(value, want)
    assert_same(slope, of_x)
    assert_same({name: of(gradient[name]) for name in factors}, of_factors)
    inside = jaxrewrite.transform(jax.grad(loss(mixture)), materialise="forbid")
    plain = jaxrewrite.materialise(params)
    assert_same(inside(params, X), jax.grad(loss(mixture))(plain, X))


def test_groups_of_the_axis_that_is_summed_are_those_of_the_dense_weight():
    """There is no such product of two factors."""
    numbers = lax.RaggedDotDimensionNumbers(
        dot_dimension_numbers=(((1,), (0,)), ((), ())),
        lhs_ragged_dimensions=[1],
        rhs_group_dimensions=[],
    )
    draw = lambda i, *shape: jax.random.normal(KEYS[i], shape)
    v = Lora(draw(0, 3, 4), draw(1, 3, 2), draw(2, 2, 4))
    product = lambda x, v: lax.ragged_dot_general(x, v, jnp.array([1, 2]), numbers)
    x = draw(3, 5, 3)
    got = jaxrewrite.transform(product, materialise="allow")(x, v)
    assert_same(got, product(x, v.materialise()), 1e-4)


def test_batches_of_experts_have_their_own_groups():
    """A batch of everything, as of two models; `jax.vmap` of JAX knows no other."""
    params = adapted(quantised(8))
    both = jax.tree.map(lambda x: jnp.stack([x, x[::-1] if x.ndim else x]), params)
    xs = jnp.stack([X, -X])
    forbid = jaxrewrite.transform(mixture, materialise="forbid")
    each = [jax.tree.map(operator.itemgetter(i), (both, xs)) for i in range(2)]
    assert_same(jax.vmap(forbid)(both, xs), jnp.stack([forbid(*one) for one in each]))


def test_activations_of_experts_are_rounded_for_each_token():
    v = quantised(8, activations="dynamic")
    sizes = jnp.array([5, 0, 6])
    product = lambda x, w: lax.ragged_dot(x, w, sizes)
    got = jaxrewrite.transform(product, materialise="forbid")(X, v["up"])
    step = jnp.abs(X).max(1, keepdims=True) / 127
    rounded = jnp.round(X / step) * step
    assert_same(got, product(rounded, v["up"].materialise()), 1e-6)


def test_dropout_of_experts_drops_for_each_token():
    params = dropout(adapted(PARAMS), 0.5, KEYS[4])
    assert_implicit(mixture, params, X)
    forbid = jaxrewrite.transform(mixture, materialise="forbid")
    assert not np.allclose(forbid(params, X), forbid(adapted(PARAMS), X))


# --- large experts ------------------------------------------------------------------------

LARGE = 4, 256, 1024
MANY = jnp.array([3, 0, 6, 0])


@pytest.fixture(scope="module")
def large():
    x, w = (
        jax.random.normal(key, s) for key, s in zip(KEYS, ((16, 256), LARGE), strict=False)
    )
    return x, Quantised.quantise(w, axis=(0, 2)), jax.vmap(NF4.quantise)(w)


def product(x, w, sizes):
    return lax.ragged_dot(x, w, sizes)


def test_experts_are_multiplied_one_after_the_other(large, on_one_device):
    x, *weights = large
    forbid = jaxrewrite.transform(product, materialise="forbid")
    for v in weights:
        text = str(jax.make_jaxpr(forbid)(x, v, MANY))
        assert "scan" in text and "cond" in text
        compiled = jax.jit(forbid).lower(x, v, MANY).compile()
        assert compiled.memory_analysis().temp_size_in_bytes < 4 * v.size / 2
        assert_same(compiled(x, v, MANY), product(x, v.materialise(), MANY))


def test_gradients_of_large_experts(large, on_one_device):
    x, v, _ = large
    forbid = jaxrewrite.transform(product, materialise="forbid")
    loss = lambda fn: lambda x, v: jnp.sum(fn(x, v, MANY) ** 2)
    slope, gradient = jax.jit(jax.grad(loss(forbid), (0, 1), allow_int=True))(x, v)
    dense = lambda x, scale: product(x, v.q.astype(scale.dtype) * scale, MANY)
    want = jax.grad(lambda x, scale: jnp.sum(dense(x, scale) ** 2), (0, 1))(x, v.scale)
    assert_same((slope, gradient.scale), want)


def test_large_experts_with_groups_of_their_own(large, on_one_device):
    x, v, _ = large
    xs = x.reshape(2, 8, 256)
    sizes = jnp.array([[3, 0, 4, 0], [0, 1, 2, 5]])
    numbers = lax.RaggedDotDimensionNumbers((((2,), (1,)), ((), ())), [1], [0])
    several = lambda x, w: lax.ragged_dot_general(x, w, sizes, numbers)
    forbid = jaxrewrite.transform(several, materialise="forbid")
    assert_same(forbid(xs, v), several(xs, v.materialise()))

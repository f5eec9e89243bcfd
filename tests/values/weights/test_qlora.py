"""QLoRA: adapters on 4-bit weights, of a model that knows nothing of either."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from choose import slow

import jaxrewrite
from jaxrewrite.values import (
    NF4,
    Lora,
    Quantised,
    adapt,
    combine,
    freeze,
    nbytes,
    partition,
    quantise,
    train_only,
)


def model(params, x):
    h = jax.nn.gelu(x @ params["up"]["kernel"] + params["up"]["bias"])
    return h @ params["down"]["kernel"] + params["down"]["bias"]


loss = jaxrewrite.transform(
    lambda params, x, y: jnp.mean((model(params, x) - y) ** 2), materialise="forbid"
)

KEYS = jax.random.split(jax.random.key(0), 5)
X, Y = jax.random.normal(KEYS[2], (16, 64)), jax.random.normal(KEYS[3], (16, 8))
SHAPES = (64, 128), (128, 8)


def dense_params():
    return {
        "up": {"kernel": jax.random.normal(KEYS[0], (64, 128)) / 8, "bias": jnp.zeros(128)},
        "down": {"kernel": jax.random.normal(KEYS[1], (128, 8)) / 11, "bias": jnp.zeros(8)},
    }


def adapted(bits):
    is_kernel = lambda path, leaf: path.endswith("kernel")
    params = quantise(dense_params(), is_kernel, bits)
    return adapt(params, is_kernel, 4, KEYS[4])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bits", "kind"),
    [(8, Quantised), (4, Quantised), ("nf4", NF4)],
)
def test_adapters_on_quantised_weights_train(bits, kind, no_leak_checks):
    params = adapted(bits)
    assert isinstance(params["up"]["kernel"], Lora)
    assert isinstance(params["up"]["kernel"].w, kind)
    sizes = nbytes(params)
    assert sizes.dense == nbytes(dense_params()).dense and sizes.implicit < sizes.dense / 2

    trained, rest = partition(params, freeze(params, {Lora: ["w"]}))
    optimiser = optax.adamw(1e-2, weight_decay=0.1)
    state = optimiser.init(trained)
    moments = jax.tree.leaves(state)
    assert not any(x.shape in SHAPES for x in moments)

    @jax.jit
    def step(trained, state):
        of_part = lambda part: loss(combine(part, rest), X, Y)
        value, gradient = jax.value_and_grad(of_part)(trained)
        updates, state = optimiser.update(gradient, state, trained)
        return optax.apply_updates(trained, updates), state, value

    values = []
    for _ in range(8):
        trained, state, value = step(trained, state)
        values.append(float(value))
    assert values[-1] < 0.8 * values[0]

    after = combine(trained, rest)
    assert jax.tree.structure(after) == jax.tree.structure(params)
    before, now = params["up"]["kernel"], after["up"]["kernel"]
    for x, y in zip(jax.tree.leaves(before.w), jax.tree.leaves(now.w), strict=True):
        np.testing.assert_array_equal(x, y)
    assert not np.array_equal(before.a, now.a) and not np.array_equal(before.b, now.b)


@pytest.mark.parametrize("bits", [8, 4, slow("nf4")])
def test_no_float_copy_is_kept_for_the_backward_pass(bits, no_leak_checks):
    params = adapted(bits)
    trained, rest = partition(params, freeze(params, {Lora: ["w"]}))
    _, backward = jax.vjp(lambda part, x: loss(combine(part, rest), x, Y), trained, X)
    kept = jax.tree.leaves(backward)
    is_integer = lambda x: jnp.issubdtype(x.dtype, jnp.integer)
    codes = filter(is_integer, kept)
    assert sum(x.nbytes for x in codes) >= (1 if bits == 8 else 0.5) * (64 * 128 + 128 * 8)
    assert all(is_integer(x) for x in kept if x.shape in SHAPES)


@pytest.mark.parametrize("bits", [8, "nf4"])
def test_gradients_are_those_of_the_dense_weights(bits, no_leak_checks):
    params = adapted(bits)
    trained, rest = partition(params, freeze(params, {Lora: ["w"]}))
    got = jax.grad(lambda part: loss(combine(part, rest), X, Y))(trained)
    dense = lambda p: jnp.mean((model(jaxrewrite.materialise(p), X) - Y) ** 2)
    want = jax.grad(lambda part: dense(combine(part, rest)))(trained)
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-5)


HELPERS = {
    "quantise": lambda tree, where, **options: quantise(tree, where, **options),
    "adapt": lambda tree, where, **options: adapt(
        tree, where, 1, jax.random.key(0), **options
    ),
}


@pytest.mark.parametrize("helper", HELPERS)
def test_helpers_show_their_progress(helper):
    tree = {"a": jnp.ones((2, 2)), "b": jnp.ones(2), "c": jnp.full((2, 2), 2.0)}
    where = lambda path, leaf: leaf.ndim == 2
    seen = []

    def progress(paths):
        seen.append(len(paths))
        for path in paths:
            seen.append(path)
            yield path
        seen.append("end")

    shown = HELPERS[helper](tree, where, progress=progress)
    assert seen == [2, "a", "c", "end"]
    plain = HELPERS[helper](tree, where)
    assert jax.tree.structure(shown) == jax.tree.structure(plain)
    for x, y in zip(jax.tree.leaves(shown), jax.tree.leaves(plain), strict=True):
        np.testing.assert_array_equal(x, y)
    for wrong, words in (
        (lambda paths: paths[1:], "few"),
        (lambda paths: paths * 2, "many"),
    ):
        with pytest.raises(ValueError, match=f"progress= gave too {words}.* 2 leaves"):
            HELPERS[helper](tree, where, progress=wrong)


def test_an_optimiser_of_all_leaves_trains_some(no_leak_checks):
    """Frozen leaves, of floats and of integers, have updates that Optax can add."""
    weights = jax.random.normal(KEYS[0], (2, 64, 2))
    is_weight = lambda path, leaf: True
    base = {"float": weights[1]} | quantise({"eight": weights[0]}, is_weight, axis=-1)
    base |= quantise({"four": weights[1]}, is_weight, "nf4")
    params = adapt(base, is_weight, 1, KEYS[4]) | {"bias": jnp.ones(2)}
    call = lambda params: sum(X @ params[name] for name in base) + params["bias"]
    total = jaxrewrite.transform(
        lambda params: jnp.sum(call(params) ** 2), materialise="forbid"
    )
    labels = lambda params: freeze(params, {Lora: ["w"]})
    adam = optax.adamw(1e-2)
    whole = train_only(adam, labels)

    @jax.jit
    def steps(params):
        gradient = jax.grad(total, allow_int=True)(params)
        updates, state = whole.update(gradient, whole.init(params), params)
        trained, rest = partition(params, labels(params))
        of_part = jax.grad(lambda part: total(combine(part, rest)))(trained)
        change, own = adam.update(of_part, adam.init(trained), trained)
        want = combine(optax.apply_updates(trained, change), rest)
        return (optax.apply_updates(params, updates), state), (want, own)

    got, want = steps(params)
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert g.dtype == w.dtype
        np.testing.assert_allclose(np.float32(g), np.float32(w), rtol=1e-5)
    for name in base:
        same = jax.tree.map(np.array_equal, params[name].w, got[0][name].w)
        assert all(jax.tree.leaves(same))
    with pytest.raises(TypeError, match="labels is a dict. It must be a function"):
        train_only(optax.sgd(0.1), {})
    for wrong in (optax.sgd, optax.MultiSteps, None):
        with pytest.raises(TypeError, match="optimiser is .* functions init and update"):
            train_only(wrong, labels)
    with pytest.raises(ValueError, match="needs the parameters"):
        whole.update(params, want[1])


def test_an_optimiser_is_any_object_with_the_two_functions():
    """MultiSteps is no named tuple. Its two small steps are one with the mean of their gradients."""
    v = adapted(8)
    labels = lambda v: freeze(v, {Lora: ["w"]})
    optimiser = train_only(optax.MultiSteps(optax.sgd(0.1), 2), labels)
    chained = optax.chain(optimiser, optax.scale(1.0))
    once = train_only(optax.sgd(0.1), labels)
    gradients = [
        jax.grad(loss, allow_int=True)(v, X[half], Y[half])
        for half in (slice(8), slice(8, 16))
    ]
    mean = jax.tree.map(
        lambda x, y: x if x.dtype == jax.dtypes.float0 else (x + y) / 2, *gradients
    )
    want = optax.apply_updates(v, once.update(mean, once.init(v), v)[0])
    for of_two in (optimiser, chained):
        got, state = v, of_two.init(v)
        for gradient in gradients:
            updates, state = jax.jit(of_two.update)(gradient, state, got)
            got = optax.apply_updates(got, updates)
        for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            assert g.dtype == w.dtype
            np.testing.assert_allclose(np.float32(g), np.float32(w), rtol=1e-4, atol=1e-6)


def test_adapted_experts_out_of_a_stack_stay_adapted():
    """A router chooses a weight for each token, and gradients reach the chosen adapters."""
    w, a, b = (
        jax.random.normal(key, shape) / 4
        for key, shape in zip(KEYS, ((3, 16, 8), (3, 16, 2), (3, 2, 8)), strict=False)
    )
    experts = Lora(jax.vmap(Quantised.quantise)(w), a, b)
    chosen, x = jnp.array([2, 0, 0, 1, 2]), jax.random.normal(KEYS[3], (5, 16))
    mixed = lambda v: jnp.tanh(jnp.einsum("td,tdf->tf", x, v[chosen])).sum()
    apply = jaxrewrite.transform(mixed, materialise="forbid")
    value, gradient = jax.jit(jax.value_and_grad(apply, allow_int=True))(experts)
    base = experts.w.materialise()
    want, of_factors = jax.value_and_grad(lambda ab: mixed(base + ab[0] @ ab[1]))((a, b))
    np.testing.assert_allclose(value, want, rtol=1e-5)
    for got, own in zip((gradient.a, gradient.b), of_factors, strict=True):
        np.testing.assert_allclose(got, own, rtol=1e-4, atol=1e-5)

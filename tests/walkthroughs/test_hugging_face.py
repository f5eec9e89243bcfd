"""Models of Hugging Face, unchanged: kernels and tables that are values, and attention.

They need packages that the other tests do without: ``tox -e models`` installs them.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrewrite
from jaxrewrite import patterns
from jaxrewrite.values import (
    NF4,
    Concatenated,
    Lora,
    Quantised,
    adapt,
    quantise,
    weight_axes,
)


transformers = pytest.importorskip("transformers", reason="tox -e models has it")


def normal(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), "float32")


def tokens():
    return jnp.asarray(np.random.default_rng(0).integers(64, size=(2, 8)))


def resnet():
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 2], layer_type="bottleneck"
    )
    model = transformers.FlaxResNetModel(config, input_shape=(1, 32, 32, 3))
    return (
        model,
        lambda params, x: model(x, params=params).pooler_output,
        normal(0, 2, 3, 32, 32),
    )


def vit():
    config = transformers.ViTConfig(
        *(32, 2, 4, 64), image_size=32, patch_size=8, num_labels=3
    )
    model = transformers.FlaxViTForImageClassification(config)
    return model, lambda params, x: model(x, params=params).logits, normal(0, 2, 3, 32, 32)


def gpt2():
    model = transformers.FlaxGPT2LMHeadModel(transformers.GPT2Config(64, 32, 32, 2, 4))
    return model, lambda params, x: model(x, params=params).logits, tokens()


def bert():
    model = transformers.FlaxBertModel(transformers.BertConfig(64, 32, 2, 4, 64))
    call = lambda params, x: model(x, params=params).last_hidden_state
    return model, call, tokens()


def t5():
    config = transformers.T5Config(
        64, 32, 8, 64, num_layers=2, num_heads=4, decoder_start_token_id=0
    )
    model = transformers.FlaxT5ForConditionalGeneration(config)
    call = lambda params, x: model(x, decoder_input_ids=x, params=params).logits
    return model, call, tokens()


def adapted(base):
    def adapt(w):
        places = (tuple(range(-w.ndim, -1)), (-1,))
        factors = normal(1, *w.shape[:-1], 2) / 10, normal(2, 2, w.shape[-1]) / 10
        return Lora(base(w), *factors, 1.0, *places, frozen=False)

    return adapt


def int8(w):
    return Quantised.quantise(w, axis=-1)


KINDS = {
    "int8": int8,
    "int4": lambda w: Quantised.quantise(w, 4, axis=-1),
    "nf4": lambda w: NF4.quantise(w, (*[None] * (w.ndim - 1), 1)),
    "lora": adapted(lambda w: w),
    "lora on int8": adapted(int8),
}


@pytest.fixture
def numpy_as_it_was(monkeypatch):
    """The model of T5 uses a name of an argument that JAX no longer has."""
    clip = jnp.clip

    def renamed(x, *limits, a_min=None, a_max=None, **kwargs):
        limits = limits or (a_min, a_max)
        return clip(x, *limits, **kwargs)

    monkeypatch.setattr(jnp, "clip", renamed)


def is_weight(path, leaf):
    return leaf.ndim > 1 and path[-1].key in ("kernel", "embedding")


def trained(params):
    """The floating leaves, and the function that puts others in their place."""
    leaves, treedef = jax.tree.flatten(params)
    places = [i for i, x in enumerate(leaves) if jnp.issubdtype(x.dtype, jnp.floating)]

    def refill(new):
        filled = dict(enumerate(leaves)) | dict(zip(places, new, strict=True))
        return treedef.unflatten(filled.values())

    return [leaves[i] for i in places], refill


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("make", [resnet, vit, gpt2, t5])
def test_models_and_their_gradients_stay_implicit(make, kind, numpy_as_it_was):
    model, call, x = make()
    params = jax.tree_util.tree_map_with_path(
        lambda path, leaf: KINDS[kind](leaf) if is_weight(path, leaf) else leaf,
        model.params,
    )
    check_forward_and_gradient(call, params, x)


# A block of 24 divides none of the widths 32, 64 and 128, so the last ones are shorter.
FORMATS = {"int8": (8, {}), "int4": (4, {"block": 24}), "nf4": ("nf4", {"block": 16})}


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("make", [gpt2, bert, t5])
def test_the_models_say_which_axes_they_sum(make, form, numpy_as_it_was):
    """QLoRA without a word about layouts: GPT-2 has kernels of (out, in), the others (in, out)."""
    model, call, x = make()
    axes = weight_axes(call, model.params, x)
    assert sum(path.endswith("kernel") for path in axes) >= 8
    in_axes = lambda path, leaf: path in axes
    bits, options = FORMATS[form]
    params = quantise(model.params, in_axes, bits, axes=axes, **options)
    params = adapt(params, in_axes, rank=2, key=jax.random.key(0), axes=axes)
    is_lora = lambda x: isinstance(x, Lora)
    grown = lambda v: Lora(v.w, v.a, v.b + 0.02, v.scale, v.rows, v.cols, False)
    params = jax.tree.map(lambda v: grown(v) if is_lora(v) else v, params, is_leaf=is_lora)
    leaves = jax.tree.leaves(params, is_leaf=is_lora)
    bases = [v.w for v in leaves if is_lora(v)]
    assert len(bases) == len(axes)
    assert any(isinstance(w, Concatenated) for w in bases) == (form == "int4")
    check_forward_and_gradient(call, params, x)


def check_forward_and_gradient(call, params, x):
    """Nothing becomes dense, and all is as with dense weights."""
    got = jaxrewrite.transform(call, materialise="forbid")(params, x)
    want = call(jaxrewrite.materialise(params), x)
    np.testing.assert_allclose(got, want, 1e-4, 1e-4 * abs(want).max())

    def loss(params):
        return (call(params, x) ** 2).sum()

    leaves, refill = trained(params)
    implicit = jaxrewrite.transform(loss, materialise="forbid")
    got = jax.grad(lambda new: implicit(refill(new)))(leaves)
    want = jax.grad(lambda new: loss(jaxrewrite.materialise(refill(new))))(leaves)
    largest = max(float(abs(g).max()) for g in want)
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, 1e-3, 1e-4 * largest)


@pytest.mark.parametrize(
    ("make", "name", "times"),
    [
        (gpt2, "attention_biased", 2),
        (bert, "attention_weighted", 2),
        (t5, "attention_biased", 6),  # Its decoder attends to itself and to the encoder.
    ],
)
def test_attention_of_models_is_found(make, name, times, numpy_as_it_was):
    model, call, x = make()
    report = jaxrewrite.explain(call, rules=patterns.attention)(model.params, x)
    found = [step.rule.name for step in report.steps if step.decision == "pattern"]
    assert [rule.split(".")[-1] for rule in found] == [name] * times

    def loss(call):
        return lambda params: jnp.sum(jnp.sin(call(params, x)))

    fused = jaxrewrite.transform(call, rules=patterns.attention)
    want, want_grad = jax.value_and_grad(loss(call))(model.params)
    got, got_grad = jax.value_and_grad(loss(fused))(model.params)
    np.testing.assert_allclose(got, want, 1e-5)
    largest = max(float(abs(g).max()) for g in jax.tree.leaves(want_grad))
    for g, w in zip(*map(jax.tree.leaves, (got_grad, want_grad)), strict=True):
        np.testing.assert_allclose(g, w, 1e-3, 1e-4 * largest)

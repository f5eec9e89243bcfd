"""Attention of libraries, found in their own layers, and what only looks like it."""

import functools

import equinox as eqx
import flax.linen as nn
import jax
import jax.ad_checkpoint
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from pattern_tables import spied

import jaxrewrite
from jaxrewrite import patterns
from jaxrewrite.testing import assert_same
from jaxrewrite.values import Lora


pytestmark = pytest.mark.usefixtures("bulk")

rules = patterns.attention


def normal(seed, *shape, dtype="float32"):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


def found(fn, *args):
    used = jaxrewrite.explain(fn, rules=rules)(*args).rules
    return [rule.name.split(".")[-1] for rule in used]


def close(got, want, tolerance):
    """Compare, where the results wanted are wider."""
    assert_same(*jax.tree.map(lambda x: np.asarray(x, float), (got, want)), tolerance)


def check(fn, *args, name):
    """The rule that is found; the result and the gradient against those in float64."""
    assert found(fn, *args)[-1:] == [name]
    got = jaxrewrite.transform(fn, rules=rules)
    inexact = [i for i, x in enumerate(args) if jnp.issubdtype(x.dtype, jnp.floating)]

    def scalar(fn):
        return lambda *args: jnp.sum(jnp.sin(fn(*args).astype(float)))

    results = got(*args), jax.grad(scalar(got), inexact)(*args)
    assert results[0].dtype == fn(*args).dtype
    with jax.enable_x64(True):
        wide = [x.astype("float64") if i in inexact else x for i, x in enumerate(args)]
        want = fn(*wide), jax.grad(scalar(fn), inexact)(*wide)
    close(results, want, 2e-5 if args[0].dtype == "float32" else 0.1)


Q, K, V = (normal(seed, 2, n, 4, 8) for seed, n in enumerate((5, 6, 6)))
BIAS = normal(3, 2, 4, 5, 6)
MASK = (normal(4, 2, 4, 5, 6) > 0).at[0, 0, 0].set(False)  # One query sees no key.
X = normal(5, 2, 6, 8)
CAUSAL = jnp.tril(jnp.ones((6, 6), bool))

linen = nn.dot_product_attention
jaxs = jax.nn.dot_product_attention


@functools.cache
def layer_of_linen():
    layer = nn.MultiHeadDotProductAttention(4, deterministic=True, dropout_rate=0.1)
    with jax.enable_x64(False), jax.ensure_compile_time_eval():
        return layer, layer.init(jax.random.key(0), X)


def of_linen(x, **kwargs):
    layer, params = layer_of_linen()
    return layer.apply(jax.tree.map(lambda p: p.astype(x.dtype), params), x, **kwargs)


@functools.cache
def layer_of_equinox():
    with jax.enable_x64(False), jax.ensure_compile_time_eval():
        key = jax.random.key(0)
        return eqx.nn.MultiheadAttention(4, 8, dropout_p=0.1, inference=True, key=key)


def of_equinox(x, mask=None):
    layer = jax.tree.map(
        lambda p: p.astype(x.dtype) if eqx.is_array(p) else p, layer_of_equinox()
    )
    return layer(x, x, x, mask=mask)


@functools.cache
def layer_of_nnx(**kwargs):
    with jax.enable_x64(False), jax.ensure_compile_time_eval():
        layer = nnx.MultiHeadAttention(4, 8, decode=False, rngs=nnx.Rngs(0), **kwargs)
        return nnx.split(layer)


def of_nnx(x, mask=None, **kwargs):
    graph, state = layer_of_nnx(**kwargs)

    def cast(p):
        return p.astype(x.dtype) if jnp.issubdtype(p.dtype, jnp.floating) else p

    return nnx.merge(graph, jax.tree.map(cast, state))(x, mask=mask)


def textbook(q, k, v, mask=None, fill=-jnp.inf):
    scores = q @ jnp.swapaxes(k, -1, -2) / jnp.sqrt(q.shape[-1])
    if mask is not None:
        scores = jnp.where(mask, scores, fill)
    return jax.nn.softmax(scores, axis=-1) @ v


def haiku(q, k, v, mask=None):
    """As in Haiku's MultiHeadAttention."""
    logits = jnp.einsum("...thd,...Thd->...htT", q, k) * (1 / np.sqrt(8))
    if mask is not None:
        logits = jnp.where(mask, logits, -1e30)
    return jnp.einsum("...htT,...Thd->...thd", jax.nn.softmax(logits), v)


def alibi(q, k, v, bias):
    """Linear biases (Press et al. 2022), heads first."""
    logits = jnp.einsum("bhqd,bhkd->bhqk", q, k) * 8**-0.5
    return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(logits + bias), v)


def bloom(q, k, v, bias):
    """A decoder with the biases of `alibi` (Le Scao et al. 2022), heads first."""
    logits = jnp.einsum("bhqd,bhkd->bhqk", q, k) * 8**-0.5 + bias
    seen = jnp.tril(jnp.ones(logits.shape[-2:], bool))
    logits = jnp.where(seen, logits, jnp.finfo(logits.dtype).min)
    return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(logits), v)


def graphormer(q, k, v, bias, nodes=None):
    """Ying and others 2021, (6): distances in a graph, heads last; of padded graphs, too."""
    logits = jnp.einsum("...qhd,...khd->...hqk", q, k) / jnp.sqrt(q.shape[-1]) + bias
    if nodes is not None:
        logits = jnp.where(nodes, logits, -1e9)
    return jnp.einsum("...hqk,...khd->...qhd", jax.nn.softmax(logits), v)


def evoformer(q, k, v, pairs, mask):
    """Jumper and others 2021, algorithm 7: rows attend with a bias of pairs of residues."""
    scores = q @ jnp.swapaxes(k, -1, -2) / jnp.sqrt(q.shape[-1]) + pairs
    return jax.nn.softmax(jnp.where(mask, scores, -1e9), axis=-1) @ v


def swin(q, k, v, bias):
    """Liu and others 2021, (4): positions in a window."""
    attn = q * q.shape[-1] ** -0.5 @ jnp.swapaxes(k, -2, -1) + bias
    return jax.nn.softmax(attn, axis=-1) @ v


def t5(q, k, v, bias):
    """Raffel and others 2020: no scale, and biases of relative positions."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) + bias
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, axis=-1), v)


def gpt2(q, k, v):
    """Hugging Face, FlaxGPT2Attention: a mask as a bias of the lowest number."""
    causal = jnp.tril(jnp.ones((5, 6), bool))[None, None]
    bias = jnp.where(causal, 0.0, jnp.finfo(q.dtype).min).astype(q.dtype)
    return linen(q, k, v, bias=bias)


def minimal_gpt(q, k, v):
    """Karpathy, minGPT, heads first."""
    att = (q @ jnp.swapaxes(k, -2, -1)) * (1.0 / np.sqrt(k.shape[-1]))
    att = jnp.where(jnp.tril(jnp.ones((5, 6), bool)), att, -jnp.inf)
    return jax.nn.softmax(att, axis=-1) @ v


def annotated_transformer(q, k, v, mask):
    """Rush, The Annotated Transformer: attention()."""
    scores = jnp.matmul(q, jnp.swapaxes(k, -2, -1)) / np.sqrt(q.shape[-1])
    return jnp.matmul(jax.nn.softmax(jnp.where(mask, scores, -1e9), axis=-1), v)


def bert(q, k, v, bias, heads):
    """Hugging Face, FlaxBertSelfAttention, with the mask of heads of each layer."""
    w = nn.dot_product_attention_weights(q, k, bias=bias, deterministic=True)
    return jnp.einsum("...hqk,...khd->...qhd", jnp.einsum("...hqk,h->...hqk", w, heads), v)


def sixteen_heads(q, k, v, mask, heads):
    """Michel and others 2019, (2): gates of heads, from which their gradients tell the use."""
    return bert(q, k, v, jnp.where(mask, 0.0, -1e10).astype(q.dtype), heads)


def pruned(q, k, v, bias):
    """Heads that are left out, as Hugging Face's models take them."""
    return bert(q, k, v, bias, jnp.array([1, 0, 1, 1]))


def cross_attention(q, k, v, mask, bias):
    """Of perceivers (Jaegle and others 2021), by the layer of Flax with both."""
    return linen(q, k, v, mask=mask, bias=bias)


def decoder_with_positions(q, k, v, bias):
    """A causal decoder with linear biases (Press and others 2022), by Flax."""
    return linen(q, k, v, bias=bias, mask=nn.make_causal_mask(jnp.ones((2, 6)))[:, :, :5])


def heads_first(*arrays):
    return [jnp.swapaxes(x, 1, 2) for x in arrays]


KEYS = MASK.at[..., 0].set(True)[:1, :1, :1]
BOTH = "attention_of_jax_biased_and_masked"
half = [x.astype("bfloat16") for x in (Q, K, V)]

FORMS = {
    "linen": (linen, (Q, K, V), "attention"),
    "linen bias": (linen, (Q, K, V, BIAS), "attention_biased"),
    "linen bias of heads": (linen, (Q, K, V, BIAS[0]), "attention_biased"),
    "linen bias and mask": (linen, (Q, K, V, BIAS, MASK), "attention_biased_and_masked"),
    "linen mask": (
        lambda q, k, v, m: linen(q, k, v, mask=m),
        (Q, K, V, MASK),
        "attention_masked",
    ),
    "linen small mask": (
        lambda q, k, v, m: linen(q, k, v, mask=m),
        (Q, K, V, MASK[:1, :1]),
        "attention_masked",
    ),
    "linen one": (linen, (Q[0], K[0], V[0]), "attention"),
    "linen mapped": (jax.vmap(linen), (Q, K, V), "attention"),
    "linen five axes": (linen, (Q[None], K[None], V[None]), "attention"),
    "linen bfloat16": (linen, half, "attention"),
    "linen bfloat16 mask": (
        lambda q, k, v, m: linen(q, k, v, mask=m),
        (*half, MASK),
        "attention_masked",
    ),
    "linen layer": (of_linen, (X,), "attention"),
    "linen layer causal": (
        lambda x: of_linen(x, mask=nn.make_causal_mask(x[..., 0])),
        (X,),
        "attention_masked",
    ),
    "equinox": (of_equinox, (X[0],), "attention_by_heads"),
    "equinox mask": (of_equinox, (X[0], CAUSAL), "attention_by_heads_masked"),
    "equinox masks": (
        of_equinox,
        (X[0], jnp.tile(CAUSAL, (4, 1, 1))),
        "attention_by_heads_masked",
    ),
    "equinox mapped": (jax.vmap(of_equinox), (X,), "attention_by_heads"),
    "equinox mapped mask": (
        jax.vmap(of_equinox, (0, None)),
        (X, CAUSAL),
        "attention_by_heads_masked",
    ),
    "nnx": (of_nnx, (X,), "attention_of_jax"),
    "nnx deterministic": (
        lambda x: of_nnx(x, dropout_rate=0.1, deterministic=True),
        (X,),
        "attention",
    ),
    "nnx deterministic mask": (
        lambda x: of_nnx(
            x, nnx.make_causal_mask(x[..., 0]), dropout_rate=0.1, deterministic=True
        ),
        (X,),
        "attention_masked",
    ),
    "jax bias": (jaxs, (Q, K, V, BIAS), "attention_of_jax_biased"),
    "jax mask": (
        lambda q, k, v, m: jaxs(q, k, v, mask=m),
        (Q, K, V, MASK.at[0, 0, 0, 0].set(True)),
        "attention_of_jax_masked",
    ),
    "jax causal": (
        lambda q, k, v: jaxs(q, k, v, is_causal=True),
        (Q, K, V),
        "attention_of_jax",
    ),
    "jax grouped": (jaxs, (Q, K[:, :, :2], V[:, :, :2]), "attention_of_jax"),
    "jax scale": (
        lambda q, k, v: jaxs(q, k, v, scale=0.3),
        (Q, K, V),
        "attention_of_jax",
    ),
    "textbook": (textbook, (Q[0, :, 0], K[0, :, 0], V[0, :, 0]), "attention_scaled"),
    "textbook heads": (textbook, heads_first(Q, K, V), "attention_scaled"),
    "textbook mapped": (
        jax.vmap(jax.vmap(textbook)),
        heads_first(Q, K, V),
        "attention_scaled",
    ),
    "textbook fill": (
        lambda *args: textbook(*args, fill=-1e9),
        (*heads_first(Q, K, V), MASK),
        "attention_scaled_masked",
    ),
    "haiku": (haiku, (Q, K, V), "attention_scaled"),
    "graphormer": (graphormer, (Q, K, V, BIAS), "attention_scaled_biased"),
    "graphormer padded": (
        graphormer,
        (Q, K, V, BIAS, MASK[:, :1, :1]),
        "attention_scaled_biased_and_masked",
    ),
    "bloom": (bloom, (*heads_first(Q, K, V), BIAS), "attention_scaled_biased_and_masked"),
    "evoformer": (
        evoformer,
        (*heads_first(Q, K, V), BIAS, MASK),
        "attention_scaled_biased_and_masked",
    ),
    "swin": (swin, (*heads_first(Q, K, V), BIAS), "attention_biased"),
    "t5": (t5, (Q, K, V, BIAS[0]), "attention_biased"),
    "alibi of one": (alibi, (*heads_first(Q, K, V), BIAS[:1]), "attention_scaled_biased"),
    "gpt2": (gpt2, (Q, K, V), "attention_biased"),
    "minimal gpt": (minimal_gpt, heads_first(Q, K, V), "attention_scaled_masked"),
    "annotated": (
        annotated_transformer,
        (*heads_first(Q, K, V), MASK),
        "attention_scaled_masked",
    ),
    "bert": (bert, (Q, K, V, BIAS, jnp.linspace(0.5, 2, 4)), "attention_weighted"),
    "sixteen heads": (
        sixteen_heads,
        (Q, K, V, MASK.at[..., 0].set(True), jnp.linspace(0.5, 2, 4)),
        "attention_weighted",
    ),
    "pruned": (pruned, (Q, K, V, BIAS), "attention_weighted"),
    "perceiver": (cross_attention, (Q, K, V, MASK, BIAS), "attention_biased_and_masked"),
    "decoder": (decoder_with_positions, (Q, K, V, BIAS), "attention_biased_and_masked"),
    "jax bias of heads": (jaxs, (Q, K, V, BIAS[:1]), "attention_of_jax_biased"),
    "jax bias causal": (
        lambda q, k, v, b: jaxs(q, k, v, b, is_causal=True),
        (Q, K, V, BIAS),
        "attention_of_jax_biased",
    ),
    "jax mask causal": (
        lambda q, k, v, m: jaxs(q, k, v, mask=m, is_causal=True),
        (Q, K, V, MASK.at[..., 0].set(True)),
        "attention_of_jax_masked",
    ),
    "jax mask of keys": (
        lambda q, k, v, m: jaxs(q, k, v, mask=m),
        (Q, K, V, MASK.at[..., 0].set(True)[:1, :1, :1]),
        "attention_of_jax_masked",
    ),
    "jax bias and mask": (jaxs, (Q, K, V, BIAS, MASK), BOTH),
    "jax bias and mask of keys": (jaxs, (Q, K, V, BIAS[:1], KEYS), BOTH),
    "jax bias, mask and causal": (
        lambda q, k, v, b, m: jaxs(q, k, v, b, m, is_causal=True),
        (Q, K, V, BIAS, MASK.at[..., 0].set(True)),
        BOTH,
    ),
    "equinox heads": (
        lambda x: jax.vmap(of_equinox)(jnp.stack([x, 2 * x])),
        (X[0],),
        "attention_by_heads",
    ),
    "haiku mask": (haiku, (Q, K, V, MASK), "attention_scaled_masked"),
    "alibi": (alibi, (*heads_first(Q, K, V), BIAS), "attention_scaled_biased"),
}


@pytest.mark.parametrize(
    "form",
    ["equinox mask", "jax causal", "alibi", "textbook", "textbook, one head", "bert"],
)
def test_attention_of_a_library_is_found(form):
    """As in the slow tests below, of a few patterns: to look for all of them takes longer."""
    fn, args, name = FORMS[form.removesuffix(", one head")]
    if form.startswith("textbook"):
        args, name = (*heads_first(Q, K, V), MASK), "attention_scaled_masked"
    if form.endswith("one head"):
        args = [x[:, 1] for x in args]
    few, answers = spied(rules, ["attention_by_heads", name])
    got = jaxrewrite.transform(fn, rules=few)(*args)
    assert answers == [name]
    close(got, fn(*args), 2e-5)


def test_each_rule_has_three_programs():
    met = [name for *_, name in FORMS.values()]
    names = {pattern.fn.__name__ for pattern in rules.patterns}
    assert {name for name in met if met.count(name) >= 3} == names


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_attention_of_libraries_is_found(form):
    fn, args, name = FORMS[form]
    check(fn, *args, name=name)


def test_logits_are_divided_by_a_number_that_the_program_is_given():
    def cooled(q, k, v, temperature):
        return jax.nn.softmax(q @ k.T / temperature) @ v

    q, k, v = Q[0, :, 0], K[0, :, 0], V[0, :, 0]
    assert found(cooled, q, k, v, jnp.float32(2)) == ["attention_scaled"]
    got = jaxrewrite.transform(cooled, rules=patterns.attention)(q, k, v, jnp.float32(2))
    np.testing.assert_allclose(got, cooled(q, k, v, 2), rtol=1e-4)


@pytest.mark.slow
def test_a_query_that_sees_nothing_is_nan_where_it_was():
    args = (*heads_first(Q, K, V), MASK)
    got = jaxrewrite.transform(textbook, rules=rules)
    assert found(textbook, *args) == ["attention_scaled_masked"]
    close(got(*args), textbook(*args), 1e-5)
    assert np.isnan(got(*args)).any()

    def gradient(fn):
        scalar = lambda q, k, v: jnp.sum(jnp.sin(fn(q, k, v, MASK)))
        return jax.grad(scalar, (0, 1, 2))(*args[:3])

    close(gradient(got), gradient(textbook), 1e-5)


def test_a_mask_and_a_bias_hide_all_keys_together():
    """A query that sees no key besides padding is NaN, and not the mean of what is hidden."""

    def padded(q, k, v):
        bias = jnp.where(CAUSAL, 0, -jnp.inf)
        return jax.nn.softmax(jnp.where(visible, q @ k.T + bias, -jnp.inf)) @ v

    q, visible = X[0], jnp.arange(6) > 0
    few, answers = spied(rules, ["attention_biased_and_masked"])
    got = jaxrewrite.transform(padded, rules=few)(q, q, q)
    assert len(answers) == 1
    assert np.isnan(got[0]).all()
    close(got, padded(q, q, q), 1e-5)


def test_attention_without_heads_stays():
    def textbook_of(q):
        return jax.nn.softmax(q @ jnp.swapaxes(q, -1, -2)) @ q

    few, _ = spied(rules, ["attention"])
    got = jaxrewrite.transform(textbook_of, rules=few)(jnp.ones((2, 0, 3, 4)))
    assert got.shape == (2, 0, 3, 4)


@pytest.mark.parametrize("sizes, taken", [((4, 6), "cudnn"), ((1, 6), None)])
def test_cudnn_is_asked_for_what_it_takes(sizes, taken, monkeypatch):
    """It needs a GPU, so this looks at what it would get."""
    asked = []

    def stand_in(*args, implementation, **kwargs):
        asked.append(implementation)
        if implementation == "cudnn":
            assert type(kwargs["scale"]) is float  # It takes no scale that is computed.
        return jaxs(*args, **kwargs)

    monkeypatch.setattr(jax.nn, "dot_product_attention", stand_in)
    q, k, v = (normal(i, 2, n, 4, 8, dtype="bfloat16") for i, n in enumerate((4, 6, 6)))
    bias = normal(3, 2, 4, *sizes, dtype="bfloat16")
    for fn in (lambda q, k, v, bias: linen(q, k, v, bias=bias), graphormer):
        asked.clear()
        run = jaxrewrite.transform(fn, rules=patterns.attention_rules("cudnn"))
        close(run(q, k, v, bias), fn(q, k, v, bias), 0.05)
        assert set(asked) - {"xla"} == {taken}  # XLA's is what the table looks for.


def other(weights, softmax=jax.nn.softmax, output="...hqk,...khd->...qhd"):
    return lambda q, k, v: jnp.einsum(output, softmax(weights(q, k)), v)


def products(q, k):
    return jnp.einsum("...qhd,...khd->...hqk", q, k)


def named(w):
    return jax.ad_checkpoint.checkpoint_name(jax.nn.softmax(w), "weights")


OTHER = {
    "another axis": other(products, functools.partial(jax.nn.softmax, axis=-2)),
    "log": other(products, jax.nn.log_softmax),
    "sigmoid": other(products, jax.nn.sigmoid),
    "where": other(products, lambda w: jax.nn.softmax(w, where=w > 0)),
    "checkpoint_name": other(products, named),
    "barrier": other(products, lambda w: jax.nn.softmax(jax.lax.optimization_barrier(w))),
    "dropout": other(
        products,
        lambda w: (
            jax.nn.softmax(w)
            * jax.random.bernoulli(jax.random.key(0), 0.9, w.shape).astype(w.dtype)
        ),
    ),
    "escaping weights": lambda q, k, v: (
        lambda w: (w, jnp.einsum("...hqk,...khd->...qhd", w, v))
    )(jax.nn.softmax(products(q, k))),
    "capped": other(lambda q, k: jnp.tanh(products(q, k) / 30) * 30, jax.nn.softmax),
    "temperatures": other(lambda q, k: products(q, k) * jnp.ones((4, 1, 1))),
    "shorter": other(
        products, lambda w: jax.nn.softmax(w.astype("bfloat16")).astype("float32")
    ),
    "precision": other(
        lambda q, k: jnp.einsum("...qhd,...khd->...hqk", q, k, precision="highest")
    ),
    "high fill": other(lambda q, k: jnp.where(products(q, k) > 0, products(q, k), -10.0)),
    "float64": lambda q, k, v: linen(*(x.astype("float64") for x in (q, k, v))),
    "float16": lambda q, k, v: linen(
        *(x.astype("float16") for x in (q, k, v)), BIAS.astype("float16")
    ),
    "other values": lambda q, k, v: linen(q, k, v[..., :3]),
    "linear": other(products, lambda w: w / w.sum(-1, keepdims=True)),
}


@pytest.mark.slow
def test_what_only_looks_like_attention_stays():
    with jax.enable_x64(True):
        assert {name: found(fn, Q, K, V) for name, fn in OTHER.items()} == {
            name: [] for name in OTHER
        }


@pytest.mark.slow
def test_weights_of_projections_stay_implicit():
    lora = Lora(normal(6, 8, 8), normal(7, 8, 2), normal(8, 2, 8), 1.0)

    def fn(w, x):
        q = (x @ w).reshape(2, 6, 4, 2)
        return linen(q, q, q)

    got = jaxrewrite.transform(fn, rules=rules, materialise="forbid")(lora, X)
    close(got, fn(lora.materialise(), X), 1e-5)
    assert "attention" in found(fn, lora, X)


def test_layers_share_the_body_of_one_call():
    def two(q, k, v):
        return linen(linen(q, k, k), k, v)

    jaxpr = jaxrewrite.make_jaxpr(two, rules=rules)(Q, K, V).jaxpr
    calls = [e for e in jaxpr.eqns if e.params.get("name") == "dot_product_attention"]
    assert len(calls) == 2
    assert calls[0].params["jaxpr"] is calls[1].params["jaxpr"]
    assert "exp" not in {eqn.primitive.name for eqn in jaxpr.eqns}


def test_a_product_of_vectors_in_bfloat16_compiles():
    """XLA has no code for what the function of JAX computes of them, with JAX 0.10."""

    def one_head(q, k, v):
        return jax.nn.softmax(q @ k.T, axis=-1) @ v

    few, answers = spied(rules, ["attention"])
    attend = jax.jit(jaxrewrite.transform(one_head, rules=few))
    for queries, keys, size in [(1, 1, 4), (1, 1, 1), (1, 3, 1), (3, 1, 1), (2, 3, 1)]:
        q, k = (normal(8, n, size).astype("bfloat16") for n in (queries, keys))
        close(attend(q, k, k), one_head(q, k, k), 1e-2)
    assert len(answers) == 1


@pytest.mark.parametrize(
    ("queries", "bias"), [((2, 1, 4, 8), (2, 4, 5, 6)), ((1, 1, 4, 8), (4, 4, 1, 6))]
)
def test_a_bias_of_more_queries_or_elements_stays(queries, bias):
    """It has the logits of each of them, and the result is of their shape."""

    def attention(q, k, v, bias):
        logits = jnp.einsum("...qhd,...khd->...hqk", q, k) + bias
        return jnp.einsum("...hqk,...khd->...qhd", jax.nn.softmax(logits), v)

    kept = K[: queries[0]]
    args = normal(0, *queries), kept, kept, normal(1, *bias)
    assert not found(attention, *args)
    got = jaxrewrite.transform(attention, rules=rules)(*args)
    assert_same(got, attention(*args), 1e-5)

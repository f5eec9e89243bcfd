"""GPT-2 and T5 of Hugging Face: adapters on 8-bit weights, a training step, and generation.

The models are those of transformers, unchanged, in a small random configuration. Nothing in
them becomes dense: neither in the forward pass and the gradient, nor in `generate`, which gives
the tokens that the dense weights give.

Run it with ``python docs/examples/hugging_face.py [--plot FILE]``. It needs transformers 4.57,
which is the last release with Flax, flax 0.12.8, Python 3.11, JAX 0.10.2, optax and, for the
figure, matplotlib.
"""

import argparse
import functools
from collections.abc import Callable
from typing import Any, TypeAlias
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax
import transformers
from jax.typing import ArrayLike

import jaxrewrite
from jaxrewrite.values import Lora, adapt, combine, freeze, nbytes, partition, quantise


Params: TypeAlias = dict[str, Any]
# The logits for parameters and tokens.
Call: TypeAlias = Callable[[Params, jax.Array], jax.Array]


def gpt2() -> tuple[transformers.FlaxPreTrainedModel, Call]:
    config = transformers.GPT2Config(64, 32, 64, 2, 4, bos_token_id=0, eos_token_id=63)
    model = transformers.FlaxGPT2LMHeadModel(config)

    def call(params: Params, x: jax.Array) -> jax.Array:
        output: Any = model(x, params=params)
        return jnp.asarray(output.logits)

    return model, call


def t5() -> tuple[transformers.FlaxPreTrainedModel, Call]:
    config = transformers.T5Config(
        64,
        64,
        16,
        128,
        num_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
        tie_word_embeddings=False,
    )
    model = transformers.FlaxT5ForConditionalGeneration(config)

    def call(params: Params, x: jax.Array) -> jax.Array:
        output: Any = model(x, decoder_input_ids=x, params=params)
        return jnp.asarray(output.logits)

    return model, call


def show(model: transformers.FlaxPreTrainedModel, call: Call) -> tuple[str, list[float]]:
    is_weight = lambda path, leaf: leaf.ndim == 2 and path.endswith(("kernel", "embedding"))
    is_kernel = lambda path, leaf: leaf.ndim == 2 and path.endswith("kernel")
    params = quantise(model.params, is_weight, axis=-1)
    params = adapt(params, is_kernel, rank=4, key=jax.random.key(0))
    tokens = jnp.asarray(np.random.default_rng(0).integers(1, 63, (4, 8)))

    implicit = jaxrewrite.transform(call, materialise="forbid")
    trained, rest = partition(params, freeze(params, {Lora: ["w"]}, rest="freeze"))
    optimiser = optax.adam(1e-2)

    def loss(call: Call, params: Params) -> jax.Array:
        logits = call(params, tokens)[:, :-1]
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
        return jnp.mean(losses)

    @jax.jit
    def step(
        trained: optax.Params, moments: optax.OptState
    ) -> tuple[optax.Params, optax.OptState, jax.Array]:
        of_trained = lambda trained: loss(implicit, combine(trained, rest))
        value, gradient = jax.value_and_grad(of_trained)(trained)
        updates, moments = optimiser.update(gradient, moments, trained)
        return optax.apply_updates(trained, updates), moments, value

    moments, losses = optimiser.init(trained), []
    for _ in range(20):
        trained, moments, value = step(trained, moments)
        losses.append(float(value))
    assert losses[-1] < 0.9 * losses[0]

    params, compiled = combine(trained, rest), jax.jit(loss, static_argnums=0)
    dense = jaxrewrite.materialise(params)
    np.testing.assert_allclose(compiled(implicit, params), compiled(call, dense), rtol=1e-4)

    def generate(params: Params, tokens: jax.Array) -> jax.Array:
        generated: Any = model.generate(
            tokens, params=params, max_new_tokens=6, do_sample=False, pad_token_id=0
        )
        return jnp.asarray(generated.sequences)

    got = jax.jit(jaxrewrite.transform(generate, materialise="forbid"))(params, tokens)
    np.testing.assert_array_equal(got, jax.jit(generate)(dense, tokens))
    name = model.config.model_type
    print(
        f"{name}: {nbytes(params)}; the loss goes from {losses[0]:.2f} to {losses[-1]:.2f};"
    )
    print(f"    generated, as by dense weights: {got[0, -6:].tolist()}")
    return name, losses


def clip(
    new: Callable[..., jax.Array],
    x: jax.Array,
    *limits: ArrayLike,
    a_min: ArrayLike | None = None,
    a_max: ArrayLike | None = None,
) -> jax.Array:
    return new(x, *(limits or (a_min, a_max)))


def main(plot: str | None = None) -> None:
    transformers.logging.set_verbosity_error()
    # T5 calls an argument by a name that JAX no longer has.
    with mock.patch.object(jnp, "clip", functools.partial(clip, jnp.clip)):
        losses = dict(show(*make()) for make in (gpt2, t5))
    if plot:
        import matplotlib.pyplot as plt

        figure, axes = plt.subplots(figsize=(4, 3), layout="constrained")
        for name, of_model in losses.items():
            axes.plot(of_model, label=name)
        axes.set(xlabel="step", ylabel="loss", title="Adapters on 8-bit weights")
        axes.legend()
        figure.savefig(plot, dpi=60)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--plot", metavar="FILE", help="draw the figure to this file")
    main(parser.parse_args().plot)

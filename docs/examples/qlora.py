"""QLoRA end to end: adapters on a four-bit base, stopped and resumed bit for bit.

A small transformer of Flax is trained to count by threes. Its kernels become NF4, of 4.13 bits
an entry, and get adapters. AdamW then trains the adapters alone, until the model counts by
fives. Its state is that of the adapters. A second run is stopped half-way, loads all from a
file of safetensors, and goes on: losses and adapters are those of the first run, bit for bit.
All of that is then done with the moments of AdamW in 8 bits: the losses differ by less than 1% at
each step.

Run it with ``python docs/examples/qlora.py [--plot FILE]``. It needs flax, optax, safetensors
and, for the figure, matplotlib.
"""

import argparse
import pathlib
import tempfile
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxrewrite
from jaxrewrite.checkpoints import load, save
from jaxrewrite.values import (
    Lora,
    adapt,
    combine,
    freeze,
    nbytes,
    partition,
    quantise,
    quantised_moments,
)


VOCABULARY, WIDTH, STEPS, STOP = 64, 128, 60, 30

# A step of training: adapters, moments, frozen leaves, and the number of the step.
Update: TypeAlias = Callable[
    [optax.Params, optax.OptState, optax.Params, int],
    tuple[optax.Params, optax.OptState, jax.Array],
]


class Model(nn.Module):  # an ordinary model, which knows nothing of all this
    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = nn.Embed(VOCABULARY, WIDTH)(tokens)
        for _ in range(2):
            qkv = nn.Dense(3 * WIDTH)(nn.LayerNorm()(x)).reshape(*x.shape[:-1], 3, 4, -1)
            mixed = jax.nn.dot_product_attention(*jnp.moveaxis(qkv, -3, 0), is_causal=True)
            x = x + nn.Dense(WIDTH)(mixed.reshape(x.shape))
            x = x + nn.Dense(WIDTH)(nn.gelu(nn.Dense(4 * WIDTH)(nn.LayerNorm()(x))))
        return nn.Dense(VOCABULARY)(x)


def counting(by: int, step: int) -> jax.Array:
    """A batch of sequences that count by a number, from anywhere."""
    first = jax.random.randint(jax.random.key(step), (16, 1), 0, VOCABULARY)
    return (first + by * jnp.arange(12)) % VOCABULARY


def updater(
    apply: Callable[[optax.Params, jax.Array], jax.Array],
    optimiser: optax.GradientTransformation,
    by: int,
) -> Update:
    def loss(trained: optax.Params, rest: optax.Params, step: int) -> jax.Array:
        tokens = counting(by, step)
        logits = apply(combine(trained, rest), tokens[:, :-1])
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
        return jnp.mean(losses)

    @jax.jit
    def update(
        trained: optax.Params, moments: optax.OptState, rest: optax.Params, step: int
    ) -> tuple[optax.Params, optax.OptState, jax.Array]:
        value, gradient = jax.value_and_grad(loss)(trained, rest, step)
        change, moments = optimiser.update(gradient, moments, trained)
        return optax.apply_updates(trained, change), moments, value

    return update


def train(
    update: Update,
    trained: optax.Params,
    moments: optax.OptState,
    rest: optax.Params,
    start: int,
    stop: int,
) -> tuple[optax.Params, optax.OptState, list[float]]:
    losses = []
    for step in range(start, stop):
        trained, moments, value = update(trained, moments, rest, step)
        losses.append(float(value))
    return trained, moments, losses


# As Flax has it, parameters are any nested dictionaries, and results may be pairs.
def model(params: Any, tokens: jax.Array) -> jax.Array:
    logits = Model().apply(params, tokens)
    assert isinstance(logits, jax.Array)
    return logits


def initial(params: optax.Params) -> optax.Params:
    """The trained model in four bits, with adapters that do not change it yet."""
    is_kernel = lambda path, leaf: path.endswith("kernel")
    params = quantise(params, is_kernel, "nf4")
    return adapt(params, is_kernel, rank=8, key=jax.random.key(1))


def train_twice(
    implicit: Callable[[Any, jax.Array], jax.Array],
    optimiser: optax.GradientTransformation,
    trained: optax.Params,
    rest: optax.Params,
) -> tuple[optax.Params, optax.OptState, list[float], list[float]]:
    """Train the adapters, and once more with a stop. Also returns the losses after it."""
    update = updater(implicit, optimiser, by=5)
    start = trained, optimiser.init(trained), rest
    adapted, moments, losses = train(update, *start, 0, STEPS)
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "state.safetensors"
        trained, state, before = train(update, *start, 0, STOP)
        save(file, (trained, state, rest))
        trained, state, rest = load(file, like=jax.eval_shape(lambda: start))
    resumed, state, after = train(update, trained, state, rest, STOP, STEPS)
    assert before + after == losses
    first, second = (
        jax.tree.leaves(numbers) for numbers in ((adapted, moments), (resumed, state))
    )
    assert all(map(is_same, first, second))
    return adapted, moments, losses, after


def is_same(x: jax.Array, y: jax.Array) -> bool:
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x, y = jax.random.key_data(x), jax.random.key_data(y)
    return np.array_equal(x, y)


def main(plot: str | None = None) -> None:
    dense = Model().init(jax.random.key(0), counting(3, 0))
    nothing = jax.tree.map(lambda _: None, dense)
    optimiser = optax.adamw(3e-3)
    update = updater(model, optimiser, by=3)
    dense, full_moments, losses = train(
        update, dense, optimiser.init(dense), nothing, 0, 100
    )
    print(f"The dense model counts by threes: loss {losses[0]:.2f} to {losses[-1]:.2f}.")

    params = initial(dense)
    trained, rest = partition(params, freeze(params, {Lora: ["w"]}, rest="freeze"))
    implicit = jaxrewrite.transform(model, materialise="forbid")
    adapted, moments, losses, after = train_twice(implicit, optimiser, trained, rest)
    print(f"Its adapters count by fives: loss {losses[0]:.2f} to {losses[-1]:.2f}.")
    assert losses[-1] < 0.1 * losses[0]

    small = quantised_moments(optimiser, jax.random.key(2), least=1024)
    _, small_moments, small_losses, _ = train_twice(implicit, small, trained, rest)
    off = np.abs(np.divide(small_losses, losses) - 1)
    assert off.max() < 0.01
    print("Runs that were stopped and loaded from a file give the same, bit for bit.")

    def megabytes(tree: optax.Params) -> float:
        return nbytes(jax.tree.leaves(tree)).implicit / 1e6

    full = [megabytes(tree) for tree in (dense, dense, full_moments)]
    qlora = [megabytes(tree) for tree in (params, adapted, moments)]
    print(
        f"Moments in 8 bits: {megabytes(small_moments):.2f} MB in place of "
        f"{megabytes(moments):.2f}, and losses that differ by "
        f"{np.median(off):.2%} at the median step, and by {off.max():.2%} at most."
    )
    kinds = "weights", "gradients", "moments"
    for kind, *sizes in zip(kinds, full, qlora, strict=True):
        print("{:10}{:6.2f} MB in full training,{:6.2f} MB in QLoRA".format(kind, *sizes))
    assert qlora[0] < full[0] / 3 and sum(qlora) < sum(full) / 5
    leaves = jax.tree.leaves(params, is_leaf=lambda x: isinstance(x, Lora))
    kernels = [x.w for x in leaves if isinstance(x, Lora)]
    bits = 8 * nbytes(kernels).implicit / sum(w.size for w in kernels)
    assert bits < 4.2
    print(f"The kernels of the base take {bits:.2f} bits an entry.")
    if plot:
        draw(plot, losses, after, kinds, full, qlora)


def draw(
    plot: str,
    losses: list[float],
    after: list[float],
    kinds: Sequence[str],
    full: list[float],
    qlora: list[float],
) -> None:
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
    left.semilogy(losses, label="without a break")
    left.semilogy(range(STOP, STEPS), after, "x", label="resumed")
    left.set(xlabel="step", ylabel="loss")
    left.legend()
    bottom = np.zeros(2)
    for kind, *sizes in zip(kinds, full, qlora, strict=True):
        right.bar(["full", "QLoRA"], sizes, bottom=bottom, label=kind)
        bottom += sizes
    right.set(ylabel="MB")
    right.legend()
    figure.savefig(plot, dpi=60)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--plot", metavar="FILE", help="draw the figure to this file")
    main(parser.parse_args().plot)

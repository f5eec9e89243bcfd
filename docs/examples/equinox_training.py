"""Equinox: adapters on four-bit weights of a module, trained by filters, and stored.

`adapt` and `quantise` replace weights of a module by values. The module stays a module:
`eqx.partition` separates the adapters from the rest by the labels of `freeze`,
`eqx.filter_value_and_grad` differentiates them, `eqx.filter_jit` compiles the step, and
`eqx.tree_serialise_leaves` stores what `to_storable` makes of the module, and `from_storable`
checks that a file fits it.

Run it with ``python docs/examples/equinox_training.py [--plot FILE]``. It needs equinox, optax
and, for the figure, matplotlib.
"""

import argparse
import io

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxrewrite
from jaxrewrite.checkpoints import from_storable, to_storable
from jaxrewrite.values import Lora, adapt, freeze, nbytes, quantise


def initial(key: jax.Array) -> eqx.nn.MLP:
    keys = jax.random.split(key)
    model = eqx.nn.MLP(64, 64, 128, 2, key=keys[0])  # knows nothing of all this
    is_weight = lambda path, leaf: path.endswith("weight")
    model = quantise(model, is_weight, "nf4")
    adapted: eqx.nn.MLP = adapt(model, is_weight, rank=4, key=keys[1])
    return adapted


def call(model: eqx.nn.MLP, x: jax.Array) -> jax.Array:
    results: jax.Array = jax.vmap(model)(x)
    return results


def main(plot: str | None = None) -> None:
    model = initial(jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (32, 64))
    y = jnp.sin(3 * x)
    implicit = jaxrewrite.transform(call, materialise="forbid")
    labels = freeze(model, {Lora: ["w"]}, rest="freeze")
    adapters = jax.tree.map(lambda label: label == "train", labels)
    trained, rest = eqx.partition(model, adapters)

    def loss(trained: eqx.nn.MLP, x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.mean((implicit(eqx.combine(trained, rest), x) - y) ** 2)

    def dense_loss(trained: eqx.nn.MLP, x: jax.Array, y: jax.Array) -> jax.Array:
        dense = jaxrewrite.materialise(eqx.combine(trained, rest))
        return jnp.mean((call(dense, x) - y) ** 2)

    got, want = (
        eqx.filter_jit(eqx.filter_grad(f))(trained, x, y) for f in (loss, dense_loss)
    )
    compare = lambda g, w: np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-6)
    jax.tree.map(compare, got, want)
    print("The gradient of the adapters is that of the dense program.")

    optimiser = optax.adam(1e-2)

    @eqx.filter_jit
    def step(
        trained: eqx.nn.MLP, moments: optax.OptState
    ) -> tuple[eqx.nn.MLP, optax.OptState, jax.Array]:
        value, gradient = eqx.filter_value_and_grad(loss)(trained, x, y)
        arrays = eqx.filter(trained, eqx.is_array)
        updates, moments = optimiser.update(gradient, moments, arrays)
        return eqx.apply_updates(trained, updates), moments, value

    moments, losses = optimiser.init(trained), []
    for _ in range(60):
        trained, moments, value = step(trained, moments)
        losses.append(float(value))
    assert losses[-1] < 0.5 * losses[0]
    print(f"The loss goes from {losses[0]:.2f} to {losses[-1]:.2f}.")

    model, file = eqx.combine(trained, rest), io.BytesIO()
    eqx.tree_serialise_leaves(file, to_storable(model))
    size = file.tell()
    file.seek(0)
    like = eqx.filter_eval_shape(initial, jax.random.key(0))
    stored = eqx.tree_deserialise_leaves(file, to_storable(like))
    loaded = from_storable(stored, like)
    np.testing.assert_array_equal(implicit(loaded, x), implicit(model, x))
    print(f"{nbytes(model)}. A file of {size / 1e3:.0f} kB holds the same module.")
    if plot:
        import matplotlib.pyplot as plt

        figure, axes = plt.subplots(figsize=(4, 3), layout="constrained")
        axes.semilogy(losses)
        axes.set(xlabel="step", ylabel="loss", title="Adapters on four-bit weights")
        figure.savefig(plot, dpi=60)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--plot", metavar="FILE", help="draw the figure to this file")
    main(parser.parse_args().plot)

"""Optax: a frozen base of integers, adapters and biases with optimisers of their own.

There are two ways to train parts of a model. `partition` takes the frozen leaves away, and any
optimiser sees the rest. `train_only` wraps an optimiser, so that it takes all parameters and
their gradients, as code that updates whole models needs it. Both give moments to the trained
leaves alone, and both give the same numbers. `optax.multi_transform` by itself does neither:
`optax.apply_updates` can't add the float0 derivatives of integers. Within `train_only` it gives
adapters and biases different optimisers.

Run it with ``python docs/examples/optax_partition.py [--plot FILE]``. It needs optax and, for
the figure, matplotlib.
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxrewrite
from jaxrewrite.values import Lora, adapt, combine, freeze, partition, quantise, train_only


def model(params, x):  # an ordinary model, which knows nothing of all this
    return jnp.tanh(x @ params["up"] + params["bias"]) @ params["down"]


def initial():
    keys = jax.random.split(jax.random.key(0), 3)
    up, down = (jax.random.normal(key, (64, 64)) / 8 for key in keys[:2])
    params = {"up": up, "bias": jnp.zeros(64), "down": down}
    is_kernel = lambda path, leaf: path in ("up", "down")
    return adapt(quantise(params, is_kernel, axis=-1), is_kernel, rank=4, key=keys[2])


X = jax.random.normal(jax.random.key(1), (32, 64))
IMPLICIT = jaxrewrite.transform(model, materialise="forbid")
LABELS = lambda params: freeze(params, {Lora: ["w"]})


def loss(params):
    return jnp.mean((IMPLICIT(params, X) - jnp.roll(X, 1, 0)) ** 2)


def by_parts(optimiser, steps):
    """Take the frozen leaves away from the gradient and from the optimiser."""
    params = initial()
    trained, rest = partition(params, LABELS(params))
    state, losses = optimiser.init(trained), []

    @jax.jit
    def step(trained, state):
        value, gradient = jax.value_and_grad(lambda part: loss(combine(part, rest)))(
            trained
        )
        updates, state = optimiser.update(gradient, state, trained)
        return optax.apply_updates(trained, updates), state, value

    for _ in range(steps):
        trained, state, value = step(trained, state)
        losses.append(float(value))
    return combine(trained, rest), state, losses


def as_a_whole(optimiser, steps):
    """Give the optimiser all parameters, and derivatives of all leaves."""
    params, losses = initial(), []
    optimiser = train_only(optimiser, LABELS)
    state = optimiser.init(params)

    @jax.jit
    def step(params, state):
        value, gradient = jax.value_and_grad(loss, allow_int=True)(params)
        updates, state = optimiser.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, value

    for _ in range(steps):
        params, state, value = step(params, state)
        losses.append(float(value))
    return params, state, losses


def of_both(params):
    """Which optimiser each trained leaf has."""
    kind = lambda path, leaf: "bias" if "bias" in jax.tree_util.keystr(path) else "adapter"
    return jax.tree_util.tree_map_with_path(kind, params)


def main(plot=None):
    before, curves = initial(), {}
    adamw = optax.adamw(1e-2)
    one = by_parts(adamw, 40)
    other = as_a_whole(adamw, 40)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-4, 1e-6), one, other)
    curves["AdamW"] = other[2]
    trained = partition(before, LABELS(before))[0]
    size = lambda tree: sum(x.nbytes for x in jax.tree.leaves(tree))
    assert size(other[1]) == 2 * size(trained) + 4
    print(f"Both ways give the same. The state takes {size(other[1])} bytes.")

    both = {"adapter": optax.adamw(1e-2), "bias": optax.sgd(1.0)}
    params, _, curves["two optimisers"] = as_a_whole(
        optax.multi_transform(both, of_both), 40
    )
    same = jax.tree.map(np.array_equal, before, params)
    assert same["up"].w.q and same["up"].w.scale and not same["up"].a and not same["bias"]
    print("The base is as it was; the adapters and the biases are not.")
    for name, losses in curves.items():
        print(f"{name}: the loss goes from {losses[0]:.2f} to {losses[-1]:.2f}.")
        assert losses[-1] < 0.8 * losses[0]
    if plot:
        import matplotlib.pyplot as plt

        figure, axes = plt.subplots(figsize=(4, 3), layout="constrained")
        for name, losses in curves.items():
            axes.plot(losses, label=name)
        axes.set(xlabel="step", ylabel="loss", title="Adapters and biases")
        axes.legend()
        figure.savefig(plot, dpi=60)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plot", metavar="FILE", help="draw the figure to this file")
    main(parser.parse_args().plot)

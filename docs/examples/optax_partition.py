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
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxrewrite
from jaxrewrite.values import Lora, adapt, combine, freeze, partition, quantise, train_only


Params: TypeAlias = dict[str, jax.Array]


# An ordinary model, which knows nothing of all this.
def model(params: Params, x: jax.Array) -> jax.Array:
    return jnp.tanh(x @ params["up"] + params["bias"]) @ params["down"]


def initial() -> Params:
    keys = jax.random.split(jax.random.key(0), 3)
    up, down = (jax.random.normal(key, (64, 64)) / 8 for key in keys[:2])
    params = {"up": up, "bias": jnp.zeros(64), "down": down}
    is_kernel = lambda path, leaf: path in ("up", "down")
    params = quantise(params, is_kernel, axis=-1)
    adapted: Params = adapt(params, is_kernel, rank=4, key=keys[2])
    return adapted


def train(
    loss: Callable[[Any], jax.Array],
    params: optax.Params,
    optimiser: optax.GradientTransformation,
    allow_int: bool = False,
) -> tuple[optax.Params, optax.OptState, list[float]]:
    state = optimiser.init(params)
    losses: list[float] = []

    @jax.jit
    def step(
        params: optax.Params, state: optax.OptState
    ) -> tuple[optax.Params, optax.OptState, jax.Array]:
        value, gradient = jax.value_and_grad(loss, allow_int=allow_int)(params)
        updates, state = optimiser.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, value

    for _ in range(40):
        params, state, value = step(params, state)
        losses.append(float(value))
    return params, state, losses


def which(params: Params) -> dict[str, str]:
    """Which optimiser each trained leaf has."""
    kind = lambda path, leaf: "bias" if "bias" in jax.tree_util.keystr(path) else "adapter"
    kinds: dict[str, str] = jax.tree_util.tree_map_with_path(kind, params)
    return kinds


def main(plot: str | None = None) -> None:
    params = initial()
    curves: dict[str, list[float]] = {}
    implicit = jaxrewrite.transform(model, materialise="forbid")
    x = jax.random.normal(jax.random.key(1), (32, 64))
    y = jnp.roll(x, 1, 0)

    def loss(params: Params) -> jax.Array:
        return jnp.mean((implicit(params, x) - y) ** 2)

    labels: Callable[[Params], Any] = lambda params: freeze(params, {Lora: ["w"]})
    adamw = optax.adamw(1e-2)

    trained, rest = partition(params, labels(params))
    part, moments, _ = train(lambda part: loss(combine(part, rest)), trained, adamw)
    whole, state, curves["AdamW"] = train(
        loss, params, train_only(adamw, labels), allow_int=True
    )
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    jax.tree.map(close, (combine(part, rest), moments), (whole, state))

    def size(tree: optax.Params) -> int:
        return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))

    assert size(state) == 2 * size(trained) + 4  # The count of steps takes 4 bytes.
    print(f"Both ways give the same. The state takes {size(state)} bytes.")

    two = optax.multi_transform({"adapter": adamw, "bias": optax.sgd(1.0)}, which)
    both = train_only(two, labels)
    after, _, curves["two optimisers"] = train(loss, params, both, allow_int=True)
    same = jax.tree.map(np.array_equal, params, after)
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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--plot", metavar="FILE", help="draw the figure to this file")
    main(parser.parse_args().plot)

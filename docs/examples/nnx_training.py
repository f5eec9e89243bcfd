"""Adapters on a Flax nnx model whose layers are scanned over and rematerialised.

The kernels of the stacked layers become adapters on 8-bit weights, inside of their `nnx.Param`.
The model does not change: `nnx.scan`, `nnx.remat` and `nnx.value_and_grad` take it as it is.
`train_only` lets `nnx.Optimizer` train the adapters alone, so that moments exist for them only.
`nnx.Optimizer` takes a pytree in a moment apart, so `optax.flatten` makes the moments one array.

Run it with ``python docs/examples/nnx_training.py [--plot FILE]``. It needs flax, optax and,
for the figure, matplotlib.
"""

import argparse
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import jaxrewrite
from jaxrewrite import Batched
from jaxrewrite.values import Lora, Quantised, freeze, nbytes, train_only


LAYERS, WIDTH = 4, 64


class Block(nnx.Module):  # an ordinary model, which knows nothing of all this
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.up = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs)
        self.down = nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return x + self.down(nnx.gelu(self.up(x)))


class Model(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        new = nnx.split_rngs(splits=LAYERS)(nnx.vmap(Block))
        self.blocks = new(rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        layer = nnx.remat(Block.__call__)
        scan = nnx.scan(layer, in_axes=(0, nnx.Carry), out_axes=nnx.Carry)
        result: jax.Array = scan(self.blocks, x)
        return result


def adapted(kernels: jax.Array, key: jax.Array) -> Lora | Batched:
    """Stacked kernels as one value: 8-bit integers and adapters for each layer."""
    _, rows, columns = kernels.shape
    factors = jax.random.normal(key, (LAYERS, rows, 4)) / rows**0.5
    zeros = jnp.zeros((4, columns))
    layers = zip(kernels, factors, strict=True)
    return jaxrewrite.stack(
        [Lora(Quantised.quantise(w, axis=-1), a, zeros) for w, a in layers]
    )


def main(plot: str | None = None) -> None:
    model = Model(nnx.Rngs(0))
    for i, linear in enumerate([model.blocks.up, model.blocks.down]):
        # To Flax it is an array.
        kernel: Any = adapted(linear.kernel[...], jax.random.key(i))
        linear.kernel = nnx.Param(kernel)
    call = jaxrewrite.transform(Model.__call__, materialise="forbid")
    x = jax.random.normal(jax.random.key(2), (32, WIDTH))
    graph, state = nnx.split(model)
    dense = nnx.merge(graph, jaxrewrite.materialise(state))
    np.testing.assert_allclose(call(model, x), dense(x), rtol=1e-4, atol=1e-4)
    print("The model with adapters and 8-bit weights gives what the dense model gives.")

    before = nnx.to_pure_dict(state)
    only_adapters = lambda params: freeze(params, {Lora: ["w"]}, rest="freeze")
    adam = train_only(optax.flatten(optax.adam(3e-3)), only_adapters)
    optimiser = nnx.Optimizer(model, adam, wrt=nnx.Param)

    @nnx.jit
    def step(
        model: Model, optimiser: nnx.Optimizer[Model], x: jax.Array, y: jax.Array
    ) -> jax.Array:

        def loss(model: Model) -> jax.Array:
            return jnp.mean((call(model, x) - y) ** 2)

        value, gradient = nnx.value_and_grad(loss, allow_int=True)(model)
        optimiser.update(model, gradient)
        return jnp.asarray(value)

    losses = [float(step(model, optimiser, x, jnp.roll(x, 1, -1))) for _ in range(40)]
    assert losses[-1] < 0.5 * losses[0]
    print(f"The loss goes from {losses[0]:.2f} to {losses[-1]:.2f}.")

    after = nnx.to_pure_dict(nnx.state(model))
    same = jax.tree.map(np.array_equal, before, after)["blocks"]["up"]["kernel"]
    assert same.w.q and same.w.scale and not same.a and not same.b
    print("The integers and their scales are as they were.")
    params = nbytes(after)
    moments = sum(x.nbytes for x in jax.tree.leaves(nnx.state(optimiser)))
    assert moments < params.dense / 4
    print(f"Parameters: {params}. State of the optimiser: {moments / 1e3:.0f} kB.")
    if plot:
        import matplotlib.pyplot as plt

        figure, axes = plt.subplots(figsize=(4, 3), layout="constrained")
        axes.semilogy(losses)
        axes.set(xlabel="step", ylabel="loss", title="Adapters of scanned layers")
        figure.savefig(plot, dpi=60)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--plot", metavar="FILE", help="draw the figure to this file")
    main(parser.parse_args().plot)

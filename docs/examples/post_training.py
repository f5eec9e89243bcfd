"""Post-training quantisation: GPTQ and AWQ for an ordinary scan over layers, against nearest.

A small transformer learns the letters of this documentation. Its weights, stacked for one
`jax.lax.scan`, are then rounded to 4 and to 3 bits: to the nearest, by GPTQ, and by AWQ. The
program knows nothing of it, and has no hooks: what each weight meets is seen by the rewriting. The
loss is that of a page that it was neither trained nor calibrated on. SmoothQuant is for 8 bits in
which what the weights meet is rounded, too.

Run it with ``python docs/examples/post_training.py [--plot FILE]``. It needs optax and, for the
figure, matplotlib.
"""

import argparse
import pathlib
from collections.abc import Iterator
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxrewrite
from jaxrewrite.values import calibrate, nbytes, quantise


LAYERS, WIDTH, HEADS, LENGTH, STEPS, BLOCK = 2, 128, 4, 64, 300, 32
PAGES = pathlib.Path(__file__).parents[1]

Params: TypeAlias = dict[str, Any]


def norm(x: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-6)


def model(params: Params, tokens: jax.Array) -> jax.Array:
    def layer(x: jax.Array, w: Params) -> tuple[jax.Array, None]:
        qkv = (norm(x) @ w["qkv"]).reshape(*x.shape[:-1], 3, HEADS, -1)
        mixed = jax.nn.dot_product_attention(*jnp.moveaxis(qkv, -3, 0), is_causal=True)
        x = x + mixed.reshape(x.shape) @ w["out"]
        return x + jax.nn.gelu(norm(x) @ w["up"]) @ w["down"], None

    x = params["embedding"][tokens] + params["position"][: tokens.shape[1]]
    x, _ = jax.lax.scan(layer, x, params["layers"])
    logits: jax.Array = norm(x) @ params["head"]
    return logits


def loss(params: Params, tokens: jax.Array) -> jax.Array:
    logits = model(params, tokens[:, :-1])
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
    return jnp.mean(losses)


def initial(key: jax.Array) -> Params:
    shapes = {"qkv": (1, 3), "out": (1, 1), "up": (1, 4), "down": (4, 1)}
    keys = jax.random.split(key, 7)
    layers = {
        name: jax.random.normal(k, (LAYERS, n * WIDTH, m * WIDTH)) / (n * WIDTH) ** 0.5
        for k, (name, (n, m)) in zip(keys, shapes.items(), strict=False)
    }
    return {
        "layers": layers,
        "embedding": jax.random.normal(keys[4], (128, WIDTH)) / 2,
        "position": jax.random.normal(keys[5], (LENGTH, WIDTH)) / 2,
        "head": jax.random.normal(keys[6], (WIDTH, 128)) / WIDTH**0.5,
    }


def letters(pages: list[pathlib.Path]) -> np.ndarray:
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    return np.frombuffer(text.encode("ascii", "replace"), np.uint8).astype(np.int32)


def batches(text: np.ndarray, count: int, seed: int) -> Iterator[jax.Array]:
    rng = np.random.default_rng(seed)
    for _ in range(count):
        starts = rng.integers(0, len(text) - LENGTH - 1, 32)
        yield jnp.asarray(np.stack([text[i : i + LENGTH + 1] for i in starts]))


def train(text: np.ndarray) -> Params:
    params = initial(jax.random.key(0))
    optimiser = optax.adamw(optax.cosine_decay_schedule(3e-3, STEPS))

    @jax.jit
    def step(params: Params, state: Any, tokens: jax.Array) -> tuple[Params, Any]:
        updates, state = optimiser.update(jax.grad(loss)(params, tokens), state, params)
        stepped: Any = optax.apply_updates(params, updates)
        return stepped, state

    state = optimiser.init(params)
    for tokens in batches(text, STEPS, 1):
        params, state = step(params, state, tokens)
    return params


def is_weight(path: str, leaf: Any) -> bool:
    return path.startswith("layers") or path == "head"


def to_nearest(params: Params, bits: int) -> Params:
    """Blocks of each layer's own columns: the axes are (layers, summed, columns)."""
    rounded = quantise(params["layers"], lambda *_: True, bits, block=(1, BLOCK, 1))
    head = quantise(params["head"], lambda *_: True, bits, block=(BLOCK, 1))
    return {**params, "layers": rounded, "head": head}


def to_nearest_with_activations(params: Params) -> Params:
    """In 8 bits, as is what the weights meet: a scale for each column of each layer."""
    layers = quantise(
        params["layers"], lambda *_: True, block=(1, None, 1), activations="dynamic"
    )
    head = quantise(params["head"], lambda *_: True, axis=-1, activations="dynamic")
    return {**params, "layers": layers, "head": head}


def main(plot: str | None = None) -> None:
    pages = sorted(PAGES.glob("*.rst"))
    held_out = [page for page in pages if page.name == "how_it_works.rst"]
    text = letters([page for page in pages if page not in held_out])
    params = train(text)
    evaluate = jax.jit(jaxrewrite.transform(loss, materialise="forbid"))
    test = list(batches(letters(held_out), 4, 2))
    data = list(batches(text, 8, 3))

    def mean_loss(params: Params) -> float:
        return float(np.mean([evaluate(params, tokens) for tokens in test]))

    dense = mean_loss(params)
    print(f"In float32: a loss of {dense:.4f}.")
    losses: dict[str, list[float]] = {}
    fitted = params
    bits_tried = (4, 3)
    for bits in bits_tried:
        rounded = to_nearest(params, bits)
        losses.setdefault("nearest", []).append(mean_loss(rounded) - dense)
        for method in ("awq", "gptq"):
            fit = calibrate(
                jax.jit(loss), method=method, where=is_weight, bits=bits, block=BLOCK
            )
            fitted = fit(params, data)
            losses.setdefault(method, []).append(mean_loss(fitted) - dense)
    for name, more in losses.items():
        columns = zip(bits_tried, more, strict=True)
        print(
            f"{name:8}", *(f"{x:.4f} more in {bits} bits" for bits, x in columns), sep="  "
        )
    smooth = calibrate(jax.jit(loss), method="smoothquant", where=is_weight, bits=8)
    whole = [to_nearest_with_activations(params), smooth(params, data)]
    more_in_8_bits = [mean_loss(rounded) - dense for rounded in whole]
    print(
        "{:.5f} more with all in 8 bits to the nearest, {:.5f} by SmoothQuant.".format(
            *more_in_8_bits
        )
    )
    assert more_in_8_bits[1] < more_in_8_bits[0] + 1e-4
    print(f"Layers in 3 bits: {nbytes(fitted['layers'])}.")
    for nearest, fitted_loss in zip(losses["nearest"], losses["gptq"], strict=True):
        assert fitted_loss < 0.8 * nearest
    if plot:
        draw(plot, losses, [f"{bits} bits" for bits in bits_tried])


def draw(plot: str, losses: dict[str, list[float]], labels: list[str]) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(5, 3), layout="constrained")
    for i, (name, more) in enumerate(losses.items()):
        axes.bar(np.arange(len(more)) + 0.25 * (i - 1), more, 0.25, label=name)
    axes.set(xticks=range(len(labels)), xticklabels=labels, ylabel="loss beyond float32")
    axes.legend()
    figure.savefig(plot, dpi=60)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--plot", metavar="FILE", help="draw the figure to this file")
    main(parser.parse_args().plot)

"""Post-training quantisation: GPTQ, AWQ and SmoothQuant for a scan over layers, against nearest.

A small transformer learns the letters of this documentation. Its weights, stacked for one
`jax.lax.scan`, are then rounded to 4 and to 3 bits: to the nearest, by AWQ, and by GPTQ. The
program knows nothing of it, and has no hooks: what each weight meets is seen by the rewriting. The
loss is that of a page that it was neither trained nor calibrated on. SmoothQuant is for weights of
8 bits that round what they meet to 8 bits, too, and is compared with such weights to the nearest:
in this model, and in one that computes the same with a few channels of its activations 30 times as
large, as large language models have them.

Run it with ``python docs/examples/post_training.py [--plot FILE] [--table FILE]``. It needs optax
and, for the figure, matplotlib.
"""

import argparse
import csv
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

# How much larger the loss is, for each method and each way to quantise.
Losses: TypeAlias = dict[str, dict[str, float]]
WITH_ACTIVATIONS, LARGE = "8 bits, activations too", "with large channels"


def norm(x: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-6)


def model(params: Params, tokens: jax.Array) -> jax.Array:
    def layer(x: jax.Array, w: Params) -> tuple[jax.Array, None]:
        qkv = ((norm(x) * params["gain"]) @ w["qkv"]).reshape(*x.shape[:-1], 3, HEADS, -1)
        mixed = jax.nn.dot_product_attention(*jnp.moveaxis(qkv, -3, 0), is_causal=True)
        x = x + mixed.reshape(x.shape) @ w["out"]
        return x + jax.nn.gelu((norm(x) * params["gain"]) @ w["up"]) @ w["down"], None

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
        "gain": jnp.ones(WIDTH),
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


def with_large_channels(params: Params) -> Params:
    """A model that computes the same with some activations that are much larger than others."""
    factor = jnp.ones(WIDTH).at[jnp.array([5, 50, 95])].set(30)
    layers = {
        name: w / factor[:, None] if name in ("qkv", "up") else w
        for name, w in params["layers"].items()
    }
    return {**params, "layers": layers, "gain": params["gain"] * factor}


def main(plot: str | None = None, table_file: str | None = None) -> None:
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
    print(f"In float32: a loss of {dense:.4f}. How much more it is:")
    more: Losses = {name: {} for name in ("nearest", "awq", "gptq", "smoothquant")}
    fitted = params
    for bits in (4, 3):
        more["nearest"][f"{bits} bits"] = mean_loss(to_nearest(params, bits)) - dense
        for method in ("awq", "gptq"):
            fit = calibrate(
                jax.jit(loss), method=method, where=is_weight, bits=bits, block=BLOCK
            )
            fitted = fit(params, data)
            more[method][f"{bits} bits"] = mean_loss(fitted) - dense
    fit = calibrate(jax.jit(loss), method="smoothquant", where=is_weight, bits=8)
    for kind, own in ((WITH_ACTIVATIONS, params), (LARGE, with_large_channels(params))):
        more["nearest"][kind] = mean_loss(to_nearest_with_activations(own)) - dense
        more["smoothquant"][kind] = mean_loss(fit(own, data)) - dense
    rows = table(more)
    for row in rows:
        print("{:12}{:>8}{:>8}{:>25}{:>21}".format(*row))
    print(f"Layers in 3 bits: {nbytes(fitted['layers'])}.")
    for column in ("4 bits", "3 bits"):
        assert more["gptq"][column] < 0.8 * more["nearest"][column]
    assert more["smoothquant"][LARGE] < 0.5 * more["nearest"][LARGE]
    assert max(more[name][WITH_ACTIVATIONS] for name in ("nearest", "smoothquant")) < 2e-3
    if table_file:
        with open(table_file, "w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows(rows)
    if plot:
        draw(plot, more)


def table(more: Losses) -> list[list[str]]:
    """A row for each method, with a dash where it is not for that."""
    columns = list(dict.fromkeys(name for losses in more.values() for name in losses))
    rows = [[name, *(shown(own.get(c)) for c in columns)] for name, own in more.items()]
    return [["method", *columns], *rows]


def shown(x: float | None) -> str:
    if x is None:
        return "–"
    return f"{x:.5f}" if abs(x) < 1e-3 else f"{x:.4f}"


def draw(plot: str, more: Losses) -> None:
    import matplotlib.pyplot as plt

    axes: Any
    figure, axes = plt.subplots(
        1, 2, figsize=(7, 3), layout="constrained", width_ratios=(2, 1)
    )
    left, right = axes
    colors = {name: f"C{i}" for i, name in enumerate(more)}
    columns = ["4 bits", "3 bits"]
    of_weights = [name for name, own in more.items() if columns[0] in own]
    for i, name in enumerate(of_weights):
        heights = [more[name][column] for column in columns]
        places = np.arange(len(columns)) + 0.25 * (i - 1)
        left.bar(places, heights, 0.25, label=name, color=colors[name])
    left.set(xticks=range(len(columns)), xticklabels=columns, ylabel="loss beyond float32")
    left.legend()
    rounded = {name: own[LARGE] for name, own in more.items() if LARGE in own}
    right.bar(rounded.keys(), rounded.values(), 0.5, color=[colors[x] for x in rounded])
    right.set(title="8 bits, large channels")
    figure.savefig(plot, dpi=60)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--plot", metavar="FILE", help="draw the figure to this file")
    parser.add_argument("--table", metavar="FILE", help="write the table to this file")
    arguments = parser.parse_args()
    main(arguments.plot, arguments.table)

"""What the rewriting itself costs: a LoRA-adapted MLP against the same by hand.

At width 16 the arithmetic is next to nothing and overhead is all there is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxrewrite

from . import measure
from .table import duration, table
from .values import Lora


WIDTH, RANK, BATCH = 16, 4, 8

# The ratios to by hand that the project has set itself.
TARGETS = {"trace": 1.5, "eager call": 1.5, "jitted call": 1.05}


def programs() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The model, and the implicit one written by hand; new functions each time."""

    def model(weights: Any, x: Any) -> Any:
        for w in weights:
            x = jnp.tanh(x @ w)
        return x

    def by_hand(weights: Any, x: Any) -> Any:
        for w, a, b in weights:
            x = jnp.tanh(x @ w + (x @ a) @ b)
        return x

    return model, by_hand


def run(layers: int, repeats: int, progress: Callable) -> dict[str, Any]:
    """Measure one depth; `AssertionError` if the two programs disagree."""
    keys = jax.random.split(jax.random.key(layers), 3)
    w = jax.random.normal(keys[0], (layers, WIDTH, WIDTH)) / WIDTH**0.5
    a = jax.random.normal(keys[1], (layers, WIDTH, RANK)) / WIDTH**0.5
    b = jax.random.normal(keys[2], (layers, RANK, WIDTH)) * 0.1
    x = jnp.ones((BATCH, WIDTH))
    triples = list(zip(w, a, b, strict=True))
    values = [Lora(*triple) for triple in triples]

    model, by_hand = programs()
    eager = {"implicit": jaxrewrite.transform(model, materialise="forbid"), "hand": by_hand}
    arguments = {"implicit": values, "hand": triples}
    jitted = {name: jax.jit(fn) for name, fn in eager.items()}
    np.testing.assert_allclose(
        eager["implicit"](values, x), by_hand(triples, x), rtol=1e-4, atol=1e-5
    )

    def trace(name: str) -> Callable[[], None]:
        def call() -> None:
            model, by_hand = programs()
            fn = jaxrewrite.transform(model) if name == "implicit" else by_hand
            jax.jit(fn).trace(arguments[name], x)

        return call

    progress(f"{layers} layers: tracing")
    samples = {"trace": measure.interleaved({n: trace(n) for n in eager}, repeats)}
    for what, fns in (("eager call", eager), ("jitted call", jitted)):
        progress(f"{layers} layers: {what}")
        calls = {n: (lambda f=fn, n=n: f(arguments[n], x)) for n, fn in fns.items()}
        more = 10 if what == "jitted call" else 1
        samples[what] = measure.interleaved(calls, repeats * more, warm_up=3)
    instructions = {
        name: measure.count_instructions(fn.lower(arguments[name], x).compile())
        for name, fn in jitted.items()
    }
    return {"samples": samples, "hlo_instructions": instructions}


def report(results: dict[int, Any]) -> str:
    header = ["layers", "what", "implicit", "by hand", "ratio", "spread", "target"]
    rows = []
    for layers, result in results.items():
        for what, samples in result["samples"].items():
            implicit, hand = samples["implicit"], samples["hand"]
            rows.append(
                [
                    str(layers),
                    what,
                    duration(measure.median(implicit)),
                    duration(measure.median(hand)),
                    f"{measure.median(implicit) / measure.median(hand):.3f}",
                    f"{max(measure.spread(implicit), measure.spread(hand)):.1%}",
                    f"{TARGETS[what]:.2f}",
                ]
            )
        counts = result["hlo_instructions"]
        rows.append(
            [
                str(layers),
                "HLO instructions",
                str(counts["implicit"]),
                str(counts["hand"]),
                f"{counts['implicit'] / counts['hand']:.3f}",
                "",
                "1.00",
            ]
        )
    return table(header, rows)

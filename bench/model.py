"""The main job: dense against implicit execution of a GPT-2-shaped transformer.

Dense is what a user without the library runs: the same model on the same
parameters, each made an array inside the jitted program (W + A B for an adapted
weight, which has to happen at each call because A and B are parameters), or
passed as the array of zeros that it is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import jaxrewrite

from . import gpt2, measure
from .table import duration, scaled, table
from .values import Lora, Zero, lora, zero_like


KERNELS = ("qkv", "out", "up", "down")
VARIANTS = ("dense", "implicit")
STAGINGS = 3  # how often each is traced and compiled, the variants taking turns


class WrongResult(Exception):
    """Dense and implicit execution disagree, so that there is nothing to measure."""


def adapt(params: Any, rank: int, key: Any) -> Any:
    """Put an adapter on each kernel of each block."""
    keys = iter(jax.random.split(key, len(params["blocks"]) * len(KERNELS)))

    def adapted(block: Any) -> Any:
        return block | {
            name: block[name] | {"kernel": lora(block[name]["kernel"], rank, next(keys))}
            for name in KERNELS
        }

    return params | {"blocks": [adapted(block) for block in params["blocks"]]}


def drop_biases(params: Any) -> Any:
    """Make each bias of each block a symbolic zero; they are zeros."""

    def dropped(block: Any) -> Any:
        return block | {
            name: block[name] | {"bias": zero_like(block[name]["bias"])} for name in KERNELS
        }

    return params | {"blocks": [dropped(block) for block in params["blocks"]]}


def run(config: gpt2.Config, rank: int, repeats: int, progress: Callable) -> dict[str, Any]:
    """Measure each case; `WrongResult` if dense and implicit disagree."""
    progress("making the parameters")
    key = jax.random.key(0)
    params = gpt2.init(config, key)
    ids = jax.random.randint(key, (config.batch, config.length), 0, config.vocabulary)
    adapted = adapt(params, rank, jax.random.key(1))
    cases = {
        "LoRA weights": adapted,
        "zero biases": drop_biases(params),
        "both": drop_biases(adapted),
    }
    return {
        name: _case(name, values, ids, config.heads, repeats, progress)
        for name, values in cases.items()
    }


def _case(
    name: str, values: Any, ids: Any, heads: int, repeats: int, progress: Callable
) -> dict[str, Any]:
    model = functools.partial(gpt2.apply, heads=heads)
    # Zeros are arguments of the dense program, since a user has them as arrays.
    arrays = jax.tree.map(
        lambda x: jaxrewrite.materialise(x) if isinstance(x, Zero) else x,
        values,
        is_leaf=lambda x: isinstance(x, (Zero, Lora)),
    )

    def make(variant: str) -> tuple[Callable[..., Any], Any]:
        """A function that JAX has not seen, and its first argument."""
        if variant == "dense":
            return lambda v, ids: model(jaxrewrite.materialise(v), ids), arrays
        # Nothing may be made dense behind our back.
        fn = jaxrewrite.transform(lambda v, ids: model(v, ids), materialise="forbid")
        return fn, values

    results: dict[str, Any] = {v: {"traces": [], "compiles": []} for v in VARIANTS}
    calls, outputs = {}, {}
    for i, variant in enumerate(VARIANTS * STAGINGS):
        progress(f"{name}: tracing and compiling, {i + 1} of {len(VARIANTS) * STAGINGS}")
        fn, arguments = make(variant)
        trace, traced = measure.seconds(lambda f=fn, a=arguments: jax.jit(f).trace(a, ids))
        compile_time, compiled = measure.seconds(traced.lower().compile)
        results[variant]["traces"].append(trace)
        results[variant]["compiles"].append(compile_time)
        calls[variant] = functools.partial(compiled, arguments, ids)
    for variant, call in calls.items():
        outputs[variant] = np.asarray(call())
        results[variant] |= {
            "trace_time": measure.median(results[variant]["traces"]),
            "compile_time": measure.median(results[variant]["compiles"]),
            "hlo_instructions": measure.count_instructions(call.func),
            **measure.said_by_xla(call.func),
        }
    difference = float(np.abs(outputs["dense"] - outputs["implicit"]).max())
    scale = float(np.abs(outputs["dense"]).max())
    if not difference <= 1e-3 * scale:
        raise WrongResult(
            f"{name}: dense and implicit outputs differ by {difference:.3g} of {scale:.3g}"
        )
    progress(f"{name}: {repeats} calls of each")
    samples = measure.interleaved(calls, repeats)
    for variant, times in samples.items():
        results[variant] |= {
            "wall_time": measure.median(times),
            "spread": measure.spread(times),
            "samples": times,
        }
    return results | {"largest_difference": difference, "largest_output": scale}


def report(results: dict[str, Any]) -> str:
    """The table of the results, and where implicit execution loses."""
    columns: list[tuple[str, str, Callable[[float], str]]] = [
        ("wall time", "wall_time", duration),
        ("trace", "trace_time", duration),
        ("compile", "compile_time", duration),
        ("FLOPs", "flops", lambda x: scaled(x, "")),
        ("bytes", "bytes", lambda x: scaled(x, "B")),
        ("memory", "memory", lambda x: scaled(x, "B")),
    ]
    header = ["case", *(title for title, _, _ in columns), "spread", "largest diff."]
    rows, losses = [], []
    for name, case in results.items():
        for variant in VARIANTS:
            cells = [show(case[variant][key]) for _, key, show in columns]
            rows.append(
                [f"{name}: {variant}", *cells, f"{case[variant]['spread']:.1%}", ""]
            )
        ratios = {key: case["implicit"][key] / case["dense"][key] for _, key, _ in columns}
        cells = [f"{ratio:.3f}" for ratio in ratios.values()]
        difference = f"{case['largest_difference']:.1e} of {case['largest_output']:.1f}"
        rows.append(["  implicit / dense", *cells, "", difference])
        losses += [
            f"{name}: {title} is {ratios[key]:.2f}x of dense"
            for title, key, _ in columns
            if ratios[key] > 1.02 + (key == "wall_time") * case["implicit"]["spread"]
        ]
    lost = (
        "\n".join(f"  {loss}" for loss in losses)
        or "  nowhere, by more than 2% or the spread"
    )
    merged = (
        "Dense pays for W + A B at each call, as it must while A and B are trained; adapters "
        "that are done\nwith can be merged beforehand, and then dense does less than implicit."
    )
    return f"{table(header, rows)}\n\nWhere implicit execution loses:\n{lost}\n\n{merged}"


def describe(config: gpt2.Config, rank: int, repeats: int) -> str:
    sizes = jax.eval_shape(lambda key: gpt2.init(config, key), jax.random.key(0))
    parameters = sum(x.size for x in jax.tree.leaves(sizes))
    device = jax.devices()[0]
    kind = f"{device.platform} ({device.device_kind})"
    return (
        f"GPT-2-shaped transformer: {config.layers} layers, width {config.width}, "
        f"{config.heads} heads, vocabulary {config.vocabulary}, {parameters / 1e6:.1f} M "
        f"parameters; {config.batch} x {config.length} tokens; LoRA rank {rank}; float32.\n"
        f"JAX {jax.__version__} on {kind}; medians of {repeats} interleaved calls. FLOPs, "
        f"bytes and memory are XLA's analyses.\n"
    )

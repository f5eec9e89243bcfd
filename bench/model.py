"""The main comparison: dense and implicit execution of a GPT-2-shaped transformer.

Dense is what a user without the library runs: the same model with the same parameters as
arrays. An adapted weight becomes the array W + A B inside the jitted program. That must
happen at each call, because A and B are being trained. Finished adapters can be merged
before, and then dense does less than implicit. Zeros are passed as an array. Weights of
8 bits are compared with the arrays of floats that they stand for, and are those of
`jaxrewrite.values`; the other types are those of the benchmark. Quax, where it is installed,
runs the same model on the same types, written for Quax. FLOPs, bytes and memory come from
XLA's analyses.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

import jaxrewrite
from jaxrewrite.values import Quantised

from . import gpt2, measure
from .peer import quax_values, to_quax
from .suite import Case, Measurement, Options, Part, ratio, rows_of, verdict
from .values import Lora, Zero, lora, zero_like


KERNELS = ("qkv", "out", "up", "down")


class WrongResult(Exception):
    """Two variants disagree, so their times mean nothing."""


def map_layers(params: Any, **change: Callable[[Any], Any]) -> Any:
    """Change the ``kernel`` or the ``bias`` of each linear layer of each block."""

    def changed(block: Any) -> Any:
        return block | {
            name: block[name] | {k: f(block[name][k]) for k, f in change.items()}
            for name in KERNELS
        }

    return params | {"blocks": [changed(block) for block in params["blocks"]]}


def adapt(params: Any, rank: int, key: Any) -> Any:
    """Put an adapter on each kernel of each block."""
    keys = iter(jax.random.split(key, len(params["blocks"]) * len(KERNELS)))
    return map_layers(params, kernel=lambda w: lora(w, rank, next(keys)))


def int8(w: Any) -> Quantised:
    """A weight in 8 bits, with a scale for each column."""
    return Quantised.quantise(w, axis=-1)


def drop_biases(params: Any) -> Any:
    """Replace each bias of each block, which is zero, by a symbolic zero."""
    return map_layers(params, bias=zero_like)


def run(options: Options, progress: Callable[[str], None]) -> Iterator[Measurement]:
    """Measure each case; `WrongResult` if dense and implicit disagree."""
    progress("making the parameters")
    config = options.config
    key = jax.random.key(0)
    params = gpt2.init(config, key)
    ids = jax.random.randint(key, (config.batch, config.length), 0, config.vocabulary)
    adapted = adapt(params, options.rank, jax.random.key(1))
    cases = {
        "LoRA weights": adapted,
        "int8 weights": map_layers(params, kernel=int8),
        "zero biases": drop_biases(params),
        "LoRA, zero biases": drop_biases(adapted),
    }
    usual = [name for name in cases if name != "zero biases"]
    for name in options.of(list(cases), usual, list(cases)):
        yield from _case(name, cases[name], ids, options, progress)


def _case(
    name: str, values: Any, ids: Any, options: Options, progress: Callable[[str], None]
) -> Iterator[Measurement]:
    model = functools.partial(gpt2.apply, heads=options.config.heads)
    # What a user has as an array is an argument of the dense program.
    arrays = jax.tree.map(
        lambda x: jaxrewrite.materialise(x) if isinstance(x, (Zero, Quantised)) else x,
        values,
        is_leaf=lambda x: isinstance(x, (Zero, Lora, Quantised)),
    )
    variants = ["dense", "implicit"]
    peer = quax_values()
    if peer is not None and name != "int8 weights":
        variants.append("Quax")

    def make(variant: str) -> tuple[Callable[..., Any], Any]:
        """A function that JAX has not seen, and its first argument."""
        if variant == "dense":
            return lambda v, ids: model(jaxrewrite.materialise(v), ids), arrays
        if variant == "Quax":
            return peer.quaxify(lambda v, ids: model(v, ids)), to_quax(peer, values)
        # "forbid" makes sure that nothing becomes dense unnoticed.
        fn = jaxrewrite.transform(lambda v, ids: model(v, ids), materialise="forbid")
        return fn, values

    case = Case("model", name)
    traces: dict[str, list[float]] = {variant: [] for variant in variants}
    compiles: dict[str, list[float]] = {variant: [] for variant in variants}
    calls: dict[str, Any] = {}
    for variant in variants:  # Exclude costs that only the first trace has.
        fn, arguments = make(variant)
        jax.jit(fn).trace(arguments, ids)
    stagings = options.of(1, 2, 5)
    for i, variant in enumerate(measure.turns(variants, stagings)):
        progress(f"{name}: tracing and compiling, {i + 1} of {len(variants) * stagings}")
        fn, arguments = make(variant)
        trace, traced = measure.seconds(lambda f=fn, a=arguments: jax.jit(f).trace(a, ids))
        compile_time, compiled = measure.seconds(traced.lower().compile)
        traces[variant].append(trace)
        compiles[variant].append(compile_time)
        calls[variant] = functools.partial(compiled, arguments, ids)
    check_equal(name, {variant: call() for variant, call in calls.items()})
    repeats = options.repeats or options.of(2, 8, 50)
    progress(f"{name}: {repeats} calls of each")
    yield from case.timed("wall time", measure.interleaved(calls, repeats))
    yield from case.timed("trace", traces)
    yield from case.timed("compile", compiles)
    said = {variant: measure.said_by_xla(call.func) for variant, call in calls.items()}
    for quantity, unit in (
        ("FLOPs", ""),
        ("bytes", "B"),
        ("temporaries", "B"),
        ("memory", "B"),
    ):
        yield from case.exact(quantity, {v: s[quantity] for v, s in said.items()}, unit)


def check_equal(name: str, outputs: dict[str, Any], tolerance: float = 1e-3) -> None:
    """Raise `WrongResult` if a variant's output differs from the first one's."""
    (first, expected), *others = (
        (variant, np.asarray(output)) for variant, output in outputs.items()
    )
    scale = float(np.abs(expected).max())
    for variant, output in others:
        difference = float(np.abs(output - expected).max())
        if not difference <= tolerance * scale:
            raise WrongResult(
                f"{name}: {first} and {variant} outputs differ by {difference:.3g} of "
                f"{scale:.3g}"
            )


def headline(results: Sequence[Measurement]) -> list[str]:
    """What is won and lost: a line for each case, and one for the peer."""
    rows = rows_of(results)
    lines = []
    for case in dict.fromkeys(result.case for result in results):
        found = {
            quantity: (ratio(row["implicit"], row["dense"]), row["implicit"].spread)
            for (of, _, quantity), row in rows.items()
            if of == case and quantity in SAID
        }
        known = {q: (r, spread) for q, (r, spread) in found.items() if r is not None}
        won = [f"{q} {t[0]:.2f}" for q, t in known.items() if verdict(*t) < 0]
        lost = [f"{q} {t[0]:.2f}" for q, t in known.items() if verdict(*t) > 0]
        lines.append(
            f"{case}: won {', '.join(won) or 'nothing'}; lost {', '.join(lost) or 'nothing'}"
        )
    lines.append(_of_peer(rows))
    return lines


# The quantities that a user feels.
SAID = ("wall time", "temporaries", "memory", "trace", "compile")


def _of_peer(rows: Any) -> str:
    ratios: dict[str, list[float]] = {}
    for (_, _, quantity), row in rows.items():
        times = ratio(row["Quax"], row["implicit"]) if "Quax" in row else None
        if times is not None and quantity in SAID:
            ratios.setdefault(quantity, []).append(times)
    if not ratios:
        return "Quax is not installed: python -m pip install quax"
    said = {q: f"{min(rs):.2f} to {max(rs):.2f}" for q, rs in ratios.items()}
    differ = [f"{q} {range_}" for q, range_ in said.items() if range_ != "1.00 to 1.00"]
    return f"Quax, as a share of implicit: {', '.join(differ) or 'the same'}"


PART = Part(
    "model",
    "A GPT-2-shaped transformer, implicit as a share of dense",
    __doc__ or "",
    "dense",
    run,
    headline=headline,
)

"""The cost of looking for patterns, against the same program without any.

The transformer is that of ``overhead``, once with arrays alone and once with values. The
traced functions are new to JAX and to the library; "first" is the first program that a fresh
table sees, for which the functions that its patterns look for are traced. "all tables" are
together in a new process each time. To the programs that follow, their shapes are known, but
for those "at new shapes". The chains have the primitives of 30 patterns, with a match in each of
some blocks of equations, or with none.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxrewrite
from jaxrewrite import Rules, patterns

from . import gpt2, measure
from .overhead import anew, transformers
from .suite import Case, Measurement, Options, Part, Target


TABLES = ("stable", "linalg", "attention", "loops", "structured")


def table(*names: str, count: int | None = None) -> Rules:
    """A fresh table of the ready patterns, of which nothing is known yet."""
    rules = Rules()
    ready = [pattern for name in names for pattern in getattr(patterns, name).patterns]
    for p in ready[:count]:
        options = {"when": p.when, "precedence": p.precedence, "keep": p.keep}
        rules.rewrite(p.before, probes=p.probes, **options)(p.fn)
    return rules


def chain(blocks: int, matches: bool) -> Callable[[Any], Any]:
    def program(x: Any) -> Any:
        for _ in range(blocks):
            x = jnp.tanh(x) * 0.5 + x
            y = jnp.where(x > 0, x, jnp.exp(x) - 0.5)
            x = y - jnp.sum(y, axis=-1, keepdims=True) / 3.0
            if matches:
                x = x + jnp.log(1 + jnp.exp(x))
        return x

    return program


def transformer(layers: int) -> gpt2.Config:
    return gpt2.Config(layers, width=64, heads=4, vocabulary=128, length=16)


def tracer(
    config: gpt2.Config, weights: Any, rules: Rules | None, sizes: Iterator[int]
) -> Callable[[], Any]:
    """A function that traces the transformer, at the next of the sizes of a batch."""
    model = functools.partial(gpt2.apply, heads=config.heads)

    def call() -> None:
        fn = jaxrewrite.transform(anew(model), rules=rules, materialise="allow")
        ids = np.zeros((next(sizes), config.length), np.int32)
        jax.jit(fn).trace(weights, ids)

    return call


def first_of_all_tables(layers: int) -> float:
    """The seconds for the first program that all tables together see."""
    config, sizes = transformer(layers), itertools.repeat(2)
    params = gpt2.init(config, jax.random.key(0))
    tracer(config, params, None, sizes)()
    return measure.seconds(tracer(config, params, table(*TABLES), sizes))[0]


def run(options: Options, progress: Callable[[str], None]) -> Iterator[Measurement]:
    layers = options.of(1, 12, 12)
    config = transformer(layers)
    params = gpt2.init(config, jax.random.key(0))
    values, _ = transformers(params)["LoRA on int8, zero biases"]
    same, new = itertools.repeat(2), itertools.count(3)
    own = functools.partial(tracer, config)

    progress("first program of all tables, in new processes")
    program = "from bench.patterns import first_of_all_tables as first; print(first(%d))"
    samples = [measure.in_new_process(program % layers) for _ in range(options.of(1, 5, 9))]
    yield from Case("patterns", "all tables").timed("first", {"implicit": samples})
    own(params, None, same)()
    for name in TABLES:
        progress(f"first program of {name}")
        first, _ = measure.seconds(own(params, table(name), same))
        yield from Case("patterns", f"table {name}").exact(
            "first", {"implicit": first}, "s"
        )
    every = table(*TABLES)
    for name, weights in (("arrays", params), ("values", values)):
        progress(f"transformer of {name}")
        variants = {"none": own(weights, None, same), "implicit": own(weights, every, same)}
        samples = measure.interleaved(variants, options.of(2, 15, 60))
        case = Case("patterns", f"transformer of {name}")
        yield from case.timed("trace", samples)
        variants = {"none": own(weights, None, new), "implicit": own(weights, every, new)}
        samples = measure.interleaved(variants, options.of(2, 9, 20))
        yield from case.timed("trace at new shapes", samples)
    thirty = table("stable", count=30)
    x = jnp.ones((4, 5))
    for blocks in options.of((10,), (100, 1_000), (100, 1_000, 10_000)):
        for matches in (False, True):
            what = "a match in each block" if matches else "no match"
            progress(f"chain of {blocks} blocks, {what}")

            def trace(rules: Rules | None, n: int = blocks, m: bool = matches) -> None:
                jax.jit(jaxrewrite.transform(chain(n, m), rules=rules)).trace(x)

            samples = measure.interleaved(
                {"none": lambda t=trace: t(None), "implicit": lambda t=trace: t(thirty)},
                options.of(2, 5, 15),
                collecting=True,
            )
            case = Case("patterns", f"chain, {what}", blocks)
            each = {v: [t / blocks for t in times] for v, times in samples.items()}
            yield from case.timed("trace a block", each)


PART = Part(
    "patterns",
    "Looking for patterns",
    __doc__ or "",
    "none",
    run,
    {"first": Target(1.0, is_ratio=False), "trace": Target(1.15)},
)

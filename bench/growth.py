"""How the cost of an equation grows with the program, and the cost of a few values.

The programs are chains of ``neg``: on a value all the way; with one value at the start,
which becomes dense; and beside a value that only the end uses. "Rewriting" is the time of
implicit minus that of plain. The growth is the time to rewrite an equation divided by that
of the shortest chain. Memory is the largest amount that Python allocates while it traces a
chain.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

import jaxrewrite

from . import gpt2, measure
from .suite import Case, Measurement, Options, Part, Target
from .values import Lora, Scaled, Zero


def chain(length: int, kind: str) -> Callable[[Any, Any], Any]:
    def program(v: Any, x: Any) -> Any:
        out = x if kind == "beside a value" else v
        if kind == "one value":
            out = lax.tanh(out)  # It has no rule, so it is dense from here on.
        for _ in range(length):
            out = lax.neg(out)
        return (out, lax.neg(v)) if kind == "beside a value" else out

    return program


KINDS = ("values", "one value", "beside a value")


def run(options: Options, progress: Callable[[str], None]) -> Iterator[Measurement]:
    lengths = options.of((50, 100), (500, 5_000), (1_000, 10_000, 100_000))
    for kind in KINDS:
        first = None
        for length in lengths:
            case = Case("growth", f"chain, {kind}", length)
            progress(f"{case.name}, {length} equations")
            medians = {}
            for measurement in _trace_chain(case, kind, length, options):
                yield measurement
                medians[measurement.variant] = measurement.value or 0.0
            rewriting = medians["implicit"] - medians["plain"]
            yield from case.exact("rewriting an equation", {"implicit": rewriting}, "s")
            first = first or rewriting
            yield from case.exact("growth", {"implicit": rewriting / first}, "x")
            if kind == "values":
                yield from _memory(case, kind, length)
    yield from _scans(options, progress)
    yield from _nested(options, progress)
    yield from _hardly(options, progress)


V, X = Scaled(jnp.ones(3), jnp.float32(2.0)), jnp.ones(3)


def _tracers(kind: str, length: int) -> dict[str, Callable[[], Any]]:
    def implicit() -> None:
        fn = jaxrewrite.transform(chain(length, kind), materialise="allow")
        jax.jit(fn).trace(V, X)

    return {
        "plain": lambda: jax.jit(chain(length, kind)).trace(X, X),
        "implicit": implicit,
    }


def _trace_chain(case: Case, kind: str, length: int, options: Options) -> list[Measurement]:
    repeats = options.repeats or max(3, min(options.of(3, 8, 25), 30_000 // length))
    samples = measure.interleaved(_tracers(kind, length), repeats, collecting=True)
    each = {v: [t / length for t in times] for v, times in samples.items()}
    return case.timed("trace an equation", each)


def _memory(case: Case, kind: str, length: int) -> list[Measurement]:
    peaks = {}
    for variant, trace in _tracers(kind, length).items():
        gc.collect()
        tracemalloc.start()
        trace()
        peaks[variant] = tracemalloc.get_traced_memory()[1] / length
        tracemalloc.stop()
    return case.exact("memory of an equation", peaks, "B")


def _scans(options: Options, progress: Callable[[str], None]) -> Iterator[Measurement]:
    """A body is rewritten once, however often it runs."""

    def scan(length: int) -> Callable[[], Any]:
        def model(w: Any, x: Any) -> Any:
            return lax.scan(lambda x, _: (jnp.tanh(x @ w), None), x, None, length)[0]

        w = Lora(jnp.ones((16, 16)), jnp.ones((16, 4)), jnp.ones((4, 16)))
        fn = jaxrewrite.transform(model, materialise="forbid")
        return lambda: jax.jit(fn).trace(w, jnp.ones((8, 16)))

    for length in (10, 1000):
        progress(f"scan over {length} layers")
        samples = measure.interleaved(
            {"implicit": lambda n=length: scan(n)()}, options.of(2, 30, 100)
        )
        yield from Case("growth", "scan over layers", length).timed("trace", samples)


def _nested(options: Options, progress: Callable[[str], None]) -> Iterator[Measurement]:
    """`jax.jit` within `jax.jit`, to a given depth."""

    def nest(depth: int) -> Callable[[Any], Any]:
        fn = lambda v: lax.neg(v)
        for _ in range(depth):
            fn = jax.jit(lambda v, fn=fn: lax.neg(fn(v)))
        return fn

    for depth in options.of((2,), (10,), (10, 50)):
        progress(f"nested {depth} deep")
        variants = {
            "plain": lambda d=depth: jax.jit(nest(d)).trace(X),
            "implicit": lambda d=depth: jax.jit(jaxrewrite.transform(nest(d))).trace(V),
        }
        samples = measure.interleaved(variants, options.of(2, 8, 30))
        yield from Case("growth", "nested calls", depth).timed("trace", samples)


def _hardly(options: Options, progress: Callable[[str], None]) -> Iterator[Measurement]:
    """A transformer in which one shift, at the end, is a symbolic zero."""
    progress("one value in a transformer")
    config = gpt2.Config(
        options.of(1, 12, 12), width=64, heads=4, vocabulary=128, length=16
    )
    params = gpt2.init(config, jax.random.key(0))
    zero = Zero((config.width,), jnp.dtype("float32"))
    values = params | {"norm": params["norm"] | {"shift": zero}}
    ids = jnp.zeros((2, config.length), int)

    def model() -> Callable[..., Any]:
        return lambda p, ids: gpt2.apply(p, ids, config.heads)

    variants = {
        "plain": lambda: jax.jit(model()).trace(params, ids),
        "implicit": lambda: jax.jit(jaxrewrite.transform(model())).trace(values, ids),
    }
    samples = measure.interleaved(variants, options.of(2, 15, 60))
    yield from Case("growth", "transformer, one value").timed(
        "trace, passing through", samples
    )


PART = Part(
    "growth",
    "Growth with the size of a program",
    __doc__ or "",
    "plain",
    run,
    {"growth": Target(1.2, is_ratio=False), "trace, passing through": Target(1.2)},
)

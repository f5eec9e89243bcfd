"""The cost of rewriting: implicit programs against the same programs written by hand.

The programs are an MLP of width 16 and a transformer of width 64. Their arithmetic takes
almost no time, so nearly all of the time is overhead. The traced functions are new to JAX
and to the library, but the process has seen such a program before. Instructions and memory
are XLA's, of the optimised program.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax

import jaxrewrite

from . import gpt2, measure, mlp
from .model import adapt, check_equal, drop_biases, map_layers
from .suite import Case, Measurement, Options, Part, Target
from .values import Lora, Zero, quantise


TARGETS = {
    "trace": Target(1.15),
    "trace of the gradient": Target(1.15),
    "eager call": Target(1.2),
    "eager gradient": Target(1.2),
    "jitted call": Target(1.02),
    "each value of a call": Target(1e-6, is_ratio=False),
    "HLO instructions": Target(1.0),
    "memory": Target(1.0),
}

# For each variant a function that makes the program anew, and the arguments of the program.
Variants = dict[str, tuple[Callable[[], Callable[..., Any]], tuple[Any, ...]]]


def run(options: Options, progress: Callable[[str], None]) -> Iterator[Measurement]:
    for layers in options.depths or options.of((2,), (4, 24), (4, 24, 96, 384)):
        case = Case("overhead", "MLP with LoRA", layers)
        triples, x = mlp.weights(layers), mlp.inputs()
        values = [Lora(*triple) for triple in triples]
        variants: Variants = {
            "by hand": (lambda: mlp.programs()[1], (triples, x)),
            "implicit": (
                lambda: jaxrewrite.transform(mlp.programs()[0], materialise="forbid"),
                (values, x),
            ),
        }
        yield from compare(case, variants, len(values), layers < 200, options, progress)
    config = gpt2.Config(
        options.of(1, 12, 12), width=64, heads=4, vocabulary=128, length=16
    )
    params = gpt2.init(config, jax.random.key(0))
    ids = jax.random.randint(jax.random.key(1), (2, config.length), 0, config.vocabulary)
    models = transformers(params)
    both = ["LoRA on int8, zero biases"]
    for name in options.of(both, both, [*models]):
        values, linear = models[name]
        case = Case("overhead", f"transformer, {name}", None)
        model = functools.partial(gpt2.apply, heads=config.heads)
        variants = {
            "by hand": (
                functools.partial(anew, functools.partial(model, linear=linear)),
                (by_hand(values), ids),
            ),
            "implicit": (
                lambda m=model: jaxrewrite.transform(anew(m), materialise="forbid"),
                (values, ids),
            ),
        }
        count = len(jax.tree.leaves(values, is_leaf=is_value))
        yield from compare(case, variants, count, False, options, progress)


def anew(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function that does the same and that JAX has not seen."""
    return lambda *args: fn(*args)


def is_value(x: Any) -> bool:
    return isinstance(x, jaxrewrite.Value)


def by_hand(values: Any) -> Any:
    """The arrays that a user without values would have instead."""

    def plain(x: Any) -> Any:
        if not is_value(x):
            return x
        if isinstance(x, Lora):
            return by_hand(x.w), x.a, x.b
        return None if isinstance(x, Zero) else (x.q, x.scale)

    return jax.tree.map(plain, values, is_leaf=is_value)


def _lora(kernel: Any, x: Any) -> Any:
    w, a, b = kernel
    return x @ w + (x @ a) @ b


def _quantised(kernel: Any, x: Any) -> Any:
    q, scale = kernel
    return (x @ q.astype(x.dtype)) * scale


def _qlora(kernel: Any, x: Any) -> Any:
    w, a, b = kernel
    return _quantised(w, x) + (x @ a) @ b


def transformers(params: Any) -> dict[str, tuple[Any, gpt2.Linear]]:
    """The parameters of each case, and the function for its linear layers by hand."""

    def biased(multiply: Callable[[Any, Any], Any]) -> gpt2.Linear:
        return lambda p, x: multiply(p["kernel"], x) + p["bias"]

    adapted = adapt(params, 4, jax.random.key(2))
    both = map_layers(adapted, kernel=lambda v: Lora(quantise(v.w), v.a, v.b))
    return {
        "LoRA": (adapted, biased(_lora)),
        "int8": (map_layers(params, kernel=quantise), biased(_quantised)),
        "zero biases": (drop_biases(params), lambda p, x: x @ p["kernel"]),
        "LoRA on int8, zero biases": (
            drop_biases(both),
            lambda p, x: _qlora(p["kernel"], x),
        ),
    }


def gradient(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The gradient of the sum with respect to the first argument's leaves."""
    return jax.grad(lambda p, x: fn(p, x).sum(), allow_int=True)


def compare(
    case: Case,
    variants: Variants,
    count: int,
    eagerly: bool,
    options: Options,
    progress: Callable[[str], None],
) -> Iterator[Measurement]:
    """Measure programs with ``count`` values in several ways."""
    name = case.name if case.size is None else f"{case.name}, {case.size:.0f} layers"
    made = {v: (make(), args) for v, (make, args) in variants.items()}
    jitted = {v: jax.jit(fn) for v, (fn, _) in made.items()}
    check_equal(name, {v: jitted[v](*args) for v, (_, args) in made.items()})

    def tracer(make: Callable[[], Any], args: Any) -> Callable[[], None]:
        def call() -> None:
            jax.jit(make()).trace(*args)

        return call

    progress(f"{name}: tracing")
    traces = {v: tracer(make, args) for v, (make, args) in variants.items()}
    few = options.repeats or options.of(2, 12, 60)
    yield from case.timed("trace", measure.interleaved(traces, few))
    progress(f"{name}: tracing the gradient")
    gradients = {
        v: tracer(lambda make=make: gradient(make()), args)
        for v, (make, args) in variants.items()
    }
    fewer = max(2, few // 4)
    yield from case.timed("trace of the gradient", measure.interleaved(gradients, fewer))
    if eagerly:
        progress(f"{name}: calling the gradient eagerly")
        calls = {
            v: functools.partial(gradient(fn), *args) for v, (fn, args) in made.items()
        }
        samples = measure.interleaved(calls, fewer)
        yield from case.timed("eager gradient", samples)
        progress(f"{name}: calling eagerly")
        calls = {v: functools.partial(fn, *args) for v, (fn, args) in made.items()}
        samples = measure.interleaved(calls, options.of(2, 40, 200), warm_up=3)
        yield from case.timed("eager call", samples)
    progress(f"{name}: calling")
    calls = {v: functools.partial(jitted[v], *args) for v, (_, args) in made.items()}
    samples = measure.interleaved(calls, options.of(2, 300, 2000), warm_up=5)
    medians = {v: measure.median(times) for v, times in samples.items()}
    yield from case.timed("jitted call", samples)
    more = (medians["implicit"] - medians["by hand"]) / count
    yield from case.exact("each value of a call", {"implicit": more}, "s")
    compiled = {v: fn.lower(*made[v][1]).compile() for v, fn in jitted.items()}
    counts = {v: measure.count_instructions(c) for v, c in compiled.items()}
    yield from case.exact("HLO instructions", counts, "")
    memory = {v: measure.said_by_xla(c)["memory"] for v, c in compiled.items()}
    yield from case.exact("memory", memory, "B")


PART = Part(
    "overhead",
    "Overhead, against the program by hand",
    __doc__ or "",
    "by hand",
    run,
    TARGETS,
)

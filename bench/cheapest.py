"""What ``materialise="cheapest"`` chooses, against the faster of implicit and dense.

The programs are products of all ready types that can be dense, with 1 to 4096 columns (for weights:
rows), products with adapted weights of rank 1 to the width and their gradients, and the linear algebra of
structured matrices with one vector. All three variants get the same value. Dense makes an array of it
in the program, as a program does whose value changes from call to call; implicit never does; and
cheapest chooses when the program is rewritten, by a model of costs. *Over the faster* is the time of the
chosen program over that of the faster of the two others. Where the compiled program is that of
another variant, both share their samples, and the ratio is exactly 1 if the choice is right.
"""

from __future__ import annotations

import functools
import re
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import jaxrewrite
from jaxrewrite import values

from . import measure, structured, types
from .model import check_equal
from .suite import Case, Measurement, Options, Part


PATIENCE = 0.5  # Seconds for all calls of a variant.
OVER = "over the faster"
USUAL, WORST = 1.15, 1.5  # The goal for nine tenths of the cases, and for all.


class Program(NamedTuple):
    """A program of a value and an array; ``around`` is applied to it after it was transformed."""

    name: str
    size: float
    fn: Callable[[Any, Any], Any]
    value: Any
    x: Any
    around: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda fn: fn


def gradient(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The gradient of a loss by the floating-point leaves of the value."""

    def loss(v: Any, x: Any) -> Any:
        return jnp.sum(jnp.tanh(fn(v, x)))

    def program(v: Any, x: Any) -> Any:
        leaves = jax.tree.leaves(jax.grad(loss)(v, x))
        return jnp.concatenate([leaf.ravel() for leaf in leaves])

    return program


def of_rows(w: Any, x: Any) -> Any:
    return x @ w


def adapted(n: int, rank: int) -> Any:
    keys, shapes = jax.random.split(jax.random.key(n), 3), ((n, n), (n, rank), (rank, n))
    w, a, b = (types.random(k, *s) for k, s in zip(keys, shapes, strict=True))
    return values.Lora(w, a, b)


def programs(options: Options) -> Iterator[Program]:
    widths = options.of((64,), (256, 1024), (256, 1024, 4096))
    columns = options.of((1, 64), (1, 1024), (1, 8, 64, 512, 4096))
    array = lambda *shape: jax.random.normal(jax.random.key(1), shape)
    for n in widths:
        for name in options.of(types.MAIN, types.TYPES, types.TYPES):
            kind = types.TYPES[name]
            if kind.dense is jaxrewrite.materialise:
                value = kind.make(jax.random.key(n), n)
                for count in columns:
                    if kind.program is types.by_weight:
                        label, fn, x = f"{name}, {count} rows", of_rows, array(count, n)
                    else:
                        label, fn, x = (
                            f"{name}, {count} columns",
                            kind.program,
                            array(n, count),
                        )
                    yield Program(label, n, fn, value, x)
    for n in widths[:2]:
        for rank in options.of((8,), (1, n // 16, n), (1, 8, n // 16, n // 4, n)):
            for count in columns:
                x, value = array(count, n), adapted(n, rank)
                name = f"Lora of rank {rank}, {count} rows"
                yield Program(name, n, of_rows, value, x)
                yield Program(f"{name}, gradient", n, of_rows, value, x, gradient)
    for n in options.of((64,), (256,), (256, 512, 1024, 2048)):
        for name in options.of(("Diagonal",), structured.TYPES, structured.TYPES):
            costs = structured.TYPES[name]
            value = costs.make(jax.random.key(0), n)
            for fn in costs.operations:
                x = array(n)
                yield Program(f"{name}: {fn.__name__}", n, fn, value, x)


def run(options: Options, progress: Callable[[str], None]) -> Iterator[Measurement]:
    for program in programs(options):
        progress(f"{program.name}, {program.size}")
        yield from _case(program, options)


def variants(program: Program) -> dict[str, Callable[..., Any]]:
    fn = program.fn

    def transformed(policy: str) -> Callable[..., Any]:
        rewritten = jaxrewrite.transform(fn, materialise=policy)
        return lambda v, x: jaxrewrite.materialise(rewritten(v, x))

    each = {
        "dense": lambda v, x: fn(jaxrewrite.materialise(v), x),
        "implicit": transformed("allow"),
        "cheapest": transformed("cheapest"),
    }
    return {name: program.around(variant) for name, variant in each.items()}


def _case(program: Program, options: Options) -> Iterator[Measurement]:
    operands = program.value, program.x
    compiled = {
        name: jax.jit(fn).lower(*operands).compile()
        for name, fn in variants(program).items()
    }
    texts = {name: instructions(each) for name, each in compiled.items()}
    same = {name: min(n for n in texts if texts[n] == texts[name]) for name in texts}
    calls = {
        name: functools.partial(compiled[name], *operands) for name in set(same.values())
    }
    check_equal(program.name, {name: call() for name, call in calls.items()}, 2e-2)
    longest = max(measure.seconds(call)[0] for call in calls.values())
    most = options.repeats or options.of(2, 15, 40)
    repeats = max(min(3, most), min(most, int(PATIENCE / longest)))
    samples = measure.interleaved(calls, repeats)
    case = Case("cheapest", program.name, program.size)
    times = case.timed("wall time", {name: samples[same[name]] for name in compiled})
    yield from times
    seconds = {each.variant: each.value or 0.0 for each in times}
    fastest = min(seconds["dense"], seconds["implicit"])
    yield from case.exact(OVER, {"cheapest": seconds["cheapest"] / fastest}, "x")


def instructions(compiled: Any) -> str:
    """The optimised program, without names and lines of the source."""
    lines = [line for line in compiled.as_text().splitlines() if " = " in line]
    text = re.sub(r", (metadata|origin)=\{[^}]*\}", "", "\n".join(lines))
    numbers: dict[str, str] = {}
    number = lambda found: numbers.setdefault(found[0], f"%{len(numbers)}")
    return re.sub(r"%[\w.-]+", number, text)


def headline(results: Sequence[Measurement]) -> list[str]:
    """The quantiles of the ratios, and the cases that are over the goal."""
    over = {(r.case, r.size): r.value or 0.0 for r in results if r.quantity == OVER}
    if len(over) < 2:
        return []
    tenths = statistics.quantiles(over.values(), n=10, method="inclusive")
    within = sum(ratio <= USUAL for ratio in over.values()) / len(over)
    worst = sorted(over, key=over.__getitem__, reverse=True)
    missed = [f"{case}, width {size}" for case, size in worst if over[case, size] > WORST]
    return [
        f"{len(over)} programs: at most {USUAL} of the faster of implicit and dense in "
        f"{within:.1%}; median {tenths[4]:.2f}, nine tenths {tenths[8]:.2f}, largest "
        f"{over[worst[0]]:.2f}; over {WORST}: {'; '.join(missed) or 'none'}."
    ]


PART = Part(
    "cheapest",
    "Implicit or dense by cost",
    __doc__ or "",
    "dense",
    run,
    drawn=(OVER,),
    headline=headline,
)

"""Each ready value type, dense against implicit, over its width.

The program is a jitted product with 64 columns (for weights: with 64 rows), or what the
type is made for. Dense is the same program with an array made before; for LoRA, whose
matrix changes at each training step, the program makes the array. The promised time follows
from XLA's counts. It is the dense time, less that of a call of nothing, divided by the
smaller of the ratios of FLOPs and bytes. XLA counts neither solvers, which are not its own,
nor the turns of a loop. Setting up is tracing and compiling together.

Some types cannot reach dense on a CPU with few columns. A product of 4096 x 4096 entries with 64
columns is 2.1 GFLOP. That takes about as long as it takes one thread to write another array of
this size, 67 MB. `Masked` writes one such array, with the entries that it chose, and `Triangular`
half of one, with zeros beside the diagonal, in blocks; `Symmetric` does so, too, and multiplies each block for
its rows and its columns. `NMSparse` moves each of its entries to a place. `Interval` writes both bounds
anew, with NaN where there may be one, multiplies them with the positive and with the negative entries, which
are four products, and reads them again for what rounding may change. All this is the same for any number of columns. With 64 columns,
`Triangular` took 1.3 of dense, `Symmetric` 2.1, `NMSparse` 3.4, `Masked` 1.9 and `Interval` 8.9. In earlier trials with 512 and 2,048 columns, `Triangular` took 0.87 and 0.69, because
its groups of rows leave out nearly half of the products; `Symmetric` 1.53 and 1.09; `NMSparse` 1.43 and 1.07;
`Masked` 1.24 and 1.00. So `Triangular` wins from about 512 columns on, with 1,024 rows
from 256, and of the others none does: they save memory, or carry what an array cannot.

With 256 rows `Toeplitz` loses, too: the Fourier transforms of 64 columns of 512 numbers are 1.5 MFLOP, on one
thread, in place of 8.4 MFLOP at ten times that speed on two. `Lora` takes three products in place of two.
Both win from 1,024 rows on. The page of quantised weights is about `NF4` and weights of 4 bits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import jaxrewrite
from jaxrewrite import values

from . import measure
from .model import check_equal
from .suite import Case, Measurement, Options, Part, Target


COLUMNS, RANK, DENSITY, BLOCK = 64, 8, 0.01, 64
PATIENCE = 3.0  # Seconds for all calls of a variant.


class Type(NamedTuple):
    """How to make a value of a given width, and a program of it and an array.

    ``made_within`` tells whether dense has to make the array at each call. For types that
    are never dense, ``dense`` gives an array in place of a value, and ``numbers`` gives the
    numbers of a result.
    """

    make: Callable[[Any, int], Any]
    program: Callable[[Any, Any], Any] = lambda v, x: v @ x
    made_within: bool = False
    dense: Callable[[Any], Any] = jaxrewrite.materialise
    numbers: Callable[[Any], Any] = jaxrewrite.materialise


def by_weight(w: Any, x: Any) -> Any:
    return x.T @ w


def random(key: Any, *shape: int) -> Any:
    return jax.random.normal(key, shape) / shape[-1] ** 0.5


def positive(key: Any, n: int) -> Any:
    return 2 + jax.random.uniform(key, (n,))


def tridiagonal(key: Any, n: int) -> Any:
    keys = jax.random.split(key, 3)
    return values.Tridiagonal(
        random(keys[0], n - 1), positive(keys[1], n), random(keys[2], n - 1)
    )


def sparse(key: Any, n: int) -> Any:
    w = random(key, n, n)
    return values.Sparse.from_dense(
        jnp.where(jax.random.uniform(key, w.shape) < DENSITY, w, 0)
    )


def lora(key: Any, n: int, w: Any = None) -> Any:
    keys = jax.random.split(key, 3)
    w = random(keys[0], n, n) if w is None else w
    return values.Lora(w, random(keys[1], n, RANK), random(keys[2], RANK, n))


def one_hot(key: Any, n: int) -> Any:
    return values.OneHot(jax.random.randint(key, (n,), 0, n), n)


def blocks(key: Any, n: int) -> Any:
    return values.BlockDiagonal(random(key, n // BLOCK, BLOCK, BLOCK))


def kronecker(key: Any, n: int) -> Any:
    p = 2 ** (n.bit_length() // 2)
    keys = jax.random.split(key)
    return values.Kronecker((random(keys[0], p, p), random(keys[1], n // p, n // p)))


def of_array(v: Any) -> Any:
    return v.array


def solve(v: Any, x: Any) -> Any:
    return jnp.linalg.solve(v, x)


TYPES: dict[str, Type] = {
    "Zero": Type(lambda key, n: values.Zero((n, n))),
    "Constant": Type(lambda key, n: values.Constant(random(key, 1)[0], (n, n))),
    "Identity": Type(lambda key, n: values.Identity(n)),
    "OneHot": Type(one_hot),
    "Diagonal": Type(lambda key, n: values.Diagonal(random(key, n))),
    "Diagonal, solve": Type(lambda key, n: values.Diagonal(positive(key, n)), solve),
    "Tridiagonal": Type(tridiagonal),
    "Tridiagonal, solve": Type(tridiagonal, solve),
    "Banded": Type(lambda key, n: values.Banded(random(key, 5, n), 2, 2)),
    "Triangular": Type(lambda key, n: values.Triangular(random(key, n, n))),
    "Triangular, solve": Type(
        lambda key, n: values.Triangular(random(key, n, n) / 9 + 3 * jnp.eye(n)), solve
    ),
    "Symmetric": Type(lambda key, n: values.Symmetric(random(key, n, n))),
    "Permutation": Type(lambda key, n: values.Permutation(jax.random.permutation(key, n))),
    "BlockDiagonal": Type(blocks),
    "Kronecker": Type(kronecker),
    "Toeplitz": Type(lambda key, n: values.Toeplitz(random(key, n), random(key, n))),
    "Circulant": Type(lambda key, n: values.Circulant(random(key, n))),
    "LowRank": Type(
        lambda key, n: values.LowRank(random(key, n, RANK), random(key, RANK, n)), by_weight
    ),
    "Sparse, 1%": Type(sparse),
    "NMSparse, 2:4": Type(
        lambda key, n: values.NMSparse.prune(random(key, n, n), 2, 4), by_weight
    ),
    "Sum, diagonal and low rank": Type(
        lambda key, n: values.Sum(
            (
                values.Diagonal(random(key, n)),
                values.LowRank(random(key, n, RANK), random(key, RANK, n)),
            )
        )
    ),
    "Product, diagonal and circulant": Type(
        lambda key, n: values.Product(
            (values.Diagonal(random(key, n)), values.Circulant(random(key, n)))
        )
    ),
    "Scaled, of a diagonal": Type(
        lambda key, n: values.Scaled(values.Diagonal(random(key, n)), jnp.float32(2))
    ),
    "Lora": Type(lora, by_weight, made_within=True),
    "Quantised, 8 bits": Type(
        lambda key, n: values.Quantised.quantise(random(key, n, n), 8, axis=1), by_weight
    ),
    "Quantised, 4 bits in blocks": Type(
        lambda key, n: values.Quantised.quantise(random(key, n, n), 4, block=BLOCK),
        by_weight,
    ),
    "NF4": Type(lambda key, n: values.NF4.quantise(random(key, n, n)), by_weight),
    "Lora on NF4": Type(
        lambda key, n: lora(key, n, values.NF4.quantise(random(key, n, n))),
        by_weight,
        made_within=True,
    ),
    "Tagged": Type(lambda key, n: values.Tagged(random(key, n, n), "weight")),
    "Named": Type(lambda key, n: values.Named(random(key, n, n), ("out", None))),
    "Unitful": Type(
        lambda key, n: values.Unitful(random(key, n, n), "m"),
        dense=of_array,
        numbers=of_array,
    ),
    "Masked": Type(
        lambda key, n: values.Masked(random(key, n, n), jnp.zeros((n, n), bool)),
        dense=of_array,
        numbers=of_array,
    ),
    "Interval": Type(
        lambda key, n: values.Interval(*(random(key, n, n),) * 2),
        dense=lambda v: v.lower,
        numbers=lambda v: v.lower,
    ),
}


# The types of a run that takes about a minute.
MAIN = ("Diagonal", "Circulant", "LowRank", "Sparse, 1%", "Lora", "NF4")


def run(options: Options, progress: Callable[[str], None]) -> Iterator[Measurement]:
    for width in options.of((64,), (1024,), (256, 1024, 4096)):
        x = jax.random.normal(jax.random.key(1), (width, COLUMNS))
        for name in options.of(MAIN, MAIN, [*TYPES]):
            kind = TYPES[name]
            progress(f"{name}, width {width}")
            value = kind.make(jax.random.key(width), width)
            yield from _case(Case("types", name, width), value, kind, x, options)


def _case(
    case: Case, value: Any, kind: Type, x: Any, options: Options
) -> Iterator[Measurement]:
    implicit = jaxrewrite.transform(kind.program, materialise="forbid")
    variants: dict[str, Any] = {
        "dense": (kind.program, kind.dense(value)),
        "implicit": (lambda v, x: kind.numbers(implicit(v, x)), value),
    }
    if kind.made_within:
        dense = lambda v, x: kind.program(jaxrewrite.materialise(v), x)
        variants["dense"] = dense, value
    stage = {
        variant: lambda f=fn, v=operand: jax.jit(lambda v, x: f(v, x)).lower(v, x).compile()
        for variant, (fn, operand) in variants.items()
    }
    calls = {
        v: functools.partial(stage[v](), operand, x) for v, (_, operand) in variants.items()
    }
    check_equal(case.name, {v: call() for v, call in calls.items()}, 5e-3)
    said = {v: measure.said_by_xla(call.func) for v, call in calls.items()}
    nothing = jax.jit(lambda x: x[0]).lower(x).compile()
    longest = max(measure.seconds(call)[0] for call in calls.values())
    most = options.repeats or options.of(2, 15, 40)
    samples = measure.interleaved(
        calls | {"nothing": functools.partial(nothing, x)},
        max(min(3, most), min(most, int(PATIENCE / longest))),
        warm_up=2,
    )
    floor = measure.median(samples.pop("nothing"))
    times = case.timed("wall time", samples)
    yield from times
    yield from _promise(case, {t.variant: t.value or 0.0 for t in times}, floor, said)
    stagings = measure.interleaved(stage, options.of(1, 2, 3), warm_up=0)
    yield from case.timed("setting up", stagings)
    for quantity, unit in (("FLOPs", ""), ("bytes", "B"), ("memory", "B")):
        yield from case.exact(quantity, {v: s[quantity] for v, s in said.items()}, unit)


def _promise(
    case: Case, times: dict[str, float], floor: float, said: dict[str, dict[str, float]]
) -> list[Measurement]:
    counts = [
        said["dense"][quantity] / max(said["implicit"][quantity], 1.0)
        for quantity in ("FLOPs", "bytes")
    ]
    promised = floor + max(times["dense"] - floor, 0.0) / max(min(counts), 1e-9)
    return case.exact(
        "time over the promised", {"implicit": times["implicit"] / promised}, "x"
    )


PART = Part(
    "types",
    "Ready value types over their width",
    __doc__ or "",
    "dense",
    run,
    {"time over the promised": Target(1 / 0.7, is_ratio=False)},
    ("wall time",),
)

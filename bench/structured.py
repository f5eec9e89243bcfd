"""What linear algebra with each structured type costs, over the size.

Dense is the same program with an array made before, up to the size at which it takes too
long. The *slope* is that of the time between the two largest sizes, in logarithms: 1 is in
proportion to n, and 3 to its cube. *Formula* is the slope that the number of operations
promises: it is less where a call takes longer than its arithmetic, and more where
larger arrays leave the processor's cache. *Wins from* is the least of these sizes from which
on the structured program is faster. All products and solves are with one vector.

The Gaussian processes are log-likelihoods with gradients by the length scale and the noise.
On a grid, the covariance is a Kronecker product plus noise; on points, features times their
transpose plus a diagonal matrix. Dense is by a Cholesky factor, implicit by `jnp.linalg.solve` and
``slogdet``.

Some products with one vector never win, and some only for larger matrices. A dense product reads its
n x n numbers once, and does two operations with each. ``Triangular`` reads half of them. But the
numbers beside the triangle may be anything, so it copies each block with zeros in their place, and
multiplies the copy while that is in the processor's cache: half as many products, and twice as many
numbers read or written for each. It takes 1.4 to 2.2 of dense with 512 to 2,048 rows, and took 1.1 in
another run. ``Symmetric`` multiplies each such block for its rows and for its columns, which are as
many products as in dense and the copies besides. It takes 2.1 to 2.5, and took 1.4 in that run, where
copies of the whole array took 2.2 and 4.7. What they gain is in
solves and determinants; the Cholesky factor of ``Symmetric`` is the dense one, after the triangle is mirrored.

With 256 rows dense needs 65,536 products, about 15 us of arithmetic. That is as long as a call of a few
kernels takes, whatever they do: ``Kronecker``, ``Circulant`` and ``Toeplitz`` take 1.1, 1.5 and 2.2 of dense
there, with a few thousand operations in two to six kernels. They win from 1,024 rows on.
``Triangular`` takes 3.4 and ``Symmetric`` 1.8 with 256 rows, because the copy is a kernel of its own.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.sparse import BCOO

import jaxrewrite
from jaxrewrite import values

from . import measure
from .model import check_equal
from .suite import Case, Measurement, Options, Part


BANDS, BLOCK, RANK = 2, 32, 8
PATIENCE = 0.15  # Seconds for all calls of a variant.


# --- matrices, positive definite where that matters ---------------------------------------


def random(key: Any, *shape: int) -> Any:
    return jax.random.normal(key, shape) / shape[-1] ** 0.5


def positive(key: Any, *shape: int) -> Any:
    return 4 + jax.random.uniform(key, shape)


def diagonal(key: Any, n: int) -> Any:
    return values.Diagonal(positive(key, n))


def tridiagonal(key: Any, n: int) -> Any:
    off = random(key, 1, n - 1)[0]
    return values.Tridiagonal(off, positive(key, n), off)


def banded(key: Any, n: int) -> Any:
    above = jax.random.uniform(key, (BANDS, n))
    below = [jnp.roll(above[BANDS - d], -d) for d in range(1, BANDS + 1)]
    bands = jnp.stack([*above, positive(key, n), *below])
    return values.Banded(bands, BANDS, BANDS)


def covariance(key: Any, *shape: int) -> Any:
    """A positive definite matrix that is far from singular."""
    x = random(key, *shape)
    return x @ jnp.swapaxes(x, -1, -2) + jnp.eye(shape[-1])


def blocks(key: Any, n: int) -> Any:
    return values.BlockDiagonal(covariance(key, n // BLOCK, BLOCK, BLOCK))


def factors(n: int) -> tuple[int, int]:
    p = 2 ** ((n.bit_length() - 1) // 2)
    return p, n // p


def kronecker(key: Any, n: int) -> Any:
    parts = (values.Symmetric(covariance(key, k, k), positive=True) for k in factors(n))
    return values.Kronecker(tuple(parts))


def circulant(key: Any, n: int) -> Any:
    return values.Circulant((random(key, n) / 4).at[0].add(2))


def toeplitz(key: Any, n: int) -> Any:
    return values.Toeplitz(random(key, n), random(key, n))


def low_rank_plus_diagonal(key: Any, n: int) -> Any:
    u = random(key, n, RANK)
    return values.Sum((diagonal(key, n), values.LowRank(u, u.T)))


def triangular(key: Any, n: int) -> Any:
    return values.Triangular(random(key, n, n) / 9 + 3 * jnp.eye(n))


def symmetric(key: Any, n: int) -> Any:
    return values.Symmetric(covariance(key, n, n), positive=True)


def permutation(key: Any, n: int) -> Any:
    return values.Permutation(jax.random.permutation(key, n))


def five_a_row(key: Any, n: int) -> Any:
    rows = np.repeat(np.arange(n), 5)
    columns = (rows + np.tile([-32, -1, 0, 1, 32], n)) % n
    indices = jnp.asarray(np.stack([rows, columns], 1), "int32")
    matrix = BCOO((random(key, 5, 5 * n)[0], indices), shape=(n, n), unique_indices=True)
    return values.Sparse(matrix)


# --- programs -----------------------------------------------------------------------------


def product(v: Any, x: Any) -> Any:
    return v @ x


def solve(v: Any, x: Any) -> Any:
    return jnp.linalg.solve(v, x)


def determinant(v: Any, x: Any) -> Any:
    return jnp.linalg.slogdet(v)[1]


def cholesky(v: Any, x: Any) -> Any:
    # The average with the transpose would be a `Sum` for some types.
    return jnp.linalg.cholesky(v, symmetrize_input=False) @ x


class Costs(NamedTuple):
    """A type, and how many operations its programs take, up to a factor."""

    make: Callable[[Any, int], Any]
    operations: dict[Callable[..., Any], Callable[[float], float]]
    largest: int = 2**15


def linear(n: float) -> float:
    return n


def with_logarithm(n: float) -> float:
    return n * math.log(n)


def one_and_a_half(n: float) -> float:
    return n**1.5


def square(n: float) -> float:
    return n**2


def cube(n: float) -> float:
    return n**3


ALL = (product, solve, determinant, cholesky)
TYPES: dict[str, Costs] = {
    "Diagonal": Costs(diagonal, dict.fromkeys(ALL, linear)),
    "Permutation": Costs(permutation, dict.fromkeys(ALL[:3], linear)),
    "Tridiagonal": Costs(tridiagonal, dict.fromkeys(ALL, linear)),
    "Banded, 5 diagonals": Costs(banded, dict.fromkeys(ALL, linear)),
    f"BlockDiagonal, {BLOCK}": Costs(blocks, dict.fromkeys(ALL, linear)),
    "Kronecker": Costs(kronecker, dict.fromkeys(ALL, one_and_a_half)),
    "Circulant": Costs(circulant, dict.fromkeys(ALL[:3], with_logarithm)),
    "Toeplitz": Costs(toeplitz, {product: with_logarithm}),
    f"Diagonal plus rank {RANK}": Costs(
        low_rank_plus_diagonal, dict.fromkeys(ALL[:3], linear)
    ),
    "Sparse, 5 a row": Costs(five_a_row, {product: linear}),
    "Triangular": Costs(
        triangular, {product: square, solve: square, determinant: linear}, 2**12
    ),
    "Symmetric, positive": Costs(
        symmetric, {product: square, solve: cube, determinant: cube, cholesky: cube}, 2**12
    ),
}


# --- Gaussian processes ---------------------------------------------------------------------


def kernel(scale: Any, n: int) -> Any:
    points = jnp.linspace(0.0, 1.0, n)
    smooth = jnp.exp(-jnp.abs(points[:, None] - points) / scale)
    return values.Symmetric(smooth, positive=True)


def on_grid(parameters: Any, n: int) -> Any:
    scale, noise = parameters
    smooth = values.Kronecker(tuple(kernel(scale, k) for k in factors(n)))
    return smooth, values.Scaled(values.Identity(n), noise)


def on_points(parameters: Any, n: int) -> Any:
    """Random features of points in three dimensions, and a noise for each."""
    scale, noise = parameters
    keys = jax.random.split(jax.random.key(0))
    points = jax.random.normal(keys[0], (n, 3))
    frequencies = jax.random.normal(keys[1], (3, RANK // 2)) / scale
    waves = jnp.concatenate(
        [jnp.cos(points @ frequencies), jnp.sin(points @ frequencies)], 1
    )
    features = waves * (2 / RANK) ** 0.5
    return values.LowRank(features, features.T), values.Diagonal(jnp.full(n, noise))


def likelihood(parameters: Any, y: Any, process: Callable[..., Any]) -> Any:
    """The logarithm of the likelihood, up to a constant."""

    def program(smooth: Any, noise: Any, y: Any) -> Any:
        k = smooth + noise
        return -(y @ jnp.linalg.solve(k, y) + jnp.linalg.slogdet(k)[1]) / 2

    terms = process(parameters, len(y))
    return jaxrewrite.transform(program, materialise="forbid")(*terms, y)


def dense_likelihood(parameters: Any, y: Any, process: Callable[..., Any]) -> Any:
    smooth, noise = process(parameters, len(y))
    k = jaxrewrite.materialise(smooth) + jaxrewrite.materialise(noise)
    factor = jnp.linalg.cholesky(k)
    white = jax.scipy.linalg.solve_triangular(factor, y, lower=True)
    return -white @ white / 2 - jnp.log(jnp.diagonal(factor)).sum()


def with_gradient(fn: Callable[..., Any]) -> Callable[..., Any]:
    def program(parameters: Any, y: Any) -> Any:
        value, gradient = jax.value_and_grad(fn)(parameters, y)
        return jnp.stack([value, *gradient])

    return program


PROCESSES: dict[str, tuple[Callable[..., Any], Callable[[float], float]]] = {
    "Gaussian process on a grid": (on_grid, one_and_a_half),
    "Gaussian process on points": (on_points, linear),
}


# --- measuring ------------------------------------------------------------------------------


def run(options: Options, progress: Callable[[str], None]) -> Iterator[Measurement]:
    sizes = options.of(
        (128, 256), (256, 1024, 4096, 2**15), (256, 512, 1024, 2048, 4096, 2**15)
    )
    densest = options.of(128, 1024, 2048)
    for name, costs in TYPES.items():
        own = [n for n in sizes if n <= costs.largest]
        for program, operations in costs.operations.items():
            case = f"{name}: {program.__name__}"

            def variants(n: int, costs: Any = costs, program: Any = program) -> Any:
                v = costs.make(jax.random.key(0), n)
                x = jax.random.normal(jax.random.key(1), (n,))
                fn = jaxrewrite.transform(program, materialise="forbid")
                found = {"implicit": (lambda v, x: jaxrewrite.materialise(fn(v, x)), v, x)}
                if n <= densest:
                    found["dense"] = program, jaxrewrite.materialise(v), x
                return found

            yield from _over_sizes(case, own, variants, operations, options, progress)
    for case, (process, operations) in PROCESSES.items():

        def likelihoods(n: int, process: Any = process) -> Any:
            y = jax.random.normal(jax.random.key(1), (n,))
            fns = {"implicit": likelihood}
            if n <= densest:
                fns["dense"] = dense_likelihood
            at = jnp.float32(0.3), jnp.float32(0.5)
            return {
                variant: (with_gradient(functools.partial(fn, process=process)), at, y)
                for variant, fn in fns.items()
            }

        yield from _over_sizes(case, sizes, likelihoods, operations, options, progress)


def _over_sizes(
    name: str,
    sizes: Sequence[int],
    variants: Callable[[int], dict[str, Any]],
    operations: Callable[[float], float],
    options: Options,
    progress: Callable[[str], None],
) -> Iterator[Measurement]:
    medians: dict[str, dict[int, float]] = {}
    for n in sizes:
        progress(f"{name}, {n}")
        calls = {}
        for variant, (fn, *operands) in variants(n).items():
            compiled = jax.jit(fn).lower(*operands).compile()
            calls[variant] = functools.partial(compiled, *operands)
        check_equal(name, {variant: call() for variant, call in calls.items()}, 2e-2)
        longest = max(measure.seconds(call)[0] for call in calls.values())
        most = options.repeats or options.of(2, 25, 60)
        count = max(min(3, most), min(most, int(PATIENCE / longest)))
        times = Case("structured", name, n).timed(
            "wall time", measure.interleaved(calls, count)
        )
        yield from times
        for time in times:
            medians.setdefault(time.variant, {})[n] = time.value or 0.0
    yield from _summary(Case("structured", name), medians, operations)


def _summary(
    case: Case, medians: dict[str, dict[int, float]], operations: Callable[[float], float]
) -> Iterator[Measurement]:
    slopes = {
        variant: _slope(times) for variant, times in medians.items() if len(times) > 1
    }
    formula = _slope({n: operations(n) for n in medians["implicit"]})
    yield from case.exact("slope", slopes | {"formula": formula}, "x")
    implicit, dense = medians["implicit"], medians["dense"]
    won: float | None = None
    for n in sorted(dense, reverse=True):
        if implicit[n] >= dense[n]:
            break
        won = n
    row = ("structured", case.name, None, "wins from", "implicit", "")
    yield Measurement(*row, None, note="no size") if won is None else Measurement(*row, won)


def _slope(times: dict[int, float]) -> float:
    """The slope between the two largest sizes, of logarithms."""
    *_, first, second = sorted(times)
    return math.log(times[second] / times[first]) / math.log(second / first)


PART = Part(
    "structured",
    "Structured linear algebra over the size",
    __doc__ or "",
    "dense",
    run,
    drawn=("wall time",),
)

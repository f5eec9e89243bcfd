"""Random programs: what they compute of quantities does not depend on the units of these.

A program that runs on `Unitful` is run once more on plain numbers, of which those in metres
and in seconds are multiplied by powers of two. Each result has to be multiplied by the
powers that its units say.
"""

import functools
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxrewrite
from jaxrewrite.values import Unitful, UnitsError


pytestmark = pytest.mark.usefixtures("double")


def matrix_of(x):
    """A positive definite matrix, with the units of the square."""
    return jnp.outer(x, x) + jnp.diag(x * x)


UNARY = [
    *(
        lambda x: jnp.linalg.solve(matrix_of(x), x),
        lambda x: jnp.linalg.inv(matrix_of(x))[0],
    ),
    *(
        lambda x: jnp.linalg.det(matrix_of(x)),
        lambda x: jnp.linalg.cholesky(matrix_of(x))[2],
    ),
    *(lambda x: jax.scipy.linalg.solve(matrix_of(x), x, assume_a="pos"), lambda x: x**1.5),
    lambda x: jax.scipy.sparse.linalg.cg(matrix_of(x), x, maxiter=2)[0],
    *(jnp.negative, jnp.abs, jnp.sqrt, jnp.cbrt, lax.rsqrt, jnp.cumsum, jnp.sort, jnp.sign),
    *(jnp.exp, jnp.sin, jnp.var, jnp.prod, jnp.cumprod, jnp.linalg.norm, jax.nn.relu),
    *(lambda x: 2 * x, lambda x: x * x, lambda x: 1 / x, lambda x: x**0.5, lambda x: x**0),
    *(lambda x: x.at[0].set(0.0), lambda x: jnp.where(x > x[0], x, 0.0), jnp.flip),
    *(lambda x: jnp.maximum(x, 0), lambda x: jnp.minimum(x, jnp.inf), lambda x: x + 0),
    *(lambda x: jnp.pad(x[:-1], (1, 0)), lambda x: jnp.where(jnp.isnan(x), 0.0, x)),
    *(lambda x: x / x.sum(), lambda x: x - x.mean(), lambda x: x @ jnp.ones((3, 3))),
    *(lambda x: jnp.isfinite(x) * 1.0, lambda x: jnp.argsort(x) * 1.0, lambda x: x == 0),
    *(lambda x: jnp.fft.ifft(jnp.fft.fft(x)).real, lambda x: lax.clamp(0.0, x, jnp.inf)),
]
BINARY = [
    *(jnp.add, jnp.subtract, jnp.multiply, jnp.divide, jnp.maximum, jnp.arctan2, jnp.power),
    lambda x, y: jnp.linalg.solve(matrix_of(x), jnp.outer(x, y))[:, 0],
    *(lambda x, y: jnp.where(x > 0, x, y), lax.rem, lambda x, y: (x < y) * 1.0),
    *(lambda x, y: x.at[1].set(y[0]), lambda x, y: x.at[0].add(y[1]), jnp.dot),
    *(lambda x, y: jnp.concatenate([x[:1], y[1:]]), lambda x, y: jnp.convolve(x, y)[:3]),
    *(
        lambda x, y: lax.complex(x, y).imag,
        lambda x, y: lax.dynamic_update_slice(x, y[:1], (1,)),
    ),
]
FILLS = [
    lambda c: jnp.full(3, c),
    lambda c: jnp.full(3, c)[::-1],
    lambda c: jnp.full(3, c) * jnp.arange(3.0),
    lambda c: jnp.sqrt(jnp.square(c)) / jnp.full(3, 2.0),
    lambda c: jnp.concatenate([jnp.zeros(1), jnp.full(2, c)]),
    lambda c: jax.jit(lambda: jnp.full(3, c))(),
]
NUMBERS = [0.0, 0.0, 0.0, jnp.inf, -jnp.inf, jnp.nan, 1.0]


def filled(rng):
    fill, number = rng.choice(FILLS), rng.choice(NUMBERS)
    return lambda: fill(number)


def random_body(rng, depth=0):
    """A function that appends arrays to a list, with one higher-order primitive at the end."""
    steps = []
    for _ in range(rng.randint(1, 3)):
        fn, count = rng.choice([(UNARY, 1), (BINARY, 2), (BINARY, 2), ([filled(rng)], 0)])
        steps.append((rng.choice(fn), [rng.randrange(100) for _ in range(count)]))
    # Such a `lax.while_loop` has no gradient, so it is the outermost one.
    kinds = [
        "fori",
        "scan",
        "cond",
        "jit",
        "grad",
        "none",
        *(["while"] if not depth else []),
    ]
    kind = rng.choice(kinds) if depth < 2 else "none"
    inner = random_body(rng, depth + 1) if kind != "none" else None
    start, first = filled(rng), rng.random() < 0.5

    def body(arrays):
        arrays = list(arrays)
        for fn, places in steps:
            result = fn(*[arrays[place % len(arrays)] for place in places])
            arrays.append(jnp.broadcast_to(jnp.asarray(result, float), (3,)))
        last = lambda more: inner([*arrays, more])[-1]
        if kind == "fori":
            arrays.append(lax.fori_loop(0, 2, lambda i, c: last(c), start()))
        elif kind == "while":
            turn = lambda c: (c[0] + 1, last(c[1]))
            arrays.append(lax.while_loop(lambda c: c[0] < 2, turn, (0, start()))[1])
        elif kind == "scan":
            turn = lambda c, _: tuple(inner([*arrays, c])[-2:])
            c, ys = lax.scan(turn, start(), length=2)
            arrays += [c, ys[0]]
        elif kind == "cond":
            branches = lambda: last(start()), start
            arrays.append(lax.cond(jnp.array(first), *branches))
        elif kind == "jit":
            arrays.append(jax.jit(last)(start()))
        elif kind == "grad":
            arrays.append(jax.grad(lambda x: jnp.sum(last(x)))(arrays[-1]))
        return arrays

    return body


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("start", range(0, 400, 100))
def test_numbers_follow_their_units(start, bulk):
    runs = 0
    for seed in range(start, start + 100):
        body = random_body(random.Random(seed))
        program = jax.jit(lambda x, s, body=body: body([x, s]))
        x, s = np.random.default_rng(seed).uniform(0.5, 2, (2, 3)) * [1, -1, 1]
        try:
            results = jaxrewrite.transform(program)(Unitful(x, "m"), Unitful(s, "s"))
        except UnitsError:
            continue
        runs += 1
        plain, other = program(x, s), program(8 * x, 32 * s)
        for i, (got, before, after) in enumerate(zip(results, plain, other, strict=True)):
            units = dict(got.units.exponents) if isinstance(got, Unitful) else {}
            factor = 8.0 ** float(units.get("m", 0)) * 32.0 ** float(units.get("s", 0))
            array = got.array if isinstance(got, Unitful) else got
            same = functools.partial(
                np.testing.assert_allclose, rtol=1e-9, err_msg=f"{seed} {i}"
            )
            same(array, before)
            same(after, before * factor)
    assert runs > 30

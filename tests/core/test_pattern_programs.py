"""Random programs with what patterns look for at random places: all of it is found."""

import functools
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.scipy.special import erf

from jaxrewrite import Rules, explain, transform


# What is looked for, in two parts, so that a border may be between them. Random programs
# have none of these primitives by chance: exp, log, sqrt, erf, logistic, tanh.
LEFT_SIDES = {
    "normalised": (
        lambda x, y: (x, jnp.sum(jnp.exp(x), axis=-1, keepdims=True)),
        lambda x, s: x - jnp.log(s),
    ),
    "length": (lambda x, y: (x * x, y * y), lambda p, q: jnp.sqrt(p + q + 1)),
    "gate": (lambda x, y: (x, jax.nn.sigmoid(y)), lambda x, s: x * s),
    "error": (lambda x, y: (jnp.tanh(x @ y), x), lambda t, x: erf(t) + x),
}
RULES = Rules()


def whole(name):
    first, second = LEFT_SIDES[name]
    return lambda x, y: second(*first(x, y))


@RULES.rewrite(lambda x: whole("normalised")(x, x))
def normalised(x):
    return jax.nn.log_softmax(x)


@RULES.rewrite(whole("length"))
def length(x, y):
    return jnp.sqrt(1 + jnp.square(y) + jnp.square(x))


@RULES.rewrite(whole("gate"))
def gate(x, y):
    return x / (1 + jnp.exp(-y))


@RULES.rewrite(whole("error"))
def error(x, y):
    return x + erf(jnp.tanh(x @ y))


def in_two_jits(first, second, x, y):
    return jax.jit(second)(*jax.jit(first)(x, y))


def in_scan(first, second, x, y):
    def turn(carry, row):
        return second(*first(carry, y)) / 4, row

    return lax.scan(turn, x, y)[0]


def in_while(first, second, x, y):
    def turn(state):
        return state[0] + 1, second(*first(state[1], y)) / 4

    return lax.fori_loop(0, 2, lambda i, c: turn((i, c))[1], x)


def in_branch(first, second, x, y):
    return lax.cond(x[0, 0] > 0, lambda x, y: second(*first(x, y)), jnp.subtract, x, y)


PLACES = {
    "inline": lambda first, second, x, y: second(*first(x, y)),
    "jit": lambda first, second, x, y: jax.jit(lambda x, y: second(*first(x, y)))(x, y),
    "first part in jit": lambda first, second, x, y: second(*jax.jit(first)(x, y)),
    "second part in jit": lambda first, second, x, y: jax.jit(second)(*first(x, y)),
    "two jits": in_two_jits,
    "jit in jit": lambda first, second, x, y: jax.jit(
        functools.partial(in_two_jits, first, second)
    )(x, y),
    "scan": in_scan,
    "loop": in_while,
    "branch": in_branch,
    "jit of scan": lambda first, second, x, y: jax.jit(
        functools.partial(in_scan, first, second)
    )(x, y),
    "checkpoint": lambda first, second, x, y: jax.checkpoint(
        lambda x, y: second(*first(x, y))
    )(x, y),
    "vmap": lambda first, second, x, y: jax.vmap(lambda x, y: second(*first(x, y)))(
        jnp.stack([x, y]), jnp.stack([y, x])
    )[0],
}
UNARY = [jnp.sin, jnp.cos, jnp.negative, jnp.abs, lambda x: x.T, lambda x: x[::-1]]
BINARY = [
    jnp.add,
    jnp.subtract,
    jnp.maximum,
    jnp.multiply,
    lambda x, y: jnp.where(x > y, x, 0),
]


def program(seed):
    """A program of two matrices, and how many left sides a pattern may take."""
    rng = random.Random(seed)
    steps, expected = [], 0
    for _ in range(rng.randint(2, 4)):
        for _ in range(rng.randint(0, 3)):
            steps.append(("op", rng.choice(UNARY + BINARY), rng.random(), rng.random()))
        name, place = rng.choice([*LEFT_SIDES]), rng.choice([*PLACES])
        is_shared = rng.random() < 0.2 and place in ("inline", "second part in jit")
        expected += not is_shared
        steps.append(("left", (name, place, is_shared), rng.random(), rng.random()))

    def fn(x, y):
        values = [x, y]
        for kind, what, a, b in steps:
            x, y = (values[int(u * len(values))] for u in (a, b))
            if kind == "op":
                values.append(what(x) if what in UNARY else what(x, y))
                continue
            name, place, is_shared = what
            first, second = LEFT_SIDES[name]
            if not is_shared:
                values.append(PLACES[place](first, second, x, y))
                continue
            parts = first(x, y)
            values.append(second(*parts) + sum(jnp.sum(jnp.cos(p)) for p in parts))
        return sum(jnp.sum(jnp.cos(value)) for value in values)

    return fn, expected


def check(seeds):
    """All left sides are found, and results and gradients are the originals'."""
    programs = {seed: program(seed) for seed in seeds}
    numbers = np.random.default_rng(seeds[0])
    operands = [jnp.asarray(numbers.normal(size=(3, 3)), jnp.float32) for _ in range(2)]
    for seed, (fn, expected) in programs.items():
        steps = explain(fn, rules=RULES)(*operands).steps
        found = [step.rule.name for step in steps if step.decision == "pattern"]
        assert len(found) == expected, (seed, found, expected)

    @jax.jit  # Compiling many programs at once takes less time.
    def outcomes(x, y):
        return {
            seed: [
                jax.value_and_grad(f, (0, 1))(x, y)
                for f in (transform(fn, rules=RULES), fn)
            ]
            for seed, (fn, _) in programs.items()
        }

    for seed, (got, want) in outcomes(*operands).items():
        np.testing.assert_allclose(got[0], want[0], 1e-4, 1e-4, err_msg=str(seed))
        for a, b in zip(got[1], want[1], strict=True):
            np.testing.assert_allclose(a, b, 1e-3, 1e-3, err_msg=str(seed))


def test_random_programs(bulk):
    check(range(3))


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, 2000, 25))
def test_many_random_programs(start, bulk):
    check(range(start, start + 25))
    jax.clear_caches()

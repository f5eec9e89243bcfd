"""What is known of the arrays that a program fills with numbers."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxrewrite._analyses.adopting import _numbers_of_body
from jaxrewrite._analyses.written import UNKNOWN, Fact, Kind, Written, either, filled


X = jnp.array([[0.5, -2.0], [3.0, 1.5]])
MOST = float(jnp.finfo("float32").max)


def known(fact):
    """The number, or the kind, to compare."""
    return float(fact.number) if fact.is_number else fact.kind


def fact_about(fn, *args):
    jaxpr = jax.make_jaxpr(fn)(*args).jaxpr
    (result,) = jaxpr.outvars
    return Written(jaxpr.eqns, {})(result)


def loop(start, turn, n=3):
    return lax.fori_loop(0, n, lambda i, c: turn(c), start)


forgetful = jax.custom_jvp(lambda x, k: jnp.full(3, k))
forgetful.defjvp(lambda xs, ts: (forgetful(*xs), ts[0]))


PROGRAMS = {
    "unknown": (lambda x: x + 1, Kind.UNKNOWN),
    "filled": (lambda x: jnp.full_like(x, 7), 7),
    "moved": (lambda x: jnp.full((2, 3), 7.0).T[1:, None, ::-1].reshape(-1), 7),
    "computed": (lambda x: -jnp.sqrt(jnp.full(2, 4.0)) * 3 / 2 + 1, -2),
    "of a call": (lambda x: jax.jit(lambda y, n: y * 0 + n)(jnp.ones(3), 2.0), 2),
    "square": (lambda x: jnp.square(jnp.full(2, -3.0)), 9),
    "integers": (lambda x: jnp.full(2, 3, "int32").astype("float32"), 3),
    "truncated": (lambda x: jnp.full(2, 2.5).astype("int32"), Kind.UNKNOWN),
    "no scale": (lambda x: x * 0, Kind.NO_SCALE),
    "divided": (lambda x: x / jnp.inf, Kind.NO_SCALE),
    "chosen": (lambda x: jnp.where(x > 0, 0.0, -jnp.inf), Kind.NO_SCALE),
    "chosen, the same": (lambda x: jnp.where(x > 0, 4.0, 4.0), 4),
    "chosen, or the largest": (lambda x: jnp.where(x > 0, 0.0, MOST), Kind.LARGEST),
    "its negative": (lambda x: -jnp.where(x > 0, 0.0, MOST), Kind.LARGEST),
    "its root": (lambda x: jnp.sqrt(jnp.where(x > 0, 0.0, MOST)), Kind.WRITTEN),
    "its square": (lambda x: jnp.square(jnp.where(x > 0, 0.0, MOST)), Kind.NO_SCALE),
    "several": (lambda x: jnp.where(x > 0, 1.0, 2.0), Kind.WRITTEN),
    "chosen, or not": (lambda x: jnp.where(x > 0, x, 0.0), Kind.UNKNOWN),
    "chosen by a number": (
        lambda x: lax.select_n(jnp.zeros((2, 2), bool), x * 0, x),
        Kind.NO_SCALE,
    ),
    "chosen by a comparison": (
        lambda x: jnp.where(jnp.full(3, 4.0) > 3, jnp.full(3, 6.0), jnp.arange(3.0)),
        6,
    ),
    "masked bits": (lambda x: jnp.full(3, 6) & 3 | 8, 10),
    "the same bits": (
        lambda x: lax.bitcast_convert_type(jnp.full(3, 0x40000000), "float32"),
        2,
    ),
    "bytes of zeros": (
        lambda x: lax.bitcast_convert_type(jnp.zeros((3, 4), "uint8"), "float32"),
        0,
    ),
    "bytes of others": (
        lambda x: lax.bitcast_convert_type(jnp.ones((3, 4), "uint8"), "float32"),
        Kind.UNKNOWN,
    ),
    "joined": (lambda x: jnp.concatenate([jnp.zeros(2), jnp.zeros(3)]), 0),
    "a branch": (
        lambda x: lax.cond(x[0, 0] > 0, lambda: 0.0, lambda: jnp.inf),
        Kind.NO_SCALE,
    ),
    "a branch, unknown": (
        lambda x: lax.cond(x[0, 0] > 0, lambda x: x, jnp.zeros_like, x),
        Kind.UNKNOWN,
    ),
    "a loop": (lambda x: loop(jnp.zeros(2), lambda c: -c * 3), Kind.NO_SCALE),
    "a loop, kept": (lambda x: loop(jnp.zeros(2), lambda c: c[::-1]), 0),
    "a loop, counting": (lambda x: loop(jnp.zeros(2), lambda c: c + 1), Kind.UNKNOWN),
    "a loop, unknown": (lambda x: loop(jnp.zeros((2, 2)), lambda c: c + x), Kind.UNKNOWN),
    "a while loop": (
        lambda x: lax.while_loop(lambda c: c[1, 1] > 1, lambda c: c.T, jnp.zeros_like(x)),
        0,
    ),
    "a while loop that may not turn": (
        lambda x: lax.while_loop(lambda c: c[0] > x[0, 0], lambda c: c * 0, jnp.ones(3)),
        Kind.WRITTEN,
    ),
    "ys": (lambda x: lax.scan(lambda c, y: (c, c * 2), 3.0, x)[1], 6),
    "read beyond": (
        lambda x: jnp.take(jnp.zeros(3), jnp.array([9]), mode="fill"),
        Kind.NO_SCALE,
    ),
    "integers read beyond": (
        lambda x: jnp.take(jnp.zeros(3, int), jnp.array([9]), mode="fill"),
        Kind.WRITTEN,
    ),
    "read within": (lambda x: jnp.take(jnp.zeros(3), jnp.array([9]), mode="clip"), 0),
    "filled beyond": (
        lambda x: jnp.zeros(3).at[jnp.array([9])].get(mode="fill", fill_value=0.0),
        0,
    ),
    "updated": (lambda x: jnp.zeros(3).at[jnp.array([1])].set(0.0), 0),
    "updated by a function": (
        lambda x: jnp.zeros(3).at[jnp.array([1])].apply(jnp.cos),
        Kind.UNKNOWN,
    ),
    "a product of zeros": (lambda x: jnp.zeros((2, 3)) @ jnp.zeros((3, 1)), 0),
    "a product": (lambda x: jnp.zeros((2, 2)) @ x, Kind.UNKNOWN),
    "a sum of negative zeros": (lambda x: jnp.full(3, -0.0).sum(), Kind.UNKNOWN),
    "the greatest of none": (
        lambda x: lax.reduce_max(jnp.zeros((0, 2)), (0,)),
        Kind.UNKNOWN,
    ),
    "padded": (lambda x: jnp.pad(jnp.zeros(2), 1), 0),
    "padded with ones": (
        lambda x: jnp.pad(jnp.zeros(2), 1, constant_values=1),
        Kind.UNKNOWN,
    ),
    "zero to no power": (lambda x: lax.integer_pow(jnp.zeros(2), -1), Kind.UNKNOWN),
    "a root of zero": (lambda x: jnp.zeros(2) ** jnp.float32(0.5), 0),
    "a pole of zero": (lambda x: jnp.zeros(2) ** jnp.float32(-0.5), Kind.UNKNOWN),
    "an unknown power": (lambda x: jnp.zeros(()) ** x[0, 0], Kind.UNKNOWN),
    "a derivative rule": (lambda x: jax.nn.relu(jnp.full(3, -0.0)) * 0, Kind.NO_SCALE),
    "zeros with a tangent": (lambda x: forgetful(x[0, 0], 0.0), Kind.NO_SCALE),
    "ones with a tangent": (lambda x: forgetful(x[0, 0], 1.0), Kind.WRITTEN),
    "zeros of an integer": (lambda x: forgetful(x.astype(int)[0, 0], 0.0), 0),
    "rounded": (lambda x: lax.reduce_precision(jnp.full(3, 1.1), 8, 3), Kind.WRITTEN),
    "rounded zero": (lambda x: lax.reduce_precision(jnp.zeros(3), 8, 3), 0),
}


def agrees(array, fact):
    """Whether the numbers of an array are such as a fact says."""
    array = np.asarray(array)
    if fact.is_number:
        return bool(
            ((array == fact.number) | np.isnan(array) & np.isnan(fact.number)).all()
        )
    has_scale = (array != 0) & np.isfinite(array)
    if fact.kind == Kind.NO_SCALE:
        return not has_scale.any()
    return fact.kind != Kind.LARGEST or bool((np.abs(array[has_scale]) == MOST).all())


@pytest.mark.parametrize("name", PROGRAMS)
def test_facts(name):
    fn, expected = PROGRAMS[name]
    fact = fact_about(fn, X)
    assert known(fact) == expected
    with jax.disable_jit():
        assert agrees(fn(X), fact)


def test_facts_grow_with_a_program():
    """Equations that are added later, or removed, are noticed."""
    jaxpr = jax.make_jaxpr(lambda x: (jnp.zeros(3) * 1, -jnp.full(2, 3.0)))(X).jaxpr
    eqns = []
    written = Written(eqns, {})
    assert written(jaxpr.outvars[0]) == UNKNOWN
    eqns += jaxpr.eqns[:2]
    assert written(jaxpr.outvars[0]).is_zero
    del eqns[1:]
    eqns += jaxpr.eqns[2:]
    assert written(jaxpr.outvars[1]).number == -3


ALL = [
    *(filled(number, "float32") for number in (0.0, -0.0, 1.0, np.inf, np.nan, MOST)),
    *map(Fact, Kind),
]
ALL.remove(Fact(Kind.NUMBER))


def test_either_is_a_join():
    """It is associative and commutative, and of no two facts more is known than of each."""
    for a in ALL:
        assert either(a, a) == a
        for b in ALL:
            assert either(a, b) == either(b, a)
            assert either(either(a, b), b) == either(a, b)
            for c in ALL:
                assert either(either(a, b), c) == either(a, either(b, c))
    everything = functools.reduce(either, ALL)
    assert everything == UNKNOWN


def test_the_numbers_of_a_body():
    """Integers other than zero are none of them, but where there is a power."""
    one, two, none = filled(1, "float32"), filled(2, "int32"), filled(0, "int32")
    plain, power = (
        jax.make_jaxpr(f)(X, 2.0) for f in (lambda x, n: x + n, lambda x, n: x**n)
    )
    assert _numbers_of_body(plain, {0: one}) == {0: one}
    assert _numbers_of_body(plain, {0: one, 1: two}) == {0: one}
    assert _numbers_of_body(plain, {1: two, 2: none, 3: Fact(Kind.WRITTEN)}) == {2: none}
    assert _numbers_of_body(power, {0: one, 1: two}) == {0: one, 1: two}

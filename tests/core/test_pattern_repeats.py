"""Layers that are alike, and almost: what is found in them does not depend on the others."""

import gc
import random
import weakref

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from jaxrewrite import Rules, patterns
from jaxrewrite._patterns import outline as outlining
from jaxrewrite._patterns.repeats import Repeats


RULES = Rules()


@RULES.rewrite(lambda x: jnp.log(1 + jnp.exp(x)))
def softplus(x):
    return jnp.logaddexp(x, 0)


@RULES.rewrite(lambda x, y: jnp.sqrt(x * x + y * y))
def length(x, y):
    return jnp.hypot(x, y)


@RULES.rewrite(lambda x, eps: jnp.sin(x + eps) * jnp.cos(x + eps))
def double(x, eps: float):
    return jnp.sin(2 * (x + eps)) / 2


@RULES.rewrite(lambda x, m: jnp.exp(x) * jnp.where(m > 0, jnp.tanh(x), 0))
def masked(x, m):
    return jnp.where(m > 0, jnp.exp(x) * jnp.tanh(x), 0)


@RULES.rewrite(lambda x, w: (jnp.tan(x @ w), jnp.tanh(x @ w)))
def pair(x, w):
    y = x @ w
    return jnp.sin(y) / jnp.cos(y), jnp.tanh(y)


@RULES.rewrite(lambda x: jnp.exp(jnp.cosh(x)), keep=True)
def kept(x):
    return jnp.exp(jnp.cosh(-x))


def fresh():
    """A table of the same patterns, of which nothing is known yet."""
    rules = Rules()
    for p in RULES.patterns:
        rules.rewrite(p.before, keep=p.keep)(p.fn)
    return rules


# A part of a layer: of the running value, the layer's own weight, what all layers share, and
# whether it is the common form or one that is almost the same.
def _softplus(x, w, shared, odd):
    return jnp.log((2 if odd else 1) + jnp.exp(x))


def _softplus_in_jit(x, w, shared, odd):
    inner = jax.jit(lambda e: jnp.log(1 + e)) if odd else _log_of_one_more
    return inner(jnp.exp(x))


@jax.jit
def _log_of_one_more(e):
    return jnp.log(1 + e)


def _escaping(x, w, shared, odd):
    e = jnp.exp(x)
    y = jnp.log(1 + e)
    return y + jnp.arctan(e) if odd else y


def _length(x, w, shared, odd):
    z = shared if odd else w
    return jnp.sqrt(x * x + z * z)


def _length_twice(x, w, shared, odd):
    y = jnp.arctan(x)
    z = jnp.arctan(x if odd else w)
    return jnp.sqrt(y * y + z * z)


def _double(x, w, shared, odd):
    eps = 1e-3 if odd else 1e-2
    return jnp.sin(x + eps) * jnp.cos(x + eps)


def _masked(x, w, shared, odd):
    m = (shared.T if odd else shared) if odd is not None else w
    return jnp.exp(x) * jnp.where(m > 0, jnp.tanh(x), 0)


def _masked_by_one(x, w, shared, odd):
    return jnp.exp(x) * jnp.where(shared > 0, jnp.tanh(w if odd else x), 0)


def _pair(x, w, shared, odd):
    z = jnp.tan(x @ (shared if odd else w))
    return z - jnp.tanh(x @ w)


def _kept(x, w, shared, odd):
    c = jnp.cosh(x)
    return jnp.exp(c) + (jnp.tanh(c) if odd else c)


def _name(x, w, shared, odd):
    e = jnp.exp(x)
    return jnp.log(1 + (checkpoint_name(e, "e") if odd else e))


def _type(x, w, shared, odd):
    x = x.astype(jnp.float16 if odd else jnp.float32)
    return jnp.log(1 + jnp.exp(x)).astype(jnp.float32)


def _axis(x, w, shared, odd):
    x = x - jnp.max(x, axis=0 if odd else 1, keepdims=True)
    return jnp.log(jnp.sum(jnp.exp(x), axis=1 if odd else 0, keepdims=True)) + w


def _softmax(x, w, shared, odd):
    q, k = x @ w, x @ shared
    scores = jnp.where(shared > 0, q @ k.T / (2.0 if odd else 3.0**0.5), -1e9)
    return jax.nn.softmax(scores, axis=-1) @ x


def _scan(x, w, shared, odd):
    ys = lax.scan(lambda c, row: (c + row, jnp.log(1 + jnp.exp(c))), w[0], x)[1]
    return x + (jnp.sum(ys, axis=0) if odd else jnp.max(ys, axis=0))


def _product(x, w, shared, odd):
    return x + ((x @ w) @ shared) @ (x[:, :1] if odd else shared[:, :1])


PARTS = [v for k, v in sorted(globals().items()) if k.startswith("_") and callable(v)]
PARTS = [part for part in PARTS if part.__name__ != "_log_of_one_more"]


def layered(seed):
    """A program of layers of the same parts, of which a few are odd."""
    rng = random.Random(seed)
    parts = rng.choices(PARTS, k=rng.randint(1, 4))
    depth = rng.randint(3, 7)
    odd = [[rng.random() < 0.12 for _ in parts] for _ in range(depth)]
    tied = rng.random() < 0.3
    before, after = (rng.sample(PARTS, rng.randint(0, 2)) for _ in range(2))

    def fn(x, shared, weights):
        seen = []
        shared = jnp.sin(shared) if seed % 2 else shared
        for part in before:
            x = part(x, weights[0], shared, False) + x
        for i in range(depth):
            for part, is_odd in zip(parts, odd[i], strict=True):
                x = jnp.arctan(part(x, weights[0 if tied else i], shared, is_odd)) + x
            if rng.random() < 0.1:
                seen.append(x)
        for part in after:
            x = part(x, weights[-1], shared, False) + x
        return x, seen

    return fn, depth


def outlined(jaxpr, rules, values):
    """A program with matches as equations, as text."""
    numbers = {}

    def name(atom):
        if isinstance(atom, outlining.Literal):
            return repr(atom.val), str(atom.aval)
        return numbers.setdefault(atom, len(numbers))

    def told(operand):
        return repr(operand.plain()) if hasattr(operand, "plain") else repr(operand)[:20]

    list(map(name, jaxpr.invars))
    after = outlining.outline(jaxpr, rules, values)
    lines = []
    for eqn in after.eqns:
        more = str(eqn.source_info.name_stack), id(eqn.source_info.traceback)
        if eqn.primitive is outlining.pattern_p:
            options = eqn.params["plan"].options
            more += (
                str(eqn.params["jaxpr"]),
                *(
                    (str(o.pattern), str(o.match.statics), o.match.variant, o.results)
                    + tuple(map(told, o.operands))
                    for o in options
                ),
            )
        lines.append((eqn.primitive.name, *map(name, eqn.invars), "->",
                      *map(name, eqn.outvars), *more))  # fmt: skip
    return lines, [name(x) for x in after.outvars]


def check(seed, rules, monkeypatch):
    """How many matches there are, and how often a layer was like one that was known."""
    fn, depth = layered(seed)
    x = jnp.ones((3, 3))
    jaxpr = jax.make_jaxpr(fn)(x, x, [x] * depth).jaxpr
    rng = random.Random(seed)
    values = {var for var in jaxpr.invars if rng.random() < 0.2 and seed % 3}
    ways = []
    with monkeypatch.context() as patch:
        find = Repeats._way
        patch.setattr(Repeats, "_way", lambda *a: ways.append(find(*a)) or ways[-1])
        got = outlined(jaxpr, rules, values)
        patch.setattr(Repeats, "search", lambda self, target, location, find, move: find())
        want = outlined(jaxpr, rules, values)
    assert got == want, seed
    return sum(line[0] == "pattern" for line in got[0]), sum(map(bool, ways))


def test_layers_are_as_if_each_were_alone(monkeypatch):
    rules = [(0, pattern) for pattern in RULES.patterns]
    matches, known = zip(
        *(check(seed, rules, monkeypatch) for seed in range(12)), strict=True
    )
    assert sum(matches) > 60
    assert sum(known) > 20


def test_what_comes_again_at_any_distance_is_searched_for_once(monkeypatch):
    def fn(x, weights):
        for i, w in enumerate(weights):
            for _ in range(i % 3):
                x = jnp.arctan(x)
            x = jnp.log(1 + jnp.exp(x)) if i % 2 else jnp.sqrt(x * x + w * w)
        return x

    x = jnp.ones((3, 3))
    jaxpr = jax.make_jaxpr(fn)(x, [x] * 8).jaxpr
    rules = [(0, pattern) for pattern in fresh().patterns]
    found = []
    search = outlining.matches_at

    def searched(*args):
        match = search(*args)
        found.extend([] if match is None else [match])
        return match

    monkeypatch.setattr(outlining, "matches_at", searched)
    lines, _ = outlined(jaxpr, rules, set())
    assert sum(line[0] == "pattern" for line in lines) == 8
    # What comes first is of an operand of the program.
    assert len(found) == 3


def test_what_is_known_of_one_program_serves_the_next(monkeypatch):
    rules = [(0, p) for p in fresh().patterns]
    x = jnp.ones((3, 3))

    def first(x, w):
        return jnp.log(1 + jnp.exp(x @ w)) + jnp.sqrt(x * x + w * w)

    def second(w, x):
        x = jnp.sqrt(w * w + x * x) @ w
        return [jnp.arctan(w), jnp.log(1 + jnp.exp(x @ w))]

    calls = []
    search = outlining.matches_at
    monkeypatch.setattr(outlining, "matches_at", lambda *a: calls.append(a) or search(*a))
    for fn, is_new in ((first, True), (second, False), (first, False)):
        calls.clear()
        lines, _ = outlined(jax.make_jaxpr(fn)(x, x).jaxpr, rules, set())
        assert sum(line[0] == "pattern" for line in lines) == 2
        assert bool(calls) is is_new
    # The same with a value in it is something else.
    jaxpr = jax.make_jaxpr(first)(x, x).jaxpr
    outlined(jaxpr, rules, {jaxpr.invars[0]})
    assert calls


def test_what_is_kept_of_a_program_does_not_keep_it():
    rules = fresh()

    @rules.rewrite(lambda x, y: jax.nn.relu(x) + y)
    def _(x, y):
        return jnp.maximum(x, 0) + y

    class Number(float):
        """A number that can be referred to weakly."""

    factor = Number(2)

    def program():
        own = jax.custom_jvp(lambda x: factor * x)
        own.defjvp(lambda primals, tangents: (own(*primals), factor * tangents[0]))
        return lambda x: jnp.log(1 + jnp.exp(own(x) + x)) + jax.nn.relu(x)

    jaxpr = jax.make_jaxpr(program())(jnp.ones(3)).jaxpr
    lines, _ = outlined(jaxpr, [(0, p) for p in rules.patterns], set())
    assert sum(line[0] == "pattern" for line in lines) == 2
    kept = weakref.ref(jaxpr), weakref.ref(factor)
    del jaxpr, lines, factor, program
    jax.clear_caches()
    gc.collect()
    assert [ref() for ref in kept] == [None, None]


@pytest.mark.slow
@pytest.mark.parametrize("tables", ["own", "ready"])
@pytest.mark.parametrize("start", range(0, 1000, 100))
def test_many_layers_are_as_if_each_were_alone(tables, start, monkeypatch):
    ready = [getattr(patterns, name) for name in patterns._TABLES]
    used = [RULES] if tables == "own" else ready
    rules = [(0, pattern) for table in used for pattern in table.patterns]
    for seed in range(start, start + 100):
        check(seed, rules, monkeypatch)

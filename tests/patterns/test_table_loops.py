"""Scans whose results are only reduced, and updates in place under a predicate."""

import equinox as eqx
import flax.linen as nn
import jax
import jax.ad_checkpoint
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from choose import often, slow
from jax import lax

import jaxrewrite
from jaxrewrite import patterns
from jaxrewrite.testing import assert_same
from jaxrewrite.values import Diagonal, Lora, Unitful


pytestmark = pytest.mark.usefixtures("bulk", "double")

rules = patterns.loops


def normal(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


def found(fn, *args):
    return [rule.name for rule in jaxrewrite.explain(fn, rules=rules)(*args).rules]


def check(fn, *args, names):
    """The rules that are found, the result, and both derivatives."""
    assert found(fn, *args) == names
    got = jaxrewrite.transform(fn, rules=rules)
    assert_same(got(*args), fn(*args), 1e-10)
    assert jax.tree.map(jnp.result_type, got(*args)) == jax.tree.map(
        jnp.result_type, fn(*args)
    )

    def scalar(fn):
        return lambda *args: sum(jnp.sum(jnp.sin(x)) for x in jax.tree.leaves(fn(*args)))

    gradients = [jax.grad(scalar(f), range(len(args)))(*args) for f in (got, fn)]
    assert_same(*gradients, tolerance=1e-10)
    assert_same(*(jax.jvp(f, args, args) for f in (got, fn)), tolerance=1e-10)


def turn(c, x):
    return c * 0.5 + x, jnp.outer(x, c)


def scan(reduce, body=turn, **kwargs):
    return lambda x: reduce(lax.scan(body, jnp.ones(2), x, **kwargs)[1])


def both(reduce, body, **kwargs):
    return lambda x: reduce(*lax.scan(body, jnp.ones(2), x, **kwargs))


def pair(c, x):
    return c * 0.5 + x, (jnp.outer(x, c), x + c)


def triple(c, x):
    return c * 0.5 + x, (jnp.outer(x, c), c[0], jnp.cos(x))


REDUCED = {
    "sum": (scan(lambda y: y.sum(0)), "accumulated_sum"),
    "mean": (scan(lambda y: y.mean(0)), "accumulated_mean"),
    "max": (scan(lambda y: y.max(0)), "accumulated_max"),
    "last": (scan(lambda y: y[-1]), "kept_last"),
    "sum of all": (scan(lambda y: y.sum()), "accumulated_sum"),
    "mean of all": (scan(lambda y: y.mean()), "accumulated_mean"),
    "reverse": (scan(lambda y: y.sum(0), reverse=True), "accumulated_sum"),
    "reverse max": (scan(lambda y: y.max(0), reverse=True), "accumulated_max"),
    "reverse last": (scan(lambda y: y[0], reverse=True), "kept_last"),
    "unroll": (scan(lambda y: y.sum(0), unroll=2), "accumulated_sum"),
    "carry": (both(lambda c, y: (c, y.sum(0)), turn), "accumulated_sum"),
    "one of two": (both(lambda c, y: (y[0].max(0), y[1]), pair), "accumulated_max"),
    "second of two": (both(lambda c, y: (y[1].sum(0), y[0]), pair), "accumulated_sum"),
    "second of three": (
        both(lambda c, y: (c, *y[::2], y[1].mean(0)), triple),
        "accumulated_mean",
    ),
    "last of the third": (both(lambda c, y: (*y[:2], y[2][-1]), triple), "kept_last"),
    "third alone": (both(lambda c, y: y[2].max(0), triple), "accumulated_max_of_map"),
    "second of a map": (
        lambda x: (lambda y: (y[0], y[1].sum(0)))(lax.map(lambda r: (r.sum(), r * r), x)),
        "accumulated_sum_of_map",
    ),
    "of a function": (lambda x: jax.jit(scan(lambda y: y))(x).sum(0), "accumulated_sum"),
    "of functions": (
        lambda x: jax.jit(lambda x: (x, jax.jit(scan(lambda y: y))(x)))(x)[1][-1],
        "kept_last",
    ),
    "kept dimensions": (scan(lambda y: y.sum(0, keepdims=True)), "accumulated_sum"),
    "map": (
        lambda x: lax.map(lambda r: jnp.outer(r, r), x).mean(0),
        "accumulated_mean_of_map",
    ),
    "length": (
        lambda x: lax.scan(lambda c, _: (c * x[0], c), x[1], None, length=4)[1].sum(0),
        "accumulated_sum",
    ),
    "length, and nothing is carried": (
        lambda x: lax.scan(lambda c, _: (c, c * x[0]), x[1], None, length=4)[1].sum(0),
        "accumulated_sum_of_map",
    ),
    "ties": (
        scan(lambda y: y.max(0), lambda c, x: (c * 0.9, jnp.maximum(x - 0.5, c * 0))),
        "accumulated_max",
    ),
    "nan": (
        scan(lambda y: y.max(0), lambda c, x: (c * 0.9, jnp.where(x > 1, jnp.nan, x))),
        "accumulated_max_of_map",
    ),
    "integers": (
        scan(lambda y: y.sum(0), lambda c, x: (c * 0.9, (x * 9).astype("int8"))),
        "accumulated_sum_of_map",
    ),
    "integer max": (
        scan(lambda y: y.max(0), lambda c, x: (c * 0.9, (x * 9).astype("int32"))),
        "accumulated_max_of_map",
    ),
}


@pytest.mark.parametrize("name", often(REDUCED, ["second of three"]))
def test_a_reduction_over_steps_is_done_in_the_carry(name):
    fn, rule = REDUCED[name]
    if "integer" in name:
        x = normal(0, 6, 2)
        assert found(fn, x) == [rule]
        got = jaxrewrite.transform(fn, rules=rules)(x)
        assert_same(got, fn(x), 1e-10)
        assert got.dtype == fn(x).dtype
    else:
        check(fn, normal(0, 6, 2), names=[rule])


SEVERAL = {
    "carry, sum and max": (both(lambda c, y: (c, y[0].sum(0), y[1].max(0)), pair), False),
    "max and mean": (both(lambda c, y: (y[0].max(0), y[1].mean(0)), pair), False),
    "last of both": (both(lambda c, y: (y[0][-1], y[1][-1]), pair), False),
    "of all": (both(lambda c, y: (y[0].sum(), y[1].mean()), pair), False),
    "three": (both(lambda c, y: (c, y[0].sum(0), y[1].mean(), y[2][-1]), triple), False),
    "two of three": (both(lambda c, y: (c, y[0].sum(0), y[1], y[2].max(0)), triple), False),
    "reverse": (both(lambda c, y: (y[0][0], y[1].sum(0)), pair, reverse=True), False),
    "another number": (both(lambda c, y: (y[0].sum(0) / 3, y[1].mean(0)), pair), False),
    "map": (
        lambda x: (lambda y: (y[0].sum(0), y[1].max(0)))(
            lax.map(lambda r: (r * r, jnp.sin(r)), x)
        ),
        True,
    ),
    "length": (
        lambda x: (lambda y: (y[0].sum(0), y[1].mean(0)))(
            lax.scan(lambda c, _: (c * x[0], (c, c * c)), x[1], None, length=4)[1]
        ),
        False,
    ),
    "in functions": (
        lambda x: (lambda y: (jax.jit(lambda y: y.sum(0))(y[0]), y[1].mean(0)))(
            jax.jit(lambda x: lax.scan(pair, jnp.ones(2), x)[1])(x)
        ),
        False,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SEVERAL)
def test_several_reductions_are_done_in_one_carry(name):
    fn, is_map = SEVERAL[name]
    rule = "accumulated_results" + ("_of_map" if is_map else "")
    check(fn, normal(0, 6, 2), names=[rule])


def test_the_last_step_is_all_that_is_kept():
    fn, rule = REDUCED["last"]
    x = normal(0, 6, 2)
    assert found(fn, x) == [rule]
    assert_same(jaxrewrite.transform(fn, rules=rules)(x), fn(x), 1e-10)


def test_a_sum_of_all_over_the_number_of_steps_is_no_mean_of_all():
    fn = both(lambda c, y: (y[0].sum() / 6, y[1].sum(0)), pair)
    assert found(fn, normal(0, 6, 2)) == ["accumulated_results"]


def test_means_of_sixteen_bits_are_summed_in_more():
    """They are rounded after the division, and sums of this dtype before it."""

    def fn(x):
        y = lax.scan(pair, jnp.ones(2, x.dtype), x)[1]
        return y[0].mean(0), y[1].mean()

    x = normal(0, 6, 2).astype("bfloat16")
    assert found(fn, x) == ["accumulated_results"]
    assert_same(jaxrewrite.transform(fn, rules=rules)(x), fn(x), 1e-2)


def test_the_same_body_with_other_operands():
    """Two scans of one body differ in which of the closed-over arrays is the carry, too."""

    def fn(x):
        p, q, r = x

        def turn(carry, row):
            a, b = carry
            return (a * p + row, b - q), (a * b * row, a)

        def total(first):
            products, firsts = lax.scan(turn, (first, r), x)[1]
            return products.sum(0), firsts.max(0)

        return total(p), total(q)

    x = normal(0, 3, 2)
    assert found(fn, x) == ["accumulated_results"]
    assert_same(jaxrewrite.transform(fn, rules=rules)(x), fn(x), 1e-10)


@pytest.mark.slow
def test_what_only_one_result_has_is_done_for_one():
    cases = [
        (lambda c, y: (y[0].sum(0) + y[0].max(0), y[1].max(0)), {}, "accumulated_max"),
        (lambda c, y: (y[0][-1], y[1].sum(0)), {"reverse": True}, "accumulated_sum"),
        (lambda c, y: (y[0].sum(0), y[1], y[1].sum()), {}, "accumulated_sum"),
        (lambda c, y: (y[0].min(0), y[1][-1]), {}, "kept_last"),
    ]
    for reduce, options, rule in cases:
        check(both(reduce, pair, **options), normal(0, 6, 2), names=[rule])


@pytest.mark.parametrize("reduce", often([jnp.sum, jnp.mean], [jnp.sum]))
def test_a_scan_without_steps(reduce):
    fn = scan(lambda y: reduce(y, 0))
    assert found(fn, jnp.zeros((0, 2))) != []
    assert_same(
        jaxrewrite.transform(fn, rules=rules)(jnp.zeros((0, 2))),
        fn(jnp.zeros((0, 2))),
        1e-10,
    )


OTHER = {
    "another axis": scan(lambda y: y.sum(1)),
    "two of three axes": scan(lambda y: y.sum((0, 1))),
    "minimum": scan(lambda y: y.min(0)),
    "product": scan(lambda y: y.prod(0)),
    "first step": scan(lambda y: y[0]),
    "last but one": scan(lambda y: y[-2]),
    "last, backwards": scan(lambda y: y[-1], reverse=True),
    "result used": scan(lambda y: (y.sum(0), y)),
    "two results of one": scan(lambda y: (y.sum(0), y.max(0))),
    "another dtype": scan(lambda y: y.sum(0, dtype="float32")),
    "where": scan(lambda y: y.sum(0, where=y > 0)),
    "initial": scan(lambda y: y.max(0, initial=0.0)),
    "checkpoint_name": scan(lambda y: jax.ad_checkpoint.checkpoint_name(y, "steps").sum(0)),
    "barrier": scan(lambda y: lax.optimization_barrier(y).max(0)),
    "sharding constraint": scan(
        lambda y: lax.with_sharding_constraint(
            y, jax.sharding.SingleDeviceSharding(jax.devices()[0])
        ).mean(0)
    ),
    "no scan": lambda x: jax.vmap(lambda x: turn(x, x)[1])(x).sum(0),
    "cumulative": lambda x: jnp.cumsum(x, 0).sum(0),
}


def test_what_only_looks_like_a_reduction_stays():
    x = normal(0, 6, 2)
    assert {name for name, fn in OTHER.items() if found(fn, x)} == {"initial"}
    # The initial value is another number that joins the maximum.
    fn = OTHER["initial"]
    assert_same(jaxrewrite.transform(fn, rules=rules)(x), fn(x), 1e-10)


def test_a_maximum_of_negative_zeros_is_one():
    fn = scan(lambda y: 1 / y.max(0), lambda c, x: (c * 0.5, -(x * c)))
    x = jnp.zeros((3, 2))
    assert found(fn, x) == ["accumulated_max"]
    assert_same(jaxrewrite.transform(fn, rules=rules)(x), jnp.full(2, -jnp.inf), 1e-10)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float16", "int8", "uint8", "bool"])
def test_a_maximum_of_short_numbers(dtype):
    """Of what no step is greater than 0, in dtypes with and without an infinity."""
    fn = scan(lambda y: y.max(0), lambda c, x: (c * 0.5, (x + 0 * c).astype(dtype)))
    x = -abs(normal(0, 3, 2)) if dtype[0] != "u" else jnp.zeros((3, 2))
    assert found(fn, x) == ["accumulated_max"]
    got, want = jaxrewrite.transform(fn, rules=rules)(x), fn(x)
    assert got.dtype == want.dtype
    assert_same(got.astype(float), want.astype(float), 1e-10)


def test_a_maximum_has_second_derivatives():
    fn = scan(lambda y: jnp.sum(y.max(0) ** 3))
    x = normal(0, 4, 2)
    assert found(fn, x) == ["accumulated_max"]
    both_ways = [jax.hessian(f)(x) for f in (jaxrewrite.transform(fn, rules=rules), fn)]
    assert_same(*both_ways, tolerance=1e-10)


def test_a_maximum_has_units():
    fn = lambda v: scan(lambda y: y.max(0), lambda c, x: (c * 0.5, v @ c * x))(x)
    x, v = normal(0, 4, 2), Unitful(normal(1, 2, 2), "m")
    assert "accumulated_max" in found(fn, v)
    results = []
    for table in (rules, None):
        out, pull = jax.vjp(jaxrewrite.transform(fn, rules=table), v)
        results.append((out, pull(jax.tree.map(jnp.cos, out))))
    got, want = results
    assert jaxrewrite.same_structure(got, want)
    assert_same(jax.tree.leaves(got), jax.tree.leaves(want), 1e-10)


def test_a_maximum_of_complex_numbers_stays():
    body = lambda c, x: (c * 0.5, (1j * x + c, x * c))
    fn = both(lambda c, y: (y[0].max(0), y[1].sum(0)), body)
    x = normal(0, 6, 2)
    assert found(fn, x) == ["accumulated_sum"]
    assert_same(jaxrewrite.transform(fn, rules=rules)(x), fn(x), 1e-10)


@pytest.mark.parametrize("reduce", [jnp.sum, jnp.mean])
@pytest.mark.slow
def test_short_floats_are_added_as_jax_adds_them(reduce):
    x = normal(0, 300, 2).astype("bfloat16")
    body = lambda c, x: (c, (x * c).astype("bfloat16"))
    fn = lambda x: reduce(lax.scan(body, jnp.ones(2, "bfloat16"), x)[1], axis=0)
    got = jaxrewrite.transform(fn, rules=rules)(x)
    assert got.dtype == jnp.bfloat16
    np.testing.assert_allclose(got.astype(float), fn(x).astype(float), 1e-2, 1e-2)


# --- programs that were written without it in mind ---------------------------------------


def optax_training(w):
    """The losses of gradient descent, as tutorials of Optax return them."""
    optimiser = optax.adam(1e-2)
    x, y = normal(1, 8, 3), normal(2, 8)

    def step(state, _):
        w, inner = state
        loss, grads = jax.value_and_grad(lambda w: optax.l2_loss(x @ w, y).mean())(w)
        updates, inner = optimiser.update(grads, inner)
        return (optax.apply_updates(w, updates), inner), loss

    (w, _), losses = lax.scan(step, (w, optimiser.init(w)), None, length=5)
    return w, losses


def hidden_markov_model(logits):
    """The log-likelihood by the forward algorithm with normalised messages (Rabiner 1989)."""
    transition, emission = jax.nn.softmax(logits[:3]), jax.nn.softmax(logits[3:])

    def step(belief, symbol):
        belief = (transition.T @ belief) * emission[:, symbol]
        scale = belief.sum()
        return belief / scale, jnp.log(scale)

    _, scales = lax.scan(step, jnp.ones(3) / 3, jnp.array([0, 2, 1, 1, 0]))
    return jnp.sum(scales)


def recurrent_linen(x):
    model = nn.RNN(nn.GRUCell(4, param_dtype=float), time_major=True)
    return model.apply(model.init(jax.random.key(0), x), x)


def recurrent_equinox(x):
    cell = eqx.nn.GRUCell(3, 4, key=jax.random.key(0))

    def step(h, x):
        h = cell(x, h)
        return h, h

    return lax.scan(step, jnp.zeros(4), x)[1]


def kalman_filter(ys):
    """Its log-likelihood: Särkkä, *Bayesian Filtering and Smoothing*, theorem 4.2."""
    a, h = jnp.array([[1.0, 0.1], [0.0, 1.0]]), jnp.array([1.0, 0.0])

    def step(state, y):
        m, p = a @ state[0], a @ state[1] @ a.T + 0.1 * jnp.eye(2)
        s, k = h @ p @ h + 0.5, p @ h
        v = y - h @ m
        return (m + k * v / s, p - jnp.outer(k, k) / s), -0.5 * (v * v / s + jnp.log(s))

    return jnp.sum(lax.scan(step, (jnp.zeros(2), jnp.eye(2)), ys)[1])


def polyak_averaging(w):
    """The mean of the iterates: Polyak and Juditsky 1992."""
    x = normal(1, 5, 3)
    step = lambda w, x: (w - 0.1 * jax.grad(lambda w: (x @ w - 1) ** 2)(w), w)
    return lax.scan(step, w, x)[1].mean(0)


def forces(x):
    """The energy of many bodies, row by row to save memory."""
    others = lambda r: jnp.sum(1 / jnp.sqrt(jnp.sum((r - x) ** 2, -1) + 0.1))
    return jnp.sum(lax.map(others, x))


def bag_of_features(x):
    """Fisher information from gradients of examples, one after the other (Amari 1998)."""
    slope = jax.grad(lambda w, x: jnp.tanh(x @ w))
    w = jnp.ones(x.shape[1])
    return lax.map(lambda x: jnp.outer(slope(w, x), slope(w, x)), x).sum(axis=0)


def density(x):
    """Parzen's estimate on a grid, with a sum over data that do not fit at once."""
    grid = jnp.linspace(-1, 1, 4)
    return lax.map(lambda x: jnp.exp(-0.5 * (grid - x[0]) ** 2), x).sum(0)


def deep_ensemble(w):
    """Lakshminarayanan and others 2017: the mean of the predictions of members."""
    x = normal(1, 4, 3)
    return lax.map(lambda w: jax.nn.softmax(jnp.tanh(x * w)), w).mean(axis=0)


def risk(w):
    """The mean loss of examples that are too large to be a batch."""
    return jnp.mean(lax.map(lambda x: optax.l2_loss(jnp.tanh(x @ x)), w))


def expected_improvement(w):
    """A Monte Carlo mean of samples (Jones and others 1998)."""
    return lax.map(lambda z: jnp.maximum(z - 0.1, 0), w).mean(0)


def late_interaction(q):
    """Khattab and Zaharia, ColBERT, (3), document by document."""
    documents = normal(1, 4, 7, 3)
    return lax.map(lambda d: (q @ d.T).max(1), documents).max(0)


def hausdorff(x):
    y = normal(1, 7, 3)
    return lax.map(lambda r: jnp.min(jnp.sum((r - y) ** 2, -1)), x).max(0)


def crops(x):
    """The greatest scores of crops of an image (Simonyan and Zisserman 2015, 3.2)."""
    return jnp.max(lax.map(lambda i: jnp.tanh(x * i).sum(0), jnp.arange(1.0, 4.0)), axis=0)


def replay_buffer(x):
    """Of environments that are stepped together: an item is kept where one may be."""
    add = lambda ok, buffer, i, item: jnp.where(ok, buffer.at[i].set(item), buffer)
    ok, i = jnp.array([True, False, True]), jnp.array([2, 0, 1])
    return jax.vmap(add)(ok, jnp.zeros((3, 4)), i, x[:, 0])


def reservoir(x):
    """Vitter, *Random sampling with a reservoir*, algorithm R, of several streams."""
    chosen = jnp.array([[0, 5, 1], [2, 1, 7], [3, 0, 1], [4, 4, 0]])

    def step(sample, turn):
        item, j = turn
        keep = lambda s, v, j: jnp.where(j < 3, s.at[j].set(v), s)
        return jax.vmap(keep)(sample, item, j), None

    return lax.scan(step, x[:, :3], (x.T, chosen))[0]


def decoded(x):
    """Sequences of which some have ended, token by token."""

    def step(state, t):
        rows, ended = state
        put = lambda on, row: jnp.where(on, row.at[t].set(jnp.tanh(row[t - 1])), row)
        return (jax.vmap(put)(~ended, rows), ended | (t == jnp.array([1, 3, 2]))), None

    return lax.scan(step, (x, jnp.zeros(3, bool)), jnp.arange(1, 4))[0][0]


def key_cache(x):
    """A cache of keys of sequences of which some have ended."""
    write = lambda cache, key, at: lax.dynamic_update_index_in_dim(cache, key, at, 0)
    active, at = jnp.array([True, True, False]), jnp.array([1, 3, 0])
    go = lambda on, cache, key, at: jnp.where(on, write(cache, key, at), cache)
    return jax.vmap(go)(active, jnp.zeros((3, 4, 3)), x, at)


def keys_and_values(x):
    """As above, where the values have been written as well."""
    return key_cache(x) * key_cache(jnp.tanh(x))


def delay_line(x):
    """The spikes of neurons that have fired, for later."""

    def step(lines, t):
        fired = x[:, 0] + 0.1 * t > 0
        put = lambda f, line, v: jnp.where(
            f, lax.dynamic_update_index_in_dim(line, v, t % 4, 0), line
        )
        return jax.vmap(put)(fired, lines, x[:, 1]), None

    return lax.scan(step, jnp.zeros((3, 4)), jnp.arange(5))[0]


def rollout(x):
    """Of environments in step with each other, until each is done."""

    def step(log, t):
        put = lambda alive, log, seen: jnp.where(
            alive, lax.dynamic_update_index_in_dim(log, seen, t, 0), log
        )
        return jax.vmap(put)(x[:, 0] + t > 0.5, log, x * t), None

    return lax.scan(step, jnp.zeros((3, 4, 3)), jnp.arange(4))[0]


def kept_if_better(x):
    """A candidate takes the place of an old one (Storn and Price 1997, differential evolution)."""

    def step(best, i):
        trial = best[i] * 0.5 + best[(i + 1) % 3]
        new = lax.dynamic_update_index_in_dim(best, trial, i, 0)
        return jnp.where(jnp.sum(trial**2) < jnp.sum(best[i] ** 2), new, best), None

    return lax.scan(step, x, jnp.arange(3))[0]


def trajectories(x):
    """Environments record observations until they are done."""
    record = lambda done, log, i, seen: jnp.where(
        ~done, lax.dynamic_update_index_in_dim(log, seen, i, 0), log
    )
    done = jnp.array([False, True, False])
    return jax.vmap(record)(done, jnp.ones((3, 5, 3)), jnp.array([4, 2, 0]), x)


def landweber(x):
    """Kaltenbacher and others, (1.4), by normal equations that each step forms."""
    return lax.scan(lambda c, _: (c - 0.1 * ((x.T @ x) @ c - 1), None), x[0], None, 5)[0]


def merged_adapter(x):
    """A recurrent cell with the weights of LoRA, merged where they are used."""
    w, b, a = normal(1, 3, 3), normal(2, 3, 2), normal(3, 2, 3)
    return lax.scan(lambda h, x: (jnp.tanh((w + b @ a) @ h + x), None), x[0], x)[0]


def smoother(x):
    """A Gaussian process at each time, whose covariance is factorised each time."""
    k = x.T @ x + jnp.eye(x.shape[1])
    step = lambda m, y: (jnp.linalg.solve(k, y + 0.1 * m), m)
    return lax.scan(step, x[0], x)


def power_iteration(x):
    step = lambda v, _: ((x.T @ x) @ v / jnp.linalg.norm((x.T @ x) @ v), None)
    return lax.scan(step, x[0], None, length=4)[0]


PROGRAMS = {
    "kalman": (kalman_filter, ["accumulated_sum"], (5,)),
    "polyak": (polyak_averaging, ["accumulated_mean"], (3,)),
    "forces": (forces, ["accumulated_sum_of_map"], (4, 3)),
    "fisher": (bag_of_features, ["accumulated_sum_of_map"], (4, 3)),
    "parzen": (density, ["accumulated_sum_of_map"], (5, 1)),
    "ensemble": (deep_ensemble, ["accumulated_mean_of_map"], (4, 3)),
    "risk": (risk, ["accumulated_mean_of_map"], (4, 3)),
    "improvement": (expected_improvement, ["accumulated_mean_of_map"], (4, 3)),
    "colbert": (late_interaction, ["accumulated_max_of_map"], (4, 3)),
    "hausdorff": (hausdorff, ["accumulated_max_of_map"], (4, 3)),
    "crops": (crops, ["accumulated_max_of_map"], (4, 3)),
    "buffer": (replay_buffer, ["update_of_selected"], (3, 3)),
    "reservoir": (reservoir, ["update_of_selected"], (3, 4)),
    "decoded": (decoded, ["update_of_selected"], (3, 4)),
    "cache": (key_cache, ["slice_of_selected"], (3, 3)),
    "delays": (delay_line, ["slice_of_selected"], (3, 2)),
    "rollout": (rollout, ["slice_of_selected"], (3, 3)),
    "evolution": (kept_if_better, ["slice_of_selected"], (3, 3)),
    "keys and values": (keys_and_values, ["slice_of_selected"], (3, 3)),
    "trajectories": (trajectories, ["slice_of_selected"], (3, 3)),
    "landweber": (landweber, ["work_before_the_scan"], (4, 3)),
    "adapter": (merged_adapter, ["work_before_the_scan"], (4, 3)),
    "smoother": (smoother, ["work_before_the_scan"], (4, 9)),
    "power": (power_iteration, ["work_before_the_scan"], (4, 3)),
    "optax mean": (lambda w: optax_training(w)[1].mean(), ["accumulated_mean"], (3,)),
    "optax last": (lambda w: optax_training(w)[1][-1], ["kept_last"], (3,)),
    "optax worst": (lambda w: optax_training(w)[1].max(), ["accumulated_max"], (3,)),
    "markov": (hidden_markov_model, ["accumulated_sum"], (6, 3)),
    "linen last": (lambda x: recurrent_linen(x)[-1], ["kept_last"], (5, 2, 3)),
    "linen pooled": (lambda x: recurrent_linen(x).max(0), ["accumulated_max"], (5, 2, 3)),
    "linen mean": (lambda x: recurrent_linen(x).mean(0), ["accumulated_mean"], (5, 2, 3)),
    "equinox last": (lambda x: recurrent_equinox(x)[-1], ["kept_last"], (5, 3)),
    "equinox pooled": (lambda x: recurrent_equinox(x).max(0), ["accumulated_max"], (5, 3)),
    "equinox sum": (lambda x: recurrent_equinox(x).sum(0), ["accumulated_sum"], (5, 3)),
}


def test_each_rule_has_three_programs():
    met = [name for _, names, _ in PROGRAMS.values() for name in names]
    patterns_and_rules = {p.fn.__name__ for p in rules.patterns} | {"work_before_the_scan"}
    assert {name for name in met if met.count(name) >= 3} == patterns_and_rules


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_of_others(name):
    fn, names, shape = PROGRAMS[name]
    check(fn, normal(3, *shape), names=names)


# --- what is the same in each step --------------------------------------------------------


def primitives(fn, *args):
    return [e.primitive.name for e in jaxrewrite.make_jaxpr(fn, rules=rules)(*args).eqns]


def test_a_product_in_nested_scans_is_done_once():
    """Also inside of a call that is given what changes, and besides a reduction."""

    @jax.jit
    def cell(x, c):
        return jnp.tanh((x.T @ x) @ c)

    def fn(x):
        inner = lambda c, _: (cell(x, c), c)
        outer = lambda c, _: (lax.scan(inner, c, None, length=2)[1].sum(0), None)
        return lax.scan(outer, x[0], None, length=3)[0]

    x = normal(0, 4, 3)
    made = primitives(fn, x)
    assert made.count("dot_general") == 1 and made[-1] == "scan"
    assert_same(jaxrewrite.transform(fn, rules=rules)(x), fn(x), 1e-10)


OF_EACH_STEP = {
    "of the carry": lambda c, x: (jnp.outer(c, c) @ c, None),
    "of the step": lambda c, x: (jnp.outer(x, x) @ c, None),
    "of entries": lambda c, x: (jnp.exp(W) @ c, None),
    "checkpoint_name": lambda c, x: (
        jax.ad_checkpoint.checkpoint_name(W, "w") @ jnp.ones(3) + c,
        None,
    ),
    "barrier": lambda c, x: (lax.optimization_barrier(W) @ jnp.ones(3) + c, None),
    "effects": lambda c, x: (c + jnp.ones(3).at[0].set(print_of(jnp.dot(W, W) @ c)), None),
}
W = np.arange(9.0).reshape(3, 3)


def print_of(x):
    jax.debug.callback(lambda x: None, x)
    return x[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_EACH_STEP)
def test_what_is_another_in_each_step_stays(name):
    fn = lambda w, x: lax.scan(OF_EACH_STEP[name], x[0], x)[0]
    work = set() if name != "effects" else {"work_before_the_scan"}
    assert {*found(fn, jnp.asarray(W), normal(0, 4, 3))} == work


@pytest.mark.slow
def test_one_step_or_none_stays():
    for length in (0, 1):
        fn = lambda x, n=length: lax.scan(lambda c, _: (x @ x @ c, c), x[0], None, n)
        assert found(fn, normal(0, 3, 3)) == []


def temporaries(fn, *args):
    return jax.jit(fn).lower(*args).compile().memory_analysis().temp_size_in_bytes


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sum", "mean", "last"])
def test_the_stack_is_never_made(name):
    with jax.enable_x64(False):
        fn = {"sum": jnp.sum, "mean": jnp.mean, "last": lambda y, axis: y[-1]}[name]
        program = lambda x: fn(lax.scan(turn, jnp.ones(64), x)[1], axis=0)
        x = jnp.ones((100, 64))
        stack = 100 * 64 * 64 * 4
        got = jaxrewrite.transform(program, rules=rules)
        loss = lambda f: jax.grad(lambda x: jnp.sum(jnp.sin(f(x))))
        assert temporaries(got, x) < stack / 20 < temporaries(program, x)
        assert temporaries(loss(got), x) < stack / 5 < temporaries(loss(program), x)


@pytest.mark.parametrize("reduce", [jnp.sum, slow(jnp.mean)])
def test_a_sum_of_structured_steps_keeps_the_structure(reduce):
    def fn(v, xs):
        _, ys = lax.scan(lambda c, x: (c + x, v * c), 1.0, xs)
        return reduce(ys, axis=0)

    v, xs = Diagonal(jnp.arange(3.0)), jnp.arange(4.0)
    got = jaxrewrite.transform(fn, rules=patterns.loops, materialise="forbid")(v, xs)
    assert isinstance(got, Diagonal)
    np.testing.assert_allclose(np.asarray(got), fn(v.materialise(), xs), rtol=1e-6)


def test_a_weight_in_the_body_stays_implicit():
    w = Lora(normal(0, 3, 3), normal(1, 3, 1), normal(2, 1, 3), 1.0)
    fn = lambda w, x: lax.scan(lambda c, x: (c + x @ w, c * x), x[0], x)[1].sum(0)
    x = normal(3, 4, 3)
    got = jaxrewrite.transform(fn, rules=rules, materialise="forbid")(w, x)
    assert_same(got, fn(w.materialise(), x), 1e-10)
    assert found(fn, w, x)[0] == "accumulated_sum"


# --- updates in place ---------------------------------------------------------------------


def update(p, x, i, v):
    return jnp.where(p, x.at[i].set(v), x)


def slice_update(p, x, i, v):
    return jnp.where(p, lax.dynamic_update_index_in_dim(x, v, i, 0), x)


@pytest.mark.parametrize(
    ("fn", "rule"),
    [
        (update, "update_of_selected"),
        slow(pytest.param(slice_update, "slice_of_selected")),
    ],
)
def test_a_selected_update_is_an_update_of_what_is_selected(fn, rule):
    p = jnp.array([True, False, True, False, True])
    i = jnp.array([0, -1, 7, 2, -9])  # Some are out of bounds.
    check(
        lambda x, v: jax.vmap(fn)(p, x, i, v),
        normal(0, 5, 4, 3),
        normal(1, 5, 3),
        names=[rule],
    )


def test_other_selects_stay():
    p, i = jnp.array([True, False]), jnp.array([0, 1])
    x, v = normal(0, 2, 4), normal(1, 2)
    others = [
        lambda p, x, i, v: jnp.where(p, x, x.at[i].set(v)),
        lambda p, x, i, v: jnp.where(p, x.at[i].set(v), 0),
        lambda p, x, i, v: jnp.where(p, x.at[i].add(v), x),
        lambda p, x, i, v: jnp.where(p, x.at[i].set(v), x + 1),
        lambda p, x, i, v: (lambda y: (jnp.where(p, y, x), y))(x.at[i].set(v)),
        lambda p, x, i, v: jnp.where(p, x.at[i].set(v, mode="clip"), x),
        lambda p, x, i, v: jnp.where(
            p, jax.ad_checkpoint.checkpoint_name(x.at[i].set(v), "x"), x
        ),
    ]
    for fn in others:
        assert found(jax.vmap(fn), p, x, i, v) == []


def fill(n, x):
    """Each row is filled for as many steps as it is told."""

    def step(state):
        i, x = state
        return i + 1, x.at[i].set(x[i - 1] * 0.5 + 1)

    return lax.while_loop(lambda state: state[0] < n, step, (1, x))[1]


def test_rows_that_end_at_different_times_are_updated_in_place():
    n, x = jnp.arange(5) + 2, normal(0, 5, 8)
    fn = lambda x: jax.vmap(fill)(n, x)
    assert found(fn, x) == ["while_with_updates", "update_of_selected"]
    got = jaxrewrite.transform(fn, rules=rules)
    assert_same(jax.jvp(got, (x,), (x,)), jax.jvp(fn, (x,), (x,)), 1e-10)
    # With one predicate there is nothing to select.
    assert found(lambda x: fill(3, x), x[0]) == []


@pytest.mark.parametrize("shape", [(2, 3), (1, 1), (1, 2)])
@pytest.mark.parametrize("flag", [True, False])
def test_updates_of_more_or_fewer_than_one_row_stay(shape, flag):
    """JAX's functions take them, as for several tokens of a cache."""

    def update(flag, x, v, i):
        return jnp.where(flag, lax.dynamic_update_slice_in_dim(x, v, i, 0), x)

    args = jnp.array(flag), normal(0, 4, 3), normal(1, *shape), jnp.array(3)
    assert not found(update, *args)
    got = jaxrewrite.transform(update, rules=rules)(*args)
    np.testing.assert_array_equal(got, update(*args))


def test_what_stays_in_each_step_stays_within_calls():
    """A name for residuals, also in a checkpoint, is one of each step."""

    @jax.checkpoint
    def named(w):
        return jax.ad_checkpoint.checkpoint_name(w @ w, "square")

    def steps(w, x):
        return lax.scan(lambda x, _: (named(w) @ x, None), x, length=3)[0]

    w, x = normal(0, 8, 8), normal(1, 8)
    text = str(jaxrewrite.make_jaxpr(steps, rules=rules)(w, x))
    assert text.index("scan[") < text.index("name=square")

"""Pattern rules: what matches, what does not, and what takes its place."""

import dataclasses
import functools
import re
from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from choose import often, slow
from jax import lax
from jax.experimental.layout import Format, Layout
from jax.experimental.xla_metadata import set_xla_metadata
from jax.extend import core
from jaxtyping import Array, Float, Int
from reference.low_rank import LowRank

import jaxrewrite
from jaxrewrite import Axis, Rules, explain, make_jaxpr, near_misses, transform
from jaxrewrite._analyses.calls import body_of
from jaxrewrite._analyses.same import same
from jaxrewrite._patterns import numbering
from jaxrewrite._patterns.numbering import Numbering
from jaxrewrite._patterns.outline import PATTERNS
from jaxrewrite._patterns.pattern import Pattern
from jaxrewrite._patterns.rules import patterns_of
from jaxrewrite.values import Diagonal


X = jnp.linspace(-1.0, 1.0, 12).reshape(3, 4)
SQUARE = jnp.eye(3) * 2 + 0.1


def answers(fn, rules, *operands, want=None):
    """The names of the pattern rules that answer, once numbers and gradient are checked."""
    got = transform(fn, rules=rules)(*operands)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(fn(*operands)), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(np.float64(a), np.float64(b), 2e-2, 2e-2)
    steps = explain(fn, rules=rules)(*operands).steps
    return [step.rule.name for step in steps if step.decision == "pattern"]


def table(*patterns, **options):
    """A table of patterns whose rules are named after them."""
    rules = Rules()
    for before, after in patterns:
        after.__qualname__ = after.__name__
        rules.rewrite(before, **options)(after)
    return rules


def lse(x: Float[Array, "*batch n"]):
    return jax.nn.logsumexp(x, axis=-1)


def solve(a: Float[Array, "n n"], b):
    return jnp.linalg.solve(a, b)


def logdet(a: Float[Array, "*batch n n"]):
    return jnp.linalg.slogdet(a)[1]


def hypotenuse(x, y):
    return jnp.sqrt(x * x + y * y) * 1


def leaky(x, y):
    return jnp.maximum(x, 0) + y


RULES = table(
    (lambda x: jnp.log(jnp.sum(jnp.exp(x), axis=-1)), lse),
    (lambda a, b: jnp.linalg.inv(a) @ b, solve),
    (lambda a: jnp.log(jnp.linalg.det(a)), logdet),
    (lambda x, y: jnp.sqrt(x * x + y * y), hypotenuse),
    (lambda x, y: jax.nn.relu(x) + y, leaky),
)


@jax.jit
def tail(y):
    return jnp.log(y.sum(-1))


@jax.jit
def several(x, y):
    return jnp.sqrt(x * x + y * y), jnp.exp(x)


def naive(x):
    return jnp.log(jnp.exp(x).sum(-1))


MATCHING = {
    "as it is": (naive, "lse", X),
    "half precision, in which sums convert": (naive, "lse", X.astype(jnp.bfloat16)),
    "inside of jit": (jax.jit(naive), "lse", X),
    "across the border of jit": (lambda x: tail(jnp.exp(x)), "lse", X),
    "out of one jit": (lambda x: jnp.log(several(x, x)[1].sum(-1)), "lse", X),
    "one variable passed twice": (lambda x: several(x, x)[0], "hypotenuse", X),
    "under vmap": (jax.vmap(naive), "lse", X),
    "batched otherwise": (jax.vmap(naive, 1, 0), None, X),
    "operands in another order": (
        lambda a, b: jnp.sqrt(b * b + a * a),
        "hypotenuse",
        X,
        X[0],
    ),
    "a number for an operand": (lambda a: jnp.sqrt(a * a + 2.0 * 2), None, X),
    "linear algebra": (lambda a, b: jnp.linalg.inv(a) @ b, "solve", SQUARE, X),
    "batched linear algebra": (
        jax.vmap(lambda a, b: jnp.linalg.inv(a) @ b),
        "solve",
        jnp.stack([SQUARE] * 4),
        X.T,
    ),
    "partly batched": (
        jax.vmap(lambda a, b: jnp.linalg.inv(a) @ b, (None, 0)),
        "solve",
        SQUARE,
        X.T,
    ),
    "a small matrix": (lambda a: jnp.log(jnp.linalg.det(a)), "logdet", SQUARE[:2, :2]),
    "a larger matrix": (lambda a: jnp.log(jnp.linalg.det(a)), "logdet", jnp.eye(4) * 2),
    "a custom derivative": (lambda x, y: y + jax.nn.relu(x), "leaky", X, X),
    "a custom derivative under vmap": (
        lambda x, y: y + jax.vmap(jax.nn.relu)(x),
        "leaky",
        X,
        X,
    ),
    "in a scan": (
        lambda x: lax.scan(lambda c, r: (c + naive(r), r), 0.0, x)[0],
        "lse",
        X,
    ),
    "in a while loop": (
        lambda x, y: lax.while_loop(
            lambda c: c[0] < 2, lambda c: (c[0] + 1, y + jax.nn.relu(c[1])), (0, x)
        )[1],
        "leaky",
        X,
        X,
    ),
    "in a branch": (lambda x: lax.cond(x[0, 0] > 0, lambda x: x[:, 0], naive, x), "lse", X),
    "in a checkpoint": (jax.checkpoint(naive), "lse", X),
    "beside a use of the same expression": (
        lambda x: naive(x) + jnp.exp(x)[:, 0],
        "lse",
        X,
    ),
    "another axis": (lambda x: jnp.log(jnp.exp(x).sum(0)), None, X),
    "a square that is no product": (lambda x: jnp.sqrt(x**2 + x * x), None, X),
    "an expression that is used elsewhere": (
        lambda x: (lambda e: jnp.log(e.sum(-1)) + e[:, 0])(jnp.exp(x)),
        None,
        X,
    ),
    "after differentiation": (jax.value_and_grad(lambda x: naive(x).sum()), None, X),
    "a barrier": (
        lambda x: jnp.log(lax.optimization_barrier(jnp.exp(x)).sum(-1)),
        None,
        X,
    ),
    "a matrix that its annotation does not allow": (
        lambda a, b: jnp.linalg.inv(a) @ b,
        None,
        jnp.stack([SQUARE] * 2),
        X,
    ),
}


# What these are about is in another case or test, too.
LONG = [
    "inside of jit",
    "one variable passed twice",
    "batched linear algebra",
    "partly batched",
    "a larger matrix",
    "a custom derivative under vmap",
    "in a while loop",
    "in a branch",
    "half precision, in which sums convert",
]


@pytest.mark.parametrize("name", often(MATCHING, MATCHING.keys() - LONG))
def test_matching(name, bulk):
    fn, expected, *operands = MATCHING[name]
    assert answers(fn, RULES, *operands) == ([] if expected is None else [expected])


def test_gradient_of_what_is_rewritten():
    def rewritten(x):
        return transform(naive, rules=RULES)(x).sum()

    np.testing.assert_allclose(
        jax.grad(rewritten)(X), jax.grad(lambda x: naive(x).sum())(X), 1e-5
    )
    assert jnp.isfinite(jax.jit(jax.grad(rewritten))(X + 1000)).all()


def test_a_call_that_a_match_crosses_is_inlined_and_no_other():
    def doubled(x):
        return jnp.abs(x) * 2**0.5

    rules = table((lambda x: jnp.sqrt(x * x + x * x), doubled))

    def calls(fn):
        jaxpr = make_jaxpr(fn, rules=rules)(X)
        return [eqn.primitive.name for eqn in jaxpr.eqns].count("jit")

    assert answers(lambda x: several(x, x), rules, X) == ["doubled"]
    assert calls(lambda x: several(x, x)) == 0
    assert calls(lambda x: several(x, 2 * x)) == 1


def test_calls_of_other_functions_are_told_apart():
    sine, cosine = jax.jit(jnp.sin), jax.jit(jnp.cos)

    def composed(x):
        return jnp.exp(jnp.sin(x))

    for first, second in [(sine, cosine), (cosine, sine)]:
        fn = lambda x, f=first, g=second: (jnp.exp(f(x)), jnp.exp(g(x)))
        later = lambda x, fn=fn: fn(2 * x)  # The calls are not the first equations.
        assert answers(fn, table((composed, composed)), X) == ["composed"]
        assert answers(later, table((composed, composed)), X) == ["composed"]


def test_a_call_that_a_match_reaches_through_has_matches_of_its_own():
    """None of the equations of ``outside`` are in the match that reaches into ``inside``."""

    @jax.jit
    def inside(x):
        return jnp.cos(x)

    @jax.jit
    def outside(x):
        return inside(x), jnp.log(jnp.exp(x) + 1)

    def composed(x):
        return lax.sin(lax.cos(x))

    def softplus(x):
        return jax.nn.softplus(x)

    def fn(x):
        angle, other = outside(x)
        return jnp.sin(angle), other

    patterns = (
        (lambda x: jnp.sin(jnp.cos(x)), composed),
        (lambda x: jnp.log(jnp.exp(x) + 1), softplus),
    )
    assert sorted(answers(fn, table(*patterns), X)) == ["composed", "softplus"]


# --- static parameters and numbers ---------------------------------------------------------


def with_axis(x, *, axis: Axis, keepdims: bool):
    return jnp.log(1 + jnp.sum(jnp.exp(x), axis=axis, keepdims=keepdims))


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        (-1, 1),
        ((-1, 0), (0, 1)),
        *map(slow, [pytest.param(0, 0), pytest.param(None, (0, 1))]),
    ],
)
def test_unknown_axes(written, canonical):
    seen = []

    def stable(x, *, axis, keepdims):
        seen.append((axis, keepdims))
        return jnp.log1p(jnp.sum(jnp.exp(x), axis=axis, keepdims=keepdims))

    rules = table((with_axis, stable))
    for keepdims in (False, True):
        fn = functools.partial(with_axis, axis=written, keepdims=keepdims)
        assert answers(fn, rules, X) == ["stable"]
    assert set(seen) == {(canonical, False), (canonical, True)}


def along_the_last(x, *, axis: Axis):
    return lax.cumsum(jnp.moveaxis(jnp.exp(x), axis, -1), x.ndim - 1)


def of_one_or_several(x, *, axis: Axis):
    total = jnp.sum(jnp.exp(x), axis=axis)
    if isinstance(axis, tuple):
        return jnp.sqrt(jnp.log(total))
    return jnp.log(jnp.sqrt(total))


def of_a_number(x, *, axis: Axis):
    return jnp.exp(jnp.max(jnp.sin(x), axis=axis))


@pytest.mark.parametrize(
    ("before", "kind", "x", "axes"),
    [
        (along_the_last, Array, X, (0, 1)),  # No trace for several axes, or for all.
        (of_one_or_several, Float[Array, "n m"], X, (0, 1, (0, 1))),
        (of_one_or_several, Float[Array, "n m k"], X[None], ((0, 2),)),
        (of_a_number, Float[Array, ""], X[0, 0], (None,)),
    ],
)
def test_axes_that_have_forms_of_their_own(before, kind, x, axes):
    seen = []

    def after(x: kind, *, axis):
        seen.append(axis)
        return before(x, axis=axis)

    rules = table((before, after))
    for axis in axes:
        assert answers(functools.partial(before, axis=axis), rules, x) == ["after"]
    assert set(seen) == {*axes}


def rms(x, scale, eps):
    return x * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + eps) * scale


def test_numbers_in_the_program():
    seen = []

    def normalised(x: Float[Array, "*batch n"], scale: Float[Array, "n"], eps: float):
        seen.append(eps)
        return x / jnp.sqrt(jnp.mean(x * x, axis=-1, keepdims=True) + eps) * scale

    rules = table((rms, normalised))
    assert answers(lambda x, g: rms(x, g, 1e-5), rules, X, X[0]) == ["normalised"]
    # An argument of a jitted function is converted inside of it.
    assert answers(lambda x, g: jax.jit(rms)(x, g, 1e-6), rules, X, X[0]) == ["normalised"]
    assert answers(rms, rules, X, X[0], jnp.float32(1e-5)) == []
    assert set(seen) == {1e-5, 1e-6}


@pytest.mark.parametrize(
    ("kind", "fit", "operand"),
    [
        (int, [2, 2.0], X),
        (float, [2, 2.0, 2.5], X),
        (complex, [2j], X),
        (int, [2, 2.0], X + 1j),
        (float, [2, 2.0, 2.5], X + 1j),
    ],
)
def test_a_number_fits_its_annotation(kind, fit, operand):
    def before(x, n):
        return jnp.where(True, x, 0.0) * n  # The literal True is no operand.

    def after(x, n: kind):
        assert type(n) is kind
        return x * n

    rules = table((before, after))
    for n in (2, 2.0, 2.5, 2j):
        report = explain(functools.partial(before, n=n), rules=rules)(operand)
        assert len(report.rules) == (repr(n) in map(repr, fit))


def test_what_is_looked_for_is_traced_at_numbers_that_fit_alone():
    seen = set()

    def before(x, n):
        seen.add(type(n))
        return x * n

    def after(x, n: int):
        return before(x, n)

    rules = table((before, after))
    assert answers(lambda x: x * 2.5, rules, X) == []
    assert answers(lambda x: x * 2.0, rules, X) == ["after"]
    assert seen == {int}


def test_numbers_have_to_be_equal():
    def twice(x):
        return 2.0 * x

    rules = table((lambda x: jnp.sin(x) * 2.0 + jnp.sin(x) * 0.0, twice))
    for a, b, expected in [(2.0, 0.0, 1), (2.0, -0.0, 0), (3.0, 0.0, 0)]:
        report = explain(lambda x: jnp.sin(x) * a + jnp.sin(x) * b, rules=rules)(X)  # noqa: B023
        # The two calls of sin are two variables, and one in the pattern is two, too.
        assert len(report.rules) == expected


def test_parameters_that_are_numbers_have_to_be_equal():
    over_p = core.Primitive("over")
    over_p.def_abstract_eval(lambda x, by: x)

    def before(x, by):
        return jnp.sin(over_p.bind(x, by=by))

    rules = table((functools.partial(before, by=0), jnp.tanh))
    for by, expected in (0, 1), (0.0, 0), (-0.0, 0), (1, 0):
        assert len(explain(functools.partial(before, by=by), rules=rules)(X).rules) == (
            expected
        )


def test_functions_of_integers():
    def after(x, y):
        return x ^ y

    rules = table((lambda x, y: (x | y) & ~(x & y), after))
    k = jnp.arange(4)
    assert answers(lambda x, y: (x | y) & ~(x & y), rules, k, k[::-1]) == ["after"]


def test_choices():
    def before(x, *, kind: Literal["sin", "cos"]):
        return getattr(jnp, kind)(x) * x

    def after(x, *, kind):
        return x * {"sin": jnp.sin, "cos": jnp.cos}[kind](x)

    rules = table((before, after))
    assert answers(lambda x: jnp.cos(x) * x, rules, X) == ["after"]
    assert answers(lambda x: jnp.tan(x) * x, rules, X) == []


def test_forms_of_dtypes_and_of_batches():
    """What is batched has other primitives, and so has a mask that is not boolean.

    That a function has a primitive for all dtypes as well says nothing of those.
    """

    def before(x, new, i, mask):
        return jnp.exp(jnp.where(mask, lax.dynamic_update_index_in_dim(x, new, i, 0), x))

    def after(x: Float[Array, "n m"], new: Float[Array, "m"], i, mask):
        return jnp.exp(jnp.where(mask, x.at[i].set(new, mode="clip"), x))

    i, on = jnp.arange(3), jnp.arange(3) > 0
    stack = jnp.stack([X, X + 1, X + 2])
    rules = table((before, after))
    assert answers(before, rules, X, X[0], 1, True) == ["after"]
    assert len(explain(before, rules=rules)(X, X[0], 1, 2.0).rules) == 1
    rows = X[0] + i[:, None]
    assert len(explain(jax.vmap(before), rules=rules)(stack, rows, i, on).rules) == 1


def test_a_mask_may_be_beside_complex_numbers():
    """Their norm is of other operations than that of real numbers, and a mask stays a mask."""

    def masked_norm(x, mask):
        return jnp.linalg.norm(jnp.where(mask, x, 0), axis=-1)

    def after(x, mask):
        return masked_norm(x, mask) * 1

    operands = X.astype(jnp.complex64), X > 0
    seen = explain(masked_norm, rules=table((masked_norm, after)))(*operands)
    assert len(seen.rules) == 1


def test_the_mask_may_be_any_operand():
    before = lambda mask, x, y: lax.exp(lax.select(mask, x, y))
    rules = table((before, lambda mask, x, y: before(mask, x, y)))
    assert len(explain(before, rules=rules)(X > 0, X, -X).rules) == 1


@pytest.mark.slow
def test_unsigned_integers_have_fewer_primitives():
    def after(x, y):
        return jnp.exp(jnp.floor_divide(x, y))

    rules = table((lambda x, y: jnp.exp(x // y), after))
    ones = jnp.ones(2, "uint32")
    assert len(explain(lambda x, y: jnp.exp(x // y), rules=rules)(ones, ones).rules) == 1


# --- values -----------------------------------------------------------------------------


def exp_product(w, x):
    return jnp.exp(w) @ x


W = LowRank(jnp.ones((3, 1)), jnp.ones((1, 3)))


def on_low_rank(w: LowRank, x):
    return jnp.full(x.shape[:0] + (3, *x.shape[1:]), jnp.e) * x.sum(0)


def test_values_stay_implicit_between_equations():
    rules = table((exp_product, on_low_rank))
    fn = transform(exp_product, rules=rules, materialise="forbid")
    np.testing.assert_allclose(fn(W, X[:, 0]), exp_product(W.materialise(), X[:, 0]), 1e-5)
    jitted = transform(jax.jit(exp_product), rules=rules, materialise="forbid")
    np.testing.assert_allclose(jitted(W, X[:, 0]), fn(W, X[:, 0]))
    # Dense operands are none of its business.
    assert explain(exp_product, rules=rules)(SQUARE, X[:, 0]).steps == ()


def test_the_rule_of_the_types_at_hand_answers():
    def on_diagonal(w: Diagonal, x):
        return NotImplemented

    def on_any(w, x):
        return jnp.exp(w) @ x

    rules = table(
        (exp_product, on_low_rank), (exp_product, on_diagonal), (exp_product, on_any)
    )
    names = [explain(exp_product, rules=rules)(w, X).rules[0].name for w in (W, SQUARE)]
    assert names == ["on_low_rank", "on_any"]
    report = explain(exp_product, rules=rules)(Diagonal(jnp.ones(3)), X)
    (step,) = [step for step in report.steps if step.decision == "pattern"]
    assert step.rule.name == "on_any" and step.covered == ("exp", "dot_general")
    assert {d.rule.name: d.why for d in step.declined} == {
        "on_low_rank": "its operands are of other types",
        "on_diagonal": "it returned NotImplemented",
    }


def test_what_a_rule_returns_is_final():
    def before(x):
        return jnp.sin(jnp.cos(x))

    def after(x):
        return jax.jit(before)(x) + lax.map(jax.jit(before), x)

    rules = table((before, after))
    d = Diagonal(jnp.ones(3))
    for x in (SQUARE, d):
        got = transform(before, rules=rules, materialise="allow")(x)
        np.testing.assert_allclose(got, 2 * before(jaxrewrite.materialise(x)), 1e-6)


def test_operands_without_annotation_are_arrays_to_the_rule():
    def before(w, x):
        return jnp.exp(jnp.log(w)) @ x

    def after(w, x):
        return w @ x

    rules = table((before, after))
    fn = transform(jax.jit(before), rules=rules, materialise="forbid")
    np.testing.assert_allclose(fn(W, X), W.materialise() @ X, 1e-6)


def test_ambiguous_patterns():
    def other(q: LowRank, r):
        return jnp.exp(q.materialise()) @ r

    rules = table((exp_product, on_low_rank), (lambda q, r: jnp.exp(q) @ r, other))
    with pytest.raises(
        jaxrewrite.AmbiguousRuleError, match="Several pattern rules(.|\n)*other"
    ):
        transform(exp_product, rules=rules)(W, X)
    rules.rewrite(lambda q, r: jnp.exp(q) @ r, precedence=1)(other)
    assert [r.name for r in explain(exp_product, rules=rules)(W, X).rules] == ["other"]


@pytest.mark.parametrize("declines", [True, False])
def test_a_tied_pattern_that_fails_has_not_declined(declines):
    def first(w: LowRank, x):
        return NotImplemented if declines else on_low_rank(w, x)

    def second(q: LowRank, r):
        raise RuntimeError("on purpose")

    rules = table((exp_product, first), (lambda q, r: jnp.exp(q) @ r, second))
    with pytest.raises(RuntimeError if declines else jaxrewrite.AmbiguousRuleError):
        transform(exp_product, rules=rules)(W, X)


def test_registering_again_replaces():
    rules = Rules()
    for factor in (1.0, 2.0):

        def after(x):
            return factor * x  # noqa: B023

        rules.rewrite(lambda x: jnp.sin(jnp.cos(x)))(after)
    assert len(rules.patterns) == 1
    np.testing.assert_allclose(
        transform(lambda x: jnp.sin(jnp.cos(x)), rules=rules)(X), 2 * X
    )


def test_equal_code_in_two_modules_is_of_two_functions():
    """Names in the code are those of the module, and may be of different things."""

    def looked_for(name):
        module = {"jnp": jnp}
        exec(f"inner = jnp.{name}\nbefore = lambda x: 2 * inner(x)", module)  # noqa: S102
        return module["before"]

    rules = Rules()
    functions = [looked_for("sin"), looked_for("cos")]
    for number, before in enumerate(functions):

        def after(x):
            return jnp.full_like(x, number)  # noqa: B023

        rules.rewrite(before)(after)
    for number, before in enumerate(functions):
        np.testing.assert_array_equal(transform(before, rules=rules)(X), 0 * X + number)


def test_a_match_is_within_one_context():
    """What is told to the compiler of a part is not for what takes the place of all."""

    def partly(x):
        with set_xla_metadata(part="first"):
            y = jnp.exp(x)
        return jnp.log(y.sum())

    whole = lambda x: jnp.log(jnp.exp(x).sum())
    rules = table((whole, lambda x: x.sum()))
    assert [step.rule is not None for step in explain(whole, rules=rules)(X).steps] == [
        True
    ]
    assert not [step for step in explain(partly, rules=rules)(X).steps if step.rule]


def test_patterns_of_the_global_table():
    def after(x: Float[Array, "7 7"]):
        return x

    table = jaxrewrite._core.rules.global_rules
    before = patterns_of(table)
    jaxrewrite.rewrite(lambda x: jnp.sinh(jnp.cosh(x)) + jnp.sinh(x))(after)
    try:
        x = jnp.ones((7, 7))
        fn = transform(lambda x: jnp.sinh(jnp.cosh(x)) + jnp.sinh(x))
        np.testing.assert_array_equal(fn(x), x)
        listed = [r.rule.name for r in jaxrewrite.rules("pattern")]
        assert any("after" in name for name in listed)
    finally:
        table._of_passes[PATTERNS] = before


# --- overlap, several results, what is used elsewhere ---------------------------------------


def test_overlapping_matches():
    def small(x):
        return jnp.exp(x) * 1

    def large(x):
        return jnp.log(jnp.exp(x)) * 1

    rules = table((lambda x: jnp.exp(x), small), (lambda x: jnp.log(jnp.exp(x)), large))
    assert answers(lambda x: jnp.log(jnp.exp(x)), rules, X) == ["large"]
    rules.rewrite(lambda x: jnp.exp(x), precedence=1)(small)
    assert answers(lambda x: jnp.log(jnp.exp(x)), rules, X) == ["small"]


def test_a_smaller_match_answers_where_a_larger_one_declines():
    def small(x):
        return jnp.exp(x) * 1

    def large(x):
        return NotImplemented

    rules = table((lambda x: jnp.exp(x), small), (lambda x: jnp.log(jnp.exp(x)), large))
    assert answers(lambda x: jnp.log(jnp.exp(x)), rules, X) == ["small"]


def test_a_rule_may_decline_under_vmap():
    def after(a: Float[Array, "m k"], b: Float[Array, "k n"]):
        return NotImplemented if a.shape[0] == 3 else jnp.sin(a) @ b * 1

    rules = table((lambda a, b: jnp.sin(a) @ b, after))
    fn = jax.vmap(lambda a, b: jnp.sin(a) @ b)
    stacked = jnp.stack([X, 2 * X])
    wide = stacked[:, :2]
    assert answers(fn, rules, stacked, stacked.swapaxes(1, 2)) == []
    assert answers(fn, rules, wide, wide.swapaxes(1, 2)) == ["after"]


def test_when():
    def after(x):
        return jnp.sin(x) * x

    rules = table((lambda x: x * jnp.sin(x), after), when=lambda x: x.shape[0] > 2)
    assert answers(lambda x: x * jnp.sin(x), rules, X) == ["after"]
    assert answers(lambda x: x * jnp.sin(x), rules, X[:2]) == []


def test_several_results():
    def together(x, a, b):
        y = x @ jnp.concatenate([a, b], axis=1)
        return y[:, : a.shape[1]], y[:, a.shape[1] :]

    rules = table((lambda x, a, b: (x @ a, x @ b), together))

    def fn(x, a, b):
        return jnp.sin(x @ a) + jnp.cos(x @ b)

    assert answers(fn, rules, X, X.T, 2 * X.T) == ["together"]
    # No place is after all operands and before every use.
    program = lambda x, a: x @ (a @ (x @ a))  # noqa: E731
    assert answers(program, rules, X, X.T) == []
    # Each part of what has no place may match by itself.
    rules.rewrite(lambda x, a: x @ a, precedence=-1)(lambda x, a: -(x @ a) * -1)
    replaced = make_jaxpr(program, rules=rules)(X, X.T)
    assert [eqn.primitive.name for eqn in replaced.eqns].count("neg") == 3


def test_a_result_may_be_used_inside_of_its_match_before_an_operand_is_made():
    def before(x, y):
        e = jnp.exp(x)
        return e, jnp.sin(e) + y

    def program(x):
        e = jnp.exp(x)
        inside = jnp.sin(e)
        return e, inside + jnp.tanh(x)

    assert answers(program, table((before, before)), X) == ["before"]


def test_a_result_may_be_used_inside_of_a_later_match_before_an_operand_is_made():
    def two(x, y):
        s = jnp.sin(x)
        return s, s * y

    def larger(x, y):
        return jnp.log(jnp.exp(x) + jnp.abs(y))

    def program(x):
        s = jnp.sin(x)
        e = jnp.exp(s)
        return jnp.log(e + jnp.abs(s * jnp.cos(x)))

    assert answers(program, table((two, two), (larger, larger)), X) == ["two", "larger"]


def test_what_is_used_elsewhere_may_stay():
    def after(x):
        return jax.nn.logsumexp(x)

    def fn(x):
        e = jnp.exp(x)
        return jnp.log(e.sum()) + e

    before = lambda x: jnp.log(jnp.exp(x).sum())  # noqa: E731
    assert answers(fn, table((before, after)), X) == []
    kept = table((before, after), keep=True)
    assert answers(fn, kept, X) == ["after"]
    assert answers(jax.jit(fn), kept, X) == ["after"]


def test_a_match_reaches_through_calls_that_return_what_they_get():
    through = jax.jit(lambda x, y: (x, jnp.exp(y)))

    def before(x):
        return jnp.tanh(jnp.arctan(x))

    def fn(x):
        y, z = through(jnp.arctan(x), x)
        return jnp.tanh(y) + z

    rules = table((before, before))
    assert answers(fn, rules, X) == ["before"]
    assert answers(lambda x: jax.jit(fn)(x) + before(x), rules, X) == ["before"] * 2
    # What is returned may be an argument of the program, which no equation makes.
    of_given = table((jnp.tanh, lambda x: jnp.tanh(x)))
    assert answers(lambda x: jnp.tanh(through(x, x)[0]), of_given, X) == ["<lambda>"]
    # A body that another match reaches out of is inlined, with the match in it.
    square = lambda x: jnp.sin(x * x)  # noqa: E731
    both = table((before, before), (square, square))
    crossed = jax.jit(lambda x: (fn(x), x * x))
    found = answers(lambda x: (lambda y, z: y + jnp.sin(z))(*crossed(x)), both, X)
    assert sorted(found) == ["<lambda>", "before"]
    # A rule that declines leaves the equations.
    assert answers(fn, table((before, lambda x: NotImplemented)), X) == []


def test_a_match_reaches_out_of_calls_within_calls():
    inner = jax.jit(lambda y: jnp.tanh(y))
    outer = jax.jit(lambda y: inner(y) + 1)
    before = lambda x: jnp.tanh(jnp.arctan(x))  # noqa: E731
    rules = table((before, before))
    assert answers(lambda x: outer(jnp.arctan(x)), rules, X) == ["<lambda>"]


def test_what_a_match_makes_twice_is_made_once_where_its_rule_declines():
    before = lambda y: jnp.exp(y) * jnp.tanh(jnp.exp(y))  # noqa: E731
    rules = table((before, lambda y: NotImplemented))
    program = make_jaxpr(before, rules=rules)(X)
    assert [eqn.primitive.name for eqn in program.eqns] == ["exp", "tanh", "mul"]


def test_what_a_match_makes_is_no_operand_of_it():
    before = lambda x, y: jnp.arctan(x) * jnp.tanh(y)  # noqa: E731

    def fn(x):
        y = jnp.arctan(x)
        return y * jnp.tanh(y)

    assert answers(fn, table((before, before)), X) == []
    # The operand of both is made by one equation, which stays for the one with two of them.
    kept = table((before, before), keep=True)
    assert answers(fn, kept, X) == ["<lambda>"]
    fn.__qualname__ = "of one operand"
    kept.rewrite(lambda x: before(x, jnp.arctan(x)), precedence=1)(fn)
    assert answers(fn, kept, X) == ["of one operand"]


def test_what_stays_and_its_operands_come_first():
    def of_both(x, y):
        return jnp.arctan(x) * jnp.tanh(y)

    def scaled(x, y):
        return jnp.arctan(x * y)

    def program(x, y):
        z = scaled(x, y)
        return z, z * jnp.tanh(y)

    both = table((of_both, of_both), keep=True)
    both.rewrite(scaled)(scaled)
    assert answers(program, both, X, 2 * X) == ["of_both"]

    def two(x):
        return jnp.tanh(x), jnp.arctan(jnp.exp(x))

    def fn(x):
        y, e = jnp.tanh(x), jnp.exp(x)
        return y, jnp.arctan(e), e

    assert answers(fn, table((two, lambda x: NotImplemented), keep=True), X) == []
    assert answers(fn, table((two, two), keep=True), X) == ["two"]


def test_two_matches_that_come_after_one_operand_keep_their_order():
    """The first result of one is an operand of the other, which was placed before it."""

    def first(x, y):
        return jnp.tanh(x), jnp.arctan(x * y)

    def second(x, y):
        return jnp.exp(x), jnp.cos(x * y)

    def program(x):
        t = jnp.tanh(x)
        e, y = jnp.exp(t), jnp.sin(x)
        return jnp.arctan(x * y), e, jnp.cos(t * y)

    both = table((second, second), precedence=1)
    both.rewrite(first)(first)
    assert answers(program, both, X) == ["second"]


def test_arrays_that_programs_close_over_are_the_same_if_their_numbers_are():
    assert same(np.arange(3.0), np.arange(3.0)) and same(jnp.ones(2), np.ones(2, "f"))
    for other in (np.ones(3), np.ones(2, int), 2 * np.ones(2), 1.0, None):
        assert not same(np.ones(2), other) and not same(other, np.ones(2))


def test_a_move_of_an_operand_may_be_a_result_beside_another():
    def moved(x: Float[Array, "m n"]):
        return x.T, jnp.sin(jnp.exp(x.T))

    assert answers(moved, table((moved, moved)), X) == ["moved"]


def test_a_result_that_stays_beside_another_is_no_result_of_a_match():
    """One equation has a result of the match and one that is needed elsewhere."""

    def before(x):
        values, _ = lax.top_k(x, 2)
        return values, jnp.arctan(jnp.exp(values))

    def program(x):
        values, places = lax.top_k(x, 2)
        return values, jnp.arctan(jnp.exp(values)), places

    assert answers(program, table((before, before), keep=True), X) == []


def test_a_form_for_one_column_is_found_beside_one_that_sizes_do_not_change():
    def before(x, *, is_plain: bool):
        if is_plain:
            return jnp.sin(jnp.exp(x))
        y = jnp.exp(x)
        return jnp.cos(y if y.shape[-1] == 1 else jnp.sort(y))

    def after(x, *, is_plain):
        return before(x, is_plain=is_plain)

    rules = table((before, after))
    assert answers(lambda x: jnp.cos(jnp.exp(x)), rules, X[:, :1]) == ["after"]
    assert answers(lambda x: jnp.cos(jnp.exp(x)), rules, X) == []
    assert answers(lambda x: jnp.cos(jnp.sort(jnp.exp(x))), rules, X) == ["after"]


def test_forms_of_the_same_primitives_differ_by_their_operands():
    def before(x, y, *, is_exchanged: bool):
        a, b = jnp.sin(x), jnp.cos(y)
        return b - a if is_exchanged else a - b

    def after(x, y, *, is_exchanged):
        return before(x, y, is_exchanged=is_exchanged)

    for is_exchanged in (False, True):
        fn = functools.partial(before, is_exchanged=is_exchanged)
        assert answers(fn, table((before, after)), X, 2 * X) == ["after"]


# --- bodies of scans -------------------------------------------------------------------------


def total(f: Callable, init, xs):
    def step(carry, x):
        c, s = carry
        c, y = f(c, x)
        return (c, s + y), None

    def first(c, x):
        return f(c, jax.tree.map(lambda leaf: leaf[0], x))[1]

    y = jax.eval_shape(first, init, xs)
    return lax.scan(step, (init, jnp.zeros(y.shape, y.dtype)), xs)[0][1]


SCANS = table((lambda f, init, xs: jnp.sum(lax.scan(f, init, xs)[1], axis=0), total))


def outer_step(c, x):
    return c * 0.5 + x, jnp.outer(x, c)


ONES = jnp.ones(4)
SUMS = {
    "as it is": (lambda x: lax.scan(outer_step, ONES, x)[1].sum(0), 1),
    "constants": (
        lambda x: lax.scan(lambda c, r: (x.T @ (x @ c), r * c), ONES, x)[1].sum(0),
        1,
    ),
    "two carries": (
        lambda x: lax.scan(lambda c, r: ((c[0] * r, c[1] + 1), c), (ONES, ONES), x)[1][
            0
        ].sum(0),
        1,
    ),
    "two xs": (
        lambda x: lax.scan(lambda c, r: (c * r[0], c * r[1]), ONES, (x, x + 1))[1].sum(0),
        1,
    ),
    "no xs": (
        lambda x: lax.scan(lambda c, _: (c / 2, c * x), ONES, None, length=3)[1].sum(0),
        1,
    ),
    "unrolled": (lambda x: lax.scan(outer_step, ONES, x, unroll=3)[1].sum(0), 1),
    "reversed": (lambda x: lax.scan(outer_step, ONES, x, reverse=True)[1].sum(0), 0),
    "another sum": (lambda x: lax.scan(outer_step, ONES, x)[1].sum(), 0),
}


def test_bodies_of_scans(bulk):
    for name, (fn, count) in SUMS.items():
        assert answers(fn, SCANS, X) == ["total"] * count, name


def test_a_value_in_the_body_of_a_scan_stays_implicit():
    def fn(d, x):
        return lax.scan(lambda c, r: (d @ c, r * c), ONES, x)[1].sum(0)

    rewritten = transform(fn, rules=SCANS, materialise="forbid")
    d = Diagonal(jnp.arange(1.0, 5))
    np.testing.assert_allclose(rewritten(d, X), fn(d.materialise(), X), 1e-5)

    def in_carry(d, x):
        return lax.scan(lambda c, r: (2 * c, c @ r), d, x)[1].sum(0)

    rewritten = transform(in_carry, rules=SCANS, materialise="forbid")
    np.testing.assert_allclose(rewritten(d, X), in_carry(d.materialise(), X), 1e-5)


def test_a_rule_for_a_scan_is_chosen_by_the_value_among_the_carries():
    def of_diagonals(f: Callable, init: Diagonal, xs):
        return total(f, init, xs)

    rules = table(
        (lambda f, init, xs: jnp.sum(lax.scan(f, init, xs)[1], axis=0), of_diagonals)
    )

    def fn(d, x):
        step = lambda c, r: ((c[0] / 2, 2 * c[1]), c[0] * (c[1] @ r))
        return lax.scan(step, (ONES, d), x)[1].sum(0)

    d = Diagonal(jnp.arange(1.0, 5))
    for v, names in [(d, ["of_diagonals"]), (d.materialise(), [])]:
        steps = explain(fn, rules=rules, materialise="forbid")(v, X).steps
        assert [step.rule.name for step in steps if step.decision == "pattern"] == names
    got = transform(fn, rules=rules)(d, X)
    np.testing.assert_allclose(got, fn(d.materialise(), X), 1e-5)


# --- bad input --------------------------------------------------------------------------------


def refused(before, after, message, *operands, **options):
    """The error names both functions, and the table stays as it was."""
    rules = Rules()
    state = rules.version, rules.patterns
    with pytest.raises(TypeError, match=message) as caught:
        rules.rewrite(before, **options)(after)
        state = None
        transform(lambda x: jnp.sin(x) * 1, rules=rules)(*operands or (X,))
    assert state in (None, (rules.version, rules.patterns))
    assert str(caught.value).count("test_patterns.py") >= 1


def unary(x):
    return x


BAD = {
    "an operand unchanged": (lambda x: x, unary, "no equations|an operand unchanged"),
    "nothing": (lambda x: None, unary, "a function of no equations"),
    "an operand among the results": (
        lambda x: (jnp.sin(x), x),
        unary,
        "an operand unchanged",
    ),
    "a constant": (lambda x: (jnp.sin(x), 1.0), unary, "a constant"),
    "effects": (lambda x: jax.debug.print("{}", x) or jnp.sin(x), unary, "has effects"),
    "random": (
        lambda x: x + jax.random.normal(jax.random.key(0), x.shape),
        unary,
        "is random",
    ),
    "an array in it": (lambda x: jnp.sin(x) * SQUARE[0, :1], unary, "has an array in it"),
    "never traced": (lambda x: x.nothing, unary, "can't be traced at any"),
    "an operand ignored": (
        lambda x, y: jnp.sin(x),
        lambda x, y: x,
        "does not use its operand 'y'",
    ),
    "computes with a number": (
        lambda x, eps: jnp.sin(x) / (1 / eps),
        lambda x, eps: x,
        "computes with its operand 'eps'",
    ),
    "other parameters": (lambda x, y: jnp.sin(x) + y, unary, "take the same operands"),
    "other names": (lambda y: jnp.sin(y), unary, "take the same operands"),
    "no operands": (lambda: jnp.ones(3), lambda: 1, "at least one operand"),
    "any number of operands": (lambda *x: jnp.sin(x[0]), unary, "fixed number"),
}
BAD["computes with a number"][1].__annotations__["eps"] = float


@pytest.mark.parametrize("name", BAD)
def test_bad_patterns(name):
    refused(*BAD[name])


def test_the_line_that_a_pattern_cannot_pass_is_named():
    with pytest.raises(TypeError, match="can't be traced at any") as caught:
        transform(jnp.sin, rules=table((lambda x: x.nothing, unary)))(X)
    notes = "".join(caught.value.__cause__.__notes__)
    assert re.search(r"raised at .*test_patterns\.py:\d+", notes)


def test_a_bad_pattern_is_refused_each_time():
    """Of a vector, the function returns an operand unchanged; of a matrix, it does not."""
    bad = lambda x: (x.T, jnp.sin(jnp.exp(x.T)))
    rewritten = transform(lambda x: jnp.sin(jnp.exp(x)), rules=table((bad, unary)))
    for _ in range(2):
        with pytest.raises(TypeError, match="an operand unchanged"):
            rewritten(X)


def test_bad_static_parameters():
    def unbounded(x, *, n):
        return jnp.sin(x) * n

    def other(x, *, m):
        return x

    def bounded(x, *, n: bool):
        return jnp.sin(x) * n

    def many(x, *, n: Literal[tuple(range(257))]):
        return jnp.sin(x) * n

    def few(x, *, n: Literal[tuple(range(256))]):
        return jnp.sin(x) * n

    refused(unbounded, lambda x, *, n: x, "needs a finite domain")
    refused(many, lambda x, *, n: x, "have 257 combinations; a pattern may have 256")
    assert Rules().rewrite(few)(lambda x, *, n: x)
    refused(bounded, other, "keyword-only parameters")


@pytest.mark.parametrize(
    ("after", "message"),
    [
        (lambda x: x[0], r"returned f32\[4\] where what it stands for gives f32\[3,4\]"),
        (lambda x: x.astype(jnp.int32), r"returned i32\[3,4\] where"),
        (lambda x: (x, x), "returned PyTreeDef"),
    ],
)
def test_rules_that_return_something_else(after, message):
    rules = table((lambda x: jnp.sin(x) * 1, after))
    with pytest.raises(TypeError, match=message) as caught:
        transform(lambda x: jnp.sin(x) * 1, rules=rules)(X)
    assert str(caught.value).count("test_patterns.py") >= 2


# --- insight ------------------------------------------------------------------------------------


def test_near_misses():
    def why(fn):
        return [miss.why for miss in near_misses(fn, rules=RULES)(X)][:1]

    (power,) = why(lambda x: jnp.sqrt(x**2 + x * x))
    assert "there is primitive 'integer_pow'" in power and "'mul'" in power
    (used,) = why(lambda x: (lambda e: jnp.log(e.sum(-1)) + e[:, 0])(jnp.exp(x)))
    assert "the result of 'exp'" in used and "keep=True" in used
    assert why(jnp.sin) == []
    miss = near_misses(lambda x: jnp.sqrt(x**2 + x * x), rules=RULES)(X)[0]
    assert f" at {__file__}:{miss.line}: there is" in str(miss)
    assert " at an unknown place: " in str(dataclasses.replace(miss, file=""))
    assert str(near_misses(jnp.sin, rules=RULES)(X)) == "No pattern rule almost matches."


def test_check_pattern(bulk):
    checked = jaxrewrite.testing.check_pattern(lse, X, rules=RULES, modes=["jit", "grad"])
    assert {"grad in 64 bits", "jit in 32 bits"} <= {*checked.checked}
    with pytest.raises(ValueError, match="not registered"):
        jaxrewrite.testing.check_pattern(unary, X, rules=RULES)


def test_programs_are_staged_once(no_leak_checks):
    calls = []

    def fn(x):
        calls.append(x)
        return naive(x)

    rewritten = transform(fn, rules=RULES)
    rewritten(X)
    rewritten(X)
    assert len(calls) == 1


def test_operands_at_which_a_pattern_cannot_be_traced_keep_no_tracers(leak_checks):
    def before(x):
        if x.ndim != 1:
            raise ValueError("not these")
        return jnp.exp(x) + jnp.sin(x)

    rules = table((before, lambda x: jnp.sin(x) + jnp.exp(x)))
    jax.jit(transform(lambda x: before(2 * x), rules=rules))(jnp.ones(3))


# --- what looking for patterns costs, and what it may not lose -------------------------------


@pytest.fixture
def traces(monkeypatch):
    """The patterns that are traced, each as often as it is."""
    traces = []
    trace = Pattern._trace

    def counted(pattern, *args):
        traces.append(pattern)
        return trace(pattern, *args)

    monkeypatch.setattr(Pattern, "_trace", counted)
    return traces


def test_few_traces_tell_whether_a_program_may_have_a_pattern(traces):
    """What a program cannot contain is traced once, and what it may at a few operands."""
    rules = table((naive, lse))
    transform(jnp.cos, rules=rules)(X)
    assert len(traces) == 1
    transform(naive, rules=rules)(X)
    assert len(traces) <= 12
    known = len(traces)
    transform(lambda x: naive(x) + naive(2 * x), rules=rules)(X)
    assert len(traces) == known


def test_an_update_is_of_one_of_two_primitives(traces):
    """A program without any of them has no update, also if that would be batched."""

    def before(x, new, i):
        return jnp.exp(lax.dynamic_update_index_in_dim(x, new, i, 0))

    def after(x: Float[Array, "n m"], new: Float[Array, "m"], i: Int[Array, ""]):
        return jnp.exp(x).at[i].set(jnp.exp(new))

    rules = table((before, after))
    transform(lambda x: jnp.exp(jnp.where(x > 0, x, -x)), rules=rules)(X)
    assert len(traces) == 1
    assert len(explain(before, rules=rules)(X, X[0], 1).rules) == 1
    batched = jax.vmap(before, (None, None, 0))
    assert len(explain(batched, rules=rules)(X, X[0], jnp.arange(3)).rules) == 1


def test_a_precision_is_neither_lost_nor_changed():
    rules = table((lambda a, b, c: (a @ b) @ c, lambda a, b, c: a @ (b @ c)))

    def chain(a):
        return (a @ a.T) @ a

    def high(a):
        with jax.default_matmul_precision("highest"):
            return chain(a)

    assert answers(chain, rules, X) == ["<lambda>"]
    assert answers(high, rules, X) == []
    with jax.default_matmul_precision("highest"):
        program = str(jaxrewrite.make_jaxpr(lambda a: chain(a) * 1, rules=rules)(X))
    assert program.count("precision=(Precision.HIGHEST") == 2


def test_a_call_that_donates_is_no_part_of_a_match():
    donating = jax.jit(lambda e: e.sum(-1), donate_argnums=0)
    report = explain(lambda x: jnp.log(donating(jnp.exp(x))), rules=RULES)(X)
    assert report.rules == ()


def test_a_pattern_that_looks_for_itself():
    rules = Rules()

    @rules.rewrite(lambda x: transform(lambda x: jnp.sin(x) * 1, rules=rules)(x))
    def after(x):
        return x

    with pytest.raises(TypeError, match="the same pattern is in force"):
        transform(jnp.sin, rules=rules)(X)


def test_batches_of_some_of_four_operands():
    def before(a, b, c, d):
        return jnp.exp(a @ b) * jnp.outer(c, d)

    def after(a: Float[Array, "n m"], b: Float[Array, "m k"], c, d):
        return c[:, None] * jnp.exp(a @ b) * d

    rules = table((before, after))
    stack, rows = jnp.stack([X, X + 1]), jnp.ones((2, 3))
    fn = jax.vmap(before, in_axes=(0, None, 0, None))
    assert answers(fn, rules, stack, X.T, rows, jnp.ones(3)) == ["after"]


# --- what is computed twice -------------------------------------------------------------------


def gate(x):
    return jnp.tanh(x) * jnp.sin(x)


def softmax(x):
    e = jnp.exp(x)
    return e / jnp.sum(e, axis=-1, keepdims=True)


def log_sum(x):
    m = jnp.max(x, axis=-1)
    return jnp.log(jnp.exp(x - m[:, None]).sum(-1)) + m


@jax.jit
def doubled(x):
    return jnp.exp(x) * 2


@jax.jit
def gate_of(x, y):
    return jnp.tanh(jnp.abs(x)) * jnp.sin(jnp.abs(y))


def cumulative(x):
    return lax.scan(lambda c, row: (c + row, c), x[0], x)[1]


def noise(seed):
    return jax.random.normal(jax.random.key(seed), (4,))


TWICE = {
    "an operand": lambda x: jnp.tanh(jnp.exp(x)) * jnp.sin(jnp.exp(x)),
    "several equations": lambda x: jnp.tanh(1 + x.sum(0)) * jnp.sin(1 + x.sum(0)),
    "conversions": lambda x: jnp.tanh(x.astype("bfloat16")) * jnp.sin(x.astype("bfloat16")),
    "slices": lambda x: jnp.tanh(x[1:]) * jnp.sin(x[1:]),
    "calls": lambda x: jnp.tanh(doubled(x)) * jnp.sin(doubled(x)),
    "a call and its body": lambda x: jnp.tanh(doubled(x)) * jnp.sin(jnp.exp(x) * 2),
    "arguments": lambda x: gate_of(doubled(x), doubled(x)),
    "a custom derivative": lambda x: jnp.tanh(jax.nn.relu(x)) * jnp.sin(jax.nn.relu(x)),
    "loops": lambda x: jnp.tanh(cumulative(x)) * jnp.sin(cumulative(x)),
    "random numbers": lambda x: jnp.tanh(x + noise(0)) * jnp.sin(x + noise(0)),
    "what is used elsewhere": lambda x: gate(jnp.exp(x)) + jnp.exp(x),
    "under vmap": jax.vmap(lambda x: jnp.tanh(jnp.exp(x)) * jnp.sin(jnp.exp(x))),
    "a result inside": lambda x: jnp.exp(x) / jnp.exp(x).sum(-1, keepdims=True),
    "a result inside, and one is used elsewhere": lambda x: (
        lambda e: jnp.exp(x) / e.sum(-1, keepdims=True) * e
    )(jnp.exp(x)),
    "a maximum": lambda x: jnp.log(jnp.exp(x - x.max(-1)[:, None]).sum(-1)) + x.max(-1),
}
NOT_TWICE = {
    "another axis": lambda x: jnp.tanh((x.T @ x).sum(0)) * jnp.sin((x.T @ x).sum(1)),
    "another dtype": lambda x: jnp.tanh(x) * jnp.sin(x.astype("bfloat16")),
    "another number": lambda x: jnp.tanh(x * 2) * jnp.sin(x * 3),
    "another sign of zero": lambda x: jnp.tanh(x / 0.0) * jnp.sin(x / -0.0),
    "other slices": lambda x: jnp.tanh(x[1:]) * jnp.sin(x[:-1]),
    "other arguments": lambda x: gate_of(doubled(x), x * 2),
    "another custom derivative": lambda x: jnp.tanh(jax.nn.relu(x)) * jnp.sin(jax.nn.relu6(x)),
    "another loop": lambda x: jnp.tanh(cumulative(x)) * jnp.sin(x[0] + cumulative(x)),
    "another key": lambda x: jnp.tanh(x + noise(0)) * jnp.sin(x + noise(1)),
    "a result inside that is used elsewhere": lambda x: softmax(x) + jnp.sum(
        (lambda e: e / jnp.exp(x).sum(-1, keepdims=True) * e)(jnp.exp(x))
    ),
}  # fmt: skip
OF_TWICE = table((gate, lambda x: gate(x) * 1), (log_sum, lambda x: log_sum(x) * 1))
OF_TWICE.rewrite(softmax)(lambda x: softmax(x) * 1)


def test_what_is_computed_twice_is_one_array(bulk):
    programs = {**TWICE, **NOT_TWICE}
    counts = {
        name: len(explain(fn, rules=OF_TWICE)(X).rules) for name, fn in programs.items()
    }
    assert [name for name in TWICE if counts[name] != 1] == []
    assert {counts[name] for name in NOT_TWICE if "inside" not in name} == {0}
    assert counts["a result inside that is used elsewhere"] == 1  # That of softmax itself.

    def total(x, rewritten):
        each = [transform(f, rules=OF_TWICE) if rewritten else f for f in TWICE.values()]
        results = [fn(x).astype("float32") for fn in each]
        return sum(map(jnp.sum, results)), results

    grad = jax.jit(jax.grad(total, has_aux=True), static_argnums=1)
    (got, each), (want, wanted) = grad(X, True), grad(X, False)
    np.testing.assert_allclose(got, want, 2e-2, 2e-2)
    for name, a, b in zip(TWICE, each, wanted, strict=True):
        np.testing.assert_allclose(a, b, 2e-2, 2e-2, err_msg=name)


def test_what_is_computed_twice_in_what_is_looked_for():
    """It is one array there, too."""

    def before(x):
        return jnp.exp(x) / jnp.exp(x).sum()

    def once(x):
        e = jnp.exp(x)
        return e / e.sum()

    rules = table((before, lambda x: jax.nn.softmax(x, axis=None)))
    for fn in (before, once):
        assert answers(fn, rules, X) == ["<lambda>"]


def test_an_operand_that_is_computed_twice_is_computed_once_after():
    fn = lambda w, x: jnp.tanh(w @ x) * jnp.sin(w @ x)  # noqa: E731
    for after in (lambda x: x * 3, lambda x: NotImplemented):
        rules = table((gate, after))
        for w in (SQUARE, W):
            program = make_jaxpr(fn, rules=rules, materialise="forbid")(w, X)
            products = [e for e in program.eqns if e.primitive.name == "dot_general"]
            assert len(products) == (1 if w is SQUARE else 2)


def test_looking_for_what_is_computed_twice_takes_linear_time(monkeypatch):
    """Each equation is looked at once, and parts of one array are told apart at once."""
    looks = []
    of = Numbering._number
    same = numbering.same_equation
    monkeypatch.setattr(Numbering, "_number", lambda *a: looks.append(a) or of(*a))
    monkeypatch.setattr(numbering, "same_equation", lambda *a: looks.append(a) or same(*a))

    def fn(x):
        y, z = x, x
        for _ in range(100):
            y, z = jnp.cos(y) + y, jnp.cos(z) + z
        rows = [jnp.tanh(x[i : i + 2]) * jnp.sin(x[:2]) for i in range(30)]
        return jnp.tanh(y) * jnp.sin(z), rows

    program = make_jaxpr(fn, rules=table((gate, lambda x: x * 3)))(jnp.ones(32))
    count = len(jax.make_jaxpr(fn)(jnp.ones(32)).eqns)
    assert len(looks) < 2 * count
    assert [str(e.primitive) for e in program.eqns].count("tanh") == 29


# --- several vmaps --------------------------------------------------------------------------


def exp_of_product(a, b):
    return jnp.exp(a @ b)


def test_batches_of_several_axes(bulk):
    """What has operands of a given rank is found under vmap of vmap, of all or of some."""

    def of_rows(a: Float[Array, "n m"], b: Float[Array, "m"]):
        return jnp.exp(jnp.sum(a * b, axis=-1))

    def of_inverse(a: Float[Array, "n n"], b: Float[Array, "n"]):
        return jnp.linalg.solve(a, b)

    def inverse(a, b):
        return jnp.linalg.inv(a) @ b

    rules = table((exp_of_product, of_rows), (inverse, of_inverse))
    many = jnp.eye(3) + jnp.arange(1, 5.0).reshape(2, 2, 1, 1) / 9
    rows = jnp.arange(12.0).reshape(2, 2, 3) / 12
    both, second, first = (0, 0), (None, 0), (0, None)
    cases = [
        (exp_of_product, both, both, many, rows),
        (exp_of_product, both, second, many[0], rows),
        (exp_of_product, both, first, many, rows[0]),
        (exp_of_product, first, second, many[0], rows[0]),
        (exp_of_product, second, first, many[0], rows[0]),
        (inverse, both, both, many, rows),
        (inverse, second, first, many[0], rows[0]),
    ]
    batched = [jax.vmap(jax.vmap(fn, inner), outer) for fn, outer, inner, *_ in cases]
    more = [
        (exp_of_product, both, jax.vmap(batched[0]), many[None], rows[None]),
        (exp_of_product, both, jax.vmap(batched[3], (0, None)), many, rows[0]),
        (inverse, both, jax.vmap(batched[6], (None, 0)), many[0], rows),
    ]
    batched += [fn for _, _, fn, *_ in more]
    cases += more
    for fn, (before, *_, a, b) in zip(batched, cases, strict=True):
        (found,) = explain(fn, rules=rules)(a, b).rules
        assert found.name == ("of_inverse" if before is inverse else "of_rows")

    @jax.jit  # One compilation for all of them.
    def outcomes():
        return [
            (transform(fn, rules=rules)(a, b), fn(a, b))
            for fn, (*_, a, b) in zip(batched, cases, strict=True)
        ]

    for got, want in outcomes():
        np.testing.assert_allclose(got, want, 1e-4)
    four = exp_of_product
    for _ in range(4):
        four = jax.vmap(four)
    assert explain(four, rules=rules)(many[None, None], rows[None, None]).rules == ()


# --- matches that are alike -----------------------------------------------------------------


def test_numbers_are_no_arrays_in_a_second_match():
    """Matches with the same avals are not alike if one has a number for an operand."""

    def of_array(x, y: Array):
        return jnp.tanh(x * y) + 1

    def of_number(x, y: core.Literal):
        return jnp.tanh(x * y) + 2

    def before(x, y):
        return jnp.tanh(x * y)

    rules = table((before, of_array), (before, of_number))
    fn = lambda x, y: [before(x, z) for z in (y, 0.0, y, 0.0, y)]
    assert transform(fn, rules=rules)(jnp.float32(0), jnp.float32(0)) == [1, 2, 1, 2, 1]


def test_a_near_miss_has_two_equations_of_a_pattern():
    rules = Rules()
    rules.rewrite(lambda x: jnp.log(jnp.sum(jnp.exp(x))))(lambda x: x.sum())
    two, one = (
        lambda x: jnp.log(jnp.sum(jnp.sin(x))),
        lambda x: jnp.log(jnp.max(jnp.exp(x))),
    )
    assert [miss.found for miss in near_misses(two, rules=rules)(X)] == [2]
    assert not near_misses(one, rules=rules)(X)


def test_a_near_miss_by_a_parameter_names_it():
    rules = Rules()
    rules.rewrite(lambda x: jnp.sqrt(x**2))(jnp.abs)
    (miss,) = near_misses(lambda x: jnp.sqrt(x**3), rules=rules)(X)
    assert miss.why.endswith("y=2 where there is y=3")


def test_the_nearest_miss_comes_first():
    rules = Rules()
    rules.rewrite(lambda x: jnp.log(jnp.sum(jnp.exp(jnp.sin(x)))))(lambda x: x.sum())

    def fn(x):
        two = jnp.log(jnp.sum(jnp.tan(x)))
        return two + jnp.log(jnp.sum(jnp.exp(jnp.cos(x))))

    assert [miss.found for miss in near_misses(fn, rules=rules)(X)] == [3, 2]


@pytest.mark.parametrize("donated", [(), (0,), (1,), (0, 1)])
def test_a_call_with_a_donated_operand_is_not_looked_into(donated):
    fn = jax.jit(lambda x, y: x * y, donate_argnums=donated)
    (eqn,) = jax.make_jaxpr(fn)(1.0, 2.0).eqns
    assert (body_of(eqn) is None) == bool(donated)


@pytest.mark.parametrize("where", ["in_shardings", "out_shardings"])
def test_a_call_that_places_arrays_is_not_looked_into(where):
    place = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    fn = jax.jit(lambda x, y: x * y, **{where: place})
    (eqn,) = jax.make_jaxpr(fn)(1.0, 2.0).eqns
    assert body_of(eqn) is None


def test_a_call_that_lays_one_array_out_is_not_looked_into():
    fn = jax.jit(lambda x, y: x * y, in_shardings=(Format(Layout.AUTO), None))
    (eqn,) = jax.make_jaxpr(fn)(1.0, 2.0).eqns
    assert body_of(eqn) is None


def test_the_rule_of_a_derivative_may_close_over_any_name():
    """JAX's own wrappers of rules close over such names, which say nothing of the rule."""

    def make(cells):
        @jax.custom_jvp
        def doubled(x):
            return x * 2

        doubled.defjvp(lambda p, t: (p[0] * 2, cells * t[0]))
        return doubled

    one, other = make(3.0), make(100.0)
    rules = Rules()
    rules.rewrite(lambda x: jnp.sin(one(x)))(lambda x: jnp.sin(one(x)))
    fn = lambda x: jnp.sin(other(x)).sum()
    assert not explain(fn, rules=rules)(X).steps
    got, want = (jax.grad(f)(X) for f in (transform(fn, rules=rules), fn))
    np.testing.assert_array_equal(got, want)


def test_a_pattern_that_was_interrupted_matches_again():
    interrupts, rules = [KeyboardInterrupt], Rules()

    def before(x):
        if x.shape == (7,) and interrupts:
            raise interrupts.pop()
        return jnp.log(jnp.exp(x))

    rules.rewrite(before)(lambda x: x)
    run = lambda: transform(lambda x: jnp.log(jnp.exp(x)), rules=rules)(jnp.full(7, 1e3))
    with pytest.raises(KeyboardInterrupt):
        run()
    np.testing.assert_array_equal(run(), np.full(7, 1e3))


def test_a_condition_is_not_asked_of_a_value_in_a_batch():
    """Its leaves have no axis for the batch, so that the pattern does not apply."""
    rules, asked = Rules(), []

    @rules.rewrite(lambda x, w: jnp.tanh(jnp.sin(x @ w)), when=lambda x, w: asked.append(w))
    def fast(x: jax.Array, w: Diagonal):
        return x

    fn = jax.vmap(lambda x, w: jnp.tanh(jnp.sin(x @ w)))
    v, x = Diagonal(jnp.ones((2, 3))), jnp.ones((2, 3))
    np.testing.assert_allclose(
        transform(fn, rules=rules)(x, v), fn(x, v.materialise()), rtol=1e-6
    )
    assert not asked

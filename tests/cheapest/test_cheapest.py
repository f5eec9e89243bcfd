"""``materialise="cheapest"``: what it chooses, and that results are the same."""

import collections
import functools
import itertools
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from choose import every
from jax import lax
from jaxtyping import ArrayLike

import jaxrewrite
from jaxrewrite import Cheapest, Report, explain, make_jaxpr, transform
from jaxrewrite._cheapest import model
from jaxrewrite._core.rewrite import Rewriter, new_rewriter
from jaxrewrite._core.settings import current_settings
from jaxrewrite._core.traces import Rewriting
from jaxrewrite.testing import assert_same
from jaxrewrite.values import (
    Diagonal,
    Kronecker,
    Lora,
    LowRank,
    Named,
    Quantised,
    Sum,
    Tagged,
    Unitful,
    dropout,
)


def random(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape)


def lora(n=256, rank=32, w=None):
    w = random(0, n, n) if w is None else w
    return Lora(w, random(1, n, rank), random(2, rank, n))


def decisions(fn, *args, policy="cheapest"):
    report = explain(fn, materialise=policy)(*args)
    return [step.decision for step in report.steps]


def primitives(jaxpr):
    return collections.Counter(eqn.primitive.name for eqn in jaxpr.eqns)


def equations(jaxpr):
    """The equations of a program, and those inside of them."""
    for eqn in jaxpr.eqns:
        yield eqn
        for body in jax.extend.core.jaxprs_in_params(eqn.params):
            yield from equations(body)


def shapes_of_dots(jaxpr):
    dots = [e for e in equations(jaxpr) if e.primitive.name == "dot_general"]
    return [e.outvars[0].aval.shape for e in dots]


class Factors(jaxrewrite.ArrayValue):
    """A product that its rules never make dense."""

    a: jax.Array
    b: jax.Array
    materialise_policy = "forbid"

    def materialise(self):
        return self.a @ self.b


@pytest.fixture
def at_random(monkeypatch):
    """Costs that have nothing to do with the equations, so that each choice is made somewhere."""

    def use(seed):
        jaxrewrite.clear_caches()

        def seconds(eqns, results, start=0.0):
            text = [f"{e.primitive.name}{[v.aval for v in e.outvars]}" for e in eqns]
            return zlib.crc32(f"{seed}{text}".encode()) % 1000 * 1e-6 if text else 0.0

        monkeypatch.setattr(model, "seconds", seconds)

    yield use
    jaxrewrite.clear_caches()


# --- what is chosen -----------------------------------------------------------------------


def test_many_rows_are_worth_a_merged_weight():
    rows = [decisions(jnp.matmul, random(0, n, 256), lora()) for n in (1, 8, 2048)]
    assert rows == [["rule"], ["rule"], ["dense"]]


def test_a_value_becomes_dense_once_for_all_uses():
    x = random(0, 128, 256)

    def program(x, w):
        return x @ w, (x + 1) @ w.T, (x + 2) @ w

    jaxpr = make_jaxpr(program, materialise="cheapest")(x, lora(rank=128))
    shapes = [
        e.outvars[0].aval.shape for e in jaxpr.eqns if e.primitive.name == "dot_general"
    ]
    assert shapes.count((256, 256)) == 1
    # One use does not pay for it.
    few = random(0, 40, 256)
    assert decisions(lambda x, w: x @ w, few, lora(rank=128)) == ["rule"]
    assert decisions(lambda x, w: x @ w @ w @ w @ w, few, lora(rank=128)) == ["dense"] * 4


def test_what_a_loop_does_not_change_becomes_dense_before_it():
    def program(w, x):
        return lax.scan(lambda c, _: (jnp.tanh(c @ w), None), x, None, length=50)[0]

    jaxpr = make_jaxpr(program, materialise="cheapest")(lora(), random(0, 128, 256))
    assert primitives(jaxpr)["dot_general"] == 1  # of the factors
    (scan,) = (eqn for eqn in equations(jaxpr) if eqn.primitive.name == "scan")
    assert primitives(scan.params["jaxpr"])["dot_general"] == 1


def test_the_report_has_both_costs_and_the_choice():
    report = explain(jnp.matmul, materialise="cheapest")(random(0, 2048, 256), lora())
    (step,) = report.steps
    assert step.choice.is_dense
    assert step.choice.implicit > step.choice.dense + step.choice.making > 0
    assert report.policy == "Cheapest(limit=inf)"
    assert "by cost dense: " in str(report)
    assert "by cost dense: " in report._repr_html_()
    assert Report.from_json(report.to_json()) == report
    assert [made.type for _, made in report.dense] == ["Lora"]
    assert explain(jnp.matmul)(random(0, 2048, 256), lora()).steps[0].choice is None
    # An array that is made entry by entry is written, too.
    codes = Quantised.quantise(random(0, 768, 768))
    (step,) = explain(jnp.matmul, materialise="cheapest")(random(1, 8, 768), codes).steps
    assert step.choice.making > codes.size * 4 / model.BANDWIDTH


def test_the_limit_is_one_of_the_arrays_that_are_dense_at_once():
    def program(x, v, w):
        return x @ v @ w

    size = 4 * 256 * 256
    x, v, w = random(0, 2048, 256), lora(), lora()
    assert decisions(program, x, v, w, policy=Cheapest(limit=size)) == ["dense"] * 2
    for less in (size - 1, 0):
        assert decisions(program, x, v, w, policy=Cheapest(limit=less)) == ["rule"] * 2


def product(x, w):
    return x @ w


def with_tangents(fn):
    fn = jax.custom_jvp(fn)
    fn.defjvp(lambda primals, tangents: (fn(*primals), tangents[0] @ primals[1]))
    return fn


def with_cotangents(fn):
    fn = jax.custom_vjp(fn)
    fn.defvjp(
        lambda x, w: (x @ w, (x, w)), lambda saved, t: (t @ saved[1].T, saved[0].T @ t)
    )
    return fn


def branch_with_a_constant(x, w, kept):
    return lax.cond(x[0, 0] > 0, lambda: x @ w, lambda: x + jnp.sinh(kept).sum())


def rules_with_a_constant():
    rules = jaxrewrite.Rules()

    @rules.register("sinh")
    def _(v: Factors, **params):
        return jnp.asarray(np.arange(16, dtype=np.float32).reshape(v.shape))

    return rules


# JAX takes what no turn changes out of a loop, so these exchange what they keep.


def loop_by_scan(x, w, kept):
    turn = lambda c, _: ((c[0] @ w, c[2], c[1]), None)
    return lax.scan(turn, (x, kept, kept), None, length=2)[0]


def loop_by_while(x, w, kept):
    turn = lambda c: (c[0] + 1, c[1] @ w, c[3], c[2])
    return lax.while_loop(lambda c: c[0] < 2, turn, (0, x, kept, kept))


def loop_with_a_product_in_the_condition(x, w, kept):
    turn = lambda c: (jnp.sin(c[0]), c[2], c[1])
    return lax.while_loop(lambda c: (c[0] @ w).sum() < 0, turn, (x, kept, kept))


# Functions with a product in a body. What carries a value that is never dense is not dense as a whole.
CALLS_OF_A_PRODUCT = {
    "jit": jax.jit(product),
    "jit in jit": jax.jit(lambda x, w: jnp.sin(jax.jit(product)(x, w))),
    "remat": jax.checkpoint(product),
    "cond": lambda x, w: lax.cond(x[0, 0] > 0, lambda: x @ w, lambda: jnp.sin(x)),
    "custom_jvp": with_tangents(product),
    "custom_vjp": with_cotangents(product),
    "custom_jvp in jit": jax.jit(with_tangents(product)),
}
WITH_WHAT_IS_NEVER_DENSE = {
    "cond with a constant": branch_with_a_constant,
    "scan": loop_by_scan,
    "while": loop_by_while,
    "condition": loop_with_a_product_in_the_condition,
}


def product_in(name, x, w, kept):
    if name in WITH_WHAT_IS_NEVER_DENSE:
        return WITH_WHAT_IS_NEVER_DENSE[name](x, w, kept)
    return CALLS_OF_A_PRODUCT[name](x, w)


def product_between_others(name):
    """A program with a product in a body, between two uses of another weight."""
    return lambda x, v, w, kept: (x @ v, product_in(name, x, w, kept), (x + 1) @ v)


def arguments_of_products():
    kept = Factors(random(3, 4, 2), random(4, 2, 4))
    return random(0, 2048, 256), lora(), lora(), kept


@pytest.mark.parametrize("name", [*CALLS_OF_A_PRODUCT, *WITH_WHAT_IS_NEVER_DENSE])
def test_the_limit_counts_what_bodies_make_dense(name):
    program, size = product_between_others(name), 4 * 256 * 256
    rules = rules_with_a_constant()

    def chosen(limit):
        report = explain(program, rules=rules, materialise=Cheapest(limit=limit))
        steps = report(*arguments_of_products()).steps
        of_body = {step.decision for step in steps[1:-1]}
        return steps[0].decision, steps[-1].decision, "dense" in of_body

    assert chosen(2 * size) == ("dense", "dense", True)
    assert chosen(2 * size - 1) == ("rule", "rule", True)
    assert chosen(size - 1) == ("rule", "rule", False)


@pytest.mark.parametrize("name", ["jit", "cond", "custom_jvp"])
def test_the_limit_counts_bodies_that_another_program_has_used(name):
    size, (x, v, w, kept) = 4 * 256 * 256, arguments_of_products()
    for limit, merged in ((2 * size, 2), (2 * size - 1, 1)):
        policy = Cheapest(limit=limit)
        jaxrewrite.clear_caches()
        make_jaxpr(CALLS_OF_A_PRODUCT[name], materialise=policy)(x, w)
        for _ in range(2):
            program = product_between_others(name)
            jaxpr = make_jaxpr(program, materialise=policy)(x, v, w, kept)
            assert shapes_of_dots(jaxpr).count((256, 256)) == merged


def test_the_limit_counts_weights_that_a_loop_carries_as_arrays():
    def program(x, v, w):
        turn = lambda _, c: (c[0] @ c[1], c[1] * 2)
        return x @ v, lax.fori_loop(0, 2, turn, (x, w)), (x + 1) @ v

    def chosen(limit):
        report = explain(program, materialise=Cheapest(limit=limit))
        return [step.decision for step in report(*arguments_of_products()[:3]).tree]

    # There is one array beside the two of a turn.
    size = 4 * 256 * 256
    assert chosen(3 * size) == ["dense", "handler", "dense"]
    assert chosen(3 * size - 1) == ["rule", "handler", "rule"]


def test_what_is_inside_of_a_dense_equation_does_not_count():
    def program(w, x):
        return lax.scan(lambda y, _: (jnp.tanh(y @ w), None), x, None, length=3)[0] @ w

    for limit in (float("inf"), 4 * 256 * 256):
        report = explain(program, materialise=Cheapest(limit=limit))
        steps = report(lora(), random(0, 2048, 256)).tree
        assert [step.decision for step in steps] == ["dense", "dense"]


def test_a_limit_is_a_number_of_bytes():
    with pytest.raises(ValueError, match="number of bytes"):
        Cheapest(limit=float("nan"))
    with pytest.raises(ValueError, match="'cheapest'; got 'cheap'"):
        transform(jnp.sin, materialise="cheap")


def test_what_carries_more_than_numbers_stays():
    v = random(0, 4, 4)
    for value in (Unitful(v, "m"), Named(v, ("a", "b")), Tagged(v, "mine")):
        result = transform(lambda v, x: v @ x, materialise="cheapest")(value, v)
        assert type(result) is type(value)
    tagged = Tagged(lora(), "mine")
    many = random(0, 2048, 256)
    result = transform(lambda w, x: x @ w, materialise="cheapest")(tagged, many)
    assert isinstance(result, Tagged)
    # What is inside becomes dense.
    inside = Unitful(lora(), "m")
    result = transform(lambda w, x: x @ w, materialise="cheapest")(
        inside, random(0, 2048, 256)
    )
    steps = explain(lambda w, x: x @ w, materialise="cheapest")(
        inside, random(0, 2048, 256)
    )
    assert [step.decision for step in steps.steps] == ["rule", "dense"]
    assert_same(result.array, random(0, 2048, 256) @ jaxrewrite.materialise(inside.array))


def test_what_a_rule_makes_of_numbers_may_carry_more():
    rules = jaxrewrite.Rules()

    @rules.register("sin")
    def _(w: Lora, **params):
        return Unitful(jnp.linalg.inv(w.w), "m")  # It takes longer than the sine.

    found = jax.eval_shape(transform(jnp.sin, rules=rules, materialise="cheapest"), lora())
    assert type(found) is Unitful


def test_a_rule_says_itself_what_is_implicit():
    rules, many = jaxrewrite.Rules(), jnp.ones((2048, 256))

    @rules.register("sin")
    def _(v: Factors, **params):
        return transform(jnp.matmul)(many, Lora(v.a, v.b[:, :32], v.b[:32]))[:256]

    value = Factors(random(0, 256, 256), random(1, 256, 256))
    jaxpr = make_jaxpr(jnp.sin, rules=rules, materialise="cheapest")(value)
    assert (256, 256) not in shapes_of_dots(jaxpr)


def rule_for_products(rules):
    @rules.register("dot_general")
    def _(x: ArrayLike, y: ArrayLike, **params):
        return jnp.sinh(jnp.matmul(x, y)) / jnp.matmul(x + 1, y)


def rule_for_tanh(rules):
    @rules.register("tanh")
    def _(x: ArrayLike, **params):
        return jnp.sinh(x) / jnp.cosh(x)


def pattern_of_tanh(rules):
    @rules.rewrite(lambda x: jnp.tanh(x))
    def _(x):
        return jnp.sinh(x) / jnp.cosh(x)


@pytest.mark.parametrize(
    ("register", "program"),
    [
        (rule_for_products, jnp.matmul),
        (rule_for_tanh, lambda x, w: layers(x, w)),
        (pattern_of_tanh, lambda x, w: layers(x, w)),
    ],
)
def test_rules_for_arrays_see_what_became_dense(register, program):
    rules = jaxrewrite.Rules()
    register(rules)
    implicit = make_jaxpr(program, rules=rules, materialise="cheapest")
    jaxpr = implicit(random(0, 2048, 256), lora(rank=8))
    names = {eqn.primitive.name for eqn in equations(jaxpr)}
    assert "sinh" in names and "tanh" not in names
    assert shapes_of_dots(jaxpr).count((256, 256)) == 1


def test_what_becomes_dense_inside_of_a_rule_is_final():
    class Around(jaxrewrite.ArrayValue):
        w: jax.Array
        materialise_policy = "forbid"

        def materialise(self):
            return self.w

    rules = jaxrewrite.Rules()
    rule_for_products(rules)

    @rules.register("dot_general")
    def _(x: ArrayLike, v: Around, **params):
        return jnp.matmul(x, v.w)

    implicit = make_jaxpr(jnp.matmul, rules=rules, materialise="cheapest")
    jaxpr = implicit(random(0, 2048, 256), Around(lora(rank=8)))
    assert shapes_of_dots(jaxpr) == [(256, 256), (2048, 256)]
    assert "sinh" not in primitives(jaxpr)


def test_a_type_that_forbids_it_stays():
    class Factors(jaxrewrite.ArrayValue):
        a: jax.Array
        b: jax.Array

        def materialise(self):
            return self.a @ self.b

    rules = jaxrewrite.Rules()

    @rules.register("dot_general")
    def _(x: ArrayLike, v: Factors, **params):
        return (x @ v.a) @ v.b

    value, x = Factors(random(0, 64, 64), random(1, 64, 64)), random(2, 512, 64)
    for policy, decision in ((None, "dense"), ("warn", "rule"), ("forbid", "rule")):
        Factors.materialise_policy = policy
        jaxrewrite.clear_caches()
        (step,) = explain(jnp.matmul, rules=rules, materialise="cheapest")(x, value).steps
        assert step.decision == decision
    with pytest.raises(jaxrewrite.MaterialisationError, match="sort"):
        transform(jnp.sort, materialise="cheapest")(value)


def test_a_weight_with_dropout_is_not_merged():
    params, x = dropout({"w": lora()}, 0.5, jax.random.key(3)), random(0, 2048, 256)
    product = lambda params, x: x @ params["w"]
    assert "dense" not in decisions(product, params, x)
    assert_same(
        *(transform(product, materialise=p)(params, x) for p in ("cheapest", "allow"))
    )


def test_without_a_rule_nothing_warns():
    assert_same(
        transform(jnp.sort, materialise="cheapest")(Diagonal(jnp.arange(3.0))),
        jnp.sort(jnp.diag(jnp.arange(3.0))),
    )


# --- the other policies, and the caches -----------------------------------------------------


def test_other_policies_have_the_plain_builder():
    settings = current_settings()
    for policy in ("warn", "allow", "forbid"):
        rewriting = Rewriting(settings._replace(policy=policy))
        assert type(new_rewriter(rewriting)) is Rewriter


def test_programs_are_kept():
    calls = []

    def program(x, w):
        calls.append(x)
        return x @ w

    x, w = random(0, 2048, 256), lora()
    for policy in ("cheapest", "cheapest", Cheapest(), "allow"):
        assert_same(
            transform(program, materialise=policy)(x, w), x @ jaxrewrite.materialise(w)
        )
    assert len(calls) == 2


def test_transforms_inside_have_the_policy():
    x, w = random(0, 2048, 256), lora()
    inner = transform(jnp.matmul)
    kept = transform(jnp.matmul, materialise="allow")
    for fn, dots in ((inner, 2), (kept, 3)):
        # The filter leaves the value to the transform inside.
        jaxpr = make_jaxpr(fn, lambda leaf: False, materialise="cheapest")(x, w)
        found = [e for e in equations(jaxpr) if e.primitive.name == "dot_general"]
        assert len(found) == dots


def test_what_one_program_made_dense_costs_another_one_as_much_as_before():
    """A rule finds the one factor, or the other one, dense by an equation before it."""
    rules, many = jaxrewrite.Rules(), jnp.ones((2048, 256))

    @rules.register("sin")
    def _(v: Factors, **params):
        return (many @ v.a)[:256]

    @rules.register("cos")
    def _(v: Factors, **params):
        return (many @ v.b)[:256]

    @rules.register("dot_general")
    def _(x: ArrayLike, v: Factors, **params):
        return (x @ v.a) @ v.b

    def merged(program):
        implicit = make_jaxpr(program, rules=rules, materialise="cheapest")
        jaxpr = implicit(random(0, 8, 256), Factors(lora(), lora()))
        return shapes_of_dots(jaxpr).count((256, 256))

    assert merged(lambda x, v: (jnp.sin(v), x @ v)) == 1
    assert merged(lambda x, v: (jnp.cos(v), x @ v)) == 1
    assert merged(lambda x, v: x @ v) == 0


def test_a_plan_is_for_what_is_known_of_the_operands():
    """A mask of a triangle clears nothing of a diagonal matrix, and another one may."""

    @jax.jit
    def masked(mask, v):
        return jnp.where(mask, v, 0.0)

    def of_triangle(v, x):
        return masked(jnp.arange(64)[:, None] >= jnp.arange(64), v)

    def of_another(v, x):
        return masked(x > 0, v)

    for programs in itertools.permutations([of_triangle, of_another]):
        jaxrewrite.clear_caches()
        costs = {}
        for program in programs:
            report = explain(program, materialise="cheapest")
            step = report(Diagonal(random(0, 64)), random(1, 64, 64)).steps[-1]
            costs[program] = step.choice.implicit
        assert costs[of_triangle] == 0.0 < costs[of_another]


# --- derivatives ------------------------------------------------------------------------------


def dots_of_gradient(policy, rank, base=None, program=jnp.matmul, rules=None):
    w, x = lora(rank=rank, w=base), random(0, 2048, 256)
    implicit = transform(program, materialise=policy, rules=rules)
    loss = lambda w: jnp.sin(jax.tree.leaves(implicit(x, w))[0]).sum()
    jaxpr = jax.make_jaxpr(jax.grad(lambda ab: loss(Lora(w.w, *ab))))((w.a, w.b))
    found = (e for e in equations(jaxpr) if e.primitive.name == "dot_general")
    return [e for e in found if e.outvars[0].aval.shape == (256, 256)]


def test_the_gradient_has_a_choice_of_its_own():
    # The merged weight alone: the gradient by the factors is by thin products.
    assert len(dots_of_gradient("cheapest", 8)) == 1
    # With factors of full rank, the cotangent of the merged weight is cheaper.
    assert len(dots_of_gradient("cheapest", 256)) > 1


@jax.jit
def layer(x, w, depth):
    return jnp.tanh(x @ w), depth + 1


def layers(x, w):
    y, depth = layer(x, w, 0)
    return layer(y, w, depth)


def test_integers_beside_floats_leave_the_gradient_its_choice():
    base = Quantised.quantise(random(0, 256, 256))
    assert len(dots_of_gradient("cheapest", 8, base)) == 1
    assert len(dots_of_gradient("cheapest", 8, program=layers)) == 1


def test_integers_among_the_results_have_no_tangent():
    rules = jaxrewrite.Rules()

    @rules.register("top_k")
    def _(v: Lora, *, k, **params):
        return lax.top_k(v.materialise() @ jnp.eye(v.shape[1]), k)  # It is slower.

    largest = lambda v: lax.top_k(v, 2)[0].sum()
    w = lora(8, 2)
    (step,) = explain(largest, rules=rules, materialise="cheapest")(w).steps[:1]
    assert step.decision == "dense"
    implicit = transform(largest, rules=rules, materialise="cheapest")
    got = jax.grad(implicit)(w)
    want = jax.grad(lambda v: largest(v.materialise()))(w)
    assert_same(got.a, want.a, 1e-5)


def test_rules_for_arrays_of_other_programs_leave_the_gradient_its_choice():
    rules, seen = jaxrewrite.Rules(), []

    @rules.register("cbrt")
    def _(x: ArrayLike, **params):
        return x

    assert len(dots_of_gradient("cheapest", 8, program=layers, rules=rules)) == 1

    @rules.register("tanh")
    def _(x: ArrayLike, **params):
        seen.append(x.shape)
        return x

    dots_of_gradient("cheapest", 8, program=layers, rules=rules)
    assert seen


def test_each_operand_has_a_gradient_of_its_own_choice():
    """By the factors it is by thin products, and by the array it is with the merged weight."""
    w, x = lora(rank=8), random(0, 2048, 256)
    implicit = transform(jnp.matmul, materialise="cheapest")
    loss = lambda x, ab: jnp.sin(implicit(x, Lora(w.w, *ab))).sum()
    jaxpr = jax.make_jaxpr(jax.grad(loss, (0, 1)))(x, (w.a, w.b))
    found = [e for e in equations(jaxpr) if e.primitive.name == "dot_general"]
    assert [e.outvars[0].aval.shape for e in found].count(x.shape) == 2
    assert [e.outvars[0].aval.shape for e in found].count(w.shape) == 1


def test_the_gradient_of_a_product_that_reads_a_transposed_weight():
    """A hook gives the product the weight itself, whose axes are in another order."""
    v, x = Quantised.quantise(random(0, 7, 5)), random(1, 7, 2)

    def loss(scale, apply):
        return jnp.sin(apply(Quantised(v.q, scale), x)).sum()

    implicit = transform(lambda v, x: v.T @ x, materialise="cheapest")
    dense = lambda v, x: v.materialise().T @ x
    choice = jaxrewrite.explain(lambda v, x: v.T @ x, materialise="cheapest")(v, x)
    assert "dense" in {step.decision for step in choice.tree}
    got, want = (jax.grad(loss)(v.scale, apply) for apply in (implicit, dense))
    assert_same(got, want, 1e-4)


def test_the_gradient_of_a_loop_that_takes_dense_arrays():
    v, x = lora(64, 64), random(3, 64, 64)

    def loss(v, x):
        return lax.scan(lambda y, _: (jnp.tanh(y @ v), y.sum()), x, None, length=3)[1].sum()

    assert "dense" in decisions(loss, v, x)
    got = jax.grad(transform(loss, materialise="cheapest"), (0, 1))(v, x)
    want = jax.grad(lambda v, x: loss(v.materialise(), x), (0, 1))(v, x)
    assert_same(got, want, 1e-3)


# --- results ----------------------------------------------------------------------------------


def loop(v, x):
    def turn(carry, _):
        m, y = carry
        return (m * 0.5, jnp.tanh(y @ m)), y.sum()

    (m, y), sums = lax.scan(turn, (v, x), None, length=3)
    return m @ y.T, sums


def branch(v, x):
    m = lax.cond(x.sum() > 0, lambda: v.T, lambda: v * 2)
    return x @ m, m


def chain(v, x):
    y = jnp.sin(x @ v.T)
    return y @ (v + v) @ v, jnp.exp(v).sum(0), jax.jit(lambda v: (v * 2) @ x.T)(v)


VALUES = {
    "Lora": lambda: lora(4, 2),
    "Lora of Quantised": lambda: lora(4, 2, Quantised.quantise(random(0, 4, 4), 8, axis=1)),
    "Diagonal": lambda: Diagonal(random(0, 4)),
    "Sum": lambda: Sum((Diagonal(random(0, 4)), LowRank(random(1, 4, 1), random(2, 1, 4)))),
    "Kronecker": lambda: Kronecker((random(0, 2, 2), random(1, 2, 2))),
}


def floats(fn, value, x):
    """A function of the floating-point leaves of a value, which gives one number."""
    leaves, treedef = jax.tree.flatten(value)
    is_float = [jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in leaves]

    def run(moving):
        rest = iter(moving)
        filled = [
            next(rest) if f else leaf for leaf, f in zip(leaves, is_float, strict=True)
        ]
        results = jaxrewrite.materialise(fn(jax.tree.unflatten(treedef, filled), x))
        return sum(jnp.sin(r).sum() for r in jax.tree.leaves(results))

    return run, [leaf for leaf, f in zip(leaves, is_float, strict=True) if f]


@pytest.mark.usefixtures("bulk")
@pytest.mark.parametrize(
    ("name", "program", "seed"),
    every(4, list(itertools.product(VALUES, [chain, loop, branch], range(3)))),
)
def test_results_are_those_of_dense_arrays(name, program, seed, at_random):
    at_random(seed)
    value, x = VALUES[name](), random(7, 3, 4)
    implicit = transform(program, materialise="cheapest")
    dense = lambda v, x: program(jaxrewrite.materialise(v), x)
    assert_same(jaxrewrite.materialise(implicit(value, x)), dense(value, x))
    (got, leaves), (want, _) = floats(implicit, value, x), floats(dense, value, x)
    both = lambda run: jax.jvp(jax.grad(run), (leaves,), (leaves,))
    assert_same(both(got), both(want))
    xs = jnp.stack([x, x + 1])
    mapped = lambda fn: jax.vmap(lambda x: jaxrewrite.materialise(fn(value, x)))(xs)
    assert_same(mapped(implicit), mapped(dense))


def test_each_choice_is_made_somewhere(at_random):
    seen = collections.Counter()
    for seed in range(3):
        at_random(seed)
        for make in VALUES.values():
            report = explain(chain, materialise="cheapest")(make(), random(7, 3, 4))
            seen.update(s.choice.is_dense for s in report.steps if s.choice is not None)
    assert min(seen[True], seen[False]) > 5


def test_an_error_tells_that_the_policy_is_that_of_the_type():
    v = Factors(random(0, 4, 2), random(1, 2, 4))
    for policy in ("cheapest", "warn"):
        with pytest.raises(
            jaxrewrite.MaterialisationError,
            match=r"here \(Factors.materialise_policy = 'forbid'\)",
        ):
            jaxrewrite.transform(jnp.tanh, materialise=policy)(v)
    with pytest.raises(
        jaxrewrite.MaterialisationError, match=r"here \(materialise='forbid'\)"
    ):
        jaxrewrite.transform(jnp.tanh, materialise="forbid")(v)


def test_the_sum_of_a_matrix_and_itself_has_a_gradient_where_it_becomes_dense():
    """It is a product with two by then, which has the parameters of any product."""
    matrix = LowRank(random(0, 16, 3), random(1, 3, 16)) + Diagonal(random(2, 16))
    x = random(3, 400, 16)

    def loss(w, is_twice):
        branches = (lambda w: x @ w, lambda w: x @ (w + w))
        return jnp.sum(lax.switch(is_twice, branches, w))

    def gradient(policy):
        of_leaves = lambda leaves: transform(loss, materialise=policy)(build(leaves), 1)
        return jax.grad(of_leaves)(leaves)

    leaves, treedef = jax.tree.flatten(matrix)
    build = functools.partial(jax.tree.unflatten, treedef)
    dense = jax.grad(lambda leaves: loss(build(leaves).materialise(), 1))(leaves)
    for policy in ("allow", "cheapest"):
        for got, wanted in zip(gradient(policy), dense, strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-2)

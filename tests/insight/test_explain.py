"""Reports, against what the programs do, their warnings and their jaxprs."""

import collections
import functools
import html.parser
import json
import warnings

import hypothesis
import jax
import jax.numpy as jnp
import pytest
from choose import slow
from jax import lax
from jax.experimental import pallas as pl
from jax.sharding import PartitionSpec as P
from properties import operands, properties

import jaxrewrite
from jaxrewrite import Report, explain, patterns
from jaxrewrite._insight import text as as_text
from jaxrewrite._insight.explain import missing_rule
from jaxrewrite._insight.plot import by_line
from jaxrewrite._insight.text import amount, table
from jaxrewrite.testing.strategies import programs
from jaxrewrite.values import Constant, Diagonal, Lora, Quantised, Tagged, Unitful


def lora(n=8, m=8):
    return Lora(jnp.ones((n, m)), jnp.ones((n, 2)), jnp.ones((2, m)))


def decisions(report):
    return [(step.primitive, step.decision, step.results) for step in report.steps]


# --- steps ------------------------------------------------------------------------------


def test_an_adapted_block():
    def block(params, x):
        hidden = jax.nn.gelu(x @ params["up"])
        return x + hidden @ params["down"]

    params = {"up": lora(8, 32), "down": lora(32, 8)}
    report = explain(block)(params, jnp.ones((4, 8)))
    assert decisions(report) == [
        ("dot_general", "rule", ("f32[4,32]",)),
        ("dot_general", "rule", ("f32[4,8]",)),
    ]
    first, second = report.steps
    assert first.operands == ("f32[4,8]", "Lora:f32[8,32]")
    assert first.function.endswith("block")
    assert first.line == block.__code__.co_firstlineno + 1
    assert second.line == first.line + 1
    assert first.file == __file__
    assert first.rule.file.endswith("_weights/lora.py")
    assert report.rules == (first.rule,)
    # Two thin products and a sum beside the product itself.
    wide = 2 * 4 * 8 * 32
    assert first.flops == (wide, wide + 2 * 4 * 2 * (8 + 32) + 4 * 32)
    changes = [step.flops[1] - step.flops[0] for step in report.steps]
    assert report.flops[1] - report.flops[0] == sum(changes)
    assert report.bytes[1] > report.bytes[0]
    assert not report.dense
    assert str(report).split("\n")[-3] == "2 equations met a value; 0 values became dense."


class Shift(jaxrewrite.ArrayValue):
    """An array plus a number. As a sum with a diagonal it is no `Shift` any more."""

    x: jax.Array
    by: jax.Array

    def materialise(self):
        return self.x + self.by

    def lift_tangent(self, tangent):
        return Shift(tangent, jnp.zeros_like(self.by))


@jaxrewrite.register("neg")
def negated(v: Shift, **params):
    return Shift(-v.x, -v.by)


@jaxrewrite.register("sin")
def never(v: Shift, **params):
    return NotImplemented


def test_a_carry_that_takes_another_structure():
    def loop(v):
        return lax.fori_loop(0, 4, lambda i, c: jnp.sin(-c), v)

    with pytest.warns(jaxrewrite.MaterialisationWarning):
        jaxrewrite.transform(loop)(Shift(jnp.ones(3), jnp.float32(1)))
    report = explain(loop)(Shift(jnp.ones(3), jnp.float32(1)))
    (scan,) = report.tree
    assert scan.decision == "handler"
    assert scan.joined == ("carry 0: Shift:f32[3] became f32[3]",)
    assert [made.why for made in scan.dense] == [
        "Shift can't keep one structure through primitive 'scan'"
    ]
    assert scan.dense[0].repair == "Define Shift.join"
    (body,) = scan.bodies
    assert body.times == 4
    assert not body.steps  # In the end the carry is an array.


def test_rules_that_declined_and_what_became_dense():
    report = explain(lambda v: jnp.sin(-v))(Shift(jnp.ones(3), jnp.float32(1)))
    neg, sin = report.steps
    assert (neg.decision, neg.rule.name) == ("rule", "negated")
    assert sin.decision == "dense"
    (declined,) = sin.declined
    assert (declined.rule.name, declined.why) == ("never", "it returned NotImplemented")
    ((step, made),) = report.dense
    assert step is sin or step == sin
    assert (made.type, made.aval, made.bytes) == ("Shift", "f32[3]", 12)
    assert made.repair == '@jaxrewrite.register("sin")\ndef _(x: Shift, **params): ...'
    line = never.__code__.co_firstlineno
    found = f"never (test_explain.py:{line}) declined"
    assert made.why == f"No rule for primitive 'sin' on Shift answers; {found}"


def test_guards_that_do_not_hold():
    rules = jaxrewrite.Rules()

    @rules.register("cos")
    def of_vectors(v: Shift, **params):
        return Shift(jnp.cos(v.materialise()), jnp.float32(0))

    from jaxtyping import Float

    @rules.register("tan")
    def of_matrices(v: Float[Shift, "n m"], **params):
        return v

    program = lambda v: jnp.tan(jnp.cos(v))
    cos, tan = explain(program, rules=rules)(Shift(jnp.ones(3), jnp.float32(1))).steps
    assert cos.rule.name.endswith("of_vectors")
    assert [d.why for d in tan.declined] == ["its shapes or dtypes do not fit"]
    forbidden = jaxrewrite.transform(program, rules=rules, materialise="forbid")
    with pytest.raises(jaxrewrite.MaterialisationError) as told:
        forbidden(Shift(jnp.ones(3), jnp.float32(1)))
    first, *_ = told.value.__notes__
    assert "of_matrices (" in first and first.endswith(
        "declined: its shapes or dtypes do not fit"
    )


def test_tied_rules_that_declined_are_in_the_order_of_their_registration():
    kinds = [
        type(
            f"Kind{i}", (jaxrewrite.ArrayValue,), {"__module__": __name__, "_is_base": True}
        )
        for i in range(8)
    ]

    class Mixed(*kinds):
        x: jax.Array

        def materialise(self):
            return self.x

    rules = jaxrewrite.Rules()
    for i, kind in enumerate(kinds):

        def rule(v, **params):
            return NotImplemented

        rule.__qualname__ = f"rule {i}"
        rules.register("sin", types=[kind])(rule)
    (sin,) = explain(jnp.sin, rules=rules)(Mixed(jnp.ones(3))).steps
    names = [declined.rule.name for declined in sin.declined]
    assert names == [f"rule {i}" for i in range(8)]


def test_branches_and_custom_rules():
    @jax.custom_vjp
    def tripled(x):
        return -x

    tripled.defvjp(lambda x: (tripled(x), None), lambda _, ct: (3 * ct,))

    def program(v, p):
        return lax.cond(p, tripled, lambda v: v, v)

    v = Shift(jnp.ones(3), jnp.float32(1))
    report = explain(program)(v, jnp.bool_(True))
    (cond,) = report.tree
    assert [body.name for body in cond.bodies] == ["branches[0]", "branches[1]"]
    assert [[s.primitive for s in body.steps] for body in cond.bodies] == [
        [],
        ["custom_vjp_call"],
    ]
    assert cond.results == ("Shift:f32[3]",)
    (custom,) = cond.bodies[1].steps
    assert [s.rule.name for body in custom.bodies for s in body.steps] == ["negated"]


def test_a_mapped_program():
    mesh = jax.make_mesh((2,), ("i",), (jax.sharding.AxisType.Auto,))
    mapped = jax.shard_map(
        lambda w, x: x @ w, mesh=mesh, in_specs=(P(), P("i")), out_specs=P("i")
    )
    report = explain(mapped)(lora(), jnp.ones((4, 8)))
    (outer,) = report.tree
    assert (outer.primitive, outer.decision) == ("shard_map", "handler")
    *_, product = outer.bodies[0].steps
    assert (product.primitive, product.decision) == ("dot_general", "rule")
    assert product.operands[1] == "Lora:f32[8,8]"


def test_values_within_values():
    v = Tagged(Diagonal(jnp.ones(3)), "w")
    report = explain(lambda v, x: v @ x)(v, jnp.ones(3))
    (step,) = report.tree
    assert step.results == ("Tagged:f32[3]",)
    inside = [
        (s.primitive, s.operands[0], s.rule.file.rsplit("/", 1)[1]) for s in step.inner
    ]
    assert inside == [("dot_general", "Diagonal:f32[3,3]", "rules.py")]
    assert step.equations == ("mul",)
    assert [s.primitive for s in report.steps] == ["dot_general", "dot_general"]


def test_defaults_and_moves_of_leaves():
    class Halves(Shift):
        @staticmethod
        def default(primitive, values, params):
            values = [v.materialise() if isinstance(v, Halves) else v for v in values]
            return primitive.bind(*values, **params)

    leaves = jnp.ones(3), jnp.float32(1)
    (moved,) = explain(lax.optimization_barrier)(Shift(*leaves)).steps
    assert moved.decision == "identity"
    (default,) = explain(jnp.exp)(Halves(*leaves)).steps
    assert default.decision == "default"
    assert default.rule.name == "Halves.default"


def test_a_body_that_is_used_twice():
    twice = jax.jit(lambda v: -v)
    report = explain(lambda v: twice(twice(v)))(Shift(jnp.ones(3), jnp.float32(1)))
    assert [[s.rule.name for s in step.bodies[0].steps] for step in report.tree] == [
        ["negated"],
        ["negated"],
    ]


def test_what_is_forbidden_is_all_in_the_report():
    v = Shift(jnp.ones(3), jnp.float32(1))
    program = lambda v: jnp.cos(v) + jnp.exp(v)
    report = explain(program, materialise="forbid")(v)
    assert len(report.dense) == 2
    assert "2 values became dense, which the policy forbids." in str(report)
    with jaxrewrite.no_materialise():
        assert explain(program)(v).policy == "forbid"


def test_nothing_warns_runs_or_is_kept():
    ran = []

    def program(v):
        jax.debug.callback(lambda: ran.append(1))
        return jnp.cos(v)

    v = Shift(jnp.ones(3), jnp.float32(1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        explain(program)(v)
    assert not ran
    with pytest.warns(jaxrewrite.MaterialisationWarning):
        jaxrewrite.transform(program)(v)
    assert explain(program)(v) == explain(program)(v)


def test_no_values_and_bad_programs():
    report = explain(lambda x: x + 1)(jnp.ones(2))
    assert report.steps == () and report.flops == (2, 2)
    assert str(report).endswith("implicit (1 of dense).")
    with pytest.raises(
        TypeError, match="explain takes a function, not an object of type int"
    ):
        explain(3)
    with pytest.raises(ValueError, match=r"materialise= must be .*got <class .*Cheapest"):
        explain(jnp.sin, materialise=jaxrewrite.Cheapest)
    for limit in (None, "1", -1, float("nan")):
        with pytest.raises(ValueError, match="limit is a number of bytes; got"):
            jaxrewrite.Cheapest(limit=limit)
    with pytest.raises(ValueError, match="materialise= must be"):
        explain(jnp.sin, materialise="never")
    with pytest.raises(jax.errors.TracerBoolConversionError):
        explain(lambda v: 1 if v.sum() else 2)(Diagonal(jnp.ones(2)))


# --- the random programs ------------------------------------------------------------------


def check(random, values):
    program = lambda *vs: random(*vs)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        # The program is on one line, so that this is the user's line of each equation.
        report, jaxpr = (f(program)(*values) for f in (explain, jaxrewrite.make_jaxpr))
    warned = {
        (w.message.primitive, w.message.type, w.lineno)
        for w in caught
        if isinstance(w.message, jaxrewrite.MaterialisationWarning)
    }
    dense = {(step.primitive, made.type, step.line) for step, made in report.dense}
    assert warned == dense
    assert report.equations == len(jaxpr.eqns)
    names = collections.Counter(eqn.primitive.name for eqn in jaxpr.eqns)
    added = collections.Counter(e for step in report.tree for e in step.equations)
    assert not added - names
    assert Report.from_json(report.to_json()) == report


@pytest.mark.parametrize("examples", [8, slow(200)])
def test_random_programs_are_reported_as_they_are(examples):
    @hypothesis.seed(7)
    @properties(examples)
    @hypothesis.given(programs(), operands)
    def run_many(program, values):
        check(program, values)

    run_many()


# --- the forms for people -----------------------------------------------------------------


class Tags(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.seen, self.text = [], set(), []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.seen.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def nested(w, x):
    def turn(c, _):
        return jnp.tanh(c @ w), jnp.sort(w, 0).sum()

    return lax.scan(turn, x, None, length=5)


def test_the_page_is_well_formed_and_escaped():
    report = explain(nested)(lora(), jnp.ones((8, 8)))
    evil = '<script>alert("x")</script>&'
    text = report.to_json().replace("nested", json.dumps(evil)[1:-1])
    page = Report.from_json(text)._repr_html_()
    tags = Tags()
    tags.feed(page)
    assert not tags.open
    assert "script" not in tags.seen
    assert {"details", "summary", "pre"} <= tags.seen
    assert any(evil in text for text in tags.text)


def test_numbers_have_three_digits_and_a_prefix():
    numbers = {0.0: "0", 999.0: "999", 1000.0: "1 k", -2.5e6: "-2.5 M", 4e15: "4e+03 T"}
    numbers |= {999.5: "1 k", 999_600.0: "1 M", 999_400.0: "999 k"}
    assert {number: amount(number).strip() for number in numbers} == numbers


def test_the_rule_that_is_missing_names_its_operands():
    x, v = jax.Array, Lora
    told = {
        (x, v): "x: ArrayLike, y: Lora",
        (x, v, v): "x: ArrayLike, y: Lora, z: Lora",
        (v, v, v): "x: Lora, y: Lora, z: Lora",
        (x, v, v, v): "x0: ArrayLike, x1: Lora, x2: Lora, x3: Lora",
        (v, v, v, v): "*xs: Lora",
    }
    for given, parameters in told.items():
        assert f"def _({parameters}, **params)" in missing_rule("concatenate", given)


def test_the_text_fits_a_terminal():
    names = tuple(f"a_long_name_{i}" for i in range(2))
    v = Unitful(Quantised.quantise(jnp.ones((8, 8))), "kg m s^-2")
    report = explain(lambda v, w, x: {n: jnp.sort(v @ w @ x) for n in names})(
        v, lora(), jnp.ones((8, 8))
    )
    assert max(map(len, str(report).split("\n"))) <= 100


def test_tables_have_a_line_under_their_head():
    lines = table(("name", "rule"), [("a", "b"), ("a long name", "c")]).split("\n")
    assert lines == ["name         rule", "-" * 17, "a            b", "a long name  c"]


def test_the_text_counts_matches_and_equations_that_met_a_value():
    rules = jaxrewrite.Rules()
    rules.rewrite(lambda x: jnp.exp(x) * x)(lambda x: x)
    fn = lambda x, v: (jnp.exp(x) * x, -v)
    both = str(explain(fn, rules=rules)(jnp.ones(2), lora()))
    assert "1 match of patterns; 1 equation met a value; 0 values became dense." in both
    one = str(explain(lambda x: jnp.exp(x) * x, rules=rules)(jnp.ones(2)))
    assert "1 match of patterns; 0 values became dense." in one


def test_the_figure_has_a_bar_for_each_line():
    pytest.importorskip("matplotlib", reason="an optional package")
    report = explain(nested)(lora(), jnp.ones((8, 8)))
    axes = report.plot().axes[0]
    lines = {step.line for step in report.steps if not step.bodies}
    assert len(axes.patches) == 2 * len(lines)
    # None covers another one.
    assert len({bar.get_y() for bar in axes.patches}) == len(axes.patches)


def test_other_texts_are_no_reports():
    report = explain(nested)(lora(), jnp.ones((8, 8)))
    assert Report.from_json(report.to_json()) == report
    for text, match in [
        ("nonsense", "no JSON text"),
        ("[]", "version None"),
        (report.to_json().replace('"version": 4', '"version": 99'), "version 99"),
        ('{"version": 4, "tree": []}', "not that of a report"),
    ]:
        with pytest.raises(ValueError, match=match):
            Report.from_json(text)


def test_methods_and_keywords():
    class Model:
        def __call__(self, x, *, w):
            return x @ w

    report = explain(Model())(jnp.ones((2, 8)), w=lora())
    assert report.program == "Model"
    assert report.arguments == ("f32[2,8]", "Lora:f32[8,8]")
    assert explain(functools.partial(jnp.dot))(lora(), jnp.ones(8)).steps


def test_equations_within_functions_of_jax_have_the_line_of_their_call():
    def model(v):
        first = jnp.sort(v)
        return first + jnp.sort(-v)

    line = model.__code__.co_firstlineno
    v = Shift(jnp.ones(3), jnp.float32(1))
    report = explain(model)(v)
    assert [step.line for step, _ in report.dense] == [line + 1, line + 2]
    with pytest.warns(jaxrewrite.MaterialisationWarning) as caught:
        jaxrewrite.transform(model)(v)
    assert [w.lineno for w in caught] == [line + 1, line + 2]
    assert {w.filename for w in caught} == {__file__}


def test_products_that_a_pattern_only_tries_are_no_steps():
    def chain(a, b, x):
        return (a @ b) @ x

    w = Quantised.quantise(jnp.eye(4))
    report = explain(chain, rules=patterns.linalg)(Constant(2.0, (4, 4)), w, jnp.ones(4))
    assert [step.primitive for step in report.steps] == ["pattern"] + ["dot_general"] * 2
    assert not report.dense


def test_what_a_pattern_does_with_arrays_is_no_step():
    def total(w, x):
        turn = lambda c, _: (jnp.tanh(w @ c), jnp.sort(c))
        return lax.scan(turn, x, None, length=3)[1].sum(0)

    report = explain(total, rules=patterns.loops)(lora(), jnp.ones(8))
    assert [step.primitive for step in report.steps] == ["pattern", "scan", "dot_general"]


def test_what_a_compiled_function_transforms_is_explained_each_time():
    negated = jax.jit(lambda x: jaxrewrite.transform(jnp.negative)(Diagonal(x)))
    negated(jnp.ones(2))
    for _ in range(2):
        assert decisions(explain(negated)(jnp.ones(2)))[0][0] == "neg"


class Outer(jaxrewrite.ArrayValue):
    """An array whose sine is that of the diagonal matrix with its diagonal."""

    x: jax.Array

    def materialise(self):
        return self.x


@jaxrewrite.register("sin")
def sine_of_diagonal(v: Outer, **params):
    return jaxrewrite.transform(jnp.sin)(Diagonal(jnp.diagonal(v.x)))


def _product_with_sine(v, x):
    return jnp.sin(v) @ x


@pytest.mark.parametrize(
    "program",
    [
        lambda x: jaxrewrite.transform(_product_with_sine)(Diagonal(x), x),
        lambda x: jax.jit(jaxrewrite.transform(_product_with_sine))(Diagonal(x), x),
        lambda x: jaxrewrite.transform(
            lambda x: jaxrewrite.transform(_product_with_sine)(Diagonal(x), x)
        )(x),
        lambda x: Diagonal(x) @ x - jaxrewrite.transform(jnp.sin)(x),
        lambda x: jax.grad(
            lambda x: jaxrewrite.transform(_product_with_sine)(Diagonal(x), x)[0]
        )(x),
    ],
    ids=["plain", "jit", "nested", "operator", "grad"],
)
def test_what_a_program_transforms_is_in_totals_and_steps_once(program):
    report = explain(program)(jnp.ones(8))
    for kind in ("flops", "bytes"):
        dense, implicit = getattr(report, kind)
        steps = [getattr(step, kind) for step in report.steps]
        assert all(0 < after < before for before, after in steps)
        assert dense - implicit == sum(before - after for before, after in steps)


def test_what_a_rule_transforms_is_in_the_total_of_the_rule():
    report = explain(lambda v: jnp.sin(v) @ jnp.ones(8))(Outer(jnp.ones((8, 8))))
    _, inner, _ = report.steps
    assert inner.primitive == "sin" and inner.flops == (64, 8)
    changes = [step.flops[1] - step.flops[0] for step in report.tree]
    assert report.flops[1] - report.flops[0] == sum(changes)


def test_a_line_that_just_fits_is_not_cut():
    assert as_text._cut("x" * as_text.WIDTH) == "x" * as_text.WIDTH
    assert as_text._cut("x" * (as_text.WIDTH + 1)) == "x" * (as_text.WIDTH - 3) + "..."


def test_patterns_that_decline_on_arrays_are_told():
    rules = jaxrewrite.Rules()
    rules.rewrite(lambda x: jnp.log(jnp.exp(x)))(lambda x: NotImplemented)
    rules.rewrite(lambda x: jnp.sqrt(x * x), when=lambda x: False)(jnp.abs)
    fn = lambda x: jnp.log(jnp.exp(x)) + jnp.sqrt(x * x)
    report = jaxrewrite.explain(fn, rules=rules)(jnp.ones(3))
    assert [(step.decision, step.rule, step.covered) for step in report.steps] == [
        ("dense", None, ("exp", "log")),
        ("dense", None, ("mul", "sqrt")),
    ]
    assert [[x.why for x in step.declined] for step in report.steps] == [
        ["it returned NotImplemented"],
        ["its condition, when=, does not hold"],
    ]
    assert "0 equations met a value" in str(report)


def test_a_loop_of_no_turns_costs_nothing_in_the_figure():
    fn = lambda v: lax.scan(lambda c, _: (v @ c, None), jnp.ones(3), length=0)[0]
    report = jaxrewrite.explain(fn)(Diagonal(jnp.ones(3)))
    assert {*by_line(report).values()} == {(0, 0)}


def test_a_pallas_kernel_costs_its_grid():
    def kernel(x, o):
        o[...] = jnp.sin(x[...])

    spec = pl.BlockSpec((8, 64), lambda i: (i, 0))
    shape = jax.ShapeDtypeStruct((1024, 64), jnp.float32)
    call = pl.pallas_call(
        kernel, shape, grid=(128,), in_specs=[spec], out_specs=spec, interpret=True
    )
    for fn in (call, jnp.sin):
        report = explain(fn)(jnp.ones((1024, 64)))
        assert (report.flops[0], report.bytes[0]) == (1024 * 64, 2 * 4 * 1024 * 64)


def test_a_loop_of_no_turns_costs_nothing():
    fn = lambda c: lax.scan(lambda c, _: (c @ c, None), c, length=0)[0]
    assert explain(fn)(jnp.ones((4, 4))).flops == (0, 0)

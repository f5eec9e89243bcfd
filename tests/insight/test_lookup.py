"""`rules`, `which` and the command line."""

import dataclasses
import runpy
import sys

import jax
import jax.numpy as jnp
import pytest
from jax.extend.core import Primitive
from jaxtyping import ArrayLike, Float

import jaxrewrite
from jaxrewrite import rules, which
from jaxrewrite.__main__ import main
from jaxrewrite._insight.lookup import RuleList, Which
from jaxrewrite._insight.report import RuleInfo
from jaxrewrite.values import Diagonal, FakeQuantised, Lora, Zero


class Mass(jaxrewrite.ArrayValue):
    x: jax.Array

    def materialise(self):
        return self.x


@jaxrewrite.register("add")
def alike(a: Mass, b: Mass, **params):
    return Mass(a.x + b.x)


@jaxrewrite.register("add", precedence=1)
def sometimes(a: Mass, b, **params):
    return NotImplemented


@jaxrewrite.register("max", exchange="operands")
def either_way(a: Mass, b: ArrayLike | jaxrewrite.ArrayValue, **params):
    return NotImplemented


# Other tests must not meet a rule for any value.
rare_p = Primitive("rare")
rare_p.def_abstract_eval(lambda a, b: a)
rare_p.def_impl(lambda a, b: a)


@jaxrewrite.register(rare_p)
def any_value(a: jaxrewrite.ArrayValue, b):
    return NotImplemented if isinstance(b, jaxrewrite.Value) else a


V = Mass(jnp.ones(3))


def test_rules_are_listed_in_the_order_of_the_look_up():
    found = rules("add", Mass)
    own = [r for r in found if r.rule.file == __file__]
    assert [(r.rule.name, r.precedence) for r in own] == [("sometimes", 1), ("alike", 0)]
    assert own[1].types == ("Mass", "Mass")
    assert own[0].types == ("Mass", "any")
    assert own[1].rule.line == alike.__code__.co_firstlineno
    assert "alike" in str(found)
    assert {r.primitive for r in rules("add")} == {"add"}
    assert len(rules()) > len(rules(type=Diagonal)) > len(rules("add", Diagonal)) > 0
    with pytest.raises(ValueError, match="no primitive 'ad'"):
        rules("ad")
    with pytest.raises(TypeError, match="must be a value type"):
        rules(type=int)
    with pytest.raises(TypeError, match="primitive or the name of one"):
        rules(int)


def test_rules_are_listed_before_those_that_they_beat():
    table = jaxrewrite.Rules()

    @table.register("mul")
    def of_anything(a: Mass, b, **params):
        return NotImplemented

    @table.register("mul")
    def of_two(a: Mass, b: Mass, **params):
        return NotImplemented

    found = []

    def program(x):
        found.extend(r.types for r in rules("mul", Mass) if r.rule.file == __file__)
        return x

    jaxrewrite.transform(program, rules=table)(jnp.ones(2))
    assert found == [("Mass", "Mass"), ("Mass", "any")]


def test_rules_of_two_types_are_listed_for_each():
    table = jaxrewrite.Rules()

    @table.register("div")
    def of_a_pair(a: Mass, b: Diagonal, **params):
        return NotImplemented

    found = []

    def program(x):
        listed = [rules("div", cls) for cls in (Mass, Diagonal, Lora)]
        found.extend([r.types for r in of if r.rule.file == __file__] for of in listed)
        return x

    jaxrewrite.transform(program, rules=table)(jnp.ones(2))
    assert found == [[("Mass", "Diagonal")]] * 2 + [[]]


def test_patterns_are_listed_in_the_order_in_which_they_are_tried():
    table = jaxrewrite.Rules()
    for precedence in (0, 2, 1):
        after = lambda x: x
        after.__qualname__ = f"after_{precedence}"
        before = lambda x, n=precedence: jnp.exp(x) + n
        table.rewrite(before, precedence=precedence)(after)
    found = []

    def program(x):
        found.extend(r for r in rules("pattern") if r.rule.file == __file__)
        return x

    jaxrewrite.transform(program, rules=table)(jnp.ones(2))
    assert [r.precedence for r in found] == [2, 1, 0]


@pytest.mark.parametrize("asked", [(Mass,), (V,), (None, V)])
def test_rules_of_a_type_may_be_asked_by_the_type_or_a_value(asked):
    assert rules(*asked) == rules(type=Mass)
    assert rules("add", V) == rules("add", Mass)


def test_which_rule_answers_and_why_not_the_others():
    found = which("add", V, V)
    assert (found.decision, found.rule.name) == ("rule", "alike")
    assert [(rule.name, why) for rule, why in found.others] == [
        ("sometimes", "it returned NotImplemented")
    ]
    assert "not sometimes" in str(found)
    for operands in ((V, jnp.ones(3)), (jnp.ones(3), V)):
        assert [rule.name for rule, _ in which("max", *operands).others] == ["either_way"]
    alone = which("add", V, jnp.ones(3))
    assert alone.decision == "dense"
    assert alone.missing.endswith("def _(x: Mass, y: ArrayLike, **params): ...")
    assert (
        which(
            "convert_element_type",
            V,
            new_dtype=jnp.dtype("int32"),
            weak_type=False,
            sharding=None,
        ).decision
        == "dense"
    )


def test_what_becomes_dense_inside_of_an_annotation_is_told():
    v = jaxrewrite.values.Tagged(Diagonal(jnp.ones(3)), "a")
    found = which("sort", v, dimension=1, is_stable=True, num_keys=1)
    assert (found.decision, found.missing) == ("rule", "")
    assert [(x.type, x.aval) for x in found.dense] == [("Diagonal", "f32[3,3]")]
    assert "inside, Diagonal:f32[3,3] becomes dense" in str(found)
    assert 'register("sort")' in str(found)
    assert which("neg", v).dense == ()
    at_once = which("sort", Diagonal(jnp.ones(3)), dimension=1, is_stable=True, num_keys=1)
    assert [x.type for x in at_once.dense] == ["Diagonal"]
    assert "inside" not in str(at_once)


def test_rules_that_another_one_comes_before_are_told():
    others = [why for _, why in which("neg", Zero((3, 3))).others]
    assert others == ["a rule before it answers"]


def test_which_rule_of_types():
    found = which("add", Mass, Mass)
    assert (found.decision, found.rule.name) == ("unknown", "sometimes")
    assert [(r.name, why) for r, why in found.others] == [
        ("alike", "it is asked only if those before it decline")
    ]
    found = which("dot_general", jax.Array, Lora)
    files = [rule.file for rule in (found.rule, *(rule for rule, _ in found.others))]
    assert any(file.endswith("lora.py") for file in files)
    assert which("fft", Mass).missing == (
        '@jaxrewrite.register("fft")\ndef _(x: Mass, **params): ...'
    )
    for types in ((jax.Array, Mass), (Mass, jax.Array), (Mass, Mass)):
        found = which("max", *types)
        assert (found.decision, found.rule.name, found.others) == ("rule", "either_way", ())
    with pytest.raises(TypeError, match="'integer_pow' needs y. It has 1 operand and"):
        which("integer_pow", V)
    with pytest.raises(TypeError) as caught:  # Of loops nothing is known but what JAX says.
        which("scan", V)
    assert "takes all of its operands" in str(caught.value.__notes__)
    with pytest.raises(TypeError, match="or types alone"):
        which("add", Mass, V)


@pytest.mark.parametrize(
    "operands, params, message",
    [
        ((), {}, "'neg' takes 1 operand and no parameters; got no operands. Pass values"),
        ((V,), {"foo": 1}, "'neg' takes 1 operand and no parameters; got 1 operand, foo."),
        ((V, V), {}, "'neg' takes 1 operand and no parameters; got 2 operands."),
        ((Mass, Mass), {}, "'neg' takes 1 operand and no parameters; got 2 operands."),
    ],
)
def test_which_says_what_a_primitive_takes(operands, params, message):
    with pytest.raises(TypeError) as caught:
        which("neg", *operands, **params)
    assert f"which: {message}" in str(caught.value)


def test_which_tells_of_rules_for_any_value():
    found = which(rare_p, Mass, jax.Array)
    assert (found.decision, found.rule.name) == ("rule", "any_value")
    declined = which(rare_p, V, V)
    assert declined.decision == "dense"
    assert [rule.name for rule, _ in declined.others] == ["any_value"]


def test_a_region_where_nothing_is_dense():
    sort = jaxrewrite.transform(jnp.sort)
    with jaxrewrite.no_materialise():
        with pytest.raises(jaxrewrite.MaterialisationError, match="forbid"):
            sort(V)
        allowed = jaxrewrite.transform(jnp.sort, materialise="allow")
        assert allowed(V).shape == (3,)
        assert jaxrewrite.materialise(V).shape == (3,)
    with pytest.warns(jaxrewrite.MaterialisationWarning) as caught:
        sort(V)
    (warning,) = caught
    message = warning.message
    assert (message.primitive, message.type) == ("sort", "Mass")
    assert message.remedy == "Register a rule"
    assert str(message).startswith(
        "No rule for primitive 'sort' on Mass, which is made dense"
    )


# --- the command line ---------------------------------------------------------------------


PROGRAM = """
import jax.numpy as jnp
from jaxrewrite.values import Diagonal

def example():
    return lambda v, x: jnp.sort(v) @ x, (Diagonal(jnp.ones(3)), jnp.ones(3))

def other():
    return 3

def of_one(x):
    return x

def raising():
    return jnp.ones(3) @ jnp.ones(2)

def of_other_shapes():
    return jnp.matmul, (Diagonal(jnp.ones(3)), jnp.ones(2))

def of_a_number():
    return jnp.sin, 3

def of_numbers():
    return 1, 2, 3

number = 3

class Of:
    example = staticmethod(example)
"""


def test_the_command_line(tmp_path, monkeypatch, capsys):
    (tmp_path / "their_program.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "page.html"
    assert main(["explain", "their_program:example", "--html", str(page)]) == 0
    assert "1 value became dense" in capsys.readouterr().out
    assert page.read_text().startswith("<div")
    assert main(["explain", "their_program:Of.example", "--json"]) == 0
    report = jaxrewrite.Report.from_json(capsys.readouterr().out)
    assert [step.primitive for step in report.dense[0][:1]] == ["sort"]
    for name, text in {
        "their_program": "not of the form module:function",
        "./their_program.py:example": "not of the form module:function",
        "nowhere:example": "no module 'nowhere'",
        "their_program:nothing": "no function 'nothing'",
        "their_program:Of.nothing": "no function 'Of.nothing'",
        "their_program:other": "must return (fn, args)",
        "their_program:of_a_number": "It returned a tuple of (PjitFunction, int)",
        "their_program:of_numbers": "It returned a tuple of (int, int, int)",
        "their_program:example --html nowhere/page": "can't write nowhere/page: No such file",
        "their_program:number": "3 is no function; it is a int",
        "their_program:of_one": "of_one takes arguments. Name a function without",
        "their_program:raising": "their_program.py:15 (raising)",
        "their_program:of_other_shapes": "in staging matmul on (Diagonal",
    }.items():
        with pytest.raises(SystemExit):
            main(["explain", *name.split()])
        assert text in capsys.readouterr().err
    sys.modules.pop("their_program")
    (tmp_path / "their_program.py").write_text("import jax\njax.no_such_thing")
    with pytest.raises(AttributeError, match="no_such_thing"):
        main(["explain", "their_program:example"])


@pytest.mark.filterwarnings("ignore:'jaxrewrite.__main__' found in sys.modules")
def test_it_runs_as_a_module(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["jaxrewrite", "explain", "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("jaxrewrite", run_name="__main__")
    assert ended.value.code == 0 and "module:function" in capsys.readouterr().out


def test_types_that_no_rule_answers_for_need_not_become_dense():
    found = which("scan", Diagonal)
    assert (found.decision, found.missing) == ("handler", "")
    found = which("sort", FakeQuantised)
    assert (found.decision, found.rule.name) == ("default", "FakeQuantised.default")
    assert which("optimization_barrier", Diagonal).decision == "identity"
    assert which("fft", Diagonal).decision == "dense"


def test_the_list_says_which_rules_have_guards():
    (rule,) = rules("lu", Diagonal)
    plain, guarded = (
        str(RuleList([dataclasses.replace(rule, guarded=is_guarded)]))
        for is_guarded in (False, True)
    )
    assert "Matrix (guarded)  " in guarded and "(guarded)" not in plain


def test_a_guarded_rule_for_several_types_that_are_shown_alike_is_listed_once():
    class Listed(jaxrewrite.ArrayValue):
        x: jax.Array

        def materialise(self):
            return self.x

    @jaxrewrite.register("mul", exchange="operands")
    def listed(v: Listed, y: Float[ArrayLike, ""], **params):  # noqa: F722
        return Listed(v.x * y)

    found = [rule for rule in jaxrewrite.rules("mul", Listed) if "Listed" in rule.types]
    assert [rule.types for rule in found] == [("Listed", "Array"), ("Array", "Listed")]


def test_the_text_of_a_look_up_that_is_answered_and_of_one_that_is_not():
    rule = RuleInfo("mine", "", 0)
    answered = Which(
        "neg", ("Diagonal",), "rule", rule, ((rule, "x is small"),), "", ("Pass",)
    )
    assert str(answered).split("\n") == [
        "neg on (Diagonal): rule",
        "  changed by Pass",
        "  mine",
        "  not mine: x is small",
    ]
    missing = Which("neg", ("Diagonal", "Array"), "dense", None, (), "one\ntwo")
    assert str(missing).split("\n") == [
        "neg on (Diagonal, Array): dense",
        "  this rule would answer:",
        "    one",
        "    two",
    ]


def test_types_do_not_tell_of_zeros():
    """Beside an array of zeros a stack stays one; beside any other it is dense."""
    found = which("concatenate", Diagonal, jax.Array)
    assert found.decision == "dense" and "concatenate" in found.missing


def test_which_asks_the_tables_that_it_is_given():
    table = jaxrewrite.Rules()

    @table.register("abs")
    def of_table(v: Diagonal):
        return v

    for operand in (Diagonal(jnp.ones(2)), Diagonal):
        assert which("abs", operand, rules=table).rule.name.endswith("of_table")
        assert not which("abs", operand).rule.name.endswith("of_table")
    with pytest.raises(TypeError, match="rules= takes a table"):
        which("abs", Diagonal, rules=3)

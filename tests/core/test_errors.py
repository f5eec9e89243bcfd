"""Errors in user code are reported once and clearly, and change no state."""

import copy
import functools
import pickle
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Primitive

import jaxrewrite
import jaxrewrite.values
from jaxrewrite import testing, transform


class Plain(jaxrewrite.ArrayValue):
    x: jax.Array

    def materialise(self):
        return self.x


class Refusing(jaxrewrite.ArrayValue):
    x: jax.Array

    def aval(self):
        return jax.core.ShapedArray(self.x.shape, self.x.dtype)

    def materialise(self):
        raise ValueError("a Refusing is never dense")


X = jnp.arange(3.0)


def negated(v):
    return jnp.negative(v)


LINE = f"test_errors.py:{negated.__code__.co_firstlineno + 1}"


def said(caught):
    return "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])


BAD_RESULTS = {
    "nothing": (None, "returned a NoneType"),
    "text": ("text", "returned a str"),
    "a list": ([X], "returned a list"),
    "shape": (jnp.ones(4), "f32[4]"),
    "dtype": (jnp.arange(3), "i32[3]"),
    "value of a shape": (Plain(jnp.ones(4)), "as a Plain"),
    "a set": ({1.0}, "returned a set"),
}


@pytest.mark.parametrize("bad", BAD_RESULTS)
def test_rules_that_return_the_wrong_thing(bad):
    result, words = BAD_RESULTS[bad]
    rules = jaxrewrite.Rules()
    wrong = [True]

    @rules.register("neg")
    def bad_rule(v: Plain):
        return result if wrong[0] else v.x

    run = transform(negated, rules=rules)
    with pytest.raises(TypeError) as caught:
        run(Plain(X))
    message = said(caught)
    for part in ("bad_rule", __file__, "'neg'", "Plain:f32[3]", LINE, words):
        assert part in message
    wrong[0] = False
    np.testing.assert_allclose(run(Plain(X)), X)


def test_rules_with_the_wrong_number_of_results():
    rules = jaxrewrite.Rules()

    @rules.register("sort")
    def bad_rule(v: Plain, y: jax.Array, **params):
        return [v.x]

    with pytest.raises(TypeError, match="returned 1 results for 'sort', which has 2"):
        transform(lambda v: jax.lax.sort((v, X)), rules=rules)(Plain(X))


def raised_by_a_rule(fn):
    """What a rule raises in a program."""
    rules = jaxrewrite.Rules()

    @rules.register("neg")
    def bad_rule(v: Plain):
        raise KeyError("inside")

    with pytest.raises(KeyError) as caught:
        transform(fn, rules=rules)(Plain(X))
    return caught


def test_a_rule_that_raises():
    caught = raised_by_a_rule(negated)
    for part in ("bad_rule", "'neg'", "Plain:f32[3]", LINE):
        assert part in said(caught)


def test_a_traceback_has_the_frames_of_the_user():
    frames = raised_by_a_rule(jax.jit(negated)).traceback
    ours = [frame.path.name for frame in frames if frame.path.parts[-3] == "jaxrewrite"]
    assert set(ours) == {"transform.py"}
    names = [frame.name for frame in frames]
    assert names[0] == "raised_by_a_rule"
    assert names[-1] == "bad_rule"


def fails(self, *operands):
    raise ZeroDivisionError


@jax.custom_jvp
def kept(x):
    return x


kept.defjvp(lambda x, t: (x[0], 2 * t[0]))

# What calls a method of a type.
ASKING = {
    "join": lambda v: jax.lax.cond(v.sum() > 0, lambda: v, lambda: jnp.ones(3)),
    "sliceable": lambda v: jax.lax.map(lambda x: 2 * x, v),
    "default": lambda v: jnp.sin(v),
    "adopt": lambda v: v + jnp.zeros(3),
    "tangent": kept,
    "lift_tangent": kept,
}


@pytest.mark.parametrize("name", ASKING)
def test_an_error_in_a_method_names_it(name):
    method = staticmethod(fails) if name == "default" else fails
    cls = type("Failing", (Plain,), {name: method})
    run = transform(ASKING[name], materialise="allow")
    with pytest.raises(ZeroDivisionError) as caught:
        jax.jvp(run, (cls(X),), (cls(X),)) if "tangent" in name else run(cls(X))
    line = fails.__code__.co_firstlineno
    notes = caught.value.__notes__
    assert f"jaxrewrite: raised by fails ({__file__}:{line})." in notes


def test_jax_errors_below_a_rule_carry_the_note():
    rules = jaxrewrite.Rules()

    @rules.register("neg")
    def bad_rule(v: Plain):
        return v.x @ jnp.ones((7, 7))

    with pytest.raises(TypeError, match="dot_general") as caught:
        transform(jax.jit(negated), rules=rules)(Plain(X))
    assert "'neg' on (Plain:f32[3])" in said(caught)
    assert "'jit' on (Plain:f32[3])" in said(caught)
    assert LINE in said(caught)


def test_a_rule_that_forgets_the_parameters():
    rules = jaxrewrite.Rules()

    @rules.register("reduce_xor")  # of which nothing is known at registration
    def bad_rule(v: Plain):
        return v.x[0]

    with pytest.raises(TypeError) as caught:
        transform(lambda v: jax.lax.reduce_xor(v, (0,)), rules=rules)(Plain(jnp.arange(3)))
    assert "Rules take a primitive's parameters as **params." in said(caught)


NEVER = {
    "no star": ("reduce_sum", lambda x, axes: x, "it takes 2 operands"),
    "too few": ("dot_general", lambda x, **params: x, "it takes 1 operands"),
    "too many": ("add", lambda x, y, z, *rest: x, "at least 3 operands"),
    "a default": ("neg", lambda x, y=None: x, "it takes 2 operands"),
    "another name": (
        "reduce_sum",
        lambda x, *, axis, **params: x,
        "needs a parameter axis",
    ),
    "no parameters": (
        "dot_general",
        lambda x, y, *, precision: x,
        "the parameter dimension_",
    ),
}


@pytest.mark.parametrize("mistake", NEVER)
def test_a_rule_that_can_never_apply_is_refused(mistake):
    name, rule, words = NEVER[mistake]
    with pytest.raises(TypeError, match=f"never apply to primitive '{name}'") as caught:
        jaxrewrite.Rules().register(name)(rule)
    for part in (words, __file__, f"@jaxrewrite.register('{name}')"):
        assert part in str(caught.value)
    if name == "reduce_sum":
        assert "1 operand and the parameters axes" in str(caught.value)
    shown = {"add": "(x, y): ...", "neg": "(x): ...", "reduce_sum": "(x, *, axes"}
    assert f"  def _{shown.get(name, '(x, y, *, ')}" in str(caught.value)


def test_a_rule_that_could_apply_is_not_refused():
    rules = jaxrewrite.Rules()
    rules.register("neg")(lambda x: x)
    rules.register("add", "neg")(lambda x: x)  # at least to one of them
    rules.register("concatenate")(lambda x, y, *, dimension: x)
    rules.register("dot_general")(lambda *xs, primitive, **params: xs)
    rules.register("reduce_sum")(lambda x, *, axes, out=None, **params: x)
    rules.register("reduce_xor")(lambda x, y, z: x)  # unknown


@pytest.mark.parametrize("name", ["a_library", "a_library.rules", "of_a_user", None])
def test_the_rules_of_a_library_are_not_checked(name, monkeypatch):
    library = types.ModuleType("a_library")
    library.__jaxrewrite_library__ = True
    monkeypatch.setitem(sys.modules, "a_library", library)
    monkeypatch.setitem(sys.modules, "of_a_user", types.ModuleType("of_a_user"))

    def rule(x, y, **params):
        return x

    rule.__module__ = name
    if str(name).startswith("a_library"):
        assert jaxrewrite.Rules().register("neg")(rule) is rule
    else:
        with pytest.raises(TypeError, match="never apply to primitive 'neg'"):
            jaxrewrite.Rules().register("neg")(rule)


@pytest.mark.slow
def test_the_own_rules_could_apply():
    """They are not checked when they are registered."""
    from jaxrewrite import _signatures
    from jaxrewrite._core.rules import global_rules

    assert jaxrewrite.values.Sparse
    for primitive, entry in global_rules.entries():
        found = _signatures.known(primitive)
        if found is not None:
            assert _signatures.why_never(entry.rule.signature, found) is None, entry.rule


@pytest.mark.slow
def test_every_program_has_its_primitive():
    from jaxrewrite import _compat, _signatures

    by_name = _compat.primitives_by_name()
    for name in _signatures._programs():
        assert _signatures.known(by_name[name]) is not None, name


@pytest.mark.parametrize("how", ["in a program", "asked for"])
def test_an_aval_that_disagrees_with_materialise(how):
    class Lying(Plain):
        def aval(self):
            return jax.core.ShapedArray((4,), jnp.float32)

    with pytest.raises(TypeError, match=r"Lying.materialise returned f32\[3\].*f32\[4\]"):
        if how == "in a program":
            transform(negated, materialise="allow")(Lying(X))
        else:
            jaxrewrite.materialise(Lying(X))


def test_an_aval_that_is_none():
    class Wrong(Plain):
        def aval(self):
            return (3,)

    with pytest.raises(TypeError, match=r"Wrong.aval\(\) must return .*ShapedArray"):
        transform(negated)(Wrong(X))


def test_a_type_without_aval_that_refuses():
    class Silent(jaxrewrite.ArrayValue):
        x: jax.Array

        def materialise(self):
            raise ValueError("never")

    with pytest.raises(ValueError, match="never") as caught:
        transform(negated)(Silent(X))
    assert "Silent does not define aval()" in said(caught)


@pytest.mark.parametrize("result, kind", [(None, "NoneType"), ([X], "list")])
def test_a_type_without_aval_that_makes_no_array(result, kind):
    class Odd(jaxrewrite.ArrayValue):
        x: jax.Array

        def materialise(self):
            return result

    with pytest.raises(
        TypeError, match=f"^Odd.materialise returned a {kind}: neither an array"
    ) as caught:
        transform(negated)(Odd(X))
    assert "raised" not in said(caught)


def test_an_error_without_a_message_has_a_name():
    class Silent(Refusing):
        def materialise(self):
            raise NotImplementedError

    with pytest.raises(
        jaxrewrite.MaterialisationError, match="Silent can't be made dense: NotImpl"
    ):
        jaxrewrite.materialise(Silent(X))


def test_a_class_that_is_no_pytree():
    class Bare(Plain):
        def __new__(cls, x):
            return object.__new__(cls)

    with pytest.raises(TypeError, match="Bare is not a pytree"):
        transform(negated)(Bare(X))
    with pytest.raises(TypeError, match="Bare is not a pytree"):
        _ = Bare(X).shape


@pytest.mark.parametrize(
    "content", [np.arange(2), [1], {"a": 1}], ids=["array", "list", "dict"]
)
def test_static_fields_must_be_hashable(content):
    class Static(jaxrewrite.ArrayValue):
        x: jax.Array
        index: object = jaxrewrite.field(static=True)

        def materialise(self):
            return self.x

    with pytest.raises(TypeError, match="static field 'index' of Static holds a"):
        Static(X, content)
    np.testing.assert_allclose(transform(negated, materialise="allow")(Static(X, (1,))), -X)


def test_static_fields_must_be_comparable():
    class Odd:
        def __hash__(self):
            return 0

        def __eq__(self, other):
            return np.arange(2) == 0

    class Static(jaxrewrite.ArrayValue):
        x: jax.Array
        odd: object = jaxrewrite.field(static=True)

        def materialise(self):
            return self.x

    with pytest.raises(TypeError, match="static field 'odd' of Static holds a Odd"):
        Static(X, Odd())


def test_fields_that_hold_no_arrays():
    with pytest.raises(
        TypeError, match=r"Plain holds something that is not an array.*static=True"
    ):
        transform(negated)(Plain("text"))


@pytest.mark.parametrize(
    ("name", "hint"), [("ad", "'add'"), ("dot_generel", "'dot_general'")]
)
def test_unknown_primitives(name, hint):
    with pytest.raises(ValueError, match=f"JAX has no primitive '{name}'.*{hint}"):
        jaxrewrite.register(name)
    with pytest.raises(ValueError, match="JAX has no primitive"):
        jaxrewrite.bind(name, X)


def test_a_primitive_with_the_name_of_one_of_jax():
    namesake = Primitive("copy")
    namesake.def_impl(lambda x: x + 1)
    namesake.def_abstract_eval(lambda x: x)
    with pytest.raises(ValueError, match="has a primitive 'copy', and here is another"):
        jaxrewrite.register(namesake)
    value = jaxrewrite.values.Diagonal(jnp.ones(2))
    with pytest.raises(ValueError, match="has a primitive 'copy', and here is another"):
        transform(lambda x, y: (namesake.bind(x), y))(jnp.ones(2), value)
    body = jax.jit(namesake.bind)
    with pytest.raises(ValueError, match=r"Primitive\('my_copy'\)"):
        transform(body)(value)


def test_a_name_that_is_like_no_other_has_no_hint():
    with pytest.raises(ValueError, match="^JAX has no primitive 'qwertyuiop'.$"):
        jaxrewrite.register("qwertyuiop")


def test_register_without_a_primitive():
    with pytest.raises(TypeError, match="primitive or the name of one is needed"):

        @jaxrewrite.register
        def _(v: Plain):
            return v


OF_NO_OPERAND = (
    "^Parameter 'v' of rule rule is annotated with {}, which can't be dispatched on"
)
NOT_DISPATCHED_ON = {
    str: (TypeError, OF_NO_OPERAND.format("<class 'str'>")),
    "text of no name": (SyntaxError, "^Forward reference must be an expression"),
    list[int]: (TypeError, OF_NO_OPERAND.format("<class 'list'>")),
    3: (TypeError, OF_NO_OPERAND.format("3")),
    dict: (TypeError, OF_NO_OPERAND.format("<class 'dict'>")),
}


@pytest.mark.parametrize("annotation", NOT_DISPATCHED_ON, ids=str)
def test_annotations_that_cannot_be_dispatched_on(annotation):
    def rule(v):
        return v

    rule.__annotations__ = {"v": annotation}
    rules = jaxrewrite.Rules()
    error, words = NOT_DISPATCHED_ON[annotation]
    with pytest.raises(error, match=words):
        rules.register("neg")(rule)
    assert rules.version == 0
    np.testing.assert_allclose(
        transform(negated, rules=rules, materialise="allow")(Plain(X)), -X
    )


def test_names_in_annotations_that_are_not_defined():
    def rule(v):
        return v

    rule.__annotations__ = {"v": "Undefined"}
    with pytest.raises(
        TypeError, match="annotations of rule rule can't be read.*Undefined"
    ):
        jaxrewrite.Rules().register("neg")(rule)


def test_rules_that_are_no_functions():
    with pytest.raises(TypeError, match="must be a function, not a int"):
        jaxrewrite.Rules().register("neg")(3)


class Scaling:
    """A rule that is an object: annotations of its attributes are not those of operands."""

    factor: str = "2"

    def __call__(self, x: Plain, **params):
        return float(self.factor) * x.x

    def method(self, x: Plain, **params):
        return self(x)


def scaling(factor, x: Plain, **params):
    return factor * x.x


@pytest.mark.parametrize(
    ("rule", "fn", "name"),
    [
        (functools.partial(scaling, 2.0), scaling, "scaling"),
        (functools.partial(functools.partial(scaling), 2.0), scaling, "scaling"),
        (Scaling(), Scaling.__call__, "Scaling.__call__"),
        (Scaling().method, Scaling.method, "Scaling.method"),
    ],
    ids=["partial", "twice", "object", "method"],
)
def test_rules_are_whatever_can_be_called(rule, fn, name):
    rules = jaxrewrite.Rules()
    assert rules.register("neg")(rule) is rule
    np.testing.assert_allclose(transform(negated, rules=rules)(Plain(X)), 2 * X)
    line = fn.__code__.co_firstlineno
    report = jaxrewrite.explain(negated, rules=rules)(Plain(X))
    assert [(x.name, x.file, x.line) for x in report.rules] == [(name, __file__, line)]
    rules.register("neg", precedence=1)(lambda x: x)
    report = jaxrewrite.explain(negated, rules=rules)(Plain(X))
    assert "test_errors.py" in str(report.rules)


def test_precedence_is_a_number():
    """Else each later program with the primitive would fail where rules are put in order."""
    rules = jaxrewrite.Rules()
    with pytest.raises(TypeError, match="precedence of a rule is a number; got 'first'"):
        rules.register("neg", precedence="first")
    with pytest.raises(TypeError, match="got nan"):
        rules.register("neg", precedence=float("nan"))(lambda x: -x)
    assert rules.version == 0


def test_a_condition_of_a_pattern_is_a_function():
    with pytest.raises(TypeError, match="when= must be a function, not a int"):
        jaxrewrite.Rules().rewrite(lambda x: jnp.sin(x) + 1, when=3)(lambda x: x)


@pytest.mark.parametrize("rules", ["stable", [jaxrewrite.Rules(), None], {}])
def test_rules_are_tables(rules):
    for make in (transform, jaxrewrite.make_jaxpr):
        with pytest.raises(
            TypeError, match="rules= takes a table, a jaxrewrite.Rules, or a list"
        ):
            make(jnp.sin, rules=rules)
    with pytest.raises(
        TypeError, match="rules= takes a table, a jaxrewrite.Rules, or a list"
    ):
        testing.check_rule("neg", jnp.ones(2), rules=rules)


def test_parameters_that_a_primitive_does_not_have():
    for call in (jaxrewrite.bind, testing.check_rule):
        with pytest.raises(TypeError, match="'neg' takes no foo. It has 1 operand and no"):
            call("neg", Plain(jnp.ones(2)), foo=1)
        with pytest.raises(TypeError, match="'dot_general' needs dimension_numbers"):
            call("dot_general", Plain(jnp.ones(2)), jnp.ones(2))


def test_a_mesh_comes_before_the_rules():
    with pytest.raises(TypeError, match="must be a jax.sharding.Mesh, not a list"):
        jaxrewrite.shardings(jnp.ones(2), [(".*", None)], None)


def test_exchanged_rules_have_two_operands():
    with pytest.raises(TypeError, match="exchange='operands' needs a rule with two"):

        @jaxrewrite.Rules().register("neg", exchange="operands")
        def _(v: Plain):
            return v


@pytest.mark.parametrize(
    "name", ["sub", "div", "pow", "lt", "dot_general", "concatenate", "triangular_solve"]
)
def test_operands_whose_order_matters_are_not_exchanged(name):
    with pytest.raises(TypeError, match=rf"{name!r} matters. With exchange='types'"):

        @jaxrewrite.Rules().register("add", name, exchange="operands")
        def _(v: Plain, x: jax.Array, **params):
            return v


def test_what_is_exchanged_is_operands_or_types():
    with pytest.raises(ValueError, match="exchange is 'operands' or 'types'; got 'both'"):
        jaxrewrite.Rules().register("sub", exchange="both")


@pytest.mark.parametrize("fn", [3, None, "text"])
def test_functions_that_are_not_callable(fn):
    with pytest.raises(TypeError, match="transform takes a function, not a"):
        transform(fn)
    with pytest.raises(TypeError, match="transform takes a function, not a"):
        jaxrewrite.make_jaxpr(fn)


def test_policies_that_do_not_exist():
    with pytest.raises(ValueError, match="'forbid', 'cheapest'; got 'never'"):
        transform(negated, materialise="never")


@pytest.mark.parametrize("spec", ["text", (True,), (True, True, True, True), (1, 2, 3)])
def test_filter_specs_that_fit_nothing(spec):
    with pytest.raises(ValueError, match="filter_spec must be True, False, a predicate"):
        transform(negated, spec)(Plain(X))


CONTROL_FLOW = [
    lambda v: v if v[0] > 0 else -v,
    lambda v: np.asarray(v),
    lambda v: range(v[0].astype(int)),
    lambda v: float(v[0]),
]


@pytest.mark.parametrize("fn", CONTROL_FLOW, ids=["if", "numpy", "range", "float"])
def test_python_control_flow_on_arrays(fn):
    with pytest.raises(jax.errors.JAXTypeError) as caught:
        transform(fn, materialise="allow")(Plain(X))
    assert "is staged before it is evaluated, as under jax.jit" in said(caught)
    assert f"test_errors.py:{fn.__code__.co_firstlineno}" in said(caught)
    assert "argument v" in said(caught)


def test_forbidden():
    with pytest.raises(jaxrewrite.MaterialisationError) as caught:
        transform(negated, materialise="forbid")(Plain(X))
    for part in ("'neg' on Plain", "materialise='forbid'", "Register a rule.", LINE):
        assert part in said(caught)


@pytest.mark.parametrize("policy", ["warn", "allow", "forbid"])
def test_refused(policy):
    with pytest.raises(jaxrewrite.MaterialisationError) as caught:
        transform(negated, materialise=policy)(Refusing(X))
    for part in ("'neg' on Refusing", LINE):
        assert part in said(caught)
    if policy != "forbid":
        assert "a Refusing is never dense" in said(caught)
    with pytest.raises(jaxrewrite.MaterialisationError, match="never dense"):
        jaxrewrite.materialise([Refusing(X)])


def test_outside_a_transform_jax_raises_its_own_error():
    with pytest.raises(TypeError, match="Plain"):
        jnp.negative(Plain(X))


def test_values_without_a_dense_form():
    class Token(jaxrewrite.Value):
        x: jax.Array

        def aval(self):
            return jax.core.ShapedArray(self.x.shape, self.x.dtype)

    with pytest.raises(jaxrewrite.MaterialisationError, match="Token has no dense form"):
        transform(negated, materialise="allow")(Token(X))


# --- what is no function of arrays, and what is half a value -----------------------------


def makes(x):
    yield x


async def waits(x):
    return x


class Makes:
    def __call__(self, x):
        yield x


class Waits:
    async def __call__(self, x):
        return x


@pytest.mark.parametrize(
    ("fn", "name"),
    [
        (makes, "makes"),
        (waits, "waits"),
        (functools.partial(makes), "makes"),
        (functools.partial(functools.partial(waits)), "waits"),
        (Makes(), "Makes"),
        (Waits(), "Waits"),
    ],
)
def test_functions_that_do_not_return_are_refused_at_once(fn, name):
    with pytest.raises(TypeError, match=f"can't take {name}, a generator or coroutine"):
        transform(fn)


class Pair(jaxrewrite.ArrayValue):
    x: jax.Array
    scale: jax.Array
    shift: jax.Array | None = None

    def materialise(self):
        return self.x * self.scale


def test_a_value_that_has_lost_leaves_says_so():
    half = Pair(Pair(X, None), X)
    for ask in (
        lambda v: v.shape,
        lambda v: v.dtype,
        jaxrewrite.materialise,
        jaxrewrite.values.nbytes,
        transform(lambda v: v + 1),
    ):
        with pytest.raises(
            TypeError, match=r"This Pair lacks some of its arrays.* None in (x\.)?scale\."
        ):
            ask(half)
    assert "Pair" in repr(half)


def test_numbers_of_64_bits_are_those_of_jax():
    v = Pair(np.ones(3), np.float64(2.0))
    assert v.dtype == jaxrewrite.materialise(v).dtype == np.float32
    assert np.asarray(v).dtype == np.float32


class Positive(jaxrewrite.ArrayValue):
    x: jax.Array

    def materialise(self):
        return self.x > 0


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_condition_that_is_a_value_is_named():
    loop = lambda p, x: jax.lax.while_loop(
        lambda c: c[0], lambda c: (c[0], c[1] + 1), (p, x)
    )
    with pytest.raises(
        jaxrewrite.MaterialisationError, match="What the condition of primitive"
    ):
        transform(loop, materialise="forbid")(Positive(jnp.float32(-1)), X)
    with pytest.warns(jaxrewrite.MaterialisationWarning, match="Let it return an array"):
        transform(loop)(Positive(jnp.float32(-1)), X)
    rules = jaxrewrite.Rules()
    rules.register("convert_element_type")(lambda v, **params: Plain(jnp.int32(v.x)))
    branch = lambda p, x: jax.lax.cond(p, lambda: x, lambda: x + 1)
    with pytest.warns(jaxrewrite.MaterialisationWarning, match="What chooses a branch"):
        got = transform(branch, rules=rules)(Positive(jnp.float32(0)), X)
    np.testing.assert_allclose(got, X + 1)


def test_warnings_within_a_rule_are_of_the_users_line():
    rules = jaxrewrite.Rules()

    @rules.register("neg", "sin")
    def _(v: Pair, *, primitive, **params):
        return transform(lambda x: jaxrewrite.bind(primitive, x, **params))(Plain(v.x))

    for fn in (negated, negated):
        with pytest.warns(
            jaxrewrite.MaterialisationWarning, match="'neg' on Plain"
        ) as record:
            transform(fn, rules=rules)(Pair(X, X))
        assert [f"test_errors.py:{w.lineno}" for w in record] == [LINE]
        jaxrewrite.clear_caches()


# --- copies and pickles ---------------------------------------------------------------


def doubled(x):
    return 2 * x


@transform
def decorated(x):
    return 3 * x


class Scaling:
    def __init__(self, factor):
        self.factor = factor

    @functools.partial(transform, rules=jaxrewrite.Rules())
    def scaled(self, x):
        return self.factor * x


def test_the_pickle_of_a_method_is_that_of_its_object():
    method = Scaling(5).scaled
    for _ in range(3):
        method = pickle.loads(pickle.dumps(method))
    np.testing.assert_allclose(method(X), 5 * X)
    assert repr(method).count("transform") == 1


def test_copies_and_pickles_are_those_of_the_function():
    again = lambda fn: pickle.loads(pickle.dumps(fn))
    assert again(decorated) is decorated
    fn = transform(doubled, materialise="allow")
    fn(Plain(X))
    for of in (copy.copy, copy.deepcopy, again):
        np.testing.assert_allclose(of(fn)(Plain(X)), 2 * X)
        np.testing.assert_allclose(of(decorated)(X), 3 * X)
    with pytest.raises(jaxrewrite.MaterialisationError):
        again(transform(negated, materialise="forbid"))(Plain(X))
    with pytest.raises(
        pickle.PicklingError, match=r"transform\(doubled, rules=...\) has tables"
    ):
        again(transform(doubled, rules=jaxrewrite.Rules()))


def test_a_wrong_number_of_operands_names_the_primitive_and_the_types():
    v = jaxrewrite.values.Diagonal(jnp.ones(2))
    with pytest.raises(Exception) as raised:  # JAX has an AssertionError today.
        jaxrewrite.bind("add", v)
    assert "in staging bind('add', ...) on (Diagonal:f32[2,2])" in raised.value.__notes__[0]


def test_why_a_function_is_staged_without_values_is_told():
    """Rules for dense operands are the reason, if there is no value among the arguments."""
    rules = jaxrewrite.Rules()

    @rules.register("sin")
    def of_arrays(x: jax.Array, **params):
        return x

    def fails(*args):
        raise ValueError("no")

    def notes(*args, rules=rules):
        with pytest.raises(ValueError, match="no") as caught:
            transform(fails, rules=rules)(*args)
        return "\n".join(getattr(caught.value, "__notes__", []))

    why = "staged without any value among its arguments because of rules"
    assert why in notes(X) and "of_arrays" in notes(X)
    assert why not in notes(Plain(X)) and why not in notes(X, Plain(X))
    assert why not in notes(X, rules=None)


def needs(place):
    def model(w, x, *rest, scale, shift):
        parts = [w, x["a"], x["b"][0], *rest, scale["c"], shift]
        return w if parts[place].sum() > 0 else -w

    return model


NAMES = ["w", "x['a']", "x['b'][0]", "args[2]", "args[3]", "scale['c']", "shift"]


@pytest.mark.parametrize("place, name", [*enumerate(NAMES)])
def test_an_error_of_staging_names_the_argument(place, name):
    one = jnp.float32(1)
    x = {"a": one, "b": (one,)}
    with pytest.raises(jax.errors.TracerBoolConversionError) as caught:
        transform(needs(place))(Plain(X), x, one, one, scale={"c": one}, shift=one)
    assert f"depends on the value of the argument {name}." in str(caught.value)


def test_an_error_of_staging_names_a_part_of_the_function():
    def fn(parts, x):
        return x if parts[1]["k"] > 0 else -x

    with pytest.raises(jax.errors.TracerBoolConversionError) as caught:
        transform(jax.tree_util.Partial(fn, (Plain(X), {"k": X[0]})))(X)
    assert "of the argument the function[" in str(caught.value)
    assert "[0][1]['k']." in str(caught.value)


def test_a_filter_that_is_no_prefix_of_booleans_is_refused():
    fn = lambda x, y: x + y
    for spec in ((True, (True, 1), {}), (True, (1, 1), {}), ((), (True,), {}), "all"):
        with pytest.raises(ValueError, match="a pytree prefix of booleans"):
            transform(fn, spec)(Plain(X), Plain(X))


def test_a_rule_that_returns_a_class_is_told_what_it_returned():
    rules, Diagonal = jaxrewrite.Rules(), jaxrewrite.values.Diagonal

    @rules.register("neg")
    def of_class(v: Diagonal):
        return Diagonal

    with pytest.raises(
        TypeError, match=r"of_class .* returned a .* neither an array nor a value"
    ):
        jaxrewrite.transform(lambda v: -v, rules=rules)(Diagonal(jnp.ones(2)))

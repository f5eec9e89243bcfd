"""Which rule applies: the semantics of registration and lookup."""

from __future__ import annotations

import math
import typing

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import Literal
from jaxtyping import Array, ArrayLike, Float, Float64, Int, Shaped

import jaxrewrite
from jaxrewrite import _signatures


class A(jaxrewrite.ArrayValue):
    x: Array

    def materialise(self):
        return self.x


class SubA(A):
    pass


class B(jaxrewrite.ArrayValue):
    x: Array

    def materialise(self):
        return self.x


X = jnp.arange(4.0).reshape(2, 2)


@pytest.fixture
def rules():
    return jaxrewrite.Rules()


def applied(rules, fn, *args):
    """The number that the answering rule adds to zeros."""
    out = jaxrewrite.transform(fn, rules=rules, materialise="forbid")(*args)
    return float(jaxrewrite.materialise(out).ravel()[0])


def answer(number, shape=(2, 2), dtype=jnp.float32):
    return jnp.full(shape, number, dtype)


# --- annotations -----------------------------------------------------------------


def test_string_annotations_and_local_classes(rules):
    class Local(A):
        pass

    @rules.register("neg")
    def _(v: Local):
        return answer(1)

    assert applied(rules, jnp.negative, Local(X)) == 1


@pytest.mark.parametrize("union", [A | B, typing.Union[A, B], jaxrewrite.ArrayValue])  # noqa: UP007
def test_unions(rules, union):
    def rule(v):
        return answer(1)

    rule.__annotations__ = {"v": union}
    rules.register("neg")(rule)
    assert applied(rules, jnp.negative, A(X)) == applied(rules, jnp.negative, B(X)) == 1


@pytest.mark.parametrize(
    "dense",
    [
        X,
        np.ones((2, 2), "f"),
        np.float32(2),
        2.0,
        jax.random.normal(jax.random.key(0), (2, 2)),
    ],
    ids=["jax", "numpy", "numpy scalar", "python", "random"],
)
@pytest.mark.parametrize(
    "annotation", [ArrayLike, Array, np.ndarray, float, jax.core.Tracer]
)
def test_dense_operands_are_of_one_type(rules, dense, annotation):
    def rule(v, x, **params):
        return answer(3)

    rule.__annotations__ = {"v": A, "x": annotation}
    rules.register("add")(rule)
    assert applied(rules, lambda v: jnp.add(v, dense), A(X)) == 3
    run = jaxrewrite.transform(lambda v, x: v + x, rules=rules)
    assert float(jax.jit(run)(A(X), X)[0, 0]) == 3
    assert jax.vmap(run, (None, 0))(A(X), jnp.stack([X, X])).shape == (2, 2, 2)
    assert float(jax.grad(lambda x: run(A(x), x).sum())(X)[0, 0]) == 0


def test_of_several_tables_the_first_comes_first(rules):
    other = jaxrewrite.Rules()
    rules.register("neg")(lambda v, **_: answer(1))
    other.register("neg")(lambda v, **_: answer(2))
    other.register("sin")(lambda v, **_: answer(3))
    for tables, wanted in (([rules, other], 1), ((other, rules), 2), ([other], 2)):
        assert applied(tables, jnp.negative, A(X)) == wanted
        assert applied(tables, lambda v: jnp.sin(v), A(X)) == 3
    report = jaxrewrite.explain(jnp.negative, rules=[rules, other])(A(X))
    assert [step.decision for step in report.steps] == ["rule"]


def test_no_annotation_is_anything_but_dense_operands_alone(rules):
    calls = []

    @rules.register("add")
    def _(x, y, **params):
        calls.append(1)
        return answer(4)

    assert applied(rules, jnp.add, A(X), X) == 4
    assert applied(rules, jnp.add, A(X), B(X)) == 4
    calls.clear()
    np.testing.assert_allclose(jaxrewrite.transform(jnp.add, rules=rules)(X, X), X + X)
    assert not calls


def test_variadic(rules):
    @rules.register("concatenate")
    def _(*xs: A | ArrayLike, dimension):
        return answer(len(xs), (2 * len(xs), 2))

    for n in (2, 3):
        args = [A(X), *[X] * (n - 1)]
        assert applied(rules, lambda *xs: lax.concatenate(xs, 0), *args) == n


def test_variadic_after_a_fixed_operand(rules):
    @rules.register("concatenate")
    def _(x: A, *xs: ArrayLike, dimension):
        return answer(7, (2 * (1 + len(xs)), 2))

    assert applied(rules, lambda *xs: lax.concatenate(xs, 0), A(X), X, X) == 7
    with pytest.raises(jaxrewrite.MaterialisationError):
        applied(rules, lambda *xs: lax.concatenate(xs, 0), X, A(X))


def test_type_variables(rules):
    from typing import TypeVar

    T = TypeVar("T", bound=A)
    U = TypeVar("U", A, B)

    def bound(v, **params):
        return answer(1)

    bound.__annotations__ = {"v": T}
    rules.register("neg")(bound)

    def constrained(v, **params):
        return answer(2)

    constrained.__annotations__ = {"v": U}
    rules.register("sin")(constrained)
    assert applied(rules, jnp.negative, A(X)) == 1
    assert applied(rules, jnp.sin, B(X)) == 2


# --- order -----------------------------------------------------------------------


def test_the_more_specific_first(rules):
    @rules.register("neg")
    def _(v: jaxrewrite.ArrayValue):
        return answer(1)

    @rules.register("neg")
    def _(v: SubA):
        return answer(3)

    @rules.register("neg")
    def _(v: A):
        return answer(2)

    assert [applied(rules, jnp.negative, v(X)) for v in (B, A, SubA)] == [1, 2, 3]


def test_precedence_goes_before_specificity(rules):
    @rules.register("neg")
    def _(v: SubA):
        return answer(1)

    @rules.register("neg", precedence=1)
    def _(v: A):
        return answer(2)

    assert applied(rules, jnp.negative, SubA(X)) == 2


def test_not_implemented_passes_to_the_next(rules):
    asked = []

    @rules.register("neg", precedence=1)
    def _(v: A):
        asked.append("first")
        return NotImplemented

    @rules.register("neg")
    def _(v: SubA):
        asked.append("second")
        return NotImplemented

    @rules.register("neg")
    def _(v: jaxrewrite.ArrayValue):
        asked.append("third")
        return answer(5)

    assert applied(rules, jnp.negative, SubA(X)) == 5
    assert asked == ["first", "second", "third"]


def test_all_decline_and_the_value_becomes_dense(rules):
    @rules.register("neg")
    def _(v: A):
        return NotImplemented

    out = jaxrewrite.transform(jnp.negative, rules=rules, materialise="allow")(A(X))
    np.testing.assert_allclose(out, -X)


class WithDefault(jaxrewrite.ArrayValue):
    x: Array

    def materialise(self):
        raise ValueError("never")

    def aval(self):
        return jax.core.ShapedArray(self.x.shape, self.x.dtype)

    @staticmethod
    def default(primitive, values, params):
        dense = [v.x if isinstance(v, WithDefault) else v for v in values]
        out = primitive.bind(*dense, **params)
        if primitive.multiple_results:
            return [WithDefault(x) for x in out]
        return WithDefault(out)


class InheritsDefault(WithDefault):
    pass


class OtherDefault(WithDefault):
    @staticmethod
    def default(primitive, values, params):
        return NotImplemented


def test_default_comes_after_rules(rules):
    @rules.register("neg")
    def _(v: WithDefault):
        return answer(1)

    assert applied(rules, jnp.negative, WithDefault(X)) == 1
    out = jaxrewrite.transform(lambda v: lax.sort((jnp.sin(v), v)))(WithDefault(X))
    assert all(isinstance(x, WithDefault) for x in out)
    np.testing.assert_allclose(out[1].x, lax.sort((jnp.sin(X), X))[1])


def test_default_of_a_base_is_one_default():
    out = jaxrewrite.transform(jnp.add)(WithDefault(X), InheritsDefault(X))
    np.testing.assert_allclose(out.x, X + X)


def test_two_defaults():
    with pytest.raises(TypeError, match="WithDefault and OtherDefault each have a default"):
        jaxrewrite.transform(jnp.add)(WithDefault(X), OtherDefault(X))


def test_bodies_are_entered_before_a_default_is_asked(rules):
    @rules.register("neg")
    def _(v: WithDefault):
        return answer(1)

    assert applied(rules, jax.jit(jnp.negative), WithDefault(X)) == 1


class DenseWithDefault(WithDefault):
    def materialise(self):
        return self.x


def test_no_default_is_asked_for_a_new_reference():
    def doubled(v):
        ref = jax.new_ref(v)
        ref[...] *= 2
        return jax.freeze(ref)

    out = jaxrewrite.transform(doubled, materialise="allow")(DenseWithDefault(X))
    np.testing.assert_allclose(out, 2 * X)


# --- ambiguity ---------------------------------------------------------------------


def test_ambiguity_is_raised_at_the_lookup_and_names_both(rules):
    @rules.register("add")
    def first(x: A, y: ArrayLike | jaxrewrite.ArrayValue, **params):
        return answer(1)

    @rules.register("add")
    def second(x: ArrayLike | jaxrewrite.ArrayValue, y: B, **params):
        return answer(2)

    assert applied(rules, jnp.add, A(X), X) == 1
    assert applied(rules, jnp.add, X, B(X)) == 2
    with pytest.raises(jaxrewrite.AmbiguousRuleError) as caught:
        applied(rules, jnp.add, A(X), B(X))
    message = str(caught.value)
    for rule in (first, second):
        assert f"{rule.__name__} ({__file__}:{rule.__code__.co_firstlineno})" in message
    for way_out in (
        "'add' on (A, B)",
        "def _(x: A, y: B, **params)",
        "precedence=",
        "nested",
    ):
        assert way_out in message

    @rules.register("add")
    def third(x: A, y: B, **params):
        return answer(3)

    assert applied(rules, jnp.add, A(X), B(X)) == 3


def test_an_ambiguity_shows_a_rule_for_any_number_of_operands(rules):
    @rules.register("concatenate")
    def first(x: A, *xs: jaxrewrite.ArrayValue, **params):
        return answer(1)

    @rules.register("concatenate")
    def second(x: jaxrewrite.ArrayValue, *xs: A | B, **params):
        return answer(2)

    with pytest.raises(jaxrewrite.AmbiguousRuleError) as caught:
        applied(rules, lambda *xs: jnp.concatenate(xs), *[A(X), B(X), B(X), B(X), B(X)])
    shown = "def _(x: A, y: B, z: B, x3: B, x4: B, **params)"
    assert shown in str(caught.value)


def test_a_rule_that_declines_is_no_part_of_an_ambiguity(rules):
    @rules.register("add")
    def _(x: A, y: jaxrewrite.ArrayValue, **params):
        return NotImplemented

    @rules.register("add")
    def _(x: jaxrewrite.ArrayValue, y: B, **params):
        return answer(2)

    assert applied(rules, jnp.add, A(X), B(X)) == 2


@pytest.mark.parametrize("declines", [True, False])
def test_a_tied_rule_that_fails_has_not_declined(rules, declines):
    @rules.register("add")
    def _(x: A, y: jaxrewrite.ArrayValue, **params):
        return NotImplemented if declines else answer(1)

    @rules.register("add")
    def _(x: jaxrewrite.ArrayValue, y: B, **params):
        raise RuntimeError("on purpose")

    error = RuntimeError if declines else jaxrewrite.AmbiguousRuleError
    with pytest.raises(error):
        applied(rules, jnp.add, A(X), B(X))


def test_all_that_are_tied_decline_and_the_values_become_dense(rules):
    @rules.register("dot_general")
    def _(x: A, y: jaxrewrite.ArrayValue, **params):
        return NotImplemented

    @rules.register("dot_general")
    def _(x: jaxrewrite.ArrayValue, y: A, **params):
        return NotImplemented

    run = jaxrewrite.transform(lambda v, w: v @ w, rules=rules, materialise="allow")
    np.testing.assert_allclose(run(A(X), A(X)), X @ X)


def test_what_a_declining_rule_beat_may_tie_with_the_rest(rules):
    @rules.register("add")
    def first(x: SubA, y: jaxrewrite.ArrayValue, **params):
        return NotImplemented

    @rules.register("add")
    def second(x: A, y: jaxrewrite.ArrayValue, **params):
        return answer(1)

    @rules.register("add")
    def third(x: jaxrewrite.ArrayValue, y: B, **params):
        return answer(2)

    with pytest.raises(jaxrewrite.AmbiguousRuleError) as caught:
        applied(rules, jnp.add, SubA(X), B(X))
    assert "second" in str(caught.value) and "third" in str(caught.value)
    assert ".first" not in str(caught.value)


class Outer(jaxrewrite.ArrayValue):
    """An array that carries something, with another value as its array."""

    x: jaxrewrite.ArrayValue | Array
    outer = 1

    def materialise(self):
        return jaxrewrite.materialise(self.x)


@pytest.mark.parametrize("inner_first", [True, False])
def test_the_outer_type_has_the_word(rules, inner_first):
    """A user's type with rules for any other value, beside one that is further out."""

    def keep(cls):
        @rules.register("mul")
        def _(x: cls, y: jaxrewrite.ArrayValue | ArrayLike, **params):
            return cls(jaxrewrite.bind("mul", x.x, y, **params))

        @rules.register("mul")
        def _(x: jaxrewrite.ArrayValue | ArrayLike, y: cls, **params):
            return cls(jaxrewrite.bind("mul", x, y.x, **params))

    for cls in (A, Outer) if inner_first else (Outer, A):
        keep(cls)
    run = jaxrewrite.transform(jnp.multiply, rules=rules, materialise="forbid")
    for left, right in ((A(X), Outer(X)), (Outer(X), A(X)), (Outer(A(X)), A(X))):
        got = run(left, right)
        assert type(got) is Outer and type(got.x) is A
        np.testing.assert_allclose(got, X * X)


def test_the_outer_type_that_declines_leaves_it_to_the_other(rules):
    @rules.register("mul")
    def _(x: Outer, y: jaxrewrite.ArrayValue, **params):
        return NotImplemented

    @rules.register("mul")
    def _(x: jaxrewrite.ArrayValue, y: A, **params):
        return answer(2)

    assert applied(rules, jnp.multiply, Outer(X), A(X)) == 2


def test_outer_comes_after_what_is_more_specific_and_after_precedence(rules):
    @rules.register("mul")
    def _(x: Outer, y: jaxrewrite.ArrayValue, **params):
        return answer(1)

    @rules.register("mul", precedence=1)
    def _(x: jaxrewrite.ArrayValue, y: A, **params):
        return answer(2)

    @rules.register("add")
    def _(x: Outer, y: jaxrewrite.ArrayValue, **params):
        return answer(1)

    @rules.register("add")
    def _(x: Outer, y: A, **params):
        return answer(3)

    assert applied(rules, jnp.multiply, Outer(X), A(X)) == 2
    assert applied(rules, jnp.add, Outer(X), A(X)) == 3


def test_precedence_settles_an_ambiguity(rules):
    @rules.register("add")
    def _(x: A, y: jaxrewrite.ArrayValue, **params):
        return answer(1)

    @rules.register("add", precedence=1)
    def _(x: jaxrewrite.ArrayValue, y: B, **params):
        return answer(2)

    assert applied(rules, jnp.add, A(X), B(X)) == 2


# --- registration ------------------------------------------------------------------


def test_exchanged_operands(rules):
    @rules.register("mul", exchange="operands")
    def _(v: A, x: ArrayLike, **params):
        return v.x * 0 + jnp.reshape(x, -1)[0]

    assert applied(rules, jnp.multiply, A(X), answer(5)) == 5
    assert applied(rules, jnp.multiply, answer(6), A(X)) == 6


def test_exchanged_operands_of_one_type_and_two_shapes(rules):
    @rules.register("dot_general", exchange="types")
    def _(x: Float[A, "m n"], y: Float[A, " n"], **params):
        return jnp.full(2, 7.0)

    for x, y in ((A(X), A(X[0])), (A(X[0]), A(X))):
        run = jaxrewrite.transform(jnp.matmul, rules=rules, materialise="forbid")
        np.testing.assert_array_equal(run(x, y), [7, 7])


@pytest.mark.parametrize("explicit_first", [True, False])
def test_an_exchanged_rule_yields_to_one_of_that_order(rules, explicit_first):
    def mirrored(v: A, x: ArrayLike, **params):
        return answer(1)

    def explicit(x: ArrayLike, v: A, **params):
        return answer(2)

    register = [
        lambda: rules.register("add")(explicit),
        lambda: rules.register("add", exchange="operands")(mirrored),
    ]
    for step in register if explicit_first else register[::-1]:
        step()
    assert applied(rules, jnp.add, A(X), X) == 1
    assert applied(rules, jnp.add, X, A(X)) == 2


def test_an_error_tells_whether_the_rule_had_its_operands_exchanged(rules):
    @rules.register("add", exchange="operands")
    def failing(v: A, x: ArrayLike, **params):
        raise RuntimeError("on purpose")

    for fn, is_mirrored in ((lambda v: v + X, False), (lambda v: X + v, True)):
        with pytest.raises(RuntimeError) as caught:
            jaxrewrite.transform(fn, rules=rules)(A(X))
        (note,) = [x for x in caught.value.__notes__ if "raised by the rule" in x]
        assert note.endswith(", mirrored.") == is_mirrored


def test_an_error_tells_that_the_operands_are_in_the_order_of_the_program(rules):
    @rules.register("mul", exchange="types")
    def of_the_first(v: A, x: ArrayLike, **params):
        return A(v.x * x)

    double = jaxrewrite.transform(lambda v: 2 * v, rules=rules)
    with pytest.raises(AttributeError, match="no attribute x") as caught:
        double(A(X))
    (note,) = [x for x in caught.value.__notes__ if "raised by the rule" in x]
    assert note.endswith(", on operands in the order of the program (exchange='types').")


def test_what_a_rule_computes_is_under_the_policy_of_the_program(rules):
    @rules.register("sin")
    def _(v: A, **params):
        return jaxrewrite.bind("cos", v)

    run = lambda policy: jaxrewrite.transform(jnp.sin, rules=rules, materialise=policy)(
        A(X)
    )
    with pytest.raises(jaxrewrite.MaterialisationError, match="'cos' on A"):
        run("forbid")
    for policy in ("allow", "cheapest"):
        np.testing.assert_array_equal(run(policy), jnp.cos(X))


def test_names_and_several_primitives_in_one_registration(rules):
    @rules.register("sin", lax.cos_p, "tan")
    def _(v: A, *, primitive, **params):
        return answer({"sin": 1, "cos": 2, "tan": 3}[primitive.name])

    assert [applied(rules, f, A(X)) for f in (jnp.sin, jnp.cos, jnp.tan)] == [1, 2, 3]


def test_registration_returns_the_function(rules):
    def rule(v: A):
        return answer(1)

    assert rules.register("neg")(rule) is rule


def test_registering_again_replaces(rules):
    for number in (1, 2):

        @rules.register("neg")
        def _(v: A, *, number=number):
            return answer(number)

    assert applied(rules, jnp.negative, A(X)) == 2


def test_a_later_rule_is_seen_at_the_next_call(rules):
    fn = jaxrewrite.transform(
        jax.jit(lambda v: jnp.negative(v)), rules=rules, materialise="allow"
    )
    np.testing.assert_allclose(fn(A(X)), -X)

    @rules.register("neg")
    def _(v: A):
        return answer(9)

    assert float(fn(A(X))[0, 0]) == 9


def test_local_rules_layer_over_the_global_ones(rules):
    class Own(A):
        pass

    @jaxrewrite.register("neg")
    def _(v: Own):
        return answer(1)

    @jaxrewrite.register("sin")
    def _(v: Own, **params):
        return answer(2)

    @rules.register("neg")
    def _(v: jaxrewrite.ArrayValue):
        return answer(10)

    body = jax.jit(lambda v: (jnp.negative(v), jnp.sin(v)))
    for fn in (body, lambda v: body(v), jax.checkpoint(body)):
        local = jaxrewrite.transform(fn, rules=rules)(Own(X))
        assert [float(x[0, 0]) for x in local] == [10, 2]
        ordinary = jaxrewrite.transform(fn)(Own(X))
        assert [float(x[0, 0]) for x in ordinary] == [1, 2]


# --- guards -------------------------------------------------------------------------


def test_guards_on_shapes_and_dtypes(rules):
    @rules.register("neg")
    def _(v: Float[A, "n n"]):
        return answer(1)

    @rules.register("neg")
    def _(v: Int[A, "*shape"]):
        return answer(2, v.shape, jnp.int32)

    @rules.register("neg")
    def _(v: A):
        return answer(3, v.shape)

    assert applied(rules, jnp.negative, A(X)) == 1
    assert applied(rules, jnp.negative, A(jnp.ones((2, 3), int))) == 2
    assert applied(rules, jnp.negative, A(jnp.ones((2, 3)))) == 3


def test_dimension_names_are_shared_by_the_operands(rules):
    @rules.register("dot_general")
    def _(x: Float[ArrayLike, "n k"], y: Shaped[A, "k n"], **params):
        return answer(1, (x.shape[0], y.shape[1]))

    run = lambda x, y: applied(rules, jnp.matmul, x, y)
    assert run(jnp.ones((2, 3)), A(jnp.ones((3, 2)))) == 1
    with pytest.raises(jaxrewrite.MaterialisationError):
        run(jnp.ones((2, 3)), A(jnp.ones((3, 4))))


@pytest.mark.parametrize(
    "annotation, held, refused",
    [
        (Float[ArrayLike, ""], [2.5], [2, X[0], jnp.int32(2)]),
        (Int[ArrayLike, ""], [2, jnp.int32(3)], [2.5, X[0], jnp.arange(2)]),
        (Shaped[ArrayLike, ""], [2, 2.5, True], [X[0]]),
        (Float[Array, "2"] | int, [2, X[0]], [2.5, X]),
        (A | Float[ArrayLike, ""], [2.5, A(X)], [X]),
        (Array | float, [2, X], []),
        (Float64[ArrayLike, ""] | Float[Array, "2"], [X[0]], [jnp.float32(2)]),
    ],
)
def test_scalars_in_a_union_have_no_axes(rules, annotation, held, refused):
    """Scalar types beside arrays of a shape and dtype let no others in."""

    def rule(v, y):
        return answer(1)

    beside = jax.jit(lambda v, y: v + jnp.sum(y).astype(v.dtype))
    rules.register(beside, types=(A, annotation))(rule)
    for y in held:
        assert applied(rules, beside, A(X), y) == 1
    for y in refused:
        with pytest.raises(jaxrewrite.MaterialisationError):
            applied(rules, beside, A(X), y)


def _after_a_value(x: A, *xs: Float[ArrayLike, "n m"], dimension):
    return answer(1, (2 * (1 + len(xs)), 2))


def _of_any_number(*xs: Float[A, "n m"] | Float[ArrayLike, "n m"], dimension):
    return answer(1, (2 * len(xs), 2))


@pytest.mark.parametrize("rule", [_after_a_value, _of_any_number])
def test_the_last_guard_is_for_all_operands_of_a_variadic_rule(rules, rule):
    rules.register("concatenate")(rule)
    run = lambda *xs: applied(rules, lambda *xs: lax.concatenate(xs, 0), *xs)
    assert run(A(X), X) == run(A(X), X, X) == 1
    with pytest.raises(jaxrewrite.MaterialisationError):
        run(A(X), X, jnp.ones((4, 2)))


def test_two_guards_that_both_hold_are_ambiguous(rules):
    @rules.register("neg")
    def _(v: Float[A, "n n"]):
        return answer(1)

    @rules.register("neg")
    def _(v: Float[A, "n m"]):
        return answer(2)

    with pytest.raises(jaxrewrite.AmbiguousRuleError):
        applied(rules, jnp.negative, A(X))


# --- literals ------------------------------------------------------------------------


@pytest.fixture
def divided(rules):
    """Rules for a division by a number that the program contains, and by any other."""
    seen = []

    @rules.register("div")
    def _(v: A, x: Literal, **params):
        seen.append(float(x.val))
        return answer(float(x.val)) if x.val != 0 else NotImplemented

    @rules.register("div")
    def _(v: A, x: Array, **params):
        assert isinstance(x, jax.core.Tracer)
        return answer(100)

    return seen


def test_a_rule_sees_the_numbers_in_a_program(rules, divided):
    assert applied(rules, lambda v: v / 2.0, A(X)) == 2
    assert applied(rules, lambda v: v / 3, A(X)) == 3
    assert applied(rules, jax.jit(lambda v: v / 5), A(X)) == 5
    assert applied(rules, lambda v: v / jnp.ones((2, 2)), A(X)) == 100
    assert applied(rules, lambda v, x: v / x, A(X), jnp.float32(2)) == 100
    # It declines, and the next is asked.
    assert applied(rules, lambda v: v / 0.0, A(X)) == 100
    assert divided == [2, 3, 5, 0]


def test_each_number_is_asked_once(rules, divided):
    fn = lambda v: [v / 2.0, v / 2.0, v / 3.0]
    jaxrewrite.transform(fn, rules=rules)(A(X))
    assert divided == [2, 3]


# Their texts are the same, where JAX or NumPy rounds them.
ALIKE = 1.2344e-4, 1.23437e-4


def test_numbers_that_print_alike_are_two(rules):
    @rules.register("mul")
    def _(v: A, x: Literal, **params):
        return A(v.x * x.val)

    fn = lambda v: [v * number for number in (*ALIKE, 1e-9, 1e-6)]
    with np.printoptions(precision=3, suppress=True):
        got = jaxrewrite.transform(fn, rules=rules)(A(X))
    np.testing.assert_array_equal([v.x for v in got], fn(X))


def test_literals_in_bodies_and_other_orders(rules):
    @rules.register("max", exchange="operands")
    def _(v: A, x: Literal):
        return answer(x.val + 1)

    assert applied(rules, lambda v: jnp.maximum(0.0, v), A(X)) == 1
    assert applied(rules, jax.nn.relu, A(X)) == 1
    scan = lambda v: lax.scan(lambda c, _: (c, jnp.maximum(v, 4.0)), 0, None, 2)[1]
    assert applied(rules, scan, A(X)) == 5


def test_literals_of_ordinary_programs(rules):
    @rules.register("integer_pow")
    def _(x: Array, *, y):
        return x * 0 + 7

    @rules.register("pow")
    def _(x: Array, y: Literal):
        return lax.sqrt(x) if y.val == 0.5 else NotImplemented

    jaxpr = jaxrewrite.make_jaxpr(lambda x: (x**0.5, x**0.25), rules=rules)(X)
    assert [eqn.primitive.name for eqn in jaxpr.eqns] == ["sqrt", "pow"]


@pytest.mark.parametrize("others", [Array, jaxrewrite.ArrayValue | Array, typing.Any])
def test_a_literal_or_any_other_array_is_two_rules(rules, others):
    def rule(v, x):
        return answer(1)

    if others is typing.Any:

        def rule(v, *x):
            return answer(1)

        others = Literal
    rule.__annotations__ = {"v": A, "x": Literal | others}
    with pytest.raises(TypeError, match="takes a Literal or other"):
        rules.register("max")(rule)


# --- either order, and types that are given --------------------------------------------


def test_either_is_called_in_the_order_of_the_program(rules):
    @rules.register("sub", exchange="types")
    def _(x: A, y: B | ArrayLike, **params):
        return x.x - y.x if isinstance(x, A) and isinstance(y, B) else answer(9)

    @rules.register("div", exchange="types")
    def _(x: A, y: ArrayLike, **params):
        return answer(1) if isinstance(x, A) else answer(2)

    assert applied(rules, jnp.subtract, A(X + 3), B(X)) == 3
    assert applied(rules, jnp.subtract, B(X), A(X)) == 9
    assert applied(rules, jnp.divide, A(X), X) == 1
    assert applied(rules, jnp.divide, X, A(X)) == 2


@pytest.mark.parametrize("explicit_first", [True, False])
def test_either_yields_to_a_rule_of_that_order(rules, explicit_first):
    def both():
        @rules.register("sub", exchange="types")
        def _(x: A, y: ArrayLike, **params):
            return answer(1)

    def one():
        @rules.register("sub")
        def _(x: ArrayLike, y: A, **params):
            return answer(2)

    for add in (one, both) if explicit_first else (both, one):
        add()
    assert applied(rules, jnp.subtract, X, A(X)) == 2
    assert applied(rules, jnp.subtract, A(X), X) == 1


def test_either_with_a_literal(rules):
    @rules.register("max", exchange="types")
    def _(x: A, y: Literal):
        number = x if isinstance(y, A) else y
        return answer(number.val)

    assert applied(rules, lambda v: lax.max(v, 3.0), A(X)) == 3
    assert applied(rules, lambda v: lax.max(4.0, v), A(X)) == 4


def test_given_types(rules):
    for cls, number in ((A, 1), (B, 2)):

        def rule(x, y, *, number=number, **params):
            return answer(number)

        rules.register("add", types=(cls, ArrayLike | cls), exchange="types")(rule)
    assert applied(rules, jnp.add, A(X), X) == 1
    assert applied(rules, jnp.add, X, B(X)) == 2
    assert applied(rules, jnp.add, B(X), B(X)) == 2

    @rules.register("concatenate", types=(A | ArrayLike,))
    def _(*xs, **params):
        return answer(len(xs), (4, 2))

    assert applied(rules, lambda v: jnp.concatenate([v, X]), A(X)) == 2


def test_types_and_orders_that_do_not_fit(rules):
    with pytest.raises(
        TypeError, match=r"types= has 1 types, but rule .* has 2 operands: x, y"
    ):
        rules.register("add", types=(A,))(lambda x, y: x)
    with pytest.raises(TypeError, match="exchange='types' needs a rule with two operands"):
        rules.register("neg", exchange="types")(lambda x: x)


# --- dense rules, layers, bind --------------------------------------------------------


def test_rules_on_dense_operands_rewrite_ordinary_programs(rules):
    @rules.register("tanh")
    def fast_tanh(x: Array, **params):
        return jnp.tanh(x) * 0 + 8  # its own tanh is left alone

    fn = lambda x: jnp.tanh(x) + jax.jit(jnp.tanh)(x)
    np.testing.assert_allclose(jaxrewrite.transform(fn, rules=rules)(X), 16)
    np.testing.assert_allclose(jax.jit(jaxrewrite.transform(fn, rules=rules))(X), 16)
    np.testing.assert_allclose(jaxrewrite.transform(fn)(X), 2 * jnp.tanh(X), rtol=1e-6)
    out = jaxrewrite.transform(jnp.tanh, rules=rules, materialise="allow")(A(X))
    np.testing.assert_allclose(out, 8)


def test_a_primitive_without_operands(rules):
    @rules.register("iota")
    def _(*, shape, dtype, **params):
        return jnp.full(shape, 7, dtype)

    fn = lambda x: x + lax.iota(jnp.float32, 2)
    np.testing.assert_allclose(jaxrewrite.transform(fn, rules=rules)(X), X + 7)


def test_a_rule_that_cannot_be_registered_changes_nothing(rules):
    with pytest.raises(TypeError):
        rules.register("iota")(lambda x: x, 3)
    with pytest.raises(TypeError, match="can't be dispatched on"):

        @rules.register("sin")
        def _(x: int | str): ...

    assert not rules.dense_rules()


def test_an_inner_transform_leaves_dense_rules_to_the_outer(rules):
    """What a rule returns is final, and a compiled function holds no rules of others."""

    @rules.register("sin")
    def _(x: Array, **params):
        return 2 * jnp.sin(x)

    @rules.rewrite(lambda x: jnp.exp(jnp.cos(x)))
    def _(x):
        return 2 * jnp.exp(jnp.cos(x))

    others = jaxrewrite.Rules()

    @others.register("neg")
    def _(x: Array, **params):
        return 3 * x

    def fn(x):
        return -jnp.sin(x) + jnp.exp(jnp.cos(x))

    sin, exp = np.sin(2.0), np.exp(np.cos(2.0))
    x = jnp.float32(2.0)
    inner = jax.jit(jaxrewrite.transform(fn, rules=others))
    for way in (inner, jaxrewrite.transform(fn, rules=others)):
        outer = jaxrewrite.transform(way, rules=rules)
        for _ in range(2):
            np.testing.assert_allclose(outer(x), 3 * 2 * sin + 2 * exp, rtol=1e-6)
        np.testing.assert_allclose(way(x), 3 * sin + exp, rtol=1e-6)
    alone = jaxrewrite.transform(jaxrewrite.transform(fn), rules=rules)
    np.testing.assert_allclose(alone(x), -2 * sin + 2 * exp, rtol=1e-6)
    with_value = jaxrewrite.transform(lambda v, x: -jnp.sin(x) * v.shape[0], rules=others)
    outer = jaxrewrite.transform(lambda x: with_value(A(x[None]), x), rules=rules)
    np.testing.assert_allclose(outer(x), 3 * 2 * sin, rtol=1e-6)


def count_of_sines(rules, count, cls=Array):
    """Register a rule that gives a multiple of the sine."""

    @rules.register("sin")
    def _(x: cls, **params):
        return count * jnp.sin(x if cls is Array else x.x)


@pytest.mark.parametrize(
    "around",
    [
        jax.jit,
        jax.checkpoint,
        lambda fn: lambda x: jax.lax.cond(True, fn, jnp.negative, x),
        lambda fn: lambda x: jax.lax.map(fn, x[None])[0],
    ],
    ids=["jit", "checkpoint", "cond", "map"],
)
def test_what_jax_keeps_of_a_function_is_for_the_tables_around_it(rules, around):
    """Whoever traced it first, with the same table inside and outside, and for values."""
    others = jaxrewrite.Rules()
    count_of_sines(rules, 2)
    count_of_sines(others, 3, A)
    x = jnp.ones(2)
    sin = np.sin(x)
    same = around(jaxrewrite.transform(jnp.sin, rules=rules))
    with_value = around(
        lambda x: jaxrewrite.transform(jnp.sin, materialise="allow")(A(x[None]))[0]
    )
    for _ in range(2):
        np.testing.assert_allclose(same(x), 2 * sin, rtol=1e-6)
        np.testing.assert_allclose(
            jaxrewrite.transform(same, rules=rules)(x), 2 * sin, rtol=1e-6
        )
        np.testing.assert_allclose(with_value(x), sin, rtol=1e-6)
        outer = jaxrewrite.transform(with_value, rules=others)
        np.testing.assert_allclose(outer(x), 3 * sin, rtol=1e-6)


def test_what_jit_keeps_does_not_pass_over_a_policy_that_forbids():
    fn = jax.jit(lambda x: jaxrewrite.transform(jnp.sort)(A(x[None])))
    with pytest.warns(jaxrewrite.MaterialisationWarning):
        fn(jnp.ones(2))
    with pytest.raises(jaxrewrite.MaterialisationError):
        jaxrewrite.transform(fn, materialise="forbid")(jnp.ones(2))


def test_an_inner_transform_leaves_patterns_of_arrays_to_the_outer(rules):
    @rules.rewrite(lambda x: jnp.exp(jnp.cos(x)))
    def _(x):
        return 2 * jnp.exp(jnp.cos(x))

    inner = jaxrewrite.transform(lambda v, x: jnp.exp(jnp.cos(x)) * v.shape[0])
    x = jnp.ones(2)
    outer = jaxrewrite.transform(lambda x: inner(A(x), x), rules=rules)
    np.testing.assert_allclose(outer(x), 2 * 2 * np.exp(np.cos(x)), rtol=1e-6)


def test_rules_for_arrays_in_rules_for_derivatives_apply_once(rules):
    """JAX traces such a rule later than the function."""
    count_of_sines(rules, 2)
    inner = jaxrewrite.transform(jnp.sin, rules=rules)
    forward = jax.custom_jvp(lambda x: inner(x))
    forward.defjvp(lambda p, t: (inner(*p), t[0] * inner(*p)))
    backward = jax.custom_vjp(lambda x: inner(x))
    backward.defvjp(lambda x: (inner(x), x), lambda x, t: (t * inner(x),))
    for fn in (forward, backward):
        outer = jaxrewrite.transform(fn, rules=rules)
        both = jax.value_and_grad(outer)(jnp.float32(1.0))
        np.testing.assert_allclose(both, 2 * np.sin(1.0), rtol=1e-6)


def test_global_dense_rules_leave_programs_without_values_alone():
    """What one library registers must not change how another one's programs run."""
    primitive = jax.extend.core.Primitive("only_here")
    primitive.def_impl(lambda x: x)
    primitive.def_abstract_eval(lambda x: x)

    @jaxrewrite.register(primitive)
    def _(x: Array):
        return x + 1

    out = jaxrewrite.transform(jnp.compress)(jnp.array([True, False]), jnp.arange(2))
    np.testing.assert_array_equal(out, [0])
    # In a program on values it is in force, and where a table is passed.
    fn = lambda v, x: (v, primitive.bind(x))
    np.testing.assert_allclose(jaxrewrite.transform(fn)(A(X), X)[1], X + 1)


def test_staging_for_a_dense_rule_says_which(rules):
    @rules.register("tanh")
    def fast_tanh(x: Array, **params):
        return x

    with pytest.raises(jax.errors.ConcretizationTypeError) as caught:
        jaxrewrite.transform(lambda x: bool(x.sum()), rules=rules)(X)
    assert any("fast_tanh" in note for note in caught.value.__notes__)


def test_without_values_the_function_itself_is_called():
    seen = []
    jaxrewrite.transform(lambda x: seen.append(type(x)))(X)
    assert not issubclass(seen[0], jax.core.Tracer)


@pytest.mark.parametrize("how", [lambda fn: fn, jax.jit], ids=["as it is", "jit"])
def test_arguments_may_have_any_names(how, rules):
    @rules.register("mul")
    def _(v: A, y: ArrayLike, **params):
        return A(v.x * y)

    fn = how(lambda self, fn: fn * self)
    named = {"self": jnp.float32(3), "fn": A(X)}
    out = jaxrewrite.transform(fn, rules=rules)(**named)
    np.testing.assert_allclose(out.x, 3 * X)
    assert len(jaxrewrite.make_jaxpr(fn, rules=rules)(**named).in_avals) == 2
    assert jaxrewrite.explain(fn, rules=rules)(**named).steps
    assert not jaxrewrite.near_misses(fn, rules=rules)(**named)
    named["fn"] = jaxrewrite.values.Diagonal(X[0])
    assert not jaxrewrite.testing.assert_implicit(fn, **named).dense


def test_a_rule_sees_one_layer(rules):
    class Outer(jaxrewrite.ArrayValue):
        inner: Array

        def materialise(self):
            return self.inner * 2

    seen = []

    @rules.register("neg")
    def _(v: Outer):
        seen.append((isinstance(v.inner, jaxrewrite.Value), v.inner.shape))
        return Outer(-v.inner)

    @rules.register("neg")
    def _(v: A):
        return A(answer(7))

    out = jaxrewrite.transform(jnp.negative, rules=rules)(Outer(Outer(A(X))))
    assert set(seen) == {(False, (2, 2))}
    assert isinstance(out, Outer)
    assert isinstance(out.inner, Outer)
    assert isinstance(out.inner.inner, A)
    np.testing.assert_allclose(jaxrewrite.materialise(out), 28)


def test_bind_redispatches_by_the_rules_in_force(rules):
    class Wrapper(jaxrewrite.ArrayValue):
        inner: Array

        def materialise(self):
            return self.inner

    @rules.register("add")
    def _(v: Wrapper, other: ArrayLike | jaxrewrite.ArrayValue, **params):
        return jaxrewrite.bind("add", v.inner, other, **params)

    @rules.register("add")
    def _(x: ArrayLike, v: B, **params):
        return B(x + v.x)

    out = jaxrewrite.transform(jnp.add, rules=rules)(Wrapper(X), B(X))
    assert isinstance(out, B)
    np.testing.assert_allclose(out.x, X + X)
    np.testing.assert_allclose(jaxrewrite.bind("add", X, X), X + X)
    assert len(jaxrewrite.bind("sort", X, dimension=0, is_stable=True, num_keys=1)) == 1


def test_bind_completes_the_parameters_that_may_be_none():
    """With them alone left out, or with all, JAX has what its derivatives need."""
    square = lambda x: jaxrewrite.bind("mul", x, x).sum()
    np.testing.assert_allclose(jax.jit(jax.grad(square))(X), 2 * X)
    numbers = (((0,), (0,)), ((), ()))
    dot = lambda x: jaxrewrite.bind("dot_general", x, x, dimension_numbers=numbers).sum()
    np.testing.assert_allclose(dot(X), jnp.tensordot(X, X, (0, 0)).sum(), rtol=1e-6)
    np.testing.assert_allclose(
        jax.jit(jax.grad(dot))(X), jax.grad(lambda x: jnp.tensordot(x, x, (0, 0)).sum())(X)
    )


def test_what_bind_completes_does_not_depend_on_the_settings_in_force():
    dot_general = lax.dot_general_p
    with jax.default_matmul_precision("highest"):
        _signatures._by_name.cache_clear()
        assert "precision" in _signatures.completed(dot_general, {})


def test_a_rule_for_a_higher_order_primitive_comes_first(rules):
    @rules.register("jit")
    def _(v: A, **params):
        return [answer(6)]

    assert applied(rules, jax.jit(jnp.negative), A(X)) == 6


def test_parameters_that_are_zeros_of_two_signs_are_two(rules):
    @rules.register("gather")
    def _(v: A, indices, *, fill_value, **params):
        return jnp.full(indices.shape[:-1], jnp.copysign(1.0, fill_value))

    def lookup(v, number):
        return v.at[jnp.array([9])].get(mode="fill", fill_value=number)

    for number in (0.0, -0.0):
        run = jaxrewrite.transform(lambda v, x=number: lookup(v, x), rules=rules)
        assert run(A(X[0])) == np.copysign(1, number)


def test_types_may_be_given_beside_annotations_that_do_not_exist_at_run_time(rules):
    """Those of keyword-only parameters are for rules of functions alone."""

    @rules.register("cumsum", types=(A,))
    def _(v, *, axis: int, reverse: bool, primitive: "Primitive"):  # noqa: F821, UP037
        return A(v.x + 1)

    total = jaxrewrite.transform(lambda v: lax.cumsum(v), rules=rules)(A(X))
    np.testing.assert_array_equal(total.x, X + 1)


class Asking(A):
    """Its default has the parameters of the primitive, and so may `jaxrewrite.bind`."""

    def default(primitive, values, params):
        (v, indices) = values
        return jaxrewrite.bind(primitive, v.x, indices, **params)


def test_a_default_and_bind_tell_zeros_of_two_signs_apart():
    def lookups(v):
        row = jnp.array([9])
        return [v.at[row].get(mode="fill", fill_value=number) for number in (0.0, -0.0)]

    found = jax.jit(jaxrewrite.transform(lookups))(Asking(X[0]))
    assert [bool(jnp.signbit(x[0])) for x in found] == [False, True]


def test_rules_for_anything_are_for_a_type_that_is_outside_of_all():
    class Outermost(jaxrewrite.ArrayValue):
        x: jax.Array
        outer = math.inf

        def materialise(self):
            return self.x

    rules = jaxrewrite.Rules()

    @rules.register("neg")
    def _(v: jaxrewrite.Value, **params):
        return Outermost(-v.x)

    negated = jaxrewrite.transform(jnp.negative, rules=rules)(Outermost(jnp.ones(3)))
    assert isinstance(negated, Outermost)

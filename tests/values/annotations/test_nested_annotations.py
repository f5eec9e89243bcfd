"""Annotations around annotations: each program does to the inner one what it does to it alone."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxrewrite
from jaxrewrite import transform, values
from jaxrewrite.testing import assert_same
from jaxrewrite.values import (
    Annotated,
    Diagonal,
    Interval,
    Masked,
    Named,
    Tagged,
    Unitful,
    Units,
)


X = jnp.array([1.0, -2.0, 3.0])
MISSING = jnp.array([False, False, True])

INNER = {
    "Masked": lambda x: Masked(x, MISSING),
    "Unitful": lambda x: Unitful(x, "m"),
    "Interval": lambda x: Interval(x, x + 1),
}
AROUND = {
    "Tagged": lambda v: Tagged(v, frozenset({"tag"})),
    "Named": lambda v: Named(v, ("axis",)),
    "both": lambda v: Tagged(Named(v, ("axis",)), frozenset({"tag"})),
    "units": lambda v: Unitful(v, "kg"),
}
NESTS = [
    (around, inner)
    for around in AROUND
    for inner in INNER
    if (around, inner) != ("units", "Unitful")
]


@jax.custom_jvp
def squared(x):
    return x * x


@squared.defjvp
def _(primals, tangents):
    (x,), (t,) = primals, tangents
    return squared(x), 3 * x * t  # Not the derivative, so that it shows which one is taken.


@jax.custom_vjp
def cubed(x):
    return x * x * x


cubed.defvjp(lambda x: (cubed(x), x), lambda x, ct: (4 * x * x * ct,))

FUNCTIONS = {"relu": jax.nn.relu, "custom_jvp": squared, "custom_vjp": cubed}


def numbers(v):
    """The numbers inside, without those that are missing."""
    while isinstance(v, jaxrewrite.Value):
        if isinstance(v, Masked):
            v = v.filled(0)
        elif isinstance(v, Interval):
            v = v.lower + 2 * v.upper
        else:
            v = v.array
    return v


@pytest.mark.parametrize(("around", "inner"), NESTS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_by_custom_rules_are_those_of_the_inner_annotation(name, around, inner):
    fn = FUNCTIONS[name]

    def slopes(wrap):
        def loss(x):
            return numbers(transform(fn)(wrap(INNER[inner](x)))).sum()

        yield jax.jit(jax.grad(loss))(X)
        if name != "custom_vjp":
            yield jax.jvp(loss, (X,), (X,))[1]

    for got, want in zip(slopes(AROUND[around]), slopes(lambda v: v), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


ZEROS = {
    "comparison": lambda x: jnp.where(x > 0, x, 0.0),
    "maximum": lambda x: jnp.maximum(x, 0),
    "clip": lambda x: jnp.clip(x, 0),
    "leaky": jax.nn.leaky_relu,
    "sum": lambda x: x + 0.0,
    "hypot": lambda x: jnp.hypot(x, x),
    "pad": lambda x: jnp.pad(x, 1),
    "not a number": jnp.nan_to_num,
    "carry": lambda x: lax.scan(lambda c, y: (c + y, c), 0.0, x)[0],
    "argument": lambda x: jax.jit(jnp.maximum)(x, 0.0),
    "update": lambda x: jnp.zeros(3).at[1].set(x[0]),
    "choice": lambda x: lax.cond(jnp.arange(2)[1] > 0, lambda: x, lambda: jnp.zeros(3)),
}


@pytest.mark.parametrize("around", ["Tagged", "Named", "both"])
@pytest.mark.parametrize("name", ZEROS)
def test_zeros_have_the_units_inside_of_another_annotation(name, around):
    fn, v = ZEROS[name], Unitful(X, "m")
    got, want = transform(fn)(AROUND[around](v)), transform(fn)(v)
    while not isinstance(got, Unitful):
        got = got.array
    assert got.units == want.units
    np.testing.assert_array_equal(got.array, want.array)


def test_numbers_without_a_scale_need_no_units_where_a_program_ends():
    v = Tagged(Unitful(X, "m"), frozenset({"tag"}))
    got = transform(lambda x: jnp.where(x > 0, 0.0, jnp.inf))(v)
    assert isinstance(got, Tagged) and not isinstance(got.array, jaxrewrite.Value)


def test_units_around_names_around_units_have_derivatives_by_custom_rules():
    negated = jax.custom_vjp(lambda x: -x)
    negated.defvjp(lambda x: (-x, None), lambda _, g: (2 * g,))
    v = Unitful(Named(Unitful(X, "m"), ("axis",)), "m")

    def total(v):
        got = transform(negated)(v)
        assert (got.names, got.array.units) == (("axis",), Units("m") ** 2)
        return got.array.array.sum()

    np.testing.assert_array_equal(jax.grad(total)(v).array.array.array, 2 * jnp.ones(3))


class Doubled(jaxrewrite.ArrayValue):
    """It has another unit, so to say, than what is inside."""

    x: jax.Array
    axes = {"x": "..."}

    def materialise(self):
        return 2 * self.x


class Within(Annotated):
    """An annotation of a user, inside of all others."""

    array: jax.Array
    outer = 5


@values.annotation_rule(Within)
def _(*operands, primitive, **params):
    arrays = [x.array if isinstance(x, Within) else x for x in operands]
    results = jaxrewrite.bind(primitive, *arrays, **params)
    return list(map(Within, results)) if primitive.multiple_results else Within(results)


CARRIES = {
    "Within": Within,
    "Interval": lambda x: Interval(x, x),
    "Masked": lambda x: Masked(x, MISSING),
    "Unitful": lambda x: Unitful(x, "m"),
    "Named": lambda x: Named(x, ("axis",)),
    "Tagged": lambda x: Tagged(x, "a"),
}


PAIRS = [*itertools.combinations(CARRIES, 2)]
PAIRS.remove(("Interval", "Masked"))  # Each bound would have a mask of its own.


@pytest.mark.parametrize("inner, outer", PAIRS)
def test_annotations_say_the_same_in_any_order(inner, outer):
    """The outer type is outside in all results, also beside one that was so from the start."""
    inside, around = CARRIES[inner], CARRIES[outer]
    in_order, turned = around(inside(X)), inside(around(X))
    program = lambda p, x, y: (x * y + x * y, lax.cond(p, lambda: x * y, lambda: y * y))
    apply = transform(program, materialise="forbid")
    want = apply(True, in_order, in_order)
    for operands in ((in_order, turned), (turned, in_order), (turned, turned)):
        got = apply(True, *operands)
        assert jaxrewrite.same_structure(got, want)
        jax.tree.map(lambda a, b: assert_same(a, b, 1e-6), got, want)
    assert jaxrewrite.same_structure(transform(lambda x: x)(turned), in_order)


def test_an_element_of_a_stack_is_put_in_order_when_it_is_taken():
    """The stack itself knows how many axes each leaf of an element has."""
    element = jax.tree.map(
        lambda x: jnp.stack([x, x]), Masked(Named(Masked(X, MISSING), ("axis",)), MISSING)
    )
    got = transform(lambda v: v[1], materialise="forbid")(jaxrewrite.Batched(element, 2))
    assert jaxrewrite.same_structure(got, Named(Masked(X, MISSING), ("axis",)))


@pytest.mark.parametrize(
    "v",
    [
        Interval(Tagged(X, "a"), X),
        Interval(Unitful(X[0], "m"), 2.0),
        Doubled(Unitful(X, "m")),
    ],
    ids=["tags", "units", "no annotation"],
)
def test_what_is_said_of_a_part_alone_stays_inside(v):
    assert jaxrewrite.same_structure(transform(lambda x: x)(v), v)


def test_bounds_of_two_kinds_of_dtypes_have_their_units_together():
    """One is a number of Python, whose type is weak."""
    got = transform(lambda v: 2 * v)(
        Interval(Unitful(jnp.float32(1), "m"), Unitful(2.0, "m"))
    )
    assert (got.units, float(got.array.upper)) == (Units("m"), 4.0)


def test_masks_of_truth_values_are_no_arrays():
    x, y = Masked(Tagged(X > 0, "b"), MISSING), Tagged(X > 1, "a")
    assert repr(transform(jnp.logical_and)(x, y)) == repr(
        Tagged(Masked((X > 0) & (X > 1), MISSING), {"a", "b"})
    )


class Under(Masked):
    """A type of a user that is outside of more than its base class is."""

    outer = 35


def test_a_subclass_has_the_rules_of_its_base_class():
    got = transform(lambda v: v + v, materialise="forbid")(Under(X, MISSING))
    assert_same(got.filled(0), 2 * Masked(X, MISSING).filled(0))


BESIDE = {
    "solve": (jnp.linalg.solve, lambda x: jnp.diag(1 + x * x)),
    "convolve": (jnp.convolve, lambda x: x),
    "multiply": (jnp.multiply, lambda x: x),
}


@pytest.mark.parametrize("name", BESIDE)
def test_names_without_a_rule_leave_beside_units(name):
    fn, first = BESIDE[name]
    v, w = first(X), Unitful(X, "m")
    named = Named(v, "ab"[: v.ndim])
    for x, y in ((named, w), (Unitful(v, "m"), Named(X, ("a",)))):
        got, want = (transform(fn)(*of) for of in ((x, y), (bare(x), bare(y))))
        got = got.array if isinstance(got, Named) else got
        assert jaxrewrite.same_structure(got, want)
        assert_same(got.array, want.array)


def bare(x):
    return x.array if isinstance(x, Named) else x


ONCE = {
    "Unitful": (lambda: Unitful(Unitful(X, "m"), "s"), lambda: Unitful(X, "m s")),
    "no units": (lambda: Unitful(Unitful(X, ""), ""), lambda: Unitful(X, "")),
    "Named": (lambda: Named(Named(X, ("a",)), (None,)), lambda: Named(X, ("a",))),
    "Tagged": (lambda: Tagged(Tagged(X, "a"), "b"), lambda: Tagged(X, {"a", "b"})),
    "Masked": (
        lambda: Masked(Masked(X, MISSING), MISSING[::-1]),
        lambda: Masked(X, MISSING | MISSING[::-1]),
    ),
    "Interval": (
        lambda: Interval(Interval(X - 1, X), Interval(X, X + 1)),
        lambda: Interval(X - 1, X + 1),
    ),
}


def is_same(got, want):
    assert repr(got) == repr(want)
    assert jax.tree.structure(got) == jax.tree.structure(want)
    jax.tree.map(np.testing.assert_array_equal, jax.tree.leaves(got), jax.tree.leaves(want))


@pytest.mark.parametrize("name", ONCE)
def test_an_array_carries_each_annotation_once(name):
    make, want = ONCE[name]
    is_same(make(), want())


def test_names_of_one_axis_agree():
    with pytest.raises(
        ValueError, match="Named aligns an axis named 'a' with one named 'b'"
    ):
        Named(Named(X, ("a",)), ("b",))


@pytest.mark.parametrize("fn", [squared, cubed], ids=["jvp", "vjp"])
def test_an_annotation_twice_goes_through_custom_rules(fn):
    v = Unitful(Unitful(X, ""), "")
    _, pull = jax.vjp(transform(fn), v)
    (got,) = pull(jnp.ones(3))
    _, pull = jax.vjp(fn, X)
    np.testing.assert_array_equal(got.array, pull(jnp.ones(3))[0])


def test_what_rules_make_carries_each_annotation_once():
    """A rule for names puts units around a product, which then has units of its own."""
    v, x = Diagonal(Unitful(X, "m")), Named(Unitful(X, "m"), ("a",))
    got = transform(lambda v, x: jnp.maximum(v @ x, 0))(v, x)
    is_same(got, Named(Unitful(X * X, "m^2"), (None,)))


def test_entries_that_a_rule_takes_out_of_a_masked_array_are_masked_once():
    class Observed(jaxrewrite.ArrayValue):
        x: jax.Array
        is_lost: jax.Array
        outer = 60

        def materialise(self):
            return self.x

    rules = jaxrewrite.Rules()

    @rules.register("neg")
    def _(v: Observed):
        return Masked(-v.x, v.is_lost)

    v = Observed(Masked(X, MISSING), MISSING[::-1])
    got = transform(lambda v: -v, rules=rules)(v)
    is_same(got, Masked(-X, MISSING | MISSING[::-1]))


MATRIX = jnp.array([[3.0, 1.0], [1.0, 2.0]])

# Of these `Named` has no rule, except for the determinant.
WITHOUT_NAMES = {
    "gather of rows": lambda x: jnp.take_along_axis(x, jnp.argsort(x, 0), 0),
    "update": lambda x: x.at[jnp.argsort(x[0])].set(x),
    "inverse": jnp.linalg.inv,
    "solution": lambda x: jnp.linalg.solve(x, x[0]),
    "triangular": lambda x: jax.scipy.linalg.solve_triangular(x, x[0]),
    "gradients": lambda x: jax.scipy.sparse.linalg.cg(lambda y: x @ y, x[0])[0],
    "determinant": jnp.linalg.det,
    "singular values": jnp.linalg.svd,
    "windows": lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 2), (1, 1), "VALID"),
    "convolution": lambda x: jnp.convolve(x[0], x[1]),
}


@pytest.mark.parametrize("fn", WITHOUT_NAMES.values(), ids=WITHOUT_NAMES)
@pytest.mark.parametrize("inside", ["units", "tags"])
def test_what_is_inside_of_names_answers_where_these_are_dropped(fn, inside):
    carry = {
        "units": lambda x: Unitful(x, "m"),
        "tags": lambda x: Tagged(x, frozenset({"t"})),
    }[inside]
    fn = jaxrewrite.transform(fn)
    found = fn(Named(carry(MATRIX), (None, None)))
    expected = fn(carry(MATRIX))
    is_value = lambda x: isinstance(x, jaxrewrite.Value)
    for x, y in zip(
        *(jax.tree.leaves(z, is_value) for z in (found, expected)), strict=True
    ):
        assert (getattr(x, "units", None) or None) == (getattr(y, "units", None) or None)
        assert getattr(x, "tags", None) == getattr(y, "tags", None)
        assert_same(*(getattr(z, "array", z) for z in (x, y)), 1e-5)


def test_indices_with_names_choose_from_what_has_units_or_is_masked():
    fn = jaxrewrite.transform(lambda x, i: x[i])
    indices = Named(jnp.array([2, 0]), ("a",))
    x = jnp.array([3.0, 1.0, 2.0])
    assert fn(Unitful(x, "m"), indices).units == Unitful(x, "m").units
    masked = fn(Masked(x, x > 2.5), indices)
    np.testing.assert_array_equal(masked.mask, [False, True])


def test_names_around_a_matrix_leave_the_matrix():
    found = jaxrewrite.transform(jnp.linalg.inv)(Named(Diagonal(MATRIX[0]), ("a", "b")))
    assert_same(found, np.diag(1 / MATRIX[0]), 1e-6)


class WithoutDefault(values.Annotated):
    array: jax.Array
    outer = 60


class WithDefault(values.Annotated):
    array: jax.Array
    outer = 35

    @staticmethod
    def default(primitive, operands, params):
        inside = [x.array if isinstance(x, WithDefault) else x for x in operands]
        results = jaxrewrite.bind(primitive, *inside, **params)
        if primitive.multiple_results:
            return list(map(WithDefault, results))
        return WithDefault(results)


def test_a_default_is_asked_beside_an_annotation_without_one():
    """Only around it the other one leaves first."""
    product = transform(jnp.matmul, materialise="forbid")
    found = product(WithDefault(Diagonal(X)), WithoutDefault(jnp.ones((3, 3))))
    assert isinstance(found, WithDefault) and isinstance(found.array, values.Product)
    within = transform(jnp.tanh, materialise="allow")(WithoutDefault(WithDefault(X)))
    assert isinstance(within, WithDefault)


PADS = {
    "pad": lambda x: lax.pad(x, jnp.float32(0), [(1, 0, 0)]),
    "relu": jax.nn.relu,
    "take": lambda x: jnp.take(x, jnp.array([0, 2])),
    "sum": lambda x: lax.associative_scan(jnp.add, x),
    "where": lambda x: jnp.where(jnp.arange(3) > 0, x, 0.0),
}


@pytest.mark.parametrize("inner", ["Unitful", "Masked"])
@pytest.mark.parametrize("carry", [WithoutDefault, WithDefault])
def test_what_is_inside_of_an_annotation_of_a_user_answers(carry, inner):
    """The outer one has no rule, so that no other rule takes it for an array."""
    v = INNER[inner](X)
    for name, program in PADS.items():
        if (name, inner) == ("sum", "Masked"):
            continue  # Its pad has to be a number that is there, so that it is refused.
        want = transform(program)(v)
        got = transform(program, materialise="allow")(carry(v))
        got = got.array if isinstance(got, carry) else got
        assert jaxrewrite.same_structure(got, want)
        assert_same(jax.tree.leaves(got)[0], jax.tree.leaves(want)[0])


@pytest.mark.parametrize("carry", [WithoutDefault, WithDefault, Within])
def test_missing_entries_are_not_counted_inside_of_an_annotation_of_a_user(carry):
    v = carry(Masked(jnp.array([1.0, 2.0, 30.0, 400.0]), jnp.arange(4) == 3))
    for fn, want in ((jnp.median, 2.0), (jnp.var, np.var([1, 2, 30]))):
        got = transform(fn, materialise="allow")(v)
        assert_same(numbers(got), want)
    for fn in (jnp.mean, lambda x: jnp.quantile(x, 0.5), jax.nn.standardize):
        with pytest.raises(TypeError, match="Masked: "):
            transform(fn, materialise="allow")(v)


def test_a_condition_may_have_tags_under_any_policy():
    """The results of a loop do not have them, so that nothing is lost."""

    def fn(step):
        turn = lambda c: (c[0] + step, c[1] * 2)
        return lax.while_loop(lambda c: c[0] < 3, turn, (0 * step, jnp.float32(1)))

    got = transform(fn, materialise="forbid")(Tagged(jnp.float32(1), "a"))
    assert repr(got[0]) == repr(Tagged(jnp.float32(3), "a"))
    assert got[1] == 8


def test_numbers_beside_annotations_in_a_stack():
    class Multiple(jaxrewrite.ArrayValue):
        x: jax.Array
        factor: jax.Array

        def materialise(self):
            return self.x * self.factor

    each = [Unitful(Multiple(jnp.ones((3, 3)), jnp.float32(i)), "") for i in range(4)]
    stack = jaxrewrite.stack(each)
    assert transform(lambda v: (2 * v).sum(), materialise="allow")(stack) == 108


@pytest.mark.parametrize("carry", [*AROUND.values(), INNER["Masked"]])
def test_each_program_warns_of_what_becomes_dense_inside_of_an_annotation(carry):
    """Also where another program, with the same equation on what is inside, was rewritten before."""
    for program in (lambda x: -x, lambda x: 2 * -x):
        with pytest.warns(jaxrewrite.MaterialisationWarning, match="'neg' on Doubled"):
            transform(program)(carry(Doubled(X)))

"""`check_value`: a right type passes, and what is wrong with others is told by name."""

import dataclasses
import functools
import re
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jaxtyping import Array, Float
from reference import CASES
from wrong_types import Diagonal

import jaxrewrite
from jaxrewrite import ArrayValue, testing, values
from jaxrewrite.testing import Checked, Skipped, check_value, numbers
from jaxrewrite.testing._compare import Program, mapped_inside
from jaxrewrite.testing._culprits import Culprits
from jaxrewrite.testing._more_programs import more_programs, programs_on_two
from jaxrewrite.testing._oracle import own_stack, tolerance_of
from jaxrewrite.testing._programs import programs
from jaxrewrite.testing._registered import rules_that_name
from jaxrewrite.testing._value import _Wanted
from jaxrewrite.testing._variants import variants


def test_arrays_beside_a_value_are_mapped_and_truth_values_are_not():
    """A truth value that is mapped would make a branch a choice."""

    def choose(is_first, v, x):
        return lax.cond(is_first, lambda: v.materialise() + x, lambda: x)

    v = Diagonal(jnp.arange(1.0, 4.0))
    program = Program("cond", choose, [jnp.array(True), v, jnp.ones((3, 3))])
    mapped = mapped_inside(program, {id(v): None})
    is_first, same, stack = mapped.operands
    assert (is_first.ndim, same is v, stack.ndim) == (0, True, 3)
    np.testing.assert_allclose(mapped.fn(*mapped.operands), stack + v.materialise())


class Scaled(ArrayValue):
    """A right type, with rules for one operand, for two and for a product."""

    x: jax.Array
    factor: jax.Array
    power: int = jaxrewrite.field(static=True, default=1)

    def materialise(self):
        return self.x * self.factor**self.power

    def join(self, other):
        if isinstance(other, ArrayValue):
            return NotImplemented
        return self, Scaled(other, jnp.ones_like(self.factor), self.power)


@jaxrewrite.register("neg")
def negative(v: Scaled):
    return dataclasses.replace(v, x=-v.x)


@jaxrewrite.register("dot_general")
def product(v: Scaled, y: jax.Array, *, dimension_numbers, **params):
    x = jax.lax.dot_general(v.x, y, dimension_numbers, **params)
    return dataclasses.replace(v, x=x, factor=v.factor.astype(x.dtype))


@jaxrewrite.register("svd")
def _(v: Scaled, **params):
    return NotImplemented


@jaxrewrite.register("add")
def _(v: Scaled, w: values.Diagonal):
    return NotImplemented


RIGHT = Scaled(numbers((3, 4)), jnp.float32(2))


def test_a_right_type_passes(bulk):
    result = check_value(RIGHT, skip=["vmap", "jvp"])
    checked = {*result.checked}
    assert {"pytree", "pickle", "metadata", "static fields", "aval", "stack"} <= checked
    for mode in ("jit", "grad"):
        assert {f"neg {mode}", f"dot_general of an array {mode}"} <= checked
        assert {f"cond with an array, first {mode}", f"scan with ys {mode}"} <= checked
    skipped = dict(result.skipped)
    assert "check_rule" in skipped["the rule for svd on (Scaled)"]
    assert "another type" in skipped["the rule for add on (Scaled, Diagonal)"]
    assert f"Scaled: {len(checked)} checks passed." in str(result)
    assert "not the rule for svd on (Scaled): no operands are made for it" in str(result)


def test_a_reason_names_a_few_of_what_it_kept_from_being_checked():
    skipped = tuple(Skipped(f"check {i}", "it has no aval") for i in range(6))
    text = str(Checked("Scaled", ("pytree",), skipped))
    assert (
        "not check 0, check 1, check 2, check 3 and 2 more, in .skipped: it has no aval"
        in text
    )
    all_four = str(Checked("Scaled", ("pytree",), skipped[:4]))
    assert "not check 0, check 1, check 2, check 3: it has no aval" in all_four


@pytest.mark.slow
def test_a_right_type_passes_in_each_mode(bulk):
    modes = {check.rsplit(" ")[-1] for check in check_value(RIGHT).checked}
    assert {"jit", "vmap", "jvp", "grad"} <= modes


def test_an_exported_program_runs_in_another_process():
    result = check_value(RIGHT, only=["export"])
    assert result.checked == ("export",)


def test_a_class_that_cannot_be_imported_is_not_exported():
    class Local(ArrayValue):
        x: jax.Array

        def materialise(self):
            return self.x

    result = check_value(Local(jnp.ones(2)), only=["export", "pickle"], export=True)
    assert [check for check, _ in result.skipped] == ["pickle", "export"]


class Chosen(ArrayValue):
    """Rows of one number each, in an order."""

    order: jax.Array
    x: jax.Array

    def materialise(self):
        return self.x[self.order]


def test_common_programs_of_ready_rules_are_run_in_each_mode():
    wanted = _Wanted(values.Tridiagonal, list(rules_that_name(values.Tridiagonal)))
    by_name = programs(values.Tridiagonal(numbers((2,)), numbers((3,)), numbers((2,))))
    for mode in ("jit", "vmap", "jvp", "grad"):
        assert wanted.in_mode(by_name["add with itself"], mode, is_rare=False)


def test_programs_of_own_rules_alone_are_run_in_each_mode_if_they_are_rare():
    wanted = _Wanted(Scaled, list(rules_that_name(Scaled)))
    by_name = programs(RIGHT)
    assert wanted.in_mode(by_name["neg"], "grad", is_rare=True)
    assert not wanted.in_mode(by_name["exp"], "grad", is_rare=True)


class Ordered(ArrayValue):
    x: jax.Array
    order: tuple[int, ...] = jaxrewrite.field(static=True)

    def materialise(self):
        return jnp.transpose(self.x, self.order)


def test_variants_have_other_dtypes_and_other_contents_of_static_fields():
    labels = {variant.label for variant in variants(Ordered(numbers((3, 3)), (0, 1)))}
    assert {"in bfloat16", "another 'order'"} <= labels


class Signed(ArrayValue):
    x: jax.Array
    sign: int = jaxrewrite.field(static=True)

    def __post_init__(self):
        if self.sign not in (1, -1):
            raise ValueError("no sign")

    def materialise(self):
        return self.sign * self.x


def test_variants_have_the_other_sign():
    labels = {variant.label for variant in variants(Signed(numbers((3,)), 1))}
    assert "another 'sign'" in labels


def test_indices_are_not_cut_to_sizes_that_they_may_not_fit():
    labels = {
        variant.label for variant in variants(Chosen(jnp.array([2, 0, 1]), numbers((3,))))
    }
    assert "other numbers" in labels and "no columns" not in labels


@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 3, 4)])
def test_each_program_has_operands_that_fit(shape):
    x = numbers(shape, jnp.float32)
    for name, program in (programs(x) | more_programs(x)).items():
        try:
            jax.eval_shape(program.fn, *program.operands)
        except TypeError as error:  # Not all of JAX is for floats.
            assert "dtype" in str(error), (name, shape)


def test_loops_over_rows_compute_what_they_return():
    """JAX returns the operand in place of rows that a loop only passes on."""
    x = numbers((3, 3))
    both = programs(x) | more_programs(x)
    of_rows = [both[name] for name in both if name.startswith("scan with xs")]
    assert len(of_rows) == 2
    for program in of_rows:
        jaxpr = jax.make_jaxpr(program.fn)(*program.operands).jaxpr
        (scan,) = (eqn for eqn in jaxpr.eqns if eqn.primitive.name == "scan")
        assert jaxpr.outvars[-1] in scan.outvars


def test_rare_programs_are_those_that_an_array_can_run():
    floats = more_programs(jnp.eye(2) + numbers((2, 2)).mT @ numbers((2, 2)))
    assert {"round to even", "pow with integers", "cholesky", "clamp from below"} <= {
        *floats
    }
    assert "cholesky" not in more_programs(numbers((2, 2)))
    assert not any("round" in name for name in more_programs(numbers((2,), "int32")))
    assert "select_n by itself" in more_programs(numbers((2,), "bool"))


def test_rare_programs_look_up_rows_before_the_first_and_after_the_last():
    rare = more_programs(numbers((3, 2)))
    for how in ("fill", "clip"):
        places = rare[f"gather out of range, {how}"].operands[1]
        assert (places < -3).any() and (places >= 3).any()


def test_programs_that_a_dtype_does_not_have():
    def names(dtype):
        x = numbers((2,), dtype)
        return {*programs(x), *more_programs(x)}

    floats, integers = names("float32"), names("int32")
    assert floats - names("bfloat16") == {"fft"}
    assert floats - integers == {
        *("convert_element_type to bfloat16", "fft", "pow with integers", "round to even"),
        *("custom_jvp_call", "custom_vjp_call", "custom_vjp_call that mixes entries"),
    }
    assert floats > integers


def test_an_error_names_at_most_three_functions():
    called = [lambda: 1, lambda: 2, lambda: 3, lambda: 4]
    for count in (1, 3, 4):
        text = Culprits(ArrayValue, called).of(lambda: [f() for f in called[:count]], ())  # noqa: B023
        assert text.count("<lambda> (test_check_value.py:") == min(count, 3)
        assert text.endswith(", ...") == (count > 3)


def test_a_tolerance_takes_the_place_of_the_own_one():
    class Rough(ArrayValue):
        x: jax.Array

        def materialise(self):
            return self.x

    def rule(v, **params):
        return jnp.sin(v.x) * 1.001

    jaxrewrite.register("sin")(rule_for(Rough, rule))
    only = ["sin", "(a stack)"]
    assert check_value(Rough(numbers((3,))), only=only, tolerance=1e-2)
    with pytest.raises(AssertionError, match="sin"):
        check_value(Rough(numbers((3,))), only=only)


def test_small_numbers_are_told_apart():
    class Small(ArrayValue):
        x: jax.Array

        def materialise(self):
            return self.x

        def sliceable(self):
            return Small(-self.x)

    jaxrewrite.register("neg")(rule_for(Small, lambda v, **params: Small(v.x)))
    jaxrewrite.register("mul")(second_rule_for(Small, lambda x, v, **params: -x * v.x))
    for check in ("neg jit", "mul of an array jit", "scan with xs jit"):
        with pytest.raises(AssertionError, match=f"  {check}: .* numbers differ"):
            check_value(Small(1e-6 * numbers((3,))), only=[check])


def second_rule_for(cls, fn):
    def rule(x, v, **params):
        return fn(x, v, **params)

    rule.__annotations__ = {"x": jax.Array, "v": cls}
    return rule


def rule_for(cls, fn):
    def rule(v, **params):
        return fn(v, **params)

    rule.__annotations__ = {"v": cls}
    return rule


def test_numbers_of_16_bits_have_the_tolerance_of_their_precision():
    assert tolerance_of(Scaled(numbers((3, 4)).astype("bfloat16"), 1.5)) == 20 * 2**-7
    assert tolerance_of(RIGHT) is None


def test_programs_on_two_have_a_result_of_both():
    v, w = numbers((2, 2)), numbers((2, 2)) + 1
    of_two = programs_on_two(v, w)
    names = [name for name in of_two if name.startswith(("scan ", "cond "))]
    results = {name: of_two[name].fn(*of_two[name].operands) for name in names}
    assert len(results) == 3
    testing.assert_same(results["scan of two"], w)
    follows = programs(v)["scan with a carry that an array follows"]
    testing.assert_same(follows.fn(*follows.operands), follows.operands[1])
    testing.assert_same(results["cond of two, first"], v)
    testing.assert_same(results["cond of two, second"], w)


def test_skip_and_only():
    both = ["neg jit", "neg jvp"]
    assert [*check_value(RIGHT, only=["neg"], skip=["vmap", "grad"]).checked] == both
    assert [*check_value(RIGHT, only=both).checked] == both


def test_what_has_no_derivative_is_not_said_to_be_right():
    result = check_value(RIGHT, only=["argmax along axis 0"])
    assert [x.check for x in result.skipped] == [
        f"argmax along axis 0 {m}" for m in ("jvp", "grad")
    ]
    assert {x.why for x in result.skipped} == {"there is nothing to differentiate"}


def test_takes_values_and_names_of_checks():
    with pytest.raises(ValueError, match="no check of the name nag"):
        check_value(RIGHT, only=["nag"])
    with pytest.raises(TypeError, match="takes a value; got a ArrayImpl"):
        check_value(jnp.ones(2))
    with pytest.raises(TypeError, match=r"skip= takes a list; pass \['vmap'\]"):
        check_value(RIGHT, skip="vmap")


# --- types that are broken, each in one way -------------------------------------------------


class WrongAval(ArrayValue):
    x: jax.Array

    def aval(self):
        return jax.core.ShapedArray((2,), jnp.float32)

    def materialise(self):
        return self.x


class Plain(ArrayValue):
    """The base of types with a right array."""

    x: jax.Array

    def materialise(self):
        return self.x


class WrongDtype(Plain):
    pass


@jaxrewrite.register("neg")
def _(v: WrongDtype):
    return (-v.x).astype("float16")


class WrongNumber(Plain):
    pass


@jaxrewrite.register("exp")
def _(v: WrongNumber, **params):
    return WrongNumber(jnp.exp(v.x) + 1)


class RuleRaises(Plain):
    pass


@jaxrewrite.register("neg")
def _(v: RuleRaises):
    return 1 / 0


def planted(primitive, operands, rule):
    """A type with one wrong rule, which takes these operands besides a value."""
    cls = type("Planted", (Plain,), {})
    types = [cls if operand == "v" else jax.Array for operand in operands]
    jaxrewrite.register(primitive, types=types)(rule)
    return cls(numbers((3, 2)))


# What each of these rules does not read.
UNREAD = {
    "cumsum along axis 0, reversed": ("v", lambda v, *, axis, **_: v.x.cumsum(axis)),
    "rev along axis 1": ("v", lambda v, **_: v.x[::-1]),
    "integer_pow": ("v", lambda v, **_: v.x**2),
    "sort along axis 1": ("v", lambda v, **_: [v.x]),
    "dynamic_slice": ("vaa", lambda v, i, j, **_: v.x[:1]),
    "select_n of an array": ("aav", lambda p, x, v: x),
    "select_n with an array": ("ava", lambda p, v, x: v.x),
    "pad with ones": (
        "va",
        lambda v, c, *, padding_config: jax.lax.pad(v.x, 0.0, padding_config),
    ),
    "convert_element_type to int32": ("v", lambda v, **_: (v.x + 0.5).astype(int)),
    "dot_general with itself": ("vv", lambda v, w, **_: 2 * v.x @ w.x.T),
    "broadcast_in_dim with a last axis": (
        "v",
        lambda v, *, shape, **_: jnp.resize(v.x, shape),
    ),
}


@pytest.mark.parametrize("check", UNREAD)
def test_a_rule_that_does_not_read_all_is_found(check):
    value = planted(check.partition(" ")[0], *UNREAD[check])
    with pytest.raises(AssertionError, match=rf"{re.escape(check)} jit: .*numbers differ"):
        check_value(value, only=[f"{check} jit"])


class WrongBatch(Plain):
    """A rule that is right for one value, and wrong where ``x`` has a batch axis."""


@jaxrewrite.register("reduce_sum")
def _(v: WrongBatch, *, axes, **params):
    return jax.lax.stop_gradient(v.x).sum(axes)


@jax.tree_util.register_pytree_node_class
class UnhashableMetadata(ArrayValue):
    def __init__(self, x, notes):
        self.x, self.notes = x, notes

    def materialise(self):
        return self.x

    def tree_flatten(self):
        return (self.x,), self.notes

    @classmethod
    def tree_unflatten(cls, notes, leaves):
        return cls(*leaves, notes)


class ByIdentity:
    """Metadata without an ``__eq__``."""


class NewMetadata(Plain):
    note: ByIdentity = jaxrewrite.field(static=True)


@jax.tree_util.register_pytree_node_class
@dataclasses.dataclass(frozen=True)
class ForgottenField(ArrayValue):
    x: jax.Array
    length: int = jaxrewrite.field(static=True, default=3)

    def materialise(self):
        return self.x

    def tree_flatten(self):
        return (self.x,), None

    @classmethod
    def tree_unflatten(cls, _, leaves):
        return cls(*leaves)


class OwnState(Plain):
    """It pickles something else."""

    def __reduce__(self):
        return OwnState, (0 * self.x,)


class NoStack(Plain):
    """The leaves of a stack can't be told from those of one."""

    def materialise(self):
        return jnp.asarray(np.asarray(self.x))


class WrongStack(Plain):
    scale: jax.Array

    def materialise(self):
        return self.x * self.scale

    def sliceable(self):
        return self


class WrongSlice(Plain):
    def sliceable(self):
        return WrongSlice(self.x + 1)


class WrongJoin(Plain):
    def join(self, other):
        return self, WrongJoin(jnp.zeros_like(self.x))


class WrongTangent(Plain):
    def tangent(self, leaf_tangents):
        return 2 * leaf_tangents.x


class WrongLift(Plain):
    def lift_tangent(self, tangent):
        return WrongLift(2 * tangent)


class Projects(jaxrewrite.ArrayValue):
    """A diagonal matrix that says that its leaves can make any tangent."""

    d: jax.Array

    def materialise(self):
        return jnp.diag(self.d)

    def lift_tangent(self, tangent):
        return Projects(jnp.diagonal(tangent))

    def tangent_space(self):
        return "all"


class NegativeJoin(Plain):
    """The join of two structures of one type forgets the sign of the second."""

    sign: int = jaxrewrite.field(static=True, default=1)

    def materialise(self):
        return self.sign * self.x

    def join(self, other):
        if not isinstance(other, NegativeJoin):
            return NotImplemented
        return NegativeJoin(self.x), NegativeJoin(other.x)


@jaxrewrite.register("neg")
def _(v: NegativeJoin):
    return NegativeJoin(v.x, -v.sign)


class Slanted(Plain):
    """Its slices are columns, and not the rows that ``sliceable`` makes of them."""

    def materialise(self):
        return jnp.swapaxes(self.x, 0, -1)

    def sliceable(self):
        return self


class FailingJoin(Plain):
    def join(self, other):
        return self, FailingJoin(other.x)


x = numbers((3,))


# A value, what is checked, the check that fails, and a part of the message.
BROKEN = {
    "aval": (WrongAval(x), "aval", "aval() is f32[2] where materialise() returns f32[3]"),
    "dtype": (WrongDtype(x), "neg jit", "f16[3]"),
    "number": (WrongNumber(x), "exp jit", "3 of 3 numbers differ: 2.28"),
    "error": (RuleRaises(x), "neg vmap", "ZeroDivisionError: division by zero"),
    "derivative": (WrongBatch(x), "reduce_sum grad", "3 of 3 numbers differ: 0"),
    "hash": (UnhashableMetadata(x, ["a"]), "metadata", "unhashable type: 'list'"),
    "identity": (NewMetadata(x, ByIdentity()), "metadata", "would be compiled anew"),
    "static": (ForgottenField(x), "static fields", "whose 'length' is 4 has the same"),
    "pickle": (OwnState(x), "pickle", "has other leaves: at [0]: 3 of 3 numbers differ"),
    "materialise": (NoStack(x), "aval", "TracerArrayConversionError"),
    "stack": (WrongStack(x, jnp.float32(2)), "scan with ys jit", "(2,)"),
    "slice": (WrongSlice(x), "scan with xs jit", "numbers differ"),
    "tangent": (WrongTangent(x), "custom_jvp_call jvp", "3 of 3 numbers differ"),
    "lift_tangent": (WrongLift(x), "custom_vjp_call grad", "3 of 3 numbers differ"),
    "tangent_space": (
        Projects(x),
        "custom_vjp_call that mixes entries grad",
        "3 of 3 numbers differ",
    ),
    "join of two": (
        NegativeJoin(x),
        "cond with its negative, second jit",
        "numbers differ",
    ),
    "slices": (Slanted(numbers((3, 3))), "scan with xs jit", "numbers differ"),
    "join": (WrongJoin(x), "cond with an array, second jit", "3 of 3 numbers differ: 0 at"),
    "no join": (FailingJoin(x), "cond with an array, first jit", "AttributeError"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_broken_is_told_by_name(case):
    value, check, part = BROKEN[case]
    with pytest.raises(AssertionError) as caught:
        check_value(value, only=[check.rsplit(" ", 1)[0], check])
    text = str(caught.value)
    assert text.startswith(f"{type(value).__name__}: ")
    assert re.search(rf"^  {re.escape(check)}: ", text, re.M), text
    assert part in text
    assert f"check_value(value, only=[{check!r}])" in text


def test_all_failures_are_told_at_once_with_their_cause():
    with pytest.raises(AssertionError, match="4 of 4 checks failed") as caught:
        check_value(RuleRaises(x), only=["neg"], skip=["jit"])
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


class FailsAsItRuns(Plain):
    pass


def _refuse(x):
    raise RuntimeError("not today")


@jaxrewrite.register("neg")
def _(v: FailsAsItRuns):
    return jax.pure_callback(_refuse, jax.typeof(v.x), v.x)


def test_an_error_as_a_program_runs_is_told_by_name():
    with pytest.raises(AssertionError, match="1 of 2 checks failed") as caught:
        check_value(FailsAsItRuns(x), only=["neg jit", "exp jit"])
    assert "  neg jit: " in str(caught.value) and "not today" in str(caught.value)


def test_programs_wait_for_an_aval():
    with pytest.raises(AssertionError, match="WrongAval: 1 of 4 checks"):
        check_value(WrongAval(x), skip=["stack", "tangents"])


def test_a_stack_may_have_one_number_for_all_entries():
    stack = own_stack(Scaled(x, jnp.float32(2)))
    assert (stack.x.shape, stack.factor.shape) == ((2, 3), ())


# --- types that refuse ------------------------------------------------------------------------


class Refused(Exception):
    pass


class Refusing(Plain):
    @staticmethod
    def default(primitive, operands, params):
        if primitive.name == "exp":
            raise Refused("not this one")
        return NotImplemented


def test_an_error_by_which_a_type_refuses_a_program():
    asked = ["exp jit", "neg jit"]
    with pytest.raises(AssertionError, match="exp jit: Refused: not this one"):
        check_value(Refusing(x), only=asked)
    result = check_value(Refusing(x), only=asked, skip=[Refused])
    assert result.checked == ("neg jit",)
    assert result.skipped == (("exp jit", "Refused: not this one"),)


def test_a_type_may_refuse_to_be_dense():
    length = values.Unitful(x, "m")
    with pytest.raises(AssertionError, match="aval: UnitsError: it has units"):
        check_value(length)
    result = check_value(length, skip=[values.UnitsError, jaxrewrite.MaterialisationError])
    assert {"aval", "programs"} <= dict(result.skipped).keys()


class Endless(jaxrewrite.Value):
    """Never dense."""

    x: jax.Array

    def aval(self):
        return jax.core.ShapedArray(self.x.shape, self.x.dtype)


def test_a_type_that_is_never_dense_is_a_pytree_at_least():
    result = check_value(Endless(x))
    assert result.checked == ("pytree", "pickle", "metadata")
    assert dict(result.skipped)["programs"] == "they need what aval checks"


class Finite(Plain):
    """It refuses numbers when it becomes dense, and to be empty when it is made."""

    def __post_init__(self):
        if 0 in jnp.shape(self.x):
            raise ValueError("it is not empty")

    def aval(self):
        return jax.core.ShapedArray(self.x.shape, self.x.dtype)

    def materialise(self):
        if not isinstance(self.x, jax.core.Tracer) and not np.isfinite(self.x).all():
            raise ValueError("it holds finite numbers")
        return self.x


@jaxrewrite.register("neg")
def _(v: Finite):
    return Finite(-v.x)


def test_what_a_type_refuses_to_be_is_left_out():
    assert check_value(Finite(x), only=["neg (one column) jit"])
    for refused in ("neg (NaN and infinity) jit", "neg (no columns) jit"):
        with pytest.raises(ValueError, match=f"no check of the name {re.escape(refused)}"):
            check_value(Finite(x), only=[refused])


class WithTriangle(Diagonal):
    """A diagonal matrix, whose triangles are itself, or the identity."""

    def known_triangle(self, lower, unit_diagonal):
        return dataclasses.replace(self, d=jnp.ones_like(self.d)) if unit_diagonal else self


def test_a_triangle_may_have_ones_on_its_diagonal():
    assert check_value(WithTriangle(numbers((3,))), only=["matrix"]).checked == ("matrix",)


def test_integers_have_no_tangents():
    sparse = CASES["sparse"].value(np.random.default_rng(0), "float32", (3, 3))
    assert check_value(sparse, only=["tangents"]).checked == ("tangents",)


# --- batches ---------------------------------------------------------------------------------


def test_tells_whether_a_value_may_leave_vmap():
    assert check_value(Plain(x), only=["batch"]).checked == ("batch",)
    result = check_value(Slanted(numbers((2, 3))), only=["batch"])
    ((check, why),) = result.skipped
    assert check == "batch" and "make it dense before it leaves jax.vmap" in why


# --- ready types ------------------------------------------------------------------------------


READY = ("diagonal", "lora", "low_rank", "zero")


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_ready_types(name, bulk):
    value = CASES[name].value(np.random.default_rng(0), "float32", (3, 3))
    # Parts that are infinite or NaN may make another of these than the dense array has. Parts that
    # are quantised have no complex scales.
    skip = ["(in complex64)"] if name == "concatenated" else []
    check_value(value, skip=["(NaN and infinity)", *skip])


@pytest.mark.parametrize("name", READY)
def test_some_of_the_ready_types(name, bulk):
    value = CASES[name].value(np.random.default_rng(0), "float32", (3, 3))
    check_value(value, only=["neg", "cond with itself, first", "stack", "aval"])


def test_the_package_has_it():
    assert jaxrewrite.testing is testing


class Complex(values.Linear):
    """Two arrays, of which infinite parts make NaN where a complex product is infinite."""

    re: Float[Array, "*shape"]
    im: Float[Array, "*shape"]

    def materialise(self):
        return self.re + 1j * self.im

    def map_parts(self, fn):
        return Complex(fn(self.re), fn(self.im))


def test_nan_may_be_in_the_place_of_infinity():
    value = Complex(numbers((2, 3)), 2 * numbers((2, 3)))
    checked = check_value(value, only=["dot_general of an array (NaN and infinity) jit"])
    assert len(checked.checked) == 1


def times(factor):
    @jax.jit
    def multiplied(x):
        return factor * x.sum()

    return multiplied


@functools.partial(jax.jit, static_argnums=0)
def static_first(k, x):
    return k * x.sum()


@functools.partial(jax.jit, static_argnums=1)
def by_position(x, k, /):
    return k * x.sum()


def test_rules_for_functions_of_one_name_and_with_static_arguments_anywhere():
    class Doubled(ArrayValue):
        x: jax.Array
        axes = {"x": "..."}

        def materialise(self):
            return 2 * self.x

    right, wrong = times(2), times(1)
    jaxrewrite.register(right, types=[Doubled])(lambda v: 4 * v.x.sum())
    jaxrewrite.register(wrong, types=[Doubled])(lambda v: 77 * v.x.sum())

    @jaxrewrite.register(static_first, by_position)
    def ninety_nine(v: Doubled, *, k: Literal[2, 3]):
        return 99 * v.x.sum()

    value = Doubled(numbers((2, 3)))
    for failing in ("static_first with k=3", "by_position with k=3"):
        with pytest.raises(AssertionError, match=f"\n  {failing} jit: .*numbers differ"):
            check_value(value, only=[failing])
    check_value(value, only=["multiplied jit"])
    with pytest.raises(AssertionError, match="\n  multiplied, number 2 jit: "):
        check_value(value, only=["multiplied, number 2 jit"])


def wrong(cls, value, **options):
    """What a check says of a value that it finds wrong."""
    with pytest.raises(AssertionError) as error:
        check_value(value, **options)
    assert cls.__name__ in str(error.value)
    return str(error.value)


class Product(ArrayValue):
    x: jax.Array
    factor: jax.Array
    first: int | None = jaxrewrite.field(static=True, default=None)

    def materialise(self):
        array = self.x * self.factor
        return array if self.first is None else array + self.first


def test_rules_that_compare_by_one_of_two_leaves_are_found():
    class By(Product):
        pass

    @jaxrewrite.register("eq", "lt")
    def _(a: By, b: By, *, primitive, **params):
        return primitive.bind(a.x, b.x, **params)

    @jaxrewrite.register("max")
    def _(a: By, b: By):
        return By(jnp.maximum(a.x, b.x), a.factor)

    names = [f"{x} of two (other numbers in leaf 1) jit" for x in ("eq", "lt", "max")]
    told = wrong(By, By(jnp.arange(1.0, 7).reshape(3, 2), jnp.float32(2)), only=names)
    assert all(name in told for name in names)


def test_rules_that_are_wrong_for_what_a_field_may_be_are_found():
    class Of(Product):
        pass

    @jaxrewrite.register("neg")
    def _(v: Of):
        return Of(-v.x, v.factor, v.first)

    value, name = Of(jnp.ones((3, 2)), jnp.float32(2)), "neg (another 'first') jit"
    assert name in wrong(Of, value, only=[name])


def test_rules_that_count_places_by_modulus_are_found():
    class Round(Product):
        pass

    @jaxrewrite.register("dynamic_slice")
    def _(v: Round, *starts: jax.Array, slice_sizes):
        starts = [i % n for i, n in zip(starts, v.shape, strict=True)]
        return Round(jax.lax.dynamic_slice(v.x, starts, slice_sizes), v.factor, v.first)

    @jaxrewrite.register("split")
    def _(v: Round, *, sizes, axis):
        parts = [Round(x, v.factor, v.first) for x in jax.lax.split(v.x, sizes, axis)]
        return parts[::-1] if len({*sizes}) == 1 else parts

    names = ["dynamic_slice out of range jit", "split in halves jit"]
    for length, count in ((3, 1), (4, 2)):
        x = jnp.arange(1.0, 2 * length + 1).reshape(length, 2)
        told = wrong(Round, Round(x, jnp.float32(2)), only=names[:count])
        assert all(name in told for name in names[:count])


def test_a_field_that_says_another_size_than_the_array_is_found():
    class Sized(ArrayValue):
        x: jax.Array
        size: int = jaxrewrite.field(static=True, default=7)

        def materialise(self):
            return self.x

    told = wrong(Sized, Sized(jnp.arange(3.0)), only=["aval"])
    assert "Sized.size is 7 where that of materialise() is 3" in told
    check_value(Sized(jnp.arange(3.0), 3), only=["aval"])

"""`check_rule`, `assert_implicit`, `numbers` and the fixture."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrewrite
from jaxrewrite import ArrayValue, values
from jaxrewrite.testing import assert_implicit, check_pattern, check_rule, numbers
from jaxrewrite.testing.fixtures import never_dense as never_dense


class Doubled(ArrayValue):
    x: jax.Array

    def materialise(self):
        return 2 * self.x


@jaxrewrite.register("neg")
def negative(v: Doubled):
    return Doubled(-v.x)


@jaxrewrite.register("sin", "cos")
def waves(v: Doubled, *, primitive, **params):
    return jaxrewrite.bind(primitive, 2 * v.x, **params)


@jaxrewrite.register("log", precedence=1)
def declining(v: Doubled, **params):
    return NotImplemented


v = Doubled(numbers((3,)))
MODES = ("eager", "jit", "vmap", "jvp", "grad")


def test_a_right_rule_passes():
    assert check_rule(negative, v).checked == ("answers", *MODES)
    assert check_rule("neg", v).checked == MODES
    assert check_rule(jax.lax.neg_p, v, modes=["jit"]).checked == ("jit",)
    assert check_rule("add", v, numbers((3,)), modes=["grad"]).checked == ("grad",)


def test_a_rule_of_several_primitives():
    with pytest.raises(
        ValueError, match="waves is a rule for several primitives: cos, sin"
    ):
        check_rule(waves, v)
    result = check_rule(waves, v, primitive="sin", accuracy=None, modes=["jit"])
    assert result.checked == ("answers", "jit")


def test_what_is_no_rule_no_primitive_or_no_mode():
    with pytest.raises(ValueError, match="<lambda> is not registered as a rule"):
        check_rule(lambda v: v, v)
    with pytest.raises(ValueError, match="negative is not registered as a rule for 'sin'"):
        check_rule(negative, v, primitive="sin")
    with pytest.raises(ValueError, match="JAX has no primitive 'negg'"):
        check_rule("negg", v)
    with pytest.raises(ValueError, match="there is no mode 'fast'"):
        check_rule("neg", v, modes=["fast"])


def test_a_rule_that_does_not_answer():
    with pytest.raises(AssertionError, match=r"answers: .*decision is dense \(it returned"):
        check_rule(declining, v, accuracy=None, modes=["jit"])
    rules = jaxrewrite.Rules()

    @rules.register("neg")
    def preferred(v: Doubled):
        return -2 * v.x

    with pytest.raises(AssertionError, match=r"answers: .*preferred \(.*does"):
        check_rule(negative, v, rules=rules, modes=["jit"])
    with pytest.raises(AssertionError, match="no operand is a value"):
        check_rule(negative, numbers((3,)), modes=["jit"])


def test_a_rule_of_a_table(xla):
    rules = jaxrewrite.Rules()

    @rules.register("exp")
    def wrong(v: Doubled, **params):
        return jnp.exp(v.x)

    check_rule("exp", v, accuracy=None, modes=["jit"])
    with pytest.raises(AssertionError) as caught:
        check_rule(wrong, v, rules=rules, accuracy=None, modes=["eager", "jit"])
    lines = str(caught.value).splitlines()
    assert lines[0] == "exp on (Doubled:f32[3]): 2 of 3 checks failed."
    assert lines[1].startswith(
        "  eager: 3 of 3 numbers differ: 1.284025 at [0] where dense"
    )
    again = (
        "jaxrewrite.testing.check_rule('exp', *operands, accuracy=None, modes=['eager'])"
    )
    assert lines[2] == f"    reproduce: {again}"


def test_a_rule_that_raises_is_a_finding():
    rules = jaxrewrite.Rules()

    @rules.register("neg")
    def raising(v: Doubled):
        raise KeyError("of the rule")

    @rules.rewrite(lambda x: jnp.sin(jnp.cos(x)))
    def raising_too(x):
        raise KeyError("of the pattern")

    with pytest.raises(AssertionError, match=r"answers: KeyError: 'of the rule'"):
        check_rule(raising, v, rules=rules, modes=["jit"])
    with pytest.raises(AssertionError, match=r"KeyError: 'of the pattern'"):
        check_pattern(raising_too, numbers((3,)), rules=rules, modes=["jit"])


def test_parameters_that_may_be_none_need_not_be_given():
    assert check_rule("mul", v, v, modes=["grad"]).checked == ("grad",)
    assert jaxrewrite.which("sin", v).rule.name == "waves"
    x = numbers((3,))
    slope = jax.grad(lambda x: jaxrewrite.bind("mul", x, x).sum())(x)
    np.testing.assert_allclose(slope, 2 * np.asarray(x))


def test_a_mode_that_dense_code_lacks_is_skipped():
    result = check_rule("igamma_grad_a", v, numbers((3,)), modes=["jit", "grad"])
    assert result.checked == ("jit",)
    assert result.skipped == (("grad", "dense code raises NotImplementedError"),)


def test_an_error_of_dense_code_is_the_caller_s():
    with pytest.raises(TypeError, match="population_count"):
        check_rule("population_count", v)


def test_a_tolerance():
    rules = jaxrewrite.Rules()

    @rules.register("neg")
    def rough(v: Doubled):
        return Doubled(-1.01 * v.x)

    check_rule(rough, v, rules=rules, tolerance=0.1, modes=["jit"])
    with pytest.raises(AssertionError, match="numbers differ"):
        check_rule(rough, v, rules=rules, modes=["jit"])


def test_what_stays_implicit_has_a_report():
    report = assert_implicit(
        lambda v, x: -v @ x, values.Diagonal(numbers((3,))), numbers((3,))
    )
    assert [step.decision for step in report.steps] == ["rule", "rule"]


def test_what_becomes_dense_is_told_with_the_rule_that_is_missing():
    with pytest.raises(AssertionError, match="2 values became dense") as caught:
        assert_implicit(lambda v, *, w: (jnp.sort(v), jnp.sort(w)), v, w=v)
    assert '@jaxrewrite.register("sort")' in str(caught.value)


@pytest.mark.parametrize("dtype", ["bool", "int8", "float16", "complex64"])
def test_numbers(dtype):
    x = numbers((2, 4), dtype)
    assert (x.shape, x.dtype) == ((2, 4), dtype)
    assert len({*map(complex, x.ravel())}) > 1


def test_the_fixture(never_dense):
    with pytest.raises(jaxrewrite.MaterialisationError):
        jaxrewrite.transform(jnp.sort)(v)

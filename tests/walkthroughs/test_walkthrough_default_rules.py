"""Quax's tutorial on default rules, walked through: a tag on the backward pass."""

import collections

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jaxtyping import ArrayLike

import jaxrewrite
from jaxrewrite import ArrayValue, Rules, transform


class BackwardTag(ArrayValue):
    """An array that passes its tag on to all that is computed from it."""

    array: ArrayLike

    def aval(self):
        return jax.typeof(self.array)

    def materialise(self):
        raise ValueError("a tag is never taken off")

    @staticmethod
    def default(primitive, values, params):
        bare = []
        for value in values:
            if isinstance(value, BackwardTag):
                bare.append(value.array)
            elif isinstance(value, jaxrewrite.Value):
                raise ValueError("a tag goes with arrays only")
            else:
                bare.append(value)
        out = primitive.bind(*bare, **params)
        return [*map(BackwardTag, out)] if primitive.multiple_results else BackwardTag(out)


class Other(ArrayValue):
    """A value that knows nothing of tags."""

    array: ArrayLike

    def materialise(self):
        return self.array * 1.0


def is_tag(x):
    return isinstance(x, BackwardTag)


def untag(tree):
    return jax.tree.map(lambda x: x.array if is_tag(x) else x, tree, is_leaf=is_tag)


def tagged_value_and_grad(fn, rules=None):
    """`jax.value_and_grad`, of whose backward pass ``rules`` see every operation."""

    def value_and_grad(arg):
        out, pullback = jax.vjp(fn, arg)
        (grad,) = transform(pullback, rules=rules)(BackwardTag(jnp.ones_like(out)))
        assert all(map(is_tag, jax.tree.leaves(grad, is_leaf=is_tag)))
        return out, untag(grad)

    return value_and_grad


def counting_rules(seen):
    """Rules that count by which side of a matmul the tag is on."""
    rules = Rules()

    @rules.register(lax.dot_general_p)
    def _(x: BackwardTag, y: ArrayLike, **params):
        seen["left"] += 1
        return BackwardTag(lax.dot_general_p.bind(x.array, y, **params))

    @rules.register(lax.dot_general_p)
    def _(x: ArrayLike, y: BackwardTag, **params):
        seen["right"] += 1
        return BackwardTag(lax.dot_general_p.bind(x, y.array, **params))

    @rules.register(lax.dot_general_p)
    def _(x: BackwardTag, y: BackwardTag, **params):
        seen["both"] += 1
        return BackwardTag(lax.dot_general_p.bind(x.array, y.array, **params))

    return rules


def count(jaxpr, name):
    found = 0
    for eqn in jaxpr.eqns:
        found += eqn.primitive.name == name
        for param in eqn.params.values():
            inner = getattr(param, "jaxpr", param)
            found += count(inner, name) if hasattr(inner, "eqns") else 0
    return found


@pytest.fixture
def mlp():
    return eqx.nn.MLP(2, "scalar", 32, 3, key=jax.random.key(0))


X = jnp.array([3.0, 4.0])


def test_a_tag_follows_everything_downstream():
    tag = BackwardTag(jnp.arange(3.0))
    out = transform(lambda x: (jnp.sin(x) + 1, jnp.ones(2)))(tag)
    assert is_tag(out[0]) and not is_tag(out[1])
    np.testing.assert_allclose(out[0].array, np.sin(np.arange(3.0)) + 1, rtol=1e-6)
    several = transform(lambda x: lax.top_k(x, 2))(tag)
    assert all(map(is_tag, several))
    np.testing.assert_array_equal(several[0].array, [2.0, 1.0])


def test_a_tag_is_never_made_dense():
    tag = BackwardTag(jnp.ones(3))
    with pytest.raises(jaxrewrite.MaterialisationError, match="never taken off"):
        jaxrewrite.materialise(tag)
    with pytest.raises(jaxrewrite.MaterialisationError, match="never taken off"):
        np.asarray(tag)


def test_an_error_that_a_default_raises_reaches_the_user():
    with pytest.raises(ValueError, match="arrays only") as caught:
        transform(lambda x, y: x * y)(BackwardTag(jnp.ones(3)), Other(jnp.ones(3)))
    assert any("'mul'" in note for note in caught.value.__notes__)


def test_a_python_scalar_can_be_tagged():
    out = transform(lambda x: x * 2)(BackwardTag(1.5))
    assert is_tag(out) and out.shape == ()
    np.testing.assert_allclose(out.array, 3.0)


def test_the_tagged_gradient_is_the_gradient(mlp):
    value, grad = tagged_value_and_grad(mlp)(X)
    expected_value, expected = jax.value_and_grad(mlp)(X)
    np.testing.assert_allclose(value, expected_value, rtol=1e-6)
    np.testing.assert_allclose(grad, expected, rtol=1e-5)
    assert np.abs(expected).max() > 1e-3


def test_rules_see_the_matmuls_of_the_backward_pass_only(mlp):
    seen = collections.Counter()
    value, grad = tagged_value_and_grad(mlp, counting_rules(seen))(X)
    # Four matmuls, of which the two from 32 to 32 have the same structure: a rule
    # is run once for each structure, as a function under `jax.jit` is traced.
    assert seen == {"left": 3}
    np.testing.assert_allclose(grad, jax.grad(mlp)(X), rtol=1e-5)


def test_the_rewritten_backward_pass_has_all_four_matmuls(mlp):
    seen = collections.Counter()
    _, pullback = jax.vjp(mlp, X)
    make = jaxrewrite.make_jaxpr(pullback, rules=counting_rules(seen))
    jaxpr = make(BackwardTag(jnp.ones(())))
    assert seen == {"left": 3}
    assert count(jaxpr.jaxpr, "dot_general") == 4


def test_a_second_call_runs_no_rule(mlp):
    seen = collections.Counter()
    _, pullback = jax.vjp(mlp, X)
    pull = transform(pullback, rules=counting_rules(seen))
    first = untag(pull(BackwardTag(jnp.ones(()))))
    assert sum(seen.values()) == 3
    second = untag(pull(BackwardTag(2 * jnp.ones(()))))
    assert sum(seen.values()) == 3
    np.testing.assert_allclose(second[0], 2 * first[0], rtol=1e-5)


def test_tagged_weights_meet_on_the_right_and_both_sides():
    seen = collections.Counter()
    f = transform(jnp.matmul, rules=counting_rules(seen))
    x, y = jnp.arange(4.0).reshape(2, 2), jnp.eye(2) + 1
    for args in ((x, BackwardTag(y)), (BackwardTag(x), BackwardTag(y))):
        np.testing.assert_allclose(f(*args).array, x @ y)
    assert seen == {"right": 1, "both": 1}


def test_a_rule_may_quantise_on_the_backward_pass_alone(mlp):
    """What such a tag is good for: other arithmetic backward than forward."""
    rules = Rules()

    @rules.register(lax.dot_general_p)
    def _(x: BackwardTag, y: ArrayLike, **params):
        return BackwardTag(
            lax.dot_general_p.bind(jnp.round(x.array * 64) / 64, y, **params)
        )

    value, grad = tagged_value_and_grad(mlp, rules)(X)
    expected_value, expected = jax.value_and_grad(mlp)(X)
    np.testing.assert_allclose(value, expected_value, rtol=1e-6)
    assert 0 < np.abs(grad - expected).max() < 0.1


def test_under_jit(mlp):
    rules = counting_rules(collections.Counter())
    value, grad = jax.jit(tagged_value_and_grad(mlp, rules))(X)
    np.testing.assert_allclose(grad, jax.grad(mlp)(X), rtol=1e-5)

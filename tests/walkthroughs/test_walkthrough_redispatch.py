"""Quax's tutorial on redispatch, walked through: two types that don't know each other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, ArrayLike, Int, Shaped

import jaxrewrite
from jaxrewrite import AmbiguousRuleError, ArrayValue, Rules, field, transform


# --- one author's type ------------------------------------------------------------


class LoraArray(ArrayValue):
    """``w + outer(a, b)``, which must never become dense."""

    w: Shaped[Array, "n m"]
    a: Shaped[Array, " n"]
    b: Shaped[Array, " m"]

    def aval(self):
        return jax.typeof(self.w)

    def materialise(self):
        raise ValueError("a LoraArray stays factored")


def lora_times_vector(w, a, b, y):
    return w @ y + a * jnp.dot(b, y)


def is_matrix_vector(x, y, dimension_numbers):
    return (jnp.ndim(x), jnp.ndim(y), dimension_numbers) == (2, 1, (((1,), (0,)), ((), ())))


@jaxrewrite.register("dot_general")
def lora_rule(x: LoraArray, y: ArrayLike | ArrayValue, *, dimension_numbers, **params):  # noqa: UP007
    if not is_matrix_vector(x, y, dimension_numbers):
        raise NotImplementedError("only matrix-vector products")
    return transform(lora_times_vector)(x.w, x.a, x.b, y)


# --- another author's -------------------------------------------------------------


class SomeKindOfSparseVector(ArrayValue):
    """A vector with one entry that is not zero."""

    index: Int[ArrayLike, ""]
    value: Shaped[ArrayLike, ""]
    length: int = field(static=True)

    def aval(self):
        return jax.ShapeDtypeStruct((self.length,), jnp.result_type(self.value))

    def materialise(self):
        raise ValueError("a sparse vector stays sparse")


def times_sparse(x, y):
    if x.shape[-1] != y.length:
        raise ValueError("lengths differ")
    if x.ndim == 1:
        return x[y.index] * y.value
    if x.ndim == 2:
        return x[:, y.index] * y.value
    raise NotImplementedError("only vectors and matrices")


@jaxrewrite.register("dot_general")
def sparse_rule(x: Array, y: SomeKindOfSparseVector, *, dimension_numbers, **params):
    return times_sparse(x, y)


def greedy_rules():
    """A table in which the sparse vector's rule takes any value for a matrix."""
    rules = Rules()
    rules.register("dot_general")(lora_rule)

    @rules.register("dot_general")
    def greedy(
        x: ArrayLike | ArrayValue, y: SomeKindOfSparseVector, *, dimension_numbers, **params
    ):
        return times_sparse(x, y)

    return rules


# --- what both do -----------------------------------------------------------------

W = jnp.arange(12.0).reshape(3, 4)
A = jnp.array([1.0, -1.0, 2.0])
B = jnp.array([0.5, 1.0, -2.0, 3.0])
DENSE = np.asarray(W + jnp.outer(A, B))


def matmul(x, y):
    return x @ y


def lora():
    return LoraArray(W, A, B)


def sparse():
    return SomeKindOfSparseVector(index=2, value=5, length=4)


def is_lora(x):
    return isinstance(x, LoraArray)


def is_sparse(x):
    return isinstance(x, SomeKindOfSparseVector)


BY_PREDICATE = (is_lora, is_sparse)
BY_POSITION = ((False, (True, False), False), (False, (False, True), False))


def test_a_lora_times_an_array():
    y = jnp.arange(4.0)
    out = transform(matmul)(lora(), y)
    np.testing.assert_allclose(out, DENSE @ y, rtol=1e-6)
    np.testing.assert_allclose(jax.jit(transform(matmul))(lora(), y), DENSE @ y, rtol=1e-6)
    np.testing.assert_allclose(lora() @ y, DENSE @ y, rtol=1e-6)


def test_the_rule_says_what_it_cannot_do():
    with pytest.raises(NotImplementedError, match="matrix-vector") as caught:
        transform(matmul)(lora(), jnp.ones((4, 2)))
    notes = "\n".join(caught.value.__notes__)
    assert "lora_rule" in notes and "dot_general" in notes


@pytest.mark.parametrize(
    ("x", "expected"), [(W, 5 * W[:, 2]), (B, 5 * B[2])], ids=["matrix", "vector"]
)
def test_an_array_times_a_sparse_vector(x, expected):
    out = transform(matmul)(x, SomeKindOfSparseVector(2, 5.0, 4))
    np.testing.assert_allclose(out, expected)


def test_mismatched_lengths_are_jax_own_error():
    with pytest.raises(TypeError):
        transform(matmul)(W, SomeKindOfSparseVector(2, 5.0, 3))


def test_leaves_may_be_python_scalars():
    value = sparse()
    assert (value.shape, value.dtype) == ((4,), jnp.dtype("int32"))
    assert jax.tree.leaves(value) == [2, 5]
    out = transform(matmul)(W, value)
    np.testing.assert_allclose(out, 5 * W[:, 2])
    # Scalars in a value are leaves and not static: the program is the same one.
    np.testing.assert_allclose(
        transform(matmul)(W, SomeKindOfSparseVector(1, 7, 4)), 7 * W[:, 1]
    )


def test_two_types_meet_by_redispatch():
    expected = 5 * DENSE[:, 2]
    np.testing.assert_allclose(transform(matmul)(lora(), sparse()), expected, rtol=1e-6)
    both = jax.jit(transform(matmul, materialise="forbid"))
    np.testing.assert_allclose(both(lora(), sparse()), expected, rtol=1e-6)
    jaxpr = str(jaxrewrite.make_jaxpr(matmul)(lora(), sparse()))
    assert "dot_general" not in jaxpr


def test_gradients_flow_through_both():
    def loss(w, a, b, value):
        v = SomeKindOfSparseVector(jnp.array(2), value, 4)
        return jnp.sum(transform(matmul)(LoraArray(w, a, b), v) ** 2)

    def dense(w, a, b, value):
        v = jnp.zeros(4).at[2].set(value)
        return jnp.sum(((w + jnp.outer(a, b)) @ v) ** 2)

    args = (W, A, B, jnp.array(5.0))
    got = jax.grad(loss, argnums=(0, 1, 2, 3))(*args)
    expected = jax.grad(dense, argnums=(0, 1, 2, 3))(*args)
    for x, y in zip(got, expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)


# --- ambiguity ----------------------------------------------------------------------


def test_two_rules_that_both_admit_the_other_type_are_ambiguous():
    with pytest.raises(AmbiguousRuleError) as caught:
        transform(matmul, rules=greedy_rules())(lora(), sparse())
    message = str(caught.value)
    for part in ("LoraArray", "SomeKindOfSparseVector", "lora_rule", "greedy", __file__):
        assert part in message
    for way_out in ("@jaxrewrite.register", "precedence", "filter_spec"):
        assert way_out in message
    # The ambiguity is of the pair: either type with an array is clear.
    f = transform(matmul, rules=greedy_rules())
    np.testing.assert_allclose(f(lora(), B), DENSE @ B, rtol=1e-6)
    np.testing.assert_allclose(f(W, sparse()), 5 * W[:, 2])


@pytest.mark.parametrize(
    "specs", [BY_PREDICATE, BY_POSITION], ids=["predicate", "position"]
)
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_nested_transforms_say_which_rule_is_first(specs, wrap):
    inner, outer = specs
    rules = greedy_rules()
    f = transform(transform(matmul, inner, rules=rules), outer, rules=rules)
    np.testing.assert_allclose(wrap(f)(lora(), sparse()), 5 * DENSE[:, 2], rtol=1e-6)


@pytest.mark.parametrize(
    "specs", [BY_PREDICATE, BY_POSITION], ids=["predicate", "position"]
)
def test_the_other_order_has_to_index_a_lora(specs):
    outer, inner = specs
    rules = greedy_rules()
    once = transform(matmul, inner, rules=rules, materialise="allow")
    f = transform(once, outer, rules=rules, materialise="allow")
    with pytest.raises(jaxrewrite.MaterialisationError, match="stays factored"):
        f(lora(), sparse())


def test_a_rule_for_the_pair_settles_it():
    rules = greedy_rules()

    @rules.register("dot_general")
    def pair(x: LoraArray, y: SomeKindOfSparseVector, *, dimension_numbers, **params):
        return (x.w[:, y.index] + x.a * x.b[y.index]) * y.value

    out = transform(matmul, rules=rules)(lora(), sparse())
    np.testing.assert_allclose(out, 5 * DENSE[:, 2], rtol=1e-6)


def test_precedence_settles_it():
    rules = greedy_rules()
    rules.register("dot_general", precedence=1)(lora_rule)
    # The redispatch of the rule that comes first meets arrays and a sparse vector.
    out = transform(matmul, rules=rules)(lora(), sparse())
    np.testing.assert_allclose(out, 5 * DENSE[:, 2], rtol=1e-6)

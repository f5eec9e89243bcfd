"""Pytrees of other libraries as results: their classes are made of arrays and values alone."""

import collections
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrewrite
from jaxrewrite import Value, transform
from jaxrewrite.values import Diagonal, Identity, LowRank


@jax.tree_util.register_pytree_node_class
class Strict:
    """A class that takes arrays and values alone, as distributions do that compute with them."""

    def __init__(self, scale):
        if not isinstance(scale, (jax.Array, np.ndarray, Value)):
            raise TypeError(f"{type(scale).__name__} is no array.")
        self.scale = scale

    def tree_flatten(self):
        return (self.scale,), None

    @classmethod
    def tree_unflatten(cls, aux, children):
        if type(children[0]) is object:
            return object.__new__(cls)  # JAX itself does this.
        return cls(*children)


@jax.tree_util.register_pytree_node_class
class Sorting:
    """A class that tells by the types of its attributes which are children."""

    def __init__(self, **attributes):
        vars(self).update(attributes)

    def tree_flatten(self):
        is_child = lambda x: isinstance(x, (jax.Array, Value, Strict))
        children = {k: x for k, x in vars(self).items() if is_child(x)}
        others = {k: x for k, x in vars(self).items() if not is_child(x)}
        return list(children.values()), (tuple(children), tuple(others.items()))

    @classmethod
    def tree_unflatten(cls, aux, children):
        names, others = aux
        return cls(**dict(zip(names, children, strict=True)), **dict(others))


V = LowRank(jnp.ones((4, 1)), jnp.arange(4.0)[None])
X = jnp.arange(4.0)

PROGRAMS = {
    "an array": lambda v: Strict(v @ X),
    "among others": lambda v: {"a": v @ X, "b": [Strict(X @ v), "text", None]},
    "told by types": lambda v: Sorting(loc=v @ X, n=3),
    "one in the other": lambda v: Sorting(inner=Strict(v @ X), scale=v.sum(0)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_classes_that_look_at_their_leaves_are_returned(name):
    program = PROGRAMS[name]
    want = program(V.materialise())
    fn = transform(program)
    results = [fn(V), fn(V)]  # The second call has a program that is kept.
    if name != "among others":  # JAX returns no text.
        results.append(jax.jit(fn)(V))
    for result in results:
        assert jax.tree.structure(result) == jax.tree.structure(want)
        for x, y in zip(jax.tree.leaves(result), jax.tree.leaves(want), strict=True):
            assert x is y if isinstance(y, str) else isinstance(x, jax.Array)
            np.testing.assert_array_equal(x, y)


def test_values_in_them_are_returned():
    program = lambda v, d: (Strict(2 * v), Sorting(matrix=d, made=Diagonal(v @ X)))
    strict, sorting = transform(program)(V, Identity(4))
    assert isinstance(strict.scale, LowRank) and isinstance(sorting.matrix, Identity)
    np.testing.assert_array_equal(sorting.made.materialise(), jnp.diag(V @ X))
    np.testing.assert_array_equal(strict.scale.materialise(), 2 * V.materialise())


def test_those_that_are_passed_through_are_returned():
    given = Sorting(loc=X, name="prior")
    result = transform(lambda v, given: (v @ X, given))(V, given)[1]
    assert result.name == "prior"
    np.testing.assert_array_equal(result.loc, X)


def test_gradients_and_batches_of_programs_that_return_them():
    loss = lambda v: jnp.sum(transform(PROGRAMS["an array"])(v).scale ** 2)
    of_dense = lambda v: jnp.sum(PROGRAMS["an array"](v).scale ** 2)
    by_values = jax.grad(lambda a: loss(LowRank(a, V.b)))(V.a)
    want = jax.grad(lambda a: of_dense(a @ V.b))(V.a)
    np.testing.assert_allclose(by_values, want)
    stack = jax.tree.map(lambda x: jnp.stack([x, 2 * x]), V)
    result = jax.vmap(transform(PROGRAMS["an array"]))(stack).scale
    np.testing.assert_array_equal(result, jnp.stack([V @ X, 4 * (V @ X)]))


def test_explain_and_make_jaxpr_take_them():
    program = PROGRAMS["one in the other"]
    assert "dot_general" in str(jaxrewrite.explain(program)(V))
    jaxpr = jaxrewrite.make_jaxpr(program)(V)
    assert len(jaxpr.out_avals) == 2


def test_objects_that_hide_arrays_are_refused():
    fn = lambda v, x: types.SimpleNamespace(y=v @ x)
    match = "<lambda> returns a SimpleNamespace that holds arrays"
    with pytest.raises(TypeError, match=match):
        transform(fn)(Diagonal(jnp.ones(3)), jnp.ones(3))


def test_an_object_that_can_change_is_one_for_each_caller():
    fn = transform(lambda v: (v @ v, collections.Counter()))
    for _ in range(2):
        _, counts = fn(Diagonal(jnp.ones(3)))
        assert not counts
        counts["n"] = 1


def test_functions_that_hold_arrays_of_a_trace_around_are_results():
    def loss(x):
        y, scaled = transform(lambda v: (v @ jnp.ones(3), lambda y: y * x))(
            Diagonal(jnp.ones(3))
        )
        return scaled(y).sum()

    for x in (1.0, 2.0):
        assert jax.jit(jax.grad(loss))(x) == 3
        assert jax.jit(loss)(x) == 3 * x

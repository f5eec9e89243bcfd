"""Fields that are annotated as arrays and are given lists, which some classes make arrays of."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float, PyTree

import jaxrewrite
from jaxrewrite import values


class Weighted(jaxrewrite.ArrayValue):
    x: Float[Array, " n"]
    parts: list[jax.Array]
    weight: float = 1.0

    def materialise(self):
        return self.weight * self.x


MAKERS = {
    "Weighted: x": lambda: Weighted([1.0, 2.0], []),
    "Diagonal: d": lambda: values.Diagonal([1.0, 2.0]),
    "LowRank: b": lambda: values.LowRank(jnp.ones((2, 1)), b=((1.0, 2.0),)),
    "Toeplitz: row": lambda: values.Toeplitz(jnp.ones(2), [1.0, 2.0]),
    "BlockDiagonal: blocks": lambda: values.BlockDiagonal([jnp.ones((2, 2))] * 2),
    "Interval: lower": lambda: values.Interval([0.0], [1.0]),
    "Unitful: array": lambda: values.Unitful([1.0, 2.0], "m"),
    "Named: array": lambda: values.Named([1.0, 2.0], "a"),
    "Tagged: array": lambda: values.Tagged((1.0, 2.0), "a"),
    "Quantised: w": lambda: values.Quantised.quantise([[1.0, 2.0]]),
}


@pytest.mark.parametrize("name", MAKERS)
def test_a_list_is_refused_by_name(name):
    with pytest.raises(TypeError, match=f"^{name} is a (list|tuple), but must be"):
        MAKERS[name]()


def test_a_class_that_is_not_made_yet_is_asked_for_its_fields():
    class Scaled(jaxrewrite.ArrayValue):
        x: Float[Array, " n"]

        def materialise(self):
            return 2 * self.x

    with pytest.raises(TypeError, match="^Scaled: x is a list, but must be"):
        Scaled([1.0])


def test_other_fields_may_hold_lists_and_numbers():
    v = Weighted(jnp.ones(2), [jnp.ones(1), jnp.ones(3)], 2)
    assert (jaxrewrite.materialise(v) == 2).all()
    assert jax.tree.map(lambda x: [x], v).x == [v.x]


def test_numbers_of_python_are_dense_as_arrays_are():
    scaled = values.Scaled(values.Diagonal(jnp.ones(2)), 2.0)
    assert (scaled.materialise() == 2 * jnp.eye(2)).all()
    assert (values.Constant(3.0, (2,)).materialise() == 3).all()


class Converted(jaxrewrite.ArrayValue):
    x: Float[Array, " n"]

    def __post_init__(self):
        object.__setattr__(self, "x", jnp.asarray(self.x))

    def materialise(self):
        return self.x


class Constructed(jaxrewrite.ArrayValue):
    x: Array

    def __init__(self, x):
        self.x = jnp.asarray(x)

    def materialise(self):
        return self.x


class Inherited(Converted):
    scale: float = 2.0

    def materialise(self):
        return self.scale * self.x


class Diagonal(values.Diagonal):
    def __post_init__(self):
        object.__setattr__(self, "d", jnp.asarray(self.d))
        super().__post_init__()


@pytest.mark.parametrize("cls", [Converted, Constructed, Inherited, Diagonal])
@pytest.mark.parametrize("numbers", [[1.0, 2.0], (1.0, 2.0)])
def test_a_class_may_make_arrays_of_lists(cls, numbers):
    got, want = cls(numbers), cls(jnp.array(numbers))
    assert jaxrewrite.same_structure(got, want)
    np.testing.assert_array_equal(jaxrewrite.materialise(got), jaxrewrite.materialise(want))


class Kept(jaxrewrite.ArrayValue):
    x: Array

    def __init__(self, x):
        self.x = x

    def materialise(self):
        return self.x


def test_a_list_that_a_class_keeps_is_refused():
    with pytest.raises(TypeError, match="^Kept: x is a list, but must be one array"):
        Kept([1.0, 2.0])


def test_a_list_that_a_class_fails_on_is_refused():
    class Checked(jaxrewrite.ArrayValue):
        x: Array

        def __post_init__(self):
            assert self.x.ndim == 1

        def materialise(self):
            return self.x

    with pytest.raises(TypeError, match="^Checked: x is a list, but must be one array"):
        Checked([1.0, 2.0])


class Parts(jaxrewrite.ArrayValue):
    tree: PyTree[Array, " T"]
    pair: tuple[Array, Array]
    either: Array | list[Array]
    shaped: Float[Array, " n"] | list[Float[Array, " n"]]

    def materialise(self):
        return sum(jax.tree.leaves(self))


def test_a_field_that_may_hold_several_arrays_takes_a_list():
    x = jnp.ones(2)
    v = Parts([x], (x, x), [x, x], [x])
    np.testing.assert_array_equal(jaxrewrite.materialise(v), [6.0, 6.0])

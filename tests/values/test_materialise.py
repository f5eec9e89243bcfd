"""Ready types become dense by one program; subclasses of a user may look at their numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrewrite
from jaxrewrite import values


def array(*shape, dtype=np.float32):
    return jnp.asarray(np.random.default_rng(0).normal(size=shape).astype(dtype))


# Values whose shapes no other test has, so that nothing about them is compiled before.
DENSE = {
    "Lora": lambda: values.Lora(array(23, 29), array(23, 2), array(2, 29), 1.5),
    "NMSparse": lambda: values.NMSparse.prune(array(28, 31)),
    "Kronecker": lambda: values.Kronecker((array(3, 29), array(5, 2))),
    "Banded": lambda: values.Banded(array(3, 29), 1, 1),
    "Toeplitz": lambda: values.Toeplitz(array(29), array(31)),
    "FakeQuantised": lambda: values.FakeQuantised(array(29, 31), bits=4),
    "Symmetric": lambda: values.Symmetric(array(29, 29)),
    "Sum": lambda: values.Sum((values.Diagonal(array(29)), array(29, 29))),
    "Batched": lambda: jaxrewrite.stack([values.Diagonal(array(29))] * 2),
}


@pytest.mark.parametrize("name", DENSE)
def test_ready_types_become_dense_by_one_program(name, monkeypatch):
    v = DENSE[name]()
    cls, traced = type(v), []
    original = cls.materialise

    def materialise(self):
        traced.append(any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(self)))
        return original(self)

    monkeypatch.setattr(cls, "materialise", materialise)
    got = jaxrewrite.materialise(v)
    assert traced and all(traced)
    with jax.disable_jit():
        np.testing.assert_allclose(got, jaxrewrite.materialise(v), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, np.float16])
def test_a_fake_quantised_array_is_the_quantised_one(dtype):
    for seed in range(10):
        numbers = np.random.default_rng(seed).normal(size=(64, 48))
        v = values.FakeQuantised(
            jnp.asarray(numbers, dtype), bits=3, block=8, symmetric=False
        )
        got, want = (jaxrewrite.materialise(x) for x in (v, v.quantised()))
        np.testing.assert_array_equal(np.asarray(got), np.asarray(want))


def test_a_type_of_the_user_may_look_at_its_numbers():
    class Signed(jaxrewrite.ArrayValue):
        x: jax.Array

        def aval(self):
            return jax.core.ShapedArray(self.x.shape, self.x.dtype)

        def materialise(self):
            return self.x if self.x[0] > 0 else -self.x

    np.testing.assert_array_equal(jaxrewrite.materialise(Signed(jnp.array([-1.0]))), [1.0])


def test_an_annotated_array_is_not_copied():
    x = jnp.ones(3)
    assert jaxrewrite.materialise(values.Tagged(x, frozenset({"tag"}))) is x


# --- subclasses whose methods look at the numbers, and are not compiled for that ------------


SQUARE = np.arange(1.0, 17.0, dtype=np.float32).reshape(4, 4) / 16


class Signed(values.Matrix):
    x: jax.Array

    def aval(self):
        return jax.core.ShapedArray(self.x.shape, self.x.dtype)

    def materialise(self):
        return self.x if self.x[0, 0] > 0 else -self.x


class Chosen(values.Triangular):
    def materialise(self):
        assert float(self.x[0, 0]) > 0
        return super().materialise()


class Listed(values.Coded):
    codes: jax.Array
    scale: jax.Array

    def levels(self):
        assert int(self.codes.max()) < 16
        return self.codes.astype(self.scale.dtype)

    def scale_of_blocks(self):
        return self.scale


@pytest.mark.parametrize("scale", [None, 2.0])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_matrix_of_the_user_may_look_at_its_numbers(sign, scale):
    v = Signed(jnp.asarray(sign * SQUARE))
    got = v if scale is None else values.Scaled(v, jnp.asarray(scale))
    np.testing.assert_array_equal(jaxrewrite.materialise(got), (scale or 1) * SQUARE)


def test_a_subclass_of_a_ready_type_may_look_at_its_numbers():
    v = Chosen.from_dense(np.tril(SQUARE))
    assert type(v) is Chosen
    np.testing.assert_array_equal(jaxrewrite.materialise(v), np.tril(SQUARE))


def test_a_coded_array_of_the_user_may_look_at_its_codes():
    v = Listed(jnp.arange(4, dtype=jnp.int8), jnp.array([0.5]))
    for dense in (v.materialise(), jaxrewrite.materialise(v)):
        np.testing.assert_array_equal(dense, [0, 0.5, 1, 1.5])


def checked(cls, leaf):
    """A subclass that checks the numbers of a field."""

    def __init__(self, *args, **kwargs):
        super(subclass, self).__init__(*args, **kwargs)
        assert np.isfinite(np.asarray(getattr(self, leaf), np.float32)).all()

    subclass = type(f"Checked{cls.__name__}", (cls,), {"__init__": __init__})
    return subclass


MADE = {
    "Quantised": lambda: checked(values.Quantised, "scale").quantise(SQUARE),
    "NF4": lambda: checked(values.NF4, "scale_mean").quantise(SQUARE, block=4),
    "Float8": lambda: checked(values.Float8, "scale").quantise(SQUARE),
    "Microscaled": lambda: checked(values.Microscaled, "scale").quantise(SQUARE, block=4),
    "NMSparse": lambda: checked(values.NMSparse, "values").prune(SQUARE),
    "Sparse": lambda: checked(values.Sparse, "data").from_dense(SQUARE),
}


@pytest.mark.parametrize("name", MADE)
def test_a_check_of_a_subclass_may_look_at_what_is_made_of_an_array(name):
    v = MADE[name]()
    assert type(v).__name__ == f"Checked{name}"
    np.testing.assert_allclose(jaxrewrite.materialise(v), SQUARE, atol=0.5)

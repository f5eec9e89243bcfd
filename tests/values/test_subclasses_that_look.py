"""Subclasses of ready types whose methods look at the numbers, and are not compiled for that."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrewrite
from jaxrewrite import values


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
    "NMSparse": lambda: checked(values.NMSparse, "values").prune(SQUARE),
    "Sparse": lambda: checked(values.Sparse, "data").from_dense(SQUARE),
}


@pytest.mark.parametrize("name", MADE)
def test_a_check_of_a_subclass_may_look_at_what_is_made_of_an_array(name):
    v = MADE[name]()
    assert type(v).__name__ == f"Checked{name}"
    np.testing.assert_allclose(jaxrewrite.materialise(v), SQUARE, atol=0.5)


@pytest.mark.parametrize("make", [values.Quantised, values.NF4, values.Float8])
def test_a_value_is_quantised_as_its_dense_array(make):
    d = jnp.asarray(SQUARE[0])
    got = make.quantise(values.Diagonal(d), block=2)
    want = make.quantise(jnp.diag(d), block=2)
    np.testing.assert_array_equal(*map(jaxrewrite.materialise, (got, want)))


@pytest.mark.parametrize("format", ["bcoo", "bcsr", "bcsc"])
@pytest.mark.parametrize("nse", [None, 6])
def test_a_sparse_matrix_is_made_of_booleans(format, nse):
    v = values.Sparse.from_dense(np.eye(4, dtype=bool), nse=nse, format=format)
    np.testing.assert_array_equal(jaxrewrite.materialise(v), np.eye(4))

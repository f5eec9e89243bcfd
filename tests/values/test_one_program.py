"""What is done to whole arrays at once, by one program and where the arrays are."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrewrite
from jaxrewrite import values
from jaxrewrite.values._base import structured


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


# How a value is made of an array that has its structure, and a random such array.
SQUARE = np.random.default_rng(1).normal(size=(6, 6))
RING = np.stack([np.roll(SQUARE[0], i) for i in range(6)], 1)
MADE = {
    "Triangular": (values.Triangular.from_dense, np.tril(SQUARE)),
    "Banded": (lambda x: values.Banded.from_dense(x, 1, 0), np.tril(np.triu(SQUARE, -1))),
    "Tridiagonal": (
        values.Tridiagonal.from_dense,
        np.tril(np.triu(SQUARE, -1), 1),
    ),
    "Symmetric": (values.Symmetric.from_dense, SQUARE + SQUARE.T),
    "BlockDiagonal": (
        lambda x: values.BlockDiagonal.from_dense(x, 2),
        np.kron(np.eye(2), SQUARE[:3, :3]),
    ),
    "Toeplitz": (values.Toeplitz.from_dense, RING),
    "Circulant": (values.Circulant.from_dense, RING),
    "NMSparse": (lambda x: values.NMSparse.from_dense(x, 1, 3), np.diag(SQUARE[0])),
    "Permutation": (values.Permutation.from_dense, np.eye(6)[::-1]),
    "OneHot": (values.OneHot.from_dense, np.eye(6)[[1, 1, 3]]),
}


@pytest.mark.parametrize("name", MADE)
def test_numpy_arrays_of_64_bits_have_their_structure_in_32_bits(name):
    make, x = MADE[name]
    got = jaxrewrite.materialise(make(x))
    np.testing.assert_array_equal(np.asarray(got), x.astype(got.dtype))


@pytest.mark.parametrize("as_array", [np.asarray, jnp.asarray], ids=["numpy", "jax"])
@pytest.mark.parametrize("name", ["Triangular", "Banded", "Tridiagonal"])
def test_a_subnormal_number_is_not_zero(name, as_array):
    make, x = MADE[name]
    x = np.array(x, np.float32)
    x[0, 5] = 1e-40
    with pytest.raises(ValueError, match=name):
        make(as_array(x))


@pytest.mark.parametrize("name", MADE)
def test_checks_leave_arrays_on_their_devices(name, monkeypatch):
    make, x = MADE[name]
    x = jnp.asarray(x, jnp.float32)
    monkeypatch.setattr(
        type(x), "__array__", lambda *args, **kwargs: pytest.fail("the array is fetched")
    )
    monkeypatch.setattr(type(x), "__buffer__", None, raising=False)
    monkeypatch.setattr(structured, "is_on_cpu", lambda x: False)
    make(x)


def test_indices_whose_dtype_does_not_hold_the_number_of_classes():
    for indices in (np.array([0, 127], np.int8), jnp.array([0, 127], jnp.int8)):
        assert values.OneHot(indices, 1000).shape == (2, 1000)
        with pytest.raises(ValueError, match="indices"):
            values.OneHot(indices, 127)


def test_weights_are_pruned_by_one_program():
    program = jax.make_jaxpr(lambda w: jax.tree.leaves(values.NMSparse.prune(w)))
    assert len(program(jnp.ones((8, 3))).eqns) == 1


@pytest.mark.parametrize("format", ["bcoo", "bcsr", "bcsc"])
def test_entries_are_gathered_by_one_program(format):
    make = lambda w: values.Sparse.from_dense(w, nse=6, format=format)
    w = jnp.asarray(np.diag(SQUARE[0]), jnp.float32)
    assert len(jax.make_jaxpr(lambda w: jax.tree.leaves(make(w)))(w).eqns) == 1
    for v in (make(w), values.Sparse.from_dense(w, format=format)):
        np.testing.assert_array_equal(jaxrewrite.materialise(v), w)

"""Ready types become dense by one program; subclasses of a user may look at their numbers."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrewrite
from jaxrewrite import _compat, values
from jaxrewrite._staging import at_once


def array(*shape, dtype=np.float32):
    return jnp.asarray(np.random.default_rng(0).normal(size=shape).astype(dtype))


# Values whose shapes no other test has, so that nothing about them is compiled before. The method
# of a `FakeQuantised` is a call of one jitted function, and runs as it is.
DENSE = {
    "Lora": lambda: values.Lora(array(23, 29), array(23, 2), array(2, 29), 1.5),
    "NMSparse": lambda: values.NMSparse.prune(array(28, 31)),
    "Kronecker": lambda: values.Kronecker((array(3, 29), array(5, 2))),
    "Banded": lambda: values.Banded(array(3, 29), 1, 1),
    "Toeplitz": lambda: values.Toeplitz(array(29), array(31)),
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


QUANTISED = values.Quantised.quantise(array(8, 4), axis=-1)
AROUND = {
    "Rescaled": lambda w: values.Rescaled(w, array(1, 4)),
    "Lora": lambda w: values.Lora(w, array(8, 2), array(2, 4), 1.5),
    "Dora": lambda w: values.Dora.of(values.Lora(w, array(8, 2), array(2, 4))),
    "Scaled": lambda w: 2.0 * values.Sum((w, array(8, 4))),
    "Concatenated": lambda w: values.Concatenated((w, w), -2),
}


@pytest.mark.parametrize("name", AROUND)
@pytest.mark.filterwarnings("error")
def test_the_method_of_a_value_around_another_one_makes_it_dense(name):
    got, want = (AROUND[name](w) for w in (QUANTISED, jaxrewrite.materialise(QUANTISED)))
    np.testing.assert_allclose(got.materialise(), jaxrewrite.materialise(want), rtol=1e-5)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, np.float16])
def test_a_fake_quantised_array_is_the_quantised_one(dtype):
    for seed in range(10):
        numbers = np.random.default_rng(seed).normal(size=(64, 48))
        v = values.FakeQuantised(
            jnp.asarray(numbers, dtype), bits=3, block=8, symmetric=False
        )
        got, want = (jaxrewrite.materialise(x) for x in (v, v.quantised()))
        np.testing.assert_array_equal(np.asarray(got), np.asarray(want))


class Filled(jaxrewrite.ArrayValue):
    number: jax.Array

    def materialise(self):
        return jnp.broadcast_to(self.number.reshape(1), (2,))


@pytest.mark.parametrize("number", [2, 2.5, 1j, True])
def test_a_number_of_python_is_an_array_to_materialise(number):
    for value in (Filled(number), values.ScalarMatrix(number, 1)):
        got = jaxrewrite.materialise(value)
        assert (got.shape, got.dtype) == (value.shape, value.dtype)
        np.testing.assert_array_equal(got, jnp.full(value.shape, number))
        around = values.Tagged(value, "tag")
        np.testing.assert_array_equal(jaxrewrite.materialise(around), got)


class Times(jaxrewrite.ArrayValue):
    x: jax.Array
    factor: jax.Array

    def aval(self):
        return jax.core.ShapedArray(self.x.shape, self.x.dtype)

    def materialise(self):
        return self.x * self.factor.astype(self.x.dtype)


def test_a_number_of_python_beside_an_array_is_an_array_to_materialise():
    np.testing.assert_array_equal(jaxrewrite.materialise(Times(X, 2)), 2 * X)


def test_a_type_of_the_user_may_look_at_its_numbers():
    class Signed(jaxrewrite.ArrayValue):
        x: jax.Array

        def aval(self):
            return jax.core.ShapedArray(self.x.shape, self.x.dtype)

        def materialise(self):
            return self.x if self.x[0] > 0 else -self.x

    np.testing.assert_array_equal(jaxrewrite.materialise(Signed(jnp.array([-1.0]))), [1.0])


class Counted(jaxrewrite.ArrayValue):
    """A type that tells with which leaves its method runs."""

    x: jax.Array
    y: jax.Array
    ran = []

    def aval(self):
        return jax.core.ShapedArray(self.x.shape, self.x.dtype)

    def materialise(self):
        self.ran.append("traced" if isinstance(self.x, jax.core.Tracer) else "called")
        return self.dense()

    def dense(self):
        return self.x * self.y + 1


class OneOperation(Counted):
    def dense(self):
        return self.x @ self.y


class OfAField(Counted):
    def dense(self):
        assert self.x.sum() is not None
        return self.x


TABLE = jnp.arange(2.0**15)


class WithATable(Counted):
    def dense(self):
        return self.x * TABLE[:3] + TABLE[1:4]


class WithAnEffect(Counted):
    def dense(self):
        jax.debug.callback(lambda: None)
        return self.x * self.y + 1


class Looking(Counted):
    def dense(self):
        return self.x * self.y + (1 if self.x[0, 0] > 0 else 2)


class Converting(Counted):
    def dense(self):
        return self.x * np.asarray(self.y) + 1


class Wrong(Counted):
    def dense(self):
        return [self.x * self.y + 1, "no array"]


class Failing(Counted):
    def dense(self):
        raise ValueError("no numbers")


X, Y = jnp.asarray(np.arange(1.0, 10.0, dtype=np.float32).reshape(3, 3)), jnp.eye(3) + 1
AT_ONCE = {
    Counted: ["traced"],
    **dict.fromkeys((OneOperation, OfAField, WithATable), ["traced", "called", "called"]),
    **dict.fromkeys((WithAnEffect, Looking, Converting), ["traced", "called", "called"]),
}


@pytest.mark.parametrize("cls", AT_ONCE, ids=lambda cls: cls.__name__)
def test_a_type_of_the_user_is_compiled_where_it_may_and_should_be(cls, monkeypatch):
    jaxrewrite.clear_caches()
    monkeypatch.setattr(Counted, "ran", ran := [])
    v = cls(X, Y)
    got = [jaxrewrite.materialise(v), jaxrewrite.materialise(v)]
    assert ran == AT_ONCE[cls]
    assert (got[0] is X) == (cls is OfAField)
    with jax.disable_jit():
        want = cls(X, Y).dense()
    for dense in got:
        assert (dense.dtype, dense.weak_type) == (want.dtype, want.weak_type)
        np.testing.assert_array_equal(dense, want)


@pytest.mark.parametrize("cls", [Wrong, Failing])
def test_an_error_is_the_one_of_the_call(cls):
    errors = []
    for context in (contextlib.nullcontext(), jax.disable_jit()):
        with pytest.raises(jaxrewrite.MaterialisationError) as caught, context:
            jaxrewrite.materialise(cls(X, Y))
        errors.append(caught.value)
    first, plain = errors
    assert str(first) == str(plain)
    assert first.__context__ is first.__cause__
    assert type(first.__cause__) is type(plain.__cause__)
    assert getattr(first, "__notes__", []) == getattr(plain, "__notes__", [])


INSIDE = {
    "own": lambda v: Counted(v, Y),
    "twice": lambda v: Counted(Counted(v, Y), Y),
    "in itself": lambda v: Looking(v, Y),
    "Scaled": lambda v: values.Scaled(v, jnp.float32(2)),
    "Lora": lambda v: values.Lora(v, jnp.ones((3, 1)), jnp.ones((1, 3))),
}


@pytest.mark.parametrize("name", INSIDE)
def test_what_looks_at_its_numbers_may_be_inside_of_another_value(name):
    dense = Looking(X, Y).dense()
    got, want = (jaxrewrite.materialise(INSIDE[name](v)) for v in (Looking(X, Y), dense))
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_nothing_is_declared_for_that():
    with pytest.raises(
        TypeError, match=r"Old\.compiles_materialise is not used any more: a trace"
    ):

        class Old(jaxrewrite.ArrayValue):
            compiles_materialise = True


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

    def apply(self, x, axis, precision=None):
        return NotImplemented


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


LARGEST, OTHER = np.ones(2**14, "float32"), np.zeros(2**14, "float32")

# Functions of an array of four entries, and whether a program is compiled for them.
WORTH_IT = {
    "two equations": (lambda x: jnp.sin(x) + 1, True),
    "one": (jnp.sin, False),
    "a result that is an operand": (lambda x: (jnp.sin(x) + 1, x), False),
    "a result that is a number": (lambda x: (jnp.sin(x) + 1, 2.0), False),
    "an effect": (lambda x: jax.debug.print("") or jnp.sin(x) + 1, False),
    "a constant": (lambda x: LARGEST * x[0] + 1, True),
    "a large one": (lambda x: np.append(LARGEST, LARGEST[:1]) * x[0] + 1, False),
    "another, within": (lambda x: jax.jit(lambda x: OTHER * x[0])(x) + LARGEST, False),
}


@pytest.mark.parametrize("name", WORTH_IT)
def test_what_is_worth_a_program(name):
    fn, is_worth_it = WORTH_IT[name]
    jaxpr, consts = _compat.open_jaxpr(jax.make_jaxpr(fn)(jnp.ones(4)))
    assert at_once._is_worth_it(jaxpr, consts) == is_worth_it

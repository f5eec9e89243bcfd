"""`jaxrewrite.numpy`: every public function of `jax.numpy`, transformed."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrewrite
import jaxrewrite.numpy as rnp
from jaxrewrite._staging.namespace import transformed_namespace
from jaxrewrite.values import Named, Tagged, Unitful


class Doubled(jaxrewrite.ArrayValue):
    x: jax.Array
    materialise_policy = "allow"

    def materialise(self):
        return self.x * 2


V = Doubled(jnp.arange(6.0).reshape(2, 3) + 1)
DENSE = V.materialise()

NAMESPACES = [(rnp, jnp), (rnp.linalg, jnp.linalg), (rnp.fft, jnp.fft)]


@pytest.mark.parametrize(("ours", "jaxs"), NAMESPACES, ids=lambda m: m.__name__)
def test_every_public_name_is_there(ours, jaxs):
    for name in dir(jaxs):
        if name.startswith("_") or inspect.ismodule(getattr(jaxs, name)):
            continue
        original, found = getattr(jaxs, name), getattr(ours, name)
        computes = inspect.isfunction(inspect.unwrap(original)) or isinstance(
            original, jnp.ufunc
        )
        computes = computes and not original.__module__.startswith("numpy")
        if computes:
            assert found is not original, name
            assert callable(found)
        elif not callable(original) or inspect.isclass(original):
            assert found is original, name
        assert name in dir(ours)


def test_modules_that_are_no_namespaces_of_ours_are_refused():
    """Their functions would take no values."""
    lookup, _ = transformed_namespace(jax, "ours")
    with pytest.raises(AttributeError, match="'ours' has no sub-namespace 'numpy'"):
        lookup("numpy")
    assert lookup("Array") is jax.Array


def test_ufuncs_say_what_those_of_jax_say():
    made = rnp.frompyfunc(lambda x, y: x * y, 2, 1, identity=1)
    for ours, jaxs in ((made, jnp.multiply), (rnp.add, jnp.add)):
        for name in ("nin", "nout", "nargs", "identity"):
            assert getattr(ours, name) == getattr(jaxs, name)


def test_functions_that_take_arrays_out_of_jax_are_those_of_numpy(tmp_path):
    rnp.save(tmp_path / "v.npy", V)
    np.testing.assert_array_equal(rnp.load(tmp_path / "v.npy"), DENSE)
    assert rnp.array_str(V) == np.array_str(DENSE)


CASES = [
    lambda m, v: m.frompyfunc(lambda x, y: x * y + x, 2, 1)(v, v),
    lambda m, v: m.frompyfunc(lambda x, y: x + y, 2, 1).reduce(v),
    lambda m, v: m.add(v, 1.0),
    lambda m, v: m.add.reduce(v),
    lambda m, v: m.add.outer(v, v),
    lambda m, v: m.einsum("ij,kj->ik", v, v),
    lambda m, v: m.concatenate([v, v], axis=1),
    lambda m, v: m.where(v > 3, v, 0.0),
    lambda m, v: m.linalg.norm(v),
    lambda m, v: m.linalg.svd(v, compute_uv=False),
    lambda m, v: m.fft.fft(v).real,
    lambda m, v: m.sum(v, axis=0, keepdims=True),
    lambda m, v: m.sort(v, descending=True),
    lambda m, v: m.arange(3),
    lambda m, v: m.pad(v, ((1, 0), (0, 1))),
    lambda m, v: m.apply_along_axis(lambda row: row * 2, 1, v),
    lambda m, v: m.array(m.shape(v)),
]


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_computes_what_jax_numpy_computes(case):
    np.testing.assert_allclose(case(rnp, V), case(jnp, DENSE), rtol=1e-5, atol=1e-5)


def test_constants_and_dtypes_are_jax_own_objects():
    assert rnp.pi is jnp.pi
    assert rnp.newaxis is None
    assert rnp.float32 is jnp.float32
    assert rnp.ndarray is jnp.ndarray
    assert rnp.issubdtype(rnp.result_type(V), rnp.floating)


def test_a_function_is_built_once():
    assert rnp.tanh is rnp.tanh


def test_unknown_names():
    with pytest.raises(AttributeError, match=r"jaxrewrite\.numpy.*'nonsense'"):
        _ = rnp.nonsense


NUMBERS = np.arange(24.0).reshape(2, 3, 4)
NAMED = Named(jnp.asarray(NUMBERS), ["batch", "time", None])

BY_NAME = [
    (lambda x, i: rnp.sum(x, axis=i), ("batch", 0), ("time", None)),
    (lambda x, i: rnp.mean(x, i), (("batch", "time"), (0, 1)), (None,)),
    (lambda x, i: rnp.argmax(x, axis=i), ("time", 1), ("batch", None)),
    (lambda x, i: rnp.take(x, 1, axis=i), ("time", 1), ("batch", None)),
    (lambda x, i: rnp.concatenate([x, x], axis=i), ("time", 1), ("batch", "time", None)),
    (lambda x, i: rnp.swapaxes(x, i, 2), ("batch", 0), (None, "time", "batch")),
    (lambda x, i: rnp.transpose(x, (2, i, 0)), ("time", 1), (None, "time", "batch")),
    (lambda x, i: rnp.moveaxis(x, i, 2), ("batch", 0), ("time", None, "batch")),
    (lambda x, i: rnp.linalg.norm(x, axis=i), ("time", 1), ("batch", None)),
    (lambda x, i: rnp.fft.rfft(x, axis=i), ("time", 1), ("batch", "time", None)),
]


@pytest.mark.parametrize(("fn", "axis", "names"), BY_NAME, ids=range(len(BY_NAME)))
def test_axes_have_names(fn, axis, names):
    name, number = axis
    found = fn(NAMED, name)
    assert found.names == names
    np.testing.assert_allclose(found, fn(NUMBERS, number), 1e-5, 1e-5)
    np.testing.assert_allclose(jax.jit(fn, static_argnums=1)(NAMED, name), found, 1e-6)


def test_annotations_around_names_let_them_through():
    tagged = rnp.cumsum(Tagged(NAMED, "input"), axis="time")
    np.testing.assert_allclose(tagged, np.cumsum(NUMBERS, 1), 1e-6)
    assert tagged.tags == {"input"}
    length = rnp.sum(Named(Unitful(jnp.ones(3), "m"), ["time"]), axis="time")
    assert float(length / Unitful(1.0, "m")) == 3


def test_names_that_no_argument_has():
    with pytest.raises(ValueError, match="No axis is named 'space'"):
        rnp.sum(NAMED, axis="space")
    # The axes of a value are not those of an array that it is made of.
    for x in (jnp.ones(2), Doubled(NAMED)):
        with pytest.raises(
            TypeError, match="sum: the axis is 'time', and no argument has names"
        ):
            rnp.sum(x, axis="time")


@pytest.mark.parametrize(
    ("index", "positions", "names"),
    [
        ({"time": 1}, np.s_[:, 1], ("batch", None)),
        ({"time": slice(1, 3), "batch": 0}, np.s_[0, 1:3], ("time", None)),
        ({"batch": jnp.array([1, 0])}, np.s_[[1, 0]], None),
        ({}, np.s_[:], ("batch", "time", None)),
    ],
)
def test_indices_have_names(index, positions, names):
    found = NAMED[index]
    np.testing.assert_array_equal(found, NUMBERS[positions])
    assert names is None or found.names == names

"""`jaxrewrite.numpy`: every public function of `jax.numpy`, transformed."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrewrite
import jaxrewrite.numpy as rnp
from jaxrewrite._staging.namespace import transformed_namespace


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


CASES = [
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

"""Which programs of the tests NumPy runs, and which of them JAX lowers."""

import jax
import jax.numpy as jnp
import numpy as np
import numpy_backend
import pytest
from jax._src import compiler  # JAX has no public hook for what it compiles


@pytest.fixture
def seen(request, monkeypatch):
    """The programs that are lowered for NumPy, and those that are compiled."""
    if request.config.getoption("--xla"):
        pytest.skip("XLA runs everything")
    found = {"lowered": [], "compiled": []}
    lower, compile_ = numpy_backend._lower, compiler.compile_or_get_cached

    def lowering(args, jaxpr, params):
        found["lowered"].append(params["name"])
        lower(args, jaxpr, params)

    def compiling(*args, **kwargs):
        found["compiled"].append(args)
        return compile_(*args, **kwargs)

    monkeypatch.setattr(numpy_backend, "_lowered", set())
    monkeypatch.setattr(numpy_backend, "_lower", lowering)
    monkeypatch.setattr(compiler, "compile_or_get_cached", compiling)
    return found


def test_equations_of_each_sort_are_lowered_once(seen):
    def program(x):
        return jax.lax.scan(lambda c, y: (jnp.sin(c) * y, None), x[0], x)[0]

    one, other = np.ones((3, 2), "float32"), np.ones((4, 5), "float32")
    for x in (one, other, one.astype("float16"), other.astype("float16")):
        jax.jit(lambda x: program(x))(x)
    assert len(seen["lowered"]) == 2 and not seen["compiled"]
    jax.jit(lambda x: program(jnp.cos(x)))(one)
    assert len(seen["lowered"]) == 3


def test_what_jax_runs_by_itself_is_within_programs_of_numpy(seen):
    x = jnp.asarray([[2, 1], [1, 3]], "float32")
    got = jax.jit(lambda x: jnp.linalg.eigh(x)[0].sum() + jnp.trace(jnp.linalg.inv(x)))(x)
    np.testing.assert_allclose(got, 6, 1e-5)
    assert len(seen["lowered"]) == 1
    before = len(seen["compiled"])
    jax.jit(lambda x: jnp.linalg.eigh(x)[0] * 2)(x)
    assert len(seen["compiled"]) == before <= 1


def test_threads_leave_numpy_in_charge(seen):
    """Each turns it off for the operations that XLA runs, and on again, in any order."""
    first, second = numpy_backend.compiled(), numpy_backend.compiled()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    jax.jit(lambda x: jnp.sin(x) + x)(np.ones(3, "float32"))
    assert seen["lowered"] and not seen["compiled"]


def of_keys(key):
    a, b = jax.random.split(key)
    several = jax.random.split(jax.random.fold_in(a, 7), (2, 3))
    bits = [jax.random.bits(b, (5,), f"uint{n}") for n in (8, 16, 32, 64)]
    return [
        *(jax.random.key_data(several), jax.random.key_data(several[1, 0]), *bits),
        *(jax.random.uniform(a), jax.random.normal(b, (2, 3), "bfloat16")),
        *(jax.random.randint(a, (7,), 0, 50), jax.random.permutation(b, 8)),
        jax.vmap(lambda k: jax.random.bernoulli(k, 0.3, (4,)))(several[:, 0]),
        *(jax.random.key_data(jax.random.key(-3)), jax.random.PRNGKey(2**40 + 5)),
    ]


def test_random_numbers_are_those_of_jax(seen, no_leak_checks):
    with jax.enable_x64(True):
        key = jax.random.key(42)
        got = [*of_keys(key), *jax.jit(lambda key: of_keys(key))(key)]
        assert not seen["compiled"]
        with numpy_backend.compiled():
            want = jax.jit(of_keys)(key)
    for g, w in zip(got, [*want, *want], strict=True):
        assert g.dtype == w.dtype
        np.testing.assert_array_equal(np.asarray(g), w)


def test_keys_of_other_generators_are_left_to_xla(seen):
    jax.random.uniform(jax.random.key(0, impl="rbg"))
    assert seen["compiled"]

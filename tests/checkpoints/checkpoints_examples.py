"""The values that are stored: one of each ready type, and leaves of each kind."""

import jax
import jax.numpy as jnp
import numpy as np
from reference import CASES

import jaxrewrite
from jaxrewrite import values


def on_device(numbers, dtype=np.float32):
    """An array of JAX, for which nothing is compiled."""
    return jnp.asarray(np.asarray(numbers).astype(dtype))


def int8(n, m):
    """Eight-bit weights, one scale a column."""
    numbers = on_device(np.arange(n * m).reshape(n, m) % 100, np.int8)
    return values.Quantised(numbers, on_device(np.ones((1, m))))


def nf4(n, m):
    codes = on_device(np.arange(n * m).reshape(n, m) % 16, jnp.uint4)
    parts = (on_device(np.full((1, m), x)) for x in (0.5, 0.25))
    return values.NF4(codes, on_device(np.ones((1, m)), np.int8), *parts)


def few():
    """What libraries have difficulties with: four bits, and no entries."""
    codes = on_device(np.arange(12).reshape(4, 3) - 6, jnp.int4)
    return {
        "nf4": nf4(4, 3),
        "int4": values.Quantised(codes, on_device(np.ones((1, 3)))),
        "identity": values.Identity(4),
        "lora": values.Lora(
            nf4(4, 3), on_device(np.ones((4, 1))), on_device(np.ones((1, 3))), 0.5
        ),
    }


def special():
    """Types of no single matrix, nested values, and leaves of seldom dtypes."""
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    threefry = on_device([1, 2], np.uint32)
    return {
        **few(),
        "unitful": values.Unitful(on_device(x), "kg m"),
        "masked": values.Masked(on_device(x), x > 2),
        "interval": values.Interval(x, x + 1),
        "threefry": values.Threefry(threefry),
        "stack": jaxrewrite.Batched(values.Diagonal(on_device(x)), 2),
        "odd int4": on_device([[-8, 7, 3], [0, -1, 5]], jnp.int4),
        "int4 scalar": on_device(-3, jnp.int4),
        "uint2": on_device([3, 0, 1, 2, 3], jnp.uint2),
        "float8": on_device([1.5, -2, np.nan, np.inf], jnp.float8_e5m2),
        "float8 scalar": on_device(1.5, jnp.float8_e4m3fn),
        "float4": on_device([[0.5, -6, 3]], jnp.float4_e2m1fn),
        "bfloat16": on_device([1.5, np.inf], jnp.bfloat16),
        "bfloat16 numpy": np.array([1.5, 2], jnp.bfloat16),
        "complex": on_device([1 + 2j, np.inf + 0j], np.complex64),
        "complex numpy": np.array([[1 + 2j, complex(0, np.inf)]]),
        "double": np.array([1e-300]),
        "numpy scalar": np.float16(1.5),
        "empty": on_device(np.zeros((0, 3)), jnp.int4),
        "empty numpy": np.zeros((2, 0), np.int16),
        "key": jax.random.wrap_key_data(threefry),
        "keys": jax.random.wrap_key_data(on_device(np.ones((2, 4)), np.uint32), impl="rbg"),
        "numbers": [True, 2**40, -0.0, 1 - 2j],
        "scalar": on_device(2.5),
    }


def ready(dtype="float32"):
    rng = np.random.default_rng(0)
    cases = {name: case for name, case in CASES.items() if dtype in case.dtypes}
    return {name: case.value(rng, dtype, (4, 4)) for name, case in cases.items()}


def abstract(tree):
    """The pytree without arrays of JAX, as `jax.eval_shape` gives it."""
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype) if isinstance(x, jax.Array) else x,
        tree,
    )


def bits(x):
    """What tells all bits of a leaf, and its kind."""
    kind = "jax" if isinstance(x, jax.Array) else type(x).__name__
    if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return kind, str(x.dtype), x.shape, np.asarray(jax.random.key_data(x)).tobytes()
    array = np.asarray(x)
    return kind, str(array.dtype), array.shape, array.tobytes()


def same(got, want, kinds=True):
    """Whether two pytrees agree to the bit, also in the types of leaves if ``kinds``."""
    assert jax.tree.structure(got) == jax.tree.structure(want)
    paths = [
        jax.tree_util.keystr(p) for p, _ in jax.tree_util.tree_flatten_with_path(want)[0]
    ]
    for path, x, y in zip(paths, jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert bits(x)[1 - kinds :] == bits(y)[1 - kinds :], (path, x, y)

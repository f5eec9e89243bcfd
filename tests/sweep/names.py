"""What the source of a program may use; `HEADER` is what it starts with where it is pasted."""

HEADER = '''\
import jax, jax.numpy as jnp, numpy as np, jaxrewrite
from jax import lax
from jaxrewrite.values import *
from jaxrewrite.values import Sparse

def u(seed, *shape, dtype="float32", low=0.25, high=1.0, signed=True):
    """Random numbers, three in ten of them negative."""
    rng, dtype = np.random.default_rng(seed), jnp.dtype(dtype)
    if dtype == bool:
        return jnp.asarray(rng.integers(2, size=shape), bool)
    if jnp.issubdtype(dtype, jnp.integer):
        return jnp.asarray(rng.integers(-3, 5, size=shape), dtype)
    x = rng.uniform(low, high, shape)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        x = x + 1j * rng.uniform(low, high, shape)
    return jnp.asarray(np.where(signed & (rng.random(shape) < 0.3), -x, x), dtype)

def idx(seed, limit, *shape):
    return jnp.asarray(np.random.default_rng(seed).integers(limit, size=shape), "int32")

def mask(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).random(shape) < 0.6)

def order(seed, n):
    return jnp.asarray(np.random.default_rng(seed).permutation(n), "int32")

def spoilt(x, number):
    """With one entry that is not finite."""
    return x.at[(x.shape[0] // 2,) + (0,) * (x.ndim - 1)].set(number)

def plus_eye(x, times=4):
    return x + times * jnp.eye(x.shape[-1], dtype=x.dtype)

def spd(x):
    return plus_eye(x @ jnp.conj(jnp.swapaxes(x, -1, -2)), 1)

def some(seed, *shape, dtype="float32"):
    kept = np.random.default_rng(seed).permutation(np.arange(np.prod(shape)) % 5 < 3)
    return u(seed, *shape, dtype=dtype) * jnp.asarray(kept.reshape(shape), dtype)
'''

NAMES: dict = {}
exec(HEADER.replace("from jaxrewrite.values import *", ""), NAMES)

import jaxrewrite.values  # noqa: E402


NAMES |= {
    name: getattr(jaxrewrite.values, name)
    for name in dir(jaxrewrite.values)
    if not name.startswith("_")
}

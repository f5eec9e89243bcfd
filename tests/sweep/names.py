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

def gguf(seed, kind, dtype, *shape):
    """Codes of four to eight bits, each block with scales of about that many parts of one."""
    rng, (k, size, *halves) = np.random.default_rng(seed), {
        "Q8_0": (32, 34, 0), "Q4_1": (32, 20, 0, 2), "Q5_0": (32, 22, 0),
        "Q4_K": (256, 144, 0, 2), "Q6_K": (256, 210, 208)}[kind]
    blocks = rng.integers(0, 256, (*shape[:-1], -(-shape[-1] // k), size), np.uint8)
    for at in halves:
        part = rng.uniform(0.5, 1, blocks.shape[:-1]) / {"Q8_0": 128, "Q4_K": 2**9, "Q6_K": 2**12}.get(kind, 16)
        blocks[..., at:at + 2] = part.astype(np.float16)[..., None].view(np.uint8)
    v = GGUF.from_bytes(blocks.reshape(*blocks.shape[:-2], -1), kind, dtype)
    return jaxrewrite.transform(lambda v: v[..., :shape[-1]])(v)

def at_ends(x):
    """Near the largest and the least numbers of a dtype."""
    a, limits = np.asarray(x), (jnp.finfo if jnp.issubdtype(x.dtype, jnp.floating) else jnp.iinfo)(x.dtype)
    high = float(limits.max) * 0.9 if a.dtype.kind not in "iu" else int(limits.max) - 2
    low = -high if a.dtype.kind not in "iu" else int(limits.min) + 2
    return jnp.asarray(np.where(a > 0.6, high, np.where(a < 0.4, low, a)), x.dtype)

def batched(values):
    """Values of one structure as a `Batched`, also where their type has stacks of its own."""
    return jaxrewrite.Batched(jax.tree.map(lambda *xs: jnp.stack(xs), *values), len(values))

def around(x, radius):
    """Bounds that far from the numbers, as far as the dtype goes."""
    a, limits = np.asarray(x, np.float64), (jnp.finfo if jnp.issubdtype(x.dtype, jnp.floating) else jnp.iinfo)(x.dtype)
    ends = np.clip([a - radius, a + radius], float(limits.min), float(limits.max))
    return [jnp.asarray(end, x.dtype) for end in ends]

def backward(fn, rule):
    """A function of arrays with a backward rule, of the cotangent and the operands."""
    f = jax.custom_vjp(fn)
    def bwd(xs, g):
        cts = rule(g, *xs)
        return cts if isinstance(cts, tuple) else (cts,)
    f.defvjp(lambda *xs: (fn(*xs), xs), bwd)
    return f

def forward(fn, rule):
    """A function of arrays with a tangent rule, of the tangents and the operands."""
    f = jax.custom_jvp(fn)
    f.defjvp(lambda xs, ts: (fn(*xs), rule(*ts, *xs)))
    return f
'''

NAMES: dict = {}
exec(HEADER.replace("from jaxrewrite.values import *", ""), NAMES)

import jaxrewrite.values  # noqa: E402

from . import strangers  # noqa: E402


NAMES |= {
    name: getattr(jaxrewrite.values, name)
    for name in dir(jaxrewrite.values)
    if not name.startswith("_")
}
NAMES |= strangers.TYPES

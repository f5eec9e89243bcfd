"""One leaf of a pytree as an array of a dtype that every library stores, and back.

Integers and floating numbers of less than eight bits are packed into bytes along the last
axis, those of eight bits become bytes, complex numbers become pairs, and random keys their
numbers. An array without entries is not stored, since some libraries refuse it.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxrewrite import Value


PLAIN = {
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64"),
}

COMPLEX = ("complex64", "complex128")

NUMBERS = (bool, int, float, complex)


def is_value(x: Any) -> bool:
    return isinstance(x, Value)


def is_array(leaf: Any) -> bool:
    """Whether a leaf has numbers to store. Functions, strings and the like have none."""
    return isinstance(
        leaf, (jax.Array, np.ndarray, np.generic, jax.ShapeDtypeStruct, *NUMBERS)
    )


def described(leaf: Any) -> str:
    """The dtype and shape of a leaf, such as ``uint4[64,4]``."""
    if isinstance(leaf, NUMBERS) and not isinstance(leaf, np.generic):
        return type(leaf).__name__
    return f"{leaf.dtype.name}[{','.join(map(str, leaf.shape))}]"


def is_stored(leaf: Any) -> bool:
    return np.size(leaf) > 0


def form(leaf: Any) -> jax.ShapeDtypeStruct:
    """The shape and dtype of the array to store for a leaf."""
    array = leaf if hasattr(leaf, "dtype") else np.asarray(leaf)
    shape, dtype = array.shape, array.dtype
    if jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):
        return jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(shape, dtype))
    if dtype.name in COMPLEX:
        shape, dtype = (*shape, 2), jnp.finfo(dtype).dtype
    elif dtype.name not in PLAIN:
        each = 8 // _bits(dtype)
        *rows, n = shape or (1,)
        shape, dtype = shape if each == 1 else (*rows, -(-n // each)), np.uint8
    return jax.ShapeDtypeStruct(shape, _native(dtype))


def stored(leaf: Any) -> Any:
    """The array to store for a leaf that has entries.

    A NumPy array for what is in NumPy, and an array of JAX else.
    """
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf if leaf.dtype.name in PLAIN else form(leaf)
    if not isinstance(leaf, jax.Array):
        array = np.asarray(leaf)
        if array.dtype == object:
            raise ValueError(f"the number {leaf} does not fit 64 bits")
        array = array.astype(_native(array.dtype), copy=False)
        # Libraries store this dtype for arrays of JAX alone.
        if array.dtype == jnp.bfloat16:
            return jnp.asarray(array)
        return _to_plain(np, array)
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.key_data(leaf)
    if leaf.dtype.name in PLAIN:
        return leaf
    if isinstance(leaf, jax.core.Tracer):
        return _to_plain(jnp, leaf)
    if len(leaf.sharding.device_set) > 1:
        return jax.jit(lambda x: _to_plain(jnp, x))(leaf)
    # NumPy compiles nothing, and there may be thousands of leaves.
    return jax.device_put(_to_plain(np, np.asarray(leaf)), leaf.sharding)


def restored(array: Any, like: Any) -> Any:
    """The leaf of which `stored` made an array; ``like`` is one of its dtype and shape.

    A leaf of several devices gets the sharding of ``like``.
    """
    if isinstance(like, np.generic):
        return _from_plain(np, np.asarray(array), like)[()]
    if isinstance(like, NUMBERS):
        return type(like)(_from_plain(np, np.asarray(array), np.asarray(like)).item())
    if isinstance(like, np.ndarray):
        native = like.astype(_native(like.dtype), copy=False)
        return np.array(_from_plain(np, np.asarray(array), native), like.dtype)
    if jax.dtypes.issubdtype(like.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(jnp.asarray(array), impl=_key_impl(like))
    sharding = getattr(like, "sharding", None)
    several = sharding is not None and len(sharding.device_set) > 1
    if isinstance(array, jax.Array) and len(array.sharding.device_set) > 1:
        leaf = jax.jit(lambda x: _from_plain(jnp, x, like))(array)
    elif like.dtype.name in PLAIN:
        leaf = array
    else:
        leaf = _from_plain(np, np.asarray(array), like)
    leaf = jax.device_put(leaf, sharding if several else None)
    if leaf.dtype != like.dtype:
        raise ValueError(f"{like.dtype} needs 64-bit numbers of JAX, `jax_enable_x64`")
    return leaf


def empty(like: Any) -> Any:
    """An array without entries, as one is."""
    if isinstance(like, np.ndarray):
        return np.zeros(like.shape, like.dtype)
    if jax.dtypes.issubdtype(like.dtype, jax.dtypes.prng_key):
        keys = jax.random.key(0, impl=_key_impl(like))
        return jnp.broadcast_to(keys, like.shape)
    return jnp.zeros(like.shape, like.dtype)


def _key_impl(like: Any) -> Any:
    """The implementation of random keys, which JAX tells for arrays and tracers alone."""
    implementations = []
    jax.eval_shape(lambda key: implementations.append(jax.random.key_impl(key)), like)
    return implementations[0]


def _to_plain(xp: ModuleType, x: Any) -> Any:
    dtype = x.dtype
    if dtype.name in PLAIN:
        return x
    if dtype.name in COMPLEX:
        return xp.stack([x.real, x.imag], -1)
    bits = _bits(dtype)
    if jnp.issubdtype(dtype, jnp.integer):
        codes = (x.astype(np.int8) & np.int8(2**bits - 1)).astype(np.uint8)
    elif xp is np:
        codes = x.view(np.uint8)
    else:
        codes = lax.bitcast_convert_type(x, f"uint{bits}").astype(np.uint8)
    return codes if bits == 8 else _packed(xp, codes, bits)


def _from_plain(xp: ModuleType, x: Any, like: Any) -> Any:
    dtype = like.dtype
    if dtype.name in PLAIN:
        return x
    if dtype.name in COMPLEX:
        if xp is np:
            return np.asarray(x, order="C").view(dtype)[..., 0]
        return lax.complex(x[..., 0], x[..., 1])
    bits = _bits(dtype)
    codes = x if bits == 8 else _unpacked(xp, x, bits, like.shape)
    if jnp.issubdtype(dtype, jnp.integer):
        if jnp.issubdtype(dtype, jnp.signedinteger):
            half = np.uint8(2 ** (bits - 1))
            codes = (codes ^ half).astype(np.int8) - np.int8(half)
        return codes.astype(dtype)
    if xp is np:
        return codes.view(dtype)
    return lax.bitcast_convert_type(codes.astype(f"uint{bits}"), dtype)


def _native(dtype: Any) -> np.dtype:
    """The dtype in the byte order of this machine, in which all is stored."""
    return np.dtype(dtype).newbyteorder("=")


def _bits(dtype: Any) -> int:
    """The bits of a number of which one, two, four or eight fill a byte.

    Raises
    ------
    ValueError
        If it has others, or is not a number.
    """
    for kind, about in ((jnp.integer, jnp.iinfo), (jnp.floating, jnp.finfo)):
        if jnp.issubdtype(dtype, kind) and about(dtype).bits in (1, 2, 4, 8):
            return about(dtype).bits
    raise ValueError(f"arrays of dtype {dtype} can't be stored")


def _packed(xp: ModuleType, codes: Any, bits: int) -> Any:
    """Codes of few bits in bytes along the last axis, the first code in the low bits."""
    each = 8 // bits
    codes = codes.reshape(codes.shape or (1,))
    *rows, n = codes.shape
    codes = xp.pad(codes, [(0, 0)] * len(rows) + [(0, -n % each)])
    parts = codes.reshape(*rows, -(-n // each), each)
    return (parts << _shifts(bits)).sum(-1, dtype=np.uint8)


def _unpacked(xp: ModuleType, x: Any, bits: int, shape: tuple[int, ...]) -> Any:
    parts = (x[..., None] >> _shifts(bits)) & np.uint8(2**bits - 1)
    *rows, n = shape or (1,)
    return parts.reshape(*rows, parts.shape[-1] * parts.shape[-2])[..., :n].reshape(shape)


def _shifts(bits: int) -> np.ndarray:
    return np.arange(0, 8, bits, dtype=np.uint8)


def as_array(stored: np.ndarray, name: str) -> jax.Array:
    """A tensor of a file as an array of JAX; `ValueError` for integers that it would cut to 32 bits."""
    array = jnp.asarray(stored)
    if jnp.issubdtype(stored.dtype, jnp.integer) and not np.array_equal(array, stored):
        raise ValueError(
            f"{name!r} has numbers of {stored.dtype} that do not fit {array.dtype}. Load it with "
            "jax.config.update('jax_enable_x64', True)."
        )
    return array

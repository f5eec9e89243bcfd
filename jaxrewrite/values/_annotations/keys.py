"""`Threefry`: keys of random numbers, held as integers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, UInt32

import jaxrewrite

from .._base.structured import Structured
from .declaration import mapped


_IMPL = "threefry2x32"


class Threefry(Structured):
    """A typed key, or an array of keys, held as raw ``uint32`` numbers.

    It goes wherever `jax.random` takes a key and gives the same random numbers. ``split``
    and ``fold_in`` return a `Threefry`. Its leaf is an ordinary array of integers. So tools
    that do not know the dtypes of typed keys can save it, shard it, send it to a device,
    serialise it with `jax.export` or keep it with the weights.

    The generator is JAX's, the Threefry-2x32 of Salmon et al., "Parallel random numbers: as
    easy as 1, 2, 3" (2011).

    Parameters
    ----------
    data
        ``uint32`` of shape ``(..., 2)``, as `jax.random.key_data` gives it. The value has
        the shape ``...`` and the dtype of `jax.random.key`.

    Raises
    ------
    ValueError
        If ``data`` has another dtype, or its last axis has not length 2.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, jaxrewrite
    >>> from jaxrewrite.values import Threefry
    >>> def program(key):
    ...     first, second = jax.random.split(key)
    ...     return jax.random.uniform(first), second
    >>> jaxrewrite.transform(program)(Threefry.seed(0))
    (Array(0.842, dtype=float32), Threefry<key<fry>[], 8 B>(data=u32[2]))
    """

    axes = {"self": "...", "data": "... 2"}

    data: UInt32[Array, "*shape 2"]

    def __post_init__(self) -> None:
        shape, dtype = jnp.shape(self.data), jnp.result_type(self.data)
        if dtype != jnp.uint32 or shape[-1:] != (2,):
            raise ValueError(
                "Threefry: data must have dtype uint32 and a shape that ends in 2, as "
                f"jax.random.key_data gives it; got {dtype}{list(shape)}."
            )

    @classmethod
    def seed(cls, seed: Any) -> Threefry:
        """Return ``jax.random.key(seed)`` as a `Threefry`."""
        return cls.of(jax.random.key(seed, impl=_IMPL))

    @classmethod
    def of(cls, key: Any) -> Threefry:
        """Return a typed key as its numbers; `ValueError` if its generator is another one."""
        if not _is_key(key):
            raise ValueError("Threefry: key must be a jax.random.key of threefry2x32.")
        return cls(jax.random.key_data(key))

    def aval(self) -> Any:
        """The shape of the data without its last axis, and the dtype of typed keys."""
        return jax.core.ShapedArray(jnp.shape(self.data)[:-1], _key_dtype())

    def materialise(self) -> Any:
        """Return JAX's own typed key."""
        return jax.random.wrap_key_data(self.data, impl=_IMPL)

    @staticmethod
    def default(primitive: Any, values: Sequence[Any], params: dict[str, Any]) -> Any:
        """Apply any primitive to typed keys; keys among the results become `Threefry`."""
        keys = [x.materialise() if isinstance(x, Threefry) else x for x in values]
        results = jaxrewrite.bind(primitive, *keys, **params)
        return mapped(lambda x: Threefry.of(x) if _is_key(x) else x, primitive, results)

    def join(self, other: Any) -> Any:
        """Hold both keys as numbers."""
        return self, other if isinstance(other, Threefry) else Threefry.of(other)


def _key_dtype() -> Any:
    return jax.eval_shape(lambda: jax.random.key(0, impl=_IMPL)).dtype


def _is_key(x: Any) -> bool:
    return x.dtype == _key_dtype()

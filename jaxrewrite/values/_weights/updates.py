"""`quantised_updates`: rules by which what a program writes into a quantised array is quantised."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import ArrayLike

import jaxrewrite

from .._base.gathers import axes_written
from .blocks import grids
from .coded import Coded, finest


quantised_updates: jaxrewrite.Rules = jaxrewrite.Rules()
"""Rules for quantised arrays that a program writes into, such as a cache of keys and values.

Without these rules, ``v.at[i].set(x)`` is the dense array with ``x`` in it, as the policy
``materialise=`` allows. With ``transform(fn, rules=quantised_updates)``, ``x`` is quantised as
`Quantised.quantise` or `Float8.quantise` would do it, in the blocks, the bits and the format of
``v``, and written into ``v``, which stays what it is. What is not written stays the same to the
bit. The error of what is written has the bound of ``quantise``. These operations are such writes:

* ``v.at[...].set(x)`` and `jax.lax.scatter`, also for several indices, of which the last one that
  names a place has it;
* `jax.lax.dynamic_update_slice`, and what JAX makes of both under `jax.vmap`.

Each block has to be written as a whole or not at all, for all indices: an axis of which a program
writes a part has a scale for each index. Everything else, also ``v.at[i].add(x)``, is what it is
without these rules. Rounding has no derivative. To differentiate with respect to what ``x`` is
computed from is a `TypeError`.

Examples
--------
>>> import jax.numpy as jnp, jaxrewrite
>>> from jaxrewrite.values import Quantised, quantised_updates
>>> cache = Quantised(jnp.zeros((4, 2), jnp.int8), jnp.ones((4, 1)))  # a scale for each row
>>> write = lambda cache, i, row: cache.at[i].set(row)
>>> write = jaxrewrite.transform(write, rules=quantised_updates, materialise="forbid")
>>> write(cache, 2, jnp.array([127.0, -3.2]))
Quantised([[  0.   0.]
           [  0.   0.]
           [127.  -3.]
           [  0.   0.]], dtype=float32)
"""


@quantised_updates.register("dynamic_update_slice")
def _(v: Coded, x: ArrayLike, *starts: ArrayLike, primitive, **params) -> Any:
    part = _encoded(v, x, range(v.ndim))
    if part is NotImplemented:
        return NotImplemented
    return jaxrewrite.bind(primitive, v, part, *starts, **params)


@quantised_updates.register("scatter")
def _(v: Coded, indices: ArrayLike, x: ArrayLike, *, primitive, **params) -> Any:
    along = axes_written(v.ndim, jnp.ndim(x), params["dimension_numbers"])
    part = _encoded(v, x, along) if params["update_jaxpr"] is None else NotImplemented
    if part is NotImplemented:
        return NotImplemented
    return jaxrewrite.bind(primitive, v, indices, part, **params)


def _encoded(v: Coded, x: Any, along: Sequence[int | None]) -> Any:
    """An array in the format of ``v``, and in its blocks along the axes that it lies along."""
    blocks = [n // (k or 1) for n, k in zip(v.shape, finest(*grids(v)), strict=True)]
    sizes = [1 if axis is None else blocks[axis] for axis in along]
    if any(n % (size or 1) for n, size in zip(jnp.shape(x), sizes, strict=True)):
        return NotImplemented
    return v.encoded(_without_derivative(x), sizes)


@jax.custom_jvp
def _without_derivative(x: Any) -> Any:
    return x


@_without_derivative.defjvp
def _(primals: Any, tangents: Any) -> Any:
    raise TypeError(
        "quantised_updates: what is written into a quantised array is rounded, which has no "
        "derivative. Differentiate the program with a dense array in its place."
    )

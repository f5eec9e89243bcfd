"""Least-squares solutions by singular value decompositions with structure.

``jnp.linalg.lstsq`` is recognised as a whole. It asks for the thin decomposition of a dense
matrix, and that of a type may be complex, or lack vectors of zeros. The derivative of the
solution is that of the pseudo-inverse, which exists where two singular values are the same.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxrewrite import register

from .._base.recognised import find, fingerprints
from .._base.structured import inexact
from .algebra import LinearAlgebra, dot_of, on_fields
from .low_rank import LowRank
from .matrix import Matrix
from .pseudo_inverse import (
    ask_for_dense,
    is_kept,
    nan_unless_finite,
    pseudo_inverse_times,
)
from .scaled import Scaled
from .sum import Sum


@register("jit")
def _(
    v: Matrix | Scaled | Sum | LowRank, *more: Array, name: str, jaxpr: Any, **params: Any
) -> Any:
    if name != "_lstsq" or v.ndim < 2:
        return NotImplemented
    call = find(calls, jaxpr, v.aval(), *map(jax.typeof, more))
    if call is None:
        return NotImplemented
    # JAX casts the matrix first, of which there is no decomposition with 16 bits.
    dtype = jnp.result_type(v, *more[: call.has_right_side])
    wide = v.astype(dtype)
    if not isinstance(wide, LinearAlgebra):
        return NotImplemented
    if not _is_known(wide):
        ask_for_dense(wide)
        return NotImplemented
    return call.mapped(lambda v, *more: on_fields(call.of_value, v, *more))(v, *more)


def _is_known(v: Any) -> bool:
    hooks = "known_reduced_svd", "known_singular_values"
    is_regular = inexact(v) and min(v.shape[-2:]) > 0
    return is_regular and all(getattr(v, hook)() is not NotImplemented for hook in hooks)


class _Call(NamedTuple):
    """How a program calls JAX's function, after what nothing needs was dropped.

    ``wanted`` are some of the solution, the squared residuals, the rank and the singular
    values. Without the first two the right side is no operand. `jax.vmap` acted ``depth``
    times, along ``axes`` of the matrix and of the right side.
    """

    wanted: tuple[int, ...]
    has_tolerance: bool
    axes: tuple[Any, Any] = (0, None)
    depth: int = 0

    @property
    def has_right_side(self) -> bool:
        return min(self.wanted) < 2

    def mapped(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        of_a, of_b = self.axes
        in_axes = (of_a, *[of_b] * self.has_right_side, *[None] * self.has_tolerance)
        out_axes = [0 if i < 2 else of_a for i in self.wanted]
        for _ in range(self.depth):
            fn = jax.vmap(fn, in_axes=in_axes, out_axes=out_axes)
        return fn

    def _by(self, fn: Callable[..., Any], a: Any, more: tuple[Any, ...]) -> list[Any]:
        b = more[0] if self.has_right_side else jnp.zeros(a.shape[0], a.dtype)
        results = fn(a, b, more[-1] if self.has_tolerance else None)
        return [results[i] for i in self.wanted]

    def of_array(self, a: Any, *more: Any) -> list[Any]:
        return self._by(jnp.linalg.lstsq, a, more)

    def of_value(self, v: Any, *more: Any) -> list[Any]:
        return self._by(_least_squares, v, more)


@functools.lru_cache(256)
def calls(a: Any, *more: Any) -> dict[Any, _Call]:
    """The calls that jaxprs with operands of such avals are, by fingerprints."""
    avals = more[:-1]  # The last one is the trace context.
    by_fingerprint: dict[Any, _Call] = {}
    for wanted in (x for n in range(1, 5) for x in combinations(range(4), n)):
        for call in (_Call(wanted, False), _Call(wanted, True)):
            if len(avals) != call.has_right_side + call.has_tolerance:
                continue
            if call.has_tolerance and avals[-1].shape:
                continue
            for axes, depth in _maps(a, avals[0] if call.has_right_side else None):
                mapped_call = call._replace(axes=axes, depth=depth)
                fn = mapped_call.mapped(mapped_call.of_array)
                by_fingerprint |= dict.fromkeys(fingerprints(fn, a, *avals), mapped_call)
    return by_fingerprint


# Which of the matrix and the right side may have axes of `jax.vmap`.
_LEVELS = ((0, 0), (None, 0), (0, None))


def _maps(a: Any, b: Any) -> Iterator[tuple[tuple[Any, Any], int]]:
    """How operands of such avals may have come from `jax.vmap`."""
    if b is None:
        yield (0, None), len(a.shape) - 2
        return
    for axes in _LEVELS:
        for depth in range(axes != (0, 0), len(a.shape) + len(b.shape)):
            (of_a, left), (of_b, right) = (
                ((), x.shape) if axis is None else (x.shape[:depth], x.shape[depth:])
                for x, axis in zip((a, b), axes, strict=True)
            )
            is_fitting = len(left) == 2 and len(right) in (1, 2) and right[0] == left[0]
            if is_fitting and (None in axes or of_a == of_b):
                yield axes, depth


def _least_squares(v: Any, b: Any, rcond: Any) -> tuple[Any, Any, Any, Any]:
    """The results of JAX's function for one matrix and one or more columns."""
    dtype = jnp.result_type(v.dtype, b.dtype)
    v, columns = v.astype(dtype), b.astype(dtype).reshape(b.shape[0], -1)
    eps = jnp.finfo(dtype).eps
    if rcond is None:
        rcond = max(v.shape) * eps
    sizes = nan_unless_finite(v.known_singular_values())
    tolerance = jnp.where(jnp.asarray(rcond) < 0, eps, rcond).astype(sizes.dtype)
    x = pseudo_inverse_times(v, tolerance, columns, keeps_equal=True)
    left = columns - dot_of(v, x)
    squares = jnp.sum(jnp.real(left * jnp.conj(left)), 0)
    rank = is_kept(sizes, tolerance, keeps_equal=True).sum()
    return (x[:, 0] if b.ndim == 1 else x), squares, rank, sizes

"""The modes of JAX: which promotions it refuses, and whether arrays have 64 bits."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar

import jax
import numpy as np


_P = ParamSpec("_P")
_R = TypeVar("_R")

_AS_IT_IS = contextlib.nullcontext()


def standard_promotion() -> contextlib.AbstractContextManager[object]:
    """Let JAX's functions promote ranks and dtypes inside, as they do by default.

    A user who forbids that means the calls in their own program. Rules, and the methods of values,
    are written for JAX as it is by default.
    """
    config = jax.config
    ranks = config.jax_numpy_rank_promotion  # type: ignore[attr-defined]
    dtypes = config.jax_numpy_dtype_promotion  # type: ignore[attr-defined]
    if ranks == "allow" and dtypes == "standard":
        return _AS_IT_IS  # To enter the modes takes microseconds.
    modes = contextlib.ExitStack()
    modes.enter_context(jax.numpy_rank_promotion("allow"))
    modes.enter_context(jax.numpy_dtype_promotion("standard"))
    return modes


def with_standard_promotion(fn: Callable[_P, _R]) -> Callable[_P, _R]:
    """A function that runs under `standard_promotion`, whoever calls it."""

    @functools.wraps(fn)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        with standard_promotion():
            return fn(*args, **kwargs)

    return call


_OF_64_BITS = {np.dtype(name) for name in ("int64", "uint64", "float64", "complex128")}


def needs_64_bits(avals: Iterable[Any]) -> bool:
    """Whether one of these has 64 bits, and JAX makes no such arrays in the mode of now.

    A program may have 64 bits in some part alone, which it has left when its equations are
    rewritten and run, and when the values that it made become dense.
    """
    return not jax.config.jax_enable_x64 and any(  # type: ignore[attr-defined]
        getattr(aval, "dtype", None) in _OF_64_BITS for aval in avals
    )


def bits_of(avals: Iterable[Any]) -> contextlib.AbstractContextManager[object]:
    """The mode in which JAX has arrays of the bits of these."""
    return jax.enable_x64(True) if needs_64_bits(avals) else _AS_IT_IS


def bits_of_equation(eqn: Any) -> contextlib.AbstractContextManager[object]:
    """The same, for the operands and results of an equation."""
    return bits_of(atom.aval for atom in (*eqn.invars, *eqn.outvars))


def mode_for(avals: Iterable[Any]) -> contextlib.AbstractContextManager[object]:
    """The modes in which functions of the library, and of types, are traced on these avals."""
    promotion, bits = standard_promotion(), bits_of(avals)
    if bits is _AS_IT_IS:
        return promotion
    modes = contextlib.ExitStack()
    modes.enter_context(promotion)
    modes.enter_context(bits)
    return modes

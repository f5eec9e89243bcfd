"""The modes in which JAX refuses promotions that a user does not want to write by accident."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import jax


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

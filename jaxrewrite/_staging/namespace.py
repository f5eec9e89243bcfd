"""Modules with the functions of another module, transformed at their first use."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

import jax.numpy

from .transform import transform


_UFUNC_METHODS = ("accumulate", "at", "outer", "reduce", "reduceat")


def transformed_namespace(
    module: types.ModuleType, name: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The ``__getattr__`` and ``__dir__`` of the module called ``name``.

    Functions are wrapped in `transform`. Constants, dtypes and classes are the objects of
    the original module. Modules of this package stand for its sub-namespaces.
    """

    @functools.cache
    def lookup(attribute: str) -> Any:
        original = getattr(module, attribute)
        if not _is_function(original):
            return original
        transformed = transform(original)
        if isinstance(original, jax.numpy.ufunc):
            for method in _UFUNC_METHODS:
                setattr(transformed, method, transform(getattr(original, method)))
        return transformed

    def __getattr__(attribute: str) -> Any:
        if attribute.startswith("_") or not hasattr(module, attribute):
            raise AttributeError(f"module {name!r} has no attribute {attribute!r}")
        if inspect.ismodule(getattr(module, attribute)):
            raise AttributeError(f"module {name!r} has no sub-namespace {attribute!r}")
        return lookup(attribute)

    def __dir__() -> list[str]:
        return [attribute for attribute in dir(module) if not attribute.startswith("_")]

    return __getattr__, __dir__


def _is_function(x: object) -> bool:
    """Whether ``x`` computes something. Classes and dtypes can be called, but do not."""
    return callable(x) and not inspect.isclass(x) and not hasattr(x, "dtype")

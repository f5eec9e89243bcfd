"""A module whose functions are another module's, transformed when first asked for."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

import jax.numpy

from ._transform import transform


_UFUNC_METHODS = ("accumulate", "at", "outer", "reduce", "reduceat")


def transformed_namespace(
    module: types.ModuleType, name: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The ``__getattr__`` and ``__dir__`` of the module called ``name``.

    Functions are wrapped in `transform`; constants, dtypes and classes are the
    original's own objects. Sub-namespaces are modules beside this one.
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


def _is_function(x: Any) -> bool:
    """Whether ``x`` computes something: no class, and no dtype, which can be called."""
    return callable(x) and not inspect.isclass(x) and not hasattr(x, "dtype")

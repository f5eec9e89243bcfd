"""Modules with the functions of another module, transformed at their first use."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

import jax.numpy
from jax.tree_util import tree_leaves

from .._core.avals import children, is_annotation
from .._core.value import Value, is_value
from .transform import transform


_UFUNC_METHODS = ("accumulate", "at", "outer", "reduce", "reduceat")
_UFUNC_ATTRIBUTES = ("identity", "nargs", "nin", "nout")


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
        if isinstance(original, jax.numpy.ufunc):
            return _transformed_ufunc(original)
        if original is jax.numpy.frompyfunc:
            return _frompyfunc
        transformed: Any = transform(original)
        if any(name in _AXES for name in _parameters(original)):
            return _with_names(transformed)
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


def _transformed_ufunc(original: jax.numpy.ufunc) -> Any:
    transformed: Any = transform(original)
    for method in _UFUNC_METHODS:
        setattr(transformed, method, transform(getattr(original, method)))
    for attribute in _UFUNC_ATTRIBUTES:
        setattr(transformed, attribute, getattr(original, attribute))
    return transformed


@functools.wraps(jax.numpy.frompyfunc)
def _frompyfunc(*args: Any, **kwargs: Any) -> Any:
    return _transformed_ufunc(jax.numpy.frompyfunc(*args, **kwargs))


# The parameters that may be names of axes. Those of `tensordot` are of two arrays.
_AXES = ("axis", "axis1", "axis2", "axes", "source")


def _parameters(fn: Callable[..., Any]) -> list[str]:
    """The names of the parameters of a function, if it may take names of axes."""
    if isinstance(fn, jax.numpy.ufunc) or fn.__name__ == "tensordot":
        return []
    return list(inspect.signature(fn).parameters)


def _with_names(fn: Any) -> Callable[..., Any]:
    """A function that takes the names of axes besides their numbers."""
    names = _parameters(fn.__wrapped__)

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        number = functools.partial(_number, fn.__name__, (args, kwargs))
        positional = (
            number(x) if name in _AXES else x for name, x in zip(names, args, strict=False)
        )
        kwargs = {name: number(x) if name in _AXES else x for name, x in kwargs.items()}
        return fn(*positional, *args[len(names) :], **kwargs)

    return call


def _number(fn: str, arguments: Any, axis: Any) -> Any:
    """The number of an axis that may be a name, also within a tuple or list."""
    if isinstance(axis, (tuple, list)):
        return type(axis)(_number(fn, arguments, x) for x in axis)
    if not isinstance(axis, str):
        return axis
    for leaf in tree_leaves(arguments, is_leaf=is_value):
        named = _named(leaf) if is_value(leaf) else None
        if named is not None:
            return named.axis(axis)
    raise TypeError(
        f"{fn}: the axis is {axis!r}, and no argument has names for its axes, as a "
        "jaxrewrite.values.Named does. Inside of a transformed function there are only numbers."
    )


def _named(value: Value) -> Any:
    """The value, or an annotated one inside of it, whose axes have names."""
    if callable(getattr(type(value), "axis", None)):
        return value
    inside = [x for x in children(value)[0] if is_value(x)] if is_annotation(value) else []
    return next((named for named in map(_named, inside) if named is not None), None)


def _is_function(x: object) -> bool:
    """Whether ``x`` computes something. Classes and dtypes can be called, but do not.

    Functions of NumPy itself, such as `numpy.save`, take arrays out of JAX.
    """
    is_numpys = str(getattr(x, "__module__", None)).partition(".")[0] == "numpy"
    return callable(x) and not (inspect.isclass(x) or hasattr(x, "dtype") or is_numpys)

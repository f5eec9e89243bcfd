"""The shapes of what methods return, checked for the classes of users.

Without a check the error would be that of a rule that calls the method, and name the rule.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from typing import Any


# By the name of a method, the shape of what it returns for a value and the arguments.
Shapes = Mapping[str, Callable[..., tuple[int, ...]]]


def check_shapes(cls: Any, shapes: Shapes) -> None:
    """Let the methods that a class defines raise `TypeError` where they return another shape.

    They may return NotImplemented or ``None``. The classes of a library are checked by its tests.
    """
    package = sys.modules.get(cls.__module__.partition(".")[0])
    if not getattr(package, "__jaxrewrite_library__", False):
        for name in shapes.keys() & vars(cls).keys():
            setattr(cls, name, _checked(cls, name, vars(cls)[name], shapes[name]))


def _checked(
    cls: type, name: str, method: Callable[..., Any], shape_of: Callable[..., Any]
) -> Any:
    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = method(self, *args, **kwargs)
        if result is NotImplemented or result is None:
            return result
        wanted = shape_of(self, *args, **kwargs)
        shape = getattr(result, "shape", None)
        if shape != wanted:
            what = f"a {type(result).__name__}" if shape is None else f"shape {shape}"
            raise TypeError(
                f"{cls.__name__}.{name} returned {what}, and has to return an array or a value of "
                f"shape {wanted} here."
            )
        return result

    return call


def same_shape(v: Any, *_: Any, **__: Any) -> tuple[int, ...]:
    return tuple(v.shape)

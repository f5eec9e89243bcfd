"""Values that a function closes over, named in the errors that come of it.

A transformed function sees its arguments as arrays while it is staged, and what it closes over as
it is. Functions of JAX then refuse such a value, and an operator on it knows nothing of what
the arguments are.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FunctionType
from typing import Any

from .. import _compat
from .._core.errors import add_note
from .._core.value import Value, is_value


def note_closed_over(error: Exception, fn: Callable[..., Any]) -> None:
    """Name the values that ``fn``, whose call raised ``error``, closes over."""
    held = {**_held_by(fn), **dict(_held_where_raised(error))}
    if held:
        shown = ", ".join(f"{name} ({cls.__name__})" for name, cls in held.items())
        name = getattr(fn, "__qualname__", type(fn).__name__)
        add_note(
            error,
            f"jaxrewrite: {name} closes over {shown}. Functions of JAX refuse a value that is "
            "closed over, and its rules see the arguments as arrays. Pass it as an argument.",
        )


def _held_by(fn: Callable[..., Any]) -> dict[str, type[Value]]:
    """The variables of a function that it does not define, with the type of a value in them."""
    fn = inspect.unwrap(fn)
    if not isinstance(fn, FunctionType):
        return {}
    cells = inspect.getclosurevars(fn).nonlocals
    return dict(_with_values({**_globals(fn.__code__, fn.__globals__), **cells}))


def _held_where_raised(error: Exception) -> Iterator[tuple[str, type[Value]]]:
    """The same of the functions that were running when the error was raised."""
    inside: list[object] = []
    for frame in _compat.user_frames(error):
        code, known = frame.f_code, frame.f_locals
        free = {name: known[name] for name in code.co_freevars if name in known}
        outside = {**_globals(code, frame.f_globals), **free}
        # A function inside of another one may close over what that one has made.
        made_inside = [x for x, y in outside.items() if any(y is z for z in inside)]
        yield from _with_values({x: outside[x] for x in outside.keys() - made_inside})
        inside += [known[name] for name in known.keys() - outside.keys()]


def _globals(code: CodeType, module: Mapping[str, Any]) -> dict[str, Any]:
    """The global variables that code names, and the functions within it."""
    held = {name: module[name] for name in code.co_names if name in module}
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            held |= _globals(inner, module)
    return held


def _with_values(contents: Mapping[str, Any]) -> Iterator[tuple[str, type[Value]]]:
    return (
        (name, type(value))
        for name, content in contents.items()
        for value in _values_in(content)
    )


def _values_in(content: object) -> Iterator[Value]:
    """A value, or those in a container of Python."""
    if is_value(content):
        yield content
    elif isinstance(content, (dict, list, tuple)):
        contents = content.values() if isinstance(content, dict) else content
        yield from (value for x in contents for value in _values_in(x))

"""Which of a user's functions a program meets: the rules and the methods to look at."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from types import CodeType, FrameType
from typing import Any

import jax

from .._core.caches import clear_caches
from .._core.value import Value


# Most programs call them, so they are named only where nothing else is.
_EVERYWHERE = ("aval", "materialise", "__init__", "__post_init__")
_AS_PYTREE = ("tree_flatten", "tree_unflatten")
_AT_MOST = 3


class Culprits:
    """The functions of one type that may be wrong: its own methods, and the user's rules.

    Those of the library's own classes are not among them: their rules call the methods.
    """

    def __init__(self, cls: type[Value], rules: Sequence[Callable[..., Any]]):
        self._names: dict[CodeType, str] = {}
        for rule in rules:
            code = getattr(inspect.unwrap(rule), "__code__", None)
            if code is not None:
                self._names[code] = getattr(rule, "__qualname__", code.co_name)
        for owner in reversed(cls.__mro__):
            if is_users(owner):
                for name, member in vars(owner).items():
                    code = _code_of(member)
                    if code is not None and name not in _AS_PYTREE:
                        self._names[code] = f"{owner.__name__}.{name}"

    def of(self, fn: Callable[..., Any], operands: Sequence[Any]) -> str:
        """A line that names the functions that a program calls, or nothing."""
        clear_caches()  # Or functions that are traced already would not be called.
        called = _called(lambda: jax.eval_shape(fn, *operands), self._names)
        last = [code for code in called if code.co_name in _EVERYWHERE]
        blamed = [code for code in called if code not in last] or last
        if not blamed:
            return ""
        shown = [f"{self._names[code]} ({_line_of(code)})" for code in blamed[:_AT_MOST]]
        return f"by {', '.join(shown)}{', ...' if len(blamed) > _AT_MOST else ''}"


def is_users(cls: type) -> bool:
    """Whether a class is a value type that is not one of the library's own."""
    return issubclass(cls, Value) and not cls.__module__.startswith("jaxrewrite.")


def _code_of(member: Any) -> CodeType | None:
    for name in ("__func__", "fget", "func"):  # of a static method, of properties
        member = getattr(member, name, member)
    return getattr(inspect.unwrap(member), "__code__", None) if callable(member) else None


def _line_of(code: CodeType) -> str:
    return f"{os.path.basename(code.co_filename)}:{code.co_firstlineno}"


def _called(run: Callable[[], Any], wanted: dict[CodeType, str]) -> list[CodeType]:
    """Which of these functions are called, but for functions that only another one calls."""
    called: dict[CodeType, None] = {}

    def look(frame: FrameType, event: str, _: Any) -> None:
        is_new = event == "call" and frame.f_code in wanted and frame.f_code not in called
        if is_new and not any(outer.f_code in wanted for outer in _callers(frame)):
            called[frame.f_code] = None

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        run()
    except Exception:  # noqa: BLE001 - the failure itself is told elsewhere
        pass
    finally:
        sys.setprofile(before)
    return [*called]


def _callers(frame: FrameType) -> Iterator[FrameType]:
    outer = frame.f_back
    while outer is not None:
        yield outer
        outer = outer.f_back

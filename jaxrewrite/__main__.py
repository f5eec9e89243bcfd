"""``python -m jaxrewrite explain module:function``: the report of a program.

The function takes no arguments and returns ``(fn, args)``: the program, and its arguments,
some of which are values. It may return ``(fn, args, kwargs)``. That of a class is
``module:Class.function``.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import operator
import pathlib
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NoReturn


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m jaxrewrite", description=__doc__)
    commands = parser.add_subparsers(required=True)
    explain = commands.add_parser("explain", help="show what becomes of each equation")
    explain.add_argument("program", metavar="module:function")
    explain.add_argument("--json", action="store_true", help="print JSON, not text")
    explain.add_argument("--html", metavar="FILE", help="write a page as well")
    options = parser.parse_args(arguments)
    report = _report(_function(options.program, parser.error), parser.error)
    print(report.to_json() if options.json else report)
    if options.html:
        try:
            pathlib.Path(options.html).write_text(report._repr_html_(), encoding="utf-8")
        except OSError as error:
            parser.error(f"can't write {options.html}: {error.strerror}.")
    return 0


# Ends the process with a message, where the command line names no program.
Refuse = Callable[[str], NoReturn]


def _function(name: str, refuse: Refuse) -> Any:
    module, colon, function = name.partition(":")
    if not colon or not module or not function or module.startswith(".") or "/" in module:
        refuse(
            f"{name!r} is not of the form module:function, as in package.module:function."
        )
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        imported = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not module.startswith(error.name):
            raise  # It is one that the module itself imports.
        refuse(f"there is no module {error.name!r}.")
    try:
        return operator.attrgetter(function)(imported)
    except AttributeError:
        refuse(f"{module} has no function {function!r}.")


def _report(make: Any, refuse: Refuse) -> Any:
    from ._insight.explain import explain  # after the command line is read

    name = getattr(make, "__name__", repr(make))
    fn, args, kwargs = _program(make, name, refuse)
    try:
        return explain(fn)(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 - the user's program raises anything
        refuse(f"the program of {name} raised {_located(error, make)}")


def _program(make: Any, name: str, refuse: Refuse) -> tuple[Any, Any, Any]:
    """The function, its arguments and its keyword arguments."""
    if not callable(make):
        refuse(f"{name} is no function; it is a {type(make).__name__}.")
    if _needs_arguments(make):
        refuse(
            f"{name} takes arguments. Name a function without, that returns the program and "
            f"its arguments: def example(): return {name}, (value, array)"
        )
    try:
        program = make()
    except Exception as error:  # noqa: BLE001 - the user's function raises anything
        refuse(f"{name} raised {_located(error, make)}")
    is_whole = isinstance(program, tuple) and len(program) in (2, 3)
    fn, args, kwargs = (*program, {})[:3] if is_whole else (None, None, None)
    is_call = isinstance(args, (tuple, list)) and isinstance(kwargs, dict)
    if not callable(fn) or not is_call:
        refuse(
            f"{name} must return (fn, args) or (fn, args, kwargs): a function, a tuple of its "
            f"arguments, and a dict of others. It returned {_kinds(program)}."
        )
    return fn, args, kwargs


def _kinds(program: Any) -> str:
    if not isinstance(program, tuple):
        return f"a {type(program).__name__}"
    return f"a tuple of ({', '.join(type(x).__name__ for x in program)})"


def _needs_arguments(make: Any) -> bool:
    try:
        signature = inspect.signature(make)
    except ValueError:  # Some functions in C do not tell.
        return False
    try:
        signature.bind()
    except TypeError:
        return True
    return False


def _located(error: Exception, make: Any) -> str:
    """An error, with where it was in the program, or else in the file of its maker."""
    notes = [x for x in getattr(error, "__notes__", []) if x.startswith("jaxrewrite: ")]
    maker_file = getattr(getattr(make, "__code__", None), "co_filename", "")
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename == maker_file and not notes:
            notes = [f"  at {frame.filename}:{frame.lineno} ({frame.name})"]
    return "\n".join([f"{type(error).__name__}: {error}", *notes])


if __name__ == "__main__":
    sys.exit(main())

"""Where an equation, or an error, comes from."""

from __future__ import annotations

import functools
import itertools
import pathlib
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import Any

import jax.extend.source_info_util as source_info_util

# The settings that JAX's own caches have in their keys (x64, matmul precision, mesh, axis
# names ...). They are public only through the behaviour of jit's cache. traceback_filtering:
# the setting of that name for a while, and not for all threads.
from jax._src.config import traceback_filtering

# The frames of an equation that are not JAX's, as file and line and not as text, and whether a
# frame of a traceback is one of JAX's.
# Transform: what a name stack holds for a transformation, beside the scopes of a user.
from jax._src.source_info_util import (
    Transform,
    is_user_filename,
    user_frames as frames_of_users,
)

from .types import SourceInfo


def source_location(source_info: SourceInfo) -> tuple[str, int, str] | None:
    """File, line and function of the user's code that made an equation.

    That is the innermost line that is not of an installed package, or else the innermost one that
    is not of JAX: where a model calls a layer of Flax or Equinox, and not where that one multiplies.
    There is no such code in the body of a function of JAX itself, like `jax.numpy.sort`.
    """
    return _location(source_info.traceback)


@functools.lru_cache(64)
def _location(of_equation: Any) -> tuple[str, int, str] | None:
    frames = frames_of_users(of_equation)
    innermost = next(frames, None)
    if innermost is None:
        return None
    frame = innermost
    if _is_installed(innermost.file_name):
        own = (frame for frame in frames if not _is_installed(frame.file_name))
        frame = next(own, innermost)
    return frame.file_name, frame.start_line, frame.function_name


@functools.cache
def _is_installed(filename: str) -> bool:
    return not {"site-packages", "dist-packages"}.isdisjoint(pathlib.Path(filename).parts)


def source_within(origin: SourceInfo | None, inner: SourceInfo) -> SourceInfo:
    """The source info of an equation in a rule: that of the equation to which it was applied."""
    if origin is None:
        return inner
    if not inner.name_stack.stack:
        return origin
    return origin.replace(name_stack=origin.name_stack + inner.name_stack)


def scope_of(source_info: SourceInfo) -> str:
    """The names of the scopes around an equation, without those of transformations."""
    stack = source_info.name_stack.stack
    return "/".join(x.name for x in stack if not isinstance(x, Transform))


def is_transposed(source_info: SourceInfo) -> bool:
    """Whether an equation computes cotangents: JAX says so where it transposes a program.

    What runs while JAX transposes, such as a user's backward rule, does so, too.
    """
    stacks = (source_info.name_stack.stack, source_info_util.current_name_stack().stack)
    parts = itertools.chain(*stacks)
    return any(isinstance(x, Transform) and x.name == "transpose" for x in parts)


def current_location() -> tuple[str, int, str] | None:
    """File, line and function of the user's code that runs now."""
    return source_location(source_info_util.current())


def raised_at(error: BaseException) -> tuple[str, int, str] | None:
    """File, line and function of the user's code in which an error was raised."""
    location = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        code = frame.f_code
        if is_user_filename(code.co_filename):
            location = code.co_filename, line, code.co_name
    return location


def user_frames(error: BaseException) -> Iterator[FrameType]:
    """The frames of the user's code through which an error has come, the outermost first."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if is_user_filename(frame.f_code.co_filename):
            yield frame


def unfiltered_errors() -> Any:
    """A context manager for errors that are caught: to filter one takes milliseconds."""
    return traceback_filtering("off")

"""Where an equation, or an error, comes from."""

from __future__ import annotations

import itertools
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import Any

import jax.extend.source_info_util as source_info_util

# The settings that JAX's own caches have in their keys (x64, matmul precision, mesh, axis
# names ...). They are public only through the behaviour of jit's cache. traceback_filtering:
# the setting of that name for a while, and not for all threads.
from jax._src.config import traceback_filtering

# The user's frame of an equation, as file and line and not as text, and whether a frame of
# a traceback belongs to the user.
# Transform: what a name stack holds for a transformation, beside the scopes of a user.
from jax._src.source_info_util import Transform, is_user_filename, user_frame

from .types import SourceInfo


def source_location(source_info: SourceInfo) -> tuple[str, int, str] | None:
    """File, line and function of the user's code that made an equation.

    There is no such code in the body of a function of JAX itself, like `jax.numpy.sort`.
    """
    frame = user_frame(source_info.traceback)
    if frame is None:
        return None
    return frame.file_name, frame.start_line, frame.function_name


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

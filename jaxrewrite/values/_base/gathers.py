"""Gathers whose indices may be out of range, for all ready types.

The gather of a value is often a product of what is gathered from its leaves, so the rules of the
types gather at indices in range, and the result is filled here.
"""

from __future__ import annotations

import functools
from typing import Any

from jaxtyping import ArrayLike

from jaxrewrite import bind, register
from jaxrewrite._axes.moves import filled, fills as fills, in_range as in_range
from jaxrewrite._axes.writes import axes_written as axes_written

from .structured import Structured


# The rule of a type comes first, since it may know a filled value of its own structure.
@register("gather", precedence=-1)
def _(v: Structured, indices: ArrayLike, *, mode: Any, **params: Any) -> Any:
    """Gather at indices in range, and fill the result, which is dense."""
    if not fills(mode):
        return NotImplemented
    return filled(functools.partial(bind, "gather"), v, indices, mode=mode, **params)

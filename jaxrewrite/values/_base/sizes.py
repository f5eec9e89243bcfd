"""What is known about sizes that may be symbolic, and what constructors take as sizes and flags."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
from jax.export import is_symbolic_dim

from jaxrewrite._axes.sizes import (
    are_known as are_known,
    common_divisor as common_divisor,
    is_at_most as is_at_most,
    is_divisor as is_divisor,
    is_less as is_less,
    known as known,
    least_bound as least_bound,
)


def checked_size(name: str, field: str, size: Any) -> Any:
    """A size for a type of that name, as a Python integer, or symbolic.

    Raises
    ------
    TypeError
        If it is not an integer.
    ValueError
        If it is negative.
    """
    if is_symbolic_dim(size):
        return size
    try:
        checked = operator.index(size)
    except TypeError as error:
        raise TypeError(f"{name}: {field} is {size!r}, not an integer.") from error
    if checked < 0:
        raise ValueError(f"{name}: {field} is {checked}, which is negative.")
    return checked


def checked_shape(name: str, field: str, shape: Any) -> tuple[Any, ...]:
    """A shape as a tuple of sizes; one size is a shape with one axis, as in `jax.numpy`."""
    try:
        sizes = tuple(shape)
    except TypeError:
        sizes = (shape,)
    return tuple(checked_size(name, field, size) for size in sizes)


def check_flag(name: str, field: str, flag: Any) -> None:
    """Refuse a flag that is no boolean: a name such as "upper" would be taken for true.

    Raises
    ------
    TypeError
        If it is not a boolean.
    """
    if not isinstance(flag, (bool, np.bool_)):
        raise TypeError(f"{name}: {field} is {flag!r}, not True or False.")

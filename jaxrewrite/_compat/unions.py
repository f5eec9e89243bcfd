"""What jaxtyping makes of a union."""

import typing
from collections.abc import Iterator
from typing import Any

import jax
import jaxtyping
import numpy as np


# The dtypes of an array that a Python scalar becomes.
_DTYPES: dict[type, Any] = {
    bool: jaxtyping.Bool,
    int: jaxtyping.Int,
    float: jaxtyping.Float,
    complex: jaxtyping.Complex,
}


def choices_of(union: Any) -> Iterator[Any]:
    """The choices of a union, in which scalars beside arrays with a shape are arrays, too.

    ``Float[ArrayLike, ""]`` is a union of arrays of that dtype and shape, ``float`` and
    ``numpy.number``. Each of these alone stands for any array, whatever its shape and dtype. So a
    Python scalar becomes the annotation of an array without axes, if no other choice includes that,
    and a scalar of NumPy, which is no operand of a traced program, is left out.
    """
    choices = typing.get_args(union)
    arrays = [
        x
        for x in choices
        if _is_among(x, jaxtyping.AbstractArray)
        and _is_among(x.array_type, (jax.Array, np.ndarray))
    ]
    for choice in choices:
        if arrays and choice in _DTYPES:
            if not any(
                isinstance(np.zeros((), choice), x.dtype[Any, x.dim_str]) for x in arrays
            ):
                yield _DTYPES[choice][jax.Array, ""]
        elif not (arrays and _is_among(choice, np.generic)):
            yield choice


def _is_among(annotation: object, classes: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, classes)

"""What is known about sizes, some of which may be symbolic, as in `jax.export`.

A symbolic size stands for all sizes that a program may meet. JAX raises an error where a comparison
holds for some of them only, and `math` takes no such size. The answers here are no wherever it is
not known. So the caller takes the form that is right for each size.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable

from jax.errors import InconclusiveDimensionOperation


def is_less(m: int, n: int) -> bool:
    """Whether ``m`` is known to be less than ``n``."""
    return _holds(operator.lt, m, n)


def is_at_most(m: int, n: int) -> bool:
    """Whether ``m`` is known to be no more than ``n``."""
    return _holds(operator.le, m, n)


def is_divisor(k: int, n: int) -> bool:
    """Whether ``k`` is known to divide ``n``."""
    return k != 0 and n % k == 0


def are_known(*sizes: int) -> bool:
    """Whether all sizes are numbers."""
    return all(isinstance(n, int) for n in sizes)


def known(n: int) -> int:
    """A size, for an algorithm that is for one number.

    Raises
    ------
    InconclusiveDimensionOperation
        If it is symbolic. A rule then declines.
    """
    if are_known(n):
        return n
    raise InconclusiveDimensionOperation(f"The size {n} is not known.")


def count_of(start: int, stop: int, step: int) -> int:
    """How many indices a range has."""
    return -(-(stop - start) // step)


def least_bound(*bounds: int) -> int:
    """The least of some upper bounds, or one that is not known to be higher than another."""
    least, *others = bounds
    for bound in others:
        least = bound if is_less(bound, least) else least
    return least


def common_divisor(*sizes: int) -> int:
    """The greatest common divisor that is known."""
    if are_known(*sizes):
        return math.gcd(*sizes)
    return next((k for k in sizes if all(is_divisor(k, n) for n in sizes)), 1)


def common_multiple(*sizes: int) -> int:
    """The least common multiple.

    Raises
    ------
    InconclusiveDimensionOperation
        If it is not known, because of a symbolic size.
    """
    if are_known(*sizes):
        return math.lcm(*sizes)
    for n in sizes:
        if all(is_divisor(k, n) for k in sizes):
            return n
    raise InconclusiveDimensionOperation(
        f"The least common multiple of {', '.join(map(str, sizes))} is not known."
    )


def _holds(comparison: Callable[[int, int], bool], m: int, n: int) -> bool:
    try:
        return comparison(m, n)
    except InconclusiveDimensionOperation:
        return False

"""Which type's rule is asked where two types that take any other value meet.

A rule for ``(T, any value)`` has the precedence of ``T`` here. Each is below zero, so
that a rule for just two types comes before them, and no two are the same, so that none
of them is ambiguous. Types that annotate an array (with units, names, bounds) are outermost.
"""

from __future__ import annotations


_FROM_THE_OUTERMOST = (
    "Tagged",
    "Named",
    "Unitful",
    "Masked",
    "Interval",
    "Zero",
    "Linear",
    "Scaled",
    "Constant",
    "Sum",
    "Lora",
    "LowRank",
    "Matrix",
    "Structured",
)


def order(name: str) -> int:
    """The precedence of a type's rules for its pairs with any other value."""
    return -1 - _FROM_THE_OUTERMOST.index(name)

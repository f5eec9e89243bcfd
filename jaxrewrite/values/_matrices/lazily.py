"""How many parts a lazy sum or product may have."""

from __future__ import annotations

from typing import Any

from .._base.structured import fields_of, is_value


# So many parts a small matrix may have, too. A kernel of a Gaussian process has a dozen terms.
_FEW = 64


def lazily(v: Any) -> Any:
    """A lazy result, or NotImplemented if it has more parts than an array would pay for.

    Each operation goes through all parts, and an unrolled recursion, such as Newton's for an
    inverse, doubles them with each turn. Products with the parts take more time than those with
    the array before there are as many parts as rows.
    """
    parts = _count(v)
    return v if parts <= _FEW or parts <= min(v.shape[-2:]) // 4 else NotImplemented


def _count(v: Any) -> int:
    """How many values without values in them. One with many leaves is no lazy result."""
    inside = [_count(x) for x in fields_of(v)[0] if is_value(x)]
    return sum(inside) if inside else 1

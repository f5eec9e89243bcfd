"""How many parts a lazy sum or product may have."""

from __future__ import annotations

from typing import Any

import jax


# So many parts a small matrix may have, too. A kernel of a Gaussian process has a dozen terms.
_FEW = 64


def lazily(v: Any) -> Any:
    """A lazy result, or NotImplemented if it has more parts than an array would pay for.

    Each operation goes through all parts, and an unrolled recursion, such as Newton's for an
    inverse, doubles them with each turn. Products with the parts take more time than those with
    the array before there are as many parts as rows.
    """
    parts = len(jax.tree.leaves(v))
    return v if parts <= _FEW or parts <= min(v.shape[-2:]) // 4 else NotImplemented

"""Linear systems whose right side is a matrix with structure.

The gain of a Kalman filter is one. The solution is a value where the matrix knows its product with
the inverse (`LinearAlgebra.known_solution`), or where the right side has low rank. It is no less
accurate than the dense one, so no inverse of a dense part is multiplied by the right side.
"""

from __future__ import annotations

from typing import Any

import jaxrewrite

from .algebra import known_of, on_fields
from .low_rank import LowRank
from .matrix import closed_product, lazily, solve_factor, swapped
from .monomial import MultipleOfIdentity
from .product import Product
from .scaled import Scaled, multiple
from .sum import Sum, sum_of


def solution(a: Any, b: Any) -> Any:
    """``inverse(a) @ b`` as a value, or NotImplemented where it would be an array.

    ``a`` is a square value or array, and ``b`` a value with the same batch axes and dtype.
    """
    if a.shape[:-2] != b.shape[:-2] or a.dtype != b.dtype:
        return NotImplemented
    known = _of_parts(a, b)
    return known if known is NotImplemented else lazily(known)


def solution_along(a: Any, b: Any, axis: int) -> Any:
    """The solution along the last axis of ``b`` but one, or along the last."""
    if axis == b.ndim - 2:
        return solution(a, b)
    turned = solution(a, swapped(b))
    return turned if turned is NotImplemented else swapped(turned)


def _of_parts(a: Any, b: Any) -> Any:
    """What the parts of lazy sums, products and multiples have for solutions."""
    if not isinstance(b, jaxrewrite.Value):
        return NotImplemented
    if isinstance(b, Scaled):
        return _multiple(_of_parts(a, b.x), b.number)
    if isinstance(b, Sum):
        terms = [_of_parts(a, term) for term in b.terms]
        return NotImplemented if any(x is NotImplemented for x in terms) else sum_of(terms)
    if isinstance(b, LowRank):
        return on_fields(_of_low_rank, a, b)
    if isinstance(b, Product):
        first = _of_parts(a, b.factors[0])
        return first if first is NotImplemented else Product((first, *b.factors[1:]))
    if isinstance(a, Scaled):
        return _multiple(_of_parts(a.x, b), 1 / a.number)
    return _of_matrices(a, b)


def _of_matrices(a: Any, b: Any) -> Any:
    known = known_of(a, "known_solution", b)
    if known is NotImplemented and isinstance(b, MultipleOfIdentity):
        inverse = known_of(a, "known_inverse")
        return inverse if inverse is NotImplemented else closed_product(inverse, b)
    return known


def _of_low_rank(a: Any, b: LowRank) -> Any:
    pair = b.as_matrices()
    is_array = not isinstance(a, jaxrewrite.Value)
    if pair is None or not (is_array or a.solvable):
        return NotImplemented
    return LowRank(solve_factor(a, pair[0], b.ndim - 2), pair[1])


def _multiple(x: Any, scale: Any) -> Any:
    if x is NotImplemented:
        return x
    if isinstance(x, Scaled):
        x, scale = x.x, x.number * scale
    return multiple(x, scale)

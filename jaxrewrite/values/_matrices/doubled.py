"""Sums of a matrix and itself, as twice the matrix.

``(a + a.T) / 2`` is how programs, and functions of JAX, make sure that a matrix is symmetric. If it
is, its transpose has the same leaves. A lazy sum of the two would have no factors and no inverse,
where a multiple of the matrix has those of the matrix. Only the program tells that the leaves are
the same: a rule gets arrays.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.extend.core import JaxprEqn, Literal

from jaxrewrite import same_structure
from jaxrewrite.extend import OperandsHook, register_operands_hook

from .._base.structured import inexact
from .kronecker import Kronecker
from .low_rank import LowRank
from .product import Product
from .scaled import Scaled
from .sum import Sum


# Other types know their sums, or their authors have rules for them.
_LAZY = (Kronecker, LowRank, Product, Scaled, Sum)


class Doubled(OperandsHook):
    """Makes a product with two of a sum of a matrix and itself."""

    primitives = frozenset({"add", "add_any"})

    def __init__(self, analysis: Callable[..., Any]) -> None:
        pass

    def operands(
        self, eqn: JaxprEqn, operands: Sequence[Any]
    ) -> tuple[JaxprEqn, Sequence[Any]]:
        x, y = operands
        if type(x) not in _LAZY or not inexact(x) or not _is_same(x, y):
            return eqn, operands
        two = np.asarray(2, x.dtype)[()]
        literal = Literal(two, jax.core.ShapedArray((), x.dtype))
        invars = [eqn.invars[0], literal]
        product = eqn.replace(primitive=lax.mul_p, invars=invars, params=_params())
        return product, [x, literal]


@functools.cache
def _params() -> dict[str, Any]:
    """Those of a product, which derivatives of it are asked for where it becomes dense."""
    (product,) = jax.make_jaxpr(lax.mul)(1.0, 1.0).eqns
    return product.params


def _is_same(x: Any, y: Any) -> bool:
    """Whether two values are of one structure, and their leaves the same variables."""
    leaves, others = map(jax.tree.leaves, (x, y))
    return same_structure(x, y) and all(map(operator.is_, leaves, others))


register_operands_hook(Doubled)

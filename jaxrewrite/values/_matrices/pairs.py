"""Functions of two matrices: Kronecker products, products entry by entry, products of sums."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

import jaxrewrite
from jaxrewrite import bind, register

from .._base.contract import is_or_none
from .._base.linear import multiply_by_parts
from .._base.sizes import is_at_most, is_less
from .kronecker import Kronecker
from .low_rank import LowRank
from .matrix import Matrix
from .monomial import Diagonal, Identity, OnDiagonal
from .product import Product
from .rules import standard
from .scaled import Scaled
from .sum import Sum


@register(
    jnp.kron, types=(Matrix | Scaled | Sum | LowRank, Matrix | Scaled | Sum | LowRank)
)
@register(jnp.kron, exchange="types")
def _(x: Matrix | Scaled | Sum | LowRank, y: Array) -> Any:
    if x.ndim != 2 or y.ndim != 2 or x.dtype != y.dtype:
        return NotImplemented
    if isinstance(x, Identity) and isinstance(y, Identity):
        return Identity(x.rows * y.rows, x.dtype)
    return Kronecker(x, y)


@register("dot_general", types=(Sum, Sum))
@register("dot_general", exchange="types")
def _(x: Sum, y: Matrix, *, dimension_numbers: Any, **params: Any) -> Any:
    """The sum of the products of the terms, unless it holds the other factor several times."""
    if not multiply_by_parts(x, y, params):
        return NotImplemented
    times = functools.partial(
        bind, "dot_general", dimension_numbers=dimension_numbers, **params
    )
    if isinstance(x, Sum):
        product = x.map_parts(lambda term: times(term, y))
    else:
        product = y.map_parts(lambda term: times(x, term))
    if is_at_most(_size(product), _size(x) + _size(y)):
        return product
    pair = standard(x, y, dimension_numbers) if x.dtype == y.dtype else None
    is_plain = is_or_none(params.get("preferred_element_type"), x.dtype)
    if pair is None or not is_plain or params.get("out_sharding") is not None:
        return product
    return Product(pair)


def _size(x: Any) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(x))


@register("mul")
def _(x: Sum, y: Sum, **params: Any) -> Any:
    """If a term is an array, so is the result. Products of the terms might cancel."""
    are_values = [isinstance(term, jaxrewrite.Value) for term in (*x.terms, *y.terms)]
    if x.shape != y.shape or all(are_values):
        return NotImplemented
    return x.materialise() * y.materialise()


@register("mul", exchange="types")
def _(x: OnDiagonal, y: LowRank, **params: Any) -> Any:
    if x.shape != y.shape or x.dtype != y.dtype:
        return NotImplemented
    d, low = (x, y) if isinstance(y, LowRank) else (y, x)
    return Diagonal(low.diagonal() * d.diagonal())


@register("mul")
def _(x: LowRank, y: LowRank, **params: Any) -> Any:
    r"""The rows of the factors multiply in all pairs: the rank is the product of the ranks."""
    pairs = x.as_matrices(), y.as_matrices()
    if x.shape != y.shape or x.dtype != y.dtype or None in pairs:
        return NotImplemented
    n, m = x.shape[-2:]
    rank = x.rank * y.rank
    if not is_less(rank * (n + m), n * m):
        return NotImplemented  # The dense product takes no more room.
    (a, b), (c, d) = pairs
    columns = a[..., :, None] * c[..., None, :]
    rows = b[..., :, None, :] * d[..., None, :, :]
    batch = x.shape[:-2]
    return LowRank(columns.reshape(*batch, n, rank), rows.reshape(*batch, rank, m))

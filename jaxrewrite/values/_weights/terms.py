"""Products of quantised arrays, apart from their operands."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .._base.contract import Labels, along_result, contract, sides
from .._base.structured import promoted
from .coded import Coded, blockwise


class Terms(NamedTuple):
    """A product apart from its operands: the axes of a quantised and of another array, and dtypes."""

    v: Labels
    x: Labels
    out: Labels
    dtype: Any
    precision: Any

    @property
    def wide(self) -> Any:
        """The dtype of sums. Levels may be as large as 255, which overflow 16 bits."""
        return promoted(self.dtype, jnp.float32)

    def of(self, v: Any, x: Any) -> Terms:
        """The same, with the dtype of the result."""
        dtype = self.dtype or jnp.result_type(v.dtype, x.dtype)
        return self._replace(dtype=jnp.dtype(dtype))

    def multiply(self, v: Any, x: Any, dtype: Any) -> Any:
        params = {"precision": self.precision, "preferred_element_type": jnp.dtype(dtype)}
        return contract(v, self.v, x, self.x, self.out, **params)


def terms_of(
    x: Any,
    y: Any,
    *,
    dimension_numbers: Any,
    precision: Any,
    preferred_element_type: Any,
    **params: Any,
) -> tuple[Any, Any, Terms]:
    """The quantised operand of a ``dot_general``, the other one, and their product."""
    seen = sides(Coded, x, y, dimension_numbers)
    terms = Terms(seen.of_v, seen.of_other, seen.out, preferred_element_type, precision)
    return seen.v, seen.other, terms.of(seen.v, seen.other)


def rows_of(x: Any, terms: Terms) -> int | float:
    """How often each entry of the quantised array is used.

    A number that is symbolic, as in `jax.export`, counts as many.
    """
    sizes = [n for n, label in zip(x.shape, terms.x, strict=True) if label not in terms.v]
    rows = math.prod(sizes)
    return rows if isinstance(rows, int) else math.inf


def is_scaled_after(v: Coded, terms: Terms) -> bool:
    """Whether the entries that are summed share a scale, so that the sum is scaled."""
    return _has_scales_along(v, terms.v, terms.out)


def is_scaled_before(v: Coded, terms: Terms) -> bool:
    """Whether the other operand can be scaled, and not the quantised one."""
    return _has_scales_along(v, terms.v, terms.x)


def _has_scales_along(v: Coded, labels_of_v: Labels, labels: Labels) -> bool:
    """Whether the scales are the same along all axes but those with some labels."""
    scale = jax.eval_shape(type(v).scale_of_blocks, v)
    return all(
        k == 1
        for k, label in zip(scale.shape, labels_of_v, strict=True)
        if label not in labels
    )


def scaled(raw: Any, v: Coded, terms: Terms) -> Any:
    """Multiply the product with the levels by the scales."""
    scale = along_result(v.scale_of_blocks(), terms.v, terms.out)
    return blockwise(jnp.multiply, raw, scale.astype(raw.dtype)).astype(terms.dtype)

"""Products with transposes of values, as products with the values themselves.

``x @ v.T`` is two equations. For a type whose products sum along any axis equally well, the
first one only moves what the second one could read where it is. A compiler does not undo that
if the leaves are codes of four bits, or packed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jax import lax

from .site import Site
from .value import Value, is_value


class Transposes:
    """The values that equations have transposed, and what they were before."""

    def __init__(self) -> None:
        self._found: dict[int, tuple[Any, Value, tuple[int, ...]]] = {}

    def note(
        self,
        site: Site,
        operands: Sequence[Any],
        results: Sequence[Any],
        map_leaves: Callable[..., Sequence[Any]],
    ) -> None:
        """Remember the result of an equation, if it is a transpose.

        ``map_leaves`` adds equations that apply the primitive of a site to each leaf. A `Lora`
        stops gradients before and after it transposes its base.
        """
        if site.primitive is lax.transpose_p:
            (value,), (result,) = operands, results
            if is_value(value) and value._sums_along_any_axis and is_value(result):
                permutation = site.params["permutation"]
                if id(value) in self._found:
                    _, value, before = self._found[id(value)]
                    permutation = tuple(before[axis] for axis in permutation)
                self._found[id(result)] = result, value, permutation
        elif site.primitive.name == "stop_gradient" and id(operands[0]) in self._found:
            _, value, permutation = self._found[id(operands[0])]
            (value,), (result,) = map_leaves(site, [value]), results
            self._found[id(result)] = result, value, permutation

    def undone(self, site: Site, operands: Sequence[Any]) -> tuple[Site, Sequence[Any]]:
        """A product and its operands, without the transposes of them that it can do without."""
        if not self._found or site.primitive is not lax.dot_general_p:
            return site, operands
        operands, (summed, batch) = (
            list(operands),
            map(list, site.params["dimension_numbers"]),
        )
        for i, operand in enumerate(operands):
            if id(operand) not in self._found:
                continue
            _, value, permutation = self._found[id(operand)]
            used = (*summed[i], *batch[i])
            kept = [axis for j, axis in enumerate(permutation) if j not in used]
            # The other axes have the same order in the result.
            if kept == sorted(kept):
                operands[i] = value
                summed[i] = tuple(permutation[j] for j in summed[i])
                batch[i] = tuple(permutation[j] for j in batch[i])
        numbers = tuple(summed), tuple(batch)
        return site.with_params(dimension_numbers=numbers), operands

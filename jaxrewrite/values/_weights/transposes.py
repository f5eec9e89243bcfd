"""Products with transposes of quantised weights, as products with the weights themselves.

``x @ v.T`` is two equations. A product with a quantised weight sums along any axis equally
well. So the first one only moves what the second one could read where it is. A compiler does
not undo that if the leaves are codes of four bits, or packed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from jax.extend.core import JaxprEqn

from jaxrewrite.extend import OperandsHook, register_operands_hook

from .coded import Coded


class _Moved(NamedTuple):
    """A transpose of a weight, by the axes of the weight that its own axes are."""

    result: Any
    weight: Coded
    axes: tuple[int, ...]


class Transposes(OperandsHook):
    """Knows which weights a program has transposed, and gives products the weights."""

    primitives = frozenset({"transpose", "stop_gradient", "dot_general"})

    def __init__(self, analysis: Callable[..., Any]) -> None:
        # By the identity of the result, which stays alive here.
        self._moved: dict[int, _Moved] = {}

    def results(
        self,
        eqn: JaxprEqn,
        operands: Sequence[Any],
        results: Sequence[Any],
        leafwise: Callable[[Any], Any],
    ) -> None:
        operand, result = operands[0], results[0]
        known = self._moved.get(id(operand))
        if eqn.primitive.name == "transpose":
            if isinstance(operand, Coded) and isinstance(result, Coded):
                axes = tuple(eqn.params["permutation"])
                if known is not None:
                    operand, axes = known.weight, tuple(known.axes[axis] for axis in axes)
                self._moved[id(result)] = _Moved(result, operand, axes)
        # A `Lora` stops gradients before and after it transposes its base.
        elif eqn.primitive.name == "stop_gradient" and known is not None:
            self._moved[id(result)] = _Moved(result, leafwise(known.weight), known.axes)

    def operands(
        self, eqn: JaxprEqn, operands: Sequence[Any]
    ) -> tuple[JaxprEqn, Sequence[Any]]:
        if not self._moved or eqn.primitive.name != "dot_general":
            return eqn, operands
        operands = list(operands)
        summed, batch = map(list, eqn.params["dimension_numbers"])
        for i, operand in enumerate(operands):
            if id(operand) not in self._moved:
                continue
            _, weight, axes = self._moved[id(operand)]
            used = (*summed[i], *batch[i])
            kept = [axis for j, axis in enumerate(axes) if j not in used]
            # The other axes have the same order in the result.
            if kept == sorted(kept):
                operands[i] = weight
                summed[i] = tuple(axes[j] for j in summed[i])
                batch[i] = tuple(axes[j] for j in batch[i])
        numbers = tuple(summed), tuple(batch)
        return eqn.replace(params={**eqn.params, "dimension_numbers": numbers}), operands


register_operands_hook(Transposes)

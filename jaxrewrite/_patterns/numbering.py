"""Which equations compute the same: an array that a program computes twice is one to a pattern.

JAX keeps both equations where an expression is written twice, as its own functions do where
they need an array twice. No pattern could say how often.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .._analyses.calls import Number
from .._analyses.graph import Graph, Node, Ref
from .._analyses.same import same_equation, same_refs
from .._compat import JaxprEqn


if TYPE_CHECKING:
    from .view import Frame, Location


# Primitives whose result is another array each time that it is made.
_NEVER_THE_SAME = {"empty", "rng_uniform"}


class Numbering:
    """Numbers of equations, the same for equations that make the same of the same arrays.

    Each equation gets its number once, when it is first asked for, so that all questions
    together take time in proportion to the program.
    """

    def __init__(self, resolve: Callable[[Frame, Any], Any]):
        self._resolve = resolve
        self._numbers: dict[Location, int] = {}
        self._count = 0
        # The first equation of each number, by its hashable parts.
        self._first: dict[Any, list[tuple[JaxprEqn, int]]] = {}

    def of(self, location: Location) -> int:
        pending = [location]
        while pending:
            frame, i = pending[-1]
            if pending[-1] in self._numbers:
                pending.pop()
                continue
            eqn = frame.eqn(i)
            sources = [self._resolve(frame, atom) for atom in eqn.invars]
            unknown = [
                (source.frame, source.index)
                for source in sources
                if _is_made(source) and (source.frame, source.index) not in self._numbers
            ]
            if not unknown:
                self._numbers[frame, i] = self._number(eqn, map(self._known, sources))
            pending += unknown
        return self._numbers[location]

    def _known(self, source: Any) -> Any:
        """The source of an operand whose equation has a number; hashable."""
        if source is None:
            return object()
        if type(source) is Number:
            return source.value.dtype, source.value.tobytes()
        if not _is_made(source):
            return source.frame, source.var
        return self._numbers[source.frame, source.index], source.k

    def _number(self, eqn: JaxprEqn, operands: Any) -> int:
        if not eqn.effects and eqn.primitive.name not in _NEVER_THE_SAME:
            key = eqn.primitive, eqn.ctx, tuple(operands), _hashable(eqn.params)
            known = self._first.setdefault(key, [])
            for other, number in known:
                if same_equation(eqn, other):
                    return number
            known.append((eqn, self._count))
        self._count += 1
        return self._count - 1


def _is_made(source: Any) -> bool:
    """Whether an equation makes an operand."""
    return source is not None and type(source) is not Number and source.index >= 0


def _hashable(params: Any) -> tuple[Any, ...]:
    """Enough of the parameters to tell most equations of one operand from each other."""
    return tuple(value for value in params.values() if _is_whole(value))


def _is_whole(value: Any) -> bool:
    """Whether a parameter is a whole number or several."""
    if type(value) is tuple:
        return all(isinstance(size, (int, np.integer)) for size in value)
    return isinstance(value, (int, np.integer))


def merged(graph: Graph) -> Graph:
    """A graph with one node for all nodes that compute the same."""
    nodes: list[Node] = []
    like: dict[Any, list[int]] = {}
    number: list[int] = []

    def renamed(refs: Sequence[Ref]) -> tuple[Ref, ...]:
        return tuple(
            ("node", number[ref[1]], ref[2]) if ref[0] == "node" else ref for ref in refs
        )

    for node in graph.nodes:
        operands = renamed(node.operands)
        alike = like.setdefault(node.primitive, [])
        for n in alike:
            if same_refs(nodes[n].operands, operands) and (
                same_equation(nodes[n].eqn, node.eqn)
            ):
                number.append(n)
                break
        else:
            alike.append(len(nodes))
            number.append(len(nodes))
            nodes.append(Node(node.eqn, operands))
    if len(nodes) == len(graph.nodes):
        return graph
    return graph._replace(nodes=tuple(nodes), results=renamed(graph.results))

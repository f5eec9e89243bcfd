"""Minimum cuts: the cheapest assignment of equations to two sides.

The nodes of a network are given to the side of the source or to that of the sink. An edge costs
its capacity if it leads from the source's side to the sink's. By the theorem of Ford and Fulkerson
the cheapest assignment is found with a maximum flow, here by Dinic's algorithm [1]_: it fills all
shortest paths at once, and then longer ones. Paths in our networks are as long as chains of equations
whose results are values, so a few rounds are enough.

.. [1] E. A. Dinic, "Algorithm for solution of a problem of maximum flow in networks with power
   estimation", *Soviet Math. Dokl.* 11, 1970.
"""

from __future__ import annotations

import collections
from collections.abc import Hashable, Mapping


SOURCE, SINK = "source", "sink"

# Flows are sums and differences of floating-point numbers.
_NOTHING = 1e-15


class Network:
    """Nodes, and edges with capacities."""

    def __init__(self) -> None:
        self._left: dict[Hashable, dict[Hashable, float]] = collections.defaultdict(dict)

    def add(self, start: Hashable, end: Hashable, capacity: float) -> None:
        """Add an edge, or capacity to one that is there."""
        self._left[start][end] = self._left[start].get(end, 0.0) + capacity
        self._left[end].setdefault(start, 0.0)

    def sink_side(self) -> set[Hashable]:
        """The nodes of the sink's side in a minimum cut, the smallest such set."""
        while SINK in (distances := self._distances()):
            self._fill_shortest(distances)
        side: set[Hashable] = {SINK}
        stack: list[Hashable] = [SINK]
        while stack:
            node = stack.pop()
            for other in self._left[node]:
                if other not in side and self._left[other][node] > _NOTHING:
                    side.add(other)
                    stack.append(other)
        return side - {SINK}

    def _distances(self) -> dict[Hashable, int]:
        """The distances from the source to the nodes that more can flow to."""
        distances: dict[Hashable, int] = {SOURCE: 0}
        queue: collections.deque[Hashable] = collections.deque([SOURCE])
        while queue:
            node = queue.popleft()
            for other, left in self._left[node].items():
                if other not in distances and left > _NOTHING:
                    distances[other] = distances[node] + 1
                    queue.append(other)
        return distances

    def _fill_shortest(self, distances: Mapping[Hashable, int]) -> None:
        """Let flow along shortest paths, until each of them has a full edge."""
        untried = {
            node: [
                other
                for other in self._left[node]
                if distances.get(other) == distances[node] + 1
            ]
            for node in distances
        }
        path: list[Hashable] = [SOURCE]
        while path:
            node = path[-1]
            if node == SINK:
                self._augment(path)
                path = [SOURCE]
                continue
            others = untried[node]
            while others and self._left[node][others[-1]] <= _NOTHING:
                others.pop()
            if others:
                path.append(others[-1])
            else:
                path.pop()
                if path:
                    untried[path[-1]].pop()

    def _augment(self, path: list[Hashable]) -> None:
        edges = list(zip(path, path[1:], strict=False))
        flow = min(self._left[a][b] for a, b in edges)
        if flow == float("inf"):
            raise ValueError("Edges of infinite capacity lead from the source to the sink.")
        for a, b in edges:
            self._left[a][b] -= flow
            self._left[b][a] += flow

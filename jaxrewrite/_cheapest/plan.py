"""Which equations of a jaxpr are to be dense, by the least total cost.

The equations that values meet, the values that they hand on, and the values that come from outside
are a graph. An equation is implicit or dense. If it is dense so are all that take its result, as
this is an array; and each value among its operands that an implicit equation or the outside gave has
to be made dense, once for all dense equations that take it. The sum of the costs is that of a cut,
and the least is found as a minimum cut. Stone [1]_ assigns the modules of a program to two processors
in this way, with the costs of communication in the place of ours of making values dense. So the
choice is the best one for the whole jaxpr, not equation by equation: a value becomes dense where
all of its uses together pay for it, and the transposes on the way to a use are no obstacle.

The costs of the implicit equations are those of a trial, in which all are implicit. What is implicit
in the end meets the same values as in the trial, so they are exact as far as the model is. In the
bodies of an implicit equation, and in rules, each jaxpr was planned in the same way before.

What it does not see: uses in other jaxprs. A value that two rules or two bodies make dense is
paid for by each, unless the equations around these become dense as a whole. The equation of a loop
is dense or implicit as a whole, and what only its body makes dense is made in each turn.

.. [1] H. S. Stone, "Multiprocessor scheduling with the aid of network flow algorithms", *IEEE
   Trans. Softw. Eng.* SE-3(1), 1977.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from .._compat import JaxprEqn
from .._core.value import Value
from .._insight.report import Choice
from .cut import SINK, SOURCE, Network


@dataclasses.dataclass(eq=False)
class Use:
    """An equation that met values in the trial.

    ``values`` are those among its operands, and ``made`` those that are its results. ``implicit``
    and ``dense`` are its costs, the latter infinite if it may not be dense. ``peak`` is what the
    choices inside of it keep dense at once while it is implicit, in bytes.
    """

    eqn: JaxprEqn
    values: Sequence[Value]
    made: Sequence[Value]
    implicit: float
    dense: float
    peak: float


class Making(NamedTuple):
    """What it costs to make a value dense; it is infinite for one that may not be.

    ``is_sunk`` tells whether the value becomes dense in any case.
    """

    seconds: float
    bytes: float
    is_sunk: bool = False


class Plan(NamedTuple):
    """The choice for each equation, and the bytes that are dense at once by choice."""

    choices: Mapping[int, Choice]
    peak: float


def plan(uses: Sequence[Use], making: Mapping[int, Making], limit: float) -> Plan:
    """Choose between implicit and dense for each use.

    ``making`` has the costs for the values, by identity.
    """
    producers = {id(v): i for i, use in enumerate(uses) for v in use.made}
    barred: set[int] = set()
    while True:
        dense = _cut(uses, making, producers, barred)
        chosen = _made_dense(uses, making, producers, dense)
        peak = _peak(uses, making, producers, dense, chosen)
        if peak <= limit or not dense:
            break
        # The largest array goes first. Without any, only choices inside of equations are left.
        sizes = {v: making[v].bytes for v in chosen} or {
            id(v): making[id(v)].bytes for i in dense for v in uses[i].values
        }
        barred.add(max(sizes, key=sizes.__getitem__))
    choices = {
        id(use.eqn): Choice(
            use.implicit,
            use.dense,
            sum(making[id(v)].seconds for v in use.values if not making[id(v)].is_sunk),
            i in dense,
        )
        for i, use in enumerate(uses)
        if math.isfinite(use.dense)
    }
    return Plan(choices, peak)


def _cut(
    uses: Sequence[Use],
    making: Mapping[int, Making],
    producers: Mapping[int, int],
    barred: set[int],
) -> set[int]:
    """The uses on the dense side of a minimum cut."""
    network = Network()
    for i, use in enumerate(uses):
        may_be_dense = not barred.intersection(map(id, use.values))
        dense = use.dense if may_be_dense else math.inf
        # What both cost plays no part.
        network.add(i, SINK, max(use.implicit - dense, 0.0))
        network.add(SOURCE, i, max(dense - use.implicit, 0.0))
        for value in use.values:
            producer: Any = producers.get(id(value), SOURCE)
            if producer is not SOURCE:
                network.add(i, producer, math.inf)
            if not making[id(value)].is_sunk:
                network.add(("dense", id(value)), i, math.inf)
    for key in {id(value) for use in uses for value in use.values}:
        producer = producers.get(key, SOURCE)
        if not making[key].is_sunk:
            network.add(producer, ("dense", key), making[key].seconds)
        elif producer is not SOURCE:
            network.add(producer, SINK, making[key].seconds)
    return {node for node in network.sink_side() if isinstance(node, int)}


def _made_dense(
    uses: Sequence[Use],
    making: Mapping[int, Making],
    producers: Mapping[int, int],
    dense: set[int],
) -> set[int]:
    """The values that become dense by choice."""
    return {
        id(value)
        for i in dense
        for value in uses[i].values
        if producers.get(id(value)) not in dense and not making[id(value)].is_sunk
    }


def _peak(
    uses: Sequence[Use],
    making: Mapping[int, Making],
    producers: Mapping[int, int],
    dense: set[int],
    chosen: set[int],
) -> float:
    """The bytes of arrays that are dense by choice, where most of them live at once."""
    changes = [0.0] * (len(uses) + 1)
    for key, first, last in _lifetimes(uses, producers, dense, chosen):
        changes[first] += making[key].bytes
        changes[last + 1] -= making[key].bytes
    peak = live = 0.0
    for i, use in enumerate(uses):
        live += changes[i]
        # The bodies of a dense equation run on arrays, and nothing in them is left to choose.
        peak = max(peak, live + (0.0 if i in dense else use.peak))
    return peak


def _lifetimes(
    uses: Sequence[Use], producers: Mapping[int, int], dense: set[int], chosen: set[int]
) -> Iterable[tuple[int, int, int]]:
    """The values that are arrays by choice, each with its first and last use."""
    places: dict[int, list[int]] = {}
    for i, use in enumerate(uses):
        for value in use.values:
            places.setdefault(id(value), []).append(i)
    for key in {*places, *producers}:
        at = [i for i in places.get(key, ()) if i in dense]
        if key in chosen:
            yield key, min(at), max(at)
        elif producers.get(key) in dense:
            # It may be a result of the program, which lives until the end.
            yield key, producers[key], max(at) if at else len(uses) - 1

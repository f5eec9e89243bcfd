"""The cheapest choice for a graph of equations, against all choices."""

import itertools
import math
import random

import pytest

from jaxrewrite._cheapest.cut import SINK, SOURCE, Network
from jaxrewrite._cheapest.plan import Making, Use, plan


class Equation:
    """It stands for an equation, whose identity alone matters."""


class Array:
    """It stands for a value."""


def random_graph(seed):
    """Uses of values in the order of a program; costs are whole numbers."""
    r = random.Random(seed)
    values = [Array() for _ in range(r.randint(1, 2))]
    uses = []
    for _ in range(r.randint(1, 6)):
        operands = r.sample(values, r.randint(1, min(2, len(values))))
        made = [Array() for _ in range(r.choice([0, 0, 1]))]
        dense = math.inf if r.random() < 0.15 else r.randint(0, 9)
        uses.append(Use(Equation(), operands, made, r.randint(0, 9), dense, 0.0))
        values += made
    making = {
        id(v): Making(
            math.inf if r.random() < 0.1 else r.randint(0, 9),
            r.randint(1, 5),
            r.random() < 0.1,
        )
        for v in values
    }
    return uses, making


def producer(uses, value):
    return next((use for use in uses if any(v is value for v in use.made)), None)


def cost(uses, making, dense):
    """The total cost if the equations of some uses are dense; infinite if that can't be."""
    total, paid = 0.0, set()
    for use in uses:
        total += use.dense if use in dense else use.implicit
        for value in use.values:
            by = producer(uses, value)
            if by in dense and use not in dense:
                return math.inf  # It would take an array.
            if use in dense and by not in dense and not making[id(value)].is_sunk:
                paid.add(id(value))
    sunk = {
        id(v): by
        for use in uses
        for v in use.values
        if making[id(v)].is_sunk and (by := producer(uses, v)) is not None
    }
    total += sum(making[v].seconds for v, by in sunk.items() if by not in dense)
    return total + sum(making[v].seconds for v in paid)


def dense_of(uses, made):
    return [use for use in uses if id(use.eqn) in made and made[id(use.eqn)].is_dense]


@pytest.mark.parametrize("seeds", [range(i, i + 50) for i in range(0, 200, 50)], ids=str)
def test_no_other_choice_is_cheaper(seeds):
    for seed in seeds:
        uses, making = random_graph(seed)
        choices = (c for n in range(len(uses) + 1) for c in itertools.combinations(uses, n))
        least = min(cost(uses, making, dense) for dense in choices)
        dense = dense_of(uses, plan(uses, making, math.inf).choices)
        assert cost(uses, making, dense) == pytest.approx(least)
        # Of equally cheap choices it takes the most implicit one.
        assert not dense or cost(uses, making, []) > least


@pytest.mark.parametrize("limit", [0, 3, 6])
def test_what_is_dense_by_choice_is_within_the_limit(limit):
    for seed in range(100):
        uses, making = random_graph(seed)
        chosen = plan(uses, making, limit)
        dense = dense_of(uses, chosen.choices)
        assert chosen.peak <= limit
        for i, _ in enumerate(uses):
            live = {
                id(v)
                for k, use in enumerate(uses)
                for v in use.values
                if use in dense
                and k >= i
                and not making[id(v)].is_sunk
                and any(
                    v is w
                    for other in dense
                    if uses.index(other) <= i
                    for w in other.values
                )
            }
            assert sum(making[v].bytes for v in live) <= limit


def test_the_limit_counts_what_choices_inside_of_equations_keep():
    v, w = Array(), Array()
    uses = [
        Use(Equation(), [v], [], 9.0, 1.0, 0.0),
        Use(Equation(), [w], [], 0.0, 9.0, 4.0),
        Use(Equation(), [v], [], 9.0, 1.0, 0.0),
    ]
    making = {id(v): Making(1.0, 5.0), id(w): Making(1.0, 5.0)}
    assert [len(dense_of(uses, plan(uses, making, n).choices)) for n in (8, 9)] == [0, 2]
    assert [plan(uses, making, n).peak for n in (8, 9)] == [4.0, 9.0]


def test_the_limit_does_not_count_what_dense_equations_would_keep():
    v = Array()
    uses = [Use(Equation(), [v], [], 9.0, 1.0, 4.0) for _ in range(2)]
    chosen = plan(uses, {id(v): Making(1.0, 5.0)}, 5)
    assert (len(dense_of(uses, chosen.choices)), chosen.peak) == (2, 5.0)


def test_a_value_is_paid_once():
    v = Array()
    uses = [Use(Equation(), [v], [], 5.0, 1.0, 0.0) for _ in range(2)]
    making = {id(v): Making(6.0, 1.0)}
    assert len(dense_of(uses, plan(uses, making, math.inf).choices)) == 2
    assert dense_of(uses[:1], plan(uses[:1], making, math.inf).choices) == []


def test_a_network_without_a_finite_cut_is_an_error():
    network = Network()
    network.add(SOURCE, SINK, math.inf)
    with pytest.raises(ValueError, match="infinite"):
        network.sink_side()

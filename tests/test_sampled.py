"""The cases of the long run that a commit chooses."""

import random
import types

import sampled


CASES = [f"test_{name}.py::test[{i}]" for name in ("one", "two", "three") for i in range(4)]


def chosen(seed, names=(*CASES, "tests/sweep/test_found.py::test")):
    items = [types.SimpleNamespace(nodeid=name) for name in names]
    return [item.nodeid for item in sampled.in_turn(items, random.Random(seed))]


def test_each_test_has_its_turn_before_another_case_of_one():
    cases = chosen("a")
    assert sorted(cases) == sorted(CASES)
    for turn in range(0, 12, 3):
        tests = {name.partition("[")[0] for name in cases[turn : turn + 3]}
        assert len(tests) == 3


def test_the_seed_alone_chooses():
    assert chosen("a") == chosen("a") != chosen("b")

"""The cases that are in the long run because they repeat others."""

import pathlib

import pytest
import repeats


CASE = "test.py::test"


def of(*places, seconds=1.0):
    return {"seconds": seconds, "places": list(places)}


def test_the_longest_of_the_cases_that_repeat_others_leave():
    tests = {f"{CASE}[{i}]": of("a", "b", seconds=i) for i in range(1, 10)}
    assert list(repeats.repeating(tests)) == [f"{CASE}[{i}]" for i in range(9, 2, -1)]


def test_each_place_stays_with_a_test():
    tests = {f"{CASE}[{i}]": of("a", str(i), str(i % 5)) for i in range(10)}
    leave = {*repeats.repeating(tests)}
    assert leave
    passed = [
        {x for test in some for x in test["places"]}
        for some in (
            tests.values(),
            [test for name, test in tests.items() if name not in leave],
        )
    ]
    assert passed[0] == passed[1]


@pytest.mark.parametrize(
    "tests",
    [
        {"test_one": of("a"), "test_two": of("a"), "test_three": of("a")},
        {f"{CASE}[{i}]": of("a", seconds=0.01) for i in range(9)},
        {f"{CASE}[{i}]": of("a") for i in range(1)},
        {f"tests/testing/{CASE}[{i}]": of("a") for i in range(9)},
    ],
    ids=["no cases", "short", "one case", "elsewhere"],
)
def test_others_stay(tests):
    assert not list(repeats.repeating(tests))


def test_each_case_of_the_list_is_of_a_test():
    root = pathlib.Path(repeats.__file__).parents[1]
    for name in repeats.listed():
        path, _, test = name.partition("::")
        assert f"def {test.partition('[')[0]}(" in (root / path).read_text(), name

"""The tool that plants defects: which it plants, and that tests find one."""

import ast
import gc
import itertools

import pytest

from mutation.__main__ import (
    PACKAGE,
    Met,
    Record,
    Runs,
    _codes,
    _relevant,
    key_of,
    known_survivors,
)
from mutation.plant import defects, planted


SOURCE = """
SIGN = -SIZE

@decorated(lambda f: f - SIGN)
def outer(f):
    def inner(x):
        if f is None:
            return NotImplemented
        return jnp.subtract(x, f(x)) + jnp.maximum(x, f(x))
    def other(x):
        return x - f(x)
    return inner, other

def rule(x, y, axis):
    if x.ndim != 2:
        return NotImplemented
    if x.shape[0] < 3:
        return x @ y - y
    if not (
        x.shape[0] < 4 and is_small(x)
    ):
        return y
    return jnp.sum(x, axis=-1)
"""


@pytest.mark.parametrize(
    "kind, line",
    [
        ("skipped decline", "if False and x.ndim != 2:"),
        ("wrong entry", "if x.shape[1] < 3:"),
        ("other bound", "if x.shape[0] <= 3:"),
        ("negated condition", "if not x.shape[0] < 3:"),
        ("exchanged operands", "return y @ x - y"),
        ("exchanged operands", "return y - x @ y"),
        ("dropped term", "return x @ y - (y if False else 0)"),
        ("wrong axis", "return jnp.sum(x, axis=-2)"),
        ("exchanged arguments", "return jnp.subtract(f(x), x) + jnp.maximum(x, f(x))"),
    ],
)
def test_defects_that_are_planted(kind, line):
    found = [d for d in defects("rule.py", SOURCE) if d.kind == kind]
    texts = [ast.unparse(planted(SOURCE, defect)) for defect in found]
    assert any(line in text for text in texts), texts
    assert all(text != ast.unparse(ast.parse(SOURCE)) for text in texts)


def test_functions_with_a_defect_have_the_variables_of_those_without():
    def variables(tree):
        return [code.co_freevars for code in _codes(compile(tree, "rule.py", "exec"))]

    want = variables(ast.parse(SOURCE))
    assert "f" in itertools.chain(*want)
    for defect in defects("rule.py", SOURCE):
        assert variables(planted(SOURCE, defect)) == want, defect


def test_defects_are_in_functions():
    """The tests of a lambda are those that run it, not those that make it."""
    lines = SOURCE.splitlines()
    found = {
        (lines[d.line - 1].strip(), d.is_in_lambda) for d in defects("rule.py", SOURCE)
    }
    assert ("@decorated(lambda f: f - SIGN)", True) in found
    assert ("return jnp.subtract(x, f(x)) + jnp.maximum(x, f(x))", False) in found
    assert not any("SIZE" in line for line, _ in found)


def test_a_condition_stands_on_the_line_that_runs_first():
    lines = SOURCE.splitlines()
    (found,) = [
        d for d in defects("rule.py", SOURCE) if d.text.startswith("if not (x.shape[0] < 4")
    ]
    assert lines[found.line - 1].strip() == "x.shape[0] < 4 and is_small(x)"


def test_the_tests_of_a_line_are_those_that_run_it():
    place, other = "a.py:3", "a.py:3 in a lambda"
    first = {"places": [place, other], "tests": {"one": [0.5, "1"], "two": [0.1, "3"]}}
    record = Record([first, {"places": [other], "tests": {"three": [2.0, "1"]}}])
    assert record.tests_of(place) == [(0.5, "one", 0.5), (0.1, "two", 1.0)]
    assert record.tests_of(other) == [(0.1, "two", 1.0), (2.0, "three", 0.5)]
    assert record.tests_of("a.py:4") == []


def test_arguments_that_can_change_places_stay():
    found = [d for d in defects("rule.py", SOURCE) if d.kind == "exchanged arguments"]
    assert [d.text for d in found] == ["jnp.subtract(x, f(x))"]


def test_each_file_has_its_turn():
    took = {"a::1": 0.1, "a::2": 0.2, "a::3": 0.3, "b::1": 0.4, "c::1": 90.0}
    tests = [Met(seconds, test, 1.0) for test, seconds in took.items()]
    assert _relevant(tests, 2.0) == [["a::1", "b::1"], ["a::2", "a::3"]]
    assert _relevant(tests[-1:], 2.0) == [["c::1"]]


def test_what_all_programs_pass_has_the_tests_of_what_it_is_for():
    tests = [Met(0.25, f"a::{i}", 1.0) for i in range(8)] + [Met(0.5, "a::own", 9.0)]
    assert _relevant(tests, 1.0) == [["a::0"], ["a::1", "a::own"]]


def test_survivors_that_are_listed_are_defects_of_the_library():
    known = known_survivors()
    files = {text.split()[0] for text in known}
    found = {
        key_of(defect)
        for file in files
        for defect in defects(file, (PACKAGE / file).read_text())
    }
    assert known <= found


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*os.fork")
def test_tests_find_a_defect():
    file = "_insight/text.py"
    found = [
        defect
        for defect in defects(file, (PACKAGE / file).read_text())
        if "abs(number) >= 999.5" in defect.text and defect.kind == "other bound"
    ]
    tests = "tests/insight/test_explain.py::test_"
    gc.unfreeze()  # Functions that are frozen are none of those that `gc.get_objects` gives.
    runs = Runs()
    gc.freeze()
    one, other = (
        [tests + name]
        for name in ("methods_and_keywords", "numbers_have_three_digits_and_a_prefix")
    )
    assert runs.verdict(found[0], [one]) == ("survived", "")
    assert runs.verdict(found[0], [one, other]) == ("killed", other[0])
    assert not runs.failing_without_a_defect({*one, *other})

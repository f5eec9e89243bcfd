"""Cases of tests that ask what other cases ask: they are in the long run alone.

A case repeats others if another test of the default run runs each line of the library that it
runs, and goes each way that it goes at a branch. Of the cases of a test the longest ones that
repeat others leave the default run, until an eighth of the cases is left, or one.
``repeats.txt`` has them; to choose anew::

    PYTHONPATH=tests python -m pytest -n auto -p repeats --places places.json
    PYTHONPATH=tests python -m repeats places.json

What the default run finds without them is told by ``python -m mutation``.
"""

import collections
import json
import os
import pathlib
import sys
import time

import pytest
from mutation.recorder import clear_caches_of_functions


PACKAGE = str(pathlib.Path(__file__).parents[1] / "jaxrewrite") + os.sep
LISTED = pathlib.Path(__file__).with_suffix(".txt")

# Each case there is of another defect, or of another program, whichever places it passes.
ELSEWHERE = (
    *("tests/testing/", "tests/sweep/", "tests/mutation/", "docs/"),
    *(
        "tests/patterns/test_table_stable.py",
        "tests/higher_order/test_families.py",
        "tests/core/test_function_rules.py",
        "tests/core/test_patterns.py",
        "tests/core/test_same.py",
        "tests/core/test_written.py",
    ),
)
# Shorter cases stay: they may differ by more than places, and take little.
SECONDS = 0.02
# So many tests pass each place of a case that leaves, with that case.
TESTS = 2
# A test keeps this part of its cases, and one.
KEPT = 1 / 8


def listed():
    """The cases of the list."""
    lines = LISTED.read_text().splitlines()
    return {line for line in lines if line and not line.startswith("#")}


def mark(config, items):
    """Leave the cases of the list to the long run, if they are not chosen anew."""
    names = set() if config.getoption("--places", None) else listed()
    for item in items:
        if item.nodeid in names:
            item.add_marker(pytest.mark.slow)


# --- which places a test passes -----------------------------------------------------------


def pytest_addoption(parser):
    parser.addoption("--places", help="a file for the places that each test passes")


def pytest_configure(config):
    if config.getoption("--places"):
        config.pluginmanager.register(Recorder(config), "jaxrewrite-places")


class Recorder:
    """One for each process of a run; each writes a file of its own, and the last one joins them.

    A place is a line, or a way that a branch goes: one line may have several. Each test passes
    those behind a cache of a function, too.
    """

    def __init__(self, config):
        self.path = pathlib.Path(config.getoption("--places")).absolute()
        self.worker = getattr(config, "workerinput", {}).get("workerid")
        self.tests = {}
        self.numbers = collections.defaultdict(lambda: len(self.numbers))
        self.passed = set()
        monitoring = sys.monitoring
        self.tool = monitoring.COVERAGE_ID
        monitoring.use_tool_id(self.tool, "jaxrewrite")
        for event, callback in {
            monitoring.events.PY_START: self.started,
            monitoring.events.LINE: self.at_line,
            monitoring.events.BRANCH: self.at_branch,
        }.items():
            monitoring.register_callback(self.tool, event, callback)
        monitoring.set_events(self.tool, monitoring.events.PY_START)

    def started(self, code, offset):
        events = sys.monitoring.events
        if code.co_filename.startswith(PACKAGE):
            sys.monitoring.set_local_events(self.tool, code, events.LINE | events.BRANCH)
        return sys.monitoring.DISABLE

    def at_line(self, code, line):
        self.passed.add((code.co_filename, line))
        return sys.monitoring.DISABLE

    def at_branch(self, code, offset, to):
        where = code.co_filename, code.co_firstlineno, code.co_name, offset
        self.passed.add((*where, to))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        clear_caches_of_functions()
        self.passed = set()
        sys.monitoring.restart_events()
        start = time.process_time()
        result = yield
        seconds = round(time.process_time() - start, 3)
        self.add(item.nodeid, {"seconds": seconds, "places": self.passed})
        return result

    def add(self, name, test):
        """Places are numbered: most of them are in many tests."""
        numbers = [self.numbers[place] for place in test["places"]]
        self.tests[name] = {**test, "places": numbers}

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self):
        sys.monitoring.set_events(self.tool, 0)
        sys.monitoring.free_tool_id(self.tool)
        own = self.path
        if self.worker is None:
            for part in self.path.parent.glob(f"{self.path.stem}.gw*.json"):
                self.join(json.loads(part.read_text()))
                part.unlink()
        else:
            own = self.path.with_suffix(f".{self.worker}.json")
        own.write_text(json.dumps({"places": [*self.numbers], "tests": self.tests}))

    def join(self, other):
        places = list(map(tuple, other["places"]))
        for name, test in other["tests"].items():
            self.add(name, {**test, "places": [places[i] for i in test["places"]]})


# --- which cases repeat others ------------------------------------------------------------


def repeating(tests):
    """The cases that repeat others, the longest first."""
    counts = collections.Counter(x for test in tests.values() for x in test["places"])
    cases = collections.Counter(map(_test_of, tests))
    left = cases.copy()
    for name, test in sorted(tests.items(), key=lambda item: -item[1]["seconds"]):
        of = _test_of(name)
        if test["seconds"] < SECONDS or of.startswith(ELSEWHERE):
            continue
        if left[of] - 1 < max(1, KEPT * cases[of]):
            continue
        if all(counts[x] >= TESTS for x in test["places"]):
            counts.subtract(test["places"])
            left[of] -= 1
            yield name


def _test_of(name):
    return name.partition("[")[0]


if __name__ == "__main__":
    head = [line for line in LISTED.read_text().splitlines() if line.startswith("#")]
    found = repeating(json.loads(pathlib.Path(sys.argv[1]).read_text())["tests"])
    LISTED.write_text("\n".join([*head, *sorted(found), ""]))

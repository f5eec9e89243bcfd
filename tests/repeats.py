"""Cases of tests that ask what other cases ask: they are in the long run alone.

A case repeats others if each line of the library that it runs is run by another test of the
default run. Of the cases of a test the longest ones that repeat others leave the default run,
until an eighth of the cases is left, or one. ``repeats.txt`` has them; to choose anew::

    PYTHONPATH=tests python -m pytest -n auto -p repeats --lines lines.json
    PYTHONPATH=tests python -m repeats lines.json

What the default run finds without them is told by ``python -m mutation``.
"""

import collections
import json
import os
import pathlib
import sys
import time

import pytest


PACKAGE = str(pathlib.Path(__file__).parents[1] / "jaxrewrite") + os.sep
LISTED = pathlib.Path(__file__).with_suffix(".txt")

# Each case there is of another defect, or of another program, whichever lines it runs.
ELSEWHERE = (
    *("tests/testing/", "tests/sweep/", "tests/mutation/", "docs/"),
    *("tests/patterns/", "tests/higher_order/test_families.py"),
    *(
        "tests/core/test_patterns.py",
        "tests/core/test_same.py",
        "tests/core/test_written.py",
    ),
)
# Shorter cases are not worth a line of the list.
SECONDS = 0.02
# So many tests run each line of a case that leaves, with that case.
TESTS = 2
# A test keeps this part of its cases, and one.
KEPT = 1 / 8


def listed():
    """The cases of the list."""
    lines = LISTED.read_text().splitlines()
    return {line for line in lines if line and not line.startswith("#")}


def mark(config, items):
    """Leave the cases of the list to the long run, if they are not chosen anew."""
    names = set() if config.getoption("--lines", None) else listed()
    for item in items:
        if item.nodeid in names:
            item.add_marker(pytest.mark.slow)


# --- which lines a test runs --------------------------------------------------------------


def pytest_addoption(parser):
    parser.addoption("--lines", help="a file for the lines that each test runs")


def pytest_configure(config):
    if config.getoption("--lines"):
        config.pluginmanager.register(Recorder(config), "jaxrewrite-lines")


class Recorder:
    """One for each process of a run; each writes a file of its own, and the last one joins them."""

    def __init__(self, config):
        self.path = pathlib.Path(config.getoption("--lines")).absolute()
        self.worker = getattr(config, "workerinput", {}).get("workerid")
        self.tests = {}
        self.lines = set()
        monitoring = sys.monitoring
        self.tool = monitoring.COVERAGE_ID
        monitoring.use_tool_id(self.tool, "jaxrewrite")
        monitoring.register_callback(self.tool, monitoring.events.PY_START, self.started)
        monitoring.register_callback(self.tool, monitoring.events.LINE, self.at_line)
        monitoring.set_events(self.tool, monitoring.events.PY_START)

    def started(self, code, offset):
        if code.co_filename.startswith(PACKAGE):
            sys.monitoring.set_local_events(self.tool, code, sys.monitoring.events.LINE)
        return sys.monitoring.DISABLE

    def at_line(self, code, line):
        self.lines.add(f"{code.co_filename.removeprefix(PACKAGE)}:{line}")
        return sys.monitoring.DISABLE

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        self.lines = set()
        sys.monitoring.restart_events()
        start = time.process_time()
        result = yield
        seconds = round(time.process_time() - start, 3)
        self.tests[item.nodeid] = {"seconds": seconds, "lines": [*self.lines]}
        return result

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self):
        sys.monitoring.set_events(self.tool, 0)
        sys.monitoring.free_tool_id(self.tool)
        own = self.path
        if self.worker is None:
            for part in self.path.parent.glob(f"{self.path.stem}.gw*.json"):
                self.tests |= json.loads(part.read_text())
                part.unlink()
        else:
            own = self.path.with_suffix(f".{self.worker}.json")
        own.write_text(json.dumps(self.tests))


# --- which cases repeat others ------------------------------------------------------------


def repeating(tests):
    """The cases that repeat others, the longest first."""
    counts = collections.Counter(x for test in tests.values() for x in test["lines"])
    cases = collections.Counter(map(_test_of, tests))
    left = cases.copy()
    for name, test in sorted(tests.items(), key=lambda item: -item[1]["seconds"]):
        of = _test_of(name)
        if test["seconds"] < SECONDS or of.startswith(ELSEWHERE):
            continue
        if left[of] - 1 < max(1, KEPT * cases[of]):
            continue
        if all(counts[x] >= TESTS for x in test["lines"]):
            counts.subtract(test["lines"])
            left[of] -= 1
            yield name


def _test_of(name):
    return name.partition("[")[0]


if __name__ == "__main__":
    head = [line for line in LISTED.read_text().splitlines() if line.startswith("#")]
    found = repeating(json.loads(pathlib.Path(sys.argv[1]).read_text()))
    LISTED.write_text("\n".join([*head, *sorted(found), ""]))

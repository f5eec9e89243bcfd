"""Cases of the long run, chosen by a commit, as many as there is time for.

``.ci/run`` runs some each time, so that what the default run leaves out is met by what lands::

    PYTHONPATH=tests python -m pytest -m slow -p sampled --seconds 60 tests
"""

import collections
import random
import time

import pytest
from commits import hash_of


# These take minutes each, or are programs of the sweep.
TOO_LONG = ("tests/core/test_properties.py", "tests/sweep/")


def pytest_addoption(parser):
    parser.addoption(
        "--commit", default="HEAD", help="a revision whose hash chooses the cases"
    )
    parser.addoption("--seconds", type=float, default=60.0, help="begin no case after them")


def pytest_configure(config):
    config.pluginmanager.register(
        Sample(config.getoption("--seconds")), "jaxrewrite-sample"
    )


def pytest_collection_modifyitems(config, items):
    items[:] = in_turn(items, random.Random(hash_of(config.getoption("--commit"))))


def in_turn(items, choose):
    """One case of each test in any order, then another one of each, and so on."""
    cases = collections.defaultdict(list)
    for item in items:
        if not item.nodeid.startswith(TOO_LONG):
            cases[item.nodeid.partition("[")[0]].append(item)
    turns = []
    for of_test in cases.values():
        choose.shuffle(of_test)
        turns += [(turn, choose.random(), item) for turn, item in enumerate(of_test)]
    return [item for *_, item in sorted(turns, key=lambda turn: turn[:2])]


class Sample:
    """Leaves out the cases for which there is no time."""

    def __init__(self, seconds):
        self.seconds = seconds
        self.end = None
        self.run = 0

    def pytest_collection_finish(self):
        self.end = time.monotonic() + self.seconds

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self):
        is_over = time.monotonic() > self.end
        self.run += not is_over
        return is_over or None  # True is for what has been run.

    def pytest_terminal_summary(self, terminalreporter):
        terminalreporter.write_line(
            f"{self.run} cases of the long run in {self.seconds:.0f} s."
        )

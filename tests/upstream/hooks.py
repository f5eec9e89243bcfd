"""What the plugins of all upstream projects share: options, samples, and what a test reports."""

import fnmatch
import random
import zlib
from pathlib import Path

import pytest


def add_options(parser, *, draws):
    group = parser.getgroup("values")
    group.addoption("--sample", type=int, help="run so many tests, drawn by --seed")
    group.addoption("--seed", type=int, default=0)
    group.addoption("--draws", type=int, default=draws, help="checks of each function")
    group.addoption("--problems", type=Path, help="a file to write them to as they come")
    group.addoption("--forms", help="only these values, by name, with commas")
    return group


def select(config, items, skips):
    """Mark what is not checked, ``skips`` from patterns of tests to reasons; draw a sample."""
    for item in items:
        for pattern, reason in skips.items():
            if fnmatch.fnmatch(item.nodeid, f"*{pattern}"):
                item.add_marker(pytest.mark.skip(reason=reason))
    sample = config.getoption("sample")
    if sample is not None and sample < len(items):
        drawn = set(
            random.Random(config.getoption("seed")).sample(range(len(items)), sample)
        )
        config.hook.pytest_deselected(
            items=[item for i, item in enumerate(items) if i not in drawn]
        )
        items[:] = [item for i, item in enumerate(items) if i in drawn]


def checker_of(item, **how):
    """The checker of one test, by the options."""
    from .checks import Checker

    forms = item.config.getoption("forms")
    draws = item.config.getoption("draws")
    return Checker(item.name, draws, forms and forms.split(","), **how)


def report_values(item, call, report):
    """What values gave decides; a failure of the test itself is none of ours."""
    import jax

    checker = getattr(item, "checker", None)
    if call.when != "call" or checker is None:
        return
    if zlib.crc32(item.name.encode()) % 32 == 0:
        jax.clear_caches()  # thousands of programs would stay in memory
    if checker.problems:
        report.outcome = "failed"
        report.longrepr = "\n\n".join(checker.problems)
        if path := item.config.getoption("problems"):
            with path.open("a") as file:
                file.write(f"==== {item.nodeid}\n{report.longrepr}\n\n")
    elif report.outcome == "failed" or not checker.count:
        report.outcome = "skipped"
        reason = "fails by itself" if report.longrepr else "checks no function"
        report.longrepr = (str(item.path), 0, f"Skipped: {reason}")

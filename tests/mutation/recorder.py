"""A plugin of pytest, which records the lines of the library that each test runs.

Its seconds are those of the processor, which other processes on the machine do not lengthen.
Each test runs what is behind a cache of a function, as it does in a process of its own.
"""

import collections
import functools
import itertools
import json
import os
import pathlib
import sys
import time
import types

import pytest

from mutation.plant import place


PACKAGE = str(pathlib.Path(__file__).parents[2] / "jaxrewrite") + os.sep


def pytest_addoption(parser):
    parser.addoption("--record", help="a file for the lines that each test runs")


def pytest_configure(config):
    if config.getoption("--record"):
        config.pluginmanager.register(Recorder(config), "jaxrewrite-recorder")


class Recorder:
    """One for each process of a run; each writes a file of its own, and the last one joins them."""

    def __init__(self, config):
        self.path = pathlib.Path(config.getoption("--record")).absolute()
        self.worker = getattr(config, "workerinput", {}).get("workerid")
        self.is_parent = self.worker is None
        self.numbers = collections.defaultdict(itertools.count().__next__)
        self.tests = {}
        self.running = set()
        monitoring, self.tool = sys.monitoring, sys.monitoring.COVERAGE_ID
        monitoring.use_tool_id(self.tool, "jaxrewrite")
        monitoring.register_callback(self.tool, monitoring.events.PY_START, self.entered)
        monitoring.register_callback(self.tool, monitoring.events.LINE, self.ran)
        monitoring.set_events(self.tool, monitoring.events.PY_START)

    def entered(self, code, offset):
        """Ask for the lines of functions of the library alone; those of JAX are many more."""
        if code.co_filename.startswith(PACKAGE):
            sys.monitoring.set_local_events(self.tool, code, sys.monitoring.events.LINE)
        return sys.monitoring.DISABLE

    def ran(self, code, line):
        file = code.co_filename.removeprefix(PACKAGE)
        self.running.add(self.numbers[place(file, line, _is_in_lambda(code))])
        return sys.monitoring.DISABLE

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        clear_caches_of_functions()
        self.running.clear()
        sys.monitoring.restart_events()
        start = time.process_time()
        result = yield
        bits = sum(1 << number for number in self.running)
        self.tests[item.nodeid] = [round(time.process_time() - start, 3), f"{bits:x}"]
        return result

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self):
        sys.monitoring.set_events(self.tool, 0)
        sys.monitoring.free_tool_id(self.tool)
        parts = [{"places": [*self.numbers], "tests": self.tests}]
        own = self.path.with_suffix(f".{self.worker}.json") if self.worker else self.path
        if self.is_parent:
            for part in self.path.parent.glob(f"{self.path.stem}.gw*.json"):
                parts += json.loads(part.read_text())
                part.unlink()
        own.write_text(json.dumps(parts))


def _is_in_lambda(code):
    """Whether it is a lambda, or a generator's in one."""
    inner = code.co_qualname.removesuffix(".<locals>.<genexpr>")
    return inner.endswith("<lambda>")


def clear_caches_of_functions():
    """Those of the library that are bounded, or in a closure; others hold what a process has once."""
    modules = [x for name, x in sys.modules.items() if name.startswith("jaxrewrite.")]
    for x in [x for module in modules for x in vars(module).values()]:
        if isinstance(x, types.FunctionType):
            for cell in x.__closure__ or ():
                if isinstance(cell.cell_contents, functools._lru_cache_wrapper):
                    cell.cell_contents.cache_clear()
        if isinstance(x, functools._lru_cache_wrapper) and x.cache_parameters()["maxsize"]:
            x.cache_clear()

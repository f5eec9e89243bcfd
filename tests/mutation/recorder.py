"""A plugin of pytest, which records the functions of the library that each test runs.

Its seconds are those of the processor, which other processes on the machine do not lengthen.
Each test runs what is behind a cache of a function, as it does in a process of its own.
"""

import collections
import functools
import json
import os
import pathlib
import sys
import time
import types

import pytest


PACKAGE = str(pathlib.Path(__file__).parents[2] / "jaxrewrite") + os.sep


def pytest_addoption(parser):
    parser.addoption("--record", help="a file for the functions that each test runs")


def pytest_configure(config):
    if config.getoption("--record"):
        config.pluginmanager.register(Recorder(config), "jaxrewrite-recorder")


class Recorder:
    """One for each process of a run; each writes a file of its own, and the last one joins them."""

    def __init__(self, config):
        self.path = pathlib.Path(config.getoption("--record")).absolute()
        self.worker = getattr(config, "workerinput", {}).get("workerid")
        self.is_parent = self.worker is None
        self.tests = collections.defaultdict(lambda: {"functions": set(), "seconds": 0.0})
        self.running = None
        tool = sys.monitoring.COVERAGE_ID
        sys.monitoring.use_tool_id(tool, "jaxrewrite")
        event = sys.monitoring.events.PY_START
        sys.monitoring.register_callback(tool, event, self.started)
        sys.monitoring.set_events(tool, event)

    def started(self, code, offset):
        if self.running is not None and code.co_filename.startswith(PACKAGE):
            where = code.co_filename.removeprefix(PACKAGE)
            self.running.add(f"{where}:{code.co_firstlineno}")
        return sys.monitoring.DISABLE

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        clear_caches_of_functions()
        sys.monitoring.restart_events()
        test = self.tests[item.nodeid]
        self.running = test["functions"]
        start = time.process_time()
        result = yield
        test["seconds"] = round(time.process_time() - start, 3)
        self.running = None
        return result

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self):
        sys.monitoring.set_events(sys.monitoring.COVERAGE_ID, 0)
        sys.monitoring.free_tool_id(sys.monitoring.COVERAGE_ID)
        found = {
            k: {**v, "functions": sorted(v["functions"])} for k, v in self.tests.items()
        }
        own = self.path.with_suffix(f".{self.worker}.json") if self.worker else self.path
        if self.is_parent:
            for part in self.path.parent.glob(f"{self.path.stem}.gw*.json"):
                found |= json.loads(part.read_text())
                part.unlink()
        own.write_text(json.dumps(found))


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

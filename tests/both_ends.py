"""Two processes collect the files of tests from both ends, and order the tests alike.

Pytest rewrites the assertions of each file, which takes longer than to run it, and keeps what it
has made. Where nothing is kept yet, each process so makes one half, and reads the other.
"""

import pytest


class FromTheEnd:
    """A plugin of every second worker of pytest-xdist."""

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self, collector):
        report = yield
        if isinstance(collector, (pytest.Session, pytest.Dir)) and report.result:
            report.result.reverse()
            # The settings of a folder come before those of the folders in it, as always.
            report.result.sort(key=lambda node: node.path.name != "conftest.py")
        return report


class InOrder:
    """A plugin of every worker, since all must have the same tests in the same order."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items):
        items.sort(key=lambda item: (str(item.path), isinstance(item, pytest.Function)))


def install(config):
    worker = getattr(config, "workerinput", {}).get("workerid")
    if worker is not None:
        config.pluginmanager.register(InOrder())
        if int(worker.removeprefix("gw")) % 2:
            config.pluginmanager.register(FromTheEnd())

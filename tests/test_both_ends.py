"""Workers collect files from both ends, and have the same tests in the same order."""

import pathlib
import types

import both_ends
import pytest


NAMES = ["conftest.py", "test_a.py", "test_b.py", "weights"]


def from_the_end(collector, nodes):
    report = types.SimpleNamespace(result=list(nodes))
    hook = both_ends.FromTheEnd().pytest_make_collect_report(collector)
    next(hook)
    with pytest.raises(StopIteration) as end:
        hook.send(report)
    assert end.value.value is report
    return report.result


def test_files_are_met_from_the_end_after_the_settings_of_their_folder(request):
    nodes = [types.SimpleNamespace(path=pathlib.Path(name)) for name in NAMES]
    found = from_the_end(request.session, nodes)
    assert [node.path.name for node in found] == [NAMES[0], *NAMES[:0:-1]]
    assert from_the_end(request.node.parent, nodes) == nodes  # The tests of a file stay.


def test_tests_are_in_one_order_in_all_processes(request):
    here = request.session.items
    turned = sorted(here, key=lambda item: str(item.path), reverse=True)
    orders = [list(here), turned]
    for order in orders:
        both_ends.InOrder().pytest_collection_modifyitems(order)
    assert orders[0] == orders[1]

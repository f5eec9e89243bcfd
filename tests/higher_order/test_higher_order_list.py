"""Every primitive that carries a program has a handler, or a reason for having none."""

import json
import pathlib
import subprocess
import sys

import pytest
from higher_order_page import ONLY_NEWER, ONLY_OLDER, REASONS, render

from jaxrewrite._core.rewrite import handlers


HERE = pathlib.Path(__file__).parent


@pytest.fixture(scope="module")
def programs():
    """Of each primitive of the installed JAX, the parameters that carry a program."""
    command = [sys.executable, HERE / "introspection.py"]
    output = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    return json.loads(output)


def test_each_has_a_handler_or_a_reason(programs):
    carrying = {name for name, parameters in programs.items() if parameters}
    assert carrying - handlers.keys() - REASONS.keys() == set()


def test_none_has_both():
    assert handlers.keys() & REASONS.keys() == set()


# Primitives of other libraries, which are there when their library is imported.
OF_EQUINOX = {
    *("linear_solve", "maybe_set", "select_if_vmap", "vprim"),
    *("nonbatchable", "nondifferentiable_backward", "nontraceable"),
}
# The library's own, which stands for the match of a pattern while a program is rewritten.
OWN = {"pattern"}
# They stand for a program, but have none among their parameters.
WITHOUT_PROGRAM = {"polynomial", "unstack"}


def test_none_is_stale(programs):
    known = programs.keys() | ONLY_OLDER | ONLY_NEWER | OF_EQUINOX | OWN
    assert handlers.keys() - known == set()
    assert REASONS.keys() - known == set()


def test_introspection_finds_all_that_have_a_handler(programs):
    missed = {name for name in handlers if programs.get(name) == []}
    assert missed - WITHOUT_PROGRAM == set()


def test_reasons_are_plain_sentences():
    for name, reason in REASONS.items():
        assert reason[0].isalpha(), name
        assert reason.endswith("."), name


def test_page_is_up_to_date():
    page = HERE.parents[1] / "docs" / "higher_order.rst"
    assert page.read_text() == render(), (
        "Run: python tests/higher_order/higher_order_page.py > docs/higher_order.rst"
    )

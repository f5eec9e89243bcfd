"""Every primitive that carries a program has a handler, or a reason for having none."""

import json
import pathlib
import subprocess
import sys

from higher_order_page import ONLY_NEWER, ONLY_OLDER, REASONS, render

from jaxrewrite._core.rewrite import handlers


HERE = pathlib.Path(__file__).parent


def test_none_has_both():
    assert handlers.keys() & REASONS.keys() == set()


# Primitives of other libraries, which are there when their library is imported.
OF_EQUINOX = {
    *("linear_solve", "maybe_set", "select_if_vmap", "vprim"),
    *("nonbatchable", "nondifferentiable_backward", "nontraceable"),
}
# The library's own: the match of a pattern while a program is rewritten, and what holds a call of a
# function with a rule whose residuals may differ.
OWN = {"pattern", "traced_anew"}
# They stand for a program, but have none among their parameters.
WITHOUT_PROGRAM = {"pmax", "pmin", "polynomial", "psum", "unstack"}


def test_each_has_a_handler_or_a_reason():
    """And no handler or reason is stale. Introspection imports all of JAX, in a process."""
    command = [sys.executable, HERE / "introspection.py"]
    output = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    # Of each primitive of the installed JAX, the parameters that carry a program.
    programs = json.loads(output)
    carrying = {name for name, parameters in programs.items() if parameters}
    assert carrying - handlers.keys() - REASONS.keys() == set()
    known = programs.keys() | ONLY_OLDER | ONLY_NEWER | OF_EQUINOX | OWN
    assert handlers.keys() - known == set()
    assert REASONS.keys() - known == set()
    # Introspection finds all that have a handler.
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

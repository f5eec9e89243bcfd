"""Each primitive of the installed JAX that carries a jaxpr or a function is accounted for."""

import json
import pathlib
import re
import subprocess
import sys

import pytest
from higher_order import FAMILIES, REASONS, render

import jaxrewrite
from jaxrewrite._rewrite import handlers


HERE = pathlib.Path(__file__).parent
PAGE = HERE.parent / "docs" / "higher_order.rst"

# Names of parameters that hold a jaxpr, or a function, or things made of them.
CARRIES = re.compile(
    r"jaxpr|^callee$|^call$|thunk$|fun$|^bwd$|^fwd$|^rule$|callback|computation|^branches$"
    r"|_prim$|^partition$|^fn$|^f$|^kernel$"
)

# In one of the two supported versions of JAX only.
ONLY_IN_ONE = {
    "call",
    "closed_call",
    "core_map",
    "dot_product_attention_bwd",
    "dot_product_attention_fwd",
    "eval_jaxpr",
    "fusible",
    "jaxpr_call",
    "program_order",
    "thunky.async_start",
    "thunky.call_jax",
    "thunky.call_thunky_nested",
    "thunky.collective_group",
    "thunky.cond",
    "thunky.while",
}


@pytest.fixture(scope="module")
def installed():
    """The primitives of the installed JAX, with the names of their parameters."""
    script = [sys.executable, str(HERE / "introspection.py")]
    return json.loads(subprocess.run(script, check=True, capture_output=True).stdout)


def carrying(installed):
    return {
        name
        for name, parameters in installed.items()
        if any(map(CARRIES.search, parameters))
    }


def test_the_introspection_finds_what_is_known(installed):
    """Else the other tests would hold for an empty list."""
    known = {"jit", "scan", "while", "cond", "custom_jvp_call", "custom_vjp_call", "remat2"}
    known |= {"shard_map", "reduce", "scatter-add", "pure_callback", "pallas_call"}
    assert known <= carrying(installed)
    assert not {"add", "sin", "dot_general", "reshape", "sort"} & carrying(installed)


def test_each_has_a_module_or_a_reason(installed):
    assert carrying(installed) - set(handlers) - set(REASONS) == set()


def test_none_has_both():
    assert not set(handlers) & set(REASONS)


def test_what_is_listed_exists(installed):
    listed = set(handlers) | set(REASONS)
    assert listed - set(installed) <= ONLY_IN_ONE


def test_each_family_is_one_module():
    modules = {handler.__module__.split(".")[-1] for handler in handlers.values()}
    assert modules == set(FAMILIES)
    folder = pathlib.Path(jaxrewrite.__file__).parent / "_higher_order"
    assert all((folder / f"{name}.py").exists() for name in FAMILIES)


def test_the_page_is_up_to_date():
    assert PAGE.read_text() == render(), (
        "python tests/higher_order.py > docs/higher_order.rst"
    )

"""What type checkers are told agrees with what there is.

The linters check ``surface.py``, a program with annotations; here it runs.
"""

import ast
import importlib.metadata
import importlib.util
import pathlib

import jax
import pytest
from choose import slow

import jaxrewrite
import jaxrewrite.numpy


HERE = pathlib.Path(__file__).parent
STUBS = pathlib.Path(jaxrewrite.__file__).parent / "numpy"


def load(name):
    spec = importlib.util.spec_from_file_location(f"typing_{name}", HERE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.filterwarnings("ignore::jaxrewrite.MaterialisationWarning")
@pytest.mark.parametrize(
    "run", [jax.eval_shape, slow(lambda fn: fn())], ids=["traced", "run"]
)
def test_the_program_that_checkers_check_runs(run, bulk, own_table):
    run(load("surface").main)


def declarations(text):
    """The names that a stub imports, and the text of all else in it, on whatever lines."""
    body = ast.parse(text).body
    imports = [node for node in body if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {alias.asname for node in imports for alias in node.names} - {None}
    others = [ast.unparse(node) for node in body if node not in imports]
    return names, [" ".join(text.replace(r"\n", " ").split()) for text in others]


@pytest.mark.parametrize("name", ["__init__", "fft", "linalg"])
def test_the_stubs_of_numpy_have_its_functions(name):
    """They are those of the oldest JAX; functions of a newer one are ``Any``."""
    names, others = declarations((STUBS / f"{name}.pyi").read_text())
    module = jaxrewrite.numpy if name == "__init__" else getattr(jaxrewrite.numpy, name)
    assert others[-1].startswith("def __getattr__(name: str) -> Any:")
    for each in names - {"P"}:
        assert each.startswith("_") or hasattr(module, each), each
    if importlib.metadata.version("jax").startswith("0.10."):
        assert declarations(load("numpy_stubs").stub(name))[1] == others

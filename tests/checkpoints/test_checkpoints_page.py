"""The examples that need other libraries: those of docs/checkpoints.rst and of docstrings."""

import doctest
import inspect
import pathlib
import re
import textwrap

import pytest

from jaxrewrite import checkpoints


PAGE = pathlib.Path(__file__).parents[2] / "docs" / "checkpoints.rst"
BLOCK = re.compile(r"^.. code-block:: python\n\n((?:(?: {4}.*)?\n)+)", re.M)


def needs_libraries():
    for name in ("safetensors", "orbax.checkpoint", "flax", "equinox"):
        pytest.importorskip(name, reason=f"an example stores something by {name}")


def run(block, space):
    """Run a block, which has prompts or has none."""
    examples = doctest.DocTestParser().get_examples(block)
    for source in [e.source for e in examples] or [block]:
        exec(compile(source, "<example>", "exec"), space)


@pytest.mark.slow
def test_the_examples_of_the_page_run(tmp_path, monkeypatch):
    needs_libraries()
    monkeypatch.chdir(tmp_path)
    blocks = [textwrap.dedent(b) for b in BLOCK.findall(PAGE.read_text())]
    # Weights that others have quantised are not here: tests of their files write such.
    blocks = [b for b in blocks if "load_hf(" not in b and "load_gguf(" not in b]
    assert len(blocks) > 10
    space = {}
    for block in blocks:
        run(block, space)
    assert {x.name for x in tmp_path.iterdir()} == {
        *("model.safetensors", "model.eqx", "state.npz", "checkpoint", "adapter")
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", ["load", "load_adapter", "save", "save_adapter"])
def test_the_examples_of_docstrings_run(name, tmp_path, monkeypatch):
    needs_libraries()
    monkeypatch.chdir(tmp_path)
    docstring = inspect.getdoc(getattr(checkpoints, name))
    (block,) = BLOCK.findall(docstring + "\n")
    run(textwrap.dedent(block), {})

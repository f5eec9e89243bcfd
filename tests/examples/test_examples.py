"""The examples of the documentation, each in a process of its own, as users run them.

What an example shows it asserts itself. ``tox -e examples`` installs what they need, and
``tox -e models`` what that of Hugging Face needs.
"""

import csv
import os
import pathlib
import subprocess
import sys

import pytest

from jaxrewrite.values._weights.fitted import METHODS


EXAMPLES = pathlib.Path(__file__).parents[2] / "docs" / "examples"
# What each needs, and a line that it prints.
SHOWN = {
    "decoding": ([], "tokens are those of the dequantised model"),
    "differential_equations": (["diffrax"], "The default adjoint of Kvaerno5 is refused"),
    "equinox_training": (["equinox", "optax"], "kB holds the same module."),
    "gaussian_process": (["blackjax"], "are those of the dense program."),
    "hugging_face": (["transformers", "optax"], "generated, as by dense weights"),
    "llama": (["gguf"], "are those of the weights that gguf dequantises."),
    "nnx_training": (["flax", "optax"], "The integers and their scales are as they were."),
    "optax_partition": (["optax"], "Both ways give the same."),
    "post_training": (["optax"], "Layers in 3 bits"),
    "qlora": (["flax", "optax", "safetensors"], "give the same, bit for bit."),
}


# Tables that examples write and the page shows.
TABLES = {"post_training": EXAMPLES / "figures" / "post_training.csv"}


def rows_of(table):
    with table.open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


def test_the_table_of_methods_has_all_of_them():
    header, *rows = rows_of(TABLES["post_training"])
    assert {row[0] for row in rows} == {"nearest", *METHODS}
    assert all(len(row) == len(header) for row in rows)


def test_every_example_is_run_and_on_the_page():
    scripts = {path.stem for path in EXAMPLES.glob("*.py")}
    assert scripts == SHOWN.keys() | {"two_processes"}  # Which has a test of its own.
    page = (EXAMPLES / "index.rst").read_text()
    for name in scripts:
        assert f"<{name}.py>`_" in page, name
    for path in (EXAMPLES / "figures").iterdir():
        assert f"figures/{path.name}" in page and path.stat().st_size < 40_000, path


@pytest.mark.slow
@pytest.mark.parametrize("name", SHOWN)
def test_an_example_shows_what_it_says(name, tmp_path):
    needs, line = SHOWN[name]
    for package in (*needs, "matplotlib"):
        pytest.importorskip(package)
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    environment |= {"PYTHONPATH": str(EXAMPLES.parents[1]), "JAX_PLATFORMS": "cpu"}
    plot = tmp_path / "figure.png"
    table = tmp_path / "table.csv"
    more = ["--table", str(table)] if name in TABLES else []
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py"), "--plot", str(plot), *more],
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert line in done.stdout
    assert plot.stat().st_size > 1000
    if name in TABLES:
        assert_about_equal(rows_of(table), rows_of(TABLES[name]))


def assert_about_equal(rows, wanted):
    """The same table, but for what the text changes that the example trains on: up to two thirds."""
    assert [row[0] for row in rows] == [row[0] for row in wanted]
    assert rows[0] == wanted[0]
    for row, of_page in zip(rows[1:], wanted[1:], strict=True):
        for x, y in zip(row[1:], of_page[1:], strict=True):
            assert x == y or float(x) == pytest.approx(float(y), rel=0.75, abs=1e-3), row

"""The examples of the documentation, each in a process of its own, as users run them.

What an example shows it asserts itself. ``tox -e examples`` installs what they need, and
``tox -e models`` what that of Hugging Face needs.
"""

import os
import pathlib
import subprocess
import sys

import pytest


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
    "post_training": (["optax"], "more in 3 bits"),
    "qlora": (["flax", "optax", "safetensors"], "give the same, bit for bit."),
}


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
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py"), "--plot", str(plot)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert line in done.stdout
    assert plot.stat().st_size > 1000

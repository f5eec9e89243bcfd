"""Training over two processes, one of which is killed: the example of the documentation."""

import os
import pathlib
import subprocess
import sys

import pytest


EXAMPLE = pathlib.Path(__file__).parents[2] / "docs" / "examples" / "two_processes.py"


@pytest.mark.slow
def test_a_killed_process_continues_from_its_checkpoint():
    pytest.importorskip("orbax.checkpoint")
    environment = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS",)}
    environment["PYTHONPATH"] = str(EXAMPLE.parents[2])
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    through, killed, again, last = done.stdout.strip().splitlines()
    losses = [line.split(":")[1].split() for line in (through, killed, again)]
    assert losses[0] == losses[2] and losses[1] == losses[0][: len(losses[1])]
    assert len(losses[1]) < len(losses[0])
    assert float(losses[0][-1]) < float(losses[0][0])
    assert last == "The losses are the same, in both processes."

"""The check of `jax.export`: a program on a value, run by another process."""

from __future__ import annotations

import os
import pathlib
import pickle
import subprocess
import sys
import tempfile
from typing import Any

import jax
import jax.export
import numpy as np

from ._oracle import difference, on_arrays, on_values


# The other process knows the type by its module, and a value only by its leaves.
_RUN = """
import importlib, pathlib, pickle, sys
folder, module = pathlib.Path(sys.argv[1]), sys.argv[2]
import jax.export
importlib.import_module(module)
exported = jax.export.deserialize(bytearray((folder / "program").read_bytes()))
leaves = pickle.loads((folder / "leaves").read_bytes())
args, kwargs = jax.tree.unflatten(exported.in_tree, leaves)
(folder / "result").write_bytes(pickle.dumps(jax.device_get(exported.call(*args, **kwargs))))
"""


def check_export(value: Any) -> str | None:
    """Export a program on the value, and compare its result in another process."""
    if not _can_be_imported(type(value)):
        return "another process can't import the class by its name"
    double = lambda v: v + v
    exported = jax.export.export(jax.jit(on_values(double)))(value)
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(value)]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "program").write_bytes(exported.serialize())
        (folder / "leaves").write_bytes(pickle.dumps(leaves))
        run = subprocess.run(
            [sys.executable, "-c", _RUN, name, type(value).__module__],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stderr=subprocess.PIPE,
            text=True,
        )
        if run.returncode:
            raise AssertionError(f"the other process failed:\n{run.stderr[-2000:]}")
        result = pickle.loads((folder / "result").read_bytes())
    message = difference(result, on_arrays(double)(value), None)
    if message is not None:
        raise AssertionError(f"another process gets another result: {message}")
    return None


def _can_be_imported(cls: type) -> bool:
    obj: Any = None if cls.__module__ == "__main__" else sys.modules.get(cls.__module__)
    for name in cls.__qualname__.split("."):
        obj = getattr(obj, name, None)
    return obj is cls

"""What Python compiles of the sources of modules is kept, where it would be made by each process.

Where Python is told to write no bytecode, as in many containers, and no installer wrote it either,
each worker and each process that a test starts compiles all of JAX.
"""

import importlib.util
import os
import pathlib
import sys


# Among what pytest keeps, of which ``--cache-clear`` deletes it.
FOLDER = pathlib.Path(__file__).parents[1] / ".pytest_cache" / "d" / "bytecode"


def keep() -> None:
    """Keep bytecode in a folder of its own, here and in the processes that are started."""
    spec = importlib.util.find_spec("jax")
    if not sys.dont_write_bytecode or pathlib.Path(spec.cached).exists():
        return
    sys.dont_write_bytecode = False
    sys.pycache_prefix = str(FOLDER)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix

"""Every ready type by every way of storing, loaded in one other process."""

import importlib.util
import os
import pickle
import subprocess
import sys

import equinox as eqx
import flax.serialization
import jax
import jax.export
import numpy as np
import pytest
from checkpoints_examples import abstract, bits, ready, special

import jaxrewrite
from jaxrewrite.checkpoints import save, to_storable


# The other process gets the structure from a pickle, and the arrays from the files.
LOAD = """
import pathlib, pickle, sys
folder = pathlib.Path(sys.argv[1])
import equinox as eqx, flax.serialization, jax, jax.export, numpy as np
from checkpoints_examples import bits
from jaxrewrite.checkpoints import from_storable, load, to_storable
read = lambda name: (folder / name).read_bytes()
whole, values = pickle.loads(read("likes"))
loaded = {"pickle": pickle.loads(read("pickle"))}
loaded["npz"] = from_storable(dict(np.load(folder / "it.npz")), whole)
arrays = flax.serialization.msgpack_restore(read("arrays.msgpack"))
loaded["flax arrays"] = from_storable(arrays, whole)
arrays = eqx.tree_deserialise_leaves(folder / "it.eqx", to_storable(whole))
loaded["equinox arrays"] = from_storable(arrays, whole)
loaded["flax"] = flax.serialization.from_bytes(values["flax"], read("flax"))
loaded["equinox"] = eqx.tree_deserialise_leaves(folder / "values.eqx", values["equinox"])
program = jax.export.deserialize(bytearray(read("export")))
loaded["export"] = program.call(flax.serialization.from_bytes(values["flax"], read("flax")))
if (folder / "it.safetensors").exists():
    loaded["safetensors"] = load(folder / "it.safetensors", whole)
if (folder / "orbax").exists():
    import orbax.checkpoint as ocp
    checkpointer = ocp.StandardCheckpointer()
    arrays = checkpointer.restore(folder / "orbax", to_storable(whole))
    loaded["orbax arrays"] = from_storable(arrays, whole)
    loaded["orbax"] = checkpointer.restore(folder / "values", values["orbax"])
found = {way: (jax.tree.structure(x), [bits(y) for y in jax.tree.leaves(x)])
         for way, x in loaded.items()}
(folder / "found").write_bytes(pickle.dumps(found))
"""

FLAX_LAST = """
import sys, numpy as np, jaxrewrite
from jaxrewrite.values import Diagonal
assert not {name for name in sys.modules if name.startswith("flax")}
import flax.serialization
assert flax.serialization.to_state_dict(Diagonal(np.ones(2)))["d"].shape == (2,)
assert not [x for x in sys.meta_path if type(x).__module__.startswith("jaxrewrite")]
"""

# What libraries do not store by themselves.
FOUR_BITS = ("int4", "uint4")


def chosen(tree, unknown=(), empty=True):
    """The values of a pytree whose leaves a library stores as they are."""
    stored = lambda x: x.dtype.name not in unknown and (empty or x.size)
    is_chosen = lambda v: (
        isinstance(v, jaxrewrite.Value) and all(map(stored, jax.tree.leaves(v)))
    )
    return {name: v for name, v in tree.items() if is_chosen(v)}


@pytest.mark.slow
def test_every_type_comes_back_in_another_process(tmp_path):
    tree = {k.replace(" ", "_"): x for k, x in {**ready(), **special()}.items()}
    arrays, values = to_storable(tree), chosen(tree)
    want = dict.fromkeys(["pickle", "npz", "flax arrays", "equinox arrays"], tree)
    want |= {"flax": values, "export": values, "equinox": chosen(tree, FOUR_BITS)}
    write = lambda name, data: (tmp_path / name).write_bytes(data)
    write("pickle", pickle.dumps(tree))
    np.savez(tmp_path / "it.npz", **jax.device_get(arrays))
    write("arrays.msgpack", flax.serialization.to_bytes(arrays))
    eqx.tree_serialise_leaves(tmp_path / "it.eqx", arrays)
    write("flax", flax.serialization.to_bytes(values))
    eqx.tree_serialise_leaves(tmp_path / "values.eqx", want["equinox"])
    write("export", jax.export.export(jax.jit(lambda t: t))(values).serialize())
    if importlib.util.find_spec("safetensors"):
        save(tmp_path / "it.safetensors", tree)
        want["safetensors"] = tree
    if importlib.util.find_spec("orbax"):
        import orbax.checkpoint as ocp

        want |= {"orbax arrays": tree, "orbax": chosen(tree, ["uint4"], empty=False)}
        checkpointer = ocp.StandardCheckpointer()
        checkpointer.save(tmp_path / "orbax", arrays)
        checkpointer.save(tmp_path / "values", want["orbax"])
        checkpointer.wait_until_finished()
    likes = {way: abstract(want[way]) for way in want.keys() & {"flax", "equinox", "orbax"}}
    write("likes", pickle.dumps((abstract(tree), likes)))

    run = subprocess.run(
        [sys.executable, "-c", LOAD, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    found = pickle.loads((tmp_path / "found").read_bytes())
    assert found.keys() == want.keys()
    for way, (structure, leaves) in found.items():
        assert structure == jax.tree.structure(want[way]), way
        # Flax returns arrays of NumPy, and a program arrays of JAX.
        start = way in ("flax", "export")
        for got, leaf in zip(leaves, jax.tree.leaves(want[way]), strict=True):
            assert got[start:] == bits(leaf)[start:], way


@pytest.mark.slow
def test_flax_knows_values_if_it_is_imported_last():
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", FLAX_LAST], env=env, check=True)

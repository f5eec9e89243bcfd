"""Codes in sums that XLA compiles as in a user's process: the other tests have flags and NumPy."""

import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np

import jaxrewrite
from jaxrewrite import values


TESTS = pathlib.Path(__file__).parents[2]
FORMATS = ("mxfp4", "mxfp6_e2m3", "mxfp6_e3m2", "mxfp8_e4m3", "mxfp8_e5m2", "nvfp4")


def test_sums_of_codes():
    names = os.environ.keys() - {"XLA_FLAGS"}
    environment = {name: os.environ[name] for name in names} | {"PYTHONPATH": str(TESTS)}
    subprocess.run([sys.executable, __file__], check=True, env=environment)


def weights():
    """Weights of 256 x 512 entries, in which all codes are."""
    import test_gguf

    w = jnp.asarray(np.random.default_rng(0).normal(size=(256, 512)), "float32")
    for format in test_gguf.FORMATS:
        data = test_gguf.small(format, *w.shape)
        yield format, values.GGUF.from_bytes(data, format)
    for format in FORMATS:
        yield format, values.Microscaled.quantise(w, format)
    for dtype in (jnp.float8_e4m3fn, jnp.float8_e5m2):
        yield dtype.__name__, values.Float8.quantise(w, dtype=dtype)
    for bits in range(2, 9):
        yield f"int{bits}", values.Quantised.quantise(w, bits)
    yield "nf4", values.NF4.quantise(w)


def main():
    """Exit with the names of the weights whose sums are wrong, if there are any."""
    wrong = []
    total = jax.jit(jaxrewrite.transform(lambda w: w.sum(0), materialise="allow"))
    for name, v in weights():
        # By itself, what makes the numbers of the codes has no sum to be compiled with.
        dense = np.asarray(v.materialise(), "float64")
        scale = abs(dense).sum(0).max()
        if not np.allclose(total(v), dense.sum(0), rtol=1e-3, atol=1e-3 * scale):
            wrong.append(name)
    sys.exit(", ".join(wrong) or None)


if __name__ == "__main__":
    main()

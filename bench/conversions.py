"""Making compressed 4096 x 4096 weights of dense ones, and dense ones of these, outside of `jax.jit`.

*In steps* is the same call with one operation after the other (`jax.disable_jit`), as code without
a program of its own is run. *A pass* is the dense weight times a number, which reads and writes it
once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxrewrite
from jaxrewrite.values import NMSparse

from . import measure
from .quantised import FORMATS
from .suite import Case, Measurement, Options, Part


MAKERS: dict[str, Callable[[jax.Array], Any]] = {
    **{name: FORMATS[name] for name in ("int8", "int4", "NF4", "3 bits", "fp8")},
    "2:4": NMSparse.prune,
}


def run(options: Options, progress: Callable[[str], None]) -> Iterator[Measurement]:
    n = options.of(256, 4096, 4096)
    repeats = options.repeats or options.of(2, 5, 9)
    w = jnp.asarray(np.random.default_rng(0).normal(size=(n, n)), jnp.float32)
    for name, make in MAKERS.items():
        v = make(w)
        conversions = {
            "to compress": functools.partial(make, w),
            "to make dense": functools.partial(jaxrewrite.materialise, v),
        }
        for what, convert in conversions.items():
            progress(f"{name}, {what}")
            calls = {
                "in steps": functools.partial(_in_steps, convert),
                "implicit": convert,
                "a pass": lambda: w * 2,
            }
            _check_equal(calls["in steps"](), calls["implicit"]())
            samples = measure.interleaved(calls, repeats)
            yield from Case("conversions", name).timed(what, samples)


def _in_steps(convert: Callable[[], Any]) -> Any:
    with jax.disable_jit():
        return convert()


def _check_equal(got: Any, want: Any) -> None:
    got, want = (np.asarray(jaxrewrite.materialise(x), np.float64) for x in (got, want))
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-6)


PART = Part(
    "conversions", "Compressed weights, there and back", __doc__ or "", "in steps", run
)

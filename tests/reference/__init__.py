"""The values that tests walk over: a case of each type.

A module of this package adds its types by the decorator `case`: a factory that takes a
NumPy generator, a dtype, and the number of rows and columns, and makes a value of a
matrix. Types that are not made for any shape or dtype say so. A new ready type is its module,
a case here, and its documentation; every test of all types finds it.

`CASES` has the ready types, `OWN` those of ``own``, which are written as a user's.
"""

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp


class Case(NamedTuple):
    """What the tests know of a type.

    ``square``: for square matrices only. ``dtypes``: those it is tested with. ``variant``: it
    is much like another case, and left to the long run of the suite. ``empty``: whether there
    is one without entries; of no class there are no indices, and no diagonals of nothing.
    """

    make: Callable[..., Any]
    square: bool
    dtypes: tuple[str, ...]
    variant: bool
    empty: bool

    def value(self, rng, dtype="float32", shape=(4, 6)):
        n, m = shape
        return self.make(rng, jnp.dtype(dtype), n, n if self.square else m)


CASES: dict[str, Case] = {}
OWN: dict[str, Case] = {}

FLOATS = ("float32", "bfloat16", "float64")
COMPLEX = (*FLOATS, "complex64")


def case(name, *, square=False, dtypes=FLOATS, variant=False, empty=True, among=CASES):
    """Add a factory; see `Case`."""

    def add(make):
        assert name not in among, name
        among[name] = Case(make, square, dtypes, variant, empty)
        return make

    return add


def uniform(rng, shape, dtype, low=0.25, high=1.0):
    """An array of numbers away from zero, with imaginary parts where there are any."""
    x = rng.uniform(low, high, shape)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        x = x + 1j * rng.uniform(low, high, shape)
    return jnp.asarray(x, dtype)


for found in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{found.name}")

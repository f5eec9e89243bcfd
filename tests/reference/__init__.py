"""The values of the tests: a case of each type.

A module of this package adds its types by the decorator `case`. It decorates a factory that
takes a NumPy generator, a dtype, and the number of rows and columns, and returns a value of a
matrix. The arguments of `case` restrict the shapes and dtypes. A new ready type needs its
module, a case here, and its documentation; then every test of all types finds it.

`CASES` has the ready types that have a dense form. `NESTED` has annotated arrays, with a dense
form or without one, and values inside of others. `OWN` has the types of ``own``, which are
written as by a user. A test that is about some of them selects them by name.
"""

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import jaxrewrite


class Case(NamedTuple):
    """A type, and how to test it.

    ``square``: it has only square matrices. ``dtypes``: the dtypes to test. ``variant``: it is
    much like another case, so only the long run of the suite tests it. ``empty``: it has
    matrices without entries; for example, there are no indices without a class.
    """

    make: Callable[..., Any]
    square: bool
    dtypes: tuple[str, ...]
    variant: bool
    empty: bool

    def value(self, rng, dtype="float32", shape=(4, 6)):
        n, m = shape
        return self.make(rng, jnp.dtype(dtype), n, n if self.square else m)

    def type(self):
        """The type of its values, of which none is made: most compile what they need."""
        rng = np.random.default_rng(0)
        return type(jax.eval_shape(lambda: self.value(rng, shape=(4, 4))))


CASES: dict[str, Case] = {}
NESTED: dict[str, Case] = {}
OWN: dict[str, Case] = {}

FLOATS = ("float32", "bfloat16", "float64")
COMPLEX = (*FLOATS, "complex64")


def batched(vs):
    """Values of one structure as a `Batched`, also where their type has stacks of its own."""
    return jaxrewrite.Batched(jax.tree.map(lambda *xs: jnp.stack(xs), *vs), len(vs))


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

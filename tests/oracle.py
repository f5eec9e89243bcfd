"""The oracle: the results of a program on the dense array, for each ready type."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from functions import FUNCTIONS, NEEDS_ROWS
from reference import CASES

import jaxrewrite
from jaxrewrite.testing import assert_same


# Programs that mean nothing, or something else, on the dtype of a case.
REAL_ONLY = {
    *("astype", "maximum", "compare", "clip", "floor", "sort", "gelu", "relu"),
    *("softmax", "logsumexp", "where", "gather"),
}


def programs(dtype, shape):
    skipped = set(NEEDS_ROWS) if 0 in shape else set()
    if jnp.issubdtype(dtype, jnp.complexfloating):
        skipped |= REAL_ONLY
    return {name: fn for name, fn in FUNCTIONS.items() if name not in skipped}


def everything(fns):
    """One program that gives the results of all of them."""
    return lambda x: {name: fn(x) for name, fn in fns.items()}


@functools.cache
def on_arrays(of, names):
    """A program of some of `FUNCTIONS`, compiled once for the dense arrays of all types."""
    return jax.jit(of({name: FUNCTIONS[name] for name in names}))


def allow(fn, **options):
    """The function on values, of which any may become dense."""
    return jaxrewrite.transform(fn, materialise="allow", **options)


def forbid(fn, **options):
    """The function on values, of which none may become dense."""
    return jaxrewrite.transform(fn, materialise="forbid", **options)


def materialised(fn):
    return lambda *args: jaxrewrite.materialise(allow(fn)(*args))


_compiled = jax.jit(jaxrewrite.materialise)


def made_dense(tree):
    """What `jaxrewrite.materialise` gives, as one program where there are values."""
    is_value = lambda x: isinstance(x, jaxrewrite.Value)
    leaves = jax.tree.leaves(tree, is_leaf=is_value)
    return _compiled(tree) if any(map(is_value, leaves)) else tree


def assert_same_leaves(got, want, tolerance=None):
    """Compare leaf by leaf, as what is differentiated by the leaves of values."""
    assert_same(jax.tree.leaves(got), jax.tree.leaves(want), tolerance)


def floating(tree):
    """The floating leaves of a tree, and a function that puts others in their place."""
    leaves, treedef = jax.tree.flatten(tree)
    where = [jnp.issubdtype(x.dtype, jnp.inexact) for x in leaves]

    def filled(new):
        rest = iter(new)
        return treedef.unflatten(
            [next(rest) if w else x for x, w in zip(leaves, where, strict=True)]
        )

    return [x for x, w in zip(leaves, where, strict=True) if w], filled


def make(name, dtype="float32", shape=(4, 6), seed=0):
    return CASES[name].value(np.random.default_rng(seed), dtype, shape)


def normal(*shape, seed=0, dtype="float32"):
    """An array of normal numbers, the same for each call with one seed."""
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


def run_implicit(fn, *args, tolerance=1e-4):
    """Run without making values dense, and compare with the result on dense arrays."""
    out = jax.jit(forbid(fn))(*args)
    want = jax.jit(fn)(*jaxrewrite.materialise(args))
    assert_same(out, want, tolerance)
    return out

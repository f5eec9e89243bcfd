"""Tangents of values in a field of another value, through custom derivative rules."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from choose import slow

import jaxrewrite
from jaxrewrite.values import Lora, LowRank, Named, Product, Sum, Tagged, Unitful


def uniform(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).uniform(0.5, 1.5, shape))


def lora():
    return Lora(uniform(0, 2, 2), uniform(1, 2, 1), uniform(2, 1, 2), frozen=False)


def low_rank():
    return LowRank(uniform(0, 2, 1), uniform(1, 1, 2))


def lazy():
    return Sum((low_rank(), Product((uniform(3, 2, 2), uniform(4, 2, 2)))))


AROUND = {
    "Tagged": lambda v: Tagged(v, "tag"),
    "Named": lambda v: Named(v, ("rows", None)),
    "Unitful": lambda v: Unitful(v, ""),
    "Tagged of Unitful": lambda v: Tagged(Unitful(v, ""), "tag"),
}


def smooth(v):
    """Functions with derivative rules of their own."""
    return jax.nn.softplus(v) + jnp.logaddexp(v, 2.0) + jax.nn.relu(v)


@pytest.mark.parametrize("within", [lora, slow(low_rank), slow(lazy)])
@pytest.mark.parametrize("around", AROUND)
def test_derivatives_are_those_of_the_array(around, within, bulk):
    with jax.enable_x64(True):
        leaves, treedef = jax.tree.flatten(AROUND[around](within()))
        free = [
            i for i, leaf in enumerate(leaves) if jnp.issubdtype(leaf.dtype, jnp.inexact)
        ]

        def value(numbers):
            filled = list(leaves)
            for i, x in zip(free, numbers, strict=True):
                filled[i] = x
            return treedef.unflatten(filled)

        def implicit(numbers):
            run = jaxrewrite.transform(smooth, materialise="allow")
            return jaxrewrite.materialise(run(value(numbers)))

        def dense(numbers):
            return smooth(jaxrewrite.materialise(value(numbers)))

        numbers = [leaves[i] for i in free]
        along = [uniform(7 + i, *x.shape) for i, x in enumerate(numbers)]
        for both in (
            lambda f: jax.jvp(f, (numbers,), (along,)),
            lambda f: jax.grad(lambda xs: jnp.sin(f(xs)).sum())(numbers),
        ):
            jax.tree.map(np.testing.assert_allclose, both(implicit), both(dense))

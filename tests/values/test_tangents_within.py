"""Tangents of values in a field of another value, through custom derivative rules."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from choose import slow

import jaxrewrite
from jaxrewrite.testing import assert_same
from jaxrewrite.values import (
    Circulant,
    Diagonal,
    Lora,
    LowRank,
    Named,
    Product,
    Scaled,
    Sum,
    Tagged,
    Unitful,
)


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


@jax.custom_jvp
def halves(x):
    return +x


@halves.defjvp
def _(primals, tangents):
    (t,) = tangents
    return +primals[0], (t + t.T) / 2


NOT_LINEAR = {
    "Lora in Scaled": Scaled(lora(), jnp.float32(1.5)),
    "of labels": Tagged(Scaled(Tagged(lora(), "x"), jnp.float32(1.5)), "y"),
    "Lora in Product": Product((Diagonal(uniform(3, 2)), lora())),
}


@pytest.mark.parametrize("value", NOT_LINEAR.values(), ids=NOT_LINEAR)
def test_a_sum_of_tangents_is_linear_in_them(value):
    """The sum of a LoRA tangent and its transpose has tangents in both of its factors."""
    program = lambda v: jnp.sin(halves(v)).sum()
    run = jaxrewrite.transform(program, materialise="allow")
    implicit = jax.grad(lambda v: jaxrewrite.materialise(run(v)))
    dense = jax.grad(lambda v: program(jaxrewrite.materialise(v)))
    assert_same(implicit(value), dense(value), 1e-5)


def test_a_tangent_of_a_product_of_structured_factors_has_structure():
    y, arrays = uniform(5, 99), (uniform(3, 99), uniform(4, 99))
    apply = jax.custom_jvp(lambda x: x @ y)
    apply.defjvp(
        lambda primals, tangents: (primals[0] @ y, (tangents[0] + 2 * tangents[0]) @ y)
    )
    run = jaxrewrite.transform(apply, materialise="forbid")
    of_arrays = lambda d, column: run(Product((Diagonal(d), Circulant(column))))
    along = lambda *tangents: jax.jvp(of_arrays, arrays, tangents)
    assert "[99,99]" not in str(jax.make_jaxpr(along)(*arrays))

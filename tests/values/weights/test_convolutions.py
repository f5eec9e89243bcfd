"""Convolutions whose kernels are values, against dense kernels, with their gradients."""

import jax
import jax.numpy as jnp
import pytest
from choose import every, often, slow
from jax import lax
from oracle import normal

import jaxrewrite
from jaxrewrite.testing import assert_same
from jaxrewrite.values import NF4, Float8, Lora, LowRank, Quantised, Scaled, Sum, Zero


W, X = normal(3, 2, 4, 8), normal(2, 6, 5, 4, seed=1)
FACTORS = normal(3, 2, 4, 2, seed=2), normal(2, 8, seed=3)
PLACES = (-4, -3, -2), (-1,)
KERNELS = {
    "int8": lambda: Quantised.quantise(W, axis=-1),
    "int4": lambda: Quantised.quantise(W, 4, axis=(2, 3)),
    "nf4": lambda: NF4.quantise(W, (None, None, None, 1)),
    "3 bits": lambda: Quantised.quantise(W, 3, axis=-1),
    "float8": lambda: Float8.quantise(W, axis=-1),
    "low rank": lambda: LowRank(*FACTORS, *PLACES),
    "lora": lambda: Lora(W, *FACTORS, 0.5, *PLACES, frozen=False),
    "lora on int8": lambda: Lora(Quantised.quantise(W, axis=-1), *FACTORS, 0.5, *PLACES),
    "scaled": lambda: Scaled(W, jnp.float32(2.0)),
    "sum": lambda: Sum((W, Scaled(W, jnp.float32(0.5)))),
    "zero": lambda: Zero(W.shape, "float32"),
}
LAYOUT = ("NHWC", "HWIO", "NHWC")


def twice(x):
    return jnp.concatenate([x, x], -1)


PROGRAMS = {
    "same": lambda x, w: lax.conv_general_dilated(
        x, w, (1, 1), "SAME", dimension_numbers=LAYOUT
    ),
    "strides and dilation": lambda x, w: lax.conv_general_dilated(
        *(x, w, (2, 1), [(1, 0), (2, 1)]),
        lhs_dilation=(2, 1),
        rhs_dilation=(1, 2),
        dimension_numbers=LAYOUT,
    ),
    "groups of features": lambda x, w: lax.conv_general_dilated(
        *(twice(x), w, (1, 1), "SAME"),
        feature_group_count=2,
        dimension_numbers=LAYOUT,
    ),
    "groups of the batch": lambda x, w: lax.conv_general_dilated(
        *(x, w, (1, 1), "SAME"),
        batch_group_count=2,
        dimension_numbers=LAYOUT,
    ),
    "channels first": lambda x, w: lax.conv_general_dilated(
        x.transpose(0, 3, 1, 2), w.transpose(3, 2, 0, 1), (1, 1), "VALID"
    ),
    "transposed": lambda x, w: lax.conv_transpose(
        x, w, (2, 2), "SAME", dimension_numbers=LAYOUT
    ),
}


def all_of(x, w):
    return {name: fn(x, w) for name, fn in PROGRAMS.items()}


def loss(x, w, fn=all_of):
    return sum((y**2).sum() for y in jaxrewrite.materialise(fn(x, w)).values())


@pytest.mark.parametrize("kind", every(4, KERNELS))
def test_no_kernel_becomes_dense(kind, bulk):
    v = KERNELS[kind]()
    implicit = jaxrewrite.transform(all_of, materialise="forbid")

    def results(x, v):
        return implicit(x, v), jax.grad(lambda x: loss(x, v, implicit))(x)

    def dense(x, w):
        return all_of(x, w), jax.grad(loss)(x, w)

    assert_same(jax.jit(results)(X, v), jax.jit(dense)(X, jaxrewrite.materialise(v)), 1e-4)


@pytest.mark.parametrize("kind", [slow("lora"), "nf4"])
def test_gradients_of_kernels(kind, bulk):
    v = KERNELS[kind]()
    implicit = jaxrewrite.transform(all_of, materialise="forbid")
    got = jax.jit(jax.grad(lambda v: loss(X, v, implicit), allow_int=True))(v)
    want = jax.jit(jax.grad(lambda v: loss(X, jaxrewrite.materialise(v)), allow_int=True))(
        v
    )
    floats = lambda tree: [x for x in jax.tree.leaves(tree) if x.dtype == jnp.float32]
    assert_same(floats(got), floats(want), 1e-4)


@pytest.mark.parametrize(
    "kind",
    often(KERNELS, ("int4",)),
)
def test_gradients_that_are_rewritten(kind, bulk):
    """Those of grouped convolutions would need more entries for this `Lora` than are dense."""
    v = KERNELS[kind]()
    fn = lambda x, w: jax.grad(loss)(x, w)
    policy = "allow" if "lo" in kind else "forbid"
    got = jax.jit(jaxrewrite.transform(fn, materialise=policy))(X, v)
    assert_same(got, jax.jit(fn)(X, jaxrewrite.materialise(v)), 1e-4)


def test_rewritten_gradients_of_groups_are_implicit(bulk):
    """The rank becomes that of all groups together, where it is small enough."""
    w, a, b = normal(3, 2, 8, 16), normal(3, 2, 8, 2, seed=2), normal(2, 16, seed=3)
    v, x = Lora(w, a, b, 0.5, *PLACES), normal(2, 6, 5, 8, seed=1)
    programs = [PROGRAMS[name] for name in ("groups of features", "groups of the batch")]
    fn = lambda x, w: jax.grad(lambda x: sum((of(x, w) ** 2).sum() for of in programs))(x)
    got = jax.jit(jaxrewrite.transform(fn, materialise="forbid"))(x, v)
    assert_same(got, jax.jit(fn)(x, jaxrewrite.materialise(v)), 1e-4)


def test_an_adapter_of_another_layout_is_dense():
    v = LowRank(normal(3, 2, 2), normal(2, 4, 8), (-4, -3), (-2, -1))
    fn = PROGRAMS["same"]
    with pytest.raises(jaxrewrite.MaterialisationError, match="'conv_general_dilated' on"):
        jaxrewrite.transform(fn, materialise="forbid")(X, v)
    assert_same(
        jaxrewrite.transform(fn, materialise="allow")(X, v),
        fn(X, jaxrewrite.materialise(v)),
        1e-4,
    )


@pytest.mark.parametrize(
    "shape", [(0, 6, 5, 4), (2, 1, 1, 4)], ids=["no rows", "one place"]
)
def test_kernels_of_low_rank_and_few_entries(shape):
    x, v, fn = normal(*shape), KERNELS["lora"](), PROGRAMS["same"]
    implicit = jaxrewrite.transform(fn, materialise="forbid")
    assert_same(implicit(x, v), fn(x, jaxrewrite.materialise(v)), 1e-4)
    slope = lambda x, w: jax.grad(lambda x: (fn(x, w) ** 2).sum())(x)
    rewritten = jaxrewrite.transform(slope, materialise="forbid")
    assert_same(rewritten(x, v), slope(x, jaxrewrite.materialise(v)), 1e-4)


def test_both_products_have_the_precision_that_was_asked_for():
    def fn(x, w):
        return lax.conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=LAYOUT, precision="highest"
        )

    jaxpr = jaxrewrite.make_jaxpr(fn)(X, KERNELS["low rank"]())
    text = str(jaxpr)
    assert text.count("conv_general_dilated[") == text.count("dot_general[") == 1
    assert text.count("HIGHEST") == 4

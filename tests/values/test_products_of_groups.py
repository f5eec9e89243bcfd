"""``jax.lax.ragged_dot`` of values: groups of rows, each with a matrix of its own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from choose import often
from jax import lax
from oracle import forbid

import jaxrewrite
from jaxrewrite.testing import assert_implicit, assert_same
from jaxrewrite.values import (
    Constant,
    Diagonal,
    Interval,
    Lora,
    LowRank,
    Masked,
    Named,
    Quantised,
    Rescaled,
    Scaled,
    Sum,
    Tagged,
    Unitful,
    Units,
    Zero,
    strict_zeros,
)


def numbers(shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), "float32")


ROWS, GROUPS, K, N = 7, 3, 4, 5
X, W = numbers((ROWS, K)), numbers((GROUPS, K, N), seed=1)
A, B = numbers((GROUPS, K, 2), seed=2), numbers((GROUPS, 2, N), seed=3)
# One group has no rows, and one row is in no group.
SIZES = jnp.array([4, 0, 2])

ragged_dot = lambda x, w: lax.ragged_dot(x, w, SIZES)
of_sums = lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), [0], [])
of_batch = lax.RaggedDotDimensionNumbers((((2,), (1,)), ((0,), (0,))), [0], [])


class Doubled(jaxrewrite.ArrayValue):
    """A type whose only rule is that for products."""

    half: jax.Array

    def materialise(self):
        raise TypeError("never dense")

    def aval(self):
        return jax.core.ShapedArray(self.half.shape, self.half.dtype)


@jaxrewrite.register("dot_general", exchange="types")
def _(x: Doubled, y: jax.Array, *, primitive, **params):
    operands = (z.half if isinstance(z, Doubled) else z for z in (x, y))
    return 2 * primitive.bind(*operands, **params)


def test_a_type_that_knows_products_knows_those_of_groups():
    assert_same(forbid(ragged_dot)(X, Doubled(W)), ragged_dot(X, 2 * W))
    batched = jax.vmap(lax.ragged_dot, (0, 0, 0))
    xs, ws = numbers((2, ROWS, K)), numbers((2, GROUPS, K, N))
    sizes = jnp.array([[1, 5, 0], [3, 1, 3]], jnp.uint8)
    assert_same(forbid(batched)(xs, Doubled(ws), sizes), batched(xs, 2 * ws, sizes))


def test_sums_of_each_group_and_batches_know_products_too():
    y = numbers((ROWS, N))
    sums = lambda x, y: lax.ragged_dot_general(x, y, SIZES, of_sums)
    assert_same(forbid(sums)(X, Doubled(y)), sums(X, 2 * y))
    both = lambda x, w: lax.ragged_dot_general(x, w, SIZES[:2], of_batch)
    x, w = numbers((3, ROWS, K)), numbers((3, K, N))
    assert_same(forbid(both)(x, Doubled(w)), both(x, 2 * w))
    assert_same(forbid(both)(Doubled(x), w), both(2 * x, w))


def test_rows_with_structure_are_dense():
    v = Diagonal(numbers((K,)))
    with pytest.raises(jaxrewrite.MaterialisationError, match="ragged_dot_general"):
        forbid(ragged_dot)(v, W)
    allow = jaxrewrite.transform(ragged_dot, materialise="allow")
    assert_same(allow(v, W), ragged_dot(v.materialise(), W))


VALUES = {
    "low rank": LowRank(A, B),
    "low rank, one factor for all": LowRank(A[0], B.transpose(1, 0, 2), (-2,), (-3, -1)),
    "low rank, by columns": LowRank(B.mT, A.mT, (-1,), (-2,)),
    "lora": Lora(W, A, B, 0.5),
    "sum": Sum((LowRank(A, B), LowRank(2 * A, B))),
    "scaled": Scaled(LowRank(A, B), jnp.float32(3)),
    "a number for each group": jax.vmap(Scaled)(W, jnp.arange(3.0)),
    "by outputs": Rescaled(W, numbers((GROUPS, 1, N), seed=4)),
    "by inputs": Rescaled(W, numbers((GROUPS, K, 1), seed=4)),
    "by inputs of all": Rescaled(W, numbers((1, K, 1), seed=4)),
    "constant": Constant(jnp.float32(2), W.shape),
}


_OFTEN = ("low rank, by columns", "lora", "sum", "by outputs", "by inputs", "constant")


@pytest.mark.parametrize("name", often(VALUES, _OFTEN))
def test_parts_are_multiplied_with_the_same_groups(name):
    v, cotangent = VALUES[name], numbers((ROWS, N), seed=5)
    dense = jaxrewrite.materialise(v)
    assert_implicit(ragged_dot, X, v)
    got = jaxrewrite.transform(ragged_dot)(X, v)
    assert_same(got, ragged_dot(X, dense))
    assert not jnp.any(jaxrewrite.materialise(got)[-1])

    def loss(x, v):
        return jnp.sum(ragged_dot(x, v) * cotangent)

    outside = jax.grad(lambda x, v: jaxrewrite.materialise(forbid(loss)(x, v)), (0, 1))
    slope, of_leaves = outside(X, v)
    back = lambda v: loss(X, jaxrewrite.materialise(v))
    if isinstance(v, Lora):
        back = lambda v: loss(X, W + 0.5 * jnp.einsum("gkr,grn->gkn", v.a, v.b))
    assert_same(slope, jax.grad(loss)(X, dense))
    assert_same(of_leaves, jax.grad(back)(v))
    inside = jaxrewrite.transform(jax.grad(loss, (0, 1)), materialise="forbid")(X, v)
    assert_same(inside, jax.grad(loss, (0, 1))(X, dense))


def test_groups_are_left_to_jax_where_a_type_multiplies_its_arrays():
    for v in (VALUES["lora"], VALUES["scaled"], VALUES["by outputs"], Unitful(W, "m")):
        jaxpr = jaxrewrite.make_jaxpr(ragged_dot)(X, v)
        assert "ragged_dot_general" in [eqn.primitive.name for eqn in jaxpr.eqns]


class Unmultiplied(jaxrewrite.ArrayValue):
    """A type without any rule."""

    x: jax.Array

    def materialise(self):
        return self.x


def test_of_a_type_without_a_rule_for_products_one_dense_array_is_multiplied():
    v = Unmultiplied(W)
    with pytest.raises(
        jaxrewrite.MaterialisationError, match="'ragged_dot_general' on Unm"
    ):
        forbid(ragged_dot)(X, v)
    dense = jaxrewrite.transform(ragged_dot, materialise="allow")
    (eqn,) = jax.make_jaxpr(dense)(X, v).eqns
    assert eqn.primitive.name == "ragged_dot_general"


def test_batches_of_groups_have_their_own_sizes():
    """Axes in any order; the sizes differ along one that only the rows have."""
    numbers_of = lax.RaggedDotDimensionNumbers((((2,), (3,)), ((3,), (0,))), [1], [2])
    x, w = numbers((2, ROWS, K, 3)), numbers((3, N, GROUPS, K))
    sizes = jnp.asarray(np.random.default_rng(0).integers(0, 3, (3, 2, GROUPS)))
    product = lambda x, w: lax.ragged_dot_general(x, w, sizes, numbers_of)
    a, b = numbers((N, 2)), numbers((3, 2, GROUPS, K))
    of_all = LowRank(numbers((3, GROUPS, N, 2)), numbers((3, GROUPS, 2, K)), (-3,), (-1,))
    scale = numbers((3, 1, GROUPS, 1))
    for v in (
        LowRank(a, b.transpose(1, 0, 2, 3), (-3,), (-4, -2, -1)),
        Lora(w, of_all.a, of_all.b, rows=(-3,), cols=(-1,)),
        LowRank(numbers((N, 3, 2)), numbers((N, 2, GROUPS, K)), (0,), (2, 3)),
        Rescaled(w, scale),
        Quantised.quantise(w, axis=(0, 2)),
        Doubled(w),
    ):
        dense = 2 * w if isinstance(v, Doubled) else jaxrewrite.materialise(v)
        assert_same(forbid(product)(x, v), product(x, dense))


@pytest.mark.parametrize("sizes", [SIZES, jnp.array([[4, 0, 2], [1, 3, 3]])])
def test_stacks_of_matrices_of_a_group_have_the_sizes_of_the_rows(sizes):
    """The sizes may differ along an axis of the rows, not along one of the matrices alone."""
    a, b = numbers((5, GROUPS, K, 2)), numbers((5, GROUPS, 2, N))
    x, w = numbers((2, ROWS, K)), LowRank(a, b)
    numbers_of = lax.RaggedDotDimensionNumbers((((2,), (2,)), ((), ())), [1], [1])
    product = lambda x, w: lax.ragged_dot_general(x, w, sizes, numbers_of)
    assert_same(forbid(product)(x, w), product(x, w.materialise()))


def test_symbolic_zeros_stay_zeros():
    for x, w in ((X, Zero(W.shape)), (Zero(X.shape), W), (Zero(X.shape), Zero(W.shape))):
        got = forbid(ragged_dot)(x, w)
        assert isinstance(got, Zero) and got.shape == (ROWS, N)
    assert isinstance(forbid(ragged_dot)(Zero(X.shape), VALUES["lora"]), Zero)
    strict = jaxrewrite.transform(ragged_dot, rules=strict_zeros, materialise="allow")
    assert jnp.isnan(strict(jnp.full_like(X, jnp.inf), Zero(W.shape))).any()


def test_units_are_multiplied():
    x, w = Unitful(X, "s"), Unitful(W, "m/s")
    loss = lambda x, w: jnp.sum(ragged_dot(x, w) ** 2)
    got = forbid(ragged_dot)(x, w)
    assert got.units == Units("m")
    assert_same(got.array, ragged_dot(X, W))
    slopes = forbid(jax.grad(loss, (0, 1)))(x, w)
    assert [slope.units for slope in slopes] == [Units("m^2/s"), Units("m s")]
    assert_same([slope.array for slope in slopes], [*jax.grad(loss, (0, 1))(X, W)])
    assert forbid(ragged_dot)(X, Unitful(VALUES["lora"], "m")).units == Units("m")


def test_tags_and_names_go_to_the_result():
    v = Tagged(VALUES["lora"], "experts")
    assert forbid(ragged_dot)(Tagged(X, "x"), v).tags == {"x", "experts"}
    x, w = Named(X, ("token", "in")), Named(W, ("expert", "in", "out"))
    assert forbid(ragged_dot)(x, w).names == ("token", "out")
    with pytest.raises(ValueError, match="aligns an axis named 'in'"):
        forbid(ragged_dot)(x, Named(W, ("expert", "out", "in")))
    sums = lambda x, y: lax.ragged_dot_general(x, y, SIZES, of_sums)
    y = Named(numbers((ROWS, N)), ("token", "out"))
    assert forbid(sums)(x, y).names == (None, "in", "out")


def test_what_is_missing_of_a_group_is_missing_of_its_rows():
    mask = jnp.zeros(W.shape, bool).at[2, :, 1].set(True).at[0, 0].set(True)
    got = jaxrewrite.transform(ragged_dot)(X, Masked(W, mask))
    want = np.zeros((ROWS, N), bool)
    want[4:6, 1] = True
    np.testing.assert_array_equal(got.mask, want)
    dense = ragged_dot(X, jnp.where(mask, 0, W))
    assert_same(jnp.where(want, 0, got.array), jnp.where(want, 0, dense))


def test_bounds_hold_for_groups():
    bounds = jaxrewrite.transform(ragged_dot)(
        Interval(X - 0.1, X + 0.1), Interval(W, W + 1)
    )
    for x, w in ((X, W), (X + 0.1, W + 1), (X - 0.1, W + 0.5)):
        assert bounds.contains(ragged_dot(x, w)).all()
    of_number = jaxrewrite.transform(ragged_dot, materialise="allow")
    bounds = of_number(Constant(jnp.float32(2), X.shape), Interval(W, W + 1))
    assert bounds.contains(ragged_dot(jnp.full_like(X, 2), W)).all()


def test_products_in_another_dtype_are_cast_once():
    v = Lora(W, A, B)
    for dtype in ("bfloat16", "float32", "int32"):
        product = lambda x, w, dtype=dtype: lax.ragged_dot(
            x, w, SIZES, preferred_element_type=jnp.dtype(dtype)
        )
        got, want = forbid(product)(X, v), product(X, v.materialise())
        assert got.dtype == want.dtype
        assert_same(got, want, 0.02)


def test_products_of_groups_are_placed_on_a_mesh():
    """On a mesh with explicit axes JAX asks every program for the place of the result."""
    mesh = jax.make_mesh((2,), ("x",), (jax.sharding.AxisType.Explicit,))
    values = VALUES["lora"], VALUES["by outputs"], Quantised.quantise(W)
    wanted = [ragged_dot(X, jaxrewrite.materialise(v)) for v in values]
    with jax.set_mesh(mesh):
        place = jax.sharding.PartitionSpec(None, None)
        product = lambda x, w: lax.ragged_dot_general(
            *(x, w, SIZES),
            lax.RaggedDotDimensionNumbers((((1,), (1,)), ((), ())), [0], [0]),
            out_sharding=place,
        )
        for v, want in zip(values, wanted, strict=True):
            got = jax.jit(forbid(product))(X, v)
            assert got.sharding.spec == place
            assert_same(np.asarray(got), want)

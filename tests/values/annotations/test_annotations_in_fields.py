"""Annotations in the fields of other values: units, names and tags of the whole, and masks."""

import itertools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from choose import every
from jax import lax
from oracle import allow, forbid

import jaxrewrite
from jaxrewrite import Batched
from jaxrewrite.testing import assert_same
from jaxrewrite.values import (
    BlockDiagonal,
    Circulant,
    Diagonal,
    Interval,
    Kronecker,
    Lora,
    LowRank,
    Masked,
    Named,
    Product,
    Rescaled,
    Scaled,
    Sum,
    Symmetric,
    Tagged,
    Triangular,
    Unitful,
    Units,
    UnitsError,
)


pytestmark = pytest.mark.usefixtures("no_leak_checks")

RNG = np.random.default_rng(0)
SQUARE = jnp.asarray(RNG.uniform(0.5, 2.0, (3, 3)), jnp.float32) + 3 * jnp.eye(3)
ROW = SQUARE[0]


# Each makes a matrix of three rows, with the power of the units of its fields that it has.
AROUND = {
    "Diagonal": (lambda carry: Diagonal(carry(ROW)), 1),
    "Triangular": (lambda carry: Triangular(carry(jnp.tril(SQUARE))), 1),
    "Symmetric": (lambda carry: Symmetric(carry(SQUARE + SQUARE.T)), 1),
    "Circulant": (lambda carry: Circulant(carry(ROW)), 1),
    "BlockDiagonal": (lambda carry: BlockDiagonal(carry(SQUARE[None])), 1),
    "Kronecker": (lambda carry: Kronecker(carry(SQUARE), jnp.ones((1, 1))), 1),
    "Scaled": (lambda carry: Scaled(carry(SQUARE), jnp.float32(2)), 1),
    "Sum": (lambda carry: Sum((carry(SQUARE), Diagonal(carry(ROW)))), 1),
    "Product": (lambda carry: Product((carry(SQUARE), Diagonal(carry(ROW)))), 2),
    "LowRank": (lambda carry: LowRank(carry(SQUARE), SQUARE), 1),
    "Scaled sum": (lambda carry: Scaled(Sum((carry(SQUARE),)), jnp.float32(2)), 1),
}

# Each with the power of the units of the matrix that the result has.
PROGRAMS = {
    "product": (lambda v: v @ ROW, 1),
    "determinant": (jnp.linalg.det, 3),
    "inverse": (lambda v: jnp.linalg.inv(v) @ ROW, -1),
    "sum with the transpose": (lambda v: (v + v.T) @ ROW, 1),
    "branches": (lambda v: lax.cond(v.sum().shape == (), lambda: v, lambda: v.T) @ ROW, 1),
    "loop": (lambda v: lax.fori_loop(0, 2, lambda i, w: w * 2.0, v) @ ROW, 1),
    "loop from zeros": (
        lambda v: lax.fori_loop(0, 2, lambda i, s: s + v @ ROW, 0 * ROW),
        1,
    ),
    "sums from zeros": (lambda v: lax.fori_loop(0, 2, lambda i, s: s + v, 0 * SQUARE), 1),
    "vectors": (lambda v: jnp.linalg.svd(v)[1], 1),
    "singular values": (lambda v: jnp.linalg.svd(v, compute_uv=False), 1),
    "norm": (jnp.linalg.norm, 1),
    "masked": (lambda v: jnp.where(v == v, v, 0), 1),
    "triangle": (lambda v: jnp.tril(v), 1),
    "stack": (lambda v: jnp.stack([v, v.T]).sum(0), 1),
    "rows": (lambda v: jax.vmap(lambda row: row.sum())(v), 1),
}


def up_to_annotation(x):
    """What a value carries around the dense array."""
    flat = lambda v: jnp.maximum(v.reshape(-1), v.reshape(-1)).reshape(v.shape)
    return allow(flat)(x)


# Factors of which one has units where the other has none are joined.
NOT_YET = {("LowRank", "stack")}


@pytest.mark.parametrize("around, program", every(2, itertools.product(AROUND, PROGRAMS)))
def test_what_a_field_carries_is_said_of_the_whole(around, program):
    make, power = AROUND[around]
    fn, of_result = PROGRAMS[program]
    want = fn(jaxrewrite.materialise(make(lambda x: x)))
    if (around, program) in NOT_YET:
        with pytest.raises(UnitsError):
            allow(fn)(make(lambda x: Unitful(x, "m")))
    else:
        got = up_to_annotation(allow(fn)(make(lambda x: Unitful(x, "m"))))
        assert got.units == Units("m") ** (power * of_result)
        assert_same(jaxrewrite.materialise(got.array), want, 1e-4)
    tagged = up_to_annotation(allow(fn)(make(lambda x: Tagged(x, "a"))))
    assert tagged.tags == frozenset("a")
    assert_same(jaxrewrite.materialise(tagged), want, 1e-4)


@pytest.mark.parametrize("around", ["Diagonal", "Kronecker", "Product", "Symmetric"])
def test_rules_that_take_logarithms_see_no_units(around):
    make, power = AROUND[around]
    got = forbid(jnp.linalg.det)(make(lambda x: Unitful(x, "m")))
    assert got.units == Units("m") ** (3 * power)
    want = jnp.linalg.det(jaxrewrite.materialise(make(lambda x: x)))
    assert_same(got.array, want, 1e-4)


@pytest.mark.parametrize("inside", [lambda x: x, Diagonal], ids=["array", "value"])
def test_a_stack_without_what_its_elements_carry(inside):
    """That of elements which are arrays else is an array, and no stack of values."""
    rows = 1 + jnp.arange(6.0).reshape(2, 3)
    stack = Batched(Tagged(inside(rows), "mine"), 2)

    def solve(v, y):
        scale = lambda x: x * jnp.sum(v * v)
        undo = lambda matvec, y: y / jnp.sum(v * v)
        return lax.custom_linear_solve(scale, y, undo, symmetric=True)

    dense = jax.vmap(lambda x: jaxrewrite.materialise(inside(x)))(rows)
    assert_same(allow(solve)(stack, rows[0]), solve(dense, rows[0]))


def test_other_equations_leave_units_in_their_field():
    """So loops, and trees of parameters, keep their structure."""
    v = Diagonal(Unitful(ROW, "m"))
    for fn in (
        lambda v: v * 2.0,
        lambda v: lax.fori_loop(0, 2, lambda i, w: jnp.linalg.inv(jnp.linalg.inv(w)), v),
        lambda v: jnp.tril(v) + v,
        jax.jit(lambda v: -v),
        lambda v: jax.jit(lambda v, u: (v, u))(v, jnp.sum(v))[0],
    ):
        assert jaxrewrite.same_structure(forbid(fn)(v), v)


class Never(jaxrewrite.ArrayValue):
    x: jax.Array

    def aval(self):
        return jax.core.ShapedArray(self.x.shape, self.x.dtype)

    def materialise(self):
        raise TypeError("too large")


def test_a_type_that_is_never_dense_has_what_its_rules_see():
    rules = jaxrewrite.Rules()
    rules.register(jnp.linalg.det)(of_never(Never))
    got = jaxrewrite.transform(jnp.linalg.det, rules=rules, materialise="forbid")(
        Never(Unitful(SQUARE, "m"))
    )
    assert got.units == Units("m")


def test_a_value_around_a_type_that_is_never_dense_has_what_its_rules_see():
    rules = jaxrewrite.Rules()

    @rules.register(jnp.linalg.det)
    def _(v: Scaled):
        return v.x.x.sum()

    det = jaxrewrite.transform(jnp.linalg.det, rules=rules, materialise="forbid")
    assert det(Scaled(Never(Unitful(SQUARE, "m")), jnp.float32(2))).units == Units("m")


def of_never(cls):
    def total(v: cls) -> jax.Array:
        return v.x.sum()

    return total


def test_units_that_do_not_fit_are_an_error():
    v = Sum((Diagonal(Unitful(ROW, "m")), Diagonal(Unitful(ROW, "s"))))
    for fn in (lambda v: v @ ROW, jnp.linalg.det):
        with pytest.raises((UnitsError, jaxrewrite.MaterialisationError), match="m and s"):
            allow(fn)(v)


def test_other_annotations_stay_inside():
    """Units around bounds and tags move outside without them."""
    v = Diagonal(Unitful(Interval(ROW, ROW + 1), "m"))
    got = allow(lambda v: v @ jnp.ones(3))(v)
    assert got.units == Units("m")
    assert_same((got.array.lower, got.array.upper), (ROW, ROW + 1), 1e-6)
    with pytest.raises(jaxrewrite.MaterialisationError, match="'reduce_prod' on Interval"):
        allow(jnp.linalg.det)(v)
    got = allow(jnp.linalg.det)(Diagonal(Unitful(Tagged(ROW, "a"), "m")))
    assert (got.tags, got.array.units) == (frozenset("a"), Units("m") ** 3)
    assert_same(got.array.array, ROW.prod(), 1e-5)


def test_gradients_through_what_moved_outside():
    u = Unitful(jnp.float32(1), "m")
    fn = lambda v, u: ((v @ ROW).sum() / u) ** 2
    slope = jax.grad(allow(fn))(Diagonal(Unitful(ROW, "m")), u)
    want = jax.grad(lambda d: ((d * ROW).sum()) ** 2)(ROW)
    assert_same(slope.d.array, want, 1e-5)
    volume = lambda v, u: jnp.linalg.det(v) / u**3
    slope = jax.grad(allow(volume))(Diagonal(Unitful(ROW, "m")), u)
    assert_same(slope.d.array, jax.grad(jnp.prod)(ROW), 1e-5)
    assert "det(Unitful" in str(jaxrewrite.explain(volume)(Diagonal(Unitful(ROW, "m")), u))


# --- masks --------------------------------------------------------------------------------


def masked(x):
    return Masked(x, (jnp.arange(x.size).reshape(x.shape) % 3) == 1)


OF_MASKS = {
    "sum": jnp.sum,
    "rows": lambda v: v @ jnp.ones(3),
    "columns": lambda v: v.sum(0),
    "norm": jnp.linalg.norm,
    "twice": lambda v: (v + v) @ ROW,
    "concatenated": lambda v: jnp.concatenate([v, v]),
    "rolled": lambda v: jnp.roll(v, 1, 0),
    "loop": lambda v: lax.scan(lambda c, _: (v @ c, None), ROW, length=2)[0],
    "branches": lambda v: lax.cond(True, lambda: v, lambda: v.T).sum(1),
    "variance": jnp.var,
    "median": jnp.median,
    "functions": jax.jit(lambda v: jnp.exp(v).sum(0)),
    "mapped": lambda v: jax.vmap(lambda row: row / row.sum())(v),
}
MASKED = {
    **AROUND,
    "Lora": (lambda carry: Lora(carry(SQUARE), SQUARE[:, :1], SQUARE[:1]), 1),
}
del MASKED["Symmetric"]  # The transpose of a mask says otherwise what is missing.


@pytest.mark.parametrize("around, program", every(2, itertools.product(MASKED, OF_MASKS)))
def test_rules_of_a_structure_do_not_hide_what_is_missing(around, program):
    """The mask of the dense array is that of each program on it."""
    v = MASKED[around][0](masked)
    fn = OF_MASKS[program]
    dense = allow(lambda v: jnp.concatenate([v[:1], v[1:]]))(v)
    assert isinstance(dense, Masked)
    got, want = (allow(fn)(x) for x in (v, dense))
    assert_same(got.mask, want.mask, 0)
    assert_same(got.filled(0), want.filled(0), 1e-4)


@pytest.mark.parametrize("around", ["Diagonal", "Kronecker"])
@pytest.mark.parametrize(
    "carry",
    [lambda x: Unitful(masked(x), "m"), lambda x: Masked(Unitful(x, "m"), masked(x).mask)],
)
def test_rules_of_a_structure_do_not_hide_what_is_missing_of_quantities(around, carry):
    v, want = (
        allow(lambda v: v @ jnp.ones(len(v)))(MASKED[around][0](c)) for c in (carry, masked)
    )
    assert v.units == Units("m")
    assert_same(v.array.mask, want.mask, 0)
    assert_same(v.array.filled(0), want.filled(0), 1e-6)


@pytest.mark.parametrize("around", ["Diagonal", "Scaled", "Kronecker", "LowRank"])
def test_what_counts_missing_entries_is_refused_inside_of_values_too(around):
    v = MASKED[around][0](masked)
    counting = (
        jnp.mean,
        lambda v: jnp.quantile(v, 0.5),
        jax.nn.standardize,
        lambda v: jnp.average(v, axis=0, weights=ROW),
    )
    for fn in counting:
        with pytest.raises(TypeError, match="Masked: "):
            allow(fn)(v)


def test_the_policy_is_asked_for_a_structure_around_a_mask():
    v = Diagonal(masked(ROW))
    refused = (
        r"'dot_general' holds for what is inside of Diagonal.*Put the annotation around"
    )
    with pytest.raises(jaxrewrite.MaterialisationError, match=refused):
        forbid(lambda v: v @ ROW)(v)
    with pytest.warns(jaxrewrite.MaterialisationWarning, match="inside of Diagonal"):
        jaxrewrite.transform(lambda v: v @ ROW)(v)
    with pytest.raises(
        jaxrewrite.MaterialisationError, match="'jit' holds for what is inside"
    ):
        forbid(jax.jit(lambda v: v @ ROW))(v)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        around = Masked(Diagonal(ROW), jnp.eye(3) > 0)
        allow(lambda v: v.sum())(around)


@pytest.mark.parametrize(
    "columns", [masked(SQUARE[:, :2]), SQUARE[:, :2]], ids=["both", "one"]
)
def test_branches_with_masks_inside_have_the_mask_of_the_one_that_is_taken(columns):
    """Factors with more columns would be padded with zeros, which are there."""
    one = LowRank(masked(SQUARE[:, :1]), SQUARE[:1])
    two = LowRank(columns, SQUARE[:2])
    fn = lambda p, x, y: lax.cond(p, lambda: x, lambda: y)
    for p, v in ((True, one), (False, two)):
        got = allow(fn)(jnp.array(p), one, two)
        want = allow(lambda v: jnp.concatenate([v[:1], v[1:]]))(v)
        if not isinstance(want, Masked):
            want = Masked(jaxrewrite.materialise(want), jnp.zeros((3, 3), bool))
        assert_same(got.mask, want.mask, 0)
        assert_same(got.filled(0), want.filled(0), 1e-6)


# --- zeros beside ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "carry",
    [lambda x: Unitful(x, "m"), lambda x: Tagged(x, "a"), lambda x: Masked(x, x > 9)],
)
@pytest.mark.parametrize("fn", [lambda v: jnp.where(v == v, v, 0.0), jnp.tril, jnp.nansum])
def test_a_structure_around_an_annotation_beside_zeros(carry, fn):
    for make in (lambda x: Kronecker(x, jnp.ones((2, 2))), Triangular, BlockDiagonal):
        x = jnp.eye(2)[None] if make is BlockDiagonal else jnp.eye(2)
        got = up_to_annotation(allow(fn)(make(carry(x))))
        assert type(got) is type(carry(ROW))
        array = got.filled(0) if isinstance(got, Masked) else got.array
        want = fn(jaxrewrite.materialise(make(x)))
        assert_same(jaxrewrite.materialise(array), want, 1e-6)


def test_elements_that_are_quantities_are_padded_with_zeros():
    """A zero takes the units of the elements, which its rule does not see in their stack."""
    weight = Rescaled(SQUARE, ROW[None])
    element = jax.tree.map(lambda x: jnp.stack([x, x]), Unitful(weight, ""))
    pad = lambda v: lax.pad(v, 0.0, ((0, 1, 0), (0, 2, 0)))
    got = allow(jax.vmap(pad))(Batched(element, 2))
    assert_same(got, jnp.stack([pad(weight.materialise())] * 2), 1e-6)


# --- what is inside of an annotation -----------------------------------------------------------


def test_a_sum_inside_becomes_dense_alike_in_each_equation(optimised):
    """Its terms are made of smaller arrays, too."""
    rng = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)
    is_greatest = allow(lambda v: (v == v.max(0)).sum(0))
    for _ in range(40):
        total = Sum((Diagonal(draw(4)), LowRank(draw(4, 1), draw(1, 4))))
        assert_same(is_greatest(Tagged(total, "a")).array, jnp.ones(4, int), 0)


@pytest.mark.parametrize(
    "carry",
    [lambda v: Tagged(v, "a"), lambda v: Unitful(v, "m"), lambda v: Named(v, ("i", "j"))],
    ids=["Tagged", "Unitful", "Named"],
)
def test_what_is_inside_becomes_dense_alike_in_each_equation(carry):
    """If two calls computed it with other roundings, no entry would be the greatest."""
    draw = lambda *shape: jnp.asarray(RNG.normal(size=shape), jnp.float32)
    is_greatest = allow(lambda v: (v == v.max(0)).sum(0))
    slope = allow(jax.grad(lambda v: v.max(0).sum()))
    for _ in range(4):
        lora = Lora(draw(4, 4), draw(4, 1), draw(1, 4))
        total = Sum((Diagonal(draw(4)), LowRank(draw(4, 1), draw(1, 4))))
        for v in map(carry, (lora, total)):
            assert_same(jaxrewrite.materialise(is_greatest(v)), jnp.ones(4, int), 0)
            if not isinstance(v, Unitful):
                assert jnp.isfinite(slope(v).array).all()

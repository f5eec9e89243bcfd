"""Weights whose last block is shorter than the others."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec
from oracle import normal

import jaxrewrite
from jaxrewrite.testing import assert_same
from jaxrewrite.values import (
    NF4,
    Concatenated,
    Float8,
    Microscaled,
    Quantised,
    adapt,
    quantise,
)


def of(w, *args, **options):
    return quantise({"w": w}, lambda path, leaf: True, *args, **options)["w"]


PROGRAMS = {
    "product": lambda v, x: x @ v,
    "of the transpose": lambda v, x: v.T @ x.T,
    "with outputs": lambda v, x: (x[:, :8] @ v.T),
    "batch axis": lambda v, x: jnp.einsum("bi,io->ibo", x, v),
    "rows": lambda v, x: v[jnp.array([[0, 6], [7, 9]])],
    "rows beyond": lambda v, x: jnp.take(v, jnp.array([3, 12]), axis=0, mode="fill"),
    "rows at the end": lambda v, x: jnp.take(v, jnp.array([-30, 12]), axis=0, mode="clip"),
    "a row": lambda v, x: lax.dynamic_index_in_dim(v, jnp.int32(9), keepdims=False),
    "columns one by one": lambda v, x: jax.vmap(lambda i: v[:, i])(jnp.array([1, 6])),
    "columns": lambda v, x: x @ lax.dynamic_slice_in_dim(v, jnp.int32(2), 4, axis=1),
    "one part": lambda v, x: x[:, :6] @ v[:6],
    "across parts": lambda v, x: x[:, 4:9] @ v[4:9],
    "steps": lambda v, x: x[:, 1::3] @ v[1::3],
    "steps from the last part on": lambda v, x: x[:, 7::2] @ v[7::2],
    "steps that begin behind a part": lambda v, x: x[:, 2::5] @ v[2::5],
    "nothing": lambda v, x: x[:, :0] @ v[3:3],
    "reversed": lambda v, x: x @ v[::-1],
    "heads": lambda v, x: jnp.einsum("bi,ihs->bhs", x, v.reshape(10, 2, 4)),
    "pairs of rows": lambda v, x: jnp.einsum("bij,ijo->bo", x.reshape(3, 5, 2), v.reshape(5, 2, 8)),
    "scaled": lambda v, x: x @ (v * 2 / jnp.arange(1, 9.0)),
    "side by side": lambda v, x: x @ jnp.concatenate([v, -v], 1),
    "one below the other": lambda v, x: jnp.tile(x, 2) @ jnp.concatenate([v, v]),
    "mapped": lambda v, x: jax.vmap(lambda row: row @ v)(x),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_stay_implicit(name, bulk):
    # Pairs of rows stay in a part each.
    w, x = normal(10, 8), normal(3, 10)
    v = of(w, 4, block=6)
    assert isinstance(v, Concatenated) and v.lengths == (6, 4) and v.shape == w.shape
    got = jaxrewrite.transform(PROGRAMS[name], materialise="forbid")(v, x)
    want = PROGRAMS[name](v.materialise(), x)
    np.testing.assert_allclose(got, want, 1e-5, 1e-5)


def test_a_row_in_the_middle_of_the_last_part_is_that_row():
    v = Concatenated(
        (Quantised.quantise(normal(2, 4)), Quantised.quantise(normal(3, 4))), -2
    )
    row = jaxrewrite.transform(lambda v: lax.dynamic_index_in_dim(v, jnp.int32(3)))(v)
    np.testing.assert_allclose(row, v.materialise()[3:4], 1e-6)


@pytest.mark.parametrize(
    "look_up",
    [
        lambda v, i: jax.vmap(lambda i: lax.dynamic_slice_in_dim(v, i, 2))(i),
        lambda v, i: jnp.take(v, i, axis=0, mode="fill"),
    ],
    ids=["pairs of rows", "rows beyond"],
)
def test_rows_that_no_single_part_has_are_those_of_the_array(look_up):
    v, i = Concatenated((normal(2, 3), normal(1, 3)), -2), jnp.array([0, 1, 5])
    got = jaxrewrite.transform(look_up, materialise="allow")(v, i)
    assert_same(got, look_up(v.materialise(), i))


def test_axes_of_length_one_come_and_go_around_the_parts():
    deep = tuple(Quantised.quantise(normal(1, 2, n, 1)) for n in (4, 5))
    fewer = jaxrewrite.transform(lambda v: lax.squeeze(v, (0, 3)), materialise="forbid")
    got = fewer(Concatenated(deep, -2))
    assert (type(got), got.shape, got.axis) == (Concatenated, (2, 9), -1)
    parts = tuple(Quantised.quantise(normal(1, n, 3)) for n in (4, 5))
    v = Concatenated(parts, -2)
    squeeze = jaxrewrite.transform(lambda v: lax.squeeze(v, (0,)), materialise="forbid")
    rows = squeeze(v)
    assert (type(rows), rows.shape, rows.axis) == (Concatenated, (9, 3), -2)
    widen = lambda v: lax.broadcast_in_dim(v, (2, 9, 6, 3), (0, 1, 3))
    wide = jaxrewrite.transform(widen, materialise="forbid")(v)
    assert (type(wide), wide.shape, wide.axis) == (Concatenated, (2, 9, 6, 3), -3)
    for got, fn in ((rows, lambda x: x[0]), (wide, widen)):
        np.testing.assert_allclose(got.materialise(), fn(v.materialise()), 1e-6)
    # One row of a part without others is repeated, which no part alone says.
    empty, row = (Quantised.quantise(normal(n, 3)) for n in (0, 1))
    repeat = lambda v: lax.broadcast_in_dim(v, (4, 3), (0, 1))
    one = Concatenated((empty, row), -2)
    repeated = jaxrewrite.transform(repeat, materialise="allow")(one)
    np.testing.assert_allclose(
        jaxrewrite.materialise(repeated), repeat(one.materialise()), 1e-6
    )
    gone = jaxrewrite.transform(lambda v: lax.squeeze(v, (0,)), materialise="allow")(one)
    np.testing.assert_allclose(jaxrewrite.materialise(gone), one.materialise()[0], 1e-6)


def test_devices_share_the_axes_along_which_no_parts_lie():
    v = of(normal(10, 8), block=6)
    specs = v.leaf_specs(PartitionSpec(None, "x"))
    assert specs.parts == (PartitionSpec(None, "x"),) * 2
    assert v.leaf_specs(PartitionSpec()).parts == (PartitionSpec(),) * 2
    assert v.leaf_specs(PartitionSpec("x")) is NotImplemented


@pytest.mark.parametrize(
    ("bits", "kind"),
    [
        (8, Quantised),
        (3, Quantised),
        ("nf4", NF4),
        ("float8_e4m3fn", Float8),
        ("mxfp4", Microscaled),
    ],
)
def test_each_part_is_in_the_format_that_was_asked_for(bits, kind):
    w = normal(100, 3)
    v = of(w, bits, block=64)
    want = [of(part, bits, block=64) for part in (w[:64], w[64:])]
    assert v.lengths == (64, 36) and all(isinstance(part, kind) for part in v.parts)
    for got, part in zip(v.parts, want, strict=True):
        for x, y in zip(*map(jax.tree.leaves, (got, part)), strict=True):
            np.testing.assert_array_equal(x, y)


def test_blocks_that_divide_make_no_parts():
    w = normal(96, 4)
    assert isinstance(of(w, block=48), Quantised)
    assert isinstance(of(w, "nf4", block=(None, 2)), NF4)
    assert of(w[:20], "nf4").scale_q.shape == (1, 4)  # One block, which is short.


@pytest.mark.parametrize(
    "make",
    [
        lambda w: Quantised.quantise(w, block=64),
        lambda w: NF4.quantise(w),
        lambda w: Float8.quantise(w, block=64),
        lambda w: Microscaled.quantise(w),
    ],
)
def test_a_format_itself_has_blocks_of_one_size_and_says_what_has_not(make):
    with pytest.raises(
        ValueError, match=r"jaxrewrite\.values\.quantise .* makes the last block"
    ):
        make(normal(100, 3))


def test_two_axes_have_short_blocks():
    w = normal(5, 7)
    v = of(w, block=(2, 3))
    assert v.lengths == (4, 1) and [part.lengths for part in v.parts] == [(6, 1)] * 2
    sizes = [leaf.shape for leaf in jax.tree.leaves(v) if leaf.dtype == jnp.float32]
    assert sizes == [(2, 2), (2, 1), (1, 2), (1, 1)]
    np.testing.assert_allclose(v.materialise(), w, atol=0.02)


def test_stacked_and_adapted_weights_go_through_a_scan():
    w, x = normal(3, 10, 10), normal(2, 10)
    axes = ((1,), (2,))
    v = of(w, 4, block=6, axes=axes)
    key = jax.random.key(0)
    lora = adapt({"w": v}, lambda *_: True, rank=2, key=key, axes=axes)["w"]

    def layers(v, x):
        return lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, v)[0]

    for value in (v, lora):
        got = jaxrewrite.transform(layers, materialise="forbid")(value, x)
        np.testing.assert_allclose(
            got, layers(jaxrewrite.materialise(value), x), 1e-4, 1e-5
        )


def test_gradients_reach_the_input_and_the_scales():
    v, x = of(normal(10, 8), block=6), normal(3, 10)

    def loss(apply):
        return lambda scales, x: (apply(_with_scales(v, scales), x) ** 2).sum()

    product = lambda v, x: x @ v
    scales = [part.scale for part in v.parts]
    implicit = jaxrewrite.transform(product, materialise="forbid")
    dense = lambda v, x: product(v.materialise(), x)
    got = jax.grad(loss(implicit), (0, 1))(scales, x)
    want = jax.grad(loss(dense), (0, 1))(scales, x)
    for g, w in zip(*map(jax.tree.leaves, (got, want)), strict=True):
        np.testing.assert_allclose(g, w, 1e-4, 1e-3)


def _with_scales(v, scales):
    pairs = zip(v.parts, scales, strict=True)
    parts = tuple(Quantised(part.q, scale) for part, scale in pairs)
    return Concatenated(parts, v.axis)


def test_sums_of_integers_are_exact():
    large = 2**24 + 1  # no number of float32
    v = Concatenated((jnp.full((2, 3), large), jnp.ones((1, 3), int)), -2)
    product = lambda v, x: x @ v
    x = jnp.ones((2, 3), int)
    got = jaxrewrite.transform(product, materialise="forbid")(v, x)
    np.testing.assert_array_equal(got, product(v.materialise(), x))
    got = jaxrewrite.transform(lambda v: v.T @ v, materialise="forbid")(v)
    np.testing.assert_array_equal(got, v.materialise().T @ v.materialise())


def test_sums_over_parts_are_rounded_once():
    """257 is no number of bfloat16."""
    parts = (jnp.full((1, 1), n, jnp.bfloat16) for n in (256, 1, 1))
    product = jaxrewrite.transform(lambda v: jnp.ones(3, v.dtype) @ v, materialise="forbid")
    assert float(product(Concatenated(tuple(parts), -2))[0]) == 258


@pytest.mark.parametrize("block", [(3, 6), (4, 6), (5, 6)])
def test_parts_of_other_lengths_are_joined_along_another_axis(block):
    v, w = of(normal(5, 6), block=(3, 6)), of(normal(5, 6, seed=1), block=block)
    join = lambda v, w: jnp.concatenate([v, w], 1)
    got = jaxrewrite.transform(join, materialise="allow")(v, w)
    assert isinstance(got, Concatenated) == (block == (3, 6))
    np.testing.assert_array_equal(
        jaxrewrite.materialise(got), join(*jaxrewrite.materialise((v, w)))
    )


def test_what_is_no_concatenation_is_refused():
    with pytest.raises(ValueError, match="parts is empty"):
        Concatenated((), -1)
    with pytest.raises(ValueError, match="axis is 0, .* must be -2 to -1"):
        Concatenated((jnp.ones((2, 2)),), 0)
    with pytest.raises(ValueError, match="differ in the length of axis -1 alone"):
        Concatenated((jnp.ones((2, 2)), jnp.ones((3, 2))), -1)


def test_a_packed_axis_of_length_one_is_not_cut():
    """An entry is half a byte, so that a leading axis of bytes is not one of entries."""
    v = Quantised.quantise(jnp.ones((1, 1)), 4, axis=-1)
    scan = lambda x: lax.scan(lambda c, row: (c + row, None), x * 0, x[:, None])[0]
    got = jaxrewrite.transform(scan, materialise="allow")(v)
    np.testing.assert_array_equal(jaxrewrite.materialise(got), scan(v.materialise()))


ROWS = {
    "product": lambda v: jnp.ones(v.shape[0]) @ v,
    "rows": lambda v: v[jnp.array([0, 2])],
    "a row": lambda v: lax.dynamic_index_in_dim(v, jnp.int32(1)),
    "scaled": lambda v: v * jnp.arange(3.0)[:, None],
    "nothing": lambda v: v[3:],
}


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("lengths", [(0, 3), (2, 0, 1), (3, 0)])
def test_a_part_may_have_no_entries(name, lengths, bulk):
    v = Concatenated(tuple(normal(n, 2) for n in lengths), -2)
    got = jaxrewrite.transform(ROWS[name], materialise="forbid")(v)
    assert_same(jaxrewrite.materialise(got), ROWS[name](v.materialise()))


def test_all_parts_may_have_no_entries():
    v = Concatenated((jnp.zeros((0, 2)), jnp.zeros((0, 2))), -2)
    got = jaxrewrite.transform(ROWS["product"], materialise="forbid")(v)
    assert_same(got, jnp.zeros(2))


def test_an_axis_of_one_entry_may_be_dropped_by_a_lookup():
    v = Concatenated((normal(1, 2),), -2)
    numbers = lax.GatherDimensionNumbers((1,), (0,), ())
    first = lambda v: lax.gather(v, jnp.zeros((3, 0), int), numbers, (1, 2))
    got = jaxrewrite.transform(first, materialise="allow")(v)
    assert_same(got, first(v.materialise()))


def test_an_axis_of_one_entry_may_be_dropped_by_a_reshape():
    v = Concatenated((normal(2, 1, 1),), -2)
    got = jaxrewrite.transform(lambda v: v.reshape(2), materialise="allow")(v)
    assert_same(got, v.materialise().reshape(2))


def test_parts_of_one_entry_each_have_a_rule_for_reshapes():
    v = Concatenated((normal(1, 1), normal(1, 1)), -2)
    got = jaxrewrite.transform(lambda v: v.reshape(1, 2), materialise="forbid")(v)
    assert_same(got, v.materialise().reshape(1, 2))

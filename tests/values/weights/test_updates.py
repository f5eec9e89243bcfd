"""Writing into quantised arrays: caches of keys and values, and layers into their stack."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxrewrite
from jaxrewrite import MaterialisationError
from jaxrewrite.testing import assert_same
from jaxrewrite.values import (
    NF4,
    Float8,
    Quantised,
    quantised_updates,
)


B, L, H, D = 2, 4, 2, 8
writing = functools.partial(
    jaxrewrite.transform, rules=quantised_updates, materialise="forbid"
)
FORMATS = {
    "8 bits": lambda x: Quantised.quantise(x, axis=(0, 1, 2)),
    "affine": lambda x: Quantised.quantise(x, axis=(0, 1, 2), symmetric=False),
    "4 bits in blocks": lambda x: Quantised.quantise(x, 4, block=(1, 1, 1, 4)),
    "3 bits": lambda x: Quantised.quantise(x, 3, block=(1, 1, H, D)),
    "e4m3": lambda x: Float8.quantise(x, axis=(0, 1)),
    "e5m2": lambda x: Float8.quantise(x, "float8_e5m2", axis=(0, 1, 2)),
}
# Half a step, relative to the largest magnitude, or to the entry itself in floats.
HALF_STEP = {
    **{
        "8 bits": 0.5 / 127,
        "affine": 1 / 255,
        "4 bits in blocks": 0.5 / 7,
        "3 bits": 0.5 / 3,
    },
    **{"e4m3": 2**-4, "e5m2": 2**-3},
}


def random(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape)


def slot(x, i, k):
    return x.at[:, i].set(k)


def slots_of_each(x, i, k):
    return x.at[jnp.arange(B), i].set(k)


def rows(x, i, k):
    return lax.dynamic_update_slice_in_dim(x, k[None], i, 0)


WRITES = {
    "slot": (slot, 2),
    "last slot": (slot, -1),
    "slots of each": (slots_of_each, np.array([3, 1])),
    "out of range": (slots_of_each, np.array([0, 7])),
    "under vmap": (jax.vmap(lambda x, i, k: x.at[i].set(k)), np.array([3, 1])),
    "rows under vmap": (jax.vmap(rows), np.array([9, 1])),
    "a slice": (lambda x, i, k: lax.dynamic_update_slice_in_dim(x, k[:, None], i, 1), 5),
    "several": (lambda x, i, k: x.at[:, 1:3].set(jnp.stack([k, -k], 1)), 0),
    "one of two": (lambda x, i, k: x.at[:, i].set(jnp.stack([k, -k], 1)), np.array([3, 3])),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("format", FORMATS)
def test_what_is_written_is_rounded_and_the_rest_stays(format, write, bulk):
    fn, i = WRITES[write]
    v, k = FORMATS[format](random(0, B, L, H, D)), random(1, B, H, D)
    got = writing(fn)(v, i, k)
    assert jax.tree.structure(got) == jax.tree.structure(v)
    assert [x.shape for x in jax.tree.leaves(got)] == [x.shape for x in jax.tree.leaves(v)]
    before, dense = np.asarray(v.materialise()), np.asarray(got.materialise())
    wanted = np.asarray(fn(jnp.asarray(before), i, k))
    is_written = np.asarray(fn(jnp.zeros(v.shape), i, jnp.ones_like(k))) != 0
    np.testing.assert_array_equal(dense[~is_written], before[~is_written])
    assert (dense != before)[is_written].any()
    most = float(k.max() - min(k.min(), 0)) if format == "affine" else float(abs(k).max())
    assert abs(dense - wanted).max() <= HALF_STEP[format] * most * 1.001


def test_the_numbers_are_those_of_the_formula():
    k = random(1, B, H, D)
    v = FORMATS["8 bits"](jnp.zeros((B, L, H, D)))
    got = writing(slot)(v, 1, k)
    scale = abs(np.asarray(k)).max(-1, keepdims=True) / 127
    np.testing.assert_array_equal(got.q[:, 1], np.round(k / scale))
    np.testing.assert_allclose(got.scale[:, 1], scale, rtol=1e-6)


def decode(cache, keys, start):
    """Two scans, of tokens and of layers. The cache is zero again at one of the tokens."""

    def token(cache, now):
        i, key = now
        cache = lax.cond(i == start, jnp.zeros_like, lambda cache: cache, cache)

        def layer(x, cache):
            cache = cache.at[:, i].set(x)
            scores = jnp.einsum("blhd,bhd->bhl", cache, x)
            return x + jnp.einsum("bhl,blhd->bhd", scores, cache), cache

        return lax.scan(layer, key, cache)[::-1]

    return lax.scan(token, cache, (jnp.arange(L), keys))


def test_a_cache_in_scans_that_also_start_anew():
    keys = random(0, L, B, H, D) / 8
    zeros = jnp.zeros((3, B, L, H, D))
    cache = Quantised.quantise(zeros, axis=(0, 1, 2, 3))
    cache, out = jax.jit(writing(decode))(cache, keys, 2)
    dense, wanted = decode(zeros, keys, 2)
    assert isinstance(cache, Quantised) and cache.shape == (3, B, L, H, D)
    np.testing.assert_allclose(cache.materialise(), dense, atol=0.03)
    np.testing.assert_allclose(out, wanted, atol=0.03)


def test_a_loop_that_writes_layers_into_their_stack_is_exact():
    """A layer is written as it is, with the ordinary rules."""

    def program(stack, layer):
        return lax.fori_loop(0, 2, lambda i, s: s.at[i].set(layer), stack)

    stack = Quantised.quantise(random(0, 3, 4, 6), 4, axis=(0, 2))
    layer = Quantised.quantise(random(1, 4, 6), 4, axis=1)
    got = jaxrewrite.transform(program, materialise="forbid")(stack, layer)
    assert jax.tree.structure(got) == jax.tree.structure(stack)
    wanted = program(stack.materialise(), layer.materialise())
    np.testing.assert_array_equal(got.materialise(), wanted)


def test_several_for_one_place_are_written_once_whatever_the_order():
    """Leaves are scattered one by one, in an order that is the device's: codes and scales of one."""
    v = FORMATS["8 bits"](jnp.zeros((B, L, H, D)))
    places = jnp.zeros((3, 2), jnp.int32)
    fn = lambda v, at, k: v.at[at[:, 0], at[:, 1]].set(k)
    jaxpr = jaxrewrite.make_jaxpr(fn, rules=quantised_updates)(
        v, places, jnp.ones((3, H, D))
    )
    assert [str(eqn.primitive) for eqn in jaxpr.eqns].count("scatter-max") == 1


@pytest.mark.parametrize("shape", [(2, 8), (4, 6), (2, 6)])
def test_a_part_of_a_block_along_any_axis_is_refused(shape):
    v = Quantised.quantise(jnp.ones((8, 8)), 4, block=(4, 4))
    write = writing(lambda v, x: lax.dynamic_update_slice(v, x, (0, 0)))
    with pytest.raises(MaterialisationError, match="Quantised"):
        write(v, jnp.ones(shape))


@pytest.mark.parametrize(
    ("fn", "v"),
    [
        (
            lambda x, k: x.at[:, :, 0].set(k),
            Quantised.quantise(jnp.ones((B, L, H, D)), axis=(0, 1)),
        ),
        (lambda x, k: x.at[:, 0].add(k[:, 0]), FORMATS["8 bits"](jnp.ones((B, L, H, D)))),
        (lambda x, k: x.at[:, 0].apply(jnp.exp), FORMATS["8 bits"](jnp.ones((B, L, H, D)))),
        (lambda x, k: x.at[:, :, 0].set(k), NF4.quantise(jnp.ones((B, L, H, D)), 1)),
    ],
    ids=["part of a block", "add", "apply", "a format that does not round"],
)
def test_what_is_refused(fn, v):
    k = jnp.ones((B, L, D))
    with pytest.raises(MaterialisationError, match=type(v).__name__):
        writing(fn)(v, k)
    allowed = jaxrewrite.transform(fn, rules=quantised_updates, materialise="allow")
    np.testing.assert_array_equal(allowed(v, k), fn(v.materialise(), k))


def test_without_the_rules_a_write_is_exact():
    v, k = FORMATS["8 bits"](random(0, B, L, H, D)), random(1, B, H, D)
    got = jaxrewrite.transform(slot, materialise="allow")(v, 1, k)
    np.testing.assert_array_equal(got, slot(v.materialise(), 1, k))


def test_a_derivative_by_what_is_written_is_an_error():
    v, k = FORMATS["8 bits"](random(0, B, L, H, D)), random(1, B, H, D)
    k0 = jnp.ones((B, H, D))
    loss = lambda v, k, c: c * jnp.einsum("blhd,bhd->blh", slot(v, 1, k), k0).sum()
    with pytest.raises(TypeError, match="quantised_updates: what is written"):
        jax.grad(writing(loss), 1)(v, k, 1.0)
    by_other = jax.grad(writing(loss), 2)(v, k, 1.0)
    np.testing.assert_allclose(by_other, loss(v.materialise(), k, 1.0), rtol=1e-2)
    # The derivative inside of the rewriting is that of the dense program.
    inside = writing(jax.grad(loss, 1))(v, k, 3.0)
    np.testing.assert_array_equal(inside, jnp.full(k.shape, 3.0))


def test_what_is_written_at_one_place_is_a_part_of_an_axis():
    """Several such parts could overlap; one is written leaf by leaf."""
    v = Quantised.quantise(random(0, 4, 6, 3), axis=(0, 1))
    part = jaxrewrite.transform(lambda v: v[0, :2], materialise="forbid")(v)
    numbers = lax.ScatterDimensionNumbers((0, 1), (0,), (0, 1))
    write = lambda v, part: lax.scatter(v, jnp.array([2, 1]), part, numbers)
    got = jaxrewrite.transform(write, materialise="forbid")(v, part)
    assert_same(got.materialise(), write(v.materialise(), part.materialise()))


@pytest.mark.parametrize("at", [[[2], [1]], [[], []]], ids=["in part", "as a whole"])
def test_parts_that_may_overlap_are_not_written_leaf_by_leaf(at):
    at = jnp.array(at, jnp.int32)
    rows = 2 if at.size else 4
    v = Quantised.quantise(random(0, 4, 6), axis=0)
    parts = [Quantised.quantise(random(i, rows, 6), axis=0) for i in (1, 2)]
    numbers = lax.ScatterDimensionNumbers((1, 2), (), tuple(range(at.shape[1])))
    write = lambda v, part: lax.scatter(v, at, part, numbers)
    part = jaxrewrite.stack(parts)
    with pytest.raises(jaxrewrite.MaterialisationError, match="scatter"):
        jaxrewrite.transform(write, materialise="forbid")(v, part)
    got = jaxrewrite.transform(write, materialise="allow")(v, part)
    assert_same(got, write(v.materialise(), part.materialise()))


def test_the_last_of_what_is_clipped_to_one_place_is_written():
    v = Quantised.quantise(random(0, 4, 6), axis=0)
    rows = Quantised.quantise(random(1, 3, 6), axis=0)
    write = lambda v, rows: v.at[jnp.array([9, 1, 7])].set(rows, mode="clip")
    got = jaxrewrite.transform(write, materialise="forbid")(v, rows)
    assert_same(got.materialise(), write(v.materialise(), rows.materialise()))


def test_what_is_written_in_three_bits_has_their_largest_code():
    """The rule for a function of which no result needs its operand."""
    v = Quantised.quantise(random(0, 4, 8), 3, block=(1, 8))
    x = random(1, 1, 8)
    write = lambda v, x: jax.lax.dynamic_update_slice(v, x, (2, 0))
    got = jaxrewrite.transform(write, rules=quantised_updates)(v, x)
    error = np.abs(got.materialise()[2] - x[0]).max()
    assert error <= 0.5 / 3 * np.abs(x).max() * 1.001

"""Annotated values in higher-order primitives that need what is inside of them dense."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrewrite
from jaxrewrite import values


@pytest.mark.parametrize("name", ["named", "unitful", "masked", "tagged"])
def test_annotations_stay_around_what_must_become_dense(name):
    """Slices along the rows of a matrix of low rank, and results of a custom rule."""
    w = jnp.arange(1.0, 9).reshape(4, 2)
    around = {
        "named": lambda x: values.Named(x, ("a", "b")),
        "unitful": lambda x: values.Unitful(x, "m"),
        "masked": lambda x: values.Masked(x, w > 7),
        "tagged": lambda x: values.Tagged(values.Unitful(x, "m"), "w"),
    }[name]
    v = values.LowRank(w, jnp.eye(2))
    tripled = jax.custom_jvp(lambda x: 3 * x)
    tripled.defjvps(lambda t, out, x: 3 * t)
    by_row = lambda x: jax.lax.map(lambda row: 3 * row, x)  # Its first axis has no name.
    fn = tripled if name == "named" else by_row
    got = jaxrewrite.transform(fn, materialise="allow")(around(v))
    assert jaxrewrite.same_structure(got, around(3 * w))
    jax.tree.map(np.testing.assert_array_equal, got, around(3 * w))


def test_zeros_before_a_loop_meet_a_type_that_computes_with_dense_arrays():
    w = jnp.arange(6.0).reshape(3, 2)
    v = values.FakeQuantised(w, bits=8)
    fn = lambda v: jax.lax.fori_loop(0, 2, lambda i, c: c + v, jnp.zeros_like(v))
    got = jaxrewrite.transform(fn, materialise="forbid")(v)
    np.testing.assert_array_equal(got, 2 * v.materialise())


def test_annotations_of_a_carry_are_joined_from_the_outside():
    """Whichever of the two is there first; tags are around a mask, and a mask around bounds."""
    x = jnp.arange(4.0).reshape(2, 2)
    interval = values.Interval(x, x + 1)
    masked, tagged = values.Masked(x, x > 2), values.Tagged(x, "w")
    fn = lambda start, other: jax.lax.fori_loop(0, 2, lambda i, c: 1.0 * other, start)
    for a, b, joined in [
        (interval, tagged, values.Tagged(interval, "w")),
        (masked, tagged, values.Tagged(masked, "w")),
        (masked, values.Tagged(masked, "w"), values.Tagged(masked, "w")),
        (interval, masked, values.Masked(interval, masked.mask)),
    ]:
        for pair in ((a, b), (b, a)):
            got = jaxrewrite.transform(fn, materialise="forbid")(*pair)
            assert jaxrewrite.same_structure(got, joined)

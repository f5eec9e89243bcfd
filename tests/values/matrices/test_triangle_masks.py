"""Masks that clear all but a triangle of a matrix, as JAX's functions and programs write them."""

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.scipy.stats import multivariate_normal

import jaxrewrite
from jaxrewrite import ArrayValue, Rules, materialise, transform
from jaxrewrite.values import Kronecker, LowRank, Symmetric, Toeplitz, Unitful


N = 5
RNG = np.random.default_rng(0)


def normal(*shape):
    return jnp.asarray(RNG.normal(size=shape), jnp.float32)


def symmetric(n):
    x = normal(n, n)
    return Symmetric(x @ x.T + n * jnp.eye(n))


V = Toeplitz(1 + jnp.arange(5.0), 1 + jnp.arange(5.0) ** 2)
A = np.asarray(materialise(V))


def indices(dtype=int):
    return jnp.arange(N, dtype=dtype)


# Masks of which the library sees that they are triangles, and of which NumPy's are these.
TRIANGLES = {
    "tri": (lambda: jnp.tri(N, dtype=bool), np.tri(N)),
    "compared the other way round": (lambda: indices() <= indices()[:, None], np.tri(N)),
    "strictly": (lambda: indices()[:, None] > indices(), np.tri(N, k=-1)),
    "of columns": (lambda: indices() > indices()[:, None], 1 - np.tri(N)),
    "strictly less": (lambda: indices()[:, None] < indices(), 1 - np.tri(N)),
    "a diagonal more": (lambda: indices()[:, None] + 1 >= indices(), np.tri(N, k=1)),
    "a number first": (lambda: 1 + indices()[:, None] >= indices(), np.tri(N, k=1)),
    "a column less": (lambda: indices()[:, None] >= indices() - 1, np.tri(N, k=1)),
    "columns moved": (lambda: indices() + 1 <= indices()[:, None], np.tri(N, k=-1)),
    "both moved": (lambda: jnp.arange(3, 8)[:, None] >= jnp.arange(2, 7), np.tri(N, k=1)),
    "denied": (lambda: ~jnp.tri(N, dtype=bool), 1 - np.tri(N)),
    "of ones": (lambda: jnp.tri(N, k=-1, dtype=bool), np.tri(N, k=-1)),
    "in a call": (jax.jit(lambda: indices()[:, None] >= indices()), np.tri(N)),
    "given to a call": (
        lambda: jax.jit(lambda mask: ~mask)(jnp.tri(N, dtype=bool)),
        1 - np.tri(N),
    ),
    "up to the largest integer but one": (
        lambda: indices("int8")[:, None] + jnp.int8(122) >= indices("int8") + jnp.int8(122),
        np.tri(N),
    ),
    "of short integers": (lambda: indices("int8")[:, None] >= indices("int8"), np.tri(N)),
}


@pytest.mark.parametrize("way", TRIANGLES)
def test_a_mask_of_a_triangle_is_seen(way):
    mask, want = TRIANGLES[way]
    for fn, kept in (
        (lambda v: jnp.where(mask(), v, 0), want),
        (lambda v: jnp.where(mask(), 0.0, v), 1 - want),
        (lambda v: lax.select_n(mask(), jnp.zeros_like(v), v), want),
    ):
        result = transform(fn, materialise="allow")(V)
        # The rules are for triangles that begin at the diagonal, or one beside it.
        is_far = (kept == 1 - np.tri(N, k=1)).all()
        assert isinstance(result, Toeplitz) or is_far
        np.testing.assert_array_equal(materialise(result), kept * A)


def test_a_mask_of_a_triangle_is_seen_up_to_the_last_integer():
    mask, _ = TRIANGLES["up to the largest integer but one"]
    cleared = jax.eval_shape(transform(lambda v: jnp.where(mask(), v, 0)), V)
    assert isinstance(cleared, Toeplitz)


def test_a_mask_by_columns_that_are_moved_is_the_triangle_below_them():
    mask, want = TRIANGLES["columns moved"]
    result = transform(lambda v: jnp.where(mask(), v, 0), materialise="forbid")(V)
    np.testing.assert_array_equal(materialise(result), want * A)


# Those that are none, or that no closed form is for.
OTHERS = {
    "a band": lambda: abs(indices()[:, None] - indices()) < 2,
    "steps of two": lambda: 2 * indices()[:, None] >= indices(),
    "turned": lambda: indices()[:, None] >= indices()[::-1],
    "of the sum": lambda: indices()[:, None] + indices() >= 4,
    "of one index": lambda: jnp.broadcast_to(indices() >= 2, (N, N)),
    "of one row": lambda: indices()[:1, None] >= indices(),
    "of one index for all rows": lambda: (
        jnp.broadcast_to(jnp.arange(1)[:, None], (N, N)) >= indices()
    ),
    "the diagonal": lambda: indices()[:, None] == indices(),
    "of two triangles": lambda: jnp.tri(N, dtype=bool) & jnp.tri(N, k=1, dtype=bool),
    "that wraps": lambda: indices("uint8")[:, None] - jnp.uint8(1) >= indices("uint8"),
    "that overflows": lambda: (
        indices("int8")[:, None] + jnp.int8(125) >= indices("int8") + jnp.int8(1)
    ),
    "known to the caller alone": lambda: np.tri(N, dtype=bool),
}


@pytest.mark.parametrize("way", OTHERS)
@pytest.mark.filterwarnings("ignore::jaxrewrite.MaterialisationWarning")
def test_other_masks_choose_entry_by_entry(way):
    fn = lambda v: jnp.where(OTHERS[way](), v, 0)
    np.testing.assert_array_equal(materialise(transform(fn)(V)), fn(A))


def test_masks_of_stacks():
    stack = jax.tree.map(lambda x: jnp.stack([x, 2 * x, 3 * x]), V)
    dense = materialise(stack)
    fn = lambda v: jnp.where(jnp.tri(N, dtype=bool), v, 0)
    for program in (fn, jax.vmap(fn)):
        result = transform(program, materialise="forbid")(stack)
        assert isinstance(result, Toeplitz)
        np.testing.assert_array_equal(materialise(result), program(dense))


def test_an_argument_beside_the_mask_is_not_taken_for_zeros():
    fn = lambda v, x: jnp.where(jnp.tri(N, dtype=bool), v, x)
    other = normal(N, N)
    result = transform(fn, materialise="allow")(V, other)
    np.testing.assert_array_equal(result, fn(A, other))


def test_negative_zeros_stay():
    fn = lambda v: 1 / jnp.where(jnp.tri(N, dtype=bool), v, -0.0)
    v = LowRank(jnp.ones((N, 1)), jnp.ones((1, N)))
    result = transform(fn, materialise="allow")(v)
    np.testing.assert_array_equal(result, fn(materialise(v)))


def test_a_mask_in_a_loop_is_known_where_each_turn_has_it():
    """What a loop carries is not what it began with."""

    def fn(v, shift):
        def turn(mask, _):
            kept = jnp.where(mask, v, 0) @ jnp.ones(N)
            return jnp.roll(mask, 1, 0), kept

        return lax.scan(turn, jnp.tri(N, dtype=bool), None, length=2)[1]

    result = transform(fn, materialise="allow")(V, 1)
    np.testing.assert_allclose(result, fn(A, 1), rtol=1e-6)


# --- Cholesky factors -----------------------------------------------------------------


KRONECKER = Kronecker(symmetric(2), symmetric(3))
Y = normal(6)


def by_factor(a):
    return lax.linalg.cholesky(a) @ Y


def density(a):
    return multivariate_normal.logpdf(Y, jnp.zeros(6), a)


@pytest.mark.parametrize("fn", [by_factor, density])
def test_factors_of_kronecker_products_stay_implicit(fn):
    dense = materialise(KRONECKER)
    result = transform(fn, materialise="forbid")(KRONECKER)
    np.testing.assert_allclose(result, fn(dense), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("fn", [lambda a: by_factor(a).sum(), density, jnp.linalg.cholesky])
def test_so_do_their_gradients_in_the_program(fn):
    by_scale = jax.grad(lambda s, a: jnp.sum(fn(s * a)))
    result = transform(by_scale, materialise="forbid")(1.5, KRONECKER)
    want = by_scale(1.5, materialise(KRONECKER))
    np.testing.assert_allclose(result, want, rtol=1e-3)


def test_units_go_through():
    v = Unitful(V, "m")
    result = transform(lambda v: jnp.where(jnp.tri(N, dtype=bool), v, 0))(v)
    assert isinstance(result.array, Toeplitz) and result.units == v.units


# --- rules of others ------------------------------------------------------------------


class Filled(ArrayValue):
    """A matrix of one number."""

    number: jax.Array
    n: int = jaxrewrite.field(static=True)

    def aval(self):
        return jax.core.ShapedArray((self.n, self.n), self.number.dtype)

    def materialise(self):
        return jnp.full((self.n, self.n), self.number)


def test_a_rule_for_the_function_is_asked():
    rules, asked = Rules(), []

    @rules.register(jnp.tril)
    def keep(v: Filled, *, k: Literal[1, 4]):
        asked.append(k)
        return [Filled(v.number, v.n)] if k >= v.n - 1 else NotImplemented

    fn = lambda v, k: jnp.where(jnp.tri(N, k=k, dtype=bool), v, 0)
    v = Filled(jnp.float32(2), N)
    assert isinstance(transform(lambda v: fn(v, 4), rules=rules)(v), Filled)
    declined = transform(lambda v: fn(v, 1), rules=rules, materialise="allow")(v)
    np.testing.assert_array_equal(declined, 2 * np.tri(N, k=1))
    assert asked == [4, 1]


def test_without_a_rule_the_choice_is_what_the_program_says():
    fn = lambda v: jnp.where(jnp.tri(N, dtype=bool), v, 0)
    text = str(jaxrewrite.explain(fn)(Filled(jnp.float32(2), N)))
    assert "select_n" in text and "tril" not in text


def test_an_index_along_an_axis_of_length_one_is_no_triangle():
    def fn(v):
        rows = lax.broadcasted_iota(jnp.int32, (1, N), 0)
        columns = lax.broadcasted_iota(jnp.int32, (N, N), 1)
        return lax.select_n(lax.ge(rows, columns), jnp.zeros((N, N)), v)

    v = Symmetric(jnp.ones((N, N)))
    got = materialise(transform(fn, materialise="allow")(v))
    np.testing.assert_array_equal(got, fn(v.materialise()))

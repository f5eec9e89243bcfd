"""Products that read a large array where it is, or in blocks, against NumPy in float64."""

import fractions
import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracle import forbid

from jaxrewrite import materialise
from jaxrewrite.values import Interval, Masked, NMSparse, Symmetric, Triangular
from jaxrewrite.values._annotations import interval
from jaxrewrite.values._base import in_blocks
from jaxrewrite.values._matrices import triangle


N = 16


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Small matrices count as large ones, on one device."""
    monkeypatch.setattr(triangle, "may_be_split", lambda: False)
    monkeypatch.setattr(triangle, "_ROWS", N)
    monkeypatch.setattr(triangle, "_ROWS_OF_BOTH", N)
    monkeypatch.setattr(triangle, "_ROWS_WITH_ONE", N)
    monkeypatch.setattr(triangle, "_FEW", 2)
    monkeypatch.setattr(triangle, "_GROUPS", 2)
    monkeypatch.setattr(triangle, "_ROWS_OF_GROUP", 1)
    monkeypatch.setattr(triangle, "_BLOCK", 4)
    monkeypatch.setattr(triangle, "_SOME", 4)
    monkeypatch.setattr(in_blocks, "may_be_split", lambda: False)
    monkeypatch.setattr(in_blocks, "_LEAST", 1)
    monkeypatch.setattr(in_blocks, "_ENTRIES", {math.inf: 32})
    monkeypatch.setattr(interval, "_LARGE", 1)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def f32(x):
    return jnp.asarray(x, "float32")


def everything(v, x):
    """Products on both sides, and derivatives by the other operand and by the matrix."""
    left, right = forbid(lambda v, x: v @ x), forbid(lambda v, x: x.T @ v)
    cost = lambda v, x: jnp.sum(jnp.sin(left(v, x))) + jnp.sum(jnp.sin(right(v, x)))
    by_v, by_x = jax.grad(cost, (0, 1), allow_int=True)(v, x)
    along = jax.jvp(lambda x: left(v, x), (x,), (jnp.cos(x),))[1]
    each = jax.vmap(left, (None, 1), 1)(v, x)
    second = jax.jvp(jax.grad(lambda x: cost(v, x)), (x,), (jnp.cos(x),))[1]
    return left(v, x), right(v, x), by_x, along, each, second, by_v


def expected(a, x):
    """The same by NumPy, and the gradient by each entry of the matrix."""
    left, right = a @ x, x.T @ a
    by_x = a.T @ np.cos(left) + a @ np.cos(right).T
    dx = np.cos(x)
    second = -a.T @ (np.sin(left) * (a @ dx)) - a @ (np.sin(right) * (dx.T @ a)).T
    by_a = np.cos(left) @ x.T + x @ np.cos(right)
    return left, right, by_x, a @ dx, left, second, by_a


KINDS = {
    "lower": lambda x: Triangular(x),
    "upper": lambda x: Triangular(x, lower=False),
    "lower, flipped": lambda x: Triangular(x, lower=False).transposed(),
    "upper, flipped": lambda x: Triangular(x).transposed(),
    "symmetric": Symmetric,
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("unused", "columns", "kinds"),
    [
        (unused, columns, tuple(KINDS))
        for unused in (7.0, np.nan, np.inf)
        for columns in (1, 2, 4)
    ],
)
def test_triangles(unused, columns, kinds, bulk):
    is_lower = np.tri(N, dtype=bool)
    a = normal(N, N) / 4
    values, wanted = [], []
    for name in kinds:
        make = KINDS[name]
        held = is_lower if _holds_lower(name) else is_lower.T
        v = make(f32(np.where(held, a, unused)))
        kept = np.where(held, a, 0)
        dense = kept.T if "flipped" in name else kept
        if name == "symmetric":
            dense = kept + np.tril(a, -1).T
        values.append(v)
        wanted.append((dense, held, name))
    x = normal(N, columns, seed=1)
    found = jax.jit(lambda vs, x: [everything(v, x) for v in vs])(values, f32(x))
    for (*results, by_v), (dense, held, name) in zip(found, wanted, strict=True):
        *right, by_a = expected(dense, x)
        for result, entry in zip(results, right, strict=True):
            np.testing.assert_allclose(result, entry, atol=1e-4, err_msg=name)
        by_a = by_a.T if "flipped" in name else by_a
        if name == "symmetric":
            by_a = by_a + np.tril(by_a.T, -1)
        by_a = np.where(held, by_a, 0)
        np.testing.assert_allclose(by_v.x, by_a, atol=1e-4, err_msg=name)


def _holds_lower(name):
    return name in ("lower", "symmetric", "upper, flipped")


@pytest.mark.parametrize(
    "rows, columns, want",
    [
        (128, 1, None),  # It is as fast to make zeros of the other entries.
        (1024, 8, True),
        (1024, 32, False),
        (8192, 32, True),
        (8192, 128, False),
        (8192, 0, None),
    ],
)
def test_loops_are_for_few_columns_and_more_of_a_large_array(
    rows, columns, want, monkeypatch
):
    monkeypatch.undo()
    monkeypatch.setattr(triangle, "may_be_split", lambda: False)
    a, x = (jax.ShapeDtypeStruct((rows, n), "float32") for n in (rows, columns))
    assert triangle._is_looped(a, x, triangle._FEW, triangle._ROWS) is want


def test_solvers_and_transposes_take_it_as_linear(bulk):
    a, x = normal(N, N) / 9 + 3 * np.eye(N), normal(N, 2, seed=1)
    v = Triangular(f32(np.where(np.tri(N, dtype=bool), a, np.nan)))
    dense = np.tril(a)

    @jax.jit
    def program(v, x):
        solve = forbid(jnp.linalg.solve)
        product = lambda x: forbid(jnp.matmul)(v, x)
        (transposed,) = jax.linear_transpose(product, x)(x)
        by_x = jax.grad(lambda x: jnp.sum(solve(v, x) ** 2))(x)
        back = lambda v: jax.vjp(lambda x: forbid(jnp.matmul)(v, x), x)[1](x)[0]
        mixed = jax.grad(lambda v: jnp.sum(back(v) ** 2))(v)
        return solve(v, x), transposed, by_x, mixed.x

    solved, transposed, by_x, mixed = program(v, f32(x))
    want = np.linalg.solve(dense, x)
    np.testing.assert_allclose(solved, want, atol=1e-4)
    np.testing.assert_allclose(transposed, dense.T @ x, atol=1e-4)
    np.testing.assert_allclose(by_x, 2 * np.linalg.solve(dense.T, want), atol=1e-4)
    np.testing.assert_allclose(mixed, np.tril(2 * x @ (dense.T @ x).T), atol=1e-3)


def test_many_columns_are_multiplied_in_strips(bulk):
    a, x = normal(N, N), normal(N, 5, seed=1)
    lower = np.tril(a)
    whole = lower + np.tril(a, -1).T
    flipped = lambda x: Triangular(x).transposed()
    for make, kept in ((Triangular, lower), (flipped, lower.T), (Symmetric, whole)):
        v = make(f32(np.where(np.tri(N, dtype=bool), a, np.nan)))
        np.testing.assert_allclose(forbid(jnp.matmul)(v, f32(x)), kept @ x, atol=1e-4)


def test_a_stack_of_columns_with_and_without_nan():
    """Each element of a batch is right, whatever the others are."""
    v = Triangular(f32(np.where(np.tri(N, dtype=bool), normal(N, N), np.nan)))
    x = normal(3, N, seed=1)
    x[1, 3] = np.nan
    found = jax.jit(jax.vmap(forbid(jnp.matmul), (None, 0)))(v, f32(x))
    dense = np.tril(np.asarray(v.x, float))
    np.testing.assert_allclose(found[::2], x[::2] @ dense.T, atol=1e-4)
    assert np.isnan(found[1, 3:]).all()


def test_an_infinite_diagonal_is_added_once(bulk):
    a = normal(N, N)
    a[3, 3] = np.inf
    v = Symmetric(f32(np.where(np.tri(N, dtype=bool), a, np.nan)))
    whole = np.tril(a) + np.tril(a, -1).T
    x = abs(normal(N, 2, seed=1))
    np.testing.assert_allclose(forbid(jnp.matmul)(v, f32(x)), whole @ x, atol=1e-4)


def test_sums_of_16_bit_numbers_are_rounded_once():
    """Not after each number, as in products of the transpose that XLA transposes back."""
    n = 256
    a, x = (jnp.asarray(normal(n, k, seed=k), "bfloat16") for k in (n, 3))
    values = [Symmetric(a), Triangular(a), Triangular(a).transposed()]
    program = lambda vs, x: [forbid(lambda v: (x.T @ v, v @ x))(v) for v in vs]
    for v, (right, left) in zip(values, jax.jit(program)(values, x), strict=True):
        dense, columns = (np.asarray(materialise(y), float) for y in (v, x))
        for found, want in ((right, columns.T @ dense), (left, dense @ columns)):
            error = abs(np.asarray(found, float) - want).max() / abs(want).max()
            assert error < 0.01


def test_triangles_of_two_orders_meet(bulk):
    a, b = f32(normal(N, N)), f32(normal(N, N, seed=1))
    v, w = Triangular(a), Triangular(b, lower=False).transposed()
    dense_v, dense_w = np.tril(a), np.triu(b).T

    def program(v, w, p):
        either = jax.lax.cond(p, lambda: v, lambda: w)
        return v + w, v * w, v @ w, either, jnp.float32(2) * w, jnp.abs(w)

    found = jax.jit(forbid(program))(v, w, True)
    assert all(isinstance(x, Triangular) for x in found)
    wanted = (dense_v + dense_w, dense_v * dense_w, dense_v @ dense_w, dense_v)
    wanted += (2 * dense_w, abs(dense_w))
    for result, dense in zip(found, wanted, strict=True):
        np.testing.assert_allclose(materialise(result), dense, atol=1e-4)
    solved = forbid(jnp.linalg.solve)(w + 4 * jnp.eye(N), b)
    np.testing.assert_allclose((dense_w + 4 * np.eye(N)) @ solved, b, atol=1e-3)


@pytest.mark.slow
def test_pruned_matrices():
    v = NMSparse.prune(f32(normal(N, N)))
    x = normal(N, 1, seed=1)
    dense = np.asarray(materialise(v), float)
    for w, a in ((v, dense), (v.transposed(), dense.T)):
        *results, by_w = jax.jit(everything)(w, f32(x))
        *right, by_a = expected(a, x)
        for result, entry in zip(results, right, strict=True):
            np.testing.assert_allclose(result, entry, atol=1e-4)
        np.testing.assert_allclose(by_w.values, w.pick(f32(by_a)).values, atol=1e-4)


def test_masked_matrices(bulk):
    mask = np.random.default_rng(2).uniform(size=(N, N)) < 0.3
    mask[3] = True
    a, x = normal(N, N), normal(N, 3, seed=1)
    v = Masked(f32(np.where(mask, np.nan, a)), jnp.asarray(mask))
    kept = np.where(mask, 0, a)

    @jax.jit
    def program(v, x):
        left, right = (forbid(jnp.matmul)(*pair) for pair in ((v, x), (x.T, v)))
        vector = forbid(jnp.matmul)(v, x[:, 0])
        cost = lambda v, x: jnp.sum(jnp.sin(forbid(jnp.matmul)(v, x).filled(0)))
        return left, right, vector, jax.grad(cost, (0, 1), allow_int=True)(v, x)

    left, right, vector, (by_v, by_x) = program(v, f32(x))
    np.testing.assert_allclose(left.filled(0), kept @ x, atol=1e-4)
    np.testing.assert_allclose(vector.filled(0), kept @ x[:, 0], atol=1e-4)
    np.testing.assert_array_equal(left.mask, np.arange(N)[:, None] * np.ones(3) == 3)
    np.testing.assert_allclose(right.filled(0), x.T @ kept, atol=1e-4)
    cosine = np.cos(kept @ x)
    np.testing.assert_allclose(by_x, kept.T @ cosine, atol=1e-4)
    np.testing.assert_allclose(by_v.array, np.where(mask, 0, cosine @ x.T), atol=1e-4)


# --- bounds -------------------------------------------------------------------------------


def exact_bounds(lower, upper, x):
    """The least and the greatest sums, as fractions, and the sum of the absolute values."""
    to = np.vectorize(fractions.Fraction, otypes=[object])
    ends = [
        to(end.astype(float))[:, :, None] * to(x.astype(float)) for end in (lower, upper)
    ]
    sizes = np.maximum(abs(ends[0]), abs(ends[1])).sum(1)
    return np.minimum(*ends).sum(1), np.maximum(*ends).sum(1), sizes


def adversarial(kind):
    """Bounds of very different sizes, of one sign or two, that almost or wholly meet."""
    numbers = np.random.default_rng(3)
    middle = numbers.normal(size=(N, N)) * 10.0 ** numbers.integers(-8, 8, (N, N))
    radius = {
        "equal": 0 * middle,
        "one bit": abs(middle) * 2.0**-23,
        "one end near zero": abs(middle) * (1 - 1e-6),
        "wide": 10.0 ** numbers.integers(-4, 9, (N, N)),
    }[kind]
    lower, upper = np.float32(middle - radius), np.float32(middle + radius)
    x = numbers.normal(size=(N, 3)) * 10.0 ** numbers.integers(-8, 8, (N, 3))
    x[:2], x[2] = 0, -x[3]
    return lower, upper, np.float32(x)


@pytest.mark.parametrize("kind", ["equal", "one bit", "one end near zero", "wide"])
def test_bounds_of_products_are_sound_up_to_rounding(kind):
    """A bound holds, and is off by at most what rounding does to sums of the largest terms."""
    lower, upper, x = adversarial(kind)
    least, greatest, sizes = exact_bounds(lower, upper, x)
    bounds = jax.jit(forbid(jnp.matmul))(Interval(lower, upper), x)
    to = np.vectorize(fractions.Fraction, otypes=[object])
    # Points, too: the sum of two products is rounded otherwise than the program's one product.
    most = to(np.maximum(abs(lower), abs(upper)).max(1, keepdims=True).astype(float))
    sizes = sizes + 2 * most * to(abs(x).sum(0).astype(float))
    room = 2 * N * fractions.Fraction(2) ** -24 * sizes
    found = [to(np.asarray(end, float)) for end in (bounds.lower, bounds.upper)]
    assert (abs(found[0] - least) <= room).all()
    assert (abs(found[1] - greatest) <= room).all()
    assert ((found[0] <= least) & (found[1] >= greatest)).all()
    one_signed = np.minimum(abs(least), abs(greatest)) > room
    assert ((found[0] > 0) == (least > 0))[one_signed].all()


def test_bounds_with_infinite_ends_hold_for_all_corners():
    ends = np.array([-np.inf, -1.0, 0.0, 2.0, np.inf])
    pairs = [(a, b) for a, b in itertools.product(ends, ends) if a < b]
    lower, upper = (
        np.tile(np.float32(end)[:, None], 2) for end in zip(*pairs, strict=True)
    )
    x = np.array([[1.0, -3.0, 0.0], [0.5, 2.0, -1.0]], "float32")
    bounds = forbid(jnp.matmul)(Interval(lower, upper), x)
    finite = [np.clip(end, -1e3, 1e3) for end in (lower, upper)]
    for share in itertools.product((0.0, 0.5, 1.0), repeat=2):
        inside = finite[0] + np.array(share) * (finite[1] - finite[0])
        assert bounds.contains(f32(inside @ x)).all()


def test_bounds_of_an_array_times_an_interval(bulk):
    a, x = normal(N, N), normal(N, 3, seed=1)
    around = functools.partial(Interval.around, radius=0.5)
    for flip in (False, True):
        product = (lambda a, v: v.T @ a) if flip else (lambda a, v: a @ v)
        bounds = jax.jit(forbid(product))(f32(a), around(f32(x)))
        centre = x.T @ a if flip else a @ x
        width = 0.5 * abs(a).sum(0 if flip else 1)
        width = width if flip else width[:, None]
        # Bounds are rounded outwards.
        np.testing.assert_allclose(bounds.lower, centre - width, atol=2e-4)
        np.testing.assert_allclose(bounds.upper, centre + width, atol=2e-4)


@pytest.mark.parametrize(
    "rows, groups, columns, want",
    [
        (2**11, 2**11, 1, 16),
        (2**11, 2**11, 4, 16),
        (2**11, 2**11, 5, 4),
        (2**11, 27, 4, 27),
        (2**11, 7, 4, None),  # No number of blocks near 16 divides the groups.
        (2**11, 64, 4, 16),
        (2**11, 61, 4, 61),
        (2**11 - 1, 2**11, 4, None),  # It is small enough to be made at once.
        (2**11, 2**11, 0, None),
    ],
)
def test_blocks_of_a_product(rows, groups, columns, want, monkeypatch):
    """Of 2**18 entries each for a few columns, and of 2**20 otherwise, or somewhat fewer."""
    monkeypatch.undo()
    monkeypatch.setattr(in_blocks, "may_be_split", lambda: False)
    made = jax.ShapeDtypeStruct((rows, 2**11), "float32")
    assert in_blocks._blocks(made, groups, columns) == want

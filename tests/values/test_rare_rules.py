"""Programs for rules that no other test meets: `--rule-coverage` lists such rules."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from choose import every
from jax import lax
from oracle import materialised
from reference import CASES

import jaxrewrite
from jaxrewrite import transform
from jaxrewrite.primitives import BINARY
from jaxrewrite.testing import assert_same
from jaxrewrite.values import (
    NF4,
    Constant,
    Diagonal,
    Interval,
    Known,
    Kronecker,
    LowRank,
    Masked,
    Named,
    OneHot,
    Quantised,
    Scaled,
    Sum,
    Unitful,
    UnitsError,
    Zero,
)


X = jnp.linspace(0.5, 2, 16).reshape(4, 4)
AT = jnp.array([2, 0, 9])


def case(name, seed=0):
    return CASES[name].value(np.random.default_rng(seed), shape=(4, 4))


# The start of the slice is known only when the program runs.
SLICES = {
    "slice": lambda v, x, i: lax.dynamic_slice(v, (i[0], i[1]), (2, 3)),
    "columns": lambda v, x, i: lax.dynamic_slice(v, (i[1], i[0]), (4, 2)),
    "rows": lambda v, x, i: v[i],
    "tile": lambda v, x, i: jnp.tile(v, (2, 3)),
    "row plus": lambda v, x, i: v[i[0]] + x[0],
    "plus row": lambda v, x, i: x[0] - v[1],
    "stack": lambda v, x, i: jnp.stack([v, v], 1),
}
UNIFORM = {
    "scatter": lambda v, x, i: x.at[i].add(v[:3]),
    "clamp": lambda v, x, i: lax.clamp(x[0, 0], v, x[1, 1]),
    "clamp by arrays": lambda v, x, i: lax.clamp(x, v, 2 * x),
    "select": lambda v, x, i: lax.select(x > 1, v, v),
    "choose": lambda v, x, i: lax.select_n(i[0] > 1, v, v + 1),
    "select dense": lambda v, x, i: lax.select(x > 1, v, x),
    "gather": lambda v, x, i: jnp.take(v, i, axis=1, mode="clip"),
    "update": lambda v, x, i: lax.dynamic_update_slice(v, 0 * v[:2], (i[0], i[1])),
    "update dense": lambda v, x, i: lax.dynamic_update_slice(v, x[:2], (i[0], i[1])),
    "joined": lambda v, x, i: jnp.concatenate([v, x, v]),
    "sort": lambda v, x, i: jnp.sort(v, axis=0),
}
QUOTIENTS = {
    "over": lambda v, x, i: x / v,
    "over itself": lambda v, x, i: v / (2 * v + 1),
    "number over": lambda v, x, i: x[0, 0] / v,
    "over a sum": lambda v, x, i: v / v.sum(),
}
PROGRAMS = {
    "low_rank": SLICES,
    "sum": SLICES,
    "toeplitz": SLICES,
    "n_of_m": SLICES,
    "nf4": SLICES,
    "quantised affine blocks": SLICES,
    "constant": SLICES | UNIFORM,
    "zero": SLICES | UNIFORM,
    "scaled": SLICES | QUOTIENTS,
    "scaled_diagonal": QUOTIENTS,
}


@pytest.mark.parametrize("name", every(2, PROGRAMS))
def test_agrees_with_dense_arrays(name, bulk):
    programs = PROGRAMS[name]
    run = lambda v, x, i: {key: fn(v, x, i) for key, fn in programs.items()}
    v = case(name)
    want = jax.jit(run)(jaxrewrite.materialise(v), X, AT)
    assert_same(jax.jit(materialised(run))(v, X, AT), want, 1e-4)


def test_an_array_over_a_scaled_value(bulk):
    other = case("sparse")
    run = lambda v, w: (w / v, v / (w + 1.0), w * v)
    got = jax.jit(materialised(run))(case("scaled"), other)
    assert_same(got, run(*jaxrewrite.materialise((case("scaled"), other))), 1e-4)


def agree(fn, *values, materialise="forbid"):
    """The results of a program on values, which are compared with those on arrays."""
    got = jaxrewrite.transform(fn, materialise=materialise)(*values)
    assert_same(jaxrewrite.materialise(got), fn(*jaxrewrite.materialise(values)), 1e-4)
    return got


TWO = Constant(jnp.float32(2), (4, 4))


@pytest.mark.parametrize("p", [True, False])
def test_a_choice_between_zeros_and_a_constant(p):
    fn = lambda p, v, w: (lax.select(p, v, w), lax.select(p, w, v), lax.select(p, v, v))
    got = agree(fn, jnp.array(p), Zero((4, 4)), TWO)
    assert [type(x) for x in got] == [Constant, Constant, Zero]


class Doubled(jaxrewrite.ArrayValue):
    x: jax.Array

    def materialise(self):
        return 2 * self.x


@pytest.mark.parametrize(
    "row, policy", [(LowRank(X[:1, :2], X[:2]), "forbid"), (Doubled(X[:1]), "allow")]
)
def test_zeros_take_the_rows_of_what_is_added_to_them(row, policy):
    """As `lax.add` takes axes of size 1."""
    fn = lambda v, w: (lax.add(v, w), lax.add(w, v), lax.sub(v, w), lax.add(v[:1], w))
    got = agree(fn, Zero((4, 4)), row, materialise=policy)
    assert [x.shape for x in got] == [(4, 4)] * 3 + [(1, 4)]


@pytest.mark.parametrize("other", ["diagonal", "kronecker"])
def test_the_sum_of_a_constant_and_a_matrix_is_lazy(other):
    fn = lambda v, w: (v + w, w + v, v - w, w - v)
    for x in agree(fn, TWO, case(other)):
        assert isinstance(x, Sum)
        assert not any(jnp.shape(leaf) == (4, 4) for leaf in jax.tree.leaves(x))


def test_reductions_of_one_number():
    fn = lambda v: [r(v, axis=1) for r in (jnp.prod, jnp.sum, jnp.max, jnp.argmax)]
    agree(fn, TWO)
    agree(lambda v: lax.reduce_xor(v, (0,)), Constant(jnp.int32(5), (3, 2)))
    none = Constant(jnp.float32(2), (0, 3))
    agree(lambda v: lax.reduce_max(v, (0,)), none, materialise="allow")


def test_a_number_for_each_of_a_batch():
    batch = jax.vmap(lambda c: Constant(c, (2, 3)))(jnp.arange(1.0, 4))
    fn = lambda v: (v + 1, v * v, v.sum((0, 2)), jnp.concatenate([v, v], 1), 2 / v)
    agree(fn, batch, materialise="allow")


# --- annotated arrays beside values of other types -----------------------------------------

OTHERS = {
    "zero": Zero((4, 4)),
    "constant": Constant(Known(0.75), (4, 4)),
    "diagonal": case("diagonal"),
    "low_rank": case("low_rank"),
}
BESIDE = {
    "sum": lambda a, b: a + b,
    "maximum": lambda a, b: lax.max(a, b),
    "joined": lambda a, b: jnp.concatenate([a, b]),
    "chosen": lambda a, b: lax.select(X > 1, a, b),
    "clamped": lambda a, b: lax.clamp(jnp.float32(0.6), a + b, jnp.float32(0.9)),
}


@functools.cache
def beside(fn):
    return lambda a, b: (fn(a, b), fn(b, a))


@pytest.mark.parametrize("other", OTHERS)
def test_an_interval_beside_another_value(other, bulk):
    """An interval of one point gives bounds around the result of that point."""
    run = lambda a, b: {key: beside(fn)(a, b) for key, fn in BESIDE.items()}
    bounds = jaxrewrite.transform(run, materialise="allow")(Interval(X, X), OTHERS[other])
    want = run(X, jaxrewrite.materialise(OTHERS[other]))
    for bound, exact in zip(
        jax.tree.leaves(bounds, is_leaf=lambda v: isinstance(v, Interval)),
        jax.tree.leaves(want),
        strict=True,
    ):
        assert isinstance(bound, Interval)
        assert (bound.lower <= exact).all() and (exact <= bound.upper).all()


@pytest.mark.parametrize("other", OTHERS)
def test_a_mask_beside_another_value(other, bulk):
    """Where all is valid, the entries are those of the arrays."""
    run = lambda a, b: {key: beside(fn)(a, b) for key, fn in BESIDE.items()}
    masked = Masked(X, jnp.ones((4, 4), bool))
    got = jaxrewrite.transform(run, materialise="allow")(masked, OTHERS[other])
    entries = jax.tree.map(
        lambda v: jaxrewrite.materialise(v.array),
        got,
        is_leaf=lambda v: isinstance(v, Masked),
    )
    assert_same(entries, run(X, jaxrewrite.materialise(OTHERS[other])), 1e-6)


def test_units_beside_another_value(bulk):
    """Seconds are multiplied by a value without a unit of any type; a sum is an error."""
    run = jaxrewrite.transform(
        lambda a, b: (a * b, b * a, a / (1 + b)), materialise="allow"
    )
    for other in OTHERS.values():
        for got in run(Unitful(X, "s"), other):
            assert isinstance(got, Unitful) and str(got.units) == "s"
        with pytest.raises(ValueError, match="unit"):
            jaxrewrite.transform(lambda a, b: jnp.concatenate([a, b]))(
                Unitful(X, "s"), other
            )


def long_matrices():
    w = jax.random.normal(jax.random.key(0), (600, 2))
    return {
        "codes": Quantised.quantise(w, bits=4, block=300),
        "levels": NF4.quantise(w, 300),
        "rows": OneHot(jnp.arange(600) % 5, 5),
        "low rank": LowRank(w, w[:3].T),
        "product": Kronecker(w[:20], w[20:50]),
    }


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_an_index_of_few_bits_finds_its_place_along_a_long_axis(dtype):
    i = jnp.asarray(100, dtype)
    run = lambda v, i: (
        lax.dynamic_slice_in_dim(v, i, 2),
        lax.dynamic_index_in_dim(v, i),
        jnp.take(v, i[None], axis=0, mode="clip"),
    )
    for v in long_matrices().values():
        got = jax.jit(materialised(run))(v, i)
        assert_same(got, jax.jit(run)(jaxrewrite.materialise(v), i), 1e-4)


def test_a_start_far_before_an_axis_is_its_first_index():
    run = lambda v: lax.dynamic_slice_in_dim(v, jnp.int32(-700), 2)
    for v in long_matrices().values():
        assert_same(materialised(run)(v), jaxrewrite.materialise(v)[:2], 1e-4)


# --- products that are wanted in another dtype ------------------------------------------------

WANTED = {
    "complex64": ("float32", "int32"),
    "float32": ("int32", "int8", "bfloat16", "float16", "complex64"),
    "int8": ("uint8", "int32", "float16", "float32"),
    "bool": ("int32", "float16"),
}


@pytest.mark.parametrize("dtype", WANTED)
@pytest.mark.parametrize("name", every(6, CASES))
def test_products_are_cast_after_they_are_summed(name, dtype, bulk):
    try:
        v = CASES[name].value(np.random.default_rng(0), dtype, (3, 3))
    except (FutureWarning, TypeError, ValueError):
        pytest.skip("There are no such numbers of this type.")
    if v.dtype != dtype or v.shape != (3, 3):
        pytest.skip("There are no such numbers of this type.")
    x = np.random.default_rng(1).normal(size=(3, 3)) * 3
    x = jnp.asarray(x + 1j * x.T if dtype == "complex64" else x).astype(dtype)

    def products(v, x):
        return [
            lax.dot(*pair, preferred_element_type=wanted)
            for wanted in WANTED[dtype]
            for pair in ((v, x), (x, v), (v, v))
        ]

    def dense(v, x):
        if dtype != "complex64":
            return products(v, x)
        # XLA has no code for some of the programs that sum complex numbers and keep real parts.
        return [
            lax.dot(*pair).real.astype(wanted)
            for wanted in WANTED[dtype]
            for pair in ((v, x), (x, v), (v, v))
        ]

    implicit = jaxrewrite.transform(products, materialise="allow")
    got = jax.jit(lambda v, x: jaxrewrite.materialise(implicit(v, x)))(v, x)
    want = jax.jit(dense)(jaxrewrite.materialise(v), x)
    for g, w in zip(got, want, strict=True):
        assert g.dtype == w.dtype
        tol = 0.05 if w.dtype.itemsize == 2 else 1e-4
        # A sum that is nearly an integer may be rounded to either side of it.
        near = 1 if dtype in ("float32", "complex64") and w.dtype.kind == "i" else tol
        g, w = (np.asarray(z).astype(complex) for z in (g, w))
        np.testing.assert_allclose(g, w, rtol=tol, atol=near)


# --- traced, and not compiled: the library checks the shape and dtype of each answer ---------

Y = jnp.linspace(0.3, 0.9, 16).reshape(4, 4)
IMAGE = (1, 1, 4, 4)
ANNOTATED = {
    "Masked": Masked(Y, Y > 0.5),
    "Named": Named(Y, ("a", None)),
    "Unitful": Unitful(Y, "m"),
    "a number": Unitful(Y, ""),
    "Interval": Interval(Y, Y + 0.1),
}
# What has no meaning for a type, and the error by which it says so.
WITHOUT = {
    ("Masked", "scatter-max"): (
        jaxrewrite.MaterialisationError,
        "No rule for primitive 'scatter-max' on Masked",
    ),
    ("Masked", "scatter-min"): (
        jaxrewrite.MaterialisationError,
        "No rule for primitive 'scatter-min' on Masked",
    ),
    ("Unitful", "pow"): (UnitsError, "^pow needs operands without units; got m"),
    ("Unitful", "logic"): (UnitsError, "^gt needs operands of equal units; got m and 1"),
    ("Interval", "sort along"): (
        TypeError,
        "^Interval has no bounds of sort that takes other arrays along",
    ),
}

# Programs of two arrays of one shape.
OF_TWO = {
    "clamp": lambda v, w: lax.clamp(w, v, w),
    "concatenate": lambda v, w: jnp.concatenate([v, w]),
    "select": lambda v, w: lax.select(Y > 0.5, v, w),
    "sort": lambda v, w: jnp.sort(v),
    "sort along": lambda v, w: lax.sort((v, w), num_keys=1),
    "stack": lambda v, w: jnp.stack([v, w]),
    "slice": lambda v, w: lax.dynamic_slice(v, (1, 1), (2, 2)),
    "update": lambda v, w: lax.dynamic_update_slice(v, w[:2], (1, 0)),
    "scatter": lambda v, w: v.at[jnp.array([1])].set(w[:1]),
    "scatter-add": lambda v, w: v.at[jnp.array([1])].add(w[:1]),
    "scatter-max": lambda v, w: v.at[jnp.array([1])].max(w[:1]),
    "scatter-min": lambda v, w: v.at[jnp.array([1])].min(w[:1]),
    "convolution": lambda v, w: lax.conv(
        v.reshape(IMAGE), w.reshape(IMAGE), (1, 1), "SAME"
    ),
    "pad": lambda v, w: lax.pad(v, w[0, 0], [(1, 1, 0)] * 2),
    "pow": lambda v, w: v**w,
    "atan2": jnp.arctan2,
    "sub": lambda v, w: v - w,
    "compare": lambda v, w: [v == w, v != w, v < w, v <= w, v > w, v >= w],
    "logic": lambda v, w: [(v > 0.5) & (w > 0.5), (v > 0.5) | (Y > 0.5)],
    "finite": lambda v, w: jnp.isfinite(v),
}


def trace(fn, *operands):
    return jaxrewrite.make_jaxpr(fn, materialise="allow")(*operands)


@pytest.mark.parametrize("name", ANNOTATED)
def test_annotations_are_traced(name, bulk):
    v, lazy = ANNOTATED[name], Scaled(Y, jnp.float32(2.0))
    others = (v,) if name == "Unitful" else (Y, lazy, v)
    for program, fn in OF_TWO.items():
        for other in others:
            for operands in ((v, other), (other, v)):
                if (name, program) in WITHOUT:
                    error, words = WITHOUT[name, program]
                    with pytest.raises(error, match=words):
                        trace(fn, *operands)
                else:
                    trace(fn, *operands)


@pytest.mark.parametrize("fn", [jnp.maximum, jnp.arctan2, lax.lt])
def test_zeros_make_no_other_value_dense(fn):
    zero, low = Zero((4, 4)), case("low_rank")
    for args in [(zero, low), (low, zero)]:
        with pytest.raises(jaxrewrite.MaterialisationError, match="on LowRank"):
            transform(fn, materialise="forbid")(*args)


def test_zeros_are_traced(bulk):
    zero, ones = Zero((4, 4)), Constant(jnp.float32(1), (4, 4))
    for name in BINARY:
        fn = functools.partial(jaxrewrite.bind, name)
        try:
            jax.eval_shape(fn, Y, Y)
        except TypeError:
            continue  # It is for integers.
        trace(fn, zero, ones)
        trace(fn, ones, zero)
    solve = lambda a, b: jax.scipy.linalg.solve_triangular(a, b)
    trace(solve, Y, zero)
    trace(lambda x, v: x.at[jnp.array([1])].add(v[:1]), Y, zero)
    trace(lambda v: lax.dynamic_update_slice(v, v[:2], (1, 0)), zero)
    trace(lambda v, w: lax.pad(v, w, [(1, 1, 0)] * 2), zero, Zero(()))


def test_multiples_are_traced(bulk):
    batch = jax.vmap(lambda s: Scaled(s * Y, s))(jnp.array([1.0, 2.0]))
    trace(lambda v, x: (v @ x, x @ v), batch, jnp.stack([Y, Y]))
    trace(lambda v: v / 2, Sum((Diagonal(Y[0]), Diagonal(Y[1]))))

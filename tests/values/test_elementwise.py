"""Entry-by-entry functions of the ready types: size-1 axes, fill values, zeros, casts.

Zeros that no leaf holds give the same results as the zeros of the dense array, infinities and
NaN included. Products are the exception, unless the rules `strict_zeros` are in force.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from choose import often
from jax import lax
from oracle import make, materialised
from reference import CASES

import jaxrewrite
from jaxrewrite.extend import Zeros
from jaxrewrite.testing import assert_same
from jaxrewrite.values import (
    BlockDiagonal,
    Circulant,
    Constant,
    Diagonal,
    Identity,
    Known,
    Kronecker,
    Linear,
    Lora,
    LowRank,
    Masked,
    Named,
    NMSparse,
    OneHot,
    Permutation,
    Product,
    Scaled,
    Sparse,
    Structured,
    Sum,
    Symmetric,
    Tagged,
    Toeplitz,
    Triangular,
    Tridiagonal,
    Unitful,
    Zero,
    strict_zeros,
)


# Named arrays refuse, by design, programs that align their axes otherwise.
TYPES = [name for name in CASES if "Named" not in name]


def some(*quick):
    """All types, of which the others are left to the long run."""
    return pytest.mark.parametrize(
        "name",
        often(TYPES, quick),
    )


def check(programs, *operands):
    """Each program gives on values what it gives on dense arrays."""
    run = lambda *xs: {name: fn(*xs) for name, fn in programs.items()}
    dense = jax.jit(jaxrewrite.materialise)(operands)
    assert_same(jax.jit(materialised(run))(*operands), jax.jit(run)(*dense), 1e-4)


def bind(name, *operands):
    return getattr(lax, f"{name}_p").bind(*operands)


# --- products in another dtype --------------------------------------------------------


@some("diagonal", "sum", "lora", "quantised", "one_hot", "Tagged", "zero")
def test_products_in_another_dtype_than_that_of_the_operands(name, bulk):
    full, dense = make(name), jnp.linspace(1, 2, 24).reshape(4, 6)
    dense = dense if full.shape == dense.shape else jnp.full(full.shape, 1.5)
    programs = {
        "with an array": lambda v, x: lax.mul(v, x, out_dtype="bfloat16"),
        "of an array": lambda v, x: lax.mul(x, v, out_dtype="bfloat16"),
        "with itself": lambda v, x: lax.mul(v, v, out_dtype="bfloat16"),
        "of two dtypes": lambda v, x: lax.mul(v, x.astype("float16"), out_dtype="float32"),
    }
    for program in programs.values():
        want = program(jaxrewrite.materialise(full), dense)
        assert_same(materialised(program)(full, dense), want, 3e-2)


def test_products_in_another_dtype_stay_implicit():
    v = Diagonal(jnp.array([100, 3], jnp.int8))
    square = lambda v: lax.mul(v, v, out_dtype="int32")
    got = jaxrewrite.transform(square, materialise="forbid")(v)
    assert isinstance(got, Diagonal)
    np.testing.assert_array_equal(got.d, [10000, 9])
    d = jnp.array([2.0, 3.0], jnp.bfloat16)
    total = lambda v: jnp.sum(lax.mul(v, v, out_dtype="float32") ** 2)
    got = jax.grad(lambda d: jaxrewrite.transform(total)(Diagonal(d)))(d)
    np.testing.assert_array_equal(got, jax.grad(lambda d: total(jnp.diag(d)))(d))
    assert got.dtype == d.dtype


# --- axes of size 1 -------------------------------------------------------------------

FUNCTIONS = ("add", "sub", "mul", "div", "max", "atan2", "gt", "ne")


def both_ways(names, other):
    """Programs of a value and of what ``other`` picks from the operands beside it."""
    programs = {}
    for name in names:
        programs[name] = lambda v, xs, name=name: bind(name, v, other(xs))
        programs[f"{name}, reversed"] = lambda v, xs, name=name: bind(name, other(xs), v)
    return programs


@some()
def test_values_with_axes_of_size_one(name, bulk):
    full = make(name)
    shape = full.shape
    sizes = [(shape[0], 1), (1, shape[1]), (1, 1)]
    small = [make(name, shape=s, seed=1) for s in sizes if not CASES[name].square]
    small += [jnp.linspace(1, 2, s[0] * s[1]).reshape(s) for s in sizes]
    programs = {}
    for i in range(len(small)):
        for kind, fn in both_ways(FUNCTIONS, lambda xs, i=i: xs[i]).items():
            programs[f"{kind} {i}"] = fn
    check(programs, full, small)
    check(
        {"outer": lambda v, xs: xs[0] * xs[1], "sum": lambda v, xs: xs[1] - xs[0]},
        full,
        small,
    )
    grown = {
        f"grown {i}": lambda xs, v, i=i: jnp.maximum(xs[i], v) for i in range(len(small))
    }
    check(grown, small, jnp.linspace(-1, 1, shape[0] * shape[1]).reshape(shape))


@some("one_hot")
def test_a_value_and_a_stack(name, bulk):
    # All numbers differ, because rounding decides whether equal ones stay equal.
    v, *others = (make(name, seed=seed) for seed in range(3))
    programs = {
        kind: lambda v, ws, fn=fn: fn(v[None], ws)
        for kind, fn in both_ways(FUNCTIONS, jnp.stack).items()
    }
    programs["each with each"] = lambda v, ws: jnp.maximum(v[:, None], ws[0][None])
    check(programs, v, others)


def test_a_sparse_column_is_spread_over_columns():
    s = Sparse.from_dense(jnp.eye(3) + jnp.eye(3, k=1))
    t = Sparse.from_dense(jnp.array([[1.0], [2.0], [3.0]]))
    got = jaxrewrite.transform(lambda s, t: s * t, materialise="forbid")(s, t)
    np.testing.assert_array_equal(got.materialise(), [[1, 1, 0], [0, 2, 2], [0, 0, 3]])


# --- what gathers, and others, fill in ------------------------------------------------------


def gathers():
    programs = {}
    for fill in (None, 0.0, 9.0, jnp.nan):
        programs |= {
            f"rows {fill}": lambda v, i, f=fill: v.at[i].get(mode="fill", fill_value=f),
            f"columns {fill}": lambda v, i, f=fill: v.at[:, i].get(
                mode="fill", fill_value=f
            ),
            f"pairs {fill}": lambda v, i, f=fill: v.at[i, i].get(mode="fill", fill_value=f),
        }
    for mode in ("clip", "wrap"):
        programs[mode] = lambda v, i, mode=mode: jnp.take(v, i, axis=0, mode=mode)
    return programs


@some("scaled", "sum", "low_rank")
def test_gathers(name, bulk):
    check(gathers(), make(name), jnp.array([0, 7, -1, 2, -9]))


def test_nothing_of_rank_zero_is_filled_in():
    v = LowRank(jnp.zeros((3, 0)), jnp.zeros((0, 3)))
    check(gathers() | {"div": lambda v, i: v / 0.0}, v, jnp.array([0, 7]))


@some("scaled_diagonal", "sum", "zero")
def test_what_has_a_number_of_its_own(name, bulk):
    x = make(name)
    y = jnp.linspace(-1, 1, x.size).reshape(x.shape)
    programs = {
        "pad": lambda v, y: lax.pad(v, jnp.float32(9), [(1, 0, 1), (-1, 2, 0)]),
        "padded with": lambda v, y: lax.pad(y, v[0, 0], [(1, 0, 1), (-1, 2, 0)]),
        "where": lambda v, y: jnp.where(y > 0, v, 9.0),
        "where not": lambda v, y: jnp.where(y > 0, 9.0, v),
        "where one": lambda v, y: jnp.where(y[0, 0] > 0, 9.0, v),
        "set": lambda v, y: v.at[jnp.array([0, 9])].set(2.0, mode="drop"),
        "add": lambda v, y: v.at[1].add(2.0),
        "update": lambda v, y: lax.dynamic_update_slice(
            v, y[:1, :2], (jnp.argmax(y[:, 0]), 1)
        ),
        "reduce": lambda v, y: lax.reduce(v, np.float32(3), lax.add, (0,)),
        "windows": lambda v, y: lax.reduce_window(v, 1.0, lax.add, (2, 2), (1, 1), "SAME"),
        "initial": lambda v, y: jnp.max(v, axis=0, initial=0.6),
        "prepended": lambda v, y: jnp.diff(v, axis=0, prepend=3.0),
        "clip": lambda v, y: jnp.clip(v, 0.3, 0.6),
        "cumprod": lambda v, y: jnp.cumprod(v, axis=0),
        "logsumexp": lambda v, y: lax.cumlogsumexp(v, axis=1, reverse=True),
        "cummax": lambda v, y: lax.cummax(v, axis=0),
    }
    check(programs, x, y)


# --- zeros ----------------------------------------------------------------------------

UNARY = {
    **{
        name: getattr(lax, name)
        for name in (
            *(
                "log",
                "sqrt",
                "rsqrt",
                "sign",
                "exp",
                "logistic",
                "is_finite",
                "cos",
                "tanh",
            ),
            *("log1p", "floor", "erf_inv", "lgamma", "abs", "acos"),
        )
    },
    **{f"to the {y}": lambda v, y=y: lax.integer_pow(v, y) for y in (-1, 0, 1, 2)},
    "reciprocal": lambda v: 1 / v,
    "nan_to_num": jnp.nan_to_num,
    "prod": lambda v: jnp.prod(v, axis=1),
    "max": lambda v: jnp.max(v, axis=0),
    "min": lambda v: jnp.min(v),
    "argmax": lambda v: jnp.argmax(v, axis=1),
    "sort": lambda v: jnp.sort(v, axis=0),
    "cumsum": lambda v: jnp.cumsum(v, axis=1),
    "any": lambda v: (v > 0).any(axis=0),
}


@some("zero")
def test_functions_of_zeros(name, bulk):
    check(UNARY, make(name))


NUMBERS = (0.0, 2.0, -1.0, np.inf, np.nan)
OF_TWO = ("add", "sub", "div", "max", "min", "pow", "atan2", "rem", "nextafter", "eq", "lt")


def with_numbers():
    """With numbers in the program, and with numbers that are known only when it runs."""
    programs = {}
    for i, number in enumerate(map(np.float32, NUMBERS)):
        for name in (*OF_TWO, *(["mul"] if np.isfinite(number) else [])):
            programs |= {
                f"{name} {number}": lambda v, xs, name=name, c=number: bind(name, v, c),
                f"{number} {name}": lambda v, xs, name=name, c=number: bind(name, c, v),
                f"{name} run time {number}": lambda v, xs, name=name, i=i: bind(
                    name, v, xs[i]
                ),
                f"run time {number} {name}": lambda v, xs, name=name, i=i: bind(
                    name, xs[i], v
                ),
            }
    return programs


@some("zero")
def test_zeros_and_numbers(name, bulk):
    check(with_numbers(), make(name), [jnp.float32(number) for number in NUMBERS])


@some("permutation")
def test_zeros_and_arrays(name, bulk):
    v = make(name)
    numbers = np.array([1.5, 0.0, np.nan, -2.0, np.inf, 0.25, -0.0, 3.0, -np.inf])
    n, m = v.shape
    xs = [
        jnp.asarray(np.resize(numbers, shape), jnp.float32)
        for shape in [(n, m), (n, 1), (1, m), (1, 1)]
    ]
    programs = {}
    for i in range(4):
        for kind, fn in both_ways(OF_TWO, lambda xs, i=i: xs[i]).items():
            programs[f"{kind} {i}"] = fn
    check(programs, v, xs)


ROWS, FIRST = jnp.array([2, 7, 2]), jnp.array([1, 0])
WRITES = {
    "update": lambda x, y, at: lax.dynamic_update_slice(x, y, (FIRST[0], FIRST[1])),
    "set": lambda x, y, at: at.set(y, mode="drop"),
    "add": lambda x, y, at: at.add(y),
    "subtract": lambda x, y, at: at.subtract(y),
    "multiply": lambda x, y, at: at.mul(y),
    "min": lambda x, y, at: at.min(y),
    "max": lambda x, y, at: at.max(y),
    "apply": lambda x, y, at: at.apply(jnp.cos),
}


@pytest.mark.parametrize("name", WRITES)
def test_arrays_filled_with_a_number_are_written_to_and_into(name, bulk):
    array, two = jnp.linspace(-1.0, 1.0, 12).reshape(3, 4), jnp.float32(2.0)
    write = lambda x, y: WRITES[name](x, y, x.at[ROWS])
    fillings = lambda *shape: [Zero(shape), Constant(two, shape), array[:, : shape[1]]]
    for x in fillings(3, 4):
        for y in fillings(3, 4) if name != "update" else fillings(3, 2):
            got = jaxrewrite.transform(write, materialise="forbid")(x, y)
            assert_same(got, write(jaxrewrite.materialise(x), jaxrewrite.materialise(y)))
            is_zero = isinstance(x, Zero) and isinstance(y, Zero) and name != "apply"
            assert isinstance(got, Zero if is_zero else jax.Array)


NAN, INF = jnp.nan, jnp.inf

SPECIAL = {
    "diagonal": lambda: Diagonal(jnp.array([NAN, INF, 0.0, -2.0])),
    "scaled": lambda: Scaled(Diagonal(jnp.array([1.0, 0.0, -2.0])), jnp.float32(INF)),
    "sparse": lambda: Sparse.from_dense(jnp.array([[NAN, 0.0, 1.0], [0.0, -INF, 0.0]])),
    "toeplitz": lambda: Toeplitz(jnp.array([INF, 0.0, 1.0]), jnp.array([INF, NAN, -1.0])),
    "kronecker": lambda: Kronecker(
        jnp.array([[INF, 0.0]]), jnp.array([[0.0], [1.0], [-2.0]])
    ),
    "constant": lambda: Constant(jnp.float32(INF), (2, 3)),
    "sum": lambda: Sum(
        (Diagonal(jnp.array([INF, 1.0])), jnp.array([[-INF, 0.0], [NAN, 1.0]]))
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SPECIAL)
def test_leaves_that_are_no_numbers(name, bulk):
    v = SPECIAL[name]()
    # The array is summed first, and the sum is multiplied by the number.
    is_scaled = isinstance(v, Scaled)
    check({k: fn for k, fn in UNARY.items() if not (is_scaled and k == "cumsum")}, v)
    check(with_numbers(), v, [jnp.float32(number) for number in NUMBERS])
    check({"max": jnp.maximum, "min": jnp.minimum, "eq": jnp.equal}, v, -v)


def test_sums_over_nothing_are_zero():
    v = Constant(jnp.float32(jnp.inf), (0, 3))
    x = jnp.ones((2, 0))
    programs = {
        "sum": lambda v, x: v.sum(0),
        "product": lambda v, x: x @ v,
        "with itself": lambda v, x: v.T @ v,
    }
    check(programs, v, x)


# Programs after which a matrix with zeros is still one.
KEPT = {
    "div": lambda v: v / 2.0,
    "div at run time": lambda v: v / jnp.float32(3).sum(),
    "relu": jax.nn.relu,
    "maximum": lambda v: jnp.maximum(v, 0),
    "minimum": lambda v: jnp.minimum(0.0, v),
    "power": lambda v: v**2.5,
    "positive": lambda v: v > 0,
    "different": lambda v: v != 0,
    "is one": lambda v: v == 1,
    "remainder": lambda v: lax.rem(v, 2.0),
    "add nothing": lambda v: v + 0.0,
    "angle": lambda v: jnp.arctan2(v, 1.0),
    "there and back": lambda v: v.astype(int).astype(float),
    "boolean": lambda v: v.astype(bool),
}


WITH_ZEROS = {
    "Diagonal": lambda: Diagonal(jnp.array([1.0, -2.0, 0.0])),
    "Sparse": lambda: Sparse.from_dense(jnp.array([[1.0, 0.0], [-0.5, 0.0]])),
    "OneHot": lambda: OneHot(jnp.array([1, 0]), 3),
    "NMSparse": lambda: NMSparse.prune(jnp.ones((4, 3)), 1, 2),
    "Zero": lambda: Zero((2, 3)),
}


@pytest.mark.parametrize("name", often(WITH_ZEROS, ("Diagonal", "Sparse")))
def test_what_leaves_zeros_alone_stays_implicit(name, bulk):
    value = WITH_ZEROS[name]()
    run = lambda v: {name: fn(v) for name, fn in KEPT.items()}
    got = jaxrewrite.transform(run, materialise="forbid")(value)
    assert all(
        isinstance(x, jaxrewrite.Value)
        for x in jax.tree.leaves(got, is_leaf=lambda x: isinstance(x, jaxrewrite.Value))
    )
    check(KEPT, value)


CHOICES = {
    "of zero": lambda v: jnp.where(v > 0.5, v, 0.0),
    "of two": lambda v: jnp.where(v > 0.5, 2 * v, -v),
    "of zero first": lambda v: jnp.where(v > 0.5, 0.0, v),
    "of three": lambda v: jnp.where(v > 2, 3 * v, jnp.where(v > 1, v, 0.0)),
    "clamp": lambda v: lax.clamp(-1.0, v, 1.0),
}
CHOICES_WITHOUT_ZEROS = {
    "of one": lambda v: jnp.sqrt(jnp.where(v > 0.5, v, 1.0)),
    "of infinity": lambda v: jnp.where(v < 0.5, -jnp.inf, v),
    "leaky": jax.nn.leaky_relu,
    "a kernel": lambda v: jnp.where(v < 1, (1 - v) ** 4 * (4 * v + 1), 0.0),
    "clamp at run time": lambda v: lax.clamp(v[0, 1], v, v[0, 0]),
}


@pytest.mark.parametrize(
    ("v", "programs"),
    [
        (Diagonal(jnp.array([-1.0, 0.75, 3.0])), CHOICES),
        (Tridiagonal(*map(jnp.array, ([1.0, 3.0], [-1.0, 0.0, 2.0], [0.2, 5.0]))), CHOICES),
        (Triangular(jnp.array([[1.0, 7.0], [0.2, 3.0]])), CHOICES),
        (BlockDiagonal(jnp.array([[[1.0, -2.0], [0.2, 3.0]]] * 2)), CHOICES),
        *(
            (v, CHOICES | CHOICES_WITHOUT_ZEROS)
            for v in (
                Toeplitz(jnp.array([3.0, 0.2, -1.0]), jnp.array([9.0, 1.0])),
                Circulant(jnp.array([3.0, 0.2, -1.0])),
                Symmetric(jnp.array([[3.0, 9.0], [0.2, 1.0]]), positive=True),
                Constant(jnp.float32(0.75), (2, 2)),
            )
        ),
    ],
    ids=lambda x: type(x).__name__,
)
def test_choices_between_entries_stay_implicit(v, programs):
    for program in programs.values():
        implicit = jaxrewrite.transform(program, materialise="forbid")
        assert type(jax.eval_shape(implicit, v)) is type(v)
    check(programs, v)


@pytest.mark.parametrize("number", [-0.75, 0.75])
def test_a_number_that_is_metadata_is_not_taken_for_another(number):
    v = Constant(Known(number), (2, 2))
    check(CHOICES | CHOICES_WITHOUT_ZEROS, v)


def test_an_infinity_is_no_index_of_an_entry():
    check(
        {"of infinity": lambda v: jnp.where(v > 0.5, -jnp.inf, v)}, WITH_ZEROS["Sparse"]()
    )


def test_known_zeros_of_both_signs_are_two_numbers():
    zeros = [Constant(Known(zero, jnp.dtype("float32")), (2,)) for zero in (0.0, -0.0)]
    assert not jaxrewrite.same_structure(*zeros)
    inverses = jaxrewrite.transform(lambda zeros: [1 / v for v in zeros])(zeros)
    for arrays in (jaxrewrite.materialise(zeros), jaxrewrite.materialise(inverses)):
        assert [*map(np.signbit, np.ravel(arrays))] == [False, False, True, True]


def test_a_truth_value_for_all_entries_chooses_between_values():
    v, w = Lora(*map(jnp.ones, ((2, 2), (2, 1), (1, 2)))), Constant(jnp.float32(2), (2, 2))
    fn = lambda v, w: jnp.where(w > 1, v, 2 * v)
    assert isinstance(jaxrewrite.transform(fn, materialise="forbid")(v, w), Lora)
    check({"of two": fn}, v, w)


MASKED = {
    "where": lambda which, v: jnp.where(which, v, 0),
    "elsewhere": lambda which, v: jnp.where(which, 0, v),
    "zeros of the program": lambda which, v: jnp.where(which, jnp.zeros(v.shape), v),
    "by integers": lambda which, v: lax.select_n(which.astype(int), v, jnp.zeros_like(v)),
    "rows": lambda which, v: jnp.where(which[:, :1], v, 0),
    "triangle": lambda which, v: jnp.triu(v, 2),
}
# The types with zeros that are no entries; for a mask, their structure is that of entries there.
PATTERNS = {
    **{name: name for name in ("diagonal", "banded", "tridiagonal", "triangular")},
    **{"sparse": "sparse", "n_of_m": "n_of_m", "picked": "picked"},
    **{"block_diagonal_square": "block_diagonal_square", "one_hot": "picked"},
    "identity": "diagonal",
}


def with_wild_entries(v):
    """The same structure with numbers that a product with zero would not make zero."""
    wild = jnp.array([1.0, jnp.nan, -jnp.inf, jnp.inf, -2.0], v.dtype)
    return jax.tree.map(
        lambda x: jnp.resize(wild, x.shape) if jnp.issubdtype(x.dtype, jnp.floating) else x,
        v,
    )


@pytest.mark.parametrize("name", often(PATTERNS, ("diagonal", "banded", "sparse")))
def test_a_mask_keeps_a_pattern(name, bulk):
    """What it chooses stays as it is, and all else is zero, infinities and NaN included."""
    rng = np.random.default_rng(2)
    value = CASES[name].value(rng, shape=(8, 8))
    which = jnp.asarray(rng.random(value.shape) < 0.5)
    run = lambda *args: {name: fn(*args) for name, fn in MASKED.items()}
    implicit = jaxrewrite.transform(run, materialise="forbid")
    kept = CASES[PATTERNS[name]].type()
    for v in (value, with_wild_entries(value)):
        got = implicit(which, v)
        assert {type(x) for x in got.values()} == {kept}
        dense = run(which, jaxrewrite.materialise(v))
        assert_same(jaxrewrite.materialise(got), dense, 0)
    of_batch = jax.vmap(lambda which: implicit(which, value)["where"])(which[None])
    np.testing.assert_array_equal(
        jaxrewrite.materialise(of_batch)[0], dense_where(which, value)
    )


def dense_where(which, v):
    return jnp.where(which, jaxrewrite.materialise(v), 0)


def test_a_masked_matrix_is_differentiable():
    """A number that the mask leaves out has no derivative, whatever it is."""
    v = Tridiagonal(jnp.array([1.0, jnp.nan]), jnp.arange(3.0), jnp.array([2.0, 3.0]))
    which = jnp.array([[True, True, False], [True, False, True], [True, False, True]])
    square = lambda v: (MASKED["where"](which, v) ** 2 @ jnp.arange(1.0, 4.0)).sum()
    implicit = jaxrewrite.transform(square, materialise="forbid")
    of_dense = lambda v: square(v.materialise())
    got, wanted = jax.grad(implicit)(v), jax.grad(of_dense)(v)
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-6)
    assert got.lower[1] == 0


def test_a_mask_beside_a_symbolic_zero_keeps_a_pattern():
    which = jnp.eye(3, dtype=bool).at[0].set(False)
    choose = jaxrewrite.transform(jnp.where, materialise="forbid")
    v, zero = Diagonal(jnp.array([1.0, jnp.nan, 3.0])), Zero((3, 3))
    for got, chosen in ((choose(which, v, zero), which), (choose(which, zero, v), ~which)):
        assert isinstance(got, Diagonal)
        np.testing.assert_array_equal(got.materialise(), dense_where(chosen, v))
    one = jaxrewrite.transform(jnp.where, materialise="forbid")(jnp.array(True), v, zero)
    assert isinstance(one, Diagonal)


class Halves(jaxrewrite.ArrayValue):
    x: jax.Array

    def materialise(self):
        return self.x / 2


def test_a_rule_for_a_mask_beside_written_zeros_is_of_the_users_own_tables():
    rules = jaxrewrite.Rules()

    @rules.register("select_n")
    def _(which: jax.Array, x: Halves, y: Zeros):
        return Halves(lax.select_n(which, x.x, jnp.zeros_like(x.x)))

    elsewhere, where = MASKED["elsewhere"], MASKED["where"]
    which, v = jnp.array([[True, False]]), Halves(jnp.ones((1, 2)))
    of_type = lambda fn, **options: type(
        jax.eval_shape(jaxrewrite.transform(fn, materialise="allow", **options), which, v)
    )
    assert of_type(elsewhere, rules=rules) is Halves
    assert of_type(where, rules=rules) is not Halves
    assert of_type(elsewhere) is not Halves


def test_a_rule_for_arrays_of_a_more_specific_type_comes_before_a_mask():
    rules = jaxrewrite.Rules()

    @rules.register("select_n")
    def _(which: jax.Array, x: jax.Array, y: Diagonal):
        return Diagonal(7 * y.d)

    which, v = jnp.ones((2, 2), bool), Diagonal(jnp.ones(2))
    got = jaxrewrite.transform(MASKED["where"], rules=rules)(which, v)
    np.testing.assert_array_equal(got.d, jnp.full(2, 7.0))


def test_a_division_by_a_number_at_run_time_is_implicit_and_differentiable():
    v, x = Diagonal(jnp.array([1.0, 2.0])), jnp.array([1.0, 3.0])
    implicit = jaxrewrite.transform(lambda v, s: (v / s) @ x, materialise="forbid")
    mean = lambda v, s: jaxrewrite.materialise(implicit(v, s))
    np.testing.assert_allclose(mean(v, jnp.float32(4)), [0.25, 1.5])
    gradient = jax.grad(lambda s: mean(v, s).sum())(jnp.float32(4))
    np.testing.assert_allclose(gradient, -7 / 16, rtol=1e-6)


def test_a_division_in_a_loop_and_in_a_branch_is_implicit():
    v = Diagonal(jnp.array([1.0, 2.0]))
    loop = lambda v, s: lax.fori_loop(0, 3, lambda i, v: v / s, v)
    branch = lambda v, s: lax.cond(s > 0, lambda: v / s, lambda: v)
    run = lambda v, s: {"loop": loop(v, s), "branch": branch(v, s)}
    got = jaxrewrite.transform(run, materialise="forbid")(v, jnp.float32(2))
    assert isinstance(got["loop"], Scaled) and isinstance(got["branch"], Scaled)
    assert_same(jaxrewrite.materialise(got), run(v.materialise(), jnp.float32(2)), 1e-6)


def test_what_is_known_is_found_on_a_mesh():
    mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec()
    body = lambda v, x: jnp.maximum(v, 0) @ x + jnp.sin(v) @ x
    fn = jax.shard_map(body, mesh=mesh, in_specs=(spec, spec), out_specs=spec)
    v, x = Diagonal(jnp.array([1.0, -2.0])), jnp.ones(2)
    got = jaxrewrite.transform(fn, materialise="forbid")(v, x)
    np.testing.assert_allclose(got, body(v.materialise(), x), rtol=1e-6)


def test_a_batch_of_divisions():
    divide = jaxrewrite.transform(lambda d, s: Diagonal(d) / s)
    v = jax.vmap(divide)(jnp.ones((2, 2)), jnp.array([0.0, 2.0]))
    programs = {"itself": lambda v: v, "transpose": lambda v: v.mT, "sin": jnp.sin}
    check(programs, v)


# --- products that are strict with zeros --------------------------------------------------------


class Line(Structured):
    """A user's square matrix with one row that is not zero, and a product without zeros."""

    x: jax.Array

    has_zeros = True

    def materialise(self):
        return jnp.zeros((3, 3)).at[0].set(self.x)


@jaxrewrite.register("dot_general")
def _(v: Line, x: jax.Array, **params):
    return jnp.zeros(3).at[0].set(v.x @ x)


STRICT = {
    "diagonal": Diagonal(jnp.arange(1.0, 4.0)),
    "zero": Zero((3, 3)),
    "identity": Identity(3),
    "permutation": Permutation(jnp.array([1, 2, 0])),
    "product": Product((Diagonal(jnp.arange(1.0, 4.0)), jnp.ones((3, 3)))),
    "sum": Sum((Diagonal(jnp.ones(3)), LowRank(jnp.ones((3, 1)), jnp.ones((1, 3))))),
    "scaled": Scaled(Identity(3), jnp.float32(2)),
}


def test_strict_zeros(bulk):
    run = lambda vs, x, s: {
        name: [v @ x, x @ v, v * x, x[:, None] * v, v * s, v @ v, jnp.sin(v * s)]
        for name, v in vs.items()
    }
    strict = jaxrewrite.transform(run, rules=strict_zeros, materialise="allow")
    operands = STRICT, jnp.array([1.0, jnp.inf, jnp.nan]), jnp.float32(jnp.inf)
    got = jax.jit(lambda *xs: jaxrewrite.materialise(strict(*xs)))(*operands)
    assert_same(got, jax.jit(run)(*jaxrewrite.materialise(operands)), 1e-5)


def test_strict_zeros_of_a_type_with_a_product_of_its_own():
    v, x = Line(jnp.ones(3)), jnp.array([1.0, jnp.inf, 2.0])
    product = lambda v, x: v @ x
    np.testing.assert_array_equal(jaxrewrite.transform(product)(v, x), [jnp.inf, 0, 0])
    strict = jaxrewrite.transform(product, rules=strict_zeros, materialise="allow")
    np.testing.assert_array_equal(strict(v, x), v.materialise() @ x)


@pytest.mark.parametrize(
    "annotated",
    [
        lambda v: Unitful(v, "m"),
        lambda v: Named(v, ("row", "column")),
        lambda v: Tagged(v, "t"),
        lambda v: Tagged(Unitful(v, "m"), "t"),
        lambda v: Masked(v, jnp.zeros(v.shape, bool)),
    ],
)
@pytest.mark.parametrize("v", [Diagonal(jnp.arange(1.0, 3.0)), Zero((2, 2))])
@pytest.mark.parametrize(
    "fn",
    [lambda v, x: v @ x, lambda v, x: x * v, lambda v, x: x[1] * v],
    ids=["@", "*", "number"],
)
def test_strict_zeros_keep_annotations(annotated, v, fn):
    value, x = annotated(v), jnp.array([1.0, jnp.nan])
    got = jaxrewrite.transform(fn, rules=strict_zeros, materialise="allow")(value, x)
    want = fn(v.materialise(), x)
    assert type(got) is type(value)
    while hasattr(got, "array"):
        got = got.array
    np.testing.assert_array_equal(jaxrewrite.materialise(got), want)


def test_strict_zeros_and_others_are_two_programs():
    fn = lambda v, x: v @ x
    v, x = Diagonal(jnp.ones(2)), jnp.array([1.0, jnp.inf])
    strict = jaxrewrite.transform(fn, rules=strict_zeros, materialise="allow")
    for _ in range(2):
        np.testing.assert_array_equal(jaxrewrite.transform(fn)(v, x), [1, jnp.inf])
        np.testing.assert_array_equal(strict(v, x), [jnp.nan, jnp.inf])
    with pytest.raises(jaxrewrite.MaterialisationError, match="dot_general"):
        jaxrewrite.transform(fn, rules=strict_zeros, materialise="forbid")(v, x)


class Two(Linear):
    """A user's sum of two arrays."""

    x: jax.Array
    y: jax.Array

    def materialise(self):
        return self.x + self.y

    def map_parts(self, fn):
        return Two(fn(self.x), fn(self.y))


def test_products_of_integers_are_those_of_the_parts_where_these_wrap_as_the_sum():
    v = Two(jnp.full((2, 2), 100, "int8"), jnp.full((2, 2), 100, "int8"))
    x = jnp.ones((2, 2), "int8")
    got = jaxrewrite.transform(jnp.multiply, materialise="forbid")(v, x)
    assert isinstance(got, Two)
    np.testing.assert_array_equal(got.materialise(), v.materialise())
    wide = lambda v, x: jnp.matmul(v, x, preferred_element_type="int32")
    got = jaxrewrite.transform(wide, materialise="allow")(v, x)
    np.testing.assert_array_equal(got, wide(v.materialise(), x))


WRAPPING = {
    "diagonal": lambda x: Diagonal(x[0]),
    "circulant": lambda x: Circulant(x[0]),
    "low_rank": lambda x: LowRank(x[:, :1], x[:1]),
    "kronecker": lambda x: Kronecker(x[:1, :1], x),
}
DIVISIONS = {
    "quotient": lambda v: lax.div(v, jnp.full_like(v, 2)),
    "floor": lambda v: v // -2,
    "columns": lambda v: v // jnp.arange(1, 4, dtype=v.dtype),
    "remainder": lambda v: v % 3,
    "abs": abs,
    "square": lambda v: v**2,
    "product": lambda v: jnp.matmul(v, v, preferred_element_type="int32"),
    "sum": lambda v: jnp.einsum("ij,ij->", v, v, preferred_element_type="int32"),
}


@pytest.mark.parametrize("dtype", ["int8", "int32"])
@pytest.mark.parametrize("name", WRAPPING)
def test_multiples_of_integers_are_rounded_and_wrap_as_the_dense_array(name, dtype):
    """Also the author's own multiples: ``3 * v`` is a `Scaled`."""
    v = WRAPPING[name](jnp.array([[3, 5, -7], [100, 2, 1], [0, 1, 4]], dtype))
    for multiple in (v, Scaled(v, jnp.array(3, dtype)), Scaled(v, jnp.array(-100, dtype))):
        of_all = lambda v: {name: fn(v) for name, fn in DIVISIONS.items()}
        got = jaxrewrite.transform(of_all, materialise="allow")(multiple)
        got = jax.tree.map(
            jaxrewrite.materialise, got, is_leaf=lambda x: isinstance(x, jaxrewrite.Value)
        )
        jax.tree.map(np.testing.assert_array_equal, got, of_all(multiple.materialise()))


def test_a_cast_of_parts_is_one_of_their_sum_where_it_is_linear():
    v = Two(jnp.full((2, 2), 0.5), jnp.full((2, 2), 0.75))
    cast = lambda dtype: lambda v: v.astype(dtype)
    got = jaxrewrite.transform(cast("complex64"), materialise="forbid")(v)
    assert isinstance(got, Two)
    assert_same(got.materialise(), v.materialise().astype("complex64"))
    got = jaxrewrite.transform(cast(int), materialise="allow")(v)
    assert_same(got, v.materialise().astype(int))


# --- dtypes -----------------------------------------------------------------------------

DTYPES = ("bool", "int8", "int32", "float16", "bfloat16", "float32", "complex64")


def casts():
    programs = {}
    for a in DTYPES:
        cast = lambda v, a=a: lax.convert_element_type(v, a)
        programs[a] = lambda v, w, cast=cast: cast(v)
        for b in DTYPES:
            if a != "complex64":
                programs[f"{a} {b}"] = lambda v, w, b=b, cast=cast: cast(v).astype(b)
            programs[f"{a} @ {b}"] = lambda v, w, b=b, cast=cast: cast(v) @ w.astype(b)
            programs[f"{b} @ {a}"] = lambda v, w, b=b, cast=cast: w.astype(b) @ cast(v).T
        programs |= {
            f"{a} * 2": lambda v, w, cast=cast: cast(v) * 2,
            f"{a} squared": lambda v, w, cast=cast: cast(v) * cast(v),
            f"{a} twice": lambda v, w, cast=cast: cast(v) + cast(v),
            f"{a} sum": lambda v, w, cast=cast: cast(v).sum(0),
            f"{a} any": lambda v, w, cast=cast: cast(v).any(1),
            f"{a} cumsum": lambda v, w, cast=cast: jnp.cumsum(cast(v), 0),
            f"{a} half": lambda v, w, cast=cast: cast(v) / 2,
        }
        if a != "bool":
            programs[f"{a} add up"] = lambda v, w, cast=cast: lax.reduce_sum(cast(v), (0,))
            programs[f"{a} wide"] = lambda v, w, cast=cast, a=a: lax.dot_general(
                cast(v),
                w.astype(a),
                (((1,), (0,)), ((), ())),
                preferred_element_type={"int8": "int32", "bfloat16": "float32"}.get(a, a),
            )
    return programs


@pytest.mark.slow
@some("constant")
def test_casts(name, bulk):
    v = make(name)
    w = jnp.linspace(-3, 3, v.shape[1] ** 2).reshape(v.shape[1], v.shape[1])
    run = lambda v, w: {k: fn(v, w) for k, fn in casts().items()}
    dense = jax.jit(jaxrewrite.materialise)(v)
    got, want = jax.jit(materialised(run))(v, w), jax.jit(run)(dense, w)
    assert jax.tree.map(jnp.shape, got) == jax.tree.map(jnp.shape, want)
    for key in want:
        assert got[key].dtype == want[key].dtype, key
        # In sixteen bits the rounding depends on the order of the operations.
        g, e = (np.asarray(x[key]).astype(complex) for x in (got, want))
        np.testing.assert_allclose(g, e, rtol=0.05, atol=0.05, err_msg=key)


INTEGERS = {
    "diagonal": lambda: Diagonal(jnp.array([100, -100, 7], jnp.int8)),
    "toeplitz": lambda: Toeplitz(*jnp.array([[100, 3, 7], [100, 1, 2]], jnp.int8)),
    "constant": lambda: Constant(jnp.int8(100), (3, 3)),
    "sparse": lambda: Sparse.from_dense(jnp.diag(jnp.array([100, 0, 3], jnp.int8))),
    "product": lambda: Product((Diagonal(jnp.array([100, 2, 7], jnp.int8)),) * 2),
    "low rank": lambda: LowRank(
        jnp.array([[100], [2], [3]], jnp.int8), jnp.array([[3, 1, 0]], jnp.int8)
    ),
    "sum": lambda: Sum((Diagonal(jnp.ones(3, jnp.int8)), jnp.ones((3, 3), jnp.int8))),
}


@pytest.mark.parametrize("dtype, want", [("bfloat16", 65536), ("float32", 65535)])
def test_products_of_integers_are_rounded_once(dtype, want):
    v, x = Diagonal(jnp.array([257], "int16")), jnp.array([[255]], "int16")
    product = lambda v, x: jnp.matmul(v, x, preferred_element_type=dtype)
    got = jaxrewrite.transform(product, materialise="forbid")(v, x)
    assert (got.dtype, got.item()) == (dtype, want)


@pytest.mark.parametrize("dtype", ["float32", "int4"])
@pytest.mark.parametrize("wanted", [None, "complex64"])
def test_products_of_complex_and_real_numbers(wanted, dtype):
    v, x = Diagonal(jnp.array([1 + 2j, 3 - 1j])), jnp.array([[1, 2], [3, 4]], dtype)
    product = lambda v, x: lax.dot(v, x, preferred_element_type=wanted)
    got = jaxrewrite.transform(product, materialise="forbid")(v, x)
    assert_same(got, product(jaxrewrite.materialise(v), x))


@pytest.mark.parametrize(
    "name",
    often(INTEGERS, ("diagonal", "constant", "low rank")),
)
def test_small_integers(name, bulk):
    v = INTEGERS[name]()
    x = jnp.array([[100, 3, 50], [1, 2, 3], [99, 98, 97]], jnp.int8)
    product = lambda dtype: (
        lambda v, x: lax.dot_general(
            v, x, (((1,), (0,)), ((), ())), preferred_element_type=dtype
        )
    )
    programs = {
        "product": product(None),
        "wide product": product(jnp.int32),
        "floating product": product(jnp.float32),
        "sum": lambda v, x: lax.reduce_sum(v, (0,)),
        "all": lambda v, x: lax.reduce_sum(v, (0, 1)),
        "float": lambda v, x: v.astype(jnp.float32),
        "div": lambda v, x: lax.div(v, jnp.int8(2)),
        "div at run time": lambda v, x: lax.div(v, x[1, 1]),
        "rem": lambda v, x: lax.rem(v, jnp.int8(2)),
        "and": lambda v, x: v & 3,
        "shift": lambda v, x: v << 1,
        "not": lambda v, x: ~v,
        "mul": lambda v, x: v * x,
    }
    check(programs, v, x)


WEAKLY_TYPED = {
    "times a number": lambda v: (v * 2).T,
    "over a number": lambda v: v / 2,
    "not a number": lambda v: v != 0,
    "sums": lambda v: 1.5 * v + 2 * v,
    "numbers chosen": lambda v: jnp.where(v, 1.0, 0.0),
    "strong": lambda v: 2 * (v * jnp.int32(2)),
}

# Types of floating-point numbers alone, and makers of values that negate.
_NUMBERS_OF = (
    *("lora", "dora", "rescaled"),
    "quantised",
    "nf4",
    "float8",
    "microscaled",
    "gguf",
    "concatenated",
    "kronecker_square",
    "n_of_m",
)


@pytest.mark.parametrize("dtype", ["bool", "int32"])
@pytest.mark.parametrize(
    "name", [name for name in TYPES if not any(map(name.count, _NUMBERS_OF))]
)
def test_types_stay_weak(name, dtype):
    """Numbers that the program writes decide on the type of the result as little as with arrays."""
    value = make(name, dtype=dtype)
    for fn in WEAKLY_TYPED.values():
        implicit = jaxrewrite.transform(fn, materialise="allow")
        got = jax.eval_shape(jaxrewrite.materialise, jax.eval_shape(implicit, value))
        want = jax.eval_shape(fn, jax.eval_shape(jaxrewrite.materialise, value))
        assert (got.dtype, got.weak_type) == (want.dtype, want.weak_type)


def test_sums_beside_a_small_constant_do_not_overflow():
    """The sum of many numbers of 16 bits may be above the largest, and its multiple below."""
    many = jnp.full((1000, 1), 100, jnp.float16)
    with jax.disable_jit():
        product = Constant(jnp.float16(1e-3), (1, 1000)) @ many
    np.testing.assert_allclose(product, [[100]], rtol=2e-3)
    total = jaxrewrite.transform(lambda v: lax.reduce_sum(v, (0,)))
    for number in (0, 1e-3):
        many = Constant(jnp.float16(number), (70_000,))
        np.testing.assert_allclose(
            jaxrewrite.materialise(total(many)), 70_000 * number, 1e-3
        )

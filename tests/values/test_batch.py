"""Batch axes of the ready types, and values in values, compared with dense arrays.

These are sums over a batch, stacks, values that leave an outer `jax.vmap` and enter one again,
and loops over values that hold values.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from choose import every, often
from jax import lax
from oracle import allow, forbid
from reference import CASES, batched

import jaxrewrite
from jaxrewrite import values
from jaxrewrite.testing import assert_same
from jaxrewrite.values import (
    NF4,
    Constant,
    Diagonal,
    Identity,
    Interval,
    Known,
    Kronecker,
    Lora,
    LowRank,
    Masked,
    Named,
    OneHot,
    Permutation,
    Picked,
    Product,
    Quantised,
    ScalarMatrix,
    Scaled,
    Sum,
    Tagged,
    Threefry,
    Toeplitz,
    Triangular,
    Unitful,
    Units,
    Zero,
)


N = 3
RNG = np.random.default_rng(0)


def uniform(*shape):
    return jnp.asarray(RNG.uniform(0.25, 1, shape), jnp.float32)


X, STEPS = uniform(N), uniform(2, N, N)


def agrees(programs, value, dense=None, tolerance=1e-4):
    """Each program gives on a value what it gives on the array."""

    def everything(v):
        return {name: program(v) for name, program in programs.items()}

    on_value = jax.jit(lambda v: jaxrewrite.materialise(allow(everything)(v)))
    dense = jaxrewrite.materialise(value) if dense is None else dense
    assert_same(on_value(value), jax.jit(everything)(dense), tolerance)


def case(name):
    return CASES[name].make(np.random.default_rng(0), jnp.dtype("float32"), N, N)


# --- sums over a batch ------------------------------------------------------------------

SUMS = {
    "sum": lambda v: v.sum(0),
    "mean": lambda v: v.mean(0),
    "einsum": lambda v: jnp.einsum("bij->ij", v),
    "stack": lambda v: jnp.stack([v[0], v[0]]).sum(0),
    "broadcast": lambda v: jnp.broadcast_to(v[0], (2, N, N)).sum(0),
    "repeat": lambda v: jnp.repeat(v, 2, 0).sum(0),
    "two": lambda v: jnp.broadcast_to(v, (2, *v.shape)).sum((0, 1)),
    "ys of map": lambda v: lax.map(lambda x: x, v).sum(0),
    "ys of scan": lambda v: lax.scan(lambda c, x: (c, x.mT), 0.0, v)[1].sum(0),
}

INDICES = jnp.array([[0, 2, 1], [1, 0, 1]])
ORDERS = jnp.array([[0, 2, 1], [1, 0, 2]])
STACKS = {
    "one_hot": OneHot(INDICES, N),
    "one_hot transposed": OneHot(INDICES, N, -2),
    "picked": Picked(uniform(2, N), INDICES, N),
    "identity": Identity(N, of_batch=(2,)),
    "permutation": Permutation(ORDERS),
    "diagonal": Diagonal(uniform(2, N)),
    "triangular": Triangular(uniform(2, N, N)),
    "product": Product((Identity(N, of_batch=(2,)), OneHot(INDICES, N))),
    "sum": Sum((Identity(N, of_batch=(2,)), OneHot(INDICES, N))),
    "scaled": Scaled(OneHot(INDICES, N), jnp.float32(2)),
    "kronecker": Kronecker(Identity(N, of_batch=(2,)), uniform(2, 1, 1)),
    "tagged": Tagged(OneHot(INDICES, N), "tag"),
}


@pytest.mark.parametrize("name", often(STACKS, ("one_hot", "product")))
def test_sums_over_a_batch(name, bulk):
    agrees(SUMS, STACKS[name])


def test_sums_over_a_batch_of_entries_stay_implicit():
    for name in ("diagonal", "triangular", "identity"):
        total = forbid(lambda v: v.sum(0))(STACKS[name])
        assert isinstance(total, (Diagonal, ScalarMatrix, Triangular))


# --- what leaves an outer vmap ----------------------------------------------------------

ELEMENT = {
    "scaled": lambda v: v * 2.0,
    "transposed": lambda v: -v.T,
    "product": lambda v: v @ X,
    "sum": lambda v: v.sum(),
    "sums": lambda v: v.sum(0),
    "plus": lambda v: v + 1.0,
    "row": lambda v: v[0],
    "reshaped": lambda v: v.reshape(-1),
}
WHOLE = {
    "sum": lambda v: v.sum(0),
    "negative": lambda v: -v,
    "transposed": lambda v: v.mT,
    "moved": lambda v: v.transpose(1, 0, 2),
    "times a number": lambda v: v * 2.0,
    "over a number": lambda v: v / 2.0,
    "times one each": lambda v: v * jnp.arange(2.0)[:, None, None],
    "product": lambda v: v @ X,
    "product of two": lambda v: v @ v,
    "sum of two": lambda v: v + v,
    "plus": lambda v: v + 1.0,
    "first": lambda v: v[0],
    "rows": lambda v: v[:, 0],
    "reshaped": lambda v: v.reshape(2 * N, N),
    "maximum": lambda v: v.max(0),
    "chosen": lambda v: jnp.where(v > 0.5, v, 0.0),
    "again": lambda v: jax.vmap(lambda w: w @ X)(v),
    "scan": lambda v: lax.scan(lambda c, w: (c @ w, w.T), X, v),
    "carry": lambda v: lax.scan(lambda c, _: (-c, c @ X), v, STEPS),
    "cond": lambda v: lax.cond(X[0] > 0, lambda: v, lambda: v * 2.0),
    "joined": lambda v: jnp.concatenate([v, v]),
}


def element(value):
    """A function from a number to a value like this one, with all its leaves multiplied."""
    leaves, treedef = jax.tree.flatten(value)

    def of(number):
        return treedef.unflatten(
            [
                leaf * number.astype(leaf.dtype)
                if jnp.issubdtype(leaf.dtype, jnp.inexact)
                else leaf
                for leaf in leaves
            ]
        )

    return of


def batch_of(value):
    """A batch that has left an outer vmap, and the array that it has to be."""
    each, numbers = element(value), jnp.array([1.0, 2.0])
    elements = lambda: [jaxrewrite.materialise(each(number)) for number in numbers]
    return jax.jit(jax.vmap(each))(numbers), jnp.stack(jax.jit(elements)())


def check_batch(value):
    batch, want = batch_of(value)
    agrees(WHOLE, batch, want)

    def everything(v):
        return {name: program(v) for name, program in ELEMENT.items()}

    got = jax.jit(lambda v: jaxrewrite.materialise(jax.vmap(allow(everything))(v)))
    assert_same(got(batch), jax.vmap(everything)(want), 1e-4)


@pytest.mark.parametrize(
    "name",
    every(4, CASES),
)
def test_a_batch_is_what_its_elements_are(name, bulk):
    """Once, and twice: each leaf has the batch axes in front."""
    value = case(name)
    batch, want = batch_of(value)
    assert batch.shape == want.shape
    each, numbers = element(value), jnp.array([[1.0, 2.0], [2.0, 1.0]])
    twice = jax.jit(jax.vmap(jax.vmap(each)))(numbers)
    assert twice.shape == (2, *want.shape)
    got = jax.jit(jaxrewrite.materialise)((batch, twice))
    assert_same(got, (want, jnp.stack([want, want[::-1]])), 1e-5)


@pytest.mark.parametrize("name", often(CASES, ("scaled", "constant_known")))
def test_rules_respect_batch_axes(name, bulk):
    check_batch(case(name))


def test_a_batch_of_scaled_values_has_a_number_for_each():
    scaled = jax.vmap(lambda x: Scaled(jnp.ones(2), x))(jnp.array([1.0, 10.0]))
    assert_same(jaxrewrite.materialise(scaled), jnp.array([[1.0, 1], [10, 10]]), 0)
    doubled = jax.vmap(allow(lambda v: v * 2))(scaled)
    assert_same(jaxrewrite.materialise(doubled), jnp.array([[2.0, 2], [20, 20]]), 0)


def test_batch_axes_change_places():
    numbers = jnp.arange(6.0).reshape(2, 3)
    batch = jax.vmap(jax.vmap(lambda c: Diagonal(c * jnp.arange(1.0, 5))))(numbers)
    orders = (1, 0, 2, 3), (1, 0, 3, 2), (0, 1, 3, 2)
    fn = lambda v: [jnp.transpose(v, order) for order in orders]
    got = forbid(fn)(batch)
    assert all(isinstance(x, Diagonal) for x in got)
    assert_same(jaxrewrite.materialise(got), fn(jaxrewrite.materialise(batch)), 0)


def test_annotations_of_a_batch():
    named = jax.vmap(allow(lambda v: v * 2))(Named(uniform(2, N), ("b", "f")))
    assert named.shape == (2, N)
    assert named.axis("f") == 1
    assert forbid(lambda v: v.sum(0))(named).names == ("f",)
    metres = jax.vmap(allow(lambda v: v * v))(Unitful(uniform(2, N), "m"))
    assert str(metres.units) == "m^2"
    assert metres.shape == (2, N)
    masked = jax.vmap(allow(jnp.sum))(Masked(jnp.ones((2, N)), jnp.eye(2, N) > 0))
    assert_same(masked.filled(0), jnp.array([2.0, 2]), 0)
    bounds = jax.vmap(allow(jnp.sum))(Interval(jnp.zeros((2, N)), jnp.ones((2, N))))
    assert_same(bounds.upper, jnp.array([3.0, 3]), 0)
    keys = Threefry.of(jax.random.split(jax.random.key(0), 2))
    assert jax.vmap(allow(jax.random.split))(keys).shape == (2, 2)


def test_stacks_of_stacks_under_vmap():
    def layers(scale):
        return batched([Scaled(X * i, scale) for i in range(3)])

    scales = jnp.array([1.0, 2.0])
    want = jnp.stack([jaxrewrite.materialise(layers(s)) for s in scales])
    whole = jax.vmap(layers)(scales)
    assert whole.shape == (2, 3, N)
    assert_same(jaxrewrite.materialise(whole), want, 1e-6)
    run = lambda v: lax.scan(lambda c, w: (c + w, w), jnp.zeros(N), v)
    assert_same(
        jaxrewrite.materialise(jax.vmap(allow(run))(whole)), jax.vmap(run)(want), 1e-6
    )
    over = lambda v: lax.map(lambda w: w.sum(0), v)
    assert_same(jaxrewrite.materialise(allow(over)(whole)), over(want), 1e-6)
    # Inside of a vmap over the layers it is one of them.
    one = jax.vmap(allow(lambda w: w * 2))(layers(2.0))
    assert_same(jaxrewrite.materialise(one), 2 * jaxrewrite.materialise(layers(2.0)), 1e-6)


def test_batch_axes_elsewhere_are_errors():
    x = jnp.ones((2, N))
    elsewhere = functools.partial(jax.vmap, out_axes=1)
    with pytest.raises(ValueError, match="out_axes=0"):
        jaxrewrite.materialise(elsewhere(lambda x: Zero((N,)))(x))
    with pytest.raises(ValueError, match="out_axes=0"):
        jaxrewrite.materialise(elsewhere(lambda x: Identity(N))(x))
    for made in (lambda x: Scaled(x, x[0]), lambda x: Constant(x[0], (N,))):
        with pytest.raises(ValueError, match="out of bounds"):
            elsewhere(made)(x)
    for jacobian in (jax.jacfwd, jax.jacrev):
        with pytest.raises(ValueError, match="jacfwd"):
            jacobian(lambda x: Zero((2,)))(X).aval()
    with pytest.raises(ValueError, match="in_axes=None"):
        jax.vmap(allow(lambda v: v + 1))(Zero((2, N)))
    with pytest.raises(ValueError, match="in_axes"):
        axes = jax.tree.map(lambda leaf: None if leaf.ndim == 1 else 0, STACK)
        jax.vmap(allow(lambda v: v + 1), in_axes=(axes,))(STACK)


ELSEWHERE = {
    "Diagonal": (Diagonal, (2, N)),
    "Toeplitz": (lambda x: Toeplitz(x, x), (2, N)),
    # If the batch, the rows and the rank are as many; else it can't be multiplied.
    "LowRank": (lambda x: LowRank(x, x), (N, N, N)),
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_batch_axes_elsewhere_make_another_matrix_of_some_types(name):
    """docs/values.rst says so: they are as the type's own batch axes are, and so no error."""
    made, shape = ELSEWHERE[name]
    x = jnp.arange(float(np.prod(shape))).reshape(shape)
    batch, elsewhere = jaxrewrite.materialise(
        (jax.vmap(made)(x), jax.vmap(made, out_axes=1)(x))
    )
    assert batch.ndim == elsewhere.ndim == 3
    assert not np.array_equal(batch, elsewhere)


def test_a_stack_is_of_the_type_of_its_elements_where_that_has_stacks():
    matrices = [Diagonal(X), Diagonal(X + 1)]
    stack = jaxrewrite.stack(matrices)
    assert isinstance(stack, Diagonal)
    product = jax.vmap(forbid(jnp.matmul), (0, None))
    assert_same(product(stack, X), jnp.stack([X * X, (X + 1) * X]), 1e-6)
    assert_same(forbid(jnp.linalg.det)(stack), jnp.stack([X.prod(), (X + 1).prod()]), 1e-5)
    tagged = jaxrewrite.stack([Tagged(v, "tag") for v in matrices])
    assert isinstance(tagged.array, Diagonal)


@pytest.mark.parametrize(
    "one",
    [
        Diagonal(Tagged(X, "tag")),
        Quantised.quantise(jnp.eye(4), 4, block=2),
        Lora(NF4.quantise(jnp.eye(64)), jnp.ones((64, 1)), jnp.ones((1, 64))),
    ],
    ids=lambda v: type(v).__name__,
)
def test_a_stack_of_what_has_values_in_fields_is_of_the_type(one):
    """A rule for the type sees arrays in their place."""
    stack = jaxrewrite.stack([one, one])
    assert type(stack) is type(one) and stack.shape == (2, *one.shape)
    by_program = forbid(lambda v: jnp.stack([v, v]))(one)
    assert jaxrewrite.same_structure(by_program, stack)
    dense = jnp.stack([jaxrewrite.materialise(one)] * 2)
    x = jnp.ones(one.shape[1:])
    last = forbid(lambda v: (v @ x, lax.map(lambda v: v @ x, v), v[1] @ x))(stack)
    expected = (dense @ x, dense @ x, dense[1] @ x)
    for found, want in zip(last, expected, strict=True):
        assert_same(jaxrewrite.materialise(found), want, 1e-5)


STACK = batched([Scaled(X, jnp.float32(i)) for i in range(2)])


def test_steps_along_one_axis_of_the_elements_of_a_stack():
    stack = batched([Scaled(x, jnp.float32(2)) for x in STEPS])
    for step in ((1, 2, 1), (1, 1, 2)):
        fn = lambda v, step=step: lax.slice(v, (0, 0, 0), v.shape, step)
        got = jaxrewrite.materialise(allow(fn)(stack))
        assert_same(got, fn(jaxrewrite.materialise(stack)), 0)


# --- values without numbers ---------------------------------------------------------------


class Counting(jaxrewrite.ArrayValue):
    """0, 1, 2 ...: a type of a user's with no leaf at all."""

    n: int = jaxrewrite.field(static=True)

    def materialise(self):
        return jnp.arange(self.n, dtype=jnp.float32)


def test_values_without_leaves_leave_vmap_dense():
    both = allow(lambda v, x: (v, Product((Diagonal(x), Diagonal(v)))))
    v, x = Counting(N), jnp.arange(6.0).reshape(2, N)
    got = jax.vmap(both, in_axes=(None, 0))(v, x)
    want = jax.vmap(lambda x: (v.materialise(), jnp.diag(x * v.materialise())))
    assert_same(jaxrewrite.materialise(got), want(x), 0)
    assert isinstance(got[1], Product)
    # Where there is no batch, nothing is done to them.
    assert isinstance(both(v, x[0])[0], Counting)
    assert isinstance(jax.jit(both)(v, x[0])[0], Counting)


def test_zeros_in_pytrees():
    params = {"z": Zero((N,)), "a": X, "i": Identity(N), "k": Constant(Known(2.0), (N,))}
    total = lambda p: ((p["z"] + p["i"] @ p["a"] * p["k"]) ** 2).sum()
    gradient = jax.jit(jax.grad(allow(total)))(params)
    assert_same(gradient["a"], 8 * X, 1e-5)
    assert isinstance(gradient["z"], Zero)
    optimiser = optax.adam(0.1)
    updates, _ = optimiser.update(gradient, optimiser.init(params), params)
    assert optax.apply_updates(params, updates)["z"].shape == (N,)
    assert repr(params["z"]) == "Zero([· · ·], dtype=float32)"
    assert params["z"].nbytes == params["i"].nbytes == 0
    for v in (Zero((2, N)), Identity(N, of_batch=(2,)), Known(2.0)):
        copied = jax.tree.map(lambda x: x, v)
        assert (copied.shape, copied.dtype) == (v.shape, v.dtype)


# --- values in values, in loops -------------------------------------------------------------

LOOPS = {
    "const": lambda v: lax.scan(lambda c, s: (c @ v, s @ v), X, STEPS),
    "ys": lambda v: lax.scan(lambda c, s: (c + 1, v * 2), X, STEPS)[1],
    "ys summed": lambda v: lax.scan(lambda c, s: (c + 1, v), X, STEPS)[1].sum(0),
    "carry": lambda v: lax.scan(lambda c, s: (c.T * 0.5, c @ X), v, STEPS),
    "carry grows dense": lambda v: lax.scan(lambda c, s: (c + s, None), v, STEPS)[0],
    "fori": lambda v: lax.fori_loop(0, 2, lambda i, c: -c, v),
    "while": lambda v: lax.while_loop(
        lambda c: c[0] < 2, lambda c: (c[0] + 1, c[1] * 2), (0, v)
    ),
    "map": lambda v: lax.map(lambda s: s @ v, STEPS),
    "rows": lambda v: lax.scan(lambda c, row: (c + row, row @ X), X, v),
    "stack": lambda v: lax.scan(lambda c, w: (c @ w, w.sum()), X, jnp.stack([v, v])),
    "stack times": lambda v: jnp.stack([v, v]) @ X,
    "vmap": lambda v: jax.vmap(lambda s: s @ v)(STEPS),
    "cond": lambda v: lax.cond(X[0] > 0.1, lambda: v, lambda: v * 2.0),
    "cond of two": lambda v: lax.cond(X[0] > 0.1, lambda: v, lambda: STEPS[0]),
    "moved": lambda v: jnp.broadcast_to(v, (2, 1, N, N)).transpose(1, 0, 3, 2)[0, 1],
}

INNER = {
    **{name: functools.partial(case, name) for name in CASES if "of Tagged" not in name},
    "scaled zero": lambda: Scaled(Zero((N, N)), jnp.float32(2)),
    "plain": lambda: Unitful(uniform(N, N), ""),
    "batched": lambda: batched([Scaled(X, jnp.float32(i + 1)) for i in range(N)]),
}

OUTER = {
    "Tagged": lambda v: Tagged(v, "tag"),
    "Named": lambda v: Named(v, ("rows", None)),
    "Unitful": lambda v: Unitful(v, ""),
    "Scaled": lambda v: Scaled(v, jnp.float32(2)),
    "Sum": lambda v: Sum((v, Diagonal(X))),
    "Product": lambda v: Product((v, STEPS[0])),
    "Product, last": lambda v: Product((Diagonal(X), v)),
    "Kronecker": lambda v: Kronecker(v, jnp.ones((1, 1))),
    "Lora": lambda v: Lora(v, uniform(N, 1), uniform(1, N), frozen=False),
    "Lora, a": lambda v: Lora(STEPS[0], v, STEPS[1], frozen=False),
    "LowRank": lambda v: LowRank(v, STEPS[0]),
    "Triangular": Triangular,
    "Diagonal": lambda v: Diagonal(allow(lambda v: v[0])(v)),
    "Constant": lambda v: Constant(allow(lambda v: v[0, 0])(v), (N, N)),
}

SAMPLE = [
    ("Tagged", "scaled"),
    ("Named", "quantised"),
    ("Product", "zero"),
    ("Product", "scaled"),
    ("Constant", "quantised"),
    ("Scaled", "batched"),
]


def check_nested(outer, inner):
    agrees(LOOPS, OUTER[outer](INNER[inner]()), tolerance=1e-3)


@pytest.mark.parametrize(("outer", "inner"), SAMPLE[::2])
def test_values_in_values_in_loops(outer, inner, bulk):
    check_nested(outer, inner)


@pytest.mark.slow
@pytest.mark.parametrize("outer", OUTER)
@pytest.mark.parametrize("inner", INNER)
def test_each_value_in_each_other_in_loops(outer, inner, bulk):
    if "Named" in outer and "Named" in inner:
        pytest.skip("names of the one and of the other may differ")
    check_nested(outer, inner)


class Columns(jaxrewrite.ArrayValue):
    """A matrix with a factor for each column: a type of a user's that has no stacks."""

    x: jax.Array
    factors: jax.Array

    def materialise(self):
        return self.x * self.factors


class SlicedColumns(Columns):
    """Its rows are slices of its leaves once each row has its own factors."""

    def sliceable(self):
        return SlicedColumns(self.x, jnp.broadcast_to(self.factors, self.x.shape))


@pytest.mark.parametrize("cls", [Columns, SlicedColumns])
def test_a_stack_is_of_the_type_only_if_all_its_leaves_are_as_they_are_sliced(cls):
    for count in (
        2,
        N,
    ):  # With two, its leaves are those of no value: no product has a shape.
        columns = [cls(uniform(N, N) + i, X * (i + 1)) for i in range(count)]
        stack = jaxrewrite.stack(columns)
        dense = jnp.stack(jaxrewrite.materialise(columns))
        assert_same(jaxrewrite.materialise(stack), dense, 0)
        ys = lambda v, count=count: lax.scan(lambda c, _: (c, v), 0, None, count)[1]
        got = jaxrewrite.materialise(allow(ys)(columns[0]))
        assert_same(got, jnp.stack([dense[0]] * count), 0)


def test_an_element_of_a_stack_is_no_stack(bulk):
    """Inside of `jax.vmap` its rows are not slices of its leaves."""

    def everything(v):
        return {name: program(v) for name, program in LOOPS.items()}

    columns = [Columns(uniform(N, N) + i, X * (i + 1)) for i in range(N)]
    on_value = jax.vmap(lambda v: jaxrewrite.materialise(allow(everything)(v)))
    dense = jnp.stack(jaxrewrite.materialise(columns))
    around = jaxrewrite.stack([Tagged(v, "tag") for v in columns])
    assert_same(jaxrewrite.materialise(around), dense, 0)
    assert_same(on_value(jaxrewrite.stack(columns)), jax.vmap(everything)(dense), 1e-4)


def test_annotations_stay_in_loops():
    v = Tagged(Scaled(uniform(N, N), jnp.float32(2)), "tag")
    carry, ys = forbid(lambda v: lax.scan(lambda c, _: (c.T, c), v, None, 2))(v)
    assert isinstance(carry, Tagged)
    assert isinstance(ys, Tagged)
    assert ys.shape == (2, N, N)
    named = Named(Quantised.quantise(uniform(2, N)), ("layer", "in"))
    rows = forbid(lambda v: lax.map(lambda row: -row, v))(named)
    assert rows.names == ("in",) and rows.axis("in") == 1


# --- loops over stacks that share something ------------------------------------------------

W = uniform(4, 8, 8)
SHARING = {
    "one scale": Quantised.quantise(W),
    "a scale for two layers": Quantised.quantise(W, block=(2, None, None)),
    "nf4": NF4.quantise(W, block=(1, 8, 1)),
    "lora": Lora(Quantised.quantise(W), uniform(4, 8, 1), uniform(4, 1, 8)),
    "lora on one weight": Lora(W[0], uniform(4, 8, 1), uniform(4, 1, 8)),
    "scaled": Scaled(W, jnp.float32(2)),
    "scaled, quantised": Scaled(Quantised.quantise(W), jnp.float32(2)),
    "constant": Constant(jnp.float32(0.5), W.shape),
    "sum": Sum((W, Diagonal(uniform(4, 8)))),
    "named": Named(Quantised.quantise(W), ("layer", "in", None)),
    "tagged": Tagged(Scaled(W, jnp.float32(2)), "tag"),
    "identity": Identity(8, of_batch=(4,)),
}


@pytest.mark.parametrize("name", every(3, SHARING))
def test_a_loop_over_what_layers_share(name):
    def run(x, ws):
        return lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, ws)[0].sum()

    x, v = uniform(8), SHARING[name]
    of_x = lambda x: jaxrewrite.materialise(forbid(run)(x, v))
    got = jax.value_and_grad(of_x)(x)
    assert_same(got, jax.value_and_grad(run)(x, jaxrewrite.materialise(v)), 1e-4)


def test_a_loop_over_quantised_layers_holds_one_dense_layer():
    w = quantised = values.quantise(jnp.ones((16, 32, 32)), lambda *_: True)
    run = lambda x, ws: lax.scan(lambda x, w: (x @ w, None), x, ws)[0]
    compiled = jax.jit(forbid(run)).lower(jnp.ones(32), quantised).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < w.size * 4 / 2


def test_a_type_says_how_it_is_sliced():
    class Shared(jaxrewrite.ArrayValue):
        x: jax.Array
        shift: jax.Array

        def materialise(self):
            return self.x + self.shift

        def sliceable(self):
            return Shared(self.x, jnp.broadcast_to(self.shift, self.x.shape[:1]))

    v = Shared(uniform(2, N), jnp.float32(1))
    got = forbid(lambda v: lax.map(lambda row: row, v))(v)
    assert_same(jaxrewrite.materialise(got), v.materialise(), 1e-6)


def test_loras_of_full_rank_are_added():
    v = case("lora")
    agrees({"add": lambda v: v + v, "sub": lambda v: v - 2 * v}, v)


def test_a_constant_in_slices_has_a_number_for_each():
    v = Constant(jnp.float32(0.5), (3, 2))
    slices = v.sliceable()
    assert (slices.fill.shape, slices.of_shape, slices.shape) == ((3,), (2,), (3, 2))
    assert slices.sliceable() is slices
    rows = jaxrewrite.transform(lambda v: lax.scan(lambda c, row: (c, row * 2), 0, v)[1])
    assert isinstance(rows(v), Constant)


# --- zeros around the elements of a stack, and between them -------------------------------


class Doubled(jaxrewrite.ArrayValue):
    x: jax.Array
    by: jax.Array

    def materialise(self):
        return self.x * self.by


def padded(number, *config):
    def program(v):
        rest = [(0, 0, 0)] * (v.ndim - len(config))
        return lax.pad(v, jnp.asarray(number, v.dtype), [*config, *rest])

    return program


def products(axis=0, **options):
    times = lambda a, b: b @ a
    return lambda v: lax.associative_scan(times, v, axis=axis, **options)


PADDINGS = {
    "around": padded(0, (1, 2, 0)),
    "between": padded(0, (0, 1, 1)),
    "cut": padded(0, (-1, 1, 2)),
    "by numpy": lambda v: jnp.pad(v, [(1, 0)] + [(0, 0)] * (v.ndim - 1)),
}
OF_ZEROS = {
    "diagonal": Diagonal(uniform(2, N)),
    "scalar": ScalarMatrix(uniform(2), N),
    "triangular": Triangular(uniform(2, N, N)),
    "blocks": values.BlockDiagonal(uniform(2, 1, N, N)),
    "kronecker": Kronecker(Diagonal(uniform(2, 2)), uniform(2, 2, 2)),
    "low rank": LowRank(uniform(2, N, 1), uniform(2, 1, N)),
    "lora": Lora(uniform(2, N, N), uniform(2, N, 1), uniform(2, 1, N)),
    "quantised": jax.vmap(Quantised.quantise)(uniform(2, N, N)),
    "scaled": Scaled(Kronecker(uniform(2, 1, 1), uniform(2, N, N)), jnp.float32(2)),
    "sum": Sum((Diagonal(uniform(2, N)), LowRank(uniform(2, N, 1), uniform(2, 1, N)))),
    "of a user": jaxrewrite.stack([Doubled(uniform(N), uniform(1)) for _ in range(2)]),
}


def are_stacks(programs, value):
    for program in programs.values():
        assert type(jax.eval_shape(forbid(program), value)) is type(value)
    agrees(programs, value)


@pytest.mark.parametrize("name", OF_ZEROS)
def test_a_stack_with_zeros_between_its_elements_is_a_stack(name):
    are_stacks(PADDINGS, OF_ZEROS[name])


def joined_with_zeros(*lengths):
    """Zeros of these lengths, and in the place of each ``None`` the stack."""

    def program(v):
        zeros = lambda length: jnp.zeros((length, *v.shape[1:]), v.dtype)
        return jnp.concatenate([v if n is None else zeros(n) for n in lengths])

    return program


JOINTS = {
    "before": joined_with_zeros(1, None),
    "after": joined_with_zeros(None, 2, 1),
    "between": joined_with_zeros(1, 2, None, 1, None),
    "of no length": joined_with_zeros(0, None, None),
    "shifted": lambda v: jnp.concatenate([jnp.zeros_like(v[:1]), v[:-1]]),
}


@pytest.mark.parametrize("name", OF_ZEROS)
def test_a_stack_that_is_joined_with_zeros_is_a_stack(name):
    are_stacks(JOINTS, OF_ZEROS[name])


def test_zeros_beside_elements_lie_inside_of_units():
    stack = Unitful(Diagonal(uniform(2, N)), "m")
    for name, program in JOINTS.items():
        result = jax.eval_shape(forbid(program), stack)
        assert type(result.array) is Diagonal and result.units == Units("m"), name
        got = jaxrewrite.materialise(forbid(program)(stack).array)
        assert_same(got, program(jaxrewrite.materialise(stack.array)))


@pytest.mark.parametrize(
    "program",
    [
        lambda v: jnp.concatenate([jnp.ones((1, N, N)), v]),
        lambda v: jnp.concatenate([jnp.full((1, N, N), -0.0), v]),
        lambda v: jnp.concatenate([v, jnp.zeros((2, N, 1))], axis=-1),
        lambda v: jnp.concatenate([v, jnp.zeros((1, N, N)), jnp.ones((1, N, N))]),
    ],
)
def test_what_else_is_beside_a_stack_makes_it_dense(program):
    with pytest.raises(jaxrewrite.MaterialisationError):
        forbid(program)(OF_ZEROS["diagonal"])
    agrees({"program": program}, OF_ZEROS["diagonal"])


def test_padding_of_a_batched_has_elements_of_the_type():
    rows = [Doubled(uniform(N), uniform(1)) for _ in range(2)]
    result = forbid(PADDINGS["around"])(jaxrewrite.stack(rows))
    assert type(result.element) is Doubled and result.length == 5
    grid = jaxrewrite.stack([jaxrewrite.stack(rows)] * 3)
    both = padded(0, (1, 0, 0), (0, 2, 1))
    result = forbid(both)(grid)
    assert (type(result.element), type(result.element.element)) == (
        jaxrewrite.Batched,
        Doubled,
    )
    agrees({"both": both}, grid)


@pytest.mark.parametrize(
    "config", [[(1, 1, 0)], [(1, 0, 0), (1, 2, 0)], [(0, 0, 0), (2, 0, 1)]]
)
def test_zeros_around_labels_that_are_a_batched(config):
    value = jaxrewrite.Batched(values.Tagged(uniform(2, N), "row"), 2)
    assert type(jax.eval_shape(forbid(padded(0, *config)), value)) is values.Tagged
    agrees({"padded": padded(0, *config)}, value)


def test_zeros_between_elements_lie_inside_of_units():
    stack = Unitful(Diagonal(uniform(2, N)), "m")
    twice = lambda v: PADDINGS["around"](PADDINGS["between"](v))
    for value in (stack, Named(stack, ("t", "i", "j"))):
        result = jax.eval_shape(forbid(twice), value)
        while type(result) is not Diagonal:
            result = result.array
        assert result.shape == (7, N, N)
    expected = twice(jaxrewrite.materialise(stack.array))
    assert_same(jaxrewrite.materialise(forbid(twice)(stack).array), expected)


@pytest.mark.parametrize(
    "name, program",
    [
        ("one", padded(1, (1, 0, 0))),
        ("negative zero", padded(-0.0, (1, 0, 0))),
        ("within elements", padded(0, (0, 0, 0), (1, 0, 0))),
    ],
)
def test_other_padding_makes_a_stack_dense(name, program):
    with pytest.raises(jaxrewrite.MaterialisationError):
        forbid(program)(OF_ZEROS["diagonal"])
    agrees({name: program}, OF_ZEROS["diagonal"])


@pytest.mark.parametrize(
    "value",
    [
        Permutation(ORDERS),
        Product((Permutation(ORDERS), Diagonal(uniform(2, N)))),
        Quantised.quantise(uniform(N, N), axis=1),
        Lora(Permutation(ORDERS), uniform(2, N, 1), uniform(2, 1, N)),
    ],
)
def test_a_stack_that_is_not_zero_by_its_leaves_is_padded_dense(value):
    """A permutation of zeros is none, and rows of columns with a scale would need a scale for each entry."""
    with pytest.raises(jaxrewrite.MaterialisationError):
        forbid(PADDINGS["around"])(value)
    agrees(PADDINGS, value)
    agrees(JOINTS, value)


@pytest.mark.parametrize("length", [2, 3, 5])
@pytest.mark.parametrize("options", [{}, {"reverse": True}, {"axis": 1}])
def test_products_of_matrices_in_parallel_stay_matrices(length, options):
    shape = (2, length, N) if options.get("axis") else (length, N)
    value, program = Diagonal(uniform(*shape)), products(**options)
    assert type(jax.eval_shape(forbid(program), value)) is Diagonal
    agrees({"products": program}, value)


def test_derivatives_of_products_in_parallel():
    value = Diagonal(uniform(3, N))
    total = lambda v: (products()(v) @ X).sum()
    gradient = jax.grad(forbid(total))(value).d
    dense = jax.grad(lambda d: total(jaxrewrite.materialise(Diagonal(d))))(value.d)
    assert_same(gradient, dense, 1e-5)
    mapped = jax.vmap(products(), 1, 1)
    agrees({"within": jax.grad(total), "mapped": lambda v: mapped(v[:, None])}, value)
    mapped = jax.vmap(forbid(products()))(Diagonal(jnp.stack([value.d, value.d])))
    assert type(mapped) is Diagonal


def test_an_empty_part_of_a_stack_adds_nothing():
    stack = Diagonal(uniform(2, N))
    for program in (
        lambda v: jnp.concatenate([v[:1], v[2:], v[1:]]),
        lambda v: jnp.concatenate([v[2:], v[:1]]),
        lambda v: jnp.concatenate([v[2:], v[2:]]),
    ):
        assert type(jax.eval_shape(forbid(program), stack)) is Diagonal
        agrees({"parts": program}, stack)


@pytest.mark.parametrize("name", ["BlockDiagonal", "Sparse"])
def test_stacks_of_numbers_times_matrices_that_are_not_square(name):
    """A number for each matrix multiplies its rows, as many as the other matrix has."""
    entries = np.arange(1.0, 49.0, dtype="float32")
    many = {
        "BlockDiagonal": values.BlockDiagonal(jnp.asarray(entries).reshape(2, 2, 3, 4)),
        "Sparse": values.Sparse.from_dense(entries[:12].reshape(2, 3, 2)),
    }[name]
    for v, w in (
        (many, ScalarMatrix(jnp.array([2.0, 3.0]), many.shape[-1])),
        (ScalarMatrix(jnp.array([2.0, 3.0]), many.shape[-2]), many),
    ):
        product = jaxrewrite.transform(jnp.matmul, materialise="forbid")(v, w)
        assert_same(product.materialise(), v.materialise() @ w.materialise(), 1e-6)

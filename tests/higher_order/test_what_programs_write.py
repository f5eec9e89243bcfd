"""Numbers that a program writes, where they meet a value: in a branch, a carry, a choice.

Zeros, and what else an array is filled with, take the structure of the value where its type can
have it. Elsewhere they are the array that they are. All types, fills and programs are combined.
"""

import dataclasses
import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from choose import every, often
from jax import lax
from jax.sharding import AxisType
from reference import CASES, NESTED

import jaxrewrite
from jaxrewrite import ArrayValue, Batched, transform
from jaxrewrite.extend import Zeros
from jaxrewrite.values import (
    NF4,
    Constant,
    Diagonal,
    Float8,
    Interval,
    LowRank,
    Masked,
    Microscaled,
    Named,
    Picked,
    Product,
    Quantised,
    ScalarMatrix,
    Scaled,
    Tagged,
    Unitful,
    UnitsError,
    Zero,
)


W = jnp.arange(1.0, 10.0).reshape(3, 3)


def made(case):
    return lambda: case.value(np.random.default_rng(0), shape=(3, 3))


PLAIN = (
    *("zero", "constant", "constant_known", "diagonal", "identity", "lora", "quantised"),
    *("low_rank", "scaled", "kronecker", "scaled_diagonal"),
)
KINDS = {name: made(CASES[name]) for name in PLAIN}
KINDS |= {name: made(case) for name, case in NESTED.items()}
KINDS["stack of diagonals"] = lambda: jaxrewrite.stack([Diagonal(row) for row in W])

FILLS = {
    "zeros": lambda v, k: jnp.zeros(v.shape, v.dtype),
    "zeros like": lambda v, k: jnp.zeros_like(v),
    "weak zeros": lambda v, k: jnp.full(v.shape, 0.0),
    "integer zeros": lambda v, k: jnp.zeros(v.shape, int).astype(v.dtype),
    "zeros times": lambda v, k: 0 * jnp.ones(v.shape, v.dtype),
    "times zero": lambda v, k: 0 * v,
    "a triangle": lambda v, k: jnp.tril(jnp.zeros((3, *v.shape), v.dtype))[0],
    "infinities": lambda v, k: jnp.full(v.shape, jnp.inf, v.dtype),
    "nan": lambda v, k: jnp.full(v.shape, jnp.nan, v.dtype),
    "ones": lambda v, k: jnp.ones(v.shape, v.dtype),
    "ones like": lambda v, k: jnp.ones_like(v),
    "a number": lambda v, k: jnp.full(v.shape, 2.5, v.dtype),
    "any number": lambda v, k: jnp.full(v.shape, k, v.dtype),
}
WITH_A_SCALE = ("ones", "ones like", "a number", "any number")

same = jax.custom_jvp(lambda v: v)
same.defjvps(lambda t, out, v: 2 * t)
alike = jax.custom_vjp(lambda v: v)
alike.defvjp(lambda v: (v, None), lambda _, g: (2 * g,))


def programs(fill):
    """Functions of a value, a truth value, a count of turns up to 2, and a number."""

    def two_branches(v, p, i, k):
        return lax.cond(p, lambda v: v, lambda v: fill(v, k), v)

    def no_operands(v, p, i, k):
        return lax.cond(p, lambda: (fill(v, k), v), lambda: (-v, fill(v, k)))

    def three_branches(v, p, i, k):
        zeros = lambda v: jnp.zeros(v.shape, v.dtype)
        return lax.switch(i, [lambda v: fill(v, k), lambda v: v, zeros], v)

    def nested(v, p, i, k):
        inner = lambda v: lax.cond(i > 1, lambda v: fill(v, k), lambda v: v, v)
        return lax.cond(p, inner, lambda v: fill(v, k), v)

    def all_filled_inside(v, p, i, k):
        inner = lambda v: lax.cond(i > 1, lambda v: fill(v, k), lambda v: fill(v, k), v)
        return lax.cond(p, inner, lambda v: v, v)

    def jit_inside(v, p, i, k):
        filled = jax.jit(lambda v: fill(v, k))
        return jax.jit(lambda v: lax.cond(p, jax.jit(jnp.negative), filled, v))(v)

    def checkpoint(v, p, i, k):
        filled = jax.checkpoint(lambda v: fill(v, k))
        return jax.checkpoint(lambda v: lax.cond(p, filled, lambda v: v, v))(v)

    def rule_in_a_branch(v, p, i, k):
        filled = lambda v: fill(v, k)
        return lax.cond(p, same, filled, v), lax.cond(p, filled, alike, v)

    def branches_in_a_rule(v, p, i, k):
        own = jax.custom_jvp(lambda v: two_branches(v, p, i, 2.5))
        own.defjvps(lambda t, out, v: 2 * t)
        return own(v)

    def from_outside(v, p, i, k):
        filled = fill(v, k)
        anew = lax.scan(lambda c, _: (filled, c), v, None, length=2)
        return lax.cond(p, lambda v: v, lambda v: filled, v), anew

    def carry(v, p, i, k):
        return lax.scan(lambda c, _: (v, None), fill(v, k), None, length=2)[0]

    def carry_that_grows(v, p, i, k):
        return lax.fori_loop(0, 2, lambda _, c: c + v, fill(v, k))

    def carry_that_starts_anew(v, p, i, k):
        return lax.scan(lambda c, _: (fill(v, k), c), v, None, length=2)

    def carry_with_a_branch(v, p, i, k):
        turn = lambda c, p: (lax.cond(p, lambda: v, lambda: c), None)
        return lax.scan(turn, fill(v, k), jnp.array([True, False]))[0]

    def carries_that_change_places(v, p, i, k):
        return lax.scan(lambda c, _: (c[::-1], None), (fill(v, k), v), None, length=3)[0]

    def unknown_length(v, p, i, k):
        inner = lambda _, c: lax.fori_loop(0, i, lambda _, c: v, c)
        return lax.fori_loop(0, i, inner, fill(v, k))

    def unknown_length_anew(v, p, i, k):
        turn = lambda s: (s[0] + 1, fill(v, k))
        return lax.while_loop(lambda s: s[0] < i, turn, (0, v))[1]

    def stacked(v, p, i, k):
        return lax.map(lambda p: two_branches(v, p, i, k), jnp.array([True, False]))

    def sliced(v, p, i, k):
        return lax.map(lambda row: two_branches(row, p, i, k), v)

    def where(v, p, i, k):
        return jnp.where(p, v, fill(v, k)), jnp.where(p, 0, v)

    def mapped(v, p, i, k):
        return jax.vmap(lambda p: two_branches(v, p, i, k))(jnp.array([True, False]))

    def rows_mapped(v, p, i, k):
        one = lambda row, p: two_branches(row, p, i, k)
        return jax.vmap(one)(v, jnp.array([True, False, True]))

    def then_summed(v, p, i, k):
        return jnp.sum(two_branches(v, p, i, k), axis=0)

    return {name: fn for name, fn in locals().items() if name != "fill"}


CHOICES = tuple(itertools.product((True, False), (0, 2)))


@functools.cache
def everything(fill):
    each = programs(FILLS[fill])
    return lambda *args: {name: fn(*args) for name, fn in each.items()}


@functools.cache
def on_arrays(fill):
    return jax.jit(everything(fill))


def parts(x):
    """Bounds on an array, and where it is missing."""
    if isinstance(x, (Tagged, Named, Unitful)):
        return parts(x.array)
    if isinstance(x, Masked):
        lower, upper, missing = parts(x.array)
        return lower, upper, missing | x.mask
    if isinstance(x, Interval):
        return parts(x.lower)[0], parts(x.upper)[1], jnp.zeros(x.shape, bool)
    if isinstance(x, Batched):
        return jax.vmap(parts)(x.element)
    dense = jaxrewrite.materialise(x)
    return dense, dense, jnp.zeros(dense.shape, bool)


_parts = jax.jit(
    lambda tree: jax.tree.map(
        parts, tree, is_leaf=lambda x: isinstance(x, jaxrewrite.Value)
    )
)


def agrees(got, want):
    lower, upper, missing = map(np.asarray, got)
    want = np.asarray(want)
    assert (lower.shape, lower.dtype) == (want.shape, want.dtype)
    scale = 1e-4 * np.maximum(np.abs(np.nan_to_num(want, posinf=0, neginf=0)), 1)
    inside = (lower <= want + scale) & (want - scale <= upper)
    unknown = np.isnan(lower) | (np.isneginf(lower) & np.isposinf(upper))
    return np.all(missing | inside | (np.isnan(want) & unknown))


def compare(got, want):
    for (path, w), g in zip(
        jax.tree.leaves_with_path(want),
        jax.tree.leaves(_parts(got), is_leaf=lambda x: type(x) is tuple and len(x) == 3),
        strict=True,
    ):
        assert agrees(g, w), jax.tree_util.keystr(path)


OFTEN = [
    *(
        (kind, "zeros")
        for kind in ("Tagged", "Masked Interval", "Unitful diagonal", "zero")
    ),
    *(
        ("Named diagonal", "any number"),
        ("constant", "ones"),
        ("Unitful lora", "infinities"),
    ),
    *(("Interval scaled_diagonal", "zeros like"), ("stack of Named", "weak zeros")),
]
ALL = often(list(itertools.product(KINDS, FILLS)), OFTEN)


@pytest.mark.parametrize("kind, fill", ALL)
def test_each_program_gives_what_it_does_on_arrays(kind, fill, bulk):
    value, fn = KINDS[kind](), everything(fill)
    program = jax.jit(transform(fn, materialise="allow"))
    args = jnp.array(True), jnp.array(1), jnp.float32(2.5)
    if "Unitful" in kind and fill in WITH_A_SCALE:
        with pytest.raises(UnitsError):  # These numbers are without units.
            program(value, *args)
        return
    dense = _parts(value)[0]
    for p, i in CHOICES:
        args = jnp.array(p), jnp.array(i), jnp.float32(2.5)
        compare(program(value, *args), on_arrays(fill)(dense, *args))


# What these kinds can't do without dense arrays, or in another type: to be sliced along rows, to be
# summed, and to grow.
_AS_A_WHOLE = {"sliced", "rows_mapped", "mapped", "then_summed"}
_UNCHANGED = {*_AS_A_WHOLE, "carry_that_grows"}
# A rule of an annotation is a program of its own, in which nothing is known of the zeros.
_ANNOTATED = {*_AS_A_WHOLE, "where"}
ZEROS_STAY = {
    **dict.fromkeys(("Tagged", "Named", "Masked", "Interval", "Unitful"), set()),
    **dict.fromkeys(("Named Unitful", "Unitful Named", "Named Masked"), set()),
    **dict.fromkeys(("Masked Interval", "Unitful Interval", "zero"), set()),
    **dict.fromkeys(("Tagged diagonal", "Named diagonal", "Unitful diagonal"), _ANNOTATED),
    **dict.fromkeys(("diagonal", "diagonal of Tagged", "Masked diagonal"), _AS_A_WHOLE),
    **dict.fromkeys(("Tagged Named diagonal", "Tagged Unitful diagonal"), {"sliced"}),
    **dict.fromkeys(("scaled", "scaled of Tagged"), {"carry_that_grows"}),
    **dict.fromkeys(("low_rank", "sum of matrices", "kronecker", "lora"), _UNCHANGED),
    **dict.fromkeys(("constant", "stack of diagonals"), {"mapped", "rows_mapped"}),
    "Tagged zero": {"mapped", "rows_mapped", "where"},
    "quantised": {"carry_that_grows", "then_summed"},
    "scaled_diagonal": _UNCHANGED,
    "Interval scaled_diagonal": {*_UNCHANGED, "where"},
    # Nothing negates a `Batched`.
    **dict.fromkeys(
        ("stack of constants", "stack of Named"), {*_UNCHANGED, "no_operands", "jit_inside"}
    ),
}


def types(x):
    inner = getattr(x, "array", getattr(x, "lower", None))
    return type(x), type(inner) if isinstance(inner, jaxrewrite.Value) else None


@pytest.mark.parametrize(
    "kind",
    often(
        ZEROS_STAY,
        [
            "Masked",
            "zero",
            "Tagged Unitful diagonal",
            "scaled of Tagged",
            "stack of constants",
        ],
    ),
)
def test_zeros_become_values_where_the_type_can_be_zero(kind):
    value = KINDS[kind]()
    args = jnp.array(True), jnp.array(1), jnp.float32(2.5)
    fns = programs(FILLS["zeros"])
    chosen = {name: fn for name, fn in fns.items() if name not in ZEROS_STAY[kind]}
    program = lambda *args: {name: fn(*args) for name, fn in chosen.items()}
    got = jax.eval_shape(transform(program, materialise="forbid"), value, *args)
    for name, results in got.items():
        for x in jax.tree.leaves(
            results, is_leaf=lambda x: isinstance(x, jaxrewrite.Value)
        ):
            # Where two annotations meet, the outer one of the two types is outside.
            assert {*types(x)} == {*types(value)}, name


def test_zeros_inside_of_two_annotations_become_the_matrix():
    value = KINDS["Tagged Unitful diagonal"]()
    program = lambda p, v: lax.cond(p, lambda v: v, lambda v: jnp.zeros(v.shape), v)
    got = jax.eval_shape(transform(program, materialise="forbid"), jnp.array(True), value)
    assert types(got) == types(value)


class Own(jaxrewrite.ArrayValue):
    """It declares nothing about zeros."""

    x: jax.Array
    s: jax.Array

    def materialise(self):
        return self.x * self.s


class Shifted(Own):
    def materialise(self):
        return self.x + 1 + 0 * self.s


class Negative(Own):
    def materialise(self):
        return -self.x * self.s


class FromOne(Own):
    """Zero is at one."""

    def materialise(self):
        return (self.x - 1) * self.s

    def join(self, other):
        if not isinstance(other, Zeros):
            return NotImplemented
        return self, FromOne(jnp.ones_like(self.x), jnp.zeros_like(self.s))


class Raised(Own):
    def materialise(self):
        return self.x + self.s


class RaisedByOne(jaxrewrite.ArrayValue):
    """It is zero in another type alone."""

    x: jax.Array

    def materialise(self):
        return self.x + 1

    def join(self, other):
        raised = Raised(self.x, jnp.float32(1))
        if isinstance(other, Zeros):
            return raised, Raised(jnp.zeros_like(self.x), jnp.float32(0))
        return (raised, other) if isinstance(other, Raised) else NotImplemented


class Dated(jaxrewrite.ArrayValue):
    """It is never dense, and computes with the array that it joins."""

    x: jax.Array
    date: int = jaxrewrite.field(static=True)
    outer = 5

    def aval(self):
        return jax.core.ShapedArray(self.x.shape, self.x.dtype)

    def materialise(self):
        raise TypeError("it has a date.")

    def join(self, other):
        if isinstance(other, Dated):
            return NotImplemented
        return self, Dated(1 * other, self.date)


FORMATS = {
    **{f"{bits} bits": functools.partial(Quantised.quantise, bits=bits) for bits in (3, 4)},
    "not symmetric": functools.partial(Quantised.quantise, bits=6, symmetric=False),
    "NF4": functools.partial(NF4.quantise, block=3),
    "Float8": Float8.quantise,
    "Microscaled": functools.partial(Microscaled.quantise, block=(3, 1)),
}


@pytest.mark.parametrize("shape", [(3, 4), (6, 3)], ids=["in rows", "in columns"])
@pytest.mark.parametrize("name", FORMATS)
def test_zeros_become_weights_of_few_bits(name, shape):
    """Neighbours share bytes, a code other than zero may stand for zero, and no zero is negative."""
    v = FORMATS[name](jnp.arange(1.0, math.prod(shape) + 1).reshape(shape))

    def program(p, v):
        zeros = jnp.zeros(shape)
        chosen = lax.cond(p, lambda: v, lambda: zeros)
        return chosen, lax.fori_loop(0, jnp.where(p, 2, 0), lambda i, c: v, zeros)

    of_batch = jax.vmap(transform(program, materialise="forbid"), (0, None))
    for got in of_batch(jnp.array([True, False]), v):
        assert type(got) is type(v)
        chosen, zeros = got.materialise()
        np.testing.assert_array_equal(chosen, v.materialise())
        np.testing.assert_array_equal(zeros, jnp.zeros(shape))
        assert not jnp.signbit(zeros).any()


def test_gradients_of_weights_of_few_bits_beside_zeros():
    v = NF4.quantise(jnp.arange(1.0, 13.0).reshape(3, 4), block=3)
    program = lambda p, v: lax.cond(p, lambda: 2 * v, lambda: jnp.zeros(v.shape))
    implicit = transform(program, materialise="forbid")
    total = lambda fn: lambda p, v: (W[:, :1] * jaxrewrite.materialise(fn(p, v)) ** 2).sum()
    of_dense = lambda p, v: program(p, v.materialise())
    for p in (True, False):
        got, wanted = (
            jax.grad(total(fn), 1, allow_int=True)(jnp.array(p), v)
            for fn in (implicit, of_dense)
        )
        np.testing.assert_allclose(got.scale_scale, wanted.scale_scale, rtol=1e-6)
        np.testing.assert_allclose(got.scale_mean, wanted.scale_mean, rtol=1e-6)


@pytest.mark.parametrize("kind", ["diagonal", "lora", "quantised", "Tagged diagonal"])
def test_a_value_that_is_always_zero_takes_the_structure_of_another(kind):
    value = KINDS[kind]()
    choose = lambda p, v, w: lax.cond(p, lambda: v, lambda: w)
    implicit = transform(choose, materialise="forbid")
    for p in (True, False):
        got = implicit(jnp.array(p), value, Zero((3, 3)))
        assert types(got) == types(value)
        wanted = jaxrewrite.materialise(value) * p
        np.testing.assert_array_equal(_parts(got)[0], _parts(wanted)[0])


def without_date(x):
    return x.x if isinstance(x, Dated) else x


@pytest.mark.parametrize(
    "value, kept",
    [
        (Own(W, jnp.float32(2)), Own),
        (Shifted(W, jnp.float32(2)), jax.Array),
        (Negative(W, jnp.float32(2)), jax.Array),
        (FromOne(W + 1, jnp.float32(2)), FromOne),
        (Dated(W, 3), Dated),
        (Dated(Diagonal(W[0]), 3), Dated),
        (Own(Dated(W, 3), jnp.float32(2)), Own),
    ],
    ids=[
        *("zero", "not zero", "negative zero", "zero at one"),
        *("never dense", "around a diagonal", "around one"),
    ],
)
def test_types_of_users_need_no_declaration(value, kept):
    def program(v, p):
        zeros = jnp.zeros((3, 3))
        carry = lax.fori_loop(0, 2, lambda _, c: v, zeros)
        return carry, lax.cond(p, lambda v: v, lambda v: zeros, v)

    for p in (True, False):
        got = transform(program, materialise="allow")(value, jnp.array(p))
        assert all(isinstance(x, kept) for x in got)
        for x, is_zero in zip(got, (False, not p), strict=True):
            x = dataclasses.replace(x, x=without_date(x.x)) if kept is Own else x
            assert bool((jaxrewrite.materialise(without_date(x)) == 0).all()) == is_zero


def test_a_matrix_inside_stays_one_where_a_type_becomes_one_that_can_be_zero():
    value = RaisedByOne(Diagonal(W[0]))
    program = lambda p, v: lax.cond(p, lambda: v, lambda: jnp.zeros((3, 3)))
    for p in (True, False):
        got = transform(program, materialise="forbid")(jnp.array(p), value)
        assert (type(got), type(got.x)) == (Raised, Diagonal)
        wanted = jnp.where(p, jnp.diag(W[0]) + 1, 0)
        np.testing.assert_array_equal(jaxrewrite.materialise(got), wanted)


def weighted(tree):
    """A number that depends on all entries of all arrays."""
    weights = lambda x: jnp.broadcast_to(W if x.ndim > 1 else W[0], x.shape)
    return sum(
        (weights(x) * x).sum() / (n + 1) for n, x in enumerate(jax.tree.leaves(tree))
    )


def there(x):
    """The numbers of an array, and 0 where it is missing: what is there may be anything."""
    array, _, missing = parts(x)
    return jnp.where(missing, 0, array)


def with_derivatives(fill):
    fns = programs(FILLS[fill])
    return {name: fn for name, fn in fns.items() if not name.startswith("unknown")}


SMOOTH = [k for k in KINDS if not {"Interval", "identity", "zero"} & set(k.split())]
OF_LEAVES = [
    *(("Tagged diagonal", "zeros"), ("Unitful", "zeros"), ("low_rank", "any number")),
    ("Named Masked", "zeros"),
]


@pytest.mark.parametrize(
    "kind, fill",
    often(itertools.product(SMOOTH, ("zeros", "infinities", "any number")), OF_LEAVES),
)
def test_gradients_by_leaves(kind, fill, bulk):
    """Of a value that one branch alone returns, or one turn."""
    if (
        "Unitful" in kind
        and fill in WITH_A_SCALE
        or "Masked" in kind
        and fill == "infinities"
    ):
        pytest.skip("these numbers have no units, or are not finite under a mask")
    value, fns = KINDS[kind](), with_derivatives(fill)
    leaves, treedef = jax.tree.flatten(value)
    is_free = [jnp.issubdtype(leaf.dtype, jnp.inexact) for leaf in leaves]
    free = [leaf for leaf, own in zip(leaves, is_free, strict=True) if own]

    def whole(free):
        rest = iter(free)
        pairs = zip(leaves, is_free, strict=True)
        return treedef.unflatten([next(rest) if own else leaf for leaf, own in pairs])

    def of_value(free, *args):
        program = lambda v: {name: fn(v, *args) for name, fn in fns.items()}
        results = transform(program, materialise="allow")(whole(free))
        is_value = lambda x: isinstance(x, jaxrewrite.Value)
        arrays = jax.tree.map(there, results, is_leaf=is_value)
        missing = jax.tree.map(lambda x: parts(x)[2], results, is_leaf=is_value)
        return weighted(arrays), missing

    def of_array(free, missing, *args):
        dense = there(whole(free))
        results = {name: fn(dense, *args) for name, fn in fns.items()}
        return weighted(jax.tree.map(lambda x, m: jnp.where(m, 0, x), results, missing))

    got, want = jax.jit(jax.grad(of_value, has_aux=True)), jax.jit(jax.grad(of_array))
    for p, i in CHOICES[:3]:
        args = jnp.array(p), jnp.array(i), jnp.float32(2.5)
        slopes, missing = got(free, *args)
        for g, w in zip(slopes, want(free, missing, *args), strict=True):
            np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-3)


WITHIN = [k for k in SMOOTH if not {"Masked", "quantised", "Unitful"} & set(k.split())]


@pytest.mark.parametrize("kind", often(WITHIN, ["Named diagonal", "scaled"]))
def test_gradients_within_the_program(kind, bulk):
    value, fns = KINDS[kind](), with_derivatives("zeros")
    dense = parts(value)[0]

    def gradients(v, *args):
        return jax.grad(
            lambda v: weighted({name: fn(v, *args) for name, fn in fns.items()})
        )(v)

    program = jax.jit(transform(gradients, materialise="allow"))
    for p, i in CHOICES[:3]:
        args = jnp.array(p), jnp.array(i), jnp.float32(2.5)
        compare(program(value, *args), jax.jit(gradients)(dense, *args))


SHAPES = [(), (0, 3), (3,), (1, 1), (2, 3, 3)]
DTYPES = ["int32", "bool", "bfloat16", "complex64", "float16"]


@pytest.mark.parametrize("shape, dtype", every(6, list(itertools.product(SHAPES, DTYPES))))
def test_zeros_of_all_shapes_and_dtypes(shape, dtype, bulk):
    x, names = jnp.ones(shape, dtype), "abc"[: len(shape)]
    annotated = [Tagged(x, "t"), Named(x, names), Masked(x, jnp.zeros(shape, bool))]
    annotated += [Zero(shape, dtype), Constant(jnp.ones((), dtype), shape)]
    annotated += [Tagged(Zero(shape, dtype), "t"), Named(Tagged(x, "t"), names)]
    if dtype != "complex64":
        annotated.append(Interval(x, x))
    if jnp.issubdtype(dtype, jnp.inexact):
        annotated.append(Unitful(x, "m"))

    def program(p, v):
        zeros = lambda: jnp.zeros(shape, dtype)
        branch = lambda p: lax.cond(p, lambda: v, zeros)
        carry = lax.fori_loop(0, 2, lambda _, c: v, zeros())
        anew = lax.scan(lambda c, _: (zeros(), c), v, None, length=2)
        return branch(p), carry, anew, jnp.where(p, v, zeros()), jax.vmap(branch)(p[None])

    p = jnp.array(False)
    got = jax.jit(lambda *vs: [transform(program, materialise="allow")(p, v) for v in vs])
    is_value = lambda x: isinstance(x, jaxrewrite.Value)
    for own, v in zip(got(*annotated), annotated, strict=True):
        own = jax.tree.map(lambda x: _parts(x)[0], own, is_leaf=is_value)
        want = program(p, _parts(v)[0])
        jax.tree.map(np.testing.assert_array_equal, own, want)


SPLIT = ["Tagged", "Masked", "Unitful", "LowRank", "Scaled", "Zero", "Tagged Diagonal"]


@pytest.mark.parametrize("kind", often(SPLIT, ["Masked", "LowRank"]))
def test_zeros_lie_on_a_mesh_as_the_value_does(kind):
    """Their leaves are split as those of the value, or vary as they do."""
    x = jnp.arange(16.0).reshape(4, 4)
    made = {
        "LowRank": lambda: LowRank(x[:, :1], x[:1]),
        "Zero": lambda: Zero((4, 4)),
        "Tagged Diagonal": lambda: Tagged(Diagonal(x[1]), "t"),
        "Tagged": lambda: Tagged(x, "t"),
        "Masked": lambda: Masked(x, x > 3),
        "Unitful": lambda: Unitful(x, "m"),
        "Scaled": lambda: Scaled(x, jnp.float32(2)),
    }
    value = made[kind]()
    rows = jax.P("i")

    def program(p, v, zeros):
        branch = lax.cond(p, lambda: v, zeros)
        return branch, lax.fori_loop(0, 2, lambda _, c: v, zeros())

    mesh = jax.make_mesh((4,), ("i",), axis_types=(AxisType.Explicit,))
    p = jnp.array(False)
    with jax.set_mesh(mesh):
        split = lambda x: (
            jax.device_put(x, rows) if x.shape[:1] == (4,) and x.ndim > 1 else x
        )
        own = jax.tree.map(split, value)
        zeros = lambda: jnp.zeros((4, 4), out_sharding=None if kind == "Zero" else rows)
        got = transform(lambda p, v: program(p, v, zeros), materialise="allow")(p, own)
        compare(got, (jnp.zeros((4, 4)), _parts(value)[0]))

    def on_shards(v):
        one = lambda v: program(lax.axis_index("i") > 1, v, lambda: jnp.zeros_like(v))[0]
        return jax.shard_map(one, in_specs=rows, out_specs=rows)(v)

    with jax.set_mesh(jax.make_mesh((4,), ("i",), axis_types=(AxisType.Auto,))):
        got = transform(on_shards, materialise="allow")(value)
        compare(got, on_shards(_parts(value)[0]))


PAIRS = list(itertools.combinations(KINDS, 2))


@pytest.mark.parametrize("one, other", every(60, PAIRS))
def test_zeros_between_values_of_two_types(one, other):
    v, w = KINDS[one](), KINDS[other]()
    if v.shape != w.shape or "Unitful" in one + other:
        pytest.skip("arrays of two shapes, or of two units")

    def program(i, v, w):
        zeros = lambda: jnp.zeros(v.shape)
        inner = lambda j, c: lax.cond(j > 0, lambda: c, zeros)
        turn = lambda j, c: lax.cond(j > 1, lambda: v, lambda: inner(j, c))
        switched = lax.switch(i, [lambda: v, lambda: w, zeros])
        return switched, lax.fori_loop(0, i, turn, w)

    got = jax.eval_shape(transform(program, materialise="allow"), jnp.array(1), v, w)
    assert all(x.shape == v.shape for x in got)


class PlusExponential(ArrayValue):
    """``x + exp(y)``, which is not zero where its leaves are."""

    x: jax.Array
    y: jax.Array

    def materialise(self):
        return self.x + jnp.exp(self.y)

    def join(self, other):
        if isinstance(other, jaxrewrite.Value):
            return NotImplemented
        return self, PlusExponential(other, jnp.full_like(self.y, -jnp.inf))


def test_zeros_that_a_join_puts_into_a_field_take_the_structure_of_the_field():
    v = PlusExponential(Diagonal(jnp.arange(3.0)), jnp.ones((3, 3)))
    choose = lambda p, v: jnp.where(p, v, jnp.zeros_like(v))
    got = transform(choose, materialise="forbid")(jnp.array(False), v)
    assert types(got) == types(v)
    np.testing.assert_array_equal(got.materialise(), jnp.zeros((3, 3)))


class Noisy(ArrayValue):
    x: jax.Array
    key: jax.Array

    def materialise(self):
        return self.x * jax.random.normal(self.key, self.x.shape)


def test_zeros_stay_zeros_beside_a_value_with_a_key():
    v = Noisy(jnp.ones(3), jax.random.key(0))
    choose = lambda p, v: lax.cond(p, lambda: v, lambda: jnp.zeros(3))
    implicit = transform(choose, materialise="allow")
    np.testing.assert_allclose(implicit(jnp.array(True), v), v.materialise(), rtol=1e-6)
    np.testing.assert_array_equal(implicit(jnp.array(False), v), jnp.zeros(3))


def chosen(p, v, other):
    return jnp.where(p, v, other)


def within_a_rule(p, v, other):
    fn = jax.custom_jvp(chosen)
    fn.defjvp(lambda primals, tangents: (fn(*primals), tangents[1]))
    return fn(p, v, other)


BODIES = {
    "call": chosen,
    "call in a call": jax.jit(chosen),
    "checkpoint": jax.checkpoint(chosen),
    "custom rule": within_a_rule,
    "branch": lambda p, v, other: lax.cond(
        p, lambda: chosen(p, v, other), lambda: chosen(~p, v, other)
    ),
    "turns": lambda p, v, other: lax.scan(
        lambda c, p: (chosen(p, c, other), None), v, p[None]
    )[0],
    "turns of any number": lambda p, v, other: lax.while_loop(
        lambda c: c[0] < p, lambda c: (c[0] + 1, chosen(p, c[1], other)), (0, v)
    )[1],
}


@pytest.mark.parametrize("kind", ["lora", "diagonal", "quantised"])
@pytest.mark.parametrize("body", BODIES)
def test_a_body_knows_the_zeros_of_the_program_around_it(body, kind):
    value, p = KINDS[kind](), jnp.arange(2)[1] > 0
    fn = lambda p, v: BODIES[body](p, v, jnp.zeros_like(v))
    got = jax.eval_shape(transform(fn, materialise="forbid"), p, value)
    assert types(got) == types(value)


def test_a_body_forgets_the_zeros_of_another_call():
    value, other = KINDS["lora"](), jnp.full((3, 3), 2.0)

    @jax.jit
    def chosen(p, v, other):
        return jnp.where(p, v, other)

    def fn(p, v, other):
        return chosen(p, v, jnp.zeros_like(v)), chosen(p, v, other)

    for p in jnp.array([True, False]):
        kept, dense = transform(fn, materialise="allow")(p, value, other)
        assert types(kept) == types(value) and isinstance(dense, jax.Array)
        want = fn(p, value.materialise(), other)
        np.testing.assert_allclose(kept.materialise(), want[0], rtol=1e-6)
        np.testing.assert_allclose(dense, want[1], rtol=1e-6)


@pytest.mark.parametrize(
    "kind, becomes",
    [
        ("identity", ScalarMatrix),
        ("permutation", Product),
        ("one_hot", Picked),
        ("one_hot_transposed", Picked),
    ],
)
@pytest.mark.parametrize("how", ["cond", "where"])
def test_a_matrix_that_is_never_zero_becomes_one_that_can_be(kind, becomes, how):
    value = CASES[kind].value(np.random.default_rng(0), shape=(3, 4))

    def fn(p, v):
        zeros = jnp.zeros_like(v)
        if how == "where":
            return jnp.where(p, v, zeros)
        return lax.cond(p, lambda: v, lambda: zeros)

    for p in jnp.array([True, False]):
        got = transform(fn, materialise="forbid")(p, value)
        assert type(got) is becomes
        np.testing.assert_array_equal(got.materialise(), fn(p, value.materialise()))


CHOICES_OF_TWO = {
    "select": lax.select,
    "where": jnp.where,
    "branch": lambda p, v, zeros: lax.cond(p, lambda: v, lambda: zeros),
    "carry": lambda p, v, zeros: lax.scan(
        lambda c, _: (jnp.where(p, v, c), None), zeros, None, length=2
    )[0],
}


@pytest.mark.parametrize("kind", ["lora", "diagonal", "Unitful", "Masked diagonal"])
@pytest.mark.parametrize("how", CHOICES_OF_TWO)
@pytest.mark.parametrize("is_forward", [True, False])
def test_zeros_that_have_a_gradient_stay_an_array(how, kind, is_forward):
    """A function with a rule may return zeros, and pass cotangents on."""
    if is_forward:
        zeros = jax.custom_jvp(lambda x: jnp.zeros_like(x))
        zeros.defjvp(lambda primals, tangents: (zeros(*primals), 2 * tangents[0]))
    else:
        zeros = jax.custom_vjp(lambda x: jnp.zeros_like(x))
        zeros.defvjp(lambda x: (jnp.zeros_like(x), None), lambda _, g: (2 * g,))
    value, p = KINDS[kind](), jnp.arange(2)[1] < 0
    fn = lambda v, x: CHOICES_OF_TWO[how](p, v, zeros(x))
    loss = lambda x: parts(transform(fn, materialise="allow")(value, x))[0].sum()
    got = jax.jit(jax.grad(loss))(jnp.ones(value.shape))
    np.testing.assert_array_equal(got, jnp.full(value.shape, 2.0))


def test_a_power_that_a_call_is_given_is_known_to_the_matrix_inside():
    value = KINDS["Unitful diagonal"]()
    power = jax.jit(lambda v, n: v**n)
    got = jax.eval_shape(transform(lambda v: power(v, 2), materialise="forbid"), value)
    assert types(got) == types(value) and got.units == value.units**2


NEGATIVE = {
    "branch": lambda p, v, zeros: lax.cond(p, lambda: v, lambda: zeros),
    "choice": lambda p, v, zeros: jnp.where(p, v, zeros),
    "carry": lambda p, v, zeros: lax.scan(
        lambda c, _: (jnp.where(p, v, c), None), zeros, None, length=2
    )[0],
}


@pytest.mark.parametrize("kind", ["lora", "low_rank", "diagonal", "scaled"])
@pytest.mark.parametrize("how", NEGATIVE)
def test_negative_zeros_stay_negative(how, kind):
    """A program may divide by them. A matrix whose leaves are zero has positive ones."""
    value, p = KINDS[kind](), jnp.arange(2)[1] < 0
    fn = lambda v: 1 / NEGATIVE[how](p, v, jnp.full(v.shape, -0.0))
    got = jaxrewrite.materialise(transform(fn, materialise="allow")(value))
    np.testing.assert_array_equal(got, jnp.full(value.shape, -jnp.inf))

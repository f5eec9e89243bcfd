"""Rules for whole functions that JAX stages as calls."""

import functools
import types
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import extend, lax
from jax.experimental.layout import Format, Layout
from jaxtyping import Array, ArrayLike, Float, Shaped

import jaxrewrite
from jaxrewrite import materialise
from jaxrewrite._functions.traced import only_call
from jaxrewrite.values import Tagged, Unitful


class Twice(jaxrewrite.ArrayValue):
    """Twice an array."""

    half: Array

    def materialise(self):
        return 2 * self.half

    def sliceable(self):
        return self

    def lift_tangent(self, tangent):
        return Twice(tangent / 2)


class Diagonal(jaxrewrite.ArrayValue):
    """A diagonal matrix, which can't hold any tangent, and never becomes dense silently."""

    entries: Array

    def materialise(self):
        return self.entries[..., None] * jnp.eye(self.entries.shape[-1])


X = jnp.array([[1.0, 2.0, 3.0], [0.5, 3.0, -1.0], [2.0, -2.0, 4.0]])
V = Twice(X)


@functools.partial(jax.jit, static_argnames=("axis", "keepdims"))
def total(x, axis=None, keepdims=False):
    return jnp.sum(jnp.sin(x) * x, axis=axis, keepdims=keepdims)


@jax.jit
def layer(params, inputs, *, scale=1.0):
    hidden = jnp.tanh(inputs @ params["w"]) * scale
    return {"hidden": hidden, "size": jnp.sum(params["b"] * scale)}


@jax.custom_jvp
def soft(x, y):
    return jnp.log1p(jnp.exp(x)) * y


@soft.defjvp
def _(primals, tangents):
    (x, y), (dx, dy) = primals, tangents
    return soft(x, y), jax.nn.sigmoid(x) * y * dx + soft(x, jnp.ones_like(y)) * dy


@jax.custom_vjp
def clipped(x):
    return x * 3, x.sum(-1)


clipped.defvjp(lambda x: (clipped(x), x), lambda x, ct: (jnp.clip(ct[0], -1, 1) * 3,))


@pytest.fixture
def asked():
    return []


@pytest.fixture
def rules(asked):
    """Rules that compute what the functions do, on the arrays inside."""
    table = jaxrewrite.Rules()

    @table.register(total)
    def of_total(v: Twice, *, axis: int | tuple[int, ...] | None, keepdims: bool):
        asked.append(("total", axis, keepdims))
        return total(2 * v.half, axis=axis, keepdims=keepdims)

    @table.register(layer)
    def of_layer(b: ArrayLike, w: Shaped[Twice, "n m"], inputs: ArrayLike, s: ArrayLike):
        asked.append("layer")
        found = layer({"w": 2 * w.half, "b": b}, inputs, scale=s)
        return {"hidden": found["hidden"], "size": found["size"]}

    @table.register(layer)
    def of_layer_without_scale(b: ArrayLike, w: Shaped[Twice, "n m"], inputs: ArrayLike):
        asked.append("layer, no scale")
        return layer({"w": 2 * w.half, "b": b}, inputs)

    @table.register(soft)
    def of_soft(x: Twice, y: ArrayLike):
        asked.append("soft")
        return Twice(soft(2 * x.half, y) / 2)

    @table.register(clipped)
    def of_clipped(x: Shaped[Twice, " n"]):
        asked.append("clipped")
        return Twice(x.half * 3), (2 * x.half).sum(-1)

    @table.register(jnp.linalg.det)
    def of_det(v: Diagonal):
        asked.append("det")
        return v.entries.prod(-1)

    @table.register(jnp.linalg.slogdet)
    def of_slogdet(v: Twice):
        asked.append("slogdet")
        return jnp.linalg.slogdet(2 * v.half)

    @table.register(jax.scipy.linalg.cholesky)
    def of_cholesky(v: Twice, *, lower: bool):
        asked.append(("cholesky", lower))
        return Twice(jax.scipy.linalg.cholesky(2 * v.half, lower=lower) / 2)

    @table.register(jax.nn.relu)
    def of_relu(v: Twice):
        asked.append("relu")
        return Twice(jax.nn.relu(v.half))

    @table.register(jnp.std)
    def of_std(v: Twice, correction: ArrayLike, *, axis: int | None):
        asked.append(("std", axis))
        return 2 * jnp.std(v.half, axis=axis, correction=correction)

    return table


def check(rules, fn, *args, policy="forbid"):
    """Compare a program with its own results on dense arrays; return the former."""
    got = jaxrewrite.transform(fn, rules=rules, materialise=policy)(*args)
    want = fn(*materialise(args))
    for mine, other in zip(
        jax.tree.leaves(materialise(got)), jax.tree.leaves(want), strict=True
    ):
        assert mine.shape == other.shape and mine.dtype == other.dtype
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-5)
    return got


POSITIVE = Twice(X @ X.T + jnp.eye(3))

DIRECT = [
    (lambda v: total(v), V, ("total", None, False)),
    (lambda v: total(v, axis=0), V, ("total", 0, False)),
    (lambda v: total(v, -1, keepdims=True), V, ("total", 1, True)),
    (lambda v: total(v, axis=(0, 2)), Twice(jnp.stack([X, X])), ("total", (0, 2), False)),
    (lambda v: layer({"w": v, "b": X}, X), V, "layer, no scale"),
    (lambda v: layer({"w": v, "b": X}, X, scale=2.0)["size"], V, None),
    (lambda v: layer({"w": v, "b": X}, X, scale=X[0])["hidden"], V, None),
    (lambda v: layer({"w": v, "b": X}, X, scale=X[0]), V, "layer"),
    (lambda v: layer(inputs=X, params={"b": X[0], "w": v}, scale=2), V, "layer"),
    (lambda v: soft(v, X), V, "soft"),
    (lambda v: clipped(v), Twice(X[0]), "clipped"),
    (lambda v: clipped(v)[1], Twice(X[0]), "clipped"),
    (lambda v: jnp.linalg.det(v), Diagonal(X[0]), "det"),
    (lambda v: jnp.linalg.slogdet(v), V, "slogdet"),
    (lambda v: jnp.linalg.slogdet(v)[1], V, "slogdet"),
    (lambda v: jax.scipy.linalg.cholesky(v), POSITIVE, ("cholesky", False)),
    (lambda v: jax.scipy.linalg.cholesky(v, lower=True), POSITIVE, ("cholesky", True)),
    (lambda v: jax.nn.relu(v), V, "relu"),
    (lambda v: jnp.std(v), V, ("std", None)),
    (lambda v: jnp.std(v, axis=0, ddof=1), V, ("std", 0)),
]


@pytest.mark.parametrize("fn, v, name", DIRECT)
def test_calls_are_answered(rules, asked, fn, v, name):
    # Where JAX dropped an operand, the call is left as it is.
    check(rules, fn, v, policy="forbid" if name else "allow")
    assert asked == ([name] if name else [])


def test_several_axes_are_one_argument(rules, asked):
    check(rules, lambda v: total(v, axis=(0, 2)), Twice(jnp.stack([X, X])))
    assert asked == [("total", (0, 2), False)]


AROUND = {
    "jit": lambda fn: jax.jit(fn),
    "twice jitted": lambda fn: jax.jit(lambda v: jax.jit(fn)(v)),
    "remat": lambda fn: jax.checkpoint(fn),
    "scan": lambda fn: lambda v: lax.scan(lambda c, _: (c, fn(v)), 0.0, None, length=2)[1],
    "cond": lambda fn: (
        lambda v: lax.cond(
            X[0, 0] > 0, fn, lambda v: jax.tree.map(jnp.zeros_like, fn(v)), v
        )
    ),
    "while": lambda fn: (
        lambda v: lax.while_loop(
            lambda i: i[0] < 2, lambda i: (i[0] + 1, fn(v)), (0, fn(v))
        )
    ),
}


@pytest.mark.parametrize("around", AROUND)
def test_calls_inside_of_other_bodies(rules, asked, around):
    program = lambda v: total(v, axis=0) + jnp.linalg.slogdet(v)[1]
    check(rules, AROUND[around](program), V)
    assert {"slogdet", ("total", 0, False)} <= {*asked}


def test_transformations_around(rules):
    program = lambda v: soft(v, X) * total(v)
    run = jaxrewrite.transform(program, rules=rules, materialise="allow")
    dense = lambda x: program(2 * x).sum()
    got = jax.grad(lambda v: materialise(run(v)).sum())(V).half
    np.testing.assert_allclose(got, jax.grad(dense)(X), rtol=1e-4)
    stack = Twice(jnp.stack([X, 3 * X]))
    got = jax.jit(jax.vmap(lambda v: materialise(run(v))))(stack)
    np.testing.assert_allclose(got, jax.vmap(program)(2 * stack.half), rtol=1e-4)
    got = jax.jvp(lambda v: materialise(run(v)).sum(), (V,), (Twice(jnp.ones((3, 3))),))
    want = jax.jvp(dense, (X,), (jnp.ones((3, 3)),))
    np.testing.assert_allclose(got, want, rtol=1e-4)


# --- under jax.vmap in the program -----------------------------------------------------


STACK = Twice(jnp.stack([X, X + 1]))
STACKS = Twice(jnp.stack([STACK.half, -STACK.half, STACK.half + 2]))


@pytest.mark.parametrize(
    "fn, args, name",
    [
        (jax.vmap(lambda v: total(v, axis=0)), (STACK,), ("total", 1, False)),
        (jax.vmap(lambda v: total(v)), (STACK,), ("total", (1, 2), False)),
        (jax.vmap(clipped), (V,), "clipped"),
        (jax.vmap(jax.vmap(clipped)), (STACK,), "clipped"),
        (jax.vmap(jax.nn.relu), (STACK,), "relu"),
        (jax.vmap(jax.vmap(lambda v: soft(v, X))), (STACKS,), "soft"),
        (
            jax.vmap(lambda v, x: layer({"w": v, "b": X}, x), (0, None)),
            (STACK, X),
            "layer, no scale",
        ),
        (
            jax.vmap(lambda v, x: layer({"w": v, "b": X}, x), (None, 0)),
            (V, STACK.half),
            "layer, no scale",
        ),
        (
            jax.vmap(lambda v, x: layer({"w": v, "b": x}, x)),
            (jaxrewrite.stack([V, V]), STACK.half),
            "layer, no scale",
        ),
    ],
)
def test_under_vmap(rules, asked, fn, args, name):
    check(rules, fn, *args)
    assert asked == [name]


def test_some_of_four_operands_have_a_batch_axis(rules, asked):
    mixed = jax.jit(lambda x, a, b, c: jnp.sum(jnp.sin(x)) * a + b * c)

    @rules.register(mixed)
    def _(x: Twice, a, b, c):
        asked.append((x.shape, jnp.shape(b)))
        return jnp.sum(jnp.sin(2 * x.half)) * a + b * c

    check(rules, jax.vmap(mixed, (0, None, 0, None)), V, 2.0, X, X[0])
    assert asked == [((3,), (3,))]


def test_all_of_five_operands_have_a_batch_axis(rules, asked):
    mixed = jax.jit(lambda x, a, b, c, d: jnp.sum(jnp.sin(x)) * a + b * c - d)

    @rules.register(mixed)
    def _(x: Twice, a, b, c, d):
        asked.append((x.shape, jnp.shape(b)))
        return jnp.sum(jnp.sin(2 * x.half)) * a + b * c - d

    check(rules, jax.vmap(mixed), V, X[0], X, X[1], X + 1)
    assert asked == [((3,), (3,))]


def test_rows_that_are_no_values_are_rows_of_the_array(rules, asked):
    @jax.jit
    def shared(x):
        return x / jnp.sum(jnp.abs(x))  # Of all rows at once it is another result.

    @rules.register(shared)
    def _(v: Twice | Diagonal):
        asked.append(type(v))
        return v.materialise() / jnp.sum(jnp.abs(v.materialise()))

    check(rules, jax.vmap(shared), V)
    assert asked == [Twice]
    check(rules, jax.vmap(shared), Diagonal(X[1]), policy="allow")
    assert asked == [Twice]


def test_a_result_without_a_batch_axis(rules, asked):
    @jax.custom_jvp
    def pair(x, y):
        return x * y, y + 1

    pair.defjvp(lambda primals, tangents: (pair(*primals), tangents))

    @rules.register(pair)
    def _(x: Twice, y: Float[Array, " n"]):
        asked.append("pair")
        return Twice(x.half * y), y + 1

    check(rules, jax.vmap(pair, (0, None)), V, X[0])
    check(rules, jax.vmap(jax.vmap(pair, (0, None)), (0, None)), STACK, X[0])
    assert asked == ["pair", "pair"]
    # A result that has one of the two axes.
    both = jax.vmap(jax.vmap(pair, (0, None)), (None, 0))
    check(rules, both, V, X, policy="allow")


@pytest.mark.parametrize("out_axes", [0, -1])
@pytest.mark.parametrize("axis, depth", [(0, 1), (1, 1), (-1, 1), (0, 2)])
def test_axes_of_a_stack_may_be_anywhere(rules, asked, axis, out_axes, depth):
    """JAX puts the axis of a result where that of the second operand is in a product."""

    @jax.jit
    def product(w, x):
        return 2 * (w @ x), x.T

    @rules.register(product)
    def _(w: Twice, x: Float[Array, "n m"]):
        asked.append(x.shape)
        return 4 * (w.half @ x), x.T

    stack = jnp.stack([X[:, :2] + k for k in range(4)], axis=axis)
    fn = jax.vmap(product, (None, axis), out_axes)
    if depth == 2:
        stack, fn = jnp.stack([stack, -stack]), jax.vmap(fn, (None, 0))
    check(rules, fn, V, stack)
    assert asked == [(3, 2)]


def test_a_product_is_mapped_in_the_way_that_a_rule_is_for(rules, asked):
    """The rows of the first operand could be mapped as well, with the same result."""
    product = jax.jit(lambda w, x: 2 * (w @ x))

    @rules.register(product)
    def _(w: Shaped[Twice, "n n"], x: Float[Array, "n m"]):
        asked.append((w.shape, x.shape))
        return 4 * (w.half @ x)

    stack = jnp.stack([X[:, :2] + k for k in range(4)])
    check(rules, jax.vmap(product, (None, 0)), V, stack)
    assert asked == [((3, 3), (3, 2))]


def test_a_call_with_a_result_in_another_order_is_not_whole():
    """The calls inside of it have their results in that order as well."""
    both = jax.jit(lambda w, x: (jnp.sin(x), w @ x))
    mapped = jax.make_jaxpr(jax.vmap(both, (None, 0)))(X, STACK.half)
    call = only_call(mapped.jaxpr, 1)
    assert call.orders == [(0, 1, 2), (1, 0, 2)] and not call.same
    assert not call.is_whole
    assert only_call(jax.make_jaxpr(both)(X, X).jaxpr).is_whole


@pytest.fixture
def transposable(rules):
    @rules.register("transpose")
    def _(v: Twice, **params):
        return Twice(jaxrewrite.bind("transpose", v.half, **params))

    return rules


PRODUCT = jax.jit(lambda w, x: w @ x)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_a_result_that_can_be_transposed_stays_implicit(transposable, axis):
    """The batch axis is the second one of the result."""

    @transposable.register(PRODUCT)
    def _(w: Twice, x: Float[Array, "n m"]):
        return Twice(w.half @ x)

    stack = jnp.stack([X[:, :2], -X[:, :2]], axis)
    assert isinstance(check(transposable, jax.vmap(PRODUCT, (None, axis)), V, stack), Twice)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_a_result_that_would_be_dense_if_transposed_is_no_answer(rules, asked, axis):
    @rules.register(PRODUCT)
    def _(w: Shaped[Twice, "n n"], x: Float[Array, "n n"]):
        asked.append("product")
        return Diagonal(jnp.diagonal(2 * w.half @ x))

    @rules.register("dot_general")
    def _(w: Twice, x: Array, **params):
        return Twice(jaxrewrite.bind("dot_general", w.half, x, **params))

    @rules.register("transpose")
    def _(v: Twice, **params):
        return Twice(jaxrewrite.bind("transpose", v.half, **params))

    inverse = jnp.linalg.inv(X)
    stack = jnp.stack([inverse, 2 * inverse], axis)
    assert isinstance(check(rules, jax.vmap(PRODUCT, (None, axis)), V, stack), Twice)
    assert isinstance(check(rules, PRODUCT, V, inverse), Diagonal)
    assert "product" in asked


@pytest.mark.parametrize("inner, outer", [(0, 2), (2, 2), (2, 0), (1, 3)])
def test_one_operand_has_the_axes_of_several_vmaps_anywhere(
    transposable, asked, inner, outer
):
    single = jax.jit(lambda v: jnp.cumsum(v, axis=0) / (1 + jnp.sum(v * v)))

    @transposable.register(single)
    def _(v: Twice):
        asked.append(v.shape)
        return single(2 * v.half)

    stack = jnp.arange(120.0).reshape(2, 3, 4, 5)
    check(transposable, jax.vmap(jax.vmap(single, inner), outer), Twice(stack))
    (shape,) = asked
    sizes = [2, 3, 4, 5]
    del sizes[outer], sizes[inner]
    assert shape == tuple(sizes)


def test_default_static_arguments_are_tried_along_all_axes(rules, asked):
    """There are more combinations than are tried."""

    @functools.partial(jax.jit, static_argnames=("axis", "mode", "flag"))
    def several(a, b, c, d, axis=0, mode="x", flag=False):
        y = jnp.sum(jnp.sin(a) @ b + c * d, axis=axis)
        return jnp.cos(y) if mode == "x" else y, y * 2 if flag else y

    @rules.register(several)
    def _(
        a: Twice,
        b: ArrayLike,
        c: ArrayLike,
        d: ArrayLike,
        *,
        axis: int,
        mode: Literal["x", "y", "z", "u", "v", "w", "p", "q"],
        flag: bool,
    ):
        asked.append((axis, mode, flag))
        return several(2 * a.half, b, c, d, axis=axis, mode=mode, flag=flag)

    stack = jnp.stack([X, X + 1], axis=1)
    check(rules, jax.vmap(several, (None, 1, 1, 1)), V, stack, stack, stack)
    assert asked == [(0, "x", False)]


def test_an_array_that_is_made_larger_is_not_the_same_for_all_elements():
    call = jax.jit(jnp.sin)

    def calls(fn, *args):
        return only_call(jax.make_jaxpr(fn)(*args).jaxpr, depth=1)

    assert calls(lambda x: jnp.broadcast_to(call(x), (4, 3, 3)), X).same == [0]
    assert calls(lambda x: jnp.broadcast_to(call(x)[:, None], (3, 4, 3)), X) is None
    assert calls(lambda x: jnp.broadcast_to(call(x), (4, 3, 3)), X[:1]) is None


@pytest.mark.parametrize("axis", [1, -1])
@pytest.mark.parametrize("outer, inner", [(Tagged, Unitful), (Unitful, Tagged)])
def test_annotations_around_each_other_have_the_axis_of_a_stack_anywhere(
    axis, outer, inner
):
    stack = jnp.moveaxis(jnp.stack([X, X + 1]), 0, axis)
    fn = jax.vmap(jnp.linalg.det, axis)
    words = {Tagged: "m", Unitful: "m"}
    result = jaxrewrite.transform(fn)(outer(inner(stack, words[inner]), words[outer]))
    plain = result.array if isinstance(result, Tagged) else result
    assert Unitful(1.0, "m^3").units in (plain.units, getattr(plain.array, "units", None))


@pytest.mark.parametrize("axis", [1, -1])
def test_annotations_have_the_axis_of_a_stack_anywhere(axis):
    stack = jnp.moveaxis(jnp.stack([X, X + 1]), 0, axis)
    fn = jax.vmap(jnp.linalg.det, axis)
    result = jaxrewrite.transform(fn)(Unitful(stack, "m"))
    assert result.units == Unitful(1.0, "m^3").units
    np.testing.assert_allclose(result.array, fn(stack), rtol=1e-4)


def test_a_rule_gives_stacks_of_values_for_any_axis(rules, asked):
    product = jax.jit(jnp.matmul)

    @rules.register(product)
    def _(x: Unitful, y: Float[Array, "n m"]):
        asked.append(y.shape)
        return Unitful(x.array @ y, x.units)

    stack = jnp.stack([X[:, :2], X[:, 1:]], axis=1)
    fn = jax.vmap(product, (None, 1), out_axes=2)
    result = jaxrewrite.transform(fn, rules=rules)(Unitful(X, "m"), stack)
    assert asked == [(3, 2)]
    assert result.units == Unitful(1.0, "m").units
    np.testing.assert_allclose(result.array, fn(X, stack), rtol=1e-5)


# --- under jax.jvp and jax.grad in the program -----------------------------------------


@pytest.mark.parametrize(
    "fn",
    [
        lambda v, x: jax.jvp(lambda x: contract(v, x), (x,), (x + 1,)),
        lambda v, x: jax.jvp(contract, (v, x), (x, x + 1)),
        lambda v, x: jax.jvp(lambda v: contract(v, x)[1], (v,), (x,)),
        lambda v, x: jax.jit(lambda v: jax.jvp(lambda y: contract(v, y), (x,), (x,)))(v),
    ],
)
def test_under_jvp(rules, asked, fn):
    register_contract(rules, asked)
    check(rules, fn, V, X, policy="allow")
    assert asked == ["contract"]


@jax.jit
def contract(x, y):
    return jnp.tanh(x @ y), jnp.sum(x * y)


def register_contract(rules, asked):
    @rules.register(contract)
    def _(x: Twice, y: ArrayLike):
        asked.append("contract")
        result, size = contract(2 * x.half, y)
        return Twice(result / 2), size


def test_a_tangent_that_a_type_cannot_hold(rules, asked):
    """A diagonal matrix has no way back from the tangent of a dense one."""
    v = Diagonal(X[0])
    check(rules, lambda v: jax.jvp(jnp.linalg.det, (v,), (X,)), v, policy="allow")
    assert asked == []


def test_a_tangent_beside_the_entries_of_a_type(rules, asked):
    """Lifted, it would lose what is beside the diagonal."""

    class OfEntries(Diagonal):
        def lift_tangent(self, tangent):
            return OfEntries(jnp.diagonal(tangent))

        def tangent_space(self):
            return "entries"

    @rules.register(total)
    def _(v: OfEntries):
        asked.append("of entries")
        return total(v.materialise())

    check(rules, total, OfEntries(X[0]))
    along = lambda v: jax.jvp(total, (v + 1,), (X,)) + jax.jvp(total, (v,), (X,))
    check(rules, along, OfEntries(X[0]), policy="allow")
    assert asked == ["of entries"]


class Pair(jaxrewrite.ArrayValue):
    """The sum of two arrays."""

    x: Array
    y: Array

    def materialise(self):
        return self.x + self.y


def test_a_tangent_of_what_is_beside_a_value_of_several_leaves(rules, asked):
    @rules.register(contract)
    def _(v: Pair, y: ArrayLike):
        asked.append("pair")
        return contract(v.x + v.y, y)

    along = lambda v, x: jax.jvp(lambda x: contract(v, x), (x,), (x + 1,))
    check(rules, along, Pair(X, X.T), X)
    assert asked == ["pair"]


@pytest.mark.parametrize("tangent", [V, Diagonal(X[0])])
def test_a_tangent_that_is_a_value(rules, asked, tangent):
    """It is one of the whole array, and no rule is differentiated along a value."""
    register_contract(rules, asked)
    along = lambda of: lambda x, t: jax.jvp(of, (x,), (t,))
    check(rules, along(lambda v: contract(v, X)), V, tangent, policy="allow")
    check(
        rules,
        lambda v, t: along(lambda x: contract(v, x))(X, t),
        V,
        tangent,
        policy="allow",
    )


@pytest.mark.parametrize("of", [lambda v, x: contract(v, x)[0].sum(), total])
def test_gradients_inside_of_the_program_are_right(rules, asked, of):
    register_contract(rules, asked)
    args = (V, X) if of is not total else (V,)
    for i in range(len(args)):
        check(rules, lambda *args, i=i: jax.grad(of, i)(*args), *args, policy="allow")


# --- which rule -------------------------------------------------------------------------


def test_declining_leaves_the_call_as_it_is(rules, asked):
    @rules.register(total, precedence=1)
    def _(v: jaxrewrite.ArrayValue, *, axis: int | None):
        asked.append("declines")
        return NotImplemented

    check(rules, lambda v: total(v, axis=1), V)
    # A rule that does not name a static argument stands for its default.
    check(rules, lambda v: total(v, axis=1, keepdims=True), V)
    assert asked == ["declines", ("total", 1, False), ("total", 1, True)]

    nothing = jaxrewrite.Rules()
    nothing.register(total)(lambda v: NotImplemented)
    check(nothing, total, V, policy="allow")


def test_static_arguments_that_no_rule_names(rules, asked):
    @functools.partial(jax.jit, static_argnames="mode")
    def shift(x, mode="up"):
        return x + {"up": 1, "down": -1, "far": 100}[mode]

    @rules.register(shift)
    def _(v: Twice, *, mode: Literal["down"]):
        asked.append(mode)
        return Twice(v.half + {"up": 0.5, "down": -0.5}[mode])

    check(rules, lambda v: shift(v, "down"), V)
    assert asked == ["down"]
    # It is not for the default, which its annotation leaves out.
    check(rules, shift, V, policy="allow")
    check(rules, lambda v: shift(v, mode="far"), V, policy="allow")
    assert asked == ["down"]

    @rules.register(shift)
    def _(v: jaxrewrite.ArrayValue):
        asked.append("default")
        return Twice(v.half + 0.5)

    check(rules, shift, V)
    check(rules, lambda v: shift(v, "down"), V)
    assert asked == ["down", "default", "down"]


def test_both_orders_and_ambiguity(rules, asked):
    @jax.jit
    def outer(x, y):
        return x[:, None] * y

    class Other(Twice):
        pass

    @rules.register(outer, exchange="types")
    def _(x: Twice, y: Array):
        asked.append([type(z).__name__.rstrip("_") for z in (x, y)][isinstance(y, Twice)])
        return outer(*(2 * z.half if isinstance(z, Twice) else z for z in (x, y)))

    v = Twice(X[0])
    check(rules, outer, v, X[0])
    check(rules, lambda x, v: outer(x, v), X[0], v)
    assert len(asked) == 2

    @rules.register(outer)
    def _(x: Twice, y: Other):
        return outer(2 * x.half, 2 * y.half)

    @rules.register(outer)
    def _(x: Other, y: Twice):
        return outer(2 * x.half, 2 * y.half)

    other = Other(X[0])
    with pytest.raises(
        jaxrewrite.AmbiguousRuleError,
        match=r"Function outer on (.|\n)*@jaxrewrite.register\(outer\)",
    ):
        jaxrewrite.transform(outer, rules=rules)(other, other)


def test_a_tied_rule_that_fails_has_not_declined(rules):
    @jax.jit
    def outer(x, y):
        return x[:, None] * y

    @rules.register(outer)
    def _(x: Twice, y: jaxrewrite.ArrayValue):
        raise RuntimeError("on purpose")

    @rules.register(outer)
    def _(x: jaxrewrite.ArrayValue, y: Twice):
        return outer(2 * x.half, 2 * y.half)

    v = Twice(X[0])
    with pytest.raises(jaxrewrite.AmbiguousRuleError, match="Function outer"):
        jaxrewrite.transform(outer, rules=rules)(v, v)


def test_a_rule_may_call_a_function_of_values_and_arrays(rules, asked):
    register_contract(rules, asked)

    @rules.register("cos")
    def _(v: Twice, **params):
        return jaxrewrite.transform(contract)(v, X)[0]

    got = jaxrewrite.transform(jnp.cos, rules=rules, materialise="forbid")(V)
    np.testing.assert_allclose(got.materialise(), contract(2 * X, X)[0], rtol=1e-6)
    assert asked == ["contract"]


def test_calls_with_other_numbers_are_other_calls(rules, asked):
    """The rule runs for each: the numbers that it reads are known as it runs."""

    @jax.jit
    def plus(x, number):
        return x + number

    @rules.register(plus)
    def _(v: Twice, number: jax.extend.core.Literal):
        asked.append(float(number.val))
        return Twice(v.half + number.val / 2)

    check(rules, lambda v: [plus(v, number) for number in (2.0, 3.0)], V)
    assert asked == [2.0, 3.0]


def test_functions_with_numbers_that_print_alike_are_two(rules, asked):
    def scaled(number):
        return jax.jit(lambda x: number * x)

    first, second = map(scaled, (1.2344e-4, 1.23437e-4))

    @rules.register(first)
    def _(v: Twice):
        asked.append("first")
        return NotImplemented

    jaxrewrite.transform(second, rules=rules, materialise="allow")(V)
    assert asked == []
    jaxrewrite.transform(first, rules=rules, materialise="allow")(V)
    assert {*asked} == {"first"}


def test_arrays_alone(asked):
    rules = jaxrewrite.Rules()

    @rules.register(total)
    def _(x: Array):
        asked.append("total")
        return 7 * x.sum()

    run = jaxrewrite.transform(lambda x: jax.jit(total)(x) + 1, rules=rules)
    assert run(X) == 7 * X.sum() + 1
    assert asked == ["total"]


def test_a_number_after_an_array_in_its_place(asked):
    """A call on arrays for which there is no rule tells nothing of one with a number."""
    rules = jaxrewrite.Rules()
    plus = jax.jit(lambda x, y: x + y)

    @rules.register(plus)
    def _(x: Array, number: jax.extend.core.Literal):
        asked.append(number.val)
        return x

    both = lambda x, y: (plus(x, y), plus(x, np.float32(2)))
    jaxrewrite.make_jaxpr(both, rules=rules)(X, jnp.float32(3))
    assert asked == [2.0]


def test_arrays_alone_in_one_branch(asked):
    rules = jaxrewrite.Rules()

    @rules.register(total)
    def _(x: Array):
        return 7 * x.sum()

    choose = lambda p, x: lax.cond(p, total, lambda x: x[0, 0], x)
    run = jaxrewrite.transform(choose, rules=rules)
    assert (run(True, X), run(False, X)) == (7 * X.sum(), X[0, 0])


def test_functions_that_call_one(asked):
    """Wrapped, partial and plain functions stand for the one that they call."""
    rules = jaxrewrite.Rules()
    rows = functools.partial(total, axis=1)

    def squares(x):
        return total(x, axis=0, keepdims=True)

    @jax.jit
    @functools.wraps(squares)
    def renamed(x):
        return squares(x) + 1

    for fn in (rows, squares, renamed):

        @rules.register(fn)
        def _(v: Twice, *, primitive):
            asked.append(primitive.fn)
            return primitive.fn(2 * v.half)

    check(rules, lambda v: total(v, axis=1), V)
    check(rules, lambda v: total(v, axis=0, keepdims=True), V)
    check(rules, lambda v: renamed(v), V)
    check(rules, lambda v: total(v), V, policy="allow")
    assert asked == [rows, squares, renamed]


def test_a_partial_function_that_is_jitted(asked):
    rules = jaxrewrite.Rules()
    columns = jax.jit(functools.partial(total.__wrapped__, axis=0))

    @rules.register(columns)
    def _(v: Twice, *, primitive):
        asked.append(primitive.fn)
        return primitive.fn(2 * v.half)

    check(rules, columns, V)
    assert asked == [columns]


def test_a_function_with_a_derivative_within_a_call_stands_for_it_alone_too(asked):
    rules = jaxrewrite.Rules()
    staged = jax.jit(soft)

    @rules.register(staged)
    def _(v: Twice, y: ArrayLike):
        asked.append("soft")
        return Twice(staged(2 * v.half, y) / 2)

    check(rules, lambda v: soft(v, X), V)
    assert asked == ["soft"]


def test_a_function_may_be_a_call_for_some_arrays_alone(asked):
    rules = jaxrewrite.Rules()

    def rows(x):
        return total(x if x.ndim == 1 else x.T)

    @rules.register(rows)
    def _(v: Twice):
        asked.append(v.ndim)
        return rows(2 * v.half)

    check(rules, rows, Twice(X[0]))
    check(rules, rows, V, policy="allow")
    assert asked == [1]


def test_a_static_argument_may_be_one_of_any_keywords(asked):
    @functools.partial(jax.jit, static_argnames=("power",))
    def powers(x, **options):
        return x ** options["power"]

    rules = jaxrewrite.Rules()

    @rules.register(powers)
    def _(v: Twice, *, power: Literal[2, 3]):
        asked.append(power)
        return powers(2 * v.half, power=power)

    check(rules, lambda v: powers(v, power=2), V)
    assert asked == [2]


def test_a_static_argument_may_have_any_name(asked):
    power = jax.jit(lambda x, self: x**self, static_argnames="self")
    rules = jaxrewrite.Rules()

    @rules.register(power)
    def _(v: Twice, *, self: Literal[2, 3]):
        asked.append(self)
        return power(2 * v.half, self=self)

    check(rules, lambda v: power(v, self=2), V)
    assert jaxrewrite.which(power, V, rules=rules, self=2).decision == "rule"
    bound = jaxrewrite.transform(
        lambda v: jaxrewrite.bind(power, v, self=3)[0], rules=rules
    )
    np.testing.assert_allclose(bound(V), jaxrewrite.materialise(V) ** 3)
    assert {*asked} == {2, 3}


def test_an_argument_may_be_static_by_its_number_beside_one_by_its_name(asked):
    @functools.partial(jax.jit, static_argnums=1, static_argnames="mode")
    def powers(x, power=2, offset=None, mode="plain"):
        return x**power if offset is None else x**power + offset

    rules = jaxrewrite.Rules()

    @rules.register(powers)
    def _(v: Twice, y: jax.Array):  # Not by the name: no operand before it is left out.
        asked.append(y.shape)
        return powers(2 * v.half, offset=y)

    check(rules, lambda v: powers(v, offset=X), V)
    assert asked == [X.shape]


@functools.partial(jax.jit, static_argnames=("power",))
def attend(x, power=1, bias=None, mask=None):
    logits = x**power @ x if bias is None else x**power @ x + bias
    return logits if mask is None else jnp.where(mask > 0, logits, 0)


@jax.jit
def total_of(*xs, scale=1):
    return sum(xs) * scale


@jax.jit
def weighted(x, **weights):
    return x * weights.get("a", 1) + weights.get("b", 1)


M = jnp.array([[1.0, -1.0, 1.0], [-1.0, 1.0, 1.0], [1.0, 1.0, -1.0]])
SEVEN = jnp.full((3, 3), 7.0)

# Rules of two operands, a call that they are for, and one that they are not for.
LEAVING_OUT = {
    "by order": (
        lambda v, b: SEVEN,
        lambda v: attend(v, 1, M),
        lambda v: attend(v, mask=M),
    ),
    "first": (
        lambda v, bias: SEVEN,
        lambda v: attend(v, bias=M),
        lambda v: attend(v, mask=M),
    ),
    "second": (
        lambda v, mask: SEVEN,
        lambda v: attend(v, 1, None, M),
        lambda v: attend(v, 1, M),
    ),
    "after several": (
        lambda v, w: SEVEN,
        lambda v: total_of(v, M),
        lambda v: total_of(v, scale=M),
    ),
    "keyword": (lambda v, b: SEVEN, lambda v: weighted(v, b=M), lambda v: weighted(v, a=M)),
}


@pytest.mark.parametrize("case", LEAVING_OUT)
def test_an_argument_that_a_call_leaves_out_is_no_other(case):
    rule, call, other = LEAVING_OUT[case]
    fn = {"after several": total_of, "keyword": weighted}.get(case, attend)
    rules = jaxrewrite.Rules()
    rules.register(fn)(rule)
    run = jaxrewrite.transform(call, rules=rules, materialise="forbid")
    assert (run(V) == SEVEN).all()
    check(rules, other, V, policy="allow")
    explained = jaxrewrite.explain(other, rules=rules, materialise="allow")(V)
    reasons = [declined.why for declined in explained.steps[0].declined]
    assert "it is for other static arguments, or other operands" in reasons
    check(rules, jax.vmap(other), STACK, policy="allow")
    check(rules, lambda v: jax.jvp(other, (v,), (M,)), V, policy="allow")


def test_a_static_argument_may_come_first(asked):
    @functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
    def power(n, x):
        return x**n

    power.defvjp(lambda n, x: (x**n, x), lambda n, x, ct: (ct,))
    rules = jaxrewrite.Rules()

    @rules.register(power)
    def _(v: Twice, *, n: Literal[2, 3]):
        asked.append(n)
        return power(n, 2 * v.half)

    check(rules, lambda v: power(3, v), V)
    check(rules, jax.vmap(lambda v: power(3, v)), STACK)
    assert asked == [3, 3]


def test_one_rule_for_several_functions(asked):
    rules = jaxrewrite.Rules()

    @rules.register(jnp.tril, jnp.triu)
    def _(v: Twice, *, primitive, k: Literal[0, 1]):
        asked.append((primitive.name, k))
        return Twice(getattr(jnp, primitive.name)(v.half, k=k))

    check(rules, lambda v: (jnp.tril(v), jnp.triu(v), jnp.triu(v, 1)), V)
    assert asked == [("tril", 0), ("triu", 0), ("triu", 1)]


def test_a_field_that_is_a_value(rules, asked):
    class Box(jaxrewrite.ArrayValue):
        content: Array

        def materialise(self):
            return self.content

        def sliceable(self):
            return self

    @rules.register(jnp.linalg.slogdet)
    def _(v: Box):
        asked.append("box")
        return jnp.linalg.slogdet(v.content)

    check(rules, jnp.linalg.slogdet, Box(V))
    check(rules, jax.vmap(jnp.linalg.slogdet), Box(STACK))
    assert asked == ["box", "slogdet", "box", "slogdet"]


def test_a_value_beside_an_array_within_has_no_tangent_for_rules(rules, asked):
    class Shifted(jaxrewrite.ArrayValue):
        content: Twice
        shift: Array

        def materialise(self):
            return self.content + self.shift

        def lift_tangent(self, tangent):
            return Shifted(Twice(tangent / 2), jnp.zeros_like(self.shift))

    @rules.register(total)
    def _(v: Shifted):
        asked.append("shifted")
        return total(v.content + v.shift)

    v = Shifted(V, X[0])
    check(rules, total, v, policy="allow")
    assert asked == ["shifted"]
    check(rules, lambda v: jax.jvp(total, (v,), (X,)), v, policy="allow")
    assert asked == ["shifted"]


def test_the_tables_in_force(rules, asked):
    check(None, lambda v: jnp.linalg.slogdet(v), V, policy="allow")
    assert asked == []


# --- only the same function -----------------------------------------------------------


def make_scaling(factor):
    @jax.custom_vjp
    def scaling(x):
        return x + 0

    scaling.defvjp(lambda x: (x + 0, None), lambda _, ct: (factor * ct,))
    return scaling


def make_saving(factor, **options):
    @jax.custom_vjp
    def saving(x):
        return x + 0

    saving.defvjp(lambda x: (x + 0, factor), _times_saved, **options)
    return saving


def _times_saved(factor, ct):
    return (factor * ct,)


def make_saving_less(factor):
    return make_saving(factor, optimize_remat=True)


def make_logging(factor, is_logged=False):
    """A variable of the forward rule has no value."""
    if is_logged:
        name = "scaling"

    @jax.custom_vjp
    def logging(x):
        return x + 0

    def forward(x):
        return x + 0, print(name) if is_logged else factor

    logging.defvjp(forward, _times_saved)
    return logging


def make_surrogate(factor):
    @jax.custom_jvp
    def surrogate(x):
        return x + 0

    surrogate.defjvp(lambda x, t: (x[0] + 0, factor * t[0]))
    return surrogate


def make_sum(number):
    table = jnp.arange(3000.0).at[1500].set(number)

    @jax.jit
    def summed(x):
        return x + table[1500]

    return summed


@pytest.mark.parametrize(
    "make",
    [make_scaling, make_saving, make_saving_less, make_logging, make_surrogate, make_sum],
)
def test_functions_of_one_line_that_differ(asked, make):
    rules = jaxrewrite.Rules()
    one, two = make(1.0), make(2.0)

    @rules.register(one)
    def _(v: Twice):
        asked.append("one")
        return NotImplemented

    run = lambda fn: jaxrewrite.transform(fn, rules=rules, materialise="allow")(V)
    run(two)
    assert asked == []
    run(one)
    assert {*asked} == {"one"}


def test_part_of_a_function_is_not_the_function(rules, asked):
    """What `jax.checkpoint` and `jax.linearize` make of a call has other results."""
    check(rules, lambda v: jax.linearize(total, v)[1](X), V, policy="allow")
    assert asked == []


@pytest.mark.parametrize("count", [1, 4])
def test_a_function_is_not_traced_for_all_that_an_equation_might_be(asked, count):
    """What is left of a derivative has four operands, so many ways to be mapped over."""
    traced = []

    def wave(*xs, scale=1):
        traced.append(scale)
        return scale * jnp.sin(sum(xs) * xs[0]) * jnp.cos(xs[0])

    fns = {1: lambda x, *, scale=1: wave(x, scale=scale)}
    fns[4] = lambda x, y, z, u, *, scale=1: wave(x, y, z, u, scale=scale)
    fn = jax.jit(fns[count], static_argnames="scale")
    rules = jaxrewrite.Rules()

    @rules.register(fn)
    def _(*xs: Twice | ArrayLike, scale: Literal[1, 2, 3, 4]):
        asked.append(scale)
        return NotImplemented

    def program(v):
        return jax.linearize(lambda v: fn(*[v] * count), v)[1](X)

    check(rules, program, V, policy="allow")
    assert {*asked} <= {1}
    assert len(traced) < 60


def test_calls_that_write_to_a_reference_are_left_as_they_are(asked):
    """A rule returns results, and does not write."""

    @jax.jit
    def put(ref, x):
        ref[...] = x
        return x + 1

    rules = jaxrewrite.Rules()
    rules.register(put)(lambda ref, v: asked.append(v))

    def program(v):
        ref = jax.new_ref(jnp.zeros_like(X))
        return put(ref, v), ref[...]

    check(rules, program, V, policy="allow")
    assert asked == []


@pytest.mark.parametrize(
    "where", [jax.sharding.SingleDeviceSharding(jax.devices()[0]), Format(Layout.AUTO)]
)
def test_placed_calls_are_left_as_they_are(asked, where):
    rules = jaxrewrite.Rules()
    more = lambda x: x + 1
    placed = jax.jit(more, out_shardings=where)
    rules.register(jax.jit(more))(lambda v: asked.append(v))
    check(rules, placed, V, policy="allow")
    assert asked == []
    with pytest.raises(TypeError, match="says where its arrays are"):
        rules.register(placed)(lambda v: v)


def test_calls_that_keep_unused_operands(asked):
    """Unused operands are about how a function compiles that no other one calls."""
    rules = jaxrewrite.Rules()
    more = jax.jit(lambda x: x + 1, keep_unused=True)

    @rules.register(more)
    def _(v: Twice):
        asked.append(v)
        return jaxrewrite.materialise(v) + 1

    check(rules, more, V)
    assert asked


# --- errors -------------------------------------------------------------------------------


def test_a_negative_axis_may_be_one_that_no_other_number_is(asked):
    """The last axis of a result that has one more than the operand."""
    expand = jax.jit(lambda x, axis: 3 * jnp.expand_dims(x, axis), static_argnames="axis")
    rules = jaxrewrite.Rules()

    @rules.register(expand)
    def _(v: Twice, *, axis: int):
        asked.append(axis)
        return Twice(expand(v.half, axis))

    check(rules, lambda v: expand(v, -1), V)
    assert asked == [-1]


def test_errors_at_registration():
    rules = jaxrewrite.Rules()
    one = lambda v: v
    with pytest.raises(TypeError, match="got sin. JAX makes no call .* It becomes 'sin'"):
        rules.register(jnp.sin)(one)
    with pytest.raises(TypeError, match="got softmax. .* 'reduce_max', .*'exp'"):
        rules.register(jax.nn.softmax)(one)
    with pytest.raises(TypeError, match="got add. .* It becomes 'add'"):
        rules.register(jnp.add)
    with pytest.raises(TypeError, match="got dot_general. .* It becomes 'dot_general'"):
        rules.register(lax.dot_general)
    with pytest.raises(TypeError, match="got <lambda>. JAX makes no call"):
        rules.register(lambda x: x + 1)
    of_matrices = lambda x: lax.erf(lax.transpose(x, (1, 0)))
    with pytest.raises(TypeError, match="It becomes 'transpose', 'erf': register"):
        rules.register(of_matrices)
    with pytest.raises(TypeError, match="got <lambda>. JAX makes no call"):
        rules.register(lambda: 0.0)
    with pytest.raises(TypeError, match="got sin. JAX makes no call"):
        rules.register(jnp.sin)(lambda *vs: vs[0])
    with pytest.raises(TypeError, match="a static argument 'side', and total has no such"):

        @rules.register(total)
        def _(v: Twice, *, side): ...

    with pytest.raises(TypeError, match="Static argument 'axis' .* annotated with .*float"):

        @rules.register(total)
        def _(v: Twice, *, axis: float): ...


@jax.jit
def first(x, y):
    return jnp.sin(x) * 2


@functools.partial(jax.jit, static_argnums=1)
def times(x, n):
    return jnp.sin(x) * n


@pytest.mark.parametrize(
    "fn, rule, message",
    [
        (
            lambda x: 2 * jnp.linalg.det(x),
            lambda v: v,
            r"got <lambda>\(x\), .* det\(x\), mul\.",
        ),
        (lambda x: jnp.linalg.det(x.T), lambda v: v, r"JAX makes transpose, det\(_\)\."),
        (lambda x, y: jnp.linalg.solve(y, x), lambda v, w: v, r"JAX makes solve\(y, x\)\."),
        (lambda x: soft(x, X), lambda v: v, r"JAX makes soft\(x, _\)\."),
        (jax.grad(lambda x: total(x)), lambda v: v, "of which JAX makes total"),
        (jnp.std, lambda v: v, r"std\(x\), of which JAX makes _std\(x, 0(.0)?\)\."),
        (first, lambda v, w: v, r"first\(x, y\), of which JAX makes first\(x\)\."),
        (times, lambda v: v, "takes 1 of the arguments x, n that times needs"),
        (jnp.linalg.det, lambda v, w, x: v, "takes 3 operands, .* of det only a can"),
        (jax.nn.softmax, lambda v, w, x, **y: v, "of softmax only x, where can be"),
        (times, lambda v, *, n: v, "Static argument 'n' .* is not annotated"),
    ],
)
def test_a_rule_that_no_call_can_have_is_an_error(fn, rule, message):
    with pytest.raises(TypeError, match=message):
        jaxrewrite.Rules().register(fn)(rule)


def test_an_argument_of_a_users_type_may_be_several_operands(asked):
    """A name that JAX's annotations have, too, does not tell that it is one array."""

    Key = dict[str, Any]  # noqa: N806

    @jax.jit
    def turned(key: "Key", x: "Array"):
        return key["first"] * x + key["second"]

    rules = jaxrewrite.Rules()

    @rules.register(turned)
    def _(first: Array, second: Array, v: Twice):
        asked.append("turned")
        return v

    jaxrewrite.transform(turned, rules=rules)({"first": X, "second": X}, V)
    assert asked == ["turned"]


class Moments(NamedTuple):
    mean: Any
    spread: Any


@jax.jit
def summary(x):
    return {"moments": Moments(x.mean(), x.std()), "most": x.max()}


@pytest.mark.parametrize(
    "returned, message",
    [
        (lambda m, s, t: {"moments": Moments(m, s), "most": t}, None),
        (lambda m, s, t: {"moments": (m, s), "most": t}, None),
        (
            lambda m, s, t: {"moments": [m, s], "largest": t},
            "returned largest, moments, moments",
        ),
        (lambda m, s, t: (m, s, t), "which returns moments.mean, moments.spread, most"),
    ],
)
def test_results_have_the_names_of_the_function(returned, message):
    """The leaves of a dict are in the order of its keys, which may be another."""
    rules = jaxrewrite.Rules()
    rules.register(summary)(lambda v: returned(*jnp.float32([1, 2, 3])))
    run = jaxrewrite.transform(summary, rules=rules)
    if message is None:
        assert run(V) == {"moments": (1, 2), "most": 3}
        return
    with pytest.raises(TypeError, match=message):
        run(V)


@pytest.mark.parametrize(
    "returned, message",
    [
        (lambda v: jnp.ones(3), r"f32\[3\] where 'total' gives f32\[\]"),
        (lambda v: (v, v), "returned 2 arrays or values for 'total', which returns 1"),
        (lambda v: "no", "returned a str where 'total' gives"),
    ],
)
def test_wrong_results(returned, message):
    rules = jaxrewrite.Rules()
    rules.register(total)(returned)
    with pytest.raises(TypeError, match=message):
        jaxrewrite.transform(total, rules=rules)(V)


def test_an_error_in_a_rule_names_the_rule():
    rules = jaxrewrite.Rules()

    @rules.register(total)
    def broken(v: Twice):
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken") as error:
        jaxrewrite.transform(total, rules=rules)(V)
    assert "raised by the rule" in error.value.__notes__[0]
    assert "broken" in error.value.__notes__[0]


def test_nothing_leaks(rules, leak_checks):
    check(rules, lambda v: total(v, axis=0) + jax.vmap(jnp.cos)(X[0]), V)
    check(rules, jax.vmap(lambda v: soft(v, X)), STACK)


# --- what tells of them ----------------------------------------------------------------


def test_explain_which_and_rules():
    v = Diagonal(X[0])

    @jaxrewrite.register(jnp.linalg.det)
    def of_diagonal(v: Diagonal):
        return v.entries.prod(-1)

    @jaxrewrite.register(jnp.linalg.slogdet)
    def declines(v: Diagonal):
        return NotImplemented

    (step,) = jaxrewrite.explain(lambda v: jnp.linalg.det(v))(v).steps
    assert (step.primitive, step.decision) == ("det", "rule")
    assert step.rule.name.endswith("of_diagonal")
    for found in (
        jaxrewrite.which(jnp.linalg.det, v),
        jaxrewrite.which(jnp.linalg.det, Diagonal),
    ):
        assert (found.primitive, found.decision) == ("det", "rule")
        assert found.rule.name.endswith("of_diagonal")
    found = jaxrewrite.which(jnp.linalg.slogdet, v)
    assert (found.primitive, found.decision) == ("slogdet", "handler")
    assert [why for rule, why in found.others if rule.name.endswith("declines")] == [
        "it returned NotImplemented"
    ]
    assert jaxrewrite.which(jax.numpy.kron, Diagonal, Diagonal).decision == "handler"
    listed = jaxrewrite.rules(jnp.linalg.det, Diagonal)
    assert [(r.primitive, r.types) for r in listed] == [("det", ("Diagonal",))]
    assert jaxrewrite.bind(jnp.linalg.det, v)[0] == 6


def test_which_values_an_annotation_of_axes_stands_for():
    from jaxrewrite._functions.recognise import Axes, Axis

    assert Axes.holds((0, 1)) and Axes.holds(())
    for other in [(0, None), (None, 0), (True, 1), [0, 1], 0]:
        assert not Axes.holds(other), other
    assert Axis.holds(0) and not Axis.holds(True) and not Axis.holds((0,))


def test_modules_that_name_each_other_are_looked_through_once():
    one, other = types.ModuleType("one"), types.ModuleType("other")
    one.other, other.one, other.act = other, one, total
    scope = {"one": one}
    exec("def fn(x): return one.other.one.other.act(x)", scope)
    rules = jaxrewrite.Rules()

    @rules.register(scope["fn"])
    def _(v: Twice):
        return jnp.float32(7)

    assert jaxrewrite.transform(scope["fn"], rules=rules)(V) == 7


MODULE = types.ModuleType("module")
MODULE.times = times


@pytest.mark.parametrize("fn", [lambda x, n: times(x, n), lambda x, n: MODULE.times(x, n)])
def test_a_name_tells_of_a_call_that_no_trace_has(fn, asked):
    """An array is no static argument, so that a trace with arrays alone fails."""
    rules = jaxrewrite.Rules()

    @rules.register(fn)
    def _(v: Twice, *, n: Literal[2, 3]):
        asked.append(n)
        return times(2 * v.half, n)

    check(rules, lambda v: times(v, 3), V)
    assert asked == [3]


def test_a_rule_may_come_before_names_that_its_function_uses():
    def fn(x, more=False):
        return later(x) if more else total(x)

    rules = jaxrewrite.Rules()
    rules.register(fn)(lambda v: jnp.float32(7))
    later = jnp.exp
    assert jaxrewrite.transform(fn, rules=rules)(V) == 7


def nested(depth, of=total):
    if not depth:
        return of
    inner = nested(depth - 1, of)

    def fn(x):
        return inner(x)

    return fn


class Layer:
    """A function of its own in each object."""

    def __init__(self, scale):
        self.scale = scale

    @functools.partial(jax.jit, static_argnums=0)
    def staged(self, x):
        return jnp.sin(x) * self.scale

    def __call__(self, x):
        return self.staged(x)


LAYER = Layer(2.0)

CALLS = {
    "lambda": lambda x: total(x),
    "nested": nested(4),
    "method": LAYER.staged,
    "object": LAYER,
    "ufunc": jnp.logaddexp,
    "transformed": jaxrewrite.numpy.linalg.det,
    "vmap": jax.vmap(total),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_is_found_through_what_is_around_it(name):
    """Wherever JAX makes one call of a function, whatever the function looks like."""
    fn = CALLS[name]
    operands = [V, V] if name == "ufunc" else [V]
    rules = jaxrewrite.Rules()
    rules.register(fn)(lambda *vs: jax.tree.map(jnp.zeros_like, fn(*materialise(vs))))
    answered = jaxrewrite.transform(lambda *vs: fn(*vs), rules=rules)(*operands)
    assert not answered.any()


def test_a_method_is_one_function():
    """Python makes a method anew at each access, and a later rule takes the place of one."""
    rules = jaxrewrite.Rules()
    rules.register(LAYER.staged)(lambda v: v)
    rules.register(LAYER.staged)(lambda v: jnp.zeros(v.shape))
    assert not jaxrewrite.transform(LAYER.staged, rules=rules)(V).any()


def test_explain_tells_that_a_call_is_not_of_the_function():
    rules = jaxrewrite.Rules()
    rules.register(LAYER.staged)(lambda v: v)
    other = Layer(3.0)
    step, *_ = jaxrewrite.explain(lambda v: other.staged(v), rules=rules)(V).steps
    assert [declined.why for declined in step.declined] == [
        "it is for other static arguments, or another function"
    ]


def test_explain_tells_once_that_a_rule_declined():
    asked, rules = [], jaxrewrite.Rules()

    @rules.register(jnp.linalg.det)
    def _(v: Twice):
        asked.append(v.shape)
        return NotImplemented

    step, *_ = jaxrewrite.explain(jax.vmap(jnp.linalg.det), rules=rules)(STACK).steps
    assert asked[-1] == (3, 3)  # By some releases it is asked of the stack, too.
    assert [x.why for x in step.declined] == ["it returned NotImplemented"]


def test_ready_rules_are_asked_with_the_defaults():
    import jaxrewrite.values
    from jaxrewrite._core.rules import global_rules
    from jaxrewrite._functions.called import Called
    from jaxrewrite._functions.recognise import domains_of, is_among

    entries = [(p, e.rule) for p, e in global_rules.entries() if isinstance(p, Called)]
    rules = {
        pair
        for pair in entries
        if pair[1].fn.__module__.startswith(jaxrewrite.values.__name__)
    }
    assert len(rules) > 30
    for called, rule in rules:
        for name, domain in domains_of(called, rule).items():
            assert is_among(called.parameters[name].default, domain), (called.name, name)


def test_a_number_of_the_program_before_the_value():
    """An exchanged rule has its operands, and which of them is a number, the other way round."""
    plus = jax.jit(lambda x, y: x + y)
    rules = jaxrewrite.Rules()

    @rules.register(plus, exchange="operands")
    def _(v: Twice, number: extend.core.Literal):
        return Twice(v.half + number.val / 2)

    for fn in (lambda v: plus(v, 2.0), lambda v: plus(2.0, v), lambda v: plus(3.0, v)):
        check(rules, fn, V)


TEXTUAL = """
from __future__ import annotations

def register(by_text, by_types, fn, Twice):
    from typing import Literal

    @by_text.register(fn)
    def _(v: Twice, *, axis: Literal[1]):
        return fn(2 * v.half, axis)

    @by_types.register(fn, types=(Twice,))
    def _(v, *, axis: Literal[1]):
        return fn(2 * v.half, axis)
"""


def test_the_values_of_static_arguments_are_read_like_the_types_of_operands():
    namespace = {}
    exec(TEXTUAL, namespace)  # noqa: S102 - a module with annotations that are texts
    tables = jaxrewrite.Rules(), jaxrewrite.Rules()
    namespace["register"](*tables, total, Twice)
    for rules in tables:
        check(rules, lambda v: total(v, 1), V)

"""Custom derivative rules on values: exact, called as JAX calls them, alive."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from choose import every
from jax import lax
from jax.experimental import io_callback
from oracle import allow, assert_same_leaves
from reference import OWN
from reference.own import Lora, Quantised, Scaled, Zero

import jaxrewrite
from jaxrewrite import transform, values


# With leak checks each program is compiled anew; those are in test_families.py.
pytestmark = pytest.mark.usefixtures("bulk")
RNG = np.random.default_rng(3)
X = jnp.asarray(RNG.uniform(0.2, 0.9, (3, 3)), jnp.float32)


def make(kind, seed=0):
    return OWN[kind].value(np.random.default_rng(seed), shape=(3, 3))


def close(got, want, rtol=2e-4):
    assert_same_leaves(got, want, rtol)


# --- one rule that is far from the true derivative, so that it shows ---------------


@jax.custom_jvp
def sine(x):
    return jnp.sin(x)


@sine.defjvp
def _(primals, tangents):
    return sine(primals[0]), 100 * jnp.cos(primals[0]) * tangents[0]


@jax.custom_vjp
def product(x, y):
    return x @ y


product.defvjp(
    lambda x, y: (x @ y, (x, y)),
    lambda saved, ct: (100 * (ct @ saved[1].T), 1000 * (saved[0].T @ ct)),
)


@jax.custom_vjp
def frugal_product(x, y):
    return x @ y


def _keep_what_is_needed(x, y):
    saved = {"y": y.value} if x.perturbed else {}
    return x.value @ y.value, saved | ({"x": x.value} if y.perturbed else {})


def _of_what_is_kept(saved, ct):
    return (
        100 * (ct @ saved["y"].T) if "y" in saved else None,
        1000 * (saved["x"].T @ ct) if "x" in saved else None,
    )


frugal_product.defvjp(_keep_what_is_needed, _of_what_is_kept, symbolic_zeros=True)

KINDS = [
    "scaled",  # bilinear
    "lora",  # linear in one leaf, bilinear in two
    "shifted",  # affine, a single leaf
    "zero",  # no leaves
    "quantised",  # an integer leaf
    "lora_of_quantised",
    "scaled_lora_of_scaled",
]


@pytest.mark.parametrize("kind", KINDS)
def test_tangents_are_those_of_the_dense_program(kind):
    v = make(kind)
    t = jax.tree.map(
        lambda x: (
            jnp.ones_like(x)
            if jnp.issubdtype(x.dtype, jnp.inexact)
            else np.zeros(x.shape, jax.dtypes.float0)
        ),
        v,
    )
    implicit = lambda v, x: jaxrewrite.materialise(allow(lambda v, x: sine(v) @ x)(v, x))
    dense = lambda v, x: sine(jaxrewrite.materialise(v)) @ x
    close(jax.jvp(implicit, (v, X), (t, X)), jax.jvp(dense, (v, X), (t, X)))
    primal, along = jax.linearize(implicit, v, X)
    close(along(t, X), jax.jvp(dense, (v, X), (t, X))[1])
    close(primal, dense(v, X))


@pytest.mark.parametrize("kind", every(2, KINDS))
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_cotangents_are_those_of_the_dense_program(kind, wrap):
    v = make(kind)
    fn = lambda v, x: (sine(v).sum() + product(x, v) + product(v, x)).sum()
    dense = lambda v, x: fn(jaxrewrite.materialise(v), x)
    got = wrap(jax.grad(allow(fn), (0, 1), allow_int=True))(v, X)
    close(got, jax.grad(dense, (0, 1), allow_int=True)(v, X))
    value, back = jax.vjp(allow(fn), v, X)
    close(value, dense(v, X))
    close(back(jnp.float32(1.0)), got)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_inside(kind):
    v = make(kind)
    gradient = jax.grad(lambda v, x: jnp.sin(sine(product(x, v))).sum(), (0, 1))
    got = jaxrewrite.materialise(allow(gradient)(v, X))
    close(got, gradient(jaxrewrite.materialise(v), X))


MASK = jnp.zeros((3, 3), bool).at[0, 1].set(True)
AROUND = {
    "masked": lambda x: values.Masked(x, MASK),
    "named between masks": lambda x: values.Masked(
        values.Named(values.Masked(x, MASK), ("a", "b")), MASK
    ),
    "tagged": lambda x: values.Tagged(values.Masked(x, MASK), frozenset("t")),
}
BACKWARD = {
    "of another structure": lambda x, g: g * x / 2,
    "constant": lambda x, g: jnp.full_like(x, 3.0),
}


@pytest.mark.parametrize("make", AROUND.values(), ids=AROUND)
@pytest.mark.parametrize("rule", BACKWARD.values(), ids=BACKWARD)
def test_cotangents_join_with_tangents(make, rule):
    """What a rule returns is brought to the structure of a tangent that is never dense."""

    @jax.custom_vjp
    def squares(x):
        return (x**2).sum()

    squares.defvjp(lambda x: (squares(x), x), lambda x, g: (rule(x, g),))

    def loss(x):
        (number, *_) = jax.tree.leaves(transform(squares)(make(x)))
        return 5 * number

    expected = jnp.where(MASK, 0, rule(X, 5.0))
    np.testing.assert_allclose(jax.grad(loss)(X), expected, rtol=1e-6)


def test_the_rule_is_the_users():
    """The factors of the rules show in the derivatives."""
    v = make("lora")
    grad = jax.grad(lambda v, x: allow(lambda v, x: sine(v) + x)(v, x).sum())(v, X)
    np.testing.assert_allclose(grad.w, 100 * jnp.cos(v.materialise()), rtol=1e-5)
    grad = jax.grad(lambda v, x: allow(product)(x, v).sum())(v, X)
    np.testing.assert_allclose(grad.w, 1000 * X.T @ jnp.ones((3, 3)), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lora", "scaled"])
def test_higher_orders(kind, no_leak_checks):
    v = make(kind)

    @jax.custom_jvp
    def cube(x):
        return x**3

    @cube.defjvp
    def _(primals, tangents):
        return cube(primals[0]), 30 * primals[0] ** 2 * tangents[0]

    fn = lambda v, x: cube(v * x).sum()
    dense = lambda v, x: fn(jaxrewrite.materialise(v), x)
    close(jax.hessian(allow(fn), 1)(v, X), jax.hessian(dense, 1)(v, X))
    close(jax.jacfwd(jax.jacrev(allow(fn)))(v, X), jax.jacfwd(jax.jacrev(dense))(v, X))
    close(jax.jacrev(jax.jacfwd(allow(fn)))(v, X), jax.jacrev(jax.jacfwd(dense))(v, X))


def test_rules_are_called_when_jax_calls_them():
    calls = []

    @jax.custom_jvp
    def f(x):
        calls.append("f")
        return jnp.sin(x)

    @f.defjvp
    def _(primals, tangents):
        calls.append("jvp")
        return jnp.sin(primals[0]), jnp.cos(primals[0]) * tangents[0]

    @jax.custom_vjp
    def g(x):
        calls.append("g")
        return jnp.sin(x)

    def forward(x):
        calls.append("forward")
        return jnp.sin(x), jnp.cos(x)

    def backward(c, ct):
        calls.append("backward")
        return (c * ct,)

    g.defvjp(forward, backward)
    v = make("lora")

    def called(fn):
        calls.clear()
        fn()
        return list(calls)

    # An eager forward call of the dense program runs the functions and no rules.
    assert called(lambda: allow(f)(v)) == ["f"]
    assert called(lambda: allow(f)(v)) == []
    transformed_f, transformed_g = allow(lambda v: f(v).sum()), allow(lambda v: g(v).sum())
    assert called(lambda: jax.grad(transformed_f)(v)) == ["f", "jvp"]
    assert called(lambda: jax.grad(transformed_g)(v)) == ["g", "forward", "backward"]
    assert called(lambda: transformed_f(v)) == []
    assert called(lambda: jax.jit(transformed_g)(v)) == []
    assert called(lambda: jax.jvp(transformed_f, (v,), (v,))) == []  # JAX traces it once


# --- symbolic zeros, arguments, pytrees -------------------------------------------


@pytest.mark.parametrize("kind", ["lora", "zero"])
def test_symbolic_zeros_of_values(kind):
    """A value is perturbed if any of its leaves is."""
    seen = []

    @jax.custom_vjp
    def f(x, y):
        return x * y

    def forward(x, y):
        seen.append((x.perturbed, y.perturbed))
        return x.value * y.value, (x.value, y.value)

    f.defvjp(forward, lambda saved, ct: (ct * saved[1], ct * saved[0]), symbolic_zeros=True)
    v = make(kind)
    fn = allow(lambda v, x: f(v, x).sum())
    jax.grad(fn, 1)(v, X)
    jax.grad(fn, 0)(v, X)
    jax.grad(fn, (0, 1))(v, X)
    if kind == "zero":  # there is nothing to differentiate with respect to
        assert seen == [(False, True)]
    else:
        assert seen == [(False, True), (True, False), (True, True)]


def test_symbolic_zeros_of_jvp():
    seen = []

    @jax.custom_jvp
    def f(x, y):
        return x * y

    def rule(primals, tangents):
        seen.append(tuple(type(t) is jax.custom_derivatives.SymbolicZero for t in tangents))
        (x, y), (tx, ty) = primals, tangents
        dense = [
            0 if type(t) is jax.custom_derivatives.SymbolicZero else t for t in (tx, ty)
        ]
        return x * y, dense[0] * y + x * dense[1]

    f.defjvp(rule, symbolic_zeros=True)
    v = make("lora")
    fn = allow(lambda v, x: f(v, x).sum())
    want = jax.grad(lambda v: (v.materialise() * X).sum())(v)
    close(jax.grad(fn, 0)(v, X), want)
    close(jax.grad(fn, 1)(v, X), v.materialise())
    assert seen == [(False, True), (True, False)]


def test_a_leaf_on_which_no_array_depends_has_a_symbolic_zero_of_jvp():
    class Fixed(jaxrewrite.ArrayValue):
        x: jax.Array

        def materialise(self):
            return lax.stop_gradient(self.x)

    seen = []

    @jax.custom_jvp
    def f(x, y):
        return x * y

    def rule(primals, tangents):
        seen.append(type(tangents[0]) is jax.custom_derivatives.SymbolicZero)
        return f(*primals), primals[0] * tangents[1]

    f.defjvp(rule, symbolic_zeros=True)
    gradients = jax.grad(allow(lambda v, x: f(v, x).sum()), (0, 1))
    jax.make_jaxpr(gradients)(Fixed(X), X)
    assert seen == [True]


AROUND_RULES = {
    "call": lambda fn: fn,
    "jit": jax.jit,
    "vmap": lambda fn: lambda x, y: jax.vmap(fn, (None, 0))(x, y[None])[0],
    "checkpoint": jax.checkpoint,
    "scan": lambda fn: lambda x, y: lax.scan(lambda c, _: (fn(x, c), None), y, None, 2)[0],
}


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("name", every(2, AROUND_RULES))
@pytest.mark.parametrize("diagonal", [False, True])
@pytest.mark.parametrize("rule", [product, frugal_product], ids=["product", "frugal"])
def test_operands_in_turn(rule, diagonal, name, first):
    """JAX keeps what one derivative has made of a rule for the next one."""
    fn = AROUND_RULES[name](rule)
    v = values.Diagonal(X[0]) if diagonal else make("lora")
    of_value = allow(lambda v, y: jnp.sum(fn(v, y) ** 2))
    of_array = lambda v, y: jnp.sum(fn(v.materialise(), y) ** 2)
    for operands in (first, 1 - first, first, (0, 1), first):
        got, want = (jax.grad(of, operands)(v, X) for of in (of_value, of_array))
        close(got, want)


def test_dense_derivatives_before_those_of_values():
    """JAX keeps one tree of residuals for a jitted rule, that of the latest derivative of all."""
    fn = jax.jit(frugal_product)
    of_value = allow(lambda v, y: jnp.sum(fn(v, y) ** 2))
    of_array = lambda v, y: jnp.sum(fn(v.materialise(), y) ** 2)
    want = [jax.grad(of_array, i)(make("lora"), X) for i in (0, 1)]
    close([jax.grad(of_value, i)(make("lora"), X) for i in (0, 1)], want)


@pytest.mark.parametrize("around", [lambda fn: fn, jax.jit], ids=["call", "jit"])
def test_pullbacks_that_wait_for_others(around):
    """Each has the residuals of its own operands, in whatever order they are called."""
    fn, v, ones = around(frugal_product), values.Diagonal(X[0]), jnp.ones_like(X)
    d = v.materialise()
    by_value = lambda y: jax.vjp(lambda v: allow(fn)(v, y), v)[1]
    by_array = lambda v: jax.vjp(lambda y: allow(fn)(v, y), X)[1]
    both = lambda v: jax.vjp(allow(fn), v, X)[1]
    of_value, of_array = values.Diagonal(100 * jnp.diag(ones @ X.T)), 1000 * d.T @ ones
    want = [(of_value,), (of_array,), (of_value, of_array)]
    made = by_value(X), by_array(v), both(v)
    for order in itertools.permutations(range(3)):
        for i in order:
            close(made[i](ones), want[i])


def test_a_rule_of_a_transformed_function_meets_values_outside():
    """The call that a transform leaves in a program is walked by a transform around it."""
    w, v = values.Diagonal(X[0]), make("lora")
    inside = lambda x: frugal_product(allow(frugal_product)(w, x), X).sum()
    of_array = lambda x: frugal_product(frugal_product(w.materialise(), x), X).sum()
    want = jax.grad(lambda v: of_array(v.materialise()))(v)
    close(jax.grad(allow(inside))(v), want)


@pytest.mark.parametrize("around", [lambda fn: fn, jax.jit], ids=["call", "jit"])
def test_collectives_in_a_rule_with_symbolic_zeros(around):
    """The name of the axis that `jax.vmap` maps is known, whether or not operands are mapped."""

    @jax.custom_vjp
    def f(x, y):
        return lax.psum(x * y, "i")

    f.defvjp(
        lambda x, y: (lax.psum(x.value * y.value, "i"), (x.value, y.value)),
        lambda saved, ct: (3 * lax.psum(ct, "i") * saved[1], 5 * ct * saved[0]),
        symbolic_zeros=True,
    )
    v = values.Diagonal(X[0])
    of_value = lambda y: allow(f)(v, y)
    of_array = lambda y: f(v.materialise(), y)

    def results(fn):
        each = functools.partial(jax.vmap, axis_name="i")
        slope = jax.grad(lambda y: (fn(y) ** 2).sum())
        of_all = lambda xs: (each(fn)(xs), each(slope)(xs), each(lambda _: fn(X))(xs))
        return around(of_all)(jnp.stack([X, 2 * X]))

    close(results(of_value), results(of_array))


def test_nondifferentiable_arguments():
    @functools.partial(jax.custom_jvp, nondiff_argnums=(0, 2))
    def apply(fn, x, n):
        return fn(x) * n

    @apply.defjvp
    def _(fn, n, primals, tangents):
        return fn(primals[0]) * n, 7 * n * tangents[0]

    @functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
    def clip(limit, x):
        return x

    clip.defvjp(
        lambda limit, x: (x, None), lambda limit, _, ct: (jnp.clip(ct, -limit, limit),)
    )
    v = make("lora")
    fn = lambda v, x: (apply(jnp.sin, v @ x, 3) * clip(0.5, v)).sum()
    dense = lambda v, x: fn(v.materialise(), x)
    close(jax.grad(allow(fn), (0, 1))(v, X), jax.grad(dense, (0, 1))(v, X))


def test_integer_operands_and_results():
    @jax.custom_jvp
    def f(x, n):
        return x * n, n + 1

    @f.defjvp
    def _(primals, tangents):
        x, n = primals
        return f(x, n), (5 * n * tangents[0], np.zeros((), jax.dtypes.float0))

    @jax.custom_vjp
    def g(x, n):
        return x * n, n + 1

    g.defvjp(lambda x, n: (g(x, n), n), lambda n, cts: (5 * n * cts[0], None))
    v = make("quantised")
    for fn in (f, g):
        total = lambda v, n, fn=fn: fn(v, n)[0].sum()
        got = jax.grad(allow(total), allow_int=True)(v, jnp.int32(3))
        want = jax.grad(lambda v, t=total: t(v.materialise(), 3), allow_int=True)(v)
        assert got.q.dtype == jax.dtypes.float0
        np.testing.assert_allclose(got.scale, want.scale, rtol=1e-5)
    out = allow(f)(v, jnp.int32(3))
    assert out[1] == 4


def test_residuals_are_values(leak_checks):
    """What the backward rule does with a residual is dispatched to its rules."""
    rules, met = jaxrewrite.Rules(), []

    @rules.register("dot_general")
    def _(x: jax.Array, w: Lora, *, dimension_numbers, **params):
        met.append(dimension_numbers)
        dot = functools.partial(
            lax.dot_general, dimension_numbers=dimension_numbers, **params
        )
        return dot(x, w.materialise())

    @jax.custom_vjp
    def f(x, w):
        return x @ w

    # Each value has another structure, since a rule is traced once for each structure.
    f.defvjp(
        lambda x, w: ((x[None] @ w)[0], (x, w)),
        lambda s, ct: ((ct[None, None] @ s[1])[0, 0], None),
    )
    v = make("lora")
    transformed = transform(lambda x, v: f(x, v).sum(), rules=rules, materialise="forbid")
    got = jax.grad(transformed)(X, v)
    np.testing.assert_allclose(got, jnp.ones((3, 3)) @ v.materialise(), rtol=1e-6)
    assert len(met) == 3  # in the function, in the forward rule, in the backward rule


@pytest.mark.parametrize(
    "apply",
    [lambda f, v, x: f(v, x), lambda f, v, x: f(x @ v, x)],
    ids=["values", "arrays"],
)
@pytest.mark.parametrize("by", [0, 1])
def test_what_is_known_in_the_forward_rule_is_known_in_the_backward_rule(apply, by):
    """Flags among the residuals decide in Python, as they do under grad of jit."""

    @jax.custom_vjp
    def f(x, y):
        return x * y

    def forward(x, y):
        return x.value * y.value, (x.value, y.value, x.perturbed, y.perturbed)

    def backward(residuals, ct):
        x, y, by_x, by_y = residuals
        return 3 * ct * y if by_x else None, ct * x if by_y else None

    f.defvjp(forward, backward, symbolic_zeros=True)
    v = make("lora")
    fn = lambda v, x: apply(f, v, x).sum()
    want = jax.grad(lambda v, x: fn(jaxrewrite.materialise(v), x), by)(v, X)
    close(jax.grad(allow(fn), by)(v, X), want)
    close(jax.jit(jax.grad(allow(fn), by))(v, X), want)


def test_a_backward_rule_on_arrays_may_look_at_them():
    """Without jit they are concrete, as for a debugger."""
    seen = []

    @jax.custom_vjp
    def watched(x):
        return x

    def backward(x, ct):
        seen.append((np.asarray(x), np.asarray(ct)))
        return (ct,)

    watched.defvjp(lambda x: (x, x), backward)
    v = make("lora")
    jax.grad(allow(lambda v, x: jnp.sin(watched(x @ v)).sum()), 1)(v, X)
    product = X @ v.materialise()
    close(seen, [(product, jnp.cos(product))])


# --- what types say of their tangents --------------------------------------------


class Units(jaxrewrite.ArrayValue):
    """Never dense; tangents carry the units, and find their way back."""

    x: jax.Array
    unit: str = jaxrewrite.field(static=True)

    def aval(self):
        return jax.core.ShapedArray(self.x.shape, self.x.dtype)

    def materialise(self):
        raise TypeError(f"an array in {self.unit} is no array of numbers")

    def tangent(self, leaf_tangents):
        return Units(leaf_tangents.x, self.unit)

    def lift_tangent(self, tangent):
        assert isinstance(tangent, Units)
        return Units(tangent.x, self.unit)

    @staticmethod
    def default(primitive, values, params):
        """Linear primitives keep the units."""
        raw = [v.x if isinstance(v, Units) else v for v in values]
        (unit,) = {v.unit for v in values if isinstance(v, Units)}
        out = primitive.bind(*raw, **params)
        return Units(out, unit)


@jaxrewrite.register("mul", exchange="operands")
def _(v: Units, y: jax.Array, **params):
    return Units(v.x * y, v.unit)


@jaxrewrite.register("gt")
def _(v: Units, y: jax.Array, **params):
    return v.x > y


@jaxrewrite.register("select_n")
def _(which: jax.Array, *cases: Units):
    return Units(lax.select_n(which, *(c.x for c in cases)), cases[0].unit)


@jax.custom_jvp
def halved(x):
    return 0.5 * x


@halved.defjvp
def _(primals, tangents):
    return halved(primals[0]), 5.0 * tangents[0]


@jax.custom_vjp
def halved_back(x):
    return 0.5 * x


halved_back.defvjp(lambda x: (0.5 * x, None), lambda _, ct: (5.0 * ct,))


@pytest.mark.parametrize("fn", [halved, halved_back])
def test_units_stay_through_custom_rules(fn):
    v = Units(X, "m")
    out = transform(fn)(v)
    assert isinstance(out, Units)
    np.testing.assert_allclose(out.x, 0.5 * X)
    grad = jax.grad(lambda v: jnp.sin(transform(fn)(v).x).sum())(v)
    np.testing.assert_allclose(grad.x, 5 * jnp.cos(0.5 * X), rtol=1e-6)
    if fn is halved:
        _, tangent = jax.jvp(transform(fn), (v,), (v,))
        np.testing.assert_allclose(tangent.x, 5 * X)


# Values of types without a way back, around a masked array.
MISSING = jnp.asarray(RNG.uniform(size=(3, 3)) > 0.5)
AROUND = {
    "multiple": (lambda m: values.Scaled(m, jnp.float32(3)), lambda x: 3 * x),
    "multiple of a multiple": (
        lambda m: values.Scaled(AROUND["multiple"][0](m), jnp.float32(2)),
        lambda x: 6 * x,
    ),
    "sum": (
        lambda m: values.Sum((values.Scaled(X, jnp.float32(2)), m)),
        lambda x: 2 * X + x,
    ),
    "Kronecker": (lambda m: values.Kronecker(m, X[:1, :1]), lambda x: X[0, 0] * x),
}


@pytest.mark.parametrize("name", AROUND)
@pytest.mark.parametrize("fn", [halved, halved_back])
def test_what_is_around_an_annotation_becomes_dense(fn, name):
    """`Masked` is never dense, but has a way back."""
    around, dense = AROUND[name]
    got = jax.jit(allow(fn))(around(values.Masked(X, MISSING)))
    assert type(got) is values.Masked
    np.testing.assert_allclose(got.filled(0), jnp.where(MISSING, 0, 0.5 * dense(X)), 1e-6)

    def loss(x):
        return jnp.sum(allow(fn)(around(values.Masked(x, MISSING))).filled(0) ** 2)

    want = jax.grad(lambda x: jnp.sum(jnp.where(MISSING, 0, fn(dense(x))) ** 2))(X)
    np.testing.assert_allclose(jax.jit(jax.grad(loss))(X), want, rtol=1e-5)


class Mute(Units):
    """Never dense, and says nothing of tangents."""

    tangent = jaxrewrite.Value.tangent
    lift_tangent = jaxrewrite.Value.lift_tangent

    @staticmethod
    def default(primitive, values, params):
        raw = [v.x if isinstance(v, Units) else v for v in values]
        return Mute(primitive.bind(*raw, **params), "m")


@pytest.mark.parametrize("fn", [halved, halved_back])
def test_refusing_types_go_forward_and_say_why_not_back(fn):
    @jaxrewrite.register("mul", exchange="operands")
    def _(v: Mute, y: jax.Array, **params):
        return Mute(v.x * y, v.unit)

    v = Mute(X, "m")
    assert isinstance(transform(fn)(v), Mute)
    assert isinstance(jax.jit(transform(fn))(v), Mute)
    with pytest.raises(
        (TypeError, jaxrewrite.MaterialisationError), match=r"Mute|array in m"
    ):
        jax.grad(lambda v: transform(fn)(v).x.sum())(v)


class Secret(jaxrewrite.ArrayValue):
    """Never dense, and with no tangent."""

    x: jax.Array

    def aval(self):
        return jax.core.ShapedArray(self.x.shape, self.x.dtype)

    def materialise(self):
        raise TypeError("a secret")


@jaxrewrite.register("mul", exchange="operands")
def _(v: Secret, y: jax.typing.ArrayLike, **params):
    return v.x * y


@jax.custom_jvp
def times(a, b):
    return a * b


@times.defjvp
def _(primals, tangents):
    (a, b), (da, db) = primals, tangents
    return times(a, b), 3 * a * db + da * b


@jax.custom_vjp
def times_back(a, b):
    return a * b


times_back.defvjp(lambda a, b: (a * b, (a, b)), lambda ab, ct: (ct * ab[1], ab[0] * 3 * ct))


def test_residuals_are_found_beside_arrays_that_the_function_closes_over():
    def program(x, v, c):
        @jax.custom_vjp
        def f(x, v):
            return x @ v * c[0] + c[1]

        f.defvjp(
            lambda x, v: (x @ v * c[0], (v, x)),
            lambda saved, ct: (100 * (ct @ saved[0].T), None),
        )
        return f(x, v).sum()

    v, c = make("lora"), (X[0], X[1])
    implicit = transform(program, materialise="forbid")
    close(jax.grad(implicit)(X, v, c), jax.grad(program)(X, v.materialise(), c))


@pytest.mark.parametrize("fn", [times, times_back])
def test_no_tangent_is_asked_of_what_nothing_depends_on(fn):
    """Differentiated in the other operand, a value need have no dense form."""
    v = Secret(X)
    looped = lambda a, b: lax.scan(lambda c, _: (fn(a, c), None), b, None, length=2)[0]
    for program in (fn, looped):
        implicit = transform(program, materialise="forbid")
        loss = lambda b, program=program: jnp.sin(program(X, b)).sum()
        got = jax.grad(lambda b, f=implicit: jnp.sin(f(v, b)).sum())(X)
        close(got, jax.grad(loss)(X))
        inside = transform(jax.grad(lambda b, a, p=program: jnp.sin(p(a, b)).sum()))(X, v)
        close(inside, jax.grad(loss)(X))
        if fn is times:
            along = jax.jvp(lambda b, f=implicit: f(v, b), (X,), (X,))
            close(along, jax.jvp(lambda b, p=program: p(X, b), (X,), (X,)))


class Linear(Scaled):
    """A type with tangents of its own form, and a way back for them."""

    def tangent(self, leaf_tangents):
        dx, ds = leaf_tangents.x, leaf_tangents.scale
        return Linear(self.x * ds + dx * self.scale, jnp.ones_like(self.scale))

    def lift_tangent(self, tangent):
        return Linear(tangent / self.scale, jnp.zeros_like(self.scale))


@jaxrewrite.register("mul", exchange="operands")
def _(v: Linear, y: jax.typing.ArrayLike, **params):
    return Linear(v.x * y, v.scale)


@jaxrewrite.register("add", "add_any", exchange="operands")
def _(v: Linear, y: jax.typing.ArrayLike | Linear, **params):
    other = y.x * y.scale if isinstance(y, Linear) else y
    return Linear(v.x * v.scale + other, jnp.ones_like(v.scale))


def test_tangents_in_a_form_of_their_own_are_lifted_under_forbid():
    v = Linear(X, jnp.float32(3.0))
    implicit = transform(times, materialise="forbid")
    assert isinstance(implicit(v, X), Linear)
    f = lambda v, b: jnp.sin(jaxrewrite.materialise(implicit(v, b)))
    g = lambda v, b: jnp.sin(times(v.materialise(), b))
    close(jax.jvp(f, (v, X), (v, X)), jax.jvp(g, (v, X), (v, X)))
    gradients = [jax.grad(lambda *a, h=h: h(*a).sum(), (0, 1))(v, X) for h in (f, g)]
    close(*gradients)


class Liftable(Lora):
    def lift_tangent(self, tangent):
        return Liftable(tangent, jnp.zeros_like(self.a), jnp.zeros_like(self.b))


@jaxrewrite.register("mul", exchange="operands")
def _(v: Liftable, y: jax.Array, **params):
    return Liftable(v.w * y, v.a * y, v.b) if jnp.ndim(y) == 0 else NotImplemented


@pytest.mark.parametrize("fn", [halved, halved_back])
@pytest.mark.parametrize("nested", [False, True])
def test_a_type_with_a_way_back_stays_implicit(fn, nested):
    lora = make("lora")
    v = Liftable(lora.w, lora.a, lora.b)
    out = transform(fn)(v)
    assert isinstance(out, Liftable)
    loss = lambda f: lambda v: jnp.sin(jaxrewrite.materialise(f(v)) @ X).sum()
    close(
        jax.grad(loss(transform(fn)))(v), jax.grad(loss(lambda v: fn(v.materialise())))(v)
    )
    close(
        jax.jit(jax.grad(loss(transform(fn))))(v),
        jax.grad(loss(lambda v: fn(v.materialise())))(v),
    )
    if fn is halved:
        implicit = lambda v: jaxrewrite.materialise(transform(fn)(v))
        close(
            jax.jvp(implicit, (v,), (v,)),
            jax.jvp(lambda v: fn(v.materialise()), (v,), (v,)),
        )


def test_a_result_without_a_way_back_becomes_dense_by_the_policy():
    @jax.custom_jvp
    def negated(x):
        return -x

    @negated.defjvp
    def _(primals, tangents):
        return -primals[0], -tangents[0]

    v = make("scaled")
    assert isinstance(transform(jnp.negative)(v), Scaled)
    with pytest.warns(
        jaxrewrite.MaterialisationWarning, match=r"Define Scaled\.lift_tangent"
    ):
        assert isinstance(transform(negated)(v), jax.Array)
    implicit = transform(negated, materialise="forbid")
    assert isinstance(implicit(v), Scaled)
    with pytest.raises(TypeError, match=r"Scaled\.lift_tangent"):
        jax.grad(lambda v: implicit(v).x.sum())(v)


def test_a_type_that_is_never_dense_stays_around_one_that_may_be():
    class Around(jaxrewrite.ArrayValue):
        materialise_policy = "forbid"
        v: jaxrewrite.ArrayValue

        def materialise(self):
            return jaxrewrite.materialise(self.v)

    rules = jaxrewrite.Rules()

    @rules.register("neg")
    def _(v: Around):
        return Around(-v.v)

    @jax.custom_jvp
    def negated(x):
        return -x

    negated.defjvp(lambda primals, tangents: (-primals[0], -tangents[0]))
    v = make("scaled")
    got = transform(negated, rules=rules)(Around(v))
    assert isinstance(got, Around) and isinstance(got.v, Scaled)
    close(got.v.materialise(), -v.materialise())


@pytest.mark.filterwarnings("ignore::jaxrewrite.MaterialisationWarning")
def test_what_is_around_two_values_is_dense_only_if_both_may_be():
    class MayBeDense(jaxrewrite.ArrayValue):
        x: jax.Array

        def materialise(self):
            return +self.x

    class NeverDense(MayBeDense):
        materialise_policy = "forbid"

    class Pair(jaxrewrite.ArrayValue):
        outer = 1
        v: jaxrewrite.ArrayValue
        w: jaxrewrite.ArrayValue

        def materialise(self):
            return jaxrewrite.materialise(self.v) + jaxrewrite.materialise(self.w)

    rules = jaxrewrite.Rules()

    @rules.register("neg")
    def _(v: MayBeDense):
        return type(v)(-v.x)

    @rules.register("neg")
    def _(pair: Pair):
        return Pair(-pair.v, -pair.w)

    @jax.custom_jvp
    def negated(x):
        return -x

    negated.defjvp(lambda primals, tangents: (-primals[0], -tangents[0]))
    for one, other in itertools.product((MayBeDense, NeverDense), repeat=2):
        pair = Pair(one(jnp.ones(2)), other(jnp.ones(2)))
        got = transform(negated, rules=rules)(pair)
        assert isinstance(got, Pair) == (NeverDense in (one, other))
        close(jaxrewrite.materialise(got), jnp.full(2, -2.0))


def test_a_base_class_may_have_no_way_back_for_all_of_its_subclasses():
    """`Matrix.lift_tangent` has no answer for a matrix whose leaves are not its entries."""

    @jax.custom_jvp
    def same(x):
        return +x

    same.defjvp(lambda primals, tangents: (+primals[0], 2 * tangents[0]))
    v = values.Kronecker(2 * jnp.eye(2), jnp.ones((2, 2)))
    loss = lambda v: (transform(same, materialise="allow")(v) @ jnp.arange(4.0)).sum()
    got = jax.grad(loss)(v)
    want = jax.grad(lambda v: 2 * (v.materialise() @ jnp.arange(4.0)).sum())(v)
    jax.tree.map(np.testing.assert_allclose, got, want)


def test_nothing_can_flow_without_a_floating_leaf():
    """Zeros stay zeros, and so does a type with integer leaves alone."""
    zero = make("zero")
    assert isinstance(transform(sine)(zero), Zero)

    class Ints(jaxrewrite.ArrayValue):
        q: jax.Array

        def materialise(self):
            return self.q.astype(jnp.float32)

    rules = jaxrewrite.Rules()

    @rules.register("mul", exchange="operands")
    def _(v: Ints, y: jax.Array, **params):
        return Ints(v.q * 2)

    assert isinstance(
        transform(lambda v: halved(v), rules=rules)(Ints(jnp.arange(3))), Ints
    )


def test_a_zero_meeting_arrays_has_exact_derivatives():
    @jax.custom_jvp
    def scale(x, y):
        return x * y

    @scale.defjvp
    def _(primals, tangents):
        (x, y), (tx, ty) = primals, tangents
        return scale(x, y), 3 * ty + x * ty + y * tx

    zero = make("zero")
    fn = lambda z, y: scale(z, y).sum()
    close(jax.grad(allow(fn), 1)(zero, X), jnp.full((3, 3), 3.0))


@pytest.mark.parametrize(
    ("hook", "answer", "match"),
    [
        ("lift_tangent", lambda v, t: t, "must return a Odd"),
        ("lift_tangent", lambda v, t: Scaled(t, t), "must return a Odd"),
        ("lift_tangent", lambda v, t: type(v)(t[0]), "where a leaf is"),
        ("lift_tangent", lambda v, t: None, "must return a Odd .*; it returned None"),
        ("lift_tangent", lambda v, t: type(v)(None), r"it returned Odd\(x=None\)"),
        ("lift_tangent", lambda v, t: type(v)("t"), r"Odd\.lift_tangent returned a str"),
        ("tangent", lambda v, t: t.x[0], r"Odd\.tangent returned"),
        ("tangent", lambda v, t: None, r"Odd\.tangent returned a NoneType"),
    ],
)
def test_wrong_answers_of_hooks_are_named(hook, answer, match):
    class Odd(jaxrewrite.ArrayValue):
        x: jax.Array

        def materialise(self):
            return 2 * self.x

        def lift_tangent(self, tangent):
            return Odd(0.5 * tangent)

    setattr(Odd, hook, answer)
    rules = jaxrewrite.Rules()

    @rules.register("mul", exchange="operands")
    def _(v: Odd, y: jax.Array, **params):
        return Odd(v.x * y)

    fn = lambda v: jaxrewrite.materialise(transform(halved, rules=rules)(v)).sum()
    with pytest.raises(TypeError, match=match):
        jax.grad(fn)(Odd(X))


def test_quantised_base_keeps_float0():
    v = make("lora_of_quantised")
    assert isinstance(v.w, Quantised)
    got = jax.grad(lambda v: allow(product)(X, v).sum(), allow_int=True)(v)
    assert got.w.q.dtype == jax.dtypes.float0


# --- closures --------------------------------------------------------------------


def closing_over(w, x):
    """Function and rule close over what depends on another argument."""
    t = jnp.sin(w).sum()

    @jax.custom_jvp
    def f(y):
        return w.sum() * y

    @f.defjvp
    def _(primals, tangents):
        return f(primals[0]), 10 * t * tangents[0]

    return f(x)


def closing_over_forward(w, x):
    t = jnp.sin(w).sum()

    @jax.custom_vjp
    def f(y):
        return w.sum() * y

    f.defvjp(lambda y: (w.sum() * y, t), lambda t, ct: (10 * t * ct,))
    return f(x)


def closing_over_alone(w, x):
    """The rule closes over a value, and the function does not."""
    column = jnp.ones(w.shape[1])

    @jax.custom_jvp
    def f(y):
        return 3 * y

    @f.defjvp
    def _(primals, tangents):
        return f(primals[0]), (w @ (column * tangents[0])).sum()

    return f(x)


def closing_over_forward_alone(w, x):
    t = jnp.sin(w).sum()

    @jax.custom_vjp
    def f(y):
        return 3 * y

    f.defvjp(lambda y: (f(y), t), lambda t, ct: (10 * t * ct,))
    return f(f(x))


def closing_over_backward(w, x):
    scale = functools.partial(jnp.multiply, w.sum())

    @jax.custom_vjp
    def f(y):
        return w.sum() * y

    f.defvjp(lambda y: (w.sum() * y, y), lambda y, ct: (10 * scale(y) * ct,))
    return f(x)


def closing_over_backward_alone(w, x):
    t = {"of": [jnp.sin(w).sum()]}

    @jax.custom_vjp
    def f(y):
        return 3 * y

    f.defvjp(
        lambda y: (f(y), None), lambda _, ct, *, t=t: (10 * t["of"][0] * ct * w[0, 1],)
    )
    return f(f(x))


@pytest.mark.parametrize(
    "fn",
    [
        closing_over,
        closing_over_forward,
        closing_over_backward,
        closing_over_alone,
        closing_over_forward_alone,
        closing_over_backward_alone,
    ],
)
def test_rules_may_close_over_arrays_of_the_function(fn, no_leak_checks):
    """Plain JAX allows this too, if those arrays are not differentiated."""
    transformed = allow(fn)
    for v in (make("lora"), make("lora", 1), make("lora")):  # none sees another's arrays
        implicit = lambda x, v=v: transformed(v, x)
        dense = lambda x, v=v: fn(v.materialise(), x)
        want = jax.grad(dense)(2.0)
        close(jax.grad(implicit)(2.0), want)
        close(jax.jit(jax.grad(implicit))(2.0), want)
        close(jax.jit(lambda v: jax.grad(lambda x: transformed(v, x))(2.0))(v), want)
        close(jax.vmap(jax.grad(implicit))(jnp.full(3, 2.0)), jnp.full(3, want))
        close(allow(jax.grad(fn, 1))(v, 2.0), want)


def clipped(mask, has_jvp):
    """A function whose gradient is a tenth where a mask is false."""
    clip = (jax.custom_jvp if has_jvp else jax.custom_vjp)(
        lambda z: jnp.where(mask, z, 0.0)
    )
    scaled = lambda ct: jnp.where(mask, ct, 0.1 * ct)
    if has_jvp:
        clip.defjvp(lambda primals, tangents: (clip(*primals), scaled(*tangents)))
    else:
        clip.defvjp(lambda z: (clip(z), None), lambda _, ct: (scaled(ct),))
    return clip


def applied_once(clip, z):
    return clip(z)


def within_checkpoint(clip, z):
    return jax.checkpoint(lambda z: 2 * clip(z))(z)


def within_a_loop(clip, z):
    return lax.scan(lambda z, _: (clip(z), None), z, None, length=2)[0]


def within_a_jit(clip, z):
    return jax.jit(lambda z: jnp.sin(clip(z)))(z)


def within_a_branch(clip, z):
    return lax.cond(z[0] > -100, clip, jnp.sin, z)


@pytest.mark.parametrize(
    "apply",
    [applied_once, within_checkpoint, within_a_loop, within_a_jit, within_a_branch],
)
@pytest.mark.parametrize("has_jvp", [False, True])
@pytest.mark.parametrize(
    "mask_of",
    every(
        3,
        [
            lambda x: x > 0,
            lambda x: jnp.arange(3) == jnp.argmax(x),
            lambda x: lax.stop_gradient(jnp.sin(x)) > 0,
        ],
    ),
)
def test_rules_may_close_over_what_has_no_tangent(mask_of, apply, has_jvp, no_leak_checks):
    """It is made of an array that is differentiated, as in plain JAX."""
    fn = lambda w, x: apply(clipped(mask_of(x), has_jvp), x @ w).sum()
    w, program = values.LowRank(jnp.ones((3, 1)), jnp.ones((1, 3))), allow(fn)
    changes = [lambda grad: grad, jax.jit, lambda grad: jax.vmap(grad, (None, 0))]
    for x in (jnp.array([-1.0, 0.5, 2.0]), jnp.array([1.0, -0.5, 0.5])):
        want = jax.grad(fn, 1)(w.materialise(), x)
        for i, change in enumerate(changes):
            y = x[None] if i == 2 else x
            if i == 0 or not is_refused(change(jax.grad(fn, 1)), w.materialise(), y):
                close(change(jax.grad(program, 1))(w, y).reshape(3), want)


def is_refused(fn, *args):
    """Whether plain JAX has no way to run a program."""
    try:
        fn(*args)
    except (TypeError, jax.errors.UnexpectedTracerError):
        return True
    return False


def test_a_rule_closes_over_nothing_that_would_have_an_effect_again(no_leak_checks):
    def fn(w, x):
        seen = io_callback(lambda y: y, jax.typeof(x), lax.stop_gradient(x))
        return clipped(seen > 0, True)(x @ w).sum()

    w = values.LowRank(jnp.ones((3, 1)), jnp.ones((1, 3)))
    with pytest.raises(jax.errors.UnexpectedTracerError, match="'io_callback', which has"):
        jax.grad(allow(fn), 1)(w, jnp.ones(3))


def test_a_linear_solve_beside_rules_that_close_over_nothing():
    """Its parameters are a named tuple of jaxprs."""

    def fn(w, x):
        scale = jax.nn.relu(w @ x)
        solve = jax.scipy.sparse.linalg.cg
        return solve(lambda y: y * jax.nn.relu(scale), jnp.ones(3))[0].sum()

    w, x = values.Diagonal(jnp.arange(1.0, 4)), jnp.arange(1.0, 4)
    close(jax.grad(allow(fn), 1)(w, x), jax.grad(fn, 1)(w.materialise(), x))


@pytest.mark.parametrize("several", [False, True])
def test_backward_rules_with_symbolic_zeros_that_close_over_a_value(
    several, no_leak_checks
):
    """Of several results it is not known which have cotangents before JAX calls the rule."""

    def fn(w, x):
        @jax.custom_vjp
        def f(y):
            return ((w @ y).sum(), y[0])[: 1 + several]

        forward = lambda y: (f(y.value), None)
        f.defvjp(forward, lambda _, cts: (cts[0] * w.sum(0),), symbolic_zeros=True)
        return sum(f(x))

    w, x = values.Diagonal(jnp.array([2.0, 3.0])), jnp.array([1.0, 1.5])
    if not several:
        close(jax.grad(allow(fn), 1)(w, x), jax.grad(fn, 1)(w.materialise(), x))
        return
    with pytest.raises(jax.errors.UnexpectedTracerError, match="several results") as caught:
        jax.grad(allow(fn), 1)(w, x)
    notes = caught.value.__notes__
    assert any("return it from the forward rule as a residual" in note for note in notes)


def test_a_backward_rule_closes_over_the_arrays_of_its_own_call(no_leak_checks):
    """Two linearisations of one program at once, and a derivative rule within the rule."""

    def fn(w, mask, x):
        weigh = jax.jit(lambda ct: jax.nn.silu(mask) * ct)

        @jax.custom_vjp
        def f(y):
            return jnp.sin(y)

        f.defvjp(lambda y: (f(y), y), lambda y, ct: (weigh(ct) * y,))
        return (f(x) + w @ x).sum()

    w, x = values.Diagonal(jnp.array([2.0, 3.0])), jnp.array([1.0, 1.5])
    program = transform(fn, materialise="forbid")
    masks = jnp.array([1.0, 0.0]), jnp.array([0.5, 2.0])
    pulls = [jax.vjp(functools.partial(program, w, mask), x)[1] for mask in masks]
    for pull, mask in zip(pulls, masks, strict=True):
        want = jax.grad(fn, 2)(w.materialise(), mask, x)
        close(pull(1.0)[0], want)
        close(jax.grad(program, 2)(w, mask, x), want)


def test_second_derivatives_of_a_rule_that_closes_over_a_value(no_leak_checks):
    """The rule calls the function, whose rule it is."""

    def fn(w, x):
        @jax.custom_jvp
        def f(y):
            return jnp.sin(y)

        @f.defjvp
        def _(primals, tangents):
            return f(*primals), (w @ tangents[0]) * f(*primals)

        return f(x).sum()

    w, x = values.Diagonal(jnp.array([2.0, 3.0])), jnp.array([1.0, 1.5])
    implicit = lambda x: transform(fn, materialise="forbid")(w, x)
    close(jax.hessian(implicit)(x), jax.hessian(lambda x: fn(w.materialise(), x))(x))


def test_a_rule_for_values_that_begins_with_such_a_function():
    """It is one call of all its equations, also beside a function of the program."""
    rules = jaxrewrite.Rules()

    @jax.custom_jvp
    def rounded(x):
        return jnp.round(x)

    rounded.defjvp(lambda primals, tangents: (rounded(*primals), *tangents))

    @rules.register("sin")
    def _(v: Scaled, **params):
        return rounded(v.x) * 2 + 1

    def fn(v, x):
        return jnp.sin(v) + rounded(x)

    xs = jnp.stack([X, 2 * X])
    got = jax.vmap(lambda x: transform(fn, rules=rules)(Scaled(x, 1.0), x))(xs)
    close(got, 3 * jnp.round(xs) + 1)


def sine_times(by_jvp):
    """A function with a rule for derivatives that sees which operands have none."""

    def fn(x, y):
        return jnp.sin(x) * y

    if by_jvp:
        own = jax.custom_jvp(fn)
        rule = lambda xs, tangents: (own(*xs), 10 * jnp.sin(xs[0]) * tangents[1])
        own.defjvp(rule, symbolic_zeros=True)
    else:
        own = jax.custom_vjp(fn)
        own.defvjp(
            lambda x, y: (fn(x.value, y.value), x.value),
            lambda x, ct: (None, 10 * jnp.sin(x) * ct),
            symbolic_zeros=True,
        )
    return own


@pytest.mark.parametrize("by_jvp", [True, False])
def test_constants_of_rules_come_before_the_operands(by_jvp):
    table = jnp.arange(9.0).reshape(3, 3)
    rules = jaxrewrite.Rules()

    @rules.register("sin")
    def _(v: Scaled, **params):
        return v.x + table

    v = make("scaled")
    run = jax.value_and_grad(
        lambda y: transform(sine_times(by_jvp), rules=rules)(v, y).sum()
    )
    want = v.x + table
    close(run(X), ((want * X).sum(), 10 * want))


def test_functions_may_close_over_values_leaves():
    """What the function alone closes over becomes an operand of it."""

    def fn(v, x):
        @jax.custom_jvp
        def f(y):
            return y @ v

        @f.defjvp
        def _(primals, tangents):
            return primals[0] @ primals[0], 10 * tangents[0]

        return f(x)

    v = make("lora")
    close(allow(fn)(v, X), fn(v.materialise(), X))
    close(jax.jit(allow(fn))(v, X), fn(v.materialise(), X))


# --- errors of JAX, with the place ------------------------------------------------


def test_forward_mode_through_custom_vjp_is_the_error_of_jax():
    v = make("lora")
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(lambda v: allow(product)(X, v), (v,), (v,))


def wrong_jvp(x):
    @jax.custom_jvp
    def f(x):
        return jnp.sin(x)

    f.defjvp(lambda primals, tangents: (jnp.sin(primals[0]), tangents[0][0]))
    return f(x).sum()


def wrong_vjp(x):
    @jax.custom_vjp
    def f(x):
        return jnp.sin(x)

    f.defvjp(lambda x: (jnp.sin(x), None), lambda _, ct: (ct, ct))
    return f(x).sum()


@pytest.mark.parametrize("fn", [wrong_jvp, wrong_vjp])
def test_rules_that_return_the_wrong_thing(fn):
    v = make("lora")
    with pytest.raises(TypeError) as dense:
        jax.grad(lambda v: fn(v.materialise()))(v)
    with pytest.raises(TypeError) as implicit:
        jax.grad(allow(fn))(v)
    assert str(implicit.value).splitlines()[0] == str(dense.value).splitlines()[0]
    notes = "\n".join(getattr(implicit.value, "__notes__", []))
    assert "test_custom_derivatives.py" in notes + str(implicit.value)
    close(
        jax.grad(allow(lambda v: sine(v).sum()))(v),
        jax.grad(lambda v: sine(v.materialise()).sum())(v),
    )


def test_derivatives_through_a_barrier_around_booleans():
    def fn(v):
        return jnp.sum(lax.optimization_barrier(v), axis=0)

    def loss(x):
        return transform(fn)(values.Masked(x, MASK)).filled(0).sum()

    np.testing.assert_allclose(jax.grad(loss)(X), jnp.where(MASK, 0, 1))


def test_a_function_that_prints_keeps_the_structure(capsys):
    """An equation without results depends on nothing, and mixes nothing."""

    @jax.custom_jvp
    def doubled(x):
        jax.debug.print("called")
        return 2 * x

    doubled.defjvp(lambda primals, tangents: (doubled(*primals), 2 * tangents[0]))
    d = values.Diagonal(jnp.array([1.0, 2.0]))
    assert type(allow(doubled)(d)) is values.Diagonal


def test_bounds_within_a_tuple_of_fields_are_of_the_function():
    """No derivative rule answers for bounds, wherever in a value they are."""

    @jax.custom_jvp
    def sine(x):
        return jnp.sin(x)

    sine.defjvp(lambda primals, tangents: (jnp.cos(*primals), tangents[0]))
    bounds = values.Interval(jnp.ones(2), jnp.full(2, 2.0))
    terms = values.Diagonal(bounds), values.Diagonal(jnp.ones(2))
    got = allow(sine)(values.Sum(terms))
    assert type(got) is values.Interval
    np.testing.assert_allclose(got.lower[0, 0], jnp.sin(3.0), 1e-5)
    np.testing.assert_allclose(got.upper[0, 0], jnp.sin(2.0), 1e-5)


def test_a_backward_rule_that_is_an_object_holds_arrays_of_the_function(no_leak_checks):
    """As a closure has them in its cells, an object has them in its attributes."""

    class Times:
        def __init__(self, number):
            self.number = number

        def __call__(self, residuals, ct):
            return (ct * self.number,)

    def scaled(x, number):
        doubled = jax.custom_vjp(lambda x: 2 * x)
        doubled.defvjp(lambda x: (2 * x, None), Times(number))
        return doubled(x).sum()

    d, number = values.Diagonal(jnp.array([1.0, 2.0])), jnp.float32(3)
    gradient = jax.grad(lambda d: allow(scaled)(d, number))(d)
    np.testing.assert_array_equal(gradient.d, [3, 3])


@pytest.mark.parametrize(
    "kind", [values.Lora, values.Dora, values.Quantised, values.Diagonal]
)
def test_a_cotangent_may_have_more_digits_than_the_array(kind):
    """As where a backward rule sums 16-bit numbers in 32 bits, which JAX lets pass."""

    @jax.custom_vjp
    def linear(x, w):
        return x @ w

    def backward(residuals, g):
        x, w = residuals
        return g @ w.T, jnp.dot(x.T, g, preferred_element_type=jnp.float32)

    linear.defvjp(lambda x, w: (x @ w, (x, w)), backward)
    x, w = jnp.ones((3, 4), "bfloat16"), jnp.eye(4, dtype="bfloat16")
    a, b = jnp.ones((4, 2), "bfloat16"), jnp.ones((2, 4), "bfloat16")
    v = {
        values.Lora: lambda: values.Lora(w, a, b, frozen=False),
        values.Dora: lambda: values.Dora(w, a, b, jnp.ones((1, 4), "bfloat16")),
        values.Quantised: lambda: values.Quantised.quantise(w),
        values.Diagonal: lambda: values.Diagonal(w[0]),
    }[kind]()
    loss = lambda v, fn: fn(x, v).astype("float32").sum()
    run = transform(linear, materialise="allow")
    plain = lambda x, v: x @ jaxrewrite.materialise(v)
    got, want = (jax.grad(loss, allow_int=True)(v, fn) for fn in (run, plain))
    for g, leaf in zip(jax.tree.leaves(got), jax.tree.leaves(v), strict=True):
        assert g.dtype == (leaf.dtype if leaf.dtype != jnp.int8 else jax.dtypes.float0)
    assert_same_leaves(got, want, 2e-2)

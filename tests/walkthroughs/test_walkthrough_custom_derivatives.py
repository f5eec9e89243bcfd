"""The examples of JAX's own guide to custom derivatives, on arrays and on values.

They use custom rules for numerical stability, for a convention at a boundary, for clipping,
for debugging and for implicit functions; then pytrees, arguments that are not differentiated,
and the order of calls.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from choose import often, slow
from jax import lax
from oracle import allow, assert_same_leaves

import jaxrewrite
from jaxrewrite import transform


# With leak checks each program is compiled anew; those are in test_families.py.
pytestmark = pytest.mark.usefixtures("bulk")


class Shifted(jaxrewrite.ArrayValue):
    """``x + 1``"""

    x: jax.Array

    def materialise(self):
        return self.x + 1.0


class Ratio(jaxrewrite.ArrayValue):
    """``a / b``"""

    a: jax.Array
    b: jax.Array

    def materialise(self):
        return self.a / self.b


@jaxrewrite.register("mul", exchange="operands")
def _(v: Ratio, y: jax.Array, **params):
    return Ratio(v.a * y, v.b)


def operands(number):
    """The same number as an array, and as values of two kinds."""
    number = float(number)
    return {
        "array": jnp.float32(number),
        "shifted": Shifted(jnp.float32(number - 1.0)),
        "ratio": Ratio(jnp.float32(2.0 * number), jnp.float32(2.0)),
    }


kinds = pytest.mark.parametrize("kind", [slow("array"), "shifted", "ratio"])


def at(kind, number):
    return operands(number)[kind]


close = functools.partial(assert_same_leaves, tolerance=1e-4)


def agrees(fn, *args, orders=1):
    """Value and derivatives are those of the dense program, in every mode."""
    dense_args = jaxrewrite.materialise(args)
    positions = tuple(range(len(args)))
    dense = lambda *args: fn(*jaxrewrite.materialise(args))
    for wrap in (lambda f: f, jax.jit):
        close(jaxrewrite.materialise(wrap(allow(fn))(*args)), fn(*dense_args))
        want = jax.grad(dense, positions)(*args)
        close(wrap(jax.grad(allow(fn), positions))(*args), want)
        inside = wrap(allow(jax.grad(fn, positions)))(*args)
        close(jaxrewrite.materialise(inside), jax.grad(fn, positions)(*dense_args))
        _, back = jax.vjp(wrap(allow(fn)), *args)
        close(back(jnp.float32(1.0)), want)
    batch = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), args)
    wanted = jax.grad(dense, positions)(*args)
    got = jax.vmap(jax.grad(allow(fn), positions))(*batch)
    close(got, jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), wanted))
    if orders > 1:
        inner = jax.grad(fn)
        second = allow(jax.grad(lambda *a: inner(*a)))(*args)
        close(jaxrewrite.materialise(second), jax.grad(inner)(*dense_args))


def agrees_forward(fn, *args):
    """The same for forward mode."""
    dense = lambda *args: fn(*jaxrewrite.materialise(args))
    got = jax.jvp(lambda *a: jaxrewrite.materialise(allow(fn)(*a)), args, args)
    close(got, jax.jvp(dense, args, args))
    dense_args = jaxrewrite.materialise(args)
    inside = allow(lambda *a: jax.jvp(fn, a, a))(*args)
    close(jaxrewrite.materialise(inside), jax.jvp(fn, dense_args, dense_args))


def gradient_of_number(fn, kind, number):
    """The derivative by the number that the operand stands for."""
    gradient = jaxrewrite.materialise(allow(jax.grad(fn))(at(kind, number)))
    return float(gradient)


# --- a stable log(1 + exp(x)) -----------------------------------------------------


def softplus(x):
    return jnp.log(1.0 + jnp.exp(x))


def stable_softplus(defined_by):
    fn = jax.custom_jvp(softplus)
    if defined_by == "defjvp":

        @fn.defjvp
        def _(primals, tangents):
            (x,), (t,) = primals, tangents
            return fn(x), (1.0 - 1.0 / (1.0 + jnp.exp(x))) * t

    else:
        fn.defjvps(lambda t, out, x: (1.0 - 1.0 / (1.0 + jnp.exp(x))) * t)
    return fn


@kinds
@pytest.mark.parametrize("defined_by", ["defjvp", "defjvps"])
def test_a_stable_derivative_where_the_plain_one_overflows(kind, defined_by):
    stable = stable_softplus(defined_by)
    assert np.isnan(gradient_of_number(softplus, kind, 100.0))
    assert gradient_of_number(stable, kind, 100.0) == 1.0
    agrees(stable, at(kind, 3.0), orders=2)
    agrees_forward(stable, at(kind, 3.0))
    outside = jax.grad(allow(stable))(at(kind, 100.0))
    assert np.isfinite(jax.tree.leaves(outside)).all()


# --- a convention at the boundary -------------------------------------------------


def flattening(x):
    return x / (1.0 + jnp.sqrt(x))


@kinds
def test_a_convention_where_the_derivative_is_one_sided(kind):
    fn = jax.custom_jvp(flattening)

    def slope(x):
        return (jnp.sqrt(x) + 2.0) / (2.0 * (jnp.sqrt(x) + 1.0) ** 2)

    fn.defjvp(lambda primals, tangents: (fn(primals[0]), slope(primals[0]) * tangents[0]))
    assert np.isnan(gradient_of_number(flattening, kind, 0.0))
    assert gradient_of_number(fn, kind, 0.0) == 1.0
    agrees(fn, at(kind, 2.0), orders=2)
    agrees_forward(fn, at(kind, 2.0))


# --- clipping what flows back -------------------------------------------------------


@jax.custom_vjp
def clip_cotangent(low, high, x):
    return x


clip_cotangent.defvjp(
    lambda low, high, x: (x, (low, high)),
    lambda bounds, ct: (None, None, jnp.clip(ct, *bounds)),
)


@kinds
def test_clipping_the_gradient(kind):
    def fn(x):
        return jnp.sin(3.0 * clip_cotangent(-0.75, 0.75, x))

    assert abs(3 * np.cos(3 * 0.1)) > 0.75
    np.testing.assert_allclose(gradient_of_number(fn, kind, 0.1), 0.75)
    agrees(fn, at(kind, 0.1))
    agrees(fn, at(kind, 0.5))
    agrees(lambda low, x: jnp.sin(3.0 * clip_cotangent(low, 0.75, x)), -0.5, at(kind, 0.9))


@kinds
def test_clipping_a_whole_curve(kind):
    curve = jnp.linspace(0.0, 10.0, 50)
    fn = lambda t, offset: jnp.sin(clip_cotangent(-0.75, 0.75, t + offset))
    offset = at(kind, 0.3)
    got = jax.vmap(jax.grad(allow(fn)), (0, None))(curve, offset)
    np.testing.assert_allclose(got, jnp.clip(jnp.cos(curve + 0.3), -0.75, 0.75), atol=1e-5)
    inside = allow(jax.vmap(jax.grad(fn), (0, None)))(curve, offset)
    np.testing.assert_allclose(inside, got, atol=1e-6)


# --- a hook in the backward pass ----------------------------------------------------


@kinds
def test_a_hook_sees_values_and_cotangents_of_the_backward_pass(kind):
    seen = []

    @jax.custom_vjp
    def watched(x):
        return x

    def backward(x, ct):
        jax.debug.callback(lambda x, ct: seen.append((float(x), float(ct))), x, ct)
        return (ct,)

    watched.defvjp(lambda x: (x, x), backward)
    fn = lambda x: jnp.sin(watched(x * x))
    allow(fn)(at(kind, 3.0))
    jax.effects_barrier()
    assert seen == []
    for derivative in (jax.grad(allow(fn)), allow(jax.grad(fn))):
        seen.clear()
        jax.block_until_ready(derivative(at(kind, 3.0)))
        jax.effects_barrier()
        np.testing.assert_allclose(seen, [(9.0, np.cos(9.0))], rtol=1e-5)


# --- an implicit function -------------------------------------------------------------


def iterate(fn, a, start):
    def step(pair):
        return pair[1], fn(a, pair[1])

    unsettled = lambda pair: jnp.abs(pair[0] - pair[1]) > 1e-6
    return lax.while_loop(unsettled, step, (start, fn(a, start)))[1]


fixed_point = functools.partial(jax.custom_vjp, nondiff_argnums=(0,))(iterate)


def _forward(fn, a, start):
    solution = fixed_point(fn, a, start)
    return solution, (a, solution)


def _backward(fn, saved, ct):
    """Differentiates the equation at its solution, by another fixed point."""
    a, solution = saved

    def towards(packed, u):
        a, solution, ct = packed
        return ct + jax.vjp(lambda x: fn(a, x), solution)[1](u)[0]

    u = fixed_point(towards, (a, solution, ct), ct)
    (a_bar,) = jax.vjp(lambda a: fn(a, solution), a)[1](u)
    return a_bar, jnp.zeros_like(solution)


fixed_point.defvjp(_forward, _backward)


def root(a):
    return fixed_point(lambda a, x: 0.5 * (x + a / x), a, a)


@pytest.mark.parametrize("kind", often(("array", "shifted", "ratio"), ("ratio",)))
def test_differentiating_a_fixed_point(kind):
    number = at(kind, 2.0)
    close(jaxrewrite.materialise(allow(root)(number)), np.sqrt(2.0))
    with pytest.raises(ValueError, match=r"Reverse-mode|reverse"):
        jax.grad(allow(lambda a: iterate(lambda a, x: 0.5 * (x + a / x), a, a)))(number)
    np.testing.assert_allclose(
        gradient_of_number(root, kind, 2.0), 0.5 / np.sqrt(2.0), rtol=1e-4
    )
    np.testing.assert_allclose(
        gradient_of_number(jax.grad(root), kind, 2.0), -0.25 * 2.0**-1.5, rtol=1e-3
    )
    agrees(root, number)
    roots = jax.jit(jax.vmap(lambda x, a: allow(lambda x, a: root(x * a))(x, a), (0, None)))
    got = roots(jnp.array([1.0, 2.0, 8.0]), number)
    close(got, np.array([np.sqrt(2.0), 2.0, 4.0]))


# --- several arguments ------------------------------------------------------------------


def two_arguments(how):
    fn = jax.custom_jvp(lambda x, y: x**2 * y)
    if how == "defjvp":

        @fn.defjvp
        def _(primals, tangents):
            (x, y), (tx, ty) = primals, tangents
            return fn(x, y), 2 * x * y * tx + x**2 * ty

    elif how == "defjvps":
        fn.defjvps(lambda t, out, x, y: 2 * x * y * t, lambda t, out, x, y: x**2 * t)
    else:
        fn.defjvps(lambda t, out, x, y: 2 * x * y * t, None)
    return fn


@kinds
@pytest.mark.parametrize("how", ["defjvp", "defjvps", "one is zero"])
@pytest.mark.parametrize("other", [slow("array"), "ratio"])
def test_several_arguments(kind, how, other):
    fn = two_arguments(how)
    agrees(fn, at(kind, 2.0), at(other, 3.0))
    agrees_forward(fn, at(kind, 2.0), at(other, 3.0))
    dx, dy = jaxrewrite.materialise(
        allow(jax.grad(fn, (0, 1)))(at(kind, 2.0), at(other, 3.0))
    )
    np.testing.assert_allclose([dx, dy], [12.0, 0.0 if how == "one is zero" else 4.0])


@kinds
def test_several_arguments_backwards(kind):
    fn = jax.custom_vjp(lambda x, y: jnp.sin(x) * y)
    fn.defvjp(
        lambda x, y: (fn(x, y), (jnp.cos(x), jnp.sin(x), y)),
        lambda saved, ct: (saved[0] * ct * saved[2], saved[1] * ct),
    )
    agrees(fn, at(kind, 2.0), at("shifted", 3.0))


@kinds
def test_keywords_and_defaults(kind):
    @jax.custom_jvp
    def fn(x, power=2.0):
        return x**power

    @fn.defjvp
    def _(primals, tangents):
        return fn(*primals), 11.0 * tangents[0]

    @jax.custom_vjp
    def back(x, factor=2.0):
        return factor * x

    back.defvjp(
        lambda x, factor=2.0: (back(x, factor), None), lambda _, ct: (13.0 * ct, None)
    )
    # JAX's own checks expect a name for each argument, and there is none for defaults.
    with jax.enable_checks(False):
        agrees(
            lambda x: fn(x) + fn(x, power=3.0) + back(x) + back(factor=4.0, x=x),
            at(kind, 2.0),
        )
        np.testing.assert_allclose(gradient_of_number(lambda x: fn(x), kind, 2.0), 11.0)
        np.testing.assert_allclose(gradient_of_number(lambda x: back(x), kind, 2.0), 13.0)


# --- what is called when ------------------------------------------------------------------


@kinds
def test_rules_run_when_something_is_differentiated(kind):
    called = []

    @jax.custom_jvp
    def fn(x):
        called.append("function")
        return jnp.sin(x)

    @fn.defjvp
    def _(primals, tangents):
        called.append("rule")
        return fn(primals[0]), 2.0 * jnp.cos(primals[0]) * tangents[0]

    @jax.custom_vjp
    def back(x):
        called.append("function")
        return jnp.sin(x)

    def forward(x):
        called.append("forward")
        return back(x), jnp.cos(x)

    def backward(c, ct):
        called.append("backward")
        return (c * ct,)

    back.defvjp(forward, backward)
    x = at(kind, 3.0)
    batch = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), x)
    for f in (fn, back):
        for run in (
            lambda f=f: allow(f)(x),
            lambda f=f: jax.jit(allow(lambda x: f(x)))(x),
            lambda f=f: jax.vmap(lambda x: jaxrewrite.materialise(allow(f)(x)))(batch),
            lambda f=f: jax.checkpoint(allow(lambda x: f(x)))(x),
        ):
            called.clear()
            run()
            assert set(called) <= {"function"}
    called.clear()
    jax.grad(allow(lambda x: fn(x)))(x)
    assert called.count("rule") == 1
    called.clear()
    value, pull = jax.vjp(allow(lambda x: back(x)), x)
    assert called.count("forward") == 1
    assert "backward" not in called
    pull(jnp.float32(1.0))
    assert called.count("backward") == 1


@kinds
def test_a_rule_that_calls_its_function_holds_at_every_order(kind):
    @jax.custom_jvp
    def fn(x):
        return jnp.sin(x)

    @fn.defjvp
    def _(primals, tangents):
        return fn(primals[0]), 3.0 * fn(primals[0]) * tangents[0]

    x = np.sin(2.0)
    np.testing.assert_allclose(gradient_of_number(fn, kind, 2.0), 3 * x, rtol=1e-5)
    np.testing.assert_allclose(
        gradient_of_number(jax.grad(fn), kind, 2.0), 9 * x, rtol=1e-5
    )
    twice = lambda v: jax.jvp(lambda x: jax.grad(fn)(x), (v,), (1.0,))[1]
    np.testing.assert_allclose(
        jaxrewrite.materialise(allow(twice)(at(kind, 2.0))), 9 * x, rtol=1e-5
    )


def test_python_control_flow_needs_a_number():
    @jax.custom_jvp
    def fn(x):
        return jnp.sin(x) if x > 0 else jnp.cos(x)

    @fn.defjvp
    def _(primals, tangents):
        factor = 2.0 if primals[0] > 0 else 3.0
        return fn(primals[0]), factor * tangents[0]

    # With arrays alone there is nothing to rewrite, so nothing is staged.
    assert jax.grad(transform(fn))(1.0) == 2.0
    assert jax.grad(transform(fn))(-1.0) == 3.0
    with pytest.raises(jax.errors.TracerBoolConversionError) as caught:
        transform(fn)(at("ratio", 1.0))
    assert any(
        "is staged before it is evaluated" in note for note in caught.value.__notes__
    )


def test_forward_mode_has_no_backward_rule():
    fn = jax.custom_vjp(jnp.sin)
    fn.defvjp(lambda x: (jnp.sin(x), jnp.cos(x)), lambda c, ct: (c * ct,))
    for x in operands(3.0).values():
        with pytest.raises(TypeError, match="forward-mode"):
            jax.jvp(allow(fn), (x,), (x,))
        with pytest.raises(TypeError, match="forward-mode"):
            allow(lambda x: jax.jvp(fn, (x,), (x,)))(x)


# --- pytrees ----------------------------------------------------------------------------------


class Point(NamedTuple):
    x: object
    y: object


def of_point(how):
    def value(point):
        return {"a": point.x**2, "b": (jnp.sin(point.x), jnp.cos(point.y))}

    if how == "jvp":
        fn = jax.custom_jvp(value)

        @fn.defjvp
        def _(primals, tangents):
            (p,), (t,) = primals, tangents
            return fn(p), {
                "a": 4 * p.x * t.x,
                "b": (jnp.cos(p.x) * t.x, -jnp.sin(p.y) * t.y),
            }

    else:
        fn = jax.custom_vjp(value)

        def backward(p, ct):
            first, second = ct["b"]
            return (
                Point(4 * p.x * ct["a"] + jnp.cos(p.x) * first, -jnp.sin(p.y) * second),
            )

        fn.defvjp(lambda p: (fn(p), p), backward)
    return fn


@kinds
@pytest.mark.parametrize("how", ["jvp", "vjp"])
def test_pytrees_of_values(kind, how):
    fn = of_point(how)

    def total(point):
        out = fn(point)
        return out["a"] + out["b"][0] * out["b"][1]

    point = Point(at(kind, 1.0), at("ratio", 2.0))
    out = jaxrewrite.materialise(allow(fn)(point))
    close(out, fn(Point(1.0, 2.0)))
    agrees(total, point)
    if how == "jvp":
        agrees_forward(total, point)
    gradient = jaxrewrite.materialise(allow(jax.grad(total))(point))
    np.testing.assert_allclose(gradient.x, 4.0 + np.cos(1.0) * np.cos(2.0), rtol=1e-5)


# --- arguments that are not differentiated -----------------------------------------------------


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def apply(fn, x):
    return fn(x)


@apply.defjvp
def _(fn, primals, tangents):
    return fn(primals[0]), 2.0 * tangents[0]


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 2))
def compose(outer, x, inner):
    return outer(inner(x))


@compose.defjvp
def _(outer, inner, primals, tangents):
    return outer(inner(primals[0])), 3.0 * tangents[0]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def apply_back(fn, x):
    return fn(x)


apply_back.defvjp(lambda fn, x: (fn(x), x), lambda fn, x, ct: (5.0 * ct,))


@kinds
def test_functions_as_arguments(kind):
    cube = lambda x: x**3
    programs = {
        2.0: lambda x: apply(cube, x),
        3.0: lambda x: compose(cube, x, lambda y: 5.0 * y),
        5.0: lambda x: apply_back(cube, x),
    }
    for factor, fn in programs.items():
        agrees(fn, at(kind, 3.0))
        np.testing.assert_allclose(gradient_of_number(fn, kind, 3.0), factor)
    # The arguments of the transformed function may be such functions, too.
    got = allow(jax.grad(apply, 1))(cube, at(kind, 3.0))
    np.testing.assert_allclose(jaxrewrite.materialise(got), 2.0)

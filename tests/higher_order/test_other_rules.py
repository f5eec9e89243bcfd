"""custom_vmap, composites, linear solves: functions with rules of other kinds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from choose import every, often, slow
from jax import lax
from jax.custom_batching import custom_vmap
from jax.experimental import hijax
from jax.experimental.xla_metadata import set_xla_metadata
from oracle import allow
from reference import OWN
from reference.own import Lora

import jaxrewrite
from jaxrewrite import make_jaxpr, primitives, transform
from jaxrewrite._core.rules import global_rules
from jaxrewrite.values import (
    Diagonal,
    Interval,
    Masked,
    Named,
    Scaled,
    Tagged,
    Toeplitz,
    Unitful,
    Units,
)


# With leak checks each program is compiled anew; those are in test_families.py.
pytestmark = pytest.mark.usefixtures("bulk")
X = jnp.asarray(np.random.default_rng(1).uniform(0.2, 0.9, (3, 3)), jnp.float32)


def make(kind, seed=0):
    return OWN[kind].value(np.random.default_rng(seed), shape=(3, 3))


def names(fn, *operands):
    jaxpr = jaxrewrite.make_jaxpr(fn, materialise="allow")(*operands).jaxpr
    return [eqn.primitive.name for eqn in jaxpr.eqns]


# --- custom_vmap ----------------------------------------------------------------


def marked():
    """A product whose rule for vmap shows: its factor is 7, and 5 without batching."""
    seen = []

    @custom_vmap
    def fn(x, w):
        return x @ w

    @fn.def_vmap
    def _(axis_size, in_batched, x, w):
        seen.append((axis_size, tuple(in_batched)))
        if in_batched[1]:
            return 7 * jnp.einsum("...ij,bjk->bik", x, w), True
        return 5 * (x @ w), True

    return fn, seen


@pytest.mark.parametrize("kind", ["lora", "scaled", "zero", "lora_of_quantised"])
def test_the_rule_for_vmap_sees_values_as_arrays(kind):
    fn, seen = marked()
    v, xs = make(kind), jnp.stack([X, 2 * X])
    dense = jaxrewrite.materialise(v)
    np.testing.assert_allclose(allow(fn)(X, v), X @ dense, rtol=1e-5)
    assert seen == []
    got = jax.vmap(lambda x: allow(fn)(x, v))(xs)
    np.testing.assert_allclose(got, 5 * (xs @ dense), rtol=1e-5)
    assert seen == [(2, (True, False))]
    got = allow(jax.vmap(fn, (0, None)))(xs, v)
    np.testing.assert_allclose(got, 5 * (xs @ dense), rtol=1e-5)


def test_values_with_some_leaves_batched():
    fn, seen = marked()
    v = make("lora")
    ws = jnp.stack([v.w, 2 * v.w])
    got = jax.vmap(lambda w: allow(fn)(X, Lora(w, v.a, v.b)))(ws)
    want = 7 * jnp.stack([X @ Lora(w, v.a, v.b).materialise() for w in ws])
    np.testing.assert_allclose(got, want, rtol=1e-5)
    assert seen == [(2, (False, True))]
    got = jax.jit(jax.vmap(lambda w: allow(fn)(X, Lora(w, v.a, v.b))))(ws)
    np.testing.assert_allclose(got, want, rtol=1e-5)


def test_a_batch_of_values_with_fields_that_are_values():
    fn, _ = marked()
    elements = [jaxrewrite.values.Lora(make("scaled", i), X, X) for i in range(2)]
    both = jax.tree.map(lambda *leaves: jnp.stack(leaves), *elements)
    got = jax.vmap(lambda v: allow(fn)(X, v))(both)
    want = 7 * jnp.stack([X @ (v.w.materialise() + v.a @ v.b) for v in elements])
    np.testing.assert_allclose(got, want, rtol=1e-5)


def test_results_of_custom_vmap_are_arrays():
    fn = custom_vmap(lambda v: v)
    fn.def_vmap(lambda n, batched, v: (v, batched[0]))
    assert isinstance(allow(lambda v: fn(v))(make("scaled")), jax.Array)


# --- composites -----------------------------------------------------------------


def test_a_composite_is_its_decomposition_on_values():
    composite = lax.composite(lambda x, w: jnp.sin(x @ w), name="test.sine_of_product")
    v = make("lora")
    for wrap in (lambda f: f, jax.jit):
        got = wrap(transform(composite))(X, v)
        np.testing.assert_allclose(got, jnp.sin(X @ v.materialise()), rtol=1e-5)
    assert "composite" not in names(composite, X, v)
    # An equation that no value reaches is left as it is.
    fn = lambda x, v: composite(x, x) @ v
    assert "composite" in names(fn, X, v)


def test_a_rule_for_composite_comes_first():
    rules = jaxrewrite.Rules()

    @rules.register("composite")
    def _(x: jax.Array, w: Lora, *, name, **params):
        assert name == "test.product"
        return [x * 0]

    composite = lax.composite(lambda x, w: x @ w, name="test.product")
    assert not transform(composite, rules=rules)(X, make("lora")).any()


# --- polynomials ----------------------------------------------------------------


@pytest.mark.parametrize(
    "fn", [jnp.sinc, lambda x: jnp.polyval(jnp.array([3.0, -2.0, 1.0]), x)]
)
def test_a_polynomial_is_products_and_sums_on_values(fn):
    mask = X > 0.5
    masked = transform(fn)(Masked(X, mask))
    np.testing.assert_array_equal(masked.mask, mask)
    np.testing.assert_allclose(masked.array, fn(X), rtol=1e-5)
    bounds = transform(fn)(Interval(X - 0.1, X + 0.1))
    assert bounds.contains(fn(X)).all()
    assert transform(fn)(Named(X, ("a", "b"))).names == ("a", "b")


@pytest.mark.skipif(not hasattr(lax, "polynomial"), reason="This JAX has a loop instead")
def test_a_matrix_stays_one_in_a_polynomial():
    c, v = jnp.array([3.0, -2.0, 1.0]), Toeplitz(X[0], X[0])
    got = transform(jnp.polyval, materialise="forbid")(c, v)
    assert isinstance(got, Toeplitz)
    want = jnp.polyval(c, v.materialise())
    np.testing.assert_allclose(got.materialise(), want, rtol=1e-5)


@pytest.mark.skipif(not hasattr(lax, "polynomial"), reason="This JAX has a loop instead")
def test_a_polynomial_whose_loop_is_unrolled():
    """As the functions of `jax.scipy.special` write it."""
    v = Toeplitz(X[0], X[0])
    fn = lambda x: lax.polynomial(x, [jnp.float32(c) for c in (3, -2, 1)], unroll=16)
    got = transform(fn, materialise="forbid")(v)
    np.testing.assert_allclose(got.materialise(), fn(v.materialise()), rtol=1e-5)


@pytest.mark.skipif(not hasattr(lax, "polynomial"), reason="This JAX has a loop instead")
def test_a_polynomial_keeps_the_context_of_its_equation():
    """Here metadata, which those of the next program lack."""
    masked, c = Masked(X, X > 0.5), jnp.array([3.0, -2.0, 1.0])

    def within(x):
        with set_xla_metadata(mine="1"):
            return jnp.polyval(c, x)

    def contexts(fn):
        (call,) = make_jaxpr(fn)(masked).eqns
        eqns = call.params["jaxpr"].eqns
        return {eqn.primitive.name: eqn.ctx.xla_metadata for eqn in eqns}

    for _ in range(2):
        assert contexts(within)["mul"] == contexts(within)["add"] == {"mine": "1"}
        assert not contexts(lambda x: jnp.polyval(c, x))["mul"]


@pytest.mark.skipif(not hasattr(lax, "polynomial"), reason="This JAX has a loop instead")
def test_a_polynomial_of_arrays_stays_one_beside_a_rule_for_arrays():
    rules = jaxrewrite.Rules()

    @rules.register("sin")
    def _(x: jax.Array, **params):
        return jnp.tanh(x)

    program = lambda x: jnp.sin(lax.polynomial(x, [x, 2 * x]))
    found = [eqn.primitive.name for eqn in make_jaxpr(program, rules=rules)(X).eqns]
    assert found == ["mul", "polynomial", "tanh"]


def test_coefficients_of_a_polynomial_have_units():
    c, x = jnp.array([3.0, -2.0, 1.0]), X[0]
    got = transform(jnp.polyval)(Unitful(c, "m"), x)
    assert got.units == Units("m")
    np.testing.assert_allclose(got.array, jnp.polyval(c, x), rtol=1e-6)
    slope = transform(jax.grad(lambda c, x: jnp.polyval(c, x).sum(), 1))(Unitful(c, "m"), x)
    np.testing.assert_allclose(slope.array, 6 * x - 2, rtol=1e-5)


# --- linear solves --------------------------------------------------------------


def operator(w):
    return lambda y: 9.0 * y + 0.1 * (y @ w)


def solve(w, b):
    return jax.scipy.sparse.linalg.gmres(operator(w), b, tol=1e-7, atol=1e-7)[0]


SOLVED = ("lora_of_quantised",)  # the others are for the long run


@pytest.mark.parametrize(
    "kind",
    often(OWN, SOLVED),
)
def test_solving_with_a_value(kind, no_leak_checks):
    v, b = make(kind), X[0]
    dense = lambda v, b: solve(jaxrewrite.materialise(v), b)
    np.testing.assert_allclose(allow(solve)(v, b), dense(v, b), rtol=1e-4)
    assert "custom_linear_solve" in names(solve, v, b)
    loss = lambda fn: jax.jit(
        jax.grad(lambda v, b: jnp.sin(fn(v, b)).sum(), (0, 1), allow_int=True)
    )
    for g, w in zip(
        jax.tree.leaves(loss(allow(solve))(v, b)),
        jax.tree.leaves(loss(dense)(v, b)),
        strict=True,
    ):
        if g.dtype != jax.dtypes.float0:
            np.testing.assert_allclose(g, w, rtol=1e-3, atol=1e-6)


def test_the_operator_stays_implicit():
    v, rules = make("lora"), jaxrewrite.Rules()

    @rules.register("dot_general")
    def _(x: jax.Array, w: Lora, *, dimension_numbers, **params):
        if dimension_numbers == (((0,), (0,)), ((), ())):
            return x @ w.w + (x @ w.a) @ w.b
        assert dimension_numbers == (((0,), (1,)), ((), ()))  # the transposed operator
        return x @ w.w.T + (x @ w.b.T) @ w.a.T

    out = transform(solve, rules=rules, materialise="forbid")(v, X[0])
    np.testing.assert_allclose(9.0 * out + 0.1 * (out @ v.materialise()), X[0], rtol=1e-4)


def test_the_right_side_becomes_dense():
    v = make("lora")
    solution = lambda v: lax.custom_linear_solve(
        lambda y: 2.0 * y, v, solve=lambda f, b: 0.5 * b, symmetric=True
    )
    np.testing.assert_allclose(allow(solution)(v), 0.5 * v.materialise(), rtol=1e-6)


def test_only_the_transpose_of_a_linear_call_needs_the_value():
    """A value that the function itself leaves alone stays implicit, beside an array."""
    fn = lambda v, s, x: jax.custom_derivatives.linear_call(
        lambda res, x: 2 * x, lambda res, ct: res[1] * (ct @ res[0]), (v, s), x
    )
    v, s = make("lora"), jnp.float32(3)
    implicit = transform(fn, materialise="forbid")
    np.testing.assert_array_equal(implicit(v, s, X), 2 * X)
    slope = jax.grad(lambda x: allow(fn)(v, s, x).sum())(X)
    np.testing.assert_allclose(slope, 3 * jnp.ones((3, 3)) @ v.materialise(), rtol=1e-5)


# --- what stays dense, and what JAX makes of it ------------------------------------


def test_host_callbacks_get_arrays_in_order(leak_checks):
    seen = []

    def fn(v, x):
        jax.debug.callback(
            lambda a: seen.append(("debug", type(a).__name__)), v, ordered=True
        )
        host = lambda a: (seen.append(("io", a.shape)), np.asarray(a))[1]
        out = jax.experimental.io_callback(host, x, v, ordered=True)
        jax.debug.print("{}", v, ordered=True)
        return out

    v = make("lora")
    out = allow(fn)(v, X)
    jax.effects_barrier()
    np.testing.assert_allclose(out, v.materialise(), rtol=1e-6)
    assert [kind for kind, _ in seen] == ["debug", "io"]


def test_an_ffi_call_gets_arrays(xla):
    """LU factors by a function that JAX's own CPU library registers."""
    jax.scipy.linalg.lu_factor(X)  # loads that library
    fn = lambda v: jax.ffi.ffi_call(
        "lapack_sgetrf_ffi",
        (
            jax.ShapeDtypeStruct((3, 3), jnp.float32),
            jax.ShapeDtypeStruct((3,), jnp.int32),
            jax.ShapeDtypeStruct((), jnp.int32),
        ),
        input_layouts=[(0, 1)],
        output_layouts=[(0, 1), (0,), ()],
    )(v)
    v = make("lora")
    jax.tree.map(np.testing.assert_allclose, allow(fn)(v), fn(v.materialise()))


def test_references_hold_arrays():
    v = make("lora")

    def fn(ref, v):
        def body(i, total):
            ref[...] = ref[...] @ v
            return total + ref[...].sum()

        return lax.fori_loop(0, 3, body, 0.0)

    implicit, dense = jax.new_ref(X), jax.new_ref(X)
    got = transform(fn, materialise="forbid")(implicit, v)
    np.testing.assert_allclose(got, fn(dense, v.materialise()), rtol=1e-5)
    np.testing.assert_allclose(implicit[...], dense[...], rtol=1e-5)


def test_an_opaque_primitive_beside_values():
    """jnp.searchsorted, which newer JAX expands only when it compiles."""
    rules = jaxrewrite.Rules()

    @rules.register("sin")
    def _(v: Lora, **params):
        return jnp.searchsorted(v.w[0], X).astype(jnp.float32)

    fn = lambda v, x: jnp.searchsorted(jnp.sort(x.ravel()), x) @ v + jnp.sin(v)
    v = make("lora")
    looped = lambda v, x: lax.scan(lambda c, _: (c + fn(v, x), None), x, None, length=2)[0]
    for program in (fn, looped):
        got = transform(program, rules=rules, materialise="allow")(v, X)
        jitted = jax.jit(transform(program, rules=rules, materialise="allow"))(v, X)
        np.testing.assert_allclose(got, jitted, rtol=1e-6)


@pytest.mark.parametrize(
    "answer",
    [lambda y: ((y, 1), (True, True)), lambda y: ([y], [True]), lambda y: (y, [True])],
    ids=["more", "a list", "other flags"],
)
def test_wrong_answers_of_a_batching_rule_are_the_error_of_jax(answer):
    @custom_vmap
    def fn(v):
        return v * 2

    @fn.def_vmap
    def _(size, batched, v):
        return answer(v * 2)

    v = make("scaled")
    both = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), v)
    with pytest.raises(ValueError, match="custom vmap rule") as dense:
        jax.vmap(lambda v: fn(v.materialise()))(both)
    with pytest.raises(ValueError, match="custom vmap rule") as implicit:
        jax.vmap(allow(fn))(both)
    assert str(implicit.value) == str(dense.value)


def test_batched_operands_are_what_their_type_makes_of_them():
    seen = []

    @custom_vmap
    def fn(v, x):
        return v @ x

    @fn.def_vmap
    def _(size, batched, v, x):
        return jnp.einsum("bij,jk->bik", v, x), True

    class Stacking(Lora):
        def sliceable(self):
            seen.append(self.shape[0])
            return NotImplemented

    own = [Stacking(*jax.tree.leaves(make("lora", i))) for i in range(2)]
    both = jax.tree.map(lambda *leaves: jnp.stack(leaves), *own)
    got = jax.vmap(allow(fn), (0, None))(both, X)
    want = jnp.stack([v.materialise() @ X for v in own])
    np.testing.assert_allclose(got, want, rtol=1e-5)
    assert set(seen) == {2}


def test_sinks_take_each_leaf():
    v = make("lora")
    fn = lambda v, x: (lax.dce_sink((v, x)), x @ v)[1]
    want = X @ v.materialise()
    np.testing.assert_allclose(transform(fn, materialise="forbid")(v, X), want, rtol=1e-5)
    got = jax.vmap(transform(fn, materialise="forbid"), (None, 0))(v, X[None])
    np.testing.assert_allclose(got[0], want, rtol=1e-5)
    sunk = jaxrewrite.make_jaxpr(fn)(v, X).eqns
    assert [e.primitive.name for e in sunk].count("dce_sink") == 4


def root(v, solve_tangent):
    """An approximate root of an equation with a value in it, by a few turns."""
    return lax.custom_root(
        lambda y: y - 0.1 * jnp.sin(y @ v),
        X,
        lambda f, y: lax.fori_loop(0, 12, lambda _, y: y - f(y), y),
        solve_tangent,
    )


def neumann(g, b):
    return lax.fori_loop(0, 12, lambda _, y: y + b - g(y), b)


OPAQUE = {
    "searchsorted": lambda v: jnp.searchsorted(v.ravel(), X).astype(jnp.float32),
    "nonzero": lambda v: jnp.nonzero(v > 0.5, size=4)[0].astype(jnp.float32),
    "unique": lambda v: jnp.unique(v, size=9),
    "ldexp": lambda v: jnp.ldexp(v, jnp.arange(3)),
    "frexp": lambda v: jnp.frexp(v)[0],
    "custom_root": lambda v: root(v, neumann),
}


@pytest.mark.parametrize("name", every(2, OPAQUE))
@pytest.mark.parametrize("kind", ["lora", slow("scaled")])
def test_functions_that_newer_jax_expands_late(name, kind):
    """Forward, both ways of differentiating and twice, batched, and in a loop."""
    fn = OPAQUE[name]
    v = make(kind)
    loss = lambda f: lambda v: jnp.sum(jnp.sin(jaxrewrite.materialise(f(v))))
    looped = lambda f: (
        lambda v: lax.scan(lambda c, _: (c + f(v).sum(), None), 0.0, length=2)
    )
    both = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf / 2]), v)
    implicit = lambda v: jaxrewrite.materialise(allow(fn)(v))
    dense = lambda v: fn(v.materialise())

    def all_of(f, around):
        along = jax.jvp(f, (v,), (v,))
        twice = jax.jvp(jax.grad(loss(f)), (v,), (v,))
        inside = around(jax.grad(loss(fn)))
        return f(v), along, twice, jax.vmap(jax.grad(loss(f)))(both), inside

    got = jax.jit(lambda: all_of(implicit, lambda g: allow(g)(v)))()
    want = jax.jit(lambda: all_of(dense, lambda g: g(v.materialise())))()
    got = (*got[:-1], jaxrewrite.materialise(got[-1]))
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(
        allow(looped(fn))(v)[0], looped(fn)(v.materialise())[0], 1e-4
    )


HiPrim = hijax.HiPrim if hasattr(hijax, "HiPrim") else hijax.VJPHiPrimitive


class Tripled(HiPrim):
    """The sine, with a backward rule of its own, which shows."""

    def __init__(self, aval):
        self.in_avals, self.out_aval, self.params = (aval,), aval, {}
        super().__init__()

    def expand(self, x):
        return jnp.sin(x)

    def vjp_fwd(self, perturbed, x):
        return self(x), x

    def vjp_bwd_retval(self, x, ct):
        return (3 * ct * jnp.cos(x),)


def test_an_object_of_jax_keeps_a_backward_rule_of_its_own():
    fn = lambda x: Tripled(jax.typeof(x))(x).sum()
    (got,) = jax.tree.leaves(jax.grad(allow(fn))(Diagonal(X[0])))
    np.testing.assert_allclose(got, 3 * jnp.cos(X[0]), rtol=1e-6)


@pytest.mark.skipif(
    not hasattr(hijax, "vjp_from_jvp"), reason="JAX has no objects with a derived rule"
)
def test_an_object_of_jax_is_expanded_once():
    expanded = []

    class Sine(HiPrim):
        def __init__(self, aval):
            self.in_avals, self.out_aval, self.params = (aval,), aval, {}
            super().__init__()

        def expand(self, x):
            expanded.append(x)
            return jnp.sin(x)

        def jvp(self, primals, tangents):
            return self(*primals), jnp.cos(*primals) * tangents[0]

        vjp_fwd, vjp_bwd_retval = hijax.vjp_from_jvp

    sine = Sine(jax.typeof(X))
    make_jaxpr(lambda v: (sine(v), sine(v)), materialise="allow")(make("lora"))
    assert len(expanded) == 1


@pytest.mark.skipif(
    not hasattr(hijax, "vjp_from_jvp"), reason="JAX has no objects with a derived rule"
)
def test_an_object_of_jax_that_reads_a_reference_stays():
    class Reading(HiPrim):
        def __init__(self, *avals):
            self.in_avals, self.out_aval, self.params = avals, avals[1], {}
            super().__init__()

        def expand(self, ref, x):
            return ref[...] + x

        def jvp(self, primals, tangents):
            return self(*primals), tangents[1]

        vjp_fwd, vjp_bwd_retval = hijax.vjp_from_jvp

    def program(x):
        ref = jax.new_ref(X)
        return Reading(jax.typeof(ref), jax.typeof(x))(ref, x)

    v = make("lora")
    np.testing.assert_allclose(jax.jit(allow(program))(v), X + v.materialise(), rtol=1e-6)


@pytest.mark.parametrize(
    "make_value", [Diagonal, lambda x: Tagged(x, "a"), lambda x: Scaled(x, jnp.float32(2))]
)
def test_derivatives_of_functions_that_are_written_in_bits(make_value):
    """`jnp.frexp`, whose derivative is `jnp.ldexp`, which is linear and has a transpose."""
    fn = lambda v: jnp.frexp(v)[0].sum() + jnp.ldexp(v, 2).sum()
    implicit = lambda x: jaxrewrite.materialise(allow(fn)(make_value(x)))
    dense = lambda x: fn(jaxrewrite.materialise(make_value(x)))
    np.testing.assert_allclose(jax.grad(implicit)(X[0]), jax.grad(dense)(X[0]), rtol=1e-6)


def test_functions_that_are_written_in_bits_keep_names():
    fn = lambda v: (jnp.frexp(v), jnp.ldexp(v, 2), jnp.ldexp(1.0, v.astype(int)))
    named = transform(fn)(Named(X, ("a", "b")))
    for got, want in zip(jax.tree.leaves(named), jax.tree.leaves(fn(X)), strict=True):
        np.testing.assert_array_equal(got, want)
    assert {v.names for v in (*named[0], *named[1:])} == {("a", "b")}
    rows = transform(jnp.ldexp)(Named(X[0], ("b",)), jnp.ones((2, 3), int))
    assert rows.names == (None, "b") and rows.shape == (2, 3)
    loss = lambda v: (jnp.frexp(v)[0] * jnp.ldexp(v, 2)).sum()
    got = jax.grad(lambda x: transform(loss)(Named(x, ("a", "b"))))(X)
    np.testing.assert_allclose(got, jax.grad(loss)(X), rtol=1e-6)


def test_a_power_of_two_has_no_units():
    v = Unitful(X, Units("m"))
    scaled = transform(lambda v: jnp.ldexp(v, 2))(v)
    assert scaled.units == v.units
    np.testing.assert_array_equal(scaled.array, 4 * X)
    got = jax.grad(lambda v: transform(lambda v: jnp.ldexp(v, 2).sum())(v).array)(v)
    np.testing.assert_array_equal(got.array, jnp.full(X.shape, 4.0))
    plain = transform(lambda v: jnp.ldexp(v, 2))(Unitful(X, Units("")))
    np.testing.assert_array_equal(plain, 4 * X)  # As of any function, without units.
    doubled = lambda vs: lax.scan(lambda c, v: (jnp.ldexp(c, 1) + v, None), 0 * vs[0], vs)[
        0
    ]
    assert transform(doubled)(v).units == v.units
    with pytest.raises(jaxrewrite.values.UnitsError, match="needs operands"):
        transform(jnp.ldexp)(X, Unitful(jnp.arange(3), "m"))


def test_bits_of_masked_numbers():
    masked = transform(lambda v: jnp.ldexp(v, 2))(Masked(X, X > 0.5))
    np.testing.assert_allclose(masked.array, 4 * X, rtol=1e-6)
    np.testing.assert_array_equal(masked.mask, X > 0.5)
    fn = lambda v: jnp.frexp(v)[0].sum() + jnp.ldexp(v, 2).sum()
    got = jax.grad(lambda x: transform(fn)(Masked(x, X > 0.5)).array)(X)
    want = jax.grad(
        lambda x: jnp.where(X > 0.5, 0, jnp.frexp(x)[0] + jnp.ldexp(x, 2)).sum()
    )(X)
    np.testing.assert_allclose(got, want, rtol=1e-6)
    around = Named(Unitful(Masked(X, X > 0.5), Units("m")), ("a", "b"))
    scaled = transform(lambda v: jnp.ldexp(v, 2))(around)
    assert scaled.names == ("a", "b") and scaled.array.units == Units("m")
    np.testing.assert_array_equal(scaled.array.array.mask, X > 0.5)
    masked = transform(jnp.ldexp)(X, Masked(jnp.arange(3), jnp.arange(3) > 1))
    np.testing.assert_allclose(masked.array, jnp.ldexp(X, jnp.arange(3)))
    np.testing.assert_array_equal(masked.mask, [[False, False, True]] * len(X))


def test_expansions_go_through_rules():
    """What stands for the whole array is asked, and nothing is made dense."""
    rules = jaxrewrite.Rules()

    @rules.register("ne", "reshape")
    def _(v: Lora, *operands, primitive, **params):
        return jaxrewrite.bind(primitive, v.w, *operands, **params)

    v = make("lora")
    got = transform(lambda v: jnp.nonzero(v, size=4), rules=rules, materialise="forbid")(v)
    np.testing.assert_array_equal(got, jnp.nonzero(v.w, size=4))
    solve = lambda v: root(v, neumann).sum()
    got = jax.grad(transform(solve, materialise="forbid"))(v)
    want = jax.grad(lambda v: solve(v.materialise()))(v)
    jax.tree.map(lambda g, w: np.testing.assert_allclose(g, w, rtol=1e-3), got, want)


class Whole(jaxrewrite.ArrayValue):
    """An array that no rule may make dense."""

    x: jax.Array

    def aval(self):
        return jax.typeof(self.x)

    def materialise(self):
        raise TypeError("This is never dense.")

    def lift_tangent(self, tangent):
        return Whole(tangent)


class Defaulting(Whole):
    """One whose default knows the families of primitives, and a few more."""

    @staticmethod
    def default(primitive, operands, params):
        assert primitive.name in KNOWN, primitive.name
        return inside(*operands, primitive=primitive, **params)


# What a user registers who reads the families, and tries programs with JAX 0.10.
KNOWN = {
    *primitives.UNARY,
    *primitives.BINARY,
    *primitives.SHAPE,
    *primitives.INDEXING,
    *primitives.REDUCTION,
    *primitives.CUMULATIVE,
    *("bitcast_convert_type", "concatenate", "convert_element_type", "scatter"),
    *("clamp", "scatter-add", "select_n", "sort"),
}


def inside(*operands, primitive, **params):
    found = jaxrewrite.bind(
        primitive, *(x.x if isinstance(x, Whole) else x for x in operands), **params
    )
    if primitive.name in primitives.REDUCTION:
        return found
    (cls,) = {type(x) for x in operands if isinstance(x, Whole)}
    return [*map(cls, found)] if primitive.multiple_results else cls(found)


RULES = jaxrewrite.Rules()


@RULES.register(*KNOWN)
def _(*operands: Whole | jax.Array, primitive, **params):
    if not any(isinstance(x, Whole) for x in operands):
        return NotImplemented
    return inside(*operands, primitive=primitive, **params)


class OfBits(Whole):
    """As `Whole`, and may be dense."""

    def materialise(self):
        return self.x

    def lift_tangent(self, tangent):
        return OfBits(tangent)


def test_what_may_be_dense_is_where_bits_have_no_transpose():
    fn = lambda v: jnp.frexp(v)[0].sum() + jnp.ldexp(v, 2).sum()
    loss = transform(fn, rules=RULES, materialise="allow")
    got = jax.grad(lambda x: loss(OfBits(x)))(X)
    np.testing.assert_allclose(got, jax.grad(fn)(X), rtol=1e-6)


EVEN = jnp.arange(1, 7).reshape(2, 3) * 2
FUNCTIONS = {
    "ldexp": (jnp.ldexp, X[:2], EVEN),
    "frexp": (lambda x, _: jnp.frexp(x), X[:2], X[:2]),
    "gcd": (jnp.gcd, EVEN, EVEN + 3),
    "lcm": (jnp.lcm, EVEN, EVEN + 3),
    "unique": (lambda x, _: jnp.unique(x, size=6), EVEN, EVEN),
    "unique rows": (lambda x, _: jnp.unique(x, axis=0, size=2), EVEN, EVEN),
    "setdiff1d": (lambda x, y: jnp.setdiff1d(x, y, size=6), EVEN, EVEN + 2),
    "rows": (lambda x, _: list(x), X, X),
    "unstack": (lambda x, _: jnp.unstack(x, axis=1), X, X),
    "modf": (lambda x, _: jnp.modf(x), X, X),
    "spacing": (lambda x, _: jnp.spacing(x), X, X),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("cls", [Whole, Defaulting])
def test_no_release_of_jax_needs_more_rules_than_another(cls, name):
    """A function of JAX meets the same families of primitives, however JAX writes it."""
    fn, x, y = FUNCTIONS[name]
    rules = RULES if cls is Whole else None
    got = transform(fn, rules=rules)(cls(x), cls(y))
    got = jax.tree.map(
        lambda v: v.x if isinstance(v, Whole) else v,
        got,
        is_leaf=lambda v: isinstance(v, Whole),
    )
    jax.tree.map(np.testing.assert_array_equal, got, fn(x, y))


# --- exported programs ------------------------------------------------------------


def exported_and_back(fn, *operands):
    exported = jax.export.export(jax.jit(fn))(*operands)
    return jax.export.deserialize(exported.serialize())


PROGRAMS = {
    "scan over layers": lambda vs, x: lax.scan(lambda x, w: (jnp.tanh(x @ w), w), x, vs),
    "cond": lambda vs, x: lax.cond(x[0, 0] > 0, lambda: vs, lambda: vs),
    "gradient of a custom rule": lambda vs, x: jax.grad(
        lambda x: lax.scan(lambda x, w: (jax.nn.silu(x @ w), None), x, vs)[0].sum()
    )(x),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("kind", ["lora", "lora_of_quantised", "zero"])
def test_exported_with_values_as_arguments_and_results(name, kind):
    fn = allow(PROGRAMS[name])
    layers = jaxrewrite.stack([make(kind, i) for i in range(3)])
    want = fn(layers, X)
    got = exported_and_back(fn, layers, X).call(layers, X)
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-6)


def test_a_gradient_exports_with_its_rules():
    fn = allow(lambda v, x: jax.nn.silu(x @ v).sum())
    v = make("lora")
    exported = jax.export.export(jax.jit(fn))(v, X)
    again = jax.export.deserialize(exported.serialize(vjp_order=1))
    got, want = jax.grad(again.call)(v, X), jax.grad(fn)(v, X)
    jax.tree.map(lambda g, w: np.testing.assert_allclose(g, w, rtol=1e-5), got, want)


# --- bad input --------------------------------------------------------------------


def grows(v):
    return lax.scan(lambda c, _: (jnp.concatenate([c, c]), None), v, None, length=2)[0]


def shrinks(v):
    return lax.while_loop(lambda c: c[0, 0] < 1, lambda c: c[:1], v)


def disagrees(v):
    return lax.cond(v[0, 0] > 0, lambda a: a, lambda a: a[0], v)


@pytest.mark.parametrize("fn", [grows, shrinks, disagrees])
def test_bodies_that_change_shapes_are_the_error_of_jax(fn):
    v = make("lora")
    with pytest.raises(TypeError) as dense:
        fn(v.materialise())
    with pytest.raises(TypeError) as implicit:
        allow(fn)(v)
    first = lambda error: str(error.value).splitlines()[0].split(" at ")[0]
    assert first(implicit) == first(dense)
    notes = "\n".join(implicit.value.__notes__)
    assert f"in staging {fn.__name__} on (Lora:f32[3,3])\n  at {__file__}:" in notes
    assert len(global_rules.programs.of(fn)) == 0
    allow(lambda v: -v)(v)


def test_a_rule_that_fails_inside_a_body_names_both_equations():
    rules = jaxrewrite.Rules()

    @rules.register("sin")
    def _(v: Lora, **params):
        if not broken:
            return v.w
        raise ValueError("no sine of an adapter")

    broken = True
    fn = lambda v: lax.scan(lambda c, _: (c + jnp.sin(v), None), X, None, length=2)[0]
    transformed = transform(fn, rules=rules)
    v = make("lora")
    with pytest.raises(ValueError, match="no sine") as caught:
        transformed(v)
    notes = "\n".join(caught.value.__notes__)
    assert "'sin' on (Lora:f32[3,3])" in notes
    assert "'scan' on (f32[3,3], Lora:f32[3,3])" in notes or "'scan' on (Lora" in notes
    assert "test_other_rules.py" in notes
    broken = False
    np.testing.assert_allclose(transformed(v), X + 2 * v.w, rtol=1e-6)

"""`jax.jit` equations keep their name, and their parameters apply to each leaf."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec
from reference.own import Lora, Scaled

import jaxrewrite
from jaxrewrite import transform
from jaxrewrite.testing import assert_same
from jaxrewrite.values import Kronecker


def scaled(shape=(4, 3)):
    n = int(np.prod(shape))
    return Scaled(jnp.arange(float(n)).reshape(shape), jnp.float32(2.0))


def jit_equations(fn, *args):
    found = []

    def walk(jaxpr):
        for eqn in jaxpr.eqns:
            if eqn.primitive.name == "jit":
                found.append(eqn)
                walk(eqn.params["jaxpr"].jaxpr)

    walk(jaxrewrite.make_jaxpr(fn, materialise="allow")(*args).jaxpr)
    return found


def test_name_is_kept_and_operands_are_leaves():
    @jax.jit
    def my_name(a):
        return -a

    (eqn,) = jit_equations(my_name, scaled())
    assert eqn.params["name"] == "my_name"
    assert len(eqn.invars) == len(eqn.outvars) == 2
    out = transform(my_name)(scaled())
    assert isinstance(out, Scaled)
    np.testing.assert_allclose(jaxrewrite.materialise(out), -scaled().materialise())


def test_nested_names_are_kept():
    @jax.jit
    def inner(a):
        return -a

    @jax.jit
    def outer(a):
        return inner(inner(a))

    names = [eqn.params["name"] for eqn in jit_equations(outer, scaled())]
    assert names == ["outer", "inner", "inner"]


@pytest.mark.parametrize("inline", [False, True])
def test_inline_means_what_it_means_to_jax(inline):
    fn = jax.jit(lambda a: -a, inline=inline)
    dense = jax.make_jaxpr(fn)(scaled().materialise()).jaxpr.eqns
    wanted = [e.params["inline"] for e in dense if e.primitive.name == "jit"]
    got = [e.params["inline"] for e in jit_equations(fn, scaled())]
    assert got == wanted


def test_donation_is_said_of_each_leaf_and_honoured():
    negate = jax.jit(lambda a, b: (-a, b + 1), donate_argnums=0)
    (eqn,) = jit_equations(negate, scaled(), jnp.ones((4, 3)))
    assert eqn.params["donated_invars"] == (True, True, False)
    v, kept = scaled(), jnp.ones((4, 3))
    out, _ = transform(negate)(v, kept)
    assert v.x.is_deleted()
    assert v.scale.is_deleted()
    assert not kept.is_deleted()
    np.testing.assert_allclose(out.x, scaled().x)


@pytest.mark.parametrize(
    "fn",
    [
        lambda call, v, y: (call(v * 2.0, y), v),
        lambda call, v, y: (call(v, y), v * 2.0),
        lambda call, v, y: (lambda w: (call(-w, y), w))(v.T),
        lambda call, v, y: (lambda w: call(w, w * 2.0))(v.T),
        lambda call, v, y: call(2.0, v),
    ],
    ids=["argument", "used later", "shared by two", "twice", "a number is"],
)
def test_a_leaf_that_something_else_holds_is_not_donated(fn):
    negate = lambda a, b: (-a, b)
    donating = jax.jit(negate, donate_argnums=0)
    v, y = scaled(), jnp.ones((4, 3))
    want = fn(negate, v.materialise(), y)
    out = transform(lambda v, y: fn(donating, v, y), materialise="allow")(v, y)
    assert_same(jaxrewrite.materialise(out), want, 1e-6)


@pytest.mark.parametrize(
    "fn",
    [lambda call, x: (call(-x, x + 1), x), lambda call, x: call(-x, -x * 2.0)],
    ids=["used later", "twice"],
)
def test_an_array_that_a_rule_for_arrays_puts_into_values_is_not_donated(fn):
    rules = jaxrewrite.Rules()

    @rules.register("neg")
    def _(x: jax.Array):
        return Scaled(x, jnp.float32(-1))

    both = lambda a, b: (a, 3.0 * b)
    donating = jax.jit(both, donate_argnums=(0, 1))
    x = jnp.ones((4, 3))
    want = fn(both, 2 * x)
    out = transform(lambda x: fn(donating, 2 * x), rules=rules, materialise="allow")(x)
    assert_same(jaxrewrite.materialise(out), want, 1e-6)


@pytest.mark.parametrize(
    "pass_on",
    [
        lax.stop_gradient,
        lambda v: jax.device_put(v, jax.devices()[0]),
        jax.checkpoint(lambda v: v),
        jax.jit(lambda v: v),
        lambda v: lax.scan(lambda v, _: (v, v.sum()), v, None, length=2)[0],
    ],
    ids=["stop_gradient", "device_put", "checkpoint", "jit", "scan"],
)
@pytest.mark.parametrize("make", [lambda v: v * 2.0, lambda v: -v, lambda v: v.T])
def test_a_leaf_that_is_passed_on_is_not_donated(pass_on, make):
    """What the program makes of an argument has its leaves, by whatever name."""
    donating = jax.jit(lambda a, b: (-a, b), donate_argnums=0)
    adapted = Lora(scaled(), jnp.ones((4, 2)), jnp.ones((2, 3)))
    for v in (scaled(), adapted):
        for fn in (lambda v, y: pass_on(make(v)), lambda v, y: make(pass_on(v))):
            program = lambda v, y, fn=fn: donating(fn(v, y), y)[1]
            transform(program, materialise="allow")(v, jnp.ones((4, 3)))
            assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(v))

            def reused(v, y, fn=fn):
                w = make(v)
                return donating(fn(w, y), y)[1], w

            got = transform(reused, materialise="allow")(v, jnp.ones((4, 3)))[1]
            assert_same(jaxrewrite.materialise(got), make(jaxrewrite.materialise(v)), 1e-6)


@pytest.mark.parametrize(
    "fn",
    [
        lambda call, v, w, x: call(v, 1.0),
        lambda call, v, w, x: call(v, w),
        lambda call, v, w, x: (call(v, 1.0), -w),
        lambda call, v, w, x: (call(v, 1.0), -x),
    ],
    ids=["alone", "beside another value", "used later", "closed over"],
)
@pytest.mark.parametrize(
    "how",
    [lambda fn: fn, jax.vmap, lambda fn: lambda *args: jax.jvp(fn, args, args)],
    ids=["as it is", "vmap", "jvp"],
)
def test_leaves_that_are_one_array_are_told_apart(how, fn):
    def results(donated):
        x = jnp.full((2, 2, 2), 3.0)
        call = jax.jit(lambda a, b: (-a, b), donate_argnums=donated)
        program = transform(lambda *args: fn(call, *args, x), materialise="allow")
        return jaxrewrite.materialise(how(program)(Kronecker(x, x), Kronecker(x, x)))

    assert_same(results(0), results(None), 1e-6)


def test_what_the_program_makes_is_donated():
    call = jax.jit(lambda a, b: a * b, donate_argnums=0)
    (eqn,) = jit_equations(lambda v, y: call(jnp.sin(v), y), scaled(), jnp.ones((4, 3)))
    assert eqn.params["donated_invars"] == (True, False)


def test_shardings_are_said_of_the_leaves_they_fit():
    mesh = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    sharding = NamedSharding(mesh, PartitionSpec("i"))
    negated = jax.jit(lambda a: -a, in_shardings=sharding, out_shardings=sharding)
    (eqn,) = jit_equations(negated, scaled())
    assert eqn.params["in_shardings"][0] == sharding == eqn.params["out_shardings"][0]
    assert eqn.params["in_shardings"][1] != sharding != eqn.params["out_shardings"][1]
    out = jax.jit(transform(negated))(scaled())
    assert out.x.sharding.is_equivalent_to(sharding, 2)
    np.testing.assert_allclose(jaxrewrite.materialise(out), -scaled().materialise())


class Split(jaxrewrite.ArrayValue):
    """``a * b``, rows times columns, and how these are split."""

    a: jax.Array
    b: jax.Array

    def materialise(self):
        return self.a[:, None] * self.b

    def leaf_specs(self, spec):
        rows, columns = (*spec, None, None)[:2]
        return Split(PartitionSpec(rows), PartitionSpec(columns))


class Rows(Split):
    def leaf_specs(self, spec):
        return NotImplemented


@jaxrewrite.register("neg")
def _(v: Split):
    return type(v)(-v.a, v.b)


@pytest.mark.parametrize("wrap", [lambda fn: fn, jax.jit], ids=["eager", "jit"])
def test_shardings_are_said_of_leaves_by_the_type(wrap):
    mesh = jax.make_mesh((2, 4), ("i", "j"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    place = lambda *names: NamedSharding(mesh, PartitionSpec(*names))
    v = Split(jnp.arange(4.0), jnp.arange(8.0))
    negate = lambda v: -v
    programs = [
        jax.jit(negate, in_shardings=place("i", "j"), out_shardings=place("i", "j")),
        lambda v: jax.lax.with_sharding_constraint(-v, place("i", "j")),
    ]
    if wrap is not jax.jit:  # JAX moves nothing within a program
        programs.append(lambda v: jax.device_put(-v, place("i", "j")))
    for program in programs:
        out = wrap(transform(program, materialise="forbid"))(v)
        assert out.a.sharding.is_equivalent_to(place("i"), 1)
        assert out.b.sharding.is_equivalent_to(place("j"), 1)
        np.testing.assert_allclose(out.materialise(), -v.materialise())
    # A value with a copy on each device has leaves with a copy on each device.
    out = wrap(transform(jax.jit(negate, out_shardings=place())))(v)
    assert out.a.sharding.is_equivalent_to(place(), 1)


def test_shardings_that_no_leaf_can_have_are_warned_of():
    mesh = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    sharding = NamedSharding(mesh, PartitionSpec("i"))
    v = Rows(jnp.arange(4.0), jnp.arange(8.0))
    for program in (
        jax.jit(lambda v: -v, in_shardings=sharding),
        jax.jit(lambda v: -v, out_shardings=sharding),
        lambda v: jax.lax.with_sharding_constraint(v, sharding),
        lambda v: jax.device_put(v, sharding),
    ):
        with pytest.warns(
            UserWarning, match=r"along other axes: Rows\.leaf_specs"
        ) as record:
            out = transform(program, materialise="forbid")(v)
        assert {warning.filename for warning in record} == {__file__}
        assert isinstance(out, Rows)
    moved = transform(lambda v: jax.device_put(v, jax.devices()[1]))(v)
    assert moved.a.devices() == moved.b.devices() == {jax.devices()[1]}


def test_shardings_of_materialised_results_are_kept():
    mesh = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    sharding = NamedSharding(mesh, PartitionSpec("i"))
    fn = jax.jit(jnp.sin, in_shardings=sharding, out_shardings=sharding)
    out = transform(fn, materialise="allow")(scaled())
    assert out.sharding.is_equivalent_to(sharding, 2)
    np.testing.assert_allclose(out, jnp.sin(scaled().materialise()), rtol=1e-6)


def test_body_is_rewritten_once_for_each_structure(no_leak_checks):
    calls = []
    rules = jaxrewrite.Rules()

    @rules.register("neg")
    def _(v: Scaled):
        calls.append(v.shape)
        return Scaled(v.x, -v.scale)

    body = jax.jit(lambda a: -a)

    def program(a):
        for _ in range(100):
            a = body(a)
        return a

    out = transform(program, rules=rules)(scaled())
    np.testing.assert_allclose(out.scale, 2.0)
    assert len(calls) == 1
    eqns = jit_equations(program, scaled())
    assert len(eqns) == 100
    assert len({id(eqn.params["jaxpr"]) for eqn in eqns}) == 1
    # Another program that calls the same body does not rewrite it again.
    transform(lambda a: body(a), rules=rules)(scaled())
    assert len(calls) == 1


def test_second_call_compiles_nothing(caplog, no_leak_checks, xla):
    body = jax.jit(lambda a: jnp.sin(-a) * 2)
    v = scaled()
    with jax.log_compiles():
        fn = transform(lambda a: body(a), materialise="allow")
        fn(v)
        assert "Compiling" in caplog.text
        caplog.clear()
        fn(v)
        # Another function that calls the same body does not rewrite it either.
        transform(lambda a: body(a), materialise="allow")(v)
    assert "Compiling" not in caplog.text


def test_untouched_bodies_stay_the_same_object():
    body, traced = jax.jit(lambda x: jnp.sin(x) * 2), []

    def program(v, x):
        # Outside of the transform, JAX may keep another one.
        traced.append(jax.make_jaxpr(body)(x))
        return -v, body(x)

    x = jnp.ones(3)
    (eqn,) = jit_equations(program, scaled(), x)
    (original,) = [e for e in traced[0].jaxpr.eqns if e.primitive.name == "jit"]
    assert eqn.params["jaxpr"].jaxpr.eqns == original.params["jaxpr"].jaxpr.eqns


def test_closed_over_arrays_of_a_body_become_operands():
    big = jnp.arange(12.0).reshape(4, 3)
    fn = jax.jit(lambda a: -a + big)
    with pytest.warns(jaxrewrite.MaterialisationWarning, match="'add' on Scaled"):
        out = transform(fn)(scaled())
    np.testing.assert_allclose(out, big - scaled().materialise())


@pytest.mark.parametrize("mode", ["grad", "jit_grad", "vmap", "jvp", "export"])
def test_composes(mode):
    body = jax.jit(lambda a, y: (jnp.sin(-a) * y).sum())
    fn = transform(lambda a, y: body(a, y), materialise="allow")
    dense = lambda a, y: body(jaxrewrite.materialise(a), y)
    v, y = scaled(), jnp.linspace(0, 1, 12).reshape(4, 3)
    if mode == "grad":
        got, want = jax.grad(fn)(v, y), jax.grad(dense)(v, y)
    elif mode == "jit_grad":
        got, want = jax.jit(jax.grad(fn))(v, y), jax.grad(dense)(v, y)
    elif mode == "vmap":
        vs = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf + 1]), v)
        got, want = (jax.vmap(f, (0, None))(vs, y) for f in (fn, dense))
    elif mode == "jvp":
        zero = jnp.zeros_like(y)
        got, want = (jax.jvp(f, (v, y), (v, zero)) for f in (fn, dense))
    else:
        exported = jax.export.export(jax.jit(fn))(v, y)
        again = jax.export.deserialize(exported.serialize())
        got, want = again.call(v, y), dense(v, y)
    jax.tree.map(
        lambda g, w: np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-6), got, want
    )

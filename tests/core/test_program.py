"""How a rewritten program runs: equation by equation, appended, or called."""

import copy
import gc
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.own import Scaled, V, Y

import jaxrewrite
from jaxrewrite import _compat, transform
from jaxrewrite._staging import aliases, collector
from jaxrewrite.values import Zero


def long_program(v, x):
    for _ in range(40):
        x = jnp.tanh(x * 1.5 + 0.1)
    return -v, x.sum()


def by_hand(x, scale, y):
    for _ in range(40):
        y = jnp.tanh(y * 1.5 + 0.1)
    return (x, -scale), y.sum()


def equations(fn, *args):
    return jax.make_jaxpr(fn)(*args).eqns


def test_a_short_program_is_appended():
    (eqn,) = equations(transform(lambda v: -v), V)
    assert eqn.primitive.name == "neg"


@pytest.mark.parametrize(("turns", "count"), [(31, 32), (32, 1)])
def test_a_program_is_called_from_33_equations_on(turns, count):
    def program(v, x):
        for _ in range(turns):
            x = jnp.tanh(x)
        return -v, x

    assert len(equations(transform(program), V, Y)) == count


def test_a_long_program_is_called_under_its_own_name():
    transformed = transform(long_program)
    (eqn,) = equations(transformed, V, Y)
    assert eqn.primitive.name == "jit"
    assert eqn.params["name"] == "long_program"
    again = equations(lambda v, y: (transformed(v, y), transformed(v, y)), V, Y)
    first, second = (eqn.params["jaxpr"] for eqn in again)
    assert first is second  # which JAX lowers once


def test_a_called_program_compiles_to_the_same():
    def instructions(fn, *args):
        text = jax.jit(fn).lower(*args).compile().as_text()
        return sum(" = " in line for line in text.splitlines())

    transformed = lambda v, y: transform(long_program)(v, y)
    assert instructions(transformed, V, Y) == instructions(by_hand, V.x, V.scale, Y)
    # And so do its gradients.
    total = lambda fn: lambda *args: (lambda o: o[1] + jax.tree.leaves(o[0])[1])(fn(*args))
    grad = jax.grad(total(transformed), argnums=(0, 1))
    grad_by_hand = jax.grad(total(by_hand), argnums=(0, 1, 2))
    assert instructions(grad, V, Y) == instructions(grad_by_hand, V.x, V.scale, Y)


@pytest.mark.parametrize(
    "compose",
    [
        lambda f: jax.jit(f),
        lambda f: jax.jit(jax.grad(f, argnums=(0, 1))),
        lambda f: jax.grad(jax.jit(f), argnums=(0, 1)),
        lambda f: jax.jit(jax.vmap(f, in_axes=(None, 0))),
        lambda f: jax.vmap(jax.jit(f), in_axes=(None, 0)),
        lambda f: jax.grad(jax.checkpoint(f), argnums=1),
        lambda f: jax.jit(jax.hessian(f, argnums=1)),
        lambda f: lambda v, y: jax.lax.map(lambda y: f(v, y), y),
    ],
    ids=["jit", "jit-grad", "grad-jit", "jit-vmap", "vmap-jit", "remat", "hessian", "map"],
)
def test_a_called_program_composes(compose):
    def total(v, y):
        negative, s = transform(long_program)(v, y)
        return s + negative.scale * negative.x.sum()

    def dense(v, y):
        (x, scale), s = by_hand(v.x, v.scale, y)
        return s + scale * x.sum()

    got, want = (
        jax.tree.leaves(compose(f)(V, jnp.array([0.1, 0.2]))) for f in (total, dense)
    )
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_a_called_program_sees_the_mesh():
    mesh = jax.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Explicit,))
    with jax.set_mesh(mesh):
        split = jax.device_put(jnp.arange(8.0), jax.NamedSharding(mesh, jax.P("i")))
        (negative, _) = jax.jit(transform(long_program))(
            Scaled(split, jnp.float32(2.0)), split
        )
    assert negative.x.sharding.spec == jax.P("i")
    # Outside of it, what was made under the mesh is of no use.
    jax.jit(lambda v, y: transform(long_program)(v, y))(V, Y)


def test_donation_goes_through_a_call():
    rules = jaxrewrite.Rules()

    @rules.register("sub")
    def _(v: Scaled, y: jax.Array, **params):
        return Scaled(v.x - y / v.scale, v.scale)

    def fit(v, y):
        return v - 0.1 * long_program(v, y)[1]

    def fit_by_hand(x, scale, y):
        return x - (0.1 * by_hand(x, scale, y)[1]) / scale, scale

    compiled = jax.jit(transform(fit, rules=rules), donate_argnums=0).lower(V, Y).compile()
    hand = jax.jit(fit_by_hand, donate_argnums=(0, 1)).lower(V.x, V.scale, Y).compile()
    aliased = [c.memory_analysis().alias_size_in_bytes for c in (compiled, hand)]
    assert aliased[0] == aliased[1] == 16
    v = jax.tree.map(jnp.array, V)
    out = jax.jit(transform(fit, rules=rules), donate_argnums=0)(v, Y)
    assert v.x.is_deleted()
    np.testing.assert_allclose(out.scale, 2.0)


def test_shardings_go_through_a_call():
    """The same collectives, and results where the program by hand has them."""
    mesh = jax.make_mesh((8,), ("i",))
    split = jax.NamedSharding(mesh, jax.P("i"))
    x, y = (jax.device_put(jnp.arange(16.0) / n, split) for n in (10, 20))
    scale = jnp.float32(2.0)
    implicit = jax.jit(transform(long_program))
    hand = jax.jit(by_hand)
    compiled = [
        implicit.lower(Scaled(x, scale), y).compile(),
        hand.lower(x, scale, y).compile(),
    ]
    collectives = [c.as_text().count("all-reduce") for c in compiled]
    assert collectives[0] == collectives[1] > 0
    (got, _), ((want, _), _) = implicit(Scaled(x, scale), y), hand(x, scale, y)
    assert got.x.sharding == want.sharding == split


def test_effects_are_not_hidden_in_a_call(capfd):
    def program(v, y):
        jax.debug.print("first", ordered=True)
        out = long_program(v, y)
        jax.debug.print("second", ordered=True)
        return out

    names = [eqn.primitive.name for eqn in equations(transform(program), V, Y)]
    assert "jit" not in names
    jax.block_until_ready(jax.jit(transform(program))(V, Y))
    jax.effects_barrier()
    assert capfd.readouterr().out.split() == ["first", "second"]


def test_nothing_is_called_where_jit_is_disabled():
    with jax.disable_jit():
        negative, s = transform(long_program)(V, Y)
    np.testing.assert_allclose(s, by_hand(V.x, V.scale, Y)[1], rtol=1e-5)


def test_a_number_among_the_results_is_an_array_of_jax():
    run = transform(lambda v: (-v, jnp.float32(3), jnp.asarray(3)))
    # An array of NumPy is not compiled as a whole.
    for v in (V, Scaled(np.ones(3, np.float32), V.scale)):
        for got, dtype in zip(run(v)[1:], ("float32", "int32"), strict=True):
            assert isinstance(got, jax.Array)
            assert (got, got.dtype) == (3, dtype)


def test_transforms_of_transforms_rewrite_a_called_program():
    """The outer one rewrites the call as it would any jitted function's."""
    only_first = transform(long_program, filter_spec=lambda v: v is V)
    other = Scaled(jnp.array([1.0, 2.0, 3.0]), jnp.float32(0.5))

    def program(v, w):
        negative, s = only_first(v, Y)
        return negative, -w, s

    first, second, _ = transform(program, filter_spec=lambda v: v is other)(V, other)
    np.testing.assert_allclose(first.scale, -2.0)
    np.testing.assert_allclose(second.scale, -0.5)


# --- rules, run eagerly -----------------------------------------------------------


class Pair(jaxrewrite.ArrayValue):
    a: jax.Array
    b: jax.Array

    def materialise(self):
        return self.a + self.b


def table(rule, *primitives):
    rules = jaxrewrite.Rules()
    rules.register(*primitives)(rule)
    return rules


def product(v: Pair, y: jax.Array, **params):
    return Pair(v.a * y + 1, v.b * y - 1)


PAIR = Pair(Y, 2 * Y)


def test_what_a_rule_does_is_compiled_once(caplog, no_leak_checks, xla):
    jax.clear_caches()
    run = transform(lambda v, y: v * y * y * y, rules=table(product, "mul"))
    with jax.log_compiles():
        out = run(PAIR, Y)
    compiled = [r.message for r in caplog.records if r.message.startswith("Compiling")]
    assert len(compiled) == 1, compiled
    assert "product" in compiled[0]
    np.testing.assert_allclose(out.materialise(), PAIR.materialise() * Y**3, rtol=1e-6)


def test_a_rule_of_which_a_part_is_dead():
    """The rest of it, and what only that part needs, is not computed."""

    def fn(v, y):
        out = jnp.tanh(v) * y
        return out, jnp.exp(y)

    rules = table(product, "mul")

    @rules.register("tanh")
    def _(v: Pair, **params):
        return Pair(jnp.sin(v.a) + 1, jnp.cos(v.b) + 1)

    @rules.register("neg")
    def _(v: Pair):
        return v.a + 1 - 2  # of b there is no need

    for program in (fn, lambda v, y: fn(v, y)[1], lambda v, y: -fn(v, y)[0]):
        run = transform(program, rules=rules, materialise="forbid")
        got = run(PAIR, Y)
        jax.tree.map(np.testing.assert_allclose, got, jax.jit(run)(PAIR, Y))


def test_a_rule_of_which_the_part_that_needs_an_operand_is_dead():
    rules = jaxrewrite.Rules()

    @rules.register("mul")
    def _(v: Pair, y: jax.Array, **params):
        return Pair(v.a + 1, v.b * y)

    @rules.register("neg")
    def _(v: Pair):
        return v.a - 2

    run = transform(lambda v, y: -(v * jnp.tanh(y)), rules=rules)
    np.testing.assert_allclose(run(PAIR, Y), Y - 1)


def test_a_rule_that_ignores_an_operand():
    """Whose equations are gone before the rule would be called."""
    rules = jaxrewrite.Rules()

    @rules.register("mul")
    def _(v: Pair, y: jax.Array, **params):
        return Pair(v.a + 1, v.a * 2)

    run = transform(lambda v, y: v * jnp.tanh(y), rules=rules)
    np.testing.assert_allclose(run(PAIR, Y).b, 2 * Y)


def test_a_rule_that_passes_operands_on():
    rules = jaxrewrite.Rules()

    @rules.register("mul")
    def _(v: Pair, y: jax.Array, **params):
        summed = v.a + y + 1
        return Pair(v.a, summed)

    @rules.register("neg")
    def _(v: Pair):
        twice = v.b * 2 + 1
        return Pair(twice, twice)

    out = transform(lambda v, y: -(v * y), rules=rules)(PAIR, Y)
    np.testing.assert_allclose(out.a, 2 * (2 * Y + 1) + 1)
    np.testing.assert_allclose(out.b, out.a)


def test_a_rule_that_closes_over_arrays():
    table_of_numbers = jnp.arange(3.0)
    rules = jaxrewrite.Rules()

    @rules.register("neg")
    def _(v: Pair):
        return Pair(v.a * table_of_numbers - 1, v.b - table_of_numbers)

    out = transform(lambda v: jnp.negative(-v), rules=rules)(PAIR)
    np.testing.assert_allclose(out.b, 2 * Y - 2 * jnp.arange(3.0))


def test_effects_of_a_rule_are_seen_each_time(capfd):
    rules = jaxrewrite.Rules()

    @rules.register("neg")
    def _(v: Pair):
        jax.debug.print("negated {}", v.a[0])
        return Pair(-v.a + 1, -v.b - 1)

    run = transform(lambda v: -v, rules=rules)
    for _ in range(2):
        run(PAIR)
    jax.effects_barrier()
    assert capfd.readouterr().out.split("\n")[:2] == ["negated 1.0"] * 2


def test_a_fault_in_a_rule_names_the_line(no_leak_checks):
    rules = jaxrewrite.Rules()

    @rules.register("neg")
    def _(v: Pair):
        return Pair(jnp.log(v.a) + 1, v.b)

    with jax.debug_nans(True), pytest.raises(FloatingPointError) as caught:
        transform(lambda v: -v, rules=rules)(Pair(-Y, Y))
    assert any("test_program.py" in note for note in caught.value.__notes__)


def test_rules_are_differentiated_as_one_call_and_keep_their_line():
    run = transform(lambda v, y: v * y * y, rules=table(product, "mul"))
    total = lambda v, y: run(v, y).a.sum()
    eqns = jax.make_jaxpr(jax.grad(total))(PAIR, Y).eqns
    calls = [e for e in eqns if e.params.get("name") == "product"]
    assert len(calls) >= 2
    first = test_rules_are_differentiated_as_one_call_and_keep_their_line.__code__
    for call in calls:
        file, line, function = _compat.source_location(call.source_info)
        assert (file, line) == (__file__, first.co_firstlineno + 1)
        assert function.endswith("<lambda>")


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_gradients_through_calls_of_rules(wrap):
    """First and second ones, by each mode, and batched."""
    rules = table(product, "mul")

    def total(v, y):
        out = transform(lambda v, y: jnp.float32(3) * (v * y) * y, rules=rules)(v, y)
        return (out.a * jnp.sin(out.b)).sum()

    def dense(v, y):
        a, b = v.a, v.b
        for factor in (y, jnp.float32(3), y):
            a, b = a * factor + 1, b * factor - 1
        return (a * jnp.sin(b)).sum()

    @rules.register("mul")
    def _(y: jax.Array, v: Pair, **params):
        return product(v, y)

    close = lambda a, b: jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), a, b
    )
    for transformation in (
        lambda f: jax.grad(f, argnums=(0, 1)),
        lambda f: jax.jacfwd(f, argnums=1),
        lambda f: jax.hessian(f, argnums=1),
        lambda f: lambda v, y: jax.vmap(f, in_axes=(None, 0))(v, jnp.stack([y, 2 * y])),
    ):
        got, want = (wrap(transformation(f))(PAIR, Y / 3) for f in (total, dense))
        close(got, want)


# --- the collector ----------------------------------------------------------------


def test_the_equations_of_a_line_are_differentiated_as_one_call():
    def program(v, x):
        for _ in range(2):
            x = jnp.tanh(x) * jnp.exp(x)
            x = x - x / 2.0
        lower, upper = jnp.split(x, [1])
        return -v, (lower.sum() - upper.sum()) * x.max()

    implicit = lambda x: transform(program)(V, x)[1]
    calls = [
        eqn for eqn in equations(jax.vmap(implicit), Y[None]) if eqn.primitive.name == "jit"
    ]
    assert len({id(eqn.params["jaxpr"]) for eqn in calls}) == 4
    names = [eqn.params["name"] for eqn in calls]
    assert names == ["mul", "sub", "mul", "sub", "split", "mul"]  # What a line does last.
    lines = [_compat.source_location(eqn.source_info)[1] for eqn in calls]
    first = program.__code__.co_firstlineno
    assert lines == [first + n for n in (2, 3, 2, 3, 4, 5)]
    dense = lambda x: program(V.materialise(), x)[1]
    got, want = (jax.jit(jax.grad(fn))(Y) for fn in (implicit, dense))
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_a_long_line_is_several_calls():
    def program(v, x):
        for _ in range(100):
            x = x + 1.0
        return -v, x

    implicit = lambda x: transform(program)(V, x)[1]
    calls = equations(jax.vmap(implicit), Y[None])
    assert 2 < len(calls) < 20
    np.testing.assert_allclose(jax.grad(lambda x: implicit(x).sum())(Y), 1)
    np.testing.assert_allclose(jax.vmap(implicit)(Y[None])[0], Y + 100, rtol=1e-6)


def test_lines_that_differ_in_a_literal_are_two_functions():
    def program(v, x):
        down = x * x / -0.0
        up = x * x / 0.0
        whole = 2 * x.astype(int) + 1
        other = 2 * x.astype(int) + True
        return -v, (down, up, whole, other)

    got = jax.vmap(lambda x: transform(program)(V, x)[1])(jnp.ones((1, 2)))
    assert jax.tree.map(lambda x: x[0, 0].item(), got) == (-np.inf, np.inf, 3, 3)


def test_collections_pause_and_go_on():
    assert gc.isenabled()
    with collector.paused():
        assert not gc.isenabled()
        with collector.paused():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_collections_go_on_after_an_error():
    class Broken(jaxrewrite.ArrayValue):
        x: jax.Array

        def aval(self):
            return jax.core.ShapedArray((3,), jnp.float32)

        def materialise(self):
            raise ValueError("broken")

    with pytest.raises(jaxrewrite.MaterialisationError, match="broken"):
        transform(jnp.sin, materialise="allow")(Broken(Y))
    assert gc.isenabled()


def test_who_has_no_collections_gets_none():
    gc.disable()
    try:
        transform(lambda v: -v)(V)
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_collections_pause_until_the_last_thread_is_done():
    inside, leave = threading.Event(), threading.Event()

    def other():
        with collector.paused():
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    with collector.paused():
        thread.start()
        assert inside.wait(10)
    assert not gc.isenabled()
    leave.set()
    thread.join()
    assert gc.isenabled()


@pytest.mark.parametrize("make", [np.asarray, jnp.asarray])
def test_constants_come_out_as_arrays_of_jax(make):
    """As under `jax.jit`. What JAX has of them while it traces can't be copied."""
    table = np.arange(3, dtype=np.float32)
    fn = transform(lambda v, y: (y.sum(), (-v, make(table), -Zero((3,), jnp.float32))))
    results = jax.value_and_grad(fn, 1, has_aux=True)(V, Y)[0]
    for _, (v, constant, zero) in (fn(V, Y), results):
        assert isinstance(constant, jax.Array) and constant.at[0].set(1)[0] == 1
        copied = jax.jit(lambda x: x)(copy.deepcopy(zero))
        assert isinstance(copied, Zero) and isinstance(v, Scaled)


@pytest.mark.parametrize("change", [jax.grad, jax.vmap])
def test_a_truth_value_among_the_results_is_an_array(change):
    fn = transform(lambda v, x: (-v, jnp.sum(jnp.sin(x)), jnp.asarray(True)))
    kept = []

    def loss(x):
        _, y, is_done = fn(V, x)
        kept.append(is_done)
        return jnp.where(~is_done, 0.0, y)

    assert np.any(change(loss)(Y))
    (is_done,) = kept
    assert jax.typeof(is_done) == jax.typeof(jnp.asarray(True))


def test_results_that_the_program_writes_may_be_donated():
    table = jnp.arange(3.0)
    start = transform(lambda v: (jnp.zeros((), "int32"), table, jnp.array([1, 2])))
    step = jax.jit(lambda x: jax.tree.map(lambda y: y + 1, x), donate_argnums=0)
    for _ in range(2):
        found = step(start(V))
        for x, want in zip(found, (1, [1, 2, 3], [2, 3]), strict=True):
            np.testing.assert_array_equal(x, want)
    assert not table.is_deleted()


def test_what_a_rule_closes_over_is_not_donated():
    table = jnp.arange(4.0)
    rules = jaxrewrite.Rules()

    @rules.register("sin")
    def _(v: Scaled, **params):
        return Scaled(table, v.scale)

    step = jax.jit(lambda y: (y * 2, y + 1), donate_argnums=0)
    fn = transform(lambda v: step(jnp.sin(v)), rules=rules, materialise="allow")
    v = Scaled(jnp.ones(4), jnp.float32(2))
    for _ in range(2):
        np.testing.assert_allclose(fn(v)[1], 2 * table + 1)
    assert not table.is_deleted()


def test_what_a_call_only_passes_on_stays_known():
    """Flags among results, which rules of other libraries decide by."""

    def program(v, y):
        negative, s = long_program(v, y)
        return negative, s, y, jnp.bool_(False), s

    jaxpr = jax.make_jaxpr(transform(program))(V, Y)
    (eqn,) = jaxpr.eqns
    assert len(eqn.outvars) == 2  # the negated scale and the sum
    x, scale, total, y, flag, again = jaxpr.jaxpr.outvars
    assert x is jaxpr.jaxpr.invars[0]
    assert [scale, total] == list(eqn.outvars)
    assert again is total
    assert y is jaxpr.jaxpr.invars[2]
    assert flag.val == False  # noqa: E712


def test_what_nested_calls_pass_on_is_found_once_for_each():
    """Each of 24 calls has the next one twice in it."""
    fn = jax.jit(lambda x: x)
    for _ in range(24):
        fn = jax.jit(lambda x, inner=fn: inner(inner(x)))
    jaxpr = jax.make_jaxpr(fn)(1.0).jaxpr
    found = aliases.sources(jaxpr.eqns)
    assert found == dict.fromkeys(jaxpr.outvars, jaxpr.invars[0])

"""Programs are staged once, and are kept only as long as they are right and needed."""

import dataclasses
import gc
import threading
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxrewrite
from jaxrewrite import transform
from jaxrewrite._core.rewrite import Rewriter
from jaxrewrite._core.rules import RulesInForce
from jaxrewrite._core.settings import Settings


class Doubled(jaxrewrite.ArrayValue):
    x: jax.Array
    name: str = jaxrewrite.field(static=True, default="")
    materialise_policy = "allow"

    def materialise(self):
        return self.x * 2


def counted():
    """A function and the list of its calls."""
    calls = []

    def fn(v, *args, **kwargs):
        calls.append(len(args))
        return v + 1

    return fn, calls


X = jnp.arange(3.0)


def test_a_second_call_runs_neither_function_nor_rule():
    fn, calls = counted()
    rules, ruled = jaxrewrite.Rules(), []

    @rules.register("add")
    def _(v: Doubled, y: jax.Array, **params):
        ruled.append(1)
        return v.x

    for i in range(3):
        out = transform(fn, rules=rules)(Doubled(X + i))
        np.testing.assert_allclose(out, X + i)
    jax.jit(transform(fn, rules=rules))(Doubled(X))
    jax.grad(lambda x: transform(fn, rules=rules)(Doubled(x)).sum())(X)
    assert len(calls) == len(ruled) == 1


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((Doubled(X),), (Doubled(jnp.ones(4)),)),
        ((Doubled(X),), (Doubled(X.astype(jnp.bfloat16)),)),
        ((Doubled(X),), (Doubled(X, name="other"),)),
        ((Doubled(X), 1), (Doubled(X), 1.0)),
        ((Doubled(X), 1), (Doubled(X), True)),
        ((Doubled(X), 0.0), (Doubled(X), -0.0)),
        ((Doubled(X), "a"), (Doubled(X), "b")),
        ((Doubled(X), X), (Doubled(X), np.float32(1))),
        ((Doubled(X), jnp.asarray(1.0)), (Doubled(X), jnp.ones(()))),  # weak type
        ((Doubled(X), slice(1)), (Doubled(X), slice(2))),
    ],
    ids=range(10),
)
def test_staged_anew_for(first, second):
    fn, calls = counted()
    run = transform(fn)
    for args in (first, second, first, second):
        run(*args)
    assert len(calls) == 2


def test_not_a_number_is_one_static_argument():
    fn, calls = counted()
    for _ in range(2):
        transform(fn)(Doubled(X), float("nan"))
    assert len(calls) == 1


def test_settings_of_jax_are_part_of_the_key():
    fn, calls = counted()
    run = transform(lambda v: fn(v) @ jnp.ones(3))
    run(Doubled(X))
    with jax.default_matmul_precision("highest"):
        jaxpr = jaxrewrite.make_jaxpr(lambda v: v @ v)(Doubled(X))
        run(Doubled(X))
    assert len(calls) == 2
    (dot,) = [e for e in jaxpr.jaxpr.eqns if e.primitive.name == "dot_general"]
    assert dot.params["precision"] is not None
    run(Doubled(X))
    assert len(calls) == 2
    with jax.enable_x64(True):
        wide = Doubled(jnp.arange(3.0, dtype=jnp.float64))
        assert run(wide).dtype == jnp.float64
        # The ones of the program are wide here, and so is what they are multiplied with.
        assert run(Doubled(X)).dtype == jnp.float64
    assert run(Doubled(X)).dtype == jnp.float32


def test_the_kind_of_random_keys_is_part_of_the_key():
    fn = lambda v: jax.random.normal(jax.random.key(0), (3,)) + v
    run = transform(fn, materialise="allow")
    for kind in ("threefry2x32", "rbg"):
        with jax.default_prng_impl(kind):
            np.testing.assert_allclose(run(Doubled(X)), fn(2 * X), rtol=1e-6)


def test_closed_over_tracers_are_never_kept():
    def outer(y):
        inner = lambda v: v * y
        return transform(inner)(Doubled(X)).sum() + transform(inner)(Doubled(X)).sum()

    for y in (1.0, 5.0):
        np.testing.assert_allclose(jax.jit(outer)(y), 2 * (X * 2 * y).sum())
        np.testing.assert_allclose(jax.grad(outer)(y), 2 * (X * 2).sum())
    np.testing.assert_allclose(jax.vmap(outer)(jnp.array([1.0, 5.0])), [12.0, 60.0])


def test_one_function_closing_over_different_tracers():
    cell = []
    inner = lambda v: v * cell[-1]

    def outer(y):
        cell.append(y)
        out = transform(inner)(Doubled(X)).sum()
        cell.pop()
        return out

    for y in (1.0, 3.0):
        np.testing.assert_allclose(jax.jit(lambda y: outer(y))(y), (X * 2 * y).sum())
        np.testing.assert_allclose(jax.grad(outer)(y), (X * 2).sum())


def test_a_rule_closing_over_a_tracer():
    def outer(y):
        rules = jaxrewrite.Rules()

        @rules.register("add")
        def _(v: Doubled, z: jax.Array, **params):
            return v.x * y

        return transform(lambda v: v + 1, rules=rules)(Doubled(X)).sum()

    for y in (1.0, 4.0):
        np.testing.assert_allclose(jax.jit(outer)(y), 3 * y)
        np.testing.assert_allclose(jax.grad(outer)(y), 3)


def test_a_derivative_rule_closing_over_a_tracer():
    """The function is one object, whose rule closes over another array in each trace around it."""

    class Layer:
        def forward(self, v, x):
            w = self.w

            @jax.custom_vjp
            def scaled(z):
                return z * 1.0

            scaled.defvjp(lambda z: (scaled(z), None), lambda _, ct: (ct * w,))
            return scaled(x + v).sum()

    layer = Layer()
    forward = transform(layer.forward, materialise="allow")

    def step(w, x):
        layer.w = w
        return forward(Doubled(X), x), jax.grad(lambda x: forward(Doubled(X), x))(x)

    for w in (1.0, 2.0):
        np.testing.assert_allclose(jax.jit(lambda w, x: step(w, x))(w, X)[1], w)


def test_functions_and_what_they_close_over_are_collected(no_leak_checks):
    array = jnp.arange(5.0)
    fn = lambda v: v + array[0]
    run = transform(jax.jit(fn))
    run(Doubled(X))
    transform(fn)(Doubled(X))
    refs = [weakref.ref(x) for x in (fn, array)]
    del fn, run, array
    jax.clear_caches()
    gc.collect()
    assert [ref() for ref in refs] == [None, None]


def builders():
    gc.collect()
    return {id(x) for x in gc.get_objects() if type(x) is Rewriter and vars(x)}


def test_rules_that_jax_calls_later_keep_no_unfinished_program(no_leak_checks):
    """A kept program with custom derivatives refers to the equations that it was made of."""

    def programs(fn):
        return (
            transform(fn),
            jax.grad(lambda v: transform(fn)(v).sum()),
            transform(jax.jit(fn)),
        )

    @jax.custom_vjp
    def double(x):
        return 2 * x

    double.defvjp(lambda x: (2 * x, x), lambda x, ct: (2 * ct,))
    before = builders()
    made = [*programs(lambda x: jax.nn.relu(x) * 2), *programs(lambda x: double(x) + 1)]
    for program in made:
        program(Doubled(X))
    assert builders() <= before


def test_methods_are_kept_with_their_objects():
    class Model:
        calls = 0

        def apply(self, v):
            self.calls += 1
            return v + 1

        def other(self, v):
            return v + 2

    model = Model()
    for _ in range(2):
        np.testing.assert_allclose(transform(model.apply)(Doubled(X)), X * 2 + 1)
        np.testing.assert_allclose(transform(model.other)(Doubled(X)), X * 2 + 2)
    assert model.calls == 1
    ref = weakref.ref(model)
    del model
    gc.collect()
    assert ref() is None


def test_methods_of_equal_objects_have_programs_of_their_own():
    @dataclasses.dataclass(frozen=True)
    class Layer:
        scale: float = dataclasses.field(compare=False)

        def apply(self, v):
            return v * self.scale

        @transform
        def __call__(self, v):
            return v * self.scale

    twice, fivefold = Layer(2.0), Layer(5.0)
    assert twice == fivefold
    for layer in (twice, fivefold, twice):
        for fn in (transform(layer.apply), layer, layer.__call__):
            np.testing.assert_allclose(fn(Doubled(X)), X * 2 * layer.scale)
    np.testing.assert_allclose(Layer.__call__(Layer(3.0), Doubled(X)), X * 6)
    refs = weakref.ref(twice), weakref.ref(fivefold)
    del twice, fivefold, layer, fn
    gc.collect()
    assert [ref() for ref in refs] == [None, None]


def test_a_dense_value_follows_the_rules_of_the_value_inside():
    class Inner(Doubled):
        pass

    class Outer(jaxrewrite.ArrayValue):
        inner: Inner

        def materialise(self):
            return self.inner * 3.0 + 1

    value = Outer(Inner(X))
    for factor in (5.0, 7.0):

        @jaxrewrite.register("mul")
        def _(v: Inner, y: jax.Array, *, factor=factor, **params):
            return v.x * factor

        assert jaxrewrite.materialise(value).tolist() == (X * factor + 1).tolist()


def test_unhashable_static_arguments_are_staged_each_time():
    class Unhashable:
        __hash__ = None

        def __eq__(self, other):
            return True

    fn, calls = counted()
    for _ in range(2):
        np.testing.assert_allclose(transform(fn)(Doubled(X), Unhashable()), X * 2 + 1)
    assert len(calls) == 2


def test_programs_of_one_function_are_bounded():
    from jaxrewrite._core.rules import global_rules

    fn, _ = counted()
    run = transform(fn)
    v = Doubled(X)
    for i in range(20):
        run(v, i)
    assert len(global_rules.programs.of(fn)) == 20
    jaxrewrite.clear_caches()
    held = global_rules.programs.of(fn)
    assert len(held) == 0
    np.testing.assert_allclose(run(v, 1), X * 2 + 1)
    assert len(held) == 1
    jaxrewrite.clear_caches()
    assert len(held) == 0


def test_bounded_cache_forgets_the_least_recently_used():
    from jaxrewrite._core.caches import BoundedCache

    cache = BoundedCache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1
    cache.put("c", 3)
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == (1, None, 3)


def test_threads_register_and_call_at_once(no_leak_checks):
    rules = jaxrewrite.Rules()
    errors = []

    def register(number):
        for _ in range(20):

            @rules.register("neg")
            def _(v: Doubled):
                return Doubled(-v.x)

    def call(number):
        try:
            for i in range(20):
                fn = lambda v, i=i: -v + i
                out = transform(fn, rules=rules)(Doubled(X))
                np.testing.assert_allclose(out, -2 * X + i)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told
            errors.append(error)

    threads = [
        threading.Thread(target=f, args=(n,)) for f in (register, call) for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_a_failed_call_keeps_nothing():
    rules = jaxrewrite.Rules()
    broken = [True]

    @rules.register("add")
    def _(v: Doubled, y: jax.Array, **params):
        if broken[0]:
            raise RuntimeError("not yet")
        return v.x

    run = transform(lambda v: v + 1, rules=rules)
    with pytest.raises(RuntimeError, match="not yet"):
        run(Doubled(X))
    broken[0] = False
    np.testing.assert_allclose(run(Doubled(X)), X)


def test_no_growth_with_calls(no_leak_checks):
    import tracemalloc

    run = transform(lambda v: v + 1)
    for _ in range(50):
        run(Doubled(X))
    gc.collect()
    tracemalloc.start()
    for _ in range(50):
        run(Doubled(X))
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(500):
        run(Doubled(X))
    gc.collect()
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert after - before < 20_000


def test_a_rule_is_traced_once_for_all_programs():
    rules, ruled = jaxrewrite.Rules(), []

    def rule(v: Doubled, y: jax.Array, **params):
        ruled.append(y.shape)
        return v.x

    rules.register("add")(rule)
    for i in range(3):
        np.testing.assert_allclose(
            transform(lambda v: v + 1, rules=rules)(Doubled(X + i)), X + i
        )
    assert len(ruled) == 1
    transform(lambda v: v + 1, rules=rules)(Doubled(jnp.ones(4)))
    assert len(ruled) == 2  # another shape
    with pytest.warns(jaxrewrite.MaterialisationWarning):
        transform(lambda v: v - 1, rules=rules, materialise="warn")(Named(X))
    rules.register("add")(rule)
    transform(lambda v: v + 1, rules=rules)(Doubled(X))
    assert len(ruled) == 3  # another table, as far as a program can tell


class Named(jaxrewrite.ArrayValue):
    x: jax.Array

    def materialise(self):
        return self.x


def use_a_table():
    """Weak references to a table and to what its rule closes over."""
    array = jnp.arange(3.0)
    rules = jaxrewrite.Rules()

    @rules.register("add")
    def _(v: Doubled, y: jax.Array, **params):
        return v.x + array

    for fn in (lambda v: v + 1, plus_one):  # The second function outlives the table.
        np.testing.assert_allclose(
            transform(fn, rules=rules)(Doubled(X)), X + jnp.arange(3.0)
        )
    return weakref.ref(rules), weakref.ref(array)


def test_a_function_that_keeps_nothing_is_staged_once_for_a_table():
    @dataclasses.dataclass
    class Model:  # It has no hash.
        def step(self, v):
            calls.append(v)
            return v + 1

    calls = []
    run = transform(Model().step, rules=jaxrewrite.Rules(), materialise="allow")
    for _ in range(3):
        run(Doubled(X))
    assert len(calls) == 1


def plus_one(v):
    return jax.lax.scan(lambda carry, _: (v + 1, None), jnp.zeros(3), None, length=1)[0]


def test_what_stays_within_a_rule_is_rewritten_in_the_program():
    """Rules for arrays are for what a program writes, not for what rules do."""
    rules = jaxrewrite.Rules()
    both = jax.jit(lambda x: jnp.sin(x) + 1)

    class Own(jaxrewrite.ArrayValue):
        x: jax.Array

        def materialise(self):
            return self.x

    @rules.register("neg")
    def _(v: Own):
        return Own(both(v.x))

    @rules.register("sin")
    def _(x: jax.Array, **params):
        return 10 * x

    fn = lambda v, x: (-v, both(x), -v, both(x))
    x = jnp.arange(3.0)
    got = transform(fn, rules=rules)(Own(x), x)
    for y in got[::2]:
        np.testing.assert_array_equal(y.x, both(x))
    for y in got[1::2]:
        np.testing.assert_array_equal(y, 10 * x + 1)


def test_tables_and_what_their_rules_close_over_are_collected(no_leak_checks):
    refs = use_a_table()
    jax.clear_caches()
    gc.collect()
    assert [ref() for ref in refs] == [None, None]


def test_a_table_of_a_transform_inside_is_read_while_a_function_is_staged():
    rules = jaxrewrite.Rules()
    inner = transform(lax.tanh, rules=rules)
    run = transform(lambda v, x: inner(x))
    compiled = transform(lambda v, x: jax.jit(inner)(x))
    v = Doubled(X)
    for fn in (run, compiled):
        np.testing.assert_allclose(fn(v, X), np.tanh(X), rtol=1e-6)

    @rules.register("tanh")
    def _(x: jax.Array, **params):
        return x + 10

    for fn in (run, compiled):
        np.testing.assert_allclose(fn(v, X), np.tanh(X), rtol=1e-6)
    jaxrewrite.clear_caches()
    np.testing.assert_allclose(run(v, X), X + 10)
    np.testing.assert_allclose(compiled(v, X), np.tanh(X), rtol=1e-6)
    jax.clear_caches()
    jaxrewrite.clear_caches()
    np.testing.assert_allclose(compiled(v, X), X + 10)


def test_what_rules_did_is_bounded():
    from jaxrewrite._core import traces

    rules = jaxrewrite.Rules()

    @rules.register("add")
    def _(v: Doubled, y: jax.Array, **params):
        return v.x

    run = transform(lambda v: v + 1, rules=rules)
    for name in range(20):
        run(Doubled(X, str(name)))
    assert len(traces._kept_traces.of(rules)) == 20
    jaxrewrite.clear_caches()
    assert len(traces._kept_traces.of(rules)) == 0


def test_a_jitted_function_is_called_by_the_dispatch_of_jit():
    """Once for each setting; donation and what is no array go the other way."""
    traced = []

    @jax.jit
    def fn(v, x):
        traced.append(1)
        return x * 2 + v

    implicit = transform(fn)
    for _ in range(3):
        np.testing.assert_allclose(implicit(Doubled(X), X), 4 * X)
    assert len(traced) == 1

    class Late(Doubled):
        pass

    np.testing.assert_allclose(implicit(Late(X), X), 4 * X)

    @jaxrewrite.register("add", exchange="operands")
    def _(v: Late, y: jax.Array):
        return y + 10.0

    np.testing.assert_allclose(implicit(Late(X), X), 2 * X + 10)
    np.testing.assert_allclose(implicit(Doubled(X), X), 4 * X)
    np.testing.assert_allclose(implicit(Doubled(X), 1.0), 2 * X + 2)
    assert jax.vmap(implicit, (None, 0))(Doubled(X), jnp.ones((2, *X.shape))).shape[0] == 2

    static = transform(jax.jit(lambda v, n: v * n, static_argnums=1))
    np.testing.assert_allclose(jaxrewrite.materialise(static(Doubled(X), 3)), 6 * X)
    donating = transform(jax.jit(lambda v, x: x + v, donate_argnums=1))
    x = jnp.ones(X.shape)
    np.testing.assert_allclose(donating(Doubled(X), x), 1 + 2 * X)
    assert x.is_deleted()


def test_a_jitted_function_is_looked_up_by_jit_alone_from_the_second_call_on(monkeypatch):
    implicit, looked_up = transform(jax.jit(lambda v: v + 1)), []
    look_up = type(implicit)._staged

    def counted(*args):
        looked_up.append(1)
        return look_up(*args)

    monkeypatch.setattr(type(implicit), "_staged", counted)
    for _ in range(3):
        implicit(Doubled(X))
    assert len(looked_up) == 1


def test_what_jit_need_not_compile_anew():
    """A call without values is one of the function, and a function may be of no module."""
    traced = []

    def fn(x, y):
        traced.append(1)
        return x * y

    fn.__module__ = None
    jitted = jax.jit(fn)
    jitted(X, X)
    np.testing.assert_allclose(transform(jitted)(X, X), X * X)
    assert len(traced) == 1
    np.testing.assert_allclose(
        jaxrewrite.materialise(transform(jitted)(Doubled(X), X)), 2 * X * X
    )


def test_what_is_traced_under_other_settings_is_set_apart(monkeypatch):
    """JAX keeps one program for a function and its arguments; it knows nothing of settings."""
    # Another test may have left a rule for arrays, which sets traces apart from plain ones.
    monkeypatch.setattr(RulesInForce, "matter_inside", lambda self: False)
    of = lambda policy: Settings(RulesInForce(), policy).mark()
    assert of("warn") is None and of("allow") is None
    assert of("forbid") is not None and of("forbid") == of("forbid")
    assert of("forbid") != of(jaxrewrite.Cheapest())
    assert of(jaxrewrite.Cheapest()) != of(jaxrewrite.Cheapest(limit=10))

"""The ways in that other libraries have: passes, hooks for operands, for staging, for classes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend import core as jex_core

import jaxrewrite
from jaxrewrite import Rules, explain, make_jaxpr, transform
from jaxrewrite.extend import (
    Analysis,
    ClassHook,
    OperandsHook,
    Pass,
    StagingHook,
    live_equations,
    register_class_hook,
    register_operands_hook,
    register_pass,
    register_staging_hook,
    unregister,
)
from jaxrewrite.values import Diagonal


class Involutions(Pass):
    """Leaves out an operation, and the same one on its result. Entries are primitives."""

    def __init__(self):
        self.calls = []

    def run(self, jaxpr, entries, values, misses):
        self.calls.append((entries, len(values)))
        own = {primitive for _, primitive in entries}
        makers, names, kept = {}, {}, []

        def named(x):
            return x if isinstance(x, jex_core.Literal) else names.get(x, x)

        for eqn in jaxpr.eqns:
            eqn = eqn.replace(invars=[*map(named, eqn.invars)])
            if eqn.primitive in own and not isinstance(eqn.invars[0], jex_core.Literal):
                (x,), (y,) = eqn.invars, eqn.outvars
                before = makers.get(x)
                makers[y] = eqn
                if before is not None and before.primitive is eqn.primitive:
                    names[y] = before.invars[0]
                elif misses is not None:
                    misses.append(eqn)
            kept.append(eqn)
        if not names:
            return jaxpr
        outvars = [*map(named, jaxpr.outvars)]
        return jaxpr.replace(eqns=live_equations(kept, outvars), outvars=outvars)


@pytest.fixture
def registered():
    """Registers an object for one test."""
    undo = []

    def register(by, added):
        undo.append(added)
        by(added)
        return added

    yield register
    for added in undo:
        unregister(added)


@pytest.fixture
def involutions(registered):
    return registered(register_pass, Involutions())


@pytest.fixture
def rules(involutions):
    rules = Rules()
    rules.add_entry(involutions, lax.neg_p)
    return rules


X = jnp.arange(1.0, 4.0)


def same(x):
    return lax.neg(lax.neg(x))


def twice(x):
    return jnp.sin(same(x)) + 1


def count(fn, name, *args, rules=None):
    """How many equations of a primitive a rewritten program has, with those in bodies."""

    def of(jaxpr):
        inner = (of(b) for e in jaxpr.eqns for b in jex_core.jaxprs_in_params(e.params))
        return sum(eqn.primitive.name == name for eqn in jaxpr.eqns) + sum(inner)

    return of(make_jaxpr(fn, rules=rules)(*args).jaxpr)


@jax.custom_jvp
def own_tangent(x):
    return same(jnp.sin(x))


own_tangent.defjvp(lambda x, dx: (own_tangent(*x), same(dx[0] * jnp.cos(x[0]))))


@jax.custom_vjp
def own_cotangent(x):
    return same(jnp.sin(x))


own_cotangent.defvjp(lambda x: (own_cotangent(x), x), lambda x, g: (same(g * jnp.cos(x)),))


PROGRAMS = {
    "plain": twice,
    "jit": jax.jit(twice),
    "inner jit": lambda x: jax.jit(twice)(2 * x),
    "scan": lambda x: lax.scan(lambda c, y: (twice(c) + y, twice(y)), x[0], x),
    "while": lambda x: lax.while_loop(lambda c: jnp.sum(same(c)) > 5, twice, x),
    "cond": lambda x: lax.cond(x[0] > 0, twice, same, x),
    "vmap": jax.vmap(twice),
    "checkpoint": jax.checkpoint(twice),
    "custom_jvp": own_tangent,
    "custom_vjp": own_cotangent,
    "across": lambda x: lax.neg(jax.jit(lax.neg)(x)),
    "grad": jax.grad(lambda x: twice(x).sum()),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_pass_sees_programs_and_their_bodies(rules, name):
    fn = PROGRAMS[name]
    left = count(fn, "neg", X, rules=rules)
    # A negation in a call and one around it are in two programs.
    assert left == (2 if name == "across" else 0)
    assert count(fn, "neg", X) >= max(left, 2)
    for run in (transform(fn, rules=rules), jax.jit(transform(fn, rules=rules))):
        for got, want in zip(*map(jax.tree.leaves, (run(X), fn(X))), strict=True):
            np.testing.assert_allclose(got, want, 1e-6)


def test_a_pass_is_in_force_inside_of_transformations_of_jax(rules):
    fn = transform(twice, rules=rules)
    rows = jnp.ones((2, 3))
    np.testing.assert_allclose(jax.vmap(fn)(rows), twice(rows))
    np.testing.assert_allclose(jax.grad(lambda x: fn(x).sum())(X), jnp.cos(X), 1e-6)
    scanned = lambda x: lax.scan(lambda c, _: (fn(c), None), x, None, length=2)[0]
    np.testing.assert_allclose(scanned(X), twice(twice(X)), 1e-6)
    assert "neg" not in str(jax.make_jaxpr(scanned)(X))


@pytest.mark.parametrize("fn", [own_tangent, own_cotangent])
def test_a_pass_sees_the_derivatives_of_a_function(rules, fn):
    gradient = jax.grad(lambda x: transform(fn, rules=rules)(x).sum())
    np.testing.assert_allclose(gradient(X), jnp.cos(X), 1e-6)
    assert "neg" not in str(jax.make_jaxpr(gradient)(X))


def test_a_pass_sees_which_operands_are_values(rules, involutions):
    d = Diagonal(X)
    fn = lambda d, x: same(d) @ same(x)
    product = transform(fn, rules=rules, materialise="forbid")(d, X)
    np.testing.assert_allclose(product, X * X)
    assert involutions.calls[-1] == ([(0, lax.neg_p)], 1)
    np.testing.assert_allclose(transform(fn)(d, X), X * X)


def test_an_entry_that_comes_later_is_seen_at_the_next_call(rules, involutions):
    program = lambda x: jax.jit(lambda x: lax.rev(lax.rev(same(x), (0,)), (0,)))(x)
    fn = transform(program, rules=rules)
    np.testing.assert_array_equal(fn(X), X)
    assert count(program, "rev", X, rules=rules) == 2
    calls = len(involutions.calls)
    fn(X)
    assert len(involutions.calls) == calls
    rules.add_entry(involutions, lax.rev_p)
    np.testing.assert_array_equal(fn(X), X)
    assert len(involutions.calls) > calls
    assert count(program, "rev", X, rules=rules) == 0
    assert rules.entries_of(involutions) == (lax.neg_p, lax.rev_p)


def test_entries_may_replace_earlier_ones(rules, involutions):
    version = rules.version
    rules.add_entry(involutions, lax.rev_p, lambda earlier: earlier is lax.neg_p)
    assert rules.entries_of(involutions) == (lax.rev_p,) and rules.version > version
    assert rules.patterns == () and not Rules().entries_of(involutions)


def test_a_pass_of_the_global_table(involutions, monkeypatch):
    table = jaxrewrite._core.rules.global_rules
    monkeypatch.setattr(table, "_of_passes", {**table._of_passes})
    fn = transform(twice)
    np.testing.assert_allclose(fn(X), twice(X))
    assert not involutions.calls
    jaxrewrite.extend.add_entry(involutions, lax.neg_p)
    np.testing.assert_allclose(fn(X), twice(X))
    assert involutions.calls and count(twice, "neg", X) == 0
    table.version += 1  # for programs that are kept with the entry


def test_nearer_tables_come_first_and_outer_ones_are_left(rules, involutions):
    near = Rules()
    near.add_entry(involutions, lax.rev_p)
    fn = transform(transform(twice, rules=near), rules=rules)
    np.testing.assert_allclose(fn(X), twice(X))
    assert count(fn, "neg", X) == 0
    # The inner transform is of arrays: what the outer one has is left to that.
    assert all(len(entries) == 1 for entries, _ in involutions.calls)
    involutions.calls.clear()
    transform(lambda x: transform(jnp.negative, rules=near)(Diagonal(x)), rules=rules)(X)
    assert ([(0, lax.rev_p), (1, lax.neg_p)], 1) in involutions.calls


def test_a_pass_and_patterns_in_one_table(rules):
    @rules.rewrite(lambda x: jnp.log(1 + x))
    def better(x):
        return jnp.log1p(x)

    fn = lambda x: jnp.log(same(1 + x))
    assert count(fn, "log1p", X, rules=rules) == 0  # Patterns were registered before.
    assert count(fn, "neg", X, rules=rules) == 0
    after = lambda x: jnp.log(1 + x) + same(x)
    assert count(after, "log1p", X, rules=rules) == 1
    np.testing.assert_allclose(transform(after, rules=rules)(X), after(X), 1e-6)


def test_explain_compares_with_what_a_pass_makes(rules):
    report = explain(twice, rules=rules)(X)
    assert report.flops[0] - report.flops[1] == 2 * X.size
    assert report.equations == 2
    inside = explain(lambda x: jax.jit(twice)(x), rules=rules)(X)
    (step,) = inside.tree
    assert (step.primitive, step.decision) == ("jit", "handler")
    assert inside.flops == report.flops


def test_explain_names_a_pass_where_it_changed_an_equation(rules):
    def fn(d, x):
        return jnp.sin(same(d)), lax.scan(
            lambda c, _: (jnp.tanh(same(c)), None), d, None, 2
        )

    report = explain(fn, rules=rules)(Diagonal(X), X)
    changed = {step.primitive: step.changed_by for step in report.steps}
    assert changed == {"sin": ("Involutions",), "scan": (), "tanh": ("Involutions",)}
    assert report.passes == ("Involutions",)
    assert "changed by Involutions" in str(report) and "Involutions" in report._repr_html_()
    assert "The program was changed by Involutions." in str(report)
    assert jaxrewrite.Report.from_json(report.to_json()) == report
    assert explain(fn)(Diagonal(X), X).passes == ()


def test_which_names_a_pass_that_takes_the_equation_away(registered, monkeypatch):
    class Gone(Pass):
        def run(self, jaxpr, entries, values, misses):
            return jaxpr.replace(eqns=[], outvars=jaxpr.invars[:1])

    table = jaxrewrite._core.rules.global_rules
    monkeypatch.setattr(table, "_of_passes", {**table._of_passes})
    gone = registered(register_pass, Gone())
    assert jaxrewrite.which("neg", Diagonal(X)).changed_by == ()
    jaxrewrite.extend.add_entry(gone, None)
    which = jaxrewrite.which("neg", Diagonal(X))
    assert which.changed_by == ("Gone",) and "changed by Gone" in str(which)
    table.version += 1  # for programs that are kept with the entry


def test_a_pass_is_asked_what_almost_applied(rules, involutions):
    from jaxrewrite._core.record import Recorder
    from jaxrewrite._core.settings import current_settings
    from jaxrewrite._staging.stage import Arguments, stage

    recorder = Recorder()
    misses = recorder.misses[involutions] = []
    settings = current_settings().refined([rules], "allow")._replace(recorder=recorder)
    stage(Arguments(jnp.negative, (None, (X,), {})), True, settings)
    assert [eqn.primitive for eqn in misses] == [lax.neg_p]


def test_a_result_of_another_type_is_refused(registered):
    class Forgetful(Pass):
        def run(self, jaxpr, entries, values, misses):
            return jaxpr.replace(outvars=[jaxpr.invars[1]])

    forgetful, rules = Forgetful(), Rules()
    with pytest.raises(ValueError, match="Forgetful is no registered pass.*register_pass"):
        rules.add_entry(forgetful, None)
    registered(register_pass, forgetful)
    rules.add_entry(forgetful, None)
    message = r"The pass Forgetful .*\(f32\[3\], f32\[2\]\) -> \(f32\[2\]\), in place of .* -> \(f32\[3\]\)"
    with pytest.raises(TypeError, match=message):
        transform(lambda x, y: x + y[0], rules=rules)(X, jnp.ones(2))


@pytest.mark.parametrize("made", [None, jax.make_jaxpr(lambda x: x + X)(X)])
def test_what_is_no_jaxpr_without_constants_is_refused(registered, made):
    class Wrong(Pass):
        def run(self, jaxpr, entries, values, misses):
            return made

    wrong, rules = registered(register_pass, Wrong()), Rules()
    rules.add_entry(wrong, None)
    with pytest.raises(TypeError, match="The pass Wrong returned something else"):
        transform(jnp.sin, rules=rules)(X)


def test_a_registration_can_be_taken_back(rules, involutions):
    unregister(involutions)
    assert count(twice, "neg", X, rules=rules) == 2
    np.testing.assert_allclose(transform(twice, rules=rules)(X), twice(X))


# --- state that is no result -----------------------------------------------------------------


@jax.tree_util.register_pytree_node_class
class Counter:
    def __init__(self, count):
        self.count = count

    def tree_flatten(self):
        return (self.count,), None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)


class Counters:
    """The hook: what a function stores in counters among its arguments."""

    def before(self, tree):
        return [(counter, counter.count) for counter in self.among(tree)]

    def after(self, state):
        return {i: c.count for i, (c, old) in enumerate(state) if c.count is not old}

    def store(self, tree, changed):
        own = self.among(tree)
        for i, count in changed.items():
            own[i].count = count

    def among(self, tree):
        is_counter = lambda x: isinstance(x, Counter)
        return [x for x in jax.tree.leaves(tree, is_leaf=is_counter) if is_counter(x)]


@pytest.fixture
def counters(registered):
    return registered(register_staging_hook, Counters())


@pytest.mark.parametrize("around", [lambda fn: fn, lambda fn: lambda *xs: fn(*xs)])
def test_state_among_the_arguments_is_stored(counters, around):
    def step(counter, d, x):
        counter.count = counter.count + jnp.sum(d @ x)
        return d @ x

    fn = transform(around(step))
    counter = Counter(jnp.float32(1))
    for total in (7.0, 13.0):
        np.testing.assert_allclose(fn(counter, Diagonal(X), jnp.ones(3)), X)
        np.testing.assert_allclose(counter.count, total)
    fn({"unused": counter}["unused"], Diagonal(X), jnp.zeros(3))
    np.testing.assert_allclose(counter.count, 13)


def test_state_may_be_a_value(counters):
    def step(counter, d):
        counter.count = counter.count * 2
        return d * 3

    counter = Counter(Diagonal(X))
    out = transform(step)(counter, Diagonal(X))
    assert type(out) is type(counter.count) is Diagonal
    np.testing.assert_allclose(counter.count.materialise(), np.diag(2 * X))
    assert np.allclose(transform(lambda c, d: d * 3)(counter, out).materialise()[0, 0], 9)


# --- classes ---------------------------------------------------------------------------------


class Table:
    """The hook: another library's table of classes, which may not be imported yet."""

    def __init__(self, is_ready):
        self.imported, self.classes = is_ready, []

    def is_ready(self):
        return self.imported

    def defined(self, cls):
        self.classes.append(cls)


def test_a_table_has_all_classes_of_values_once(registered):
    table = registered(register_class_hook, Table(is_ready=True))
    assert Diagonal in table.classes

    class New(jaxrewrite.ArrayValue):
        x: jax.Array

        def materialise(self):
            return self.x

    New(X)
    assert table.classes.count(New) == 1 and len({*table.classes}) == len(table.classes)


def test_a_table_that_comes_later_gets_the_classes_when_a_value_is_made(registered):
    table = registered(register_class_hook, Table(is_ready=False))
    Diagonal(X)
    assert not table.classes
    table.imported = True
    Diagonal(X)
    assert table.classes.count(Diagonal) == 1


class Refusing(Table):
    """Raises an error at a class of this name."""

    def __init__(self, name):
        super().__init__(is_ready=True)
        self.name = name

    def defined(self, cls):
        super().defined(cls)
        if cls.__name__ == self.name:
            raise ValueError(f"no {cls.__name__}")


def new_class(name):
    return type(name, (jaxrewrite.ArrayValue,), {"materialise": lambda self: X})


def test_every_table_is_told_of_a_class_that_one_of_them_refuses(registered):
    refusing = registered(register_class_hook, Refusing("First"))
    table = registered(register_class_hook, Table(is_ready=True))
    first = new_class("First")
    with pytest.raises(ValueError, match="no First"):
        new_class("Second")
    second = new_class("Second")
    first(), second()
    for told in (refusing, table):
        assert told.classes.count(first) == told.classes.count(second) == 1


def test_a_table_that_refuses_a_class_is_not_registered(registered):
    with pytest.raises(ValueError, match="no Diagonal"):
        registered(register_class_hook, Refusing("Diagonal"))
    late = Refusing("Diagonal")
    late.imported = False
    registered(register_class_hook, late)
    late.imported = True
    with pytest.raises(ValueError, match="no Diagonal"):
        Diagonal(X)
    count = len(late.classes)
    new_class("Later")()
    assert len(late.classes) == count


@pytest.mark.parametrize(
    "register, given, asked",
    [
        (
            register_pass,
            None,
            "an object with data_flow, primitives, run, as .*Pass has; got None",
        ),
        (register_pass, Involutions, "an object .*got <class .*Involutions'>"),
        (register_pass, lambda jaxpr: jaxpr, "an object .*got <function"),
        (register_class_hook, Table, "an object with defined, is_ready, .*ClassHook"),
        (register_class_hook, 3, "an object .*got 3"),
        (register_staging_hook, Table(True), "an object with after, before, store, .*Stag"),
        (
            register_operands_hook,
            object(),
            "a class with begin, .*primitives.*OperandsHook",
        ),
        (register_operands_hook, Table, "a class .*Table"),
    ],
)
def test_what_is_registered_has_what_its_protocol_asks_for(
    registered, rules, register, given, asked
):
    with pytest.raises(TypeError, match=f"{register.__name__} takes {asked}"):
        registered(register, given)
    negate = transform(lambda x: -x, rules=rules, materialise="allow")
    np.testing.assert_allclose(negate(new_class("New")()), -X)


def test_what_a_protocol_has_no_default_for_has_to_be_defined():
    for protocol, missing in (
        (Pass, "run"),
        (ClassHook, "is_ready"),
        (StagingHook, "store"),
    ):
        with pytest.raises(TypeError, match=missing):
            type("Own", (protocol,), {})()


class Turns(OperandsHook):
    """Lets sums of reversed values read the values themselves."""

    primitives = frozenset({"rev", "reduce_sum", "stop_gradient"})

    def __init__(self, analysis):
        self.turned = []

    def before(self, x):
        return next((before for after, before in self.turned if after is x), x)

    def operands(self, eqn, operands):
        if eqn.primitive.name != "reduce_sum":
            return eqn, operands
        return eqn, [*map(self.before, operands)]

    def results(self, eqn, operands, results, leafwise):
        before = self.before(operands[0])
        if eqn.primitive.name == "rev":
            self.turned.append((results[0], before))
        elif eqn.primitive.name == "stop_gradient" and before is not operands[0]:
            self.turned.append((results[0], leafwise(before)))


class Turned(jaxrewrite.ArrayValue):
    x: jax.Array

    def materialise(self):
        return self.x


@pytest.mark.parametrize(
    ("fn", "is_read_before"),
    [
        (lambda v: jnp.sum(lax.rev(v, (0,))), True),
        (lambda v: jnp.sum(lax.stop_gradient(lax.rev(lax.rev(v, (0,)), (0,)))), True),
        (lambda v: lax.map(lambda x: x * jnp.sum(lax.rev(v, (0,))), jnp.ones(2)), True),
        # What a call returns is an operand like any other.
        (lambda v: jnp.sum(jax.jit(lambda v: lax.rev(v, (0,)))(v)), False),
    ],
    ids=["direct", "through another equation", "in a body", "from a call"],
)
def test_a_hook_chooses_operands_by_the_equations_before(fn, is_read_before, registered):
    rules = Rules()

    @rules.register("rev")
    def _(v: Turned, *, dimensions):
        return Turned(lax.rev(v.x, dimensions))

    @rules.register("reduce_sum")
    def _(v: Turned, **params):
        return jnp.sum(v.x)

    v = Turned(jnp.array([1.0, 2.0, 4.0]))
    assert "rev[" in str(make_jaxpr(fn, rules=rules)(v))
    registered(register_operands_hook, Turns)
    jaxrewrite.clear_caches()
    assert ("rev[" in str(make_jaxpr(fn, rules=rules)(v))) != is_read_before
    np.testing.assert_allclose(transform(fn, rules=rules)(v), fn(v.x))


class Swaps(OperandsHook):
    """Exchanges the operands of sums."""

    primitives = frozenset({"add", "mul"})

    def __init__(self, analysis):
        pass

    def operands(self, eqn, operands):
        return eqn, operands[::-1] if eqn.primitive.name == "add" else list(operands)


def test_explain_and_which_name_a_hook_that_changed_operands(registered):
    v = Diagonal(X)
    fn = lambda v: lax.scan(lambda c, x: (c + 2 * v, None), v, None, 2)[0] * 2
    assert {step.changed_by for step in explain(fn)(v).steps} == {()}
    registered(register_operands_hook, Swaps)
    report = explain(fn)(v)
    changed = [step.primitive for step in report.steps if step.changed_by == ("Swaps",)]
    assert changed == ["add"] and report.passes == ()
    assert "changed by Swaps" in str(report) and "changed by Swaps" in report._repr_html_()
    which = jaxrewrite.which("add", v, v)
    assert which.changed_by == ("Swaps",) and "changed by Swaps" in str(which)
    assert jaxrewrite.which("mul", v, v).changed_by == ()


def test_a_call_that_stays_as_it_is_is_looked_at_once(registered):
    shown = []

    class Shown(OperandsHook):
        primitives = frozenset({"jit"})

        def __init__(self, analysis):
            pass

        def operands(self, eqn, operands):
            shown.append(eqn)
            return eqn, operands

    rules = Rules()

    @rules.register("sin")
    def _(x: jax.Array, **params):
        return jnp.cos(x)

    stays, changes = jax.jit(lambda x: x * 2), jax.jit(lambda x: jnp.sin(x))
    registered(register_operands_hook, Shown)
    make_jaxpr(lambda x: stays(stays(changes(changes(x)))), rules=rules)(X)
    assert len(shown) == 3


class Depths(Analysis):
    """The number of equations between a variable and the operands of its program."""

    def __init__(self, eqns, facts):
        self.eqns, self.facts = eqns, facts
        Asking.made.append(self)

    def __call__(self, atom):
        if not isinstance(atom, jex_core.Var):
            return 0
        makers = {var: eqn for eqn in self.eqns for var in eqn.outvars}
        eqn = makers.get(atom)
        if eqn is None:
            return self.facts.get(atom, 0)
        return 1 + max(map(self, eqn.invars), default=0)


class Asking(OperandsHook):
    """Takes note of how deep the arrays beside values are, also in the program around a body."""

    primitives = frozenset({"mul"})
    made, seen = [], []

    def __init__(self, analysis):
        self.analysis = analysis

    def known(self, jaxpr, operands):
        arrays = {
            i: x for i, x in enumerate(operands) if not isinstance(x, jaxrewrite.Value)
        }
        depths = {i: self.analysis(Depths)(x) for i, x in arrays.items()}
        return {Depths: {i: depth for i, depth in depths.items() if depth}}

    def begin(self, jaxpr):
        self.seen.append("begin")

    def operands(self, eqn, operands):
        own = [x for x in operands if not isinstance(x, jaxrewrite.Value)]
        self.seen.append(tuple(map(self.analysis(Depths), own)))
        return eqn, operands

    def end(self, operands, results):
        self.seen.append("end")
        return [results[0].x]


def test_a_hook_asks_an_analysis_and_sees_bodies(registered):
    rules = Rules()

    @rules.register("mul")
    def _(v: Turned, y: jax.Array | float, **params):
        return Turned(v.x * y)

    def fn(v, y):
        scaled = jax.jit(lambda v, y: v * jnp.sin(y))
        deep = jnp.sin(jnp.cos(y))
        return scaled(v * deep, deep), scaled(v, y), scaled(v, jnp.cos(jnp.cos(y)))

    registered(register_operands_hook, Asking)
    jaxrewrite.clear_caches()
    Asking.made.clear(), Asking.seen.clear()
    x = jnp.float32(0.5)
    got = transform(fn, rules=rules)(Turned(x), x)
    # The results of the bodies are arrays, because `end` makes them such.
    np.testing.assert_allclose(got, fn(x, x), rtol=1e-6)
    # The third body is the first one, because what is known of its operands is the same.
    assert Asking.seen == [(2,), "begin", (3,), "end", "begin", (1,), "end"]
    assert len(Asking.made) == 3  # one for each jaxpr

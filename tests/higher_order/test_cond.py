"""`lax.cond`, `switch` and `platform_dependent` on values."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from choose import often, slow
from jax import lax
from reference.own import Scaled, Shared, V, Y, Zero

import jaxrewrite
from jaxrewrite import transform, values


PROGRAMS = {
    "both stay": lambda p, a: lax.cond(p, lambda a: -a, lambda a: jnp.negative(-a), a),
    "they differ": lambda p, a: lax.cond(p, lambda a: -a, lambda a: a + 1.0, a),
    "one of two": lambda p, a: lax.cond(p, lambda a: (-a, a), lambda a: (a + 1.0, -a), a)[
        1
    ],
    "closed over": lambda p, a: lax.cond(p, lambda: -a, lambda: a),
    "nested": lambda p, a: lax.cond(
        p, lambda a: lax.cond(a[0] > 0, lambda a: -a, lambda a: a, a), lambda a: -a, a
    ),
    "switch": lambda p, a: lax.switch(p.astype(int) + 1, [jnp.cos, jnp.sin, jnp.tan], -a),
    "arrays in one branch": lambda p, a: lax.cond(
        p, lambda a: -a + jnp.arange(3.0), lambda a: a * np.arange(3.0, dtype="f"), a
    ),
    "platform": lambda p, a: lax.platform_dependent(
        a, cpu=lambda a: -a, default=lambda a: a + 1.0
    ),
    "in jit": lambda p, a: jax.jit(lambda a: lax.cond(p, jnp.sin, jnp.cos, -a))(a),
}


@pytest.mark.parametrize("taken", [slow(True), False])
@pytest.mark.parametrize("name", PROGRAMS)
def test_oracle(name, taken):
    fn, taken = PROGRAMS[name], jnp.array(taken)
    transformed = transform(fn, materialise="allow")
    want = fn(taken, V.materialise())
    for wrap in (lambda f: f, jax.jit):
        got = jaxrewrite.materialise(wrap(transformed)(taken, V))
        np.testing.assert_allclose(got, want, rtol=1e-6)
    total = lambda v: jaxrewrite.materialise(transformed(taken, v)).sum()
    dense = lambda v: fn(taken, jaxrewrite.materialise(v)).sum()
    jax.tree.map(
        lambda g, w: np.testing.assert_allclose(g, w, rtol=1e-5),
        jax.grad(total)(V),
        jax.grad(dense)(V),
    )
    batch = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf + 1]), V)
    flags = jnp.array([taken, ~taken])
    got = jax.vmap(lambda p, v: jaxrewrite.materialise(transformed(p, v)))(flags, batch)
    want = jax.vmap(lambda p, v: fn(p, v.materialise()))(flags, batch)
    np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize("name", ["both stay", "one of two", "closed over", "nested"])
def test_values_of_one_structure_stay(name):
    out = transform(PROGRAMS[name], materialise="allow")(jnp.array(True), V)
    assert isinstance(out, Scaled)


def test_one_equation_stays_one():
    jaxpr = jaxrewrite.make_jaxpr(PROGRAMS["both stay"])(jnp.array(True), V).jaxpr
    (eqn,) = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "cond"]
    assert len(eqn.outvars) == 2
    jaxpr = jaxrewrite.make_jaxpr(PROGRAMS["platform"], materialise="allow")(
        jnp.array(True), V
    ).jaxpr
    (eqn,) = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "cond"]
    assert "branches_platforms" in eqn.params


def test_differing_branches_warn_once():
    with pytest.warns(jaxrewrite.MaterialisationWarning) as caught:
        transform(PROGRAMS["they differ"])(jnp.array(True), V)
    assert {str(w.message).split(",")[0] for w in caught} == {
        "No rule for primitive 'add' on Scaled",
        "Scaled can't keep one structure through primitive 'cond'",
    }


def test_rules_on_dense_operands_reach_into_branches():
    rules = jaxrewrite.Rules()

    @rules.register("tanh")
    def _(x: jax.Array, **params):
        return x * 10

    fn = lambda p, x: lax.cond(p, jnp.tanh, jnp.sin, x)
    np.testing.assert_allclose(transform(fn, rules=rules)(jnp.array(True), Y), Y * 10)
    got = transform(fn, rules=rules)(jnp.array(False), Y)
    np.testing.assert_allclose(got, jnp.sin(Y), rtol=1e-6)


def test_effects_inside_branches():
    log = []

    def fn(p, a, ref):
        def write(a):
            ref[...] = a + 1.0
            jax.debug.callback(lambda x: log.append(float(x)), a[1])
            return -a

        return lax.cond(p, write, lambda a: a, a)

    ref = jax.new_ref(jnp.zeros(3))
    transform(fn, materialise="allow")(jnp.array(True), V, ref)
    jax.effects_barrier()
    np.testing.assert_allclose(ref[...], V.materialise() + 1)
    np.testing.assert_allclose(log, [-0.4])


class Held(jaxrewrite.ArrayValue):
    """An array of any kind, values included; joins with arrays by holding them."""

    x: jax.Array

    def materialise(self):
        return self.x

    def join(self, other):
        return self, Held(other)


def test_branches_join_as_deep_as_needed():
    """A value in a value in a value: only the innermost becomes dense."""
    fn = lambda p, v, w: lax.cond(p, lambda: v, lambda: w)
    v = Held(Held(V))
    w = Held(Held(Y))
    out = transform(fn, materialise="allow")(jnp.array(True), v, w)
    assert isinstance(out.x, Held)
    assert isinstance(out.x.x, jax.Array)
    np.testing.assert_allclose(out.x.x, V.materialise())


def test_several_branches_join():
    fn = lambda i, a, b, c: lax.switch(i, [lambda: a, lambda: b, lambda: c])
    for i, want in enumerate([Y, V.materialise(), 2 * Y]):
        out = transform(fn, materialise="allow")(jnp.int32(i), Y, Held(V), Held(2 * Y))
        assert isinstance(out, Held)
        assert isinstance(out.x, jax.Array)
        np.testing.assert_allclose(out.x, want)
    with pytest.warns(jaxrewrite.MaterialisationWarning, match=r"Define Scaled\.join"):
        out = transform(fn)(jnp.int32(1), Y, V, V)
    assert isinstance(out, jax.Array)


class Cyclic(jaxrewrite.ArrayValue):
    """Of any two kinds one is that of both, but no kind is that of all three."""

    x: jax.Array
    kind: int = jaxrewrite.field(static=True)

    def materialise(self):
        return self.x

    def join(self, other):
        if not isinstance(other, Cyclic):
            return NotImplemented
        kind = (other if (other.kind - self.kind) % 3 == 1 else self).kind
        return Cyclic(self.x, kind), Cyclic(other.x, kind)


def test_branches_that_join_in_pairs_alone_are_dense():
    cyclic = [Cyclic((k + 1) * Y, k) for k in range(3)]
    two = lambda i, a, b, c: lax.switch(i, [lambda: a, lambda: b])
    three = lambda i, a, b, c: lax.switch(i, [lambda: a, lambda: b, lambda: c])
    assert transform(two)(jnp.int32(0), *cyclic).kind == 1
    for i in range(3):
        out = transform(three, materialise="allow")(jnp.int32(i), *cyclic)
        assert isinstance(out, jax.Array)
        np.testing.assert_allclose(out, (i + 1) * Y)


W = np.random.default_rng(0).normal(size=(8, 8)).astype("float32")


WEIGHTS = {
    "int8": lambda: values.Quantised.quantise(W, axis=-1),
    "nf4": lambda: values.NF4.quantise(W, 4),
    "low rank": lambda: values.LowRank(W[:, :2], W[:2]),
    "lora": lambda: values.Lora(values.Quantised.quantise(W, 4), W[:, :2], W[:2]),
}


@pytest.mark.parametrize("kind", often(WEIGHTS, ("int8", "low rank", "lora")))
def test_a_weight_in_a_branch_that_each_element_chooses_stays(kind, bulk):
    """All elements share some of its leaves, and JAX chooses for each between two copies."""
    v = WEIGHTS[kind]()

    def fn(x, v):
        return jax.vmap(
            lambda r: lax.cond(r[0] > 0, lambda r: jnp.sqrt(r @ v), lambda r: r, r)
        )(x)

    w = jaxrewrite.materialise(v)
    x = jnp.stack([jnp.ones(8), -jnp.ones(8), W[0] @ jnp.linalg.inv(w)])
    slope = lambda fn: jax.grad(lambda x, v: jnp.nansum(fn(x, v)))
    implicit = transform(fn, materialise="forbid")
    for got, want in ((implicit(x, v), fn(x, w)), (slope(implicit)(x, v), slope(fn)(x, w))):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)


def test_values_without_entries_in_branches_that_each_element_chooses():
    v = values.Permutation(jnp.zeros(0, int), jnp.float32)
    flags = jnp.array([True, False])
    fn = lambda v: jax.vmap(lambda p: lax.cond(p, lambda: v, lambda: v.T))(flags)
    assert transform(fn, materialise="forbid")(v).shape == (2, 0, 0)


MATRICES = {
    "Diagonal": lambda: values.Diagonal(jnp.arange(1.0, 5.0)),
    "LowRank": lambda: values.LowRank(jnp.arange(4.0)[:, None], jnp.ones((1, 4))),
    "Sparse": lambda: values.Sparse.from_dense(jnp.eye(4, k=1)),
    "Lora": lambda: values.Lora(jnp.eye(4), jnp.arange(4.0)[:, None], jnp.ones((1, 4))),
}

OR_ZEROS = {
    "zeros": lambda p, v: lax.cond(p, lambda v: 2 * v, lambda v: jnp.zeros((4, 4)), v),
    "zeros like": lambda p, v: lax.cond(p, lambda v: jnp.zeros_like(v), lambda v: v, v),
    "several": lambda p, v: lax.switch(
        p.astype(int), [lambda: (v, -v), lambda: (jnp.zeros((4, 4)), v)]
    )[0],
}


@pytest.mark.parametrize("taken", [True, slow(False)])
@pytest.mark.parametrize("kind", [slow("Diagonal"), "LowRank", slow("Sparse")])
@pytest.mark.parametrize("name", OR_ZEROS)
def test_zeros_in_a_branch_take_the_structure_of_the_other(name, kind, taken):
    fn, value, taken = OR_ZEROS[name], MATRICES[kind](), jnp.array(taken)
    got = jax.jit(transform(fn, materialise="forbid"))(taken, value)
    assert isinstance(got, type(value))
    np.testing.assert_array_equal(got.materialise(), fn(taken, value.materialise()))


@pytest.mark.parametrize("name", ["cond", "where"])
def test_zeros_take_the_structure_of_a_value_without_leaves(name):
    v = Zero((3,), jnp.float32)
    fn = {
        "cond": lambda p, v: lax.cond(p, lambda: v, lambda: jnp.zeros(3)),
        "where": lambda p, v: jnp.where(p, v, jnp.zeros(3)),
    }[name]
    assert isinstance(transform(fn, materialise="forbid")(jnp.array(False), v), Zero)


def test_zeros_stay_where_all_branches_are_arrays():
    """Nothing takes their structure, and neither does a weight that is not zero anywhere."""
    value = MATRICES["Lora"]()
    zeros = lambda v: jnp.zeros((4, 4))  # noqa: E731
    for fn in (
        lambda p, v: lax.cond(p, zeros, lambda v: zeros(v) + 1, v) @ v,
        lambda p, v: lax.cond(p, zeros, zeros, v) @ v,
        lambda p, v: lax.cond(p, zeros, lambda v: v, v),
    ):
        for taken in (jnp.array(True), jnp.array(False)):
            got = transform(fn, materialise="allow")(taken, value)
            want = fn(taken, value.materialise())
            np.testing.assert_array_equal(jaxrewrite.materialise(got), want)


WHOLE = {
    "where": lambda p, v, w: jnp.where(p, v, w),
    "select": lambda p, v, w: lax.select(p, v, w),
    "step": lambda p, v, w: jax.tree.map(lambda new, old: jnp.where(p, new, old), [v], [w])[
        0
    ],
    "zeros": lambda p, v, w: lax.select(p, v, jnp.zeros((4, 4))),
    "zeros that are written": lambda p, v, w: jnp.where(p, 0, jnp.where(p, 0.0, v)),
}


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("kind", ["Lora", slow("LowRank")])
def test_one_truth_value_chooses_between_whole_values(kind, name):
    """As a training step keeps the old weights where a gradient is not finite."""
    if kind == "Lora" and name.startswith("zeros"):
        pytest.skip("the weight of a Lora is not zero if its adapter is")
    fn, value = WHOLE[name], MATRICES[kind]()
    other = jax.tree.map(lambda x: x * 3, value)
    program = jax.jit(transform(fn, materialise="forbid"))
    for taken in (jnp.array(True), jnp.array(False)):
        got = program(taken, value, other)
        assert isinstance(got, type(value))
        want = fn(taken, value.materialise(), other.materialise())
        np.testing.assert_array_equal(got.materialise(), want)


@pytest.mark.parametrize("i", range(3))
def test_a_number_chooses_among_three_of_which_two_are_one(i):
    value = MATRICES["LowRank"]()
    other = jax.tree.map(lambda x: x * 3, value)
    fn = lambda i, v, w: (lax.select_n(i, v, v, w), lax.select_n(i, v, w, v))
    got = transform(fn, materialise="forbid")(jnp.int32(i), value, other)
    want = fn(jnp.int32(i), value.materialise(), other.materialise())
    for g, w in zip(got, want, strict=True):
        np.testing.assert_array_equal(g.materialise(), w)


def test_values_with_a_leaf_for_all_elements_are_dense_where_each_chooses():
    v, w = (
        Shared(X := jnp.arange(6.0).reshape(2, 3), jnp.float32(2)),
        Shared(X, -jnp.ones(())),
    )
    fn = lambda p, v, w: lax.select(lax.broadcast_in_dim(p, v.shape, (0,)), v, w)
    p = jnp.array([True, False])
    got = transform(fn, materialise="allow")(p, v, w)
    np.testing.assert_array_equal(got, fn(p, v.materialise(), w.materialise()))


def test_a_choice_of_entries_is_no_choice_of_values():
    value = MATRICES["LowRank"]()
    for mask in (jnp.eye(4) > 0, jnp.ones((4, 1)) > 0):
        program = transform(lambda m, v: jnp.where(m, v, 2 * v), materialise="forbid")
        with pytest.raises(jaxrewrite.MaterialisationError):
            program(mask, value)


def test_a_branch_that_keeps_no_residual_beside_a_value_with_units():
    """Nothing reads what it leaves uninitialised, whatever the numbers there may be taken for."""

    @jax.custom_vjp
    def kept(x):
        return x

    kept.defvjp(lambda x: (x, x), lambda x, g: (x,))
    y = jnp.arange(4.0).reshape(2, 2)

    def gradient(v):
        branch = lambda a: lax.cond(jnp.arange(2)[1] > 0, kept, lambda a: a, a)
        return jax.grad(lambda a: (branch(a) * y).sum())(v)

    v = values.Unitful(values.Permutation(jnp.array([1, 0])), "")
    got = transform(gradient, materialise="allow")(v)
    expected = gradient(jaxrewrite.materialise(v.array))
    np.testing.assert_allclose(jaxrewrite.materialise(got.array), expected)


def test_constants_of_rules_become_operands_of_all_branches():
    rules = jaxrewrite.Rules()
    first, second = jnp.arange(3.0), jnp.array([5.0, 7.0, 9.0])

    @rules.register("sin")
    def _(v: Scaled, **params):
        return v.x + first

    @rules.register("cos")
    def _(v: Scaled, **params):
        return v.x * second + first

    branches = [jnp.sin, jnp.cos, lambda v: jnp.sin(v) - jnp.cos(v)]
    program = transform(lambda i, v: lax.switch(i, branches, v), rules=rules)
    sine, cosine = V.x + first, V.x * second + first
    for i, want in enumerate([sine, cosine, sine - cosine]):
        np.testing.assert_allclose(program(jnp.int32(i), V), want, rtol=1e-6)


def chosen_by(number):
    """One branch that changes the structure, in a function that is called with the number."""
    branches = [jnp.negative, lambda v: v + 1.0, lambda v: v * v]
    inner = jax.jit(lambda i, v: lax.switch(i, branches, v))
    outer = jax.jit(jax.checkpoint(lambda i, v: inner(i, v)))
    return lambda v: outer(number, v)


@pytest.mark.parametrize("number", [-1, 0, 1, 2, 5])
def test_a_number_of_the_program_chooses_the_branch(number):
    fn, length = chosen_by(number), values.Unitful(jnp.arange(3.0), "m")
    got = jaxrewrite.materialise(transform(fn, materialise="allow")(V))
    np.testing.assert_allclose(got, fn(V.materialise()), rtol=1e-6)
    if number == 1:
        with pytest.raises(values.UnitsError, match="add needs"):
            transform(fn)(length)
        return
    got = transform(fn)(length)
    assert got.units == values.Units("m" if number < 1 else "m^2")
    np.testing.assert_array_equal(got.array, fn(length.array))
    slope = jax.grad(lambda v: transform(fn)(v).array.sum())(length)
    np.testing.assert_array_equal(
        slope.array, jax.grad(lambda x: fn(x).sum())(length.array)
    )
    batch = jnp.stack([length.array, -length.array])
    got = jax.vmap(transform(fn))(values.Unitful(batch, "m"))
    np.testing.assert_array_equal(got.array, jax.vmap(fn)(batch))


@pytest.mark.parametrize("flag", [True, False])
def test_a_flag_of_the_program_leaves_one_branch(flag):
    fn = lambda v: lax.cond(flag, lambda v: -v, lambda v: v + 1.0, v)
    jaxpr = jaxrewrite.make_jaxpr(fn, materialise="allow")(V).jaxpr
    assert "cond" not in [eqn.primitive.name for eqn in jaxpr.eqns]
    assert isinstance(transform(fn, materialise="allow")(V), Scaled) == flag


def test_branches_that_an_array_chooses_stay():
    """Also where the array is named by the same operand as a number of another call."""
    inner = jax.jit(lambda i, v: lax.switch(i, [lambda v: v + 1.0, jnp.negative], v))
    fn = lambda i, v: (inner(1, v), inner(i, v))
    number, array = transform(fn, materialise="allow")(jnp.int32(0), V)
    assert isinstance(number, Scaled)
    np.testing.assert_array_equal(array, V.materialise() + 1.0)
    turns = lambda v: lax.fori_loop(0, 3, lambda i, v: inner(i % 2, v), v)
    got = transform(turns, materialise="allow")(V)
    np.testing.assert_array_equal(jaxrewrite.materialise(got), turns(V.materialise()))


def test_a_number_chooses_in_calls_within_calls():
    """Also where a call takes it twice, and chooses by one of the two."""
    inner = jax.jit(lambda i, v: lax.switch(i, [lambda v: v + 1.0, jnp.negative], v))
    once = jax.jit(lambda i, v: inner(i, v))
    either = jax.jit(lambda i, j, v: inner(j, v) * i)
    twice = jax.jit(lambda i, v: either(i, i, v))
    for fn in (once, twice):
        got = transform(lambda v, fn=fn: fn(1, v), materialise="allow")(V)
        assert isinstance(got, Scaled)
        np.testing.assert_array_equal(got.materialise(), -V.materialise())


def test_zeros_of_the_branch_that_a_number_chooses():
    fn = lambda v: v + lax.cond(True, jnp.zeros_like, jnp.ones_like, jnp.ones(3))
    assert transform(fn)(values.Unitful(jnp.ones(3), "m")).units == values.Units("m")

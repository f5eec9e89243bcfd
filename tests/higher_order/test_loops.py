"""Loops: the structure of the carry, and how values are sliced and stacked."""

import warnings

import jax
import jax.extend.core as jex_core
import jax.numpy as jnp
import numpy as np
import pytest
from choose import every
from jax import lax
from reference import OWN
from reference.own import Lora, Scaled, Zero

import jaxrewrite
from jaxrewrite import transform, values
from jaxrewrite.testing import assert_same


# With leak checks each program is compiled anew; those are in test_families.py.
pytestmark = pytest.mark.usefixtures("bulk")
X = jnp.asarray(np.random.default_rng(1).uniform(0.2, 0.9, (3, 3)), jnp.float32)
XS = jnp.stack([X, 2 * X, 3 * X, 4 * X])
ZERO = Zero((3, 3), jnp.dtype("float32"))


def make(kind, seed=0):
    return OWN[kind].value(np.random.default_rng(seed), shape=(3, 3))


def run(fn, *operands):
    """The results of a transformed function, checked against the dense program."""
    out = transform(fn, materialise="allow")(*operands)
    want = fn(*jaxrewrite.materialise(operands))
    assert_same(out, want, 2e-5)
    return out


def only_equation(name, fn, *operands):
    jaxpr = jaxrewrite.make_jaxpr(fn, materialise="allow")(*operands).jaxpr
    (eqn,) = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == name]
    return eqn


# --- the carry ------------------------------------------------------------------


def test_a_zero_that_turns_dense_after_one_turn():
    out, _ = run(lambda z, xs: lax.scan(lambda c, x: (c + x, None), z, xs), ZERO, XS)
    assert isinstance(out, jax.Array)


def test_a_carry_that_begins_as_an_array_is_one_beside_stacked_results():
    fn = lambda v, x: lax.scan(lambda c, _: (2 * v, c.sum()), x, None, length=2)
    out, _ = run(fn, values.Diagonal(X[0]), X)
    assert isinstance(out, jax.Array)


def test_a_zero_that_stays_zero_costs_nothing():
    fn = lambda z, xs: lax.scan(lambda c, x: (jnp.sin(c * x), c.T), z, xs)
    out, ys = run(fn, ZERO, XS)
    assert isinstance(out, Zero)
    assert isinstance(ys, jaxrewrite.Batched)
    assert not jax.tree.leaves((out, ys))
    assert not jaxrewrite.make_jaxpr(fn)(ZERO, XS).jaxpr.eqns


def test_zeros_that_the_first_turn_replaces_are_a_value_from_the_start():
    """As in solvers, whose state starts as zeros of the right shape."""
    v = values.Tridiagonal(jnp.ones(2), jnp.arange(3.0), jnp.ones(2)) + values.LowRank(
        jnp.ones((3, 1)), jnp.ones((1, 3))
    )

    def fn(v, x):
        def turn(carry):
            i, last, y, _ = carry
            last = lax.cond(i % 2 == 0, lambda: i * v, lambda: last)
            return i + 1, last, y + last @ x, jnp.eye(3) * i

        zeros = jnp.zeros((3, 3))
        _, last, y, other = lax.while_loop(
            lambda carry: carry[0] < 4, turn, (1.0, zeros, x, zeros)
        )
        scanned, _ = lax.scan(lambda c, i: (v, c @ x), zeros, jnp.arange(2))
        never, _ = lax.scan(lambda c, i: (c, (v @ c)[0]), zeros, jnp.arange(2))
        return last, y, other, scanned, never

    out = run(fn, v, jnp.arange(3.0))
    kinds = [type(x).__name__ for x in out]
    assert kinds == ["Sum", "ArrayImpl", "ArrayImpl", "Sum", "ArrayImpl"]


def test_a_sum_that_starts_with_zeros_is_what_a_turn_adds():
    """If two of that add up to one of the same structure; else the carry starts dense."""
    v = values.Tridiagonal(jnp.ones(2), jnp.arange(3.0), jnp.ones(2))
    u = values.LowRank(jnp.ones((3, 1)), jnp.ones((1, 3)))
    order = values.Permutation(jnp.array([1, 2, 0]))

    def fn(v, u, order):
        turn = lambda c, x: ((c[0] + x * v, u + c[1], jnp.tanh(c[2]) + order), None)
        return lax.scan(turn, (jnp.zeros((3, 3)),) * 3, jnp.arange(3.0))[0]

    out = run(fn, v, u, order)
    assert [type(x) for x in out[:2]] == [values.Tridiagonal, type(X)]
    transform(lambda v: fn(v, X, X), materialise="forbid")(v)


def test_zeros_of_a_loop_are_looked_at_by_a_loop_inside():
    def fn(v):
        inner = lambda c: lax.fori_loop(0, 2, lambda i, c: c + v, c)
        return lax.scan(lambda c, _: (inner(c), None), jnp.zeros((3, 3)), None, length=2)[0]

    assert run(fn, values.Tagged(X, "weight")).tags == {"weight"}


def test_a_choice_of_zeros_alone_leaves_the_carry_a_value():
    def fn(v):
        def turn(carry):
            i, zeros, total = carry
            chosen = lax.select_n(i > 0, zeros, zeros)
            return i + 1, lax.select_n(i > 0, zeros, total), total + chosen

        return lax.while_loop(lambda carry: carry[0] < 2, turn, (0, jnp.zeros((3, 3)), v))

    out = run(fn, values.Diagonal(X[0]))
    assert [type(x) for x in out[1:]] == [values.Diagonal] * 2


def test_zeros_that_a_tagged_index_chooses():
    def fn(tagged, x):
        def turn(c, i):
            chosen = lax.cond(i < tagged, lambda: c[0], lambda: c[1])
            return (chosen, c[1] + x), None

        return lax.scan(turn, (jnp.zeros((3, 3)),) * 2, jnp.arange(2))[0]

    assert run(fn, values.Tagged(jnp.array(1), "which"), X)[0].tags == {"which"}


@pytest.mark.parametrize("length", [3, 6])
def test_a_chain_of_carries_that_passes_a_zero_along(length):
    """Each slot becomes dense some turns after the one before, so each needs one more rewriting."""

    def fn(zeros, xs):
        return lax.scan(lambda c, x: ((*c[1:], x), c[0] * x), zeros, xs)

    carry, ys = run(fn, (ZERO,) * length, XS)
    assert all(isinstance(slot, jax.Array) for slot in carry)
    assert isinstance(ys, jax.Array)


class Flipped(jaxrewrite.ArrayValue):
    """Its rows are the columns of its leaf, of which one axis is as long as the other."""

    x: jax.Array

    def materialise(self):
        return self.x.T


@jaxrewrite.register("neg")
def _(v: Flipped):
    return Flipped(-v.x)


@pytest.mark.parametrize(
    ("value", "depth", "is_kept"),
    [
        (Flipped(X - 0.5), 1, False),
        (Scaled(X - 0.5, jnp.float32(2)), 1, False),
        (values.LowRank(XS[:3] - 0.5, XS[1:]), 1, True),
        (values.LowRank(XS[:3] - 0.5, XS[1:]), 2, False),
        (values.LowRank(jnp.stack([XS[:3] - 0.5] * 3), jnp.stack([XS[1:]] * 3)), 2, True),
        (values.Unitful(Flipped(X - 0.5), "m"), 1, True),
    ],
)
def test_turns_for_each_element_of_a_batch(value, depth, is_kept):
    """The mapped condition chooses leaves, so each element must have leaves of its own."""

    def fn(v):
        loop = lambda n, c: lax.fori_loop(0, n, lambda i, c: -c, c)
        turns = jnp.arange(3**depth).reshape((3,) * depth)
        return (jax.vmap(loop) if depth == 1 else jax.vmap(jax.vmap(loop)))(turns, v)

    numbers = lambda v: v.array if isinstance(v, values.Unitful) else v
    out = transform(fn, materialise="allow")(value)
    assert isinstance(out, jaxrewrite.Value) == is_kept
    want = fn(jaxrewrite.materialise(numbers(value)))
    assert_same(numbers(out), want, 2e-5)


def test_zeros_of_a_batch_stay_dense_beside_what_has_no_leaves_for_each_element():
    def fn(n, v):
        loop = lambda n, row: lax.fori_loop(0, n, lambda i, c: row, jnp.zeros(3))
        return jax.vmap(loop)(n, v)

    run(fn, jnp.arange(3), Flipped(X))


@pytest.mark.parametrize("kind", ["scaled", "lora", "lora_of_quantised", "shifted"])
def test_a_carry_that_keeps_its_structure_stays_a_value(kind):
    v = make(kind)
    fn = lambda v, xs: lax.scan(lambda c, x: (c, x @ c), v, xs)
    out, _ = run(fn, v, XS)
    assert type(out) is type(v)
    eqn = only_equation("scan", fn, v, XS)
    assert len(eqn.invars) == len(jax.tree.leaves(v)) + 1


def test_a_carry_whose_leaves_change_stays_a_value():
    fn = lambda v, xs: lax.scan(lambda c, x: (-c, x @ c.T), v, xs)
    out, _ = run(fn, make("scaled"), XS)
    assert isinstance(out, Scaled)


class Tagged(jaxrewrite.ArrayValue):
    """An array that counts in its metadata how often it was negated."""

    x: jax.Array
    count: int = jaxrewrite.field(static=True)

    def materialise(self):
        return self.x


@jaxrewrite.register("neg")
def _(v: Tagged):
    return Tagged(-v.x, v.count + 1)


@pytest.mark.parametrize("loop", ["scan", "while"])
def test_metadata_that_changes_each_turn_becomes_dense_with_a_warning(loop):
    def fn(v):
        if loop == "scan":
            return lax.scan(lambda c, _: (-c, None), v, None, length=3)[0]
        count = lambda c: (c[0] + 1, -c[1])
        return lax.while_loop(lambda c: c[0] < 3, count, (0, v))[1]

    v = Tagged(X, 0)
    with pytest.warns(
        jaxrewrite.MaterialisationWarning, match="Tagged can't keep one"
    ) as w:
        out = transform(fn)(v)
    assert loop in str([str(each.message) for each in w])
    assert isinstance(out, jax.Array)
    np.testing.assert_allclose(out, fn(v.x), rtol=1e-6)
    with pytest.raises(jaxrewrite.MaterialisationError, match="one structure through"):
        transform(fn, materialise="forbid")(v)


class Padded(jaxrewrite.ArrayValue):
    """``a @ b`` of any rank; joins by padding to the larger one."""

    a: jax.Array
    b: jax.Array

    def materialise(self):
        return self.a @ self.b

    def padded(self, rank):
        more = rank - self.a.shape[1]
        return Padded(
            jnp.pad(self.a, ((0, 0), (0, more))), jnp.pad(self.b, ((0, more), (0, 0)))
        )

    def join(self, other):
        if not isinstance(other, Padded):
            return NotImplemented
        rank = max(self.a.shape[1], other.a.shape[1])
        return self.padded(rank), other.padded(rank)


@jaxrewrite.register("add")
def _(x: Padded, y: Padded, **params):
    return Padded(jnp.concatenate([x.a, y.a], 1), jnp.concatenate([x.b, y.b]))


def padded(rank, seed=0):
    rng = np.random.default_rng(seed)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)
    return Padded(draw(3, rank), draw(rank, 3))


def test_the_types_own_join_finds_the_carry():
    fn = lambda v, w: lax.scan(lambda c, _: ((c[1], c[1]), None), (v, w), None, length=3)[0]
    first, second = run(fn, padded(1), padded(2))
    assert isinstance(first, Padded)
    assert first.a.shape == (3, 2)
    assert second.a.shape == (3, 2)


def test_joins_that_never_end_become_dense():
    fn = lambda v, w: lax.scan(lambda c, _: (c + w, None), v, None, length=20)[0]
    assert isinstance(run(fn, padded(1), padded(1)), jax.Array)


@pytest.mark.parametrize(
    "annotated",
    [
        lambda x: values.Unitful(x, "m"),
        lambda x: values.Tagged(x, "w"),
        lambda x: values.Masked(x, jnp.eye(4) > 0),
        lambda x: values.Tagged(values.Unitful(x, "m"), "w"),
    ],
    ids=["units", "tags", "mask", "tags of units"],
)
def test_what_grows_without_end_becomes_dense_within_its_annotation(annotated):
    """The rank grows with each turn; units, tags and masks are those of any turn."""
    a = jnp.asarray(np.random.default_rng(0).normal(size=(4, 1)), jnp.float32)
    add = lambda v: lax.fori_loop(0, 3, lambda i, c: c + v, v)
    of_low_rank = transform(add, materialise="allow")(annotated(values.LowRank(a, a.T)))
    of_dense = transform(add, materialise="allow")(annotated(a @ a.T))
    assert jaxrewrite.same_structure(of_low_rank, of_dense)
    leaf = jax.tree.leaves(of_low_rank)[0]
    np.testing.assert_allclose(leaf, 4 * np.asarray(a) @ np.asarray(a).T, rtol=1e-5)


def test_fields_join_no_deeper_than_needed():
    """The field that changes becomes dense, the value around it stays."""
    v = Scaled(Zero((3, 3), jnp.dtype("float32")), jnp.float32(2.0))
    rules = jaxrewrite.Rules()

    @rules.register("add")
    def _(v: Scaled, y: jax.Array, **params):
        return Scaled(v.x + y / v.scale, v.scale)

    fn = lambda v, xs: lax.scan(lambda c, x: (c + x, None), v, xs)[0]
    out = transform(fn, rules=rules, materialise="allow")(v, XS)
    assert isinstance(out, Scaled)
    assert isinstance(out.x, jax.Array)
    np.testing.assert_allclose(out.materialise(), XS.sum(0), rtol=1e-6)


def test_refusing_types_stay_or_say_why():
    class Refusing(jaxrewrite.ArrayValue):
        x: jax.Array

        def aval(self):
            return jax.core.ShapedArray(self.x.shape, self.x.dtype)

        def materialise(self):
            raise TypeError("has units")

    v = Refusing(X)
    out, _ = transform(lambda v: lax.scan(lambda c, _: (c, c), v, None, length=2))(v)
    assert isinstance(out, Refusing)
    mixed = lambda v, x: lax.scan(lambda c, _: (c[::-1], None), (v, x), None, length=2)[0]
    with pytest.raises(jaxrewrite.MaterialisationError, match=r"Refusing.*has units"):
        transform(mixed)(v, X)


def test_a_value_that_joins_with_arrays_takes_the_first_operand_in():
    class Interval(jaxrewrite.ArrayValue):
        low: jax.Array
        high: jax.Array

        def aval(self):
            return jax.core.ShapedArray(self.low.shape, self.low.dtype)

        def materialise(self):
            raise TypeError("bounds are not one number")

        def join(self, other):
            if isinstance(other, Interval):
                return NotImplemented
            return self, Interval(other, other)

    rules = jaxrewrite.Rules()

    @rules.register("add", exchange="operands")
    def _(v: Interval, y: jax.Array, **params):
        return Interval(v.low + y, v.high + y)

    @rules.register("add")
    def _(v: Interval, w: Interval, **params):
        return Interval(v.low + w.low, v.high + w.high)

    fn = lambda v: lax.scan(lambda c, _: (c + v, None), jnp.zeros((3, 3)), None, length=4)[
        0
    ]
    out = transform(fn, rules=rules)(Interval(X - 1, X + 1))
    assert isinstance(out, Interval)
    np.testing.assert_allclose(out.low, 4 * (X - 1), rtol=1e-6)
    np.testing.assert_allclose(out.high, 4 * (X + 1), rtol=1e-6)


def test_a_join_that_mixes_arrays_is_an_error():
    class Mixing(jaxrewrite.ArrayValue):
        x: jax.Array
        n: int = jaxrewrite.field(static=True)

        def materialise(self):
            return self.x

        def join(self, other):
            mixed = self.x + getattr(other, "x", other)
            return Mixing(mixed, 9), Mixing(mixed, 9)

    fn = lambda p, v, w: lax.cond(p, lambda: v, lambda: w)
    with pytest.raises(TypeError, match="join of Mixing and Mixing mixes the arrays"):
        transform(fn)(jnp.array(True), Mixing(X, 1), Mixing(X, 2))
    with pytest.raises(
        TypeError, match="join of (Mixing and an array|an array and Mixing) mix"
    ):
        transform(fn)(jnp.array(True), Mixing(X, 1), X)


@pytest.mark.parametrize(
    "answer", [lambda a, b: None, lambda a, b: (a, b, a), lambda a, b: (a[0], b)]
)
def test_a_join_that_returns_no_pair_is_an_error(answer):
    class Wrong(jaxrewrite.ArrayValue):
        x: jax.Array
        n: int = jaxrewrite.field(static=True)

        def materialise(self):
            return self.x

        def join(self, other):
            return answer(self.x, other.x)

    fn = lambda p, v, w: lax.cond(p, lambda: v, lambda: w)
    with pytest.raises(TypeError, match=r"Wrong\.join"):
        transform(fn)(jnp.array(True), Wrong(X, 1), Wrong(X, 2))


# --- slicing and stacking -------------------------------------------------------


@pytest.mark.parametrize("kind", every(2, OWN))
def test_scan_over_a_stack_of_layers(kind, no_leak_checks):
    layers = [make(kind, seed) for seed in range(4)]
    stack = jaxrewrite.stack(layers)
    assert isinstance(stack, jaxrewrite.Batched)
    assert stack.shape == (4, 3, 3)
    dense = jnp.stack(jaxrewrite.materialise(layers))
    np.testing.assert_allclose(jaxrewrite.materialise(stack), dense, rtol=1e-6)

    def fn(x, ws):
        return lax.scan(lambda x, w: (jnp.tanh(x @ w), w), x, ws)

    out, ys = run(fn, X, stack)
    assert isinstance(ys, jaxrewrite.Batched)
    assert jax.tree.structure(ys) == jax.tree.structure(stack)
    total = lambda f: lambda x, ws: jnp.sin(jaxrewrite.materialise(f(x, ws)[0])).sum()
    got = jax.grad(total(transform(fn, materialise="allow")), (0, 1), allow_int=True)
    want = jax.grad(
        total(lambda x, ws: fn(x, jaxrewrite.materialise(ws))), (0, 1), allow_int=True
    )
    for g, w in zip(
        jax.tree.leaves(got(X, stack)), jax.tree.leaves(want(X, stack)), strict=True
    ):
        if g.dtype != jax.dtypes.float0:
            np.testing.assert_allclose(g, w, rtol=2e-4, atol=1e-6)


def test_stacks_of_pytrees():
    layers = [{"w": make("lora", i), "b": jnp.full(3, i)} for i in range(3)]
    stack = jaxrewrite.stack(layers)
    assert stack["b"].shape == (3, 3)
    layer = lambda x, p: (jnp.tanh(x @ p["w"] + p["b"]), None)
    fn = lambda x, layers: lax.scan(layer, x, layers)[0]
    run(fn, X, stack)


@pytest.mark.parametrize(
    ("trees", "match"),
    [
        ([], "at least one"),
        ([make("lora"), make("scaled")], "number 1 is"),
        ([Tagged(X, 0), Tagged(X, 1)], "number 1 is"),
        (
            [make("lora"), OWN["lora"].value(np.random.default_rng(0), shape=(3, 4))],
            "1",
        ),
        ([{"a": X}, {"b": X}], "not a pytree like"),
        ([X, X[0]], "number 1 is"),
    ],
    ids=["none", "types", "metadata", "shapes", "pytrees", "arrays"],
)
def test_stack_refuses_what_differs(trees, match):
    with pytest.raises(ValueError, match=match):
        jaxrewrite.stack(trees)


def test_batched_checks_its_leaves():
    with pytest.raises(ValueError, match="leading axis of 2"):
        jaxrewrite.Batched(make("lora"), 2)
    with pytest.raises(TypeError, match="not a"):
        jaxrewrite.Batched(X, 3)


def test_a_scan_over_nothing_and_over_one():
    for n in (0, 1):
        ws = jax.tree.map(lambda leaf, n=n: leaf[:n], jaxrewrite.stack([make("lora")]))
        ws = jaxrewrite.Batched(ws.element, n)
        run(lambda x, ws: lax.scan(lambda x, w: (x @ w, w), x, ws), X, ws)


class Rows(jaxrewrite.ArrayValue):
    """``scale[i] * x[i]``: a value whose first axis is that of its leaves."""

    x: jax.Array
    scale: jax.Array

    def materialise(self):
        return self.x * jnp.expand_dims(
            self.scale, tuple(range(self.scale.ndim, self.x.ndim))
        )

    def sliceable(self):
        return self


def test_types_with_a_leading_axis_of_their_own():
    v = Rows(X, jnp.array([1.0, 2.0, 3.0]))
    fn = lambda v: lax.scan(lambda c, row: (c + row.sum(), row), 0.0, v)
    _, ys = run(fn, v)
    assert isinstance(ys, Rows)
    eqn = only_equation("scan", fn, v)
    assert eqn.params["jaxpr"].in_avals[-1].shape == ()


def test_static_shapes_follow_the_declaration():
    class Zeros(Zero):
        axes = {"shape_": "..."}

    z = Zeros((4, 3), jnp.dtype("float32"))
    fn = lambda z, xs: lax.scan(lambda c, zx: (c + zx[1], (zx[0], -zx[0])), X[0], (z, xs))
    _, (ys, negated) = run(fn, z, XS[:, 0])
    assert isinstance(ys, Zeros)
    assert ys.shape_ == (4, 3)
    assert isinstance(negated, jax.Array | Zero | jaxrewrite.Batched)


@pytest.mark.parametrize("of", ["its own type", "another type"])
def test_sliceable_with_a_wrong_shape_is_an_error(of):
    class Wrong(Rows):
        def sliceable(self):
            form = Wrong if of == "its own type" else Rows
            return form(self.x[:, :1], self.scale)

    program = lambda v: lax.scan(lambda c, row: (c + row.sum(), row), 0.0, v)
    message = r"Wrong\.sliceable returned f32\[3,1\] where the value is f32\[3,4\]"
    with pytest.raises(TypeError, match=message):
        transform(program)(Wrong(jnp.ones((3, 4)), jnp.ones(3)))


def test_a_wrong_stack_is_an_error():
    class Wrong(Rows):
        def materialise(self):
            return self.x[0]

    fn = lambda v: lax.scan(lambda c, _: (c, v), 0.0, None, length=2)
    with pytest.raises(TypeError, match=r"Wrong\.sliceable says"):
        transform(fn)(Wrong(X, jnp.ones(3)))


def test_slicing_a_value_without_the_hook_warns():
    fn = lambda v: lax.scan(lambda c, row: (c + row, None), jnp.zeros(3), v)
    with pytest.warns(jaxrewrite.MaterialisationWarning, match=r"Define Lora\.sliceable"):
        transform(fn)(make("lora"))


def test_the_remedy_for_a_type_of_the_library_is_one_that_its_users_have():
    fn = lambda v: lax.scan(lambda c, row: (c + row, None), jnp.zeros(3), v)
    v = values.Toeplitz(jnp.arange(3.0), jnp.arange(3.0))
    remedy = "Make it dense before, or define sliceable in a subclass of Toeplitz"
    with pytest.raises(jaxrewrite.MaterialisationError, match=remedy):
        transform(fn, materialise="forbid")(v)
    [step] = jaxrewrite.explain(fn)(v).steps
    assert [made.repair for made in step.dense] == [remedy]


def test_rounds_that_were_tried_say_nothing():
    """A zero that becomes dense in a loop gives one warning, and none for the first rewriting."""
    fn = lambda z, xs: lax.scan(lambda c, x: (jnp.exp(c) + x, None), z, xs)[0]
    with pytest.warns(jaxrewrite.MaterialisationWarning) as caught:
        transform(fn)(ZERO, XS)
    assert [str(w.message).split(",")[0] for w in caught] == [
        "Zero can't keep one structure through primitive 'scan'"
    ]


def test_a_carry_that_another_turn_makes_an_array_says_so():
    fn = lambda v, x: lax.scan(lambda c, _: (c + x, None), v, length=3)[0]
    said = "Diagonal can't keep one structure .* Another turn or branch has an array in its place"
    with pytest.raises(jaxrewrite.MaterialisationError, match=said):
        transform(fn, materialise="forbid")(values.Diagonal(jnp.ones(3)), jnp.eye(3))


def test_each_program_says_what_becomes_dense_in_it():
    """Also of a body that another program had rewritten before."""
    body = jax.jit(lambda v: jnp.exp(v))
    for program in (lambda v: body(v) + 1, lambda v: body(v) * 2):
        with pytest.warns(jaxrewrite.MaterialisationWarning, match="'exp' on Lora"):
            transform(program)(make("lora"))


def test_nothing_is_said_where_nothing_becomes_dense():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stack = jaxrewrite.stack([make("lora"), make("lora", 1)])
        fn = lambda x, ws: lax.scan(lambda x, w: (x @ w, w), x, ws)
        transform(fn, materialise="forbid")(X, stack)


@pytest.mark.parametrize(
    ("index", "is_value"),
    [
        (lambda s, i: s[1], True),
        (lambda s, i: s[-1], True),
        (lambda s, i: s[i], True),
        (lambda s, i: s[1:3], True),
        (lambda s, i: s[::2], True),
        (lambda s, i: s[::-1], True),
        (lambda s, i: s[2:2], True),
        (lambda s, i: s[:, 1:], False),
        (lambda s, i: s[1, 1], False),
        (lambda s, i: s[:, ::-1], False),
        (lambda s, i: jnp.squeeze(s[:, :1], 1), False),
        (lambda s, i: lax.dynamic_slice(s, (0, i, 0), (4, 1, 3)), False),
    ],
)
def test_indexing_a_stack(index, is_value):
    stack = jaxrewrite.stack([make("lora", i) for i in range(4)])
    out = run(lambda s, i: index(s, i), stack, jnp.int32(2))
    assert isinstance(out, jaxrewrite.Value) == is_value


def test_axes_of_size_one_of_a_stack():
    stack = jaxrewrite.stack([values.Diagonal(jnp.full(1, 2.0))])
    fn = lambda s: [jnp.squeeze(s, axes) for axes in (0, 1, (0, 1), None)]
    one, *others = transform(fn, materialise="allow")(stack)
    assert isinstance(one, values.Diagonal)
    assert [x.shape for x in (one, *others)] == [(1, 1), (1, 1), (1,), ()]
    assert all((x == 2).all() for x in others)


def test_iterating_over_a_stack_and_a_loop_by_number():
    layers = [make("lora", i) for i in range(3)]
    for got, want in zip(jaxrewrite.stack(layers), layers, strict=True):
        assert isinstance(got, Lora)
        np.testing.assert_allclose(got.w, want.w)
    fn = lambda x, ws: lax.fori_loop(0, 3, lambda i, x: jnp.tanh(x @ ws[i]), x)
    out = transform(fn, materialise="forbid")(X, jaxrewrite.stack(layers))
    np.testing.assert_allclose(
        out, fn(X, jnp.stack(jaxrewrite.materialise(layers))), rtol=1e-5
    )


def test_stacks_of_stacks():
    stack = jaxrewrite.stack(
        [jaxrewrite.stack([make("lora", i + j) for i in range(2)]) for j in range(3)]
    )
    assert stack.shape == (3, 2, 3, 3)

    def fn(x, blocks):
        layer = lambda x, w: (jnp.tanh(x @ w), w)
        return lax.scan(lambda x, block: lax.scan(layer, x, block), x, blocks)

    _, ys = run(fn, X, stack)
    assert ys.shape == (3, 2, 3, 3)


# --- parameters, effects, counts ------------------------------------------------


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("unroll", [1, 2, True])
def test_parameters_are_kept(reverse, unroll):
    fn = lambda v, xs: lax.scan(
        lambda c, x: (x @ v, c), X, xs, reverse=reverse, unroll=unroll
    )
    run(fn, make("lora"), XS)
    params = only_equation("scan", fn, make("lora"), XS).params
    assert params["reverse"] is reverse
    assert params["unroll"] == (len(XS) if unroll is True else unroll)
    assert params["length"] == len(XS)


def test_effects_in_a_loop_keep_their_order():
    log = []

    def fn(v, xs):
        def body(c, x):
            jax.debug.callback(lambda a: log.append(float(a)), c[0, 0], ordered=True)
            return c + 1.0, x @ v

        return lax.scan(body, v, xs)

    v = make("scaled")
    jax.block_until_ready(transform(fn, materialise="allow")(v, XS))
    jax.effects_barrier()
    np.testing.assert_allclose(
        log, [v.materialise()[0, 0] + i for i in range(4)], rtol=1e-6
    )


def test_rules_on_dense_operands_reach_into_loops():
    rules = jaxrewrite.Rules()

    @rules.register("sin")
    def _(x: jax.Array, **params):
        return 10 * x

    scan = lambda x: lax.scan(lambda c, _: (jnp.sin(c), None), x, None, length=2)[0]
    np.testing.assert_allclose(transform(scan, rules=rules)(X), 100 * X, rtol=1e-6)
    loop = lambda x: lax.while_loop(lambda c: c[0, 0] < 50, jnp.sin, x)
    got = transform(loop, rules=rules)(jnp.ones((3, 3)))
    np.testing.assert_allclose(got, 100 * jnp.ones((3, 3)))
    untouched = lambda x: lax.scan(lambda c, _: (jnp.cos(c), None), x, None, length=2)[0]
    jaxpr = jaxrewrite.make_jaxpr(untouched, rules=rules)(X).jaxpr
    assert [eqn.primitive.name for eqn in jaxpr.eqns] == ["scan"]


def test_constants_of_rules_become_operands():
    table = jnp.arange(9.0).reshape(3, 3)
    rules = jaxrewrite.Rules()

    @rules.register("sin")
    def _(v: Scaled, **params):
        return v.x + table

    v = make("scaled")
    scan = lambda v: lax.scan(lambda c, _: (c + jnp.sin(v), None), X, None, length=2)[0]
    want = X + 2 * (v.x + table)
    np.testing.assert_allclose(transform(scan, rules=rules)(v), want, rtol=1e-6)
    loop = lambda v: lax.while_loop(
        lambda c: c[0] + 0 * jnp.sin(v).sum() < 2,
        lambda c: (c[0] + 1, c[1] + jnp.sin(v)),
        (0, X),
    )[1]
    np.testing.assert_allclose(transform(loop, rules=rules)(v), want, rtol=1e-6)


def count_calls(rules):
    calls = []

    @rules.register("dot_general")
    def _(x: jax.Array, w: Lora, **params):
        calls.append(w.shape)
        return x @ w.w + (x @ w.a) @ w.b

    return calls


def test_a_body_is_rewritten_once(no_leak_checks):
    """A hundred calls of one body, and a second call of the program."""
    rules = jaxrewrite.Rules()
    calls = count_calls(rules)

    @jax.jit
    def layer(x, w):
        return lax.scan(lambda c, _: (jnp.tanh(c @ w), None), x, None, length=2)[0]

    def fn(x, ws):
        for w in ws * 25:
            x = layer(x, w)
        return x

    transformed = transform(fn, rules=rules)
    ws = [make("lora", i) for i in range(4)]
    transformed(X, ws)
    assert len(calls) == 1
    transformed(X, ws[::-1])
    jax.jit(transformed)(X, ws)
    assert len(calls) == 1


def test_a_second_call_compiles_nothing(no_leak_checks):
    scan = lambda x, w: lax.scan(lambda c, _: (jnp.tanh(c @ w), c), x, None, length=3)
    loop = lambda x, w: lax.while_loop(lambda c: c.sum() < 1e3, lambda c: c @ w + 1, x)
    for fn in (scan, loop):
        transformed = transform(fn)
        others = 2 * X, make("lora", 1)
        jax.block_until_ready(transformed(X, make("lora")))
        with jax.log_compiles(), warnings.catch_warnings():
            compiled = []
            handler = Recorder(compiled)
            with handler:
                jax.block_until_ready(transformed(*others))
        assert not compiled


class Recorder:
    """Collects what JAX says of compiling."""

    def __init__(self, messages):
        import logging

        self.handler = logging.Handler()
        self.handler.emit = lambda record: messages.append(record.getMessage())
        self.logger = logging.getLogger("jax")

    def __enter__(self):
        self.logger.addHandler(self.handler)

    def __exit__(self, *_):
        self.logger.removeHandler(self.handler)


def test_a_long_scan_is_one_small_program():
    fn = lambda x, w: lax.scan(lambda c, _: (c @ w, None), x, None, length=1000)[0]
    eqn = only_equation("scan", fn, X, make("lora"))
    (body,) = jex_core.jaxprs_in_params(eqn.params)
    assert len(body.eqns) == 4


@pytest.mark.parametrize("nested", [False, True])
def test_stacks_of_values_with_parts_without_leaves_leave_an_outer_vmap(nested):
    v = make("lora_of_zeros")
    scan = lambda v, x: lax.scan(lambda c, y: (c + y, v), x, XS)
    fn = (lambda v, x: lax.map(lambda y: scan(v, y), XS)) if nested else scan
    implicit = transform(fn, materialise="forbid")
    # The dense array of the stack is made both inside of the vmap and outside.
    inside = jax.vmap(lambda x: jaxrewrite.materialise(implicit(v, x)))(XS)
    outside = jaxrewrite.materialise(jax.vmap(lambda x: implicit(v, x))(XS))
    want = jax.vmap(lambda x: fn(jaxrewrite.materialise(v), x))(XS)
    for got in (inside, outside):
        jax.tree.map(lambda g, w: np.testing.assert_allclose(g, w, rtol=2e-5), got, want)


class Positive(jaxrewrite.ArrayValue):
    """Its rules take anything beside it, and read what they take."""

    x: jax.Array

    def materialise(self):
        return jnp.exp(self.x)


@jaxrewrite.register("mul")
def _(v: Positive, y, **params):
    return jnp.exp(v.x) * y


@jaxrewrite.register("add")
def _(v: Positive, y: jaxrewrite.Value, **params):
    return jnp.exp(v.x) + y.x


@pytest.mark.parametrize("turn", [lambda v, c: v * c + 1.0, lambda v, c: v + c])
def test_rules_for_anything_get_arrays_for_a_carry_of_zeros(turn):
    fn = lambda v: lax.fori_loop(0, 3, lambda i, c: turn(v, c), jnp.zeros((2, 2)))
    v = Positive(jnp.zeros((2, 2)))
    assert_same(transform(fn, materialise="allow")(v), fn(v.materialise()))


@pytest.mark.parametrize(
    "v",
    [
        values.Diagonal(jnp.ones(2)),
        values.LowRank(jnp.ones((2, 1)), jnp.ones((1, 2))),
        values.Quantised.quantise(jnp.eye(2)),
    ],
    ids=lambda v: type(v).__name__,
)
def test_counts_that_are_mapped_add_a_value_to_zeros(v):
    sums = lambda v, k: lax.fori_loop(0, k, lambda i, c: c + v, jnp.zeros((2, 2)))
    fn = lambda v: jax.vmap(sums, (None, 0))(v, jnp.array([0, 2, 5]))
    assert_same(transform(fn, materialise="allow")(v), fn(v.materialise()))


class Sorted(jaxrewrite.ArrayValue):
    """Its ``join`` computes what no result needs."""

    w: jax.Array
    tag: int = jaxrewrite.field(static=True)

    def materialise(self):
        return self.w * 1.0

    def join(self, other):
        if not isinstance(other, Sorted):
            return NotImplemented
        lax.sort(self.w)
        tag = max(self.tag, other.tag)
        return Sorted(self.w, tag), Sorted(other.w, tag)


@jaxrewrite.register("sort")
def _(v: Sorted, **params):
    return [lax.sort(v.w)]


def test_what_a_join_did_not_need_is_made_where_it_is_needed():
    a, b = (Sorted(values.Diagonal(jnp.arange(3.0) + i), i) for i in (1, 2))
    fn = lambda a, b: (lax.fori_loop(0, 3, lambda i, c: b, a), lax.sort(a))
    got = transform(fn, materialise="allow")(a, b)
    assert_same(got, fn(*jaxrewrite.materialise((a, b))))

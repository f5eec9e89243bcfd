"""`jax.shard_map` on values: replicated, split as their type defines, or dense."""

import functools
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from choose import every, slow
from jax import lax
from jax.experimental import sparse
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from oracle import assert_same_leaves
from reference.own import Lora, Scaled, Zero

import jaxrewrite
from jaxrewrite import _compat, transform, values
from jaxrewrite.testing import assert_same
from jaxrewrite.values import NF4, Quantised
from jaxrewrite.values._base.loops import scan


# With leak checks each program is compiled anew; those are in test_families.py.
pytestmark = pytest.mark.usefixtures("bulk")
RNG = np.random.default_rng(0)


def draw(*shape):
    return jnp.asarray(RNG.uniform(0.2, 0.9, shape), jnp.float32)


@pytest.fixture(scope="module")
def mesh():
    return jax.make_mesh((4, 2), ("i", "j"), axis_types=(AxisType.Auto,) * 2)


class Split(Lora):
    def leaf_specs(self, spec):
        rows, columns = (*spec, None, None)[:2]
        return Split(P(rows, columns), P(rows, None), P(None, columns))


LORA = Lora(draw(8, 8), draw(8, 2), draw(2, 8))
SPLIT = Split(LORA.w, LORA.a, LORA.b)
NESTED = Split(SPLIT, draw(8, 2), draw(2, 8))
X = draw(8, 8)
QUANTISED = Quantised.quantise(X, 4, axis=1)


def on(mesh, body, in_specs, out_specs, **kwargs):
    return jax.shard_map(body, mesh=mesh, in_specs=in_specs, out_specs=out_specs, **kwargs)


def summed(fn):
    def total(v, x):
        leaves = jax.tree.leaves(jaxrewrite.materialise(fn(v, x)))
        return sum(jnp.sin(leaf).sum() for leaf in leaves)

    return total


def check(fn, v, x=X, eagerly=False):
    """Under jit, or also without it, and both ways of differentiating, by the dense program.

    Without jit, JAX compiles each equation of a body by itself.
    """
    transformed = transform(fn, materialise="allow")
    dense = lambda v, x: fn(jaxrewrite.materialise(v), x)
    want = jax.jit(dense)(v, x)
    slopes = jax.jit(jax.grad(summed(dense), (0, 1)))(v, x)
    gradient = jax.grad(summed(transformed), (0, 1))
    for wrap in (*([lambda f: f] if eagerly else []), jax.jit):
        out = wrap(transformed)(v, x)
        assert_same(jaxrewrite.materialise(out), want, 1e-4)
        assert_same_leaves(wrap(gradient)(v, x), slopes, 1e-3)
    implicit = lambda *a: jaxrewrite.materialise(transformed(*a))
    along, want = (
        jax.jit(lambda *a, f=f: jax.jvp(f, a, a))(v, x) for f in (implicit, dense)
    )
    assert_same(along, want, 1e-3)
    return out


def equation(fn, *operands):
    jaxpr = jaxrewrite.make_jaxpr(fn, materialise="allow")(*operands).jaxpr
    (eqn,) = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "shard_map"]
    return eqn


@pytest.mark.parametrize(
    ("v", "check_vma"),
    every(
        3,
        [
            pytest.param(NESTED, True),
            pytest.param(LORA, False),
            pytest.param(Scaled(draw(8, 8), jnp.float32(2.0)), True),
        ],
    ),
)
def test_replicated_values(mesh, v, check_vma):
    fn = lambda v, x: on(
        mesh, lambda v, x: x @ v, (P(), P("i")), P("i"), check_vma=check_vma
    )(v, x)
    check(fn, v)
    eqn = equation(fn, v, X)
    assert len(eqn.params["in_specs"]) == len(jax.tree.leaves(v)) + 1
    assert set(eqn.params["in_specs"][:-1]) == {P()}


@pytest.mark.parametrize("v", [slow(pytest.param(SPLIT, id="flat")), NESTED])
def test_values_split_by_their_types_word(mesh, v):
    fn = lambda v, x: on(
        mesh, lambda v, x: (x @ v, v), (P(None, "i"), P("j")), (P("j", "i"), P(None, "i"))
    )(v, x)
    out, same = check(fn, v)
    assert type(same) is type(v)
    assert same.b.sharding.is_equivalent_to(NamedSharding(mesh, P(None, "i")), 2)
    assert same.a.sharding.is_fully_replicated
    assert out.sharding.is_equivalent_to(NamedSharding(mesh, P("j", "i")), 2)


def test_values_split_along_both_axes(mesh, no_leak_checks):
    fn = lambda v, x: on(
        mesh,
        lambda v, x: lax.psum(v @ x, "j"),
        (P("i", "j"), P("j")),
        P("i"),
    )(v, x)
    check(fn, SPLIT, eagerly=True)
    assert equation(fn, SPLIT, X).params["in_specs"][:3] == (
        P("i", "j"),
        P("i", None),
        P(None, "j"),
    )


def test_operands_that_a_rule_binds_vary_over_the_axes_of_all(mesh):
    def fn(x, y, z):
        return jaxrewrite.bind("add", jaxrewrite.bind("mul", x, y), z)

    spec = P("i"), P("j"), P()
    split = on(mesh, lambda x, y, z: fn(x, y, z)[None], spec, P(("i", "j")))
    x, y, z = jnp.arange(8.0), jnp.arange(4.0), jnp.ones(2)
    want = [fn(a, b, z) for a in x.reshape(4, 2) for b in y.reshape(2, 2)]
    np.testing.assert_array_equal(split(x, y, z), jnp.stack(want))


def test_leaves_that_vary_over_other_axes_than_the_array_meet(mesh):
    """In a product of factors of which one is split, and where a value has no leaves."""
    low = values.LowRank(X[:, :2], X[:2])
    programs = (
        (lambda v: v @ v.T, low, P("i")),
        (lambda v: lax.psum(v, "i"), values.Zero((8, 8), jnp.dtype("float32")), P()),
        (lambda v: lax.all_to_all(v, "i", 0, 1, tiled=True), values.Identity(8), P("j")),
    )
    for fn, v, spec in programs:
        split = on(mesh, lambda v, fn=fn: fn(v).sum()[None], spec, P(("i", "j")))
        got = jax.jit(transform(split, materialise="allow"))(v)
        want = jax.jit(split)(v.materialise())
        np.testing.assert_allclose(got, want, rtol=1e-5)


@pytest.mark.parametrize("format", every(3, ["bcsr", "bcoo", "bcsc"]))
def test_a_sparse_matrix_meets_one_column_on_each_device(mesh, format):
    v = values.Sparse.from_dense(np.triu(X), format=format)
    spec = P(None, ("i", "j"))

    def fn(v, x):
        split = on(mesh, lambda v, x: v @ x + (x.T @ v).T, (P(), spec), spec)
        return jnp.sum(split(v, x) ** 2)

    run = lambda fn: jax.jit(jax.value_and_grad(fn, (0, 1)))
    implicit = transform(fn, materialise="forbid")
    got, (by_data, by_x) = run(lambda data, x: implicit(v.with_data(data), x))(v.data, X)
    want, (by_entry, dense_by_x) = run(fn)(jnp.triu(X), X)
    np.testing.assert_allclose(got, want, rtol=1e-5)
    np.testing.assert_allclose(by_x, dense_by_x, rtol=1e-4, atol=1e-4)
    dense = v.with_data(by_data).materialise()
    np.testing.assert_allclose(dense, jnp.triu(by_entry), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("check_vma", [True, slow(False)])
def test_what_a_fourier_transform_has_made_is_inverted_on_each_device(mesh, check_vma):
    """As outside of the mesh, XLA would have it in a layout that it cannot transform."""
    v = values.Circulant(jnp.array([3.0, 1.0, 0.5]))
    x = X[:, :3, None] * jnp.ones(3) + jnp.eye(3)
    inverses = lambda v, x: jnp.linalg.inv(x @ v)
    fn = on(mesh, inverses, (P(), P("i")), P("i"), check_vma=check_vma)
    got = jax.jit(transform(fn, materialise="allow"))(v, x)
    np.testing.assert_allclose(got, inverses(v.materialise(), x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("array", [X, slow(values.LowRank(X[:, :2], X[:2])), QUANTISED])
def test_annotated_arrays_are_split_as_the_array_is(mesh, array):
    kinds = [
        values.Tagged(values.Unitful(array, "m"), "w"),
        values.Named(array, ("a", "b")),
        values.Masked(array, X > 0.5),
        values.Interval(X, X + 1),
    ]
    turn = lambda v: jnp.flip(v, 1)
    split = on(mesh, turn, P("i"), P("i"))
    for v in kinds:
        one, other = (transform(fn, materialise="forbid")(v) for fn in (split, turn))
        assert jaxrewrite.same_structure(one, other)
        jax.tree.map(np.testing.assert_array_equal, one, other)
        assert "i" in str(jax.tree.leaves(one)[0].sharding.spec)


def test_values_split_without_a_word_become_dense(mesh):
    fn = lambda v, x: on(mesh, lambda v, x: v + x, (P("i"), P("i")), P("i"))(v, x)
    check(fn, LORA)
    with pytest.warns(jaxrewrite.MaterialisationWarning, match=r"Define Lora\.leaf_specs"):
        transform(fn)(LORA, X)
    with pytest.raises(jaxrewrite.MaterialisationError, match="over a mesh"):
        transform(fn, materialise="forbid")(LORA, X)


class Holds(jaxrewrite.ArrayValue):
    """An array of any type, whose shape is written once more if ``shape`` is."""

    array: jaxrewrite.Value | jax.Array
    shape: tuple[int, ...] | None = jaxrewrite.field(static=True, default=None)

    def aval(self):
        like = jax.eval_shape(jaxrewrite.materialise, self.array)
        return jax.core.ShapedArray(self.shape or like.shape, like.dtype)

    def materialise(self):
        return jaxrewrite.materialise(self.array)

    def leaf_specs(self, spec):
        return Holds(spec, self.shape)


UNSPLIT = {
    "undefined": (
        Zero((8, 8), jnp.dtype("float32")),
        r"Define Zero\.leaf_specs",
    ),
    "declined inside": (
        Holds(values.Diagonal(X[0])),
        r"other axes: Diagonal\.leaf_specs declines",
    ),
    "uneven": (Quantised.quantise(X, block=4), "no equal parts.*as many blocks"),
    "written shape": (Holds(X, (8, 8)), "metadata has the shape.*shape of Holds"),
}


@pytest.mark.parametrize("name", UNSPLIT)
def test_the_reason_tells_what_is_not_split(mesh, name):
    v, told = UNSPLIT[name]
    whole = on(mesh, lambda v: lax.psum(v, "i"), P("i"), P())
    with pytest.raises(jaxrewrite.MaterialisationError, match=f"splits a .*{told}"):
        transform(whole, materialise="forbid")(v)
    got = transform(whole, materialise="allow")(v)
    np.testing.assert_allclose(
        jaxrewrite.materialise(got), whole(v.materialise()), rtol=1e-6
    )


LAZY = {
    "sum": values.Sum((X, values.LowRank(X[:, :2], X[:2]))),
    "scaled": values.Scaled(QUANTISED, jnp.float32(2)),
    "product": values.Product((X[:, :2], X[:2, :3], X[:3])),
    "one factor": values.Product((X,)),
    "scaled sum": values.Scaled(values.Sum((X, QUANTISED)), jnp.float32(2)),
}


@pytest.mark.parametrize("name", LAZY)
@pytest.mark.parametrize("spec", [P("i"), slow(P(None, "i")), P("j", "i")], ids=str)
def test_lazy_values_are_split_as_what_they_hold(mesh, name, spec):
    """The leaves of the shards, put together, are those of the whole."""
    v = LAZY[name]
    fn = on(mesh, lambda v: v, spec, spec)
    got = jax.jit(transform(fn, materialise="forbid"))(v)
    assert jaxrewrite.same_structure(got, v)
    assert_same_leaves(got, v, 0)
    rows, columns = (*spec, None)[:2]
    product = on(
        mesh,
        lambda v, x: v @ x if columns is None else lax.psum(v @ x, columns),
        (spec, P(columns)),
        P(rows),
    )
    got = jax.jit(transform(product, materialise="forbid"))(v, X)
    assert_same(got, jaxrewrite.materialise(v) @ X, 1e-5)


def test_a_stack_of_lazy_values_is_split_along_the_stack(mesh):
    stack = jaxrewrite.stack([values.Scaled(values.Diagonal(x), x[0]) for x in X])
    assert stack.scale.shape == (8,)
    fn = on(mesh, lambda v, x: v @ x, (P("i"), P("i")), P("i"))
    got = jax.jit(transform(fn, materialise="forbid"))(stack, X[..., None])
    assert_same(got, jaxrewrite.materialise(stack) @ X[..., None], 1e-5)


@pytest.mark.parametrize("check_vma", [True, slow(False)])
def test_numbers_of_the_program_are_literals_on_each_device(mesh, check_vma):
    """JAX casts them to arrays that differ from device to device, which are not literals."""
    run = lambda fn: on(mesh, fn, P("i"), P("i"), check_vma=check_vma)
    v = values.Diagonal(X)
    programs = (lambda v: v / 2, lambda v: jnp.maximum(v, 0), lambda v: v**2.5 - 0.0)
    for fn in programs:
        got = jax.jit(transform(run(fn), materialise="forbid"))(v)
        assert type(got) is values.Diagonal
        assert_same(got.d, fn(X), 1e-6)
    masked = values.Masked(X, X > 0.5)
    for mean in (lambda x: jnp.mean(x, 1), lambda x: x.sum(1) / 8):
        with pytest.raises(TypeError, match="divides a sum of 8 entries by 8"):
            transform(run(mean))(masked)


def test_numbers_meet_quantities_inside_of_other_annotations(mesh):
    """The number of the program that a rule for units knows is one of each device."""
    v = values.Masked(values.Unitful(X, "m"), X > 0.5)
    for fn in (lambda v: v * 2.0, lambda v: v / 2 + v, lambda v: (v * 2.0) ** 2):
        got, want = (jax.jit(transform(f))(v) for f in (on(mesh, fn, P("i"), P("i")), fn))
        assert jaxrewrite.same_structure(got, want)
        assert_same_leaves(got, want, 1e-6)
    power = on(mesh, lambda v: v**1.5, P("i"), P("i"))
    assert transform(power)(values.Unitful(X, "m")).units == values.Units("m") ** 1.5


IN_A_MESH = """
import jax, jax.numpy as jnp, jaxrewrite
from jax.sharding import AxisType, PartitionSpec as P
from jaxrewrite.values import Interval, Quantised, Sparse
mesh = jax.make_mesh((8,), ("m",), axis_types=(AxisType.Auto,))
bounds = Interval(jnp.zeros((8, 4)), jnp.ones((8, 4)))
weights = lambda: (Quantised.quantise(jnp.ones((4, 4))), Sparse.from_dense(jnp.ones((4, 4))))
body = lambda x: x @ sum(map(jaxrewrite.materialise, weights()))
with jax.set_mesh(mesh):
    tanh = jax.shard_map(jnp.tanh, in_specs=P("m"), out_specs=P("m"))
    print(float(jaxrewrite.transform(tanh)(bounds).upper.min()) > 0.75)
    product = jax.shard_map(body, in_specs=P("m"), out_specs=P("m"))
    print(float(product(jnp.ones((8, 4))).sum()))
"""


def test_what_is_known_is_computed_at_once_in_a_mesh_that_is_set():
    """In a process of its own, because a trace without the mesh would be kept."""
    command = [sys.executable, "-c", IN_A_MESH]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["True", "256.0"], done.stderr


def test_packed_codes_become_dense_inside_of_the_mesh(mesh):
    v = Quantised.quantise(X, 4, axis=0)
    gathered = lambda v: lax.all_gather(v, "i", axis=0, tiled=True)[None]
    got = transform(on(mesh, gathered, P("i"), P("i")), materialise="allow")(v)
    np.testing.assert_array_equal(got, [v.materialise()] * 4)


@pytest.mark.parametrize(
    "v",
    [
        pytest.param(Quantised.quantise(X, block=(2, 8)), id="integers"),
        pytest.param(NF4.quantise(X, block=(2, 1)), id="nf4"),
        pytest.param(jax.vmap(Quantised.quantise)(X[:4, None] * X), id="one of a stack"),
    ],
)
def test_parts_of_one_block_are_gathered(mesh, v):
    """An axis of one scale is that of the blocks, although a part alone would not need it."""
    product = lambda v: (lax.all_gather(v, "i", axis=0, tiled=True) @ X)[None]
    fn = on(mesh, product, P("i"), P("i"))
    got = transform(fn, materialise="forbid")(v)
    np.testing.assert_allclose(got, [v.materialise() @ X] * 4, rtol=1e-5)


def test_metadata_with_a_shape_is_not_split(mesh):
    class Zeros(Zero):
        def leaf_specs(self, spec):
            return self

    fn = lambda v, x: on(mesh, lambda v, x: v + x, (P("i"), P("i")), P("i"))(v, x)
    np.testing.assert_allclose(
        transform(fn, materialise="allow")(Zeros((8, 8), jnp.dtype("float32")), X), X
    )
    whole = lambda v, x: on(mesh, lambda v, x: v * x, (P(), P()), P())(v, x)
    out = transform(whole)(Zero((8, 8), jnp.dtype("float32")), X)
    assert isinstance(out, Zero)


@pytest.mark.parametrize(
    "answer",
    [
        lambda v, spec: P(),
        lambda v, spec: Wrong("i", P(), P()),
        lambda v, spec: Wrong(None, P(), P()),
    ],
    ids=["a spec", "no spec in a field", "nothing in a field"],
)
def test_wrong_words_are_named(mesh, answer):
    fn = lambda v: on(mesh, lambda v: v + 1, P("i"), P("i"))(v)
    Wrong.leaf_specs = answer
    with pytest.raises(TypeError, match=r"Wrong\.leaf_specs"):
        transform(fn)(Wrong(LORA.w, LORA.a, LORA.b))


class Wrong(Lora):
    pass


def test_loops_and_custom_rules_inside(mesh):
    @jax.custom_vjp
    def matmul(x, y):
        return x @ y

    matmul.defvjp(
        lambda x, y: (x @ y, (x, y)), lambda s, ct: (3 * ct @ s[1].T, 5 * s[0].T @ ct)
    )

    def body(v, x):
        step = lambda c, _: (jnp.tanh(c @ v), None)
        return lax.scan(step, x, None, length=2)[0]

    check(lambda v, x: on(mesh, body, (P(), P("i")), P("i"))(v, x), LORA)
    loss = lambda v, x: on(mesh, matmul, (P("i"), P()), P("i"), check_vma=False)(x, v).sum()
    got = jax.jit(jax.grad(transform(loss)))(LORA, X)
    want = jax.jit(jax.grad(lambda v, x: loss(v.materialise(), x)))(LORA, X)
    jax.tree.map(lambda g, w: np.testing.assert_allclose(g, w, rtol=1e-4), got, want)


def test_leaves_that_vary_meet_leaves_that_do_not(mesh):
    """A scale that differs from device to device, on an array that does not."""
    v = Scaled(draw(8, 8), jnp.float32(2.0))

    def branches(v, x):
        s = x.sum()
        varying = lax.pcast(v, ("i", "j"), to="varying")
        x = lax.pcast(x, "j", to="varying")
        return x @ lax.cond(
            s > 2, lambda: varying * s, lambda: lax.pcast(v * s, "j", to="varying")
        )

    def turns(v, x):
        s = x.sum()
        start = lax.pcast(v, ("i",), to="varying")
        return x @ lax.scan(lambda c, _: (c * s, None), start, None, length=2)[0]

    for body, out in ((branches, P(("i", "j"))), (turns, P("i"))):
        fn = lambda v, x, body=body, out=out: on(mesh, body, (P(), P("i")), out)(v, x)
        want = jax.jit(fn)(v.materialise(), X)
        got = jax.jit(transform(fn, materialise="allow"))(v, X)
        np.testing.assert_allclose(got, want, rtol=1e-5)
        carried = [eqn.primitive.name for eqn in equation(fn, v, X).params["jaxpr"].eqns]
        assert {"cond", "scan"} & set(carried)


def test_each_leaf_varies_over_the_axes_that_it_lacks(mesh):
    seen = []

    def body(v, s):
        mixed = Scaled(v.x, s.sum())
        for x in (v, mixed):
            result = transform(lambda x: lax.pcast(x, "j", to="varying"))(x)
            seen.append(
                [_compat.varying_axes(jax.typeof(y)) for y in jax.tree.leaves(result)]
            )
        return s

    v = Scaled(draw(8, 8), jnp.float32(2.0))
    on(mesh, body, (P(), P("i")), P("i"))(v, X)
    assert seen[:2] == [[{"j"}, {"j"}], [{"j"}, {"i", "j"}]]


def test_some_axes_left_to_the_compiler(mesh):
    fn = lambda v, x: on(
        mesh, lambda v, x: lax.psum(x @ v, "i"), (P(), P("i")), P(), axis_names={"i"}
    )(v, x)
    v = LORA
    got = jax.jit(transform(fn))(v, X)
    want = jax.jit(lambda v, x: fn(v.materialise(), x))(v, X)
    np.testing.assert_allclose(got, want, rtol=1e-5)
    assert equation(fn, v, X).params["newly_manual_axes"] == frozenset({"i"})


def test_explicit_axes():
    mesh = jax.make_mesh((8,), ("i",), axis_types=(AxisType.Explicit,))
    with jax.set_mesh(mesh):
        rows = jax.device_put(X, NamedSharding(mesh, P("i", None)))
        whole = jax.device_put(LORA, NamedSharding(mesh, P()))
        fn = lambda v, x: on(mesh, lambda v, x: x @ v, (P(), P("i")), P("i"))(v, x)
        want = fn(jaxrewrite.materialise(whole), rows)
        for wrap in (lambda f: f, jax.jit):
            out = wrap(transform(fn))(whole, rows)
            np.testing.assert_allclose(out, want, rtol=1e-5)
            assert out.sharding.is_equivalent_to(want.sharding, 2)


def test_rules_on_dense_operands_reach_inside(mesh):
    rules = jaxrewrite.Rules()

    @rules.register("sin")
    def _(x: jax.Array, **params):
        return 10 * x

    fn = lambda x: on(mesh, jnp.sin, P("i"), P("i"))(x)
    np.testing.assert_allclose(transform(fn, rules=rules)(X), 10 * X, rtol=1e-6)
    untouched = lambda x: on(mesh, jnp.cos, P("i"), P("i"))(x)
    before = jax.make_jaxpr(untouched)(X).eqns[0].params["jaxpr"]
    after = jaxrewrite.make_jaxpr(untouched, rules=rules)(X).eqns[0].params["jaxpr"]
    assert len(before.eqns) == len(after.eqns)


def test_collectives_on_values_keep_their_results_right(mesh):
    def body(v, x):
        return lax.psum(x @ v, "i"), lax.all_gather(x, "i", tiled=True) @ v

    fn = lambda v, x: on(mesh, body, (P(), P("i")), (P(), P(None)), check_vma=False)(v, x)
    got = jax.jit(transform(fn))(LORA, X)
    want = jax.jit(fn)(LORA.materialise(), X)
    jax.tree.map(lambda g, w: np.testing.assert_allclose(g, w, rtol=1e-5), got, want)


class Coded(jaxrewrite.ArrayValue):
    """Codes, split as the array is, and one scale that is the same everywhere."""

    codes: jax.Array
    scale: jax.Array

    def materialise(self):
        return self.codes.astype(jnp.float32) * self.scale

    def leaf_specs(self, spec):
        return Coded(spec, P())


CODED = Coded(jnp.arange(64, dtype=jnp.int8).reshape(8, 8), jnp.float32(0.5))


def test_collectives_move_the_leaves(mesh):
    gather = lambda x: lax.all_gather(x, "i", tiled=True)
    stack = lambda x: lax.all_gather(x, "i")[1:3]
    ring = lambda x: lax.ppermute(x, "i", [(k, (k + 1) % 4) for k in range(4)])
    pair = lambda x: lax.ppermute(x, "i", [(0, 1)])  # the others get zeros
    for body, is_kept in ((gather, True), (stack, True), (ring, True), (pair, False)):
        for v in (CODED, SPLIT):
            fn = lambda v, body=body: on(mesh, lambda v: jnp.sin(body(v)), P("i"), P("i"))(
                v
            )
            want = jax.jit(fn)(v.materialise())
            got = jax.jit(transform(fn, materialise="allow"))(v)
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
        eqns = equation(fn, CODED).params["jaxpr"].eqns
        (first,) = [e for e in eqns if e.primitive.name in ("all_gather", "ppermute")]
        assert (first.invars[0].aval.dtype == jnp.int8) is is_kept


def test_what_may_differ_from_device_to_device_is_not_taken_for_the_same(mesh):
    gather = lambda x: lax.all_gather(x * lax.axis_index("i"), "i", tiled=True)
    for check_vma in (True, False):
        fn = lambda v, vma=check_vma: on(
            mesh, lambda v: gather(v), P("i"), P("i"), check_vma=vma
        )(v)
        want = jax.jit(fn)(CODED.materialise())
        rules = jaxrewrite.Rules()
        rules.register("mul", exchange="operands")(_scaled)
        got = jax.jit(transform(fn, rules=rules, materialise="allow"))(CODED)
        np.testing.assert_allclose(jaxrewrite.materialise(got), want, rtol=1e-5)


@pytest.mark.parametrize("check_vma", [True, False])
def test_a_leaf_that_differs_from_device_to_device_does_not_leave_unsplit(mesh, check_vma):
    """Such an array would be that of one device, wherever it goes."""
    v = Quantised.quantise(X)  # It has one scale.
    own, loop = jnp.arange(1.0, 5), lambda c: lax.fori_loop(0, 2, lambda i, c: c * c, c[0])
    bodies = {
        "shard": (lambda v, c: v * c[0], False),
        "loop": (lambda v, c: v * loop(c), False),
        "device": (lambda v, c: v * (1.0 + lax.axis_index("i")), False),
        "in a call": (lambda v, c: v * jax.jit(lambda: 1.0 + lax.axis_index("i"))(), False),
        "number": (lambda v, c: v * 2.0, not check_vma),  # JAX lets numbers vary, too.
        "nothing": (lambda v, c: v.T.T, True),
    }
    for name, (body, is_kept) in bodies.items():
        fn = lambda v, body=body: on(
            mesh, body, (P("i"), P("i")), P("i"), check_vma=check_vma
        )(v, own)
        got = jax.jit(transform(fn, materialise="allow"))(v)
        assert isinstance(got, Quantised) is is_kept, name
        # Of an array that is the same on all devices, NumPy has that of the first.
        got = jaxrewrite.materialise(
            jax.tree.map(lambda x: jnp.asarray(np.asarray(x)), got)
        )
        want = jax.jit(fn)(v.materialise())
        np.testing.assert_allclose(got, want, rtol=1e-5, err_msg=name)
    fn = lambda v: on(mesh, bodies["shard"][0], (P("i"), P("i")), P("i"))(v, own)
    with pytest.raises(jaxrewrite.MaterialisationError, match="may differ from device to"):
        transform(fn, materialise="forbid")(v)


@pytest.mark.parametrize("check_vma", [True, False])
def test_annotations_stay_around_what_becomes_dense(mesh, check_vma):
    own = jnp.arange(1.0, 5)
    fn = on(mesh, lambda v, c: v * c[0], (P("i"), P("i")), P("i"), check_vma=check_vma)
    kinds = [
        lambda x: values.Named(x, ("a", "b")),
        lambda x: values.Tagged(values.Unitful(x, "m"), "w"),
        lambda x: values.Masked(x, X > 0.5),
    ]
    blocks = Quantised.quantise(X, block=8)  # Its one row of scales can't be split.
    for v in (Quantised.quantise(X), blocks):
        want = jaxrewrite.materialise(v) * jnp.repeat(own, 2)[:, None]
        for around in kinds:
            got = jax.jit(transform(fn, materialise="allow"))(around(v), own)
            assert jaxrewrite.same_structure(got, around(want))
            close = lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5)
            jax.tree.map(close, got, around(want))
        with pytest.raises(jaxrewrite.MaterialisationError, match="a Quantised"):
            transform(fn, materialise="forbid")(around(v), own)


def test_an_annotation_that_cannot_be_split_becomes_dense_with_what_is_inside(mesh):
    class Stamped(jaxrewrite.ArrayValue):
        array: jax.Array
        outer = 5

        def materialise(self):
            return self.array

    fn = on(mesh, lambda v: v, P("i"), P("i"))
    got = transform(fn, materialise="allow")(Stamped(Quantised.quantise(X)))
    np.testing.assert_array_equal(got, Quantised.quantise(X).materialise())


def test_two_annotations_of_which_one_is_never_dense_vary_alike(mesh):
    """The array of such a value has a type, too, which says over which axes it varies."""
    v = values.Tagged(values.Unitful(X, "m"), "w")
    fn = on(mesh, lambda v, c: v * c[0], (P("i"), P("i")), P("i"))
    got = transform(fn)(v, jnp.arange(1.0, 5))
    np.testing.assert_allclose(
        got.array.array, X * jnp.repeat(jnp.arange(1.0, 5), 2)[:, None]
    )


def _scaled(v: Coded, y: jax.typing.ArrayLike, **params):
    return Coded(v.codes, v.scale * y)


@pytest.mark.parametrize("spec", [P(), slow(P("i", None)), slow(P(None, "j"))])
def test_values_on_explicit_axes_are_placed_and_read(spec):
    mesh = jax.make_mesh((4, 2), ("i", "j"), axis_types=(AxisType.Explicit,) * 2)
    with jax.set_mesh(mesh):
        x = jax.device_put(X, NamedSharding(mesh, P("i", None)))
        row = lambda v: v.at[jnp.array([0, 2])].get(out_sharding=P(None, None))
        programs = lambda v, x: (v + x, row(v), jax.sharding.reshard(v, P("j", None)) * 2)
        for v in (SPLIT, NF4.quantise(X, (2, 1)), Scaled(X, jnp.float32(2.0))):
            put = transform(lambda v: jax.device_put(v, NamedSharding(mesh, spec)))(v)
            assert type(put) is type(v)
            dense = jax.device_put(np.asarray(v), NamedSharding(mesh, spec))
            if spec == P(None, "j"):
                x = jax.device_put(x, NamedSharding(mesh, spec))
            got = jax.jit(transform(programs, materialise="allow"))(put, x)
            want = jax.jit(programs)(dense, x)
            for g, w in zip(jaxrewrite.materialise(got), want, strict=True):
                np.testing.assert_allclose(g, w, rtol=1e-5)


def test_blocks_that_do_not_split_evenly_become_dense(mesh):
    """The scales of fewer blocks than devices can't be split as the array is."""
    w = jnp.arange(32.0).reshape(8, 4) / 8
    v, x = Quantised.quantise(w, block=8), jnp.ones((2, 8))
    split = jax.shard_map(
        lambda w, x: lax.psum(x @ w, mesh.axis_names[0]),
        mesh=mesh,
        in_specs=(P(mesh.axis_names[0], None), P(None, mesh.axis_names[0])),
        out_specs=P(),
    )
    got = transform(split, materialise="allow")(v, x)
    np.testing.assert_allclose(got, x @ v.materialise(), rtol=1e-6)
    v = Quantised.quantise(jnp.ones((8, 4)), block=(4, 1))
    got = transform(split, materialise="allow")(v, x)
    np.testing.assert_allclose(got, x @ v.materialise(), rtol=1e-6)


def test_the_axes_over_which_an_array_varies(mesh):
    seen = []

    def body(x):
        like = jax.typeof(x)
        arrays = x, lax.psum(x, "i"), _compat.full(like, 0)
        seen.append([_compat.varying_axes(jax.typeof(a)) for a in arrays])
        return x

    on(mesh, body, P("i"), P("i"))(X)
    assert seen[0] == [{"i"}, set(), {"i"}]
    assert _compat.varying_axes(jax.extend.core.AbstractToken()) == set()


class Along(values.Matrix):
    """A diagonal matrix that has no form for its transpose."""

    d: jax.Array

    def aval(self):
        return jax.core.ShapedArray((8, 8), self.d.dtype)

    def materialise(self):
        return jnp.diag(self.d)

    def apply(self, x, axis, precision=None):
        return jnp.moveaxis(jnp.moveaxis(x, axis, -1) * self.d, -1, axis)

    def times_number(self, factor):
        return Along(self.d * factor)


@pytest.mark.parametrize("check_vma", [True, slow(False)])
def test_a_derived_transpose_is_that_of_each_device(mesh, check_vma):
    """Where the matrix or the vector varies alone, no device adds up what others have."""
    ones = jnp.ones(8)
    programs = {
        "vector": lambda v, x: (ones * x[0]) @ v,
        "transpose": lambda v, x: v.T @ (ones * x[0]),
        "matrix": lambda v, x: ones @ (v * x[0, 0]),
        "sum": lambda v, x: (v * x[0, 0]).sum(0),
        "both": lambda v, x: (x[0] + 1) @ (v * x[0, 0]),
        "slope": lambda v, x: jax.grad(lambda x: jnp.sin((ones * x[0]) @ v).sum())(x)[0],
    }

    def body(v, x):
        return jnp.stack([fn(v, x) for fn in programs.values()])[None]

    fn = lambda v, x: on(mesh, body, (P(), P("i")), P("i"), check_vma=check_vma)(v, x)
    check(fn, Along(X[0]), eagerly=True)


def test_a_derived_transpose_is_split_as_the_dense_one_is():
    mesh = jax.make_mesh((4,), ("i",), axis_types=(AxisType.Explicit,))
    programs = lambda v, x: (x @ v, v.T @ x.T)
    for spec in (P("i"), P(None, "i")):
        with jax.set_mesh(mesh):
            x = jax.device_put(X, NamedSharding(mesh, spec))
            got, want = transform(programs)(Along(X[0]), x), programs(jnp.diag(X[0]), x)
        for g, w in zip(got, want, strict=True):
            assert g.sharding.is_equivalent_to(w.sharding, 2)
        assert_same(got, want, 1e-6)


@pytest.mark.parametrize("format", [sparse.BCOO, sparse.BCSR])
@pytest.mark.parametrize("check_vma", [True, slow(False)])
def test_sparse_products_vary_as_their_operands_do(mesh, format, check_vma):
    """JAX's own product says so of none of its results."""
    entries = jnp.where(X > 0.5, X, 0)

    def body(v, x):
        slope = jax.grad(lambda x: jnp.tanh(x @ v).sum())(x)
        return slope, (x @ v) * x, jnp.einsum("bi,ij,bj->b", x, v, x), (v * x[0, 0]).T @ x.T

    specs = P("i"), P("i"), P("i"), P(None, "i")
    fn = lambda v, x: on(mesh, body, (P(), P("i")), specs, check_vma=check_vma)(v, x)
    for wrap in (lambda f: f, jax.jit):
        got = wrap(transform(fn))(values.Sparse(format.fromdense(entries)), X)
        assert_same(got, fn(entries, X), 1e-5)


@pytest.mark.parametrize(
    "v",
    every(
        3,
        [
            values.Lora(X, X[:, :1], X[:1]),
            values.Sum((values.Diagonal(X[0]), values.LowRank(X[:, :1], X[:1]))),
            values.Scaled(values.Kronecker(X[:2, :2], X[:4, :4]), jnp.float32(2)),
            values.Product((values.Diagonal(X[0]), X)),
        ],
    ),
)
@pytest.mark.parametrize("check_vma", [True, slow(False)])
def test_products_that_jax_transposed_have_nothing_to_place(mesh, v, check_vma):
    def body(x, v):
        slope = jax.grad(lambda x: jnp.tanh(x @ v).sum())(x)
        along, _ = jax.linear_transpose(lambda x, y: x @ v, x, x)(x)
        return slope, along

    fn = lambda v, x: on(mesh, body, (P("i"), P()), P("i"), check_vma=check_vma)(x, v)
    check(fn, v)


def test_solves_on_each_device(mesh):
    v = values.Lora(10 * jnp.eye(8), X[:, :1], X[:1])
    solve = lambda v, x: jnp.linalg.solve(v, x)
    check(lambda v, x: on(mesh, solve, (P(), P(None, "i")), P(None, "i"))(v, x), v)


# A leaf of each differs from device to device, and another one does not.
VARYING = {
    "tridiagonal": lambda x: values.Tridiagonal(jnp.ones(3), x + 9, jnp.ones(3) / 2),
    "banded": lambda x: values.Tridiagonal(jnp.ones(3), x + 9, jnp.ones(3) / 2).as_banded(),
    "sum": lambda x: values.Tridiagonal(jnp.ones(3), x + 9, jnp.ones(3) / 2) + COLUMN,
    "diagonal and low rank": lambda x: values.Diagonal(x + 9) + COLUMN,
    "kronecker": lambda x: values.Kronecker(
        values.Identity(2, jnp.float32), jnp.diag(x[:2] + 9)
    ),
}
COLUMN = values.LowRank(X[:4, :1], X[:1, :4])
FUNCTIONS = {
    "solve": lambda a: jnp.linalg.solve(a, X[:4]),
    "factors": lambda a: jax.scipy.linalg.lu_solve(jax.scipy.linalg.lu_factor(a), X[:4]),
    "inverse": lambda a: jnp.linalg.inv(a) @ X[:4],
    "determinant": lambda a: jnp.linalg.slogdet(a)[1],
}


@pytest.mark.parametrize("name", every(2, VARYING, start=1))
def test_matrices_whose_leaves_vary_over_different_axes(mesh, name):
    def gradient(call):
        def body(x):
            parts = [jnp.ravel(call(fn, VARYING[name](x[0]))) for fn in FUNCTIONS.values()]
            return jnp.sin(jnp.concatenate(parts))[None]

        total = lambda x: on(mesh, body, P("i"), P("i"))(x).sum()
        return jax.jit(jax.value_and_grad(total))(X[:4, :4])

    def implicit(fn, v):
        return jaxrewrite.materialise(transform(fn, materialise="allow")(v))

    def dense(fn, v):
        return fn(jaxrewrite.materialise(v))

    assert_same_leaves(gradient(implicit), gradient(dense), 1e-4)


def test_the_carry_of_a_loop_varies_as_its_last_step_does(mesh):
    """One part varies after the first step, another after the second, and a third never."""

    def body(x):
        def step(carry, _):
            first, second, third, fixed = carry
            return (first + x.sum(), second + first, third + fixed, fixed), third

        zero = jnp.zeros((), x.dtype)
        carry, thirds = scan(step, (zero, zero, zero, zero + 1), None, length=3)
        return jnp.stack([*carry[:2], *thirds])[None]

    got = on(mesh, body, P("i"), P("i"))(X[:4])
    want = (
        jnp.outer(X[:4].sum(1), jnp.array([3, 3, 0, 0, 0])).at[:, 2:].set(jnp.arange(3.0))
    )
    assert_same(got, want, 1e-5)


@jax.custom_vjp
def threefold(w):
    return 3 * w


threefold.defvjp(lambda w: (3 * w, None), lambda _, ct: (5 * ct,))


@pytest.mark.parametrize(
    "v",
    every(
        2, [values.Diagonal(X[0]), values.Symmetric(X), values.Toeplitz(X[0], X[0]), LORA]
    ),
)
def test_custom_rules_of_values_that_vary(mesh, v):
    body = lambda v, x: x @ threefold(v * x[0, 0])
    fn = lambda v, x: on(mesh, body, (P(), P("i")), P("i"))(v, x)
    dense = lambda v, x: fn(v.materialise(), x)
    for of in (lambda fn: fn, lambda fn: jax.grad(summed(fn), (0, 1))):
        got = jax.jit(of(transform(fn, materialise="allow")))(v, X)
        assert_same_leaves(got, jax.jit(of(dense))(v, X), 1e-3)


COLLECTIVES = {
    "sum": lambda x: lax.psum(2 * x, "i"),
    "sum of groups": lambda x: lax.psum(x, "i", axis_index_groups=[[0, 1], [2, 3]]),
    "mean": lambda x: lax.pmean(x + 0, "i"),
    "greatest": lambda x: lax.pmax(jnp.maximum(x, 0), "i"),
    "least": lambda x: lax.pmin(x, "i"),
    "several": lambda x: sum(lax.psum((x, x / 2), "i")),
    "scattered": lambda x: lax.psum_scatter(x, "i", tiled=True, scatter_dimension=1),
    "exchanged": lambda x: lax.all_to_all(x, "i", 1, 0, tiled=True),
    "moved": lambda x: lax.ppermute(x, "i", [(k, (k + 1) % 4) for k in range(4)]),
    "gathered": lambda x: lax.all_gather(x, "i", tiled=True),
    "stacked": lambda x: lax.all_gather(x, "i").sum(0),
}


def collectives(mesh, without=()):
    programs = {name: fn for name, fn in COLLECTIVES.items() if name not in without}
    body = lambda x: {name: fn(x) for name, fn in programs.items()}
    return on(mesh, body, P("i"), P("i"), check_vma=False)


@pytest.mark.parametrize("wrap", [slow(lambda f: f), jax.jit], ids=["eager", "jit"])
def test_collectives_keep_units_and_names(mesh, wrap):
    fn = collectives(mesh)
    run = wrap(transform(fn, materialise="forbid"))
    got = run(values.Unitful(X, "m"))
    assert {x.units for x in got.values()} == {values.Units("m")}
    assert_same({name: x.array for name, x in got.items()}, fn(X), 1e-6)
    got = run(values.Named(X, ("row", "column")))
    assert {x.names for x in got.values()} == {("row", "column")}
    assert_same({name: x.array for name, x in got.items()}, fn(X), 1e-6)


def test_a_collective_that_makes_an_axis_drops_names(mesh):
    apart = lambda x: lax.all_to_all(x.reshape(2, 4, 2), "i", 1, 0)
    fn = on(mesh, apart, P("i"), P(None, "i"))
    got = jax.jit(transform(fn))(values.Named(X, ("row", "column")))
    assert_same(got, jax.jit(fn)(X), 0)


def test_collectives_of_bounds_hold_what_is_computed(mesh):
    fn = collectives(mesh)
    bounds = jax.jit(transform(fn))(values.Interval(X, X + 1))
    ends = fn(X), fn(X + 1)
    for name, x in bounds.items():
        assert_same((x.lower, x.upper), tuple(end[name] for end in ends), 1e-6)
    whole = jnp.arange(8)
    greatest = on(mesh, lambda x: lax.pmax(x, "i"), P("i"), P())
    assert_same(
        transform(greatest)(values.Interval(whole, whole)).upper, greatest(whole), 0
    )
    with pytest.raises(TypeError, match="no bounds of psum.* on integers"):
        transform(on(mesh, lambda x: lax.psum(x, "i"), P("i"), P()))(
            values.Interval(whole, whole + 1)
        )


def test_collectives_of_masked_arrays_skip_what_is_missing(mesh):
    """A sum of devices is there where one of them has an entry; the others count as zero."""
    mask = (jnp.arange(X.size).reshape(X.shape) % 3 == 0).at[:, 1].set(True)
    fn = collectives(mesh, without=["mean"])
    got = jax.jit(transform(fn))(values.Masked(X, mask))
    kept, there = fn(jnp.where(mask, 0, X)), fn(jnp.where(mask, 0, 1.0))
    # The greatest is of what is above zero, so that zeros in place of missing entries are right.
    least = fn(jnp.where(mask, jnp.inf, X))["least"]
    kept["least"] = jnp.where(jnp.isinf(least), 0, least)
    there["least"] = ~jnp.isinf(least)
    assert_same({name: x.filled(0) for name, x in got.items()}, kept, 1e-6)
    assert_same(
        {k: ~x.mask for k, x in got.items()}, {k: x > 0 for k, x in there.items()}, 0
    )


@pytest.mark.parametrize(
    "groups, number", [(None, 4), ([[0, 1], [2, 3]], 2)], ids=["all", "groups"]
)
def test_a_mean_over_devices_does_not_count_what_is_missing(mesh, groups, number):
    masked = values.Masked(X, X > 0)
    mean = lambda x: lax.pmean(x, "i", axis_index_groups=groups)
    with pytest.raises(TypeError, match=f"divides a sum of {number} entries"):
        transform(on(mesh, mean, P("i"), P("i"), check_vma=False))(masked)


def test_scattered_sums_do_not_count_what_is_missing(mesh):
    mean = lambda x: lax.psum_scatter(x, "i", tiled=True, scatter_dimension=1) / 4
    with pytest.raises(TypeError, match="divides a sum of 4 entries"):
        transform(on(mesh, mean, P("i"), P("i")))(values.Masked(X, X > 0))


@pytest.mark.parametrize(
    "v",
    [
        values.Unitful(X, "m"),
        values.Named(X, ("row", "column")),
        values.Interval(X, X + 1),
        values.Masked(X, X > 0.5),
        values.Diagonal(X),
        values.LowRank(X[:, :, None], X[:, None]),
        values.Constant(jnp.float32(2), (4, 3)),
    ],
    ids=lambda v: type(v).__name__,
)
def test_collectives_over_what_vmap_has_mapped_are_reductions(v):
    """These have a number for an axis, which is gone from the result, and no device."""
    reduced = {"sum": (lax.psum, jnp.sum)}
    if not isinstance(v, (values.Diagonal, values.LowRank)):
        reduced |= {"greatest": (lax.pmax, jnp.max), "least": (lax.pmin, jnp.min)}
    for collective, reduce in reduced.values():
        of_mapped = functools.partial(collective, axis_name="b")
        own = jax.vmap(of_mapped, axis_name="b", out_axes=None)
        programs = own, functools.partial(reduce, axis=0)
        got, want = (transform(fn, materialise="forbid")(v) for fn in programs)
        assert_same_leaves(got, want, 1e-6)


def test_masks_vary_as_what_is_masked(mesh):
    body = lambda x: (jnp.where(x > 0.5, x, 0), jnp.pad(x, 1), x.at[0].set(0))
    fn = on(mesh, body, P("i"), P("i"))
    got = transform(fn, materialise="forbid")(values.Masked(X, jnp.zeros_like(X, bool)))
    assert_same([x.filled(jnp.nan) for x in got], list(fn(X)), 1e-6)


def test_a_carry_that_becomes_dense_stays_split_as_it_begins():
    """The product with a diagonal matrix is one, whose leaf is whole."""
    mesh = jax.make_mesh((2,), ("i",), axis_types=(AxisType.Explicit,))
    fn = lambda v, x: lax.fori_loop(0, 2, lambda i, x: v * x, x)
    with jax.set_mesh(mesh):
        x = jax.device_put(X, P("i"))
        got = transform(fn, materialise="allow")(values.Diagonal(X[0]), x)
    assert jax.typeof(got).sharding.spec == P("i", None)
    np.testing.assert_allclose(got, np.diag(X[0] ** 2 * jnp.diag(X)), rtol=1e-6)


def test_a_carry_stays_split_as_it_begins():
    """On explicit axes that is part of its type. A rule may leave its result whole."""
    mesh = jax.make_mesh((8,), ("i",), axis_types=(AxisType.Explicit,))
    spec = P("i", None)
    programs = (
        lambda v: lax.fori_loop(0, 2, lambda i, v: -v, v),
        lambda v: lax.scan(lambda v, _: (jnp.tanh(v), None), v, length=2)[0],
        lambda v: lax.while_loop(
            lambda c: c[1] < 2, lambda c: (c[0] * 2, c[1] + 1), (v, 0)
        )[0],
        lambda v: -v,
        lambda v: lax.cond(True, lambda: v * 2, lambda: v),
    )
    symmetric = values.Symmetric(X + X.T)
    with jax.set_mesh(mesh):
        v = jaxrewrite.place(symmetric, mesh, [("", P("i"))])
        for fn in programs:
            for wrap in (lambda f: f, jax.jit):
                got = wrap(transform(fn, materialise="forbid"))(v)
                assert got.x.sharding.spec == spec
                assert_same(np.tril(got.x), np.tril(fn(symmetric.materialise())), 1e-6)

"""`place` and `shardings`: rules for dense parameters, on values, over eight devices."""

import collections
import functools
import math
import re

import choose
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from jaxtyping import Array

import jaxrewrite
from bench import gpt2
from bench.model import map_layers
from jaxrewrite import (
    ArrayValue,
    materialise,
    place,
    same_structure,
    shardings,
    transform,
)
from jaxrewrite.values import (
    NF4,
    Constant,
    Diagonal,
    Identity,
    Interval,
    Kronecker,
    Lora,
    LowRank,
    Masked,
    Named,
    Quantised,
    Scaled,
    Symmetric,
    Tagged,
    Toeplitz,
    Unitful,
)


slow = choose.slow

KERNEL = jnp.asarray(np.random.default_rng(0).normal(size=(8, 16)), jnp.float32)
A = jnp.ones((8, 2)) / 3
B = jnp.ones((2, 16)) / 5


@pytest.fixture(scope="module")
def mesh():
    return jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


def specs(tree):
    return [x.spec for x in jax.tree.leaves(tree)]


BOTH = P("data", "model")


def by_columns(w=KERNEL, bits=8):
    return Quantised.quantise(w, bits, axis=-1)


# A value, and how its leaves are split.
LEAVES = {
    "array": (lambda: KERNEL, [BOTH]),
    "Lora": (lambda: Lora(KERNEL, A, B), [BOTH, P("data", None), P(None, "model")]),
    "Quantised": (by_columns, [BOTH, P(None, "model")]),
    "Quantised with one scale": (lambda: Quantised.quantise(KERNEL), [BOTH, P(None, None)]),
    # Two groups of eight, of which the second is not full.
    "three bits": (lambda: by_columns(KERNEL[:4, :12], 3), [BOTH, P(None, "model")]),
    "Lora of Quantised": (
        lambda: Lora(by_columns(), A, B),
        [BOTH, P(None, "model"), P("data", None), P(None, "model")],
    ),
    "Scaled": (lambda: Scaled(KERNEL, jnp.float32(2.0)), [BOTH, P()]),
    "Masked": (lambda: Masked(KERNEL, KERNEL > 0), [BOTH, BOTH]),
    "Unitful": (lambda: Unitful(LowRank(A, B), "m"), [P("data", None), P(None, "model")]),
    "Masked of Quantised": (
        lambda: Masked(by_columns(), KERNEL > 0),
        [BOTH, P(None, "model"), BOTH],
    ),
}


@pytest.mark.parametrize("name", LEAVES)
def test_leaves_follow_the_array(mesh, name):
    make, want = LEAVES[name]
    value = make()
    found = shardings({"kernel": value}, mesh, [("kernel", BOTH)])
    assert specs(found) == want
    placed = place({"kernel": value}, mesh, [("kernel", BOTH)])
    assert jax.tree.structure(placed) == jax.tree.structure({"kernel": value})
    for leaf, sharding in zip(jax.tree.leaves(placed), jax.tree.leaves(found), strict=True):
        assert leaf.sharding.is_equivalent_to(sharding, leaf.ndim)
    jax.tree.map(np.testing.assert_array_equal, placed["kernel"], value)


def test_blocks_that_do_not_split_are_whole(mesh):
    """Four shards of eight rows have no whole blocks of four rows."""
    value = NF4.quantise(KERNEL, (4, 1))
    placed = place({"kernel": value}, mesh, [("kernel", BOTH)])["kernel"]
    found = {leaf.sharding.spec for leaf in jax.tree.leaves(placed)}
    assert BOTH in found and any(not any(spec) for spec in found)
    np.testing.assert_array_equal(placed.materialise(), value.materialise())
    x = jnp.ones((3, 8))
    got = jax.jit(transform(lambda w, x: x @ w, materialise="forbid"))(placed, x)
    np.testing.assert_allclose(got, x @ value.materialise(), rtol=1e-5)


def test_nothing_is_said_where_one_leaf_is_split_and_another_can_not_be(mesh):
    value, where = NF4.quantise(KERNEL, (4, 1)), NamedSharding(mesh, BOTH)
    constrained = transform(lambda v: jax.lax.with_sharding_constraint(v, where))
    placed = jax.jit(constrained)(value)
    is_whole = [x.sharding.is_fully_replicated for x in jax.tree.leaves(placed)]
    assert is_whole == [False, True, True, True]
    np.testing.assert_array_equal(placed.materialise(), value.materialise())


def test_the_first_rule_decides_and_a_function_may(mesh):
    tree = {"up": {"kernel": KERNEL, "bias": KERNEL[0]}, "step": jnp.int32(3)}
    rules = [("up/kernel", P("data")), ("kernel", P(None, "data")), ("", P())]
    assert specs(shardings(tree, mesh, rules)) == [P(), P(), P("data")]  # by name
    of_rank = lambda path, leaf: P("model") if leaf.ndim == 2 else P()
    assert specs(shardings(tree, mesh, of_rank)) == [P(), P(), P("model")]


def test_states_of_optimisers_and_what_is_no_array(mesh):
    params = {"kernel": Lora(KERNEL, A, B), "name": None}
    state = optax.adam(1e-3).init(params)
    rules = [("kernel", P("data"))]
    placed = place(state, mesh, rules)
    assert placed[0].mu["kernel"].a.sharding.spec == P("data", None)
    assert placed[0].count.sharding.is_fully_replicated
    tree = {"kernel": KERNEL, "name": "gelu"}
    assert place(tree, mesh, rules)["name"] == "gelu"
    assert shardings(tree, mesh, rules)["name"] is None


def test_shapes_serve_as_well_as_arrays(mesh):
    abstract = jax.eval_shape(lambda: {"kernel": Lora(KERNEL, A, B)})
    rules = [("kernel", P("data"))]
    assert specs(shardings(abstract, mesh, rules)) == specs(
        shardings({"kernel": Lora(KERNEL, A, B)}, mesh, rules)
    )


def test_as_shardings_of_a_jitted_function(mesh):
    params = {"kernel": Lora(KERNEL, A, B)}
    to = shardings(params, mesh, [("kernel", P(None, "model"))])
    fn = transform(lambda p, x: jnp.tanh(x @ p["kernel"]), materialise="forbid")
    x = jnp.ones((4, 8))
    whole = NamedSharding(mesh, P())
    got = jax.jit(fn, in_shardings=(to, whole))(params, x)
    np.testing.assert_allclose(got, fn(params, x), rtol=1e-6)
    assert got.sharding.spec == P(None, "model")


def test_explicit_axes():
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
    with jax.set_mesh(mesh):
        params = {"kernel": Lora(Quantised.quantise(KERNEL, axis=-1), A, B)}
        params = place(params, mesh, [("kernel", P(None, "model"))])
        x = jax.device_put(jnp.ones((4, 8)), NamedSharding(mesh, P("data")))
        fn = transform(lambda p, x: jnp.tanh(x @ p["kernel"]), materialise="forbid")
        got = jax.jit(fn)(params, x)
        assert jax.typeof(got).sharding.spec == P("data", "model")
        np.testing.assert_allclose(got, np.tanh(x @ np.asarray(params["kernel"])), 1e-5)


def test_a_value_is_on_the_mesh_of_one_of_its_leaves():
    """Its type tells the shape and the dtype alone, and another leaf is on no mesh."""

    class Times(ArrayValue):
        x: jax.Array
        scale: jax.Array

        def aval(self):
            return jax.core.ShapedArray(self.x.shape, self.x.dtype)

        def materialise(self):
            return self.x * self.scale

    mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Explicit,))
    x = jax.device_put(jnp.ones((4, 2)), NamedSharding(mesh, P("data")))
    specs = []
    transform(lambda v: specs.append(jax.typeof(v).sharding.spec))(Times(x, np.float32(2)))
    assert specs == [P("data", None)]


@pytest.mark.parametrize("run", [lambda fn: fn, jax.jit], ids=["eager", "jit"])
def test_results_are_split_as_those_of_the_dense_program(run):
    """Also where the structure gives a result that is split along other axes."""
    mesh = jax.make_mesh((4, 2), ("i", "j"), axis_types=(AxisType.Explicit,) * 2)
    with jax.set_mesh(mesh):
        d = jax.device_put(jnp.arange(1.0, 9), NamedSharding(mesh, P("i")))
        x = jax.device_put(jnp.arange(64.0).reshape(8, 8), NamedSharding(mesh, P()))
        for v in (Diagonal(d), Identity(8), Constant(jnp.float32(2), (8, 8))):
            for fn in (jnp.matmul, lambda v, x: jnp.sin(v @ x) + jnp.flip(v), jnp.add):
                want = run(fn)(materialise(v), x)
                got = run(transform(fn, materialise="allow"))(v, x)
                assert jax.typeof(got) == jax.typeof(want)
                np.testing.assert_allclose(materialise(got), want, 1e-5)
        # What a rule for a function returns, and what a pattern rule does.
        rules = jaxrewrite.Rules()
        halved = jax.jit(lambda v: jnp.sum(v, 1) / 2)
        rules.register(halved)(_half_of_diagonal)
        rules.rewrite(lambda d: jnp.sin(d) * 0 + d)(_on_one_device)
        for fn, operand, dense in (
            (lambda v: halved(v) + 1, Diagonal(d), materialise(Diagonal(d))),
            (lambda d: jnp.cos(jnp.sin(d) * 0 + d), d, d),
        ):
            want = run(fn)(dense)
            got = run(transform(fn, rules=rules, materialise="forbid"))(operand)
            assert jax.typeof(got) == jax.typeof(want)
            np.testing.assert_allclose(got, want, 1e-5)


def _half_of_diagonal(v: Diagonal):
    return v.d / 2


def _on_one_device(d: Array):
    return jax.sharding.reshard(d, P(None))


PLACED = {
    "Lora": lambda: Lora(KERNEL, A, B),
    "Lora of Quantised": lambda: Lora(by_columns(), A, B),
    "Quantised": by_columns,
    "four bits": lambda: Quantised.quantise(KERNEL, 4, block=4),
    "NF4": lambda: NF4.quantise(KERNEL, block=8),
    "LowRank": lambda: LowRank(A, B),
    "Diagonal": lambda: Diagonal(jnp.arange(1.0, 9)),
}


@pytest.mark.filterwarnings("ignore:.*whose leaves are not split")
@pytest.mark.parametrize("name", choose.often(PLACED, ["Lora of Quantised", "NF4"]))
def test_products_are_placed_on_explicit_axes(name):
    """A product over an axis that is split, and a kernel that heads are made of."""
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
    v = PLACED[name]()
    out = P("data", None)
    columns = v.shape[1]

    def rows(x, v):
        return jnp.einsum("bi,ij->bj", x, v, out_sharding=out)

    def heads(x, v):
        w = jax.lax.reshape(v, (8, 4, columns // 4), out_sharding=P("model", None, None))
        return jnp.einsum("bi,ihj->bhj", x, w, out_sharding=P("data", None, None))

    with jax.set_mesh(mesh):
        w = jax.device_put(materialise(v), NamedSharding(mesh, P("model", None)))
        v = place({"w": v}, mesh, [("w", P("model", None))])["w"]
        x = jnp.linspace(-1, 1, 32).reshape(4, 8)
        x = jax.device_put(x, NamedSharding(mesh, P("data", "model")))
        for fn in (rows, heads):
            if fn is heads and name == "Diagonal":
                continue  # It has no structure that would be left.
            implicit = transform(fn, materialise="forbid")
            loss = lambda x, v, fn=fn: jnp.sum(jnp.sin(fn(x, v)))
            got, want = jax.jit(implicit)(x, v), jax.jit(fn)(x, w)
            assert got.sharding.spec == want.sharding.spec
            np.testing.assert_allclose(got, want, 1e-4, 1e-4)
            slope = jax.jit(jax.grad(transform(loss, materialise="forbid")))(x, v)
            assert slope.sharding.spec == x.sharding.spec
            np.testing.assert_allclose(slope, jax.jit(jax.grad(loss))(x, w), 1e-4, 1e-4)


def gathered(compiled):
    """The dtypes of the arrays that a compiled program gathers, with their sizes."""
    found = re.findall(r"= (\w+)\[([\d,]*)\]\S* all-gather\(", compiled.as_text())
    return {(dtype, math.prod(map(int, sizes.split(",")))) for dtype, sizes in found}


def by_constraint(mesh):
    return lambda x, w: x @ jax.lax.with_sharding_constraint(w, NamedSharding(mesh, P()))


def by_reshard(mesh):
    whole = lambda w: jax.sharding.reshard(w, P())
    return lambda x, w: jnp.einsum("bi,ij->bj", x, whole(w), out_sharding=P("data"))


@pytest.mark.parametrize(
    ("axes", "program", "bits"),
    [
        (AxisType.Auto, by_constraint, 8),
        (AxisType.Explicit, by_reshard, 4),
        choose.slow((AxisType.Auto, by_constraint, 4)),
        choose.slow((AxisType.Explicit, by_reshard, 8)),
    ],
)
def test_what_is_gathered_are_codes_and_scales(axes, program, bits, xla):
    mesh = jax.make_mesh((8,), ("data",), axis_types=(axes,))
    split = NamedSharding(mesh, P("data"))
    v = Quantised.quantise(jnp.ones((64, 16)), bits, block=(8, 1))
    with jax.set_mesh(mesh):
        v = place({"w": v}, mesh, [("w", P("data"))])["w"]
        x = jax.device_put(jnp.ones((8, 64)), split)
        implicit = transform(program(mesh), materialise="forbid")
        loss = lambda x, v: jnp.sum(jnp.sin(implicit(x, v)))
        for fn in (implicit, jax.grad(loss)):
            dtypes = dict(gathered(jax.jit(fn).lower(x, v).compile()))
            assert dtypes.pop("f32") == v.scale.size
            assert dtypes == {"s8": v.size * bits // 8}


PAIRS = {
    "low rank, quantised": lambda: (LowRank(A, A.T), by_columns()),
    "Kronecker, diagonal": lambda: (
        Kronecker(KERNEL[:2, :2], KERNEL[:4, :4]),
        PLACED["Diagonal"](),
    ),
    "diagonal, diagonal": lambda: (PLACED["Diagonal"](), PLACED["Diagonal"]()),
    "quantised, LoRA": lambda: (Quantised.quantise(KERNEL @ KERNEL.T), PLACED["Lora"]()),
}
ANNOTATED = {
    "array, units": lambda w: (w, Unitful(w, "m")),
    "units, quantised": lambda w: (Unitful(w, "m"), Quantised.quantise(w)),
    "quantised, tag": lambda w: (Quantised.quantise(w), Tagged(w, "t")),
    "names, units": lambda w: (Named(w, ("i", "j")), Unitful(LowRank(A, A.T), "m")),
    "mask, diagonal": lambda w: (Masked(w, w > 9), Diagonal(w[0])),
    "interval, array": lambda w: (Interval(w, w), w),
}


def product(x, y):
    return jnp.einsum("ij,jk->ik", x, y, out_sharding=P("data", None))


@pytest.mark.parametrize("name", choose.often(PAIRS, ["low rank, quantised"]))
def test_products_of_two_values_are_placed_on_explicit_axes(name):
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
    pair = PAIRS[name]()

    def both(fn, x, y):
        loss = lambda x, y: jnp.sum(jnp.sin(fn(x, y)))
        return fn(x, y), jax.grad(loss, allow_int=True)(x, y)

    with jax.set_mesh(mesh):
        implicit = functools.partial(both, transform(product, materialise="forbid"))
        on_arrays = lambda x, y: product(materialise(x), materialise(y))
        got, want = (
            jax.jit(implicit)(*pair),
            jax.jit(functools.partial(both, on_arrays))(*pair),
        )
    assert got[0].sharding.spec == want[0].sharding.spec
    for x, y in zip(*map(jax.tree.leaves, (got, want)), strict=True):
        if x.dtype != jax.dtypes.float0:
            np.testing.assert_allclose(x, y, 1e-3, 1e-3)


@pytest.mark.parametrize("name", choose.often(ANNOTATED, ["array, units"]))
def test_products_of_annotated_arrays_are_placed_on_explicit_axes(name):
    """Of the array inside of an annotation, the product is placed."""
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
    pair = ANNOTATED[name](KERNEL[:, :8])
    want = transform(jnp.matmul, materialise="forbid")(*pair)
    with jax.set_mesh(mesh):
        got = jax.jit(transform(product, materialise="forbid"))(*pair)
    assert same_structure(got, want)
    assert jax.tree.leaves(got)[0].sharding.spec == P("data", None)
    for x, y in zip(*map(jax.tree.leaves, (got, want)), strict=True):
        np.testing.assert_allclose(x, y, 1e-3, 1e-3)


class Opaque(ArrayValue):
    x: jax.Array

    def aval(self):
        return jax.core.ShapedArray((self.x.shape[0] * 2,), self.x.dtype)

    def materialise(self):
        return jnp.concatenate([self.x, self.x])


def test_bad_rules(mesh):
    tree = {"up": {"kernel": Lora(KERNEL, A, B)}}
    with pytest.raises(ValueError, match=r"No rule is for 'up/kernel', of shape \(8, 16\)"):
        place(tree, mesh, [("down", P("data"))])
    with pytest.raises(
        ValueError, match=r"'up/kernel', of shape \(8, 16\), can't be split"
    ):
        place(tree, mesh, [("kernel", P("data", "model", None))])
    with pytest.raises(ValueError, match=r"'up/kernel'.*can't be split.*'rows'"):
        place(tree, mesh, [("kernel", P("rows"))])
    with pytest.raises(ValueError, match=r"'odd', of shape \(3,\), can't be split"):
        place({"odd": jnp.ones(3)}, mesh, [("odd", P("data"))])
    with pytest.raises(TypeError, match=r"'up/kernel' has 'data' in place of a Partition"):
        place(tree, mesh, [("kernel", "data")])
    with pytest.warns(
        UserWarning, match=r"splits 'x', a Opaque, .*Define Opaque.leaf_specs"
    ):
        placed = place({"x": Opaque(jnp.ones(4))}, mesh, [("x", P("data"))])
    assert placed["x"].x.sharding.is_fully_replicated
    with pytest.warns(UserWarning, match=r"a Tagged, .*Define Opaque.leaf_specs"):
        place({"x": Tagged(Opaque(jnp.ones(4)), "tag")}, mesh, [("x", P("data"))])
    odd = Halves(jnp.ones(3))
    with pytest.warns(UserWarning, match="'x', a Halves, .*They have no equal parts"):
        place({"x": odd}, mesh, [("x", P("model"))])


class Halves(Opaque):
    """It says how it is split, and the leaf may have no equal parts where the array has."""

    def leaf_specs(self, spec):
        return Halves(spec)


def test_what_no_type_can_split_is_whole(mesh):
    """A diagonal has no rows of its own; every device keeps it."""
    with pytest.warns(UserWarning, match="Diagonal"):
        placed = place({"d": Diagonal(jnp.ones(8))}, mesh, [("d", P("data"))])
    assert jax.tree.leaves(placed)[0].sharding.is_fully_replicated


# --- training a transformer, against the same by hand --------------------------------------


CONFIG = gpt2.Config(layers=2, width=32, heads=2, vocabulary=64, length=8, batch=8)
RULES = {
    "fsdp": [("tokens|positions", P("data")), ("kernel", P("data")), ("", P())],
    "tensor": [
        ("(qkv|up)/kernel", P(None, "model")),
        ("(out|down)/kernel", P("model")),
        ("tokens", P("model")),
        ("", P()),
    ],
}


def by_hand(params):
    """The arrays of each adapted kernel, and a linear layer for them."""
    return map_layers(params, kernel=lambda v: {"w": v.w, "a": v.a, "b": v.b})


def linear(p, x):
    k = p["kernel"]
    return x @ k["w"] + (x @ k["a"]) @ k["b"] + p["bias"]


def rules_by_hand(rules):
    """Those of the arrays, written out for each of the three."""

    def rule(path, leaf):
        spec = next(spec for name, spec in rules if re.search(name, path))
        if not path.endswith(("kernel/a", "kernel/b")):
            return spec
        whole = (*spec, None, None)[:2]
        return P(whole[0], None) if path.endswith("/a") else P(None, whole[1])

    return rule


def step(model):
    optimiser = optax.sgd(1e-2)

    def loss(params, ids):
        logits = model(params, ids)[:, :-1]
        return optax.softmax_cross_entropy_with_integer_labels(logits, ids[:, 1:]).mean()

    def update(params, ids):
        value, gradient = jax.value_and_grad(loss)(params, ids)
        updates, _ = optimiser.update(gradient, optimiser.init(params))
        return optax.apply_updates(params, updates), value

    return update


def collectives(compiled):
    names = "all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute"
    found = re.findall(rf"= (\S+) ({names})\(", compiled.as_text())
    return collections.Counter((name, shape.split("{")[0]) for shape, name in found)


def test_gradients_have_the_collectives_of_the_program_by_hand(mesh, optimised):
    """The same of one layer, which compiles in a moment."""
    x = jax.device_put(jnp.ones((8, 8)), NamedSharding(mesh, P("data")))
    loss = transform(lambda w, x: jnp.sum(jnp.tanh(x @ w) ** 2), materialise="forbid")
    hand = lambda w, x: jnp.sum(jnp.tanh(x @ w.w + (x @ w.a) @ w.b) ** 2)
    w = place(Lora(KERNEL, A, B), mesh, [("", P("data", "model"))])
    found = [
        collectives(jax.jit(jax.grad(fn)).lower(w, x).compile()) for fn in (loss, hand)
    ]
    assert found[0] == found[1] and found[0]


@pytest.mark.parametrize("how", [slow("fsdp"), slow("tensor")])
def test_training_has_the_collectives_of_the_program_by_hand(mesh, how, optimised):
    params = gpt2.init(CONFIG, jax.random.key(0))
    keys = iter(jax.random.split(jax.random.key(1), 2 * 4 * 2))

    def lora(w):
        a = jax.random.normal(next(keys), (w.shape[0], 4)) / 8
        return Lora(w, a, jax.random.normal(next(keys), (4, w.shape[1])) / 8)

    params = map_layers(params, kernel=lora)
    ids = jax.random.randint(jax.random.key(2), (CONFIG.batch, CONFIG.length), 0, 64)
    batch = jax.device_put(ids, NamedSharding(mesh, P("data")))
    model = lambda p, ids: gpt2.apply(p, ids, CONFIG.heads)
    implicit = transform(model, materialise="forbid")
    hand = lambda p, ids: gpt2.apply(p, ids, CONFIG.heads, linear)
    runs = {
        "implicit": (implicit, place(params, mesh, RULES[how])),
        "by hand": (hand, place(by_hand(params), mesh, rules_by_hand(RULES[how]))),
    }
    want, dense = jax.jit(step(implicit))(params, ids)
    compiled = {
        name: jax.jit(step(fn)).lower(p, batch).compile() for name, (fn, p) in runs.items()
    }
    assert collectives(compiled["implicit"]) == collectives(compiled["by hand"])
    assert collectives(compiled["implicit"])
    after, value = compiled["implicit"](runs["implicit"][1], batch)
    np.testing.assert_allclose(value, dense, rtol=1e-5)
    for leaf, other in zip(jax.tree.leaves(after), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(leaf, other, rtol=1e-3, atol=1e-5)
    kernel = after["blocks"][0]["up"]["kernel"]
    axis = 0 if how == "fsdp" else 1
    assert len({str(s.index) for s in kernel.w.addressable_shards}) == (
        4 if axis == 0 else 2
    )


# Their rules look up entries, reshape, and take Fourier transforms.
UNPLACED = {
    "Diagonal": lambda: Diagonal(jnp.arange(1.0, 9)),
    "Kronecker": lambda: Kronecker(jnp.ones((2, 2)), KERNEL[:4, :4]),
    "Toeplitz": lambda: Toeplitz(jnp.arange(8.0), jnp.arange(8.0)),
}


@pytest.mark.parametrize("name", choose.often(UNPLACED, ["Diagonal"]))
def test_steps_that_jax_cannot_place_on_explicit_axes(name):
    """The compiler places them, and the results are placed as those of the program."""
    mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Explicit,))
    v, x = UNPLACED[name](), KERNEL[:, :8]
    programs = lambda v, x: (v * x, v @ x)
    want = programs(materialise(v), x)
    with jax.set_mesh(mesh):
        x = jax.device_put(x, NamedSharding(mesh, P("data")))
        got = jax.jit(lambda v, x: materialise(transform(programs)(v, x)))(v, x)
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, 1e-5, 1e-5)


def test_values_become_dense_whose_leaves_are_split_over_explicit_axes():
    mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Explicit,))
    rows = [Scaled(row, jnp.float32(i)) for i, row in enumerate(KERNEL)]
    for v in Symmetric(KERNEL[:, :8]), jaxrewrite.stack(rows):
        (x, *rest), treedef = jax.tree.flatten(v)
        split = jax.device_put(x, NamedSharding(mesh, P("data")))
        want = materialise(v)
        with jax.set_mesh(mesh):
            got = materialise(treedef.unflatten([split, *rest]))
        np.testing.assert_array_equal(got, want)


def test_a_program_is_of_the_mesh_around_it():
    """The equations of jitted functions have it, of which the axes alone tell too little."""
    meshes = [jax.make_mesh((2,), ("x",), devices=jax.devices()[i : i + 2]) for i in (0, 2)]
    run = transform(lambda v: jnp.where(v > 0, v, 0.0).sum(), materialise="allow")
    for mesh in meshes:
        with jax.set_mesh(mesh):
            total = run(Diagonal(jax.device_put(jnp.arange(4.0), NamedSharding(mesh, P()))))
        assert total == 6 and total.devices() == {*mesh.devices.flat}

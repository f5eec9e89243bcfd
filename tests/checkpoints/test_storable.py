"""Pytrees as plain arrays: every ready type, every kind of leaf, exactly; and errors."""

import io
import json
import sys
from dataclasses import replace

import equinox as eqx
import flax.serialization
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest
from checkpoints_examples import abstract, few, int8, nf4, on_device, ready, same, special

import jaxrewrite
from jaxrewrite import values
from jaxrewrite.checkpoints import from_storable, load, save, save_adapter, to_storable


PLAIN = {
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64"),
}


def through_npz(arrays):
    file = io.BytesIO()
    np.savez(file, **arrays)
    file.seek(0)
    return dict(np.load(file))


def check_exact(tree):
    arrays = to_storable(tree)
    assert {x.dtype.name for x in arrays.values()} <= PLAIN
    assert all(x.size for x in arrays.values())
    same(from_storable(arrays, tree), tree)
    same(from_storable(jax.device_get(arrays), abstract(tree)), tree)
    shapes = {name: (x.shape, x.dtype) for name, x in arrays.items()}
    assert {n: (x.shape, x.dtype) for n, x in to_storable(abstract(tree)).items()} == shapes


def test_leaves_of_every_kind_come_back_exactly():
    check_exact(special())


def test_types_that_libraries_cannot_store():
    tree = few()
    arrays = to_storable(tree)
    same(from_storable(through_npz(jax.device_get(arrays)), tree), tree)


def test_every_ready_type():
    check_exact(ready())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["float64", "bfloat16"])
def test_ready_types_of_other_dtypes(kind):
    with jax.enable_x64(kind == "float64"):
        check_exact(ready(kind))


@pytest.mark.slow
def test_leaves_of_every_kind_in_a_program(no_leak_checks):
    known = lambda x: isinstance(x, (jax.Array, jaxrewrite.Value))
    tree = {name: x for name, x in special().items() if known(x)}
    arrays, traced = to_storable(tree), jax.jit(to_storable)(tree)
    same(traced, jax.tree.map(jnp.asarray, arrays))
    same(from_storable(traced, tree), tree)


def test_bytes_hold_two_integers_of_four_bits():
    numbers = np.array([[-8, 7, 3], [0, -1, 5]])
    arrays = to_storable({"x": on_device(numbers, jnp.int4), "y": np.array([1 + 2j])})
    low, high = numbers[:, ::2] & 15, np.pad(numbers[:, 1::2] & 15, [(0, 0), (0, 1)])
    np.testing.assert_array_equal(arrays["x"], low | high << 4)
    np.testing.assert_array_equal(arrays["y"], [[1.0, 2.0]])
    assert to_storable(nf4(128, 10))["codes"].nbytes == 128 * 5


def test_numbers_in_the_other_order_of_bytes():
    """As files of other programs have them, which NumPy maps to memory."""
    for dtype in ("f4", "i2", "c8"):
        for order in "<>":
            x = np.array([[1, 2, -300]], np.dtype(dtype).newbyteorder(order))
            arrays = to_storable({"x": x})
            assert arrays["x"].dtype.isnative
            back = from_storable(arrays, {"x": x})["x"]
            assert back.dtype == x.dtype
            np.testing.assert_array_equal(back, x)


def test_traced_and_sharded_arrays():
    """As the steps of a program, and on eight devices, the arrays are the same."""
    numbers = np.arange(64).reshape(8, 8) % 16
    codes = on_device(numbers, jnp.uint4)
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("data",))
    split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    floats = jnp.asarray(numbers, "float8_e5m2")
    tree = jax.device_put({"codes": codes, "floats": floats}, split)
    arrays, traced = to_storable(tree), jax.jit(to_storable)(tree)
    want = numbers[:, ::2] | numbers[:, 1::2] << 4
    for found in (arrays, traced):
        np.testing.assert_array_equal(found["codes"], want)
        assert len(found["codes"].sharding.device_set) == 8
        back = from_storable(found, tree)
        assert back["codes"].sharding == split
        same(back, tree)


def test_what_is_on_one_device_is_converted_without_compiling(monkeypatch):
    numbers = np.arange(16).reshape(4, 4)
    floats = jnp.asarray(numbers, "float8_e5m2")
    tree = {"codes": on_device(numbers, jnp.uint4), "floats": floats}
    monkeypatch.delattr(jax, "jit")
    same(from_storable(to_storable(tree), tree), tree)


def test_nested_arrays_are_found_by_their_paths():
    """As libraries return them that know of dictionaries alone."""
    tree = {"a": [nf4(4, 2)], "n": 3}
    nested = {}
    for name, x in to_storable(tree).items():
        *above, last = name.split("/")
        inner = nested
        for key in above:
            inner = inner.setdefault(key, {})
        inner[last] = x
    same(from_storable(nested, tree), tree)


def weights(w):
    return {"w": w, "b": np.zeros(2)}


V = int8(2, 2)
ONE = on_device([[1.0]])
FACTORS = on_device(np.ones((2, 1))), on_device(np.ones((1, 2)))
FOUR = on_device(V.q, jnp.int4)


OTHERS = {
    "an array": (weights(np.ones((2, 2), np.float32)), "w/scale is not in `like`"),
    "blocks": (weights(replace(V, scale=ONE)), r"float32\[1,2\] there and float32\[1,1\]"),
    "dtype": (weights(replace(V, scale=on_device(V.scale, jnp.bfloat16))), "and bfloat16"),
    "bits": (weights(replace(V, q=FOUR)), r"w/q is int8\[2,2\] there and int4\[2,2\]"),
    "metadata": (weights(replace(V, activations="dynamic")), "activations='dynamic'"),
    "too few": ({"w": V}, "b is not in `like`"),
    "too many": ({**weights(V), "c": 1.0}, "c is missing there"),
    "all": ({"c": 1.0}, "c is missing there"),
    "more than are named": ({"c": 1.0, "d": 1.0}, "c is missing there"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_structures_are_refused(name):
    like, told = OTHERS[name]
    refused = f"from_storable: what was stored differs.*{told}"
    with pytest.raises(ValueError, match=refused) as error:
        from_storable(to_storable(weights(V)), like)
    assert str(error.value).endswith("; ...") == (name == "more than are named")


def test_formats_that_differ_in_metadata_alone_are_refused():
    """The bytes of the one would be other numbers as the other."""
    codes = on_device(V.q, np.uint8)
    first, second = (values.Float8(codes, ONE, d) for d in ("float8_e4m3fn", "float8_e5m2"))
    with pytest.raises(ValueError, match="float8_e4m3fn.*there.*float8_e5m2"):
        from_storable(to_storable(first), second)


def test_damaged_and_foreign_arrays_are_refused():
    tree = weights(V)
    arrays = to_storable(tree)
    lacking = {name: x for name, x in arrays.items() if name != "w/q"}
    for wrong, told in [
        ({"w": np.ones(3)}, "was not stored by jaxrewrite.checkpoints"),
        ({**arrays, "jaxrewrite": arrays["jaxrewrite"][:-1]}, "missing or damaged"),
        ({**arrays, "jaxrewrite": np.frombuffer(b"[1]", np.uint8)}, "missing or damaged"),
        (lacking, "lacks an array: w/q"),
        ({**arrays, "more": np.ones(2)}, "has an array too many: more"),
        (
            {**arrays, "w/q": arrays["w/q"][:1]},
            r"w/q should be int8\[2,2\] and is int8\[1,2\]",
        ),
        ({**arrays, "w/q": "text"}, r"w/q should be int8\[2,2\] and is a str"),
    ]:
        with pytest.raises(ValueError, match=f"from_storable: .*{told}"):
            from_storable(wrong, tree)
    about = {**json.loads(bytes(arrays["jaxrewrite"])), "version": 99}
    later = np.frombuffer(json.dumps(about).encode(), np.uint8)
    with pytest.raises(ValueError, match="version 99 of the format"):
        from_storable({**arrays, "jaxrewrite": later}, tree)


def test_leaves_that_have_no_name_of_their_own_are_refused():
    with pytest.raises(ValueError, match="'a/b' belongs to another"):
        to_storable({"a/b": np.ones(1), "a": {"b": np.ones(1)}})
    for name in ("jaxrewrite", "__metadata__"):
        with pytest.raises(ValueError, match="what a file says of itself"):
            to_storable({name: np.ones(1)})


def test_what_has_no_plain_form_is_refused():
    with pytest.raises(
        ValueError, match="to_storable: n: the number .* does not fit 64 bits"
    ):
        to_storable({"n": 2**70})
    strange = (np.longdouble, np.clongdouble, "datetime64[s]", "U1", jax.dtypes.float0)
    for dtype in (*strange, ml_dtypes.float6_e2m3fn, ml_dtypes.float6_e3m2fn):
        with pytest.raises(
            ValueError, match="to_storable: x: arrays of dtype .* can't be stored"
        ):
            to_storable({"x": np.zeros(2, dtype)})


def test_functions_among_the_leaves_are_those_of_like():
    tree, like = ({"f": f, "w": V, "name": "x"} for f in (np.tanh, np.sin))
    back = from_storable(to_storable(tree), like)
    assert back["f"] is np.sin
    same(back["w"], V)


def test_without_safetensors_the_error_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    for call in (
        lambda: save(tmp_path / "it", {"w": V}),
        lambda: load(tmp_path / "it", {"w": V}),
        lambda: save_adapter(tmp_path / "new", {"w": values.Lora(V, *FACTORS)}),
    ):
        with pytest.raises(ImportError, match="pip install safetensors.*to_storable"):
            call()
    assert not list(tmp_path.iterdir())


# --- libraries ---------------------------------------------------------------------------


def test_flax_serialises_values():
    tree = few()
    zeros = jax.tree.map(np.zeros_like, tree)
    same(
        flax.serialization.from_bytes(zeros, flax.serialization.to_bytes(tree)), tree, False
    )
    arrays = flax.serialization.msgpack_restore(
        flax.serialization.to_bytes(to_storable(tree))
    )
    same(from_storable(arrays, tree), tree)


def test_flax_refuses_another_type():
    stored = flax.serialization.to_bytes(weights(V))
    for other in (values.LowRank(ONE, ONE), replace(V, zero=V.q)):
        with pytest.raises(ValueError, match="has the fields .* at path ./w"):
            flax.serialization.from_bytes(weights(other), stored)


def test_flax_knows_classes_that_are_defined_later():
    class Late(jaxrewrite.ArrayValue):
        x: jax.Array

        def materialise(self):
            return self.x

    tree = optax.TraceState({"late": Late(np.arange(3))})
    back = flax.serialization.from_bytes(tree, flax.serialization.to_bytes(tree))
    same(back, tree)


def test_equinox_serialises_plain_arrays_of_values(tmp_path):
    tree = few()
    like = abstract(tree)
    eqx.tree_serialise_leaves(tmp_path / "it.eqx", to_storable(tree))
    arrays = eqx.tree_deserialise_leaves(tmp_path / "it.eqx", to_storable(like))
    same(from_storable(arrays, like), tree)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_orbax_does_not_cast_what_is_stored_so(tmp_path):
    ocp = pytest.importorskip("orbax.checkpoint", reason="it stores something by Orbax")
    checkpointer = ocp.StandardCheckpointer()
    checkpointer.save(tmp_path / "it", to_storable(weights(V)))
    checkpointer.wait_until_finished()
    half = weights(replace(V, scale=on_device(V.scale, jnp.bfloat16)))
    arrays = checkpointer.restore(tmp_path / "it", to_storable(half))
    with pytest.raises(ValueError, match="w/scale is float32.*there and bfloat16"):
        from_storable(arrays, half)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_what_holds_no_numbers_goes_through_orbax_so(tmp_path):
    ocp = pytest.importorskip("orbax.checkpoint", reason="it stores something by Orbax")
    tree = {
        "zero": values.Zero((2, 3)),
        "scaled": 2.0 * values.Identity(3),
        "w": jnp.ones(2),
    }
    checkpointer = ocp.StandardCheckpointer()
    checkpointer.save(tmp_path / "it", to_storable(tree))
    checkpointer.wait_until_finished()
    arrays = checkpointer.restore(tmp_path / "it", to_storable(abstract(tree)))
    same(from_storable(arrays, abstract(tree)), tree)


def test_training_goes_on_from_a_checkpoint_bit_for_bit(no_leak_checks):
    """QLoRA: four-bit weights, adapters, and the moments of an optimiser."""
    a = np.linspace(-0.1, 0.1, 128, dtype=np.float32).reshape(64, 2)
    params = {"w": values.Lora(nf4(64, 4), jnp.asarray(a), jnp.zeros((2, 4)))}
    labels = values.freeze(params, {values.Lora: ["w"]})
    trained, rest = values.partition(params, labels)
    optimiser = optax.adamw(0.1)
    x = jnp.asarray(np.linspace(0, 1, 128, dtype=np.float32).reshape(2, 64))
    loss = jaxrewrite.transform(
        lambda p, x: ((x @ p["w"] - 1) ** 2).sum(), materialise="forbid"
    )

    @jax.jit
    def step(state):
        trained, rest, moments = state
        value, gradient = jax.value_and_grad(
            lambda trained: loss(values.combine(trained, rest), x)
        )(trained)
        updates, moments = optimiser.update(gradient, moments, trained)
        return (optax.apply_updates(trained, updates), rest, moments), value

    def steps(state, count):
        losses = []
        for _ in range(count):
            state, value = step(state)
            losses.append(float(value))
        return state, losses

    begin = (trained, rest, optimiser.init(trained))
    half, _ = steps(begin, 2)
    whole, want = steps(half, 3)
    resumed = from_storable(through_npz(jax.device_get(to_storable(half))), begin)
    got_state, got = steps(resumed, 3)
    assert got == want and want[-1] < want[0]
    same(got_state, whole)


class Leaf(jaxrewrite.ArrayValue):
    leaf: jax.Array

    def materialise(self):
        return self.leaf


def test_the_dtype_of_a_field_with_the_name_of_the_whole_is_checked():
    stored = to_storable(Leaf(on_device(np.arange(4), jnp.int4)))
    other = Leaf(on_device(np.arange(4), jnp.uint4))
    with pytest.raises(ValueError, match=r"Leaf\(\) of int4\[4\] there and .* uint4\[4\]"):
        from_storable(stored, other)


@pytest.mark.parametrize("number", [2**63 + 5, 2**64 - 1, -(2**63), 0])
def test_integers_of_64_bits_come_back(number):
    for like in (0, 2**63):
        assert from_storable(to_storable({"seed": number}), {"seed": like}) == {
            "seed": number
        }

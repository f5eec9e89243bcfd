"""LoRA adapters in the files of peft, against files and numbers made by NumPy alone."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import peft_files
import pytest
from checkpoints_examples import int8, nf4, on_device, same
from choose import often
from peft_files import factors, key, linear

import jaxrewrite
from jaxrewrite.values import NF4, Dora, Lora, Rescaled, Sum, Unitful, adapt, dropout


pytest.importorskip("safetensors", reason="adapters are files of the package safetensors")

from jaxrewrite.checkpoints import _adapters, _peft, load_adapter, save_adapter  # noqa: E402


RNG = np.random.default_rng(0)


def numbers(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def params():
    """A small model in the manner of Flax: kernels are (in, out)."""
    return {
        "first": {"kernel": jnp.asarray(numbers(6, 4)), "bias": jnp.asarray(numbers(4))},
        "second": {"kernel": jnp.asarray(numbers(4, 3))},
    }


def model(p, x):
    return jnp.tanh(x @ p["first"]["kernel"] + p["first"]["bias"]) @ p["second"]["kernel"]


def in_numpy(p, x, tensors, scalings, names=("first", "second")):
    """What peft computes with the weights of PyTorch, which are (out, in)."""
    first, second = (np.asarray(p[layer]["kernel"]).T for layer in ("first", "second"))
    hidden = linear(x, first, tensors, names[0], scalings[0]) + np.asarray(
        p["first"]["bias"]
    )
    return linear(np.tanh(hidden), second, tensors, names[1], scalings[1])


def run(p, x):
    return jax.jit(jaxrewrite.transform(model, materialise="forbid"))(p, x)


X = numbers(5, 6)

# Fields of the configuration, and the scales of the two layers that follow.
SCALINGS = {
    "alpha": ({"r": 2, "lora_alpha": 3}, (1.5, 1.5)),
    "rslora": ({"r": 2, "lora_alpha": 3, "use_rslora": True}, (3 / 2**0.5,) * 2),
    "patterns": (
        {"r": 9, "rank_pattern": {"fir.t": 2, "second": 2}, "alpha_pattern": {"second": 8}},
        (4.0, 4.0),
    ),
    "first of two patterns": (
        {"r": 2, "lora_alpha": 1, "alpha_pattern": {".*d": 6, "second": 8}},
        (0.5, 3.0),
    ),
    "fan_in_fan_out": ({"r": 2, "lora_alpha": 2, "fan_in_fan_out": True}, (1.0, 1.0)),
}


@pytest.mark.parametrize("name", often(SCALINGS, ["patterns"]))
def test_a_file_of_another_program_computes_the_same(name, tmp_path):
    config, scalings = SCALINGS[name]
    tensors = {**factors(RNG, "first", 6, 4, 2), **factors(RNG, "second", 4, 3, 2)}
    peft_files.write(tmp_path / "adapter", tensors, **config)
    p = params()
    adapted = load_adapter(tmp_path / "adapter", p)
    assert adapted["first"]["kernel"].w is p["first"]["kernel"]
    want = in_numpy(p, X, tensors, scalings)
    np.testing.assert_allclose(run(adapted, X), want, rtol=1e-5, atol=1e-5)


def adapted_by_hand(scales=(0.5, 1 / 3), ranks=(2, 3)):
    p = params()
    for (layer, n, m), scale, rank in zip(
        [("first", 6, 4), ("second", 4, 3)], scales, ranks, strict=True
    ):
        a, b = jnp.asarray(numbers(n, rank)), jnp.asarray(numbers(rank, m))
        p[layer]["kernel"] = Lora(p[layer]["kernel"], a, b, scale)
    return p


@pytest.mark.parametrize("use_rslora", often([False, True], [False]))
def test_what_is_written_is_what_peft_reads(use_rslora, tmp_path):
    p = adapted_by_hand()
    config = {"base_model_name_or_path": "tiny", "task_type": "CAUSAL_LM"}
    save_adapter(tmp_path / "new" / "it", p, use_rslora=use_rslora, config=config)
    here = tmp_path / "new" / "it"
    assert {x.name for x in here.iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    told = json.loads((here / "adapter_config.json").read_text())
    assert {k: told[k] for k in config} == config and told["peft_type"] == "LORA"
    assert told["target_modules"] == ["first", "second"]
    tensors = peft_files.read_safetensors(here / "adapter_model.safetensors")
    shapes = {name: x.shape for name, x in tensors.items()}
    assert shapes == {
        key("first", "A"): (2, 6),
        key("first", "B"): (4, 2),
        key("second", "A"): (3, 4),
        key("second", "B"): (3, 3),
    }
    scalings = []
    for layer in ("first", "second"):
        rank = told["rank_pattern"].get(layer, told["r"])
        alpha = told["alpha_pattern"].get(layer, told["lora_alpha"])
        scalings.append(alpha / (rank**0.5 if use_rslora else rank))
    bare = jax.tree.map(lambda v: v.w if isinstance(v, Lora) else v, p, is_leaf=is_lora)
    want = in_numpy(bare, X, tensors, scalings)
    np.testing.assert_allclose(run(p, X), want, rtol=1e-5, atol=1e-5)
    same(load_adapter(here, bare), p)


def is_lora(x):
    return isinstance(x, Lora)


def test_names_of_modules_and_weights_of_equinox(tmp_path):
    """Weights that are (out, in), and one that is a stack of two layers."""
    p = {
        "up": {"weight": Lora(numbers(3, 4), numbers(3, 2), numbers(2, 4), 2.0)},
        "layers": Lora(numbers(2, 4, 4), numbers(2, 4, 1), numbers(2, 1, 4), 0.25),
        "scale": np.ones(3, np.float32),
    }
    names = {
        "up/weight": "model.up_proj",
        "layers": ["model.layers.0.q", "model.layers.1.q"],
    }
    save_adapter(tmp_path, p, names=names, layout="out_in")
    tensors = peft_files.read_safetensors(tmp_path / "adapter_model.safetensors")
    np.testing.assert_array_equal(tensors[key("model.up_proj", "A")], p["up"]["weight"].b)
    np.testing.assert_array_equal(tensors[key("model.up_proj", "B")], p["up"]["weight"].a)
    np.testing.assert_array_equal(tensors[key("model.layers.1.q", "B")], p["layers"].a[1])
    bare = jax.tree.map(lambda v: v.w if isinstance(v, Lora) else v, p, is_leaf=is_lora)
    # The rows of a new adapter are the inputs.
    with_inputs_first = jax.tree.map(exchanged, p, is_leaf=is_lora)
    for found in (names, names.get):
        back = load_adapter(tmp_path, bare, names=found, layout="out_in")
        same(back, with_inputs_first, kinds=False)
        same(load_adapter(tmp_path, p, names=found, layout="out_in"), p, kinds=False)


def exchanged(v):
    """The same change, whose rows are the columns of the other."""
    if not is_lora(v):
        return v
    a, b = (np.swapaxes(x, -1, -2) for x in (v.b, v.a))
    return Lora(v.w, a, b, v.scale, v.cols, v.rows)


@pytest.mark.parametrize("layout", ["in_out", "out_in"])
def test_dropout_of_an_adapter_that_was_loaded_drops_inputs(tmp_path, layout):
    tensors = factors(RNG, "first", 8, 8, 8)
    tensors = {name: np.eye(8, dtype="float32") for name in tensors}
    peft_files.write(tmp_path, tensors, r=8, lora_alpha=8)
    loaded = load_adapter(tmp_path, {"first": {"kernel": jnp.zeros((8, 8))}}, layout=layout)
    dropped = dropout(loaded, 0.5, jax.random.key(0))["first"]["kernel"]
    multiply = (lambda v, x: x @ v) if layout == "in_out" else (lambda v, x: x @ v.T)
    seen = jaxrewrite.transform(multiply, materialise="forbid")(dropped, jnp.ones((5, 8)))
    assert set(np.unique(seen)) == {0.0, 2.0}


def test_rows_may_be_the_inputs_wherever_they_lie(tmp_path):
    """As `weight_axes` has them: (out, in) with rows=(1,)."""
    v = Lora(numbers(3, 4), numbers(4, 2), numbers(2, 3), 2.0, rows=[1], cols=[0])
    save_adapter(tmp_path, {"up": {"weight": v}}, layout="out_in")
    tensors = peft_files.read_safetensors(tmp_path / "adapter_model.safetensors")
    np.testing.assert_array_equal(tensors[key("up", "A")], v.a.T)
    np.testing.assert_array_equal(tensors[key("up", "B")], v.b.T)
    same(
        load_adapter(tmp_path, {"up": {"weight": v}}, layout="out_in"),
        {"up": {"weight": v}},
        kinds=False,
    )


OUT_IN = {
    "embed/weight": ((11, 6), (0,), (1,)),
    "conv/weight": ((5, 6, 3, 2), (1, 2, 3), (0,)),
    "layers/weight": ((2, 4, 5), (2,), (1,)),
}
IN_OUT = {
    "embed/embedding": ((11, 6), (0,), (1,)),
    "conv/kernel": ((3, 2, 6, 5), (0, 1, 2), (3,)),
    "layers/kernel": ((2, 5, 4), (1,), (2,)),
}


@pytest.mark.parametrize("cls", [Lora, Dora])
@pytest.mark.parametrize("layout, weights", [("in_out", IN_OUT), ("out_in", OUT_IN)])
def test_embeddings_convolutions_and_lengths_of_columns(layout, weights, cls, tmp_path):
    params: dict = {}
    for path, (shape, rows, cols) in weights.items():
        sizes = [[shape[i] for i in axes] for axes in (rows, cols)]
        batch = [n for i, n in enumerate(shape) if i not in (*rows, *cols)]
        a, b = numbers(*batch, *sizes[0], 2), numbers(*batch, 2, *sizes[1])
        lengths = numbers(*[1 if i in rows else n for i, n in enumerate(shape)])
        more = [lengths] if cls is Dora else []
        module, last = path.split("/")
        params[module] = {last: cls(numbers(*shape), a, b, *more, 0.5, rows, cols)}
    names = lambda path: ["l.0", "l.1"] if "layers" in path else path.split("/")[0]
    kinds = {path: kind(path) for path in weights}
    save_adapter(tmp_path, params, names=names, layout=layout, kinds=kinds)
    tensors = peft_files.read_safetensors(tmp_path / "adapter_model.safetensors")
    shapes = {
        "conv.lora_A.weight": (2, 6, 3, 2),
        "conv.lora_B.weight": (5, 2, 1, 1),
        "embed.lora_embedding_A": (2, 11),
        "embed.lora_embedding_B": (6, 2),
        **{
            f"l.{i}.lora_{x}.weight": s
            for i in (0, 1)
            for x, s in (("A", (2, 5)), ("B", (4, 2)))
        },
    }
    if cls is Dora:
        shapes |= {"conv.lora_magnitude_vector": (1, 5, 1, 1)}
        shapes |= {f"{name}.lora_magnitude_vector": (n,) for name, n in DORA.items()}
    assert {
        name.removeprefix("base_model.model."): x.shape for name, x in tensors.items()
    } == shapes
    kernel = params["conv"][weights_of("conv", weights)]
    a = tensors["base_model.model.conv.lora_A.weight"]
    np.testing.assert_array_equal(
        np.moveaxis(a, (0, 1), (-1, -2) if layout == "in_out" else (-1, 0)), kernel.a
    )
    same(load_adapter(tmp_path, params, names=names, layout=layout), params, kinds=False)
    bare = jax.tree.map(lambda v: v.w, params, is_leaf=lambda v: isinstance(v, cls))
    loaded = load_adapter(tmp_path, bare, names=names, layout=layout)
    for module, leaves in params.items():
        for last, v in leaves.items():
            np.testing.assert_allclose(dense(loaded[module][last]), dense(v), rtol=1e-5)


DORA = {"embed": 6, "l.0": 4, "l.1": 4}
dense = lambda v: jaxrewrite.materialise(v)
kind = lambda path: {"e": "embedding", "c": "convolution", "l": "linear"}[path[0]]
weights_of = lambda module, weights: next(
    path.split("/")[1] for path in weights if path.startswith(module)
)


def test_lengths_of_inputs_are_not_those_of_peft(tmp_path):
    v = Dora(numbers(3, 4), numbers(3, 2), numbers(2, 4), numbers(1, 4))
    with pytest.raises(ValueError, match="the lengths of up/weight are of its inputs"):
        save_adapter(tmp_path, {"up": {"weight": v}}, layout="out_in")
    both = {"a": v, "b": v.lora}
    with pytest.raises(ValueError, match="there are Lora and Dora weights"):
        save_adapter(tmp_path, both)
    with pytest.raises(ValueError, match="kinds gives 'conv' for a; it must be one of"):
        save_adapter(tmp_path, both, kinds={"a": "conv"})


def test_kernels_of_several_axes_keep_them(tmp_path):
    """An attention kernel of Flax, (features, heads, head size), is one layer of PyTorch."""
    kernel = Lora(
        numbers(4, 2, 3), numbers(4, 2), numbers(2, 2, 3), 1.0, rows=[0], cols=[1, 2]
    )
    save_adapter(tmp_path, {"query": {"kernel": kernel}})
    tensors = peft_files.read_safetensors(tmp_path / "adapter_model.safetensors")
    np.testing.assert_array_equal(tensors[key("query", "B")], kernel.b.reshape(2, 6).T)
    first = Lora(kernel.w, numbers(4, 1), numbers(1, 2, 3), 1.0, rows=[0], cols=[1, 2])
    other = {"query": {"kernel": first}}
    back = load_adapter(tmp_path, other)["query"]["kernel"]
    np.testing.assert_array_equal(back.b, kernel.b)
    assert back.rank == 2 and (back.rows, back.cols) == (first.rows, first.cols)


def test_an_adapted_stack_takes_the_adapters_of_a_sequence_of_modules():
    w = Lora(*map(jnp.asarray, (numbers(3, 4, 5), numbers(3, 4, 2), numbers(3, 2, 5))))
    like = _peft.Adapter(numbers(2, 4), numbers(5, 2), 1.0)
    base, *axes = _adapters._axes("w", w, (3,), like, True)
    assert base is w.w and axes == [w.rows, w.cols, w.frozen]
    with pytest.raises(ValueError, match="one module. A matrix has one"):
        _adapters._axes("w", w, (), like, True)


@pytest.mark.parametrize("layout", ["in_out", "out_in"])
@pytest.mark.parametrize("shape", [(3, 4), (3, 3, 4), (4,)])
def test_a_matrix_does_not_take_the_adapter_of_a_convolution(tmp_path, shape, layout):
    a, b = (key("first", name) for name in "AB")
    tensors = {a: numbers(2, 3, 3, 3), b: numbers(4, 2, 1, 1)}
    peft_files.write(tmp_path, tensors, r=2)
    p = {"first": {"kernel": jnp.ones(shape)}}
    with pytest.raises(ValueError, match="convolution for it, of a kernel with 4 axes"):
        load_adapter(tmp_path, p, layout=layout)


def test_another_file_takes_the_place_of_adapters(tmp_path):
    """Of those that it lacks, too; quantised weights stay as they are."""
    base = {"first": {"kernel": int8(6, 4)}, "second": {"kernel": nf4(4, 3)}}
    both = {**factors(RNG, "first", 6, 4, 2), **factors(RNG, "second", 4, 3, 2)}
    peft_files.write(tmp_path / "both", both, r=2)
    peft_files.write(tmp_path / "one", factors(RNG, "second", 4, 3, 1), r=1)
    first = load_adapter(tmp_path / "both", base)
    second = load_adapter(tmp_path / "one", first)
    assert first["first"]["kernel"].rank == 2 and second["second"]["kernel"].rank == 1
    assert second["first"]["kernel"] is base["first"]["kernel"]
    assert second["second"]["kernel"].w is base["second"]["kernel"]


def test_names_that_end_alike_keep_their_ranks(tmp_path):
    """A pattern of peft also matches the end of a longer name."""
    weight = lambda rank: Lora(numbers(2, 2), numbers(2, rank), numbers(rank, 2), 1 / rank)
    p = {"q": weight(1), "x": {"q": weight(2)}, "a.q": weight(1), "y": {"q": weight(2)}}
    save_adapter(tmp_path, p)
    bare = jax.tree.map(lambda v: v.w, p, is_leaf=is_lora)
    same(load_adapter(tmp_path, bare), p, kinds=False)


def test_names_that_end_alike_keep_their_scales_in_the_order_of_the_file(tmp_path):
    """The file is sorted, so that the pattern "enc.q" is before "vision.enc.q", which it matches."""
    weight = lambda scale: Lora(numbers(2, 2), numbers(2, 1), numbers(1, 2), scale)
    p = {"a": weight(1.0), "b": weight(2.0), "c": weight(3.0), "d": weight(3.0)}
    names = {"a": "vision.enc.q", "b": "enc.q", "c": "k", "d": "v"}
    save_adapter(tmp_path, p, names=names)
    bare = jax.tree.map(lambda v: v.w, p, is_leaf=is_lora)
    same(load_adapter(tmp_path, bare, names=names), p, kinds=False)


def test_a_name_that_is_no_pattern_keeps_its_rank(tmp_path):
    weight = lambda rank: Lora(numbers(2, 2), numbers(2, rank), numbers(rank, 2))
    p = {"(": weight(1), "b": weight(2), "c": weight(2)}
    save_adapter(tmp_path, p)
    bare = jax.tree.map(lambda v: v.w, p, is_leaf=is_lora)
    same(load_adapter(tmp_path, bare), p, kinds=False)


def test_a_name_that_is_another_pattern_has_its_own_number(tmp_path):
    """peft looks for the name itself where no pattern matches."""
    tensors = factors(RNG, "c+d", 2, 3, 1)
    peft_files.write(tmp_path, tensors, r=1, lora_alpha=1, alpha_pattern={"c+d": 4})
    assert load_adapter(tmp_path, {"c+d": np.zeros((2, 3))})["c+d"].scale == 4


# --- what is refused ---------------------------------------------------------------------


def good():
    return {**factors(RNG, "first", 6, 4, 2), **factors(RNG, "second", 4, 3, 2)}


def without(tensors, name):
    return {k: x for k, x in tensors.items() if k != name}


# What peft writes of an adapter that it began by LoftQ, with the options that it has by default.
LOFTQ = {
    "init_lora_weights": "loftq",
    "loftq_config": {"loftq_bits": 4, "loftq_iter": 1},
}


# Fields of the configuration, a change of the tensors, and what the error says.
WRONG = {
    "DoRA": ({"use_dora": True}, {}, "has no lora_magnitude_vector"),
    "unknown field": ({"use_novelty": 3}, {}, "use_novelty=3: what that means"),
    "other method": ({"peft_type": "OFT"}, {}, "peft_type 'OFT'; only .* LORA, VERA, IA3"),
    "fields of another method": ({"peft_type": "IA3"}, {}, "has lora_alpha=8, r=2: what"),
    "random matrices": (
        {"peft_type": "VERA", "lora_alpha": None},
        {},
        "has no base_model.vera_A and",
    ),
    "biases": ({"bias": "all"}, {}, "bias='all'"),
    "changed base": ({"init_lora_weights": "olora"}, {}, "also changes the base weights"),
    "LoftQ in no bits": ({"init_lora_weights": "loftq"}, {}, "LoftQ with loftq_config={}"),
    "LoftQ in 8 bits": (
        {"init_lora_weights": "loftq", "loftq_config": {"loftq_bits": 8, "loftq_iter": 1}},
        {},
        "Only loftq_bits=4 and loftq_iter=1 are read",
    ),
    "LoftQ in turns": (
        {"init_lora_weights": "loftq", "loftq_config": {"loftq_bits": 4, "loftq_iter": 2}},
        {},
        "Further turns take singular values.* Load these weights",
    ),
    "LoftQ of a transpose": (
        {**LOFTQ, "fan_in_fan_out": True},
        {},
        "LoftQ with fan_in_fan_out, where peft",
    ),
    "LoftQ of an embedding": (
        LOFTQ,
        {
            "base_model.model.e.lora_embedding_A": np.ones((2, 5), np.float32),
            "base_model.model.e.lora_embedding_B": np.ones((4, 2), np.float32),
        },
        "has LoftQ, and e is no linear layer",
    ),
    "whole modules": ({"modules_to_save": ["head"]}, {}, r"modules_to_save=\['head'\]"),
    "rank": ({"r": 4}, {}, "first has rank 4 by .*, but lora_A of shape"),
    "no rank": ({"r": 0}, {}, "has r=0"),
    "text": ({"lora_alpha": "8"}, {}, "has lora_alpha='8'"),
    "a number that is no float": ({"lora_alpha": 10**400}, {}, "has lora_alpha=1000"),
    "pattern": ({"rank_pattern": {"(": 2}}, {}, "has the pattern"),
    "kinds": ({"peft_type": ["LORA"]}, {}, r"has the peft_type \['LORA'\]"),
    **{
        f"inputs by {x!r}": (
            {"peft_type": "IA3", "r": None, "lora_alpha": None, "feedforward_modules": x},
            {},
            "has feedforward_modules=.* which is neither a pattern nor a list",
        )
        for x in ("(", 5, [1])
    },
    "magnitudes": (
        {},
        {"base_model.model.first.lora_magnitude_vector": np.ones(4, np.float32)},
        "use_dora=False, and first has a lora_magnitude_vector",
    ),
    "convolution": ({}, {key("c", "A"): np.ones((2, 1, 3, 3), np.float32)}, "no lora_B"),
    "integers": ({}, {key("c", "A"): np.ones((2, 2), np.uint8)}, "has a tensor"),
    "a whole model": ({}, {"first.weight": np.ones((4, 6), np.float32)}, "has a tensor"),
    "one factor": ({}, {key("third", "A"): np.ones((2, 4), np.float32)}, "no lora_B"),
    "unknown module": (
        {},
        {key("third", n): np.ones((2, 2), np.float32) for n in "AB"},
        "no weight of this pytree has the module third",
    ),
    "shape": (
        {},
        {key("second", "B"): np.ones((5, 2), np.float32)},
        r"from 4 to 5 features, but second/kernel has shape \((\d), (\d)\), "
        r"which is from \1 to \2 with",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_adapters_that_would_be_another_model_are_refused(name, tmp_path):
    config, tensors, told = WRONG[name]
    peft_files.write(tmp_path, {**good(), **tensors}, **{"r": 2, **config})
    # What does not fit the parameters is told of by its module, and the rest by its file.
    is_of_parameters = name in ("rank", "unknown module", "shape")
    of = "" if is_of_parameters else f"{tmp_path}/adapter_(config.json|model.safetensors) "
    with pytest.raises(ValueError, match=f"load_adapter: {of}.*{told}"):
        load_adapter(tmp_path, params())


def test_files_that_are_cut_off_are_refused(tmp_path):
    peft_files.write(tmp_path, good(), r=2)
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        path = tmp_path / name
        whole = path.read_bytes()
        for length in (0, 4, 8, 9, 40, len(whole) // 2, len(whole) - 5):
            path.write_bytes(whole[:length])
            with pytest.raises(ValueError, match=f"load_adapter: .*{name} is not"):
                load_adapter(tmp_path, params())
        path.unlink()
        with pytest.raises(FileNotFoundError, match=f"no file .*{name}"):
            load_adapter(tmp_path, params())
        path.write_bytes(whole)
    load_adapter(tmp_path, params())
    path.write_text("[" * 100_000)
    with pytest.raises(ValueError, match="load_adapter: .*not whole JSON"):
        load_adapter(tmp_path, params())


def test_names_that_do_not_fit(tmp_path):
    p = adapted_by_hand()
    save_adapter(tmp_path, p)
    one = {"first/kernel": "first"}
    first = lambda path: "first" if path.endswith("kernel") else None
    for names, told in [
        (
            {**one, "second/kernel": "third"},
            "no adapter for the module third of second/kernel",
        ),
        (one, "no weight of this pytree has the module second"),
        (
            {**one, "second/kernel": "second", "third/kernel": "third"},
            "names has third/kernel, which is no weight",
        ),
        (lambda path: 3, "names gives 3 for first/"),
        (first, "two weights have the module first"),
        (
            lambda path: ["first", "second"] if path == "first/kernel" else None,
            "and a sequence of 2 modules",
        ),
    ]:
        with pytest.raises(ValueError, match=f"load_adapter: .*{told}"):
            load_adapter(tmp_path, params(), names=names)
    whole = params()
    whole["second"]["kernel"] = whole["second"]["kernel"].astype(int)
    with pytest.raises(ValueError, match="second/kernel has dtype int32"):
        load_adapter(tmp_path, whole)
    for names, told in [
        (one, "no module for second/kernel"),
        (first, "two weights have the module first"),
        (lambda path: ["a", "b"], "first/kernel is one weight; .* where one module is"),
        (lambda path: [1], r"names gives \[1\] for first/kernel"),
    ]:
        with pytest.raises(ValueError, match=f"save_adapter: .*{told}"):
            save_adapter(tmp_path / "none", p, names=names)
    for tree, more, told in [
        (params(), {}, "there is no Lora"),
        (p["first"], {}, "the module of kernel has no name"),
        (p["first"]["kernel"], {}, "the module of this Lora has no name"),
        (p["first"], {"names": {"kernel": ""}}, "the module of kernel has no name"),
        (
            {"w": Unitful(p["first"]["kernel"], "m")},
            {},
            "w is a Unitful with a Lora inside",
        ),
        (
            {"w": Sum((p["first"]["kernel"], jnp.ones((6, 4))))},
            {},
            "w is a Sum with a Lora inside",
        ),
        (p, {"config": {"r": 3}}, "r follows from the other arguments"),
        (p, {"layout": "nm"}, "layout is 'nm'"),
    ]:
        with pytest.raises(ValueError, match=f"save_adapter: .*{told}"):
            save_adapter(tmp_path / "none", tree, **more)
    assert not (tmp_path / "none").exists()


def test_what_fails_while_it_is_written_leaves_nothing_and_the_old_files(
    tmp_path, monkeypatch
):
    p = adapted_by_hand()
    save_adapter(tmp_path / "old", p)
    files = {x: x.read_bytes() for x in (tmp_path / "old").iterdir()}
    for directory in ("old", "new"):
        with pytest.raises(TypeError, match="not JSON serializable"):
            save_adapter(tmp_path / directory, p, config={"revision": object()})

    def fail(*args, **kwargs):
        raise OSError("no space left")

    import safetensors.numpy

    monkeypatch.setattr(safetensors.numpy, "save_file", fail)
    for directory in ("old", "new"):
        with pytest.raises(OSError, match="no space left"):
            save_adapter(tmp_path / directory, p)
    assert {x: x.read_bytes() for x in (tmp_path / "old").iterdir()} == files
    assert not (tmp_path / "new").exists()


def test_factors_keep_the_dtype_of_the_file(tmp_path):
    tensors = factors(RNG, "first", 6, 4, 2, np.float16)
    peft_files.write(tmp_path, tensors, r=2)
    weight = load_adapter(tmp_path, params())["first"]["kernel"]
    assert (weight.a.dtype, weight.dtype) == (jnp.float16, jnp.float32)
    half = {
        "first": {
            "kernel": Lora(numbers(2, 2), *[on_device(np.ones((2, 2)), jnp.bfloat16)] * 2)
        }
    }
    save_adapter(tmp_path / "bfloat16", half)
    same(
        load_adapter(
            tmp_path / "bfloat16", {"first": {"kernel": half["first"]["kernel"].w}}
        ),
        half,
    )


# --- vectors --------------------------------------------------------------------------------


def with_multipliers(of_inputs=False, bias=True):
    """Two layers, the first with a multiplier for each output, or input, and its bias with them."""
    p = params()
    kernel, own = p["first"]["kernel"], jnp.asarray(numbers(6 if of_inputs else 4))
    p["first"]["kernel"] = Rescaled(kernel, own[:, None] if of_inputs else own[None])
    if bias:
        p["first"]["bias"] = Rescaled(p["first"]["bias"], own[:4])
    return p


@pytest.mark.parametrize("of_inputs", [False, True])
def test_multipliers_come_back(tmp_path, of_inputs):
    p = with_multipliers(of_inputs, bias=not of_inputs)
    save_adapter(tmp_path, p, names=lambda path: f"block.{path.split('/')[0]}")
    tensors = peft_files.read_safetensors(tmp_path / "adapter_model.safetensors")
    (name,) = tensors
    shape = (1, 6) if of_inputs else (4, 1)
    assert (name, tensors[name].shape) == ("base_model.model.block.first.ia3_l", shape)
    told = json.loads((tmp_path / "adapter_config.json").read_text())
    assert told["feedforward_modules"] == (r"block\.first" if of_inputs else [])
    bare = params()
    names = {"first/kernel": "block.first"}
    got = load_adapter(tmp_path, bare, names=names)
    assert got["first"]["kernel"].w is bare["first"]["kernel"]
    assert isinstance(got["first"]["bias"], Rescaled) != of_inputs
    np.testing.assert_array_equal(got["first"]["kernel"].scale, p["first"]["kernel"].scale)


@pytest.mark.parametrize("old", ["Lora", "Dora", "Rescaled"])
@pytest.mark.parametrize("new", ["Lora", "Dora", "Rescaled"])
def test_an_adapter_takes_the_place_of_one_of_another_kind(tmp_path, old, new):
    w = jnp.asarray(numbers(6, 4))
    lora = Lora(w, jnp.asarray(numbers(6, 2)), jnp.asarray(numbers(2, 4)))
    rescaled = Rescaled(w, jnp.asarray(numbers(1, 4)))
    weights = {"Lora": lora, "Dora": Dora.of(lora), "Rescaled": rescaled}
    save_adapter(tmp_path, {"first": {"kernel": weights[new]}})
    got = load_adapter(tmp_path, {"first": {"kernel": weights[old]}})["first"]["kernel"]
    assert type(got).__name__ == new
    if old == "Rescaled" != new:  # Its numbers may be those of the weight.
        assert got.w is rescaled
        got = dataclasses.replace(got, w=w)
    assert got.w is w
    same(got, weights[new])


def test_multipliers_of_a_quantised_weight_stay_under_factors(tmp_path):
    """As parts of a weight that AWQ has fitted have them, also where the file has no adapter."""
    scaled = lambda: Rescaled(int8(6, 4), jnp.asarray(numbers(6, 1)))
    p = {"first": {"kernel": scaled()}, "second": {"kernel": scaled()}}
    tensors = factors(RNG, "first", 6, 4, 2)
    peft_files.write(tmp_path / "theirs", tensors, r=2, lora_alpha=2)
    adapted = load_adapter(tmp_path / "theirs", p)
    assert adapted["second"]["kernel"] is p["second"]["kernel"]
    kernel = adapted["first"]["kernel"]
    assert isinstance(kernel, Lora) and kernel.w is p["first"]["kernel"]
    w = np.asarray(jaxrewrite.materialise(p["first"]["kernel"]))
    run = jaxrewrite.transform(lambda w, x: x @ w, materialise="forbid")
    want = linear(X, w.T, tensors, "first", 1.0)
    np.testing.assert_allclose(run(kernel, X), want, rtol=1e-4, atol=1e-4)

    both = "Lora and Rescaled weights|Rescaled and Lora weights"
    with pytest.raises(ValueError, match=f"({both}).* let names give None"):
        save_adapter(tmp_path / "ours", adapted)
    with pytest.raises(ValueError, match="names has no module for second/kernel"):
        save_adapter(tmp_path / "ours", adapted, names={"first/kernel": "first"})
    names = {"first/kernel": "first", "second/kernel": None}
    for found in (names, names.get):
        save_adapter(tmp_path / "ours", adapted, names=found)
        same(load_adapter(tmp_path / "ours", p, names=found), adapted)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_multipliers_keep_the_dtype_of_the_file(tmp_path, dtype):
    p = with_multipliers()
    narrow = jax.tree.map(lambda x: x.astype(dtype), params())
    save_adapter(tmp_path / "wide", p)
    got = load_adapter(tmp_path / "wide", narrow)["first"]
    for name in ("kernel", "bias"):
        assert (got[name].dtype, got[name].scale.dtype) == (dtype, "float32")
        np.testing.assert_array_equal(got[name].scale, p["first"][name].scale)
    save_adapter(tmp_path / "again", {"first": got})
    assert_files_agree = lambda *files: np.testing.assert_array_equal(
        *(peft_files.read_safetensors(file)[IA3_OF_FIRST] for file in files)
    )
    name = "adapter_model.safetensors"
    assert_files_agree(tmp_path / "wide" / name, tmp_path / "again" / name)


IA3_OF_FIRST = "base_model.model.first.ia3_l"


def test_stacked_multipliers_of_weights_with_outputs_first(tmp_path):
    w = jnp.asarray(numbers(2, 5, 3))
    p = {"w": Rescaled(w, jnp.asarray(numbers(2, 5, 1)))}
    names = {"w": ["a", "b"]}
    save_adapter(tmp_path, p, names=names, layout="out_in")
    got = load_adapter(tmp_path, {"w": w}, names=names, layout="out_in")
    np.testing.assert_array_equal(got["w"].scale, p["w"].scale)
    with pytest.raises(ValueError, match=r"numbers of shape .* for \['a'\]"):
        save_adapter(tmp_path, p, names={"w": ["a"]}, layout="out_in")


@pytest.mark.parametrize("axis", [2, 3])
def test_multipliers_of_a_convolution_have_axes_for_its_window(tmp_path, axis):
    kernel = jnp.asarray(numbers(3, 2, 4, 5))
    own = jnp.asarray(numbers(*(n if i == axis else 1 for i, n in enumerate(kernel.shape))))
    p = {"conv": {"kernel": Rescaled(kernel, own)}}
    names = {"conv/kernel": "conv"}
    save_adapter(tmp_path, p, names=names)
    tensors = peft_files.read_safetensors(tmp_path / "adapter_model.safetensors")
    assert [x.shape for x in tensors.values()] == [(1, own.size, 1, 1)]
    got = load_adapter(tmp_path, {"conv": {"kernel": kernel}}, names=names)
    np.testing.assert_array_equal(got["conv"]["kernel"].scale, own)


@pytest.mark.parametrize("layout", ["in_out", "out_in"])
@pytest.mark.parametrize("bias", [False, True])
def test_one_multiplier_for_all_comes_back(tmp_path, layout, bias):
    """It is written for each input, or, where the bias has it, too, for each output."""
    one, bare = jnp.full((1, 1), 1.5), params()["first"]
    if layout == "out_in":
        bare["kernel"] = bare["kernel"].T
    p = {"first": {**bare, "kernel": Rescaled(bare["kernel"], one)}}
    if bias:
        p["first"]["bias"] = Rescaled(bare["bias"], one[0])
    names = {"first/kernel": "first"}
    save_adapter(tmp_path, p, names=names, layout=layout)
    got = load_adapter(tmp_path, {"first": bare}, names=names, layout=layout)
    assert got["first"]["kernel"].scale.size == (4 if bias else 6)
    for name in bare:
        np.testing.assert_array_equal(
            *(jaxrewrite.materialise(x["first"][name]) for x in (got, p))
        )


def test_random_factors_of_their_own_are_written_as_lora(tmp_path):
    # The shared matrices are as large as the last kernel needs them.
    p = {**params(), "third": {"kernel": jnp.asarray(numbers(8, 5))}}
    is_kernel = lambda path, leaf: path.endswith("kernel")
    shared = adapt(p, is_kernel, 2, jax.random.key(0), method="vera")
    save_adapter(tmp_path / "vera", shared)
    other = adapt(p, is_kernel, 2, jax.random.key(1), method="vera")
    save_adapter(tmp_path / "lora", {"first": shared["first"], "second": other["second"]})
    kinds = [
        json.loads((tmp_path / name / "adapter_config.json").read_text())["peft_type"]
        for name in ("vera", "lora")
    ]
    assert kinds == ["VERA", "LORA"]
    got = load_adapter(tmp_path / "vera", p)
    for x, y in zip(*map(jax.tree.leaves, (got, shared)), strict=True):
        np.testing.assert_array_equal(x, y)


MISFITS = {
    "bias without": (lambda: with_multipliers(bias=False), "bias does not go with that"),
    "bias of inputs": (lambda: with_multipliers(True), "for its inputs, and first/bias"),
    "bias alone": (
        lambda: {"b": {"bias": Rescaled(jnp.ones(3), jnp.ones(3))}},
        "no weight beside it is",
    ),
    "both": (
        lambda: {"w": Rescaled(jnp.ones((2, 3)), jnp.ones((2, 3)))},
        "along its outputs, or along its inputs",
    ),
    "of a vector": (
        lambda: {"w": Rescaled(jnp.ones(3), jnp.ones(1))},
        "along its outputs, or along its inputs",
    ),
    "several kinds": (
        lambda: {
            **with_multipliers(),
            "other": Lora(jnp.ones((2, 2)), jnp.ones((2, 1)), jnp.ones((1, 2))),
        },
        "there are Rescaled and Lora weights",
    ),
}


@pytest.mark.parametrize("name", MISFITS)
def test_multipliers_that_peft_has_not_are_refused(tmp_path, name):
    make, told = MISFITS[name]
    with pytest.raises(ValueError, match=f"save_adapter: .*{told}"):
        save_adapter(tmp_path, make())


def test_what_does_not_fit_a_file_of_vectors_is_refused(tmp_path):
    save_adapter(tmp_path / "ia3", with_multipliers())
    with pytest.raises(
        ValueError, match="4 numbers for outputs, which do not fit first/kernel"
    ):
        load_adapter(tmp_path / "ia3", {"first": {"kernel": jnp.ones((4, 6))}})
    ones = {
        "base_model.vera_A": np.ones((2, 6), "f4"),
        "base_model.vera_B": np.ones((4, 2), "f4"),
    }
    peft_files.write(tmp_path / "none", ones, peft_type="VERA", lora_alpha=None)
    same(load_adapter(tmp_path / "none", p := params()), p)
    lone = {"base_model.model.first.vera_lambda_b": np.ones(4, "f4")}
    peft_files.write(tmp_path / "mine", {**ones, **lone}, peft_type="VERA", mine=True)
    with pytest.raises(ValueError, match=r"mine/adapter_config\.json"):
        load_adapter(tmp_path / "mine", params())
    peft_files.write(tmp_path / "vera", {**ones, **lone}, peft_type="VERA", lora_alpha=None)
    with pytest.raises(
        ValueError, match=r"vera/adapter_model\.safetensors has one vector of first"
    ):
        load_adapter(tmp_path / "vera", params())
    peft_files.write(
        tmp_path / "pissa", factors(RNG, "first", 6, 4, 2), r=2, init_lora_weights="pissa"
    )
    with pytest.raises(ValueError, match="first/kernel is a Quantised. .* PiSSA"):
        load_adapter(tmp_path / "pissa", {"first": {"kernel": int8(6, 4)}})


# The levels of NF4: appendix E of arXiv:2305.14314.
NF4_LEVELS = np.array(
    [-1.0, -0.6961928, -0.52507305, -0.39491749, -0.28444138, -0.18477343, -0.09105004, 0.0]
    + [0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0],
    np.float32,
)


def nf4_by_hand(w):
    """Blocks of 64 neighbours in memory, divided by their largest magnitude, to the nearest level."""
    flat, rounded = w.ravel(), np.zeros(w.size, np.float32)
    for start in range(0, w.size, 64):
        block = flat[start : start + 64]
        nearest = abs(block[:, None] / abs(block).max() - NF4_LEVELS).argmin(1)
        rounded[start : start + 64] = NF4_LEVELS[nearest] * abs(block).max()
    return rounded.reshape(w.shape)


@pytest.mark.parametrize(("n_in", "base"), [(128, NF4), (24, NF4), (43, jax.Array)])
def test_loftq_rounds_the_weights_that_peft_began_with(tmp_path, n_in, base):
    """A stack of two layers, and one with its outputs first. Blocks of 64 may be in two rows."""
    tensors = {}
    for module in ("layers.0", "layers.1", "head"):
        tensors |= factors(RNG, module, n_in, 3, 2)
    peft_files.write(tmp_path, tensors, r=2, **LOFTQ)
    weights = RNG.normal(size=(3, 3, n_in)).astype(np.float32)  # (out, in), as in PyTorch
    wanted = np.stack([nf4_by_hand(w) for w in weights])
    stack = load_adapter(
        tmp_path,
        {
            "stack": jnp.asarray(weights[:2].swapaxes(1, 2)),
            "head": jnp.asarray(weights[2].T),
        },
        names={"stack": ["layers.0", "layers.1"], "head": "head"},
    )
    assert isinstance(stack["stack"].w, base) and isinstance(stack["head"].w, base)
    got = jaxrewrite.materialise((stack["stack"].w, stack["head"].w))
    np.testing.assert_allclose(got[0], wanted[:2].swapaxes(1, 2), rtol=1e-6)
    np.testing.assert_allclose(got[1], wanted[2].T, rtol=1e-6)
    names = {"w": "head"}
    one = {key: x for key, x in tensors.items() if ".head." in key}
    peft_files.write(tmp_path, one, r=2, **LOFTQ)
    first = load_adapter(
        tmp_path, {"w": jnp.asarray(weights[2])}, names=names, layout="out_in"
    )
    np.testing.assert_allclose(jaxrewrite.materialise(first["w"].w), wanted[2], rtol=1e-6)
    with pytest.raises(
        ValueError, match="w is a Lora. An adapter that LoftQ began belongs to"
    ):
        load_adapter(tmp_path, first, names=names, layout="out_in")

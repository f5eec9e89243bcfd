"""Adapters that peft itself writes and reads. ``tox -e peft`` installs PyTorch and peft."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrewrite
from jaxrewrite.checkpoints import load_adapter, save_adapter
from jaxrewrite.values import NF4, Dora, Lora, Rescaled, adapt


peft = pytest.importorskip("peft", reason="tox -e peft has it")
torch = pytest.importorskip("torch")

pytestmark = pytest.mark.filterwarnings("ignore")

WIDTHS = (6, 8, 5)
X = np.random.default_rng(0).normal(size=(3, 6)).astype("float32")


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(*WIDTHS[:2])
        self.down = torch.nn.Linear(*WIDTHS[1:])

    def forward(self, x):
        return self.down(torch.tanh(self.up(x)))


def params_of(model):
    """The parameters as Flax has them: kernels of shape (in, out)."""
    return {
        name: {
            "kernel": jnp.asarray(layer.weight.detach().numpy().T),
            "bias": jnp.asarray(layer.bias.detach().numpy()),
        }
        for name, layer in (("up", model.up), ("down", model.down))
    }


def apply(params, x):
    linear = lambda p, x: x @ p["kernel"] + p["bias"]
    return linear(params["down"], jnp.tanh(linear(params["up"], x)))


implicit = jaxrewrite.transform(apply, materialise="forbid")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"use_rslora": True},
        {"rank_pattern": {"down": 3}, "alpha_pattern": {"down": 5}},
    ],
    ids=lambda options: next(iter(options), "plain"),
)
def test_what_peft_writes_is_read(tmp_path, options):
    torch.manual_seed(0)
    model = Model()
    params = params_of(model)
    config = peft.LoraConfig(
        r=2, lora_alpha=7, target_modules=["up", "down"], init_lora_weights=False, **options
    )
    adapted = peft.get_peft_model(model, config)
    adapted.save_pretrained(tmp_path)
    got = implicit(load_adapter(tmp_path, params), X)
    want = adapted(torch.from_numpy(X)).detach().numpy()
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    assert not np.allclose(got, apply(params, X), atol=1e-2)


@pytest.mark.parametrize("use_rslora", [False, True])
def test_what_is_written_peft_reads(tmp_path, use_rslora):
    torch.manual_seed(1)
    model = Model()
    params = params_of(model)
    keys = iter(jax.random.split(jax.random.key(0), 4))
    for name, rank, scale in (("up", 2, 0.5), ("down", 3, 2.0)):
        n, m = params[name]["kernel"].shape
        a, b = (jax.random.normal(next(keys), s) for s in ((n, rank), (rank, m)))
        params[name]["kernel"] = Lora(params[name]["kernel"], a, b, scale)
    save_adapter(tmp_path, params, use_rslora=use_rslora)
    adapted = peft.PeftModel.from_pretrained(model, str(tmp_path))
    got = adapted(torch.from_numpy(X)).detach().numpy()
    np.testing.assert_allclose(got, implicit(params, X), rtol=1e-4, atol=1e-4)


class Mixed(torch.nn.Module):
    """An embedding, convolutions in one and two dimensions, and a linear layer."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(11, 6)
        self.conv1 = torch.nn.Conv1d(6, 5, 3)
        self.conv2 = torch.nn.Conv2d(1, 4, (2, 3))
        self.down = torch.nn.Linear(12, 3)

    def forward(self, tokens):
        x = torch.tanh(self.conv1(self.embed(tokens).mT))
        return self.down(torch.tanh(self.conv2(x[:, None])).flatten(2)).sum(1)


TOKENS = np.array([[1, 4, 2, 0, 3, 9, 8], [10, 0, 5, 5, 6, 7, 1]])
MODULES = ["embed", "conv1", "conv2", "down"]


def mixed_params(model):
    """The parameters as Flax has them."""
    numbers = lambda module: module.weight.detach().numpy()
    bias = lambda module: jnp.asarray(module.bias.detach().numpy())
    kernel = lambda module: jnp.asarray(np.moveaxis(numbers(module), (0, 1), (-1, -2)))
    layers = {name: getattr(model, name) for name in MODULES}
    return {"embed": {"embedding": jnp.asarray(numbers(layers.pop("embed")))}} | {
        name: {"kernel": kernel(layer), "bias": bias(layer)}
        for name, layer in layers.items()
    }


def mixed(params, tokens):
    def convolve(x, p, window):
        numbers = ("NWC", "WIO", "NWC") if window == 1 else ("NHWC", "HWIO", "NHWC")
        kernel, strides = p["kernel"], (1,) * window
        y = jax.lax.conv_general_dilated(
            x, kernel, strides, "VALID", dimension_numbers=numbers
        )
        return jnp.tanh(y + p["bias"])

    x = convolve(params["embed"]["embedding"][tokens], params["conv1"], 1)
    x = convolve(jnp.moveaxis(x, 1, 2)[..., None], params["conv2"], 2)
    x = jnp.moveaxis(x, -1, 1).reshape(len(x), 4, -1)
    return (x @ params["down"]["kernel"] + params["down"]["bias"]).sum(1)


run_mixed = jaxrewrite.transform(mixed, materialise="forbid")


@pytest.mark.parametrize("use_dora", [False, True])
def test_embeddings_and_convolutions_that_peft_writes_are_read(tmp_path, use_dora):
    torch.manual_seed(0)
    model = Mixed()
    params = mixed_params(model)
    np.testing.assert_allclose(
        mixed(params, TOKENS), model(torch.from_numpy(TOKENS)).detach().numpy(), atol=1e-5
    )
    config = peft.LoraConfig(
        r=2,
        lora_alpha=3,
        target_modules=MODULES,
        init_lora_weights=False,
        use_dora=use_dora,
    )
    adapted = peft.get_peft_model(model, config)
    for name, parameter in adapted.named_parameters():
        if "magnitude" in name:
            parameter.data *= 1 + torch.rand_like(parameter)
    adapted.save_pretrained(tmp_path)
    got = run_mixed(load_adapter(tmp_path, params), TOKENS)
    want = adapted(torch.from_numpy(TOKENS)).detach().numpy()
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    assert not np.allclose(got, mixed(params, TOKENS), atol=1e-2)


@pytest.mark.parametrize("use_dora", [False, True])
def test_embeddings_and_convolutions_that_are_written_peft_reads(tmp_path, use_dora):
    torch.manual_seed(1)
    model = Mixed()
    params = mixed_params(model)
    before = mixed(params, TOKENS)
    axes = {
        "embed/embedding": ((0,), (1,)),
        "conv1/kernel": ((0, 1), (2,)),
        "conv2/kernel": ((0, 1, 2), (3,)),
        "down/kernel": ((0,), (1,)),
    }
    method = "dora" if use_dora else "lora"
    in_axes = lambda path, leaf: path in axes
    key = jax.random.key(0)
    params = adapt(params, in_axes, 2, key, axes=axes, method=method, scale=0.5)
    is_adapted = lambda x: isinstance(x, (Lora, Dora))
    moved = lambda x: dataclasses.replace(x, b=x.b + 0.3) if is_adapted(x) else x
    params = jax.tree.map(moved, params, is_leaf=is_adapted)
    save_adapter(tmp_path, params, names=lambda path: path.split("/")[0])
    adapted = peft.PeftModel.from_pretrained(model, str(tmp_path))
    got = adapted(torch.from_numpy(TOKENS)).detach().numpy()
    np.testing.assert_allclose(got, run_mixed(params, TOKENS), rtol=1e-5, atol=2e-5)
    assert not np.allclose(got, before, atol=1e-2)


def with_random_vectors(adapted):
    """The same adapter after some training: its vectors are other numbers."""
    for name, parameter in adapted.named_parameters():
        if "ia3_l" in name or "vera_lambda" in name:
            parameter.data = torch.rand_like(parameter) + 0.5
    return adapted


IA3 = {
    "outputs": {"target_modules": ["up", "down"], "feedforward_modules": []},
    "inputs": {"target_modules": ["up", "down"], "feedforward_modules": ["down"]},
    "pattern": {"target_modules": "up|down", "feedforward_modules": "do.n"},
}


@pytest.mark.parametrize("kind", IA3)
def test_multipliers_that_peft_writes_are_read(tmp_path, kind):
    """IA3 multiplies what a layer returns, its bias as well, or what the layer gets."""
    torch.manual_seed(0)
    model = Model()
    params = params_of(model)
    adapted = with_random_vectors(peft.get_peft_model(model, peft.IA3Config(**IA3[kind])))
    adapted.save_pretrained(tmp_path)
    got = load_adapter(tmp_path, params)
    want = adapted(torch.from_numpy(X)).detach().numpy()
    np.testing.assert_allclose(implicit(got, X), want, rtol=1e-5, atol=1e-5)
    assert not np.allclose(want, apply(params, X), atol=1e-2)
    assert isinstance(got["down"]["bias"], Rescaled) == (kind == "outputs")
    again = load_adapter(tmp_path, got)  # It takes its own place.
    np.testing.assert_array_equal(implicit(again, X), implicit(got, X))


@pytest.mark.parametrize("of_inputs", [False, True])
def test_multipliers_that_are_written_peft_reads(tmp_path, of_inputs):
    torch.manual_seed(1)
    model = Model()
    params = params_of(model)
    up, down = params["up"], params["down"]
    numbers = jax.random.uniform(jax.random.key(0), (8,), minval=0.5)
    if of_inputs:
        down["kernel"] = Rescaled(down["kernel"], numbers[:, None])
    else:
        up["kernel"] = Rescaled(up["kernel"], numbers[None])
        up["bias"] = Rescaled(up["bias"], numbers)
    save_adapter(tmp_path, params)
    adapted = peft.PeftModel.from_pretrained(model, str(tmp_path))
    got = adapted(torch.from_numpy(X)).detach().numpy()
    np.testing.assert_allclose(got, implicit(params, X), rtol=1e-5, atol=1e-5)


def test_multipliers_of_convolutions(tmp_path):
    torch.manual_seed(2)
    model = Mixed()
    params = mixed_params(model)
    config = peft.IA3Config(target_modules=["conv2", "down"], feedforward_modules=["conv2"])
    adapted = with_random_vectors(peft.get_peft_model(model, config))
    adapted.save_pretrained(tmp_path / "one")
    got = load_adapter(tmp_path / "one", params)
    want = adapted(torch.from_numpy(TOKENS)).detach().numpy()
    np.testing.assert_allclose(run_mixed(got, TOKENS), want, rtol=1e-5, atol=1e-5)
    save_adapter(tmp_path / "two", got)
    again = peft.PeftModel.from_pretrained(model_of(2, Mixed), str(tmp_path / "two"))
    np.testing.assert_allclose(
        again(torch.from_numpy(TOKENS)).detach().numpy(), want, 1e-5, 1e-5
    )


def model_of(seed, make=Model):
    torch.manual_seed(seed)
    return make()


def test_vera_that_peft_writes_is_read_and_written(tmp_path):
    model = model_of(0)
    params = params_of(model)
    config = peft.VeraConfig(r=3, target_modules=["up", "down"])
    adapted = with_random_vectors(peft.get_peft_model(model, config))
    adapted.save_pretrained(tmp_path / "one")
    got = load_adapter(tmp_path / "one", params)
    want = adapted(torch.from_numpy(X)).detach().numpy()
    np.testing.assert_allclose(implicit(got, X), want, rtol=1e-5, atol=1e-5)
    assert not np.allclose(want, apply(params, X), atol=1e-2)
    save_adapter(tmp_path / "two", got)
    told = json.loads((tmp_path / "two" / "adapter_config.json").read_text())
    assert told["peft_type"] == "VERA"
    again = peft.PeftModel.from_pretrained(model_of(0), str(tmp_path / "two"))
    np.testing.assert_allclose(
        again(torch.from_numpy(X)).detach().numpy(), want, rtol=1e-5, atol=1e-5
    )


def test_vera_that_adapt_makes_peft_reads(tmp_path):
    model = model_of(3)
    is_kernel = lambda path, leaf: path.endswith("kernel")
    key = jax.random.key(0)
    params = adapt(params_of(model), is_kernel, 3, key, method="vera", scale=0.5)
    for layer in params.values():
        v = layer["kernel"]
        layer["kernel"] = dataclasses.replace(
            v, b=dataclasses.replace(v.b, scale=v.b.scale + 0.3)
        )
    save_adapter(tmp_path, params)
    adapted = peft.PeftModel.from_pretrained(model, str(tmp_path))
    assert adapted.peft_config["default"].peft_type == "VERA"
    got = adapted(torch.from_numpy(X)).detach().numpy()
    np.testing.assert_allclose(got, implicit(params, X), rtol=1e-5, atol=1e-5)


def test_pissa_that_peft_writes_is_read(tmp_path):
    """The weights are what the largest singular values leave of those that peft began with."""
    model = model_of(4)
    params = params_of(model)
    config = peft.LoraConfig(
        r=2, lora_alpha=3, target_modules=["up", "down"], init_lora_weights="pissa"
    )
    adapted = peft.get_peft_model(model, config)
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            parameter.data += 0.2 * torch.randn_like(parameter)
    adapted.save_pretrained(tmp_path)
    got = implicit(load_adapter(tmp_path, params), X)
    want = adapted(torch.from_numpy(X)).detach().numpy()
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    again = peft.PeftModel.from_pretrained(model_of(4), str(tmp_path))
    np.testing.assert_allclose(
        again(torch.from_numpy(X)).detach().numpy(), want, 1e-4, 1e-4
    )


class Wide(torch.nn.Module):
    """A layer whose rows consist of blocks of 64, and one whose rows do not."""

    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(64, 20)
        self.down = torch.nn.Linear(20, 5)

    def forward(self, x):
        return self.down(torch.tanh(self.up(x)))


@pytest.fixture
def loftq_on_a_cpu(monkeypatch):
    """The quantiser of LoftQ runs on any device, and peft asks for a GPU."""
    bitsandbytes = pytest.importorskip("bitsandbytes", reason="tox -e peft has it")

    def moved(to):
        own = lambda x: "cpu" if isinstance(x, str) and x == "cuda" else x
        return lambda self, *args, **more: to(
            self, *map(own, args), **{name: own(x) for name, x in more.items()}
        )

    for cls in (torch.Tensor, bitsandbytes.nn.Params4bit):
        monkeypatch.setattr(cls, "to", moved(cls.to))


@pytest.mark.usefixtures("loftq_on_a_cpu")
@pytest.mark.parametrize("use_dora", [False, True])
def test_loftq_that_peft_writes_is_read(tmp_path, use_dora):
    """The weights are what peft rounded of those that it began with."""
    model = model_of(5, Wide)
    params = params_of(model)
    config = peft.LoraConfig(
        r=3,
        lora_alpha=2,
        rank_pattern={"down": 2},
        use_dora=use_dora,
        target_modules=["up", "down"],
        init_lora_weights="loftq",
        loftq_config=peft.LoftQConfig(),
    )
    adapted = peft.get_peft_model(model, config)
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            parameter.data += 0.2 * torch.randn_like(parameter)
    adapted.save_pretrained(tmp_path)
    loaded = load_adapter(tmp_path, params)
    assert isinstance(loaded["up"]["kernel"].w, NF4)
    for name in ("up", "down"):
        base = getattr(adapted.base_model.model, name).base_layer.weight.detach().numpy()
        got = jaxrewrite.materialise(loaded[name]["kernel"].w)
        np.testing.assert_allclose(got, base.T, rtol=1e-6)
    x = np.random.default_rng(1).normal(size=(3, 64)).astype("float32")
    want = adapted(torch.from_numpy(x)).detach().numpy()
    np.testing.assert_allclose(implicit(loaded, x), want, rtol=1e-5, atol=1e-5)
    again = peft.PeftModel.from_pretrained(model_of(5, Wide), str(tmp_path))
    np.testing.assert_allclose(
        again(torch.from_numpy(x)).detach().numpy(), want, rtol=1e-5, atol=1e-5
    )


@pytest.mark.usefixtures("loftq_on_a_cpu")
def test_loftq_of_adapt_is_as_near_as_that_of_peft():
    """The magnitudes of `NF4` take a byte, and those of peft four."""
    weight = torch.from_numpy(np.random.default_rng(0).normal(size=(64, 128)))
    turns = 5  # as `adapt` has them
    base, a, b = peft.utils.loftq_utils.loftq_init(weight.float(), 4, 8, turns)
    w = jnp.asarray(weight.float().numpy().T)
    every = lambda path, leaf: True
    key = jax.random.key(0)
    v = adapt(w, every, 8, key, init="loftq", bits="nf4", block=64, scale=0.5)
    lost = jnp.linalg.norm(v.materialise() - w)
    assert lost < 1.02 * float(torch.linalg.norm(base + b @ a - weight))

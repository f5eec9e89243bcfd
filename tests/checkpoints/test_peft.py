"""Adapters that peft itself writes and reads. ``tox -e peft`` installs PyTorch and peft."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrewrite
from jaxrewrite.checkpoints import load_adapter, save_adapter
from jaxrewrite.values import Dora, Lora, adapt


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

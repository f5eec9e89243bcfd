"""Adapters that peft itself writes and reads. ``tox -e peft`` installs PyTorch and peft."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrewrite
from jaxrewrite.checkpoints import load_adapter, save_adapter
from jaxrewrite.values import Lora


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

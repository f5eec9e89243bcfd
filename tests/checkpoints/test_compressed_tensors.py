"""Folders that compressed-tensors itself writes. ``tox -e compressed`` installs PyTorch and it."""

import json

import numpy as np
import pytest

from jaxrewrite.checkpoints import load_hf


compressed_tensors = pytest.importorskip("compressed_tensors", reason="tox -e compressed")
torch = pytest.importorskip("torch")

pytestmark = pytest.mark.filterwarnings("ignore")

N, M = 48, 128
GROUPS = {"type": "int", "strategy": "group", "group_size": 32}
FLOATS = {"type": "float", "num_bits": 8}
EXPONENTS = torch.randint(-8, -3, (N, 4), generator=torch.Generator().manual_seed(0))


def uniform(*shape, low, high):
    generator = torch.Generator().manual_seed(1)
    return torch.rand(*shape, generator=generator) * (high - low) + low


# The format, what the configuration says of weights, and the tensors beside the weight.
CASES = {
    **{
        f"integers of {bits} bits": (
            "pack-quantized",
            GROUPS | {"num_bits": bits},
            {
                "weight_scale": uniform(N, 4, low=0.005, high=0.025),
                "weight_zero_point": torch.zeros(N, 4, dtype=torch.int8),
            },
        )
        for bits in (3, 4, 8)
    },
    **{
        f"integers of {bits} bits with zeros": (
            "pack-quantized",
            GROUPS | {"num_bits": bits, "symmetric": False},
            {
                "weight_scale": uniform(N, 4, low=0.005, high=0.025),
                "weight_zero_point": (EXPONENTS + 6).to(torch.int8),
            },
        )
        for bits in (3, 4, 8)
    },
    "rows of integers": (
        "int-quantized",
        {"num_bits": 8, "type": "int", "strategy": "channel"},
        {"weight_scale": uniform(N, 1, low=0.0005, high=0.0025)},
    ),
    "rows of floats": (
        "float-quantized",
        FLOATS | {"strategy": "channel"},
        {"weight_scale": uniform(N, 1, low=0.0005, high=0.0025)},
    ),
    "floats with one scale": (
        "float-quantized",
        FLOATS | {"strategy": "tensor"},
        {"weight_scale": uniform(1, low=0.0005, high=0.0025)},
    ),
    "blocks of floats": (
        "float-quantized",
        FLOATS | {"strategy": "block", "block_structure": [16, 32]},
        {"weight_scale": uniform(3, 4, low=0.0005, high=0.0025)},
    ),
    "nvfp4": (
        "nvfp4-pack-quantized",
        {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16},
        {
            "weight_scale": uniform(N, 8, low=20, high=220).to(torch.float8_e4m3fn).float(),
            "weight_global_scale": torch.tensor([4096.0]),
        },
    ),
    "mxfp4": (
        "mxfp4-pack-quantized",
        {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32},
        {"weight_scale": 2.0**EXPONENTS},
    ),
    "mxfp8": (
        "mxfp8-quantized",
        FLOATS | {"strategy": "group", "group_size": 32},
        {"weight_scale": 2.0 ** (EXPONENTS - 4)},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_weights_are_those_of_the_library(name, tmp_path):
    from compressed_tensors.compressors.base import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from safetensors.torch import save_file

    format, weights, tensors = CASES[name]
    args = QuantizationArgs(**weights)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    compressor = BaseCompressor.get_value_from_registry(format)
    weight = uniform(N, M, low=-0.1, high=0.1)
    stored = compressor.compress({"weight": weight, **tensors}, scheme)
    want = compressor.decompress(dict(stored), scheme)["weight"].float().numpy()
    save_file(
        {f"up.{key}": x.contiguous() for key, x in stored.items()},
        tmp_path / "model.safetensors",
    )
    about = {
        "quant_method": "compressed-tensors",
        "format": format,
        "config_groups": {"group_0": {"weights": json.loads(args.model_dump_json())}},
    }
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": about}))
    # The library computes the weights of NVFP4 in bfloat16.
    rtol = 2**-8 if name == "nvfp4" else 0
    np.testing.assert_allclose(load_hf(tmp_path)["up.weight"], want, rtol)

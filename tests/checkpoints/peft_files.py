"""Files of peft as another program writes them, and what peft computes, in NumPy alone."""

import json
import struct

import numpy as np


DTYPES = {"float32": "F32", "float16": "F16", "float64": "F64", "uint8": "U8", "int8": "I8"}


def safetensors_bytes(tensors):
    """The format: the length of a header, the header, and the bytes of the tensors."""
    header, data = {}, b""
    for name, x in tensors.items():
        span = [len(data), len(data) + x.nbytes]
        header[name] = {
            "dtype": DTYPES[x.dtype.name],
            "shape": x.shape,
            "data_offsets": span,
        }
        data += np.asarray(x, order="C").tobytes()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def read_safetensors(path):
    whole = path.read_bytes()
    (length,) = struct.unpack("<Q", whole[:8])
    header = json.loads(whole[8 : 8 + length])
    names = {v: k for k, v in DTYPES.items()}
    found = {}
    for name, about in header.items():
        if name != "__metadata__":
            start, stop = (8 + length + i for i in about["data_offsets"])
            flat = np.frombuffer(whole[start:stop], names[about["dtype"]])
            found[name] = flat.reshape(about["shape"])
    return found


# The configuration that the documentation of peft shows for BERT.
CONFIG = {
    "alpha_pattern": {},
    "auto_mapping": {"base_model_class": "BertModel", "parent_library": "transformers"},
    "base_model_name_or_path": "bert-base-uncased",
    "bias": "none",
    "fan_in_fan_out": False,
    "inference_mode": True,
    "init_lora_weights": True,
    "layer_replication": None,
    "layers_pattern": None,
    "layers_to_transform": None,
    "loftq_config": {},
    "lora_alpha": 8,
    "lora_dropout": 0.0,
    "megatron_config": None,
    "megatron_core": "megatron.core",
    "modules_to_save": None,
    "peft_type": "LORA",
    "r": 8,
    "rank_pattern": {},
    "revision": None,
    "target_modules": ["query", "value"],
    "task_type": None,
    "use_dora": False,
    "use_rslora": False,
}


def write(directory, tensors, **config):
    directory.mkdir(exist_ok=True)
    (directory / "adapter_config.json").write_text(json.dumps({**CONFIG, **config}))
    (directory / "adapter_model.safetensors").write_bytes(safetensors_bytes(tensors))


def key(module, factor):
    return f"base_model.model.{module}.lora_{factor}.weight"


def factors(rng, module, n_in, n_out, rank, dtype=np.float32):
    """The tensors of a linear layer."""
    return {
        key(module, "A"): rng.normal(size=(rank, n_in)).astype(dtype),
        key(module, "B"): rng.normal(size=(n_out, rank)).astype(dtype),
    }


def linear(x, weight, tensors, module, scaling):
    """An adapted layer of PyTorch, whose weight is (out, in), in double precision."""
    a, b = (tensors[key(module, name)].astype(np.float64) for name in "AB")
    return x @ weight.T.astype(np.float64) + (x @ a.T @ b.T) * scaling

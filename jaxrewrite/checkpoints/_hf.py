"""Quantised weights in the folders of Hugging Face's models, mapped into memory."""

from __future__ import annotations

import functools
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from . import _compressed_tensors, _hf_methods
from ._hf_methods import Method
from ._leaves import as_array
from ._safetensors import Stored, files_of, table_in, tensors_of
from ._tensors import Tensors


def load_hf(folder: str | os.PathLike[str], *, dtype: Any = "float32") -> HFTensors:
    """The tensors of a model in a folder, as Hugging Face's libraries write it.

    The files of safetensors are mapped into memory, and all of their headers are read and
    checked. A weight is read when it is looked up. Its codes stay codes: no weight becomes
    floating. ``quantization_config`` in ``config.json`` says what they are, or
    ``quantize_config.json`` of AutoGPTQ:

    ================== ================================== ====================================
    method             what it stands for                 what it becomes
    ================== ================================== ====================================
    gptq               integers of 2, 3, 4 or 8 bits, in  `Quantised`; with ``desc_act``,
                       groups                             where the groups have no order, its
                                                          `Product` with a `Permutation` of the
                                                          inputs
    awq                integers of 4 bits, in groups      `Quantised`
    bitsandbytes       levels of NF4, in blocks           `NF4`
    bitsandbytes       levels of FP4, in blocks           `Float8`, a byte an entry
    bitsandbytes       integers of 8 bits, in rows        `Quantised`
    fp8                float8_e4m3fn, in blocks as of     `Float8`
                       128 x 128 entries
    mxfp4              MXFP4, of experts                  `Microscaled`
    compressed-tensors integers of 2 to 8 bits, in groups `Quantised`; with ``actorder``, as for
                       or rows                            gptq
    compressed-tensors float8_e4m3fn, in rows or blocks   `Float8`
    compressed-tensors NVFP4, MXFP4, MXFP8                `Microscaled`
    ================== ================================== ====================================

    Parameters
    ----------
    folder
        The folder. Its files must stay as they are while their tensors are in use.
    dtype
        The dtype of the quantised weights as arrays, floating, but not float16 for mxfp4.

    Returns
    -------
    HFTensors
        A mapping from the names of the tensors to values and arrays. The tensors that make one
        weight, such as ``layer.qweight`` and ``layer.scales``, are the value ``layer.weight``.
        Tensors that are not quantised are arrays. Its attribute ``config`` is what
        ``config.json`` says.

        The axes of a weight are those of PyTorch: that of a linear layer has the shape (out, in),
        and is multiplied as ``x @ w.T``, which reads it where it is.

    Raises
    ------
    FileNotFoundError
        If there is no such folder, no file of safetensors in it, or not all of those that its
        index names.
    ValueError
        If a file is not whole, the method or its layout is none of these, the tensors of a weight
        do not fit each other, or two would have one name.

    References
    ----------
    .. [1] E. Frantar et al. (2023), GPTQ, arXiv:2210.17323; the files are those of AutoGPTQ.
    .. [2] J. Lin et al. (2024), AWQ, arXiv:2306.00978; the files are those of AutoAWQ, "gemm".
    .. [3] DeepSeek-AI (2024), DeepSeek-V3 Technical Report, arXiv:2412.19437, section 3.3.

    Examples
    --------
    .. code-block:: python

        import jax.numpy as jnp, jaxrewrite
        from jaxrewrite.checkpoints import load_hf

        tensors = load_hf("Llama-3-8B-GPTQ", dtype="bfloat16")
        query = tensors["model.layers.0.self_attn.q_proj.weight"]  # Quantised<bf16[4096,4096]>
        x = jnp.ones((1, 4096), "bfloat16")
        y = jaxrewrite.transform(lambda w, x: x @ w.T)(query, x)
    """
    path = pathlib.Path(folder)
    if not path.is_dir():
        raise FileNotFoundError(f"load_hf: there is no folder {path}.")
    if not jnp.issubdtype(dtype, jnp.floating):
        raise ValueError(f"load_hf: `dtype` must be real floating; got {dtype}.")
    config = table_in(path / "config.json") if (path / "config.json").exists() else {}
    stored: dict[str, Stored] = {}
    for file in files_of(path):
        for name, tensor in tensors_of(file).items():
            if name in stored:
                tensor.refuse(f"that is also in {stored[name].file}.")
            stored[name] = tensor
    made = _weights(*_quantisation(path, config), stored, jnp.dtype(dtype))
    return HFTensors(config, made)


class HFTensors(Tensors):
    """The tensors of a folder, each of which is read when it is looked up; see `load_hf`."""

    config: dict[str, Any]

    def __init__(
        self, config: dict[str, Any], made: Mapping[str, Callable[[], Any]]
    ) -> None:
        super().__init__(made)
        self.config = config

    def __getitem__(self, name: str) -> Any:
        return self._table[name]()

    def __repr__(self) -> str:
        return f"HFTensors({len(self)} tensors)"


# How a weight is made, and an array.
_Made = Callable[[], Any]

_METHODS = {**_hf_methods.METHODS, "compressed-tensors": _compressed_tensors.METHODS}

# What is wrong with a quantization_config, by the methods whose layouts have names of their own.
_PROBLEMS: Mapping[str, Callable[[Mapping[str, Any]], str | None]] = {
    "gptq": _hf_methods.gptq_problem,
    "compressed-tensors": _compressed_tensors.format_problem,
}


def _quantisation(
    folder: pathlib.Path, config: Mapping[str, Any]
) -> tuple[pathlib.Path, dict[str, Any]]:
    """The file that says how the weights are quantised, and what it says."""
    file, found = folder / "config.json", config.get("quantization_config") or {}
    if not isinstance(found, dict):
        raise ValueError(f"load_hf: {file} has quantization_config={found!r}.")
    # AutoGPTQ has a file of its own.
    own = folder / "quantize_config.json"
    if not found and own.exists():
        return own, {"quant_method": "gptq", **table_in(own)}
    return file, found


def _weights(
    file: pathlib.Path,
    config: Mapping[str, Any],
    stored: Mapping[str, Stored],
    dtype: Any,
) -> dict[str, _Made]:
    """A function for each weight, and for each tensor that belongs to none."""
    made: dict[str, _Made] = {}
    used: set[str] = set()

    def add(name: str, make: _Made, tensor: Stored) -> None:
        if name in made:
            tensor.refuse(f"and others that are {name}, too.")
        made[name] = make

    for method in _methods(file, config) if config else ():
        for name, parts in method.parts(stored):
            about = method.check(config, parts)
            used |= {part.name for part in parts.values()}
            make = functools.partial(_made, method, about, parts, dtype)
            add(name, make, next(iter(parts.values())))
    for name, tensor in stored.items():
        if name not in used:
            add(name, functools.partial(_array, tensor), tensor)
    return made


def _methods(file: pathlib.Path, config: Mapping[str, Any]) -> Sequence[Method]:
    """The ways in which the weights may be stored that a quantization_config tells of."""
    kind = str(config.get("quant_method"))
    problem = None
    if kind not in _METHODS:
        problem = (
            f"has the quant_method {kind!r}, which is not known here. Known are "
            f"{', '.join(_METHODS)}."
        )
    elif kind in _PROBLEMS:
        problem = _PROBLEMS[kind](config)
    if problem is not None:
        raise ValueError(f"load_hf: {file} {problem}")
    return _METHODS[kind]


def _made(method: Method, about: Any, parts: Mapping[str, Stored], dtype: Any) -> Any:
    return method.make(about, {key: part.array() for key, part in parts.items()}, dtype)


def _array(tensor: Stored) -> jax.Array:
    return as_array(tensor.array(), tensor.name)

"""Adapters of peft that train vectors: VeRA and IA3, in the same two files as LoRA.

VeRA has one pair of random matrices for all modules, of which each takes the first columns and
rows, and two vectors for each module. IA3 has one vector for each module.
"""

from __future__ import annotations

import pathlib
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from ._peft import (
    COMMON,
    CONFIG,
    PREFIX,
    SILENT,
    TENSORS,
    Adapter,
    check_known,
    read,
    read_config,
    tensors_in,
    write_files,
)


class Scaling(NamedTuple):
    """Numbers that multiply the outputs of a module, or its inputs; ``window`` counts its axes."""

    numbers: Any  # (out,) or (in,)
    is_of_inputs: bool
    window: int = 0


AnyAdapter = Adapter | Scaling


def read_any(directory: pathlib.Path) -> Mapping[str, AnyAdapter]:
    """The adapters of the modules in a directory, of each kind that is known.

    Raises
    ------
    ValueError
        If a file is damaged, or is for something that is not computed here.
    """
    config = read_config(directory / CONFIG)
    kind = config.get("peft_type")
    readers: dict[Any, Callable[..., Mapping[str, AnyAdapter]]]
    readers = {"LORA": read, "VERA": _read_vera, "IA3": _read_ia3}
    if not isinstance(kind, str) or kind not in readers:
        raise ValueError(
            f"load_adapter: {directory / CONFIG} has the peft_type {kind!r}; only adapters of "
            f"{', '.join(readers)} are read."
        )
    return readers[kind](directory, config)


def _refused(directory: pathlib.Path, key: str, tensor: Any, wanted: str) -> ValueError:
    return ValueError(
        f"load_adapter: {directory / TENSORS} has a tensor {key} of shape {tensor.shape} and dtype "
        f"{tensor.dtype}, where {wanted} is expected."
    )


# --- VeRA -----------------------------------------------------------------------------------


_OF_VERA = re.compile(rf"{re.escape(PREFIX)}(.+)\.vera_lambda_([bd])")
_FIRST, _SECOND = "base_model.vera_A", "base_model.vera_B"
_SILENT_IN_VERA = {"vera_dropout", "d_initial", "init_weights", "projection_prng_key"}


def shared(adapters: Mapping[str, Adapter]) -> tuple[Any, Any] | None:
    """The matrices of which all adapters have the first columns and rows, if there are such."""
    if any(x.numbers is None or x.is_embedding or x.a.ndim > 2 for x in adapters.values()):
        return None
    a = max((x.a for x in adapters.values()), key=lambda a: a.shape[1])
    b = max((x.b for x in adapters.values()), key=len)
    is_part = lambda x: (
        np.array_equal(x.a, a[:, : x.a.shape[1]]) and np.array_equal(x.b, b[: len(x.b)])
    )
    return (a, b) if all(map(is_part, adapters.values())) else None


def write_vera(
    directory: pathlib.Path,
    adapters: Mapping[str, Adapter],
    matrices: tuple[Any, Any],
    more: Mapping[str, Any],
) -> None:
    first, second = matrices
    tensors = {_FIRST: first, _SECOND: second}
    for module, adapter in adapters.items():
        assert adapter.numbers is not None, "it is no adapter of VeRA"
        of_ranks, of_outputs = adapter.numbers
        # VeRA has no scale.
        tensors[f"{PREFIX}{module}.vera_lambda_d"] = of_ranks * of_ranks.dtype.type(
            adapter.scale
        )
        tensors[f"{PREFIX}{module}.vera_lambda_b"] = of_outputs
    config = {
        **COMMON,
        "peft_type": "VERA",
        "r": len(first),
        "target_modules": sorted(adapters),
        "bias": "none",
        "vera_dropout": 0.0,
        "d_initial": 0.1,
        "init_weights": True,
        "projection_prng_key": 0,
        "save_projection": True,
        "layers_to_transform": None,
        "layers_pattern": None,
    }
    write_files(directory, {**config, **more}, tensors)


def _read_vera(directory: pathlib.Path, config: Mapping[str, Any]) -> dict[str, Adapter]:
    path = directory / CONFIG
    check_known(path, config, SILENT | _SILENT_IN_VERA | {"r", "save_projection"})
    tensors = tensors_in(directory)
    if not {_FIRST, _SECOND} <= tensors.keys():
        raise ValueError(
            f"load_adapter: {directory / TENSORS} has no {_FIRST} and {_SECOND}, the random matrices, "
            "which PyTorch made from a seed. Save the adapter with save_projection=True."
        )
    first, second = tensors.pop(_FIRST), tensors.pop(_SECOND)
    by_module: dict[str, dict[str, Any]] = {}
    for key, tensor in tensors.items():
        match = _OF_VERA.fullmatch(key)
        if match is None or tensor.ndim != 1:
            wanted = f"a vector called {PREFIX}<module>.vera_lambda_b or _d"
            raise _refused(directory, key, tensor, wanted)
        by_module.setdefault(match[1], {})[match[2]] = tensor
    found = {}
    for module, vectors in by_module.items():
        if vectors.keys() != {"b", "d"}:
            raise ValueError(
                f"load_adapter: {directory / TENSORS} has one vector of {module}, and there are two."
            )
        of_ranks, of_outputs = vectors["d"], vectors["b"]
        if not len(of_ranks) == len(first) == second.shape[1]:
            raise _refused(directory, _FIRST, first, f"(rank, in) for rank {len(of_ranks)}")
        b = second[: len(of_outputs)]
        found[module] = Adapter(first, b, 1.0, numbers=(of_ranks, of_outputs))
    return found


# --- IA3 ------------------------------------------------------------------------------------

_OF_IA3 = re.compile(rf"{re.escape(PREFIX)}(.+)\.ia3_l")


def write_ia3(
    directory: pathlib.Path, scalings: Mapping[str, Scaling], more: Mapping[str, Any]
) -> None:
    tensors = {}
    for module, (numbers, is_of_inputs, window) in scalings.items():
        shape: tuple[int, ...] = (1, -1) if is_of_inputs else (-1, 1)
        shape = (1, -1, *(1,) * window) if window else shape
        tensors[f"{PREFIX}{module}.ia3_l"] = np.reshape(numbers, shape)
    inputs = sorted(module for module, x in scalings.items() if x.is_of_inputs)
    # A regular expression, as a list would be one of the ends of names.
    patterns = "|".join(map(re.escape, inputs))
    config = {
        **COMMON,
        "peft_type": "IA3",
        "target_modules": sorted(scalings),
        "feedforward_modules": patterns if inputs else [],
        "init_ia3_weights": True,
    }
    write_files(directory, {**config, **more}, tensors)


def _read_ia3(directory: pathlib.Path, config: Mapping[str, Any]) -> dict[str, Scaling]:
    path = directory / CONFIG
    check_known(path, config, SILENT | {"feedforward_modules", "init_ia3_weights"})
    is_of_inputs = _predicate(path, config.get("feedforward_modules") or [])
    found = {}
    for key, tensor in tensors_in(directory).items():
        match = _OF_IA3.fullmatch(key)
        if match is None or tensor.size != max(tensor.shape, default=0):
            wanted = f"a vector called {PREFIX}<module>.ia3_l"
            raise _refused(directory, key, tensor, wanted)
        window = max(tensor.ndim - 2, 0)
        found[match[1]] = Scaling(tensor.reshape(-1), is_of_inputs(match[1]), window)
    return found


def _predicate(path: pathlib.Path, inputs: Any) -> Callable[[str], bool]:
    """Whether a module is among those that a regular expression, or a list of endings, tells."""
    if isinstance(inputs, list) and all(isinstance(x, str) for x in inputs):
        return lambda module: module.endswith(tuple(inputs))
    try:
        pattern = re.compile(inputs)
    except (re.error, TypeError) as error:
        raise ValueError(
            f"load_adapter: {path} has feedforward_modules={inputs!r}, which is neither a pattern "
            f"nor a list of names: {error}."
        ) from error
    return lambda module: pattern.fullmatch(module) is not None

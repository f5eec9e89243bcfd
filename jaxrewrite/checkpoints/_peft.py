"""The two files of a LoRA adapter of peft: ``adapter_config.json`` and the tensors."""

from __future__ import annotations

import json
import math
import pathlib
import re
import sys
from collections import Counter
from collections.abc import Container, Mapping
from typing import Any, NamedTuple

import numpy as np

from ._files import read_tensors, replacing, write_tensors
from ._safetensors import table_in
from ._starts import start_of


CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"

PREFIX = "base_model.model."
_KEY = re.compile(
    rf"{re.escape(PREFIX)}(.+)\.lora_"
    r"(?:([AB])\.weight|embedding_([AB])|(magnitude_vector)(?:\.weight)?)"
)


class Adapter(NamedTuple):
    r"""The change of one module's weight of shape (out, in): ``scale * b @ a``.

    ``a`` of a convolution has the axes (rank, in, \*window). ``magnitude`` are the lengths of DoRA,
    or None. ``numbers`` are what VeRA multiplies the ranks and the outputs with, or None.
    ``start`` says how peft changed the weight as the adapter began, or is None.
    """

    a: Any  # (rank, in)
    b: Any  # (out, rank)
    scale: float
    magnitude: Any = None  # (out,)
    is_embedding: bool = False
    numbers: tuple[Any, Any] | None = None  # (rank,) and (out,)
    start: str | None = None

    def multiplied(self) -> Adapter:
        """The same change, without numbers of its own for ranks and outputs."""
        if self.numbers is None:
            return self
        of_ranks, of_outputs = (numbers[:, None] for numbers in self.numbers)
        return self._replace(a=of_ranks * self.a, b=of_outputs * self.b, numbers=None)

    @property
    def is_convolution(self) -> bool:
        return self.a.ndim > 2

    @property
    def rank(self) -> int:
        return self.a.shape[0]


# The numbers that peft takes for fields that a file lacks.
_RANK, _ALPHA = 8, 8

# Fields that say how the adapter was made or where it belongs, not what it computes.
SILENT = {
    *("auto_mapping", "base_model_name_or_path", "bias", "exclude_modules"),
    *("fan_in_fan_out", "inference_mode", "init_lora_weights", "layers_pattern"),
    *("layers_to_transform", "lora_dropout", "megatron_core", "peft_type"),
    *("peft_version", "revision", "runtime_config", "save_embedding_layers"),
    *("target_modules", "task_type", "eva_config", "ensure_weight_tying"),
    "qalora_group_size",
}
_READ = {
    *("r", "lora_alpha", "rank_pattern", "alpha_pattern", "use_rslora", "use_dora"),
    "loftq_config",
}

# Ways to begin that leave the base weights as they are, or that `start_of` knows. Others change
# them.
_INIT = (True, False, None, "gaussian", "eva", "orthogonal", "pissa", "loftq")


def write(
    directory: pathlib.Path,
    adapters: Mapping[str, Adapter],
    use_rslora: bool,
    more: Mapping[str, Any],
) -> None:
    config = {**_config(adapters, use_rslora), **more}
    tensors = {}
    for module, adapter in adapters.items():
        own = _tensors(adapter)
        tensors.update({f"{PREFIX}{module}.lora_{key}": x for key, x in own.items()})
    write_files(directory, config, tensors)


def write_files(
    directory: pathlib.Path, config: Mapping[str, Any], tensors: Mapping[str, Any]
) -> None:
    """Write both files, or none of them."""
    text = json.dumps(config, indent=2, sort_keys=True)
    is_new = not directory.exists()
    directory.mkdir(parents=True, exist_ok=True)
    try:
        files = directory / TENSORS, directory / CONFIG
        with replacing("save_adapter", *files) as (weights, about):
            # Libraries of PyTorch refuse files that do not say that they are for it.
            write_tensors("save_adapter", weights, dict(tensors), {"format": "pt"})
            about.write_text(text + "\n")
    finally:
        if is_new and not any(directory.iterdir()):
            directory.rmdir()


def _tensors(adapter: Adapter) -> dict[str, Any]:
    """The tensors of a module, by the ends of their names."""
    a, b, lengths = adapter.a, adapter.b, adapter.magnitude
    window = (1,) * (a.ndim - 2)
    if adapter.is_embedding:
        tensors = {"embedding_A": a, "embedding_B": b}
    else:
        tensors = {"A.weight": a, "B.weight": b.reshape(*b.shape, *window)}
    if lengths is not None:
        whole = lengths.reshape(1, -1, *window) if window else lengths
        tensors["magnitude_vector"] = whole
    return tensors


def read(directory: pathlib.Path, config: Mapping[str, Any]) -> dict[str, Adapter]:
    """The adapters of the modules in a directory, which are of LoRA.

    Raises
    ------
    ValueError
        If a file is damaged, or is not for LoRA as it is computed here.
    """
    start = _checked_start(directory / CONFIG, config)
    by_module: dict[str, dict[str, np.ndarray]] = {}
    for key, tensor in tensors_in(directory).items():
        match = _KEY.fullmatch(key)
        if match is None or not _is_floating(tensor):
            raise ValueError(
                f"load_adapter: {directory / TENSORS} has a tensor {key} of shape "
                f"{tensor.shape} and dtype {tensor.dtype}. Only floating factors of linear layers, "
                f"convolutions and embeddings are read, called {PREFIX}<module>.lora_A.weight, "
                "...lora_B.weight, ...lora_embedding_A or _B, and ...lora_magnitude_vector."
            )
        module, factor, of_embedding, _ = match.groups()
        own = by_module.setdefault(module, {})
        if of_embedding:
            own["embedding"] = tensor
        own[factor or of_embedding or "magnitude"] = tensor
    if not by_module:
        raise ValueError(f"load_adapter: {directory / TENSORS} has no tensors.")
    return {
        module: _adapter(directory, module, factors, config, start)
        for module, factors in by_module.items()
    }


def tensors_in(directory: pathlib.Path) -> dict[str, np.ndarray]:
    return read_tensors("load_adapter", directory / TENSORS)[0]


def _is_floating(tensor: np.ndarray) -> bool:
    return tensor.dtype.name in ("float16", "bfloat16", "float32", "float64")


def _adapter(
    directory: pathlib.Path,
    module: str,
    factors: Mapping[str, np.ndarray],
    config: Mapping[str, Any],
    start: str | None,
) -> Adapter:
    for one, other in ("AB", "BA"):
        if other not in factors:
            raise ValueError(
                f"load_adapter: {directory / TENSORS} has lora_{one} of {module} and no "
                f"lora_{other}."
            )
    rank, alpha = _rank_and_alpha(config, module)
    a, b, lengths = factors["A"], factors["B"], factors.get("magnitude")
    window = (1,) * (a.ndim - 2)
    if a.ndim < 2 or a.shape[0] != rank or b.shape[1:] != (rank, *window):
        raise ValueError(
            f"load_adapter: {module} has rank {rank} by {directory / CONFIG}, but lora_A of "
            f"shape {a.shape}, where (rank, in) is expected, and lora_B of shape {b.shape}, "
            "where (out, rank) is expected. Convolutions have axes of their window behind."
        )
    if (lengths is not None) != config.get("use_dora", False):
        raise ValueError(
            f"load_adapter: {directory / CONFIG} has use_dora={config.get('use_dora', False)}, and "
            f"{module} has {'a' if lengths is not None else 'no'} lora_magnitude_vector."
        )
    if lengths is not None:
        if lengths.size != len(b):
            raise ValueError(
                f"load_adapter: {module} has lora_magnitude_vector of shape {lengths.shape} for "
                f"{len(b)} outputs."
            )
        lengths = lengths.reshape(-1)
    scale = alpha / _divisor(rank, config.get("use_rslora", False))
    is_embedding = "embedding" in factors
    if start == "loftq" and (is_embedding or window):
        raise ValueError(
            f"load_adapter: {directory / CONFIG} has LoftQ, and {module} is no linear layer. peft has "
            "LoftQ for these alone."
        )
    return Adapter(a, b.reshape(len(b), rank), scale, lengths, is_embedding, None, start)


def _divisor(rank: int, use_rslora: bool) -> float:
    return math.sqrt(rank) if use_rslora else rank


def _rank_and_alpha(config: Mapping[str, Any], module: str) -> tuple[int, float]:
    rank = _of(config.get("rank_pattern"), module, config.get("r", _RANK))
    alpha = _of(config.get("alpha_pattern"), module, config.get("lora_alpha", _ALPHA))
    return rank, alpha


def _of(patterns: Mapping[str, Any] | None, module: str, default: Any) -> Any:
    """The number of a module: the first pattern decides that matches the end of its name.

    If none does, the name itself may be there, which as a pattern means something else.
    """
    patterns = patterns or {}
    for pattern, number in patterns.items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            return number
    return patterns.get(module, default)


def read_config(path: pathlib.Path) -> dict[str, Any]:
    """The configuration of an adapter of any kind."""
    config = table_in(path, "load_adapter")
    if config.get("bias", "none") != "none":
        raise ValueError(
            f"load_adapter: {path} has bias={config['bias']!r}; adapters that train biases are not "
            "read."
        )
    return config


def check_known(
    path: pathlib.Path, config: Mapping[str, Any], known: Container[str]
) -> None:
    """Raise `ValueError` if a field may say what is not known here."""
    unknown = [k for k, x in config.items() if k not in known and x not in _OFF]
    if unknown:
        values = ", ".join(f"{k}={config[k]!r}" for k in sorted(unknown))
        raise ValueError(
            f"load_adapter: {path} has {values}: what that means for the adapter is not known here."
        )


def _checked_start(path: pathlib.Path, config: Mapping[str, Any]) -> str | None:
    """How the adapter began, by a configuration that is right."""
    refuse = lambda why: ValueError(f"load_adapter: {path} {why}")
    if config.get("init_lora_weights", True) not in _INIT:
        raise refuse(
            f"has init_lora_weights={config['init_lora_weights']!r}, which also changes the "
            "base weights. Convert it to an ordinary LoRA adapter with peft first."
        )
    check_known(path, config, SILENT | _READ)
    _check_numbers(config, refuse)
    return start_of(path, config)


# The contents of a field whose feature is not used.
_OFF: tuple[Any, ...] = (None, False, {}, [], "")


def _check_numbers(config: Mapping[str, Any], refuse: Any) -> None:
    """Ranks are positive integers, alphas are numbers, and patterns are regular expressions."""
    is_rank = lambda x: type(x) is int and x > 0
    # An integer may be larger than any float.
    is_alpha = lambda x: type(x) in (int, float) and abs(x) <= sys.float_info.max
    for default, patterns, fits in (
        ("r", "rank_pattern", is_rank),
        ("lora_alpha", "alpha_pattern", is_alpha),
    ):
        table = config.get(patterns) or {}
        if not isinstance(table, dict):
            raise refuse(f"has {patterns}={table!r}, which is not a table.")
        if not all(map(fits, [config.get(default, 1), *table.values()])):
            raise refuse(f"has {default}={config.get(default)!r} and {patterns}={table!r}.")
        for pattern in table:
            try:
                re.compile(pattern)
            except re.error as error:
                raise refuse(f"has the pattern {pattern!r}: {error}.") from error
    for name in ("use_rslora", "use_dora"):
        if type(config.get(name, False)) is not bool:
            raise refuse(f"has {name}={config[name]!r}.")


# What all configurations have.
COMMON: Mapping[str, Any] = {
    "fan_in_fan_out": False,
    "inference_mode": True,
    "modules_to_save": None,
    "base_model_name_or_path": None,
    "revision": None,
    "task_type": None,
}


def _config(adapters: Mapping[str, Adapter], use_rslora: bool) -> dict[str, Any]:
    ranks = {module: adapter.rank for module, adapter in adapters.items()}
    alphas = {m: _alpha(adapter, use_rslora) for m, adapter in adapters.items()}
    rank, rank_pattern = _default_and_patterns(ranks)
    alpha, alpha_pattern = _default_and_patterns(alphas)
    return {
        **COMMON,
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": alpha,
        "rank_pattern": rank_pattern,
        "alpha_pattern": alpha_pattern,
        "use_rslora": use_rslora,
        "target_modules": sorted(adapters),
        "bias": "none",
        "lora_dropout": 0.0,
        "init_lora_weights": True,
        "use_dora": any(x.magnitude is not None for x in adapters.values()),
        "layers_to_transform": None,
        "layers_pattern": None,
    }


COMPUTED = {
    *("feedforward_modules", "save_projection"),
    *("peft_type", "r", "lora_alpha", "rank_pattern", "alpha_pattern", "use_rslora"),
    *("target_modules", "bias", "use_dora", "modules_to_save"),
}


def _alpha(adapter: Adapter, use_rslora: bool) -> float:
    """The alpha of a scale, an integer if it can be, from which the scale is read again."""
    divisor = _divisor(adapter.rank, use_rslora)
    near = adapter.scale * divisor
    tries = (
        round(near),
        near,
        math.nextafter(near, math.inf),
        math.nextafter(near, -math.inf),
    )
    return next((x for x in tries if x / divisor == adapter.scale), near)


def _default_and_patterns(numbers: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The most frequent number, and patterns for the modules that have others.

    The first pattern decides that matches, and files have the patterns in the order of their names.
    """
    default = Counter(numbers.values()).most_common(1)[0][0]
    patterns = {module: n for module, n in sorted(numbers.items()) if n != default}
    try:
        is_read = all(_of(patterns, module, default) == n for module, n in numbers.items())
    except re.error:
        is_read = False
    if not is_read:
        # A module's name is the end of another's, or as a pattern means more than itself or
        # nothing.
        patterns = {f"^{re.escape(module)}": n for module, n in patterns.items()}
    return default, patterns

"""Weights in the formats of the library compressed-tensors, which llm-compressor and vLLM write.

Which of them a weight has is told by the dtypes of its tensors. Their layouts are those of [1]_.

.. [1] The compressors of compressed-tensors, version 0.20.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxrewrite.values import Microscaled, Quantised

from ._hf_methods import (
    FLOATS,
    Arrays,
    Method,
    Parts,
    check_order,
    fields,
    in_order,
    is_block,
    of_floats,
    quantised,
    words_for,
)
from ._safetensors import Stored


_PACKED, _SCALE, _ZERO, _INDEX = (
    *(".weight_packed", ".weight_scale"),
    *(".weight_zero_point", ".weight_g_idx"),
)
_GLOBAL = ".weight_global_scale"


def _schemes(config: Mapping[str, Any], tensor: Stored) -> list[Mapping[str, Any]]:
    """What the configuration says of weights, for each group of layers."""
    groups = config.get("config_groups")
    schemes = list(groups.values()) if isinstance(groups, Mapping) else []
    weights = [x.get("weights") for x in schemes if isinstance(x, Mapping)]
    found = [x for x in weights if isinstance(x, Mapping)]
    if not found:
        tensor.refuse("and no config_groups of the quantization_config say what it is.")
    return found


def _grid(scale: Stored, dtypes: Sequence[str]) -> tuple[int, ...]:
    """The number of scales along each axis of a weight: one for the whole, or for its blocks."""
    grid = (1, 1) if scale.shape in ((), (1,)) else scale.shape
    if scale.dtype not in dtypes or len(grid) != 2:
        scale.check(dtypes, (None, None))
    return grid


def _check_whole(scale: Stored, grid: Sequence[int], shape: Sequence[int]) -> None:
    if 0 in (*grid, *shape) or any(n % k for n, k in zip(shape, grid, strict=True)):
        scale.refuse(f"of shape {scale.shape}, which has no whole blocks of {shape}.")


class _Integers(NamedTuple):
    """Integers of some bits in an array of this shape, with scales in a grid."""

    bits: int
    shape: tuple[int, ...]
    grid: tuple[int, ...]


def _check_packed(config: Mapping[str, Any], parts: Parts) -> _Integers:
    q, scale = parts[_PACKED], parts[_SCALE]
    q.check("int32", (None, None))
    parts[".weight_shape"].check(("int64", "int32"), (2,))
    n, m = shape = tuple(map(int, parts[".weight_shape"].array()))
    bits: list[Any] = [x.get("num_bits") for x in _schemes(config, q)]
    known = [b for b in bits if type(b) is int and 2 <= b <= 8]
    fitting = [b for b in known if q.shape == (n, words_for(m, b))]
    if not fitting:
        q.refuse(
            f"of shape {q.shape}, which does not hold {shape} integers of {bits} bits, as the "
            "quantization_config says."
        )
    grid = _grid(scale, FLOATS)
    _check_whole(scale, grid, shape)
    if _ZERO in parts:
        parts[_ZERO].check("int32", (words_for(n, fitting[0]), grid[1]))
        if grid[0] != n:
            parts[_ZERO].refuse(f"for scales of shape {scale.shape}.")
    if _INDEX in parts:
        check_order(parts[_INDEX], m, grid[1])
    return _Integers(fitting[0], shape, grid)


def _packed_integers(about: _Integers, parts: Arrays, dtype: Any) -> Any:
    n, m = about.shape
    codes = fields(parts[_PACKED], about.bits)[:, :m]
    zeros = np.full((1, 1), 2 ** (about.bits - 1), np.uint8)
    if _ZERO in parts:  # Neighbours along the first axis are in a word.
        zeros = fields(parts[_ZERO].T, about.bits)[:, :n].T
    scale = parts[_SCALE].reshape(about.grid)
    make = lambda codes: quantised(codes, zeros, scale, about.bits, dtype)
    return in_order(codes, parts.get(_INDEX), make)


def _check_integers(config: Mapping[str, Any], parts: Parts) -> _Integers:
    weight, scale = parts[".weight"], parts[_SCALE]
    weight.check("int8", (None, None))
    grid = _grid(scale, FLOATS)
    _check_whole(scale, grid, weight.shape)
    if _ZERO in parts:
        parts[_ZERO].check("int8", scale.shape)
    return _Integers(8, weight.shape, grid)


def _integers(about: _Integers, parts: Arrays, dtype: Any) -> Quantised:
    scale = jnp.asarray(parts[_SCALE].reshape(about.grid)).astype(dtype)
    zero = parts[_ZERO].reshape(about.grid) if _ZERO in parts else None
    if zero is not None and not zero.any():
        zero = None
    return Quantised.from_integers(parts[".weight"], scale, zero, bits=8)


class _Floats(NamedTuple):
    """The format of `Microscaled` of a weight, or else the sizes of blocks with a scale."""

    format: str | None
    grid: tuple[int, ...]
    block: tuple[int, ...] = ()


def _check_floats(config: Mapping[str, Any], parts: Parts) -> _Floats:
    weight, scale = parts[".weight"], parts[_SCALE]
    weight.check("float8_e4m3fn", (None, None))
    if scale.dtype == "uint8":
        scale.check("uint8", (weight.shape[0], weight.shape[1] // 32))
        _check_whole(scale, scale.shape, weight.shape)
        return _Floats("mxfp8_e4m3", scale.shape)
    grid = _grid(scale, FLOATS)
    for block in _block_sizes(config, weight):
        if grid == tuple(-(-n // b) for n, b in zip(weight.shape, block, strict=True)):
            return _Floats(None, grid, block)
    _check_whole(scale, grid, weight.shape)
    whole = tuple(n // k for n, k in zip(weight.shape, grid, strict=True))
    return _Floats(None, grid, whole)


def _block_sizes(config: Mapping[str, Any], tensor: Stored) -> list[tuple[int, ...]]:
    """The sizes of blocks that the configuration names, of which the last ones may be smaller."""
    found = [scheme.get("block_structure") for scheme in _schemes(config, tensor)]
    return [tuple(block) for block in found if is_block(block)]


def _floats(about: _Floats, parts: Arrays, dtype: Any) -> Any:
    weight, scale = parts[".weight"], parts[_SCALE]
    if about.format is not None:
        return Microscaled.from_bytes(
            weight.view(np.uint8), scale, about.format, dtype=dtype
        )
    return of_floats(weight, scale.reshape(about.grid), about.block, dtype)


def _check_fours(config: Mapping[str, Any], parts: Parts) -> _Floats:
    q, scale = parts[_PACKED], parts[_SCALE]
    q.check("uint8", (None, None))
    of_two = {"float8_e4m3fn": ("nvfp4", 16), "uint8": ("mxfp4", 32)}
    format, block = of_two.get(scale.dtype, ("mxfp4", 32))
    n, m = q.shape[0], 2 * q.shape[1]
    scale.check(tuple(of_two), (n, m // block))
    _check_whole(scale, scale.shape, (n, m))
    if format == "nvfp4":
        if _GLOBAL not in parts:
            scale.refuse(f"and there is no {_GLOBAL} beside it.")
        parts[_GLOBAL].check("float32", (1,))
    return _Floats(format, scale.shape)


def _fours(about: _Floats, parts: Arrays, dtype: Any) -> Microscaled:
    # The whole of the scales was multiplied with this one.
    scale = 1 / parts[_GLOBAL][0] if about.format == "nvfp4" else 1.0
    return Microscaled.from_bytes(
        parts[_PACKED], parts[_SCALE], str(about.format), scale=scale, dtype=dtype
    )


def _stored_in(*dtypes: str) -> Callable[[Stored, Callable[[str], bool]], bool]:
    return lambda tensor, has: tensor.dtype in dtypes and has(_SCALE)


_FORMATS = (
    *("pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "dense"),
    *("nvfp4-pack-quantized", "mxfp4-pack-quantized", "mxfp8-quantized", "mixed-precision"),
)


def format_problem(config: Mapping[str, Any]) -> str | None:
    """What is wrong with the formats that a quantization_config names, if something is."""
    sparsity = config.get("sparsity_config")
    of_sparsity = sparsity.get("format") if isinstance(sparsity, Mapping) else None
    for format in (config.get("format") or "dense", of_sparsity or "dense"):
        if format not in _FORMATS:
            return (
                f"has the format {format!r} of compressed-tensors, which is not known here. "
                f"Known are {', '.join(_FORMATS)}."
            )
    return None


METHODS = [
    Method(
        (_PACKED, _SCALE, ".weight_shape"),
        (_ZERO, _INDEX),
        ".weight",
        _check_packed,
        _packed_integers,
        lambda tensor, has: tensor.dtype == "int32",
    ),
    Method(
        (_PACKED, _SCALE),
        (_GLOBAL,),
        ".weight",
        _check_fours,
        _fours,
        lambda tensor, has: tensor.dtype != "int32",
    ),
    Method(
        (".weight", _SCALE),
        (_ZERO,),
        ".weight",
        _check_integers,
        _integers,
        _stored_in("int8"),
    ),
    Method(
        (".weight", _SCALE),
        (),
        ".weight",
        _check_floats,
        _floats,
        _stored_in("float8_e4m3fn"),
    ),
]

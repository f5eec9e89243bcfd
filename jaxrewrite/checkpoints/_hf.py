"""Quantised weights in the folders of Hugging Face's models, mapped into memory."""

from __future__ import annotations

import functools
import json
import math
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from jaxrewrite.values import NF4, Float8, Microscaled, Permutation, Product, Quantised


def load_hf(folder: str | os.PathLike[str], *, dtype: Any = "float32") -> HFTensors:
    """The tensors of a model in a folder, as Hugging Face's libraries write it.

    The files of safetensors are mapped into memory, and all of their headers are read and
    checked. A weight is read when it is looked up. Its codes stay codes: no weight becomes
    floating. ``quantization_config`` in ``config.json`` says what they are, or
    ``quantize_config.json`` of AutoGPTQ:

    ============ ===================================== =======================================
    method       what it stands for                    what it becomes
    ============ ===================================== =======================================
    gptq         integers of 2, 4 or 8 bits, in groups `Quantised`; with ``desc_act``, where the
                                                       groups have no order, its `Product` with
                                                       a `Permutation` of the inputs
    awq          integers of 4 bits, in groups         `Quantised`
    bitsandbytes levels of NF4, in blocks              `NF4`
    fp8          float8_e4m3fn, in blocks as of        `Float8`
                 128 x 128 entries
    mxfp4        MXFP4, of experts                     `Microscaled`
    ============ ===================================== =======================================

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
        If a file is not whole, the method is none of these, or the tensors of a weight do not fit
        each other.

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
    config = _json(path / "config.json") if (path / "config.json").exists() else {}
    stored: dict[str, _Stored] = {}
    for file in _files(path):
        for name, tensor in _tensors(file).items():
            if name in stored:
                tensor.refuse(f"that is also in {stored[name].file}.")
            stored[name] = tensor
    made = _weights(*_quantisation(path, config), stored, jnp.dtype(dtype))
    return HFTensors(config, made)


class HFTensors(Mapping[str, Any]):
    """The tensors of a folder, each of which is read when it is looked up; see `load_hf`."""

    config: dict[str, Any]

    def __init__(
        self, config: dict[str, Any], made: Mapping[str, Callable[[], Any]]
    ) -> None:
        self.config = config
        self._made = made

    def __getitem__(self, name: str) -> Any:
        return self._made[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._made)

    def __len__(self) -> int:
        return len(self._made)

    def __repr__(self) -> str:
        return f"HFTensors({len(self)} tensors)"


# --- files ------------------------------------------------------------------------------

_INDEX = "model.safetensors.index.json"

_DTYPES = {
    **{"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"},
    **{"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "BOOL": "bool"},
    **{f"{kind}{bits}": f"{name}{bits}" for kind, name in (("I", "int"), ("U", "uint")) for bits in (8, 16, 32, 64)},
}  # fmt: skip


class _Stored(NamedTuple):
    """A tensor in a file."""

    name: str
    file: pathlib.Path
    data: np.ndarray
    dtype: str
    shape: tuple[int, ...]

    def array(self) -> np.ndarray:
        """The tensor, which is in the file."""
        return self.data.view(jnp.dtype(self.dtype)).reshape(self.shape)

    def refuse(self, why: str) -> NoReturn:
        raise ValueError(f"load_hf: {self.file} has a tensor {self.name} {why}")

    def check(self, dtypes: str | Sequence[str], shape: Sequence[int | None]) -> None:
        """Raise unless it has this dtype, and this shape, where None is any length."""
        dtypes = (dtypes,) if isinstance(dtypes, str) else tuple(dtypes)
        fits = len(shape) == len(self.shape) and all(
            n is None or n == m for n, m in zip(shape, self.shape, strict=True)
        )
        if self.dtype not in dtypes or not fits:
            wanted = ", ".join("any" if n is None else str(n) for n in shape)
            self.refuse(
                f"of dtype {self.dtype} and shape {self.shape}, where {' or '.join(dtypes)} of "
                f"shape ({wanted}) is expected."
            )


def _json(file: pathlib.Path) -> dict[str, Any]:
    if not file.is_file():
        raise FileNotFoundError(f"load_hf: there is no file {file}.")
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"load_hf: {file} is not whole JSON: {error}.") from error
    if not isinstance(found, dict):
        raise ValueError(f"load_hf: {file} holds no table.")
    return found


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
        return own, {"quant_method": "gptq", **_json(own)}
    return file, found


def _files(folder: pathlib.Path) -> list[pathlib.Path]:
    """The files of safetensors: those of the index if there is one."""
    files = sorted(folder.glob("*.safetensors"))
    if (folder / _INDEX).exists():
        names = _json(folder / _INDEX).get("weight_map")
        if not isinstance(names, dict) or not all(
            isinstance(x, str) for x in names.values()
        ):
            raise ValueError(f"load_hf: {folder / _INDEX} has no table `weight_map`.")
        files = [folder / name for name in sorted(set(names.values()))]
        missing = [str(file) for file in files if not file.is_file()]
        if missing:
            raise FileNotFoundError(
                f"load_hf: {folder / _INDEX} names files that are not there: "
                f"{', '.join(missing)}."
            )
    if not files:
        raise FileNotFoundError(f"load_hf: there is no file *.safetensors in {folder}.")
    return files


def _tensors(file: pathlib.Path) -> dict[str, _Stored]:
    """The tensors of a file: eight bytes with the length of a header of JSON, it, and data."""

    def refuse(why: str) -> NoReturn:
        raise ValueError(f"load_hf: {file} is not a whole file of safetensors: {why}")

    length = file.stat().st_size
    if length < 8:
        refuse(f"it has {length} bytes.")
    data = np.memmap(file, np.uint8, "r")
    first = 8 + int.from_bytes(bytes(data[:8]), "little")
    if first > length:
        refuse(f"its header ends at byte {first}, and the file at byte {length}.")
    try:
        header = json.loads(bytes(data[8:first]))
    except (ValueError, RecursionError) as error:
        refuse(f"its header is not JSON: {error}.")
    if not isinstance(header, dict):
        refuse("its header holds no table.")
    tensors = {}
    for name, about in header.items():
        if name == "__metadata__":
            continue
        try:
            shape, (start, end) = about["shape"], about["data_offsets"]
            dtype, numbers = str(about["dtype"]), [*shape, start, end]
            if any(type(n) is not int or n < 0 for n in numbers):
                raise ValueError(f"{numbers} are not all sizes and places")
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"load_hf: {file} does not say what the tensor {name} is: {about}."
            ) from error
        part = data[first + start : first + end]
        tensor = _Stored(name, file, part, _DTYPES.get(dtype, dtype), tuple(shape))
        if dtype not in _DTYPES:
            tensor.refuse(f"of dtype {dtype}, which is not known here.")
        size = math.prod(shape) * jnp.dtype(tensor.dtype).itemsize
        if end - start != size or len(part) != size:
            tensor.refuse(
                f"of dtype {tensor.dtype} and shape {tensor.shape}, which takes {size} bytes; it "
                f"is at bytes {first + start} to {first + end} of {length}."
            )
        tensors[name] = tensor
    return tensors


# --- methods -----------------------------------------------------------------------------

# How a weight is made, from the configuration, the tensors that make it, and the dtype.
_Made = Callable[[], Any]


class _Method(NamedTuple):
    """How a method stores a weight.

    ``suffixes`` are those of the tensors that make a weight, the first one of which tells that there
    is one, and ``optional`` more of them. ``check`` raises an error if they do not fit each other,
    and gives what ``make`` needs besides.
    """

    suffixes: tuple[str, ...]
    optional: tuple[str, ...]
    result: str
    check: Callable[[Mapping[str, Any], Mapping[str, _Stored]], Any]
    make: Callable[[Any, Mapping[str, np.ndarray], Any], Any]


def _weights(
    file: pathlib.Path,
    config: Mapping[str, Any],
    stored: Mapping[str, _Stored],
    dtype: Any,
) -> dict[str, _Made]:
    """A function for each weight, and for each tensor that belongs to none."""
    kind = str(config.get("quant_method"))
    made: dict[str, _Made] = {}
    used: set[str] = set()
    if config and kind not in _METHODS:
        raise ValueError(
            f"load_hf: {file} has the quant_method {kind!r}, which is not known "
            f"here. Known are {', '.join(_METHODS)}."
        )
    for method in [_METHODS[kind]] if config else []:
        first, *others = method.suffixes
        for name, tensor in stored.items():
            prefix = name.removesuffix(first)
            if not name.endswith(first) or not _is_one(kind, tensor, stored, prefix):
                continue
            parts = {first: tensor}
            for suffix in (*others, *method.optional):
                if prefix + suffix in stored:
                    parts[suffix] = stored[prefix + suffix]
                elif suffix in others:
                    tensor.refuse(f"and there is no tensor {prefix + suffix}.")
            about = method.check(config, parts)
            used |= {part.name for part in parts.values()}
            made[prefix + method.result] = functools.partial(
                _made, method, about, parts, dtype
            )
    arrays = {name: tensor for name, tensor in stored.items() if name not in used}
    return made | {name: functools.partial(_array, x) for name, x in arrays.items()}


def _is_one(kind: str, tensor: _Stored, stored: Mapping[str, _Stored], prefix: str) -> bool:
    """Whether a weight whose name does not tell is quantised: some layers are not."""
    if kind == "fp8":
        return tensor.dtype == "float8_e4m3fn"
    if kind == "bitsandbytes" and tensor.dtype in ("uint8", "int8"):
        if f"{prefix}.weight{_NF4_STATE}" not in stored:
            tensor.refuse(f"and no {prefix}.weight{_NF4_STATE}: only NF4 is read.")
        return True
    return kind != "bitsandbytes"


def _made(method: _Method, about: Any, parts: Mapping[str, _Stored], dtype: Any) -> Any:
    return method.make(about, {key: part.array() for key, part in parts.items()}, dtype)


def _array(tensor: _Stored) -> jax.Array:
    return jnp.asarray(tensor.array())


_FLOATS = ("float16", "bfloat16", "float32")


class _Groups(NamedTuple):
    """Integers of some bits, whose groups share a scale and a zero."""

    bits: int
    more: int  # What the zeros are more than those in the file.


def _bits(config: Mapping[str, Any], tensor: _Stored, known: Sequence[int]) -> int:
    bits = config.get("bits", config.get("w_bit"))
    if bits not in known:
        tensor.refuse(
            f"of {bits!r} bits by the quantization_config. Known are "
            f"{', '.join(map(str, known))}."
        )
    return int(bits)


def _fields(words: np.ndarray, bits: int) -> np.ndarray:
    """The integers of so many bits in words of 32, along the last axis, the lowest first."""
    in_bytes = np.ascontiguousarray(words).view(np.uint8)
    fields = np.empty((*in_bytes.shape, 8 // bits), np.uint8)
    # Field by field: NumPy takes ten times as long along a short last axis.
    for i in range(8 // bits):
        np.right_shift(in_bytes, i * bits, out=fields[..., i])
    fields &= 2**bits - 1
    return fields.reshape(*words.shape[:-1], -1)


def _quantised(
    codes: np.ndarray, zeros: np.ndarray, scales: np.ndarray, bits: int, dtype: Any
) -> Quantised:
    """The weight of codes from zero on; ``scales`` and ``zeros`` are those of groups."""
    middle = 2 ** (bits - 1)
    signed = (codes ^ np.uint8(middle)) if bits == 8 else codes - np.uint8(middle)
    zero = zeros.astype(np.int16) - middle
    return Quantised.from_integers(
        signed.view(np.int8),
        jnp.asarray(scales).astype(dtype),
        jnp.asarray(zero) if zero.any() else None,
        bits=bits,
    )


def _check_gptq(config: Mapping[str, Any], parts: Mapping[str, _Stored]) -> _Groups:
    q, zeros, scales = (parts[key] for key in (".qweight", ".qzeros", ".scales"))
    bits = _bits(config, q, (2, 4, 8))
    q.check("int32", (None, None))
    length, width, each = q.shape[0] * 32 // bits, q.shape[1], 32 // bits
    scales.check(_FLOATS, (None, width))
    groups = scales.shape[0]
    zeros.check("int32", (groups, -(-width // each)))
    if not length or not groups or length % groups:
        scales.refuse(f"of shape {scales.shape}, which has no groups of {length} inputs.")
    if ".g_idx" in parts:
        parts[".g_idx"].check("int32", (length,))
        index = parts[".g_idx"].array()
        counts = np.bincount(index, minlength=groups) if index.min() >= 0 else np.zeros(1)
        if counts.shape != (groups,) or (counts != length // groups).any():
            parts[".g_idx"].refuse(
                f"which does not give each of {groups} groups {length // groups} inputs."
            )
    is_second = config.get("checkpoint_format") == "gptq_v2"
    return _Groups(bits, 0 if is_second else 1)


def _gptq(about: _Groups, parts: Mapping[str, np.ndarray], dtype: Any) -> Any:
    # In (in, out), with neighbours along the first axis in a word.
    codes = _fields(parts[".qweight"].T, about.bits)
    scales = parts[".scales"].T
    zeros = _fields(parts[".qzeros"], about.bits)[:, : len(scales)].T
    zeros = zeros.astype(np.int16) + about.more
    index = parts.get(".g_idx")
    if index is None or (np.diff(index) >= 0).all():
        return _quantised(codes, zeros, scales, about.bits, dtype)
    order = np.argsort(index, kind="stable")
    in_order = _quantised(codes[:, order], zeros, scales, about.bits, dtype)
    return Product((in_order, Permutation(jnp.asarray(order, jnp.int32), dtype)))


# The columns whose codes are in a word of AWQ, from the lowest bits on.
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def _check_awq(config: Mapping[str, Any], parts: Mapping[str, _Stored]) -> _Groups:
    q, zeros, scales = (parts[key] for key in (".qweight", ".qzeros", ".scales"))
    bits = _bits(config, q, (4,))
    if str(config.get("version", "gemm")).lower() != "gemm":
        q.refuse(f"of the version {config['version']!r} of AWQ. Known is gemm.")
    q.check("int32", (None, None))
    length, words = q.shape
    scales.check(_FLOATS, (None, 8 * words))
    groups = scales.shape[0]
    zeros.check("int32", (groups, words))
    if not length or not groups or length % groups:
        scales.refuse(f"of shape {scales.shape}, which has no groups of {length} inputs.")
    return _Groups(bits, 0)


def _awq(about: _Groups, parts: Mapping[str, np.ndarray], dtype: Any) -> Any:
    places = np.argsort(_AWQ_ORDER)

    def codes(words: np.ndarray) -> np.ndarray:
        fields = _fields(words, about.bits)
        return fields.reshape(len(words), -1, 8)[..., places].reshape(len(words), -1).T

    scales = parts[".scales"].T
    q, zeros = codes(parts[".qweight"]), codes(parts[".qzeros"])
    return _quantised(np.ascontiguousarray(q), zeros, scales, about.bits, dtype)


_NF4_STATE = ".quant_state.bitsandbytes__nf4"


class _Blocks(NamedTuple):
    """A weight in blocks of so many neighbours, and what is added to their magnitudes."""

    shape: tuple[int, int]
    block: int
    nested_block: int
    offset: float


def _check_nf4(config: Mapping[str, Any], parts: Mapping[str, _Stored]) -> _Blocks:
    state, weight = parts[f".weight{_NF4_STATE}"], parts[".weight"]
    state.check("uint8", (None,))
    try:
        about = json.loads(bytes(state.array()))
        shape, block = tuple(about["shape"]), int(about["blocksize"])
        nested, offset = about.get("nested_blocksize", 0), about.get("nested_offset", 0)
        n, m = shape
        is_right = n > 0 and m > 0 and block > 0 and m % block == 0
        numbers = int(nested), float(offset)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"load_hf: {state.file} has a tensor {state.name} that does not say what the weight "
            f"is: {error}."
        ) from error
    if not is_right:
        weight.refuse(f"for {shape}, whose rows do not consist of blocks of {block}.")
    weight.check("uint8", (n * m // 2, 1))
    absmax, count = parts[".weight.absmax"], n * m // block
    if absmax.dtype == "uint8":
        absmax.check("uint8", (count,))
        if numbers[0] < 1 or ".weight.nested_absmax" not in parts:
            absmax.refuse("that is quantised, and nothing says how.")
        parts[".weight.nested_absmax"].check("float32", (-(-count // numbers[0]),))
        if ".weight.nested_quant_map" not in parts:
            absmax.refuse("that is quantised, and there is no nested_quant_map.")
        parts[".weight.nested_quant_map"].check("float32", (256,))
    else:
        absmax.check("float32", (count,))
    parts[".weight.quant_map"].check("float32", (16,))
    if not np.allclose(parts[".weight.quant_map"].array(), _levels_of_nf4(), 0, 1e-6):
        parts[".weight.quant_map"].refuse("whose numbers are not the levels of NF4.")
    return _Blocks((n, m), block, *numbers)


@functools.cache
def _levels_of_nf4() -> np.ndarray:
    with jax.ensure_compile_time_eval():
        return np.asarray(NF4.from_levels(jnp.arange(16), jnp.ones(1)))


def _nf4(about: _Blocks, parts: Mapping[str, np.ndarray], dtype: Any) -> NF4:
    (n, m), block = about.shape, about.block
    # The first of two neighbours is in the upper bits.
    pairs = parts[".weight"]
    codes = np.concatenate([pairs >> 4, pairs & 15], 1).reshape(n, m)
    magnitude = parts[".weight.absmax"]
    if magnitude.dtype == np.uint8:
        scales = np.repeat(parts[".weight.nested_absmax"], about.nested_block)
        levels = parts[".weight.nested_quant_map"][magnitude]
        magnitude = levels * scales[: len(levels)] + np.float32(about.offset)
    grid = magnitude.reshape(n, m // block)
    return NF4.from_levels(codes, jnp.asarray(grid).astype(dtype))


def _check_fp8(config: Mapping[str, Any], parts: Mapping[str, _Stored]) -> tuple[int, int]:
    weight, scale = parts[".weight"], parts[".weight_scale_inv"]
    block: Any = config.get("weight_block_size") or ()
    if len(block) != 2 or not all(type(b) is int and b > 0 for b in block):
        weight.refuse(f"with weight_block_size={block!r} in the quantization_config.")
    weight.check("float8_e4m3fn", (None, None))
    grid = [-(-n // b) for n, b in zip(weight.shape, block, strict=True)]
    scale.check(_FLOATS, grid)
    return block[0], block[1]


def _fp8(block: tuple[int, int], parts: Mapping[str, np.ndarray], dtype: Any) -> Float8:
    weight, scale = parts[".weight"], parts[".weight_scale_inv"]
    for axis, (n, b) in enumerate(zip(weight.shape, block, strict=True)):
        if n > b and n % b:
            # The last block is not whole: the scales of blocks of a size that fits.
            run = math.gcd(n, b)
            scale = np.take(scale, np.arange(0, n, run) // b, axis)
    bits = jnp.asarray(weight.view(np.uint8))
    return Float8(bits, jnp.asarray(scale).astype(dtype), "float8_e4m3fn")


def _check_mxfp4(config: Mapping[str, Any], parts: Mapping[str, _Stored]) -> None:
    blocks, scales = parts["_blocks"], parts["_scales"]
    blocks.check("uint8", (*blocks.shape[:-1], 16))
    scales.check("uint8", blocks.shape[:-1])


def _mxfp4(about: None, parts: Mapping[str, np.ndarray], dtype: Any) -> Microscaled:
    blocks, scales = parts["_blocks"], parts["_scales"]
    codes = blocks.reshape(*blocks.shape[:-2], -1)
    return Microscaled.from_bytes(codes, scales, "mxfp4", dtype=dtype)


_METHODS = {
    "gptq": _Method(
        (".qweight", ".qzeros", ".scales"), (".g_idx",), ".weight", _check_gptq, _gptq
    ),
    "awq": _Method((".qweight", ".qzeros", ".scales"), (), ".weight", _check_awq, _awq),
    "bitsandbytes": _Method(
        (".weight", ".weight.absmax", ".weight.quant_map", f".weight{_NF4_STATE}"),
        (".weight.nested_absmax", ".weight.nested_quant_map"),
        ".weight",
        _check_nf4,
        _nf4,
    ),
    "fp8": _Method((".weight", ".weight_scale_inv"), (), ".weight", _check_fp8, _fp8),
    "mxfp4": _Method(("_blocks", "_scales"), (), "", _check_mxfp4, _mxfp4),
}

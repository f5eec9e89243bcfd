"""How the methods of quantisation store a weight in a file, and which value it becomes."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np

from jaxrewrite.values import NF4, Float8, Microscaled, Permutation, Product, Quantised

from ._safetensors import Stored


Parts = Mapping[str, Stored]
Arrays = Mapping[str, np.ndarray]


class Method(NamedTuple):
    """How a method stores a weight.

    ``suffixes`` are those of the tensors that make a weight, the first one of which tells that there
    may be one, and ``optional`` more of them. ``applies`` says of that tensor, by the tensors
    there are, whether it is one. ``check`` raises an error if they do not fit each other, and gives
    what ``make`` needs besides.
    """

    suffixes: tuple[str, ...]
    optional: tuple[str, ...]
    result: str
    check: Callable[[Mapping[str, Any], Parts], Any]
    make: Callable[[Any, Arrays, Any], Any]
    applies: Callable[[Stored, Callable[[str], bool]], bool] = lambda tensor, has: True

    def parts(self, stored: Parts) -> Iterator[tuple[str, dict[str, Stored]]]:
        """The name of each weight, and the tensors that make it, by their suffixes."""
        first, *others = self.suffixes
        for name, tensor in stored.items():
            prefix = name.removesuffix(first)
            has = lambda suffix, prefix=prefix: prefix + suffix in stored
            if not name.endswith(first) or not self.applies(tensor, has):
                continue
            missing = next((suffix for suffix in others if not has(suffix)), None)
            if missing is not None:
                tensor.refuse(f"and there is no tensor {prefix}{missing}.")
            suffixes = [x for x in (*self.suffixes, *self.optional) if has(x)]
            yield prefix + self.result, {x: stored[prefix + x] for x in suffixes}


FLOATS = ("float16", "bfloat16", "float32")


class _Groups(NamedTuple):
    """Integers of some bits, whose groups share a scale and a zero.

    ``more`` is what the zeros are more than those in the file, of which the largest stands for zero.
    """

    bits: int
    more: int = 0


def _bits(config: Mapping[str, Any], tensor: Stored, known: Sequence[int]) -> int:
    bits = config.get("bits", config.get("w_bit"))
    if bits not in known:
        tensor.refuse(
            f"of {bits!r} bits by the quantization_config. Known are "
            f"{', '.join(map(str, known))}."
        )
    return int(bits)


def words_for(count: int, bits: int) -> int:
    """How many words of 32 bits hold so many integers of some bits."""
    return -(-count * bits // 32)


def fields(words: np.ndarray, bits: int) -> np.ndarray:
    """The integers of so many bits in words of 32, along the last axis, the lowest first."""
    in_bytes = np.ascontiguousarray(words).view(np.uint8)
    if 8 % bits:
        return _across_bytes(in_bytes, bits)
    fields = np.empty((*in_bytes.shape, 8 // bits), np.uint8)
    # Field by field: NumPy takes ten times as long along a short last axis.
    for i in range(8 // bits):
        np.right_shift(in_bytes, i * bits, out=fields[..., i])
    fields &= 2**bits - 1
    return fields.reshape(*words.shape[:-1], -1)


def _across_bytes(in_bytes: np.ndarray, bits: int) -> np.ndarray:
    """The integers of so many bits that follow each other in bytes, eight in so many of them."""
    more = -in_bytes.shape[-1] % bits
    whole = np.pad(in_bytes, [(0, 0)] * (in_bytes.ndim - 1) + [(0, more)])
    groups = whole.reshape(*whole.shape[:-1], -1, bits)
    fields = np.empty((*groups.shape[:-1], 8), np.uint8)
    for i in range(8):
        byte, shift = divmod(i * bits, 8)
        np.right_shift(groups[..., byte], shift, out=fields[..., i])
        if shift + bits > 8:
            fields[..., i] |= groups[..., byte + 1] << np.uint8(8 - shift)
    fields &= 2**bits - 1
    return fields.reshape(*in_bytes.shape[:-1], -1)


def quantised(
    codes: np.ndarray, zeros: np.ndarray, scales: np.ndarray, bits: int, dtype: Any
) -> Quantised:
    """The weight of codes from zero on; ``scales`` and ``zeros`` are those of groups."""
    middle = 2 ** (bits - 1)
    signed = codes - np.uint8(middle)  # It wraps around, as integers with a sign do.
    zero = zeros.astype(np.int16) - middle
    return Quantised.from_integers(
        signed.view(np.int8),
        jnp.asarray(scales).astype(dtype),
        jnp.asarray(zero) if zero.any() else None,
        bits=bits,
    )


def check_order(index: Stored, length: int, groups: int) -> None:
    """Raise unless it gives each of the groups as many inputs."""
    index.check("int32", (length,))
    in_groups = np.repeat(np.arange(groups), length // groups)
    if not np.array_equal(np.sort(index.array()), in_groups):
        index.refuse(
            f"which does not give each of {groups} groups {length // groups} inputs."
        )


def in_order(codes: np.ndarray, index: np.ndarray | None, make: Callable[..., Any]) -> Any:
    """The weight that is made of codes in the order of their groups."""
    if index is None or (np.diff(index) >= 0).all():
        return make(codes)
    order = np.argsort(index, kind="stable")
    in_order = make(codes[:, order])
    return Product((in_order, Permutation(jnp.asarray(order, jnp.int32), in_order.dtype)))


def _check_groups(parts: Parts, length: int, width: int, bits: int) -> int:
    """How many groups of inputs have scales and zeros, for so many inputs and outputs."""
    scales = parts[".scales"]
    scales.check(FLOATS, (None, width))
    groups = scales.shape[0]
    parts[".qzeros"].check("int32", (groups, words_for(width, bits)))
    if not length or not groups or length % groups:
        scales.refuse(f"of shape {scales.shape}, which has no groups of {length} inputs.")
    return groups


# What stands in a configuration of GPTQ for the layouts that are read, of which the first is the
# default.
_OF_GPTQ = ("gptq", "gptq_v2")


def gptq_problem(config: Mapping[str, Any]) -> str | None:
    """What is wrong with the layout that a quantization_config of GPTQ names, if something is."""
    layout = config.get("checkpoint_format") or _OF_GPTQ[0]
    if config.get("is_marlin_format", False):
        layout = "marlin"
    if layout in _OF_GPTQ:
        return None
    return (
        f"has the checkpoint_format {layout!r} of GPTQ, which is not known here. Known are "
        f"{', '.join(_OF_GPTQ)}."
    )


def _check_gptq(config: Mapping[str, Any], parts: Parts) -> _Groups:
    q = parts[".qweight"]
    bits = _bits(config, q, (2, 3, 4, 8))
    q.check("int32", (None, None))
    length, width = q.shape[0] * 32 // bits, q.shape[1]
    if length * bits != q.shape[0] * 32:
        q.refuse(f"of shape {q.shape}, which ends within an integer of {bits} bits.")
    groups = _check_groups(parts, length, width, bits)
    if ".g_idx" in parts:
        check_order(parts[".g_idx"], length, groups)
    is_second = config.get("checkpoint_format") == _OF_GPTQ[1]
    return _Groups(bits, 0 if is_second else 1)


def _gptq(about: _Groups, parts: Arrays, dtype: Any) -> Any:
    # In (in, out), with neighbours along the first axis in a word.
    codes = fields(parts[".qweight"].T, about.bits)
    scales = parts[".scales"].T
    zeros = fields(parts[".qzeros"], about.bits)[:, : len(scales)].T
    zeros = (zeros + np.uint8(about.more)) & np.uint8(2**about.bits - 1)
    make = lambda codes: quantised(codes, zeros, scales, about.bits, dtype)
    return in_order(codes, parts.get(".g_idx"), make)


# The columns whose codes are in a word of AWQ, from the lowest bits on.
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def _check_awq(config: Mapping[str, Any], parts: Parts) -> _Groups:
    q = parts[".qweight"]
    bits = _bits(config, q, (4,))
    if str(config.get("version", "gemm")).lower() != "gemm":
        q.refuse(f"of the version {config['version']!r} of AWQ. Known is gemm.")
    q.check("int32", (None, None))
    length, words = q.shape
    _check_groups(parts, length, 8 * words, bits)
    return _Groups(bits)


def _awq(about: _Groups, parts: Arrays, dtype: Any) -> Any:
    places = np.argsort(_AWQ_ORDER)

    def codes(words: np.ndarray) -> np.ndarray:
        in_words = fields(words, about.bits).reshape(len(words), -1, 8)
        return in_words[..., places].reshape(len(words), -1).T

    scales = parts[".scales"].T
    q, zeros = codes(parts[".qweight"]), codes(parts[".qzeros"])
    return quantised(np.ascontiguousarray(q), zeros, scales, about.bits, dtype)


def _state(kind: str) -> str:
    """The suffix of the tensor that says what a weight of four bits is."""
    return f".weight.quant_state.bitsandbytes__{kind}"


# Levels of FP4 times twelve, which are numbers of float8_e4m3fn. The first eight are positive.
_FP4 = (0.0, 0.0625, 8.0, 12.0, 4.0, 6.0, 2.0, 3.0)


class _Blocks(NamedTuple):
    """A weight in blocks of so many neighbours, and what is added to their magnitudes."""

    shape: tuple[int, int]
    block: int
    nested_block: int
    offset: float


def _check_levels(
    kind: str,
    levels: Callable[[], np.ndarray],
    config: Mapping[str, Any],
    parts: Parts,
) -> _Blocks:
    state, weight = parts[_state(kind)], parts[".weight"]
    state.check("uint8", (None,))
    try:
        about = json.loads(bytes(state.array()))
        shape, block = tuple(about["shape"]), int(about["blocksize"])
        nested, offset = about.get("nested_blocksize", 0), about.get("nested_offset", 0)
        n, m = shape
        is_right = n > 0 and m > 0 and block > 0 and m % block == 0
        numbers = int(nested), float(offset)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
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
    if not np.allclose(parts[".weight.quant_map"].array(), levels(), 0, 1e-6):
        name = kind.upper()
        parts[".weight.quant_map"].refuse(f"whose numbers are not the levels of {name}.")
    return _Blocks((n, m), block, *numbers)


@functools.cache
def _levels_of_nf4() -> np.ndarray:
    with jax.ensure_compile_time_eval():
        return np.asarray(NF4.from_levels(jnp.arange(16), jnp.ones(1)))


def _levels_of_fp4() -> np.ndarray:
    return np.array([*_FP4, *(-x for x in _FP4)]) / 12


def _nf4(about: _Blocks, parts: Arrays, dtype: Any) -> NF4:
    codes, magnitude = _codes_and_magnitudes(about, parts)
    return NF4.from_levels(codes, jnp.asarray(magnitude).astype(dtype))


def _fp4(about: _Blocks, parts: Arrays, dtype: Any) -> Float8:
    codes, magnitude = _codes_and_magnitudes(about, parts)
    bits = np.array([*_FP4, *(-x for x in _FP4)], "float32").astype("float8_e4m3fn")
    scale = jnp.asarray(magnitude / np.float32(12)).astype(dtype)
    return Float8(jnp.asarray(bits.view(np.uint8)[codes]), scale, "float8_e4m3fn")


def _codes_and_magnitudes(about: _Blocks, parts: Arrays) -> tuple[np.ndarray, np.ndarray]:
    (n, m), block = about.shape, about.block
    # The first of two neighbours is in the upper bits.
    pairs = parts[".weight"]
    codes = np.concatenate([pairs >> 4, pairs & 15], 1).reshape(n, m)
    magnitude = parts[".weight.absmax"]
    if magnitude.dtype == np.uint8:
        levels = parts[".weight.nested_quant_map"][magnitude]
        of_levels = np.arange(len(levels)) // about.nested_block
        scales = parts[".weight.nested_absmax"][of_levels]
        magnitude = levels * scales + np.float32(about.offset)
    return codes, magnitude.reshape(n, m // block)


def _is_nf4(tensor: Stored, has: Callable[[str], bool]) -> bool:
    """Whether a weight is of levels. One that is of bytes and none of the others is refused."""
    names = _state("nf4"), _state("fp4"), ".SCB"
    if tensor.dtype in ("uint8", "int8") and not any(map(has, names)):
        tensor.refuse(f"with none of {', '.join(names)}: only NF4, FP4 and int8 are read.")
    return has(names[0])


def _four_bits(
    kind: str,
    levels: Callable[[], np.ndarray],
    make: Callable[..., Any],
    applies: Callable[[Stored, Callable[[str], bool]], bool],
) -> Method:
    return Method(
        (".weight", ".weight.absmax", ".weight.quant_map", _state(kind)),
        (".weight.nested_absmax", ".weight.nested_quant_map"),
        ".weight",
        functools.partial(_check_levels, kind, levels),
        make,
        applies,
    )


def _check_int8(config: Mapping[str, Any], parts: Parts) -> None:
    parts[".weight"].check("int8", (None, None))
    parts[".SCB"].check("float32", parts[".weight"].shape[:1])
    order = parts.get(".weight_format")
    # Others are orders of entries that some processors are quick with.
    if order is not None and order.array().any():
        order.refuse("that says of the weight that it is not in rows.")


def _int8(about: None, parts: Arrays, dtype: Any) -> Quantised:
    scale = jnp.asarray(parts[".SCB"][:, None] / np.float32(127)).astype(dtype)
    return Quantised.from_integers(parts[".weight"], scale, bits=8)


# The scales of a weight in blocks have its name with this behind.
_OF_BLOCKS = "_scale_inv"


def _is_in_blocks(tensor: Stored, has: Callable[[str], bool]) -> bool:
    """Whether a tensor is a weight in blocks: that of a layer, or experts under a name of their own."""
    is_weight = tensor.name.endswith(".weight") or has(_OF_BLOCKS)
    return tensor.dtype == "float8_e4m3fn" and is_weight


def _check_fp8(config: Mapping[str, Any], parts: Parts) -> tuple[int, ...]:
    """The sizes of blocks along all axes, of which the last two are those of a matrix."""
    weight, scale = parts[""], parts[_OF_BLOCKS]
    block: Any = config.get("weight_block_size") or ()
    if not is_block(block):
        weight.refuse(f"with weight_block_size={block!r} in the quantization_config.")
    stack = weight.shape[:-2]
    weight.check("float8_e4m3fn", (*stack, None, None))
    sizes = (*(1 for _ in stack), *block)
    scale.check(FLOATS, [-(-n // b) for n, b in zip(weight.shape, sizes, strict=True)])
    return sizes


def is_block(found: Any) -> TypeGuard[list[int]]:
    """Whether a configuration says with this the sizes of blocks of a matrix."""
    is_pair = isinstance(found, list) and len(found) == 2
    return is_pair and all(type(b) is int and b > 0 for b in found)


def _fp8(block: tuple[int, ...], parts: Arrays, dtype: Any) -> Float8:
    return of_floats(parts[""], parts[_OF_BLOCKS], block, dtype)


def of_floats(
    weight: np.ndarray, scale: np.ndarray, block: Sequence[int], dtype: Any
) -> Float8:
    """The weight of float8_e4m3fn whose blocks of these sizes share a scale."""
    for axis, (n, b) in enumerate(zip(weight.shape, block, strict=True)):
        if n > b and n % b:
            # The last block is not whole: the scales of blocks of a size that fits.
            run = math.gcd(n, b)
            scale = np.take(scale, np.arange(0, n, run) // b, axis)
    bits = jnp.asarray(weight.view(np.uint8))
    return Float8(bits, jnp.asarray(scale).astype(dtype), "float8_e4m3fn")


def _check_mxfp4(config: Mapping[str, Any], parts: Parts) -> None:
    blocks, scales = parts["_blocks"], parts["_scales"]
    blocks.check("uint8", (*(blocks.shape[:-1] or (None,)), 16))
    scales.check("uint8", blocks.shape[:-1])


def _mxfp4(about: None, parts: Arrays, dtype: Any) -> Microscaled:
    blocks, scales = parts["_blocks"], parts["_scales"]
    codes = blocks.reshape(*blocks.shape[:-2], -1)
    return Microscaled.from_bytes(codes, scales, "mxfp4", dtype=dtype)


# The methods by their names in a quantization_config, each with the ways in which it stores weights.
METHODS: Mapping[str, Sequence[Method]] = {
    "gptq": [
        Method(
            (".qweight", ".qzeros", ".scales"), (".g_idx",), ".weight", _check_gptq, _gptq
        )
    ],
    "awq": [Method((".qweight", ".qzeros", ".scales"), (), ".weight", _check_awq, _awq)],
    "bitsandbytes": [
        _four_bits("nf4", _levels_of_nf4, _nf4, _is_nf4),
        _four_bits("fp4", _levels_of_fp4, _fp4, lambda tensor, has: has(_state("fp4"))),
        Method(
            (".weight", ".SCB"),
            (".weight_format",),
            ".weight",
            _check_int8,
            _int8,
            lambda tensor, has: has(".SCB"),
        ),
    ],
    "fp8": [
        Method(("", _OF_BLOCKS), (), "", _check_fp8, _fp8, _is_in_blocks),
    ],
    "mxfp4": [Method(("_blocks", "_scales"), (), "", _check_mxfp4, _mxfp4)],
}

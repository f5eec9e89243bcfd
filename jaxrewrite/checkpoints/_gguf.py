"""Tensors of GGUF files, mapped into memory."""

from __future__ import annotations

import math
import os
import pathlib
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from jaxrewrite.values import GGUF

from ._leaves import as_array
from ._tensors import Tensors


def load_gguf(path: str | os.PathLike[str], *, dtype: Any = "float32") -> GGUFTensors:
    """The tensors of a GGUF file, the weights of llama.cpp.

    The file is mapped into memory, and its header is read and checked. A tensor is read when
    it is looked up, and its bytes go to the default device as they are: no weight becomes
    floating. To place it elsewhere, use `jax.default_device` or `jax.device_put`.

    Parameters
    ----------
    path
        The file, of version 2 or 3. It must stay as it is while its tensors are in use. A model
        in several files is a mapping for each.
    dtype
        The dtype of the quantised tensors as arrays, floating.

    Returns
    -------
    GGUFTensors
        A mapping from the names of the tensors to a `jaxrewrite.values.GGUF` for each one in a
        quantised format, and to an array for each other one. Its attribute ``metadata`` is a
        dictionary of what else the file says, such as the sizes of the model and its vocabulary.

        The axes are those of PyTorch, in the opposite order of that in the file: a weight of
        a linear layer has the shape (out, in), and is multiplied as ``x @ w.T``, which reads it
        where it is. Its blocks are along the last axis.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If it is no whole GGUF file, is of another version or byte order, or has a tensor of a
        type that is not known, or of a shape that its type cannot have. Where a tensor is looked
        up, if it has integers of more than 32 bits and JAX has none.

    Examples
    --------
    .. code-block:: python

        import jax.numpy as jnp, jaxrewrite
        from jaxrewrite.checkpoints import load_gguf

        tensors = load_gguf("model-Q4_K_M.gguf", dtype="bfloat16")
        layers = tensors.metadata["llama.block_count"]
        query = tensors["blk.0.attn_q.weight"]  # GGUF<bf16[4096,4096], 9.44 MB>(...)
        x = jnp.ones((1, 4096), "bfloat16")
        y = jaxrewrite.transform(lambda w, x: x @ w.T)(query, x)
    """
    file = pathlib.Path(path)
    if not file.is_file():
        raise FileNotFoundError(f"load_gguf: there is no file {file}.")
    if not jnp.issubdtype(dtype, jnp.floating):
        raise ValueError(f"load_gguf: `dtype` must be real floating; got {dtype}.")
    return GGUFTensors(*_read(file), jnp.dtype(dtype))


class GGUFTensors(Tensors):
    """The tensors of a file, each of which is read when it is looked up; see `load_gguf`."""

    metadata: dict[str, Any]

    def __init__(
        self,
        data: np.ndarray,
        metadata: dict[str, Any],
        tensors: Mapping[str, _Tensor],
        dtype: Any,
    ) -> None:
        super().__init__(tensors)
        self.metadata = metadata
        self._data, self._dtype = data, dtype

    def __getitem__(self, name: str) -> jax.Array | GGUF:
        tensor: _Tensor = self._table[name]
        data = self._data[tensor.start : tensor.start + tensor.size]
        if tensor.kind in _DTYPES:
            stored = data.view(_DTYPES[tensor.kind])
            return as_array(stored.reshape(tensor.shape), name)
        return GGUF.from_bytes(
            data.reshape(*tensor.shape[:-1], -1), tensor.kind, self._dtype
        )

    def __repr__(self) -> str:
        size = sum(tensor.size for tensor in self._table.values())
        return f"GGUFTensors({len(self)} tensors of {size / 1e6:,.1f} MB)"


# --- the format -----------------------------------------------------------------------


class _Tensor(NamedTuple):
    """Where a tensor is in a file."""

    kind: str
    shape: tuple[int, ...]
    start: int
    size: int


_VERSIONS = (2, 3)
_MOST_AXES = 4
_ALIGNMENT = "general.alignment"

# The types of tensors by their numbers: ``enum ggml_type``.
_KINDS = {
    **{0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0"},
    **{10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K"},
    **{39: "MXFP4", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 30: "BF16"},
}
_DTYPES: dict[str, Any] = {
    **{"F16": np.dtype("float16"), "F32": np.dtype("float32"), "F64": np.dtype("float64")},
    **{"BF16": jnp.dtype("bfloat16"), "I8": np.dtype("int8"), "I16": np.dtype("int16")},
    **{"I32": np.dtype("int32"), "I64": np.dtype("int64")},
}

# The types of numbers in metadata by their numbers: ``enum gguf_metadata_value_type``.
_NUMBERS = {
    **{0: "u1", 1: "i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?"},
    **{10: "<u8", 11: "<i8", 12: "<f8"},
}
_STRING, _ARRAY = 8, 9


class _Cursor:
    """Reads a header from its start to its end."""

    def __init__(self, data: np.ndarray, refuse: Callable[[str], NoReturn]) -> None:
        self.data, self.refuse = data, refuse
        self.place = 0
        self.what = "its header"

    def take(self, count: int) -> Any:
        """So many bytes."""
        if count > len(self.data) - self.place:
            self.refuse(f"is not whole: it ends within {self.what}.")
        self.place += count
        return self.data[self.place - count : self.place]

    def number(self, code: str) -> Any:
        (number,) = struct.unpack(f"<{code}", self.take(struct.calcsize(code)))
        return number

    def text(self) -> str:
        return bytes(self.take(self.number("Q"))).decode(errors="replace")

    def value(self, kind: int, *, in_array: bool = False) -> Any:
        """A value in the metadata, of a type that has this number."""
        if kind in _NUMBERS:
            return self.numbers(kind, 1)[0].item()
        if kind == _STRING:
            return self.text()
        if kind != _ARRAY or in_array:
            self.refuse(f"has {self.what} of the type {kind}, which is not known here.")
        kind, count = self.number("I"), self.number("Q")
        if kind in _NUMBERS:
            return self.numbers(kind, count).tolist()
        return [self.value(kind, in_array=True) for _ in range(count)]

    def numbers(self, kind: int, count: int) -> np.ndarray:
        dtype = np.dtype(_NUMBERS[kind])
        return np.frombuffer(bytes(self.take(count * dtype.itemsize)), dtype)


def _read(file: pathlib.Path) -> tuple[np.ndarray, dict[str, Any], dict[str, _Tensor]]:
    """The bytes of a file, its metadata, and where its tensors are."""

    def refuse(why: str) -> NoReturn:
        raise ValueError(f"load_gguf: {file} {why}")

    is_empty = file.stat().st_size == 0
    data = np.zeros(0, np.uint8) if is_empty else np.memmap(file, np.uint8, "r")
    header = _Cursor(data, refuse)
    if bytes(data[:4]) != b"GGUF":
        refuse("is no GGUF file: it does not begin with these four letters.")
    header.take(4)
    version = header.number("I")
    if version not in _VERSIONS:
        is_swapped = version % 2**16 == 0
        refuse(
            "is of the big-endian byte order, which is not read."
            if is_swapped
            else f"is of version {version}. Versions 2 and 3 are read."
        )
    count_of_tensors, count_of_keys = header.number("Q"), header.number("Q")
    metadata: dict[str, Any] = {}
    for i in range(count_of_keys):
        header.what = f"entry {i} of its metadata"
        key = header.text()
        header.what = f"its metadata {key!r}"
        metadata[key] = header.value(header.number("I"))
    entries: dict[str, tuple[int, list[int], int]] = {}
    for i in range(count_of_tensors):
        header.what = f"the entry of tensor {i}"
        name = header.text()
        header.what = f"the entry of the tensor {name}"
        axes = header.number("I")
        if axes > _MOST_AXES:
            refuse(f"has a tensor {name} of {axes} axes; there are up to {_MOST_AXES}.")
        sizes = [header.number("Q") for _ in range(axes)]
        if name in entries:
            refuse(f"has two tensors {name}.")
        entries[name] = header.number("I"), sizes[::-1], header.number("Q")
    alignment = metadata.get(_ALIGNMENT, 32)
    if type(alignment) is not int or alignment < 1 or alignment % 8:
        refuse(f"has {_ALIGNMENT}={alignment!r}, which is no multiple of 8.")
    first = -(-header.place // alignment) * alignment
    tensors: dict[str, _Tensor] = {}
    for name, (number, shape, offset) in entries.items():
        if number not in _KINDS:
            refuse(
                f"has a tensor {name} of the type {number}, which is not known here. Known are "
                f"{', '.join(_KINDS.values())}."
            )
        if offset % alignment:
            refuse(f"has a tensor {name} at {offset}, which is not aligned to {alignment}.")
        size = _size_of(refuse, name, _KINDS[number], shape)
        tensors[name] = _Tensor(_KINDS[number], tuple(shape), first + offset, size)
    _check_places(refuse, tensors, len(data))
    return data, metadata, tensors


def _size_of(
    refuse: Callable[[str], NoReturn], name: str, kind: str, shape: Sequence[int]
) -> int:
    """The bytes of a tensor."""
    entries, size = 1, 0
    if kind in _DTYPES:
        size = _DTYPES[kind].itemsize
    else:
        layout = GGUF.formats[kind]
        entries, size = layout.entries, layout.bytes
    row = shape[-1] if shape else 1
    if row % entries or 0 in shape:
        refuse(
            f"has a tensor {name} of shape {tuple(shape)}, which {kind} cannot have: a row "
            f"consists of blocks of {entries}."
        )
    return math.prod(shape) // entries * size


def _check_places(
    refuse: Callable[[str], NoReturn], tensors: Mapping[str, _Tensor], length: int
) -> None:
    """No tensor is in another one's place, or beyond the end of the file."""
    end, before = 0, ""
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1].start):
        if tensor.start < end:
            refuse(
                f"has a tensor {name} of shape {tensor.shape} that begins within {before}."
            )
        end, before = tensor.start + tensor.size, name
        if end > length:
            refuse(
                f"is not whole: the tensor {name} of shape {tensor.shape} ends at byte {end}, "
                f"and the file at byte {length}."
            )

"""The tensors in files of safetensors, mapped into memory, with one clear error for a bad file."""

from __future__ import annotations

import json
import math
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

import jax.numpy as jnp
import numpy as np


_INDEX = "model.safetensors.index.json"

_DTYPES = {
    **{"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"},
    **{"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "BOOL": "bool"},
    **{f"{kind}{bits}": f"{name}{bits}" for kind, name in (("I", "int"), ("U", "uint")) for bits in (8, 16, 32, 64)},
}  # fmt: skip


class Stored(NamedTuple):
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


def table_in(file: pathlib.Path, reader: str = "load_hf") -> dict[str, Any]:
    """The table in a file of JSON."""
    if not file.is_file():
        raise FileNotFoundError(f"{reader}: there is no file {file}.")
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{reader}: {file} is not whole JSON: {error}.") from error
    if not isinstance(found, dict):
        raise ValueError(f"{reader}: {file} holds no table.")
    return found


def files_of(folder: pathlib.Path) -> list[pathlib.Path]:
    """The files of safetensors: those of the index if there is one."""
    files = sorted(folder.glob("*.safetensors"))
    if (folder / _INDEX).exists():
        names = table_in(folder / _INDEX).get("weight_map")
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


def tensors_of(file: pathlib.Path) -> dict[str, Stored]:
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
        tensor = Stored(name, file, part, _DTYPES.get(dtype, dtype), tuple(shape))
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

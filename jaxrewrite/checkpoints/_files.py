"""Files in the format of safetensors."""

from __future__ import annotations

import os
import pathlib
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import jax
import numpy as np

from ._storable import ABOUT, assemble, to_storable


_T = TypeVar("_T")


def save(path: str | os.PathLike[str], tree: Any) -> None:
    """Write a pytree of values and arrays to a file in the format of safetensors.

    The tensors have the names of `to_storable`, so that other programs can read those that
    are plain arrays. The header says what the others were. The file appears under its name
    when it is whole, and replaces an older one then.

    Parameters
    ----------
    path
        The file.
    tree
        As in `to_storable`.

    Raises
    ------
    ImportError
        If the package ``safetensors`` is missing.
    FileNotFoundError
        If the directory of the file is missing.
    IsADirectoryError
        If ``path`` is a directory.
    ValueError
        As for `to_storable`; or if an array is spread over several processes.

    Examples
    --------
    .. code-block:: python

        import jax.numpy as jnp
        from jaxrewrite.checkpoints import load, save
        from jaxrewrite.values import NF4

        params = {"kernel": NF4.quantise(jnp.ones((64, 4))), "bias": jnp.zeros(4)}
        save("model.safetensors", params)
        assert load("model.safetensors", params)["kernel"].codes.dtype == "uint4"
    """
    arrays = to_storable(tree)
    for name, array in arrays.items():
        if isinstance(array, jax.Array) and not array.is_fully_addressable:
            raise ValueError(
                f"save: {name} has parts in other processes. Store to_storable(tree) by Orbax."
            )
    about = bytes(arrays.pop(ABOUT)).decode()
    file = pathlib.Path(path)
    if not file.parent.is_dir():
        raise FileNotFoundError(f"save: there is no directory {file.parent}.")
    with replacing("save", file) as part:
        write_tensors("save", part, arrays, {ABOUT: about})


def load(path: str | os.PathLike[str], like: _T) -> _T:
    """Read a pytree that `save` wrote.

    Everything is checked before anything is returned, except for the numbers themselves.

    Parameters
    ----------
    path
        The file.
    like
        A pytree of the same structure, as in `from_storable`. `jax.eval_shape` of the function
        that makes the parameters gives one that takes no memory.

    Returns
    -------
    Any
        A pytree of the structure of ``like``.

    Raises
    ------
    ImportError
        If the package ``safetensors`` is missing.
    FileNotFoundError
        If there is no such file.
    ValueError
        If the file is not whole, was not written by `save`, or holds a pytree of another
        structure than ``like``.

    Examples
    --------
    .. code-block:: python

        import jax, jax.numpy as jnp
        from jaxrewrite.checkpoints import load, save
        from jaxrewrite.values import Quantised

        def new_params(key):
            return {"kernel": Quantised.quantise(jax.random.normal(key, (8, 4)))}

        save("model.safetensors", new_params(jax.random.key(0)))
        like = jax.eval_shape(new_params, jax.random.key(0))
        assert load("model.safetensors", like)["kernel"].shape == (8, 4)
    """
    arrays, metadata = read_tensors("load", pathlib.Path(path))
    if ABOUT not in metadata:
        raise ValueError(
            f"load: {path} was not written by jaxrewrite.checkpoints.save. Read the tensors of "
            "other files by safetensors.numpy.load_file, and make values of them."
        )
    about = np.frombuffer(metadata[ABOUT].encode(), np.uint8)
    return assemble("load", {**arrays, ABOUT: about}, like)


def safetensors(by: str) -> Any:
    """The package, which only these functions need."""
    try:
        import safetensors.numpy
    except ImportError as error:
        raise ImportError(
            f"{by} needs the package safetensors: pip install safetensors. to_storable makes "
            "arrays that any other library can store."
        ) from error
    return safetensors


def write_tensors(
    by: str, file: pathlib.Path, arrays: Mapping[str, Any], metadata: Mapping[str, str]
) -> None:
    # The package writes memory as it lies there.
    on_host = jax.device_get(dict(arrays))
    contiguous = {name: np.asarray(x, order="C") for name, x in on_host.items()}
    safetensors(by).numpy.save_file(contiguous, file, metadata=dict(metadata))


def read_tensors(
    by: str, file: pathlib.Path
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The tensors of a file, and the metadata of its header."""
    package = safetensors(by)
    if not file.is_file():
        raise FileNotFoundError(f"{by}: there is no file {file}.")
    try:
        with package.safe_open(file, framework="np") as opened:
            arrays = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
            return arrays, opened.metadata() or {}
    except (package.SafetensorError, AttributeError, TypeError) as error:
        # NumPy has no name for some dtypes of the format.
        raise ValueError(
            f"{by}: {file} is not a whole file of safetensors that NumPy can read: {error}."
        ) from error


@contextmanager
def replacing(by: str, *files: pathlib.Path) -> Iterator[Any]:
    """Paths to write to, which take the places of files when all of them are written.

    Of several files, the last is missing while the others are replaced. So they are never
    taken for a whole if the process ends meanwhile. Of several calls for one file the last wins.
    """
    for file in files:
        if file.is_dir():
            raise IsADirectoryError(
                f"{by}: {file} is a directory. Give the path of a file."
            )
    mark = uuid.uuid4().hex
    parts = [file.with_name(f"{file.name}.{mark}.part") for file in files]
    try:
        yield parts[0] if len(parts) == 1 else parts
        if len(files) > 1:
            files[-1].unlink(missing_ok=True)
        for part, file in zip(parts, files, strict=True):
            os.replace(part, file)
    finally:
        for part in parts:
            part.unlink(missing_ok=True)

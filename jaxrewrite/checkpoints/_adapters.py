"""`Lora` weights of a pytree, in the files of peft."""

from __future__ import annotations

import math
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxrewrite import Value
from jaxrewrite.values import Lora

from ._peft import COMPUTED, Adapter, read, write


# The module of a weight, or the modules of stacked weights; None for a weight without.
Modules = str | Sequence[str] | None
Names = Mapping[str, Modules] | Callable[[str], Modules]
Layout = Literal["in_out", "out_in"]


def save_adapter(
    directory: str | os.PathLike[str],
    params: Any,
    *,
    names: Names | None = None,
    layout: Layout = "in_out",
    use_rslora: bool = False,
    config: Mapping[str, Any] | None = None,
) -> None:
    """Write the adapters of a pytree, and nothing else of it, in the format of peft.

    The directory gets ``adapter_model.safetensors`` and ``adapter_config.json``. If it has such
    files, they are replaced when the new ones are written.

    Parameters
    ----------
    directory
        The directory, which is made if there is none.
    params
        A pytree with `Lora` weights. Their ranks and scales may differ: those that are not
        the most frequent are written as ``rank_pattern`` and ``alpha_pattern``.
    names
        The module of PyTorch to which each weight belongs: a function of the path of the
        weight, or a table by such paths. A path is that of `jaxrewrite.values.adapt`, such as
        ``"params/attention/query/kernel"``. A weight that is the stack of several layers'
        weights has a sequence of modules. By default the slashes become dots and a last
        ``kernel`` or ``weight`` is dropped: ``"params.attention.query"``.
    layout
        The order of the axes of the weights here: ``"in_out"`` for those that are
        multiplied from the right, ``x @ w``, as in Flax, and ``"out_in"`` for ``w @ x``, as
        in Equinox. In the file both are as in PyTorch.
    use_rslora
        Whether the file says alpha as rank-stabilised LoRA does: the scale is then alpha over
        the root of the rank, and not over the rank. The scale is the same either way.
    config
        More fields for ``adapter_config.json``, such as ``base_model_name_or_path``,
        ``task_type``, and ``fan_in_fan_out``, which for peft says that the layers of the
        PyTorch model hold their weights as ``(in, out)``. The factors in the file do not
        depend on it.

    Raises
    ------
    ImportError
        If the package ``safetensors`` is missing.
    ValueError
        If there is no `Lora`, if one has no module, two have the same, or the number of modules
        is not that of stacked layers; or if ``config`` has fields that are computed here.
    """
    taken = sorted(COMPUTED & {*(config or {})})
    if taken:
        raise ValueError(
            f"save_adapter: {', '.join(taken)} follows from the other arguments."
        )
    adapters: dict[str, Adapter] = {}
    for _, path, weight in _weights(params):
        if not isinstance(weight, Lora):
            continue
        modules = _modules("save_adapter", names, path)
        if modules is None:
            raise ValueError(
                f"save_adapter: names has no module for {path}, which is adapted."
            )
        for module, adapter in _split("save_adapter", path, weight, modules, layout):
            if module in adapters:
                raise ValueError(f"save_adapter: two weights have the module {module}.")
            adapters[module] = adapter
    if not adapters:
        raise ValueError("save_adapter: there is no Lora in this pytree.")
    write(pathlib.Path(directory), adapters, use_rslora, config or {})


def load_adapter(
    directory: str | os.PathLike[str],
    params: Any,
    *,
    names: Names | None = None,
    layout: Layout = "in_out",
) -> Any:
    """Adapt the weights of a pytree by the files of a LoRA adapter of peft.

    The result has the adapters of the file and no others. So this also takes the place of
    adapters that are there, which is how to swap them. Everything is checked before anything
    is returned.

    Parameters
    ----------
    directory
        The directory with ``adapter_model.safetensors`` and ``adapter_config.json``.
    params
        A pytree whose weights are arrays, values such as quantised weights, or `Lora`, of
        which the base is taken and, if it has more than two axes, ``rows`` and ``cols``: use
        `jaxrewrite.values.adapt` for such weights first.
    names, layout
        As in `save_adapter`. A function may return None for weights that have no adapter.

    Returns
    -------
    Any
        The same pytree, with a `Lora` for each module of the file. The factors have the dtypes
        of the file. The base weights are the same objects as in ``params``.

    Raises
    ------
    ImportError
        If the package ``safetensors`` is missing.
    FileNotFoundError
        If one of the files is missing.
    ValueError
        If a file is damaged; if the adapter is not LoRA of linear layers as it is computed
        here, such as DoRA; if it has modules that no weight of ``params`` has, or lacks one
        that ``names`` lists; or if shapes or ranks don't fit.
    """
    by = "load_adapter"
    adapters = read(pathlib.Path(directory))
    used: set[str] = set()
    flat, treedef = jax.tree_util.tree_flatten_with_path(params, is_leaf=_is_value)
    leaves = [leaf for _, leaf in flat]
    for i, path, weight in _weights(params):
        modules = _modules(by, names, path)
        listed = [modules] if isinstance(modules, str) else list(modules or ())
        there = [module for module in listed if module in adapters]
        wanted = isinstance(names, Mapping) or len(there) > 0
        if listed and wanted and len(there) < len(listed):
            missing = next(module for module in listed if module not in adapters)
            raise ValueError(
                f"{by}: {directory} has no adapter for the module {missing} of {path}. It has "
                f"{_some(sorted(adapters))}."
            )
        twice = [module for module in there if module in used]
        if twice:
            raise ValueError(f"{by}: two weights have the module {twice[0]}.")
        used |= {*there}
        base = weight.w if isinstance(weight, Lora) else weight
        if there and modules is not None:
            found = [adapters[module] for module in listed]
            leaves[i] = _joined(by, path, weight, modules, found, layout)
        else:
            leaves[i] = base
    unused = sorted(adapters.keys() - used)
    if unused:
        raise ValueError(
            f"{by}: no weight of this pytree has the module {_some(unused)}. Say by `names` "
            f"which has. There are {_some([path for _, path, _ in _weights(params)])}."
        )
    return treedef.unflatten(leaves)


def _weights(tree: Any) -> Iterator[tuple[int, str, Any]]:
    """The arrays and values among the leaves of a pytree, with their places and paths."""
    leaves = jax.tree_util.tree_flatten_with_path(tree, is_leaf=_is_value)[0]
    for i, (path, leaf) in enumerate(leaves):
        if hasattr(leaf, "shape"):
            yield i, jax.tree_util.keystr(path, simple=True, separator="/"), leaf


def _is_value(x: Any) -> bool:
    return isinstance(x, Value)


def _modules(by: str, names: Names | None, path: str) -> Modules:
    if names is None:
        *above, last = path.split("/")
        return ".".join(above if last in ("kernel", "weight") else [*above, last])
    return names.get(path) if isinstance(names, Mapping) else names(path)


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:5])
    return f"{shown}, and {len(names) - 5} more" if len(names) > 5 else shown


def _split(
    by: str, path: str, v: Lora, modules: str | Sequence[str], layout: Layout
) -> Iterator[tuple[str, Adapter]]:
    """The adapter of each module of a weight."""
    a, b = (np.asarray(x) for x in jax.device_get((v.a, v.b)))
    one = isinstance(modules, str)
    names = [modules] if one else list(modules)
    batch = a.shape[: a.ndim - 1 - len(v.rows)]
    if batch != (() if one else (len(names),)):
        raise ValueError(
            f"{by}: {path} is {f'a stack of {batch} weights' if batch else 'one weight'}; "
            f"names gives {modules!r}, where {'a module for each' if batch else 'one module'} "
            "is expected."
        )
    rank = a.shape[-1]
    a, b = a.reshape(len(names), -1, rank), b.reshape(len(names), rank, -1)
    for name, rows, cols in zip(names, a, b, strict=True):
        # The factors of (out, in) are b and a of peft, in this order.
        first, second = (cols.T, rows.T) if _is_in_out(by, layout) else (rows, cols)
        yield name, Adapter(second, first, v.scale)


def _is_in_out(by: str, layout: Layout) -> bool:
    if layout not in ("in_out", "out_in"):
        raise ValueError(f'{by}: layout is {layout!r}; it must be "in_out" or "out_in".')
    return layout == "in_out"


def _joined(
    by: str,
    path: str,
    weight: Any,
    modules: str | Sequence[str],
    found: Sequence[Adapter],
    layout: Layout,
) -> Lora:
    """The weight with the adapters of its modules."""
    batch = () if isinstance(modules, str) else (len(found),)
    base, rows, cols, frozen = _axes(by, path, weight, batch)
    ndim = len(batch) + len(rows) + len(cols)
    shape = tuple(weight.shape)
    sizes = [tuple(shape[axis % ndim] for axis in axes) for axes in (rows, cols)]
    n, m = map(math.prod, sizes)
    for name, adapter in zip([modules] if not batch else modules, found, strict=True):
        wanted = (n, m) if _is_in_out(by, layout) else (m, n)
        got = (adapter.a.shape[1], adapter.b.shape[0])
        if wanted != got:
            raise ValueError(
                f"{by}: the adapter of {name} is for a layer from {got[0]} to {got[1]} "
                f"features, but {path} has shape {shape}, which is from {wanted[0]} to "
                f'{wanted[1]} with layout="{layout}".'
            )
    if len({(adapter.rank, adapter.scale) for adapter in found}) > 1:
        raise ValueError(
            f"{by}: the layers that are stacked in {path} differ in rank or scale."
        )
    pairs = [(x.a.T, x.b.T) if _is_in_out(by, layout) else (x.b, x.a) for x in found]
    rank = found[0].rank
    a, b = (jnp.asarray(np.stack(factors)) for factors in zip(*pairs, strict=True))
    a, b = a.reshape(*batch, *sizes[0], rank), b.reshape(*batch, rank, *sizes[1])
    return Lora(base, a, b, found[0].scale, rows, cols, frozen)


def _axes(
    by: str, path: str, weight: Any, batch: tuple[int, ...]
) -> tuple[Any, tuple[int, ...], tuple[int, ...], bool]:
    """The base of a weight, its row and column axes, and whether it is frozen."""
    if isinstance(weight, Lora):
        own = weight.shape[: weight.ndim - len(weight.rows) - len(weight.cols)]
        parts = weight.w, weight.rows, weight.cols, weight.frozen
    else:
        own = tuple(weight.shape[:-2])
        parts = weight, (-2,), (-1,), True
    if own != batch or weight.ndim < 2:
        count = f"a sequence of {batch[0]} modules" if batch else "one module"
        raise ValueError(
            f"{by}: {path} has shape {tuple(weight.shape)}, and {count}. A matrix has one "
            "module, and a stack of matrices a sequence of one each. Weights with more axes "
            "have to be adapted by jaxrewrite.values.adapt before."
        )
    return parts

"""Adapted weights of a pytree, in the files of peft."""

from __future__ import annotations

import math
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np

import jaxrewrite
from jaxrewrite.values import Dora, Lora, Rescaled

from ._ia3 import (
    ADAPTED,
    bare,
    bias_beside,
    check_biases,
    is_bias,
    rescaled,
    rescaled_bias,
    scalings_of,
    without_factors,
)
from ._leaves import is_value
from ._peft import COMPUTED, Adapter, write
from ._peft_vectors import Scaling, read_any, shared, write_ia3, write_vera
from ._starts import started


# The module of a weight, or the modules of stacked weights; None for a weight without.
Modules = str | Sequence[str] | None
Names = Mapping[str, Modules] | Callable[[str], Modules]
Layout = Literal["in_out", "out_in"]
Kind = Literal["linear", "embedding", "convolution"]
Kinds = Mapping[str, Kind] | Callable[[str], Kind]

# What Flax, and PyTorch and Equinox, call the weight of a module.
_LAST_NAMES = ("kernel", "embedding", "weight")

# The names of the functions, for their errors.
_SAVE, _LOAD = "save_adapter", "load_adapter"


def save_adapter(
    directory: str | os.PathLike[str],
    params: Any,
    *,
    names: Names | None = None,
    layout: Layout = "in_out",
    kinds: Kinds | None = None,
    use_rslora: bool = False,
    config: Mapping[str, Any] | None = None,
) -> None:
    r"""Write the adapters of a pytree, and nothing else of it, in the format of peft.

    The directory gets ``adapter_model.safetensors`` and ``adapter_config.json``. If it has such
    files, they are replaced when the new ones are written.

    Parameters
    ----------
    directory
        The directory, which is made if there is none.
    params
        A pytree with `Lora` weights, or `Dora` weights, or `Rescaled` weights, which are those of
        IA3. Ranks and scales may differ: those that are not the most frequent are written as
        ``rank_pattern`` and ``alpha_pattern``. A `Lora` as ``adapt(..., method="vera")`` makes it
        is written as VeRA if all are parts of one pair of random matrices, and as LoRA otherwise.
        IA3 multiplies what a layer returns, so a ``bias`` beside a weight whose outputs are
        multiplied has to be a `Rescaled` with the same numbers.
    names
        The module of PyTorch to which each weight belongs: a function of the path of the
        weight, or a table by such paths. A path is that of `jaxrewrite.values.adapt`, such as
        ``"params/attention/query/kernel"``. A weight that is the stack of several layers'
        weights has a sequence of modules. By default the slashes become dots and a last
        ``kernel``, ``embedding`` or ``weight`` is dropped: ``"params.attention.query"``. A weight of which
        nothing is left so needs a name. None stands for a `Rescaled` that is no adapter, as the parts
        of a weight that AWQ has fitted are.
    layout
        The order of the axes of the weights here: ``"in_out"`` for those that are
        multiplied from the right, ``x @ w``, as in Flax, and ``"out_in"`` for ``w @ x``, as
        in Equinox. In the file both are as in PyTorch. Embeddings are (tokens, width) in both.
        Kernels of convolutions are (\*window, in, out), and (out, in, \*window).
    kinds
        What each weight is in PyTorch: ``"linear"``, ``"embedding"`` or ``"convolution"``, by a table
        or a function as for ``names``. By default a weight whose path ends with ``embedding`` is one,
        as in Flax, and one of more than two axes in a module whose name starts with ``conv`` is
        that.
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
        If there is no adapter, or there are those of several kinds; if one has no module or one without a name, two have the same,
        or the number of modules is not that of stacked layers; or if ``config`` has fields that
        are computed here.

    Examples
    --------
    .. code-block:: python

        import jax, jax.numpy as jnp
        from jaxrewrite.checkpoints import save_adapter
        from jaxrewrite.values import adapt

        params = {"block": {"query": {"kernel": jnp.ones((6, 4)), "bias": jnp.zeros(4)}}}
        is_kernel = lambda path, leaf: path.endswith("kernel")
        params = adapt(params, is_kernel, rank=2, key=jax.random.key(0), scale=0.5)
        names = {"block/query/kernel": "model.layers.0.self_attn.q_proj"}
        save_adapter("adapter", params, names=names, config={"task_type": "CAUSAL_LM"})
    """
    computed = sorted(COMPUTED & {*(config or {})})
    if computed:
        raise ValueError(
            f"{_SAVE}: {', '.join(computed)} follows from the other arguments."
        )
    weights = {path: weight for _, path, weight in _weights(_SAVE, params)}
    check_biases(weights)
    adapters: dict[str, Any] = {}
    for path, weight in weights.items():
        is_adapted = isinstance(weight, ADAPTED)
        if not is_adapted or (isinstance(weight, Rescaled) and is_bias(path)):
            continue
        modules = _modules(_SAVE, names, path)
        if modules is None and isinstance(weight, Rescaled) and _is_told(names, path):
            continue  # Its numbers are those of the weight, and no adapter.
        if modules is None:
            raise ValueError(f"{_SAVE}: names has no module for {path}, which is adapted.")
        for module, adapter in _parts(path, weights, modules, layout, kinds):
            if not module:
                raise ValueError(
                    f"{_SAVE}: the module of {path or 'this Lora'} has no name. Say by `names` "
                    "what it is."
                )
            if module in adapters:
                raise ValueError(f"{_SAVE}: two weights have the module {module}.")
            adapters[module] = adapter
    if not adapters:
        raise ValueError(f"{_SAVE}: there is no Lora in this pytree.")
    methods = sorted(set(map(_method, adapters.values())), reverse=True)
    if len(methods) > 1:
        raise ValueError(
            f"{_SAVE}: there are {' and '.join(methods)} weights. A file of peft has one kind. If the "
            "numbers of a Rescaled are no adapter, let names give None for it."
        )
    folder, more = pathlib.Path(directory), config or {}
    if isinstance(next(iter(adapters.values())), Scaling):
        write_ia3(folder, adapters, more)
    elif (matrices := shared(adapters)) is not None:
        write_vera(folder, adapters, matrices, more)
    else:
        plain = {module: adapter.multiplied() for module, adapter in adapters.items()}
        write(folder, plain, use_rslora, more)


def _method(adapter: Any) -> str:
    if isinstance(adapter, Scaling):
        return "Rescaled"
    return "Lora" if adapter.magnitude is None else "Dora"


def _parts(
    path: str,
    weights: Mapping[str, Any],
    modules: str | Sequence[str],
    layout: Layout,
    kinds: Kinds | None,
) -> Iterator[tuple[str, Any]]:
    """The adapter of each module of a weight."""
    weight = weights[path]
    if not isinstance(weight, Rescaled):
        return _split(path, weight, modules, layout, _kind(kinds, path, weight))
    in_first = _is_in_out(_SAVE, layout)
    is_convolution = _kind(kinds, path, weight) == "convolution"
    return scalings_of(path, weights, modules, in_first, is_convolution)


def load_adapter(
    directory: str | os.PathLike[str],
    params: Any,
    *,
    names: Names | None = None,
    layout: Layout = "in_out",
) -> Any:
    """Adapt the weights of a pytree by the files of an adapter of peft.

    The result has the adapters of the file and no others, but for multipliers where the file has
    none. So this also takes the place of adapters that are there, which is how to swap them.
    Everything is checked before anything is returned.

    Parameters
    ----------
    directory
        The directory with ``adapter_model.safetensors`` and ``adapter_config.json``.
    params
        A pytree whose weights are arrays, values such as quantised weights, or `Lora` or `Dora`, of
        which the base, ``rows`` and ``cols`` are taken: use `jaxrewrite.values.adapt` for weights
        with heads first. The base of a `Rescaled` is taken if the file is of IA3. Otherwise its
        numbers are those of the weight, such as AWQ finds, and stay. For an adapter of
        PiSSA or LoftQ they are the weights without any: what is left of them without the largest
        singular values, or what they are in `NF4`, is computed.
    names, layout
        As in `save_adapter`. A function may return None for weights that have no adapter.

    Returns
    -------
    Any
        The same pytree, with a `Lora`, or a `Dora`, for each module of the file, or a `Rescaled`
        if the file is of IA3. Of VeRA, the factors are `Rescaled`. Factors and numbers have the
        dtypes of the file. The rows of a new adapter are the inputs. The base weights are the same
        objects as in ``params``, but for those of PiSSA and LoftQ.
        A leaf ``bias`` beside a weight whose outputs IA3 multiplies becomes a `Rescaled` as well.

    Raises
    ------
    ImportError
        If the package ``safetensors`` is missing.
    FileNotFoundError
        If one of the files is missing.
    ValueError
        If a file is damaged; if the adapter is not LoRA, DoRA, PiSSA, VeRA or IA3 of linear
        layers, embeddings and convolutions in one group, or LoftQ in 4 bits and one turn of linear
        layers; if it has modules that no weight of ``params`` has, or lacks one
        that ``names`` lists; if ``names`` lists what is no weight; or if shapes, ranks or
        dtypes don't fit.

    Examples
    --------
    .. code-block:: python

        import jax.numpy as jnp
        from jaxrewrite.checkpoints import load_adapter, save_adapter
        from jaxrewrite.values import Lora

        bare = {"query": {"kernel": jnp.ones((6, 4)), "bias": jnp.zeros(4)}}
        kernel = Lora(bare["query"]["kernel"], jnp.ones((6, 2)), jnp.ones((2, 4)))
        save_adapter("adapter", {"query": {**bare["query"], "kernel": kernel}})

        adapted = load_adapter("adapter", bare)
        assert adapted["query"]["kernel"].rank == 2
        assert adapted["query"]["kernel"].w is bare["query"]["kernel"]
    """
    adapters = read_any(pathlib.Path(directory))
    used: set[str] = set()
    leaves, treedef = jax.tree.flatten(params, is_leaf=is_value)
    weights = list(_weights(_LOAD, params))
    places = {path: i for i, path, _ in weights}
    paths = list(places)
    # A `Rescaled` may be the weight itself, with multipliers that AWQ found. It is taken for an adapter
    # where one of its kind takes its place, and not where factors are added to it.
    is_of_ia3 = any(isinstance(adapter, Scaling) for adapter in adapters.values())
    without = bare if is_of_ia3 else without_factors
    for i, _, weight in weights:
        leaves[i] = without(weight)
    for i, path, weight in weights:
        modules = _modules(_LOAD, names, path)
        listed = _listed(modules)
        there = [module for module in listed if module in adapters]
        if not there and not isinstance(names, Mapping):
            continue
        for module in listed:
            if module not in there:
                raise ValueError(
                    f"{_LOAD}: {directory} has no adapter for the module {module} of {path}. "
                    f"It has {_some(sorted(adapters))}."
                )
            if module in used:
                raise ValueError(f"{_LOAD}: two weights have the module {module}.")
            used.add(module)
        if modules:
            of_weight: Any = [adapters[module] for module in listed]
            if isinstance(of_weight[0], Scaling):
                in_first = _is_in_out(_LOAD, layout)
                leaves[i] = rescaled(path, weight, modules, of_weight, in_first)
                bias = places.get(bias_beside(path))
                if bias is not None and not of_weight[0].is_of_inputs:
                    leaves[bias] = rescaled_bias(leaves[bias], of_weight)
            else:
                leaves[i] = _joined(path, weight, modules, of_weight, layout)
    table = names if isinstance(names, Mapping) else {}
    astray = [path for path in table.keys() - {*paths} if table[path] is not None]
    if astray:
        raise ValueError(
            f"{_LOAD}: names has {_some(sorted(astray))}, which is no weight of this pytree. "
            f"There are {_some(paths)}."
        )
    unused = sorted(adapters.keys() - used)
    if unused:
        raise ValueError(
            f"{_LOAD}: no weight of this pytree has the module {_some(unused)}. Say by `names` "
            f"which has. There are {_some(paths)}."
        )
    return jax.tree_util.tree_unflatten(treedef, leaves)


def _weights(by: str, tree: Any) -> Iterator[tuple[int, str, Any]]:
    """The arrays and values among the leaves of a pytree, with their places and paths."""
    leaves = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_value)[0]
    for i, (path, leaf) in enumerate(leaves):
        if hasattr(leaf, "shape"):
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            _check_no_lora_inside(by, name, leaf)
            yield i, name, leaf


def _check_no_lora_inside(by: str, path: str, weight: Any) -> None:
    is_inner = lambda x: x is not weight and isinstance(x, (Lora, Dora))
    if any(map(is_inner, jax.tree.leaves(weight, is_leaf=is_inner))):
        raise ValueError(
            f"{by}: {path} is a {type(weight).__name__} with a Lora inside. Files of peft "
            "have one adapter for a weight."
        )


def _modules(by: str, names: Names | None, path: str) -> Modules:
    if names is None:
        *above, last = path.split("/")
        return ".".join(above if last in _LAST_NAMES else [*above, last])
    modules = names.get(path) if isinstance(names, Mapping) else names(path)
    is_list = isinstance(modules, Sequence) and all(isinstance(x, str) for x in modules)
    if not (modules is None or is_list):
        raise ValueError(
            f"{by}: names gives {modules!r} for {path}, where a module, a sequence of modules or "
            "None is expected."
        )
    return modules


def _is_told(names: Names | None, path: str) -> bool:
    """Whether a table has a path, or a function is asked for it."""
    return path in names if isinstance(names, Mapping) else names is not None


def _listed(modules: Modules) -> list[str]:
    return [modules] if isinstance(modules, str) else list(modules or ())


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:5])
    return f"{shown}, and {len(names) - 5} more" if len(names) > 5 else shown


def _kind(kinds: Kinds | None, path: str, v: Any) -> Kind:
    if kinds is not None:
        kind = kinds.get(path, "linear") if isinstance(kinds, Mapping) else kinds(path)
        if kind not in get_args(Kind):
            raise ValueError(
                f"{_SAVE}: kinds gives {kind!r} for {path}; it must be one of {get_args(Kind)}."
            )
        return kind
    *modules, last = path.split("/")
    if last == "embedding":
        return "embedding"
    is_window = v.ndim > 2 if isinstance(v, Rescaled) else max(len(v.rows), len(v.cols)) > 1
    is_named = any(module.lower().startswith("conv") for module in modules)
    return "convolution" if is_window and is_named else "linear"


def _split(
    path: str, v: Lora | Dora, modules: str | Sequence[str], layout: Layout, kind: Kind
) -> Iterator[tuple[str, Adapter]]:
    """The adapter of each module of a weight."""
    # The axes of the inputs come first, or last; rows may be the inputs or the outputs.
    in_first = kind == "embedding" or _is_in_out(_SAVE, layout)
    are_rows_inputs = (min(v.rows) < min(v.cols)) == in_first
    numbers = _numbers_of_vera(v) if are_rows_inputs else None
    stored: list[Any] = [v.a, v.b]
    factors = [x.w for x in stored] if numbers else jaxrewrite.materialise(stored)
    a, b = map(np.asarray, jax.device_get(factors))
    names, one = _listed(modules), isinstance(modules, str)
    batch = a.shape[: a.ndim - 1 - len(v.rows)]
    if batch != (() if one else (len(names),)):
        raise ValueError(
            f"{_SAVE}: {path} is {f'a stack of {batch} weights' if batch else 'one weight'}; "
            f"names gives {modules!r}, where {'a module for each' if batch else 'one module'} "
            "is expected."
        )
    rank, count = a.shape[-1], len(names)
    a = np.moveaxis(a.reshape(count, *a.shape[len(batch) :]), -1, 1)
    b = b.reshape(count, *b.shape[len(batch) :])
    inputs, outputs = (a, b) if are_rows_inputs else (b, a)
    if kind != "convolution":
        inputs = inputs.reshape(count, rank, -1)
    elif in_first:  # The features come behind the window here, and before it in PyTorch.
        inputs = np.moveaxis(inputs, -1, 2)
    outputs = outputs.reshape(count, rank, -1)
    lengths: Any = [None] * count
    if isinstance(v, Dora):
        if not are_rows_inputs:
            raise ValueError(
                f"{_SAVE}: the lengths of {path} are of its inputs, and peft has those of outputs. "
                "Let `rows` be the inputs: for an embedding its tokens."
            )
        lengths = np.asarray(v.magnitude).reshape(count, -1)
    each = [np.reshape(x, (count, -1)) for x in numbers or ()]
    is_embedding = kind == "embedding"
    for i, name in enumerate(names):
        own = (each[0][i], each[1][i]) if each else None
        yield (
            name,
            Adapter(inputs[i], outputs[i].T, v.scale, lengths[i], is_embedding, own),
        )


def _numbers_of_vera(v: Lora | Dora) -> tuple[Any, Any] | None:
    """What multiplies the ranks of ``a`` and the columns of ``b``, as in VeRA, or None."""
    a: Any = v.a
    b: Any = v.b
    if isinstance(v, Dora) or not (isinstance(a, Rescaled) and isinstance(b, Rescaled)):
        return None
    batch = a.ndim - 1 - len(v.rows)
    columns = b.shape[batch + 1 :]
    of_ranks = (*a.shape[:batch], *(1,) * len(v.rows), v.rank)
    of_columns = (*b.shape[:batch], 1, *columns)
    if a.scale.shape != of_ranks or b.scale.shape != of_columns:
        return None
    numbers = jax.device_get((a.scale, b.scale))
    return np.asarray(numbers[0]), np.asarray(numbers[1])


def _is_in_out(by: str, layout: Layout) -> bool:
    if layout not in ("in_out", "out_in"):
        raise ValueError(f'{by}: layout is {layout!r}; it must be "in_out" or "out_in".')
    return layout == "in_out"


def _joined(
    path: str,
    weight: Any,
    modules: str | Sequence[str],
    adapters: Sequence[Adapter],
    layout: Layout,
) -> Lora | Dora:
    """The weight with the adapters of its modules."""
    like = adapters[0]
    batch = () if isinstance(modules, str) else (len(adapters),)
    in_first = like.is_embedding or _is_in_out(_LOAD, layout)
    base, rows, cols, frozen = _axes(path, weight, batch, like, in_first)
    ndim = len(batch) + len(rows) + len(cols)
    shape = tuple(weight.shape)
    sizes = [tuple(shape[axis % ndim] for axis in axes) for axes in (rows, cols)]
    are_rows_inputs = (rows[0] % ndim < cols[0] % ndim) == in_first
    of_inputs, of_outputs = sizes if are_rows_inputs else sizes[::-1]
    if like.numbers is not None:
        adapters = [x._replace(a=x.a[:, : math.prod(of_inputs)]) for x in adapters]
    for name, adapter in zip(_listed(modules), adapters, strict=True):
        wanted = (math.prod(of_inputs), math.prod(of_outputs))
        got = (math.prod(adapter.a.shape[1:]), adapter.b.shape[0])
        is_alike = (adapter.is_convolution, adapter.is_embedding) == (
            like.is_convolution,
            like.is_embedding,
        )
        if wanted != got or not is_alike:
            raise ValueError(
                f"{_LOAD}: the adapter of {name} is for a layer from {got[0]} to {got[1]} "
                f"features, but {path} has shape {shape}, which is from {wanted[0]} to "
                f'{wanted[1]} with layout="{layout}".'
            )
    if len({(adapter.rank, adapter.scale) for adapter in adapters}) > 1:
        raise ValueError(
            f"{_LOAD}: the layers that are stacked in {path} differ in rank or scale."
        )
    inputs = np.stack([adapter.a for adapter in adapters])
    outputs = np.stack([adapter.b.T for adapter in adapters])
    if like.is_convolution and in_first:
        inputs = np.moveaxis(inputs, 2, -1)
    first, second = (inputs, outputs) if are_rows_inputs else (outputs, inputs)
    rank = like.rank
    a: Any = jnp.asarray(np.moveaxis(first.reshape(len(adapters), rank, *sizes[0]), 1, -1))
    b: Any = jnp.asarray(second.reshape(len(adapters), rank, *sizes[1]))
    a, b = a.reshape(*batch, *sizes[0], rank), b.reshape(*batch, rank, *sizes[1])
    if like.start is not None:
        pair = (rows, cols) if are_rows_inputs else (cols, rows)
        base = started(path, weight, like.rank, *pair, like.start)
    if like.numbers is not None:
        numbers: Any = zip(*(adapter.numbers or () for adapter in adapters), strict=True)
        of_ranks, of_columns = (jnp.asarray(np.stack(some)) for some in numbers)
        ranks = of_ranks.reshape(*batch, *(1,) * len(rows), rank)
        a = Rescaled(a, ranks)
        b = Rescaled(b, of_columns.reshape(*batch, 1, *sizes[1]))
    if like.magnitude is None:
        return Lora(base, a, b, like.scale, rows, cols, frozen)
    along = list(shape)
    for axis in rows:
        along[axis] = 1
    lengths = np.stack([adapter.magnitude for adapter in adapters]).reshape(along)
    return Dora(base, a, b, jnp.asarray(lengths), like.scale, rows, cols, frozen)


def _axes(
    path: str, weight: Any, batch: tuple[int, ...], like: Adapter, in_first: bool
) -> tuple[Any, tuple[int, ...], tuple[int, ...], bool]:
    """The base of a weight, its row and column axes, and whether it is frozen.

    The rows are the inputs, of which dropout drops entries, unless the weight has an adapter with other
    rows. Those of a DoRA, and of a VeRA, are the inputs in any case.
    """
    if isinstance(weight, (Lora, Dora)):
        batch_of_weight = weight.shape[: weight.ndim - len(weight.rows) - len(weight.cols)]
        rows, cols, frozen = weight.rows, weight.cols, weight.frozen
    elif not jnp.issubdtype(weight.dtype, jnp.floating):
        raise ValueError(
            f"{_LOAD}: {path} has dtype {weight.dtype}, and only floating weights have adapters."
        )
    else:
        first = -like.a.ndim
        batch_of_weight = tuple(weight.shape[:first])
        inputs = range(first, -1) if in_first else range(first + 1, 0)
        rows, cols, frozen = tuple(inputs), (-1,) if in_first else (first,), True
    if like.is_convolution and weight.ndim < len(batch) + len(rows) + len(cols):
        raise ValueError(
            f"{_LOAD}: {path} has shape {tuple(weight.shape)}, and the file has the adapter of a "
            f"convolution for it, of a kernel with {like.a.ndim} axes."
        )
    if batch_of_weight != batch or weight.ndim < 2:
        count = f"a sequence of {batch[0]} modules" if batch else "one module"
        raise ValueError(
            f"{_LOAD}: {path} has shape {tuple(weight.shape)}, and {count}. A matrix has one "
            "module, and a stack of matrices a sequence of one each. Weights with more axes "
            "have to be adapted by jaxrewrite.values.adapt before."
        )
    ndim = weight.ndim
    has_inputs = like.magnitude is not None or like.numbers is not None
    if has_inputs and (rows[0] % ndim < cols[0] % ndim) != in_first:
        rows, cols = cols, rows
    return without_factors(weight), rows, cols, frozen

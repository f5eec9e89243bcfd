"""Quantising the weights of a model."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.tree_util import tree_unflatten

from .._base.chosen import chosen_leaves, leaves_by_path
from .._base.progress import Progress, shown
from .._base.structured import is_value
from .coded import is_floating, sizes_along, sizes_asked
from .concatenated import Concatenated, in_whole_blocks
from .float8 import DTYPES, Float8
from .microscaled import FORMATS as MICROSCALED, Microscaled
from .nf4 import NF4
from .quantised import Quantised
from .weight_axes import AnyAxes, WeightAxes, axes_of_leaf


# The formats that share scales in blocks by default, and the size of these.
DEFAULT_BLOCKS = {"nf4": 64} | {name: form.block for name, form in MICROSCALED.items()}

# How many times a block may be larger or smaller than that of the format, to divide an axis.
_MOST_APART = 4

FORMATS = ("nf4", *map(str, DTYPES), *Microscaled.formats)


def quantise(
    tree: Any,
    where: Callable[[str, Any], bool],
    bits: int | str = 8,
    *,
    axes: AnyAxes = None,
    progress: Progress | None = None,
    **options: Any,
) -> Any:
    """Replace chosen weights of a model by quantised ones.

    Values that are already in the tree stay as they are. So several calls can give
    different weights different options.

    Parameters
    ----------
    tree
        Any pytree: an Equinox module, parameters of Flax, nested dictionaries.
    where
        A predicate, called with the path of each array of real floating numbers
        (``"blocks/0/kernel"``) and the array. It returns whether to quantise it.
    bits
        2 to 8, ``"nf4"``, ``"float8_e4m3fn"``, ``"float8_e5m2"``, or one of the formats of
        `Microscaled`, such as ``"mxfp4"``.
    axes
        Which axes of each weight are summed by products, as for `adapt`: what `weight_axes`
        found out. Then each layer of a stack, and each column, has its own scales, and the
        option ``block`` is a number of entries along the summed axes: so many consecutive
        ones share a scale. Without ``block`` all that is summed shares a scale, or about as many
        as the format says: the divisor of the length that is the nearest, such as 48 of 96 for
        the 64 of NF4, unless it is four times as far.
    progress
        A function to show the progress, such as ``tqdm.tqdm``. It is called with the paths of
        the chosen leaves, and returns an iterator over them. The next item is taken as the
        work on a leaf begins.
    **options
        The options of `Quantised.quantise`, `NF4.quantise`, `Float8.quantise` or
        `Microscaled.quantise`. A ``block`` need not divide an axis here: the last block along it
        is then shorter. None stands for that of the format.

    Returns
    -------
    Any
        The tree, with a `Quantised`, an `NF4`, a `Float8` or a `Microscaled` for each chosen
        leaf, or with a `Concatenated` of two of these if its last block is shorter.

    Raises
    ------
    ValueError
        If ``bits`` is none of these, or ``where`` chose no leaf, or a leaf that can't be
        quantised. The message names the path. If ``axes`` lacks a chosen leaf, or is no pair of groups of axes, or comes with an
        option that says the same. If what ``progress`` returns has more or fewer items than leaves were chosen.
    TypeError
        If ``where`` is no function.

    Warns
    -----
    UserWarning
        If a weight with ``activations`` has several scales along what its products sum, so that
        they are none of integers. Without ``axes`` it is not known what is summed; then the
        product itself warns, when a program with it is rewritten.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from jaxrewrite.values import quantise
    >>> params = {"dense": {"kernel": jnp.ones((64, 2)), "bias": jnp.ones(2)}}
    >>> quantised = quantise(params, lambda path, _: path.endswith("kernel"), axis=-1)
    >>> quantised["dense"]["kernel"]
    Quantised<f32[64,2], 136 B>(q=i8[64,2], scale=f32[1,2], zero=None)

    A weight of Equinox is multiplied from the left. Its inputs are the last axis:

    >>> import equinox as eqx, jax
    >>> from jaxrewrite.values import weight_axes
    >>> linear = eqx.nn.Linear(128, 4, use_bias=False, key=jax.random.key(0))
    >>> axes = weight_axes(lambda layer, x: layer(x), linear, jnp.ones(128))
    >>> quantise(linear, lambda path, _: path == "weight", 4, block=64, axes=axes).weight
    Quantised<f32[4,128], 288 B>(q=Nibbles<i4[4,128], 256 B>, scale=f32[4,2], zero=None)

    The last block may be shorter, as that of 36 inputs here:

    >>> params = {"kernel": jnp.ones((100, 33))}
    >>> quantise(params, lambda path, _: True, 4, block=64)["kernel"].lengths
    (64, 36)
    """
    check_format("quantise", bits)
    if options.get("block", 0) is None:
        del options["block"]  # As where it is not given.
    paths, leaves, treedef = leaves_by_path(tree)
    is_open = lambda leaf: not is_value(leaf) and is_floating(leaf)
    positions = chosen_leaves("quantise", where, paths, leaves, is_open)
    for i, path in zip(
        positions, shown([paths[i] for i in positions], progress), strict=True
    ):
        own = None if axes is None else axes_of_leaf("quantise", axes, path, leaves[i])
        try:
            if own is None:
                leaves[i] = _quantised(leaves[i], bits, options)
            else:
                leaves[i] = quantised_along(own, leaves[i], bits, options)
        except ValueError as error:
            raise ValueError(
                f"quantise: `{path}` can't be quantised. {error}{_way_out(axes, bits, options)}"
            ) from error
        _warn_of_floats(path, leaves[i], own)
    return tree_unflatten(treedef, leaves)


def _way_out(axes: AnyAxes, bits: Any, options: dict[str, Any]) -> str:
    if axes is not None or not ("block" in options or bits in DEFAULT_BLOCKS):
        return ""
    return (
        " Or give axes=weight_axes(fn, params, x), which finds out from the function that uses the "
        "weights which axes are summed, for blocks along these. Or leave this leaf out, by where."
    )


def _warn_of_floats(path: str, weight: Any, axes: WeightAxes | None) -> None:
    """Warn if a weight that rounds what it is multiplied with has no product of integers."""
    if isinstance(weight, Concatenated):
        weight = weight.parts[0]
    if getattr(weight, "activations", None) is None:
        return
    scales = weight.scale_of_blocks().shape
    # The axes that are summed, if they are known, else any of them may be.
    is_along = [n > 1 for n in scales]
    is_lost = all(is_along) if axes is None else any(is_along[i] for i in axes.rows)
    if is_lost:
        warnings.warn(
            f"quantise: {path} has several scales along what its products sum, {scales} in all, so "
            f"these are not products of integers in spite of activations={weight.activations!r}. "
            "Give one scale for each output, by axes=weight_axes(fn, params, x) without `block`.",
            stacklevel=3,
        )


def check_format(caller: str, bits: Any) -> None:
    if not isinstance(bits, (int, np.integer)) and bits not in FORMATS:
        raise ValueError(
            f"{caller}: bits is {bits!r}. It must be 2 to 8, or one of {FORMATS}."
        )


def quantised_along(axes: WeightAxes, w: Any, bits: Any, options: dict[str, Any]) -> Any:
    """A weight in a format, with blocks along the axes that a product sums."""
    asked = options.get("block")
    is_number = asked is None or isinstance(asked, (int, np.integer))
    if not is_number or "axis" in options or "stack" in options:
        raise ValueError(
            "`axes` says which axes are summed, so `block` is one number, and there is no `axis` or "
            "`stack`."
        )
    block = options.get("block", DEFAULT_BLOCKS.get(bits))
    summed = math.prod(w.shape[i] for i in axes.rows)
    lengths = [w.shape[i] for i in axes.rows]
    along = sizes_along(
        lengths, summed if block is None else block, _near if asked is None else min
    )
    sizes = dict(zip(axes.rows, along, strict=True))
    own = tuple(sizes.get(i, 1) for i in range(w.ndim))
    options = {**options, "block": own}
    # What multiplies the scales is each layer's own, too.
    if bits in DEFAULT_BLOCKS:
        options["stack"] = [i for i in range(w.ndim) if i not in axes.rows + axes.cols]
    return _quantised(w, bits, options)


def _near(block: int, n: int) -> int:
    """The divisor of a length that is the nearest to a size, as a ratio, if it is near."""
    divisors = (d for d in range(1, n + 1) if n % d == 0)
    apart = lambda d: max(d / block, block / d)
    nearest = min(divisors, key=lambda d: (apart(d), d), default=1)
    return nearest if apart(nearest) <= _MOST_APART else min(block, n)


def _quantised(leaf: Any, bits: Any, options: dict[str, Any]) -> Any:
    """A weight in a format, whose last block along an axis may be shorter than the others."""
    block, shape = options.get("block", DEFAULT_BLOCKS.get(bits)), jnp.shape(leaf)
    # The first axis may be that of layers, for which a block is not meant.
    is_of_stack = isinstance(block, (int, np.integer)) and len(shape) > 2
    if block is None or is_of_stack or isinstance(leaf, (list, tuple)):
        return _in_format(leaf, bits, options)
    pairs = zip(sizes_asked("quantise", shape, block), shape, strict=True)
    sizes = tuple(min(size, n) for size, n in pairs)

    def part(where: tuple[slice, ...]) -> Any:
        w = jnp.asarray(leaf)[where]
        own = tuple(map(min, sizes, w.shape))
        return _in_format(w, bits, {**options, "block": own})

    return in_whole_blocks(shape, sizes, part)


def _in_format(leaf: Any, bits: Any, options: dict[str, Any]) -> Any:
    if bits == "nf4":
        return NF4.quantise(leaf, **options)
    if bits in Microscaled.formats:
        return Microscaled.quantise(leaf, bits, **options)
    if bits in FORMATS:
        return Float8.quantise(leaf, bits, **options)
    return Quantised.quantise(leaf, bits, **options)

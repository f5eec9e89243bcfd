"""Quantising the weights of a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from jax.tree_util import keystr, tree_flatten_with_path, tree_unflatten

import jaxrewrite

from .._base.chosen import chosen_leaves
from .._base.progress import Progress, shown
from .float8 import DTYPES, Float8
from .microscaled import Microscaled
from .nf4 import NF4
from .quantised import Quantised


FORMATS = ("nf4", *map(str, DTYPES), *Microscaled.formats)


def quantise(
    tree: Any,
    where: Callable[[str, Any], bool],
    bits: int | str = 8,
    *,
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
        A predicate, called with the path of each leaf (``"blocks/0/kernel"``) and the leaf.
        It returns whether to quantise the leaf.
    bits
        2 to 8, ``"nf4"``, ``"float8_e4m3fn"``, ``"float8_e5m2"``, or one of the formats of
        `Microscaled`, such as ``"mxfp4"``.
    progress
        A function to show the progress, such as ``tqdm.tqdm``. It is called with the paths of
        the chosen leaves, and returns an iterator over them. The next item is taken as the
        work on a leaf begins.
    **options
        The options of `Quantised.quantise`, `NF4.quantise`, `Float8.quantise` or
        `Microscaled.quantise`.

    Returns
    -------
    Any
        The tree, with a `Quantised`, an `NF4`, a `Float8` or a `Microscaled` for each chosen
        leaf.

    Raises
    ------
    ValueError
        If ``bits`` is none of these, or ``where`` chose no leaf, or a leaf that can't be
        quantised. The message names the path. If what ``progress`` returns has more or fewer items than leaves were chosen.
    TypeError
        If ``where`` is no function.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from jaxrewrite.values import quantise
    >>> params = {"dense": {"kernel": jnp.ones((64, 2)), "bias": jnp.ones(2)}}
    >>> quantised = quantise(params, lambda path, _: path.endswith("kernel"), axis=-1)
    >>> quantised["dense"]["kernel"]
    Quantised<f32[64,2], 136 B>(q=i8[64,2], scale=f32[1,2], zero=None)
    """
    if not isinstance(bits, (int, np.integer)) and bits not in FORMATS:
        raise ValueError(
            f"quantise: bits is {bits!r}. It must be 2 to 8, or one of {FORMATS}."
        )
    flat, treedef = tree_flatten_with_path(
        tree, is_leaf=lambda x: isinstance(x, jaxrewrite.Value)
    )
    paths = [keystr(path, simple=True, separator="/") for path, _ in flat]
    leaves = [leaf for _, leaf in flat]
    is_open = lambda leaf: not isinstance(leaf, jaxrewrite.Value)
    positions = chosen_leaves("quantise", where, paths, leaves, is_open)
    for i, path in zip(
        positions, shown([paths[i] for i in positions], progress), strict=True
    ):
        try:
            leaves[i] = _quantised(leaves[i], bits, options)
        except ValueError as error:
            raise ValueError(f"quantise: `{path}` can't be quantised. {error}") from error
    return tree_unflatten(treedef, leaves)


def _quantised(leaf: Any, bits: Any, options: dict[str, Any]) -> Any:
    if bits == "nf4":
        return NF4.quantise(leaf, **options)
    if bits in Microscaled.formats:
        return Microscaled.quantise(leaf, bits, **options)
    if bits in FORMATS:
        return Float8.quantise(leaf, bits, **options)
    return Quantised.quantise(leaf, bits, **options)

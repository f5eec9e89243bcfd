"""Quantising the weights of a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax.tree_util import keystr, tree_map_with_path

import jaxrewrite

from .float8 import DTYPES, Float8
from .nf4 import NF4
from .quantised import Quantised


def quantise(
    tree: Any,
    where: Callable[[str, Any], bool],
    bits: int | str = 8,
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
        2 to 8, ``"nf4"``, ``"float8_e4m3fn"`` or ``"float8_e5m2"``.
    **options
        The options of `Quantised.quantise`, `NF4.quantise` or `Float8.quantise`.

    Returns
    -------
    Any
        The tree, with a `Quantised`, an `NF4` or a `Float8` for each chosen leaf.

    Raises
    ------
    ValueError
        If ``where`` chose no leaf, or a leaf that can't be quantised. The message names the
        path.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from jaxrewrite.values import quantise
    >>> params = {"dense": {"kernel": jnp.ones((64, 2)), "bias": jnp.ones(2)}}
    >>> quantised = quantise(params, lambda path, _: path.endswith("kernel"), axis=-1)
    >>> quantised["dense"]["kernel"]
    Quantised<f32[64,2], 136 B>(q=i8[64,2], scale=f32[1,2], zero=None)
    """
    chosen = []

    def swap(path: Any, leaf: Any) -> Any:
        name = keystr(path, simple=True, separator="/")
        if isinstance(leaf, jaxrewrite.Value) or not where(name, leaf):
            return leaf
        chosen.append(name)
        try:
            return _quantised(leaf, bits, options)
        except ValueError as error:
            raise ValueError(f"quantise: `{name}` can't be quantised. {error}") from error

    swapped = tree_map_with_path(
        swap, tree, is_leaf=lambda x: isinstance(x, jaxrewrite.Value)
    )
    if not chosen:
        raise ValueError("quantise: `where` chose no leaf of the tree.")
    return swapped


def _quantised(leaf: Any, bits: Any, options: dict[str, Any]) -> Any:
    if bits == "nf4":
        return NF4.quantise(leaf, **options)
    if bits in map(str, DTYPES):
        return Float8.quantise(leaf, bits, **options)
    return Quantised.quantise(leaf, bits, **options)

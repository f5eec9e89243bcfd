"""Which leaves of a pytree a user chose, for helpers that replace these leaves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jax.tree_util import PyTreeDef, keystr, tree_flatten_with_path

from .structured import is_value


_LISTED = 20


def leaves_by_path(tree: Any) -> tuple[list[str], list[Any], PyTreeDef]:
    """The paths of a pytree's leaves, with values among them, as ``where`` sees them."""
    flat, treedef = tree_flatten_with_path(tree, is_leaf=is_value)
    paths = [keystr(path, simple=True, separator="/") for path, _ in flat]
    return paths, [leaf for _, leaf in flat], treedef


def chosen_leaves(
    caller: str,
    where: Callable[[str, Any], bool],
    paths: Sequence[str],
    leaves: Sequence[Any],
    may_choose: Callable[[Any], bool],
) -> list[int]:
    """The positions of the leaves that ``where`` chose, among those that it may choose."""
    if not callable(where):
        raise TypeError(
            f"{caller}: where, the second argument, is {where!r}. It must be a function of the path and the leaf, such "
            'as lambda path, leaf: path.endswith("kernel").'
        )
    candidates = [i for i, leaf in enumerate(leaves) if may_choose(leaf)]
    positions = [i for i in candidates if where(paths[i], leaves[i])]
    if not positions:
        asked = [paths[i] for i in candidates]
        others = [path for path in paths if path not in asked]
        text = f"where chose none of the leaves: {_listed(asked)}."
        text = text if asked else "there is no leaf that where may choose."
        text += f" Others can't be chosen: {_listed(others)}." * bool(others)
        raise ValueError(f"{caller}: {text}")
    return positions


def _listed(paths: Sequence[str]) -> str:
    more = len(paths) - _LISTED
    names = ", ".join(paths[:_LISTED])
    return f"{names}, and {more} more" if more > 0 else names
